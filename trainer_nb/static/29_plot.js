// A pair of axes and what is drawn between them, for charts of the page, whose pen is a canvas, and for saved pictures, whose pen writes SVG.

const FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', sans-serif";
const ticksOf = (scale, count) => (scale.log ? logTicks : linearTicks)(scale.low, scale.high, count);

// The first of some places in order that is at or beyond a value.
function firstFrom(count, place, value) {
  let low = 0, high = count;
  while (low < high) {
    const middle = low + high >> 1;
    if (place(middle) < value) low = middle + 1; else high = middle;
  }
  return low;
}

function segment(pen, x, y, toX, toY) { pen.moveTo(x, y); pen.lineTo(toX, toY); }

function shortened(pen, text, width) {
  while (text.length > 2 && pen.measureText(text).width > width) text = text.slice(0, -2) + "…";
  return text;
}

// A line is {style, color, count, x, y}, where x and y give the values of a point by its number, and has more if need be: loose, where the
// points are in no order; low and high, from where to where the steps of a point go; dash, weight, alpha; pale, the opacity of the line alone; aside, where the axis is not chosen by it.
// Its style: line; faint, as a backdrop; dashed; rings, a line with a ring for each value; points, rings alone; dots, many of them; bars.
class Plot {
  constructor() {
    Object.assign(this, { lines: [], names: [], heat: null, unit: "", zoomX: null, zoomY: null, points: 0, area: { left: 0, top: 0, width: 0, height: 0 } });
  }

  // Place the axes: names beside rows, or ticks beside values from low to high.
  layout(pen, width, height, range, { low, high }, { top = 14, bottom = 24, left: least = 32, right = 6, named = true } = {}) {
    const { names } = this, tall = height - top - bottom;
    pen.font = FONT;
    this.y = names.length ? new Scale(-0.5, names.length - 0.5, top, height - bottom) : new Scale(low, high, height - bottom, top, this.log);
    this.yTicks = names.length ? names.map((text, at) => ({ at, text: named && at % Math.ceil(12 * names.length / tall) === 0 ? text : "" })) : ticksOf(this.y, Math.max(2, Math.floor(tall / 28)));
    const words = Math.max(0, ...this.yTicks.map(o => pen.measureText(o.text).width)), left = names.length && !named ? 8 : Math.max(least, Math.ceil((words + 9) / 8) * 8);
    this.area = { left, top, width: width - left - right, height: tall };
    this.x = new Scale(range[0], range[1], left, width - right, this.logX);
  }

  axes(pen) {
    const { colors, area: { left, top, width, height } } = this, bottom = top + height, right = left + width;
    Object.assign(pen, { font: FONT, fillStyle: colors.muted, strokeStyle: colors.grid, lineWidth: 1, textAlign: "right", textBaseline: "middle" });
    pen.beginPath();
    for (const { at, text } of this.yTicks) {
      const y = Math.round(this.y.at(at)) + 0.5;
      if (!this.heat) segment(pen, left, y, right, y);
      if (text) pen.fillText(text, left - 7, this.parallel ? y - 6 : y);
    }
    pen.stroke();
    if (this.parallel) return;
    Object.assign(pen, { strokeStyle: colors.line, textAlign: "center", textBaseline: "top" });
    pen.beginPath();
    segment(pen, left, bottom + 0.5, right, bottom + 0.5);
    const words = shortened(pen, this.unit, width / 2), reserved = words && !this.below ? pen.measureText(words).width + 10 : 0;
    let free = -Infinity;
    const count = Math.max(2, Math.floor(width / 62));
    for (const tick of this.ticksX?.(count) ?? ticksOf(this.x, count)) {
      const at = Math.round(this.x.at(tick.at)) + 0.5, half = pen.measureText(tick.text).width / 2, middle = Math.min(at, right - half);
      segment(pen, at, bottom, at, bottom + 4);
      if (middle - half < free || middle + half > right - reserved + 2) continue;
      pen.fillText(tick.text, middle, bottom + 6);
      free = middle + half + 8;
    }
    pen.stroke();
    pen.textAlign = "right";
    if (words) pen.fillText(words, right, bottom + (this.below ? 20 : 6));
  }

  // Draw everything; y comes from heights.
  drawOn(pen, width, height, range, y, margins) {
    this.layout(pen, width, height, range, y, margins);
    this.axes(pen);
    this.marksBehind?.(pen);
    const { left, top, width: across, height: down } = this.area, beyond = this.zoomedX ? 0 : 5;   // marks at the edges are drawn whole
    pen.save();
    pen.beginPath();
    pen.rect(left - beyond, top - 5, across + beyond + 5, down + 6);
    pen.clip();
    if (this.heat) this.drawHeat(pen);
    for (const line of this.lines) this.drawLine(pen, line);
    pen.restore();
    pen.setLineDash([]);
    Object.assign(pen, { globalAlpha: 1, extra: {} });
    this.marksBefore?.(pen);
    if (this.heat) this.drawRamp(pen);
    Object.assign(pen, { font: FONT, textAlign: "right", textBaseline: "middle", lineWidth: 4, strokeStyle: this.colors.surface, fillStyle: this.colors.muted });
    const say = (text, at) => { pen.strokeText(text, left + across - 1, at); pen.fillText(text, left + across - 1, at); };
    if (y.above !== null) say("↑ up to " + number(y.above, 3), top + 9);
    if (y.below !== null) say("↓ down to " + number(y.below, 3), top + down - 10);
  }

  // A pixel for each place across.
  drawHeat(pen) {
    const { left, top, width, height } = this.area, { rows, value, extent } = this.heat, across = Math.max(1, Math.round(width));
    pen.imageSmoothingEnabled = false;
    pen.drawImage(heatImage(across, rows, i => this.columnOf(this.x.value(left + i + 0.5)), value, extent), left, top, across, height);
    this.points += across;
  }

  // The colours of a heat map, with their lowest and highest value.
  drawRamp(pen) {
    const { area: { left, top, width, height }, heat: { extent } } = this, right = left + width;
    pen.drawImage(heatImage(1, 64, () => 0, row => 1 - row / 63, new Extent(false, [0, 1])), right + 8, top, 8, height);
    Object.assign(pen, { textAlign: "left", textBaseline: "alphabetic", fillStyle: this.colors.muted });
    for (const [y, value] of [[top + 9, extent.high], [top + height, extent.low]]) pen.fillText(number(value, 2), right + 19, y);
  }

  // The column of a heat map that was measured at a place of the axis; −1 for none.
  columnOf(x) { return this.heat.edges.findIndex((o, i) => x >= o && x < this.heat.edges[i + 1]); }

  // ---- how far the values go
  // The points of a line in sight, and those beside them, to which it leads.
  windowOf({ loose, count, x }, [low, high]) {
    const [first, end] = loose ? [0, count] : [Math.max(0, firstFrom(count, x, low) - 1), Math.min(count, firstFrom(count, x, high) + 1)];
    return loose || count && x(first) <= high && x(end - 1) >= low ? [first, end] : [0, 0];
  }

  // {low, high, above, below}: the span drawn, and the values beyond it where single ones would flatten everything else; null without values.
  heights(range) {
    if (this.zoomY) return { low: this.zoomY[0], high: this.zoomY[1], above: null, below: null };
    const sure = new Extent(this.log), every = new Extent(this.log), some = [];
    for (const line of this.lines) {
      const { style, y, low = y, high = y } = line, [first, end] = line.aside ? [0, 0] : this.windowOf(line, range), stride = Math.ceil((end - first) / 1000);
      for (let i = first; i < end; i++) {
        if (style !== "faint") { sure.add(y(i)); continue; }
        const from = low(i), to = high(i);
        every.add(from);
        every.add(to);
        if ((i - first) % stride === 0) some.push(from, to);
      }
    }
    return sure.around(Float64Array.from(some.filter(o => Number.isFinite(o))).sort(), every);
  }

  // ---- the curves
  drawLine(pen, line) {
    const { style, count, low, alpha = 1, weight = { faint: 1, dashed: 1.4 }[style] ?? 2 } = line, [first, end] = this.windowOf(line, [this.x.low, this.x.high]), dense = (end - first) / this.area.width;
    Object.assign(pen, { strokeStyle: line.color, fillStyle: line.color, lineWidth: weight, lineJoin: "round", extra: line.name ? { "data-of": line.name } : {} });
    pen.setLineDash(style === "dashed" ? [5, 4] : line.dash ?? []);
    if (style === "faint" && low && (line.wide || dense >= 2)) {
      pen.globalAlpha = alpha * 0.6;
      this.fillBand(pen, line, first, end);
      return;
    }
    pen.globalAlpha = alpha * (style === "dashed" ? 0.75 : style === "faint" ? 1 / (1 + dense) : line.pale ?? 1);
    if (style === "dots") {
      for (let i = 0; i < count; i++) pen.fillRect(this.x.at(line.x(i)) - 1.5, this.y.at(line.y(i)) - 1.5, 3, 3);
      this.points += count;
      return;
    }
    if (style !== "points") this.path(pen, line, first, end);
    pen.globalAlpha = alpha * (style === "bars" ? 0.35 : 1);
    if (style === "bars") pen.fill();
    pen.setLineDash([]);
    if (style === "line" && !this.names.length && end - first <= this.area.width / 16) this.marks(pen, line, first, end, weight * 1.3);   // few enough to be distinguished
    // closer than that, rings would hide the lines
    if (style !== "points" && (style !== "rings" || (end - first) * (line.crowd ?? 1) > this.area.width / 7)) return;
    if (!this.names.length) pen.fillStyle = this.colors.surface;
    this.marks(pen, line, first, end, 3.2);
    pen.stroke();
  }

  // Marks are one path, since many of them would take longer than a frame.
  marks(pen, line, first, end, r) {
    pen.beginPath();
    for (let i = first; i < end; i++) {
      const x = line.x(i), y = this.y.at(line.y(i));
      if (!(x >= this.x.low && x <= this.x.high && Number.isFinite(y))) continue;
      pen.moveTo(this.x.at(x) + r, y);
      pen.arc(this.x.at(x), y, r, 0, 7);
    }
    pen.fill();
  }

  // From the lowest to the highest value of each column of pixels.
  fillBand(pen, line, first, end) {
    let parts = [], last = null;
    for (let i = first; i < end; i++) {
      const low = this.y.at(line.low(i)), high = this.y.at(line.high(i)), at = Math.round(this.x.at(line.x(i)));
      if (Number.isNaN(low + high)) { last = null; continue; }
      if (!last) parts.push([]);
      if (last && at === last[0]) { last[1] = Math.max(last[1], low); last[2] = Math.min(last[2], high); }
      else parts.at(-1).push(last = [at, low, high]);
    }
    pen.beginPath();
    for (const part of parts) {
      part.forEach(([at, , high], i) => i ? pen.lineTo(at, high - 0.4) : pen.moveTo(at, high - 0.4));
      for (const [at, low] of part.reverse()) pen.lineTo(at, low + 0.4);
      this.points += 2 * part.length;
    }
    pen.fill();
  }

  // A line with a gap where a value is not known: at most four points for each column of pixels, the ones that shape it.
  path(pen, line, first, end) {
    const thin = end - first > 3 * this.area.width;
    let at = null, low, high, last, run = 0, before;
    const to = (x, y) => { if (run++) pen.lineTo(x, y); else pen.moveTo(x, y); before = [x, y]; this.points++; };
    const flush = () => { if (at !== null && low !== high) { to(at, low); to(at, high); if (last !== high) to(at, last); } at = null; };
    const gap = () => { flush(); if (run === 1) pen.lineTo(before[0] + 0.1, before[1]); run = 0; };   // alone, a point is a dot
    pen.lineCap = line.dash?.length ? "butt" : "round";
    pen.beginPath();
    for (let i = first; i < end; i++) {
      const x = this.x.at(line.x(i)), place = Math.round(x), value = line.y(i), y = line.style === "bars" && this.log && value <= 0 ? this.area.top + this.area.height : this.y.at(value);
      if (!Number.isFinite(x + y)) { gap(); continue; }
      if (!thin) { to(x, y); continue; }
      if (place === at) { low = Math.max(low, y); high = Math.min(high, y); last = y; continue; }
      flush();
      to(at = place, low = high = last = y);
    }
    gap();
    pen.stroke();
  }

  // ---- the layer above the curves
  overlay(pen, at, dots) {
    const { colors, area: { left, top, width, height } } = this, box = this.gestures.box(), place = Math.round(at) + 0.5;
    if (box) {
      const [[a, b], [c, d]] = [box.x ?? [left, left + width], box.y ?? [top, top + height]];
      Object.assign(pen, { globalAlpha: 0.15, fillStyle: colors.hues[0] });
      pen.fillRect(a, c, b - a, d - c);
      pen.globalAlpha = 1;
    }
    if (at === null || !(at >= left - 1 && at <= left + width + 1)) return;
    Object.assign(pen, { strokeStyle: colors.muted, lineWidth: 1 });
    pen.beginPath();
    if (!this.against) segment(pen, place, top, place, top + height);
    pen.stroke();
    for (const dot of dots) {
      if (!(dot.y >= top - 1 && dot.y <= top + height + 1)) continue;
      Object.assign(pen, { fillStyle: dot.color, strokeStyle: colors.surface, lineWidth: 1.5 });
      pen.beginPath();
      pen.arc(dot.x, dot.y, 3.5, 0, 7);
      pen.fill();
      pen.stroke();
    }
  }

  // The number of the point of a line that is nearest to a place, at most so many pixels away; −1 for none.
  near(line, x, most = Math.max(12, this.area.width / 30)) {
    const away = i => Math.abs(this.x.at(line.x(i)) - this.x.at(x)), after = firstFrom(line.count, line.x, x);
    let best = -1;
    for (let i = line.loose ? 0 : Math.max(0, after - 1); i < (line.loose ? line.count : Math.min(line.count, after + 2)); i++) {
      if (!Number.isNaN(line.y(i)) && away(i) <= (best < 0 ? most : away(best))) best = i;
    }
    return best;
  }

  pan(across, down) { this.zoomTo(this.zoomedX && across ? this.x.moved(across) : undefined, this.zoomY && down ? this.y.moved(down) : undefined); }

  // The values of a file: name, place, value.
  table() {
    const { heat, title, unit } = this, numbers = this.lines.flatMap(line => Array.from({ length: line.count }, (_, i) => [line.name || title, line.x(i), line.y(i)]));
    const cells = heat ? heat.names.flatMap((name, row) => heat.x.map((x, i) => [name, x, heat.value(row, i)])) : [];
    return [["name", unit || "x", "value"], ...numbers, ...cells];
  }

  // A file of what is drawn below its title, or of its values.
  save(kind) {
    const title = this.title || "chart", [width, height] = this.size, pen = new SvgPen();
    if (kind === "CSV") { download(title, kind, "data:text/csv;charset=utf-8," + encodeURIComponent(csvOf(this.table()))); return; }
    Object.assign(pen, { fillStyle: this.colors.surface, font: FONT.replace("11px", "600 13px") });
    pen.fillRect(0, 0, width, height + 24);
    pen.fillStyle = this.colors.ink;
    pen.fillText(shortened(pen, title, width - 8), 4, 16);
    pen.save();
    pen.translate(0, 24);
    this.draw(pen, width, height);
    pen.restore();
    const href = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(pen.file(width, height + 24)), image = new Image(), canvas = make("canvas", "", null, { width: 2 * width, height: 2 * height + 48 });
    if (kind === "SVG") { download(title, kind, href); return; }
    image.addEventListener("load", () => { canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height); download(title, kind, canvas.toDataURL()); });
    image.src = href;
  }
}

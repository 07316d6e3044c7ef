// Makes saved pictures interactive: a crosshair with values, zoom by dragging, a legend that switches curves on and off.
// The numbers stand in JSON behind each image, which remains where no script runs. Whatever comes from outside is set as text.

const STYLE = `
.tnb-picture { position: relative; display: flex; flex-wrap: wrap; gap: 8px 18px; max-width: 1150px; margin: 6px 0; font: 13px/1.4 system-ui, sans-serif; font-variant-numeric: tabular-nums; }
.tnb-picture * { box-sizing: border-box; }
.tnb-picture button { display: inline-flex; align-items: center; gap: 5px; margin: 0; padding: 1px 6px; border: 0; border-radius: 4px; background: none; color: inherit; font: inherit; font-size: 12px; cursor: pointer; }
.tnb-picture button[aria-pressed=false] { opacity: .45; text-decoration: line-through; }
.tnb-picture button:focus-visible, .tnb-picture button:hover { background: rgba(127, 127, 127, .18); }
.tnb-picture i { flex: none; width: 14px; height: 3px; border-radius: 2px; background: var(--c); opacity: var(--o, 1); }
.tnb-picture svg { display: block; width: 100%; overflow: hidden; cursor: crosshair; touch-action: pan-y; user-select: none; }
.tnb-picture text { fill: currentColor; font-size: 11px; stroke: none; }
.tnb-picture .soft { opacity: .65; }
.tnb-picture .cell { flex-grow: 1; min-width: 0; }
.tnb-picture .legend { width: 100%; display: flex; flex-wrap: wrap; align-items: center; gap: 2px 8px; }
.tnb-picture .hint { margin-left: auto; font-size: 11px; opacity: .6; }
.tnb-picture .head[hidden] { display: none; }
.tnb-picture .head { display: flex; gap: 8px; white-space: nowrap; overflow: hidden; min-height: 20px; }
.tnb-picture .note { font-size: 11px; font-weight: 600; }
.tnb-picture .tip { position: absolute; z-index: 9; pointer-events: none; padding: 6px 9px; border: 1px solid rgba(127, 127, 127, .5); border-radius: 6px; font-size: 12px; white-space: nowrap; box-shadow: 0 3px 14px rgba(0, 0, 0, .16); }
.tnb-picture .tip div { display: flex; align-items: center; gap: 7px; }
.tnb-picture .tip b { margin-left: auto; padding-left: 10px; }`;

function html(parent, tag, cls = "", text = "") {
  const node = parent.appendChild(document.createElement(tag));
  node.className = cls;
  node.textContent = text;
  return node;
}

function svg(parent, tag, attributes = {}, text = "") {
  const node = parent.appendChild(document.createElementNS("http://www.w3.org/2000/svg", tag));
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== "") node.textContent = text;
  return node;
}

const ticksOf = ({ low, high, log }, count) => (log ? logTicks : linearTicks)(low, high, count);
function nearest(values, x) { return values.reduce((best, o) => o !== null && (best === null || Math.abs(o - x) < Math.abs(best - x)) ? o : best, null); }

// A panel: its axes, and what is drawn between them.
class Plot {
  constructor(picture, panel, index) {
    Object.assign(this, { picture, ...panel });
    // these share a zoom and a crosshair
    this.group = panel.x === "step" ? "step" : index;
    this.cell = html(picture.box, "div", "cell");
    const head = html(this.cell, "div", "head");
    html(head, "b", "", this.title);
    // each row is an axis of its own; a long name stands below the values; of runs, the one that is pointed at is told
    Object.assign(this, { parallel: this.rows.length > 0 && !this.x, below: this.x.length > 12 });
    this.runs = this.lines.some(o => o.words);
    let owner = "";
    for (const line of this.lines) {
      let at = 0;
      // whole numbers come as differences, which are short
      if (line.steps) line.x = line.steps.map(o => at += o);
      // a line's marks go with it
      line.owner = owner = line.name || owner;
    }
    const main = this.lines.find(o => o.style === "line");
    head.hidden = !this.title;
    if (picture.live && main) html(head, "span", "soft", number(main.y.filter(Number.isFinite).pop()));
    this.svg = svg(this.cell, "svg", { role: "img", "aria-label": this.title });
    if (this.note) html(this.cell, "div", "note", this.note);
    this.listen();
  }

  shown(things) { return things.filter(o => !this.picture.hidden.has(o.owner ?? o.name)); }

  // All places on the horizontal axis.
  places() { return this.xspan ?? [...this.lines, ...this.heats].flatMap(o => o.x).concat(this.bars.flatMap(o => o.edges)); }

  // The values in sight, and those beside them, to which lines lead.
  seen(line) {
    const [low, high] = this.range, inside = (x, i) => x !== null && (line.x[i + 1] ?? x) >= low && (line.x[i - 1] ?? x) <= high;
    return line.y.filter((o, i) => inside(line.x[i], i) && o !== null);
  }

  // From where to where the values go. Single steps far from everything else leave the picture, as in the live view.
  heights() {
    const lines = this.shown(this.lines), values = faint => lines.filter(o => faint === (o.style === "faint")).flatMap(o => this.seen(o));
    const faint = values(true).sort((a, b) => a - b), sure = values(false).concat(this.shown(this.bars).flatMap(o => [0, ...o.counts]));
    return new Extent(this.ylog, sure).around(faint, new Extent(this.ylog, faint)) ?? { low: this.ylog ? 0.1 : 0, high: 1, above: null, below: null };
  }

  draw(height) {
    const width = this.svg.clientWidth || this.cell.clientWidth, rows = this.labels, names = this.picture.named(this) ? rows : [];
    this.range = this.picture.rangeOf(this);
    const { low, high, above, below } = this.heights(), top = this.y ? 20 : 12, bottom = height - (this.below ? 34 : 20), count = Math.max(2, Math.floor((bottom - top) / 28));
    this.yScale = rows.length ? new Scale(-0.5, rows.length - 0.5, top, bottom) : new Scale(low, high, bottom, top, this.ylog);
    const ticks = rows.length ? [] : ticksOf(this.yScale, count), words = place => this.parallel ? this.marks.filter(o => o.x === place).map(o => o.word.length + 1) : [];
    const longest = Math.max(0, ...ticks.map(o => o.text.length), ...names.map(o => o.length), ...words(0));
    const left = rows.length && !names.length ? 8 : Math.max(34, longest * 6.2 + 12), right = width - (this.heats.length ? 58 : 8 + 6.2 * Math.max(0, ...words(1)));
    this.xScale = new Scale(...this.range, left, right, this.xlog);
    Object.assign(this, { left, right, top, bottom, rowNames: rows });
    this.svg.replaceChildren();
    this.svg.style.height = height + "px";
    this.axes(ticks, rows, names.length > 0);
    // a nested picture cuts off what lies beyond the axes
    const x = left - 5, y = top - 5, across = Math.max(1, right - left + 10), down = bottom - top + 6;
    const inside = svg(this.svg, "svg", { x, y, width: across, height: down, viewBox: `${x} ${y} ${across} ${down}`, style: `width: ${across}px` });
    for (const heat of this.heats) this.heat(inside, heat);
    for (const bar of this.shown(this.bars)) this.bar(inside, bar);
    // of several runs the first lies above the others, as in the live view
    const lines = this.shown(this.lines), depth = ({ owner }) => this.lines.findIndex(o => o.owner === owner);
    if (this.picture.live && !lines.some(o => o.style === "faint")) lines.sort((a, b) => depth(b) - depth(a));
    for (const line of lines) this.line(inside, line);
    const places = this.labelRows();
    this.marks.forEach((mark, i) => this.mark(inside, mark, places[i]));
    if (above !== null) svg(this.svg, "text", { x: right, y: top + 10, "text-anchor": "end", class: "soft" }, "↑ up to " + number(above));
    if (below !== null) svg(this.svg, "text", { x: right, y: bottom - 5, "text-anchor": "end", class: "soft" }, "↓ down to " + number(below));
    this.over = svg(this.svg, "g");
  }

  axes(ticks, rows, named) {
    const { left, right, top, bottom } = this, every = Math.ceil(11 * rows.length / (bottom - top));
    const text = (x, y, anchor, words) => svg(this.svg, "text", { x, y, "text-anchor": anchor, class: "soft" }, words);
    for (const { at, text: words } of ticks) {
      const y = Math.round(this.yScale.at(at)) + 0.5;
      svg(this.svg, "path", { d: `M${left} ${y}H${right}`, stroke: "currentColor", "stroke-opacity": 0.12 });
      text(left - 6, y + 3.5, "end", words);
    }
    rows.forEach((name, i) => {
      const y = this.yScale.at(i);
      if (named && i % every === 0) text(left - 6, this.parallel ? y - 3 : y + 3.5, "end", name);
      if (!this.heats.length) svg(this.svg, "path", { d: `M${left} ${y}H${right}`, stroke: "currentColor", "stroke-opacity": 0.12 });
    });
    const across = this.parallel ? [] : ticksOf(this.xScale, Math.max(3, Math.floor((right - left) / 75))), word = this.x && !this.below ? this.x.length * 6.2 + 30 : 0;
    for (const { at, text: words } of across) if (this.xScale.at(at) < right - word) text(this.xScale.at(at), bottom + 15, "middle", words);
    if (this.x) text(right, bottom + (this.below ? 29 : 15), "end", this.x);
    if (this.y) text(left - 6, 10, this.y.length > 8 ? "start" : "end", this.y).setAttribute("x", this.y.length > 8 ? 0 : left - 6);
    if (!this.parallel) svg(this.svg, "path", { d: `M${left} ${bottom + 0.5}H${right}`, stroke: "currentColor", "stroke-opacity": 0.35 });
  }

  color(thing) { return thing.color === null ? "currentColor" : this.picture.hues[thing.color % this.picture.hues.length]; }

  line(parent, line) {
    const stroke = this.color(line), path = [];
    let pen = "M";
    line.x.forEach((x, i) => {
      const a = x === null ? NaN : this.xScale.at(x), b = line.y[i] === null ? NaN : this.yScale.at(line.y[i]);
      if (!Number.isFinite(a + b)) { pen = "M"; return; }
      if (line.style === "points") svg(parent, "circle", { cx: a, cy: b, r: 3.2, fill: this.rows.length ? stroke : this.picture.surface, stroke, "stroke-width": 1.6, "data-of": line.name });
      path.push(pen + a.toFixed(1) + " " + b.toFixed(1));
      pen = "L";
    });
    if (path.length === 1 && line.style !== "points") svg(parent, "path", { d: path[0] + "h0", stroke, "stroke-width": 7, "stroke-linecap": "round" });
    const look = { faint: { "stroke-width": 1, "stroke-opacity": 0.35 }, dashed: { "stroke-width": 1.4, "stroke-dasharray": "5 4", "stroke-opacity": 0.75 } }[line.style] || { "stroke-width": 2, "stroke-dasharray": dashOf(line.color).join(" ") };
    if (line.style !== "points") svg(parent, "path", { d: path.join(""), fill: "none", stroke, "stroke-linejoin": "round", "data-of": line.name, ...look });
  }

  bar(parent, { edges, counts, color }) {
    const floor = this.ylog ? this.bottom : this.yScale.at(0), top = o => { const y = this.yScale.at(o); return Number.isFinite(y) ? y.toFixed(1) : this.bottom; };
    const path = counts.map((o, i) => `V${top(o)}H${this.xScale.at(edges[i + 1]).toFixed(1)}`).join("");
    svg(parent, "path", { d: `M${this.xScale.at(edges[0]).toFixed(1)} ${floor}${path}V${floor}Z`, fill: this.color({ color }), "fill-opacity": 0.35, stroke: this.color({ color }) });
  }

  // A line for the label of each moment, as in the image: labels point inwards and do not overlap, and a moment under a label
  // begins below it. Undefined where all lines are taken.
  labelRows() {
    const taken = [[], [], [], []], rows = [], at = this.marks.map(o => this.xScale.at(o.x)), far = o => Math.min(at[o] - this.left, this.right - at[o]);
    const order = [...at.keys()].filter(i => this.marks[i].y === null && at[i] >= this.left - 1 && at[i] <= this.right + 1).sort((a, b) => far(a) - far(b));
    for (const i of order) {
      const width = 6.2 * this.marks[i].word.length + 8, [from, to] = at[i] > (this.left + this.right) / 2 ? [at[i] - width, at[i]] : [at[i], at[i] + width];
      const over = taken.findLastIndex(spans => spans.some(([a, b]) => a < at[i] && at[i] < b));
      const row = taken.findIndex((spans, k) => k > over && spans.every(([a, b]) => to <= a || b <= from));
      if (row >= 0) taken[rows[i] = row].push([from, to]);
    }
    return rows;
  }

  mark(parent, mark, row) {
    const at = this.xScale.at(mark.x), late = at > (this.left + this.right) / 2, color = this.color(mark), anchor = late ? "end" : "start";
    if (!Number.isFinite(at) || at < this.left - 1 || at > this.right + 1) return;
    if (mark.y === null) {
      svg(parent, "path", { d: `M${at} ${this.top + 13 * (row ?? 4)}V${this.bottom}`, stroke: color, "stroke-dasharray": "2 3", "stroke-opacity": 0.8 });
      if (row !== undefined) svg(parent, "text", { x: at + (late ? -5 : 5), y: this.top + 9 + 13 * row, "text-anchor": anchor, style: `fill: ${color}` }, mark.word);
      return;
    }
    // the words of the ends of an axis stand beside it, where no line passes
    const y = this.yScale.at(mark.y), [toward, dx, dy] = this.parallel && { 0: ["end", this.left - 6 - at, 10], 1: ["start", 9, 3.5] }[mark.x] || [anchor, late ? -7 : 7, -6];
    if (!this.parallel) svg(parent, "circle", { cx: at, cy: y, r: 4, fill: "none", stroke: color, "stroke-width": 2 });
    const style = `fill: ${color}; stroke: ${this.picture.surface}; stroke-width: 3px; paint-order: stroke`;
    svg(this.parallel ? this.svg : parent, "text", { x: at + dx, y: y + dy, "text-anchor": toward, style }, mark.word);
  }

  // A column reaches half-way to its neighbours; one pixel for each cell, and a column of them for each pixel across.
  heat(parent, heat) {
    const { x, rows, values } = heat, ends = columnEdges(x), columns = Math.max(1, Math.round(this.right - this.left));
    const canvas = document.createElement("canvas"), pen = Object.assign(canvas, { width: columns, height: rows.length }).getContext("2d"), data = pen.createImageData(columns, rows.length);
    // −1 where nothing was measured
    heat.column = at => ends.findIndex((o, i) => at >= o && at < ends[i + 1]);
    const scale = new Extent(heat.log, [heat.low, heat.high]);
    for (let i = 0; i < columns; i++) {
      const column = heat.column(this.xScale.value(this.left + i + 0.5));
      rows.forEach((_, row) => {
        const value = values[row][column] ?? null;
        if (value !== null && (!heat.log || value > 0)) data.data.set([...viridis((scale.to(value) - scale.to(scale.low)) / scale.size()), 255], 4 * (row * columns + i));
      });
    }
    pen.putImageData(data, 0, 0);
    const size = { y: this.top, height: this.bottom - this.top, preserveAspectRatio: "none", style: "image-rendering: pixelated" };
    svg(parent, "image", { href: canvas.toDataURL(), x: this.left, width: columns, ...size });
    Object.assign(canvas, { width: 1, height: 64 });
    const ramp = pen.createImageData(1, 64);
    for (let i = 0; i < 64; i++) ramp.data.set([...viridis(1 - i / 63), 255], 4 * i);
    pen.putImageData(ramp, 0, 0);
    svg(this.svg, "image", { href: canvas.toDataURL(), x: this.right + 8, width: 8, ...size });
    for (const [y, value] of [[this.top + 9, heat.high], [this.bottom, heat.low]]) svg(this.svg, "text", { x: this.right + 19, y, class: "soft" }, number(value, 2));
  }

  // ---- the pointer
  listen() {
    let start = null;
    const at = event => {
      const box = this.svg.getBoundingClientRect(), share = this.svg.clientWidth / box.width || 1;
      return [Math.min(this.right, Math.max(this.left, (event.clientX - box.left) * share)), (event.clientY - box.top) * share];
    };
    this.svg.addEventListener("pointerdown", event => { if (event.button === 0 && this.xScale) { start = at(event)[0]; this.svg.setPointerCapture(event.pointerId); } });
    this.svg.addEventListener("pointermove", event => {
      if (!this.xScale) return;
      const [x, y] = at(event);
      if (start === null || Math.abs(x - start) < 5) { this.picture.point(this, this.xScale.value(x), y); return; }
      this.picture.leave();
      svg(this.over, "rect", { x: Math.min(x, start), width: Math.abs(x - start), y: this.top, height: this.bottom - this.top, fill: "currentColor", "fill-opacity": 0.12 });
    });
    this.svg.addEventListener("pointerup", event => {
      const x = at(event)[0], from = start;
      start = null;
      if (from !== null && Math.abs(x - from) >= 5) this.picture.zoomTo(this.group, [this.xScale.value(Math.min(x, from)), this.xScale.value(Math.max(x, from))]);
    });
    this.svg.addEventListener("pointerleave", () => this.picture.leave());
    this.svg.addEventListener("dblclick", () => this.picture.zoomTo(this.group, null));
  }

  // The measured place nearest to the pointer.
  snap(x) {
    const lines = this.shown(this.lines).filter(o => o.style !== "faint"), [low, high] = this.range;
    const places = (lines.length ? lines : this.shown(this.lines)).flatMap(o => o.x.filter((at, i) => at >= low && at <= high && o.y[i] !== null));
    return nearest(places, x) ?? this.heats[0]?.x[this.heats[0].column(x)] ?? x;
  }

  // The run whose line or point passes nearest to a place in pixels, if that is near.
  near(x, y) {
    let best = null, least = 25;
    for (const line of this.shown(this.lines)) line.x.forEach((o, i) => {
      const [[a, b], [c, d]] = [i, Math.min(i + 1, line.x.length - 1)].map(k => [line.x[k] === null ? NaN : this.xScale.at(line.x[k]), this.yScale.at(line.y[k])]);
      const span = (c - a) ** 2 + (d - b) ** 2, share = span && Math.min(1, Math.max(0, ((x - a) * (c - a) + (y - b) * (d - b)) / span));
      const away = Math.hypot(x - a - share * (c - a), y - b - share * (d - b));
      if (away < least) [best, least] = [line, away];
    });
    return best;
  }

  // The crosshair of this panel.
  cross(x) {
    this.over.replaceChildren();
    const at = this.xScale.at(x);
    if (this.rows.length || this.bars.length || at < this.left - 1 || at > this.right + 1) return;
    svg(this.over, "path", { d: `M${at} ${this.top}V${this.bottom}`, stroke: "currentColor", "stroke-opacity": 0.45 });
    for (const line of this.shown(this.lines)) {
      if (line.style === "faint" || line.style === "points") continue;
      const near = this.valueAt(line, x);
      if (near) svg(this.over, "circle", { cx: this.xScale.at(near[0]), cy: this.yScale.at(near[1]), r: 3.5, fill: this.color(line) });
    }
  }

  // The place, lowest and highest value of a line nearest to x; null where there is none near.
  valueAt(line, x) {
    const known = line.x.filter((_, i) => line.y[i] !== null), near = nearest(known, x);
    if (near === null || Math.abs(this.xScale.at(near) - this.xScale.at(x)) > Math.max(12, (this.right - this.left) / 30)) return null;
    const { low, high } = new Extent(false, line.y.filter((_, i) => line.x[i] === near));
    return [near, low, high];
  }

  // Title and rows {name, text, color} of the box beside the crosshair.
  values(x, y) {
    const row = Math.round(this.yScale.value(y)), one = (thing, name, text) => ({ name, text, color: thing && this.color(thing), faint: thing && thing.style === "faint" });
    const place = (this.x ? this.x + " " : "") + (this.x === "step" ? whole(x) : number(x));
    if (this.rows.length) {
      const lines = this.shown(this.lines).flatMap(line => line.x.filter((at, i) => line.y[i] === row && at !== null).map(at => one(line, line.owner || this.x, number(at))));
      return [this.rows[row] ?? "", lines];
    }
    if (this.heats.length) return [place, this.heats.filter(o => o.rows[row] !== undefined).map(o => one(null, o.rows[row], signal(o.values[row][o.column(x)], o.log)))];
    const rows = this.shown(this.lines).filter(o => o.style !== "points" || o.name).map(line => [line, this.valueAt(line, x)]).filter(o => o[1])
      .map(([line, [at, low, high]]) => {
        // an evaluation nearby
        const away = Math.abs(this.xScale.at(at) - this.xScale.at(x)) > 8 && this.x === "step" ? ` (step ${whole(at)})` : "";
        return one(line, line.name || this.title, (low === high ? number(low) : `${number(low)} … ${number(high)}`) + away);
      });
    for (const bar of this.shown(this.bars)) {
      const i = bar.edges.findIndex((o, k) => x >= o && x < bar.edges[k + 1]);
      if (i >= 0) rows.push(one(bar, bar.name || `${number(bar.edges[i])} … ${number(bar.edges[i + 1])}`, number(bar.counts[i])));
    }
    const words = this.marks.filter(o => o.y === null && Math.abs(this.xScale.at(o.x) - this.xScale.at(x)) < 6).map(o => ({ name: "⚑ " + o.word, text: "" }));
    return [place, [...rows, ...words]];
  }
}

class Picture {
  constructor(script, image) {
    Object.assign(this, JSON.parse(script.textContent), { hidden: new Set(), zooms: new Map() });
    this.box = document.createElement("div");
    this.box.className = "tnb-picture";
    html(this.box, "style", "", STYLE);
    this.legend = html(this.box, "div", "legend");
    this.plots = this.panels.map((panel, i) => new Plot(this, panel, i));
    this.tip = html(this.box, "div", "tip");
    this.leave();
    image.replaceWith(this.box);
    this.names();
    new ResizeObserver(() => { if (this.box.clientWidth !== this.width) this.draw(); }).observe(this.box);
    this.follow(new WeakRef(this));
  }

  // Draw again when the page's theme changes. The page does not keep a picture that a newer one has replaced.
  follow(own) {
    const query = matchMedia("(prefers-color-scheme: dark)"), observer = new MutationObserver(() => look());
    function look() {
      if (own.deref()?.box.isConnected) setTimeout(() => own.deref()?.draw(), 100);
      else { observer.disconnect(); query.removeEventListener("change", look); }
    }
    document.addEventListener("tnb-run", event => own.deref()?.mark(event.detail));
    for (const node of [document.body, document.documentElement]) observer.observe(node, { attributes: true });
    query.addEventListener("change", look);
  }

  // The colour behind the picture: it decides between the hues for light and for dark.
  background() {
    for (let node = this.box; node instanceof Element; node = node.parentElement || node.getRootNode().host) {
      const color = getComputedStyle(node).backgroundColor;
      if (!/^(transparent|rgba\(.*, 0\))$/.test(color)) return color;
    }
    const scheme = getComputedStyle(document.documentElement).colorScheme;
    return scheme.includes("dark") && (!scheme.includes("light") || matchMedia("(prefers-color-scheme: dark)").matches) ? "#121212" : "#ffffff";
  }

  names() {
    const found = new Map();
    for (const plot of this.plots.filter(o => !o.runs || o.lines.length <= 12)) {
      const named = [...plot.lines, ...plot.bars].filter(o => o.name), apart = named.filter(o => o.style === "dashed");
      // a single curve has the name of its panel; only its discarded steps are told apart
      for (const thing of named.length - apart.length > 1 ? named : apart) if (!found.has(thing.name)) found.set(thing.name, thing);
    }
    for (const [name, thing] of found) {
      const button = html(this.legend, "button"), swatch = html(button, "i");
      button.type = "button";
      if (thing.style === "dashed") swatch.style = "height: 0; border-top: 2px dashed var(--c)";
      button.append(name);
      button.setAttribute("aria-pressed", "true");
      button.swatch = () => { swatch.style.setProperty("--c", striped(this.plots[0].color(thing), dashOf(thing.color))); swatch.style.setProperty("--o", thing.style === "faint" ? 0.45 : 1); };
      button.addEventListener("click", () => {
        if (!this.hidden.delete(name)) this.hidden.add(name);
        button.setAttribute("aria-pressed", String(!this.hidden.has(name)));
        this.draw();
      });
    }
    html(this.legend, "span", "hint", "drag to zoom, double-click to see all");
  }

  // The zoom, or all that there is.
  rangeOf(plot) {
    if (this.zooms.has(plot.group)) return this.zooms.get(plot.group);
    let { low, high } = new Extent(plot.xlog, this.plots.filter(o => o.group === plot.group).flatMap(o => o.places()));
    if (low > high) return plot.xlog ? [0.1, 1] : [0, 1];
    if (plot.group === "step" && !plot.xspan && !plot.xlog && low > 0 && low <= 0.3 * high) low = 0;
    if (plot.xlog) { const pad = low === high ? 2 : plot.rows.length ? (high / low) ** 0.03 : 1; return [low / pad, high * pad]; }
    const pad = low === high ? Math.abs(low) * 0.1 || 0.5 : plot.rows.length ? (high - low) * 0.03 : 0;
    return [low - pad, high + pad];
  }

  zoomTo(group, range) {
    if (this.plots[group]?.parallel) return;
    if (range) this.zooms.set(group, range); else this.zooms.delete(group);
    this.leave();
    this.draw();
  }

  // Panels share a row; in a live view's picture the first one, and each heat map, has its own.
  get across() { return this.width < 560 ? 1 : Math.min(this.columns, this.plots.length); }

  arrange() {
    return this.plots.map(({ cell, heats, rows }, i) => {
      cell.style.flexBasis = this.live ? (i && !heats.length ? "270px" : "100%") : `calc(${100 / this.across}% - 18px)`;
      if (!this.live) return heats.length || rows.length ? this.tall : this.height;
      return heats.length ? Math.min(460, Math.max(90, heats[0].rows.length * 15 + 42)) : i ? this.height : 250;
    });
  }

  // Whether the names of a plot's rows stand beside it: not if the plot to its left has the same.
  named(plot) {
    const i = this.plots.indexOf(plot);
    return this.live || i % this.across === 0 || String(plot.labels) !== String(this.plots[i - 1].labels);
  }

  draw() {
    this.width = this.box.clientWidth;
    // out of sight
    if (!this.width) return;
    this.surface = this.background();
    this.hues = HUES[lightness(this.surface) < 0.5 ? "dark" : "light"];
    this.tip.style.background = this.surface;
    for (const button of this.legend.querySelectorAll("button")) button.swatch();
    this.arrange().forEach((tall, i) => this.plots[i].draw(tall));
  }

  // The crosshair in all panels that share it, and the values beside the pointer.
  point(plot, x, y) {
    const near = plot.runs && plot.near(plot.xScale.at(x), y), at = plot.runs ? x : plot.snap(x);
    if (plot.runs) document.dispatchEvent(new CustomEvent("tnb-run", { detail: near?.name }));
    if (plot.runs && !near) { this.tip.style.display = "none"; return; }
    const [title, rows] = near ? [near.name, near.words.map(([name, text]) => ({ name, text }))] : plot.values(at, y);
    if (!near) for (const other of this.plots) if (other.group === plot.group) other.cross(at);
    this.tip.replaceChildren();
    html(this.tip, "span", "soft", title);
    for (const { name, text, color, faint } of rows) {
      const row = html(this.tip, "div"), swatch = color && html(row, "i");
      if (color) { swatch.style.setProperty("--c", color); swatch.style.setProperty("--o", faint ? 0.45 : 1); }
      html(row, "span", "", name);
      html(row, "b", "", text);
    }
    this.tip.style.display = "block";
    const own = this.box.getBoundingClientRect(), box = plot.svg.getBoundingClientRect(), place = box.left - own.left + plot.xScale.at(at), wide = this.tip.offsetWidth;
    this.tip.style.left = Math.max(0, place + 14 + wide < own.width ? place + 14 : place - 14 - wide) + "px";
    this.tip.style.top = box.top - own.top + 16 + "px";
  }

  // The others step back behind the run that is pointed at, here or elsewhere on the page.
  mark(name) {
    const nodes = [...this.box.querySelectorAll("[data-of]")], known = nodes.some(o => o.dataset.of === name);
    for (const node of nodes) node.style.opacity = known && node.dataset.of !== name ? 0.12 : "";
  }

  leave() {
    this.tip.style.display = "none";
    if (this.plots.some(o => o.runs)) document.dispatchEvent(new CustomEvent("tnb-run"));
    for (const plot of this.plots) if (plot.over) plot.over.replaceChildren();
  }
}

for (const script of document.querySelectorAll("script[data-trainer-nb-picture]")) {
  const image = script.parentNode.querySelector("img[data-trainer-nb-image]");
  if (image) new Picture(script, image);
}

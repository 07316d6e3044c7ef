// Makes saved pictures interactive: a crosshair with values, zoom, files, a legend that switches curves on and off.
// The numbers stand in JSON behind each image, which remains where no script runs. Whatever comes from outside is set as text.

const STYLE = `
.tnb-picture { position: relative; display: flex; flex-wrap: wrap; gap: 8px 18px; max-width: 1150px; margin: 6px 0; font: 13px/1.4 system-ui, sans-serif; font-variant-numeric: tabular-nums; }
.tnb-picture * { box-sizing: border-box; }
.tnb-picture button { display: inline-flex; align-items: center; gap: 5px; margin: 0; padding: 1px 6px; border: 0; border-radius: 4px; background: none; color: inherit; font: inherit; font-size: 12px; cursor: pointer; }
.tnb-picture button[aria-pressed=false] { opacity: .45; text-decoration: line-through; }
.tnb-picture button:focus-visible, .tnb-picture button:hover { background: rgba(127, 127, 127, .18); }
.tnb-picture i { flex: none; width: 14px; height: 3px; border-radius: 2px; background: var(--c); opacity: var(--o, 1); }
.tnb-picture .plot { width: 100%; overflow: hidden; cursor: crosshair; touch-action: pan-y; user-select: none; }
.tnb-picture [hidden] { display: none !important; }
.tnb-picture .soft { opacity: .65; }
.tnb-picture .cell { flex-grow: 1; min-width: 0; }
.tnb-picture .legend { width: 100%; display: flex; flex-wrap: wrap; align-items: center; gap: 2px 8px; }
.tnb-picture .head { display: flex; gap: 8px; white-space: nowrap; overflow: hidden; min-height: 20px; }
.tnb-picture :is(.hint, .tnb-tools) { margin-left: auto; font-size: 11px; }
.tnb-picture .tnb-tool { padding: 0 4px; border: 0; background: none; color: inherit; font: inherit; font-size: 11px; opacity: .65; cursor: pointer; appearance: none; text-decoration: none !important; }
.tnb-picture .tnb-tool[aria-pressed=true] { opacity: 1; box-shadow: inset 0 0 0 1px currentColor; }
.tnb-picture .cell:not(:hover, :focus-within) .tnb-tool:not([aria-pressed=true]) { opacity: 0; }
.tnb-picture option { color: #000; background: #fff; }
.tnb-picture .note { font-size: 11px; font-weight: 600; }
.tnb-picture .tip { position: absolute; z-index: 9; pointer-events: none; padding: 6px 9px; border: 1px solid rgba(127, 127, 127, .5); border-radius: 6px; font-size: 12px; white-space: nowrap; box-shadow: 0 3px 14px rgba(0, 0, 0, .16); }
.tnb-picture .tip div { display: flex; align-items: center; gap: 7px; }
.tnb-picture .tip b { margin-left: auto; padding-left: 10px; }`;

const html = (parent, ...given) => parent.appendChild(make(...given));

// The outline of a histogram as a line.
function barsLine({ edges, counts, ...rest }) {
  return { ...rest, edges, counts, style: "bars", x: edges.flatMap(o => [o, o]), y: [0, ...counts.flatMap(o => [o, o]), 0] };
}

// A panel: its axes, and what is drawn between them.
class Panel extends Plot {
  constructor(picture, panel, index) {
    super();
    const { x, y, xlog, ylog, rows, labels, bars, heats, marks, ...rest } = panel, [heat] = heats, steps = bars.map(barsLine), lines = [...steps, ...panel.lines];
    Object.assign(this, { picture, ...rest, all: lines, words: marks, log: ylog, logX: xlog, unit: x, high: y, rows, names: labels, fixed: labels.length > 0 });
    // these share a zoom and a crosshair
    this.group = x === "step" ? "step" : index;
    // each row is an axis of its own; a long name stands below the values; of runs, the one that is pointed at is told
    Object.assign(this, { parallel: rows.length > 0 && !x, below: x.length > 12, runs: lines.some(o => o.words) });
    if (heat) this.heat = { ...heat, names: heat.rows, rows: heat.rows.length, edges: columnEdges(heat.x), value: (row, column) => heat.values[row][column], extent: new Extent(heat.log, [heat.low, heat.high]) };
    let owner = "";
    for (const line of lines) {
      let at = 0;
      // whole numbers come as differences, which are short
      const places = line.steps ? line.steps.map(o => at += o) : line.x, values = line.y, known = o => o === null ? NaN : o;
      // a line's marks go with it
      Object.assign(line, { owner: owner = line.name || owner, hue: line.color, loose: rows.length > 0 || places.includes(null), places, values, count: values.length, x: i => known(places[i]), y: i => known(values[i]) });
    }
    this.cell = html(picture.box, "div", "cell");
    const head = html(this.cell, "div", "head"), main = lines.find(o => o.style === "line");
    this.head = html(head, "b", "", this.title);
    if (picture.live && main) html(head, "span", "soft", number(main.values.filter(Number.isFinite).pop()));
    addTools(head, this, this.title || "chart");
    this.svg = html(this.cell, "div", "plot", null, { role: "img", "aria-label": this.title, tabindex: 0 });
    if (this.note) html(this.cell, "div", "note", this.note);
    this.gestures = new Gestures(this.svg, this);
  }

  get colors() { return this.picture.colors; }
  get zoomedX() { return this.picture.zooms.has(this.group); }
  shown(things) { return things.filter(o => !this.picture.hidden.has(o.owner ?? o.name)); }
  color(hue) { return hue === null ? this.colors.muted : this.colors.hue(hue); }

  // All places on the horizontal axis.
  places() { return this.xspan ?? [...this.all.flatMap(o => o.places), ...this.heat?.x ?? []]; }

  show(height) {
    this.svg.style.height = height + "px";
    this.size = [this.svg.clientWidth || this.cell.clientWidth, height];
    const pen = new SvgPen(), [width] = this.size;
    this.draw(pen, width, height);
    this.svg.innerHTML = pen.file(width, height);   // in which texts are escaped
    this.over = this.svg.firstChild.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "g"));
  }

  draw(pen, width, height) {
    const range = this.range = this.picture.rangeOf(this), shown = this.shown(this.all), depth = ({ owner }) => this.all.findIndex(o => o.owner === owner);
    for (const line of shown) Object.assign(line, { color: this.color(line.hue), dash: dashOf(line.hue), alpha: line.style === "faint" ? 0.55 : 1 });
    // of several runs the first lies above the others, as in the live view
    if (this.picture.live && !shown.some(o => o.style === "faint")) shown.sort((a, b) => depth(b) - depth(a));
    this.lines = shown;
    pen.font = FONT;
    const room = end => this.parallel ? Math.max(0, ...this.words.filter(o => o.x === end).map(o => pen.measureText(o.word).width + 14)) : 0;
    const y = this.heights(range) ?? { low: this.log ? 0.1 : 0, high: 1, above: null, below: null };
    this.drawOn(pen, width, height, range, y, { top: this.high ? 20 : 14, bottom: this.below ? 34 : 22, left: Math.max(32, room(0)), right: this.heat ? 58 : 8 + room(1), named: this.picture.named(this) });
  }

  // Words of moments and of points.
  marksBefore(pen) {
    const { left } = this.area, rows = this.labelRows(pen);
    Object.assign(pen, { font: FONT, textBaseline: "alphabetic", textAlign: "left" });
    if (this.high) pen.fillText(this.high, Math.max(0, left - 7 - pen.measureText(this.high).width), 10);
    this.words.forEach((mark, i) => this.mark(pen, mark, rows[i]));
  }

  // A line for the label of each moment, as in the image: labels point inwards and do not overlap, and a moment under a label
  // begins below it. Undefined where all lines are taken.
  labelRows(pen) {
    const { left, width } = this.area, right = left + width, taken = [[], [], [], []], rows = [], at = this.words.map(o => this.x.at(o.x)), far = o => Math.min(at[o] - left, right - at[o]);
    const order = [...at.keys()].filter(i => this.words[i].y === null && at[i] >= left - 1 && at[i] <= right + 1).sort((a, b) => far(a) - far(b));
    for (const i of order) {
      const wide = pen.measureText(this.words[i].word).width + 8, [from, to] = at[i] > (left + right) / 2 ? [at[i] - wide, at[i]] : [at[i], at[i] + wide];
      const over = taken.findLastIndex(spans => spans.some(([a, b]) => a < at[i] && at[i] < b));
      const row = taken.findIndex((spans, k) => k > over && spans.every(([a, b]) => to <= a || b <= from));
      if (row >= 0) taken[rows[i] = row].push([from, to]);
    }
    return rows;
  }

  mark(pen, mark, row) {
    const { left, top, width, height } = this.area, at = this.x.at(mark.x), late = at > left + width / 2;
    if (!(at >= left - 1 && at <= left + width + 1)) return;
    Object.assign(pen, { strokeStyle: this.color(mark.color), fillStyle: this.color(mark.color), textAlign: late ? "right" : "left", lineWidth: 1 });
    pen.beginPath();
    if (mark.y === null) {
      pen.setLineDash([2, 3]);
      pen.moveTo(at, top + 13 * (row ?? 4));
      pen.lineTo(at, top + height);
      pen.stroke();
      pen.setLineDash([]);
      if (row !== undefined) pen.fillText(mark.word, at + (late ? -5 : 5), top + 9 + 13 * row);
      return;
    }
    // the words of the ends of an axis stand beside it, where no line passes
    const y = this.y.at(mark.y), [toward, dx, dy] = this.parallel && { 0: ["right", -7, 10], 1: ["left", 9, 3.5] }[mark.x] || [pen.textAlign, late ? -7 : 7, -6];
    if (!this.parallel) { pen.arc(at, y, 4, 0, 7); pen.stroke(); }
    Object.assign(pen, { textAlign: toward, strokeStyle: this.colors.surface, lineWidth: 3 });
    if (!this.parallel) pen.strokeText(mark.word, at + dx, y + dy);
    pen.fillText(mark.word, at + dx, y + dy);
  }

  // ---- the pointer and the tools
  get at() { return this.pointed === undefined ? null : this.x.at(this.pointed); }
  pointAt(place, down) {
    this.pointed = this.x.value(Math.min(this.area.left + this.area.width, Math.max(this.area.left, place)));
    if (!this.gestures.box()) { this.picture.point(this, this.pointed, down); return; }
    this.picture.leave();
    this.cross(null);
  }
  leave() { this.picture.leave(); }
  escape() {
    if (this.picture.full) this.enlarge(); else this.zoomTo(null, null);
    return true;
  }

  zoomTo(x, y) {
    if (this.parallel) return;
    if (y !== undefined) this.zoomY = y;
    if (x) this.picture.zooms.set(this.group, x); else if (x === null) this.picture.zooms.delete(this.group);
    this.leave();
    this.picture.draw();
  }

  // Of all panels with the same axis.
  toggleLogX() {
    for (const plot of this.picture.plots) if (plot.group === this.group) Object.assign(plot, { logX: !plot.logX });
    this.zoomTo(null);
  }

  toggleLog() {
    this.log = !this.log;
    this.head.textContent = this.title.replace(/ \(log\)$/, "") + (this.log ? " (log)" : "");
    this.zoomTo(undefined, null);
  }

  enlarge() {
    this.picture.full = this.picture.full ? null : this;
    this.picture.draw();
  }

  // The run whose line or point passes nearest to a place in pixels, if that is near.
  runAt(x, y) {
    let best = null, least = 25;
    for (const line of this.lines) for (let i = 0; i < line.count; i++) {
      const [[a, b], [c, d]] = [i, Math.min(i + 1, line.count - 1)].map(k => [this.x.at(line.x(k)), this.y.at(line.y(k))]);
      const span = (c - a) ** 2 + (d - b) ** 2, share = span && Math.min(1, Math.max(0, ((x - a) * (c - a) + (y - b) * (d - b)) / span));
      const away = Math.hypot(x - a - share * (c - a), y - b - share * (d - b));
      if (away < least) [best, least] = [line, away];
    }
    return best;
  }

  // The crosshair of this panel, at a place or at none; and the part that is being chosen.
  cross(x) {
    const pen = new SvgPen(), at = x === null || this.names.length || this.lines[0]?.edges ? null : this.x.at(x);
    const lines = at === null ? [] : this.lines.filter(o => !["faint", "points"].includes(o.style)).map(line => [line, this.near(line, x)]).filter(o => o[1] >= 0);
    this.overlay(pen, at, lines.map(([line, i]) => ({ x: this.x.at(line.x(i)), y: this.y.at(line.y(i)), color: line.color })));
    this.over.innerHTML = pen.parts.join("");
  }

  // Title and rows {name, text, color} of the box beside the crosshair.
  valuesAt(x, y) {
    const row = Math.floor(this.y.value(y) + 0.5), { heat, unit } = this, one = (thing, name, text) => ({ name, text, color: thing && this.color(thing.hue ?? thing.color), faint: thing && thing.style === "faint" });
    const place = (unit ? unit + " " : "") + (unit === "step" ? whole(x) : number(x));
    if (this.rows.length) {
      const lines = this.lines.flatMap(line => line.places.filter((at, i) => line.values[i] === row && at !== null).map(at => one(line, line.owner || unit, number(at))));
      return [this.rows[row] ?? "", lines];
    }
    if (heat) return [place, heat.names[row] === undefined ? [] : [one(null, heat.names[row], signal(heat.values[row][this.columnOf(x)] ?? null, heat.log))]];
    const rows = this.lines.filter(o => o.style !== "points" || o.name).map(line => [line, line.edges ? firstFrom(line.edges.length, i => line.edges[i], x) - 1 : this.near(line, x)]).filter(o => o[1] >= 0).map(([line, i]) => {
      if (line.edges) return one(line, line.name || `${number(line.edges[i])} … ${number(line.edges[i + 1])}`, number(line.counts[i]));
      // of single steps, from the lowest to the highest value there; of an evaluation nearby, its step
      const at = line.places[i], { low, high } = new Extent(false, line.values.filter((_, k) => line.places[k] === at)), away = Math.abs(this.x.at(at) - this.x.at(x)) > 8 && unit === "step" ? ` (step ${whole(at)})` : "";
      return one(line, line.name || this.title, (low === high ? number(low) : `${number(low)} … ${number(high)}`) + away);
    });
    const words = this.words.filter(o => o.y === null && Math.abs(this.x.at(o.x) - this.x.at(x)) < 6).map(o => ({ name: "⚑ " + o.word, text: "" }));
    return [place, [...rows, ...words]];
  }
}

class Picture {
  constructor(script, image) {
    Object.assign(this, JSON.parse(script.textContent), { hidden: new Set(), zooms: new Map() });
    this.box = make("div", "tnb-picture");
    html(this.box, "style", "", STYLE);
    this.legend = html(this.box, "div", "legend");
    this.plots = this.panels.map((panel, i) => new Panel(this, panel, i));
    this.tip = html(this.box, "div", "tip");
    this.leave();
    image.replaceWith(this.box);
    this.names();
    new ResizeObserver(() => { if (this.box.clientWidth !== this.width) this.draw(); }).observe(this.box);
    this.colors = new Theme(this.box, () => this.draw());
    const own = new WeakRef(this);
    document.addEventListener("tnb-run", event => own.deref()?.mark(event.detail));
  }

  names() {
    const found = new Map();
    for (const plot of this.plots.filter(o => !o.runs || o.all.length <= 12)) {
      const named = plot.all.filter(o => o.name), apart = named.filter(o => o.style === "dashed");
      // a single curve has the name of its panel; only its discarded steps are told apart
      for (const thing of named.length - apart.length > 1 ? named : apart) if (!found.has(thing.name)) found.set(thing.name, thing);
    }
    for (const [name, { hue, style }] of found) {
      const swatch = make("i"), click = () => {
        if (!this.hidden.delete(name)) this.hidden.add(name);
        button.setAttribute("aria-pressed", String(!this.hidden.has(name)));
        this.draw();
      };
      const button = html(this.legend, "button", "", null, { type: "button", "aria-pressed": "true", click }, swatch, name);
      if (style === "dashed") swatch.style = "height: 0; border-top: 2px dashed var(--c)";
      button.swatch = () => { swatch.style.setProperty("--c", striped(this.plots[0].color(hue), dashOf(hue))); swatch.style.setProperty("--o", style === "faint" ? 0.45 : 1); };
    }
    this.back = html(this.legend, "button", "", "see all", { type: "button", hidden: "", click: () => { this.zooms.clear(); for (const plot of this.plots) plot.zoomY = null; this.draw(); } });
    html(this.legend, "span", "hint soft", "drag to zoom, with Shift to move, double-click to see all");
  }

  // The zoom, or all that there is.
  rangeOf(plot) {
    if (this.zooms.has(plot.group)) return this.zooms.get(plot.group);
    let { low, high } = new Extent(plot.logX, this.plots.filter(o => o.group === plot.group).flatMap(o => o.places()));
    if (low > high) return plot.logX ? [0.1, 1] : [0, 1];
    if (plot.group === "step" && !plot.xspan && !plot.logX && low > 0 && low <= 0.3 * high) low = 0;
    if (plot.logX) { const pad = low === high ? 2 : plot.rows.length ? (high / low) ** 0.03 : 1; return [low / pad, high * pad]; }
    const pad = low === high ? Math.abs(low) * 0.1 || 0.5 : plot.rows.length ? (high - low) * 0.03 : 0;
    return [low - pad, high + pad];
  }

  // Panels share a row; in a live view's picture the first one, and each heat map, has its own.
  get across() { return this.width < 560 ? 1 : Math.min(this.columns, this.plots.length); }

  arrange() {
    return this.plots.map((plot, i) => {
      const { cell, heat, rows } = plot;
      cell.style.display = this.full && this.full !== plot ? "none" : "";
      if (this.full === plot) { cell.style.flexBasis = "100%"; return Math.max(300, 0.74 * innerHeight); }
      cell.style.flexBasis = this.live ? (i && !heat ? "270px" : "100%") : `calc(${100 / this.across}% - 18px)`;
      if (!this.live) return heat || rows.length ? this.tall : this.height;
      return heat ? Math.min(460, Math.max(90, heat.rows * 15 + 42)) : i ? this.height : 250;
    });
  }

  // Whether the names of a plot's rows stand beside it: not if the plot to its left has the same.
  named(plot) {
    const i = this.plots.indexOf(plot);
    return this.live || i % this.across === 0 || String(plot.names) !== String(this.plots[i - 1].names);
  }

  draw() {
    // out of sight
    if (!this.box.clientWidth || !this.colors) return;
    this.width = this.box.clientWidth;
    this.tip.style.background = this.colors.surface;
    for (const button of this.legend.querySelectorAll("button")) button.swatch?.();
    this.back.hidden = !this.zooms.size && !this.plots.some(o => o.zoomY);
    this.arrange().forEach((tall, i) => { if (!this.full || this.full === this.plots[i]) this.plots[i].show(tall); });
  }

  // The crosshair in all panels that share it, and the values beside the pointer.
  point(plot, x, y) {
    const near = plot.runs && plot.runAt(plot.x.at(x), y), at = plot.heat?.x[plot.columnOf(x)] ?? x;
    if (plot.runs) document.dispatchEvent(new CustomEvent("tnb-run", { detail: near?.name }));
    if (plot.runs && !near) { this.tip.style.display = "none"; return; }
    const [title, rows] = near ? [near.name, near.words.map(([name, text]) => ({ name, text }))] : plot.valuesAt(at, y);
    if (!near) for (const other of this.plots) if (other.group === plot.group) other.cross(at);
    this.tip.replaceChildren(make("span", "soft", title), ...rows.map(({ name, text, color, faint }) => make("div", "", null, {},
      ...color ? [make("i", "", null, { style: `--c: ${color}; --o: ${faint ? 0.45 : 1}` })] : [], make("span", "", name), make("b", "", text))));
    this.tip.style.display = "block";
    const own = this.box.getBoundingClientRect(), box = plot.svg.getBoundingClientRect(), place = box.left - own.left + plot.x.at(at), wide = this.tip.offsetWidth;
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

// A chart of curves: each step faint, the running mean strong, evaluations as marks, abandoned steps dashed.

class Chart extends Card {
  constructor(view, key, title, quantity, belongs, cls = "") {
    super(view, title, cls);
    Object.assign(this, { key, quantity, belongs, chosen: null });   // belongs: of an evaluation's name, whether it is drawn here
    this.toggle = make("button", "tnb-toggle", "log", { type: "button", "aria-pressed": "false", "aria-label": `${title}: logarithmic axis` });
    this.toggle.addEventListener("click", () => { this.chosen = !this.log; this.invalidate(); });
    if (!quantity) {
      this.metric = title;
      this.star = this.addTool("star", "pin this chart above the others", `pin ${title}`, () => view.sections.pin(this));
    }
    this.addTool("checkpoint", "save this picture; with Shift, its values as CSV", `save ${title}`, event => this.save(event.shiftKey));
    if (key === "loss") this.head.append(make("span", "tnb-card-hint", "click a step to act, drag to zoom"));
    this.head.append(this.toggle);
  }

  addTool(shape, title, label, act) {
    const button = make("button", "tnb-star", null, { type: "button", title, "aria-label": label });
    button.append(icon(shape));
    button.addEventListener("click", act);
    this.head.append(button);
    return button;
  }

  // A file of what is drawn: its picture, or its values before smoothing, which come in single precision.
  save(csv) {
    const runs = this.quantity ? this.view.shown() : [], { column } = this.axis, pen = this.canvas.getContext("2d"), rows = [["run", "name", this.view.axis, "value"]];
    for (const run of runs) for (let i = 0; i < run.rows; i++) rows.push([run.label, this.key, ...[column, this.column + MEAN].map(o => Number(run.get(i, o).toPrecision(7)))]);
    for (const { name, run, points } of this.evaluations()) for (const point of points) rows.push([run.label, name, ...point]);
    pen.globalCompositeOperation = "destination-over";   // the canvas has no background
    pen.fillStyle = this.view.theme.surface;
    pen.fillRect(0, 0, ...this.size);
    pen.globalCompositeOperation = "source-over";
    const values = rows.map(row => row.map(o => typeof o === "string" ? `"${o.replaceAll('"', '""')}"` : o) + "\n").join("");
    const href = csv ? "data:text/csv;charset=utf-8," + encodeURIComponent(values) : this.canvas.toDataURL();
    make("a", "", null, { href, download: this.title.replace(/\W+/g, "_") + (csv ? ".csv" : ".png") }).click();
  }

  // As the kernel's pictures have it, until the user chooses.
  get log() { return this.chosen ?? this.view.logs.has(this.key.replace(/^metric /, "")); }

  get weight() { return this.quantity && this.quantity.smooth ? this.view.weight : 0; }
  get column() { return this.quantity && this.quantity.column; }
  get axis() { return AXES[this.view.axis]; }

  // The evaluations drawn here: {name, run, color, shape, points: [[x, value], ...]}.
  evaluations() {
    if (this.view.hidden.has("kind:evaluations")) return [];
    const found = [], several = this.view.all().length > 1;   // with several runs, a colour stands for a run
    for (const run of this.view.shown()) {
      const names = Object.keys(this.view.metrics[run.id] || {}).filter(this.belongs).sort();
      names.forEach((name, shape) => {
        const points = this.view.metrics[run.id][name].map(o => [o[this.axis.column], o[3]]).filter(o => Number.isFinite(o[0]) && Number.isFinite(o[1]));
        found.push({ name, run, shape, points, color: several ? this.color(run) : this.view.theme.hue(1 + shape * 3) });
      });
    }
    return found;
  }

  has() {
    if (this.quantity && this.view.all().some(run => run.known(this.column))) return true;
    return this.view.all().some(run => Object.keys(this.view.metrics[run.id] || {}).some(this.belongs));
  }

  draw(pen, width, height) {
    setAttribute(this.toggle, "aria-pressed", String(this.log));
    const { view } = this, runs = this.quantity ? view.shown().filter(o => o.rows) : [], evaluations = this.evaluations();
    const range = view.range(), y = range && this.range(runs, evaluations, range);
    this.describe(runs, evaluations);
    if (!y) {
      this.x = null;
      const bare = this.log ? "Nothing to show here: nothing is above zero" : "Nothing to show here";
      this.say(!range || !this.has() ? this.nothing() : runs.length || evaluations.length ? bare : "Hidden in the legend");
      return;
    }
    this.say("");
    this.layout(pen, width, height, range, y);
    this.grid(pen);
    drawX(pen, this);
    drawMarks(pen, this);
    pen.save();
    const { left, top } = this.area, beyond = view.zoom ? 0 : 5;   // marks at the edges are drawn whole
    pen.beginPath();
    pen.rect(left - beyond, top - 5, this.area.width + beyond + 5, this.area.height + 6);
    pen.clip();
    if (this.quantity) this.left(pen, runs);
    // of several, the one that is pointed at lies above the others, which step back
    const last = o => o === view.marked, back = [...runs].reverse().sort((a, b) => last(a.id) - last(b.id));
    for (const run of back) this.behind(pen, run, () => this.band(pen, run));
    for (const run of back) this.behind(pen, run, () => this.line(pen, run));
    for (const one of evaluations.reverse().sort((a, b) => last(a.run.id) - last(b.run.id))) this.behind(pen, one.run, () => this.marksOf(pen, one));
    pen.restore();
    this.beyond(pen, y);
  }

  // Draw a curve faintly if another one is pointed at.
  behind(pen, run, draw) {
    this.faint = this.view.marked && run.id !== this.view.marked ? 0.2 : 1;
    pen.setLineDash(dashOf(run.place && run.place + 1));
    draw();
    pen.setLineDash([]);
    pen.globalAlpha = 1;
  }

  nothing() { return this.quantity ? "No steps yet" : "No evaluation yet"; }

  layout(pen, width, height, range, y) {
    const top = 14, bottom = 24;
    this.y = new Scale(y.low, y.high, height - bottom, top, this.log);
    this.yTicks = ticks(this.y, Math.max(2, Math.floor((height - top - bottom) / 28)));
    pen.font = FONT;
    const words = Math.max(0, ...this.yTicks.map(o => pen.measureText(o.text).width)), left = Math.max(32, Math.ceil((words + 9) / 8) * 8);
    this.area = { left, top, width: width - left - 6, height: height - top - bottom };
    this.x = new Scale(range[0], range[1], left, width - 6);
  }

  grid(pen) {
    const { theme } = this.view, { left, width } = this.area;
    pen.strokeStyle = theme.grid;
    pen.fillStyle = theme.muted;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    pen.lineWidth = 1;
    pen.beginPath();
    for (const tick of this.yTicks) {
      const at = Math.round(this.y.at(tick.at)) + 0.5;
      pen.moveTo(left, at);
      pen.lineTo(left + width, at);
      pen.fillText(tick.text, left - 7, at);
    }
    pen.stroke();
  }

  // ---- how far the values go
  window(run, range) {
    const first = Math.max(0, run.find(this.axis.column, range[0]) - 1), end = Math.min(run.rows, run.find(this.axis.column, range[1]) + 1);
    return [first, end];
  }

  // {low, high, above, below}: the span drawn, and the values beyond it where single ones would flatten everything else.
  range(runs, evaluations, range) {
    const sure = new Extent(this.log), some = [], every = new Extent(this.log);
    for (const run of runs) {
      const [first, end] = this.window(run, range), { y } = run.curve(this.column + MEAN, this.weight, this.log), stride = Math.ceil((end - first) / 1000);
      for (let i = first; i < end; i++) {
        sure.add(y[i]);
        if (!this.eachStep(run)) continue;
        const low = run.get(i, this.column + LOW), high = run.get(i, this.column + HIGH);
        every.add(low);
        every.add(high);
        if ((i - first) % stride === 0) some.push(low, high);
      }
      if (!this.view.hidden.has("kind:left")) for (const part of run.abandonedSegments(this.axis.column, this.column + MEAN, this.weight, this.log)) {
        for (const [x, value] of part) if (x >= range[0] && x <= range[1]) sure.add(value);
      }
    }
    for (const { points } of evaluations) points.forEach(([, value], i) => {   // the neighbours of what is in sight as well: lines lead there
      if ((points[i + 1] || points[i])[0] >= range[0] && (points[i - 1] || points[i])[0] <= range[1]) sure.add(value);
    });
    return sure.around(Float64Array.from(some.filter(o => Number.isFinite(o))).sort(), every);
  }

  beyond(pen, y) {
    const { left, top, width, height } = this.area;
    pen.font = FONT;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    pen.lineWidth = 4;
    pen.strokeStyle = this.view.theme.surface;
    pen.fillStyle = this.view.theme.muted;
    const say = (text, at) => { pen.strokeText(text, left + width - 1, at); pen.fillText(text, left + width - 1, at); };
    if (y.above !== null) say("↑ up to " + number(y.above, 3), top + 9);
    if (y.below !== null) say("↓ down to " + number(y.below, 3), top + height - 10);
  }

  // ---- the curves
  // Beside a table of runs, those of one run are drawn where it is pointed at: all of them would hide the lines, as in a picture.
  eachStep(run, marked) { return !this.view.hidden.has("kind:steps") && (!this.view.table || run.band || run.id === marked); }
  // Every step: a faint line where each stands apart, else a band from the lowest to the highest value of a column of pixels.
  band(pen, run) {
    if (!this.eachStep(run, this.view.marked)) return;
    const [first, end] = this.window(run, [this.x.low, this.x.high]), { column } = this;
    if (run.width === 1 && this.weight === 0 && !run.band) return;   // the strong line shows each step already
    pen.strokeStyle = pen.fillStyle = this.color(run);
    const dense = (end - first) / this.area.width;   // blocks for a pixel
    if (run.width === 1 && dense < 2 && !run.band) {
      pen.globalAlpha = this.faint * (run.place ? 0.24 : 0.4) / (1 + dense);
      pen.lineWidth = 1;
      this.path(pen, run, first, end, i => run.get(i, column + MEAN));
    } else this.fill(pen, this.columnsOf(run, first, end), run.place ? 0.13 : 0.24);
    pen.globalAlpha = 1;
  }

  columnsOf(run, first, end) {
    const found = [];
    let last = null;
    for (let i = first; i < end; i++) {
      const low = this.y.at(run.get(i, this.column + LOW)), high = this.y.at(run.get(i, this.column + HIGH));
      if (Number.isNaN(low) || Number.isNaN(high)) continue;
      const at = Math.round(this.x.at(run.get(i, this.axis.column)));
      if (last && at === last[0]) { last[1] = Math.max(last[1], low); last[2] = Math.min(last[2], high); }
      else found.push(last = [at, low, high]);
    }
    return found;
  }

  fill(pen, columns, strength) {
    pen.globalAlpha = strength * this.faint;
    pen.beginPath();
    for (const [at, , high] of columns) pen.lineTo(at, high - 0.4);
    for (let i = columns.length - 1; i >= 0; i--) pen.lineTo(columns[i][0], columns[i][1] + 0.4);
    pen.fill();
    this.points += 2 * columns.length;
  }

  color(run) { return this.view.theme.hue(run.place === 0 ? 0 : run.place + 1); }

  line(pen, run) {
    const { y } = run.curve(this.column + MEAN, this.weight, this.log), [first, end] = this.window(run, [this.x.low, this.x.high]);
    pen.strokeStyle = pen.fillStyle = this.color(run);
    pen.lineWidth = run.id === this.view.marked ? 3 : run.place ? 1.5 : 2;
    pen.globalAlpha = this.faint;
    pen.lineJoin = "round";
    this.path(pen, run, first, end, i => y[i]);
    if (end - first <= this.area.width / 16) for (let i = first; i < end; i++) {   // few enough to be distinguished
      pen.beginPath();
      pen.arc(this.x.at(run.get(i, this.axis.column)), this.y.at(y[i]), run.place ? 2 : 2.6, 0, 7);
      pen.fill();
    }
  }

  // A line through blocks: at most four points for each column of pixels, the ones that shape it.
  path(pen, run, first, end, value) {
    const { column } = this.axis, thin = (end - first) > 3 * this.area.width;
    let at = null, low, high, last;
    const to = (x, y) => { pen.lineTo(x, y); this.points++; };
    const flush = () => { if (at !== null && low !== high) { to(at, low); to(at, high); if (last !== high) to(at, last); } };
    pen.beginPath();
    for (let i = first; i < end; i++) {
      const y = this.y.at(value(i));
      if (Number.isNaN(y)) continue;
      const x = this.x.at(run.get(i, column)), place = Math.round(x);
      if (!thin) { to(x, y); continue; }
      if (place !== at) { flush(); to(place, y); at = place; low = high = y; }
      low = Math.min(low, y);
      high = Math.max(high, y);
      last = y;
    }
    if (thin) flush();
    pen.stroke();
  }

  left(pen, runs) {
    if (this.view.hidden.has("kind:left")) return;
    pen.strokeStyle = this.view.theme.muted;
    pen.globalAlpha = 0.75;
    pen.lineWidth = 1.4;
    pen.setLineDash([5, 4]);
    for (const run of runs) for (const part of run.abandonedSegments(this.axis.column, this.column + MEAN, this.weight, this.log)) {
      pen.beginPath();
      for (const [x, value] of part) { const y = this.y.at(value); if (!Number.isNaN(y)) pen.lineTo(this.x.at(x), y); }
      pen.stroke();
      this.points += part.length;
    }
    pen.setLineDash([]);
    pen.globalAlpha = 1;
  }

  marksOf(pen, { points, color, shape, run }) {
    pen.strokeStyle = color;
    pen.lineWidth = run.id === this.view.marked ? 2.6 : run.place ? 1.2 : 1.6;
    pen.lineJoin = "round";
    pen.beginPath();
    for (const [x, value] of points) { const y = this.y.at(value); if (!Number.isNaN(y)) pen.lineTo(this.x.at(x), y); }
    pen.globalAlpha = this.faint * (this.quantity && this.view.all().length > 1 ? 0.4 : 1);   // there the losses of the steps have the same colour
    pen.stroke();
    pen.globalAlpha = this.faint;
    this.points += points.length;
    pen.setLineDash([]);
    const inside = points.filter(([x]) => x >= this.x.low && x <= this.x.high);
    // closer than that, marks would hide the lines; they are one path, since many of them would take longer than a frame
    if (inside.length * (run.id === this.view.marked ? 1 : Math.max(1, this.view.shown().length / 5)) > this.area.width / 7) return;
    pen.fillStyle = this.view.theme.surface;
    pen.beginPath();
    for (const [x, value] of inside) { const y = this.y.at(value); if (!Number.isNaN(y)) outline(pen, shape, this.x.at(x), y, 3.2); }
    pen.fill();
    pen.stroke();
  }

  // ---- what stands at a place
  // Rows {label, text, color, kind} for the tooltip, with x and y of their dots.
  valuesAt(x) {
    const found = [], { column } = this.axis, several = this.view.shown().length > 1;
    if (this.quantity) for (const run of this.view.shown()) {
      const i = run.nearest(column, x);
      if (i < 0 || Math.abs(this.x.at(run.get(i, column)) - this.x.at(x)) > Math.max(12, this.area.width / 30)) continue;
      const { y } = run.curve(this.column + MEAN, this.weight, this.log), mean = run.get(i, this.column + MEAN);
      if (Number.isNaN(mean) && Number.isNaN(y[i])) continue;
      const low = run.get(i, this.column + LOW), high = run.get(i, this.column + HIGH);
      const each = run.width > 1 && low !== high ? `${number(low, 3)} … ${number(high, 3)}` : this.weight ? "this step " + number(mean, 3) : "";
      const place = { x: this.x.at(run.get(i, column)), y: this.y.at(y[i]) };
      found.push({ label: several ? run.label : this.title.toLowerCase(), text: number(y[i]), each, color: this.color(run), kind: "line", run: run.id, ...place });
    }
    for (const { name, run, color, points } of this.evaluations()) {
      const near = closest(points, x), away = near && Math.abs(this.x.at(near[0]) - this.x.at(x));
      if (!near || away > (this.quantity ? 8 : 40)) continue;
      const place = { x: this.x.at(near[0]), y: this.y.at(near[1]) };
      found.push({ label: several ? `${name}, ${run.label}` : name, text: number(near[1]), each: "", color, kind: "ring", run: run.id, ...place });
    }
    return found;
  }

  // The newest value beside the title, and the chart in words for those who do not see it.
  describe(runs, evaluations) {
    const main = runs.find(o => o.place === 0), own = evaluations.find(o => o.run.place === 0 && o.points.length);
    let value = NaN;
    // A loss that is no longer finite leaves the curve where it was last; the number beside the title must not.
    const broken = main && this.view.brokenLoss() && Number.isNaN(main.last(this.column + MEAN)) && main.known(this.column);
    if (main) { const { y } = main.curve(this.column + MEAN, this.weight, this.log); for (let i = y.length - 1; i >= 0 && Number.isNaN(value); i--) value = y[i]; }
    else if (!this.quantity && own) value = own.points[own.points.length - 1][1];
    const text = broken || main && this.key === "loss" && this.view.brokenLoss() ? "nan" : Number.isNaN(value) ? "" : number(value);
    setText(this.value, text);
    setText(this.valueNote, main && this.weight && text && text !== "nan" ? "smoothed" : "");
    this.value.classList.toggle("tnb-broken", text === "nan");
    setAttribute(this.plot, "aria-label", text ? `${this.title}: now ${text}` : `${this.title}: ${this.nothing()}`);
  }
}

const closest = (points, x) => points.reduce((best, o) => best && Math.abs(best[0] - x) <= Math.abs(o[0] - x) ? best : o, null);

// Several evaluations in one chart differ in their marks as well: circle, square, diamond, triangle.
function outline(pen, shape, x, y, r) {
  const corners = [null, [[-1, -1], [1, -1], [1, 1], [-1, 1]], [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]], [[0, -1.2], [1.2, 0.9], [-1.2, 0.9]]][shape % 4];
  if (!corners) { pen.moveTo(x + r, y); pen.arc(x, y, r, 0, 7); return; }
  corners.forEach(([a, b], i) => i ? pen.lineTo(x + a * r * 0.9, y + b * r * 0.9) : pen.moveTo(x + a * r * 0.9, y + b * r * 0.9));
  pen.closePath();
}

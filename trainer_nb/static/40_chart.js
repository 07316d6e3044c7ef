// A chart of curves: each step faint, the running mean strong, evaluations as marks, abandoned steps dashed.

class Chart extends Card {
  constructor(view, key, title, quantity, belongs, cls = "") {
    super(view, title, cls);
    Object.assign(this, { key, quantity, belongs, chosen: null });   // belongs: of an evaluation's name, whether it is drawn here
    if (!quantity) {
      this.metric = title;
      this.star = make("button", "tnb-star", null, { type: "button", title: "pin this chart above the others", "aria-label": `pin ${title}`, click: () => view.sections.pin(this) }, icon("star"));
    }
    if (key === "loss") this.head.append(make("span", "tnb-card-hint", "click a step to act, drag to zoom, with Shift to move"));
    addTools(this.head, this, title).prepend(...this.star ? [this.star] : []);
  }

  toggleLog() {
    Object.assign(this, { chosen: !this.log, zoomY: null });
    this.zoomTo();
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
      names.forEach((name, i) => {
        const points = this.view.metrics[run.id][name].map(o => [o[this.axis.column], o[3]]).filter(o => Number.isFinite(o[0]) && Number.isFinite(o[1]));
        found.push({ name, run, points, color: several ? this.color(run) : this.view.theme.hue(1 + i * 3) });
      });
    }
    return found;
  }

  has() {
    if (this.quantity && this.view.all().some(run => run.known(this.column))) return true;
    return this.view.all().some(run => Object.keys(this.view.metrics[run.id] || {}).some(this.belongs));
  }

  draw(pen, width, height) {
    const { view } = this, runs = this.quantity ? view.shown().filter(o => o.rows) : [], evaluations = this.evaluations();
    setAttribute(this.toggle, "aria-pressed", String(this.log));
    this.describe(runs, evaluations);
    this.lines = this.against ? this.pairs() : this.curves(runs, evaluations);
    const range = this.against ? this.zoomX || this.spanOfPairs() : view.range(), y = range && this.heights(range);
    if (!y) {
      const bare = this.log ? "Nothing to show here: nothing is above zero" : "Nothing to show here";
      this.say(this.against ? "No step has a value of both" : !range || !this.has() ? this.nothing() : runs.length || evaluations.length ? bare : "Hidden in the legend");
      return;
    }
    this.say("");
    this.unit = this.against ? QUANTITIES.find(o => o.key === this.against)?.title ?? this.against : width > 560 ? this.axis.unit : "";
    this.drawOn(pen, width, height, range, y);
  }

  nothing() { return this.quantity ? "No steps yet" : "No evaluation yet"; }

  // ---- what is drawn: of several, the run that is pointed at lies above the others, which step back
  curves(runs, evaluations) {
    const { view, column } = this, { column: at } = this.axis, { marked } = view, last = o => o.id === marked;
    const alpha = run => marked && run.id !== marked ? 0.2 : 1, back = [...runs].reverse().sort((a, b) => last(a) - last(b));
    // a line through the blocks of a run
    const through = (run, style, y, more) => ({ style, run, y, color: this.color(run), dash: dashOf(run.place && run.place + 1), count: run.rows, x: i => run.get(i, at), alpha: alpha(run), ...more });
    const each = back.filter(run => this.eachStep(run) && (run.width > 1 || this.weight || run.band)).map(run => through(run, "faint", i => run.get(i, column + MEAN), {
      low: i => run.get(i, column + LOW), high: i => run.get(i, column + HIGH), wide: run.width > 1 || run.band, aside: view.table && !run.band, alpha: alpha(run) * (run.place ? 0.22 : 0.4),
    }));
    const strong = back.map(run => {
      const { y } = run.curve(column + MEAN, this.weight, this.log);
      return through(run, "line", i => y[i], { weight: last(run) ? 3 : run.place ? 1.5 : 2 });
    });
    const left = view.hidden.has("kind:left") ? [] : runs.flatMap(run => run.abandonedSegments(at, column + MEAN, this.weight, this.log)).filter(o => o.length).map(points => listed(points, "dashed", { color: view.theme.muted, loose: true }));
    const crowd = Math.max(1, view.shown().length / 5), pale = this.quantity && view.all().length > 1 ? 0.4 : 1;   // there the losses of the steps have the same colour
    const rings = evaluations.filter(o => o.points.length).reverse().sort((a, b) => last(a.run) - last(b.run)).map(({ run, points, ...rest }) => listed(points, "rings", {
      ...rest, run, crowd: last(run) ? 1 : crowd, pale, dash: dashOf(run.place && run.place + 1), alpha: alpha(run), weight: last(run) ? 2.6 : run.place ? 1.2 : 1.6,
    }));
    return [...left, ...each, ...strong, ...rings];
  }

  // Beside a table of runs, the steps of one run are drawn where it is pointed at: all of them would hide the lines, as in a picture.
  eachStep(run) { return !this.view.hidden.has("kind:steps") && (!this.view.table || run.band || run.id === this.view.marked); }

  color(run) { return this.view.theme.hue(run.place === 0 ? 0 : run.place + 1); }

  // ---- against another column: a dot wherever both have a value
  get against() { return this.view.against; }

  // A line of dots for each run, whose points are [x, y, place on the axis of the page]: at the steps of a metric, or at most a thousand.
  pairs() {
    const { view } = this;
    return view.shown().map(run => {
      const series = [this.against, this.metric ?? this.key].map(name => {
        const quantity = QUANTITIES.find(o => o.key === name), y = quantity && run.curve(quantity.column + MEAN, quantity.smooth ? view.weight : 0, false).y;
        const values = new Map((view.metrics[run.id]?.[name] || []).map(o => [o[0], o[3]]));
        return y ? { at: step => y[run.nearest(0, step)] } : { steps: [...values.keys()], at: step => values.get(step) };
      });
      const every = Math.ceil(run.rows / 1000) || 1, steps = series.find(o => o.steps)?.steps ?? Array.from({ length: Math.ceil(run.rows / every) }, (_, i) => run.get(i * every, 0));
      const points = steps.map(step => [...series.map(o => o.at(step)), run.convert(step, 0, this.axis.column)]).filter(o => o.every(Number.isFinite));
      return listed(points, "dots", { run, points, loose: true, color: this.color(run), alpha: view.marked && run.id !== view.marked ? 0.15 : 0.7 });
    }).filter(o => o.count);
  }

  spanOfPairs() {
    const found = new Extent(this.logX, this.lines.flatMap(o => o.points.map(point => point[0])));
    return found.low > found.high ? null : Object.values(found.padded());
  }

  placeAt(x) { return this.against ? this.valuesAt(x)[0]?.x ?? -1 : super.placeAt(x); }

  pointAt(place, down) {
    if (!this.against) { super.pointAt(place, down); return; }
    this.pointed = down;
    let near = null, least = 40;
    for (const { points } of this.lines) for (const [x, y, at] of points) {
      const away = Math.hypot(this.x.at(x) - place, this.y.at(y) - down);
      if (away < least) [near, least] = [at, away];
    }
    this.view.hover(near === null ? null : { card: this, x: near });
  }

  // ---- what stands at a place
  // Rows {label, text, color, kind} for the tooltip, with x and y of their dots.
  valuesAt(x) {
    const several = this.view.shown().length > 1, found = [];
    const add = ({ run, color }, label, value, each, kind, left) => found.push({ label, text: number(value), each, color, kind, run: run.id, x: left, y: this.y.at(value) });
    for (const line of [...this.lines].reverse()) {
      const { run, style } = line, { column } = this;
      if (style === "dots") {
        const [a, b] = line.points.reduce((best, o) => Math.abs(best[2] - x) <= Math.abs(o[2] - x) ? best : o);
        add(line, run.label, b, `${this.unit} ${number(a)}`, "line", this.x.at(a));
      } else if (style === "line" || style === "rings") {
        const i = this.near(line, x, style === "line" ? undefined : this.quantity ? 8 : 40), value = i < 0 ? NaN : line.y(i);
        if (i < 0) continue;
        if (style === "rings") { add(line, several ? `${line.name}, ${run.label}` : line.name, value, "", "ring", this.x.at(line.x(i))); continue; }
        const low = run.get(i, column + LOW), high = run.get(i, column + HIGH), steps = run.width > 1 && low !== high ? `${number(low, 3)} … ${number(high, 3)}` : this.weight ? "this step " + number(run.get(i, column + MEAN), 3) : "";
        add(line, several ? run.label : this.title.toLowerCase(), value, steps, "line", this.x.at(line.x(i)));
      }
    }
    return found.sort((a, b) => (a.kind === "ring") - (b.kind === "ring"));
  }

  // The values before smoothing, which come in single precision.
  table() {
    const rows = [["run", "name", this.view.axis, "value"]], { column } = this.axis;
    if (this.quantity) for (const run of this.view.shown()) for (let i = 0; i < run.rows; i++) rows.push([run.label, this.key, ...[column, this.column + MEAN].map(o => Number(run.get(i, o).toPrecision(7)))]);
    for (const { name, run, points } of this.evaluations()) for (const point of points) rows.push([run.label, name, ...point]);
    return rows;
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

// A line through points [x, y].
function listed(points, style, more) { return { style, count: points.length, x: i => points[i][0], y: i => points[i][1], ...more }; }

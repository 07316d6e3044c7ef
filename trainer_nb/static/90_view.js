// The dashboard: the values received from the kernel, and the parts that show them.

const isLoss = name => /loss$/.test(name);
const inOrder = (a, b) => a.localeCompare(b, undefined, { numeric: true });   // layer_2 before layer_10
const MANY_VALUES = 14;   // rows of a tooltip
const PATIENCE = 2000;   // ms after which the page shows the hint that clicks wait

class View {
  constructor(model, el) {
    Object.assign(this, { el, id: randomId(), axis: "steps", logX: false, against: null, full: null, weight: 0, zoom: null, hidden: new Set(), left: new Set(), marked: null, hovered: null, pinned: null });
    Object.assign(this, { runs: new Map(), places: new Map(), order: [], metrics: {}, marks: [], logs: new Set(), status: {}, charts: new Map(), heats: new Map() });
    this.openedAt = Date.now();
    this.root = make("div", "tnb", null, { "data-lm-suppress-shortcuts": "true" });
    this.root.trainerNb = this;
    el.classList.add("tnb-host");
    const [part, chart] = (model.get("part") || "").split(/:(.*)/s);   // of the view, which is shown alone: "table", "chart:eval_loss"
    if (part) Object.assign(this, { only: chart }).root.setAttribute("data-part", part);
    this.theme = new Theme(this.root, () => this.recolor());
    this.commands = new Commands(this);
    this.build();
    el.append(this.root);
    // A notebook's shortcuts are not meant here, but for saving.
    const saving = event => (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "s", command = event => event.ctrlKey || event.metaKey;
    this.keys = event => {
      if (event.key === "Escape" && this.full && !event.defaultPrevented) this.enlarge(this.full);
      if (!saving(event) && (!command(event) || event.target.matches("input, select, pre"))) event.stopPropagation();
    };
    this.root.addEventListener("keydown", this.keys);
    // Before JupyterLab and Notebook 7 (which listen at the document) look for the mark: it stands at the element with the focus as well,
    // since shortcuts of Notebook 7 that are meant for any element with the focus are looked for there first.
    this.saves = event => {
      if (!this.root.contains(event.target)) return;
      for (const node of [this.root, event.target]) setAttribute(node, "data-lm-suppress-shortcuts", saving(event) ? null : "true");
    };
    window.addEventListener("keydown", this.saves, true);
    this.placed = new ResizeObserver(() => this.theme.read());   // made before it stands in the page
    this.placed.observe(this.root);
    this.link = new Link(this, model);
    this.connection("");
    this.link.hello();
  }

  build() {
    this.waitingText = make("span", "", "Connecting to the kernel …");
    this.waiting = make("p", "tnb-waiting", null, { role: "status" }, icon("wait"), this.waitingText);
    this.header = new Header();
    this.controls = new Controls(this);
    this.settings = new Settings(this);
    this.hintText = make("span");
    this.hint = make("p", "tnb-hint", null, { hidden: "" }, icon("info"), this.hintText);
    this.notices = new Notices(this);
    this.sections = new Sections(this);
    this.toolbar = new Toolbar(this);
    this.evaluations = new Evaluations();
    this.foot = make("div", "tnb-foot", null, {}, this.evaluations.box, this.notices.box);
    this.samples = make("div", "tnb-card tnb-samples", null, { role: "group", "aria-label": "samples", hidden: "" });
    this.control = make("div", "tnb-control", null, {}, this.controls.box, this.settings.bar, this.settings.panel);
    const parts = [this.header.box, this.control, this.hint, this.notices.line, this.toolbar.box, this.sections.box, this.samples, this.foot];
    this.body = make("div", "tnb-body", null, { hidden: "" }, ...parts);
    this.root.append(this.waiting, this.body);
    this.tooltip = new Tooltip(this);
    this.root.addEventListener("pointerdown", event => { if (this.pinned && !event.target.closest(".tnb-tooltip, .tnb-plot")) this.pin(null); });
  }

  // ---- messages
  begin(content, buffers) {
    this.metrics = {};
    this.order = [];
    for (const run of this.runs.values()) run.forget();
    show(this.waiting, false);
    show(this.body, true);
    this.take(content, buffers);
  }

  // What a message brings; false where something before it is missing.
  take(content, buffers) {
    let whole = true;
    const has = name => content[name] !== undefined && content[name] !== null;
    if (has("still")) setAttribute(this.root, "data-number", content.still);   // the picture of this number hides itself while the view is there
    if (has("compact")) this.root.classList.toggle("tnb-compact", Boolean(content.compact));
    if (has("controls")) { show(this.control, content.controls); this.controlled = Boolean(content.controls); }
    if (has("title")) setText(this.header.title, content.title);
    if (has("cell_hint")) this.cellHint = content.cell_hint;
    if (has("status")) this.setStatus(content.status);
    if (has("runs")) this.setRuns(content.runs);
    for (const name of ["runs", "changed_runs"]) if (has(name)) for (const news of content[name]) whole = this.run(news.run).take(news, buffers) && whole;
    if (has("metrics")) Object.assign(this.metrics, content.metrics);
    if (has("marks")) this.marks = content.marks;
    if (has("log")) { this.logs = new Set(content.log); this.invalidate(); }
    if (has("smoothing")) this.toolbar.follow(content.smoothing);
    if (has("layers")) this.setLayers(content.layers, buffers);
    if (has("evaluations")) this.evaluations.update(content.evaluations);
    if (has("samples")) this.setSamples(content.samples);
    if (has("notices")) this.notices.update(content.notices);
    if (has("settings")) this.settings.update(content.settings);
    if (has("table")) this.setTable(content.table);
    if (["runs", "changed_runs", "metrics", "marks", "table"].some(has)) this.redrawn();
    return whole;
  }

  setStatus(status) {
    if (this.status.state !== status.state && !this.notices.pending) this.say("", "plain");   // what was done, refused or has failed has passed
    this.status = status;
    this.heardAt = new Date();
    this.header.update(status);
    this.controls.update(status);
    // The hint is empty where clicks do not wait for the cell, which the kernel knows from the first message of the page.
    this.waits = Boolean(status.where === "cell" && this.controlled && this.cellHint);
    const hinted = this.waits && Date.now() - this.openedAt > PATIENCE;
    setText(this.hintText, hinted ? this.cellHint : "");
    show(this.hint, hinted);
    setAttribute(this.control, "data-busy", hinted ? "" : null);
  }

  // The kernel's HTML, as in the picture: its slider stays where it is, or at the newest evaluation.
  setSamples(html) {
    const { value, max } = this.samples.querySelector("input") || {};
    this.samples.innerHTML = html;
    show(this.samples, html);
    const slider = this.samples.querySelector("input");
    if (slider && value !== max) { slider.value = value; slider.dispatchEvent(new Event("input")); }
  }

  setRuns(list) {
    this.order = list.map(o => o.run);
    for (const id of this.runs.keys()) if (!this.order.includes(id)) { this.runs.delete(id); delete this.metrics[id]; }
    if (this.mainId !== this.order[0]) { this.mainId = this.order[0]; this.places.clear(); this.places.set(this.mainId, 0); this.zoomTo(null); }
    // the kernel gives each run its colour, the same in all charts; place 1 has colour 2, since 1 is that of the evaluations
    for (const o of list) if (typeof o.color === "number") this.places.set(o.run, o.color ? o.color - 1 : 0);
    for (const id of this.order) this.run(id);
  }

  // The run of an id; its colour is its own for as long as the main run stays the same.
  run(id) {
    if (!this.places.has(id)) this.places.set(id, this.places.size);
    if (!this.runs.has(id)) this.runs.set(id, new Run(id, this.places.get(id)));
    if (!this.order.includes(id)) this.order.push(id);
    this.runs.get(id).place = this.places.get(id);
    return this.runs.get(id);
  }

  // Many runs stand in a table beside their charts.
  setTable(table) {
    if (!this.table) {
      this.table = new RunsTable(this);
      const side = make("div", "tnb-side");
      side.append(this.toolbar.box, this.sections.box);
      const pair = make("div", "tnb-pair");
      pair.append(this.table.box, side);
      this.body.insertBefore(pair, this.foot);
      this.root.setAttribute("data-runs", "");
      this.heard = event => this.highlight(this.table.rows.find(o => o.name === event.detail)?.run ?? null, true);
      document.addEventListener("tnb-run", this.heard);
    }
    this.table.update(table);
  }

  colorOf(id) { const run = this.runs.get(id), color = run && run.place ? run.place + 1 : 0; return run ? striped(this.theme.hue(color), dashOf(color)) : this.theme.muted; }

  setHidden(ids, hide) {
    for (const id of ids) if (hide) this.hidden.add("run:" + id); else this.hidden.delete("run:" + id);
    this.table.refresh();
    this.invalidate();
  }

  // The run that is pointed at, in the table, in a chart, or in a picture on the page, by its name.
  highlight(id, heard = false) {
    if (this.table) this.table.mark(id);
    if (this.table && !heard) document.dispatchEvent(new CustomEvent("tnb-run", { detail: this.table.rows.find(o => o.run === id)?.name }));
    if (id && !this.shown().some(o => o.id === id)) id = null;
    if (this.marked === id) return;
    this.marked = id;
    for (const card of this.charts.values()) card.dirty = true;
    this.wake();
  }

  setLayers(layers, buffers) {
    const keys = new Set(layers.map(o => o.title));
    for (const [key, heat] of this.heats) if (!keys.has(key)) { heat.stop(); this.heats.delete(key); }
    for (const layer of layers) {
      if (!this.heats.has(layer.title)) this.heats.set(layer.title, new Heat(this, layer.title, String(layer.title)));
      this.heats.get(layer.title).take(layer, buffers);
    }
    this.sections.arrange();
  }

  // ---- what the parts ask
  all() { return this.order.map(o => this.runs.get(o)).filter(Boolean); }
  shown() { return this.all().filter(o => !this.hidden.has("run:" + o.id) && !this.left.has(o.id)); }
  live() { return this.status.state === "training" || Boolean(this.status.evaluating); }
  // Whether the newest loss is known and is not finite.
  brokenLoss() { const { loss } = this.status; return typeof loss === "string" && /^(nan|-?inf)/i.test(loss); }
  main() { return this.runs.get(this.mainId) || this.all()[0] || new Run("", 0); }

  // The place of a mark on the axis in force.
  placeOf(mark) { return mark[AXES[this.axis].key]; }

  // From where to where the axis goes: the zoom, or all that is shown.
  range() {
    if (this.zoom) return this.zoom;
    const { column } = AXES[this.axis], { logX } = this, extent = new Extent(logX);
    for (const run of this.shown()) {
      if (run.rows) { extent.add(run.get(logX ? Math.min(run.find(column, Number.MIN_VALUE), run.rows - 1) : 0, column)); extent.add(run.last(column)); }
      if (!this.hidden.has("kind:left")) for (let i = 0; i < run.left.length; i += WIDE) extent.add(run.left[i + column]);
      for (const points of Object.values(this.metrics[run.id] || {})) for (const end of [0, points.length - 1]) if (points[end]) extent.add(points[end][column]);
    }
    if (extent.low > extent.high) return null;
    if (logX) return extent.low < extent.high ? [extent.low, extent.high] : [extent.low / 2, extent.low * 2];
    const low = extent.low > 0.3 * extent.high ? extent.low : Math.min(0, extent.low);
    return extent.high > low ? [low, extent.high] : [low - 0.5, low + 0.5];
  }

  // ---- the charts: made when there is something for them, in one order
  redrawn() {
    const names = new Set([...this.all().flatMap(run => Object.keys(this.metrics[run.id] || {})), ...(this.table ? this.table.table.metrics : [])]), any = this.all().some(o => o.rows), wanted = new Map();
    for (const quantity of QUANTITIES) {
      if (any && !this.all().some(o => o.known(quantity.column)) && quantity.key !== "loss") continue;
      const loss = quantity.key === "loss";
      wanted.set(quantity.key, () => new Chart(this, quantity.key, quantity.title, quantity, loss ? isLoss : () => false, loss ? "tnb-big" : ""));
      if (loss) for (const name of [...names].filter(o => !isLoss(o)).sort(inOrder)) {
        wanted.set("metric " + name, () => new Chart(this, "metric " + name, name, null, o => o === name));
      }
    }
    for (const [key, chart] of this.charts) if (!wanted.has(key)) { chart.stop(); this.charts.delete(key); }
    if (this.full && !this.cards().includes(this.full)) this.enlarge(this.full);
    this.toolbar.columns([...QUANTITIES.filter(o => wanted.has(o.key)).map(o => [o.key, o.title]), ...[...names].sort(inOrder).map(o => [o, o])]);
    const old = this.charts;
    this.charts = new Map([...wanted].map(([key, build]) => [key, old.get(key) || build()]));
    this.sections.arrange();
    this.legend();
    this.invalidate();
  }

  cards() { return [...this.charts.values(), ...this.heats.values()]; }

  // Of many runs, the kernel sends the values of a metric when its chart is open.
  want(names) {
    const known = new Set(Object.values(this.metrics).flatMap(Object.keys)), missing = this.table ? names.filter(o => !known.has(o) && !this.sections.asked.has(o)) : [];
    missing.forEach(o => this.sections.asked.add(o));
    if (missing.length) this.commands.send("draw", { names: missing }, { name: "Charts", phase() {} });
  }

  legend() {
    const { theme } = this, entries = (this.table ? [] : this.all()).map(run => ({ key: "run:" + run.id, text: run.label, kind: "line", color: theme.hue(run.place ? run.place + 1 : 0) }));
    if (this.all().some(o => o.rows)) entries.push({ key: "kind:steps", text: "each step", kind: "band", color: theme.hue(0) });
    if (Object.values(this.metrics).some(o => Object.keys(o).length)) entries.push({ key: "kind:evaluations", text: "evaluations", kind: "ring", color: this.all().length > 1 ? theme.muted : theme.hue(1) });
    if (this.all().some(o => o.left.length)) entries.push({ key: "kind:left", text: "discarded", kind: "dashes", color: theme.muted });
    if (this.marks.length) entries.push({ key: "kind:marks", text: "events", kind: "flag", color: theme.muted });
    this.toolbar.list(entries);
  }

  // ---- requests of the user on the page
  toggle(key) {
    if (!this.hidden.delete(key)) this.hidden.add(key);
    this.legend();
    this.invalidate();
  }

  // One of the axes, or a column against which each chart is drawn.
  setAxis(name) {
    const [from, to] = [this.axis, AXES[name] ? name : this.axis].map(o => AXES[o].column);
    this.against = AXES[name] ? null : name;
    if (!this.against) this.axis = name;
    else if (!QUANTITIES.some(o => o.key === name)) this.want([name]);
    this.pin(null);
    this.whole(this.zoom && this.zoom.map(o => this.main().convert(o, from, to)));
  }

  zoomTo(range) {
    this.zoom = null;
    const whole = range && this.range();
    if (whole) {
      // what would go beyond an end is moved back
      const over = Math.max(whole[0] - range[0], 0) || Math.min(whole[1] - range[1], 0), [a, b] = [Math.max(whole[0], range[0] + over), Math.min(whole[1], range[1] + over)];
      if (b > a && (a > whole[0] || b < whole[1])) this.zoom = [a, b];
    }
    this.toolbar.zoomed(this.zoom || this.cards().some(o => o.zoomX || o.zoomY));
    this.invalidate();
  }

  // Everything in sight, in all charts, or a part of the steps.
  whole(zoom = null) {
    for (const card of this.cards()) card.zoomX = card.zoomY = null;
    this.zoomTo(zoom);
  }

  setLogX(log) {
    this.logX = log;
    setAttribute(this.toolbar.logX, "aria-pressed", String(log));
    this.whole(this.zoom);
  }

  // Show one chart alone, or all again.
  enlarge(card) {
    this.full = this.full === card ? null : card;
    setAttribute(this.root, "data-full", this.full && "");
    setAttribute(card.wide, "aria-pressed", String(Boolean(this.full)));
    this.sections.arrange();
    card.box.scrollIntoView({ block: "nearest" });
  }

  smooth(steps) {
    this.weight = steps < 1.5 ? 0 : 1 - 1 / steps;
    this.invalidate();
  }

  // The crosshair, in all charts; in words beside the one that is pointed at.
  hover(at) {
    if (this.pinned || !at && !this.hovered) return;
    this.hovered = at;
    if (!at) this.highlight(null);
    this.pointing = true;
    this.wake();
  }

  // A place that was clicked stays, with its buttons, until the next click.
  pin(at) {
    this.pinned = null;
    this.hover(at);
    if (this.controlled) this.pinned = at;
  }

  tell() {
    const at = this.hovered;
    if (!at || !at.card.x) { this.tooltip.hide(); return; }
    const { card, x } = at, box = card.plot.getBoundingClientRect(), own = this.root.getBoundingClientRect(), place = card.placeAt(x), main = this.main();
    const values = this.ordered(card, card.valuesAt(x)), under = o => !this.hidden.has("kind:marks") && Math.abs(card.x.at(this.placeOf(o)) - place) < 6;
    const marks = this.marks.filter(under).slice(0, 8);
    const row = main.nearest(AXES[this.axis].column, x), near = row >= 0 ? main.convert(x, AXES[this.axis].column, 0) : x;
    const others = Object.entries(AXES).filter(([name]) => name !== this.axis && row >= 0).map(([, axis]) => axis.say(main.convert(near, 0, axis.column)));
    const step = this.pinned && Math.max(0, Math.min(Math.round(near), this.status.step || 0));
    this.tooltip.show([AXES[this.axis].say(x), ...others].join("  ·  "), values, marks, [box.left - own.left + place, box.top - own.top + 18], step);
  }

  // Several runs stand in the tooltip as their curves do, from top to bottom; of many, those around the pointer. The nearest is marked.
  ordered(card, values) {
    if (this.shown().length < 2) return values;
    values.sort((a, b) => a.y - b.y || 0);
    const away = o => Math.abs(o.y - card.pointed), near = values.reduce((best, o) => !best || away(o) < away(best) ? o : best, null);
    this.highlight(near && away(near) < 14 ? near.run : null);
    if (near) near.near = away(near) < 14;
    const first = Math.max(0, Math.min(values.indexOf(near) - MANY_VALUES / 2, values.length - MANY_VALUES)), part = values.slice(first, first + MANY_VALUES);
    return part.length < values.length ? [...part, { label: `${values.length - part.length} more`, text: "", each: "", color: "transparent", kind: "line" }] : part;
  }

  // ---- drawing: at most once a frame, and only what is due and in sight
  invalidate() {
    for (const card of this.cards()) card.dirty = true;
    this.wake();
  }

  recolor() {
    if (!this.toolbar) return;
    this.legend();
    if (this.table) this.table.refresh();
    this.invalidate();
  }

  wake() {
    if (this.frame || this.stopped) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      this.draw();
    });
  }

  draw() {
    for (const card of this.cards()) card.refresh();
    if (this.pointing || this.hovered) {
      for (const card of this.cards()) if (card.visible) card.point();
      this.tell();
      this.pointing = false;
    }
  }

  // ---- words
  say(...words) { this.notices.say(...words); }
  post(content) { return this.link.post(content); }

  // state: "" well, "waiting", "closed", "restarted"
  connection(state) {
    const words = { waiting: "Waiting for the kernel (a cell is running, or the kernel is gone)", closed: "Not connected to a kernel", restarted: "The kernel was restarted" }[state] || "";
    this.closed = ["closed", "restarted"].includes(state);
    if (words) setText(this.waitingText, words + (this.closed ? ": run the cell again to see this dashboard live." : ""));
    if (state) this.say("", "plain");   // what was answered before is no longer known to hold
    this.header.connection({ waiting: "waiting for the kernel", closed: "not connected", restarted: "the kernel was restarted" }[state] || "", this.closed && this.heardAt ? clockOf(this.heardAt) : "");
    setAttribute(this.control, "data-gone", this.closed ? "" : null);
    this.root.classList.toggle("tnb-closed", this.closed);
  }

  stop() {
    this.stopped = true;
    cancelAnimationFrame(this.frame);
    this.placed.disconnect();
    this.link.stop();
    this.commands.stop();
    this.controls.stop();
    this.settings.stop();
    this.theme.stop();
    for (const card of this.cards()) card.stop();
    this.root.removeEventListener("keydown", this.keys);
    document.removeEventListener("tnb-run", this.heard);
    window.removeEventListener("keydown", this.saves, true);
    this.root.remove();
  }
}

function render({ model, el }) {
  const view = new View(model, el);
  return () => view.stop();
}

export default { render };

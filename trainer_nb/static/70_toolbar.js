// What all charts share: the axis, the smoothing, the legend, the way back from a zoom; and the sections in which they stand.

class Toolbar {
  constructor(view) {
    this.view = view;
    this.axis = make("select", "tnb-field tnb-small", null, { "aria-label": "horizontal axis", change: () => view.setAxis(this.axis.value) });
    this.logX = make("button", "tnb-tool", "log", { type: "button", "aria-pressed": "false", "aria-label": "logarithmic horizontal axis", click: () => view.setLogX(!view.logX) });
    const input = () => { this.own = true; view.smooth(this.window()); this.describe(); };
    this.slider = make("input", "tnb-slider", null, { type: "range", min: "0", max: "40", step: "1", "aria-label": "smoothing: steps in the running mean", input });
    this.words = make("output", "tnb-smooth-words");
    this.reset = make("button", "tnb-button tnb-quiet tnb-reset", "Whole run", { type: "button", click: () => view.whole() });
    this.legend = make("div", "tnb-legend", null, { role: "group", "aria-label": "legend: show or hide" });
    const smooth = make("label", "tnb-smooth", null, {}, make("span", "", "Smoothing"), this.slider, this.words);
    this.box = make("div", "tnb-toolbar", null, { role: "group", "aria-label": "charts" }, this.axis, this.logX, this.reset, smooth, view.sections.search, this.legend);
    this.zoomed(false);
    this.columns([]);
  }

  // What charts can be drawn against: the axes, and the columns, as pairs of a name and a title.
  columns(pairs) {
    const key = JSON.stringify(pairs);
    if (this.axis.key === key) return;
    this.axis.key = key;
    this.axis.replaceChildren(...[...Object.entries(AXES).map(([name, { title }]) => [name, title]), ...pairs].map(([value, text]) => make("option", "", text, { value })));
    this.axis.value = this.view.against ?? this.view.axis;
  }

  // The slider runs over powers of ten: 1 to 10,000 steps.
  window() { return 10 ** (Number(this.slider.value) / 10); }

  describe() {
    const steps = Math.round(this.window()), text = steps < 2 ? "off" : plural(steps, "step");
    setText(this.words, text);
    setAttribute(this.slider, "aria-valuetext", text);
  }

  // Until the user moves it, the smoothing is that of the kernel's pictures, which grows with the run.
  follow(steps) {
    if (this.own) return;
    this.slider.value = Math.round(10 * Math.log10(steps));
    this.view.smooth(steps);
    this.describe();
  }

  zoomed(yes) { this.reset.classList.toggle("tnb-away", !yes); this.reset.disabled = !yes; }

  // entries: [{key, text, kind, color}]
  list(entries) {
    const listed = JSON.stringify(entries), entry = ({ key, text, kind, color }) => make("button", "tnb-entry", null, { type: "button", "data-key": key, click: () => this.view.toggle(key) },
      make("i", "tnb-swatch tnb-swatch-" + kind, null, { style: `--c: ${color}` }), make("span", "", text));
    if (listed !== this.listed) this.legend.replaceChildren(...entries.map(entry));
    this.listed = listed;
    for (const node of this.legend.children) setAttribute(node, "aria-pressed", String(!this.view.hidden.has(node.dataset.key)));
  }
}

// The charts of the run, those that are pinned, and the metrics by what stands before "/" in their names. The page keeps what was pinned and
// folded, for all runs, since their metrics have the same names.
const KEPT = "trainer_nb.charts", OPEN = 12;   // charts of metrics that are open at first

class Sections {
  constructor(view) {
    Object.assign(this, { view, held: new Map(), kept: { pinned: [], folded: {} }, asked: new Set() });
    this.box = make("div", "tnb-sections");
    this.search = make("input", "tnb-field tnb-search", null, { type: "search", placeholder: "Find a metric", "aria-label": "find a metric", input: () => this.arrange() });
    try { Object.assign(this.kept, JSON.parse(localStorage.getItem(KEPT))); } catch {}   // a page without storage forgets
  }

  keep() {
    try { localStorage.setItem(KEPT, JSON.stringify(this.kept)); } catch {}
    this.arrange();
  }

  pin({ metric }) {
    const { pinned } = this.kept;
    this.kept.pinned = pinned.includes(metric) ? pinned.filter(o => o !== metric) : [...pinned, metric];
    this.keep();
  }

  place({ metric, section }) { return metric === undefined ? section : this.kept.pinned.includes(metric) ? "Pinned" : /^([^/]*)\/|/.exec(metric)[1] || ""; }

  arrange() {
    const places = new Map([["", []], ["Pinned", []]]), words = this.search.value, wanted = [];
    for (const card of this.view.cards()) places.set(this.place(card), [...places.get(this.place(card)) || [], card]);
    let open = 0;
    for (const [name, cards] of places) {
      if (!this.held.has(name)) this.held.set(name, this.build(name));
      const { box, count, grid } = this.held.get(name), { full, only } = this.view, shown = cards.filter(card => full ? card === full : only ? [card.key, card.title].includes(only) : matches(words, card.title));
      const metrics = cards.filter(o => o.metric !== undefined).length, folded = name && !full && !only && !words && (this.kept.folded[name] ?? (name !== "Pinned" && metrics && open + metrics > OPEN));
      if (!folded) { open += metrics; wanted.push(...shown); }
      cards.forEach((card, i) => {
        show(card.box, shown.includes(card));
        // below the name of its section, which need not stand in each title
        setText(card.name, name && card.metric !== undefined && name !== "Pinned" ? card.title.slice(name.length + 1) : card.title);
        if (card.star) setAttribute(card.star, "aria-pressed", String(name === "Pinned"));
        if (grid.children[i] !== card.box) grid.insertBefore(card.box, grid.children[i] || null);
      });
      if (box.open === Boolean(folded)) box.open = !folded;
      setText(count, ` ${cards.length}`);
      show(box, shown.length);
      const next = this.box.children[[...places.keys()].indexOf(name)];
      if (next !== box) this.box.insertBefore(box, next || null);
    }
    for (const [name, { box }] of this.held) if (!places.has(name)) { box.remove(); this.held.delete(name); }
    show(this.search, this.view.charts.size > OPEN);
    this.view.want(wanted.map(o => o.metric).filter(o => o !== undefined));
  }

  build(name) {
    const count = make("span", "tnb-of"), grid = make("div", "tnb-grid"), click = event => { event.preventDefault(); this.kept.folded[name] = box.open; this.keep(); };
    const head = make("summary", "", name, { click }, count), box = make("details", "tnb-section", null, {}, head, grid);
    show(head, name);
    return { box, count, grid };
  }
}

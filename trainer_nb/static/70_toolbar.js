// What all charts share: the axis, the smoothing, the legend, the way back from a zoom.

class Toolbar {
  constructor(view) {
    this.view = view;
    this.box = make("div", "tnb-toolbar", null, { role: "group", "aria-label": "charts" });
    this.axes = make("div", "tnb-segments", null, { role: "radiogroup", "aria-label": "horizontal axis" });
    for (const [name, axis] of Object.entries(AXES)) this.addAxis(name, axis.title);
    const smooth = make("label", "tnb-smooth");
    this.slider = make("input", "tnb-slider", null, { type: "range", min: "0", max: "40", step: "1", "aria-label": "smoothing: steps in the running mean" });
    this.words = make("output", "tnb-smooth-words");
    this.slider.addEventListener("input", () => { this.own = true; this.view.smooth(this.window()); this.describe(); });
    smooth.append(make("span", "", "Smoothing"), this.slider, this.words);
    this.reset = make("button", "tnb-button tnb-quiet tnb-reset", "Whole run", { type: "button" });
    this.reset.addEventListener("click", () => this.view.zoomTo(null));
    this.legend = make("div", "tnb-legend", null, { role: "group", "aria-label": "legend: show or hide" });
    this.entries = new Map();
    this.box.append(this.axes, this.reset, smooth, this.legend);
    this.zoomed(false);
  }

  addAxis(name, title) {
    const label = make("label"), input = make("input", "", null, { type: "radio", name: `tnb-${this.view.id}-axis`, value: name });
    input.checked = name === this.view.axis;
    input.addEventListener("change", () => this.view.setAxis(name));
    label.append(input, make("span", "", title));
    this.axes.append(label);
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
    const keys = new Set(entries.map(o => o.key));
    for (const [key, { node }] of this.entries) if (!keys.has(key)) { node.remove(); this.entries.delete(key); }
    entries.forEach((entry, i) => {
      let held = this.entries.get(entry.key);
      if (!held) this.entries.set(entry.key, held = this.addEntry(entry));
      setText(held.text, entry.text);
      held.swatch.style.setProperty("--c", entry.color);
      setAttribute(held.node, "aria-pressed", String(!this.view.hidden.has(entry.key)));
      if (this.legend.children[i] !== held.node) this.legend.insertBefore(held.node, this.legend.children[i] || null);
    });
  }

  addEntry({ key, kind }) {
    const node = make("button", "tnb-entry", null, { type: "button", "data-key": key }), swatch = make("i", "tnb-swatch tnb-swatch-" + kind), text = make("span");
    node.append(swatch, text);
    node.addEventListener("click", () => this.view.toggle(key));
    return { node, swatch, text };
  }
}

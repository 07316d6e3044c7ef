// The settings that can be changed while the run goes: the learning rate, which comes first, in sight, the others on demand.

class Setting {
  constructor(view, given, cls = "") {
    Object.assign(this, { view, name: given.name, given: {} });
    this.box = make("div", "tnb-setting " + cls);
    this.key = `tnb-${view.id}-${Setting.count = (Setting.count || 0) + 1}`;
    this.label = make("label", "tnb-setting-name", given.name, { for: this.key });
    this.input = this.makeInput(given);
    this.input.id = this.key;
    this.mark = make("span", "tnb-setting-mark", "", { "aria-hidden": "true" });
    this.help = make("span", "tnb-setting-help");
    this.box.append(this.label, this.input, this.help, this.mark);
    this.update(given);
  }

  static make(view, given) { return given.kind === "bool" ? new Switch(view, given) : given.kind === "choice" ? new Choice(view, given) : new Setting(view, given); }

  makeInput(given) {
    const mode = given.kind === "int" ? "numeric" : given.kind === "float" ? "decimal" : "text";
    const input = make("input", "tnb-field", null, { type: "text", inputmode: mode, autocomplete: "off", spellcheck: "false" });
    input.addEventListener("input", () => this.touch());
    input.addEventListener("keydown", event => {
      if (event.key === "Enter") this.apply();
      if (event.key === "Escape" && this.touched) { this.touched = false; this.put(this.given.value); this.sign(""); }
    });
    return input;
  }

  touch() {
    this.touched = true;
    this.sign("↵");
  }

  // Pending "…", not applied yet "↵", done "✓", rejected "!".
  sign(mark, state = null) {
    clearTimeout(this.timer);
    setText(this.mark, mark);
    setAttribute(this.box, "data-phase", state);
    setAttribute(this.input, "aria-invalid", state === "rejected" ? "true" : null);
  }

  read() {
    const text = this.input.value.trim().replace(/^−/, "-"), { kind } = this.given;
    if (kind === "text") return text;
    if (kind === "int") return /^[-+]?\d[\d_,]*$/.test(text) ? Number(text.replace(/[_,]/g, "")) : undefined;
    return text !== "" && Number.isFinite(Number(text)) ? Number(text) : undefined;
  }

  apply(value = this.read(), name = this.given.name) {
    if (value === undefined) {
      this.sign("!", "rejected");
      this.view.say(`${this.name} takes a ${this.given.kind === "int" ? "whole number" : "number"}, not "${this.input.value}"`, "bad");
      return;
    }
    this.touched = false;
    this.view.commands.send("set", { [name]: value }, this);
  }

  phase(phase, waiting) {
    this.sign(waiting ? "…" : { done: "✓", rejected: "!" }[phase], phase);
    if (!waiting) this.timer = setTimeout(() => this.sign(this.touched ? "↵" : ""), phase === "rejected" ? 6000 : 2000);
  }

  // After a rejection the field shows the present value again.
  answered(phase) { if (phase === "rejected" && !this.touched) this.put(this.given.value); }

  put(value) { const text = value === null || value === undefined ? "" : inWords(value); if (this.input.value !== text) this.input.value = text; }

  update(given) {
    const moved = given.value !== this.given.value;
    this.given = given;
    setText(this.label, given.label || this.title || given.name);
    setText(this.help, given.help);
    if (moved && !this.touched) this.put(given.value);
  }

  stop() { clearTimeout(this.timer); }
}

// A number as a user would type it.
function inWords(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return String(value);
  const plain = String(Number(value.toPrecision(6))), size = Math.abs(value);
  return size < 1e-4 || size < 1e-3 && plain.length > 8 ? Number(value.toPrecision(4)).toExponential() : plain;
}

class Switch extends Setting {
  makeInput() {
    const input = make("input", "tnb-switch", null, { type: "checkbox" });
    input.addEventListener("change", () => this.apply());
    return input;
  }
  read() { return this.input.checked; }
  put(value) { this.input.checked = Boolean(value); }
}

class Choice extends Setting {
  makeInput() {
    const input = make("select", "tnb-field");
    input.addEventListener("change", () => this.apply());
    return input;
  }
  read() { return this.given.choices[this.input.selectedIndex]; }
  put(value) { this.input.selectedIndex = (this.given.choices || []).indexOf(value); }
  update(given) {
    if (JSON.stringify(given.choices) !== JSON.stringify(this.given.choices)) {
      this.input.replaceChildren(...(given.choices || []).map(o => make("option", "", String(o))));
      this.given = given;
      this.put(given.value);
    }
    super.update(given);
  }
}

// The learning rate: a slider over powers of ten beside the field, applied when it is let go.
class Rate extends Setting {
  constructor(view, given) {
    super(view, given, "tnb-rate");
    setText(this.label, this.name = this.title = "Learning rate");
    this.slider = make("input", "tnb-slider", null, { type: "range", step: "0.02", "aria-label": "learning rate, on a scale of powers of ten" });
    this.slider.addEventListener("pointerdown", () => { this.held = true; });
    this.slider.addEventListener("input", () => this.slide());
    this.slider.addEventListener("keydown", event => { if (event.key === "Enter") this.release(); });
    this.slider.addEventListener("change", () => this.let());
    this.slider.addEventListener("blur", () => { if (this.due) this.release(); });
    this.label.after(this.slider);
    this.put(given.value);
  }

  slide() {
    this.touch();
    this.input.value = inWords(Number((10 ** Number(this.slider.value)).toPrecision(2)));
    setAttribute(this.slider, "aria-valuetext", this.input.value);
  }

  // Let go by the pointer, it is applied at once; moved by keys, when they rest.
  let() {
    clearTimeout(this.due);
    this.due = setTimeout(() => this.release(), this.held ? 0 : 600);
    this.held = false;
  }

  release() {
    clearTimeout(this.due);
    this.due = null;
    if (this.touched) this.apply();
  }

  // The field shows as many digits as other values; sent as it is, the present value stays.
  read() { return this.touched ? super.read() : this.given.value; }

  put(value) {
    super.put(typeof value === "number" ? Number(value.toPrecision(3)) : value);
    if (!this.slider) return;
    const place = value > 0 ? Math.log10(value) : -7;
    setAttribute(this.slider, "min", Math.min(-7, Math.floor(place)));
    setAttribute(this.slider, "max", Math.max(0, Math.ceil(place)));
    this.slider.value = place;
    setAttribute(this.slider, "aria-valuetext", this.input.value);
  }

  stop() { super.stop(); clearTimeout(this.due); }
}

class Settings {
  constructor(view) {
    this.view = view;
    this.held = new Map();
    this.bar = make("div", "tnb-settings-bar");
    this.more = make("button", "tnb-button tnb-quiet", null, { type: "button", "aria-expanded": "false", "aria-controls": `tnb-${view.id}-settings` });
    this.count = make("span", "", "More settings");
    this.more.append(this.count, icon("more"));
    this.more.addEventListener("click", () => {
      show(this.panel, this.panel.hidden);
      setAttribute(this.more, "aria-expanded", String(!this.panel.hidden));
    });
    this.bar.append(this.more);
    this.panel = make("div", "tnb-settings", null, { id: `tnb-${view.id}-settings`, role: "group", "aria-label": "settings" });
    this.hint = make("p", "tnb-settings-hint", "Enter applies a value from the next step on; Escape restores the present one.");
    this.panel.append(this.hint);
    this.panel.hidden = true;
  }

  update(list) {
    const names = new Set(list.map(o => o.name));
    for (const [name, held] of this.held) if (!names.has(name)) { held.stop(); held.box.remove(); this.held.delete(name); }
    for (const given of list) {
      const held = this.held.get(given.name), first = given === list[0] && given.log;
      if (held) { held.update(given); continue; }
      const setting = first ? new Rate(this.view, given) : Setting.make(this.view, given);
      this.held.set(given.name, setting);
      if (first) this.bar.prepend(setting.box); else this.panel.insertBefore(setting.box, this.hint);
    }
    show(this.more, this.panel.children.length > 1);
  }

  stop() { for (const setting of this.held.values()) setting.stop(); }
}

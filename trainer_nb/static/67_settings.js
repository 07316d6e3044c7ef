// The settings that can be changed while the run goes: the learning rate, which comes first, in sight, the others on demand, in groups.

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
      if (event.key === "Escape" && this.touched) { this.touched = false; this.put(this.given); this.sign(""); }
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
  answered(phase) { if (phase === "rejected" && !this.touched) this.put(this.given); }

  put({ text }) { if (this.input.value !== text) this.input.value = text; }

  update(given) {
    const moved = given.value !== this.given.value;
    this.given = given;
    setText(this.help, given.help);
    setAttribute(this.box, "title", given.effect);
    if (moved && !this.touched) this.put(given);
  }

  stop() { clearTimeout(this.timer); }
}

class Switch extends Setting {
  makeInput() {
    const input = make("input", "tnb-switch", null, { type: "checkbox" });
    input.addEventListener("change", () => this.apply());
    return input;
  }
  read() { return this.input.checked; }
  put({ value }) { this.input.checked = Boolean(value); }
}

class Choice extends Setting {
  makeInput() {
    const input = make("select", "tnb-field");
    input.addEventListener("change", () => this.apply());
    return input;
  }
  read() { return this.given.choices[this.input.selectedIndex]; }
  put({ choices, value }) {
    if (this.input.length !== choices.length) this.input.replaceChildren(...choices.map(o => make("option", "", String(o))));
    this.input.selectedIndex = choices.indexOf(value);
  }
}

// The learning rate: a slider over powers of ten beside the field, applied when it is let go.
class Rate extends Setting {
  constructor(view, given) {
    super(view, given, "tnb-rate");
    setText(this.label, this.name = "Learning rate");
    this.slider = make("input", "tnb-slider", null, { type: "range", step: "0.02", "aria-label": "learning rate, on a scale of powers of ten" });
    this.slider.addEventListener("pointerdown", () => { this.held = true; });
    this.slider.addEventListener("input", () => this.slide());
    this.slider.addEventListener("change", () => this.let());
    this.label.after(this.slider);
    this.put(given);
  }

  slide() {
    this.touch();
    this.input.value = number(10 ** Number(this.slider.value), 2);
    setAttribute(this.slider, "aria-valuetext", this.input.value);
  }

  // Let go by the pointer, it is applied at once; moved by keys, when they rest.
  let() {
    clearTimeout(this.due);
    this.due = setTimeout(() => { if (this.touched) this.apply(); }, this.held ? 0 : 600);
    this.held = false;
  }

  // The field shows as many digits as other values; sent as it is, the present value stays.
  read() { return this.touched ? super.read() : this.given.value; }

  put(given) {
    super.put(given);
    if (!this.slider) return;
    const place = given.value > 0 ? Math.log10(given.value) : -7;
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
    this.more.append(make("span", "", "More settings"), icon("more"));
    this.more.addEventListener("click", () => {
      show(this.panel, this.panel.hidden);
      setAttribute(this.more, "aria-expanded", String(!this.panel.hidden));
    });
    this.bar.append(this.more);
    this.panel = make("div", "tnb-settings", null, { id: `tnb-${view.id}-settings`, role: "group", "aria-label": "settings", hidden: "" });
    this.search = make("input", "tnb-field tnb-search", null, { type: "search", placeholder: "Find a setting", "aria-label": "find a setting" });
    this.search.addEventListener("input", () => this.find());
    this.panel.append(this.search, make("p", "tnb-setting-help", "Enter applies a value from the next step on; Escape restores the present one."));
    this.groups = new Map();
  }

  group(name) {
    if (!this.groups.has(name)) {
      this.groups.set(name, make("div", "tnb-setting-group", null, { role: "group", "aria-label": name }));
      this.groups.get(name).append(make("h4", "tnb-card-title", name));
      this.panel.append(this.groups.get(name));
    }
    return this.groups.get(name);
  }

  // What the search finds in names and words of settings, and in the names of their groups.
  find() {
    for (const { box, given } of this.held.values()) show(box, !given.group || matches(this.search.value, `${given.group} ${given.name} ${given.help}`));
    for (const box of this.groups.values()) show(box, box.querySelector(".tnb-setting:not([hidden])"));
  }

  update(list) {
    const names = new Set(list.map(o => o.name));
    for (const [name, held] of this.held) if (!names.has(name)) { held.stop(); held.box.remove(); this.held.delete(name); }
    for (const given of list) {
      if (this.held.has(given.name)) { this.held.get(given.name).update(given); continue; }
      const setting = given.group ? Setting.make(this.view, given) : new Rate(this.view, given);
      this.held.set(given.name, setting);
      if (given.group) this.group(given.group).append(setting.box); else this.bar.prepend(setting.box);
    }
    this.find();
    show(this.more, this.groups.size);
  }

  stop() { for (const setting of this.held.values()) setting.stop(); }
}

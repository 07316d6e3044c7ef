// The buttons.

// A button whose icon shows the phase of its command: "…" pending (a number when there are several), ✓ done, ! rejected.
class Button {
  constructor(name, shape, press, cls = "") {
    this.name = name;
    this.shape = shape;
    this.node = make("button", "tnb-button " + cls, null, { type: "button" });
    this.slot = make("span", "tnb-slot", null, { "aria-hidden": "true" });
    this.icon = icon(shape);
    this.badge = make("span", "tnb-badge");
    this.label = make("span", "tnb-label", name);
    this.slot.append(this.icon, this.badge);
    this.node.append(this.slot, this.label);
    this.node.addEventListener("click", () => press());
  }

  rename(name, shape) {
    this.name = name;
    setText(this.label, name);
    if (shape !== this.shape) setIcon(this.icon, this.shape = shape);
  }

  phase(phase, waiting) {
    clearTimeout(this.timer);
    const under = waiting > 0;
    setAttribute(this.node, "data-phase", under && (phase === "done" || phase === "rejected") ? "received" : phase);
    setAttribute(this.node, "aria-busy", under ? "true" : null);
    setText(this.badge, under ? (waiting > 1 ? waiting : "…") : { done: "✓", rejected: "!" }[phase]);
    if (!under) this.timer = setTimeout(() => { setAttribute(this.node, "data-phase", null); setText(this.badge, ""); }, phase === "rejected" ? 6000 : 2000);
  }

  // Faint where it would have no effect now; the kernel decides, so it can still be pressed.
  fade(faint, why) {
    this.node.classList.toggle("tnb-faint", Boolean(faint));
    setAttribute(this.node, "title", faint ? why : null);
  }

  stop() { clearTimeout(this.timer); }
}

class Controls {
  constructor(view) {
    this.view = view;
    this.box = make("div", "tnb-controls", null, { role: "group", "aria-label": "controls" });
    const add = (name, shape, verb, given, cls) => new Button(name, shape, () => this.send(verb, given ? given() : {}), cls);
    this.buttons = {
      pause: new Button("Pause", "pause", () => this.send(this.running ? "pause" : "resume", {}, "pause"), "tnb-main"),
      step: add("Step", "step", "step", () => ({ n: 1 })),
      steps: new Button("steps", "steps", () => this.sendSteps()),
      stop: add("Stop", "stop", "stop"),
      evaluate: add("Evaluate", "evaluate", "evaluate"),
      checkpoint: add("Checkpoint", "checkpoint", "checkpoint"),
      snapshot: new Button("Snapshot", "snapshot", () => this.sendSnapshot()),
      rewind: new Button("Rewind", "rewind", () => this.sendRewind()),
    };
    const { pause, step, steps, stop, evaluate, checkpoint, snapshot, rewind } = this.buttons;
    this.n = this.field("10", "number of steps", () => this.sendSteps(), "numeric");
    this.back = this.field("10", "number of steps to rewind", () => this.sendRewind(), "numeric");
    this.name = this.field("", "name of the snapshot", () => this.sendSnapshot(), "text", "tnb-name");
    setAttribute(this.name, "placeholder", "name");
    setAttribute(this.back, "title", "steps");
    const joined = (...items) => this.group("tnb-joined", ...items), group = (...items) => this.group("tnb-group", ...items);
    this.box.append(group(pause, step, joined(this.n, steps), stop), group(joined(rewind, this.back)), group(evaluate, checkpoint, joined(snapshot, this.name)));
    this.steps = { name: "Steps", phase: (...o) => steps.phase(...o) };
  }

  // Elements side by side; joined, a button and the field that belongs to it are one piece.
  group(cls, ...items) {
    const box = make("div", cls);
    box.append(...items.map(o => o.node || o));
    return box;
  }

  field(value, label, enter, mode, cls = "tnb-number") {
    const input = make("input", cls, null, { type: "text", inputmode: mode, "aria-label": label, autocomplete: "off", spellcheck: "false", maxlength: "60" });
    input.value = value;
    input.addEventListener("keydown", event => { if (event.key === "Enter") enter(); });
    input.addEventListener("input", () => setAttribute(input, "aria-invalid", null));
    return input;
  }

  send(verb, given, button = verb) { this.view.commands.send(verb, given, this.buttons[button]); }

  sendSteps() {
    const n = this.read(this.n);
    if (n) this.view.commands.send("step", { n }, this.steps);
  }
  sendRewind() {
    const n = this.read(this.back);
    if (n) this.send("rewind", { n });
  }
  sendSnapshot() {
    this.send("snapshot", { name: this.name.value.trim() });
    this.name.value = "";
  }

  // The number in a field, or null with a notice.
  read(input) {
    const text = input.value.replace(/[,_\s]/g, ""), good = /^\d+$/.test(text) && Number(text) > 0 && Number(text) < 1e9;
    setAttribute(input, "aria-invalid", good ? null : "true");
    if (good) return Number(text);
    this.view.say(`A ${input.getAttribute("aria-label")} must be a whole number of at least 1, not "${input.value}"`, "bad");
    input.focus();
    return null;
  }

  update(status) {
    const state = status.state, over = state === "finished", words = "The run has finished";
    this.running = state === "training";
    this.buttons.pause.rename(this.running ? "Pause" : state === "new" ? "Start" : "Resume", this.running ? "pause" : "play");
    for (const name of ["pause", "step", "steps"]) this.buttons[name].fade(over, words);
    this.buttons.stop.fade(over || state === "stopped", over ? words : "The run has stopped");
    const wanted = /learn\.rewind\((\d+)\)/.exec(status.verdict || "");   // the number that the sentence recommends
    if (wanted && document.activeElement !== this.back) this.back.value = wanted[1];
    this.buttons.rewind.fade(!status.step, "No step has been done yet");
  }

  stop() { for (const button of Object.values(this.buttons)) button.stop(); }
}

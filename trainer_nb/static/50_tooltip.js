// What stands under the crosshair, in words; where it is pinned, with what can be done at that step.

class Tooltip {
  constructor(view) {
    this.view = view;
    this.root = view.root;
    this.title = make("div", "tnb-tooltip-title");
    this.rows = make("div", "tnb-tooltip-rows");
    this.changes = make("div", "tnb-tooltip-changes");
    this.rewind = new Button("Rewind here", "rewind", () => this.act("rewind", { to: this.step }, this.rewind), "tnb-small");
    this.branch = new Button("Branch here", "branch", () => this.act("branch", { step: this.step, changes: this.given.value }, this.branch), "tnb-small");
    const keydown = event => { if (event.key === "Enter") this.branch.node.click(); else if (event.key === "Escape") this.view.pin(null); };
    this.given = make("input", "tnb-field", null, { "aria-label": "settings of the branch", placeholder: "with learning_rate=1e-4", spellcheck: "false", keydown });
    this.acts = make("div", "tnb-tooltip-acts", null, {}, this.rewind.node, this.branch.node, this.given);
    this.box = make("div", "tnb-tooltip", null, { role: "presentation", hidden: "" }, this.title, this.rows, this.changes, this.acts);
    this.root.append(this.box);
  }

  act(verb, given, button) {
    this.view.commands.send(verb, given, button);
    this.view.pin(null);
  }

  hide() { show(this.box, false); }

  // title: text; values: rows of a card; marks; at: [left, top] of the crosshair in the root; step: where it is pinned, else null.
  show(title, values, marks, at, step) {
    this.step = step;
    this.box.classList.toggle("tnb-pinned", step !== null);
    show(this.acts, step !== null);
    show(this.rewind.node, step < this.view.status.step);
    setText(this.title, title);
    this.fill(this.rows, values, value => {
      const swatch = make("i", "tnb-swatch tnb-swatch-" + value.kind, null, { style: `--c: ${value.color}` }), words = make("span", "tnb-tooltip-label", value.label);
      return make("div", "tnb-tooltip-row" + (value.near ? " tnb-near" : ""), null, {}, swatch, words, make("b", "", value.text), make("span", "tnb-tooltip-each", value.each));
    });
    this.fill(this.changes, marks.map(o => [o, step !== null]), ([mark, pinned]) => {
      const row = make("div", "", `⚑ ${mark.word || mark.kind}${mark.gone ? " (discarded)" : ""} `), [name, verb, given] = mark.action || [];
      if (pinned && name) { const button = new Button(name, "play", () => this.act(verb, given, button), "tnb-small"); row.append(button.node); }
      return row;
    });
    show(this.box, true);
    const width = this.root.clientWidth, own = this.box.offsetWidth, right = at[0] + 14 + own < width;
    this.box.style.left = Math.max(4, right ? at[0] + 14 : at[0] - 14 - own) + "px";
    this.box.style.top = Math.max(4, Math.min(at[1], this.root.clientHeight - this.box.offsetHeight - 4)) + "px";
  }

  fill(box, items, row) {
    const key = JSON.stringify(items);
    if (box.key === key) return;
    box.key = key;
    box.replaceChildren(...items.map(row));
  }
}

// What stands under the crosshair, in words.

class Tooltip {
  constructor(root) {
    this.root = root;
    this.box = make("div", "tnb-tooltip", null, { role: "presentation" });
    this.box.hidden = true;
    this.title = make("div", "tnb-tooltip-title");
    this.rows = make("div", "tnb-tooltip-rows");
    this.changes = make("div", "tnb-tooltip-changes");
    this.box.append(this.title, this.rows, this.changes);
    root.append(this.box);
  }

  hide() { show(this.box, false); }

  // title: text; values: rows of a card; changes: texts; at: [left, top] of the crosshair in the root.
  show(title, values, changes, at) {
    setText(this.title, title);
    this.fill(this.rows, values, value => {
      const row = make("div", "tnb-tooltip-row" + (value.near ? " tnb-near" : "")), swatch = make("i", "tnb-swatch tnb-swatch-" + value.kind);
      swatch.style.setProperty("--c", value.color);
      row.append(swatch, make("span", "tnb-tooltip-label", value.label), make("b", "", value.text), make("span", "tnb-tooltip-each", value.each));
      return row;
    });
    this.fill(this.changes, changes, change => make("div", "", change));
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

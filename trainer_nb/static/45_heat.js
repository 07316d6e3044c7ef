// A heat map: layers by steps.

class Heat extends Card {
  constructor(view, key, title) {
    super(view, title, "tnb-wide");
    Object.assign(this, { key, section: "Layers", fixed: true });
    this.values = new Float32Array(0);
    this.given = { rows: [], labels: [], columns: 0, x: [] };
    addTools(this.head, this, title);
  }

  take(layer, buffers) {
    if (layer.buffer !== undefined && layer.buffer !== null) this.values = floats(buffers[layer.buffer]);
    const names = (layer.labels || layer.rows || []).map(String), span = layer.span || null;
    this.given = { rows: (layer.rows || []).map(String), columns: layer.columns || 0, x: layer.x || [], log: Boolean(layer.log) };
    this.names = names;
    setText(this.valueNote, layer.label || "");
    this.plot.style.height = Math.min(460, Math.max(90, names.length * 15 + 42)) + "px";
    this.extent = new Extent(this.given.log, span || this.values);   // a span that is given: of shares, a small one looks small
    this.invalidate();
  }

  get(row, column) { return this.values[row * this.given.columns + column]; }

  // Where its columns meet, on the axis of the page.
  places() { return this.given.x.map(o => this.view.main().convert(o, 0, AXES[this.view.axis].column)); }

  draw(pen, width, height) {
    const { rows, columns } = this.given, range = this.view.range();
    if (!rows.length || !columns || this.extent.low > this.extent.high || !range) { this.say("Nothing measured yet"); return; }
    this.say("");
    const x = this.places();
    this.heat = { x, names: rows, rows: rows.length, edges: columnEdges(x), value: (row, column) => this.get(row, column), extent: this.extent };
    this.unit = width > 560 ? AXES[this.view.axis].unit : "";
    this.drawOn(pen, width, height, range, { above: null, below: null }, { right: 58 });
    setAttribute(this.plot, "aria-label", `${this.title}: ${rows.length} rows by ${columns} columns`);
  }

  valuesAt(x) {
    const { top, height } = this.area, { rows, log } = this.given, row = Math.floor((this.pointed - top) / height * rows.length), column = this.heat ? this.columnOf(x) : -1;
    if (row < 0 || row >= rows.length || column < 0) return [];
    return [{ label: rows[row], text: signal(this.get(row, column), log), each: "", color: "transparent", kind: "none" }];
  }
}

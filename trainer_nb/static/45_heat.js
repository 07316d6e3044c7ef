// A heat map: layers by steps.

class Heat extends Card {
  constructor(view, key, title) {
    super(view, title, "tnb-wide");
    Object.assign(this, { key, section: "Layers" });
    this.values = new Float32Array(0);
    this.given = { rows: [], labels: [], columns: 0, x: [] };
    this.scaleBox = make("span", "tnb-scale");
    this.low = make("span", "tnb-scale-end");
    this.ramp = make("span", "tnb-ramp", null, { "aria-hidden": "true" });
    this.high = make("span", "tnb-scale-end");
    this.label = make("span", "tnb-scale-label");
    this.ramp.style.background = `linear-gradient(to right, ${VIRIDIS.map(o => `rgb(${o})`).join(", ")})`;
    this.scaleBox.append(this.label, this.low, this.ramp, this.high);
    this.head.append(this.scaleBox);
    this.image = document.createElement("canvas");
  }

  take(layer, buffers) {
    if (layer.buffer !== undefined && layer.buffer !== null) this.values = floats(buffers[layer.buffer]);
    this.given = { rows: (layer.rows || []).map(String), labels: (layer.labels || layer.rows || []).map(String), columns: layer.columns || 0, x: layer.x || [], log: Boolean(layer.log), span: layer.span || null };
    setText(this.label, layer.label || "");
    this.plot.style.height = Math.min(460, Math.max(90, this.given.rows.length * 15 + 42)) + "px";
    this.paint();
    this.invalidate();
  }

  get(row, column) { return this.values[row * this.given.columns + column]; }

  // One pixel for each value; stretched when drawn.
  paint() {
    const { rows, columns, log, span } = this.given, extent = new Extent(log, span || this.values);   // a span that is given: of shares, a small one looks small
    this.extent = extent;
    setText(this.low, extent.low > extent.high ? "" : number(extent.low, 2));
    setText(this.high, extent.low > extent.high ? "" : number(extent.high, 2));
    if (!rows.length || !columns || extent.low > extent.high) { this.image.width = 0; return; }
    this.image.width = columns;
    this.image.height = rows.length;
    const pen = this.image.getContext("2d"), data = pen.createImageData(columns, rows.length);
    for (let i = 0; i < rows.length * columns; i++) {
      const value = this.values[i];
      if (!Number.isFinite(value) || log && value <= 0) continue;
      data.data.set(viridis((extent.to(value) - extent.to(extent.low)) / extent.size()), 4 * i);
      data.data[4 * i + 3] = 255;
    }
    pen.putImageData(data, 0, 0);
  }

  draw(pen, width, height) {
    const { view, given } = this, range = view.range();
    if (!this.image.width || !range) { this.x = null; this.say("Nothing measured yet"); return; }
    this.say("");
    pen.font = FONT;
    const left = Math.ceil(Math.max(32, ...given.labels.map(o => pen.measureText(o).width)) + 10), top = 14, bottom = 24;
    this.area = { left, top, width: width - left - 6, height: height - top - bottom };
    this.x = new Scale(range[0], range[1], left, width - 6);
    this.edges = columnEdges(given.x.map(o => view.main().convert(o, 0, AXES[view.axis].column)));
    this.stretch(pen);
    this.names(pen, given.labels);
    drawX(pen, this);
    drawMarks(pen, this);
    setAttribute(this.plot, "aria-label", `${this.title}: ${given.rows.length} rows by ${given.columns} columns`);
  }

  stretch(pen) {
    const { left, top, width, height } = this.area, { columns, rows } = this.given;
    pen.save();
    pen.beginPath();
    pen.rect(left, top, width, height);
    pen.clip();
    pen.imageSmoothingEnabled = false;
    for (let i = 0; i < columns; i++) {
      const a = Math.round(this.x.at(this.edges[i])), b = Math.round(this.x.at(this.edges[i + 1]));
      if (b < left || a > left + width) continue;
      pen.drawImage(this.image, i, 0, 1, rows.length, a, top, Math.max(1, b - a), height);
      this.points++;
    }
    pen.restore();
  }

  names(pen, names) {
    const { left, top, height } = this.area, each = height / names.length, every = Math.ceil(12 / each);
    pen.fillStyle = this.view.theme.muted;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    names.forEach((name, i) => { if (i % every === 0) pen.fillText(name, left - 7, top + (i + 0.5) * each); });
  }

  valuesAt(x) {
    if (!this.edges) return [];
    const { top, height } = this.area, { rows, columns } = this.given, row = Math.floor((this.pointed - top) / height * rows.length);
    const column = this.edges.findIndex((o, i) => x >= o && x < this.edges[i + 1]);
    if (row < 0 || row >= rows.length || column < 0 || column >= columns) return [];
    return [{ label: rows[row], text: signal(this.get(row, column), this.given.log), each: "", color: "transparent", kind: "none" }];
  }
}

// A card with a chart on a canvas: its size and sharpness, whether it is in sight, and what the pointer and the keys do in it.

class Card extends Plot {
  constructor(view, title, cls = "") {
    super();
    Object.assign(this, { view, title, section: "", dirty: true, visible: false, size: [0, 0], draws: 0, pointed: 0 });
    this.name = make("h4", "tnb-card-title", title, { title });
    this.value = make("span", "tnb-card-value");
    this.valueNote = make("span", "tnb-card-value-note");
    this.head = make("div", "tnb-card-head", null, {}, this.name, this.value, this.valueNote);
    this.canvas = make("canvas");
    this.over = make("canvas", "tnb-over");
    this.empty = make("div", "tnb-empty");
    const keys = "ArrowLeft ArrowRight ArrowUp ArrowDown + - PageUp PageDown Enter Escape";
    this.plot = make("div", "tnb-plot", null, { tabindex: "0", role: "img", "aria-label": title, "aria-keyshortcuts": keys, blur: () => this.leave() }, this.canvas, this.over, this.empty);
    this.box = make("div", "tnb-card " + cls, null, { role: "group", "aria-label": title }, this.head, this.plot);
    this.resize = new ResizeObserver(() => this.fit());
    this.resize.observe(this.plot);
    this.sight = new IntersectionObserver(seen => {
      this.visible = seen[seen.length - 1].isIntersecting;
      if (this.visible && this.dirty) this.view.wake();
    }, { rootMargin: "80px" });
    this.sight.observe(this.plot);
    this.gestures = new Gestures(this.plot, this);
  }

  get colors() { return this.view.theme; }
  get logX() { return this.view.logX; }
  get zoomedX() { return this.against ? this.zoomX : this.view.zoom; }

  fit() {
    const { clientWidth: width, clientHeight: height } = this.plot, ratio = window.devicePixelRatio || 1;
    if (width === this.size[0] && height === this.size[1] && ratio === this.ratio) return;
    Object.assign(this, { size: [width, height], ratio, stale: true });   // the canvas is sized when it is drawn: sizing clears it
    this.invalidate();
  }

  invalidate() { this.dirty = true; this.view.wake(); }

  // Draw, if that is due and the card is in sight.
  refresh() {
    if (!this.dirty || !this.visible || this.size[0] < 20) return;
    this.fit();
    if (this.stale) for (const canvas of [this.canvas, this.over]) [canvas.width, canvas.height] = this.size.map(o => Math.round(o * this.ratio));
    Object.assign(this, { stale: false, dirty: false, draws: this.draws + 1, points: 0 });
    this.draw(this.cleared(this.canvas), ...this.size);
    this.point();
  }

  cleared(canvas) {
    const pen = canvas.getContext("2d");
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, ...this.size);
    return pen;
  }

  // Words in the place of a chart.
  say(text) {
    if (text) this.x = null;
    setText(this.empty, text || "");
    show(this.empty, Boolean(text));
  }

  ticksX(count) { return ticks(this.x, count, this.against ? "" : this.view.axis); }

  // Acts by hand: thin lines with a small flag on top. Checkpoints, that come by themselves, are dots.
  marksBehind(pen) {
    const { view, area: { left, top, width, height } } = this;
    if (view.hidden.has("kind:marks") || this.against) return;
    for (const mark of view.marks) {
      const at = Math.round(this.x.at(view.placeOf(mark))) + 0.5;
      if (!(at >= left - 1 && at <= left + width + 1)) continue;
      const broken = ["exception", "nan", "finding"].includes(mark.kind);
      pen.globalAlpha = mark.gone ? 0.2 : broken ? 0.8 : 0.4;
      pen.strokeStyle = pen.fillStyle = broken ? view.theme.bad : view.theme.muted;
      pen.lineWidth = 1;
      this.points++;
      pen.beginPath();
      if (mark.kind === "checkpoint") { pen.arc(at, top - 6, 1.8, 0, 7); pen.fill(); continue; }
      segment(pen, at, top - 6, at, top + height);
      pen.stroke();
      pen.globalAlpha = mark.gone ? 0.3 : 0.9;
      pen.beginPath();
      segment(pen, at - 0.5, top - 9, at + 7, top - 6);
      pen.lineTo(at - 0.5, top - 3);
      pen.fill();
    }
    pen.globalAlpha = 1;
  }

  // ---- the pointer and the keys: a position on the common axis is sent to the view, which sends it to all cards
  get at() { return this.view.hovered && this.x ? this.placeAt(this.view.hovered.x) : null; }
  placeAt(x) { return this.x.at(x); }

  pointAt(place, down) {
    const { left, width } = this.area;
    this.pointed = down;
    if (place < left - 8 || place > left + width + 8) { if (!this.gestures.from) this.leave(); return; }
    this.view.hover({ card: this, x: this.x.value(Math.min(left + width, Math.max(left, place))) });
  }

  leave() { this.view.hover(null); }
  click() { this.view.pin(this.view.pinned ? null : this.view.hovered); }

  // Back, one thing after the other; the view itself leaves the full size.
  escape() {
    if (!this.view.pinned && this.view.full) return false;
    if (this.view.pinned) this.view.pin(null); else { this.leave(); this.zoomTo(null, null); }
    return true;
  }

  zoomTo(x, y) {
    if (y !== undefined) this.zoomY = y;
    if (x !== undefined && this.against) this.zoomX = x;
    this.view.zoomTo(x === undefined || this.against ? this.view.zoom : x);
  }

  enlarge() { this.view.enlarge(this); }

  // The layer above the curves: the crosshair, the values under it, and the part that is being chosen.
  point() {
    const marked = this.x && (this.at !== null || this.gestures.from);
    if (this.stale || !marked && !this.marked) return;
    this.marked = marked;
    const pen = this.cleared(this.over);
    if (marked) this.overlay(pen, this.at, this.at === null ? [] : this.valuesAt(this.view.hovered.x));
  }

  stop() {
    this.resize.disconnect();
    this.sight.disconnect();
    this.box.remove();
  }
}

const AXES = {
  steps: { column: 0, key: "step", title: "Steps", unit: "steps", say: o => "step " + whole(Math.round(o)) },
  epochs: { column: 1, key: "epoch", title: "Epochs", unit: "epochs", say: o => "epoch " + o.toFixed(2) },
  time: { column: 2, key: "minutes", title: "Time", unit: "", say: o => duration(o) },
};

const MINUTES = [1 / 60, 2 / 60, 5 / 60, 10 / 60, 15 / 60, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440];

function ticks(scale, count, axis = "") {
  const { low, high } = scale;
  if (!(high > low)) return [];
  if (scale.log) return logTicks(low, high, count).map(o => axis === "time" ? { at: o.at, text: duration(o.at) } : o);
  let step = roundStep(high - low, count);
  if (axis === "steps") step = Math.max(1, step);
  if (axis === "time" && high - low > 1 / 60) step = MINUTES.find(o => o >= (high - low) / count) || roundStep((high - low) / 1440, count) * 1440;
  return axis === "time" ? multiples(low, high, step).map(at => ({ at, text: duration(at) })) : linearTicks(low, high, count, step);
}

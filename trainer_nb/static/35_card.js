// A card with a canvas: its size and sharpness, whether it is in sight, and what the pointer and the keys do in it.

class Card {
  constructor(view, title, cls = "") {
    Object.assign(this, { view, title, section: "", dirty: true, visible: false, size: [0, 0], draws: 0, points: 0, pointed: 0, from: null });
    this.box = make("div", "tnb-card " + cls, null, { role: "group", "aria-label": title });
    this.head = make("div", "tnb-card-head");
    this.name = make("h4", "tnb-card-title", title, { title });
    this.head.append(this.name);
    this.value = make("span", "tnb-card-value");
    this.valueNote = make("span", "tnb-card-value-note");
    this.head.append(this.value, this.valueNote);
    this.plot = make("div", "tnb-plot", null, { tabindex: "0", role: "img", "aria-label": title, "aria-keyshortcuts": "ArrowLeft ArrowRight + - Enter Escape" });
    this.canvas = make("canvas");
    this.over = make("canvas", "tnb-over");
    this.empty = make("div", "tnb-empty");
    this.plot.append(this.canvas, this.over, this.empty);
    this.box.append(this.head, this.plot);
    this.area = { left: 0, top: 0, width: 0, height: 0 };
    this.resize = new ResizeObserver(() => this.fit());
    this.resize.observe(this.plot);
    this.sight = new IntersectionObserver(seen => {
      this.visible = seen[seen.length - 1].isIntersecting;
      if (this.visible && this.dirty) this.view.wake();
    }, { rootMargin: "80px" });
    this.sight.observe(this.plot);
    this.listen();
  }

  fit() {
    const ratio = window.devicePixelRatio || 1, width = this.plot.clientWidth, height = this.plot.clientHeight;
    if (width === this.size[0] && height === this.size[1] && ratio === this.ratio) return;
    this.size = [width, height];
    this.ratio = ratio;
    this.stale = true;   // the canvas is sized when it is drawn: sizing clears it
    this.invalidate();
  }

  invalidate() { this.dirty = true; this.view.wake(); }

  // Draw, if that is due and the card is in sight.
  refresh() {
    if (!this.dirty || !this.visible || this.size[0] < 20) return;
    if (this.ratio !== (window.devicePixelRatio || 1)) this.fit();
    const [width, height] = this.size, pen = this.canvas.getContext("2d");
    if (this.stale) {
      for (const canvas of [this.canvas, this.over]) { canvas.width = Math.round(width * this.ratio); canvas.height = Math.round(height * this.ratio); }
      this.stale = false;
    }
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    this.dirty = false;
    this.draws++;
    this.points = 0;
    this.draw(pen, width, height);
    this.point();
  }

  say(text) { setText(this.empty, text || ""); show(this.empty, Boolean(text)); }

  // ---- the pointer and the keys: a position on the common axis is sent to the view, which sends it to all cards
  listen() {
    const { plot } = this, place = event => event.clientX - plot.getBoundingClientRect().left;
    plot.addEventListener("pointerdown", event => {
      if (event.button || !this.x) return;
      this.from = place(event);
      plot.setPointerCapture(event.pointerId);
    });
    plot.addEventListener("pointermove", event => {
      this.to = place(event);
      this.pointed = event.clientY - plot.getBoundingClientRect().top;
      this.hover(this.to);
    });
    plot.addEventListener("pointerup", event => {
      const from = this.from;
      this.from = null;
      if (from !== null && Math.abs(place(event) - from) > 5) this.zoom(from, place(event));
      else if (from !== null) this.view.pin(this.view.pinned ? null : this.view.hovered);
    });
    plot.addEventListener("pointercancel", () => { this.from = null; this.view.hover(null); });
    plot.addEventListener("pointerleave", () => { if (this.from === null) this.view.hover(null); });
    plot.addEventListener("dblclick", () => this.view.zoomTo(null));
    plot.addEventListener("blur", () => this.view.hover(null));
    plot.addEventListener("keydown", event => this.press(event));
  }

  hover(place) {
    if (!this.x) return;
    const { left, width } = this.area;
    if (place < left - 8 || place > left + width + 8) { if (this.from === null) this.view.hover(null); return; }
    this.view.hover({ card: this, x: this.x.value(Math.min(left + width, Math.max(left, place))) });
  }

  zoom(from, to) {
    const { left, width } = this.area, inside = o => Math.min(left + width, Math.max(left, o));
    const [a, b] = [from, to].map(o => this.x.value(inside(o))).sort((m, n) => m - n);
    if (b > a) this.view.zoomTo([a, b]);
  }

  press(event) {
    if (!this.x || event.ctrlKey || event.metaKey || event.altKey) return;
    const { low, high } = this.x, span = high - low, at = this.view.hovered ? this.view.hovered.x : high;
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (move) this.view.hover({ card: this, x: Math.min(high, Math.max(low, at + move * span / (event.shiftKey ? 10 : 100))) });
    else if (event.key === "+" || event.key === "=") this.view.zoomTo([Math.max(low, at - span / 4), Math.min(high, at + span / 4)]);
    else if (event.key === "-") this.view.zoomTo([at - span, at + span]);
    else if (event.key === "Enter") this.view.pin({ card: this, x: at });
    else if (event.key === "Escape" && this.view.pinned) this.view.pin(null);
    else if (event.key === "Escape") { this.view.hover(null); this.view.zoomTo(null); }
    else return;
    event.preventDefault();
  }

  // The layer above the curves: the crosshair, the values under it, and the part that is being chosen.
  point() {
    const pen = this.over.getContext("2d"), { hovered, theme } = this.view, { left, top, width, height } = this.area;
    if (this.stale || !this.x) return;
    const marked = hovered && hovered.x >= this.x.low && hovered.x <= this.x.high || this.from !== null;
    if (!marked && !this.marked) return;
    this.marked = marked;
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, ...this.size);
    if (!marked) return;
    if (this.from !== null && Math.abs(this.to - this.from) > 5) {
      const [a, b] = [this.from, this.to].map(o => Math.min(left + width, Math.max(left, o))).sort((m, n) => m - n);
      pen.globalAlpha = 0.15;
      pen.fillStyle = theme.hue(0);
      pen.fillRect(a, top, b - a, height);
      pen.globalAlpha = 1;
    }
    if (!hovered) return;
    const place = Math.round(this.x.at(hovered.x)) + 0.5;
    pen.strokeStyle = theme.muted;
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(place, top);
    pen.lineTo(place, top + height);
    pen.stroke();
    for (const dot of this.valuesAt(hovered.x)) {
      if (!(dot.y >= top - 1 && dot.y <= top + height + 1)) continue;
      pen.beginPath();
      pen.arc(dot.x, dot.y, 3.5, 0, 7);
      pen.fillStyle = dot.color;
      pen.fill();
      pen.strokeStyle = theme.surface;
      pen.lineWidth = 1.5;
      pen.stroke();
    }
  }

  stop() {
    this.resize.disconnect();
    this.sight.disconnect();
    this.box.remove();
  }
}

// ---- what the axes of every card have in common
const FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', sans-serif";

function drawX(pen, card, marks) {
  const { theme, axis } = card.view, { left, top, width, height } = card.area, bottom = top + height;
  pen.font = FONT;
  pen.textBaseline = "top";
  pen.fillStyle = theme.muted;
  pen.strokeStyle = theme.line;
  pen.lineWidth = 1;
  pen.beginPath();
  pen.moveTo(left, bottom + 0.5);
  pen.lineTo(left + width, bottom + 0.5);
  const unit = width > 520 ? AXES[axis].unit : "", reserved = unit ? pen.measureText(unit).width + 10 : 0;
  let free = -Infinity;
  for (const tick of ticks(card.x, Math.max(2, Math.floor(width / 62)), axis)) {
    const at = Math.round(card.x.at(tick.at)) + 0.5, half = pen.measureText(tick.text).width / 2, middle = Math.min(at, left + width - half);
    pen.moveTo(at, bottom);
    pen.lineTo(at, bottom + 4);
    if (middle - half < free || middle + half > left + width - reserved + 2) continue;
    pen.textAlign = "center";
    pen.fillText(tick.text, middle, bottom + 6);
    free = middle + half + 8;
  }
  pen.stroke();
  pen.textAlign = "right";
  if (unit) pen.fillText(unit, left + width, bottom + 6);
}

// Acts by hand: thin lines with a small flag on top. Checkpoints, that come by themselves, are dots.
function drawMarks(pen, card) {
  const { view, area: { left, top, width, height } } = card;
  if (view.hidden.has("kind:marks")) return;
  for (const mark of view.marks) {
    const at = Math.round(card.x.at(view.placeOf(mark))) + 0.5;
    if (!(at >= left - 1 && at <= left + width + 1)) continue;
    const broken = ["exception", "nan", "finding"].includes(mark.kind);
    pen.globalAlpha = mark.gone ? 0.2 : broken ? 0.8 : 0.4;
    pen.strokeStyle = pen.fillStyle = broken ? view.theme.bad : view.theme.muted;
    pen.lineWidth = 1;
    card.points++;
    pen.beginPath();
    if (mark.kind === "checkpoint") { pen.arc(at, top - 6, 1.8, 0, 7); pen.fill(); continue; }
    pen.moveTo(at, top - 6);
    pen.lineTo(at, top + height);
    pen.stroke();
    pen.globalAlpha = mark.gone ? 0.3 : 0.9;
    pen.beginPath();
    pen.moveTo(at - 0.5, top - 9);
    pen.lineTo(at + 7, top - 6);
    pen.lineTo(at - 0.5, top - 3);
    pen.fill();
  }
  pen.globalAlpha = 1;
}

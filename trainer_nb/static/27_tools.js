// What charts of the page and saved pictures share: what the pointer and the keys do between the axes, and the tools beside a title.

// An element; of its attributes, a function is called at the event of that name.
function make(tag, cls = "", text = null, attributes = {}, ...children) {
  const node = document.createElement(tag);
  if (cls) node.className = cls;
  if (text !== null) node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) if (typeof value === "function") node.addEventListener(name, value); else node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const ALONG = 12;   // pixels by which a drag along one axis may leave it

// A chart has area, its scales x and y (fixed: y is not zoomed), at (pixels of the crosshair), and the methods called here. In zoomTo, null
// stands for everything, undefined for what is in sight.
class Gestures {
  constructor(node, chart) {
    Object.assign(this, { node, chart, from: null, to: [0, 0] });
    const on = (name, act) => node.addEventListener(name, act), end = () => { this.from = null; };
    on("pointerdown", event => {
      if (event.button || !chart.x) return;
      this.from = this.to = this.place(event);
      this.pans = event.shiftKey;
      node.setPointerCapture(event.pointerId);
    });
    on("pointermove", event => {
      const last = this.to;
      this.to = this.place(event);
      if (this.from && this.pans) chart.pan(this.to[0] - last[0], this.to[1] - last[1]);
      else if (chart.x) chart.pointAt(...this.to);
    });
    on("pointerup", event => {
      const begun = this.from && !this.pans, box = this.box();
      end();
      if (box) this.zoom(box.x, box.y);
      else if (begun) chart.click?.();
    });
    on("pointercancel", () => { end(); chart.leave(); });
    on("pointerleave", () => { if (!this.from) chart.leave(); });
    on("dblclick", () => chart.zoomTo(null, null));
    on("keydown", event => this.press(event));
  }

  get y() { return this.chart.fixed ? null : this.chart.y; }

  place(event) {
    const box = this.node.getBoundingClientRect(), share = this.node.clientWidth / box.width || 1;
    return [(event.clientX - box.left) * share, (event.clientY - box.top) * share];
  }

  // The part that is being chosen, in pixels: along one axis, or of both.
  box() {
    if (!this.from || this.pans) return null;
    const { left, top, width, height } = this.chart.area, [across, down] = [0, 1].map(i => i && !this.y ? 0 : Math.abs(this.to[i] - this.from[i]));
    const span = (i, low, size) => [this.from[i], this.to[i]].map(o => Math.min(low + size, Math.max(low, o))).sort((a, b) => a - b);
    if (Math.max(across, down) < 6) return null;
    return { x: across > down || across > ALONG ? span(0, left, width) : undefined, y: down > across || down > ALONG ? span(1, top, height) : undefined };
  }

  zoom(x, y) { this.chart.zoomTo(x && this.chart.x.part(...x), y && this.chart.y.part(...y)); }

  press(event) {
    const { chart, y } = this, { area: { left, top, width, height }, x } = chart, at = chart.at ?? left + width, middle = top + height / 2;
    if (!x || event.ctrlKey || event.metaKey || event.altKey || event.target !== this.node) return;
    const to = place => {
      const inside = Math.min(left + width, Math.max(left, place));
      if (inside !== place) chart.pan(inside - place, 0);
      chart.pointAt(inside, middle);
    };
    const step = width / (event.shiftKey ? 10 : 100), around = (center, half) => [center - half, center + half], act = {
      ArrowLeft: () => to(at - step), ArrowRight: () => to(at + step), ArrowUp: () => chart.pan(0, height / 10), ArrowDown: () => chart.pan(0, -height / 10),
      "+": () => this.zoom(around(at, width / 4)), "-": () => this.zoom(around(at, width)), PageUp: () => y && this.zoom(undefined, around(middle, height / 4)),
      PageDown: () => y && this.zoom(undefined, around(middle, height)), Enter: () => { to(at); chart.click?.(); }, Escape: () => chart.escape(),
    }[event.key === "=" ? "+" : event.key];
    if (act && act() !== false) event.preventDefault();
  }
}

// Beside a title: whether the axis of the values is logarithmic, the size of the chart, and its files.
function addTools(head, chart, title) {
  const box = head.appendChild(make("span", "tnb-tools"));
  const button = (text, label, click) => box.appendChild(make("button", "tnb-tool", text, { type: "button", title: label, "aria-label": `${title}: ${label}`, click }));
  if (chart.toggleLogX && !chart.fixed) button("log x", "logarithmic horizontal axis", () => chart.toggleLogX());
  if (!chart.fixed) chart.toggle = button("log", "logarithmic axis", () => chart.toggleLog());
  chart.wide = button("⤢", "full size, or back", () => chart.enlarge());
  const change = ({ target }) => { chart.save(target.value); target.value = "save"; };
  box.append(make("select", "tnb-tool", null, { title: "save this chart", "aria-label": `save ${title}`, change }, ...["save", "PNG", "SVG", "CSV"].map(o => make("option", "", o))));
  return box;
}

function download(title, kind, href) { make("a", "", null, { href, download: `${title.replace(/\W+/g, "_")}.${kind.toLowerCase()}` }).click(); }

const csvOf = rows => rows.map(row => row.map(o => typeof o === "string" ? `"${o.replaceAll('"', '""')}"` : o) + "\n").join("");
// A pen with the methods of a canvas that charts use. It writes a file of SVG.

const escaped = text => String(text).replace(/[&<>"]/g, o => `&#${o.charCodeAt()};`);

class SvgPen {
  constructor() {
    Object.assign(this, { parts: [], d: "", dash: [], open: [], extra: {}, globalAlpha: 1, lineWidth: 1 });
    this.probe = make("canvas").getContext("2d", { willReadFrequently: true });
  }

  add(tag, attributes, text = "") {
    this.parts.push(`<${tag}${Object.entries({ ...attributes, ...this.extra }).map(([name, value]) => ` ${name}="${escaped(value)}"`).join("")}>${escaped(text)}</${tag}>`);
  }

  // A colour and its opacity apart: not every program reads what a browser computes.
  paint(kind, value) {
    this.probe.clearRect(0, 0, 1, 1);
    this.probe.fillStyle = value;
    this.probe.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = this.probe.getImageData(0, 0, 1, 1).data;
    return { fill: "none", [kind]: `rgb(${r}, ${g}, ${b})`, [kind + "-opacity"]: (a / 255 * this.globalAlpha).toFixed(3) };
  }

  to(sign, x, y) { if (Number.isFinite(x + y)) this.d += `${sign}${x.toFixed(2)} ${y.toFixed(2)}`; }
  beginPath() { this.d = ""; }
  moveTo(x, y) { this.to("M", x, y); }
  lineTo(x, y) { this.to(this.d ? "L" : "M", x, y); }
  closePath() { this.d += "Z"; }
  rect(x, y, width, height) { this.d += `M${x} ${y}h${width}v${height}h${-width}Z`; }
  arc(x, y, r) { if (Number.isFinite(x + y)) this.d += `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`; }
  setLineDash(dash) { this.dash = dash; }
  fill() { if (this.d) this.add("path", { d: this.d, ...this.paint("fill", this.fillStyle) }); }
  stroke() {
    if (!this.d) return;
    const line = { "stroke-width": this.lineWidth, "stroke-linejoin": "round", "stroke-linecap": this.lineCap ?? "butt", "stroke-dasharray": this.dash.join(" ") || "none" };
    this.add("path", { d: this.d, ...this.paint("stroke", this.strokeStyle), ...line });
  }
  fillRect(x, y, width, height) { this.add("rect", { x, y, width, height, ...this.paint("fill", this.fillStyle) }); }
  drawImage(image, x, y, width, height) {
    this.add("image", { href: image.toDataURL(), x, y, width, height, preserveAspectRatio: "none", style: "image-rendering: pixelated" });
  }

  measureText(text) {
    this.probe.font = this.font;
    return this.probe.measureText(text);
  }
  fillText(text, x, y) { this.write("fill", this.fillStyle, text, x, y); }
  strokeText(text, x, y) { this.write("stroke", this.strokeStyle, text, x, y); }
  write(kind, color, text, x, y) {
    const [, weight, size] = /(\d00)? ?(\d+)px/.exec(this.font), lower = { middle: 0.36, top: 0.85 }[this.textBaseline] ?? 0;
    const anchor = { right: "end", center: "middle" }[this.textAlign] ?? "start", look = { "font-size": size, "font-weight": weight ?? 400, "stroke-width": this.lineWidth };
    this.add("text", { x, y: y + lower * size, "text-anchor": anchor, ...look, ...this.paint(kind, color) }, text);
  }

  // What is written until restore() is inside this.
  group(before, attribute, value) {
    this.open[this.open.length - 1] += "</g>";
    this.parts.push(`${before}<g ${attribute}="${value}">`);
  }
  save() { this.open.push(""); }
  restore() { this.parts.push(this.open.pop()); }
  translate(x, y) { this.group("", "transform", `translate(${x} ${y})`); }
  clip() {
    const id = "tnb-" + (SvgPen.clips = (SvgPen.clips ?? 0) + 1);   // of several pictures on a page
    this.group(`<clipPath id="${id}"><path d="${this.d}"/></clipPath>`, "clip-path", `url(#${id})`);
  }
  file(width, height) {
    const size = `width="${width}" height="${height}" viewBox="0 0 ${width} ${height}"`;
    return `<svg xmlns="http://www.w3.org/2000/svg" ${size} font-family="system-ui, sans-serif">${this.parts.join("")}</svg>`;
  }
}

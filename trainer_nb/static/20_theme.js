// The colours of curves and of heat maps. Part of the script of saved pictures as well.

// Blue for the run, orange for its evaluations, the others for runs beside it: the hues of the static pictures, the first six apart for the
// colour-blind too. With those for charts of many runs, there are twenty beside the run and its evaluations.
const MANY = [
  "#14b9aa", "#23aa14", "#aa1414", "#325f32", "#c88cd7", "#d714b9", "#6e506e", "#5050b9",
  "#e68c9b", "#50b96e", "#237d8c", "#8c328c", "#e614f5", "#f51414", "#e66e50", "#f56ec8",
];
const HUES = {
  light: ["#2f7fc1", "#e07b00", "#8f3ff5", "#b8256f", "#8a5a33", "#c9a66b"].concat(MANY),
  dark: ["#5aa9e6", "#f0993a", "#a35cff", "#e0317a", "#a8703f", "#e6efb0"].concat(MANY),
};
const VIRIDIS = [[68, 1, 84], [71, 45, 123], [59, 82, 139], [44, 114, 142], [33, 144, 140], [39, 173, 129], [92, 200, 99], [170, 220, 50], [253, 231, 37]];

// Patterns of the lines of runs, for each repetition of the colours; and such a line in a table or legend, as a background.
const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3]];
const dashOf = color => DASHES[Math.floor((color ?? 0) / HUES.light.length) % DASHES.length];
function striped(color, dash, at = 0) {
  return dash.length ? `repeating-linear-gradient(90deg, ${dash.map((o, i) => `${i % 2 ? "transparent" : color} ${at}px ${at += o}px`).join(", ")})` : color;
}

function viridis(share) {
  const at = Math.min(1, Math.max(0, share)) * (VIRIDIS.length - 1), low = Math.min(Math.floor(at), VIRIDIS.length - 2);
  return VIRIDIS[low].map((o, i) => Math.round(o + (VIRIDIS[low + 1][i] - o) * (at - low)));
}

// A heat map as an image: a pixel for each place across, a row for each name. What was not measured stays transparent.
function heatImage(width, height, columnAt, value, extent) {
  const image = Object.assign(document.createElement("canvas"), { width, height }), pen = image.getContext("2d"), data = pen.createImageData(width, height);
  for (let i = 0, column; i < width; i++) {
    column = columnAt(i);
    for (let row = 0; row < height; row++) {
      const share = column < 0 ? NaN : extent.share(value(row, column));
      if (Number.isFinite(share)) data.data.set([...viridis(share), 255], 4 * (row * width + i));
    }
  }
  pen.putImageData(data, 0, 0);
  return image;
}

function lightness(color) {
  const found = color.match(/[\d.]+/g);
  if (!found || color.startsWith("color(") && found.length < 3) return 1;
  const [r, g, b] = found.map(Number), top = color.startsWith("color(") ? 1 : 255;
  return (0.299 * r + 0.587 * g + 0.114 * b) / top;
}

// The colours of charts, from what lies behind them and from the words around them, and again whenever the theme of the page changes.

// The colour behind a node: it decides between the hues for light and for dark.
function background(node) {
  for (; node instanceof Element; node = node.parentElement || node.getRootNode().host) {
    const color = getComputedStyle(node).backgroundColor;
    if (!/^(transparent|rgba\(.*, 0\))$/.test(color)) return color;
  }
  const scheme = getComputedStyle(document.documentElement).colorScheme;
  return scheme.includes("dark") && (!scheme.includes("light") || matchMedia("(prefers-color-scheme: dark)").matches) ? "#121212" : "#ffffff";
}

class Theme {
  constructor(node, changed) {
    Object.assign(this, { node, changed });
    // the page does not keep a picture that a newer one has replaced
    const own = new WeakRef(this), query = matchMedia("(prefers-color-scheme: dark)"), observer = new MutationObserver(() => look());
    const stop = this.stop = () => { observer.disconnect(); query.removeEventListener("change", look); };
    function look() {
      own.deref()?.read();
      if (own.deref()?.node.isConnected) setTimeout(() => own.deref()?.read(), 300); else stop();
    }
    for (const element of [document.body, document.documentElement]) observer.observe(element, { attributes: true });
    query.addEventListener("change", look);
    this.read();
  }

  read() {
    const { classList } = this.node;
    classList.remove("tnb-dark", "tnb-light");   // which decide where the page does not
    const surface = background(this.node), dark = lightness(surface) < 0.5, { color: ink } = getComputedStyle(this.node), key = surface + ink, mixed = share => `color-mix(in srgb, ${ink} ${share}%, transparent)`;
    classList.add(dark ? "tnb-dark" : "tnb-light");
    if (key === this.key) return;
    Object.assign(this, { key, surface, ink, muted: mixed(66), grid: mixed(11), line: mixed(33), bad: dark ? "#ff8f85" : "#b93a2f", hues: HUES[dark ? "dark" : "light"] });
    this.changed();
  }

  hue(index) { return this.hues[index % this.hues.length]; }
}

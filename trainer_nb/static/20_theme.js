// The colours in force. The style sheet takes them from the front end; the canvas needs them explicitly, and again whenever they change.

// Blue for the run, orange for its evaluations, the others for runs beside it: the hues of the static pictures, apart for the colour-blind too.
const HUES = {
  light: ["#2f7fc1", "#e07b00", "#8f3ff5", "#b8256f", "#8a5a33", "#c9a66b"],
  dark: ["#5aa9e6", "#f0993a", "#a35cff", "#e0317a", "#a8703f", "#e6efb0"],
};
const VIRIDIS = [[68, 1, 84], [71, 45, 123], [59, 82, 139], [44, 114, 142], [33, 144, 140], [39, 173, 129], [92, 200, 99], [170, 220, 50], [253, 231, 37]];

function viridis(share) {
  const at = Math.min(1, Math.max(0, share)) * (VIRIDIS.length - 1), low = Math.min(Math.floor(at), VIRIDIS.length - 2);
  return VIRIDIS[low].map((o, i) => Math.round(o + (VIRIDIS[low + 1][i] - o) * (at - low)));
}

// What a custom property comes to, as a plain colour: read from an element that wears it.
function resolved(probe, name) {
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

function lightness(color) {
  const found = color.match(/[\d.]+/g);
  if (!found || color.startsWith("color(") && found.length < 3) return 1;
  const [r, g, b] = found.map(Number), top = color.startsWith("color(") ? 1 : 255;
  return (0.299 * r + 0.587 * g + 0.114 * b) / top;
}

class Theme {
  constructor(root, changed) {
    this.root = root;
    this.changed = changed;
    this.probe = make("span", "tnb-probe", null, { "aria-hidden": "true" });
    root.append(this.probe);
    this.query = matchMedia("(prefers-color-scheme: dark)");
    this.look = () => this.read();
    this.observer = new MutationObserver(() => { this.read(); clearTimeout(this.later); this.later = setTimeout(this.look, 300); });
    const attributeFilter = ["data-jp-theme-light", "data-jp-theme-name", "data-theme", "data-vscode-theme-kind", "class", "style"];
    for (const node of [document.body, document.documentElement]) this.observer.observe(node, { attributes: true, attributeFilter });
    this.query.addEventListener("change", this.look);
    this.read();
  }

  read() {
    this.dark = lightness(resolved(this.probe, "--tnb-surface")) < 0.5;
    this.root.classList.toggle("tnb-dark", this.dark);   // before the others are read: it changes some of them
    const names = { surface: "--tnb-surface", ink: "--tnb-ink", muted: "--tnb-muted", grid: "--tnb-grid", line: "--tnb-line" }, found = {};
    for (const [key, name] of Object.entries(names)) found[key] = resolved(this.probe, name);
    const key = JSON.stringify(found);
    if (key === this.key) return;
    this.key = key;
    Object.assign(this, found);
    this.hues = HUES[this.dark ? "dark" : "light"];
    this.changed();
  }

  hue(index) { return this.hues[index % this.hues.length]; }

  stop() {
    this.observer.disconnect();
    clearTimeout(this.later);
    this.query.removeEventListener("change", this.look);
  }
}

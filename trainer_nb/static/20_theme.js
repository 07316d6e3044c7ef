// The colours in force. The style sheet takes them from the front end; the canvas needs them explicitly, and again whenever they change.

// What a custom property comes to, as a plain colour: read from an element that wears it.
function resolved(probe, name) {
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
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
    const names = { surface: "--tnb-surface", ink: "--tnb-ink", muted: "--tnb-muted", grid: "--tnb-grid", line: "--tnb-line", bad: "--tnb-bad" }, found = {};
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

// Elements of the page. Texts of the kernel, which has formatted their numbers, are set as textContent, never as markup.

// Only what differs is written: a page that has not changed costs nothing.
function setText(node, text) {
  text = text === null || text === undefined ? "" : String(text);
  if (node.textContent !== text) node.textContent = text;
}

function setAttribute(node, name, value) {
  if (value === null || value === undefined) { if (node.hasAttribute(name)) node.removeAttribute(name); }
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

function show(node, visible) { if (node.hidden === Boolean(visible)) node.hidden = !visible; }

function randomId() { return Array.from(crypto.getRandomValues(new Uint32Array(2)), o => o.toString(36)).join(""); }

function duration(minutes) {
  const seconds = Math.max(0, minutes * 60);
  if (seconds < 59.95) return (seconds < 9.95 ? seconds.toFixed(1) : seconds.toFixed(0)) + " s";
  if (minutes < 60) return Math.floor(minutes) + " min" + (minutes < 10 && seconds % 60 >= 1 ? " " + Math.floor(seconds % 60) + " s" : "");
  return Math.floor(minutes / 60) + " h" + (minutes < 1440 && minutes % 60 >= 1 ? " " + Math.floor(minutes % 60) + " min" : "");
}

const clockOf = date => [date.getHours(), date.getMinutes(), date.getSeconds()].map(o => String(o).padStart(2, "0")).join(":");

const plural = (n, word) => `${whole(n)} ${word}${n === 1 ? "" : "s"}`;

// Whether a text has each of the words that are looked for.
const matches = (words, text) => words.toLowerCase().split(/\s+/).every(o => text.toLowerCase().includes(o));

// Numbers in words. Part of the script of saved pictures as well.

const thousands = text => text.replace(/\B(?=(\d{3})+(?!\d))/g, ",");

// A whole number, or what was given where it is none.
function whole(value) {
  if (value === null || value === undefined) return "–";
  return Number.isFinite(value) ? (value < 0 ? "−" : "") + thousands(String(Math.round(Math.abs(value)))) : String(value);
}

// A measured value, in `digits` digits that count; always the same number of them, so that a live value does not jump about. A small
// one is a power of ten, without zeros at its end.
function number(value, digits = 3) {
  if (typeof value !== "number" || Number.isNaN(value)) return "–";
  const size = Math.abs(value), sign = value < 0 ? "−" : "";
  if (value === 0) return "0";
  if (size === Infinity) return sign + "∞";
  if (size >= 1e7 || size < 1e-2) {
    const [head, power] = size.toExponential(Math.min(digits - 1, 2)).split("e");
    return sign + Number(head) + "e" + power.replace("+", "");
  }
  if (size >= 10 ** digits - 0.5) return sign + thousands(size.toFixed(0));
  return sign + thousandsOf(size.toPrecision(digits));
}

function thousandsOf(text) {
  const [head, tail] = text.split(".");
  return thousands(head) + (tail ? "." + tail : "");
}

// A value of a heat map. On a logarithmic scale zero has no colour, as what is not known: the words tell them apart.
function signal(value, log) {
  if (value === null || !Number.isFinite(value)) return "not measured";
  return log && value === 0 ? "no signal (0)" : number(value);
}

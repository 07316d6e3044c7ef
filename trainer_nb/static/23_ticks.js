// Values to places, and the round values between two others. Part of the script of saved pictures as well.

class Scale {
  constructor(low, high, from, to, log = false) {
    Object.assign(this, { low, high, from, to, log });
    this.a = log ? Math.log10(low) : low;
    this.b = log ? Math.log10(high) : high;
    this.rate = (to - from) / (this.b - this.a || 1);
  }
  at(value) { return this.log ? (value > 0 ? this.from + (Math.log10(value) - this.a) * this.rate : NaN) : this.from + (value - this.a) * this.rate; }
  value(place) { const o = this.a + (place - this.from) / this.rate; return this.log ? 10 ** o : o; }
  // The values between two places, and those that come into sight when what is drawn moves.
  part(a, b) { return [this.value(a), this.value(b)].sort((low, high) => low - high); }
  moved(pixels) { return this.part(this.from - pixels, this.to - pixels); }
}

// The round step (1, 2 or 5 times a power of ten) that cuts a span into at most `count` parts.
function roundStep(span, count) {
  const rough = span / Math.max(1, count), power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].find(o => o * power >= rough * 0.999999) * power;
}

function multiples(low, high, step) {
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9 && found.length < 100; k++) found.push(k * step);
  return found;
}

// Ticks are {at, text}, all texts of an axis of one kind.
function linearTicks(low, high, count, step = roundStep(high - low, count)) {
  return multiples(low, high, step).map(at => ({ at, text: tickText(at, step, Math.max(Math.abs(low), Math.abs(high))) }));
}

function tickText(value, step, size) {
  if (Math.abs(value) < step / 1e6) return "0";
  const sign = value < 0 ? "−" : "", v = Math.abs(value);
  if (size >= 1e9 || size < 1e-2 && step < 1e-3) return sign + exponent(v, step);
  for (const [unit, letter, from] of [[1e6, "M", 1e6], [1e3, "k", 1e4]]) {
    if (size >= from) return sign + (v / unit).toFixed(digits(step / unit)) + letter;
  }
  return sign + thousandsOf(v.toFixed(digits(step)));
}

const digits = step => Math.max(0, Math.min(9, -Math.floor(Math.log10(step * 1.000001))));

function exponent(v, step) {
  const power = Math.floor(Math.log10(v) + 1e-9), head = Number((v / 10 ** power).toFixed(digits(Math.min(1, step / 10 ** power))));
  return `${head}e${power}`;
}

// Powers of ten; between them 2 and 5 where there are few; a narrow span is cut as a straight one.
function logTicks(low, high, count) {
  const decades = Math.log10(high / low);
  if (decades < 0.7) {
    return linearTicks(low, high, count);
  }
  const heads = decades > count / 2 ? [1] : decades > count / 4 ? [1, 3] : [1, 2, 5], found = [];
  const every = Math.max(1, Math.ceil(decades / count));
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    if (power % every) continue;
    for (const head of heads) {
      const at = head * 10 ** power;
      if (at >= low * 0.999999 && at <= high * 1.000001) found.push({ at, text: power >= -2 && power <= 3 ? tickText(at, at, at) : exponent(at, at) });
    }
  }
  return found;
}

// The smallest and largest of what was added.
class Extent {
  constructor(log, values = []) {
    Object.assign(this, { log, low: Infinity, high: -Infinity });
    values.forEach(o => this.add(o));
  }
  add(value) {
    if (!Number.isFinite(value) || this.log && value <= 0) return;
    if (value < this.low) this.low = value;
    if (value > this.high) this.high = value;
  }
  to(value) { return this.log ? Math.log10(value) : value; }
  size() { return this.to(this.high) - this.to(this.low) || Math.abs(this.to(this.high)) * 0.1 || 1; }
  // Where a value lies between the two: from 0 to 1, NaN where it has no place.
  share(value) { return value === null || this.log && value <= 0 ? NaN : (this.to(value) - this.to(this.low)) / this.size(); }
  // {low, high, above, below}: the span to draw, with the single values around (sorted, and the extent of all); those that would flatten
  // everything else are left out, and above and below say how far they go.
  around(sorted, every) {
    this.add(sorted[Math.floor(sorted.length * 0.005)]);
    this.add(sorted[Math.ceil(sorted.length * 0.995) - 1]);
    if (this.low > this.high) return every.low > every.high ? null : { ...every.padded(), above: null, below: null };
    const size = 0.4 * this.size(), high = Math.max(this.high, every.high), low = Math.min(this.low, every.low);
    const above = this.to(high) - this.to(this.high) > size ? high : null, below = this.to(this.low) - this.to(low) > size ? low : null;
    if (above === null) this.high = high;
    if (below === null) this.low = low;
    return { ...this.padded(), above, below };
  }
  padded() {
    const { low, high, log } = this, span = high - low > 1e-6 * Math.abs(high) ? high - low : 0;   // not the noise of float32
    if (log) { const pad = span ? (high / low) ** 0.05 : 2; return { low: low / pad, high: high * pad }; }
    const pad = span ? span * 0.06 : Math.abs(low) * 0.1 || 1;
    return { low: low >= 0 && low < span * 0.3 ? 0 : low - pad, high: high + pad };
  }
}

// Where the columns of a heat map meet: half-way between their places.
function columnEdges(x) {
  const between = x.slice(1).map((o, i) => (o + x[i]) / 2);
  return [2 * x[0] - (between[0] ?? x[0] + 0.5), ...between, 2 * x.at(-1) - (between.at(-1) ?? x[0] - 0.5)];
}

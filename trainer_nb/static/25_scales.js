// Values to places on the canvas, and the round values that are written beside an axis.

const AXES = {
  steps: { column: 0, key: "step", title: "Steps", unit: "steps", say: o => "step " + whole(Math.round(o)) },
  epochs: { column: 1, key: "epoch", title: "Epochs", unit: "epochs", say: o => "epoch " + o.toFixed(2) },
  time: { column: 2, key: "minutes", title: "Time", unit: "", say: o => duration(o) },
};

class Scale {
  constructor(low, high, from, to, log = false) {
    Object.assign(this, { low, high, from, to, log });
    this.a = log ? Math.log10(low) : low;
    this.b = log ? Math.log10(high) : high;
    this.rate = (to - from) / (this.b - this.a || 1);
  }
  at(value) { return this.log ? (value > 0 ? this.from + (Math.log10(value) - this.a) * this.rate : NaN) : this.from + (value - this.a) * this.rate; }
  value(place) { const o = this.a + (place - this.from) / this.rate; return this.log ? 10 ** o : o; }
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

const MINUTES = [1 / 60, 2 / 60, 5 / 60, 10 / 60, 15 / 60, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440];

// Ticks are {at, text}, all texts of an axis of one kind.
function ticks(scale, count, axis = "") {
  const { low, high } = scale;
  if (!(high > low)) return [];
  if (scale.log) return logTicks(low, high, count);
  let step = roundStep(high - low, count);
  if (axis === "steps") step = Math.max(1, step);
  if (axis === "time" && high - low > 1 / 60) step = MINUTES.find(o => o >= (high - low) / count) || roundStep((high - low) / 1440, count) * 1440;
  return multiples(low, high, step).map(at => ({ at, text: axis === "time" ? clock(at, step) : tickText(at, step, Math.max(Math.abs(low), Math.abs(high))) }));
}

function clock(minutes, step) {
  const seconds = Math.round(minutes * 60);
  if (step < 1 / 60) return (minutes * 60).toFixed(1) + " s";
  if (step < 1 && seconds < 60) return seconds + " s";
  if (step < 1) return Math.floor(seconds / 60) + ":" + String(seconds % 60).padStart(2, "0");
  if (step < 60 && minutes < 60 || minutes === 0) return Math.round(minutes) + " min";
  if (minutes % 60 > 0.01) return Math.floor(minutes / 60) + ":" + String(Math.round(minutes % 60)).padStart(2, "0") + " h";
  return step >= 1440 ? Math.round(minutes / 1440) + " d" : Math.round(minutes / 60) + " h";
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
    const step = roundStep(high - low, count);
    return multiples(low, high, step).map(at => ({ at, text: tickText(at, step, high) }));
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

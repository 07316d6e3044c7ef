// A run as the page holds it: blocks of successive steps, each with the lowest, highest and mean value, and the curves through them.

const WIDE = 15, MOST = 50000;   // columns of a block; blocks held of a run at most
const QUANTITIES = [
  { key: "loss", title: "Loss", column: 3, smooth: true },
  { key: "learning_rate", title: "Learning rate", column: 6, smooth: false },
  { key: "grad_norm", title: "Gradient norm", column: 9, smooth: true },
  { key: "samples_per_second", title: "Samples per second", column: 12, smooth: true },
];
const LOW = 0, HIGH = 1, MEAN = 2;

// The numbers of a buffer, copied: a message may lie anywhere in a longer one.
function floats(view) {
  if (!view) return new Float32Array(0);
  const buffer = view.buffer || view, from = view.byteOffset || 0, size = view.byteLength - view.byteLength % 4;
  return new Float32Array(buffer.slice(from, from + size));
}

class Run {
  constructor(id, place) {
    Object.assign(this, { id, place, label: String(id), generation: null, width: 1, rows: 0, data: new Float32Array(0), left: new Float32Array(0) });
    this.curves = new Map();
  }

  // Take in a message's part on this run; false where blocks before it are missing.
  take(news, buffers) {
    if (news.label !== undefined) this.label = String(news.label ?? "");
    if (news.generation !== this.generation) Object.assign(this, { generation: news.generation, data: new Float32Array(0), rows: 0 });
    if (news.width) this.width = Math.max(1, news.width);
    if (news.left_buffer !== undefined && news.left_buffer !== null) this.left = floats(buffers[news.left_buffer]);
    this.curves.clear();
    if (news.buffer === undefined || news.buffer === null) return true;
    const first = news.first || 0, more = floats(buffers[news.buffer]);
    if (first > this.rows) return false;
    const rows = Math.min(MOST, first + Math.floor(more.length / WIDE)), data = new Float32Array(rows * WIDE);
    data.set(this.data.subarray(0, first * WIDE));
    data.set(more.subarray(0, (rows - first) * WIDE), first * WIDE);
    Object.assign(this, { data, rows });
    return true;
  }

  // Everything comes anew.
  forget() { Object.assign(this, { generation: null, left: new Float32Array(0) }); }

  get(row, column) { return this.data[row * WIDE + column]; }
  last(column) { return this.rows ? this.get(this.rows - 1, column) : NaN; }
  steps(row) { const o = row ? this.get(row, 0) - this.get(row - 1, 0) : this.width; return o > 0 && o < this.width ? o : this.width; }
  known(column) { return this.curve(column + MEAN, 0).count > 0; }

  // The first block at or beyond a place on an axis.
  find(column, value) {
    let low = 0, high = this.rows;
    while (low < high) {
      const middle = low + high >> 1;
      if (this.get(middle, column) < value) low = middle + 1; else high = middle;
    }
    return low;
  }

  nearest(column, value) {
    const after = this.find(column, value);
    if (!this.rows) return -1;
    if (after >= this.rows) return this.rows - 1;
    return after && value - this.get(after - 1, column) < this.get(after, column) - value ? after - 1 : after;
  }

  // A place on one axis as a place on another, by the blocks around it.
  convert(value, from, to) {
    if (from === to || !this.rows) return value;
    const after = Math.min(this.find(from, value), this.rows - 1), [x1, y1] = [this.get(after, from), this.get(after, to)];
    const [x0, y0] = after ? [this.get(after - 1, from), this.get(after - 1, to)] : [0, 0];
    return x1 > x0 ? y0 + (y1 - y0) * Math.min(1, Math.max(0, (value - x0) / (x1 - x0))) : y1;
  }

  // The running mean of a column, `weight` per step: kept until other blocks or another weight come.
  curve(column, weight) {
    const held = this.curves.get(column);
    if (held && held.weight === weight) return held;
    const mean = new Mean(weight), y = new Float64Array(this.rows), shares = new Float64Array(this.rows);
    let count = 0;
    for (let i = 0; i < this.rows; i++) {
      const value = this.get(i, column);
      if (Number.isFinite(value)) { y[i] = mean.add(value, this.steps(i)); count++; } else y[i] = NaN;
      shares[i] = mean.share;
    }
    const curve = { weight, y, shares, count };
    this.curves.set(column, curve);
    return curve;
  }

  // The abandoned steps, as segments of [x, y]; each begins on the curve, at the last step before it.
  abandonedSegments(axis, column, weight) {
    const segments = [], { y, shares } = this.curve(column, weight);
    let segment = null, mean = null, before = 0;
    for (let i = 0; (i + 1) * WIDE <= this.left.length; i++) {
      const step = this.left[i * WIDE], value = this.left[i * WIDE + column];
      if (Number.isNaN(step)) { segment = null; continue; }
      if (!segment) {
        const at = this.find(0, step) - 1;
        mean = new Mean(weight, at >= 0 && Number.isFinite(y[at]) ? y[at] * shares[at] : 0, at >= 0 && Number.isFinite(y[at]) ? shares[at] : 0);
        segment = at >= 0 && Number.isFinite(y[at]) ? [[this.get(at, axis), y[at]]] : [];
        segments.push(segment);
        before = at >= 0 ? this.get(at, 0) : step - this.width;
      }
      if (Number.isFinite(value)) segment.push([this.left[i * WIDE + axis], mean.add(value, Math.max(1, step - before))]);
      before = step;
    }
    return segments;
  }
}

// An exponential running mean that is right from the first value on: the sum is divided by the weights that are in it.
class Mean {
  constructor(weight, sum = 0, share = 0) { Object.assign(this, { weight, sum, share }); }
  add(value, steps) {
    const keep = this.weight ** steps;
    this.sum = this.sum * keep + value * (1 - keep);
    this.share = this.share * keep + (1 - keep);
    return this.share ? this.sum / this.share : value;
  }
}

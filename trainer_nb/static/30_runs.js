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
    if (news.band !== undefined) this.band = Boolean(news.band);   // from the lowest to the highest of several runs
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
  // Whether there is any value of a quantity.
  known(column) {
    for (let i = this.rows - 1; i >= 0; i--) if (Number.isFinite(this.get(i, column + MEAN))) return true;
    return false;
  }

  // The first block at or beyond a place on an axis.
  find(column, value) { return firstFrom(this.rows, i => this.get(i, column), value); }

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

  // The running mean of a column, `weight` per step: kept until other blocks, another weight or axis come.
  curve(column, weight, log) {
    const held = this.curves.get(column);
    if (held && held.weight === weight && held.log === log) return held;
    const curve = { weight, log, ...centeredMean(this.rows, i => this.get(i, 0), i => this.get(i, column), weight, log) };
    this.curves.set(column, curve);
    return curve;
  }

  // The abandoned steps, as segments of [x, y]; each begins on the curve, at the step before it, unless that was abandoned too.
  abandonedSegments(axis, column, weight, log) {
    const { y } = this.curve(column, weight, log), segments = [], value = i => this.left[i * WIDE + column], step = i => this.left[i * WIDE];
    const count = Math.floor(this.left.length / WIDE);
    for (let first = 0, end; first < count; first = end + 1) {
      for (end = first; end < count && !Number.isNaN(step(end)); end++);
      const at = end > first ? this.find(0, step(first)) - 1 : -1, near = at >= 0 && step(first) - this.get(at, 0) <= 2 * this.width;
      const segment = near && Number.isFinite(y[at]) ? [[this.get(at, axis), y[at]]] : [];
      const mean = centeredMean(end - first, i => step(first + i), i => value(first + i), weight, log);
      for (let i = first; i < end; i++) if (Number.isFinite(value(i))) segment.push([this.left[i * WIDE + axis], mean.y[i - first]]);
      if (end > first) segments.push(segment);
    }
    return segments;
  }
}

// The mean around each of `rows` values, in which a value counts `weight` to the power of its distance in steps: as many steps after a
// place count as before it, so the curve does not lag behind a change. One pass forward sums what is before, one backward what is after.
// Near the first value (`at`), what is further away than that value is taken off again, so the curve begins there.
// A value that is not finite does not count and has no mean.
// On a logarithmic axis it is the mean of the logarithms: a value that exceeds the others by orders of magnitude would be all that it shows.
function centeredMean(rows, step, read, weight, log) {
  const value = log ? i => Math.log(read(i)) : read;
  // The sums of the values up to each one, and their number, from the one end or from the other.
  const summed = order => {
    const sums = new Float64Array(rows), counts = new Float64Array(rows);
    let sum = 0, count = 0, last = NaN, distance = NaN, keep = 0;
    for (let k = 0; k < rows; k++) {
      const i = order(k), one = value(i), here = step(i), steps = Math.abs(here - last);
      if (steps !== distance) keep = weight ** (distance = steps);   // successive distances are equal nearly always
      if (k) { sum *= keep; count *= keep; }
      if (Number.isFinite(one)) { sum += one; count++; }
      last = here;
      sums[i] = sum;
      counts[i] = count;
    }
    return [sums, counts];
  };
  const [sums, counts] = summed(k => k), [after, countsAfter] = summed(k => rows - 1 - k), y = new Float64Array(rows);
  let at = 0, end = 0;
  while (at < rows && !Number.isFinite(value(at))) at++;
  for (let i = 0; i < rows; i++) {
    const one = value(i), here = step(i);
    if (!Number.isFinite(one)) { y[i] = NaN; continue; }
    let total = sums[i] + after[i] - one, share = counts[i] + countsAfter[i] - 1;
    if (i >= at) {
      while (end < rows && step(end) - here <= here - step(at)) end++;
      if (end < rows) { const o = weight ** (step(end) - here); total -= o * after[end]; share -= o * countsAfter[end]; }
    }
    y[i] = log ? Math.exp(total / share) : total / share;
  }
  return { y };
}

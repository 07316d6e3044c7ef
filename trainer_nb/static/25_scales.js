// The axes of the page, and the values that are written beside them.

const AXES = {
  steps: { column: 0, key: "step", title: "Steps", unit: "steps", say: o => "step " + whole(Math.round(o)) },
  epochs: { column: 1, key: "epoch", title: "Epochs", unit: "epochs", say: o => "epoch " + o.toFixed(2) },
  time: { column: 2, key: "minutes", title: "Time", unit: "", say: o => duration(o) },
};

const MINUTES = [1 / 60, 2 / 60, 5 / 60, 10 / 60, 15 / 60, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440];

function ticks(scale, count, axis = "") {
  const { low, high } = scale;
  if (!(high > low)) return [];
  if (scale.log) return logTicks(low, high, count);
  let step = roundStep(high - low, count);
  if (axis === "steps") step = Math.max(1, step);
  if (axis === "time" && high - low > 1 / 60) step = MINUTES.find(o => o >= (high - low) / count) || roundStep((high - low) / 1440, count) * 1440;
  return axis === "time" ? multiples(low, high, step).map(at => ({ at, text: duration(at) })) : linearTicks(low, high, count, step);
}

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
  return axis === "time" ? multiples(low, high, step).map(at => ({ at, text: clock(at, step) })) : linearTicks(low, high, count, step);
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

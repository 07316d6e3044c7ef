// The head of the dashboard: the status of the run, its health, its progress.

const STATES = {
  new: ["ring", "plain"], training: ["play", "good"], paused: ["pause", "warn"], finished: ["good", "done"], stopped: ["stop", "warn"], failed: ["bad", "bad"],
  waiting: ["wait", "warn"], inactive: ["plain", "plain"],
};

class Header {
  constructor() {
    this.box = make("header", "tnb-header");
    const top = this.top = make("div", "tnb-top"), under = make("div", "tnb-under");
    this.title = make("h3", "tnb-title");
    this.pill = make("span", "tnb-pill");
    this.pillIcon = icon("ring");
    this.state = make("span");
    this.pill.append(this.pillIcon, this.state);
    this.words = make("span", "tnb-words");
    this.link = make("span", "tnb-link");
    top.append(this.title, this.pill, this.words, this.link);
    this.verdict = make("p", "tnb-verdict");
    this.verdictIcon = icon("plain");
    this.sentence = make("span");
    this.verdict.append(this.verdictIcon, this.sentence);
    this.bar = make("div", "tnb-progress", null, { role: "progressbar", "aria-label": "progress of the training", "aria-valuemin": "0", "aria-valuemax": "100" });
    this.done = make("div", "tnb-progress-done");
    this.bar.append(this.done);
    this.facts = make("div", "tnb-facts");
    this.fact = {};
    for (const name of ["step", "epoch", "loss", "rate", "elapsed", "left", "memory"]) this.addFact(name);
    under.append(this.verdict);
    this.failure = make("details", "tnb-failure");
    this.traceback = make("pre", "tnb-traceback", null, { tabindex: "0", role: "region", "aria-label": "traceback of the error" });
    this.failure.append(make("summary", "", "Traceback"), this.traceback);
    this.failure.addEventListener("toggle", () => { this.traceback.scrollTop = this.traceback.scrollHeight; });   // the error stands at its end
    this.box.append(top, under, this.failure, this.bar, this.facts);
    show(this.link, false);
    show(this.failure, false);
  }

  addFact(name) {
    const box = make("div", "tnb-fact"), value = make("div", "tnb-fact-value"), of = make("span", "tnb-of");
    const number = make("span");
    value.append(number, of);
    box.append(make("div", "tnb-fact-name", { loss: "last loss", rate: "speed", left: "time left" }[name] || name), value);
    this.fact[name] = { box, number, of };
    this.facts.append(box);
  }

  set(name, text, of = "") {
    const fact = this.fact[name], missing = text === null || text === undefined || text === "";
    setText(fact.number, missing ? "–" : text);
    setText(fact.of, of);
    fact.box.classList.toggle("tnb-missing", missing);
  }

  update(status) {
    this.status = status;
    this.sign();
    const health = ["good", "plain", "warn", "bad"].includes(status.tone) ? status.tone : "plain";
    setAttribute(this.verdict, "data-tone", health);
    setIcon(this.verdictIcon, health);
    setText(this.sentence, status.verdict);
    this.verdict.classList.toggle("tnb-blank", !status.verdict);
    show(this.failure, status.traceback);
    setText(this.traceback, status.traceback);
    this.progress(status);
    this.set("step", status.step === null || status.step === undefined ? null : whole(status.step), status.total ? " / " + whole(status.total) : "");
    this.set("epoch", status.epoch, status.epochs ? " / " + status.epochs : "");
    for (const name of ["loss", "rate", "elapsed", "left", "memory"]) this.set(name, status[name]);
    show(this.fact.memory.box, status.memory);
  }

  progress({ share, step, total }) {
    const known = typeof share === "number" && Number.isFinite(share), width = known ? Math.min(1, Math.max(0, share)) * 100 : 0;
    this.done.style.transform = `scaleX(${(width / 100).toFixed(5)})`;
    setAttribute(this.bar, "aria-valuenow", known ? Math.round(width) : null);
    setAttribute(this.bar, "aria-valuetext", total ? `step ${whole(step)} of ${whole(total)}` : step !== undefined ? `step ${whole(step)}` : null);
  }

  // The state of the run, as far as it is known: without a connection, only what it was when the kernel was heard last.
  sign() {
    const { status, heard } = this, state = String(status.state || "new"), [shape, tone] = STATES[state] || STATES.inactive, evaluating = status.evaluating;
    show(this.state, !heard);
    setText(this.state, evaluating ? "evaluating" : state === "new" ? "Not started" : state);
    setIcon(this.pillIcon, heard ? "plain" : evaluating ? "evaluate" : shape);
    setAttribute(this.pill, "data-tone", heard ? "plain" : tone);
    setAttribute(this.pill, "data-live", !heard && (state === "training" || evaluating) ? "" : null);
    const batches = evaluating && `${whole(evaluating[0])}${evaluating[1] ? " of " + whole(evaluating[1]) : ""} batches`;
    setText(this.words, heard ? `last known: ${state}, step ${whole(status.step)}, at ${heard}` : batches || this.place(status.words, state));
    setAttribute(this.bar, "data-state", heard ? "inactive" : state);
  }

  // The words without the state, which stands before them already: "after step 10 of 100".
  place(words, state) {
    if (typeof words !== "string" || state === "new" && /^not started$/i.test(words)) return "";
    return words.startsWith(state + " ") ? words.slice(state.length + 1) : words;
  }

  // words: on the connection to the kernel, empty when it works; heard: when it is gone, the time of the last message.
  connection(words, heard) {
    this.heard = heard;
    setText(this.link, words);
    show(this.link, Boolean(words));
    const place = heard ? this.pill : this.top;   // instead of a state that is not known
    if (this.link.parentNode !== place) place.append(this.link);
    if (this.status) this.sign();
  }
}

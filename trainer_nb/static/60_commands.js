// What was asked of the kernel and has not been answered: a command is sent, heard, and then done or refused.

const UNHEARD = 1500, LONG = 10000;   // ms after which a command that nobody has heard is said to wait; after which the kernel may be gone

class Commands {
  constructor(view) {
    this.view = view;
    this.pending = new Map();
    this.count = 0;
  }

  // control: whose place on the page shows how it stands: {name, phase(phase, waiting)}.
  send(verb, given, control) {
    const id = `${this.view.id}-${++this.count}`, command = { id, verb, control, phase: "sent" };
    this.pending.set(id, command);
    command.timer = setTimeout(() => {
      this.move(command, "busy", `${control.name}: sent; the kernel is busy with a cell`);
      command.timer = setTimeout(() => this.move(command, "busy", `${control.name}: not heard yet; the kernel is busy with a cell, or gone`), LONG - UNHEARD);
    }, UNHEARD);
    this.move(command, "sent", `${control.name}: sent …`);
    if (!this.view.post({ kind: "do", id, verb, with: given })) this.end(command, "refused", `${control.name}: not sent, this page is not connected to a kernel`);
    return id;
  }

  move(command, phase, text, tone = "plain") {
    command.phase = phase;
    command.control.phase(phase, this.waiting(command.control));
    this.view.say(text, tone, phase);
  }

  waiting(control) { return [...this.pending.values()].filter(o => o.control === control).length; }

  // An answer from the kernel; those to other pages' commands are passed over.
  answer({ kind, id, text }) {
    const command = this.pending.get(id);
    if (!command) return;
    if (kind === "heard") {
      clearTimeout(command.timer);
      this.move(command, "heard", `${command.control.name}: heard, the kernel is on it`);
    } else this.end(command, kind, text || `${command.control.name}: ${kind}`);
  }

  end(command, phase, text) {
    clearTimeout(command.timer);
    this.pending.delete(command.id);
    this.move(command, phase, text, phase === "refused" ? "bad" : "good");
    command.control.answered && command.control.answered(phase);
  }

  stop() { for (const command of this.pending.values()) clearTimeout(command.timer); }
}

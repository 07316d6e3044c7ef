// The commands that have not been answered yet: each is sent, received, and then done or rejected.

const SLOW = 1500, LONG = 10000;   // ms after which an unanswered command counts as waiting; after which the kernel may be gone

class Commands {
  constructor(view) {
    this.view = view;
    this.pending = new Map();
    this.count = 0;
  }

  // control: the element that shows the phase of the command: {name, phase(phase, waiting)}.
  send(verb, given, control) {
    const id = `${this.view.id}-${++this.count}`, command = { id, verb, control, phase: "sent" };
    this.pending.set(id, command);
    command.timer = setTimeout(() => {
      this.move(command, "busy", `${control.name}: sent; the kernel is busy with a cell`);
      command.timer = setTimeout(() => this.move(command, "busy", `${control.name}: not received yet; the kernel is busy with a cell, or gone`), LONG - SLOW);
    }, SLOW);
    this.move(command, "sent", `${control.name}: sent …`);
    if (!this.view.post({ kind: "do", id, verb, with: given })) this.end(command, "rejected", `${control.name}: not sent, this page is not connected to a kernel`);
    return id;
  }

  move(command, phase, text, tone = "plain", action = null) {
    command.phase = phase;
    command.control.phase(phase, this.waiting(command.control));
    this.view.say(text, tone, phase, action);
  }

  waiting(control) { return [...this.pending.values()].filter(o => o.control === control).length; }

  // An answer from the kernel; those to other pages' commands are ignored.
  answer(content) {
    const { kind, id, text } = content, command = this.pending.get(id);
    if (!command) return;
    if (kind === "received") {
      clearTimeout(command.timer);
      this.move(command, "received", `${command.control.name}: received, the kernel is working on it`);
    } else this.end(command, kind, text || `${command.control.name}: ${kind}`, content);
  }

  // content: of the answer; empty if the command could not be sent.
  end(command, phase, text, content = {}) {
    clearTimeout(command.timer);
    this.pending.delete(command.id);
    this.move(command, phase, text, phase === "rejected" ? "bad" : "good", content.action);
    command.control.answered && command.control.answered(phase, content);
  }

  stop() { for (const command of this.pending.values()) clearTimeout(command.timer); }
}

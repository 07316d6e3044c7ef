// The connection to the kernel: hello until it is answered, and the state of the connection.

const AGAIN = 2000, SILENCE = 1000;   // ms between two hellos; ms after which the page shows that it waits
// While the run trains, the kernel is heard every 2 s. ms of silence after which the page asks for an answer; ms that it waits for it
const QUIET = 5000, GONE = 8000, RETRY = 10000;   // and ms between two later attempts

class Link {
  constructor(view, model) {
    Object.assign(this, { view, model, seen: false, answered: false, closed: false });
    this.onMessage = (content, buffers) => this.receive(content, buffers || []);
    this.gone = () => this.close();
    this.moved = () => this.alive() ? this.hello() : this.close();
    this.heard = Date.now();
    this.asked = null;
    this.tryAt = this.heard + (this.pause = 1000);
    this.watch = setInterval(() => this.look(), 1000);
    model.on("msg:custom", this.onMessage);
    model.on("comm:close", this.gone);
    model.on("comm_live_update", this.moved);
    // Another page may restart the kernel: this one's connection to it stays, but the new kernel does not know the run.
    this.kernel = model.widget_manager?.kernel?.statusChanged;
    this.restarted = (_, status) => { if (/starting$|^dead$/.test(status)) this.close("restarted"); };
    this.kernel?.connect?.(this.restarted);
  }

  // The widget manager marks a view whose kernel is gone; anywidget's model does not.
  alive() { return this.model.comm_live !== undefined ? this.model.comm_live : !this.view.el.closest(".jupyter-widgets-disconnected"); }

  hello() {
    this.answered = this.closed = this.silent = false;
    clearInterval(this.timer);
    clearTimeout(this.patience);
    this.ask();
    this.patience = setTimeout(() => this.view.connection("waiting"), SILENCE);
    this.post({ kind: "hello" });
  }

  // Where the run does not train, the kernel is asked only while the pointer is in the view: each question keeps it busy for a moment.
  wanted() { return this.view.live() || this.view.root.matches(":hover"); }

  // A kernel that was killed or restarted closes nothing: without an answer, what is shown of the run is not known to hold.
  look() {
    if (!this.answered || this.closed) { this.asked = null; return; }
    const now = Date.now();
    // Whether clicks wait for a cell is known to the kernel from how a message arrives. A new page's first messages may wait in any case: JupyterLab
    // may send them before it has a subshell for them. So it is tried again, less and less often.
    if (this.view.waits && now > this.tryAt) {
      this.tryAt = now + (this.pause *= 2);
      this.post({ kind: "ping" });
    }
    if (this.asked !== null && now - this.asked > GONE && !this.view.live()) {
      // the kernel may be busy with a cell, after which it answers what was clicked
      this.asked = null;
      this.heard = now;
      this.silent = true;
      this.view.connection("waiting");
    }
    else if (this.asked !== null && now - this.asked > GONE) {
      this.close();
      this.timer = setInterval(() => { if (this.wanted()) this.post({ kind: "ping" }); }, RETRY);
    }
    else if (this.asked === null && now - this.heard > QUIET && this.wanted()) {
      this.asked = now;
      this.post({ kind: "ping" });
    }
  }

  ask() { this.timer = setInterval(() => this.post({ kind: "hello" }), AGAIN); }

  post(content) {
    if (this.closed && !["hello", "ping"].includes(content.kind)) return false;
    try { this.model.send(content); return true; }
    catch (error) {
      if (this.closed) return false;
      console.warn("trainer_nb: not sent:", error);
      this.close();
      this.ask();   // a connection may come back; a comm that was closed does not
      return false;
    }
  }

  receive(content, buffers) {
    if (!content || typeof content !== "object") return;
    this.heard = Date.now();
    this.asked = null;
    if (content.kind === "all") {
      this.seen = true;
      this.answered = true;
      clearInterval(this.timer);
      clearTimeout(this.patience);
    }
    if (this.answered && (this.closed || this.silent || content.kind === "all")) {
      const again = this.closed && content.kind === "pong";
      this.closed = this.silent = false;
      clearInterval(this.timer);
      this.view.connection("");
      if (again) { this.hello(); return; }   // messages may be missing
    }
    if (content.kind === "all") this.view.begin(content, buffers);
    else if (content.kind === "news" && this.seen && !this.view.take(content, buffers)) this.hello();
    else if (["received", "done", "rejected"].includes(content.kind)) this.view.commands.answer(content);
  }

  close(why = "closed") {
    this.closed = true;
    clearInterval(this.timer);
    clearTimeout(this.patience);
    this.view.connection(why);
  }

  stop() {
    clearInterval(this.timer);
    clearInterval(this.watch);
    clearTimeout(this.patience);
    this.model.off("msg:custom", this.onMessage);
    this.model.off("comm:close", this.gone);
    this.model.off("comm_live_update", this.moved);
    this.kernel?.disconnect?.(this.restarted);
  }
}

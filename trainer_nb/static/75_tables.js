// The table of evaluations, the newest first, and the notices.

// An empty table that scrolls: {scroll, head, body}.
function tableBox(label) {
  const head = make("tr"), body = make("tbody"), table = make("table", "tnb-table", null, {}, make("thead", "", null, {}, head), body);
  return { head, body, scroll: make("div", "tnb-scroll", null, { tabindex: "0", role: "region", "aria-label": `table of ${label}` }, table) };
}

class Evaluations {
  constructor() {
    Object.assign(this, tableBox("evaluations"));
    this.note = make("span", "tnb-card-note");
    const head = make("div", "tnb-card-head", null, {}, make("h4", "tnb-card-title", "Evaluations"), this.note);
    this.box = make("div", "tnb-card tnb-table-card", null, { role: "group", "aria-label": "evaluations", hidden: "" }, head, this.scroll);
  }

  update({ columns = [], rows = [], earlier = 0 }) {
    this.cells(this.head, "th", columns);
    while (this.body.children.length > rows.length) this.body.lastChild.remove();
    [...rows].reverse().forEach((row, i) => this.cells(this.body.children[i] || this.body.appendChild(make("tr")), "td", row));
    setText(this.note, earlier ? `${whole(earlier)} earlier ${earlier === 1 ? "one is" : "ones are"} not listed` : "");
    show(this.box, rows.length);
  }

  cells(row, tag, texts) {
    while (row.children.length > texts.length) row.lastChild.remove();
    texts.forEach((text, i) => setText(row.children[i] || row.appendChild(make(tag)), text));
  }
}

// One line for the newest, a list for all.
class Notices {
  constructor(view) {
    this.view = view;
    this.line = make("div", "tnb-notice", null, { role: "status", "aria-live": "polite", "data-tone": "plain" });
    this.icon = icon("plain");
    this.text = make("span", "tnb-notice-text");
    this.line.append(this.icon, this.text);
    this.act = this.button(this.line);
    this.box = make("div", "tnb-card tnb-notices-card", null, { role: "group", "aria-label": "notices" });
    const head = make("div", "tnb-card-head");
    head.append(make("h4", "tnb-card-title", "Notices"));
    this.list = make("ol", "tnb-notices", null, { tabindex: "0" });
    this.box.append(head, this.list);
    show(this.box, false);
    this.held = null;
  }

  say(text, tone = "plain", phase = "", action = null) {
    if (!text && this.offered) ({ text, tone, action } = this.offered);
    this.pending = ["sent", "busy", "received"].includes(phase);
    setAttribute(this.line, "data-tone", tone);
    setAttribute(this.line, "data-phase", phase || null);
    setIcon(this.icon, phase === "sent" || phase === "received" ? "dot" : phase === "busy" ? "wait" : tone === "plain" ? "info" : tone);
    setText(this.text, text);
    this.act.offer(action);
  }

  // The line shows the newest notice, unless it was there before, or when the page came; a finding that can be acted on, again and again.
  update(list) {
    const last = list[list.length - 1], first = !this.held, before = (this.held || [])[(this.held || []).length - 1], key = o => o ? JSON.stringify([o.text, o.at]) : "";
    const bottom = this.list.scrollTop + this.list.clientHeight >= this.list.scrollHeight - 4;
    while (this.list.children.length > list.length) this.list.lastChild.remove();
    list.forEach((notice, i) => this.put(this.list.children[i] || this.list.appendChild(this.row()), notice));
    show(this.box, list.length);
    this.held = list;
    if (bottom) this.list.scrollTop = this.list.scrollHeight;
    const offered = this.offered;
    this.offered = last && last.action ? last : null;
    if (last && !first && key(last) !== key(before)) this.say(last.text, last.tone, "", last.action);
    else if (Boolean(offered) !== Boolean(this.offered) && !this.pending) this.say("");
  }

  row() {
    const row = make("li");
    row.append(icon("plain"), make("span", "tnb-notice-text"), make("span", "tnb-notice-at"));
    row.act = this.button(row);
    return row;
  }

  // A button with what the kernel can do about it: the line of a finding, or to undo what was done.
  button(row) {
    const act = new Button("", "play", () => this.view.commands.send(act.action[1], act.action[2], act), "tnb-small");
    act.offer = action => { show(act.node, action && this.view.controlled); act.action = action; if (action) act.rename(action[0], "play"); };
    act.offer(null);
    row.append(act.node);
    return act;
  }

  put(row, { tone, text, at, action }) {
    const shown = ["good", "plain", "warn", "bad"].includes(tone) ? tone : "plain";
    setAttribute(row, "data-tone", shown);
    setIcon(row.children[0], shown === "plain" ? "info" : shown);
    setText(row.children[1], text);
    setText(row.children[2], at);
    row.act.offer(action);
  }
}

// The table of runs beside their charts: sorted, filtered and shown or hidden here; grouped and compared by the kernel.

const STATE_TONES = { failed: "bad", diverged: "bad", unreadable: "bad", training: "good", inactive: "warn", paused: "warn" };

class RunsTable {
  constructor(view) {
    Object.assign(this, { view, name: "Table", order: null, filter: "", rows: [], nodes: new Map(), known: new Set() });
    this.box = make("div", "tnb-card tnb-runs", null, { role: "group", "aria-label": "runs" });
    const bar = make("div", "tnb-runs-bar");
    this.search = make("input", "tnb-field", null, { type: "search", placeholder: "Filter: name  lr<0.01  state=failed", "aria-label": "filter the runs" });
    this.search.addEventListener("input", () => { this.filter = this.search.value; this.refresh(); });
    this.group = this.select("Group", value => this.ask("group", { name: value || null }));
    this.result = this.select("Result", value => this.ask("result", { name: value }));
    bar.append(this.search, this.group.label, this.result.label);
    Object.assign(this, tableBox("runs"));
    this.box.append(bar, this.scroll);
    this.body.addEventListener("pointerleave", () => this.view.highlight(null));
  }

  select(title, chosen) {
    const label = make("label", "tnb-runs-select"), node = make("select", "tnb-field", null, { "aria-label": title });
    node.addEventListener("change", () => chosen(node.value));
    label.append(make("span", "", title), node);
    return { label, node };
  }

  options({ node }, pairs, chosen) {
    const key = JSON.stringify(pairs);
    if (node.key !== key) node.replaceChildren(...pairs.map(([value, text]) => make("option", "", text, { value })));
    node.key = key;
    node.value = chosen;
  }

  ask(verb, given) { this.view.commands.send(verb, given, this); }
  phase() {}   // the line of notices says how far a command is

  update(table) {
    this.table = table;
    this.rows = table.rows;
    this.options(this.group, [["", "none"], ...table.groups.map(o => [o, o])], table.group || "");
    this.options(this.result, table.results.map(o => [o, o]), table.result);
    // the best ones are shown at first; eyes that the user has closed or opened stay as they are
    table.rows.forEach((row, i) => {
      if (!this.known.has(row.run) && i >= table.drawn) this.view.hidden.add("run:" + row.run);
      this.known.add(row.run);
    });
    if (this.order && this.order.column >= table.columns.length) this.order = null;
    this.refresh();
  }

  // ---- which rows stand there, and in which order
  // A term is a part of a name, or a condition on a column: lr<0.01, state=failed. All have to hold.
  matches(row) {
    return this.filter.toLowerCase().split(/\s+/).filter(Boolean).every(term => {
      const condition = term.match(/^(.+?)(<=|>=|<|>|=)(.*)$/);
      if (!condition) return [row.name, row.state, ...row.texts].some(o => o.toLowerCase().includes(term));
      const [, name, sign, wanted] = condition, column = this.table.columns.findIndex(o => o.toLowerCase().includes(name));
      const value = name === "state" ? row.state : name === "name" ? row.name : row.values[column];
      if (value === undefined || value === null) return false;
      if (sign === "=") return String(value).toLowerCase() === wanted || row.texts[column] === wanted || Number(value) === Number(wanted) && wanted !== "";
      const a = Number(value), b = Number(wanted);
      return wanted !== "" && { "<": a < b, ">": a > b, "<=": a <= b, ">=": a >= b }[sign];
    });
  }

  sorted() {
    if (!this.order) return this.rows;
    const { column, down } = this.order, value = row => column === -2 ? row.name : column === -1 ? row.state : row.values[column];
    return [...this.rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === null || y === null) return (x === null) - (y === null);   // what is not known stands last
      const less = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), undefined, { numeric: true });
      return down ? -less : less;
    });
  }

  refresh() {
    if (!this.table) return;
    const rows = this.sorted().filter(row => this.matches(row)), kept = new Set(rows.map(o => o.run)), left = new Set(this.rows.map(o => o.run).filter(o => !kept.has(o)));
    this.view.left = left;
    this.view.invalidate();
    this.heads(rows);
    for (const [id, node] of this.nodes) if (!kept.has(id)) { node.row.remove(); this.nodes.delete(id); }
    rows.forEach((row, i) => {
      if (!this.nodes.has(row.run)) this.nodes.set(row.run, this.build(row.run));
      const node = this.nodes.get(row.run);
      this.fill(node, row);
      if (this.body.children[i] !== node.row) this.body.insertBefore(node.row, this.body.children[i] || null);
    });
  }

  heads(rows) {
    const titles = ["run", "state", ...this.table.columns], open = rows.filter(o => this.open(o.run)).length, key = JSON.stringify([titles, this.order, rows.length, open]);
    if (this.head.key === key) return;
    this.head.key = key;
    const eye = make("button", "tnb-eye", null, { type: "button", "aria-pressed": String(open > 0), title: open ? "hide all curves" : "show the curves of these runs" });
    eye.append(icon("eye"));
    eye.addEventListener("click", () => this.view.setHidden(rows.map(o => o.run), open > 0));
    const first = make("th"), cells = titles.map((title, i) => {
      const cell = make("th"), button = make("button", "tnb-sort", title.replaceAll("_", "_\u200b"), { type: "button", title: `sort by ${title}` }), column = i - 2;
      if (this.order && this.order.column === column) { button.append(this.order.down ? " ↓" : " ↑"); cell.setAttribute("aria-sort", this.order.down ? "descending" : "ascending"); }
      button.addEventListener("click", () => {
        const same = this.order && this.order.column === column;
        this.order = same && this.order.down ? null : { column, down: Boolean(same) };
        this.refresh();
      });
      cell.append(button);
      return cell;
    });
    first.append(eye);
    this.head.replaceChildren(first, ...cells);
  }

  open(id) { return !this.view.hidden.has("run:" + id); }

  // ---- one row
  build(id) {
    const row = make("tr"), eye = make("button", "tnb-eye", null, { type: "button" }), name = make("div", "tnb-run-name"), swatch = make("i", "tnb-run-color"), text = make("span"), star = make("button", "tnb-star", null, { type: "button" });
    const first = make("td"), second = make("td"), node = { row, eye, swatch, text, star, second, cells: [] };
    eye.append(icon("eye"));
    star.append(icon("star"));
    name.append(swatch, text, star);
    first.append(eye);
    second.append(name);
    row.append(first, second);
    eye.addEventListener("click", () => this.view.setHidden([id], this.open(id)));
    star.addEventListener("click", () => this.ask("label", { run: id, baseline: star.getAttribute("aria-pressed") !== "true" }));
    row.addEventListener("pointerenter", () => this.view.highlight(id));
    return node;
  }

  fill(node, row) {
    setText(node.text, row.name);
    node.swatch.style.setProperty("--c", this.view.colorOf(row.run));
    setAttribute(node.second, "title", row.about);
    setAttribute(node.eye, "aria-pressed", String(this.open(row.run)));
    setAttribute(node.eye, "aria-label", `${this.open(row.run) ? "hide" : "show"} ${row.name}`);
    setAttribute(node.star, "aria-pressed", String(row.baseline));
    setAttribute(node.star, "title", row.baseline ? "the baseline: the others are compared with it" : "make this run the baseline");
    show(node.star, row.single);
    const texts = [row.state, ...row.texts];
    while (node.cells.length > texts.length) node.cells.pop().remove();
    texts.forEach((text, i) => {
      if (!node.cells[i]) node.row.append(node.cells[i] = make("td"));
      const cell = node.cells[i], title = this.table.columns[i - 1];
      setText(cell, text);
      setAttribute(cell, "title", text.length > 24 ? text : null);
      setAttribute(cell, "data-tone", i ? null : STATE_TONES[text]);
      setAttribute(cell, "class", i && typeof row.values[i - 1] === "number" ? "" : "tnb-words-cell");
      cell.ondblclick = row.single && ["tags", "note"].includes(title) ? () => this.edit(cell, row, title) : null;
      if (cell.ondblclick && !text) setAttribute(cell, "title", "double-click to write");
    });
  }

  edit(cell, row, title) {
    const text = prompt(`${title} of ${row.name}`, cell.textContent);
    if (text !== null) this.ask("label", { run: row.run, [title]: title === "tags" ? text.split(",").map(o => o.trim()).filter(Boolean) : text.trim() });
  }

  mark(id) {
    for (const [run, { row }] of this.nodes) row.classList.toggle("tnb-marked", run === id);
  }
}

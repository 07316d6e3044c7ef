#!/usr/bin/env python3
"""Run a notebook in a real kernel and show in the terminal what it does while it does it.

    python scripts/run_notebook.py nbs/tutorials/quickstart.ipynb

Prints each cell's number and heading, what it prints, its progress, and its time. Leaves the notebook with its outputs,
and a page to read or to send (one file, light and dark, with the versions and the duration), in build/notebooks. The output of
a cell with the tag `summary`, or that begins with `#| summary`, is said again at the end. Cells flagged `#| slow` or `#| gpu`
are left out unless `--flags slow gpu` asks for them. Exits with 1 when a cell fails."""
import argparse, asyncio, base64, configparser, contextlib, html, mimetypes, os, platform, re, shutil, signal, sys, time
from importlib import metadata
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

ROOT = Path(__file__).resolve().parents[1]
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# nbconvert's page without what it would fetch from elsewhere: require.js, MathJax, mermaid, the widgets' manager.
PAGE = """{% extends 'index.html.j2' %}
{% block html_head_js %}<meta name="color-scheme" content="light dark">{% endblock %}
{% block jupyter_widgets %}{% endblock %}
{% block html_head_js_mathjax %}{% endblock %}
{% block html_head_js_mermaidjs %}{% endblock %}
{% block html_head_css %}<style>{{ resources.page_css }}</style>{% endblock %}"""
# The browser's colours, lines of a length that can be read, and scroll bars instead of code and tables that are cut off.
CSS = """
body.jp-Notebook { height: auto; overflow: auto; padding: 0 20px; }
main { max-width: 1000px; margin: 28px auto 60px; }
h1:first-of-type { margin-top: 0; }
.jp-Cell { padding-left: 0; padding-right: 0; }
.jp-MarkdownOutput.jp-RenderedHTMLCommon, .jp-OutputArea-output { padding-left: 0; padding-right: 0; }
.jp-InputArea-editor, .jp-OutputArea-output { overflow-x: auto; overflow-y: hidden; }
.jp-OutputArea-output { padding-top: 4px; color: var(--jp-content-font-color1); }
.jp-OutputArea-output > pre, .jp-RenderedText pre { margin: 0; white-space: pre; }
.jp-RenderedHTMLCommon table { margin-left: 0; }
.page-facts { color: var(--jp-content-font-color2); font-size: 13px; }
.page-contents { font-size: 13px; line-height: 1.9; }
.page-contents a { margin-right: 14px; white-space: nowrap; }
.page-failed { margin: 4px 0; padding: 8px 12px; border-left: 4px solid #c62828; background: rgba(198, 40, 40, .1); }
.page-failed summary { margin-top: 6px; cursor: pointer; }
.page-failed pre { font-size: 12px; overflow-x: auto; }
@media print { .page-contents { display: none; } }
"""
VIEW = "application/vnd.jupyter.widget-view+json"


class Terminal:
    "Lines that stay, and a last line that may still change: a cell's title waiting for its time, or a progress bar."
    def __init__(self, out=sys.stdout, seconds=None):
        self.out, self.tty = out, out.isatty()
        self.seconds = seconds or (0.1 if self.tty else 5)   # at most one live line in so many seconds
        self.drawn_at, self.drawn, self.waiting = 0., "", ""  # when a live line was drawn, what it said, what is to follow
        self.open = ""                                       # what the last line is, while it is not ended: title, live

    def write(self, text, end="\n"): print(text if self.tty else ANSI.sub("", text), end=end, file=self.out, flush=True)

    def title(self, text):
        self.close()
        self.write(text, end="")
        self.open = "title"

    def time(self, seconds):
        "The time of a cell: on its title's line if nothing was printed since."
        self.close(title=False)
        self.write(f"  {seconds:.1f} s" if self.open == "title" else f"            {seconds:.1f} s")
        self.open = ""

    def line(self, text="", replaces=False):
        "A line that stays; `replaces` says that it is what the live line became."
        if replaces: self.waiting = ""
        if replaces and self.open == "live": self.write("\r\033[K", end="")
        else: self.close()
        self.write(text)
        self.open = ""

    def live(self, text):
        "A line that the next one replaces; a file gets one every few seconds."
        self.waiting = text
        if time.monotonic() - self.drawn_at >= self.seconds: self.draw()

    def draw(self):
        if not self.waiting: return
        if self.open == "title": self.write("")
        if self.tty: self.write("\r\033[K" + ANSI.sub("", self.waiting)[:shutil.get_terminal_size().columns - 1], end="")
        else: self.write(self.waiting)
        self.drawn_at, self.drawn, self.waiting, self.open = time.monotonic(), self.waiting, "", "live" if self.tty else ""

    def close(self, title=True):
        "Let the last line stand as it is."
        self.draw()
        if self.open == "live" or (self.open == "title" and title): self.write(""); self.open = ""


class Follower(NotebookClient):
    "A notebook client that says what its kernel says, as it says it."
    def __init__(self, nb, terminal, titles, **kwargs):
        super().__init__(nb, **kwargs)
        self.terminal, self.titles = terminal, titles
        self.partial, self.views = {}, {}   # by stream, a line not ended; by display id, the text of a live view

    async def async_execute_cell(self, cell, cell_index, **kwargs):
        self.partial, self.views, start = {}, {}, time.monotonic()
        with contextlib.suppress(NotImplementedError):   # Ctrl-C is the notebook's interrupt button
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: asyncio.ensure_future(self.km.interrupt_kernel()))
        if cell_index in self.titles: self.terminal.title(self.titles[cell_index])
        try: return await super().async_execute_cell(cell, cell_index, **kwargs)
        finally:
            self.finish()
            if cell_index in self.titles: self.terminal.time(time.monotonic() - start)

    def process_message(self, msg, cell, cell_index):
        content, kind = msg["content"], msg["msg_type"]
        name = (content.get("transient") or {}).get("display_id")
        if kind == "stream": self.stream(content["name"], content["text"])
        elif kind in ("display_data", "execute_result", "update_display_data"):
            if kind == "update_display_data" and name not in self.views: pass   # a view of an earlier cell, said there
            elif name: self.view(name, as_text(content["data"]))
            else: self.print(as_text(content["data"]))
        elif kind == "error" and belongs(cell): self.print(content["evalue"])
        return super().process_message(msg, cell, cell_index)

    def stream(self, name, text):
        "Whole lines are printed; what ends without a new line, as progress bars do, is live."
        *lines, rest = (self.partial.get(name, "") + text).split("\n")
        for o in lines: self.terminal.line("  " + last_part(o), replaces="\r" in o)
        self.partial[name] = rest = last_part(rest)
        if rest.strip(): self.terminal.live("  " + rest); self.partial[name] = "\r" + rest

    def view(self, name, text):
        "What is shown under an id may change, and is live: its first line."
        self.views[name] = text
        if text: self.terminal.live("  " + text.splitlines()[0])

    def print(self, text, most=30):
        lines = text.splitlines()
        if len(lines) > most: lines = lines[:most] + [f"... {len(lines) - most} more lines on the page"]
        for o in lines: self.terminal.line("  " + o)

    def finish(self):
        "The end of a cell: live views stand as they ended, whole if they have more lines than one."
        self.terminal.close(title=False)
        for o in self.views.values():
            if "  " + o != self.terminal.drawn: self.print(o)
        self.terminal.drawn = ""


def last_part(line):
    "What is left to be seen of a line that was written over with carriage returns."
    return line.rstrip("\r").rpartition("\r")[2]


def as_text(data):
    "What a terminal can show of an output; nothing for one that only says what it is, `<Figure ...>` or a widget."
    text = data.get("text/plain", "").rstrip()
    return "" if re.fullmatch(r"<[^\n]*>", text) or any("jupyter.widget" in k for k in data) else text


def directives(cell):
    "The names of a cell's `#|` directives."
    return {m[1] for m in re.finditer(r"^\s*#\s*\|\s*([\w-]+)(?!\w|:\s*true)", cell.source, re.M)} if cell.cell_type == "code" else set()


def belongs(cell): return "raises-exception" in cell.metadata.get("tags", ())   # the error of such a cell is part of the page


def titles(nb):
    "What is said before each cell that runs: its number, and its heading or its first line. Plumbing runs unsaid."
    cells = [i for i, c in enumerate(nb.cells) if c.cell_type == "code" and c.source.strip()
             and "skip-execution" not in c.metadata.get("tags", ()) and "hide" not in directives(c)]
    heading, found = "", {}
    for i, cell in enumerate(nb.cells):
        if cell.cell_type == "markdown" and (m := re.search(r"^#+ .*$", cell.source, re.M)): heading = m[0]
        elif i in cells:
            code = next((o for o in cell.source.splitlines() if o.strip() and not o.lstrip().startswith("#")), "")
            found[i] = f"cell {cells.index(i) + 1:>2}/{len(cells)}  {heading or code}"[:100]
            heading = ""
    return found


def leave_out(nb, flags):
    "Mark the cells that are not to run."
    skip = {"slow", "gpu"} - set(flags)
    for cell in nb.cells:
        never = cell.cell_type == "code" and re.search(r"^#\s*\|\s*eval:\s*false", cell.source, re.M)
        if never or directives(cell) & skip: cell.metadata.setdefault("tags", []).append("skip-execution")


def clean(nb):
    "Take out the times, what only a live kernel could draw, and what was printed only to be written over."
    nb.metadata.pop("widgets", None)
    for cell in nb.cells:
        cell.metadata.pop("execution", None)
        outputs = []
        for out in cell.get("outputs", ()):
            live = VIEW in out.get("data", {})
            if "data" in out: out["data"] = nbformat.from_dict({k: v for k, v in out["data"].items() if "jupyter.widget" not in k})
            if live and not out["data"].get("text/html", "").strip(): continue   # a widget without a picture: only its name is left
            joins = outputs and out.output_type == "stream" == outputs[-1].output_type and out.name == outputs[-1].name
            if joins: outputs[-1].text += out.text
            else: outputs.append(out)
        for out in outputs:
            if out.output_type == "stream": out.text = "\n".join(map(last_part, out.text.split("\n")))
        if cell.cell_type == "code": cell.outputs = outputs


def summary(nb):
    "The text that cells marked `#| summary` put out."
    for cell in nb.cells:
        if "summary" not in directives(cell) | set(cell.metadata.get("tags", ())): continue
        for out in cell.outputs:
            text = out.text if out.output_type == "stream" else as_text(out.get("data", {}))
            yield from text.rstrip().splitlines()


def versions(nb):
    "Python, the packages that the notebook imports, and their versions."
    names = {m[1] for c in nb.cells if c.cell_type == "code" for m in re.finditer(r"^(?:import|from)\s+(\w+)", c.source, re.M)}
    packages = metadata.packages_distributions()
    found = sorted({packages[o][0] for o in names if o in packages}, key=lambda o: (o != "trainer_nb", o.lower()))
    return [f"Python {platform.python_version()}", *(f"{o} {metadata.version(o).partition('+')[0]}" for o in found)]


def facts(nb, seconds, done):
    "One line: when the notebook ran, for how long, with what."
    verb = "Ran" if done else "Stopped by an error"
    cores = f"{os.cpu_count()} CPU core" + "s" * (os.cpu_count() != 1)
    return f"{verb} on {time.strftime('%d %B %Y').lstrip('0')} after {seconds:.0f} s, {cores}; {', '.join(versions(nb))}."


def absolute(text, folder):
    "Markdown whose links to other files of the project lead to where it is published: a page that is sent has no neighbours."
    settings = configparser.ConfigParser()
    settings.read(ROOT/"settings.ini")
    if not settings.has_option("DEFAULT", "git_url") or not folder.is_relative_to(ROOT): return text
    home = f"{settings['DEFAULT']['git_url']}/blob/{settings['DEFAULT']['branch']}"
    def link(m):
        target = Path(os.path.normpath(folder/m[2]))
        return f"{m[1]}({home}/{target.relative_to(ROOT).as_posix()}{m[3]})" if target.is_relative_to(ROOT) else m[0]
    return re.sub(r"(?<!!)(\[[^\]]*\])\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)", lambda m: link(m).replace("None)", ")"), text)


def with_pictures(text, folder):
    "Markdown whose pictures are in it: nbconvert embeds only those below the notebook's folder."
    def picture(m):
        path = folder/m[2]
        if re.match(r"\w+:", m[2]) or not path.is_file(): return m[0]
        kind = mimetypes.guess_type(path.name)[0] or "image/png"
        return f"{m[1]}(data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()})"
    return re.sub(r"(!\[[^\]]*\])\(([^)\s]+)\)", picture, text)


def as_failure(out):
    "An error as a sentence, with the traceback folded up below it."
    lines = html.escape(ANSI.sub("", "\n".join(out.traceback)))
    said = f"<b>{html.escape(out.ename)}</b>: {html.escape(out.evalue)}"
    text = f'<div class="page-failed">{said}<details><summary>Traceback</summary><pre>{lines}</pre></details></div>'
    return nbformat.v4.new_output("display_data", {"text/html": text, "text/plain": f"{out.ename}: {out.evalue}"})


def as_line(out):
    "An error that belongs to the page, as its message."
    return nbformat.v4.new_output("display_data", {"text/plain": out.evalue})


def page(nb, name, seconds, done, folder):
    "One HTML page that needs nothing from elsewhere; plumbing (`#| hide`) and directives are left out."
    from nbconvert import HTMLExporter
    nb = nbformat.from_dict(nb)
    about = facts(nb, seconds, done)
    nb.cells = [c for c in nb.cells if "hide" not in directives(c)]
    for cell in nb.cells:
        if cell.cell_type == "markdown": cell.source = with_pictures(absolute(cell.source, folder), folder)
        if cell.cell_type != "code": continue
        cell.source = re.sub(r"^\s*#\s*\|.*\n?", "", cell.source, flags=re.M)
        as_shown = as_line if belongs(cell) else as_failure
        cell.outputs = [as_shown(o) if o.output_type == "error" else o for o in cell.outputs]
    heading = next((m[1] for c in nb.cells if c.cell_type == "markdown" and (m := re.search(r"^# +(.*)$", c.source, re.M))), name)
    nb.metadata["title"] = heading
    top = nbformat.v4.new_markdown_cell(f'<div class="page-facts">{html.escape(about)}</div>\n<div class="page-contents">CONTENTS</div>')
    nb.cells.insert(bool(nb.cells and nb.cells[0].cell_type == "markdown"), top)
    exporter = HTMLExporter(raw_template=PAGE, embed_images=True, exclude_input_prompt=True, exclude_output_prompt=True)
    text = exporter.from_notebook_node(nb, {"page_css": CSS + dark_css()})[0]
    links = [f'<a href="#{m[1]}">{m[2]}</a>' for m in re.finditer(r'<h2 id="([^"]*)">(.*?)(?:<a |</h2>)', text)]
    return text.replace("CONTENTS", " ".join(links), 1)


def dark_css():
    "JupyterLab's dark colours, for a browser that prefers them."
    from jupyter_core.paths import jupyter_path
    paths = [Path(o, "lab", "static", "theme-dark.css") for o in jupyter_path("nbconvert", "templates")]
    found = next((o for o in paths if o.is_file()), None)
    return "" if found is None else f"@media (prefers-color-scheme: dark) {{ {found.read_text('utf-8')} }}"


def run(path, flags=(), folder=ROOT/"build"/"notebooks"):
    "Run the notebook; returns whether it ran to its end."
    terminal, nb = Terminal(), nbformat.read(path, 4)
    for cell in nb.cells:
        if cell.cell_type == "code": cell.outputs, cell.execution_count = [], None
    leave_out(nb, flags)
    client = Follower(nb, terminal, titles(nb), timeout=None, kernel_name="python3", store_widget_state=False,
                      extra_arguments=["--IPKernelApp.log_level=40"],   # errors only: no advice about sockets
                      resources={"metadata": {"path": str(path.parent)}})
    start, done = time.monotonic(), False
    try: client.execute(); done = True
    except CellExecutionError as e:
        errors = [o for c in nb.cells for o in c.get("outputs", ()) if o.output_type == "error"]
        terminal.line("\n".join(errors[-1].traceback) if errors else str(e))
    except DeadKernelError: terminal.line("The kernel died. Out of memory is the usual cause.")
    seconds = time.monotonic() - start
    clean(nb)
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(nb, folder/path.name)
    target = folder/(path.stem + ".html")
    target.write_text(page(nb, path.stem, seconds, done, path.parent), encoding="utf-8")
    terminal.line()
    for o in summary(nb): terminal.line(o)
    terminal.line(f"{'Ran' if done else 'Stopped'} after {seconds:.0f} s. The page, one file to read or to send: {target}")
    return done


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--flags", nargs="*", default=(), help="run these flagged cells as well: slow, gpu")
    parser.add_argument("--out", type=Path, default=ROOT/"build"/"notebooks", help="where the notebook and the page go")
    args = parser.parse_args()
    if not args.notebook.is_file(): sys.exit(f"There is no notebook {args.notebook}.")
    os.environ.setdefault("JUPYTER_PREFER_ENV_PATH", "1")   # this environment's kernel, not one of the same name elsewhere
    sys.exit(0 if run(args.notebook.resolve(), args.flags, args.out.resolve()) else 1)


if __name__ == "__main__": main()

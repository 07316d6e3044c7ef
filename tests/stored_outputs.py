"""The outputs that a notebook has stored, beside those that it has when it is executed now.

Equal up to what differs from run to run and from machine to machine. `normalised` takes these out of a text: numbers (with
sign, exponent, and a unit of time or size), times of day, ids, addresses, paths of temporary folders, the width of columns and
the length of bars. Of a table, the names of the columns and the texts in its rows remain; of a picture, that there is one.
Progress bars (with the tables below them), the announcement of a long replay and the places of line breaks do not count. What was printed to stderr, and the lines that loggers of libraries
print, are not compared: they depend on what was imported before; except stderr of a cell with the tag `keep-stderr`. Live views are not stored (scripts/drop_views.py), so they are
not expected either."""
import difflib, html, json, re

LOGGED = re.compile(r"^\[[\d\-:, ]+\] \[(?:DEBUG|INFO|WARNING|ERROR)\] .*\n?", re.M)   # DeepSpeed's loggers
# of a warning, its place in a file and the line of code there
PLACE = re.compile(r"^\S+:\d+: (\w*Warning: .*\n?)(?:  .*\n?)?", re.M)
# said where it takes longer than a moment
REPLAYED = re.compile(r"^Going back to step \d+: .* are replayed .*\n?", re.M)
LIVE = "application/vnd.jupyter.widget-view+json"
# of a figure, whose picture is stored beside it
NUMBER = r"(?<![A-Za-z_\d])[+\-−±~]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][+\-]?\d+)?(?:\s?(?:[mµun]?s|min|h|kB|MB|GB|[KMGT]iB|%)\b|%)?"
BAR = '<div style="height:6px;border-radius:3px;overflow:hidden'   # of live/screens: the track of a progress bar
# In this order: a later pattern may rely on the earlier ones.
REPLACED = [
    (r"\x1b\[[0-9;?]*[A-Za-z]", ""),                                # colours of a terminal
    (r"(?<![\w.])/(?:tmp|var/folders)/[\w./+-]+", "PATH"),
    (r"\b0x[0-9a-f]+\b", "ID"),
    (r"\b(?=[0-9a-f]*\d)[0-9a-f]{6,}\b(?:-[0-9a-f]{4,})*", "ID"),   # hashes, ids of runs and of displays
    (r"\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec|Mon|Tue|Wed|Thu|Fri|Sat|Sun)\w*\b(?=[ ,]*\d)", "DATE"),
    (r"\d+(?:[:\-]\d\d)+(?:[T ]\d\d:\d\d(?::\d\d)?)?", "0"),        # times of day, durations, dates
    (r"(?<=\d) threads?\b", " threads"),                            # their number is the machine's
    (r"(?:, where the loss diverged)?\.(?= \d+ candidates)", ""),    # of lr_find: whether it did is a matter of rounding
    (r"\bthe slowest\b", ""),                                       # in the table of the processes: a remark on measurements
    (r"\b(?:nan|inf|None)\b|—", "0"),                               # a value that one run has and another has not yet
    (NUMBER, "0"),
    (r"[█▉▊▋▌▍▎▏░▒▓━╸╺─=]{2,}", ""),                                # bars
    (r"[-_]{3,}", "---"),
    (r"\s+", " "),
    (r"0(?:[ ,]+0)+", "0"),                                         # a row of numbers
    # the dashboard's sentence on a run, which its numbers decide
    (r"^(?:(?:Overfitting: )?\w+ was lowest at step|The mean loss is well above|The loss has (?:risen|fallen): mean|No clear trend: mean loss).*", "HEALTH"),
]


def normalised(text):
    "Return a text without what differs from run to run; see above."
    for pattern, instead in REPLACED: text = re.sub(pattern, instead, text)
    return text.strip()


def lines(text):
    "Return the lines of a text, normalised, without those that a carriage return has overwritten and empty ones."
    shown = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    return [o for o in map(normalised, shown) if o]


def joined(value): return value if isinstance(value, str) else "".join(value) if isinstance(value, list) else json.dumps(value)


def page_lines(text):
    "Return the lines of HTML that a reader sees: the texts between tags; pictures inside of it as one word."
    text = re.sub(r"(?s)<(style|script)\b.*?</\1>", "", text)
    text = re.sub(r"(?s)<svg\b.*?</svg>|<img\b[^>]*>", "\nPICTURE\n", text)
    columns = [f"columns: {html.unescape(re.sub('<[^>]+>', '', o)).strip()}" for o in re.findall(r"(?s)<th\b[^>]*>(.*?)</th>", text)]
    return [*columns, *lines(html.unescape(re.sub(r"\s*<[^>]+>\s*", "\n", re.sub(r"(?s)<th\b.*?</th>", "", text))))]


def without_places(text, source):
    "Return warnings without their places in files and the lines of the cell's code there, which follow messages of one line or more."
    code = {f"  {line.strip()}" for line in source.splitlines()}
    return "".join(o for o in PLACE.sub(r"\1", text).splitlines(keepends=True) if o.rstrip() not in code)


def described(outputs, stderr=False, source=""):
    """Return the outputs of a cell as lines that can be compared; what was printed comes first, as nbdev gives it. stderr: compare it, too;
    source: of the cell."""
    printed, errors, shown = [], [], []
    for out in outputs:
        if out["output_type"] == "stream":
            if out["name"] == "stdout": printed.append(REPLAYED.sub("", LOGGED.sub("", joined(out["text"]))))
            elif stderr: errors.append(without_places(joined(out["text"]), source))
        elif out["output_type"] == "error": shown += ["error:", *lines(f"{out['ename']}: {out['evalue']}")]
        else:
            data = {kind: joined(value) for kind, value in out["data"].items() if kind != LIVE}
            if not "".join(data.values()).strip(): continue
            # a bar is shown for what takes longer than a moment
            if BAR in data.get("text/html", ""): continue
            # the same picture, for viewers that show it
            if "text/html" in data: data.pop("image/svg+xml", None)
            shown.append(f"{out['output_type']}: {', '.join(sorted(data))}")
            if "text/html" in data: shown += page_lines(data["text/html"])
            elif set(data) == {"text/plain"}: shown += lines(data["text/plain"])
    # what comes first of the two is a matter of chance
    return [*lines("".join(printed)), *lines("".join(errors)), *shown]


def differences(notebook, now, missing=True):
    """Return a report of the cells whose stored outputs are not those of `now`, as text; empty if there are none.

    `notebook` is the parsed file, `now` the outputs by the id of the cell; cells that were not executed are not compared. With
    `missing`, a cell without stored outputs must have none now."""
    report = []
    code = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    for number, cell in enumerate(code, 1):
        if cell["id"] not in now or not (missing or cell["outputs"]): continue
        is_kept = "keep-stderr" in cell.get("metadata", {}).get("tags", ())
        stored, here = (described(o, is_kept, joined(cell["source"])) for o in (cell["outputs"], now[cell["id"]]))
        # IPython breaks the lines of a value where they become too long, which depends on its numbers
        if " ".join(stored) == " ".join(here): continue
        first = next((o for o in joined(cell["source"]).splitlines() if o.strip() and not o.startswith("#")), "")
        # without the names of the two sides, and without positions
        changed = [o[:200] for o in difflib.unified_diff(stored, here, lineterm="", n=1) if not o.startswith(("---", "+++", "@@"))]
        more = [f"... {len(changed) - 25} more lines"] if len(changed) > 25 else []
        report += [f"code cell {number} ({cell['id']}): {first[:90]}", *(f"  {o}" for o in changed[:25] + more)]
    return "\n".join(report)

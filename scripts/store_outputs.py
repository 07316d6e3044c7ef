#!/usr/bin/env python3
"""Execute notebooks in a kernel and store what their cells put out; the rest of the files stays as it is.

    python scripts/store_outputs.py nbs/tutorials/live.ipynb

Cells flagged `#| slow` or `#| gpu` are not executed and keep their outputs. What is printed to stderr, what loggers of libraries
print, and live views are not stored. A warning on stderr is an error that names the cell, and then nothing is stored: readers would
see the warning. A cell whose stderr or exception belongs to the page has the tag `keep-stderr` or `raises-exception`. With --check,
nothing is stored at all. A test compares the stored outputs of nbs/tutorials and nbs/guides with those of the present code."""
import argparse, json, os, re, sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
LIVE = "application/vnd.jupyter.widget-view+json"
# The interactive copy of a chart takes many times the room of its picture.
IMAGE = "data-trainer-nb-image"
FIGURE_SCRIPT = re.compile(r"<script\b.*?</script>", re.S)
LOGGED = re.compile(r"^\[[\d\-:, ]+\] \[(?:DEBUG|INFO|WARNING|ERROR)\] .*\n?", re.M)   # DeepSpeed's loggers print to stdout
WARNED = re.compile(r"\b\w*Warning: .*")
# of a warning, its place in a file and the line of code there
PLACE = re.compile(r"^\S+:\d+: (\w*Warning: .*\n?)(?:  .*\n?)?", re.M)
LEFT_OUT = re.compile(r"^#\s*\|\s*(slow|gpu|eval:\s*false)", re.M)


def as_lines(value): return value.splitlines(keepends=True) if isinstance(value, str) else value


def without_places(text, source):
    "Warnings without their places in files and the lines of the cell's code there, which follow messages of one line or more."
    code = {f"  {line.strip()}" for line in source.splitlines()}
    return "".join(o for o in PLACE.sub(r"\1", text).splitlines(keepends=True) if o.rstrip() not in code)


def storable(out, tags=(), source=""):
    "The output as nbdev_clean keeps it, or None; tags, source: of its cell."
    if out["output_type"] == "stream":
        is_kept = out["name"] != "stderr" or "keep-stderr" in tags
        text = without_places(LOGGED.sub("", out["text"]), source) if is_kept else ""
        return {**out, "text": as_lines(text)} if text else None
    if out["output_type"] == "error":
        if "raises-exception" not in tags: raise RuntimeError(out["evalue"])
        return dict(out)
    data = {k: as_lines(FIGURE_SCRIPT.sub("", v) if k == "text/html" and IMAGE in v else v)
            for k, v in out["data"].items() if k != LIVE and v}
    if not data: return None
    kept = {"data": data, "metadata": {}, "output_type": out["output_type"]}
    return kept | ({"execution_count": None} if out["output_type"] == "execute_result" else {})


def tags_of(cell): return cell["metadata"].get("tags", ())


def warned(cells):
    "The warnings on stderr of the cells that are not to show any, each with its cell."
    found = []
    for number, cell in enumerate(o for o in cells if o["cell_type"] == "code"):
        if "keep-stderr" in tags_of(cell): continue
        for out in cell["outputs"]:
            if out["output_type"] != "stream" or out["name"] != "stderr": continue
            first = next((o for o in cell["source"].splitlines() if o.strip() and not o.startswith("#")), "")
            found += [f"code cell {number + 1} ({cell.get('id')}, {first[:60]}): {o}" for o in WARNED.findall(out["text"])]
    return found


def store(path, check=False):
    "Execute one notebook and write its outputs, unless `check`; return the warnings that its readers would see."
    stored, executed = json.loads(path.read_text(encoding="utf-8")), nbformat.read(path, 4)
    for cell in executed.cells:
        if cell.cell_type == "code" and LEFT_OUT.search(cell.source): cell.metadata.setdefault("tags", []).append("skip-execution")
    NotebookClient(executed, timeout=600, kernel_name="python3", store_widget_state=False,
                   resources={"metadata": {"path": str(path.parent)}}).execute()
    found = warned(executed.cells)
    if check or found: return found
    for cell, now in zip(stored["cells"], executed.cells):
        if cell["cell_type"] != "code" or "skip-execution" in tags_of(now): continue
        cell["outputs"] = [o for o in (storable(out, tags_of(cell), now.source) for out in now.outputs) if o is not None]
    path.write_text(json.dumps(stored, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--check", action="store_true", help="only look for warnings, and store nothing")
    # this environment's kernel, this repository's package, sums in the same order
    os.environ.update(JUPYTER_PREFER_ENV_PATH="1", PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1")
    given, failed = parser.parse_args(), False
    for path in given.notebooks:
        for warning in store(path, given.check):
            failed = True
            print(f"{path}: {warning}", file=sys.stderr, flush=True)
    if failed: sys.exit("Nothing is stored of a page whose readers would see a warning: repair it, or tag the cell `keep-stderr`.")


if __name__ == "__main__": main()

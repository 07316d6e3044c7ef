#!/usr/bin/env python3
"""Execute notebooks in a kernel and store what their cells put out; the rest of the files stays as it is.

    python scripts/store_outputs.py nbs/tutorials/live.ipynb

Cells flagged `#| slow` or `#| gpu` are not executed and keep their outputs. What is printed to stderr, what loggers of libraries
print, and live views are not stored. A test compares the stored outputs of nbs/tutorials and nbs/guides with those of the present code."""
import argparse, json, os, re
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
LIVE = "application/vnd.jupyter.widget-view+json"
# The interactive copy of a chart takes many times the room of its picture.
PLOTLY = "application/vnd.plotly.v1+json"
IMAGE = "data-trainer-nb-image"
FIGURE_SCRIPT = re.compile(r"<script\b.*?</script>", re.S)
LOGGED = re.compile(r"^\[[\d\-:, ]+\] \[(?:DEBUG|INFO|WARNING|ERROR)\] .*\n?", re.M)   # DeepSpeed's loggers print to stdout
LEFT_OUT = re.compile(r"^#\s*\|\s*(slow|gpu|eval:\s*false)", re.M)


def as_lines(value): return value.splitlines(keepends=True) if isinstance(value, str) else value


def storable(out):
    "The output as nbdev_clean keeps it, or None."
    if out["output_type"] == "stream":
        text = "" if out["name"] == "stderr" else LOGGED.sub("", out["text"])
        return {**out, "text": as_lines(text)} if text else None
    if out["output_type"] == "error": raise RuntimeError(out["evalue"])
    left_out = {LIVE}
    if {"image/svg+xml", "text/html"} & out["data"].keys(): left_out.add(PLOTLY)
    data = {k: as_lines(FIGURE_SCRIPT.sub("", v) if k == "text/html" and IMAGE in v else v)
            for k, v in out["data"].items() if k not in left_out and v}
    if not data: return None
    kept = {"data": data, "metadata": {}, "output_type": out["output_type"]}
    return kept | ({"execution_count": None} if out["output_type"] == "execute_result" else {})


def store(path):
    "Execute one notebook and write its outputs."
    stored, executed = json.loads(path.read_text(encoding="utf-8")), nbformat.read(path, 4)
    for cell in executed.cells:
        if cell.cell_type == "code" and LEFT_OUT.search(cell.source): cell.metadata.setdefault("tags", []).append("skip-execution")
    NotebookClient(executed, timeout=600, kernel_name="python3", store_widget_state=False,
                   resources={"metadata": {"path": str(path.parent)}}).execute()
    for cell, now in zip(stored["cells"], executed.cells):
        if cell["cell_type"] != "code" or "skip-execution" in now.metadata.get("tags", ()): continue
        cell["outputs"] = [o for o in map(storable, now.outputs) if o is not None]
    path.write_text(json.dumps(stored, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="+", type=Path)
    # this environment's kernel, this repository's package, sums in the same order
    os.environ.update(JUPYTER_PREFER_ENV_PATH="1", PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1")
    for path in parser.parse_args().notebooks: store(path)


if __name__ == "__main__": main()

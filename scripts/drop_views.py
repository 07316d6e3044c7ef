#!/usr/bin/env python3
"""Take the live views out of the stored outputs of notebooks; the still picture beside each stays.

    python scripts/drop_views.py                      # all notebooks in nbs/
    python scripts/drop_views.py nbs/tutorials/live.ipynb

A live view is nothing without its kernel: what is stored of it is the number of a widget that is gone. nbdev_clean
keeps it on purpose, so `make export` calls this too. Needs nothing but Python."""
import argparse, json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VIEW, STATE = "application/vnd.jupyter.widget-view+json", "widgets"


def text_of(value): return value if isinstance(value, str) else "".join(value)


def without_view(out):
    "The output without its live view; None if nothing is left."
    if VIEW not in out.get("data", {}): return out
    data = {k: v for k, v in out["data"].items() if k != VIEW and text_of(v).strip()}
    return {**out, "data": data} if data else None


def drop(path):
    "Take the views out of one notebook; whether there were any."
    old = path.read_text(encoding="utf-8")
    notebook = json.loads(old)
    notebook["metadata"].pop(STATE, None)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code": cell["outputs"] = [o for o in map(without_view, cell["outputs"]) if o is not None]
    new = json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"   # as nbdev_clean writes it
    if notebook == json.loads(old): return False
    path.write_text(new, encoding="utf-8")
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", type=Path, help="without any: all in nbs/")
    paths = parser.parse_args().notebooks or sorted((ROOT/"nbs").rglob("*.ipynb"))
    for path in paths:
        if ".ipynb_checkpoints" not in path.parts and drop(path): print(f"{path}: live views taken out")


if __name__ == "__main__": main()

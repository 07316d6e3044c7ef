#!/usr/bin/env python3
"""Take the lists of names (`__all__`) that nbdev writes out of the modules: trainer_nb/__init__.py alone has what is public.

    python scripts/drop_lists.py      # a part of `make export`, after nbdev_export"""
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = re.compile(r"# %% auto #0\n__all__ = \[[^\]]*\]\n\n")


def drop_lists():
    "Drop the list of each module."
    for path in (ROOT/"trainer_nb").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if LIST.search(text): path.write_text(LIST.sub("", text, count=1), encoding="utf-8")


if __name__ == "__main__": drop_lists()

#!/usr/bin/env python3
"""Lower the numbers in budget.toml to what the package and the tests have now; a number that is exceeded stays.

    python scripts/budget.py

Each line is a folder, or a module longer than LONGEST, with its number of lines (and of modules). Two branches that both changed
a number leave two lines after a merge (see .gitattributes); the higher one counts, and this script leaves one."""
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT/"budget.toml"
LONGEST = 500   # lines of a module that needs no line of its own
ENTRY = re.compile(r'^"(?P<name>.+)" = (?:(?P<long>\d+)|\{lines = (?P<lines>\d+), modules = (?P<modules>\d+)\})$', re.M)
HEAD = f"""# The most lines and modules that each chapter of the package and of the tests may have, and the modules longer than {LONGEST} lines.
# A test fails above these numbers. `python scripts/budget.py` lowers them; to raise one, lower another in the same commit.
"""


def read(file=FILE):
    "Return {name: (lines, modules)}; modules is None for a single module."
    found = {}
    for entry in ENTRY.finditer(file.read_text("utf-8")):
        new = (int(entry["long"]), None) if entry["long"] else (int(entry["lines"]), int(entry["modules"]))
        old = found.get(entry["name"], new)
        found[entry["name"]] = tuple(None if a is None else max(a, b) for a, b in zip(old, new))
    return found


def count(root=ROOT):
    "Return the present numbers as `read` does: of each folder, of all JavaScript and CSS, and of each long module of the package."
    lines, modules, long = Counter(), Counter(), {}
    for top in ("trainer_nb", "tests"):
        for file in (root/top).rglob("*.py"):
            if file.name == "_modidx.py": continue
            path, n = file.relative_to(root), len(file.read_text("utf-8").splitlines())
            folder = "/".join(path.parts[:2]) if len(path.parts) > 2 else top
            lines[folder] += n
            modules[folder] += file.name != "__init__.py"
            if top == "trainer_nb" and n > LONGEST: long[path.as_posix()] = (n, None)
    for file in (o for kind in ("*.js", "*.css") for o in (root/"trainer_nb").rglob(kind)):
        lines["JavaScript and CSS"] += len(file.read_text("utf-8").splitlines())
        modules["JavaScript and CSS"] += 1
    return {name: (lines[name], modules[name]) for name in sorted(lines)} | dict(sorted(long.items()))


def exceeded(budget, counts):
    "Return what is above the budget or not in it, as sentences."
    found = []
    for name, (lines, modules) in counts.items():
        most_lines, most_modules = budget.get(name, (LONGEST if modules is None else 0, 0))
        if lines > most_lines: found.append(f"{name} has {lines} lines, {most_lines} are allowed")
        if modules is not None and modules > most_modules: found.append(f"{name} has {modules} modules, {most_modules} are allowed")
    return found


def write(budget, file=FILE):
    "Write the numbers, one line each."
    rows = [f'"{name}" = {lines}' if modules is None else f'"{name}" = {{lines = {lines}, modules = {modules}}}' for name, (lines, modules) in budget.items()]
    file.write_text(HEAD + "\n" + "\n".join(rows) + "\n", encoding="utf-8")


def lowered(budget, counts):
    "Return the budget with each number lowered to the present one, without what no longer exists."
    return {name: tuple(None if o is None else min(o, n) for o, n in zip(old, counts[name])) for name, old in budget.items() if name in counts}


if __name__ == "__main__":
    now = count()
    write(lowered(read(), now))
    for line in exceeded(read(), now): print(line)

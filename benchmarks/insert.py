"""Write the tables of the stored results (benchmarks/results/*.json) into benchmarks/README.md and nbs/index.ipynb.

    python benchmarks/insert.py           # write; then `make export`, or scripts/make_readme.py, makes README.md
    python benchmarks/insert.py --check   # exit with 1 where a table is not what the stored results give

A result of a GPU is stored as, for example, overhead_cuda.json.

Tables stand between two comments, `<!-- figures: overhead.readme -->` and `<!-- end of figures -->`: the name of a
benchmark and of one of its tables; without the latter, all tables but the README's. What stands there is left as it is
while the benchmark has no stored result.
"""
from __future__ import annotations

import argparse
import importlib
import json
import pathlib
import re
import sys

import harness

BENCHMARKS = ["overhead", "overhead_cuda", "models", "models_cuda", "evaluating", "tools", "saving", "watching", "views", "launching", "lr_find", "gpu"]
FILES = ["benchmarks/README.md", "nbs/index.ipynb"]
MARKED = re.compile(r"(<!-- figures: (\w+)(?:\.([\w-]+))? -->\n)(.*?)(<!-- end of figures -->)", re.S)


def stored_results(folder: pathlib.Path) -> dict:
    "Return the stored results by benchmark. Raise ValueError for a result that does not belong to this version."
    results = {}
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["package_version"] != harness.package_version():
            raise ValueError(f"{path.name} was measured with trainer_nb {found['package_version']}, and this is "
                             f"{harness.package_version()}: measure again with `make bench BENCH={path.stem}`.")
        if found["quick"]: raise ValueError(f"{path.name} is a rough look (--quick): measure without it.")
        if harness.stored_name(found) != path.stem: raise ValueError(f"{path.name} holds the result of {harness.stored_name(found)}.")
        results[path.stem] = found
    return results


def all_tables(results: dict) -> dict:
    "Return the tables of all results by benchmark and name."
    return {name: importlib.import_module(found["benchmark"]).tables(found) for name, found in results.items()}


def with_tables(text: str, tables: dict) -> str:
    "Return a text with its tables replaced. Raise ValueError for a table that a stored result does not have."
    def replace(match):
        begin, benchmark, name, old, end = match.groups()
        if benchmark not in BENCHMARKS: raise ValueError(f"There is no benchmark {benchmark!r}; there are {BENCHMARKS}.")
        if benchmark not in tables: return match[0]
        made = tables[benchmark]
        if name and name not in made:
            raise ValueError(f"The result of {benchmark} has no table {name!r}; it has {list(made)}.")
        shown = made[name] if name else "\n\n".join(text for key, text in made.items() if key != "readme")
        return f"{begin}\n{shown}\n\n{end}"
    return MARKED.sub(replace, text)


def with_tables_in_notebook(text: str, tables: dict) -> str:
    "Return a notebook's JSON with the tables of its Markdown cells replaced."
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        if cell["cell_type"] != "markdown": continue
        cell["source"] = with_tables("".join(cell["source"]), tables).splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def main(argv=None):
    "Write the tables, or check them."
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where something would change")
    parser.add_argument("--root", type=pathlib.Path, default=harness.ROOT, help="the repository")
    opts = parser.parse_args(argv)
    try: tables = all_tables(stored_results(opts.root/"benchmarks"/"results"))
    except ValueError as error: sys.exit(str(error))
    changed = {}
    for name in FILES:
        text = (opts.root/name).read_text(encoding="utf-8")
        try: new = (with_tables_in_notebook if name.endswith(".ipynb") else with_tables)(text, tables)
        except ValueError as error: sys.exit(f"{name}: {error}")
        if new != text: changed[name] = new
    if changed and opts.check: sys.exit(f"Not what benchmarks/results gives; run `make figures`: {', '.join(changed)}")
    for name, text in changed.items(): (opts.root/name).write_text(text, encoding="utf-8")
    if changed: print(f"Changed: {', '.join(changed)}")


if __name__ == "__main__": main()

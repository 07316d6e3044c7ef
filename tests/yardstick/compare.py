"""Compare two revisions of the package: what programs, names, and the table of features come to, byte for byte.

    python tests/yardstick/compare.py                      the working tree with the revision before the package was made smaller
    python tests/yardstick/compare.py --base HEAD~3 --head HEAD --only resume,overrides

The programs are those of this folder. Each runs with both packages, in processes of its own, on this machine, with one thread.
A difference that is meant stands in allowed.json with its reason: {"a pattern of its line": "why"}.
"""
import argparse, fnmatch, json, os, re, subprocess, sys, tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BASE = "380b2fb614631bc1fb38370aff99ed1df439e5e7"
PAGE = "nbs/trainer.ipynb"
SHOWN = 40   # differences that are printed of each program


def git(*words): return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True).stdout


def unpack(revision, folder):
    "The package and the table of a revision, in a folder."
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", folder], input=git("archive", revision, "trainer_nb", PAGE), check=True)
    return folder


def start(tree, script, *words):
    "A process of this Python that imports the package of a tree."
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tree), str(HERE)]), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
                        "TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, script, *map(str, words)], env=env, cwd=tree, check=True)


def compared(kind, base, head):
    "One line for each entry of two flat dicts that differs."
    lines = [f"{kind}: {name}: {base.get(name, 'is not there')} -> {head.get(name, 'is not there')}" for name in sorted({*base, *head}) if base.get(name) != head.get(name)]
    return lines + [f"{kind}: {name}: {text}" for name, text in base.items() if name == "FAILED"]


def table(tree):
    "The rows of the table of features, by section and first column: status and text. Links to tests may change."
    cells = json.loads((tree/PAGE).read_text(encoding="utf-8"))["cells"]
    rows, section = {}, ""
    for line in "\n".join("".join(c["source"]) for c in cells).splitlines():
        if line.startswith("#"): section = line.strip("# ")
        if not line.startswith("| ") or line.startswith("| of the Trainer"): continue
        first, *rest = [c.strip() for c in re.split(r"(?<!\\)\|", line.strip("|"))]
        rows[f"{section}: {first}"] = re.sub(r"\]\(\S*\)", "]", " | ".join(rest[:-1]))
    return rows


def run_programs(base, head, names, folder):
    "What the programs came to with the two packages; the same package is not run twice."
    found = []
    for number, tree in enumerate((base, head)):
        print(f"--- {'base' if number == 0 else 'head'}", flush=True)
        start(tree, HERE/"recording.py", folder/f"{number}.json", *names)
        found.append(json.loads((folder/f"{number}.json").read_text()))
    return [line for name in names for line in compared(name, found[0][name], found[1][name])]


def interfaces(base, head, folder):
    "Public names, signatures, and fields of the arguments."
    found = []
    for number, tree in enumerate((base, head)):
        start(tree, HERE/"names.py", folder/f"names{number}.json")
        found.append(json.loads((folder/f"names{number}.json").read_text()))
    return compared("names", *found)


def differences(base=BASE, head=None, only=(), names=True, verbose=True):
    "All differences of two revisions, one line each, without those that are allowed; `head=None` is the working tree."
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        trees = unpack(base, folder/"base"), ROOT if head is None else unpack(head, folder/"head")
        lines = interfaces(*trees, folder) + compared("table", *map(table, trees)) if names else []
        if only: lines += run_programs(*trees, list(only), folder)
    allowed = json.loads((HERE/"allowed.json").read_text())
    return [line for line in lines if not any(fnmatch.fnmatchcase(line, pattern) for pattern in allowed)]


def main():
    sys.path.insert(0, str(ROOT))
    import programs
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default=BASE, help="a git revision")
    parser.add_argument("--head", help="a git revision; without it, the working tree")
    parser.add_argument("--only", help="names of programs, separated by commas; 'quick', 'names' (no programs)")
    given = parser.parse_args()
    only = {None: list(programs.PROGRAMS), "quick": programs.QUICK, "names": []}.get(given.only) if given.only in (None, "quick", "names") else given.only.split(",")
    if unknown := set(only) - set(programs.PROGRAMS): parser.error(f"there are no programs {sorted(unknown)}; there are {', '.join(programs.PROGRAMS)}")
    lines = differences(given.base, given.head, only)
    counts = {}
    for line in lines:
        kind = line.split(":")[0]
        counts[kind] = counts.get(kind, 0) + 1
        if counts[kind] <= SHOWN: print(line[:220])
    print(f"{len(only)} programs, names and table: " + (f"{len(lines)} differences in {', '.join(f'{k} ({n})' for k, n in counts.items())}" if lines else "equal"))
    return bool(lines)


if __name__ == "__main__": sys.exit(main())

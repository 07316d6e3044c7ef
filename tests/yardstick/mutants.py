"""Break the package by one line at a time and run the tests that should fail.

    python tests/yardstick/mutants.py [--only step01,DDP] [--again] [--list]

mutants.json holds one mutant a line: what it breaks, module, line (the nth that is equal), its replacement, test files, and the result
of the last run: the test that failed ("killed"), or "survived". A mutant whose line is no longer there is listed as outdated: give it the
line that does now what it breaks. Everything happens in a temporary copy; a test that also fails without the mutant does not count.
"""
import argparse, json, os, re, shutil, subprocess, sys, tempfile, time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TABLE = HERE/"mutants.json"
SECONDS = 900   # for the tests of one mutant; a test that hangs ends before, by the limit of pyproject.toml


def read(): return json.loads(TABLE.read_text())
def write(mutants): TABLE.write_text("[\n" + ",\n".join(json.dumps(m) for m in mutants) + "\n]\n")


def place_of(mutant, root=ROOT):
    "The lines of the module, and the index of the mutant's line; None if it is not there."
    path = root/mutant["module"]
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = [i for i, line in enumerate(lines) if line.strip() == mutant["line"]]
    return lines, found[mutant["nth"] - 1] if len(found) >= mutant["nth"] else None


def pytest(root, *words):
    "Run pytest in a copy; its output."
    env = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=line", *words]
    process = subprocess.Popen(command, cwd=root, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try: return process.communicate(timeout=SECONDS)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        return process.communicate()[0]


def run(mutant, root):
    "Apply a mutant in a copy, run its tests, and take it back; what came of it."
    lines, i = place_of(mutant, root)
    path = root/mutant["module"]
    before = path.read_text(encoding="utf-8")
    indent = lines[i][:len(lines[i]) - len(lines[i].lstrip())]
    path.write_text("\n".join([*lines[:i], indent + mutant["new"], *lines[i + 1:]]) + "\n", encoding="utf-8")
    try: said = pytest(root, "-rfE", *mutant["tests"])
    finally: path.write_text(before, encoding="utf-8")
    failed = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", said, re.MULTILINE)
    if failed is None: return "survived" if re.search(r"\d+ passed", said) else f"no result: {said[-200:]}"
    name = failed[1]
    # the same test must pass without the mutant
    if "::" in name and "FAILED" in (again := pytest(root, "-rfE", name)): return f"no result: {name} fails without it: {again[-200:]}"
    return f"killed by {name}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="beginnings of ids, separated by commas")
    parser.add_argument("--again", action="store_true", help="also those that have a result")
    parser.add_argument("--list", action="store_true", help="list results, run nothing")
    given = parser.parse_args()
    mutants = read()
    for m in mutants:
        if place_of(m)[1] is None: print(f"{m['id']} outdated: {m['breaks']}")
        elif given.list: print(f"{m['id']} {m['result']}: {m['breaks']}")
    chosen = [m for m in mutants if m["id"].startswith(tuple(given.only.split(","))) and (given.again or not m["result"]) and place_of(m)[1] is not None]
    if given.list: return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in ("tests", "trainer_nb"): shutil.copytree(ROOT/name, root/name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "settings.ini"): shutil.copy2(ROOT/name, root/name)
        for m in chosen:
            start = time.monotonic()
            m["result"] = run(m, root)
            print(f"{m['id']} {time.monotonic() - start:4.0f} s  {m['result']}", flush=True)
            # another run may have stored other results meanwhile
            write([m if o["id"] == m["id"] else o for o in read()])


if __name__ == "__main__": main()

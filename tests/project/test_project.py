"What holds for the project as a whole: the modules are what the notebooks give, in layers, light, and fit to be read."
import ast, json, os, re, subprocess, sys, tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import nbformat, pytest, yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]/"scripts"))
import budget
from conftest import ROOT, copy_tree, tracked
from forked_kernels import execute
from forking import NOTEBOOK_IMPORTS, Forks
from stored_outputs import differences

PACKAGE, NBS = ROOT/"trainer_nb", ROOT/"nbs"
NOTEBOOKS = [ROOT/o for o in tracked() if o.suffix == ".ipynb" and o.parts[0] == "nbs"]
# not __init__, not nbdev's index
MODULES = sorted(".".join(o.relative_to(PACKAGE).with_suffix("").parts) for o in PACKAGE.rglob("*.py") if not o.stem.startswith("_"))
CHAPTERS = [o.name.partition("_")[2] for o in sorted(NBS.glob("[0-9][0-9]_*")) if o.is_dir()]   # from the ground up
HEAVY = {"accelerate", "datasets", "pandas", "plotly", "ipywidgets", "anywidget", "IPython", "transformers", "matplotlib",
         "sklearn", "torch._dynamo", "nbdev", "fastcore", "execnb"}

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda o: str(o.relative_to(NBS)))
each_module = pytest.mark.parametrize("module", MODULES)


def run(*command, cwd=ROOT, ok=True, timeout=240, **env):
    "Run a command, without what would let it see the repository by accident; `ok` asks that it succeeds."
    __tracebackhide__ = True
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONSTARTUP", "IN_TEST")} | env
    done = subprocess.run([str(o) for o in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout)
    if ok and done.returncode:
        raise AssertionError(f"{' '.join(map(str, command))} ended with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done


def nbdev(module, call, **kwargs):
    "Call one of nbdev's commands with this Python, wherever its scripts lie."
    __tracebackhide__ = True
    return run(sys.executable, "-c", f"from nbdev.{module} import *; {call}", **kwargs)


def stage(tree):
    "Make the copy a git repository that has everything staged."
    run("git", "init", "-q", cwd=tree)
    run("git", "add", "-A", cwd=tree)
    return tree


def changes(tree):
    "What is not as staged, in the words of git."
    status = run("git", "status", "--porcelain", cwd=tree).stdout.splitlines()
    return [o for o in status if not re.match(r"A  ", o)]


def cells(path, kind="code"):
    "The cells of a kind, with their text in one piece."
    found = [c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == kind]
    return [{**c, "source": "".join(c["source"])} for c in found]


@cache
def default_exp(path):
    "The module that a notebook exports, or None."
    names = [m[1] for c in cells(path) if (m := re.search(r"^#\s*\|\s*default_exp\s+(\S+)", c["source"], re.M))]
    assert len(names) < 2, f"{path.name} has {len(names)} default_exp"
    return names[0] if names else None


ROOF = ["trainer_compat", "learner", "aliases"]   # the modules above all chapters, in the order of their imports


def place(module):
    "The place of a module in the order of imports: its chapter's number and its own."
    path = next(o for o in NOTEBOOKS if default_exp(o) == module)
    if module in ROOF: return len(CHAPTERS), ROOF.index(module)
    return CHAPTERS.index(path.parent.name.partition("_")[2]), re.match(r"\d+[a-z]?", path.name)[0]


# ---- the modules are what the notebooks give ----

def test_export_changes_nothing(tree):
    "Cleaning and exporting leave every file as it is, byte for byte, and bring no new one."
    stage(tree)
    nbdev("clean", "nbdev_clean()", cwd=tree)
    nbdev("doclinks", "nbdev_export()", cwd=tree)
    run(sys.executable, tree/"scripts"/"drop_lists.py", cwd=tree)
    assert not changes(tree), "run `make export`"


def test_notebooks_and_modules_match():
    "Each module has its one notebook, each notebook that exports has its module."
    names = Counter(o for o in map(default_exp, NOTEBOOKS) if o)
    assert not [k for k, v in names.items() if v > 1], "a default_exp that is used more than once"
    assert sorted(names) == MODULES


def test_tutorials_and_guides_export_nothing():
    assert [o.name for o in NOTEBOOKS if o.parent.name in ("tutorials", "guides") and default_exp(o)] == []


def test_chapters_are_folders():
    "The folders of nbs/ are the sub-packages of trainer_nb/, and each notebook in one exports the module that it is named after."
    assert CHAPTERS == ["display", "core", "args", "data", "device", "optim", "engine", "state", "diagnostics", "tune", "live", "launch"]
    for path in NOTEBOOKS:
        if not re.match(r"\d\d_", path.parent.name): continue
        assert default_exp(path) == f"{path.parent.name[3:]}.{path.stem.partition('_')[2]}"
    assert sorted(o for o in MODULES if "." not in o) == sorted(ROOF)
    for chapter in CHAPTERS: assert ast.get_docstring(ast.parse((PACKAGE/chapter/"__init__.py").read_text(encoding="utf-8")))


def test_one_version():
    "settings.ini has it, the package repeats it."
    wanted = re.search(r"^version\s*=\s*(\S+)", (ROOT/"settings.ini").read_text(), re.M)[1]
    assert f'__version__ = "{wanted}"' in (PACKAGE/"__init__.py").read_text()


def test_readme_is_the_index():
    run(sys.executable, "scripts/make_readme.py", "--check")


def test_reference_is_current():
    "nbs/reference.ipynb has every public name, with the first paragraph of its docstring."
    run(sys.executable, "scripts/make_reference.py", "--check")


def test_site_lists_every_notebook():
    "The sidebar, kept by hand, names each notebook once and none that does not exist."
    assert (NBS/"_quarto.yml").is_symlink() and (NBS/"_quarto.yml").resolve() == ROOT/"_quarto.yml"
    def files(o):
        if isinstance(o, str): yield o
        elif isinstance(o, list):
            for p in o: yield from files(p)
        else: yield from files([o.get("href", []), o.get("contents", [])])
    listed = list(files(yaml.safe_load((ROOT/"_quarto.yml").read_text())["website"]["sidebar"]["contents"]))
    assert sorted(listed) == sorted(str(o.relative_to(NBS)) for o in NOTEBOOKS)


@pytest.mark.timeout(900)
def test_site_is_made_up_to_quarto(tree):
    "All that `nbdev_docs` does before it calls Quarto, which is no package of PyPI: each notebook with its signatures."
    make = "from nbdev.serve import proc_nbs\nif __name__ == '__main__': proc_nbs(n_workers=0)"
    run(sys.executable, "-W", "ignore", "-c", make, cwd=tree, timeout=800, PYTHONPATH=f"{tree}{os.pathsep}{tree/'scripts'}")
    assert [o for o in NOTEBOOKS if not (tree/"_proc"/o.relative_to(NBS)).exists()] == [] and (tree/"_proc"/"_quarto.yml").exists()


# ---- layers, names, weight ----

def imported(code, package="trainer_nb"):
    """The modules of this package that are imported anywhere in some code of `package`; '' is the package itself."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found = [o.name for o in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[:len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parts, *filter(None, [node.module])])
            found = [f"{base}.{o.name}" if f"{base}.{o.name}".partition(".")[2] in MODULES else base for o in node.names]
        else: continue
        for o in found:
            package_name, _, rest = o.partition(".")
            if package_name == "trainer_nb": yield rest if rest in MODULES else ""


LAYERS = {o: place(o) for o in map(default_exp, NOTEBOOKS) if o}
ABOVE = (99, 0)   # the package itself, which imports every chapter


class WithoutTypeChecking(ast.NodeTransformer):
    "Drop the blocks of `if TYPE_CHECKING:`, which are never executed; keep what they import from other chapters."
    def __init__(self, chapter): self.chapter = chapter
    def visit_If(self, node):
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"): return self.generic_visit(node)
        return [o for o in node.body if not (isinstance(o, ast.ImportFrom) and f".{o.module}.".startswith(self.chapter))] or ast.Pass()


def executed(code, package):
    "The code without imports for type checkers from the same chapter: a signature may name a class of a later module."
    return ast.unparse(WithoutTypeChecking(f".{package}.").visit(ast.parse(code)))


def source_of(module): return (PACKAGE/f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")


def outside(module):
    "What a module imports from elsewhere, anywhere in it."
    for node in ast.walk(ast.parse(source_of(module))):
        if isinstance(node, ast.Import): yield from (o.name for o in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level: yield node.module


@each_module
def test_imports_go_down(module):
    "A module imports from lower chapters and from earlier modules of its own, inside functions too, and never from the package."
    package = f"trainer_nb.{module}".rpartition(".")[0]
    assert [o for o in imported(executed(source_of(module), package), package) if not LAYERS.get(o, ABOVE) < LAYERS[module]] == []


@pytest.mark.parametrize("path", [o for o in NOTEBOOKS if default_exp(o)], ids=lambda o: o.stem)
def test_examples_go_down(path):
    "So do the examples of a notebook, which may also import its own module: it can be read in its place in the book."
    for cell in cells(path):
        code = "\n".join("" if re.match(r"\s*[%!]", o) else o for o in cell["source"].splitlines())
        higher = [o for o in imported(executed(code, f"trainer_nb.{default_exp(path)}".rpartition(".")[0])) if o != default_exp(path) and not LAYERS.get(o, ABOVE) < LAYERS[default_exp(path)]]
        assert higher == [], f"an example of {path.name} imports what comes later: {higher}\n{cell['source'][:300]}"


def test_ruff():
    "The rules of pyproject.toml. F821 finds an import that was not exported: it passes in the notebook and fails in the module."
    run(sys.executable, "-m", "ruff", "check", "--no-cache", "trainer_nb", "tests", "scripts", "benchmarks")


def test_types(tmp_path):
    "The type checker passes on the chapters that pyproject.toml names, and the package says that it is typed."
    run(sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path))
    assert (ROOT/"trainer_nb"/"py.typed").exists()


def test_lines_are_not_too_long():
    "At most 1 % of the package's lines have more than 120 columns."
    lines = [line for module in MODULES for line in source_of(module).splitlines()]
    long = [line for line in lines if len(line) > 120]
    assert len(lines) > 10_000 and len(long) <= len(lines) / 100, f"{len(long)} of {len(lines)} lines, for example\n" + "\n".join(long[:5])


def test_each_public_name_has_one_meaning():
    "A public function or class of a module has a name that no other module gives to one of its own."
    modules = {}
    for module in MODULES:
        for node in ast.parse(source_of(module)).body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                modules.setdefault(node.name, set()).add(module)
    assert len(modules) > 500 and {name: sorted(found) for name, found in modules.items() if len(found) > 1} == {}


def test_dependencies_are_declared():
    "Whatever a module imports, inside functions too, is Python's, declared in pyproject.toml, or named here with the reason."
    project = tomllib.loads((ROOT/"pyproject.toml").read_text())["project"]
    declared = {re.match(r"[\w-]+", o)[0] for o in project["dependencies"]}
    known = declared | set(sys.stdlib_module_names) | {"trainer_nb", "__future__",
        "IPython",        # only where a notebook has it
        "transformers",   # only for models that are its own
        "pandas",         # comes with datasets
        "peft",           # only for models that are its own
        "seqeval",        # only for entities, if somebody has it
        "torchmetrics",   # only for ROUGE, BLEU and chrF, if somebody has it
        "optuna",         # only for a search, which says how to install it
        "ray",            # only for a cluster, which says how to install it
        "deepspeed",      # only where deepspeed= asks for it, which says how to install it
        "tensorboardX", "wandb", "trackio", "mlflow", "codecarbon",   # trackers that somebody has asked for by name
        "psutil",         # comes with accelerate
        "liger_kernel"}   # only where use_liger_kernel asks for it
    found = {(m, o.split(".")[0]) for m in MODULES for o in outside(m)}
    assert {(m, o) for m, o in found if o not in known} == set()
    assert declared >= {"torch", "accelerate", "datasets"}, "the check looked at nothing"


@pytest.fixture(scope="module")
def torch_alone(tmp_path_factory):
    "A process that has imported torch and nothing else, to be forked for each module; and what that brings."
    with Forks("import torch") as process: yield process, modules_with(process, "pass", tmp_path_factory.mktemp("before"))


def modules_with(forks, code, folder):
    "What a fork has imported after some code."
    forks.call(f"{code}; import sys; print(*sys.modules)", folder, folder/"printed.txt", 240)
    return set((folder/"printed.txt").read_text(encoding="utf-8").split())


@pytest.mark.parametrize("module", ["", *MODULES], ids=lambda o: o or "trainer_nb")
def test_import_is_light(module, torch_alone, tmp_path):
    "Each module imports alone, in a process that has torch, and brings little else."
    process, before = torch_alone
    brought = modules_with(process, f"import {f'trainer_nb.{module}'.rstrip('.')}", tmp_path)
    assert "torch" in before and "trainer_nb" in brought and (brought - before) & HEAVY == set()


@pytest.mark.parametrize("module", ["", "learner"])
def test_import_is_light_in_a_fresh_process(module, tmp_path):
    "And in one that has nothing."
    brought = set(run(sys.executable, "-c", f"import trainer_nb.{module or 'args'}, sys; print(*sys.modules)", cwd=tmp_path).stdout.split())
    assert brought & HEAVY - set(run(sys.executable, "-c", "import torch, sys; print(*sys.modules)").stdout.split()) == set()


# ---- the notebooks as a book ----

def outputs(path):
    "Every stored output, with its text by kind (pictures left out)."
    for cell in cells(path):
        for out in cell["outputs"]:
            # of an error that belongs to the page, only the message is shown
            if out["output_type"] == "error" and "raises-exception" in cell["metadata"].get("tags", ()) and out["traceback"] == [out["evalue"]]: continue
            kinds = {"stream": out.get("text", "")} | out.get("data", {})
            yield out, {k: v if isinstance(v, str) else "".join(v) if isinstance(v, list) else json.dumps(v)
                        for k, v in kinds.items() if k not in ("image/png", "image/jpeg")}


@each_notebook
def test_outputs_are_small_static_and_ours(path):
    "No live widgets, no errors, nothing of the machine that they were made on."
    assert "widgets" not in json.loads(path.read_text())["metadata"]
    assert path.stat().st_size < 400_000
    for out, kinds in outputs(path):
        assert out["output_type"] != "error", out.get("evalue")
        for kind, text in kinds.items():
            assert "widget-view" not in kind
            text = re.sub(r"data:[\w/+-]+;base64,[\w+/=]+", "", text)
            assert "Traceback" not in text
            found = re.search(r"(?<![\w.])/(work|root|tmp|home|Users)/\S*", text)
            assert not found, f"a path of one machine: {found[0]}"


@each_notebook
def test_notebook_reads_as_a_book(path):
    "Ids are unique; prose stands beside code; imports have cells of their own."
    everything = json.loads(path.read_text())["cells"]
    ids = [c["id"] for c in everything]
    assert len(ids) == len(set(ids)), "a cell id twice"
    code = [c for c in cells(path) if c["source"].strip()]
    assert 3 * len(cells(path, "markdown")) >= len(code), "less than one Markdown cell per three code cells"
    for cell in code:
        flags = re.findall(r"^#\s*\|\s*(\w+)", cell["source"], re.M)
        lines = [o for o in cell["source"].splitlines() if not re.match(r"#\s*\|", o)]
        body = ast.parse("\n".join("" if re.match(r"\s*[%!]", o) else o for o in lines)).body
        if "hide" in flags or path.name == "index.ipynb": continue          # the README's example is one piece
        # a block of imports for type checkers is an import, too
        imports = sum(isinstance(o, (ast.Import, ast.ImportFrom)) or ast.unparse(o).startswith("if TYPE_CHECKING:") for o in body)
        assert imports in (0, len(body)), f"imports stand together with something else:\n{cell['source'][:300]}"


def test_the_project_stays_within_its_budget():
    "No chapter of the package or of the tests has more lines or modules than budget.toml allows, and no module more than its wall."
    allowed = budget.read()
    assert len(allowed) > 30 and budget.exceeded(allowed, budget.count()) == []


def test_the_budget_notices_what_grows(tmp_path):
    "A line more in a chapter, a long new module and a new chapter are named; after a merge the higher of two numbers counts."
    file = tmp_path/"budget.toml"
    budget.write({"trainer_nb/args": (900, 2), "trainer_nb/args/cli.py": (600, None)}, file)
    file.write_text(file.read_text() + '"trainer_nb/args" = {lines = 800, modules = 3}\n')
    allowed = budget.read(file)
    assert allowed == {"trainer_nb/args": (900, 3), "trainer_nb/args/cli.py": (600, None)}
    assert budget.lowered(allowed, {"trainer_nb/args": (700, 4)}) == {"trainer_nb/args": (700, 3)}
    assert budget.exceeded(allowed, {"trainer_nb/args": (900, 3), "trainer_nb/args/cli.py": (600, None), "trainer_nb/args/b.py": (500, None)}) == []
    grown = {"trainer_nb/args": (901, 4), "trainer_nb/args/cli.py": (601, None), "trainer_nb/args/b.py": (501, None), "trainer_nb/new": (1, 0)}
    assert len(budget.exceeded(allowed, grown)) == 5


@pytest.fixture(scope="module")
def notebooks(tmp_path_factory):
    "A copy of the repository in which notebooks run, and a process there that has imported what takes long, to be forked for each."
    tree = stage(copy_tree(tmp_path_factory.mktemp("notebooks")/"trainer_nb"))
    with Forks(f"{NOTEBOOK_IMPORTS}; import trainer_nb", tree) as process: yield tree, process


# each takes half a minute and more, or shows what the pages of the chapters show as well
LONG = {"several_processes_details", "large_models", "chat", "preferences", "clusters", "from_trainer", "from_fastai", "lora", "trl", "sentence_transformers", "looking_inside", "memory", "large_data", "speed", "vscode", "from_lightning"}


def marks_of(path):
    "Return the marks of the test that runs a notebook."
    is_long = path.stem in LONG and path.parent.name in ("tutorials", "guides") or path.stem == "03_batch_size"
    return [pytest.mark.xdist_group(path.stem)] + [pytest.mark.slow] * is_long


# What the texts of a page say about the numbers of its cells, which the comparison of outputs leaves out: patterns, by the cell.
RELIED_ON = {
    "quickstart": {"26a3aaa6": "True", "c979495a": "Paused after step 40 of 184", "87253bb9": r"\n +69 +3\.00", "a359a712": r"\(0\.9\d+, ", "b2d8959a": r"0\.[01]\d*$", "a8520b8b": "Back at step 59: 13 steps replayed",
                   "c2b95fc0": r"0\.9", "e5ac7f6a": r"9[789]\.\d%|100\.0%", "c1a70005": "Nothing stands out", "6cc789a9": r"\n +71 +3\.09 +\d{3}",
                   "9efe5691": r"Suggestion: 0\.01, .*36\d steps|36\d steps.*Suggestion: 0\.01, "},
    "live": {"a27e040b": "training before the first step", "a7c31f04": r"accuracy 0\.9\d+; digits, training after step [1-3]\d\d of",
             "a801459d": r"0\.9[67]", "a2181749": r"0\.[0-3]\d*$", "90dafafb": r"relu3: (8\d|9\d|100)% of its units are dead",
             "8bb833c4": "Back at step 350", "15c28e7b": r"0\.05 at the next step", "dc8cd73e": r"digits\D+0\.9[89].*careful\D+0\.9[89].*clipped\D+0\.9.*eval_loss\D+[1-9]\.", "ddda5bce": "stopped after step 1000.*paused after step 1050",
             "b7d20a52": r"failed after step 1050.*Failed: the file cannot be read\s+0$", "b7d20a54": "^10$", "aa805ac9": "stopped"},
    "time_travel": {"4482ad13": r"0\.[12]\d*$", "84da767e": "Back at step 149: 24 steps replayed.*every loss was the same", "7ea5e002": r"\n +149 ", "37bcb36d": r"19[12]\.",
                    "37bcb36e": r"\[535\]", "7e19c4a2": r"clipped +1\.3\d+ +26\.\d+ +1\.\d+ +1\.\d+ +0\.8.*repaired +1\.3\d+ +1\.\d+ +1\.\d+ +1\.\d+ +0\.8", "5d3c19e1": "True",
                    "fbff811d": "diverge at step 151", "e05da86f": "equal at all common steps; the same settings", "b4456c3f": r"step\(149\).*max_grad_norm=1\.0",
                    "0cca504e": "retired-checkpoint-150", "a28717c1": r"0\.8", "ba4bdee2": "True"},
    "looking_inside": {"c7c84777": r"0\.[12]", "4374549d": r"activation_fn: [4-7]\d%", "88e33e68": r"444 steps in all.*Suggestion: 3\.16e-3", "d3f0ec90": r"0\.[89]",
                       "fb7be299": r"\[\].*0\.9", "c0de0b05": r"\(17,.*layers\.1\.mlp\.fc1: its gradient"},
    "incidents": {"1ac10005": r"0\.[67]\d*", "1ac10007": "softmax", "1ac10009": r"0\.[89]", "1ac10010": "checks found nothing", "1ac10012": "nan",
                  "1ac10014": r"sample 700.*learn\.rewind\(to=29\)", "1ac10016": r"0\.[89]", "1ac10018": "the batch of 1 step left out",
                  "1ac10022": r"step 62.*without lr=0\.3.*learn\.rewind\(to=59\)", "1ac10024": r"0\.[89]"},
    "from_trainer": {"7ea5e019": r"\(3\.\d+, 1\.\d+\)"},
    "clusters": {"c1a5000c": r"checkpoint-100.*checkpoint-\d+", "c1a50011": "^True$"},
    "from_fastai": {"00524648": r"3 candidates trained for 33 steps.*Suggestion: 0\.[01]", "9a1e0011": r"^0\.[78]\d*$", "9a1e001a": r"'augmented': \[0\.0[3-8]\d*, 0\.0[3-7]\d*, 0\.0[3-7].*'plain': \[0\.(0[789]|1)", "9a1e0003": "Back at step 44", "9a1e0005": "^True$", "596d96d2": "at step 132, the last",
                    "f4cf7249": r"no +body +—.*yes +head +0\.0100", "9a1e000a": "no mean over samples"},
    "from_lightning": {"c1be5541": r"\n +20 +1\.00 .*3\.87e-3", "a10e0003": "Back at step 15.*every loss was the same", "70ce0c76": "^40$", "a10e0017": r"'average': 0\.0[5-9]\d*, 'last weights': 0\.1"},
    "own_loop": {"b3282d71": "^True$", "9ff353b2": "^True$", "aaa5b33f": "^False$", "782d69b2": r"'0\.weight': True, '0\.bias': False, '2\.weight': True, '2\.bias': False",
                 "14b75607": "^True$", "d0e10003": "^20$", "242fed77": "^True$"},
    "large_models": {"212bf178": r"68837 .*68837 .*137674 ", "80ef3879": r"\n +20 ", "efdd906a": r"after step 27;.*after step 22 \(5 steps are lost\)"},
    "rewind": {"e1000006": r"'steps': \[1, 2\],.*'ever': \[1, 2, 3, 4\]", "e1000025": r"^\[\]$", "e100002d": "True", "e1000036": r"\[11, 12\]", "e1000038": "every loss was the same", "e100000d": "remove_callback at step 2", "e1000013": "Back at step 2.*lr=1.0"},
}


# the first pages that are read; scripts/store_outputs.py looks at all
WITHOUT_WARNINGS = {"quickstart", "live", "time_travel", "rewind"}


def printed_warnings(path, now):
    "What the cells of a page print to stderr, except those that are tagged to keep it."
    keeps = {c["id"] for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if "keep-stderr" in c["metadata"].get("tags", ())}
    return "".join(o["text"] for cell, outputs in now.items() if cell not in keeps for o in outputs if o["output_type"] == "stream" and o["name"] == "stderr")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", [pytest.param(o, id=str(o.relative_to(NBS)), marks=marks_of(o)) for o in NOTEBOOKS])
def test_notebook_runs(path, notebooks, tmp_path):
    """From top to bottom, without its slow cells; and it leaves nothing behind.

    A reference notebook is run as nbdev runs it. One that is made to be read and tried, in a kernel: what its cells put out there
    is what the file shows, up to numbers and times."""
    tree, forks = notebooks
    try:
        if path.parent.name in ("tutorials", "guides"): run_page(path, tree, forks, tmp_path)
        else:
            printed = tmp_path/"printed.txt"
            forks.call(f"nbdev_test(path={str(path.relative_to(ROOT))!r}, n_workers=0, do_print=True)", tree, printed, 840)
            assert f"Completed {tree/path.relative_to(ROOT)}\nSuccess." in printed.read_text(encoding="utf-8")
        assert not changes(tree)
    except BaseException:
        # the next notebook finds what the repository has
        run("git", "checkout-index", "-qfa", cwd=tree)
        run("git", "clean", "-qffd", cwd=tree)
        raise


def run_page(path, tree, forks, folder):
    "Execute a tutorial or a guide in a kernel, and compare what its cells put out with what the file shows and its text relies on."
    now = execute(nbformat.read(path, 4), forks, tree/path.relative_to(ROOT).parent, folder, 840)
    found = differences(json.loads(path.read_text(encoding="utf-8")), now)
    assert not found, (f"{path.name} does not show what its cells put out now. If that is right, store it:\n"
                       f"    python scripts/store_outputs.py {path.relative_to(ROOT)}\n- stored, + now\n{found}")
    for cell, pattern in RELIED_ON.get(path.stem, {}).items():
        said = " ".join(o.get("text", "") or o.get("evalue", "") or o.get("data", {}).get("text/plain", "") for o in now[cell])
        assert re.search(pattern, said, re.S), f"cell {cell} puts out {said!r}, and the page's text relies on {pattern!r}"
    if path.stem in WITHOUT_WARNINGS: assert "Warning: " not in printed_warnings(path, now), printed_warnings(path, now)


# ---- what is given away ----

def test_readme_code_runs(tmp_path):
    "The README's Python, in one fresh process and an empty folder."
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT/"README.md").read_text(encoding="utf-8"), re.M | re.S)
    assert blocks, "README.md shows no Python"
    (tmp_path/"readme.py").write_text("\n".join(blocks), encoding="utf-8")
    run(sys.executable, "readme.py", cwd=tmp_path)


def test_links_lead_somewhere():
    "Relative links in the README and in notebooks, and nothing left to be filled in."
    for path in [ROOT/"README.md", *NOTEBOOKS]:
        text = path.read_text(encoding="utf-8") if path.suffix == ".md" else "\n".join(c["source"] for c in cells(path, "markdown"))
        assert not re.search(r"\b(BENCH|TODO|FIXME|XXX|TBD)\b", text), f"something is left to be filled in in {path.name}"
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if not re.match(r"\w+:|#", target): assert (path.parent/target.split("#")[0]).exists(), f"{path.name} links to {target}"


def heading_ids(path):
    "The names by which links reach the headings of a notebook: those of Quarto."
    text = re.sub(r"```.*?```", "", "\n".join(c["source"] for c in cells(path, "markdown")), flags=re.S)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", o) for o in re.findall(r"^#+ (.+)$", text, re.M)]
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s.-]", "", o.strip().lower()).strip()) for o in plain}


def test_links_to_headings_lead_somewhere():
    for path in NOTEBOOKS:
        for target in re.findall(r"\]\(([^)\s]*#[^)\s]+)\)", "\n".join(c["source"] for c in cells(path, "markdown"))):
            if re.match(r"\w+:", target): continue
            name, heading = target.split("#", 1)
            page = path.parent/name if name else path
            if page.suffix == ".ipynb": assert heading in heading_ids(page), f"{path.name} links to {target}"


TRAIN = '''
import sys, torch, trainer_nb
from torch.utils.data import TensorDataset
from trainer_nb import Learner
x = torch.randn(64, 4)
learn = Learner(torch.nn.Linear(4, 1), train_dataset=TensorDataset(x, x.sum(1, keepdim=True)),
                loss_func=torch.nn.functional.mse_loss, output_dir="out", max_steps=3, use_cpu=True)
assert learn.train().global_step == 3
assert not {"nbdev", "fastcore", "execnb"} & set(sys.modules)
print(trainer_nb.__file__)
'''


def test_wheel_trains_without_the_repository(tree, tmp_path):
    """The wheel has every module, and trains a model in an environment that has never heard of this repository.

    That environment borrows torch and the rest from the present one: a .pth file puts the present site-packages on its
    path, behind its own. The editable install there is a .pth file too, and Python reads .pth files only in site
    folders, not in folders that a .pth file names: so the repository stays out of sight."""
    run(sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--wheel-dir", tmp_path/"dist", tree)
    [wheel] = (tmp_path/"dist").glob("*.whl")
    packed = run(sys.executable, "-m", "zipfile", "-l", wheel).stdout
    assert [o for o in MODULES if f"trainer_nb/{o.replace('.', '/')}.py" not in packed] == []
    venv = tmp_path/"venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    python = venv/"bin"/"python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-qq", "--no-deps", wheel)
    site, here = (run(o, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip() for o in (python, sys.executable))
    (Path(site)/"borrowed.pth").write_text(here + "\n")
    (tmp_path/"train.py").write_text(TRAIN)
    where = run(python, "train.py", cwd=tmp_path).stdout.split()[-1]
    assert Path(where).is_relative_to(venv)

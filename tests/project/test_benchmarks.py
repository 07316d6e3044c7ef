"The benchmarks: their statistics, a tiny run of each script, and the tables that are made from stored results."
import argparse, importlib, json, math, os, shutil, subprocess, sys

import pytest

from conftest import ROOT

BENCHMARKS = ["overhead", "overhead_cuda", "models", "models_cuda", "evaluating", "tools", "saving", "watching", "views", "launching", "lr_find", "gpu"]


@pytest.fixture
def load(monkeypatch):
    "Import a module of benchmarks/."
    monkeypatch.syspath_prepend(ROOT/"benchmarks")
    yield importlib.import_module
    for name in ["harness", "insert", "lr_tasks", "gpu_works", *(name.removesuffix("_cuda") for name in BENCHMARKS)]: sys.modules.pop(name, None)


def measured(tmp_path, name, *options, path=""):
    "Run a benchmark and return the summary that it writes, and what it prints."
    file = tmp_path/"out"/f"{name}.json"
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, [str(path), str(ROOT)]))}
    done = subprocess.run([sys.executable, ROOT/"benchmarks"/f"{name}.py", "--json", file, *options], env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return json.loads(file.read_text()), done.stdout


# --- statistics ----------------------------------------------------------------------------------------------------------

def test_interval_of_a_median(load):
    "The k-th smallest and k-th largest value, the k of the binomial distribution; none where there are too few values."
    interval = load("harness").median_with_interval
    assert interval(range(1, 17)) == {"median": 8.5, "n": 16, "low": 4, "high": 13}
    assert interval([3, 1, 2, 6, 5, 4]) == {"median": 3.5, "n": 6, "low": 1, "high": 6}
    assert interval([1, 2, 3, 4, 5]) == {"median": 3, "n": 5} and interval([2.0]) == {"median": 2.0, "n": 1}
    for n in (6, 9, 16, 25, 40):
        k = interval(range(1, n + 1))["low"]
        outside = [2 * sum(math.comb(n, i) for i in range(j)) / 2**n for j in (k, k + 1)]
        assert outside[0] <= 0.05 < outside[1]


def test_ratios_are_formed_within_a_round(load):
    "A moment that slows both sides down changes no ratio."
    harness = load("harness")
    by_hand = [1.0, 1.0, 1.0, 9.0, 1.0, 1.0]
    assert harness.quotients([2 * o for o in by_hand], by_hand) == {"median": 2, "n": 6, "low": 2, "high": 2}


def test_each_turn_has_another_order(load):
    rotated = load("harness").rotated
    orders = [rotated(["a", "b", "c"], turn) for turn in range(6)]
    assert len({tuple(o) for o in orders}) == 6 and all(sorted(o) == ["a", "b", "c"] for o in orders)


# --- tiny runs -----------------------------------------------------------------------------------------------------------

TINY = {
    "overhead": ["--fresh", "1", "--rounds", "1", "--blocks", "2", "--steps", "60", "--only", "trainer_nb", "--parts", "steps", "--works", "small"],
    "models": ["--fresh", "1", "--rounds", "1", "--steps", "1", "--warmup", "4", "--only", "trainer_nb", "--works", "bert, 0 workers, fp32"],
    "evaluating": ["--fresh", "1", "--rounds", "1", "--blocks", "1", "--samples", "300", "--only", "trainer_nb", "--parts", "calls"],
    "tools": ["--fresh", "1", "--rounds", "1", "--only", "lr_find", "inspect"],
    "saving": ["--parts", "resume"], "lr_find": ["--tasks", "develop", "--optimizers", "sgd", "--grid", "-2", "0", "--steps", "12"],
    "gpu": ["--device", "cpu", "--backend", "aot_eager", "--rounds", "1", "--steps", "2", "--parts", "compiled", "snapshots", "inspect"],
    "launching": ["--rounds", "1", "--fresh", "1", "--seconds", "0.1", "--parts", "steps", "--works", "tiny"],
}
SHORT = ["--quick", "--rounds", "1", "--fresh", "1", "--turns", "1", "--seconds", "0.1", "--parts", "steps", "--works"]


@pytest.mark.parametrize("name", [name if name == "evaluating" else pytest.param(name, marks=pytest.mark.slow) for name in TINY])
def test_a_tiny_run_of(tmp_path, load, name):
    "Each script writes a summary of this version from which its tables are made; it prints them too."
    found, printed = measured(tmp_path, name, "--quick", *TINY[name])
    assert found["benchmark"] == name and found["quick"] is True and found["left_out"] == {}
    assert found["package_version"] == importlib.import_module("trainer_nb").__version__ and found["versions"]["torch"]
    # the README has a table of its own, of which the script prints nothing
    for table, text in load(name).tables(found).items(): assert table == "readme" or text in printed
    assert "NOT THE SAME WORK" not in printed and "for the tables" in printed


@pytest.mark.parametrize("work", ["tiny, sharded", "tiny, deepspeed", "ten milliseconds, deepspeed"])
def test_divided_works(tmp_path, work):
    "Both loops that divide the state of a run are measured; DeepSpeed's takes the steps of an ordinary loop."
    if "deepspeed" in work: pytest.importorskip("deepspeed")
    found, printed = measured(tmp_path, "launching", *SHORT, work)
    assert list(found["figures"]["steps"]) == [work] and work in printed and found["figures"]["steps"][work]["ratio"]["median"] > 0


DIVIDED = """
import sys, torch
sys.path.insert(0, {folder!r})
import launching
def train(work, path):
    loop = launching.by_hand(work)
    loop.steps(launching.LOG_EVERY)
    if loop.rank == 0: torch.save(loop.logged, path)
    loop.dist.destroy_process_group()
if __name__ == "__main__":
    launching.LOG_EVERY = 20
    for number, work in enumerate(("tiny", "tiny, deepspeed")): launching.by_notebook_launcher(train, work, f"{{number}}.pt")
    learn = launching.make_learner("tiny, deepspeed")
    learn.launch(2, start="fork", threads=1)
    learn.step(20)
    rows = learn.history
    learn.close()
    plain, zero = (torch.load(f"{{number}}.pt")[0] for number in range(2))
    print("LOSSES", plain[1], zero[1], sum(float(r.loss) for r in rows) / 20)
    print("NORMS", plain[2], zero[2], float(rows[-1].grad_norm))
"""


def test_the_loops_with_deepspeed_do_the_same_work(tmp_path):
    "By hand with DDP, by hand with DeepSpeed, and the learner: the same losses and norms; the order of the data is each library's."
    pytest.importorskip("deepspeed")
    (tmp_path/"script.py").write_text(DIVIDED.format(folder=str(ROOT/"benchmarks")))
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "ACCELERATE_USE_CPU": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    for word, rel in (("LOSSES", 0.02), ("NORMS", 0.5)):
        plain, zero, ours = map(float, next(line for line in done.stdout.splitlines() if line.startswith(word)).split()[1:])
        assert zero == pytest.approx(plain, rel=1e-4) and ours == pytest.approx(plain, rel=rel)


def test_figures_of_a_tiny_run(tmp_path):
    "Both contenders have done the same work: µs by hand and ours, their ratio, nearly equal losses."
    found, _ = measured(tmp_path, "overhead", *TINY["overhead"])
    rows = found["figures"]["steps"]["small"]
    assert list(rows) == ["hand", "trainer_nb"] and found["quick"] is False
    assert rows["trainer_nb"]["ratio"]["median"] == pytest.approx(rows["trainer_nb"]["us"]["median"] / rows["hand"]["us"]["median"], rel=1e-4)
    assert rows["trainer_nb"]["loss"] == pytest.approx(rows["hand"]["loss"], rel=0.1)


def test_a_contender_that_is_missing_is_named(tmp_path):
    "It is left out, with the reason; the others are measured."
    (tmp_path/"lightning.py").write_text("raise ImportError('No module named lightning')")
    options = [o if o != "trainer_nb" else "lightning" for o in TINY["overhead"]]
    found, printed = measured(tmp_path, "overhead", *options, path=tmp_path)
    assert found["left_out"] == {"lightning": "No module named lightning"} and list(found["figures"]["steps"]["small"]) == ["hand"]
    assert "Left out: Lightning: No module named lightning." in printed


FAILING = """
import sys, time
import harness
def train(name):
    def steps(work, n, tick, device):
        for i in range(n):
            if (name, work) == ("broken", "b") and i == 3: raise RuntimeError("out of order")
            time.sleep({"hand": 0.01, "broken": 0.02}[name]); tick()
        return 1.0
    return steps
if __name__ == "__main__":
    import argparse, json
    p = argparse.ArgumentParser()
    harness.add_options(p, ["hand", "broken"])
    harness.add_rounds(p, fresh=2, rounds=1, blocks=2, steps=2)
    opts = p.parse_args()
    if opts.worker: sys.exit(harness.serve(opts.worker, {"steps": lambda spec, exchange: harness.train_by_turns(train(spec["name"]), spec, exchange)}))
    left_out = {}
    found = harness.measure_by_turns(__file__, ["hand", "broken"], ["a", "b", "c"], opts, left_out)
    print(json.dumps([found, left_out]))
"""


def test_a_contender_that_fails_in_one_work(tmp_path):
    "It is left out of that work alone, with the error; rounds of the others are complete."
    (tmp_path/"script.py").write_text(FAILING)
    env = os.environ | {"PYTHONPATH": str(ROOT/"benchmarks")}
    done = subprocess.run([sys.executable, tmp_path/"script.py"], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found, left_out = json.loads(done.stdout)
    assert left_out == {"broken, b": "RuntimeError: out of order (see --verbose)"}
    assert {work: list(rows) for work, rows in found.items()} == {"a": ["hand", "broken"], "b": ["hand"], "c": ["hand", "broken"]}
    for work in ("a", "c"):
        for name, seconds in (("hand", 0.01), ("broken", 0.02)):
            walls = found[work][name]["wall"]
            assert len(walls) == 2 and min(walls) >= seconds and min(found[work][name]["cpu"]) < seconds


def test_imports_and_starts_with_byte_code_and_without(tmp_path):
    "Both are measured, and the checkout gets no byte code."
    before = sorted(ROOT.glob("trainer_nb/**/*.pyc"))
    found, _ = measured(tmp_path, "overhead", "--imports", "1", "--starts", "1", "--only", "trainer_nb", "--parts", "imports", "first")
    for part in ("import", "first"): assert set(found["figures"][part]) == {"hand", "trainer_nb"} and set(found["figures"][f"{part}_source"]) == {"trainer_nb"}
    assert found["figures"]["import"]["trainer_nb"]["peak"] > found["figures"]["import"]["hand"]["peak"] > 0
    assert sorted(ROOT.glob("trainer_nb/**/*.pyc")) == before


@pytest.mark.parametrize("name, options", [("watching", ["--blocks", "1", "--only", "trainer_nb"]), ("views", ["--rounds", "1", "--only", "slow"]),
                                           ("tools", ["--rounds", "1", "--fresh", "1", "--only", "watch", "dashboard"]),
                                           ("evaluating", ["--samples", "300", "--parts", "memory"])])
def test_a_slow_tiny_run_of(tmp_path, load, name, options):
    found, printed = measured(tmp_path, name, "--quick", *options)
    for text in load(name).tables(found).values(): assert text in printed


def test_no_set_of_processes_begins_that_would_end_too_late(load):
    "With --minutes; what is stored says how many there were."
    harness = load("harness")
    def sets(minutes):
        opts = argparse.Namespace(fresh=4, rounds=1, blocks=1, steps=1, warmup=1, minutes=minutes)
        harness.measure_by_turns("no script", [], [], opts, {})
        return opts.fresh
    assert [sets(None), sets(60), sets(1e-12)] == [4, 4, 1]


# --- tables from stored results ----------------------------------------------------------------------------------------------

def made_up(overhead, harness):
    "A result of overhead.py with times that are easy to check: ours takes 1.5 times as long."
    def rows(factor): return {"wall": [factor * (1 + i % 3) * 1e-4 for i in range(16)], "cpu": [factor * 1e-4] * 16, "loss": 1.0}
    figures = {"steps": overhead.summarize_steps({work: {"hand": rows(1), "trainer_nb": rows(1.5)} for work in overhead.WORKS})}
    for kind in ("import", "first"):
        figures[kind] = overhead.summarize_starts({name: [{"wall": factor, "cpu": factor, "peak": 200.0}] * 9 for name, factor in (("hand", 2.0), ("trainer_nb", 3.0))})
    return {"benchmark": "overhead", "package_version": harness.package_version(), "date": "2026-01-02", "quick": False, "left_out": {"lightning": "not installed"},
            "machine": {"processor": "a processor", "cores": 2, "threads": 1}, "versions": {"python": "3", "torch": "2"}, "options": {}, "figures": figures}


@pytest.fixture
def repository(tmp_path):
    "A copy of the files with tables, without stored results, and a function that runs insert.py on it."
    for name in ("benchmarks/README.md", "nbs/index.ipynb"):
        (tmp_path/name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT/name, tmp_path/name)
    (tmp_path/"benchmarks"/"results").mkdir()
    def insert(*options): return subprocess.run([sys.executable, ROOT/"benchmarks"/"insert.py", "--root", tmp_path, *options], capture_output=True, text=True)
    return tmp_path, insert


def test_tables_are_what_the_stored_results_give():
    "Of this repository: the tables agree with benchmarks/results/, whose figures belong to this version."
    done = subprocess.run([sys.executable, ROOT/"benchmarks"/"insert.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_benchmark_has_a_place_for_its_tables(load):
    insert = load("insert")
    page = {match[2]: match[3] for match in insert.MARKED.finditer((ROOT/"benchmarks"/"README.md").read_text())}
    assert page == dict.fromkeys(BENCHMARKS) and insert.BENCHMARKS == BENCHMARKS
    assert "<!-- figures: overhead.readme -->" in (ROOT/"README.md").read_text()


def test_tables_are_inserted(load, repository):
    "In the page and in the notebook of the README; other places stay, a second run changes nothing."
    root, insert = repository
    before = (root/"benchmarks"/"README.md").read_text()
    assert insert("--check").returncode == 0
    found = made_up(load("overhead"), load("harness"))
    (root/"benchmarks"/"results"/"overhead.json").write_text(json.dumps(found))
    refused = insert("--check")
    assert refused.returncode == 1 and "make figures" in refused.stderr and (root/"benchmarks"/"README.md").read_text() == before
    assert insert().returncode == 0 and insert("--check").returncode == 0 and insert().stdout == ""
    page = (root/"benchmarks"/"README.md").read_text()
    assert "| trainer_nb | 300 (150 to 450) | **1.50** (1.50 to 1.50) | 1.50 (1.50 to 1.50) | 1.000 |" in page
    overhead = page[:page.index("<!-- figures: models -->")]
    assert "Left out: Lightning: not installed." in overhead and "1.23" not in overhead
    assert page[page.index("<!-- figures: saving -->"):] == before[before.index("<!-- figures: saving -->"):]
    notebook = json.loads((root/"nbs"/"index.ipynb").read_text())
    cell = next("".join(o["source"]) for o in notebook["cells"] if "<!-- figures: overhead.readme -->" in "".join(o["source"]))
    assert "a plain PyTorch loop is 1. The plain loop took 200 µs a step, 2.00 s for `import torch` and 2.00 s from the start to the end" in cell
    assert "| trainer_nb |" + " 1.50 |" * 3 in cell and "a processor, 2 cores" in cell


@pytest.mark.parametrize("change, message", [({"package_version": "0.0.1"}, "measured with trainer_nb 0.0.1"), ({"quick": True}, "rough look"),
                                             ({"benchmark": "models"}, "result of models"), ({"machine": {"gpu": "a GPU"}}, "result of overhead_cuda"), ({"figures": {"steps": {}}}, "no table 'readme'")])
def test_a_result_that_does_not_belong_here_is_refused(load, repository, change, message):
    "Of another version, of a rough look, of another script, or without a table that a page shows: nothing is written."
    root, insert = repository
    (root/"benchmarks"/"results"/"overhead.json").write_text(json.dumps(made_up(load("overhead"), load("harness")) | change))
    def text(): return [(root/name).read_text() for name in ("benchmarks/README.md", "nbs/index.ipynb")]
    before, done = text(), insert()
    assert done.returncode == 1 and message in done.stderr and text() == before

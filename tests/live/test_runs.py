"Many runs: the index of their logs, the table, and its page."
import json
import math

import numpy as np
import pytest
import torch

from test_page import a_run, blocks, everything, page, status  # noqa: F401  the fixture of a page
from trainer_nb import Learner, compare, follow, runs
from trainer_nb.core.history import History
from trainer_nb.live import run_index
from trainer_nb.live import runs as runs_module
from trainer_nb.live.follow import find_logs
from trainer_nb.live.run_index import RunIndex, RunSummary, is_lower_better, labels_path, summarize


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    "The database of the index is not that of the user, and each look reads what is new."
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path/"cache"))
    monkeypatch.setattr(runs_module, "SCAN_SECONDS", 0.0)


def write(folder, name="a", steps=50, end=True, accuracy=0.5, **settings):
    "The log of a run; its history is still open where it has not ended."
    history = History(name)
    history.setup = {"settings": settings, "packages": {"torch": "2.9"}, "commit": "0123456789abcdef"}
    history.open_log(folder)
    take(history, steps)
    history.note("evaluate", steps, eval_accuracy=accuracy, eval_loss=1 - accuracy)
    if end: history.note("log", steps, train_runtime=1.0)
    history.flush()
    return history


def take(history, steps):
    for _ in range(steps):
        step = len(history) + 1
        history.append(step, step / 10, 1e-3, 8, 0.1 * step, 2 - step / 100, 1.0)


def sweep(folder):
    for rate in (1e-3, 1e-2):
        for seed in range(3): write(folder, f"rate {rate:g}", accuracy=0.6 + 10 * rate + seed / 100, learning_rate=rate, seed=seed)


def test_a_run_without_a_name_has_that_of_its_folder(tmp_path):
    "With the beginning of its id where others have the same name."
    for folder in ("small", "large", "large"): write(tmp_path/folder, None)
    table = runs(tmp_path)
    names = [row["name"] for row in table.table()]
    assert names[0] == "small" and [name[:7] for name in names[1:]] == ["large (", "large ("] and len(set(names)) == 3
    assert [row["note"] for row in table.label(names[2], note="kept").table()] == ["", "", "kept"] and repr(follow(tmp_path/"small")).startswith("small: finished")


def test_the_index_reads_what_is_new(tmp_path):
    "A log that has not changed is not opened, by another index either; of one that grows the new lines are read."
    done, live = write(tmp_path), write(tmp_path, "b", end=False)
    index = RunIndex()
    assert [o.step for o in index.read(find_logs(tmp_path))] == [50, 50] and index.opened == 2
    reader = index.readers[live.path]
    offset = reader.offset
    take(live, 5)
    live.flush()
    assert [o.step for o in index.read(find_logs(tmp_path))] == [50, 55] and index.opened == 3
    assert index.readers[live.path] is reader and reader.offset > offset
    other = RunIndex()
    assert [o.step for o in other.read(find_logs(tmp_path))] == [50, 55] and other.opened == 0
    deep, copy = write(tmp_path/"a"/"b"/"branches"/"c", "deep").path, write(tmp_path/"a"/"checkpoint-5").path
    (tmp_path/"link").symlink_to(tmp_path/"a")
    assert sorted(find_logs(tmp_path)) == sorted([done.path, live.path, deep]) and find_logs(copy.parent) == [copy]
    with open(deep, "a") as f: f.write('{"garb\n')
    damaged = index.read([deep])[0]
    assert (damaged.state().state, damaged.step) == ("unreadable", 50) and "Line" in damaged.state().words
    index.opened -= 1
    deep.unlink()
    deep.mkdir()                                     # as one without the right to read it: read again as soon as it is there
    assert index.read([deep])[0].state().state == "unreadable" and other.read([deep])[0].state().words.startswith("[Errno 21]")
    deep.rmdir()
    labels_path(done.path).write_text("no JSON")
    assert index.read(find_logs(tmp_path))[0].labels == {}


@pytest.mark.parametrize("spoil", [lambda o: o.mkdir(parents=True), lambda o: (o.parent.mkdir(parents=True), o.write_bytes(b"no database"))])
def test_without_the_database(tmp_path, spoil):
    "The index is a copy: without it, everything is read."
    write(tmp_path)
    spoil(tmp_path/"cache"/"trainer_nb"/"trainer_nb-3.sqlite")
    index = RunIndex()
    assert [o.label for o in index.read(find_logs(tmp_path))] == ["a"] and index.opened == 1


def test_the_database_does_not_grow_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(run_index, "MAX_STORED", 2)
    for name in "abc": write(tmp_path, name)
    RunIndex().read(find_logs(tmp_path))
    index = RunIndex()
    assert len(index.read(find_logs(tmp_path))) == 3 and index.opened == 1


def test_a_summary_has_what_counts(tmp_path):
    "Settings with later changes, results of steps that were not discarded, and the state."
    history = write(tmp_path, end=False, learning_rate=1e-3)
    place = history.place()
    take(history, 5)
    history.note("evaluate", 55, eval_accuracy=0.9)
    history.abandon(place)
    history.note("set", 50, weight_decay=0.1, by="cell")
    history.note("log", 50, train_runtime=1.0)
    summary = summarize(history)
    assert summary.settings == {"learning_rate": 1e-3, "weight_decay": 0.1} and summary.step == 50
    assert summary.results["eval_accuracy"] == [0.5, 50, 0.5, 50, 0.5] and summary.status[0] == "finished"
    history.note("exception", 50, type="ValueError", message="no")
    assert summarize(history).state().state == "failed" == runs(history).model.status()["state"]


def test_a_run_logs_with_what_it_began(tmp_path):
    "The settings that were given, without the values of tokens; packages; and what the table makes of it."
    x = torch.randn(32, 4)
    learn = Learner(torch.nn.Linear(4, 2), train_dataset=torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long()), use_cpu=True, disable_tqdm=True, max_steps=3,
                    loss_func=torch.nn.functional.cross_entropy, output_dir=str(tmp_path), learning_rate=1e-2, hub_token="secret", save_strategy="no", report_to="none")
    learn.train()
    found = RunIndex().read(find_logs(tmp_path))[0]
    assert found.settings["learning_rate"] == 1e-2 and found.packages["torch"] == torch.__version__
    assert "secret" not in learn.history.path.read_text()
    assert runs(tmp_path, learn).table()[0]["steps"] == 3 == len(learn.history)
    assert len(compare(learn, tmp_path)) == len(compare(learn)) == 1    # a run that is given twice is one row
    step = Learner(torch.nn.Linear(4, 2), train_dataset=learn.train_dataset, loss_func=learn.loss_func, use_cpu=True, disable_tqdm=True, max_steps=3, report_to="none")
    table = runs(step)
    assert table.table()[0]["state"] == "new"
    for _ in range(2): step.step()
    assert [table.table()[0][name] for name in ("state", "steps")] == ["paused", 2] and table.shown("seed") == [(42, "42")]
    runs(tmp_path).label(found.run, note="keep")
    own = runs(learn).label(found.run, tags="mine")                     # one file for the run of this process and its log
    assert (row := own.table()[0])["note"] == "keep" and row["tags"] == "mine" == runs(tmp_path).label(found.run, note="x").table()[0]["tags"] and own.table()[0]["note"] == "x"


def test_the_table(tmp_path):
    "The best first; the settings that differ; seeds as one row, with the mean of their curves; the difference to the baseline."
    sweep(tmp_path)
    table = runs(tmp_path, result="eval_accuracy")
    rows = table.table()
    assert [round(row["eval_accuracy"], 3) for row in rows] == [0.72, 0.71, 0.7, 0.63, 0.62, 0.61]
    assert {"learning_rate", "seed", "at step", "commit"} <= set(rows[0]) and len({o.color for o in table.model.curves}) == 6
    table.group("seeds")
    assert [(row["learning_rate"], row["seed"]) for row in table.table()] == [(1e-2, "0, 1, 2"), (1e-3, "0, 1, 2")]
    assert runs_module.RunRow("g", [RunSummary(o, o, settings={"seed": int(o)}) for o in ("10", "9", "1")], "").setting("seed") == "1, 9, 10"
    curve = table.model.curves[0]
    assert table.model.about(table.model.rows[0]).split("\n")[1:] == ["rate 0.01: finished after step 50"] * 3
    assert curve.band and np.allclose(curve.blocks.table[:, 5], table.model.rows[0].runs[0].blocks[:, 5]) and curve.points["eval_accuracy"][0][3] == pytest.approx(0.71)
    table.group(None).label(rows[5]["run"], baseline=True, tags="first")
    assert table.model.row_cells(table.model.rows[0])["eval_accuracy"][1].endswith("(+0.11)")
    table.label(rows[0]["run"], baseline=True)
    assert [row["baseline"] for row in runs(tmp_path).table()].count(True) == 1   # there is one, and it is kept
    assert runs(tmp_path).table()[0]["eval_loss"] == pytest.approx(0.28)          # lower is better
    for wrong in (lambda: table.label("nobody", note="x"), lambda: runs(tmp_path, result="f1"), lambda: table.group("colour"), lambda: table.scatter("no")):
        with pytest.raises(ValueError): wrong()
    assert len(table.scatter("learning_rate").panels()[0].things) == 6
    for by in ("seeds", None):                                                     # a chart says what the table says, without the deviation
        panel, cells = table.group(by).parallel().panels()[0], table.model.row_cells(table.model.rows[0])
        assert dict(panel.things[0].words) == {name: cells[name][1].split(" ±")[0] for name in panel.rows} and len(panel.rows) == 3
    assert {mark.word for mark in panel.things if hasattr(mark, "word") and mark.y == 0} == {"1e-3", "0.01"}
    assert runs_module.axis_places([(rate, str(rate)) for rate in (1e-4, 1e-3, 1e-2)])[1] == pytest.approx([0, 0.5, 1]) and table.scatter("learning_rate").panels()[0].xlog
    for change in (dict(end=False), dict(seed=2), dict(end=False)):                # one that has not ended, one whose seed has been, one with NaN
        last = write(tmp_path, "late", accuracy=0.9, **{"learning_rate": 1e-2, "seed": 7} | change)
    last.append(51, 5.1, 1e-3, 8, 5.1, math.nan, 1.0)
    last.flush()
    two = write(tmp_path, "two", accuracy=0.9, learning_rate=1e-2, seed=7)
    two.note("launch", 50, num_processes=2)
    two.flush()
    assert [table.table()[-1][name] for name in ("state", "eval_accuracy")] == ["diverged", 0.9] and table.table()[-1]["name"].startswith("late (")
    table.group("seeds")
    assert [(row["name"].split("(")[1], row["num_processes"]) for row in table.table()[1:]] == [("3 seeds of 6 runs)", 1), ("3 seeds)", 1)]


def test_seeds_of_different_length():
    "A mean is of the runs that have come so far, and what is not known does not count."
    one, two = (summarize(o) for o in (History("a"), History("b")))
    one.blocks, two.blocks = blocks(10, loss=1.0), blocks(4, loss=3.0)
    two.blocks[1, 5] = math.nan
    one.results["x"], two.results["x"] = [1.0, 5, 2.0, 6, 1.0], [3.0, 9, 4.0, 6, 3.0]
    assert [runs_module.RunRow("g", [one, two], "both").best("x", lower)[:2] for lower in (True, False)] == [(2.0, None), (3.0, 6)]
    mean = runs_module.RunRow("g", [one, two], "both").merged_blocks()
    assert mean[:, 5].tolist() == [2, 1, 2, 2] + [1] * 6 and mean[0, 3:5].tolist() == [1, 3]


@pytest.mark.parametrize("name, settings, lower", [("eval_loss", {}, True), ("eval_f1", {}, False), ("eval_wer", {}, True),
                                                   *((f"eval_{o}", {}, True) for o in ("error_rate", "ppl", "nll", "fid", "mape", "a/rmse", "loss_gap")),
                                                   *((f"eval_{o}", {}, False) for o in ("power", "answer", "terror")),
                                                   ("eval_cost", {"metric_for_best_model": "cost", "greater_is_better": False}, True)])
def test_which_is_better(name, settings, lower):
    assert is_lower_better(name, [RunSummary("a", "a", settings=settings)]) is lower


def test_logs_that_come_later(tmp_path):
    "A folder may be empty, or missing, when it is looked at; the run may write into a folder in it."
    view, table, outer, pattern = follow(tmp_path/"out"), runs(tmp_path/"out"), follow(tmp_path), follow(f"{tmp_path}/o*")
    assert view.view_model.state == "waiting" and len(table) == 0 and "no log" in repr(table) and repr(view).startswith("out: waiting for a log in")
    write(tmp_path/"out").close_log()
    view.view_model.message()
    assert view.view_model.state == "finished" and table.table()[0]["name"] == "a" and "1 run" in repr(table)
    assert repr(outer).startswith("a: finished") and "1 run in" in repr(pattern)


# ---- the page
def rows():
    def row(run, color, state, loss, rate): return {"run": run, "name": f"run {run}", "color": color, "state": state, "about": "", "baseline": False, "single": True,
                                                    "values": [loss, rate, ""], "texts": [str(loss), str(rate), ""]}
    return [row("r1", 2, "finished", 0.1, 1e-3), row("r2", 3, "failed", 0.2, 1e-2), row("r3", 4, "training", None, 1e-1)]


def a_table(**changes):
    return {"columns": ["eval_loss", "lr", "note"], "rows": rows(), "group": None, "groups": ["seeds"], "result": "eval_loss", "results": ["eval_loss", "loss"], "drawn": 2, "metrics": ["eval_loss", "f1"], **changes}


@pytest.mark.browser
def test_the_page_of_many_runs(page):  # noqa: F811
    "Sorted, filtered and hidden in the page; grouped, compared and annotated by the kernel. Eyes that the user has opened stay open."
    content = everything(controls=False, table=a_table(), runs=[a_run(f"r{i}", i - 1, color=i + 1) for i in (1, 2, 3)], metrics={}, status=status(state="finished"))
    page.feed(content, [blocks(50), blocks(50, loss=1.5), blocks(50, loss=1.2)])
    page.settle()
    names = lambda: page.tab.locator(".tnb-run-name span").all_inner_texts()
    shown = lambda: page.js("view.shown().map(o => o.id)")
    assert names() == ["run r1", "run r2", "run r3"] and shown() == ["r1", "r2"]
    for _ in range(2): page.tab.locator(".tnb-sort", has_text="lr").click()
    assert names() == ["run r3", "run r2", "run r1"]
    page.tab.locator(".tnb-runs tbody .tnb-eye").nth(0).click()
    assert sorted(shown()) == ["r1", "r2", "r3"]
    for words, found in (("lr>=0.01", ["run r3", "run r2"]), ("state=failed lr<1", ["run r2"]), ("R1", ["run r1"]), ("eval_loss<", []), ("", ["run r3", "run r2", "run r1"])):
        page.tab.locator(".tnb-runs input[type=search]").fill(words)
        assert names() == found and len(shown()) == len(found), words
    page.tab.locator(".tnb-runs tbody tr").nth(1).hover()
    assert page.js("view.marked") == "r2"
    page.js("[document.dispatchEvent(new CustomEvent('tnb-run', { detail: 'run r1' })), frames_(4)][1]")   # a picture on the page points at it
    assert page.js("[...view.charts.values()][0].points") < 51 * 5 + 9   # each step of that one alone
    assert page.js("view.marked") == "r1" and page.tab.locator(".tnb-marked .tnb-run-name").inner_text() == "run r1"
    page.feed({"kind": "news", "version": 1, "table": a_table()})
    assert len(shown()) == 3
    page.tab.get_by_label("Group", exact=True).select_option("seeds")
    page.tab.locator(".tnb-runs tbody tr").nth(1).locator(".tnb-star").click()
    page.tab.on("dialog", lambda dialog: dialog.accept("<b>keep</b>"))
    page.tab.locator(".tnb-runs tbody tr").nth(1).locator("td").nth(5).dblclick()
    assert page.orders() == [("draw", {"names": ["f1"]}), ("group", {"name": "seeds"}), ("label", {"run": "r2", "baseline": True}), ("label", {"run": "r2", "note": "<b>keep</b>"})]
    page.tab.locator(".tnb-big .tnb-plot").hover()
    page.settle()
    assert page.tab.locator(".tnb-tooltip-label").all_inner_texts() == ["run r2", "run r3", "run r1"]


def test_the_kernel_answers_the_page(tmp_path):
    "What the page asks is kept beside the log; what is wrong is said, and the view goes on."
    history = write(tmp_path)
    view, sent = runs(tmp_path).view, []
    view.connection.widget = type("Page", (), {"send": lambda self, content, buffers=None: sent.append(json.loads(json.dumps(content)))})()
    ask = lambda verb, **given: view.connection.receive(None, {"kind": "do", "id": verb, "verb": verb, "with": given}, [])
    ask("hello")
    ask("label", run=history.run_id, note="good")
    assert json.loads(labels_path(history.path).read_text()) == {"note": "good"} and sent[-1]["kind"] == "done"
    assert sent[-2]["table"]["rows"][0]["texts"][-1] == "good"
    ask("draw", names=["eval_loss"])
    assert view.view_model.drawn_metrics().count("eval_loss") == 1
    history.path.unlink()
    ask("label", run=history.run_id, note="better")
    assert sent[-1]["kind"] == "rejected" and "was deleted" in sent[-1]["text"]

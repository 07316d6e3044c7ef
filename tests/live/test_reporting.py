"What a run logs reaches trackers: TensorBoard's files are read back, Trackio's database is, W&B's offline rows are where these are installed."
import glob, importlib.util, json, os, sys, types, warnings

from types import SimpleNamespace

import pytest
import torch

from callback_runs import Counts, make, net, points
from trainer_nb import Learner, ReportCallback, TrainerCallback, TrainingArguments
from trainer_nb.live.reporting import make_report_callbacks
from trainer_nb.live.trackers import Tracker, resolve_trackers, tracker_config, prefix_log_names

board = pytest.mark.skipif(not importlib.util.find_spec("tensorboard"), reason="tensorboard is not installed")
COMMON = dict(metric_for_best_model=None, logging_strategy="steps", logging_steps=2, eval_steps=5, max_steps=20, disable_tqdm=False)


def runs(folder) -> list: return sorted({os.path.dirname(f) for f in glob.glob(f"{folder}/**/events.out*", recursive=True)})


def scalars(folder, tag="train/loss") -> dict:
    "Step -> value, of the one run in a folder."
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    found, = runs(folder)
    events = EventAccumulator(found).Reload()
    rows = [(o.step, o.value) for o in events.Scalars(tag)] if tag in events.Tags()["scalars"] else []
    assert len({step for step, _ in rows}) == len(rows), f"a step is there twice: {rows}"
    return dict(sorted(rows))   # the files of two processes begun in one second are read in the order of these


def logged(learn, key="loss") -> dict: return {o["step"]: o[key] for o in learn.state.log_history if key in o}


def same(read, logs): return list(read) == sorted(logs) and all(read[s] == pytest.approx(v, rel=1e-6) for s, v in logs.items())


class Kept(Tracker):
    "Keeps what it is told."
    name = "kept"
    def __init__(self): self.told = []
    def open(self, about): self.told.append(("open", about.key)); self.about = about
    def log(self, logs, step): self.told.append((step, dict(logs)))
    def back(self, step): self.told.append(("back", step))
    def close(self): self.told.append(("close",))


def kept(learn) -> Kept: return next(c.tracker for c in learn.callback_handler.callbacks if isinstance(c, ReportCallback))


# ---- TensorBoard

@board
def test_tensorboard_shows_the_run_and_what_was_left_behind_is_gone(tmp_path):
    "Steps by hand, a rewind, a restore, a kill and a resume, an evaluation after the end: one run, and each step once, as in the history."
    given = COMMON | dict(report_to="tensorboard", output_dir=str(tmp_path), save_strategy="no", run_name="mine")
    learn = make(**given)
    learn.step(9)
    before = learn.snapshot()
    learn.step(8)
    learn.evaluate()
    assert 16 in scalars(tmp_path)
    learn.restore(before)
    learn.set(lr=0.01)
    learn.step(5)
    learn.rewind(3)
    learn.step(1)
    assert same(scalars(tmp_path), logged(learn)) and max(scalars(tmp_path)) == 12
    folder = learn.save_checkpoint()
    learn.step(6)   # and then it is killed
    again = make(**given)
    again.load_checkpoint(folder)
    again.train()
    assert same(scalars(tmp_path), logged(again)) and list(scalars(tmp_path)) == list(range(2, 21, 2))
    assert same(scalars(tmp_path, "eval/loss"), logged(again, "eval_loss"))
    assert scalars(tmp_path, "train/train_loss")[20] == pytest.approx(again.state.log_history[-1]["train_loss"], rel=1e-6)
    run, = runs(tmp_path)
    assert run == f"{tmp_path}/runs/mine-{again.history.run_id}"
    again.log({"mine": 3.0})
    assert scalars(tmp_path, "train/mine") == {20: 3.0}
    again.free()
    like = make(**given | dict(output_dir=None, report_to="none"))
    like.step(9); like.set(lr=0.01); like.train()
    assert torch.equal(again.model.layer.weight, like.model.layer.weight), "reporting has changed the run"


@board
def test_tensorboards_folder_and_config(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    learn = make(**COMMON | dict(report_to=["tensorboard"], logging_dir=str(tmp_path / "a"), hub_model_id=None))
    learn.model.config = types.SimpleNamespace(to_dict=lambda: {"hidden_size": 2})
    learn.step(2)
    run, = runs(tmp_path / "a")
    assert run == str(tmp_path / "a" / f"run-{learn.history.run_id}")
    tags = EventAccumulator(run).Reload().Tags()
    assert set(tags["tensors"]) == {"args/text_summary", "model_config/text_summary"} and set(tags["scalars"]) == {"train/loss", "train/grad_norm", "train/learning_rate", "train/epoch"}
    learn.reset()
    learn.step(2)
    branch = learn.branch()
    branch.step(2)
    assert len(runs(tmp_path / "a")) == 3 and {os.path.basename(r)[4:] for r in runs(tmp_path / "a")} > {learn.history.run_id, branch.history.run_id}
    learn.free()
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "b"))
    make(**COMMON | dict(report_to="tensorboard")).step(2)
    assert len(runs(tmp_path / "b")) == 1
    # without a folder it is that of checkpoints, which is printed
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR")
    monkeypatch.chdir(tmp_path)
    make(**COMMON | dict(report_to="tensorboard")).step(2)
    assert len(runs(tmp_path / "trainer_output" / "runs")) == 1


@board
def test_the_same_as_transformers_own_callback(tmp_path, monkeypatch):
    "Theirs, as it is, beside ours: the same tags and numbers."
    transformers = pytest.importorskip("transformers")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "theirs"))
    theirs = transformers.integrations.TensorBoardCallback()
    learn = make(**COMMON | dict(report_to="tensorboard", logging_dir=str(tmp_path / "ours"), output_dir=str(tmp_path), save_strategy="no", callbacks=[theirs]))
    learn.train()
    a, b = (EventAccumulator(runs(tmp_path / o)[0]).Reload() for o in ("ours", "theirs"))
    assert a.Tags()["scalars"] == b.Tags()["scalars"] and "eval/loss" in a.Tags()["scalars"]
    for tag in a.Tags()["scalars"]: assert [(o.step, o.value) for o in a.Scalars(tag)] == [(o.step, o.value) for o in b.Scalars(tag)]


@board
def test_on_several_processes_only_the_first_reports_and_the_run_goes_on(tmp_path):
    learn = make(**COMMON | dict(report_to="tensorboard", output_dir=str(tmp_path), save_strategy="no", callbacks=[Counts(2)], disable_tqdm=True))
    learn.step(4)
    learn.launch(2)
    learn.step(6)
    learn.close()
    learn.step(4)
    assert len(runs(tmp_path)) == 1 and same(scalars(tmp_path), logged(learn)) and list(scalars(tmp_path)) == [2, 4, 6, 8, 10, 12, 14]
    assert len({f.split(".")[-2] for f in glob.glob(f"{runs(tmp_path)[0]}/events.out*")}) == 2, "two processes have written: the kernel and the first worker"


# ---- what a callback does, with a tracker that keeps what it is told

def test_what_a_tracker_is_told():
    learn = make(callbacks=[ReportCallback(Kept())], **COMMON | dict(run_name="a"))
    told = kept(learn).told
    assert told == []
    learn.step(9)
    assert told[0] == ("open", learn.history.run_id) and [t[0] for t in told[1:]] == [2, 4, 5, 6, 8]
    assert set(told[1][1]) == {"loss", "grad_norm", "learning_rate", "epoch"} and "eval_loss" in told[3][1]
    learn.evaluate(points(4)); learn.predict(points(4))
    assert told[-2][0] == 9 and "eval_loss" in told[-2][1] and "test_loss" in told[-1][1]
    learn.rewind(2)
    learn.rewind(1)
    learn.step(2)
    back = [i for i, t in enumerate(told) if t[0] == "back"]
    assert len(back) == 2 and all(t[0] > told[i][1] for i in back for t in told[i + 1:] if t[0] != "back") and told[-1][0] == 8   # once for each rewind, before the next log
    learn.train()
    assert told[-1] == ("close",) and "train_runtime" in told[-2][1]
    learn.evaluate()
    assert told[-2][0] == "open" and told[-1][0] == 20
    learn.free()
    assert told[-1] == ("close",)
    everything = kept(learn).about.config
    assert everything["max_steps"] == 20 and everything["model/num_parameters"] == 3 and kept(learn).about.title == "a"
    given = TrainingArguments()
    given.hub_token = "secret"
    assert tracker_config(given, None)[0]["hub_token"] == "<HUB_TOKEN>"


def test_another_process_that_is_not_the_first_says_nothing():
    learn = make(callbacks=[ReportCallback(Kept())], **COMMON)
    learn.step(1)
    learn.state.is_world_process_zero = False
    learn.step(5)
    assert [t[0] for t in kept(learn).told] == ["open"]


class OnAnother(TrainerCallback):
    "This is not the first process, whatever a rewind has put back."
    def on_train_begin(self, args, state, control, **kwargs): state.is_world_process_zero = False
    on_step_end = on_log = on_train_begin


def test_any_process_knows_what_the_tracker_has_heard():
    "Its state may be the one that new processes begin with, and a rewind that is told twice purges what came since."
    learn = make(callbacks=[ReportCallback(Kept())], **COMMON)
    learn.callback_handler.callbacks.insert(0, OnAnother())
    learn.step(6)
    learn.rewind(2)
    learn.step(4)
    state, = (c.state_dict() for c in learn.callback_handler.callbacks if isinstance(c, ReportCallback))
    assert state == {"heard": [learn.history.run_id, 1]} and kept(learn).told == []


@board
def test_a_rewind_and_a_death_leave_the_charts_whole(tmp_path):
    learn = make(**COMMON | dict(report_to="tensorboard", output_dir=str(tmp_path), save_strategy="no", disable_tqdm=True))
    learn.launch(2)
    learn.step(8)
    learn.rewind(2)
    learn.step(6)
    os.kill(learn.processes[0]["pid"], 9)
    with pytest.raises(RuntimeError, match="rank 0"): learn.step(2)
    learn.step(4)
    learn.close()
    assert same(scalars(tmp_path), logged(learn)) and list(scalars(tmp_path))[0] == 2


@pytest.mark.parametrize("where", ["open", "log", "back", "close"])
@pytest.mark.parametrize("strict", [False, True])
def test_a_tracker_that_fails_stops_nothing(where, strict):
    class Fails(Kept):
        def fail(self, *args): raise OSError("no network")
    tracker = Fails()
    setattr(tracker, where, tracker.fail)
    learn, like = make(callbacks=[ReportCallback(tracker)], **COMMON), make(**COMMON)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("error" if strict else "always")
        learn.step(7); learn.rewind(2); learn.step(3); learn.train()
    like.train()
    assert torch.equal(learn.model.layer.weight, like.model.layer.weight) and [o["step"] for o in learn.state.log_history] == [o["step"] for o in like.state.log_history]
    about = [str(o.message) for o in said if "no network" in str(o.message)]
    assert len(about) == (0 if strict else 1) and (strict or "fails" in about[0].lower() or "kept failed" in about[0])
    if where == "log": assert [t for t in tracker.told if t[0] != "open"] == [], "it was asked again"


# ---- which

def test_which_trackers(tmp_path, monkeypatch):
    here = {"tensorboard", "wandb"}
    for module in ("args.validation", "live.trackers"):
        monkeypatch.setattr(f"trainer_nb.{module}.is_tracker_installed", lambda name: name in here)
    assert resolve_trackers("none") == [] and resolve_trackers("all") == ["tensorboard", "wandb"] == resolve_trackers(["wandb", "tensorboard", "wandb"])[::-1]
    for other in ("swanlab", object()):
        with pytest.raises(ValueError, match="is no Tracker"): ReportCallback(other)
    with pytest.raises(ImportError, match="`pip install comet-ml`"): make(report_to="comet_ml")
    learn = make(report_to="all", output_dir=str(tmp_path), save_strategy="no")
    assert [c.tracker.name for c in learn.callback_handler.callbacks if isinstance(c, ReportCallback)] == ["tensorboard", "wandb"]
    def said(**settings):
        with warnings.catch_warnings(record=True) as w:
            warnings.simplefilter("always")
            Learner(net(), train_dataset=points(8), use_cpu=True, **settings)
        return " ".join(str(o.message) for o in w)
    assert "leaves TensorBoard out" in said(report_to="all") and "logging_dir='x' does nothing" in said(logging_dir="x") and "project='p' does nothing" in said(project="p")
    assert said(logging_dir="x", callbacks=[type("Theirs", (TrainerCallback,), {})()]) == "" == said(project="p", report_to="wandb")
    here.clear()
    assert "found no installed tracker" in said(report_to="all") and said() == ""
    learn = Learner(net(), train_dataset=points(8), use_cpu=True)
    assert not any(isinstance(c, ReportCallback) for c in learn.callback_handler.callbacks)   # and a step pays nothing


def test_names_that_are_refused():
    for name, text in (("wanb", "Did you mean 'wandb'"), (["all", "wandb"], "combines 'all' or 'none' with other names")):
        with pytest.raises(ValueError, match=text): TrainingArguments(report_to=name)


def test_names_are_rewritten_as_the_trainers():
    theirs = pytest.importorskip("transformers").integrations.integration_utils.rewrite_logs
    logs = {"loss": 1, "eval_loss": 2, "eval_a_b": 3, "test_f1": 4, "evaluated": 5, "train_runtime": 6, "a/b": 7, "eval_": 8}
    assert prefix_log_names(logs) == theirs(logs)


def test_the_settings_travel_and_belong_to_the_process(tmp_path):
    "A checkpoint of a run that reported is resumed by one that does not, and a script may report."
    learn = make(**COMMON | dict(callbacks=[ReportCallback(Kept())], output_dir=str(tmp_path), run_name="a", log_level="warning", save_strategy="no"))
    learn.step(3)
    folder = learn.save_checkpoint()
    other = make(**COMMON | dict(output_dir=str(tmp_path), save_strategy="no"))
    other.load_checkpoint(folder)
    assert (other.args.run_name, other.args.log_level) == (None, "passive")
    other.train(); learn.train()
    assert torch.equal(other.model.layer.weight, learn.model.layer.weight)


# ---- with stand-ins for the libraries: what is asked of them

def fake_wandb(monkeypatch):
    wandb, told = types.ModuleType("wandb"), []
    def init(**given):
        told.append(("init", given))
        wandb.run = types.SimpleNamespace(summary={}, config={"kept": 1}, define_metric=lambda *a, **k: told.append(("metric", a[0])), log=lambda row: told.append(("row", row)), finish=finish, id=given.get("id", "hand"))
        wandb.run.config = types.SimpleNamespace(update=lambda values, allow_val_change: told.append(("config", len(values) > 50)))
        return wandb.run
    def finish(): wandb.run = None; told.append("finish")
    wandb.run, wandb.init = None, init
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setattr("trainer_nb.live.trackers.is_tracker_installed", lambda name: True)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return wandb, told


def test_wandb_is_asked_for_the_run_by_our_id(monkeypatch):
    wandb, told = fake_wandb(monkeypatch)
    learn = make(report_to="wandb", run_name="mine", project="p", **COMMON | dict(max_steps=4))
    learn.step(2)
    run = wandb.run
    assert told[0] == ("init", dict(project="p", id=learn.history.run_id, resume="allow", name="mine")) and told[1] == ("config", True)
    assert [o[1] for o in told[2:4]] == ["train/global_step", "*"] and set(told[4][1]) == {"train/loss", "train/grad_norm", "train/learning_rate", "train/epoch", "train/global_step"}
    branch = learn.branch()
    branch.step(2)
    assert [o for o in told if o[0] == "init"][1][1] == dict(project="p", id=branch.history.run_id, resume="allow", name=f"mine-{branch.history.run_id}", reinit="create_new")
    branch.free()
    learn.train()
    assert told[-1] == "finish" and set(run.summary) == {"train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss", "total_flos"}
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    wandb.init(by="hand")   # a run of the user's: it gets the logs, and stays open
    make(report_to="wandb", **COMMON | dict(max_steps=2)).train()
    assert wandb.run is not None and sum(o[0] == "init" for o in told) == 3
    wandb.run.finish()
    make(report_to="wandb", **COMMON | dict(max_steps=2)).train()
    assert [o for o in told if o[0] == "init"][-1][1]["project"] == "theirs"


def test_in_the_background_and_step_by_step():
    learn, like = (make(callbacks=[ReportCallback(Kept())], **COMMON) for _ in "ab")
    handle = learn.start()
    handle.wait()
    for _ in like.steps(): pass
    def brief(learn): return [t if isinstance(t[0], str) else t[0] for t in kept(learn).told if t[0] != "open"]
    assert brief(learn) == brief(like) and brief(learn)[-1] == ("close",) and len(brief(learn)) == 16


# ---- the others, where they are installed

def test_trackio(tmp_path, monkeypatch, capsys):
    pytest.importorskip("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    import sqlite3
    for module in [m for n, m in sys.modules.items() if n.startswith("trackio")]:
        if hasattr(module, "TRACKIO_DIR"): monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path)
    given = COMMON | dict(report_to="trackio", project="p", run_name="mine", max_steps=6)
    learn = make(**given)
    learn.train()
    learn.branch()   # a finished one: nothing is reported
    with sqlite3.connect(tmp_path / "p.db") as db:
        rows = db.execute("select run_name, step, metrics from metrics order by id").fetchall()
        config = db.execute("select config from configs").fetchall()
    assert {r[0] for r in rows} == {"mine"}
    rows = [(step, json.loads(row)) for _, step, row in rows]
    found = {step: row for step, row in rows if "train/loss" in row}
    assert {s: m["train/loss"] for s, m in found.items()} == pytest.approx(logged(learn)) and all(m["train/global_step"] == s for s, m in found.items())
    assert any("eval/loss" in row for _, row in rows) and json.loads(config[0][0])["max_steps"] == 6


def test_trackios_spaces_are_handed_on(monkeypatch):
    "Where it writes, and the Space for a view that stays, which is made at the end of the run; to a stand-in."
    told = []
    run = types.SimpleNamespace(log=lambda values, step: None, finish=lambda: told.append("finish"))
    fake = types.ModuleType("trackio")
    fake.init = lambda **given: told.append(given) or run
    fake.context_vars = types.SimpleNamespace(current_space_id=types.SimpleNamespace(get=lambda: "me/space"))
    fake.freeze = lambda **given: told.append(given)
    monkeypatch.setitem(sys.modules, "trackio", fake)
    monkeypatch.setattr("trainer_nb.live.trackers.is_tracker_installed", lambda name: True)
    given = dict(report_to="trackio", project="p", trackio_space_id="me/space", trackio_bucket_id="me/bucket", trackio_static_space_id="me/static")
    make(**COMMON | given | dict(max_steps=2)).train()
    assert {k: told[0][k] for k in ("project", "space_id", "bucket_id")} == {"project": "p", "space_id": "me/space", "bucket_id": "me/bucket"}
    assert told[1] == "finish" and {k: told[2][k] for k in ("space_id", "new_space_id", "project")} == {"space_id": "me/space", "new_space_id": "me/static", "project": "p"}


def test_wandb_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    for name, value in dict(WANDB_MODE="offline", WANDB_DIR=str(tmp_path), WANDB_SILENT="true", WANDB_DATA_DIR=str(tmp_path), WANDB_CACHE_DIR=str(tmp_path)).items(): monkeypatch.setenv(name, value)
    learn = make(**COMMON | dict(report_to="wandb", run_name="mine", max_steps=6))
    learn.step(2)
    assert wandb.run.id == learn.history.run_id and wandb.run.name == "mine" and wandb.run.config["max_steps"] == 6 and wandb.run.project == "huggingface"
    learn.step(2)
    assert wandb.run.summary["train/global_step"] == 4 and wandb.run.summary["train/loss"] == pytest.approx(logged(learn)[4])
    branch = learn.branch()
    branch.step(2)
    assert glob.glob(f"{tmp_path}/wandb/offline-run-*{branch.history.run_id}") and wandb.run.id == learn.history.run_id
    branch.free()
    learn.train()
    assert wandb.run is None and glob.glob(f"{tmp_path}/wandb/offline-run-*{learn.history.run_id}")


def test_variables_that_nobody_reads_are_told(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(__spec__=SimpleNamespace()))
    for name, value in dict(WANDB_WATCH="all", WANDB_LOG_MODEL="false", MLFLOW_TAGS="{}").items(): monkeypatch.setenv(name, value)
    with pytest.warns(UserWarning) as said: make_report_callbacks(TrainingArguments(str(tmp_path), report_to=["wandb"]), [])
    assert [str(w.message).split(" ")[0] for w in said] == ["WANDB_WATCH"]
    monkeypatch.setenv("DISABLE_MLFLOW_INTEGRATION", "TRUE")
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(__spec__=SimpleNamespace()))
    assert "mlflow" not in resolve_trackers("all") and "wandb" in resolve_trackers("all")

"Callbacks that come with the package, callbacks that keep a state, levels of the log, and callbacks of transformers as they are."
import copy, logging, pickle, re, subprocess, sys, warnings

import pytest
import torch

from trainer_nb import (DefaultFlowCallback, EarlyStoppingCallback, ExportableState, Learner, PrinterCallback,
                        ProgressCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments, differences)
from trainer_nb.core.callbacks import EVENTS
from trainer_nb.core.callbacks import fire_event
from callback_runs import Counts, make, net, points   # noqa: F401
from toys import hard_learner

transformers = pytest.importorskip("transformers")










def quietly(f, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return f(*args, **kwargs)


def found(learn, kind): return next(c for c in learn.callback_handler.callbacks if isinstance(c, kind))


# ---- stopping early

def theirs(folder, callback, **settings):
    given = dict(learning_rate=0.05, per_device_train_batch_size=4, max_steps=30, use_cpu=True, disable_tqdm=True, eval_strategy="steps", eval_steps=2,
                 metric_for_best_model="loss", logging_strategy="no", save_strategy="no", report_to="none")
    one = transformers.Trainer(net(), transformers.TrainingArguments(str(folder), **given | settings), train_dataset=points(40, far=5.0),
                               eval_dataset=points(16, seed=2), callbacks=[callback])
    one.remove_callback(transformers.PrinterCallback)
    return one


def test_early_stopping_is_the_trainers(tmp_path):
    "The same step, count and weights, for ours and for transformers' own callback; with learning rates that stop at different steps, or not at all."
    ends = set()
    for patience, threshold, rate, larger in ((1, 0.0, 0.05, False), (3, 0.0, 0.05, False), (2, 0.5, -0.0, False), (2, 0.3, 0.02, True), (2, None, 0.05, False)):
        like = theirs(tmp_path, transformers.EarlyStoppingCallback(patience, threshold or 0.0), learning_rate=rate, greater_is_better=larger)
        like.train()
        for kind in (EarlyStoppingCallback, transformers.EarlyStoppingCallback):
            learn = make(callbacks=[kind(patience, threshold or 0.0 if kind is not EarlyStoppingCallback else threshold)], learning_rate=rate, greater_is_better=larger)
            quietly(learn.train)
            assert learn.state.global_step == like.state.global_step and learn.state.best_metric == pytest.approx(like.state.best_metric, rel=1e-6)
            assert torch.allclose(learn.model.layer.weight, like.model.layer.weight, rtol=1e-6)
        ends.add(like.state.global_step)
    assert len(ends) > 2, f"all stopped at {ends}: this test would compare little"


def test_a_count_goes_back_with_the_run_and_on_with_a_resume(tmp_path):
    whole = make(callbacks=[EarlyStoppingCallback(4)], output_dir=str(tmp_path / "a"), save_strategy="no")
    quietly(whole.train)
    end = whole.state.global_step
    assert end < 30
    learn = make(callbacks=[EarlyStoppingCallback(4)], output_dir=str(tmp_path / "b"), save_strategy="no")
    quietly(learn.step, end - 2)
    count, folder, there = found(learn, EarlyStoppingCallback).early_stopping_patience_counter, learn.save_checkpoint(), learn.snapshot()
    assert count == 3
    quietly(learn.run)
    assert learn.state.global_step == end
    learn.restore(there)
    assert found(learn, EarlyStoppingCallback).early_stopping_patience_counter == count and not learn.run_state.finished
    branch = learn.branch()
    quietly(branch.run)
    assert branch.state.global_step == end and found(branch, EarlyStoppingCallback) is not found(learn, EarlyStoppingCallback)
    quietly(learn.run)
    assert learn.state.global_step == end and differences(learn.snapshot(), whole.snapshot()) in ([], ["args"])
    again = make(callbacks=[EarlyStoppingCallback(4)], output_dir=str(tmp_path / "b"), save_strategy="no")
    quietly(again.train, folder)
    assert again.state.global_step == end and torch.equal(again.model.layer.weight, whole.model.layer.weight)


@pytest.mark.filterwarnings("ignore:.*load_best_model_at_end")
def test_looking_does_not_count_and_a_new_run_begins_from_nought():
    learn = make(callbacks=[EarlyStoppingCallback(2)])
    quietly(learn.step)
    for _ in range(5): learn.evaluate()
    assert found(learn, EarlyStoppingCallback).early_stopping_patience_counter == 0 and not learn.control.should_training_stop
    quietly(learn.train)
    first = learn.state.global_step
    assert first < 30 and found(learn, EarlyStoppingCallback).early_stopping_patience_counter == 2
    learn.reset()
    quietly(learn.train)
    assert learn.state.global_step == first
    learn.evaluate()
    assert not learn.run_state.verb.is_manual


@pytest.mark.filterwarnings("ignore:.*load_best_model_at_end")
def test_what_early_stopping_needs_is_asked_for():
    with pytest.raises(ValueError, match="eval_strategy='epoch'"): make(callbacks=[EarlyStoppingCallback()], eval_strategy="no")
    with pytest.raises(ValueError, match="metric_for_best_model='loss'"): make(callbacks=[EarlyStoppingCallback], metric_for_best_model=None)
    learn = make(metric_for_best_model=None)
    learn.add_callback(EarlyStoppingCallback)
    with pytest.raises(ValueError, match="metric_for_best_model"): learn.step()
    with pytest.warns(UserWarning, match="load_best_model_at_end=True"): make(callbacks=[EarlyStoppingCallback]).step()
    learn = make(callbacks=[EarlyStoppingCallback(1)], eval_dataset={"a": points(4), "b": points(4, far=9.0)}, metric_for_best_model="b_loss", learning_rate=1e-4)
    with pytest.warns(UserWarning, match="found no eval_b_loss") as said: learn.step(6)
    for o in said: assert "found no eval_b_loss" in str(o.message) or "load_best" in str(o.message)
    assert sum("found no eval_b_loss" in str(o.message) for o in said) == 1 and found(learn, EarlyStoppingCallback).early_stopping_patience_counter == 0


# ---- a state



@pytest.mark.parametrize("layout", ["safetensors", "trainer"])
def test_what_a_callback_was_made_with(tmp_path, layout):
    "By default it keeps its arguments and gets back what it had counted; with the setting it is as it was."
    learn = make(callbacks=[Counts(2), Counts(5)], output_dir=str(tmp_path), save_strategy="steps", save_steps=4, save_format=layout)
    learn.step(4)
    for setting, want in ((False, [(3, 8), (7, 20)]), (True, [(2, 8), (5, 20)])):
        other = make(callbacks=[Counts(3), Counts(7)], output_dir=str(tmp_path), save_strategy="steps", save_steps=4, save_format=layout,
                     restore_callback_states_from_checkpoint=setting)
        before = [c for c in other.callback_handler.callbacks if type(c) is Counts]
        other.load_checkpoint()
        after = [c for c in other.callback_handler.callbacks if type(c) is Counts]
        assert [(c.by, c.steps) for c in after] == want and all(a is b for a, b in zip(before, after))
    assert vars(Counts.from_state(after[0].state())) == vars(after[0])
    with pytest.raises(NotImplementedError, match="has to define state"): type("Odd", (ExportableState,), {})().state()


def test_the_state_of_a_run_in_a_file(tmp_path):
    "Ours is read by transformers, and theirs by us."
    learn = make(logging_strategy="steps", logging_steps=2)
    learn.step(4)
    state = learn.state
    state.trial_name, state.trial_params, state.is_hyper_param_search = "trial", {"learning_rate": 0.1}, True
    state.save_to_json(tmp_path / "ours.json")
    read = transformers.TrainerState.load_from_json(tmp_path / "ours.json")
    assert vars(read) == vars(state) and len(read.log_history) == 4
    read.save_to_json(tmp_path / "theirs.json")
    assert TrainerState.load_from_json(tmp_path / "theirs.json") == state == TrainerState.load_from_json(tmp_path / "ours.json")
    assert (tmp_path / "ours.json").read_text() == (tmp_path / "theirs.json").read_text()
    control = TrainerControl(should_save=True)
    assert transformers.TrainerControl(should_save=True).state() == control.state() and TrainerControl.from_state(control.state()) == control


# ---- adding and taking out

class Users(transformers.TrainerCallback):
    "A user's, written for transformers: all of its events."
    not_state = ("heard",)
    def __init__(self): self.heard = []

for _name in (n for n in vars(transformers.TrainerCallback) if n.startswith("on_")):
    def _hear(self, args, state, control, _name=_name, **kwargs): self.heard.append((_name, type(args), type(state), type(control), *sorted(kwargs)))
    setattr(Users, _name, _hear)


def test_callbacks_of_transformers_as_they_are(capsys):
    user = Users()
    learn = make(callbacks=[user, transformers.PrinterCallback], eval_on_start=True, logging_strategy="steps", logging_steps=5, max_steps=10, output_dir=None)
    assert user.heard[0][:4] == ("on_init_end", TrainingArguments, TrainerState, TrainerControl)
    learn.train()
    learn.predict(points(4))
    fire_event(learn, "on_push_begin")
    names = {h[0] for h in user.heard}
    assert set(EVENTS) - names == {"on_exception", "on_finding", "on_pause", "on_resume", "on_save", "on_substep_end"} and len(vars(transformers.TrainerCallback)) > 15
    usual = {"model", "processing_class", "optimizer", "lr_scheduler", "train_dataloader", "eval_dataloader"}
    assert all(usual <= set(h[4:]) for h in user.heard) and next(h for h in user.heard if h[0] == "on_evaluate")[4:].count("metrics") == 1
    out = capsys.readouterr().out.splitlines()
    assert sum("'loss'" in o for o in out) == 2 and sum("train_runtime" in o for o in out) == 1 and not any("total_flos" in o for o in out)   # once: not by both
    assert len(learn.state.log_history) == len([h for h in user.heard if h[0] == "on_log"]) and "total_flos" in learn.state.log_history[-1]


def test_add_pop_remove():
    from transformers.utils.notebook import NotebookProgressCallback
    learn = make(callbacks=[PrinterCallback])
    handler = learn.callback_handler
    assert [type(c) for c in handler.callbacks] == [DefaultFlowCallback, PrinterCallback, ProgressCallback] and handler.callback_list.splitlines()[1] == "PrinterCallback"
    # with disable_tqdm=True there is one more, in whose place the progress callback prints
    assert type(learn.pop_callback(transformers.PrinterCallback)) is PrinterCallback and type(learn.pop_callback(PrinterCallback)) is PrinterCallback
    assert learn.pop_callback(PrinterCallback) is None
    one = PrinterCallback()
    learn.add_callback(one); learn.add_callback(PrinterCallback)
    learn.remove_callback(one)
    assert one not in handler.callbacks and found(learn, PrinterCallback)
    assert type(learn.pop_callback(NotebookProgressCallback)) is ProgressCallback
    with pytest.raises(TypeError, match="ReportCallback"): learn.add_callback(type("T", (), {"store_init_configuration": None})())
    with pytest.raises(TypeError, match="is not a callback"): learn.add_callback(dict)


# ---- printing, and levels

def test_without_a_display_logs_are_printed(capsys):
    learn = make(logging_strategy="steps", logging_steps=5, max_steps=10, eval_strategy="no", metric_for_best_model=None)
    learn.train()
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 3 and said[0].startswith("{'loss': '") and "'grad_norm': '" in said[0] and said[-1].startswith("{'train_runtime': ")
    learn.set(disable_tqdm=False)
    learn.reset(); learn.step(5)
    learn = make(callbacks=[PrinterCallback], logging_strategy="steps", logging_steps=5, max_steps=10, eval_strategy="no", metric_for_best_model=None)
    capsys.readouterr()
    learn.step(5)
    assert len(capsys.readouterr().out.splitlines()) == 1
    learn.state.is_local_process_zero = False
    learn.step(5)
    assert capsys.readouterr().out == ""


@pytest.fixture
def loggers():
    ours = logging.getLogger("trainer_nb")
    before, handlers, others = ours.level, list(ours.handlers), transformers.logging.get_verbosity()
    yield ours
    ours.setLevel(before); ours.handlers[:] = handlers
    transformers.logging.set_verbosity(others)


def test_levels_are_the_trainers(monkeypatch, loggers, tmp_path):
    for level in ("passive", "detail", "debug", "info", "warning", "error", "critical"):
        for rank, local, each in ((0, 0, True), (1, 1, True), (4, 0, True), (4, 0, False)):
            for name, value in dict(WORLD_SIZE=8, RANK=rank, LOCAL_RANK=local).items(): monkeypatch.setenv(name, str(value))
            args = TrainingArguments(log_level=level, log_level_replica="error", log_on_each_node=each)
            like = transformers.TrainingArguments.__new__(transformers.TrainingArguments)
            vars(like).update(log_level=level, log_level_replica="error", log_on_each_node=each)
            type(like).should_log.fget   # theirs asks a distributed state; ours is the same rule over the environment
            own = (local if each else rank) == 0
            assert args.should_log is own
            want = logging.ERROR if not own else logging.WARNING if level == "passive" else transformers.training_args.trainer_log_levels[level]
            assert args.get_process_log_level() == want


def test_a_level_is_given_to_the_loggers(caplog, loggers, tmp_path):
    make(log_level="passive")
    assert loggers.level == logging.NOTSET
    learn = make(log_level="info", max_steps=4, output_dir=str(tmp_path), save_strategy="steps", save_steps=2)
    learn.train()
    said = [r.getMessage() for r in caplog.records if r.name == "trainer_nb"]
    assert said[0].startswith("***** Running training ***** from step 0 of 4 (1 epochs): 4 samples") and said[-1] == "Training completed at step 4 of 4."
    assert sum("A checkpoint of step" in o for o in said) == 2 and sum("Evaluated at step" in o for o in said) == 2
    assert loggers.level == logging.INFO and transformers.logging.get_verbosity() == logging.INFO
    learn.set(log_level="error")
    assert loggers.level == logging.ERROR


def test_main_process_first(monkeypatch):
    with TrainingArguments().main_process_first(desc="mapping"): pass   # alone: nothing to wait for
    order = []
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "barrier", lambda: order.append("barrier"))
    for rank, local, by_machine, want in ((0, 0, True, "work barrier"), (1, 1, True, "barrier work"), (2, 0, True, "work barrier"), (2, 0, False, "barrier work")):
        for name, value in dict(WORLD_SIZE=4, RANK=rank, LOCAL_RANK=local).items(): monkeypatch.setenv(name, str(value))
        with TrainingArguments().main_process_first(local=by_machine): order.append("work")
        assert " ".join(order) == want and not order.clear()
    monkeypatch.setenv("RANK", "0"); monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(ValueError):
        with TrainingArguments().main_process_first(): raise ValueError
    assert order == ["barrier"]   # the others are not left waiting


TWO = """
import sys, time, pathlib
from trainer_nb import TrainingArguments
args, file = TrainingArguments(use_cpu=True), pathlib.Path(sys.argv[1])
with args.main_process_first():
    if args.process_index == 0: time.sleep(0.5); file.write_text("made")
    else: assert file.read_text() == "made"
# in one piece: the other process writes to the same pipe
sys.stdout.write(f"done {args.process_index}\\n")
"""


def test_main_process_first_with_two(tmp_path):
    (tmp_path / "two.py").write_text(TWO)
    out = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(tmp_path / "two.py"), str(tmp_path / "cache")],
                         capture_output=True, text=True, timeout=200)
    assert out.returncode == 0 and sorted(o for o in out.stdout.splitlines() if "done" in o) == ["done 0", "done 1"], out.stderr


CELLS = """
import torch, warnings
from torch import nn
from trainer_nb import EarlyStoppingCallback, Learner, PrinterCallback
---
class Net(nn.Module):
    def __init__(self): super().__init__(); self.layer = nn.Linear(2, 1)
    def forward(self, x, labels):
        return {"loss": ((self.layer(x).squeeze(-1) - labels) ** 2).mean()}
---
torch.manual_seed(1)
data = [{"x": torch.randn(2), "labels": torch.randn(()) + 5} for _ in range(40)]
held = [{"x": torch.randn(2), "labels": torch.randn(())} for _ in range(16)]
net = Net()
---
learn = Learner(net, train_dataset=data, eval_dataset=held, learning_rate=0.05, per_device_train_batch_size=4, max_steps=30, use_cpu=True, eval_strategy="steps",
                eval_steps=2, metric_for_best_model="loss", output_dir="out", save_strategy="no", report_to="tensorboard", callbacks=[EarlyStoppingCallback(4)])
learn.add_callback(PrinterCallback)
---
learn.step(7); learn.evaluate(); learn.rewind(2); learn.step(1); out = learn.train()
---
learn.export_script("train.py"), learn.state.global_step
"""


def test_a_script_stops_where_the_run_did(tmp_path):
    "Evaluations by hand have not counted, so the plain script, which has none, ends in the same step and the same weights."
    from jupyter_kernels import Kernel
    kernel = Kernel(tmp_path)
    try:
        for code in CELLS.split("---"):
            cell = kernel.wait(kernel.send(code.strip()))
            assert not cell.error, cell.error
    finally: kernel.close()
    assert "No cause was found why its weights would differ" in cell.text and cell.text.endswith(" 10)")
    done = subprocess.run([sys.executable, str(tmp_path / "train.py"), "--output_dir", str(tmp_path / "again")], capture_output=True, text=True, timeout=200)
    assert "The weights are those of the run, byte for byte." in done.stdout, done.stderr


def test_a_metric_that_is_nan_from_the_first_stops_the_run(tmp_path):
    def nan(p): return {"score": float("nan")}
    learn = make(metric_for_best_model="score", compute_metrics=nan, callbacks=[EarlyStoppingCallback(2)])
    quietly(learn.train)
    assert learn.state.global_step == 4


def test_another_metric_begins_anew():
    "What was best by the loss is not the best by another; a schedule that goes by the metric cannot follow another."
    scores = iter([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    learn = make(compute_metrics=lambda p: {"score": next(scores)}, max_steps=8)
    learn.step(4)
    assert learn.state.best_metric == min(r["eval_loss"] for r in learn.state.log_history if "eval_loss" in r)
    best = learn.state.best_metric
    learn.set(metric_for_best_model="loss")
    assert learn.state.best_metric == best
    learn.set(metric_for_best_model="score", greater_is_better=True)
    assert learn.state.best_metric is None and learn.state.best_global_step is None
    learn.step(2)
    assert (learn.state.best_metric, learn.state.best_global_step) == (pytest.approx(0.3), 6)
    plateau = make(lr_scheduler_type="reduce_lr_on_plateau", compute_metrics=lambda p: {"score": 1.0})
    plateau.step()
    with pytest.raises(ValueError, match="goes by this metric"): plateau.set(metric_for_best_model="score")


def test_the_handler_can_be_called_as_the_trainers(tmp_path):
    "As an override of `log` or `evaluate` does it that was copied from there: the control comes back and is put in place."
    class Hears(TrainerCallback):
        not_state = ("heard",)
        def __init__(self): self.heard = []
        def on_log(self, args, state, control, logs=None, model=None, **kwargs): self.heard.append((logs.get("loss"), model is not None)); control.should_save = True
        def on_evaluate(self, args, state, control, metrics=None, **kwargs): self.heard.append(metrics)
    class Own(Learner):
        def log(self, logs, start_time=None):
            self.state.log_history.append({**logs, "step": self.state.global_step})
            self.control = self.callback_handler.on_log(self.args, self.state, self.control, logs)
        def _save_checkpoint(self, model, trial):
            assert model is self.model and trial is None
            self.saved = True
            super()._save_checkpoint(model, trial)
    hears = Hears()
    learn = Own(net(), train_dataset=points(8), output_dir=str(tmp_path), max_steps=2, logging_steps=1, save_strategy="no", use_cpu=True, disable_tqdm=True, callbacks=[hears])
    learn.train()
    assert [model for _, model in hears.heard[:2]] == [True, True] and learn.saved and len(learn.state.log_history) >= 2
    handler = learn.callback_handler
    assert handler.model is learn.model and handler.optimizer is learn.optimizer and handler.train_dataloader is not None
    assert handler.on_evaluate(learn.args, learn.state, learn.control, {"eval_loss": 1.0}) is learn.control and hears.heard[-1] == {"eval_loss": 1.0}
    assert handler.call_event("on_step_end", learn.args, learn.state, learn.control) is learn.control
    with pytest.raises(AttributeError, match="on_something"): handler.on_something
    handler.remove_callback(hears)
    assert hears not in handler.callbacks


def test_a_run_that_was_stopped_can_be_resumed(tmp_path):
    "By a time limit, at the end of an epoch, by early stopping: a resume goes on to the end, as at the Trainer, from the very sample."
    class Limit(TrainerCallback):
        def __init__(self, event): self.event = event
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 5 and self.event == "step": control.should_save = control.should_training_stop = True
        def on_epoch_end(self, args, state, control, **kwargs):
            if self.event == "epoch": control.should_save = control.should_training_stop = True
    settings = dict(max_steps=-1, num_train_epochs=3, eval_strategy="no", metric_for_best_model=None, save_strategy="no")
    plain = make(**settings)
    plain.train()
    for event, stops in (("step", 5), ("epoch", 10)):
        one = make(output_dir=str(tmp_path / event), callbacks=[Limit(event)], **settings)
        one.train()
        assert one.state.global_step == stops
        again = make(output_dir=str(tmp_path / event), **settings)
        with pytest.warns(UserWarning, match=f"stopped at step {stops} of 30 and continues"): again.train(resume_from_checkpoint=True)
        assert again.state.global_step == 30 and all(torch.equal(a, b) for a, b in zip(plain.model.parameters(), again.model.parameters()))
        assert [r.epoch for r in again.history] == [r.epoch for r in plain.history]
    stopped = make(output_dir=str(tmp_path / "early"), save_strategy="steps", save_steps=2, callbacks=[EarlyStoppingCallback(1)])
    quietly(stopped.train)
    assert stopped.state.global_step < 30
    again = make(output_dir=str(tmp_path / "early"), save_strategy="steps", save_steps=2)
    quietly(again.train, resume_from_checkpoint=True)
    assert again.state.global_step == 30


def test_epochs_that_were_cut_short_are_epochs():
    class Cut(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs): control.should_epoch_stop = state.global_step == 4
    learn = make(max_steps=-1, num_train_epochs=3, eval_strategy="no", metric_for_best_model=None, callbacks=[Cut()])
    learn.train()
    assert (learn.state.global_step, learn.state.epoch, learn.run_state.finished) == (24, 3.0, True)


def test_who_hears_of_an_evaluation_finds_the_model_without_dropout():
    class Looks(TrainerCallback):
        def __init__(self): self.modes = []
        def on_evaluate(self, args, state, control, model=None, **kwargs): self.modes.append(model.training); model.train()
        def on_predict(self, args, state, control, model=None, **kwargs): self.modes.append(model.training)
    looks = Looks()
    learn = make(callbacks=[looks], max_steps=2)
    learn.train(), learn.predict(points(4))
    assert looks.modes == [False, False] and learn.model.training


FLAGS = {"save": "should_save", "should_sav": "should_save", "should_log_": "should_log", "should_eval": "should_evaluate", "Should_Log": "should_log",
         "should_train_stop": "should_training_stop", "should_stop_training": "should_training_stop", "should_stop": "should_epoch_stop = ... or control.should_training_stop"}

@pytest.mark.parametrize("name", FLAGS)
def test_a_misspelt_request(name):
    control = TrainerControl()
    with pytest.raises(AttributeError, match=rf"^control\.{name} = \.\.\. would change nothing: TrainerControl has no '{name}'\. Did you mean control\.{re.escape(FLAGS[name])} = \.\.\.\?"):
        setattr(control, name, True)
    assert name not in vars(control)


def test_a_misspelt_request_of_a_callback():
    class Misspelt(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs): control.should_sav = True
    with pytest.raises(AttributeError, match=r"control\.should_save = \.\.\.") as raised: hard_learner(callbacks=[Misspelt()]).step()
    assert raised.value.callback == "Misspelt.on_step_end"


@pytest.mark.parametrize("name", ["should_save_chekpoint", "should_save_best", "should_log_images"])
def test_a_name_that_extends_a_request_warns_once(name):
    control = TrainerControl()
    with pytest.warns(UserWarning, match=rf"^control\.{name} is an attribute of your own, and requests nothing\. To request: control\.should_(save|log) = True\.$"):
        setattr(control, name, True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        setattr(control, name, False)
        for other in ("should_sample", "should_scale", "should_share", "should_load", "should_plot", "should_validate", "epoch", "training"): setattr(control, other, 1)


def test_an_array_in_the_control():
    class Curve(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.curve, control.should_log = torch.arange(state.global_step + 2), state.global_step == 2
    learn = hard_learner(callbacks=[Curve()], logging_strategy="no")
    learn.step(2)
    assert len(learn.run_state.control.curve) == 4 and learn.callback_handler.requesters == {"should_log": "Curve.on_step_end"}
    learn.step(1)
    assert learn.callback_handler.requesters == {}


def test_other_attributes_of_the_control():
    control = TrainerControl()
    control.patience, control._should_sav, control.should_prune = 3, True, True
    vars(control).update(should_sav=1)
    control.should_sav = 2
    for other in (copy.copy(control), copy.deepcopy(control), pickle.loads(pickle.dumps(control))): assert vars(other) == vars(control)
    class Own(TrainerControl):
        def new_step(self):
            super().new_step()
            self.should_stop = False
    own = Own(should_save=True)
    own.new_step()
    assert not own.should_save and not own.should_stop
    own.should_stop = True

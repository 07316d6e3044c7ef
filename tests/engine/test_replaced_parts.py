"""Parts of a learner that are replaced between its verbs: the state, the callbacks, the model, the labels, the label smoother."""
import copy
import warnings

import pytest
import torch
from torch import nn

import trainer_nb
from trainer_nb import CallbackHandler, Learner, TrainerCallback, TrainerState, TrainingArguments

SETTINGS = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "use_cpu": True, "max_steps": 4, "per_device_train_batch_size": 4,
            "logging_steps": 1, "seed": 1}


class Net(nn.Module):
    def __init__(self, **config):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        if config: self.config = type("Config", (), {**config, "keys_to_ignore_at_inference": []})()

    def forward(self, x, labels=None):
        logits = self.layer(x)
        if labels is None: return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Rows(torch.utils.data.Dataset):
    def __len__(self): return 16
    def __getitem__(self, i): return {"x": torch.full((4,), i / 16), "extra": torch.ones(1), "weight": torch.ones(1), "labels": i % 2}


def learner(cls=Learner, model=None, **given):
    torch.manual_seed(0)
    parts = {k: given.pop(k) for k in ("callbacks", "model_init") if k in given}
    model = None if "model_init" in parts else Net() if model is None else model
    return cls(model, TrainingArguments(**SETTINGS | given), train_dataset=Rows(), eval_dataset=Rows(), **parts)


# --- the state


def test_a_state_that_was_assigned_is_a_copy():
    one, other = learner(), learner()
    other.state = one.state
    given = TrainerState(log_history=[{"loss": 1.0}], trial_params={"lr": 1.0})
    third = learner()
    third.state = given
    one.train(), third.train()
    assert (other.state.log_history, given.log_history) == ([], [{"loss": 1.0}])
    assert len(one.state.log_history) == 5 and len(third.state.log_history) == 6


@pytest.mark.parametrize("before", ["nothing", "prepared", "step"])
def test_a_state_brings_no_intervals(before):
    whole = learner(logging_steps=2)
    whole.train()
    learn = learner(logging_steps=2)
    if before == "prepared": learn.snapshot()
    if before == "step": learn.step()
    learn.state = TrainerState(is_world_process_zero=False, is_local_process_zero=False)
    learn.train()
    kept = ("logging_steps", "eval_steps", "save_steps", "train_batch_size", "is_world_process_zero", "is_local_process_zero")
    assert [getattr(learn.state, name) for name in kept] == [getattr(whole.state, name) for name in kept]
    def steps(o): return [row["step"] for row in o.state.log_history]
    assert steps(learn) == steps(whole) == [2, 4, 4]


# --- the callbacks


class Counts(TrainerCallback):
    def __init__(self): self.steps = 0
    def on_step_end(self, args, state, control, **kwargs): self.steps += 1


def test_callbacks_are_replaced_all_or_none():
    class Bad(TrainerCallback):
        def on_step_end(self): "Takes no arguments."
    counts = Counts()
    learn = learner(callbacks=[counts])
    before, events = list(learn.callback_handler.callbacks), list(learn.history.events)
    handler = CallbackHandler([Counts()])
    handler.callbacks.append(Bad())
    with pytest.raises(TypeError, match="Bad"): learn.callback_handler = handler
    assert learn.callback_handler.callbacks == before and learn.history.events == events
    learn.train()
    assert counts.steps == 4


def test_callbacks_that_are_replaced_are_recorded():
    learn = learner(callbacks=[Counts()])
    learn.step()
    handler = copy.copy(learn.callback_handler)
    class Other(Counts): "Of another name."
    other = Other()
    handler.callbacks = [c for c in handler.callbacks if not isinstance(c, Counts)] + [other]
    learn.callback_handler = handler
    learn.train()
    acts = [(e["kind"], e["step"], e["data"]["callback"]) for e in learn.history.events if e["kind"].endswith("_callback")]
    assert acts == [("remove_callback", 1, "Counts"), ("add_callback", 1, "Other")] and other.steps == 3


# --- the model and its columns


class Wide(Net):
    seen = None
    def forward(self, x, extra=None, labels=None, **more):
        type(self).seen = extra is not None, "weight" in more
        return super().forward(x, labels)


WORKERS = [{}, {"dataloader_num_workers": 1}, {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}]


@pytest.mark.parametrize("workers", WORKERS)
def test_a_new_model_is_evaluated_with_its_own_columns(workers):
    learn = learner(**workers)
    learn.evaluate()
    learn.model = Wide()
    learn.evaluate()
    assert Wide.seen == (True, False)
    learn.free()


@pytest.mark.parametrize("workers", WORKERS)
def test_new_label_names_are_columns_too(workers):
    class Named(Net):
        seen = None
        def forward(self, x, labels=None, **more):
            Named.seen = "weight" in more
            return super().forward(x, labels)
    learn = learner(model=Named(), **workers)
    learn.evaluate(), learn.step()
    assert Named.seen is False
    learn.label_names = ["labels", "weight"]
    learn.evaluate()
    assert Named.seen is True
    Named.seen = None
    learn.step()
    assert Named.seen is True
    learn.free()


# --- a log that fails


def test_a_log_that_failed_is_repeated_with_its_values():
    class Pops(Learner):
        calls = 0
        def log(self, logs, start_time=None):
            rate = logs.pop("learning_rate", None)
            Pops.calls += 1
            assert rate is not None or "eval_loss" in logs or "train_loss" in logs
            if Pops.calls == 1: raise RuntimeError("once")
            super().log({**logs, "rate": rate} if rate else logs, start_time)
    learn = learner(Pops)
    with pytest.raises(RuntimeError, match="once"): learn.step()
    snapshot = learn.snapshot()
    learn.step()
    rows = copy.deepcopy(learn.state.log_history)
    assert [row["rate"] for row in rows] == pytest.approx([5e-5, 3.75e-5])
    learn.restore(snapshot)
    learn.step()
    assert learn.state.log_history == rows


def test_an_evaluation_still_returns_the_epoch():
    class Fails(Learner):
        failed = False
        def log(self, logs, start_time=None):
            super().log(logs, start_time)
            if not self.failed:
                self.failed = True
                raise RuntimeError("after")
    learn = learner(Fails)
    with pytest.raises(RuntimeError, match="after"): learn.step()
    learn.step()
    assert len(learn.state.log_history) == 2
    assert learn.evaluate()["epoch"] == learn.state.epoch


# --- label smoothing


MULTI = {"problem_type": "multi_label_classification"}


@pytest.mark.parametrize("how", ["constructor", "model_init", "set", "model", "arguments"])
def test_smoothing_without_effect_is_warned_about_wherever_it_comes_from(how):
    def make():
        if how == "constructor": return learner(model=Net(**MULTI), label_smoothing_factor=0.1)
        if how == "model_init": return learner(model_init=lambda: Net(**MULTI), label_smoothing_factor=0.1).model
        if how == "set": return learner(model=Net(**MULTI)).set(label_smoothing_factor=0.1)
        if how == "model":
            learn = learner(label_smoothing_factor=0.1)
            learn.model = Net(**MULTI)
            return learn
        args = TrainingArguments(**SETTINGS)
        learn = Learner(Net(**MULTI), args, train_dataset=Rows())
        args.label_smoothing_factor = 0.1
        return learn.step()
    with pytest.warns(UserWarning, match="label_smoothing_factor=0.1 has no effect") as caught: make()
    assert sum("has no effect" in str(w.message) for w in caught) == 1


def test_a_factor_after_an_assigned_smoother_is_refused():
    learn = learner()
    learn.label_smoother = None
    with pytest.raises(ValueError, match=r"label_smoother was assigned; del learn\.label_smoother"): learn.set(label_smoothing_factor=0.3)
    assert learn.args.label_smoothing_factor == 0
    del learn.label_smoother
    learn.set(label_smoothing_factor=0.3)
    assert learn.label_smoother.epsilon == 0.3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.train()


# --- an evaluation loop that was assigned


def test_a_function_in_place_of_a_method_counts_as_an_override():
    learn = learner()
    learn.eval_dataset = None
    learn.get_eval_dataloader = lambda eval_dataset=None: torch.utils.data.DataLoader([{"x": torch.ones(4), "labels": 1}] * 8, 4)
    learn.set(eval_strategy="steps", eval_steps=2)
    learn.train()
    assert sum("eval_loss" in row for row in learn.state.log_history) == 2


class Named:
    "A collator that marks its batches."
    def __init__(self, mark): self.mark = mark
    def __call__(self, samples): return {**trainer_nb.default_data_collator(samples), "mark": torch.full((len(samples),), self.mark)}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_collator_that_is_assigned_makes_the_batches_that_follow(workers):
    "From the same sample on, also where workers have read ahead; the journal has it, and without a change the loader stays."
    class Marks(Net):
        def __init__(self): super().__init__(); self.marks = []
        def forward(self, x, labels=None, mark=None):
            if self.training: self.marks.append(int(mark[0]))
            return super().forward(x, labels)
    plain, learn = learner(), learner(model=Marks(), dataloader_num_workers=workers)
    plain.train()
    torch.manual_seed(0)
    learn.model.load_state_dict(Net().state_dict())
    learn.data_collator = Named(1)
    learn.step(2)
    learn.data_collator = Named(2)
    learn.step()
    loader = learn.run_state.loader
    learn.step()
    assert learn.run_state.loader is loader and learn.model.marks == [1, 1, 2, 2]
    assert [(e["step"], e["act"]) for e in learn.history.journal()] == [(2, "data_collator")]
    assert [r.loss for r in learn.history] == [r.loss for r in plain.history]

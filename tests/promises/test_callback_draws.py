"Random numbers that callbacks, and the methods that make the parts of a run, draw depend on the position alone: cells, errors and interrupts do not matter."
import random

import numpy as np
import pytest, torch
from torch import nn
from torch.utils.data import random_split

from trainer_nb import Learner, TrainerCallback

EVENTS = ("on_train_begin", "on_epoch_begin", "on_step_begin", "on_substep_end", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end", "on_epoch_end", "on_log",
          "on_evaluate", "on_save")


class Net(nn.Module):
    "Its input is shifted by what the callbacks have drawn."
    def __init__(self): super().__init__(); self.layer, self.shift = nn.Linear(4, 1), 0.0
    def forward(self, x, labels): return {"loss": (self.layer(nn.functional.dropout(x, 0.1, self.training) + self.shift) - labels).pow(2).mean()}


class Draws(TrainerCallback):
    "Draws from all generators at an event, and shifts the inputs of the model by the sum."
    def shift(self, args, state, control, model=None, **kwargs): model.shift = 0.5 * model.shift + 0.1 * (torch.rand(()).item() + np.random.rand() + random.random())


class AlsoDraws(Draws): "Another callback that draws."


def drawing(event, kind=Draws):
    callback = kind()
    setattr(callback, event, callback.shift)
    return callback


class Once(TrainerCallback):
    "Raises an error, once, at an event of a step; the callbacks behind it are called later."
    def __init__(self, event, step=5): setattr(self, event, lambda *args, **kwargs: self.check(args[1])); self.step = step
    def check(self, state):
        if state.global_step == self.step: self.step = None; raise RuntimeError("once")


DATA = [{"x": torch.randn(4, generator=g), "labels": torch.randn(1, generator=g)} for g in [torch.Generator().manual_seed(0)] for _ in range(64)]


def make(*callbacks, cls=Learner, **settings):
    torch.manual_seed(0)
    return cls(Net(), callbacks=list(callbacks), **{"train_dataset": DATA, "eval_dataset": DATA[:8], "save_strategy": "no", "report_to": "none", "learning_rate": 0.05,
               "num_train_epochs": 3, "per_device_train_batch_size": 8, "logging_steps": 4, "disable_tqdm": True, "use_cpu": True, "optim": "sgd"} | settings)


def outcome(learn):
    return {"weights": [p.detach().numpy().tobytes() for p in learn.model.parameters()], "shift": learn.model.shift,
            "losses": learn.history.column("loss")[learn.history.column("abandoned") == 0].tobytes()}


def disturbed(learn, *counts):
    "Take steps, with draws in cells before each call, to the end."
    for n in counts:
        torch.rand(3); np.random.rand(2); random.random()
        learn.step(n)
    torch.rand(1)
    return outcome_of(learn)


def outcome_of(learn): learn.train(); return outcome(learn)


GIVEN = {"as it is": {}, "workers": dict(dataloader_num_workers=1), "accumulation": dict(gradient_accumulation_steps=2), "evaluations": dict(eval_strategy="steps", eval_steps=5)}


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("event", EVENTS)
def test_draws_in_cells_do_not_matter(event, given, tmp_path):
    settings = GIVEN[given] | (dict(save_strategy="steps", save_steps=5, output_dir=str(tmp_path)) if event == "on_save" else {})
    if event == "on_evaluate": settings |= GIVEN["evaluations"]
    want = outcome_of(make(drawing(event), **settings))
    if not (event == "on_substep_end" and given != "accumulation"): assert want["shift"]
    assert disturbed(make(drawing(event), **settings), 3, 1, 2) == want


@pytest.mark.parametrize("event", ["on_epoch_begin", "on_step_begin", "on_step_end", "on_log", "on_epoch_end"])
def test_callbacks_that_are_called_later(event):
    "An error of a callback leaves those behind it for the next call, in which they draw the same numbers."
    step = {"on_epoch_begin": 8, "on_log": 8, "on_epoch_end": 8}.get(event, 5)
    want = outcome_of(make(drawing(event), drawing(event, AlsoDraws)))
    learn = make(drawing(event), Once(event, step), drawing(event, AlsoDraws))
    with pytest.raises(RuntimeError, match="once"): learn.train()
    torch.rand(5)
    assert disturbed(learn) == want


def test_a_step_that_is_repeated():
    "Its micro-batches are there already, so nothing is fetched; on_step_begin draws as before."
    want = outcome_of(make(drawing("on_step_begin")))
    learn = make(drawing("on_step_begin"), Once("on_pre_optimizer_step"))
    with pytest.raises(RuntimeError, match="once"): learn.train()
    assert disturbed(learn, 1, 1) == want


def test_a_checkpoint_in_another_learner(tmp_path):
    "Of an epoch's end, with events still to come."
    events = ("on_step_begin", "on_epoch_begin", "on_epoch_end", "on_step_end")
    settings = dict(save_strategy="epoch", output_dir=str(tmp_path/"a"), dataloader_num_workers=1)
    want = outcome_of(make(*map(drawing, events), **settings))
    learn = make(*map(drawing, events), **settings | {"output_dir": str(tmp_path/"b")})
    learn.step(8)
    learn.free()
    again = make(*map(drawing, events), **settings | {"output_dir": str(tmp_path/"b")})
    torch.rand(9)
    again.train(resume_from_checkpoint=True)
    found = outcome(again)   # its history has the steps of this process only
    assert found["weights"] == want["weights"] and found["shift"] == want["shift"]


def test_callbacks_of_one_class_draw_different_numbers():
    seen = []
    class Notes(TrainerCallback):
        def on_epoch_begin(self, args, state, control, **kwargs): seen.append(torch.rand(()).item())
    make(Notes(), Notes()).train()
    assert len(set(seen)) == len(seen) == 6


def test_a_callback_more_changes_no_numbers():
    want = outcome_of(make(drawing("on_step_end")))
    learn = make(Once("on_log", None), drawing("on_step_end"))
    learn.step(3)
    learn.add_callback(drawing("on_train_end", AlsoDraws))
    learn.step(2)
    learn.pop_callback(Once)
    assert disturbed(learn, 3) | {"shift": None} == want | {"shift": None}


def test_events_of_calls_between_steps_leave_the_generators_of_the_cells():
    "learn.evaluate() and learn.log() are calls of a cell: its random numbers go on as without them."
    learn = make()
    learn.step(2)
    torch.manual_seed(3)
    want = torch.rand(2), np.random.seed(3), np.random.rand()
    learn.add_callback(TrainerCallbackThatDrawsNothing())
    torch.manual_seed(3); np.random.seed(3)
    learn.evaluate()
    learn.log({"mine": 1.0})
    assert torch.equal(torch.rand(2), want[0]) and np.random.rand() == want[2]


class TrainerCallbackThatDrawsNothing(TrainerCallback):
    def on_evaluate(self, args, state, control, **kwargs): pass
    def on_log(self, args, state, control, **kwargs): pass


class Splits(Learner):
    "Methods that draw random numbers where the parts of the run are made."
    def get_train_dataloader(self):
        self.train_dataset = random_split(DATA, [48, 16])[0]
        return super().get_train_dataloader()
    def create_optimizer(self, *args):
        optimizer = super().create_optimizer(*args)
        for group in optimizer.param_groups: group["momentum"] = 0.1 * random.random()
        return optimizer


def test_parts_of_the_run_do_not_depend_on_the_cells():
    "They are functions of the seed, as in the Trainer, which seeds all generators when it is made."
    want = outcome_of(make(cls=Splits))
    learn = make(cls=Splits)
    torch.rand(7); random.random()
    assert disturbed(learn, 5) == want
    assert outcome_of(make(cls=Splits, seed=7))["weights"] != want["weights"]


def test_making_the_parts_leaves_the_generators_of_the_cells():
    torch.manual_seed(5); np.random.seed(5); random.seed(5)
    want = torch.rand(1), np.random.rand(), random.random()
    learn = make(cls=Splits)
    torch.manual_seed(5); np.random.seed(5); random.seed(5)
    learn.step(2)
    assert (torch.rand(1), np.random.rand(), random.random()) == want


class Selects(Learner):
    "Evaluates on samples that it selects at random."
    def get_eval_dataloader(self, eval_dataset=None):
        return super().get_test_dataloader([DATA[i] for i in np.random.permutation(64)[:16]])


def test_evaluations_are_the_same_each_time():
    "Also where samples are selected, and metrics are computed, with random numbers."
    learn = make(cls=Selects, compute_metrics=lambda found: {"drawn": np.random.rand() + random.random() + torch.rand(()).item()})
    torch.manual_seed(4)
    want = torch.rand(2)
    torch.manual_seed(4)
    first = learn.evaluate()
    np.random.rand(3)
    second = learn.evaluate()
    assert torch.equal(torch.rand(2), want)
    assert [first[k] for k in ("eval_loss", "eval_drawn")] == [second[k] for k in ("eval_loss", "eval_drawn")]

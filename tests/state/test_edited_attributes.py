"""Attributes that the user has edited when a run is resumed: what the run had not changed keeps the present value, and what it had
changed is restored."""
import dataclasses
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import trainer_nb
from trainer_nb import Learner, TrainerCallback


class Net(nn.Module):
    def __init__(self, scale=1.0, weights=(1.0, 2.0), decay=0.9):
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.scale, self.weights, self.decay = scale, torch.tensor(weights), decay
        self.mean, self.passes = torch.zeros(()), 0

    def forward(self, x, labels):
        loss = (self.scale * self.weights * (self.layer(x) - labels)).pow(2).mean()
        self.mean = self.decay * self.mean + (1 - self.decay) * loss.detach()
        self.passes += 1
        return {"loss": loss}


class Rows(torch.utils.data.Dataset):
    def __init__(self, shift=0.0, size=12): self.shift, self.size, self.reads = shift, size, 0
    def __len__(self): return self.size
    def __getitem__(self, i):
        self.reads += 1
        return {"x": torch.tensor([float(i), 1.0]) + self.shift, "labels": torch.tensor([float(i % 2)])}


class Factor(TrainerCallback):
    def __init__(self, every=2, factor=0.5, names=("a",), wait=0):
        self.every, self.factor, self.names, self.wait, self.by_name = every, factor, list(names), wait, {"a": torch.ones(2)}
        self.losses = []
    def on_step_end(self, args, state, control, **kwargs):
        self.wait += 1
        self.losses.append(state.global_step)
        if not hasattr(self, "late"): self.late = state.global_step


class Own(Learner):
    alpha = 1.0   # of the class
    def __init__(self, *args, beta=0.5, **kwargs):
        self.beta, self.calls = beta, 0
        super().__init__(*args, **kwargs)
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        self.calls += 1
        loss = self.beta * model(**inputs)["loss"]
        return (loss, {}) if return_outputs else loss


class Damped(torch.optim.SGD):
    "An optimizer with a setting and a counter in attributes."
    def __init__(self, params, lr, damping=0.5):
        super().__init__(params, lr)
        self.damping, self.count = damping, 0
    @torch.no_grad()
    def step(self, closure=None):
        self.count += 1
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None: p.grad.mul_(self.damping)
        return super().step(closure)


def make(folder, model=None, data=None, callback=None, cls=Own, damping=0.5, **given):
    torch.manual_seed(0)
    model = model or Net()
    optimizer = Damped(model.parameters(), 0.001, damping)
    own = {k: given.pop(k) for k in ("beta",) if k in given}
    return cls(model, train_dataset=data or Rows(), callbacks=[callback or Factor()], optimizers=(optimizer, None), output_dir=str(folder),
               per_device_train_batch_size=2, max_steps=12, use_cpu=True, disable_tqdm=True, logging_steps=1, save_strategy="no", report_to="none",
               **own, **given)


def callback_of(learn): return next(c for c in learn.callback_handler.callbacks if isinstance(c, Factor))


def said(function):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    return [str(w.message) for w in caught if issubclass(w.category, UserWarning)]


def begin(folder, **given):
    learn = make(folder, **given)
    learn.step(5)
    path = learn.save_checkpoint()
    learn.free()
    return path


def state(learn):
    c, m, d, o = callback_of(learn), learn.model, learn.train_dataset, learn.optimizer
    return {"callback": [c.every, c.factor, c.names, c.wait, c.losses, c.late, c.by_name["a"].tolist()],
            "model": [m.scale, m.weights.tolist(), m.decay, float(m.mean), m.passes, m.layer.weight.tolist()],
            "learner": [learn.beta, learn.calls], "data": [d.shift, d.reads], "optimizer": [o.damping, o.count]}


def test_nothing_was_edited(tmp_path):
    "The same run, and no message."
    straight = make(tmp_path / "straight")
    straight.step(9)
    path = begin(tmp_path / "run")
    learn = make(tmp_path / "run")
    assert said(lambda: learn.load_checkpoint(path)) == []
    learn.step(4)
    assert state(learn) == state(straight)


def test_edited_constants_count(tmp_path):
    "Of a callback, a model, a learner, a data set and an optimizer; counters and statistics are restored; one message names each."
    path = begin(tmp_path)
    learn = make(tmp_path, Net(2.0, (3.0, 4.0), 0.8), Rows(0.25), Factor(3, 0.1, ("a", "b")), damping=0.7, beta=0.9)
    callback_of(learn).by_name["a"] += 1
    message, = said(lambda: learn.load_checkpoint(path))
    found = state(learn)
    assert found["callback"] == [3, 0.1, ["a", "b"], 5, [1, 2, 3, 4, 5], 1, [2.0, 2.0]]
    assert found["model"][:3] == [2.0, pytest.approx([3.0, 4.0]), 0.8] and found["model"][4] == 5 and found["model"][3] > 0
    assert found["learner"] == [0.9, 5] and found["data"] == [0.25, 10] and found["optimizer"] == [0.7, 5]
    assert message.startswith("load_checkpoint() keeps the present values of attributes that the restored run had not changed: ")
    for part in ("Factor.every (3 here, 2 there)", "Factor.factor (0.1 here, 0.5 there)", "Factor.names (['a', 'b'] here, ['a'] there)",
                 "Own.beta (0.9 here, 0.5 there)", "optimizer.damping (0.7 here, 0.5 there)", "model.scale (2.0 here, 1.0 there)",
                 "Factor.by_name,"):
        assert part in message, part
    assert "wait" not in message and "reads" not in message and "calls" not in message


def test_edits_stay_over_further_checkpoints(tmp_path):
    "A second resume with the edited code, and one with the code edited again."
    path = begin(tmp_path)
    learn = make(tmp_path, callback=Factor(3))
    learn.load_checkpoint(path)
    learn.step(2)
    path = learn.save_checkpoint()
    learn.free()
    again = make(tmp_path, callback=Factor(3))
    assert said(lambda: again.load_checkpoint(path)) == [] and callback_of(again).every == 3 and callback_of(again).wait == 7
    again.free()
    third = make(tmp_path, callback=Factor(4))
    message, = said(lambda: third.load_checkpoint(path))
    assert callback_of(third).every == 4 and callback_of(third).wait == 7 and "Factor.every (4 here, 3 there)" in message


def test_what_the_run_changed_and_the_user_edited(tmp_path):
    "The value of the run, and a message."
    path = begin(tmp_path)
    learn = make(tmp_path, callback=Factor(wait=100))
    message, = said(lambda: learn.load_checkpoint(path))
    assert callback_of(learn).wait == 5 and message.startswith("load_checkpoint() restores attributes from the run, although")
    assert "Factor.wait (100 here, 5 there)" in message


@dataclasses.dataclass
class Options:
    every: int = 2
    count: int = 0


class Holds(TrainerCallback):
    "A module that the run does not change, an object with a setting and a counter, and a tensor that begins with random numbers."
    def __init__(self, seed, every=2):
        torch.manual_seed(seed)
        self.teacher, self.options, self.noise = nn.Linear(2, 2), Options(every), torch.randn(3)
    def on_step_end(self, args, state, control, **kwargs):
        self.options.count += 1
        self.noise += 1


@pytest.mark.parametrize("every", [2, 4])
def test_objects_in_attributes_are_restored(every, tmp_path):
    "A module as the weights of the model are, with a message; an object with a counter as a whole, with one if it was edited."
    learn = make(tmp_path)
    learn.add_callback(first := Holds(1))
    learn.step(5)
    path = learn.save_checkpoint()
    learn.free()
    new = make(tmp_path)
    new.add_callback(second := Holds(2, every))
    message, = said(lambda: new.load_checkpoint(path))
    assert torch.equal(second.teacher.weight, first.teacher.weight) and torch.equal(second.noise, first.noise)
    assert second.options == Options(2, 5) and "Holds.teacher" in message and ("Holds.options" in message) == (every == 4)
    assert message.startswith("load_checkpoint() restores attributes from the run") and "noise" not in message


class Anchored(Learner):
    "Copies of the weights, to which the run returns from time to time."
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.anchors = [p.detach().clone() for p in self.model.parameters()]


def test_copies_of_weights_are_restored(tmp_path):
    "Also where the run has not changed them: another process begins with other random weights."
    path = begin(tmp_path, cls=Anchored)
    torch.manual_seed(1)
    other = Net()
    learn = make(tmp_path, other, cls=Anchored)
    assert said(lambda: learn.load_checkpoint(path)) == []
    torch.manual_seed(0)
    assert all(map(torch.equal, learn.anchors, Net().parameters()))


class Buffers(Net):
    "Buffers that are not persistent: one that is made from a setting, and a counter; and a persistent one."
    def __init__(self, base=10.0):
        super().__init__()
        self.register_buffer("frequencies", base ** -torch.arange(3.0), persistent=False)
        self.register_buffer("count", torch.zeros(1), persistent=False)
        self.register_buffer("mask", torch.full((2,), base))
    def forward(self, x, labels):
        self.count += 1
        return super().forward(x * self.frequencies.sum(), labels)


def test_buffers_that_are_made_from_a_setting(tmp_path):
    "As in the Trainer, which loads the persistent ones only; a counter is restored, and a message names the other."
    path = begin(tmp_path, model=Buffers())
    same = make(tmp_path, model=Buffers())
    assert said(lambda: same.load_checkpoint(path)) == []
    same.free()
    learn = make(tmp_path, model=Buffers(100.0))
    message, = said(lambda: learn.load_checkpoint(path))
    assert torch.equal(learn.model.frequencies, 100.0 ** -torch.arange(3.0)) and learn.model.count == 5 and learn.model.mask.tolist() == [10.0, 10.0]
    assert message.endswith("that the restored run had not changed: frequencies.")
    learn.step(2)
    path = learn.save_checkpoint()
    learn.free()
    again = make(tmp_path, model=Buffers(100.0))
    assert said(lambda: again.load_checkpoint(path)) == [] and again.model.count == 7


def test_a_value_that_a_cell_has_set_during_the_run(tmp_path):
    "It is restored into an object that begins as then."
    learn = make(tmp_path)
    learn.step(3)
    callback_of(learn).every = 7
    learn.beta = 0.25
    learn.step(2)
    path = learn.save_checkpoint()
    learn.free()
    new = make(tmp_path)
    assert said(lambda: new.load_checkpoint(path)) == [] and callback_of(new).every == 7 and new.beta == 0.25


def test_a_value_that_is_set_before_the_first_step(tmp_path):
    "It is what the run begins with, also after a verb that has prepared the run."
    learn = make(tmp_path)
    learn.snapshot("a")
    learn.beta = 0.75
    learn.step(5)
    path = learn.save_checkpoint()
    learn.free()
    new = make(tmp_path)
    new.snapshot("a")
    new.beta = 0.8
    new.load_checkpoint(path)
    assert new.beta == 0.8 and new.calls == 5


def test_an_attribute_that_was_removed_or_added(tmp_path):
    path = begin(tmp_path)
    learn = make(tmp_path)
    del callback_of(learn).factor
    callback_of(learn).patience = 3
    learn.load_checkpoint(path)
    assert not hasattr(callback_of(learn), "factor") and callback_of(learn).patience == 3


def test_the_same_object_in_a_new_learner(tmp_path):
    "Edited in a cell after the first learner: its constant counts, and its counter goes back without a message."
    callback = Factor()
    first = make(tmp_path, callback=callback)
    first.step(5)
    path = first.save_checkpoint()
    first.step(2)
    first.free()
    callback.every = 9
    learn = make(tmp_path, callback=callback)
    message, = said(lambda: learn.load_checkpoint(path))
    assert callback.every == 9 and callback.wait == 5 and "Factor.every (9 here, 2 there)" in message and "wait" not in message


def test_the_same_learner_goes_back_with_all_attributes(tmp_path):
    learn = make(tmp_path)
    learn.step(5)
    path = learn.save_checkpoint()
    learn.step(2)
    callback_of(learn).every = 9
    assert said(lambda: learn.load_checkpoint(path)) == [] and callback_of(learn).every == 2 and callback_of(learn).wait == 5


def test_a_callback_that_was_replaced_during_the_run(tmp_path):
    "A cell that defines it again: its constants count when the run goes back, and after a resume."
    learn = make(tmp_path)
    learn.step(3)
    learn.snapshot("three")
    learn.remove_callback(Factor)
    learn.add_callback(Factor(5))
    learn.step(2)
    path = learn.save_checkpoint()
    new = make(tmp_path, callback=Factor(5))
    assert said(lambda: new.load_checkpoint(path)) == [] and callback_of(new).wait == 2
    new.free()
    other = make(tmp_path, callback=Factor(6))
    other.load_checkpoint(path)
    assert callback_of(other).every == 6 and callback_of(other).wait == 2
    other.free()
    said(lambda: learn.restore("three"))
    assert callback_of(learn).every == 5 and callback_of(learn).wait == 3


def test_a_branch_takes_all_attributes_over():
    "With the values with which the run began: they are in its checkpoints."
    torch.manual_seed(0)
    learn = Learner(Net(), train_dataset=Rows(), callbacks=[Factor()], per_device_train_batch_size=2, max_steps=12, use_cpu=True,
                    disable_tqdm=True, report_to="none")
    learn.step(3)
    callback_of(learn).every = 7
    other = []
    assert said(lambda: other.append(learn.branch())) == [] and vars(callback_of(other[0]))["every"] == 7
    saved = [o.snapshot().values["user"]["holders"]["Factor"]["first"] for o in (learn, *other)]
    assert saved[0] == saved[1] and saved[0]["every"] == "2" and saved[0]["wait"] == "0"


PROGRAM = """
import json, sys
sys.path.insert(0, {here!r})
from test_edited_attributes import *
learn = make(sys.argv[1], Net(float(sys.argv[2])), callback=Factor(int(sys.argv[2])), beta=float(sys.argv[2]))
learn.train(resume_from_checkpoint=sys.argv[3] if len(sys.argv) > 3 else None) if len(sys.argv) > 3 else learn.step(5)
if len(sys.argv) == 3: learn.save_checkpoint()
print("found|" + json.dumps(state(learn)))
"""


def test_in_another_process(tmp_path):
    paths = os.pathsep.join([str(Path(trainer_nb.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    def run(*given):
        done = subprocess.run([sys.executable, "-c", PROGRAM.format(here=str(Path(__file__).parent)), str(tmp_path), *given], capture_output=True,
                              text=True, timeout=100, env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("found|")).removeprefix("found|")), done.stderr
    run("1")
    found, err = run("3", str(tmp_path / "checkpoint-5"))
    assert found["callback"][0] == 3 and found["callback"][3] == 12 and found["model"][0] == 3.0 and found["learner"] == [3.0, 12]
    assert "Factor.every (3 here, 1 there)" in err

"Attributes that a cell assigns between two verbs are in the journal, and a replay of rewind begins behind them; what the run changes is not."
import collections
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from trainer_nb import Learner, TrainerCallback

pytestmark = pytest.mark.usefixtures("one_thread")


def data(n=64):
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(0))
    return [(a, (a[0] > a[1]).long()) for a in x]


class Scaled(nn.Module):
    "A network whose forward pass reads attributes of several kinds."
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))
        self.scale, self.share, self.factors, self.options = 1.0, np.float32(1), [1.0, 1.0], {"by": 1.0}
        self.counts, self.lists = collections.Counter(by=1), collections.defaultdict(list, by=[1.0])
        self.shift = torch.zeros(2)
        self.register_buffer("temperature", torch.ones(1))
        self.register_buffer("passing", torch.ones(1), persistent=False)
    def forward(self, x):
        factor = self.scale * float(self.share) * self.factors[0] * self.options["by"] * self.temperature * self.passing
        factor = factor * self.counts["by"] * self.lists["by"][0]
        return self.inner(x) * factor + self.shift


class Loss:
    alpha = 1.0
    def __init__(self): self.parts = [1.0]
    def __call__(self, logits, labels): return self.alpha * self.parts[0] * nn.functional.cross_entropy(logits, labels)


class Halves(TrainerCallback):
    "Multiply the gradients by an attribute."
    factor = 1.0
    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        for p in model.parameters(): p.grad *= self.factor


class Hears(Halves):
    heard = 0
    def on_evaluate(self, *args, **kwargs): self.heard += 1


def learner(folder=None, callback=Halves, **given):
    return Learner(train_dataset=data(), eval_dataset=data(16), callbacks=[callback()], **dict(
        model=Scaled(), loss_func=Loss(), output_dir=str(folder) if folder else None, use_cpu=True, disable_tqdm=True, optim="sgd",
        per_device_train_batch_size=8, max_steps=8, learning_rate=0.05, max_grad_norm=0, rewind_every=100, report_to="none",
        save_strategy="no") | given)


def weights(learn): return b"".join(t.detach().numpy().tobytes() for t in learn.model.state_dict().values())


def by_hand(learn): return [e["data"]["changed"] for e in learn.history.events if e["kind"] == "by hand"]


def halving(learn): return next(c for c in learn.callback_handler.callbacks if isinstance(c, Halves))


ASSIGNED = {
    "model.inner.3.p": lambda learn: setattr(learn.model.inner[3], "p", 0.6),
    "model.scale": lambda learn: setattr(learn.model, "scale", 2.0),
    "model.share": lambda learn: setattr(learn.model, "share", np.float32(2)),
    "model.factors": lambda learn: learn.model.factors.__setitem__(0, 2.0),
    "model.options": lambda learn: learn.model.options.update(by=2.0),
    "model.counts": lambda learn: learn.model.counts.update(by=1),
    "model.lists": lambda learn: learn.model.lists["by"].__setitem__(0, 2.0),
    "model.shift": lambda learn: learn.model.shift.add_(torch.tensor([0.5, 0.0])),
    "model.temperature": lambda learn: learn.model.temperature.mul_(2),
    "model.passing": lambda learn: setattr(learn.model, "passing", torch.full((1,), 2.0)),
    "loss_func.alpha": lambda learn: setattr(learn.loss_func, "alpha", 0.5),
    "Halves.factor": lambda learn: setattr(halving(learn), "factor", 0.5),
    "hooks of model.inner.2": lambda learn: learn.model.inner[2].register_forward_hook(lambda module, x, y: y * 2),
    "hooks of model": lambda learn: learn.model.register_forward_pre_hook(lambda module, x: (x[0] + 1,)),
    "hooks of parameters": lambda learn: next(learn.model.parameters()).register_hook(lambda gradient: gradient * 2),
    "forward of model.inner.2": lambda learn: setattr(learn.model.inner[2], "forward", torch.tanh),
}
BETWEEN = {"nothing": lambda learn, folder: None, "evaluate": lambda learn, folder: learn.evaluate(), "predict": lambda learn, folder: learn.predict(data(16)),
           "predict_one": lambda learn, folder: learn.predict_one(data(1)[0]), "save": lambda learn, folder: learn.save_checkpoint(folder / "here"),
           "snapshot": lambda learn, folder: learn.snapshot()}


@pytest.mark.parametrize("name", ASSIGNED)
@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("first", ["the verb", "the assignment"])
def test_a_replay_begins_behind_an_assignment(between, name, first, tmp_path):
    learn = learner(tmp_path)
    learn.step(2)
    if first == "the verb": BETWEEN[between](learn, tmp_path)
    ASSIGNED[name](learn)
    if first != "the verb": BETWEEN[between](learn, tmp_path)
    learn.step(4)
    assert by_hand(learn) == [[name]]
    before, losses = weights(learn), [r.loss for r in learn.history.current][-2:]
    report = learn.rewind(2)
    learn.step(2)
    assert weights(learn) == before and [r.loss for r in learn.history.current][-2:] == losses and report.different == []


@pytest.mark.parametrize("name", [name for name in ASSIGNED if " of " in name])
@pytest.mark.parametrize("back", ["rewind", "restore", "reset"])
def test_verbs_that_go_back_name_code_that_stays(back, name):
    learn = learner(rewind_every=1)
    learn.step(2)
    learn.snapshot("a")
    ASSIGNED[name](learn)
    with pytest.warns(UserWarning, match=name): learn.rewind(1) if back == "rewind" else learn.restore("a") if back == "restore" else learn.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.step(), learn.rewind(1)


@pytest.mark.parametrize("first", ["evaluate", "assign"])
def test_a_callback_that_hears_the_evaluation(first):
    learn = learner(callback=Hears)
    learn.step(2)
    if first == "evaluate": learn.evaluate()
    halving(learn).factor = 0.5
    if first == "assign": learn.evaluate()
    learn.step(4)
    assert by_hand(learn) == [["Hears.factor"]]


class Counts(nn.Module):
    "A module that counts its forward passes, and keeps a tensor and a buffer: nobody assigns these by hand."
    def __init__(self):
        super().__init__()
        self.inner, self.head, self.seen, self.share, self.last = Scaled(), nn.Linear(2, 2), 0, float("nan"), None
        self.register_buffer("count", torch.zeros(()))
    def forward(self, x):
        self.seen += 1
        self.count += 1
        y = self.head(self.inner(x))
        self.last = y.detach()
        return y


class CountingLoss:
    calls = 0
    def __call__(self, logits, labels):
        self.calls += 1
        return nn.functional.cross_entropy(logits, labels)


class Listens(TrainerCallback):
    heard = 0
    def on_evaluate(self, *args, **kwargs): self.heard += 1
    def on_save(self, *args, **kwargs): self.heard += 1
    def on_step_end(self, *args, **kwargs): self.heard += 1


def test_what_the_run_counts_is_no_assignment(tmp_path):
    learn = learner(tmp_path, Listens, model=Counts(), loss_func=CountingLoss(), max_steps=30)
    acts = [learn.evaluate, learn.step, lambda: learn.predict(data(8)), lambda: learn.set(lr=0.01), learn.snapshot, learn.step,
            learn.inspect, lambda: learn.save_checkpoint(tmp_path / "a"), learn.evaluate, lambda: learn.set(lr=0.02), learn.snapshot,
            learn.step, lambda: learn.lr_find(num_steps=10), learn.step, lambda: learn.rewind(1), learn.step, learn.summary,
            lambda: learn.freeze("inner"), learn.step, learn.evaluate, lambda: learn.predict_one(data(1)[0]), learn.top_losses, learn.step,
            lambda: learn.restore("before"), learn.step, lambda: learn.log({"a": 1.0}), learn.step, lambda: next(learn.steps()), learn.step]
    learn.snapshot("before")
    for act in acts: act()
    assert by_hand(learn) == []


def test_functions_between_two_verbs_are_recorded_once():
    learn = learner()
    learn.step(2)
    learn.run_on_all(ASSIGNED["model.scale"])
    learn.run_on_all(ASSIGNED["Halves.factor"])
    learn.step(2)
    assert [sorted(names) for names in by_hand(learn)] == [["Halves.factor", "model.scale"]]


def test_the_update_of_the_last_step_is_compared():
    "The loss of a step does not show what its update did; the learning rate and the norm of the gradients do."
    learn = learner(lr_scheduler_type="constant_with_warmup")
    learn.step(2)
    learn.lr_scheduler.base_lrs[0] = 0.01
    learn.step(4)
    with pytest.warns(UserWarning, match="learning rate of step 4 is not what it was"): report = learn.rewind(2)
    assert report.different == [4] and "the learning rate of step 4 was not the same" in repr(report)

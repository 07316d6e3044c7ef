"""Losses that are not finite, or jump: what is reported, what follows, and that a replay and a resume end in the same bytes."""
import math
from contextlib import nullcontext, suppress

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb.core.callbacks import TrainerCallback
from trainer_nb.core.errors import InvalidOperation
from trainer_nb.diagnostics.guard import check_processes, not_finite
from trainer_nb.engine.prepare import ReplicasDiffer
from trainer_nb.engine.snapshot import differences
from trainer_nb.learner import Learner

X = torch.randn(320, 8, generator=torch.Generator().manual_seed(0))
MORE = torch.randn(1920, 8, generator=torch.Generator().manual_seed(1))
Y = (X.sum(1) > 0).long()
BAD = 137
STAY = {"use_cpu": True, "disable_tqdm": True, "per_device_train_batch_size": 16, "learning_rate": 0.01, "num_train_epochs": 4, "seed": 3}
pytestmark = pytest.mark.filterwarnings("ignore:.*learn.diagnose", "ignore:.*not finite")


def data(value=math.nan, x=X, at=BAD):
    y = (x.sum(1) > 0).long()
    return TensorDataset(x.index_fill(0, torch.tensor(at), value), torch.where(torch.arange(len(x)) == at, 0, y))

# one sample of the wrong class, far from all others, is in the batch of a late step
FAR = {"given": data(3000.0, MORE, 1000), "num_train_epochs": 2, "max_grad_norm": 0.0, "optim": "sgd"}


def learner(given=None, **settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU() if "on_spike" in settings else nn.BatchNorm1d(32), nn.Dropout(0.1), nn.Linear(32, 2))
    return Learner(model, train_dataset=data() if given is None else given, **{"loss_func": F.cross_entropy} | STAY | settings)


class Told(TrainerCallback):
    not_state = ("heard",)
    def __init__(self): self.heard = []
    def on_finding(self, args, state, control, finding, did, **kwargs): self.heard.append((state.global_step, finding.severity, did))


class Fails(TrainerCallback):
    def on_finding(self, args, state, control, finding, did, **kwargs): raise KeyError(did)


def corrections(learn): return [e for e in learn.history.events if e["kind"] == "correction" and not e["abandoned"]]
def losses(learn): return np.array([row.loss for row in learn.history.current])


# what the run is given
WAYS = {
    "skip": {"on_nan": "skip"},
    "rewind and skip": {"on_nan": "rewind and skip"},
    "accumulation": {"on_nan": "skip", "gradient_accumulation_steps": 3},
    "momentum and a schedule": {"on_nan": "rewind and skip", "optim": "sgd", "optim_args": "momentum=0.9", "lr_scheduler_type": "cosine", "warmup_steps": 5},
    "the last batch of an epoch": {"on_nan": "skip", "given": data(at=310), "train_sampling_strategy": "sequential", "eval_strategy": "epoch", "eval_dataset": TensorDataset(X, Y)},
    "workers": {"on_nan": "skip", "dataloader_num_workers": 2},
    "a spike": {"on_spike": "skip"} | FAR,
    "half the rate": {"on_nan": "rewind with half the rate", "on_spike": "report", "given": TensorDataset(X, X[:, :2]), "loss_func": F.mse_loss, "learning_rate": 4.0, "optim": "sgd", "max_grad_norm": 0.0},
}


@pytest.mark.parametrize("way", WAYS)
def test_the_run_ends_in_the_same_bytes_after_a_rewind_and_a_resume(way, tmp_path):
    given = WAYS[way]
    one, other = learner(**given), learner(**given)
    one.run()
    assert corrections(one) and np.isfinite(losses(one)).all(), losses(one)
    assert all(math.isfinite(e["data"]["eval_loss"]) for e in one.history.events if e["kind"] == "evaluate")
    steps = one.state.global_step
    at = next(e["data"] for e in one.history.events if e["kind"] == "finding")["seen"].split()
    first = int(at[at.index("step") + 1])
    # verbs that stop anywhere, and go back beyond corrections
    other.step(first + 5)
    other.rewind(to=first - 2)
    other.step(7)
    other.rewind(to=max(first - 12, 1))
    other.save_checkpoint(tmp_path/"here")
    again = learner(**given)
    again.load_checkpoint(tmp_path/"here")
    for learn in other.branch(), other, again:
        learn.run()
        assert learn.state.global_step == steps and differences(one.snapshot(), learn.snapshot()) == []
        assert losses(one).tobytes() == losses(learn).tobytes()
        assert [(e["step"], e["data"]) for e in corrections(learn)] == [(e["step"], e["data"]) for e in corrections(one)]


@pytest.mark.parametrize("way", ["skip", "rewind and skip", "a spike"])
def test_losses_that_are_read_late_change_nothing(way, monkeypatch):
    "As on a GPU, where they are read with a log, or at the end."
    one = learner(**WAYS[way])
    one.run()
    monkeypatch.setattr("trainer_nb.core.columns.is_on_host", lambda value: False)
    late = learner(**WAYS[way], logging_steps=27)
    late.run()
    assert [e["data"] for e in corrections(late)] == [e["data"] for e in corrections(one)]
    assert all(torch.equal(a, b) for a, b in zip(one.model.state_dict().values(), late.model.state_dict().values()))
    assert losses(one).tobytes() == losses(late).tobytes()


def test_a_report_and_a_stop():
    told = Told()
    learn = learner(callbacks=[told])
    with pytest.warns(UserWarning, match=r"The loss of step \d+ is nan. learn.diagnose\(\) looks for the cause"): learn.run()
    event, = [e for e in learn.history.events if e["kind"] == "finding"]
    at = int(np.isnan(losses(learn)).argmax()) + 1
    # one finding for all steps that follow
    assert told.heard == [(at, "error", "report")] and event["step"] == at and event["data"]["did"] == "report"
    assert "finding" in str(learn.journal) and learn.state.global_step == 80
    learn = learner(on_nan="stop", callbacks=[told])
    with pytest.warns(UserWarning, match="the run ends here"): learn.run()
    assert learn.state.global_step == at and learn.run_state.finished and told.heard[1:] == [(at, "error", "stop")]
    # of what no setting names, too
    learner(**FAR, on_nan="stop", on_spike=None, callbacks=[far := Told()]).run()
    assert {h[1:] for h in far.heard} == {("warning", "report")}
    # as far as the setting says, a run is as it was
    plain = learner()
    plain.run()
    assert not [e for e in plain.history.events if e["kind"] in ("finding", "correction")]


def test_a_setting_may_come_later_and_changes_stay():
    learn = learner()
    learn.step(12)
    learn.set(lr=0.02, on_nan="rewind and skip")
    learn.run(steps=15)
    event = corrections(learn)[0]
    assert event["step"] == 12 and np.isfinite(losses(learn)).all() and learn.args.on_nan == "rewind and skip"
    assert learn.history.current[-1].learning_rate > 0.012


def test_a_setting_counts_from_its_step_on():
    one, again = learner(**FAR, train_sampling_strategy="sequential", on_nan="report", on_spike=None), learner(on_nan="skip")
    one.step(61)
    one.set(on_spike="skip")
    one.step(5)
    assert [e["step"] for e in corrections(one)] == [62]
    # what went wrong meanwhile is not looked at
    again.step(1)
    again.set(on_nan=None)
    again.run(until=lambda record: math.isnan(record.loss))
    again.set(on_nan="skip")
    again.step(3)
    assert not corrections(again)


@pytest.mark.parametrize("did", ["skip", "rewind and skip"])
def test_a_verb_ends_with_the_epoch_whose_last_batch_is_left_out(did):
    learn = learner(data(at=310), on_nan=did, train_sampling_strategy="sequential")
    learn.run(epochs=1)
    assert corrections(learn) and learn.state.epoch <= 1 and learn.run_state.cursor[:2] == (1, 0), learn.run_state.cursor


def test_batches_that_are_left_out_close_to_each_other():
    learn = learner(TensorDataset(X.index_fill(0, torch.tensor([112, 160]), math.nan), Y), on_nan="rewind and skip", train_sampling_strategy="sequential")
    learn.run()
    assert len(corrections(learn)) == 8 and np.isfinite(losses(learn)).all() and learn.run_state.cursor.epoch == 4


@pytest.mark.parametrize("did", ["skip", "stop"])
def test_what_follows_does_not_depend_on_a_callback_that_raises(did):
    plain, *others = (learner(on_nan=did, callbacks=given) for given in ([], [Fails()], [Fails()]))
    plain.run()
    for i, learn in enumerate(others):
        with pytest.raises(KeyError): learn.run()
        # the user leaves the past in which that was decided
        if i: learn.rewind(5)
        while not learn.run_state.finished:
            with suppress(KeyError): learn.run()
        assert losses(learn).tobytes() == losses(plain).tobytes()


def test_a_loss_scaler_skips_steps_itself(monkeypatch):
    learn = learner(TensorDataset(X, Y))
    learn.step(1)
    learn.history.rows.grad_norm[0] = math.nan
    assert not_finite(learn.run_state, 0)[0] == "gradient norm"
    monkeypatch.setattr(type(learn.run_state.device), "scaler", "of float16")
    assert not_finite(learn.run_state, 0) is None


# what the run is given, and words of the sentence
ENDS = {
    "no snapshots": ({"on_nan": "skip", "rewind_every": 0, "rewind_memory": 0.0}, "the run ends here, since"),
    "each batch": ({"on_nan": "skip", "given": TensorDataset(X.index_fill(0, torch.arange(100, 320), math.nan), Y)}, "5 corrections did not prevent it"),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_run_ends_where_it_cannot_go_on(name):
    given, words = ENDS[name]
    learn = learner(**given)
    if name == "no snapshots":
        learn.step(1)
        learn.train_dataset = data()
    with pytest.warns(UserWarning, match=words): learn.run()
    assert learn.run_state.finished and learn.state.global_step < 80


class Leaves(torch.optim.SGD):
    "An optimizer that leaves its first weight as it is."
    def step(self, closure=None):
        first = self.param_groups[0]["params"][0]
        kept = first.detach().clone()
        super().step(closure)
        first.data.copy_(kept)


class PutsBack(TrainerCallback):
    def on_step_begin(self, args, state, control, model, **kwargs): self.kept = model[3].weight.detach().clone()
    def on_step_end(self, args, state, control, model, **kwargs): model[3].weight.data.copy_(self.kept)


class Drifts(TrainerCallback):
    def on_step_end(self, args, state, control, model, **kwargs):
        if args.process_index and state.global_step == 3: model[3].weight.data.add_(1)


class Twice(torch.utils.data.Sampler):
    def __init__(self, times): self.times = times
    def __iter__(self): return iter([i // self.times for i in range(320)])
    def __len__(self): return 320


CLEAN = TensorDataset(X, Y)
# a sentence, what the run is given, and what its twin is given
BROKEN = {
    "losses of the 100 steps up to 100 are all": ({"given": TensorDataset(torch.ones(320, 8), torch.zeros(320).long()), "learning_rate": 0.0}, {}),
    "does not change weights that have a gradient: 0.weight": ({"optimizer_cls_and_kwargs": (Leaves, {"lr": 0.01})}, {"optimizer_cls_and_kwargs": (torch.optim.SGD, {"lr": 0.01})}),
    "does not change weights that have a gradient: 3.weight": ({"callbacks": [PutsBack()]}, {"callbacks": [TrainerCallback()]}),
    "times its size": ({"optim": "sgd", "learning_rate": 10.0}, {"optim": "sgd", "learning_rate": 0.1}),
    "160 of 320 samples are drawn again": ({"given": DataLoader(CLEAN, 16, sampler=Twice(2))}, {"given": DataLoader(CLEAN, 16, sampler=Twice(1))}),
}


@pytest.mark.parametrize("words", BROKEN)
def test_an_invariant_that_does_not_hold_is_reported_once(words):
    for given, is_told in zip(BROKEN[words], (True, False)):
        given = {"given": CLEAN, "on_spike": "report", "num_train_epochs": 10} | given
        given["callbacks"] = [*given.get("callbacks", []), Told()]
        learn, plain = learner(**given), learner(**given | {"on_spike": None, "callbacks": given["callbacks"][:-1]})
        if "are all" in words and is_told: learn.model[2] = learn.model[3] = plain.model[2] = plain.model[3] = nn.Identity()
        learn.run()
        plain.run()
        found = [e["data"]["seen"] for e in learn.history.events if e["kind"] == "finding"]
        assert sum(words in each for each in found) == is_told and len(given["callbacks"][-1].heard) == len(found), found
        assert is_told or not found
        assert losses(learn).tobytes() == losses(plain).tobytes()


def test_healthy_runs_have_no_finding():
    "Noisy, steep, falling to zero, negative, with outliers of the data: many seeds and rates."
    for seed, rate in [(s, r) for s in range(3) for r in (1e-4, 1e-3, 1e-2)]:
        told = Told()
        learn = learner(CLEAN, callbacks=[told], on_spike="report", learning_rate=rate, num_train_epochs=15, seed=seed, per_device_train_batch_size=4)
        while learn.step(1) and learn.run_state.parts.guard.update is None: pass
        learn.model[0] = nn.Sequential(learn.model[0])   # the weight that was measured has another name
        learn.run()
        assert told.heard == [], (seed, rate, told.heard)


@pytest.mark.xdist_group("launch")
def test_several_processes_report_or_stop():
    learn = learner(on_nan="stop", logging_steps=5)
    with learn.launch(2):
        learn.run()
        event, = [e for e in learn.history.events if e["kind"] == "finding"]
        assert learn.run_state.finished and learn.state.global_step == event["step"] == 10 and event["data"]["did"] == "stop"
    for given, found in ([Drifts()], ["the processes have different weights"]), ([], []):
        learn = learner(CLEAN, on_nan="report", logging_steps=5, callbacks=given)
        learn.launch(2)
        learn.step(16)
        assert [e["data"]["seen"] for e in learn.history.events if e["kind"] == "finding"] == found
        with pytest.raises(ReplicasDiffer) if found else nullcontext(): learn.close()
    check_processes("stop", "report")
    with pytest.raises(InvalidOperation, match="on_spike='stop' ends it there"): check_processes(None, "skip")


def test_a_check_before_the_first_step():
    told, given = Told(), STAY | {"train_dataset": TensorDataset(X, Y), "loss_func": F.cross_entropy}
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.used, self.unused = nn.Linear(8, 2), nn.Linear(3, 3)
        def forward(self, x): return self.used(x)
    one, other = Learner(Net(), **given), Learner(Net(), **given, check_on_start=True, callbacks=[told])
    one.step(3)
    with pytest.warns(UserWarning, match="get no gradient: unused.weight"): next(other.steps())
    other.step(2)
    assert told.heard == [(0, "warning", "report")] and [e["step"] for e in other.history.events if e["kind"] == "finding"] == [0]
    assert differences(one.snapshot(), other.snapshot()) in ([], ["args"])

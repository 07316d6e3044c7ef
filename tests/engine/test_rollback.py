"What a forward pass changes is found, wherever in a tensor it changes and whenever the tensor came."

import pytest
import torch
from torch import nn

from trainer_nb import Learner, differences
from trainer_nb.engine import rollback
from trainer_nb.engine.rollback import AdaptiveBackup
from toys import Boom


def swapped(t, i=3, j=-2):
    t = t.clone()
    t[i], t[j] = t[j].clone(), t[i].clone()
    return t


CHANGES = {"rolled": lambda t: t.roll(1), "flipped": lambda t: t.flip(0), "swapped": swapped}


class Net(nn.Module):
    "Does something in each forward pass, and fails when it is told to."
    not_state = ("fails",)
    def __init__(self, act):
        super().__init__()
        self.layer, self.act, self.calls, self.fails = nn.Linear(4, 3), act, 0, False
        self.register_buffer("big", torch.arange(300_000.0))
    def forward(self, x, labels):
        self.calls += 1
        self.act(self)
        if self.fails: raise Boom
        return {"loss": nn.functional.cross_entropy(self.layer(x), labels)}


def learner(act, **given):
    data = [{"x": torch.ones(4), "labels": 0}] * 100
    return Learner(Net(act), train_dataset=data, max_steps=9, logging_steps=2, use_cpu=True, disable_tqdm=True, **given)


def failed_step_leaves_no_trace(learn):
    before, learn.model.fails = learn.snapshot(), True
    with pytest.raises(Boom): learn.step()
    learn.model.fails = False
    return differences(before, learn.snapshot()) == []


@pytest.mark.parametrize("change", ["rolled", "flipped", "swapped"])
def test_a_large_buffer_whose_values_only_move(change):
    def act(net):
        if net.calls == 3 or net.fails: net.big.copy_(CHANGES[change](net.big))
    learn = learner(act)
    learn.step(2)
    learn.step(2)
    assert failed_step_leaves_no_trace(learn)


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_buffer_that_is_registered_later(by_hand):
    def act(net):
        if net.calls == 3 and not by_hand: net.register_buffer("late", torch.zeros(3))
        if "late" in net._buffers: net.late += 1
    learn = learner(act)
    learn.step(2)
    if by_hand: learn.model.register_buffer("late", torch.zeros(3))
    learn.step(2)
    assert learn.model.late.tolist() == [2] * 3
    assert failed_step_leaves_no_trace(learn)
    learn.train()


def test_a_large_one_that_is_registered_later_is_watched():
    "It is copied from when it changes on, and not at every step before."
    def act(net):
        if net.calls > 4: net.late[0] += 1
    learn = learner(act)
    learn.step(2)
    learn.model.register_buffer("late", torch.zeros(300_000))
    learn.step(4)
    assert failed_step_leaves_no_trace(learn)


def test_a_weight_that_is_frozen_again_by_hand():
    "What it learnt in between is no change of the forward pass."
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    backup = AdaptiveBackup(model)
    def step(adds):
        backup.keep()
        with torch.no_grad(): model[0].weight += adds
        backup.compare()
    backup.keep(); backup.compare()
    model[0].requires_grad_(True)
    step(1)
    model[0].requires_grad_(False)
    backup.keep(); backup.compare()
    assert not backup.slots
    step(1)
    assert [name for _, name in backup.slots.values()] == ["weight"]


def test_a_step_costs_no_look(monkeypatch):
    "What is new is looked for when the run logs, not in between."
    learn = learner(lambda net: None)
    learn.step(2)
    monkeypatch.setattr(rollback, "_buffer_slots", lambda model: pytest.fail("the buffers were listed"))
    learn.step()

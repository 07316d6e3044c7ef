"What a forward pass changes is found, wherever in a tensor it changes and whenever the tensor came."
import warnings

import pytest
import torch
from torch import nn

from trainer_nb import Learner, differences
from trainer_nb.engine import rollback
from trainer_nb.engine.rollback import AdaptiveBackup, _fingerprint, _differs
from toys import Boom

KINDS = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int8, torch.uint8, torch.complex64]


def swapped(t, i=3, j=-2):
    t = t.clone()
    t[i], t[j] = t[j].clone(), t[i].clone()
    return t


CHANGES = {"rolled": lambda t: t.roll(1), "rolled far": lambda t: t.roll(1000), "flipped": lambda t: t.flip(0), "swapped": swapped,
           "swapped far": lambda t: swapped(t, 1, 2500), "balanced": lambda t: torch.cat([t[:4].flip(0), t[4:]]),
           "one more": lambda t: torch.cat([t[:7], t[7:8] + 1, t[8:]]), "negated": lambda t: -t}


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("change", list(CHANGES))
def test_a_fingerprint_is_of_values_and_their_places(monkeypatch, kind, change):
    "In one part and in several; the same values give the same one."
    t = (torch.arange(3000) * 37 % 101 + 1).to(kind)
    for part in (1 << 20, 1024, 1000):
        monkeypatch.setattr(rollback, "FINGERPRINT_CHUNK", part)
        assert not _differs(_fingerprint(t), _fingerprint(t.clone()))
        assert _differs(_fingerprint(t), _fingerprint(CHANGES[change](t)))


@pytest.mark.parametrize("change", ["rolled", "flipped"])
def test_few_values_in_regular_patterns(change):
    "Masks of zeros and ones; every other one, a few at one end, a triangle, every third."
    for mask in (torch.arange(4096) % 2, torch.arange(4096) < 100, torch.ones(64, 64).triu(1).reshape(-1), torch.arange(3 << 11) % 3):
        for kind in (torch.bool, torch.float32): assert _differs(_fingerprint(mask.to(kind)), _fingerprint(CHANGES[change](mask).to(kind)))


def test_odd_shapes():
    for t in (torch.zeros(()), torch.zeros(0), torch.zeros(0, 3), torch.arange(6.0).view(2, 3).t(), torch.arange(9, dtype=torch.int16)[1:]):
        assert not _differs(_fingerprint(t), _fingerprint(t.clone()))
    assert _differs(_fingerprint(torch.zeros(3)), _fingerprint(torch.zeros(2, device="meta")))   # elsewhere now


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
    with pytest.warns(UserWarning, match="'big' has begun to change"): learn.step(2)
    assert failed_step_leaves_no_trace(learn)


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_buffer_that_is_registered_later(by_hand):
    def act(net):
        if net.calls == 3 and not by_hand: net.register_buffer("late", torch.zeros(3))
        if "late" in net._buffers: net.late += 1
    learn = learner(act)
    learn.step(2)
    if by_hand: learn.model.register_buffer("late", torch.zeros(3))
    with pytest.warns(UserWarning, match="'late' was registered after the first step; from now on"): learn.step(2)
    assert learn.model.late.tolist() == [2] * 3
    assert failed_step_leaves_no_trace(learn)
    with warnings.catch_warnings():
        warnings.simplefilter("error")   # it is said once
        learn.train()


def test_a_large_one_that_is_registered_later_is_watched():
    "It is copied from when it changes on, and not at every step before."
    def act(net):
        if net.calls > 4: net.late[0] += 1
    learn = learner(act)
    learn.step(2)
    learn.model.register_buffer("late", torch.zeros(300_000))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.step(2)
    with pytest.warns(UserWarning, match="'late' has begun to change"): learn.step(2)
    assert failed_step_leaves_no_trace(learn)


def test_a_weight_that_is_frozen_again_by_hand():
    "What it learnt in between is no change of the forward pass."
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    backup = AdaptiveBackup(model)
    backup.keep(); backup.drop_unchanged()
    model[0].requires_grad_(True)
    with torch.no_grad(): model[0].weight += 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backup.detect_changes()
        model[0].requires_grad_(False)
        backup.detect_changes()
    with torch.no_grad(): model[0].weight += 1
    with pytest.warns(UserWarning, match="'weight' has begun to change"): backup.detect_changes()


def test_a_step_costs_no_look(monkeypatch):
    "What is new is looked for when the run logs, not in between."
    learn = learner(lambda net: None)
    learn.step(2)
    monkeypatch.setattr(rollback, "_buffer_slots", lambda model: pytest.fail("the buffers were listed"))
    learn.step()


def test_checks_of_frozen_weights_take_a_small_share_of_a_run_that_logs_each_step(monkeypatch):
    "The first logs check them; then a check waits until those before it are a hundredth of the training time."
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    learn = Learner(model, train_dataset=[(torch.randn(4), 1)] * 64, loss_func=nn.functional.cross_entropy, use_cpu=True, disable_tqdm=False, logging_steps=1, max_steps=60)
    learn.step(rollback.ALWAYS_OBSERVED_LOGS + 1)
    learn.run_state.backups.adaptive.spent = 0.0
    clock = [0.0]
    checks = []
    def slow(t):
        checks.append(learn.state.global_step)
        clock[0] += 1000.0
        return _fingerprint(t)
    monkeypatch.setattr(rollback, "_fingerprint", slow)
    monkeypatch.setattr(rollback, "time", type("Clock", (), {"perf_counter": staticmethod(lambda: clock[0])}))
    learn.step(20)
    assert len(checks) == 2   # one check, of a weight and a bias, has used up the time
    monkeypatch.setattr(rollback, "CHECK_SHARE", 1e9)
    learn.step(3)
    assert len(checks) > 2

"Copies that a GPU makes beside its work, with a stand-in that copies as late as it may: when the update comes, or when somebody reads."
import threading

import pytest, torch

from toys import finish, hard_learner, unequal
from trainer_nb import differences
from trainer_nb.engine.snapshot_tensors import HostCopies

LONG = dict(num_train_epochs=4, logging_steps=4)


class Late:
    "Copies when it has to, and not before."
    made = 0
    def __init__(self, pairs): self.pairs, self.lock, Late.made = pairs, threading.Lock(), Late.made + 1
    @torch.no_grad()
    def wait_before_update(self):
        with self.lock:                              # a thread that writes a checkpoint may read now, too
            for copy, t in self.pairs: copy.copy_(t)
            self.pairs = []
    wait = wait_before_update

    took = 0.0
    def seconds(self): self.wait(); return self.took


@pytest.fixture
def late(monkeypatch):
    @torch.no_grad()
    def fill(self):
        for copy, t, changes in self.later:
            if changes: copy.copy_(t)
            else: copy.fill_(-1)
        pairs, self.later = [(copy, t) for copy, t, changes in self.later if not changes], []
        return Late(pairs)
    monkeypatch.setattr(HostCopies, "fill", fill)
    Late.made = 0


def test_rewinds_and_checkpoints_hold_what_was_there(tmp_path, late):
    want = finish(hard_learner(**LONG))
    learn = hard_learner(rewind_every=1, output_dir=str(tmp_path), save_steps=3, **LONG)
    learn.step(5)
    was = learn.snapshot()
    learn.step(4)
    learn.rewind(4)
    assert differences(learn.snapshot(), was) == [] and unequal(finish(learn), want, ignore=("args", "state")) == []
    for step in (3, 6, 9):
        other = hard_learner(output_dir=str(tmp_path), save_steps=3, **LONG)
        other.load_checkpoint(tmp_path / f"checkpoint-{step}")
        assert unequal(finish(other), want, ignore=("args", "state")) == []
    assert Late.made > 20


def test_a_snapshot_is_the_users_own_at_once(late):
    "After a verb somebody may change weights by hand: nothing is copied any more then."
    learn = hard_learner(rewind_every=1, **LONG)
    learn.step(2)
    weight = learn.model.inner.weight.detach().clone()
    taken, ring = learn.snapshot(), learn.run_state.parts.rewind_buffer.kept[-1]
    before = ring.tensors["weights/inner.weight"].clone()
    with torch.no_grad(): learn.model.inner.weight.zero_()
    assert torch.equal(taken.tensors["weights/inner.weight"], weight) and torch.equal(ring.tensors["weights/inner.weight"], before)


def test_a_step_that_fails_and_a_restore(late):
    want = finish(hard_learner(**LONG))
    learn = hard_learner(rewind_every=1, **LONG)
    learn.step(3)
    was = learn.snapshot()
    learn.model.hook = lambda name: (_ for _ in ()).throw(ValueError("no")) if name == "backward" else None
    with pytest.raises(ValueError): learn.step(1)
    learn.model.hook = lambda name: None
    assert differences(learn.snapshot(), was) == ["epoch_open"]   # its event was told
    learn.step(2); learn.restore(was)
    assert unequal(finish(learn), want, ignore=("args",)) == []


@pytest.mark.parametrize("took", [0.0, 1e3])
def test_how_long_a_copy_took_counts_for_the_spacing_of_the_ring(late, monkeypatch, took):
    monkeypatch.setattr(Late, "took", took)
    learn = hard_learner(num_train_epochs=40)
    learn.step(3)
    for steps in (2, 1):
        with torch.no_grad(): next(learn.model.parameters()).mul_(0.5)   # a replay would leave it out: a snapshot follows
        learn.step(steps)
    ring = learn.run_state.parts.rewind_buffer
    assert [s.step for s in ring.kept] == [3, 5] and ring.kept[0].copy_seconds == took
    assert ring.every == 1000 and ring.account.spent > took if took else ring.account.spent < 1e3

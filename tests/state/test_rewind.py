"Back to any step, exactly: the ring of snapshots, what is replayed, and what stands in the way."
import os, re, subprocess, sys

import numpy as np
import pytest
import torch

from conftest import ROOT
from toys import Augmented, Bomb, Boom, accuracy, every_event, finish, hard_learner, unequal
from trainer_nb import Learner, TrainerCallback, differences
from trainer_nb.core.errors import InvalidOperation
from trainer_nb.state.rewind_buffer import Account, place_to_drop, snapshot_nbytes
from trainer_nb.engine.snapshot import capture_snapshot

LONG = dict(num_train_epochs=10, logging_steps=4)   # 30 steps


def stood_at(step, **given):
    "The snapshot of an undisturbed run at a step."
    learn = hard_learner(**LONG, **given)
    if step: learn.step(step)
    return learn.snapshot()


@pytest.mark.parametrize("every, last", [(1, 8), (4, 12), pytest.param(1, 12, marks=pytest.mark.slow), pytest.param(4, 30, marks=pytest.mark.slow), pytest.param(None, 30, marks=pytest.mark.slow)])
def test_from_every_step_to_every_earlier_one(every, last):
    "Byte for byte what it was there, whatever was rewound before; and the run ends as one that never went further."
    was = [stood_at(step) for step in range(last + 1)]
    learn = hard_learner(rewind_every=every, **LONG)
    for start in range(1, last + 1):
        learn.step(start - learn.state.global_step)
        for back in range(1, start + 1):
            out = learn.rewind(back)
            found = set(differences(was[start - back], learn.snapshot())) - {"args"}
            assert found <= ({"begun"} if start == back else set()), (start, back, found)
            assert out.step == start - back == learn.state.global_step and not out.different
            if every: assert out.replayed < every
            if back % 7 == 1: assert learn.history.column("step")[learn.history.column("abandoned") == 0].tolist() == [*range(1, start - back + 1)]
            learn.step(back)
    learn.rewind(1)
    assert unequal(finish(learn), finish(hard_learner(**LONG)), ignore=("args",)) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_again_and_again(workers):
    "Rewinds and steps in any order, with evaluations on the way; then to the end."
    settings = LONG | dict(dataloader_num_workers=workers, dataloader_persistent_workers=workers > 0, eval_dataset=Augmented(9), compute_metrics=accuracy,
                           eval_strategy="steps", eval_steps=5)
    want = finish(hard_learner(**settings))
    learn, rng = hard_learner(rewind_every=3, **settings), np.random.default_rng(workers)
    for _ in range(12):
        learn.step(int(rng.integers(1, 5)))
        if learn.state.global_step > 2: learn.rewind(int(rng.integers(1, min(learn.state.global_step, 9))))
    assert unequal(finish(learn), want, ignore=("args",)) == []
    assert "rewind" in {e["kind"] for e in learn.history.events}


def test_to_a_step_by_its_number():
    "The same as going back by that many steps; an impossible step raises an error that names the present one, and changes nothing."
    learn, other = hard_learner(rewind_every=5, **LONG), hard_learner(rewind_every=5, **LONG)
    for one in (learn, other): one.step(12)
    assert learn.rewind(to=7).step == other.rewind(5).step == 7 and learn.rewind(to=np.int64(3)).step == other.rewind(4).step == 3
    assert learn.rewind(to=0).step == other.rewind(3).step == 0 and learn.step(4) and other.step(4)
    # a cell that is run again
    learn.set(weight_decay=0.0), other.set(weight_decay=0.0)
    before = learn.snapshot()
    assert repr(learn.rewind(to=4)) == "Back at step 4: nothing had to be replayed. Changes made at this step stay: weight_decay=0.0; rewind(1) undoes them."
    assert differences(before, learn.snapshot()) == [] and len(learn.journal) == len(other.journal)
    for wrong, error, words in [(dict(to=9), ValueError, "to=9.*a step before the present one, 4"), (dict(n=0), ValueError, "from 1 on"),
                                (dict(to=-1), ValueError, "to=-1.*a step from 0 on"), (dict(to=2.0), TypeError, "to is the number of a step, not 2.0"),
                                (dict(to=True), TypeError, "the number of a step"), (dict(to="a"), TypeError, "'a'"),
                                (dict(n=2, to=1), TypeError, r"rewind\(n\) or rewind\(to=step\), not both"), (dict(step=2), TypeError, "it is called 'to'")]:
        with pytest.raises(error, match=words): learn.rewind(**wrong)
    assert unequal(finish(learn), finish(other), ignore=("args",)) == []


# with the number of steps that a rewind from step 15 to step 9 replays
ACTS = {"set": (lambda l: l.set(lr=0.005), 9), "freeze": (lambda l: l.freeze("inner"), 9), "batch size": (lambda l: l.set(per_device_train_batch_size=2), 9),
        "unfreeze": (lambda l: (l.freeze("inner", eval_mode=True), l.unfreeze()), 9), "length": (lambda l: l.set(num_train_epochs=9, logging_steps=2), 9),
        "assigned": (lambda l: setattr(l.args, "weight_decay", 0.5), 9), "by hand": (lambda l: l.model.outer.bias.detach().zero_(), 3),
        "paused": (lambda l: (l.run_state.history.note("pause", 6), l.set(lr=0.005)), 3)}


@pytest.mark.parametrize("act", ACTS)
def test_acts_are_repeated_by_a_replay_or_a_snapshot_is_taken_behind_them(act):
    "A replay calls set and freeze again; what was done by hand is in the snapshot that the next step begins with."
    do, num_replayed = ACTS[act]
    learn = hard_learner(rewind_every=50, **LONG)
    learn.step(6); do(learn); learn.step(3)
    was, journal = learn.snapshot(), [(e["step"], e["act"], e["what"]) for e in learn.journal]
    learn.step(6)
    out = learn.rewind(6)
    assert differences(was, learn.snapshot()) == [] and out.replayed == num_replayed and out.different == []
    present = [e for e in learn.journal if not e["abandoned"] and e["act"] != "rewind"]
    assert [(e["step"], e["act"], e["what"]) for e in present] == journal
    learn.rewind(5)   # before it: from the beginning
    assert learn.state.global_step == 4
    assert differences(stood_at(4, rewind_every=50), learn.snapshot()) == []


def test_what_was_done_by_hand_is_written_down():
    learn = hard_learner(**LONG)
    learn.step(2)
    with torch.no_grad(): learn.model.outer.bias.zero_()
    learn.model.inner.bias.requires_grad_(False)
    learn.step()
    learn.optimizer.param_groups[0]["weight_decay"] = 0.3
    learn.step()
    learn.evaluate(Augmented(6)), learn.set(lr=0.01), learn.step()
    noted = [(e["step"], e["data"]["changed"]) for e in learn.history.events if e["kind"] == "by hand"]
    assert noted == [(2, ["weights", "requires_grad"]), (3, ["param_groups"])]


def test_undisturbed_runs_note_nothing_by_hand(tmp_path):
    "Verbs, failed steps, debug steps and snapshots are not taken for it."
    learn = hard_learner(hook=Bomb("backward", 8), eval_dataset=Augmented(6), **LONG)
    learn.step(2)
    with pytest.raises(Boom): learn.step()
    learn.step(); learn.evaluate(); snap = learn.snapshot(); learn.set(lr=0.01); learn.step(); learn.freeze("inner"); learn.unfreeze("inner"); learn.restore(snap)
    debug = learn.debug_step()
    for _ in range(3): debug.forward(); debug.backward()
    debug.update()
    learn.step(2); learn.rewind(1); learn.step(2); learn.reset(); learn.step(2); learn.train(); learn.save_model(tmp_path)
    assert [e for e in learn.history.events if e["kind"] == "by hand"] == []


def test_a_buffer_whose_place_an_attribute_takes():
    learn = hard_learner(**LONG)
    learn.model.register_buffer("seen", torch.ones(2))
    was = learn.step(2) and learn.snapshot()
    del learn.model.seen
    learn.step(1)
    learn.model.seen = torch.zeros(2)
    learn.step(1)
    learn.restore(was)
    assert differences(was, learn.snapshot()) == [] and "seen" in learn.model._buffers


def test_how_far_is_said():
    "What stands in the way, and what to do."
    learn = hard_learner(rewind_every=0, **LONG)
    learn.step(5)
    with pytest.raises(ValueError, match=r"rewind\(6\) would go back past the beginning: the run has done 5 steps"): learn.rewind(6)
    learn.model.inner.bias.detach().zero_(); learn.step(4)
    with pytest.raises(ValueError, match="step 7: rewind_every=0 keeps no snapshots"): learn.rewind(2)
    small = hard_learner(rewind_memory=1e-6, **LONG)
    small.step(3); small.model.inner.bias.detach().zero_(); small.step(3)
    with pytest.raises(ValueError, match="more than rewind_memory allows"): small.rewind(2)
    for n in (0, -1, 2.5, "3", True):
        with pytest.raises((TypeError, ValueError), match="whole number|from 1 on"): learn.rewind(n)


def test_changes_of_the_step_are_named_and_undone_by_one_step_more():
    learn = hard_learner(rewind_every=1, **LONG)
    learn.step(5)
    rate, decay = learn.args.learning_rate, learn.args.weight_decay
    learn.set(learning_rate=0.5)
    learn.set(learning_rate=0.25, weight_decay=0.1)
    learn.freeze()
    learn.unfreeze()
    learn.step(3)
    out = learn.rewind(3)
    assert out.changes == ("learning_rate=0.25", "weight_decay=0.1", "freeze()", "unfreeze()")
    assert str(out).endswith("Changes made at this step stay: learning_rate=0.25, weight_decay=0.1, freeze(), unfreeze(); rewind(1) undoes them.")
    assert (learn.args.learning_rate, learn.args.weight_decay) == (0.25, 0.1)
    out = learn.rewind(1)
    assert not out.changes and "stay" not in str(out) and (learn.args.learning_rate, learn.args.weight_decay) == (rate, decay)
    # the ones of the beginning cannot be undone by a rewind
    other = hard_learner(rewind_every=1, **LONG)
    other.set(learning_rate=0.5)
    other.step(1)
    assert str(other.rewind(1)).endswith("Changes made at this step stay: learning_rate=0.5.")


def test_named_snapshots_are_places_to_begin():
    learn = hard_learner(rewind_every=0, **LONG)
    learn.step(4); learn.set(lr=0.002); learn.snapshot("four"); learn.step(6)
    was = learn.snapshot("ten")
    learn.step(2)
    assert learn.rewind(2).replayed == 0 and differences(was, learn.snapshot()) == []
    assert learn.rewind(4).replayed == 2
    learn.step(8)
    learn.rewind(3)                  # "ten" is of an abandoned future, though as good as any: it is not used
    assert learn.state.global_step == 11
    assert "four" in repr(learn.snapshots) and "<table" in learn.snapshots._repr_html_() and repr(hard_learner().snapshots) == "no snapshots"


def test_a_snapshot_that_was_dropped_is_not_said_to_have_never_been_taken(monkeypatch):
    "Snapshots behind changes by hand stay as long as there is room for all of them. The message names the first one that is kept."
    for module in ("rewind_buffer", "rewind"): monkeypatch.setattr(f"trainer_nb.state.{module}.MAX_SNAPSHOTS", 2)
    def changed(steps, rewind_memory=1):
        learn = hard_learner(rewind_every=1, rewind_memory=rewind_memory, **LONG)
        for step in steps: learn.step(step - learn.state.global_step); learn.model.inner.bias.detach().zero_()
        learn.step(4)
        return learn
    assert changed([2]).rewind(3).replayed == 1
    size = snapshot_nbytes(changed([2]).run_state)
    for learn, advice in ((changed([2, 4, 6, 8]), "learn.snapshot.name. keeps one for good$"), (changed([2, 4, 6], rewind_memory=1.5 * size / 1e9), "and more rewind_memory keeps more of them")):
        with pytest.raises(ValueError, match="by hand at step 2 lies in between, and the next snapshot that is kept is of step [6-9]") as error: learn.rewind(to=3)
        assert re.search(advice, str(error.value).removesuffix("."))


@pytest.mark.parametrize("every, most, places", [(2, 32, 2), (2, 32, 4), (3, 60, 5), (5, 90, 3), (5, 90, 6)])
def test_what_a_rewind_repeats_is_near_the_least_that_is_possible(every, most, places):
    "In relation to the way back, for each step after each step: within 1.5 times what the best choices of places to drop give, tried out."
    def worst(steps, now):
        return max(((end - 1 - begin) / (now - end + 1) for begin, end in zip(steps, [*steps[1:], now]) if end - 1 - begin > every), default=0.0)
    steps, found, best = [0], 0.0, {(0,): 0.0}
    for now in range(1, most + 1):
        if now % every == 0:
            steps.append(now)
            if len(steps) > places + 1: del steps[place_to_drop(steps)]
            following = {}
            for kept, ratio in best.items():
                kept = (*kept, now)
                for option in [kept] if len(kept) <= places + 1 else [kept[:i] + kept[i + 1:] for i in range(1, len(kept) - 1)]:
                    following[option] = min(ratio, following.get(option, np.inf))
            best = following
        found = max(found, worst(steps, now))
        best = {kept: max(ratio, worst(list(kept), now)) for kept, ratio in best.items()}
    assert len(steps) == places + 1 and found <= 1.5 * min(best.values())


def test_memory_is_bounded_and_used_again():
    learn = hard_learner(rewind_every=1, **LONG)
    learn.step()
    size = learn.snapshot().nbytes
    learn = hard_learner(rewind_every=1, rewind_memory=3.5 * size / 1e9, **LONG)
    learn.step(3)
    there = [t.data_ptr() for t in learn.run_state.parts.rewind_buffer.kept[0].tensors.values()]
    learn.step(8)
    ring = learn.run_state.parts.rewind_buffer
    assert len(ring.kept) == 3 and ring.kept[-1].step == 10
    assert set(there) & {t.data_ptr() for s in ring.kept for t in s.tensors.values()}
    assert learn.rewind(1).replayed == 0 and learn.rewind(7).step == 3


def test_frozen_weights_that_snapshots_share_take_no_memory():
    "More snapshots fit; when the weights change, they count again."
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.base, self.head = torch.nn.Linear(256, 256).requires_grad_(False), torch.nn.Linear(256, 2)
        def forward(self, x, labels): return {"loss": torch.nn.functional.cross_entropy(self.head(self.base(x)), labels)}
    model, rows = Net(), [{"x": torch.randn(256), "labels": i % 2} for i in range(32)]
    frozen = model.base.weight.nbytes
    learn = Learner(model, train_dataset=rows, per_device_train_batch_size=4, num_train_epochs=10, use_cpu=True, disable_tqdm=True,
                    rewind_every=1, rewind_memory=2 * frozen / 1e9)
    learn.step(12)
    ring = learn.run_state.parts.rewind_buffer
    assert snapshot_nbytes(learn.run_state) < frozen and len(ring.kept) > 5
    assert sum(s.in_memory for s in ring.kept) <= 2 * frozen
    for _ in range(4):
        model.base.weight.data.mul_(1.01)
        learn.step(1)
    assert snapshot_nbytes(learn.run_state) > frozen and len(ring.kept) == 1


def test_losses_that_are_not_the_same_are_told():
    "A data set with a generator of its own."
    class Own(Augmented):
        rng = np.random.default_rng(0)
        def __getitem__(self, i): return super().__getitem__(i) | {"x": torch.from_numpy(self.rng.normal(size=4).astype(np.float32))}
    learn = hard_learner(train_dataset=Own(), rewind_every=50, **LONG)
    learn.step(8)
    with pytest.warns(UserWarning, match="The loss of step 1 is not what it was.*depends on something outside the run"): out = learn.rewind(2)
    assert out.different[0] == 1 and "step 1 was not the same, step 0 is exact" in repr(out)
    learn = hard_learner(train_dataset=Own(), rewind_every=4, **LONG)
    learn.step(8); was = learn.snapshot("eight"); learn.step(3)
    assert learn.rewind(1, exact=True)[:2] == (8, 0) and differences(was, learn.snapshot()) == []


def test_a_torn_run_is_put_right():
    "By replay from the last snapshot."
    class Fails(torch.optim.SGD):
        fails = False
        @torch.no_grad()
        def step(self, closure=None):
            if not self.fails: return super().step()
            next(p for p in self.param_groups[0]["params"] if p.grad is not None).add_(1.0)
            raise Boom("half of an update")
    def make(): return hard_learner(optimizer_cls_and_kwargs=(Fails, {"lr": 0.01, "momentum": 0.9}), rewind_every=4, **LONG)
    want = finish(make())
    learn = make()
    learn.step(6)
    learn.optimizer.fails = True
    with pytest.raises(Boom): learn.step()
    with pytest.raises(InvalidOperation, match=r"learn.rewind\(0\)"): learn.step()
    learn.optimizer.fails = False
    assert learn.rewind(0).replayed == 2 and learn.state.global_step == 6
    assert unequal(finish(learn), want) == []


def test_an_interrupt_within_the_replay():
    "The run stands at one of the steps on the way, and goes on from there."
    want = finish(hard_learner(**LONG))
    class Pauses(TrainerCallback):
        on, not_state = False, ("on",)   # a switch of the test's
        def on_step_end(self, args, state, control, learner, **kwargs):
            if self.on and state.global_step == 6: learner.pause()
    pauses = Pauses()
    learn = hard_learner(callbacks=[pauses], rewind_every=50, **LONG)
    learn.step(12)
    pauses.on = True
    assert learn.rewind(2).step == 6
    pauses.on = False
    assert unequal(finish(learn), want, ignore=("args",)) == []


def test_an_interrupted_replay_keeps_the_best_checkpoint(tmp_path):
    "The replay saves checkpoints again; they do not remove the best one, which the replay has not reached yet."
    scores, made = {5: 0.1, 10: 0.9, 15: 0.2, 20: 0.3}, []
    class Pauses(TrainerCallback):
        on, not_state = False, ("on",)
        def on_step_end(self, args, state, control, learner, **kwargs):
            if self.on and state.global_step == 7: learner.pause()
    pauses = Pauses()
    learn = hard_learner(callbacks=[pauses], output_dir=str(tmp_path), eval_dataset=Augmented(4), eval_strategy="steps", eval_steps=5, save_strategy="steps",
                         save_steps=5, save_total_limit=2, metric_for_best_model="score", load_best_model_at_end=True, rewind_every=0,
                         compute_metrics=lambda p: {"score": scores[made[0].state.global_step]}, **LONG)
    made.append(learn)
    learn.step(22)
    learn.run_state.parts.saver.wait()
    def names(): return sorted(p.name for p in tmp_path.glob("*checkpoint-*"))
    assert names() == ["checkpoint-10", "checkpoint-20"]
    pauses.on = True
    assert learn.rewind(1).step == 7
    learn.run_state.parts.saver.wait()
    assert "checkpoint-5" in names()
    pauses.on = False
    learn.step(10)
    learn.run_state.parts.saver.wait()
    assert learn.state.best_global_step == 10 and {"checkpoint-10", "checkpoint-15"} <= set(names())


def test_data_of_another_length_in_the_middle_of_an_epoch():
    learn = hard_learner(**LONG)
    learn.step(1); learn.snapshot("a"); learn.step(2)
    learn.train_dataset = Augmented(20)
    with pytest.raises(ValueError, match=r"sample \d+ of an order of 30 samples, and the training data has 20 now"): learn.restore("a")
    learn.train_dataset = Augmented(30)
    learn.restore("a")
    assert learn.state.global_step == 1


@pytest.mark.parametrize("back", ["restore", "rewind"])
def test_a_pending_log_is_of_its_own_step(back):
    "What a step left to be logged is logged after going back, with the numbers of that step and not of a discarded one."
    class Asks(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 2: control.should_log = True
    def rows(learn): return [(row["step"], row["learning_rate"], row["grad_norm"]) for row in learn.state.log_history if "learning_rate" in row]
    given = LONG | dict(max_steps=6, logging_strategy="no")
    like, bomb = hard_learner(callbacks=[Asks()], **given), Bomb("on_step_end", 2)
    like.train()
    learn = hard_learner(callbacks=[every_event(lambda self, event, state: bomb(event))(), Asks()], rewind_every=1, **given)
    with pytest.raises(Boom): learn.step(2)
    before = learn.snapshot()
    assert rows(learn) == []
    learn.step(2)
    if back == "restore": learn.restore(before)
    else: learn.rewind(2)
    learn.train()
    assert rows(learn) == rows(like) and len(rows(learn)) == 1


# ---- what the ring takes by default ----

class Clock:
    "A clock that only moves when it is told to."
    def __init__(self): self.now = 100.0
    def perf_counter(self): return self.now
    def time(self): return self.now


@pytest.mark.parametrize("step, copy", [(1.0, 0.5), *(pytest.param(*times, marks=pytest.mark.slow) for times in ((1.0, 4.0), (0.01, 0.02)))])
def test_the_ring_takes_half_a_percent_of_the_time(monkeypatch, step, copy):
    "At every moment, whatever a step and a snapshot take; evaluations and acts of callbacks do not change it."
    clock, spent = Clock(), [0.0]
    monkeypatch.setattr("trainer_nb.state.rewind_buffer.time", clock)
    monkeypatch.setattr("trainer_nb.engine.run_state.time", clock)
    def slow(*args, **kwargs):
        clock.now, spent[0] = clock.now + copy, spent[0] + copy
        return capture_snapshot(*args, **kwargs)
    monkeypatch.setattr("trainer_nb.state.rewind_buffer.capture_snapshot", slow)
    monkeypatch.setattr("trainer_nb.state.rewind_buffer.snapshot_nbytes", lambda run: copy)   # so that the first estimate is about right, too
    monkeypatch.setattr(Account, "rate", {"memory": 1.0, "disk": 1.0})
    class Ticks(TrainerCallback):
        shares = []
        def on_step_begin(self, args, state, control, learner, **kwargs):
            clock.now += step
            if state.global_step: self.shares.append(spent[0] / (clock.now - 100))
        def on_step_end(self, args, state, control, learner, **kwargs):
            if state.global_step % 7 == 0: learner.set(lr=0.01)
    ticks = Ticks()
    learn = hard_learner(max_steps=1500, callbacks=[ticks], eval_dataset=Augmented(3), eval_strategy="steps", eval_steps=500, logging_strategy="no")
    learn.train()
    assert max(ticks.shares) <= 0.005
    assert learn.run_state.parts.rewind_buffer.kept if copy / step < 3 else not spent[0]   # a snapshot that costs 8 s may come after 1600 s


def test_a_snapshot_without_room_in_memory_is_in_a_file(monkeypatch):
    "The file has no name; a rewind from it is exact, and so is a reset from the first weights."
    monkeypatch.setattr("trainer_nb.engine.snapshot_file.MEMORY_SHARE", 0.0)
    monkeypatch.setattr("trainer_nb.engine.snapshot_tensors.SMALLEST", 0)
    learn, like = (hard_learner(rewind_every=3, **LONG) for _ in range(2))
    beginning = like.snapshot()
    learn.step(10)
    ring = learn.run_state.parts.rewind_buffer
    assert ring.where == "disk" and [s.step for s in ring.kept] == [3, 6, 9] and all(s.file is not None for s in [*ring.kept, learn.run_state.first.snapshot])
    assert "of a disk" in repr(ring)
    learn.rewind(2)
    like.step(8)
    assert differences(learn.snapshot(), like.snapshot()) == []
    learn.step(9)
    assert len(ring.kept) == 4
    assert unequal(finish(learn), finish(like)) == []
    learn.reset()
    assert {n for n in differences(learn.snapshot(), beginning) if n.startswith(("weights", "buffers"))} == set()


def test_without_memory_and_disk_the_setting_is_named(monkeypatch):
    monkeypatch.setattr("trainer_nb.engine.snapshot_file.MEMORY_SHARE", 0.0)
    monkeypatch.setattr("trainer_nb.state.rewind_buffer.disk_space", lambda: 0.0)
    learn = hard_learner(**LONG)
    learn.step(3); learn.model.inner.bias.detach().zero_(); learn.step(3)
    with pytest.raises(ValueError, match=r"no disk has room for it in a temporary file; rewind_memory=0.1 keeps one in memory"): learn.rewind(2)
    assert learn.rewind(6).step == 0


def test_a_full_disk_is_said_and_memory_used(monkeypatch):
    def full(*args): raise OSError(28, "No space left on device")
    monkeypatch.setattr("trainer_nb.engine.snapshot_file.MEMORY_SHARE", 0.0)
    monkeypatch.setattr("trainer_nb.engine.snapshot_tensors.SMALLEST", 0)
    learn = hard_learner(rewind_every=2, **LONG)
    learn.step(2)
    monkeypatch.setattr("trainer_nb.engine.snapshot_file.SnapshotFile.append", full)
    with pytest.warns(UserWarning, match="kept in memory this time.*No space left"): learn.step(2)
    assert learn.rewind(1).different == []


PEAK = '''
import sys, torch
from torch.utils.data import TensorDataset
torch.set_num_threads(1)
def peak():
    with open("/proc/self/status") as file: return next(1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM"))
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(40)), torch.nn.Linear(1024, 2))
    def forward(self, x, labels): return {"loss": torch.nn.functional.cross_entropy(self.layers(x), labels)}
x, y = torch.randn(64, 1024), torch.randint(2, (64,))
rows = [{"x": a, "labels": b} for a, b in zip(x, y)]
settings = dict(per_device_train_batch_size=4, max_steps=13, learning_rate=1e-5, use_cpu=True, logging_strategy="no", save_strategy="no", disable_tqdm=True, report_to="none")
if sys.argv[1] == "ours":
    from trainer_nb import Learner
    from trainer_nb.state import rewind_buffer
    # two snapshots of 0.5 GB fit, however full the disk is
    rewind_buffer.disk_space = lambda: 1.2e9
    learn = Learner(Net(), train_dataset=rows, **settings, **(dict(rewind_every=5) if sys.argv[2] == "often" else {}))
    learn.train()
    kept = learn.run_state.parts.rewind_buffer.kept
    if sys.argv[2] == "often": assert [s.step for s in kept] == [5, 10]
else:
    import transformers
    transformers.Trainer(Net(), transformers.TrainingArguments(sys.argv[2], **settings), train_dataset=rows).train()
print("PEAK", peak())
'''


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the peak is read from /proc")
@pytest.mark.timeout(240)
def test_full_fine_tuning_takes_the_memory_of_the_trainers(tmp_path):
    "42 million parameters with AdamW, snapshots in a file: at most 1.1 of the Trainer's peak, the first weights for reset() included."
    def peak(*arguments):
        done = subprocess.run([sys.executable, "-c", PEAK, *arguments], capture_output=True, text=True, timeout=200,
                              env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}, cwd=tmp_path)
        assert not done.returncode, done.stderr
        return int(next(line for line in done.stdout.splitlines() if line.startswith("PEAK")).split()[1])
    theirs = peak("theirs", str(tmp_path / "out"))
    assert peak("ours", "by default") <= 1.1 * theirs
    assert peak("ours", "often") <= 1.1 * theirs


def test_a_rewind_after_a_restore_starts_from_the_nearest_snapshot():
    learn = hard_learner(rewind_every=1, **LONG)
    learn.step(4)
    learn.model.inner.bias.detach().zero_()   # so the first weights lead to no later step
    learn.step(4)
    learn.snapshot("eight")
    learn.step(2)
    learn.restore("eight")
    assert learn.rewind(2)[:2] == (6, 0)


def test_the_reason_before_the_beginning_of_a_branch_and_of_another_run():
    learn, other = hard_learner(**LONG), hard_learner(**LONG)
    learn.step(5)
    other.restore(learn.snapshot())
    for later in (learn.branch(), other):
        later.step(2)
        with pytest.raises(ValueError, match="this run begins at step 5, and has no earlier steps"): later.rewind(3)
        assert later.rewind(2).step == 5


def test_a_method_that_is_deleted_or_assigned_again():
    "Deleting an assigned method is a change, assigning the same one is none; the flag of a loss counts, too."
    def doubled(model, inputs, **kwargs): return 2 * Learner.compute_loss(learn, model, inputs, **kwargs)
    learn = hard_learner(num_train_epochs=6, rewind_every=50)
    learn.step(2)
    learn.compute_loss = learn.compute_loss
    assert learn.rewind(1).step == 1
    learn.compute_loss = doubled
    learn.step(2)
    learn.compute_loss = doubled
    del learn.compute_loss
    learn.step(2)
    learn.loss_is_scaled_for_ga = True
    learn.step(1)
    with pytest.raises(ValueError, match="has replaced a part of the run"): learn.rewind(2)
    assert [(e["step"], e["what"].split()[0]) for e in learn.history.journal() if e["act"] == "override"] == [(1, "compute_loss"), (3, "compute_loss"), (5, "loss_is_scaled_for_ga")]


def test_what_was_replaced_in_discarded_steps_is_in_use():
    "No rewind goes back over the assignment, also where a snapshot of that step is kept, and after that snapshot was restored."
    def doubled(model, inputs, **kwargs): return 2 * Learner.compute_loss(learn, model, inputs, **kwargs)
    learn = hard_learner(num_train_epochs=6, rewind_every=2)
    learn.step(3)
    taken = learn.snapshot()
    learn.compute_loss = doubled
    learn.step(2)
    for _ in range(2):
        with pytest.raises(ValueError, match="cannot go back to step 2"): learn.rewind(to=2)
        learn.restore(taken)

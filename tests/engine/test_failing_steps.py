"Errors at unusual moments of a step: before the update it is rolled back, and a rollback that fails marks the run as corrupted."
import signal
import sys
import warnings
from contextlib import contextmanager

import pytest
from toys import Boom, finish, hard_learner, outcome, unequal
from trainer_nb import Learner, Paused, TrainerCallback
from trainer_nb.core.errors import InvalidOperation
from trainer_nb.engine import step


def test_what_fails_between_the_gradients_and_the_update_is_rolled_back(monkeypatch):
    want = finish(hard_learner())
    learn, failures = hard_learner(), []
    def fails(run):
        if not failures:
            failures.append(run.state.global_step)
            raise Boom("no memory for a copy")
        return original(run)
    original = step.await_copies
    monkeypatch.setattr(step, "await_copies", fails)
    with pytest.raises(Boom): learn.step()
    assert failures == [0] and learn.state.global_step == 0 and not learn.run_state.current.corrupted
    assert unequal(finish(learn), want) == []


class FailsOnUpdate(TrainerCallback):
    def on_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step == 2: raise Boom("a callback")


def test_a_schedule_that_fails_after_a_callback_names_both():
    learn = hard_learner(callbacks=[FailsOnUpdate()])
    learn.step(2)
    def fails(*args): raise ValueError("no rate")
    learn.lr_scheduler.step = fails
    with pytest.raises(ValueError, match="no rate") as caught: learn.step()
    assert any("on_optimizer_step failed: Boom: a callback" in note for note in caught.value.__notes__)
    assert "the schedule failed after the update" in learn.run_state.current.corrupted


def test_a_rollback_that_fails_marks_the_run_as_corrupted():
    want = finish(hard_learner())
    learn = hard_learner()
    learn.step(3)
    before = learn.snapshot()
    backups = learn.run_state.copies.backups
    def fails(): raise RuntimeError("device lost")
    backups.put_back = fails
    class Fails(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs): raise Boom("in the step")
    learn.add_callback(callback := Fails())
    with pytest.raises(RuntimeError, match="device lost"): learn.step()
    assert learn.run_state.current.corrupted.startswith("restoring the state after step 3 failed (RuntimeError: device lost)")
    with pytest.raises(InvalidOperation, match="restoring the state after step 3 failed"): learn.step()
    del backups.put_back
    learn.pop_callback(callback)
    learn.restore(before)
    assert not learn.run_state.current.corrupted and unequal(finish(learn), want) == []


# --- an interrupt between the error and the rollback ---------------------------------------------------------------------

@contextmanager
def pressing_after_the_error(at: int):
    "Press twice before an instruction of take_step, counted from the error that reaches it; yield the number reached."
    counts = {"seen": None}
    def inside(frame, event, arg):
        frame.f_trace_opcodes = True
        if event == "exception" and counts["seen"] is None: counts["seen"] = 0
        elif event == "opcode" and counts["seen"] is not None:
            counts["seen"] += 1
            if counts["seen"] == at:
                for _ in range(2): signal.raise_signal(signal.SIGINT)
        return inside
    before = sys.gettrace()
    sys.settrace(lambda frame, event, arg: inside if frame.f_code is step.take_step.__code__ else None)
    try: yield counts
    finally: sys.settrace(before)

def failing_once(name):
    "A hook of the model that fails once its statistics have changed."
    if name == "end of forward" and failing_once.left:
        failing_once.left -= 1
        if not failing_once.left: raise Boom("in the model")
failing_once.left = 0

def test_an_interrupt_between_the_error_and_the_rollback_leaves_no_part_of_the_step():
    want, reached = finish(hard_learner()), 0
    # a trace function of the thread presses; a debugger or coverage has none meanwhile
    for at in range(1, 60):
        failing_once.left = 0
        learn = hard_learner(hook=failing_once)
        learn.step(2)
        before = outcome(learn)
        failing_once.left = 1
        with pressing_after_the_error(at) as counts, pytest.raises((Boom, Paused)): learn.step()
        assert not failing_once.left and not learn.run_state.current.corrupted and learn.state.global_step == 2
        assert unequal(outcome(learn), before) == [], at
        if at == 1 or counts["seen"] < at: assert unequal(finish(learn), want) == [], at
        reached = max(reached, counts["seen"])
        if counts["seen"] < at: break
    # all instructions from the error to the end of take_step
    assert 5 < reached < 59


def test_a_training_step_that_forgets_the_backward_pass_is_reported():
    class Forgets(Learner):
        def training_step(self, model, inputs, num_items_in_batch=None): return self.compute_loss(model, inputs)
    learn = hard_learner(cls=Forgets)
    with pytest.warns(UserWarning, match=r"training_step has left no gradients.*self.accelerator.backward\(loss\)"): learn.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.step()


@pytest.mark.parametrize("loss", ["scaled", "super"])
def test_a_training_step_with_a_backward_pass_is_not_reported(loss, recwarn):
    class Own(Learner):
        def training_step(self, model, inputs, num_items_in_batch=None):
            if loss == "super": return super().training_step(model, inputs, num_items_in_batch)
            value = self.compute_loss(model, inputs)
            self.accelerator.backward(value)
            return value.detach()
    hard_learner(cls=Own).step(2)
    assert not [w for w in recwarn if "no gradients" in str(w.message)]

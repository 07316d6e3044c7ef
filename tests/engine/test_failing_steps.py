"Errors at unusual moments of a step: before the update it is rolled back, and a rollback that fails marks the run as corrupted."
import pytest
from toys import Boom, finish, hard_learner, unequal
from trainer_nb import TrainerCallback
from trainer_nb.core.errors import InvalidOperation


def test_what_fails_between_the_gradients_and_the_update_is_rolled_back(monkeypatch):
    from trainer_nb.engine import step
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
    assert failures == [0] and learn.state.global_step == 0 and not learn.run_state.corrupted
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
    assert "the schedule failed after the update" in learn.run_state.corrupted


def test_a_rollback_that_fails_marks_the_run_as_corrupted():
    want = finish(hard_learner())
    learn = hard_learner()
    learn.step(3)
    before = learn.snapshot()
    backups = learn.run_state.backups.adaptive
    def fails(): raise RuntimeError("device lost")
    backups.put_back = fails
    class Fails(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs): raise Boom("in the step")
    learn.add_callback(callback := Fails())
    with pytest.raises(RuntimeError, match="device lost"): learn.step()
    assert learn.run_state.corrupted.startswith("restoring the state after step 3 failed (RuntimeError: device lost)")
    with pytest.raises(InvalidOperation, match="restoring the state after step 3 failed"): learn.step()
    del backups.put_back
    learn.pop_callback(callback)
    learn.restore(before)
    assert not learn.run_state.corrupted and unequal(finish(learn), want) == []

"What is said when something is broken off is true: which callback is half-updated, and at which step the run stands."
import signal

import pytest

from toys import Boom, finish, hard_learner, outcome, unequal
from trainer_nb import Paused, TrainerCallback


def press(times):
    for _ in range(times): signal.raise_signal(signal.SIGINT)


class Halves(TrainerCallback):
    "Counts in two halves, and is broken off between them at one step."
    def __init__(self, event, step, times=2, act=press):
        self.first, self.second, self.todo = 0, 0, True
        def count(args, state, control, **kwargs):
            self.first += 1
            if self.todo and state.global_step == step:
                self.todo = False
                act(times)
            self.second += 1
        setattr(self, event, count)

    def state_dict(self): return {"first": self.first, "second": self.second}
    def load_state_dict(self, state): self.first, self.second = state["first"], state["second"]


@pytest.mark.parametrize("event", ["on_step_end", "on_log", "on_epoch_end", "on_optimizer_step"])
def test_a_callback_that_is_broken_off_after_the_update_is_named(event):
    learn = hard_learner(callbacks=[halves := Halves(event, 3 if event == "on_epoch_end" else 2)])
    with pytest.raises(Paused) as error: learn.train()
    assert halves.first == halves.second + 1
    said = str(error.value)
    assert f"Halves.{event} was interrupted and is not called again" in said and "half-updated (learn.rewind(1)" in said
    assert "Nothing is lost" not in said and said.endswith("learn.train(), learn.run(...) or learn.step() continues.")
    learn.rewind(1)   # what the message says to type
    learn.train()
    assert halves.first == halves.second
    assert unequal(outcome(learn)[:2] + ([],), finish(hard_learner())[:2] + ([],)) == []


@pytest.mark.parametrize("event, step", [("on_step_begin", 2), ("on_pre_optimizer_step", 2)])
def test_before_the_update_nothing_is_lost(event, step):
    learn = hard_learner(callbacks=[Halves(event, step)])
    with pytest.raises(Paused, match="The step in progress was cancelled; paused after step 2 of 6.*Nothing is lost"): learn.train()


def test_one_press_breaks_off_nothing():
    learn = hard_learner(callbacks=[halves := Halves("on_step_end", 2, times=1)])
    with pytest.raises(Paused, match="Paused after step 2 of 6.*Nothing is lost"): learn.train()
    assert halves.first == halves.second


def test_before_the_first_step():
    learn = hard_learner(callbacks=[Halves("on_train_begin", 0)])
    with pytest.raises(Paused, match=r"Halves.on_train_begin was interrupted.*learn.reset\(\) starts the run again\); paused before the first step"): learn.train()


def test_in_the_background():
    def fail(times): raise Boom("full")
    learn = hard_learner(callbacks=[Halves("on_step_end", 2, act=fail)])
    with pytest.raises(Boom): learn.start().wait()
    with pytest.warns(UserWarning, match="Halves.on_step_end was interrupted and is not called again.*learn.start") as said: learn.summary()
    assert not any("Nothing is lost" in str(w.message) for w in said)


# --- tools that train a copy -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("verb", ["lr_find", "inspect"])
def test_an_interrupted_tool_says_where_the_run_stands(verb):
    learn = hard_learner()
    learn.step(2)
    calls = []
    def hook(module, *rest):
        calls.append(learn.state.global_step)
        if len(calls) == (20 if verb == "lr_find" else 2): press(1)
    handle = learn.model.inner.register_forward_hook(hook)
    with pytest.raises(Paused) as error: getattr(learn, verb)()
    handle.remove()
    assert str(error.value) == f"{verb}() was cancelled. The run is unchanged, after step 2 of 6 (epoch 0.75)."
    assert verb != "lr_find" or max(calls) > 2


def test_a_tool_that_fails_says_where_the_run_stands():
    learn = hard_learner()
    learn.step(2)
    def hook(module, *rest):
        if learn.state.global_step == 4: raise Boom("no")
    handle = learn.model.inner.register_forward_hook(hook)
    with pytest.raises(Boom) as error: learn.lr_find()
    handle.remove()
    assert any("in lr_find()" in note and "after step 2 of 6" in note for note in error.value.__notes__)


def test_an_interrupted_rewind_says_how_far_it_came(tmp_path):
    learn = hard_learner(num_train_epochs=4, rewind_every=4, output_dir=str(tmp_path), save_strategy="steps", save_steps=5)
    learn.step(10)
    pressed = []
    def hook(module, *rest):
        if learn.state.global_step == 5 and not pressed:
            pressed.append(True)
            press(1)
    handle = learn.model.inner.register_forward_hook(hook)
    with pytest.raises(Paused, match=r"Paused after step 6 of 12.*rewind\(3\) was on its way to step 7: learn.step\(1\) goes there."): learn.rewind(3)
    handle.remove()
    assert learn.state.global_step == 6 and learn.journal[-1]["act"] == "rewind" and learn.journal[-1]["what"] == "4 steps back"
    assert not (tmp_path / "checkpoint-10").exists()   # it is of the future that was left
    want = hard_learner(num_train_epochs=4)
    assert unequal(finish(learn)[:2] + ([],), finish(want)[:2] + ([],), ignore=("args", "state", "due")) == []

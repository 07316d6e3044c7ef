"Changes of the run that callbacks request: applied at the boundary, once, whatever happens between the request and the boundary."
import signal, sys, warnings

import pytest
import torch

from trainer_nb import Learner, TrainerCallback
from trainer_nb.core.errors import Paused
from toys import hard_learner, hard_model


class HalvesRate(TrainerCallback):
    "Requests another learning rate after the second step."
    def on_step_end(self, args, state, control, learner=None, **kwargs):
        if state.global_step == 2: learner.set(lr=0.004)


class Presses(TrainerCallback):
    "Presses the interrupt button twice when the second step is logged, once."
    done = False
    def on_log(self, args, state, control, **kwargs):
        if state.global_step == 2 and not self.done:
            self.done = True
            for _ in range(2): signal.raise_signal(signal.SIGINT)


def rates(learn): return learn.history.column("learning_rate").tolist()


def test_a_change_outlives_an_interrupted_callback_of_the_same_step():
    "The rate was requested; two presses in the log that follows must not lose it."
    want = hard_learner(callbacks=[HalvesRate()], max_steps=6, logging_steps=1)
    want.train()
    learn = hard_learner(callbacks=[HalvesRate(), Presses()], max_steps=6, logging_steps=1)
    with pytest.raises(Paused): learn.train()
    assert learn.state.global_step == 2 and learn.optimizer.param_groups[0]["lr"] == 0.004
    learn.train()
    assert rates(learn) == rates(want) and rates(learn)[2] == 0.004
    assert [e["step"] for e in learn.history.events if e["kind"] == "set"] == [2]


def test_an_invalid_change_is_reported_once():
    class Wrong(TrainerCallback):
        def on_step_end(self, args, state, control, learner=None, **kwargs):
            if state.global_step == 2: learner.set(lr=-1.0)
    learn = hard_learner(callbacks=[Wrong()], max_steps=4)
    with pytest.raises(ValueError): learn.train()
    learn.train()
    assert learn.state.global_step == 4


# --- the user's optimizer, with a schedule that changes its rates when it is made -------------------------------------

class Halving(Learner):
    def create_scheduler(self, num_training_steps, optimizer=None):
        self.lr_scheduler = torch.optim.lr_scheduler.ConstantLR(self.optimizer, factor=0.5, total_iters=3)
        self.attempt()
        return self.lr_scheduler

    def attempt(self): "Nothing fails."


def given_learner(**settings):
    model = hard_model()
    kept = [p for p in model.parameters() if p.requires_grad]
    return hard_learner(Halving, model=model, optimizers=(torch.optim.SGD(kept, lr=0.1), None), max_steps=6, **settings)


def test_reset_makes_a_schedule_on_the_first_rates():
    learn = given_learner()
    learn.train()
    first = rates(learn)
    learn.reset()
    learn.train()
    assert rates(learn) == first == [0.05] * 3 + [0.1] * 3


def test_a_preparation_that_fails_leaves_the_users_optimizer_as_it_was():
    learn = given_learner()
    before = {k: v for k, v in learn.optimizers[0].param_groups[0].items() if k != "params"}
    def fails(): raise RuntimeError("not yet")
    learn.attempt = fails
    for _ in range(2):
        with pytest.raises(RuntimeError, match="not yet"): learn.step()
        assert {k: v for k, v in learn.optimizers[0].param_groups[0].items() if k != "params"} == before
    del learn.attempt
    learn.train()
    assert rates(learn) == [0.05] * 3 + [0.1] * 3


def test_a_rate_set_before_the_first_step_is_no_setting_without_effect():
    "The user's optimizer has the rate; the branch must not say that learning_rate has no effect."
    model, rows = torch.nn.Linear(3, 2), [{"input": torch.randn(3), "labels": i % 2} for i in range(8)]
    learn = Learner(model, train_dataset=rows, loss_func=torch.nn.functional.cross_entropy, use_cpu=True, disable_tqdm=True, max_steps=6,
                    optimizer_cls_and_kwargs=(torch.optim.SGD, {"lr": 0.1}), lr_scheduler_type="constant")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.set(lr=0.02)
        other = learn.branch()
        other.step()
    assert other.history[0].learning_rate == 0.02


def test_a_press_while_a_verb_begins_pauses_it(monkeypatch):
    "Freeing the memory of the last error takes a while: a press there is shown like any other, and nothing is lost."
    from trainer_nb.core import interrupts
    learn, pressed = hard_learner(max_steps=6), []
    learn.step(1)
    def press_once():
        if not pressed: pressed.append(signal.raise_signal(signal.SIGINT))
    monkeypatch.setattr(sys, "last_value", None, raising=False)
    monkeypatch.setattr(interrupts, "release_last_traceback", press_once)
    with pytest.raises(Paused): learn.train()
    assert learn.state.global_step == 1 and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    learn.train()
    assert learn.state.global_step == 6

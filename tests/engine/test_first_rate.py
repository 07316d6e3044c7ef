"`lr=x` before the first step is the base of the schedule: what people type after lr_find(), where a warm-up stands at 0."
import json

import pytest
import torch

from toys import SETTINGS, finish, hard_learner, unequal
from trainer_nb import Learner
from trainer_nb.live.run_view import settings_form
from trainer_nb.live.commands import COMMANDS

SCHEDULES = {"linear": {}, "cosine": {}, "constant_with_warmup": {}, "constant": {"warmup_steps": 0}, "polynomial": {"lr_scheduler_kwargs": {"lr_end": 1e-4}},
             "cosine_with_min_lr": {"lr_scheduler_kwargs": {"min_lr": 1e-4}}, "inverse_sqrt": {}, "linear without": {"warmup_steps": 0}}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("prepared", [False, True])
def test_it_is_the_run_that_was_made_with_it(schedule, prepared):
    given = dict(lr_scheduler_type=schedule.split()[0], **SCHEDULES[schedule])
    want = hard_learner(**given | dict(learning_rate=0.03))
    learn = hard_learner(**given)
    if prepared: learn.lr_find(num_steps=10)
    changes = learn.set(lr=0.03)
    assert [(c["name"], c["before"], c["after"]) for c in changes] == [("lr", 0.01, 0.03)] and "base of the schedule" in changes[0]["effect"]
    assert learn.args.learning_rate == 0.03
    assert unequal(finish(learn), finish(want)) == []


def test_a_branch():
    want = hard_learner(learning_rate=0.03)
    branch = hard_learner().branch(lr=0.03)
    assert unequal(finish(branch)[:2] + ([],), finish(want)[:2] + ([],), ignore=("args",)) == []


def test_after_going_back_to_the_beginning():
    learn = hard_learner()
    learn.step(3)
    learn.rewind(3)
    learn.set(lr=0.03)
    want = hard_learner(learning_rate=0.03)
    assert unequal(finish(learn)[:2] + ([],), finish(want)[:2] + ([],)) == []


def test_a_schedule_of_ones_own_that_starts_at_0():
    "And an optimizer of one's own; a list has a rate for each of its groups."
    def make(rates):
        learn = hard_learner()
        body = [p for n, p in learn.model.named_parameters() if not n.startswith("outer") and p.requires_grad]
        optimizer = torch.optim.SGD([{"params": body, "lr": rates[0]}, {"params": list(learn.model.outer.parameters()), "lr": rates[1]}])
        return hard_learner(model=learn.model, optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)))
    for given, rates in ((0.05, [0.05, 0.1]), ([0.05, 0.07], [0.05, 0.07])):
        learn, want = make([0.01, 0.02]), make(rates)
        learn.set(lr=given)
        learn.step(4)
        want.step(4)
        for one, other in zip(learn.optimizer.param_groups, want.optimizer.param_groups): assert one["lr"] == pytest.approx(other["lr"], rel=1e-12)
        with pytest.raises(ValueError, match="lr has 3 values, but there are 2"): make(rates).set(lr=[1e-3] * 3)


def test_layer_groups():
    given = dict(layer_groups=["inner", "outer"], learning_rate=[0.01, 0.02, 0.03])
    learn = hard_learner(**given)
    learn.set(lr=0.02)
    learn.step(2)
    assert [round(r, 6) for r in sorted({g["lr"] for g in learn.optimizer.param_groups})] == sorted({round(2 * r, 6) for r in {g["lr"] for g in stepped(given, 2)}})
    learn = hard_learner(**given)
    learn.set(lr=[1e-3, 2e-3, 3e-3])
    assert learn.args.learning_rate == [1e-3, 2e-3, 3e-3]
    assert unequal(finish(learn), finish(hard_learner(**given | dict(learning_rate=[1e-3, 2e-3, 3e-3])))) == []


def stepped(given, n):
    learn = hard_learner(**given)
    learn.step(n)
    return learn.optimizer.param_groups


def test_refusals_name_what_was_typed():
    learn = hard_learner()
    for wrong in (0, -1.0, float("inf"), "fast"):
        with pytest.raises((ValueError, TypeError), match="lr="): learn.set(lr=wrong)
    assert learn.args.learning_rate == SETTINGS["learning_rate"]
    with pytest.raises(ValueError, match="lr and learning_rate are different settings"): learn.set(lr=1.0, learning_rate=1.0)


def test_the_dashboard():
    learn = hard_learner()
    learn.snapshot()
    assert "lr = 0.03 from step 1 on" in COMMANDS["set"](learn, {"lr": 0.03})["text"]
    first = settings_form(learn)[0]
    assert (first["name"], first["value"]) == ("lr", 0.03) and "base of the schedule" in first["effect"] and json.dumps(first)
    learn.step()
    assert settings_form(learn)[0]["value"] == learn.optimizer.param_groups[0]["lr"]
    many = hard_learner(layer_groups=["inner"], learning_rate=[0.01, 0.02])
    assert settings_form(many)[0]["value"] == 0.01


def test_later_it_is_the_rate_of_the_next_step():
    learn = hard_learner()
    learn.step()
    learn.set(lr=0.004)
    assert learn.step()[0].learning_rate == 0.004 and learn.args.learning_rate == SETTINGS["learning_rate"]
    assert isinstance(learn, Learner)


def test_one_cycle():
    "Its lowest rate is scaled, and may differ in the last bit."
    given = dict(lr_scheduler_type="one_cycle", warmup_steps=0)
    learn, want = hard_learner(**given), hard_learner(**given | dict(learning_rate=0.03))
    learn.set(lr=0.03)
    assert learn.step(5).learning_rate == pytest.approx(want.step(5).learning_rate, rel=1e-9)


def test_a_rate_that_scales_a_schedule_in_mid_run_is_named_where_it_begins_again(capfd):
    "The planned epochs, or the new run, begin at the base to which the rate of one step belongs, and not at that rate."
    def made(**more): return hard_learner(lr_scheduler_type="linear", warmup_steps=0, **more)
    learn = made()
    learn.step(3)
    learn.set(lr=1e-3)   # half of the way down
    learn.train()
    capfd.readouterr()
    learn.fit(1)
    assert "base rate 2e-3 that set(lr=...) has left; fit(1, lr) takes another" in capfd.readouterr().out and learn.history[-1].learning_rate == pytest.approx(0.002)
    learn = made()
    learn.step(3)
    learn.set(lr=1e-3)
    learn.train()
    capfd.readouterr()
    learn.train()
    assert "a new schedule with the base rate 2e-3 that set(lr=...) has left, and an empty history" in capfd.readouterr().out
    for act in (lambda learn: learn.set(learning_rate=1e-3), lambda learn: learn.fit(1, 1e-3), lambda learn: None):
        learn = made()
        learn.step(3)
        act(learn)
        learn.train() if not learn.run_state.finished else None
        capfd.readouterr()
        learn.fit(1)
        assert "has left" not in capfd.readouterr().out

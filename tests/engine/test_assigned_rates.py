"A learning rate that is assigned in the optimizer's groups between two steps: what the schedule does with it."
import warnings

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, CyclicLR, LambdaLR, OneCycleLR, StepLR

from toys import hard_learner

FROM_BASE = {
    "lambda": lambda opt: LambdaLR(opt, lambda step: 1 / (1 + step)),
    "one cycle": lambda opt: OneCycleLR(opt, 0.1, total_steps=40),
    "cyclic": lambda opt: CyclicLR(opt, 1e-3, 0.1, step_size_up=3),
}
FROM_BEFORE = {"step": lambda opt: StepLR(opt, 20), "cosine": lambda opt: CosineAnnealingLR(opt, 40)}


def scheduled(make):
    learn = hard_learner()
    opt = torch.optim.SGD(learn.model.parameters(), 0.05, momentum=0.9)
    return hard_learner(model=learn.model, optimizers=(opt, make(opt)))


def rates(learn): return learn.history.column("learning_rate").tolist()


def assign(learn, rate=0.02):
    for group in learn.optimizer.param_groups: group["lr"] = rate


@pytest.mark.parametrize("kind", ["linear", "constant", "cosine"])
def test_a_rate_that_holds_for_one_step_is_reported_once(kind):
    learn, plain = hard_learner(lr_scheduler_type=kind), hard_learner(lr_scheduler_type=kind)
    plain.train()
    learn.step(2)
    assign(learn)
    with pytest.warns(UserWarning, match=r"learning rate 0\.02, assigned in optimizer\.param_groups, holds for one step.*learn\.set\(lr=0\.02\)"): learn.step()
    assign(learn)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.train()
    assert rates(learn) == [*rates(plain)[:2], 0.02, 0.02, *rates(plain)[4:]]


@pytest.mark.parametrize("make", FROM_BASE.values(), ids=FROM_BASE)
def test_schedules_of_torch_that_compute_a_rate_from_the_base(make):
    learn = scheduled(make)
    learn.step(2)
    assign(learn)
    with pytest.warns(UserWarning, match="holds for one step"): learn.step(2)
    assert rates(learn)[2] == 0.02 and rates(learn)[3] != 0.02


@pytest.mark.parametrize("make", FROM_BEFORE.values(), ids=FROM_BEFORE)
def test_schedules_that_continue_from_the_rate_they_find(make):
    learn = scheduled(make)
    learn.step(2)
    assign(learn)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.step(2)
    assert rates(learn)[2] == 0.02 and abs(rates(learn)[3] - 0.02) < 1e-3


def test_a_loop_over_steps_reports_it_too():
    learn = hard_learner()
    with pytest.warns(UserWarning, match="holds for one step"):
        for record in learn.steps():
            if record.step == 2: assign(learn)
    assert rates(learn)[2] == 0.02 and rates(learn)[3] != 0.02


@pytest.mark.parametrize("change", [
    lambda learn: learn.set(lr=0.02), lambda learn: learn.set(learning_rate=0.02), lambda learn: learn.rewind(1), lambda learn: learn.reset(),
    lambda learn: learn.fit(1, lr=0.02), lambda learn: learn.fit_one_cycle(1, 0.02), lambda learn: learn.optimizer.param_groups[0].update(weight_decay=0.1),
    lambda learn: learn.set(max_steps=9), lambda learn: learn.evaluate(learn.train_dataset),
])
def test_the_verbs_that_change_rates_are_not_reported(change):
    learn = hard_learner()
    learn.step(2)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="The learning rate .* assigned")
        change(learn)
        if not learn.run_state.finished: learn.step()


def test_a_callback_that_sets_the_rate_at_each_step_is_not_reported():
    "It is how code for the Trainer writes a schedule of its own."
    from trainer_nb import TrainerCallback
    class Own(TrainerCallback):
        def on_step_begin(self, args, state, control, optimizer, **kwargs):
            for group in optimizer.param_groups: group["lr"] = 0.01 / (1 + state.global_step)
    learn = hard_learner(callbacks=[Own()], lr_scheduler_type="constant")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="The learning rate .* assigned")
        learn.step(2)
        learn.train()
    assert rates(learn) == [0.01 / (1 + n) for n in range(6)]


@pytest.mark.timeout(120)
def test_a_rate_assigned_in_the_processes_of_a_launch():
    learn = hard_learner()
    with learn.launch(2):
        learn.step(2)
        learn.run_on_all(assign)
        assert learn.run_on_all(lambda learn: "replaced rates" in learn.run_state.reports.reported) == [True, True]
        learn.step(2)
    assert rates(learn)[2] == 0.02 and rates(learn)[3] != 0.02


@pytest.mark.parametrize("kind", ["linear", "constant", "cosine"])
def test_set_after_an_assignment_has_the_effect_of_set_alone(kind):
    "The schedule is scaled from its own rate, not from the assigned one, which would be a factor of 1."
    learn, plain = hard_learner(lr_scheduler_type=kind), hard_learner(lr_scheduler_type=kind)
    for one in (learn, plain): one.step(2)
    assign(learn)
    with pytest.warns(UserWarning, match="holds for one step"): learn.set(lr=0.02)
    plain.set(lr=0.02)
    for one in (learn, plain): one.train()
    assert rates(learn) == rates(plain) and rates(learn)[2] == 0.02


def test_one_number_is_not_named_where_one_group_of_several_was_changed():
    learn = hard_learner()
    opt = torch.optim.SGD([{"params": [p], "lr": 0.05} for p in learn.model.parameters()])
    learn = hard_learner(model=learn.model, optimizers=(opt, None))
    learn.step(2)
    opt.param_groups[1]["lr"] = 0.02
    with pytest.warns(UserWarning, match=r"learning rate 0\.02, .*learn\.set\(lr=\[\.\.\.\]\)"): learn.step()

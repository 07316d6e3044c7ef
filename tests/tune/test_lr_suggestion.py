"The suggestion of lr_find(): short trainings with candidates, what follows from them, and what sets the rate."
import math, pickle, re

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from record_lr_find import digits, perceptron
from toys import Augmented, Bomb, Boom, finish, hard_learner, unequal
from trainer_nb import InvalidOperation, Learner, Paused, differences
from trainer_nb.display.charts import SVG_MIME
from trainer_nb.display.panels import LineSeries, Marker
from trainer_nb.tune.lr_finder import LRFindResult
from trainer_nb.tune.lr_trials import MAX_TRIALS, Trial, Untrained, candidate, candidate_range, compressed_schedule, held_out_loss
from trainer_nb.tune.lr_trials import judge_trials, next_candidate, try_rate

pytestmark = pytest.mark.usefixtures("one_thread")
LOSS = nn.functional.cross_entropy


def of_digits(seed=0, shuffled=False, evaluated=True, **settings):
    "A learner on handwritten digits, a quarter of them held out."
    images, labels = digits()[:]
    if shuffled: labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))]
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    given = dict(per_device_train_batch_size=32, max_steps=80, seed=seed, use_cpu=True, disable_tqdm=True, logging_strategy="no") | settings
    if evaluated: given["eval_dataset"] = TensorDataset(images[1350:], labels[1350:])
    return Learner(model, train_dataset=TensorDataset(images[:1350], labels[:1350]), loss_func=LOSS, **given)


def ended(rate, **settings):
    learn = of_digits(learning_rate=rate, **settings)
    learn.train()
    return learn.evaluate()["eval_loss"]


# --- the suggestion ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("optim", ["adamw_torch", "sgd"])
@pytest.mark.parametrize("evaluated", [True, False])
def test_training_with_the_suggestion(optim, evaluated):
    "It ends near the best of a grid, with and without evaluation data; where `valley` ends is far away for SGD."
    learn = of_digits(optim=optim, evaluated=evaluated)
    found = learn.lr_find()
    grid = {power: ended(candidate(power), optim=optim) for power in ((-5, -4, -3) if "adamw" in optim else (-1, 0, 1))}
    assert found.reason == "" and ended(found.suggestion, optim=optim) <= 1.1 * min(grid.values())
    if optim == "sgd": assert ended(found.valley, optim=optim) > 2 * min(grid.values())


@pytest.mark.parametrize("settings", [dict(shuffled=True), dict(shuffled=True, evaluated=False), dict(shuffled=True, optim="sgd")])
def test_labels_that_cannot_be_learned(settings):
    "No suggestion; the reason has the numbers, and what to type. apply() gives the same."
    learn = of_digits(**settings)
    before = learn.snapshot()
    found = learn.lr_find()
    assert found.suggestion is None and "no candidate lowered the loss" in found.reason and "learn.lr_find(trial_steps=" in found.reason
    with pytest.raises(ValueError, match=r"There is no suggestion: no candidate lowered the loss.*trial_steps="): found.apply()
    assert f"No suggestion: {found.reason}" in repr(found) and not differences(before, learn.snapshot())


def test_a_suggestion_beside_a_curve_of_noise():
    "The words about the curve do not contradict the suggestion, which comes from the trials."
    rates = [10 ** (-7 + i / 10) for i in range(20)]
    found = LRFindResult(rates, [1 + 0.1 * (-1) ** i for i in range(20)], 20, False)
    assert not found.answer
    text = repr(found.with_trials([Trial(1e-2, 0.5, 9), Trial(1e-1, 0.8, 9)], 1e-2, ""))
    assert "Suggestion: 0.01" in text and "a suggestion would" not in text and "The suggestion above comes from the trials." in text
    text = repr(found.with_trials([Trial(1e-2, 0.5, 9)], None, "every rate was too high"))
    assert "No suggestion" in text and "suggestion above" not in text


def test_rates_that_are_all_too_low_or_too_high():
    "The best candidate has no neighbour that is worse: no suggestion, and where to go on."
    low, high = of_digits().lr_find(start=1e-6, end=1e-3), of_digits(optim="sgd").lr_find(start=2e4, end=1e7)
    assert low.suggestion is None and "is the highest that was tried; learn.lr_find(end=0.1) goes higher" in low.reason
    assert high.suggestion is None and "learn.lr_find(start=" in high.reason
    assert of_digits().lr_find(start=1.1e-3, end=2e-3).reason.startswith("there is no candidate between 1.1e-3 and 2e-3")


def test_a_first_loss_that_is_not_finite():
    "No trials, and the reason of the curve."
    model = perceptron()
    nn.init.constant_(model[0].weight, math.nan)
    found = Learner(model, train_dataset=digits(), loss_func=LOSS, use_cpu=True, max_steps=10, disable_tqdm=True).lr_find()
    assert found.suggestion is None and found.trials == [] and "very first loss is nan" in found.reason
    with pytest.raises(ValueError, match="very first loss"): found.apply()


KNOWN = {-8: 2.2, -7: 1.5, -6: 0.4, -5: 0.2, -4: 0.1, -3: 0.15, -2: math.inf, -1: math.inf, 0: math.inf}

@pytest.mark.parametrize("first", KNOWN)
def test_the_search_ends_at_the_best_candidate(first):
    "From wherever it starts, with its two neighbours known, and without trying one twice."
    tried = {first: KNOWN[first]}
    while (power := next_candidate(tried, min(KNOWN), max(KNOWN))) is not None:
        assert power not in tried
        tried[power] = KNOWN[power]
    assert {-5, -4, -3} <= set(tried) and len(tried) <= MAX_TRIALS
    trials = [Trial(candidate(power), loss, 10) for power, loss in tried.items()]
    assert judge_trials(trials, Untrained(2.3), 1e-5, 10, 10) == (candidate(-4), "")
    # 0.2 is as good as 0.1 where training gains ten
    assert judge_trials(trials, Untrained(10.2), 1e-5, 10, 10) == (candidate(-5), "")


def test_candidates_of_a_range():
    assert candidate_range(1e-7, 10) == (-14, 2) and candidate_range(1e-4, 1) == (-8, 0) and candidate_range(0.002, 0.003) == (-5, -6)
    assert [candidate(power) for power in (-2, 0, 2)] == [0.1, 1, 10]


# --- a trial -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("settings", [{}, dict(lr_scheduler_type="cosine", warmup_steps=20), dict(lr_scheduler_type="constant")])
def test_a_trial_is_a_short_version_of_the_run(settings):
    "The rates are those of the schedule, at every nth step."
    learn = of_digits(**settings, learning_rate=1e-2)
    learn.lr_find(num_steps=10, trial_steps=0)   # prepares the run
    wanted = [learn.lr_scheduler.lr_lambdas[0](4 * i) for i in range(20)]
    assert compressed_schedule(learn.run_state, 20) == wanted


def test_a_trial_over_the_whole_run_is_the_run():
    "With as many steps as the run, it ends with the loss that training ends with."
    learn = of_digits(learning_rate=1e-2, max_steps=20, per_device_eval_batch_size=64)
    trial = try_rate(learn, 1e-2, 20)
    assert trial == Trial(1e-2, pytest.approx(ended(1e-2, max_steps=20), rel=1e-6), 20)


def test_a_schedule_in_decline():
    "In the middle of a cosine the candidates are rates of the next step, and the setting is lr."
    learn = of_digits(lr_scheduler_type="cosine", learning_rate=1e-2)
    learn.step(50)
    found = learn.lr_find()
    assert found.setting[0] == "lr" and found.suggestion is not None and "found.apply() lets the next step use" in repr(found)
    found.apply()
    assert learn.optimizer.param_groups[0]["lr"] == pytest.approx(found.suggestion)
    record, = learn.step(1)
    assert record.learning_rate == pytest.approx(found.suggestion)


def test_evaluation_losses_are_those_of_evaluate():
    "The mean over all samples, several data sets: the first one. No callback is called, and nothing is logged."
    learn = of_digits(per_device_eval_batch_size=50)
    loss = learn.evaluate()["eval_loss"]
    logs = len(learn.state.log_history)
    assert held_out_loss(learn) == pytest.approx(loss, rel=1e-6) and len(learn.state.log_history) == logs
    learn.eval_dataset = {"a": learn.eval_dataset, "b": TensorDataset(*digits()[:10])}
    assert held_out_loss(learn) == pytest.approx(loss, rel=1e-6)
    learn.eval_dataset = None
    assert held_out_loss(learn) is None


# --- no trace ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("settings", [dict(eval_dataset=Augmented(10)), dict(eval_dataset=Augmented(10), dataloader_num_workers=1)])
def test_evaluations_leave_no_trace(settings):
    learn, like = hard_learner(**settings), hard_learner(**settings)
    learn.step(2)
    before = learn.snapshot()
    found = learn.lr_find(num_steps=12, start=1e-4, end=1)
    assert len(found.trials) > 1 and found.steps == len(found.rates) + sum(trial.steps for trial in found.trials)
    assert not differences(before, learn.snapshot()) and not unequal(finish(learn), finish(like))


@pytest.mark.parametrize("kind", [Boom, KeyboardInterrupt])
@pytest.mark.parametrize("place, after", [("forward", 60), ("getitem", 150)])
def test_a_trial_that_fails(kind, place, after):
    "An error or a press of the button in a trial: the run is unchanged, and goes on."
    bomb = Bomb(kind=kind)
    learn = hard_learner(hook=bomb)
    learn.step(2)
    before = learn.snapshot()
    bomb.name, bomb.times = place, (bomb.counts[place] + after,)
    wanted, said = (Paused, "The run is unchanged") if kind is KeyboardInterrupt else (Boom, place)
    with pytest.raises(wanted, match=said): learn.lr_find(num_steps=12, start=1e-4, end=1)
    assert bomb.counts[place] >= bomb.times[0] and not differences(before, learn.snapshot())
    assert not unequal(finish(learn), finish(hard_learner()))


# --- what sets the rate ------------------------------------------------------------------------------------------------

def test_apply_is_a_recorded_setting():
    "It returns what learn.set() returns; a rule's rate by its name."
    learn = of_digits()
    found = learn.lr_find()
    changes = found.apply()
    assert [(c["name"], c["after"]) for c in changes] == [("learning_rate", found.suggestion)] and learn.args.learning_rate == found.suggestion
    assert any(event["kind"] == "set" and "learning_rate" in str(event) for event in learn.history.events)
    found.apply("steep")
    assert learn.args.learning_rate == found.steep
    with pytest.raises(ValueError, match="no rate of 'best', only of valley, slide, minimum, steep"): found.apply("best")
    learn.set(learning_rate=found.suggestion)
    learn.train()


def test_apply_in_a_warm_up_and_with_groups():
    "The base of the schedule; the groups keep their ratios."
    learn = hard_learner(layer_groups=["inner", "norm", "outer"], learning_rate=[1e-3, 3e-3, 5e-3, 1e-2], warmup_steps=4, lr_scheduler_type="linear")
    learn.step(1)
    found = learn.lr_find(num_steps=12)
    found.suggestion = 0.02   # whatever the trials say
    found.apply()
    assert [g["initial_lr"] for g in learn.optimizer.param_groups] == pytest.approx([0.02 * r for r in found.ratios])


def test_apply_without_the_learner():
    "The result does not keep it, and can be sent elsewhere."
    found = of_digits().lr_find()
    with pytest.raises(InvalidOperation, match=rf"is gone.*learn\.set\(learning_rate={found.suggestion:.3g}\)"): found.apply()
    learn = of_digits()
    sent = pickle.loads(pickle.dumps(learn.lr_find(suggest="valley")))
    with pytest.raises(InvalidOperation, match="is gone"): sent.apply()
    sent.attach(learn).apply()
    assert learn.args.learning_rate == sent.suggestion == found.suggestion


def test_without_trials():
    "Only the curve and the rules: the steps of the curve, and what to type."
    found = of_digits().lr_find(trial_steps=0)
    assert found.suggestion is None and found.trials == [] and found.steps == len(found.rates) and "found.apply('valley')" in repr(found)
    with pytest.raises(ValueError, match=r"trial_steps=0; learn.lr_find\(\) trains some. found.apply\('valley'\) sets a rule's rate"): found.apply()


# --- what is shown -----------------------------------------------------------------------------------------------------

def test_text_and_plots():
    "The cost in steps, the suggestion with the losses of the trials, and both plots with the suggestion and the candidates."
    learn = of_digits()
    found = learn.lr_find()
    text = repr(found)
    assert f"{len(found.trials)} candidates trained for 40 steps each: {found.steps} steps in all." in text
    assert f"found.apply() sets it from the next step on: learn.set(learning_rate={found.suggestion:.3g})" in text and "Rules on the curve: valley" in text
    curve, trials = found.panels()
    marked = {mark.x for mark in curve.things if type(mark).__name__ == "Marker"}
    assert {trial.rate for trial in found.trials} <= marked and trials.title == "Loss after a trial"
    assert sum(len(line.x) for line in trials.things if getattr(line, "style", "") == "points") == sum(math.isfinite(t.loss) for t in found.trials)
    bundle = found.bundle()
    assert "suggestion" in bundle[SVG_MIME]
    # both themes: no colour that a light or a dark background hides
    assert not re.search(r"#000\b|#000000|#fff\b|#ffffff|black|white", bundle[SVG_MIME])


def test_the_suggestion_lies_above_the_rules_in_the_plot():
    "It is drawn last, with a line of its own; the rules are points, and the candidates lines with their rates."
    trials = [Trial(1e-3, 0.2, 5), Trial(1e-2, 0.19, 5), Trial(1e-1, 0.3, 3)]
    rates = np.logspace(-5, 0, 60)
    losses = np.interp(np.log10(rates), [-5, -3.5, -2, -1, 0], [2.3, 2.3, 1, 0.9, 3])
    found = LRFindResult(rates, losses, 60, False).with_trials(trials, 1e-2, "")
    curve = found.panels()[0]
    points = [line for line in curve.of(LineSeries) if line.style == "points"]
    assert {line.name for line in points} == {"suggestion", *(name for name, rate in found.suggestions.items() if rate)} and points[-1].name == "suggestion"
    marks = curve.of(Marker)
    assert [(mark.x, mark.word) for mark in marks if mark.y is None] == [(1e-3, "1e-3"), (1e-1, "0.1"), (1e-2, "suggestion 0.01")]
    assert marks[-1] == Marker(1e-2, "", points[-1].y[0], points[-1].color)
    # without trials nothing is suggested, and the rules have lines
    alone = LRFindResult(rates, losses, 60, False).panels()[0]
    assert {mark.x for mark in alone.of(Marker)} == {rate for rate in found.suggestions.values() if rate}


def test_all_trials_diverged():
    found = LRFindResult([1.0, 2.0], [2.0, 2.1], 10, False).with_trials([Trial(1.0, math.inf, 3)], *judge_trials([Trial(1.0, math.inf, 3)], Untrained(2.0), 1, 2, 5))
    assert "every candidate from 1 to 1 diverged" in repr(found) and len(found.panels()) == 1

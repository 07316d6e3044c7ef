"Plots of a part of the steps, and with a panel for each run."
import math

import numpy as np
import pytest
import torch

from trainer_nb import Learner
from trainer_nb.core.history import History
from trainer_nb.display.panels import Heatmap, LineSeries, Marker, centered_moving_average
from trainer_nb.live.curves import plot_histories
from trainer_nb.state.branch import Comparison, copy_history


def take(history, first, last, loss=lambda step: 100 / step):
    for step in range(first, last + 1): history.append(step, step / 10, 0.1, 8, float(len(history)), loss(step), 1.0)
    return history


def branched(parent, name):
    "A branch that begins at the last step of its parent."
    child = copy_history(parent, name)
    for one, other in ((parent, child), (child, parent)):
        one.note("branch", parent.current[-1].step, run=other.run_id, changes={}, into=child.run_id)
    return child


@pytest.fixture
def family():
    "A run that went back from step 30 to step 20, two branches from there, and a branch of the first one."
    main = take(History("main"), 1, 20)
    place = main.place()
    take(main, 21, 30, lambda step: 1000.0)
    main.note("evaluate", 30, eval_loss=7.0)
    main.abandon(place)
    main.note("rewind", 20, steps=10)
    one, two = branched(main, "one"), branched(main, "two")
    take(one, 21, 40)
    inner = branched(one, "inner")
    take(two, 21, 25, lambda step: 9.0)
    take(inner, 41, 45)
    two.note("evaluate", 25, eval_loss=8.0)
    return main, one, two, inner


def lines(panel): return {line.name: line for line in panel.of(LineSeries) if line.name}
def ends(line): return int(np.min(line.x)), int(np.max(line.x))


def test_the_smoothed_line_begins_with_the_first_loss():
    "Near the beginning, as many values after a step count as before it; the last one averages over those before it."
    loss = np.random.default_rng(0).normal(2, 1, 60)
    loss[[0, 1, 20]] = math.nan
    mean, steps = centered_moving_average(loss, 0.9, width=2), np.arange(60)
    for i in (2, 3, 10, 30, 58, 59):
        near = np.isfinite(loss) & (steps - i <= i - 2)
        weights = 0.9 ** (2 * np.abs(steps - i))[near]
        assert mean[i] == pytest.approx(weights @ loss[near] / weights.sum())
    assert mean[2] == pytest.approx(loss[2]) and np.isfinite(mean).all()


def test_a_part_of_the_steps():
    history = take(History("a"), 1, 100)
    for step in (20, 50, 80): history.note("evaluate", step, eval_loss=step / 10, eval_accuracy=0.5)
    for step in (10, 60, 90): history.note("set", step, lr=step / 100)
    for kind in ("add_callback", "remove_callback"): history.note(kind, 50, callback="Seen")   # in the journal, not in the picture
    whole, part = (plot_histories([history], steps=steps).panels() for steps in (None, (40, 70)))
    assert [panel.title for panel in part] == ["Loss", "eval_accuracy", "Learning rate", "Gradient norm"]
    assert ends(lines(part[0])["each step"]) == (40, 70) and lines(part[0])["eval_loss"].x.tolist() == [50]
    # the mean of a step does not depend on the part that is drawn, but for the axis that suits it
    whole = plot_histories([history], log=False).panels()
    assert np.array_equal(lines(part[0])["smoothed"].y, lines(whole[0])["smoothed"].y[39:70])
    assert [mark.word for mark in part[0].of(Marker)] == ["set lr=0.6"] and len(whole[0].of(Marker)) == 3
    assert {panel.x_span for panel in part} == {(40, 70)} and whole[0].x_span is None
    for steps in (range(40, 71), [40, 70], np.array([40, 70]).tolist()):
        assert ends(lines(plot_histories([history], steps=steps).panels()[0])["each step"]) == (40, 70)
    assert [ends(lines(plot_histories([history], ["loss"], steps=o).panels()[0])["each step"]) for o in [(90, None), (None, 3), (7, 7)]] == [(90, 100), (1, 3), (7, 7)]
    by_epoch = plot_histories([history], ["loss"], "epoch", 0, steps=(40, 70)).panels()[0]
    assert by_epoch.x_span == (4.0, 7.0)
    assert repr(plot_histories([history], steps=(200, 300))) == "There is nothing to draw from step 200 to 300: the last step so far is 100."
    assert "from step 200 to the end: the" in repr(plot_histories([history], steps=(200, None)))
    assert "done no step" in repr(plot_histories([History("new")], steps=(200, None)))


@pytest.mark.parametrize("steps,error,words", [
    (50, TypeError, r"steps=50 is not a range of steps; .*steps=\(140, 230\)"), ((1, 2, 3), TypeError, "not a range"), ("1-2", TypeError, "not a range"),
    (range(0), TypeError, "not a range"), (slice(1, 2), TypeError, "not a range"), ((1.5, 2), TypeError, "whole numbers"), ((True, 2), TypeError, "whole numbers"),
    ((-50, None), ValueError, "not from the end"), ((9, 3), ValueError, "first step is above the last")])
def test_what_is_no_range_of_steps(steps, error, words):
    for plot in (lambda: plot_histories([take(History("a"), 1, 9)], steps=steps), lambda: Comparison().plot(steps=steps)):
        with pytest.raises(error, match=words): plot()


def test_metrics_that_are_not_drawn_are_named():
    "Those of evaluations come first."
    history = take(History("a"), 1, 20)
    history.note("log", 10, **{f"part_{i}": 1.0 for i in range(9)})
    history.note("evaluate", 20, eval_loss=1.0, eval_accuracy=0.5)
    chart = plot_histories([history])
    assert [panel.title for panel in chart.panels()][:3] == ["Loss (log)", "eval_accuracy", "part_0"] and len(chart.panels()) == 7
    assert chart.said() == ["6 more metrics are not drawn, such as part_3, part_4, part_5, part_6, part_7; plot('part_3') draws one."]
    assert plot_histories([history], ["loss"]).said() == []


def test_discarded_steps_of_a_part(family):
    main, one, *_ = family
    def drawn(*steps): return lines(plot_histories([main, one], ["loss"], smooth=0, steps=steps).panels()[0])
    assert ends(drawn(15, 25)["discarded"]) == (21, 25) and ends(drawn(15, 25)["one"]) == (20, 25)
    assert "discarded" not in drawn(1, 9) and "discarded" not in drawn(35, 40)


def test_heat_maps_of_a_part():
    x = torch.randn(64, 4)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    learn = Learner(model, train_dataset=data, loss_func=torch.nn.functional.mse_loss, use_cpu=True, disable_tqdm=True, max_steps=20)
    learn.watch(every=1)
    learn.step(10)
    panel, loss = learn.plot("dead", "loss", steps=(3, 6)).panels()
    heat, = panel.of(Heatmap)
    assert list(heat.x) == [3, 4, 5, 6] and np.asarray(heat.values).shape[1] == 4 and ends(loss.of(LineSeries)[0]) == (3, 6)
    assert "nothing to draw" in repr(learn.plot("dead", steps=(50, 60)))


def test_a_part_of_a_comparison():
    rows = [{"step": step, "one": 1.0, "other": 1.0 if step < 8 else 2.0, "difference": 0.0 if step < 8 else 1.0} for step in range(1, 21)]
    result = Comparison(rows)
    result.parted, result.names = 8, ("a", "b")
    loss, apart = result.plot(steps=(5, 12)).panels()
    assert [ends(line) for line in loss.named()] == [(5, 12), (7, 12)] and loss.x_span == apart.x_span == (5.0, 12.0)
    assert [mark.x for mark in loss.of(Marker)] == [8] and ends(result.plot().panels()[0].named()[0]) == (1, 20)
    after, _ = result.plot(steps=(10, None)).panels()
    assert [ends(line) for line in after.named()] == [(10, 20), (10, 20)] and after.of(Marker) == []
    # before the runs diverge, there is no difference to draw
    before, = result.plot(steps=(None, 5)).panels()
    assert ends(before.named()[0]) == (1, 5)
    assert "no step in common there" in repr(result.plot(steps=(30, 40)))

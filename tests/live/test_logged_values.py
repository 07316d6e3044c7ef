"Values that a user logs are columns of the history, in tables, charts, logs and views; runs side by side keep name and colour."
import json, math

import numpy as np
import pytest
import torch

from trainer_nb import Learner, TrainerCallback, compare
from trainer_nb.core.history import History, read_history
from trainer_nb.live.blocks import MetricPoints
from trainer_nb.live.curves import plot_histories
from trainer_nb.live.view_model import LearnerSource, ViewModel
from toys import Augmented, hard_learner


class LogsInStep(Learner):
    "Logs a value in each step, as scripts of reinforcement learning do."
    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        self.log({"aux/kl": self.state.global_step / 10})
        return loss


class LogsAfterStep(TrainerCallback):
    def on_step_end(self, args, state, control, learner=None, **kwargs):
        if state.global_step % 2 == 0: learner.log({"aux/reward": torch.tensor(float(state.global_step))})


def test_values_logged_in_a_step_a_callback_and_a_cell_are_columns(tmp_path):
    learn = hard_learner(LogsInStep, callbacks=[LogsAfterStep()], max_steps=6, output_dir=str(tmp_path), save_strategy="no")
    learn.step(4)
    learn.log({"note": 7, "who": "me"})
    learn.train()
    history = learn.history
    assert history.column("aux/kl").tolist() == [0, 0.1, 0.2, 0.3, 0.4, 0.5]
    np.testing.assert_array_equal(history.column("aux/reward"), [math.nan, 2, math.nan, 4, math.nan, 6])
    np.testing.assert_array_equal(history.column("note"), [math.nan] * 3 + [7] + [math.nan] * 2)
    assert history.frame()["aux/kl"].tolist() == history.column("aux/kl").tolist()
    assert "aux/kl" in repr(history[:]) and "who" not in history[3].metrics
    # what the loop logs itself is no column twice, nor is the summary at the end
    assert set().union(*history.metrics.values()) == {"aux/kl", "aux/reward", "note"}
    with pytest.raises(KeyError, match="Did you mean 'aux/kl'"): history.column("aux/lk")
    history.flush()
    back = read_history(history.path)
    assert back.metrics == history.metrics and back.column("note")[3] == 7


class LogsLoss(Learner):
    "Logs its loss, also in evaluations."
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        loss = self.named(loss)
        self.log({"labels": float(inputs["labels"].sum()), "note": "text"})
        if model.training and self.args.process_index == 0: self.log({"rank 0": 1.0})
        return (loss, outputs) if return_outputs else loss

    def named(self, loss):
        self.log({"part": loss})
        return loss


class NamesLoss(LogsLoss):
    "Returns its loss under a second name, too, and a term that every third micro-batch has."
    def named(self, loss):
        self.count = getattr(self, "count", 0) + 1
        return {"loss": loss, "part": loss} | ({"rare": 10.0} if self.count % 3 == 1 else {})


@pytest.mark.parametrize("cls", [LogsLoss, NamesLoss])
def test_values_of_a_loss_are_means_and_those_of_evaluations_are_metrics(cls):
    "The mean over micro-batches is the loss of the step; an evaluation's is its loss; neither changes the other, nor does a look at samples."
    learn = hard_learner(cls, logging_steps=1, eval_dataset=Augmented(10), eval_strategy="steps", eval_steps=2, max_steps=5, gradient_accumulation_steps=3,
                         metric_for_best_model="part", greater_is_better=False, compute_metrics=lambda p: learn.log({"seen": len(p.label_ids)}) or {})
    learn.train()
    rows = [row for row in learn.state.log_history if "part" in row]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5] and {row.get("note", "text") for row in rows} == {"text"}
    np.testing.assert_allclose(learn.history.column("part"), learn.history.column("loss"), rtol=1e-6)
    if cls is NamesLoss: assert learn.history.column("rare").tolist() == [10] * 5
    evaluations = [row for row in learn.state.log_history if "eval_loss" in row]
    assert [row["eval_part"] for row in evaluations] == [row["eval_loss"] for row in evaluations] and evaluations[0]["eval_seen"] == 10
    assert learn.state.best_metric == min(row["eval_loss"] for row in evaluations)
    before, logged = learn.history.column("part").tolist(), len(learn.state.log_history)
    found, out = learn.evaluate(Augmented(6)), learn.predict(Augmented(6))
    learn.top_losses(2)
    assert found["eval_part"] == found["eval_loss"] == out.metrics["test_part"] and out.metrics["test_note"] == "text"
    assert learn.history.column("part").tolist() == before and len(learn.state.log_history) == logged + 1


def test_a_value_that_is_written_over_keeps_what_was_logged():
    class Counts(Learner):
        def compute_loss(self, model, inputs, **more):
            self.count = getattr(self, "count", torch.zeros(())).add_(1)
            self.log({"count": self.count})
            return super().compute_loss(model, inputs, **more)
    learn = hard_learner(Counts, max_steps=2, gradient_accumulation_steps=3)
    learn.train()
    assert learn.history.column("count").tolist() == [2, 5]


@pytest.mark.parametrize("cls, every", [(LogsLoss, 1), (NamesLoss, 1), (NamesLoss, 500)])
@pytest.mark.xdist_group("launch")
def test_values_of_a_loss_are_means_over_processes(cls, every, tmp_path):
    "Also where only one process logs a value, and where the interval of a log is left and gone on with by a checkpoint and a snapshot."
    one, two = (hard_learner(cls, logging_steps=every, include_num_input_tokens_seen="all", eval_dataset=Augmented(10), max_steps=3, gradient_accumulation_steps=2, per_device_train_batch_size=size) for size in (8, 4))
    two.launch(2)
    try:
        if every > 1:
            two.step()
            two.close()
            two.launch(2)
            two.step()
            two.save_checkpoint(tmp_path / "here")
            two.load_checkpoint(tmp_path / "here")
        two.train()
        found = two.evaluate()
    finally: two.close()
    one.train()
    losses = two.history.column("loss")
    np.testing.assert_allclose(two.history.column("part"), losses if every == 1 else [math.nan, math.nan, losses.mean()], rtol=1e-5)
    assert found["eval_part"] == pytest.approx(found["eval_loss"], rel=1e-6)
    np.testing.assert_allclose(2 * two.history.column("labels"), one.history.column("labels"), rtol=1e-5)
    assert len(two.history.column("rank 0")) == 3


def test_they_are_drawn_in_charts_and_sent_to_views():
    learn = hard_learner(LogsInStep, callbacks=[LogsAfterStep()], max_steps=80)
    learn.step(70)
    titles = [panel.title for panel in learn.plot().panels()]
    assert "aux/kl" in titles and "aux/reward" in titles
    # what the user logged is drawn as it is; of many values without a point for each
    assert [list(line.y) for line in learn.plot("aux/kl").panels()[0].named()] == [learn.history.column("aux/kl").tolist()]
    assert [line.style for line in learn.plot("aux/reward").panels()[0].things[:2]] == ["line", "points"]
    view = ViewModel([LearnerSource(learn)])
    content, _ = view.message(full=True)
    points = content["metrics"][learn.history.run_id]
    assert [p[0] for p in points["aux/reward"]] == [*range(2, 71, 2)] and points["aux/kl"][-1][3] == pytest.approx(6.9)


def test_a_rewind_takes_them_back():
    learn = hard_learner(LogsInStep, max_steps=20)
    learn.step(8)
    points = MetricPoints()
    points.update(learn.history)
    learn.rewind(4)
    learn.step(1)
    points.update(learn.history)
    assert [p[0] for p in points.points(learn.history)["aux/kl"]] == [1, 2, 3, 4, 5]


def test_a_value_of_every_step_of_a_long_run_is_condensed_and_keeps_its_extremes():
    history = History()
    for step in range(1, 5001):
        history.append(step, step / 100, 1e-3, 8, 0.01 * step, 1.0)
        history.note("log", step, aux=100.0 if step == 2222 else math.sin(step))
    read = MetricPoints()
    read.update(history)
    points = read.points(history)["aux"]
    assert len(points) < 300 and max(p[3] for p in points) == 100.0 and points[-1][0] == 5000
    assert json.dumps(points)


def test_logged_names_of_the_loop_are_left_alone():
    history = History()
    history.append(1, 0.1, 1e-3, 8, 0.1, 0.5)
    history.note("log", 1, loss=3.0, grad_norm=2.0, learning_rate=1.0, epoch=0.1, flag=True)
    history.note("log", 1, train_runtime=1.0, train_loss=0.5, total_flos=7)
    assert history[0].loss == 0.5 and history[0].metrics == {"flag": True}


def test_runs_side_by_side_keep_name_and_colour():
    learn = hard_learner(max_steps=30, run_name="baseline")
    learn.step(4)
    hot = learn.branch(lr=0.5)
    named = learn.branch(run_name="named", learning_rate=0.2)
    for one in (hot, named): one.step(3)
    def lines(chart): return {line.name: line.color for line in chart.panels()[0].things if line.name}
    all_three = lines(learn.plot("loss", also=[hot, named]))
    assert list(all_three) == ["baseline", "branch lr=0.5", "named"]
    assert lines(learn.plot("loss", also=[named]))["named"] == all_three["named"]
    view = ViewModel([LearnerSource(learn)])
    content, _ = view.message(full=True)
    assert {run["label"]: run["color"] for run in content["runs"]} == all_three
    assert len(set(all_three.values())) == 3
    assert "base lr" in compare(learn, hot).settings


def test_compare_names_the_learning_rate_of_a_branch():
    learn = hard_learner(max_steps=30)
    learn.step(4)
    other = learn.branch(lr=0.5)
    assert compare(learn, other).settings["lr"][1] == 0.5 and "lr" in compare(learn, other).title()
    for one in (learn, other): one.step(3)
    table = compare(learn, other)
    assert table.parted == 6 and table.settings == {"lr (step 5)": (learn.history[4].learning_rate, other.history[4].learning_rate)}
    assert "same settings" not in table.title() and "same settings" in compare(learn, learn.branch()).title()


def test_runs_without_a_name_are_named_alike_everywhere():
    one, other = hard_learner(max_steps=5), hard_learner(max_steps=5)
    for learn in (one, other): learn.step(3)
    chart = plot_histories([one, other])
    names = [line.name for line in chart.panels()[0].things if line.name]
    assert names == [f"Hard ({o.history.run_id[:4]})" for o in (one, other)]

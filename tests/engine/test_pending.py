"Manual calls between two steps neither consume the tasks that the run still has to do nor add to them."
import signal

import pytest

from toys import SETTINGS, Augmented, Boom, accuracy, finish, hard_learner, outcome, unequal
from trainer_nb import Learner, Paused, TrainerCallback


class Once:
    "Raise the first time that it is called."
    def __init__(self): self.armed = True

    def __call__(self):
        armed, self.armed = self.armed, False
        if armed: raise Boom("once")


class FailsAt(TrainerCallback):
    "Raise, once, in the event of a step."
    not_state = ("order", "once", "step")
    def __init__(self, event, step, order=0):
        self.order, self.once, self.step = order, Once(), step
        setattr(self, event, self.fail)

    def fail(self, args, state, control, **kwargs):
        if state.global_step == self.step: self.once()


def plateau(folder, **given):
    "A run whose weights depend on every evaluation, log and best model."
    settings = dict(lr_scheduler_type="reduce_lr_on_plateau", lr_scheduler_kwargs={"patience": 0, "threshold": 1.0}, warmup_steps=0,
                    eval_strategy="steps", eval_steps=2, logging_steps=2, num_train_epochs=3, metric_for_best_model="loss",
                    load_best_model_at_end=True, save_strategy="steps", save_steps=2, output_dir=str(folder))
    return hard_learner(eval_dataset=Augmented(10), compute_metrics=accuracy, **settings | given)


class Counts(TrainerCallback):
    "Count the evaluations and logs of the loop and of the user."
    not_state = ("evaluated", "logged", "saved")
    def __init__(self): self.evaluated, self.logged, self.saved = [], [], []
    def on_evaluate(self, args, state, control, **kwargs): self.evaluated.append(state.global_step)
    def on_log(self, args, state, control, logs, **kwargs): self.logged.extend(state.global_step for k in logs if k == "loss")
    def on_save(self, args, state, control, **kwargs): self.saved.append(state.global_step)


MANUAL = {"evaluate": lambda learn, folder: learn.evaluate(), "another set": lambda learn, folder: learn.evaluate(Augmented(6)),
          "log": lambda learn, folder: learn.log({"mine": 1.0}), "predict": lambda learn, folder: learn.predict(Augmented(6)),
          "save": lambda learn, folder: learn.save_checkpoint(str(folder / "mine")), "snapshot": lambda learn, folder: learn.snapshot()}


class FailsIn(Learner):
    "An override that fails once in the loop's own evaluation or log at step 2."
    place, not_state = "", ("place", "once")
    def log(self, logs, *args):
        if self.place == "log" and "loss" in logs: self.once()
        super().log(logs, *args)

    def evaluate(self, *args, **kwargs):
        if self.place == "evaluate": self.once()
        return super().evaluate(*args, **kwargs)


def failing(place, folder, counts):
    "A learner that stops at step 2, with tasks of this step still to be done."
    if place.startswith("on_"): return plateau(folder, callbacks=[FailsAt(place, 2, order=-1), counts])
    learn = plateau(folder, cls=FailsIn, callbacks=[counts])
    learn.place, learn.once = place, Once()
    return learn


@pytest.mark.parametrize("manual", MANUAL)
@pytest.mark.parametrize("place", ["evaluate", "log", "on_step_end", "on_log", "on_evaluate"])
def test_manual_calls_leave_pending_tasks_alone(tmp_path, place, manual):
    calm = Counts()
    want = finish(plateau(tmp_path / "calm", callbacks=[calm]))
    counts = Counts()
    learn = failing(place, tmp_path / "run", counts)
    with pytest.raises(Boom): learn.train()
    assert learn.state.global_step == 2
    MANUAL[manual](learn, tmp_path)
    for kept in vars(counts).values(): kept[:] = [step for step in kept if step != 2]
    before = len(counts.evaluated), len(counts.logged)
    learn.train()
    assert unequal(outcome(learn)[:2] + ([],), want[:2] + ([],), ignore=("args", "state")) == []
    assert (learn.state.best_metric, learn.state.best_global_step) == (want[0].values["state"].best_metric, want[0].values["state"].best_global_step)
    due_again = {"evaluate": (1, 0), "log": (1, 1), "on_step_end": (1, 1), "on_log": (1, 1), "on_evaluate": (1, 0)}[place]
    assert counts.evaluated.count(2) == due_again[0] and counts.logged.count(2) == due_again[1] and before == (0, 0)
    assert [s for s in counts.evaluated if s > 2] == [s for s in calm.evaluated if s > 2] and counts.saved[-2:] == calm.saved[-2:]


@pytest.mark.parametrize("manual", MANUAL)
def test_manual_calls_after_an_interrupt(tmp_path, manual):
    "Two presses within the loop's evaluation; then the user evaluates by hand, and goes on."
    class Pressed(TrainerCallback):
        todo = True
        def on_prediction_step(self, args, state, control, learner, **kwargs):
            if not self.todo or state.global_step != 2: return
            Pressed.todo = False
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
    want = finish(plateau(tmp_path / "calm"))
    learn = plateau(tmp_path / "run", callbacks=[Pressed()])
    with pytest.raises(Paused): learn.train()
    MANUAL[manual](learn, tmp_path)
    learn.train()
    assert unequal(outcome(learn)[:2] + ([],), want[:2] + ([],), ignore=("args", "state", "callbacks")) == []
    assert learn.state.best_global_step == want[0].values["state"].best_global_step


@pytest.mark.parametrize("verb", ["evaluate", "log"])
def test_calls_from_callbacks_do_not_answer_the_wishes_of_the_loop(verb):
    "A callback that logs or evaluates at every step takes nothing from the logs and evaluations that the settings ask for."
    class Looks(TrainerCallback):
        order = 5
        def on_step_end(self, args, state, control, learner, **kwargs):
            if verb == "log": learner.log({"mine": state.global_step})
            else: learner.evaluate(Augmented(6), metric_key_prefix="mine")
    given = dict(eval_dataset=Augmented(10), eval_strategy="steps", eval_steps=2, metric_for_best_model="loss", logging_steps=2)
    calm, learn = hard_learner(**given), hard_learner(callbacks=[Looks()], **given)
    calm.train()
    learn.train()
    for name in ("loss", "eval_loss"):
        assert [(r["step"], r[name]) for r in learn.state.log_history if name in r] == [(r["step"], r[name]) for r in calm.state.log_history if name in r]
    assert learn.state.best_global_step == calm.state.best_global_step


@pytest.mark.parametrize("event", ["on_evaluate", "on_log"])
def test_a_manual_call_that_fails_leaves_nothing_to_do(event):
    "The other callbacks are called all the same, the error is raised, and the run has no task that it did not have before."
    heard = []
    class Hears(TrainerCallback):
        order = 5
        def on_evaluate(self, args, state, control, **kwargs): heard.append("on_evaluate")
        def on_log(self, args, state, control, **kwargs): heard.append("on_log")
    learn = hard_learner(eval_dataset=Augmented(10), callbacks=[FailsAt(event, 1, order=-1), Hears()], logging_steps=100)
    learn.step()
    with pytest.raises(Boom): learn.evaluate()
    assert heard == ["on_log", "on_evaluate"] and learn.snapshot().values["due"] == []
    learn.step()
    assert heard == ["on_log", "on_evaluate"]


def test_wishes_in_a_manual_call_are_not_the_loops():
    "What a callback asks for when the user looks is not granted later instead of, or besides, what the run had to do."
    class Asks(TrainerCallback):
        def on_evaluate(self, args, state, control, **kwargs): control.should_log = control.should_evaluate = True
    calm = hard_learner(eval_dataset=Augmented(10), **SETTINGS | dict(logging_steps=2))
    calm.train()
    learn = hard_learner(eval_dataset=Augmented(10), callbacks=[Asks(), FailsAt("on_step_end", 1)], **SETTINGS | dict(logging_steps=2))
    with pytest.raises(Boom): learn.train()
    learn.evaluate()
    learn.train()
    rows = [[r["step"] for r in o.state.log_history if "loss" in r] for o in (learn, calm)]
    assert rows[0] == rows[1] and sum("eval_loss" in r for r in learn.state.log_history) == 1

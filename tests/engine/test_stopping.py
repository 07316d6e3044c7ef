"Ending a run before its end: what belongs to the end is done, and nothing else is changed."
import pytest

from toys import Augmented, finish, hard_learner, outcome, unequal
from trainer_nb import Learner, TrainerCallback
from trainer_nb.live.background import get_handle
from trainer_nb.core.errors import InvalidOperation


class Ends(TrainerCallback):
    "Write down the end of epochs and of the run."
    def __init__(self): self.heard = []
    def on_epoch_end(self, args, state, control, **kwargs): self.heard.append(("epoch", state.global_step))
    def on_train_end(self, args, state, control, **kwargs): self.heard.append(("train", state.global_step))


def ways(learn): return {"cell": learn.stop, "handle": get_handle(learn).stop}


@pytest.mark.parametrize("way", ["cell", "handle"])
@pytest.mark.parametrize("step", [2, 3])   # in the middle of an epoch, and between two
def test_no_setting_changes(way, step):
    learn = hard_learner(callbacks=[ends := Ends()])
    settings, whole = learn.args.to_dict(), hard_learner()
    whole.step(step)
    learn.step(step)
    ways(learn)[way]()
    assert learn.run_state.finished and ends.heard[-1] == ("train", step) and ends.heard.count(("epoch", step)) == 1
    assert learn.args.to_dict() == settings and learn.state.max_steps == whole.state.max_steps
    assert learn.optimizer.param_groups[0]["lr"] == whole.optimizer.param_groups[0]["lr"]
    assert learn.journal[-1]["act"] == "stop"
    ways(learn)[way]()   # once more: there is nothing to end
    assert len(learn.journal) == 1


def test_reset_has_the_whole_run_again():
    want = finish(hard_learner())
    learn = hard_learner()
    learn.step(2)
    learn.stop()
    learn.reset()
    assert unequal(finish(learn), want) == []


def test_train_begins_a_run_of_the_whole_length():
    learn, length = hard_learner(), hard_learner().train().global_step
    learn.step(2)
    learn.stop()
    assert learn.train().global_step == length


@pytest.mark.parametrize("setting", [dict(max_steps=6), dict(num_train_epochs=2)])
def test_setting_the_length_extends_it(setting):
    "From there on it is the run that nobody had stopped."
    want = hard_learner()
    want.train()
    learn = hard_learner()
    learn.step(2)
    learn.stop()
    with pytest.raises(InvalidOperation, match="finished after step 2 of 6.*extends"): learn.step()
    learn.set(**setting)
    learn.train()
    assert unequal(outcome(learn)[:2] + ([],), outcome(want)[:2] + ([],), ignore=("args",)) == []


def test_other_settings_do_not_take_up_a_run_that_was_stopped():
    learn = hard_learner()
    learn.step(2)
    learn.stop()
    learn.set(max_grad_norm=0.5, dataloader_num_workers=0)
    assert learn.run_state.finished


def test_a_callback_that_stops_lowers_nothing():
    class Stops(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 2: control.should_training_stop = True
    learn = hard_learner(callbacks=[stops := Stops()])
    learn.train()
    assert learn.state.global_step == 2 and learn.run_state.finished
    learn.pop_callback(stops)
    learn.set(num_train_epochs=2)
    learn.train()
    assert unequal(outcome(learn)[:2] + ([],), finish(hard_learner())[:2] + ([],), ignore=("callbacks", "args")) == []


def test_with_tasks_that_are_still_to_be_done():
    "A log that failed is done before the end, and no further step is taken."
    class Fails(TrainerCallback):
        armed = True
        def on_log(self, args, state, control, **kwargs):
            armed, Fails.armed = self.armed, False
            if armed: raise ValueError("the disk is full")
    learn = hard_learner(callbacks=[Fails(), ends := Ends()], logging_steps=2)
    with pytest.raises(ValueError, match="disk"): learn.step(3)
    learn.stop()
    assert learn.state.global_step == 2 and ends.heard == [("epoch", 2), ("train", 2)]


def test_the_best_model_is_loaded(tmp_path):
    learn = hard_learner(eval_dataset=Augmented(10), eval_strategy="steps", eval_steps=1, load_best_model_at_end=True, output_dir=str(tmp_path),
                         save_strategy="steps", save_steps=1, metric_for_best_model="loss", greater_is_better=True)
    learn.step(3)
    learn.stop()
    assert learn.journal[-1]["act"] == "load_best"


def test_refusals():
    learn = hard_learner()
    with pytest.raises(InvalidOperation, match="no step yet"): learn.stop()
    class Calls(TrainerCallback):
        def on_step_end(self, args, state, control, learner, **kwargs): learner.stop()
    learn = hard_learner(callbacks=[Calls()])
    with pytest.raises(InvalidOperation, match="control.should_training_stop"): learn.step()


@pytest.mark.timeout(240)
@pytest.mark.xdist_group("launch")
def test_on_two_processes():
    learn = hard_learner(gradient_accumulation_steps=2)
    settings = learn.args.to_dict()
    with learn.launch(2):
        learn.step(2)
        learn.stop()
        assert learn.run_state.finished and learn.state.global_step == 2
        learn.set(num_train_epochs=2)
        learn.step()
    assert learn.state.global_step == 3 and learn.args.to_dict()["max_steps"] == settings["max_steps"]


def test_a_subclass_may_have_a_stop_of_its_own():
    class Mine(Learner):
        stopped = False
        def stop(self): self.stopped = True
    learn = hard_learner(Mine)
    learn.step()
    learn.stop()
    assert learn.stopped and not learn.run_state.finished

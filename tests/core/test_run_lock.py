"Whose turn it is: one verb at a time, from callbacks, conditions and threads; and what a refused or failed verb leaves behind."
import collections, random, threading, time

import numpy as np
import pytest
import torch
from torch import nn

import trainer_nb.engine.evaluate
from trainer_nb import Learner, TrainerCallback, differences
from trainer_nb.core.errors import InvalidOperation


def rows(n=64):
    g = torch.Generator().manual_seed(0)
    return [{"x": torch.randn(4, generator=g), "labels": i % 3} for i in range(n)]


class Net(nn.Module):
    not_state = ("nap",)   # set by the tests
    def __init__(self, width=8):
        super().__init__()
        self.body, self.head, self.nap = nn.Linear(4, width), nn.Linear(width, 3), 0
    def forward(self, x, labels=None):
        if self.nap: time.sleep(self.nap)
        logits = self.head(self.body(x).relu())
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def make(width=8, cls=Learner, **given):
    torch.manual_seed(0)
    return cls(Net(width), **{"train_dataset": rows(), "learning_rate": 0.05, "use_cpu": True, "disable_tqdm": True} | given)


# --- one verb at a time ------------------------------------------------------------------------------------------------

VERBS = {"step": lambda learn: learn.step(2), "train": lambda learn: learn.train(), "run": lambda learn: learn.run(steps=1), "steps": lambda learn: next(learn.steps()),
         "debug step": lambda learn: learn.debug_step()}


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_that_trains_within_another(verb):
    "Between two of its steps, where `until` is asked. The run goes on as if nobody had tried."
    want, learn, heard = make(), make(), []
    want.train()
    def until(record):
        if record.step == 2:
            with pytest.raises(InvalidOperation, match=r"was called while run\(\) is running; call it afterwards"): VERBS[verb](learn)
            heard.append(record.step)
    learn.run(until=until)
    assert heard == [2] and learn.state.global_step == want.state.global_step
    assert differences(learn.snapshot(), want.snapshot()) == []


def test_verbs_that_look_or_change_at_the_boundary():
    "`until` is asked between two steps, where the run may be looked at and changed."
    learn = make(eval_dataset=rows(8))
    def until(record):
        learn.evaluate()
        learn.snapshot(f"after {record.step}")
        learn.set(lr=0.01 * record.step)
        return record.step == 3
    records = learn.run(until=until)
    assert list(learn.snapshots) == ["after 1", "after 2", "after 3"]
    assert records.learning_rate[1:] == pytest.approx([0.01, 0.02])


def test_pause_is_heard_where_until_is_asked():
    learn = make()
    learn.run(steps=10, until=lambda record: learn.pause() if record.step == 3 else None)
    assert learn.state.global_step == 3
    learn.pause()   # nobody is at work: it means nothing
    learn.step(2)
    assert learn.state.global_step == 5


def test_two_threads():
    "One trains; the verbs of the other have their turn between two of its steps, and leave no trace but what they set."
    learn, want = make(train_dataset=rows(320), num_train_epochs=1, eval_dataset=rows(8)), make(train_dataset=rows(320), num_train_epochs=1)
    learn.model.nap, seen = 0.002, collections.Counter()
    def other():
        while learn.run_state.verb.owner is None: time.sleep(0.001)
        while not learn.run_state.finished:
            for verb in (learn.snapshot, learn.evaluate, learn.summary, learn.inspect):
                verb()
                seen[learn.state.global_step] += 1
                assert learn.run_state.verb.owner is None or learn.run_state.verb.owner[1] != threading.get_ident()
        seen["last"] = learn.state.global_step
    thread = threading.Thread(target=other)
    thread.start()
    learn.train()
    thread.join()
    want.train()
    assert learn.state.global_step == 40 == seen["last"] and len(seen) > 5, seen
    assert differences(learn.snapshot(), want.snapshot(), ) == []


def test_a_step_by_hand_from_another_thread():
    "While it is open the verb that trains stands aside; then it goes on."
    learn, want, seen = make(train_dataset=rows(320), num_train_epochs=1), make(train_dataset=rows(320), num_train_epochs=1), []
    learn.model.nap = 0.002
    def other():
        while learn.state.global_step < 3: time.sleep(0.001)
        debug = learn.debug_step()
        seen.append(learn.state.global_step)
        time.sleep(0.1)
        debug.forward(); time.sleep(0.05); debug.backward()
        seen.append(learn.state.global_step)
        debug.update()
    thread = threading.Thread(target=other)
    thread.start()
    learn.train()
    thread.join()
    want.train()
    assert seen[0] == seen[1] and learn.state.global_step == 40 and differences(learn.snapshot(), want.snapshot()) == []


def test_a_pause_from_another_thread():
    learn = make(train_dataset=rows(800))
    learn.model.nap = 0.005
    threading.Timer(0.2, learn.pause).start()
    learn.train()
    assert 0 < learn.state.global_step < 100
    learn.model.nap = 0
    want = make(train_dataset=rows(800))
    learn.train(), want.train()
    assert differences(learn.snapshot(), want.snapshot()) == []


class Once(TrainerCallback):
    "Does something at the end of a step, once."
    not_state = ("act",)
    def __init__(self, at, act): self.at, self.act = at, act
    def on_step_end(self, args, state, control, learner, **kwargs):
        if state.global_step == self.at and self.act is not None:
            act, self.act = self.act, None
            act(learner)


def test_a_callback_begins_anew_and_changes_something():
    "What else it has asked for is not forgotten, and the clock does not jump."
    def act(learn): learn.reset(); learn.set(lr=0.001)
    learn = make(callbacks=[Once(3, act)])
    learn.step(5)
    assert learn.state.global_step == len(learn.history) == 5 and learn.history[0].learning_rate == pytest.approx(0.001)
    assert learn.run_state.counters.seconds < 100


def test_a_debug_step_whose_callback_begins_anew():
    learn = make(callbacks=[Once(1, lambda learn: learn.reset())])
    debug = learn.debug_step()
    debug.forward(), debug.backward()
    assert debug.update().step == 1 and learn.state.global_step == 0
    assert learn.step()[0].step == 1


# --- what is the user's --------------------------------------------------------------------------------------------------

def drawn(): return torch.rand(2).tolist(), np.random.rand(), random.random()


def seeded(): torch.manual_seed(7), np.random.seed(7), random.seed(7)


@pytest.mark.parametrize("act", [lambda l: l.step(), lambda l: next(l.steps()), lambda l: l.evaluate(), lambda l: l.show_batch(), lambda l: l.top_losses(2),
                                 lambda l: l.set(per_device_train_batch_size=4), lambda l: l.reset()])
def test_generators_are_the_users(act):
    seeded(); want = drawn()
    learn = make(eval_dataset=rows(8))
    learn.step()
    seeded(); act(learn)
    assert drawn() == want


def test_generators_are_the_users_during_a_debug_step():
    learn = make()
    seeded(); want = drawn(), drawn(), drawn()
    seeded()
    debug = learn.debug_step()
    got = [drawn()]
    debug.forward(), debug.backward()
    got.append(drawn())
    debug.update()
    assert (*got, drawn()) == want
    like = make()
    like.step()
    assert differences(like.snapshot(), learn.snapshot()) == []


def test_rows_stay_on_the_device_in_a_for_loop(tmp_path, on_device):
    "Each step of steps() is a verb of its own; with a log, too, nothing is fetched until the loop is left."
    learn = make(output_dir=str(tmp_path), logging_steps=100)
    for record in learn.steps():
        if record.step == 4:
            assert learn.history.rows.fetched == 1   # the first, whose loss is looked at
            break
    assert learn.history.rows.fetched == 4
    learn.history.close_log()


# --- what does not fit, or fails -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("other, said", [(dict(width=5), "another model"), (dict(optim="sgd"), "optim='sgd', and this learner has 'adamw_torch_fused'"),
                                         (dict(lr_scheduler_type="cosine"), "lr_scheduler_type='cosine'"), (dict(bf16=True), "bf16=True")])
def test_a_snapshot_that_does_not_fit_changes_nothing(other, said):
    learn, foreign = make(), make(**other)
    learn.step(3), foreign.step()
    before, run_id = learn.snapshot(), learn.history.run_id
    with pytest.raises(ValueError, match=said): learn.restore(foreign.snapshot())
    assert differences(before, learn.snapshot()) == [] and len(learn.history) == 3 and learn.history.run_id == run_id
    learn.step()


def test_a_snapshot_of_another_optimizer_that_was_given():
    def given(kind):
        torch.manual_seed(0)
        model = Net()
        return Learner(model, train_dataset=rows(), optimizers=(kind(model.parameters(), lr=0.1), None), use_cpu=True, disable_tqdm=True)
    learn, foreign = given(torch.optim.SGD), given(torch.optim.Adam)
    learn.step(), foreign.step()
    with pytest.raises(ValueError, match="another optimizer: Adam then, SGD here"): learn.restore(foreign.snapshot())
    learn.step()


def given_parts(schedule):
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    return Learner(model, train_dataset=rows(), optimizers=(optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.1) if schedule else None),
                   use_cpu=True, disable_tqdm=True, max_steps=6)


@pytest.mark.parametrize("schedule", [False, True])
def test_reset_of_an_optimizer_that_was_given(schedule):
    "It cannot be made anew, so it is put back to what it was."
    learn = given_parts(schedule)
    learn.step(4)
    first = learn.history.column("loss").tolist(), learn.history.column("learning_rate").tolist()
    learn.reset()
    learn.step(4)
    assert (learn.history.column("loss").tolist(), learn.history.column("learning_rate").tolist()) == first


def test_a_new_run_with_a_schedule_that_was_given(capsys):
    "train() on a finished run begins a new one; a schedule that was given goes on, as at the Trainer, and the printed line says so."
    learn = given_parts(True)
    learn.train()
    rates = learn.history.column("learning_rate").tolist()
    capsys.readouterr()
    learn.train()
    # a tenth every two steps
    assert learn.history.column("learning_rate").tolist() == pytest.approx([rate / 1000 for rate in rates])
    assert "the same schedule" in capsys.readouterr().out


def test_memory_that_runs_out_before_an_evaluation(monkeypatch):
    "The learner is not left as one that is looking."
    learn = make(eval_dataset=rows(8))
    learn.step()
    def full(self): raise torch.OutOfMemoryError("CUDA out of memory.")
    with monkeypatch.context() as m:
        m.setattr(trainer_nb.engine.evaluate.BufferBackup, "keep", full)
        with pytest.raises(torch.OutOfMemoryError): learn.evaluate()
    learn.set(lr=0.001)
    assert learn.step()[0].learning_rate == pytest.approx(0.001)


def test_settings_that_are_refused_change_nothing():
    "All or none, the count of batches included."
    learn = make(num_train_epochs=5)
    learn.step(4)
    before = learn.snapshot()
    with pytest.raises(ValueError): learn.set(per_device_train_batch_size=16, lr=-1.0)
    assert differences(before, learn.snapshot()) == []
    assert learn.step()[0].epoch == pytest.approx(5 / 8)


def test_settings_after_a_preparation_that_failed():
    "The data had been prepared when the optimizer could not be made."
    learn = make()
    learn.model.requires_grad_(False)
    with pytest.raises(ValueError, match="frozen"): learn.step()
    learn.set(per_device_train_batch_size=16, num_train_epochs=2)
    learn.unfreeze()
    assert learn.step()[0].samples == 16 and learn.state.max_steps == 8


def test_an_error_while_preparing_is_told():
    "Like any other: to the callbacks and the history; and what was half made is made anew."
    heard = []
    class Hears(TrainerCallback):
        def on_exception(self, args, state, control, exception, **kwargs): heard.append(type(exception).__name__)
    class Fails(Learner):
        left, not_state = 1, ("left",)
        def create_scheduler(self, num_training_steps, optimizer=None):
            if self.left: self.left = 0; raise torch.OutOfMemoryError("CUDA out of memory.")
            return super().create_scheduler(num_training_steps, optimizer)
    learn = make(cls=Fails, callbacks=[Hears()])
    with pytest.raises(torch.OutOfMemoryError): learn.step()
    assert heard == ["OutOfMemoryError"] and [e["kind"] for e in learn.history.events] == ["exception"]
    assert learn.optimizer is None
    learn.train()
    like = make()
    like.train()
    assert differences(like.snapshot(), learn.snapshot()) == []


def test_an_error_after_a_debug_step_is_told():
    heard = []
    class Hears(TrainerCallback):
        def on_exception(self, args, state, control, exception, **kwargs): heard.append(str(exception))
    def act(learn): raise ValueError("after the update")
    learn = make(callbacks=[Hears(), Once(1, act)])
    debug = learn.debug_step()
    debug.forward(), debug.backward()
    with pytest.raises(ValueError): debug.update()
    assert heard == ["after the update"] and learn.state.global_step == 1
    assert learn.step()[0].step == 2


def test_a_schedule_free_optimizer_stays_in_its_mode():
    class TwoModes(torch.optim.SGD):
        def eval(self): self.switch(False)
        def train(self): self.switch(True)
        def switch(self, mode):
            for g in self.param_groups: g["train_mode"] = mode
    learn = make(optimizer_cls_and_kwargs=(TwoModes, {"lr": 0.1}), eval_dataset=rows(8))
    learn.step()
    for mode in (True, False):
        learn.optimizer.switch(mode)
        learn.evaluate()
        assert [g["train_mode"] for g in learn.optimizer.param_groups] == [mode] * len(learn.optimizer.param_groups)

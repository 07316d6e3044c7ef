"Several processes in unusual hands: other numbers of them, runs that begin anew, scripts, and ends at bad moments."
import ctypes, gc, multiprocessing, os, signal, subprocess, sys, textwrap, threading, time, warnings

import pytest, torch
from torch.utils.data import DataLoader, Dataset
from safetensors.torch import load_file

from trainer_nb import Learner, Paused, TrainerCallback
from trainer_nb.device.accelerator import Device
from trainer_nb.state import async_save
from trainer_nb.state.async_save import SaveFailed
from trainer_nb.launch.process_group import ProcessGroup
from trainer_nb.live.run_view import view_status
from trainer_nb.launch.outcomes import INTERRUPT_KINDS
from trainer_nb.core.errors import InvalidOperation
from trainer_nb.core.history import read_history
from trainer_nb.launch.learner_parts import apply_torch_settings, learner_parts
from trainer_nb.launch.remote_training import make_recovered_error
from trainer_nb.engine.snapshot import differences
from trainer_nb.engine.snapshot_tensors import Snapshot
from trainer_nb.launch.outcomes import Failed
from launched import Fails, Net, free_port, is_gone, like, likes, make, pids, rows, same   # noqa: F401  (like, likes are fixtures)
from presses import acts, press   # noqa: F401

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("launch")]

PLAIN = {"model": dict(norm=False, drop=0.0)}
ZERO = {"zero_optimization": {"stage": 2}}


# ---- another number of processes

def test_a_checkpoint_is_counted_anew_by_another_number(tmp_path):
    "48 samples an epoch, of which one process takes 4 in a step, two take 8."
    first = make(output_dir=str(tmp_path), save_steps=4, **PLAIN)
    with first.launch(2): first.step(5)
    assert first.state.max_steps == 5 + 2 + 2 * 12
    for n, steps in ((1, 4 + 4 + 2 * 12), (2, 18), (3, 4 + 2 + 2 * 4)):
        learn = make(output_dir=str(tmp_path), save_strategy="no", **PLAIN)
        with learn.launch(n), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            learn.load_checkpoint(tmp_path/"checkpoint-4")
            assert learn.state.max_steps == steps
            assert learn.step(1)[0].samples == 4 * n and learn.train().global_step == steps and learn.state.epoch == 3


def test_a_snapshot_is_counted_anew_by_another_number():
    learn = make()
    with learn.launch(2):
        learn.step(2)
        there = learn.snapshot("there")
    learn.step(3)
    learn.restore(there)
    assert learn.state.max_steps == 2 + 8 + 2 * 12 and learn.step(1)[0].samples == 4
    with learn.launch(2):
        learn.restore("there")
        assert learn.state.max_steps == 18 and learn.train().global_step == 18


def test_a_snapshot_is_restored_by_its_keyword():
    "Of the notebook's snapshots, which are sent to the processes."
    learn = make()
    learn.step(1)
    learn.snapshot("before")
    with learn.launch(2):
        learn.step(1)
        learn.snapshot("here")
        learn.step(1)
        learn.snapshots["here"] = learn.snapshot()
        learn.step(1)
        learn.restore(snapshot="here")
        assert learn.run_on_all(lambda learn: learn.state.global_step) == [3, 3]
        learn.restore(snapshot="before")
        assert learn.state.global_step == 1


def test_a_snapshot_that_is_deleted_frees_the_memory_of_the_processes():
    "It is kept in the notebook alone, also where it was taken there."
    learn = make(rewind_every=0)
    def kept(learn): return list(learn.snapshots), sum(isinstance(o, Snapshot) for o in gc.get_objects())
    with learn.launch(2):
        learn.step(1)
        before = learn.run_on_all(kept)
        assert learn.snapshot("here") is learn.snapshots["here"]
        learn.snapshot(name="there")
        assert learn.run_on_all(kept) == before and before[0][0] == []
        learn.step(1)
        del learn.snapshots["here"]
        learn.restore("there")
        assert learn.state.global_step == 1
        with pytest.raises(KeyError, match="'here'.* 'there'"): learn.restore("here")
        with pytest.raises(TypeError): learn.snapshot("one", "two")


def test_snapshots_with_a_divided_batch():
    "A snapshot has the settings of home, wherever it was taken and wherever it goes."
    learn = make(per_device_train_batch_size=8)
    learn.step(1)
    before = learn.snapshot()
    with learn.launch(2, keep_global_batch=True):
        learn.step(1)
        there = learn.snapshot()
        learn.restore(before)
        assert learn.step(1)[0].samples == 8 and learn.run_on_all(lambda learn: learn.args.per_device_train_batch_size) == [4, 4]
    learn.restore(there)
    assert learn.args.per_device_train_batch_size == 8 == learn.step(1)[0].samples and learn.state.max_steps == 18


def test_behind_the_launch_only_the_beginning_is_reached_at_home():
    "Steps in between would be taken again by another number of processes."
    learn = make()
    learn.step(3)
    with learn.launch(2):
        learn.step(2)
    with pytest.raises(ValueError, match=r"cannot go back to step 4: close at step 5 .* the steps before it belong to the processes of launch\(\); learn.restore"): learn.rewind(1)
    assert learn.rewind(5).step == 0 and learn.state.max_steps == 36   # the first weights are known


# ---- runs that begin anew

def test_a_run_begins_anew_there():
    "With a history of its own, here and there, like one that was begun so."
    like, learn = make(**PLAIN), make(**PLAIN)
    like.launch(2, train=True)
    like.launch(2, train=True)
    with learn.launch(2):
        assert learn.train().global_step == 18
        first = learn.history
        assert learn.train().global_step == 18 and learn.history.parent == first.run_id and len(learn.history) == len(first) == 18
        kept = learn.snapshot()
        learn.reset()
        assert learn.state.global_step == 0 == len(learn.history) and learn.step(2)[-1].step == 2
        assert set(learn.run_on_all(lambda learn: (learn.history.run_id, len(learn.history)))) == {(learn.history.run_id, 2)}
        learn.restore(kept)
        assert learn.run_state.finished
    assert not set(differences(like.snapshot(), learn.snapshot())) - {"args"}


# ---- bad moments

class Slow(Net):
    def forward(self, x):
        if not self.training: time.sleep(0.2)
        return super().forward(x)


def slow():
    learn = make()
    torch.manual_seed(0)
    learn.model = Slow()
    return learn


def test_a_process_is_killed_in_a_long_evaluation():
    "The other has the run, and is not waited for until its part is done."
    learn = slow()
    with learn.launch(2):
        learn.step(3)
        threading.Timer(0.5, os.kill, (pids(learn)[1], signal.SIGKILL)).start()
        with pytest.raises(RuntimeError, match="rank 1 was killed by SIGKILL.*after step 3"): learn.evaluate(rows(4000))
        assert learn.step(1)[0].step == 4


class KilledAfterStep5(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if args.process_index == 0 and state.global_step == 5: os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_is_killed_before_its_rows_have_arrived():
    "The error has the step of the state that was found, though the last rows of the process were lost with it, as with a node of a cluster."
    learn = make(callbacks=[KilledAfterStep5()])
    with learn.launch(2):
        learn.step(2)
        learn.run_state.parts.remote_run.processes.mirror.stop()
        with pytest.raises(RuntimeError, match="rank 0 was killed by SIGKILL.* after step 5. The run is as it was before the step"): learn.train()
        assert learn.state.global_step == learn.history[-1].step == 5


def test_all_are_killed_before_anything_was_kept():
    "The run begins anew, and says so."
    learn = make()
    with learn.launch(2):
        learn.step(3)
        for pid in pids(learn): os.kill(pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match="after step 0"): learn.train()
        assert learn.state.global_step == 0 and learn.step(1)[0].step == 1


def killed(learn):
    for pid in pids(learn): os.kill(pid, signal.SIGKILL)


def test_all_are_killed_after_the_run_went_back():
    "A snapshot of steps that were discarded is not a state of the run."
    learn = make(rewind_every=0)
    with learn.launch(2):
        learn.step(2)
        learn.snapshot("kept")
        learn.step(2)
        learn.snapshot("discarded")
        learn.restore("kept")
        learn.step(1)
        killed(learn)
        with pytest.raises(RuntimeError, match=r"after step 3; the run continues from its last known state, after step 2 .1 step is lost."): learn.step()
        assert [r.step for r in learn.history if not r.abandoned] == [1, 2] and learn.step(1)[0].step == 3


def test_all_are_killed_where_a_snapshot_was_followed_by_a_change():
    "The launch has the change, and the snapshot of the same step does not."
    learn = make()
    learn.step(2)
    learn.snapshot("before")
    learn.set(lr=1e-5)
    with learn.launch(2):
        killed(learn)
        with pytest.raises(RuntimeError, match="after step 2"): learn.step()
        assert learn.run_on_all(lambda learn: learn.optimizer.param_groups[0]["lr"] < 1e-4) == [True, True]
        assert [e["kind"] for e in learn.history.events if not e["abandoned"]][:2] == ["set", "launch"]


def test_the_button_while_it_is_launched():
    "The run stays here: nobody would have the processes in hand."
    learn = make()
    learn.step(1)
    threading.Timer(0.03, signal.raise_signal, (signal.SIGINT,)).start()
    with pytest.raises(KeyboardInterrupt): learn.launch(2, start="spawn")
    assert learn.processes is None and learn.step(1)[0].step == 2


def slow_to_start():
    "A model that takes for ever to arrive in a fresh process."
    learn = make()
    torch.manual_seed(0)
    learn.model = Sleeps()
    return learn


class Sleeps(Net):
    def __setstate__(self, state): time.sleep(600)


def test_the_button_ends_a_start_at_once():
    "Not when the processes are ready, which may take long; none is left, and the run is here."
    gc.collect()   # a learner of an earlier test, paused, has data workers until it is collected
    learn = slow_to_start()
    threading.Timer(0.5, signal.raise_signal, (signal.SIGINT,)).start()
    with pytest.raises(KeyboardInterrupt): learn.launch(2, start="spawn")
    assert learn.processes is None and learn.step(1)[0].step == 1
    assert not [p for p in multiprocessing.active_children()]


# ---- the button, while processes do not come out of what they do

STARTED_AGAIN = "The work in progress was cancelled, and the processes were started again; paused"

class Stays(TrainerCallback):
    "Stays in an event after five steps, once: interruptible, or not."
    def __init__(self, event, stay): self.event, self.stay, self.left = event, stay, 1
    def wait(self, event, state):
        if event == self.event and state.global_step == 5 and self.left:
            self.left = 0
            self.stay(self)
    def on_step_begin(self, args, state, control, **kwargs): self.wait("on_step_begin", state)
    def on_step_end(self, args, state, control, **kwargs): self.wait("on_step_end", state)


@pytest.mark.parametrize("event, said", [("on_step_begin", "The step in progress was cancelled; paused after step 5 of 18 .epoch 0.83.. Nothing is lost: "),
                                         ("on_step_end", "Stays.on_step_end was interrupted and is not called again for this step.*; paused after step 5 of 18 .epoch 0.83.. learn.train")])
def test_the_second_press_says_what_it_has_cancelled(event, said, like):
    "In the words of one process: all have stopped alike, and none is started again."
    alone, learn = (make(callbacks=[Stays(event, lambda callback: time.sleep(600))]) for _ in range(2))
    press(1.0, 0.1)
    with pytest.raises(Paused, match="^" + said.replace("18 .epoch 0.83", "36 .epoch 0.42")): alone.train()
    with learn.launch(2):
        learn.step(4)
        before = pids(learn)
        press(1.0, 0.1)
        with pytest.raises(Paused, match="^" + said): learn.train()
        assert pids(learn) == before and learn.run_state.current.paused and learn.run_on_all(lambda learn: learn.run_state.current.paused) == [True, True]
        learn.train()
        learn.pop_callback(Stays)
    same(like, learn)


def test_a_message_of_lost_steps_promises_nothing(hasty, like):
    "No process comes out of a step, and the last that they have kept is of an earlier one."
    learn = make(callbacks=[Stays("on_step_begin", caught)])
    with learn.launch(2):
        learn.step(5)
        press(0.3, 0.1, 1.2)
        with pytest.raises(Paused, match=f"^{STARTED_AGAIN} after step 4 of 18 .epoch 0.67.. learn.train"), pytest.warns(UserWarning, match="after step 4, the run continues from its last known state"):
            learn.train()
        learn.pop_callback(Stays)
        learn.train()
    same(like, learn)


class Naps(Dataset):
    "Data that takes long on the second rank, as long as a file is there."
    not_state = ("nap", "path")
    def __init__(self, path=None): self.path, self.rows = path and str(path), rows(48)
    def __len__(self): return 48
    def __getitem__(self, i):
        if os.environ.get("RANK") == "1" and (self.path is None or os.path.exists(self.path)): time.sleep(0.5 if self.path is None else 600)
        return self.rows[i]


def test_a_press_that_is_answered_does_not_give_up_the_restart(hasty, like):
    "One is enough in an evaluation; the other process waits for the one that came out, and new ones go on with the run."
    before, learn = dict(os.environ), make()
    with learn.launch(2):
        learn.step(5)
        victims = pids(learn)
        press(0.5)
        with pytest.raises(KeyboardInterrupt): learn.evaluate(Naps())
        assert all(map(is_gone, victims)) and learn.processes is not None and learn.state.global_step == 5 and dict(os.environ) == before
        learn.train()
    same(like, learn)


def test_pressed_twice_while_one_loads_for_ever(hasty, tmp_path, like):
    nap = tmp_path/"nap"
    learn = make(data=Naps(nap))
    with learn.launch(2):
        learn.step(4)
        nap.touch()
        press(0.5, 0.1)
        with pytest.raises(Paused, match=f"^{STARTED_AGAIN} after step 4 of 18 .epoch 0.67.. Nothing is lost: "): learn.train()
        nap.unlink()
        assert learn.processes is not None and acts(learn) == ["launch", "restart"]
        learn.train()
    same(like, learn)


def test_a_process_that_stands_still_is_left_by_the_button(hasty, like):
    "It does not hear that it is to come out; so it is ended, and the others go on from where they were."
    learn = make()
    with learn.launch(2):
        learn.step(5)
        victims = pids(learn)
        os.kill(victims[1], signal.SIGSTOP)
        learn.run_state.parts.remote_run.processes.reports.speeds.clear()   # the first steps were slow
        press(0.3, 0.1)
        with pytest.raises(Paused, match=f"^{STARTED_AGAIN} after step 5 of 18 .epoch 0.83.. Nothing is lost: "): learn.train()
        assert all(map(is_gone, victims)) and learn.processes is not None and len(learn.history) == 5
        learn.train()
    same(like, learn)


def caught(learn):
    "Wait for oneself, in a library that no signal interrupts."
    libc, lock = ctypes.CDLL(None), ctypes.create_string_buffer(128)
    for _ in range(2): libc.pthread_mutex_lock(lock)


def test_all_are_caught_and_the_button_is_pressed_once_more(hasty, like):
    "Nobody knows who is to blame. The run goes on from the last that they have kept, and that is said."
    learn = make(rewind_every=1)
    with learn.launch(2):
        learn.step(5)
        press(0.3, 0.1, 1.2)
        with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="after step 4, the run continues from its last known state"): learn.run_on_all(caught)
        assert learn.state.global_step == 4 and learn.processes is not None
        learn.train()
    same(like, learn)


def test_a_press_that_comes_too_late_is_not_for_the_next_verb(like):
    "Where one has failed, the others are told to come out, and may have come out by themselves already."
    learn = make()
    with learn.launch(2):
        learn.step(5)
        before = pids(learn)
        learn.run_on_all(lambda learn: setattr(learn.run_state.interrupts, "pressed", 2))
        assert learn.rewind(1).step == 4 and pids(learn) == before
        learn.train()
    same(like, learn)


def test_no_press_loses_a_run_that_comes_home():
    "Two while the processes end: it is at home, whole; and the button is heard after that."
    learn, other = make(), make()
    for o in (learn, other): o.launch(2); o.step(5)
    pool = learn.run_state.parts.remote_run.processes.pool
    end, pool.close = pool.close, lambda: (signal.raise_signal(signal.SIGINT), signal.raise_signal(signal.SIGINT), end())
    with pytest.raises(KeyboardInterrupt): learn.close()
    other.close()
    assert learn.processes is None and acts(learn) == ["launch", "close"]
    for o in (learn, other): o.step(2)
    same(other, learn)


class NotThere(Learner):
    "Its data takes for ever to be made in a process."
    def get_train_dataloader(self):
        if "RANK" in os.environ: time.sleep(600)
        return super().get_train_dataloader()


def test_two_presses_while_it_is_launched():
    before, learn, other = dict(os.environ), make(kind=NotThere), make()
    for o in (learn, other): o.step(4)
    press(0.4, 0.02)
    with pytest.raises(KeyboardInterrupt): learn.launch(2)
    assert learn.processes is None and acts(learn) == ["launch", "close"] and dict(os.environ) == before
    for o in (learn, other): o.step(2)
    same(other, learn)


# ---- nothing is lost, and what is old is said

class AtHome(Learner):
    "Its data cannot be read at home, as long as a file is there."
    not_state = ("nap", "path")
    path = "none"
    def get_train_dataloader(self):
        if "RANK" not in os.environ and os.path.exists(self.path): raise OSError("the disk of the processes is not here")
        return super().get_train_dataloader()


def test_a_run_that_cannot_be_taken_up_at_home_is_kept(tmp_path):
    learn, other = make(kind=AtHome), make()
    learn.path = str(tmp_path/"away")
    for o in (learn, other): o.launch(2); o.step(5)
    open(learn.path, "w").close()
    with pytest.raises(OSError, match="not here") as raised: learn.close()
    assert "learn.restore('at the close')" in raised.value.__notes__[-1] and learn.processes is None
    with pytest.raises(OSError, match="not here"): learn.restore("at the close")   # still
    os.unlink(learn.path)
    learn.restore("at the close")
    other.close()
    same(other, learn)
    for o in (learn, other): o.step(3)
    same(other, learn)
    assert learn.reset() is None and learn.state.global_step == 0 and learn.step(1)[0].loss == make().step(1)[0].loss   # the first weights are known as well


def test_a_restart_from_an_older_state_is_said(tmp_path, monkeypatch):
    "With the error; as a warning where there is none but the button."
    bad = tmp_path/"bad"
    learn = make(data=Fails(bad, "1"))
    with learn.launch(2):
        learn.step(4)
        bad.touch()
        monkeypatch.setattr(ProcessGroup, "ask", lambda self, ranks, *args, **kwargs: dict.fromkeys(ranks))   # nobody can say anything
        with pytest.raises(OSError, match="no such picture") as raised: learn.step(2)
        assert "after step 0, the run continues from its last known state" in raised.value.__notes__[-1] and learn.state.global_step == 0
    for what, is_requested in ((None, True), *((Failed(0, kind, "", ""), is_requested) for kind in INTERRUPT_KINDS for is_requested in (False, True))):
        with pytest.warns(UserWarning, match="after step 3, the run continues from its last known state"): error = make_recovered_error(what, 3, is_requested)
        assert type(error) is KeyboardInterrupt and str(error) == ("" if is_requested else "in the process of rank 0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert type(make_recovered_error(None, None)) is KeyboardInterrupt


def test_a_block_ends_with_its_launch_though_a_process_has_died():
    learn, other = make(), make()
    with other.launch(2): other.step(5)
    with pytest.warns(UserWarning, match="rank 1 was killed by SIGKILL.* after step 5. The run is as it was before the step, and is back in this process."):
        with learn.launch(2):
            learn.step(5)
            victims = pids(learn)
            os.kill(victims[1], signal.SIGKILL)
    assert learn.processes is None and all(map(is_gone, victims)) and acts(learn) == ["launch", "restart", "close"]
    same(other, learn)


class HalfWay(torch.optim.AdamW):
    "Fails in the midst of the third update."
    left = 3
    def step(self, *args):
        self.left -= 1
        if self.left: return super().step(*args)
        with torch.no_grad(): self.param_groups[0]["params"][0].add_(1.0)
        raise KeyError("half-way")


def test_a_corrupted_run_is_not_repaired_by_a_verb_that_fails(tmp_path):
    "A checkpoint that is not there replaces nothing."
    learn = make(optimizer_cls_and_kwargs=(HalfWay, {"lr": 0.01}), rewind_every=0)
    with learn.launch(2):
        with pytest.raises(KeyError, match="half-way"): learn.train()
        with pytest.raises(ValueError, match="no such folder"): learn.load_checkpoint(tmp_path/"nowhere")
        for verb in (learn.step, learn.train, lambda: learn.save_checkpoint(tmp_path/"c")):
            with pytest.raises(InvalidOperation, match="the optimizer failed in the middle of its update"): verb()
        killed(learn)
        # no process gives the half-updated state to new ones
        with pytest.raises(RuntimeError, match="continues from its last known state, after step 0"): learn.run_on_all(lambda learn: None)
        with pytest.raises(KeyError, match="half-way"): learn.train()
        with pytest.raises(InvalidOperation, match="the optimizer failed in the middle of its update"): learn.step()
        learn.reset()
        assert learn.step(2)[-1].step == 2


def test_a_torn_run_comes_home_as_it_is():
    learn = make(rewind_every=0)
    learn.optimizer_cls_and_kwargs = HalfWay, {"lr": 1e-2}
    with pytest.raises(KeyError, match="half-way"): learn.launch(2, train=True)
    assert learn.processes is None and learn.state.global_step == 2
    with pytest.raises(InvalidOperation, match="step.. cannot continue: the optimizer failed in the middle"): learn.step(1)
    learn.reset()
    assert learn.step(1)[0].step == 1


class AfterFive(TrainerCallback):
    "Writes a file when the first process has taken five steps; it may stay there until it is interrupted."
    def __init__(self, path, stays): self.path, self.stays = str(path), stays
    def on_step_end(self, args, state, control, **kwargs):
        if os.environ.get("RANK") != "0" or state.global_step != 5 or os.path.exists(self.path): return
        open(self.path, "w").close()
        if self.stays: time.sleep(600)


@pytest.mark.parametrize("stays, step", [(False, 4), (True, 5)])
def test_a_process_whose_optimizer_has_failed_half_way_gives_no_state(stays, step, tmp_path):
    "The run continues from the other process's state, if it can be interrupted; if it is blocked in the exchange, from the last snapshot that all have. The error says which."
    path = tmp_path/"begun"
    class There(HalfWay):
        left = 5
        def step(self, *args):
            if os.environ.get("RANK") != "1": return torch.optim.AdamW.step(self, *args)
            try: return super().step(*args)
            except KeyError:
                end = time.monotonic() + 60
                while not path.exists() and time.monotonic() < end: time.sleep(0.01)
                time.sleep(0.5)   # until the first process is in the exchange
                raise
    learn, other = make(rewind_every=1, callbacks=[AfterFive(path, stays)]), make()
    learn.optimizer_cls_and_kwargs, other.optimizer_cls_and_kwargs = (There, {"lr": 1e-2}), (torch.optim.AdamW, {"lr": 1e-2})
    for o in (learn, other): o.launch(2)
    with pytest.raises(KeyError, match="half-way") as raised: learn.train()
    said = f"with the state after step {step}." if stays else f"after step {step}, the run continues from its last known state"
    assert said in raised.value.__notes__[-1] and learn.state.global_step == step
    other.step(step)
    for o in (learn, other): o.close()
    assert all(torch.equal(a, b) for a, b in zip(learn.model.state_dict().values(), other.model.state_dict().values(), strict=True)) and not learn.run_state.current.corrupted


def test_a_launch_that_is_refused_costs_nothing(monkeypatch):
    "Each mistake is named before anything begins; and the last steps can be taken back afterwards, also where it was the start that failed."
    learn = make()
    learn.step(6)
    for kind, words, how in ((TypeError, "has no argument 'max_restart'.*Did you mean 'max_restarts'", dict(max_restart=1)), (ValueError, "output='al' does not select.* give 'first'", dict(output="al")),
                             (ValueError, "output=1 .*output=.0, 1.", dict(output=1)), (ValueError, "threads='2' .* whole number from 1 on", dict(threads="2")), (ValueError, "threads=0", dict(threads=0)),
                             (ValueError, "max_restarts=-1 .*from 0 on", dict(max_restarts=-1)), (ValueError, "start='thread' is unknown: give 'fork', 'spawn'", dict(start="thread"))):
        with pytest.raises(kind, match=words): learn.launch(2, **how)
    assert not acts(learn)
    with open(__file__) as file:
        learn.train_dataset.file = file
        with pytest.raises(ValueError, match="train_dataset cannot be sent there"): learn.launch(2, start="spawn")
    assert [(row["act"], row["abandoned"]) for row in learn.journal if row["act"] in ("launch", "close")] == [("launch", True), ("close", True)]
    monkeypatch.setattr("trainer_nb.launch.remote_run.capture_snapshot", lambda run: (_ for _ in ()).throw(MemoryError("no room for a snapshot")))
    with pytest.raises(MemoryError): learn.launch(2)
    assert learn.processes is None and learn.run_state.num_processes == 1
    assert learn.rewind(1).step == 5 and learn.step(1)[0].step == 6


def test_the_batch_that_stays_is_set_as_at_home():
    "What one process takes, divided anew among all; the snapshots have it as it was asked for."
    learn = make(per_device_train_batch_size=8, gradient_accumulation_steps=1)
    with learn.launch(2, keep_global_batch=True):
        assert learn.step(1)[0].samples == 8
        assert "16" in repr(learn.set(per_device_train_batch_size=16)) and learn.args.per_device_train_batch_size == 16
        assert learn.run_on_all(lambda learn: learn.args.per_device_train_batch_size) == [8, 8] and learn.step(1)[0].samples == 16
        there = learn.snapshot()
        learn.set(gradient_accumulation_steps=2, disable_tqdm=False)
        assert learn.run_on_all(lambda learn: (learn.args.gradient_accumulation_steps, learn.args.per_device_train_batch_size, learn.args.disable_tqdm)) == [(1, 16, True)] * 2
        assert not learn.args.disable_tqdm
        with pytest.raises(ValueError, match="cannot be divided among 2"): learn.set(per_device_train_batch_size=3, gradient_accumulation_steps=1)
        os.kill(pids(learn)[1], signal.SIGKILL)
        with pytest.raises(RuntimeError, match="SIGKILL"): learn.step(1)
        assert learn.run_on_all(lambda learn: learn.args.per_device_train_batch_size) == [16, 16]
    assert learn.args.per_device_train_batch_size == 16 and learn.args.gradient_accumulation_steps == 2
    learn.restore(there)
    assert learn.args.per_device_train_batch_size == 16 and learn.args.gradient_accumulation_steps == 1 and learn.step(1)[0].samples == 16


def test_arguments_for_several_machines_are_refused():
    "The error names the argument and the command to type; nothing has been started."
    learn = make()
    for name, value in dict(num_nodes=2, node_rank=1, master_addr="10.0.0.1", master_port=29500, rdzv_endpoint="10.0.0.1:1", timeout=5).items():
        with pytest.raises(TypeError, match=f"no argument .{name}.: .*this machine or, with cluster=.ray., on a Ray cluster.*torchrun or accelerate launch.*export_script"): learn.launch(2, **{name: value})
    assert learn.processes is None and not acts(learn)


def test_a_launcher_with_another_number_is_refused(monkeypatch):
    "Two were asked for, four are there: nobody would see it."
    monkeypatch.setenv("WORLD_SIZE", "4")
    learn = make()
    with pytest.raises(ValueError, match="one of 4 processes that a launcher has started.* make the launcher start 2"): learn.launch(2)
    for how in ({}, dict(num_processes=4)): assert "One of several" in repr(learn.launch(**how))


def test_a_launcher_is_not_told_what_it_decides_itself(monkeypatch):
    "Unknown names are refused; what the launcher decides is ignored: one script runs here and there."
    for name, value in dict(WORLD_SIZE="2", RANK="0").items(): monkeypatch.setenv(name, value)
    with pytest.raises(TypeError, match="has no argument 'bogus'"): make().launch(2, bogus=1)
    with pytest.raises(TypeError, match="num_nodes.*torchrun"): make().launch(2, num_nodes=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make().launch(2, max_restarts=3, start="spawn", threads=4, output="all", keep_global_batch=True)


class OwnLoader(Learner):
    def get_train_dataloader(self): return DataLoader(rows(48), batch_size=self.args.train_batch_size)


def test_a_batch_that_stays_needs_a_loader_that_follows(monkeypatch):
    "Smaller micro-batches come from the learner's own loader; fewer of them from any."
    loader = DataLoader(rows(48), batch_size=8)
    for learn in (make(data=loader), make(kind=OwnLoader)):
        with pytest.raises(ValueError, match="come from a loader of yours"): learn.launch(2, keep_global_batch=True)
        assert learn.processes is None and learn.args.per_device_train_batch_size == 4 and learn.step(1)[0].step == 1
        with monkeypatch.context() as m, pytest.raises(ValueError, match="come from a loader of yours"):
            m.setenv("WORLD_SIZE", "2")
            learn.launch(keep_global_batch=True)
        assert not learn.run_state.data.global_settings
    learn = make(data=loader, gradient_accumulation_steps=2)
    with learn.launch(2, keep_global_batch=True):
        assert learn.step(1)[0].samples == 16
        with pytest.raises(ValueError, match="come from a loader of yours"): learn.set(gradient_accumulation_steps=3)
        assert learn.step(1)[0].samples == 16


class Heard(TrainerCallback):
    "Writes down, wherever it is, which steps it has heard of."
    def __init__(self, path): self.path = path
    def on_step_end(self, args, state, control, **kwargs):
        with open(self.path, "a") as f: f.write(f"{os.environ.get('RANK')}:{state.global_step} ")


def test_what_is_set_here_does_not_reach_them(tmp_path, monkeypatch):
    "Parts and settings that are assigned are refused and stay what they were; folders and callbacks are those of the notebook."
    parts = ("model", "train_dataset", "eval_dataset", "optimizer", "lr_scheduler", "loss_func", "compute_loss_func", "compute_metrics", "data_collator", "metrics", "optimizers",
             "optimizer_cls_and_kwargs", "processing_class", "preprocess_logits_for_metrics", "model_init")
    learn, heard = make(), [Heard(tmp_path/name) for name in "abc"]
    learn.add_callback(heard[0])
    with learn.launch(2):
        for c in heard[1:]: learn.add_callback(c)
        learn.step(1)
        before = learn.eval_dataset
        for name in parts:
            with pytest.raises(InvalidOperation, match=f"^Replacing learn.{name} is not possible while the run is on 2 processes: learn.close.. first.$"): setattr(learn, name, None)
        assert learn.eval_dataset is before is not None
        learn.args.max_grad_norm = 0.1
        assert learn.run_on_all(lambda learn: learn.args.max_grad_norm) == [0.1, 0.1] and learn.args.max_grad_norm == 0.1
        with pytest.raises(ValueError, match="seed cannot be changed in a run that is under way"): learn.args.seed = 7
        assert learn.args.seed == 42 and learn.state.global_step == 1
        learn.run(steps=1)
        assert learn.pop_callback(heard[1]) is heard[1] and learn.pop_callback(heard[1]) is None
        learn.remove_callback(Heard)   # the first of them
        learn.step(1)
        os.makedirs(tmp_path/"elsewhere")
        monkeypatch.chdir(tmp_path/"elsewhere")
        assert learn.save_model("model").is_dir() and learn.save_checkpoint(output_dir="here").is_dir()
        assert sorted(os.listdir()) == ["here", "model"]
        learn.run_on_all(lambda learn: learn.add_callback(Heard("d")))
        last = learn.callback_handler.callbacks[-1]
        with pytest.raises(ValueError, match="other callbacks than the notebook"): learn.pop_callback(last)
        assert learn.callback_handler.callbacks[-1] is last
    assert learn.args.max_grad_norm == 0.1
    assert [e["data"] for e in learn.history.events if e["kind"] in ("by hand", "set")] == [{"max_grad_norm": 0.1}]
    for i, steps in enumerate(([1, 2], [1, 2], [1, 2, 3])): assert sorted((tmp_path/"abc"[i]).read_text().split()) == [f"{r}:{s}" for r in "01" for s in steps]
    learn.eval_dataset = rows(5)
    assert learn.evaluate()["eval_loss"] > 0


def test_evaluation_sets_of_different_lengths_are_refused():
    "Metrics would be of neither. The processes go on."
    learn = make()
    with learn.launch(2):
        learn.run_on_all(lambda learn: setattr(learn, "eval_dataset", rows(21 + int(os.environ["RANK"]), 1)))
        with pytest.raises(ValueError, match="data sets for the evaluation of different lengths: 21 on rank 0, 22 on rank 1"): learn.evaluate()
        assert len(learn.predict(rows(9)).predictions) == 9


def test_a_learner_without_a_name_is_gone_at_the_launch():
    "Only the statement has held it; the block would have got None."
    with pytest.raises(InvalidOperation, match="give it a name, learn = Learner"):
        with make().launch(2): pass


def test_the_table_of_the_processes_is_that_of_the_last_step():
    "Complete at the launch, after a verb of a few steps and after one that takes them back; too few steps name no slowest process."
    learn = make()
    with learn.launch(2):
        assert [row["device"] for row in learn.processes] == ["cpu", "cpu"] or [row["device"] for row in learn.processes] == ["cpu:0", "cpu:0"]
        assert [row["step"] for row in learn.processes] == [None, None]
        learn.step(3)
        learn.run(until=lambda record: record.step == 5)
        assert [row["step"] for row in learn.processes] == [5, 5] and all(row["own work"] and row["step time"] and row["memory"] for row in learn.processes)
        assert [row["remark"] for row in learn.processes] == ["", ""]
        learn.rewind(1)
        assert [row["step"] for row in learn.processes] == [4, 4]


def test_the_slowest_process_is_named_wherever_the_run_is_shown():
    learn = make()
    with learn.launch(2):
        learn.step(1)
        report = {"step": 1, "seconds": 0.02, "is_brief": False, "memory": 3e8}
        learn.run_state.parts.remote_run.processes.reports.speeds = {0: report | {"own": 0.008}, 1: report | {"own": 0.019}}
        assert [row["remark"] for row in learn.processes] == ["", "the slowest"]
        assert learn.processes[0]["memory"] == "300 MB" and learn.processes[1]["step time"] == "20 ms" and all(learn.processes[0])
        status = view_status(learn.run_state)
        assert "on 2 processes, of which rank 1 is the slowest" in status["words"] and status["memory"] == "0.6 GB"
        assert "rank 1 is the slowest" in repr(learn.dashboard())


# ---- scripts

PARTS = """
import torch
from torch.utils.data import TensorDataset
def net(): return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
def rows(n, seed=0):
    x = torch.randn(n, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, :3].sum(1) > 0).long())
"""

TORCHRUN = ["-m", "torch.distributed.run", "--nproc_per_node", "2"]


def python(folder, *command):
    "Run a script; what it printed."
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run([sys.executable, *map(str, command)], cwd=folder, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def exported(folder, lines):
    "Run a session with these lines, which export a script; its lines with the learner, and what the session printed."
    made = ("learn = Learner(model_init=net, train_dataset=rows(41), loss_func=torch.nn.functional.cross_entropy, use_cpu=True, disable_tqdm=True,"
            " per_device_train_batch_size=4, num_train_epochs=1)")
    text = f'{PARTS}\nfrom trainer_nb import Learner\nif __name__ == "__main__":\n' + textwrap.indent("\n".join([made, *lines]), "    ")
    (folder/"session.py").write_text(text)
    python(folder, "session.py")
    return [line.split("   #")[0].strip() for line in (folder/"script.py").read_text().splitlines() if line.startswith("    learn.")]


@pytest.mark.parametrize("how, keep", [(TORCHRUN, True), *(pytest.param(*o, marks=pytest.mark.slow) for o in (([], False), ([], True), (TORCHRUN, False)))])
def test_the_script_of_a_launched_run(tmp_path, keep, how):
    "It launches, even if the run was launched before its first step; or it is launched, and keeps the global batch."
    exported(tmp_path, [f"learn.launch(2, train=True, keep_global_batch={keep})", "learn.export_script('script.py')"])
    assert "byte for byte" in python(tmp_path, *how, "script.py")


def test_the_script_of_a_run_that_was_launched_for_some_steps_goes_on_in_the_processes(tmp_path):
    "With train=True the close at the end is left out; one before other steps is not."
    lines = exported(tmp_path, ["with learn.launch(2, keep_global_batch=True): learn.step(2)", "learn.step()", "with learn.launch(2): learn.step()",
                                "learn.export_script('script.py', train=True)", "learn.launch(2, train=True)", "learn.save_model('want')"])
    assert lines == ["learn.launch(num_processes=2, keep_global_batch=True)", "learn.step(2)", "learn.close()", "learn.step(1)",
                     "learn.launch(num_processes=2)", "learn.step(1)", "learn.train()", "learn.save_model(_output_dir)"]
    python(tmp_path, "script.py")
    want, got = (load_file(tmp_path/o/"model.safetensors") for o in ("want", "script_output"))
    assert all(torch.equal(want[name], got[name]) for name in want)


def test_a_script_for_any_number_of_processes(tmp_path):
    "With keep_global_batch=True it divides the batch from the first step on, in place of the launches of the session."
    lines = exported(tmp_path, ["learn.step(2)", "with learn.launch(2, keep_global_batch=True): learn.step(3)", "learn.export_script('script.py', train=True, keep_global_batch=True)",
                                "learn.train()", "learn.save_model('want')"])
    assert lines == ["learn.launch(keep_global_batch=True)", "learn.step(5)", "learn.train()", "learn.save_model(_output_dir)"]
    assert "Start it with `torchrun --nproc_per_node 2 script.py`" in (tmp_path/"script.py").read_text()
    python(tmp_path, *TORCHRUN, "script.py")
    want, got = (load_file(tmp_path/o/"model.safetensors") for o in ("want", "script_output"))
    for name, tensor in want.items(): torch.testing.assert_close(got[name], tensor)


def torchrun(*more): return [sys.executable, "-m", "torch.distributed.run", *map(str, more), "script.py"]


def said_by(folder, *commands):
    "What these print that are started together; how they exit is torch's business, which may abort at the end."
    environment = os.environ | {"PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}
    started = [subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) for command in commands]
    return "".join(o.communicate(timeout=200)[0] for o in started)


@pytest.mark.parametrize("how", ["accelerate", "two torchruns", "anew"])
def test_the_script_of_a_launched_run_in_other_hands(tmp_path, how):
    "Under Accelerate's launcher, on two machines that torchrun brings together, and of a run that has begun anew on its processes."
    again = "; learn.reset(); learn.train()" if how == "anew" else ""
    assert "learn.launch(num_processes=2)" in exported(tmp_path, [f"with learn.launch(2): learn.train(){again}", "learn.export_script('script.py')"])
    port = free_port()
    if how == "accelerate": commands = [[sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--main_process_port", str(port), "script.py"]]
    elif how == "anew": commands = [[sys.executable, "script.py"]]
    else: commands = [torchrun("--nnodes", 2, "--node_rank", node, "--master_addr", "127.0.0.1", "--master_port", port, "--nproc_per_node", 1) for node in (0, 1)]
    assert "byte for byte" in (said := said_by(tmp_path, *commands)), said


def test_the_script_of_two_processes_under_four_is_refused(tmp_path):
    exported(tmp_path, ["learn.launch(2, train=True)", "learn.export_script('script.py')"])
    assert "in one of 4 processes that a launcher has started" in said_by(tmp_path, torchrun("--nproc_per_node", 4))


# ---- data

class OfCell(Dataset):
    "As if it had been defined in a cell: a fresh process cannot import it."
    def __len__(self): return 48
    def __getitem__(self, i): return rows(48)[i]

OfCell.__module__, OfCell.__qualname__ = "__main__", "OfCell"


def test_data_of_a_cell_with_workers_of_its_own():
    "Processes that were spawned fork those that load their data, as the notebook does."
    learn = make(data=OfCell(), dataloader_num_workers=1)
    with learn.launch(2, start="spawn"): assert learn.step(2)[-1].step == 2


def test_gpus_that_stand_by_are_told_of_once(monkeypatch, capsys):
    "One line, on a GPU beside others, by one process; on a CPU and among several processes nothing."
    from trainer_nb.engine.prepare import suggest_idle_gpus
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    suggest_idle_gpus.cache_clear()
    for kind, alone in (("cpu", True), ("cuda", False), ("cuda", True), ("cuda", True)): suggest_idle_gpus(kind, alone)
    suggest_idle_gpus.cache_clear()
    assert capsys.readouterr().out == "This machine has 4 GPUs, and one of them is used; learn.launch(num_processes=4) uses all.\n"
# ---- settings of torch

@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_settings_of_torch_are_those_of_the_notebook(start):
    "Fresh processes have torch's defaults, and would train with another precision than forks."
    def present(learn=None): return torch.get_default_dtype(), torch.get_float32_matmul_precision(), torch.get_deterministic_debug_mode(), getattr(torch, "backends").cudnn.benchmark   # not by name: cloudpickle would send the module
    before, learn = learner_parts(make())["torch settings"], make()
    try:
        torch.set_float32_matmul_precision("high")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = True
        torch.set_default_dtype(torch.float64)
        with learn.launch(2, start=start): found = learn.run_on_all(present)
    finally:
        apply_torch_settings(before)
    assert found == [(torch.float64, "high", 1, True)] * 2 and present() == (torch.float32, "highest", 0, False)


# ---- a kernel that is gone

class Lasts(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs): time.sleep(0.01)


def test_a_killed_kernel_leaves_a_whole_log_and_whole_checkpoints(tmp_path):
    "What is on the disk is what the processes had told; the run goes on from there as if nothing had happened."
    inside, outside = multiprocessing.Pipe()
    def kernel():
        learn = make(output_dir=str(tmp_path), save_steps=2, callbacks=[Lasts()])
        learn.launch(2)
        outside.send(pids(learn))
        learn.train()
    process = multiprocessing.get_context("fork").Process(target=kernel)
    process.start()
    found = inside.recv()
    while not (tmp_path/"checkpoint-6").exists(): time.sleep(0.01)
    process.kill()
    process.join()
    assert all(map(is_gone, found))
    log = next((tmp_path/"runs").glob("*.jsonl"))
    told = read_history(log)
    steps = [r.step for r in told if not r.abandoned]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) >= 6   # no row is missing of those before the checkpoint
    assert {"launch", "checkpoint"} <= {e["kind"] for e in told.events}
    second, whole = make(output_dir=str(tmp_path), save_strategy="no"), make()
    with second.launch(2): second.train(resume_from_checkpoint=True)
    whole.launch(2, train=True)
    second.state.best_model_checkpoint = None
    same(whole, second)


def test_the_best_model_of_an_optimizer_of_two_modes(tmp_path):
    "Each process needs the state that the weights to be used are computed from."
    learn = make(output_dir=str(tmp_path), optim="schedule_free_adamw", lr_scheduler_type="constant", learning_rate=0.3, save_strategy="epoch", load_best_model_at_end=True,
                 metric_for_best_model="loss", greater_is_better=True, num_train_epochs=2)   # the worst, then: not the last
    with learn.launch(2):
        learn.train()
        assert learn.state.best_global_step == 6 and learn.evaluate()["eval_loss"] == learn.state.best_metric


@pytest.mark.parametrize("division", [{}, {"fsdp": "full_shard"}])
def test_a_run_that_does_not_fit_here_stays_on_the_host(monkeypatch, tmp_path, division):
    learn, other = make(**division), make(**division)
    for o in (learn, other): o.launch(2); o.step(5)

    def is_too_large(*args, **kwargs): raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as here:
        here.setattr(Device, "prepare", is_too_large)
        with pytest.warns(UserWarning, match=r"does not fit this process's device: learn\.launch\(2\) continues"): learn.close()
        # nothing may go on with the weights of the launch
        for verb in (lambda: learn.step(1), lambda: learn.train(), lambda: learn.save_checkpoint(tmp_path/"c"), lambda: learn.branch(),
                     lambda: learn.snapshot("now"), lambda: learn.set(learning_rate=1.0), lambda: setattr(learn.args, "max_grad_norm", 0.5)):
            with pytest.raises(InvalidOperation, match=r"could not be loaded .* learn\.launch\(2\) continues it on several"): verb()
        with pytest.raises(torch.OutOfMemoryError): learn.restore("at the close")
        assert learn.processes is None and learn.state.global_step == 5
        learn.save_model(tmp_path/"of_host")
    other.save_model(tmp_path/"of_processes")
    assert (tmp_path/"of_host/model.safetensors").read_bytes() == (tmp_path/"of_processes/model.safetensors").read_bytes()
    learn.launch(2)
    for o in (learn, other): o.step(3); o.close()
    same(other, learn)
    assert [r.loss for r in learn.history] == [r.loss for r in other.history]
    assert acts(learn) == ["launch", "close", "launch", "close"]


prepare_device = Device.prepare

def too_large_here(device, *args, **kwargs):
    "Prepare a model in the processes, which have a part of it; the notebook has no room for all of it."
    if "RANK" not in os.environ: raise torch.OutOfMemoryError("CUDA out of memory")
    return prepare_device(device, *args, **kwargs)


@pytest.mark.parametrize("division", [{"fsdp": "full_shard"}, pytest.param({"deepspeed": ZERO}, marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", ["reset", "train"])
def test_a_divided_run_begins_anew_although_it_does_not_fit_here(monkeypatch, how, division):
    "It passes through the memory of the host."
    if "deepspeed" in division: pytest.importorskip("deepspeed")
    def new_model():
        torch.manual_seed(0)
        return Net()
    again = {"kind": lambda model, **settings: Learner(model_init=new_model, **settings)} if how == "train" else {}
    learn, other = (make(max_steps=4, eval_strategy="no", **division, **again) for _ in range(2))
    other.launch(2, train=True)
    with learn.launch(2):
        learn.step(3)
        if how == "train": learn.train()
        before = learn.history
        with monkeypatch.context() as here:
            here.setattr(Device, "prepare", too_large_here)
            if how == "reset": learn.reset()
            learn.train()
        assert learn.history is not before and learn.history.parent == before.run_id and learn.evaluate()["eval_loss"] == other.evaluate()["eval_loss"]
        if how == "reset":
            learn.reset()   # its own first weights are known
            learn.train()
    assert [r.loss for r in learn.history] == [r.loss for r in other.history] and acts(learn)[-1] == "close"
    assert all(torch.equal(one, two) for one, two in zip(learn.model.state_dict().values(), other.model.state_dict().values()))


# verbs that evaluate, show or save the weights of the model
USE_WEIGHTS = [lambda learn: learn.save_model(), lambda learn: learn.evaluate(), lambda learn: learn.predict(rows(4)), lambda learn: learn.predict_one(rows(4)[0]),
               lambda learn: learn.evaluation_loop(learn.get_eval_dataloader(), "Evaluation"), lambda learn: learn.summary(), lambda learn: learn.top_losses(2),
               lambda learn: learn.confusion(), lambda learn: learn.show_results(2), lambda learn: learn.push_to_hub()]


def test_a_buffer_that_was_registered_there_comes_back():
    def change(learn): learn.model.register_buffer("extra", torch.ones(3))
    learn = make()
    learn.launch(2)
    learn.step(3)
    learn.run_on_all(change)
    learn.close()
    assert learn.model.extra.tolist() == [1, 1, 1] and learn.step(1)[0].step == 4


def test_the_end_of_a_block_brings_the_run_back_after_an_error_that_waited(tmp_path):
    "The error is raised, and no processes are left."
    learn = make()
    with pytest.raises(InvalidOperation, match="list of callbacks was changed by hand"):
        with learn.launch(2):
            learn.run(steps=3)
            learn.callback_handler.callbacks.append(TrainerCallback())
            learn.step()
    assert learn.processes is None and learn.step(1)[0].step == 4
    class Full(TrainerCallback):
        "The disk is full when the checkpoint is written."
        def on_step_end(self, args, state, control, **kwargs):
            def fail(*given): raise OSError("No space left on device")
            async_save.write_checkpoint = fail
    learn = make(output_dir=str(tmp_path), save_steps=3, callbacks=[Full()])
    with pytest.raises(SaveFailed, match="No space left"):
        with learn.launch(2, start="fork"): learn.step(3)
    assert learn.processes is None and learn.state.global_step == 3


def test_a_corrupted_run_that_does_not_fit_here_is_not_kept(monkeypatch):
    "Neither a launch nor a snapshot continues from half-updated weights."
    def is_too_large(*args, **kwargs): raise torch.OutOfMemoryError("CUDA out of memory")
    learn = make(optimizer_cls_and_kwargs=(HalfWay, {"lr": 0.01}), rewind_every=0)
    learn.launch(2)
    with pytest.raises(KeyError, match="half-way"): learn.train()
    with monkeypatch.context() as here:
        here.setattr(Device, "prepare", is_too_large)
        with pytest.raises(torch.OutOfMemoryError) as raised: learn.close()
    assert "the optimizer failed in the middle" in raised.value.__notes__[-1] and not learn.snapshots and learn.processes is None
    for verb in USE_WEIGHTS:
        with pytest.raises(InvalidOperation, match=r"would use other weights than those of the run: the optimizer failed in the middle .* learn\.reset\(\) begins anew"): verb(learn)
    for verb in (learn.step, lambda: learn.launch(2)):
        with pytest.raises(InvalidOperation, match="the optimizer failed in the middle of its update"): verb()
    learn.reset()
    assert learn.step(2)[-1].step == 2


def test_the_averages_of_an_optimizer_that_was_not_loaded_are_not_taken_from_the_model(monkeypatch, tmp_path):
    "It has computed them on the processes; the model has the weights at which it computes gradients."
    def is_too_large(*args, **kwargs): raise torch.OutOfMemoryError("CUDA out of memory")
    learn, other = (make(optim="schedule_free_adamw", lr_scheduler_type="constant", learning_rate=0.3) for _ in range(2))
    for o in (learn, other): o.launch(2); o.step(3)
    with monkeypatch.context() as here:
        here.setattr(Device, "prepare", is_too_large)
        with pytest.warns(UserWarning, match=r"does not fit .*tries again to load it here\.$"): learn.close()
    for verb in USE_WEIGHTS:
        with pytest.raises(InvalidOperation, match=r"would use other weights .* learn\.launch\(2\) continues it on several"): verb(learn)
    learn.restore("at the close")
    other.close()
    for o, name in ((learn, "one"), (other, "other")): o.save_model(tmp_path/name)
    assert (tmp_path/"one/model.safetensors").read_bytes() == (tmp_path/"other/model.safetensors").read_bytes()


def test_warnings_of_processes_are_printed_where_the_notebook_records_its_own(capfd):
    "A fork inherits the recorder of the cell; what it records in another process would be lost."
    def warns(learn):
        warnings.warn(f"of rank {os.environ['RANK']}")
    learn = make(eval_strategy="no")
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        with learn.launch(2): learn.run_on_all(warns)
    said = "".join(capfd.readouterr())
    assert not recorded and "UserWarning: of rank 0" in said

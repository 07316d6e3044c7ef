"Runs on several processes that stop for other reasons than most: code that raises KeyboardInterrupt, a function that takes too long, a death while nothing is trained."
import gc, os, signal, subprocess, sys, threading, time

import pytest, torch

from trainer_nb import TrainerCallback
from launched import is_gone, like, likes, make, pids, same   # noqa: F401  (like, likes are fixtures)
from presses import acts, press

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("launch")]


# ---- a KeyboardInterrupt of the user's own

class Enough(TrainerCallback):
    "Stops the run as some do, once."
    at, ranks, told = ("begin", 5), "01", 0
    def stop(self, when, state):
        if (when, state.global_step) == self.at and os.environ.get("RANK", "0") in self.ranks and not self.told:
            # an attribute of its own would go back with the step that fails, and it would stop there again
            type(self).told = 1
            raise KeyboardInterrupt("enough")
    def on_step_begin(self, args, state, control, **kwargs): self.stop("begin", state)
    def on_step_end(self, args, state, control, **kwargs): self.stop("end", state)


@pytest.mark.parametrize("at", [("begin", 5), ("end", 5)])
def test_a_keyboard_interrupt_of_the_users_code_pauses_the_run(at, like):
    "As with one process."
    alone, learn = (make(callbacks=[type("Now", (Enough,), {"at": at})()]) for _ in range(2))
    with pytest.raises(KeyboardInterrupt, match="paused after step 5 of 36"): alone.train()
    with learn.launch(2):
        with pytest.raises(KeyboardInterrupt, match="Interrupted in the process of rank [01]; paused after step 5 of 18"): learn.train()
        assert learn.state.global_step == 5 and learn.run_state.current.paused and acts(learn) == ["launch"]
        learn.train()
    assert learn.history.column("loss").tolist() == like.history.column("loss").tolist()


class Behind(TrainerCallback):
    "The second process waits for half a second: in the middle of the fifth step, or after it."
    order = -100
    def __init__(self, where): self.where = where
    def wait(self, where, state, step):
        if (where, step) == (self.where, state.global_step) and os.environ.get("RANK") == "1": time.sleep(0.5)
    def on_pre_optimizer_step(self, args, state, control, **kwargs): self.wait("within", state, 4)
    def on_step_end(self, args, state, control, **kwargs): self.wait("after", state, 5)


@pytest.mark.parametrize("where", ["within", "after"])
@pytest.mark.parametrize("at", [("begin", 5), ("end", 5)])
def test_a_process_that_fails_later_than_another_is_not_interrupted_before(at, where, like):
    "All fail alike after the fifth step, and none is started again, although one is behind the other."
    class Now(Enough): pass
    Now.at = at
    learn = make(callbacks=[Behind(where), Now()])
    with learn.launch(2):
        before = pids(learn)
        with pytest.raises(KeyboardInterrupt, match="Interrupted in the process of rank [01]; paused after step 5 of 18"): learn.train()
        assert learn.state.global_step == 5 and acts(learn) == ["launch"] and pids(learn) == before
        learn.train()
    assert learn.history.column("loss").tolist() == like.history.column("loss").tolist()


def test_a_keyboard_interrupt_on_one_process_pauses_the_run(hasty, like):
    "The other waits for it in the middle of its step; so both are begun anew, and stand where they stood."
    class Now(Enough): ranks = "1"
    learn = make(callbacks=[Now()])
    with learn.launch(2):
        with pytest.raises(KeyboardInterrupt, match="Interrupted in the process of rank 1; paused after step 5 of 18"): learn.train()
        assert learn.run_state.current.paused and acts(learn) == ["launch", "restart"]
        learn.pop_callback(Now)
        learn.train()
    assert learn.history.column("loss").tolist() == like.history.column("loss").tolist()


class Late(TrainerCallback):
    "The second process comes to the fifth update later than the other waits for it."
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 4 and os.environ.get("RANK") == "1": time.sleep(4)


def test_processes_that_have_waited_in_vain_are_started_again(like):
    "All fail alike, and their connection is of no use any more."
    learn = make(callbacks=[Late()], ddp_timeout=2)
    with learn.launch(2):
        with pytest.raises(RuntimeError, match="imed out|closed by peer"): learn.train()
        assert learn.state.global_step == 4 and acts(learn) == ["launch", "restart"]
        learn.pop_callback(Late)
        learn.train()
    assert learn.history.column("loss").tolist() == like.history.column("loss").tolist()


# ---- the events of a pause

class Pauses(Enough):
    "Counts the pauses; raises KeyboardInterrupt in a pause if told to."
    num, fails = 0, False
    def on_pause(self, args, state, control, **kwargs):
        self.num += 1
        if self.fails: raise KeyboardInterrupt("in the pause")
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 7 and self.told == 1: type(self).told = 2; time.sleep(600)
        super().on_step_begin(args, state, control, **kwargs)


def test_each_pause_is_recorded_once_whatever_its_cause():
    "A KeyboardInterrupt of the user's code, a second press, and a later press: as with one process."
    def pauses(learn): return [e["step"] for e in learn.history.events if e["kind"] == "pause"]
    def paused(learn): return next(c.num for c in learn.callback_handler.callbacks if type(c).__name__ == "Pauses")
    class Slow(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs): time.sleep(0.2)
    learn = make(callbacks=[Pauses(), Slow()])
    with learn.launch(2):
        with pytest.raises(KeyboardInterrupt, match="paused after step 5"): learn.train()
        assert pauses(learn) == [5] and learn.run_on_all(paused) == [1, 1]
        press(2.0, 0.1)
        with pytest.raises(KeyboardInterrupt, match="paused after step 7"): learn.train()
        assert pauses(learn) == [5, 7] and learn.run_on_all(paused) == [2, 2]
        press(0.5)
        with pytest.raises(KeyboardInterrupt, match="Paused after step"): learn.train()
        assert len(pauses(learn)) == 3 and learn.run_on_all(paused) == [3, 3]


def test_a_keyboard_interrupt_after_handled_presses_names_its_process():
    "The presses have led to the pause; they have not interrupted it."
    class Now(Pauses): fails = True
    learn = make(callbacks=[Now()])
    with learn.launch(2):
        learn.step(1)
        run = learn.run_state
        with run.interrupts:
            run.interrupts.pressed = 2
            try:
                with pytest.raises(KeyboardInterrupt, match="in the process of rank [01]"): run.parts.remote_run.pause(learn)
            finally:
                run.interrupts.pressed = 0


# ---- each

def test_a_function_of_the_users_can_be_interrupted(like):
    learn = make()
    with learn.launch(2):
        learn.step(5)
        before = pids(learn)
        press(0.3, 0.1)
        with pytest.raises(KeyboardInterrupt): learn.run_on_all(lambda learn: time.sleep(600))
        assert pids(learn) == before and learn.run_on_all(lambda learn: learn.state.global_step) == [5, 5]
        learn.train()
    same(like, learn)


def test_a_process_that_is_busy_shows_where(monkeypatch):
    monkeypatch.setattr("trainer_nb.launch.process_group.BUSY_SECONDS", 0.3)
    def waits(learn): time.sleep(3 * int(os.environ["RANK"]))
    learn, found = make(), []
    with learn.launch(2):
        timer = threading.Timer(1.5, lambda: found.extend(row["remark"] for row in learn.processes))
        timer.start()
        learn.run_on_all(waits)
        timer.join()
    assert found[0] == "" and "test_launch_stops.py" in found[1] and "in waits" in found[1]


# ---- a death while nothing is trained

def test_a_verb_that_only_looks_is_done_once_more(hasty, like):
    learn = make()
    with learn.launch(2, max_restarts=1):
        learn.step(5)
        here = learn.evaluate()["eval_loss"]
        os.kill(pids(learn)[1], signal.SIGKILL)
        with pytest.warns(UserWarning, match="rank 1 was killed by SIGKILL.* after step 5.*continues automatically .max_restarts allows 0 more"): assert learn.evaluate()["eval_loss"] == here
        assert acts(learn) == ["launch", "restart"] and [e["step"] for e in learn.history.evaluations()] == [5, 5]
        victim = pids(learn)[1]
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(RuntimeError, match="rank 1 was killed by SIGKILL"): learn.evaluate()
        assert is_gone(victim) and learn.evaluate()["eval_loss"] == here


@pytest.mark.parametrize("back, step", [(lambda learn: learn.restore("here"), 3), (lambda learn: learn.rewind(2), 5), (lambda learn: learn.reset(), 0)])
def test_a_death_names_the_step_to_which_the_run_has_gone_back(hasty, back, step):
    "Not one of the steps that it has left."
    learn = make(eval_strategy="no")
    with learn.launch(2):
        learn.step(3)
        learn.snapshot("here")
        learn.step(4)
        back(learn)
        os.kill(pids(learn)[1], signal.SIGKILL)
        with pytest.raises(RuntimeError, match=rf"rank 1 was killed by SIGKILL.* after step {step}[.;]"): learn.step(1)
        assert learn.state.global_step == step and learn.step(1)[0].step == step + 1


def test_what_changes_the_run_is_not_done_once_more(hasty):
    learn = make()
    with learn.launch(2, max_restarts=1):
        learn.step(5)
        os.kill(pids(learn)[1], signal.SIGKILL)
        with pytest.raises(RuntimeError, match="rank 1 was killed by SIGKILL"): learn.set(lr=1e-3)


# ---- callbacks that are taken out

@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_callback_of_a_cell_is_taken_out_there_too(start):
    "By its class or itself, of which the processes have others; the second of a kind is not the first."
    class Own(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs): state.told = self.told
        def __init__(self, told): self.told = told
    first, second, third = map(Own, "abc")
    learn = make(callbacks=[first, second, third])
    def there(learn): return [c.told for c in learn.callback_handler.callbacks if type(c).__name__ == "Own"]
    with learn.launch(2, start=start):
        assert learn.pop_callback(second).told == "b" and learn.run_on_all(there) == [["a", "c"]] * 2
        learn.remove_callback(Own)
        assert learn.run_on_all(there) == [["c"]] * 2 == [there(learn)] * 2 and learn.pop_callback(second) is None
    assert [row["act"] for row in learn.journal].count("remove_callback") == 2


# ---- what is left in the temp folder

def test_a_run_that_nobody_brings_home_leaves_no_folder():
    learn = make()
    learn.launch(2, start="fork")
    learn.step(1)
    folder = learn.run_state.parts.remote_run.processes.pool.settings["folder"]
    found, pid = pids(learn), os.fork()
    if pid == 0: learn = None; gc.collect(); os._exit(0)   # a fork that lets go of its copy leaves the run alone
    os.waitpid(pid, 0)
    assert learn.step(1)[0].step == 2 and os.path.isdir(folder)
    del learn
    gc.collect()
    assert all(map(is_gone, found)) and not os.path.exists(folder)


def test_a_script_that_ends_with_its_processes_leaves_no_folder(tmp_path):
    (tmp_path/"temp").mkdir()
    (tmp_path/"script.py").write_text("from launched import make\nif __name__ == '__main__':\n    learn = make()\n    learn.launch(2)\n    learn.step(1)\n")
    env = os.environ | {"TMPDIR": str(tmp_path/"temp"), "PYTHONPATH": os.pathsep.join([os.path.dirname(os.path.dirname(__file__)), *filter(None, sys.path)])}
    subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=env, check=True)
    assert not list(tmp_path.glob("temp/trainer_nb-*"))


# ---- requests of one process

class Asks(TrainerCallback):
    "Makes a request in one process only, or calls a collective."
    def __init__(self, event, request, rank): self.event, self.request, self.rank = event, request, rank
    def ask(self, event, state, control):
        step = {"on_step_end": 4, "on_train_end": 18}.get(event, 6)
        if event != self.event or state.global_step != step or os.environ.get("RANK", "none") not in self.rank: return
        if self.request in vars(control): return setattr(control, self.request, True)
        given = {"barrier": (), "all_gather_object": ([None] * 2, 1), "broadcast": (torch.ones(1), 0)}
        getattr(torch.distributed, self.request)(*given.get(self.request, [torch.ones(len(self.rank) + int(os.environ["RANK"]))]))
    def on_step_end(self, args, state, control, **kwargs): self.ask("on_step_end", state, control)
    def on_evaluate(self, args, state, control, **kwargs): self.ask("on_evaluate", state, control)
    def on_epoch_end(self, args, state, control, **kwargs): self.ask("on_epoch_end", state, control)
    def on_train_end(self, args, state, control, **kwargs): self.ask("on_train_end", state, control)


@pytest.mark.parametrize("event, request_, rank, every", [
    ("on_step_end", "should_save", "1", 100), ("on_step_end", "should_evaluate", "0", 2), ("on_step_end", "should_training_stop", "1", 1),
    ("on_epoch_end", "should_save", "0", 100), ("on_evaluate", "should_training_stop", "1", 100),
    ("on_step_end", "all_reduce", "1", 100), ("on_evaluate", "barrier", "0", 2), ("on_train_end", "broadcast", "1", 100), ("on_step_end", "all_gather_object", "0", 1),
    ("on_step_end", "all_reduce", "01", 100),   # of other shapes
])
def test_a_request_of_one_process_raises_an_error(event, request_, rank, every, tmp_path):
    "It names the rank, the request and the callback, also where all of them have others; the run continues with the state of one of them."
    learn = make(callbacks=[Asks(event, request_, rank)], logging_steps=every, output_dir=str(tmp_path), save_strategy="no")
    with learn.launch(2):
        learn.step(3)
        begun = time.monotonic()
        said = f"equests .*{request_}.* .Asks.{event} has set {request_}" if request_.startswith("should") else f"calls {request_}.* .Asks.{event} calls it"
        with pytest.raises(ValueError, match=rf"{said} on rank [{rank}]\): a callback"): learn.train()
        assert time.monotonic() - begun < 10 and learn.state.global_step == {"on_step_end": 4, "on_train_end": 18}.get(event, 6)
        if not request_.startswith("should"): learn.pop_callback(Asks)
        learn.train()
    assert learn.state.global_step in ({4} if (event, request_) == ("on_step_end", "should_training_stop") else {6, 18} if event == "on_evaluate" else {18})

"Two machines that are this one: a learner on each, one of them commands. The other one is a fork of this process, or a script of its own."
import multiprocessing, os, re, signal, subprocess, sys, threading, time, warnings
from contextlib import contextmanager, suppress

import pytest

from trainer_nb import TrainerCallback
from trainer_nb.launch.launchers import free_port
from trainer_nb.launch.links import MachineListener, connect_to_main, make_machine_info
from trainer_nb.engine.snapshot import differences
from launched import Fails, counted, is_gone, like, make, pids, rows, same   # noqa: F401  (like is a fixture)

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("launch")]


def here(port, node, **more): return dict(num_nodes=2, node_rank=node, master_addr="127.0.0.1", master_port=port, timeout=60) | more


class Machine:
    "Another machine: what `launch` says there, or what it raises."
    def __init__(self, port, learner=make, node=1, n=1, **how):
        self.inside, outside = multiprocessing.Pipe()
        def serve():
            said = []
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                try:
                    learn = learner()
                    said.append(repr(learn.launch(n, **here(port, node, **how))))
                    learn.train()
                except BaseException as error: said.append(f"{type(error).__name__}: {error}")
            outside.send([*said, *(str(w.message) for w in heard)])
            os._exit(0)
        self.process = multiprocessing.get_context("fork").Process(target=serve)
        self.process.start()

    def says(self, seconds=60) -> str:
        assert self.inside.poll(seconds), "the other machine says nothing"
        return "\n".join(self.inside.recv())

    def end(self):
        self.process.kill()
        self.process.join()


@contextmanager
def two(learn, n=1, there=make, **how):
    "A run on this machine and another one; gives that."
    port = free_port()
    machine = Machine(port, there, n=n)
    try:
        learn.launch(n, **here(port, 0), **how)
        yield machine
    finally:
        learn.close()
        machine.end()


# ---- equal runs

def test_the_same_run_as_on_one_machine(tmp_path, like):
    "All verbs, in any split; the processes of both are told apart in the table."
    learn = make(output_dir=str(tmp_path), save_strategy="no")
    with two(learn, there=lambda: make(learning_rate=1.0)) as machine:
        assert [row["machine"] for row in learn.processes] == [0, 1] and learn.state.max_steps == 18
        assert [r.step for r in learn.step(3)] == [1, 2, 3]
        assert learn.run(until=lambda record: record.step == 5)[-1].step == 5 and learn.run_on_all(lambda learn: learn.state.global_step) == [5, 5]
        learn.evaluate(), learn.inspect(), learn.lr_find(num_steps=10)
        learn.snapshot("here")
        for i, record in enumerate(learn.steps()):
            if i == 1: break
        assert learn.rewind(2).different == [] and learn.step(3)[-1].step == 8
        learn.restore("here")
        assert learn.save_checkpoint().name == "checkpoint-5"
        assert len(learn.predict(rows(21, 2)).predictions) == 21
        learn.train()
        learn.close()
        said = machine.says()
    assert "the run has gone home to machine 0" in said and "InvalidOperation: train() cannot go on: the run is with machine 0" in said
    assert "settings of machine 0 are in force: learning_rate is 0.01 there and 1.0 here" in said
    rows_of = [o for o in learn.history.evaluations() if o["step"] == 5]
    assert rows_of and set(differences(like.snapshot(), learn.snapshot())) <= {"args"} and counted(like) == counted(learn)


def test_runs_that_begin_anew_and_settings_and_callbacks(tmp_path):
    "Home and away again, with the same machines; what was added since the launch goes along."
    class Says(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs): print("step", state.global_step, "on", os.environ["RANK"], flush=True)
    one, learn = make(), make(output_dir=str(tmp_path), save_strategy="no")
    def play(learn):
        learn.step(2)
        learn.add_callback(Says())
        learn.set(learning_rate=0.02)
        learn.step(2)
        learn.reset()
        learn.run(epochs=1)
        assert learn.run_on_all(lambda learn: [type(o).__name__ for o in learn.run_state.callbacks.callbacks].count("Says")) == [1, 1]
        learn.train()
        learn.train()
    with one.launch(2): play(one)
    with two(learn): play(learn)
    same(one, learn)


def test_a_run_under_way_goes_to_both(like):
    "With an optimizer's memory that the other machine has never seen; the batch is divided among all processes."
    def play(learn):
        learn.step(3)
        return learn.train
    one, learn = make(per_device_train_batch_size=8), make(per_device_train_batch_size=8)
    train = play(one)
    with one.launch(2, keep_global_batch=True): train()
    train = play(learn)
    with two(learn, there=lambda: make(per_device_train_batch_size=8), keep_global_batch=True): train()
    same(one, learn)
    assert learn.history[-1].samples == 8


@pytest.mark.slow
def test_a_model_in_shards_comes_home_from_machines_with_different_numbers_of_processes():
    "Two here and one there: as from three on one machine."
    import sharded
    one, learn, port = sharded.make(), sharded.make(), free_port()
    machine = Machine(port, sharded.make, n=1)
    learn.launch(2, **here(port, 0))
    learn.step(3)
    assert learn.snapshot("here").tensors["weights/inward.weight"].shape == (15, 8) and [row["machine"] for row in learn.processes] == [0, 0, 1]
    learn.step(2)
    learn.restore("here")
    learn.train()
    learn.close()
    assert "the run has gone home to machine 0" in machine.says()
    machine.end()
    one.launch(3, train=True)
    sharded.same(one, learn)


# ---- stops

def test_pauses_are_agreed_on(like):
    "Whenever it is asked for: no machine is a step ahead, and none waits for another."
    class Slow(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs): time.sleep(0.004 * (1 + int(os.environ.get("RANK", 0))))
    learn = make(num_train_epochs=40, eval_strategy="no", callbacks=[Slow()])
    with two(learn, there=lambda: make(num_train_epochs=40, eval_strategy="no", callbacks=[Slow()])):
        run = learn.start()
        for i in range(5):
            time.sleep(0.03 + 0.011 * i)
            run.pause()
            steps = learn.run_on_all(lambda learn: learn.state.global_step)
            assert steps == [learn.state.global_step] * 2
            run.resume()
        run.pause()
        threading.Timer(0.15, signal.raise_signal, (signal.SIGINT,)).start()
        with pytest.raises(KeyboardInterrupt): learn.train()
        assert learn.run_on_all(lambda learn: learn.state.global_step) == [learn.state.global_step] * 2


# ---- failures

def test_an_error_there_is_raised_here_and_the_run_goes_on(tmp_path, like):
    bad = tmp_path/"bad"
    learn = make(data=Fails(bad, "1"))
    with two(learn, there=lambda: make(data=Fails(bad, "1"))):
        learn.step(4)
        bad.touch()
        with pytest.raises(OSError, match="no such picture") as raised: learn.step(2)
        assert "process of rank 1" in "".join(raised.value.__notes__) and learn.state.global_step == 4
        bad.unlink()
        learn.step(2)
        os.kill(pids(learn)[1], signal.SIGKILL)   # of the other machine; its kernel starts another one
        with pytest.raises(RuntimeError, match="rank 1 was ended by SIGKILL.*the processes are there again"): learn.step(1)
        learn.train()
    same(like, learn)


@pytest.mark.parametrize("how", ["killed", "interrupted"])
def test_a_machine_that_goes_is_named_and_the_run_is_at_home(like, how):
    "However many restarts are allowed: with how many machines it goes on is for the user to say."
    learn = make()
    with two(learn, max_restarts=3) as machine:
        learn.step(5)
        victim = pids(learn)[1]
        os.kill(machine.process.pid, signal.SIGKILL if how == "killed" else signal.SIGINT)
        with pytest.raises(RuntimeError) as raised: learn.train()
        words = r"machine 1 \(.*\)" + ("" if how == "killed" else ", which was interrupted there")
        assert re.search(f"The process of rank 1 is gone with {words}, after step \\d+. The run is as it was before the step, and is at home", str(raised.value)), raised.value
        assert learn.processes is None and is_gone(victim) and [row["act"] for row in learn.journal if row["act"] in ("launch", "close")] == ["launch", "close"]
        if how == "interrupted": assert "KeyboardInterrupt" in machine.says()
    learn.launch(2, train=True)
    same(like, learn)


def press(): os.kill(os.getpid(), signal.SIGINT)


@contextmanager
def standing_still(learn, machine):
    "The kernel of the other machine and its process do nothing; afterwards they are gone."
    victims = machine.process.pid, pids(learn)[1]
    for pid in victims: os.kill(pid, signal.SIGSTOP)
    try: yield
    finally:
        for pid in victims:
            with suppress(ProcessLookupError): os.kill(pid, signal.SIGKILL)


def test_the_button_before_a_step_that_another_machine_has_to_be_told_of(hasty):
    "It does not answer; one press ends the wait, and the run is where it was."
    learn = make()
    with two(learn) as machine:
        learn.step(5)
        with standing_still(learn, machine):
            threading.Timer(0.3, press).start()
            with pytest.raises(KeyboardInterrupt, match="given up before step 6: machine 1 .* does not answer"): learn.train()
        with pytest.warns(UserWarning, match="is gone with machine 1 .*after step 5. The run is as it was before the step, and is at home"): learn.close()
        assert learn.processes is None and learn.state.global_step == 5


@pytest.mark.slow
def test_the_button_while_another_machine_stands_still(hasty):
    "A press ends its process; it cannot start another, and one more press brings the run home."
    learn = make()
    with two(learn) as machine:
        learn.step(5)
        def presses():
            time.sleep(0.3)
            press()
            while not any(e["kind"] == "restart" for e in learn.history.events): time.sleep(0.1)
            while True:
                time.sleep(0.5)
                if learn.run_state.remote_run is None: break
                press()
        learn.run_state.remote_run.said.clear()
        with standing_still(learn, machine):
            threading.Thread(target=presses, daemon=True).start()
            with pytest.raises(KeyboardInterrupt): learn.evaluate()
        assert learn.processes is None and learn.state.global_step == 5


def test_a_machine_that_has_left_may_come_again():
    "While another one is waited for; those that are there count, and no number is there twice."
    where = make_machine_info(num_nodes=3, master_addr="127.0.0.1", master_port=free_port(), timeout=20)
    gathering, links = MachineListener(where), []
    def come(node): links.append(connect_to_main(where._replace(node=node), 1, lambda: False))
    come(1)
    links[0].close()
    while gathering.here(): time.sleep(0.01)
    come(2)
    with pytest.raises(ValueError, match="there is a machine 2 already"): come(2)
    threading.Timer(0.2, come, (1,)).start()   # until then it is waited for
    found = gathering.wait(lambda: False)
    assert [link.node for link in found] == [1, 2] and not any(link.gone.is_set() for link in found)
    for link in (*found, *links[1:]): link.close()


def test_machine_0_is_killed():
    "The others say so at once, and no process is left."
    port = free_port()
    inside, outside = multiprocessing.Pipe()
    def command():
        learn = make(num_train_epochs=10_000)
        learn.launch(1, **here(port, 0))
        outside.send(pids(learn))
        learn.train()
    first = multiprocessing.get_context("fork").Process(target=command)
    first.start()
    machine = Machine(port, lambda: make(num_train_epochs=10_000))
    found = inside.recv()
    time.sleep(0.2)
    first.kill()
    assert re.search(r"MachineGone: Machine 0 \(127.0.0.1:\d+\) is gone, and the run with it", machine.says(10))
    assert all(map(is_gone, found))
    first.join()
    machine.end()


class Broken(TrainerCallback):
    def on_init_end(self, args, state, control, **kwargs): pass


def test_machines_that_do_not_fit_together():
    "Refused on both, with the reason; the run stays at home."
    port = free_port()
    for learner, words in ((lambda: make(callbacks=[Broken()]), "ProgressCallback, and this one DefaultFlowCallback, Broken, ProgressCallback"), (lambda: make(n=44), "different lengths: 48 on rank 0, 44 on rank 1")):
        learn, machine = make(num_train_epochs=1), Machine(port, learner)
        with pytest.raises(ValueError, match=words):
            learn.launch(1, **here(port, 0))
            learn.step(1)
        learn.close()
        assert "machine 0" in machine.says().lower()
        machine.end()
        assert learn.processes is None and learn.step(1)[0].step == 1
    begun = make()
    begun.step(1)
    for words, how in {"have begun|has begun a run of its own": here(port, 1), "master_addr= and master_port=": dict(num_nodes=2), "not one of 2 machines": here(port, 2),
                       "numbers the machines as they come": here(port, 0, rdzv_backend="c10d")}.items():
        with pytest.raises(ValueError, match=words): begun.launch(1, **how)
    for node, words in ((0, "1 of 2 machines are here: call learn.launch"), (1, "machine 0 .* cannot be reached")):
        with pytest.raises(TimeoutError, match=words): make().launch(1, **here(port, node, timeout=0.3))
    assert begun.step(1)[0].step == 2


# ---- scripts

SCRIPT = """
import hashlib, os, sys
sys.path.insert(0, {tests!r})
from launched import make
node, n, port = map(int, sys.argv[1:])
learn = make()
found = learn.launch(n, train=True, num_nodes=2, node_rank=node, master_addr="127.0.0.1", master_port=port)
if node == 0: print("weights", hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in learn.model.state_dict().values())).hexdigest(), found.global_step, flush=True)
else: print(found, flush=True)
os._exit(0)
"""

@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2])
def test_two_scripts(tmp_path, n):
    "The same script on both machines, with one process or two: the bytes of as many on one machine."
    import hashlib
    (tmp_path/"script.py").write_text(SCRIPT.format(tests=os.path.dirname(os.path.dirname(__file__))))
    port = free_port()
    both = [subprocess.Popen([sys.executable, "script.py", str(node), str(n), str(port)], cwd=tmp_path, stdout=subprocess.PIPE, text=True) for node in (1, 0)]
    served, trained = (p.communicate(timeout=120)[0] for p in both)
    one = make()
    out = one.launch(2 * n, train=True)
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in one.model.state_dict().values())).hexdigest()
    assert f"weights {digest} {out.global_step}" in trained and "the run has gone home to machine 0" in served

"A run in a thread: the same bytes as in a cell, every verb meanwhile, errors, waiting, and what headless programs, terminals and scripts make of it."
import gc, os, re, subprocess, sys, textwrap, time, warnings, weakref

import nbformat
import pytest
import torch
from nbclient import NotebookClient

from trainer_nb import Learner, TrainerCallback, differences, follow
from trainer_nb.live.background import get_handle
from trainer_nb.core.errors import InvalidOperation
from trainer_nb.core.interrupts import RUN_LOCK
from backgrounds import CELL, Net, kernel, like, make, reach, rows   # noqa: F401

pytestmark = pytest.mark.usefixtures("one_thread")












# --- exactly the same ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("given", [{}, {"gradient_accumulation_steps": 3}, {"dataloader_num_workers": 2}, {"max_grad_norm": 0.1, "lr_scheduler_type": "cosine"}],
                         ids=["plain", "accumulation", "workers", "clipping"])
def test_the_same_as_in_a_cell(given):
    learn, want = make(**given), make(**given)
    out, wanted = learn.start().wait(), want.train()
    assert out.global_step == wanted.global_step and out.training_loss == wanted.training_loss
    assert differences(learn.snapshot(), want.snapshot()) == []


def test_pieces_and_verbs_leave_no_trace():
    "Paused, stepped, looked at from everywhere, trained in the foreground in between."
    learn = make(nap=0.003)
    run = learn.start()
    reach(learn, 3)
    learn.evaluate(), learn.inspect(), learn.summary(), learn.show_batch(), learn.predict(rows(5))
    run.pause()
    at = learn.state.global_step
    for _ in range(3): run.step()
    run.wait()
    assert learn.state.global_step == at + 3
    learn.lr_find(num_steps=10), learn.top_losses(2)
    learn.step(2)
    with learn.debug_step() as debug: debug.forward()
    run.resume()
    learn.snapshot("here")
    learn.rewind(1)
    debug = learn.debug_step()                 # while it is open the thread stands aside
    stood = learn.state.global_step
    time.sleep(0.05)
    debug.forward(), debug.backward()
    assert learn.state.global_step == stood
    debug.update()
    learn.model.nap = 0
    run.wait()
    assert learn.run_state.finished and differences(learn.snapshot(), like(learn)) == []


def test_set_and_restore_meanwhile():
    "What changes the run does so at a boundary, and the journal says at which."
    learn = make(nap=0.003)
    run = learn.start()
    reach(learn, 5)
    learn.snapshot("early")
    learn.set(lr=0.01)
    at = learn.run_state.history.events[-1]["step"]
    learn.model.nap = 0
    run.wait()
    other = make()
    other.step(at)
    other.set(lr=0.01)
    other.train()
    assert differences(learn.snapshot(), other.snapshot()) == []
    learn.restore("early")
    learn.run_state.parts.background_run.resume().wait()
    assert differences(learn.snapshot(), like(learn)) == []


def test_two_runs_at_once_take_turns():
    "The generators that a step seeds belong to the process: neither run draws from the other's."
    a, b = make(nap=0.001), make(nap=0.001, seed=7)
    # before they train: a network that is made draws from the generators, outside of any step
    noise = Learner(Net(), train_dataset=rows(), use_cpu=True, disable_tqdm=True)
    runs = [a.start(), b.start()]
    noise.step(5)
    for run in runs: run.wait()
    assert differences(a.snapshot(), like(a)) == [] and differences(b.snapshot(), like(b, seed=7)) == []


def test_a_cell_does_not_wait_for_more_than_a_step():
    "However many others train in the background."
    a, b = make(nap=0.02), make(nap=0.02)
    runs = [a.start(), b.start()]
    reach(a, 2), reach(b, 2)
    before = a.state.global_step + b.state.global_step
    a.summary()
    assert a.state.global_step + b.state.global_step - before <= 3
    for run in runs: run.pause()


# --- what it is asked for -----------------------------------------------------------------------------------------------------

def test_conditions_as_in_run():
    learn = make()
    assert learn.start(steps=4).wait().global_step == 4
    assert learn.start(epochs=1).wait().global_step == 20
    assert learn.start(until=lambda record: record.step == 23).wait().global_step == 23
    assert learn.run_state.parts.background_run.resume().wait().global_step == 60    # a condition that has held is over
    with pytest.raises(InvalidOperation, match="nothing to do"): learn.start()
    learn.set(max_steps=70)
    assert learn.start().wait().global_step == 70


def test_start_again_is_the_same_handle():
    learn = make(nap=0.005)
    run = learn.start()
    assert learn.start() is run
    assert learn.start(steps=3) is run
    assert run.wait().global_step < 60


def test_a_pause_before_the_first_step_is_no_step():
    "The thread has not had its turn yet: nothing is done, now or later."
    learn = make()
    with RUN_LOCK:
        run = learn.start()
        learn.pause()
    assert run.wait().global_step == 0 and len(learn.history) == 0
    assert run.step(2).wait().global_step == 2


def test_pause_of_the_learner_and_by_a_callback():
    class Pauses(TrainerCallback):
        def on_step_end(self, args, state, control, learner, **kwargs):
            if state.global_step == 7: learner.pause()
    learn = make(callbacks=[Pauses()])
    assert learn.start().wait().global_step == 7 and learn.run_state.current.paused
    learn.model.nap = 0.01
    run = learn.start()
    reach(learn, 8)
    learn.pause()
    assert run.wait().global_step < 20
    assert [e["kind"] for e in learn.history.events].count("pause") == 2


def test_stop_is_the_end():
    ended = []
    class Ends(TrainerCallback):
        def on_train_end(self, args, state, control, **kwargs): ended.append(state.global_step)
    learn = make(nap=0.005, callbacks=[Ends()])
    run = learn.start()
    reach(learn, 4)
    run.stop()
    assert learn.run_state.finished and ended == [learn.state.global_step] and "stopped" in run.status
    assert learn.journal[-1]["act"] == "stop"
    other = make()
    with pytest.raises(InvalidOperation, match="no step yet"): get_handle(other).stop()


def test_free_ends_it():
    learn = make(nap=0.005)
    run = learn.start()
    reach(learn, 2)
    learn.free()
    run.wait(10)
    assert not run.training


def test_wait_with_a_limit():
    learn = make(nap=0.02)
    run = learn.start()
    with pytest.raises(TimeoutError, match="and continues"): run.wait(0.05)
    assert run.training
    with run.paused() as same:
        at = same.state.global_step
        time.sleep(0.05)
        assert same is learn and learn.state.global_step == at
    assert run.training
    run.pause()


# --- errors -------------------------------------------------------------------------------------------------------------------

def test_an_error_is_raised_where_somebody_waits_and_said_at_the_next_verb():
    learn = make(nap=0.002)
    run = learn.start()
    reach(learn, 3)
    learn.model.bad = ValueError("a bad batch.")
    with pytest.raises(ValueError, match="a bad batch"): run.wait()
    assert "failed after step" in run.status and "a bad batch" in repr(run)
    with pytest.warns(UserWarning, match="failed after step .* with ValueError: a bad batch\\. Nothing is lost: learn.start"): learn.snapshot()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.snapshot()                       # said once
    learn.model.bad, learn.model.nap = None, 0
    run.resume().wait()
    assert run.error is None and differences(learn.snapshot(), like(learn)) == []


@pytest.mark.parametrize("at, back", [(4, lambda learn: learn.rewind(2)), (0, lambda learn: learn.reset())], ids=["rewind", "reset"])
def test_an_error_that_the_run_has_left_does_not_come_back(at, back):
    "Although the run is at the same step again."
    learn = make()
    if at: learn.step(at)
    learn.model.bad = ValueError("a bad batch")
    run = learn.start()
    with pytest.raises(ValueError, match="a bad batch"): run.wait()
    assert learn.state.global_step == at and "failed" in run.status
    learn.model.bad = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learn.step(2)
    assert "paused after step" in run.status   # it has gone on in a cell
    with pytest.raises(ValueError, match="a bad batch"): run.wait()
    back(learn)
    assert learn.state.global_step == at and "failed" not in run.status


def test_memory_of_an_error_is_let_go():
    class Big(Net):
        def forward(self, x, labels=None):
            big = torch.zeros(10)
            held.append(weakref.ref(big))
            if len(held) == 3: raise ValueError("big")
            return super().forward(x, labels)
    held = []
    learn = Learner(Big(), train_dataset=rows(), use_cpu=True, disable_tqdm=True)
    run = learn.start()
    run._budget.idle.wait(30)
    assert held[2]() is not None               # a debugger could look at it
    with pytest.warns(UserWarning, match="big"): learn.snapshot()
    gc.collect()
    assert held[2]() is None                   # with the next verb, as after an error in a cell
    with pytest.raises(ValueError, match="big"): run.wait()
    held.clear()
    run.step(1).wait()
    assert len(held) == 1 and learn.state.global_step == 3


def test_what_is_shown_keeps_no_learner_alive():
    learn = make()
    run = learn.start(steps=3)
    run.wait()
    dead = weakref.ref(learn)
    view = learn.dashboard()
    del learn
    gc.collect()
    assert dead() is None and "deleted" in run.status
    with pytest.raises(InvalidOperation, match="no variable refers to it"): run.resume()
    view.refresh()
    assert "deleted" in repr(view)


# --- in a kernel ----------------------------------------------------------------------------------------------------------------



GOES_ON = """
before = learn.state.global_step
while learn.state.global_step < before + 3: time.sleep(0.01)
"""




def test_the_kernel_is_free_and_the_output_stays(kernel):
    "A print of the model belongs to the cell that started the run, also when that cell is over and others run."
    kernel.run(CELL)
    first = kernel.send("learn.model.talk = True; run = learn.start()")
    kernel.wait(first)
    kernel.run(GOES_ON)
    assert "talking" not in kernel.run("print('free'); time.sleep(0.2)")
    kernel.run("run.pause()")
    kernel.until(lambda: first.text.count("talking") >= 5)


def test_an_interrupted_wait_leaves_it_going(kernel):
    kernel.run(CELL)
    kernel.run("run = learn.start()")
    cell = kernel.pressed("import contextvars, threading\nthreading.Timer(0.5, contextvars.copy_context().run, [print, 'here'], {'flush': True}).start(); run.wait()")   # pressed when it waits
    assert cell.ename == "Interrupted" and "No longer waiting. Training continues in the background" in cell.shown and len(cell.error) == 1
    kernel.run(GOES_ON)
    cell = kernel.pressed("print('here', flush=True); time.sleep(30)")     # any other cell, too
    assert kernel.run("print(run.training)") == "True"
    kernel.run("run.pause()")


def test_an_interrupted_verb_of_a_cell(kernel):
    "It is paused by the button, as always; the background run continues when the cell is done."
    kernel.run(CELL)
    kernel.run("run = learn.start(); other = Learner(Net(4, 3), train_dataset=data, loss_func=torch.nn.functional.cross_entropy, use_cpu=True, disable_tqdm=True)")
    kernel.run(GOES_ON)
    cell = kernel.pressed("other.run(until=lambda rec: print('here', flush=True))")
    assert cell.ename == "Paused"
    kernel.run(GOES_ON)
    kernel.run("run.pause()")


# --- elsewhere --------------------------------------------------------------------------------------------------------------------

def script(text, folder, **kwargs):
    return subprocess.run([sys.executable, "-c", textwrap.dedent(text)], cwd=folder, capture_output=True, text=True, timeout=120, env=os.environ | {"OMP_NUM_THREADS": "1"}, **kwargs)


def test_a_script_that_ends_pauses_the_run(tmp_path):
    done = script(CELL + "\nrun = learn.start()\ntime.sleep(0.3)\nprint('end')\n", tmp_path)
    assert done.returncode == 0 and done.stdout == "end\n" and "paused after step" in done.stderr and "because the process ends" in done.stderr


@pytest.mark.parametrize("where", ["script", "ipython"])
def test_a_dashboard_where_nothing_can_be_shown(tmp_path, where):
    text = CELL + "\nview = learn.dashboard()\nrun = learn.start(steps=30)\nrun.wait()\nprint(view)\n"
    if where == "ipython":
        (tmp_path/"s.py").write_text(text)
        done = subprocess.run([sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", "s.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120,
                              env=os.environ | {"IPYTHONDIR": str(tmp_path/"i")})
    else: done = script(text, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "paused after step 30" in done.stdout and "loss" in done.stdout and "▁" in done.stdout


def test_a_notebook_that_a_program_executes(tmp_path):
    "Started, waited for, looked at: the notebook ends with pictures of the end, and nothing is alive or large in it."
    cells = [CELL.replace("disable_tqdm=True", "output_dir='out', save_strategy='no'").replace("0.02", "0.001"), "learn.dashboard()", "run = learn.start(steps=60)", "run.wait()", "learn.evaluate(data)", "learn.step(3)"]
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    NotebookClient(nb, timeout=120, store_widget_state=False, resources={"metadata": {"path": str(tmp_path)}}).execute()
    def stills(i): return [o["data"]["text/html"] for o in nb.cells[i].outputs if "trainer_nb still" in o.get("data", {}).get("text/html", "")]
    assert len(stills(1)) == 1 and stills(2) == []                    # the run is seen already
    assert "step 63 of" in stills(1)[0] and "eval_loss" in stills(1)[0] and "<img" in stills(1)[0]
    assert "widgets" not in nb.metadata and sum(len(str(o)) for o in nb.cells[1].outputs) < 200_000


def test_a_run_that_is_started_without_a_dashboard(tmp_path):
    "It shows itself, compactly, and stays as words and a table."
    cells = [CELL.replace("disable_tqdm=True", "output_dir='out', save_strategy='no'").replace("0.02", "0.001"), "run = learn.start(steps=60)\nrun", "run.wait()"]
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    NotebookClient(nb, timeout=120, store_widget_state=False, resources={"metadata": {"path": str(tmp_path)}}).execute()
    stills = [o["data"]["text/html"] for o in nb.cells[1].outputs if "trainer_nb still" in o.get("data", {}).get("text/html", "")]
    assert len(stills) == 1 and "step 60 of" in stills[0] and "<img" not in stills[0] and "paused" in stills[0]


def test_a_program_sees_the_end_that_the_refreshing_thread_has_drawn(tmp_path):
    "nbclient drops the messages that belong to another cell than the one that it executes, so that cell draws the end too."
    cells = [CELL.replace("disable_tqdm=True", "output_dir='out', save_strategy='no'").replace("0.02", "0.001"),
             "run = learn.start(steps=60)\nrun", "run.wait(); time.sleep(1.0)"]
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    NotebookClient(nb, timeout=120, store_widget_state=False, resources={"metadata": {"path": str(tmp_path)}}).execute()
    stills = [o["data"]["text/html"] for o in nb.cells[1].outputs if "trainer_nb still" in o.get("data", {}).get("text/html", "")]
    assert len(stills) == 1 and "step 60 of" in stills[0] and "paused" in stills[0] and re.search(r"as of \d\d:\d\d:\d\d", stills[0])


def test_a_loop_of_verbs_does_not_lock_the_run_out():
    "Whoever has waited for long goes next."
    learn = make(nap=0.001)
    run = learn.start(steps=10)
    end = time.monotonic() + 60
    while run.training and time.monotonic() < end: learn.evaluate()
    assert not run.training and learn.state.global_step == 10


def test_following_a_process(tmp_path):
    "A script trains and writes its log; the view sees its steps, its evaluation and its end."
    text = CELL.replace("disable_tqdm=True", "disable_tqdm=True, output_dir='out', save_strategy='no', run_name='over <there>'") + "\nprint(1, flush=True)\nlearn.run(steps=150)\nlearn.evaluate(data)\nlearn.set(max_steps=155)\nlearn.train()\n"
    with subprocess.Popen([sys.executable, "-c", text], cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}) as process:
        process.stdout.readline()
        end, view, seen = time.monotonic() + 60, None, set()
        while time.monotonic() < end:
            view = view or follow(tmp_path/"out")
            if view is not None:
                view.view_model.message()
                status = view.view_model.sent["status"]
                seen.add((status["state"], status["step"]))
                if status["state"] == "finished": break
            time.sleep(0.1)
    assert status["state"] == "finished" and status["step"] == 155 and status["total"] == 155, status
    assert len([step for state, step in seen if state == "training" and 0 < step < 150]) >= 1, seen     # while it went on
    assert "eval_loss" in str(view.view_model.sent["evaluations"]["columns"]) and view.view_model.sent["title"] == "over <there>" and view.commands is None

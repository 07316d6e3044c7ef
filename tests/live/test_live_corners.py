"Corners of runs in the background and of their views: waiting for oneself, steps that are none, races, logs that are exchanged, and stills of very much."
import threading, time
from types import SimpleNamespace

import pytest

from backgrounds import CELL, kernel, like, make, reach  # noqa: F401 (kernel is a fixture)
from trainer_nb import TrainerCallback, differences, follow
from trainer_nb.live.background import StepBudget, get_handle
from trainer_nb.core.errors import InvalidOperation
from trainer_nb.live.run_view import display_status
from trainer_nb.live.static_view import still_bundle

pytestmark = pytest.mark.usefixtures("one_thread")


def at_step(step, act):
    "A callback that does something after a step, with the handle."
    class Acts(TrainerCallback):
        def on_step_end(self, args, state, control, learner, **kwargs):
            if state.global_step == step: act(learner.run_state.parts.background_run)
    return Acts()


# --- waiting for oneself --------------------------------------------------------------------------------------------------

def test_a_callback_of_the_run_pauses_it():
    learn = make(callbacks=[at_step(5, lambda run: run.pause())])
    run = learn.start()
    assert run.wait(30).global_step == 5
    run.resume().wait(30)
    assert differences(learn.snapshot(), like(learn)) == []


def test_a_condition_pauses_the_run():
    learn = make()
    def until(record):
        if record.step == 4: run.pause()
        return False
    run = get_handle(learn)
    learn.start(until=until)
    assert run.wait(30).global_step == 4


@pytest.mark.parametrize("verb, said", [("wait", "from inside a verb or a callback"), ("stop", "control.should_training_stop")])
def test_what_cannot_be_done_from_a_callback_is_refused(verb, said):
    learn = make(callbacks=[at_step(5, lambda run: getattr(run, verb)())])
    with pytest.raises(InvalidOperation, match=said): learn.start().wait(30)
    assert learn.state.global_step == 5
    learn.start().wait(30)
    assert differences(learn.snapshot(), like(learn)) == []


def test_a_callback_of_another_verb_pauses_the_run():
    asked = []
    def act(run):
        if threading.current_thread() is threading.main_thread() and not asked: asked.append(run.pause())
    class Acts(TrainerCallback):
        def on_step_end(self, args, state, control, learner, **kwargs): act(learner.run_state.parts.background_run)
    learn = make(nap=0.005, callbacks=[Acts()])
    run = learn.start()
    reach(learn, 2)
    learn.step(3)
    assert asked and run.wait(30).global_step < 60


def test_a_step_by_hand_and_the_handle():
    "The thread stands aside while the step is open, whether it was there before or is started then."
    learn = make(nap=0.005)
    run = learn.start()
    reach(learn, 2)
    with learn.debug_step():
        run.pause()
        with pytest.raises(InvalidOperation, match="a debug step is open"): run.wait()
    run.wait(30)
    with learn.debug_step() as debug:
        at = learn.state.global_step
        run.resume()
        time.sleep(0.1)
        assert run.error is None and learn.state.global_step == at
        debug.forward(), debug.backward(), debug.update()
    learn.model.nap = 0
    run.wait(30)
    assert learn.run_state.finished and differences(learn.snapshot(), like(learn)) == []


# --- steps ----------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("n, kind", [(-3, ValueError), (0, ValueError), (1.5, TypeError), ("3", TypeError), (True, TypeError)])
def test_steps_that_are_none(n, kind):
    learn = make()
    run = learn.start(steps=2)
    run.wait(30)
    with pytest.raises(kind, match="number of steps"): run.step(n)
    assert run.wait(30).global_step == 2 and not run.training


def test_paused_keeps_what_is_left():
    learn = make(nap=0.005)
    run = get_handle(learn)
    run.step(12)
    for step in (2, 5, 8):
        reach(learn, step)
        with run.paused(): pass
    assert run.wait(30).global_step == 12


def test_a_resume_while_the_thread_ends_is_not_lost():
    budget = StepBudget()
    assert budget.request(5)
    budget.request(0)
    assert not budget.is_pending()      # the thread is about to end
    budget.request(2)                 # somebody wants it to go on
    budget.end_training()
    assert budget.has_more() and budget.steps == 2


def test_steps_in_a_loop_while_it_trains():
    "The generator waits for its turn like every other verb."
    learn = make(nap=0.004)
    run = learn.start()
    for _ in range(10):
        reach(learn, learn.state.global_step + 1)
        next(learn.steps())
    learn.model.nap = 0
    run.wait(30)
    assert differences(learn.snapshot(), like(learn)) == []


def test_stop_waits_for_its_turn():
    "Beside verbs of other threads it is neither refused nor torn into two."
    learn = make(nap=0.001, num_train_epochs=30)
    over, wrong = threading.Event(), []
    def others():
        while not over.is_set():
            time.sleep(0.002)              # a thread that never lets go would keep the run waiting
            try: learn.evaluate(), learn.inspect()
            except InvalidOperation as error: wrong.append(error)
    thread = threading.Thread(target=others)
    thread.start()
    try:
        for last in range(5, 40, 5):
            learn.set(max_steps=600)
            learn.start()
            reach(learn, last)
            get_handle(learn).stop()
            assert learn.run_state.finished and learn.state.max_steps == 600 > learn.state.global_step
    finally:
        over.set()
        thread.join()
    assert not wrong


# --- logs -----------------------------------------------------------------------------------------------------------------

def logged(folder, steps):
    learn = make(output_dir=str(folder), save_strategy="no")
    learn.step(steps)
    learn.history.flush()
    return next(folder.glob("runs/*.jsonl")).read_bytes()


def test_following_a_log_that_is_exchanged_or_damaged(tmp_path):
    "By a longer one, which its size does not tell; damaged, and put right."
    short, long, path = logged(tmp_path/"a", 5), logged(tmp_path/"b", 30), tmp_path/"run-x.jsonl"
    path.write_bytes(short)
    view = follow(path)
    for lines, state, step in ((long, "training", 30), (long + b"garbage\n", "failed", 30), (long, "training", 30), (short + b"\xff\xfe\n", "failed", 5), (short, "training", 5)):
        path.write_bytes(lines)
        view.refresh()
        status = view.view_model.sent["status"]
        assert (status["state"], status["step"], "damaged" in status["words"]) == (state, step, state == "failed")


def test_a_view_that_fails_says_so_once(kernel):
    kernel.run(CELL + "learn.step(2)\nview = learn.dashboard()\nview")
    kernel.run("def fails(): raise OSError('gone')\nview.view_model.sources[0].refresh = fails; import time; time.sleep(0.6)")
    cells = [kernel.taken(f"{i}") for i in range(2)]
    assert all("Error in callback" not in c.text + c.shown and "gone" not in c.text for c in cells)


def test_an_interrupt_as_a_step_is_opened_leaves_none_open(monkeypatch):
    "The button, pressed at the very end of debug_step(): nobody would have the step that is open."
    from trainer_nb.diagnostics import debug_step as debug
    real = debug.run_phase
    def pressed(*args, **kwargs):
        real(*args, **kwargs)
        raise KeyboardInterrupt
    learn = make()
    monkeypatch.setattr(debug, "run_phase", pressed)
    with pytest.raises(KeyboardInterrupt): learn.debug_step()
    monkeypatch.undo()
    assert learn.run_state.verb.phase == "idle"
    learn.step(3)
    assert differences(learn.snapshot(), like(learn)) == []


# --- very much ------------------------------------------------------------------------------------------------------------

def test_a_still_of_many_long_metrics_is_small():
    learn = make()
    for step in range(1, 400):
        learn.history.append(step, step / 10, 1e-3, 8, step * 0.1, 1.0, 1.0)
        learn.history.note("evaluate", step, **{f"eval_set{i}_loss": 1 + step * i % 7 for i in range(60)}, **{f"eval_{i}_" + "x" * 5000: step * i % 5 for i in range(20)})
    view = learn.dashboard()
    made = still_bundle(view.view_model, "7")
    assert sum(map(len, made.values())) < 200_000 and "<img" in made["text/html"]


def test_a_still_of_many_branches_is_small():
    learn, branches = make(), []
    learn.step(50)
    for i in range(30):
        branches.append(learn.branch(run_name=f"branch {i}"))
        branches[-1].step(2)
        for step in range(53, 900): branches[-1].history.append(step, step / 10, 1e-3, 8, step * 0.1, step * i % 11, 1.0)
    view = learn.dashboard()
    made = still_bundle(view.view_model, "7")
    assert len(view.view_model.curves) == 31 and sum(map(len, made.values())) < 200_000


def test_an_answer_comes_behind_the_state_that_it_is_about():
    "A page removes the answer to a command when the state changes, so what a long rewind has answered would be gone at once."
    learn = make()
    learn.run(steps=3)
    view, sent = learn.dashboard(), []
    view.connection.widget = SimpleNamespace(send=lambda content, buffers: sent.append(content), close=lambda: None)
    view.execute("1", "rewind", {"n": 1})
    end = time.monotonic() + 30
    while time.monotonic() < end and (not sent or sent[-1]["kind"] != "done"): time.sleep(0.01)
    assert [o["kind"] for o in sent] == ["received", "news", "done"]
    assert sent[1]["status"]["step"] == 2 and sent[1]["status"]["words"].startswith("paused after step 2") and sent[2]["text"].startswith("rewound")


def test_what_a_click_on_a_step_does(tmp_path):
    "A branch grows beside the run, which stays where it is; what was changed by hand is undone, a checkpoint is loaded."
    learn = make(rewind_every=1, output_dir=str(tmp_path))
    learn.run(steps=3)
    learn.set(lr=0.5)
    learn.run(steps=3)
    view, answers = learn.dashboard(), []
    view.connection.widget = SimpleNamespace(send=lambda content, buffers: answers.append(content), close=lambda: None)
    def told(verb, **options):
        answers.clear()
        view.execute("1", verb, options)
        end = time.monotonic() + 30
        while time.monotonic() < end and not [o for o in answers if o["kind"] in ("done", "rejected")]: time.sleep(0.01)
        return answers[-1]["text"]
    before = learn.snapshot()
    assert "learn.dashboard().branches[-1] is its learner" in told("branch", step=2, changes="learning_rate=0.25, weight_decay=0.1")
    assert differences(learn.snapshot(), before) == []
    branch, = learn.dashboard().branches
    branch.start().wait()
    assert (branch.args.learning_rate, branch.args.weight_decay, branch.state.global_step) == (0.25, 0.1, branch.state.max_steps)
    assert [o.label for o in view.view_model.curves][1:] == ["branch learning_rate=0.25, weight_decay=0.1"]
    assert "are no settings" in told("branch", step=2, changes="faster") and "no_such" in told("branch", step=2, changes="no_such=1")
    assert differences(learn.snapshot(), before) == [] and len(view.branches) == 1
    learn.save_checkpoint()
    view.send_all()
    folder = next(o["action"] for o in view.view_model.sent["marks"] if o["kind"] == "checkpoint")[2]
    present = learn.snapshot()
    assert "after step 2" in told("rewind", to=2) and answers[-1]["action"][1] == "undo" and learn.run(steps=1)
    assert "after step 6" in told("undo") and differences(learn.snapshot(), present) == [] and told("rewind", to=2) and "after step 6" in told("undo") and "are not kept" in told("undo")
    # the snapshots from which a rewind replays little are kept
    assert learn.rewind(1).replayed <= 3
    assert "after step 2" in told("rewind", to=2) and "after step 1" in told("rewind", n=1)
    learn.run(steps=1)
    learn.set(lr=0.5)
    assert "after step 1" in told("rewind", change=2) and learn.run_state.optimizer.param_groups[0]["lr"] != 0.5
    assert "no such folder" in told("load_checkpoint", **folder) or learn.state.global_step == 6


@pytest.mark.parametrize("at_end", [False, True], ids=["at the start", "behind the end"])
def test_a_failure_outside_of_a_step_is_shown(at_end, monkeypatch):
    "As that of a process that has died, or of the last checkpoint, which is written when the run is over; no event of the history has it."
    from trainer_nb.live import background
    def fail(*given): raise OSError("no space left")
    monkeypatch.setattr(background, "wait_for_save" if at_end else "run_until", fail)
    learn = make()
    run = learn.start()
    with pytest.raises(OSError): run.wait(60)
    assert display_status(learn.run_state).state == "failed" and "OSError: no space left" in run.status
    learn.evaluate()   # the run has gone on
    assert display_status(learn.run_state).state == ("finished" if at_end else "new")

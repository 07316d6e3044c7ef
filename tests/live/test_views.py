"The kernel's side of a live view: signs of life, the thread that updates all views, and views as widgets."
import gc, math, subprocess, sys, threading, time, weakref
from types import SimpleNamespace

import pytest
import torch

from lab import eventually
from trainer_nb import Learner
from trainer_nb.core.interrupts import RUN_LOCK
from trainer_nb.live import dashboard
from trainer_nb.live.dashboard import ViewRefresher
from trainer_nb.live.run_view import display_status

pytestmark = pytest.mark.usefixtures("one_thread")


class Page:
    "Takes the place of a widget, and keeps its messages."
    def __init__(self): self.messages = []
    def send(self, content, buffers=None): self.messages.append(content)
    def close(self): pass
    def kinds(self): return [o["kind"] for o in self.messages]


def made(**settings):
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
    return Learner(torch.nn.Linear(4, 2), train_dataset=data, loss_func=torch.nn.functional.cross_entropy, use_cpu=True, disable_tqdm=True,
                   max_steps=100, **settings)


def shown(learn):
    "A view, and the page that shows it."
    view, page = learn.dashboard(), Page()
    view.connection.widget = page
    view.connection.receive(page, {"kind": "hello"}, [])
    return view, page


def test_signs_of_life(monkeypatch):
    "A page that asks is answered. While a step takes long, it must not take the kernel for dead; at other times it is left alone."
    view, page = shown(made())
    view.connection.receive(page, {"kind": "ping"}, [])
    assert page.kinds() == ["all", "pong"]
    view.send_changes()
    page.messages.clear()
    monkeypatch.setattr(dashboard, "SIGN_INTERVAL", 0.0)
    monkeypatch.setattr(view, "send_changes", lambda: None)
    view.refresh()
    assert page.kinds() == []                            # it does not train
    view.view_model.sent["status"]["state"] = "training"
    view.refresh()
    assert page.kinds() == ["pong"]
    monkeypatch.setattr(dashboard, "SIGN_INTERVAL", 60.0)
    view.refresh()
    assert page.kinds() == ["pong"]                      # one is enough


def test_everything_is_sent_until_a_page_answers(monkeypatch):
    "A kernel that executes a cell may not read what a page asks, but the page receives what is sent unasked. Only the first answer ends it."
    now = [100.0]
    monkeypatch.setattr(dashboard.time, "monotonic", lambda: now[0])
    learn = made()
    view, page = learn.dashboard(), Page()
    view.connection.widget = page
    dashboard.register_view(view)
    dashboard.REFRESHER.views.discard(view)              # here by hand
    sent_at = []
    for _ in range(400):
        now[0] += 0.25
        before = page.kinds().count("all")
        view.refresh()
        if page.kinds().count("all") > before: sent_at.append(now[0] - 100)
    assert sent_at[:5] == [0.25, 0.5, 1.0, 2.0, 4.0] and max(b - a for a, b in zip(sent_at, sent_at[1:])) <= 10
    assert page.messages[-1]["still"] == view.number and page.messages[-1]["cell_hint"]
    view.still.is_stale_for_cell = False
    now[0] += 60
    view.refresh()
    assert page.kinds()[-1] == "all" and not view.still.is_stale_for_cell   # a repetition is no change
    def hello(): view.connection.receive(page, {"kind": "hello"}, [])
    thread = threading.Thread(target=hello)              # as in a subshell: clicks need not wait
    thread.start(), thread.join()
    assert page.messages[-1]["kind"] == "all" and page.messages[-1]["cell_hint"] == ""
    page.messages.clear()
    now[0] += 600
    view.refresh()
    assert "all" not in page.kinds()
    hello()                                              # in the thread of the cells: clicks wait
    assert page.messages[-1]["cell_hint"]


def test_a_page_chooses_the_shell_of_its_messages():
    "Where ipykernel would choose another: the comms of a view and of its parts, and no other comm."
    class Comm:
        def _reply_subshell_for(self, data, default): return "of the cell"
    widgets = [SimpleNamespace(comm=Comm()) for _ in range(2)]
    dashboard.keep_shell_of_messages(widgets[0])
    assert [o.comm._reply_subshell_for({}, "own") for o in widgets] == ["own", "of the cell"]
    dashboard.keep_shell_of_messages(SimpleNamespace(comm=object()))   # of an older ipykernel


@pytest.mark.parametrize("ended, words", [(False, "paused after step 3 of 100"), (True, "finished after step 100 of 100")])
def test_a_pause_that_came_too_late(ended, words):
    learn = made()
    view, page = shown(learn)
    learn.train() if ended else learn.step(3)
    view.connection.receive(page, {"kind": "do", "id": "v1-1", "verb": "pause", "with": {}}, [])
    eventually(lambda: page.kinds()[-1] == "done", "an answer")
    assert page.messages[-1]["text"].startswith(words)


def test_a_cell_that_waits_for_a_button_trains():
    "Between two of its steps another thread has the run: the page must not show it as paused, nor a pause as done."
    learn, seen = made(), []
    view, page = shown(learn)
    def metrics(given):
        view.connection.receive(page, {"kind": "do", "id": "v1-2", "verb": "pause", "with": {}}, [])
        time.sleep(0.2)
        seen.append((display_status(learn.run_state), page.kinds()[-1]))
        return {}
    learn.compute_metrics = metrics
    learn.eval_dataset = learn.train_dataset
    def press(record):
        view.connection.receive(page, {"kind": "do", "id": "v1-1", "verb": "evaluate", "with": {}}, [])
        eventually(lambda: RUN_LOCK.waiting)
        return False
    learn.run(until=press)
    eventually(lambda: page.messages[-1].get("id") == "v1-2" and page.kinds()[-1] == "done", "an answer")
    assert seen[0][0][::2] == ("training", "cell") and seen[0][1] == "received"
    assert page.messages[-1]["text"].startswith("paused after step 2 of")   # of the cell, after the evaluation


@pytest.mark.parametrize("verb", ["step", "resume"])
def test_a_cell_that_trains_takes_no_steps_of_buttons(verb):
    learn = made()
    view, page = shown(learn)
    def press(record):
        if record.step == 3: view.connection.receive(page, {"kind": "do", "id": "v1-1", "verb": verb, "with": {"n": 2}}, [])
        return record.step == 5
    learn.run(until=press)
    assert "rejected" in page.kinds() and learn.state.global_step == 5 and learn.run_state.parts.background_run is None


def test_a_changed_setting_says_its_first_step():
    learn = made()
    view, page = shown(learn)
    learn.step(7)
    view.connection.receive(page, {"kind": "do", "id": "v1-1", "verb": "set", "with": {"lr": 0.02}}, [])
    eventually(lambda: page.kinds()[-1] == "done")
    assert page.messages[-1] == {"kind": "done", "id": "v1-1", "text": "lr = 0.02 from step 8 on", "action": ["Undo", "set", {"learning_rate": 5e-5}]}
    assert learn.optimizer.param_groups[0]["lr"] == 0.02


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant", "one_cycle", "inverse_sqrt", "warmup_stable_decay"])
@pytest.mark.parametrize("begin", [0, 20])
def test_a_change_of_the_rate_that_is_undone_leaves_the_schedule(schedule, begin):
    "As the button of the answer undoes it: the base is set."
    more = {"lr_scheduler_kwargs": {"num_decay_steps": 30}} if schedule == "warmup_stable_decay" else {}
    settings = {"lr_scheduler_type": schedule, "warmup_steps": 10, **more} if schedule != "one_cycle" else {"lr_scheduler_type": schedule}
    untouched, learn = made(**settings), made(**settings)
    untouched.train()
    view, page = shown(learn)
    if begin: learn.step(begin)
    def send(**given):
        page.messages.clear()
        view.connection.receive(page, {"kind": "do", "id": "v1-1", "verb": "set", "with": given}, [])
        eventually(lambda: page.kinds()[-1:] == ["done"])
        return page.messages[-1]
    undo = []
    for rate in (3e-3, 1e-3):
        undo.append(send(lr=rate)["action"][2])
        learn.step(10)
    for given in reversed(undo): send(**given)
    learn.train()
    changed, wanted = ([r.learning_rate for r in run.history[begin + 20:]] for run in (learn, untouched))
    # torch's cycle is scaled, and rounds
    assert changed == (wanted if schedule != "one_cycle" else pytest.approx(wanted, rel=1e-12))


class Slow:
    "A view whose updates take time, of the processor or of others."
    def __init__(self, wall=0.0): self.wall, self.failures, self.updates = wall, 0, 0
    def refresh(self):
        self.updates += 1
        time.sleep(self.wall)
    def give_up(self, error): raise AssertionError(error)


def test_the_pause_is_bounded_and_counts_the_threads_own_time():
    "Waiting for others is no work: the thread of the updates is not slowed down by a training thread."
    assert [ViewRefresher().pause_after(o) for o in (0.0, 0.004, 60.0)] == [0.25, pytest.approx(0.796), 1.0]
    refresher, slow = ViewRefresher(), Slow(wall=0.2)
    refresher.add(slow)
    time.sleep(3)
    assert slow.updates >= 4                             # every 0.45 s; 19 times 0.2 s would be one


def test_a_picture_holds_up_no_message(monkeypatch):
    "It is drawn in a thread of its own, from a copy; messages and answers go on meanwhile."
    learn = made()
    view, page = shown(learn)
    begun, go_on, drawn = threading.Event(), threading.Event(), []
    class Handle:
        def update(self, bundle, raw): drawn.append(bundle)
    def slowly(view_model, *ignored):
        begun.set()
        go_on.wait(30)
        return {"step": view_model.sent["status"]["step"], "blocks": len(view_model.curves[0].blocks.table), "text/html": ""}
    monkeypatch.setattr(dashboard, "still_bundle", slowly)
    view.still.handle = Handle()
    learn.step(3)
    view.refresh()                                       # the state has changed: a picture is due
    assert begun.wait(30)
    learn.step(4)
    view.refresh()
    assert page.messages[-1]["status"]["step"] == 7 and not drawn
    view.connection.receive(page, {"kind": "do", "id": "v1-1", "verb": "set", "with": {"lr": 0.02}}, [])
    eventually(lambda: page.kinds()[-1] == "done")
    go_on.set()
    eventually(lambda: [(o["step"], o["blocks"]) for o in drawn] == [(3, 3)], "the picture of its time")


def test_a_closed_view_leaves_the_picture_of_its_end(monkeypatch):
    "Of the step at which it was closed, also while the run trains; then it is not drawn any more."
    learn, drawn = made(), []
    class Handle:
        def update(self, bundle, raw): drawn.append(bundle["text/html"])
    view, page = shown(learn)
    dashboard.register_view(view)
    view.still.handle = Handle()
    learn.step(3)
    view.close()
    assert "step 3 of 100" in drawn[-1] and view not in dashboard.OPEN_VIEWS
    before = len(drawn)
    learn.step(2)
    dashboard.refresh_stills()
    assert len(drawn) == before
    view.close()                                         # once more
    assert len(drawn) == before


# --- a view as a widget ---------------------------------------------------------------------------------------------------

def test_a_view_in_a_box():
    "Like any other widget, with its parts, each of which receives the messages; and without a connection until it is shown."
    import ipywidgets
    view = made().dashboard()
    assert isinstance(view, ipywidgets.Widget) and view.comm is None
    box = ipywidgets.VBox([view, ipywidgets.HBox([view.controls, view.charts, view.table])])
    assert box.children[0] is view and view.comm is not None and view in dashboard.OPEN_VIEWS
    assert view.charts is view.charts and [o.part for o in box.children[1].children] == ["controls", "charts", "table"]
    sent = []
    for name in ("controls", "charts", "table"): getattr(view, name).send = lambda content, buffers, name=name: sent.append((name, content["kind"]))
    view.connection.receive(view.table, {"kind": "hello"}, [])
    assert sent == [("controls", "all"), ("charts", "all"), ("table", "all")]
    view.close()
    assert view.comm is None and view not in dashboard.OPEN_VIEWS and not view.connection.parts
    assert "Linear" in repr(view)


def test_the_traits_of_a_view(capsys):
    "Step, loss and state, to be observed and linked; an observer that fails ends nothing."
    import ipywidgets, traitlets
    learn = made()
    view, bar, seen = learn.dashboard(), ipywidgets.IntProgress(max=100), []
    assert (view.step, view.state) == (0, "new") and math.isnan(view.loss)
    traitlets.link((view, "step"), (bar, "value"))
    view.observe(lambda change: seen.append((change["name"], change["new"])), ["state", "loss"])
    view.observe(lambda change: 1 / 0, "state")
    learn.step(20)
    eventually(lambda: view.state == "paused" and view.step == 20, "the thread that updates views")
    assert bar.value == 20 and view.loss == learn.history[-1].loss and ("state", "paused") in seen and ("loss", view.loss) in seen
    assert "An observer of state failed with ZeroDivisionError" in capsys.readouterr().err
    learn.log({"score": 0.5})
    learn.train()
    eventually(lambda: view.state == "finished" and view.step == 100 == bar.value and view.metrics == {"score": 0.5})
    assert view.speed > 0
    view.close()


def test_a_view_that_is_not_shown_is_deleted():
    view = made().dashboard()
    dead = weakref.ref(view)
    del view
    gc.collect()
    assert dead() is None


def test_two_views_of_one_cell(monkeypatch):
    "One cell may show several; run again, it shows new ones."
    request = {"msg_id": "m1", "cell": "c1"}
    monkeypatch.setattr(dashboard, "kernel_request", lambda: request)
    learn = made()
    one, two = learn.dashboard(), learn.dashboard()
    one.model_id, two.model_id
    assert one.comm is not None and two.comm is not None
    request = {"msg_id": "m2", "cell": "c1"}
    three = learn.dashboard()
    three.model_id
    assert one.comm is None and two.comm is None and three.comm is not None
    three.close()


def test_the_import_needs_no_widgets():
    code = "import sys, trainer_nb; print([o for o in ('anywidget', 'ipywidgets') if o in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"

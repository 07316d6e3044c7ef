"The progress display: when it is seen and when not, what it costs, and that nothing it does can hurt a run."
import fcntl, json, math, os, pty, re, struct, subprocess, sys, termios, textwrap, time, warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

import trainer_nb.live.progress as P
from trainer_nb.live import screens
from trainer_nb.core.errors import Paused
from trainer_nb.core.callbacks import CallbackHandler, TrainerCallback
from trainer_nb.core.history import History
from trainer_nb.live.progress import LossPeek, ProgressCallback, make_progress
from trainer_nb.live.screens import ProgressView, view_line, view_html
from trainer_nb.engine.run_state import RunState
from trainer_nb.engine.snapshot import differences
from progress_runs import make   # noqa: F401


class Clock:
    "Time that passes when it is told to."
    def __init__(self): self.now = 100.0
    def __call__(self): return self.now


class Screen:
    "Keeps what it is shown."
    def __init__(self): self.views, self.last = [], None
    def show(self, view): self.views.append(view)
    def close(self, view):
        if self.views: self.last = view


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in ("progress", "screens"): monkeypatch.setattr(f"trainer_nb.live.{module}.perf_counter", clock)
    return clock


@pytest.fixture
def screen(monkeypatch):
    screen = Screen()
    monkeypatch.setattr(P, "make_screen", lambda: screen)
    return screen


def a_run(steps=1000, **settings):
    run = RunState(args=SimpleNamespace(**{"disable_tqdm": None, "log_on_each_node": True} | settings), callbacks=CallbackHandler([ProgressCallback]))
    run.state.max_steps = steps
    return run


def advance(run, n=1, loss=lambda i: 1.0 / i):
    for _ in range(n):
        run.state.global_step += 1
        run.state.epoch = run.state.global_step / 100
        run.history.append(run.state.global_step, run.state.epoch, 1e-3, 32, P.perf_counter(), loss(run.state.global_step))


# ---- what is said

@pytest.mark.parametrize("view, said", [
    (ProgressView(step=120, total=500, epoch=1.2, loss=0.3123, rate=85.0), "step 120/500  epoch 1.20  loss 0.312  85 steps/s  4.5 s left"),
    (ProgressView(step=0, total=500), "step 0/500"),
    (ProgressView(step=7), "step 7"),
    (ProgressView(step=1, total=9, rate=0.04), "step 1/9  25 s/step  3 min 20 s left"),
    (ProgressView(step=1, total=9, loss=float("nan")), "step 1/9  loss nan"),
    (ProgressView(step=1, total=90_000_001, rate=12345.6), "step 1/90,000,001  12,300 steps/s  2 h 1 min left"),
    (ProgressView(step=9, total=9, rate=9 / 61, seconds=61, over=True, status="paused"), "step 9/9  6.78 s/step  1 min 1 s  paused"),
    (ProgressView(step=5, total=9, evaluating=(1, None)), "step 5/9  evaluating 1"),
    (ProgressView(evaluating=(12, 60), rate=4.0), "evaluating 12/60  4 batches/s  12 s left"),
])
def test_one_line(view, said):
    assert view_line(view) == said
    shown = re.sub(r"<[^>]*>", "|", view_html(view)).replace("|", "")
    assert shown == said.replace("  ", "")


def test_the_bar():
    assert ProgressView(step=120, total=500).fraction == 0.24 and ProgressView(step=1).fraction == 0 and ProgressView(step=9, total=5).fraction == 1
    assert ProgressView(step=150, total=200, start=100).fraction == 0.5 and ProgressView(evaluating=(15, 60)).fraction == 0.25 and ProgressView(evaluating=(15, None)).fraction == 0
    assert "width:24.0%" in view_html(ProgressView(step=120, total=500))
    assert len({screens.bar_color(ProgressView(step=1, over=True, status=s)) for s in ("", "done", "paused", "failed: ValueError")}) == 4


def test_names_and_words_are_escaped():
    html = view_html(ProgressView(step=1, evaluations=[{"<script>": 1.0, "x": "<img src=x>"}], status="failed: <b>"))
    assert "<script" not in html and "<img" not in html and "<b>" not in html
    assert view_html(ProgressView(step=1, evaluations=[{"step": i} for i in range(1000)])).count("<tr>") == screens.MAX_LOGGED_ROWS + 1


# ---- when it is drawn

def test_at_most_four_times_a_second(clock, screen):
    "And nothing for a short verb."
    run = a_run()
    with make_progress(run) as bar:
        for _ in range(49): advance(run); clock.now += 0.01; bar.tick()
    assert screen.views == [] and screen.last is None
    run = a_run()
    with make_progress(run) as bar:
        for _ in range(1000): advance(run); clock.now += 0.01; bar.tick()
        run.finished = True
    assert 36 <= len(screen.views) <= 40 and screen.views[0].seconds == pytest.approx(0.5, abs=0.011)
    assert screen.last.over and screen.last.status == "done" and screen.last.step == 1000 and screen.last.rate == pytest.approx(100, rel=0.01)


def test_slow_drawing_is_rare(clock, screen):
    screen.show = lambda view: (screen.views.append(view), setattr(clock, "now", clock.now + 0.5))
    run = a_run()
    start = clock.now
    with make_progress(run) as bar:
        for _ in range(10_000): advance(run); clock.now += 0.01; bar.tick()
    assert 0.5 * len(screen.views) <= 0.06 * (clock.now - start)


def test_the_rate_is_that_of_the_last_seconds(clock, screen):
    run = a_run(100_000)
    with make_progress(run) as bar:
        for _ in range(10): advance(run); clock.now += 1.0; bar.tick()
        assert screen.views[-1].rate == pytest.approx(1.0)
        for _ in range(2000): advance(run); clock.now += 0.01; bar.tick()
        assert screen.views[-1].rate == pytest.approx(100.0, rel=0.01)
        assert screen.views[-1].seconds_left == pytest.approx((100_000 - 2010) / 100, rel=0.02)


@pytest.mark.parametrize("first, total, max_steps, share, shown", [(0, None, 500, 0.2, 500), (0, 200, 500, 0.5, 200), (300, 600, 900, 1 / 3, 600), (200, 500, 500, 0.6, 500),
                                                                  (0, 900, 500, 0.2, 500), (0, None, 0, 0.0, None), (0, None, sys.maxsize, 0.0, None), (0, 200, 0, 0.5, 200)])
def test_where_the_bar_begins_and_ends(clock, screen, first, total, max_steps, share, shown):
    run = a_run(max_steps)
    advance(run, first)
    bar = make_progress(run, total)
    advance(run, 100)
    clock.now += 1
    bar.tick()
    assert screen.views[0].fraction == pytest.approx(share) and screen.views[0].total == shown


# ---- evaluations

def evaluate(run, clock, n=5, seconds=0.2, **metrics):
    callback, loader = run.callbacks.callbacks[0], range(n)
    for _ in loader: clock.now += seconds; callback.on_prediction_step(run.args, run.state, run.control, eval_dataloader=loader)
    callback.on_evaluate(run.args, run.state, run.control, metrics=metrics)


def test_evaluations_have_a_table(clock, screen):
    run = a_run()
    with make_progress(run) as bar:
        advance(run, 10)
        run.callbacks.callbacks[0].on_log(run.args, run.state, run.control, logs={"loss": 0.7, "learning_rate": 1.0})
        evaluate(run, clock, eval_loss=0.5, eval_runtime=1.0, eval_samples_per_second=2.0)
        evaluate(run, clock, eval_other_loss=0.4)      # another set at the same step
        advance(run, 10)
        evaluate(run, clock, eval_loss=0.3)
        assert [v.evaluating for v in screen.views if v.step == 20] == [(1, 5), (3, 5), (5, 5)]
        clock.now += 1
        bar.tick()
    assert screen.last.evaluations == [{"step": 10, "epoch": 0.1, "train loss": 0.7, "eval_loss": 0.5, "eval_other_loss": 0.4},
                                       {"step": 20, "epoch": 0.2, "train loss": pytest.approx(np.mean([1 / i for i in range(11, 21)])), "eval_loss": 0.3}]
    assert screen.views[-1].evaluating is None


def test_without_a_log_an_evaluation_has_the_mean_loss_of_the_steps_since_the_last_one(clock, screen):
    "Also of the first one, in a verb that continues a run; and none where no step was taken."
    run = a_run()
    advance(run, 5)
    with make_progress(run):
        clock.now += 1
        evaluate(run, clock, eval_loss=0.6)
        for _ in range(2): advance(run, 5); evaluate(run, clock, eval_loss=0.5)
    losses = [o["train loss"] for o in screen.last.evaluations]
    assert losses == [None, *(pytest.approx(np.mean([1 / i for i in range(start, start + 5)])) for start in (6, 11))]


@pytest.mark.parametrize("total, done, shown", [(376, 369, 369), (10, 12, 12), (None, 5, None)])
def test_the_bar_of_a_search_is_full_when_it_is_done(clock, screen, total, done, shown):
    "A search may end before the steps that it was given; one that fails keeps the number."
    with P.CountProgress(screen, total) as bar:
        for _ in range(done): clock.now += 1; bar.tick()
    assert (screen.last.step, screen.last.total, screen.last.status) == (done, shown, "done")
    with pytest.raises(ValueError), P.CountProgress(screen, total) as bar:
        clock.now += 1; bar.tick()
        raise ValueError
    assert (screen.last.step, screen.last.total) == (1, total)


def test_logs_are_lines_in_a_terminal_and_a_table_where_nothing_is_evaluated(clock, screen):
    run = a_run(eval_strategy="no")
    callback = run.callbacks.callbacks[0]
    with make_progress(run) as bar:
        for step in range(1, 4):
            advance(run)
            callback.on_log(run.args, run.state, run.control, logs={"loss": 0.5 / step, "learning_rate": 0.1, "epoch": step / 100, "note": "x" * 101})
        evaluate(run, clock, eval_loss=0.4)
        callback.on_log(run.args, run.state, run.control, logs={"eval_loss": 0.4, "eval_runtime": 1.0})
        callback.on_log(run.args, run.state, run.control, logs={"train_runtime": 1.0, "train_loss": 0.3})
        clock.now += 1; bar.tick()
    view = screen.last
    assert [o["train loss"] for o in view.logs] == [0.5, 0.25, 0.5 / 3] and view.logs[0] == {"step": 1, "epoch": 0.01, "train loss": 0.5, "learning_rate": 0.1, "note": "[101 characters]"}
    assert screens.UnprintedRows().lines(view) == ["step 1  epoch 0.0100  train loss 0.500  learning_rate 0.100  note [101 characters]", *screens.UnprintedRows().lines(view)[1:]] and len(screens.UnprintedRows().lines(view)) == 4
    news = screens.UnprintedRows()
    assert news.lines(view) and news.lines(view) == []
    assert "learning_rate" not in view_html(view)   # there is an evaluation: that is the table
    view.evaluations = []
    assert view_html(view).count("<tr") == 4 and "learning_rate" in view_html(view)
    view.evaluates = True
    assert "<tr" not in view_html(view)


def test_which_processes_show(monkeypatch):
    monkeypatch.setattr(P, "make_screen", lambda: "a screen")
    other_machine, first = SimpleNamespace(is_local_process_zero=True, is_world_process_zero=False), SimpleNamespace(is_local_process_zero=True, is_world_process_zero=True)
    def of(state, **given): return P.select_screen(SimpleNamespace(**{"disable_tqdm": None, "log_on_each_node": True} | given), state)
    assert of(first) == of(other_machine) == of(first, log_on_each_node=False) == "a screen" and of(other_machine, log_on_each_node=False) is None
    monkeypatch.setattr(P.LOGGER, "level", 40)
    P.LOGGER.manager._clear_cache()
    assert of(first) is None and of(first, disable_tqdm=False) == "a screen"


def test_a_prediction_that_nobody_ends_is_forgotten_with_the_next_step(clock, screen):
    run = a_run()
    with make_progress(run) as bar:
        advance(run)
        for _ in range(3): run.callbacks.callbacks[0].on_prediction_step(run.args, run.state, run.control, eval_dataloader=iter("abc"))
        clock.now += 1; bar.tick()
        assert screen.views[-1].evaluating == (3, None)
        advance(run); clock.now += 1; bar.tick()
    assert screen.views[-1].evaluating is None


def test_an_evaluation_by_itself(clock, screen):
    run = a_run()
    evaluate(run, clock, n=60, seconds=0.1)
    done, total = screen.views[0].evaluating
    assert done in (6, 7) and total == 60 and view_line(screen.views[0]) == f"evaluating {done}/60  10 batches/s  {(60 - done) / 10:.1f} s left"
    assert screen.last.evaluating == (60, 60) and screen.last.over
    shown = len(screen.views)
    evaluate(run, clock, n=3, seconds=0.1)    # short
    assert len(screen.views) == shown
    callback = run.callbacks.callbacks[0]
    assert callback.evaluation is None and callback.progress is None


# ---- how it ends

@pytest.mark.parametrize("error, paused, finished, status", [
    (None, False, True, "done"), (None, False, False, ""), (None, True, False, "paused"), (Paused("x"), True, False, "paused"),
    (KeyboardInterrupt(), False, False, "interrupted"), (ValueError("x"), False, False, "failed: ValueError")])
def test_the_end_says_how(clock, screen, error, paused, finished, status):
    run = a_run()
    try:
        with make_progress(run) as bar:
            with make_progress(run): assert run.callbacks.callbacks[0].progress is not bar   # a verb in a verb
            assert run.callbacks.callbacks[0].progress is bar
            advance(run); clock.now += 1; bar.tick()
            run.current.paused, run.finished = paused, finished
            if error is not None: raise error
    except BaseException as raised: assert raised is error
    assert screen.last.status == status and run.callbacks.callbacks[0].progress is None and bar.run is None


# ---- when there is to be none

@pytest.mark.parametrize("why", ["setting", "callback", "process", "stderr"])
def test_nothing_is_shown(clock, monkeypatch, why):
    run = a_run(disable_tqdm=why == "setting")
    if why == "callback": run.callbacks.pop_callback(ProgressCallback)
    if why == "process": run.state.is_local_process_zero = False
    if why == "stderr": monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setattr(P, "in_kernel", lambda: False)
    with make_progress(run) as bar:
        advance(run); clock.now += 100; bar.tick()
        if why != "callback": evaluate(run, clock)
        assert bar.screen is None and bar._next == math.inf


def test_errors_of_the_display_are_said_once_and_stop_nothing(clock, screen):
    def broken(view): raise RuntimeError("no paper")
    screen.show = screen.close = broken
    run = a_run()
    with pytest.warns(UserWarning, match="no paper.*Training continues") as said:
        with make_progress(run) as bar:
            for _ in range(10): advance(run); clock.now += 1; bar.tick()
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with make_progress(run) as bar: advance(run); clock.now += 1; bar.tick()
    with pytest.warns(UserWarning, match="no paper"): evaluate(run, clock)


def test_odd_metrics_do_no_harm(clock, screen):
    run = a_run()
    with make_progress(run) as bar:
        advance(run)
        evaluate(run, clock, eval_loss=torch.tensor(0.5), eval_matrix=np.eye(3), eval_text="x" * 999, eval_none=None, step=3)
        clock.now += 1
        bar.tick()
    assert view_html(screen.last) and view_line(screen.last) and screens.format_row(screen.last.evaluations[0])


# ---- the loss, without waiting

class Waits(TorchFunctionMode):
    "Counts what would wait for a device."
    names = {"item", "cpu", "tolist", "numpy", "to", "__float__", "__bool__", "__array__"}
    def __init__(self): super().__init__(); self.seen = []
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in self.names: self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_a_device_is_never_asked():
    h, peek = History(), LossPeek()
    for i in range(1, 131): h.append(i, 0.1, 1e-3, 32, 0.0, torch.empty((), device="meta"), torch.empty((), device="meta"))
    with Waits() as waits: assert peek.read(h) is None
    assert waits.seen == [] and h.rows.pending


@pytest.mark.parametrize("n", [1, 63, 64, 65, 128, 200])
def test_a_loss_on_the_cpu_is_known_at_once_and_nothing_is_fetched(n, on_device):
    h = History()
    for i in range(1, n + 1): h.append(i, 0.1, torch.tensor(0.5), 32, 0.0, torch.tensor(1.0 / i), torch.tensor(9.0))
    assert LossPeek().read(h) == pytest.approx(1 / n) and h.rows.fetched == 0
    h.fetch()
    assert LossPeek().read(h) == pytest.approx(1 / n)
    h.append(n + 1, 0.1, 0.5, 32, 0.0, 0.25)
    assert LossPeek().read(h) == 0.25
    h.append(n + 2, 0.1, 0.5, 32, 0.0, None, torch.tensor(9.0))
    assert LossPeek().read(h) is None
    assert LossPeek().read(History()) is None and LossPeek().read(h, len(h)) is None


def test_a_number_that_travels_is_seen_when_it_has_arrived(monkeypatch):
    "The device is stood in for: `_copy_to_host` is what a CUDA device does (see the test marked gpu)."
    class Event:
        arrived = False
        def query(self): return self.arrived
    sent, event = [], Event()
    class Far:
        device = SimpleNamespace(type="cuda")
    def send(self, tensor):
        sent.append(tensor)
        return event, torch.tensor(float(len(sent)))
    monkeypatch.setattr(LossPeek, "_copy_to_host", send)
    monkeypatch.setattr(P, "newest_loss", lambda history, start: last)
    monkeypatch.setattr(P.torch, "Tensor", (torch.Tensor, Far))
    peek, last = LossPeek(), Far()
    assert [peek.read(None), peek.read(None)] == [None, None] and len(sent) == 1   # one at a time
    event.arrived = True
    assert peek.read(None) == 1.0 and len(sent) == 2


@pytest.mark.gpu
def test_a_loss_on_a_gpu_arrives_without_waiting():
    h, peek = History(), LossPeek()
    x = torch.randn(4096, 4096, device="cuda")
    h.append(1, 0.1, 1e-3, 32, 0.0, torch.tensor(0.5, device="cuda"))
    peek.read(h)
    torch.cuda.synchronize()
    assert peek.read(h) == 0.5
    for _ in range(200): x = x @ x / 4096   # some hundred milliseconds of work
    h.append(2, 0.1, 1e-3, 32, 0.0, x[0, 0])
    torch.cuda.set_sync_debug_mode("error")
    try:
        start = time.perf_counter()
        assert peek.read(h) == 0.5
        assert time.perf_counter() - start < 0.02
        assert peek._pending is not None and not peek._pending[0].query()
    finally: torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert peek.read(h) == x[0, 0].item()


# ---- with a learner

def test_training_is_the_same_with_and_without(monkeypatch, screen):
    monkeypatch.setattr(P.ProgressDisplay, "FIRST", 0.0)
    monkeypatch.setattr(P.ProgressDisplay, "EVERY", 0.0)
    seen, plain = make(), make()
    plain.pop_callback(ProgressCallback)
    for learn in (seen, plain):
        learn.step(3)
        learn.train()
    assert differences(seen.snapshot(), plain.snapshot()) == []
    assert screen.last.status == "done" and [o["step"] for o in screen.last.evaluations] == [5, 10, 15, 20, 25]
    assert any(v.evaluating for v in screen.views)
    seen.pop_callback(ProgressCallback)
    shown = len(screen.views)
    seen.train()
    assert len(screen.views) == shown


def test_a_second_callback_makes_no_second_display(monkeypatch, screen):
    monkeypatch.setattr(P.ProgressDisplay, "FIRST", 0.0)
    monkeypatch.setattr(P.ProgressDisplay, "EVERY", 0.0)
    made = []
    monkeypatch.setattr(P, "make_screen", lambda: made.append(screen) or screen)
    learn = make(callbacks=[ProgressCallback])
    learn.train()
    assert len(made) == 1
    learn.evaluate()
    assert len(made) == 2


def test_a_paused_and_a_failed_run(monkeypatch, screen):
    monkeypatch.setattr(P.ProgressDisplay, "FIRST", 0.0)
    class Pauses(TrainerCallback):
        def on_step_end(self, args, state, control, learner, **kwargs):
            if state.global_step == 7: learner.pause()
            if state.global_step == 12: raise ValueError("no more")
    learn = make(callbacks=[Pauses])
    learn.train()
    assert screen.last.status == "paused" and screen.last.step == 7
    with pytest.raises(ValueError): learn.train()
    assert screen.last.status == "failed: ValueError" and screen.last.step == 12


# ---- on real screens

SCRIPT = """
import sys, time, torch
sys.path.insert(0, {tests!r})
from progress_runs import make
learn = make(pause=0.01, max_steps={steps})
learn.train()
print("the last line")
"""


def script(tmp_path, steps, command=()):
    file = tmp_path/"train.py"
    file.write_text(SCRIPT.format(tests=os.path.dirname(os.path.dirname(__file__)), steps=steps))
    return [*(command or [sys.executable]), str(file)]


def test_a_log_file_has_no_bars(tmp_path):
    done = subprocess.run(script(tmp_path, 60), capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the last line\n", "")


def test_a_shell_without_a_kernel(tmp_path):
    pytest.importorskip("IPython")
    done = subprocess.run(script(tmp_path, 60, [sys.executable, "-m", "IPython", "--simple-prompt", "--no-banner", "--quick"]), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.strip().endswith("the last line") and "Traceback" not in done.stderr and "step" not in done.stderr


def test_long_runs_leave_lines_in_a_log_file(capsys):
    screen, row = screens.LinesScreen(), {"step": 100, "eval_loss": 0.5}
    for second in range(1, 101): screen.show(ProgressView(step=second * 10, seconds=float(second), evaluations=[row] * (second > 12)))
    screen.close(ProgressView(step=1000, seconds=100.0, evaluations=[row], over=True, status="done"))
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 12 and said[0] == "step 100" and said[1] == "step 100  eval_loss 0.500" and said[-1] == "step 1,000  1 min 40 s  done"
    for second in range(0, 36_000, 5): screen.show(ProgressView(step=second, seconds=float(second)))
    assert len(capsys.readouterr().err.splitlines()) < 400


def test_a_terminal_has_one_bar(tmp_path):
    pid, fd = pty.fork()
    if pid == 0: os.execvp(sys.executable, script(tmp_path, 120))
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    said = b""
    while True:
        try: part = os.read(fd, 65536)
        except OSError: break
        if not part: break
        said += part
    os.waitpid(pid, 0)
    lines = [o.strip() for o in re.split(r"[\r\n]+", said.decode()) if o.strip()]
    bars = [o for o in lines if "|" in o]
    assert len(bars) > 3 and bars[-1].startswith("100% |") and bars[-1].endswith("done") and "step 120/120" in bars[-1]
    assert sum(o.startswith("step 60 ") and "eval_loss" in o for o in lines) == 1 and lines[-1] == "the last line"


def run_notebook(*sources):
    "The notebook that these cells become."
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(textwrap.dedent(o)) for o in sources])
    nbclient.NotebookClient(nb, timeout=120, kernel_name="python3", store_widget_state=False).execute()
    return nb


def test_a_notebook_keeps_the_last_picture_and_the_value_of_the_cell():
    nb = run_notebook(f"import sys; sys.path.insert(0, {os.path.dirname(os.path.dirname(__file__))!r})\nfrom progress_runs import make\nlearn = make(pause=0.01, max_steps=100, eval_steps=50)",
                      "learn.train()", "learn.evaluate(); learn.evaluate(learn.train_dataset * 16)['epoch']", "learn.train_dataset = learn.train_dataset[:8]\nlearn.set(max_steps=103)\nlearn.step(2)")
    first, picture, evaluated, short = (c.outputs for c in nb.cells)
    assert first == []
    shown, value = picture
    assert shown.output_type == "display_data" and set(shown.data) == {"text/html", "text/plain"}
    assert shown.data["text/plain"].startswith("step 100/100  epoch 10.00  loss ") and shown.data["text/plain"].endswith("done")
    assert shown.data["text/html"].count("<tr>") == 3 and "eval_loss" in shown.data["text/html"]
    assert value.output_type == "execute_result" and value.data["text/plain"].startswith("TrainOutput(global_step=100")
    assert "<table>" in value.data["text/html"] and "training loss" in value.data["text/html"]
    assert [o.output_type for o in evaluated] == ["display_data", "execute_result"] and evaluated[0].data["text/plain"].startswith("evaluating 80/80")
    assert [o.output_type for o in short] == ["execute_result"]
    HTMLExporter = pytest.importorskip("nbconvert").HTMLExporter
    html, _ = HTMLExporter(template_name="lab").from_notebook_node(nb)
    assert "eval_loss" in html and "width:100.0%" in html
    assert not any("widget" in kind for c in nb.cells for o in c.outputs for kind in o.get("data", {})) and "widgets" not in nb.metadata
    assert len(json.dumps(picture)) < 8000


def test_the_speed_at_the_end_is_that_of_this_verb(clock, screen):
    "A run of 1,000 steps that goes on at step 900: ten steps in a second are 10 steps/s, not 910."
    run = a_run(1000)
    advance(run, 900)
    with make_progress(run) as progress:
        for _ in range(10):
            advance(run)
            clock.now += 0.1
            progress.tick(run.history[-1])
    assert screen.last.start == 0 and screen.last.rate == pytest.approx(10)
    assert "10 steps/s" in view_line(screen.last)

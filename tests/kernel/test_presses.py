"""The interrupt button at chosen instructions: where a press would leave a lock behind, in what waits for others, at the end of a cell.

A press is a real SIGINT, raised from within the function that is to be struck. Each of these left a process that never
answered again, or a thread that never went on.
"""
import faulthandler, os, signal, sys, threading, time

import pytest
import torch
from torch import nn

import trainer_nb.state.async_save
from trainer_nb import Learner, Paused, differences
from trainer_nb.core.errors import Interrupted
from trainer_nb.core.interrupts import BATCH_WAIT, RUN_LOCK, InterruptGuard, classify_frame

LIMIT = 20   # seconds that an answer may take


class Rows(torch.utils.data.Dataset):
    "Rows with random augmentation; the worker that comes to `stuck` waits for ever, once."
    not_state = ("stuck",)
    def __init__(self, n=24, stuck=None, seed=0):
        make = torch.Generator().manual_seed(seed)
        self.x, self.y, self.stuck = torch.randn(n, 6, generator=make), torch.randint(3, (n,), generator=make), stuck
    def __len__(self): return len(self.x)
    def __getitem__(self, i):
        if self.stuck is not None and torch.utils.data.get_worker_info() is not None and not os.path.exists(self.stuck):
            open(self.stuck, "x").close()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True: time.sleep(1)
        return {"x": self.x[i] + 0.1 * torch.randn(6), "labels": self.y[i]}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.wait = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 3)), None
    def forward(self, x, labels=None):
        if self.wait is not None: self.wait()
        logits = self.body(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def make(data=None, **settings):
    torch.manual_seed(0)
    return Learner(Net(), train_dataset=data or Rows(), eval_dataset=Rows(8, seed=1),
                   **{"num_train_epochs": 3, "per_device_train_batch_size": 4, "learning_rate": 0.01, "use_cpu": True, "disable_tqdm": True} | settings)


@pytest.fixture(autouse=True)
def answers_in_time():
    "A test that hangs is ended by an error in the main thread, and shows where."
    faulthandler.dump_traceback_later(3 * LIMIT, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler and RUN_LOCK.owner is None


def press(times=1):
    for _ in range(times): signal.raise_signal(signal.SIGINT)


class Struck:
    "A method at whose end, or `early`, the button is pressed, once, in the main thread."
    def __init__(self, monkeypatch, owner, name, times, after=0, where=lambda self: True, early=False):
        self.left, self.count, real = 1, -after, getattr(owner, name)
        def struck(*args, **kwargs):
            result = None if early else real(*args, **kwargs)
            if self.left and threading.get_ident() == threading.main_thread().ident and where(args[0]):
                self.count += 1
                if self.count > 0:
                    self.left = 0
                    press(times)
            return real(*args, **kwargs) if early else result
        # by its name and its module it is the method itself
        code = struck.__code__.replace(co_name=name, co_qualname=f"{owner.__qualname__}.{name}")
        code = type(struck)(code, vars(sys.modules[owner.__module__]) | {"press": press, "threading": threading}, name, None, struck.__closure__)
        monkeypatch.setattr(owner, name, code)


def same(learn, like):
    assert set(differences(learn.snapshot(), like.snapshot())) <= {"args"}   # the folder, the number of workers
    assert learn.history.column("loss").tolist() == like.history.column("loss").tolist()


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("after", [1, 3])
def test_pressed_while_a_worker_is_asked_for_a_batch(monkeypatch, persistent, after):
    "The lock of a worker's queue has just been taken."
    settings = {"dataloader_num_workers": 2, "dataloader_persistent_workers": persistent}
    like, learn = make(**settings), make(**settings)
    like.train()
    learn.step()
    struck = Struck(monkeypatch, threading.Condition, "__enter__", 2, after,
                    lambda condition: sys._getframe(2).f_code.co_qualname == "Queue.put" and sys._getframe(3).f_code.co_name == "_try_put_index"
                                      and sys._getframe(4).f_code.co_name != "_reset")
    began = time.monotonic()
    with pytest.raises(Paused): learn.train()
    assert not struck.left and time.monotonic() - began < LIMIT
    monkeypatch.undo()
    learn.train()
    same(learn, like)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("name", ["__enter__", "acquire", "__exit__", "release"])
def test_pressed_while_the_turn_is_taken(monkeypatch, name, early):
    "The turn is nobody's afterwards, so a run in the background goes on."
    learn = make()
    learn.step()
    struck = Struck(monkeypatch, type(RUN_LOCK), name, 1, where=lambda turn: turn is RUN_LOCK, early=early)
    with pytest.raises(KeyboardInterrupt):
        for _ in range(3): learn.predict(learn.eval_dataset)
        time.sleep(1)
    assert not struck.left and RUN_LOCK.owner is None
    monkeypatch.undo()
    assert learn.start().wait(LIMIT).global_step == 18


@pytest.mark.parametrize("name", ["__enter__", "acquire"])
def test_a_press_at_the_first_line_of_a_long_verb(monkeypatch, name):
    "It waits for the turn to be taken, and no longer."
    learn = make()
    learn.step()
    learn.model.wait = lambda: time.sleep(LIMIT)
    Struck(monkeypatch, type(RUN_LOCK), name, 1, where=lambda turn: turn is RUN_LOCK)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt): learn.evaluate()
    with pytest.raises(KeyboardInterrupt):
        Struck(monkeypatch, type(RUN_LOCK), name, 1, where=lambda turn: turn is RUN_LOCK)
        learn.train()
    assert time.monotonic() - began < LIMIT / 2 and learn.state.global_step == 1


@pytest.mark.parametrize("times", [1, 2])
def test_pressed_while_the_lock_of_the_turn_is_taken(monkeypatch, times):
    learn = make()
    learn.step()
    struck = Struck(monkeypatch, threading.Condition, "__enter__", times, where=lambda condition: condition is RUN_LOCK.changed)
    with pytest.raises(KeyboardInterrupt):
        learn.predict(learn.eval_dataset)
        time.sleep(1)
    assert not struck.left
    monkeypatch.undo()
    assert learn.start().wait(LIMIT).global_step == 18


def test_pressed_while_a_background_run_is_waited_for(monkeypatch):
    "What the thread sets when it has ended is not left locked."
    learn = make()
    learn.model.wait = lambda: time.sleep(0.02)
    handle = learn.start()
    struck = Struck(monkeypatch, threading.Condition, "__enter__", 1, where=lambda condition: condition is handle._budget.idle._cond)
    with pytest.raises(Interrupted):
        handle.wait()
        time.sleep(1)
    assert not struck.left
    monkeypatch.undo()
    assert handle.wait(LIMIT).global_step == 18


def test_pressed_while_a_checkpoint_is_waited_for(monkeypatch, tmp_path):
    "Twice, in the lock of what its thread sets at the end: the thread ends, and the next verb goes on."
    like, learn = make(), make(output_dir=str(tmp_path), save_strategy="no")
    like.train()
    learn.step(2)
    real = trainer_nb.state.async_save.write_checkpoint
    def slow(*args): time.sleep(1); return real(*args)
    monkeypatch.setattr(trainer_nb.state.async_save, "write_checkpoint", slow)
    struck = Struck(monkeypatch, threading.Condition, "__enter__", 2, where=lambda condition: condition is learn.run_state.parts.saver.done._cond)
    with pytest.raises(KeyboardInterrupt):
        learn.save_checkpoint()
        time.sleep(1)
    assert not struck.left
    learn.train()
    learn.run_state.parts.saver.wait()
    assert not any(t.name == "trainer_nb-save" for t in threading.enumerate())
    same(learn, like)


def test_one_press_and_a_worker_that_never_answers(monkeypatch, tmp_path):
    "The step is given up when its batch has not come for a while; the worker is ended, and the run goes on."
    monkeypatch.setattr(BATCH_WAIT, "TIMEOUT", 1.0)
    like, learn = make(), make(Rows(stuck=str(tmp_path/"stuck")), dataloader_num_workers=2)
    like.train()
    threading.Thread(target=lambda: (wait_for(tmp_path/"stuck"), time.sleep(0.3), os.kill(os.getpid(), signal.SIGINT))).start()
    began = time.monotonic()
    with pytest.raises(Paused, match="No batch came from the data workers for 1 s, so the step in progress was cancelled"): learn.train()
    assert time.monotonic() - began < LIMIT
    learn.train()
    same(learn, like)


def wait_for(path):
    while not path.exists(): time.sleep(0.01)


def test_one_press_and_workers_that_are_slow(monkeypatch):
    "As long as batches come, the first press lets the step finish."
    monkeypatch.setattr(BATCH_WAIT, "TIMEOUT", 0.6)
    class Slow(Rows):
        def __getitem__(self, i): time.sleep(0.05); return super().__getitem__(i)
    learn = make(Slow(), dataloader_num_workers=1, gradient_accumulation_steps=6, num_train_epochs=1)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(Paused, match="Paused after step 1 of 1"): learn.train()


def test_two_presses_and_workers_that_hang(tmp_path):
    "The wait for a batch ends at once, and so do the workers, although they ignore the polite signal."
    like, learn = make(), make(Rows(stuck=str(tmp_path/"stuck")), dataloader_num_workers=2, dataloader_persistent_workers=True)
    like.train()
    pressed = []
    def twice():
        wait_for(tmp_path/"stuck")
        for _ in range(2): time.sleep(0.2); pressed.append(time.monotonic()); os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=twice).start()
    with pytest.raises(Paused, match="The step in progress was cancelled"): learn.train()
    assert time.monotonic() - pressed[1] < 8
    learn.train()
    same(learn, like)


# ---- what a place is taken for

def test_what_would_be_torn():
    "Seen from a handler: the lock of a condition, the end of a `with`, the user's own code."
    seen, before = [], signal.signal(signal.SIGINT, lambda number, frame: seen.append(classify_frame(frame)))
    class Ends:
        def __exit__(self, *error): press()
        def __enter__(self): pass
    try:
        press()
        with Ends(): pass
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        threading.Event().wait(0.6)
    finally: signal.signal(signal.SIGINT, before)
    assert seen == ["", "inside", "wait"]


def test_what_takes_long_is_broken_into_all_the_same():
    "After a second, whatever it is."
    class Long:
        def __enter__(self): time.sleep(LIMIT)
        def __exit__(self, *error): pass
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        with InterruptGuard(at_once=True), Long(): pass
    assert 0.9 < time.monotonic() - began < LIMIT / 2


def test_no_press_is_made_up():
    "A press that was answered by the verb is not raised again behind it, whatever a thread had still to do."
    for _ in range(50):
        with pytest.raises(KeyboardInterrupt):
            with InterruptGuard() as interrupts:
                with interrupts.opened():
                    lock = threading.Condition()
                    with lock: press(2)
                    for _ in range(10**6): pass
        time.sleep(0.004)


def test_presses_that_an_inner_block_kept_are_all_handed_on():
    with pytest.raises(KeyboardInterrupt, match="second"):
        with InterruptGuard() as interrupts:
            with InterruptGuard(): press(2)
            interrupts.open()

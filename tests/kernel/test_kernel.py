"""The interrupt button, memory and threads, in a real kernel driven the way Jupyter drives one.

Nothing is stood in for: the kernel is ipykernel's, a press is a SIGINT, sent at a random moment or when the kernel says
that it has come to a certain point. What must hold is exact: after any presses the run ends in the same bytes.
"""
import asyncio, collections, random, re, signal, subprocess, sys, textwrap, threading, time

import pytest
from jupyter_kernels import ANSI, ENV, Kernel, paused   # noqa: F401



# --- a kernel, as a front end sees it -------------------------------------------------------------------------------------



@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    "One kernel for all tests: starting one takes as long as most of them."
    kernel = Kernel(tmp_path_factory.mktemp("kernel"))
    kernel.run(SETUP + "\nmake().train(); gc.collect(); gc.freeze()")   # later collections pass the libraries over: a tenth of the time
    yield kernel
    kernel.close()


@pytest.fixture
def kernel(shared):
    "The kernel, with the model and the data of these tests, and nothing of the test before."
    shared.cells.clear()
    shared.run("%reset -f")
    shared.run(SETUP)
    shared.run("hooks = {k: list(v) for k, v in get_ipython().events.callbacks.items()}; children = set(multiprocessing.active_children())")
    yield shared
    found = shared.run("""
        del learn; gc.collect()
        print({k: list(v) for k, v in get_ipython().events.callbacks.items()} == hooks, signal.getsignal(signal.SIGINT).__name__)""")
    assert found == "True default_int_handler"   # no hook is left, and the button is the kernel's


# --- what is trained ------------------------------------------------------------------------------------------------------

SETUP = """
import contextvars, gc, glob, logging, multiprocessing, os, shutil, signal, sys, threading, time, warnings, weakref
import torch
from torch import nn
torch.set_num_threads(1)
from trainer_nb import Learner, Paused, InvalidOperation, TrainerCallback, differences
from trainer_nb.core.history import read_history as read

class Rows(torch.utils.data.Dataset):
    "Rows with random augmentation, slow from a certain fetch on."
    not_state = ("delay",)
    def __init__(self, n, seed=0):
        make = torch.Generator().manual_seed(seed)
        self.x, self.y, self.delay = torch.randn(n, 6, generator=make), torch.randint(3, (n,), generator=make), 0.0
    def __len__(self): return len(self.x)
    def __getitem__(self, i):
        if self.delay: here(); time.sleep(self.delay)
        return {"x": self.x[i] + 0.1 * torch.randn(6), "labels": self.y[i]}

class Net(nn.Module):
    "BatchNorm, dropout, and a buffer that each forward pass replaces. `wait` is asked what to do in each."
    not_state = ("delay", "wait")
    def __init__(self, delay=0.0):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
        self.register_buffer("mean", torch.zeros(6), persistent=False)
        self.delay, self.wait = delay, None
    def forward(self, x, labels=None):
        if self.training: self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        if self.delay: time.sleep(self.delay)
        act = self.body[:4](x - self.mean)
        acts.append(weakref.ref(act)), batches.append(weakref.ref(x))
        if self.wait is not None: self.wait(self)
        logits = self.body[4](act)
        if labels is None: return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}
acts, batches = [], []

class Hears(TrainerCallback):
    "Writes down what is told after the commit: each must be heard once."
    quick = True
    def __init__(self): self.heard = []
for event in ("on_train_begin", "on_epoch_begin", "on_optimizer_step", "on_step_end", "on_log", "on_evaluate", "on_epoch_end", "on_train_end"):
    def hear(self, args, state, control, event=event, **kwargs): self.heard.append((event, state.global_step))
    setattr(Hears, event, hear)

def right(p): return {"right": float((p.predictions.argmax(-1) == p.label_ids).mean())}
def here(): print("here", flush=True)
def here_soon(): threading.Timer(0.1, here).start()   # in the call that follows, so that the press does not strike the print
def over(): print("over", flush=True); time.sleep(0.5)   # a press that comes late is caught here

def make(workers=0, epochs=3, delay=0.0, kind=Learner, model=None, callbacks=(), **settings):
    "13 micro-batches an epoch, the last one of 2 samples, in windows of 3: 5 steps, the last one of 1 micro-batch."
    torch.manual_seed(0)
    settings = dict(num_train_epochs=epochs, per_device_train_batch_size=4, gradient_accumulation_steps=3, learning_rate=0.01, seed=3,
                    logging_steps=5, eval_strategy="steps", eval_steps=7, dataloader_num_workers=workers, use_cpu=True) | settings
    return kind(model or (Net(delay) if "model_init" not in settings else None), train_dataset=Rows(50), eval_dataset=Rows(10, 1),
                callbacks=[Hears(), *callbacks], compute_metrics=right, **settings)

def account(learn):
    "What a run came to: weights, rows, evaluations, what was heard."
    history, timings = learn.history, ("_runtime", "_per_second")
    return {"weights": {n: t.detach().numpy().tobytes() for n, t in [*learn.model.named_parameters(), *learn.model.named_buffers()]},
            **{k: history.column(k).tolist() for k in ("step", "epoch", "loss", "grad_norm", "learning_rate", "samples", "abandoned")},
            "evaluations": [{k: v for k, v in e.items() if not k.endswith(timings)} for e in history.evaluations()],
            "modes": [m.training for m in learn.model.modules()], "heard": next(c.heard for c in learn.callback_handler.callbacks if isinstance(c, Hears))}

def check(learn, like):
    "Nothing may differ from an undisturbed run."
    mine, right = account(learn), account(like)
    found = differences(learn.snapshot(), like.snapshot()) + [k for k in right if mine[k] != right[k]]
    if learn.history.path is not None:
        learn.history.flush()
        log = read(learn.history.path)
        found += [f"log: {k}" for k in ("step", "loss", "grad_norm") if log.column(k).tolist() != right[k]]
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler: found.append("the button")
    if not lock_is_free(): found.append("logging's lock")
    if learn.run_state.verb.phase != "idle" or learn.run_state.due or learn.run_state.current.window: found.append("the agenda")
    print("the same" if not found else f"different: {found}")

def lock_is_free():
    "Can another thread log, and so fork? An interrupt in the middle of a fork would leave logging's lock locked."
    got = []
    def work():
        got.append(logging._lock.acquire(timeout=5))
        if got[0]: logging._lock.release()
    thread = threading.Thread(target=work)
    thread.start(); thread.join()
    return got[0]

def alive(refs): return sum(r() is not None for r in refs)
def parts(learn):
    "Weak references to what a learner holds."
    tensors = [t for s in learn.optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
    return [weakref.ref(o) for o in (learn, learn.run_state, learn.model, learn.optimizer, learn.lr_scheduler, *learn.model.parameters(), *tensors)]
"""


# --- presses at random ----------------------------------------------------------------------------------------------------

VERBS = ("learn.train()", "learn.step(100)", "learn.run(epochs=30)", "learn.run(until=lambda rec: rec.step % 60 == 0)", "for rec in learn.steps(): pass")


def harass(kernel, seed, presses, workers=0, **settings):
    "Train again and again, pressing at random; every run must end as the undisturbed one. Counts what the cells were shown as."
    rng, shown, given, ran = random.Random(seed), collections.Counter(), 0, 0
    settings = ", ".join(f"{k}={v!r}" for k, v in ({"workers": workers} | settings).items())
    kernel.run(f"like = make({settings}); like.train(); ran = 0; None")
    while given < presses:
        kernel.run(f"[shutil.rmtree(o) for o in glob.glob(f'{{like.args.output_dir}}/*checkpoint-*')]; learn = make({settings})")   # or it warns
        while kernel.run("learn.run_state.finished and not learn.run_state.due") == "False":
            verb, double = rng.choice(VERBS), rng.random() < 0.5
            cell, queued = kernel.send(f"here()\n{verb}\nover()"), kernel.send("ran += 1")
            kernel.wait_for(cell, "here")
            time.sleep(rng.uniform(0, 0.12))
            kernel.press(rng.random() < 0.5)
            if double: time.sleep(rng.choice([0.005, 0.03]) * rng.random()); kernel.press(rng.random() < 0.5)
            given += 1 + double
            kernel.until(lambda: queued.idle and cell.idle)
            end = time.monotonic() + 2
            kernel.until(lambda: (cell.reply is not None and queued.reply is not None) or time.monotonic() > end)
            # The second press has struck the kernel itself, behind a cell that was over, and the reply is lost: ipykernel catches such an
            # interrupt and goes on. A reply that is waited for would never come; that the kernel goes on is seen by the next cell.
            if cell.reply is None or queued.reply is None or (double and queued.status == "ok"):
                now = int(kernel.run("ran"))
                assert double and ran <= now <= ran + 1, f"seed {seed}, press {given}, {verb}: {cell} {queued}"
                shown["struck the kernel"], ran = shown["struck the kernel"] + 1, now
                continue
            about = f"seed {seed}, press {given}, {verb}, {'twice' if double else 'once'}: {cell} {queued}"
            assert cell.status == "error" and queued.status == "aborted", about
            # It has struck the cell's own code (also `here()`, which waits for what it prints to be sent), or, after a pause, IPython's.
            late = cell.ename == "KeyboardInterrupt" and ("over" in cell.text or verb == VERBS[-1] or "trainer_nb" not in cell.shown
                                                          or (double and "Paused: Paused" in cell.shown))
            assert cell.ename == "Paused" or late, about
            if not double and not late: assert len(cell.error) == 1 and cell.error[0] == cell.evalue, about
            assert "exited unexpectedly" not in cell.text + cell.shown, about
            shown["late" if late else "given up" if "was cancelled" in cell.evalue else "not done" if "The work after the step" in cell.evalue else "paused"] += 1
        assert kernel.run("check(learn, like); ran").splitlines() == ["the same", str(ran)], f"seed {seed}, after press {given}"
    return shown


def test_any_presses_and_the_same_bytes(kernel, tmp_path):
    shown = harass(kernel, 1, 30, epochs=14, delay=0.004, output_dir=str(tmp_path))
    assert shown["paused"] > 5 and shown["given up"] > 0, shown


def test_any_presses_with_data_workers(kernel, tmp_path):
    shown = harass(kernel, 2, 30, workers=2, epochs=16, delay=0.003, eval_steps=20, dataloader_persistent_workers=True, output_dir=str(tmp_path))
    assert shown["paused"] > 8, shown


def test_any_presses_with_workers_that_start_anew(kernel):
    harass(kernel, 3, 20, workers=2, epochs=10, delay=0.002, eval_steps=20)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workers", [0, 2])
def test_five_hundred_presses(kernel, tmp_path, workers):
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}:", harass(kernel, seed, 250, workers=workers, epochs=40, delay=0.002, eval_steps=20, output_dir=str(tmp_path)))


# --- presses at chosen points ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("workers", [0, 2])
def test_workers_survive_a_press(kernel, workers):
    "The first press lets the step finish although its data is slow; the workers are the same ones afterwards."
    kernel.run(f"like = make({workers}, dataloader_persistent_workers={workers > 0}); like.train(); learn = make({workers}, dataloader_persistent_workers={workers > 0})")
    kernel.run("learn.step(); learn.train_dataset.delay = 0.02; None")
    if workers: kernel.run("""
        feed = learn.run_state.loader   # the workers have their own copy of the data: let them start anew, slow
        feed.close(); learn.step(); pids = [w.pid for w in multiprocessing.active_children()]; pids""")
    paused(kernel.pressed("here_soon(); learn.train()"))
    if workers: assert kernel.run("[w.pid for w in multiprocessing.active_children()] == pids and len(pids) >= 2") == "True"
    assert kernel.run("learn.train_dataset.delay = 0; learn.train(); check(learn, like)").splitlines()[-1] == "the same"


def test_a_second_press_breaks_into_slow_data(kernel):
    kernel.run("like = make(); like.train(); learn = make(); learn.step(2); learn.train_dataset.delay = 5; None")
    cell = kernel.pressed("learn.train()", times=2)
    assert paused(cell, "The step in progress was cancelled; paused after step 2 of 15") and cell.seconds < 3
    assert kernel.run("learn.train_dataset.delay = 0; learn.train(); check(learn, like)").splitlines()[-1] == "the same"


def test_pressed_during_an_evaluation(kernel):
    "Once: the evaluation is finished first. Twice: it is given up, and done when the run goes on."
    kernel.run("""
        like = make(); like.train(); learn = make(); learn.step(6)
        def wait(model):
            if not model.training: here(); time.sleep(0.3)
        learn.model.wait = wait""")
    paused(kernel.pressed("learn.train()"), "Paused after step 7 of 15")
    assert kernel.run("len(learn.history.evaluations())") == "1"
    kernel.run("""
        learn.step(6)
        def wait(model):
            if not model.training: here(); time.sleep(5)
        learn.model.wait = wait""")
    cell = kernel.pressed("learn.train()", times=2)
    assert paused(cell, "The work after the step is incomplete, and is completed first when the run continues; paused after step 14 of 15") and cell.seconds < 3
    assert kernel.run("len(learn.history.evaluations()), [m.training for m in learn.model.modules()].count(False)") == "(1, 0)"
    assert kernel.run("learn.model.wait = None; learn.train(); check(learn, like)").splitlines()[-1] == "the same"


def test_pressed_during_an_evaluation_of_several_sets(kernel):
    "What the first set has brought is not told twice."
    kernel.run("""
        sets = {"a": Rows(10, 1), "b": Rows(10, 2)}
        def several(): learn = make(); learn.eval_dataset = sets; return learn
        like = several(); like.train(); learn = several(); learn.step(6)
        def wait(model, seen=[]):
            if not model.training:
                seen.append(1)
                if len(seen) == 3: here(); time.sleep(5)   # 2 batches are one set
        learn.model.wait = wait""")
    paused(kernel.pressed("learn.train()", times=2), "The work after the step")
    assert kernel.run("learn.model.wait = None; learn.train(); check(learn, like)").splitlines()[-1] == "the same"


@pytest.mark.parametrize("verb", ["learn.evaluate()", "learn.predict(learn.eval_dataset)", "learn.top_losses(2)", "learn.confusion()", "learn.summary()"])
def test_one_press_stops_what_only_looks(kernel, verb):
    kernel.run("""
        like = make(); like.train(); learn = make(); learn.step(4); learn.model.body[1].eval(); modes = [m.training for m in learn.model.modules()]
        def wait(model): here(); time.sleep(5)
        learn.model.wait = wait; before = learn.snapshot()""")
    cell = kernel.pressed(verb)
    assert cell.ename == "KeyboardInterrupt" and cell.seconds < 3, cell
    assert kernel.run("learn.model.wait = None; [m.training for m in learn.model.modules()] == modes, differences(before, learn.snapshot())") == "(True, [])"
    assert kernel.run("learn.model.body[1].train(); learn.train(); check(learn, like)").splitlines()[-1] == "the same"


@pytest.mark.parametrize("times, what", [(1, "Paused before the first step"), (2, "The preparation was cancelled; paused before the first step")])
@pytest.mark.parametrize("slow", ["model_init", "get_train_dataloader", "create_optimizer"])
def test_pressed_during_the_first_preparation(kernel, slow, times, what):
    kernel.run(f"""
        nap = 0
        def rest(): here(); time.sleep(nap)
        class Slow(Learner):
            def get_train_dataloader(self):
                if {slow!r} == "get_train_dataloader": rest()
                return super().get_train_dataloader()
            def create_optimizer(self, model=None):
                if {slow!r} == "create_optimizer": rest()
                return super().create_optimizer(model)
        def model_init():
            if {slow!r} == "model_init": rest()
            return Net()
        like = make(kind=Slow, model_init=model_init); like.train(); learn = make(kind=Slow, model_init=model_init); nap = {0.3 if times == 1 else 5}; None""")
    cell = kernel.pressed("learn.train()", times=times)
    assert cell.ename == "Paused" and re.match(what, cell.evalue) and len(cell.error) == 1 and cell.seconds < 4, cell
    assert kernel.run("learn.state.global_step") == "0"
    assert kernel.run("nap = 0; learn.train(); check(learn, like)").splitlines()[-1] == "the same"


@pytest.mark.parametrize("moment", ["shell.showtraceback", "shell.events.trigger", "finish_metadata", "_abort_queues", "post_handler_hook"])
def test_pressed_once_more_while_the_kernel_ends_the_cell(kernel, moment):
    "The second press belongs to the first: the reply comes, queued cells do not run, and the kernel goes on."
    kernel.run(f"""
        like = make(); like.train(); learn = make(); armed, ran = [], False
        owner = get_ipython().kernel if "." not in {moment!r} else eval("get_ipython().kernel." + {moment!r}.rpartition(".")[0])
        name = {moment!r}.rpartition(".")[2]; real = getattr(owner, name)
        def struck(*args, **kwargs):
            if armed: armed.clear(); signal.raise_signal(signal.SIGINT)
            return real(*args, **kwargs)
        def wait(model): model.wait = None; signal.raise_signal(signal.SIGINT)
        class Arms(TrainerCallback):
            def on_pause(self, *args, **kwargs): armed.append(True)
        learn.add_callback(Arms()); learn.model.wait = wait; setattr(owner, name, struck)""")
    cell, queued = kernel.send("learn.train()"), kernel.send("ran = True")
    kernel.wait(cell, queued)
    assert paused(cell, "Paused after step 1 of 15") and queued.status == "aborted"
    assert kernel.run("setattr(owner, name, real); armed, ran") == "([], False)"
    assert kernel.run("learn.remove_callback(Arms); learn.train(); check(learn, like)").splitlines()[-1] == "the same"


@pytest.mark.parametrize("moment", ["finish_metadata", "post_handler_hook"])
def test_pressed_once_more_behind_an_evaluation(kernel, moment):
    "The same, of a verb that one press ends."
    kernel.run(f"""
        learn, armed, ran = make(), [], False
        learn.step(); owner, name = get_ipython().kernel, {moment!r}; real = getattr(owner, name)
        def struck(*args, **kwargs):
            if armed: armed.clear(); signal.raise_signal(signal.SIGINT)
            return real(*args, **kwargs)
        def wait(model): model.wait = None; armed.append(True); signal.raise_signal(signal.SIGINT)
        learn.model.wait = wait; setattr(owner, name, struck)""")
    cell, queued = kernel.send("learn.evaluate()"), kernel.send("ran = True")
    kernel.wait(cell, queued)
    assert cell.ename == "KeyboardInterrupt" and queued.status == "aborted"
    assert kernel.run("setattr(owner, name, real); armed, ran") == "([], False)"


def test_pressed_between_two_steps(kernel):
    "There the run is the user's, and so is the button."
    kernel.run("like = make(); like.train(); learn = make(); records = []")
    cell = kernel.pressed("""
        for rec in learn.steps():
            records.append(rec)
            if rec.step == 4: here(); time.sleep(5)""")
    assert cell.ename == "KeyboardInterrupt" and cell.seconds < 3, cell
    assert kernel.run("records += learn.steps(); [rec.step for rec in records] == [*range(1, 16)]; check(learn, like)").splitlines()[-1] == "the same"


@pytest.mark.parametrize("times", [1, 2])
def test_pressed_at_the_end_of_training(kernel, times):
    kernel.run(f"""
        class Waits(TrainerCallback):
            order, nap, not_state = 5, 0, ("nap",)
            def on_train_end(self, args, state, control, **kwargs): here(); time.sleep(self.nap)
        like = make(callbacks=[Waits()]); like.train(); waits = Waits(); learn = make(callbacks=[waits]); waits.nap = {0.3 if times == 1 else 5}; None""")
    cell = kernel.pressed("learn.train()", times=times)
    assert cell.ename == "Paused" and "after step 15 of 15" in cell.evalue and cell.evalue.endswith("the run was just finished.") and cell.seconds < 3, cell
    kernel.run("waits.nap = 0")
    assert kernel.run("check(learn, like)") == "the same"   # the callback itself was cut short, and is not called again


@pytest.mark.parametrize("event", ["on_step_begin", "on_substep_end", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end", "on_log"])
@pytest.mark.parametrize("times", [1, 2])
def test_pressed_in_a_callback(kernel, event, times):
    "Before the commit the step is given up; after it, it is done. The button does not tear the update."
    kernel.run(f"""
        class Waits(TrainerCallback):
            order, nap, not_state = 5, 0, ("nap",)
            def {event}(self, args, state, control, **kwargs):
                if state.global_step >= 4 and self.nap: here(); time.sleep(self.nap)
        like = make(callbacks=[Waits()]); like.train(); waits = Waits(); learn = make(callbacks=[waits]); waits.nap = {0.2 if times == 1 else 5}; None""")
    cell = kernel.pressed("learn.train()", times=times)
    before_commit = event in ("on_step_begin", "on_substep_end", "on_pre_optimizer_step")
    paused(cell, "Paused" if times == 1 else "The step in progress" if before_commit else f"Waits.{event} was interrupted")
    assert cell.seconds < 3
    assert kernel.run("waits.nap = 0; learn.train(); check(learn, like)").splitlines()[-1] == "the same"


def test_the_button_twice_within_the_update(kernel):
    kernel.run("""
        like = make(); like.train(); learn = make(); learn.step(3); step = learn.optimizer.step
        def slow(*args): here(); time.sleep(0.3); return step(*args)
        learn.optimizer.step = slow""")
    paused(kernel.pressed("learn.train()", times=2), "The work after the step is incomplete, and is completed first when the run continues; paused after step 4 of 15")
    assert kernel.run("del learn.optimizer.step; learn.optimizer.step = step; learn.train(); check(learn, like)").splitlines()[-1] == "the same"


def test_verbs_that_change_a_run_are_not_torn(kernel):
    kernel.run("""
        like = make(); like.step(3); like.train(); learn = make(); learn.step(3); snap = learn.snapshot("three"); learn.step(5)
        class Slow(dict):
            def items(self): here(); time.sleep(0.3); return super().items()
        object.__setattr__(snap, "_tensors", Slow(snap.tensors))""")
    cell = kernel.pressed("learn.restore('three')")
    assert cell.ename == "KeyboardInterrupt" and cell.seconds < 3, cell
    assert kernel.run("object.__setattr__(snap, '_tensors', dict(snap._tensors)); differences(snap, learn.snapshot())") == "[]"


def test_in_a_cell_that_awaits(kernel):
    kernel.run("import asyncio; like = make(); like.train(); learn = make(delay=0.02)")
    paused(kernel.pressed("await asyncio.sleep(0); here_soon(); learn.train()"), "Paused")   # the first step may take a while
    kernel.run("learn.model.delay = 0; await asyncio.sleep(0); learn.train()")
    assert kernel.run("check(learn, like)") == "the same"


# --- the button and threads -----------------------------------------------------------------------------------------------

def test_the_button_is_what_it_was(kernel):
    "After each verb: one that went well, one that failed, and one where the button is the user's own."
    verbs = ["step()", "step(3)", "run(epochs=1)", "train()", "evaluate()", "predict(learn.eval_dataset)", "snapshot('a')", "restore('zero')", "set(lr=0.1)",
             "freeze()", "summary()", "show_batch()", "reset()", "free()", "top_losses()", "confusion()", "debug_step().abort()", "debug_step().forward()"]
    assert kernel.run(f"""
        def wait(model): raise ValueError("no")
        def mine(*args): pass
        def try_it(verb, button, wait=None):
            global learn
            learn = make(); learn.snapshot("zero"); learn.step(); learn.model.wait = wait
            signal.signal(signal.SIGINT, button)
            try: exec("learn." + verb)
            except (ValueError, InvalidOperation): pass
            finally: found = signal.signal(signal.SIGINT, signal.default_int_handler)
            if found is not button: print(verb, wait, found)
        for verb in {verbs}:
            try_it(verb, signal.default_int_handler); try_it(verb, signal.default_int_handler, wait); try_it(verb, mine); try_it(verb, signal.SIG_IGN)""") == ""


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_in_a_thread_leaves_the_button_alone(kernel, workers):
    "The cell that waits is interrupted; the run and its workers are not."
    kernel.run(f"""
        like = make({workers}, epochs=8, delay=0.01, eval_steps=20); like.train(); learn = make({workers}, epochs=8, delay=0.01, eval_steps=20)
        done, came = threading.Event(), []
        def work():
            try: came.append(learn.train())
            except BaseException as error: came.append(error)
            finally: done.set()
        threading.Thread(target=contextvars.copy_context().run, args=(work,)).start()""")
    cell = kernel.pressed("here_soon(); done.wait()")
    assert cell.ename == "KeyboardInterrupt" and cell.seconds < 2, cell
    assert kernel.run("done.is_set()") == "False"
    assert kernel.run("done.wait(); print(type(came[0]).__name__, came[0].global_step)") == "TrainOutput 40"
    assert kernel.run("check(learn, like)") == "the same"


# --- memory ---------------------------------------------------------------------------------------------------------------

SEVERAL = ["", "dataloader_num_workers=2, dataloader_persistent_workers=True", "bf16=True", "output_dir='out'", "rollback='full'"]


@pytest.mark.parametrize("settings", SEVERAL)
def test_a_cell_run_again_frees_what_it_made(kernel, settings):
    cell = f"learn = make({settings})\nlearn.step()"
    kernel.run(cell)
    kernel.run("refs = parts(learn); len(refs)")
    kernel.run(cell)
    assert kernel.run("gc.collect(); print(alive(refs), alive(batches[:3]), alive(acts))") == "0 0 0"


def test_what_a_verb_shows_does_not_keep_the_learner(kernel):
    "IPython keeps what the last expression of each cell gave, for ever."
    for show in ["learn.step(5)", "learn.run(epochs=1)", "learn.train()", "learn.evaluate()", "learn.predict(learn.eval_dataset)", "learn.set(lr=0.1)", "learn.set()", "learn.summary()",
                 "learn.freeze(0)", "learn.unfreeze()", "learn.show_batch()", "learn.top_losses(2)", "learn.confusion()", "learn.snapshot('a')", "learn.restore('zero')", "learn.reset()",
                 "learn.history", "learn.history[-1]", "learn.history.evaluations()", "[*learn.steps()]", "learn.state", "learn.args"]:
        kernel.run("learn = make(); learn.snapshot('zero'); learn.step(); refs = parts(learn)")
        kernel.run(show)
        assert kernel.run("del learn; print(alive(refs))") == "0", show
    kernel.run("learn = None")


FAILURES = {   # what is to fail, the verb, and what the error is
    "forward": ("def wait(model): inner = acts[-1](); raise ValueError('bad')\nlearn.model.wait = wait", "learn.step()", "ValueError"),
    "train": ("def wait(model): inner = acts[-1](); raise ValueError('bad')\nlearn.model.wait = wait", "learn.train()", "ValueError"),
    "steps": ("def wait(model): inner = acts[-1](); raise ValueError('bad')\nlearn.model.wait = wait", "for rec in learn.steps(): pass", "ValueError"),
    "evaluate": ("def wait(model): inner = acts[-1](); raise ValueError('bad')\nlearn.model.wait = wait", "learn.evaluate()", "ValueError"),
    "debug step": ("def wait(model): inner = acts[-1](); raise ValueError('bad')\nlearn.model.wait = wait", "debug = learn.debug_step(); debug.forward()", "ValueError"),
    "attribute": ("def wait(model): inner = acts[-1](); model.layr\nlearn.model.wait = wait", "learn.step()", "AttributeError"),
    "loss": ("def loss(out, labels, num_items_in_batch=None): inner = acts[-1](); raise ValueError('bad')\nlearn.compute_loss_func = loss", "learn.step()", "ValueError"),
    "callback": ("def on_pre_optimizer_step(*args, **kwargs): inner = torch.zeros(6); acts.append(weakref.ref(inner)); raise ValueError('bad')\nlearn.callback_handler.callbacks[1].on_pre_optimizer_step = on_pre_optimizer_step\nlearn.callback_handler._listening.clear()", "learn.step()", "ValueError"),
    "collator": ("def collate(rows): inner = torch.zeros(6); acts.append(weakref.ref(inner)); raise ValueError('bad')\nlearn.data_collator = collate; learn.free()", "learn.step()", "ValueError"),
}


OTHERS = dict(zip(FAILURES, ("learn.set()", "learn.snapshot()", "learn.show_batch()", "learn.evaluate()", "learn.summary()") * 2)) | {"loss": "learn.show_batch()"}


@pytest.mark.parametrize("failure", FAILURES)
def test_an_error_holds_memory_until_the_next_verb(kernel, failure):
    "Until then %debug finds all variables; from then on nothing of the failed step is held, and nothing of a learner that is gone."
    prepare, verb, ename = FAILURES[failure]
    for then in ("learn.free()", OTHERS[failure], "learn = make()"):
        kernel.run("learn = make(); learn.step(); del acts[:], batches[:]")
        kernel.run(prepare)
        # the frames of the user alone
        for code, name in (("learn.rewnd(3)", "AttributeError"), (verb, ename)): assert "trainer_nb/" not in kernel.fails(code, name).shown
        assert kernel.run("""
            names, tb = [], sys.last_traceback
            while tb is not None: names += tb.tb_frame.f_locals; tb = tb.tb_next
            print({"inner", "learner"} <= set(names), alive(acts) > 0)""") == "True True"
        kernel.run("learn.model.wait = None; del tb; refs = [weakref.ref(learn), weakref.ref(learn.model)] + (parts(learn) if learn.optimizer else [])")
        if failure != "collator" or "free" in then or "make" in then: kernel.run(then + "; None")
        else: kernel.fails(then, "ValueError"); kernel.run("learn.set(); del acts[1:]; None")   # fails for the same reason
        assert kernel.run("debug = None; gc.collect(); print(alive(acts))") == "0", then
    assert kernel.run("print(alive(refs), alive(batches))") == "0 0"


@pytest.mark.parametrize("verb", ["learn.step()", "learn.train()", "for rec in learn.steps(): pass", "learn.evaluate()", "learn.predict(learn.eval_dataset)", "debug = learn.debug_step(); debug.forward()"])
@pytest.mark.parametrize("error", ["torch.OutOfMemoryError('CUDA out of memory.')", "MemoryError()", "torch.empty(1 << 60)"])
def test_out_of_memory_frees_at_once(kernel, verb, error):
    kernel.run(f"""
        learn = make(); learn.step(); del acts[:], batches[:]
        def wait(model): inner = acts[-1](); raise {error}
        learn.model.wait = wait""")
    kernel.fails(verb, {"t": "OutOfMemoryError", "M": "MemoryError"}[error[0]] if "empty" not in error else "RuntimeError")
    assert kernel.run("print(alive(acts))") == "0"
    kernel.run("learn.model.wait = None; learn.free() if 'debug' in globals() else learn.step(); None")


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("verb", ["learn.step()", "learn.train()", "for rec in learn.steps(): pass", "learn.evaluate()", "debug = learn.debug_step(); debug.forward()"])
def test_an_interrupt_frees_at_once(kernel, verb, times):
    kernel.run(f"""
        learn = make(); learn.step(); del acts[:], batches[:]
        def wait(model):
            inner = acts[-1]()
            if model.nap: here(); time.sleep(model.nap)
        learn.model.nap, learn.model.wait = {0.1 if times == 1 else 3}, wait""")
    kernel.pressed(verb, times=times)
    assert kernel.run("print(alive(acts))") == "0" or (times, verb[:5]) == (1, "debug")   # there the debug step is still open
    kernel.run("refs = parts(learn); debug = None; learn = make()")
    assert kernel.run("gc.collect(); print(alive(refs), alive(batches), alive(acts))") == "0 0 0"


def test_the_history_holds_no_graph(kernel):
    kernel.run("learn = make(max_grad_norm=0); records = learn.step(3)")
    assert kernel.run("print(alive(acts), sum(t.requires_grad for t in learn.history.rows.pending.values()))") == "0 0"


# --- elsewhere than in Jupyter --------------------------------------------------------------------------------------------

def test_nbclient_shows_one_line(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    cells = [SETUP, "learn = make(epochs=30); learn.model.wait = lambda model: (here(), time.sleep(0.1)); learn.train()", "print('this cell should not have run')"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(o) for o in cells])
    client = nbclient.NotebookClient(notebook, kernel_name="python3", timeout=60, resources={"metadata": {"path": str(tmp_path)}})

    def press():
        end = time.monotonic() + 60
        while not any("here" in o.get("text", "") for o in notebook.cells[1].outputs) and time.monotonic() < end: time.sleep(0.02)
        asyncio.run(client.km.interrupt_kernel())
    threading.Thread(target=press).start()
    with pytest.raises(nbclient.exceptions.CellExecutionError) as error: client.execute()
    assert error.value.ename == "Paused"
    last = notebook.cells[1].outputs[-1]
    assert last["output_type"] == "error" and last["traceback"] == [last["evalue"]] and last["evalue"].startswith("Paused ")
    assert not notebook.cells[2].outputs


def test_in_a_terminal_with_ipython(tmp_path):
    "Ctrl-C in IPython: one line, and the next command goes on."
    pexpect = pytest.importorskip("pexpect")
    (tmp_path / "setup.py").write_text(SETUP)
    terminal = pexpect.spawn(sys.executable, ["-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor", "-i", "setup.py"],
                             cwd=tmp_path, env=ENV | {"TERM": "dumb", "IPYTHONDIR": str(tmp_path / "ipython")}, encoding="utf-8", timeout=60, dimensions=(50, 200))

    def say(line, answer):
        terminal.sendline(line)
        terminal.expect(answer)
    try:
        terminal.expect(r"In \[\d+\]:")
        say("like = make(); out = like.train(); learn = make(); learn.model.wait = lambda model: (here(), time.sleep(0.1))", r"In \[\d+\]:")
        say("learn.train()", r"here\r\n")
        terminal.sendintr()
        terminal.expect(r"In \[\d+\]:")
        shown = [o for o in ANSI.sub("", terminal.before).replace("\r", "\n").splitlines() if o.strip() not in ("", "here")]
        assert re.match(r"(\^C)?Paused (after step \d+ of 15|before the first step).*continues\.$", shown[-1]) and not any("Traceback" in o for o in shown), shown
        say("learn.model.wait = None; out = learn.train(); check(learn, like)", "the same")
    finally: terminal.close(force=True)


SCRIPT = SETUP.replace("acts, batches = [], []", "class Nothing(list):\n    def append(self, o): pass\nacts, batches = Nothing(), Nothing()")


def script(tmp_path, body, **how):
    "Start a script and wait until it prints `here`."
    (tmp_path / "script.py").write_text(SCRIPT + "\nif __name__ == '__main__':\n" + textwrap.indent(textwrap.dedent(body), "    "))
    process = subprocess.Popen([sys.executable, "script.py"], cwd=tmp_path, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how)
    while (line := process.stdout.readline()) and "here" not in line: pass
    assert line, process.communicate()[1]
    return process


@pytest.mark.parametrize("times", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_script_ends_as_an_interrupted_one(tmp_path, times):
    process = script(tmp_path, """
        import atexit; atexit.register(print, 'at exit')
        def wait(model): here(); time.sleep(0.1 if %d == 1 else 5)
        learn = make(epochs=30, output_dir='out', disable_tqdm=True); learn.model.wait = wait
        learn.train(); print('this line should not be reached')""" % times)
    for i in range(times): time.sleep(0.05 * i); process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130 and "should not" not in out and "at exit" in out, (process.returncode, out, err)
    said = "Paused after step 1 of 150 " if times == 1 else "The step in progress was cancelled; paused before the first step"
    assert re.fullmatch(said + r".*continues\.\nThe process ends; train\(resume_from_checkpoint=True\) continues from the newest checkpoint.*\.\n", err), err


def said(out): return [word for line in out.splitlines() if not line.startswith("{") for word in line.split()]   # by the script; logs are printed too


def test_a_script_may_catch_the_pause(tmp_path):
    process = script(tmp_path, """
        def wait(model): here(); time.sleep(0.1); model.wait = None
        learn = make(epochs=2, disable_tqdm=True); learn.model.wait = wait
        try: learn.train()
        except KeyboardInterrupt as error: print(type(error).__name__, learn.state.global_step < 10)
        learn.train(); print(learn.state.global_step)""")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, said(out), err) == (0, ["Paused", "True", "10"], "")


def test_a_script_that_ignores_interrupts_goes_on(tmp_path):
    process = script(tmp_path, "learn = make(delay=0.02, epochs=2, disable_tqdm=True); here(); learn.train(); print(learn.state.global_step)",
                     preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, said(out), err) == (0, ["10"], "")


def test_other_errors_of_a_script_are_shown_as_ever(tmp_path):
    process = script(tmp_path, """
        def wait(model): here(); time.sleep(0.1); model.wait = None
        learn = make(epochs=2, disable_tqdm=True); learn.model.wait = wait
        try: learn.train()
        except KeyboardInterrupt: pass
        raise ValueError('something else')""")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 1 and err.startswith("Traceback") and err.endswith("ValueError: something else\n")

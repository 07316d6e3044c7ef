"Several processes from a real kernel, with classes and data of its cells: the button, what is printed, and what is left when the kernel ends."
import os, signal, time

import pytest

from jupyter_kernels import Kernel, paused
from launched import is_gone

pytestmark = pytest.mark.xdist_group("launch")

SETUP = """
import gc, os, threading, time, torch
from trainer_nb import Learner, TrainerCallback, differences

class Net(torch.nn.Module):
    not_state = ("nap",)
    def __init__(self):
        super().__init__()
        self.inward, self.norm, self.out, self.nap = torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 3), {}
    def forward(self, x):
        nap = self.nap.get("train" if self.training else "eval", 0)
        if nap: print("here", flush=True); time.sleep(nap)
        return self.out(torch.tanh(self.norm(self.inward(x))))

def rows(n, seed=0):
    made = torch.Generator().manual_seed(seed)
    return torch.utils.data.TensorDataset(torch.randn(n, 6, generator=made), torch.randint(3, (n,), generator=made))

def make(nap={}, **settings):
    torch.manual_seed(0)
    net = Net()
    net.nap = nap
    settings = dict(num_train_epochs=3, per_device_train_batch_size=4, learning_rate=0.01, eval_strategy="epoch", use_cpu=True) | settings
    return Learner(net, train_dataset=rows(48), eval_dataset=rows(10, 1), loss_func=torch.nn.functional.cross_entropy, **settings)

def steps(): return learn.run_on_all(lambda learn: learn.state.global_step)
def check(a, b): print("the same" if set(differences(a.snapshot(), b.snapshot())) <= {"args"} and [r.loss for r in a.history] == [r.loss for r in b.history] else differences(a.snapshot(), b.snapshot()))
like = make(); like.launch(2, train=True)
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    kernel = Kernel(tmp_path_factory.mktemp("kernel"))
    kernel.run(SETUP)
    yield kernel
    kernel.close()


@pytest.fixture(autouse=True)
def nothing_is_left(kernel):
    kernel.cells.clear()
    yield
    pids = eval(kernel.run("pids = [row['pid'] for row in learn.processes or []]; learn.run_state.parts.remote_run and learn.free(); print(pids)"))
    assert all(map(is_gone, pids))


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_run_from_cells(kernel, start):
    "What is defined in cells goes along; rows are shown, prints come whole, and the run is the same run."
    shown = kernel.run(f"learn = make(); learn.launch(2, start={start!r})")
    assert "2 processes" in shown and "pid" in shown
    assert "loss" in kernel.run("learn.step(2)")
    kernel.run("class Says(TrainerCallback):\n    def on_epoch_end(self, args, state, control, **kwargs): print('epoch', state.epoch, 'is over')\nlearn.add_callback(Says())")
    assert [o for o in kernel.run("learn.run(epochs=1).step[-1]").splitlines() if "is over" in o] == ["epoch 1.0 is over"]
    assert kernel.run("wanted = 8; learn.run(until=lambda record: record.step == wanted); steps()") == "[8, 8]"
    kernel.run("learn.train(); learn.close()")
    assert kernel.run("check(learn, like)") == "the same"


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_classes_of_cells(kernel, start):
    "A function that is sent later finds the objects of a class, there and here, and leaves the class as it is."
    kernel.run("""
        class Counts(TrainerCallback):
            steps = 0
            def on_step_end(self, *args, **kwargs): Counts.steps += 1; total.append(1)
        class Drop(torch.nn.Dropout): pass
        total = []
        class Odd(Exception): pass
        def make_drop():
            made = make()
            made.model = torch.nn.Sequential(Drop(0.1), Net())
            made.add_callback(Counts())
            return made
        def found(learn): return isinstance(learn.callback_handler.find(Counts), Counts), [isinstance(m, Drop) for m in learn.model.children()], Counts.steps
        def drop(learn):
            for m in learn.model.modules():
                if isinstance(m, Drop): m.p = 0.5
        def odd(learn): raise Odd(Counts.steps)""")
    kernel.run(f"learn = make_drop(); learn.launch(2, start={start!r}); learn.step(2)")
    assert kernel.run("learn.run_on_all(found)") == "[(True, [True, False], 2), (True, [True, False], 2)]"
    assert kernel.run("learn.run_on_all(drop); learn.run_on_all(lambda learn: learn.model[0].p)") == "[0.5, 0.5]"
    assert kernel.run("learn.step(1); learn.run_on_all(found)[1][2], Counts.steps") == "(3, 0)"
    # what a process returns or raises is of the notebook's classes, which stay as they are
    assert kernel.run("before = vars(Counts)['on_step_end']; [type(o) is Counts for o in learn.run_on_all(lambda learn: learn.callback_handler.find(Counts))]") == "[True, True]"
    assert kernel.run("Counts.steps, vars(Counts)['on_step_end'] is before") == "(0, True)"
    assert kernel.run("try: learn.run_on_all(odd)\nexcept Odd as error: print(error)") == "3"
    # a class of a later cell is sent each time, as it is then
    kernel.run("class Later:\n    def value(self): return 1")
    assert kernel.run("learn.run_on_all(lambda learn: Later().value())") == "[1, 1]"
    kernel.run("Later.value = lambda self: 2")
    assert kernel.run("learn.run_on_all(lambda learn: Later().value())") == "[2, 2]"
    # what is assigned to a class that is there does not reach it
    assert "Counts.steps was assigned in the notebook" in kernel.run("import warnings\nwith warnings.catch_warnings(record=True) as w:\n    warnings.simplefilter('always')\n    Counts.steps = 7; learn.step(1)\nprint(w[0].message)")
    assert kernel.run("learn.run_on_all(lambda learn: setattr(Counts, 'steps', 7)); learn.run_on_all(found)[0][2]") == "7"


def test_pressed_once(kernel):
    "All stop at the same boundary, with one line; the next cell goes on."
    kernel.run("learn = make(nap={'train': 0.03}); learn.launch(2); learn.step(2)")
    paused(kernel.pressed("learn.train()"))
    assert kernel.run("len(set(steps())) == 1 and steps()[0] == learn.state.global_step == len(learn.history)") == "True"
    paused(kernel.pressed("learn.run(epochs=2)"))
    kernel.run("learn.train(); learn.close()")
    assert kernel.run("check(learn, like)") == "the same"
    assert "pause" in kernel.run("print([e['kind'] for e in learn.history.events])")


def test_pressed_twice(kernel):
    "The step under way is given up, on all; the run is as it was before it."
    kernel.run("learn = make(nap={'train': 4}); learn.launch(2)")
    cell = kernel.pressed("learn.train()", times=2)
    assert paused(cell, "The step in progress was cancelled; paused before the first step. Nothing is lost: ") and cell.seconds < 12
    assert kernel.run("steps(), learn.state.global_step, len(learn.history)") == "([0, 0], 0, 0)"
    kernel.run("learn.run_on_all(lambda learn: learn.model.nap.clear()); learn.train(); learn.close()")
    assert kernel.run("check(learn, like)") == "the same"


def test_one_press_stops_what_only_looks(kernel):
    kernel.run("learn = make(nap={'eval': 3}); learn.launch(2); learn.step(3)")
    cell = kernel.pressed("learn.evaluate()")
    assert cell.ename == "KeyboardInterrupt" and cell.seconds < 12, cell
    kernel.run("learn.run_on_all(lambda learn: learn.model.nap.clear()); learn.train(); learn.close()")
    assert kernel.run("check(learn, like)") == "the same"


def test_in_the_background_with_a_view(kernel):
    "The view shows the steps as they come, and its state."
    kernel.run("learn = make(nap={'train': 0.01}, num_train_epochs=30); learn.launch(2); view = learn.dashboard(); run = learn.start()")
    time.sleep(1)
    status = eval(kernel.run("view.view_model.message(); s = view.view_model.sent['status']; print({k: s[k] for k in ('state', 'step', 'words')})"))
    assert status["state"] == "training" and status["step"] > 5 and "2 processes" in status["words"]
    assert kernel.run("run.pause(); learn.state.global_step == steps()[0] == steps()[1]") == "True"
    assert kernel.run("before = learn.state.global_step; run.step(3).wait(20); learn.state.global_step - before") == "3"
    assert kernel.run("metrics = learn.evaluate(); run.resume(); time.sleep(0.3); run.pause(); learn.set(max_steps=learn.state.global_step + 5); run.resume().wait(60).global_step == learn.state.max_steps") == "True"


def test_the_kernel_is_killed(tmp_path):
    "No process is left, whatever they were doing."
    kernel = Kernel(tmp_path)
    try:
        kernel.run(SETUP + "\nlearn = make(nap={'train': 0.05}, num_train_epochs=300); learn.launch(2)")
        pids = eval(kernel.run("[row['pid'] for row in learn.processes]"))
        kernel.run("run = learn.start(); time.sleep(0.3)")
        os.kill(kernel.pid, signal.SIGKILL)
        assert all(map(is_gone, pids))
    finally: kernel.close()

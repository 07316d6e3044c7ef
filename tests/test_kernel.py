"""The interrupt button, memory and threads, in a real kernel driven the way Jupyter drives one.

Nothing is stood in for: the kernel is ipykernel's, the presses are SIGINTs, sent at random moments or when the kernel
says that it has come to a certain point. What must hold is exact: after any presses the run ends in the same bytes.
"""
import os, random, re, signal, subprocess, sys, textwrap, time
from pathlib import Path

import pytest
from jupyter_client import KernelManager

pytestmark = pytest.mark.timeout(300)
LIMIT = 60   # seconds that a cell may take
ANSI = re.compile(r"\x1b\[[0-9;]*m")


# --- a kernel, as a front end sees it -------------------------------------------------------------------------------------

class Cell:
    "A cell that was sent: what came back so far."
    def __init__(self, number): self.number, self.reply, self.text, self.errors, self.idle = number, None, "", [], False
    @property
    def status(self): return self.reply["status"]
    @property
    def ename(self): return self.reply.get("ename", "")
    @property
    def evalue(self): return self.reply.get("evalue", "")
    def __repr__(self):
        told = "no reply" if self.reply is None else f"{self.reply['status']} {self.ename} {self.evalue}"
        return f"Cell({told}; {self.text[-2000:]!r}; {' '.join(l for e in self.errors for l in [ANSI.sub('', t) for t in e['traceback']])[-3000:]})"


class Kernel:
    "A kernel and the cells sent to it."
    def __init__(self, folder):
        self.manager, self.cells = KernelManager(kernel_name="python3"), {}
        self.manager.start_kernel(cwd=str(folder), env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.pid = self.manager.provisioner.pid

    def send(self, code) -> Cell:
        "Send a cell, and do not wait."
        number = self.client.execute(textwrap.dedent(code))
        self.cells[number] = cell = Cell(number)
        return cell

    def _read(self, until, limit=LIMIT):
        "Take messages in until something holds."
        end = time.monotonic() + limit
        while not until():
            if time.monotonic() > end: raise TimeoutError(f"{limit} s have passed: {list(self.cells.values())[-3:]}")
            if self.client.shell_channel.msg_ready():
                message = self.client.get_shell_msg(timeout=1)
                cell = self.cells.get(message["parent_header"].get("msg_id"))
                if cell is not None and message["msg_type"] == "execute_reply": cell.reply = message["content"]
                continue
            if not self.client.iopub_channel.socket.poll(5): continue
            message = self.client.get_iopub_msg(timeout=1)
            cell, kind, content = self.cells.get(message["parent_header"].get("msg_id")), message["msg_type"], message["content"]
            if cell is None: continue
            if kind == "stream": cell.text += content["text"]
            elif kind in ("execute_result", "display_data"): cell.text += content["data"].get("text/plain", "")
            elif kind == "error": cell.errors.append(content)
            elif kind == "status" and content["execution_state"] == "idle": cell.idle = True

    def wait(self, *cells):
        "Wait until these cells are over."
        self._read(lambda: all(c.reply is not None and c.idle for c in cells))
        return cells[-1]

    def wait_for(self, cell, text):
        "Wait until a cell prints something (or ends)."
        self._read(lambda: text in cell.text or cell.reply is not None)
        assert text in cell.text, cell

    def run(self, code) -> str:
        "Run a cell that must succeed; what it printed and showed."
        cell = self.wait(self.send(code))
        assert cell.status == "ok", cell
        return cell.text

    def fails(self, code) -> Cell:
        "Run a cell that must fail."
        cell = self.wait(self.send(code))
        assert cell.status == "error", cell
        return cell

    def press(self, group=True):
        "The interrupt button: SIGINT to the kernel's process group, or to the kernel alone."
        self.manager.interrupt_kernel() if group else os.kill(self.pid, signal.SIGINT)

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    "One kernel for the tests that leave nothing behind."
    kernel = Kernel(tmp_path_factory.mktemp("kernel"))
    yield kernel
    kernel.close()


@pytest.fixture
def kernel(shared):
    "The kernel, with the model and the data of these tests, and nothing of the test before."
    shared.cells.clear()
    shared.run("%reset -f")
    shared.run(SETUP)
    yield shared


# --- what is trained ------------------------------------------------------------------------------------------------------

SETUP = """
import contextlib, gc, logging, os, signal, sys, threading, time, warnings, weakref
import torch
from torch import nn
torch.set_num_threads(1)
from trainer_nb import Learner, Paused, Refused, TrainerCallback, differences
from trainer_nb.events import EVENTS
from trainer_nb.history import read

class Rows(torch.utils.data.Dataset):
    "Rows with random augmentation."
    def __init__(self, n, seed=0):
        make = torch.Generator().manual_seed(seed)
        self.x, self.y, self.delay = torch.randn(n, 6, generator=make), torch.randint(3, (n,), generator=make), 0.0
    def __len__(self): return len(self.x)
    def __getitem__(self, i):
        if self.delay: time.sleep(self.delay)
        return {"x": self.x[i] + 0.1 * torch.randn(6), "labels": self.y[i]}

class Net(nn.Module):
    "BatchNorm, dropout, and a buffer that each forward pass replaces."
    def __init__(self, delay=0.0):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
        self.register_buffer("mean", torch.zeros(6), persistent=False)
        self.delay = delay
    def forward(self, x, labels=None):
        if self.training: self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        if self.delay: time.sleep(self.delay)
        logits = self.body(x - self.mean)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

class Hears(TrainerCallback):
    "Writes down what is told after the commit: each must be heard once."
    quick = True
    def __init__(self): self.heard = []
for event in ("on_epoch_begin", "on_epoch_end", "on_step_end", "on_log", "on_evaluate", "on_train_begin", "on_train_end"):
    def hear(self, args, state, control, event=event, **kwargs): self.heard.append((event, state.global_step))
    setattr(Hears, event, hear)

def make(workers=0, folder=None, epochs=6, delay=0.0, **settings):
    torch.manual_seed(0)
    how = dict(num_train_epochs=epochs, per_device_train_batch_size=4, gradient_accumulation_steps=3, learning_rate=0.01,
               logging_steps=5, eval_strategy="steps", eval_steps=7, dataloader_num_workers=workers, use_cpu=True, seed=3) | settings
    if workers: how.setdefault("dataloader_persistent_workers", True)
    learn = Learner(Net(delay), train_dataset=Rows(46), eval_dataset=Rows(10, 1), callbacks=[Hears()],
                    compute_metrics=lambda p: {"right": float((p.predictions.argmax(-1) == p.label_ids).mean())}, **how)
    if folder is not None and learn.history.path is None: learn.history.open_log(folder)
    return learn

def account(learn):
    "What a run came to: weights, rows, evaluations, what was heard."
    history = learn.history
    weights = {n: t.detach().numpy().tobytes() for n, t in [*learn.model.named_parameters(), *learn.model.named_buffers()]}
    plain = [{k: v for k, v in e.items() if not k.endswith(("_runtime", "_per_second"))} for e in history.evaluations()]
    heard = next(c.heard for c in learn.callback_handler.callbacks if isinstance(c, Hears))
    return {"weights": weights, "step": list(history.column("step")), "loss": list(history.column("loss")), "norm": list(history.column("grad_norm")),
            "rate": list(history.column("learning_rate")), "evaluations": plain, "heard": heard, "abandoned": list(history.column("abandoned"))}

def check(learn, like):
    "Nothing may differ from an undisturbed run."
    found = differences(learn.snapshot(), like.snapshot())
    mine, right = account(learn), account(like)
    found += [k for k in right if mine[k] != right[k]]
    if learn.history.path is not None:
        learn.history.flush()
        log = read(learn.history.path)
        found += [f"log: {k}" for k in ("step", "loss") if list(log.column(k)) != right[k]]
    if getattr(signal.getsignal(signal.SIGINT), "__name__", "") != "default_int_handler": found.append(f"the button: {signal.getsignal(signal.SIGINT)}")
    if learn.run_state.phase != "idle" or learn.run_state.window: found.append("phase")
    print("the same" if not found else f"DIFFERENT: {found}")
"""

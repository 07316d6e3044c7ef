"What several tests share: CELL, kernel, like, make, reach."
import time
import pytest
import torch
from torch import nn
from jupyter_kernels import Kernel
from trainer_nb import Learner


def rows(n=64):
    g = torch.Generator().manual_seed(0)
    return [{"x": torch.randn(4, generator=g), "labels": i % 3} for i in range(n)]

class Net(nn.Module):
    not_state = ("nap", "bad")
    def __init__(self):
        super().__init__()
        self.body, self.norm, self.drop, self.head, self.nap, self.bad = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3), 0, None
    def forward(self, x, labels=None):
        if self.nap: time.sleep(self.nap)
        if self.bad: raise self.bad
        logits = self.head(self.drop(self.norm(self.body(x)).relu()))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

def make(nap=0.0, **given):
    torch.manual_seed(0)
    learn = Learner(Net(), **{"train_dataset": rows(160), "eval_dataset": rows(16), "learning_rate": 0.05, "use_cpu": True, "disable_tqdm": True, "num_train_epochs": 3} | given)
    learn.model.nap = nap
    return learn

def like(learn, **given):
    "The snapshot of a run that has done as many steps in one go."
    other = make(**given)
    other.step(learn.state.global_step)
    return other.snapshot()

def reach(learn, step, seconds=30):
    "Wait until the thread has come so far."
    end = time.monotonic() + seconds
    while learn.state.global_step < step:
        assert time.monotonic() < end, learn
        time.sleep(0.001)

CELL = """
import time, torch
from trainer_nb import Learner
class Net(torch.nn.Linear):
    not_state = ("nap", "talk")
    nap, talk = 0.02, False
    def forward(self, x):
        time.sleep(self.nap)
        if self.talk: print("talking", flush=True)
        return super().forward(x)
data = torch.utils.data.TensorDataset(torch.randn(800, 4), torch.randint(0, 3, (800,)))
learn = Learner(Net(4, 3), train_dataset=data, loss_func=torch.nn.functional.cross_entropy, use_cpu=True, disable_tqdm=True)
"""

@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    kernel = Kernel(tmp_path_factory.mktemp("kernel"))
    yield kernel
    kernel.client.stop_channels()
    kernel.manager.shutdown_kernel(now=True)

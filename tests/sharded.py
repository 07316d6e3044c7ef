"The model, the data and the comparisons of the tests that divide a model among processes."
import os

import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from trainer_nb import Learner
from trainer_nb.engine.snapshot import differences


class Block(torch.nn.Module):
    "A layer that is wrapped by itself."
    def __init__(self, n):
        super().__init__()
        self.inner, self.norm, self.drop = torch.nn.Linear(n, n), torch.nn.LayerNorm(n), torch.nn.Dropout(0.1)
    def forward(self, x): return x + self.drop(torch.tanh(self.norm(self.inner(x))))


class Net(torch.nn.Module):
    "Rows that do not divide evenly, a parameter of one row, one without rows, tied weights, and a buffer that changes."
    _no_split_modules = ["Block"]
    def __init__(self, drop=0.1):
        super().__init__()
        self.inward, self.blocks, self.out = torch.nn.Linear(8, 15), torch.nn.ModuleList([Block(15), Block(15)]), torch.nn.Linear(15, 2)
        self.scale, self.shift = torch.nn.Parameter(torch.tensor(1.0)), torch.nn.Parameter(torch.zeros(1, 2))
        self.twin = torch.nn.Linear(15, 2, bias=False)
        self.twin.weight = self.out.weight
        self.register_buffer("calls", torch.zeros(1))
        for b in self.blocks: b.drop.p = drop
    def forward(self, x):
        if self.training: self.calls += 1
        x = self.inward(x)
        for b in self.blocks: x = b(x)
        return (self.out(x) + 0.1 * self.twin(x.tanh())) * self.scale + self.shift


class Experts(torch.nn.Module):
    "Layers and a parameter without a layer of its own; each call uses some of them."
    def __init__(self):
        super().__init__()
        self.each, self.bias = torch.nn.ModuleList(torch.nn.Linear(15, 15) for _ in range(3)), torch.nn.Parameter(torch.zeros(15))
    def forward(self, x, numbers):
        for number in numbers: x = x + (torch.tanh(self.each[number](x)) if number < 3 else self.bias)
        return x


class Routed(torch.nn.Module):
    "A net with a layer of experts: `chosen` returns those that a process uses, by the number of its training pass and its rank."
    def __init__(self, chosen, checkpointed=False):
        super().__init__()
        self.chosen, self.checkpointed, self.calls = chosen, checkpointed, 0
        self.inward, self.experts, self.out = torch.nn.Linear(8, 15), Experts(), torch.nn.Linear(15, 2)
    def forward(self, x):
        self.calls += self.training
        x, numbers = self.inward(x), self.chosen(self.calls, int(os.environ.get("RANK", 0))) if self.training else range(4)
        return self.out(checkpoint(self.experts, x, numbers, use_reentrant=False) if self.checkpointed else self.experts(x, numbers))


def rows(n, seed=0):
    x = torch.randn(n, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, :3].sum(1) > 0).long())


def make(drop=0.1, callbacks=None, model=None, **settings):
    torch.manual_seed(0)
    settings = {"per_device_train_batch_size": 4, "num_train_epochs": 3, "learning_rate": 1e-2, "weight_decay": 0.1, "max_grad_norm": 0.5, "eval_strategy": "epoch",
                "rewind_every": 2, "disable_tqdm": True, "fsdp": True} | settings
    return Learner(model or Net(drop), train_dataset=rows(45), eval_dataset=rows(21, 1), loss_func=torch.nn.functional.cross_entropy, use_cpu=True, callbacks=callbacks, **settings)


def counted(learn): return [(r.step, r.loss, r.grad_norm) for r in learn.history if not r.abandoned]


def same(one, other):
    "Two learners whose runs are at home are the same, byte for byte."
    assert set(differences(one.snapshot(), other.snapshot())) <= {"args"} and counted(one) == counted(other)


def same_run(one, other):
    "As `same`, of runs that save at different steps, which the state says."
    assert set(differences(one.snapshot(), other.snapshot())) <= {"args", "state"} and counted(one) == counted(other)

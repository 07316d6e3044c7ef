"What the tests of transactions and of exactness share: a small model with everything that makes a run hard to repeat, and its data."
import random

import numpy as np
import torch
from torch import nn

from trainer_nb import Learner, TrainerCallback
from trainer_nb.events import EVENTS


class Hard(nn.Module):
    "BatchNorm, dropout, a momentum encoder, and buffers of every kind that a forward pass may change."
    def __init__(self, hook=lambda name: None):
        super().__init__()
        self.inner, self.norm, self.drop, self.outer = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3)
        self.slow = nn.Linear(4, 8)                                          # follows `inner`, without gradients
        self.slow.requires_grad_(False)
        self.register_buffer("center", torch.zeros(8))                       # replaced by assignment
        self.register_buffer("calls", torch.zeros(1), persistent=False)
        self.register_buffer("queue", torch.zeros(300_000))                  # more than 1 MiB, changed in place
        self.register_buffer("table", torch.arange(300_000.0))               # more than 1 MiB, never changed
        self.register_buffer("last", None, persistent=False)                 # filled by the first call
        self.hook = hook

    def forward(self, x, labels=None):
        self.hook("forward")
        h = self.inner(x)
        if self.training:
            with torch.no_grad():
                for slow, fast in zip(self.slow.parameters(), self.inner.parameters()): slow.lerp_(fast, 0.1)
                self.calls += 1
                self.center = 0.9 * self.center + 0.1 * h.mean(0)
                self.queue[int(self.calls) % 10] = h.sum()
                self.last = x.sum(0)
        h = self.drop(torch.relu(self.norm(h + 0.1 * self.slow(x) - self.center)))
        logits = Through.apply(self.outer(h), self.hook)
        self.hook("half of forward")
        if labels is None: return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Through(torch.autograd.Function):
    "The same value; calls a hook on the way back."
    @staticmethod
    def forward(ctx, x, hook):
        ctx.hook = hook
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.hook("backward")
        return grad, None


class Augmented(torch.utils.data.Dataset):
    "Examples with noise from each of the three generators."
    def __init__(self, n=30, hook=lambda name: None):
        self.x = torch.randn(n, 4, generator=torch.Generator().manual_seed(7))
        self.hook = hook

    def __len__(self): return len(self.x)

    def __getitem__(self, i):
        self.hook("getitem")
        x = self.x[i] + 0.1 * torch.randn(4) + 0.1 * torch.from_numpy(np.random.randn(4).astype(np.float32)) + 0.1 * random.random()
        return {"x": x, "labels": int(self.x[i].sum() > 0), "number": i}


def collate(rows, hook=lambda name: None):
    "A batch, with noise of its own."
    hook("collate")
    x = torch.stack([r["x"] for r in rows])
    return {"x": x + 0.01 * torch.randn_like(x), "labels": torch.tensor([r["labels"] for r in rows])}


class Told(TrainerCallback):
    "Writes down each event with its step."
    def __init__(self): self.heard = []


def _writes(event):
    def method(self, args, state, control, **kwargs): self.heard.append((event, state.global_step))
    return method


for _event in EVENTS: setattr(Told, _event, _writes(_event))


def hard_model(**kwargs):
    "The same one each time."
    torch.manual_seed(0)
    return Hard(**kwargs)


# 30 samples in batches of 4 are 8 batches, the last of 2 samples; in windows of 3, the last of 2: 3 steps in an epoch.
class Boom(Exception):
    "What a test throws into a run."


class Bomb:
    "A hook that counts how often it is passed, by name, and raises once at one of them."
    def __init__(self, name=None, at=None, kind=Boom): self.name, self.at, self.kind, self.counts = name, at, kind, {}

    def __call__(self, name):
        self.counts[name] = self.counts.get(name, 0) + 1
        if name == self.name and self.counts[name] == self.at: raise self.kind(f"{name} for the {self.at}. time")


class Bombs(TrainerCallback):
    "Passes the bomb at every event."
    def __init__(self, bomb): self.bomb = bomb


def _passes(event):
    def method(self, args, state, control, **kwargs): self.bomb(event)
    return method


for _event in EVENTS: setattr(Bombs, _event, _passes(_event))


SETTINGS = dict(per_device_train_batch_size=4, gradient_accumulation_steps=3, num_train_epochs=2, learning_rate=1e-2, logging_steps=2,
                lr_scheduler_type="cosine", warmup_steps=2, use_cpu=True, disable_tqdm=True)


def hard_learner(model=None, train_dataset=None, cls=Learner, **kwargs):
    "A learner on the hard model; keywords override."
    model = hard_model() if model is None else model
    return cls(model, train_dataset=Augmented() if train_dataset is None else train_dataset,
               data_collator=kwargs.pop("data_collator", collate), **(SETTINGS | kwargs))


def outcome(learn):
    "What has to be equal at the end of two runs: the snapshot, and everything that a user can read of it."
    history, last = learn.history, learn.snapshot()
    kept = history.column("abandoned") == 0
    rows = {name: history.column(name)[kept].tobytes() for name in ("step", "epoch", "loss", "learning_rate", "grad_norm", "samples")}
    clocks = ("runtime", "per_second")
    logged = [{k: v for k, v in row.items() if not k.endswith(clocks)} for row in learn.state.log_history]
    return last, rows, logged


def assert_same(one, other, ignore=()):
    "Two outcomes are equal byte for byte."
    from trainer_nb import differences
    assert [n for n in differences(one[0], other[0]) if n not in ignore] == []
    assert one[1].keys() == other[1].keys() and [k for k in one[1] if one[1][k] != other[1][k]] == []
    assert one[2] == other[2]

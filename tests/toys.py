"What the tests of the step share: a small model with everything that makes a run hard to repeat, its data, and a bomb to put into either."
import functools, random

import numpy as np
import torch
from torch import nn

from trainer_nb import Learner, TrainerCallback, differences
from trainer_nb.core.callbacks import EVENTS


def silent(name): "A hook that does nothing."


class Hard(nn.Module):
    "BatchNorm, dropout, a momentum encoder, and buffers of every kind that a forward pass may change."
    not_state = "hook"
    def __init__(self, hook=silent):
        super().__init__()
        self.inner, self.norm, self.drop, self.outer = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3)
        self.slow = nn.Linear(4, 8)                                      # follows `inner`, without gradients
        self.slow.requires_grad_(False)
        self.register_buffer("center", torch.zeros(8))                   # replaced by assignment
        self.register_buffer("calls", torch.zeros(1), persistent=False)
        self.register_buffer("queue", torch.zeros(300_000))              # more than 1 MiB, changed in place
        self.register_buffer("table", torch.arange(300_000.0))           # more than 1 MiB, never changed
        self.register_buffer("last", None, persistent=False)             # None until the first call
        self.hook = hook

    def forward(self, x, labels=None):
        self.hook("forward")
        h = self.inner(x)
        if self.training: self.remember(x, h)
        h = self.drop(torch.relu(self.norm(h + 0.1 * self.slow(x) - self.center)))
        logits = Through.apply(self.outer(h), self.hook)
        self.hook("end of forward")
        if labels is None: return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    @torch.no_grad()
    def remember(self, x, h):
        "All that a forward pass in training changes, besides BatchNorm's statistics."
        for slow, fast in zip(self.slow.parameters(), self.inner.parameters()): slow.lerp_(fast, 0.1)
        self.calls += 1
        self.center = 0.9 * self.center + 0.1 * h.mean(0)
        self.queue[int(self.calls) % 10] = h.sum()
        self.last = x.sum(0)


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


class Seen(nn.Module):
    "Writes down the batches that it is trained with."
    not_state = ("seen",)
    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Linear(1, 1), []

    def forward(self, x, labels=None):
        if self.training: self.seen.append(x.flatten().tolist())
        return {"loss": self.layer(x).square().mean()}


class Augmented(torch.utils.data.Dataset):
    "Examples with noise from each of the three generators."
    not_state = "hook"
    def __init__(self, n=30, hook=silent):
        self.x, self.hook = torch.randn(n, 4, generator=torch.Generator().manual_seed(7)), hook

    def __len__(self): return len(self.x)

    def __getitem__(self, i):
        self.hook("getitem")
        noise = torch.randn(4) + torch.from_numpy(np.random.randn(4).astype(np.float32)) + random.random()
        return {"x": self.x[i] + 0.1 * noise, "labels": int(self.x[i].sum() > 0), "number": i}


def collate(rows, hook=silent):
    "A batch, with noise of its own."
    hook("collate")
    x = torch.stack([r["x"] for r in rows])
    return {"x": x + 0.01 * torch.randn_like(x), "labels": torch.tensor([r["labels"] for r in rows])}


def accuracy(p): return {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())}


# --- what is thrown in -------------------------------------------------------------------------------------------------

class Boom(Exception):
    "What a test throws into a run."


class Bomb:
    "A hook that counts how often it is passed, by name, and raises at one of these times."
    def __init__(self, name=None, *times, kind=Boom): self.name, self.times, self.kind, self.counts = name, times, kind, {}

    def __call__(self, name):
        self.counts[name] = self.counts.get(name, 0) + 1
        if name == self.name and self.counts[name] in self.times: raise self.kind(f"{name} for the {self.counts[name]}. time")


def every_event(act, **attributes):
    "A callback class that hands every event's name and state to a function of (callback, event, state)."
    def method(event): return lambda self, args, state, control, **kwargs: act(self, event, state)
    return type("EveryEvent", (TrainerCallback,), {event: method(event) for event in EVENTS} | {"not_state": ("heard",)} | attributes)


def told(order=0):
    "A callback that writes down each event with its step, in `heard`."
    callback = every_event(lambda self, event, state: self.heard.append((event, state.global_step)), order=order)()
    callback.heard = []
    return callback


# --- learners ----------------------------------------------------------------------------------------------------------

# 30 samples in batches of 4 are 8 batches, the last of 2 samples; in windows of 3, the last of 2: 3 steps in an epoch.
SETTINGS = dict(per_device_train_batch_size=4, gradient_accumulation_steps=3, num_train_epochs=2, learning_rate=1e-2, logging_steps=2,
                lr_scheduler_type="cosine", warmup_steps=2, use_cpu=True, disable_tqdm=True)


def hard_model(hook=silent):
    "The same one each time."
    torch.manual_seed(0)
    return Hard(hook)


def hard_learner(cls=Learner, hook=silent, **given):
    "A learner on the hard model and data; what is given goes over it."
    parts = dict(model=hard_model(hook), train_dataset=Augmented(hook=hook), data_collator=functools.partial(collate, hook=hook)) | SETTINGS | given
    return cls(**parts)


# --- what is compared --------------------------------------------------------------------------------------------------

CLOCKS = ("runtime", "per_second")
ROWS = ("step", "epoch", "loss", "learning_rate", "grad_norm", "samples")


def outcome(learn):
    "What has to be equal at the end of two runs: the snapshot, the history's rows, and what was logged."
    last, history = learn.snapshot(), learn.history
    rows = {name: history.column(name)[history.column("abandoned") == 0].tobytes() for name in ROWS}
    logged = [{k: v for k, v in row.items() if not k.endswith(CLOCKS)} for row in learn.state.log_history]
    return last, rows, logged


def unequal(one, other, ignore=()):
    "What is not equal, byte for byte, in two outcomes."
    found = [n for n in differences(one[0], other[0]) if n not in ignore] + [n for n in ROWS if one[1][n] != other[1][n]]
    return found + [(a, b) for a, b in zip(one[2], other[2]) if a != b] + ([] if len(one[2]) == len(other[2]) else ["number of logs"])


def finish(learn):
    "Train to the end; the outcome."
    learn.train()
    return outcome(learn)

"""Any value that user code keeps, wherever it keeps it, against every verb that leaves a run and comes back.

A row is a holder (who keeps the value), a kind (what it is and how it changes) and a verb. The value changes at each training step and
scales the loss. The run with the verb in its middle ends in the bytes of the run that was never left: weights, optimizer, losses, and the
value itself. Of kinds in `MAY_BE_NAMED`, a warning or an error that names the attribute is enough; silence is the failure. Each kind meets
each verb once, with the holders in turn. The named programs below are those that no such table can express.

`-m ""` also runs the rows marked slow: five of nine verbs of a kind that is `COMMON`, and eight of another one; four of a program.
"""
import collections, functools, itertools, random, types, warnings, zlib

import numpy as np
import pytest
import torch
from torch import nn

from kinds_of_state import COMMON, KINDS, MAY_BE_NAMED, SCALARS, TENSORS, show
from trainer_nb import Learner, TrainerCallback

pytestmark = pytest.mark.usefixtures("one_thread")

BEFORE, TOTAL = 3, 6   # steps before the verb, which is in the middle of an epoch of two steps; steps of the whole run


def rows(table, is_quick=lambda *row: True):
    "Return the rows of a table as parameters of a test, with marks for slow ones."
    names = {"-".join(row): row for row in table}
    return [pytest.param(*row, id=name, marks=[pytest.mark.slow] * (not is_quick(*row))) for name, row in names.items()]


# --- what is compared --------------------------------------------------------------------------------------------------

def look(learn):
    "The bytes of weights and optimizer, and the losses of the last steps."
    weights = {n: t.detach().numpy().tobytes() for n, t in learn.model.named_parameters()}
    moments = [v.detach().numpy().tobytes() for s in learn.optimizer.state.values() for v in s.values()]
    losses = learn.history.column("loss")[learn.history.column("abandoned") == 0][BEFORE - TOTAL:].tobytes()
    return {"step": learn.state.global_step, "weights": weights, "moments": moments, "losses": losses}


def test_the_kinds_show_what_they_do():
    "Each value changes, its number depends on it, and a picture of it sees both."
    for name, kind in KINDS.items():
        value, found, pictures = kind.make(), [], [show(kind.make())]
        for _ in range(TOTAL):
            value, number = kind.advance(value)
            found.append(number)
            if name not in ("generator_function", "lru_cache"): pictures.append(show(value))
        assert len(set(found)) > 1, name
        assert all(a != b for a, b in zip(pictures, pictures[1:])), name


# --- who holds the value -----------------------------------------------------------------------------------------------

class Keeps:
    "Keeps a value of a kind."
    def keep(self, kind): self.kind, self.kept_value = kind, KINDS[kind].make()

    def number(self):
        self.kept_value, number = KINDS[self.kind].advance(self.kept_value)
        return 1 + 0.1 * number


class Net(nn.Module):
    def __init__(self): super().__init__(); self.layer = nn.Linear(2, 1)
    def forward(self, x): return self.layer(x)

class Rows(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i):
        if i >= 4: raise IndexError(i)
        return torch.tensor([i * 0.1, 1.0]), torch.tensor([i * 0.2])

class KeepsInModule(Keeps, Net):
    def __init__(self, kind): super().__init__(); self.keep(kind)
    def forward(self, x): return super().forward(x) * (self.number() if self.training else 1)

class KeepsInBuffer(KeepsInModule):
    def keep(self, kind): self.kind = kind; self.register_buffer("kept_value", KINDS[kind].make())

class KeepsInCallback(Keeps, TrainerCallback):
    "Changes the value when a step begins, and scales the gradients with it."
    def __init__(self, kind): self.keep(kind)
    def on_step_begin(self, args, state, control, **kwargs): self.scale = self.number()
    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        for p in model.parameters(): p.grad.mul_(self.scale)

class KeepsInLearner(Keeps, Learner):
    def __init__(self, *args, kind, **kwargs): super().__init__(*args, **kwargs); self.keep(kind)
    def compute_loss(self, model, inputs, **kwargs): return super().compute_loss(model, inputs, **kwargs) * self.number()

class KeepsInSampler(Keeps, torch.utils.data.Sampler):
    "The order of an epoch depends on the value, which changes when the epoch begins."
    def __init__(self, kind): self.keep(kind)
    def __len__(self): return 4
    def __iter__(self):
        first = zlib.crc32(self.number().hex().encode()) % 24
        return iter([*itertools.permutations(range(4))][first])

class KeepsInLoss(Keeps):
    def __init__(self, kind): self.keep(kind)
    def __call__(self, out, y): return nn.functional.mse_loss(out, y) * self.number()

class KeepsInLossModule(Keeps, nn.Module):
    def __init__(self, kind): super().__init__(); self.keep(kind)
    def forward(self, out, y): return nn.functional.mse_loss(out, y) * self.number()

class KeepsInCollator(Keeps):
    def __init__(self, kind): self.keep(kind)
    def __call__(self, rows): return torch.stack([x for x, _ in rows]) * self.number(), torch.stack([y for _, y in rows])

class KeepsInData(Keeps, Rows):
    def __init__(self, kind): self.keep(kind)
    def __getitem__(self, i): x, y = super().__getitem__(i); return x * self.number(), y


class Boom(Exception): "What stops a step."

ARMED = []   # the names of events that raise next

class Fails(TrainerCallback):
    "The last callback: raises before the update."
    order = 1000
    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if ARMED: ARMED.pop(); raise Boom

SETTINGS = dict(per_device_train_batch_size=2, max_steps=50, learning_rate=0.02, optim="sgd", optim_args="momentum=0.9", use_cpu=True, disable_tqdm=True,
                logging_strategy="no", report_to="none", save_strategy="no")


def learner(cls=Learner, model=Net, callbacks=(), **given):
    torch.manual_seed(0)
    parts = dict(model=model(), train_dataset=Rows(), callbacks=[*callbacks, Fails()]) | SETTINGS
    if not {"loss_func", "compute_loss_func"} & given.keys(): parts["loss_func"] = nn.functional.mse_loss
    return cls(**parts | given)


def loader(kind): return torch.utils.data.DataLoader(Rows(), batch_size=2, sampler=KeepsInSampler(kind))

HOLDERS = {   # a function that makes a learner for a kind, and one that finds the holder in a learner
    "module": (lambda kind, **s: learner(model=lambda: KeepsInModule(kind), **s), lambda learn: learn.model),
    "buffer": (lambda kind, **s: learner(model=lambda: KeepsInBuffer(kind), **s), lambda learn: learn.model),
    "callback": (lambda kind, **s: learner(callbacks=[KeepsInCallback(kind)], **s),
                 lambda learn: next(c for c in learn.callback_handler.callbacks if isinstance(c, Keeps))),
    "learner": (lambda kind, **s: learner(KeepsInLearner, kind=kind, **s), lambda learn: learn),
    "sampler": (lambda kind, **s: learner(train_dataset=loader(kind), **s), lambda learn: learn.train_dataset.sampler),
    "loss": (lambda kind, **s: learner(loss_func=KeepsInLoss(kind), **s), lambda learn: learn.loss_func),
    "loss_module": (lambda kind, **s: learner(loss_func=KeepsInLossModule(kind), **s), lambda learn: learn.loss_func),
    "collator": (lambda kind, **s: learner(data_collator=KeepsInCollator(kind), **s), lambda learn: learn.data_collator),
    "data": (lambda kind, **s: learner(train_dataset=KeepsInData(kind), **s), lambda learn: learn.train_dataset),
}


# --- verbs -------------------------------------------------------------------------------------------------------------

def fail(learn):
    "A step that fails before its update."
    ARMED.append(1)
    with pytest.raises(Boom): learn.step()

def failed_first_step(make, folder):
    learn = make()
    fail(learn)
    return learn,

def failed_step(make, folder):
    learn = make()
    learn.step(4)   # the step that fails begins an epoch
    fail(learn)
    fail(learn)
    return learn,

def rewind(make, folder):
    learn = make(rewind_every=2)
    learn.step(5)
    learn.rewind(2)
    learn.step(2)
    learn.rewind(2)
    return learn,

def restore(make, folder):
    learn = make()
    learn.step(BEFORE)
    taken = learn.snapshot()
    for _ in range(2):
        learn.step(2)
        learn.restore(taken)
    return learn,

def reset(make, folder):
    learn = make()
    learn.step(BEFORE)
    learn.reset()
    return learn,

def resume(make, folder):
    learn = make()
    learn.step(BEFORE)
    path = learn.save_checkpoint(folder/"checkpoint-3")
    new = make()
    new.load_checkpoint(path)
    return learn, new

def branch(make, folder):
    learn = make()
    learn.step(BEFORE)
    return learn.branch(), learn

def lr_find(make, folder):
    learn = make()
    learn.lr_find(num_steps=10, trial_steps=0)   # the first call of all
    learn.step(BEFORE)
    learn.lr_find(num_steps=10, trial_steps=0)
    return learn,

def abort(make, folder):
    learn = make()
    learn.step(BEFORE + 1)
    for _ in range(2):
        step = learn.debug_step()
        step.forward()
        step.backward()
        step.abort()
    return learn,

VERBS = {f.__name__: f for f in (failed_first_step, failed_step, rewind, restore, reset, resume, branch, lr_find, abort)}


def finish(learn, find):
    learn.step(TOTAL - learn.state.global_step)
    return look(learn) | {"value": show(find(learn).kept_value)}

@functools.cache
def straight(holder, kind):
    "The end of the run that is never left."
    make, find = HOLDERS[holder]
    return finish(make(kind), find)


def names_it(error): return "kept_value" in "\n".join([str(error), *getattr(error, "__notes__", ())])


def may_be_named(holder, kind):
    "Data sets and collators hold numbers, containers and generators; for larger things there may be a report."
    return kind in MAY_BE_NAMED or holder in ("data", "collator", "sampler") and kind not in SCALARS


def check(holder, kind, verb, folder):
    "Run a row: the ends of the runs have to be equal, unless the attribute is named."
    make, find = HOLDERS[holder]
    named = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = [finish(learn, find) for learn in VERBS[verb](functools.partial(make, kind), folder)]
        except Exception as error:
            if not names_it(error): raise
            named, found = [error], []
        finally: ARMED.clear()
    named += [w.message for w in caught if issubclass(w.category, UserWarning) and names_it(w.message)]
    if named and may_be_named(holder, kind): return
    assert not named, f"named, and not exact: {named[0]}"
    want = straight(holder, kind)
    for end in found: assert [part for part in want if end[part] != want[part]] == []


def holder_of(kind, verb):
    "The holders take turns: four for each kind, by a number that new kinds do not shift."
    own = [h for h in HOLDERS if (h != "buffer" or kind in TENSORS) and h in (KINDS[kind].holders or HOLDERS)]
    return own[(zlib.crc32(kind.encode()) + [*VERBS].index(verb) * 4 // 9 * 2) % len(own)]

TABLE = [(holder_of(kind, verb), kind, verb) for kind in KINDS for verb in VERBS]

def turn(name, verb):
    "Return the place of a verb, when the verbs take turns."
    return (zlib.crc32(name.encode()) + [*VERBS].index(verb)) % len(VERBS)

def is_quick(holder, kind, verb):
    "Of a common kind four rows are quick, of another kind one."
    return turn(kind, verb) < (4 if kind in COMMON else 1)


@pytest.mark.parametrize("holder, kind, verb", rows(TABLE, is_quick))
def test_a_value_goes_back_or_is_named(holder, kind, verb, tmp_path): check(holder, kind, verb, tmp_path)


def test_each_holder_meets_a_third_of_the_kinds():
    for holder in HOLDERS:
        met = {kind for own, kind, _ in TABLE if own == holder}
        assert len(met) >= (len(TENSORS) if holder == "buffer" else len(KINDS)) / 3, holder


# --- programs: what several attributes share, what appears later, what is held by reference ----------------------------

PROGRAMS = {}   # by name: (a function that makes a learner, one that finds the holder in it, the names of attributes to compare)

def program(where, *names):
    "Add a class with `begin` and `factor` to the programs, as a part of a learner: `factor` changes it at each step and scales the loss."
    def add(parts):
        PROGRAMS[parts.__name__] = functools.partial(MAKERS[where], parts), FIND[where], names
        return parts
    return add


class ProgramOfLearner(Learner):
    def __init__(self, *args, **kwargs): super().__init__(*args, **kwargs); self.begin()
    def compute_loss(self, model, inputs, **kwargs):
        loss = super().compute_loss(model, inputs, **kwargs)
        return loss * (1 + 0.1 * float(self.factor(model)))

class ProgramOfCallback(TrainerCallback):
    def on_train_begin(self, args, state, control, model=None, optimizer=None, **kwargs): self.begin(model, optimizer)
    def on_pre_optimizer_step(self, args, state, control, model=None, optimizer=None, **kwargs):
        scale = 1 + 0.1 * float(self.factor(model, optimizer))
        for p in model.parameters():
            if p.grad is not None: p.grad.mul_(scale)

class ProgramOfModule(Net):
    def __init__(self): super().__init__(); self.begin()
    def forward(self, x): return super().forward(x) * (1 + 0.1 * self.factor(x) if self.training else 1)

class ProgramGivenTheModel(ProgramOfCallback):
    "Begins when it is made, with the model."
    def __init__(self, model): self.begin(model)
    def on_train_begin(self, args, state, control, **kwargs): "Nothing is made here."

def mixed(parts, base): return type(parts.__name__, (parts, base), {})

def with_callback_of(parts, **settings):
    torch.manual_seed(0)
    model = Net()
    return learner(model=lambda: model, callbacks=[mixed(parts, ProgramGivenTheModel)(model)], **settings)

MAKERS = {
    "learner": lambda parts, **s: learner(mixed(parts, ProgramOfLearner), **s),
    "callback": lambda parts, **s: learner(callbacks=[mixed(parts, ProgramOfCallback)()], **s),
    "callback that writes weights": lambda parts, **s: MAKERS["callback"](parts, rollback="full", **s),
    "callback with the model": with_callback_of,
    "module": lambda parts, **s: learner(model=mixed(parts, ProgramOfModule), **s),
    "any": lambda parts, **s: parts().make(**s),
}
FIND = {"learner": lambda learn: learn, "module": lambda learn: learn.model, "any": lambda learn: learn}
FIND["callback"] = FIND["callback that writes weights"] = FIND["callback with the model"] = lambda learn: next(c for c in learn.callback_handler.callbacks if isinstance(c, ProgramOfCallback))


def whole(learn, find, names):
    "The end of a run, with what its parts share with each other, with the model and with the optimizer."
    learn.step(TOTAL - learn.state.global_step)
    model, owner = learn.model, find(learn)
    buffers = {f"{path}.{n}": b for path, m in model.named_modules() for n, b in sorted(m._buffers.items())}
    state = [learn.optimizer.state.get(p) for p in model.parameters()]
    kept = [getattr(owner, name, "absent") if isinstance(name, str) else name(learn) for name in names]
    return look(learn) | {"values": show([kept, buffers, [*model.parameters()], state])}


# what is one object in a fresh learner, and two later, and the reverse

@program("learner", "h", "c")
class one_tensor_then_two:
    def begin(self): self.h = self.c = torch.zeros(2)
    def factor(self, model):
        self.h, self.c = self.h * 0.5 + 1, self.c + 2
        return self.h.sum() - 0.1 * self.c.sum()

@program("module", "h", "c")
class one_tensor_then_two_in_a_module:
    def begin(self): self.h = self.c = torch.zeros(2)
    def factor(self, x):
        self.h, self.c = self.h * 0.5 + 1, self.c + 2
        return self.h.sum() - 0.1 * self.c.sum()

@program("learner", "a", "b")
class two_lists_then_one:
    def begin(self): self.a, self.b, self.n = [0.0], [0.0], 0
    def factor(self, model):
        self.n += 1
        if self.n == 2: self.b = self.a
        self.a.append(1.0)
        return len(self.b)

@program("learner", "a", "b")
class two_tensors_then_one:
    def begin(self): self.a, self.b, self.n = torch.zeros(2), torch.zeros(2), 0
    def factor(self, model):
        self.n += 1
        if self.n == 2: self.b = self.a
        self.a += 1
        return self.b.sum()

@program("callback", "avg")
class average_of_the_weights:
    def begin(self, model, optimizer): self.avg = {n: p.detach() for n, p in model.named_parameters()}
    def factor(self, model, optimizer):
        self.avg = {n: self.avg[n].lerp(p.detach(), 0.5) + 0.1 for n, p in model.named_parameters()}
        return sum(a.sum() for a in self.avg.values())

@program("callback with the model", "avg")
class average_given_the_model(average_of_the_weights):
    def begin(self, model, optimizer=None): super().begin(model, optimizer)

@program("callback", "avg")
class average_by_key:
    def begin(self, model, optimizer): self.avg = model.state_dict()
    def factor(self, model, optimizer):
        for n, p in model.named_parameters(): self.avg[n] = self.avg[n] * 0.5 + p.detach()
        return sum(a.sum() for a in self.avg.values())

@program("learner", "first")
class first_weights_by_reference:
    "The weights themselves, which it reads."
    def begin(self): self.first = [p.data for p in self.model.parameters()]
    def factor(self, model): return sum(p.sum() for p in self.first)

@program("module", "start")
class buffer_made_of_the_weight:
    def begin(self): self.register_buffer("start", self.layer.weight.detach())
    def factor(self, x):
        self.start = self.start * 0.5 + self.layer.weight.detach() + 0.1
        return self.start.sum()

@program("module", "start")
class buffer_that_stays_the_weight:
    def begin(self): self.register_buffer("start", self.layer.weight.detach())
    def factor(self, x): return self.start.sum()

@program("module", "a", "b")
class two_buffers_that_start_as_one:
    def begin(self):
        zeros = torch.zeros(2)
        self.register_buffer("a", zeros)
        self.register_buffer("b", zeros)
    def factor(self, x):
        self.b = self.b + 1
        self.a += 0.3
        return self.a.sum() - 0.1 * self.b.sum()

@program("module", "a", "b")
class two_buffers_that_are_one:
    def begin(self):
        zeros = torch.zeros(2)
        self.register_buffer("a", zeros)
        self.register_buffer("b", zeros)
    def factor(self, x):
        self.a += 0.3
        return self.b.sum()

@program("callback", "base", "view")
class numpy_view_and_base:
    def begin(self, model, optimizer): self.base = np.zeros(4); self.view = self.base[1:3]
    def factor(self, model, optimizer):
        self.view += 1
        return self.base.sum()

@program("learner", "view")
class view_of_a_buffer:
    "A view of a model's buffer, which the module changes."
    def begin(self): self.model.register_buffer("seen", torch.zeros(4)); self.view = self.model.seen[1:3]
    def factor(self, model):
        self.view += 1
        return model.seen.sum()

@program("callback", "momentum", "group")
class references_to_the_optimizer:
    def begin(self, model, optimizer): self.momentum, self.group = [], optimizer.param_groups[0]
    def factor(self, model, optimizer):
        self.momentum = self.momentum or [s["momentum_buffer"] for s in optimizer.state.values() if "momentum_buffer" in s]
        return sum(m.sum() for m in self.momentum) + self.group["lr"]

class Notes(TrainerCallback):
    def __init__(self, found): self.found = found
    def on_step_begin(self, args, state, control, **kwargs): self.found.append(len(self.found) * 0.5)

class ReadsNotes(ProgramOfCallback):
    def __init__(self, found): self.found = found
    def begin(self, model, optimizer): "It was given what it needs."
    def factor(self, model, optimizer): return sum(self.found)

def callback_of(learn, kind): return next(c for c in learn.callback_handler.callbacks if isinstance(c, kind))

@program("any", lambda learn: callback_of(learn, Notes).found, lambda learn: callback_of(learn, ReadsNotes).found)
class one_list_of_two_callbacks:
    def make(self, **settings):
        found = []
        return learner(callbacks=[Notes(found), ReadsNotes(found)], **settings)

class Logs(Net):
    def __init__(self, found): super().__init__(); self.found = found
    def forward(self, x):
        if self.training: self.found["n"] = self.found.get("n", 0) + 1
        return super().forward(x)

@program("any", lambda learn: callback_of(learn, ReadsLogs).found, lambda learn: learn.model.found)
class one_dict_of_a_module_and_a_callback:
    def make(self, **settings):
        found = {}
        return learner(model=lambda: Logs(found), callbacks=[ReadsLogs(found)], **settings)

class ReadsLogs(ReadsNotes):
    def factor(self, model, optimizer): return self.found["n"]


# what appears later, changes its shape, or disappears

@program("module")
class buffer_of_the_first_forward:
    def begin(self): pass
    def factor(self, x):
        if not hasattr(self, "cache"): self.register_buffer("cache", x.sum(0) * 0)
        self.cache += 1
        return self.cache.sum()

@program("module")
class unsaved_buffer_of_the_first_forward:
    def begin(self): self.make = True
    def factor(self, x):
        if self.make: self.register_buffer("cache", torch.ones(2), persistent=False); self.make = False
        self.cache = self.cache * 1.1
        return self.cache.sum()

@program("module")
class buffer_that_is_none_at_first:
    def begin(self): self.register_buffer("cache", None)
    def factor(self, x):
        self.cache = torch.ones(2) if self.cache is None else self.cache + 1
        return self.cache.sum()

@program("module")
class buffer_that_grows:
    def begin(self): self.register_buffer("cache", torch.zeros(0))
    def factor(self, x):
        self.cache = torch.cat([self.cache, torch.ones(1) * len(self.cache)])
        return self.cache.sum()

@program("module")
class buffer_resized_in_place:
    def begin(self): self.register_buffer("cache", torch.zeros(1))
    def factor(self, x):
        self.cache.resize_(len(self.cache) + 1).fill_(len(self.cache))
        return self.cache.sum()

@program("module")
class buffer_resized_through_data:
    def begin(self): self.register_buffer("cache", torch.zeros(1))
    def factor(self, x):
        self.cache.data = torch.ones(len(self.cache) + 1)
        return self.cache.sum()

@program("module")
class buffer_that_is_deleted:
    def begin(self): self.register_buffer("cache", torch.zeros(2))
    def factor(self, x):
        if not hasattr(self, "cache"): return 0.0
        self.cache += 1
        if self.cache[0] < 4: return self.cache.sum()
        del self.cache
        return 0.5

@program("module")
class buffer_that_becomes_none:
    def begin(self): self.register_buffer("cache", torch.zeros(2))
    def factor(self, x):
        self.cache = None if self.cache is not None and self.cache[0] >= 3 else torch.zeros(2) if self.cache is None else self.cache + 1
        return 0.5 if self.cache is None else self.cache.sum()

@program("module")
class buffer_of_another_dtype:
    def begin(self): self.register_buffer("cache", torch.ones(2))
    def factor(self, x):
        self.cache = (self.cache + 1).to(torch.float64 if self.cache.dtype is torch.float32 else torch.float32)
        return self.cache.sum() * self.cache.itemsize

@program("module")
class observer_of_quantization:
    def begin(self): self.observe = torch.ao.quantization.MovingAveragePerChannelMinMaxObserver(ch_axis=1)
    def factor(self, x):
        self.observe(x.detach())
        return self.observe.max_val.sum()

@program("module", "seen")
class module_that_appears:
    def begin(self): self.seen = []
    def factor(self, x):
        if not hasattr(self, "norm"): self.norm = nn.BatchNorm1d(2, affine=False)
        return self.norm(x).detach().abs().sum() + self.norm.running_mean.sum()

@program("callback", "late", "later")
class attributes_that_appear_and_go:
    def begin(self, model, optimizer): self.n = 0
    def factor(self, model, optimizer):
        self.n += 1
        if self.n == 2: self.late = collections.deque([Plain(1)])
        if self.n == 4: self.later = torch.ones(2); del self.late
        return self.n + hasattr(self, "late") + 2 * hasattr(self, "later")


# what belongs to optimizers, parameters and streams

class Plain:
    def __init__(self, n): self.n = n

@program("learner", "extra")
class second_optimizer_with_lbfgs:
    def begin(self):
        self.extra = nn.Parameter(torch.ones(2))
        self.second = torch.optim.LBFGS([self.extra], lr=0.1, max_iter=2, history_size=3)
    def factor(self, model):
        def closure():
            self.second.zero_grad()
            value = (self.extra.square() - torch.tensor([0.3, 0.7])).square().sum()
            value.backward()
            return value
        return self.second.step(closure).detach()

@program("callback", "extra")
class second_optimizer_made_at_the_first_step:
    def begin(self, model, optimizer): self.extra = self.second = None
    def factor(self, model, optimizer):
        if self.second is None:
            self.extra = nn.Parameter(torch.ones(2))
            self.second = torch.optim.Adam([self.extra], lr=0.1)
        self.second.zero_grad()
        self.extra.square().sum().backward()
        self.second.step()
        return self.extra.detach().sum()

@program("callback", lambda learn: [*callback_of(learn, ProgramOfCallback).sums.values()])
class state_by_parameter:
    def begin(self, model, optimizer): self.sums = {p: torch.zeros_like(p) for p in model.parameters()}
    def factor(self, model, optimizer):
        for p in model.parameters(): self.sums[p] += p.grad
        return sum(s.sum() for s in self.sums.values())

@program("callback with the model", lambda learn: [*callback_of(learn, ProgramOfCallback).calls.values()])
class state_by_module:
    def begin(self, model): self.calls = dict.fromkeys(model.modules(), 0)
    def factor(self, model, optimizer):
        for m in model.modules(): self.calls[m] += 1
        return self.calls[model.layer] + self.calls[model]

@program("callback", lambda learn: (lambda net: (net.rounds, net.training))(callback_of(learn, ProgramOfCallback).net))
class module_of_a_callback:
    "An attribute and the mode of the module change."
    def begin(self, model, optimizer): self.net = Net(); self.net.rounds = 0
    def factor(self, model, optimizer):
        self.net.rounds += 1
        self.net.train(not self.net.training)
        return self.net.rounds + self.net.training

@program("learner", "scheduled")
class schedule_of_its_own:
    def begin(self):
        self.scheduled = nn.Parameter(torch.ones(1))
        self.second = torch.optim.SGD([self.scheduled], lr=0.1)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.second, 4)
    def factor(self, model):
        self.second.zero_grad()
        self.scheduled.square().sum().backward()
        self.second.step()
        self.schedule.step()
        return self.scheduled.detach() + self.second.param_groups[0]["lr"]

class Counts(torch.utils.data.IterableDataset):
    "Counts its passes, without a state_dict."
    def __init__(self): self.kept_value = 0
    def __len__(self): return 4
    def __iter__(self):
        self.kept_value += 1
        for x, y in Rows(): yield x * (1 + 0.1 * self.kept_value), y

@program("any", lambda learn: learn.train_dataset.kept_value)
class stream_that_counts:
    def make(self, **settings): return learner(train_dataset=Counts(), **settings)

class HasState(Rows):
    "Data with a state of its own, which a callback holds."
    def __init__(self): self.position = 0
    def state_dict(self): return {"position": self.position}
    def load_state_dict(self, state): self.position = state["position"]

@program("callback", lambda learn: callback_of(learn, ProgramOfCallback).probe.position)
class data_set_of_a_callback:
    def begin(self, model, optimizer): self.probe = HasState()
    def factor(self, model, optimizer):
        self.probe.position += 1
        return self.probe.position

class Helper:
    "Refers to the model, the optimizer and its owner, and counts."
    def __init__(self, model, optimizer, owner): self.model, self.optimizer, self.owner, self.n = model, optimizer, owner, 0

@program("callback", lambda learn: callback_of(learn, ProgramOfCallback).helper.n,
         lambda learn: callback_of(learn, ProgramOfCallback).helper.model is learn.model,
         lambda learn: (lambda c: c.helper.owner is c)(callback_of(learn, ProgramOfCallback)))
class object_that_refers_to_the_model:
    def begin(self, model, optimizer): self.helper = Helper(model, optimizer, self)
    def factor(self, model, optimizer):
        self.helper.n += 1
        return self.helper.n + self.helper.model.layer.weight.sum()

@program("learner", "helper")
class object_that_refers_to_the_learner:
    def begin(self): self.helper = types.SimpleNamespace(n=0)
    def factor(self, model):
        self.back = types.SimpleNamespace(learn=self, n=self.helper.n)
        self.helper.n += 1 + (self.back.learn is self)
        return self.helper.n

@program("learner", "memory")
class attribute_that_moves_to_another_holder:
    def begin(self): self.model.memory = [0.0]
    def factor(self, model):
        if hasattr(model, "memory") and len(model.memory) > 3: self.memory = model.__dict__.pop("memory")
        memory = model.memory if hasattr(model, "memory") else self.memory
        memory.append(0.5)
        return sum(memory)

@program("callback that writes weights", "mask")
class weights_bound_anew:
    "Pruning as people write it; a write through .data raises no version, and only a full backup takes it back."
    def begin(self, model, optimizer): self.mask = {n: torch.ones_like(p) for n, p in model.named_parameters()}
    def factor(self, model, optimizer):
        for n, p in model.named_parameters():
            self.mask[n] = self.mask[n] * 0.9
            p.data = p.data * self.mask[n]
        return 1.0

@program("module")
class buffers_that_take_turns:
    def begin(self): self.register_buffer("a", torch.zeros(2)); self.register_buffer("b", torch.ones(2))
    def factor(self, x):
        self.a, self.b = self.b, self.a
        self.a += 1
        return self.a.sum() - 0.3 * self.b.sum()

@program("callback", "n")
class state_dict_of_a_callback:
    n = 0
    def begin(self, model, optimizer): "It begins with what its class has."
    def factor(self, model, optimizer): self.n += 1; return self.n
    def state_dict(self): return {"n": self.n}
    def load_state_dict(self, state): self.n = state["n"]

@program("callback", "n", "more")
class exported_state_of_a_callback:
    "As the Trainer's ExportableState, and an attribute beside it."
    n = more = 0
    def begin(self, model, optimizer): "It begins with what its class has."
    def factor(self, model, optimizer): self.n += 1; self.more += 2; return self.n + self.more
    def state(self): return {"args": {}, "attributes": {"n": self.n}}

class Center(nn.Module):
    "A loss with a center that appears at the first call, and moves."
    def forward(self, out, y):
        if not hasattr(self, "center"): self.register_buffer("center", out.detach().mean(0))
        self.center = self.center.lerp(out.detach().mean(0), 0.5)
        return nn.functional.mse_loss(out, y) + (out - self.center).square().mean()

@program("any", lambda learn: dict(learn.loss_func.named_buffers()))
class center_of_a_loss:
    def make(self, **settings): return learner(loss_func=Center(), **settings)

@program("any", lambda learn: callback_of(learn, ReadsDice).found.getstate())
class one_generator_of_a_collator_and_a_callback:
    def make(self, **settings):
        dice = random.Random(1)
        return learner(data_collator=Shifts(dice), callbacks=[ReadsDice(dice)], **settings)

class Shifts:
    def __init__(self, dice): self.dice = dice
    def __call__(self, rows): return torch.stack([x for x, _ in rows]) + self.dice.random(), torch.stack([y for _, y in rows])

class ReadsDice(ReadsNotes):
    def factor(self, model, optimizer): return self.found.random()

@program("any", lambda learn: learn.train_dataset.dataset.kept_value)
class data_in_a_subset:
    def make(self, **settings): return learner(train_dataset=torch.utils.data.Subset(KeepsInData("dict"), range(4)), **settings)

def times_counted(table, out, y):
    table["kept_value"] = table.get("kept_value", 0) + 1
    return nn.functional.mse_loss(out, y) * table["kept_value"]

@program("any", lambda learn: learn.loss_func.args)
class loss_with_a_bound_dict:
    def make(self, **settings): return learner(loss_func=functools.partial(times_counted, {}), **settings)

@program("module", lambda learn: vars(learn.model.config))
class configuration_of_a_model:
    def begin(self):
        from transformers import PretrainedConfig
        self.config = PretrainedConfig(gain=0.0, table={"a": [0]})
    def factor(self, x):
        self.config.gain += 1.0
        self.config.table["a"].append(1)
        return self.config.gain + len(self.config.table["a"])


# what a verb refuses, or reports as not restored, by a word of the sentence
NAMED = {("module_that_appears", "resume"): "norm", ("second_optimizer_made_at_the_first_step", "resume"): "second",
         **{("stream_that_counts", verb): "kept_value" for verb in ("branch", "restore", "resume", "lr_find")}}

@functools.cache
def undisturbed(name):
    make, find, names = PROGRAMS[name]
    return whole(make(), find, names)


@pytest.mark.parametrize("name, verb", rows(itertools.product(PROGRAMS, VERBS), lambda name, verb: turn(name, verb) < 5))
def test_a_program_goes_on_as_if_it_had_not_been_left(name, verb, tmp_path):
    make, find, names = PROGRAMS[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try: found = [whole(learn, find, names) for learn in VERBS[verb](make, tmp_path)]
        except ValueError as error: found = [error]
        finally: ARMED.clear()
    if word := NAMED.get((name, verb)):
        assert word in "\n".join(map(str, [*found, *(w.message for w in caught)]))
        return
    want = undisturbed(name)
    for end in found: assert [part for part in want if end[part] != want[part]] == []


# --- what a cell changes between two steps, replaced parts, held objects -----------------------------------------------

SCENES = {}   # by name: a function of a folder

def scene(*cases):
    "Add a function to the scenes, once for each of these cases."
    def add(function):
        for case in cases or ((),):
            case = case if isinstance(case, tuple) else (case,)
            SCENES["_".join([function.__name__, *case])] = functools.partial(function, *case)
        return function
    return add


class KeepsLevel:
    "A level, which only cells change."
    def keep(self, kind=None): self.level, self.levels, self.table, self.nested = 1.0, [1.0], {"a": torch.ones(1)}, types.SimpleNamespace(n=1)
    def number(self): return 1 + 0.1 * (self.level + sum(self.levels) + float(self.table["a"]) + self.nested.n)

LEVELS = {}
for name, base in (("module", KeepsInModule), ("callback", KeepsInCallback), ("learner", KeepsInLearner), ("sampler", KeepsInSampler),
                   ("loss", KeepsInLoss), ("loss_module", KeepsInLossModule), ("collator", KeepsInCollator), ("data", KeepsInData)):
    LEVELS[name] = type(f"{base.__name__}Level", (KeepsLevel, base), {})

def with_level(where, **settings):
    "A learner with a level somewhere, and the object that has it."
    torch.manual_seed(0)
    part = None if where == "learner" else LEVELS[where](None)
    given = {"module": {"model": lambda: part}, "callback": {"callbacks": [part]}, "learner": {"cls": LEVELS["learner"], "kind": None},
             "sampler": {"train_dataset": torch.utils.data.DataLoader(Rows(), batch_size=2, sampler=part)}, "loss": {"loss_func": part},
             "loss_module": {"loss_func": part}, "collator": {"data_collator": part}, "data": {"train_dataset": part}}[where]
    learn = learner(**given, **settings)
    return learn, learn if where == "learner" else part

def assign(part, step): part.level = step * 0.5
def append(part, step): part.levels.append(step * 0.5)
def item(part, step): part.table["a"] = torch.full((1,), step * 0.5)
def in_place(part, step): part.table["a"] += step
def nested(part, step): part.nested.n = step * 0.5
CHANGES = {f.__name__: f for f in (assign, append, item, in_place, nested)}

def train_with_changes(learn, part, change, until=TOTAL):
    if learn.state.global_step == until: return
    for record in learn.steps():
        change(part, record.step)
        if record.step == until: break

def level_of(learn, part): return look(learn) | {"level": show([part.level, part.levels, part.table, part.nested])}


@scene(*(case for i, case in enumerate(itertools.product(LEVELS, CHANGES)) if i % 2 == 0))
def changed_in_each_step_and_rewound(where, how, folder):
    "The change after a step belongs to it: a rewind to it keeps the change, and no replay leaves one out."
    want = with_level(where)
    train_with_changes(*want, CHANGES[how])
    learn, part = with_level(where, rewind_every=100)
    train_with_changes(learn, part, CHANGES[how], BEFORE)
    then = level_of(learn, part)
    train_with_changes(learn, part, CHANGES[how], BEFORE + 2)
    assert learn.rewind(to=BEFORE).different == []
    assert level_of(learn, part) == then
    train_with_changes(learn, part, CHANGES[how])
    assert level_of(learn, part) == level_of(*want)


@scene(*itertools.product(("data", "collator", "sampler"), ("assign", "append")))
def changed_between_two_calls_and_restored(where, how, folder):
    "A snapshot of the time before has the values of then; the journal names what was changed."
    learn, part = with_level(where)
    learn.step(2)
    taken, then = learn.snapshot(), level_of(learn, part)
    CHANGES[how](part, 7)
    learn.step(1)
    assert "level" in "\n".join(map(str, learn.journal))
    learn.restore(taken)
    assert level_of(learn, part) == then


@scene("data", "collator", "sampler")
def changed_and_branched(where, folder):
    "A branch has the value that a cell has set, and a value of its own."
    learn, part = with_level(where)
    learn.step(2)
    part.level = 7.0
    other = learn.branch()
    there = {"data": lambda: other.train_dataset, "collator": lambda: other.data_collator, "sampler": lambda: other.train_dataset.sampler}[where]()
    assert there is not part and there.level == 7.0
    there.level = 9.0
    learn.step(1)
    other.step(1)
    assert part.level == 7.0 and there.level == 9.0 and look(learn) != look(other)


@scene("loss", "collator", "data", "sampler")
def changed_and_resumed(where, folder):
    "A checkpoint has the value that a cell has set last."
    learn, part = with_level(where)
    learn.step(2)
    part.level = 7.0
    path = learn.save_checkpoint(folder/"checkpoint-2")
    learn.step(2)
    new, other = with_level(where)
    new.load_checkpoint(path)
    assert other.level == 7.0
    new.step(2)
    assert level_of(new, other) == level_of(learn, part)


SHELF = HasState()   # a data set that a callback reaches by a global variable

class Reads(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        SHELF.position += 1
        for p in model.parameters(): p.grad.mul_(1 + 0.1 * SHELF.position)

class ReadsFree(TrainerCallback):
    "Reaches a data set by a variable of a function around it."
    def __init__(self, data): self.read = lambda: data.__dict__.update(position=data.position + 1) or data.position
    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        scale = 1 + 0.1 * self.read()
        for p in model.parameters(): p.grad.mul_(scale)

@scene("global", "closure")
def data_reached_by_a_branch(way, folder):
    "It is copied, or the branch names it."
    SHELF.position = 0
    make = {"global": Reads, "closure": lambda: ReadsFree(HasState())}[way]
    want = learner(callbacks=[make()])
    want.step(TOTAL)
    SHELF.position = 0
    learn = learner(callbacks=[make()])
    learn.step(BEFORE)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        other = learn.branch()
    if any(word in str(w.message) for w in caught for word in ("SHELF", "HasState", "ReadsFree.read")): return
    other.step(TOTAL - BEFORE)
    learn.step(TOTAL - BEFORE)
    assert look(other) == look(learn) == look(want)


def other_loss(out, y): return (out - y).abs().mean()

def other_collator(rows): return torch.stack([x for x, _ in rows]) * 2, torch.stack([y for _, y in rows])

def replace_callback(learn):
    learn.remove_callback(Notes)
    learn.add_callback(Notes([5.0]))

REPLACED = {
    "loss_func": lambda learn: setattr(learn, "loss_func", other_loss),
    "train_dataset": lambda learn: setattr(learn, "train_dataset", [(x + 1, y) for x, y in Rows()]),
    "data_collator": lambda learn: setattr(learn, "data_collator", other_collator),
    "added_callback": lambda learn: learn.add_callback(ReadsNotes([1.0])),
    "removed_callback": lambda learn: learn.remove_callback(Notes),
    "replaced_callback": replace_callback,
    "method": lambda learn: setattr(learn, "compute_loss", lambda model, inputs, **_: model(inputs[0]).mean()),
}

@scene(*itertools.product(REPLACED, ("replayed", "of_the_ring", "named")))
def rewound_over_a_replaced_part(what, snapshot, folder):
    "An error that changes nothing, also where a snapshot of exactly that step is kept; without a change in between it works."
    learn = learner(callbacks=[Notes([])], rewind_every=1 if snapshot == "of_the_ring" else 100)
    learn.step(2)
    if snapshot == "named": learn.snapshot("two")
    learn.step(1)
    REPLACED[what](learn)
    learn.step(2)
    before = look(learn)
    with pytest.raises(ValueError): learn.rewind(to=2)
    assert look(learn) == before
    assert learn.rewind(to=4).different == []   # all of these steps are later than the change


@scene("restore", "rewind", "reset")
def activation_replaced(verb, folder):
    "A layer without parameters goes back like one with them, also one that has two names; steps after the change have the new one."
    torch.manual_seed(0)
    shared = nn.ReLU()
    net = nn.Sequential(nn.Linear(2, 2), shared, nn.Sequential(nn.Linear(2, 2), shared), nn.Linear(2, 1))
    learn = learner(model=lambda: net, rewind_every=100)
    learn.step(BEFORE)
    taken = learn.snapshot()
    learn.step(1)
    want = look(learn)
    learn.model[1], learn.model[2][1] = nn.Tanh(), nn.Sigmoid()
    learn.step(2)
    assert "modules" in str(learn.journal)
    assert learn.rewind(1).different == [] and type(learn.model[1]) is nn.Tanh
    if verb == "restore": learn.restore(taken)
    elif verb == "rewind": assert learn.rewind(to=BEFORE).different == []
    else: learn.reset()
    learn.step(BEFORE + 1 - learn.state.global_step)
    assert learn.model[1] is learn.model[2][1] is shared and look(learn) == want


@scene()
def layer_replaced_by_another_class(folder):
    "It is refused, since it computes another function of the same weights."
    learn = learner()
    learn.step(1)
    taken = learn.snapshot()
    learn.model.layer = type("Other", (nn.Linear,), {})(2, 1)
    with pytest.raises(ValueError, match="'layer' was replaced by a module of another class"): learn.restore(taken)


@scene("loss", "collator", "data", "callback")
def rewound_over_the_same_object(where, folder):
    "A part that is assigned again is no other part."
    learn, part = with_level(where, rewind_every=100)
    learn.step(3)
    before = look(learn)
    {"loss": lambda: setattr(learn, "loss_func", part), "collator": lambda: setattr(learn, "data_collator", part),
     "data": lambda: setattr(learn, "train_dataset", part), "callback": lambda: None}[where]()
    learn.step(1)
    assert learn.rewind(to=3).different == [] and look(learn) == before


def replace_head(learn):
    "As people do it: the layer in the model, and its parameters in the groups."
    torch.manual_seed(9)
    learn.model.layer = nn.Linear(2, 1)
    learn.optimizer.param_groups[0]["params"][:] = [*learn.model.layer.parameters()]

@scene("restore", "branch", "resume", "abort", "failed_step")
def head_replaced_in_model_and_groups(verb, folder):
    def make(steps):
        learn = learner()
        learn.step(1)
        replace_head(learn)
        if steps: learn.step(steps)
        return learn
    want = make(TOTAL - 1)
    learn = make(BEFORE - 1)
    if verb == "restore":
        taken = learn.snapshot()
        learn.step(2)
        learn.restore(taken)
    elif verb == "branch":
        learn = learn.branch()
    elif verb == "resume":
        path = learn.save_checkpoint(folder/"checkpoint-3")
        learn = make(0)
        learn.load_checkpoint(path)
    elif verb == "abort":
        step = learn.debug_step()
        step.forward()
        step.abort()
    else: fail(learn)
    learn.step(TOTAL - learn.state.global_step)
    # a branch has no state of the layer that was replaced
    def trained(learn): return look(learn) | {"moments": show([learn.optimizer.state[p] for p in learn.model.parameters()])}
    assert trained(learn) == trained(want)


class Teaches(TrainerCallback):
    "Has a frozen teacher."
    def __init__(self, seed=1):
        torch.manual_seed(seed)
        self.teacher, self.n = nn.Linear(200, 200).requires_grad_(False), 0
    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        for p in model.parameters(): p.grad.mul_(1 + 0.1 * float(self.teacher.weight.sum().tanh()))

class Distils(Learner):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        torch.manual_seed(1)
        self.teacher = nn.Linear(200, 200).requires_grad_(False).eval()

def written(folder): return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())

@scene("callback", "learner")
def frozen_teacher_is_not_written(where, folder):
    "A checkpoint is smaller than the teacher; the run goes on from it."
    def make(): return learner(callbacks=[Teaches()]) if where == "callback" else learner(Distils)
    learn = make()
    learn.step(BEFORE)
    path = learn.save_checkpoint(folder/"checkpoint-3")
    assert written(path) < 200 * 200 * 4
    new = make()
    new.load_checkpoint(path)
    learn.step(2)
    new.step(2)
    assert look(new) == look(learn)

@scene()
def frozen_teacher_that_changed_is_written(folder):
    learn = learner(callbacks=[Teaches()])
    learn.step(1)
    teacher = callback_of(learn, Teaches).teacher
    teacher.weight.data[3, 4] += 1
    learn.step(1)
    path = learn.save_checkpoint(folder/"checkpoint-2")
    new = learner(callbacks=[Teaches()])
    new.load_checkpoint(path)
    assert torch.equal(callback_of(new, Teaches).teacher.weight, teacher.weight)

@scene()
def another_frozen_teacher_is_named_or_put_back(folder):
    "Where the script has another teacher than the checkpoint's run."
    learn = learner(callbacks=[Teaches()])
    learn.step(2)
    path = learn.save_checkpoint(folder/"checkpoint-2")
    new = learner(callbacks=[Teaches(seed=2)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try: new.load_checkpoint(path)
        except ValueError as error: assert "teacher" in str(error); return
    same = torch.equal(callback_of(new, Teaches).teacher.weight, callback_of(learn, Teaches).teacher.weight)
    assert same or any("teacher" in str(w.message) for w in caught)


@scene("list", "tensor", "generator", "array", "dict")
def references_of_the_notebook_stay_valid(kind, folder):
    "In memory, values are put back in place; after that they are no longer those of the snapshot."
    learn = learner(KeepsInLearner, kind=kind if kind != "tensor" and kind != "generator" else {"tensor": "tensor_in_place", "generator": "torch_generator"}[kind])
    learn.step(1)
    value, then, taken = learn.kept_value, show(learn.kept_value), learn.snapshot()
    for _ in range(2):
        learn.step(1)
        assert show(value) != then
        learn.restore(taken)
        assert learn.kept_value is value and show(value) == then


@pytest.mark.parametrize("name", rows((name,) for name in SCENES))
def test_scenes(name, tmp_path):
    try: SCENES[name](tmp_path)
    finally: ARMED.clear()

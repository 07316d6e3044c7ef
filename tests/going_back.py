"""What several tests share: runs whose next steps depend on one kind of state each, and the verbs that go back in time.

`ITEMS` holds functions that make such a learner, `VERBS` functions that leave the run and come back. `look` reads the state itself.
"""
import collections, functools, hashlib, random

import numpy as np
import torch
from torch import nn

from trainer_nb import Learner, TrainerCallback

BEFORE, AFTER = 3, 4   # steps before and after the moment that is gone back to


# --- a small run -------------------------------------------------------------------------------------------------------

class Net(nn.Module):
    "Linear layers with dropout and BatchNorm."
    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.drop, self.outer = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 1)

    def forward(self, x): return self.outer(self.drop(self.norm(self.inner(x))))


class Data(torch.utils.data.Dataset):
    def __init__(self, n=20): self.x = torch.randn(n, 3, generator=torch.Generator().manual_seed(5))
    def __len__(self): return len(self.x)
    def __getitem__(self, i): return self.x[i], self.x[i].sum(0, keepdim=True)


SETTINGS = dict(per_device_train_batch_size=4, max_steps=12, learning_rate=1e-2, lr_scheduler_type="cosine", warmup_steps=2, use_cpu=True,
                disable_tqdm=True, logging_steps=2, report_to="none")


def learner(cls=Learner, model=Net, data=Data, callbacks=(), **given):
    torch.manual_seed(0)
    parts = dict(model=model(), train_dataset=data(), callbacks=[c() for c in callbacks], loss_func=nn.functional.mse_loss) | SETTINGS | given
    return cls(**parts)


# --- what a run's future depends on ------------------------------------------------------------------------------------

ITEMS = {}

def item(function):
    "Add a function that makes a learner to the table; a second function may read its state."
    ITEMS[function.__name__] = function
    return function


def scaled_loss(factor):
    "A learner whose loss is multiplied by what a method gives, which may change the learner."
    class Scaled(Learner):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.begin()

        def begin(self): "Attributes of the subclass."

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss = super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
            return loss * (1 + self.factor(model, inputs, loss))

    return type("Scaled", (Scaled,), factor)


@item
def plain_run(): return learner()

@item
def terms_of_a_loss():
    "Logged as means over two steps, which end after the moment."
    def loss(output, labels): return {"loss": nn.functional.mse_loss(output, labels), "norm": output.norm()}
    return learner(loss_func=loss, gradient_accumulation_steps=2)

@item
def containers():
    def begin(self):
        self.window, self.by_kind, self.names = collections.deque(maxlen=3), collections.defaultdict(list), {"a": {1, 2}, 3: (None, "x")}
        self.ordered, self.counts = collections.OrderedDict(a=1), collections.Counter()
    def factor(self, model, inputs, loss):
        self.window.append(loss.detach())
        self.by_kind[len(self.window)].append(float(loss.detach()))
        self.names["a"].add(self.state.global_step)
        self.ordered[f"s{self.state.global_step}"] = 2
        self.counts["all"] += 1
        return sum(self.window) + len(self.by_kind[1]) + len(self.names["a"]) + len(self.ordered) + self.counts["all"]
    return learner(scaled_loss(dict(begin=begin, factor=factor)))

@item
def generators():
    def begin(self):
        self.g, self.r = torch.Generator().manual_seed(1), random.Random(2)
        self.n, self.old, self.many = np.random.default_rng(3), np.random.RandomState(4), [torch.Generator().manual_seed(5)]
    def factor(self, *_):
        draws = [torch.rand(1, generator=self.g), self.r.gauss(0, 1), self.n.standard_normal(), self.old.randn(), torch.rand(1, generator=self.many[0])]
        return float(sum(draws))
    return learner(scaled_loss(dict(begin=begin, factor=factor)))

@item
def second_optimizer():
    def begin(self):
        self.critic = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Dropout(0.5), nn.Linear(2, 1))
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=0.05)
        self.critic_schedule = torch.optim.lr_scheduler.StepLR(self.critic_optimizer, 2, 0.5)
    def factor(self, model, inputs, loss):
        value = self.critic(inputs[0] if isinstance(inputs, (list, tuple)) else next(iter(inputs.values()))).square().mean()
        value.backward()
        if self.state.global_step % 2:   # gradients are accumulated over two steps
            self.critic_optimizer.step()
            self.critic_optimizer.zero_grad()
            self.critic_schedule.step()
        return value.detach()
    return learner(scaled_loss(dict(begin=begin, factor=factor)))

@item
def averaged_weights_of_a_subclass():
    def begin(self): self.average = torch.optim.swa_utils.AveragedModel(self.model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8))
    def factor(self, model, inputs, loss):
        self.average.update_parameters(self.model)
        return next(self.average.parameters()).detach().square().mean()
    return learner(scaled_loss(dict(begin=begin, factor=factor)))


class Averages(TrainerCallback):
    "Averaged weights that are made when training begins, and pull the model towards them."
    def on_train_begin(self, args, state, control, model=None, **kwargs): self.average = torch.optim.swa_utils.AveragedModel(model)
    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.average.update_parameters(model)
        with torch.no_grad():
            for p, a in zip(model.parameters(), self.average.module.parameters()): p.lerp_(a, 0.1)

@item
def averaged_weights_of_a_callback(): return learner(callbacks=[Averages])


class Shadow:
    "Averages as libraries write them: tensors by name, with a state_dict."
    def __init__(self, model): self.weights, self.decay = {n: p.detach().clone() for n, p in model.named_parameters()}, 0.5
    def state_dict(self): return {"weights": self.weights, "decay": self.decay}
    def load_state_dict(self, state): self.weights, self.decay = {n: t.clone() for n, t in state["weights"].items()}, state["decay"]

class Shadowing(TrainerCallback):
    def on_train_begin(self, args, state, control, model=None, **kwargs): self.shadow = Shadow(model)
    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.shadow.decay *= 0.9
        with torch.no_grad():
            for n, p in model.named_parameters(): p.copy_(self.shadow.weights[n].lerp_(p, self.shadow.decay))

@item
def object_with_a_state_dict(): return learner(callbacks=[Shadowing])


class Noisy(TrainerCallback):
    "Adds noise to a weight, by a generator and a counter of its own."
    def __init__(self): self.rng, self.steps, self.last = torch.Generator().manual_seed(3), 0, None
    def on_epoch_begin(self, args, state, control, **kwargs): self.in_epoch = 0
    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.steps, self.in_epoch = self.steps + 1, self.in_epoch + 1
        noise = torch.rand(1, generator=self.rng) * self.steps * self.in_epoch
        with torch.no_grad(): model.outer.bias.add_(noise + (0 if self.last is None else self.last))
        self.last = noise

@item
def attributes_of_a_callback(): return learner(callbacks=[Noisy])

@item
def two_callbacks_of_a_class(): return learner(callbacks=[Noisy, Noisy])


# --- modules, data, optimizers -----------------------------------------------------------------------------------------

class Stateful(Net):
    "A generator, a counter, a tensor that is no buffer, and an extra state."
    def __init__(self):
        super().__init__()
        self.rng, self.calls, self.memory, self.extra = torch.Generator().manual_seed(9), 0, torch.zeros(4), 0
        self.register_buffer("queue", torch.zeros(4), persistent=False)

    def get_extra_state(self): return {"extra": self.extra}
    def set_extra_state(self, state): self.extra = state["extra"]
    def forward(self, x):
        h = self.inner(x)
        if self.training:
            self.calls, self.extra = self.calls + 1, self.extra + 1
            self.memory = self.memory + torch.rand(4, generator=self.rng)
            self.queue.add_(h.detach().mean(0))
        return self.outer(self.norm(h) + self.memory + self.queue) * (1 + 0.1 * self.calls + 0.1 * self.extra)

@item
def modules(): return learner(model=Stateful)


class Modes(Net):
    "Counts the calls of train(), and keeps a part in evaluation mode."
    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

@item
def training_modes(): return learner(model=Modes)


class Hooked(Net):
    "Hooks on a module and on a parameter that change what they see."
    def __init__(self):
        super().__init__()
        self.hook_calls = 0
        self.inner.register_forward_hook(functools.partial(Hooked.count, self))

    @staticmethod
    def count(self, module, args, output):
        self.hook_calls += self.training
        return output * (1 + 0.1 * self.hook_calls)

@item
def hooks(): return learner(model=Hooked)


class DrawnData(Data):
    "A generator and a counter of the data set."
    def __init__(self, n=20):
        super().__init__(n)
        self.rng, self.fetched, self.numpy = torch.Generator().manual_seed(4), 0, np.random.default_rng(4)

    def __getitem__(self, i):
        self.fetched += 1
        x, y = super().__getitem__(i)
        return x + torch.rand(3, generator=self.rng) + self.numpy.random(), (y + 0.01 * self.fetched).float()

@item
def data_set(): return learner(data=DrawnData)

class Lookahead(torch.optim.Optimizer):
    "Slow weights around another optimizer, as the usual implementations keep them."
    def __init__(self, params, lr=1e-2, k=2, alpha=0.5):
        self.base = torch.optim.Adam(params, lr=lr)
        super().__init__(self.base.param_groups, dict(lr=lr))
        self.param_groups, self.k, self.alpha, self.n = self.base.param_groups, k, alpha, 0
        self.slow = {p: p.detach().clone() for g in self.param_groups for p in g["params"]}

    def step(self, closure=None):
        self.base.step()
        self.n += 1
        if self.n % self.k: return
        with torch.no_grad():
            for p, slow in self.slow.items(): p.copy_(slow.lerp_(p, self.alpha))

@item
def optimizer_around_another(): return learner(optimizer_cls_and_kwargs=(Lookahead, {"lr": 1e-2}), learning_rate=5e-5)


class Inner:
    "An object that only its optimizer can save."
    def __init__(self): self.n = 0

class MoreEntries(torch.optim.SGD):
    def __init__(self, params, lr=1e-2):
        super().__init__(params, lr=lr, momentum=0.9)
        self.inner = Inner()

    def state_dict(self): return super().state_dict() | {"n": self.inner.n}
    def load_state_dict(self, state):
        super().load_state_dict({k: v for k, v in state.items() if k != "n"})
        self.inner.n = state["n"]

    def step(self, closure=None):
        self.inner.n += 1
        for group in self.param_groups: group["momentum"] = 0.9 / self.inner.n
        super().step()

@item
def optimizer_with_more_entries(): return learner(optimizer_cls_and_kwargs=(MoreEntries, {"lr": 1e-2}), learning_rate=5e-5)


class Changes(TrainerCallback):
    "Changes groups, and what is trained, as the run goes."
    def on_step_end(self, args, state, control, model=None, optimizer=None, **kwargs):
        if state.global_step == BEFORE - 1: model.inner.requires_grad_(False)
        if state.global_step == BEFORE + 1: model.inner.requires_grad_(True)
        for group in optimizer.param_groups: group["weight_decay"] = 0.01 * state.global_step

@item
def groups_and_requires_grad(): return learner(callbacks=[Changes])

class Sleeps(TrainerCallback):
    "Freezes a layer, which keeps its statistics from then on."
    def on_step_end(self, args, state, control, learner=None, **kwargs):
        if state.global_step == BEFORE - 1: learner.freeze("norm", eval_mode=True)

@item
def layer_in_evaluation_mode(): return learner(callbacks=[Sleeps])

@item
def plateau():
    return learner(lr_scheduler_type="reduce_lr_on_plateau", lr_scheduler_kwargs={"patience": 0, "factor": 0.5}, warmup_steps=0, eval_strategy="steps",
                   eval_steps=1, eval_dataset=Data(8), metric_for_best_model="loss")

@item
def average_of_the_weights(): return learner(average="ema", average_args={"decay": 0.8})

@item
def mean_of_the_last_weights(): return learner(average="swa", average_args={"start": BEFORE - 1, "every": 2}, eval_strategy="steps", eval_steps=2, eval_dataset=Data(8))

class Adversarial(Learner):
    "A GAN of two lines: two losses, each with its optimizer and its schedule, in one step of two micro-batches."
    def optimize(self, model, batches):
        for x, y in batches: self.backward(nn.functional.mse_loss(model(x), y) / len(batches))
        self.update("critic")
        loss = sum(model(x).square().mean() for x, _ in batches)
        self.backward(loss)
        self.update("generator")
        return loss

@item
def named_optimizers_in_a_step_of_its_own():
    def generator(model):
        optimizer = torch.optim.Adam(model.inner.parameters(), lr=1e-2)
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
    def critic(model): return torch.optim.SGD(model.outer.parameters(), lr=1e-2, momentum=0.9)
    idle = dict(learning_rate=5e-5, lr_scheduler_type="linear", warmup_steps=0, optimizers={"generator": generator, "critic": critic})
    return learner(Adversarial, gradient_accumulation_steps=2, average="ema", average_args={"decay": 0.8}, **idle)

class Searching(Learner):
    "LBFGS, which evaluates the loss as often as it likes; each time begins without gradients."
    def optimize(self, model, batches):
        def closure():
            loss = sum(nn.functional.mse_loss(model.outer(model.inner(x)), y) for x, y in batches) / len(batches)
            self.backward(loss)
            return loss
        self.update(closure=closure)
        return closure().detach()

@item
def lbfgs_in_a_step_of_its_own():
    return learner(Searching, optimizer_cls_and_kwargs=(lambda: lambda model: torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3), {}), learning_rate=5e-5)

@item
def one_cycle(): return learner(lr_scheduler_type="one_cycle")


# --- verbs -------------------------------------------------------------------------------------------------------------

def look(learn):
    "The bytes of what a run has learned, and the losses of its last steps."
    learn.model   # at home
    parts = [*learn.run_state.model.state_dict().items(), *(("", v) for s in learn.optimizer.state.values() for v in s.values())]
    tensors = [hashlib.sha256(v.detach().numpy().tobytes()).hexdigest() for _, v in parts if isinstance(v, torch.Tensor)]
    history = learn.history
    kept = history.column("abandoned") == 0
    losses = history.column("loss")[kept][-AFTER:].tobytes()
    groups = [{k: v for k, v in g.items() if k != "params"} for g in learn.optimizer.param_groups]
    terms = [row["norm"] for row in learn.state.log_history if "norm" in row]
    return tensors, losses, terms, repr(groups), [p.requires_grad for p in learn.run_state.model.parameters()]


def restore(learn, make, folder):
    learn.step(BEFORE)
    taken = learn.snapshot()
    learn.step(AFTER)
    learn.restore(taken)
    return learn

def restore_the_beginning(learn, make, folder):
    taken = learn.snapshot()
    learn.step(BEFORE)
    learn.restore(taken)
    learn.step(BEFORE)
    return learn

def rewind(learn, make, folder):
    learn.step(BEFORE + AFTER)
    learn.rewind(AFTER)
    return learn

def branch(learn, make, folder):
    learn.step(BEFORE)
    other = learn.branch()
    learn.step(AFTER)
    return other

def stay_after_branch(learn, make, folder):
    learn.step(BEFORE)
    learn.branch().step(AFTER)
    return learn

def reset(learn, make, folder):
    learn.step(AFTER)
    learn.reset()
    learn.step(BEFORE)
    return learn

def load_here(learn, make, folder):
    learn.step(BEFORE)
    path = learn.save_checkpoint(folder/"checkpoint-3")
    learn.step(AFTER)
    learn.load_checkpoint(path)
    return learn

def load_in_a_new_learner(learn, make, folder):
    learn.step(BEFORE)
    path = learn.save_checkpoint(folder/"checkpoint-3")
    learn.step(AFTER)
    new = make()
    new.load_checkpoint(path)
    return new

def lr_find(learn, make, folder):
    learn.step(BEFORE)
    learn.lr_find(num_steps=10)
    return learn

VERBS = [restore, restore_the_beginning, rewind, branch, stay_after_branch, reset, load_here, load_in_a_new_learner, lr_find]


@functools.cache
def straight(name):
    learn = ITEMS[name]()
    learn.step(BEFORE + AFTER)
    return look(learn)

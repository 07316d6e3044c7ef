"Models, optimizers, schedules, data and callbacks of the fuzzer's random runs, with places where a run can fail."
import collections, dis, linecache, multiprocessing, random, signal, sys, warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset, get_worker_info

import trainer_nb
from trainer_nb import Learner, TrainerCallback
from trainer_nb.core.callbacks import EVENTS


# --- places ------------------------------------------------------------------------------------------------------------

class Boom(Exception):
    "The error that the fuzzer injects."


class Places:
    "Points of a run that its parts pass by name; an armed one raises an error or presses the interrupt button there, once."
    def __init__(self):
        self.armed = {}                                       # name -> (passes that are left, action)
        self.fetches = multiprocessing.Value("i", 0, lock=False)   # passes until an example fails, in any process; 0: none fails

    def clear(self):
        "Disarm everything."
        self.armed.clear()
        self.fetches.value = 0

    def arm(self, name: str, n: int, action=None):
        "Call `action`, which raises Boom by default, at the n-th pass from now."
        if name == "getitem" and action is None: self.fetches.value = n
        else: self.armed[name] = [n, action]

    def __call__(self, name: str):
        if name == "getitem" and self.fetches.value:
            self.fetches.value -= 1
            if not self.fetches.value: raise Boom(name)
        if name not in self.armed or get_worker_info() is not None: return
        self.armed[name][0] -= 1
        if self.armed[name][0] > 0: return
        action = self.armed.pop(name)[1]
        if action is None: raise Boom(name)
        action()


PLACES = Places()


def press(times: int):
    "Press the interrupt button."
    for _ in range(times): signal.raise_signal(signal.SIGINT)


PACKAGE = str(Path(trainer_nb.__file__).parent)


def cannot_be_struck(frame):
    """Tell whether the next instruction of a frame is one before which Python handles no signal: a trace function is called there, too, and an error
    that it raises is outside of the block that the instruction belongs to."""
    operation = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    # `try:`, and the two ways out of a `with` block
    if operation in ("NOP", "PUSH_EXC_INFO"): return True
    return operation == "LOAD_CONST" and linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")


@contextmanager
def pressing_at_line(*lines: int):
    "Press the interrupt button when so many lines of the package have been executed; several numbers press several times."
    left, done = sorted(lines), 0
    def in_package(frame, event, arg):
        nonlocal done
        if event == "line":
            done += 1
            if left and done >= left[0] and not cannot_be_struck(frame):
                left.pop(0)
                press(1)
        return in_package
    def at_call(frame, event, arg): return in_package if frame.f_code.co_filename.startswith(PACKAGE) else None
    before = sys.gettrace()
    sys.settrace(at_call)
    try: yield
    finally: sys.settrace(before)


# --- models ------------------------------------------------------------------------------------------------------------

class Through(torch.autograd.Function):
    "The identity, which passes a place in the backward pass."
    @staticmethod
    def forward(ctx, x): return x.clone()

    @staticmethod
    def backward(ctx, grad):
        PLACES("backward")
        return grad


class Embedded(nn.Module):
    "An embedding whose rows are scaled down when they are looked up."
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(10, 6, max_norm=0.5), nn.Linear(6, 3)

    def forward(self, x): return self.head(self.table((x.abs() * 3).long().clamp(max=9)).mean(1))


class Recurrent(nn.Module):
    "An LSTM over the four numbers of a sample."
    def __init__(self):
        super().__init__()
        self.lstm, self.drop, self.head = nn.LSTM(1, 5, batch_first=True), nn.Dropout(0.2), nn.Linear(5, 3)

    def forward(self, x): return self.head(self.drop(self.lstm(x[..., None])[0][:, -1]))


class Tied(nn.Module):
    "Two layers with one weight."
    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.two.weight = self.one.weight

    def forward(self, x): return self.head(self.two(torch.relu(self.one(x))))


class Counting(nn.Module):
    "An extra state that counts forward passes in training and changes the output."
    def __init__(self):
        super().__init__()
        self.layers, self.count = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.2), nn.Linear(6, 3)), 0

    def get_extra_state(self): return {"count": self.count}
    def set_extra_state(self, state): self.count = state["count"]

    def forward(self, x):
        if self.training: self.count += 1
        return self.layers(x) * (1 + 0.01 * self.count)


class Drawing(nn.Module):
    "A generator of the module's own, and a counter that is a plain attribute."
    def __init__(self):
        super().__init__()
        self.layers, self.count = nn.Linear(4, 3), 0
        self.generator = torch.Generator().manual_seed(5)

    def forward(self, x):
        if not self.training: return self.layers(x)
        self.count += 1
        return self.layers(x + 0.1 * torch.randn(x.shape, generator=self.generator)) * (1 + 0.01 * self.count)


class Buffers(nn.Module):
    "Buffers that a forward pass replaces, creates and changes, of which some are not in the state_dict."
    def __init__(self):
        super().__init__()
        self.layers = nn.Linear(4, 3)
        self.register_buffer("center", torch.zeros(4))
        self.register_buffer("calls", torch.zeros(1), persistent=False)
        self.register_buffer("last", None, persistent=False)

    def forward(self, x):
        if self.training:
            self.calls += 1
            self.center = 0.9 * self.center + 0.1 * x.detach().mean(0)
            self.last = x.detach().sum(0)
        return self.layers(x - self.center + 0.01 * self.calls)


class Reshape(nn.Module):
    "A sample as one channel."
    def forward(self, x): return x[:, None]


def dense(): return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))


def frozen():
    "A network whose first layer is not trained."
    body = dense()
    body[0].requires_grad_(False)
    return body


def partly_in_evaluation():
    "A network as `from_pretrained` gives its parts: dropout and BatchNorm begin in evaluation mode."
    body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))
    body[1].eval()
    body[2].eval()
    return body


def double_output(module, inputs, output): return 1.5 * output
def halve(grad): return 0.5 * grad


def hooked():
    "A network with hooks on a module, on the way back, and on a parameter."
    body = dense()
    body[0].register_forward_hook(double_output)
    body[3].register_full_backward_hook(lambda module, grads, outputs: (0.9 * grads[0],))
    return body


def parameter_hooked():
    "A network with a hook on a parameter."
    body = dense()
    body[3].weight.register_hook(halve)
    return body


def old_weight_norm():
    "The weight norm that keeps a plain attribute."
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(4, 8)), nn.Tanh(), nn.Linear(8, 3))


def convolution():
    return nn.Sequential(Reshape(), nn.Conv1d(1, 4, 3, padding=1), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(16, 3))


def parametrized():
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 8)), nn.Tanh(), nn.utils.parametrizations.spectral_norm(nn.Linear(8, 3)))


BODIES = {"dense": dense, "convolution": convolution, "embedding": Embedded, "recurrent": Recurrent, "tied": Tied, "counting": Counting,
          "drawing": Drawing, "buffers": Buffers, "frozen": frozen, "eval_part": partly_in_evaluation, "hooks": hooked,
          "parameter_hook": parameter_hooked, "old_weight_norm": old_weight_norm, "parametrized": parametrized}


class Net(nn.Module):
    "A body with a loss."
    def __init__(self, body):
        super().__init__()
        self.body = body

    def logits(self, x):
        PLACES("forward")
        out = self.body(x)
        PLACES("end of forward")
        return Through.apply(out) if out.requires_grad else out

    def forward(self, x, labels=None):
        logits = self.logits(x)
        if labels is None: return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class WithoutLoss(Net):
    "A body that returns its output, for a loss function."
    def forward(self, x): return self.logits(x)


def loss_of_pairs(output, labels):
    "The loss function for tuples."
    PLACES("loss")
    return nn.functional.cross_entropy(output, labels)


def make_model(config: dict, seed: int):
    "The model of a case, with weights from `seed`."
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        body = BODIES[config["model"]]()
    return (WithoutLoss if config["data"] == "pairs" else Net)(body)


# --- data --------------------------------------------------------------------------------------------------------------

def numbers(n: int): return torch.randn(n, 4, generator=torch.Generator().manual_seed(7))


class Rows(Dataset):
    "Examples as dicts; `noise` adds draws of all three generators."
    def __init__(self, n: int, noise: bool = False): self.x, self.noise = numbers(n), noise
    def __len__(self): return len(self.x)

    def __getitem__(self, i):
        PLACES("getitem")
        x = self.x[i]
        if self.noise: x = x + 0.1 * (torch.randn(4) + float(np.random.randn()) + random.random())
        return {"x": x, "labels": int(self.x[i].sum() > 0)}


class CountedRows(Rows):
    "Examples with noise from a generator of the data set, and a counter."
    def __init__(self, n: int):
        super().__init__(n)
        self.generator, self.count = torch.Generator().manual_seed(3), 0

    def __getitem__(self, i):
        self.count += 1
        row = super().__getitem__(i)
        return row | {"x": row["x"] + 0.1 * torch.randn(4, generator=self.generator) + 0.001 * self.count}


class Stream(IterableDataset):
    "A stream with a shuffle buffer that draws from python's generator."
    def __init__(self, n: int): self.rows = Rows(n)

    def __iter__(self):
        info, buffer = get_worker_info(), []
        for i in range(info.id if info else 0, len(self.rows), info.num_workers if info else 1):
            buffer.append(self.rows[i])
            if len(buffer) > 3: yield buffer.pop(random.randrange(len(buffer)))
        yield from buffer


def collate(rows):
    "A batch of dicts."
    PLACES("collate")
    return {"x": torch.stack([r["x"] for r in rows]), "labels": torch.tensor([r["labels"] for r in rows])}


def make_data(kind: str, n: int):
    "A data set of `n` samples."
    if kind == "pairs": return TensorDataset(numbers(n), (numbers(n).sum(1) > 0).long())
    return {"rows": Rows, "noise": lambda n: Rows(n, True), "counted": CountedRows, "stream": Stream}[kind](n)


def metrics(p):
    "The number of samples tells an evaluation by hand from one of the run's."
    PLACES("metrics")
    labels = p.label_ids
    return {"samples": len(labels), "accuracy": float((p.predictions.argmax(-1) == labels).mean())}


OWN, BY_HAND = 6, 5   # samples of the run's evaluation set, and of the set for evaluations by hand


# --- optimizers --------------------------------------------------------------------------------------------------------

class Halfway(torch.optim.SGD):
    "SGD with momentum that may fail between two weights."
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for i, p in enumerate(group["params"]):
                if p.grad is None: continue
                state = self.state[p]
                if "average" not in state: state["average"], state["calls"] = torch.zeros_like(p), 0
                state["calls"] += 1
                state["average"].mul_(0.8).add_(p.grad)
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * state["average"])
                if i == 0: PLACES("halfway")


class Noisy(torch.optim.SGD):
    "SGD that draws noise."
    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            for p in group["params"]: p.add_(0.01 * torch.randn_like(p))


class Lookahead(torch.optim.SGD):
    "SGD with slow weights beside `state`, which its own state_dict adds."
    def __init__(self, params, **given):
        super().__init__(params, **given)
        self.slow, self.calls = [p.detach().clone() for g in self.param_groups for p in g["params"]], 0

    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        self.calls += 1
        if self.calls % 3: return
        for slow, p in zip(self.slow, [p for g in self.param_groups for p in g["params"]]):
            slow.lerp_(p, 0.5)
            p.copy_(slow)

    def state_dict(self): return super().state_dict() | {"slow": [s.clone() for s in self.slow], "calls": self.calls}

    def load_state_dict(self, state):
        state = dict(state)
        self.slow, self.calls = [s.clone() for s in state.pop("slow")], state.pop("calls")
        super().load_state_dict(state)


CUSTOM_OPTIMIZERS = {"halfway": Halfway, "noisy": Noisy, "lookahead": Lookahead}
NAMED_OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "sgd", "adagrad", "rmsprop", "adafactor")


# --- schedules ---------------------------------------------------------------------------------------------------------

class Zigzag(torch.optim.lr_scheduler.LRScheduler):
    "A schedule with a counter of its own."
    def __init__(self, optimizer):
        self.turns = 0
        super().__init__(optimizer)

    def get_lr(self):
        PLACES("schedule")
        self.turns += 1
        return [base * (1.0, 0.7, 0.4)[self.last_epoch % 3] for base in self.base_lrs]


def lambda_schedule(optimizer, total): return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.05, 1 - step / total))
def product_schedule(optimizer, total): return torch.optim.lr_scheduler.MultiplicativeLR(optimizer, lambda step: 0.9)


def cyclic_schedule(optimizer, total):
    return torch.optim.lr_scheduler.CyclicLR(optimizer, 0.001, 0.02, step_size_up=2, cycle_momentum=False)


def cycle_schedule(optimizer, total):
    momentum = bool({"momentum", "betas"} & set(optimizer.defaults))
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=total + 20, cycle_momentum=momentum)


def sequential_schedule(optimizer, total):
    parts = [torch.optim.lr_scheduler.LinearLR(optimizer, 0.3, total_iters=2), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]
    return torch.optim.lr_scheduler.SequentialLR(optimizer, parts, milestones=[3])


def chained_schedule(optimizer, total):
    parts = [torch.optim.lr_scheduler.ConstantLR(optimizer, 0.5, total_iters=2), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]
    return torch.optim.lr_scheduler.ChainedScheduler(parts)


MADE_SCHEDULES = {"lambda": lambda_schedule, "product": product_schedule, "cyclic": cyclic_schedule, "cycle": cycle_schedule,
                  "sequential": sequential_schedule, "chained": chained_schedule, "zigzag": lambda optimizer, total: Zigzag(optimizer)}
NAMED_SCHEDULES = ("linear", "cosine", "constant", "constant_with_warmup", "polynomial", "reduce_lr_on_plateau", "one_cycle")


# --- learners ----------------------------------------------------------------------------------------------------------

class Fuzzed(Learner):
    "A learner with the parts that a case asks for; its methods pass places."
    schedule = ""   # of MADE_SCHEDULES

    def create_optimizer(self, model=None):
        made = super().create_optimizer(model)
        if not getattr(made, "passes_places", False):
            made.passes_places = True
            made.register_step_pre_hook(lambda *args: PLACES("optimizer"))
        return made

    def create_scheduler(self, num_training_steps, optimizer=None):
        if not self.schedule: return super().create_scheduler(num_training_steps, optimizer)
        if self.lr_scheduler is None: self.lr_scheduler = MADE_SCHEDULES[self.schedule](self.optimizer, num_training_steps)
        return self.lr_scheduler

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        PLACES("compute_loss")
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


class Baseline(Fuzzed):
    "A learner that keeps a running mean of the loss as an attribute and adds it to the loss."
    def __init__(self, *args, **given):
        super().__init__(*args, **given)
        self.baseline, self.average = 0.0, torch.zeros(1)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs, False, num_items_in_batch)
        if not model.training: return (loss, super().compute_loss(model, inputs, True, num_items_in_batch)[1]) if return_outputs else loss
        self.baseline = 0.5 * self.baseline + 0.5 * loss.item()
        self.average.lerp_(loss.detach(), 0.5)
        PLACES("baseline")
        return loss * (1 + 0.1 * self.baseline + 0.1 * self.average.item())


class Attacked(Fuzzed):
    "Adversarial training in the usual way: weights are moved through .data and put back after a second pass."
    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs, num_items_in_batch)
        weights = [p for p in model.parameters() if p.grad is not None]
        before = [p.data.clone() for p in weights]
        for p in weights: p.data.add_(0.05 * p.grad.sign())
        PLACES("attack")
        super().training_step(model, inputs, num_items_in_batch)
        for p, value in zip(weights, before): p.data.copy_(value)
        return loss


LEARNERS = {"plain": Fuzzed, "baseline": Baseline, "attacked": Attacked}


# --- callbacks ---------------------------------------------------------------------------------------------------------

class Passing(TrainerCallback):
    "Passes a place at each event, and looks at the training modes before the update."


def pass_event(event):
    "The method of an event."
    def method(self, args, state, control, model=None, **kwargs):
        if event == "on_pre_optimizer_step" and (still := [n for n, m in model.named_modules() if not m.training]):
            raise AssertionError(f"{still} were in evaluation mode in a step of training.")
        PLACES(event)
    return method


for _event in EVENTS: setattr(Passing, _event, pass_event(_event))

COUNTED = ("on_train_begin", "on_epoch_begin", "on_step_end", "on_epoch_end", "on_train_end")


class Counter(TrainerCallback):
    "Counts events, and has a state_dict."
    def __init__(self): self.counts = {}
    def count(self, event): self.counts[event] = self.counts.get(event, 0) + 1
    def state_dict(self): return {"counts": dict(self.counts)}
    def load_state_dict(self, state): self.counts = dict(state["counts"])


class PlainCounter(TrainerCallback):
    "Counts events in a plain attribute."
    def __init__(self): self.counts = {}
    count = Counter.count


class EarlyCounter(Counter):
    "Counts what comes before the commit."


for _event in COUNTED:
    for _cls in (Counter, PlainCounter):
        setattr(_cls, _event, lambda self, args, state, control, _event=_event, **kwargs: self.count(_event))
for _event in ("on_step_begin", "on_substep_end", "on_pre_optimizer_step"):
    setattr(EarlyCounter, _event, lambda self, args, state, control, _event=_event, **kwargs: self.count(_event))


class Draws(TrainerCallback):
    "Draws random numbers at each event of the loop, and keeps a mean of them."
    def __init__(self): self.mean = 0.0
    def draw(self): self.mean = 0.5 * self.mean + torch.rand(()).item() + np.random.rand() + random.random()
    def state_dict(self): return {"mean": self.mean}
    def load_state_dict(self, state): self.mean = state["mean"]


for _event in (*COUNTED, "on_step_begin"): setattr(Draws, _event, lambda self, args, state, control, **kwargs: self.draw())


class Averaged(TrainerCallback):
    "An exponential moving average of the weights, created when training begins."
    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.average = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        for a, p in zip(self.average, model.parameters()): a.lerp_(p, 0.3)


class AveragedWithState(Averaged):
    "The same, with a state_dict."
    def state_dict(self): return {"average": [a.clone() for a in getattr(self, "average", [])]}
    def load_state_dict(self, state): self.average = [a.clone() for a in state["average"]]


class Rates(TrainerCallback):
    "Sets the learning rate after the fourth step."
    def on_step_end(self, args, state, control, learner=None, **kwargs):
        if state.global_step == 4 and learner.optimizer.param_groups[0]["lr"] > 0: learner.set(lr=0.004)


class Wishes(TrainerCallback):
    "Asks for an evaluation, a log and a checkpoint at certain steps."
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % 4 == 3: control.should_evaluate = True
        if state.global_step % 5 == 2: control.should_log = True
        if state.global_step == 5 and args.output_dir is not None: control.should_save = True


class Stops(TrainerCallback):
    "Ends the run after the sixth step."
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 6: control.should_training_stop = True


CALLBACKS = {"counter": Counter, "plain_counter": PlainCounter, "early_counter": EarlyCounter, "averaged": Averaged,
             "averaged_with_state": AveragedWithState, "rates": Rates, "wishes": Wishes, "stops": Stops, "draws": Draws}


# --- a learner of a case -----------------------------------------------------------------------------------------------

def make_learner(config: dict, folder=None, seed: int = 0):
    "A learner as a case describes it; `seed` is that of its first weights."
    model, kind = make_model(config, seed), config["data"]
    cls = LEARNERS[config["learner"]]
    cls = type(cls.__name__, (cls,), {"schedule": config["schedule"] if config["schedule"] in MADE_SCHEDULES else ""})
    given = dict(config["args"])
    if config["optim"] in CUSTOM_OPTIMIZERS:
        given["optimizer_cls_and_kwargs"] = (CUSTOM_OPTIMIZERS[config["optim"]], {"lr": given["learning_rate"], "momentum": 0.5})
    elif config["optim"] == "given":
        for name in ("learning_rate", "weight_decay"): given.pop(name, None)
        given["optimizers"] = (torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9), None)
    else: given["optim"] = config["optim"]
    if config["schedule"] in NAMED_SCHEDULES: given["lr_scheduler_type"] = config["schedule"]
    if kind == "pairs": given["loss_func"] = loss_of_pairs
    if folder is not None: given["output_dir"] = str(folder)
    callbacks = [Passing(), *(CALLBACKS[name]() for name in config["callbacks"])]
    own = "pairs" if kind == "pairs" else "rows"
    return cls(model, train_dataset=make_data(kind, config["samples"]), eval_dataset=make_data(own, OWN), compute_metrics=metrics,
               data_collator=None if kind == "pairs" else collate, callbacks=callbacks, use_cpu=True, disable_tqdm=True, **given)


# --- what is compared --------------------------------------------------------------------------------------------------

CLOCKS = ("runtime", "per_second")
COLUMNS = ("step", "epoch", "loss", "learning_rate", "grad_norm", "samples")


def as_value(thing):
    "A value with an equality that compares bytes."
    if isinstance(thing, torch.Tensor): return str(thing.dtype), tuple(thing.shape), thing.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(thing, torch.Generator): return as_value(thing.get_state())
    if isinstance(thing, dict | collections.OrderedDict): return {k: as_value(v) for k, v in thing.items()}
    if isinstance(thing, list | tuple): return [as_value(v) for v in thing]
    if isinstance(thing, np.ndarray | np.generic): return thing.dtype.str, thing.shape, thing.tobytes()
    if thing is None or isinstance(thing, bool | int | float | str): return repr(thing)
    return type(thing).__name__


def log_rows(learn, by_hand=frozenset()):
    "The rows of the log, without clocks and without those of acts by hand; `by_hand`: steps of evaluations by hand of the own set."
    rows = []
    for row in learn.state.log_history:
        if "manual" in row or "manual_loss" in row or row.get("eval_samples") == BY_HAND: continue
        row = {k: as_value(v) for k, v in row.items() if not k.endswith(CLOCKS)}
        # an evaluation by hand may come before that of the run: the last one stays, up to the summary at the end of train()
        if row["step"] in {repr(s) for s in by_hand} and "eval_loss" in row and row in rows:
            if any("train_loss" in later for later in rows[rows.index(row):]): continue
            rows.remove(row)
        rows.append(row)
    return rows


def state_of(learn, by_hand=frozenset()) -> dict:
    "Everything that two equal runs have in common at their end, by name."
    found = {f"weight {n}": as_value(p) for n, p in learn.model.named_parameters()}
    found |= {f"buffer {n}": as_value(b) for n, b in learn.model.named_buffers()}
    found |= {f"trainable {n}": p.requires_grad for n, p in learn.model.named_parameters()}
    for name, module in learn.model.named_modules():
        plain = {k: v for k, v in vars(module).items() if isinstance(v, int | float | torch.Generator) and k != "training"}
        found |= {f"attribute {name}.{k}": as_value(v) for k, v in plain.items()}
    found["optimizer"] = as_value(learn.optimizer.state_dict())
    found["optimizer attributes"] = as_value({k: v for k, v in vars(learn.optimizer).items() if k in ("slow", "calls")})
    schedule = {k: v for k, v in vars(learn.lr_scheduler).items() if k not in ("optimizer", "_is_initial", "_get_lr_called_within_step")}
    found |= {f"schedule {k}": as_value(v) for k, v in schedule.items() if not callable(v)}
    ours = tuple(CALLBACKS.values())
    found |= {f"callback {type(c).__name__}": as_value(vars(c)) for c in learn.callback_handler.callbacks if isinstance(c, ours)}
    found |= {f"learner {k}": as_value(vars(learn)[k]) for k in ("baseline", "average") if k in vars(learn)}
    generator = getattr(learn.train_dataset, "generator", None)
    if generator is not None: found["data set"] = as_value([generator, learn.train_dataset.count])
    state = {k: v for k, v in vars(learn.state).items() if k not in ("log_history", "best_model_checkpoint")}
    found |= {f"state.{k}": as_value(v) for k, v in state.items()}
    found["best checkpoint"] = Path(learn.state.best_model_checkpoint or "none").name
    counts = learn.history.column("abandoned") == 0
    found |= {f"history {c}": learn.history.column(c)[counts].tobytes() for c in COLUMNS}
    found |= {f"log {i}": row for i, row in enumerate(log_rows(learn, by_hand))}
    return found

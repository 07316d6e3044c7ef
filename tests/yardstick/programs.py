"""The programs of the yardstick: each uses public names only and records what it ends in.

A program gets `note(name, value)`, which records a learner, a folder, or a tree of values.
"""
import copy, random, runpy, sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import trainer_nb
from trainer_nb import Learner, TrainerCallback

PROGRAMS = {}
# those that a test runs
QUICK = ["verbs_that_train", "resume", "back_in_time", "failing_steps", "interrupts", "settings_in_a_run", "overrides", "callbacks", "files_of_the_trainer"]


def program(function):
    "Add a function to the table."
    PROGRAMS[function.__name__] = function
    return function


# --- parts ----------------------------------------------------------------------------------------------------------------

class Net(nn.Module):
    "BatchNorm, dropout, tied weights, and buffers that a forward pass changes in place and replaces."
    def __init__(self, drop=0.2, norm=True):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6) if norm else nn.LayerNorm(6), nn.ReLU(), nn.Dropout(drop))
        self.mixer, self.again, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.again.weight = self.mixer.weight
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("center", torch.zeros(4), persistent=False)

    def forward(self, x, labels=None):
        if self.training:
            self.calls += 1
            self.center = 0.9 * self.center + 0.1 * x.detach().mean(0)
        logits = self.head(self.again(torch.tanh(self.mixer(self.body(x - self.center)))))
        if labels is None: return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Rows(Dataset):
    "Examples with noise of all three global generators, and a generator of their own."
    def __init__(self, n=30, noise=0.1):
        self.x, self.noise = torch.randn(n, 4, generator=torch.Generator().manual_seed(n)), noise
        self.generator, self.count = torch.Generator().manual_seed(3), 0

    def __len__(self): return len(self.x)

    def __getitem__(self, i):
        self.count += 1
        x = self.x[i]
        if self.noise: x = x + self.noise * (torch.randn(4) + float(np.random.randn()) + random.random() + torch.rand(4, generator=self.generator))
        return {"x": x, "labels": int(self.x[i].sum() > 0)}


class Stream(IterableDataset):
    "The same examples as a stream."
    def __init__(self, n=30): self.rows = Rows(n)
    def __iter__(self): return (self.rows[i] for i in range(len(self.rows)))


class Counter(TrainerCallback):
    "A callback with numbers, a tensor, and a generator of its own, which pull at the weights."
    def __init__(self): self.steps, self.mean, self.random, self.seen = 0, torch.zeros(()), random.Random(4), []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.steps += 1
        self.mean.lerp_(next(model.parameters()).detach().mean(), 0.5)
        self.seen.append(self.random.random())
        with torch.no_grad(): model.head.bias.add_(1e-3 * self.seen[-1] + 1e-3 * self.mean + 1e-4 * self.steps)


class Average(TrainerCallback):
    "An exponential moving average of the weights."
    def __init__(self): self.average = None

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if self.average is None: self.average = copy.deepcopy(model)
        with torch.no_grad():
            for mean, p in zip(self.average.parameters(), model.parameters()): mean.lerp_(p, 0.1)


class Boom(Exception): "What a program throws into a run."


SETTINGS = dict(per_device_train_batch_size=4, gradient_accumulation_steps=2, num_train_epochs=3, learning_rate=1e-2,
                lr_scheduler_type="cosine", warmup_steps=2, weight_decay=0.01, logging_steps=2, max_grad_norm=0.5,
                save_strategy="no", use_cpu=True, disable_tqdm=True, report_to="none", seed=5, rewind_every=3)


def make(cls=Learner, model=Net, data=Rows, **given):
    "A learner on the standard parts; what is given goes over it."
    torch.manual_seed(0)
    parts = dict(model=model() if isinstance(model, type) else model, train_dataset=data() if isinstance(data, type) else data) | SETTINGS | given
    return cls(**{k: v for k, v in parts.items() if v is not None})


def plain_rows(n=30): return [{"x": a, "labels": int(a.sum() > 0)} for a in torch.randn(n, 4, generator=torch.Generator().manual_seed(n))]


def accuracy(p): return {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())}


def rows_of(learn): return [(r.step, r.loss, r.learning_rate) for r in learn.history if not r.abandoned]


def state_of(callback): return {k: v for k, v in vars(callback).items() if isinstance(v, (int, float, list, torch.Tensor))}


# --- training, one way and another ----------------------------------------------------------------------------------------

@program
def verbs_that_train(note):
    "The same run by train, step(n), step(1), steps(), run and fit ends in the same bytes; each is recorded."
    train = make()
    out = train.train()
    note("train", train), note("out", {"step": out.global_step, "loss": out.training_loss, "metrics": out.metrics})
    many = make()
    while many.state.global_step < many.state.max_steps or not many.state.max_steps: note("records", [r.loss for r in many.step(4)])
    note("step(n)", many)
    one = make()
    for _ in range(train.state.max_steps): one.step()
    note("step(1)", one)
    loop = make()
    note("steps() gives", [(r.step, r.loss) for r in loop.steps()])
    note("steps()", loop)
    run = make()
    run.run(steps=2), run.run(epochs=0.5), run.run(until=lambda r: r.step >= 7), run.run()
    note("run", run)


@program
def longer_and_again(note):
    "fit, fit_one_cycle, plan, stop, set(max_steps), a second train()."
    learn = make(lr_scheduler_type="constant", warmup_steps=0)
    learn.step(3)
    learn.fit(1, 5e-3, "cosine")
    note("fit", learn)
    learn.fit_one_cycle(1, 2e-2)
    note("one cycle", learn)
    learn.plan(2, 1e-3, "linear")
    learn.step(3), learn.stop()
    note("stopped", learn)
    learn.set(max_steps=learn.state.global_step + 5)
    learn.train()
    note("longer", learn)
    learn.train()
    note("a second run", learn)


@program
def accumulation(note):
    for steps, drop in ((1, False), (3, False), (4, True)):
        learn = make(gradient_accumulation_steps=steps, dataloader_drop_last=drop, num_train_epochs=2, logging_first_step=True)
        learn.train()
        note(f"{steps} {drop}", learn)


@program
def kinds_of_batches(note):
    x, y = torch.randn(22, 4, generator=torch.Generator().manual_seed(1)), torch.arange(22) % 2
    body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 2))
    learn = make(model=copy.deepcopy(body), data=TensorDataset(x, y), loss_func=nn.functional.cross_entropy)
    learn.train()
    note("tuples", learn)
    learn = make(model=copy.deepcopy(body), data=TensorDataset(x, y), compute_loss_func=lambda out, labels, num_items_in_batch=None:
                 nn.functional.cross_entropy(out, labels, reduction="sum") / (num_items_in_batch or len(labels)))
    learn.train()
    note("compute_loss_func", learn)
    learn = make(data=torch.utils.data.DataLoader(plain_rows(), batch_size=5, shuffle=True, generator=torch.Generator().manual_seed(2)))
    learn.train()
    note("loader", learn)
    learn = make(data=plain_rows(), label_smoothing_factor=0.1, data_collator=trainer_nb.default_data_collator)
    learn.train()
    note("label smoothing", learn)


class Backwards(torch.utils.data.Sampler):
    "An order of its own, with a generator."
    def __init__(self, n): self.n, self.generator, self.epochs = n, torch.Generator().manual_seed(8), 0
    def __len__(self): return self.n
    def __iter__(self):
        self.epochs += 1
        return iter(torch.randperm(self.n, generator=self.generator).tolist()[::-1])


class WithSampler(Learner):
    def _get_train_sampler(self, train_dataset=None): return self.sampler


@program
def samplers(note):
    "Own sampler, resumed in the middle of an epoch; sequential; grouped by length; data_seed."
    learn = make(WithSampler)
    learn.sampler = Backwards(30)
    learn.step(5)
    here = learn.snapshot()
    learn.train()
    note("own", learn), note("epochs", learn.sampler.epochs)
    learn.restore(here)
    learn.train()
    note("own again", learn)
    for given in (dict(train_sampling_strategy="sequential"), dict(data_seed=11)):
        learn = make(**given)
        learn.train()
        note(str(given), learn)


class Lengths(Dataset):
    def __init__(self, n=26): self.n = n
    def __len__(self): return self.n
    def __getitem__(self, i): return {"input_ids": [1 + (i * 7 + j) % 30 for j in range(2 + i * 5 % 9)], "labels": i % 3}


class Bag(nn.Module):
    "Embeddings, averaged."
    def __init__(self):
        super().__init__()
        self.table, self.drop, self.head = nn.Embedding(32, 6), nn.Dropout(0.1), nn.Linear(6, 3)

    def forward(self, input_ids, attention_mask=None, labels=None):
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        h = (self.table(input_ids) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        logits = self.head(self.drop(h))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def padded(rows):
    ids = nn.utils.rnn.pad_sequence([torch.tensor(r["input_ids"]) for r in rows], batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor([r["labels"] for r in rows])}


@program
def grouped_by_length(note):
    for given in (dict(), dict(include_num_input_tokens_seen="all"), dict(dataloader_num_workers=2)):
        learn = make(model=Bag, data=Lengths, data_collator=padded, **dict(train_sampling_strategy="group_by_length", num_train_epochs=2) | given)
        learn.step(3), learn.rewind(1), learn.train()
        note(str(given), learn)


@program
def data_workers(note):
    for given in (dict(), dict(dataloader_persistent_workers=True), dict(dataloader_prefetch_factor=4, dataloader_drop_last=True)):
        learn = make(dataloader_num_workers=2, **given)
        learn.step(3)
        here = learn.snapshot()
        learn.step(4), learn.rewind(2), learn.train()
        note(str(given), learn)
        learn.restore(here), learn.step(2)
        note(f"{given} restored", learn)


@program
def iterable_data(note):
    "A stream, without and with workers, split, resumed in the middle."
    for workers in (0, 2):
        learn = make(data=Stream, max_steps=9, dataloader_num_workers=workers)
        learn.step(5)
        folder = learn.save_checkpoint(f"at5-{workers}")
        learn.train()
        note(f"{workers}", learn)
        again = make(data=Stream, max_steps=9, dataloader_num_workers=workers)
        again.load_checkpoint(folder), again.train()
        note(f"{workers} resumed", again)


# --- going back -----------------------------------------------------------------------------------------------------------

@program
def resume(note):
    "From every step, in the middle of an epoch and at its end, with callbacks, and in a learner with another seed of weights."
    def fresh(folder): return make(callbacks=[Counter(), Average()], eval_dataset=Rows(12, 0), eval_strategy="steps", eval_steps=3, save_strategy="steps",
                                   save_steps=1, output_dir=folder, num_train_epochs=2)
    like = fresh("a")
    like.train()
    note("whole", like)
    for step in (1, 4, 5, 7):
        learn = fresh("b")
        learn.load_checkpoint(Path("a", f"checkpoint-{step}"))
        note(f"{step} loaded", learn)
        learn.train()
        note(f"{step}", learn)
        note(f"{step} callbacks", [state_of(c) for c in learn.callback_handler.callbacks if isinstance(c, Counter)])
        note(f"{step} average", [c.average.state_dict() for c in learn.callback_handler.callbacks if isinstance(c, Average)])
    learn = fresh("a")
    learn.train(resume_from_checkpoint=True)
    note("newest", learn)


@program
def back_in_time(note):
    learn = make(callbacks=[Counter(), Average()])
    learn.step(3)
    first = learn.snapshot("three")
    learn.set(lr=3e-3)
    learn.step(4)
    note("seven", learn)
    learn.rewind(2)
    note("five", learn)
    learn.step(3)
    other = learn.branch(learning_rate=2e-2)
    other.step(3), note("branch", other)
    learn.step(1), note("unaware of the branch", learn)
    learn.restore("three"), learn.step(2)
    note("restored", learn), note("snapshot", first.step)
    learn.rewind(to=1), learn.train()
    note("from one", learn)
    learn.reset(), note("reset", learn)
    learn.train()
    note("again", learn)


class Failing(Net):
    "A model that fails in one forward pass, after it has changed its buffers."
    at = None
    def forward(self, x, labels=None):
        out = super().forward(x, labels)
        if self.training and self.at is not None and int(self.calls) == self.at:
            self.at = None
            raise Boom("forward")
        return out


@program
def failing_steps(note):
    "In a forward pass, in the data, in a callback, in the optimizer; with light and full rollback."
    class FailingRows(Rows):
        def __getitem__(self, i):
            if self.count == 37: self.count += 1; raise Boom("getitem")
            return super().__getitem__(i)
    class FailingCallback(Counter):
        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            if self.steps == 4: self.steps += 1; raise Boom("callback")
    class FailingAdam(torch.optim.Adam):
        calls = 0
        def step(self, closure=None):
            FailingAdam.calls += 1
            super().step(closure)
            if FailingAdam.calls == 4: raise Boom("optimizer")
    for rollback in ("light", "full"):
        for place in ("forward", "getitem", "callback", "optimizer"):
            model = Failing()
            learn = make(model=model, data=FailingRows if place == "getitem" else Rows, rollback=rollback,
                         callbacks=[FailingCallback() if place == "callback" else Counter()],
                         optimizer_cls_and_kwargs=(FailingAdam, {"lr": 1e-2}) if place == "optimizer" else None)
            if place == "forward": learn.step(1), setattr(learn.model, "at", 8)
            FailingAdam.calls = 0
            failures = 0
            while learn.state.global_step < 7 and failures < 3:
                try: learn.step(1)
                except Boom:
                    failures += 1
                    note(f"{rollback} {place} failed", learn)
                    if place == "optimizer" and rollback == "light":
                        note(f"{rollback} {place} repaired", learn.rewind(0).step)
            note(f"{rollback} {place} {failures}", learn)


@program
def interrupts(note):
    "The interrupt button in the middle of a step: the step is finished first; a second press goes back to its beginning."
    import signal
    class Pressed(Net):
        at, times = None, 1
        def forward(self, x, labels=None):
            if self.training and self.at is not None and int(self.calls) == self.at:
                self.at = None
                for _ in range(self.times): signal.raise_signal(signal.SIGINT)
            return super().forward(x, labels)
    for times in (1, 2):
        learn = make(model=Pressed, callbacks=[Counter()])
        learn.step(2)
        learn.model.at, learn.model.times = 7, times
        try: learn.train()
        except KeyboardInterrupt: pass
        note(f"{times} pressed", learn)
        learn.train()
        note(f"{times} whole", learn)


@program
def step_by_hand(note):
    learn = make(callbacks=[Counter()])
    learn.step(2)
    hand = learn.debug_step()
    note("loss", hand.forward().detach())
    hand.backward()
    hand.forward(), hand.backward()
    note("gradients", {n: p.grad for n, p in learn.model.named_parameters()})
    hand.abort()
    note("aborted", learn)
    hand = learn.debug_step()
    for _ in range(2): hand.forward(), hand.backward()
    hand.update()
    note("updated", learn)
    learn.train()
    note("end", learn)


# --- changes --------------------------------------------------------------------------------------------------------------

@program
def settings_in_a_run(note):
    "Each setting that is changed, alone, and together, followed by a rewind over it."
    changes = [dict(lr=2e-3), dict(weight_decay=0.2), dict(max_grad_norm=0.1), dict(gradient_accumulation_steps=3), dict(lr_scheduler_type="linear"),
               dict(per_device_train_batch_size=3), dict(warmup_steps=4), dict(num_train_epochs=4), dict(adam_beta1=0.8), dict(logging_steps=1),
               dict(lr=1e-3, weight_decay=0.0, max_steps=20)]
    learn = make(num_train_epochs=10)
    for number, change in enumerate(changes):
        learn.step(2)
        try: learn.set(**change)
        except (ValueError, TypeError) as error: note(f"{number} refused", type(error).__name__)
        learn.step(1)
        note(f"{number} {change}", learn)
    learn.rewind(4)
    note("before", learn)
    learn.train()
    note("end", learn)


@program
def attributes_between_steps(note):
    "What cells assign: rates of groups, args, a weight, an attribute of the data."
    learn = make(callbacks=[Counter()])
    learn.args.learning_rate = 5e-3
    learn.step(2)
    learn.args.max_grad_norm = 0.3
    learn.step(2)
    for group in learn.optimizer.param_groups: group["lr"] = 1e-3
    learn.step(2)
    with torch.no_grad(): learn.model.head.weight.mul_(0.5)
    learn.step(1)
    note("edited", learn)
    learn.model.body[3].p = 0.5
    learn.train_dataset = Rows(20)
    learn.step(2), learn.model.eval(), learn.train()
    note("end", learn)


@program
def frozen_layers(note):
    learn = make()
    learn.freeze("body")
    learn.step(2), note("frozen", learn)
    learn.freeze(eval_mode=True)
    learn.step(2), note("all but the last", learn)
    learn.unfreeze()
    learn.step(2), note("thawed", learn)
    learn.rewind(3), note("rewound", learn)
    learn.freeze("mixer"), learn.train()
    note("end", learn)


@program
def groups_of_layers(note):
    given = dict(layer_groups=["body", ["mixer", "again"], "head"], learning_rate=[1e-3, 3e-3, 1e-2])
    for own in ({}, dict(optimizer_cls_and_kwargs=(torch.optim.SGD, {"momentum": 0.9}))):
        learn = make(**given, **own)
        learn.step(2), learn.set(lr=[1e-4, 1e-3, 2e-2]), learn.step(2)
        note(f"rates {sorted(own)}", learn)
        learn.freeze(0), learn.step(1), learn.unfreeze(), learn.rewind(2), learn.train()
        note(f"end {sorted(own)}", learn)
    learn = make(**given, lr_scheduler_type="constant", warmup_steps=0)
    learn.fit(1), learn.fit_one_cycle(1, [1e-3, 3e-3, 1e-2])
    note("cycle", learn)


class Own(Learner):
    "Overrides of the Trainer's methods, with state, a second optimizer, and a loss that is changed under way."
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.baseline, self.window, self.extra = torch.zeros(()), [], nn.Parameter(torch.ones(1))
        self.second = torch.optim.SGD([self.extra], lr=0.1, momentum=0.9)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)
        if model.training:
            self.baseline.lerp_(loss.detach(), 0.1)
            self.window.append(float(loss.detach()))
            self.window = self.window[-3:]
            self.second.zero_grad()
            (self.extra * loss.detach()).sum().backward()
            self.second.step()
        loss = loss * (1 + 0.1 * self.baseline + 0.01 * sum(self.window) + 0.01 * self.extra.detach().sum())
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model, inputs, num_items_in_batch=None):
        return super().training_step(model, {k: v * 1.01 if v.is_floating_point() else v for k, v in inputs.items()}, num_items_in_batch)

    def create_optimizer(self, model=None):
        if self.optimizer is None: self.optimizer = torch.optim.RMSprop(self.model.parameters(), lr=self.args.learning_rate, momentum=0.5)
        return self.optimizer

    def log(self, logs, start_time=None): super().log(logs | {"baseline": float(self.baseline)}, start_time)


@program
def overrides(note):
    learn = make(Own, eval_dataset=plain_rows(9), eval_strategy="epoch")
    learn.step(3)
    learn.snapshot("here")
    folder = learn.save_checkpoint("here")
    learn.step(3), note("six", learn)
    learn.rewind(2), learn.train()
    note("end", learn), note("own", [learn.baseline, learn.window, learn.extra, learn.second.state_dict()])
    learn.restore("here"), learn.step(3)
    note("restored", learn), note("restored own", [learn.baseline, learn.window, learn.extra, learn.second.state_dict()])
    again = make(Own, eval_dataset=plain_rows(9), eval_strategy="epoch")
    again.load_checkpoint(folder), again.step(3)
    note("resumed", again), note("resumed own", [again.baseline, again.window, again.extra, again.second.state_dict()])


@program
def callbacks(note):
    "Every event with its step, controls that callbacks set, and callbacks that come and go."
    from trainer_nb import EarlyStoppingCallback
    events = ["init_end", "train_begin", "train_end", "epoch_begin", "epoch_end", "step_begin", "substep_end", "pre_optimizer_step", "optimizer_step", "step_end",
              "evaluate", "predict", "save", "log", "prediction_step"]
    class Listens(TrainerCallback):
        not_state = ("heard",)
        def __init__(self): self.heard = []
        def on_epoch_end(self, args, state, control, **kwargs): self.heard.append(("epoch_end", state.global_step)); control.should_evaluate = True
    for event in events:
        if event == "epoch_end": continue
        setattr(Listens, f"on_{event}", lambda self, args, state, control, event=event, **kw: self.heard.append((event, state.global_step, round(state.epoch or 0, 6), sorted(kw))))
    class Acts(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_log |= state.global_step == 3
            control.should_save |= state.global_step == 4
            if state.global_step == 6: control.should_epoch_stop = True
            return control
    listens = Listens()
    learn = make(callbacks=[listens, Acts, Counter()], eval_dataset=plain_rows(9), output_dir="out", num_train_epochs=5)
    learn.step(2), learn.add_callback(Average), learn.step(3)
    learn.remove_callback(Average), learn.predict(plain_rows(5)), learn.train()
    note("end", learn), note("heard", listens.heard)
    learn = make(eval_dataset=plain_rows(9), callbacks=[EarlyStoppingCallback(1, 0.5)], eval_strategy="steps", eval_steps=1, metric_for_best_model="loss")
    learn.train(), note("early", learn)


# --- optimizers and schedules ---------------------------------------------------------------------------------------------

OPTIMS = {"adamw_torch": {}, "sgd": dict(optim_args="momentum=0.9,nesterov=True"), "rmsprop": {}, "adagrad": {}, "adafactor": {}, "lion_32bit": {},
          "ademamix": {}, "muon": dict(optim_target_modules="all-linear"), "schedule_free_adamw": {}, "stable_adamw": {}, "galore_adamw": {}}


@program
def optimizers_by_name(note):
    note("names", [str(getattr(n, "value", n)) for n in trainer_nb.OptimizerNames])
    for name, given in OPTIMS.items():
        try:
            learn = make(optim=name, **given)
            learn.step(4)
            folder = learn.save_checkpoint(f"{name}-4")
            learn.step(2), learn.rewind(2), learn.train()
            note(name, learn)
            again = make(optim=name, **given)
            again.load_checkpoint(folder), again.train()
            note(f"{name} resumed", again)
        except (ImportError, ValueError) as error: note(name, type(error).__name__)


@program
def optimizers_passed_in(note):
    "An optimizer and schedule of the user; LBFGS; an optimizer that wants sparse gradients."
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.NAdam([{"params": net.body.parameters(), "lr": 1e-3}, {"params": net.head.parameters()}], lr=1e-2)
    learn = make(model=net, optimizers=(optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)))
    learn.step(4), learn.rewind(2), learn.train()
    note("passed in", learn)
    class WithSecond(Learner):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            x = inputs["x"].mean(0)
            def closure():
                self.second.zero_grad()
                (loss := (self.extra - x).square().sum()).backward()
                return loss
            self.second.step(closure)
            return super().compute_loss(model, inputs | {"x": inputs["x"] + self.extra.detach()}, return_outputs, num_items_in_batch)
    learn = make(WithSecond)
    learn.extra = nn.Parameter(torch.zeros(4))
    learn.second = torch.optim.LBFGS([learn.extra], lr=0.3, max_iter=3, history_size=3)
    learn.step(3)
    here = learn.snapshot()
    learn.step(2), learn.rewind(1), learn.train()
    note("lbfgs", learn), note("lbfgs own", [learn.extra, learn.second.state_dict()])
    learn.restore(here), learn.step(2)
    note("lbfgs restored", learn), note("lbfgs restored own", [learn.extra, learn.second.state_dict()])
    table = nn.Sequential(nn.EmbeddingBag(20, 4, sparse=True), nn.Linear(4, 2))
    table[1].requires_grad_(False)
    ids = TensorDataset(torch.arange(40).reshape(10, 4) % 20, torch.arange(10) % 2)
    learn = make(model=table, data=ids, loss_func=nn.functional.cross_entropy, max_grad_norm=0.0, optimizer_cls_and_kwargs=(torch.optim.SparseAdam, {"lr": 1e-2}))
    learn.step(3), learn.rewind(1), learn.train()
    note("sparse", learn)


@program
def schedules_by_name(note):
    names = [str(getattr(n, "value", n)) for n in trainer_nb.SchedulerType]
    note("names", names)
    kwargs = {"cosine_with_min_lr": {"min_lr": 1e-4}, "warmup_stable_decay": {"num_decay_steps": 4}, "polynomial": {"power": 2.0}, "cosine_warmup_with_min_lr": {"min_lr": 1e-4},
              "reduce_lr_on_plateau": {"patience": 0}}
    for name in names:
        given = dict(eval_strategy="steps", eval_steps=2, metric_for_best_model="eval_loss", greater_is_better=False) if name in ("reduce_lr_on_plateau", "greedy") else {}
        learn = make(lr_scheduler_type=name, lr_scheduler_kwargs=kwargs.get(name), eval_dataset=plain_rows(9), **given)
        learn.step(5)
        learn.rewind(2)
        learn.step(3)
        folder = learn.save_checkpoint(f"{name}-6")
        learn.train()
        note(name, [rows_of(learn), dict(learn.model.state_dict())])
        again = make(lr_scheduler_type=name, lr_scheduler_kwargs=kwargs.get(name), eval_dataset=plain_rows(9), **given)
        again.load_checkpoint(folder), again.train()
        note(f"{name} resumed", [rows_of(again), dict(again.model.state_dict())])


# --- evaluation, files ----------------------------------------------------------------------------------------------------

class Mean:
    "A metric with a state."
    def __init__(self): self.reset()
    def reset(self): self.sum, self.n = 0.0, 0
    def update(self, predictions, labels): self.sum, self.n = self.sum + float((predictions.argmax(-1) == labels).sum()), self.n + len(labels)
    def compute(self): return self.sum / self.n


@program
def evaluations(note):
    class Kept(Learner):
        def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None): return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
    for cls, given in ((Learner, dict(compute_metrics=accuracy)), (Kept, dict(metrics={"hits": Mean(), "share": lambda p, y: float((p.argmax(-1) == y).float().mean())})),
                       (Learner, dict(batch_eval_metrics=False, prediction_loss_only=True)),
                       (Learner, dict(compute_metrics=accuracy, eval_dataset={"one": plain_rows(7), "two": plain_rows(11)}, preprocess_logits_for_metrics=lambda x, y: x * 2))):
        learn = make(cls, **dict(eval_dataset=plain_rows(13), eval_strategy="epoch", per_device_eval_batch_size=4) | given)
        note("before", learn.evaluate())
        learn.train()
        note(f"{sorted(given)}", learn)
        note(f"{sorted(given)} evaluate", [learn.evaluate(), learn.evaluate(plain_rows(5), metric_key_prefix="five")])
        note(f"{sorted(given)} predict", list(learn.predict(plain_rows(6))))
        note(f"{sorted(given)} after", learn)


@program
def best_model(note):
    for greater, metric in ((False, "loss"), (True, "accuracy")):
        learn = make(eval_dataset=plain_rows(13), compute_metrics=accuracy, eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2, output_dir=f"out-{metric}",
                     load_best_model_at_end=True, metric_for_best_model=metric, greater_is_better=greater, learning_rate=0.1, save_total_limit=2)
        learn.train()
        note(metric, learn), note(f"{metric} folders", sorted(p.name for p in Path(f"out-{metric}").glob("checkpoint-*")))
        learn.set(num_train_epochs=4), learn.train()
        note(f"{metric} longer", learn)
    learn = make(eval_dataset=plain_rows(13), eval_strategy="epoch", save_strategy="best", metric_for_best_model="loss", output_dir="best")
    learn.train()
    note("best", learn), note("best folders", sorted(p.name for p in Path("best").glob("checkpoint-*")))


@program
def files_of_the_trainer(note):
    "Names and bytes of the files that the Trainer knows; a run goes on from them."
    def fresh(folder, **given): return make(model=Net(drop=0.0), data=plain_rows(), eval_dataset=plain_rows(7), eval_strategy="steps", eval_steps=2, save_strategy="steps",
                                            save_steps=2, save_format="trainer", output_dir=folder, callbacks=[trainer_nb.EarlyStoppingCallback(50)],
                                            metric_for_best_model="loss", load_best_model_at_end=True, **given)
    learn = fresh("a")
    learn.train(), learn.save_model("model"), learn.save_state(), learn.save_metrics("eval", {"eval_loss": 0.5})
    note("files", Path("a")), note("model", Path("model"))
    again = fresh("b")
    again.load_checkpoint("a/checkpoint-4"), again.train()
    note("resumed", again), note("resumed files", Path("b"))
    plain = make(output_dir="c", save_strategy="steps", save_steps=3, save_only_model=True)
    plain.train()
    note("only models", Path("c"))


@program
def with_the_trainer(note):
    "Checkpoints of transformers' Trainer are continued here, and those from here by the Trainer."
    import transformers
    def settings(folder): return dict(output_dir=folder, use_cpu=True, disable_tqdm=True, report_to="none", dataloader_pin_memory=False, learning_rate=1e-2, logging_steps=1,
                                      per_device_train_batch_size=8, num_train_epochs=2, save_steps=1, warmup_steps=2, lr_scheduler_type="cosine", weight_decay=0.1)
    rows = plain_rows(50)
    def net():
        torch.manual_seed(0)
        net = Net(drop=0.0)
        net.again = nn.Linear(6, 6)   # the Trainer's files cannot hold one tensor under two names
        return net
    def theirs(folder, resume=None):
        trainer = transformers.Trainer(net(), transformers.TrainingArguments(**settings(folder)), train_dataset=rows)
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train(resume_from_checkpoint=resume)
        return trainer
    like = theirs("theirs")
    note("trainer", dict(like.model.state_dict()))
    for step in (3, 7, 10):
        learn = Learner(net(), train_dataset=rows, save_format="trainer", **settings(f"ours-{step}"))
        learn.load_checkpoint(f"theirs/checkpoint-{step}"), learn.train()
        note(f"from the Trainer at {step}", learn)
        if step == 7: note(f"files from {step}", Path(f"ours-{step}"))
    whole = Learner(net(), train_dataset=rows, save_format="trainer", **settings("ours"))
    whole.train()
    note("here", whole), note("here files", Path("ours"))
    for step in (3, 7): note(f"to the Trainer at {step}", dict(theirs(f"back-{step}", f"ours/checkpoint-{step}").model.state_dict()))


@program
def asynchronous_checkpoints(note):
    "Checkpoints while training goes on; the newest ones are kept; one from a callback; jit."
    class Saves(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs): control.should_save |= state.global_step == 5
    learn = make(output_dir="out", save_strategy="steps", save_steps=2, save_total_limit=3, callbacks=[Saves()])
    learn.train()
    note("run", learn), note("folders", sorted(p.name for p in Path("out").glob("checkpoint-*")))
    note("newest", Path(trainer_nb.get_last_checkpoint("out")).name)
    again = make(output_dir="out")
    again.load_checkpoint(True)
    note("loaded", again)


SCRIPT = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from trainer_nb import Learner
torch.manual_seed(0)
class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.2)), nn.Linear(6, 1)
    def forward(self, x): return self.head(self.body(x))
x = torch.randn(24, 4)
train = TensorDataset(x, x.sum(1, keepdim=True))
net = Small()
learn = Learner(net, train_dataset=train, loss_func=nn.functional.mse_loss, learning_rate=0.01, num_train_epochs=3,
                per_device_train_batch_size=4, warmup_steps=2, use_cpu=True, disable_tqdm=True)
"""


@program
def exported_script(note):
    "A session with changes by hand, exported; the script ends in the same weights."
    from IPython.core.interactiveshell import InteractiveShell
    from safetensors.torch import load_file
    shell = InteractiveShell.instance()
    for cell in [SCRIPT, "learn.step(4)", "learn.set(lr=0.005)\nlearn.step(2)", "learn.freeze('body')\nlearn.step(4)", "learn.unfreeze()\nlearn.step(2)", "learn.rewind(1)",
                 "learn.step(3)", "learn.export_script('train.py')", "learn.export_script('whole.py', train=True)", "learn.train()"]:
        shell.run_cell(cell.strip(), store_history=True).raise_error()
    note("run", shell.user_ns["learn"])
    for name in ("train.py", "whole.py"):
        sys.argv = [name, "--output_dir", name[:-3]]
        runpy.run_path(name, run_name="__main__")
        note(name, load_file(Path(name[:-3], "model.safetensors")))


# --- tools around a run ---------------------------------------------------------------------------------------------------

@program
def tools_leave_no_trace(note):
    "lr_find, inspect, watch, summary, top_losses, confusion, batch_size_find before, between and after steps."
    learn = make(eval_dataset=plain_rows(12), callbacks=[Counter()], compute_metrics=accuracy)
    found = learn.lr_find(num_steps=12, trial_steps=0)
    note("losses", np.asarray(found.losses)), note("suggestions", found.suggestions)
    learn.step(3)
    tried = learn.lr_find(num_steps=10, start=1e-4, end=1.0)
    note("second", [tried.suggestions, np.asarray(tried.losses)])
    learn.inspect(), learn.summary(), learn.show_batch(2), learn.top_losses(3), learn.confusion(), learn.plot(), learn.plot_schedule()
    note("between", learn)
    learn.watch(every=2), learn.step(3), learn.unwatch()
    note("watched", learn.watched.frame().to_csv() if hasattr(learn.watched.frame(), "to_csv") else None)
    learn.predict_one(plain_rows(1)[0]), learn.show_results(2)
    learn.batch_size_find(start=2, most=4, steps=1, seconds=20)
    learn.train()
    note("end", learn)


@program
def search(note):
    import optuna
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rates = {"learning_rate": [1e-3, 3e-2], "weight_decay": [0.0, 0.1]}
    def space(trial): return {name: trial.suggest_categorical(name, values) for name, values in rates.items()}
    learn = make(eval_dataset=plain_rows(12), eval_strategy="epoch", num_train_epochs=2)
    learn.step(2)
    best = learn.hyperparameter_search(space, n_trials=4, sampler=optuna.samplers.GridSampler(rates, seed=0))
    note("best", [best.objective, best.hyperparameters]), note("trials", [(t.params, t.value) for t in best.run_summary.trials])
    learn.train(), note("end", learn)


@program
def in_the_background(note):
    learn = make(callbacks=[Counter()], eval_dataset=plain_rows(9), eval_strategy="epoch")
    handle = learn.start(steps=4)
    handle.wait()
    note("four", learn)
    handle = learn.start(until=lambda r: r.step >= 9)
    with handle.paused(): learn.evaluate()
    handle.wait()
    learn.rewind(2)
    learn.start().wait()
    note("losses", rows_of(learn)), note("weights", dict(learn.model.state_dict()))


# --- models of libraries, precision ---------------------------------------------------------------------------------------

def bert(drop=0.1):
    import transformers
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, max_position_embeddings=24, num_labels=3,
        hidden_dropout_prob=drop))


def gpt2():
    import transformers
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=40, n_positions=24, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0))


def llama():
    import transformers
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=24, pad_token_id=0))


def for_language(rows):
    batch = padded(rows)
    return batch | {"labels": batch["input_ids"].masked_fill(batch["input_ids"] == 0, -100)}


@program
def models_of_transformers(note):
    for name, model, collate, given in (("bert", bert, padded, {}), ("gpt2", gpt2, for_language, {}), ("llama", llama, for_language, dict(gradient_checkpointing=True)),
                                        ("neftune", gpt2, for_language, dict(neftune_noise_alpha=5.0))):
        learn = make(model=model(), data=Lengths, data_collator=collate, num_train_epochs=2, save_format="trainer", output_dir=name, **given)
        learn.step(3), learn.save_checkpoint(f"{name}/checkpoint-3"), learn.rewind(1), learn.train()
        note(name, learn), note(f"{name} files", Path(name))
        learn.save_model(f"{name}-model"), note(f"{name} model", Path(f"{name}-model"))


@program
def generation(note):
    model = gpt2()
    model.config.pad_token_id = model.generation_config.pad_token_id = 0
    learn = make(model=model, data=Lengths, data_collator=for_language, eval_dataset=Lengths(5), predict_with_generate=True, num_train_epochs=2, eval_strategy="epoch",
                 generation_max_length=14, per_device_eval_batch_size=1)
    learn.train()
    note("run", learn), note("predict", list(learn.predict(Lengths(4), max_length=12)))


@program
def adapters(note):
    import peft
    def lora():
        base = gpt2()
        torch.manual_seed(1)
        return peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM", lora_dropout=0.1))
    learn = make(model=lora(), data=Lengths, data_collator=for_language, output_dir="out", save_format="trainer")
    learn.step(3), learn.rewind(1), learn.step(1), learn.save_checkpoint("out/checkpoint-3"), learn.train()
    note("run", learn), note("files", Path("out"))
    learn.save_model("model"), note("model", Path("model"))
    again = make(model=lora(), data=Lengths, data_collator=for_language)
    again.load_checkpoint("out/checkpoint-3"), again.train()
    note("resumed", again)


@program
def half_precision(note):
    for given in (dict(bf16=True), dict(bf16=True, bf16_full_eval=True)):
        learn = make(eval_dataset=plain_rows(9), eval_strategy="epoch", **given)
        learn.step(4), learn.rewind(2), learn.train()
        note(str(given), learn)
    learn = make(model=Net().to(torch.bfloat16), data=[{"x": r["x"].bfloat16(), "labels": r["labels"]} for r in plain_rows()])
    learn.step(4), learn.rewind(1), learn.train()
    note("weights", learn)


class Words:
    "A tokenizer with what collators need."
    pad_token_id, mask_token, mask_token_id, padding_side, pad_token, all_special_ids = 0, "[MASK]", 31, "right", "[PAD]", [0, 31]
    is_fast, model_input_names, name_or_path, vocab_size = True, ["input_ids", "attention_mask"], "words", 32
    def __len__(self): return 32
    def get_special_tokens_mask(self, ids, already_has_special_tokens=False): return [int(i in (0, 31)) for i in ids]
    def convert_tokens_to_ids(self, token): return 31 if token == "[MASK]" else 1
    def pad(self, rows, padding=True, max_length=None, pad_to_multiple_of=None, return_tensors=None, **kwargs):
        rows = rows if isinstance(rows, list) else [dict(zip(rows, v)) for v in zip(*rows.values())]
        n = max(len(r["input_ids"]) for r in rows)
        n += -n % (pad_to_multiple_of or 1)
        batch = {"input_ids": torch.tensor([list(r["input_ids"]) + [0] * (n - len(r["input_ids"])) for r in rows])}
        batch["attention_mask"] = (batch["input_ids"] > 0).long()
        return batch | {k: torch.tensor([r[k] for r in rows]) for k in rows[0] if k not in ("input_ids", "attention_mask")}


@program
def collators_of_texts(note):
    words = Words()
    rows = [{"input_ids": Lengths()[i]["input_ids"]} for i in range(20)]
    learn = make(model=gpt2(), data=rows, data_collator=trainer_nb.DataCollatorForLanguageModeling(words, mlm_probability=0.3), num_train_epochs=2)
    learn.step(2), learn.rewind(1), learn.train()
    note("masks", learn)
    for name, collator, data in (
            ("causal", trainer_nb.DataCollatorForLanguageModeling(words, mlm=False), rows), ("flat", trainer_nb.DataCollatorWithFlattening(), rows),
            ("padded", trainer_nb.DataCollatorWithPadding(words, pad_to_multiple_of=4), rows),
            ("tokens", trainer_nb.DataCollatorForTokenClassification(words), [r | {"labels": r["input_ids"]} for r in rows]),
            ("seq2seq", trainer_nb.DataCollatorForSeq2Seq(words), [r | {"labels": r["input_ids"][:2]} for r in rows])):
        torch.manual_seed(3)
        note(name, dict(collator([dict(r) for r in data[:5]])))


# --- several processes ----------------------------------------------------------------------------------------------------

@program
def two_processes(note):
    learn = make(eval_dataset=plain_rows(9), eval_strategy="epoch", compute_metrics=accuracy, num_train_epochs=2, callbacks=[Counter()])
    learn.step(1)
    learn.launch(2)
    learn.step(1), learn.set(lr=5e-3), learn.step(1)
    note("evaluated", learn.evaluate())
    learn.rewind(1), learn.step(2)
    learn.save_checkpoint("here")
    learn.close()
    note("five", learn)
    learn.train(), note("at home", learn)
    again = make(eval_dataset=plain_rows(9), eval_strategy="epoch", compute_metrics=accuracy, num_train_epochs=2, callbacks=[Counter()])
    again.launch(2), again.load_checkpoint("here"), again.train(), again.close()
    note("resumed", again)


@program
def two_processes_that_train(note):
    for given in (dict(), dict(keep_global_batch=True)):
        learn = make(model=Bag(), data=Lengths(30), data_collator=padded, num_train_epochs=2)
        out = learn.launch(2, train=True, **given)
        note(str(given), learn), note(f"{given} out", [out.global_step, out.training_loss])
    learn = make(data=Stream, max_steps=6)
    learn.launch(2, train=True), note("stream", learn)


@program
def failing_processes(note):
    "A step that fails in one of two processes, and an interrupt-free continuation."
    class OneFails(Rows):
        def __getitem__(self, i):
            import os
            if self.count == 9 and os.environ.get("RANK") == "1": self.count += 1; raise Boom("getitem")
            return super().__getitem__(i)
    learn = make(data=OneFails, num_train_epochs=2)
    learn.launch(2)
    failures = 0
    for _ in range(8):
        try: learn.step(1)
        except (Boom, RuntimeError): failures += 1
        if learn.state.global_step >= 6: break
    learn.close()
    note("failures", failures), note("run", learn)

"""What a branch copies and what it shares: the objects that a loss, a callback, a collator or a metric refer to.

A branch goes on as its run does, byte for byte, and its steps do not change the run that it came from.
"""
import dataclasses, functools, hashlib, os, threading, types, warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from trainer_nb import InvalidOperation, Learner, TrainerCallback

pytestmark = pytest.mark.usefixtures("one_thread")


def rows(n=32):
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(0))
    return [(a, (a[0] > a[1]).long()) for a in x]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.outer, self.drop = nn.Linear(4, 8), nn.Linear(8, 2), nn.Dropout(0.1)
        self.alpha, self.cfg = 1.0, {"scale": 1.0}
    def forward(self, x): return self.outer(self.drop(torch.tanh(self.inner(x)))) * self.cfg["scale"]
    def penalized(self, outputs, labels): return penalized(self, outputs, labels) * self.alpha


def penalized(model, outputs, labels): return cross_entropy(outputs, labels) + 0.1 * model.inner.weight.pow(2).sum()


def learner(model=None, cls=Learner, **given):
    torch.manual_seed(0)
    settings = dict(train_dataset=rows(), eval_dataset=rows(8), loss_func=cross_entropy, learning_rate=1e-2, max_steps=20, optim="sgd",
                    lr_scheduler_type="constant", use_cpu=True, disable_tqdm=True)
    # a warning names settings that have no effect
    if "optimizer_cls_and_kwargs" in given: del settings["optim"]
    return cls(model if model is not None else Net(), **settings | given)


def weights(learn): return hashlib.sha256(torch.cat([p.detach().flatten() for p in learn.model.parameters()]).numpy().tobytes()).hexdigest()


def check(make, steps=(3, 5)):
    "A run without a branch, a run that continues after its branch, and the branch, in turns, end in the same bytes."
    first, rest = steps
    straight = make()
    straight.step(first + rest)
    learn = make()
    if first: learn.step(first)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = learn.branch()
        for _ in range(rest):
            other.step()
            learn.step()
    assert weights(other) == weights(straight), "the branch is another run"
    assert weights(learn) == weights(straight), "the branch has changed the run"
    return learn, other


# --- losses that read the model ----------------------------------------------------------------------------------------

class Penalty:
    "A loss that holds the model or a part of it."
    def __init__(self, model): self.model, self.layer, self.weight = model, model.inner, model.inner.weight
    def __call__(self, outputs, labels): return penalized(self.model, outputs, labels) + self.layer.bias.sum() + self.weight.mean()
    def other(self, outputs, labels): return self(outputs, labels)


@dataclasses.dataclass
class Slots:
    model: nn.Module
    def __call__(self, outputs, labels): return penalized(self.model, outputs, labels)


HOLD = {
    "method": lambda m: m.penalized, "partial": lambda m: functools.partial(penalized, m), "object": Penalty, "method of an object": lambda m: Penalty(m).other,
    "partial of a method": lambda m: functools.partial(m.penalized), "keyword": lambda m: functools.partial(lambda o, t, model: penalized(model, o, t), model=m),
    "dataclass": Slots, "list in a partial": lambda m: functools.partial(lambda held, o, t: penalized(held[0], o, t), [m]),
}

@pytest.mark.parametrize("kind", HOLD)
def test_a_loss_that_holds_the_model(kind):
    def make():
        model = Net()
        return learner(model, loss_func=HOLD[kind](model))
    learn, other = check(make)
    assert other.loss_func is not learn.loss_func


def test_attributes_of_a_subclass_that_are_methods_of_the_model():
    class Mine(Learner):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            outputs = model(inputs["x"])
            loss = self.criterion(outputs, inputs["labels"]) + self.penalty()
            return (loss, outputs) if return_outputs else loss
    def make():
        learn = learner(cls=Mine, loss_func=None, train_dataset=[{"x": x, "labels": y} for x, y in rows()])
        learn.criterion = learn.model.penalized
        learn.penalty = functools.partial(torch.mean, learn.model.outer.weight)
        return learn
    check(make)


def test_options_of_the_optimizer_that_hold_parameters():
    def make():
        model = Net()
        groups = [{"params": [*model.inner.parameters()], "lr": 0.02}, {"params": [*model.outer.parameters()]}]
        return learner(model, optimizer_cls_and_kwargs=(torch.optim.SGD, {"params": groups, "lr": 0.01}))
    learn, other = check(make)
    assert all(any(p is q for q in other.model.parameters()) for group in other.optimizer.param_groups for p in group["params"])


# --- functions, which are the same in both -----------------------------------------------------------------------------

THE = {}

def through_a_global(outputs, labels): return penalized(THE["model"], outputs, labels)


class Global:
    "A loss with a method that reads a global of its module."
    def __call__(self, outputs, labels): return through_a_global(outputs, labels)


def with_default(model):
    def loss(outputs, labels, net=model): return penalized(net, outputs, labels)
    return loss


def with_an_object(model):
    held = Penalty(model)
    return lambda outputs, labels: held(outputs, labels)


def with_a_parameter(model):
    weight = model.inner.weight
    return lambda outputs, labels: cross_entropy(outputs, labels) + weight.pow(2).sum()


READ = {
    "closure": lambda m: lambda o, t: penalized(m, o, t), "default": with_default, "global": lambda m: through_a_global, "object": with_an_object,
    "parameter": with_a_parameter, "in a partial": lambda m: functools.partial(lambda f, o, t: penalized(m, o, t), 1),
    "in an object": lambda m: types.SimpleNamespace(f=lambda o, t: penalized(m, o, t)).f, "class": lambda m: Global(),
}

@pytest.mark.parametrize("kind", READ)
def test_a_function_that_reads_the_model_is_refused(kind):
    "Its weights would be those of the run; the error says what to write, and the run goes on."
    def make():
        model = THE["model"] = Net()
        return learner(model, loss_func=READ[kind](model))
    straight = make()
    straight.step(5)
    learn = make()
    learn.step(3)
    events = len(learn.history.events)
    with pytest.raises(InvalidOperation, match="loss_func.*the model.*method of the model.*functools.partial"): learn.branch()
    learn.step(2)
    assert weights(learn) == weights(straight) and len(learn.history.events) == events


def test_a_function_that_reads_the_learner_is_refused():
    held = []
    learn = learner(loss_func=lambda outputs, labels: cross_entropy(outputs, labels) * (1 + held[0].state.global_step))
    held.append(learn)
    learn.step(2)
    with pytest.raises(InvalidOperation, match="loss_func.* the learner"): learn.branch()


def test_a_compute_loss_that_reads_another_model_than_its_own_is_refused():
    class Mine(Learner):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            outputs = model(inputs["x"])
            loss = penalized(THE["model"], outputs, inputs["labels"])
            return (loss, outputs) if return_outputs else loss
    THE["model"] = Net()
    learn = learner(THE["model"], cls=Mine, loss_func=None, train_dataset=[{"x": x, "labels": y} for x, y in rows()])
    learn.step(2)
    with pytest.raises(InvalidOperation, match="Mine.compute_loss reads the model"): learn.branch()


def test_a_hook_that_reads_the_model_is_refused():
    learn = learner()
    model = learn.model
    model.inner.register_forward_hook(lambda module, inputs, out: out * model.alpha)
    learn.step(2)
    with pytest.raises(InvalidOperation, match="hook.*inner.*the model"): learn.branch()


def test_functions_beside_the_training_are_named_in_a_warning():
    "The metrics and the collator may read no more than a setting of the model."
    model = Net()
    learn = learner(model, compute_metrics=lambda p: {"alpha": model.alpha})
    learn.step(2)
    with pytest.warns(UserWarning, match="compute_metrics.*the model"): other = learn.branch()
    other.step(), other.evaluate()


def test_plain_functions_are_shared_without_a_word():
    scale = torch.tensor([1.0, 2.0])
    learn, other = check(lambda: learner(loss_func=lambda outputs, labels: cross_entropy(outputs, labels, scale)))
    check(lambda: learner(compute_metrics=lambda p: {"mean": float(scale.mean())}))


def test_data_that_a_function_shares_with_a_callback_is_named():
    class Ramp(TrainerCallback):
        def __init__(self, cfg): self.cfg = cfg
        def on_step_end(self, args, state, control, **kwargs): self.cfg["w"] *= 0.7
    cfg = {"w": 1.0}
    learn = learner(loss_func=lambda outputs, labels: cross_entropy(outputs, labels) * cfg["w"], callbacks=[Ramp(cfg)])
    learn.step(2)
    with pytest.warns(UserWarning, match="loss_func.*a dict.*class with __call__"): learn.branch()


# --- state in losses, metrics and collators ----------------------------------------------------------------------------

class Warm:
    "A loss whose weight falls with each call."
    def __init__(self): self.calls, self.alpha = 0, 1.0
    def __call__(self, outputs, labels, num_items_in_batch=None):
        self.calls += 1
        return cross_entropy(outputs, labels) * self.alpha * 0.9 ** self.calls


class Scaled:
    def __init__(self, held): self.held = held
    def __call__(self, outputs, labels): return cross_entropy(outputs, labels) * read(self.held)


class Decay(TrainerCallback):
    "Changes the object that it has in common with another part of the run."
    def __init__(self, held): self.held = held
    def on_step_end(self, args, state, control, **kwargs): write(self.held, 0.7 * read(self.held))


class Config:
    def __init__(self): self.w = 1.0


@dataclasses.dataclass
class Options:
    w: float = 1.0


def read(held): return held["w"] if isinstance(held, dict) else held[0] if isinstance(held, list) else held if isinstance(held, torch.Tensor) else held.w


def write(held, value):
    if isinstance(held, torch.Tensor): held.copy_(value)
    elif isinstance(held, dict): held["w"] = value
    elif isinstance(held, list): held[0] = value
    else: held.w = value


COMMON = {"dict": lambda: {"w": 1.0}, "list": lambda: [1.0], "object": Config, "dataclass": Options, "namespace": lambda: types.SimpleNamespace(w=1.0),
          "tensor": lambda: torch.tensor(1.0), "tensor in a list": lambda: [torch.tensor(1.0)]}

@pytest.mark.parametrize("kind", COMMON)
@pytest.mark.parametrize("place", ["loss", "partial", "collator", "dataset", "metric"])
def test_an_object_in_common_with_a_callback(kind, place):
    if place == "dataset" and "tensor" in kind or (place, kind) == ("dataset", "list"): pytest.skip("the data of a data set are shared")
    def make():
        held = COMMON[kind]()
        parts = {"loss": lambda: dict(loss_func=Scaled(held)), "partial": lambda: dict(loss_func=functools.partial(scaled, held)),
                 "collator": lambda: dict(data_collator=Shifts(held)), "dataset": lambda: dict(train_dataset=Noisy(held)),
                 "metric": lambda: dict(compute_metrics=Counts(held))}[place]()
        return learner(callbacks=[Decay(held)], **parts)
    learn, other = check(make)
    callback = next(c for c in other.callback_handler.callbacks if isinstance(c, Decay))
    holder = {"loss": lambda: other.loss_func, "collator": lambda: other.data_collator, "dataset": lambda: other.train_dataset,
              "metric": lambda: other.compute_metrics, "partial": lambda: types.SimpleNamespace(held=other.loss_func.args[0])}[place]()
    assert holder.held is callback.held


def scaled(held, outputs, labels): return Scaled(held)(outputs, labels)


class Shifts:
    def __init__(self, held): self.held = held
    def __call__(self, batch):
        return torch.stack([x for x, _ in batch]) + read(self.held), torch.stack([y for _, y in batch])


class Noisy(torch.utils.data.Dataset):
    def __init__(self, held): self.rows, self.held = rows(), held
    def __len__(self): return len(self.rows)
    def __getitem__(self, i): return self.rows[i][0] + read(self.held), self.rows[i][1]


class Counts:
    def __init__(self, held=None): self.held, self.calls = held, 0
    def __call__(self, prediction):
        self.calls += 1
        return {"calls": self.calls}


def test_metrics_and_preprocessing_with_state():
    class Keeps:
        def __init__(self): self.calls = 0
        def __call__(self, logits, labels):
            self.calls += 1
            return logits
    learn = learner(compute_metrics=Counts(), preprocess_logits_for_metrics=Keeps())
    learn.step(2)
    other = learn.branch()
    assert other.evaluate()["eval_calls"] == 1 and learn.evaluate()["eval_calls"] == 1
    assert learn.preprocess_logits_for_metrics.calls == other.preprocess_logits_for_metrics.calls == 1


def test_a_collator_with_settings():
    "Numbers and containers are copied, the tokenizer and the data set are shared."
    class Tokenizer: pass
    Tokenizer.__module__ = "transformers.made_up"
    class Collator(Shifts):
        def __init__(self): self.held, self.tokenizer, self.data, self.table, self.name = {"w": 0.0}, Tokenizer(), torch.utils.data.TensorDataset(torch.ones(3)), torch.ones(5000), "a"
    learn, other = check(lambda: learner(data_collator=Collator()))
    ours, theirs = learn.data_collator, other.data_collator
    theirs.held["w"], theirs.name = 1.0, "b"
    assert ours.held == {"w": 0.0} and ours.name == "a"
    assert ours.tokenizer is theirs.tokenizer and ours.data is theirs.data and ours.table is theirs.table
    learn = learner(data_collator=functools.partial(collate, tokenizer=ours.tokenizer, cfg={"w": 0.0}))
    learn.step()
    ours, theirs = learn.data_collator, learn.branch().data_collator
    assert ours.keywords["tokenizer"] is theirs.keywords["tokenizer"] and ours.keywords["cfg"] is not theirs.keywords["cfg"]


def collate(batch, tokenizer, cfg): return Shifts(cfg)(batch)


def test_a_collator_that_is_a_method():
    class Mine(Learner):
        shift = 0.0
        def collate(self, batch): return Shifts([self.shift])(batch)
    learn = learner(cls=Mine)
    learn.data_collator = learn.collate
    learn.step()
    assert learn.branch().data_collator.__self__ is not learn


def test_what_cannot_be_copied_is_shared():
    "An open file or a lock in a loss; the rest of the loss is copied."
    class Locked(Warm):
        def __init__(self): super().__init__(); self.lock = threading.Lock()
    learn, other = check(lambda: learner(loss_func=Locked()))
    assert learn.loss_func is not other.loss_func and learn.loss_func.lock is other.loss_func.lock
    class Refuses(Warm):
        def __deepcopy__(self, memo): raise TypeError("no copy")
    learn = learner(loss_func=Refuses())
    learn.step()
    with pytest.warns(UserWarning, match="Refuses cannot be copied.*no copy.*shares it"): other = learn.branch()
    assert other.loss_func is learn.loss_func
    class Reads(Penalty):
        def __deepcopy__(self, memo): raise TypeError("no copy")
    model = Net()
    learn = learner(model, loss_func=Reads(model))
    learn.step()
    with pytest.raises(InvalidOperation, match="loss_func holds the model.*no copy"): learn.branch()


def test_a_part_of_an_object_that_could_not_be_copied_is_no_half():
    "A loss that refers to a callback which is shared refers to the whole callback."
    class Writes(TrainerCallback):
        def __init__(self, helper): self.helper, self.alpha = helper, 1.0
        def on_step_end(self, args, state, control, **kwargs): pass
    class Helper:
        def __init__(self): self.factor, self.file = 2.0, open(os.devnull)
    class Loss:
        def __init__(self, callback): self.callback = callback
        def __call__(self, outputs, labels): return cross_entropy(outputs, labels) * self.callback.alpha * self.callback.helper.factor
    callback = Writes(Helper())
    learn = learner(loss_func=Loss(callback), callbacks=[callback])
    learn.step()
    with pytest.warns(UserWarning, match="Writes cannot be copied"): other = learn.branch()
    other.step()


# --- data sets ---------------------------------------------------------------------------------------------------------

def test_the_data_are_shared_and_the_settings_of_a_data_set_are_not():
    class Transform:
        def __init__(self): self.p, self.calls = 0.5, 0
    class Data(Noisy):
        def __init__(self): super().__init__({"w": 0.0}); self.rows, self.x, self.transform, self.mode = rows(2000), torch.ones(30_000), Transform(), "easy"
    learn, other = check(lambda: learner(train_dataset=Data(), eval_dataset={"a": Data(), "b": rows(8)}))
    for ours, theirs in ((learn.train_dataset, other.train_dataset), (learn.eval_dataset["a"], other.eval_dataset["a"])):
        assert ours.rows is theirs.rows and ours.x is theirs.x
        theirs.held["w"], theirs.transform.p, theirs.mode = 1.0, 0.1, "hard"
        assert ours.held == {"w": 0.0} and ours.transform.p == 0.5 and ours.mode == "easy"
    assert learn.eval_dataset["b"] is other.eval_dataset["b"]


def test_a_data_set_that_reads_the_model():
    class Data(Noisy):
        def __init__(self, model): super().__init__([0.0]); self.model = model
        def __getitem__(self, i):
            x, y = super().__getitem__(i)
            return x + self.model.inner.weight.detach().mean(), y
    def make():
        model = Net()
        return learner(model, train_dataset=Data(model))
    check(make)


def test_a_loader_with_a_collator_that_counts():
    class Collate:
        calls = 0
        def __call__(self, batch):
            self.calls += 1
            return Shifts([0.1 * self.calls])(batch)
    def make():
        collate = Collate()
        collate.calls = 0
        return learner(train_dataset=torch.utils.data.DataLoader(rows(), batch_size=8, collate_fn=collate))
    check(make)


# --- searches ----------------------------------------------------------------------------------------------------------

def test_the_trials_of_a_search_have_losses_of_their_own():
    pytest.importorskip("optuna")
    def make():
        model = Net()
        return learner(model, loss_func=Penalty(model), max_steps=4)
    learn = make()
    learn.step(2)
    trained = []
    class Watches(TrainerCallback):
        def on_train_end(self, args, state, control, learner=None, **kwargs): trained.append((learner.loss_func.model is learner.model, weights(learner)))
    learn.add_callback(Watches())
    learn.hyperparameter_search(lambda trial: {"learning_rate": trial.suggest_categorical("learning_rate", [0.01])}, n_trials=1)
    straight = make()
    straight.train()
    assert trained == [(True, weights(straight))]


def test_a_search_with_model_init_names_a_loss_that_holds_the_present_model():
    pytest.importorskip("optuna")
    learn = learner(max_steps=4)
    learn = Learner(model_init=Net, train_dataset=rows(), eval_dataset=rows(8), max_steps=4, use_cpu=True, disable_tqdm=True, loss_func=cross_entropy)
    learn.step()
    learn.loss_func = Penalty(learn.model)
    with pytest.raises(InvalidOperation, match="loss_func.*the model.*model_init"):
        learn.hyperparameter_search(lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-2)}, n_trials=1)

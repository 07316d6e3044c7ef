"Corners that users find: gradients of their own, data replaced on the way, odd outputs, odd buffers, odd settings."
import dataclasses

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import SequentialSampler, TensorDataset, WeightedRandomSampler

from trainer_nb import Learner, TrainerCallback, differences
from trainer_nb.core.errors import InvalidOperation

X = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > X[:, 1]).long()


class Net(nn.Module):
    not_state = ("fails",)
    def __init__(self):
        super().__init__()
        self.body, self.head, self.fails = nn.Linear(4, 8), nn.Linear(8, 2), False
    def forward(self, x):
        out = self.head(self.body(x).relu())
        if self.fails: raise ArithmeticError("in the model")
        return out


def make(model=None, cls=Learner, **given):
    torch.manual_seed(0)
    return cls(Net() if model is None else model(), **{"train_dataset": TensorDataset(X, Y), "loss_func": nn.functional.cross_entropy, "learning_rate": 0.05,
               "use_cpu": True, "disable_tqdm": True} | given)


def same(a, b): return differences(a.snapshot(), b.snapshot()) == []


# --- between two steps -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("before", [0, 3])
def test_gradients_of_the_users_own(before):
    "A backward between two steps is none of the next step's."
    like, learn = make(), make()
    like.step(before + 2)
    if before: learn.step(before)
    learn.model(X).sum().backward()
    learn.step(2)
    assert same(like, learn)


def test_a_longer_training_set_on_the_way():
    "The run is as long as its epochs are now, and the schedule goes on to its new end."
    learn = make(num_train_epochs=2)
    learn.step(4)
    learn.train_dataset = TensorDataset(X.repeat(4, 1), Y.repeat(4))
    learn.step()
    assert learn.state.max_steps == 4 + (256 - 32) // 8 + 32 and learn.history[-1].learning_rate > 0.04
    learn.train()
    rates = learn.history.column("learning_rate")
    assert len(rates) == 64 and (np.diff(rates[4:]) < 0).all() and rates[-1] < 0.002   # as a schedule of 64 steps has it


def test_a_shorter_training_set_on_the_way():
    "The place in its last epoch is behind its end, so the run is over, and says so."
    learn = make(num_train_epochs=2)
    learn.step(10)
    learn.train_dataset = TensorDataset(X[:16], Y[:16])
    assert learn.train().global_step == 10 and learn.run_state.finished
    with pytest.raises(InvalidOperation, match="finished after step 10 of 10"): learn.step()
    learn.set(num_train_epochs=3)
    assert learn.train().global_step == 12


@pytest.mark.parametrize("event, refused", [("on_step_begin", True), ("on_pre_optimizer_step", True), ("on_step_end", False), ("on_log", False)])
def test_parts_that_a_callback_replaces(event, refused):
    "In the middle of a step it is refused; after it, it is done at the boundary."
    class Replaces(TrainerCallback): done, not_state = False, ("done",)
    def act(self, args, state, control, learner, **kwargs):
        if state.global_step == 1 and not self.done:
            self.done = True
            learner.train_dataset = TensorDataset(X[:32], Y[:32])
    setattr(Replaces, event, act)
    learn = make(callbacks=[Replaces()], logging_steps=1, max_steps=8)
    if refused:
        with pytest.raises(InvalidOperation, match="train_dataset cannot be replaced in the middle of a step"): learn.train()
    learn.train()
    assert learn.state.global_step == 8 and len(learn.train_dataset) == (64 if refused else 32)


def test_an_optimizer_that_is_set_before_the_first_step():
    "The schedule that was made for the old one goes with it; one of the user's own is refused."
    learn = make(max_steps=5)
    learn.snapshot()   # prepares
    learn.optimizer = torch.optim.SGD(learn.model.parameters(), lr=1.0)
    assert learn.step(5).learning_rate == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])
    learn = make(max_steps=5)
    learn.lr_scheduler = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(learn.model.parameters(), lr=1.0), 1)
    with pytest.raises(ValueError, match="schedule was made for another optimizer"): learn.step()


@pytest.mark.parametrize("number", [np.float32(0.01), np.float64(0.01), torch.tensor(0.01)])
def test_rates_that_are_numpys_numbers(number):
    learn, like = make(), make()
    learn.step(2), like.step(2)
    learn.set(lr=number), like.set(lr=float(number))
    assert type(learn.optimizer.param_groups[0]["lr"]) is float
    snap = learn.snapshot()
    learn.train(), like.train()
    assert same(learn, like)
    learn.restore(snap)
    assert differences(snap, learn.snapshot()) == []


def test_epochs_where_steps_count():
    learn = make(max_steps=4)
    learn.train()
    with pytest.raises(InvalidOperation, match=r"learn.set\(max_steps=...\) extends"): learn.step()
    with pytest.raises(ValueError, match=r"max_steps=4 counts; learn.set\(max_steps=-1, num_train_epochs=3\)"): learn.set(num_train_epochs=3)
    learn.set(max_steps=-1, num_train_epochs=3)
    assert learn.train().global_step == 24


def test_inference_mode():
    "Refused at once, so nothing is made there that would not work later."
    learn = make()
    with torch.inference_mode():
        for verb in (learn.step, learn.train, learn.debug_step):
            with pytest.raises(InvalidOperation, match=r"torch.inference_mode\(\)"): verb()
    like = make()
    like.train(), learn.train()
    assert same(like, learn)


# --- predicting ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("data", [X, list(X), TensorDataset(X), [(x,) for x in X]], ids=["tensor", "list", "TensorDataset", "tuples"])
def test_predict_without_labels(data):
    "With a loss function, too: what stands alone is an input."
    learn = make()
    learn.step()
    out = learn.predict(data)
    assert out.predictions.shape == (64, 2) and out.label_ids is None and "test_loss" not in out.metrics
    assert np.array_equal(out.predictions, learn.predict(TensorDataset(X, Y)).predictions)


@pytest.mark.parametrize("data", [X, TensorDataset(X)], ids=["tensors", "tuples of one"])
def test_an_autoencoder(data):
    "Trained on inputs alone, each is its own label, before and after."
    learn = make(lambda: nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 4)), train_dataset=data, eval_dataset=data, loss_func=nn.functional.mse_loss)
    before = learn.evaluate()["eval_loss"]
    learn.train()
    assert learn.evaluate()["eval_loss"] < before


@dataclasses.dataclass
class Out:
    logits: torch.Tensor
    loss: torch.Tensor | None = None


def test_a_model_that_returns_a_dataclass():
    class Model(Net):
        def forward(self, x, labels=None):
            logits = super().forward(x)
            return Out(logits, None if labels is None else nn.functional.cross_entropy(logits, labels))
    rows = [{"x": x, "labels": int(y)} for x, y in zip(X, Y)]
    learn = make(Model, train_dataset=rows, loss_func=None)
    learn.step()
    assert learn.predict(rows).predictions.shape == (64, 2)


def test_labels_that_are_words():
    "Joined over the batches, like tensors."
    rows = [{"x": x, "labels": int(y), "id": f"n{i}"} for i, (x, y) in enumerate(zip(X, Y))]
    class Named(Learner):
        def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
            ids = inputs.pop("id")
            loss, logits, labels = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
            return loss, logits, (labels, ids)
    def collate(rows): return {"x": torch.stack([r["x"] for r in rows]), "labels": torch.tensor([r["labels"] for r in rows]), "id": [r["id"] for r in rows]}
    learn = make(cls=Named, data_collator=collate, remove_unused_columns=False)
    labels, ids = learn.predict(rows[:62]).label_ids
    assert ids == [f"n{i}" for i in range(62)] and len(labels) == 62


def test_outputs_that_cannot_be_joined():
    class Odd: pass
    class Model(Net):
        def forward(self, x, labels=None):
            logits = super().forward(x)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits, "odd": Odd()}
    rows = [{"x": x, "labels": int(y)} for x, y in zip(X, Y)]
    learn = make(Model, train_dataset=rows, loss_func=None)
    with pytest.raises(TypeError, match="returned a Odd beside the loss.*ignore_keys"): learn.predict(rows)
    assert learn.predict(rows, ignore_keys=["odd"]).predictions.shape == (64, 2)


# --- data --------------------------------------------------------------------------------------------------------------

def test_samplers_that_a_subclass_brings():
    "As one writes them for the Trainer."
    class Weighted(Learner):
        def _get_train_sampler(self, train_dataset=None): return WeightedRandomSampler([0.0] * 32 + [1.0] * 32, 64)
        def _get_eval_sampler(self, eval_dataset): return SequentialSampler(range(10))
    rows = [{"x": x, "labels": int(y), "number": i} for i, (x, y) in enumerate(zip(X, Y))]
    seen = []
    def collate(rows):
        seen.extend(r["number"] for r in rows)
        return torch.stack([r["x"] for r in rows]), torch.tensor([r["labels"] for r in rows])
    learn = make(cls=Weighted, train_dataset=rows, data_collator=collate, remove_unused_columns=False, num_train_epochs=1)
    learn.train()
    assert len(seen) == 64 and min(seen) >= 32
    assert learn.predict(rows).predictions.shape == (10, 2)


def test_a_transform_that_reads_a_column_the_model_does_not_take():
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"image": X.tolist(), "label": Y.tolist()})
    data = data.with_transform(lambda rows: {"x": [torch.tensor(o) for o in rows["image"]], "labels": rows["label"], "image": rows["image"]})
    class Model(Net):
        def forward(self, x, labels=None):
            logits = super().forward(x)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}
    learn = make(Model, train_dataset=data, loss_func=None)
    assert learn.step(3)[-1].loss > 0


def test_a_metric_that_is_nan_is_not_the_best():
    values = iter([float("nan"), 0.5, 0.6, float("nan"), 0.4])
    learn = make(eval_dataset=TensorDataset(X, Y), compute_metrics=lambda p: {"score": next(values)}, eval_strategy="steps", eval_steps=2, max_steps=10,
                 metric_for_best_model="score", greater_is_better=True)
    learn.train()
    assert learn.state.best_metric == 0.6 and learn.state.best_global_step == 6


# --- odd tensors -----------------------------------------------------------------------------------------------------------

def test_a_state_that_belongs_to_no_parameter():
    class Keeps(torch.optim.SGD):
        def step(self, closure=None):
            self.state["rounds"] = {"n": 1}
            return super().step(closure)
    learn = make(optimizer_cls_and_kwargs=(Keeps, {"lr": 0.1}))
    learn.step(2)
    with pytest.raises(TypeError, match="Keeps keeps a state for .*, which is not one of its parameters"): learn.snapshot()


def test_a_buffer_that_is_an_expanded_view():
    "It cannot be written into, so it is made anew where it has to be put back; the learner is not stuck."
    class Expanded(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.ones(1, 8).expand(4, 8))
        def forward(self, x): return super().forward(x) * self.mask[0, 0]
    learn, like = make(Expanded, eval_dataset=TensorDataset(X, Y)), make(Expanded)
    learn.step(2)
    learn.evaluate()
    snap = learn.snapshot()
    learn.model.fails = True
    for verb in (learn.step, learn.evaluate):
        with pytest.raises(ArithmeticError): verb()
    learn.model.fails = False
    learn.step(2)
    learn.restore(snap)
    learn.train(), like.train()
    assert same(like, learn)

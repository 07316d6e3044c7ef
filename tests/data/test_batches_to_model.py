"How data gets to the model, what the moves are called with, and that verbs which only look draw no numbers of the user's."
import random

import numpy as np
import pytest, torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, WeightedRandomSampler

from trainer_nb import Learner
from trainer_nb.device.strategy import Strategy
from trainer_nb.data.collate import to_device
from trainer_nb.core.seeding import set_seed
from toys import Augmented, collate, hard_learner


# --- to the device -----------------------------------------------------------------------------------------------------

@pytest.fixture
def sent(monkeypatch):
    "A stand-in for a GPU: what was sent to it, as (pinned, without waiting)."
    found, pinned = [], set()
    def pin_memory(t):
        copy = t.clone()
        pinned.add(id(copy)); kept.append(copy)
        return copy
    kept = []
    def to(t, device, non_blocking=False):
        found.append((id(t) in pinned, non_blocking))
        return t
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda t: id(t) in pinned)
    monkeypatch.setattr(torch.Tensor, "to", to)
    return found


def test_batches_go_to_a_gpu_through_pinned_memory(sent):
    gpu = torch.device("cuda", 0)
    to_device({"x": torch.zeros(3), "more": [torch.ones(2), "text"]}, gpu, pin=True)
    assert sent == [(True, True)] * 2
    to_device(torch.zeros(3).pin_memory(), gpu)
    assert sent.pop() == (True, True)
    to_device(torch.zeros(3), gpu)
    assert sent.pop() == (False, False)


@pytest.mark.parametrize("pin", [True, False])
def test_the_setting_decides_for_every_kind_of_data(sent, pin):
    "Also for an iterable, which no loader could pin. The number of labels is always sent without waiting."
    learn = hard_learner(dataloader_pin_memory=pin, compute_loss_func=lambda outputs, labels, num_items_in_batch: outputs["logits"].sum())
    learn.run_state.device = type("Device", (), {"device": torch.device("cuda", 0), "strategy": Strategy(None)})()
    learn._prepare_inputs((torch.zeros(3), torch.zeros(2)))
    assert sent == [(pin, pin)] * 2
    assert learn.count_items([{"labels": torch.tensor([1, -100, 2])}, {"labels": torch.tensor([-100])}]) == 2
    assert sent[2:] == [(True, True)]


def test_on_a_cpu_a_batch_stays_what_it_is(sent):
    batch = [torch.zeros(3)]
    assert to_device(batch, torch.device("cpu"), pin=True)[0] is batch[0] and sent == []


# --- whose numbers they are --------------------------------------------------------------------------------------------

def weighted_learner():
    "Its loader has a sampler of its own, that draws from the global generator."
    loader = DataLoader(Augmented(), batch_size=4, sampler=WeightedRandomSampler([1.0] * 29 + [9.0], 30), collate_fn=collate)
    return hard_learner(train_dataset=loader, warmup_steps=0)


def draws(): return torch.rand(3).tolist() + np.random.rand(3).tolist() + [random.random(), random.gauss(0, 1)]


@pytest.mark.parametrize("look", [
    lambda learn: learn.snapshot(), lambda learn: learn.set(lr=1e-3), lambda learn: learn.set(max_steps=9), lambda learn: learn.reset(),
    lambda learn: learn.summary(), lambda learn: learn.show_batch(), lambda learn: learn.evaluate(Augmented(8))],
    ids="snapshot set_lr set_steps reset summary show_batch evaluate".split())
@pytest.mark.parametrize("steps", [0, 4])
def test_the_users_draws_are_the_same_with_and_without(look, steps):
    learn = weighted_learner()
    if steps: learn.step(steps)
    set_seed(3); want = draws()
    set_seed(3); look(learn)
    assert draws() == want


def test_going_back_draws_nothing_either():
    "Back into another epoch, whose plan is made anew."
    learn = weighted_learner()
    first = learn.snapshot()
    learn.step(4)
    set_seed(3); want = draws()
    set_seed(3); learn.restore(first)
    assert draws() == want
    learn.step(2)
    set_seed(3); learn.set(num_train_epochs=4)
    assert draws() == want


# --- the summary -------------------------------------------------------------------------------------------------------

class Stream(IterableDataset):
    def __init__(self, n): self.n = n
    def __iter__(self): return iter([{"x": torch.zeros(4), "labels": 0}] * self.n)


def test_the_summary_starts_no_data_workers(monkeypatch):
    from trainer_nb.data.sources import DataWorkers
    monkeypatch.setattr(DataWorkers, "begin", lambda self: pytest.fail("data workers were started"))
    rows = hard_learner(dataloader_num_workers=2).summary()
    assert rows[0]["output"] == (4, 8)


def test_the_summary_of_a_learner_whose_data_gives_nothing():
    rows = hard_learner(train_dataset=Stream(0), data_collator=None, max_steps=3).summary()
    assert [r["layer"] for r in rows] == ["inner", "norm", "outer", "slow"] and {r["output"] for r in rows} == {None}


# --- the order of the data ---------------------------------------------------------------------------------------------

def test_the_order_has_one_seed():
    "Of the loader, of the run's feed, and of what show_batch shows."
    learn = hard_learner(seed=1, data_seed=2)
    assert learn.args.order_seed == 2 and hard_learner(seed=1).args.order_seed == 1
    assert learn.get_train_dataloader().sampler.seed == 2
    same, other = hard_learner(seed=1, data_seed=2), hard_learner(seed=1)
    assert torch.equal(learn.show_batch().batch["x"], same.show_batch().batch["x"])
    assert not torch.equal(learn.show_batch().batch["x"], other.show_batch().batch["x"])


# --- what compute_loss is called with ----------------------------------------------------------------------------------

class Items(nn.Module):
    "Divides by the labels of the whole window where it is told their number."
    def __init__(self): super().__init__(); self.layer = nn.Linear(4, 3)
    def forward(self, x, labels, num_items_in_batch=None, **kwargs):
        total = nn.functional.cross_entropy(self.layer(x), labels, reduction="sum")
        return {"loss": total / (len(labels) if num_items_in_batch is None else num_items_in_batch)}


class Any(Learner):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs): return super().compute_loss(model, inputs, return_outputs, **kwargs)


class Older(Learner):
    def compute_loss(self, model, inputs, return_outputs=False): return super().compute_loss(model, inputs, return_outputs)


def loss_of_first_step(cls):
    torch.manual_seed(0)
    learn = hard_learner(cls, model=Items(), train_dataset=[{"x": torch.randn(4), "labels": i % 3} for i in range(24)], data_collator=None)
    return float(learn.step()[0].loss)


@pytest.mark.parametrize("cls", [Any, Older])
def test_overrides_of_compute_loss_in_every_style(cls):
    "With **kwargs the number of items comes along, as in the Trainer; without, each micro-batch gives its part of a mean."
    assert loss_of_first_step(cls) == pytest.approx(loss_of_first_step(Learner), rel=1e-5)


def test_the_override_is_asked_without_the_model():
    "What compute_loss takes does not hang on whether anybody has asked for the model's facts."
    def no_model(): raise AssertionError("the model was made")
    assert Learner(model_init=no_model).loss_takes_items and not Older(model_init=no_model).loss_takes_items

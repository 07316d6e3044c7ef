"Rows of tensors that are fetched with one call are those that a collator stacks, byte for byte."
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset, default_collate, random_split

from trainer_nb import Learner
from trainer_nb.data import sources
from trainer_nb.data.collate import RemoveColumns, default_data_collator
from trainer_nb.data.sources import is_default_collator, stack_rows

KINDS = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.uint8, torch.bool, torch.complex64]


class OneByOne(TensorDataset):
    "The same data of another type, so that its samples are fetched one by one."


def of_kind(kind, *shape):
    values = torch.randn(*shape, dtype=torch.float64) * 50
    return values > 0 if kind is torch.bool else values.abs().to(kind) if kind is torch.uint8 else values.to(kind)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_batch_is_the_one_that_is_stacked(kind):
    tensors = [of_kind(kind, 9), of_kind(kind, 9, 3), of_kind(kind, 9, 2, 0), of_kind(kind, 9, 3, 4, 4)]
    data = TensorDataset(*tensors)
    for indices in ([4], [8, 0, 3, 3], list(range(9))):
        found, want = stack_rows(data, indices), default_collate([data[i] for i in indices])
        assert type(found) is type(want) is list and len(found) == len(want)
        for a, b in zip(found, want):
            assert a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()
            assert a.reshape(-1).view(torch.uint8).equal(b.reshape(-1).view(torch.uint8)) if a.numel() else not b.numel()
            assert not a.is_shared() and a.untyped_storage().data_ptr() not in {t.untyped_storage().data_ptr() for t in tensors if t.numel()}


class Tagged(torch.Tensor): pass


@pytest.mark.parametrize("tensor", [
    torch.randn(9, 3).as_subclass(Tagged), torch.randn(9, 3, requires_grad=True), torch.randn(3, 9).t(),
    torch.randn(9, 2, 4, 4).to(memory_format=torch.channels_last), torch.randn(9, 3).to_sparse(), torch.empty(9, 3, device="meta"),
], ids=["subclass", "gradient", "transposed", "channels last", "sparse", "meta"])
def test_what_could_come_out_otherwise_is_fetched_one_by_one(tensor):
    assert stack_rows(TensorDataset(tensor), [1, 2]) is None
    assert stack_rows(TensorDataset(torch.zeros(9), tensor), [1, 2]) is None


def test_which_data_and_which_collators():
    data = TensorDataset(torch.arange(10), torch.randn(10, 2))
    part = Subset(Subset(data, [9, 7, 5, 3]), [2, 0])
    assert stack_rows(part, [1, 0])[0].tolist() == [9, 5] == default_collate([part[1], part[0]])[0].tolist()
    for other in (OneByOne(torch.arange(10)), [(1, 2)], Subset([(1, 2)], [0])): assert stack_rows(other, [0]) is None
    for bad in ([10], [-1], [-11], ["a"], [None]): assert stack_rows(data, bad) is None
    assert is_default_collator(default_collate) and is_default_collator(default_data_collator)
    assert is_default_collator(RemoveColumns(default_data_collator, {"x"}))
    assert not is_default_collator(lambda samples: default_collate(samples))


class Noted(nn.Module):
    "A network with dropout."
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    def forward(self, x): return self.layers(x)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_is_the_same(split, workers, monkeypatch):
    "Losses, weights, evaluations, and numbers that are drawn in the callbacks of a step; interrupted in the middle of an epoch, too."
    from trainer_nb import TrainerCallback
    class Draws(TrainerCallback):
        not_state = ("drawn",)
        def __init__(self): self.drawn = []
        def on_step_begin(self, args, state, control, **kwargs):
            self.drawn.append((torch.rand(()).item(), random.random(), np.random.rand()))
    gen = torch.Generator().manual_seed(3)
    x, labels = torch.randn(37, 3, generator=gen), torch.randint(2, (37,), generator=gen)
    def run(kind, steps):
        stacked.clear()
        torch.manual_seed(0)
        data = kind(x, labels)
        train, held = random_split(data, [29, 8], generator=torch.Generator().manual_seed(1)) if split else (data, data)
        learn = Learner(Noted(), train_dataset=train, eval_dataset=held, loss_func=nn.functional.cross_entropy, callbacks=[draws := Draws()],
                        per_device_train_batch_size=4, num_train_epochs=2, seed=5, dataloader_num_workers=workers, use_cpu=True,
                        report_to="none", disable_tqdm=True)
        for n in steps: learn.step(n)
        learn.rewind(2)
        learn.train()
        return learn, draws.drawn
    stacked = []
    def noted(*given):
        stacked.append(found := stack_rows(*given))
        return found
    monkeypatch.setattr(sources, "stack_rows", noted)
    fast, drawn = run(TensorDataset, (3, 2))
    # in workers, the calls are theirs
    assert workers or len(stacked) >= len(fast.history) and None not in stacked
    slow, drawn_one_by_one = run(OneByOne, (3, 2))
    assert not any(stacked)
    assert [r.loss for r in fast.history] == [r.loss for r in slow.history] and drawn == drawn_one_by_one
    for (name, a), b in zip(fast.model.state_dict().items(), slow.model.state_dict().values()): assert a.equal(b), name
    assert fast.evaluate()["eval_loss"] == slow.evaluate()["eval_loss"]


def test_a_tensor_that_is_exchanged_or_too_short_is_seen():
    data = TensorDataset(torch.zeros(6, 3), torch.zeros(6, dtype=torch.long))
    learn = Learner(Noted(), train_dataset=data, loss_func=nn.functional.cross_entropy, per_device_train_batch_size=6, max_steps=9,
                    use_cpu=True, report_to="none", disable_tqdm=True)
    learn.step()
    data.tensors = (torch.zeros(6, 3), torch.zeros(2, dtype=torch.long))
    with pytest.raises(IndexError, match="TensorDataset raised IndexError.*for sample"): learn.step()
    data.tensors = (torch.ones(6, 3), torch.ones(6, dtype=torch.long))
    learn.step()
    assert learn.state.global_step == 2

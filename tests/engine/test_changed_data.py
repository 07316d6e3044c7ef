"""Training data that a cell or a callback changes in place: samples that are appended or removed.

The order of an epoch was made for the former length, so new samples would never be trained on, and the run would end too early."""
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from trainer_nb import Learner, TrainerCallback, differences

X = torch.randn(96, 4, generator=torch.Generator().manual_seed(0))


class Seen(nn.Module):
    "A layer that keeps the numbers of the samples it was trained on."
    not_state = ("seen",)
    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Linear(4, 1), []
    def forward(self, x, number=None, labels=None):
        if self.training: self.seen.append(number.tolist())
        return {"loss": self.layer(x).square().mean()}


def rows(start, end): return [{"x": X[i], "number": i, "labels": 0} for i in range(start, end)]


class Held(Dataset):
    "A data set that holds its samples in a list."
    def __init__(self, n): self.samples = rows(0, n)
    def __len__(self): return len(self.samples)
    def __getitem__(self, i): return self.samples[i]


class Stream(IterableDataset):
    def __init__(self, n): self.samples = rows(0, n)
    def __len__(self): return len(self.samples)
    def __iter__(self): return iter(list(self.samples))


KINDS = {
    "list": lambda n: (data := rows(0, n), data), "data set": lambda n: (data := Held(n), data.samples), "stream": lambda n: (data := Stream(n), data.samples),
    "loader": lambda n: (DataLoader(data := Held(n), batch_size=4, sampler=RandomSampler(data)), data.samples),
}


def make(data, **given):
    torch.manual_seed(0)
    settings = dict(num_train_epochs=3, learning_rate=0.01, use_cpu=True, disable_tqdm=True) | ({} if isinstance(data, DataLoader) else dict(per_device_train_batch_size=4))
    return Learner(Seen(), train_dataset=data, **settings | given)


def numbers(learn, first, last): return sorted(i for batch in learn.model.seen[first:last] for i in batch)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_that_are_appended_between_epochs_are_trained_on(kind):
    data, samples = KINDS[kind](16)
    learn = make(data)
    learn.run(epochs=1)
    samples += rows(16, 24)
    with pytest.warns(UserWarning, match="has 24 samples now, and had 16"): learn.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.train()
    assert learn.state.global_step == 4 + 6 + 6 and learn.state.epoch == 3
    assert numbers(learn, 4, 10) == numbers(learn, 10, 16) == list(range(24))
    rates = [r.learning_rate for r in learn.history]
    assert rates[4:] == sorted(rates[4:], reverse=True) and rates[-1] > 0


@pytest.mark.parametrize("kind", ["list", "data set", "loader"])
def test_samples_that_are_removed_are_no_error(kind):
    data, samples = KINDS[kind](24)
    learn = make(data)
    learn.step(2)
    del samples[16:]
    with pytest.warns(UserWarning, match="has 16 samples now, and had 24"): learn.train()
    assert learn.state.global_step == 4 + 4 + 4 and numbers(learn, 4, 8) == numbers(learn, 8, 12) == list(range(16))


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_that_a_callback_appends_for_the_next_epoch(workers):
    data = Held(16)
    class Grows(TrainerCallback):
        def on_epoch_begin(self, args, state, control, train_dataloader=None, **kwargs):
            if state.epoch == 1: train_dataloader.dataset.samples += rows(16, 24)
    learn = make(data, callbacks=[Grows()], dataloader_num_workers=workers, dataloader_persistent_workers=bool(workers))
    with pytest.warns(UserWarning, match="has 24 samples now"): learn.train()
    assert learn.state.global_step == 16 and numbers(learn, 4, 10) == numbers(learn, 10, 16) == list(range(24))


def test_a_run_with_more_samples_is_exact():
    "Split at any step; resumed from a checkpoint with the longer data; and restored."
    def grown(*steps):
        data = Held(16)
        learn = make(data)
        learn.step(2)
        data.samples += rows(16, 24)
        with pytest.warns(UserWarning): learn.step()
        for n in steps: learn.step(n)
        return learn
    whole = grown()
    whole.train()
    learn = grown(1, 2)
    snapshot = learn.snapshot()
    learn.step(3)
    learn.restore(snapshot)
    learn.train()
    assert [d for d in differences(learn.snapshot(), whole.snapshot()) if "attributes" not in d] == []


def test_a_checkpoint_of_a_run_with_more_samples(tmp_path):
    data = Held(16)
    learn = make(data, output_dir=str(tmp_path))
    learn.step(2)
    data.samples += rows(16, 24)
    with pytest.warns(UserWarning): learn.step(3)
    learn.save_checkpoint()
    again = make(Held(24), output_dir=str(tmp_path))
    again.load_checkpoint(tmp_path / "checkpoint-5")
    learn.train(), again.train()
    assert again.model.seen == learn.model.seen[5:] and torch.equal(again.model.layer.weight, learn.model.layer.weight)


def test_the_change_is_in_the_journal():
    data = Held(16)
    learn = make(data)
    learn.step(2)
    data.samples += rows(16, 24)
    with pytest.warns(UserWarning): learn.step()
    assert [(e["step"], e["act"]) for e in learn.history.journal()] == [(2, "by hand"), (2, "train_dataset")]


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_that_are_appended_to_an_evaluation_set_are_evaluated(workers):
    data = Held(8)
    learn = make(Held(16), eval_dataset=data, dataloader_num_workers=workers, dataloader_persistent_workers=bool(workers), per_device_eval_batch_size=4)
    first = learn.evaluate()["eval_loss"]
    data.samples += rows(8, 24)
    assert learn.evaluate()["eval_loss"] == pytest.approx(make(Held(16), eval_dataset=Held(24), per_device_eval_batch_size=4).evaluate()["eval_loss"])
    assert learn.evaluate()["eval_loss"] != first
    learn.free()

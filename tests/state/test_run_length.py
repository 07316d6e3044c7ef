"""The number of steps and epochs of a run that goes on with another batch size, accumulation or other data: after branch, restore,
rewind, reset and a resume it is that of a run that had these settings from the beginning, for the epochs that are left."""
import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from trainer_nb import Learner


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)
    def forward(self, x, labels=None): return {"loss": self.layer(x).square().mean()}


class Rows(torch.utils.data.Dataset):
    def __init__(self, size=32): self.size = size
    def __len__(self): return self.size
    def __getitem__(self, i): return {"x": torch.tensor([float(i)]), "labels": 0}


def make(data=None, **given):
    torch.manual_seed(0)
    size = {} if isinstance(data, DataLoader) else {"per_device_train_batch_size": 4}
    settings = dict(num_train_epochs=3, learning_rate=0.1, logging_steps=0.25, use_cpu=True, disable_tqdm=True, report_to="none",
                    save_strategy="no", rewind_every=1)
    return Learner(Net(), train_dataset=data or Rows(), **settings | size | given)


def check(learn, at, per_epoch, left=0, epochs=3, done=1):
    "Train to the end, and check the length: the steps that are left of this epoch, and the whole epochs after it."
    steps = at + left + (epochs - done) * per_epoch
    assert (learn.state.global_step, learn.state.max_steps, learn.state.num_train_epochs) == (at, steps, epochs)
    assert learn.state.logging_steps == math.ceil(steps / 4)
    learn.train()
    assert (learn.state.global_step, learn.state.epoch) == (steps, epochs)
    rates = learn.history.column("learning_rate")[at - steps:]
    assert rates.tolist() == pytest.approx([0.1 * (steps - step) / steps for step in range(at, steps)])


SETTINGS = {   # steps of an epoch, and what is left of the first epoch after 3 steps of 4 samples
    "larger batches": ({"per_device_train_batch_size": 8}, 4, 3), "smaller batches": ({"per_device_train_batch_size": 2}, 16, 10),
    "accumulation": ({"gradient_accumulation_steps": 2}, 4, 3),
    "both": ({"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}, 4, 3),
}

@pytest.mark.parametrize("how", ["branch", "branch and set"])
@pytest.mark.parametrize("at", [0, 3, 8])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_branch_with_other_batches(name, at, how):
    changes, per_epoch, left = SETTINGS[name]
    learn = make()
    if at: learn.step(at)
    other = learn.branch(**changes) if how == "branch" else learn.branch()
    if how == "branch and set": other.set(**changes)
    check(other, at, per_epoch, {0: per_epoch, 3: left, 8: 0}[at])
    assert learn.state.max_steps == 24


@pytest.mark.parametrize("how", ["branch", "branch and set"])
def test_a_branch_of_a_finished_run(how):
    learn = make()
    learn.train()
    changes = {"num_train_epochs": 5, "per_device_train_batch_size": 8}
    other = learn.branch(**changes) if how == "branch" else learn.branch()
    if how == "branch and set": other.set(**changes)
    check(other, 24, 4, epochs=5, done=3)


def test_the_epochs_of_a_run_with_max_steps():
    "The steps that are done were of another size."
    learn = make(max_steps=20)
    learn.step(8)
    other = learn.branch(per_device_train_batch_size=8)
    assert other.state.max_steps == 20 and other.state.num_train_epochs == 4
    other.train()
    assert other.state.epoch == 4


@pytest.mark.parametrize("at", [0, 3, 8])
def test_a_branch_with_other_data(at):
    learn = make()
    if at: learn.step(at)
    other = learn.branch()
    other.train_dataset = Rows(64)
    other.evaluate(Rows(4))   # prepares it
    other.snapshot("a")
    check(other, at, 16, {0: 16, 3: 13, 8: 0}[at])


@pytest.mark.parametrize("size", [16, 64])
def test_going_back_after_the_data_were_replaced(size):
    "The present data are counted, and their attributes stay; a rewind would need the former ones."
    learn = make()
    learn.step(8)
    learn.snapshot("a")
    learn.step(2)
    learn.train_dataset = data = Rows(size)
    with pytest.raises(ValueError, match="train_dataset"): learn.rewind(to=8)
    learn.restore("a")
    assert data.size == size
    check(learn, 8, size // 4)


def test_a_run_begins_anew_after_the_data_were_replaced():
    learn = make()
    learn.step(10)
    learn.train_dataset = Rows(64)
    learn.reset()
    check(learn, 0, 16, 16)


@pytest.mark.parametrize("at", [3, 8])
def test_a_resumed_run(tmp_path, at):
    learn = make(output_dir=str(tmp_path))
    learn.step(at)
    path = learn.save_checkpoint()
    learn.free()
    other = make(Rows(64), output_dir=str(tmp_path), per_device_train_batch_size=8, gradient_accumulation_steps=2)
    other.load_checkpoint(path)
    check(other, at, 4, {3: 4, 8: 0}[at])


@pytest.mark.parametrize("size", [4, 8])
def test_a_resumed_run_that_would_be_over_names_the_fewest_epochs(tmp_path, size):
    "Also with other batches, of which an epoch has another number."
    learn = make(output_dir=str(tmp_path))
    learn.step(12)
    path = learn.save_checkpoint()
    def resume(epochs): make(output_dir=str(tmp_path), per_device_train_batch_size=size, num_train_epochs=epochs).load_checkpoint(path)
    with pytest.raises(ValueError, match="num_train_epochs=1, and the run has done 12 steps; give num_train_epochs=2 or more"): resume(1)
    with pytest.raises(ValueError, match="num_train_epochs=1, .* give num_train_epochs=2 or more"): learn.set(num_train_epochs=1)
    learn.free()
    resume(2)


def test_a_method_of_the_user_that_gives_too_few_steps():
    class Own(Learner):
        def set_initial_training_values(self, args, dataloader):
            *rest, steps = super().set_initial_training_values(args, dataloader)
            return *rest, 5 if args.per_device_train_batch_size == 8 else steps
    learn = Own(Net(), train_dataset=Rows(), per_device_train_batch_size=4, use_cpu=True, disable_tqdm=True)
    learn.step(12)
    with pytest.raises(ValueError, match="give 5 steps, and the run has done 12 steps; give max_steps=12 or more"):
        learn.set(per_device_train_batch_size=8)

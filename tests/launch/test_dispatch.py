"""dispatch_batches=True: rank 0 reads for all processes. The batches, the losses and the weights are those of a run whose processes read for
themselves, and the other processes never touch the data."""
import os

import pytest, torch
from torch.utils.data import Dataset, IterableDataset

from trainer_nb import Learner

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("launch")]


def sample(i):
    x = torch.randn(4, generator=torch.Generator().manual_seed(i)) + 0.01 * torch.randn(4)   # the second part: drawn from the run's generator
    return x, (x.sum() > 0).long()


class OfRankZero:
    "Data that only rank 0 can read, if `alone` is set."
    def __init__(self, alone, n=21): self.alone, self.n = alone, n
    def check(self):
        if self.alone and os.environ.get("RANK", "0") != "0": raise OSError("this process cannot read the data")


class Map(OfRankZero, Dataset):
    def __len__(self): return self.n
    def __getitem__(self, i):
        self.check()
        return sample(i)


class Stream(OfRankZero, IterableDataset):
    def __iter__(self):
        self.check()
        return map(sample, range(self.n))


class Batches(OfRankZero):
    "Not a data set: an iterable of ready batches."
    def __iter__(self):
        self.check()
        for i in range(0, self.n, 2): yield tuple(torch.stack(part) for part in zip(*map(sample, range(i, min(i + 2, self.n)))))


class OwnLoader(Learner):
    def get_train_dataloader(self): return self.train_dataset


KINDS = {"map": Map, "stream": Stream, "batches": Batches}


def make(kind, alone, dispatch, **settings):
    torch.manual_seed(0)
    cls = OwnLoader if kind == "batches" else Learner
    settings = {"max_steps": 9, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "learning_rate": 0.1, "use_cpu": True, "disable_tqdm": True,
                "accelerator_config": {"dispatch_batches": dispatch}} | settings
    return cls(torch.nn.Linear(4, 2), train_dataset=KINDS[kind](alone), loss_func=torch.nn.functional.cross_entropy, **settings)


@pytest.mark.parametrize("kind, workers", [("map", 0), ("stream", 0), ("batches", 0), pytest.param("map", 2, marks=pytest.mark.slow),
                                           pytest.param("stream", 1, marks=pytest.mark.slow)])
def test_the_batches_are_the_same_and_only_rank_0_reads(kind, workers):
    own, dispatched = (make(kind, alone, alone, dataloader_num_workers=workers) for alone in (False, True))
    own.launch(2, train=True)
    with dispatched.launch(2):
        dispatched.step(5)
        dispatched.rewind(2)
        dispatched.train()
    assert [r.loss for r in own.history] == [r.loss for r in dispatched.history if not r.abandoned]
    assert torch.equal(own.model.weight, dispatched.model.weight)


def test_an_error_of_reading_ends_the_step_in_all_processes():
    class Broken(Stream):
        def __iter__(self):
            yield from map(sample, range(9))
            raise OSError("the disk is gone")
    learn = make("stream", True, True)
    learn.train_dataset = Broken(True)
    with learn.launch(2):
        with pytest.raises(Exception, match="the disk is gone"): learn.train()


def test_without_it_each_process_reads():
    learn = make("map", True, False)
    with learn.launch(2):
        with pytest.raises(Exception, match="cannot read the data"): learn.train()

"A StopIteration that is not the end of the data is an error that names where it came from, and the step can be taken again."
import functools, re

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from toys import Augmented, collate, finish, hard_learner, unequal


class Breaks:
    "A hook that raises StopIteration from some time on that its place is passed, in any process, until it is mended."
    def __init__(self, place, folder, at=3):
        self.place, self.flag, self.at, self.count = place, folder / "broken", at, 0
        self.flag.touch()

    def __call__(self, place):
        if place != self.place: return
        self.count += 1
        if self.count >= self.at and self.flag.exists(): next(iter(()))

    def mend(self): self.flag.unlink()


class Bare(Dataset):
    "A data set of ready batches, for a loader without batches of its own."
    def __init__(self, hook): self.rows = Augmented(hook=hook)
    def __len__(self): return 8
    def __getitem__(self, i): return collate([self.rows[j] for j in range(4 * i, min(4 * i + 4, 30))])


class Many(Augmented):
    def __getitems__(self, indices): return [self[i] for i in indices]


class Stream(IterableDataset):
    def __init__(self): self.rows = Augmented()
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        for i in range(info.id if info else 0, 30, info.num_workers if info else 1): yield self.rows[i]


def loader(hook, workers): return DataLoader(Bare(hook), batch_size=None, num_workers=workers)


PARTS = {"sample": lambda hook: dict(train_dataset=Augmented(hook=hook)), "samples at once": lambda hook: dict(train_dataset=Many(hook=hook)),
         "collator": lambda hook: dict(data_collator=functools.partial(collate, hook=hook)),
         "collator of a stream": lambda hook: dict(train_dataset=Stream(), data_collator=functools.partial(collate, hook=hook), max_steps=6)}
PLACES = {"sample": "getitem", "samples at once": "getitem", "collator": "collate", "collator of a stream": "collate"}
NAMES = {"sample": r"Augmented raised it for sample \d+\.", "samples at once": r"Many raised it for one of the samples \[",
         "collator": "data_collator raised it for the samples|in DataLoader worker process", "collator of a stream": "data_collator raised it"}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("part", PARTS)
def test_an_error_and_the_same_step_again(tmp_path, part, workers):
    given = dict(dataloader_num_workers=workers)
    want = finish(hard_learner(**PARTS[part](lambda place: None) | given))
    learn = hard_learner(**PARTS[part](breaks := Breaks(PLACES[part], tmp_path)) | given)
    with pytest.raises(RuntimeError, match="does not mean the end of the data") as error: learn.train()
    assert re.search(NAMES[part], str(error.value)) and (not workers or "worker" in str(error.value))
    breaks.mend()
    assert unequal(finish(learn), want) == []


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_of_ready_batches(tmp_path, workers):
    def steps(hook): return hard_learner(train_dataset=loader(hook, workers), data_collator=None, gradient_accumulation_steps=1)
    learn, whole = steps(breaks := Breaks("getitem", tmp_path, at=10)), steps(lambda place: None)
    with pytest.raises(RuntimeError, match="does not mean the end of the data"): learn.train()
    assert learn.state.global_step == 2
    breaks.mend()
    learn.train()
    whole.train()
    assert learn.state.global_step == whole.state.global_step == 16 and len(learn.history) == 16


@pytest.mark.parametrize("workers", [0, 2])
def test_in_an_evaluation(tmp_path, workers):
    learn = hard_learner(eval_dataset=Augmented(10, hook=(breaks := Breaks("getitem", tmp_path))), dataloader_num_workers=workers)
    with pytest.raises(RuntimeError, match="raised it for sample"): learn.evaluate()
    breaks.mend()
    assert learn.evaluate()["eval_loss"] > 0


def test_in_a_workers_first_steps(tmp_path):
    "An init function of a loader of the user's own."
    def begin(number): next(iter(()))
    data = DataLoader(Augmented(), batch_size=4, collate_fn=collate, num_workers=1, worker_init_fn=begin)
    learn = hard_learner(train_dataset=data, data_collator=None)
    with pytest.raises(RuntimeError, match="worker process 0"): learn.step()

"""A transform that is set on a data set after the learner has made its loader: the loader may read a copy of the data set."""
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset

from trainer_nb import Learner

datasets = pytest.importorskip("datasets")


class Seen(nn.Module):
    not_state = ("seen",)
    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Linear(1, 1), []
    def forward(self, x, labels=None):
        self.seen.append(x.flatten().tolist())
        return {"loss": self.layer(x).square().mean()}


class Rows(Dataset):
    "As torchvision's data sets are."
    def __init__(self): self.transform = None
    def __len__(self): return 16
    def __getitem__(self, i):
        x = torch.tensor([float(i)])
        return {"x": x if self.transform is None else self.transform(x), "labels": 0}


class Collate:
    def __init__(self): self.shift = 0
    def __call__(self, rows): return {"x": torch.stack([r["x"] for r in rows]) + self.shift, "labels": torch.zeros(len(rows))}


def add(x): return x + 100
def add_to_columns(batch): return {"x": torch.as_tensor(batch["x"]) + 100.0, "labels": torch.as_tensor(batch["labels"])}
def table(**more): return datasets.Dataset.from_dict({"x": [[float(i)] for i in range(16)], "labels": [0] * 16} | more)


def make(data, **given):
    torch.manual_seed(0)
    settings = dict(max_steps=8, per_device_train_batch_size=2, per_device_eval_batch_size=32, use_cpu=True, disable_tqdm=True, report_to="none",
                    save_strategy="no")
    return Learner(Seen(), train_dataset=data, eval_dataset=data, **settings | given)


CASES = {
    "table": (table, lambda data: data.set_transform(add_to_columns)),
    "table with another column": (lambda: table(other=list(range(16))), lambda data: data.set_transform(add_to_columns)),
    "data set": (Rows, lambda data: setattr(data, "transform", add)),
    "subset": (lambda: Subset(Rows(), range(15, -1, -1)), lambda data: setattr(data.dataset, "transform", add)),
    "several": (lambda: ConcatDataset([Rows(), Rows()]), lambda data: [setattr(d, "transform", add) for d in data.datasets]),
}

@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_a_transform_applies_to_the_next_batch(case, workers):
    "The samples and their order are those of a run without it, and all that follow are transformed."
    make_data, change = CASES[case]
    settings = dict(dataloader_num_workers=workers, dataloader_persistent_workers=bool(workers), dataloader_prefetch_factor=4 if workers else None)
    plain = make(make_data(), **settings)
    plain.step(5)
    data = make_data()
    learn = make(data, **settings)
    learn.step(2)
    learn.evaluate()
    del learn.model.seen[-1]
    change(data)
    learn.step(3)
    assert learn.model.seen == [[v + 100 * (i > 1) for v in batch] for i, batch in enumerate(plain.model.seen)]
    learn.model.seen.clear()
    learn.evaluate()
    assert min(learn.model.seen[0]) == 100


def test_a_format_applies_to_the_next_batch():
    "A column that set_format selects is converted; the columns that it leaves out are missing, as an error says."
    data = table()
    learn = make(data)
    learn.step(2)
    data.set_format("numpy")
    assert learn.run_state.loader.loader.dataset.format["type"] is None
    learn.step(1)
    assert learn.run_state.loader.loader.dataset.format["type"] == "numpy"


def test_a_transform_that_is_set_after_a_verb_that_has_prepared_the_run():
    data = table()
    learn = make(data)
    learn.snapshot("a")
    data.set_transform(add_to_columns)
    learn.step(1)
    assert min(learn.model.seen[0]) >= 100


def test_an_attribute_of_the_collator_reaches_the_workers():
    learn = make(Rows(), data_collator=Collate(), dataloader_num_workers=1)
    learn.step(2)
    learn.data_collator.shift = 100
    learn.step(1)
    assert [min(batch) >= 100 for batch in learn.model.seen] == [False, False, True]


def test_the_change_is_in_the_journal_once():
    data = table()
    learn = make(data, rewind_every=1)
    learn.step(2)
    data.set_transform(add_to_columns)
    learn.step(1)
    learn.step(1)
    assert [e["data"]["changed"] for e in learn.history.events if e["kind"] == "by hand"] == [["train_dataset"]]


class Epochs(Rows):
    "A data set that keeps the epoch."
    def set_epoch(self, epoch): self.epoch = epoch

def test_attributes_that_the_run_changes_are_no_change():
    "The workers stay, and nothing is in the journal."
    learn = make(Epochs(), dataloader_num_workers=1, dataloader_persistent_workers=True, max_steps=20)
    learn.step(7)
    loader = learn.run_state.loader
    for _ in range(4): learn.step(3)
    assert learn.run_state.loader is loader and not [e for e in learn.history.events if e["kind"] == "by hand"]


def test_a_transform_that_does_not_reach_other_processes_is_reported():
    data = table()
    learn = make(data)
    with learn.launch(1):
        learn.step(1)
        data.set_transform(add_to_columns)
        with pytest.warns(UserWarning, match="does not reach the 1 processes"): learn.step(1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            learn.step(1)
    learn.step(1)
    assert min(learn.model.seen[-1]) >= 100

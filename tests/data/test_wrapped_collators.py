"""A collator with a seed of its own masks the same tokens at the same position of a run, however user code calls it."""
import functools

import pytest
import torch
from torch import nn

from trainer_nb import DataCollatorForLanguageModeling, Learner

pytestmark = pytest.mark.usefixtures("one_thread")


class Words:
    pad_token_id, mask_token_id, mask_token, all_special_ids = 0, 1, "[M]", [0, 1]
    def __len__(self): return 50
    def convert_tokens_to_ids(self, token): return 1
    def get_special_tokens_mask(self, ids, already_has_special_tokens=False): return [0] * len(ids)
    def pad(self, features, **kwargs): return {"input_ids": torch.tensor([f["input_ids"] for f in features])}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(60, 4), nn.Linear(4, 60)

    def forward(self, input_ids, labels=None):
        logits = self.out(self.embed(input_ids))
        return {"loss": nn.functional.cross_entropy(logits.view(-1, 60), labels.view(-1)), "logits": logits}


TEXTS = [{"input_ids": [5 + (7 * i + 3 * k) % 45 for k in range(8)]} for i in range(40)]


class Own(DataCollatorForLanguageModeling): "A subclass of the user."


class Holder:
    def __init__(self, inner): self.inner = inner
    def __call__(self, features): return self.inner(features)


class Masked(torch.utils.data.Dataset):
    "Samples that are masked when they are read."
    def __init__(self, mlm): self.mlm = mlm
    def __len__(self): return len(TEXTS)
    def __getitem__(self, i): return {k: v[0] for k, v in self.mlm([TEXTS[i]]).items()}


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, mlm=None): self.mlm = mlm
    def __iter__(self):
        for text in TEXTS: yield text if self.mlm is None else {k: v[0] for k, v in self.mlm([text]).items()}


class Batches:
    "An iterable of ready batches."
    def __init__(self, mlm): self.mlm = mlm
    def __iter__(self):
        for i in range(0, len(TEXTS), 4): yield self.mlm(TEXTS[i:i + 4])


def stack(rows): return {k: torch.stack([r[k] for r in rows]) for k in rows[0]}


KINDS = {
    "itself": lambda mlm: {"data_collator": mlm},
    "function": lambda mlm: {"data_collator": lambda f: mlm(f)},
    "partial": lambda mlm: {"data_collator": functools.partial(mlm)},
    "method": lambda mlm: {"data_collator": mlm.__call__},
    "object": lambda mlm: {"data_collator": Holder(mlm)},
    "subclass": lambda mlm: {"data_collator": Own(Words(), seed=1)},
    "samples": lambda mlm: {"train_dataset": Masked(mlm), "data_collator": stack},
    "stream": lambda mlm: {"train_dataset": Stream(), "data_collator": lambda f: mlm(f)},
    "stream of samples": lambda mlm: {"train_dataset": Stream(mlm), "data_collator": stack},
    "batches": lambda mlm: {"train_dataset": Batches(mlm)},
}


def learner(kind, workers):
    torch.manual_seed(0)
    mlm = DataCollatorForLanguageModeling(Words(), seed=1)
    parts = {"train_dataset": TEXTS} | KINDS[kind](mlm)
    cls = type("Loads", (Learner,), {"get_train_dataloader": lambda self: self.train_dataset}) if kind == "batches" else Learner
    learn = cls(Net(), per_device_train_batch_size=4, max_steps=8, learning_rate=0.1, report_to="none", disable_tqdm=True, use_cpu=True,
                dataloader_num_workers=workers, rewind_every=1, **parts)
    return learn, mlm


@pytest.mark.parametrize("kind, workers", [*((kind, 0) for kind in KINDS), *((kind, 1) for kind in ("function", "subclass", "samples", "stream"))])
def test_masks_follow_the_position(kind, workers):
    whole, _ = learner(kind, 0)
    expected = [r.loss for r in whole.run(steps=6)]
    learn, mlm = learner(kind, workers)
    # batches that are made outside of the run take no part in it
    outside = [mlm(TEXTS[:4]) for _ in range(2)]
    found = [r.loss for r in learn.run(steps=3)]
    mlm(TEXTS[:4])
    found += [r.loss for r in learn.run(steps=3)]
    learn.rewind(3)
    again = [r.loss for r in learn.run(steps=3)]
    assert found == expected
    assert again == found[3:]
    # and the run takes no part in them
    alone = DataCollatorForLanguageModeling(Words(), seed=1)
    for batch in (*outside, None):
        want = alone(TEXTS[:4])
        if batch is not None: assert torch.equal(want["input_ids"], batch["input_ids"])
    assert torch.equal(mlm(TEXTS[:4])["input_ids"], alone(TEXTS[:4])["input_ids"])
    learn.free()

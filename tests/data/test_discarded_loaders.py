"State in or below a data loader that a setting discards: a run in parts is the run in one, byte for byte."
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Sampler, WeightedRandomSampler

from trainer_nb import Learner, TrainerCallback

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:train_dataset is a DataLoader")]

N = 24
X = torch.randn(N, 4, generator=torch.Generator().manual_seed(1))


class Rows(Dataset):
    def __len__(self): return N
    def __getitem__(self, i): return X[i], i % 2

class Noisy(Rows):
    "Has a generator of its own."
    def __init__(self, seed): self.rng = np.random.default_rng(seed)
    def __getitem__(self, i): return X[i] + self.rng.random(), i % 2

class Counting(Sampler):
    "Counts the epochs itself."
    def __init__(self): self.epoch = 0
    def __len__(self): return N
    def __iter__(self):
        self.epoch += 1
        return iter(torch.randperm(N, generator=torch.Generator().manual_seed(self.epoch)).tolist())

class CountsInClass(Counting):
    "Makes the attribute when it is read for the first time."
    epoch = 0
    def __init__(self): pass

class Buckets(Sampler):
    "A batch sampler that shuffles its batches in place."
    def __init__(self, size):
        self.size, self.epoch = size, 0
        self.batches = [list(range(i, min(i + size, N))) for i in range(0, N, size)]
    def __len__(self): return len(self.batches)
    def __iter__(self):
        self.epoch += 1
        order = torch.randperm(len(self.batches), generator=torch.Generator().manual_seed(self.epoch)).tolist()
        self.batches[:] = [self.batches[i] for i in order]
        return iter(self.batches)

class Drawn(Sampler):
    "Has a generator without a seed."
    def __init__(self): self.rng = np.random.default_rng()
    def __len__(self): return N
    def __iter__(self): return iter(self.rng.permutation(N).tolist())

class Favors(TrainerCallback):
    "Changes the weights of a sampler in every step."
    def __init__(self, sampler): self.sampler = sampler
    not_state = ("sampler",)
    def on_step_end(self, args, state, control, **kwargs): self.sampler.weights[state.global_step % N] += 5.0

class Stream(IterableDataset):
    "Saves the place in it."
    def __init__(self): self.epoch, self.next = 0, 0
    def __len__(self): return N
    def set_epoch(self, epoch): self.epoch = epoch
    def state_dict(self): return {"next": self.next}
    def load_state_dict(self, state): self.next = state["next"]
    def __iter__(self):
        order = torch.randperm(N, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        while self.next < N:
            self.next += 1
            yield X[order[self.next - 1]], order[self.next - 1] % 2
        self.next = 0


def weighted():
    sampler = WeightedRandomSampler([1.0] * N, N)
    return {"train_dataset": DataLoader(Rows(), batch_size=4, sampler=sampler), "callbacks": [Favors(sampler)]}

GIVEN = {
    "sampler": lambda: {"train_dataset": DataLoader(Rows(), batch_size=4, sampler=Counting())},
    "class attribute": lambda: {"train_dataset": DataLoader(Rows(), batch_size=4, sampler=CountsInClass())},
    "batch sampler": lambda: {"train_dataset": DataLoader(Rows(), batch_sampler=Buckets(4))},
    "weights": weighted,
    "generator of a sampler": lambda: {"train_dataset": DataLoader(Rows(), batch_size=4, sampler=RandomSampler(range(N), generator=torch.Generator().manual_seed(5)))},
    "generator of a data set": lambda: {"train_dataset": Noisy(None)},
    "stream": lambda: {"train_dataset": Stream()},
}

class MakesSampler(Learner):
    def _get_train_sampler(self, *ignored): return Counting()

class MakesBatches(Learner):
    def get_train_dataloader(self): return DataLoader(self.train_dataset, batch_sampler=Buckets(self.args.per_device_train_batch_size))

class MakesLoader(Learner):
    "Its sampler is part of a batch sampler of torch."
    def get_train_dataloader(self):
        return DataLoader(self.train_dataset, batch_size=self.args.per_device_train_batch_size, sampler=Counting(), num_workers=self.args.dataloader_num_workers)

class MakesGenerator(Learner):
    def _get_train_sampler(self, *ignored): return Drawn()

MADE = {"_get_train_sampler": MakesSampler, "get_train_dataloader": MakesLoader, "made batch sampler": MakesBatches, "made generator": MakesGenerator}
KINDS = [*GIVEN, *MADE]

FIRST = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4}
ANY = [{"gradient_accumulation_steps": 1}, {"per_device_eval_batch_size": 3}]
# settings that do not apply to a DataLoader
OWN = [{"per_device_train_batch_size": 2}]
CASES = [(kind, change) for kind in KINDS for change in ANY + (OWN if kind in MADE else [])] + [("_get_train_sampler", {"dataloader_num_workers": 1})]


def make(kind, **more):
    torch.manual_seed(0)
    # a learning rate with which the losses depend on the order, and no noise but that of the data
    settings = FIRST | dict(num_train_epochs=8, learning_rate=0.05, use_cpu=True, disable_tqdm=True, report_to="none", save_strategy="no",
                            rewind_every=2, loss_func=torch.nn.functional.cross_entropy, lr_scheduler_type="constant")
    given = GIVEN[kind]() if kind in GIVEN else {"train_dataset": Rows()}
    return MADE.get(kind, Learner)(torch.nn.Linear(4, 2), **settings | given | more)

def weights(learn): return [p.detach().clone() for p in learn.model.parameters()]
def losses(learn): return [row.loss for row in learn.history if not row.abandoned]
def equal(one, other): return all(map(torch.equal, weights(one), weights(other))) and losses(one)[-12:] == losses(other)[-12:]


def loaded(learn, kind, change, folder, **more):
    learn.save_checkpoint(folder / "one")
    later = make(kind, **more)
    later.load_checkpoint(folder / "one")
    return later

def loaded_here(learn, kind, change, folder):
    learn.save_checkpoint(folder / "one")
    learn.step(2)
    learn.set(**{name: 5 for name in change})
    learn.step(4)
    learn.load_checkpoint(folder / "one")
    return learn

def restored(learn, kind, change, folder):
    "After another change."
    learn.snapshot("one")
    learn.step(1)
    learn.set(**{name: 5 for name in change})
    learn.step(5)
    learn.restore("one")
    return learn

def rewound(learn, kind, change, folder):
    "Across the change."
    learn.step(3)
    learn.rewind(to=6)
    learn.step(1)
    learn.set(**change)
    learn.step(1)
    return learn

def branched(learn, kind, change, folder): return learn.branch()

def branched_and_back(learn, kind, change, folder):
    "The branch has other settings, and its samplers are its own."
    other = learn.branch(**{name: 5 for name in change})
    other.step(5)
    return learn

WAYS = [loaded, loaded_here, restored, rewound, branched, branched_and_back]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind, change", CASES, ids=[f"{kind}-{'-'.join(change)}" for kind, change in CASES])
def test_a_run_in_parts(kind, change, way, tmp_path):
    whole = make(kind)
    if kind in ("generator of a data set", "made generator"):
        # the generators have no seed: the second run begins with the checkpoint of the first step
        whole.step(1)
        whole.save_checkpoint(tmp_path / "first")
        parts = make(kind)
        parts.load_checkpoint(tmp_path / "first")
        whole.step(6), parts.step(6)
    else:
        parts = make(kind)
        whole.step(7), parts.step(7)
    whole.set(**change), parts.set(**change)
    whole.step(1), parts.step(1)
    whole.step(16)
    parts = way(parts, kind, change, tmp_path)
    parts.step(16)
    assert equal(whole, parts)


@pytest.mark.parametrize("kind", ["sampler", "batch sampler", "generator of a sampler", "_get_train_sampler", "made batch sampler"])
def test_a_setting_that_is_only_given_is_restored(kind, tmp_path):
    "The sampler has the state of the run at once."
    whole = make(kind)
    whole.step(8)
    whole.save_checkpoint(tmp_path / "one")
    whole.step(8)
    parts = make(kind, dataloader_pin_memory=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts.load_checkpoint(tmp_path / "one")
    if isinstance(parts.train_dataset, DataLoader) and kind != "generator of a sampler":
        sampler = parts.train_dataset.batch_sampler if kind == "batch sampler" else parts.train_dataset.sampler
        assert sampler.epoch == 3
    parts.step(8)
    assert equal(whole, parts)


@pytest.mark.parametrize("change", ANY + OWN[:1], ids=lambda change: "-".join(change))
@pytest.mark.parametrize("kind", ["sampler", *MADE])
def test_an_edited_setting_is_as_one_that_is_set(kind, change, tmp_path):
    if kind == "sampler" and change in OWN: pytest.skip("a DataLoader has its own batch size")
    whole = make(kind)
    whole.step(8)
    whole.save_checkpoint(tmp_path / "one")
    whole.set(**change)
    whole.step(12)
    parts = make(kind, **change)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts.load_checkpoint(tmp_path / "one")
    parts.step(12)
    assert equal(whole, parts)


def test_a_restored_sampler_is_at_once_as_it_was():
    "An assignment of the user that follows counts."
    learn = make("sampler")
    sampler = learn.train_dataset.sampler
    learn.step(8)
    learn.snapshot("one")
    learn.step(4)
    learn.set(gradient_accumulation_steps=1)
    learn.restore("one")
    assert sampler.epoch == 3
    sampler.epoch = 9
    learn.step(3)
    assert sampler.epoch == 10


def orders(kind, change):
    "Return the samplers' state before and after a change of a setting."
    learn = make(kind)
    learn.step(4)
    before = [*learn.run_state.loader.samplers().values()]
    learn.set(**change)
    after = [*learn.run_state.loader.samplers().values()]
    assert before[-1] is not after[-1]
    return before[-1], after[-1]

def test_a_set_keeps_the_state_of_samplers_that_a_method_makes():
    before, after = orders("_get_train_sampler", {"per_device_train_batch_size": 2})
    assert before.epoch == after.epoch == 2
    before, after = orders("made batch sampler", {"gradient_accumulation_steps": 1})
    assert vars(before) == vars(after)

def test_what_depends_on_the_setting_is_as_it_was_made():
    before, after = orders("made batch sampler", {"per_device_train_batch_size": 2})
    assert (after.size, after.batches, after.epoch) == (2, Buckets(2).batches, before.epoch)


@pytest.mark.parametrize("kind", ["sampler", *MADE])
def test_a_new_run_begins_anew(kind):
    def ended(learn): learn.step(16); return learn
    learn = make(kind)
    learn.step(8)
    learn.set(per_device_eval_batch_size=3)
    learn.reset()
    if kind == "made generator": assert learn.run_state.cursor.position == 0
    else: assert equal(ended(learn), ended(make(kind)))


@pytest.mark.parametrize("kind", ["sampler", "_get_train_sampler", "made batch sampler"])
def test_other_processes_have_the_run_for_a_while(kind):
    whole, parts = make(kind), make(kind)
    for learn in (whole, parts):
        learn.step(7)
        learn.set(gradient_accumulation_steps=1)
        learn.step(1)
        if learn is parts:
            with learn.launch(1): learn.step(5)
        else:
            learn.step(5)
        learn.step(8)
    assert equal(whole, parts)


@pytest.mark.parametrize("kind", [Counting, CountsInClass])
def test_the_orders_are_those_of_a_loop_by_hand(kind):
    sampler, seen = kind(), []
    def collate(rows):
        seen.extend(rows)
        return X[rows], torch.zeros(len(rows), dtype=torch.long)
    learn = Learner(torch.nn.Linear(4, 2), train_dataset=DataLoader(range(N), batch_size=4, sampler=sampler, collate_fn=collate),
                    loss_func=torch.nn.functional.cross_entropy, num_train_epochs=2, use_cpu=True, disable_tqdm=True)
    learn.train()
    by_hand = kind()
    assert seen == [*by_hand, *by_hand] and sampler.epoch == by_hand.epoch


def test_other_data_have_samplers_of_their_own():
    learn = make("_get_train_sampler")
    learn.step(8)
    learn.train_dataset = Rows()
    learn.step(1)
    # the rest of an epoch leaves the sampler as it is
    assert [s.epoch for s in learn.run_state.loader.samplers().values() if isinstance(s, Counting)] == [0]


@pytest.mark.parametrize("way", [loaded_here, restored, rewound])
@pytest.mark.parametrize("kind", MADE)
def test_no_warning_about_attributes_that_a_setting_determines(kind, way, tmp_path):
    learn = make(kind)
    learn.step(7)
    learn.set(**OWN[0])
    learn.step(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        way(learn, kind, OWN[0], tmp_path).step(3)

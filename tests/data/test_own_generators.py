"Generators that a data set, a sampler or a collator holds: their seeds count, and their numbers depend on the position alone."
import functools
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, RandomSampler, Sampler, Subset

from trainer_nb import Learner, differences

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:train_dataset is a DataLoader")]

N = 40
X = torch.randn(N, 4, generator=torch.Generator().manual_seed(7))


class Noise:
    "A transform with its own generator."
    def __init__(self, rng): self.rng = rng
    def __call__(self, x): return x + draw(self.rng)


class Pipeline:
    def __init__(self, *transforms): self.transforms = list(transforms)
    def __call__(self, x):
        for t in self.transforms: x = t(x)
        return x


class Rows(Dataset):
    def __init__(self, transform=None, rng=None): self.transform, self.rng = transform, rng
    def __len__(self): return N
    def __getitem__(self, i):
        x = X[i] if self.rng is None else X[i] + draw(self.rng)
        return x if self.transform is None else self.transform(x), i % 2


class Shuffled(Sampler):
    def __init__(self, rng): self.rng = rng
    def __len__(self): return N
    def __iter__(self): return iter(permuted(self.rng))


class Batches(Sampler):
    "A batch sampler over a sampler."
    def __init__(self, sampler): self.sampler = sampler
    def __len__(self): return N // 4
    def __iter__(self):
        order = list(self.sampler)
        return iter([order[i:i + 4] for i in range(0, N, 4)])


class Collate:
    def __init__(self, rng): self.rng = rng
    def __call__(self, rows):
        return torch.stack([x for x, _ in rows]) + draw(self.rng), torch.tensor([y for _, y in rows])


def draw(rng):
    if isinstance(rng, torch.Generator): return torch.rand((), generator=rng).item()
    return rng.random()

def permuted(rng):
    if isinstance(rng, torch.Generator): return torch.randperm(N, generator=rng).tolist()
    order = list(range(N))
    rng.shuffle(order)
    return order

def in_closure(rng):
    collate = Collate(rng)
    return lambda rows: collate(rows)


KINDS = {
    "torch": lambda seed: torch.Generator().manual_seed(seed),
    "python": random.Random,
    "numpy": np.random.default_rng,
    "old numpy": np.random.RandomState,
}
PLACES = {
    "DataLoader": lambda rng: {"train_dataset": DataLoader(Rows(), batch_size=4, shuffle=True, generator=rng)},
    "sampler": lambda rng: {"train_dataset": DataLoader(Rows(), batch_size=4, sampler=Shuffled(rng))},
    "batch_sampler": lambda rng: {"train_dataset": DataLoader(Rows(), batch_sampler=Batches(Shuffled(rng)))},
    "collator": lambda rng: {"data_collator": Collate(rng)},
    "method": lambda rng: {"data_collator": Collate(rng).__call__},
    "partial": lambda rng: {"data_collator": functools.partial(Collate(rng))},
    "closure": lambda rng: {"data_collator": in_closure(rng)},
    "data set": lambda rng: {"train_dataset": Rows(rng=rng)},
    "transform": lambda rng: {"train_dataset": Rows(Pipeline(Noise(rng)))},
    "subset": lambda rng: {"train_dataset": Subset(Rows(Noise(rng)), range(N))},
    "several": lambda rng: {"train_dataset": ConcatDataset([Subset(Rows(), range(20)), Subset(Rows(Noise(rng)), range(20))])},
}
CASES = [(place, "torch") for place in PLACES] + [(place, kind) for place in ("sampler", "collator", "transform") for kind in list(KINDS)[1:]]


def make(place, rng, **more):
    torch.manual_seed(0)
    settings = dict(loss_func=nn.functional.cross_entropy, per_device_train_batch_size=4, num_train_epochs=2, learning_rate=1e-2, use_cpu=True,
                    disable_tqdm=True, report_to="none", save_strategy="no")
    return Learner(nn.Linear(4, 2), **{"train_dataset": Rows()} | settings | PLACES[place](rng) | more)

def weights(learn): return [p.detach().clone() for p in learn.model.parameters()]
def equal(a, b): return all(map(torch.equal, a, b))
def trained(place, rng, **more):
    learn = make(place, rng, **more)
    learn.train()
    return weights(learn)


@pytest.mark.parametrize("place, kind", CASES)
def test_the_seed_counts(place, kind):
    "The run is a function of the seeds; a generator is afterwards as it was."
    rng = KINDS[kind](3)
    first = trained(place, rng)
    assert equal(trained(place, KINDS[kind](3)), first)
    assert not equal(trained(place, KINDS[kind](4)), first)
    assert not equal(trained(place, KINDS[kind](3), seed=1), first)
    assert draw(rng) == draw(KINDS[kind](3))


@pytest.mark.parametrize("place, kind", CASES)
def test_a_run_that_is_taken_apart(place, kind, tmp_path):
    "Verbs that look, evaluations, a rewind, draws of a cell and a resume with other generators change nothing."
    rng = KINDS[kind](3)
    whole = make(place, rng)
    whole.train()
    rng = KINDS[kind](3)
    parts = make(place, rng, output_dir=str(tmp_path), rewind_every=1)
    parts.step(7)
    parts.inspect(), parts.lr_find(num_steps=10), parts.show_batch(), parts.summary()
    parts.evaluate(parts.train_dataset)
    draw(rng)
    parts.rewind(4)
    parts.step(8)
    parts.save_checkpoint()
    parts.train()
    assert equal(weights(parts), weights(whole))
    later = make(place, KINDS[kind](9), output_dir=str(tmp_path))
    later.train(resume_from_checkpoint=True)
    assert equal(weights(later), weights(whole))


@pytest.mark.parametrize("place", ["sampler", "collator", "data set", "transform"])
@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_data_workers_draw_the_same_numbers(place, kind):
    given = {"dataloader_num_workers": 2} if place != "sampler" else {}
    expected = trained(place, KINDS[kind](3))
    learn = make(place, KINDS[kind](3), **given)
    learn.step(5)
    learn.inspect()
    before = learn.snapshot()
    learn.step(3)
    learn.restore(before)
    learn.train()
    assert equal(weights(learn), expected)


def test_a_generator_without_a_seed_is_recorded(tmp_path):
    "The seeds of two processes differ, and the run continues with those it began with."
    whole = make("transform", np.random.default_rng(), output_dir=str(tmp_path))
    whole.step(13)
    whole.save_checkpoint()
    whole.train()
    later = make("transform", np.random.default_rng(), output_dir=str(tmp_path))
    later.step(2)
    later.load_checkpoint(tmp_path / "checkpoint-13")
    later.train()
    assert not set(differences(whole.snapshot(), later.snapshot())) - {"args"} and equal(weights(whole), weights(later))
    later.reset()
    later.train()
    assert not equal(weights(whole), weights(later))


def test_a_branch_and_a_clean_run_draw_the_same_numbers():
    learn = make("transform", np.random.default_rng(3))
    learn.step(6)
    other = learn.branch()
    other.train()
    learn.train()
    assert equal(weights(learn), weights(other))


def test_another_generator_gives_its_own_seed():
    "Also one that takes the place of another, and a generator of torch that is seeded again."
    def ended(change):
        learn = make("transform", torch.Generator().manual_seed(3))
        learn.step(5)
        change(learn.train_dataset.transform)
        learn.train()
        return weights(learn)
    same = ended(lambda pipeline: None)
    assert equal(ended(lambda pipeline: draw(pipeline.transforms[0].rng)), same)
    seeded = ended(lambda pipeline: pipeline.transforms[0].rng.manual_seed(4))
    replaced = ended(lambda pipeline: setattr(pipeline.transforms[0], "rng", torch.Generator().manual_seed(4)))
    assert equal(seeded, replaced) and not equal(seeded, same)


def test_another_loader_gives_its_own_order():
    def ended(seed):
        learn = make("DataLoader", torch.Generator().manual_seed(3))
        learn.step(10)
        learn.train_dataset = PLACES["DataLoader"](torch.Generator().manual_seed(seed))["train_dataset"]
        learn.train()
        return weights(learn)
    assert equal(ended(3), trained("DataLoader", torch.Generator().manual_seed(3))) and not equal(ended(3), ended(4))


def test_the_global_generators_are_no_ones_own():
    "A data set may keep a reference to one; it is seeded for each batch anyway."
    class Globals(Rows):
        def __init__(self): super().__init__(), setattr(self, "held", (torch.default_generator, np.random.mtrand._rand, random._inst, random.SystemRandom()))
        def __getitem__(self, i): return X[i] + self.held[0].initial_seed() * 0 + self.held[1].random_sample() + self.held[2].random(), i % 2
    class Plain(Rows):
        def __getitem__(self, i): return X[i] + np.random.random_sample() + random.random(), i % 2
    ends = [trained("transform", None, train_dataset=data, data_collator=None) for data in (Globals(), Plain())]
    assert equal(*ends)


def test_names_that_are_no_state_are_left_alone():
    class Own(Collate): not_state = ("rng",)
    rng = np.random.default_rng(3)
    trained("collator", None, data_collator=Own(rng))
    assert draw(rng) != draw(np.random.default_rng(3))


def test_a_sampler_without_a_generator_keeps_its_order():
    "The seed of the run alone determines it, as before."
    loader = DataLoader(Rows(), batch_size=4, sampler=RandomSampler(range(N)))
    from trainer_nb.data.sampling import Cursor
    from trainer_nb.data.sources import MapSource
    from trainer_nb.core.seeding import SEED_ORDER, seeded_generators
    source = MapSource(loader, seed=5)
    with seeded_generators(5, SEED_ORDER, 2): expected = [list(b) for b in loader.batch_sampler]
    assert [group[0] for group in source.plan(2).groups] == expected
    assert [group[0] for group in MapSource(DataLoader(Rows(), batch_sampler=loader.batch_sampler), seed=5).plan(2).groups] == expected
    assert len(list(source.open(Cursor(2)))) == N // 4


class LazyRows(Rows):
    "Creates its generator in the first fetch, as code for data workers does."
    def __getitem__(self, i):
        if self.rng is None: self.rng = np.random.default_rng(torch.initial_seed() % 1000)
        return super().__getitem__(i)


class LazyCollate(Collate):
    def __call__(self, rows):
        if self.rng is None: self.rng = random.Random(torch.initial_seed())
        return super().__call__(rows)


@pytest.mark.parametrize("given", [lambda: {"train_dataset": LazyRows()}, lambda: {"data_collator": LazyCollate(None)}], ids=["data set", "collator"])
def test_a_generator_that_the_first_batch_creates(given, tmp_path):
    "Its numbers depend on the position alone, in every process."
    def run(**more): return make("data set", None, **{"train_dataset": Rows()} | given() | more)
    whole = run()
    whole.train()
    workers = run(dataloader_num_workers=2, output_dir=str(tmp_path))
    workers.step(7)
    workers.save_checkpoint()
    workers.train()
    later = run(output_dir=str(tmp_path))
    later.load_checkpoint(tmp_path / "checkpoint-7")
    later.train()
    assert equal(weights(whole), weights(workers)) and equal(weights(whole), weights(later))


def test_the_transform_of_a_table():
    datasets = pytest.importorskip("datasets")
    class Batch:
        def __init__(self, seed): self.rng = np.random.default_rng(seed)
        def __call__(self, rows): return {"input": [torch.tensor(x) + self.rng.random() for x in rows["input"]], "labels": [i % 2 for i, _ in enumerate(rows["input"])]}
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)
        def forward(self, input, labels): return {"loss": nn.functional.cross_entropy(self.layer(input), labels)}
    table = datasets.Dataset.from_dict({"input": X.tolist()})
    def ended(seed, look=False):
        torch.manual_seed(0)
        learn = Learner(Net(), train_dataset=table.with_transform(Batch(seed)), per_device_train_batch_size=4, num_train_epochs=1, learning_rate=1e-2, use_cpu=True,
                        disable_tqdm=True, report_to="none", save_strategy="no", remove_unused_columns=False)
        learn.step(3)
        if look: learn.inspect(), learn.evaluate(learn.train_dataset)
        learn.train()
        return weights(learn)
    assert equal(ended(3), ended(3, look=True)) and not equal(ended(3), ended(4))


# --- generators that are created later, again ---------------------------------------------------------------------------

class Lazy(Dataset):
    "Creates its generator with the first sample."
    def __init__(self): self.rng = None
    def __len__(self): return N
    def __getitem__(self, i):
        if self.rng is None: self.rng = np.random.default_rng(0)
        return X[i] + self.rng.random(), i % 2


class LazyOfClass(Lazy):
    "The same; at first, it has no attributes."
    rng = None
    def __init__(self): pass


class Renewed(Lazy):
    "Creates another one in each epoch."
    def set_epoch(self, epoch): self.rng = None


@pytest.mark.parametrize("kind", [Lazy, LazyOfClass, Renewed])
def test_a_generator_that_is_created_again_depends_on_the_position_alone(kind):
    "After tools and a return, which put back that there was none, and in data workers."
    def run(act=None, **settings):
        torch.manual_seed(0)
        learn = Learner(nn.Linear(4, 2), train_dataset=kind(), loss_func=nn.functional.cross_entropy, use_cpu=True, disable_tqdm=True,
                        per_device_train_batch_size=4, num_train_epochs=2, rewind_every=2, **settings)
        if act is not None: act(learn)
        learn.train()
        return [p.tolist() for p in learn.model.parameters()]
    def back(learn): learn.step(3); learn.rewind(to=0)
    def middle(learn): learn.step(13); learn.rewind(3)
    expected = run()
    for act in (lambda learn: learn.inspect(), lambda learn: learn.lr_find(num_steps=10), lambda learn: learn.show_batch(), back, middle):
        assert run(act) == expected
    assert run(dataloader_num_workers=2) == expected


def default(rng):
    def collate(rows, rng=rng): return Collate(rng)(rows)
    return collate


def test_a_generator_in_a_default_argument_is_found():
    def run(seed, act=None):
        torch.manual_seed(0)
        learn = Learner(nn.Linear(4, 2), train_dataset=Rows(), data_collator=default(np.random.default_rng(seed)), loss_func=nn.functional.cross_entropy,
                        use_cpu=True, disable_tqdm=True, per_device_train_batch_size=4, rewind_every=2)
        if act is not None: act(learn)
        learn.step(6)
        return [p.tolist() for p in learn.model.parameters()]
    assert run(3) == run(3, lambda learn: learn.inspect()) != run(4)

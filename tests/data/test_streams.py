"Going back to a place in a stream: exact, by the data set's states where they are exact, and then without reading what comes before it."
import json, random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from trainer_nb import Learner, TrainerCallback, differences
from trainer_nb.data.collate import is_identical
from trainer_nb.data.sampling import Cursor
from trainer_nb.data.loader import ResumableLoader
from trainer_nb.engine.dataloaders import IterableWrapper
from trainer_nb.engine.snapshot_tensors import Snapshot
from trainer_nb.data.streams import (HFDatasetStates, InexactState, StreamMark, DatasetStates, StreamSource, isolate_dataset, child_iterables, is_stateful,
                                     rereads_on_resume, dataset_states)

datasets = pytest.importorskip("datasets")

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:train_dataset is a DataLoader")

N = 23   # samples of an epoch: in batches of 2 and windows of 3 four steps, the last of two whole batches and one of a single sample


# --- streams -----------------------------------------------------------------------------------------------------------

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(7))


class Stream(IterableDataset):
    "Examples with noise, in an order of the epoch's own; it notes which have been read, in whatever process. Workers share it, unevenly."
    not_state = ("n", "read")   # the size of the data that a learner is given, and what this process and others have read
    def __init__(self, n=N): self.n, self.epoch, self.read = n, 0, torch.zeros(60, dtype=torch.bool).share_memory_()
    def set_epoch(self, epoch): self.epoch = epoch

    def numbers(self):
        "The examples of this reader."
        order, info = torch.randperm(self.n, generator=torch.Generator().manual_seed(self.epoch)).tolist(), get_worker_info()
        if info is None: return order
        first = self.n // (info.num_workers + 2)   # worker 0 has less than the others
        return order[:first] if info.id == 0 else order[first:][info.id - 1::info.num_workers - 1]

    def example(self, i):
        self.read[i] = True
        return {"x": X[i] + 0.1 * torch.rand(4) + random.random(), "number": i}

    def __iter__(self): return (self.example(i) for i in self.numbers())


class Own(Stream):
    "It begins at the beginning, unless a state was loaded just before."
    start = at = 0
    def __iter__(self):
        self.at, self.start = self.start, 0
        for i in self.numbers()[self.at:]:
            self.at += 1
            yield self.example(i)
    def state_dict(self): return {"at": self.at}
    def load_state_dict(self, state): self.start = state["at"]


class Sticky(Own):
    "It goes on where it was left, and keeps random numbers of its own and a list in its state."
    def __init__(self, n=N): super().__init__(n); self.draw, self.past = 1, []
    def __iter__(self):
        for i in self.numbers()[self.at:]:
            self.at, self.draw = self.at + 1, self.draw * 1103515245 % 2**31
            self.past.append(i)
            yield self.example(i) | {"x": X[i] + torch.rand(4) + self.draw / 2**31 + self.past[0]}
        self.at, self.draw, self.past = 0, 1, []
    def state_dict(self): return {"at": self.at, "draw": self.draw, "past": self.past}
    def load_state_dict(self, state): self.at, self.draw, self.past = state["at"], state["draw"], state["past"]


class Foreign:
    "The same as Own, but no data set of torch's."
    def __init__(self, **how): self.inner = Own(**how)
    read = property(lambda self: self.inner.read)
    def __iter__(self): return iter(self.inner)
    def set_epoch(self, epoch): self.inner.set_epoch(epoch)
    def state_dict(self): return self.inner.state_dict()
    def load_state_dict(self, state): self.inner.load_state_dict(state)


class Asks(Own):
    "Its state_dict wants to be told something."
    def state_dict(self, samples): return {"at": samples}


def generated(shards, draws=False):
    for start, stop in shards:
        for i in range(start, stop): yield {"number": i, "noise": random.random() if draws else 0.0}


SHARDS = [(0, 7), (7, 9), (9, 20), (20, N)]


def hf(change=lambda d: d, draws=False, shards=SHARDS):
    "A stream of datasets, whose last map notes what is read."
    read = torch.zeros(60, dtype=torch.bool).share_memory_()
    def note(row):
        read[row["number"]] = True
        return {"x": [v + row["noise"] for v in X[row["number"]].tolist()]}
    stream = change(datasets.IterableDataset.from_generator(generated, gen_kwargs={"shards": shards, "draws": draws})).map(note)
    stream.read = read
    return stream


def table(change=lambda d: d):
    "The same from a table."
    read = torch.zeros(60, dtype=torch.bool).share_memory_()
    def note(row):
        read[row["number"]] = True
        return {"x": [v + random.random() for v in X[row["number"]].tolist()]}
    stream = change(datasets.Dataset.from_dict({"number": list(range(N))}).to_iterable_dataset(num_shards=4)).map(note)
    stream.read = read
    return stream


def noisy(rows): return {"noise": [random.random() for _ in rows["number"]]}
def plain(rows): return {"noise": [0.5 for _ in rows["number"]]}
def two(d): return hf(shards=[(30, 37), (37, 48)]).select_columns(["number", "noise"])


# name: (how it is made, whether states are used)
STREAMS = {
    "own": (Own, True), "sticky": (Sticky, True), "foreign": (Foreign, True), "without states": (Stream, False), "asks": (Asks, False),
    "datasets": (hf, True), "table": (table, True), "filter": (lambda: hf(lambda d: d.filter(lambda row: row["number"] % 3)), True),
    "batched": (lambda: hf(lambda d: d.map(plain, batched=True, batch_size=5)), True), "repeat": (lambda: hf(lambda d: d.take(9).repeat(3)), None),
    "interleaved": (lambda: hf(lambda d: datasets.interleave_datasets([d, two(d)], probabilities=[0.4, 0.6], seed=1)), True),
    "concatenated": (lambda: hf(lambda d: datasets.concatenate_datasets([d, two(d)])), True),
    "shuffled": (lambda: hf(lambda d: d.shuffle(seed=1, buffer_size=6)), False),
    "shuffled below": (lambda: hf(lambda d: datasets.interleave_datasets([d.shuffle(seed=1, buffer_size=6).map(plain, batched=True), two(d)])), False),
    "draws": (lambda: hf(draws=True), False), "batched draws": (lambda: hf(lambda d: d.map(noisy, batched=True, batch_size=5)), False),
}


# --- learners ----------------------------------------------------------------------------------------------------------

class Net(nn.Module):
    "Remembers what it was fed."
    not_state = ("seen",)
    def __init__(self): super().__init__(); self.layer, self.seen = nn.Linear(4, 4), []
    def forward(self, x, number):
        self.seen.append(number.tolist())
        return {"loss": (self.layer(x) - x).square().mean()}


def collate(rows):
    x = torch.stack([torch.as_tensor(r["x"]) for r in rows])
    return {"x": x + 0.01 * torch.randn_like(x), "number": torch.tensor([r["number"] for r in rows])}


def learner(stream, workers=0, cls=Learner, **given):
    torch.manual_seed(0)
    how = dict(per_device_train_batch_size=2, gradient_accumulation_steps=3, max_steps=7, learning_rate=0.05, dataloader_num_workers=workers,
               remove_unused_columns=False, data_collator=collate, logging_strategy="no", use_cpu=True, disable_tqdm=True)
    return cls(Net(), train_dataset=stream, **how | given)


def losses(learn):
    "Of the steps that count, as bytes."
    h = learn.history
    return {int(s): v.tobytes() for s, v, gone in zip(h.column("step"), h.column("loss"), h.column("abandoned")) if not gone}


def same(learn, want, after=0):
    "Do two learners stand at the same place, after the same losses? The steps up to `after` were taken by another one."
    return differences(learn.snapshot(), want.snapshot()) == [] and losses(learn) == {step: loss for step, loss in losses(want).items() if step > after}


def undisturbed(make, workers=0, **given):
    "The learner at the end, the snapshots before each step, and what was fed in each epoch before it."
    learn, places, past = learner(make(), workers, **given), [], []
    for _ in range(7):
        places.append(learn.snapshot())
        begun = learn.run_state.cursor.position
        past = past if begun else []
        before = len(learn.model.seen)
        places[-1] = places[-1], [i for batch in past for i in batch]
        learn.step()
        past = past + learn.model.seen[before:]
    return learn, places


def by_file(snapshot):
    "The snapshot as a checkpoint would have it: the bookmark has been through JSON."
    return Snapshot(snapshot.tensors, snapshot.values | {"bookmark": json.loads(json.dumps(snapshot.values["bookmark"]))})


@pytest.fixture(autouse=True)
def always(monkeypatch):
    "A state after each batch, however long it takes on a busy machine."
    monkeypatch.setattr(DatasetStates, "cheap_seconds", float("inf"))


@pytest.mark.parametrize("kind", STREAMS)
def test_from_every_step(kind):
    "A fresh learner that is put to any step of the run goes on as the run did, and reads what comes before only where it must."
    make, uses_states = STREAMS[kind]
    want, places = undisturbed(make)
    for k, (snapshot, past) in enumerate(places):
        data = make()
        learn = learner(data)
        learn.restore(by_file(snapshot))
        learn.train()
        assert learn.model.seen == want.model.seen[-len(learn.model.seen):]
        assert same(learn, want, after=k)
        again = learner(data := make())
        again.restore(by_file(snapshot))
        again.step()
        read = data.read[past] if past else torch.zeros(0)
        if uses_states: assert not read.any(), (k, past)
        elif uses_states is False: assert read.all(), (k, past)


@pytest.mark.parametrize("kind, workers", [
    ("own", 2), ("interleaved", 2), ("draws", 2),
    *(pytest.param(*o, marks=pytest.mark.slow) for o in [("sticky", 3), ("without states", 3), ("datasets", 3), ("concatenated", 2)])])
def test_from_every_step_with_workers(kind, workers):
    "So it does where workers read, which are ahead of the run; some have come to their end."
    make, uses_states = STREAMS[kind]
    want, places = undisturbed(make, workers)
    for k in (1, 2, 3, 5):
        snapshot, past = places[k]
        learn = learner(data := make(), workers)
        learn.restore(by_file(snapshot))
        learn.step()
        read = data.read[past]
        learn.train()
        assert same(learn, want, after=k)
        if kind == "concatenated": continue   # datasets' states of it do not fit in every worker
        assert not read.any() if uses_states else read.all(), (k, past)


# --- other ways to a place ---------------------------------------------------------------------------------------------

def test_the_way_makes_no_difference(monkeypatch):
    "Two runs at one place are equal, though one has gone there by a state and the other has read its way."
    # a state that took long, on a busy machine, would be followed by none for a while
    monkeypatch.setattr(DatasetStates, "cheap_seconds", float("inf"))
    one, other = learner(Own()), learner(Own())
    one.step(2)
    place = one.snapshot()
    other.restore(Snapshot(place.tensors, place.values | {"bookmark": None}))
    one.restore(place)
    one.step(); other.step()
    assert one.model.seen[6:] == other.model.seen and other.train_dataset.read[sum(one.model.seen, [])].all()
    assert differences(one.snapshot(), other.snapshot()) == []
    assert one.run_state.bookmark == other.run_state.bookmark and one.run_state.bookmark["place"] == [0, 18]


@pytest.mark.parametrize("kind, workers", [(kind, 0) for kind in ("own", "sticky", "foreign", "datasets", "table", "shuffled")] + [("sticky", 2), ("datasets", 2)])
def test_back_and_forth_in_one_learner(kind, workers):
    "Also to the beginning, of the run and of an epoch, with the same data set."
    make, _ = STREAMS[kind]
    want, places = undisturbed(make, workers)
    learn = learner(make(), workers)
    learn.step(6)
    for k in (3, 0, 4, 2):
        learn.restore(places[k][0])
        learn.step(2)
    learn.rewind(2)
    learn.train()
    assert same(learn, want, after=2)
    learn.reset()
    learn.train()
    assert losses(learn) == losses(want)


@pytest.mark.parametrize("kind", ["own", "sticky", "foreign", "datasets", "shuffled below", "without states"])
def test_others_read_the_same_data(kind):
    "A cell, an evaluation, another learner and a branch, all in this process, each with the very same data set."
    make, _ = STREAMS[kind]
    want, _ = undisturbed(make)
    learn = learner(make())
    learn.show_batch()
    learn.step()
    rows = iter(learn.train_dataset)
    for _ in range(4): next(rows)
    learn.step()
    learn.evaluate(learn.train_dataset)
    other = learner(learn.train_dataset)
    other.step(); learn.step(); other.step()
    branch = learn.branch(learning_rate=0.01)
    for _ in range(4): learn.step(); branch.step(); other.step()
    assert same(learn, want)
    other.train()
    alone = learner(make())
    alone.step(3)
    alone = alone.branch(learning_rate=0.01)
    alone.train()
    assert losses(other) == losses(want) and losses(branch) == losses(alone)


@pytest.mark.parametrize("kind", ["datasets", "interleaved", "shuffled", "shuffled below", "own", "without states"])
def test_a_look_at_the_data(kind):
    "Somebody reads a few examples between two batches: the feed does not notice."
    def numbers(data, looks):
        feed, found, cursor, bookmark = ResumableLoader(DataLoader(data, batch_size=1, collate_fn=collate), 0), [], Cursor(), None
        while window := feed.take(cursor, 1, bookmark):
            found += window[0].batch["number"].tolist()
            cursor, bookmark = window[0].after, window[0].bookmark
            for _ in zip(range(looks), iter(data)): pass
        return found
    make = STREAMS[kind][0]
    want = numbers(make(), 0)
    for looks in (1, 2, 5, 12): assert numbers(make(), looks) == want, looks


@pytest.mark.parametrize("workers", [0, 2])
def test_states_that_cost_much(workers, monkeypatch):
    "They are taken seldom, and what lies between the last one and the place is read again, with the same random numbers."
    monkeypatch.setattr(DatasetStates, "cheap_seconds", -1.0)
    monkeypatch.setattr(DatasetStates, "share", 1e-12)   # one in each epoch, after the first batch
    want, places = undisturbed(Sticky, workers)
    for k in (1, 2, 3):
        snapshot, past = places[k]
        marks = [m for m in snapshot.values["bookmark"]["marks"] if m]
        assert {m["at"] for m in marks} == {2} and max(m["given"] for m in marks) > 2
        learn = learner(Sticky(), workers)
        learn.restore(places[3 if k == 1 else 1][0])
        learn.step()
        learn.restore(by_file(snapshot))
        learn.step(2)
        learn.snapshot("later")
        learn.train()
        assert same(learn, want, after=k)
        other = learner(Sticky(), workers)
        other.restore(learn.snapshots["later"])
        other.train()
        assert same(other, want, after=k + 2)


def test_a_state_is_spaced_by_its_cost(monkeypatch):
    "After one that took long the next waits for ten times as long; a cheap one is taken each time."
    clock = [0.0]
    class Slow:
        def state_dict(self): clock[0] += 1.0; return {}
        def load_state_dict(self, state): pass
    monkeypatch.setattr("trainer_nb.data.streams.time.perf_counter", lambda: clock[0])
    monkeypatch.setattr(DatasetStates, "cheap_seconds", 1e-4)
    states, at = DatasetStates(Slow()), []
    for given in range(1, 30):
        clock[0] += 1.0
        at.append(states.take(given)[1])
    assert at == [1] * 11 + [12] * 11 + [23] * 7   # it takes 1 second, and more than 10 others go by
    states.cost = 0.0
    assert states.take(30)[1] == 30


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_another_size(workers):
    "In the middle of an epoch: from a state nothing is read again, and nothing is lost; where workers read it is refused."
    learn = learner(data := Sticky(), workers, max_steps=20)
    learn.step(2)
    if workers:
        with pytest.raises(ValueError, match="middle of an epoch of a stream"): learn.set(per_device_train_batch_size=5)
        return
    data.read.zero_()
    learn.set(per_device_train_batch_size=5, gradient_accumulation_steps=1)
    learn.step()
    assert data.read.sum() <= 10 and not data.read[sum(learn.model.seen[:6], [])].any()
    learn.run(epochs=1)
    assert sorted(i for batch in learn.model.seen for i in batch) == list(range(N))


class Buffered(Own):
    "Shuffles as it goes, by the generator of the place; what is in the buffer is part of its state."
    buffer = ()
    def __iter__(self):
        self.buffer = list(self.buffer)
        for i in self.numbers()[self.at:]:
            self.at += 1
            self.buffer.append(i)
            if len(self.buffer) > 5: yield self.example(self.buffer.pop(random.randrange(len(self.buffer))))
        while self.buffer: yield self.example(self.buffer.pop())
        self.at = 0
    def state_dict(self): return {"at": self.at, "buffer": self.buffer}
    def load_state_dict(self, state): self.at, self.buffer = state["at"], state["buffer"]


def test_another_size_after_an_old_state(monkeypatch):
    "What is read again, from the last state to where the run stands, is cut as it was."
    monkeypatch.setattr(DatasetStates, "cheap_seconds", -1.0)
    monkeypatch.setattr(DatasetStates, "share", 1e-12)
    learn = learner(Buffered(), max_steps=20)
    learn.step(2)
    learn.set(per_device_train_batch_size=5)
    learn.run(epochs=1)
    assert sorted(sum(learn.model.seen, [])) == list(range(N))


@pytest.mark.parametrize("kind", ["own", "foreign", "datasets"])
def test_epochs_are_told(kind):
    "A stream that wants to know the epoch is told, and its epochs differ."
    learn, epochs = learner(STREAMS[kind][0](), max_steps=20), []
    for _ in range(3):
        learn.model.seen = []
        learn.run(epochs=1)
        epochs.append(sum(learn.model.seen, []))
    assert epochs[0] != epochs[2] and sorted(epochs[0]) == sorted(epochs[2]) == list(range(N))


def test_ready_loaders():
    "Of the user's own: that drop the last batch, keep their workers, or hand on batches that the stream has made."
    class Batches(Own):
        def __iter__(self):
            rows = super().__iter__()
            while group := [r for _, r in zip(range(3), rows)]: yield collate(group)
    cases = {"drops": lambda: DataLoader(Own(), batch_size=4, drop_last=True, collate_fn=collate), "ready batches": lambda: DataLoader(Batches(), batch_size=None),
             "stay": lambda: DataLoader(Own(), batch_size=2, collate_fn=collate, num_workers=2, persistent_workers=True)}
    for name, make in cases.items():
        want, places = undisturbed(make, gradient_accumulation_steps=2)
        for k in (1, 2):
            snapshot, past = places[k]
            learn = learner(loader := make(), gradient_accumulation_steps=2)
            learn.restore(by_file(snapshot))
            learn.step()
            assert not loader.dataset.read[past].any(), name
            learn.restore(places[3 - k][0])
            learn.step()
            learn.restore(places[2][0])
            learn.train()
            assert same(learn, want, after=2), name


def test_new_data():
    "Other data begins where the run stands, by reading: the old state is not of it."
    learn = learner(Own())
    learn.step(2)
    learn.train_dataset = data = Own(n=40)
    assert learn.run_state.bookmark is None
    learn.step()
    assert data.read[data.numbers()[:18]].all() and learn.model.seen[6:] == [data.numbers()[i:i + 2] for i in (12, 14, 16)]


# --- errors ------------------------------------------------------------------------------------------------------------

class Breaks(Own):
    "Raises once, before an example."
    def __init__(self, kind, when=8): super().__init__(); self.kind, self.when, self.once = kind, when, torch.ones(1).share_memory_()
    def example(self, i): return breaking(self, i)


def breaking(data, i):
    if data.numbers().index(i) == data.when and data.once:
        data.once.zero_()
        raise data.kind("it broke")
    return Stream.example(data, i)


@pytest.mark.parametrize("kind, workers", [(OSError, 0), (OSError, 2), (KeyboardInterrupt, 0)])
def test_after_an_error(kind, workers):
    "The step is taken again from the state before it."
    want = learner(Own(), workers)
    want.train()
    learn = learner(data := Breaks(kind), workers)
    with pytest.raises(kind): learn.train()
    done = learn.state.global_step
    past = [i for batch in learn.model.seen for i in batch]
    assert 1 <= done < 4 and learn.run_state.cursor == (0, len(past))
    data.read.zero_()
    learn.step()
    assert not data.read[past].any()
    learn.train()
    assert same(learn, want)


def test_an_error_in_the_first_step():
    "Then there is no state yet; a data set that goes on where it was left is put back to its beginning."
    class Breaking(Sticky):
        example = breaking
    data = Breaking()
    data.kind, data.when, data.once = OSError, 3, torch.ones(1)
    want, learn = learner(Sticky()), learner(data)
    want.train()
    with pytest.raises(OSError): learn.step()
    learn.train()
    assert same(learn, want)


def test_a_stream_that_is_shorter_than_it_was():
    "That is noticed where it is read. Where a state is loaded, nothing is left, and the epoch ends."
    for make, short in ((Stream, lambda: Stream(n=5)), (Own, lambda: Own(n=5))):
        learn = learner(make())
        learn.step(2)
        learn.snapshot("a")
        other = learner(short())
        other.restore(learn.snapshots["a"])
        if make is Stream:
            with pytest.raises(ValueError, match="ended after 5 samples, but the run is at sample 12"): other.step()
        else:
            other.step()
            assert other.run_state.cursor == (2, 0) or other.run_state.cursor.epoch == 1


class Fails(Own):
    def load_state_dict(self, state): raise KeyError("at_")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_that_cannot_be_loaded(workers):
    "The error says what was being done, and what to type to do without."
    want = learner(Fails(), workers)
    want.train()
    learn = learner(Fails(), workers)
    learn.step(2)
    learn.snapshot("a")
    learn.restore("a")
    learn.run_state.loader.close()
    with pytest.raises(KeyError) as e: learn.step()
    told = "".join(getattr(e.value, "__notes__", [])) + str(e.value)
    assert "was being resumed after sample" in told and "learn.train_dataset = learn.train_dataset" in told
    learn.train_dataset = learn.train_dataset
    learn.train()
    assert same(learn, want)


def test_other_workers():
    "A place that they have not read up to is refused, before anything is changed. Settings that the loader follows are restored with it."
    learn = learner(DataLoader(Own(), batch_size=2, collate_fn=collate, num_workers=2))
    learn.step(2)
    place = learn.snapshot()
    for make in (Own, Stream):
        other = learner(DataLoader(make(), batch_size=2, collate_fn=collate))
        other.step()
        before = other.snapshot()
        with pytest.raises(ValueError, match=r"middle of an epoch of a stream that was loaded with num_workers=2, and here it is 0.*Load the data with num_workers=2"):
            other.restore(place)
        assert differences(other.snapshot(), before) == [] and other.state.global_step == 1
    other = learner(DataLoader(Own(), batch_size=4, collate_fn=collate, num_workers=2))
    with pytest.raises(ValueError, match="batch_size=2, and here it is 4"): other.restore(place)
    want, places = undisturbed(Own, 2)
    follows = learner(Own(), 0)
    follows.step()
    follows.restore(places[2][0])
    follows.train()
    assert follows.args.dataloader_num_workers == 2 and same(follows, want, after=2)


def test_a_bookmark_of_another_place_is_not_used():
    learn = learner(Own())
    learn.step(2)
    learn.run_state.cursor = Cursor(0, 2)
    learn.step()
    assert learn.model.seen[6:] == learn.model.seen[1:4]


# --- which states are exact --------------------------------------------------------------------------------------------

def test_what_has_states():
    assert is_stateful(Own()) and is_stateful(IterableWrapper(Foreign())) and not is_stateful(Stream()) and not is_stateful(Asks())
    assert not is_stateful(IterableWrapper([1, 2])) and not hasattr(IterableWrapper([1, 2]), "state_dict") and not hasattr(IterableWrapper([1, 2]), "load_state_dict")
    class Half(Own): state_dict = None
    assert not is_stateful(Half())
    class Stub(Own):
        def state_dict(self): raise NotImplementedError
    class Late(Own):
        def state_dict(self):
            if not self.at: raise RuntimeError("not begun")
            return super().state_dict()
    assert dataset_states(Stub()) is None and dataset_states(Late()) is not None
    want, _ = undisturbed(Own)
    for make in (Stub, Late):
        learn = learner(make())
        learn.step(2); learn.snapshot("a"); learn.step(); learn.restore("a"); learn.train()
        assert same(learn, want)


def test_states_of_datasets(monkeypatch):
    "Only of versions and parts that were tried; not with coroutines, on tables, of subclasses, or where the parts cannot be looked at."
    async def later(row): return row
    def known(d): return isinstance(dataset_states(d), HFDatasetStates)
    stream = datasets.IterableDataset.from_generator(generated, gen_kwargs={"shards": SHARDS})
    rows = datasets.Dataset.from_dict({"number": [1, 2, 3]}).to_iterable_dataset()
    assert known(stream) and known(rows) and known(rows.with_format("torch")) and known(stream.map(plain, batched=True).skip(1).take(2).repeat(2))
    assert dataset_states(rows.filter(plain)).again is False and dataset_states(stream.filter(plain)).again is True and dataset_states(rows.map(plain, batched=True)).again is True
    assert not known(stream.map(later)) and not known(rows.with_format("arrow").map(plain, batched=True).with_format("torch")) and not known(stream.shuffle(buffer_size=3))
    assert not known(datasets.concatenate_datasets([rows, rows.shuffle(buffer_size=2)]).map(plain))
    class Mine(type(stream)): pass
    mine = Mine(stream._ex_iterable)
    assert not known(mine) and dataset_states(mine) is None
    class Unknown(type(stream._ex_iterable)): pass
    assert rereads_on_resume(Unknown(generated, {})) is None
    for name, value in (("__version__", "5.1.9"), ("__version__", "dev")):
        with monkeypatch.context() as m:
            m.setattr(datasets, name, value)
            assert dataset_states(stream) is None and isolate_dataset(stream) is stream
    assert known(stream) and isolate_dataset(stream) is not stream
    broken = datasets.IterableDataset.from_generator(generated, gen_kwargs={"shards": SHARDS})
    del broken._ex_iterable
    assert dataset_states(broken) is None


def test_a_stream_of_its_own():
    "Streams of datasets are read from a copy, whether states are used or not: their parts hold positions, and threads of theirs go on for a while."
    def parts(node): return [id(node)] + [i for child in child_iterables(node) for i in parts(child)]
    for kind in ("interleaved", "shuffled below"):
        stream = STREAMS[kind][0]()
        read = StreamSource(DataLoader(stream, batch_size=2), seed=0).dataset.dataset
        assert type(read) is type(stream) and len(parts(read._ex_iterable)) > 4 and not set(parts(read._ex_iterable)) & set(parts(stream._ex_iterable))
        read.set_epoch(3)
        assert stream.epoch == 0
    broken = STREAMS["shuffled"][0]()
    del broken._epoch
    assert isolate_dataset(broken) is broken and isolate_dataset([1]) == [1]


def test_doubt():
    "Where numbers were drawn on the way to a state, it is not trusted, and nothing is given."
    states = dataset_states(datasets.IterableDataset.from_generator(generated, gen_kwargs={"shards": SHARDS, "draws": True}))
    examples = states.anew(0)
    next(examples)
    with pytest.raises(InexactState, match="random numbers"): next(states.after({"at": 1, "state": states.now()}))
    states = dataset_states(datasets.IterableDataset.from_generator(generated, gen_kwargs={"shards": SHARDS}))
    with pytest.raises(InexactState, match="does not fit"): next(states.after({"at": 1, "state": {"epoch": 0, "examples_iterable": {"wrong": 1}}}))


def test_where_a_data_set_was_put_by_its_user():
    "A state that a stream of datasets has been given beforehand is where it begins, each time."
    stream = datasets.IterableDataset.from_generator(generated, gen_kwargs={"shards": SHARDS})
    rows = iter(stream)
    for _ in range(3): next(rows)
    stream.load_state_dict(stream.state_dict())
    source = StreamSource(DataLoader(stream, batch_size=2), seed=0)
    begun = [b["number"].tolist() for b, _ in source.open(Cursor())]
    assert begun[0] == [3, 4]
    first = source.open(Cursor())
    next(first)
    bookmark = source.bookmark
    assert [b["number"].tolist() for b, _ in source.open(Cursor(0, 2), bookmark)] == begun[1:]
    assert [b["number"].tolist() for b, _ in source.open(Cursor())] == begun


class Arrays(Own):
    "A state of tensors and arrays."
    begun = 0
    def __iter__(self): self.begun += 1; return super().__iter__()
    def state_dict(self): return {"at": self.at, "t": torch.full((2,), float("nan")), "a": np.array([self.at, 0])}


def test_a_state_of_tensors():
    "It can be compared, too: nobody has moved the data set, so each epoch is begun once."
    learn = learner(data := Arrays())
    learn.train()
    assert data.begun == 2
    learn.restore(learn.snapshot())
    assert is_identical(learn.run_state.bookmark["marks"][0]["state"]["t"], torch.full((2,), float("nan")))


def test_pinning_leaves_a_mark_alone():
    "It goes through the loader's pinning with its batch, which makes lists of tuples."
    mark = StreamMark(0, 4, 4, {"place": (1, 2)}, False)
    assert pin_memory((4, mark))[1] is mark and mark.state == {"place": (1, 2)}


class Ticks(Own):
    "A state in which something never comes back."
    ticks = 0
    def state_dict(self): Ticks.ticks += 1; return super().state_dict() | {"ticks": Ticks.ticks}


def test_a_state_that_never_comes_back():
    "The data set is taken for moved each time, which costs time, but nothing is lost."
    want, _ = undisturbed(Own)
    learn = learner(Ticks())
    learn.step(3)
    learn.reset()
    learn.train()
    assert losses(learn) == losses(want)


class Ten(IterableDataset):
    "A stream without a length."
    def __iter__(self): return iter([{"x": torch.tensor([float(i)]), "labels": 0} for i in range(10)])

class Batches(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.count = nn.Linear(1, 1), 0
    def forward(self, x, labels=None):
        self.count += 1
        return {"loss": self.layer(x).square().mean()}

def test_the_rest_of_an_epoch_is_a_step():
    "The Trainer adds the gradients of the remaining micro-batches to those of the next epoch's first step."
    transformers = pytest.importorskip("transformers")
    settings = dict(max_steps=6, per_device_train_batch_size=1, gradient_accumulation_steps=4, use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True,
                    logging_strategy="no")
    def counts(base, make):
        model, found = Batches(), []
        class Counts(base):
            not_state = ("found",)
            def on_step_end(self, *args, **kwargs): found.append(model.count)
        make(model, Counts()).train()
        return found
    def theirs(model, callback):
        return transformers.Trainer(model, transformers.TrainingArguments(output_dir="none", **settings), train_dataset=Ten(), callbacks=[callback])
    def ours(model, callback): return Learner(model, train_dataset=Ten(), callbacks=[callback], **settings)
    assert counts(transformers.TrainerCallback, theirs) == [4, 8, 14, 18, 24, 28]
    assert counts(TrainerCallback, ours) == [4, 8, 10, 14, 18, 20]

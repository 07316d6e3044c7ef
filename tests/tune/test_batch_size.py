"The batch size finder: with real limits, and no trace of it in the run."
import os, signal, sys, threading, time

import pytest, torch
from torch import nn
from torch.utils.data import IterableDataset

from trainer_nb import Learner, differences
from trainer_nb.core.errors import Paused
from trainer_nb.tune import batch_size
from trainer_nb.tune.batch_size import BatchSizes, Proposal, SizeResult, SizeSearch, propose_size, search_sizes
from toys import finish, hard_learner, unequal

MB = 250_000   # floats


class Hungry(nn.Module):
    "Keeps `each` MB for each sample from the forward pass to the backward pass."
    def __init__(self, each=40):
        super().__init__()
        self.layer, self.each = nn.Linear(4, 1), each

    def forward(self, x, labels=None):
        out = self.layer(x)
        kept = out.new_ones(len(x), self.each * MB) * out   # saved for the way back: once as ones, once as the product
        return {"loss": (kept * kept.detach()).mean()}


class Limited(nn.Module):
    "Runs out of memory above 8 samples."
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x):
        if len(x) > 8: raise MemoryError
        return {"loss": self.layer(x).square().mean()}


def data(n=64): return [{"x": torch.randn(4)} for _ in range(n)]


def learner(model, cls=Learner, n=64, **given):
    settings = dict(train_dataset=data(n), per_device_train_batch_size=4, gradient_accumulation_steps=4, max_steps=20, use_cpu=True, disable_tqdm=True)
    return cls(model, **settings | given)


def tried(found): return {o.size: o.fits for o in found.rows}


# --- what fits --------------------------------------------------------------------------------------------------------

def test_a_known_limit_makes_a_known_size_the_largest():
    "40 MB a sample, held three or four times at the fullest moment: measured once, and the limit laid between two sizes."
    one = learner(Hungry()).batch_size_find(start=4, most=4, memory=3)
    each = one.rows[-1].memory / 4
    found = learner(Hungry()).batch_size_find("binary", memory=5.5 * each / 1000)
    assert found.largest == 5 and tried(found)[6] is False and tried(found)[4] is True, found.rows
    assert 80 < each < 200
    assert all(o.memory < 5.5 * each for o in found.rows if o.fits) and 8 in tried(found)
    memory = {o.size: o.memory for o in found.rows if o.fits}
    assert 1.7 < memory[4] / memory[2] < 2.3


def test_the_doubled_sizes_stop_at_the_first_that_does_not_fit():
    found = learner(Hungry(), n=1000).batch_size_find(memory=1)
    fitting = [o for o, fits in tried(found).items() if fits]
    assert fitting == [2**i for i in range(len(fitting))] and len(found.rows) == len(fitting) + 1 and 2 <= len(fitting) < 6
    assert not found.rows[-1].fits and found.rows[-1].why


def test_nothing_fits():
    found = learner(Hungry(400)).batch_size_find(memory=0.3)
    assert found.largest is None and found.fastest is None and found.proposal is None
    assert "Nothing fits into 300" in found.said()[0] and found.panels() == []
    with pytest.raises(ValueError, match="none can be applied"): found.apply()


def test_the_data_and_most_end_the_search():
    found = learner(Limited(), n=6).batch_size_find()
    assert found.largest == 6 and found.rows[-1].fits and "the data has 6 samples" in found.said()[-1]
    found = learner(Limited()).batch_size_find(most=3)
    assert found.largest == 3 and "most=3" in found.said()[-1]


def test_only_so_many_samples_are_read():
    "Of a set that holds a lock, and whose samples are parts of a large tensor."
    class Locked(torch.utils.data.Dataset):
        def __init__(self): self.lock, self.x = threading.Lock(), torch.randn(100_000, 400)
        def __len__(self): return len(self.x)
        def __getitem__(self, i):
            reads.append(i)
            return {"x": self.x[i, :4]}
    reads = []
    found = learner(Limited(), train_dataset=Locked()).batch_size_find()
    assert found.largest == 8 and len(reads) in (256, 257)   # one more is looked at to see whether it has a label


def test_a_stream_and_its_longest_samples():
    class Stream(IterableDataset):
        def __iter__(self): return ({"x": torch.ones(n % 7 + 1)} for n in range(50))
    def pad(rows): return {"x": nn.utils.rnn.pad_sequence([r["x"] for r in rows], batch_first=True)}
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(7, 1)
        def forward(self, x): return {"loss": self.layer(x).mean()}   # fails for all but the longest
    found = learner(Wide(), train_dataset=Stream(), data_collator=pad).batch_size_find(most=4)
    assert found.largest == 4 and any("differ in size" in o for o in found.said())


# --- what goes with it ------------------------------------------------------------------------------------------------

class Own(Learner):
    "Overridden in the two places where it matters, and with an attribute of its own."
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        if len(inputs["x"]) > self.bound: raise MemoryError
        loss = model.layer(inputs["x"]).mean()
        return (loss, {"loss": loss}) if return_outputs else loss

    def training_step(self, model, inputs, num_items_in_batch=None):
        assert len(inputs["x"]) != 1, "one alone"
        return super().training_step(model, inputs, num_items_in_batch)


def test_overridden_moves_and_the_learners_attributes_go_along():
    learn = learner(Limited(), Own)
    learn.bound = 4
    found = learn.batch_size_find()
    assert tried(found) == {1: False, 2: True, 4: True, 8: False}
    assert "one alone" in found.rows[0].why and found.rows[-1].why == "memory ran out"


def test_an_optimizer_that_was_given_and_a_schedule_with_an_end():
    model = Limited()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)   # refuses a 21st step
    learn = learner(model, optimizers=(optimizer, schedule))
    learn.step(19)
    assert learn.batch_size_find().largest == 8
    learn.step()


def test_what_is_wrong_with_the_model_is_said():
    class Wrong(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1)
        def forward(self, x): return {"loss": self.layer(x).mean()}
    with pytest.raises(RuntimeError, match=r"could not take a single step, with 1 or 2 samples: ValueError: The input of the layer 'layer'.*Linear\(in_features=3"): learner(Wrong()).batch_size_find()


def test_data_in_batches_of_its_own():
    with pytest.raises(TypeError, match="batches of its own"):
        learner(Limited(), type("L", (Learner,), {"get_train_dataloader": lambda self: [{"x": torch.zeros(2, 4)}] * 9})).batch_size_find()


@pytest.mark.parametrize("wrong, message", [
    (dict(mode="fast"), r"mode is 'power' \(sizes are doubled\) or 'binary' \(then the exact largest\), not 'fast'\."),
    (dict(start=0), r"start must be a positive integer, got 0\."), (dict(most=2.5), r"most must be a positive integer, got 2\.5\."),
    (dict(steps=0), r"steps must be a positive integer, got 0\."), (dict(memory=-1), r"memory \(in GB\) must be positive, got -1\."),
    (dict(seconds=0), r"seconds must be positive, got 0\.")])
def test_arguments_that_make_no_sense(wrong, message):
    with pytest.raises(ValueError, match=f"^{message}$"): learner(Limited()).batch_size_find(**wrong)


# --- what is proposed -------------------------------------------------------------------------------------------------

def row(size, speed): return SizeResult(size, speed > 0, speed or None)


@pytest.mark.parametrize("rows, total, want", [
    ([(1, 9), (2, 8), (4, 7)], 8, (1, 8)), ([(1, 1), (2, 2), (4, 3)], 8, (4, 2)), ([(1, 1), (2, 2), (4, 3)], 6, (2, 3)), ([(4, 3), (8, 5)], 6, (8, 1)),
    ([(1, 1), (8, 5)], 7, (1, 7)), ([(2, 1), (16, 5)], 8, (2, 4)), ([(16, 5)], 8, (16, 1)), ([(3, 1), (5, 2)], 30, (5, 6)), ([(1, 0), (2, 4)], 9, (2, 4))])
def test_the_global_batch_is_kept_or_the_nearest(rows, total, want):
    assert propose_size([row(*o) for o in rows], total) == want


def test_apply_keeps_the_global_batch_and_is_told():
    learn = learner(Limited(), per_device_train_batch_size=6, gradient_accumulation_steps=2)
    learn.step(2)
    found = learn.batch_size_find()
    assert tried(found) == {1: True, 2: True, 4: True, 6: True, 8: True, 16: False} and found.present == (6, 2)
    found.apply()
    assert learn.args.per_device_train_batch_size * learn.args.gradient_accumulation_steps == 12
    assert (learn.args.per_device_train_batch_size, learn.args.gradient_accumulation_steps) == tuple(found.proposal)
    learn.step()
    assert learn.history[-1].samples - learn.history[-2].samples in (12, 0) or learn.history[-1].samples == 12
    assert any("global batch" in o and "12" in o for o in found.said())


def test_it_says_when_the_global_batch_cannot_be_kept():
    found = BatchSizes([row(1, 0), row(2, 4.0)], Proposal(1, 9), None)
    assert "divides the global batch of 9 (1 × 9). The nearest is 2 × 4, a global batch of 8" in found.said()[-1]


def test_time_is_bounded_and_what_was_not_tried_is_said():
    def ask(size, accumulation):
        time.sleep(0.001 * size)
        return {"seconds": 1e-3 * size, "bytes": 1, "why": "", "memory": False}
    search = SizeSearch(ask, lambda size: 1, seconds=0.1)
    search_sizes(search, 1, exact=True)
    assert max(search.rows) in (16, 32, 64) and "was not tried" in search.notes[0] and "lies between" in search.notes[1]


# --- no trace ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("stops", [(2,), pytest.param((0, 2, 1), marks=pytest.mark.slow)])
def test_the_rest_of_the_run_is_the_same(stops):
    "In the middle of an epoch; before the first step and at the end of an epoch too."
    want, learn = finish(hard_learner(eval_dataset=hard_learner().train_dataset)), hard_learner(eval_dataset=hard_learner().train_dataset)
    for n in stops:
        if n: learn.step(n)
        before = learn.snapshot()
        assert learn.batch_size_find(most=8).largest == 8
        assert differences(before, learn.snapshot()) == []
    assert unequal(want, finish(learn)) == []


@pytest.mark.parametrize("name", ["free_host_memory", "is_iterable_only"])
def test_an_interrupt_before_the_first_size_cancels_the_search(monkeypatch, name):
    "The button is pressed between the preparation and the first trial."
    learn = hard_learner()
    learn.step(2)
    before, original = learn.snapshot(), getattr(batch_size, name)
    def pressed(*args):
        os.kill(os.getpid(), signal.SIGINT)
        return original(*args)
    monkeypatch.setattr(batch_size, name, pressed)
    with pytest.raises(Paused, match="batch_size_find.. was cancelled. The run is unchanged, after step 2"): learn.batch_size_find()
    assert differences(before, learn.snapshot()) == []


class Picky:
    "A hook that fails as a GPU does, or otherwise, in the backward pass above a size."
    def __init__(self, bound, error): self.bound, self.error, self.model = bound, error, None
    def __call__(self, name):
        if name == "collate" and self.bound is not None: self.size = sys._getframe(1).f_locals["rows"].__len__()
        if name == "backward" and self.bound is not None and self.size > self.bound: raise self.error


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), pytest.param(KeyboardInterrupt(), marks=pytest.mark.slow), pytest.param(SystemError("no"), marks=pytest.mark.slow)], ids=lambda o: type(o).__name__)
def test_sizes_that_fail_leave_no_trace(error):
    "No trace, neither after sizes that failed nor after an interrupt."
    hook = Picky(None, error)
    want, learn = finish(hard_learner()), hard_learner(hook=hook)
    learn.step(2)
    hook.bound, before = 6, learn.snapshot()
    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt, match="cancelled. The run is unchanged"): learn.batch_size_find("binary")
    else:
        found = learn.batch_size_find("binary")
        assert found.largest == 6 and tried(found)[7] is False and found.proposal.global_batch == 12
    hook.bound = None
    assert differences(before, learn.snapshot()) == []
    assert unequal(want, finish(learn)) == []


# --- a GPU ------------------------------------------------------------------------------------------------------------

@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("memory", [None, 2.0])
def test_on_a_gpu_by_real_out_of_memory(memory):
    "In this process; afterwards the memory is free and the run goes on as if nothing had been."
    gpu = dict(use_cpu=False, full_determinism=True)
    try:
        want, learn = finish(hard_learner(**gpu)), hard_learner(**gpu)
        learn.step(2)
        before, taken = learn.snapshot(), torch.cuda.memory_allocated()
        assert learn.batch_size_find(most=16).largest == 16
        assert differences(before, learn.snapshot()) == []
        assert torch.cuda.memory_allocated() < taken + (1 << 20)
        assert unequal(want, finish(learn)) == []
        hungry = learner(Hungry(400), use_cpu=False, train_dataset=data(4096))
        found = hungry.batch_size_find("binary", memory=memory)
        first_too_large = min(o.size for o in found.rows if not o.fits)
        assert found.largest + 1 == first_too_large and (memory is None) == (found.largest > 10)
        hungry.step()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic = False

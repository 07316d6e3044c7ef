"Attributes of samplers that change in a run: by reading them, by a callback, by their user."
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, WeightedRandomSampler

from toys import Seen
from trainer_nb import Learner, TrainerCallback

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:train_dataset is a DataLoader")]

N = 16


class Rows(Dataset):
    def __len__(self): return N
    def __getitem__(self, i): return {"x": torch.tensor([float(i)]), "labels": 0}


class Hard(Sampler):
    "The hard samples come first."
    def __init__(self): self.hard = []
    def __len__(self): return N
    def __iter__(self): return iter((self.hard + list(range(N)))[:N])

class Counting(Sampler):
    "Counts the epochs itself, when it is read to its end."
    def __init__(self): self.epoch = 0
    def __len__(self): return N
    def __iter__(self):
        yield from torch.randperm(N, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        self.epoch += 1

class Groups(Sampler):
    "A batch sampler that goes on where the last epoch has ended."
    def __init__(self): self.order, self.given = list(range(N)), {"batches": 0}
    def __len__(self): return N // 4
    def __iter__(self):
        batches = [self.order[i:i + 4] for i in range(0, N, 4)]
        self.order[:] = self.order[3:] + self.order[:3]
        self.given["batches"] += len(batches)
        return iter(batches)


class Changes(TrainerCallback):
    "Changes the sampler in every step."
    def __init__(self, change): self.change = change
    def on_step_end(self, args, state, control, **kwargs): self.change(state.global_step)


def hard():
    sampler = Hard()
    return DataLoader(Rows(), batch_size=4, sampler=sampler), lambda step: sampler.hard.append(step % N)

def counting(): return DataLoader(Rows(), batch_size=4, sampler=Counting()), lambda step: None
def groups(): return DataLoader(Rows(), batch_sampler=Groups()), lambda step: None

def weighted():
    sampler = WeightedRandomSampler([1.0] * N, N)
    def change(step): sampler.weights[step % N] = 50.0
    return DataLoader(Rows(), batch_size=4, sampler=sampler), change

KINDS = {"hard": hard, "counting": counting, "groups": groups, "weighted": weighted}


def make(kind, **more):
    torch.manual_seed(0)
    loader, change = KINDS[kind]()
    settings = dict(num_train_epochs=4, learning_rate=1e-2, use_cpu=True, disable_tqdm=True, report_to="none", save_strategy="no", callbacks=[Changes(change)])
    return Learner(Seen(), **{"train_dataset": loader} | settings | more)

def whole(kind):
    learn = make(kind)
    learn.train()
    assert len({str(learn.model.seen[i:i + 4]) for i in (0, 4, 8, 12)}) == 4
    return learn.model.seen


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_in_parts(kind):
    "Also where other code reads the data, and where the first step of an epoch fails."
    learn = make(kind, rewind_every=2)
    for steps in (3, 1, 2):
        if steps == 2:
            failing = learn.model.register_forward_pre_hook(lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError): learn.step()
            failing.remove()
        learn.step(steps)
        seen = len(learn.model.seen)
        learn.lr_find(num_steps=10), learn.inspect(), learn.show_batch(), learn.evaluate(learn.train_dataset)
        del learn.model.seen[seen:]
    for steps, back in ((7, 6), (5, 7)):
        learn.step(steps)
        learn.rewind(back)
        del learn.model.seen[learn.state.global_step:]
    learn.train()
    assert learn.model.seen == whole(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_step_of_an_epoch_fails(kind, tmp_path):
    "The samplers were read for it: a snapshot and a checkpoint taken before it is repeated go on with the same batches."
    learn = make(kind, output_dir=str(tmp_path))
    learn.step(4)
    failing = learn.model.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError): learn.step()
    failing.remove()
    seen = learn.model.seen[:4]
    del learn.model.seen[4:]
    learn.snapshot("a")
    learn.save_checkpoint()
    learn.step(6)
    learn.restore("a")
    del learn.model.seen[4:]
    later = make(kind, output_dir=str(tmp_path))
    for run in (learn, later): run.train(resume_from_checkpoint=run is later)
    assert learn.model.seen == seen + later.model.seen == whole(kind)


@pytest.mark.parametrize("step", [1, 4, 6, 11])
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run(kind, step, tmp_path):
    first = make(kind, output_dir=str(tmp_path))
    first.step(step)
    first.save_checkpoint()
    later = make(kind, output_dir=str(tmp_path))
    later.train(resume_from_checkpoint=True)
    assert first.model.seen + later.model.seen == whole(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_begins_anew(kind):
    learn = make(kind)
    learn.step(9)
    learn.reset()
    learn.model.seen.clear()
    learn.train()
    assert learn.model.seen == whole(kind)


@pytest.mark.parametrize("kind", ["counting", "groups"])
def test_a_branch_has_its_own(kind):
    learn = make(kind)
    learn.step(6)
    other = learn.branch()
    other.train()
    seen = len(learn.model.seen)
    learn.train()
    expected = whole(kind)
    assert learn.model.seen == expected and other.model.seen[-10:] == expected[seen:]


def test_other_code_keeps_its_reference():
    loader, change = hard()
    mine = loader.sampler.hard
    learn = make("hard", train_dataset=loader, callbacks=[Changes(change)])
    learn.step(5)
    before = learn.snapshot()
    learn.step(3)
    learn.restore(before)
    assert loader.sampler.hard is mine and mine == [1, 2, 3, 4, 5]


def test_a_change_at_the_beginning_of_an_epoch_counts():
    "However the run is divided into verbs."
    loader, _ = hard()
    def change(*_): loader.sampler.hard = [7]
    class AtBegin(TrainerCallback):
        def on_epoch_begin(self, args, state, control, **kwargs):
            if state.epoch: change()
    learn = make("hard", train_dataset=loader, callbacks=[AtBegin()])
    learn.step(4)
    learn.summary(), learn.snapshot()
    learn.step(4)
    assert learn.model.seen[4][0] == 7


def test_samplers_without_state_have_no_bookmark():
    for loader in (DataLoader(Rows(), batch_size=4, shuffle=True), DataLoader(Rows(), batch_size=4)):
        learn = make("hard", train_dataset=loader, callbacks=[])
        learn.step(2)
        assert learn.run_state.bookmark is None
        assert not any(name.startswith("batch_sampler") for name in learn.snapshot().values["user"]["holders"])


def test_a_large_list_is_data():
    class Large(Hard):
        def __init__(self):
            super().__init__()
            self.lengths = [0] * 200_000
    sampler = Large()
    learn = make("hard", train_dataset=DataLoader(Rows(), batch_size=4, sampler=sampler), callbacks=[])
    learn.step(2)
    assert len(learn.run_state.bookmark["samplers"].tree.nodes) == 2
    before = learn.snapshot()
    sampler.lengths = [1]
    learn.restore(before)
    assert sampler.lengths == [1]

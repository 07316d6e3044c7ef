"set_epoch() of map-style data sets, samplers and collators: wherever a batch is made, they have the epoch of the batch."
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Sampler, Subset

from toys import Seen
from trainer_nb import Learner, TrainerCallback

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:train_dataset is a DataLoader")]

N = 16


class Rows(Dataset):
    "A sample is its index and 100 times the epoch."
    def __init__(self): self.epoch, self.calls = -1, []
    def __len__(self): return N
    def set_epoch(self, epoch):
        self.epoch = epoch
        self.calls.append(epoch)
    def __getitem__(self, i): return {"x": torch.tensor([i + 100.0 * self.epoch]), "labels": 0}


class Drawn(Rows):
    "Draws an offset for each epoch, from its own generator and from the global one."
    def __init__(self):
        super().__init__()
        self.rng, self.offset = torch.Generator().manual_seed(3), 0.0
    def set_epoch(self, epoch):
        super().set_epoch(epoch)
        self.offset = torch.rand((), generator=self.rng).item() + torch.rand(()).item()
    def __getitem__(self, i): return {"x": torch.tensor([self.offset]), "labels": 0}


class Collate:
    def __init__(self): self.epoch = -1
    def set_epoch(self, epoch): self.epoch = epoch
    def __call__(self, rows): return {"x": torch.stack([r["x"] for r in rows]) + 1000 * self.epoch, "labels": torch.zeros(len(rows))}


class Rotated(Sampler):
    "Asks the data set for the epoch."
    def __init__(self, data): self.data = data
    def __len__(self): return N
    def __iter__(self): return iter([(i + self.data.epoch) % N for i in range(N)])


DATA = {
    "data set": lambda: {"train_dataset": Rows()},
    "subset": lambda: {"train_dataset": Subset(Rows(), range(N))},
    "several": lambda: {"train_dataset": ConcatDataset([Rows()])},
    "collator": lambda: {"train_dataset": Rows(), "data_collator": Collate()},
    "drawn": lambda: {"train_dataset": Drawn()},
}


def make(what, **more):
    torch.manual_seed(0)
    settings = dict(per_device_train_batch_size=4, per_device_eval_batch_size=4, num_train_epochs=3, learning_rate=1e-2, use_cpu=True, disable_tqdm=True,
                    report_to="none", save_strategy="no")
    return Learner(Seen(), **settings | DATA[what]() | more)

def epochs(learn): return [{round(x // 100) % 10 for x in batch} for batch in learn.model.seen]

def whole(what):
    learn = make(what)
    learn.train()
    return learn.model.seen


WORKERS = {"none": {}, "two": {"dataloader_num_workers": 2}, "persistent": {"dataloader_num_workers": 2, "dataloader_persistent_workers": True}}


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("what", DATA)
def test_each_batch_has_its_epoch(what, workers):
    learn = make(what, **WORKERS[workers])
    learn.train()
    assert learn.model.seen == whole(what)
    if what != "drawn": assert epochs(learn) == [{k} for k in range(3) for _ in range(4)]
    if what == "drawn": assert len({batch[0] for batch in learn.model.seen}) == 3


def test_it_is_called_once_for_an_epoch():
    learn = make("data set")
    learn.train()
    assert learn.train_dataset.calls == [0, 1, 2]


@pytest.mark.parametrize("workers", ["none", "persistent"])
@pytest.mark.parametrize("what", DATA)
def test_after_other_code_has_read_the_data(what, workers):
    learn = make(what, rewind_every=1, **WORKERS[workers])
    learn.step(6)
    learn.lr_find(num_steps=10), learn.inspect(), learn.show_batch(), learn.evaluate(learn.train_dataset)
    learn.model.seen = learn.model.seen[:6]
    for steps, back in ((3, 3), (1, 4)):
        learn.step(steps)
        learn.rewind(back)
        del learn.model.seen[learn.state.global_step:]
    learn.train()
    assert learn.model.seen == whole(what)


@pytest.mark.parametrize("workers", ["none", "two"])
@pytest.mark.parametrize("step", [4, 6])
@pytest.mark.parametrize("what", DATA)
def test_after_a_resume(what, step, workers, tmp_path):
    first = make(what, output_dir=str(tmp_path))
    first.step(step)
    first.save_checkpoint()
    learn = make(what, output_dir=str(tmp_path), **WORKERS[workers])
    learn.train(resume_from_checkpoint=True)
    assert first.model.seen + learn.model.seen == whole(what)


@pytest.mark.parametrize("what", DATA)
def test_a_step_that_fails_at_the_beginning_of_an_epoch(what):
    learn = make(what)
    learn.step(4)
    before = learn.snapshot()
    for times in range(2):
        failing = learn.model.register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError): learn.step()
        failing.remove()
        learn.step(2)
        if not times:
            learn.restore(before)
            del learn.model.seen[4:]
    learn.train()
    assert learn.model.seen == whole(what)


def test_an_evaluation_sets_no_epoch():
    "It reads the data as they are."
    data = Rows()
    learn = make("data set", eval_dataset=data)
    learn.evaluate()
    assert data.calls == []


def test_a_sampler_that_asks_the_data_set():
    data = Rows()
    loader = DataLoader(data, batch_size=4, sampler=Rotated(data))
    learn = make("data set", train_dataset=loader)
    learn.train()
    assert [batch[0] for batch in learn.model.seen[::4]] == [0, 101, 202] and epochs(learn) == [{k} for k in range(3) for _ in range(4)]


def test_the_calls_are_those_of_the_trainer():
    transformers = pytest.importorskip("transformers")
    theirs, data = Rows(), Rows()
    args = transformers.TrainingArguments(num_train_epochs=3, per_device_train_batch_size=4, use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True,
                                          logging_strategy="no", output_dir="none")
    model = Seen()
    transformers.Trainer(model, args, train_dataset=theirs).train()
    learn = make("data set", train_dataset=data)
    learn.train()
    assert sorted(set(theirs.calls)) == data.calls
    assert [{round(x // 100) for x in batch} for batch in model.seen] == epochs(learn)


class Lengths(Sampler):
    "Has another length in each epoch: as many batches of 4 as are listed."
    def __init__(self, *batches): self.batches, self.epoch = batches, 0
    def set_epoch(self, epoch): self.epoch = epoch
    def __len__(self): return 4 * self.batches[min(self.epoch, len(self.batches) - 1)]
    def __iter__(self): return iter(k % N for k in range(len(self)))


class OwnBatches:
    "An iterable of batches, whose number changes likewise."
    dataset = None
    def __init__(self, *batches): self.sampler = Lengths(*batches)
    def set_epoch(self, epoch): self.sampler.set_epoch(epoch)
    def __len__(self): return len(self.sampler) // 4
    def __iter__(self): return ({"x": torch.ones(4, 1), "labels": torch.zeros(4)} for _ in range(len(self)))


class FromLoader(Learner):
    def get_train_dataloader(self): return self.train_dataset


VARYING = {"growing": (2, 4, 6), "shrinking": (6, 4, 2), "a late change": (2, 2, 5), "one batch": (3, 1, 3)}


def varying(lengths, own=False, **more):
    more = dict(eval_strategy="epoch", eval_dataset=Rows(), per_device_train_batch_size=4, learning_rate=1e-2, use_cpu=True, disable_tqdm=True, report_to="none") | more
    if own: return FromLoader(Seen(), train_dataset=OwnBatches(*lengths), **more)
    return Learner(Seen(), train_dataset=DataLoader(Rows(), batch_size=4, sampler=Lengths(*lengths)), **more)


def ends(lengths): return [sum(lengths[:k + 1]) for k in range(len(lengths))]
def evaluations(learn): return [(row["step"], row["epoch"]) for row in learn.state.log_history if "eval_loss" in row]


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("lengths", VARYING.values(), ids=VARYING)
def test_epochs_of_different_lengths_are_counted(lengths, own):
    learn = varying(lengths, own)
    learn.train()
    assert evaluations(learn) == [(step, k + 1.0) for k, step in enumerate(ends(lengths))]
    assert learn.state.global_step == learn.state.max_steps == sum(lengths) and learn.state.epoch == 3
    assert [r.epoch for r in learn.history] == pytest.approx([k + (i + 1) / n for k, n in enumerate(lengths) for i in range(n)])
    parts = varying(lengths, own)
    assert [len(parts.run(epochs=1)) for _ in lengths] == list(lengths) and parts.run_state.finished
    assert [len(varying(lengths, own).run(epochs=1.5))] == [lengths[0] + -(-lengths[1] // 2)]
    assert [r.learning_rate for r in parts.history] == [r.learning_rate for r in learn.history]
    assert learn.history[-1].learning_rate == pytest.approx(1e-2 / sum(lengths))                 # the last of a linear schedule


@pytest.mark.parametrize("lengths", VARYING.values(), ids=VARYING)
def test_going_back_between_epochs_of_different_lengths(lengths, tmp_path):
    whole = varying(lengths)
    whole.train()
    for step in range(1, sum(lengths)):
        learn = varying(lengths, output_dir=str(tmp_path / str(step)))
        learn.step(step)
        learn.save_checkpoint()
        resumed = varying(lengths)
        resumed.load_checkpoint(tmp_path / str(step) / f"checkpoint-{step}")
        learn.step(min(3, sum(lengths) - step))
        learn.rewind(to=step)
        for other in (learn, resumed):
            other.train()
            assert [(r.step, r.epoch, r.learning_rate) for r in other.history[-(sum(lengths) - step):]] == \
                [(r.step, r.epoch, r.learning_rate) for r in whole.history[step:]]
            assert other.state.max_steps == sum(lengths)


def test_a_length_that_a_callback_changes():
    class Harder(TrainerCallback):
        def on_epoch_begin(self, args, state, control, train_dataloader=None, **kwargs): sampler.batches = (2 + round(state.epoch),)
    sampler = Lengths(2)
    learn = Learner(Seen(), train_dataset=DataLoader(Rows(), batch_size=4, sampler=sampler), callbacks=[Harder()], learning_rate=1e-2, use_cpu=True,
                    disable_tqdm=True, report_to="none", eval_strategy="epoch", eval_dataset=Rows())
    learn.train()
    assert evaluations(learn) == [(2, 1.0), (5, 2.0), (9, 3.0)] and learn.state.max_steps == 9

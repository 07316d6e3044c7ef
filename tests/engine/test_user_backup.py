"What user code keeps in attributes is put back when a step fails: counters, tensors, generators, averages, extra state of modules."
import gc, random, warnings, weakref

import numpy as np
import pytest
import torch
from torch import nn

from trainer_nb import Learner, TrainerCallback, differences
from toys import Augmented, Boom, collate

pytestmark = pytest.mark.usefixtures("one_thread")


class Fails:
    "Raises at some passages; it lies outside the run, so no failed step takes its count back."
    def __init__(self, *at): self.at, self.n = at, 0
    def __call__(self):
        self.n += 1
        if self.n in self.at: raise Boom(f"passage {self.n}")


class Net(nn.Module):
    "A module with all kinds of state outside its parameters and buffers."
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.calls, self.scale = 0, torch.ones(8)
        self.noise, self.rng, self.dice = torch.Generator().manual_seed(0), np.random.default_rng(0), random.Random(0)
        self.seen, self.stats, self.nested = [], {"n": 0}, {"deep": [1, {"n": 0}]}
        self.extra = {"n": 0, "mean": torch.zeros(8)}

    def get_extra_state(self): return self.extra
    def set_extra_state(self, state): self.extra = state

    def forward(self, x, labels=None):
        h = torch.relu(self.body(x))
        if self.training:
            self.calls += 1
            self.scale.mul_(0.99)
            h = h * self.scale + 0.1 * torch.rand(h.shape, generator=self.noise) + 0.1 * float(self.rng.random()) + 0.1 * self.dice.random()
            self.seen.append(self.calls)
            self.stats["n"] += 1
            self.nested["deep"][1]["n"] += 1
            self.extra = {"n": self.extra["n"] + 1, "mean": 0.9 * self.extra["mean"] + 0.1 * h.detach().mean(0)}
            h = h + self.extra["mean"] + 0.01 * self.nested["deep"][1]["n"]
        logits = self.head(h)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def subclass(fails):
    class Own(Learner):
        "A baseline, a counter and averaged weights that compute_loss changes."
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.baseline, self.n, self.average = torch.zeros(()), 0, nn.Linear(8, 3)

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
            if model.training:
                self.n += 1
                loss = loss * (1 + 0.01 * self.n) - self.baseline
                self.baseline = 0.9 * self.baseline + 0.1 * loss.detach()
                with torch.no_grad():
                    for slow, fast in zip(self.average.parameters(), model.head.parameters()): slow.lerp_(fast, 0.1)
                if self.n > 3: self.late = getattr(self, "late", 0) + 1   # it begins to exist, and to change, later on
                fails()
            return (loss, outputs) if return_outputs else loss
    return Own


class Counts(TrainerCallback):
    def __init__(self): self.begun, self.ended, self.losses = 0, 0, []
    def on_step_begin(self, args, state, control, **kwargs): self.begun += 1
    def on_substep_end(self, args, state, control, **kwargs): self.losses.append(self.begun)
    def on_step_end(self, args, state, control, **kwargs): self.ended += 1


def learner(*at, **given):
    torch.manual_seed(0)
    settings = dict(max_steps=8, per_device_train_batch_size=4, gradient_accumulation_steps=2, learning_rate=1e-2, use_cpu=True, disable_tqdm=True,
                    logging_steps=1, train_dataset=Augmented(30), callbacks=[Counts()]) | given
    return subclass(Fails(*at))(Net(), data_collator=collate, **settings)


@pytest.mark.filterwarnings("ignore:.*has begun to change")
@pytest.mark.parametrize("at", [(1,), (2,), (3,), (4, 5), (8,), (1, 2, 3, 6, 9, 10)])
def test_a_step_that_fails_leaves_no_trace_in_attributes(at):
    "Whichever micro-batch fails, the run ends byte for byte as one without failures."
    learn, calm = learner(*at), learner()
    failed = 0
    while not learn.run_state.finished:
        before = learn.snapshot()
        try: learn.step()
        except Boom:
            failed += 1
            assert set(differences(before, learn.snapshot())) <= {"begun", "epoch_open"}
    calm.train()
    assert failed == len(at) and differences(learn.snapshot(), calm.snapshot()) == []
    callback = next(c for c in learn.run_state.callbacks.callbacks if isinstance(c, Counts))
    assert (callback.begun, callback.ended, learn.n, learn.model.calls, learn.model.extra["n"]) == (8, 8, 16, 16, 16)


def test_only_what_changes_before_the_update_is_copied():
    "A large constant and what on_step_end changes cost nothing."
    learn = learner()
    learn.unchanged = torch.zeros(1000)
    learn.step(3)
    backup = learn.run_state.copies.backups.user_state
    names = {f"{h.name}.{k}" for h in backup.changing.values() for k in h.only}
    assert not [n for n in names if n.endswith((".constant", ".ended"))] and [n for n in names if n.endswith(".baseline")]


def test_what_begins_to_change_later_joins_with_a_notice():
    learn = learner(logging_steps=1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        learn.step(6)
    assert any("late' has begun to change before the update" in str(w.message) for w in said)


class Drawing(Augmented):
    "Examples with noise from a generator of the data set."
    def __init__(self): super().__init__(); self.generator, self.fetched = torch.Generator().manual_seed(3), 0
    def __getitem__(self, i):
        self.fetched += 1
        row = super().__getitem__(i)
        return row | {"x": row["x"] + torch.randn(4, generator=self.generator)}


@pytest.mark.parametrize("look", [lambda learn: learn.summary(), lambda learn: learn.show_batch(), lambda learn: learn.inspect()], ids=["summary", "show_batch", "inspect"])
def test_looking_at_data_does_not_move_its_generator(look):
    "Tools that fetch training data leave a data set's own generator and counters as they were."
    calm, learn = learner(train_dataset=Drawing()), learner(train_dataset=Drawing())
    calm.step(2), learn.step(2)
    look(learn)
    assert learn.train_dataset.fetched == calm.train_dataset.fetched
    calm.train(), learn.train()
    assert differences(learn.snapshot(), calm.snapshot()) == []


def test_a_learner_is_freed_without_the_garbage_collector():
    "No copy of its state refers to it."
    learn = Learner(nn.Linear(4, 1), train_dataset=[(torch.ones(4), torch.ones(1))] * 8, loss_func=nn.functional.mse_loss, use_cpu=True, disable_tqdm=True)
    learn.step(2)
    held = weakref.ref(learn)
    gc.collect()
    gc.disable()
    try:
        del learn
        assert held() is None
    finally: gc.enable()

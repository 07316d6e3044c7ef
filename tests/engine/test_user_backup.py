"What a backup of attributes costs, and what it leaves alone; test_exact_state.py has the values that a failed step puts back."
import gc, weakref

import pytest
import torch
from torch import nn

from trainer_nb import Learner, TrainerCallback, differences
from toys import Augmented, collate

pytestmark = pytest.mark.usefixtures("one_thread")


class Net(nn.Module):
    def __init__(self): super().__init__(); self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
    def forward(self, x, labels=None):
        logits = self.head(torch.relu(self.body(x)))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Own(Learner):
    "A baseline that compute_loss changes, and a counter that begins to exist later on."
    def __init__(self, *args, **kwargs): super().__init__(*args, **kwargs); self.baseline = torch.zeros(())
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch) - self.baseline
        self.baseline = 0.9 * self.baseline + 0.1 * loss.detach()
        if self.state.global_step > 1: self.late = getattr(self, "late", 0) + 1
        return loss


class Counts(TrainerCallback):
    def __init__(self): self.begun, self.ended, self.losses = 0, 0, []
    def on_step_begin(self, args, state, control, **kwargs): self.begun += 1
    def on_substep_end(self, args, state, control, **kwargs): self.losses.append(self.begun)
    def on_step_end(self, args, state, control, **kwargs): self.ended += 1


def learner(**given):
    torch.manual_seed(0)
    settings = dict(max_steps=8, per_device_train_batch_size=4, gradient_accumulation_steps=2, learning_rate=1e-2, use_cpu=True, disable_tqdm=True,
                    logging_steps=1, train_dataset=Augmented(30), callbacks=[Counts()]) | given
    return Own(Net(), data_collator=collate, **settings)


def test_only_what_changes_before_the_update_is_copied():
    "A large constant and what on_step_end changes cost nothing."
    learn = learner()
    learn.unchanged = torch.zeros(1000)
    learn.step(3)
    backup = learn.run_state.copies.backups.user_state
    names = {f"{h.name}.{k}" for h in backup.changing.values() for k in h.only}
    assert not [n for n in names if n.endswith((".constant", ".ended"))] and [n for n in names if n.endswith(".baseline")]


def test_what_begins_to_change_later_joins():
    learn = learner(logging_steps=1)
    learn.step(6)
    assert any("late" in h.only for h in learn.run_state.copies.backups.user_state.changing.values())


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

"Weights that user code writes to within a step: reported when the step fails, and restored with rollback='full'."
import gc, warnings, weakref

import numpy as np
import pytest
import torch
from torch import nn

from trainer_nb import Learner, TrainerCallback
from trainer_nb import differences as all_differences
from toys import Augmented, Boom, collate

pytestmark = pytest.mark.usefixtures("one_thread")


class Words(nn.Module):
    "An embedding of a large vocabulary, frozen and trainable layers in several precisions, orders and sizes."
    def __init__(self, words=30_000):
        super().__init__()
        self.table, self.conv, self.head = nn.Embedding(words, 4), nn.Conv2d(1, 2, 3, padding=1).to(memory_format=torch.channels_last), nn.Linear(4, 3)
        self.scale, self.rough = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
        self.none = nn.Parameter(torch.ones(0))

    def forward(self, x, labels=None):
        ids = (x * 1000).long().clamp(0, len(self.table.weight) - 1)
        h = self.table(ids).mean(1) * self.scale * self.rough.float() + self.conv(x.reshape(-1, 1, 2, 2)).mean((1, 2, 3))[:, None] + x + self.none.sum()
        logits = self.head(h)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Attacks(TrainerCallback):
    "Write to one weight before the update of a step, and fail."
    not_state = ("at",)
    def __init__(self, name, write, step=2): self.name, self.write, self.at = name, write, step

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if state.global_step != self.at: return
        self.at = None
        self.write(model.get_parameter(self.name))
        raise Boom("after the attack")


def learner(*callbacks, **given):
    torch.manual_seed(0)
    settings = dict(max_steps=8, per_device_train_batch_size=4, learning_rate=1e-2, use_cpu=True, disable_tqdm=True) | given
    return Learner(Words(), train_dataset=Augmented(30), data_collator=collate, callbacks=list(callbacks), **settings)


def failing(learn):
    "The warnings of a step that fails."
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(Boom): learn.step()
    return [str(w.message) for w in caught if "weights had been changed" in str(w.message)]


def differences(one, other): return [n for n in all_differences(one, other) if n != "user"]   # the attributes of the attacker


def fgm(p): p.data.add_(0.1 * p.grad / (p.grad.norm() + 1e-9) if p.grad is not None else 0.1)
def pgd(p): p.data = p.data + 0.1
def replace(p): p.data = torch.full_like(p, 0.5)


@pytest.mark.parametrize("name", ["table.weight", "conv.weight", "scale"])
def test_a_write_is_reported_once_the_step_has_failed(name):
    "By the versions of the weights, which a write through .data does not change."
    def write(p):
        with torch.no_grad(): p.add_(0.1)
    learn = learner(Attacks(name, write))
    learn.step(2)
    before = learn.snapshot()
    said = failing(learn)
    assert len(said) == 1 and repr(name) in said[0] and "rollback='full'" in said[0]
    assert differences(before, learn.snapshot()) == [f"weights/{name}"]
    acts = [(e["step"], e["data"]["changed"]) for e in learn.history.events if e["kind"] == "by hand"]
    assert acts == [(2, ["weights"])]   # a replay would not do it again
    learn.step()


@pytest.mark.parametrize("write", [fgm, pgd, replace])
@pytest.mark.parametrize("name", ["table.weight", "conv.weight", "scale", "rough"])
def test_copies_put_it_back(name, write):
    learn, calm = learner(Attacks(name, write), rollback="full"), learner(rollback="full")
    learn.step(2)
    before = learn.snapshot()
    assert failing(learn) == [] and differences(before, learn.snapshot()) == []
    learn.step(2); calm.step(4)
    assert differences(learn.snapshot(), calm.snapshot()) == []


def test_what_was_put_back_is_not_reported():
    "FGM restores the weights from a backup before it fails, and in each step before; the backup becomes the weights' memory."
    class Fgm(TrainerCallback):
        not_state = ("failed",)
        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            for p in model.parameters():
                backup = p.data.clone()
                p.data.add_(1)
                p.data = backup
            if state.global_step == 3 and not hasattr(self, "failed"):
                self.failed = True
                raise Boom("the weights are back")
    learn = learner(Fgm())
    learn.step(3)
    before = learn.snapshot()
    assert failing(learn) == [] and differences(before, learn.snapshot()) == []


def test_a_calm_run_reports_nothing_whatever_happens_to_the_memory_in_between():
    "Weights that are given other memory, another precision or another order between two steps."
    learn = learner()
    learn.step()
    for p in learn.model.parameters(): p.data = p.data.clone()
    learn.step()
    learn.model.conv.weight.data = learn.model.conv.weight.data.contiguous()
    learn.model.head.weight.data = learn.model.head.weight.data.t().contiguous().t()
    learn.add_callback(Attacks("head.weight", lambda p: None, step=2))
    assert failing(learn) == []


def test_no_memory_of_old_weights_is_held():
    "A weight that is moved or replaced between two steps is not kept alive, nor a model whose layer refers to it."
    learn = learner()
    memory = np.ones((30_000, 4), dtype=np.float32)
    gone, model = weakref.ref(memory), weakref.ref(learn.model)
    learn.model.table.weight.data, learn.model.head.of = torch.from_numpy(memory), [learn.model]
    learn.step(2)
    learn.model.table.weight.data = torch.zeros(30_000, 4)
    learn.model.zero_grad()
    del memory, learn
    gc.collect()
    assert gone() is None and model() is None


def test_an_abort_by_hand_reports_it():
    learn = learner()
    debug = learn.debug_step()
    debug.forward()
    with torch.no_grad(): learn.model.head.weight.mul_(2)
    with pytest.warns(UserWarning, match="weights had been changed in it, 'head.weight' among them"): debug.abort()


def test_an_optimizer_that_fails_in_the_first_step_is_no_write_of_users():
    class Fails(torch.optim.SGD):
        failed = False
        def step(self, closure=None):
            super().step(closure)
            if not Fails.failed:
                Fails.failed = True
                raise Boom("half-way")
    learn = learner(optimizer_cls_and_kwargs=(Fails, {"lr": 0.1}))
    before = learn.snapshot()
    assert failing(learn) == [] and not {n for n in differences(before, learn.snapshot()) if n.startswith("weights")}

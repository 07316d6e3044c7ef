"reset() goes back to the weights and attributes with which training began, also where a verb was called before they were loaded."
import pytest
import torch
from torch import nn

from trainer_nb import Learner, TrainerCallback

pytestmark = pytest.mark.usefixtures("one_thread")


def data(n=64):
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(0))
    return [(a, (a[0] > a[1]).long()) for a in x]


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))


def learner(folder=None, seed=0, **given):
    return Learner(train_dataset=data(), eval_dataset=data(16), **dict(
        model=net(seed), loss_func=nn.functional.cross_entropy,
        output_dir=str(folder) if folder else None, use_cpu=True, disable_tqdm=True, per_device_train_batch_size=8, max_steps=6,
        learning_rate=0.05, report_to="none", save_strategy="no") | given)


def weights(learn): return b"".join(t.detach().numpy().tobytes() for t in learn.model.state_dict().values())


def changed_statistics():
    other = net(5)
    other(torch.randn(16, 4))
    return other.state_dict()


BEFORE = {"nothing": lambda learn: None, "lr_find": lambda learn: learn.lr_find(num_steps=10), "evaluate": lambda learn: learn.evaluate(),
          "inspect": lambda learn: learn.inspect(), "snapshot": lambda learn: learn.snapshot(), "set": lambda learn: learn.set(learning_rate=0.05),
          "optimizer": lambda learn: learn.optimizer, "reset": lambda learn: (learn.step(2), learn.reset()),
          "debug": lambda learn: learn.debug_step().abort()}


def by_data(learn):
    for t, w in zip(learn.model.state_dict().values(), changed_statistics().values()): t.data.copy_(w)


LOADS = {"load_state_dict": lambda learn: learn.model.load_state_dict(changed_statistics()), "data": by_data}


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("before", BEFORE)
def test_weights_that_are_loaded_before_the_first_step_are_the_first_ones(before, load):
    learn = learner()
    BEFORE[before](learn)
    LOADS[load](learn)
    first = weights(learn)
    learn.train()
    end = weights(learn)
    learn.reset()
    assert weights(learn) == first
    learn.train()
    assert weights(learn) == end


def test_a_debug_step_begins_as_well():
    learn = learner()
    learn.lr_find(num_steps=10)
    LOADS["load_state_dict"](learn)
    first = weights(learn)
    step = learn.debug_step()
    step.forward(), step.backward(), step.update()
    learn.step(2)
    learn.reset()
    assert weights(learn) == first


@pytest.mark.parametrize("change", ["statistics", "frozen"])
def test_buffers_and_frozen_weights_count(change):
    learn = learner()
    if change == "frozen": learn.model[0].requires_grad_(False)
    learn.lr_find(num_steps=10)
    with torch.no_grad(): (learn.model[1].running_mean if change == "statistics" else learn.model[0].weight).fill_(0.5)
    first = weights(learn)
    learn.step(2)
    learn.reset()
    assert weights(learn) == first


def test_a_new_run_with_the_present_weights_keeps_the_first_ones():
    learn = learner()
    first = weights(learn)
    learn.train()
    learn.train()
    learn.reset()
    assert weights(learn) == first
    learn.train()
    learn.train()
    learn.reset()
    assert weights(learn) == first


def test_going_back_to_the_beginning_keeps_the_first_weights():
    learn = learner(rewind_every=1)
    learn.snapshot("a")
    first = weights(learn)
    taken = learn.run_state.initial_snapshot
    for back in (lambda: learn.restore("a"), lambda: learn.rewind(2)):
        learn.step(2)
        back()
        learn.step(1)
        assert learn.run_state.initial_snapshot is taken
        learn.restore("a")
    learn.step(1)
    learn.reset()
    assert weights(learn) == first


def test_a_replay_begins_with_them(tmp_path):
    "Without a snapshot in the ring, a rewind trains again from the first step."
    learn = learner(tmp_path, rewind_every=100)
    learn.lr_find(num_steps=10)
    LOADS["load_state_dict"](learn)
    learn.step(2)
    then = weights(learn)
    learn.step(2)
    learn.rewind(2)
    assert weights(learn) == then


def test_a_branch_has_its_own(tmp_path):
    learn = learner(tmp_path)
    learn.snapshot()
    LOADS["load_state_dict"](learn)
    first = weights(learn)
    branch = learn.branch()
    for one in (learn, branch):
        one.step(2)
        one.reset()
        assert weights(one) == first


class Failing(torch.optim.SGD):
    "An optimizer that fails after it has changed weights."
    def step(self, closure=None):
        super().step()
        raise ValueError("stop")


def test_an_update_that_fails_goes_back_to_them():
    model = net()
    learn = Learner(model, train_dataset=data(), loss_func=nn.functional.cross_entropy, use_cpu=True, disable_tqdm=True, max_steps=6,
                    optimizers=(Failing(model.parameters(), lr=0.1), None), report_to="none")
    learn.snapshot()
    LOADS["load_state_dict"](learn)
    first = weights(learn)
    with pytest.raises(ValueError, match="stop"): learn.step(1)
    assert weights(learn) == first and not learn.run_state.corrupted
    learn.reset()
    assert weights(learn) == first


class Scaled(nn.Module):
    "A network with a dropout rate, and an attribute that its forward pass reads."
    def __init__(self):
        super().__init__()
        self.inner, self.scale = net(), 1.0
    def forward(self, x): return self.inner(x) * self.scale


class Loss:
    alpha = 1.0
    def __call__(self, logits, labels): return self.alpha * nn.functional.cross_entropy(logits, labels)


class Halves(TrainerCallback):
    "Multiply the gradients by an attribute."
    factor = 1.0
    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        for p in model.parameters(): p.grad *= self.factor


def with_attributes(**given):
    return learner(callbacks=[Halves()], **dict(model=Scaled(), loss_func=Loss(), optim="sgd", max_grad_norm=0) | given)


def halving(learn): return next(c for c in learn.callback_handler.callbacks if isinstance(c, Halves))


ASSIGNED = {
    "model.inner.3.p": lambda learn: setattr(learn.model.inner[3], "p", 0.6),
    "model.scale": lambda learn: setattr(learn.model, "scale", 2.0),
    "loss_func.alpha": lambda learn: setattr(learn.loss_func, "alpha", 0.5),
    "Halves.factor": lambda learn: setattr(halving(learn), "factor", 0.5),
}


@pytest.mark.parametrize("name", ASSIGNED)
@pytest.mark.parametrize("before", BEFORE)
def test_attributes_that_are_assigned_before_the_first_step_are_the_first_ones(before, name):
    learn = with_attributes()
    BEFORE[before](learn)
    ASSIGNED[name](learn)
    learn.train()
    end = weights(learn)
    learn.reset()
    learn.train()
    assert weights(learn) == end
    learn.rewind(to=0)
    learn.train()
    assert weights(learn) == end
    plain = with_attributes()
    plain.train()
    assert weights(plain) != end


@pytest.mark.parametrize("name", ASSIGNED)
@pytest.mark.parametrize("between", [None, "evaluate", "predict", "save"])
def test_attributes_that_are_assigned_between_two_steps_are_recorded(between, name, tmp_path):
    "A replay begins after the assignment, and not with the value from before it."
    learn = with_attributes(folder=tmp_path, rewind_every=100, max_steps=8)
    learn.step(2)
    if between == "evaluate": learn.evaluate()
    if between == "predict": learn.predict(data(16))
    if between == "save": learn.save_checkpoint(tmp_path / "here")
    ASSIGNED[name](learn)
    learn.step(4)
    events = [e["data"]["changed"] for e in learn.history.events if e["kind"] == "by hand"]
    assert events == [[name]]
    before, losses = weights(learn), learn.history.column("loss")[-2:]
    learn.rewind(2)
    learn.step(2)
    assert weights(learn) == before and (learn.history.column("loss")[-2:] == losses).all()


class Counts(nn.Module):
    "A module that counts its forward passes, and a callback that counts events: nobody assigns these by hand."
    def __init__(self):
        super().__init__()
        self.inner, self.head, self.seen, self.share = net(), nn.Linear(2, 2), 0, float("nan")
    def forward(self, x):
        self.seen += 1
        return self.head(self.inner(x))


class Listens(TrainerCallback):
    heard = 0
    def on_evaluate(self, *args, **kwargs): self.heard += 1
    def on_save(self, *args, **kwargs): self.heard += 1
    def on_step_end(self, *args, **kwargs): self.heard += 1


def test_what_the_run_counts_is_no_assignment(tmp_path):
    learn = learner(tmp_path, model=Counts(), callbacks=[Listens()], max_steps=20)
    acts = [learn.evaluate, learn.step, lambda: learn.predict(data(8)), lambda: learn.set(lr=0.01), learn.snapshot, learn.step,
            learn.inspect, lambda: learn.save_checkpoint(tmp_path / "a"), learn.evaluate, lambda: learn.set(lr=0.02), learn.snapshot,
            learn.step, lambda: learn.lr_find(num_steps=10), learn.step, lambda: learn.rewind(1), learn.step,
            lambda: learn.freeze("inner"), learn.step, learn.evaluate, lambda: learn.restore("before"), learn.step]
    learn.snapshot("before")
    for act in acts: act()
    assert [e["data"] for e in learn.history.events if e["kind"] == "by hand"] == []

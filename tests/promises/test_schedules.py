"""Parameter groups and the schedules that depend on their number change together, and so do the update and the schedule.

Each kind of schedule goes through verbs that change the groups, and back in time; a run that does so ends in the same
bytes as one that does not.
"""
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as torchs

from trainer_nb import Learner, InvalidOperation, TrainerCallback, differences

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]

transformers = pytest.importorskip("transformers")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x=None, labels=None):
        logits = self.outer(torch.tanh(self.inner(x)))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class PerGroup(torchs.LRScheduler):
    "A schedule as users write them, with a list of its own that has an entry for each group."
    def __init__(self, optimizer):
        self.peak_lrs = [g["lr"] for g in optimizer.param_groups]
        super().__init__(optimizer)

    def get_lr(self): return [lr / (1 + self.last_epoch) for lr, _ in zip(self.peak_lrs, self.optimizer.param_groups, strict=True)]


def half(step): return 1 / (1 + step)
def shrink(step): return 0.9


class Callable:
    "A function with a state."
    def __init__(self): self.calls = 0
    def __call__(self, step):
        self.calls += 1
        return 1 / (1 + 0.1 * self.calls)


def sequential(o): return torchs.SequentialLR(o, [torchs.LambdaLR(o, half), torchs.CosineAnnealingLR(o, 20)], milestones=[4])


SCHEDULES = {
    "hf_linear": lambda o: transformers.get_linear_schedule_with_warmup(o, 2, 20),
    "hf_cosine": lambda o: transformers.get_cosine_schedule_with_warmup(o, 2, 20),
    "hf_polynomial": lambda o: transformers.get_polynomial_decay_schedule_with_warmup(o, 2, 20),
    "lambda_list": lambda o: torchs.LambdaLR(o, [half, *([shrink] * (len(o.param_groups) - 1))]),
    "lambda_object": lambda o: torchs.LambdaLR(o, Callable()),
    "multiplicative": lambda o: torchs.MultiplicativeLR(o, shrink),
    "cyclic": lambda o: torchs.CyclicLR(o, 1e-3, 1e-2, step_size_up=3, cycle_momentum=True),
    "sequential": sequential,
    "chained": lambda o: torchs.ChainedScheduler([torchs.LambdaLR(o, half), torchs.ExponentialLR(o, 0.9)]),
    "nested": lambda o: torchs.ChainedScheduler([sequential(o)]),
    "one_cycle": lambda o: torchs.OneCycleLR(o, 1e-2, total_steps=60),
    "restarts": lambda o: torchs.CosineAnnealingWarmRestarts(o, 3),
    "linear": lambda o: torchs.LinearLR(o, 0.1, total_iters=5),
    "step": lambda o: torchs.StepLR(o, 2),
    "multistep": lambda o: torchs.MultiStepLR(o, [2, 5]),
    "polynomial": lambda o: torchs.PolynomialLR(o, 20),
    "constant": lambda o: torchs.ConstantLR(o, 0.5, 3),
    "plateau": lambda o: torchs.ReduceLROnPlateau(o, patience=0, min_lr=[1e-5] * len(o.param_groups)),
    "plateau_one_min": lambda o: torchs.ReduceLROnPlateau(o, patience=0, min_lr=1e-5),
    "users": PerGroup,
}


def rows(n=24):
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(0))
    return [{"x": a, "labels": int(a.sum() > 0)} for a in x]


def learner(name, **given):
    "One group of parameters, so that set(weight_decay=) has to divide it."
    class Own(Learner):
        def create_optimizer(self, model=None):
            if self.optimizer is None:
                trained = [p for p in self.model.parameters() if p.requires_grad]
                self.optimizer = torch.optim.SGD(trained, lr=self.args.learning_rate, momentum=0.9)
            return self.optimizer
        def create_scheduler(self, num_training_steps, optimizer=None):
            self.lr_scheduler = SCHEDULES[name](self.optimizer if optimizer is None else optimizer)
            return self.lr_scheduler
    torch.manual_seed(0)
    settings = dict(optim="sgd", optim_args="momentum=0.9", learning_rate=1e-2, per_device_train_batch_size=4, max_steps=12,
                    use_cpu=True, disable_tqdm=True, logging_steps=1)
    if name.startswith("plateau"): settings |= dict(eval_strategy="steps", eval_steps=1, metric_for_best_model="eval_loss")
    return Own(Net(), train_dataset=rows(), eval_dataset=rows(8), **settings | given)


def equal(one, other): return [d for d in differences(one.snapshot(), other.snapshot()) if d != "args"] == []


each = pytest.mark.parametrize("name", SCHEDULES)


@each
def test_back_over_a_change_of_groups(name, tmp_path):
    "set(weight_decay=) makes two groups of one; restore, rewind and a checkpoint from before lead back, and forward again."
    whole = learner(name)
    whole.train()
    learn = learner(name)
    learn.step(3)
    before, folder = learn.snapshot(), learn.save_checkpoint(tmp_path/"before")
    learn.set(weight_decay=0.1)
    assert len(learn.optimizer.param_groups) == 2
    learn.step(2)
    after, later = learn.snapshot(), learn.save_checkpoint(tmp_path/"after")
    learn.step(2)
    decayed = learn.snapshot()
    learn.restore(after)
    learn.step(2)
    assert differences(learn.snapshot(), decayed) == []
    learn.restore(before)
    assert len(learn.optimizer.param_groups) == 1
    learn.step(1)
    learn.restore(after)
    learn.step(2)
    assert differences(learn.snapshot(), decayed) == []
    learn.load_checkpoint(folder)
    learn.train()
    assert equal(learn, whole)
    fresh = learner(name)
    fresh.load_checkpoint(later)
    fresh.step(2)
    assert equal(fresh, type("Held", (), {"snapshot": lambda self: decayed})())


@each
def test_a_rewind_over_a_change_of_groups(name):
    "To the snapshot that the ring holds from before."
    whole = learner(name)
    whole.train()
    learn = learner(name)
    learn.step(3)
    learn.snapshot("before")
    learn.set(weight_decay=0.1)
    learn.step(2)
    learn.rewind(1)
    learn.step(1)
    learn.restore("before")
    learn.step(2)
    learn.rewind(2)
    learn.train()
    assert equal(learn, whole)


@each
def test_a_branch_and_a_reset_after_a_change_of_groups(name):
    whole = learner(name)
    whole.train()
    learn = learner(name)
    learn.step(3)
    learn.set(weight_decay=0.1)
    learn.step(1)
    other = learn.branch()
    learn.step(3)
    other.step(3)
    assert equal(learn, other)
    # The functions depend on the number of groups, and the object counts its calls, of which two groups make two a step.
    if name in ("lambda_list", "lambda_object"): return
    learn.reset()
    learn.set(weight_decay=0.0)
    learn.train()
    assert [d for d in differences(learn.snapshot(), whole.snapshot()) if d not in ("args", "optimizer", "lr_scheduler", "due", "begun")] == []


@each
def test_thawed_layers_get_a_group(name):
    "Parameters that the optimizer did not hold come into a group of their own, and the schedule follows."
    learn = learner(name, weight_decay=0.1)
    learn.freeze("inner")
    for p in learn.model.outer.parameters(): p.requires_grad_(False)
    learn.model.outer.weight.requires_grad_(True)
    learn.step(2)
    before = learn.snapshot()
    learn.unfreeze()
    assert len(learn.optimizer.param_groups) == 2
    learn.step(3)
    after = learn.snapshot()
    learn.restore(before)
    for p in (learn.model.inner.weight, learn.model.inner.bias, learn.model.outer.bias): assert not p.requires_grad
    learn.step(1)
    learn.restore(before)
    learn.unfreeze()
    learn.step(3)
    assert [d for d in differences(learn.snapshot(), after)] == []


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant", "one_cycle"])
def test_thawed_layers_have_the_rate_of_their_group(schedule):
    "The rates of the groups keep their ratio, also where a schedule begins below the base, as one cycle does."
    settings = dict(learning_rate=[0.001, 0.01], layer_groups=["inner", "outer"], lr_scheduler_type=schedule, max_steps=8)
    whole, learn = (Learner(Net(), train_dataset=rows(), per_device_train_batch_size=4, use_cpu=True, disable_tqdm=True, **settings) for _ in range(2))
    for p in learn.model.inner.parameters(): p.requires_grad_(False)
    whole.step(3), learn.step(3)
    learn.unfreeze()
    whole.step(3), learn.step(3)
    def rates(one): return {id(p): g["lr"] for g in one.optimizer.param_groups for p in g["params"]}
    for part in ("inner", "outer"):
        there, here = (rates(one)[id(getattr(one.model, part).weight)] for one in (whole, learn))
        assert here == pytest.approx(there), part


# --- the update and the schedule's step commit together --------------------------------------------------------------------

class Fails(torchs.LambdaLR):
    "Raises an error at some steps, after it has counted them."
    at, armed = 2, True
    def get_lr(self):
        if self.last_epoch == self.at and self.armed: raise ArithmeticError("no rate for this step")
        return super().get_lr()


def failing(at, **given):
    kind = type("FailsOnce", (Fails,), {"at": at})
    class Own(Learner):
        def create_scheduler(self, num_training_steps, optimizer=None):
            self.lr_scheduler = kind(self.optimizer if optimizer is None else optimizer, half)
            return self.lr_scheduler
    torch.manual_seed(0)
    settings = dict(learning_rate=1e-2, per_device_train_batch_size=4, max_steps=8, use_cpu=True, disable_tqdm=True)
    return Own(Net(), train_dataset=rows(), **settings | given), kind


@pytest.mark.parametrize("at", [1, 2, 4])
@pytest.mark.parametrize("rollback", ["light", "full"])
def test_a_schedule_that_fails_leaves_no_half_step(at, rollback):
    "The step is taken back, or the run refuses to go on until it is repaired; it never goes on with half a step."
    whole, kind = failing(at)
    kind.armed = False
    whole.train()
    learn, kind = failing(at, rollback=rollback)
    if at > 1: learn.step(at - 1)
    before = learn.snapshot()
    with pytest.raises(ArithmeticError): learn.step()
    assert learn.state.global_step == at - 1
    begun = ("begun", "epoch_open") if at == 1 else ()
    if rollback == "full" or at == 1: assert [d for d in differences(learn.snapshot(), before) if d not in begun] == []
    else:
        with pytest.raises(InvalidOperation, match="the schedule failed after the update"): learn.step()
        learn.rewind(0)
        assert differences(learn.snapshot(), before) == []
    kind.armed = False
    learn.train()
    assert equal(learn, whole)


def test_a_restored_run_has_the_schedule_of_its_length():
    "Before the first step, set() lets an override make the schedule for another length; a restore takes that back."
    class Own(Learner):
        def create_scheduler(self, num_training_steps, optimizer=None):
            self.lr_scheduler = torchs.LambdaLR(optimizer or self.optimizer, lambda step: 1 - step / num_training_steps)
            return self.lr_scheduler
    def make():
        torch.manual_seed(0)
        return Own(Net(), train_dataset=rows(), learning_rate=1e-2, per_device_train_batch_size=4, num_train_epochs=1, use_cpu=True, disable_tqdm=True)
    class Refuses(TrainerCallback):
        armed = False
        def state_dict(self): return {"n": 1}
        def load_state_dict(self, state):
            if self.armed: raise ArithmeticError("not today")
    whole, learn, refuses = make(), make(), Refuses()
    learn.add_callback(refuses)
    whole.train()
    start = learn.snapshot()
    learn.set(gradient_accumulation_steps=2)
    learn.step()
    # a restore that fails keeps the schedule, too
    schedule, before, refuses.armed = learn.lr_scheduler, learn.snapshot(), True
    with pytest.raises(ArithmeticError): learn.restore(start)
    refuses.armed = False
    assert learn.lr_scheduler is schedule and differences(learn.snapshot(), before) == []
    learn.restore(start)
    learn.train()
    assert equal(learn, whole)


def test_too_short_a_schedule_does_not_train_on():
    "OneCycleLR has no rate for more steps than it was made for."
    class Own(Learner):
        def create_scheduler(self, num_training_steps, optimizer=None):
            self.lr_scheduler = torchs.OneCycleLR(self.optimizer if optimizer is None else optimizer, 1e-2, total_steps=3)
            return self.lr_scheduler
    torch.manual_seed(0)
    learn = Own(Net(), train_dataset=rows(), per_device_train_batch_size=4, max_steps=8, use_cpu=True, disable_tqdm=True, rollback="full")
    with pytest.raises(ValueError, match="Tried to step 4 times"): learn.train()
    assert learn.state.global_step == 3 and learn.lr_scheduler.last_epoch == 3


def test_callbacks_see_the_rate_of_the_step():
    "on_optimizer_step comes between the update and the schedule's step, as in the Trainer."
    seen = []
    class Sees(TrainerCallback):
        def on_optimizer_step(self, args, state, control, optimizer=None, lr_scheduler=None, **kwargs):
            seen.append((optimizer.param_groups[0]["lr"], lr_scheduler.last_epoch))
    learn = learner("hf_linear", callbacks=[Sees()])
    learn.step(3)
    assert seen == [(0.0, 0), (0.005, 1), (0.01, 2)]

"""Runs that go wrong, each beside its healthy twin: learn.diagnose() names step, layer, operation and samples, its line ends in a
finite run, it is silent on the twin, and the run is as it was."""
import numpy as np, pytest, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from trainer_nb import InvalidOperation, Learner, differences

G = torch.Generator().manual_seed(0)
X = torch.randn(320, 8, generator=G)
Y = (X.sum(1) > 0).long()
SUMS = X.sum(1, keepdim=True)
DATA = TensorDataset(X, Y)
SETTINGS = {"use_cpu": True, "per_device_train_batch_size": 16, "loss_func": F.cross_entropy, "learning_rate": 1e-2, "max_steps": 60}
BAD = 137   # the sample that fails


class Part(nn.Module):
    "A layer without weights whose function, which may be mended, is given inputs and hidden values."
    mended = {}
    def __init__(self, function): super().__init__(); self.function = function
    def forward(self, x, h): return self.mended.get(self.function, self.function)(x, h)


class Net(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(8, 32), Part(function), nn.Linear(32, 2)
    def forward(self, x): return self.last(self.middle(x, self.first(x).relu()))


def mlp(): return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
def normed(): return nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
def net(function): return lambda: Net(function)
def regression(): return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
def changed(value, row=BAD):
    x = X.clone()
    x[row] = value
    return TensorDataset(x, Y)


def learner(model=mlp, data=DATA, **given):
    torch.manual_seed(0)
    return Learner(model(), train_dataset=data, **{**SETTINGS, **given})


def size(x): return x.abs().sum(1, keepdim=True)
def log(x, h): return h + 0.1 * size(x).log()
def log_above(x, h): return h + 0.1 * size(x).clamp(min=1e-8).log()
def root(x, h): return h + (h * size(x)).square().sum(1, keepdim=True).sqrt()
def root_above(x, h): return h + ((h * size(x)).square().sum(1, keepdim=True) + 1e-12).sqrt()
def half(x, h): return h + ((1000 * x.half()) @ (100 * x.half()).T).float().mean(1, keepdim=True) * 1e-6
def whole(x, h): return h + ((1000 * x) @ (100 * x).T).mean(1, keepdim=True) * 1e-6
def masked(x, h): return h.masked_fill(size(x) == 0, -torch.inf).softmax(1)
def causal(x, h): return (h[:, :, None] * h[:, None]).masked_fill(torch.ones(32, 32).triu(1).bool(), -torch.inf).softmax(2).sum(1)
def quotient(x, h): return h / size(x)
def quotient_above(x, h): return h / (size(x) + 1e-8)


class Root(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sqrt()
    @staticmethod
    def backward(ctx, grad): return grad / (2 * ctx.saved_tensors[0].sqrt())


def own(x, h): return h + 0.01 * Root.apply((h * size(x)).abs())
def own_above(x, h): return h + 0.01 * Root.apply((h * size(x)).abs() + 1e-6)


def typed(learn, line): exec(line, {"learn": learn, "torch": torch})
def mended(function):
    def mend(learn, line):
        Part.mended[learn.model.middle.function] = function
        typed(learn, line.split(", then ")[0])
    return mend


STEEP = {"model": regression, "data": TensorDataset(3 * X, SUMS), "loss_func": F.mse_loss, "optim": "sgd", "max_grad_norm": 0.0}
# what happened: (what the faulty run is given, its healthy twin, words of the finding, how its line is typed)
LOST = {
    "an infinite sample": ({"data": changed(torch.inf)}, {}, ["sample 137 ", "inputs or targets"], typed),
    "a NaN in batches of micro-batches": ({"data": changed(torch.nan), "gradient_accumulation_steps": 2}, {"gradient_accumulation_steps": 2}, ["sample 137 "], typed),
    "two infinite samples, batch norm": ({"model": normed, "data": changed(torch.inf, [BAD, 200])}, {"model": normed}, ["training data has inputs"], typed),
    "the logarithm of 0": ({"model": net(log), "data": changed(0.0)}, {"model": net(log)}, ["log in middle (Part) makes infinity", "for sample 137"], mended(log_above)),
    "a slope of a root at 0": ({"model": net(root), "data": changed(0.0)}, {"model": net(root_above), "data": changed(0.0)}, ["the gradient of sqrt in middle (Part) is", "for sample 137"], mended(root_above)),
    "a division by 0": ({"model": net(quotient), "data": changed(0.0)}, {"model": net(quotient)}, ["in middle (Part)", "for sample 137"], mended(quotient_above)),
    "a backward pass of its own": ({"model": net(own), "data": changed(0.0)}, {"model": net(own_above)}, ["the gradient of Root in middle (Part) is infinity", "for sample 137"], mended(own_above)),
    "a row that is masked": ({"model": net(masked), "data": changed(0.0)}, {"model": net(causal)}, ["softmax in middle (Part) makes NaN", "for sample 137"], mended(lambda x, h: masked(x, h).nan_to_num())),
    "an overflow in half precision": ({"model": net(half)}, {"model": net(whole)}, ["matmul in middle (Part) makes infinity", "float16"], mended(whole)),
    "a rate that is too large": ({**STEEP, "learning_rate": 3.0}, {**STEEP, "learning_rate": 0.01}, ["the loss of step 4 is inf", "mse_loss", "outside of the model"], typed),
    "a huge rate": ({"learning_rate": 1e20}, {}, ["linear in 2 (Linear)"], typed),
}


@pytest.mark.parametrize("name", LOST)
def test_what_is_not_finite_is_named_and_the_line_cures_it(name, monkeypatch):
    monkeypatch.setattr(Part, "mended", {})
    faulty, twin, words, cure = LOST[name]
    well = learner(**twin)
    well.step(25)
    found = well.diagnose()
    assert not found and "are finite" in found.title and not found.skipped, (found, found.skipped)
    learn = learner(**faulty)
    learn.step(25)
    before = learn.snapshot()
    found, = learn.diagnose()
    assert differences(before, learn.snapshot()) == []
    lost = ~np.isfinite(learn.history.column("loss") + learn.history.column("grad_norm"))
    assert f"step {learn.history.column('step')[lost.argmax()]:.0f} is" in found.seen and all(word in str(found) for word in words), found
    cure(learn, found.do)
    learn.run()
    kept = learn.history.current
    assert np.isfinite([row.loss for row in kept]).all() and np.isfinite([row.grad_norm for row in kept]).all()
    assert not [f for f in learn.diagnose() if f.severity == "error"]


def test_weights_that_an_update_makes_infinite():
    learn = learner(**STEEP)
    learn.step(3)
    learn.set(lr=1e38)
    learn.step(1)
    found, = learn.diagnose()
    assert "the update of step 4 makes" in found.seen and found.do == "learn.rewind(to=2)" and "without lr=1e+38" in found.meaning, found


MORE = torch.randn(1280, 8, generator=torch.Generator().manual_seed(1))
MANY = TensorDataset(MORE, (MORE.sum(1) > 0).long())
# one sample of the wrong class is far from all others
FAR = TensorDataset(MORE.index_fill(0, torch.tensor(500), 3000.0), MANY.tensors[1] * (torch.arange(1280) != 500))
NO_LABELS = TensorDataset(X, torch.where((torch.arange(320) >= 160) & (torch.arange(320) < 176), -100, Y))
HELD_OUT = TensorDataset(MORE.index_fill(0, torch.tensor([5, 9]), torch.nan)[:64], MANY.tensors[1][:64])


def steep(learn):
    learn.step(70)
    learn.set(lr=30.0)
    learn.step(20)


def dying(learn):
    learn.step(70)
    with torch.no_grad(): learn.model[0].bias[:20] = -8.0
    learn.step(20)


def other_data(learn):
    learn.run(steps=160)
    learn.train_dataset = TensorDataset(X, (X[:, :4].sum(1) > 0).long())
    learn.run(steps=240)


# what happened: (what the faulty run is given, its healthy twin, how it trains, words of the finding, whether its line mends it)
WRONG = {
    "units that die": ({"data": MANY}, {"data": MANY}, dying, ["62% of the units behind 0 (Linear)", "from step 70 on", "without changes by hand"], True),
    "other data": ({"data": MANY, "eval_dataset": DATA, "eval_strategy": "steps", "eval_steps": 40}, {"data": MANY}, other_data,
                   ["eval_loss was", "its lowest value", "the losses of samples", "drifts away since train_dataset", "at step 160"], False),
    "a far sample": ({"data": FAR, "optim": "sgd", "max_grad_norm": 0.0}, {"data": MANY, "optim": "sgd", "max_grad_norm": 0.0}, 80,
                     ["the loss of sample 500 is", "grows most in", "the rate is", "on_spike='skip'"], True),
    "a rate by hand": ({"data": MANY, "optim": "sgd"}, {"data": MANY, "optim": "sgd"}, steep, ["lr=30.0 at step 70", "without lr=30.0"], True),
    "a rate too small": ({"data": MANY, "learning_rate": 1e-7}, {"data": MANY}, 80, ["the mean loss of the last third", "learn.reset(); learn.set(learning_rate="], True),
    "a rate of 0": ({"data": MANY, "learning_rate": 0.0}, {"data": MANY}, 80, ["the rate is 0", "no weight moves"], False),
    "no gradient": ({"data": TensorDataset(torch.ones(320, 8), Y * 0), "loss_func": lambda out, y: 0 * out.sum() + 2.0}, {}, 60,
                    ["the loss is 2.00 at each step from 1 on", "norm of the gradient is 0"], False),
    "labels that do not count": ({"data": NO_LABELS, "train_sampling_strategy": "sequential"}, {"train_sampling_strategy": "sequential"}, 20,
                                 ["all labels of samples 160, 161, 162 and 13 more are -100", "0 / 0"], True),
    "an evaluation that is not finite": ({"data": MANY, "eval_dataset": HELD_OUT, "eval_strategy": "epoch", "logging_nan_inf_filter": False, "max_steps": 80},
                                         {"data": MANY, "eval_dataset": MANY, "eval_strategy": "epoch"}, 80, ["eval_loss of step 80 is nan", "samples 5, 9 of it"], False),
    "labels apart from their inputs": ({"data": TensorDataset(X, Y[torch.randperm(320, generator=torch.Generator().manual_seed(1))]), "eval_dataset": MANY},
                                       {"data": TensorDataset(X, Y), "eval_dataset": MANY}, 300, ["evaluation samples", "shuffled apart"], False),
    "overfitting": ({"data": TensorDataset(X[:64], (Y[:64] + (torch.arange(64) % 4 == 0)) % 2), "eval_dataset": MANY, "eval_strategy": "epoch", "learning_rate": 0.03},
                    {"data": MANY, "eval_dataset": MANY, "eval_strategy": "epoch"}, 200, ["its lowest value", "the training loss went on", "learn.stop()"], True),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_finite_and_wrong_is_named_and_the_line_was_tried(name):
    faulty, twin, train, words, mends = WRONG[name]
    def trained(given):
        learn = learner(**{"disable_tqdm": True, "max_steps": 400} | given)
        train(learn) if callable(train) and given is faulty else learn.run(steps=90 if callable(train) else train)
        return learn
    well = trained(twin).diagnose()
    assert not well and "neither jump nor stand still" in well.title, well
    learn = trained(faulty)
    before = learn.snapshot()
    found, = learn.diagnose()
    assert differences(before, learn.snapshot()) == [] and all(word in str(found) for word in words), found
    if not mends: return
    typed(learn, found.do)
    if not learn.run_state.finished: learn.run(steps=1 if "stop" in found.do else 80)
    assert not learn.diagnose()


def test_what_going_back_undoes_is_listed():
    learn = learner(data=changed(torch.nan))
    learn.step(19)
    learn.set(lr=0.02)
    learn.step(1)
    learn.set(weight_decay=0.1)
    found, = learn.diagnose()
    assert "going back undoes" in found.meaning and "weight_decay=0.1" in found.meaning, found
    assert "not finite" in found.meaning


def test_it_says_what_it_needs(tmp_path):
    learn = learner()
    with pytest.raises(InvalidOperation, match=r"learn.check\(\)"): learn.diagnose()
    with pytest.raises(ValueError, match="seconds"): learn.diagnose(seconds=0)
    learn = learner(rewind_every=0)
    learn.step(3)
    learn.train_dataset = changed(torch.inf)
    learn.step(25)
    found = learn.diagnose()
    assert not found and "rewind_every=0" in found.skipped["values that stay finite"] and "rewind_every=0" in found.title
    warming = learner(data=MANY, learning_rate=1e-5, warmup_steps=100, max_steps=400)
    warming.step(60)
    assert "the learning rate still rises" in warming.diagnose().title
    learn.save_checkpoint(tmp_path/"late")
    late = learner()
    late.load_checkpoint(tmp_path/"late")
    assert "load_checkpoint at step 28" in late.diagnose().title


# what the run is given, and how many steps it has taken
RUNS = {
    "mid-epoch": ({}, 27),
    "momentum": ({"optim": "sgd", "optim_args": "momentum=0.9"}, 25),
    "dropout and batch norm": ({"model": normed}, 31),
    "a schedule": ({"lr_scheduler_type": "cosine", "warmup_steps": 5}, 33),
    "workers": ({"dataloader_num_workers": 2}, 23),
    "accumulation": ({"gradient_accumulation_steps": 3}, 11),
    "a loader of its own": ({"data": DataLoader(DATA, 16, shuffle=True)}, 25),
    "the end": ({}, 60),
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("is_lost", [False, True])
def test_the_run_is_as_it_was(name, is_lost):
    given, steps = RUNS[name]
    if is_lost:
        data = changed(torch.inf)
        given = given | {"data": DataLoader(data, 16, shuffle=True) if "data" in given else data}
    one, other = learner(**given), learner(**given)
    for learn in one, other: learn.step(steps)
    generators = torch.get_rng_state(), np.random.get_state()[1].tobytes()
    events, rows = len(one.history.events), len(one.history)
    before = one.snapshot()
    assert bool(one.diagnose()) == is_lost
    assert differences(before, one.snapshot()) == []
    assert torch.equal(generators[0], torch.get_rng_state()) and generators[1] == np.random.get_state()[1].tobytes()
    assert (len(one.history.events), len(one.history)) == (events, rows)
    if steps == 60: return
    # and so it goes on as a run that was not looked at
    for learn in one, other: learn.step(7)
    assert differences(one.snapshot(), other.snapshot()) == []
    one.rewind(9)
    other.rewind(9)
    assert differences(one.snapshot(), other.snapshot()) == []

"The fused update equals torch's step byte for byte, and leaves to step() whatever only step() can do."
import gc, weakref

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from trainer_nb.optim.fused_update import update_weights


def make(kind=torch.optim.AdamW, dtype=torch.float32, **options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)).to(dtype)
    weights = [p for p in model.parameters() if p.ndim > 1]
    biases = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0, "lr": 3e-3}]
    return model, kind(groups, **{"lr": 1e-2, "fused": True} | options)


def everything(model, optimizer) -> list:
    "Return the weights and the whole state of the optimizer as bytes."
    tensors = [*model.parameters(), *(t for s in optimizer.state_dict()["state"].values() for t in s.values())]
    return [t.detach().view(torch.uint8).numpy().tobytes() if t.ndim else t.item() for t in tensors]


def train(update, unused=None, schedule=False, **made):
    model, optimizer = make(**made)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9) if schedule else None
    gen = torch.Generator().manual_seed(1)
    for step in range(6):
        x = torch.randn(4, 5, generator=gen, dtype=torch.float64).to(next(model.parameters()).dtype)
        model(x).square().mean().backward()
        if step == unused:
            model[0].weight.grad = None
        update(optimizer)
        if scheduler is not None:
            scheduler.step()
        optimizer.zero_grad()
    return everything(model, optimizer)


def groups_of_step(monkeypatch) -> list:
    "Return a list that gets an entry whenever torch's own step handles a group."
    ran = []
    # torch.compile gives each class its own
    for kind, init in [(kind, kind._init_group) for kind in (torch.optim.Adam, torch.optim.AdamW)]:
        monkeypatch.setattr(kind, "_init_group", lambda *a, _init=init, **k: (ran.append(1), _init(*a, **k))[1])
    return ran


@pytest.mark.parametrize("made", [
    {}, {"kind": torch.optim.Adam}, {"dtype": torch.float64}, {"dtype": torch.bfloat16}, {"betas": (0.7, 0.8), "eps": 1e-3},
    {"maximize": True}, {"kind": torch.optim.Adam, "decoupled_weight_decay": True}, {"schedule": True}, {"unused": 3},
])
def test_the_kernel_is_called_directly_with_the_same_result(made, monkeypatch):
    expected = train(lambda o: o.step(), **made)
    ran = groups_of_step(monkeypatch)
    assert train(update_weights, **made) == expected
    # the first step makes the state: once for each group
    assert len(ran) == 2


@pytest.mark.parametrize("made", [
    {"amsgrad": True}, {"fused": False}, {"foreach": True, "fused": None}, {"lr": torch.tensor(1e-2)}, {"unused": 0},
    {"fused": False, "differentiable": False, "capturable": False},
])
def test_other_options_are_left_to_step(made, monkeypatch):
    if "lr" in made: made = made | {"lr": torch.tensor(1e-2)}
    expected = train(lambda o: o.step(), **made)
    ran = groups_of_step(monkeypatch)
    assert train(update_weights, **made) == expected
    assert len(ran) > 2


def test_after_torch_compile(monkeypatch):
    "Which replaces methods of the optimizers of torch."
    expected = train(lambda o: o.step())
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    ran = groups_of_step(monkeypatch)
    assert train(update_weights) == expected and len(ran) == 2


def prepared(**options):
    "Return a model and an optimizer with a state, and a gradient."
    model, optimizer = make(**options)
    for _ in range(2):
        model(torch.ones(2, 5)).sum().backward()
        optimizer.step()
    return model, optimizer


def counted(step, called): return lambda *args: (called.append(1), step(*args))[1]

def replaced(optimizer, called, patch): optimizer.step = counted(optimizer.step, called)
def replaced_in_the_class(optimizer, called, patch): patch.setattr(torch.optim.AdamW, "step", counted(torch.optim.AdamW.step, called))
def replaced_and_scheduled(optimizer, called, patch):
    optimizer.step = counted(type(optimizer).step, called).__get__(optimizer)
    torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
def of_another_optimizer(optimizer, called, patch):
    other = prepared()[1]
    replaced(other, called, patch)
    optimizer.step = other.step
def of_a_subclass(optimizer, called, patch): optimizer.__class__ = type("Mine", (torch.optim.AdamW,), {"step": counted(torch.optim.AdamW.step, called)})
def hook_before(optimizer, called, patch): optimizer.register_step_pre_hook(lambda *args: called.append(1))
def hook_after(optimizer, called, patch): optimizer.register_step_post_hook(lambda *args: called.append(1))
def hook_of_all(optimizer, called, patch): return register_optimizer_step_post_hook(lambda *args: called.append(1))

@pytest.mark.parametrize("change", [replaced, replaced_in_the_class, replaced_and_scheduled, of_another_optimizer, of_a_subclass, hook_before, hook_after, hook_of_all],
                         ids=lambda change: change.__name__)
def test_what_only_step_does_is_done(change, monkeypatch):
    "And nothing keeps the optimizer in memory."
    _, optimizer = prepared()
    called = []
    handle = change(optimizer, called, monkeypatch)
    update_weights(optimizer)
    if handle is not None: handle.remove()
    assert called == [1]
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None


def test_the_profiler_sees_the_step():
    _, optimizer = prepared()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        update_weights(optimizer)
    assert any("Optimizer.step#AdamW" in event.name for event in profile.events())


def test_without_gradients_nothing_changes_and_the_schedule_does_not_warn(recwarn):
    model, optimizer = prepared()
    optimizer.zero_grad()
    before = everything(model, optimizer)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    update_weights(optimizer)
    assert everything(model, optimizer) == before
    scheduler.step()
    assert not [w for w in recwarn if "optimizer.step()" in str(w.message)]


def test_parameters_of_several_kinds():
    def trained(update):
        torch.manual_seed(0)
        parameters = [torch.nn.Parameter(torch.randn(3, dtype=d)) for d in (torch.float32, torch.float64)]
        optimizer = torch.optim.AdamW(parameters, fused=True)
        for _ in range(3):
            for p in parameters: p.grad = torch.ones_like(p)
            update(optimizer)
        return [p.detach().numpy().tobytes() for p in parameters]

    assert trained(update_weights) == trained(lambda o: o.step())


def test_sparse_gradients_raise_the_error_of_torch():
    embedding = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.AdamW(embedding.parameters(), fused=True)
    embedding.weight.grad = torch.zeros_like(embedding.weight)
    optimizer.step()
    optimizer.zero_grad()
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse"): update_weights(optimizer)

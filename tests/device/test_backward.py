"The backward pass of a loss equals loss.backward(), also where somebody replaced it."
import gc
import weakref

import pytest
import torch

from trainer_nb import Learner, TrainerCallback
from trainer_nb.device.strategy import backward_from_loss


def gradient(backward, loss_of=lambda w: w.square().sum()):
    w = torch.nn.Parameter(torch.tensor([1.5, -2.0]))
    for _ in range(2):
        # accumulates
        backward(loss_of(w))
    return w.grad.numpy().tobytes()


@pytest.mark.parametrize("loss_of", [
    lambda w: w.square().sum(), lambda w: w.square().sum().double(), lambda w: w.square().sum().reshape(1), lambda w: w[0] * w[1],
])
def test_gradients(loss_of):
    assert gradient(backward_from_loss, loss_of) == gradient(torch.Tensor.backward, loss_of)


def test_the_graph_is_freed():
    w = torch.nn.Parameter(torch.tensor(1.5))
    loss = w.exp().square()
    backward_from_loss(loss)
    with pytest.raises(RuntimeError, match="second time"): backward_from_loss(loss)


def test_hooks_of_the_loss():
    w = torch.nn.Parameter(torch.tensor(1.5))
    loss = w * 2
    loss.register_hook(lambda grad: grad * 10)
    backward_from_loss(loss)
    assert w.grad.item() == 20


@pytest.mark.parametrize("loss", [torch.tensor(1.0), torch.tensor([1.0, 2.0], requires_grad=True) * 2,
                                  torch.tensor(1j, requires_grad=True) * 2])
def test_the_errors_are_those_of_torch(loss):
    with pytest.raises(RuntimeError) as expected: loss.backward()
    with pytest.raises(RuntimeError) as raised: backward_from_loss(loss)
    assert str(raised.value) == str(expected.value)


def test_a_replaced_backward_is_called(monkeypatch):
    called = []
    original = torch.Tensor.backward
    monkeypatch.setattr(torch.Tensor, "backward", lambda self, *a, **k: (called.append("tensor"), original(self, *a, **k))[1])
    backward_from_loss(torch.tensor(1.0, requires_grad=True) * 2)
    monkeypatch.undo()
    original = torch.autograd.backward
    monkeypatch.setattr(torch.autograd, "backward", lambda *a, **k: (called.append("autograd"), original(*a, **k))[1])
    backward_from_loss(torch.tensor(1.0, requires_grad=True) * 2)
    assert called == ["tensor", "autograd"]


def test_a_mode_sees_the_backward_pass():
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    loss = torch.tensor(1.0, requires_grad=True) * 2
    with Mode(): backward_from_loss(loss)
    assert torch.Tensor.backward in seen


class Remembered(torch.autograd.Function):
    "The identity, whose graph node is remembered without being kept alive."
    nodes = []

    @staticmethod
    def forward(ctx, x): return x.clone()

    @staticmethod
    def backward(ctx, grad):
        Remembered.nodes.append(weakref.ref(ctx))
        return grad


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, x, labels):
        return {"loss": Remembered.apply((self.linear(x).squeeze(-1) - labels).square().mean())}


def learner(tmp_path, **kwargs):
    torch.manual_seed(0)
    rows = [{"x": torch.randn(4), "labels": torch.randn(())} for _ in range(32)]
    return Learner(Net(), train_dataset=rows, output_dir=str(tmp_path), per_device_train_batch_size=4, max_steps=8,
                   report_to="none", use_cpu=True, **kwargs)


def living(): return [ref for ref in Remembered.nodes if ref() is not None]


@pytest.fixture(autouse=True)
def forget_nodes():
    Remembered.nodes.clear()
    yield
    Remembered.nodes.clear()


def test_the_last_graph_lives_until_the_verb_ends(tmp_path):
    alive = []

    class Watch(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs): alive.append(len(living()))

    learn = learner(tmp_path, callbacks=[Watch()])
    learn.step(3)
    assert alive == [1, 1, 1] and len(Remembered.nodes) == 3
    assert not living()


@pytest.mark.parametrize("verb", ["train", "step", "lr_find", "inspect", "failing step"])
def test_no_graph_stays_after_a_verb(tmp_path, verb):
    fails = verb == "failing step"

    class Fail(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if fails: raise ValueError("stop here")

    learn = learner(tmp_path, callbacks=[Fail()])
    if fails:
        with pytest.raises(ValueError, match="stop here"): learn.step(2)
    elif verb == "step": learn.step(2)
    elif verb == "inspect":
        learn.step(1)
        learn.inspect()
    else: getattr(learn, verb)()
    gc.collect()
    assert Remembered.nodes and not living()

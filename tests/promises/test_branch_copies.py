"""A branch has all that belongs to a model: hooks of every kind, attributes, shared memory, tensors computed by hooks.

A branch with nothing changed goes on as its run does, byte for byte, and neither touches the other.
"""
import functools
import types

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from trainer_nb import InvalidOperation, Learner, differences

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)
        self.factor, self.seen = 0.5, 0

    def forward(self, x=None, labels=None):
        logits = self.outer(torch.tanh(self.norm(self.inner(x))))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    def scale(self, grad): return grad * self.factor

    def scale_in_place(self, p): p.grad.mul_(self.factor)

    def count(self, module, inputs): self.seen += 1


def triple(grad): return grad * 3


def shifted(module, inputs, out, by=0.1): return out + by


def with_tensor_hooks(net):
    net.inner.weight.register_hook(net.scale)
    net.inner.bias.register_hook(triple)
    net.outer.weight.register_hook(functools.partial(torch.mul, 0.3))


def with_a_frozen_hook(net):
    net.inner.weight.register_hook(triple)
    net.inner.weight.requires_grad_(False)


def with_accumulate_hooks(net): net.outer.weight.register_post_accumulate_grad_hook(net.scale_in_place)


def with_module_hooks(net):
    net.inner.register_forward_pre_hook(net.count)
    net.inner.register_forward_hook(shifted)
    net.outer.register_full_backward_hook(lambda module, grads, outs: tuple(None if g is None else 2 * g for g in grads))
    net.norm.register_full_backward_pre_hook(lambda module, outs: tuple(0.5 * o for o in outs))


def with_state_dict_hooks(net):
    def renamed(module, state, prefix, meta): state[prefix + "note"] = torch.ones(1)
    net.register_state_dict_post_hook(renamed)
    net.register_load_state_dict_pre_hook(lambda module, state, prefix, *rest: state.pop(prefix + "note", None))


def with_old_weight_norm(net):
    nn.utils.weight_norm(net.inner)
    nn.utils.weight_norm(net.outer, dim=None)


def with_old_spectral_norm(net): nn.utils.spectral_norm(net.inner)


def with_parametrizations(net):
    nn.utils.parametrizations.weight_norm(net.inner)
    nn.utils.parametrizations.spectral_norm(net.outer)


def with_own_parametrization(net):
    class Symmetric(nn.Module):
        def forward(self, w): return w - w.mean()
    parametrize.register_parametrization(net.outer, "weight", Symmetric())


def with_tied_weights(net):
    net.square = nn.Linear(6, 6)
    net.again = nn.Linear(6, 6)
    net.again.weight = net.square.weight
    net.norm = nn.Sequential(net.norm, net.square, net.again)


def with_a_view(net):
    net.register_buffer("row", net.inner.weight.data[1])
    net.norm.register_forward_hook(lambda module, inputs, out, held=None: out * 1.0)
    net.inner.register_forward_hook(Uses(net))


class Uses:
    "A hook that reads a buffer which is a view of a weight."
    def __init__(self, net): self.net = net
    def __call__(self, module, inputs, out): return out + self.net.row.sum()


def with_attributes(net):
    net.inner.weight.no_decay = True
    net.inner.weight.owner = net
    net.cached = [net.inner.weight * 2]
    net.held = {"deep": (net.outer.weight.sum(),)}


KINDS = {name.removeprefix("with_"): f for name, f in globals().items() if name.startswith("with_")}


def rows(n=24):
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(0))
    return [{"x": a, "labels": int(a.sum() > 0)} for a in x]


def learner(change, **given):
    torch.manual_seed(0)
    net = Net()
    change(net)
    settings = dict(learning_rate=1e-2, per_device_train_batch_size=4, max_steps=9, use_cpu=True, disable_tqdm=True)
    return Learner(net, train_dataset=rows(), **settings | given)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [0, 3])
def test_a_branch_has_all_of_the_model(kind, step):
    learn = learner(KINDS[kind])
    if step: learn.step(step)
    other = learn.branch()
    assert other.model is not learn.model
    other.train()
    before = learn.snapshot()
    assert before.step == step
    learn.train()
    assert differences(other.snapshot(), learn.snapshot()) == []
    plain = learner(lambda net: None)
    plain.train()
    if kind not in ("state_dict_hooks", "attributes"): assert differences(plain.snapshot(), learn.snapshot())


def test_hooks_are_of_the_copy():
    "A method of the model becomes that of the copy; handles that the model keeps remove the copy's hooks."
    def change(net):
        net.inner.weight.register_hook(net.scale)
        net.handle = net.outer.weight.register_hook(triple)
    learn = learner(change)
    learn.step()
    other = learn.branch()
    other.model.factor = 0.0
    other.model.handle.remove()
    (hook,) = other.model.inner.weight._backward_hooks.values()
    assert hook.__self__ is other.model
    assert not other.model.outer.weight._backward_hooks and len(learn.model.outer.weight._backward_hooks) == 1
    one, two = learn.branch(), learn.branch()
    one.step(2)
    two.step(2)
    assert differences(one.snapshot(), two.snapshot()) == []


def test_attributes_and_views():
    def change(net):
        with_attributes(net)
        net.register_buffer("row", net.inner.weight.data[1])
    learn = learner(change)
    learn.step()
    other = learn.branch()
    assert other.model.inner.weight.no_decay is True and other.model.inner.weight.owner is other.model
    assert torch.equal(other.model.row, other.model.inner.weight[1])
    other.step(2)
    assert torch.equal(other.model.row, other.model.inner.weight[1])
    assert torch.equal(learn.model.row, learn.model.inner.weight[1])
    assert not torch.equal(learn.model.row, other.model.row)


def test_hooks_of_the_optimizer():
    calls = []
    learn = learner(lambda net: None)
    learn.step()
    learn.optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: calls.append(id(optimizer)))
    other = learn.branch()
    other.step(2)
    assert calls == [id(other.optimizer)] * 2


def test_a_loss_and_a_callback_with_hooks():
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))
            self.scale.register_hook(triple)
        def forward(self, out, y): return self.scale.abs() * nn.functional.mse_loss(out, y)
    torch.manual_seed(0)
    x = torch.randn(20, 4)
    learn = Learner(nn.Linear(4, 1), train_dataset=torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), loss_func=Loss(), max_steps=6,
                    per_device_train_batch_size=4, use_cpu=True, disable_tqdm=True)
    learn.step(2)
    other = learn.branch()
    learn.train()
    other.train()
    assert differences(other.snapshot(), learn.snapshot()) == []


def scaled(layer, x): return nn.functional.linear(x, layer.weight * 2, layer.bias)


def with_a_function(net): net.inner.forward = types.MethodType(scaled, net.inner)


def with_a_partial(net): net.inner.forward = functools.partial(net.inner.forward)


def with_a_free_function(net): net.inner.forward = lambda x: x[:, :1].repeat(1, 6)


def with_a_wrapper(net):
    first = net.inner.forward
    @functools.wraps(first)
    def forward(*args): return first(*args) * 0 + 1
    net.inner.forward = forward


def with_a_closure(net):
    first = net.inner.forward
    net.inner.forward = lambda x: 2 * first(x)


def with_a_default(net):
    def forward(x, layer=net.inner): return nn.functional.linear(x, layer.weight, layer.bias)
    net.inner.forward = forward


ORIGINALS = {}


def through_a_global(x): return 2 * ORIGINALS["forward"](x)


def helper(x): return through_a_global(x)


def with_a_global(net):
    "As in a notebook: `first = net.inner.forward` in one cell, the function in the next."
    ORIGINALS["forward"] = net.inner.forward
    net.inner.forward = through_a_global


def with_a_global_of_a_helper(net):
    ORIGINALS["forward"] = net.inner.forward
    net.inner.forward = lambda x: [helper(a) for a in (x,)][0]


def with_a_keyword_default(net):
    def forward(x, *, first=net.inner.forward): return 2 * first(x)
    net.inner.forward = forward


def with_a_list(net):
    held = [{"first": net.inner.forward}]
    net.inner.forward = lambda x: 2 * held[0]["first"](x)


def with_a_method_around_a_closure(net):
    first = net.inner.forward
    net.inner.forward = types.MethodType(lambda layer, x: 2 * first(x), net.inner)


def with_a_partial_around_a_closure(net):
    first = net.inner.forward
    net.inner.forward = functools.partial(lambda factor, x: factor * first(x), 2)


def with_names_of_attributes(net):
    "A global of the same name as an attribute that the function reads is another thing."
    globals()["weight"] = net.inner
    net.inner.forward = types.MethodType(scaled, net.inner)


def patched(patch):
    torch.manual_seed(0)
    net = Net()
    patch(net)
    data = [{"x": torch.randn(4, generator=torch.Generator().manual_seed(i)), "labels": i % 2} for i in range(16)]
    learn = Learner(net, train_dataset=data, max_steps=4, per_device_train_batch_size=4, use_cpu=True, report_to="none", disable_tqdm=True)
    learn.step()
    return learn


@pytest.mark.parametrize("patch", [with_a_function, with_a_partial, with_a_free_function, with_names_of_attributes])
def test_a_method_that_was_replaced_is_copied(patch):
    learn = patched(patch)
    branch = learn.branch()
    assert "forward" in vars(branch.model.inner)
    branch.train(), learn.train()
    for a, b in zip(learn.model.parameters(), branch.model.parameters()): assert torch.equal(a, b) and a is not b


@pytest.mark.parametrize("patch", [with_a_wrapper, with_a_closure, with_a_default, with_a_global, with_a_global_of_a_helper, with_a_keyword_default, with_a_list,
                                   with_a_method_around_a_closure, with_a_partial_around_a_closure])
def test_a_function_that_would_compute_with_the_original_is_refused(patch):
    learn = patched(patch)
    with pytest.raises(InvalidOperation, match="inner.forward: the function .* reads the model"): learn.branch()
    learn.train()


def test_functions_of_accelerate_are_left_out():
    from accelerate import dispatch_model
    learn = patched(lambda net: None)
    dispatch_model(learn.model, {"": "cpu"}, force_hooks=True)
    assert isinstance(vars(learn.model).get("to"), types.FunctionType)
    assert "to" not in vars(learn.branch().model)

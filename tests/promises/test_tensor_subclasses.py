"Optimizers whose state is of tensors of another kind: taken apart where the kind is known, refused by name at the first step where it is not."
import pytest
import torch

import trainer_nb.optim.optimizers as optim_module
from toys import finish, hard_learner, unequal
from trainer_nb.engine.snapshot import differences

aten = torch.ops.aten


class Coarse(torch.Tensor):
    "A tensor of whole numbers and a scale."
    def __new__(cls, codes, scale): return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)
    def __init__(self, codes, scale): self.codes, self.scale = codes, scale
    def __tensor_flatten__(self): return ["codes", "scale"], [True, self.codes.shape]
    @classmethod
    def __tensor_unflatten__(cls, parts, context, shape, stride):
        assert context == [True, parts["codes"].shape] and torch.Size(shape) == parts["codes"].shape
        return cls(parts["codes"], parts["scale"])
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is aten.detach.default: return cls(args[0].codes, args[0].scale)
        raise NotImplementedError(func)
    def whole(self): return self.codes.float() * self.scale


class CoarseMomentum(torch.optim.Optimizer):
    "Gradient descent whose momentum is kept in whole numbers."
    def __init__(self, params, lr=1e-2, other=None): super().__init__(params, dict(lr=lr)); self.other = other
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None: continue
                state = self.state[p]
                if self.other is not None: state["projector"] = self.other
                momentum = 0.9 * state["momentum"].whole() + p.grad if "momentum" in state else p.grad.clone()
                scale = momentum.abs().max() / 1000 + 1e-8
                state["momentum"] = Coarse((momentum / scale).round().to(torch.int16), scale)
                p.sub_(state["momentum"].whole(), alpha=group["lr"])


def coarse(**given): return hard_learner(optimizer_cls_and_kwargs=(CoarseMomentum, dict(lr=1e-2)), **dict(num_train_epochs=4, ring_every=2) | given)


def test_known_kinds_are_held_exactly(tmp_path, monkeypatch):
    "In snapshots, rewinds, branches and checkpoints."
    monkeypatch.setattr(optim_module, "KNOWN", (__name__,))
    want = finish(coarse())
    learn = coarse(output_dir=str(tmp_path), save_strategy="no")
    learn.step(5)
    taken = learn.snapshot()
    assert any(n.endswith("/momentum.codes") for n in taken.tensors) and taken.values["optimizer"]["apart"]["outer.bias/momentum"]["class"] == "Coarse"
    other = learn.branch()
    learn.step(3)
    learn.rewind(6)
    learn.step(3)
    assert differences(learn.snapshot(), taken) == [] and type(learn.optimizer.state[learn.model.outer.bias]["momentum"]) is Coarse
    learn.save_checkpoint()
    again = coarse(output_dir=str(tmp_path), save_strategy="no")
    again.load_checkpoint()
    for o in (learn, other, again): assert unequal(finish(o), want, ignore=("args",)) == []


def test_others_are_refused_at_the_first_step_by_name():
    learn = coarse()
    with pytest.raises(TypeError, match="CoarseMomentum keeps a test_apart.Coarse, .*as 'momentum'"): learn.step(2)
    assert learn.state.global_step == 1   # the step is done
    learn = hard_learner(optimizer_cls_and_kwargs=(CoarseMomentum, dict(other=object())))
    with pytest.raises(TypeError, match="keeps a builtins.object, as 'projector'"): learn.step(1)


def test_torchao():
    "The real ones, where they are installed."
    optim = pytest.importorskip("torchao.optim")
    def made():
        torch.manual_seed(0)
        from trainer_nb import Learner
        model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 2))
        data = torch.utils.data.TensorDataset(torch.randn(60, 64), torch.randint(0, 2, (60,)))
        return Learner(model, train_dataset=data, loss_func=torch.nn.functional.cross_entropy, optimizer_cls_and_kwargs=(optim.AdamW8bit, dict(lr=1e-3)),
                       max_steps=9, disable_tqdm=True, ring_every=2)
    want, learn = finish(made()), made()
    learn.step(7)
    learn.rewind(4)
    assert unequal(finish(learn), want, ignore=("args",)) == []

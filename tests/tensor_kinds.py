"What several tests share: an optimizer whose state is of tensors of another kind."
import torch

from toys import hard_learner

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


def coarse(**given): return hard_learner(optimizer_cls_and_kwargs=(CoarseMomentum, dict(lr=1e-2)), **dict(num_train_epochs=4, rewind_every=2) | given)

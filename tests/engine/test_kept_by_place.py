"Optimizers that keep something by the place of the parameters in their groups: groups are not parted under them."
import pytest
import torch
from torch import nn

from trainer_nb import Learner, differences

pytestmark = pytest.mark.usefixtures("one_thread")


class Listed(torch.optim.SGD):
    "Slow weights in a list that runs parallel to the parameters."
    def __init__(self, params, **given):
        super().__init__(params, **given)
        self.slow = [p.detach().clone() for g in self.param_groups for p in g["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        for slow, p in zip(self.slow, [p for g in self.param_groups for p in g["params"]]): p.copy_(slow.lerp_(p, 0.5))


class Numbered(torch.optim.SGD):
    "Numbers in a list."
    def __init__(self, params, **given):
        super().__init__(params, **given)
        self.calls = [0 for g in self.param_groups for p in g["params"]]


class Around(torch.optim.Optimizer):
    "An optimizer around one with groups of its own."
    def __init__(self, params, lr=0.1, weight_decay=0.0):
        params = [{**g, "params": [*g["params"]]} for g in params]
        self.inner = torch.optim.SGD(params, lr=lr)
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay))
    def step(self, closure=None): self.inner.step()


class ByParameter(torch.optim.SGD):
    "What is allowed: slow weights by parameter, the parameters in a list, betas."
    def __init__(self, params, **given):
        super().__init__(params, **given)
        self.mine = [p for g in self.param_groups for p in g["params"]]
        self.slow, self.betas = {p: p.detach().clone() for p in self.mine}, (0.9, 0.99)
    step = lambda self, closure=None: torch.optim.SGD.step(self)


DATA = torch.utils.data.TensorDataset(*torch.randn(24, 4, generator=torch.Generator().manual_seed(0)).split([3, 1], dim=1))


def learner(cls, kind=Learner, **given):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    return kind(model, train_dataset=DATA, loss_func=nn.MSELoss(), optimizer_cls_and_kwargs=(cls, {"lr": 0.1}), disable_tqdm=True, **given)


@pytest.mark.parametrize("cls, name", [(Listed, "slow"), (Numbered, "calls"), (Around, "inner")])
def test_groups_are_not_parted_under_it(cls, name):
    "The groups of an optimizer that a subclass makes with one: it is refused, and nothing has happened."
    class OneGroup(Learner):
        def create_optimizer(self):
            self.optimizer = cls([{"params": list(self.model.parameters())}], lr=0.1)
            return self.optimizer
    learn = learner(cls, kind=OneGroup)
    learn.step(2)
    before = learn.snapshot()
    for change in (learn.set, learn.branch):
        with pytest.raises(ValueError, match=f"keeps '{name}' by the place"): change(weight_decay=0.1)
    assert not differences(before, learn.snapshot()) and learn.args.weight_decay == 0
    learn.step()


@pytest.mark.parametrize("cls", [Listed, Numbered])
def test_a_decay_from_the_start_can_be_changed(cls):
    "The groups stay what they are."
    learn = learner(cls, weight_decay=0.1)
    learn.step(2)
    learn.set(weight_decay=0.2)
    assert [g["weight_decay"] for g in learn.optimizer.param_groups] == [0.2, 0.0]
    learn.branch(weight_decay=0.05).step()


def test_what_goes_by_parameter_is_parted():
    "As torch's own optimizers are."
    for cls in (ByParameter, torch.optim.SGD, torch.optim.AdamW):
        learn = learner(cls)
        learn.step(2)
        learn.set(weight_decay=0.1)
        assert len(learn.optimizer.param_groups) == 2


def test_thawed_layers_that_it_does_not_know():
    "Parameters that the optimizer was made without have no entry in its lists."
    learn = learner(Listed, layer_groups=["0", "2", "4"])
    learn.freeze()
    learn.step()
    before = learn.snapshot()
    with pytest.raises(ValueError, match="'slow' by the place"): learn.unfreeze()
    assert not differences(before, learn.snapshot()) and not learn.model[0].weight.requires_grad
    learn = learner(Listed, layer_groups=["0", "2", "4"])
    learn.step()
    learn.freeze()
    learn.unfreeze()   # it knows them
    learn.step()

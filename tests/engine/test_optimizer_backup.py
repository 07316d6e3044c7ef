"What an optimizer keeps besides groups and state goes back with an update that fails."
import pytest
import torch
from torch import nn

from trainer_nb import Learner, differences
from toys import Boom

pytestmark = pytest.mark.usefixtures("one_thread")

DATA = torch.utils.data.TensorDataset(*torch.randn(24, 4, generator=torch.Generator().manual_seed(0)).split([3, 1], dim=1))
FAILS = {}   # by number of the call; outside of the run


class Lookahead(torch.optim.SGD):
    "Slow weights and a counter in attributes, which change before the weights do."
    def __init__(self, params, **given):
        super().__init__(params, **given)
        self.slow, self.calls, self.rng = [p.detach().clone() for g in self.param_groups for p in g["params"]], 0, torch.Generator().manual_seed(1)

    @torch.no_grad()
    def step(self, closure=None):
        self.calls += 1
        for slow, p in zip(self.slow, [p for g in self.param_groups for p in g["params"]]): slow.lerp_(p, 0.1 + 0.5 * float(torch.rand((), generator=self.rng)))
        if FAILS.pop(self.calls, None): raise Boom(f"call {self.calls}")
        super().step()
        for slow, p in zip(self.slow, [p for g in self.param_groups for p in g["params"]]): p.lerp_(slow, 0.1)


class Inner:
    "An object that only its optimizer can save."
    def __init__(self): self.n = 0


class MoreEntries(torch.optim.SGD):
    "A counter that only state_dict() shows."
    def __init__(self, params, **given):
        super().__init__(params, **given)
        self.inner = Inner()

    def step(self, closure=None):
        self.inner.n += 1
        if FAILS.pop(self.inner.n, None): raise Boom(f"call {self.inner.n}")
        super().step()
        with torch.no_grad():
            for g in self.param_groups:
                for p in g["params"]: p.mul_(1 - 0.01 * self.inner.n)

    def state_dict(self): return super().state_dict() | {"n": self.inner.n}
    def load_state_dict(self, state):
        self.inner.n = state["n"]
        super().load_state_dict({k: v for k, v in state.items() if k != "n"})


def learner(cls, **given):
    torch.manual_seed(0)
    FAILS.clear()
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    return Learner(model, train_dataset=DATA, loss_func=nn.MSELoss(), optimizer_cls_and_kwargs=(cls, {"lr": 0.1, "momentum": 0.9}), num_train_epochs=2, disable_tqdm=True, **given)


@pytest.mark.parametrize("cls", [Lookahead, MoreEntries])
@pytest.mark.parametrize("call, given", [(1, {}), (1, dict(rollback="full")), (3, dict(rollback="full"))])
def test_an_update_that_fails(cls, call, given):
    "The optimizer is what it was, and the run ends as an undisturbed one."
    like, learn = learner(cls, **given), learner(cls, **given)
    like.train()
    if call > 1: learn.step(call - 1)
    before = learn.snapshot()
    FAILS[call] = True
    with pytest.raises(Boom): learn.step()
    assert set(differences(before, learn.snapshot())) <= {"begun", "epoch_open"}   # on_train_begin is behind it
    learn.train()
    assert not differences(like.snapshot(), learn.snapshot())


def test_an_attribute_of_the_first_update():
    "It is deleted again."
    class Lazy(Lookahead):
        def step(self, closure=None):
            if not hasattr(self, "seen"): self.seen = torch.ones(2)
            super().step()
    learn = learner(Lazy)
    FAILS[1] = True
    with pytest.raises(Boom): learn.step()
    assert not hasattr(learn.optimizer, "seen")

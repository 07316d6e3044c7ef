"What is changed between two verbs of a launched run: by freeze() and unfreeze(), by assignments in the notebook, by run_on_all()."
import pytest, torch

from trainer_nb import Learner
from launched import make, same

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("launch")]

PLAIN = {"model": dict(norm=False, drop=0.0)}
FSDP = {"fsdp": "full_shard"}


# ---- layers that are frozen

class Adapter(torch.nn.Module):
    "A frozen layer, and a small one that is trained, as in LoRA."
    def __init__(self):
        super().__init__()
        self.base, self.small = torch.nn.Linear(8, 2), torch.nn.Linear(8, 2, bias=False)
        self.base.requires_grad_(False)
    def forward(self, x): return self.base(x) + self.small(x)

def adapted(**settings):
    learn = make(eval_strategy="no", kind=lambda model, **more: (torch.manual_seed(0), Learner(Adapter(), **more))[1], **settings)
    learn.set(lr=0.1)
    return learn

def measured(learn):
    "What the tools find that train a copy of the run."
    rates = learn.lr_find(num_steps=20)
    frame = learn.inspect().frame()
    return frame.to_csv(), [float(loss) for loss in rates.losses]


@pytest.mark.parametrize("division", [{}, FSDP], ids=["whole", "fsdp"])
def test_tools_that_train_follow_the_frozen_layers(division):
    "The processes average the gradients of the parameters that can be trained now, as after the next step."
    first, then, back = (make(**PLAIN, **division) for _ in range(3))
    first.freeze()
    for learn in (first, then, back): learn.launch(2)
    then.freeze()
    back.freeze()
    frozen = [measured(learn) for learn in (first, then)]
    assert frozen[0] == frozen[1]
    for learn in (first, then, back): learn.unfreeze()
    all_layers = [measured(learn) for learn in (first, then, back)]
    assert all_layers[0] == all_layers[1] == all_layers[2] != frozen[0]
    for learn in (first, then, back):
        learn.step(2)
        learn.close()
    same(then, back)
    # the optimizer of the first has the layers in another order
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), then.model.parameters()))


def test_tools_that_train_follow_requires_grad():
    "A base that is frozen from the beginning, and trained from some step on."
    here, there = (adapted(per_device_train_batch_size=n) for n in (8, 4))
    def thaw(learn): learn.model.base.requires_grad_(True)
    with there.launch(2):
        for learn in (here, there):
            learn.step(1)
            learn.inspect()
            learn.run_on_all(thaw)
            learn.unfreeze()
        torch.testing.assert_close(torch.tensor(here.lr_find(num_steps=20).losses), torch.tensor(there.lr_find(num_steps=20).losses), rtol=1e-4, atol=1e-5)
        for learn in (here, there): learn.step(2)
    for a, b in zip(here.model.parameters(), there.model.parameters()): torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-6)

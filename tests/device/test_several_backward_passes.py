"A training_step that runs two backward passes: as with DDP, or an error within seconds where the processes have different orders."
import os
import time

import pytest
import torch
from torch import nn

from trainer_nb import Learner

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("launch")]

FSDP = {"fsdp": True}
ZERO_1, ZERO_2, ZERO_3 = ({"deepspeed": {"zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}}} for stage in (1, 2, 3))
SLOW = pytest.mark.slow


class Heads(nn.Module):
    "Two losses, each with layers of its own after a common one; those of the second may have another size."
    _no_split_modules = ["Linear"]

    def __init__(self, width=8):
        super().__init__()
        torch.manual_seed(0)
        self.inward = nn.Linear(8, 8)
        self.a = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        self.b = nn.Sequential(nn.Linear(8, width), nn.Linear(width, 8))

    def forward(self, x, detached):
        hidden = self.inward(x)
        return {"loss": self.a(hidden).square().mean(), "second": (self.b(hidden.detach() if detached else hidden) - 1).square().mean()}


class TwoLosses(Learner):
    "Runs a backward pass for each loss: of one forward pass, or of two. From some step on, rank 1 has another order."
    def training_step(self, model, inputs, num_items_in_batch=None):
        names = ["loss", "second"]
        if os.environ.get("RANK") == "1" and self.state.global_step >= self.differs_from: names.reverse()
        out = model(inputs["x"], detached=True) if self.is_one_pass else None
        losses = []
        for name in names:
            losses.append(out[name] if self.is_one_pass else model(inputs["x"], detached=False)[name])
            self.accelerator.backward(losses[-1])
        return sum(losses).detach()


def trained(differs_from=100, is_one_pass=True, width=8, **division):
    "Losses and weights of a run on two processes, and the seconds after the launch; or the error."
    if "deepspeed" in division: pytest.importorskip("deepspeed")
    made = torch.Generator().manual_seed(0)
    rows = [{"x": torch.randn(8, generator=made)} for _ in range(48)]
    learn = TwoLosses(Heads(width), train_dataset=rows, per_device_train_batch_size=4, max_steps=4, learning_rate=0.05, optim="sgd", save_strategy="no",
                      report_to="none", disable_tqdm=True, use_cpu=True, **division)
    learn.differs_from, learn.is_one_pass = differs_from, is_one_pass
    with learn.launch(2): learn.train()
    return [r.loss for r in learn.history], [p.detach() for p in learn.model.parameters()]


@pytest.mark.parametrize("is_one_pass", [True, False])
@pytest.mark.parametrize("division", [pytest.param(FSDP, id="fsdp"), pytest.param(ZERO_3, id="zero3", marks=SLOW)])
def test_gradients_are_added_as_with_ddp(division, is_one_pass):
    losses, weights = trained(is_one_pass=is_one_pass, **division)
    expected = trained(is_one_pass=is_one_pass)
    assert losses == pytest.approx(expected[0], rel=1e-5)
    for found, wanted in zip(weights, expected[1]): torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("differs_from, width", [(0, 8), (2, 8), pytest.param(0, 24, marks=SLOW), pytest.param(2, 24, marks=SLOW)])
def test_different_orders_with_fsdp(differs_from, width):
    "Exchanges of layers of one size would mix them up, and those of different sizes would never end."
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"Rank (\d) runs '(a|b)\.1' where rank [01] runs '(a|b)\.1': with fsdp, a backward pass has to reach the same wrapped layers"):
        trained(differs_from, width=width, **FSDP)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("division", [pytest.param(ZERO_2, id="zero2"), pytest.param(ZERO_3, id="zero3")])
def test_different_orders_with_deepspeed(division):
    with pytest.raises(ValueError, match="with deepspeed, all processes have to use the same parameters"): trained(**division, differs_from=0)


@pytest.mark.parametrize("division", [pytest.param(ZERO_1, id="zero1"), pytest.param(ZERO_2, id="zero2")])
def test_a_second_pass_with_zero_1_and_2_is_an_error(division):
    with pytest.raises(ValueError, match="second backward pass was run for a micro-batch.* one backward pass for the sum of the losses"): trained(**division)

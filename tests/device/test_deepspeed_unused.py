"""DeepSpeed: parameters that a step, or a micro-batch, does not use get no gradient of another one, with and without offloading."""
import functools

import pytest
import torch
from torch import nn

pytest.importorskip("deepspeed")

from test_deepspeed import AUTO
from trainer_nb import Learner


class Alternating(nn.Module):
    "Uses one of its layers in every other forward pass only."
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1)
        self.passes = 0

    def forward(self, x, labels):
        self.passes += self.training
        hidden = self.first(x)
        if self.passes % 2: hidden = hidden + self.second(x)
        return {"loss": (self.out(hidden.tanh()).squeeze(-1) - labels).square().mean()}


def trained(folder, accumulation, deepspeed=None):
    "Losses, norms and weights of a run on two processes, with an optimizer that leaves a weight without gradient as it is."
    made = torch.Generator().manual_seed(0)
    rows = [{"x": torch.randn(8, generator=made), "labels": torch.randn((), generator=made)} for _ in range(48)]
    learn = Learner(Alternating(), train_dataset=rows, output_dir=str(folder), per_device_train_batch_size=4, max_steps=6,
                    learning_rate=0.05, optim="sgd", gradient_accumulation_steps=accumulation, deepspeed=deepspeed,
                    save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True)
    learn.launch(2, train=True)
    learn.close()
    return [r.loss for r in learn.history], [r.grad_norm for r in learn.history], [p.detach() for p in learn.model.parameters()]


@pytest.fixture(scope="module")
def by_ddp(tmp_path_factory):
    "A function that returns the same run with DDP, for a number of micro-batches."
    return functools.cache(lambda number: trained(tmp_path_factory.mktemp("ddp"), number))


# in one micro-batch, in every other step; in two, in the first one of each step; in three, in the outer ones or in the middle one
SLOW = pytest.mark.slow
CASES = [(3, True, 3), pytest.param(2, True, 3, marks=SLOW),
         *(pytest.param(stage, offload, number, marks=SLOW) for stage, offload, number in
           [(1, True, 1), (1, True, 2), (1, True, 3), (2, False, 2), (2, True, 1), (2, True, 2), (3, False, 1), (3, False, 2),
            (3, True, 1), (3, True, 2)])]


@pytest.mark.parametrize("stage, offload, number", CASES)
def test_as_ddp(by_ddp, stage, offload, number, tmp_path):
    zero = {"stage": stage, "stage3_param_persistence_threshold": 20} | ({"offload_optimizer": {"device": "cpu"}} if offload else {})
    config = AUTO | {"zero_optimization": zero, "zero_force_ds_cpu_optimizer": False}
    losses, norms, weights = trained(tmp_path, number, config)
    expected = by_ddp(number)
    assert losses == pytest.approx(expected[0], rel=1e-5) and norms == pytest.approx(expected[1], rel=1e-5)
    for found, wanted in zip(weights, expected[2]): torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)

"DeepSpeed: where a process runs the same layers in another order, an error is raised; none gets the gradient of another layer."
import os
from types import SimpleNamespace

import pytest
import torch
from torch import nn

deepspeed = pytest.importorskip("deepspeed")

from test_deepspeed import AUTO
from trainer_nb import Learner
from trainer_nb.device.deepspeed import averages_at_arrival


def reversed_on_rank_1(step, rank): return [3, 2, 1, 0] if rank else [0, 1, 2, 3]


def reversed_later(step, rank): return [3, 2, 1, 0] if rank and step > 2 else [0, 1, 2, 3]


def in_turn(step, rank): return [3, 2, 1, 0] if step % 2 else [0, 1, 2, 3]


class Branches(nn.Module):
    "Runs branches of one size, in an order that depends on the step and the rank; the sum has the same order on all."
    def __init__(self, order):
        super().__init__()
        torch.manual_seed(0)
        self.inward, self.branches, self.out = nn.Linear(8, 8), nn.ModuleList(nn.Linear(8, 8) for _ in range(4)), nn.Linear(8, 1)
        self.order, self.passes = order, 0

    def forward(self, x, labels):
        self.passes += self.training
        hidden = self.inward(x)
        found = {}
        for i in self.order(self.passes, int(os.environ.get("RANK", 0))):
            branch = self.branches[i]
            found[i] = branch(hidden)
        hidden = sum((i + 1) * found[i].tanh() for i in sorted(found))
        return {"loss": (self.out(hidden).squeeze(-1) - labels).square().mean()}


def trained(order, deepspeed=None, accumulation=1):
    "Losses and weights of a run on two processes."
    made = torch.Generator().manual_seed(0)
    rows = [{"x": torch.randn(8, generator=made), "labels": torch.randn((), generator=made)} for _ in range(48)]
    learn = Learner(Branches(order), train_dataset=rows, per_device_train_batch_size=4, max_steps=5, learning_rate=0.05, optim="sgd", save_strategy="no",
                    gradient_accumulation_steps=accumulation, deepspeed=deepspeed, report_to="none", disable_tqdm=True, use_cpu=True)
    with learn.launch(2): learn.train()
    return [r.loss for r in learn.history], [p.detach() for p in learn.model.parameters()]


SLOW = pytest.mark.slow
SMALL = {"reduce_bucket_size": 100}
CONFIG = AUTO | {"zero_force_ds_cpu_optimizer": False}


@pytest.mark.parametrize("stage, zero, order, accumulation", [
    (2, SMALL, reversed_on_rank_1, 1),
    pytest.param(1, {"overlap_comm": True}, reversed_later, 2, marks=SLOW),
    pytest.param(2, SMALL | {"contiguous_gradients": False}, reversed_later, 1, marks=SLOW),
    pytest.param(2, {"offload_optimizer": {"device": "cpu"}}, reversed_later, 2, marks=SLOW),
])
def test_another_order_is_an_error(stage, zero, order, accumulation):
    with pytest.raises(ValueError, match=r"Rank [01] has the gradient of 'branches\.\d\.\w+' where rank [01] has the gradient of 'branches\.\d\.\w+': with deepspeed, gradients"):
        trained(order, CONFIG | {"zero_optimization": {"stage": stage} | zero}, accumulation=accumulation)


@pytest.mark.parametrize("stage, zero, order, accumulation", [(1, {"overlap_comm": False}, reversed_on_rank_1, 1), (2, SMALL, in_turn, 2)])
def test_as_ddp(stage, zero, order, accumulation):
    "Where gradients are averaged after the backward pass, and where all processes change their order."
    losses, weights = trained(order, CONFIG | {"zero_optimization": {"stage": stage} | zero}, accumulation=accumulation)
    expected = trained(order, accumulation=accumulation)
    assert losses == pytest.approx(expected[0], rel=1e-5)
    for found, wanted in zip(weights, expected[1]): torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_small_layers_of_zero_3():
    "Each process holds them whole; DeepSpeed records their calls, and a process that deviates alone would wait for ever."
    zero = AUTO | {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 10_000}}
    with pytest.raises(ValueError, match=r"Rank [01] runs 'branches\.\d' where rank [01] runs 'branches\.\d': with ZeRO 3, .* in the same order"):
        trained(reversed_later, zero)


class Zero:
    "Stands for DeepSpeed's optimizer."
    partition_gradients = True
    def reduce_ready_partitions_and_remove_grads(self, p, group): pass


def test_optimizers_that_average_after_the_backward_pass_need_no_order():
    assert averages_at_arrival(Zero())
    for overlaps in (False, True):
        first = Zero()
        first.partition_gradients, first.overlap_comm = False, overlaps
        assert averages_at_arrival(first) is overlaps
    assert not averages_at_arrival(SimpleNamespace())

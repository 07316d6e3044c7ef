"DeepSpeed: processes that run the same layers in different orders train as with DDP; none gets the gradient of another layer."
import functools
import os
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

deepspeed = pytest.importorskip("deepspeed")

from test_deepspeed import AUTO
from trainer_nb import Learner
from trainer_nb.device.collectives import World
from trainer_nb.device.deepspeed import GradientOrder, averages_at_arrival


def reversed_on_rank_1(step, rank): return [3, 2, 1, 0] if rank else [0, 1, 2, 3]


def reversed_later(step, rank): return [3, 2, 1, 0] if rank and step > 2 else [0, 1, 2, 3]


def others_later(step, rank):
    "A branch that all run from the third step on only, in an order of each rank."
    order = [0, 1, 2] if step < 3 else [0, 1, 2, 3]
    return order[::-1] if (rank + step) % 2 else order


class Branches(nn.Module):
    "Runs branches of one size, in an order that depends on the step and the rank; the sum has the same order on all."
    def __init__(self, order, reentrant=False):
        super().__init__()
        torch.manual_seed(0)
        self.inward, self.branches, self.out = nn.Linear(8, 8), nn.ModuleList(nn.Linear(8, 8) for _ in range(4)), nn.Linear(8, 1)
        self.order, self.reentrant, self.passes = order, reentrant, 0

    def forward(self, x, labels):
        self.passes += self.training
        hidden = self.inward(x)
        found = {}
        for i in self.order(self.passes, int(os.environ.get("RANK", 0))):
            branch = self.branches[i]
            found[i] = checkpoint(branch, hidden, use_reentrant=True) if self.reentrant else branch(hidden)
        hidden = sum((i + 1) * found[i].tanh() for i in sorted(found))
        return {"loss": (self.out(hidden).squeeze(-1) - labels).square().mean()}


def trained(order, deepspeed=None, reentrant=False, accumulation=1):
    "Losses and weights of a run on two processes."
    made = torch.Generator().manual_seed(0)
    rows = [{"x": torch.randn(8, generator=made), "labels": torch.randn((), generator=made)} for _ in range(48)]
    learn = Learner(Branches(order, reentrant), train_dataset=rows, per_device_train_batch_size=4, max_steps=5, learning_rate=0.05, optim="sgd", save_strategy="no",
                    gradient_accumulation_steps=accumulation, deepspeed=deepspeed, report_to="none", disable_tqdm=True, use_cpu=True)
    with learn.launch(2): learn.train()
    return [r.loss for r in learn.history], [p.detach() for p in learn.model.parameters()]


@pytest.fixture(scope="module")
def by_ddp():
    "A function that returns the same run with DDP."
    return functools.cache(lambda order, accumulation: trained(order, accumulation=accumulation))


SLOW = pytest.mark.slow


@pytest.mark.parametrize("stage, zero, order, accumulation", [
    (2, {"reduce_bucket_size": 100}, reversed_on_rank_1, 1),
    pytest.param(1, {"overlap_comm": False}, reversed_on_rank_1, 1, marks=SLOW),   # right by itself
    pytest.param(1, {"overlap_comm": True}, reversed_on_rank_1, 2, marks=SLOW),
    pytest.param(2, {"overlap_comm": True, "reduce_bucket_size": 100}, reversed_later, 2, marks=SLOW),
    pytest.param(2, {"contiguous_gradients": False, "reduce_bucket_size": 100}, others_later, 1, marks=SLOW),
    pytest.param(2, {"offload_optimizer": {"device": "cpu"}}, others_later, 2, marks=SLOW),
])
def test_as_ddp(by_ddp, stage, zero, order, accumulation):
    losses, weights = trained(order, AUTO | {"zero_optimization": {"stage": stage} | zero, "zero_force_ds_cpu_optimizer": False}, accumulation=accumulation)
    expected = by_ddp(order, accumulation)
    assert losses == pytest.approx(expected[0], rel=1e-5)
    for found, wanted in zip(weights, expected[1]): torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_small_layers_of_zero_3():
    "Each process holds them whole; DeepSpeed records their calls, and a process that deviates alone would wait for ever."
    zero = AUTO | {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 10_000}}
    with pytest.raises(ValueError, match=r"Rank [01] runs 'branches\.\d' where rank [01] runs 'branches\.\d': with ZeRO 3, .* in the same order \('zero_optimization': {'stage': 2}"):
        trained(reversed_later, zero)


@pytest.mark.slow
def test_backward_passes_inside_of_a_backward_pass():
    "Their parameters are not known at the beginning: in the first step a different order is an error, later they are waited for."
    zero = AUTO | {"zero_optimization": {"stage": 2, "reduce_bucket_size": 100}}
    with pytest.raises(ValueError, match=r"Rank [01] and rank [01] have run the layers in different orders .* leave use_reentrant out"):
        trained(reversed_on_rank_1, zero, reentrant=True)
    losses, _ = trained(reversed_later, zero, reentrant=True)
    assert losses == pytest.approx(trained(reversed_later)[0], rel=1e-5)


# ---- without processes

class Zero:
    "Stands for DeepSpeed's optimizer: it records what it averages."
    partition_gradients = True
    def __init__(self): self.averaged, self.passes = [], []
    def reduce_ready_partitions_and_remove_grads(self, p, group): self.averaged.append(p)
    def independent_gradient_partition_epilogue(self): self.passes.append(self.averaged); self.averaged = []


def ordered(n=4):
    "An order of n parameters, and a function that runs a pass with these arrivals and returns the order in which they are averaged."
    zero, used, parameters = Zero(), SimpleNamespace(used=None), [nn.Parameter(torch.zeros(1)) for _ in range(n)]
    order = GradientOrder(zero, parameters, used, World())
    def run(arrivals, announced=None):
        used.used = bytes(i in (arrivals if announced is None else announced) for i in range(n))
        order.begin()
        for i in arrivals: zero.reduce_ready_partitions_and_remove_grads(parameters[i], 0)
        zero.independent_gradient_partition_epilogue()
        order.learn()
        return [next(i for i, q in enumerate(parameters) if p is q) for p in zero.passes[-1]]
    return zero, order, run


def test_the_common_order_is_that_of_the_first_arrival():
    zero, order, run = ordered()
    assert run([0, 2, 1, 3]) == [3, 2, 1, 0]   # it is not known yet
    assert run([0, 2, 1, 3]) == [0, 2, 1, 3] and run([3, 1, 2, 0]) == [0, 2, 1, 3]
    assert run([3, 1, 0]) == [0, 1, 3]   # one that is not used does not hold up the others
    order.release()
    assert run([3, 1, 2, 0]) == [3, 1, 2, 0]


def test_nothing_is_kept_that_arrives_in_its_turn():
    "It is averaged while the pass goes on, as without an order."
    zero, order, run = ordered()
    run([0, 2, 1, 3])
    counts = []
    average = order._average
    order._average = lambda p, group: (average(p, group), counts.append(len(order._held)))
    assert run([0, 2, 1, 3]) == [0, 2, 1, 3] and counts == [0] * 4


def test_parameters_that_are_new_find_their_place():
    zero, order, run = ordered()
    assert run([3, 1, 0]) == [3, 1, 0]
    assert run([3, 2, 1, 0]) == [3, 1, 0, 2]   # behind the others, until it is known
    assert run([0, 1, 2, 3]) == [3, 2, 1, 0]


def test_parameters_that_are_not_announced_are_known_after_a_pass():
    zero, order, run = ordered()
    assert run([3, 1, 2, 0], announced=[0, 3]) == [3, 1, 2, 0]
    assert run([2, 1, 0, 3], announced=[0, 3]) == [3, 1, 2, 0]
    assert run([0, 3], announced=[0, 3]) == [3, 0]   # as far as they come


def test_optimizers_that_average_after_the_backward_pass_need_no_order():
    assert averages_at_arrival(Zero())
    for overlaps in (False, True):
        first = Zero()
        first.partition_gradients, first.overlap_comm = False, overlaps
        assert averages_at_arrival(first) is overlaps
    assert not averages_at_arrival(SimpleNamespace())

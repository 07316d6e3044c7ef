"Messages: tensors of any dtypes travel in one, and a loss with the norm of sharded gradients."
import pytest, torch
import torch.distributed as dist

from trainer_nb.device.collectives import World
from trainer_nb.device.sharding import clip_sharded_grad_norm


def tensors(seed):
    generator = torch.Generator().manual_seed(seed)
    def noise(*shape): return torch.randn(*shape, generator=generator)
    return [noise(3), torch.tensor(seed), (noise(5) > 0), noise(4, 6).t(), noise(2, 2).to(torch.bfloat16), noise(2).double(),
            torch.complex(noise(2), noise(2)), noise(0, 3), noise(3).to(torch.float16), torch.tensor([seed, 2], dtype=torch.int8)]


def test_one_message_for_all_dtypes(monkeypatch):
    sent = []
    monkeypatch.setattr(dist, "broadcast", lambda t, src, group: sent.append(t.clone()))
    first = tensors(7)
    World(rank=0, size=2).broadcast_tensors(first)
    assert len(sent) == 1
    # what rank 1 receives
    monkeypatch.setattr(dist, "broadcast", lambda t, src, group: t.copy_(sent[0]))
    other = tensors(8)
    strides = [t.stride() for t in other]
    World(rank=1, size=2).broadcast_tensors(other)
    for a, b, stride in zip(first, other, strides):
        assert a.dtype == b.dtype and b.stride() == stride and torch.equal(a, b)
    # nothing without tensors or processes
    monkeypatch.setattr(dist, "broadcast", lambda *a, **k: 1 / 0)
    World(rank=0, size=2).broadcast_tensors([])
    World().broadcast_tensors(tensors(1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_norm_and_loss_have_the_precision_of_the_model(dtype):
    "A loss in float64 is not rounded to float32; one in bfloat16 is summed in float32."
    generator = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.zeros(5, dtype=dtype)) for _ in range(3)]
    for p in params: p.grad = torch.randn(5, generator=generator, dtype=torch.float64).to(dtype)
    others = torch.tensor([1 / 3, 2 / 3], dtype=dtype)
    norm, sums = clip_sharded_grad_norm(params, 0.0, World(), others)
    wide = torch.promote_types(dtype, torch.float32)
    assert norm.dtype == sums.dtype == wide and torch.equal(sums, others.to(wide))
    torch.testing.assert_close(norm, torch.stack([p.grad.to(wide) for p in params]).norm(), rtol=1e-12 if dtype is torch.float64 else 1e-2, atol=0)

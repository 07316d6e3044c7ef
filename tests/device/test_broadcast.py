"Tensors of any dtypes travel in one message."
import torch
import torch.distributed as dist

from trainer_nb.device.collectives import World


def tensors(seed):
    generator = torch.Generator().manual_seed(seed)
    def noise(*shape): return torch.randn(*shape, generator=generator)
    return [noise(3), torch.tensor(seed), (noise(5) > 0), noise(4, 6).t(), noise(2, 2).to(torch.bfloat16), noise(2).double(),
            torch.complex(noise(2), noise(2)), noise(0, 3), noise(3).to(torch.float16), torch.tensor([seed, 2], dtype=torch.int8)]


def test_one_message_for_all_dtypes(monkeypatch):
    sent = []
    monkeypatch.setattr(dist, "broadcast", lambda t, src: sent.append(t.clone()))
    first = tensors(7)
    World(rank=0, size=2).broadcast_tensors(first)
    assert len(sent) == 1
    # what rank 1 receives
    monkeypatch.setattr(dist, "broadcast", lambda t, src: t.copy_(sent[0]))
    other = tensors(8)
    strides = [t.stride() for t in other]
    World(rank=1, size=2).broadcast_tensors(other)
    for a, b, stride in zip(first, other, strides):
        assert a.dtype == b.dtype and b.stride() == stride and torch.equal(a, b)


def test_nothing_is_sent_without_tensors_or_processes(monkeypatch):
    monkeypatch.setattr(dist, "broadcast", lambda *a, **k: 1 / 0)
    World(rank=0, size=2).broadcast_tensors([])
    World().broadcast_tensors(tensors(1))

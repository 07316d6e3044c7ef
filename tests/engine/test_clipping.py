"Gradients are clipped exactly as torch.nn.utils.clip_grad_norm_ clips them."
import pytest
import torch

from trainer_nb.device.strategy import clip_gradients


def params(*kinds, scale=1.0, seed=0):
    "Parameters with gradients, one for each (shape, dtype)."
    generator = torch.Generator().manual_seed(seed)
    found = []
    for shape, dtype in kinds:
        p = torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype))
        p.grad = (scale * torch.randn(shape, generator=generator)).to(dtype)
        found.append(p)
    return found


def bits(tensors): return [t.reshape(-1).view(torch.uint8).tolist() for t in tensors]


F, H, D = torch.float32, torch.bfloat16, torch.float64
CASES = {
    "one": [((3,), F)], "several": [((30, 20), F), ((20,), F), ((), F), ((0, 4), F)], "two dtypes": [((5, 5), F), ((5,), H), ((4,), F)],
    "double": [((7, 3), D), ((3,), D)], "half": [((64, 8), H)],
}

@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("limit", [0.5, 1e9])
@pytest.mark.parametrize("scale", [1.0, 1e-30, float("inf"), float("nan")])
def test_the_same_bits_as_torch(case, limit, scale):
    own, other = params(*CASES[case], scale=scale), params(*CASES[case], scale=scale)
    norm, expected = clip_gradients(own, limit), torch.nn.utils.clip_grad_norm_(other, limit)
    assert norm.dtype == expected.dtype and norm.shape == () and bits([norm]) == bits([expected])
    assert bits(p.grad for p in own) == bits(p.grad for p in other)

@pytest.mark.parametrize("dtype", [F, D, H, torch.float16])
def test_a_limit_near_the_norm(dtype):
    "Below the limit the multiplication is left out; near it, the rounding of the factor decides."
    random = torch.Generator().manual_seed(1)
    for seed in range(300):
        scale = 10 ** (float(torch.rand((), generator=random)) * 8 - 6)
        own, other = ([p for p in params(((9, 7), dtype), ((5,), dtype), scale=scale, seed=seed)] for _ in range(2))
        norm = torch.nn.utils.get_total_norm([p.grad for p in own]).item()
        limit = norm * (0.9 + 0.3 * float(torch.rand((), generator=random))) + 1e-6 * (seed % 3)
        clip_gradients(own, limit)
        torch.nn.utils.clip_grad_norm_(other, limit)
        assert bits(p.grad for p in own) == bits(p.grad for p in other), (norm, limit)

def test_without_a_limit_gradients_stay():
    own = params(*CASES["several"])
    before = bits(p.grad for p in own)
    norm = clip_gradients(own, 0)
    assert bits([norm]) == bits([torch.nn.utils.get_total_norm([p.grad for p in own])]) and bits(p.grad for p in own) == before

def test_no_gradients_at_all(): assert clip_gradients([], 1.0).item() == 0

def test_gradients_that_require_gradients():
    "With create_graph=True a gradient is part of a graph; clipping must not become part of it."
    own, other = params(((4, 4), F), scale=9.), params(((4, 4), F), scale=9.)
    for p in own + other: p.grad = (p * 7).detach().requires_grad_()
    norm, expected = clip_gradients(own, 0.1), torch.nn.utils.clip_grad_norm_(other, 0.1)
    assert not norm.requires_grad and bits([norm]) == bits([expected]) and bits(p.grad.detach() for p in own) == bits(p.grad.detach() for p in other)

def test_sparse_gradients():
    own, other = torch.nn.Embedding(9, 4, sparse=True), torch.nn.Embedding(9, 4)
    other.load_state_dict(own.state_dict())
    for e in (own, other): (e(torch.tensor([1, 1, 5])) * 3).sum().backward()
    norm, expected = clip_gradients(list(own.parameters()), 0.5), torch.nn.utils.clip_grad_norm_(other.parameters(), 0.5)
    torch.testing.assert_close(norm, expected)
    torch.testing.assert_close(own.weight.grad.to_dense(), other.weight.grad)

"The norm of sharded gradients, and the loss that is sent with it."
import pytest, torch

from trainer_nb.device.collectives import World
from trainer_nb.device.sharding import clip_sharded_grad_norm

pytestmark = [pytest.mark.timeout(120)]


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

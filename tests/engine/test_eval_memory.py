"What an evaluation keeps of each batch takes no memory from the batches that follow."
import numpy as np
import pytest
import torch

from trainer_nb.engine.eval_outputs import EvalOutputs, batch_value, mean_value


def held_tensors(thing):
    if isinstance(thing, torch.Tensor): return 1
    if isinstance(thing, dict): thing = thing.values()
    return sum(map(held_tensors, thing)) if isinstance(thing, (list, tuple)) or hasattr(thing, "__iter__") else 0

@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_losses_are_numbers_on_the_host(dtype):
    outputs, values = EvalOutputs(), torch.rand(7, generator=torch.Generator().manual_seed(0)).to(dtype)
    for k, loss in enumerate(values): outputs.add(k, k + 1, loss)
    assert held_tensors([vars(batch) for batch in outputs.batches]) == 0
    assert outputs.mean_loss() == sum(float(v) * (k + 1) for k, v in enumerate(values)) / 28
    each = outputs.losses()
    expected = np.repeat(values.float().numpy() if dtype is torch.bfloat16 else values.numpy(), range(1, 8))
    assert each.dtype == expected.dtype and each.tobytes() == expected.tobytes()

def test_averages_are_numbers_on_the_host():
    def metric(predicted, labels): return (predicted - labels).abs().mean()
    generator = torch.Generator().manual_seed(0)
    batches = [(torch.rand(8, generator=generator), torch.rand(8, generator=generator)) for _ in range(5)]
    values = [batch_value("m", metric, 8, p, y, k < 2) for k, (p, y) in enumerate(batches)]
    assert held_tensors(values) == 0
    assert mean_value("m", values) == pytest.approx(float(sum((p - y).abs().mean().double() for p, y in batches) / 5), rel=1e-12)

def test_an_average_over_nothing_is_not_a_number():
    value = batch_value("m", lambda predicted, labels: (torch.tensor(0.), 0), 4, torch.zeros(4), torch.zeros(4), True)
    assert np.isnan(mean_value("m", [value]))

"The loop advances schedules without torch's checks, to the same state."
import pytest
import torch
from torch.optim import lr_scheduler as torchs

from trainer_nb.optim.schedules import advance_schedule

pytestmark = pytest.mark.filterwarnings("ignore")

def _pair(make, lrs):
    found = []
    for _ in range(2):
        groups = [{"params": [torch.nn.Parameter(torch.zeros(2))], "lr": lr.clone() if isinstance(lr, torch.Tensor) else lr} for lr in lrs]
        optimizer = torch.optim.SGD(groups, lr=0.1)
        found.append((optimizer, make(optimizer)))
    return found

class _Doubling(torchs.LambdaLR):
    def get_lr(self): return [2 * rate for rate in super().get_lr()]

@pytest.mark.parametrize("lrs", [[0.1], [0.1, 0.02], [torch.tensor(0.1), torch.tensor(0.02)], [0.1, torch.tensor(0.02)], [1]], ids=str)
@pytest.mark.parametrize("make", [
    lambda o: torchs.LambdaLR(o, lambda step: 1 / (1 + step)), lambda o: torchs.LambdaLR(o, lambda step: 1),
    lambda o: torchs.LambdaLR(o, lambda step: torch.tensor(0.5) ** step), lambda o: torchs.LambdaLR(o, [lambda step, k=k: k + step for k in range(len(o.param_groups))]),
    lambda o: _Doubling(o, lambda step: 0.9 ** step), lambda o: torchs.ExponentialLR(o, 0.9),
], ids=["fraction", "whole", "tensor", "list", "subclass", "other"])
def test_advancing_gives_what_step_gives(make, lrs):
    (own, ours), (other, theirs) = _pair(make, lrs)
    for _ in range(5):
        own.step(), other.step()
        advance_schedule(ours), theirs.step()
        for a, b in zip(own.param_groups, other.param_groups):
            assert type(a["lr"]) is type(b["lr"]) and float(a["lr"]) == float(b["lr"])
        a, b = ({k: v for k, v in s.state_dict().items() if k != "lr_lambdas"} for s in (ours, theirs))
        assert a == b and list(map(type, a["_last_lr"])) == list(map(type, b["_last_lr"]))

def test_a_schedule_that_counts_its_calls_is_called_once_a_step():
    calls = []
    (optimizer, schedule), _ = _pair(lambda o: torchs.LambdaLR(o, lambda step: calls.append(step) or 1.0), [torch.tensor(0.1)])
    calls.clear()
    for _ in range(4): optimizer.step(), advance_schedule(schedule)
    assert calls == [1, 2, 3, 4]

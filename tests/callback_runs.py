"What several tests share: Counts, make, net, points."
import warnings
import torch
from torch import nn
from trainer_nb import (ExportableState, Learner, TrainerCallback)


class Net(nn.Module):
    def __init__(self): super().__init__(); self.layer = nn.Linear(2, 1)
    def forward(self, x, labels=None):
        out = self.layer(x).squeeze(-1)
        return {"logits": out} if labels is None else {"loss": ((out - labels) ** 2).mean(), "logits": out}

def net():
    torch.manual_seed(1)
    return Net()

def points(n, seed=0, far=0.0):
    g = torch.Generator().manual_seed(seed)
    return [{"x": torch.randn(2, generator=g), "labels": torch.randn((), generator=g) + far} for _ in range(n)]

def make(**settings):
    "It becomes worse on the evaluation set as it learns the other one."
    given = dict(train_dataset=points(40, far=5.0), eval_dataset=points(16, seed=2), learning_rate=0.05, per_device_train_batch_size=4, max_steps=30, use_cpu=True,
                 disable_tqdm=True, eval_strategy="steps", eval_steps=2, metric_for_best_model="loss", logging_strategy="no")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Learner(net(), **given | settings)

class Counts(TrainerCallback, ExportableState):
    def __init__(self, by=1): self.by, self.steps = by, 0
    def state(self): return {"args": {"by": self.by}, "attributes": {"steps": self.steps}}
    def on_step_end(self, args, state, control, **kwargs): self.steps += self.by

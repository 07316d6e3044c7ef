"What several tests share: a small run whose callbacks save their state, one of which can refuse to take it back."
import torch
from torch import nn

from trainer_nb import Learner, TrainerCallback


class Net(nn.Module):
    def __init__(self, hidden=6):
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(4, hidden), nn.BatchNorm1d(hidden), nn.Linear(hidden, 2)

    def forward(self, x=None, labels=None):
        logits = self.outer(torch.tanh(self.norm(self.inner(x))))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Counts(TrainerCallback):
    def __init__(self): self.n = 0
    def on_step_end(self, args, state, control, **kwargs): self.n += 1
    def state_dict(self): return {"n": self.n}
    def load_state_dict(self, state): self.n = state["n"]


class Refuses(Counts):
    "A callback that cannot take back its state, once it is armed."
    armed = False
    def load_state_dict(self, state):
        if self.armed: raise RuntimeError("this state is not mine")
        super().load_state_dict(state)


def rows(n=24):
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(0))
    return [{"x": a, "labels": int(a.sum() > 0)} for a in x]


def learner(model=None, **given):
    torch.manual_seed(0)
    settings = dict(learning_rate=1e-2, per_device_train_batch_size=4, max_steps=10, use_cpu=True, disable_tqdm=True, logging_steps=2,
                    lr_scheduler_type="cosine", callbacks=[Counts(), Refuses(), Counts()], train_dataset=rows(), save_strategy="no")
    return Learner(Net() if model is None else model, **settings | given)

"Attributes that the user has edited when a run is resumed: the run's values win, and a message names those of the user."
import warnings

import pytest
import torch
from torch import nn

from trainer_nb import Learner, TrainerCallback


class Net(nn.Module):
    def __init__(self, scale=1.0, weights=(1.0, 2.0), decay=0.9):
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.scale, self.weights, self.decay = scale, torch.tensor(weights), decay
        self.mean, self.passes = torch.zeros(()), 0

    def forward(self, x, labels):
        loss = (self.scale * self.weights * (self.layer(x) - labels)).pow(2).mean()
        self.mean = self.decay * self.mean + (1 - self.decay) * loss.detach()
        self.passes += 1
        return {"loss": loss, "logits": self.layer(x)}


class Rows(torch.utils.data.Dataset):
    def __init__(self, shift=0.0, size=12): self.shift, self.size, self.reads = shift, size, 0
    def __len__(self): return self.size
    def __getitem__(self, i):
        self.reads += 1
        return {"x": torch.tensor([float(i), 1.0]) + self.shift, "labels": torch.tensor([float(i % 2)])}


class Factor(TrainerCallback):
    def __init__(self, every=2, factor=0.5, names=("a",), wait=0):
        self.every, self.factor, self.names, self.wait, self.by_name = every, factor, list(names), wait, {"a": torch.ones(2)}
        self.losses, self.begun = [], 0
    def on_train_begin(self, args, state, control, **kwargs): self.begun += 1
    def on_step_end(self, args, state, control, **kwargs):
        self.wait += 1
        self.losses.append(state.global_step)
        if not hasattr(self, "late"): self.late = state.global_step


class Own(Learner):
    alpha = 1.0   # of the class
    def __init__(self, *args, beta=0.5, **kwargs):
        self.beta, self.calls = beta, 0
        super().__init__(*args, **kwargs)
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        self.calls += 1
        loss = self.beta * model(**inputs)["loss"]
        return (loss, {}) if return_outputs else loss


class Damped(torch.optim.SGD):
    "An optimizer with a setting and a counter in attributes."
    def __init__(self, params, lr, damping=0.5):
        super().__init__(params, lr)
        self.damping, self.count = damping, 0
    @torch.no_grad()
    def step(self, closure=None):
        self.count += 1
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None: p.grad.mul_(self.damping)
        return super().step(closure)


def make(folder, model=None, data=None, callback=None, cls=Own, damping=0.5, **given):
    torch.manual_seed(0)
    model = model or Net()
    optimizer = Damped(model.parameters(), 0.001, damping)
    own = {k: given.pop(k) for k in ("beta",) if k in given}
    return cls(model, train_dataset=data or Rows(), callbacks=[callback or Factor()], optimizers=(optimizer, None), output_dir=str(folder),
               per_device_train_batch_size=2, max_steps=12, use_cpu=True, disable_tqdm=True, logging_steps=1, save_strategy="no", report_to="none",
               **own, **given)


def callback_of(learn): return next(c for c in learn.callback_handler.callbacks if isinstance(c, Factor))


def said(function):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    return [str(w.message) for w in caught if issubclass(w.category, UserWarning)]


def begin(folder, **given):
    learn = make(folder, **given)
    learn.step(5)
    path = learn.save_checkpoint()
    return path


def state(learn):
    c, m, d, o = callback_of(learn), learn.model, learn.train_dataset, learn.optimizer
    return {"callback": [c.begun, c.every, c.factor, c.names, c.wait, c.losses, c.late, c.by_name["a"].tolist()],
            "model": [m.scale, m.weights.tolist(), m.decay, float(m.mean), m.passes, m.layer.weight.tolist()],
            "learner": [learn.beta, learn.calls], "data": [d.shift, d.reads], "optimizer": [o.damping, o.count]}


@pytest.mark.parametrize("settings", [{}, {"bf16": True}])
@pytest.mark.parametrize("verb, given", [("predict_one", [Rows()[0]]), ("show_batch", []), ("batch_size_find", ["power", 1, 2]), ("evaluate", [Rows(size=4)]), ("rewind", [1])])
def test_what_a_verb_changes_is_no_edit(tmp_path, verb, given, settings):
    learn = make(tmp_path, **settings)
    learn.step(3), getattr(learn, verb)(*given), learn.step(1)
    assert "by hand" not in [act["act"] for act in learn.journal] and learn.train_dataset.reads == 2 * learn.state.global_step


def test_what_is_put_back_wins(tmp_path):
    "Attributes of a callback, a model and a learner become those of the run; one message names what is overwritten."
    path = begin(tmp_path)
    learn = make(tmp_path, Net(2.0, (3.0, 4.0), 0.8), callback=Factor(3, 0.1, ("a", "b")), damping=0.7, beta=0.9)
    message, = said(lambda: learn.load_checkpoint(path))
    straight = make(tmp_path / "straight")
    straight.step(5)
    assert state(learn) == state(straight)
    for part in ("Factor.every (3 here)", "Factor.factor (0.1 here)", "Factor.names", "Own.beta (0.9 here)", "model.scale (2.0 here)"):
        assert part in message, part
    assert "wait" not in message and "passes" not in message and "calls" not in message


def test_the_same_learner_goes_back_with_all_attributes(tmp_path):
    learn = make(tmp_path)
    learn.step(5)
    path = learn.save_checkpoint()
    learn.step(2)
    callback_of(learn).every = 9
    assert said(lambda: learn.load_checkpoint(path)) == [] and callback_of(learn).every == 2 and callback_of(learn).wait == 5

"""Records in loss_curves.json the losses of real runs, for test_health.py: python tests/record_loss_curves.py [NAME ...]

Small models on scikit-learn's digits, a character model and a GAN of numbers, on the CPU with one thread: what a loss looks like that converges,
overfits, stays, jumps, is noisy, small or negative. Each curve has the loss of every step and the eval_loss by step.
"""
import contextlib, json, math, sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Subset, TensorDataset

from trainer_nb import Learner

ADAM = dict(optim="adamw_torch", optim_args=None)
PATH = Path(__file__).with_name("loss_curves.json")


def digits(n=1400, wrong=0.0):
    "n digits to train on, some of them with a wrong label, and the others for the evaluation."
    images, labels = load_digits(return_X_y=True)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(images), generator=generator)
    x, y = torch.tensor(images, dtype=torch.float32)[order].view(-1, 1, 8, 8) / 16, torch.tensor(labels)[order]
    changed = torch.rand(n, generator=generator) < wrong
    y[:n][changed] = torch.randint(0, 10, (int(changed.sum()),), generator=generator)
    return TensorDataset(x[:n], y[:n]), TensorDataset(x[1400:], y[1400:])


def convolutions():
    return nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(256, 10))


def perceptron(width=64): return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def learner(model, data, steps, loss_func=nn.functional.cross_entropy, **settings):
    train, other = data
    defaults = dict(per_device_train_batch_size=64, lr_scheduler_type="constant", optim="sgd", optim_args="momentum=0.9", eval_strategy="steps", eval_steps=50)
    return Learner(model, train_dataset=train, eval_dataset=other, loss_func=loss_func, use_cpu=True, disable_tqdm=True, max_steps=steps,
                   save_strategy="no", **(defaults | settings))


def curve(learn):
    "The losses of a run, and its evaluations."
    with contextlib.redirect_stdout(None): learn.train()
    evaluations = [(o["step"], o["eval_loss"]) for o in learn.history.evaluations()]
    return learn.history["loss"].tolist(), evaluations


def seeded(make, *args):
    torch.manual_seed(0)
    return make(*args)


def diverging(): return curve(learner(seeded(convolutions), digits(), 700, learning_rate=0.4, lr_scheduler_type="constant_with_warmup", warmup_steps=700, max_grad_norm=0))
def converging(): return curve(learner(seeded(convolutions), digits(), 1500, learning_rate=0.02))
def decaying(): return curve(learner(seeded(convolutions), digits(), 1000, learning_rate=0.05, lr_scheduler_type="cosine", warmup_steps=50))
def restarting():
    return curve(learner(seeded(convolutions), digits(), 1200, learning_rate=0.1, lr_scheduler_type="cosine_with_restarts", lr_scheduler_kwargs={"num_cycles": 4}, max_grad_norm=0))
def overfitting(): return curve(learner(seeded(perceptron, 512), digits(300, 0.3), 2000, learning_rate=1e-3, **ADAM, per_device_train_batch_size=32, eval_steps=50))
def overfitting_by_epoch():
    return curve(learner(seeded(perceptron, 512), digits(300, 0.3), 10 * 60, learning_rate=2e-3, **ADAM, per_device_train_batch_size=5, eval_steps=60))
def confident(): return curve(learner(seeded(perceptron, 256), digits(700), 2000, learning_rate=3e-3, **ADAM, eval_steps=100))   # correct, and ever more sure of its mistakes
def plateau(): return curve(learner(seeded(perceptron), digits(), 600, learning_rate=1e-5))
def noisy(): return curve(learner(seeded(perceptron), digits(), 4000, learning_rate=0.03, per_device_train_batch_size=1, eval_steps=500))
def too_fast(): return curve(learner(seeded(perceptron), digits(), 300, learning_rate=30.0, max_grad_norm=0))
def adam_too_fast(): return curve(learner(seeded(convolutions), digits(), 800, learning_rate=0.03, **ADAM))


def spike():
    "The learning rate is far too large for two steps."
    learn = learner(seeded(convolutions), digits(), 900, learning_rate=0.02)
    with contextlib.redirect_stdout(None): learn.run(steps=400)
    learn.set(lr=1.0)
    learn.run(steps=2)
    learn.set(lr=0.02)
    return curve(learn)


def fine_tuning(rate=1e-3):
    "A network that is trained already, and continues."
    learn = learner(seeded(convolutions), digits(), 300, learning_rate=0.02, eval_strategy="no")
    learn.run()
    return curve(learner(learn.model, digits(), 500, learning_rate=rate))


def fine_tuning_too_fast(): return fine_tuning(0.7)


class Autoencoder(nn.Module):
    "Returns the mean and the logarithm of the variance of each pixel."
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 128))
    def forward(self, x): return self.net(x)


def negative():
    "A likelihood of continuous values, whose negative logarithm falls below 0."
    (x, _), (other, _) = (o.tensors for o in digits())
    def loss(out, x):
        mean, log_variance = out.chunk(2, -1)
        return nn.functional.gaussian_nll_loss(mean, x.flatten(1), log_variance.exp().clamp(1e-3), full=True)
    return curve(learner(seeded(Autoencoder), (TensorDataset(x, x), TensorDataset(other, other)), 1000, loss, learning_rate=3e-3, **ADAM))


def tiny():
    "A regression without noise: the loss falls to almost 0."
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1000, 8, generator=generator)
    data = TensorDataset(x, x @ torch.randn(8, 1, generator=generator))
    return curve(learner(seeded(nn.Linear, 8, 1), (Subset(data, range(800)), Subset(data, range(800, 1000))), 800, nn.functional.mse_loss, learning_rate=0.02))


class Characters(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.embedding, self.gru, self.head = nn.Embedding(n, 32), nn.GRU(32, 128, batch_first=True), nn.Linear(128, n)
    def forward(self, x): return self.head(self.gru(self.embedding(x))[0])


def characters():
    "A model of the next character, of the text of a module of Python; it learns the text by heart."
    import argparse
    text = Path(argparse.__file__).read_text()
    names = sorted(set(text))
    ids = torch.tensor([names.index(o) for o in text])
    rows = ids[:len(ids) // 65 * 65].view(-1, 65)
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    data = TensorDataset(rows[:, :-1], rows[:, 1:])
    def loss(out, y): return nn.functional.cross_entropy(out.flatten(0, 1), y.flatten())
    cut = len(data) - 200
    return curve(learner(seeded(Characters, len(names)), (Subset(data, range(400)), Subset(data, range(cut, len(data)))), 1500, loss,
                         learning_rate=3e-3, **ADAM, per_device_train_batch_size=32, eval_steps=100))


def gan():
    "The loss of the generator of two normal numbers, which rises and falls with the discriminator."
    torch.manual_seed(0)
    make = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    judge = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizers = [torch.optim.Adam(o.parameters(), 2e-2, betas=(0.9, 0.99)) for o in (make, judge)]
    cross, losses = nn.functional.binary_cross_entropy_with_logits, []
    for _ in range(3000):
        real, fake = torch.randn(64, 2) * 0.5 + 2, make(torch.randn(64, 4))
        optimizers[1].zero_grad()
        (cross(judge(real), torch.ones(64, 1)) + cross(judge(fake.detach()), torch.zeros(64, 1))).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        loss = cross(judge(fake), torch.ones(64, 1))
        loss.backward()
        optimizers[0].step()
        losses.append(loss.item())
    return losses, []


CURVES = {o.__name__: o for o in (diverging, converging, decaying, restarting, overfitting, overfitting_by_epoch, confident, plateau, noisy, too_fast, adam_too_fast,
                                  spike, fine_tuning, fine_tuning_too_fast, negative, tiny, characters, gan)}


def rounded(value): return float(f"{value:.4g}") if math.isfinite(value) else str(value)


if __name__ == "__main__":
    torch.set_num_threads(1)
    recorded = json.loads(PATH.read_text()) if PATH.exists() else {}
    for name in sys.argv[1:] or CURVES:
        losses, evaluations = CURVES[name]()
        recorded[name] = {"losses": [rounded(o) for o in losses], "evaluations": [[step, rounded(o)] for step, o in evaluations]}
        print(name, len(losses), recorded[name]["losses"][::max(len(losses) // 8, 1)], recorded[name]["evaluations"][::max(len(evaluations) // 8, 1)], flush=True)
    PATH.write_text("{\n" + ",\n".join(f'"{name}": {json.dumps(recorded[name], separators=(",", ":"))}' for name in CURVES if name in recorded) + "\n}\n")

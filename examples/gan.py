"""Two networks and two optimizers: a generator learns to draw points of a ring that a critic cannot tell from real ones.

Both networks are the learner's model, and each has an optimizer with a name. An overridden `optimize` is the whole step; a rewind,
a resumed checkpoint and a branch restore both networks and both optimizers.

    python gan.py
    python gan.py --quick"""
import argparse

import torch
from torch import nn
from torch.utils.data import TensorDataset

from trainer_nb import Learner, set_seed

NOISE = 4


def perceptron(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))


def ring(count: int) -> torch.Tensor:
    "Return points at distance 1 from the origin, with a little noise."
    angles = torch.rand(count) * 2 * torch.pi
    return torch.stack([angles.cos(), angles.sin()], 1) + 0.02 * torch.randn(count, 2)


class GAN(Learner):
    "Trains the critic, then the generator, in each step."
    def optimize(self, model, batches):
        real = torch.cat([points for [points] in batches])
        fake = model.generator(torch.randn(len(real), NOISE, device=real.device))

        # the critic: real points are 1, those of the generator 0
        scores = model.critic(torch.cat([real, fake.detach()])).squeeze(-1)
        truth = torch.cat([torch.ones_like(scores[:len(real)]), torch.zeros_like(scores[len(real):])])
        self.backward(nn.functional.binary_cross_entropy_with_logits(scores, truth))
        self.update("critic")

        # the generator: its points should count as real
        loss = nn.functional.softplus(-model.critic(fake)).mean()
        self.backward(loss)
        self.update("generator")
        return loss


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.5, 0.999))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="train for a moment, to see that everything works")
    steps = 100 if parser.parse_args().quick else 3000

    set_seed(0)
    networks = nn.ModuleDict({"generator": perceptron(NOISE, 2), "critic": perceptron(2, 1)})
    optimizers = {"generator": lambda model: adam(model.generator), "critic": lambda model: adam(model.critic)}
    learn = GAN(networks, optimizers=optimizers, train_dataset=TensorDataset(ring(4096)), max_steps=steps, lr_scheduler_type="constant",
                per_device_train_batch_size=128, max_grad_norm=0, rewind_every=20, logging_steps=500)
    learn.step(60)
    # going back restores both networks and both optimizers: the same steps give the same weights
    critic = [p.detach().clone() for p in networks.critic.parameters()]
    learn.rewind(30)
    learn.step(30)
    assert all(torch.equal(a, b) for a, b in zip(critic, networks.critic.parameters()))
    learn.train()

    with torch.no_grad(): points = networks.generator.eval()(torch.randn(1000, NOISE, device=next(networks.parameters()).device))
    radius = points.norm(dim=1)
    print(f"radius of the drawn points {radius.mean():.2f} ± {radius.std():.2f}; of the real ones 1.00 ± 0.02")


if __name__ == "__main__": main()

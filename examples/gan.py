"""Two networks and two optimizers: a generator learns to draw points of a ring that a critic cannot tell from real ones.

The generator is the learner's model. The critic and its optimizer are attributes of a subclass; as modules and optimizers have
a `state_dict`, they belong to the run: a rewind, a resumed checkpoint and a branch restore them with everything else.

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
    "Trains the critic within the step of the generator."
    def __init__(self, generator: nn.Module, critic: nn.Module, critic_rate: float, **settings):
        super().__init__(generator, **settings)
        # the learner moves only its own model
        self.critic = critic.to(self.args.device)
        self.critic_optimizer = torch.optim.Adam(critic.parameters(), lr=critic_rate, betas=(0.5, 0.999))

    def training_step(self, model, inputs, num_items_in_batch=None):
        "Update the critic, then return the generator's loss with its gradients: the learner updates the generator."
        [real] = self._prepare_inputs(inputs)
        fake = model(torch.randn(len(real), NOISE, device=real.device))

        # the critic: real points are 1, those of the generator 0
        scores = self.critic(torch.cat([real, fake.detach()])).squeeze(-1)
        truth = torch.cat([torch.ones_like(scores[:len(real)]), torch.zeros_like(scores[len(real):])])
        critic_loss = nn.functional.binary_cross_entropy_with_logits(scores, truth)
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()

        # the generator: its points should count as real; the critic gets no gradients from this
        self.critic.requires_grad_(False)
        loss = nn.functional.softplus(-self.critic(fake)).mean()
        self.critic.requires_grad_(True)
        loss = loss / self.current_gradient_accumulation_steps
        self.accelerator.backward(loss)
        return loss.detach()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="train for a moment, to see that everything works")
    steps = 100 if parser.parse_args().quick else 3000

    set_seed(0)
    learn = GAN(perceptron(NOISE, 2), perceptron(2, 1), critic_rate=1e-3, train_dataset=TensorDataset(ring(4096)), max_steps=steps,
                per_device_train_batch_size=128, learning_rate=1e-3, optim_args="betas=(0.5, 0.999)", lr_scheduler_type="constant",
                max_grad_norm=0, rewind_every=20, logging_steps=500)
    learn.step(60)
    # going back restores both networks and both optimizers: the same steps give the same weights
    critic = [p.detach().clone() for p in learn.critic.parameters()]
    learn.rewind(30)
    learn.step(30)
    assert all(torch.equal(a, b) for a, b in zip(critic, learn.critic.parameters()))
    learn.train()

    with torch.no_grad(): points = learn.model.eval()(torch.randn(1000, NOISE, device=next(learn.model.parameters()).device))
    radius = points.norm(dim=1)
    print(f"radius of the drawn points {radius.mean():.2f} ± {radius.std():.2f}; of the real ones 1.00 ± 0.02")


if __name__ == "__main__": main()

"Kinds of silent errors of TrainCheck's list that no other incident here has, as far as they show on a CPU: facts of the list, programs of our own."
import torch
from healthy import digits, mlp
from second_held_out_incidents import wrong
from tiny import Net, incident, learner, seeded, split, table
from torch import nn
from torch.utils.data import default_collate

from trainer_nb import Learner, TrainerCallback


@incident("model", "mmpretrain #702: a stage that is meant to be frozen is trained; here, an attribute is set in place of a call", "requires_grad|frozen|freeze", score=wrong)
def stage_not_frozen(faulty):
    "A body that was trained on much data, and a head that is trained on little."
    first = learner(seeded(Net), *split(*table(2000), 1900), num_train_epochs=8)
    first.train()
    first.model.head = nn.Linear(32, 2)
    if faulty: first.model.body.requires_grad = False
    else: first.model.body.requires_grad_(False)
    x, y = table(400, seed=1)
    return learner(first.model, *split(x, y.clamp(max=1), 40), num_train_epochs=40)


class Unfreeze(TrainerCallback):
    "Train the body, too, from some step on."
    def on_step_begin(self, args, state, control, model, **kwargs):
        if state.global_step == 40: model.body.requires_grad_(True)


@incident("model", "pytorch #115607: after steps without gradients, some parameters are updated no more", "not in the optimizer|never updated|not trained|do not move")
def unfrozen_and_not_updated(faulty):
    x, _ = table()
    model = seeded(Net, 8, 2)
    model.body.requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad or not faulty], lr=1e-2)
    return learner(model, *split(x, (x[:, 0]*x[:, 1] > 0).long()), optimizers=(optimizer, None), callbacks=[Unfreeze()], num_train_epochs=12)


class Exact(nn.Module):
    "A perceptron, most of which may be left out of autocast."
    def __init__(self, exact):
        super().__init__()
        self.exact, self.body, self.head = exact, mlp(64, 64, 64, 64), nn.Linear(64, 10)

    def forward(self, x):
        with torch.autocast("cpu", enabled=not self.exact and torch.is_autocast_enabled("cpu")): h = self.body(x)
        return self.head(h.relu())


def in_fp32(learn):
    "The share of the layers that compute in fp32 in a run with bf16=True."
    seen = []
    hooks = [m.register_forward_hook(lambda m, x, out: seen.append(out.dtype is torch.float32)) for m in learn.model.modules() if isinstance(m, nn.Linear)]
    learn.evaluate()
    for hook in hooks: hook.remove()
    return sum(seen)/len(seen)


@incident("model", "lightning-thunder #725: autocast does not reach some operations", "bf16|autocast|fp32|float32", score=in_fp32)
def autocast_has_no_effect(faulty): return learner(seeded(Exact, faulty), *split(*digits(), 480), bf16=True)


class Lossy(Learner):
    "A transfer to the device that now and then brings zeros."
    loses = True
    def _prepare_inputs(self, inputs):
        x, y = super()._prepare_inputs(inputs)
        return (torch.zeros_like(x) if self.loses and self.model.training and self.state.global_step % 2 else x), y


class Lossless(Lossy):
    loses = False


@incident("processes", "pytorch #84803, #96600, Baichuan2 #86: data that is lost in a transfer arrives as zeros", "zero|lost|arriv|prepare", score=wrong)
def zeros_from_the_transfer(faulty): return learner(seeded(mlp, 64, 32, 10), *split(*digits(), 480), Lossy if faulty else Lossless)


@incident("data", "transformers #34204: a processor makes one sample of a batch", "samples become|one sample|of a batch|first sample|collator", score=wrong)
def batch_of_one_sample(faulty):
    def collate(samples): return default_collate(samples[:1] if faulty else samples)
    return learner(seeded(Net), *split(*table()), data_collator=collate)

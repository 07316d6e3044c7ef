"Faults in the loop and in the settings."
import torch
from tiny import Net, incident, learner, seeded, split, table
from torch import nn
from torch.nn.functional import cross_entropy

from trainer_nb import Learner


@incident("loop", "Karpathy, A Recipe for Training Neural Networks; PyTorch forum, many threads: a rate of another optimizer", "rate|lr", tool="diagnose")
def rate_far_too_high(faulty):
    return learner(seeded(Net), *split(*table()), learning_rate=1.0 if faulty else 1e-2)


@incident("loop", "PyTorch forum, many threads: the rate of fine-tuning for a network from scratch", "rate|lr")
def rate_far_too_low(faulty):
    return learner(seeded(Net), *split(*table()), learning_rate=1e-6 if faulty else 1e-2)


@incident("loop", "transformers forum: the warm-up of a paper for a short run", "warm|schedule")
def schedule_longer_than_the_run(faulty):
    return learner(seeded(Net), *split(*table()), warmup_steps=10_000 if faulty else 10)


@incident("loop", "PyTorch forum: the norm of the gradient is far above the bound at each step", "clip|max_grad_norm")
def clipping_always_acts(faulty):
    return learner(seeded(Net), *split(*table()), optim="sgd", learning_rate=0.1, max_grad_norm=1e-3 if faulty else 10)


@incident("loop", "minGPT and others put norms and biases in a group of their own", "decay")
def decay_on_norms(faulty):
    model = seeded(Net)
    norms = [*model.norm.parameters(), *(p for n, p in model.named_parameters() if n.endswith("bias") and "norm" not in n)]
    others = [p for p in model.parameters() if all(p is not o for o in norms)]
    groups = [{"params": others}, {"params": norms, "weight_decay": 1. if faulty else 0.}]
    return learner(model, *split(*table()), optimizers=(torch.optim.Adam(groups, lr=1e-2), None))


class Accumulating(Learner):
    "A step of its own, as scripts have them."
    divide = True

    def training_step(self, model, inputs, num_items_in_batch=None):
        x, y = self._prepare_inputs(inputs)
        loss = cross_entropy(model(x), y)
        if self.divide: loss = loss/self.current_gradient_accumulation_steps
        self.accelerator.backward(loss)
        return loss.detach()


@incident("loop", "transformers #37766, #35438: the loss grows with the accumulation", "accumulat")
def accumulation_not_divided(faulty):
    learn = learner(seeded(Net), *split(*table()), Accumulating, gradient_accumulation_steps=8, per_device_train_batch_size=4,
                    optim="sgd", learning_rate=0.3, max_grad_norm=0, num_train_epochs=6)
    learn.divide = not faulty
    return learn


@incident("loop", "PyTorch forum 1765, pytorch #8860: Adam's eps is zero in float16", "half|float16|fp16", tool="diagnose")
def half_precision_underflow(faulty):
    x, y = table()
    if not faulty: return learner(seeded(Net), *split(x, y))
    return learner(seeded(Net).half(), *split(x.half(), y))


class CenterLoss(Learner):
    "A center for each class, which has an optimizer of its own."
    def __init__(self, *args, zero=True, **kwargs):
        super().__init__(*args, **kwargs)
        self.zero, self.centers = zero, nn.Parameter(torch.zeros(3, 3))
        self.center_optimizer = torch.optim.SGD([self.centers], lr=0.5)

    def training_step(self, model, inputs, num_items_in_batch=None):
        x, y = self._prepare_inputs(inputs)
        out = model(x)
        loss = cross_entropy(out, y) + 0.1*(out - self.centers[y]).square().mean()
        if self.zero: self.center_optimizer.zero_grad()
        self.accelerator.backward(loss)
        self.center_optimizer.step()
        return loss.detach()


@incident("loop", "stackoverflow 60335387 (TrainCheck): optimizer.zero_grad() is missing", "zero_grad|accumulat")
def zero_grad_missing(faulty):
    return learner(seeded(Net), *split(*table()), CenterLoss, zero=not faulty)


class EvaluatedInTrainMode(Learner):
    "An evaluation that a script has brought along."
    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        model.train()
        return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)


@incident("loop", "Karpathy, most common neural net mistakes: train and eval mode; transformers #33844 (TrainCheck)", "train mode|training mode|eval mode|evaluation mode|dropout|eval()")
def evaluation_in_train_mode(faulty):
    return learner(seeded(Net, 8, 3, 32, 0.5), *split(*table()), EvaluatedInTrainMode if faulty else Learner, eval_strategy="epoch")

"""Two processes that use different parameters, and the same run in one process; prints losses and weights as JSON.

    python unused.py CASE [CASE ...]
"""
import json, sys

import torch
from torch.utils.data import TensorDataset

from trainer_nb import Learner


ALL_USED = ("late", "one rank")   # of `Skips`: some rank uses every parameter, so it waits for a rank that does not


class Skips(torch.nn.Module):
    "Layers that are skipped where no sample of the batch asks for them."
    def __init__(self, case):
        super().__init__()
        self.case, self.calls = case, 0
        self.inward, self.out = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2 if case in ALL_USED else 3))

    def forward(self, x, labels):
        self.calls += 1
        hidden = torch.tanh(self.inward(x.to(self.inward.weight.dtype)))
        if self.case == "drop":   # random draws, which differ from rank to rank
            for expert in self.experts:
                if torch.rand(()) < 0.5: hidden = hidden + torch.tanh(expert(hidden))
        else:   # the first feature of a sample chooses its expert
            chosen, total = x[:, 0].long(), torch.zeros_like(hidden)
            for number, expert in enumerate(self.experts):
                mine = chosen == number
                if mine.any(): total[mine] = torch.tanh(expert(hidden[mine]))
            hidden = hidden + total
        loss = torch.nn.functional.cross_entropy(self.out(hidden), labels)
        return Output(loss) if self.case == "object" else {"loss": loss}


class Routed(torch.nn.Module):
    "Predictions, with the expert that the loss is to use."
    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(3, 2)
    def forward(self, x): return torch.cat([x[:, :1], self.out(x[:, 1:])], 1)


class RoutedLoss(torch.nn.Module):
    "A loss with embeddings, which DDP does not know."
    def __init__(self):
        super().__init__()
        self.experts, self.scale = torch.nn.ModuleList(torch.nn.Embedding(2, 2) for _ in range(3)), torch.nn.Parameter(torch.ones(1))
    def forward(self, predicted, labels):
        near = torch.stack([self.experts[int(p[0])](label) for p, label in zip(predicted, labels)])
        return (self.scale * predicted[:, 1:] - near).square().mean()


class Output:
    "An output that is neither a dictionary nor a tuple."
    def __init__(self, loss): self.loss = loss


class Gathers(Learner):
    "Communicates after the backward pass."
    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs, num_items_in_batch)
        if torch.distributed.is_initialized(): torch.distributed.all_reduce(loss.clone())
        return loss


class Twice(Learner):
    "Two backward passes in a step: for the model's loss and for a perturbed batch."
    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs, num_items_in_batch)
        return (loss + super().training_step(model, inputs | {"x": inputs["x"] + 0.01}, num_items_in_batch)).detach()


class Parts(Learner):
    "One forward pass, and a backward pass for each of two losses that reach different layers."
    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = self.compute_loss(model, inputs)
        first = self.model.experts[0].weight.pow(2).sum() * 0
        self.run_state.device.backward(loss)
        self.run_state.device.backward(first)
        return loss.detach()


class Empty(Learner):
    "Batches without a sample of the first expert are left out, without a forward pass."
    def training_step(self, model, inputs, num_items_in_batch=None):
        if not (inputs["x"][:, 0] == 0).any(): return torch.zeros(())
        return super().training_step(model, inputs, num_items_in_batch)


class Unwrapped(Learner):
    "Rank 1 calls the model itself, without what was passed; it is a mistake that nothing else shows."
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        alone = self.run_state.device.world.rank == 1 and self.state.global_step % 2
        return super().compute_loss(self.model if alone else model, inputs, return_outputs, num_items_in_batch)


class Inner(Learner):
    "A backward pass within the loss, of which the gradients are used and given up."
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        if torch.is_grad_enabled(): super().compute_loss(model, inputs).backward()
        for p in self.model.parameters(): p.grad = None
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


class Penalty(Learner):
    "A penalty on the gradient of the inputs, which `autograd.grad` computes through the model before the backward pass."
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        x = inputs["x"].requires_grad_()
        loss = super().compute_loss(model, inputs | {"x": x})
        if not torch.is_grad_enabled(): return (loss, None) if return_outputs else loss
        slope, = torch.autograd.grad(loss * len(x), x, create_graph=True)
        return loss + 0.1 * slope.pow(2).sum(1).mean()


class ByHand(Learner):
    "Gradients that are computed in four ways, by rank and step; DDP averages only those of the second by itself."
    def training_step(self, model, inputs, num_items_in_batch=None):
        way = (self.state.global_step + self.run_state.device.world.rank) % 4
        loss = self.compute_loss(model if way < 2 else self.model, inputs) / self.current_gradient_accumulation_steps
        parameters = list(self.model.parameters())
        if way % 2: loss.backward()
        else:
            for p, grad in zip(parameters, torch.autograd.grad(loss, parameters, allow_unused=True)):
                if grad is not None: p.grad = grad if p.grad is None else p.grad + grad
        return loss.detach()


def routes(case, rows, alternate=False):
    "The expert of each sample; batches of 4 on each of two ranks."
    expert = torch.zeros(rows, dtype=torch.long)
    if case == "late":                                  # at first all use both; in the last step of an epoch, rank 1 only one
        expert[1::2] = 1
        expert[-4:] = 1
    elif case == "one rank": expert[4::8] = 1           # one sample of each global batch
    elif case == "empty": expert[4:] = torch.arange(rows - 4) // 4 % 2
    elif alternate: expert = (torch.arange(rows) // 4 + torch.arange(rows) // 8) % 2   # each rank one, and never the same
    else: expert = torch.randint(2, (rows,), generator=torch.Generator().manual_seed(3))
    return expert                                       # a third expert is never used


KINDS = {"gathers": Gathers, "twice": Twice, "parts": Parts, "empty": Empty, "unwrapped": Unwrapped, "inner": Inner, "penalty": Penalty, "by hand": ByHand}
SETTINGS = {"ddp": dict(ddp_find_unused_parameters=True), "sharded": dict(fsdp=True),
            "accumulate": dict(gradient_accumulation_steps=2), "by hand": dict(gradient_accumulation_steps=2), "evaluate": dict(eval_strategy="steps", eval_steps=1),
            "double": dict(gradient_accumulation_steps=2), "each": dict(gradient_accumulation_steps=2, accelerator_config={"gradient_accumulation_kwargs": {"sync_each_batch": True}})}


def build(case):
    "The model of a case, and its settings."
    if case.endswith("in the loss"):
        model, loss = Routed(), RoutedLoss()
        return model, dict(loss_func=loss, optimizers=(torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.05), None))
    return Skips(case), dict(learning_rate=0.05, weight_decay=0.1)


def run(case, processes):
    "Train, and print how it went."
    torch.manual_seed(0)
    rows, variant = 48, case.removesuffix(" in the loss")
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(1))
    x[:, 0] = routes(variant, rows, case.endswith("in the loss")) + 0.5
    data = TensorDataset(x, torch.randint(2, (rows,), generator=torch.Generator().manual_seed(2)))
    model, settings = build(case)
    settings |= SETTINGS.get(variant, {}) if processes > 1 or variant != "sharded" else {}
    learn = KINDS.get(variant, Learner)(
        model, train_dataset=data, eval_dataset=data, data_collator=lambda rows: {"x": torch.stack([a for a, _ in rows]), "labels": torch.stack([b for _, b in rows])},
        per_device_train_batch_size=8 // processes, num_train_epochs=2, use_cpu=True, disable_tqdm=True,
        train_sampling_strategy="sequential", logging_strategy="no", **settings)
    if case == "double": learn.model.double()
    if processes > 1: learn.launch(processes, threads=1)
    learn.step(2)
    learn.train()
    def weights(learner): return {f"{k}.{n}": p.tolist() for k, m in (("model", learner.model), ("loss", learner.loss_func)) if m is not None for n, p in m.named_parameters()}
    every = learn.run_on_all(weights) if processes > 1 and variant != "sharded" else None
    if processes > 1: learn.close()
    print("RESULT", json.dumps({"case": case, "processes": processes, "steps": learn.state.global_step, "losses": [r.loss for r in learn.history],
                                "weights": weights(learn), "same": every is None or every[0] == every[1]}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[1:]:
        for processes in (1, 2): run(case, processes)

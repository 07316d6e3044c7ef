"""Faulty runs, each beside its healthy twin: learn.check() names the fault and is silent on the twin; it leaves no trace.

The kinds of faults are those that users of training libraries report most: in forums of PyTorch and Hugging Face, in the list of
TrainCheck (OSDI 2025), and in Karpathy's "A Recipe for Training Neural Networks"."""
import time

import numpy as np, pytest, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

from trainer_nb import InvalidOperation, Learner, TrainerCallback, differences

SETTINGS = {"use_cpu": True, "per_device_train_batch_size": 16, "loss_func": F.cross_entropy}
G = torch.Generator().manual_seed(0)
X = torch.randn(400, 8, generator=G)
Y = (X.sum(1) > 0).long()
TRAIN, TEST = TensorDataset(X[:300], Y[:300]), TensorDataset(X[300:], Y[300:])


def mlp(*more): return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2), *more)


def learner(model=None, data=TRAIN, eval_dataset=TEST, cls=Learner, **given):
    torch.manual_seed(0)
    return cls((model or mlp)(), train_dataset=data, eval_dataset=eval_dataset, **{**SETTINGS, **given})


# --- modules and data sets of the faulty runs -----------------------------------------------------------------------------

class Net(nn.Module):
    "A network whose forward pass is given; `more` is called with it."
    def __init__(self, forward, more=lambda net: None):
        super().__init__()
        self.first, self.middle, self.last, self.norm = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 2), nn.BatchNorm1d(32)
        self.calls, self.run = 0, forward
        more(self)
    def forward(self, x):
        self.calls += 1
        return self.run(self, x)


def net(forward, more=lambda net: None): return lambda: Net(forward, more)
def whole(n, x): return n.last(n.norm(n.middle(n.first(x).relu())).relu())
def writes(n, x):
    if n.training: n.middle.weight.data.mul_(0.99)
    return whole(n, x)
def coarse(n, x): return n.last(n.norm(n.middle(n.first(x + 3000) - n.first(0 * x + 3000)).relu()))
def huge(n, x): return whole(n, x) + (x[..., None] * torch.ones(10**11)).mean()
def without_middle(n, x): return n.last(n.norm(n.first(x).relu() + 0 * n.norm.weight.sum()))
def across(n, x): return n.last(n.norm(n.middle(torch.softmax(n.first(x), 0))))
def along(n, x): return n.last(n.norm(n.middle(torch.softmax(n.first(x), 1))))
def in_evaluation(n, x): n.norm.eval(); return whole(n, x)
def cut(n, x): return whole(n, x).detach() + 0 * sum(p.sum() for p in n.parameters())
def freeze_last(n): n.last.requires_grad_(False)
def dead(): return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)).apply(lambda m: isinstance(m, nn.Linear) and m.out_features == 32 and nn.init.constant_(m.bias, -50.0))
def low(): return mlp().bfloat16()
def without_statistics(n): n.norm = nn.BatchNorm1d(32, track_running_stats=False)
def noise(n, x): return whole(n, F.dropout(x, 0.2))
def by_itself(n, x): return whole(n, (x - 128) / 64)
def head_first(): return OwnHead(True)


class OwnHead(nn.Module):
    "A head that is registered before a frozen body."
    def __init__(self, is_body_frozen, scale=2.0):
        super().__init__()
        self.head, self.body = nn.Linear(32, 2), nn.Linear(8, 32)
        self.body.weight.data.mul_(scale)   # as if it had been trained
        (self.body if is_body_frozen else self.head).requires_grad_(False)
    def forward(self, x): return self.head(self.body(x).relu())


class Items(Dataset):
    "Samples that a function returns."
    def __init__(self, get, n=100): self.get, self.n, self.reads = get, n, 0
    def __len__(self): return self.n
    def __getitem__(self, i):
        self.reads += 1
        return self.get(i)


SQUARES = torch.randn(300, 3, 8, 8, generator=G) + torch.tensor([0.0, 1.0, 2.0])[:, None, None]
def classifier(): return nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
def pixels(): return nn.Conv2d(3, 2, 1)
def flipped(has_mask):
    def get(i):
        axes = (-1,) if torch.rand(()) < 0.5 else (-2,)
        return SQUARES[i].flip(axes), MASKS[i].flip(axes) if has_mask else MASKS[i]
    return Items(get)


MASKS = (SQUARES[:, 0] > 1).long()
def noisy(i): return X[i] + 0.1 * torch.randn(8), Y[i]
def noisy_numpy(i): return X[i] + torch.from_numpy(0.1 * np.random.randn(8).astype("f")), Y[i]
class Own(Items):
    "Samples with noise from a generator of the data set."
    def __init__(self): self.draw, self.n = np.random.default_rng(0), 100
    def __getitem__(self, i): return X[i] + torch.from_numpy(self.draw.normal(size=8).astype("f")), Y[i]


def broken(i): return (X[i], Y[i]) if i != 77 else 1 / 0
def pairs(x, y): return TensorDataset(x, y)
FEW = (torch.arange(300) < 5).long()
WINDOWS = X.flatten().unfold(0, 16, 1)[:400]
SORTED = Y[:300].argsort(stable=True)
GAPS = torch.where(torch.rand(300, 8, generator=G) < 0.01, torch.nan, X[:300])
SUMS = X.sum(1, keepdim=True)
REGRESSION = {"model": lambda: nn.Linear(8, 1), "loss_func": F.mse_loss, "eval_dataset": pairs(X[300:], SUMS[300:])}
LOW = {"data": pairs(X[:300].bfloat16(), Y[:300]), "eval_dataset": pairs(X[300:].bfloat16(), Y[300:])}
BINARY = {"data": pairs(X[:300], Y[:300, None].float()), "eval_dataset": pairs(X[300:], Y[300:, None].float()), "loss_func": F.binary_cross_entropy_with_logits}


def dense(rows):
    inputs = [row["x"] if isinstance(row["x"], torch.Tensor) else torch.tensor(row["x"]) for row in rows]
    return {"x": torch.stack([x.to_dense() for x in inputs]), "labels": torch.tensor([row["labels"] for row in rows])}


def known_targets(predicted, targets): return F.mse_loss(predicted[~targets.isnan()], targets[~targets.isnan()])
def columns(rows, labels=Y): return [{"idx": i, "x": X[row], "labels": labels[row]} for i, row in enumerate(rows)]


class OwnLoss(nn.Module):
    "A classifier that needs labels and returns its loss first."
    def __init__(self, width=8): super().__init__(); self.net, self.width = mlp(), width
    def forward(self, x, labels):
        logits = self.net(x[:, :self.width])
        return F.cross_entropy(logits, labels), logits


class LossAlone(OwnLoss):
    "A classifier that returns its loss alone."
    def forward(self, x, target): return super().forward(x, target)[0]


class Named(TensorDataset):
    "A data set with names of its classes."
    def __init__(self, names): super().__init__(X[:300] if names == "ab" else X[300:], Y[:300] if names == "ab" else Y[300:]); self.classes = [*names]


def targets(labels): return [{"x": X[i], "target": labels[i]} for i in range(200)]
ALONE = {"model": LossAlone, "loss_func": None, "eval_dataset": None}
ACCUMULATED = {"gradient_accumulation_steps": 2}
TEN = {"data": pairs(X[:300], torch.arange(300) % 10), "model": lambda: nn.Linear(8, 11)}


class Order(torch.utils.data.Sampler):
    seed = 0
    def __init__(self, get): self.get = get
    def __iter__(self): return iter(self.get())
    def __len__(self): return 300


def scheduled(kind, **given):
    def make(model):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        return optimizer, getattr(torch.optim.lr_scheduler, kind)(optimizer, **given)
    return make


def squares(predicted, targets): return (predicted - targets).square().mean()
def part_of(model): return torch.optim.Adam(model[0].parameters())
def last_twice(model): return torch.optim.Adam([*model.parameters(), *model[2].parameters()])
def decayed(decay, kind=torch.optim.Adam): return lambda model: kind([{"params": [model[0].weight, model[2].weight]}, {"params": [model[0].bias, model[2].bias], "weight_decay": decay}])
def unfreeze(model): model.base_model.model[2].requires_grad_(True); return model


def adapted(more=lambda model: model, **given):
    import peft
    return lambda: more(peft.get_peft_model(mlp(), peft.LoraConfig(r=2, target_modules=["0"], **given)))


class Texts(nn.Module):
    "A recurrent network that reads the state of a place."
    def __init__(self, last, padding=None):
        super().__init__()
        self.words, self.states, self.head, self.last = nn.Embedding(60, 8, padding_idx=padding), nn.GRU(8, 32, batch_first=True), nn.Linear(32, 2), last
    def forward(self, input_ids, attention_mask=None):
        return self.head(self.states(self.words(input_ids))[0][range(len(input_ids)), self.last(attention_mask)])


class OwnStep(Learner):
    divide = True
    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = F.cross_entropy(model(inputs[0]), inputs[1]) / (self.args.gradient_accumulation_steps if self.divide else 1)
        loss.backward()
        return loss.detach()


class Undivided(OwnStep):
    divide = False


class Center(OwnStep):
    "A second optimizer."
    zero = True
    def training_step(self, model, inputs, num_items_in_batch=None):
        if "second" not in vars(self): self.second = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1)
        center = self.second.param_groups[0]["params"][0]
        if self.zero: self.second.zero_grad()
        (model(inputs[0]).detach() - center).square().mean().backward()
        self.second.step()
        return super().training_step(model, inputs)


class Growing(Center):
    zero = False


class Shorter(Learner):
    def get_train_dataloader(self):
        self.train_dataset = torch.utils.data.Subset(self.train_dataset, range(200))
        return super().get_train_dataloader()


class Lossy(Learner):
    lost = 2   # step
    def _prepare_inputs(self, inputs):
        x, y = super()._prepare_inputs(inputs)
        return 0 * x if self.state.global_step == self.lost else x, y


class Adversaries(Learner):
    "Two networks without a common forward pass, and an optimizer of its own for one of them."
    def __init__(self, model, **given):
        super().__init__(model, optimizers=(torch.optim.Adam(model["one"].parameters()), None), **given)
        self.second = torch.optim.Adam(model["other"].parameters())
    def optimize(self, model, batches):
        self.backward(model["one"](batches[0][0]).square().mean())
        return self.update()


class Evaluating(Learner):
    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)


class InTrainMode(Learner):
    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        model.train()
        return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)


def padded(rows):
    n = max(len(o) for o, _ in rows)
    ids = torch.tensor([o + [0] * (n - len(o)) for o, _ in rows])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor([y for _, y in rows])}


def without_mask(rows): return {k: v for k, v in padded(rows).items() if k != "attention_mask"}
def sorted_alone(rows):
    batch = padded(sorted(rows, key=lambda row: -len(row[0])))
    return batch | {"labels": torch.tensor([y for _, y in rows])}


def block(): return nn.Sequential(nn.Linear(32, 32), nn.Tanh())
def stacked(blocks): return nn.Sequential(nn.Linear(8, 32), *blocks, nn.Linear(32, 2))
SHORT = [([1 + (i * j) % 59 for j in range(1, 4 + i % 6)], i % 2) for i in range(1, 60)]
SEVENS = [([8 + i % 40, *[7] * (i % 3), 8 + i % 37], i % 2) for i in range(200)]
SHORT = {"data": SHORT, "eval_dataset": None, "data_collator": padded}


# name of the check: (what the faulty run is given, what its twin is given instead)
FAULTS = {
    "labels within the classes": [
        ({"data": pairs(X[:300], Y[:300] + 1)}, {}),
        ({"data": pairs(X[:300], Y[:300] - 1)}, {}),
    ],
    "labels that differ": [
        ({"data": pairs(X[:300], 0 * Y[:300])}, {}),
        ({"data": pairs(X[:300], FEW)}, {"data": pairs(X[:300], (torch.arange(300) < 50).long())}),
        ({"data": pairs(X[:300], FEW)}, {"data": pairs(X[:300], FEW), "eval_dataset": None, "loss_func": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 50.0]))}),
        ({"data": DataLoader(pairs(X[:300], FEW), 16, shuffle=True)}, {"data": DataLoader(pairs(X[:300], FEW), 16, sampler=WeightedRandomSampler(1 + 58 * FEW, 300)), "eval_dataset": None}),
        ({"data": columns(range(200), 0 * Y), "model": OwnLoss, "loss_func": None}, {"data": columns(range(200)), "model": OwnLoss, "loss_func": None}),
        ({"data": columns(range(200), 0 * Y), "model": lambda: OwnLoss(7), "loss_func": None}, {}),
        ({"data": targets(0 * Y), **ALONE}, {"data": targets(Y), **ALONE}),
    ],
    "batches with several classes": [
        ({"data": pairs(X[SORTED], Y[SORTED]), "train_sampling_strategy": "sequential"}, {"data": pairs(X[SORTED], Y[SORTED])}),
        ({"data": DataLoader(pairs(X[SORTED], Y[SORTED]), 16)}, {"data": DataLoader(pairs(X[SORTED], Y[SORTED]), 16, shuffle=True)}),
    ],
    "samples that can be read": [
        ({"data": Items(broken)}, {"data": Items(lambda i: (X[i], Y[i]))}),
        ({"eval_dataset": Items(broken)}, {"data": [{"x": X[i].to_sparse() if i % 5 == 0 else X[i], "labels": i % 2} for i in range(64)], "data_collator": dense, "model": net(whole)}),
    ],
    "finite inputs and targets": [
        ({"data": pairs(GAPS, Y[:300])}, {"data": pairs(GAPS.nan_to_num(), Y[:300])}),
        ({**REGRESSION, "data": pairs(X[:300], SUMS[:300].where(X[:300, :1] < 2, torch.inf))}, {**REGRESSION, "data": pairs(X[:300], SUMS[:300])}),
        ({"data": [{"x": row, "labels": int(y)} for row, y in zip(GAPS.tolist(), Y)], "data_collator": dense, "model": net(whole)}, {}),
        ({"eval_dataset": pairs(GAPS[:100] + 1, Y[:100])}, {**REGRESSION, "data": pairs(X[:300], SUMS[:300].where(X[:300, :1] < 1, torch.nan)), "loss_func": known_targets}),
    ],
    "normalized inputs": [({"data": pairs(X[:300] * 64 + 128, Y[:300])}, {"data": pairs(X[:300] * 64 + 128, Y[:300]), "eval_dataset": pairs(X[300:] * 64 + 128, Y[300:]), "model": net(by_itself)})],
    "evaluation inputs like those of training": [({"eval_dataset": pairs(X[300:] * 64 + 128, Y[300:])}, {}), ({"eval_dataset": {"a": TEST, "b": pairs(X[300:] + 9, Y[300:])}}, {"eval_dataset": {"a": TEST}}),
        ({"data": pairs(SQUARES[:200].flip(1), Y[:200]), "eval_dataset": pairs(SQUARES[200:], Y[200:300]), "model": classifier}, {"data": pairs(SQUARES[:200], Y[:200]), "eval_dataset": pairs(SQUARES[200:], Y[200:300]), "model": classifier})],
    "evaluation labels like those of training": [({**TEN, "eval_dataset": pairs(X[300:], 1 + torch.arange(100) % 10)}, {**TEN, "eval_dataset": pairs(X[300:], torch.arange(100) % 10)}), ({"data": pairs(X[SORTED][:150], Y[SORTED][:150]), "eval_dataset": pairs(X[SORTED][150:], Y[SORTED][150:])}, {})],
    "targets of the shape of the outputs": [({**REGRESSION, "data": pairs(X[:300], SUMS[:300, 0]), "loss_func": squares}, {**REGRESSION, "data": pairs(X[:300], SUMS[:300]), "loss_func": squares})],
    "samples that stay as they are": [({"data": Items(lambda i, kept=X.clone(): (kept[i].add_(0.1), Y[i]))}, {})],
    "masks that move with their images": [({"data": flipped(False), "eval_dataset": None, "model": pixels}, {"data": flipped(True), "eval_dataset": None, "model": pixels})],
    "columns that vary": [({"data": pairs(X[:300] * torch.eye(8)[2:].sum(0), Y[:300])}, {"data": TRAIN})],
    "outputs that reach the targets": [({**REGRESSION, "data": pairs(X[:300], SUMS[:300]), "model": lambda: nn.Sequential(nn.Linear(8, 1), nn.ReLU())}, {**REGRESSION, "data": pairs(X[:300], SUMS[:300])})],
    "layers that the model has": [({"model": net(lambda n, x: whole(n, n.kept[0](x)), lambda n: setattr(n, "kept", [nn.Linear(8, 8)]))}, {"model": net(lambda n, x: whole(n, n.kept[0]((1 * x).requires_grad_())), lambda n: setattr(n, "kept", nn.ModuleList([nn.Linear(8, 8)])))})],
    "a schedule as long as the run": [
        ({"optimizers": scheduled("StepLR", step_size=1), "max_steps": 100}, {"optimizers": scheduled("StepLR", step_size=30), "max_steps": 100}),
        ({"optimizers": scheduled("CosineAnnealingLR", T_max=10), "max_steps": 100}, {"optimizers": scheduled("CosineAnnealingLR", T_max=100), "max_steps": 100}),
        ({"optimizers": scheduled("OneCycleLR", total_steps=10, max_lr=0.01), "max_steps": 100}, {"optimizers": scheduled("OneCycleLR", total_steps=100, max_lr=0.01), "max_steps": 100}),
    ],
    "a step that changes what is trained": [
        ({"model": net(writes, lambda n: n.middle.requires_grad_(False))}, {"model": net(whole, lambda n: n.middle.requires_grad_(False).weight.data.mul_(2))}),
        ({"optimizers": lambda model: torch.optim.Adam([{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters()}])}, {}),
    ],
    "data that are loaded in time": [({"data": Items(lambda i: (time.sleep(0.02), (X[i], Y[i]))[1]), "max_steps": 1000}, {"data": Items(lambda i: (X[i], Y[i])), "max_steps": 1000})],
    "a metric of right predictions": [({"compute_metrics": lambda p: {"accuracy": float((p[0].argmax(-1)[:-1] == p[1][1:]).mean())}}, {"compute_metrics": lambda p: {"accuracy": float((p[0].argmax(-1) == p[1]).mean())}})],
    "windows of other times": [({"data": pairs(WINDOWS[::2], Y[::2]), "eval_dataset": pairs(WINDOWS[1::2], Y[1::2]), "model": lambda: nn.Linear(16, 2)}, {"data": pairs(WINDOWS[:200], Y[:200]), "eval_dataset": pairs(WINDOWS[216:], Y[216:]), "model": lambda: nn.Linear(16, 2)})],
    "dimensions in their order": [({"model": net(lambda n, x: whole(n, x.view(len(x), 2, 4).reshape(-1, 4, 2).flatten(1)))}, {"model": net(lambda n, x: whole(n, x.view(len(x), 2, 4).transpose(1, 2).flatten(1)))})],
    "evaluation samples that are not trained": [
        ({"eval_dataset": pairs(X[250:350], Y[250:350])}, {}),
        ({"data": columns(range(200)), "eval_dataset": {"a": columns(range(200, 260)), "b": columns(range(180, 240))}, "model": net(whole)}, {"data": columns(range(200)), "eval_dataset": {"a": columns(range(200, 260)), "train": columns(range(60))}, "model": net(whole)}),
    ],
    "one label for each input": [({"data": pairs(torch.cat([X[:200], X[:100]]), torch.cat([Y[:200], 1 - Y[:100]]))}, {})],
    "samples that occur once": [
        ({"data": pairs(torch.cat([X[:200], X[:100]]), torch.cat([Y[:200], Y[:100]]))}, {"data": pairs(torch.cat([X[:200], X[:200][Y[:200] == 1]]), torch.cat([Y[:200], Y[:200][Y[:200] == 1]]))}),
        ({"data": pairs(X[:20].repeat(15, 1), Y[:20].repeat(15))}, {}),
    ],
    "samples that are divided once": [({"data": DataLoader(TRAIN, 16, sampler=torch.utils.data.DistributedSampler(TRAIN, 1, 0))}, {"data": DataLoader(TRAIN, 16, shuffle=True)})],
    "workers that draw different numbers": [({"data": Own(), "dataloader_num_workers": 2}, {"data": Items(noisy), "dataloader_num_workers": 2})],
    "an evaluation set without augmentation": [
        ({"eval_dataset": Items(noisy)}, {"data": Items(noisy)}),
        ({"eval_dataset": {"test": Items(noisy_numpy)}}, {"data": Items(noisy_numpy), "eval_dataset": {"test": TEST}}),
    ],
    "outputs that depend on inputs": [({"model": net(lambda n, x: whole(n, 0 * x))}, {"model": net(whole)}), ({"data": Items(lambda i: (X[0], Y[i]))}, {"data": Items(lambda i: (X[i], Y[i]))})],
    "samples that do not see each other": [
        ({"model": net(across)}, {"model": net(along)}), ({"model": net(whole, without_statistics)}, {"model": net(whole)}),
    ],
    "scores in place of probabilities": [
        ({**BINARY, "model": lambda: nn.Sequential(nn.Linear(8, 1), nn.Sigmoid())}, {**BINARY, "model": lambda: nn.Sequential(nn.Linear(8, 1), nn.Hardsigmoid(), nn.Linear(1, 1).requires_grad_(True))}),
        ({"model": lambda: mlp(nn.Softmax(1))}, {"model": lambda: mlp(nn.LogSoftmax(1))}), ({"model": lambda: mlp(nn.ReLU())}, {}),
    ],
    "a first loss as of chance": [({"data": pairs(X[:300] * 1000, Y[:300])}, {})],
    "gradients for all parameters": [({"model": net(without_middle)}, {"model": net(whole)})],
    "parameters that the optimizer has": [
        ({"optimizers": part_of}, {"optimizers": lambda model: torch.optim.Adam(model.parameters())}), ({"optimizers": last_twice}, {}),
    ],
    "norms and biases that are not drawn to 0": [({"optimizers": decayed(0.1)}, {"optimizers": decayed(0.1, torch.optim.AdamW)}), ({"optimizers": decayed(1.0, torch.optim.AdamW)}, {"optimizers": decayed(0.0)})],
    "inputs that are not tiny": [({"data": pairs(X[:300] / 2550, Y[:300]), "eval_dataset": None}, {"data": pairs(X[:300] / 2550, Y[:300]), "eval_dataset": None, "model": lambda: nn.Sequential(nn.LayerNorm(8, eps=1e-12), mlp())})],
    "outputs that do not see padding": [({**SHORT, "data_collator": without_mask, "model": lambda: Texts(lambda mask: -1)}, {**SHORT, "model": lambda: Texts(lambda mask: mask.sum(1) - 1)}), ({**SHORT, "model": lambda: Texts(lambda mask: -1)}, {**SHORT, "model": lambda: Texts(lambda mask: mask.sum(1) - 1)})],
    "adapters that are saved": [({"model": adapted(unfreeze)}, {"model": adapted(modules_to_save=["2"])})],
    "a checkpoint that is used": [({"resume_from_checkpoint": "out/checkpoint-9"}, {})],
    "micro-batches that add up to a batch": [
        ({"cls": Undivided, "gradient_accumulation_steps": 4}, {"cls": OwnStep, "gradient_accumulation_steps": 4}),
        ({"loss_func": nn.CrossEntropyLoss(reduction="sum"), **ACCUMULATED}, ACCUMULATED),
        ({"model": lambda: nn.Sequential(nn.Linear(8, 32), nn.Softmax(0), nn.Linear(32, 2)), **ACCUMULATED}, {"model": net(whole), **ACCUMULATED}),
    ],
    "half precision that agrees with fp32": [({"model": net(coarse), "bf16": True}, {"model": net(whole), "bf16": True})],
    "a best model by its metric": [({"metric_for_best_model": "wer", "greater_is_better": True}, {"metric_for_best_model": "wer", "greater_is_better": False})],
    "memory for a step": [({"model": net(huge)}, {"model": net(whole)})],
    "classes with the same numbers in both sets": [({"data": Named("ab"), "eval_dataset": Named("ba")}, {"data": Named("ab"), "eval_dataset": Named("abc")})],
    "columns that do not hold the label": [
        ({"data": pairs(torch.cat([X[:300, :7], 3 - Y[:300, None]], 1), Y[:300])}, {}),
        ({**REGRESSION, "data": pairs(torch.cat([X[:300, :7], 2 * SUMS[:300]], 1), SUMS[:300])}, {**REGRESSION, "data": pairs(X[:300], SUMS[:300])}),
    ],
    "gradients that begin at 0": [({"cls": Growing}, {"cls": Center})],
    "an evaluation in evaluation mode": [({"cls": InTrainMode, "model": lambda: mlp(nn.Dropout(0.5))}, {"cls": Evaluating, "model": lambda: mlp(nn.Dropout(0.5))})],
    "a last layer that is trained": [({"model": net(lambda n, x: n.last(n.first(x)), lambda n: (delattr(n, "norm"), delattr(n, "middle"), freeze_last(n)))}, {"model": head_first})],
    "frozen layers that were trained": [({"model": lambda: OwnHead(True, 1.0)}, {"model": head_first})],
    "layers in training mode": [({"model": net(in_evaluation)}, {"model": net(whole)})],
    "weights in full precision": [({"model": low, **LOW}, {"model": low, **LOW, "learning_rate": 1e-2})],
    "attributes of layers that have an effect": [({"model": net(whole, lambda n: setattr(n.middle, "trainable", False))}, {"model": net(whole, lambda n: n.middle.requires_grad_(False).weight.data.mul_(2))})],
    "batches that arrive whole": [({"cls": Lossy}, {"cls": type("Whole", (Lossy,), {"lost": 9})})],
    "living units": [({"model": dead}, {})],
    "a learning rate for these weights": [
        ({"learning_rate": 1e-12}, {}),
        ({"learning_rate": 10.0}, {}),
        ({"learning_rate": 0.0}, {"learning_rate": 1e-3, "warmup_steps": 10}),
    ],
    "a warm-up within the run": [({"max_steps": 100, "warmup_steps": 100}, {"max_steps": 100, "warmup_steps": 10})],
    "clipping that leaves gradients": [({**REGRESSION, "data": pairs(X[:300], SUMS[:300] * 1000)}, {**REGRESSION, "data": pairs(X[:300], SUMS[:300])})],
    "batches for batch norms": [({"model": net(whole), "per_device_train_batch_size": 2, "gradient_accumulation_steps": 8}, {"model": net(whole)})],
    "one batch that can be learned": [({"model": net(cut)}, {"model": net(whole)})],
    "dropout that ends with training": [
        ({"model": net(lambda n, x: whole(n, F.dropout(x, 0.2, True)))}, {"model": net(lambda n, x: whole(n, F.dropout(x, 0.2, n.training)))}),
        ({"model": net(noise)}, {"model": net(lambda n, x: whole(n, x + 0.1 * torch.randn_like(x)))}),
    ],
    "dropout that leaves something": [({"model": lambda: mlp(nn.Dropout(0.99))}, {"model": lambda: mlp(nn.Dropout(0.5))})],
    "a loss that right outputs lower": [
        ({"loss_func": lambda out, y: -F.cross_entropy(out, y)}, {"loss_func": F.multi_margin_loss}),
        ({"loss_func": F.nll_loss, "model": lambda: mlp(nn.Softmax(1))}, {"loss_func": F.nll_loss, "model": lambda: mlp(nn.LogSoftmax(1))}),
    ],
    "layers that are made one by one": [({"model": lambda: stacked([block()] * 3)}, {"model": lambda: stacked([block() for _ in range(3)])})],
    "padding indexes of padding": [
        ({**SHORT, "data": SEVENS, "model": lambda: Texts(lambda mask: mask.sum(1) - 1, 7)}, {**SHORT, "data": SEVENS, "model": lambda: Texts(lambda mask: mask.sum(1) - 1, 0)}),
    ],
    "class weights that help rare classes": [
        ({"data": pairs(X[:300], FEW), "eval_dataset": None, "loss_func": nn.CrossEntropyLoss(torch.tensor([0.9, 0.1]))}, {"data": pairs(X[:300], FEW), "eval_dataset": None, "loss_func": nn.CrossEntropyLoss(torch.tensor([1.0, 50.0]))}),
    ],
    "a decay that leaves the weights": [({"weight_decay": 30.0, "learning_rate": 1e-2}, {"weight_decay": 0.3, "learning_rate": 1e-2})],
    "samples that are all drawn, once": [
        ({"data": DataLoader(TRAIN, 16, sampler=Order(lambda: [*range(300)][::-1]))}, {"data": DataLoader(TRAIN, 16, sampler=Order(lambda: torch.randperm(300).tolist()))}),
        ({"data": DataLoader(TRAIN, 16, sampler=Order(lambda: [i // 2 for i in range(300)]))}, {"data": DataLoader(TRAIN, 16, sampler=Order(lambda: torch.randperm(300).tolist()))}),
        ({"data": DataLoader(TRAIN, 16, sampler=WeightedRandomSampler([0.4, 0.6], 300)), "eval_dataset": None}, {"data": DataLoader(TRAIN, 16, sampler=WeightedRandomSampler(torch.rand(300), 300)), "eval_dataset": None}),
    ],
    "labels that stay with their inputs": [
        ({**SHORT, "data_collator": sorted_alone, "model": lambda: Texts(lambda mask: mask.sum(1) - 1)}, {**SHORT, "data_collator": lambda rows: padded(sorted(rows, key=lambda row: -len(row[0]))), "model": lambda: Texts(lambda mask: mask.sum(1) - 1)}),
    ],
    "a step that can be taken": [({"model": net(lambda n, x: n.last(x))}, {"model": net(whole)}), ({"model": net(lambda n, x: whole(n, x) / 0 * 0)}, {"model": net(whole)})],
}
ROWS = [(name, *row) for name, rows in FAULTS.items() for row in rows]


def findings(given):
    given = dict(given)
    if "optimizers" in given:
        torch.manual_seed(0)
        model = mlp()
        given |= {"model": lambda: model, "optimizers": pair if isinstance(pair := given["optimizers"](model), tuple) else (pair, None)}
    return learner(**given).check()


def names(found): return {CHECK_OF[row] for row in found}
CHECK_OF = {}


@pytest.fixture(autouse=True)
def finding_names(monkeypatch):
    "Remember which check has returned a finding."
    from trainer_nb.diagnostics import check
    def remembers(each):
        def run(seen):
            found = each.run(seen)
            if found is not None: CHECK_OF[found] = each.name
            return found
        return each._replace(run=run)
    monkeypatch.setattr(check, "CHECKS", list(map(remembers, check.CHECKS)))


@pytest.mark.parametrize("name, faulty, healthy", ROWS, ids=[f"{i}-{row[0]}" for i, row in enumerate(ROWS)])
def test_a_fault_is_named_and_its_twin_is_silent(name, faulty, healthy):
    found = findings(faulty)
    assert name in names(found), f"{found}\n{found.skipped}"
    quiet = findings(healthy)
    assert not quiet and name not in quiet.skipped, quiet
    assert all(row.severity in ("error", "warning") and row.seen and row.meaning and row.do for row in found)
    assert [row.severity for row in found] == sorted(row.severity for row in found)


# --- texts ----------------------------------------------------------------------------------------------------------------

transformers = pytest.importorskip("transformers")
WORDS = ["<pad>", "<end>", "<unk>", *(f"w{i}" for i in range(60))]


def tokenizer(pad="<pad>"):
    from tokenizers import Tokenizer, models, pre_tokenizers
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", pad_token=pad, unk_token="<unk>")


def texts(tokens, change=lambda text: text, longest=14):
    g = np.random.default_rng(0)
    rows = [change(" ".join(f"w{j}" for j in g.integers(60, size=g.integers(5, longest)))) for _ in range(200)]
    return [{"input_ids": tokens(row)["input_ids"] + [tokens.eos_token_id]} for row in rows]


def gpt(size=63, **given):
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=size, n_layer=1, n_head=2, n_embd=32, n_positions=256, bos_token_id=1, eos_token_id=1, **given))


def untied():
    model = gpt()
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    return model


def extended():
    model = gpt(40)
    model.resize_token_embeddings(63)
    model.get_input_embeddings().requires_grad_(False)
    return model


class Own(nn.Module):
    "A language model with or without a causal mask, which needs labels."
    def __init__(self, is_causal):
        super().__init__()
        self.words, self.places = nn.Embedding(63, 32), nn.Embedding(40, 32)
        # attention is weak at first
        self.words.weight.data.mul_(0.02)
        self.attention, self.last, self.is_causal = nn.MultiheadAttention(32, 2, batch_first=True), nn.Linear(32, 63), is_causal
    def forward(self, input_ids, attention_mask=None, labels=None):
        n = input_ids.shape[1]
        h = self.words(input_ids) + self.places.weight[:n]
        mask = nn.Transformer.generate_square_subsequent_mask(n) if self.is_causal else None
        logits = self.last(h + self.attention(h, h, h, attn_mask=mask)[0])
        return {"logits": logits, "loss": F.cross_entropy(logits[:, :-1].reshape(-1, 63), labels[:, 1:].reshape(-1))}


def collator(tokens, change=lambda labels: labels):
    make = transformers.DataCollatorForLanguageModeling(tokens, mlm=False)
    def collate(rows):
        batch = make(rows)
        return {**batch, "labels": change(batch["labels"])}
    return collate


def shifted(labels): return torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], -100)], 1)
def unanswered(labels): return torch.where(torch.arange(len(labels))[:, None] % 4 < 3, -100, labels)
def strange(text): return text.replace("w1", "x1").replace("w2", "x2")
def long(tokens): return [{"input_ids": row["input_ids"] * (14 if i % 16 == 0 else 1)} for i, row in enumerate(texts(tokens))]


def language(pad="<pad>", change=lambda labels: labels, model=gpt, data=texts, **given):
    torch.manual_seed(0)
    tokens = tokenizer(pad)
    rows = data(tokens)
    settings = {"use_cpu": True, "per_device_train_batch_size": 8, "processing_class": tokens, "data_collator": collator(tokens, change)}
    return Learner(model(), train_dataset=rows[:150], eval_dataset=rows[150:], **settings | given)


LANGUAGE = {
    "end tokens that are trained": {"pad": "<end>"},
    "labels in the places of their tokens": {"change": shifted},
    "tokens that the model has": {"model": lambda: gpt(50)},
    "known tokens": {"data": lambda tokens: texts(tokens, strange)},
    "one begin token": {"data": lambda tokens: [{"input_ids": [setattr(tokens, "bos_token", "<end>") or tokens.bos_token_id]*2 + row["input_ids"]} for row in texts(tokens)]},
    "frozen embeddings that were trained": {"model": extended},
    "tied weights": {"model": untied},
    "labels that are trained": {"change": unanswered},
    "tokens other than padding": {"data": lambda tokens: long(tokens), "per_device_train_batch_size": 64},
    "padding that is not trained": {"change": lambda labels: labels.where(labels != -100, 0)},
    "texts that are not cut off": {"data": lambda tokens: [{"input_ids": row["input_ids"][:8]} for row in texts(tokens)], "per_device_train_batch_size": 64},
    "outputs that do not see their target": {"model": lambda: Own(False)},
}


@pytest.mark.parametrize("name", LANGUAGE)
def test_a_fault_of_a_language_model(name):
    assert name in names(language(**LANGUAGE[name]).check())


@pytest.mark.parametrize("given", [{}, {"model": lambda: Own(True)}, {"model": lambda: gpt(tie_word_embeddings=False)}])
def test_a_language_model_without_a_fault(given):
    found = language(**given).check()
    assert not found, found


def test_each_check_has_a_faulty_run():
    from trainer_nb.diagnostics.check import CHECKS
    assert {each.name for each in CHECKS} == {*FAULTS, *LANGUAGE}


# --- healthy runs of other kinds, and no trace ----------------------------------------------------------------------------

class Stream(IterableDataset):
    def __iter__(self): yield from zip(X[:64], Y[:64])


class Counts(TrainerCallback):
    calls = 0
    def on_step_begin(self, *args, **kwargs): self.calls += 1


def drawn(i, g=torch.Generator().manual_seed(3)): return torch.randn(8, generator=g) + X[i], Y[i]


@pytest.mark.parametrize("given", [
    {"data": Stream(), "eval_dataset": None, "max_steps": 9},
    {"data": DataLoader(TRAIN, 16, shuffle=True, num_workers=1)},
    {"model": net(whole), "gradient_accumulation_steps": 3, "lr_scheduler_type": "constant"},
    {"optim": "adafactor"},
    {"bf16": True},
    {"model": net(lambda n, x: whole(n, x + 0.1 * torch.randn_like(x)))},
    {"data": pairs(X[:300] * 64 + 128, Y[:300]), "eval_dataset": pairs(X[300:] * 64 + 128, Y[300:]), "model": lambda: nn.Sequential(nn.BatchNorm1d(8), mlp())},
    {"data": pairs(torch.randint(2, (300, 8)).float(), Y[:300]), "eval_dataset": pairs(torch.randint(2, (100, 8)).float(), Y[:100])},
    {"cls": Adversaries, "model": lambda: nn.ModuleDict({"one": mlp(), "other": mlp()})},
    {"cls": Shorter},
    {"model": lambda: nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2)), "optim": "sgd", "learning_rate": 0.1},
], ids=["stream", "DataLoader", "accumulation", "adafactor", "bf16", "random outputs", "norm first", "few different inputs", "two optimizers", "replaced data", "bias before a norm"])
def test_a_healthy_run(given):
    found = learner(**given).check()
    assert not found, found
    assert "could not run" not in found.title, found.skipped


def test_a_parameter_is_added_to_an_optimizer_beside_a_schedule():
    model = mlp()
    optimizer = part_of(model)
    learn = learner(lambda: model, optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)))
    exec(learn.check()[0].do, {"learn": learn})
    learn.step(2)
    assert not learn.check() and model[2].weight in optimizer.state


def test_the_run_is_as_it_was():
    "Weights, buffers, optimizer, generators, counters of modules, callbacks and data sets; before, in and after an epoch."
    def make(): return learner(net(whole), Items(drawn), callbacks=[Counts()], gradient_accumulation_steps=2)
    one, other = make(), make()
    for steps in (0, 2, 3, 4):
        for learn in (one, other):
            if steps: learn.step(steps)
        before, generator = other.snapshot(), torch.get_rng_state()
        assert not other.check()
        assert differences(other.snapshot(), before) == [] and torch.equal(torch.get_rng_state(), generator)
    assert differences(one.snapshot(), other.snapshot()) == []
    assert other.model.calls == one.model.calls and other.train_dataset.reads == one.train_dataset.reads
    assert [e["kind"] for e in one.history.events] == [e["kind"] for e in other.history.events]


def test_what_cannot_be_asked_is_named():
    found = learner(eval_dataset=None).check()
    assert "there is no data set" in found.skipped["evaluation samples that are not trained"]
    assert repr(found) == found.title and found._repr_html_() == f"<p>{found.title}</p>" and "checks found nothing" in found.title
    assert " checks could not run: outputs: RuntimeError: mat1 and mat2" in learner(net(lambda n, x: n.first(x[:, 1:]))).check().title
    html = learner(net(in_evaluation)).check()._repr_html_()
    assert "<td" in html and "batch norms are in evaluation mode" in html


def test_errors():
    learn = learner(data=None)
    with pytest.raises(ValueError, match="train_dataset"): learn.check()
    learn = learner()
    with learn.debug_step(), pytest.raises(InvalidOperation): learn.check()
    with pytest.raises(ValueError, match="seconds"): learn.check(seconds=-1)
    with pytest.raises(ValueError, match="seconds"): learn.check(seconds=float("nan"))
    learn.step(1)


# what two processes have, and the check that says so
ALIKE = {"setting": {"seed": "1"}, "weight": {"0.weight": 3}, "sample": {0: "a"}, "drawn": {1, 2}}
RANKS = [({**ALIKE, "drawn": {3, 4}}, ""), ({**ALIKE, "drawn": {2, 3}}, "both draw 1 samples"), ({**ALIKE, "drawn": {3}, "setting": {"seed": "2"}}, "setting seed is 1 on rank 0 and 2"),
         ({**ALIKE, "drawn": {3}, "weight": {"0.weight": 4}}, "weight 0.weight is not the same"), ({**ALIKE, "drawn": {3}, "sample": {0: "b"}}, "sample 0 is not")]


@pytest.mark.parametrize("other, words", RANKS)
def test_processes_that_train_another_model_are_named(other, words):
    from trainer_nb.diagnostics.check import PROCESS_CHECKS, run_checks
    found = run_checks(PROCESS_CHECKS, [ALIKE, other], learner().run_state)
    assert [words in row.seen for row in found] == [True] * bool(words), found


@pytest.mark.xdist_group("launch")
def test_a_check_of_several_processes():
    with (learn := learner(net(whole))).launch(2):
        learn.step(1)
        assert learn.check().title.startswith("2 checks found nothing")

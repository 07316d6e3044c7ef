"Further programs without a fault, each with something unusual that is meant, near to the faults of second_held_out_incidents."
import numpy as np
import torch
from healthy import digits, healthy, mlp
from tiny import PAD, WORDS, Attentive, Net, class_counts, collate_classes, learner, rare, seeded, split, table, texts_of_two_means
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, WeightedRandomSampler


@healthy
def columns_with_long_tails():
    "Incomes, for example: some values are a hundred times the others, and mean it."
    x, y = table()
    x[:, 2] = x[:, 2].exp()**1.5
    return learner(seeded(Net), *split(x, y))


@healthy
def classes_drawn_alike():
    "Rare classes are drawn more often, by a weight for each sample."
    x, y = table(900)
    train, held_out = rare(x, y, lambda y: y != 0, 0.2)
    weights = (1/class_counts(train))[[int(y) for _, y in train]]
    return learner(seeded(Net), DataLoader(train, batch_size=16, sampler=WeightedRandomSampler(weights, len(train))), held_out)


class Recurring(nn.Module):
    "The same block three times, as in ALBERT and in universal transformers."
    def __init__(self):
        super().__init__()
        self.embed, self.block, self.head = nn.Linear(8, 32), nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.GELU()), nn.Linear(32, 3)

    def forward(self, x):
        h = self.embed(x)
        for _ in range(3): h = h + self.block(h)
        return self.head(h)


@healthy
def a_recurring_block(): return learner(seeded(Recurring), *split(*table()))


@healthy
def rare_class_weighs_more():
    x, y = table(900, classes=2)
    train, held_out = rare(x, y, lambda y: y == 0, 0.15)
    return learner(seeded(Net, 8, 2), train, held_out, loss=nn.CrossEntropyLoss(200/class_counts(train)))


@healthy
def positives_weigh_more():
    x, y = table(500)
    return learner(seeded(mlp, 8, 32, 1), *split(x, (y == 0).float()[:, None]), loss=nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0])))


@healthy
def lower_rates_below():
    "Each layer has two thirds of the rate of the next."
    model = seeded(Net)
    layers = [model.body[0], model.body[2], model.norm, model.head]
    optimizer = torch.optim.AdamW([dict(params=[*layer.parameters()], lr=1e-2*0.66**(3 - i)) for i, layer in enumerate(layers)])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step/200)
    return learner(model, *split(*table()), optimizers=(optimizer, schedule))


@healthy
def weights_in_bfloat16():
    "With a rate that is large enough for them."
    train, held_out = [[(x.bfloat16(), y) for x, y in part] for part in split(*digits(), 480)]
    def loss(out, y): return F.cross_entropy(out.float(), y)
    return learner(seeded(mlp, 64, 64, 10).bfloat16(), train, held_out, loss=loss, learning_rate=3e-3)


@healthy
def padding_of_texts():
    "Texts of different lengths, with a mask; the padding has an index of its own."
    model = seeded(Attentive)
    model.embed = nn.Embedding(WORDS, 32, padding_idx=PAD)
    return learner(model, *texts_of_two_means(), data_collator=collate_classes, learning_rate=3e-3)


@healthy
def strong_decay(): return learner(seeded(Net), *split(*table()), weight_decay=0.3)


@healthy
def sum_divided_by_hand():
    "The sum of the losses, divided by a fixed number of samples."
    def loss(out, y): return F.cross_entropy(out, y, reduction="sum")/16
    return learner(seeded(Net), *split(*table()), loss=loss)


@healthy
def noisy_labels():
    "A tenth of the labels are wrong, as labels are."
    x, y = table()
    train, held_out = split(x, y)
    draw = np.random.default_rng(0)
    return learner(seeded(Net), [(v, int(draw.integers(3)) if draw.random() < 0.1 else int(t)) for v, t in train], held_out)


class Gated(nn.Module):
    "Multiplicative noise while training, drawn by the model itself; none in the evaluation."
    def __init__(self):
        super().__init__()
        self.net, self.head = mlp(8, 64, 32), nn.Linear(32, 3)

    def forward(self, x):
        h = self.net(x).relu()
        return self.head(h*(1 + 0.5*torch.randn_like(h)) if self.training else h)


@healthy
def own_noise(): return learner(seeded(Gated), *split(*table()))


@healthy
def small_images():
    "Images between 0 and 1, not centred."
    x, y = digits(n=600)
    return learner(seeded(mlp, 64, 32, 10), *split((x*6 + 4.9)/16, y, 480), num_train_epochs=12)


@healthy
def targets_of_some_tens():
    x, _ = table(500)
    y = (x @ torch.randn(8, 1, generator=torch.Generator().manual_seed(5)))*10 + 20
    return learner(seeded(mlp, 8, 64, 1), *split(x, y), loss=F.smooth_l1_loss, num_train_epochs=20)

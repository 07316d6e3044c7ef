"Eighteen further faults, written when the tools had been improved on all others, and without knowledge of the tools."
import numpy as np
import torch
from healthy import digits, mlp
from tiny import PAD, WORDS, Attentive, Net, class_counts, classified_texts, collate_classes, counts, incident, language_model, learner, padded, rare, seeded, split, table, texts_of_two_means, wrong
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, WeightedRandomSampler

# --- data -------------------------------------------------------------------------------------------------------------

@incident("data", "stats.stackexchange 225175: a number such as -999 stands for a missing value",
          "-999|sentinel|missing value|outlier|far from|extreme|range", score=wrong)
def number_for_missing(faulty):
    x, y = table()
    gone = torch.rand(len(x), generator=torch.Generator().manual_seed(1)) < 0.1
    x[gone, 3] = -999. if faulty else 0.
    return learner(seeded(Net, 8, 3, 32), *split(x, y))


@incident("data", "Northcutt et al. 2021: samples that occur several times with different labels",
          "conflict|different labels|contradict|other label|several labels|same input", score=wrong)
def copies_with_other_labels(faulty):
    x, y = table(500)
    train, held_out = split(x, y)
    draw = np.random.default_rng(0)
    copies = [(v.clone() if faulty else v + 0.01, (t + 1 + int(draw.integers(2))) % 3 if faulty else t) for v, t in train[:240]]
    return learner(seeded(Net), train + copies, held_out, num_train_epochs=8)


@incident("data", "PyTorch forum: targets of a regression in their own unit, hundreds of thousands", "target|scale|unit|standardi|normaliz|large")
def targets_not_scaled(faulty):
    x, _ = table(500)
    y = x @ torch.randn(8, 1, generator=torch.Generator().manual_seed(5))
    y = y*50_000 + 250_000 if faulty else y
    train, held_out = split(x, y)
    return learner(seeded(mlp, 8, 32, 1), train, held_out, loss=F.mse_loss, num_train_epochs=10)


@incident("data", "Yi #110, open-instruct #632: the labels of the padding are not -100", "padding|pad token|-100|ignored")
def padding_is_trained(faulty):
    texts = counts(300)
    def collate(samples):
        ids = padded([o["input_ids"] for o in samples], PAD)
        mask = padded([[1]*len(o["input_ids"]) for o in samples], 0)
        return {"input_ids": ids, "attention_mask": mask, "labels": ids.clone() if faulty else ids.masked_fill(mask == 0, -100)}
    samples = [{"input_ids": o} for o in texts]
    return learner(language_model(), samples[:240], samples[240:], data_collator=collate, loss=None)


@incident("data", "bert_nli #3, alpaca-lora #107: padded inputs without an attention mask", "attention_mask|mask|padding")
def attention_mask_missing(faulty):
    def without_mask(samples): return {k: v for k, v in collate_classes(samples).items() if k != "attention_mask"}
    return learner(seeded(Attentive), *texts_of_two_means(), data_collator=without_mask if faulty else collate_classes, learning_rate=3e-3)


@incident("data", "InterHand2.6M #110: images are divided by 255 twice", "range|scale|small|normaliz|divided")
def divided_twice(faulty):
    x, y = digits(n=600)
    x = (x*6 + 4.9)/16
    return learner(seeded(mlp, 64, 32, 10), *split(x/255 if faulty else (x - 0.3)/0.37, y, 480), learning_rate=1e-3, num_train_epochs=12)


@incident("data", "PyTorch forum: WeightedRandomSampler with the weights of the classes in place of those of the samples", "distinct|drawn|sampler|never|same samples|repeated|of the samples",
          score=wrong)
def weights_of_classes(faulty):
    train, held_out = split(*table())
    by_class = 1/class_counts(train)
    sampler = WeightedRandomSampler(by_class if faulty else by_class[[int(y) for _, y in train]], len(train))
    return learner(seeded(Net), DataLoader(train, batch_size=16, sampler=sampler), held_out)


@incident("data", "vsepp #36, pytorch #2615: the texts are sorted by length, and what belongs to them is not", "label|order|collat|aligned|permut")
def collator_sorts_texts(faulty):
    samples = classified_texts(400)
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(WORDS, 32), nn.Linear(32, 2)
        def forward(self, input_ids, lengths):
            return self.head(self.embed(input_ids)[torch.arange(len(lengths)), lengths - 1])
    def collate(batch):
        labels = torch.tensor([o[1] for o in batch])
        batch = sorted(batch, key=lambda o: -len(o[0]))
        if not faulty: labels = torch.tensor([o[1] for o in batch])
        return {"input_ids": padded([o[0] for o in batch], PAD), "lengths": torch.tensor([len(o[0]) for o in batch]), "labels": labels}
    return learner(seeded(Last), samples[:320], samples[320:], data_collator=collate)


# --- model ------------------------------------------------------------------------------------------------------------

@incident("model", "PyTorch forum: a sigmoid before BCEWithLogitsLoss", "sigmoid|logits|twice|probabilit")
def sigmoid_twice(faulty):
    x, y = table(500)
    y = (y == 0).float()[:, None]
    model = seeded(mlp, 8, 32, 1)
    return learner(nn.Sequential(model, nn.Sigmoid()) if faulty else model, *split(x, y), loss=F.binary_cross_entropy_with_logits)


class Dropped(nn.Module):
    "A perceptron with functional dropout."
    def __init__(self, faulty):
        super().__init__()
        self.faulty, self.a, self.b = faulty, nn.Linear(8, 64), nn.Linear(64, 3)

    def forward(self, x):
        return self.b(F.dropout(self.a(x).relu(), 0.6, True if self.faulty else self.training))


@incident("model", "SimpleNet #2, deepchem #5092: functional dropout that the evaluation mode does not end", "random|dropout|evaluation mode|two calls|deterministic|differ")
def dropout_always_on(faulty): return learner(seeded(Dropped, faulty), *split(*table()))


@incident("model", "pytorch-vq-vae #2, U-Net_v2 #10: a list of one layer, multiplied", "same layer|shared|same module|once|share|repeated")
def one_layer_four_times(faulty):
    def make():
        block = lambda: nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.Tanh())
        blocks = [block()]*4 if faulty else [block() for _ in range(4)]
        return nn.Sequential(nn.Linear(8, 32), *blocks, nn.Linear(32, 3))
    return learner(seeded(make), *split(*table()), num_train_epochs=2)


class Bag(nn.Module):
    "A classifier of texts of one word each."
    def __init__(self, padding):
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 16, padding_idx=padding), nn.Linear(16, 2)

    def forward(self, x): return self.head(self.embed(x).mean(1))


@incident("model", "TuckER #17, transformers #409: padding_idx is an entry that occurs", "padding_idx|padding index|never trained|no gradient")
def padding_index_is_a_token(faulty):
    draw = np.random.default_rng(0)
    x = torch.tensor(draw.integers(1, 20, (500, 6)))
    # token 7 decides
    x[::2, 2] = 7
    y = (x == 7).any(1).long()
    return learner(seeded(Bag, 7 if faulty else 0), *split(x, y), num_train_epochs=6)


class LogProbs(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim, self.net = dim, mlp(8, 32, 3)

    def forward(self, x): return F.log_softmax(self.net(x), self.dim)


@incident("model", "pointnet.pytorch #27: log_softmax across the samples of a batch", "samples|batch|dim")
def log_softmax_across_samples(faulty): return learner(seeded(LogProbs, 0 if faulty else 1), *split(*table()), loss=F.nll_loss)


# --- loop -------------------------------------------------------------------------------------------------------------

@incident("loop", "caffe #1396: the decay holds the weights at zero", "decay", score=wrong)
def decay_too_large(faulty): return learner(seeded(Net), *split(*table()), weight_decay=30. if faulty else 0.01)


@incident("loop", "layer-wise decay of the rate, as BEiT's get_num_layer_for_vit: lower layers have hardly a rate", "rate|lr|group|not change|do not move")
def body_has_rate_zero(faulty):
    model = seeded(Net)
    head = [*model.head.parameters(), *model.norm.parameters()]
    groups = [dict(params=[*model.body.parameters()], lr=1e-2*0.1**(12 if faulty else 1)), dict(params=head, lr=1e-2)]
    optimizer = torch.optim.AdamW(groups)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    return learner(model, *split(*table()), optimizers=(optimizer, schedule))


@incident("loop", "PyTorch forum: reduction='sum', so the rate depends on the size of the batch", "sum of|a sum|batch size|reduction")
def loss_is_summed(faulty):
    def loss(out, y): return F.cross_entropy(out, y, reduction="sum" if faulty else "mean")
    return learner(seeded(Net), *split(*table()), loss=loss, optim="sgd", learning_rate=0.1, per_device_train_batch_size=64, max_grad_norm=0, num_train_epochs=10)


@incident("loop", "Gopher (Rae et al. 2021), appendix C: weights in bfloat16 and a small rate, so updates are rounded away", "bfloat16|bf16|round|precision|do not change|lost")
def updates_rounded_away(faulty):
    model = seeded(mlp, 64, 64, 10)
    train, held_out = split(*digits(), 480)
    kind = torch.bfloat16 if faulty else torch.float32
    train, held_out = [[(x.to(kind), y) for x, y in part] for part in (train, held_out)]
    def loss(out, y): return F.cross_entropy(out.float(), y)
    return learner(model.to(kind), train, held_out, loss=loss, optim="sgd", learning_rate=1e-2, num_train_epochs=40)


@incident("loop", "lidar-bonnetal #48: frequent classes have the larger weights", "class weight|weights of the classes|weight|rare|invert", score=lambda learn: wrong(learn, balanced=True))
def class_weights_inverted(faulty):
    x, y = table(900, classes=2)
    train, held_out = rare(x, y, lambda y: y == 0, 0.15)
    noise = iter(torch.randn(len(train + held_out), 8, generator=torch.Generator().manual_seed(4)))
    train, held_out = ([(v + next(noise), t) for v, t in part] for part in (train, held_out))
    share = class_counts(train)/400
    weight = share if faulty else 1/share/2
    return learner(seeded(Net, 8, 2), train, held_out, loss=nn.CrossEntropyLoss(weight))

"Further programs without a fault, each with something unusual that is meant; written like the held-out incidents, without knowledge of the tools."
import torch
from healthy import Stream, digits, healthy, mlp
from tiny import MARK, PAD, WORDS, Net, Recurrent, classified_texts, counts, language_model, learner, padded, rows, seeded, split, table
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from trainer_nb import Learner


class Adversarial(Learner):
    "A generator and a discriminator with an optimizer each; the loss that is reported is the generator's, which need not fall."
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.critic = seeded(mlp, 2, 32, 1)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=1e-2)

    def training_step(self, model, inputs, num_items_in_batch=None):
        real, noise = self._prepare_inputs(inputs)
        made = model(noise)
        self.critic_optimizer.zero_grad()
        wrong = F.softplus(-self.critic(real)).mean() + F.softplus(self.critic(made.detach())).mean()
        self.accelerator.backward(wrong)
        self.critic_optimizer.step()
        loss = F.softplus(-self.critic(made)).mean()
        self.accelerator.backward(loss)
        return loss.detach()


@healthy
def adversarial():
    draw = torch.Generator().manual_seed(0)
    angle = torch.rand(400, generator=draw)*6.28
    real = torch.stack([angle.cos(), angle.sin()], 1)
    return learner(seeded(mlp, 4, 32, 2), rows(real, torch.randn(400, 4, generator=draw)), None, Adversarial, loss=None, learning_rate=3e-3, num_train_epochs=24)


def pinball(out, y):
    "The loss of three quantiles: the target has one column, which is compared with each of the three."
    levels = torch.tensor([0.1, 0.5, 0.9])
    return torch.maximum(levels*(y - out), (levels - 1)*(y - out)).mean()


@healthy
def quantiles():
    x, _ = table(700)
    y = x[:, :1]*2 + x[:, 1:2].abs()*torch.randn(700, 1, generator=torch.Generator().manual_seed(1))
    return learner(seeded(mlp, 8, 32, 3), *split(x, y, 600), loss=pinball)


class MixedUp(Dataset):
    "Heavy augmentation: each image is blended with another and erased in part, and so are the labels; training is harder than the evaluation."
    def __init__(self, samples): self.samples = samples
    def __len__(self): return len(self.samples)

    def __getitem__(self, i):
        (x, y), (other, label) = self.samples[i], self.samples[int(torch.randint(len(self.samples), ()))]
        part = float(torch.rand(()))
        x = part*x + (1 - part)*other
        x[torch.rand(64) < 0.2] = 0
        return x, part*F.one_hot(y, 10).float() + (1 - part)*F.one_hot(label, 10).float()


@healthy
def blended_images():
    train, held_out = split(*digits(n=1000), 800)
    return learner(seeded(mlp, 64, 64, 10), MixedUp(train), held_out, num_train_epochs=8)


class SeveralTasks(nn.Module):
    "A class and a number; most samples have only one of the two, and the other is -100 or NaN."
    def __init__(self):
        super().__init__()
        self.body, self.kind, self.number = mlp(8, 32, 32), nn.Linear(32, 3), nn.Linear(32, 1)

    def forward(self, x, kind, number):
        state = self.body(x).relu()
        logits, known = self.kind(state), ~number.isnan()
        loss = F.cross_entropy(logits, kind, ignore_index=-100, reduction="sum") + (self.number(state)[:, 0] - number.nan_to_num())[known].square().sum()
        return {"loss": loss/len(x), "logits": logits}


@healthy
def tasks_with_missing_labels():
    x, y = table(600)
    samples = [{"x": a, "kind": int(b) if i % 3 else -100, "number": float(a[0] + a[1]) if i % 3 == 0 else float("nan")} for i, (a, b) in enumerate(rows(x, y))]
    return learner(seeded(SeveralTasks), samples[:500], samples[500:], loss=None)


def focal(out, y):
    error = F.binary_cross_entropy_with_logits(out[:, 0], y, reduction="none")
    return (error*(1 - (-error).exp())**2).mean()


@healthy
def very_rare_positives():
    "Three of a hundred samples are positive, as they are in the world, and a focal loss, which is small from the beginning."
    x, _ = table(2000)
    return learner(seeded(mlp, 8, 32, 1), *split(x, (x[:, 0] + x[:, 1] > 2.6).float(), 1600), loss=focal)


@healthy
def gently_fine_tuned():
    "A trained model that is to be adapted without being forgotten: a tiny rate and few steps, in which the loss hardly changes."
    first = learner(seeded(Net), *split(*table(1000), 900))
    first.train()
    x, y = table(300, seed=4)
    return learner(first.model, *split(x + 0.05, y, 240), learning_rate=1e-5, num_train_epochs=2, warmup_steps=3)


@healthy
def adapters_of_a_classifier():
    "Adapters in all linear layers but the head, which is trained anew; all else is frozen and the second adapter matrices are zero."
    from peft import LoraConfig, get_peft_model
    first = learner(seeded(mlp, 64, 64, 64, 10), *split(*digits(n=800), 700), num_train_epochs=6)
    first.train()
    first.model[-1] = nn.Linear(64, 2)
    x, y = digits(n=1200)
    model = get_peft_model(first.model, LoraConfig(r=4, lora_alpha=16, use_rslora=True, target_modules=["0", "2"], modules_to_save=["4"]))
    return learner(model, *split(x, y % 2, 1000), per_device_train_batch_size=32)


class Divided(Stream):
    "A stream that the workers divide among themselves."
    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        return iter(split(*table())[0][first::step])


@healthy
def stream_in_bfloat16():
    "A stream without a length, two workers, and accumulated steps in bfloat16."
    return learner(seeded(Net), Divided(), split(*table())[1], max_steps=50, bf16=True, dataloader_num_workers=2,
                   gradient_accumulation_steps=2, per_device_train_batch_size=8)


class ShortFirst(Sampler):
    "A curriculum: short texts before long ones, in the same order in each epoch."
    def __init__(self, samples): self.order = sorted(range(len(samples)), key=lambda i: len(samples[i]))
    def __len__(self): return len(self.order)
    def __iter__(self): return iter(self.order)


def collate_counts(texts): return {"input_ids": padded(texts, PAD), "labels": padded(texts, -100), "attention_mask": padded([[1]*len(o) for o in texts], 0)}


@healthy
def short_texts_first():
    texts = counts(500)
    loader = DataLoader(texts[:400], batch_size=16, sampler=ShortFirst(texts[:400]), collate_fn=collate_counts)
    return learner(language_model(), loader, texts[400:], loss=None, data_collator=collate_counts)


@healthy
def forecast():
    "The evaluation is what came after the training; the windows overlap, and the level rises."
    t = torch.arange(460)
    series = torch.sin(t*0.4) + t*0.002 + 0.05*torch.randn(460, generator=torch.Generator().manual_seed(0))
    windows = torch.stack([series[i:i + 21] for i in range(440)])[..., None]
    return learner(seeded(Recurrent), *split(windows[:, :-1], windows[:, 1:], 360), loss=F.mse_loss, num_train_epochs=8)


class Triplets(nn.Module):
    "A margin: the loss of many batches is exactly zero at the end."
    def __init__(self):
        super().__init__()
        self.body = mlp(64, 64, 16)

    def forward(self, anchor, same, other):
        a, b, c = (F.normalize(self.body(o), dim=-1) for o in (anchor, same, other))
        return {"loss": F.triplet_margin_loss(a, b, c, margin=0.2), "logits": a}


@healthy
def triplets():
    x, y = digits(n=1000)
    draw = torch.Generator().manual_seed(0)
    def one(choice): return x[choice.nonzero()[:, 0][torch.randint(int(choice.sum()), (), generator=draw)]]
    samples = [{"anchor": a, "same": one(y == b), "other": one(y != b)} for a, b in zip(x, y)]
    return learner(seeded(Triplets), samples[:800], samples[800:], loss=None, remove_unused_columns=False, learning_rate=3e-3, num_train_epochs=6)


class Packed(nn.Module):
    "A recurrent network over packed sequences: its output is that of the last token, in both directions."
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(WORDS, 16, padding_idx=PAD), nn.GRU(16, 24, batch_first=True, bidirectional=True), nn.Linear(48, 2)

    def forward(self, input_ids, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(input_ids), lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.rnn(packed)[1].transpose(0, 1).flatten(1))


def collate_lengths(samples):
    ids, labels = zip(*samples)
    return {"input_ids": padded(ids, PAD), "lengths": torch.tensor([len(o) for o in ids]), "labels": torch.tensor(labels)}


@healthy
def packed_sequences():
    samples = [(ids + [MARK], label) for ids, label in classified_texts()]
    return learner(seeded(Packed), samples[:320], samples[320:], data_collator=collate_lengths)


class Experts(nn.Module):
    "Each sample goes to one of four experts; in a batch, some of them have no sample and no gradient."
    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 4), nn.ModuleList(mlp(8, 16, 3) for _ in range(4))

    def forward(self, x):
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        out = x.new_zeros(len(x), 3)
        for i in chosen.unique().tolist(): out[chosen == i] = self.experts[i](x[chosen == i])
        return out*weight[:, None]*4


@healthy
def mixture_of_experts(): return learner(seeded(Experts), *split(*table()), per_device_train_batch_size=4)


class TiedAutoencoder(nn.Module):
    "An autoencoder that decodes with the transposed weights of the encoder."
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(16, 64)*0.1), nn.Parameter(torch.zeros(64))

    def forward(self, x): return (x @ self.weight.T) @ self.weight + self.bias


@healthy
def tied_autoencoder():
    x, _ = digits(n=800)
    return learner(seeded(TiedAutoencoder), *split(x, x, 700), loss=F.mse_loss, num_train_epochs=6)


@healthy
def events_per_hour():
    "Counts, most of which are zero, and a loss that becomes negative."
    x, _ = table(800)
    y = torch.poisson((x[:, :1]*0.8 + x[:, 1:2]*0.8 - 0.5).exp(), generator=torch.Generator().manual_seed(0))
    return learner(seeded(mlp, 8, 16, 1), *split(x, y, 700), loss=nn.PoissonNLLLoss(), learning_rate=3e-3)


class Rewarded(nn.Module):
    "A policy that is rewarded for the right action, with a baseline: the loss is about zero and has both signs."
    def __init__(self):
        super().__init__()
        self.policy = mlp(8, 32, 3)

    def forward(self, x, best):
        logits = self.policy(x)
        action = torch.distributions.Categorical(logits=logits).sample()
        reward = (action == best).float()
        return {"loss": (F.cross_entropy(logits, action, reduction="none")*(reward - reward.mean())).mean(), "logits": logits}


@healthy
def policy_gradient():
    samples = [{"x": a, "best": b} for a, b in rows(*table(900))]
    return learner(seeded(Rewarded), samples[:800], samples[800:], loss=None, remove_unused_columns=False, per_device_train_batch_size=32, num_train_epochs=8)


@healthy
def bags_of_words():
    "Columns that are nearly always zero, some of them in all samples, and a model with one layer."
    bags = [(F.one_hot(torch.tensor(ids), 60).sum(0).float(), label) for ids, label in classified_texts(900)]
    y = [int(x[13:23].sum() > x[3:13].sum()) for x, _ in bags]
    samples = [(x, label) for (x, _), label in zip(bags, y)]
    return learner(seeded(nn.Linear, 60, 2), samples[:800], samples[800:])


@healthy
def warm_restarts():
    "A rate that jumps up again three times, and with it the loss."
    model = seeded(Net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=50)
    return learner(model, *split(*table(600), 400), optimizers=(optimizer, schedule), num_train_epochs=8)

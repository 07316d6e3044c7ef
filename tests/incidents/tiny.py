"What the incidents share: how one is described, tiny models, and small data that can be learned."
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Callable

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from trainer_nb import Learner

INCIDENTS = []


@dataclass
class Incident:
    """A program with a fault that people have reported, and the same program without it.

    `build(faulty)` returns the learner. A finding names the cause if it contains one of `words`. `tool` is where it is expected:
    "check", "diagnose" or "run" (warnings and errors of the run itself). `samples`: the faulty samples can be named.
    `around` is where the user trains, such as a launch; `finish` is what the user does instead of `train()`; `score` is the result, low is good."""
    name: str
    kind: str
    source: str
    words: tuple
    build: Callable
    tool: str = "check"
    samples: bool = False
    around: Callable = lambda learn: nullcontext()
    finish: Callable = lambda learn: learn.train()
    score: Callable = None

    def faulty(self): return self.build(True)
    def twin(self): return self.build(False)


def incident(kind, source, words, **given):
    "Add a function `build(faulty)` to the table; its name is the incident's."
    def add(build):
        INCIDENTS.append(Incident(build.__name__, kind, source, tuple(words.split("|")), build, **given))
        return build
    return add


SETTINGS = dict(learning_rate=1e-2, per_device_train_batch_size=16, num_train_epochs=4, use_cpu=True, disable_tqdm=True, logging_steps=25)


def learner(model, train, held_out, cls=Learner, loss=cross_entropy, **given):
    "A learner with the settings that most incidents have."
    settings = SETTINGS | (dict(loss_func=loss) if loss else {}) | given
    # an optimizer and a loader have their own
    if "optimizers" in given: del settings["learning_rate"]
    if isinstance(train, torch.utils.data.DataLoader): del settings["per_device_train_batch_size"]
    return cls(model, train_dataset=train, eval_dataset=held_out, **settings)


def rows(x, y):
    "The samples of a data set of tuples."
    return [(a, b) for a, b in zip(x, y)]


def table(n=500, columns=8, classes=3, seed=0):
    "Normalized columns, and the class that a hidden linear map gives."
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, columns, generator=draw)
    return x, (x @ torch.randn(columns, classes, generator=torch.Generator().manual_seed(7))).argmax(1)


def split(x, y, n=400):
    "Samples for training and for the evaluation."
    samples = rows(x, y)
    return samples[:n], samples[n:]


def rare(x, y, kept, share, n=400):
    "As `split`, with a part of the samples that are not of some class, or not of the others."
    keep = kept(y) | (torch.rand(len(y), generator=torch.Generator().manual_seed(2)) < share)
    return split(x[keep], y[keep], n)


def class_counts(samples): return torch.bincount(torch.tensor([int(y) for _, y in samples])).float()


def seeded(make, *args):
    "The same weights each time."
    torch.manual_seed(0)
    return make(*args)


class Net(nn.Module):
    "A body and a head, with a layer norm and some dropout between them."
    def __init__(self, columns=8, classes=3, width=32, dropout=0.1):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(columns, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.norm, self.drop, self.head = nn.LayerNorm(width), nn.Dropout(dropout), nn.Linear(width, classes)

    def forward(self, x): return self.head(self.drop(self.norm(self.body(x))))


def wrong(learn, balanced=False):
    "The share of the held-out samples that are classified wrongly; balanced: the mean of that of the two classes."
    x, y = torch.stack([x for x, _ in learn.eval_dataset]), torch.tensor([int(y) for _, y in learn.eval_dataset])
    learn.model.eval()
    with torch.no_grad(): missed = (learn.model(x).argmax(1) != y).float()
    return float(sum(missed[y == c].mean() for c in (0, 1))/2 if balanced else missed.mean())


class Recurrent(nn.Module):
    "A recurrent network that predicts the next value of a sequence."
    def __init__(self, width=24, batch_first=True):
        super().__init__()
        self.rnn, self.head = nn.LSTM(1, width, batch_first=batch_first), nn.Linear(width, 1)

    def forward(self, x): return self.head(self.rnn(x)[0])


class Last(nn.Module):
    "A recurrent network that reads its answer from the last position, or from the last token."
    def __init__(self, of_padding=False):
        super().__init__()
        self.embed, self.rnn, self.head, self.of_padding = nn.Embedding(23, 16), nn.GRU(16, 32, batch_first=True), nn.Linear(32, 2), of_padding

    def forward(self, input_ids, attention_mask):
        states = self.rnn(self.embed(input_ids))[0]
        last = -1 if self.of_padding else attention_mask.sum(1) - 1
        return self.head(states[torch.arange(len(states)), last])


class Attentive(nn.Module):
    "A classifier of texts that averages over all tokens that the mask has."
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, 32), nn.Linear(32, 2)
        self.attend = nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True)

    def forward(self, input_ids, attention_mask=None):
        if attention_mask is None: attention_mask = torch.ones_like(input_ids)
        h = self.attend(self.embed(input_ids), src_key_padding_mask=attention_mask == 0)
        return self.head((h*attention_mask[..., None]).sum(1)/attention_mask.sum(1, keepdim=True))


# --- texts: numbers that are counted upwards, then the end token -------------------------------------------------------

PAD, END, MARK, FIRST, WORDS = 0, 1, 2, 3, 23


def counts(n=300, seed=0):
    "Different lists of tokens that count upwards by 1, 2 or 3 from any number, of random lengths, with an end token."
    draw = np.random.default_rng(seed)
    kinds = [(start, step, length) for start in range(20) for step in (1, 2, 3) for length in range(4, 14)]
    return [[FIRST + (start + i*step) % 20 for i in range(length)] + [END] for start, step, length in (kinds[k] for k in draw.permutation(len(kinds))[:n])]


def classified_texts(n=400):
    "Random tokens, and whether the last one is large."
    draw = np.random.default_rng(1)
    texts = [draw.integers(FIRST, WORDS, draw.integers(6, 20)).tolist() for _ in range(n)]
    return [(o, int(o[-1] > 12)) for o in texts]


def texts_of_two_means():
    "Random tokens of very different lengths, and whether their mean is large; for training and for the evaluation."
    draw = np.random.default_rng(3)
    texts = [draw.integers(FIRST, WORDS, draw.integers(2, 24)).tolist() for _ in range(500)]
    samples = [(o, int(np.mean(o) > 12.5)) for o in texts]
    return samples[:400], samples[400:]


def padded(texts, value):
    return torch.tensor([o + [value]*(max(map(len, texts)) - len(o)) for o in texts])


def collate_text(samples):
    "Batches of tokens and labels that the samples bring, padded on the right."
    ids = padded([o["input_ids"] for o in samples], PAD)
    return {"input_ids": ids, "attention_mask": padded([[1]*len(o["input_ids"]) for o in samples], 0), "labels": padded([o["labels"] for o in samples], -100)}


def collate_classes(samples):
    ids = [o[0] for o in samples]
    return {"input_ids": padded(ids, PAD), "attention_mask": padded([[1]*len(o) for o in ids], 0), "labels": torch.tensor([o[1] for o in samples])}


def language_model(pad=PAD):
    "GPT-2 of one small layer."
    from transformers import GPT2Config, GPT2LMHeadModel
    return seeded(GPT2LMHeadModel, GPT2Config(vocab_size=WORDS, n_positions=32, n_embd=32, n_layer=1, n_head=2, bos_token_id=None, eos_token_id=END,
                                              pad_token_id=pad, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))


def tokenizer(pad="<pad>"):
    "A tokenizer of these numbers."
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    words = Tokenizer(models.WordLevel({"<pad>": PAD, "<end>": END, "<mark>": MARK} | {str(i): FIRST + i for i in range(20)}, unk_token="<mark>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token=pad, eos_token="<end>", unk_token="<mark>")

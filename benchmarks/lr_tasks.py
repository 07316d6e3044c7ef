"""Small training tasks whose best learning rate is found by a grid: what lr_find.py measures suggestions with.

Nothing is downloaded. Pictures and tables come with scikit-learn, text from the source files of Python's own library
and from the licenses of installed packages. "Pretrained" means pretrained here, for some hundred steps.

Five tasks are for developing a rule, five are to remain untouched until a rule is finished.
"""
from __future__ import annotations

import functools
import importlib.metadata
import pathlib
import sysconfig
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset


class Task(NamedTuple):
    "Describe a task: its data, its model, and the length of its training."
    words: str
    data: Callable[[], tuple]        # returns training and evaluation set
    model: Callable[[], nn.Module]   # returns the model to train; the seed is set before
    loss: Callable
    steps: int
    batch: int


def split(*tensors, share: float = 0.25) -> tuple[TensorDataset, TensorDataset]:
    "Divide samples at random into a training set and an evaluation set, always in the same way."
    order = torch.randperm(len(tensors[0]), generator=torch.Generator().manual_seed(0))
    first = int(len(order) * share)
    return tuple(TensorDataset(*(t[part] for t in tensors)) for part in (order[first:], order[:first]))


def pretrain(model: nn.Module, loss: Callable, data: TensorDataset, steps: int) -> nn.Module:
    "Train a model on other data, by a loop written by hand."
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        for group in optimizer.param_groups: group["lr"] = 3e-3 * (1 - step / steps)
        x, y = data[torch.randint(len(data), (16,), generator=generator)]
        loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model


# --- pictures ------------------------------------------------------------------------------------------------------------

@functools.cache
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    "Return 1,797 handwritten digits of 8 by 8 pixels."
    from sklearn.datasets import load_digits
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16, torch.tensor(labels)


def digits_of(classes: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    "Return the digits of some classes, numbered from 0."
    images, labels = digits()
    number = torch.full((10,), -1)
    number[classes] = torch.arange(len(classes))
    wanted = number[labels] >= 0
    return images[wanted], number[labels[wanted]]


def convolutions(classes: int, norm: bool = False) -> nn.Sequential:
    "Return a small convolutional network for digits."
    layers: list[nn.Module] = []
    for inner, outer, stride in ((1, 16, 1), (16, 32, 2)):
        layers += [nn.Conv2d(inner, outer, 3, stride, padding=1), *([nn.BatchNorm2d(outer)] if norm else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 16, classes))


@functools.cache
def pretrained_convolutions(norm: bool, *classes: int) -> dict:
    "Return the weights of a network that has been trained to tell other digits apart."
    torch.manual_seed(0)
    model = pretrain(convolutions(len(classes), norm), nn.functional.cross_entropy,
                     TensorDataset(*digits_of(list(classes))), 150)
    return {name: value for name, value in model.state_dict().items() if not name.startswith(f"{len(model) - 1}.")}


def tuned_convolutions(norm: bool, *classes: int) -> nn.Module:
    "Return the pretrained network with a new last layer for the five other digits."
    model = convolutions(5, norm)
    model.load_state_dict(pretrained_convolutions(norm, *classes), strict=False)
    return model


@functools.cache
def noisy_patches() -> tuple[torch.Tensor, torch.Tensor]:
    "Return patches of two photographs, 12 by 12 pixels, with noise and without."
    from sklearn.datasets import load_sample_images
    patches = []
    for image in load_sample_images().images:
        grey = torch.tensor(np.asarray(image, np.float32).mean(-1) / 255)
        patches.append(grey[:420, :636].unfold(0, 12, 12).unfold(1, 12, 12).reshape(-1, 1, 12, 12))
    clean = torch.cat(patches) * 2 - 1
    return clean + 0.3 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0)), clean


def denoiser() -> nn.Module:
    "Return a network that maps patches to patches."
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.GELU(), nn.Conv2d(16, 16, 3, padding=1), nn.GELU(),
                         nn.Conv2d(16, 1, 3, padding=1))


# --- text ----------------------------------------------------------------------------------------------------------------

LENGTH = 32        # bytes of a sample
PACKAGES = ["asyncio", "email", "unittest", "tkinter", "xml"]


@functools.cache
def sources(package: str) -> bytes:
    "Return the source files of a package of Python's library, one after the other."
    folder = pathlib.Path(sysconfig.get_paths()["stdlib"])/package
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*.py")) if "test" not in path.parts)


@functools.cache
def licenses() -> bytes:
    "Return the licenses of torch, numpy and scikit-learn, as they are installed, one after the other."
    texts = []
    for package in ("torch", "numpy", "scikit-learn"):
        files = importlib.metadata.files(package) or []
        paths = sorted(path.locate() for path in files if path.name.upper().startswith(("LICENSE", "NOTICE")))
        texts += [pathlib.Path(path).read_bytes() for path in paths if pathlib.Path(path).exists()]
    return b"\n".join(texts)


def chunks(text: bytes, most: int) -> torch.Tensor:
    "Cut a text into samples of equal length; bytes beyond ASCII become 127."
    codes = torch.tensor(np.minimum(np.frombuffer(text, np.uint8), 127), dtype=torch.long)
    n = min(most, len(codes) // (LENGTH + 1))
    return codes[:len(codes) // (LENGTH + 1) * (LENGTH + 1)].reshape(-1, LENGTH + 1)[:n]


def next_bytes(text: bytes, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    "Return samples of a text, and the same moved by one byte."
    codes = chunks(text, most)
    return codes[:, :-1].contiguous(), codes[:, 1:].contiguous()


def language_loss(logits: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    "Return the mean cross-entropy of the next bytes."
    return nn.functional.cross_entropy(logits.flatten(0, 1), codes.flatten())


class Transformer(nn.Module):
    "A byte-level transformer of two layers, for the next byte or for classes."
    def __init__(self, outputs: int, causal: bool, width: int = 32):
        super().__init__()
        self.bytes = nn.Embedding(128, width)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)
        self.causal = causal
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        mask = self.mask if self.causal else None
        states = self.norm(self.layers(self.bytes(codes) + self.places, mask, is_causal=self.causal))
        return self.head(states if self.causal else states.mean(1))


def pretraining_text() -> bytes:
    "Return source files that no task is about."
    return b"".join(sources(package) for package in ("json", "logging", "importlib", "concurrent", "multiprocessing"))


@functools.cache
def pretrained_transformer() -> dict:
    "Return the weights of a transformer that has been trained to predict the next byte of source files."
    torch.manual_seed(0)
    data = TensorDataset(*next_bytes(pretraining_text(), 8000))
    model = pretrain(Transformer(128, causal=True), language_loss, data, 400)
    return model.state_dict()


def tuned_transformer(outputs: int, causal: bool) -> nn.Module:
    "Return the pretrained transformer, with a new last layer unless it predicts bytes."
    model = Transformer(outputs, causal)
    weights = pretrained_transformer()
    model.load_state_dict({k: v for k, v in weights.items() if causal or not k.startswith("head.")}, strict=False)
    return model


def packages_of_sources() -> tuple:
    "Return pieces of source files, and which package each is from."
    pieces = [chunks(sources(package), 700)[:, :-1] for package in PACKAGES]
    return split(torch.cat(pieces), torch.cat([torch.full((len(p),), i) for i, p in enumerate(pieces)]))


# --- tables --------------------------------------------------------------------------------------------------------------

def table(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    "Return a data set of scikit-learn, standardized."
    import sklearn.datasets
    x, y = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)
    x = torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32)
    if y.dtype.kind != "f": return x, torch.tensor(y)
    return x, torch.tensor((y - y.mean()) / y.std(), dtype=torch.float32)[:, None]


def perceptron(inputs: int, width: int, outputs: int, dropout: float = 0.0) -> nn.Module:
    "Return a network of two layers."
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, outputs))


# --- the tasks -----------------------------------------------------------------------------------------------------------

DEVELOP = {
    "digits": Task("digits, a convolutional network", lambda: split(*digits()), lambda: convolutions(10),
                   nn.functional.cross_entropy, 300, 32),
    "digits, pretrained": Task("digits 5 to 9, a network pretrained on 0 to 4", lambda: split(*digits_of([5, 6, 7, 8, 9])),
                               lambda: tuned_convolutions(False, 0, 1, 2, 3, 4), nn.functional.cross_entropy, 200, 32),
    "packages, pretrained": Task("which package a piece of source is from, a pretrained transformer", packages_of_sources,
                                 lambda: tuned_transformer(5, causal=False), nn.functional.cross_entropy, 300, 16),
    "diabetes": Task("diabetes (a regression), a perceptron", lambda: split(*table("diabetes")),
                     lambda: perceptron(10, 32, 1), nn.functional.mse_loss, 200, 32),
    "wine": Task("wine, a perceptron", lambda: split(*table("wine")), lambda: perceptron(13, 32, 3),
                 nn.functional.cross_entropy, 150, 16),
}

FINAL = {
    "photographs": Task("patches of photographs without their noise, a convolutional network", lambda: split(*noisy_patches()),
                        denoiser, nn.functional.mse_loss, 200, 32),
    "odd digits, pretrained": Task("odd digits, a network with BatchNorm pretrained on even ones",
                                   lambda: split(*digits_of([1, 3, 5, 7, 9])),
                                   lambda: tuned_convolutions(True, 0, 2, 4, 6, 8), nn.functional.cross_entropy, 200, 32),
    "licenses, pretrained": Task("the next byte of licenses, a transformer pretrained on source files",
                                 lambda: split(*next_bytes(licenses(), 4000)), lambda: tuned_transformer(128, causal=True),
                                 language_loss, 200, 16),
    "sources": Task("the next byte of source files, a new transformer", lambda: split(*next_bytes(sources("asyncio"), 4000)),
                    lambda: Transformer(128, causal=True), language_loss, 200, 16),
    "breast cancer": Task("breast cancer, a perceptron with dropout", lambda: split(*table("breast_cancer")),
                          lambda: perceptron(30, 64, 2, dropout=0.2), nn.functional.cross_entropy, 200, 32),
}

SETS = {"develop": DEVELOP, "final": FINAL}

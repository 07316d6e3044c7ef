"""Weights and buffers that share memory without being tied: views of one storage, overlapping ones, an LSTM that cuDNN has flattened.

A file of safetensors has no views, so each is written for itself, and a model without the sharing loads the same values."""
import warnings

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from trainer_nb import Learner, TrainerCallback
from trainer_nb.device.weight_storage import move_model, overlapping_tensors


class Base(nn.Module):
    def forward(self, x, labels=None): return {"loss": self.out(x).square().mean()}


class Flat(Base):
    "All weights are parts of one storage, as some optimizers and DeepSpeed lay them out."
    def __init__(self, shared=True):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        if not shared: return
        flat, start = torch.cat([p.detach().flatten() for p in self.parameters()]), 0
        for p in self.parameters():
            p.data = flat[start:start + p.numel()].view_as(p)
            start += p.numel()
    def out(self, x): return self.b(torch.relu(self.a(x)))


class Part(Base):
    "A weight is a part of another one, and changes with it."
    def __init__(self, shared=True):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(4, 4)
        if shared: self.b.weight.data = self.a.weight.data[:4]
    def out(self, x): return self.a(x)[..., :4] + self.b(x)


class Transposed(Base):
    def __init__(self, shared=True):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        if shared: self.b.weight.data = self.a.weight.data.t()
    def out(self, x): return self.b(torch.relu(self.a(x)))


class Buffers(Base):
    "Buffers are parts of a weight, of each other, and of a larger tensor."
    def __init__(self, shared=True):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.register_buffer("rows", self.a.weight.data[:2] if shared else torch.zeros(2, 4))
        self.register_buffer("whole", torch.arange(12.0))
        self.register_buffer("part", self.whole[2:5] if shared else torch.zeros(3))
        self.register_buffer("even", torch.arange(12.0)[::2] if shared else torch.zeros(6))
    def out(self, x): return self.a(x) + self.rows.sum() + self.part.sum() + self.even.sum()


class Tied(Base):
    "Tied weights, as ever under one name; and an LSTM, flattened on a GPU."
    def __init__(self, shared=True):
        super().__init__()
        self.lstm, self.a, self.b = nn.LSTM(4, 4, 2, batch_first=True), nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight
    def out(self, x): return self.b(torch.relu(self.a(self.lstm(x)[0])))


CASES = [Flat, Part, Transposed, Buffers, Tied]


def rows(): return [{"x": torch.randn(3, 4, generator=torch.Generator().manual_seed(i)), "labels": torch.tensor([0.0])} for i in range(16)]


def make(model, folder, **given):
    torch.manual_seed(0)
    settings = dict(per_device_train_batch_size=4, max_steps=6, learning_rate=0.05, use_cpu=True, disable_tqdm=True, report_to="none",
                    output_dir=str(folder), save_strategy="no")
    return Learner(model, train_dataset=rows(), eval_dataset=rows(), **settings | given)


def values(model): return {k: v.detach().cpu().clone() for k, v in model.state_dict().items()}
def equal(a, b): return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def check_saved_model(kind, folder, **given):
    learn = make(kind(), folder, **given)
    learn.step(3)
    learn.save_model(folder / "model")
    is_shared = bool(overlapping_tensors(learn.model)) or not overlapping_tensors(kind())   # torch separates views when it moves them
    assert not list((folder / "model").glob("*.bin"))
    weights = load_file(folder / "model" / "model.safetensors")
    for shared in (True, False) if is_shared else (False,):
        other = kind(shared)
        missing = other.load_state_dict(weights, strict=False).missing_keys
        assert set(missing) <= ({"b.weight", "a.weight"} if kind is Tied else set()) and len(missing) < 2
        assert equal(values(other), values(learn.model))
    learn.step(3)


@pytest.mark.parametrize("kind", CASES)
def test_a_saved_model(kind, tmp_path): check_saved_model(kind, tmp_path)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*shared their memory")
@pytest.mark.parametrize("kind", CASES)
def test_a_saved_model_of_a_gpu(kind, tmp_path): check_saved_model(kind, tmp_path, use_cpu=False)


def test_tensors_that_overlap():
    assert overlapping_tensors(Part()) == [("a.weight", "b.weight")] and overlapping_tensors(Transposed()) == [("a.weight", "b.weight")]
    assert overlapping_tensors(Buffers()) == [("a.weight", "rows"), ("whole", "part")]
    assert not any(map(overlapping_tensors, (Flat(), Tied(), Part(False), nn.LSTM(4, 4, 2))))


@pytest.mark.parametrize("kind", CASES)
def test_a_move_that_separates_views_is_reported(kind, monkeypatch):
    """As that to a GPU does; here, copies take its place, since there is no other device. Of one object used twice, there is only
    one copy."""
    model = kind()
    monkeypatch.setattr(kind, "to", lambda self, device: self._apply(torch.Tensor.clone))
    if overlapping_tensors(model):
        with pytest.warns(UserWarning, match=".* and .* shared their memory, and on cpu each has its own"): move_model(model, torch.device("cpu"))
    else:
        with warnings.catch_warnings(action="error"): move_model(model, torch.device("cpu"))
    monkeypatch.undo()
    with warnings.catch_warnings(action="error"): move_model(kind(), torch.device("cpu"))


@pytest.mark.parametrize("save_format", ["safetensors", "trainer"])
@pytest.mark.parametrize("kind", CASES)
def test_a_checkpoint_goes_on_as_the_run(kind, save_format, tmp_path):
    learn = make(kind(), tmp_path, save_format=save_format)
    learn.step(3)
    path = learn.save_checkpoint()
    learn.step(3)
    learn.free()
    again = make(kind(), tmp_path, save_format=save_format)
    again.load_checkpoint(path)
    again.step(3)
    assert equal(values(again.model), values(learn.model))


@pytest.mark.parametrize("more", [{}, {"save_only_model": True}])
@pytest.mark.parametrize("kind", CASES)
def test_the_best_model_is_loaded(kind, more, tmp_path):
    found = {}
    class Keeps(TrainerCallback):
        def on_evaluate(self, args, state, control, model=None, **kwargs): found[state.global_step] = values(model)
    # the largest loss is the best one: that of an early step
    learn = make(kind(), tmp_path, eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=1, load_best_model_at_end=True,
                 metric_for_best_model="eval_loss", greater_is_better=True, callbacks=[Keeps], **more)
    learn.train()
    assert learn.state.best_global_step < 6 and equal(values(learn.model), found[learn.state.best_global_step])


def test_a_model_of_transformers_is_read_by_from_pretrained(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=20)
    model = transformers.BertForMaskedLM(config)
    flat, start = torch.cat([p.detach().flatten() for p in model.parameters()]), 0
    for p in model.parameters():
        p.data = flat[start:start + p.numel()].view_as(p)
        start += p.numel()
    torch.manual_seed(0)
    data = [{"input_ids": torch.arange(5), "labels": torch.arange(5)}] * 8
    learn = Learner(model, train_dataset=data, per_device_train_batch_size=4, max_steps=2, use_cpu=True, disable_tqdm=True, report_to="none",
                    output_dir=str(tmp_path), save_strategy="no")
    learn.train()
    learn.save_model(tmp_path / "model")
    read = transformers.BertForMaskedLM.from_pretrained(tmp_path / "model")
    assert equal(values(read), values(learn.model))
    assert read.cls.predictions.decoder.weight is read.bert.embeddings.word_embeddings.weight
    assert "cls.predictions.decoder.weight" not in load_file(tmp_path / "model" / "model.safetensors")

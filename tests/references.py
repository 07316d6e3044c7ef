"What several tests share: LANGUAGE, Rows, accuracy, bert, both, for_classes, for_language, gpt2, llama, make, net, one_thread, pad, points, relative, rows_of, sentences, timeless, vector."
import copy, inspect
import numpy as np
import pytest
import torch
from torch import nn
from trainer_nb import Learner


transformers = pytest.importorskip("transformers")

@pytest.fixture(autouse=True, scope="module")
def one_thread():
    "One thread: sums are then taken in the same order."
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

class Net(nn.Module):
    "A perceptron with a LayerNorm; returns a loss when it is given labels."
    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, x=None, labels=None):
        logits = self.outer(torch.tanh(self.norm(self.inner(x))))
        if labels is None: return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

class Rows(torch.utils.data.Dataset):
    "A map-style data set over a list."
    def __init__(self, rows): self.rows = rows
    def __len__(self): return len(self.rows)
    def __getitem__(self, i): return self.rows[i]

def points(n, seed=0):
    "Points of three classes, one in five of them mislabelled."
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6)).astype(np.float32)
    labels = np.where(rng.random(n) < 0.2, rng.integers(3, size=n), x[:, :3].argmax(1))
    return Rows([{"x": torch.tensor(a), "labels": int(b)} for a, b in zip(x, labels)])

def sentences(n, low=4, high=9, seed=0):
    "Token lists of different lengths, with a class each."
    rng = np.random.default_rng(seed)
    return Rows([{"input_ids": rng.integers(1, 40, size=rng.integers(low, high)).tolist(), "label": int(rng.integers(3))} for _ in range(n)])

def pad(rows, key="input_ids", fill=0):
    "The rows' token lists as one tensor, padded on the right."
    return nn.utils.rnn.pad_sequence([torch.tensor(row[key]) for row in rows], batch_first=True, padding_value=fill)

def for_classes(rows):
    "A batch for BERT: ids, mask, one class per row."
    ids = pad(rows)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor([row["label"] for row in rows])}

def for_language(rows):
    "A batch for GPT-2: the labels are the ids, -100 where padded."
    ids = pad(rows)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": pad(rows, fill=-100)}

def net():
    torch.manual_seed(0)
    return Net()

def bert():
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))

def gpt2():
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=40, n_positions=16, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=0))

def llama():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=16))

def accuracy(pred):
    "Share of right classes, and how many were asked."
    predictions = pred.predictions if pred.predictions.ndim == 1 else pred.predictions.argmax(-1)
    return {"accuracy": float((predictions == pred.label_ids).mean()), "seen": len(pred.label_ids)}

CONSTRUCTOR = set(inspect.signature(transformers.Trainer.__init__).parameters)

@pytest.fixture
def make(tmp_path):
    "Makers of the two: `make.theirs(model, data, **settings)` and `make.ours(...)`, each on a copy of the model."
    class Make:
        def settings(self, given):
            "The settings of a test, on top of those that all tests have."
            return dict(output_dir=str(tmp_path), use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True,
                        dataloader_pin_memory=False, learning_rate=1e-2, logging_steps=10) | given

        def theirs(self, model, data, base=transformers.Trainer, **given):
            parts = {k: given.pop(k) for k in list(given) if k in CONSTRUCTOR}
            trainer = base(copy.deepcopy(model), transformers.TrainingArguments(**self.settings(given)), train_dataset=data, **parts)
            trainer.remove_callback(transformers.PrinterCallback)
            return trainer

        def ours(self, model, data, base=Learner, **given):
            return base(copy.deepcopy(model), train_dataset=data, **self.settings(given))
    return Make()

@pytest.fixture
def both(make):
    "Train both to the end with the same arguments, compare what they did, and return them."
    def run(model, data, **given):
        theirs = make.theirs(model, data, **given)
        theirs_out = theirs.train()
        ours = make.ours(model, data, **given)
        ours_out = ours.train()
        assert moved(theirs, model), "the reference did not train: this test would compare nothing"
        same_run(theirs, theirs_out, ours, ours_out)
        return theirs, ours
    return run

def vector(model):
    "All weights as one vector, in double precision."
    return torch.cat([p.detach().double().flatten() for _, p in sorted(model.named_parameters())])

def relative(a, b):
    "The norm of a difference, as a part of the norm."
    return ((a - b).norm() / b.norm()).item()

def moved(one, model): return relative(vector(one.model), vector(model)) > 1e-3

def same_run(theirs, theirs_out, ours, ours_out):
    "The weights, the logs and what `train` returns."
    same_logs(theirs, ours)
    assert relative(vector(ours.model), vector(theirs.model)) < 1e-6
    assert ours_out.global_step == theirs_out.global_step == ours.state.global_step
    assert ours_out.training_loss == pytest.approx(theirs_out.training_loss, rel=1e-5)
    for name in ("epoch", "max_steps", "num_train_epochs"):
        assert getattr(ours.state, name) == pytest.approx(getattr(theirs.state, name), rel=1e-9), name

EXACT = {"step": 0, "epoch": 1e-9, "learning_rate": 1e-9, "loss": 1e-5, "grad_norm": 1e-4, "train_loss": 1e-5}

def rows_of(one):
    "The log without what depends on the clock."
    clock = ("runtime", "per_second", "total_flos", "preparation_time")
    return [{k: v for k, v in row.items() if not k.endswith(clock)} for row in one.state.log_history]

def same_logs(theirs, ours):
    "The same rows, the same names in each, the same numbers."
    a, b = rows_of(theirs), rows_of(ours)
    assert [sorted(row) for row in b] == [sorted(row) for row in a]
    for want, got in zip(a, b):
        for name, value in want.items():
            assert got[name] == pytest.approx(value, rel=EXACT.get(name, 1e-5), abs=1e-12), f"{name} at step {want['step']}"

LANGUAGE = dict(data_collator=for_language, per_device_train_batch_size=4)

def timeless(metrics): return {k: v for k, v in metrics.items() if not k.endswith(("runtime", "per_second", "preparation_time"))}

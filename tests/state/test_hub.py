"Pushing to the Hub and resuming from there, against a small server of its interface; the Trainer pushes to the same server."
import os, signal, threading, time, warnings
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")
from huggingface_hub import constants
from hub_server import TOKEN, HubServer
from trainer_nb import Learner, TrainerCallback, TrainingArguments, differences
from trainer_nb.state.hub import PushFailed

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.timeout(120)]


@pytest.fixture
def hub(monkeypatch, tmp_path):
    server = HubServer()
    monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path/"cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path/"token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(transformers.utils.hub, "_hf_api", None)
    yield server
    server.close()


def model():
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, max_position_embeddings=8))


def rows(n=16):
    g = torch.Generator().manual_seed(1)
    return [{"input_ids": torch.randint(0, 20, (5,), generator=g), "labels": i % 2} for i in range(n)]


SETTINGS = dict(use_cpu=True, disable_tqdm=True, report_to="none", max_steps=6, save_steps=2, per_device_train_batch_size=4, learning_rate=1e-2, logging_steps=2)


def make(folder, callbacks=None, **changes):
    return Learner(model(), train_dataset=rows(), eval_dataset=rows(8), callbacks=callbacks, output_dir=str(folder), **SETTINGS | {"push_to_hub": True} | changes)


def theirs(folder, callbacks=None, **changes):
    args = transformers.TrainingArguments(output_dir=str(folder), **SETTINGS | {"push_to_hub": True} | changes)
    return transformers.Trainer(model(), args, train_dataset=rows(), eval_dataset=rows(8), callbacks=callbacks)


def contents(folder):
    folder = Path(folder)
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


class Patient(TrainerCallback, transformers.TrainerCallback):
    "Waits until a checkpoint is pushed, so that none is skipped; the same for both sides."
    def __init__(self, of): self.of = of
    def on_step_end(self, args, state, control, **kwargs):
        if self.of and self.of[0].push_in_progress is not None: self.of[0].push_in_progress.wait_until_done()


def patient(make, *args, **kwargs):
    of = []
    learn = make(*args, callbacks=[Patient(of)], **kwargs)
    of.append(learn)
    return learn


def test_scratch(hub, tmp_path):
    for s in ("every_save", "checkpoint", "all_checkpoints", "end"):
        t = patient(theirs, tmp_path/f"theirs-{s}", hub_strategy=s)
        t.train()
        print(s, [c[2:] for c in hub.commits]); hub.commits.clear()
        learn = patient(make, tmp_path/f"ours-{s}", hub_strategy=s)
        learn.train()
        print(s, [c[2:] for c in hub.commits]); hub.commits.clear()
        for l in (t, learn):
            print(l.push_to_hub(), [c[2:] for c in hub.commits]); hub.commits.clear()
            l.save_model()
            print([c[2:] for c in hub.commits]); hub.commits.clear()
        print(sorted(p.name for p in (tmp_path/f"ours-{s}").iterdir()))
    print(hub.files("me/ours-end")["README.md"].decode())
    assert 0

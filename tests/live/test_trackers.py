"Trackers that transformers' callbacks report to, models as artifacts of W&B, texts in trackers. The libraries are stand-ins on the path of a process."
import importlib.util, json, os, subprocess, sys
from pathlib import Path

import pytest

from trainer_nb import Learner, ReportCallback, TrainingArguments
from trainer_nb.live.reporting import WandBModelCallback, make_report_callbacks
from trainer_nb.args.validation import installed_trackers
from trainer_nb.display.tables import markdown_table
from trainer_nb.live.trackers import Tracker, resolve_trackers
from callback_runs import net, points

transformers = pytest.importorskip("transformers")
ROOT = Path(__file__).parents[2]

# keeps what is called, as lines of JSON
FAKE_WANDB = '''
import json, os, io
def _told(kind, **data):
    with open(os.environ["TOLD"], "a") as f: f.write(json.dumps({"kind": kind, **data}, default=str) + "\\n")
class _Config(dict):
    def update(self, values, allow_val_change=False): dict.update(self, values)
class Artifact:
    def __init__(self, name, type, metadata): self.name, self.type, self.metadata, self.files, self.dirs = name, type, metadata, [], []
    def new_file(self, name, mode="w"):
        self.files.append(name)
        return io.BytesIO()
    def add_dir(self, path): self.dirs.append(sorted(os.listdir(path)))
class Table:
    def __init__(self, columns, data): self.columns, self.data = columns, data
class _Run:
    id, name, url = "id7", "name7", "url"
    def __init__(self): self.summary, self.config = {}, _Config()
    def log(self, values, **given):
        self.summary.update({k: v for k, v in values.items() if isinstance(v, (int, float))})
        for k, v in values.items():
            if isinstance(v, Table): _told("table", name=k, columns=v.columns, data=v.data)
    def define_metric(self, *args, **given): pass
    def _label(self, **given): pass
    def finish(self): _told("finish")
    def log_artifact(self, artifact, aliases):
        _told("artifact", name=artifact.name, type=artifact.type, metadata=artifact.metadata, files=sorted(artifact.files), dirs=artifact.dirs, aliases=aliases)
run = None
def init(**given):
    global run, config, summary
    run = _Run(); config = run.config; summary = run.summary
    return run
def log(values): run.log(values)
def log_artifact(artifact, aliases): run.log_artifact(artifact, aliases)
def define_metric(*args, **given): pass
def termwarn(*args, **given): pass
def watch(*args, **given): pass
def finish(): run.finish()
config, summary = _Config(), {}
__version__ = "0.20.0"
'''

# all runs of all stand-ins in one process: it takes long to import what they need
SCRIPT = '''
import json, os, sys, torch, transformers, trainer_nb
import wandb
from transformers import BertConfig, BertForSequenceClassification
data = [{"input_ids": [i % 20, 3, 4], "labels": i % 2} for i in range(16)]
for name, side, variables, extra in json.loads(sys.argv[1]):
    library = transformers if side == "theirs" else trainer_nb
    os.environ["TOLD"] = f"{name}-{side}.jsonl"
    os.environ.pop("WANDB_LOG_MODEL", None)
    os.environ |= variables
    wandb.run = None
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
                                                     max_position_embeddings=8, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    args = library.TrainingArguments(f"out-{name}-{side}", use_cpu=True, disable_tqdm=True, max_steps=4, per_device_train_batch_size=4, logging_steps=1, save_steps=2, **extra)
    trainer = library.Trainer(model, args, train_dataset=data, eval_dataset=data)
    trainer.train()
    if name == "texts":
        report = next(c for c in trainer.callback_handler.callbacks if isinstance(c, trainer_nb.ReportCallback))
        report.report(trainer.args, trainer.state, trainer, texts=[{"prompt": "a", "generated": "b"}])
'''


def write(folder, files: dict):
    for name, text in files.items():
        path = folder/name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def run_script(tmp_path, files: dict, *argv, script=SCRIPT, **environment):
    "Run a script with stand-ins for libraries on its path."
    write(tmp_path/"fake", files)
    (tmp_path/"script.py").write_text(script, encoding="utf-8")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path/"fake"), str(ROOT)]), "OMP_NUM_THREADS": "1"} | environment
    done = subprocess.run([sys.executable, "-W", "ignore", str(tmp_path/"script.py"), *map(str, argv)], env=env, capture_output=True, text=True, cwd=tmp_path, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]


WANDB = {"wandb/__init__.py": FAKE_WANDB, "wandb/sdk/__init__.py": "", "wandb/sdk/lib/__init__.py": "", "wandb/sdk/lib/config_util.py": "class ConfigError(Exception): pass"}


AZURE = {"azureml/__init__.py": "", "azureml/core/__init__.py": "", "azureml/core/run.py": '''
import json, os
class Run:
    @classmethod
    def get_context(cls): return cls()
    def log(self, name, value, description=None):
        with open(os.environ["TOLD"], "a") as f: f.write(json.dumps({"name": name, "value": value}) + "\\n")
'''}
FLYTE = {"flytekitplugins/__init__.py": "", "flytekit/__init__.py": '''
import json, os
class Checkpoint:
    def save(self, path):
        with open(os.environ["TOLD"], "a") as f: f.write(json.dumps({"folder": os.path.basename(path), "files": sorted(os.listdir(path))}) + "\\n")
class Context: checkpoint = Checkpoint()
def current_context(): return Context()
'''}


BEST = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 2}
WANDB_CASES = {"checkpoint": ("checkpoint", {}), "end": ("end", {"run_name": "mine"}), "best": ("checkpoint", BEST)}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    "What the runs called on the stand-ins, by name and side."
    folder = tmp_path_factory.mktemp("stand_ins")
    cases = [(name, side, {"WANDB_LOG_MODEL": value}, extra | {"report_to": "wandb"}) for name, (value, extra) in WANDB_CASES.items() for side in ("theirs", "ours")]
    cases += [("azure", side, {}, {"report_to": ["azure_ml"]}) for side in ("theirs", "ours")]
    cases += [("flyte", "ours", {}, {"report_to": "flyte"}), ("texts", "ours", {}, {"report_to": "wandb"})]
    run_script(folder, WANDB | AZURE | FLYTE, json.dumps(cases))
    return lambda name, side: [json.loads(line) for line in (folder/f"{name}-{side}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", WANDB_CASES)
def test_models_are_uploaded_as_by_the_trainer(told, name):
    # theirs begin with an artifact without weights
    theirs, ours = [[o for o in told(name, side) if o["kind"] == "artifact" and o["aliases"] != ["base_model"]] for side in ("theirs", "ours")]
    for a, b in zip(theirs, ours):
        assert (a["name"], a["type"], a["aliases"]) == (b["name"], b["type"], b["aliases"])
        def timeless(o): return {k: v for k, v in o["metadata"].items() if "per_second" not in k and "runtime" not in k and k != "model_config" and "_flo" not in k}
        assert a["metadata"].keys() == b["metadata"].keys() and timeless(a) == pytest.approx(timeless(b), rel=1e-4)
        assert {"model.safetensors", "config.json"} <= {*b["files"], *(b["dirs"] or [[]])[0]}
        assert {*a["files"]} - {"training_args.bin"} <= {*b["files"]}
    assert len(theirs) == len(ours) == (1 if name == "end" else 3)


def test_without_the_variable_nothing_is_uploaded(told):
    assert not [o for o in told("texts", "ours") if o["kind"] == "artifact"]


def test_the_variable_decides(tmp_path, monkeypatch):
    write(tmp_path, {"wandb/__init__.py": FAKE_WANDB})
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("TOLD", str(tmp_path/"told"))
    def kinds():
        made = make_report_callbacks(TrainingArguments(str(tmp_path), report_to=["wandb"]), [])
        return [c.checkpoints if isinstance(c, WandBModelCallback) else type(c) for c in made]
    assert kinds() == [ReportCallback]
    monkeypatch.setenv("WANDB_LOG_MODEL", "end")
    assert kinds() == [ReportCallback, False]
    monkeypatch.setenv("WANDB_LOG_MODEL", "checkpoint")
    assert kinds() == [ReportCallback, True]
    monkeypatch.setenv("WANDB_LOG_MODEL", "true")
    with pytest.warns(UserWarning, match="'end' or 'checkpoint'"): assert kinds() == [ReportCallback]


# ---- transformers' own callbacks

def test_azure_ml_gets_the_logs_that_it_gets_from_the_trainer(told):
    theirs, ours = told("azure", "theirs"), told("azure", "ours")
    kept = lambda rows: [(o["name"], o["value"]) for o in rows if "per_second" not in o["name"] and "runtime" not in o["name"] and o["name"] != "total_flos"]
    assert [name for name, _ in kept(ours)] == [name for name, _ in kept(theirs)]
    assert [v for _, v in kept(ours)] == pytest.approx([v for _, v in kept(theirs)], rel=1e-4)


def test_flyte_gets_the_checkpoints(told):
    ours = told("flyte", "ours")
    assert [o["folder"] for o in ours] == ["checkpoint-2", "checkpoint-4"] and all("model.safetensors" in o["files"] for o in ours)


@pytest.mark.parametrize("name, package", [("neptune", "neptune"), ("azure_ml", "azureml-sdk"), ("dagshub", "dagshub mlflow"), ("flyte", "flytekit flytekitplugins-deck-standard"), ("comet_ml", "comet-ml"),
                                           ("clearml", "clearml"), ("dvclive", "dvclive"), ("swanlab", "swanlab"), ("codecarbon", "codecarbon")])
def test_a_missing_package_is_named(name, package):
    if importlib.util.find_spec(package.split(" ")[0].replace("-sdk", "").replace("-", "_")): pytest.skip(f"{package} is installed")
    with pytest.raises(ImportError, match=f"`pip install {package}`"):
        Learner(net(), train_dataset=points(8), use_cpu=True, report_to=name)


def test_every_name_that_transformers_knows_is_accepted(monkeypatch):
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
    for name in INTEGRATION_TO_CALLBACK: TrainingArguments("out", report_to=name)
    with pytest.raises(ValueError, match="Did you mean 'neptune'"): TrainingArguments(report_to="neptun")
    assert "kubeflow" not in installed_trackers()
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", "https://example.org")
    assert "kubeflow" in installed_trackers() and resolve_trackers("kubeflow") == ["kubeflow"]
    made, = make_report_callbacks(TrainingArguments(report_to="kubeflow"), [])
    assert type(made).__name__ == "KubeflowCallback"
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, real=importlib.util.find_spec: None if name == "transformers" else real(name))
    with pytest.raises(ImportError, match="`pip install transformers`"): resolve_trackers("kubeflow")


# ---- texts

ROWS = [{"prompt": "a | b", "generated": "c\nd", "reference": None}]


class Kept(Tracker):
    name = "kept"
    def __init__(self): self.texts = []
    def log_texts(self, rows, step): self.texts.append((step, rows))


def report(callback, learn): callback.report(learn.args, learn.state, learn, texts=ROWS)


def test_texts_reach_trackers(tmp_path):
    learn = Learner(net(), train_dataset=points(8), use_cpu=True, disable_tqdm=True)
    learn.step(2)
    kept = Kept()
    report(ReportCallback(kept), learn)
    assert kept.texts == [(2, ROWS)]
    assert markdown_table(ROWS).splitlines() == ["| prompt | generated | reference |", "| --- | --- | --- |", "| a \\| b | c<br>d |  |"]


@pytest.mark.skipif(not importlib.util.find_spec("tensorboard"), reason="tensorboard is not installed")
def test_texts_are_in_tensorboards_files(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    learn = Learner(net(), train_dataset=points(8), use_cpu=True, disable_tqdm=True, output_dir=str(tmp_path), report_to="tensorboard", save_strategy="no")
    learn.step(2)
    report(next(c for c in learn.callback_handler.callbacks if isinstance(c, ReportCallback)), learn)
    folder, = {p.parent for p in tmp_path.rglob("events.out*")}
    events = EventAccumulator(str(folder)).Reload()
    event, = events.Tensors("eval/texts/text_summary")
    assert event.step == 2 and b"c<br>d" in event.tensor_proto.string_val[0]


def test_texts_are_a_table_at_wandb(told):
    assert {"kind": "table", "name": "eval/texts", "columns": ["prompt", "generated"], "data": [["a", "b"]]} in told("texts", "ours")


@pytest.mark.skipif(not importlib.util.find_spec("trackio"), reason="trackio is not installed")
def test_texts_are_text_at_trackio(tmp_path, monkeypatch):
    script = '''
import os, torch, warnings
warnings.simplefilter("error", UserWarning)
from trainer_nb import Learner, ReportCallback
learn = Learner(torch.nn.Linear(2, 1), report_to="trackio", use_cpu=True, train_dataset=torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 1)),
                loss_func=torch.nn.functional.mse_loss, disable_tqdm=True, project="p", run_name="mine", max_steps=2)
report = next(c for c in learn.callback_handler.callbacks if isinstance(c, ReportCallback))
learn.step(1)
report.report(learn.args, learn.state, learn, texts=[{"prompt": "a", "generated": "bcd"}])
learn.train()
import sqlite3, glob
path, = glob.glob(os.environ["TRACKIO_DIR"] + "/**/p.db", recursive=True)
rows = "".join(map(str, sqlite3.connect(path).execute("select * from metrics").fetchall()))
assert "bcd" in rows, rows
'''
    run_script(tmp_path, {}, script=script, TRACKIO_DIR=str(tmp_path/"trackio"))

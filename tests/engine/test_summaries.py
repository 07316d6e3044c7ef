"""What scripts print and write after training: log_metrics, save_metrics, save_state; and the metrics that are ready made."""
import json

import numpy as np
import pytest
import torch

from toys import Augmented, accuracy, hard_learner
from trainer_nb import EvalPrediction, Learner, TrainerState
from trainer_nb import metrics as ready

METRICS = {"eval_loss": 0.123456, "eval_runtime": 3661.2591, "eval_samples": 37, "total_flos": float(5 << 30), "eval_mem_cpu_alloc_delta": 7 << 20, "epoch": 3.0, "eval_name": "x"}


@pytest.fixture
def two(tmp_path):
    "The Trainer and the Learner, each with a folder."
    transformers = pytest.importorskip("transformers")
    theirs = transformers.Trainer(torch.nn.Linear(2, 2), transformers.TrainingArguments(str(tmp_path / "theirs"), use_cpu=True, report_to="none"))
    (tmp_path / "theirs").mkdir(exist_ok=True)
    return theirs, Learner(torch.nn.Linear(2, 2), output_dir=str(tmp_path / "ours"), use_cpu=True)


def test_the_same_lines_and_files(two, capsys):
    said = []
    for one in two:
        one.log_metrics("eval", METRICS)
        said.append(capsys.readouterr().out)
        one.save_metrics("train", {"train_loss": 1.5, "epoch": 1.0})
        one.save_metrics("eval", METRICS)
        one.save_metrics("test", {"test_loss": 2.0}, combined=False)
        one.save_state()
    assert said[0] == said[1] and "1:01:01.25" in said[0]
    from pathlib import Path
    files = [{p.name: p.read_text() for p in Path(one.args.output_dir).iterdir()} for one in two]
    assert set(files[0]) == set(files[1]) == {"train_results.json", "eval_results.json", "test_results.json", "all_results.json", "trainer_state.json"}
    for name in set(files[0]) - {"trainer_state.json"}: assert files[0][name] == files[1][name], name
    assert set(json.loads(files[0]["trainer_state.json"])) == set(json.loads(files[1]["trainer_state.json"]))
    assert two[1].metrics_format({"a": 0.55556}) == {"a": 0.5556}


def test_after_a_run(tmp_path, capsys, monkeypatch):
    "In the order of the example scripts; the state can be read again, and the folder is no checkpoint by it."
    learn = hard_learner(output_dir=str(tmp_path), eval_dataset=Augmented(10), compute_metrics=accuracy, save_steps=3)
    out = learn.train()
    for split, metrics in (("train", out.metrics), ("eval", learn.evaluate()), ("test", learn.predict(Augmented(5)).metrics)):
        learn.log_metrics(split, metrics)
        learn.save_metrics(split, metrics)
    learn.save_state()
    assert "***** train metrics *****" in capsys.readouterr().out
    assert {"train_loss", "eval_accuracy", "test_loss"} <= set(json.loads((tmp_path / "all_results.json").read_text()))
    assert TrainerState.load_from_json(tmp_path / "trainer_state.json").global_step == 6
    again = hard_learner(output_dir=str(tmp_path))
    with pytest.raises(ValueError, match="is no checkpoint but a folder of them.*checkpoint-3"): again.load_checkpoint(tmp_path)
    again.load_checkpoint()
    assert again.state.global_step == 6
    monkeypatch.chdir(tmp_path)
    for verb in (lambda l: l.save_metrics("eval", {}), lambda l: l.save_state()): verb(hard_learner())
    assert {p.name for p in (tmp_path / "trainer_output").iterdir()} == {"eval_results.json", "all_results.json", "trainer_state.json"}


# --- ready-made metrics ------------------------------------------------------------------------------------------------

def test_classes_as_scikit_learn_counts_them():
    "Also where a class is never called, never there, or nothing is right; and from tensors, tuples, classes."
    sk = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    for labels, k in ((rng.integers(4, size=50), 4), (rng.integers(2, size=3), 5), (np.array([0, 0, 7]), 8), (np.array([3]), 4)):
        logits = rng.normal(size=(len(labels), k))
        found, predicted = ready.classification(EvalPrediction(logits, labels)), logits.argmax(-1)
        want = {"accuracy": sk.accuracy_score(labels, predicted)} | {n: f(labels, predicted, average="macro", zero_division=0) for n, f in (
            ("precision", sk.precision_score), ("recall", sk.recall_score), ("f1", sk.f1_score))}
        assert found == pytest.approx(want)
        for other in ((torch.tensor(logits), torch.tensor(labels)), ((logits, logits * 2), labels), (predicted, labels)):
            assert ready.classification(EvalPrediction(*other)) == found
    padded = np.where(rng.random(50) < 0.3, -100, rng.integers(4, size=50)).reshape(10, 5)
    assert ready.tokens(EvalPrediction(rng.normal(size=(10, 5, 4)), padded))["accuracy"] <= 1
    assert np.isnan(ready.tokens(EvalPrediction(rng.normal(size=(1, 2, 4)), np.full((1, 2), -100)))["f1"])
    for wrong, words in (((logits, np.array([0.5])), "regression is for numbers"), ((logits[None, None], labels), "these shapes must be equal")):
        with pytest.raises(ValueError, match=words): ready.classification(EvalPrediction(*wrong))


def test_numbers_as_scikit_learn_measures_them():
    sk = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    for shape in ((20,), (20, 3)):
        labels, predicted = rng.normal(size=shape), rng.normal(size=shape)
        want = {"mse": sk.mean_squared_error(labels, predicted), "mae": sk.mean_absolute_error(labels, predicted), "r2": sk.r2_score(labels, predicted)}
        assert ready.regression(EvalPrediction(predicted, labels)) == pytest.approx(want)
    for predicted in (np.ones(4), np.zeros(4)): assert ready.regression(EvalPrediction(predicted[:, None], np.ones(4)))["r2"] == sk.r2_score(np.ones(4), predicted)
    with pytest.raises(ValueError, match="no number for each label"): ready.regression(EvalPrediction(np.ones((4, 2)), np.ones(4)))


def test_in_a_learner():
    "Given by name, and by the package's own name."
    import trainer_nb
    found = hard_learner(eval_dataset=Augmented(10), compute_metrics=trainer_nb.engine.metrics.classification).evaluate()
    assert {"eval_accuracy", "eval_precision", "eval_recall", "eval_f1"} <= set(found)

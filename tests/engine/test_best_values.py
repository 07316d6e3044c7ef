"""The best value of a run is compared with later ones: if these are of another evaluation set or another function, a warning says so;
with another metric, the comparison begins anew."""
import functools
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from trainer_nb import Learner


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)
    def forward(self, x, labels=None):
        logits = self.layer(x)
        return {"loss": (logits - 1).square().mean(), "logits": logits}


class Files(torch.utils.data.Dataset):
    "Data without a fingerprint; the name of the folder tells sets apart."
    def __init__(self, folder): self.folder, self.reads = folder, 0
    def __len__(self): return 8
    def __getitem__(self, i):
        self.reads += 1
        return {"x": torch.tensor([i / 8]), "labels": 0}


def rows(n=8, scale=1.0): return [{"x": torch.tensor([i * scale / 8]), "labels": 0} for i in range(n)]
def mean(p): return {"mean": float(p.predictions.mean()), "c": 0.0}
def percent(p): return {"mean": float(p.predictions.mean()) * 100, "c": 0.0}
def scaled(p, by=1): return {"mean": float(p.predictions.mean()) * by, "c": 0.0}

class Mean:
    def __call__(self, p): return mean(p)


def make(folder, **given):
    torch.manual_seed(0)
    settings = dict(eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=1, load_best_model_at_end=True, max_steps=12,
                    metric_for_best_model="mean", greater_is_better=True, per_device_train_batch_size=2, learning_rate=0.1, use_cpu=True,
                    disable_tqdm=True, report_to="none", output_dir=str(folder))
    return Learner(Net(), **dict(train_dataset=rows(16), eval_dataset=rows(), compute_metrics=mean) | settings | given)


def said(function):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    return [str(w.message) for w in caught if "best value" in str(w.message)]


CHANGES = {
    "another function": ("compute_metrics", percent, "compute_metrics"),
    "another argument": ("compute_metrics", functools.partial(scaled, by=2), "compute_metrics"),
    "more samples": ("eval_dataset", rows(12), "eval_dataset (8 samples)"),
    "other samples": ("eval_dataset", rows(8, 2.0), "eval_dataset"),
    "another set of files": ("eval_dataset", Files("b"), "eval_dataset"),
    "a loader": ("eval_dataset", DataLoader(rows(12), batch_size=4), "eval_dataset (8 samples)"),
}

@pytest.mark.parametrize("change", CHANGES)
def test_another_set_or_function_between_steps(change, tmp_path):
    name, value, what = CHANGES[change]
    learn = make(tmp_path)
    learn.step(3)
    best = learn.state.best_metric
    setattr(learn, name, value)
    message, = said(lambda: learn.step(2))
    assert message == (f"The best value so far, mean={best:.4g} of step 3, was computed with another {what}, and the present values are"
                       " compared with it; learn.state.best_metric = None starts the comparison anew.")
    learn.state.best_metric = None
    assert said(lambda: learn.step(2)) == [] and learn.state.best_global_step > 5


@pytest.mark.parametrize("change", CHANGES)
def test_another_set_or_function_at_a_resume(change, tmp_path):
    "As the checkpoint is loaded; once."
    name, value, what = CHANGES[change]
    learn = make(tmp_path)
    learn.step(3)
    learn.free()
    other = make(tmp_path, **{name: value})
    message, = said(lambda: other.load_checkpoint(True))
    assert f"of step 3, was computed with another {what}" in message
    assert said(lambda: other.step(1)) == []


SAME = {
    "a function": lambda: {"compute_metrics": mean}, "an object": lambda: {"compute_metrics": Mean()}, "files": lambda: {"eval_dataset": Files("a")},
    "rows": lambda: {"eval_dataset": rows()}, "a partial function": lambda: {"compute_metrics": functools.partial(scaled, by=2)},
    "several": lambda: {"eval_dataset": {"a": rows(), "b": rows(4)}, "metric_for_best_model": "a_mean"},
}

@pytest.mark.parametrize("case", SAME)
def test_the_same_set_and_function_are_no_change(case, tmp_path):
    learn = make(tmp_path, **SAME[case]())
    assert said(lambda: learn.step(3)) == []
    learn.snapshot("a")
    learn.step(1)
    learn.restore("a")
    assert said(lambda: learn.step(1)) == []
    learn.free()
    other = make(tmp_path, **SAME[case]())
    assert said(lambda: other.load_checkpoint(True)) == [] and said(lambda: other.step(2)) == []


def test_a_set_of_which_the_metric_is_not(tmp_path):
    "Only the set that gives the metric counts."
    learn = make(tmp_path, eval_dataset={"a": rows(), "b": rows(4)}, metric_for_best_model="a_mean")
    learn.step(2)
    learn.eval_dataset = {"a": rows(), "b": rows(6)}
    assert said(lambda: learn.step(1)) == []
    learn.eval_dataset = {"a": rows(12), "b": rows(6)}
    assert len(said(lambda: learn.step(1))) == 1


def by_set(learn, **changes): learn.set(**changes)
def by_assignment(learn, **changes):
    for name, value in changes.items(): setattr(learn.args, name, value)

@pytest.mark.parametrize("how", [by_set, by_assignment, None])
@pytest.mark.parametrize("changes", [{"metric_for_best_model": "c"}, {"greater_is_better": False}])
def test_another_metric_begins_anew(changes, how, tmp_path):
    "Its first value is the best one, however good the one of the former metric was; at a resume, too."
    learn = make(tmp_path)
    learn.step(3)
    if how is not None:
        how(learn, **changes)
    else:
        learn.free()
        learn = make(tmp_path, **changes)
        learn.load_checkpoint(True)
    assert said(lambda: learn.step(1)) == [] and learn.state.best_global_step == 4


def test_the_same_metric_under_its_other_name_goes_on(tmp_path):
    learn = make(tmp_path, metric_for_best_model="eval_mean")
    learn.step(3)
    learn.set(metric_for_best_model="mean")
    assert learn.state.best_global_step == 3

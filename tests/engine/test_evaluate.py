"""Evaluation as transformers' Trainer has it: the same metrics, arrays and shapes for every argument; and what is ours: streaming metrics, no trace."""
import json
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers")
from references import LANGUAGE, Rows, accuracy, gpt2, make, net, points, sentences, timeless   # noqa: F401  (make is a fixture)
from toys import Augmented, finish, hard_learner, unequal
from trainer_nb import Learner, differences
from trainer_nb.engine.evaluate import main_input

pytestmark = pytest.mark.usefixtures("one_thread")


class Sums(nn.Module):
    "Outputs of every kind: a dict, a tuple, several labels, a width that differs from batch to batch."
    main_input_name = "x"
    def __init__(self): super().__init__(); self.layer = nn.Linear(1, 2)
    def forward(self, x, labels=None):
        h = self.layer(x.float().unsqueeze(-1))
        loss = None if labels is None else (h.sum(-1) - labels.float()).square().mean()
        return {"loss": loss, "wide": h, "both": (h.sum(1), {"first": h[:, 0], "ids": x})}


def named_net():
    "The net of the other tests, with the name that the Trainer needs to include inputs."
    model = net()
    model.main_input_name = "x"
    return model


def ragged(n, seed=0):
    rng = np.random.default_rng(seed)
    return Rows([{"x": rng.integers(1, 9, size=rng.integers(2, 7)).tolist()} for _ in range(n)])


def widest(rows):
    x = nn.utils.rnn.pad_sequence([torch.tensor(row["x"]) for row in rows], batch_first=True)
    return {"x": x, "labels": x * 2}


def sums():
    torch.manual_seed(0)
    return Sums()


def same(want, got):
    "Equal in structure, kind, shape and value."
    assert type(want) is type(got), (type(want), type(got))
    if isinstance(want, dict):
        assert want.keys() == got.keys()
        for k in want: same(want[k], got[k])
    elif isinstance(want, (tuple, list)):
        assert len(want) == len(got)
        for a, b in zip(want, got): same(a, b)
    elif isinstance(want, np.ndarray):
        assert want.shape == got.shape and want.dtype == got.dtype
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    else: assert want == got


class Seen:
    "A compute_metrics that keeps what it was given."
    def __init__(self): self.given = []
    def __call__(self, pred, compute_result=None):
        self.given.append([compute_result, pred.predictions, pred.label_ids, pred.inputs, pred.losses, len(list(pred))])
        return {"calls": len(self.given), "eval_own": 1.0, "array": np.float32(2.5)}


SHAPES = {
    "as it is": {}, "by two": dict(eval_accumulation_steps=2), "not joined": dict(eval_do_concat_batches=False),
    "not joined by two": dict(eval_do_concat_batches=False, eval_accumulation_steps=2),
    "all included": dict(include_for_metrics=["inputs", "loss"]), "loss": dict(include_for_metrics=["loss"]),
    "all included, not joined": dict(include_for_metrics=["inputs", "loss"], eval_do_concat_batches=False),
    "boiled down": dict(preprocess_logits_for_metrics=lambda logits, labels: logits[0].argmax(-1)),
    "objects": dict(eval_use_gather_object=True), "even": dict(per_device_eval_batch_size=1), "ignored": {},
}


@pytest.mark.trainer
def test_shapes_and_metrics_are_the_trainers(make):
    "What compute_metrics gets and gives, and what predict returns, whatever the arguments; the last of five batches is smaller."
    for name, settings in SHAPES.items():
        results = []
        for maker in (make.theirs, make.ours):
            seen = Seen()
            one = maker(sums(), ragged(8), **dict(data_collator=widest, per_device_eval_batch_size=4, compute_metrics=seen, remove_unused_columns=False) | settings)
            more = dict(ignore_keys=["both"]) if name == "ignored" else {}
            results.append([timeless(one.evaluate(ragged(18, seed=1), **more)), *one.predict(ragged(6, seed=2), **more), seen.given])
        want, got = results
        want[3], got[3] = timeless(want[3]), timeless(got[3])
        assert got[0].keys() == want[0].keys() and got[0] == pytest.approx(want[0], rel=1e-5), name
        assert got[3].keys() == want[3].keys() and got[3] == pytest.approx(want[3], rel=1e-5), name
        for a, b in zip([want[1], want[2], *want[4]], [got[1], got[2], *got[4]]): same(a, b)


@pytest.mark.trainer
def test_batch_by_batch(make):
    "compute_metrics is called with each batch's tensors; True comes with the last; predict() keeps predictions besides."
    def thinned(given): return [[x.numpy() if isinstance(x, torch.Tensor) else len(x) if isinstance(x, dict) else x for x in call] for call in given]
    results = []
    for maker in (make.theirs, make.ours):
        seen = Seen()
        one = maker(named_net(), points(20), per_device_eval_batch_size=8, compute_metrics=seen, batch_eval_metrics=True, include_for_metrics=["inputs", "loss"])
        results.append([timeless(one.evaluate(points(19, seed=1))), one.predict(points(9, seed=2)), thinned(seen.given)])
    (metrics, out, given), (ours, our_out, our_given) = results
    assert ours == pytest.approx(metrics, rel=1e-5) and ours["eval_calls"] == 3
    assert [call[0] for call in our_given] == [False, False, True, False, True]
    same(given, our_given)
    same(out.predictions, our_out.predictions)
    with pytest.raises(TypeError, match="compute_result"): Learner(net(), batch_eval_metrics=True, compute_metrics=accuracy)
    with pytest.raises(TypeError, match="compute_metrics returned NoneType"):
        Learner(net(), batch_eval_metrics=True, compute_metrics=lambda pred, compute_result: None, eval_dataset=points(9), use_cpu=True).evaluate()


@pytest.mark.trainer
@pytest.mark.parametrize("dtype", ["bf16_full_eval", "fp16_full_eval"])
def test_full_eval(make, dtype):
    "The Trainer's numbers, and the weights are the very same tensors afterwards."
    rows = points(37, seed=1)
    given = dict(per_device_eval_batch_size=8, compute_metrics=lambda p: {"mean": p.predictions.mean()}, eval_dataset=sentences(13, seed=1), **LANGUAGE | dict(preprocess_logits_for_metrics=lambda x, y: x.argmax(-1)))
    theirs, ours = (maker(gpt2(), sentences(20), **given, **{dtype: True}) for maker in (make.theirs, make.ours))
    exact = make.ours(gpt2(), sentences(20), **given).evaluate()["eval_loss"]
    want, got = theirs.evaluate(), ours.evaluate()
    assert timeless(got) == pytest.approx(timeless(want), rel=1e-6) and got["eval_loss"] != exact and got["eval_loss"] == pytest.approx(exact, rel=0.02)
    assert next(theirs.model.parameters()).dtype != torch.float32
    ones = [hard_learner(eval_dataset=Augmented(10), eval_strategy="steps", eval_steps=1, **more) for more in ({}, {dtype: True})]
    held = [p.data_ptr() for p in ones[1].model.parameters()]
    plain, low = map(finish, ones)
    assert [n for n in unequal(plain, low) if isinstance(n, str)] == ["args"] and held == [p.data_ptr() for p in ones[1].model.parameters()]
    assert ones[0].state.log_history[0]["eval_loss"] != ones[1].state.log_history[0]["eval_loss"]
    class Fails(nn.Module):
        def __init__(self): super().__init__(); self.layer, self.norm = nn.Linear(6, 3), nn.BatchNorm1d(3)
        def forward(self, x, labels): raise ArithmeticError(str(self.layer.weight.dtype) + str(self.norm.running_mean.dtype) + str(x.dtype))
    failing = Learner(Fails(), eval_dataset=rows, use_cpu=True, **{dtype: True})
    with pytest.raises(ArithmeticError, match=3 * ("torch.bfloat16" if dtype[0] == "b" else "torch.float16")): failing.evaluate()
    assert {t.dtype for t in failing.model.state_dict().values()} == {torch.float32, torch.int64}
    saving = hard_learner(eval_dataset=Augmented(10), compute_metrics=lambda p: {"low": sum(t.dtype is torch.bfloat16 or t.dtype is torch.float16 for t in saving.model.state_dict().values())}, **{dtype: True})
    assert saving.evaluate()["eval_low"] == 0   # what is saved there is not converted


def test_what_contradicts_itself_is_refused():
    with pytest.raises(ValueError, match="exclude each other"): Learner(net(), bf16_full_eval=True, fp16_full_eval=True)
    with pytest.raises(ValueError, match="'input' is not one of"): Learner(net(), include_for_metrics=["input"])


@pytest.mark.trainer
def test_sets_by_name(make):
    "Of the learner's own sets the name is handed on; others are given as they are."
    results = []
    for maker in (make.theirs, make.ours):
        one, asked = maker(net(), points(20), eval_dataset={"near": points(9), "far": points(10, seed=2)}), []
        loader = one.get_eval_dataloader
        one.get_eval_dataloader = lambda data=None: asked.append(data if isinstance(data, str) else type(data).__name__) or loader(data)
        found = [timeless(one.evaluate()), timeless(one.evaluate("far")), timeless(one.evaluate({"x": points(5)}, metric_key_prefix="p"))]
        results.append([*found, asked, one.num_examples(loader("far"))])
    for want, got in zip(*results): assert got == (pytest.approx(want, rel=1e-6) if isinstance(want, dict) else want)
    with pytest.raises(TypeError, match="number of samples"): one.num_examples(iter([]))
    assert [set(row) >= {"step", "eval_near_loss"} or set(row) >= {"step", "eval_far_loss"} for row in one.history.evaluations()][:2] == [True, True]


@pytest.mark.trainer
def test_losses_that_are_not_finite(make):
    "Left out, as the Trainer does; here it is said."
    rows = points(20, seed=1).rows
    rows[3] = rows[3] | {"x": torch.full((6,), float("inf"))}
    want = make.theirs(net(), points(20), per_device_eval_batch_size=4).evaluate(Rows(rows))["eval_loss"]
    with pytest.warns(UserWarning, match="1 of 5 batches is not finite"):
        assert make.ours(net(), points(20), per_device_eval_batch_size=4).evaluate(Rows(rows))["eval_loss"] == pytest.approx(want, rel=1e-6)


def test_objects_beside_the_loss():
    "What cannot be joined is refused by name, or kept."
    class Odd(nn.Module):
        def __init__(self): super().__init__(); self.layer = nn.Linear(6, 3)
        def forward(self, x, labels): return {"loss": self.layer(x).sum(), "logits": self.layer(x), "thing": {1, len(x)}}
    learn = Learner(Odd(), eval_dataset=points(5), per_device_eval_batch_size=3, use_cpu=True)
    with pytest.raises(TypeError, match="returned a set.*eval_use_gather_object=True"): learn.predict(points(5))
    learn.set(eval_use_gather_object=True)
    assert learn.predict(points(5)).predictions[1] == [{1, 3}, {1, 2}]


class Boxes(nn.Module):
    "A detector: a list with the boxes of each sample, and labels in a list of dicts."
    def __init__(self): super().__init__(); self.layer = nn.Linear(6, 6)
    def forward(self, x, labels):
        found = [row.expand(1 + int(row.sum() > 0), 6) for row in self.layer(x)]
        return {"loss": sum((boxes[:1] - label["box"]).square().mean() for boxes, label in zip(found, labels)), "boxes": found, "pair": [self.layer(x), x]}


@pytest.mark.parametrize("batch", [1, 4, 5])
@pytest.mark.parametrize("given", [{}, dict(eval_use_gather_object=True), dict(eval_do_concat_batches=False)])
def test_lists_with_an_item_for_each_sample(tmp_path, batch, given):
    "They are joined to one list, also where all batches are equal; a list of outputs is joined output by output; nested metrics are plain."
    torch.manual_seed(0)
    rows = [{"x": row["x"], "labels": {"box": torch.full((i % 3 + 1, 6), float(i)), "file": f"{i}.png"}} for i, row in enumerate(points(10).rows)]
    def collated(rows): return {"x": torch.stack([row["x"] for row in rows]), "labels": [row["labels"] for row in rows]}
    def metrics(pred): return {"of": {"a": np.float32(0.5), "b": [np.int64(len(pred.label_ids)), torch.tensor(2.0)]}, "array": np.arange(3)}
    learn = Learner(Boxes(), eval_dataset=rows, data_collator=collated, per_device_eval_batch_size=batch, compute_metrics=metrics, output_dir=str(tmp_path),
                    use_cpu=True, remove_unused_columns=False, label_names=["labels"], disable_tqdm=True, **given)
    found, out = learn.evaluate(), learn.predict(rows)
    boxes, pair = out.predictions if learn.args.eval_do_concat_batches else [sum((part[i] for part in out.predictions), []) for i in (0, 1)]
    labels = out.label_ids if learn.args.eval_do_concat_batches else sum(out.label_ids, [])
    assert type(labels) is list and [label["file"] for label in labels] == [row["labels"]["file"] for row in rows]
    assert all(np.array_equal(label["box"], row["labels"]["box"]) for label, row in zip(labels, rows)) and len(boxes) == 10
    assert type(pair) is list and (len(pair) == 2 and pair[1].shape == (10, 6) or given == dict(eval_do_concat_batches=False))
    learn.save_metrics("eval", found)
    read = json.loads((tmp_path / "eval_results.json").read_text())
    assert read["eval_of"] == {"a": 0.5, "b": [len(out.label_ids), 2.0]} == found["eval_of"] and read["eval_array"] == [0, 1, 2]


def test_a_function_of_lists_is_a_streaming_metric():
    rows = [{"x": row["x"], "labels": {"box": torch.full((1, 6), float(i))}} for i, row in enumerate(points(10).rows)]
    def first(predictions, labels): return torch.stack([label["box"].mean() - 0 * boxes.mean() for boxes, label in zip(predictions[0], labels)]).mean()
    def collated(rows): return {"x": torch.stack([row["x"] for row in rows]), "labels": [row["labels"] for row in rows]}
    class Arrays:
        def update(self, predictions, labels): pass
        def compute(self): return {"each": np.array([1.0, 2.0]), "one": np.array([3.0])}
        def reset(self): pass
    learn = Learner(Boxes(), eval_dataset=rows, data_collator=collated, per_device_eval_batch_size=4, metrics={"mean": first, "of": Arrays()}, use_cpu=True,
                    remove_unused_columns=False, label_names=["labels"], disable_tqdm=True)
    found = learn.evaluate()
    assert found["eval_mean"] == 4.5 and [found[f"eval_of_{name}"] for name in ("each_0", "each_1", "one")] == [1.0, 2.0, 3.0]


def test_inputs_of_other_kinds():
    "Beside the labels: a tensor, a tuple, a dict."
    def of(batch, **given): return main_input(Learner(net(), use_cpu=True, **given), batch)
    a, b = torch.ones(2), torch.zeros(2)
    assert of({"input_ids": a, "labels": b}) is a and of({"x": a, "labels": b}) is a and of((a, b), loss_func=nn.functional.mse_loss) is a
    assert of({"x": a, "z": b, "labels": b}) == {"x": a, "z": b}


def test_nobody_keeps_predictions_that_nobody_asked_for(monkeypatch):
    "Without metrics an evaluation is asked for the loss only."
    asked = []
    class Spied(Learner):
        def evaluation_loop(self, *args, **how):
            asked.append(how["prediction_loss_only"])
            return super().evaluation_loop(*args, **how)
    Spied(net(), eval_dataset=points(9), use_cpu=True).evaluate()
    Spied(net(), eval_dataset=points(9), use_cpu=True, compute_metrics=accuracy).evaluate()
    Spied(net(), eval_dataset=points(9), use_cpu=True, metrics={"a": right}).evaluate()
    assert asked == [True, None, None]


# --- streaming metrics -------------------------------------------------------------------------------------------------

def right(logits, labels): return (logits.argmax(-1) == labels).float().mean()
def each(logits, labels): return (logits.argmax(-1) == labels).float()
def pair(logits, labels): return (logits.argmax(-1) == labels).sum(), len(labels)


class Counts:
    "A metric of one's own; its value depends on the order."
    def __init__(self): self.reset()
    def reset(self): self.order = ""
    def update(self, logits, labels): self.order += "".join(map(str, labels.tolist()))
    def compute(self): return {"n": len(self.order), "hash": sum(i * int(c) for i, c in enumerate(self.order))}


def streams():
    torchmetrics = pytest.importorskip("torchmetrics")
    return {"right": right, "each": each, "pair": pair, "mine": Counts(), "their": torchmetrics.Accuracy(task="multiclass", num_classes=3, average="micro"),
            "classes": torchmetrics.MetricCollection({"recall": torchmetrics.Recall(task="multiclass", num_classes=3, average=None)})}


def test_streaming_metrics():
    "The same values as of all predictions at once; nothing is kept; empty before and after."
    rows, metrics = points(37, seed=1), streams()
    learn = Learner(net(), eval_dataset=rows, per_device_eval_batch_size=8, use_cpu=True, metrics=metrics)
    found = timeless(learn.evaluate())
    want = Learner(net(), eval_dataset=rows, use_cpu=True, compute_metrics=accuracy).evaluate()["eval_accuracy"]
    labels = [row["labels"] for row in rows.rows]
    for name in ("right", "each", "pair", "their"): assert found[f"eval_{name}"] == pytest.approx(want), name
    assert found["eval_mine_n"] == 37 and found["eval_mine_hash"] == sum(i * k for i, k in enumerate(labels))
    assert {"eval_classes_recall_0", "eval_classes_recall_1", "eval_classes_recall_2", "eval_loss"} < set(found)
    assert metrics["mine"].order == "" and timeless(learn.evaluate()) == found
    out = learn.evaluation_loop(learn.get_eval_dataloader(), "Evaluation")
    assert out.predictions is None and out.num_samples == 37 and learn.predict(rows).predictions.shape == (37, 3)
    assert timeless(learn.predict(rows).metrics)["test_mine_n"] == 37 and "eval_mine_n" in learn.history.evaluations()[-1]
    assert "test_mine_n" not in learn.predict(Rows([{"x": row["x"]} for row in rows.rows])).metrics
    mixed = Learner(net(), eval_dataset=rows, use_cpu=True, metrics={"right": right}, compute_metrics=accuracy).evaluate()
    assert mixed["eval_right"] == pytest.approx(mixed["eval_accuracy"]) == want


def macro(logits, labels): return torch.stack([(logits.argmax(-1)[labels == c] == c).float().mean() if (labels == c).any() else torch.tensor(0.0) for c in range(3)]).mean()


def test_a_metric_without_a_value_on_half_a_batch_is_no_mean():
    "Where a whole batch has none, as after a run that has diverged, the average shows it."
    def spread(logits, labels): return torch.tensor(float("nan")) if len(labels) < 8 else logits.std()
    def evaluate(metric): return Learner(net(), eval_dataset=points(16, seed=1), use_cpu=True, metrics={"a": metric}).evaluate()
    with pytest.raises(ValueError, match="'a'.*no mean over samples"): evaluate(spread)
    assert math.isnan(evaluate(lambda logits, labels: logits.mean() * float("nan"))["eval_a"])


def test_mistakes_with_streaming_metrics():
    def evaluate(**metrics): return Learner(net(), eval_dataset=points(37, seed=1), use_cpu=True, metrics=metrics).evaluate()
    for error, words, wrong in ((TypeError, "is the class Counts", {"a": Counts}), (TypeError, "give an object with update", {"a": 3}), (ValueError, "'loss'", {"loss": right}),
                                (TypeError, "a dict of names", [right]), (TypeError, "names are text", {1: right})):
        with pytest.raises(error, match=words): Learner(net(), metrics=wrong)
    with pytest.raises(ValueError, match="'recall'.*no mean over samples.*sum, count"): evaluate(recall=macro)
    with pytest.raises(TypeError, match="returned {}, of type dict; a function returns"): evaluate(a=lambda p, y: {})
    def boom(p, y): raise ArithmeticError("no")
    with pytest.raises(ArithmeticError) as told: evaluate(own=boom)
    assert any("metrics['own']" in note and "(8, 3)" in note for note in told.value.__notes__)
    with pytest.raises(ValueError, match="Both compute_metrics and metrics= give 'accuracy'"):
        Learner(net(), eval_dataset=points(9), use_cpu=True, metrics={"accuracy": right}, compute_metrics=accuracy).evaluate()
    counts = Counts()
    with pytest.raises(ArithmeticError): evaluate(mine=counts, own=boom)
    assert counts.order == ""


def test_evaluations_leave_no_trace():
    "With everything switched on, in the middle of a run."
    def run(**more): return finish(hard_learner(eval_dataset=Augmented(10), **more))
    looking = dict(eval_strategy="steps", eval_steps=1, metrics={"right": right, "mine": Counts()}, compute_metrics=Seen(), include_for_metrics=["inputs", "loss"],
                   batch_eval_metrics=True, bf16_full_eval=True, eval_do_concat_batches=False, eval_on_start=True)
    plain, looked = run(), run(**looking)
    assert set(differences(plain[0], looked[0])) <= {"args", "state", "due", "control"} and plain[1] == looked[1]


def test_a_branch_has_the_metrics_too():
    learn = hard_learner(eval_dataset=Augmented(10), metrics={"right": right})
    learn.step(2)
    assert timeless(learn.branch().evaluate()) == timeless(learn.evaluate())


# --- several processes -------------------------------------------------------------------------------------------------

@pytest.mark.xdist_group("launch")
def test_on_two_processes_as_on_one():
    "Every metric, whoever has computed what; the metrics of one's own see the data in its order."
    def learner(**more): return Learner(net(), train_dataset=points(8), eval_dataset=points(37, seed=1), per_device_eval_batch_size=8, use_cpu=True, disable_tqdm=True, **more)
    def own(pred, compute_result):
        own.seen = getattr(own, "seen", []) + [len(pred.label_ids)]
        return {"seen": sum(own.seen) if compute_result else -1, "losses": len(pred.losses)}
    for settings in (dict(metrics=streams()), dict(compute_metrics=own, batch_eval_metrics=True, include_for_metrics=["loss"]),
                     dict(compute_metrics=lambda p: {"given": len(list(p)), "inputs": p.inputs[1].sum()}, include_for_metrics=["inputs", "loss"], bf16_full_eval=True, eval_do_concat_batches=False)):
        alone, many = learner(**settings), learner(**settings)
        want = timeless(alone.evaluate())
        own.seen = []
        many.launch(2)
        try: assert timeless(many.evaluate()) == pytest.approx(want, rel=1e-6)
        finally: many.close()


# --- what does not fit -------------------------------------------------------------------------------------------------

def test_predictions_that_will_not_fit_are_told_beforehand(monkeypatch):
    "After the first batch, with the size and the ways out; nothing where nothing, or little, is kept."
    class Wide(nn.Module):
        def __init__(self): super().__init__(); self.inner = net()
        def forward(self, x, labels=None):
            out = self.inner(x, labels)
            return {**out, "logits": out["logits"].repeat(1, 20_000)}
    monkeypatch.setattr("trainer_nb.engine.evaluate.free_host_memory", lambda: 100e6)
    def first(pred): return {"first": float(pred.predictions[0, 0])}
    with pytest.warns(UserWarning, match=r"all 400 samples takes about 0.0\d+ GB.*preprocess_logits_for_metrics=.*metrics=.*batch_eval_metrics=True"):
        Learner(Wide(), eval_dataset=points(400), use_cpu=True, compute_metrics=first).evaluate()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Learner(Wide(), eval_dataset=points(400), use_cpu=True, metrics={"right": right}).evaluate()
        Learner(Wide(), eval_dataset=points(40), use_cpu=True, compute_metrics=first).evaluate()
        monkeypatch.setattr("trainer_nb.engine.evaluate.free_host_memory", lambda: 1)
        Learner(net(), eval_dataset=points(400), use_cpu=True, compute_metrics=accuracy).evaluate()


# --- several sets ------------------------------------------------------------------------------------------------------

def test_several_sets_are_shown_side_by_side():
    "A row for each step in the tables, a curve for each set, and each is watched for overfitting."
    from trainer_nb.live.blocks import read_metrics
    from trainer_nb.live.run_view import evaluation_table
    from trainer_nb.core.history import History
    from trainer_nb.live.health import assess_health
    learn = hard_learner(eval_dataset={"near": Augmented(10), "far": Augmented(7)}, eval_strategy="steps", eval_steps=2, eval_on_start=True, metrics={"right": right},
                         metric_for_best_model="far_right", greater_is_better=True)
    learn.train()
    assert len(learn.history.evaluations()) == 8 and len(learn.history.evaluations().together()) == 4
    lines = repr(learn.history.evaluations()).splitlines()
    assert len(lines) == 5 and {"eval_near_right", "eval_far_right", "eval_near_loss", "eval_far_loss"} <= set(lines[0].split()) and "—" not in "".join(lines)
    assert lines[0].split()[0] == "step" and lines[0].split()[-1] == "epoch"
    table = evaluation_table(learn.history)
    assert len(table["rows"]) == 4 and all("—" not in row for row in table["rows"])
    assert {"eval_near_loss", "eval_far_loss", "eval_near_right"} <= set(read_metrics(learn.history)) and "eval_far_right" in repr(learn.plot())
    assert learn.state.best_metric == max(row["eval_far_right"] for row in learn.history.evaluations() if "eval_far_right" in row and row["step"])
    history = History()
    for i in range(60): history.append(i + 1, 0.1 * i, 0.1, 8, 0.1 * i, 2.0 - 0.02 * i, 1.0)
    for step, near, far in ((20, 1.0, 1.0), (40, 0.9, 1.5), (60, 0.8, 2.0)):
        history.note("evaluate", step, eval_near_loss=near)
        history.note("evaluate", step, eval_far_loss=far)
    assert "eval_far_loss was lowest at step 20" in assess_health(history).sentence


def test_rounds_of_two_processes():
    "Of each round the first process goes through the batches in the order of the data, and knows the last."
    from trainer_nb.engine.eval_outputs import EvalOutputs, StreamingMetrics
    class Two:
        is_single_process, size, theirs = False, 2, [[(1, dict(predictions=torch.ones(1), label_ids=torch.ones(1)))], []]
        def gather_object(self, mine): return [mine, self.theirs.pop(0)]
        def run_on_main(self, act, to_send): return act()
    heard, outputs = [], EvalOutputs()
    streams = StreamingMetrics({}, Two(), torch.device("cpu"), lambda p, compute_result: heard.append((p.predictions.item(), compute_result)) or len(heard))
    for k, mine in enumerate((0, None, 2)):
        if mine is not None: streams.add(outputs.add(k, 1), torch.tensor(float(mine)), torch.tensor(0.))
        streams.turn(k, last=k == 2)
    assert heard == [(0.0, False), (1.0, False), (2.0, True)] and streams.result == 3


def test_a_batch_may_say_that_it_has_a_loss(make):
    "As CLIP's collators do: `return_loss`, with a model that has no labels."
    class Contrast(nn.Module):
        def __init__(self): super().__init__(); self.layer = nn.Linear(6, 1)
        def forward(self, x, return_loss=None):
            out = self.layer(x).squeeze(-1)
            return {"loss": (out ** 2).mean(), "logits": out} if return_loss else {"logits": out}
    def collate(rows): return {"x": torch.stack([r["x"] for r in rows]), "return_loss": True}
    losses = []
    for maker in (make.theirs, make.ours):
        torch.manual_seed(0)
        losses.append(maker(Contrast(), points(8), eval_dataset=points(6), data_collator=collate, remove_unused_columns=False).evaluate()["eval_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_ready_made_metrics_do_not_score_a_part_for_the_whole(make):
    import trainer_nb
    learn = make.ours(net(), points(20), eval_dataset=points(9), eval_do_concat_batches=False, compute_metrics=trainer_nb.engine.metrics.regression)
    with pytest.raises(ValueError, match="eval_do_concat_batches=False"): learn.evaluate()


def test_what_is_not_the_same_as_at_the_trainer():
    "As the tutorial says it: the mode after a run, what is logged within a step and around an evaluation, the last batch of an evaluation."
    class Own(Learner):
        fails, before = False, ()
        def compute_loss(self, model, inputs, **more):
            self.log({"mine": 1.0})
            if self.fails: raise RuntimeError("after the log")
            return super().compute_loss(model, inputs, **more)
        def evaluate(self, *args, **more):
            found = super().evaluate(*args, **more)
            self.before = *self.before, any("eval_loss" in row for row in self.state.log_history)
            assert "eval_loss" in found
            return found
    given = dict(train_dataset=points(16), eval_dataset=points(9), per_device_eval_batch_size=4, dataloader_drop_last=True, max_steps=2, use_cpu=True, disable_tqdm=True)
    learn = Own(net(), eval_strategy="steps", eval_steps=2, **given)
    learn.step()
    assert [row["step"] for row in learn.state.log_history if "mine" in row] == [1]
    learn.fails = True
    with pytest.raises(RuntimeError): learn.step()
    learn.fails = False
    assert [row["step"] for row in learn.state.log_history if "mine" in row] == [1]
    learn.train()
    assert learn.before == (True,) and any("eval_loss" in row for row in learn.state.log_history)
    assert learn.model.training and len(learn.predict(points(9)).predictions) == 9


class WithoutLabels(nn.Module):
    "A classifier whose forward takes no labels."
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
    def forward(self, x): return self.layer(x)


@pytest.mark.parametrize("given", [{}, {"label_names": ["labels"]}])
def test_labels_that_only_compute_loss_func_takes(given):
    torch.manual_seed(0)
    x = torch.randn(24, 4)
    rows = [{"x": row, "labels": (row[0] > 0).long()} for row in x]
    def loss(output, labels, num_items_in_batch=None): return nn.functional.cross_entropy(output, labels)
    learn = Learner(WithoutLabels(), train_dataset=rows, eval_dataset=rows, compute_loss_func=loss, compute_metrics=accuracy, max_steps=2,
                    per_device_eval_batch_size=24, disable_tqdm=True, **given)
    learn.train()
    with torch.no_grad(): output = learn.model(x)
    labels = torch.stack([row["labels"] for row in rows])
    metrics, predicted = learn.evaluate(), learn.predict(rows)
    assert metrics["eval_loss"] == pytest.approx(loss(output, labels).item(), abs=1e-6)
    assert np.array_equal(predicted.label_ids, labels.numpy()) and np.allclose(predicted.predictions, output.numpy())
    assert metrics["eval_accuracy"] == (output.argmax(-1) == labels).double().mean().item()


def test_a_compute_loss_that_ignores_return_outputs_is_named():
    class LossOnly(Learner):
        def compute_loss(self, model, inputs, return_outputs=False, **kwargs): return super().compute_loss(model, inputs)
    learn = LossOnly(net(), train_dataset=points(8), eval_dataset=points(8), max_steps=2, disable_tqdm=True, use_cpu=True)
    learn.train()
    with pytest.raises(TypeError, match=r"compute_loss\(\) returned the loss alone for return_outputs=True.*\(loss, outputs\)"): learn.evaluate()


def test_labels_that_an_evaluation_does_not_find_are_named():
    "An override reads them under a name of its own; without labels the model is called, which takes other names."
    class Own(Learner):
        def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
            output = model(inputs["a"])
            loss = nn.functional.mse_loss(output, inputs["b"])
            return (loss, {"logits": output}) if return_outputs else loss
    rows = [{"a": torch.ones(4), "b": torch.ones(1)}] * 8
    given = dict(train_dataset=rows, eval_dataset=rows, max_steps=2, disable_tqdm=True, use_cpu=True, remove_unused_columns=False)
    learn = Own(nn.Linear(4, 1), **given)
    learn.train()
    with pytest.raises(TypeError, match=r"needs 'input'.*label_names=\[...\]: an evaluation calls compute_loss"): learn.evaluate()
    assert "eval_loss" in Own(nn.Linear(4, 1), label_names=["b"], **given).evaluate()
    class Codes(nn.Linear):
        def forward(self, a, b=None): return {"loss": super().forward(a).mean()}
    with pytest.warns(UserWarning, match="no loss: none of the columns a, b.*label_names="): Learner(Codes(4, 1), **given).evaluate()
    assert "eval_loss" in Learner(Codes(4, 1), label_names=["a"], **given).evaluate()

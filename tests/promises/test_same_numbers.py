"""The same numbers as transformers' Trainer: weights, logs, evaluations and events, on the CPU in single precision.

Each test trains transformers' own Trainer and trainer_nb's Learner from the same weights, on the same data, with the
same settings, and compares. No model here has dropout: inside a step the two draw from different random streams, on
purpose (trainer_nb's depend on the place in the run alone).
"""

import numpy as np
import pytest
import torch
from torch import nn

from trainer_nb import Learner
from references import LANGUAGE, Net, Rows, accuracy, bert, both, for_classes, gpt2, llama, make, net, points, relative, rows_of, same_run, sentences, timeless, transformers, vector   # noqa: F401

STEPS = 200




# --- models and data ---------------------------------------------------------------------------------------------------





class Stream(torch.utils.data.IterableDataset):
    "The same rows, without a length."
    def __init__(self, rows): self.rows = rows
    def __iter__(self): return iter(self.rows)






















# --- the two, side by side ---------------------------------------------------------------------------------------------





















# --- one setting at a time ---------------------------------------------------------------------------------------------
# 106 points in batches of 8: 14 micro-batches an epoch, the last of 2 points; in fours, a last window of 2 micro-batches.

PLAIN = dict(max_steps=STEPS, per_device_train_batch_size=8)

# Without a data_seed the Trainer's order depends on torch's global seed at the moment when it begins to train. Where other
# things happen between making it and that moment, tests give one.
SEEDED = dict(data_seed=42)

SETTINGS = {
    "sequential": dict(train_sampling_strategy="sequential"),
    "shuffled": {},
    "another_seed": dict(seed=7),
    "data_seed": dict(data_seed=3),
    "accumulation": dict(gradient_accumulation_steps=4),
    "accumulation_sequential": dict(gradient_accumulation_steps=4, train_sampling_strategy="sequential"),
    "drop_last": dict(dataloader_drop_last=True),
    "drop_last_accumulation": dict(dataloader_drop_last=True, gradient_accumulation_steps=4),
    "clipped": dict(max_grad_norm=0.05, optim="sgd", learning_rate=0.5),       # Adam would not show by how much
    "clipped_accumulation": dict(max_grad_norm=0.05, optim="sgd", learning_rate=0.5, gradient_accumulation_steps=4),
    "not_clipped": dict(max_grad_norm=0.0),
    "weight_decay": dict(weight_decay=0.3),
    "adamw": dict(optim="adamw_torch", weight_decay=0.1, adam_beta1=0.8, adam_beta2=0.95, adam_epsilon=1e-6),
    "adamw_fused": dict(optim="adamw_torch_fused", weight_decay=0.1, adam_beta1=0.8, adam_beta2=0.95, adam_epsilon=1e-6),
    "sgd": dict(optim="sgd", learning_rate=0.1),
    "sgd_accumulation": dict(optim="sgd", learning_rate=0.1, gradient_accumulation_steps=4),
    "sgd_momentum": dict(optim="sgd", optim_args="momentum=0.9,nesterov=True", weight_decay=0.01),
    "adafactor": dict(optim="adafactor", weight_decay=0.1),
    "log_first": dict(logging_first_step=True, logging_steps=33),
    "log_ratio": dict(logging_steps=0.1),
    "log_epoch": dict(logging_strategy="epoch"),
    "log_nothing": dict(logging_strategy="no"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_setting(both, name):
    both(net(), points(106), **PLAIN | SETTINGS[name])


SCHEDULES = {
    "linear": {}, "cosine": {}, "constant": {}, "constant_with_warmup": {}, "polynomial": {},
    "cosine_two_waves": dict(lr_scheduler_type="cosine", lr_scheduler_kwargs={"num_cycles": 1.5}),
    "polynomial_square": dict(lr_scheduler_type="polynomial", lr_scheduler_kwargs={"power": 2.0, "lr_end": 1e-4}),
}


@pytest.mark.parametrize("warmup", [0, pytest.param(25, marks=pytest.mark.slow), 0.15])
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule(both, name, warmup):
    settings = {"lr_scheduler_type": name, **SCHEDULES[name]}
    both(net(), points(106), **PLAIN | settings | dict(warmup_steps=warmup, logging_steps=1))


@pytest.mark.parametrize("settings", [
    dict(num_train_epochs=3), dict(num_train_epochs=2.5), dict(num_train_epochs=2.5, gradient_accumulation_steps=4),
    dict(num_train_epochs=14.3), dict(num_train_epochs=0.3), dict(num_train_epochs=1.01, gradient_accumulation_steps=4, dataloader_drop_last=True),
    dict(max_steps=3, num_train_epochs=5), dict(max_steps=14), dict(max_steps=15), dict(max_steps=40, num_train_epochs=1),
    dict(num_train_epochs=3, gradient_accumulation_steps=100),
], ids=lambda s: "-".join(f"{k}={v}" for k, v in s.items()))
def test_length(both, settings):
    "How long a run is, in steps and in epochs."
    both(net(), points(106), per_device_train_batch_size=8, logging_steps=1, **settings)


def test_stream(both):
    "Data without a length."
    both(net(), Stream(points(106).rows), **PLAIN | dict(max_steps=60))


def test_unused_columns(both):
    "A table of Hugging Face's datasets, with a column that the model does not take, and `label` for `labels`."
    datasets = pytest.importorskip("datasets")
    rows = points(106).rows
    table = datasets.Dataset.from_dict({"text": ["?"] * len(rows), "x": [row["x"].tolist() for row in rows],
                                        "label": [row["labels"] for row in rows]})
    both(net(), table, **PLAIN)


# --- what the loss is --------------------------------------------------------------------------------------------------

# The bias of attention's keys has no effect on the loss: its gradient is rounding, and Adam makes steps of full length of it.
# Where the two sum in another order, weights can only be compared with an optimizer that does not do that.
ROUNDED = dict(optim="sgd", learning_rate=0.1)
CLASSES = dict(data_collator=for_classes, per_device_train_batch_size=8)


@pytest.mark.parametrize("accumulate", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_bert(both, accumulate):
    both(bert(), sentences(106), max_steps=100, weight_decay=0.1, gradient_accumulation_steps=accumulate, **CLASSES)


@pytest.mark.parametrize("accumulate", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_label_smoothing(both, accumulate):
    both(bert(), sentences(106), max_steps=STEPS, label_smoothing_factor=0.2, gradient_accumulation_steps=accumulate,
         eval_dataset=sentences(19, seed=1), eval_strategy="steps", eval_steps=25, **ROUNDED, **CLASSES)


@pytest.mark.parametrize("model, accumulate, smooth", [
    (gpt2, 1, 0.0), (llama, 4, 0.1),
    *(pytest.param(*o, marks=pytest.mark.slow) for o in [(gpt2, 1, 0.1), (gpt2, 4, 0.0), (gpt2, 4, 0.1), (llama, 1, 0.0), (llama, 1, 0.1), (llama, 4, 0.0)])])
def test_language_model(both, model, accumulate, smooth):
    """The number of items in the batch: each token of a step counts the same, whichever micro-batch it is in.

    The Trainer counts a row's first token for GPT-2 (whose class is not called ...ForCausalLM) and not for Llama.
    """
    both(model(), sentences(54, low=3, high=12), max_steps=60, gradient_accumulation_steps=accumulate, label_smoothing_factor=smooth,
         eval_dataset=sentences(11, low=3, high=12, seed=1), eval_strategy="steps", eval_steps=25, **ROUNDED, **LANGUAGE)


def sum_over_items(outputs, labels, num_items_in_batch=None):
    "Cross entropy summed, divided by the items of the whole step."
    loss = nn.functional.cross_entropy(outputs["logits"], labels, reduction="sum")
    return loss / (len(labels) if num_items_in_batch is None else num_items_in_batch)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_compute_loss_func(both, accumulate):
    both(net(), points(106), compute_loss_func=sum_over_items, gradient_accumulation_steps=accumulate,
         eval_dataset=points(21, seed=1), eval_strategy="epoch", **PLAIN)


class Weighted:
    "A loss of one's own, put before either class."
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = nn.functional.cross_entropy(outputs["logits"], labels, weight=torch.tensor([1.0, 2.0, 0.5]))
        return (loss, outputs) if return_outputs else loss


@pytest.mark.parametrize("accumulate", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_compute_loss_overridden(make, accumulate):
    "A subclass written for the Trainer."
    given = PLAIN | SEEDED | dict(gradient_accumulation_steps=accumulate, eval_dataset=points(21, seed=1), eval_strategy="epoch")
    theirs = make.theirs(net(), points(106), base=type("Theirs", (Weighted, transformers.Trainer), {}), **given)
    ours = make.ours(net(), points(106), base=type("Ours", (Weighted, Learner), {}), **given)
    same_run(theirs, theirs.train(), ours, ours.train())


def test_optimizer_given(make):
    "An optimizer and a schedule that the user has made."
    def given(maker):
        model = net()
        optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 30, 0.5)
        one = maker(model, points(106), **PLAIN, **SEEDED, optimizers=(optimizer, schedule))
        return one, one.train()
    same_run(*given(in_place(make.theirs)), *given(in_place(make.ours)))


def in_place(maker):
    "A maker that trains the very model it is given: an optimizer has been made for its weights."
    def make_one(model, *args, **kwargs):
        class Same:
            def __deepcopy__(self, memo): return model
        return maker(Same(), *args, **kwargs)
    return make_one


def test_optimizer_class_given(both):
    both(net(), points(106), optimizer_cls_and_kwargs=(torch.optim.RMSprop, {"lr": 3e-3, "alpha": 0.9}), weight_decay=0.1, **PLAIN)


# --- evaluation and prediction -----------------------------------------------------------------------------------------

EVALUATED = dict(eval_dataset=points(37, seed=1), per_device_eval_batch_size=8, compute_metrics=accuracy)   # the last batch: 5


@pytest.mark.parametrize("settings", [
    dict(eval_strategy="steps", eval_steps=7), dict(eval_strategy="steps"), dict(eval_strategy="epoch"),
    dict(eval_strategy="epoch", gradient_accumulation_steps=4), dict(eval_strategy="steps", eval_steps=0.2),
    dict(eval_strategy="steps", eval_steps=7, eval_delay=15), dict(eval_strategy="epoch", eval_delay=2),
    dict(eval_strategy="epoch", eval_on_start=True), dict(eval_strategy="steps", eval_steps=7, prediction_loss_only=True),
    dict(eval_strategy="steps", eval_steps=9, eval_accumulation_steps=2),
], ids=lambda s: "-".join(f"{k}={v}" for k, v in s.items()))
def test_evaluated_on_the_way(both, settings):
    theirs, _ = both(net(), points(106), **dict(max_steps=50, per_device_train_batch_size=8), **EVALUATED, **settings)
    assert any("eval_loss" in row for row in theirs.state.log_history)


def test_evaluated_in_one_number(both):
    "Predictions boiled down on the way."
    both(net(), points(106), **PLAIN, **EVALUATED, eval_strategy="epoch",
         preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1))


def test_evaluated_on_two_sets(both):
    given = EVALUATED | dict(eval_dataset={"near": points(37, seed=1), "far": points(11, seed=2)})
    both(net(), points(106), **PLAIN, **given, eval_strategy="epoch")




@pytest.mark.parametrize("trained", [False, True])
def test_evaluate(make, trained):
    "By hand, before and after training; on another set and under another name."
    results = []
    for maker in (make.theirs, make.ours):
        one = maker(net(), points(106), **PLAIN, **SEEDED, **EVALUATED)
        if trained: one.train()
        results.append([timeless(one.evaluate()), timeless(one.evaluate(points(13, seed=2), metric_key_prefix="other"))])
    for want, got in zip(*results): assert got == pytest.approx(want, rel=1e-6)


def same_prediction(theirs, ours):
    for name in ("predictions", "label_ids"):
        want, got = getattr(theirs, name), getattr(ours, name)
        assert (want is None) == (got is None), name
        if want is not None:
            assert type(got) is type(want) and got.dtype == want.dtype and got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert timeless(ours.metrics) == pytest.approx(timeless(theirs.metrics), rel=1e-5)


def test_predict(make):
    ones = [maker(net(), points(106), **PLAIN, **SEEDED, **EVALUATED) for maker in (make.theirs, make.ours)]
    for one in ones: one.train()
    same_prediction(*(one.predict(points(29, seed=3)) for one in ones))


def test_predict_without_labels(make):
    rows = Rows([{"x": row["x"]} for row in points(29, seed=3).rows])
    same_prediction(*(maker(net(), points(106), per_device_eval_batch_size=8).predict(rows) for maker in (make.theirs, make.ours)))


def test_predict_ragged(make):
    "Batches of different widths are padded with -100 into one array."
    ones = (maker(gpt2(), sentences(20), **LANGUAGE, per_device_eval_batch_size=4) for maker in (make.theirs, make.ours))
    same_prediction(*(one.predict(sentences(11, low=3, high=12, seed=1)) for one in ones))


# --- callbacks written for transformers --------------------------------------------------------------------------------

EVENTS = [name for name in vars(transformers.TrainerCallback) if name.startswith("on_")]


def recorder(look):
    "A transformers callback that keeps `look(name, state, control, kwargs)` of each event, in order."
    def noting(name):
        def event(self, args, state, control, **kwargs): self.seen.append(look(name, state, control, kwargs))
        return event
    one = type("Recorder", (transformers.TrainerCallback,), {name: noting(name) for name in EVENTS})()
    one.seen = []
    return one


def place(name, state, control, kwargs):
    "Which event, and where in the run."
    return name, state.global_step, round(state.epoch or 0, 6)


def seen_by(make, look, more=(), then=lambda one: None, **given):
    "What each of the two has told a recorder, in order."
    result = []
    for maker in (make.theirs, make.ours):
        recording = recorder(look)
        one = maker(net(), points(106), callbacks=[recording, *[each() for each in more]], **given)
        one.train()
        then(one)
        result.append(recording.seen)
    return result


RUNS = {
    "epochs": dict(num_train_epochs=2, gradient_accumulation_steps=4, logging_steps=3, eval_strategy="epoch"),
    "part_of_an_epoch": dict(num_train_epochs=1.5, logging_strategy="epoch", eval_strategy="epoch"),
    "steps": dict(max_steps=20, logging_steps=5, eval_strategy="steps", eval_steps=6),
    "on_start": dict(max_steps=3, logging_first_step=True, eval_strategy="steps", eval_steps=2, eval_on_start=True),
    "steps_end_with_the_epoch": dict(max_steps=28, logging_strategy="epoch", eval_strategy="steps", eval_steps=14),
}


def differences(want, got):
    "The first place where two lists part, with what came before."
    if want == got: return None
    first = next((i for i, (a, b) in enumerate(zip(want, got)) if a != b), min(len(want), len(got)))
    return f"after {want[max(0, first - 3):first]}: the Trainer {want[first:first + 3]}, the Learner {got[first:first + 3]}"


@pytest.mark.parametrize("name", RUNS)
def test_events(make, name):
    "The same events in the same order at the same steps."
    def then(one): one.evaluate(); one.predict(points(9, seed=3))
    want, got = seen_by(make, place, then=then, per_device_train_batch_size=8, **EVALUATED, **RUNS[name])
    assert {"on_init_end", "on_train_begin", "on_train_end", "on_log", "on_evaluate", "on_predict"} <= {event[0] for event in want}
    assert differences(want, got) is None


def test_events_show_what_is_asked(make):
    "A callback reads from `control` what the settings want at this step."
    def look(name, state, control, kwargs):
        return name, state.global_step, control.should_log, control.should_evaluate, control.should_epoch_stop, control.should_training_stop
    want, got = seen_by(make, look, per_device_train_batch_size=8, **EVALUATED, **RUNS["epochs"])
    only = ("on_step_begin", "on_step_end", "on_epoch_end", "on_log", "on_evaluate")
    assert differences([e for e in want if e[0] in only], [e for e in got if e[0] in only]) is None


def test_events_bring_the_same(make):
    "What a callback is given besides args, state and control."
    def look(name, state, control, kwargs): return name, {k for k, v in kwargs.items() if v is not None}
    want, got = seen_by(make, look, per_device_train_batch_size=8, **EVALUATED, **RUNS["epochs"])
    assert [name for name, _ in want] == [name for name, _ in got]
    for (name, theirs), (_, ours) in zip(want, got): assert theirs <= ours, f"{name} lacks {sorted(theirs - ours)}"


class Asks(transformers.TrainerCallback):
    "Asks for things at odd moments."
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2: control.should_log = True
        if state.global_step == 4: control.should_evaluate = True
        if state.global_step == 6: control.should_epoch_stop = True
        if state.global_step == 30: control.should_training_stop = True
        return control


def test_control(make):
    "What a callback asks for through `control` is done, at the same place."
    settings = dict(max_steps=50, per_device_train_batch_size=8, logging_steps=1000)
    want, got = seen_by(make, place, more=[Asks], **EVALUATED, **settings)
    assert max(step for _, step, _ in want) == 30
    assert differences(want, got) is None


class AsksWhenTold(transformers.TrainerCallback):
    "Asks for an evaluation when it sees a log, and for the end when it sees the second evaluation."
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs: control.should_evaluate = True
    def on_evaluate(self, args, state, control, **kwargs):
        if state.global_step >= 20: control.should_training_stop = True


def test_control_from_other_events(make):
    "Wishes from `on_log` and `on_evaluate` count for the same step."
    settings = dict(max_steps=50, per_device_train_batch_size=8, logging_steps=10)
    want, got = seen_by(make, place, more=[AsksWhenTold], **EVALUATED, **settings)
    assert [step for name, step, _ in want if name == "on_evaluate"] == [10, 20]
    assert differences(want, got) is None


def test_control_and_numbers(both):
    "An epoch cut short: the next one begins with its own order."
    _, ours = both(net(), points(106), callbacks=[Asks()], **PLAIN, **EVALUATED)
    assert ours.state.global_step == 30


class EditsGradients(transformers.TrainerCallback):
    "Changes gradients between clipping and the update."
    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        model.inner.weight.grad.mul_(0.5)
        model.outer.bias.grad.zero_()


def test_gradients_edited(both):
    _, ours = both(net(), points(106), callbacks=[EditsGradients()], **PLAIN)
    assert torch.equal(ours.model.outer.bias, net().outer.bias)


def test_log_is_shown(make):
    "`on_log` gets the row that goes into the history, without its step."
    def look(name, state, control, kwargs): return name, sorted(kwargs["logs"]) if name == "on_log" else None
    want, got = seen_by(make, look, per_device_train_batch_size=8, **EVALUATED, **RUNS["steps"])
    drop = {"total_flos", "eval_model_preparation_time"}
    clean = lambda seen: [set(keys) - drop for name, keys in seen if name == "on_log"]
    assert clean(got) == clean(want)


class Perplexed:
    "Adds metrics where metrics are logged; its evaluations bring a value that they have logged themselves, and return a dict of their own."
    def log(self, logs, *more):
        if not self.model.training and "train_runtime" not in logs: logs["eval_perplexity"] = float(np.exp(logs.get("eval_loss", 0)))
        super().log(logs, *more)

    def evaluate(self, *given, **named):
        own = {"own": 1.0}
        self.log(own)
        metrics = super().evaluate(*given, **named)
        return {**metrics, "eval_own": own["own"], "eval_epoch": own["epoch"], "eval_is_logged": "eval_loss" in self.state.log_history[-1]}


class AddsToLogs(transformers.TrainerCallback):
    "Adds values to the log and to the metrics that it sees."
    def on_log(self, args, state, control, logs=None, model=None, **kwargs):
        logs["by_callback"] = state.global_step
        if "eval_loss" in logs: logs["in_training_mode"] = model.training
    def on_evaluate(self, args, state, control, metrics=None, **kwargs): metrics["eval_by_event"] = state.global_step


@pytest.mark.parametrize("counted", ["no", "all"])
def test_metrics_that_are_logged_are_those_that_are_returned(make, counted):
    "An override of `log` and a callback add to the metrics of evaluations, and these determine the best model."
    settings = dict(max_steps=30, per_device_train_batch_size=8, metric_for_best_model="perplexity", greater_is_better=False,
                    include_num_input_tokens_seen=counted, callbacks=[AddsToLogs()], eval_strategy="steps", eval_steps=10, **EVALUATED)
    seen, model = [], net()
    model.main_input_name = "x"
    for maker, base in ((make.theirs, type("Theirs", (Perplexed, transformers.Trainer), {})), (make.ours, type("Ours", (Perplexed, Learner), {}))):
        one = maker(model, points(106), base=base, **settings)
        one.train()
        metrics = timeless(one.evaluate())
        seen.append((metrics, one.state.best_metric, rows_of(one)[0]))
    (want, best, row), (got, our_best, our_row) = seen
    assert sorted(got) == sorted(want) and {"epoch", "eval_perplexity", "eval_epoch", "by_callback", "eval_by_event"} <= {*got}
    assert ("num_input_tokens_seen" in got) == (counted == "all") and "by_callback" not in our_row
    assert got == pytest.approx(want, rel=1e-5) and got["eval_is_logged"] and not got["in_training_mode"] and our_best == pytest.approx(best, rel=1e-5) and best is not None
    assert our_row == pytest.approx(row, rel=1e-5)


def test_early_stopping(make):
    "transformers' own EarlyStoppingCallback, unchanged."
    steps = []
    for maker in (make.theirs, make.ours):
        one = maker(net(), points(40), callbacks=[transformers.EarlyStoppingCallback(early_stopping_patience=2)], max_steps=400,
                    per_device_train_batch_size=8, learning_rate=3e-2, eval_strategy="steps", eval_steps=5,
                    metric_for_best_model="loss", greater_is_better=False, **EVALUATED)
        one.train()
        steps.append((one.state.global_step, pytest.approx(one.state.best_metric, rel=1e-5)))
    assert steps[0][0] < 400
    assert steps[1] == steps[0]


# --- both in one process -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("order", ["theirs_first", "ours_first"])
def test_made_together(make, order):
    "Both are made before either trains: Accelerate's state, which a process has once, serves both."
    given = PLAIN | SEEDED | dict(gradient_accumulation_steps=4, **EVALUATED, eval_strategy="epoch")
    makers = {"theirs": make.theirs, "ours": make.ours}
    if order == "ours_first": makers = dict(reversed(makers.items()))
    ones = {name: maker(net(), points(106), **given) for name, maker in makers.items()}
    outs = {name: one.train() for name, one in ones.items()}
    same_run(ones["theirs"], outs["theirs"], ones["ours"], outs["ours"])


def test_taking_turns(make):
    "The Learner takes steps between the Trainer's: neither notices the other."
    ours = make.ours(net(), points(106), **PLAIN, **SEEDED)

    class Between(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs): ours.step()

    theirs = make.theirs(net(), points(106), callbacks=[Between()], **PLAIN, **SEEDED)
    theirs.train()
    assert relative(vector(ours.model), vector(theirs.model)) < 1e-6


def test_model_init_gives_the_trainers_first_weights(make):
    results = []
    for maker in (make.theirs, make.ours):
        one = maker(None, points(16), model_init=Net, seed=7, max_steps=2)
        one.train()
        results.append({n: p.detach() for n, p in one.model.named_parameters()})
    for n, p in results[0].items(): torch.testing.assert_close(results[1][n], p, rtol=1e-6, atol=1e-8)

"""What scripts do with transformers' Trainer besides training: assign its attributes, override methods of its callbacks, call its parts
by hand. Each case runs on both sides."""
import copy
import dataclasses
import enum
import importlib
import inspect
import json
import pathlib
import subprocess
import sys

import pytest
import torch
from torch import nn

import trainer_nb

transformers = pytest.importorskip("transformers")
SIDES = (transformers, trainer_nb)


class Net(nn.Module):
    "A classifier with two numbers as input."
    def __init__(self, **config):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layer = nn.Linear(2, 2)
        self.config = transformers.PretrainedConfig(**config)

    def forward(self, x, labels=None, **kwargs):
        logits = self.layer(x)
        if labels is None: return {"logits": logits}
        count = kwargs.get("num_items_in_batch")
        return {"loss": nn.functional.cross_entropy(logits, labels, reduction="sum") / (len(x) if count is None else count), "logits": logits}


def samples(n=12):
    generator = torch.Generator().manual_seed(0)
    # one is ignored, so that micro-batches have different numbers of labels
    return [{"x": torch.randn(2, generator=generator), "labels": torch.tensor(-100 if i % 12 == 4 else i % 2)} for i in range(n)]


def make(side, folder, cls=None, model=None, train_dataset=None, **given):
    "Return a trainer of one side that takes 4 steps of 2 micro-batches with 2 samples."
    parts = {k: given.pop(k) for k in list(given) if k in inspect.signature(transformers.Trainer.__init__).parameters}
    settings = {"report_to": [], "max_steps": 4, "disable_tqdm": True, "use_cpu": True, "save_strategy": "no", "learning_rate": 0.1, "optim": "sgd",
                "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "logging_steps": 1} | given
    args = side.TrainingArguments(output_dir=str(folder), **settings)
    return (cls or side.Trainer)(Net() if model is None else model, args, train_dataset=samples() if train_dataset is None else train_dataset, **parts)


def weights(trainer): return trainer.model.layer.weight.detach().clone()


def losses(trainer): return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def both(tmp_path, f):
    "Return the results of a function of (side, folder) on both sides."
    return [f(side, tmp_path / side.__name__) for side in SIDES]


def agree(tmp_path, f):
    "Assert that both sides give the same; return it."
    theirs, ours = both(tmp_path, f)
    assert repr(theirs) == repr(ours)
    return ours


# -- a. attributes that can be assigned

def halves(trainer):
    "Return a label smoother with half of the cross-entropy."
    def smoother(outputs, labels, shift_labels=False, num_items_in_batch=None):
        return nn.functional.cross_entropy(outputs["logits"], labels) / 2
    return smoother

def own_optimizer(trainer): return torch.optim.SGD(trainer.model.parameters(), lr=0.5)

def own_schedule(trainer):
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.5)
    return torch.optim.lr_scheduler.LambdaLR(trainer.optimizer, lambda step: 1 / (1 + step))

def with_counter(trainer):
    "Return the same handler; a callback that it gets counts the steps."
    trainer.callback_handler.add_callback(type("Counter", (transformers.TrainerCallback,), {}))
    return trainer.callback_handler

def other_model(trainer):
    model = Net()
    with torch.no_grad(): model.layer.weight.mul_(0.5)
    # the Trainer trains this one
    if not isinstance(trainer, trainer_nb.Learner): trainer.model_wrapped = model
    return model

class Own:
    "An object of the user."

# name: (value as a function of the trainer, whether the numbers of the training change)
ASSIGNED = {
    "model_accepts_loss_kwargs": (lambda t: False, True), "label_smoother": (halves, True), "optimizer": (own_optimizer, True),
    "lr_scheduler": (own_schedule, True), "model": (lambda t: other_model(t), True), "train_dataset": (lambda t: samples(20)[8:], True),
    "data_collator": (lambda t: lambda rows: {k: 2 * v for k, v in side_default(rows).items() if k == "x"} | {"labels": side_default(rows)["labels"]}, True),
    "compute_loss_func": (lambda t: lambda outputs, labels, num_items_in_batch=None: outputs["logits"].pow(2).sum() / num_items_in_batch, True),
    "optimizer_cls_and_kwargs": (lambda t: (torch.optim.SGD, {"lr": 0.03}), True), "_train_batch_size": (lambda t: 3, True),
    "loss_is_scaled_for_ga": (lambda t: False, True),
    "label_names": (lambda t: ["labels"], False), "can_return_loss": (lambda t: True, False), "_loss_shifts_labels": (lambda t: False, False),
    "args": (lambda t: t.args, False), "state": (lambda t: t.state, False), "control": (lambda t: type(t.control)(), False),
    "callback_handler": (with_counter, False), "accelerator": (lambda t: t.accelerator, False), "model_wrapped": (lambda t: t.model, False),
    "is_in_train": (lambda t: False, False), "is_fsdp_enabled": (lambda t: False, False), "hub_model_id": (lambda t: "me/net", False),
    "gather_function": (lambda t: t.accelerator.gather_for_metrics, False), "compute_metrics": (lambda t: lambda p: {"n": len(p.label_ids)}, False),
    "preprocess_logits_for_metrics": (lambda t: lambda logits, labels: logits.argmax(-1), False), "processing_class": (lambda t: Own(), False),
    "eval_dataset": (lambda t: samples(4), False), "neftune_noise_alpha": (lambda t: None, False), "is_model_parallel": (lambda t: False, False),
    "place_model_on_device": (lambda t: True, False), "deepspeed": (lambda t: None, False), "is_deepspeed_enabled": (lambda t: False, False),
    "is_fsdp_xla_enabled": (lambda t: False, False), "is_fsdp_xla_v1_enabled": (lambda t: False, False), "is_fsdp_xla_v2_enabled": (lambda t: False, False),
    "is_distributed_loading_by_transformers": (lambda t: False, False), "hp_name": (lambda t: None, False), "hp_search_backend": (lambda t: None, False),
    "model_init": (lambda t: None, False), "current_flos": (lambda t: 0, False), "_created_lr_scheduler": (lambda t: True, False),
    "_signature_columns": (lambda t: ["x", "labels"], False), "_trial": (lambda t: None, False),
    "current_gradient_accumulation_steps": (lambda t: 2, False),
}
# parts of the Trainer's loop: nothing here reads them, so an assignment is an error that says so
OF_THEIR_LOOP = {"_memory_tracker", "_loggers_initialized", "_globalstep_last_logged", "_total_loss_scalar", "_tr_loss", "_initial_global_step",
                 "_initial_num_input_tokens_seen", "_mixed_mesh_grads"}

side_default = transformers.default_data_collator


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    trainer = make(trainer_nb, tmp_path_factory.mktemp("run"))
    trainer.train()
    return weights(trainer)


def test_every_attribute_of_a_trainer_is_in_the_table(tmp_path):
    seen = set()
    class Spy(transformers.TrainerCallback):
        def on_step_end(self, *args, **kwargs): seen.update(vars(trainer))
    trainer = make(transformers, tmp_path, callbacks=[Spy])
    seen |= vars(trainer).keys()
    trainer.train()
    seen |= vars(trainer).keys() | {k for c in type(trainer).__mro__ for k, v in vars(c).items() if isinstance(v, property)}
    assert not seen - ASSIGNED.keys() - OF_THEIR_LOOP


@pytest.mark.parametrize("name", [name for name, (_, changes) in ASSIGNED.items() if changes])
def test_an_attribute_is_assigned_with_the_same_effect(name, tmp_path, undisturbed):
    def trained(side, folder):
        trainer = make(side, folder)
        setattr(trainer, name, ASSIGNED[name][0](trainer))
        trainer.train()
        return weights(trainer)
    theirs, ours = both(tmp_path, trained)
    assert torch.equal(theirs, ours) and not torch.equal(ours, undisturbed)


def test_attributes_that_do_not_change_the_numbers_are_assigned(tmp_path, undisturbed):
    def trained(side, folder):
        trainer = make(side, folder)
        for name, (value, changes) in ASSIGNED.items():
            if changes: continue
            given = value(trainer)
            setattr(trainer, name, given)
            if side is trainer_nb and name not in ("_created_lr_scheduler", "is_model_parallel", "control"): assert repr(getattr(trainer, name)) == repr(given), name
        trainer.train()
        return weights(trainer), trainer.predict(samples(4)).predictions.tolist(), trainer.evaluate()["eval_n"]
    theirs, ours = both(tmp_path, trained)
    assert torch.equal(theirs[0], ours[0]) and torch.equal(ours[0], undisturbed) and theirs[1:] == ours[1:]


def test_a_part_of_the_trainers_loop_says_that_nothing_reads_it(tmp_path):
    learn = make(trainer_nb, tmp_path)
    for name in OF_THEIR_LOOP:
        with pytest.raises(AttributeError, match=f"{name} = ... would change nothing: it belongs to the Trainer's loop"): setattr(learn, name, 1)

    class Sub(trainer_nb.Trainer):
        "Uses the names itself."
        def log(self, logs, start_time=None):
            for name in OF_THEIR_LOOP: setattr(self, name, 1)
            return super().log(logs)
    learn = make(trainer_nb, tmp_path, Sub)
    learn.train()
    assert {getattr(learn, name) for name in OF_THEIR_LOOP} == {1}


UNCHANGEABLE = {"accelerator": "accelerator_config", "model_wrapped": "Learner's model", "is_in_train": "train", "is_fsdp_enabled": "fsdp='full_shard'",
                "gather_function": "prediction_step", "deepspeed": "DeepSpeed", "is_deepspeed_enabled": "DeepSpeed", "is_fsdp_xla_enabled": "XLA",
                "is_distributed_loading_by_transformers": "fsdp='full_shard'", "label_names": "list of names", "can_return_loss": "True or False",
                "label_smoother": "function", "callback_handler": "CallbackHandler", "state": "TrainerState", "args": "args",
                "is_model_parallel": "device_map", "place_model_on_device": "device_map"}


def test_another_value_that_cannot_take_effect_is_an_error_with_a_way_out(tmp_path, undisturbed):
    learn = make(trainer_nb, tmp_path)
    for name, said in UNCHANGEABLE.items():
        with pytest.raises((AttributeError, TypeError), match=said): setattr(learn, name, Own())
    learn.train()
    assert torch.equal(weights(learn), undisturbed)


def test_label_names_and_can_return_loss_decide_which_batches_have_a_loss(tmp_path):
    class Returning(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(2, 2)
        def forward(self, x, target=None):
            logits = self.layer(x)
            return {"loss": logits.pow(2).mean(), "logits": logits}
    rows = [{"x": s["x"], "target": s["labels"]} for s in samples(4)]
    def evaluated(side, folder):
        trainer = make(side, folder, model=Returning(), train_dataset=rows, eval_dataset=rows)
        found = [trainer.evaluate().get("eval_loss")]
        trainer.can_return_loss = True
        found.append(trainer.evaluate().get("eval_loss"))
        trainer.label_names = ["target"]
        found += [trainer.evaluate().get("eval_loss"), trainer.predict(rows).label_ids.tolist()]
        return found
    assert agree(tmp_path, evaluated)[0] is None


def test_a_smoother_of_the_trainer_and_none_replace_the_settings(tmp_path):
    from transformers.trainer_pt_utils import LabelSmoother
    def smoothed(side, folder, smoother, **given):
        trainer = make(side, folder, **given)
        trainer.label_smoother = smoother
        trainer.train()
        return weights(trainer)
    for smoother, given in ((LabelSmoother(0.2), {}), (None, {"label_smoothing_factor": 0.3})):
        theirs, ours = both(tmp_path, lambda side, folder: smoothed(side, folder, smoother, **given))
        assert torch.allclose(theirs, ours, rtol=0, atol=1e-7)
    smoothed_by_settings = make(trainer_nb, tmp_path, label_smoothing_factor=0.2)
    smoothed_by_settings.train()
    assert torch.equal(weights(smoothed_by_settings), smoothed(trainer_nb, tmp_path, trainer_nb.LabelSmoother(0.2)))


def test_assigned_facts_stay_with_a_run_that_is_rewound_branched_or_resumed(tmp_path):
    def begun(folder):
        learn = make(trainer_nb, folder)
        learn.model_accepts_loss_kwargs, learn.label_smoother = False, halves(learn)
        return learn
    learn = begun(tmp_path / "a")
    learn.step(3)
    learn.rewind(2)
    other = learn.branch()
    assert (other.model_accepts_loss_kwargs, other.label_smoother) == (False, learn.label_smoother)
    learn.save_checkpoint(tmp_path / "checkpoint")
    resumed = begun(tmp_path / "b")
    resumed.load_checkpoint(tmp_path / "checkpoint")
    whole = begun(tmp_path / "c")
    for run in (learn, other, resumed, whole): run.train()
    for run in (learn, other, resumed): assert torch.equal(weights(run), weights(whole))


def test_arguments_that_are_replaced_change_the_settings_that_differ(tmp_path):
    def trained(side, folder):
        trainer = make(side, folder)
        args = copy.deepcopy(trainer.args)
        args.learning_rate, args.logging_steps = 0.3, 2
        trainer.args = args
        trainer.train()
        return weights(trainer).tolist(), len(losses(trainer))
    agree(tmp_path, trained)
    learn = make(trainer_nb, tmp_path)
    learn.args = dataclasses.replace(learn.args, seed=7)
    learn.step()
    assert learn.args.seed == 7
    with pytest.raises(ValueError, match="seed cannot be changed"): learn.args = dataclasses.replace(learn.args, seed=8)


def test_a_state_that_was_read_from_a_file_takes_over_logs_and_best_values(tmp_path):
    def assigned(side, folder):
        trainer = make(side, folder)
        trainer.train()
        trainer.save_state()
        trainer.state = state = TrainerState[side].load_from_json(str(folder / "trainer_state.json"))
        state.best_metric = 0.25
        trainer.state = dataclasses.replace(state, log_history=state.log_history[:2])
        return trainer.state.best_metric, len(trainer.state.log_history), trainer.state.global_step
    agree(tmp_path, assigned)
    learn = make(trainer_nb, tmp_path)
    with pytest.raises(trainer_nb.InvalidOperation, match="load_checkpoint"): learn.state = trainer_nb.TrainerState(global_step=5)
    assert learn.state.global_step == 0


def test_a_handler_passes_on_its_callbacks(tmp_path):
    def counted(side, folder):
        calls = []
        class Counter(side.TrainerCallback):
            def on_step_end(self, *args, **kwargs): calls.append(1)
        trainer = make(side, folder)
        handler = transformers.trainer_callback.CallbackHandler([transformers.DefaultFlowCallback, Counter], trainer.model, None, None, None)
        trainer.callback_handler = handler
        trainer.train()
        return len(calls), sorted(type(c).__name__ for c in trainer.callback_handler.callbacks)
    agree(tmp_path, counted)


def test_attributes_may_be_assigned_before_the_constructor_which_replaces_them(tmp_path):
    def built(side, folder):
        class Sub(side.Trainer):
            def __init__(self, model, args, **kwargs):
                self.args, self.model, self.label_names, self.optimizer = args, model, ["other"], None
                self.args = args
                self.before = self.args.max_steps, type(self.model).__name__
                super().__init__(model, args, **kwargs)
        trainer = make(side, folder, Sub)
        trainer.train()
        return trainer.before, trainer.label_names, weights(trainer).tolist()
    agree(tmp_path, built)


TrainerState = {transformers: transformers.TrainerState, trainer_nb: trainer_nb.TrainerState}


# -- b. callbacks

@pytest.mark.parametrize("name", ["EarlyStoppingCallback", "ProgressCallback", *(pytest.param(name, marks=pytest.mark.slow) for name in
                                  ("TrainerCallback", "PrinterCallback", "DefaultFlowCallback"))])
def test_every_public_method_of_a_known_callback_exists_and_an_override_is_called(name, tmp_path):
    methods = [n for n, v in vars(getattr(transformers, name)).items() if callable(v) and not n.startswith("_")]
    def called(side, folder):
        found = set()
        def spy(method):
            def override(self, *args, **kwargs):
                found.add(method)
                return getattr(super(cls, self), method)(*args, **kwargs)
            return override
        cls = type("Own", (getattr(side, name),), {method: spy(method) for method in methods})
        trainer = make(side, folder, callbacks=[cls()], eval_dataset=samples(4), eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2,
                       load_best_model_at_end=True, metric_for_best_model="loss", disable_tqdm=name != "ProgressCallback")
        trainer.train()
        trainer.predict(samples(4))
        return found
    theirs, ours = both(tmp_path, called)
    assert theirs <= ours and (theirs or name == "TrainerCallback")
    assert set(methods) - ours <= {"on_push_begin"}


def test_an_override_of_check_metric_value_decides_when_to_stop(tmp_path):
    def stopped(side, folder):
        class Impatient(side.EarlyStoppingCallback):
            values = []
            def check_metric_value(self, args, state, control, metric_value):
                super().check_metric_value(args, state, control, metric_value)
                self.values.append(metric_value)
                self.early_stopping_patience_counter += 1
        callback = Impatient(early_stopping_patience=2)
        trainer = make(side, folder, callbacks=[callback], eval_dataset=samples(4), eval_strategy="steps", eval_steps=1, save_strategy="steps",
                       save_steps=1, load_best_model_at_end=True, metric_for_best_model="loss", max_steps=8, learning_rate=1e-3)
        trainer.train()
        callback.early_stopping_patience_counter = 1
        assert callback.state()["attributes"] == {"early_stopping_patience_counter": 1}
        return trainer.state.global_step, len(callback.values)
    agree(tmp_path, stopped)


def test_a_progress_callback_writes_to_its_bars(tmp_path, capsys):
    def shown(side, folder):
        seen = []
        class Own(side.ProgressCallback):
            def on_log(self, args, state, control, logs=None, **kwargs):
                if self.training_bar is None: return
                self.training_bar.write(f"line of step {state.global_step}")
                self.training_bar.set_description("training")
                self.training_bar.set_postfix({"loss": 0.5}, refresh=False)
                seen.append((self.training_bar.total, self.max_str_len))
            def on_prediction_step(self, args, state, control, **kwargs):
                super().on_prediction_step(args, state, control, **kwargs)
                seen.append(self.prediction_bar.total)
                self.prediction_bar.set_postfix_str("evaluating")
            def on_train_end(self, args, state, control, **kwargs):
                self.training_bar.close()
                self.training_bar = None
        trainer = make(side, folder, disable_tqdm=False, eval_dataset=samples(12), eval_strategy="steps", eval_steps=2)
        trainer.remove_callback(side.ProgressCallback)
        trainer.add_callback(Own)
        trainer.train()
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("line")]
        return seen, lines, [c.training_bar for c in trainer.callback_handler.callbacks if isinstance(c, Own)]
    theirs, ours = both(tmp_path, shown)
    assert theirs == ours


def test_a_bar_of_the_user_stays_until_it_is_removed():
    callback = trainer_nb.ProgressCallback()
    assert (callback.training_bar, callback.prediction_bar, callback.current_step) == (None, None, 0)
    callback.training_bar = bar = Own()
    assert callback.training_bar is bar
    callback.training_bar = None
    assert callback.training_bar is None


# -- c. parts that are called by hand

STATES = {"form": lambda self: {"args": {}, "attributes": {"n": self.n}}, "number": lambda self: self.n, "parameter": lambda self, key: self.n,
          "other dict": lambda self: {"n": self.n}}


@pytest.mark.parametrize("kind, declared", [("form", True), ("parameter", False), ("other dict", False),
                                            *(pytest.param(*case, marks=pytest.mark.slow) for case in (("form", False), ("number", False), ("number", True), ("other dict", True)))])
def test_a_callback_may_have_a_method_called_state(kind, declared, tmp_path):
    def run(side, folder):
        class Counter(side.TrainerCallback, *((ExportableState[side],) if declared else ())):
            def __init__(self): self.n = 0
            def on_step_end(self, *args, **kwargs): self.n += 1
        Counter.state = STATES[kind]
        counter = Counter()
        trainer = make(side, folder, callbacks=[counter], save_strategy="steps", save_steps=2)
        trainer.train()
        if side is trainer_nb:
            # nothing of it is lost, whatever the method returns
            trainer.rewind(2)
            assert counter.n == 2
            trainer.train()
        return counter.n
    assert agree(tmp_path, run) == 4

ExportableState = {transformers: transformers.trainer_callback.ExportableState, trainer_nb: trainer_nb.ExportableState}


def test_removing_the_printer_ends_the_printed_logs(tmp_path, capsys):
    def printed(side, folder, remove):
        trainer = make(side, folder)
        popped = trainer.pop_callback(side.PrinterCallback) if remove == "pop" else None
        if remove == "handler": trainer.callback_handler.remove_callback(side.PrinterCallback)
        if remove == "twice":
            trainer.remove_callback(side.PrinterCallback)
            assert trainer.pop_callback(side.PrinterCallback) is None
        trainer.train()
        return type(popped).__name__, "'loss'" in capsys.readouterr().out
    assert agree(tmp_path, lambda side, folder: printed(side, folder, "")) == ("NoneType", True)
    assert agree(tmp_path, lambda side, folder: printed(side, folder, "pop")) == ("PrinterCallback", False)
    for how in ("handler", "twice"): assert not agree(tmp_path, lambda side, folder: printed(side, folder, how))[1]
    assert make(trainer_nb, tmp_path, disable_tqdm=False).pop_callback(trainer_nb.PrinterCallback) is None


def batch(trainer): return next(iter(trainer.get_train_dataloader()))

def step_by_hand(trainer):
    trainer.model.train()
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = 1
    return trainer.training_step(trainer.model, batch(trainer)).item(), trainer.model.layer.weight.grad.tolist()

BY_HAND = {
    "training_step": step_by_hand, "compute_loss": lambda t: t.compute_loss(t.model, batch(t)).item(),
    "compute_loss with outputs": lambda t: t.compute_loss(t.model, batch(t), return_outputs=True)[1]["logits"].tolist(),
    "prediction_step": lambda t: [part.tolist() for part in t.prediction_step(t.model, batch(t), False)],
    "prediction_step of the loss": lambda t: t.prediction_step(t.model, batch(t), True)[0].item(),
    "_prepare_inputs": lambda t: {k: v.tolist() for k, v in t._prepare_inputs(batch(t)).items()},
    "get_batch_samples": lambda t: [int(part) for part in t.get_batch_samples(iter(t.get_train_dataloader()), 2, t.args.device)[1:]],
    "create_optimizer_and_scheduler": lambda t: (t.create_optimizer_and_scheduler(10), t.lr_scheduler.get_last_lr()[0], t.get_learning_rates()[0]),
    "get_eval_dataloader": lambda t: [{k: v.tolist() for k, v in b.items()} for b in t.get_eval_dataloader()],
    "floating_point_ops": lambda t: t.floating_point_ops(batch(t)), "num_examples": lambda t: t.num_examples(t.get_train_dataloader()),
    "evaluation_loop": lambda t: round(t.evaluation_loop(t.get_eval_dataloader(), "by hand").metrics["eval_loss"], 6),
}


@pytest.mark.parametrize("name", [name if name in ("training_step", "prediction_step", "get_batch_samples", "create_optimizer_and_scheduler") else
                                  pytest.param(name, marks=pytest.mark.slow) for name in BY_HAND])
def test_a_part_that_is_called_by_hand_before_training(name, tmp_path):
    def run(side, folder):
        trainer = make(side, folder, eval_dataset=samples(4))
        found = BY_HAND[name](trainer)
        trainer.model.zero_grad()
        trainer.train()
        return found, weights(trainer).tolist()
    agree(tmp_path, run)


def subclasses(side):
    "Return subclasses of the Trainer that create optimizer and schedule in different ways."
    def sgd(self): return torch.optim.SGD(self.model.parameters(), lr=0.5)
    def falling(optimizer): return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    class Optimizer(side.Trainer):
        def create_optimizer(self, model=None):
            if self.optimizer is None: self.optimizer = sgd(self)
            return self.optimizer
    class OptimizerOfSuper(side.Trainer):
        def create_optimizer(self, *args):
            for group in super().create_optimizer(*args).param_groups: group["lr"] = 0.25
            return self.optimizer
    class Schedule(side.Trainer):
        def create_scheduler(self, num_training_steps, optimizer=None):
            if self.lr_scheduler is None:
                self.lr_scheduler = falling(self.optimizer if optimizer is None else optimizer)
                self._created_lr_scheduler = True
            return self.lr_scheduler
    class ScheduleOfSuper(Optimizer):
        def create_scheduler(self, num_training_steps, optimizer=None): return super().create_scheduler(2 * num_training_steps, optimizer)
    class OptimizerAndScheduleOfSuper(Schedule):
        def create_optimizer(self):
            optimizer = super().create_optimizer()
            for group in optimizer.param_groups: group["lr"] = 0.25
            return optimizer
    class ScheduleWithOptimizer(side.Trainer):
        def create_optimizer(self, model=None):
            self.optimizer = sgd(self)
            self.create_scheduler(10, self.optimizer)
            self._created_lr_scheduler = False
            return self.optimizer
    class ScheduleFirst(side.Trainer):
        def create_scheduler(self, num_training_steps, optimizer=None):
            self.create_optimizer()
            return super().create_scheduler(num_training_steps, self.optimizer)
    return (Optimizer, OptimizerOfSuper, Schedule, ScheduleOfSuper, OptimizerAndScheduleOfSuper, ScheduleWithOptimizer, ScheduleFirst)


@pytest.mark.parametrize("i", [0, 4, 5, *(pytest.param(i, marks=pytest.mark.slow) for i in (1, 2, 3, 6))])
def test_optimizer_and_schedule_in_any_order(i, tmp_path):
    def run(side, folder):
        trainer = make(side, folder, subclasses(side)[i])
        trainer.train()
        return [row["learning_rate"] for row in trainer.state.log_history if "loss" in row], weights(trainer).tolist()
    agree(tmp_path, run)


def test_an_override_of_both_is_called_here(tmp_path):
    "transformers 5.23 calls the two parts one by one; its documentation and earlier versions call this method."
    class Both(trainer_nb.Trainer):
        def create_optimizer_and_scheduler(self, num_training_steps):
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
            self.create_scheduler(num_training_steps=num_training_steps, optimizer=self.optimizer)
    learn = make(trainer_nb, tmp_path, Both)
    learn.train()
    assert [row["learning_rate"] for row in learn.state.log_history if "loss" in row] == pytest.approx([0.5, 0.375, 0.25, 0.125])


class Color(enum.Enum):
    RED = "red"


def test_arguments_of_a_subclass_are_written_as_json(tmp_path):
    def described(side, folder):
        @dataclasses.dataclass
        class Own(side.TrainingArguments):
            dtype: object = torch.float16
            color: Color = Color.RED
            folder: object = pathlib.Path("data")
            dtypes: list = dataclasses.field(default_factory=lambda: [torch.bfloat16, pathlib.Path("x"), Color.RED])
            nested: dict = dataclasses.field(default_factory=lambda: {"dtype": torch.bfloat16, "inner": {"dtype": torch.int8}, "numbers": (1, 2)})
        args = Own(output_dir=str(folder), report_to=[], use_cpu=True)
        return args
    theirs, ours = both(tmp_path, described)
    found = json.loads(json.dumps(ours.to_dict()))
    assert found == json.loads(ours.to_json_string())
    assert found["color"] == theirs.to_dict()["color"] == "red"
    assert found["nested"]["dtype"] == theirs.to_dict()["nested"]["dtype"] == "bfloat16"
    assert (found["dtype"], found["folder"], found["dtypes"]) == ("float16", "data", ["bfloat16", "x", "red"])
    assert found["nested"]["inner"] == {"dtype": "int8"}
    assert ours.dtype is torch.float16 and ours.dtypes[0] is torch.bfloat16


# -- e. names that scripts import

def names_of_transformers():
    "Return the names that `from transformers import ...` finds in the modules of its Trainer."
    found = {}
    for module in ("trainer", "trainer_seq2seq", "trainer_callback", "trainer_utils", "trainer_pt_utils", "training_args", "training_args_seq2seq",
                   "optimization", "hf_argparser", "data.data_collator", "integrations"):
        found |= {name: f"transformers.{module}" for name, where in transformers._class_to_module.items() if where == module}
    return found

# what scripts import from the modules themselves
FROM_MODULES = {
    "trainer_utils": "BestRun EvalLoopOutput EvalPrediction HPSearchBackend HubStrategy IntervalStrategy PREFIX_CHECKPOINT_DIR PredictionOutput SaveStrategy "
                     "SchedulerType TrainOutput default_compute_objective enable_full_determinism get_last_checkpoint has_length is_main_process set_seed "
                     "speed_metrics seed_worker",
    "trainer_pt_utils": "LabelSmoother LengthGroupedSampler get_parameter_names nested_concat nested_detach torch_distributed_zero_first AcceleratorConfig",
    "trainer_callback": "CallbackHandler DefaultFlowCallback EarlyStoppingCallback ExportableState PrinterCallback ProgressCallback TrainerCallback "
                        "TrainerControl TrainerState",
    "training_args": "OptimizerNames ParallelMode TrainingArguments", "trainer": "TRAINER_STATE_NAME TRAINING_ARGS_NAME Trainer",
    "utils.notebook": "NotebookProgressCallback",
}


def test_every_name_of_the_trainers_modules_can_be_imported():
    wanted = names_of_transformers() | {name: f"transformers.{m}" for m, names in FROM_MODULES.items() for name in names.split()}
    assert {"HfArgumentParser", "get_scheduler", "Trainer", "Seq2SeqTrainer", "DataCollatorWithPadding", "is_wandb_available"} <= wanted.keys()
    missing = [name for name in sorted(wanted) if not hasattr(trainer_nb, name)]
    assert not missing
    for name, module in wanted.items():
        theirs, ours = getattr(importlib.import_module(module), name), getattr(trainer_nb, name)
        assert ours is theirs or type(ours) in (type(theirs), enum.EnumType, type) or inspect.isfunction(ours) and callable(theirs), name
    for name in trainer_nb._NAMES_OF_TRANSFORMERS: assert importlib.import_module(f"transformers.{name}")
    with pytest.raises(AttributeError, match="no attribute 'get_schedular'"): trainer_nb.get_schedular


# optimizers and kinds of parallelism that are unsupported here are errors of their own
ENUMS = ("HubStrategy", "IntervalStrategy", "SaveStrategy", "SchedulerType")


def test_enums_and_results_have_the_same_members():
    from transformers import trainer_utils, training_args
    for name in ENUMS:
        theirs, ours = getattr(trainer_utils, name), getattr(trainer_nb, name)
        assert {m.name: m.value for m in theirs} | {m.name: m.value for m in ours} == {m.name: m.value for m in ours}, name
        for member in ours:
            assert member == member.value and ours(member.value) is member
    assert trainer_nb.ParallelMode.DISTRIBUTED == training_args.ParallelMode.DISTRIBUTED
    assert trainer_nb.OptimizerNames.ADAMW_TORCH == training_args.OptimizerNames.ADAMW_TORCH
    for name in ("EvalLoopOutput", "PredictionOutput", "TrainOutput", "BestRun"):
        assert getattr(trainer_nb, name)._fields == getattr(trainer_utils, name)._fields
    found = {"eval_loss": 1.0, "eval_a": 2.0, "eval_b": 3.0, "epoch": 1.0, "eval_runtime": 5.0}
    for metrics in (found, {"eval_loss": 1.0, "epoch": 2}):
        assert trainer_nb.default_compute_objective(dict(metrics)) == trainer_utils.default_compute_objective(dict(metrics))


def test_an_enum_as_an_argument(tmp_path):
    def trained(side, folder):
        trainer = make(side, folder, lr_scheduler_type=SchedulerType[side].COSINE, logging_strategy=IntervalStrategy[side].STEPS)
        trainer.train()
        return losses(trainer), trainer.args.lr_scheduler_type == "cosine", trainer.args.logging_strategy == IntervalStrategy[side].STEPS
    from transformers import trainer_utils
    SchedulerType, IntervalStrategy = ({transformers: getattr(trainer_utils, n), trainer_nb: getattr(trainer_nb, n)} for n in ("SchedulerType", "IntervalStrategy"))
    agree(tmp_path, trained)


def test_transformers_is_imported_late():
    code = """if True:
        import sys
        sys.modules["transformers"] = None
        from trainer_nb import BestRun, CallbackHandler, EvalLoopOutput, LabelSmoother, ParallelMode, SchedulerType
        try: from trainer_nb import get_scheduler
        except ImportError as error: print(error)"""
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "pip install transformers" in ended.stdout


# -- d. arguments and collators
@pytest.mark.parametrize("config", [{"use_configured_state": True}, {"even_batches": False}])
def test_a_key_of_accelerator_config_that_one_process_does_not_need(config, tmp_path):
    from accelerate import PartialState
    names = "split_batches dispatch_batches even_batches use_seedable_sampler non_blocking num_processes is_main_process"
    def trained(side, folder):
        PartialState()
        trainer, seen = make(side, folder, accelerator_config=config, gradient_accumulation_steps=2), []
        trainer.model.register_forward_hook(lambda *_: seen.append(trainer.accelerator.sync_gradients))
        trainer.train()
        return losses(trainer), weights(trainer).tolist(), seen, [getattr(trainer.accelerator, name) for name in names.split()]
    agree(tmp_path, trained)


def test_the_number_of_parameters_alone_selects_the_size_based_policy():
    from trainer_nb.args.strategy_args import resolve_sharding
    assert trainer_nb.TrainingArguments(fsdp_config={"min_num_params": 2000}).fsdp is None
    for config in ({"min_num_params": 2000}, {"fsdp_min_num_params": 2000, "auto_wrap_policy": "SIZE_BASED_WRAP"}):
        assert resolve_sharding("full_shard auto_wrap", config)[:3] == ("SIZE_BASED_WRAP", None, 2000)
    with pytest.raises(ValueError, match="require each other"): resolve_sharding(True, {"min_num_params": 2000, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP"})


def test_smoothing_and_targets_of_several_classes(tmp_path):
    class Several(Net):
        def forward(self, x, labels=None):
            logits = self.layer(x)
            return {"logits": logits} if labels is None else {"loss": nn.functional.binary_cross_entropy_with_logits(logits, labels), "logits": logits}
    rows = [{"x": s["x"], "labels": torch.tensor([1.0, float(i % 2)])} for i, s in enumerate(samples())]
    def trained(side, folder, factor):
        trainer = make(side, folder, model=Several(problem_type="multi_label_classification"), train_dataset=rows, eval_dataset=rows, label_smoothing_factor=factor)
        trainer.train()
        return weights(trainer).tolist(), round(trainer.evaluate()["eval_loss"], 6), trainer.predict(rows).predictions.tolist()
    with pytest.warns(UserWarning, match="multi_label_classification"): smoothed = agree(tmp_path, lambda side, folder: trained(side, folder, 0.1))
    assert smoothed == trained(trainer_nb, tmp_path, 0.0)
    with pytest.raises(ValueError, match="label_smoothing_factor spreads"): make(trainer_nb, tmp_path, model=Several(), train_dataset=rows, label_smoothing_factor=0.1).train()


@pytest.mark.parametrize("counted", ["non_padding", "all"])
@pytest.mark.parametrize("name", ["x", "input_ids"])
def test_tokens_that_cannot_be_told_from_padding_are_counted_with_a_warning(counted, name, tmp_path):
    def run(side, folder):
        class Named(Net): main_input_name = name
        trainer = make(side, folder, model=Named(), include_num_input_tokens_seen=counted)
        trainer.train()
        return trainer.state.num_input_tokens_seen
    if (counted, name) == ("all", "x"):
        assert agree(tmp_path, run) == 32
        return
    # 32 numbers in 16 samples; none of them where the input is not found
    with pytest.warns(UserWarning, match="include_num_input_tokens_seen") as caught: assert agree(tmp_path, run) == (32 if name == "x" else 0)
    assert sum("include_num_input_tokens_seen" in str(w.message) for w in caught) == 1


@pytest.mark.parametrize("length", [20, 5, pytest.param(9, marks=pytest.mark.slow)])
def test_a_run_continues_with_data_of_another_length(length, tmp_path):
    def run(side, folder):
        make_epochs = {"max_steps": -1, "num_train_epochs": 3, "save_strategy": "steps", "save_steps": 2}
        trainer = make(side, folder, **make_epochs)
        trainer.train()
        assert trainer.state.global_step == 9
        later = make(side, folder, train_dataset=samples(length), **make_epochs)
        later.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
        return later.state.global_step, later.state.epoch
    theirs = run(transformers, tmp_path / "theirs")
    with pytest.warns(UserWarning, match=f"had 12 samples and has {length} now"): ours = run(trainer_nb, tmp_path / "ours")
    assert ours == theirs and ours[1] == 3.0


def test_the_ratio_of_the_warmup_gives_way_to_the_steps(tmp_path):
    with pytest.warns(UserWarning, match="warmup_ratio=0.5 has no effect"): learn = make(trainer_nb, tmp_path, warmup_ratio=0.5, warmup_steps=1)
    learn.train()
    def rates(learn): return [row["learning_rate"] for row in learn.state.log_history if "loss" in row]
    other = make(transformers, tmp_path, warmup_steps=1)
    other.train()
    assert rates(learn) == rates(other)


@pytest.fixture(scope="module")
def tokenizer():
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnop"])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")


TEXTS = ["a b c d e f", "g h i", "j k l m n o p a b c", "d e"] * 3

COLLATORS = {
    "default": ("DefaultDataCollator", {}, lambda t: [{"x": [1.5, i], "k": i, "label": i % 2} for i in range(4)]),
    "default with arrays": ("DefaultDataCollator", {}, lambda t: [{"x": torch.arange(3).numpy(), "label_ids": [0.5, i], "text": "a", "no": None} for i in range(4)]),
    "padding": ("DataCollatorWithPadding", {"tokenizer": True}, lambda t: [{"input_ids": t(x)["input_ids"], "label": 1} for x in TEXTS]),
}


@pytest.mark.parametrize("kind", COLLATORS)
def test_a_collator_returns_the_trainers_tensors(kind, tokenizer):
    name, options, rows = COLLATORS[kind]
    options = options | ({"tokenizer": tokenizer} if "tokenizer" in options else {})
    def collated(side): return getattr(side, name)(**options)(rows(tokenizer))
    theirs, ours = collated(transformers), collated(trainer_nb)
    assert set(theirs) == set(ours)
    for key in theirs:
        assert type(ours[key]) is type(theirs[key]) and getattr(ours[key], "dtype", None) == getattr(theirs[key], "dtype", None), key
        assert repr(ours[key]) == repr(theirs[key])
    with pytest.raises(ValueError, match="'np'"): getattr(trainer_nb, name)(return_tensors="np", **options)(rows(tokenizer))


@pytest.mark.parametrize("seed", [7, None])
@pytest.mark.parametrize("replace", [(0.8, 0.1), (1.0, 0.0), (0.5, 0.5)])
def test_masks_outside_of_a_run_follow_the_seed_as_in_transformers(seed, replace, tokenizer):
    rows = [{"input_ids": tokenizer(text)["input_ids"]} for text in TEXTS]
    def drawn(side):
        torch.manual_seed(3)
        collator = side.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.5, seed=seed, mask_replace_prob=replace[0], random_replace_prob=replace[1])
        return [[batch[k].tolist() for k in ("input_ids", "labels")] for batch in (collator(rows), collator(rows))]
    theirs, ours = drawn(transformers), drawn(trainer_nb)
    assert theirs == ours and ours[0] != ours[1]
    if seed: assert drawn(trainer_nb) == ours


def test_masks_in_a_run_do_not_depend_on_batches_outside_of_it(tokenizer, tmp_path):
    class Guess(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.table = nn.Embedding(32, 32)
        def forward(self, input_ids, attention_mask=None, labels=None):
            logits = self.table(input_ids)
            return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100), "logits": logits}
    class Own(trainer_nb.DataCollatorForLanguageModeling): "A subclass of the user."
    rows = [{"input_ids": tokenizer(text)["input_ids"]} for text in TEXTS]
    for cls in (trainer_nb.DataCollatorForLanguageModeling, Own):
        found = []
        for looks in (0, 2):
            collator = cls(tokenizer, mlm_probability=0.5, seed=7)
            learn = make(trainer_nb, tmp_path, model=Guess(), train_dataset=rows, data_collator=collator)
            for _ in range(looks): collator(rows)
            learn.step(2)
            for _ in range(looks): collator(rows)
            if looks: learn.rewind(1)
            learn.train()
            found.append([r.loss for r in learn.history if not r.abandoned])
        assert found[0] == found[1]

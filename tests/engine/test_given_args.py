"""What a script changes in the TrainingArguments that it has given to a learner, before a run begins."""
import functools

import numpy as np
import pytest
import torch

from trainer_nb import Learner, TrainingArguments
from trainer_nb.engine.assignment import begin_run


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x, labels=None):
        logits = self.layer(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def points(n):
    generator = torch.Generator().manual_seed(0)
    return [{"x": torch.randn(4, generator=generator), "labels": i % 2} for i in range(n)]


def begun(**given):
    "Return the script's arguments, and a learner with them."
    settings = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "use_cpu": True, "max_steps": 4, "learning_rate": 1e-3,
                "lr_scheduler_type": "constant", "optim": "sgd", "per_device_train_batch_size": 4, "logging_steps": 1}
    args = TrainingArguments(**settings | given)
    torch.manual_seed(0)
    return args, Learner(Net(), args, train_dataset=points(24), eval_dataset=points(8))


def weights(learn): return torch.cat([p.detach().flatten() for p in learn.model.parameters()])


VERBS = {
    "train": lambda learn: learn.train(),
    "step": lambda learn: learn.step(4),
    "run": lambda learn: learn.run(),
    "steps": lambda learn: list(learn.steps()),
    "start": lambda learn: learn.start().wait(),
    "debug_step": lambda learn: (learn.debug_step().abort(), learn.train()),
}
PREPARED = {"nothing": lambda learn: None, "model": lambda learn: learn.evaluate(), "run": lambda learn: learn.snapshot()}


@pytest.mark.parametrize("before", PREPARED)
@pytest.mark.parametrize("verb", VERBS)
def test_a_change_counts_wherever_a_run_begins(verb, before):
    changes = {"learning_rate": 0.5, "max_grad_norm": 0.01, "weight_decay": 0.1}
    _, whole = begun(**changes)
    whole.train()
    args, learn = begun()
    PREPARED[before](learn)
    for name, value in changes.items(): setattr(args, name, value)
    VERBS[verb](learn)
    assert {name: getattr(learn.args, name) for name in changes} == changes
    assert learn.optimizer.param_groups[0]["lr"] == 0.5
    assert torch.equal(weights(learn), weights(whole))
    assert {name: learn.run_state.given.values[name] for name in changes} == changes
    assert [e["data"] for e in learn.history.events if e["kind"] == "set"] == [changes]


def test_a_second_run_uses_the_new_rate():
    args, learn = begun()
    learn.train()
    args.learning_rate, args.max_steps, args.seed = 0.5, 2, 3
    learn.train()
    assert learn.state.global_step == learn.state.max_steps == 2
    assert learn.optimizer.param_groups[0]["lr"] == learn.args.learning_rate == 0.5


def test_a_run_that_resumes_has_the_new_length(tmp_path):
    args, learn = begun(output_dir=str(tmp_path), save_strategy="steps", save_steps=2)
    learn.train()
    args.max_steps = 6
    learn.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert learn.state.global_step == 6


def test_a_change_in_the_middle_of_a_run_waits_for_the_next_one():
    args, learn = begun()
    learn.step()
    args.learning_rate = 0.5
    learn.step()
    assert learn.args.learning_rate == learn.optimizer.param_groups[0]["lr"] == 1e-3
    learn.rewind(2)
    assert learn.optimizer.param_groups[0]["lr"] == 1e-3


@pytest.mark.parametrize("prepared", [lambda learn: learn.snapshot(), lambda learn: learn.lr_find(num_steps=10)], ids=["snapshot", "lr_find"])
def test_a_change_counts_where_a_verb_has_prepared_the_run(prepared):
    "What cannot change in a run is made anew before its first step."
    changes = {"seed": 7, "optim": "adamw_torch", "adam_beta1": 0.5, "train_sampling_strategy": "sequential", "bf16": True, "learning_rate": 0.01, "max_steps": 5}
    args, learn = begun()
    prepared(learn)
    for name, value in changes.items(): setattr(args, name, value)
    learn.train()
    _, want = begun(**changes)
    want.train()
    assert torch.equal(weights(learn), weights(want)) and [r.loss for r in learn.history] == [r.loss for r in want.history]
    assert {name: getattr(learn.args, name) for name in changes} == changes and learn.accelerator.mixed_precision == "bf16"


def test_an_invalid_value_is_named():
    args, learn = begun()
    vars(args)["max_grad_norm"] = "much"
    with pytest.raises((TypeError, ValueError), match="max_grad_norm"): learn.step()
    args.max_grad_norm = 1.0
    learn.train()


def test_what_the_constructor_refuses_is_refused_here_too():
    args = TrainingArguments(report_to="none", save_strategy="no", disable_tqdm=True, max_steps=2)
    learn = Learner(torch.nn.Linear(1, 1), args, train_dataset=[(torch.ones(1), torch.ones(1))] * 8, loss_func=torch.nn.MSELoss())
    args.label_smoothing_factor = 0.1
    with pytest.raises(ValueError, match="label_smoothing_factor works on the model's own loss"): learn.train()


@pytest.mark.parametrize("field, value", [
    ("lr_scheduler_kwargs", {"v": np.array([1.0, 2.0])}), ("lr_scheduler_kwargs", {"v": torch.tensor([1.0, float("nan")])}),
    ("activation_checkpointing_kwargs", {"use_reentrant": False, "context_fn": functools.partial(print)}),
])
def test_values_that_have_no_order_or_no_equal_copy_are_no_change(field, value):
    args, _ = begun(activation_checkpointing=field[0] == "a")
    vars(args)[field] = value
    learn = Learner(Net(), args, train_dataset=points(24))
    learn.set(max_grad_norm=0.25)
    for _ in range(2): begin_run(learn)
    assert learn.args.max_grad_norm == 0.25
    assert [e["data"] for e in learn.history.events if e["kind"] == "set"] == [{"max_grad_norm": 0.25}]


def test_a_value_that_was_changed_in_place_counts():
    args, learn = begun(lr_scheduler_type="cosine_with_min_lr", lr_scheduler_kwargs={"min_lr": 1e-4})
    args.lr_scheduler_kwargs["min_lr"] = 5e-4
    learn.train()
    assert learn.args.lr_scheduler_kwargs == {"min_lr": 5e-4} and learn.optimizer.param_groups[0]["lr"] == pytest.approx(5e-4)


def test_a_token_stays_out_of_the_arguments(tmp_path):
    args, learn = begun(output_dir=str(tmp_path))
    args.hub_token = "hf_secret"
    learn.train()
    learn.save_checkpoint()
    assert learn.args.hub_token is None and learn.run_state.parts.uploader.token == "hf_secret"
    assert not any(b"hf_secret" in f.read_bytes() for f in tmp_path.rglob("*") if f.is_file())

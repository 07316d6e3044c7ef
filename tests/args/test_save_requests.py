"""Whether save_strategy was given: its default saves only with an output_dir, and a copy of the arguments asks for no more and no less."""
import copy
import dataclasses
import json
import pickle

import pytest
import torch

from trainer_nb import Learner, TrainingArguments, parse_args
from trainer_nb.args.fields import SaveStrategy


def with_file(args, folder):
    from trainer_nb.args.validation import args_to_json
    (folder / "training_args.json").write_text(args_to_json(args), encoding="utf-8")
    return TrainingArguments.from_file(folder)


def with_learner(args, folder):
    class Net(torch.nn.Linear):
        def forward(self, x): return {"loss": super().forward(x).mean()}
    learn = Learner(Net(2, 1), args, train_dataset=[{"x": torch.ones(2)}] * 8, max_steps=2, disable_tqdm=True, report_to="none")
    learn.step()
    learn.save_checkpoint(folder / "checkpoint-1")
    again = Learner(Net(2, 1), args, train_dataset=[{"x": torch.ones(2)}] * 8, max_steps=2, disable_tqdm=True, report_to="none")
    again.load_checkpoint(folder / "checkpoint-1")
    return again.args


def with_branch(args, folder):
    class Net(torch.nn.Linear):
        def forward(self, x): return {"loss": super().forward(x).mean()}
    return Learner(Net(2, 1), args, train_dataset=[{"x": torch.ones(2)}] * 8, max_steps=2, disable_tqdm=True, report_to="none").branch(weight_decay=0.1).args


COPIES = {
    "replace": lambda args, folder: dataclasses.replace(args, learning_rate=1e-3),
    "keywords": lambda args, folder: TrainingArguments(**args.to_dict()),
    "from_dict": lambda args, folder: TrainingArguments.from_dict(args.to_dict()),
    "json": lambda args, folder: TrainingArguments.from_dict(json.loads(args.to_json_string())),
    "file": with_file,
    "deepcopy": lambda args, folder: copy.deepcopy(args),
    "pickle": lambda args, folder: pickle.loads(pickle.dumps(args)),
    "twice": lambda args, folder: dataclasses.replace(TrainingArguments(**dataclasses.replace(args).to_dict())),
    "checkpoint": with_learner,
    "branch": with_branch,
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("given", [{}, {"save_strategy": "steps"}, {"save_strategy": SaveStrategy.STEPS}, {"save_strategy": "no"}, {"save_strategy": "epoch"},
                                   {"save_steps": 7}, {"output_dir": "out"}], ids=str)
def test_a_copy_asks_for_checkpoints_as_the_original_does(given, how, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    args = TrainingArguments(**given)
    found = COPIES[how](args, tmp_path)
    assert args.saves_checkpoints == (given not in ({}, {"save_strategy": "no"}))
    assert (found.saves_checkpoints, found.save_strategy) == (args.saves_checkpoints, args.save_strategy)


@pytest.mark.parametrize("parse", ["ours", "transformers"])
@pytest.mark.parametrize("words", [[], ["--save_strategy", "steps"], ["--save_strategy", "no"], ["--save_strategy", "epoch"]], ids=str)
def test_a_command_line_asks_for_checkpoints(words, parse):
    if parse == "ours": args = parse_args(argv=["--learning_rate", "1e-3", *words])
    else: args, = pytest.importorskip("transformers").HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(["--learning_rate", "1e-3", *words])
    assert args.saves_checkpoints == (words[1:] in (["steps"], ["epoch"]))
    assert args.save_strategy == (words[1] if words else "steps")


def test_the_default_reads_as_the_trainers():
    args = TrainingArguments()
    assert args.save_strategy == "steps" == SaveStrategy.STEPS and isinstance(args.save_strategy, SaveStrategy)
    assert args.save_strategy.value == "steps" and args.save_strategy.name == "STEPS" and {args.save_strategy} == {SaveStrategy.STEPS}
    assert f"{args.save_strategy} {args.save_strategy!r}" == "steps 'steps'" and json.dumps(args.to_dict()["save_strategy"]) == '"steps"'
    assert repr(args) == "TrainingArguments()" and repr(TrainingArguments(save_strategy="steps")) == "TrainingArguments(save_strategy='steps')"
    assert TrainingArguments.defaults()["save_strategy"] == "steps"


def test_an_assignment_asks_for_checkpoints():
    args = TrainingArguments()
    args.save_strategy = "steps"
    assert args.saves_checkpoints
    assert dataclasses.replace(TrainingArguments(), save_strategy="steps").saves_checkpoints
    assert TrainingArguments(**TrainingArguments().to_dict() | {"save_strategy": "steps"}).saves_checkpoints

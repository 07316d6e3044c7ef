"The configuration of DeepSpeed: where it comes from, what is checked, and how long Transformers sees it."
import gc
import json
import os
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("deepspeed")

from trainer_nb import Learner, TrainingArguments
from trainer_nb.args import strategy_args

ZERO = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 3}}


@pytest.fixture
def launched(monkeypatch):
    "A process of a launcher, which needs no connection here; return whether Transformers would divide a model."
    from transformers.integrations import deepspeed
    monkeypatch.setattr(deepspeed, "_hf_deepspeed_config_weak_ref", None)
    for name, value in {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}.items(): monkeypatch.setenv(name, value)
    monkeypatch.setattr(strategy_args, "connect_processes", lambda *a: None)
    monkeypatch.setattr(strategy_args, "import_deepspeed", lambda *a: SimpleNamespace(init_distributed=lambda **k: None))
    return deepspeed.is_deepspeed_zero3_enabled


def with_file(monkeypatch, tmp_path, config):
    "The variables that `accelerate launch --deepspeed_config_file` sets."
    (tmp_path / "ds.json").write_text(json.dumps(config))
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(tmp_path / "ds.json"))


def test_transformers_divides_models_as_long_as_the_arguments_exist(launched):
    args = TrainingArguments(deepspeed=ZERO, use_cpu=True)
    assert launched()
    # as with the Trainer, arguments without DeepSpeed change nothing
    TrainingArguments(use_cpu=True)
    assert launched()
    del args
    gc.collect()
    assert not launched()


def test_the_last_configuration_counts(launched):
    first = TrainingArguments(deepspeed=ZERO, use_cpu=True)
    second = TrainingArguments(deepspeed={"zero_optimization": {"stage": 2}}, use_cpu=True)
    assert not launched()
    third = TrainingArguments(deepspeed=ZERO, use_cpu=True)
    assert launched() and first and second and third


def test_model_init_of_a_run_without_deepspeed_makes_a_whole_model(launched):
    other = TrainingArguments(deepspeed=ZERO, use_cpu=True)
    seen = []
    def model_init():
        seen.append(launched())
        return torch.nn.Linear(1, 1)
    learn = Learner(model_init=model_init, use_cpu=True)
    learn.model
    assert seen == [False] and other


@pytest.mark.parametrize("by_file", [True, False])
def test_the_variables_of_accelerate_launch_have_the_same_effect(launched, monkeypatch, tmp_path, by_file):
    if by_file: with_file(monkeypatch, tmp_path, ZERO)
    else:
        monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
        monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "3")
    args = TrainingArguments(use_cpu=True)
    assert launched()
    del args
    gc.collect()
    assert not launched()
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO3_INIT", "false")
    args = TrainingArguments(use_cpu=True)
    assert args and not launched()


@pytest.mark.parametrize("config, words", [
    ({"fp16": {"enabled": True}}, "zero_optimization"), ({"zero_optimization": {"stage": 0}}, "stage"),
    ({"zero_optimization": {"stage": 2}, "elasticity": {"enabled": True}}, "elasticity"),
    ({"zero_optimization": {"stage": 2}, "tensor_parallel": {"autotp_size": 2}}, "tensor_parallel")])
def test_a_file_of_accelerate_launch_is_checked(monkeypatch, tmp_path, config, words):
    "What is rejected in deepspeed= is rejected in the file, whose variable the message names."
    with_file(monkeypatch, tmp_path, config)
    with pytest.raises(ValueError, match=words) as error: TrainingArguments()
    assert "ACCELERATE_DEEPSPEED_CONFIG_FILE" in str(error.value) and "deepspeed=" not in str(error.value).split(";")[0]


def test_the_variables_are_checked(monkeypatch, tmp_path):
    with_file(monkeypatch, tmp_path, {"zero_optimization": {"stage": 2}, "optimizer": {"type": "AdamW"}})
    with pytest.raises(ValueError, match="layer groups"): TrainingArguments(learning_rate=[1e-4, 1e-3], layer_groups=["a", "b"])
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(tmp_path / "nowhere.json"))
    with pytest.raises(ValueError, match="ACCELERATE_DEEPSPEED_CONFIG_FILE=.*nowhere.json"): TrainingArguments()
    monkeypatch.delenv("ACCELERATE_DEEPSPEED_CONFIG_FILE")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "0")
    with pytest.raises(ValueError, match="ACCELERATE_DEEPSPEED_ZERO_STAGE"): TrainingArguments()
    # deepspeed= precedes the variables, as in the Trainer
    assert TrainingArguments(deepspeed={"zero_optimization": {"stage": 2}}).deepspeed


def test_a_run_on_the_cpu_does_not_keep_later_ones_from_the_gpu(monkeypatch):
    from datetime import timedelta
    from accelerate import PartialState
    from trainer_nb.args.parallel import connect_processes
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    before = dict(PartialState._shared_state)
    PartialState._reset_state()
    try:
        connect_processes(True, timedelta(seconds=10))
    finally:
        PartialState._shared_state.clear()
        PartialState._shared_state.update(before)
    assert "ACCELERATE_USE_CPU" not in os.environ

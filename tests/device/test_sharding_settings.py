"FSDP's settings: the words of the Trainer, the keys of its dictionary, the environment of `accelerate launch`, and accelerate's plugin object."
import json, warnings

import pytest, torch

from trainer_nb import TrainingArguments
from trainer_nb.args.validation import args_to_json
from trainer_nb.args.strategy_args import ShardedPrecision, ShardingConfig, fsdp_config_from_environment
from trainer_nb.args.strategy_args import read_fsdp_config, resolve_sharding


@pytest.mark.parametrize("fsdp, config, expected", [
    ("full_shard offload", None, ShardingConfig(offload=True)), (["full_shard", "offload", "auto_wrap"], {}, ShardingConfig(offload=True)),
    (True, {"cpu_offload": "true"}, ShardingConfig(offload=True)), ("offload", {"cpu_offload": True}, ShardingConfig(offload=True)),
    ("hybrid_shard", None, ShardingConfig(shard_size=0)), ("hybrid_shard auto_wrap", {"dp_shard_size": 2}, ShardingConfig(shard_size=2)),
    (True, {"dp_shard_size": 2}, ShardingConfig(shard_size=2)), ("hybrid_shard_zero2", None, ShardingConfig(reshard=False, shard_size=0)),
    (True, {"sharding_strategy": "SHARD_GRAD_OP"}, ShardingConfig(reshard=False)), (True, {"fsdp_sharding_strategy": 4}, ShardingConfig(shard_size=0)),
    (True, {"reshard_after_forward": "shard_grad_op", "version": 1}, ShardingConfig(reshard=False)),
    (True, {"state_dict_type": "SHARDED_STATE_DICT"}, ShardingConfig(separate_files=True)), (True, {"fsdp_state_dict_type": "full_state_dict"}, ShardingConfig()),
    (True, {"fsdp_activation_checkpointing": True}, ShardingConfig(recompute=True)), (True, {"cpu_ram_efficient_loading": True, "sync_module_states": True}, ShardingConfig()),
    (True, {"activation_checkpointing": True, "activation_checkpointing_offload": True}, ShardingConfig(recompute=True, offload_inputs=True)),
    (True, {"mixed_precision_policy": "bf16"}, ShardingConfig(precision=ShardedPrecision("bfloat16", "bfloat16", "bfloat16"))),
    (True, {"mixed_precision_policy": {"param_dtype": "bf16", "reduce_dtype": torch.float32}}, ShardingConfig(precision=ShardedPrecision("bfloat16", "float32"))),
    (True, {"transformer_layer_cls_to_wrap": "Block,Head"}, ShardingConfig(classes=("Block", "Head")))])
def test_every_key_has_its_effect(fsdp, config, expected):
    assert resolve_sharding(fsdp, config) == expected


def test_members_of_transformers_enumeration():
    from transformers.trainer_utils import FSDPOption
    assert resolve_sharding([FSDPOption.SHARD_GRAD_OP, FSDPOption.OFFLOAD]) == ShardingConfig(reshard=False, offload=True)


def test_the_arguments_hold_plain_values_that_can_be_written():
    "A torch policy and accelerate's plugin become a dictionary, which gives the same settings again."
    from accelerate import FullyShardedDataParallelPlugin
    from torch.distributed.fsdp import MixedPrecisionPolicy
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, cpu_offload=True, mixed_precision_policy=policy, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Block"],
                                            reshard_after_forward=False, activation_checkpointing=True)
    expected = ShardingConfig(classes=("Block",), reshard=False, offload=True, precision=ShardedPrecision("bfloat16", "float32", None, False), recompute=True, separate_files=True)
    args = TrainingArguments(fsdp=True, fsdp_config=plugin)
    assert resolve_sharding(True, args.fsdp_config) == expected
    assert resolve_sharding(True, json.loads(args_to_json(args))["fsdp_config"]) == expected
    small = TrainingArguments(fsdp=True, fsdp_config={"mixed_precision_policy": policy})
    assert json.loads(args_to_json(small))["fsdp_config"] == {"mixed_precision_policy": {"param_dtype": "bfloat16", "reduce_dtype": "float32", "cast_forward_inputs": False}}
    assert resolve_sharding(True, FullyShardedDataParallelPlugin(fsdp_version=2)) == ShardingConfig("NO_WRAP", separate_files=True)
    version1 = FullyShardedDataParallelPlugin(sharding_strategy="SHARD_GRAD_OP", auto_wrap_policy="size_based_wrap", min_num_params=7)
    assert resolve_sharding(True, version1) == ShardingConfig("SIZE_BASED_WRAP", min_params=7, reshard=False)
    with pytest.raises(ValueError, match="auto_wrap_policy is a function"): read_fsdp_config(FullyShardedDataParallelPlugin(auto_wrap_policy=lambda *args, **kwargs: False))


@pytest.mark.parametrize("config, words", [
    ({"version": 1}, "trains with version 2 of FSDP"), ({"backward_prefetch": "BACKWARD_PRE"}, "'backward_prefetch': 'BACKWARD_PRE'} has no effect"), ({"forward_prefetch": True}, "forward_prefetch"),
    ({"use_orig_params": False}, "use_orig_params"), ({"sync_module_states": "false"}, "sync_module_states"), ({"limit_all_gathers": False}, "limit_all_gathers")])
def test_an_option_of_version_1_warns_and_changes_nothing(config, words):
    with pytest.warns(UserWarning, match=words): args = TrainingArguments(fsdp=True, fsdp_config=config)
    assert resolve_sharding(True, args.fsdp_config) == ShardingConfig()


def test_the_values_of_version_2_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TrainingArguments(fsdp=True, fsdp_config={"backward_prefetch": "no_prefetch", "forward_prefetch": "false", "use_orig_params": True, "sync_module_states": True, "limit_all_gathers": True})


def test_the_trainer_reads_the_key_for_loading(monkeypatch):
    "transformers' from_pretrained looks at the environment."
    from trainer_nb.args import strategy_args
    monkeypatch.setattr(strategy_args.os, "environ", {})
    TrainingArguments(fsdp=True, fsdp_config={"cpu_ram_efficient_loading": True})
    assert strategy_args.os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "true"


ENVIRONMENTS = {   # as `accelerate launch` makes them, by the flags of its configuration
    "version 2": (dict(fsdp_version=2), ShardingConfig("NO_WRAP", separate_files=True)),
    "layers": (dict(fsdp_version=2, fsdp_auto_wrap_policy="TRANSFORMER_BASED_WRAP", fsdp_transformer_layer_cls_to_wrap="Block", fsdp_offload_params=True, fsdp_state_dict_type="FULL_STATE_DICT"),
               ShardingConfig(classes=("Block",), offload=True)),
    "size": (dict(fsdp_version=2, fsdp_auto_wrap_policy="SIZE_BASED_WRAP", fsdp_min_num_params=9, fsdp_reshard_after_forward=False, fsdp_activation_checkpointing=True),
             ShardingConfig("SIZE_BASED_WRAP", min_params=9, reshard=False, recompute=True, separate_files=True)),
    "version 1": (dict(fsdp_version=1, fsdp_sharding_strategy="HYBRID_SHARD", fsdp_auto_wrap_policy="TRANSFORMER_BASED_WRAP", fsdp_backward_prefetch="BACKWARD_PRE"), ShardingConfig(shard_size=0)),
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_environment_of_accelerate_launch(name, monkeypatch):
    "The variables are those that accelerate itself sets for a configuration."
    from accelerate.commands.launch import launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env
    given, expected = ENVIRONMENTS[name]
    args = launch_command_parser().parse_args(["--use_fsdp", "--num_processes", "2", "script.py"])
    vars(args).update(given, num_machines=1, main_process_ip=None, main_process_port=29501, mixed_precision="no", dynamo_backend="no")
    launched = {k: v for k, v in prepare_multi_gpu_env(args).items() if k.startswith("FSDP_") or k == "ACCELERATE_USE_FSDP"} | {"WORLD_SIZE": "2"}
    for key, value in launched.items(): monkeypatch.setenv(key, value)
    assert resolve_sharding(True, fsdp_config_from_environment()) == expected
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = TrainingArguments()
        assert args.fsdp is True and resolve_sharding(args.fsdp, args.fsdp_config) == expected
        assert resolve_sharding(True, TrainingArguments(fsdp=True).fsdp_config) == ShardingConfig()   # what the script says comes first


def test_one_process_ignores_the_environment(monkeypatch):
    "As the Trainer does: there is nothing to share."
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert TrainingArguments().fsdp is None

"""What the arguments accept and refuse, and that their names and defaults are the Trainer's."""
import ast, copy, dataclasses, functools, inspect, json, math, os, re, warnings
from pathlib import Path
from typing import get_type_hints
import numpy as np
import pytest
import torch
import trainer_nb
from trainer_nb.args.validation import FIELD_ALIASES, REMOVED, RENAMED, REPLACED, UNSUPPORTED
from trainer_nb.args.training_args import TrainingArgumentsKwargs, TrainingArguments, resolve_args
from trainer_nb.args.fields import CHOICES, OPTIMIZER_NAMES, SCHEDULE_NAMES, SCRIPT_FIELDS, field_default, field_types
from argument_values import NEEDS, OTHER   # noqa: F401

FIELDS = {f.name: f for f in dataclasses.fields(TrainingArguments)}
OWN = {"layer_groups", "logging_dir", "rewind_every", "rewind_memory", "save_format", "rollback", "on_nan", "on_spike", "check_on_start", "average", "average_args"}
# The same for the fields that are refused so far: a value that has to be refused.
WANTED = dict(
    auto_find_batch_size=True, optim_target_modules=["a"], neftune_noise_alpha=5.0, tf32=False,
    activation_checkpointing=True, activation_checkpointing_kwargs={"use_reentrant": False}, gradient_checkpointing=True,
    gradient_checkpointing_kwargs={"use_reentrant": False}, torch_compile=True, torch_compile_backend="eager", torch_compile_mode="default",
    use_liger_kernel=True, liger_kernel_config={"rope": True}, use_cache=True, torch_empty_cache_steps=5, skip_memory_metrics=False,
    debug="underflow_overflow", fsdp=True, fsdp_config={"auto_wrap_policy": "NO_WRAP"}, deepspeed={"zero_optimization": {"stage": 2}},
    parallelism_config={"tp_size": 2}, logging_nan_inf_filter=False, logging_dir="events", log_level="info",
    log_level_replica="error", log_on_each_node=False, report_to="tensorboard", project="mine", trackio_space_id="me/space", trackio_bucket_id="me/bucket",
    trackio_static_space_id="me/static", sortish_sampler=True,
    restore_callback_states_from_checkpoint=True, push_to_hub=True, hub_model_id="me/model", hub_strategy="end", hub_token="x",
    hub_private_repo=True, hub_always_push=True, hub_revision="main", dataloader_in_order=False)
OTHERWISE = {"gradient_checkpointing", "gradient_checkpointing_kwargs"}   # fields that are older names
VALUES = OTHER | WANTED
OTHER = {name: value for name, value in VALUES.items() if name not in {*UNSUPPORTED, *OTHERWISE}}
WANTED = {name: value for name, value in VALUES.items() if name in UNSUPPORTED}
NO_TRACE = {"report_to"}   # becomes the default's spelling

def refused(text, error=ValueError, **settings):
    with pytest.raises(error) as e: TrainingArguments(**settings)
    assert text in str(e.value), str(e.value)
    assert "\n" not in str(e.value)

def test_the_walk_is_complete():
    "Every field is walked through, and what is refused is in the table of what is refused."
    assert set(OTHER) | set(WANTED) | OTHERWISE == set(FIELDS)
    assert set(WANTED) == set(UNSUPPORTED)

@pytest.mark.filterwarnings("ignore:.*older name")
@pytest.mark.parametrize("name", list(WANTED))
def test_what_is_not_honoured_is_refused_when_it_is_set(name):
    if name == "sortish_sampler":   # an older name, translated where it is given
        assert TrainingArguments(sortish_sampler=True).train_sampling_strategy == "group_by_length"
        args = TrainingArguments()
        args.sortish_sampler = True
        with pytest.raises(ValueError, match="group_by_length"): args.check()
        return
    newer = RENAMED.get(name, name)
    refused(newer, **{name: WANTED[name]})
    with pytest.raises(ValueError, match=newer): resolve_args(TrainingArguments(), {name: WANTED[name]})

@pytest.mark.filterwarnings("ignore:.*older name")
@pytest.mark.parametrize("name", list(OTHER))
def test_every_field_is_taken_changed_and_comes_back(name):
    settings = {name: OTHER[name], **NEEDS.get(name, {})}
    args = TrainingArguments(**settings)
    if name == "hub_token":   # a secret: kept, and neither shown nor written
        assert args.hub_token == "x" and "'x'" not in repr(args) + args._repr_html_() and '"x"' not in args.to_json_string()
        assert TrainingArguments.from_dict(args.to_dict()).hub_token is None and copy.deepcopy(args) == args
        return
    assert TrainingArguments(**args.changed()) == args == TrainingArguments.from_dict(json.loads(args.to_json_string()))
    assert copy.deepcopy(args) == args == resolve_args(TrainingArguments(), settings) == resolve_args(None, settings)
    if name in NO_TRACE: return
    assert getattr(args, name) == OTHER[name]
    name, value = FIELD_ALIASES.get(name, name), OTHER[name]
    assert args != TrainingArguments() and name in args.changed()
    assert f"{name}={value!r}" in repr(args) and name in args._repr_html_()

@pytest.mark.filterwarnings("ignore:.*older name")
@pytest.mark.parametrize("name", list(FIELDS))
def test_a_wrong_type_is_refused_by_name(name):
    if name in ("generation_config", "parallelism_config", "sortish_sampler"): return   # objects of other libraries; a flag that is translated
    with pytest.raises(ValueError, match=FIELD_ALIASES.get(name, name)): TrainingArguments(**{name: object()})

def test_defaults_are_the_trainers():
    theirs = pytest.importorskip("transformers").TrainingArguments
    theirs = {f.name: f for f in dataclasses.fields(theirs) if f.init}
    more = pytest.importorskip("transformers").Seq2SeqTrainingArguments
    theirs |= {f.name: f for f in dataclasses.fields(more) if f.init}
    assert set(FIELDS) - set(theirs) == OWN and set(theirs) <= set(FIELDS)
    differ = {n for n in theirs if field_default(theirs[n]) != field_default(FIELDS[n])}
    assert differ == set()
    assert set(RENAMED.values()) <= set(FIELDS) and set(RENAMED) & set(FIELDS) == set(FIELD_ALIASES)

def test_warmup_steps_are_the_trainers(tmp_path):
    theirs = pytest.importorskip("transformers").TrainingArguments
    for w in (0, 0.03, 0.1, 0.999, 1, 1.0, 7):
        for n in (1, 3, 10, 1005):
            assert TrainingArguments(warmup_steps=w).get_warmup_steps(n) == theirs(
                str(tmp_path), warmup_steps=w, use_cpu=True).get_warmup_steps(n)

def test_enums_of_transformers_become_strings():
    t = pytest.importorskip("transformers.training_args")
    from transformers.trainer_utils import IntervalStrategy, SaveStrategy, SchedulerType
    args = TrainingArguments(eval_strategy=IntervalStrategy.STEPS, lr_scheduler_type=SchedulerType.COSINE,
                             optim=t.OptimizerNames.SGD, save_strategy=SaveStrategy.STEPS)
    assert args == TrainingArguments(eval_strategy="steps", lr_scheduler_type="cosine", optim="sgd")
    names = ("eval_strategy", "lr_scheduler_type", "optim", "save_strategy")
    assert all(type(vars(args)[n]) is str and type(args.to_dict()[n]) is str for n in names)
    assert [(getattr(args, n).value, getattr(args, n).name) for n in names] == [("steps", "STEPS"), ("cosine", "COSINE"), ("sgd", "SGD"), ("steps", "STEPS")]
    assert copy.deepcopy(args).optim.value == "sgd" and args.optim == t.OptimizerNames.SGD

def test_settings_has_the_same_names_and_types():
    assert get_type_hints(TrainingArgumentsKwargs) == field_types(TrainingArguments)
    assert TrainingArgumentsKwargs.__total__ is False
    assert list(inspect.signature(TrainingArguments).parameters) == list(FIELDS)
    assert TrainingArguments("here").output_dir == "here"

def test_what_asks_for_nothing_is_taken():
    nothing = dict(push_to_hub=False, fsdp="", debug=[], activation_checkpointing=False, deepspeed=None, eval_do_concat_batches=True)
    for name, value in nothing.items(): assert getattr(TrainingArguments(**{name: value}), name) == value

# ---- no argument is ignored in silence ----

ALSO = dict(per_device_train_batch_size="train_batch_size", per_device_eval_batch_size="eval_batch_size", data_seed="order_seed",
            warmup_steps="get_warmup_steps")   # read by a property or a method of the arguments

@functools.cache
def read_by_the_package():
    "What is read off the arguments anywhere outside of the module that defines them."
    found = set()
    for path in Path(trainer_nb.__file__).parent.rglob("*.py"):
        if path.stem in ("training_args", "setters", "_modidx"): continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                owner = getattr(node.value, "attr", getattr(node.value, "id", ""))
                if owner in ("args", "_args", "a"): found.add(node.attr)
            elif isinstance(node, ast.Constant) and path.stem == "callbacks": found.add(node.value)   # getattr(args, kind)
    return found

@pytest.mark.parametrize("name", sorted(set(FIELDS) - set(UNSUPPORTED)))
def test_every_field_is_read_or_a_flag_of_scripts(name):
    "What nothing reads is refused, or a flag that is there for scripts and says so."
    flag = name in SCRIPT_FIELDS
    assert flag or name in FIELD_ALIASES or name == "sortish_sampler" or ALSO.get(name, name) in read_by_the_package()
    if flag: assert FIELDS[name].metadata["help"].startswith("for ")

def test_every_name_of_the_trainers_is_taken_or_refused_by_name(tmp_path):
    "A script that writes out the Trainer's defaults gets ours."
    theirs = pytest.importorskip("transformers").Seq2SeqTrainingArguments
    given = {f.name: field_default(f) for f in dataclasses.fields(theirs) if f.init}
    assert TrainingArguments(**given) == TrainingArguments()
    for f in dataclasses.fields(theirs):
        if f.init: assert TrainingArguments(**{f.name: field_default(f)}) == TrainingArguments()

@pytest.mark.parametrize("text, settings", [
    ("5.0e-5 as a number", dict(learning_rate="5e-5")), ("1e-05", dict(learning_rate="1e-5")),
    ("Write 'no' in quotes", dict(eval_strategy=False)), ("Write 10000", dict(max_steps=1e4)),
    ("at least 1", dict(per_device_train_batch_size=0)), ("at least 1", dict(per_device_eval_batch_size=-1)),
    ("should be int", dict(per_device_train_batch_size=2.5)), ("should be int", dict(gradient_accumulation_steps=True)),
    ("at least 1", dict(gradient_accumulation_steps=0)), ("0 or more", dict(max_grad_norm=-1.0)),
    ("0 or more", dict(learning_rate=-1e-3)), ("0 or more", dict(learning_rate=math.nan)),
    ("0 or more", dict(learning_rate=math.inf)), ("0 or more", dict(learning_rate=[1e-3, -1.0], layer_groups=["a"])),
    ("0 or more", dict(warmup_steps=-1)), ("from 0 to below 1", dict(label_smoothing_factor=1.0)),
    ("from 0 to below 1", dict(adam_beta2=1.0)),
    ("0 or more", dict(logging_steps=-1)), ("logging_strategy='no'", dict(logging_steps=0)),
    ("whole number", dict(logging_steps=1.5)),
    ("above 0", dict(eval_strategy="steps", logging_strategy="no", logging_steps=0)),
    ("nothing would be trained", dict(num_train_epochs=0)), ("nothing would be trained", dict(num_train_epochs=-1.0)),
    ("exclude each other", dict(fp16=True, bf16=True)), ("needs layer_groups", dict(learning_rate=[1e-3])),
    ("contains no rate", dict(learning_rate=[], layer_groups=["a"])),
    ("Did you mean 'cosine'?", dict(lr_scheduler_type="cosin")), ("Did you mean 'adamw_torch'", dict(optim="adamw_torh")), ("Did you mean 'torch.optim:NAdam'", dict(optim="NAdam")),
    ("Did you mean 'epoch'?", dict(eval_strategy="epochs")), ("'random', 'sequential'", dict(train_sampling_strategy="by_length")), ("is for orders by length", dict(length_column_name="n")),
    ("'light', 'full'", dict(rollback="heavy")), ("'ema', 'swa'", dict(average="mean")), ("from 0 to 1", dict(average="ema", average_args=dict(decay=99))),
    ("does not take", dict(average="swa", average_args=dict(decay=0.9))), ("Give average=", dict(average_args=dict(decay=0.9))), ("give a dictionary", dict(average="ema", average_args="decay=0.9")),
    ("averages the weights itself", dict(average="ema", optim="schedule_free_sgd")), ("which fsdp divides", dict(average="ema", fsdp=True)), ("give dataloader_num_workers", dict(dataloader_prefetch_factor=2)),
    ("give dataloader_num_workers", dict(dataloader_persistent_workers=True)), ("give dataloader_num_workers", dict(dataloader_multiprocessing_context="fork")),
    ("list[str]", dict(label_names="labels")), ("Did you mean 'learning_rate'", dict(lerning_rate=1)), ("There is no argument `zzz`.", dict(zzz=1)),
])
def test_refused(text, settings): refused(text, (TypeError, ValueError), **settings)

def test_what_is_allowed():
    assert TrainingArguments(num_train_epochs=0, max_steps=5).max_steps == 5
    assert TrainingArguments(logging_strategy="no", logging_steps=0).logging_steps == 0
    assert TrainingArguments(logging_steps=10.0).logging_steps == 10 and type(TrainingArguments(logging_steps=10.0).logging_steps) is int
    assert TrainingArguments(logging_steps=0.1).logging_steps == 0.1
    assert [TrainingArguments(report_to=r).report_to for r in (None, [], "none", ["none"])] == [[]] * 4
    assert TrainingArguments(learning_rate=1).learning_rate == 1
    assert type(TrainingArguments(per_device_train_batch_size=np.int64(4)).per_device_train_batch_size) is int
    assert TrainingArguments(learning_rate=(1e-4, 1e-3), layer_groups=("a",)).layer_groups == ["a"]
    assert TrainingArguments("~/x").output_dir == os.path.expanduser("~/x")
    for name, names in CHOICES.items():
        if name in UNSUPPORTED: continue
        for value in names:
            beside = dict(output_dir="out", eval_strategy="steps") if name.startswith(("save", "lr_")) else {} if value is None else NEEDS.get(name, {})
            assert getattr(TrainingArguments(**{name: value}, **beside), name) == value
    assert CHOICES["optim"] == OPTIMIZER_NAMES and CHOICES["lr_scheduler_type"] == SCHEDULE_NAMES

def test_saving_is_asked_for_and_the_best_needs_an_evaluation():
    for asked in (dict(save_strategy="epoch"), dict(save_steps=7), dict(save_total_limit=2), dict(save_only_model=True), dict(save_format="trainer")):
        assert TrainingArguments("out", **asked).saves_checkpoints and TrainingArguments(**asked).saves_checkpoints
        assert not TrainingArguments(**asked | dict(save_strategy="no")).saves_checkpoints and TrainingArguments(**asked).save_dir == "trainer_output"
    assert TrainingArguments(save_strategy="steps").saves_checkpoints and not TrainingArguments().saves_checkpoints
    assert not TrainingArguments(**TrainingArguments().to_dict()).saves_checkpoints
    for asked in (dict(load_best_model_at_end=True), dict(save_strategy="best")):
        refused("eval_strategy", output_dir="out", **asked)
        args = TrainingArguments("out", eval_strategy="epoch", **asked)
        assert (args.metric_for_best_model, args.greater_is_better) == ("loss", False)
        args = TrainingArguments("out", eval_strategy="epoch", metric_for_best_model="accuracy", **asked)
        assert (args.metric_for_best_model, args.greater_is_better) == ("accuracy", True)

def test_fields_that_follow_others():
    args = TrainingArguments(eval_strategy="steps", metric_for_best_model="eval_loss")
    assert (args.eval_steps, args.greater_is_better) == (500, False)
    new = resolve_args(args, dict(logging_steps=10, metric_for_best_model="accuracy"))
    assert (new.eval_steps, new.greater_is_better) == (10, True)
    assert resolve_args(new, dict(logging_steps=3)).eval_steps == 3
    assert resolve_args(args, dict(logging_steps=10, eval_steps=500)).eval_steps == 500
    assert resolve_args(TrainingArguments(eval_strategy="steps", eval_steps=500), dict(logging_steps=10)).eval_steps == 500
    args.eval_steps = 7
    args.logging_steps = 9
    args.check()
    assert args.eval_steps == 7
    args.check()
    assert args.eval_steps == 7

def test_resolve_copies_and_checks():
    args = TrainingArguments(lr_scheduler_kwargs={"num_cycles": 1.0})
    new = resolve_args(args, {})
    new.lr_scheduler_kwargs["num_cycles"] = 2.0
    assert args.lr_scheduler_kwargs == {"num_cycles": 1.0} and new is not args
    mine = {"num_cycles": 1.0}
    resolve_args(args, dict(lr_scheduler_kwargs=mine)).lr_scheduler_kwargs["num_cycles"] = 3.0
    assert mine == {"num_cycles": 1.0}
    with pytest.raises(ValueError, match="exclude"): resolve_args(TrainingArguments(fp16=True), dict(bf16=True))
    assert resolve_args({"seed": 1}, {"seed": 2}).seed == 2

def test_resolve_keeps_the_class_and_knows_its_fields():
    @dataclasses.dataclass(repr=False)
    class More(TrainingArguments): beam: int = 1
    new = resolve_args(More(beam=2), dict(seed=3))
    assert type(new) is More and (new.beam, new.seed) == (2, 3) and resolve_args(new, dict(beam=5)).beam == 5

def test_resolve_names_a_wrong_type(tmp_path):
    with pytest.raises(TypeError, match="of type int; pass a TrainingArguments"): resolve_args(5, {})
    with pytest.raises(TypeError, match="args is the path 'out'; .* output_dir='out'"): resolve_args("out", {})
    theirs = pytest.importorskip("transformers").TrainingArguments(str(tmp_path), use_cpu=True)
    with pytest.raises(TypeError, match="import TrainingArguments from trainer_nb"): resolve_args(theirs, {})

def test_html_is_escaped():
    assert "<b>" not in TrainingArguments(run_name="<b>x</b>")._repr_html_()
    assert "defaults" in TrainingArguments()._repr_html_()



def test_where_the_run_takes_place(monkeypatch):
    "What callbacks of the Trainer ask their arguments for."
    args = TrainingArguments(use_cpu=True)
    assert (args.world_size, args.process_index, args.local_process_index, args.n_gpu, args.should_log, args.should_save) == (1, 0, 0, 0, True, True)
    for name, value in dict(WORLD_SIZE="4", RANK="2", LOCAL_RANK="0").items(): monkeypatch.setenv(name, value)
    assert (args.world_size, args.process_index, args.local_process_index, args.should_log, args.should_save) == (4, 2, 0, True, False)
    assert not TrainingArguments(log_on_each_node=False).should_log
    assert "world_size" not in args.to_dict()

# ---- older names ----

def test_older_names_become_newer_ones_with_one_warning_each():
    older = dict(evaluation_strategy="epoch", no_cuda=True, warmup_ratio=0.1, adafactor=True, per_gpu_train_batch_size=4, per_gpu_eval_batch_size=2)
    for name, value in older.items():
        with pytest.warns(UserWarning, match=name) as told: args = TrainingArguments(**{name: value})
        assert len(told) == 1 and told[0].filename == __file__
        (new, now), = args.changed().items()
        assert new in str(told[0].message) and now in (value, "adafactor")
    with pytest.warns(UserWarning):
        assert resolve_args(TrainingArguments(warmup_steps=5), dict(warmup_ratio=0.1)).warmup_steps == 0.1
        assert TrainingArguments(optim="adamw_hf").optim == "adamw_torch"
        assert trainer_nb.parse_args(argv=["--evaluation_strategy", "epoch", "--no_cuda"]) == TrainingArguments(eval_strategy="epoch", use_cpu=True)
    with pytest.warns(UserWarning, match="warmup_ratio=0.1 has no effect, because warmup_steps=10"): assert TrainingArguments(warmup_ratio=0.1, warmup_steps=10).warmup_steps == 10

def test_what_older_names_ask_for_is_never_lost():
    "Each is translated, dropped because it asks for nothing, or refused; in silence where it is off."
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in [*RENAMED, *REPLACED]: assert TrainingArguments(**{name: None}) == TrainingArguments()
        for name in ("no_cuda", "adafactor", "group_by_length", "evaluate_during_training", "include_inputs_for_metrics", "split_batches"):
            assert TrainingArguments(**{name: False}) == TrainingArguments()
    for name, (why, values) in REMOVED.items():
        if values is not None: refused(why, **{name: "something"})
    with pytest.warns(UserWarning, match="not needed"): assert TrainingArguments(overwrite_output_dir=True, fp16_backend="auto") == TrainingArguments()

@pytest.mark.filterwarnings("ignore:.*older name")
def test_an_older_name_that_is_still_a_field_says_the_same(monkeypatch):
    monkeypatch.delitem(UNSUPPORTED, "activation_checkpointing", raising=False)
    args = TrainingArguments(gradient_checkpointing=True)
    assert args.activation_checkpointing is args.gradient_checkpointing is True and args.changed() == {"activation_checkpointing": True}
    assert TrainingArguments.from_dict(args.to_dict()) == args == copy.deepcopy(args)
    args.gradient_checkpointing = False
    args.check()
    assert args.activation_checkpointing is False
    new = resolve_args(TrainingArguments(activation_checkpointing=True), dict(gradient_checkpointing=False))
    assert new.activation_checkpointing is new.gradient_checkpointing is False

# ---- command lines ----

LINE = ("--output_dir out --learning_rate 1e-3 --bf16 --warmup_steps 0.1 --label_names a b --optim_args momentum=0.9 --optim sgd "
        "--lr_scheduler_type cosine --lr_scheduler_kwargs {\"num_cycles\":1} --no_remove_unused_columns --eval_strategy steps --eval_steps 5 "
        "--dataloader_pin_memory false --max_steps 7").split()

def test_a_command_line_means_the_same_to_transformers_parser(tmp_path):
    parser = pytest.importorskip("transformers").HfArgumentParser(TrainingArguments)
    theirs, = parser.parse_args_into_dataclasses(LINE)
    assert theirs == trainer_nb.parse_args(argv=LINE) and theirs.learning_rate == 1e-3 and theirs.lr_scheduler_kwargs == {"num_cycles": 1}
    theirs, = parser.parse_args_into_dataclasses([])
    assert theirs == TrainingArguments()
    assert parser.parse_dict(TrainingArguments(seed=3).to_dict())[0] == TrainingArguments(seed=3)
    assert TrainingArguments(learning_rate=[1e-3, 1e-4], layer_groups=["a"]).learning_rate == [1e-3, 1e-4]   # its reading of the types changes nothing here

def test_words_of_a_command_line_that_the_trainers_arguments_take():
    "transformers' parser gives every field, also those with defaults, and passes on True as a word."
    parser = pytest.importorskip("transformers").HfArgumentParser(TrainingArguments)
    for word, counted in (("True", "all"), ("true", "all"), ("False", "no"), ("non_padding", "non_padding")):
        args, = parser.parse_args_into_dataclasses(["--include_num_input_tokens_seen", word])
        assert args.include_num_input_tokens_seen == counted
    for words in (["--sortish_sampler"], ["--sortish_sampler", "True"]):
        with pytest.warns(UserWarning, match="older name"): args, = parser.parse_args_into_dataclasses(words)
        assert args.train_sampling_strategy == "group_by_length"
    with pytest.raises(ValueError, match="both are given"): TrainingArguments(sortish_sampler=True, train_sampling_strategy="sequential")

@pytest.mark.parametrize("name", sorted(set(OTHER) - set(NEEDS) - {"layer_groups"}))
def test_every_field_can_be_given_on_a_command_line(name):
    value = OTHER[name]
    words = value if isinstance(value, list) else [json.dumps(value) if isinstance(value, dict) else str(value)]
    needs = [w for k, v in NEEDS.get(name, {}).items() for w in (f"--{k}", str(v))]
    assert trainer_nb.parse_args(argv=[f"--{name}", *map(str, words), *needs]) == TrainingArguments(**{name: value}, **NEEDS.get(name, {}))

def test_the_mistakes_of_a_command_line_end_the_script(capsys):
    for words, told in (("--max_steps many", "max_steps"), ("--optim adamm", "adamw_torch"), ("--lerning_rate 1", "lerning_rate"), ("--bf16 --fp16", "exclude")):
        with pytest.raises(SystemExit): trainer_nb.parse_args(argv=words.split())
        assert told in capsys.readouterr().err

# ---- classes made of ours ----

def test_a_script_s_own_arguments_know_older_names_too():
    "A dataclass made of ours, and a class with an __init__ of its own that hands on."
    @dataclasses.dataclass
    class More(TrainingArguments): beam: int = 1

    class Own(TrainingArguments):
        def __init__(self, beam, **given):
            self.beam = beam
            super().__init__("out", **given)

    with pytest.warns(UserWarning, match="older name"): assert More(beam=2, evaluation_strategy="epoch").eval_strategy == "epoch"
    with pytest.warns(UserWarning, match="older name"): assert Own(3, evaluation_strategy="epoch").eval_strategy == "epoch"
    for cls in (More, Own):
        with pytest.raises(TypeError, match="Did you mean 'learning_rate'"): cls(beam=1, lerning_rate=1)
    assert list(inspect.signature(More).parameters) == [*FIELDS, "beam"] and list(inspect.signature(Own).parameters) == ["beam", "given"]
    assert trainer_nb.parse_args(More, argv=["--beam", "5", "--seed", "3"]) == More(beam=5, seed=3)


def test_flags_that_scripts_ask_for():
    "As at the Trainer: do_eval follows eval_strategy, parallel_mode has a value, and a copy with the newer name means that."
    from transformers.training_args import ParallelMode
    assert TrainingArguments(eval_strategy="epoch").do_eval and not TrainingArguments().do_eval
    assert not resolve_args(TrainingArguments(eval_strategy="epoch"), {"eval_strategy": "no"}).do_eval and resolve_args(TrainingArguments(do_eval=True), {"seed": 3}).do_eval
    assert TrainingArguments().parallel_mode.value == "not_parallel" and TrainingArguments().parallel_mode == ParallelMode.NOT_PARALLEL
    assert TrainingArguments().parallel_mode != ParallelMode.DISTRIBUTED and len({TrainingArguments().parallel_mode, TrainingArguments().parallel_mode}) == 1
    on = TrainingArguments(activation_checkpointing=True)
    for off in (dataclasses.replace(on, activation_checkpointing=False), TrainingArguments.from_dict(on.to_dict() | {"activation_checkpointing": False})):
        assert (off.activation_checkpointing, off.gradient_checkpointing) == (False, False)
    assert TrainingArguments.from_dict(on.to_dict()) == on


def test_dicts_that_came_as_text():
    for name in ("lr_scheduler_kwargs", "activation_checkpointing_kwargs"):
        for text in ("num_cycles=2", "{num_cycles: 2}"):
            with pytest.raises(ValueError, match=f"^{name}='.*' should be a dict, or JSON"): TrainingArguments(**{name: text})
    with pytest.raises(ValueError, match="max_grad_norm=None.*Write 0 for no clipping"): TrainingArguments(max_grad_norm=None)


def test_a_command_line_with_fields_of_every_kind(capsys):
    import enum, typing
    from dataclasses import dataclass, field
    class Kind(enum.Enum): A, B = "a", "b"
    @dataclass
    class Script:
        model_name_or_path: str = field(metadata={"help": "which"})
        size: typing.Literal["s", "m"] = "s"
        number: typing.Literal[1, 2] = 1
        kind: Kind = Kind.A
        maybe: typing.Optional[Kind] = None
        sizes: dict[str, int] = field(default_factory=dict)
        shuffle: bool = True
    from trainer_nb import parse_args
    got = parse_args(Script, argv='--model_name_or_path m --size m --number 2 --kind b --maybe a --sizes {"x":1} --no-shuffle'.split())
    assert got == Script("m", "m", 2, Kind.B, Kind.A, {"x": 1}, False)
    for words, said in (("", "required: --model_name_or_path"), ("--model_name_or_path m --size xl", "'xl' is not one of 's', 'm'"), ("--model_name_or_path m --kind c", "'c' is not one of 'a', 'b'")):
        with pytest.raises(SystemExit): parse_args(Script, argv=words.split())
        assert said in capsys.readouterr().err


def test_older_names_can_be_read():
    "Scripts of 4.x read what they have given, and what they have not."
    args = TrainingArguments(eval_strategy="epoch", warmup_steps=0.1, optim="adafactor", include_for_metrics=["inputs"], use_cpu=True, per_device_train_batch_size=3)
    said = dict(evaluation_strategy="epoch", warmup_ratio=0.1, adafactor=True, include_inputs_for_metrics=True, no_cuda=True, per_gpu_train_batch_size=3, overwrite_output_dir=False,
                group_by_length=False, fp16_backend="auto", half_precision_backend="auto", evaluate_during_training=True)
    assert {name: getattr(args, name) for name in said} == said
    for name in ("never_was", "_n_gpu", "__deepcopy__"):
        with pytest.raises(AttributeError): getattr(args, name)
    assert copy.deepcopy(args) == args and not hasattr(TrainingArguments(), "never_was")


def test_bare_options_on_either_command_line():
    from transformers import HfArgumentParser
    for name, value in dict(gradient_checkpointing=True, activation_checkpointing=True, include_num_input_tokens_seen="all", fsdp=True, bf16=True).items():
        words = [f"--{name}", "--output_dir", "out"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours, (theirs,) = trainer_nb.parse_args(argv=words), HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(words)
        assert getattr(ours, name) == getattr(theirs, name) == value and ours == theirs, name


def test_a_subclass_adds_fields_of_any_type(tmp_path):
    "They are the user's affair: taken as they are, through checkpoints and command lines, and never a reason to refuse a resume."
    import enum, typing
    from dataclasses import dataclass
    from toys import hard_learner
    class Color(enum.Enum): R = "r"
    @dataclass
    class Mine(TrainingArguments):
        mode: typing.Literal["a", "b"] = "a"
        color: Color = Color.R
        anything: typing.Any = None
        size: tuple[int, int] = (1, 2)
    args = Mine(str(tmp_path), mode="b", anything=print, save_strategy="steps", save_steps=2, use_cpu=True, disable_tqdm=True, max_steps=4)
    assert (args.mode, args.color, args.anything, args.size) == ("b", Color.R, print, (1, 2)) and "print" in args.to_json_string()
    hard_learner(args=args, save_strategy="steps").step(2)
    again = hard_learner(args=Mine(str(tmp_path), mode="a", save_strategy="steps", save_steps=2, use_cpu=True, disable_tqdm=True, max_steps=4))
    again.train(resume_from_checkpoint=True)
    assert again.args.mode == "a" and again.args.color is Color.R and again.state.global_step == again.state.max_steps
    again.rewind(1)
    assert again.args.color is Color.R


@pytest.mark.parametrize("name", """accelerator accumulate_grad_batches check_val_every_n_epoch default_root_dir detect_anomaly deterministic
    devices enable_checkpointing enable_model_summary enable_progress_bar fast_dev_run gradient_clip_algorithm gradient_clip_val
    limit_predict_batches limit_test_batches limit_train_batches limit_val_batches log_every_n_steps logger max_epochs max_time num_nodes
    num_sanity_val_steps overfit_batches precision profiler strategy sync_batchnorm use_distributed_sampler val_check_interval
    barebones benchmark enable_autolog_hparams inference_mode min_epochs min_steps model_registry plugins reload_dataloaders_every_n_epochs
    dls opt_func splitter cbs wd wd_bn_bias train_bn moms model_dir""".split())
def test_the_flags_of_lightning_and_fastai_have_a_counterpart(name):
    "Each raises an error with what to type here, and the arguments and methods that it names exist."
    fields = {o.name for o in dataclasses.fields(TrainingArguments)}
    constructor = {*fields, "train_dataset", "optimizer_cls_and_kwargs", "callbacks"}
    with pytest.raises(TypeError) as error: trainer_nb.Learner(torch.nn.Linear(2, 2), **{name: 1})
    said = str(error.value)
    assert re.match(f"There is no argument `{name}`[:;] ", said)
    named = re.search(r"it is called `(\w+)` here", said)
    if named: assert named[1] in constructor
    outside = re.sub(r"(learn|torch|trainer_nb)\.[\w.]+\([^)]*\)|\{.*\}", "", said)
    assert set(re.findall(r"\b([a-z]\w+)=", outside)) <= constructor
    for verb in re.findall(r"learn\.(\w+)\(", said): assert callable(getattr(trainer_nb.Learner, verb))


def test_a_fraction_of_eval_steps_is_one_of_the_whole_run():
    "val_check_interval=0.25 of Lightning is a quarter of an epoch, and so the errors about it say what a fraction is here."
    from toys import Augmented, hard_learner
    learn = hard_learner(eval_dataset=Augmented(), max_steps=8, eval_strategy="steps", eval_steps=0.25)
    learn.train()
    assert [row["step"] for row in learn.history.evaluations()] == [2, 4, 6, 8]
    with pytest.raises(TypeError, match="val_check_interval.*a fraction .*of the whole run, not of an epoch"): hard_learner(val_check_interval=0.25)
    with pytest.raises(AttributeError, match="val_check_interval.*a fraction .*of the whole run, not of an epoch"): learn.val_check_interval
    with pytest.raises(TypeError, match="check_val_every_n_epoch.*eval_strategy='epoch', or .*eval_steps=, n times the steps"): hard_learner(check_val_every_n_epoch=2)

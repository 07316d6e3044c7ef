"""What the arguments accept and refuse, and that their names and defaults are the Trainer's."""
import ast, copy, dataclasses, functools, inspect, json, math, os
from pathlib import Path
from typing import get_type_hints
import numpy as np
import pytest
import trainer_nb
from trainer_nb.args import (AS_IT_IS, CHOICES, NOT_YET, OFF_IS_ON, OPTIMIZER_NAMES, RENAMED, SCHEDULE_NAMES, WITHOUT_EFFECT, Settings,
                             TrainingArguments, resolve)

FIELDS = {f.name: f for f in dataclasses.fields(TrainingArguments)}
OWN = {"layer_groups", "ring_every", "ring_memory", "save_format", "transaction"}
OLDER = {"warmup_ratio"}
# A value of every field that is allowed and is not the default, with what it needs beside it.
OTHER = dict(
    output_dir="out", per_device_train_batch_size=4, per_device_eval_batch_size=4, num_train_epochs=1.5, max_steps=10,
    gradient_accumulation_steps=2, average_tokens_across_devices=False, ddp_backend="gloo", ddp_find_unused_parameters=True, ddp_bucket_cap_mb=5,
    ddp_broadcast_buffers=False, ddp_static_graph=True, ddp_timeout=60, fsdp=True, fsdp_config={"auto_wrap_policy": "NO_WRAP"}, learning_rate=[1e-4, 1e-3], layer_groups=["a", ["b", "c"]],
    lr_scheduler_type="cosine", lr_scheduler_kwargs={"num_cycles": 1.0}, warmup_steps=0.1, warmup_ratio=0.1, optim="sgd",
    optim_args="momentum=0.9", weight_decay=0.1, adam_beta1=0.8, adam_beta2=0.99, adam_epsilon=1e-6, max_grad_norm=0.0,
    label_smoothing_factor=0.1, bf16=True, fp16=True, full_determinism=True, seed=1, data_seed=2, use_cpu=True,
    transaction="copy", ring_every=5, ring_memory=0.5, logging_strategy="epoch", logging_steps=0.1, logging_first_step=True, disable_tqdm=True,
    run_name="a run", report_to=["none"], eval_strategy="steps", eval_steps=5, eval_delay=1, eval_on_start=True,
    prediction_loss_only=True, eval_accumulation_steps=3, save_strategy="epoch", save_steps=7, save_total_limit=2, save_only_model=True, save_format="trainer",
    metric_for_best_model="accuracy", greater_is_better=False, load_best_model_at_end=True, dataloader_drop_last=True,
    dataloader_num_workers=2, dataloader_pin_memory=False, dataloader_persistent_workers=True, dataloader_prefetch_factor=4,
    remove_unused_columns=False, label_names=["y"], train_sampling_strategy="sequential")
NEEDS = dict(learning_rate=dict(layer_groups=["a"]), fsdp_config=dict(fsdp=True), dataloader_persistent_workers=dict(dataloader_num_workers=1),
             dataloader_prefetch_factor=dict(dataloader_num_workers=1), load_best_model_at_end=dict(output_dir="out", eval_strategy="epoch"),
             **{name: dict(output_dir="out") for name in ("save_strategy", "save_steps", "save_total_limit", "save_only_model", "save_format")})
NO_TRACE = {"warmup_ratio", "report_to"}   # these become another field, or the default's spelling

def refused(text, error=ValueError, **settings):
    with pytest.raises(error) as e: TrainingArguments(**settings)
    assert text in str(e.value), str(e.value)
    assert "\n" not in str(e.value)

def test_the_walk_is_complete():
    assert set(OTHER) == set(FIELDS)

@pytest.mark.parametrize("name", list(OTHER))
def test_every_field_is_taken_changed_and_comes_back(name):
    settings = {name: OTHER[name], **NEEDS.get(name, {})}
    args = TrainingArguments(**settings)
    assert TrainingArguments(**args.changed()) == args == TrainingArguments.from_dict(json.loads(args.to_json_string()))
    assert copy.deepcopy(args) == args == resolve(TrainingArguments(), settings) == resolve(None, settings)
    if name in NO_TRACE: return
    assert getattr(args, name) == OTHER[name]
    assert args != TrainingArguments() and name in args.changed()
    assert f"{name}={OTHER[name]!r}" in repr(args) and name in args._repr_html_()

@pytest.mark.parametrize("name", list(FIELDS))
def test_a_wrong_type_is_refused_by_name(name):
    with pytest.raises(ValueError, match=name): TrainingArguments(**{name: object()})

def test_defaults_are_the_trainers():
    theirs = pytest.importorskip("transformers").TrainingArguments
    theirs = {f.name: f for f in dataclasses.fields(theirs) if f.init}
    assert set(FIELDS) - set(theirs) == OWN | OLDER
    assert set(theirs) - set(FIELDS) == NOT_YET
    differ = {n for n in set(theirs) & set(FIELDS) if theirs[n].default != FIELDS[n].default}
    assert differ == set()
    assert set(RENAMED.values()) <= set(FIELDS) and not set(RENAMED) & (set(FIELDS) | NOT_YET)

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
    assert all(type(getattr(args, n)) is str for n in ("eval_strategy", "lr_scheduler_type", "optim", "save_strategy"))

def test_settings_has_the_same_names_and_types():
    assert get_type_hints(Settings) == {n: f.type for n, f in FIELDS.items()}
    assert Settings.__total__ is False

def test_the_signature_stays_readable():
    assert list(inspect.signature(TrainingArguments).parameters) == list(FIELDS)
    assert TrainingArguments("here").output_dir == "here"

@pytest.mark.parametrize("name", sorted(NOT_YET - {"do_train", "do_eval", "do_predict"}))
def test_names_not_honoured_yet(name):
    refused(f"`{name}` is an argument of the Trainer that trainer_nb does not honour yet; leave it out.", TypeError, **{name: 1})
    with pytest.raises(TypeError, match="not honour yet"): resolve(TrainingArguments(), {name: 1})

def test_what_asks_for_nothing_is_taken():
    assert TrainingArguments(do_train=True, push_to_hub=False, fsdp=None) == TrainingArguments()
    refused("not honour yet", TypeError, skip_memory_metrics=False)

def test_what_happens_anyway_is_taken():
    "The Trainer's own values, where they say how things are here; not a number that merely equals True."
    assert TrainingArguments(**AS_IT_IS) == TrainingArguments() == resolve(None, AS_IT_IS)
    for name in AS_IT_IS: refused("not honour yet", TypeError, **{name: 7})

@pytest.mark.parametrize("name", OFF_IS_ON)
def test_switching_off_can_ask_for_something(name): refused("not honour yet", TypeError, **{name: False})

# ---- no argument is ignored in silence ----

ALSO = dict(per_device_train_batch_size="train_batch_size", per_device_eval_batch_size="eval_batch_size", data_seed="order_seed",
            warmup_steps="get_warmup_steps")   # read by a property or a method of the arguments
ELSEWHERE = {"warmup_ratio": "becomes warmup_steps"}
REFUSED = {"report_to": "wandb"}

@functools.cache
def read_by_the_package():
    "What is read off the arguments anywhere outside of the module that defines them."
    found = set()
    for path in Path(trainer_nb.__file__).parent.glob("*.py"):
        if path.stem in ("args", "_modidx"): continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                owner = getattr(node.value, "attr", getattr(node.value, "id", ""))
                if owner in ("args", "a"): found.add(node.attr)
            elif isinstance(node, ast.Constant) and path.stem == "events": found.add(node.value)   # getattr(args, kind)
    return found

@pytest.mark.parametrize("name", list(FIELDS))
def test_every_field_is_read_or_refused_or_named(name):
    "A field that nothing reads stands in the list of those without effect, with its reason; or no value but the one that asks for nothing is taken."
    if name in REFUSED: return refused(name, **{name: REFUSED[name]})
    if name in WITHOUT_EFFECT:
        assert len(WITHOUT_EFFECT[name]) > 20
        assert name in TrainingArguments(**{name: OTHER[name]}).changed()
    else: assert name in ELSEWHERE or ALSO.get(name, name) in read_by_the_package()

def test_the_list_without_effect_is_short_and_of_names_that_there_are():
    assert set(WITHOUT_EFFECT) == {"do_train", "do_eval", "do_predict"}
    assert set(WITHOUT_EFFECT) <= set(FIELDS) | NOT_YET and set(AS_IT_IS) | set(OFF_IS_ON) <= NOT_YET

def test_every_name_of_the_trainers_is_taken_or_refused_by_name(tmp_path):
    "A script that writes out the Trainer's defaults learns of each that is not honoured, and of none else."
    theirs = pytest.importorskip("transformers").TrainingArguments
    for f in dataclasses.fields(theirs):
        if not f.init or f.default is dataclasses.MISSING: continue
        try: TrainingArguments(**{f.name: f.default})
        except (TypeError, ValueError) as error: assert f.name in str(error) and f.name in NOT_YET, error

def test_unknown_names():
    refused("Did you mean 'learning_rate'", TypeError, lerning_rate=1)
    refused("use that one", TypeError, evaluation_strategy="steps")
    refused("There is no argument `zzz`.", TypeError, zzz=1)

@pytest.mark.parametrize("text, settings", [
    ("5.0e-5 as a number", dict(learning_rate="5e-5")), ("1e-05", dict(learning_rate="1e-5")),
    ("Write 'no' in quotes", dict(eval_strategy=False)), ("Write 10000", dict(max_steps=1e4)),
    ("at least 1", dict(per_device_train_batch_size=0)), ("at least 1", dict(per_device_eval_batch_size=-1)),
    ("should be int", dict(per_device_train_batch_size=2.5)), ("should be int", dict(gradient_accumulation_steps=True)),
    ("at least 1", dict(gradient_accumulation_steps=0)), ("0 or more", dict(max_grad_norm=-1.0)),
    ("0 or more", dict(learning_rate=-1e-3)), ("0 or more", dict(learning_rate=math.nan)),
    ("0 or more", dict(learning_rate=math.inf)), ("0 or more", dict(learning_rate=[1e-3, -1.0], layer_groups=["a"])),
    ("0 or more", dict(warmup_steps=-1)), ("from 0 to below 1", dict(label_smoothing_factor=1.0)),
    ("from 0 to below 1", dict(adam_beta2=1.0)), ("from 0 to below 1", dict(warmup_ratio=1.5)),
    ("0 or more", dict(logging_steps=-1)), ("logging_strategy='no'", dict(logging_steps=0)),
    ("whole number", dict(logging_steps=1.5)), ("eval_strategy='no'", dict(eval_strategy="steps", eval_steps=0)),
    ("above 0", dict(eval_strategy="steps", logging_strategy="no", logging_steps=0)),
    ("nothing would be trained", dict(num_train_epochs=0)), ("nothing would be trained", dict(num_train_epochs=-1.0)),
    ("exclude each other", dict(fp16=True, bf16=True)), ("needs layer_groups", dict(learning_rate=[1e-3])),
    ("holds no rate", dict(learning_rate=[], layer_groups=["a"])),
    ("Did you mean 'cosine'?", dict(lr_scheduler_type="cosin")), ("Did you mean 'adamw_torch'", dict(optim="adamw_torh")),
    ("Did you mean 'epoch'?", dict(eval_strategy="epochs")), ("'random', 'sequential'", dict(train_sampling_strategy="group_by_length")),
    ("'light', 'copy'", dict(transaction="heavy")), ("give dataloader_num_workers", dict(dataloader_prefetch_factor=2)),
    ("give dataloader_num_workers", dict(dataloader_persistent_workers=True)),
    ("trackers are not connected yet", dict(report_to="wandb")), ("trackers are not connected yet", dict(report_to=["tensorboard"])),
    ("older name of warmup_steps", dict(warmup_ratio=0.1, warmup_steps=10)), ("list[str]", dict(label_names="labels")),
])
def test_refused(text, settings): refused(text, **settings)

def test_what_is_allowed():
    assert TrainingArguments(num_train_epochs=0, max_steps=5).max_steps == 5
    assert TrainingArguments(logging_strategy="no", logging_steps=0).logging_steps == 0
    assert TrainingArguments(logging_steps=10.0).logging_steps == 10 and type(TrainingArguments(logging_steps=10.0).logging_steps) is int
    assert TrainingArguments(logging_steps=0.1).logging_steps == 0.1
    assert [TrainingArguments(report_to=r).report_to for r in (None, [], "none", ["none"])] == ["none"] * 4
    assert TrainingArguments(learning_rate=1).learning_rate == 1
    assert type(TrainingArguments(per_device_train_batch_size=np.int64(4)).per_device_train_batch_size) is int
    assert TrainingArguments(learning_rate=(1e-4, 1e-3), layer_groups=("a",)).layer_groups == ["a"]
    assert TrainingArguments("~/x").output_dir == os.path.expanduser("~/x")
    for name, names in CHOICES.items():
        for value in names:
            assert getattr(TrainingArguments(**{name: value}, output_dir="out", eval_strategy="steps") if name.startswith("save") else TrainingArguments(**{name: value}), name) == value
    assert CHOICES["optim"] is OPTIMIZER_NAMES and CHOICES["lr_scheduler_type"] is SCHEDULE_NAMES

def test_saving_needs_a_folder_and_the_best_an_evaluation():
    for asked in (dict(save_strategy="epoch"), dict(save_steps=7), dict(save_total_limit=2), dict(save_only_model=True), dict(save_format="trainer")):
        refused("output_dir", **asked)
        assert TrainingArguments("out", **asked) and TrainingArguments(**asked | dict(save_strategy="no"))
    refused("output_dir", load_best_model_at_end=True, save_strategy="no")
    for asked in (dict(load_best_model_at_end=True), dict(save_strategy="best")):
        refused("eval_strategy", output_dir="out", **asked)
        args = TrainingArguments("out", eval_strategy="epoch", **asked)
        assert (args.metric_for_best_model, args.greater_is_better) == ("loss", False)
        args = TrainingArguments("out", eval_strategy="epoch", metric_for_best_model="accuracy", **asked)
        assert (args.metric_for_best_model, args.greater_is_better) == ("accuracy", True)

def test_fields_that_follow_others():
    args = TrainingArguments(eval_strategy="steps", metric_for_best_model="eval_loss")
    assert (args.eval_steps, args.greater_is_better) == (500, False)
    new = resolve(args, dict(logging_steps=10, metric_for_best_model="accuracy"))
    assert (new.eval_steps, new.greater_is_better) == (10, True)
    assert resolve(new, dict(logging_steps=3)).eval_steps == 3
    assert resolve(args, dict(logging_steps=10, eval_steps=500)).eval_steps == 500
    assert resolve(TrainingArguments(eval_strategy="steps", eval_steps=500), dict(logging_steps=10)).eval_steps == 500
    args.eval_steps = 7
    args.logging_steps = 9
    args.check()
    assert args.eval_steps == 7
    args.check()
    assert args.eval_steps == 7

def test_resolve_copies_and_checks():
    args = TrainingArguments(lr_scheduler_kwargs={"num_cycles": 1.0})
    new = resolve(args, {})
    new.lr_scheduler_kwargs["num_cycles"] = 2.0
    assert args.lr_scheduler_kwargs == {"num_cycles": 1.0} and new is not args
    mine = {"num_cycles": 1.0}
    resolve(args, dict(lr_scheduler_kwargs=mine)).lr_scheduler_kwargs["num_cycles"] = 3.0
    assert mine == {"num_cycles": 1.0}
    with pytest.raises(ValueError, match="exclude"): resolve(TrainingArguments(fp16=True), dict(bf16=True))
    assert resolve({"seed": 1}, {"seed": 2}).seed == 2
    assert resolve(TrainingArguments(warmup_steps=5), dict(warmup_ratio=0.1)).warmup_steps == 0.1

def test_resolve_keeps_the_class_and_knows_its_fields():
    @dataclasses.dataclass(repr=False)
    class More(TrainingArguments): beam: int = 1
    new = resolve(More(beam=2), dict(seed=3))
    assert type(new) is More and (new.beam, new.seed) == (2, 3) and resolve(new, dict(beam=5)).beam == 5

def test_resolve_names_a_wrong_type(tmp_path):
    with pytest.raises(TypeError, match="of type str; pass a TrainingArguments"): resolve("out", {})
    theirs = pytest.importorskip("transformers").TrainingArguments(str(tmp_path), use_cpu=True)
    with pytest.raises(TypeError, match="import TrainingArguments from trainer_nb"): resolve(theirs, {})

def test_html_is_escaped():
    assert "<b>" not in TrainingArguments(run_name="<b>x</b>")._repr_html_()
    assert "defaults" in TrainingArguments()._repr_html_()



def test_where_the_run_takes_place(monkeypatch):
    "What callbacks of the Trainer ask their arguments for."
    args = TrainingArguments(use_cpu=True)
    assert (args.world_size, args.process_index, args.local_process_index, args.n_gpu, args.should_log, args.should_save) == (1, 0, 0, 0, True, True)
    for name, value in dict(WORLD_SIZE="4", RANK="2", LOCAL_RANK="0").items(): monkeypatch.setenv(name, value)
    assert (args.world_size, args.process_index, args.local_process_index, args.should_log, args.should_save) == (4, 2, 0, False, False)
    assert "world_size" not in args.to_dict()

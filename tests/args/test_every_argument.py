"""Every argument does something: a short run with it differs from one without it in the very thing that it is about.

`SHOWN` says for each argument what is looked at (or which test elsewhere looks, where it takes several processes, a GPU or
another machine). An argument that is missing there, and neither refused nor a flag for scripts, fails."""
import dataclasses, json, os, re
from pathlib import Path

import pytest
import torch
from torch import nn

from conftest import ROOT
from argument_values import NEEDS, OTHER
from trainer_nb import Learner, TrainingArguments
from trainer_nb.args.validation import FIELD_ALIASES, UNSUPPORTED
from trainer_nb.device.accelerator import kwargs_handlers
from trainer_nb.args.fields import SCRIPT_FIELDS

pytestmark = pytest.mark.usefixtures("one_thread")


class Net(nn.Module):
    "Names for layer groups, a norm, and a loss of its own."
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.norm, self.head = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x, labels=None):
        logits = self.head(torch.tanh(self.norm(self.embed(x))))
        return {"logits": logits} if labels is None else {"loss": nn.functional.cross_entropy(logits.float(), labels), "logits": logits}


def rows(n):
    g = torch.Generator().manual_seed(1)
    return [{"x": torch.randn(4, generator=g), "labels": torch.tensor(i % 3), "more": torch.tensor(i)} for i in range(n)]


class Collated:
    "Stacks, and remembers which samples came together and under which names."
    def __init__(self): self.seen, self.names = [], set()
    def __call__(self, features):
        self.names |= set(features[0])
        self.seen.append([round(float(f["x"][0]), 5) for f in features])
        return {k: torch.stack([f[k] for f in features]) for k in features[0] if k != "more"}


class Scored:
    "compute_metrics, and what it was given."
    def __init__(self): self.given = []
    def __call__(self, pred, **more):
        self.given.append((type(pred.predictions).__name__, pred.inputs is not None, pred.losses is not None, sorted(more)))
        return {"accuracy": 0.5}


def plain_logs(history): return [{k: v for k, v in o.items() if "runtime" not in k and "per_second" not in k} for o in history]


def look(folder, **given):
    "What a run of these settings is, in all that can be compared."
    settings = dict(use_cpu=True, save_strategy="no", max_steps=6, per_device_train_batch_size=4, logging_steps=2, learning_rate=1e-2, disable_tqdm=True) | given
    if settings.get("max_steps") is None: del settings["max_steps"]
    if settings.get("output_dir") == "out": settings["output_dir"] = str(folder)
    collate, score = Collated(), Scored()
    learn = Learner(Net(), train_dataset=rows(18), eval_dataset=rows(6), data_collator=collate, compute_metrics=score, **settings)
    learn.train()
    learn.evaluate()
    loader = learn.get_train_dataloader()
    files = sorted(re.sub(r"[0-9a-f]{6,}|\d{8}-\d{6}", "#", str(p.relative_to(folder))) for p in Path(folder).rglob("*")) if folder.exists() else []
    logs = [json.loads(l) for p in sorted(Path(folder).rglob("*.jsonl")) for l in p.read_text().splitlines()] if folder.exists() else []
    return dict(weights=[p.detach().clone() for p in learn.model.parameters()], steps=learn.state.global_step, logs=plain_logs(learn.state.log_history),
                order=collate.seen, names=collate.names, scored=score.given, files=files, header=[o for o in logs[:1] for o in (o.get("run_name"), o.get("name"))],
                loader={k: getattr(loader, k) for k in ("num_workers", "prefetch_factor", "persistent_workers", "drop_last", "in_order")} |
                       {"context": type(loader.multiprocessing_context).__name__},
                handlers=as_for_two(learn.args), labels=learn.label_names, snapshots=len(learn.run_state.parts.rewind_buffer.kept),
                state={f.name: getattr(learn.state, f.name) for f in dataclasses.fields(learn.state) if f.name not in ("log_history", "total_flos", "best_model_checkpoint")})


def as_for_two(args):
    "What Accelerate would be told if there were two processes."
    before, os.environ["WORLD_SIZE"] = os.environ.get("WORLD_SIZE"), "2"
    try: return [str(h) for h in kwargs_handlers(args)]
    finally: os.environ.pop("WORLD_SIZE") if before is None else os.environ.update(WORLD_SIZE=before)


STEPS = dict(max_steps=None, num_train_epochs=1)
SHOWN = {   # argument: what differs, and what the run without it has too; or the test elsewhere
    **{name: "weights" for name in """per_device_train_batch_size gradient_accumulation_steps lr_scheduler_type warmup_steps optim weight_decay adam_beta1
       adam_beta2 adam_epsilon max_grad_norm label_smoothing_factor bf16 seed data_seed train_sampling_strategy layer_groups learning_rate average average_args""".split()},
    "lr_scheduler_kwargs": ("weights", dict(lr_scheduler_type="cosine")), "optim_args": ("weights", dict(optim="sgd")),
    "max_steps": "steps", "num_train_epochs": ("steps", dict(max_steps=None)), "output_dir": "files", "per_device_eval_batch_size": "order",
    "dataloader_drop_last": ("steps", dict(STEPS, per_device_train_batch_size=4)),
    "logging_strategy": "logs", "logging_steps": ("logs", STEPS), "logging_first_step": "logs", "disable_tqdm": "live/test_progress.py::test_nothing_is_shown",
    "run_name": ("header", dict(output_dir="out")), "eval_strategy": "logs", "eval_steps": ("logs", dict(eval_strategy="steps")),
    "eval_delay": ("logs", dict(eval_strategy="steps", eval_steps=1)), "eval_on_start": "logs", "prediction_loss_only": "logs",
    "save_strategy": ("files", dict(output_dir="out", save_strategy="no")), "save_steps": ("files", dict(output_dir="out", save_strategy="steps", save_steps=2)),
    "save_total_limit": ("files", dict(output_dir="out", save_strategy="steps", save_steps=2)),
    "save_only_model": ("files", dict(output_dir="out", save_strategy="steps", save_steps=2)),
    "save_format": ("files", dict(output_dir="out", save_strategy="steps", save_steps=2)),
    "load_best_model_at_end": ("files", dict(output_dir="out", eval_strategy="steps", eval_steps=2)),
    "metric_for_best_model": ("state", dict(output_dir="out", eval_strategy="steps", eval_steps=2, load_best_model_at_end=True)),
    "greater_is_better": ("state", dict(output_dir="out", eval_strategy="steps", eval_steps=2, load_best_model_at_end=True, metric_for_best_model="eval_loss",
                                        greater_is_better=True)),
    "dataloader_num_workers": "loader", "dataloader_prefetch_factor": ("loader", dict(dataloader_num_workers=1)),
    "dataloader_persistent_workers": ("loader", dict(dataloader_num_workers=1)), "remove_unused_columns": "names", "label_names": "labels",
    "ddp_find_unused_parameters": "launch/test_unused_parameters.py::test_an_error_names_parameter_and_rank_where_none_may_be_unused",
    **{name: "handlers" for name in ("ddp_backend", "ddp_bucket_cap_mb", "ddp_timeout")},
    "rewind_every": ("snapshots", dict(rewind_every=0)),
    **dict.fromkeys(("activation_checkpointing", "activation_checkpointing_kwargs"),
                    "device/test_model_patches.py::test_blocks_of_a_plain_module_are_computed_twice_and_nothing_else_changes"),
    "auto_find_batch_size": "device/test_model_patches.py::test_the_run_goes_on_in_smaller_micro_batches_with_the_same_samples",
    "debug": "device/test_model_patches.py::test_the_first_number_that_is_not_finite_stops_the_run_and_is_named",
    **dict.fromkeys(("use_liger_kernel", "liger_kernel_config"), "device/test_model_patches.py::test_ligers_kernels_are_put_on_and_taken_off"),
    "logging_nan_inf_filter": "device/test_model_patches.py::test_a_logged_mean_leaves_out_what_is_not_finite_as_the_trainer_does",
    "neftune_noise_alpha": "device/test_model_patches.py::test_noise_on_the_embeddings_is_that_of_transformers_and_comes_again",
    "tf32": "device/test_model_patches.py::test_on_a_gpu",
    **dict.fromkeys(("torch_compile", "torch_compile_backend", "torch_compile_mode"), "device/test_model_patches.py::test_a_compiled_model_keeps_its_names_and_its_numbers"),
    "torch_empty_cache_steps": "device/test_model_patches.py::test_unused_memory_goes_back_every_so_many_steps",
    "use_cache": "device/test_model_patches.py::test_the_cache_is_off_in_training_and_the_configuration_says_so",
    "optim_target_modules": "optim/test_optim_names.py::test_which_layers_an_optimizer_is_for",
    **dict.fromkeys(("fsdp", "fsdp_config"), "device/test_sharding.py::test_as_one_process_and_as_ddp"),
    "deepspeed": "device/test_deepspeed.py::test_stages_train_as_ddp",
    "save_on_each_node": "project/test_trainer_compat.py::test_each_machine_writes_if_asked",
    "enable_jit_checkpoint": "project/test_trainer_compat.py::test_sigterm_writes_a_checkpoint_at_the_boundary",
    **dict.fromkeys(("eval_do_concat_batches", "include_for_metrics"), "engine/test_evaluate.py::test_shapes_and_metrics_are_the_trainers"),
    "batch_eval_metrics": "engine/test_evaluate.py::test_batch_by_batch", "eval_use_gather_object": "engine/test_evaluate.py::test_objects_beside_the_loss",
    **dict.fromkeys(("bf16_full_eval", "fp16_full_eval"), "engine/test_evaluate.py::test_full_eval"),
    **dict.fromkeys(("predict_with_generate", "generation_max_length", "generation_num_beams"), "engine/test_generate.py::test_generated_as_by_the_seq2seq_trainer"),
    "generation_config": "engine/test_generate.py::test_a_configuration_may_be_an_object_a_dict_a_file_a_folder",
    "accelerator_config": "data/test_loading.py::test_accelerator_config_key_by_key", "ignore_data_skip": "data/test_loading.py::test_data_may_begin_anew_after_a_resume",
    "dataloader_multiprocessing_context": "data/test_loading.py::test_the_way_of_starting_reaches_the_loader",
    "include_num_input_tokens_seen": "data/test_loading.py::test_tokens_seen_are_the_trainers",
    "length_column_name": "data/test_loading.py::test_lengths_come_from_a_column_or_are_counted",
    **dict.fromkeys(("log_level", "log_level_replica", "log_on_each_node"), "core/test_callbacks.py::test_levels_are_the_trainers"),
    "logging_dir": "live/test_reporting.py::test_tensorboards_folder_and_config", "report_to": "live/test_reporting.py::test_which_trackers",
    "project": "live/test_reporting.py::test_trackio",
    **dict.fromkeys(("trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"), "live/test_reporting.py::test_trackios_spaces_are_handed_on"),
    "restore_callback_states_from_checkpoint": "core/test_callbacks.py::test_what_a_callback_was_made_with",
    **dict.fromkeys(("on_nan", "on_spike"), "diagnostics/test_guard.py::test_the_run_ends_in_the_same_bytes_after_a_rewind_and_a_resume"),
    "check_on_start": "diagnostics/test_guard.py::test_a_check_before_the_first_step", "rewind_memory": "state/test_rewind.py::test_memory_is_bounded_and_used_again", "rollback": "engine/test_weight_writes.py::test_copies_put_it_back",
    "full_determinism": "engine/test_verbs.py::test_full_determinism_asks_torch_for_it", "fp16": "device/test_gpu.py::test_fp16_trains_and_scales",
    "eval_accumulation_steps": "promises/test_same_numbers.py::test_evaluated_on_the_way", "use_cpu": "args/test_training_args.py::test_where_the_run_takes_place",
    "dataloader_pin_memory": "data/test_batches_to_model.py::test_the_setting_decides_for_every_kind_of_data",
    **dict.fromkeys(("push_to_hub", "hub_strategy"), "state/test_hub.py::test_the_commits_are_the_trainers"),
    **dict.fromkeys(("hub_model_id", "hub_private_repo", "hub_revision"), "state/test_hub.py::test_name_privacy_and_branch"),
    "hub_token": "state/test_hub.py::test_the_token_is_written_nowhere", "hub_always_push": "state/test_hub.py::test_the_files_are_those_of_the_checkpoints",
    **{name: "args/test_every_argument.py::test_what_processes_share" for name in ("ddp_broadcast_buffers", "average_tokens_across_devices")},
}
VALUES = {   # another value than that of the walk in test_args, to differ in so short a run
    "learning_rate": 1e-3, "layer_groups": ["embed", "head"], "label_names": ["x"], "eval_steps": 3, "eval_delay": 4, "save_steps": 3, "run_name": "mine",
    "metric_for_best_model": "accuracy", "greater_is_better": False, "num_train_epochs": 0.5, "max_steps": 3, "save_total_limit": 1,
    "lr_scheduler_type": "constant", "logging_steps": 3, "rewind_every": 2, "data_seed": 7, "per_device_train_batch_size": 3, "dataloader_num_workers": 1,
    "adam_beta1": 0.5,
}
NEEDED = {"layer_groups": dict(learning_rate=[1e-3, 1e-2, 1e-1])}
HONOURED = sorted({f.name for f in dataclasses.fields(TrainingArguments)} - set(UNSUPPORTED) - set(FIELD_ALIASES) - set(SCRIPT_FIELDS) - {"sortish_sampler"})


def same(a, b):
    if isinstance(a, list) and a and isinstance(a[0], torch.Tensor): return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    return a == b


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", HONOURED)
def test_it_changes_what_it_is_about(name, tmp_path):
    shown = SHOWN[name]
    if isinstance(shown, str) and ".py" in shown:   # shown elsewhere, by a test that there is
        file, _, test = shown.partition("::")
        text = (ROOT/"tests"/file).read_text(encoding="utf-8")
        assert f"def {test}(" in text if test else name in text, shown
        return
    key, beside = shown if isinstance(shown, tuple) else (shown, {})
    beside = {k: v for k, v in NEEDS.get(name, {}).items() if k != "layer_groups"} | beside
    value = VALUES.get(name, OTHER[name])
    without, with_it = look(tmp_path/"a", **beside), look(tmp_path/"b", **beside | NEEDED.get(name, {}) | {name: value})
    assert not same(without[key], with_it[key]), without[key]
    again = look(tmp_path/"c", **beside)
    assert same(without[key], again[key]), "what is looked at differs by itself"
    if key != "weights" and name not in ("max_steps", "num_train_epochs", "dataloader_drop_last", "load_best_model_at_end", "metric_for_best_model", "greater_is_better"):
        assert same(without["weights"], with_it["weights"]), "and it must not change the training"


class Counted(nn.Module):
    "A mean over the labels that count, divided by their number if it is given; BatchNorm remembers what it has seen."
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x, labels=None, num_items_in_batch=None, **kwargs):
        logits = self.head(self.norm(x))
        sums = nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
        return {"loss": sums / ((labels != -100).sum() if num_items_in_batch is None else num_items_in_batch), "logits": logits}


@pytest.mark.xdist_group("launch")
def test_what_processes_share():
    "Two processes: whether the buffers of the first are everybody's, and whether the tokens of all are counted."
    def run(**given):
        data = [{"x": row["x"], "labels": row["labels"] if i % 4 < 2 or i % 3 else torch.tensor(-100)} for i, row in enumerate(rows(16))]
        learn = Learner(Counted(), train_dataset=data, per_device_train_batch_size=4, max_steps=2, use_cpu=True, disable_tqdm=True, learning_rate=0.1, **given)
        with learn.launch(2):
            learn.step(2)
            means = learn.run_on_all(lambda l: l.model.norm.running_mean.clone())
        return means, learn.model.head.weight.detach().clone()
    (one, two), weights = run()
    assert torch.equal(one, two)
    (one, two), _ = run(ddp_broadcast_buffers=False)
    assert not torch.equal(one, two)
    assert not torch.equal(weights, run(average_tokens_across_devices=False)[1])


def test_the_tokenizer_has_its_older_name():
    "Scripts of some years ago pass it so, and ask for it so."
    class Pads:
        def pad(self, features, **kwargs): return features
    tokenizer = Pads()
    with pytest.warns(UserWarning, match="processing_class"): learn = Learner(Net(), tokenizer=tokenizer)
    assert learn.tokenizer is learn.processing_class is tokenizer and learn.data_collator.tokenizer is tokenizer

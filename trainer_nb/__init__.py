"""Train PyTorch models from a notebook, one step at a time, and control the run while it trains."""

from __future__ import annotations

__version__ = "0.1.0"

import gc
from pathlib import Path
from typing import TYPE_CHECKING

# A collection of everything that torch has created takes about as long as these imports.
_collects = gc.isenabled()
gc.disable()
try:
    from .core.callbacks import (DefaultFlowCallback, EarlyStoppingCallback, ExportableState, PrinterCallback, TrainerCallback,
                                 TrainerControl, TrainerState)
    from .core.errors import Paused, InvalidOperation, checked
    from .core.history import History
    from .core.records import Record, Records
    from .core.seeding import set_seed
    from .args.training_args import TrainingArguments
    from .data.collate import DataCollatorWithPadding, DefaultDataCollator, default_data_collator
    from .engine import metrics
    from .engine.evaluate import EvalPrediction, PredictionOutput
    from .engine.loop import TrainOutput
    from .engine.snapshot import Snapshot, differences
    from .live.progress import ProgressCallback
    from .live.reporting import ReportCallback
    from .learner import Learner
finally:
    if _collects:
        # The next collection would visit all the new objects, which live as long as the process: they go to the oldest generation.
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        gc.enable()

if TYPE_CHECKING:
    # what a run on texts needs is imported at its first use, by __getattr__ below
    from .data.chat import DataCollatorForChat, DataCollatorForPreference, pack_dataset, show_trained_tokens, tokenize_chat
    from .live.text_samples import SamplesCallback, TextSamplesCallback, text_samples

# A script written for transformers' Trainer runs after changing the line that imports these.
Trainer = Seq2SeqTrainer = Learner
Seq2SeqTrainingArguments = TrainingArguments
NotebookProgressCallback = ProgressCallback


def parse_args(*classes, argv=None):
    "Read the command line into argument dataclasses; see `trainer_nb.args.cli.parse_args`."
    # imported here, so that importing the package stays light
    from .args.cli import parse_args as read
    return read(*classes, argv=argv)


@checked
def compare(*runs):
    """Show the losses of two learners side by side, or a table of any number of runs: learners, folders, logs; see
    `trainer_nb.state.branch.compare` and `trainer_nb.live.runs`."""
    if len(runs) == 2 and all(hasattr(run, "run_state") for run in runs):
        from .state.branch import compare
        return compare(*runs)
    from .live.runs import runs as table_of
    return table_of(list(runs))


@checked
def runs(*sources, result=None, group=None):
    "Show a table of runs beside their charts, read from their logs; see `trainer_nb.live.runs`."
    from .live.runs import runs as table_of
    return table_of(*sources, result=result, group=group)


@checked
def run_tree(*runs):
    "Show a picture of runs, the steps that they discarded, and their branches; see `trainer_nb.live.run_tree`."
    from .live.run_tree import run_tree
    return run_tree(*runs)


@checked
def get_last_checkpoint(folder: str | Path):
    "Return the newest valid checkpoint in a folder, or None; see `trainer_nb.state.checkpoint_dirs`."
    from .state.async_save import wait_for_savers
    from .state.checkpoint_dirs import get_last_checkpoint
    wait_for_savers(shelf=Path(folder).expanduser().absolute())
    return get_last_checkpoint(folder)


@checked
def merge(sources, weights=None):
    "Return the weighted mean of the weights of several snapshots or checkpoints; see `trainer_nb.state.checkpoint.merge`."
    from .state.async_save import wait_for_savers
    from .state.checkpoint import merge
    if not isinstance(sources, (list, tuple)):
        raise TypeError(f"merge() takes a list of sources, merge([a, b], weights=[1, 2]), not one {type(sources).__name__}.")
    for folder in (source for source in sources if isinstance(source, (str, Path))):
        wait_for_savers(shelf=Path(folder).expanduser().absolute().parent)
    return merge(sources, weights)


def patch_transformers():
    "Let trainers of other packages derive from `Learner`; see `trainer_nb.aliases.patch_transformers`."
    from .aliases import patch_transformers
    return patch_transformers()


@checked
def follow(path: str | Path):
    "Show a live view of a run in another process, read from its log; see `trainer_nb.live.runs`."
    from .live.runs import follow
    return follow(path)


__all__ = [
    "DataCollatorForChat", "DataCollatorForPreference", "DataCollatorWithPadding", "DefaultDataCollator",
    "DefaultFlowCallback", "EarlyStoppingCallback",
    "EvalPrediction", "ExportableState", "History", "InvalidOperation", "Learner", "Paused", "PredictionOutput", "PrinterCallback",
    "ProgressCallback", "Record", "Records", "ReportCallback", "Seq2SeqTrainer",
    "SamplesCallback", "Seq2SeqTrainingArguments", "Snapshot", "TextSamplesCallback", "TrainOutput", "Trainer", "TrainerCallback",
    "TrainerControl", "TrainerState", "TrainingArguments", "compare", "default_data_collator", "differences", "follow",
    "get_last_checkpoint", "merge", "metrics", "pack_dataset", "parse_args", "patch_transformers", "run_tree",
    "runs", "set_seed", "show_trained_tokens", "text_samples", "tokenize_chat",
]


# Names that are imported at their first use: from modules of this package ...
_OWN_NAMES = {
    **dict.fromkeys(("DataCollatorForChat", "DataCollatorForPreference", "pack_dataset", "show_trained_tokens", "tokenize_chat"),
                    "trainer_nb.data.chat"),
    **dict.fromkeys(("DataCollatorForLanguageModeling", "DataCollatorForWholeWordMask"), "trainer_nb.data.text_collators"),
    **dict.fromkeys(("SamplesCallback", "TextSamplesCallback", "text_samples"), "trainer_nb.live.text_samples"),
    **dict.fromkeys(("HubStrategy", "IntervalStrategy", "OptimizerNames", "SaveStrategy", "SchedulerType"), "trainer_nb.args.fields"),
    "ParallelMode": "trainer_nb.args.parallel",
    "CallbackHandler": "trainer_nb.core.callbacks",
    "EvalLoopOutput": "trainer_nb.engine.eval_outputs",
    "LabelSmoother": "trainer_nb.engine.loss",
    **dict.fromkeys(("BestRun", "default_compute_objective"), "trainer_nb.tune.search"),
}
# ... and from transformers: names that scripts import from the Trainer's modules, and that do not belong to it.
_NAMES_OF_TRANSFORMERS = {
    "hf_argparser": "HfArgumentParser",
    "optimization": """Adafactor GreedyLR get_constant_schedule get_constant_schedule_with_warmup get_cosine_schedule_with_warmup
        get_cosine_with_hard_restarts_schedule_with_warmup get_cosine_with_min_lr_schedule_with_warmup
        get_cosine_with_min_lr_schedule_with_warmup_lr_rate get_greedy_schedule get_inverse_sqrt_schedule
        get_linear_schedule_with_warmup get_polynomial_decay_schedule_with_warmup get_reduce_on_plateau_schedule get_scheduler
        get_wsd_schedule""",
    "data.data_collator": """DataCollator DataCollatorForMultipleChoice DataCollatorForPermutationLanguageModeling
        DataCollatorForSeq2Seq DataCollatorForTokenClassification DataCollatorWithFlattening""",
    "trainer_utils": """FSDPOption HPSearchBackend PREFIX_CHECKPOINT_DIR RemoveColumnsCollator TrainerMemoryTracker
        default_hp_space_optuna default_hp_space_ray default_hp_space_wandb denumpify_detensorize enable_full_determinism
        find_executable_batch_size has_length is_main_process load_sharded_checkpoint number_of_arguments rotate_checkpoints
        seed_worker sort_checkpoints speed_metrics total_processes_number unwrap_peft_model""",
    "trainer_pt_utils": """AcceleratorConfig DistributedLengthGroupedSampler DistributedSamplerWithLoop EvalLoopContainer
        IterableDatasetShard LayerWiseDummyOptimizer LayerWiseDummyScheduler LengthGroupedSampler ShardSampler
        distributed_broadcast_scalars distributed_concat expand_like find_batch_size get_dataloader_sampler
        get_length_grouped_indices get_model_param_count get_module_class_from_name get_parameter_names log_metrics
        metrics_format nested_concat nested_detach nested_gather nested_new_like nested_numpify nested_truncate
        reissue_pt_warnings remove_dummy_checkpoint save_metrics save_state torch_distributed_zero_first
        torch_pad_and_concatenate""",
    "integrations": """is_clearml_available is_comet_available is_dvclive_available is_neptune_available is_optuna_available
        is_ray_available is_ray_tune_available is_swanlab_available is_tensorboard_available is_trackio_available
        is_wandb_available""",
    "trainer": "OPTIMIZER_NAME SCALER_NAME SCHEDULER_NAME TRAINER_STATE_NAME TRAINING_ARGS_NAME",
}
_LATE_NAMES = _OWN_NAMES | {
    name: f"transformers.{module}" for module, names in _NAMES_OF_TRANSFORMERS.items() for name in names.split()
}


def __dir__() -> list[str]:
    "Return all names, also those that are imported at their first use, for completion."
    return sorted({*globals(), *__all__})


def __getattr__(name: str):
    "Import a name at its first use."
    import importlib
    if name in _LATE_NAMES:
        try:
            found = getattr(importlib.import_module(_LATE_NAMES[name]), name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "transformers": raise
            raise ImportError(f"trainer_nb.{name} is transformers' {name}; install it: pip install transformers") from None
        globals()[name] = found
        return found
    if name in ("load_learner", "load_model"):
        raise AttributeError(
            f"module 'trainer_nb' has no attribute {name!r}: make the Learner again, and learn.load_checkpoint(folder) continues"
            " its run."
        )
    raise AttributeError(f"module 'trainer_nb' has no attribute {name!r}")

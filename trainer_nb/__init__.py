"""Train PyTorch models from a notebook, one step at a time, and control the run while it trains."""

__version__ = "0.1.0"

import gc
from pathlib import Path

# A collection of everything that torch has created takes about as long as these imports.
_collects = gc.isenabled()
gc.disable()
try:
    from . import aliases
    from .core.callbacks import (DefaultFlowCallback, EarlyStoppingCallback, ExportableState, PrinterCallback, TrainerCallback,
                                 TrainerControl, TrainerState)
    from .core.errors import Paused, InvalidOperation, checked
    from .core.history import History, Record, Records
    from .core.seeding import set_seed
    from .args.training_args import TrainingArguments
    from .data.chat import DataCollatorForChat, DataCollatorForPreference, pack_dataset, show_trained_tokens, tokenize_chat
    from .data.collate import DataCollatorWithPadding, DefaultDataCollator, default_data_collator
    from .data.text_collators import (DataCollatorForLanguageModeling, DataCollatorForMultipleChoice, DataCollatorForSeq2Seq,
                                      DataCollatorForTokenClassification, DataCollatorForWholeWordMask,
                                      DataCollatorWithFlattening)
    from .engine import metrics
    from .engine.evaluate import EvalPrediction, PredictionOutput
    from .engine.loop import TrainOutput
    from .engine.snapshot import Snapshot, differences
    from .live.progress import ProgressCallback
    from .live.reporting import ReportCallback
    from .live.text_samples import TextSamplesCallback, text_samples
    from .learner import Learner
finally:
    if _collects:
        gc.enable()

# trainer_nb.metrics, trainer_nb.generate and trainer_nb.parsing are documented names of modules that live in chapters.
aliases.install()

# A script written for transformers' Trainer runs after changing the line that imports these.
Trainer = Seq2SeqTrainer = Learner
Seq2SeqTrainingArguments = TrainingArguments


def parse_args(*classes, argv=None):
    "Read the command line into argument dataclasses; see `trainer_nb.args.cli.parse_args`."
    # imported here, so that importing the package stays light
    from .args.cli import parse_args as read
    return read(*classes, argv=argv)


@checked
def compare(learn, other):
    "Show the losses of two learners side by side; see `trainer_nb.state.branch.compare`."
    from .state.branch import compare
    return compare(learn, other)


@checked
def get_last_checkpoint(folder: str | Path):
    "Return the newest valid checkpoint in a folder, or None; see `trainer_nb.state.checkpoint_dirs`."
    from .state.checkpoint_dirs import get_last_checkpoint
    return get_last_checkpoint(folder)


@checked
def follow(path: str | Path, also=()):
    "Show a live view of a run in another process, read from its log; see `trainer_nb.live.follow`."
    from .live.follow import follow
    return follow(path, also)


__all__ = [
    "DataCollatorForChat", "DataCollatorForLanguageModeling", "DataCollatorForMultipleChoice",
    "DataCollatorForPreference", "DataCollatorForSeq2Seq",
    "DataCollatorForTokenClassification", "DataCollatorForWholeWordMask", "DataCollatorWithFlattening",
    "DataCollatorWithPadding", "DefaultDataCollator", "DefaultFlowCallback", "EarlyStoppingCallback",
    "EvalPrediction", "ExportableState", "History", "InvalidOperation", "Learner", "Paused", "PredictionOutput", "PrinterCallback",
    "ProgressCallback", "Record", "Records", "ReportCallback", "Seq2SeqTrainer",
    "Seq2SeqTrainingArguments", "Snapshot", "TextSamplesCallback", "TrainOutput", "Trainer", "TrainerCallback", "TrainerControl",
    "TrainerState", "TrainingArguments", "compare", "default_data_collator", "differences", "follow",
    "get_last_checkpoint", "metrics", "pack_dataset", "parse_args", "set_seed", "show_trained_tokens", "text_samples",
    "tokenize_chat",
]


def __getattr__(name: str):
    "Return a name of an earlier version, with a warning."
    if name != "Refused": raise AttributeError(f"module 'trainer_nb' has no attribute {name!r}")
    import warnings
    warnings.warn("trainer_nb.Refused is now trainer_nb.InvalidOperation; the old name will go.", DeprecationWarning, stacklevel=2)
    return InvalidOperation

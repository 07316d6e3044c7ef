"""Train PyTorch models from a notebook, one step at a time, and keep hold of the run while it goes."""

__version__ = "0.1.0"

from . import metrics
from .args import TrainingArguments
from .batches import DataCollatorWithPadding, DefaultDataCollator, default_data_collator
from .collators import (DataCollatorForLanguageModeling, DataCollatorForMultipleChoice, DataCollatorForSeq2Seq, DataCollatorForTokenClassification,
                        DataCollatorForWholeWordMask, DataCollatorWithFlattening)
from .callbacks import EarlyStoppingCallback, PrinterCallback
from .errors import Paused, Refused
from .evaluate import EvalPrediction, PredictionOutput
from .events import DefaultFlowCallback, ExportableState, TrainerCallback, TrainerControl, TrainerState
from .history import History, Record, Records
from .learner import Learner
from .loop import TrainOutput
from .progress import ProgressCallback
from .reports import ReportCallback
from .seeding import set_seed
from .snapshot import Snapshot, differences

# A script written for transformers' Trainer runs after changing the line that imports these.
Trainer = Seq2SeqTrainer = Learner
Seq2SeqTrainingArguments = TrainingArguments


def parse_args(*classes, argv=None):
    "A command line as arguments: see trainer_nb.parsing.parse_args, which is imported when it is needed."
    from .parsing import parse_args
    return parse_args(*classes, argv=argv)


def compare(learn, other):
    "The losses of two learners side by side: see trainer_nb.branch.compare, which is imported when it is needed."
    from .branch import compare
    return compare(learn, other)


def get_last_checkpoint(folder):
    "The checkpoint in a folder to go on from: see trainer_nb.shelf.get_last_checkpoint, which is imported when it is needed."
    from .shelf import get_last_checkpoint
    return get_last_checkpoint(folder)


def follow(path, also=()):
    "A live view of a run that trains elsewhere, from its log: see trainer_nb.tail.follow, which is imported when it is needed."
    from .tail import follow
    return follow(path, also)


__all__ = ["DataCollatorForLanguageModeling", "DataCollatorForMultipleChoice", "DataCollatorForSeq2Seq", "DataCollatorForTokenClassification",
           "DataCollatorForWholeWordMask", "DataCollatorWithFlattening", "DataCollatorWithPadding", "DefaultDataCollator",
           "DefaultFlowCallback", "EarlyStoppingCallback", "EvalPrediction", "ExportableState", "History", "Learner", "Paused",
           "PredictionOutput", "PrinterCallback", "ProgressCallback", "Record", "Records", "Refused", "ReportCallback", "Seq2SeqTrainer",
           "Seq2SeqTrainingArguments", "Snapshot", "TrainOutput", "Trainer", "TrainerCallback", "TrainerControl", "TrainerState",
           "TrainingArguments", "compare", "default_data_collator", "differences", "follow", "get_last_checkpoint", "metrics",
           "parse_args", "set_seed"]

"""Classify texts with a model of transformers; the script is written as for Hugging Face's Trainer.

The texts are docstrings of Python's standard library: is it about files or about processes and threads? The model is made from a
configuration; `AutoModelForSequenceClassification.from_pretrained(...)` takes its place where there is a pretrained one.

    python text_classification.py --output_dir out --num_train_epochs 8 --learning_rate 2e-3
    python text_classification.py --quick true"""
import importlib
import inspect
from dataclasses import dataclass, field

import numpy as np
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

# The only lines that differ from a script for transformers.
from trainer_nb import DataCollatorWithPadding, Trainer, TrainingArguments, set_seed
from trainer_nb import HfArgumentParser

MODULES = {"files": ["pathlib", "shutil", "tempfile", "zipfile", "tarfile", "io", "glob", "fileinput"],
           "processes": ["subprocess", "threading", "asyncio", "multiprocessing", "concurrent.futures", "signal", "queue", "sched"]}


@dataclass
class DataArguments:
    "Arguments of this script, beside those of the training."
    max_length: int = field(default=48, metadata={"help": "tokens of a text; longer ones are cut"})
    quick: bool = field(default=False, metadata={"help": "train for a moment, to see that everything works"})


def docstrings() -> Dataset:
    "Return the first paragraphs of the docstrings of functions and methods, each once, with the class of their module."
    rows = {}
    for label, names in enumerate(MODULES.values()):
        for module in map(importlib.import_module, names):
            owners = [module, *(o for _, o in inspect.getmembers(module, inspect.isclass) if o.__module__.startswith(module.__name__))]
            for owner in owners:
                for _, o in inspect.getmembers(owner, callable):
                    text = (inspect.getdoc(o) or "").split("\n\n")[0]
                    if len(text.split()) > 5: rows.setdefault(text, label)
    return Dataset.from_list([{"text": text, "label": label} for text, label in sorted(rows.items())])


def make_tokenizer(texts) -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=["[PAD]", "[UNK]"], min_frequency=2))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")


def accuracy(prediction):
    logits, labels = prediction
    return {"accuracy": float((np.argmax(logits, axis=-1) == labels).mean())}


def main():
    data_args, args = HfArgumentParser((DataArguments, TrainingArguments)).parse_args_into_dataclasses()
    if args.output_dir is None: args.output_dir = "docstrings"
    if data_args.quick: args.max_steps, args.learning_rate = 20, 2e-3
    set_seed(args.seed)

    data = docstrings().train_test_split(0.2, seed=0)
    tokenizer = make_tokenizer(data["train"]["text"])
    data = data.map(lambda batch: tokenizer(batch["text"], truncation=True, max_length=data_args.max_length), batched=True)

    labels = dict(enumerate(MODULES))
    model = BertForSequenceClassification(BertConfig(
        vocab_size=len(tokenizer), hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=64, id2label=labels, label2id={name: i for i, name in labels.items()}))
    trainer = Trainer(model, args, train_dataset=data["train"], eval_dataset=data["test"], processing_class=tokenizer,
                      data_collator=DataCollatorWithPadding(tokenizer), compute_metrics=accuracy)

    result = trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    trainer.log_metrics("train", result.metrics)
    metrics = trainer.evaluate()
    trainer.log_metrics("eval", metrics)
    trainer.save_metrics("eval", metrics)
    trainer.save_model()


if __name__ == "__main__": main()

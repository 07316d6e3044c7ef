from transformers import Trainer, TrainingArguments

# Causal language modelling: texts joined and cut into blocks, logits reduced before they are kept, perplexity.
import math
import os
from dataclasses import dataclass, field
from itertools import chain

from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, default_data_collator, set_seed
from transformers.trainer_utils import get_last_checkpoint

import small_data


@dataclass
class DataArguments:
    block_size: int = field(default=8)
    streaming: bool = field(default=False)
    keep_linebreaks: bool = field(default=True)


parser = HfArgumentParser((DataArguments, TrainingArguments))
data_args, training_args = parser.parse_args_into_dataclasses()
last_checkpoint = get_last_checkpoint(training_args.output_dir) if os.path.isdir(training_args.output_dir) else None
set_seed(training_args.seed)
raw_datasets = small_data.texts()
tokenizer = small_data.tokenizer(raw_datasets["train"]["text"])
model = GPT2LMHeadModel(GPT2Config(
    vocab_size=len(tokenizer), n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
    attn_pdrop=0.0, bos_token_id=2, eos_token_id=3, pad_token_id=0))
if data_args.streaming:
    from datasets import IterableDatasetDict
    raw_datasets = IterableDatasetDict({k: v.to_iterable_dataset(num_shards=2) for k, v in raw_datasets.items()})


def group_texts(examples):
    joined = {k: list(chain(*examples[k])) for k in examples}
    total = (len(joined["input_ids"]) // data_args.block_size) * data_args.block_size
    result = {k: [t[i:i + data_args.block_size] for i in range(0, total, data_args.block_size)]
              for k, t in joined.items()}
    result["labels"] = result["input_ids"].copy()
    return result


tokenized = raw_datasets.map(lambda rows: tokenizer(rows["text"]), batched=True, remove_columns=["text"])
lm_datasets = tokenized.map(group_texts, batched=True)


def preprocess_logits_for_metrics(logits, labels):
    if isinstance(logits, tuple): logits = logits[0]
    return logits.argmax(dim=-1)


def compute_metrics(eval_preds):
    preds, labels = eval_preds
    labels, preds = labels[:, 1:].reshape(-1), preds[:, :-1].reshape(-1)
    return {"accuracy": float((preds == labels).mean())}


trainer = Trainer(
    model=model, args=training_args, train_dataset=lm_datasets["train"] if training_args.do_train else None,
    eval_dataset=lm_datasets["validation"] if training_args.do_eval else None, processing_class=tokenizer,
    data_collator=default_data_collator, compute_metrics=compute_metrics if training_args.do_eval else None,
    preprocess_logits_for_metrics=preprocess_logits_for_metrics if training_args.do_eval else None)
found = {}
if training_args.do_train:
    train_result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint or last_checkpoint)
    trainer.save_model()
    metrics = train_result.metrics
    if not data_args.streaming:
        metrics["train_samples"] = len(lm_datasets["train"])
    trainer.log_metrics("train", metrics)
    trainer.save_metrics("train", metrics)
    trainer.save_state()
if training_args.do_eval:
    metrics = trainer.evaluate()
    try:
        perplexity = math.exp(metrics["eval_loss"])
    except OverflowError:
        perplexity = float("inf")
    metrics["perplexity"] = perplexity
    trainer.log_metrics("eval", metrics)
    trainer.save_metrics("eval", metrics)
    found["eval"] = metrics
trainer.create_model_card(tasks="text-generation", dataset_tags="texts", dataset="texts")
found["log"] = trainer.state.log_history
found["weights"] = {name: p.detach().float().numpy() for name, p in trainer.model.named_parameters()}

from transformers import Trainer, TrainingArguments

# Masked language modelling: lines of text, masks that the collator draws (or the preprocessing, once for all).
import math
import random
from dataclasses import dataclass, field

from transformers import (BertConfig, BertForMaskedLM, DataCollatorForLanguageModeling, DataCollatorWithPadding,
                          HfArgumentParser, set_seed)

import small_data


@dataclass
class DataArguments:
    mlm_probability: float = field(default=0.15)
    line_by_line: bool = field(default=True)
    static_masks: bool = field(default=False)


parser = HfArgumentParser((DataArguments, TrainingArguments))
data_args, training_args = parser.parse_args_into_dataclasses()
set_seed(training_args.seed)
raw_datasets = small_data.texts(90)
tokenizer = small_data.tokenizer(raw_datasets["train"]["text"])
model = BertForMaskedLM(BertConfig(
    vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
    max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))


def tokenize_function(examples):
    lines = [line for line in examples["text"] if len(line) > 0 and not line.isspace()]
    return tokenizer(lines, truncation=True, max_length=16, padding="max_length", return_special_tokens_mask=True)


def mask_once(examples):
    draw = random.Random(training_args.seed)
    examples = dict(examples)
    hidden = [[not s and draw.random() < 0.3 for s in row] for row in examples.pop("special_tokens_mask")]
    ids = examples["input_ids"]
    examples["labels"] = [[i if h else -100 for i, h in zip(*pair)] for pair in zip(ids, hidden)]
    examples["input_ids"] = [[tokenizer.mask_token_id if h else i for i, h in zip(*pair)] for pair in zip(ids, hidden)]
    return examples


tokenized = raw_datasets.map(tokenize_function, batched=True, remove_columns=["text"])
if data_args.static_masks:
    tokenized = tokenized.map(mask_once, batched=True, remove_columns=["special_tokens_mask"])
    data_collator = DataCollatorWithPadding(tokenizer)
else:
    data_collator = DataCollatorForLanguageModeling(tokenizer=tokenizer, mlm_probability=data_args.mlm_probability)


def preprocess_logits_for_metrics(logits, labels): return logits.argmax(dim=-1)


def compute_metrics(eval_preds):
    preds, labels = eval_preds
    labels, preds = labels.reshape(-1), preds.reshape(-1)
    mask = labels != -100
    return {"accuracy": float((preds[mask] == labels[mask]).mean())}


trainer = Trainer(
    model=model, args=training_args, train_dataset=tokenized["train"], eval_dataset=tokenized["validation"],
    processing_class=tokenizer, data_collator=data_collator, compute_metrics=compute_metrics,
    preprocess_logits_for_metrics=preprocess_logits_for_metrics)
found = {}
train_result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
trainer.save_model()
metrics = train_result.metrics
metrics["train_samples"] = len(tokenized["train"])
trainer.log_metrics("train", metrics)
trainer.save_metrics("train", metrics)
trainer.save_state()
metrics = trainer.evaluate()
metrics["perplexity"] = math.exp(metrics["eval_loss"])
trainer.log_metrics("eval", metrics)
trainer.save_metrics("eval", metrics)
found["eval"] = metrics
trainer.create_model_card(tasks="fill-mask")
found["log"] = trainer.state.log_history
found["weights"] = {name: p.detach().numpy() for name, p in trainer.model.named_parameters()}

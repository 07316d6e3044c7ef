from transformers import Trainer, TrainingArguments

# Text classification and regression with evaluation by steps, the best model, early stopping, and a test set
# without labels. Only the import line above is changed to run it with trainer_nb; so in all programs of this folder.
import logging
import os
import sys
from dataclasses import dataclass, field

import numpy as np
import transformers
from transformers import (BertConfig, BertForSequenceClassification, DataCollatorWithPadding, EarlyStoppingCallback,
                          EvalPrediction, HfArgumentParser, default_data_collator, set_seed)
from transformers.trainer_utils import get_last_checkpoint

import small_data

logger = logging.getLogger(__name__)


@dataclass
class DataArguments:
    task_name: str = field(default="reviews", metadata={"help": "reviews (classes) or scores (numbers)"})
    max_seq_length: int = field(default=16, metadata={"help": "longer inputs are truncated"})
    pad_to_max_length: bool = field(default=True, metadata={"help": "pad all samples; False: batch by batch"})
    max_train_samples: int | None = field(default=None, metadata={"help": "use fewer samples for training"})


@dataclass
class ModelArguments:
    hidden_size: int = field(default=16, metadata={"help": "width of the model"})
    patience: int | None = field(default=None, metadata={"help": "evaluations without a better metric before the end"})


parser = HfArgumentParser((ModelArguments, DataArguments, TrainingArguments))
model_args, data_args, training_args = parser.parse_args_into_dataclasses()

logging.basicConfig(level=logging.WARNING, handlers=[logging.StreamHandler(sys.stdout)])
if training_args.should_log:
    transformers.utils.logging.set_verbosity_info()
transformers.utils.logging.set_verbosity(training_args.get_process_log_level())
logger.warning(f"device: {training_args.device}, n_gpu: {training_args.n_gpu}, "
               f"distributed: {training_args.parallel_mode.value == 'distributed'}, bits-16: {training_args.fp16}")

last_checkpoint = None
if os.path.isdir(training_args.output_dir) and training_args.do_train:
    last_checkpoint = get_last_checkpoint(training_args.output_dir)
set_seed(training_args.seed)

is_regression = data_args.task_name == "scores"
raw_datasets = small_data.scores() if is_regression else small_data.reviews()
label_list = [] if is_regression else ["bad", "good"]
tokenizer = small_data.tokenizer(raw_datasets["train"]["sentence1"])
config = BertConfig(
    vocab_size=len(tokenizer), hidden_size=model_args.hidden_size, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=32, max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    num_labels=1 if is_regression else 2)
model = BertForSequenceClassification(config)
if not is_regression:
    model.config.label2id = {name: i for i, name in enumerate(label_list)}
    model.config.id2label = dict(enumerate(label_list))
padding = "max_length" if data_args.pad_to_max_length else False


def preprocess_function(examples):
    return tokenizer(examples["sentence1"], examples["sentence2"], padding=padding,
                     max_length=data_args.max_seq_length, truncation=True)


with training_args.main_process_first(desc="dataset map pre-processing"):
    raw_datasets = raw_datasets.map(preprocess_function, batched=True)
train_dataset, eval_dataset = raw_datasets["train"], raw_datasets["validation"]
if data_args.max_train_samples is not None:
    train_dataset = train_dataset.select(range(data_args.max_train_samples))


def compute_metrics(p: EvalPrediction):
    preds = p.predictions[0] if isinstance(p.predictions, tuple) else p.predictions
    if is_regression:
        return {"mse": float(((np.squeeze(preds) - p.label_ids) ** 2).mean()), "combined_score": float(preds.mean())}
    preds = np.argmax(preds, axis=1)
    return {"accuracy": float((preds == p.label_ids).astype(np.float32).mean().item())}


if data_args.pad_to_max_length:
    data_collator = default_data_collator
elif training_args.fp16:
    data_collator = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8)
else:
    data_collator = None
trainer = Trainer(
    model=model,
    args=training_args,
    train_dataset=train_dataset if training_args.do_train else None,
    eval_dataset=eval_dataset if training_args.do_eval else None,
    compute_metrics=compute_metrics,
    processing_class=tokenizer,
    data_collator=data_collator,
    callbacks=None if model_args.patience is None else [EarlyStoppingCallback(model_args.patience)],
)
found = {}
if training_args.do_train:
    checkpoint = None
    if training_args.resume_from_checkpoint is not None:
        checkpoint = training_args.resume_from_checkpoint
    elif last_checkpoint is not None:
        checkpoint = last_checkpoint
    train_result = trainer.train(resume_from_checkpoint=checkpoint)
    metrics = train_result.metrics
    metrics["train_samples"] = len(train_dataset)
    trainer.save_model()
    trainer.log_metrics("train", metrics)
    trainer.save_metrics("train", metrics)
    trainer.save_state()
    found["train"] = (train_result.global_step, train_result.training_loss)
if training_args.do_eval:
    metrics = trainer.evaluate(eval_dataset=eval_dataset)
    metrics["eval_samples"] = len(eval_dataset)
    trainer.log_metrics("eval", metrics)
    trainer.save_metrics("eval", metrics)
    found["eval"] = metrics
if training_args.do_predict and not is_regression:
    predict_dataset = raw_datasets["test"]
    result = trainer.predict(predict_dataset, metric_key_prefix="predict")
    found["predict"] = (result.predictions, result.label_ids, result.metrics)
    predictions = np.argmax(trainer.predict(predict_dataset, metric_key_prefix="predict").predictions, axis=1)
    if trainer.is_world_process_zero():
        with open(os.path.join(training_args.output_dir, "predict_results_reviews.txt"), "w") as writer:
            writer.write("index\tprediction\n")
            for index, item in enumerate(predictions):
                writer.write(f"{index}\t{label_list[item]}\n")
kwargs = {"finetuned_from": "tiny-bert", "tasks": "text-classification", "language": "en",
          "dataset_tags": "reviews", "dataset_args": "reviews", "dataset": "Reviews"}
if training_args.push_to_hub:
    trainer.push_to_hub(**kwargs)
else:
    trainer.create_model_card(**kwargs)
found["log"] = trainer.state.log_history
found["weights"] = {name: p.detach().numpy() for name, p in trainer.model.named_parameters()}

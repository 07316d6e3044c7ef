from transformers import Trainer, TrainingArguments

# Question answering: contexts in overlapping pieces, a subclass whose evaluate() and predict() turn the logits of
# starts and ends into texts before the metrics are computed.
import collections
import json
import math
import os
import time
from dataclasses import dataclass, field

import numpy as np
from transformers import (BertConfig, BertForQuestionAnswering, DataCollatorWithPadding, EvalPrediction,
                          HfArgumentParser, default_data_collator, set_seed)
from transformers.trainer_utils import PredictionOutput, get_last_checkpoint, speed_metrics

import small_data


class QuestionAnsweringTrainer(Trainer):
    def __init__(self, *args, eval_examples=None, post_process_function=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.eval_examples = eval_examples
        self.post_process_function = post_process_function

    def _loop(self, dataloader, description, ignore_keys, prefix):
        # the metrics need texts, so the loop itself computes none
        compute_metrics = self.compute_metrics
        self.compute_metrics = None
        start_time = time.time()
        try:
            output = self.evaluation_loop(
                dataloader, description=description, prediction_loss_only=True if compute_metrics is None else None,
                ignore_keys=ignore_keys, metric_key_prefix=prefix)
        finally:
            self.compute_metrics = compute_metrics
        total_batch_size = self.args.eval_batch_size * self.args.world_size
        output.metrics.update(speed_metrics(
            prefix, start_time, num_samples=output.num_samples,
            num_steps=math.ceil(output.num_samples / total_batch_size)))
        return output

    def evaluate(self, eval_dataset=None, eval_examples=None, ignore_keys=None, metric_key_prefix="eval"):
        eval_dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        eval_dataloader = self.get_eval_dataloader(eval_dataset)
        eval_examples = self.eval_examples if eval_examples is None else eval_examples
        output = self._loop(eval_dataloader, "Evaluation", ignore_keys, metric_key_prefix)
        if self.post_process_function is not None and self.compute_metrics is not None and self.args.should_save:
            eval_preds = self.post_process_function(eval_examples, eval_dataset, output.predictions)
            metrics = self.compute_metrics(eval_preds)
            for key in list(metrics):
                if not key.startswith(f"{metric_key_prefix}_"):
                    metrics[f"{metric_key_prefix}_{key}"] = metrics.pop(key)
            metrics.update(output.metrics)
        else:
            metrics = output.metrics
        if self.args.should_log:
            self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def predict(self, predict_dataset, predict_examples, ignore_keys=None, metric_key_prefix="test"):
        output = self._loop(self.get_test_dataloader(predict_dataset), "Prediction", ignore_keys, metric_key_prefix)
        if self.post_process_function is None or self.compute_metrics is None:
            return output
        predictions = self.post_process_function(predict_examples, predict_dataset, output.predictions, "predict")
        metrics = self.compute_metrics(predictions)
        for key in list(metrics):
            if not key.startswith(f"{metric_key_prefix}_"):
                metrics[f"{metric_key_prefix}_{key}"] = metrics.pop(key)
        metrics.update(output.metrics)
        return PredictionOutput(predictions=predictions.predictions, label_ids=predictions.label_ids, metrics=metrics)


@dataclass
class DataArguments:
    max_seq_length: int = field(default=16)
    doc_stride: int = field(default=4)
    pad_to_max_length: bool = field(default=True)


parser = HfArgumentParser((DataArguments, TrainingArguments))
data_args, training_args = parser.parse_args_into_dataclasses()
last_checkpoint = get_last_checkpoint(training_args.output_dir) if os.path.isdir(training_args.output_dir) else None
set_seed(training_args.seed)
raw_datasets = small_data.questions()
tokenizer = small_data.tokenizer([*raw_datasets["train"]["context"], *raw_datasets["train"]["question"]])
model = BertForQuestionAnswering(BertConfig(
    vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
    max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))


def tokenize(examples):
    return tokenizer(
        examples["question"], examples["context"], truncation="only_second", max_length=data_args.max_seq_length,
        stride=data_args.doc_stride, return_overflowing_tokens=True, return_offsets_mapping=True,
        padding="max_length" if data_args.pad_to_max_length else False)


def prepare_train_features(examples):
    tokenized = tokenize(examples)
    samples, offsets = tokenized.pop("overflow_to_sample_mapping"), tokenized.pop("offset_mapping")
    tokenized["start_positions"], tokenized["end_positions"] = [], []
    for i, spans in enumerate(offsets):
        answers, sequence = examples["answers"][samples[i]], tokenized.sequence_ids(i)
        first = answers["answer_start"][0]
        last = first + len(answers["text"][0])
        inside = [k for k, s in enumerate(sequence) if s == 1 and spans[k][0] >= first and spans[k][1] <= last]
        tokenized["start_positions"].append(inside[0] if inside else 0)
        tokenized["end_positions"].append(inside[-1] if inside else 0)
    return tokenized


def prepare_validation_features(examples):
    tokenized = tokenize(examples)
    samples = tokenized.pop("overflow_to_sample_mapping")
    tokenized["example_id"] = [examples["id"][k] for k in samples]
    tokenized["offset_mapping"] = [
        [o if s == 1 else None for o, s in zip(spans, tokenized.sequence_ids(i))]
        for i, spans in enumerate(tokenized["offset_mapping"])]
    return tokenized


column_names = raw_datasets["train"].column_names
train_dataset = raw_datasets["train"].map(prepare_train_features, batched=True, remove_columns=column_names)
eval_examples = raw_datasets["validation"]
eval_dataset = eval_examples.map(prepare_validation_features, batched=True, remove_columns=column_names)


def post_processing_function(examples, features, predictions, stage="eval"):
    starts, ends = predictions
    assert len(starts) == len(features), (len(starts), len(features))
    best = collections.defaultdict(lambda: (-1e9, ""))
    contexts = dict(zip(examples["id"], examples["context"]))
    for start_logits, end_logits, feature in zip(starts, ends, features):
        offsets = feature["offset_mapping"]
        for a in np.argsort(start_logits)[-1:-9:-1].tolist():
            for b in np.argsort(end_logits)[-1:-9:-1].tolist():
                if a >= len(offsets) or b >= len(offsets) or not offsets[a] or not offsets[b] or b < a: continue
                score = float(start_logits[a] + end_logits[b])
                if score > best[feature["example_id"]][0]:
                    text = contexts[feature["example_id"]][offsets[a][0]:offsets[b][1]]
                    best[feature["example_id"]] = (score, text)
    formatted = [{"id": k, "prediction_text": best[k][1]} for k in contexts]
    if training_args.output_dir is not None:
        with open(os.path.join(training_args.output_dir, f"{stage}_predictions.json"), "w") as writer:
            json.dump(formatted, writer, indent=4)
    references = [{"id": ex["id"], "answers": ex["answers"]} for ex in examples]
    return EvalPrediction(predictions=formatted, label_ids=references)


def compute_metrics(p: EvalPrediction):
    right = [a["prediction_text"] in b["answers"]["text"] for a, b in zip(p.predictions, p.label_ids)]
    return {"exact_match": 100.0 * sum(right) / len(right)}


os.makedirs(training_args.output_dir, exist_ok=True)
trainer = QuestionAnsweringTrainer(
    model=model, args=training_args, train_dataset=train_dataset, eval_dataset=eval_dataset,
    eval_examples=eval_examples, processing_class=tokenizer,
    data_collator=default_data_collator if data_args.pad_to_max_length else DataCollatorWithPadding(tokenizer),
    post_process_function=post_processing_function, compute_metrics=compute_metrics)
found = {}
if training_args.do_train:
    train_result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint or last_checkpoint)
    trainer.save_model()
    metrics = train_result.metrics
    metrics["train_samples"] = len(train_dataset)
    trainer.log_metrics("train", metrics)
    trainer.save_metrics("train", metrics)
    trainer.save_state()
if training_args.do_eval:
    found["eval"] = metrics = trainer.evaluate()
    metrics["eval_samples"] = len(eval_dataset)
    trainer.log_metrics("eval", metrics)
    trainer.save_metrics("eval", metrics)
if training_args.do_predict:
    results = trainer.predict(eval_dataset, eval_examples)
    found["predict"] = (results.predictions, results.label_ids, results.metrics)
    trainer.log_metrics("predict", results.metrics)
    trainer.save_metrics("predict", results.metrics)
trainer.create_model_card(tasks="question-answering")
found["log"] = trainer.state.log_history
found["weights"] = {name: p.detach().numpy() for name, p in trainer.model.named_parameters()}

from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

# Summaries and translations: an encoder and a decoder, generation in evaluation and prediction, texts in the metrics.
import os
from dataclasses import dataclass, field

import numpy as np
from transformers import (DataCollatorForSeq2Seq, HfArgumentParser, T5Config, T5ForConditionalGeneration, set_seed)
from transformers.trainer_utils import get_last_checkpoint

import small_data


@dataclass
class DataArguments:
    max_target_length: int = field(default=8)
    val_max_target_length: int | None = field(default=None)
    num_beams: int | None = field(default=None)
    source_prefix: str | None = field(default="")
    pad_to_max_length: bool = field(default=False)
    ignore_pad_token_for_loss: bool = field(default=True)

    def __post_init__(self):
        if self.val_max_target_length is None:
            self.val_max_target_length = self.max_target_length


parser = HfArgumentParser((DataArguments, Seq2SeqTrainingArguments))
data_args, training_args = parser.parse_args_into_dataclasses()
last_checkpoint = get_last_checkpoint(training_args.output_dir) if os.path.isdir(training_args.output_dir) else None
set_seed(training_args.seed)
raw_datasets = small_data.documents()
tokenizer = small_data.seq2seq_tokenizer(raw_datasets["train"]["document"])
model = T5ForConditionalGeneration(T5Config(
    vocab_size=len(tokenizer), d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, dropout_rate=0.0,
    decoder_start_token_id=0, pad_token_id=0, eos_token_id=1))
model.resize_token_embeddings(len(tokenizer))
padding = "max_length" if data_args.pad_to_max_length else False


def preprocess_function(examples):
    inputs = [data_args.source_prefix + text for text in examples["document"]]
    model_inputs = tokenizer(inputs, max_length=16, padding=padding, truncation=True)
    labels = tokenizer(text_target=examples["summary"], max_length=data_args.max_target_length, padding=padding,
                       truncation=True)
    if padding == "max_length" and data_args.ignore_pad_token_for_loss:
        labels["input_ids"] = [[(k if k != tokenizer.pad_token_id else -100) for k in row]
                               for row in labels["input_ids"]]
    model_inputs["labels"] = labels["input_ids"]
    return model_inputs


tokenized = raw_datasets.map(preprocess_function, batched=True, remove_columns=["document", "summary"])
data_collator = DataCollatorForSeq2Seq(
    tokenizer, model=model, pad_to_multiple_of=8 if training_args.fp16 else None,
    label_pad_token_id=-100 if data_args.ignore_pad_token_for_loss else tokenizer.pad_token_id)


def compute_metrics(eval_preds):
    preds, labels = eval_preds
    if isinstance(preds, tuple): preds = preds[0]
    preds = np.where(preds != -100, preds, tokenizer.pad_token_id)
    decoded_preds = tokenizer.batch_decode(preds, skip_special_tokens=True)
    labels = np.where(labels != -100, labels, tokenizer.pad_token_id)
    decoded_labels = tokenizer.batch_decode(labels, skip_special_tokens=True)
    common = [len(set(a.split()) & set(b.split())) for a, b in zip(decoded_preds, decoded_labels)]
    result = {"rouge1": round(100 * sum(common) / sum(len(b.split()) for b in decoded_labels), 4)}
    result["gen_len"] = np.mean([np.count_nonzero(pred != tokenizer.pad_token_id) for pred in preds])
    return result


training_args.generation_max_length = (
    training_args.generation_max_length if training_args.generation_max_length is not None
    else data_args.val_max_target_length)
training_args.generation_num_beams = (
    data_args.num_beams if data_args.num_beams is not None else training_args.generation_num_beams)
trainer = Seq2SeqTrainer(
    model=model, args=training_args, train_dataset=tokenized["train"], eval_dataset=tokenized["validation"],
    processing_class=tokenizer, data_collator=data_collator,
    compute_metrics=compute_metrics if training_args.predict_with_generate else None)
found = {}
if training_args.do_train:
    train_result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint or last_checkpoint)
    trainer.save_model()
    metrics = train_result.metrics
    metrics["train_samples"] = len(tokenized["train"])
    trainer.log_metrics("train", metrics)
    trainer.save_metrics("train", metrics)
    trainer.save_state()
if training_args.do_eval:
    metrics = trainer.evaluate(metric_key_prefix="eval")
    metrics["eval_samples"] = len(tokenized["validation"])
    trainer.log_metrics("eval", metrics)
    trainer.save_metrics("eval", metrics)
    found["eval"] = metrics
if training_args.do_predict:
    predict_results = trainer.predict(
        tokenized["test"].select(range(5)), metric_key_prefix="predict", max_length=data_args.val_max_target_length,
        num_beams=data_args.num_beams)
    metrics = predict_results.metrics
    trainer.log_metrics("predict", metrics)
    trainer.save_metrics("predict", metrics)
    found["predict"] = tuple(predict_results)
    if trainer.is_world_process_zero() and training_args.predict_with_generate:
        predictions = np.where(predict_results.predictions != -100, predict_results.predictions, tokenizer.pad_token_id)
        texts = tokenizer.batch_decode(predictions, skip_special_tokens=True, clean_up_tokenization_spaces=True)
        with open(os.path.join(training_args.output_dir, "generated_predictions.txt"), "w") as writer:
            writer.write("\n".join(text.strip() for text in texts))
trainer.create_model_card(tasks="summarization", finetuned_from="tiny-t5")
found["log"] = trainer.state.log_history
found["weights"] = {name: p.detach().numpy() for name, p in trainer.model.named_parameters()}

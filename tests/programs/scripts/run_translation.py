from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

# Translation: a column of dicts, a forced first token, decoder inputs by the collator, label smoothing, adafactor.
import os
from dataclasses import dataclass, field

import numpy as np
from transformers import (BartConfig, BartForConditionalGeneration, DataCollatorForSeq2Seq, HfArgumentParser,
                          default_data_collator, set_seed)

import small_data


@dataclass
class DataArguments:
    source_lang: str = field(default="en")
    target_lang: str = field(default="de")
    max_length: int = field(default=8)
    pad_to_max_length: bool = field(default=False)


parser = HfArgumentParser((DataArguments, Seq2SeqTrainingArguments))
data_args, training_args = parser.parse_args_into_dataclasses()
set_seed(training_args.seed)
raw_datasets = small_data.translations()
tokenizer = small_data.seq2seq_tokenizer(
    row[lang] for part in raw_datasets.values() for row in part["translation"] for lang in ("en", "de"))
model = BartForConditionalGeneration(BartConfig(
    vocab_size=len(tokenizer), d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
    decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=32, dropout=0.0,
    attention_dropout=0.0, activation_dropout=0.0, bos_token_id=2, pad_token_id=0, eos_token_id=1,
    decoder_start_token_id=1, forced_eos_token_id=1))
forced = tokenizer.convert_tokens_to_ids(data_args.target_lang)
model.generation_config.forced_bos_token_id = forced
padding = "max_length" if data_args.pad_to_max_length else False


def preprocess_function(examples):
    inputs = [row[data_args.source_lang] for row in examples["translation"]]
    targets = [f"{data_args.target_lang} {row[data_args.target_lang]}" for row in examples["translation"]]
    model_inputs = tokenizer(inputs, max_length=data_args.max_length, padding=padding, truncation=True)
    labels = tokenizer(text_target=targets, max_length=data_args.max_length, padding=padding, truncation=True)
    model_inputs["labels"] = labels["input_ids"]
    return model_inputs


tokenized = raw_datasets.map(preprocess_function, batched=True, remove_columns=["translation"])
data_collator = default_data_collator if data_args.pad_to_max_length else DataCollatorForSeq2Seq(tokenizer, model=model)


def compute_metrics(eval_preds):
    preds, labels = eval_preds
    if isinstance(preds, tuple): preds = preds[0]
    preds = np.where(preds != -100, preds, tokenizer.pad_token_id)
    labels = np.where(labels != -100, labels, tokenizer.pad_token_id)
    texts = [tokenizer.batch_decode(rows, skip_special_tokens=True) for rows in (preds, labels)]
    same = [a.strip() == b.strip() for a, b in zip(*texts)]
    lengths = [np.count_nonzero(pred != tokenizer.pad_token_id) for pred in preds]
    return {"bleu": round(float(np.mean(same)), 4), "gen_len": round(np.mean(lengths), 4)}


trainer = Seq2SeqTrainer(
    model=model, args=training_args, train_dataset=tokenized["train"],
    eval_dataset={"seen": tokenized["train"].select(range(10)), "new": tokenized["validation"]},
    processing_class=tokenizer, data_collator=data_collator,
    compute_metrics=compute_metrics if training_args.predict_with_generate else None)
found = {}
train_result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
trainer.save_model()
trainer.log_metrics("train", train_result.metrics)
trainer.save_metrics("train", train_result.metrics)
trainer.save_state()
found["eval"] = metrics = trainer.evaluate(metric_key_prefix="eval")
trainer.log_metrics("eval", metrics)
trainer.save_metrics("eval", metrics)
result = trainer.predict(tokenized["test"].select(range(5)), metric_key_prefix="predict", max_new_tokens=5)
found["predict"] = tuple(result)
trainer.save_metrics("predict", result.metrics)
if training_args.predict_with_generate:
    tokens = np.where(result.predictions != -100, result.predictions, tokenizer.pad_token_id)
    texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
    with open(os.path.join(training_args.output_dir, "generated_predictions.txt"), "w", encoding="utf-8") as writer:
        writer.write("\n".join(texts))
trainer.create_model_card(language=["en", "de"], tasks="translation")
found["log"] = trainer.state.log_history
found["weights"] = {name: p.detach().numpy() for name, p in trainer.model.named_parameters()}

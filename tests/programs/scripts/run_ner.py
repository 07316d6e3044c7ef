from transformers import Trainer, TrainingArguments

# Token classification: labels aligned with words, batches of like lengths, label smoothing, evaluation by epochs.
import os
from dataclasses import dataclass, field

import numpy as np
from transformers import (BertConfig, BertForTokenClassification, DataCollatorForTokenClassification, HfArgumentParser,
                          set_seed)
from transformers.trainer_utils import get_last_checkpoint

import small_data


@dataclass
class DataArguments:
    text_column_name: str = field(default="tokens")
    label_column_name: str = field(default="ner_tags")
    label_all_tokens: bool = field(default=False)
    return_entity_level_metrics: bool = field(default=False)


parser = HfArgumentParser((DataArguments, TrainingArguments))
data_args, training_args = parser.parse_args_into_dataclasses()
last_checkpoint = get_last_checkpoint(training_args.output_dir) if os.path.isdir(training_args.output_dir) else None
set_seed(training_args.seed)

raw_datasets = small_data.entities()
label_list = ["O", "B-PER", "I-PER", "B-LOC"]
tokenizer = small_data.tokenizer([" ".join(words) for words in raw_datasets["train"]["tokens"]])
model = BertForTokenClassification(BertConfig(
    vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
    max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    id2label=dict(enumerate(label_list)), label2id={name: i for i, name in enumerate(label_list)}))


def tokenize_and_align_labels(examples):
    tokenized = tokenizer(examples[data_args.text_column_name], truncation=True, is_split_into_words=True)
    labels = []
    for i, tags in enumerate(examples[data_args.label_column_name]):
        previous, ids = None, []
        for word in tokenized.word_ids(batch_index=i):
            if word is None: ids.append(-100)
            elif word != previous: ids.append(tags[word])
            else: ids.append(tags[word] if data_args.label_all_tokens else -100)
            previous = word
        labels.append(ids)
    tokenized["labels"] = labels
    return tokenized


with training_args.main_process_first(desc="dataset map pre-processing"):
    tokenized_datasets = raw_datasets.map(tokenize_and_align_labels, batched=True)


def compute_metrics(p):
    predictions, labels = p
    predictions = np.argmax(predictions, axis=2)
    kept = labels != -100
    result = {"precision": float((predictions[kept] == labels[kept]).mean()), "f1": float(kept.mean()),
              "accuracy": float((predictions == labels)[kept].mean())}
    if data_args.return_entity_level_metrics:
        result["entities"] = {name: int((predictions[kept] == i).sum()) for i, name in enumerate(label_list)}
        flat = {}
        for key, value in result.items():
            flat.update({f"{key}_{n}": v for n, v in value.items()} if isinstance(value, dict) else {key: value})
        return flat
    return result


trainer = Trainer(
    model=model, args=training_args, train_dataset=tokenized_datasets["train"],
    eval_dataset=tokenized_datasets["validation"], processing_class=tokenizer,
    data_collator=DataCollatorForTokenClassification(tokenizer, pad_to_multiple_of=8 if training_args.bf16 else None),
    compute_metrics=compute_metrics)
found = {}
if training_args.do_train:
    checkpoint = training_args.resume_from_checkpoint or last_checkpoint
    train_result = trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model()
    trainer.log_metrics("train", train_result.metrics)
    trainer.save_metrics("train", train_result.metrics)
    trainer.save_state()
if training_args.do_eval:
    found["eval"] = metrics = trainer.evaluate()
    trainer.log_metrics("eval", metrics)
    trainer.save_metrics("eval", metrics)
if training_args.do_predict:
    predictions, labels, metrics = trainer.predict(tokenized_datasets["test"], metric_key_prefix="predict")
    found["predict"] = (predictions, labels, metrics)
    predictions = np.argmax(predictions, axis=2)
    true_predictions = [[label_list[p] for p, tag in zip(row, tags) if tag != -100]
                        for row, tags in zip(predictions, labels)]
    trainer.log_metrics("predict", metrics)
    trainer.save_metrics("predict", metrics)
    if trainer.is_world_process_zero():
        with open(os.path.join(training_args.output_dir, "predictions.txt"), "w") as writer:
            for prediction in true_predictions:
                writer.write(" ".join(prediction) + "\n")
trainer.create_model_card(tasks="token-classification", finetuned_from="tiny-bert")
found["log"] = trainer.state.log_history
found["weights"] = {name: p.detach().numpy() for name, p in trainer.model.named_parameters()}

from transformers import Trainer, TrainingArguments

# Speech recognition with CTC: a processor, a collator that pads sounds and labels apart, a rate of wrong words.
import json
import os
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import (HfArgumentParser, Wav2Vec2Config, Wav2Vec2CTCTokenizer, Wav2Vec2FeatureExtractor,
                          Wav2Vec2ForCTC, Wav2Vec2Processor, set_seed)

import small_data


@dataclass
class ModelArguments:
    ctc_loss_reduction: str = field(default="mean")
    freeze_feature_encoder: bool = field(default=True)


parser = HfArgumentParser((ModelArguments, TrainingArguments))
model_args, training_args = parser.parse_args_into_dataclasses()
set_seed(training_args.seed)
raw_datasets = small_data.sounds()
os.makedirs(training_args.output_dir, exist_ok=True)
with open(os.path.join(training_args.output_dir, "vocab.json"), "w") as writer:
    json.dump({"[PAD]": 0, "[UNK]": 1, "|": 2, "a": 3, "b": 4}, writer)
tokenizer = Wav2Vec2CTCTokenizer(
    os.path.join(training_args.output_dir, "vocab.json"), unk_token="[UNK]", pad_token="[PAD]",
    word_delimiter_token="|")
feature_extractor = Wav2Vec2FeatureExtractor(return_attention_mask=True)
processor = Wav2Vec2Processor(feature_extractor=feature_extractor, tokenizer=tokenizer)


def prepare_dataset(batch):
    inputs = feature_extractor(batch["audio"], sampling_rate=16_000)
    batch["input_values"] = inputs.input_values[0]
    batch["input_length"] = len(batch["input_values"])
    batch["labels"] = tokenizer(batch["text"]).input_ids
    return batch


vectorized_datasets = raw_datasets.map(prepare_dataset, remove_columns=raw_datasets["train"].column_names)


@dataclass
class DataCollatorCTCWithPadding:
    processor: Wav2Vec2Processor
    padding: bool | str = "longest"

    def __call__(self, features):
        input_features = [{"input_values": feature["input_values"]} for feature in features]
        label_features = [{"input_ids": feature["labels"]} for feature in features]
        batch = self.processor.pad(input_features, padding=self.padding, return_tensors="pt")
        labels_batch = self.processor.pad(labels=label_features, padding=self.padding, return_tensors="pt")
        batch["labels"] = labels_batch["input_ids"].masked_fill(labels_batch.attention_mask.ne(1), -100)
        if "attention_mask" in batch: batch["attention_mask"] = batch["attention_mask"].to(torch.long)
        return batch


model = Wav2Vec2ForCTC(Wav2Vec2Config(
    vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
    conv_dim=(8, 8), conv_stride=(5, 4), conv_kernel=(10, 8), num_feat_extract_layers=2, num_conv_pos_embeddings=8,
    num_conv_pos_embedding_groups=2, hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0,
    feat_proj_dropout=0.0, final_dropout=0.0, layerdrop=0.0, apply_spec_augment=False, pad_token_id=0,
    bos_token_id=5, eos_token_id=6,
    ctc_loss_reduction=model_args.ctc_loss_reduction, ctc_zero_infinity=True))
if model_args.freeze_feature_encoder:
    model.freeze_feature_encoder()


def preprocess_logits_for_metrics(logits, labels): return torch.argmax(logits, dim=-1)


def compute_metrics(pred):
    pred.label_ids[pred.label_ids == -100] = tokenizer.pad_token_id
    pred_str = tokenizer.batch_decode(np.where(pred.predictions == -100, 0, pred.predictions))
    label_str = tokenizer.batch_decode(pred.label_ids, group_tokens=False)
    return {"wer": sum(a != b for a, b in zip(pred_str, label_str)) / len(label_str),
            "letters": sum(map(len, pred_str))}


if training_args.should_save:
    processor.save_pretrained(training_args.output_dir)
trainer = Trainer(
    model=model, data_collator=DataCollatorCTCWithPadding(processor=processor), args=training_args,
    compute_metrics=compute_metrics, train_dataset=vectorized_datasets["train"],
    eval_dataset=vectorized_datasets["validation"], processing_class=processor,
    preprocess_logits_for_metrics=preprocess_logits_for_metrics)
found = {}
train_result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
trainer.save_model()
trainer.log_metrics("train", train_result.metrics)
trainer.save_metrics("train", train_result.metrics)
trainer.save_state()
found["eval"] = metrics = trainer.evaluate()
trainer.log_metrics("eval", metrics)
trainer.save_metrics("eval", metrics)
found["predict"] = tuple(trainer.predict(vectorized_datasets["validation"]))
trainer.create_model_card(tasks="automatic-speech-recognition", tags=["hf-asr-leaderboard"])
found["log"] = trainer.state.log_history
found["weights"] = {name: p.detach().numpy() for name, p in trainer.model.named_parameters()}

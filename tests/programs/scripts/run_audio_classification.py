from transformers import Trainer, TrainingArguments

# Audio classification: a feature extractor when a sample is read, frozen convolutions, gradient checkpointing.
from dataclasses import dataclass, field

import numpy as np
from transformers import (HfArgumentParser, Wav2Vec2Config, Wav2Vec2FeatureExtractor,
                          Wav2Vec2ForSequenceClassification, set_seed)

import small_data


@dataclass
class ModelArguments:
    freeze_feature_encoder: bool = field(default=True)
    max_length_samples: int = field(default=600)


parser = HfArgumentParser((ModelArguments, TrainingArguments))
model_args, training_args = parser.parse_args_into_dataclasses()
set_seed(training_args.seed)
raw_datasets = small_data.sounds()
feature_extractor = Wav2Vec2FeatureExtractor(return_attention_mask=True)
model_input_name = feature_extractor.model_input_names[0]


def transforms(batch):
    waves = [np.asarray(wave, dtype=np.float32)[:model_args.max_length_samples] for wave in batch["audio"]]
    inputs = feature_extractor(
        waves, sampling_rate=feature_extractor.sampling_rate, padding="max_length",
        max_length=model_args.max_length_samples)
    output_batch = {model_input_name: inputs.get(model_input_name)}
    output_batch["labels"] = list(batch["label"])
    return output_batch


raw_datasets["train"].set_transform(transforms, output_all_columns=False)
raw_datasets["validation"].set_transform(transforms, output_all_columns=False)
model = Wav2Vec2ForSequenceClassification(Wav2Vec2Config(
    hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, conv_dim=(8, 8),
    conv_stride=(5, 4), conv_kernel=(10, 8), num_feat_extract_layers=2, num_conv_pos_embeddings=8,
    num_conv_pos_embedding_groups=2, classifier_proj_size=8, hidden_dropout=0.0, attention_dropout=0.0,
    activation_dropout=0.0, feat_proj_dropout=0.0, final_dropout=0.0, layerdrop=0.0, apply_spec_augment=False,
    num_labels=2))
if model_args.freeze_feature_encoder:
    model.freeze_feature_encoder()


def compute_metrics(eval_pred):
    predictions = np.argmax(eval_pred.predictions, axis=1)
    return {"accuracy": float((predictions == eval_pred.label_ids).mean())}


trainer = Trainer(
    model=model, args=training_args, train_dataset=raw_datasets["train"] if training_args.do_train else None,
    eval_dataset=raw_datasets["validation"] if training_args.do_eval else None, compute_metrics=compute_metrics,
    processing_class=feature_extractor)
found = {}
if training_args.do_train:
    train_result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    trainer.save_model()
    trainer.log_metrics("train", train_result.metrics)
    trainer.save_metrics("train", train_result.metrics)
    trainer.save_state()
if training_args.do_eval:
    found["eval"] = metrics = trainer.evaluate()
    trainer.log_metrics("eval", metrics)
    trainer.save_metrics("eval", metrics)
trainer.create_model_card(tasks="audio-classification")
found["log"] = trainer.state.log_history
found["weights"] = {name: p.detach().numpy() for name, p in trainer.model.named_parameters()}

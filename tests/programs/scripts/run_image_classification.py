from transformers import Trainer, TrainingArguments

# Image classification: pictures are transformed when they are read, so all columns are kept; a collator of its own.
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import (HfArgumentParser, ResNetConfig, ResNetForImageClassification, ViTConfig,
                          ViTForImageClassification, set_seed)

import small_data


@dataclass
class ModelArguments:
    model_type: str = field(default="vit", metadata={"help": "vit or resnet"})
    image_column_name: str = field(default="image")
    label_column_name: str = field(default="label")


parser = HfArgumentParser((ModelArguments, TrainingArguments))
model_args, training_args = parser.parse_args_into_dataclasses()
set_seed(training_args.seed)
dataset = small_data.pictures()
label2id, id2label = {"upper": 0, "lower": 1}, {0: "upper", 1: "lower"}
if model_args.model_type == "vit":
    model = ViTForImageClassification(ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=20, patch_size=5,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, id2label=id2label, label2id=label2id))
else:
    model = ResNetForImageClassification(ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", id2label=id2label,
        label2id=label2id))


def collate_fn(examples):
    pixel_values = torch.stack([example["pixel_values"] for example in examples])
    labels = torch.tensor([example[model_args.label_column_name] for example in examples])
    return {"pixel_values": pixel_values, "labels": labels}


def transforms(example_batch):
    images = [np.asarray(image.convert("RGB")) for image in example_batch[model_args.image_column_name]]
    example_batch["pixel_values"] = [torch.from_numpy(i.copy()).permute(2, 0, 1).float() / 127.5 - 1 for i in images]
    return example_batch


def compute_metrics(p):
    preds = p.predictions[0] if isinstance(p.predictions, tuple) else p.predictions
    return {"accuracy": float((np.argmax(preds, axis=1) == p.label_ids).mean())}


dataset["train"].set_transform(transforms)
eval_dataset = dataset["validation"].with_transform(transforms)
trainer = Trainer(model=model, args=training_args, train_dataset=dataset["train"], eval_dataset=eval_dataset,
                  compute_metrics=compute_metrics, data_collator=collate_fn)
found = {}
if training_args.do_train:
    train_result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    trainer.save_model()
    trainer.log_metrics("train", train_result.metrics)
    trainer.save_metrics("train", train_result.metrics)
    trainer.save_state()
if training_args.do_eval:
    metrics = trainer.evaluate()
    trainer.log_metrics("eval", metrics)
    trainer.save_metrics("eval", metrics)
    found["eval"] = metrics
found["predict"] = tuple(trainer.predict(eval_dataset))
trainer.create_model_card(tasks="image-classification", tags=["image-classification", "vision"])
found["log"] = trainer.state.log_history
found["weights"] = {name: p.detach().numpy() for name, p in trainer.model.state_dict().items()}

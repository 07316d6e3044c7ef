from transformers import Trainer, TrainingArguments

# What scripts add to a Trainer: an optimizer and a schedule of their own, a loss with weights, callbacks that act and
# record, batches from a method, metrics batch by batch; and a resumed run.
import os
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.utils.data import DataLoader
from transformers import (BertConfig, BertForSequenceClassification, DataCollatorWithPadding, HfArgumentParser,
                          TrainerCallback, get_cosine_schedule_with_warmup, set_seed)
from transformers.trainer_pt_utils import get_parameter_names
from transformers.trainer_utils import get_last_checkpoint

import small_data


@dataclass
class ScriptArguments:
    own_optimizer: bool = field(default=True)
    stop_after: int | None = field(default=None, metadata={"help": "end as if the job had been killed after this step"})


class Recorder(TrainerCallback):
    "Write down every event with the place in the run."
    def __init__(self): self.events = []


def recorder_of(name):
    def record(self, args, state, control, **kwargs):
        given = sorted(k for k in kwargs if kwargs[k] is not None and k != "learner")
        place = (state.global_step, state.epoch, control.should_save, control.should_evaluate)
        self.events.append((name, *place, *given))
    return record


for event in [name for name in vars(TrainerCallback) if name.startswith("on_") and name != "on_init_end"]:
    setattr(Recorder, event, recorder_of(event))


class Actor(TrainerCallback):
    "Ask for an evaluation and a checkpoint where the schedule has none, and keep the best loss in a file."
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 4:
            control.should_evaluate = control.should_save = control.should_log = True
        return control
    def on_evaluate(self, args, state, control, metrics, **kwargs):
        with open(os.path.join(args.output_dir, "seen.txt"), "a") as file:
            file.write(f"{state.global_step} {sorted(k for k in metrics if 'second' not in k)}\n")


class Stop(TrainerCallback):
    def __init__(self, after): self.after = after
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step >= self.after: control.should_training_stop = True


class WeightedTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        weight = torch.tensor([1.0, 2.0], device=model.device)
        loss = torch.nn.functional.cross_entropy(outputs.logits.view(-1, 2), labels.view(-1), weight=weight)
        return (loss, outputs) if return_outputs else loss

    def get_eval_dataloader(self, eval_dataset=None):
        eval_dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if hasattr(eval_dataset, "remove_columns"):
            eval_dataset = self._remove_unused_columns(eval_dataset, description="evaluation")
        return self.accelerator.prepare(DataLoader(eval_dataset, batch_size=5, collate_fn=self.data_collator))

    def evaluation_loop(self, *args, **kwargs):
        output = super().evaluation_loop(*args, **kwargs)
        prefix = kwargs.get("metric_key_prefix", "eval")
        if f"{prefix}_loss" in output.metrics:
            output.metrics[f"{prefix}_twice"] = 2 * output.metrics[f"{prefix}_loss"]
        return output


parser = HfArgumentParser((ScriptArguments, TrainingArguments))
script_args, training_args = parser.parse_args_into_dataclasses()
set_seed(training_args.seed)
raw_datasets = small_data.reviews()
tokenizer = small_data.tokenizer(raw_datasets["train"]["sentence1"])
model = BertForSequenceClassification(BertConfig(
    vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
    max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=2))
data = raw_datasets.map(lambda rows: tokenizer(rows["sentence1"], truncation=True), batched=True)

sums = {"right": 0, "all": 0}


def compute_metrics(p, compute_result=False):
    logits, labels = p.predictions, p.label_ids
    if isinstance(logits, torch.Tensor): logits, labels = logits.cpu().numpy(), labels.cpu().numpy()
    sums["right"] += int((np.argmax(logits, -1) == labels).sum())
    sums["all"] += len(labels)
    if compute_result or not training_args.batch_eval_metrics:
        result = {"accuracy": sums["right"] / sums["all"]}
        sums.update(right=0, all=0)
        return result


optimizers = (None, None)
if script_args.own_optimizer:
    decay = get_parameter_names(model, [torch.nn.LayerNorm], ["bias"])
    optimizer = torch.optim.AdamW([
        {"params": [p for n, p in model.named_parameters() if n in decay], "weight_decay": 0.1},
        {"params": [p for n, p in model.named_parameters() if n not in decay], "weight_decay": 0.0, "lr": 1e-2},
    ], lr=training_args.learning_rate)
    optimizers = (optimizer, get_cosine_schedule_with_warmup(optimizer, 2, training_args.max_steps))
recorder = Recorder()
callbacks = [recorder, Actor]
if script_args.stop_after is not None:
    callbacks.append(Stop(script_args.stop_after))
trainer = WeightedTrainer(
    model=model, args=training_args, train_dataset=data["train"], eval_dataset=data["validation"],
    processing_class=tokenizer, data_collator=DataCollatorWithPadding(tokenizer), compute_metrics=compute_metrics,
    optimizers=optimizers, callbacks=callbacks)
found = {}
last_checkpoint = get_last_checkpoint(training_args.output_dir) if os.path.isdir(training_args.output_dir) else None
result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint or last_checkpoint)
trainer.save_model()
trainer.log_metrics("train", result.metrics)
trainer.save_metrics("train", result.metrics)
trainer.save_state()
found["result"] = (result.global_step, result.training_loss, sorted(result.metrics))
found["eval"] = trainer.evaluate(data["validation"].select(range(10)), metric_key_prefix="some")
found["predict"] = tuple(trainer.predict(data["test"].select(range(10))))
found["rates"] = [group["lr"] for group in trainer.optimizer.param_groups], trainer.lr_scheduler.get_last_lr()
found["events"] = recorder.events
found["log"] = trainer.state.log_history
found["weights"] = {name: p.detach().numpy() for name, p in trainer.model.named_parameters()}

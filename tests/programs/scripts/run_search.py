from transformers import Trainer, TrainingArguments

# A search for hyperparameters with Optuna: the model by model_init, a space and an objective of the script's own.
from dataclasses import dataclass, field

import numpy as np
import optuna
from transformers import BertConfig, BertForSequenceClassification, HfArgumentParser, set_seed

import small_data


@dataclass
class ScriptArguments:
    n_trials: int = field(default=3)
    trial_in_init: bool = field(default=False)


script_args, training_args = HfArgumentParser((ScriptArguments, TrainingArguments)).parse_args_into_dataclasses()
set_seed(training_args.seed)
optuna.logging.set_verbosity(optuna.logging.WARNING)
raw_datasets = small_data.reviews()
tokenizer = small_data.tokenizer(raw_datasets["train"]["sentence1"])
data = raw_datasets.map(lambda rows: tokenizer(rows["sentence1"], truncation=True), batched=True)
made = []


def model_init(trial=None):
    width = 16
    if script_args.trial_in_init and trial is not None: width = trial.suggest_categorical("width", [8, 16])
    made.append(width)
    return BertForSequenceClassification(BertConfig(
        vocab_size=len(tokenizer), hidden_size=width, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=2))


def compute_metrics(p): return {"accuracy": float((np.argmax(p.predictions, -1) == p.label_ids).mean())}


def hp_space(trial):
    return {"learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True),
            "per_device_train_batch_size": trial.suggest_categorical("per_device_train_batch_size", [4, 8]),
            "warmup_steps": trial.suggest_int("warmup_steps", 0, 3)}


trainer = Trainer(model_init=model_init, args=training_args, train_dataset=data["train"],
                  eval_dataset=data["validation"], processing_class=tokenizer, compute_metrics=compute_metrics)
best = trainer.hyperparameter_search(
    hp_space=hp_space, compute_objective=lambda metrics: metrics["eval_loss"], n_trials=script_args.n_trials,
    direction="minimize", backend="optuna", sampler=optuna.samplers.RandomSampler(seed=3))
found = {"best": (best.run_id, best.objective, best.hyperparameters)}
for name, value in best.hyperparameters.items():
    if hasattr(trainer.args, name): setattr(trainer.args, name, value)
result = trainer.train()
found["result"] = (result.global_step, result.training_loss)
found["eval"] = trainer.evaluate()
found["made"] = made[-1]
found["log"] = trainer.state.log_history
found["weights"] = {name: p.detach().numpy() for name, p in trainer.model.named_parameters()}

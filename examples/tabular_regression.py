"""Predict a number from the columns of a table: the progress of diabetes a year later (scikit-learn's data, 442 patients).

    python tabular_regression.py
    python tabular_regression.py --quick"""
import argparse

import numpy as np
import torch
from datasets import Dataset
from sklearn.datasets import load_diabetes
from torch import nn

from trainer_nb import Learner, metrics, set_seed


class Table(nn.Module):
    "A perceptron over the columns. The forward's parameters are columns of the data set: others are not passed."
    def __init__(self, columns: int, mean: float, std: float):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(columns, 32), nn.SiLU(), nn.Dropout(0.2), nn.Linear(32, 1))
        # the scale of the target is part of the model, and so of its checkpoints
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("std", torch.tensor(std))

    def forward(self, features, labels=None):
        scaled = self.layers(features).squeeze(-1)
        predictions = scaled * self.std + self.mean
        if labels is None: return {"logits": predictions}
        return {"loss": nn.functional.mse_loss(scaled, (labels - self.mean) / self.std), "logits": predictions}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="train for a moment, to see that everything works")
    quick = parser.parse_args().quick

    features, target = load_diabetes(return_X_y=True)
    features = (features / features.std(0)).astype(np.float32)
    data = Dataset.from_dict({"features": features, "labels": target.astype(np.float32), "patient": np.arange(len(target))})
    data = data.with_format("torch").train_test_split(0.25, seed=0)

    set_seed(0)
    labels = data["train"]["labels"][:]
    learn = Learner(Table(features.shape[1], float(labels.mean()), float(labels.std())), train_dataset=data["train"], eval_dataset=data["test"],
                    compute_metrics=metrics.regression, learning_rate=3e-3, weight_decay=0.1, num_train_epochs=5 if quick else 60,
                    per_device_train_batch_size=32, eval_strategy="epoch", output_dir="diabetes", save_strategy="no", logging_steps=50)
    # a rate that suits the data, from short trainings that leave the run as it was
    print(learn.lr_find())
    learn.train()
    found = learn.evaluate()
    print({name: round(value, 3) for name, value in found.items() if name in ("eval_loss", "eval_r2", "eval_mae")})


if __name__ == "__main__": main()

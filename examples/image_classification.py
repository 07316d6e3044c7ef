"""Train a convolutional network on images, with augmentation, and keep the best model.

    python image_classification.py                        # scikit-learn's handwritten digits, some seconds on a CPU
    python image_classification.py --quick
    python image_classification.py --learning_rate 0.01 --num_train_epochs 10    # every argument of TrainingArguments"""
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset

from trainer_nb import EarlyStoppingCallback, Learner, TrainingArguments, parse_args, set_seed


class Digits(Dataset):
    "Images of 8 by 8 pixels with their labels; those for training are moved by up to one pixel."
    def __init__(self, train: bool):
        images, labels = load_digits(return_X_y=True)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        rows = order[:1500] if train else order[1500:]
        self.images = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8)[rows] / 16
        self.labels, self.train = torch.tensor(labels)[rows], train

    def __len__(self): return len(self.labels)

    def __getitem__(self, i):
        image = self.images[i]
        # random numbers in a data set are seeded by the position in the run: a resumed run sees the same images
        if self.train: image = torch.roll(image, shifts=tuple(torch.randint(-1, 2, (2,)).tolist()), dims=(1, 2))
        return image, self.labels[i]


def make_network() -> nn.Module:
    def block(inputs, outputs): return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())
    return nn.Sequential(block(1, 16), nn.MaxPool2d(2), block(16, 32), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def accuracy(prediction): return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def main():
    quick = "--quick" in sys.argv
    # values of the command line take the place of these
    defaults = ["--output_dir", "digits", "--learning_rate", "3e-3", "--per_device_train_batch_size", "32",
                "--num_train_epochs", "2" if quick else "20", "--eval_strategy", "epoch", "--save_strategy", "best",
                "--metric_for_best_model", "accuracy", "--load_best_model_at_end", "--save_total_limit", "1"]
    args = parse_args(TrainingArguments, argv=defaults + [o for o in sys.argv[1:] if o != "--quick"])
    set_seed(args.seed)
    learn = Learner(make_network(), args, train_dataset=Digits(train=True), eval_dataset=Digits(train=False),
                    loss_func=nn.functional.cross_entropy, compute_metrics=accuracy,
                    callbacks=[EarlyStoppingCallback(early_stopping_patience=4)])
    learn.train()
    print("accuracy", round(learn.evaluate()["eval_accuracy"], 3))
    for actual, predicted, count in learn.most_confused(min_count=1)[:3]: print(f"{actual} was read as {predicted}: {count} times")
    learn.save_model("digits/final")


if __name__ == "__main__": main()

"""The same training on two processes, however they are started.

    python several_processes.py --quick                              # starts two processes by itself, with learn.launch
    torchrun --nproc_per_node 2 several_processes.py --quick         # finds those of the launcher
    accelerate launch --num_processes 2 --cpu several_processes.py --quick

On a machine with several GPUs leave the number out: one process for each GPU."""
import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset, random_split

from trainer_nb import Learner, set_seed


def digits() -> TensorDataset:
    images, labels = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))


def accuracy(prediction): return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="train for a moment, to see that everything works")
    quick = parser.parse_args().quick

    set_seed(0)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
    train, held_out = random_split(digits(), [0.8, 0.2])
    learn = Learner(network, train_dataset=train, eval_dataset=held_out, loss_func=nn.functional.cross_entropy, compute_metrics=accuracy,
                    per_device_train_batch_size=32, learning_rate=1e-2, num_train_epochs=2 if quick else 10, output_dir="processes",
                    save_strategy="no", logging_steps=20, use_cpu=not torch.cuda.is_available())
    # keep_global_batch: 32 samples in a step, however many processes there are
    with learn.launch(None if torch.cuda.is_available() else 2, keep_global_batch=True):
        learn.train()
        found = learn.evaluate()
    # under a launcher every process executes this line
    if learn.is_world_process_zero(): print("accuracy", round(found["eval_accuracy"], 3))


# the usual guard; learn.launch does not need it, because its processes do not import the script
if __name__ == "__main__": main()

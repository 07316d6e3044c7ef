"""Data that is read while it is trained on: a stream over files, resumed in the middle of an epoch.

    python streaming.py
    python streaming.py --quick"""
import argparse
import json
from pathlib import Path

import torch
from datasets import load_dataset
from torch import nn

from trainer_nb import Learner, differences, set_seed


def write_files(folder: Path, files: int, rows: int):
    "Write the data: lines of JSON in several files, so that workers and processes can share them."
    folder.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    for i in range(files):
        x = torch.randn(rows, 8, generator=generator)
        lines = (json.dumps({"x": row.tolist(), "labels": float(row.sum())}) for row in x)
        (folder/f"part-{i:03}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x, labels): return {"loss": nn.functional.mse_loss(self.layers(x).squeeze(-1), labels)}


def make(folder: Path, steps: int) -> Learner:
    stream = load_dataset("json", data_files=sorted(map(str, folder.glob("*.jsonl"))), split="train", streaming=True)
    set_seed(0)
    # a stream has no length: the run has a number of steps
    return Learner(Sum(), train_dataset=stream.shuffle(seed=0, buffer_size=64).with_format("torch"), max_steps=steps,
                   per_device_train_batch_size=16, learning_rate=1e-2, logging_steps=50, output_dir="stream", save_steps=steps // 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="train for a moment, to see that everything works")
    steps = 40 if parser.parse_args().quick else 1000

    folder = Path("data")
    write_files(folder, files=4, rows=16 * steps // 4)
    whole = make(folder, steps)
    whole.train()

    # another learner, as after a crash: it continues from the checkpoint in the middle, and ends with the same weights
    resumed = make(folder, steps)
    resumed.train(resume_from_checkpoint=f"stream/checkpoint-{steps // 2}")
    print(f"loss {whole.history[0].loss:.2f} -> {whole.history[-1].loss:.3f}; differences after resuming: {differences(whole.snapshot(), resumed.snapshot())}")


if __name__ == "__main__": main()

"""Trains Small as run 847ff5c3d28d was trained, to its end.

Written by trainer_nb's learn.export_script. Start it with `python train.py`, or with `accelerate launch train.py`.
The weights come out the same, byte for byte, with what the run was made with: torch 2.13.0+cpu, python 3.11.7,
1 thread (OMP_NUM_THREADS=1), on the device 'cpu'. At its end it checks them, and says if they are others.
"""
import argparse
import hashlib
import pathlib
import torch
import warnings
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import TensorDataset
from trainer_nb import Learner

FILES = pathlib.Path(__file__).resolve().with_name("train_files")   # what could not be written as code
MADE_WITH = {"torch": "2.13.0+cpu", "threads": 1}
ENDS_IN = "2b06e158c32659013aae73d99fcda917d0c821a7b92c77156e70d5a3c74891af"   # SHA-256 of the weights


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(6, 1)
    def forward(self, x): return self.head(self.body(x))


def load_weights(module, file):
    "Put into a module the weights and buffers that it had when the run began."
    tensors = load_file(file)
    with torch.no_grad():
        for name, t in [*module.named_parameters(), *module.named_buffers()]: t.copy_(tensors[name])


def warn_of_differences():
    "Say what is not as it was when the run was made."
    here = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    for name, then in MADE_WITH.items():
        if here[name] != then: warnings.warn(f"The run was made with {name} {then}, and here it is {here[name]}: the last bits may differ.")


def weights_digest(model):
    "The SHA-256 of a model's weights and buffers."
    seen = hashlib.sha256()
    for name, t in sorted(model.state_dict().items()):
        if isinstance(t, torch.Tensor): seen.update(name.encode() + bytes(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()))
    return seen.hexdigest()


def check_weights(model):
    "Say whether these are the weights that the run had."
    if weights_digest(model) == ENDS_IN: print("The weights are those of the run, byte for byte.")
    else: warnings.warn("The weights are not those that the run had: see what is said at the top of this file.")


def main(output_dir):
    stored = load_file(FILES / "data.safetensors")
    x = stored["x"]
    train = TensorDataset(x, x.sum(1, keepdim=True))
    net = Small()
    load_weights(net, FILES / "first.safetensors")
    warn_of_differences()
    learn = Learner(net, train_dataset=train, loss_func=nn.functional.mse_loss, per_device_train_batch_size=4,
                    learning_rate=0.01, warmup_steps=2, use_cpu=True, disable_tqdm=True)
    learn.step(4)
    learn.set(lr=0.005)
    learn.step(2)   # up to step 6
    learn.freeze("body")
    learn.step(4)   # up to step 10
    learn.unfreeze("body", "head")
    learn.train()
    learn.save_model(output_dir)
    check_weights(learn.model)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output_dir", default=pathlib.Path(__file__).resolve().with_name("train_output"), help="where the model is saved")
    main(**vars(parser.parse_args()))

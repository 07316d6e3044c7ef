"""A sampler with a generator of its own, and a data set with set_epoch, on several processes; prints the samples of each rank as JSON.

    python -m torch.distributed.run --standalone --nproc_per_node 2 tests/programs/own_generators.py
"""
import json, warnings

import numpy as np
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, Sampler

from trainer_nb import Learner

warnings.simplefilter("ignore")
N = 16


class Rows(Dataset):
    def __init__(self): self.epoch = -1
    def __len__(self): return N
    def set_epoch(self, epoch): self.epoch = epoch
    def __getitem__(self, i): return {"x": torch.tensor([i + 100.0 * self.epoch]), "labels": 0}


class Shuffled(Sampler):
    def __init__(self, seed): self.rng = np.random.default_rng(seed)
    def __len__(self): return N
    def __iter__(self): return iter(self.rng.permutation(N).tolist())


class Seen(torch.nn.Module):
    not_state = ("seen",)
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), []
    def forward(self, x, labels=None):
        self.seen.append([int(v) for v in x.flatten().tolist()])
        return {"loss": self.layer(x).square().mean()}


def samples(seed):
    "The samples of each step, those of all ranks together."
    torch.manual_seed(0)
    learn = Learner(Seen(), train_dataset=DataLoader(Rows(), batch_size=2, sampler=Shuffled(seed)), num_train_epochs=2, use_cpu=True, disable_tqdm=True,
                    report_to="none", save_strategy="no")
    learn.train()
    everyone = [None] * (dist.get_world_size() if dist.is_initialized() else 1)
    if dist.is_initialized(): dist.all_gather_object(everyone, learn.model.seen)
    else: everyone = [learn.model.seen]
    return [sum(step, []) for step in zip(*everyone)]


if __name__ == "__main__":
    found = {"unseeded": samples(None)} | {str(seed): samples(seed) for seed in (3, 4)}
    if dist.get_rank() == 0: print("RESULT", json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()

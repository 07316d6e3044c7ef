"What several tests share: Fails, Net, counted, free_port, is_gone, like, likes, make, pids, rows, same."
import functools, os, socket, time
import pytest, torch
from torch.utils.data import Dataset, TensorDataset
from trainer_nb import Learner
from trainer_nb.engine.snapshot import differences


class Net(torch.nn.Module):
    "Everything that has a state: BatchNorm, dropout; tied weights; and a parameter that may be unused."
    def __init__(self, norm=True, drop=0.1, spare=False):
        super().__init__()
        self.inward, self.norm, self.out = torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16) if norm else torch.nn.Identity(), torch.nn.Linear(16, 2)
        self.drop, self.spare = torch.nn.Dropout(drop), torch.nn.Parameter(torch.zeros(3)) if spare else None
    def forward(self, x): return self.out(self.drop(torch.tanh(self.norm(self.inward(x)))))

def rows(n, seed=0):
    x = torch.randn(n, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, :3].sum(1) > 0).long())

def accuracy(p): return {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())}

def make(n=48, data=None, kind=Learner, model=None, **settings):
    torch.manual_seed(0)
    settings = {"per_device_train_batch_size": 4, "num_train_epochs": 3, "learning_rate": 1e-2, "eval_strategy": "epoch", "disable_tqdm": True, "rewind_every": 4} | settings
    return kind(Net(**(model or {})), train_dataset=rows(n) if data is None else data, eval_dataset=rows(21, 1), loss_func=torch.nn.functional.cross_entropy, use_cpu=True,
                compute_metrics=accuracy, **settings)

def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]

def counted(learn): return [(r.step, r.loss) for r in learn.history if not r.abandoned]

def same(one, other):
    "Two learners whose runs are at home are the same, byte for byte."
    assert set(differences(one.snapshot(), other.snapshot())) <= {"args"} and counted(one) == counted(other)   # args: they may write to other folders
    found, there = ([{k: v for k, v in e.items() if not k.endswith(("_runtime", "_per_second"))} for e in learn.history.evaluations()] for learn in (one, other))
    assert found == there

@pytest.fixture(scope="module")
def likes():
    "Undisturbed runs, by their number of processes. The sum of three numbers depends on their order, that of two does not."
    @functools.cache
    def undisturbed(n):
        learn = make()
        learn.launch(n, train=True)
        return learn
    return undisturbed

@pytest.fixture(scope="module")
def like(likes):
    "An undisturbed run of two processes."
    return likes(2)

def is_gone(pid):
    for _ in range(50):
        if not os.path.exists(f"/proc/{pid}"): return True
        with open(f"/proc/{pid}/stat") as f:
            if f.read().rsplit(")", 1)[1].split()[0] == "Z": return True
        time.sleep(0.1)
    return False

def pids(learn): return [row["pid"] for row in learn.processes]

class Fails(Dataset):
    "A data set that fails on one rank, as long as a file is there."
    not_state = ("path", "ranks")
    def __init__(self, path, ranks): self.path, self.ranks, self.rows = str(path), ranks, rows(48)
    def __len__(self): return 48
    def __getitem__(self, i):
        if os.path.exists(self.path) and os.environ.get("RANK", "none") in self.ranks: raise OSError("no such picture")
        return self.rows[i]

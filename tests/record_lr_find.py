"""Records in lr_find_recorded.json what fastai finds, for tune/test_lr_finder.py: python tests/record_lr_find.py fastai

The work is the same for all: a perceptron on scikit-learn's digits, SGD, batches of 32 in the order of the data, one thread, on the CPU.
It may be recorded in an environment of its own; the versions of fastai and torch stand in the file.
"""
import importlib.metadata, json, sys, tempfile, warnings
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CASES = dict(plain=dict(momentum=0.0, end=10.0), momentum=dict(momentum=0.9, end=10.0), high=dict(momentum=0.0, end=1000.0))   # name: optimizer, and the last rate


def digits():
    "The data, in order."
    x, y = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y))


def perceptron():
    "The model, the same one each time."
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def fastai_finds(momentum, end, steps=100):
    "The rates, the running mean, and the four suggestions of fastai's Learner.lr_find."
    from fastai.callback.schedule import minimum, slide, steep, valley
    from fastai.data.core import DataLoaders
    from fastai.learner import Learner
    from fastai.optimizer import OptimWrapper
    def optimizer(params, lr, **kwargs): return OptimWrapper(params, torch.optim.SGD, lr=lr, momentum=momentum)
    loader = DataLoader(digits(), batch_size=32)
    with tempfile.TemporaryDirectory() as folder:
        learn = Learner(DataLoaders(loader, loader), perceptron(), loss_func=nn.functional.cross_entropy, opt_func=optimizer, path=Path(folder))
        with learn.no_bar(): found = learn.lr_find(end_lr=end, num_it=steps, show_plot=False, suggest_funcs=(valley, slide, minimum, steep))
    return dict(rates=[float(r) for r in learn.recorder.lrs], smoothed=[float(l) for l in learn.recorder.losses], suggestions=found._asdict())


FINDS = dict(fastai=fastai_finds)

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    path = Path(__file__).with_name("lr_find_recorded.json")
    recorded = json.loads(path.read_text()) if path.exists() else {}
    for tool in sys.argv[1:]:
        versions = {name: importlib.metadata.version(name) for name in (tool, "torch")}
        recorded[tool] = {"versions": versions, "cases": {name: FINDS[tool](**case) for name, case in CASES.items()}}
    path.write_text(json.dumps(recorded, separators=(",", ":")) + "\n")

"""Write the golden files of the present version: checkpoints, logs, an exported script, the public interface.

    PYTHONPATH=. OMP_NUM_THREADS=1 python tests/golden/write.py tests/golden

Files that are committed are never written anew: they stand for the version that wrote them. A later version may add a
folder with other cases beside them. tests/promises/test_golden.py reads them, with the definitions of this file.
Imports only `trainer_nb` and names that its documentation mentions, so that it survives any restructuring.
"""
import dataclasses
import hashlib
import importlib
import inspect
import json
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import trainer_nb
from trainer_nb import EarlyStoppingCallback, Learner, TrainerCallback, TrainingArguments

# Submodules that the documentation names.
SUBMODULES = ("metrics", "generate", "parsing")


# --- runs ---------------------------------------------------------------------------------------------------------------

class Net(nn.Module):
    "A network with BatchNorm, dropout, tied weights and a buffer that the forward pass changes."
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.2))
        self.mixer = nn.Linear(6, 6)
        self.again = nn.Linear(6, 6)
        self.again.weight = self.mixer.weight
        self.head = nn.Linear(6, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, labels=None):
        if self.training: self.calls += 1
        logits = self.head(self.again(torch.tanh(self.mixer(self.body(x)))))
        if labels is None: return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Rows(torch.utils.data.Dataset):
    "Examples with noise that is drawn anew each time."
    def __init__(self, n, noise=0.1):
        self.x, self.noise = torch.randn(n, 4, generator=torch.Generator().manual_seed(n)), noise
    def __len__(self): return len(self.x)
    def __getitem__(self, i): return {"x": self.x[i] + self.noise * torch.randn(4), "labels": int(self.x[i].sum() > 0)}


class Numbers(torch.utils.data.IterableDataset):
    "The same examples as a stream."
    def __init__(self, n): self.rows = Rows(n)
    def __iter__(self): return (self.rows[i] for i in range(len(self.rows)))


class Counter(TrainerCallback):
    "A callback with a state."
    def __init__(self): self.steps = 0
    def on_step_end(self, args, state, control, **kwargs): self.steps += 1
    def state_dict(self): return {"steps": self.steps}
    def load_state_dict(self, state): self.steps = state["steps"]


COMMON = dict(per_device_train_batch_size=4, gradient_accumulation_steps=2, learning_rate=1e-2, logging_steps=2,
              use_cpu=True, disable_tqdm=True, save_strategy="no", seed=3)

# name: (settings, the class of the training data, what is done before the checkpoint)
CASES = {
    "own": (dict(num_train_epochs=3, lr_scheduler_type="cosine", warmup_steps=2, weight_decay=0.01, max_grad_norm=0.5,
                 eval_strategy="steps", eval_steps=3, metric_for_best_model="eval_loss"), Rows, ("step", "set")),
    "own_plateau": (dict(num_train_epochs=3, optim="sgd", optim_args="momentum=0.9", eval_strategy="steps", eval_steps=2,
                         lr_scheduler_type="reduce_lr_on_plateau", lr_scheduler_kwargs={"patience": 0},
                         metric_for_best_model="eval_loss", greater_is_better=False), Rows, ("step", "freeze")),
    "own_stream": (dict(max_steps=10, optim="adafactor", lr_scheduler_type="constant_with_warmup", warmup_steps=3),
                   Numbers, ("step", "rewind")),
    "trainer": (dict(num_train_epochs=3, lr_scheduler_type="linear", save_format="trainer", eval_strategy="steps",
                     eval_steps=3), Rows, ("step",)),
    "trainer_sgd": (dict(num_train_epochs=2, optim="sgd", optim_args="momentum=0.9,nesterov=True", save_format="trainer",
                         lr_scheduler_type="polynomial"), Rows, ("step",)),
}
AT = 5   # the step of each checkpoint


def make(case, output_dir):
    "The learner of a case, before its first step."
    settings, data, _ = CASES[case]
    torch.manual_seed(0)
    model = Net()
    callbacks = [Counter()]
    if "metric_for_best_model" in settings: callbacks.append(EarlyStoppingCallback(early_stopping_patience=50))
    return Learner(model, train_dataset=data(26), eval_dataset=Rows(10, noise=0.0), callbacks=callbacks,
                   output_dir=str(output_dir), **COMMON, **settings)


def advance(learn, case):
    "What is done before the checkpoint."
    learn.step(3)
    acts = CASES[case][2]
    if "set" in acts: learn.set(weight_decay=0.1, lr=5e-3)
    if "freeze" in acts: learn.freeze("body")
    learn.step(AT - 3)
    if "rewind" in acts:
        learn.rewind(2)
        learn.step(2)


def machine():
    "What the last bits of numbers depend on."
    return {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability(),
            "machine": platform.machine(), "threads": torch.get_num_threads()}


def weights_of(model):
    "The weights of a model: a digest of their bytes, and for other machines sum and sum of squares of each."
    state = {name: t.detach().double() for name, t in sorted(model.state_dict().items())}
    data = b"".join(name.encode() + t.contiguous().numpy().tobytes() for name, t in state.items())
    sums = {name: [float(t.sum()).hex(), float(t.square().sum()).hex()] for name, t in state.items()}
    return {"digest": hashlib.sha256(data).hexdigest(), "sums": sums}


def future(learn):
    "What comes of a run that is trained to its end: what has to be equal after resuming."
    learn.train()
    counts = learn.history.column("abandoned") == 0
    columns = ("step", "epoch", "loss", "learning_rate", "grad_norm")
    rows = {name: [float(v).hex() for v in learn.history.column(name)[counts]] for name in columns}
    clocks = ("runtime", "per_second", "flos")
    logs = [{k: v for k, v in row.items() if not k.endswith(clocks)} for row in learn.state.log_history]
    counter = next(c for c in learn.callback_handler.callbacks if isinstance(c, Counter))
    return {"rows": rows, "logs": logs, "weights": weights_of(learn.model), "counter": counter.steps, "best": learn.state.best_metric}


# --- the interface ------------------------------------------------------------------------------------------------------

def signature_of(thing):
    "A signature as text that Python can parse, without annotations; None for what has none."
    try: found = inspect.signature(thing)
    except (TypeError, ValueError): return None
    def told(p):
        plain = isinstance(p.default, (bool, int, float, str, tuple, type(None)))
        return p.replace(annotation=p.empty, default=p.default if plain or p.default is p.empty else ...)
    text = str(found.replace(parameters=[told(p) for p in found.parameters.values()], return_annotation=inspect.Signature.empty))
    return text.replace("=Ellipsis", "=...")


def members_of(cls):
    "The public methods and attributes of a class, without those of the types that Python brings."
    found = {}
    for name in sorted(dir(cls)):
        if name.startswith("_") or any(name in vars(o) for o in (object, dict, list, tuple, BaseException, KeyboardInterrupt)): continue
        thing = inspect.getattr_static(cls, name)
        thing = getattr(thing, "__func__", thing)
        found[name] = signature_of(thing) if callable(thing) else None
    return found


def describe(thing):
    "What the interface of a public name is."
    if inspect.isclass(thing):
        return {"kind": "class", "signature": signature_of(thing), "members": members_of(thing)}
    if inspect.ismodule(thing): return {"kind": "module"}
    return {"kind": "function" if callable(thing) else "value", "signature": signature_of(thing) if callable(thing) else None}


def interface():
    "Everything that code written for this version may use."
    found = {"trainer_nb": {name: describe(getattr(trainer_nb, name)) for name in sorted(trainer_nb.__all__)}}
    for name in SUBMODULES:
        module = importlib.import_module(f"trainer_nb.{name}")
        own = [n for n, o in vars(module).items() if not n.startswith("_") and getattr(o, "__module__", None) == module.__name__]
        found[f"trainer_nb.{name}"] = {n: describe(getattr(module, n)) for n in sorted(own)}
    fields = {f.name: repr(f.default) if f.default is not dataclasses.MISSING else "..." for f in dataclasses.fields(TrainingArguments)}
    return found | {"fields of TrainingArguments": fields}


# --- writing ------------------------------------------------------------------------------------------------------------

NOTEBOOK = ["""
import torch
from torch import nn
from torch.utils.data import TensorDataset
from trainer_nb import Learner
torch.manual_seed(0)""", """
class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(6, 1)
    def forward(self, x): return self.head(self.body(x))""", """
x = torch.randn(24, 4)
train = TensorDataset(x, x.sum(1, keepdim=True))
net = Small()""", """
learn = Learner(net, train_dataset=train, loss_func=nn.functional.mse_loss, learning_rate=0.01, num_train_epochs=3,
                per_device_train_batch_size=4, warmup_steps=2, use_cpu=True, disable_tqdm=True)
learn.step(4)""", "learn.set(lr=0.005)\nlearn.step(2)", "learn.freeze('body')\nlearn.step(4)", "learn.unfreeze()\nlearn.train()",
"learn.export_script('train.py')"]


def lines(value):
    "A dict as JSON, one entry to a line."
    return "{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()) + "\n}\n"


def write_script(folder):
    "A notebook's run, exported; what it ends in."
    from IPython.core.interactiveshell import InteractiveShell
    folder.mkdir(parents=True)
    before = os.getcwd()
    os.chdir(folder)
    try:
        shell = InteractiveShell.instance()
        for cell in NOTEBOOK: shell.run_cell(cell.strip(), store_history=True, silent=False).raise_error()
        expected = weights_of(shell.user_ns["learn"].model)
    finally: os.chdir(before)
    (folder/"expected.json").write_text(lines({"machine": machine(), "weights": expected}))


def write_case(case, folder):
    "A checkpoint with the log beside it, and what the run that wrote it came to without stopping."
    # A neutral path: some files name the folder that they were written in.
    place = Path(tempfile.gettempdir(), "golden", case)
    shutil.rmtree(place, ignore_errors=True)
    learn = make(case, place)
    advance(learn, case)
    learn.save_checkpoint()
    learn.history.flush()
    shutil.copytree(place, folder, copy_function=shutil.copyfile)
    (folder/"expected.json").write_text(lines({"machine": machine(), "at": AT} | future(learn)))
    learn.free()
    shutil.rmtree(place)


def write(folder):
    "Everything; ValueError for what is there already."
    for name in (*CASES, "script", "interface.json"):
        if (folder/name).exists(): raise ValueError(f"{folder/name} is there already; golden files are not written anew.")
    for case in CASES: write_case(case, folder/case)
    write_script(folder/"script")
    (folder/"interface.json").write_text(json.dumps(interface(), indent=1) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    write(Path(sys.argv[1]).absolute())

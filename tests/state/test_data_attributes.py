"The attributes of a data set in a checkpoint that a fresh process resumes: with an equal data set the run is the same, with another one its settings stay."
import functools, json, os, subprocess, sys
from pathlib import Path

import pytest

import trainer_nb

PROGRAM = '''
import hashlib, json, sys, warnings
import numpy as np
import torch
from torch.utils.data import Dataset, Subset
from trainer_nb import Learner

class Rows(Dataset):
    "A counter and a generator on which the samples depend, a mode that changes once, one that changes back, and settings."
    def __init__(self, folder="a", scale=1.0):
        self.folder, self.scale, self.reads, self.mode, self.even = folder, scale, 0, "easy", True
        self.noise, self.shake = torch.Generator().manual_seed(5), np.random.default_rng(3)
    def __len__(self): return 24
    def __getitem__(self, i):
        self.reads += 1
        self.even = not self.even
        if self.reads == 30:
            self.mode, self.since = "hard", self.reads
        x = torch.randn(3, generator=self.noise) + float(self.shake.normal()) + self.reads / 100 + i + 5 * (self.mode == "hard") + self.even
        return {"x": self.scale * x, "labels": torch.tensor([float(i % 2)])}

class Collate:
    def __init__(self, name="plain"): self.calls, self.name = 0, name
    def __call__(self, rows):
        self.calls += 1
        return {k: torch.stack([r[k] for r in rows]) + self.calls / 10 for k in rows[0]}

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
    def forward(self, x, labels): return {"loss": (self.layer(x) / 30 - labels).pow(2).mean()}

CASES = {"plain": {}, "wrapped": {"wrapped": True}, "trainer": {"save_format": "trainer", "save_strategy": "no"}}

def make(folder, data=None, wrapped=False, collate=None, **settings):
    torch.manual_seed(0)
    data = Rows() if data is None else data
    return Learner(Net(), train_dataset=Subset(data, range(23, -1, -1)) if wrapped else data, data_collator=collate or Collate(), per_device_train_batch_size=8,
                   num_train_epochs=6, learning_rate=0.01, use_cpu=True, disable_tqdm=True, logging_steps=1,
                   output_dir=folder, **settings)

def state(learn):
    "The whole state of the run and its data, as text."
    data = getattr(learn.train_dataset, "dataset", learn.train_dataset)
    plain = {k: v for k, v in vars(data).items() if k not in ("noise", "shake")}
    digest = hashlib.sha256()
    for t in [*learn.model.parameters(), *(t for s in learn.optimizer.state.values() for t in s.values()), data.noise.get_state()]:
        digest.update(t.detach().numpy().tobytes())
    losses = [e["loss"].hex() for e in learn.state.log_history if "loss" in e]
    return {"bytes": digest.hexdigest(), "shake": repr(data.shake.bit_generator.state), "plain": plain, "collate": dict(vars(learn.data_collator)), "losses": losses}

def warned(function):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    return [str(w.message) for w in caught if issubclass(w.category, UserWarning)]

def draw(data):
    "Draw from the generators of a data set in a cell: it changes their states, and no sample."
    data = getattr(data, "dataset", data)
    torch.randn(3, generator=data.noise)
    data.shake.normal()

def begin(folder, settings):
    straight = make(folder + "/straight", **settings)
    straight.step(1)
    draw(straight.train_dataset)
    straight.step(12)
    learn = make(folder + "/run", **settings)
    learn.step(1)
    draw(learn.train_dataset)
    learn.step(4)                              # the mode changes in step 4
    learn.save_checkpoint(folder + "/run/checkpoint-5")
    return state(straight)

def resume(folder, settings, step=5):
    learn = make(folder + "/run", **settings)
    said = warned(lambda: learn.load_checkpoint(f"{folder}/run/checkpoint-{step}"))
    if step == 5:
        learn.step(2)
        learn.save_checkpoint(folder + "/run/checkpoint-7")
    learn.step(13 - learn.state.global_step)
    return state(learn) | {"warned": said}

def resume_again(folder, settings): return resume(folder, settings, 7)

def other(folder, settings):
    learn = make(folder + "/other", Rows("b", scale=2.0), collate=Collate("other"), **settings)
    data = getattr(learn.train_dataset, "dataset", learn.train_dataset)
    data.extra = 1
    same = Rows()
    draw(same)
    found = {"warned": warned(lambda: learn.load_checkpoint(folder + "/run/checkpoint-5"))}
    found["data"] = [data.folder, data.scale, data.extra, data.reads, data.mode, data.since, data.even]
    found["collate"] = dict(vars(learn.data_collator))
    found["generators"] = [torch.equal(data.noise.get_state(), same.noise.get_state()), data.shake.bit_generator.state == same.shake.bit_generator.state]
    found["again"] = warned(lambda: learn.restore(learn.snapshot()))
    learn.step(8)
    return found | {"reads": data.reads}

print("found", json.dumps({name: globals()[sys.argv[1]](f"{sys.argv[2]}/{name}", settings) for name, settings in CASES.items()}), sep="|")
'''


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    "A function that runs one part of the program in a fresh process, once, and returns what it found in each case."
    folder = tmp_path_factory.mktemp("runs")
    paths = os.pathsep.join([str(Path(trainer_nb.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    @functools.cache
    def found(part):
        if part != "begin": found({"resume_again": "resume"}.get(part, "begin"))
        done = subprocess.run([sys.executable, "-c", PROGRAM, part, str(folder)], capture_output=True, text=True, timeout=200,
                              env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("found|")).removeprefix("found|"))
    return found


CASES = ("plain", "wrapped", "trainer")

@pytest.mark.parametrize("case", CASES)
def test_an_equal_data_set_in_a_fresh_process(found, case):
    "The same bytes as without the interruption, also over a second checkpoint and a third process, and no warning."
    expected = found("begin")[case]
    assert expected["plain"]["reads"] == 104 and expected["plain"]["mode"] == "hard" and len(expected["losses"]) == 13
    assert found("resume")[case] == expected | {"warned": []}
    assert found("resume_again")[case] == expected | {"warned": []}


@pytest.mark.parametrize("case", CASES)
def test_another_data_set_in_a_fresh_process(found, case):
    "The counters, the generators and the attributes that changed are restored; the settings stay."
    other = found("other")[case]
    assert other["data"] == ["b", 2.0, 1, 40, "hard", 30, True] and other["collate"] == {"calls": 5, "name": "other"}
    assert other["generators"] == [True, True] and other["again"] == [] and other["reads"] == 104

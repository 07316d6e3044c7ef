"""A checkpoint or snapshot that cannot be restored completely changes nothing, and killed processes leave nothing for long.

After each error the run is compared byte for byte with the run before it, and goes on to the end of an undisturbed run.
"""
import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

from atomic_runs import Counts, Net, Refuses, learner
from trainer_nb import differences

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]


def counted(learn): return [vars(c).copy() for c in learn.callback_handler.callbacks if isinstance(c, Counts)]


def unchanged(learn, act, error=Exception, match=None):
    "An act raises an error; then the run is what it was, and ends as it would have ended."
    like = learn.branch()
    like.train()
    before, callbacks, settings, rate = learn.snapshot(), counted(learn), learn.args.to_dict(), learn.optimizer.param_groups[0]["lr"]
    rows_before, logged = len(learn.history), list(learn.state.log_history)
    with pytest.raises(error, match=match): act()
    assert differences(learn.snapshot(), before) == []
    assert counted(learn) == callbacks and learn.args.to_dict() == settings and learn.optimizer.param_groups[0]["lr"] == rate
    assert len(learn.history) == rows_before and learn.state.log_history == logged
    learn.train()
    assert [d for d in differences(learn.snapshot(), like.snapshot()) if d != "args"] == []


# --- files ----------------------------------------------------------------------------------------------------------------

def cut(name): return lambda folder: (folder/name).write_bytes((folder/name).read_bytes()[:-20])
def gone(name): return lambda folder: (folder/name).unlink()


def flipped(name):
    def act(folder):
        data = bytearray((folder/name).read_bytes())
        data[len(data) // 2] ^= 1
        (folder/name).write_bytes(bytes(data))
    return act


FILES = {"safetensors": ("model.safetensors", "optimizer.safetensors", "run.json", "manifest.json"),
         "trainer": ("model.safetensors", "optimizer.pt", "scheduler.pt", "rest.json", "trainer_state.json", "manifest.json")}
# A checkpoint in the Trainer's layout without a manifest is one of the Trainer's own, and resumed as such.
DAMAGE = [(layout, name, how) for layout, names in FILES.items() for name in names for how in (cut, gone, flipped)
          if (layout, name, how) != ("trainer", "manifest.json", gone)]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    "Checkpoints of step 3 in both layouts, without their logs."
    folder = tmp_path_factory.mktemp("written")
    for layout in FILES:
        learn = learner(save_format=layout)
        learn.step(3)
        learn.save_checkpoint(folder/layout)
    return folder


@pytest.mark.parametrize("layout, name, how", DAMAGE, ids=lambda o: o if isinstance(o, str) else o.__name__)
def test_a_damaged_checkpoint_changes_nothing(layout, name, how, written, tmp_path):
    shutil.copytree(written/layout, tmp_path/"checkpoint-3")
    how(name)(tmp_path/"checkpoint-3")
    learn = learner()
    learn.step(5)
    unchanged(learn, lambda: learn.load_checkpoint(tmp_path/"checkpoint-3"), ValueError)


OTHERS = {
    "model": lambda: learner(Net(hidden=7)),
    "optimizer": lambda: learner(optim="sgd"),
    "schedule": lambda: learner(lr_scheduler_type="linear"),
    "class_of_schedule": lambda: learner(lr_scheduler_type="one_cycle"),
    "precision": lambda: learner(bf16=True),
}


@pytest.mark.parametrize("layout", FILES)
@pytest.mark.parametrize("kind", OTHERS)
def test_a_checkpoint_of_something_else_changes_nothing(kind, layout, written):
    learn = OTHERS[kind]()
    learn.step(2)
    unchanged(learn, lambda: learn.load_checkpoint(written/layout), ValueError)


@pytest.mark.parametrize("layout", FILES)
def test_a_learner_that_has_not_begun_stays_so(layout, written, tmp_path):
    "A failed resume is followed by the run that there would have been without it."
    shutil.copytree(written/layout, tmp_path/"checkpoint-3")
    flipped("model.safetensors")(tmp_path/"checkpoint-3")
    learn, like = learner(), learner()
    with pytest.raises(ValueError): learn.train(resume_from_checkpoint=str(tmp_path/"checkpoint-3"))
    learn.train()
    like.train()
    assert differences(learn.snapshot(), like.snapshot()) == []


@pytest.mark.parametrize("layout", FILES)
def test_a_callback_that_refuses_its_state(layout, written):
    "Found out in the middle of restoring: the callbacks before it, weights, groups and schedule are put back."
    learn = learner()
    learn.step(5)
    learn.set(weight_decay=0.1)
    learn.step(1)
    callback = learn.callback_handler.callbacks[2]
    assert isinstance(callback, Refuses)
    def act():
        callback.armed = True
        try: learn.load_checkpoint(written/layout)
        finally: del callback.armed
    unchanged(learn, act, RuntimeError, "not mine")


# --- snapshots ------------------------------------------------------------------------------------------------------------

def without_tensor(prefix):
    def change(snapshot): del snapshot.tensors[next(n for n in snapshot.tensors if n.startswith(prefix))]
    return change


def strange_group(snapshot): snapshot.values["optimizer"]["groups"][0]["params"][0] = "nobody"
def strange_schedule(snapshot): snapshot.values["lr_scheduler"] = {"lr_lambdas": 3}
def other_optimizer(snapshot): snapshot.values["optimizer"]["class"] = "SGD"
def bad_callback(snapshot): snapshot.values["callbacks"][1] = (snapshot.values["callbacks"][1][0], {"m": 1}, None)
def bad_due(snapshot): snapshot.values["due"] = [("request",)]
def other_shape(snapshot):
    name = next(n for n in snapshot.tensors if n.startswith("weights/"))
    snapshot.tensors[name] = torch.zeros(2, 2)


MUTATIONS = [without_tensor("weights/"), strange_group, strange_schedule, other_optimizer, bad_callback, bad_due,
             other_shape]


@pytest.mark.parametrize("change", MUTATIONS, ids=lambda f: f.__qualname__.replace(".<locals>", ""))
def test_a_snapshot_that_cannot_be_restored_changes_nothing(change):
    learn = learner()
    learn.step(3)
    snapshot = copy.deepcopy(learn.snapshot())
    change(snapshot)
    learn.step(2)
    learn.set(weight_decay=0.2)
    learn.step(1)
    unchanged(learn, lambda: learn.restore(snapshot))


def test_a_rewind_that_fails_changes_nothing():
    learn = learner(rewind_every=2)
    learn.step(6)
    callback = learn.callback_handler.callbacks[2]
    def act():
        callback.armed = True
        try: learn.rewind(2)
        finally: del callback.armed
    unchanged(learn, act, RuntimeError, "not mine")


# --- what killed processes leave -------------------------------------------------------------------------------------------

KILLED = """
    import sys, time
    sys.path.insert(0, {here!r})
    from pathlib import Path
    from atomic_runs import learner
    import safetensors.torch
    def stuck(*args, **kwargs):
        print("writing", flush=True)
        time.sleep(120)
    safetensors.torch.save_file = stuck
    learn = learner(output_dir={folder!r})
    learn.step(2)
    learn.save_checkpoint()
"""


@pytest.fixture
def killed(tmp_path):
    "A process that is in the middle of its first checkpoint, and its folder of checkpoints."
    code = textwrap.dedent(KILLED.format(here=str(Path(__file__).parents[1]), folder=str(tmp_path/"out")))
    paths = os.pathsep.join([str(Path(sys.modules["trainer_nb"].__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": paths})
    assert any("writing" in line for line in process.stdout)
    yield process, tmp_path/"out"
    process.kill()
    process.wait()


def leftovers(folder): return sorted(p.name for p in folder.glob("*.tmp-*"))


def test_the_next_checkpoint_removes_what_a_killed_run_has_left(killed):
    process, folder = killed
    (left,) = leftovers(folder)
    alive = learner(output_dir=str(folder))
    alive.step()
    alive.save_checkpoint()
    assert leftovers(folder) == [left], "the folder of a process that is writing was removed"
    alive.free()
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(0.1)
    others = {"notes.tmp-old": "a file", "data.tmp-x": None, "model.tmp-backup": None}
    for name, text in others.items(): (folder/name).mkdir() if text is None else (folder/name).write_text(text)
    assert left in leftovers(folder)
    learn = learner(output_dir=str(folder))
    learn.step()
    learn.save_checkpoint()
    assert leftovers(folder) == sorted(others), "folders of the user's own were removed, or the one that was left was not"


def test_a_whole_checkpoint_that_has_no_name_yet_gets_it(tmp_path):
    "Killed between the last byte and the renaming: nothing is lost."
    learn = learner(output_dir=str(tmp_path))
    learn.step(2)
    folder = Path(learn.save_checkpoint())
    run_id = json.loads((folder/"manifest.json").read_text())["run"]
    learn.free()
    folder.rename(tmp_path/f"checkpoint-2.tmp-{run_id}.01234567")
    again = learner(output_dir=str(tmp_path))
    again.load_checkpoint(tmp_path/"checkpoint-2")
    assert again.state.global_step == 2 and leftovers(tmp_path) == [] and folder.is_dir()

"""A GPU that refuses all further work after an error, as after a failed assertion in a kernel. Here, functions that raise what
torch raises then take its place; the tests marked gpu bring it about."""
import gc
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from conftest import ROOT
from toys import Bomb, finish, hard_learner, unequal
from trainer_nb import TrainerCallback
from trainer_nb.core.errors import LOST_DEVICE, InvalidOperation, is_device_lost
from trainer_nb.state.async_save import SaveFailed


def refuse(*given): raise torch.AcceleratorError("CUDA error: device-side assert triggered")


@pytest.fixture
def lost(monkeypatch):
    "A function after whose call the GPU is lost."
    def lose():
        for module in ("core.errors", "learner"): monkeypatch.setattr(f"trainer_nb.{module}.is_device_lost", lambda: True)
    return lose


class NeverCopied:
    "Copies from a GPU that it never completes."
    wait = wait_before_update = refuse
    def is_done(self): return False


def test_a_gpu_is_lost_if_waiting_for_it_fails(monkeypatch):
    assert not is_device_lost()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert not is_device_lost()
    monkeypatch.setattr(torch.cuda, "synchronize", refuse)
    assert is_device_lost()


def test_the_error_says_once_what_can_still_be_done(lost):
    learn = hard_learner(hook=Bomb("forward", 7, kind=torch.AcceleratorError))
    learn.step(2)
    with pytest.raises(torch.AcceleratorError) as info: learn.step()
    assert not hasattr(info.value, "__notes__")   # the GPU works
    lost()
    learn.model.hook = Bomb("forward", 1, 2, kind=torch.AcceleratorError)
    try:
        with pytest.raises(torch.AcceleratorError) as info: learn.fit(1)
        assert info.value.__notes__ == [LOST_DEVICE] and gc.get_freeze_count()
    finally: gc.unfreeze()


@pytest.mark.parametrize("named", [False, True])
def test_the_newest_snapshot_becomes_a_checkpoint(lost, tmp_path, named):
    learn = hard_learner(output_dir=str(tmp_path), save_strategy="no", rewind_every=2)
    learn.step(4)
    if named: learn.snapshot("four")
    learn.step()
    if named: learn.run_state.parts.rewind_buffer.clear()
    else: assert [o.step for o in learn.run_state.parts.rewind_buffer.kept] == [2, 4]
    lost()
    with pytest.warns(UserWarning, match="The GPU is lost, so checkpoint-4 is the run after step 4"): folder = learn.save_checkpoint()
    assert folder == tmp_path/"checkpoint-4"


def test_another_learner_continues_from_it_exactly(monkeypatch, tmp_path):
    def learner(): return hard_learner(output_dir=str(tmp_path), save_strategy="no", rewind_every=2)
    whole = finish(learner())
    learn = learner()
    learn.step(5)
    with monkeypatch.context() as patch:
        patch.setattr("trainer_nb.learner.is_device_lost", lambda: True)
        with pytest.warns(UserWarning, match="The GPU is lost"): folder = learn.save_checkpoint(tmp_path/"rescued")
        with pytest.raises(ValueError, match="holds other things"): learn.save_checkpoint(ROOT/"tests")
    again = learner()
    again.load_checkpoint(folder)
    assert again.state.global_step == 4 and unequal(whole, finish(again)) == []


def test_copies_that_may_be_incomplete_are_not_used(lost, tmp_path):
    learn = hard_learner(output_dir=str(tmp_path), save_strategy="no", rewind_every=1)
    learn.step(4)
    learn.run_state.parts.rewind_buffer.kept[-1].copying = NeverCopied()
    lost()
    with pytest.warns(UserWarning, match="the run after step 2"): learn.save_checkpoint()
    learn.run_state.first.snapshot = None
    for snapshot in learn.run_state.parts.rewind_buffer.kept: snapshot.copying = NeverCopied()
    with pytest.raises(InvalidOperation, match="No snapshot of this run is in memory. After this error the GPU refuses"): learn.save_checkpoint()


@pytest.fixture
def losses_stay_there(monkeypatch, on_device):
    "Losses are read only by `fetch`; a function after whose call it fails."
    def read(readings):
        if any(isinstance(values, torch.Tensor) for *_, values in readings.kept): refuse()
    def lose():
        monkeypatch.setattr("trainer_nb.core.columns.Readings.fetch", read)
        monkeypatch.setattr("trainer_nb.core.history.is_device_lost", lambda: True)
        monkeypatch.setattr("trainer_nb.core.columns.RowStore.fetch", lambda rows: rows.pending and refuse())
    return lose


def test_losses_that_stay_on_the_gpu_are_unknown(lost, losses_stay_there, monkeypatch, tmp_path):
    "They are no reason to lose the run, too: the checkpoint is written, with a log, and the history can be read."
    loses = []
    class Loses(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step not in loses: return
            lost()
            losses_stay_there()
            refuse()
    def learner(folder):
        return hard_learner(output_dir=str(tmp_path/folder), save_strategy="no", rewind_every=2, logging_steps=100, callbacks=[Loses()])
    learn, whole = learner("lost"), learner("whole")
    learn.step(3)
    learn.history.fetch()
    known = learn.history.column("loss").tolist()
    loses.append(5)
    with pytest.raises(torch.AcceleratorError): learn.step(3)
    with pytest.warns(UserWarning, match="Losses that were still on the GPU are unknown. Restart"): folder = learn.save_checkpoint()
    found = learn.history.column("loss")
    assert found[:3].tolist() == known and torch.tensor(found[3:]).isnan().all() and len(found) == 5
    assert "loss" in repr(learn.history.frame().columns.tolist())
    monkeypatch.undo()   # another process, with a GPU that works
    loses.clear()
    again = learner("again")
    again.load_checkpoint(folder)
    assert again.history.column("loss")[:3].tolist() == known and again.state.global_step == 4
    # the loss of step 4 is missing in the history, and in its mean, which is logged at the end
    found = unequal(finish(whole), finish(again), ignore=("args",))
    assert [name for name in found if isinstance(name, str)] == ["loss", "grad_norm"]


def test_an_error_of_a_lost_gpu_is_raised_once_by_the_history(losses_stay_there):
    learn = hard_learner(logging_steps=100)
    learn.watch(every=1)
    learn.step()
    learn.history.fetch()
    learn.step(2)
    fetched = [entry for entry in learn.history.readings.kept if not isinstance(entry[3], torch.Tensor)]
    assert fetched and len(fetched) < len(learn.history.readings.kept)
    losses_stay_there()
    with pytest.raises(torch.AcceleratorError): learn.history.fetch()
    assert learn.history.readings.kept == fetched
    assert torch.tensor(learn.history.column("loss")).isnan().tolist() == [False, True, True]


def test_an_error_of_a_gpu_that_works_keeps_the_losses(on_device, monkeypatch):
    learn = hard_learner(logging_steps=100)
    learn.step(2)
    with monkeypatch.context() as patch:
        patch.setattr("trainer_nb.core.columns.RowStore.fetch", refuse)
        with pytest.raises(torch.AcceleratorError): learn.history.fetch()
    assert not torch.tensor(learn.history.column("loss")).isnan().any()


def test_a_checkpoint_that_is_written_meanwhile_fails_and_nothing_waits_for_it(monkeypatch, tmp_path):
    from trainer_nb.state import async_save
    taken = async_save.capture_snapshot
    def capture(*given, **more):
        snapshot = taken(*given, **more)
        snapshot.copying = NeverCopied()
        return snapshot
    monkeypatch.setattr(async_save, "capture_snapshot", capture)
    learn = hard_learner(output_dir=str(tmp_path), save_steps=2, save_strategy="steps")
    with pytest.raises(SaveFailed, match="checkpoint-2 could not be written: CUDA error: device-side.*the GPU refuses all further work"): learn.step(4)
    assert not list(tmp_path.glob("checkpoint-*"))


PROGRAM = """
import os, sys, torch
from torch import nn
from trainer_nb import Learner
folder, labels = sys.argv[1], 2
def learner(**more):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))
    data = [(torch.randn(4, generator=torch.Generator().manual_seed(i)), torch.tensor(i % 2)) for i in range(64)]
    return Learner(model, train_dataset=data, loss_func=nn.functional.cross_entropy, use_cpu=False, full_determinism=True, disable_tqdm=True,
                   output_dir=folder, save_strategy="no", rewind_every=2, **more)
def wrong(predicted, labels): return nn.functional.cross_entropy(predicted, labels + 2 * (learn.state.global_step == 7))
learn = learner()
if sys.argv[2] == "loses":
    learn.loss_func = wrong
    try: learn.run(steps=12); torch.cuda.synchronize()
    except torch.AcceleratorError: pass
    try: learn.step()
    except torch.AcceleratorError as error: print(error.__notes__)
    print(learn.save_checkpoint())
else:
    if sys.argv[2] == "continues": learn.load_checkpoint(folder + "/" + max(name for name in os.listdir(folder) if name.startswith("checkpoint-")))
    print(learn.state.global_step)
    learn.train()
    print(sum(p.double().sum().item() for p in learn.model.parameters()).hex())
"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_on_a_gpu_whose_kernel_fails(tmp_path):
    "The whole way: the loss of a GPU, the checkpoint of the snapshot, and another process that continues exactly."
    def run(what):
        done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path), what], capture_output=True, text=True, timeout=120, cwd=ROOT)
        assert done.returncode in (0, -6), done.stderr   # torch may abort at the end of a process that has lost its GPU
        return done.stdout.splitlines()
    lines = run("loses")
    assert len(lines) == 2, lines
    notes, folder = lines
    assert "learn.save_checkpoint() tries to write" in notes and Path(folder).name in ("checkpoint-2", "checkpoint-4", "checkpoint-6")
    step, *_, end = run("continues")
    assert int(step) == int(folder.rpartition("-")[2]) and end == run("trains")[-1]

"Several processes in unusual hands: other numbers of them, runs that begin anew, scripts, and ends at bad moments."
import os, signal, subprocess, sys, threading, time, warnings

import pytest, torch
from torch.utils.data import Dataset
from torch.nn.functional import cross_entropy

from trainer_nb import Learner, TrainerCallback
from trainer_nb.snapshot import differences
from test_launch import Net, make, pids, rows

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("launch")]

PLAIN = {"model": dict(norm=False, drop=0.0)}


# ---- another number of processes

def test_a_checkpoint_is_counted_anew_by_another_number(tmp_path):
    "48 samples an epoch, of which one process takes 4 in a step, two take 8."
    first = make(output_dir=str(tmp_path), save_steps=4, **PLAIN)
    with first.launch(2): first.step(5)
    assert first.state.max_steps == 5 + 2 + 2 * 12
    for n, steps in ((1, 4 + 4 + 2 * 12), (2, 18), (3, 4 + 2 + 2 * 4)):
        learn = make(output_dir=str(tmp_path), save_strategy="no", **PLAIN)
        with learn.launch(n), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            learn.load_checkpoint(tmp_path/"checkpoint-4")
            assert learn.state.max_steps == steps
            assert learn.step(1)[0].samples == 4 * n and learn.train().global_step == steps and learn.state.epoch == 3


def test_a_snapshot_is_counted_anew_by_another_number():
    learn = make()
    with learn.launch(2):
        learn.step(2)
        there = learn.snapshot("there")
    learn.step(3)
    learn.restore(there)
    assert learn.state.max_steps == 2 + 8 + 2 * 12 and learn.step(1)[0].samples == 4
    with learn.launch(2):
        learn.restore("there")
        assert learn.state.max_steps == 18 and learn.train().global_step == 18


def test_snapshots_with_a_divided_batch():
    "A snapshot has the settings of home, wherever it was taken and wherever it goes."
    learn = make(per_device_train_batch_size=8)
    learn.step(1)
    before = learn.snapshot()
    with learn.launch(2, keep_global_batch=True):
        learn.step(1)
        there = learn.snapshot()
        learn.restore(before)
        assert learn.step(1)[0].samples == 8 and learn.each(lambda learn: learn.args.per_device_train_batch_size) == [4, 4]
    learn.restore(there)
    assert learn.args.per_device_train_batch_size == 8 == learn.step(1)[0].samples and learn.state.max_steps == 18


def test_behind_the_launch_only_the_beginning_is_reached_at_home():
    "Steps in between would be taken again by another number of processes."
    learn = make()
    learn.step(3)
    with learn.launch(2):
        learn.step(2)
    with pytest.raises(ValueError, match="cannot go back to step 4: launch at step 3"): learn.rewind(1)
    assert learn.rewind(5).step == 0 and learn.state.max_steps == 36   # the first weights are known


# ---- runs that begin anew

def test_a_run_begins_anew_there():
    "With a history of its own, here and there, like one that was begun so."
    like, learn = make(**PLAIN), make(**PLAIN)
    like.launch(2, train=True)
    like.launch(2, train=True)
    with learn.launch(2):
        assert learn.train().global_step == 18
        first = learn.history
        assert learn.train().global_step == 18 and learn.history.parent == first.run_id and len(learn.history) == len(first) == 18
        kept = learn.snapshot()
        learn.reset()
        assert learn.state.global_step == 0 == len(learn.history) and learn.step(2)[-1].step == 2
        assert set(learn.each(lambda learn: (learn.history.run_id, len(learn.history)))) == {(learn.history.run_id, 2)}
        learn.restore(kept)
        assert learn.run_state.finished
    assert not set(differences(like.snapshot(), learn.snapshot())) - {"args"}


def test_the_last_callback_breaks():
    "The run is over; the next train() is another."
    class Breaks(TrainerCallback):
        def on_train_end(self, args, state, control, **kwargs):
            if state.global_step == 6: raise ValueError("at the end")
    learn = make(num_train_epochs=1, callbacks=[Breaks()])
    with learn.launch(2):
        with pytest.raises(ValueError, match="at the end"): learn.train()
        assert learn.state.global_step == 6


# ---- bad moments

class Slow(Net):
    def forward(self, x):
        if not self.training: time.sleep(0.2)
        return super().forward(x)


def slow():
    learn = make()
    torch.manual_seed(0)
    learn.model = Slow()
    return learn


def test_a_process_is_killed_in_a_long_evaluation():
    "The other has the run, and is not waited for until its part is done."
    learn = slow()
    with learn.launch(2):
        learn.step(3)
        threading.Timer(0.5, os.kill, (pids(learn)[1], signal.SIGKILL)).start()
        with pytest.raises(RuntimeError, match="rank 1 was ended by SIGKILL.*after step 3"): learn.evaluate(rows(4000))
        assert learn.step(1)[0].step == 4


def test_all_are_killed_before_anything_was_kept():
    "The run begins anew, and says so."
    learn = make()
    with learn.launch(2):
        learn.step(3)
        for pid in pids(learn): os.kill(pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match="after step 0"): learn.train()
        assert learn.state.global_step == 0 and learn.step(1)[0].step == 1


def test_the_button_while_it_is_launched():
    "The run stays here: nobody would have the processes in hand."
    learn = make()
    learn.step(1)
    threading.Timer(0.03, signal.raise_signal, (signal.SIGINT,)).start()
    with pytest.raises(KeyboardInterrupt): learn.launch(2, start="spawn")
    assert learn.processes is None and learn.step(1)[0].step == 2


# ---- scripts

PARTS = """
import torch
from torch.utils.data import TensorDataset
def net(): return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
def rows(n, seed=0):
    x = torch.randn(n, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, :3].sum(1) > 0).long())
"""

@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("how", [["-m", "torch.distributed.run", "--nproc_per_node", "2"], []])
def test_the_script_of_a_launched_run(tmp_path, monkeypatch, keep, how):
    "It launches, even if the run was launched before its first step; or it is launched, and keeps the global batch."
    (tmp_path/f"parts_{keep}_{len(how)}.py").write_text(PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    parts = __import__(f"parts_{keep}_{len(how)}")
    learn = Learner(model_init=parts.net, train_dataset=parts.rows(41), loss_func=cross_entropy, use_cpu=True, disable_tqdm=True, per_device_train_batch_size=4, num_train_epochs=1)
    learn.launch(2, train=True, keep_global_batch=keep)
    learn.export_script(tmp_path/"script.py")
    done = subprocess.run([sys.executable, *how, "script.py"], cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"})
    assert "byte for byte" in done.stdout, done.stdout + done.stderr


# ---- data

class OfCell(Dataset):
    "As if it had been defined in a cell: a fresh process cannot import it."
    def __len__(self): return 48
    def __getitem__(self, i): return rows(48)[i]

OfCell.__module__, OfCell.__qualname__ = "__main__", "OfCell"


def test_data_of_a_cell_with_workers_of_its_own():
    "Processes that were spawned fork those that load their data, as the notebook does."
    learn = make(data=OfCell(), dataloader_num_workers=1)
    with learn.launch(2, start="spawn"): assert learn.step(2)[-1].step == 2


def test_gpus_that_stand_by_are_told_of_once(monkeypatch, capsys):
    "One line, on a GPU beside others, by one process; on a CPU and among several processes nothing."
    from types import SimpleNamespace
    from trainer_nb import prepare
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    prepare._tell.cache_clear()
    for kind, alone in (("cpu", True), ("cuda", False), ("cuda", True), ("cuda", True)):
        prepare.tell_of_idle(SimpleNamespace(device=torch.device(kind), world=SimpleNamespace(alone=alone)))
    prepare._tell.cache_clear()
    assert capsys.readouterr().out == "This machine has 4 GPUs, and one of them is used; learn.launch(num_processes=4) uses all.\n"

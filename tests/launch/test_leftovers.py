"Variables of launchers that are left over, and a process group in the kernel: a launch works, or the error says what to remove."
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from conftest import ROOT
from trainer_nb.args import parallel
from trainer_nb.args.parallel import MASTER_VARIABLES, RANK_VARIABLES, check_rank_variables, remind_while_connecting
from toys import hard_learner

COMPLETE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29513"}

PROGRAM = '''
import os, sys, torch
from torch.utils.data import TensorDataset
from trainer_nb import Learner

def train():
    if sys.argv[1] == "group":
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    def own(): return {k: v for k, v in os.environ.items() if k.startswith(("RANK", "LOCAL_RANK", "WORLD_", "MASTER_", "GROUP_", "TORCHELASTIC"))}
    before = own()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(48, 4), torch.randint(2, (48,)))
    learn = Learner(torch.nn.Linear(4, 2), train_dataset=data, loss_func=torch.nn.functional.cross_entropy, per_device_train_batch_size=4,
                    use_cpu=True, report_to="none", disable_tqdm=True, max_steps=6)
    with learn.launch(2):
        learn.step(3)
        print("RANKS", learn.run_on_all(lambda learn: (os.environ["RANK"], os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"], os.environ["MASTER_ADDR"])))
    learn.train()
    assert own() == before
    print("SUM", learn.model.weight.sum().item().hex(), len(learn.history))

if __name__ == "__main__": train()
'''


def run(tmp_path, case, **variables):
    "Return what the program printed, with these variables in its environment."
    (tmp_path/"program.py").write_text(PROGRAM)
    clean = {k: v for k, v in os.environ.items() if k not in (*RANK_VARIABLES, *MASTER_VARIABLES)}
    done = subprocess.run([sys.executable, "-W", "ignore", "program.py", case], capture_output=True, text=True, timeout=200, cwd=tmp_path,
                          env=clean | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | variables)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith(("RANKS", "SUM"))]


def test_a_launch_in_spite_of_what_is_left_over(tmp_path):
    "Of a process group in the kernel, and of variables that are harmless; the environment is the same afterwards."
    want = run(tmp_path, "plain")
    assert want[0] == "RANKS [('0', '0', '2', '127.0.0.1'), ('1', '1', '2', '127.0.0.1')]" and want[1].endswith(" 6")
    assert run(tmp_path, "group") == want
    assert run(tmp_path, "plain", RANK="3", MASTER_ADDR="10.255.255.1", MASTER_PORT="1", GROUP_RANK="7", TORCHELASTIC_RUN_ID="old") == want
    assert run(tmp_path, "plain", **COMPLETE) == want


@pytest.mark.parametrize("variables", [{"WORLD_SIZE": "2"}, {"LOCAL_RANK": "1"}, {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}], ids=str)
def test_incomplete_variables_are_an_error_at_once(variables, monkeypatch):
    for name in (*RANK_VARIABLES, *MASTER_VARIABLES): monkeypatch.delenv(name, raising=False)
    for name, value in variables.items(): monkeypatch.setenv(name, value)
    names = [name for name in RANK_VARIABLES if name in variables]
    with pytest.raises(ValueError, match="The environment has .*but without ") as raised:
        with (learn := hard_learner()).launch(2): learn.step()
    assert all(f"{name}={variables[name]}" in str(raised.value) for name in names) and f"for name in {tuple(names)}: del os.environ[name]" in str(raised.value)


def test_the_kernel_of_a_notebook_is_started_by_no_launcher(monkeypatch):
    two = COMPLETE | {"WORLD_SIZE": "2"}
    check_rank_variables(two)
    monkeypatch.setattr(parallel, "is_kernel", lambda: True)
    with pytest.raises(ValueError, match=r"WORLD_SIZE=2.*no launcher starts the kernel of a notebook.*del os.environ\[name\].*learn.launch\(n\)"):
        check_rank_variables(two)
    check_rank_variables(COMPLETE)
    # mpirun's processes are described by other variables
    check_rank_variables({"WORLD_SIZE": "2", "OMPI_COMM_WORLD_SIZE": "2"})


def test_a_kernel_is_recognized(monkeypatch):
    "By its shell; a process that a launcher has forked from it is none."
    from types import SimpleNamespace
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert parallel.is_kernel()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert not parallel.is_kernel()
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert not parallel.is_kernel()


def test_a_process_that_waits_for_others_says_so(monkeypatch):
    import time
    for name, value in (COMPLETE | {"WORLD_SIZE": "2", "RANK": "1"}).items(): monkeypatch.setenv(name, value)
    said = []
    monkeypatch.setattr(parallel, "warn", said.append)
    with remind_while_connecting(0.05): time.sleep(0.5)
    assert len(said) == 1 and "Rank 1 still waits for the other processes of 2" in said[0] and "127.0.0.1:29513" in said[0]
    with remind_while_connecting(0.3): pass
    time.sleep(0.5)
    assert len(said) == 1


KILLED = '''
import glob, os, signal, sys, torch
from torch.utils.data import TensorDataset
from trainer_nb import Learner

data = TensorDataset(torch.randn(48, 4), torch.randint(2, (48,)))
learn = Learner(torch.nn.Linear(4, 2), train_dataset=data, loss_func=torch.nn.functional.cross_entropy, use_cpu=True, report_to="none", disable_tqdm=True)
learn.launch(2)
learn.step(1)
stem = learn.run_state.parts.remote_run.processes.pool.settings["stem"]
shared = f"/dev/shm/{stem}-{os.getpid()}-99" if os.path.isdir("/dev/shm") else ""
if shared: open(shared, "wb").write(b"weights")
print(shared, *glob.glob(os.environ["TMPDIR"] + "/trainer_nb-*"), flush=True)
if sys.argv[1] == "killed": os.kill(os.getpid(), signal.SIGKILL)
learn.close()
'''


def test_the_files_of_a_killed_kernel_go_with_the_next_launch(tmp_path):
    "Folders and shared memory; those of a kernel that is alive stay, and so do folders of other programs."
    from trainer_nb.launch.serialization import make_scratch_folder, remove_scratch_folder
    (tmp_path/"program.py").write_text(KILLED)
    parent = Path(tempfile.mkdtemp(dir="/tmp"))                # names of sockets have to be short
    mine = make_scratch_folder(parent=str(parent))
    (parent/"trainer_nb-of-mine").mkdir()
    def found(how):
        done = subprocess.run([sys.executable, "-W", "ignore", "program.py", how], capture_output=True, text=True, timeout=200, cwd=tmp_path,
                              env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(parent)})
        assert done.returncode == (-9 if how == "killed" else 0), done.stderr
        return set(done.stdout.split()) - {mine, str(parent/"trainer_nb-of-mine")}
    left = found("killed")
    assert len(left) >= 2 and all(map(os.path.exists, left))
    again = found("to the end")
    assert not left & again and not any(map(os.path.exists, left | again))
    assert sorted(p.name for p in parent.glob("trainer_nb-*")) == sorted([os.path.basename(mine), "trainer_nb-of-mine"])
    remove_scratch_folder(mine)
    assert not os.path.exists(mine)
    shutil.rmtree(parent)


ROWS = '''
import torch
from torch.utils.data import Dataset
class Rows(Dataset):
    def __init__(self, rows): self.rows = rows
    def __len__(self): return len(self.rows)
    def __getitem__(self, i): return torch.tensor([float(self.rows[i])]), torch.tensor(i % 2)
'''
PREPARED = '''
import glob, multiprocessing, sys

if __name__ == "__main__":
    import torch
    from rows import Rows
    from trainer_nb import Learner
    multiprocessing.set_start_method("spawn")
    manager = multiprocessing.Manager()
    data = Rows(manager.list(range(32)))
    learn = Learner(torch.nn.Linear(1, 2), train_dataset=data, loss_func=torch.nn.functional.cross_entropy, use_cpu=True, report_to="none", disable_tqdm=True,
                    per_device_train_batch_size=2, dataloader_num_workers=1, dataloader_persistent_workers=True)
    before = set(glob.glob("/dev/shm/sem.mp-*"))
    with learn.launch(2, start="spawn"):
        learn.step(2)
        print(learn.run_on_all(lambda learn: (sys.flags.optimize, sys.argv[1], len(learn.train_dataset))))
    print(*set(glob.glob("/dev/shm/sem.mp-*")) - before)
'''


def test_fresh_processes_are_prepared_as_by_multiprocessing(tmp_path):
    "They have its key, for a manager of the user, the interpreter's options, and the tracker that removes the semaphores of data workers."
    (tmp_path/"program.py").write_text(PREPARED)
    (tmp_path/"rows.py").write_text(ROWS)
    done = subprocess.run([sys.executable, "-O", "-W", "ignore", "program.py", "word"], capture_output=True, text=True, timeout=200, cwd=tmp_path,
                          env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    found, *semaphores = done.stdout.splitlines()
    assert found == "[(1, 'word', 32), (1, 'word', 32)]"
    assert semaphores and not any(map(os.path.exists, semaphores[0].split()))


def test_an_import_of_bitsandbytes_does_not_keep_a_cpu_from_forking(monkeypatch):
    "Accelerate's own launcher refuses to; on a GPU, it may have used one."
    from trainer_nb.launch.local_workers import choose_start_method
    monkeypatch.setitem(sys.modules, "bitsandbytes", sys)
    assert choose_start_method(None, cpu=True) == choose_start_method("fork", cpu=True) == "fork"
    assert choose_start_method(None, cpu=False) == "spawn"
    with pytest.raises(ValueError, match="bitsandbytes is imported here"): choose_start_method("fork", cpu=False)


def test_beside_a_gpu_workers_on_the_cpu_are_no_forks(monkeypatch):
    "The first backward pass, on the CPU too, starts PyTorch's threads for the GPU, after which a fork cannot have one."
    from trainer_nb.launch.local_workers import choose_start_method
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert choose_start_method(None, cpu=True) == choose_start_method("spawn", cpu=True) == "spawn"
    with pytest.raises(ValueError, match="start='fork' is not possible: PyTorch's threads for the GPU"): choose_start_method("fork", cpu=True)


def test_a_local_rank_of_minus_one_is_a_run_in_one_process():
    check_rank_variables({"LOCAL_RANK": "-1"})
    check_rank_variables({"LOCAL_RANK": "-1", "WORLD_SIZE": "1"})
    with pytest.raises(ValueError, match="LOCAL_RANK=0, .* but without"): check_rank_variables({"LOCAL_RANK": "0"})


def test_a_folder_that_is_being_made_is_not_removed(tmp_path, monkeypatch):
    "Another process looks for dead folders at every moment of its creation."
    from trainer_nb.launch import serialization
    class Looks(serialization.FileClaim):
        depth = 0
        def __init__(self, path):
            if not Looks.depth:
                Looks.depth += 1
                # the file is there, and not locked yet
                path.touch()
                serialization.remove_dead_folders(str(tmp_path))
                Looks.depth -= 1
            super().__init__(path)
    monkeypatch.setattr(serialization, "FileClaim", Looks)
    folder = serialization.make_scratch_folder(parent=str(tmp_path))
    assert os.path.isdir(folder) and os.path.isfile(os.path.join(folder, "lock"))
    serialization._CLAIMS.pop(folder).drop()
    # its process has ended
    serialization.remove_dead_folders(str(tmp_path))
    assert not os.path.exists(folder)


def test_no_folder_is_removed_where_files_cannot_be_locked(tmp_path, monkeypatch):
    import fcntl

    from trainer_nb.launch import serialization
    def fails(*args): raise OSError(38, "Function not implemented")
    monkeypatch.setattr(fcntl, "flock", fails)
    folder = serialization.make_scratch_folder(parent=str(tmp_path))
    serialization._CLAIMS.pop(folder).drop()
    serialization.remove_dead_folders(str(tmp_path))
    assert os.path.isdir(folder)


def test_nothing_initializes_cuda_before_processes_are_forked(monkeypatch):
    "is_available() would: with a GPU, no launch could fork, not even in a fresh kernel. The driver's count does not."
    from trainer_nb.launch import local_workers
    asked, forks, choose_start_method = [], [], local_workers.choose_start_method
    def choose(*args):
        forks.append((len(asked), method := choose_start_method(*args)))
        return method
    monkeypatch.setattr(torch.cuda, "is_available", lambda: asked.append(1) or False)
    monkeypatch.setattr(local_workers, "choose_start_method", choose)
    learn = hard_learner(use_cpu=False)
    str(learn.args.device)
    with learn.launch(2): learn.step(2)
    assert {*forks} == {(0, "fork")}

"A run on a cluster of Ray: two nodes on this machine, of which one may be lost."
import os, signal, subprocess, sys, threading, time
import pytest, torch

from clusters import Nodes, free_ports
from conftest import ROOT
from launched import counted, is_gone, make, pids, rows
from trainer_nb import TrainerCallback
from trainer_nb.core.errors import Paused
from trainer_nb.launch import ray_workers

pytest.importorskip("ray")
pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("ray"), pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the workers' guards are those of Linux")]


@pytest.fixture(scope="module")
def nodes():
    "A cluster of two nodes, to which this process is connected, and a port for clients."
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    port, = free_ports(1)
    cluster = Nodes(1, 1, client_port=port)
    cluster.port = port
    cluster.connect()
    yield cluster
    cluster.close()


class Prints(TrainerCallback):
    "Prints on each process, and takes its time."
    def __init__(self, seconds=0.0): self.seconds = seconds
    def on_step_end(self, args, state, control, **kwargs):
        print("step", state.global_step, "of rank", os.environ["RANK"], "in group", os.environ["GROUP_RANK"])
        time.sleep(self.seconds)


class Wide(torch.nn.Module):
    "Its weights are large enough for a file in memory, and for the object store."
    def __init__(self):
        super().__init__()
        self.inward, self.drop, self.out = torch.nn.Linear(8, 4096), torch.nn.Dropout(0.1), torch.nn.Linear(4096, 2)
    def forward(self, x): return self.out(self.drop(torch.tanh(self.inward(x))))


def wide(**settings):
    torch.manual_seed(0)
    learn = make(**settings)
    learn.model = Wide()
    return learn

def wait_for_room(nodes, cpus=2):
    "The resources of processes that have ended come back a moment later."
    for _ in range(100):
        if nodes.ray.available_resources().get("CPU", 0) >= cpus: return
        time.sleep(0.1)
    raise AssertionError(nodes.ray.available_resources())


def files(): return {o for o in os.listdir("/dev/shm") if o.startswith("trainer_nb")}


def test_a_cluster_does_what_one_machine_does(nodes, capsys):
    "Byte for byte; each process on its node, and its prints here; nothing is left, and the connection that was there stays."
    before = files()
    learn = wide(callbacks=[Prints()], num_train_epochs=2)
    with learn.launch(2, cluster="ray", output="all"):
        assert "node" in learn.processes[0] and learn.run_on_all(lambda learn: (os.environ["LOCAL_RANK"], os.environ["GROUP_RANK"])) == [("0", "0"), ("0", "1")]
        learn.step(2)
        assert learn.predict(rows(21, 1)).predictions.shape == (21, 2)
        learn.snapshot("there")
        learn.step(3)
        learn.restore("there")
        learn.set(lr=5e-3)
        learn.step(1)
        learn.rewind(1)
        assert learn.state.global_step == 2
        learn.set(lr=1e-2)
        processes = pids(learn)
        learn.train()
    assert nodes.ray.is_initialized() and all(map(is_gone, processes))
    out = capsys.readouterr().out
    assert "step 1 of rank 0 in group 0\n" in out and "step 12 of rank 1 in group 1\n" in out
    wait_for_room(nodes)
    assert files() <= before
    other = wide(callbacks=[Prints()], num_train_epochs=2)
    with pytest.raises(ValueError, match="start='fork' is not possible: this process is connected to a Ray cluster"): other.launch(2, start="fork")
    with other.launch(2):  # spawns, and so leaves Ray's connection alone
        other.step(2)
        other.set(lr=1e-2)
        other.train()
    assert counted(learn) == counted(other) and all(torch.equal(p, q) for p, q in zip(learn.model.parameters(), other.model.parameters()))


def test_too_few_is_reported_within_seconds(nodes):
    learn = make()
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"room for 2 processes with 1 CPU each, and 3 were requested.*give num_processes=2, or add nodes"): learn.launch(3, cluster="ray")
    with pytest.raises(ValueError, match="start='spawn' has no effect on a cluster"): learn.launch(2, cluster="ray", start="spawn")
    with pytest.raises(ValueError, match="needs the number of processes"): learn.launch(cluster="ray")
    with pytest.raises(ValueError, match="cluster='10.0.0.1' is no cluster: give \"ray\""): learn.launch(2, cluster="10.0.0.1")
    assert time.monotonic() - began < 5 and learn.processes is None and learn.step(1)


def test_without_ray_and_without_a_cluster(nodes, monkeypatch):
    "The error says what to install, and that nobody answers: at once."
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r'needs Ray, here and on the nodes: pip install "trainer_nb\[ray\]"'): make().launch(2, cluster="ray")
    monkeypatch.undo()
    monkeypatch.setattr(nodes.ray, "is_initialized", lambda: False)
    began = time.monotonic()
    with pytest.raises(ConnectionError, match="cannot be reached .*refused.*ray status.*RAY_AUTH_MODE and the token"): make().launch(2, cluster=f"ray://127.0.0.1:{free_ports(1)[0]}")
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free_ports(1)[0]}")
    with pytest.raises(ConnectionError, match="cluster='ray': the cluster cannot be reached"): make().launch(2, cluster="ray")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("address", ["", "auto"])
def test_the_address_of_a_cluster_that_was_killed(nodes, monkeypatch, tmp_path, address):
    "Ray would try it for ten minutes. The error names the file, and the command that removes it."
    (tmp_path/"ray").mkdir()
    (tmp_path/"ray"/"ray_current_cluster").write_text(f"127.0.0.1:{free_ports(1)[0]}")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(nodes.ray, "is_initialized", lambda: False)
    began = time.monotonic()
    with pytest.raises(ConnectionError, match=r"address is in .*ray_current_cluster, does not answer .*refused.*`ray stop`"): make().launch(2, cluster="ray")
    assert time.monotonic() - began < 5


def test_what_the_nodes_lack_is_one_error(nodes, monkeypatch):
    "Versions and modules, before a process is started; the run stays here."
    needed = ray_workers.needed_versions
    monkeypatch.setattr(ray_workers, "needed_versions", lambda blob: needed(blob) | {"torch": "1.0.0", "no_such_package": "3.1"})
    learn = make()
    with pytest.raises(RuntimeError, match="torch 1.0.0 .the node has .* on .*; no_such_package 3.1 on .*Install the same packages there as here, and put modules of your own"): learn.launch(2, cluster="ray")
    assert learn.processes is None and learn.step(1)[0].step == 1
    wait_for_room(nodes)


def test_a_checkpoint_is_loaded_on_the_nodes_that_have_it(nodes, tmp_path):
    "The processes load it themselves."
    learn = make(fsdp="full_shard", output_dir=str(tmp_path), save_strategy="no", eval_strategy="no")
    with learn.launch(2, cluster="ray"):
        learn.step(3)
        folder = learn.save_checkpoint()
        losses = [r.loss for r in learn.step(3)]
        before = pids(learn)
        assert learn.load_checkpoint(folder).step == 3 and pids(learn) == before
        assert [r.loss for r in learn.step(3)] == losses


def test_others_use_the_cluster(nodes, monkeypatch):
    "It is reported after some seconds; a press of the button ends the wait."
    monkeypatch.setattr(ray_workers, "WAIT_SECONDS", 2.0)
    first = make()
    with first.launch(2, cluster="ray"):
        with pytest.raises(RuntimeError, match="Other jobs use the cluster: after 2 s, 0 CPUs are free, and 2 processes need 2 CPUs"): make().launch(2, cluster="ray")
        monkeypatch.setattr(ray_workers, "WAIT_SECONDS", 60.0)
        threading.Timer(2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt): make().launch(2, cluster="ray")
        assert time.monotonic() - began < 20 and first.step(1)[0].step == 1
    wait_for_room(nodes)


def test_pauses_and_deaths(nodes):
    "All processes stop after the same step; one that was killed is replaced."
    learn = make(callbacks=[Prints(0.02)], num_train_epochs=100, eval_strategy="no")
    with learn.launch(2, cluster="ray"):
        handle = learn.start()
        time.sleep(1)
        handle.pause()
        steps = learn.run_on_all(lambda learn: learn.state.global_step)
        assert steps == [learn.state.global_step] * 2 and steps[0] > 1
        threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(Paused): learn.run(steps=500)
        before = learn.state.global_step
        os.kill(pids(learn)[1], signal.SIGKILL)
        with pytest.raises(RuntimeError, match="rank 1 was killed by SIGKILL.*the processes are running again"): learn.step(3)
        assert learn.step(1)[0].step == before + 1
        with pytest.raises(ZeroDivisionError): learn.run_on_all(lambda learn: 1 // (1 - int(os.environ["RANK"])))
    wait_for_room(nodes)


CLIENT = """
from clusters import free_ports
from launched import make, counted
learn = make()
learn.launch(2, cluster="ray://127.0.0.1:{port}", train=True)
import ray
other = make()
other.launch(2, train=True)
assert counted(learn) == counted(other) and not ray.is_initialized()
try: make().launch(5, cluster="ray://127.0.0.1:{port}")
except ValueError as error: print(error)
"""


def test_through_a_client(nodes):
    "`ray://`, from a process that is no part of the cluster; the connection is closed at the end."
    pytest.importorskip("grpc")
    wait_for_room(nodes)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT/"tests"), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", CLIENT.format(port=nodes.port)], env=env, capture_output=True, text=True, timeout=300)
    assert "room for 2 processes with 1 CPU each, and 5 were requested" in done.stdout, done.stdout + done.stderr


CELLS = """
import torch
from launched import counted, make
from torch.utils.data import Dataset
from trainer_nb import Learner, TrainerCallback

WIDTH = 4

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, WIDTH)
    def forward(self, x): return torch.tanh(self.inner(x))

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.out = Layer(), torch.nn.Linear(WIDTH, 2)
    def forward(self, x): return self.out(self.layer(x))

class Rows(Dataset):
    def __len__(self): return 24
    def __getitem__(self, i): return torch.linspace(0, i / 24, 8), i % 2

class Counts(TrainerCallback):
    steps = 0
    def on_step_end(self, args, state, control, **kwargs): self.steps += 1

class MyLearner(Learner):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        out = model(inputs[0])
        loss = torch.nn.functional.cross_entropy(out, inputs[1]) + 0 * WIDTH
        return (loss, out) if return_outputs else loss

def run(**where):
    torch.manual_seed(0)
    learn = MyLearner(Net(), train_dataset=Rows(), callbacks=[counts := Counts()], per_device_train_batch_size=4, max_steps=5, use_cpu=True, disable_tqdm=True)
    with learn.launch(2, **where):
        learn.step(2)
        learn.rewind(1)
        learn.train()
    assert type(learn.model) is Net and type(learn.model.layer) is Layer
    return counted(learn), [p.tolist() for p in learn.model.parameters()]

assert run(cluster="ray") == run()
print("the same")
"""


def test_classes_of_cells(nodes):
    "A model, a data set, a callback and a learner that are defined in `__main__`, which no node has."
    wait_for_room(nodes)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT/"tests"), os.environ.get("PYTHONPATH", "")]), "RAY_ADDRESS": nodes.cluster.address}
    done = subprocess.run([sys.executable, "-W", "ignore", "-"], input=CELLS, env=env, capture_output=True, text=True, timeout=300)
    assert "the same" in done.stdout, done.stdout + done.stderr
    wait_for_room(nodes)

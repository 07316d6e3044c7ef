"What close() takes on the way home: memory beside the run, bytes that travel, and what is left if it fails."
import os, signal, threading

import pytest, torch
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from trainer_nb import Learner
from trainer_nb.engine.snapshot import differences
from trainer_nb.launch.serialization import SharedTensors
from launched import pids, same   # noqa: F401
from presses import acts

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("launch")]

WIDTH = 1024


class Wide(torch.nn.Module):
    "Large tensors of each kind: tied, not contiguous, expanded, a view, a buffer beside them."
    def __init__(self, num_layers):
        super().__init__()
        self.inward = torch.nn.Linear(8, WIDTH)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(num_layers))
        self.tied = self.layers[0]
        self.across = torch.nn.Parameter(torch.randn(WIDTH, 64).t() / 32)
        self.out = torch.nn.Linear(64, 2)
        self.register_buffer("expanded", torch.ones(WIDTH).expand(64, WIDTH))
        self.register_buffer("view", torch.arange(4.0 * WIDTH * 64).view(4, 64, WIDTH)[1:3, :, ::2])
        self.register_buffer("phase", torch.view_as_complex(torch.ones(WIDTH, 64, 2)).conj())
    def forward(self, x):
        x = torch.tanh(self.inward(x))
        for layer in self.layers: x = x + torch.tanh(layer(x))
        return self.out(torch.nn.functional.linear(x, self.across * self.expanded))


def make(num_layers=2, optim="adamw_torch_fused", **settings):
    torch.manual_seed(0)
    x = torch.randn(96, 8)
    return Learner(Wide(num_layers), train_dataset=TensorDataset(x, (x[:, 0] > 0).long()), loss_func=cross_entropy, use_cpu=True, optim=optim,
                   per_device_train_batch_size=2, max_steps=40, learning_rate=1e-3, disable_tqdm=True, rewind_every=0, **settings)


def weight_bytes(learn): return sum(p.nbytes for p in learn.model.parameters())


class Watch:
    "The most that some processes, and the files of a pool, have taken beyond what they had at the start."
    def __init__(self, learn):
        self.pids, self.stem = [os.getpid(), *pids(learn)], learn.run_state.parts.remote_run.processes.pool.settings["stem"]
        self.done, self.most = threading.Event(), 0

    def now(self): return sum(map(own_memory, self.pids)) + files_in_memory(self.stem)

    def __enter__(self):
        self.start = self.now()
        def watch():
            while not self.done.wait(0.002): self.most = max(self.most, self.now() - self.start)
        self.thread = threading.Thread(target=watch)
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.done.set()
        self.thread.join()


def own_memory(pid):
    "Bytes that belong to one process; 0 if it has ended."
    try:
        with open(f"/proc/{pid}/status") as f: return next((int(line.split()[1]) * 1024 for line in f if line.startswith("RssAnon")), 0)
    except OSError: return 0


def mapped_files(stem):
    "Bytes of a pool's files that this process has mapped."
    with open("/proc/self/maps") as f: spans = [line.split()[0].split("-") for line in f if stem in line]
    return sum(int(end, 16) - int(start, 16) for start, end in spans)


def files_in_memory(stem):
    "Bytes of a pool's files: those that have a name, and those that only this process has."
    named = 0
    for entry in os.scandir("/dev/shm"):
        if not entry.name.startswith(stem): continue
        try: named += entry.stat().st_blocks * 512
        except FileNotFoundError: pass
    return named or mapped_files(stem)


@pytest.fixture
def written(tmp_path, monkeypatch):
    "Return a function that returns the bytes of tensors that processes have written since the last call; forks inherit the record."
    record, write = tmp_path/"written", SharedTensors.write.__func__
    def counted(cls, tensors, stem):
        with open(record, "a") as f: f.write(f"{os.getpid()} {sum(t.nbytes for t in tensors.values())}\n")
        return write(cls, tensors, stem)
    monkeypatch.setattr(SharedTensors, "write", classmethod(counted))
    def since():
        lines = [line.split() for line in record.read_text().splitlines()] if record.exists() else []
        record.write_text("")
        return sum(int(n) for pid, n in lines if int(pid) != os.getpid())
    return since


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs files in memory")
@pytest.mark.parametrize("n, limit", [(1, 1.6), (2, 1.2)])
def test_little_memory_beside_the_state(n, limit):
    "One copy of the weights and the optimizer's state, and one of the first weights, less what the processes release."
    learn = make(12)
    learn.launch(n, start="fork")
    learn.step(2)
    with Watch(learn) as watch: learn.close()
    state = 3 * weight_bytes(learn)
    assert 0 < watch.most < limit * state
    # the file of the first weights alone stays
    assert mapped_files(watch.stem) < 1.2 * weight_bytes(learn)
    learn.launch(n, start="fork")
    learn.step(1)
    with Watch(learn) as watch: learn.close()
    # the first weights are here
    assert watch.most < 1.2 * state and not mapped_files(watch.stem)


def test_first_weights_travel_once(written):
    learn, other = make(), make()
    first = {name: p.detach().clone() for name, p in learn.model.named_parameters()}
    weights = weight_bytes(learn)
    def come_home():
        learn.launch(2, start="fork")
        learn.step(2)
        written()
        learn.close()
        return written() / weights
    assert 4 < come_home() < 4.6   # weights, two moments and the first weights; and the buffers twice
    assert 3 < come_home() < 3.4
    for _ in range(2):
        with other.launch(2, start="fork"): other.step(2)
    same(learn, other)
    learn.reset()
    assert all(torch.equal(p, first[name]) for name, p in learn.model.named_parameters())
    assert 3 < come_home() < 3.4
    # one that has begun here
    learn = make()
    learn.step(1)
    assert 3 < come_home() < 3.4


def test_frozen_weights_travel_once(written):
    "They are those of the first weights; one that was changed by hand travels, and is not lost."
    def make_frozen():
        learn = make(4)
        for layer in learn.model.layers[1:]: layer.requires_grad_(False)
        return learn
    def change(learn): learn.model.layers[2].weight.data[3, 4] = 7
    learn, other = make_frozen(), make_frozen()
    layer = learn.model.layers[1].weight.nbytes
    for o in (learn, other): o.launch(2, start="fork"); o.step(2)
    learn.run_on_all(change)
    written()
    learn.close()
    # four layers at first; the trained one with its two moments, and the one that was changed; and what is small
    assert 8 < written() / layer < 9.3
    other.close()
    change(other)
    assert set(differences(learn.snapshot(), other.snapshot())) <= {"args"}
    for o in (learn, other): o.step(1)
    assert set(differences(learn.snapshot(), other.snapshot())) <= {"args"}
    for o in (learn, other): o.reset()
    assert set(differences(learn.snapshot(), other.snapshot())) <= {"args"}


@pytest.mark.parametrize("optim", ["adamw_torch_fused", "sgd"])
def test_large_tensors_of_each_kind_come_home(optim):
    "Also those that share memory, or are parts of larger memory."
    learn, other = make(optim=optim), make(optim=optim)
    learn.model.view[0, 0, 0] = other.model.view[0, 0, 0] = -1
    def layout(learn): return {name: (b.shape, b.stride()) for name, b in learn.model.named_buffers() if name != "expanded"}   # gets memory of its own
    before = layout(learn)
    assert learn.model.tied is learn.model.layers[0]
    with learn.launch(1): learn.step(3)
    other.step(3)
    for o in (learn, other): o.step(2)
    assert set(differences(learn.snapshot(), other.snapshot())) <= {"args"}
    assert layout(learn) == before and learn.model.tied is learn.model.layers[0]
    assert [r.loss for r in learn.history] == [r.loss for r in other.history]


def fail_once(monkeypatch, tmp_path, act):
    "Make the first process fail while it writes the run for the notebook, once."
    write, flag = SharedTensors.write.__func__, tmp_path/"failed"
    def fails(cls, tensors, stem):
        size = sum(t.nbytes for t in tensors.values())
        if os.environ.get("RANK") == "0" and size > 2.5 * 4 * WIDTH * WIDTH * 2 and not flag.exists():
            flag.touch()
            act()
        return write(cls, tensors, stem)
    monkeypatch.setattr(SharedTensors, "write", classmethod(fails))
    return flag


def test_a_process_is_killed_while_it_hands_over(monkeypatch, tmp_path):
    learn, other = make(), make()
    with other.launch(2, start="fork"): other.step(3)
    flag = fail_once(monkeypatch, tmp_path, lambda: os.kill(os.getpid(), signal.SIGKILL))
    learn.launch(2, start="fork")
    learn.step(3)
    with pytest.warns(UserWarning, match="rank 0 was killed by SIGKILL.* after step 3. The run is as it was before the step, and is back in this process"): learn.close()
    assert flag.exists() and acts(learn) == ["launch", "restart", "close"]
    same(other, learn)
    for o in (learn, other): o.step(2)
    same(other, learn)


def test_no_room_for_the_file(monkeypatch, tmp_path):
    "The run goes on in the same processes, and comes home later."
    learn, other = make(), make()
    other.launch(2, start="fork")
    def no_room(): raise OSError(28, "No space left on device")
    flag = fail_once(monkeypatch, tmp_path, no_room)
    learn.launch(2, start="fork")
    for o in (learn, other): o.step(3)
    before = pids(learn)
    with pytest.raises(OSError, match="No space left"): learn.close()
    assert flag.exists() and pids(learn) == before
    for o in (learn, other): o.step(2); o.close()
    assert acts(learn) == ["launch", "close"]
    same(other, learn)
    for o in (learn, other): o.step(2)
    same(other, learn)

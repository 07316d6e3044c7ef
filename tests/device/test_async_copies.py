"Copies that a GPU makes beside its work, with a stand-in that copies as late as it may: when the update comes, or when somebody reads."
import contextlib, threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest, torch

from toys import finish, hard_learner, unequal
from trainer_nb import differences
from trainer_nb.engine import snapshot_tensors
from trainer_nb.engine.snapshot_tensors import HostCopies, copy_beside, is_ready_to_copy, staging_area, to_gpu

LONG = dict(num_train_epochs=4, logging_steps=4)


class Late:
    "Copies when it has to, and not before."
    made = 0
    def __init__(self, pairs): self.pairs, self.lock, Late.made = pairs, threading.Lock(), Late.made + 1
    @torch.no_grad()
    def wait_before_update(self):
        with self.lock:                              # a thread that writes a checkpoint may read now, too
            for copy, t in self.pairs: copy.copy_(t)
            self.pairs = []
    wait = wait_before_update
    def is_done(self): return True

    took = 0.0
    def stall(self): return self.took


@pytest.fixture
def late(monkeypatch):
    @torch.no_grad()
    def fill(self):
        for copy, t, changes in self.later:
            if changes: copy.copy_(t)
            else: copy.fill_(-1)
        pairs, self.later = [(copy, t) for copy, t, changes in self.later if not changes], []
        return Late(pairs)
    monkeypatch.setattr(HostCopies, "fill", fill)
    Late.made = 0


def test_rewinds_and_checkpoints_hold_what_was_there(tmp_path, late):
    want = finish(hard_learner(**LONG))
    learn = hard_learner(rewind_every=1, output_dir=str(tmp_path), save_steps=3, **LONG)
    learn.step(5)
    was = learn.snapshot()
    learn.step(4)
    learn.rewind(4)
    assert differences(learn.snapshot(), was) == [] and unequal(finish(learn), want, ignore=("args", "state")) == []
    for step in (3, 6, 9):
        other = hard_learner(output_dir=str(tmp_path), save_steps=3, **LONG)
        other.load_checkpoint(tmp_path / f"checkpoint-{step}")
        assert unequal(finish(other), want, ignore=("args", "state")) == []
    assert Late.made > 20


def test_a_snapshot_is_the_users_own_at_once(late):
    "After a verb somebody may change weights by hand: nothing is copied any more then."
    learn = hard_learner(rewind_every=1, **LONG)
    learn.step(2)
    weight = learn.model.inner.weight.detach().clone()
    taken, ring = learn.snapshot(), learn.run_state.parts.rewind_buffer.kept[-1]
    before = ring.tensors["weights/inner.weight"].clone()
    with torch.no_grad(): learn.model.inner.weight.zero_()
    assert torch.equal(taken.tensors["weights/inner.weight"], weight) and torch.equal(ring.tensors["weights/inner.weight"], before)


def test_a_step_that_fails_and_a_restore(late):
    want = finish(hard_learner(**LONG))
    learn = hard_learner(rewind_every=1, **LONG)
    learn.step(3)
    was = learn.snapshot()
    learn.model.hook = lambda name: (_ for _ in ()).throw(ValueError("no")) if name == "backward" else None
    with pytest.raises(ValueError): learn.step(1)
    learn.model.hook = lambda name: None
    assert differences(learn.snapshot(), was) == ["epoch_open"]   # its event was told
    learn.step(2); learn.restore(was)
    assert unequal(finish(learn), want, ignore=("args",)) == []


@pytest.mark.parametrize("took", [0.0, 1e3])
def test_how_long_an_update_waited_counts_for_the_spacing(late, monkeypatch, took):
    monkeypatch.setattr(Late, "took", took)
    learn = hard_learner(num_train_epochs=40)
    learn.step(3)
    for steps in (2, 1):
        with torch.no_grad(): next(learn.model.parameters()).mul_(0.5)   # a replay would leave it out: a snapshot follows
        learn.step(steps)
    ring = learn.run_state.parts.rewind_buffer
    assert [s.step for s in ring.kept] == [3, 5] and ring.kept[0].copying.stall() == took
    assert ring.every == 1000 and ring.account.spent > took if took else ring.account.spent < 1e3


def test_weights_that_change_in_the_backward_pass(late):
    "By a hook of each parameter: the copy does not wait for the update."
    learn = hard_learner(rewind_every=1, **LONG)
    def update(p): p.data.add_(p.grad, alpha=-1e-3)
    for p in filter(lambda p: p.requires_grad, learn.model.parameters()): p.register_post_accumulate_grad_hook(update)
    learn.step(3); was = learn.snapshot(); learn.step(2)
    assert learn.rewind(2).replayed == 0 and differences(learn.snapshot(), was) == []

class Device:
    "Stands in for a GPU's streams: what is queued on the one for copies is done when its event is awaited."
    type = "cuda"
    def __init__(self): self.queue, self.waits, self.blocked = [], 0, threading.Event()
    def wait_stream(self, stream): pass
    def wait_event(self, event): event.synchronize()
    def record_event(self, event): event.queue, event.blocked = self.queue, self.blocked; return event


class Event:
    def __init__(self, **given): self.queue, self.blocked, self.lock = [], None, threading.Lock()
    def synchronize(self):
        if self.blocked is not None: assert self.blocked.wait(20)
    def record(self, stream): pass
    def query(self): return True
    def elapsed_time(self, other): return 5.0


@pytest.fixture
def gpu(monkeypatch):
    "A staging area of small chunks, whose copies end when `blocked` is set."
    area, threads = Device(), torch.get_num_threads()
    torch.set_num_threads(4)
    monkeypatch.setattr(snapshot_tensors, "_CHUNK", 256)
    monkeypatch.setattr(snapshot_tensors, "_AREAS", {})
    monkeypatch.setattr(snapshot_tensors, "_LEAST_UPLOAD", 1)
    monkeypatch.setattr(snapshot_tensors, "lock_memory", lambda chunk: chunk)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    for name, stands_in in dict(cudart=lambda: SimpleNamespace(cudaHostUnregister=lambda pointer: 0), Stream=lambda device: area, Event=Event, current_stream=lambda device: area, stream=lambda stream: contextlib.nullcontext()).items():
        monkeypatch.setattr(torch.cuda, name, stands_in)
    yield area
    area.blocked.set()
    torch.set_num_threads(threads)
    snapshot_tensors.release_staging()
    assert not snapshot_tensors._AREAS


def sources(n): return [torch.arange(n * 100.0) + n, torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1) * n, torch.tensor(n), torch.arange(9.0)[::2] * n, torch.zeros(0)]


def begin(n):
    there = sources(n)
    here = [torch.full_like(t, -1) for t in there]
    return here, there, copy_beside([(copy, t, i == 2) for i, (copy, t) in enumerate(zip(here, there))])


def test_copies_pass_through_locked_places(gpu):
    "In pieces, of any layout; the source may change once the copy has ended there, and the third copy waits for a place."
    area = staging_area(torch.device("cpu"))
    assert area.worker.submit(torch.get_num_threads).result() == 1 and ThreadPoolExecutor(1).submit(torch.get_num_threads).result() == 4
    assert area.reserve(3000) and area.growing.result() is None
    runs = [begin(1), begin(2)]
    assert not any(copying.is_done() for *_, copying in runs)
    third = []
    thread = threading.Thread(target=lambda: third.append(begin(3)))
    thread.start()
    for _, there, _ in runs:
        for t in there: t.fill_(0)   # the places have what was there
    gpu.blocked.set()
    thread.join(20)
    for n, (here, _, copying) in enumerate([*runs, *third], 1):
        copying.wait()
        copying.wait_before_update()
        assert copying.is_done() and copying.stall() == 0.005
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(here, sources(n)))


def test_places_are_made_beside_the_program_and_only_where_there_is_memory(gpu, monkeypatch):
    "Otherwise the caller copies at once."
    device, begins, lock = torch.device("cuda"), threading.Event(), snapshot_tensors.lock_memory
    monkeypatch.setattr(snapshot_tensors, "lock_memory", lambda chunk: begins.wait(20) and lock(chunk))
    assert not is_ready_to_copy(device, 2700)
    begins.set()
    staging_area(device).growing.result()
    assert is_ready_to_copy(device, 2700) and [len(place) for place in staging_area(device).places] == [12, 12]
    for name, instead in (("memory_for_copies", lambda: 1000), ("lock_memory", lambda chunk: 1 / 0)):
        snapshot_tensors._AREAS.clear()
        with monkeypatch.context() as patch:
            patch.setattr(snapshot_tensors, name, instead)
            assert begin(1)[2] is None and begin(1)[2] is None


def test_tensors_go_to_the_gpu_in_chunks(gpu, monkeypatch):
    gpu.blocked.set()
    made = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda t, **given: made(t))
    for t in sources(3)[:3]:
        out = to_gpu(t, gpu)
        assert out is not t and torch.equal(out, t)
    assert to_gpu(t, torch.device("cpu")) is t

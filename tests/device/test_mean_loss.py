"The mean loss of several processes, said by each and heard when it is needed; and what else spares a step memory and conversations."
import glob, multiprocessing, os, random, struct, subprocess, sys, tempfile, time

import pytest, torch
from toys import hard_learner
from trainer_nb import Learner, TrainerCallback
from trainer_nb.device.collectives import SharedScalars, has_exited, create_shared_scalars, open_shared_scalars
from trainer_nb.engine.snapshot import capture_snapshot
from trainer_nb.engine.snapshot_tensors import allocate_host_copy

pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("launch")]
ODD = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 5e-324, 1.7976931348623157e308, 0.1, -1 / 3]
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def slate():
    path = create_shared_scalars(2)
    yield path
    if os.path.exists(path): os.unlink(path)


def bits(values): return [struct.pack("d", v) for v in values]


def number(rank, count): return ODD[(count + rank) % len(ODD)] if count % 3 else count * (rank + 0.125)


def exchange(path, rank, n, found):
    "As processes do that meet at each step, one of them late now and then; the other's number is looked at before the next is shown, or just after."
    mine, chance, wrong, barrier = SharedScalars(path, rank, 2), random.Random(rank), [], found[1]
    for count in range(1, n + 1):
        barrier.wait()   # the gradients
        if chance.random() < 0.02: time.sleep(0.002)
        late = rank and count % 2 and count > 1
        if late: mine.show(number(rank, count))
        if late and bits(mine.seen(count - 1)) != bits([number(r, count - 1) for r in range(2)]): wrong.append(count - 1)
        if not late: mine.show(number(rank, count))
        if not rank and bits(mine.seen(count)) != bits([number(r, count) for r in range(2)]): wrong.append(count)
    found[0].put((rank, wrong))


def test_two_processes_see_every_number_to_the_last_bit(slate):
    queue, barrier = FORK.Queue(), FORK.Barrier(2)
    both = [FORK.Process(target=exchange, args=(slate, rank, 3000, (queue, barrier))) for rank in range(2)]
    for p in both: p.start()
    assert sorted(queue.get(timeout=60) for _ in both) == [(0, []), (1, [])]
    for p in both: p.join()


def test_what_is_half_written_is_not_believed(slate):
    one, other = SharedScalars(slate, 0, 2), SharedScalars(slate, 1, 2)
    count = one.show(1.0)
    assert not one.all_there(count)
    other._cells[other._place(1, count)] = 12345   # its first half
    assert not one.all_there(count)
    with pytest.raises(RuntimeError, match="rank 1 has not said"): one.seen(count, seconds=0.05)
    other.show(2.0)
    assert one.all_there(count) and one.seen(count) == [1.0, 2.0]


def test_a_process_that_has_ended_is_named_soon(slate):
    "Also one that nobody has waited for yet."
    one, child = SharedScalars(slate, 0, 2), FORK.Process(target=SharedScalars, args=(slate, 1, 2))
    child.start()
    while not has_exited(child.pid): time.sleep(0.01)
    began, count = time.monotonic(), one.show(1.0)
    with pytest.raises(RuntimeError, match="rank 1 has ended"): one.seen(count)
    assert time.monotonic() - began < 10
    child.join()
    assert has_exited(child.pid) and not has_exited(os.getpid())


def test_a_slate_that_cannot_be_seen(tmp_path):
    assert open_shared_scalars(str(tmp_path / "elsewhere"), 0, 2) is None and open_shared_scalars(None, 0, 2) is None
    (tmp_path / "empty").touch()
    assert open_shared_scalars(str(tmp_path / "empty"), 0, 2) is None


SAME = """
import glob, struct, tempfile, torch, torch.distributed as dist
from trainer_nb.device.collectives import World
dist.init_process_group("gloo")
rank = dist.get_rank()
with_slate, without = World(rank, 3, rank), World(rank, 3, rank)
assert without.shown == 0
with_slate.make_slate()
dist.barrier()
assert not glob.glob(tempfile.gettempdir() + "/trainer_nb-slate-*"), "a file is left"
made = torch.Generator().manual_seed(rank)
for dtype in (torch.float32, torch.float64, torch.bfloat16):
    for i in range(50):
        value = (torch.randn((), generator=made, dtype=torch.float64) * 10 ** (i % 7)).to(dtype)
        both = [with_slate.mean_soon(value).tensor(), without.mean_soon(value).tensor()]
        assert len({(t.dtype, t.item()) for t in both}) == 1, both
        mean = with_slate.mean(value)
        if dtype is torch.float64: torch.testing.assert_close(both[0], mean, rtol=1e-9, atol=1e-9)   # summed in another order
before = with_slate.mean_soon(torch.tensor(float(rank)))
dist.barrier()   # as the gradients of the next step
with_slate.mean_soon(1.0)
assert before.known and before.tensor() == 1 and with_slate.shown == 152 and without.shown == 0
dist.barrier()
assert with_slate.mean_soon(torch.tensor([2.0])).tensor() == 2
print("same", rank)
"""


def test_both_ways_give_the_same_bits(tmp_path):
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "3", "--no_python", sys.executable, "-c", SAME],
                          capture_output=True, text=True, env=os.environ | {"TMPDIR": str(tmp_path)})
    assert not done.returncode and done.stdout.count("same") == 3, done.stderr[-2000:]   # their lines may come mixed


class Looks(TrainerCallback):
    "The first process alone looks at every loss at once; the other never does."
    def __init__(self): self.seen = []
    def on_step_end(self, args, state, control, learner, **kwargs):
        if state.is_world_process_zero: self.seen.append(learner.history[-1].loss)


def test_one_process_may_look_alone():
    "A loss that only one asks for keeps nobody waiting, and is that of both."
    def run(*callbacks):
        learn = hard_learner(callbacks=list(callbacks), max_steps=20, output_dir=None)
        with learn.launch(2):
            learn.train()
            return learn.run_on_all(lambda learn: next((c.seen for c in learn.callback_handler.callbacks if hasattr(c, "seen")), None)), learn.run_on_all(lambda learn: [r.loss for r in learn.history])
    (seen, none), both = run(Looks())
    assert seen == both[0] == both[1] and len(seen) == 20 and none == []
    assert run()[1] == both


def test_nothing_is_left_of_it(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    learn = hard_learner(max_steps=4)
    with learn.launch(2):
        learn.step()
        assert not glob.glob(f"{tmp_path}/trainer_nb-slate-*")
        assert learn.run_on_all(lambda learn: learn.run_state.device.world.num_shared) == [1, 1]


def test_gradients_have_one_place():
    "The memory that is exchanged is that of the gradients: none is kept beside it."
    class Looking(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, learner, **kwargs):
            self.at = [p.grad.data_ptr() for p in learn_params(learner)]
    learn = hard_learner(max_steps=6, callbacks=[Looking()])
    with learn.launch(2):
        learn.step(2)
        first = learn.run_on_all(where_gradients_were)
        learn.step()
        assert learn.run_on_all(where_gradients_were) == first and all(all(at) for at in first)


def where_gradients_were(learner): return next(c.at for c in learner.callback_handler.callbacks if hasattr(c, "at"))
def learn_params(learner): return [p for p in learner.model.parameters() if p.requires_grad]


def test_copies_in_pages_of_their_own():
    "A forked process has its own: what it writes there changes nothing here. Layouts and kinds stay."
    torch.manual_seed(0)
    learn = Learner(torch.nn.Linear(500, 100), train_dataset=[(torch.randn(500), torch.tensor(1))] * 8, loss_func=torch.nn.functional.cross_entropy, use_cpu=True, max_steps=2, disable_tqdm=True)
    learn.step()
    taken = capture_snapshot(learn.run_state, beside=True)
    weights = taken.tensors["weights/weight"]
    if pid := os.fork(): assert os.waitpid(pid, 0)[1] == 0
    else:
        weights.fill_(9)
        os._exit(0)
    assert torch.equal(weights, learn.model.weight)
    for t in (torch.ones(300, 300), torch.ones(100, 100), torch.ones(300, 300).t()[:, ::2], torch.ones(400_000, dtype=torch.bfloat16), torch.ones(400_000, dtype=torch.bool),
              torch.ones(1).expand(90_000), torch.ones(1, 3, 200, 200).to(memory_format=torch.channels_last)):
        room = allocate_host_copy(t, True)
        room.copy_(t)
        assert torch.equal(room, t) and room.dtype == t.dtype and room.shape == t.shape
    shared = allocate_host_copy(torch.ones(300, 300), True).fill_(3)
    assert shared.share_memory_().is_shared() and (shared == 3).all()

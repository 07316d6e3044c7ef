"The mean loss of several processes: exact on each of them; memory of a step that is not needed twice."
import os, subprocess, sys

import pytest, torch
from toys import hard_learner
from trainer_nb import Learner, TrainerCallback
from trainer_nb.engine.snapshot import capture_snapshot
from trainer_nb.engine.snapshot_tensors import allocate_host_copy

pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("launch")]


MEANS = """
import sys, torch, torch.distributed as dist
from trainer_nb.device.collectives import World, wait_for_gloo_threads
dist.init_process_group("gloo")
rank = dist.get_rank()
world = World(rank, 3, rank)
for dtype in (torch.float32, torch.float64, torch.bfloat16):
    made = torch.Generator().manual_seed(0)
    for i in range(50):
        values = [(torch.randn((), generator=made, dtype=torch.float64) * 10 ** (i % 7)).to(dtype) for _ in range(3)]
        mean, common_flags = world.all_reduce_mean_and_flags(values[rank], [i, i + 1 + rank], 60)
        assert mean.dtype == dtype and mean.item() == (torch.stack(values).sum() / 3).item(), (mean, values)   # in the order of the ranks
        assert common_flags() == {i}
        if dtype is torch.float64: torch.testing.assert_close(mean, world.all_reduce_mean(values[rank]), rtol=1e-9, atol=1e-9)   # another order
for special in (float("inf"), float("-inf"), 5e-324, 1.7976931348623157e308, -0.0):
    mean, _ = world.all_reduce_mean_and_flags(torch.tensor(special if rank == 1 else 0.0, dtype=torch.float64))
    assert mean.item() == special / 3
assert world.all_reduce_mean_and_flags(torch.tensor([2.0], requires_grad=True))[0] == 2
sys.stdout.write(f"same {rank}\\n")
wait_for_gloo_threads()
"""


def in_processes(n, code, **environment):
    return subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(n), "--no_python", sys.executable, "-c", code],
                          capture_output=True, text=True, env=os.environ | environment)


def test_the_mean_has_the_same_bits_on_all_ranks():
    done = in_processes(3, MEANS)
    assert not done.returncode and done.stdout.count("same") == 3, done.stderr[-2000:]   # their lines may come mixed


class Looks(TrainerCallback):
    "Read each loss at once on rank 0, and never on the other rank."
    def __init__(self): self.seen = []
    def on_step_end(self, args, state, control, learner, **kwargs):
        if state.is_world_process_zero: self.seen.append(learner.history[-1].loss)


def test_one_process_may_look_alone():
    "Rank 0 can read a loss alone; it is the mean of both processes."
    def run(*callbacks):
        learn = hard_learner(callbacks=list(callbacks), max_steps=20, output_dir=None)
        with learn.launch(2):
            learn.train()
            return learn.run_on_all(lambda learn: next((c.seen for c in learn.callback_handler.callbacks if hasattr(c, "seen")), None)), learn.run_on_all(lambda learn: [r.loss for r in learn.history])
    (seen, none), both = run(Looks())
    assert seen == both[0] == both[1] and len(seen) == 20 and none == []
    assert run()[1] == both


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

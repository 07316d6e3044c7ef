"""Count the messages of a run on several processes, with the profiler of torch; prints them as JSON.

    python -m torch.distributed.run --standalone --nproc_per_node 2 tests/programs/exchange.py CASE [CASE ...]
"""
import collections, json, sys

import torch, torch.distributed as dist
from torch.profiler import profile

from trainer_nb import Learner

STEPS = 4


class Net(torch.nn.Module):
    "Two layers, and what a case needs."
    _no_split_modules = ["Linear"]
    def __init__(self, case):
        super().__init__()
        self.accepts_loss_kwargs = case == "labels"
        self.inward, self.out = torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)
        self.norm = torch.nn.BatchNorm1d(8) if case == "buffers" else torch.nn.Identity()

    def forward(self, x, labels, num_items_in_batch=None):
        scores = self.out(self.norm(self.inward(x)))
        if num_items_in_batch is None: return {"loss": torch.nn.functional.cross_entropy(scores, labels)}
        return {"loss": torch.nn.functional.cross_entropy(scores, labels, reduction="sum") / num_items_in_batch}


class Own(Learner):
    "An override, which may return a number."
    def training_step(self, model, inputs, num_items_in_batch=None): return super().training_step(model, inputs, num_items_in_batch).item()


SETTINGS = {"ddp": {}, "accumulate": dict(gradient_accumulation_steps=2), "labels": dict(gradient_accumulation_steps=2), "buffers": {}, "fsdp": dict(fsdp=True),
            "fsdp accumulate": dict(fsdp=True, gradient_accumulation_steps=2), "override": {}, "tokens": dict(include_num_input_tokens_seen="all"),
            "any": dict(ddp_find_unused_parameters=True), "none": dict(ddp_find_unused_parameters=False), "default": dict(rewind_every=None),
            "copies": dict(fsdp=True, fsdp_config={"dp_shard_size": 2})}


def make(case):
    torch.manual_seed(0)
    model = Net(case)
    model.main_input_name = "x"
    data = [{"x": torch.randn(4), "labels": torch.tensor(i % 3)} for i in range(400)]
    settings = dict(use_cpu=True, disable_tqdm=True, per_device_train_batch_size=4, max_steps=40, logging_steps=20, learning_rate=0.1, optim="sgd", max_grad_norm=0.0,
                    save_strategy="no", report_to="none", train_sampling_strategy="sequential", rewind_every=0) | SETTINGS[case]
    return (Own if case == "override" else Learner)(model, train_dataset=data, **settings)


def messages(act):
    "The messages of gloo, each with the number of elements of its first tensor."
    with profile(record_shapes=True) as profiled: act()
    counts = collections.Counter()
    for event in profiled.events():
        if event.name.startswith("gloo:"): counts[f"{event.name.removeprefix('gloo:')} {(event.input_shapes[0] or [1])[0]}"] += 1
    return dict(counts)


def by_hand(case):
    "The losses of a plain DDP loop on the same batches, and its weights."
    torch.manual_seed(0)
    model = Net(case)
    data = [{"x": torch.randn(4), "labels": torch.tensor(i % 3)} for i in range(400)]
    wrapped = torch.nn.parallel.DistributedDataParallel(model, broadcast_buffers=False, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    window = 2 if case == "accumulate" else 1
    rank, size, losses = dist.get_rank(), dist.get_world_size(), []
    for step in range(3 + 2 * STEPS):
        for group in optimizer.param_groups: group["lr"] = 0.1 * (40 - step) / 40
        total = torch.zeros(())
        for i in range(window):
            first = ((step * window + i) * size + rank) * 4
            batch = {k: torch.stack([row[k] for row in data[first:first + 4]]) for k in ("x", "labels")}
            if i + 1 < window:
                with wrapped.no_sync(): loss = wrapped(**batch)["loss"] / window; loss.backward()
            else: loss = wrapped(**batch)["loss"] / window; loss.backward()
            total = total + loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        losses.append((total / size).item())
    return losses, [p.tolist() for p in model.parameters()]


def main():
    torch.set_num_threads(1)
    for case in sys.argv[1:]:
        learn = make(case)
        learn.step(3)
        quiet = messages(lambda: learn.step(STEPS))
        learn.set(logging_steps=3 + 2 * STEPS)
        logged = messages(lambda: learn.step(STEPS))
        found = {"case": case, "step": quiet, "with log": logged, "losses": [r.loss for r in learn.history], "tokens": learn.state.num_input_tokens_seen}
        if case in ("ddp", "accumulate", "override"): found["by hand"], weights = by_hand(case)
        if "by hand" in found: found["same weights"] = weights == [p.tolist() for p in learn.model.parameters()]
        if dist.get_rank() == 0: print("RESULT", json.dumps(found), flush=True)


if __name__ == "__main__": main()

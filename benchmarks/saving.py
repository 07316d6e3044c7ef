"""Measure how long the training loop stands still for a checkpoint and for a snapshot, and how long it takes to resume.

    python benchmarks/saving.py                # models of 1, 30 and 300 million parameters; needs 20 GB of memory and 15 of disk
    python benchmarks/saving.py --sizes 1 30   # without the large one
    python benchmarks/saving.py --parts saves  # or resume, ring

benchmarks/README.md describes how each figure is measured. Each measurement imports what it needs, in a process of its
own.
"""
from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import harness

WIDTH = 1024
ROUNDS = {1: 15, 30: 7, 300: 3}


def make_model(millions):
    "A stack of square layers with about so many million parameters."
    import torch
    from torch import nn
    width = 256 if millions == 1 else WIDTH
    layers = max(1, round(millions * 1e6 / (width * width + width)))
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
        def forward(self, x=None): return {"loss": self.layers(x).square().mean()}
    return Net(), width


def make_learner(millions, folder, **settings):
    "A learner that has taken two steps, so that the optimizer has its state."
    import torch
    from trainer_nb import Learner
    model, width = make_model(millions)
    rows = [{"x": torch.ones(width)}] * 1000
    learn = Learner(model, train_dataset=rows, output_dir=folder, per_device_train_batch_size=1, save_strategy="no", disable_tqdm=True, use_cpu=True,
                    rewind_every=0, logging_strategy="no", **settings)
    learn.step(2)
    return learn


def timed(act):
    "Seconds that an action takes."
    import gc
    gc.collect()
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


# --- each of these runs in a process of its own and returns seconds, by what was done --------------------------------------

def saves(millions, folder):
    "In turns: clone the tensors; a snapshot; a checkpoint of ours, and what it holds the loop up; a blocking torch.save."
    import torch
    learn, found = make_learner(millions, folder), {}
    run = learn.run_state
    tensors = [*run.model.parameters(), *(v for s in run.optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor))]
    found["bytes"] = sum(t.nbytes for t in tensors)
    def note(name, seconds): found.setdefault(name, []).append(seconds)

    held = {}   # what is kept, as a snapshot is: the next one needs memory of its own
    def clone(): held["clone"] = [t.detach().clone() for t in tensors]
    def snapshot(): held["snapshot"] = learn.snapshot()
    def blocking(): torch.save({"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}, os.path.join(folder, "blocking.pt"))

    for number in range(ROUNDS[millions]):
        for act in (clone, snapshot) if number % 2 else (snapshot, clone): note(act.__name__, timed(act))
        learn.step(1)
        note("checkpoint", timed(learn._save_checkpoint))          # the loop's own save: what it stands still
        beside = timed(lambda: learn.step(3))                      # steps beside the writing thread
        run.parts.saver.wait()
        note("alone", timed(lambda: learn.step(3)))
        note("beside", beside)
        note("whole", timed(learn.save_checkpoint))                # until it is on the disk
        note("torch.save", timed(blocking))
        for name in os.listdir(folder):
            if name.startswith("checkpoint-"): shutil.rmtree(os.path.join(folder, name))
    found["first checkpoint"] = found["checkpoint"].pop(0)         # gets its memory
    return found


def trainers_saves(millions, folder):
    "What transformers' Trainer stands still for its checkpoint."
    import torch
    from transformers import Trainer, TrainingArguments
    model, width = make_model(millions)
    found = []

    class Timed(Trainer):
        def _save_checkpoint(self, *args, **kwargs): found.append(timed(lambda: super(Timed, self)._save_checkpoint(*args, **kwargs)))

    args = TrainingArguments(folder, max_steps=2 * (ROUNDS[millions] + 1), per_device_train_batch_size=1, save_steps=2, save_total_limit=1, report_to="none",
                             use_cpu=True, disable_tqdm=True, logging_strategy="no", dataloader_pin_memory=False)
    Timed(model, args, train_dataset=[{"x": torch.ones(width)}] * 1000).train()
    return {"trainer": found[1:]}


def resume(step, folder):
    "From the learner to its next step, at a place far into an epoch; once by ours and once by the Trainer, which skips."
    import torch
    from trainer_nb import Learner
    torch.manual_seed(0)
    class Rows(torch.utils.data.Dataset):
        reads = 0
        def __len__(self): return 200_000
        def __getitem__(self, i): Rows.reads += 1; return {"x": torch.full((8,), float(i))}
    class Net(torch.nn.Module):
        def __init__(self): super().__init__(); self.layer = torch.nn.Linear(8, 1)
        def forward(self, x=None): return {"loss": self.layer(x).square().mean()}
    def made(): return Learner(Net(), train_dataset=Rows(), output_dir=folder, per_device_train_batch_size=1, num_train_epochs=1, save_strategy="no",
                               disable_tqdm=True, use_cpu=True, learning_rate=0.0, logging_strategy="no", rewind_every=0)
    first = made()
    first.step(1)
    first.run_state.cursor, first.run_state.counters.batches_in_epoch = type(first.run_state.cursor)(0, step), step   # as if it had trained so far
    first.state.global_step = step
    place = first.save_checkpoint(os.path.join(folder, f"at {step}"))
    found = []
    for _ in range(9):
        learn = made()
        learn.step(1)                                              # imports and preparations are not what is measured
        before = Rows.reads
        found.append(timed(lambda: (learn.load_checkpoint(place), learn.step(1))))
        assert learn.state.global_step == step + 1 and Rows.reads - before == 1
    return {"resume": found}


def ring(millions, folder):
    "Steps with the ring of snapshots as it comes, and without, in turns."
    from trainer_nb import Learner
    import torch
    def made(**given):
        model, width = make_model(millions)
        learn = Learner(model.layers, train_dataset=torch.utils.data.TensorDataset(torch.randn(2000, width)), per_device_train_batch_size=16, max_steps=10_000,
                        loss_func=lambda out, labels: out.square().mean(), disable_tqdm=True, use_cpu=True, logging_strategy="no", **given)
        learn.step(5)
        return learn
    both, found = {"with": made(), "without": made(rewind_every=0)}, {}
    steps = {1: 300, 30: 40}[millions]
    for _ in range(7):
        for name, learn in both.items(): found.setdefault(name, []).append(timed(lambda: learn.step(steps)) / steps)
    found["every"] = both["with"].run_state.parts.rewind_buffer.every
    return found


PARTS = {"saves": saves, "trainers_saves": trainers_saves, "resume": resume, "ring": ring}


def measure(part, argument):
    "One part, in a process of its own, with a folder of its own."
    folder = tempfile.mkdtemp()
    try:
        code = [sys.executable, __file__, "--one", part, str(argument), folder]
        env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        out = subprocess.run(code, capture_output=True, text=True, env=env)
        if out.returncode: sys.exit(f"{part} {argument} failed:\n{out.stderr[-2000:]}")
        return json.loads(out.stdout.splitlines()[-1])
    finally: shutil.rmtree(folder, ignore_errors=True)


SAVES = {"clone": "clone the tensors", "snapshot": "snapshot", "checkpoint": "checkpoint", "first checkpoint": "the first one",
         "torch.save": "blocking `torch.save`", "trainer": "transformers' `Trainer`"}


def measure_saves(size: int) -> dict:
    "Return the milliseconds that the loop stands still, by what is done, and the ratio to cloning the same tensors."
    found = measure("saves", size)
    found["first checkpoint"] = [found["first checkpoint"]]
    found |= measure("trainers_saves", size)
    base = statistics.median(found["clone"])
    figures = {"MB": found["bytes"] / 1e6}
    for name in SAVES:
        figures[name] = harness.median_with_interval([1000 * seconds for seconds in found[name]])
        # The Trainer saves in a process of its own: there are no rounds in which to form the ratio.
        figures[name]["ratio"] = statistics.median(found[name]) / base
    figures["beside"] = harness.quotients(found["beside"], found["alone"])
    return figures


def measure_ring(size: int) -> dict:
    "Return the milliseconds of a step without the ring, and the ratio with it."
    found = measure("ring", size)
    return {"ms": harness.median_with_interval([1000 * seconds for seconds in found["without"]]),
            "ratio": harness.quotients(found["with"], found["without"]), "every": found["every"]}


def tables(found: dict) -> dict:
    "Return the tables of a stored result by name."
    figures, made = found["figures"], {}
    if figures.get("saves"):
        rows = [[f"{size} M ({row['MB']:,.0f} MB)", f"{row['clone']['median']:,.1f}",
                 *(f"{row[name]['median']:,.1f} ({row[name]['ratio']:.2f})" for name in list(SAVES)[1:]),
                 harness.with_interval(row["beside"])] for size, row in figures["saves"].items()]
        head = ["model (weights and optimizer)", *SAVES.values(), "a step beside the writing, alone = 1"]
        title = "Milliseconds that the loop stands still, and in brackets times the cloning of the same tensors:"
        made["saves"] = f"{title}\n\n{harness.table(head, rows)}"
    if figures.get("resume"):
        rows = [[f"{int(step):,}", harness.with_interval(figure, 1)] for step, figure in figures["resume"].items()]
        made["resume"] = harness.table(["resuming at step", "ms until the next step is done"], rows)
    if figures.get("ring"):
        rows = [[f"{size} M", harness.with_interval(row["ms"], 1), harness.with_interval(row["ratio"], 3), str(row["every"])]
                for size, row in figures["ring"].items()]
        head = ["model", "a step without the ring, ms", "with the ring", "steps between two snapshots"]
        made["ring"] = harness.table(head, rows)
    return made | {"notes": f"{harness.INTERVALS} {harness.describe(found)}"}


def main(argv=None):
    "Measure what was asked for and print the tables."
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the model of one million parameters")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 30, 300], help="millions of parameters")
    parser.add_argument("--parts", nargs="+", default=["saves", "resume", "ring"], choices=["saves", "resume", "ring"])
    parser.add_argument("--json", metavar="FILE", help="write the summary to this file")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    opts = parser.parse_args(argv)
    if opts.one:
        part, argument, folder = opts.one
        return print(json.dumps(PARTS[part](int(argument), folder)))
    if opts.quick: opts.sizes = [1]
    harness.use_checkout()
    figures = {}
    if "saves" in opts.parts: figures["saves"] = {str(size): measure_saves(size) for size in opts.sizes}
    if "resume" in opts.parts:
        times = {step: measure("resume", step)["resume"] for step in (10, 100_000)}
        figures["resume"] = {str(step): harness.median_with_interval([1000 * s for s in found]) for step, found in times.items()}
    if "ring" in opts.parts: figures["ring"] = {str(size): measure_ring(size) for size in opts.sizes if size < 300}
    found = harness.result("saving", opts, ["sizes"], figures, {})
    harness.print_result(found, tables(found))
    harness.write_json(opts.json, found)


if __name__ == "__main__": main()

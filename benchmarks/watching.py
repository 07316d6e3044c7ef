"""Measure what it costs to watch all layers of a model while it trains.

    python benchmarks/watching.py                 # a transformer of 30 million parameters, batches of 8 x 128 tokens, every 10 steps
    python benchmarks/watching.py --quick         # a small one
    python benchmarks/watching.py --only trainer_nb

benchmarks/README.md describes how it is measured. A contender that is not installed is named and left out. Each
contender works in a process of its own.
"""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import harness

EVERY, VOCABULARY = 10, 8000


def make_model(quick):
    "A decoder of pre-norm blocks; its forward gives the loss of the next token."
    import torch
    from torch import nn
    width, depth = (128, 2) if quick else (512, 8)
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.norm2, self.up, self.act, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)

        def forward(self, x):
            q, k, v = (t.unflatten(-1, (8, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
            x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
            return x + self.down(self.act(self.up(self.norm2(x))))

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.blocks, self.norm = nn.Embedding(VOCABULARY, width), nn.Sequential(*[Block() for _ in range(depth)]), nn.LayerNorm(width)

        def forward(self, tokens, labels=None):
            logits = self.norm(self.blocks(self.embed(tokens))) @ self.embed.weight.T
            return {"loss": nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()), "logits": logits}
    return Decoder()


def tokens(n): return __import__("torch").randint(0, VOCABULARY, (n, 128), generator=__import__("torch").Generator().manual_seed(1))


def of_trainer_nb(quick, blocks):
    from torch.utils.data import Dataset
    from trainer_nb import Learner

    class Rows(Dataset):
        def __init__(self): self.rows = tokens(64)
        def __len__(self): return len(self.rows)
        def __getitem__(self, i): return {"tokens": self.rows[i], "labels": self.rows[i]}

    learn = Learner(make_model(quick), train_dataset=Rows(), per_device_train_batch_size=8, max_steps=10_000, optim="adamw_torch_fused", rewind_every=0,
                    logging_steps=EVERY, use_cpu=True, disable_tqdm=True)
    learn.step(2)
    def block(watched):
        if watched: learn.watch(every=EVERY)
        else: learn.unwatch()
        while learn.state.global_step % EVERY: learn.step(1)
        begun = time.perf_counter()
        learn.step(EVERY)
        return time.perf_counter() - begun
    return pairs(block, blocks), sum(p.numel() for p in learn.model.parameters())


def by_hand(quick, watch, unwatch, after=lambda loss: None):
    "A function that trains ten steps by hand."
    import torch
    model, rows = make_model(quick), tokens(64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=True)
    def steps(n):
        for i in range(n):
            loss = model(rows[i * 8 % 64:i * 8 % 64 + 8])["loss"]
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            after(loss)
    steps(2)
    def block(watched):
        (watch if watched else unwatch)(model)
        begun = time.perf_counter()
        steps(EVERY)
        return time.perf_counter() - begun
    return block


def of_wandb(quick, blocks):
    os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": tempfile.mkdtemp()}
    import wandb
    run = wandb.init(project="watching")
    try: return pairs(by_hand(quick, lambda m: wandb.watch(m, log="all", log_freq=EVERY), lambda m: wandb.unwatch(m), lambda loss: run.log({"loss": loss.item()})), blocks), None
    finally: run.finish()


def of_fastai(quick, blocks):
    "ActivationStats with its histograms, in fastai's own Learner: outputs alone, no weights and no gradients."
    import torch
    import fastai.callback.progress   # noqa: F401, it gives learners no_bar
    from fastai.callback.hook import ActivationStats
    from fastai.data.core import DataLoaders
    from fastai.learner import Learner
    rows = tokens(8 * EVERY)
    loader = torch.utils.data.DataLoader([(r, r) for r in rows], batch_size=8)
    model = make_model(quick)
    class Whole(torch.nn.Module):
        def __init__(self): super().__init__(); self.model = model
        def forward(self, x): return self.model(x)["loss"]
    learn = Learner(DataLoaders(loader, [], device=torch.device("cpu")), Whole(), loss_func=lambda out, y: out,
                    opt_func=lambda groups, lr, **given: __import__("fastai.optimizer").optimizer.OptimWrapper(groups, torch.optim.AdamW, lr=lr, fused=True))
    leaves = [m for m in model.modules() if not list(m.children())]
    def block(watched):
        given = [ActivationStats(modules=leaves, with_hist=True, every=EVERY)] if watched else []
        begun = time.perf_counter()
        with learn.no_bar(), learn.no_logging(): learn.fit(1, cbs=given)
        return time.perf_counter() - begun
    block(False)
    return pairs(block, blocks), None


def pairs(block, n) -> list:
    "Seconds of ten steps without and with, in turns."
    found = []
    for i in range(n):
        order = (False, True) if i % 2 else (True, False)
        times = {watched: block(watched) for watched in order}
        found.append((times[False], times[True]))
    return found


CONTENDERS = {"trainer_nb": of_trainer_nb, "wandb": of_wandb, "fastai": of_fastai}
NAMES = {"trainer_nb": "trainer_nb: outputs with histograms, gradients, updates", "wandb": "W&B `watch(log='all')`, offline: gradients and weights, with histograms",
         "fastai": "fastai `ActivationStats(with_hist=True)`: outputs alone"}


def measure(name, quick, blocks, threads):
    "A contender in a process of its own; what it found, or what it said."
    done = subprocess.run([sys.executable, __file__, "--contender", name, "--blocks", str(blocks), *(["--quick"] if quick else [])], capture_output=True, text=True,
                          env=os.environ | {"OMP_NUM_THREADS": str(threads)})
    try: return json.loads(done.stdout.splitlines()[-1]), done.stderr
    except (ValueError, IndexError): return None, done.stderr


def tables(found: dict) -> dict:
    "Return the table of a stored result."
    rows = [[NAMES[name], harness.with_interval(row["s"]), harness.with_interval(row["more"], 1, 100, name == "trainer_nb")]
            for name, row in found["figures"].items()]
    head = [f"watched, every {EVERY} steps", f"{EVERY} steps without, s", "more time with, %"]
    notes = [f"{harness.INTERVALS} {harness.describe(found)}", *harness.missing_lines(found, NAMES)]
    return {"watching": harness.table(head, rows), "notes": "\n".join(notes)}


def main(argv=None):
    "Measure what was asked for and print the table."
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=CONTENDERS)
    parser.add_argument("--blocks", type=int, default=16, help="pairs of blocks")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="torch's threads")
    parser.add_argument("--json", metavar="FILE", help="write the summary to this file")
    parser.add_argument("--verbose", action="store_true", help="show what the contenders write to standard error")
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    opts = parser.parse_args(argv)
    if opts.contender:
        found, parameters = CONTENDERS[opts.contender](opts.quick, opts.blocks)
        return print(json.dumps({"pairs": found, "parameters": parameters}))
    harness.use_checkout()
    if opts.quick: opts.blocks = min(6, opts.blocks)
    figures, left_out = {}, {}
    for name in [opts.only] if opts.only else CONTENDERS:
        found, written = measure(name, opts.quick, opts.blocks, opts.threads)
        if opts.verbose: print(written, file=sys.stderr)
        if found is None:
            left_out[name] = written.strip().splitlines()[-1] if written.strip() else "it wrote nothing"
            continue
        figures[name] = {"s": harness.median_with_interval([without for without, _ in found["pairs"]]),
                         "more": harness.median_with_interval([with_ / without - 1 for without, with_ in found["pairs"]])}
    found = harness.result("watching", opts, ["blocks"], figures, left_out, ["wandb", "fastai"])
    harness.print_result(found, tables(found))
    harness.write_json(opts.json, found)


if __name__ == "__main__": main()

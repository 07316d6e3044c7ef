"""Measure what the tools beside training cost: lr_find, inspect, watch and an open dashboard, in terms of a step.

    python benchmarks/tools.py                 # some ten minutes
    python benchmarks/tools.py --quick         # a rough look
    python benchmarks/tools.py --only lr_find  # or: inspect, watch, transformer, dashboard

benchmarks/README.md describes how each figure is measured.
"""
from __future__ import annotations

import argparse
import time
from types import SimpleNamespace

import harness
import overhead
import views
import watching

WORK = overhead.WORKS["perceptron"]
LR_STEPS, LR_START, LR_END = 300, 1e-7, 1e-2
EVERY, WATCHED_STEPS = 10, 300


def make_learner(device: str):
    "Return a learner for the perceptron of overhead.py that does not print, after some steps."
    from trainer_nb import Learner, ProgressCallback
    learn = Learner(overhead.make_model(WORK), data_collator=overhead.collator(WORK),
                    train_dataset=overhead.make_data(WORK), **overhead.settings(1_000_000, device))
    learn.remove_callback(ProgressCallback)
    learn.run(steps=50)
    return learn


# --- lr_find, by turns with a range test that is written by hand ----------------------------------------------------------

def range_test_by_hand(device: str):
    "Return a function that trains with a growing rate, notes each loss, and puts model and optimizer back."
    import copy
    import torch
    from torch.utils.data import DataLoader
    model = overhead.make_model(WORK).to(device)
    optimizer, _ = overhead.make_optimizer(model, LR_STEPS)
    loader = DataLoader(overhead.make_data(WORK), batch_size=overhead.BATCH, shuffle=True,
                        collate_fn=overhead.collator(WORK))

    def search():
        before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        losses = []
        model.train()
        for i, batch in zip(range(LR_STEPS), loader):
            for group in optimizer.param_groups: group["lr"] = LR_START * (LR_END / LR_START) ** (i / (LR_STEPS - 1))
            if device != "cpu": batch = {key: value.to(device) for key, value in batch.items()}
            loss = model(**batch)["loss"]
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), overhead.CLIP)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        model.load_state_dict(before[0])
        optimizer.load_state_dict(before[1])
        return losses

    return search


def lr_find(device: str):
    "Return a function that calls lr_find() for as many steps, without trials, and returns the losses."
    learn = make_learner(device)
    return lambda: learn.lr_find(LR_START, LR_END, LR_STEPS, stop_factor=None, trial_steps=0).losses


SEARCHES = {"hand": range_test_by_hand, "trainer_nb": lr_find}


def searches(spec: dict, exchange):
    "Search for a rate again and again."
    def train(work, steps, tick, device):
        search = SEARCHES[spec["name"]](device)
        for _ in range(steps):
            losses = search()
            assert len(losses) == LR_STEPS
            tick()
        return float(losses[-1])
    harness.train_by_turns(train, spec, exchange)


# --- tools of one learner, by turns with its plain steps -------------------------------------------------------------------

def timed(act, device: str) -> float:
    "Return the seconds that an action takes."
    harness.synchronize(device)
    began = time.perf_counter()
    act()
    harness.synchronize(device)
    return time.perf_counter() - began


def inspect_pairs(rounds: int, device: str) -> list:
    "Return the seconds of a step and of an inspection, in turns."
    learn = make_learner(device)
    learn.inspect()
    return [(timed(lambda: learn.run(steps=EVERY), device) / EVERY, timed(learn.inspect, device)) for _ in range(rounds)]


def watch_pairs(rounds: int, device: str) -> list:
    "Return the seconds of a block without watching and with it, in turns."
    learn = make_learner(device)
    def block(watched):
        if watched: learn.watch(every=EVERY)
        else: learn.unwatch()
        learn.run(steps=EVERY)
        return timed(lambda: learn.run(steps=WATCHED_STEPS), device)
    block(True)
    found = []
    for number in range(rounds):
        times = {watched: block(watched) for watched in ((False, True), (True, False))[number % 2]}
        found.append((times[False], times[True]))
    return found


def transformer_pairs(rounds: int, device: str) -> list:
    "Return the same for the small decoder of watching.py."
    return watching.of_trainer_nb(True, rounds)[0]


PAIRS = {"inspect": inspect_pairs, "watch": watch_pairs, "transformer": transformer_pairs}


def pairs(spec: dict, exchange):
    "Answer with all pairs of seconds."
    import torch
    torch.set_num_threads(spec["threads"])
    exchange.answer({"pairs": PAIRS[spec["name"]](spec["works"][0], spec["device"])})


KINDS = {"steps": searches, "pairs": pairs}
TOOLS = ["lr_find", *PAIRS, "dashboard"]
LABELS = {"lr_find": "`lr_find()`, a step of the search (a range test by hand = 1)",
          "inspect": "`inspect()`, beside a plain step",
          "watch": f"`watch(every={EVERY})`, a step of the perceptron",
          "transformer": f"`watch(every={EVERY})`, a step of a decoder of two layers",
          "dashboard": "an open dashboard, a step in the background (a kernel of its own)"}


# --- the summary and its table ---------------------------------------------------------------------------------------------

def measure_lr_find(opts, left_out, raw):
    "Return µs for a step of lr_find, and the ratio to a range test by hand."
    found = harness.measure_by_turns(__file__, list(SEARCHES), ["lr_find"], opts, left_out)["lr_find"]
    raw["lr_find"] = found
    if len(found) < 2: return None
    base, ours = found["hand"]["wall"], found["trainer_nb"]["wall"]
    return {"without_us": harness.median_with_interval([1e6 * wall / LR_STEPS for wall in base]),
            "with_us": harness.median_with_interval([1e6 * wall / LR_STEPS for wall in ours]),
            "ratio": harness.quotients(ours, base)}


def measure_pairs(tool, opts, left_out, raw):
    "Return µs for a step without a tool and with it, and the ratio."
    rounds = opts.fresh * opts.rounds
    rows = harness.measure_starts(__file__, "pairs", [tool], [rounds], opts, 1, left_out, warm=False)
    if tool not in rows: return None
    found = raw[tool] = rows[tool][0]["pairs"]
    steps = {"inspect": 1, "watch": WATCHED_STEPS, "transformer": watching.EVERY}[tool]
    without, with_ = zip(*found)
    return {"without_us": harness.median_with_interval([1e6 * o / steps for o in without]),
            "with_us": harness.median_with_interval([1e6 * o / steps for o in with_]),
            "ratio": harness.quotients(with_, without)}


def measure_dashboard(opts, left_out, raw):
    "Return µs for a step without a view and with one, and the ratio."
    try: kernel = views.Kernel()
    except ImportError as error:
        left_out["dashboard"] = str(error)
        return None
    try:
        kernel.run(views.OURS)
        rates = raw["dashboard"] = views.measure_rates(kernel, opts.fresh * opts.rounds, opts.seconds, (0, 1))[0]
    finally: kernel.close()
    return {"without_us": harness.median_with_interval([1e6 / rate for rate in rates[0]]),
            "with_us": harness.median_with_interval([1e6 / rate for rate in rates[1]]),
            "ratio": harness.quotients(rates[0], rates[1])}


def tables(found: dict) -> dict:
    "Return the table of a stored result."
    rows = [[LABELS[tool], harness.with_interval(figure["without_us"], 0), harness.with_interval(figure["with_us"], 0),
             harness.with_interval(figure["ratio"], bold=True)] for tool, figure in found["figures"].items()]
    notes = [f"{harness.INTERVALS} {harness.describe(found)}", *harness.missing_lines(found, LABELS)]
    return {"tools": harness.table(["", "without, µs", "with, µs", "ratio"], rows), "notes": "\n".join(notes)}


# --- the command line --------------------------------------------------------------------------------------------------------

def parse(argv):
    "Return the options of the command line."
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    harness.add_options(p, TOOLS, baseline=None)
    harness.add_rounds(p, fresh=16, rounds=1, blocks=1, steps=1, warmup=1)
    p.add_argument("--seconds", type=float, default=3.0, help="of training in a round with a dashboard and without")
    opts = p.parse_args(argv)
    if opts.quick: opts.fresh, opts.rounds, opts.seconds = 1, min(6, opts.rounds * opts.fresh), min(1.0, opts.seconds)
    return opts


def main(argv=None):
    "Measure what was asked for and print the table."
    opts = parse(argv)
    if opts.worker: return harness.serve(opts.worker, KINDS)
    harness.use_checkout()
    left_out, raw, figures = {}, {}, {}
    for tool in TOOLS:
        if opts.only and tool not in opts.only: continue
        # The kernel has a thread for training beside those that draw: it is not bound to one core.
        bound = SimpleNamespace(**vars(opts) | {"one_core": opts.threads == 1})
        if tool == "lr_find": figure = measure_lr_find(bound, left_out, raw)
        elif tool == "dashboard": figure = measure_dashboard(opts, left_out, raw)
        else: figure = measure_pairs(tool, bound, left_out, raw)
        if figure is not None: figures[tool] = figure
    keys = ["fresh", "rounds", "blocks", "steps", "warmup", "seconds"]
    found = harness.result("tools", opts, keys, figures, left_out)
    harness.print_result(found, tables(found))
    harness.write_json(opts.json, found)
    harness.write_json(opts.raw, raw)


if __name__ == "__main__": main()

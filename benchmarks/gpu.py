"""Measure a real model on a GPU: what trainer_nb costs beside a loop by hand, and what its features take there.

    python benchmarks/gpu.py                            # all parts but resnet and lora; some six minutes on an H100
    python benchmarks/gpu.py --minutes 6                # begin nothing later than that
    python benchmarks/gpu.py --parts compiled rewind    # these alone, in this order
    python benchmarks/gpu.py --model tiny --device cpu  # a rough look at the script itself, without a GPU

The model is GPT-2 with 124 million parameters, random weights from transformers' configuration, and sequences of 1,024
random tokens in batches of 16; bf16, fused AdamW, four data workers. Nothing is downloaded. It needs torch, transformers,
accelerate and safetensors, for `resnet` torchvision and for `lora` peft, and 8 GB of free disk in the temporary folder.

The contenders train by turns in one process. In each round each of them is made anew, takes steps that warm up, and steps
that are timed, the device synchronized at both ends only. Peak memory is torch's own count, reset after the warm-up. Each
line is printed as soon as it is measured, so that a run that is cut off has given figures; the summary is written after
each part, to --json, to the folder $OUT, or to benchmarks/results/gpu.json.
"""
from __future__ import annotations

import argparse
import contextlib
import gc
import os
import pathlib
import statistics
import tempfile
import time
import traceback
import warnings

import harness
from gpu_works import CONTENDERS, LABELS, LOG_EVERY, SIZES, make_learner, with_trainer


# --- clocks ------------------------------------------------------------------------------------------------------------------

class Clock:
    "Time the steps after those that warm up; true when they are done."
    def __init__(self, opts): self.opts, self.count, self.begun = opts, 0, None

    def __call__(self) -> bool:
        self.count += 1
        if self.count == self.opts.warmup:
            harness.synchronize(self.opts.device)
            if self.opts.device == "cuda": cuda().reset_peak_memory_stats()
            self.begun = time.perf_counter()
        if self.count < self.opts.warmup + self.opts.steps: return False
        harness.synchronize(self.opts.device)
        self.seconds = time.perf_counter() - self.begun
        asked = [cuda().max_memory_allocated, cuda().max_memory_reserved] if self.opts.device == "cuda" else []
        self.memory = [ask() / 2**30 for ask in asked]
        return True


class StepTimes:
    "Note when each step ends, by the host's clock and by the device's, without waiting for the device; true at the end."
    def __init__(self, opts, steps: int, skip: int = 0):
        self.opts, self.left, self.skip, self.walls, self.events = opts, steps, skip, [], []

    def __call__(self, record=None) -> bool:
        self.walls.append(1e3 * time.perf_counter())
        if self.opts.device == "cuda":
            self.events.append(cuda().Event(enable_timing=True))
            self.events[-1].record()
        self.left -= 1
        return self.left <= 0

    def describe(self) -> dict:
        "Return the median of a step, and by how much the longest one was longer."
        harness.synchronize(self.opts.device)
        host = [b - a for a, b in zip(self.walls[self.skip:], self.walls[self.skip + 1:])]
        found = {"ms a step": statistics.median(host), "host's largest stall, ms": max(host) - statistics.median(host)}
        if not self.events: return found
        device = [a.elapsed_time(b) for a, b in zip(self.events[self.skip:], self.events[self.skip + 1:])]
        return found | {"ms a step": statistics.median(device), "device's largest stall, ms": max(device) - statistics.median(device)}


def cuda():
    import torch
    return torch.cuda


def timed(act, opts):
    "Return the seconds that an action takes, and what it returns."
    harness.synchronize(opts.device)
    began = time.perf_counter()
    made = act()
    harness.synchronize(opts.device)
    return time.perf_counter() - began, made


def forget(opts):
    "Release what the contender before has held."
    import torch
    gc.collect()
    torch._dynamo.reset()
    gc.collect()
    if opts.device == "cuda": cuda().empty_cache()


def step_ms(learners: dict, opts, steps: int, rounds: int = 2, before=lambda name: None) -> dict:
    "Return the ms of a step of each learner, by turns; medians over the rounds."
    found = {name: [] for name in learners}
    for number in range(rounds):
        for name in harness.rotated(list(learners), number):
            before(name)
            learners[name].run(steps=LOG_EVERY)
            found[name].append(1e3 * timed(lambda name=name: learners[name].run(steps=steps), opts)[0] / steps)
    return {name: statistics.median(times) for name, times in found.items()}


# --- the parts: each yields (what, {quantity: number}) as soon as it is measured -----------------------------------------------

def compare(kind: str, compiled: bool):
    "Return the part that measures the contenders by turns, in rounds."
    def part(opts):
        rows = {name: [] for name in CONTENDERS}
        for number in range(opts.rounds):
            for name in harness.rotated(list(CONTENDERS), number):
                if rows[name] and opts.late(): continue
                clock, before = Clock(opts), cuda().memory_allocated() / 2**30 if opts.device == "cuda" else 0
                loss = CONTENDERS[name](kind, compiled, opts, clock)
                forget(opts)
                rows[name].append({"s": clock.seconds / opts.steps, "memory": clock.memory, "loss": float(loss)})
                harness.say(f"  {name}: {rows[name][-1]}" + f", {before:.2f} GiB were still held" * (before > 0.01))
        samples = opts.size.batch * (1 if kind == "resnet" else opts.size.length)
        for name, found in rows.items():
            seconds = statistics.median(row["s"] for row in found)
            ratio = statistics.median(row["s"] / base["s"] for row, base in zip(found, rows["hand"]))
            memory = [max(column) for column in zip(*(row["memory"] for row in found))]
            yield LABELS[name], {"ms a step": 1e3 * seconds, "time of hand-written": ratio, "rate of hand-written": 1 / ratio,
                                 "samples/s" if kind == "resnet" else "tokens/s": samples / seconds,
                                 **dict(zip(("GiB allocated", "GiB reserved"), memory)), "loss": found[-1]["loss"], "rounds": len(found)}
    return part


def rewinding(opts):
    "Go back five steps from step 42, and thirty from step 120."
    for title, given in (("`rewind_every=10`", dict(rewind_every=10)), ("defaults", {})):
        learn = make_learner(opts, **given)
        for at, n in ((42, 5), (120, 30)):
            learn.run(steps=at - learn.state.global_step)
            seconds, report = timed(lambda n=n, learn=learn: learn.rewind(n), opts)
            yield f"`rewind({n})` at step {at}, {title}", {"steps replayed": report.replayed, "not the same": len(report.different), "s": seconds}
        del learn
        forget(opts)


def stalls(opts):
    "What snapshots cost a run: the largest stall of a step, and their share of the time."
    learners = {every: make_learner(opts, rewind_every=every, logging_steps=100) for every in (0, 10)}
    for every, learn in learners.items():
        learn.run(until=(times := StepTimes(opts, opts.warmup + 50, skip=opts.warmup)))
        yield f"50 steps, `rewind_every={every}`", times.describe() | {"snapshots": len(learn.run_state.parts.rewind_buffer.kept)}
    yield "`rewind_every=10`", share(step_ms(learners, opts, opts.steps))


def share(found: dict) -> dict:
    "Return the share of the time that the second of two ways takes more than the first."
    without, with_ = found.values()
    return {"% of the time": 100 * (with_ / without - 1), "ms a step without": without, "with": with_, "each tenth step, ms": 10 * (with_ - without)}


def logs(opts):
    "What a log each tenth step costs."
    learn = make_learner(opts, rewind_every=0)
    yield "`logging_steps=10`", share(step_ms({100: learn, 10: learn}, opts, 100, 1, lambda every: learn.set(logging_steps=every)))


def state_tensors(learn) -> dict:
    "Return the weights and the optimizer's tensors by name."
    import torch
    found = {name: p.detach() for name, p in learn.model.named_parameters()}
    for i, state in enumerate(learn.optimizer.state.values()):
        found |= {f"{i}.{key}": value for key, value in state.items() if isinstance(value, torch.Tensor)}
    return found


def snapshots(opts):
    "Take and restore a snapshot, three times."
    learn = make_learner(opts, rewind_every=0)
    learn.step(opts.warmup)
    gb = sum(t.nbytes for t in state_tensors(learn).values()) / 1e9
    taken = [timed(learn.snapshot, opts) for _ in range(3)]
    back = [timed(lambda kept=kept: learn.restore(kept), opts) for _, kept in taken]
    for verb, times in (("snapshot", taken), ("restore", back)):
        first, second, third = (seconds for seconds, _ in times)
        yield f"`{verb}()` of {gb:.2f} GB", {"first, s": first, "second, s": second, "third, s": third, "GB/s": gb / third}


def checkpoints(opts):
    "Write a checkpoint, beside the same tensors through safetensors; and in a run."
    from safetensors.torch import save_file
    learn = make_learner(opts, rewind_every=0)
    learn.step(opts.warmup)
    tensors = {name: tensor.clone() for name, tensor in state_tensors(learn).items()}
    gb = sum(t.nbytes for t in tensors.values()) / 1e9

    def plain(path):
        save_file(tensors, path)
        with open(path, "rb") as file: os.fsync(file.fileno())

    times = {"checkpoint": [], "plain": []}
    for number in range(3):
        folder = pathlib.Path(tempfile.mkdtemp(dir=opts.folder))
        times["plain"].append(timed(lambda folder=folder: plain(folder/"plain.safetensors"), opts)[0])
        times["checkpoint"].append(timed(lambda folder=folder: learn.save_checkpoint(folder/"ours"), opts)[0])
        (folder/"plain.safetensors").unlink()
    ours, by_hand_ = min(times["checkpoint"]), min(times["plain"])
    yield "`save_checkpoint()`", {"first, s": times["checkpoint"][0], "fastest, s": ours, "save_file and fsync, s": by_hand_,
                                  "ratio": ours / by_hand_, "GB/s": gb / ours}
    tensors, learn = None, None
    forget(opts)
    given = dict(save_strategy="steps", save_steps=20, save_total_limit=1, logging_steps=1000)
    clock = StepTimes(opts, 50, skip=10)
    make_learner(opts, rewind_every=0, **given).run(until=clock)
    yield "a checkpoint in a run", clock.describe()
    forget(opts)
    with_trainer("gpt2", False, opts, clock := StepTimes(opts, 30, skip=10), **given)
    yield "the same with the `Trainer`", clock.describe()


def watching(opts):
    "Measure all layers each tenth step."
    learn = make_learner(opts, rewind_every=0)
    acts = {"without": learn.unwatch, "with": lambda: learn.watch(every=10)}
    yield "`watch(every=10)`", share(step_ms(dict.fromkeys(acts, learn), opts, opts.steps, before=lambda name: acts[name]()))


def inspecting(opts):
    "Inspect a step, in steps."
    learn = make_learner(opts, rewind_every=0)
    learn.step(opts.warmup)
    step = timed(lambda: learn.run(steps=20), opts)[0] / 20
    times = [timed(learn.inspect, opts)[0] for _ in range(3)]
    yield "`inspect()`", {"first, s": times[0], "third, s": times[2], "steps": times[2] / step}


def searching(opts):
    "Search for a rate, in steps of the search."
    from torch.optim.optimizer import register_optimizer_step_post_hook
    learn, count = make_learner(opts, rewind_every=0), []
    learn.step(opts.warmup)
    step = timed(lambda: learn.run(steps=20), opts)[0] / 20
    for title, given in (("`lr_find(num_steps=50, trial_steps=0)`", dict(num_steps=50, trial_steps=0, stop_factor=None)), ("`lr_find()`", {})):
        hook = register_optimizer_step_post_hook(lambda *_: count.append(1))
        seconds, _ = timed(lambda given=given: learn.lr_find(**given), opts)
        hook.remove()
        yield title, {"s": seconds, "steps": len(count), "time of as many steps": seconds / (len(count) * step)}
        count.clear()


# In order of importance.
PARTS = {"compiled": compare("gpt2", True), "eager": compare("gpt2", False), "rewind": rewinding, "stalls": stalls, "snapshots": snapshots,
         "checkpoints": checkpoints, "watch": watching, "inspect": inspecting, "logs": logs, "lr_find": searching,
         "resnet": compare("resnet", False), "lora": compare("lora", False)}
TITLES = {"compiled": "GPT-2 124M, `torch_compile=True`", "eager": "GPT-2 124M, eager", "resnet": "ResNet-50, channels last", "lora": "LoRA on a Llama of a billion"}


def row(title: str, quantities: dict) -> list[str]:
    "Return a line of a table."
    return [title, ", ".join(f"{name} {value:,.0f}" if abs(value) >= 1000 else f"{name} {value:.3g}" for name, value in quantities.items())]


def tables(found: dict) -> dict:
    "Return the tables of a stored result by name."
    made = {part: f"{TITLES.get(part, part)}:\n\n" + harness.table(["", "measured"], [row(*item) for item in figures.items()])
            for part, figures in found["figures"].items()}
    return made | {"notes": "\n".join([harness.describe(found), *harness.missing_lines(found, {})])}


# --- the command line -----------------------------------------------------------------------------------------------------------

def main(argv=None):
    "Measure the parts one after the other; write what there is after each."
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    warnings.filterwarnings("ignore")
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS)[:-2])
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--model", choices=SIZES, default="gpt2", help="tiny: a rough look")
    p.add_argument("--quick", dest="model", action="store_const", const="tiny", help="the same as --model tiny")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--steps", type=int, default=40, help="steps that are timed in a round")
    p.add_argument("--warmup", type=int, default=8, help="steps before them")
    p.add_argument("--minutes", type=float, default=float("inf"), help="begin no part and no further round later than this")
    p.add_argument("--backend", default="inductor", help="of torch.compile")
    p.add_argument("--json", default=os.path.join(os.environ.get("OUT") or harness.RESULTS, "gpu.json"))
    opts = p.parse_args(argv)
    opts.quick, opts.size, begun = opts.model == "tiny", SIZES[opts.model], time.monotonic()
    opts.late = lambda: time.monotonic() - begun > 60 * opts.minutes
    found = harness.result("gpu", opts, ["parts", "model", "rounds", "steps", "warmup"], {}, {}, ["safetensors", "peft", "torchvision"])
    print(harness.describe(found) + "\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="gpu-") as opts.folder:
        for part in opts.parts:
            if opts.late(): found["left_out"][part] = "no time left"
            else: measure(part, opts, found)
            harness.write_json(opts.json, found)
    print()
    harness.print_result(found, tables(found))


def measure(part: str, opts, found: dict):
    "Measure one part, print each row of it at once, and keep it; a part that fails is named, with its error."
    harness.say(f"{part} ...")
    try:
        for title, quantities in PARTS[part](opts):
            print(f"| {part} | " + " | ".join(row(title, quantities)) + " |", flush=True)
            found["figures"].setdefault(part, {})[title] = quantities
    except Exception as error:
        traceback.print_exc()
        found["left_out"][part] = f"{type(error).__name__}: {error}".splitlines()[0]
    with contextlib.suppress(Exception): forget(opts)


if __name__ == "__main__": main()

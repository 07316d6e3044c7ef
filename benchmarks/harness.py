"""Measure contenders by turns in processes of their own, and store the figures: what the benchmarks share.

A benchmark is a script with a table of contenders. The script that the user starts directs the measurement; it starts
itself once more for each contender, as a worker, and the two exchange one line of JSON for each block of steps.

This module imports only the standard library at its top: the process that directs the measurement stays small, and a
worker imports what it measures.
"""
from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import importlib.metadata
import importlib.util
import json
import math
import os
import pathlib
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT/"benchmarks"/"results"
PACKAGES = ["torch", "accelerate", "transformers", "lightning", "datasets"]


class Missing(Exception):
    "A contender that cannot be measured here."


# --- inside a worker ---------------------------------------------------------------------------------------------------

def synchronize(device: str):
    "Wait until the device has done its work, so that a clock that is read next includes it."
    if device == "cpu": return
    import torch
    torch.cuda.synchronize()


class Blocks:
    """Time blocks of steps inside one training run.

    Between two blocks the process waits for its turn, so that others can be measured meanwhile: inside of a call
    after each step or, by a contender that uses `is_end` and `turn` itself, outside of its loop.
    """
    def __init__(self,
                 exchange: "Exchange",   # with the process that directs the measurement
                 warmup: int,            # steps before the first block
                 block: int,             # steps in a block
                 blocks: int,            # blocks to time; steps after the last one are not timed
                 device: str             # "cpu" or "cuda"
                ):
        self.exchange = exchange
        self.block = block
        self.blocks = blocks
        self.device = device
        self.left = warmup
        # None: still warming up.
        self.wall = None
        self.cpu = None

    def __call__(self):
        "Count a step; at the end of a block, report its time and wait for the next turn."
        if self.is_end(): self.turn()

    def is_end(self) -> bool:
        "Count a step; return whether a block ends with it. Then `turn` has to be called, before the next step."
        self.left -= 1
        return not self.left

    def turn(self):
        "Report the time of the block and wait for the next turn."
        synchronize(self.device)
        wall = time.perf_counter()
        cpu = time.process_time()
        if self.wall is None: self.exchange.answer({"ready": True})
        else: self.exchange.answer({"wall": (wall - self.wall) / self.block, "cpu": (cpu - self.cpu) / self.block})
        self.exchange.wait()
        if not self.blocks: return
        self.blocks -= 1
        self.left = self.block
        gc.collect()
        self.wall = time.perf_counter()
        self.cpu = time.process_time()


class EachStep:
    "Call a function after each step, where nothing is divided into blocks."
    def __init__(self, function: Callable[[], None]): self.function = function

    def __call__(self): self.function()

    def is_end(self) -> bool:
        "Count a step; return False: no block ends."
        self.function()
        return False


def run_in_blocks(learn, steps: int, clock: Blocks | EachStep):
    """Train a Learner of trainer_nb for some steps in all, with one call for each block. Between the calls, where the
    process waits, the run's own clock stands still: from it, the run knows how much time its snapshots may take."""
    while learn.state.global_step < steps:
        learn.run(until=lambda record: clock.is_end())
        if learn.state.global_step < steps: clock.turn()


class Exchange:
    "Answers on the process's standard output and waits on its standard input; other output goes to standard error."
    def __init__(self):
        self.pipe = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    def answer(self, row: dict): self.pipe.write(json.dumps(row) + "\n")

    def wait(self):
        "Wait for the word to go on; end the process if the director has gone."
        if not sys.stdin.readline(): os._exit(0)

    def answer_failure(self, error: Exception):
        "Answer with the reason why this contender cannot be measured."
        if isinstance(error, Missing): self.answer({"missing": str(error)})
        # An ImportError's message without the path in brackets.
        elif isinstance(error, ImportError): self.answer({"missing": error.msg.split(" (")[0]})
        else: self.answer({"error": "".join(traceback.format_exception(error))})


def train_by_turns(train: Callable, spec: dict, exchange: Exchange):
    "Train one work after the other: steps that warm up, timed blocks, and at the end the loss."
    import torch
    torch.set_num_threads(spec["threads"])
    for work in spec["works"]:
        exchange.wait()
        clock = Blocks(exchange, spec["warmup"], spec["block"], spec["blocks"], spec["device"])
        # One step more than the blocks have: the last block ends inside the run.
        steps = spec["warmup"] + spec["block"] * spec["blocks"] + 1
        try: loss = train(work, steps, clock, spec["device"])
        except Exception as error:
            exchange.answer_failure(error)
            continue
        exchange.answer({"loss": float(loss)})


def until_first_step(train: Callable, spec: dict, exchange: Exchange):
    "Answer with the moment at which the first step is done, and leave at once."
    import torch
    torch.set_num_threads(spec["threads"])
    def tick():
        synchronize(spec["device"])
        exchange.answer({"done": time.monotonic(), "cpu": time.process_time()})
        os._exit(0)
    train(spec["works"][0], 1_000, EachStep(tick), spec["device"])


def import_once(statement: str, exchange: Exchange):
    "Answer with the seconds that an import takes, and the most memory that this process has held, in MiB."
    start = time.perf_counter()
    cpu = time.process_time()
    exec(statement, {})
    wall = time.perf_counter() - start
    exchange.answer({"wall": wall, "cpu": time.process_time() - cpu, "peak": peak_memory()})


def serve(spec: dict, kinds: dict[str, Callable]):
    "Do what a worker's process is started for: `kinds` maps the kind in `spec` to a function of spec and exchange."
    exchange = Exchange()
    try: kinds[spec["kind"]](spec, exchange)
    except Exception as error: exchange.answer_failure(error)


def status_bytes(key: str) -> int:
    "Return a memory figure of this process from /proc/self/status, for example VmRSS or VmHWM, in bytes."
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) * 1024


def peak_memory() -> float:
    "Return this process's own peak in MiB. Linux: VmHWM, since `ru_maxrss` also counts what the parent held before exec."
    try: return status_bytes("VmHWM") / 2**20
    except (OSError, StopIteration):
        import resource
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


# --- directing ---------------------------------------------------------------------------------------------------------

def say(text: str): print(text, file=sys.stderr, flush=True)


def bind_to_one_core():
    "Bind the process to one core: the same for every contender."
    if hasattr(os, "sched_setaffinity"): os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


class Worker:
    "A contender in a process of its own, started at once."
    def __init__(self,
                 script: str,           # path of the benchmark
                 spec: dict,            # what the worker is to do: kind, name, works, ...
                 opts,                  # threads, device, one_core, verbose
                 env: dict | None = None   # further environment variables
                ):
        self.started = time.monotonic()
        spec = {"threads": opts.threads, "device": opts.device, **spec}
        self.process = subprocess.Popen([sys.executable, script, "--worker", json.dumps(spec)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=worker_environment(opts) | (env or {}),
                                        stderr=None if opts.verbose else subprocess.DEVNULL,
                                        preexec_fn=bind_to_one_core if opts.one_core else None)

    def read(self) -> dict:
        "Return the next answer; raise `Missing` if the contender cannot be run here."
        line = self.process.stdout.readline()
        row = json.loads(line) if line else {"error": f"its process ended with {self.process.wait()}"}
        if "missing" in row: raise Missing(row["missing"])
        if "error" in row: raise Missing(row["error"].strip().splitlines()[-1] + " (see --verbose)")
        return row

    def go(self) -> dict:
        "Let the worker have its turn and return its answer."
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        return self.read()

    def close(self):
        "End the process."
        with contextlib.suppress(BrokenPipeError): self.process.stdin.close()
        self.process.stdout.close()
        try: self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def python_path() -> str:
    "Return PYTHONPATH with this checkout in front: it is measured, not another one that is installed."
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def use_checkout():
    "Let processes and kernels that this one starts import the package of this checkout."
    os.environ["PYTHONPATH"] = python_path()


def worker_environment(opts) -> dict:
    "Return a worker's environment: its threads, no network, and byte code as an installed package has it."
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    env = os.environ | {"OMP_NUM_THREADS": str(opts.threads), "MKL_NUM_THREADS": str(opts.threads),
                        "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "ignore",
                        "CUDA_VISIBLE_DEVICES": given if opts.device == "cuda" else "",
                        "PYTHONPATH": python_path()}
    # pip compiles what it installs. A checkout has no byte code at first, or never where writing it is turned off.
    if opts.byte_code:
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        env["PYTHONPYCACHEPREFIX"] = opts.byte_code
    return env


@contextlib.contextmanager
def byte_code_folder(opts):
    "Keep the workers' byte code in a folder of its own while the block runs, so that the checkout is left as it is."
    opts.byte_code = tempfile.mkdtemp(prefix="bytecode-")
    try: yield
    finally:
        shutil.rmtree(opts.byte_code, ignore_errors=True)
        opts.byte_code = None


def rotated(names: list, turn: int) -> list:
    "Return the names in another order each turn, so that none always follows the same one."
    names = names[turn % len(names):] + names[:turn % len(names)]
    return names[::-1] if turn // len(names) % 2 else names


def measure_by_turns(script: str,        # path of the benchmark
                     names: list[str],   # the contenders
                     works: list[str],   # what each of them does, one after the other
                     opts,               # fresh, rounds, blocks, steps and those of a Worker
                     left_out: dict,     # gets the reason for each contender that cannot be measured
                     **more              # further entries of a worker's spec
                    ) -> dict:
    """Return, by work and contender, seconds per step (wall and processor) of each round, and the loss.

    In a round each contender does `blocks` blocks by turns; its time is their median. The processes are started anew
    `fresh` times with `rounds` rounds each: one process can be some percent faster than its twin for all its life.
    """
    found = {work: {name: {"wall": [], "cpu": [], "loss": None} for name in names} for work in works}
    begun = time.monotonic()
    for turn in range(opts.fresh):
        say(f"set of processes {turn + 1} of {opts.fresh}: {opts.rounds} rounds, {opts.blocks} x {opts.steps} steps each")
        workers = {}
        for name in names:
            todo = [work for work in works if key_of(name, work, works) not in left_out]
            spec = {"kind": "steps", "name": name, "works": todo, "block": opts.steps,
                    "warmup": opts.warmup or opts.steps, "blocks": opts.rounds * opts.blocks,
                    **more}
            if todo and name not in left_out: workers[name] = Worker(script, spec, opts)
        try:
            for work in works: one_work(workers, work, works, found[work], opts, turn, left_out)
        finally:
            for worker in workers.values(): worker.close()
        # As long as the former ones, another set would end too late; what is stored says how many there were.
        if opts.minutes and (time.monotonic() - begun) * (turn + 2) / (turn + 1) > 60 * opts.minutes: opts.fresh = turn + 1
        if turn + 1 == opts.fresh: break
    # Rounds are compared with each other: a contender that failed in one of them is left out of all.
    whole = opts.fresh * opts.rounds
    return {work: {name: row for name, row in rows.items() if len(row["wall"]) == whole and row["loss"] is not None}
            for work, rows in found.items()}


def key_of(name: str, work: str, works: list[str]) -> str:
    "Return the name by which a contender is left out: with its work where there are several."
    return f"{name}, {work}" if len(works) > 1 else name


def one_work(workers, work, works, rows, opts, turn, left_out):
    "Warm up, measure the rounds of one work, and read the losses."
    taking_part = [name for name in workers if key_of(name, work, works) not in left_out]

    def ask(name, key):
        "Return the worker's answer to one turn, or None if it failed."
        try: return workers[name].go()[key]
        except Missing as error:
            left_out[key_of(name, work, works)] = str(error)
            taking_part.remove(name)

    def timed(name):
        try: return workers[name].go()
        except Missing as error:
            left_out[key_of(name, work, works)] = str(error)
            taking_part.remove(name)

    for name in rotated(list(taking_part), turn) if taking_part else []: ask(name, "ready")
    for round_ in range(opts.rounds):
        times = {name: [] for name in taking_part}
        for block in range(opts.blocks):
            # Each round and each set of processes begins with another contender.
            order = rotated(list(taking_part), turn + round_ + block) if taking_part else []
            for name in order:
                row = timed(name)
                if row is not None: times[name].append(row)
        for name in taking_part:
            for key in ("wall", "cpu"): rows[name][key].append(statistics.median(row[key] for row in times[name]))
    for name in list(taking_part): rows[name]["loss"] = ask(name, "loss")


def measure_starts(script: str,        # path of the benchmark
                   kind: str,          # of worker: it answers once, with "wall" or with the moment "done"
                   names: list[str],   # the contenders
                   works: list[str],   # what is given to them
                   opts,               # those of a Worker
                   times: int,         # turns that count
                   left_out: dict,     # gets the reason for each contender that cannot be measured
                   warm: bool = True,  # take one turn before that does not count: it fills the caches, and writes byte code
                   env: Callable | None = None   # returns further environment variables of a contender
                  ) -> dict:
    "Start fresh processes by turns and return the answers of each turn by contender."
    say(f"{kind}: {times} fresh processes each")
    rows = {name: [] for name in names}
    for turn in range(times + warm):
        for name in rotated([n for n in names if n not in left_out], turn):
            worker = Worker(script, {"kind": kind, "name": name, "works": works}, opts, env and env(name))
            try:
                row = worker.read()
                if "done" in row: row["wall"] = row["done"] - worker.started
                if turn or not warm: rows[name].append(row)
            except Missing as error: left_out[name] = str(error)
            worker.close()
    return {name: answers for name, answers in rows.items() if len(answers) == times}


def without_byte_code(package: str, opts) -> dict:
    "Remove a package's byte code and return the variable that keeps Python from writing it again."
    spec = importlib.util.find_spec(package)
    for folder in spec.submodule_search_locations if spec else []:
        shutil.rmtree(pathlib.Path(opts.byte_code)/pathlib.Path(folder).resolve().relative_to("/"), ignore_errors=True)
    return {"PYTHONDONTWRITEBYTECODE": "1"}


# --- figures -------------------------------------------------------------------------------------------------------------

def median_with_interval(values, level: float = 0.95) -> dict:
    """Return the median with an interval that contains the true median with a probability of at least `level`.

    The interval goes from the k-th smallest to the k-th largest of n values: the true median lies outside with the
    probability 2 P(Bin(n, 1/2) < k), whatever the distribution. Fewer than six values give no interval at 95 %.
    """
    values = sorted(values)
    n = len(values)
    k = 0
    below = 1 / 2**n
    while 2 * below <= 1 - level:
        k += 1
        below += math.comb(n, k) / 2**n
    figure = {"median": statistics.median(values), "n": n}
    return figure | ({"low": values[k - 1], "high": values[n - k]} if k else {})


def quotients(above, below) -> dict:
    "Return the median of a / b, formed within each round, with its interval."
    return median_with_interval([a / b for a, b in zip(above, below)])


def with_interval(figure: dict | None, digits: int = 2, scale: float = 1, bold: bool = False) -> str:
    "Return `median (low to high)` as text; `median (n rounds)` where these are too few for an interval."
    if figure is None: return ""
    def number(value): return f"{value * scale:,.{digits}f}"
    middle = f"**{number(figure['median'])}**" if bold else number(figure["median"])
    if "low" not in figure: return f"{middle} ({figure['n']} round{'s' * (figure['n'] != 1)})"
    return f"{middle} ({number(figure['low'])} to {number(figure['high'])})"


def table(head: list[str], rows: list[list[str]]) -> str:
    "Return a Markdown table; all columns but the first are aligned to the right."
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def other_losses(rows: dict, base: str = "hand", within: float = 0.1) -> list[str]:
    "Return the contenders whose loss differs from that of `base` by more than 10 %: they cannot have done the same work."
    if base not in rows: return []
    return [name for name, row in rows.items() if not abs(row["loss"] / rows[base]["loss"] - 1) < within]


# --- what is stored ------------------------------------------------------------------------------------------------------

def package_version() -> str:
    "Return the version of the package in this checkout, which is the one that workers import."
    text = (ROOT/"trainer_nb"/"__init__.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "(.+)"', text, re.M)[1]


def machine(opts) -> dict:
    "Return the machine: no names of hosts, no paths."
    about = {"processor": processor(), "cores": os.cpu_count(), "system": platform.system()}
    if hasattr(opts, "threads"): about["threads"] = opts.threads
    if getattr(opts, "device", "cpu") == "cuda": about["gpu"] = gpu()
    return about


def processor() -> str:
    "Return the processor's model name."
    try: lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError: return platform.processor() or "unknown"
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def gpu() -> str:
    "Return the GPU's name."
    code = "import torch; print(torch.cuda.get_device_name())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() or "unknown"


def versions(more: list[str] | None = None) -> dict:
    "Return the versions of Python and of the packages that are installed."
    found = {"python": platform.python_version()}
    for name in [*PACKAGES, *(more or [])]:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError): found[name] = importlib.metadata.version(name)
    return found


def result(benchmark: str,             # name of the script
           opts,                       # the command line
           keys: list[str],            # options that belong to the figures
           figures: dict,              # the summary, without single measurements
           left_out: dict,             # why a contender is missing, by name
           packages: list[str] | None = None   # further packages whose versions belong to the figures
          ) -> dict:
    "Return what is stored of a measurement."
    return {"benchmark": benchmark, "package_version": package_version(), "date": datetime.date.today().isoformat(),
            "quick": opts.quick, "machine": machine(opts), "versions": versions(packages),
            "options": {key: getattr(opts, key) for key in keys}, "left_out": left_out, "figures": figures}


def stored_name(found: dict) -> str:
    "Return the name under which a result is stored and shown: that of the benchmark, with _cuda if a GPU was measured too."
    return found["benchmark"] + "_cuda" * ("gpu" in found["machine"] and found["benchmark"] != "gpu")


def write_json(path: str | None, found: dict):
    "Write a file of JSON, floats with six digits; without a path, nothing."
    if not path: return
    def shorter(value):
        if isinstance(value, dict): return {key: shorter(o) for key, o in value.items()}
        if isinstance(value, (list, tuple)): return [shorter(o) for o in value]
        return float(f"{value:.6g}") if isinstance(value, float) else value
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(shorter(found), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def describe(found: dict) -> str:
    "Return the machine, the versions and the date of a stored result as one sentence."
    about = found["machine"]
    parts = [about["processor"], f"{about['cores']} cores"]
    if "threads" in about: parts.append(f"{about['threads']} thread{'s' * (about['threads'] != 1)} used")
    if "gpu" in about: parts.append(about["gpu"])
    used = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return f"trainer_nb {found['package_version']}, {found['date']}; {', '.join(parts)}; {used}."


def missing_lines(found: dict, labels: dict) -> list[str]:
    "Return a sentence for each contender that was left out; `labels` maps names to rows of the table."
    lines = []
    for key, why in found["left_out"].items():
        name, _, work = key.partition(", ")
        where = f" ({work})" if work else ""
        lines.append(f"Left out: {labels.get(name, name)}{where}: {why}.")
    return lines


INTERVALS = ("Medians of the rounds' values, in brackets the 95 % interval of the median (from order statistics); "
             "a ratio is formed within a round.")


def print_result(found: dict, tables: dict):
    "Print the tables of a result; those that only the README shows are left out."
    for text in dict.fromkeys(text for name, text in tables.items() if name != "readme"): print(text + "\n")
    if found["quick"]: print("A rough look (--quick): these figures are not for the tables.")


# --- the command line ------------------------------------------------------------------------------------------------

def add_options(parser: argparse.ArgumentParser, contenders, baseline: str | None = "the hand-written loop"):
    "Add the options that all benchmarks share."
    parser.add_argument("--quick", action="store_true", help="few rounds: a rough look")
    always = f" ({baseline} is always measured)" if baseline else ""
    parser.add_argument("--only", nargs="+", choices=list(contenders), help=f"just these{always}")
    parser.add_argument("--json", metavar="FILE", help="write the summary to this file")
    parser.add_argument("--raw", metavar="FILE", help="write every single measurement to this file")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--verbose", action="store_true", help="show what the contenders write to standard error")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    parser.set_defaults(one_core=False, byte_code=None)


def add_rounds(parser: argparse.ArgumentParser, fresh: int, rounds: int, blocks: int, steps: int, warmup: int | None = None):
    "Add the options of a measurement by turns."
    parser.add_argument("--fresh", type=int, default=fresh, help="how often the contenders' processes are started anew")
    parser.add_argument("--rounds", type=int, default=rounds, help="rounds with each set of processes")
    parser.add_argument("--blocks", type=int, default=blocks, help="blocks of each contender in a round")
    parser.add_argument("--steps", type=int, default=steps, help="steps in a block")
    parser.add_argument("--warmup", type=int, default=warmup, help="steps before the first block; as many as a block has")
    parser.add_argument("--minutes", type=float, help="start no set of processes that would end later than this")


def in_turn(contenders, only: list[str] | None) -> list[str]:
    "Return the names of the contenders to measure, the hand-written loop included."
    return [name for name in contenders if not only or name in only or name == "hand"]

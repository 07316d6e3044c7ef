"""Measure what a run on two processes costs from a notebook: its start, one step on command, training, and coming home.

    python benchmarks/launching.py                     # about half an hour, on two cores
    python benchmarks/launching.py --quick             # a rough look
    python benchmarks/launching.py --parts start       # or: steps, home
    python benchmarks/launching.py --sizes 1 30 300    # models to bring home; 300 million parameters need 18 GB of memory
    python benchmarks/launching.py --parts steps --fresh 8 --works tiny   # processes started anew so many times
    python benchmarks/launching.py --parts steps --works "tiny, deepspeed" "ten milliseconds, deepspeed"

It stands beside DistributedDataParallel by hand, or fully_shard for the works that are sharded, or deepspeed.initialize (ZeRO 2), started the same way.
benchmarks/README.md describes how each figure is measured. Each measurement imports what it needs, in a process of its own.
"""
from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import harness

# features, width, layers, batch of a process; a work that ends in SHARDED is the same with FSDP, the model as one group, and one that ends in ZERO with DeepSpeed
WORKLOADS = {"tiny": (64, 192, 3, 32), "ten milliseconds": (512, 512, 6, 48)}
SHARDED, ZERO = ", sharded", ", deepspeed"
WORKLOADS |= {name + suffix: size for suffix in (SHARDED, ZERO) for name, size in WORKLOADS.items()}
CLASSES, ROWS, LR, CLIP, LOG_EVERY = 10, 19_200, 1e-3, 1.0, 500


# --- the work, the same for both -----------------------------------------------------------------------------------------

def make_model(work):
    "A perceptron; of `work` million parameters, where that is a number."
    import torch
    from torch import nn
    torch.manual_seed(0)
    if isinstance(work, int):
        width = 256 if work == 1 else 1024
        return nn.Sequential(*(nn.Linear(width, width) for _ in range(max(1, round(work * 1e6 / (width * width + width))))), nn.Linear(width, CLASSES))
    features, width, layers, _ = WORKLOADS[work]
    middle = [m for _ in range(layers - 2) for m in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(features, width), nn.ReLU(), *middle, nn.Linear(width, CLASSES))


def make_data(work):
    import torch
    features = (256 if work == 1 else 1024) if isinstance(work, int) else WORKLOADS[work][0]
    made = torch.Generator().manual_seed(1)
    x = torch.randn(64 if isinstance(work, int) else ROWS, features, generator=made)
    return torch.utils.data.TensorDataset(x, (x @ torch.randn(features, CLASSES, generator=made)).argmax(1))


def is_sharded(work): return str(work).endswith(SHARDED)


def is_zero(work): return str(work).endswith(ZERO)


def zero_config(work):
    "The configuration of DeepSpeed: the optimizer's state and the gradients are divided."
    return {"zero_optimization": {"stage": 2}, "gradient_clipping": CLIP, "train_micro_batch_size_per_gpu": batch_of(work)}


def batch_of(work): return 4 if isinstance(work, int) else WORKLOADS[work][3]


def make_learner(work, folder=None):
    "A learner for that work: fused AdamW, clipping, a linear schedule; its log is written, and its ring of snapshots kept, as they come."
    import torch
    from trainer_nb import Learner
    more = {"rewind_every": 0} if isinstance(work, int) else {"fsdp": True} if is_sharded(work) else {"deepspeed": zero_config(work)} if is_zero(work) else {}
    return Learner(make_model(work), train_dataset=make_data(work), loss_func=torch.nn.functional.cross_entropy, per_device_train_batch_size=batch_of(work),
                   max_steps=1_000_000, learning_rate=LR, weight_decay=0.0, optim="adamw_torch_fused", output_dir=folder, save_strategy="no",
                   use_cpu=True, disable_tqdm=True, **more)


def make_optimizer(model, work):
    "Return fused AdamW: for ZeRO, which exchanges each group of parameters on its own, with the two groups that the learner and the Trainer make."
    import torch
    groups = [[p for p in model.parameters() if p.ndim > 1], [p for p in model.parameters() if p.ndim <= 1]] if is_zero(work) else [list(model.parameters())]
    return torch.optim.AdamW([{"params": group} for group in groups], lr=LR, weight_decay=0.0, fused=True)


class ByHand:
    "A loop with DDP or FSDP as one writes it; every so often the mean loss is fetched."
    def __init__(self, work):
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader
        from torch.utils.data.distributed import DistributedSampler
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        if is_zero(work): self.model = make_model(work)
        elif is_sharded(work):
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard
            self.model = fully_shard(make_model(work), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        else: self.model = DistributedDataParallel(make_model(work))
        data = make_data(work)
        self.sampler = DistributedSampler(data)
        self.loader = DataLoader(data, batch_size=batch_of(work), sampler=self.sampler)
        self.optimizer = make_optimizer(self.model, work)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: max(0.0, 1 - step / 1_000_000))
        self.done, self.total, self.logged, self.loss_func = 0, torch.zeros(()), [], torch.nn.functional.cross_entropy
        self.endless, self.clip, self.dist = self.epochs(), torch.nn.utils.clip_grad_norm_, dist

    def epochs(self):
        epoch = 0
        while True:
            self.sampler.set_epoch(epoch)
            yield from self.loader
            epoch += 1

    def steps(self, n):
        "Take n steps."
        for _ in range(n):
            x, y = next(self.endless)
            loss = self.loss_func(self.model(x), y)
            loss.backward()
            norm = self.clip(self.model.parameters(), CLIP)
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
            self.total += loss.detach()
            self.done += 1
            if self.done % LOG_EVERY == 0:
                self.dist.all_reduce(self.total)
                self.logged.append((self.done, self.total.item() / LOG_EVERY / 2, getattr(norm, "full_tensor", lambda: norm)().item()))
                self.total.zero_()


class ZeroByHand(ByHand):
    "The same loop with the engine of DeepSpeed, which clips, updates, and advances the schedule."
    def __init__(self, work):
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        import deepspeed
        import deepspeed.ops
        import logging
        deepspeed.utils.logger.setLevel(logging.WARNING)
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False   # it would be compiled for half a minute
        super().__init__(work)
        deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
        self.engine, self.optimizer, _, self.schedule = deepspeed.initialize(model=self.model, optimizer=self.optimizer, lr_scheduler=self.schedule, config=zero_config(work))

    def steps(self, n):
        "Take n steps."
        for _ in range(n):
            x, y = next(self.endless)
            loss = self.loss_func(self.engine(x), y)
            self.engine.backward(loss)
            self.engine.step()
            self.total += loss.detach()
            self.done += 1
            if self.done % LOG_EVERY == 0:
                self.dist.all_reduce(self.total)
                self.logged.append((self.done, self.total.item() / LOG_EVERY / 2, float(self.engine.get_global_grad_norm())))
                self.total.zero_()


def by_hand(work): return (ZeroByHand if is_zero(work) else ByHand)(work)


# --- starting processes by hand ---------------------------------------------------------------------------------------------

def free_port():
    with socket.socket() as s:
        s.bind(("", 0))
        return s.getsockname()[1]


def by_notebook_launcher(f, *args):
    from accelerate import notebook_launcher
    notebook_launcher(f, args, num_processes=2, use_port=str(free_port()))


def by_elastic(f, *args):
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch
    elastic_launch(LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, rdzv_backend="static", rdzv_endpoint=f"127.0.0.1:{free_port()}",
                                rdzv_configs={"rank": 0}, run_id="none", max_restarts=0, start_method="spawn"), f)(*args)


def as_rank(rank, port, f, *args):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    f(*args)
    sys.stdout.flush()
    os._exit(0)   # now and then torch 2.13 aborts such a process when its interpreter ends


def by_spawn(f, *args):
    import torch.multiprocessing as mp
    mp.spawn(as_rank, (free_port(), f, *args), nprocs=2)


STARTERS = {"notebook_launcher": by_notebook_launcher, "elastic launcher": by_elastic, "mp.spawn": by_spawn}


# --- start: each in a fresh process; seconds until the first step is done: of the first launch, and after a step in the kernel ----

def first_step_by_hand(work, mark):
    "In each process: one step, its loss fetched."
    loop = ByHand(work)
    loop.steps(1)
    loop.total.item()
    if loop.rank == 0:
        with open(mark, "w") as file: file.write(repr(time.perf_counter()))   # the clock is the same in all processes
    loop.dist.destroy_process_group()


def start(who, folder):
    import torch
    torch.set_num_threads(1)
    found = []
    for number in range(2):
        if number: step_here(who)   # what a step imports is there then, for forks
        if who in STARTERS:
            mark, began = os.path.join(folder, f"mark-{number}"), time.perf_counter()
            STARTERS[who](first_step_by_hand, "tiny", mark)
            with open(mark) as file: found.append(float(file.read()) - began)
        else:
            learn = make_learner("tiny")   # as the cell before
            began = time.perf_counter()
            learn.launch(2, start=who.split()[-1], threads=1)
            launched = time.perf_counter() - began
            learn.step(1)
            found.append(time.perf_counter() - began)
            print(f"{who} {number}: launched after {launched:.2f} s, first step after {found[-1]:.2f} s", file=sys.stderr)
            learn.close()
    return found


def step_here(who):
    "A step in the kernel itself."
    import torch
    if who not in STARTERS: return make_learner("tiny").step(1)
    model, (x, y) = make_model("tiny"), make_data("tiny")[:32]
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


# --- steps: both stay, and work by turns --------------------------------------------------------------------------------------

def obey(address, do):  # do: gives seconds, of a command and a number of steps
    from multiprocessing.connection import Client
    with Client(address, "AF_UNIX") as line:
        line.send("ready")
        for command, n in iter(line.recv, None):
            gc.collect()
            line.send(do(command, n))


def steps_by_hand(work, address, profile=""):
    "In each process: the first hears how many steps are to be taken, and tells the others."
    import torch
    loop = by_hand(work)
    loop.steps(5)
    told = torch.zeros((), dtype=torch.long)
    def processor():
        both = torch.tensor(time.process_time(), dtype=torch.double)
        loop.dist.all_reduce(both)
        return both.item()
    def together(n):
        told.fill_(n)
        loop.dist.broadcast(told, 0)
        if not (n := int(told)): return 0, 0
        before, began = processor(), time.perf_counter()
        loop.steps(n)
        return (time.perf_counter() - began) / n, (processor() - before) / n
    if loop.rank == 0:
        obey(address, lambda command, n: together(n))
        together(0)
    else:
        while together(0) != (0, 0): pass
    loop.dist.destroy_process_group()


def steps(who, work, address, folder):
    "Of `run`, the seconds of a step and those of the processors, on average; of `step`, the seconds of each."
    if who == "by hand": return by_notebook_launcher(steps_by_hand, work, address)
    learn = make_learner(work, folder)
    with learn.launch(2, start="fork", threads=1):
        learn.step(5)
        def do(command, n):
            if command == "step": return [timed(lambda: learn.step(1)) for _ in range(n)]
            before = sum(learn.run_on_all(processor))
            seconds = timed(lambda: learn.run(steps=n)) / n
            return seconds, (sum(learn.run_on_all(processor)) - before) / n
        obey(address, do)
    learn.history.close_log()


def processor(learn): return time.process_time()


def timed(act):
    "Seconds that an action takes."
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def alternate(work, rounds, turn, seconds):
    "Return rounds in which both do the same number of steps, of about so many seconds, in changing order."
    from multiprocessing.connection import Listener
    folder = tempfile.mkdtemp()
    lines, processes, found = {}, {}, {"ours": [], "by hand": [], "by hand again": [], "step": []}
    try:
        for who in ("ours", "by hand"):
            address = os.path.join(folder, who.replace(" ", ""))
            with Listener(address, "AF_UNIX") as listener:
                processes[who] = begin("steps", who, work, address, folder)
                lines[who] = listener.accept()
            assert lines[who].recv() == "ready"
        def block(who, command, n):
            lines[who].send((command, n))
            return lines[who].recv()
        n = max(20, int(seconds / block("by hand", "run", 50)[0]))
        for who in ("ours", "by hand"): block(who, "run", n)   # warms up
        for number in range(rounds):
            order = ["ours", "by hand", "by hand again", "step"]
            for name in harness.rotated(order, turn + number):
                if name == "step": found["step"].append(statistics.median(block("ours", "step", 60)))
                else: found[name].append(block(name.removesuffix(" again"), "run", n))
        for line in lines.values(): line.send(None)
        for who, process in processes.items():
            if process.wait(60): sys.exit(f"{who} failed:\n{process.stderr.read()[-2000:]}")
    finally:
        for process in processes.values(): process.kill()
        shutil.rmtree(folder, ignore_errors=True)
    return found


# --- home ------------------------------------------------------------------------------------------------------------------------

class Memory:
    "The most that this process, those it has started, and the files in memory have taken together, beyond what they had."
    def __enter__(self):
        self.pids, self.done, self.start = [os.getpid(), *descendants(os.getpid())], threading.Event(), None
        self.start = self.most = self.now()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def now(self):
        disk = os.statvfs("/dev/shm")
        return sum(map(anonymous, self.pids)) + (disk.f_blocks - disk.f_bfree) * disk.f_frsize

    def watch(self):
        while not self.done.wait(0.005): self.most = max(self.most, self.now())

    def __exit__(self, *error):
        self.done.set()
        self.thread.join()
        self.extra = self.most - self.start


def anonymous(pid):
    "Bytes of its own that a process has in memory; 0 if it is gone."
    try:
        with open(f"/proc/{pid}/status") as file: return next((int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon")), 0)
    except OSError: return 0


def descendants(pid):
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/children") as file: children = [int(o) for o in file.read().split()]
        except OSError: continue
        found += [one for child in children for one in (child, *descendants(child))]
    return found


def home_ours(work, folder):
    learn = make_learner(work)
    learn.launch(2, start="fork", threads=1)
    learn.step(2)
    with Memory() as memory: seconds = timed(learn.close)
    assert learn.state.global_step == 2 and learn.optimizer.state
    return seconds, memory.extra


def home_by_hand_there(work, go, path):
    "In each process: two steps; when it is time, the first one writes all."
    import torch
    loop = ByHand(work)
    loop.steps(2)
    open(f"{go}-ready-{loop.rank}", "w").close()
    while not os.path.exists(go): time.sleep(0.001)
    if loop.rank == 0:
        torch.save({"model": loop.model.module.state_dict(), "optimizer": loop.optimizer.state_dict()}, path + ".part")
        os.rename(path + ".part", path)
    loop.dist.destroy_process_group()


def home_by_hand(work, folder):
    "A file in memory, read by the kernel into its own model and optimizer, and the end of the processes."
    import torch
    model = make_model(work)
    optimizer = make_optimizer(model, work)
    go, path = os.path.join(folder, "go"), f"/dev/shm/trainer_nb-bench-{os.getpid()}"
    launcher = threading.Thread(target=by_notebook_launcher, args=(home_by_hand_there, work, go, path))
    launcher.start()
    while not all(os.path.exists(f"{go}-ready-{rank}") for rank in range(2)): time.sleep(0.01)
    def bring():
        open(go, "w").close()
        while not os.path.exists(path): time.sleep(0.001)
        state = torch.load(path)
        os.unlink(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        launcher.join()
    with Memory() as memory: seconds = timed(bring)
    assert optimizer.state
    return seconds, memory.extra


def home(who, work, folder): return (home_ours if who == "ours" else home_by_hand)(work, folder)


# --- all together ----------------------------------------------------------------------------------------------------------------

PARTS = {"start": start, "steps": steps, "home": home}


def begin(part, *arguments):
    "A part, in a process of its own."
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "ignore"}
    return subprocess.Popen([sys.executable, __file__, "--one", json.dumps([part, *arguments])], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def measure(part, *arguments):
    folder = tempfile.mkdtemp()
    try:
        process = begin(part, *arguments, folder)
        out, err = process.communicate()
        if process.returncode: sys.exit(f"{part} {arguments} failed:\n{err[-2000:]}")
        if VERBOSE: print(err, file=sys.stderr)
        return json.loads(out.splitlines()[-1])
    finally: shutil.rmtree(folder, ignore_errors=True)


VERBOSE = False


def measure_start(rounds: int, raw: dict) -> dict:
    "Return the seconds to the first step: of the first launch in a kernel, and after a step in the kernel."
    names, found = ["ours, fork", "notebook_launcher", "ours, spawn", "elastic launcher", "mp.spawn"], {}
    for number in range(rounds):
        for name in harness.rotated(names, number): found.setdefault(name, []).append(measure("start", name))
    raw["start"] = found
    peer = {"ours, fork": "notebook_launcher", "ours, spawn": "elastic launcher"}
    figures = {}
    for name in names:
        figures[name] = {}
        for which, part in enumerate(("fresh", "later")):
            seconds = [row[which] for row in found[name]]
            figures[name][part] = {"s": harness.median_with_interval(seconds)}
            if name not in peer: continue
            figures[name][part]["ratio"] = harness.quotients(seconds, [row[which] for row in found[peer[name]]])
    return figures


def measure_steps(opts, raw: dict) -> dict:
    "Return, by work, the milliseconds of a step and the ratios to the loop by hand."
    figures, raw["steps"] = {}, {}
    for work in opts.works:
        found = raw["steps"][work] = {"ours": [], "by hand": [], "by hand again": [], "step": []}
        for turn in range(opts.fresh):
            harness.say(f"steps, {work}: set of processes {turn + 1} of {opts.fresh}")
            for name, values in alternate(work, opts.turns, turn, opts.seconds).items(): found[name] += values
        (ours, busy), (hand, hand_busy), (again, _) = (zip(*found[who]) for who in ("ours", "by hand", "by hand again"))
        beyond = [1000 * (step - run) for step, run in zip(found["step"], ours)]
        figures[work] = {"hand_ms": harness.median_with_interval([1000 * s for s in hand]),
                         "ours_ms": harness.median_with_interval([1000 * s for s in ours]),
                         "ratio": harness.quotients(ours, hand), "cpu_ratio": harness.quotients(busy, hand_busy),
                         "hand_ratio": harness.quotients(again, hand),
                         "step_beyond_ms": harness.median_with_interval(beyond)}
    return figures


def measure_home(sizes: list[int], rounds: int, raw: dict) -> dict:
    "Return, by size of the model, seconds and memory of coming home, by hand and ours."
    figures, raw["home"] = {}, {}
    for size in sizes:
        found = raw["home"][size] = {}
        for number in range(rounds if size < 100 else 2):
            for who in harness.rotated(["ours", "by hand"], number):
                found.setdefault(who, []).append(measure("home", who, size))
        (ours, more), (hand, hand_more) = (zip(*found[who]) for who in ("ours", "by hand"))
        state = 12e6 * size
        figures[str(size)] = {"ours_s": harness.median_with_interval(ours), "hand_s": harness.median_with_interval(hand),
                              "ratio": harness.quotients(ours, hand),
                              "ours_memory": harness.median_with_interval([m / state for m in more]),
                              "hand_memory": harness.median_with_interval([m / state for m in hand_more])}
    return figures


def tables(found: dict) -> dict:
    "Return the tables of a stored result by name."
    figures, made, text = found["figures"], {}, harness.with_interval
    if figures.get("start"):
        rows = [[name, *(text(row[part].get(key)) for part in ("fresh", "later") for key in ("s", "ratio"))]
                for name, row in figures["start"].items()]
        head = ["from the launch to the end of the first step, s", "a fresh kernel", "ratio",
                "after a step in the kernel", "ratio"]
        made["start"] = harness.table(head, rows)
    if figures.get("steps"):
        labels = {"ten milliseconds": "ten milliseconds and more"}
        rows = [[labels.get(work, work), text(row["hand_ms"]), text(row["ours_ms"]), text(row["ratio"], bold=True),
                 text(row["cpu_ratio"]), text(row["hand_ratio"]), text(row["step_beyond_ms"], 1)]
                for work, row in figures["steps"].items()]
        head = ["work", "a step by hand, ms", "ours, ms", "ratio", "in processor time", "by hand against itself",
                "`step(1)` beyond a step, ms"]
        made["steps"] = harness.table(head, rows)
    if figures.get("home"):
        rows = [[f"{size} M ({12 * int(size):,} MB)", text(row["ours_s"]), text(row["hand_s"]), text(row["ratio"]),
                 text(row["ours_memory"]), text(row["hand_memory"])] for size, row in figures["home"].items()]
        head = ["model (weights and optimizer)", "close(), s", "by a file in memory, s", "ratio",
                "memory besides, times the state", "by a file"]
        made["home"] = harness.table(head, rows)
    return made | {"notes": f"{harness.INTERVALS} Two processes of one thread each. {harness.describe(found)}"}


def main(argv=None):
    "Measure what was asked for and print the tables."
    global VERBOSE
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds: a rough look")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 30], help="millions of parameters")
    parser.add_argument("--rounds", type=int, default=8, help="of starts, and of coming home")
    parser.add_argument("--fresh", type=int, default=16, help="of the steps: so many times both are started anew")
    parser.add_argument("--turns", type=int, default=1, help="of the steps: rounds with each set of processes")
    parser.add_argument("--seconds", type=float, default=3.0, help="of the steps: length of a block")
    parser.add_argument("--works", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS), help="of the steps")
    parser.add_argument("--json", metavar="FILE", help="write the summary to this file")
    parser.add_argument("--raw", metavar="FILE", help="write every single measurement to this file")
    parser.add_argument("--verbose", action="store_true", help="show what the processes write to standard error")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    opts = parser.parse_args(argv)
    if opts.one:
        part, *arguments = json.loads(opts.one)
        return print(json.dumps(PARTS[part](*arguments)))
    if opts.quick: opts.rounds, opts.turns, opts.fresh = min(2, opts.rounds), min(6, opts.turns * opts.fresh), 1
    VERBOSE = opts.verbose
    harness.use_checkout()
    figures, raw = {}, {}
    if "start" in opts.parts: figures["start"] = measure_start(opts.rounds, raw)
    if "steps" in opts.parts: figures["steps"] = measure_steps(opts, raw)
    if "home" in opts.parts: figures["home"] = measure_home(opts.sizes, opts.rounds, raw)
    found = harness.result("launching", opts, ["rounds", "fresh", "turns", "seconds"], figures, {})
    harness.print_result(found, tables(found))
    harness.write_json(opts.json, found)
    harness.write_json(opts.raw, raw)


if __name__ == "__main__": main()

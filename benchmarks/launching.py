"""What a run on two processes costs from a notebook: its start, one step on command, training, and coming home; beside DDP by hand, started the same way.

    python benchmarks/launching.py                     # some ten minutes, on two cores
    python benchmarks/launching.py --parts start       # or: steps, home
    python benchmarks/launching.py --sizes 1 30 300    # models to bring home, in millions of parameters; 300 needs 30 GB of memory
    python benchmarks/launching.py --rounds 3          # a rough look
    python benchmarks/launching.py --parts steps --fresh 8   # start both so many times anew: a process is some percent faster than its twin for all its life

How each figure is measured is told in benchmarks/README.md. This file imports only the standard library at its top: each measurement imports what it
needs, in a process of its own.
"""
from __future__ import annotations

import argparse, gc, json, os, platform, shutil, socket, statistics, subprocess, sys, tempfile, threading, time

WORKLOADS = {"tiny": (64, 192, 3, 32), "ten milliseconds": (512, 512, 6, 48)}   # features, width, layers, batch of a process
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


def batch_of(work): return 4 if isinstance(work, int) else WORKLOADS[work][3]


def make_learner(work, folder=None):
    "A learner for that work: fused AdamW, clipping, a linear schedule; its log is written, and its ring of snapshots kept, as they come."
    import torch
    from trainer_nb import Learner
    more = {"rewind_every": 0} if isinstance(work, int) else {}
    return Learner(make_model(work), train_dataset=make_data(work), loss_func=torch.nn.functional.cross_entropy, per_device_train_batch_size=batch_of(work),
                   max_steps=1_000_000, learning_rate=LR, weight_decay=0.0, optim="adamw_torch_fused", output_dir=folder, save_strategy="no",
                   use_cpu=True, disable_tqdm=True, **more)


class ByHand:
    "A DDP loop as one writes it; every so often the mean loss is fetched."
    def __init__(self, work):
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader
        from torch.utils.data.distributed import DistributedSampler
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.rank, self.model = dist.get_rank(), DistributedDataParallel(make_model(work))
        data = make_data(work)
        self.sampler = DistributedSampler(data)
        self.loader = DataLoader(data, batch_size=batch_of(work), sampler=self.sampler)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LR, weight_decay=0.0, fused=True)
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
                self.logged.append((self.done, self.total.item() / LOG_EVERY / 2, norm.item()))
                self.total.zero_()


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
    loop = ByHand(work)
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


def alternate(work, rounds):
    "Rounds in which both do the same number of steps, in changing order."
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
        n = max(100, int(3 / block("by hand", "run", 50)[0]))
        for who in ("ours", "by hand"): block(who, "run", n)   # warms up
        for number in range(rounds):
            order = ["ours", "by hand", "by hand again", "step"]
            for name in order[number % 4:] + order[:number % 4]:
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
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0, fused=True)
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


def turned(order, number):
    number %= len(order)
    return order[number:] + order[:number]


def spread(values, form="{:.2f}"): return f"{form.format(statistics.median(values))} ({form.format(min(values))} to {form.format(max(values))})"
def ratios(ours, theirs): return spread([a / b for a, b in zip(ours, theirs)])
def table(head, rows): print("\n".join(["| " + " | ".join(r) + " |" for r in (head, ["---"] + ["---:"] * (len(head) - 1), *rows)]) + "\n", flush=True)


def show_start(rounds):
    names, found = ["ours, fork", "notebook_launcher", "ours, spawn", "elastic launcher", "mp.spawn"], {}
    for number in range(rounds):
        for name in turned(names, number): found.setdefault(name, []).append(measure("start", name))
    first, later = ({name: [o[which] for o in values] for name, values in found.items()} for which in (0, 1))
    peer = {"ours, fork": "notebook_launcher", "ours, spawn": "elastic launcher"}
    table(["from the launch to the end of the first step, s", "a fresh kernel", "ratio", "after a step in the kernel", "ratio"],
          [[name, spread(first[name]), ratios(first[name], first[peer[name]]) if name in peer else "", spread(later[name]),
            ratios(later[name], later[peer[name]]) if name in peer else ""] for name in names])
    return found


def show_steps(rounds, fresh, works):
    rows, everything = [], {}
    for work in works:
        everything[work] = found = {"ours": [], "by hand": [], "by hand again": [], "step": []}
        for _ in range(fresh):
            for name, values in alternate(work, rounds).items(): found[name] += values
        (ours, busy), (by_hand, hand_busy), (again, _) = (zip(*found[who]) for who in ("ours", "by hand", "by hand again"))
        rows.append([work, spread([1000 * s for s in by_hand]), spread([1000 * s for s in ours]), ratios(ours, by_hand), ratios(busy, hand_busy), ratios(again, by_hand),
                     spread([1000 * (step - run) for step, run in zip(found["step"], ours)])])
    table(["work", "a step by hand, ms", "ours, ms", "ratio", "in processor time", "by hand against itself", "step(1) beyond a step, ms"], rows)
    return everything


def show_home(sizes, rounds):
    rows, everything = [], {}
    for size in sizes:
        everything[size] = found = {}
        for number in range(rounds if size < 100 else 2):
            for who in turned(["ours", "by hand"], number): found.setdefault(who, []).append(measure("home", who, size))
        (ours, more), (theirs, their_more) = (zip(*found[who]) for who in ("ours", "by hand"))
        state = 12e6 * size
        rows.append([f"{size} M ({state / 1e6:,.0f} MB)", spread(ours), spread(theirs), ratios(ours, theirs), spread([m / state for m in more]), spread([m / state for m in their_more])])
    table(["model (weights and optimizer)", "close(), s", "by a file in memory, s", "ratio", "memory besides, times the state", "by a file"], rows)
    return everything


def main():
    global VERBOSE
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 30], help="millions of parameters")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--fresh", type=int, default=3, help="of the steps: so many times both are started anew")
    parser.add_argument("--works", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS), help="of the steps")
    parser.add_argument("--json", help="a file for every single measurement")
    parser.add_argument("--verbose", action="store_true", help="show what the processes say")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        part, *arguments = json.loads(options.one)
        return print(json.dumps(PARTS[part](*arguments)))
    VERBOSE, found = options.verbose, {}
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; two processes of one thread each.\n", flush=True)
    if "start" in options.parts: found["start"] = show_start(options.rounds)
    if "steps" in options.parts: found["steps"] = show_steps(options.rounds, options.fresh, options.works)
    if "home" in options.parts: found["home"] = show_home(options.sizes, options.rounds)
    if options.json:
        with open(options.json, "w") as file: json.dump(found, file)


if __name__ == "__main__": main()

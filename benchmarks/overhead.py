"""What it costs to let a tool hold the training loop: time per step, import, and time to the first step.

    python benchmarks/overhead.py              # everything, a few minutes on one core
    python benchmarks/overhead.py --quick      # a rough look
    python benchmarks/overhead.py --profile    # where trainer_nb's own step spends its time

Five contenders train the same small network on the same data: a loop written by hand, that loop with Accelerate,
transformers' Trainer, Lightning, and trainer_nb. How each figure is measured is told in benchmarks/README.md.

This file imports only the standard library at its top: the process that directs the measurement stays small,
and each contender imports just what it needs, in a process of its own.
"""
from __future__ import annotations

import argparse, gc, importlib.metadata, json, os, pathlib, platform, statistics, subprocess, sys, tempfile, time, traceback

# --- the task: one model, one data set, one recipe ------------------------------------------------------------------

BATCH, FEATURES, WIDTH, CLASSES = 32, 64, 192, 10
STEPS_PER_EPOCH = 300               # also the length of a timed block: each block crosses one end of an epoch
LR, CLIP, DECAY, LOG_EVERY = 1e-3, 1.0, 0.01, 50
NOISE = 0.2                         # this part of the labels is drawn at random: a loss that stays worth comparing
COMPARED = 1_500                    # the loss is compared over the epoch that ends with this step


def make_data():
    "A map-style dataset of dicts: `x` (FEATURES floats) and `labels` (one class number, by a linear rule with some noise)."
    import torch
    from torch.utils.data import Dataset

    class Samples(Dataset):
        def __init__(self, n):
            gen = torch.Generator().manual_seed(1)
            self.x = torch.randn(n, FEATURES, generator=gen)
            rule = (self.x @ torch.randn(FEATURES, CLASSES, generator=gen)).argmax(1)
            anything = torch.randint(CLASSES, (n,), generator=gen)
            self.labels = torch.where(torch.rand(n, generator=gen) < NOISE, anything, rule)
        def __len__(self): return len(self.x)
        def __getitem__(self, i): return {"x": self.x[i], "labels": self.labels[i]}

    return Samples(BATCH * STEPS_PER_EPOCH)


def make_model():
    "A three-layer perceptron that takes `x` and `labels` and returns its loss and logits, as the Trainer expects."
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
                                        nn.Linear(WIDTH, CLASSES))
        def forward(self, x=None, labels=None):
            logits = self.layers(x)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    torch.manual_seed(0)
    return Net()


def make_optimizer(model, steps):
    "Fused AdamW with weight decay on the matrices only (two groups, as the Trainer makes them), and a linear schedule."
    import torch
    weights = [p for p in model.parameters() if p.ndim > 1]
    biases = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": weights, "weight_decay": DECAY}, {"params": biases, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, fused=True)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))


# --- the contenders: each trains for `steps` steps, calls `tick()` after each, and returns the losses it logged ---------

def hand_written(steps, tick):
    "The loop as one writes it with torch alone."
    import torch
    from torch.utils.data import DataLoader
    model = make_model()
    optimizer, schedule = make_optimizer(model, steps)
    loader = DataLoader(make_data(), batch_size=BATCH, shuffle=True)
    rows, total, step = [], torch.zeros(()), 0
    model.train()
    while step < steps:
        for batch in loader:
            loss = model(**batch)["loss"]
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            lr = schedule.get_last_lr()[0]
            schedule.step()
            optimizer.zero_grad()
            total += loss.detach()
            step += 1
            if step % LOG_EVERY == 0:
                rows.append({"step": step, "loss": total.item() / LOG_EVERY, "grad_norm": norm.item(), "lr": lr})
                total.zero_()
            tick()
            if step == steps: break
    return [row["loss"] for row in rows]


def with_accelerate(steps, tick):
    "The same loop, prepared by Accelerate."
    import torch
    from accelerate import Accelerator
    from torch.utils.data import DataLoader
    accelerator = Accelerator(cpu=True)
    model = make_model()
    optimizer, schedule = make_optimizer(model, steps)
    loader = DataLoader(make_data(), batch_size=BATCH, shuffle=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    rows, total, step = [], torch.zeros((), device=accelerator.device), 0
    model.train()
    while step < steps:
        for batch in loader:
            loss = model(**batch)["loss"]
            accelerator.backward(loss)
            norm = accelerator.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            lr = schedule.get_last_lr()[0]
            schedule.step()
            optimizer.zero_grad()
            total += loss.detach()
            step += 1
            if step % LOG_EVERY == 0:
                rows.append({"step": step, "loss": total.item() / LOG_EVERY, "grad_norm": norm.item(), "lr": lr})
                total.zero_()
            tick()
            if step == steps: break
    return [row["loss"] for row in rows]


def settings(steps):
    "What the Trainer and trainer_nb are told; everything else is as they come."
    return dict(output_dir=tempfile.mkdtemp(), max_steps=steps, per_device_train_batch_size=BATCH, learning_rate=LR,
                weight_decay=DECAY, max_grad_norm=CLIP, lr_scheduler_type="linear", optim="adamw_torch_fused",
                logging_steps=LOG_EVERY, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
                dataloader_pin_memory=False)


def with_trainer(steps, tick):
    "transformers' Trainer, with its printing taken out."
    from torch.utils.data import default_collate
    from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

    class Tick(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs): tick()

    trainer = Trainer(make_model(), TrainingArguments(**settings(steps)), data_collator=default_collate,
                      train_dataset=make_data(), callbacks=[Tick()])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def with_lightning(steps, tick):
    "Lightning's Trainer: no checkpoints, no progress bar, a logger that keeps rows in a list."
    import lightning as L
    import torch
    from lightning.pytorch.loggers.logger import DummyLogger
    from torch.utils.data import DataLoader

    class Rows(DummyLogger):
        def __init__(self): super().__init__(); self.rows = []
        def log_metrics(self, metrics, step=None): self.rows.append({"step": step, **metrics})

    class Module(L.LightningModule):
        def __init__(self): super().__init__(); self.net, self.total = make_model(), torch.zeros(())
        def configure_optimizers(self):
            optimizer, schedule = make_optimizer(self.net, steps)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
        def training_step(self, batch, _):
            loss = self.net(**batch)["loss"]
            self.total += loss.detach()
            if (self.global_step + 1) % LOG_EVERY == 0:     # asked for only when it is due: the cheapest way
                self.log("loss", self.total / LOG_EVERY)
                self.total = torch.zeros(())
            return loss
        def on_train_batch_end(self, *_): tick()

    logger = Rows()
    trainer = L.Trainer(accelerator="cpu", devices=1, max_steps=steps, max_epochs=-1, logger=logger, log_every_n_steps=LOG_EVERY,
                        gradient_clip_val=CLIP, enable_checkpointing=False, enable_progress_bar=False,
                        enable_model_summary=False, default_root_dir=tempfile.mkdtemp())
    trainer.fit(Module(), DataLoader(make_data(), batch_size=BATCH, shuffle=True))
    return [row["loss"] for row in logger.rows if "loss" in row]


def with_trainer_nb(steps, tick):
    "trainer_nb's Learner, driven to the end by `train()`."
    from torch.utils.data import default_collate
    from trainer_nb import Learner, TrainerCallback

    class Tick(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs): tick()

    learn = Learner(make_model(), data_collator=default_collate, train_dataset=make_data(), callbacks=[Tick()],
                    **settings(steps))
    learn.train()
    return [row["loss"] for row in learn.state.log_history if "loss" in row]


# name -> (its row in the table, what trains, what one types to import it, the package it needs)
CONTENDERS = {
    "hand": ("hand-written loop", hand_written, "import torch", "torch"),
    "accelerate": ("Accelerate", with_accelerate, "import accelerate", "accelerate"),
    "transformers": ("transformers Trainer", with_trainer, "import transformers; from transformers import Trainer", "transformers"),
    "lightning": ("Lightning", with_lightning, "import lightning", "lightning"),
    "trainer_nb": ("trainer_nb", with_trainer_nb, "import trainer_nb", "trainer_nb"),
}


# --- inside a contender's process -----------------------------------------------------------------------------------

class Missing(Exception):
    "This contender cannot be measured here."


class Blocks:
    """Times blocks of steps inside one long training run.

    Between two blocks the process waits inside `tick` for the word to go on, so that others can be measured meanwhile.
    """
    def __init__(self, answer, warmup, block):
        self.answer, self.left, self.block = answer, warmup, block
        self.wall = self.cpu = None                                 # None: still warming up

    def tick(self):
        self.left -= 1
        if not self.left: self.boundary()

    def boundary(self):
        wall, cpu = time.perf_counter(), time.process_time()
        if self.wall is None: self.answer({"ready": True})
        else: self.answer({"wall": (wall - self.wall) / self.block, "cpu": (cpu - self.cpu) / self.block})
        if not sys.stdin.readline(): os._exit(0)                    # the director has gone
        self.left = self.block
        gc.collect()
        self.wall, self.cpu = time.perf_counter(), time.process_time()


def steps_worker(name, threads, block, rounds, answer):
    "Train one warm-up block and `rounds` timed ones, then answer with the loss that was logged for the compared epoch."
    import torch
    torch.set_num_threads(threads)
    clock = Blocks(answer, warmup=block, block=block)
    losses = CONTENDERS[name][1](block * (rounds + 1) + 1, clock.tick)  # one step more: the last block ends inside the run
    upto = COMPARED // LOG_EVERY
    answer({"loss": statistics.mean(float(loss) for loss in losses[:upto][-STEPS_PER_EPOCH // LOG_EVERY:])})


def first_worker(name, threads, _block, _rounds, answer):
    "Answer with the moment at which the first step is done, and leave at once."
    def tick():
        answer({"done": time.monotonic()})
        os._exit(0)
    import torch
    torch.set_num_threads(threads)
    CONTENDERS[name][1](STEPS_PER_EPOCH, tick)


def import_worker(name, _threads, _block, _rounds, answer):
    "Answer with how long the import took, in seconds, and the most memory that this process has held, in MiB."
    start = time.perf_counter()
    exec(CONTENDERS[name][2], {})
    answer({"wall": time.perf_counter() - start, "peak": peak_memory()})


def peak_memory():
    "The process's own peak in MiB. Linux: VmHWM, since `ru_maxrss` also counts what the parent held before exec."
    try:
        line = next(l for l in pathlib.Path("/proc/self/status").read_text().splitlines() if l.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    except (OSError, StopIteration):
        import resource
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


WORKERS = {"steps": steps_worker, "first": first_worker, "import": import_worker}


def work(kind, name, threads, block, rounds):
    "What a contender's process does: keep standard output for answers, send everything else to standard error."
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    def answer(row): pipe.write(json.dumps(row) + "\n"); pipe.flush()
    try: WORKERS[kind](name, threads, block, rounds, answer)
    except ImportError as error: answer({"missing": error.msg.split(" (")[0]})     # without the path
    except Exception: answer({"error": traceback.format_exc()})


# --- directing the measurement --------------------------------------------------------------------------------------

def one_core():
    "Bind the process to one core: the same for every contender."
    if hasattr(os, "sched_setaffinity"): os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


class Worker:
    "A contender in a process of its own, started at once."
    def __init__(self, kind, name, opts):
        self.name, self.started = name, time.monotonic()
        env = {**os.environ, "OMP_NUM_THREADS": str(opts.threads), "MKL_NUM_THREADS": str(opts.threads),
               "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, __file__, "--worker", kind, name, "--threads", str(opts.threads),
                   "--steps", str(opts.steps), "--rounds", str(opts.rounds)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
                                        stderr=None if opts.verbose else subprocess.DEVNULL,
                                        preexec_fn=one_core if opts.threads == 1 else None)

    def read(self):
        "The next answer; `Missing` if the contender cannot be run here."
        line = self.process.stdout.readline()
        row = json.loads(line) if line else {"error": f"its process ended with {self.process.wait()}"}
        if "missing" in row: raise Missing(row["missing"])
        if "error" in row: raise Missing(row["error"].strip().splitlines()[-1] + " (see --verbose)")
        return row

    def go(self):
        "One timed block."
        self.process.stdin.write("go\n"); self.process.stdin.flush()
        return self.read()

    def finish(self):
        "Let the run come to its end and return its last answer."
        row = self.go()
        self.close()
        return row

    def close(self):
        self.process.stdin.close(); self.process.stdout.close()
        try: self.process.wait(timeout=10)
        except subprocess.TimeoutExpired: self.process.kill(); self.process.wait()


def rotated(names, turn):
    "The names in another order each turn, so that none always follows the same one."
    names = names[turn % len(names):] + names[:turn % len(names)]
    return names[::-1] if turn // len(names) % 2 else names


def say(text): print(text, file=sys.stderr, flush=True)


def start_workers(names, opts, left_out):
    "One waiting process per contender, warmed up one after the other."
    workers = {}
    for name in names:
        worker = Worker("steps", name, opts)
        try: worker.read(); workers[name] = worker
        except Missing as error: left_out[name] = str(error); worker.close()
    return workers


def measure_steps(names, opts, left_out):
    """Per contender: seconds per step (wall and processor) of each round, and the loss of the compared epoch.

    The processes are started anew a few times: one process can be some percent faster than its twin, all its life.
    """
    rows = {name: {"wall": [], "cpu": [], "loss": None} for name in names}
    for turn in range(opts.fresh):
        say(f"steps: {opts.rounds} rounds of {opts.steps} steps, set of processes {turn + 1} of {opts.fresh}")
        workers = start_workers([name for name in names if name not in left_out], opts, left_out)
        for round_ in range(opts.rounds): one_round(workers, round_, rows, left_out)
        for name, worker in workers.items(): rows[name]["loss"] = worker.finish()["loss"]
    return {name: row for name, row in rows.items() if name not in left_out}


def one_round(workers, turn, rows, left_out):
    "One block of each contender; who fails is left out from then on."
    for name in rotated(list(workers), turn):
        try: row = workers[name].go()
        except Missing as error: left_out[name] = str(error); workers.pop(name).close(); continue
        for key in ("wall", "cpu"): rows[name][key].append(row[key])


def measure_starts(kind, names, opts, times, left_out):
    "Fresh processes, taking turns: per contender, the answers of each turn. The first turn only fills the disk's caches."
    say(f"{kind}: {times} fresh processes each")
    rows = {name: [] for name in names}
    for turn in range(times + 1):
        for name in rotated([n for n in names if n not in left_out], turn):
            worker = Worker(kind, name, opts)
            try:
                row = worker.read()
                if "done" in row: row["wall"] = row["done"] - worker.started
                if turn: rows[name].append(row)
            except Missing as error: left_out[name] = str(error)
            worker.close()
    return {name: answers for name, answers in rows.items() if answers}


# --- telling -----------------------------------------------------------------------------------------------------------

def quartiles(values):
    "Lower quartile, median, upper quartile."
    if len(values) < 2: return values[0], values[0], values[0]
    return tuple(statistics.quantiles(values, n=4, method="inclusive"))


def ratios(row, base, key="wall"):
    "A contender's time over the hand-written one's, round by round: smallest, median, largest."
    each = [a / b for a, b in zip(row[key], base[key])]
    return min(each), statistics.median(each), max(each)


def spread(values, scale, digits):
    "`median (lower quartile - upper quartile)`."
    low, mid, high = (f"{v * scale:.{digits}f}" for v in quartiles(values))
    return f"{mid} ({low} - {high})"


def facts(opts):
    "The machine and the versions: no names of hosts, no paths."
    def version(name):
        try: return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError: return None
    packages = ["torch", "accelerate", "transformers", "lightning", "trainer_nb"]
    return {"processor": processor(), "cores": os.cpu_count(), "threads": opts.threads, "system": platform.system(),
            "python": platform.python_version(), **{name: version(name) for name in packages if version(name)}}


def processor():
    "The processor's model name."
    try: lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError: return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def cells(name, result):
    "One row of the table."
    steps, base = result["steps"].get(name), result["steps"].get("hand")
    imports, first = result["imports"].get(name, []), result["first"].get(name, [])
    ratio = cpu = "-"
    if steps and base:
        low, mid, high = ratios(steps, base)
        ratio, cpu = f"{mid:.2f} ({low:.2f} - {high:.2f})", f"{ratios(steps, base, 'cpu')[1]:.2f}"
    return [CONTENDERS[name][0], spread(steps["wall"], 1e6, 0) if steps else "-", ratio, cpu,
            f"{steps['loss']:.3f}" if steps else "-",
            spread([r["wall"] for r in imports], 1, 2) if imports else "-",
            f"{statistics.median(r['peak'] for r in imports):.0f}" if imports else "-",
            spread([r["wall"] for r in first], 1, 2) if first else "-"]


def table(result):
    "The results in Markdown."
    head = ["", "step, µs", "of hand-written", "in processor time", "loss", "import, s", "peak after import, MiB",
            "start to first step, s"]
    names = [n for n in CONTENDERS if any(n in result[part] for part in ("steps", "imports", "first"))]
    rows = [head, ["---"] + ["---:"] * (len(head) - 1)] + [cells(name, result) for name in names]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def notes(result):
    "What the table needs to be read."
    about, opts = dict(result["facts"]), result["options"]
    machine = f"{about.pop('processor')}, {about.pop('cores')} cores, {about.pop('threads')} thread(s) used"
    lines = [f"{machine}; " + ", ".join(f"{key} {value}" for key, value in about.items()) + ".",
             f"Medians with quartiles; ratios round by round with the smallest and largest; loss: mean of steps "
             f"{COMPARED - STEPS_PER_EPOCH + 1:,} to {COMPARED:,}. {opts['fresh']} sets of processes, "
             f"{opts['rounds']} rounds of {opts['steps']} steps in each, "
             f"{opts['imports']} imports, {opts['starts']} starts each; the hand-written loop's import is `import torch`."]
    lines += [f"Left out: {CONTENDERS[name][0]}: {why}." for name, why in result["left_out"].items()]
    return "\n".join(lines + [f"NOT THE SAME WORK: {CONTENDERS[name][0]} has another loss than the hand-written loop."
                              for name in strangers(result["steps"])])


def strangers(steps, within=0.1):
    "The contenders whose loss is not the hand-written loop's within 10 %: they cannot have done the same work."
    base = steps.get("hand", {}).get("loss")
    return [name for name, row in steps.items() if base and not abs(row["loss"] / base - 1) < within]


def profile(name, opts):
    "Run one contender under cProfile and print where its time goes."
    import cProfile, pstats, torch
    torch.set_num_threads(opts.threads)
    steps, state = opts.steps * 3, {"left": opts.steps}
    profiler = cProfile.Profile()
    def tick():
        state["left"] -= 1
        if not state["left"]: profiler.enable()          # after a first block: no set-up, no first-time costs
    try: CONTENDERS[name][1](steps, tick)
    finally: profiler.disable()
    for order in ("tottime", "cumulative"): pstats.Stats(profiler).sort_stats(order).print_stats(opts.top)


def parse(argv):
    "The command line."
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--quick", action="store_true", help="few rounds: a rough look")
    p.add_argument("--only", nargs="+", choices=CONTENDERS, help="just these (the hand-written loop is always measured)")
    p.add_argument("--parts", nargs="+", choices=["steps", "imports", "first"], default=["steps", "imports", "first"])
    p.add_argument("--json", metavar="FILE", help="also write every single measurement to this file")
    p.add_argument("--fresh", type=int, default=4, help="how often the contenders' processes are started anew")
    p.add_argument("--rounds", type=int, default=10, help="timed blocks per contender in each set of processes")
    p.add_argument("--steps", type=int, default=STEPS_PER_EPOCH, help="steps in a block")
    p.add_argument("--imports", type=int, default=9, help="fresh interpreters per import")
    p.add_argument("--starts", type=int, default=7, help="fresh processes per first step")
    p.add_argument("--threads", type=int, default=1, help="torch's threads; with 1, every contender is bound to one core")
    p.add_argument("--verbose", action="store_true", help="show what the contenders write to standard error")
    p.add_argument("--profile", nargs="?", const="trainer_nb", choices=CONTENDERS, help="profile one contender and stop")
    p.add_argument("--top", type=int, default=40, help="lines of the profile")
    p.add_argument("--worker", nargs=2, metavar=("KIND", "NAME"), help=argparse.SUPPRESS)
    opts = p.parse_args(argv)
    if opts.quick: opts.fresh, opts.rounds, opts.imports, opts.starts = 1, 6, 3, 2
    return opts


def main(argv=None):
    "Measure what was asked for and print one table."
    opts = parse(argv)
    if opts.worker: return work(*opts.worker, opts.threads, opts.steps, opts.rounds)
    if opts.profile: return profile(opts.profile, opts)
    names = [n for n in CONTENDERS if not opts.only or n in opts.only or n == "hand"]
    left_out, result = {}, {"facts": facts(opts), "options": {k: getattr(opts, k) for k in ("fresh", "rounds", "steps", "imports", "starts")}}
    result["left_out"] = left_out
    result["steps"] = measure_steps(names, opts, left_out) if "steps" in opts.parts else {}
    names = [n for n in names if n not in left_out]
    result["imports"] = measure_starts("import", names, opts, opts.imports, left_out) if "imports" in opts.parts else {}
    result["first"] = measure_starts("first", names, opts, opts.starts, left_out) if "first" in opts.parts else {}
    print(table(result) + "\n\n" + notes(result))
    if opts.json: pathlib.Path(opts.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__": main()

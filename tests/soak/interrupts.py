"""Press the interrupt button thousands of times at random moments; after each press the process has to answer.

    python tests/soak/interrupts.py --presses 20000 --seed 1          # one process that trains, pressed from outside
    python tests/soak/interrupts.py --presses 2000 --seed 1 --kernel  # a Jupyter kernel, driven as Jupyter drives it

A round is one run: random settings (data workers, evaluations, checkpoints, a background thread), then cell after cell,
each pressed once to three times, until the run is finished. Its bytes must equal those of an undisturbed run. An answer
that takes longer than `--limit` seconds is a failure: the stacks of the process and of its data workers are saved in
build/soak/. Rounds are numbered and seeded; `progress-*.json` keeps the counts, and the next call continues there.
"""
import argparse, contextlib, faulthandler, hashlib, json, os, random, select, shutil, signal, subprocess, sys, tempfile, time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "soak"
MANY = 400   # cells of a round, at most
VERBS = ("train", "step", "run", "until", "steps", "loop", "evaluate", "start")


# ---- the side that trains ------------------------------------------------------------------------------------------------

def settings_of(seed: int) -> dict:
    "Draw the settings of a round."
    rng = random.Random(f"settings {seed}")
    workers = rng.choice([0, 2, 2])
    settings = {"dataloader_num_workers": workers, "dataloader_persistent_workers": workers > 0 and rng.random() < 0.7,
                "gradient_accumulation_steps": rng.choice([1, 3]), "eval_strategy": rng.choice(["no", "steps", "epoch"]),
                "eval_steps": 15, "logging_steps": rng.choice([1, 5]), "num_train_epochs": 12}
    saves = rng.random() < 0.3
    settings |= {"save_strategy": "steps" if saves else "no", "save_steps": 25, "save_total_limit": 1}
    return {"stream": rng.random() < 0.2, "delay": rng.choice([0, 0, 0.002]), "folder": saves or rng.random() < 0.3, "settings": settings}


class Round:
    "One run that is pressed, beside an undisturbed one."
    likes = {}

    def __init__(self, seed: int):
        self.seed, self.rng = seed, random.Random(f"cells {seed}")
        self.about = settings_of(seed)
        key = json.dumps(self.about, sort_keys=True)
        if key not in Round.likes:
            like = self.make()
            like.train()
            Round.likes = {key: self.digest(like)}
        self.like, self.learn, self.handle = Round.likes[key], self.make(), None

    def make(self):
        "A learner with dropout, BatchNorm, augmentation and shuffling."
        import torch
        from torch import nn
        from trainer_nb import Learner
        torch.set_num_threads(1)

        class Rows(torch.utils.data.Dataset):
            def __init__(self, n, delay=0.0):
                make = torch.Generator().manual_seed(n)
                self.x, self.y, self.delay = torch.randn(n, 6, generator=make), torch.randint(3, (n,), generator=make), delay
            def __len__(self): return len(self.x)
            def __getitem__(self, i):
                if self.delay: time.sleep(self.delay)
                return {"x": self.x[i] + 0.1 * torch.randn(6), "labels": self.y[i]}

        class Stream(torch.utils.data.IterableDataset):
            def __init__(self, rows): self.rows = rows
            def __iter__(self):
                info = torch.utils.data.get_worker_info()
                places = range(len(self.rows)) if info is None else range(info.id, len(self.rows), info.num_workers)
                return (self.rows[i] for i in places)

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
            def forward(self, x, labels=None):
                logits = self.body(x)
                return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

        torch.manual_seed(0)
        about, rows = self.about, Rows(48, self.about["delay"])
        settings = dict(about["settings"])
        if about["stream"]: settings |= {"max_steps": 12 * 48 // (4 * settings["gradient_accumulation_steps"])}
        folder = tempfile.mkdtemp(prefix="run-", dir=os.environ["SOAK_RUNS"]) if about["folder"] else None
        return Learner(Net(), train_dataset=Stream(rows) if about["stream"] else rows, eval_dataset=Rows(10), output_dir=folder,
                       per_device_train_batch_size=4, learning_rate=0.01, seed=3, use_cpu=True, disable_tqdm=True, **settings)

    def digest(self, learn) -> str:
        "What a run came to, as one short text."
        seen, history = hashlib.sha256(), learn.history
        for name, t in [*learn.model.named_parameters(), *learn.model.named_buffers()]:
            seen.update(name.encode() + t.detach().numpy().tobytes())
        for column in ("step", "loss", "grad_norm", "learning_rate", "samples"):
            seen.update(str(history.column(column).tolist()).encode())
        keep = [{k: v for k, v in e.items() if not k.endswith(("_runtime", "_per_second"))} for e in history.evaluations()]
        seen.update(str(keep).encode())
        return seen.hexdigest()[:16]

    @property
    def finished(self) -> bool:
        run = self.learn.run_state
        return run.finished and not run.due and (self.handle is None or not self.handle.training)

    def cell(self):
        "What one cell does; it may end by an interrupt anywhere."
        learn, rng = self.learn, self.rng
        if self.handle is not None and self.handle.training:
            what = rng.choice(["wait", "pause", "evaluate", "paused"])
            if what == "wait": self.handle.wait()
            elif what == "pause": self.handle.pause()
            elif what == "evaluate": learn.predict(learn.eval_dataset)
            else:
                with self.handle.paused(): learn.predict(learn.eval_dataset)
            return
        # the thread may have finished the run since the last look; train() would begin a new one
        if self.finished: return
        verb = rng.choice(VERBS)
        if verb == "train": learn.train()
        elif verb == "step": learn.step(100)
        elif verb == "run": learn.run(epochs=5)
        elif verb == "until": learn.run(until=lambda rec: rec.step % 60 == 0)
        elif verb == "steps":
            for _ in learn.steps(): pass
        elif verb == "loop":
            for _ in range(40):
                if self.finished: break
                learn.step()
        elif verb == "evaluate": learn.predict(learn.eval_dataset)
        elif not self.finished: self.handle = learn.start()

    def end(self) -> dict:
        "The end of a round: what differs from the undisturbed run."
        got = self.digest(self.learn)
        folder = self.learn.args.output_dir
        self.learn.free()
        if folder is not None: shutil.rmtree(folder, ignore_errors=True)
        return {"same": got == self.like, "steps": int(self.learn.state.global_step)}


def say(**about):
    "One line to the process that presses."
    os.write(LINE, (json.dumps(about) + "\n").encode())


LINE = 1   # the file that `say` writes to


def child():
    "Run the rounds that are asked for; the button is ignored between two cells, as in a kernel."
    global LINE
    LINE = os.dup(1)
    os.dup2(2, 1)   # what training prints goes elsewhere
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, file=open(os.environ["SOAK_STACKS"], "a"), all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    say(ready=True)
    for line in sys.stdin:
        round, cells = Round(int(line)), 0
        while not round.finished:
            cells += 1
            how = "ok"
            try:
                try:
                    signal.signal(signal.SIGINT, signal.default_int_handler)
                    say(cell=cells)
                    round.cell()
                except KeyboardInterrupt as error: how = type(error).__name__
                except Exception as error: how = f"{type(error).__name__}: {error}"
                finally: signal.signal(signal.SIGINT, signal.SIG_IGN)
            except KeyboardInterrupt: how = "late"
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            say(answered=how)
        say(**round.end(), about=round.about)


# ---- the side that presses -----------------------------------------------------------------------------------------------

class Gone(Exception):
    "The kernel has ended outside of the code under test."


class Late(Exception):
    "An answer took too long."


class Process:
    "A process that trains; lines come from it, presses go to it."
    def __init__(self, stacks: Path, runs: Path, limit: float):
        self.stacks, self.limit, self.rest = stacks, limit, b""
        env = os.environ | {"OMP_NUM_THREADS": "1", "SOAK_STACKS": str(stacks), "SOAK_RUNS": str(runs), "PYTHONWARNINGS": "ignore"}
        self.errors = open(stacks.with_suffix(".err"), "w")
        self.process = subprocess.Popen([sys.executable, __file__, "--child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                        env=env, start_new_session=True)
        self.pid = self.process.pid
        self.line(120)

    def line(self, limit=None) -> dict:
        "The next line; Late if there is none in time."
        end = time.monotonic() + (limit or self.limit)
        slow = None if limit else time.monotonic() + 4   # the stacks of slow answers are worth a look, too
        while b"\n" not in self.rest:
            ready, _, _ = select.select([self.process.stdout], [], [], max((slow or end) - time.monotonic(), 0))
            if not ready and slow is None: raise Late("no answer")
            if not ready:
                slow = None
                self.dump()
                continue
            got = os.read(self.process.stdout.fileno(), 1 << 16)
            if not got: raise Late(f"the process ended with {self.process.wait()}")
            self.rest += got
        line, self.rest = self.rest.split(b"\n", 1)
        return json.loads(line)

    def round(self, rng, seed: int, counts: dict):
        "One round: press each cell, until the run is finished."
        self.process.stdin.write(f"{seed}\n".encode())
        self.process.stdin.flush()
        line, cells = self.line(120), 0   # the undisturbed run comes first
        while "same" not in line:
            if (cells := cells + 1) > MANY: raise Late(f"the run is not finished after {MANY} cells: {counts['answers']}")
            times, began = rng.choice([1, 1, 2, 2, 3]), time.monotonic()
            time.sleep(rng.choice([0, 0.01, 0.05, 0.15]) * rng.random())
            for i in range(times):
                if i: time.sleep(rng.choice([0.0002, 0.002, 0.01, 0.05]) * rng.random())
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGINT) if rng.random() < 0.5 else os.kill(self.pid, signal.SIGINT)
                counts["presses"] += 1
            line = self.line()
            if "answered" in line:
                how = line["answered"]
                counts["answers"][how] = counts["answers"].get(how, 0) + 1
                counts["slowest"] = max(counts["slowest"], round(time.monotonic() - began, 2))
                line = self.line(60)
        if not line["same"]: counts["different"].append(seed)
        counts["rounds"] += 1

    def dump(self):
        "Have the stacks of the process and of its workers written."
        for pid in [self.pid, *children(self.pid)]:
            with contextlib.suppress(ProcessLookupError): os.kill(pid, signal.SIGUSR1)
            time.sleep(0.3)

    def close(self):
        with contextlib.suppress(ProcessLookupError): os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()


def children(pid: int) -> list[int]:
    "The processes that a process has started."
    try: return [int(p) for task in Path(f"/proc/{pid}/task").iterdir() for p in (task / "children").read_text().split()]
    except OSError: return []




def main():
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("--presses", type=int, default=2000, help="how many presses in all, with those of earlier calls")
    ask.add_argument("--seed", type=int, default=1)
    ask.add_argument("--limit", type=float, default=20, help="seconds that an answer may take")
    ask.add_argument("--minutes", type=float, default=1e9, help="stop after this time; the next call continues")
    ask.add_argument("--kernel", action="store_true", help="press a Jupyter kernel")
    ask.add_argument("--round", type=int, help="only this round, again")
    ask.add_argument("--burner", action="store_true", help="keep one core busy meanwhile")
    ask.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    asked = ask.parse_args()
    if asked.child: return child()
    FOLDER.mkdir(parents=True, exist_ok=True)
    kind = "kernel" if asked.kernel else "process"
    progress = FOLDER / f"progress-{kind}-{asked.seed}.json"
    counts = json.loads(progress.read_text()) if progress.exists() and asked.round is None else \
        {"presses": 0, "rounds": 0, "next": 0, "slowest": 0, "answers": {}, "late": [], "different": [], "gone": 0}
    runs = Path(tempfile.mkdtemp(prefix="soak-"))
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if asked.burner else None
    start, process, end = Process, None, time.monotonic() + 60 * asked.minutes
    if asked.kernel:
        sys.modules["interrupts"] = sys.modules["__main__"]   # what kernel.py imports
        from kernel import Kernel as start
    try:
        while counts["presses"] < asked.presses and time.monotonic() < end:
            number = counts["next"] if asked.round is None else asked.round
            stacks = FOLDER / f"{kind}-{asked.seed}-{number}.txt"
            if process is None: process = start(stacks, runs, asked.limit)
            counts["next"] += 1
            try: process.round(random.Random(f"presses {asked.seed} {number}"), asked.seed * 10**6 + number, counts)
            except Gone as error:
                counts["gone"] += 1
                print(f"round {number}: {error}; another kernel goes on", flush=True)
                process.close()
                process = None
            except Late as error:
                process.dump()
                counts["late"].append([number, str(error), str(process.stacks)])
                print(f"round {number}: {error}; the stacks are in {process.stacks}", flush=True)
                process.close()
                process = None
            progress.write_text(json.dumps(counts))
            print(f"{kind}: {counts['presses']} presses, {counts['rounds']} rounds, slowest answer {counts['slowest']} s, "
                  f"{len(counts['late'])} late, {len(counts['different'])} different" + f", {counts['gone']} gone" * bool(counts["gone"]), flush=True)
            if asked.round is not None: break
    finally:
        if process is not None: process.close()
        if burner is not None: burner.kill()
        shutil.rmtree(runs, ignore_errors=True)
    print(f"{counts['answers']}")
    sys.exit(bool(counts["late"] or counts["different"]))


if __name__ == "__main__": main()

"""What a program of the yardstick records: every value of a run as a flat dict of names and short texts.

Run as a script it runs programs, each in a forked process, and writes what they recorded:
    python recording.py OUT.json NAME ...
"""
import hashlib, json, numbers, os, random, shutil, sys, tempfile, time, traceback
from pathlib import Path

import numpy as np
import torch

SECONDS = 240
# Names of values that depend on the clock, on the machine's memory, or on a random name.
CLOCKS = ("runtime", "per_second", "seconds", "time", "run_id", "run_name", "logging_dir", "memory")
# Files of the Trainer's layout that hold nothing of the Trainer's: they may be replaced by others.
OWN_FILES = ("rest.json", "rest.safetensors", "manifest.json", "training_args.json")


def is_clock(name): return str(name).endswith(CLOCKS)


def text_of(value):
    "A leaf as a short text that is equal only for equal bytes."
    if isinstance(value, torch.Tensor):
        data = value.detach().cpu().contiguous().reshape(-1)
        return f"{value.dtype} {list(value.shape)} {digest(data.view(torch.uint8).numpy().tobytes())}"
    if isinstance(value, np.ndarray): return f"{value.dtype} {list(value.shape)} {digest(value.tobytes())}"
    if isinstance(value, (bool, np.bool_, type(None), str, int)): return str(value)
    if isinstance(value, np.generic): return f"{value.dtype} {value.tobytes().hex()}"
    if isinstance(value, numbers.Real): return float(value).hex()
    if isinstance(value, bytes): return digest(value)
    return type(value).__name__


def digest(data): return hashlib.sha256(data).hexdigest()[:16]


def flat(name, value, out):
    "Write a tree of values into `out`, one entry for each leaf."
    if isinstance(value, dict):
        for key, item in value.items():
            if not is_clock(key): flat(f"{name}.{key}", item, out)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value): flat(f"{name}.{number}", item, out)
    else: out[name] = text_of(value)
    return out


def look(learn):
    "Everything of a run that public names show: weights, optimizer, schedule, history, logs, state, generators."
    model = getattr(learn.model, "module", learn.model)
    optimizer, schedule = learn.optimizer, learn.lr_scheduler
    state = {k: v for k, v in vars(learn.state).items() if k not in ("log_history", "stateful_callbacks")}
    if learn.state.best_model_checkpoint: state["best_model_checkpoint"] = Path(learn.state.best_model_checkpoint).name
    # how many steps a rewind repeats depends on the snapshots that there are
    rows = [{k: v for k, v in r.as_dict().items() if not is_clock(k)} for r in learn.history if not r.abandoned]
    return {
        "weights": dict(model.state_dict()), "buffers": dict(model.named_buffers()),
        "trained": {n: p.requires_grad for n, p in model.named_parameters()},
        "modes": digest(str([m.training for m in model.modules()]).encode()),
        "optimizer": None if optimizer is None else optimizer.state_dict(),
        "rates": None if schedule is None else list(schedule.get_last_lr()),
        "history": {name: digest("".join(text_of(r[name]) for r in rows).encode()) for name in (rows[0] if rows else ()) if name != "metrics"},
        "metrics": [r["metrics"] for r in rows],
        "losses": [r["loss"] for r in rows], "logs": learn.state.log_history,
        "evaluations": learn.history.evaluations(), "acts": [row["act"] for row in learn.journal if not row["abandoned"]],
        "state": state, "generators": generators(),
    }


def generators():
    "The global generators, as notebooks draw from them."
    return {"torch": torch.get_rng_state(), "numpy": repr(np.random.get_state()), "python": repr(random.getstate())}


def files(folder):
    "Names of a folder's files, and what is in those of the Trainer's layout."
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        name = str(path.relative_to(folder))
        if not path.is_file() or path.name in OWN_FILES or path.suffix == ".jsonl": continue
        if path.name == "trainer_state.json": found[name] = json.loads(path.read_text())
        elif path.suffix in (".pt", ".pth"): found[name] = torch.load(path, weights_only=False)
        elif path.suffix == ".safetensors": found[name] = parts_of(path.read_bytes())
        else: found[name] = digest(path.read_bytes())
        if path.name == "trainer_state.json" and found[name]["best_model_checkpoint"]:
            found[name]["best_model_checkpoint"] = Path(found[name]["best_model_checkpoint"]).name
    return found


def parts_of(data):
    "The header of a safetensors file, whose metadata have no order, and a digest of its tensors."
    end = 8 + int.from_bytes(data[:8], "little")
    return {"header": digest(json.dumps(json.loads(data[8:end]), sort_keys=True).encode()), "data": digest(data[end:])}


class Notes(dict):
    "What a program records: `note(name, value)`; a learner is looked at."
    def __call__(self, name, value):
        if hasattr(value, "run_state"): value = look(value)
        elif isinstance(value, Path): value = files(value)
        flat(name, value, self)


def run_one(program, out):
    "Run a program in a folder of its own and write its notes; in a forked process."
    os.chdir(tempfile.mkdtemp(dir=out.parent))
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    notes = Notes()
    try: program(notes)
    except BaseException as error:
        notes["FAILED"] = f"{type(error).__name__}: {str(error)[:300]}"
        traceback.print_exc()
    out.write_text(json.dumps(notes))


def run_forked(program, folder, seconds=SECONDS):
    "The notes of a program that runs in a forked process."
    out = folder/f"{program.__name__}.json"
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        log = os.open(out.with_suffix(".log"), os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1), os.dup2(log, 2)
        run_one(program, out)
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(0)
    end = time.monotonic() + seconds
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if time.monotonic() > end:
            os.killpg(pid, 9), os.waitpid(pid, 0)
            return {"FAILED": f"it ran for more than {seconds} s"}
        time.sleep(0.01)
    return json.loads(out.read_text()) if out.exists() else {"FAILED": "the process died"}


def main(out, *names):
    # imported once, and not in each program
    import accelerate, programs  # noqa: F401
    torch.set_num_threads(1)
    folder, found = Path(tempfile.mkdtemp()), {}
    try:
        for name in names:
            start = time.monotonic()
            found[name] = run_forked(programs.PROGRAMS[name], folder)
            print(f"{name:24s} {time.monotonic() - start:5.1f} s  {len(found[name])} values", flush=True)
            if "FAILED" in found[name]: print((folder/f"{name}.log").read_text()[-700:], flush=True)
    finally: shutil.rmtree(folder)
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__": main(*sys.argv[1:])

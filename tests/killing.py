"""Trains in children that are killed at random moments, until one comes to the end: `python killing.py FOLDER CASE SEED KILLS`.

The process itself only forks and kills, so a life costs little more than its training. Run after run is begun until there were so many kills. For
each run a line of JSON: how often it was killed, at which steps the lives began, and whether it ended as the undisturbed run did."""
import hashlib, json, os, random, re, shutil, signal, sys, time, traceback, warnings
from pathlib import Path

import torch
from torch.utils.data import IterableDataset

from toys import Augmented, accuracy, hard_learner, outcome


class Stream(IterableDataset):
    "Augmented samples in a stream, shared out among the workers."
    def __init__(self): self.data = Augmented(30)
    def __len__(self): return 30
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        yield from (self.data[i] for i in range(info.id if info else 0, 30, info.num_workers if info else 1))


EVALUATED = dict(eval_dataset=Augmented(9), compute_metrics=accuracy, eval_strategy="steps", eval_steps=5)
CASES = {   # dropout, BatchNorm, shuffling, augmentation, accumulation over 3 and a partial last window are in all of them
    "plain": EVALUATED,
    "workers": dict(dataloader_num_workers=2),
    "stream": dict(train_dataset=Stream()),
    "rewinds": dict(rewind_every=2, save_total_limit=3),
    "best": EVALUATED | dict(load_best_model_at_end=True, save_total_limit=2, optim="sgd", optim_args="momentum=0.9", rollback="full"),
}
LONG = dict(num_train_epochs=10, logging_steps=4, save_steps=2)   # 30 steps


def came_to(learn) -> dict:
    "What has to be equal, in digests: each tensor, the values, the rows, what was logged and evaluated."
    last, rows, logged = outcome(learn)
    tensors = {n: hashlib.sha256(bytes(t.contiguous().reshape(-1).view(torch.uint8).tolist())).hexdigest() for n, t in last.tensors.items()}
    values = {k: repr(last.values[k]) for k in ("lr_scheduler", "optimizer", "cursor", "samples", "logged", "finished", "batches_in_epoch")}
    kept = [(e["kind"], e["step"], {k: v for k, v in e["data"].items() if not k.endswith(("runtime", "per_second"))}) for e in learn.history.events
            if e["kind"] in ("evaluate", "log") and not e["abandoned"]]
    return {"tensors": tensors, "values": values, "rows": {k: v.hex() for k, v in rows.items()}, "logged": logged, "events": kept,
            "best": [learn.state.best_metric, learn.state.best_global_step]}


def live(folder: Path, case):
    "One life: resume what there is, and train to the end. What it came to is written last."
    learn = hard_learner(**LONG | CASES[case], output_dir=str(folder))
    resume = any(re.fullmatch(r"checkpoint-\d+", p.name) for p in folder.glob("*"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")   # about folders that were not written to their end
        if resume: resume = learn.load_checkpoint() or True
        with open(folder.with_suffix(".lives"), "a") as f: f.write(f"{learn.state.global_step}\n")
        while case == "rewinds" and learn.state.global_step < 25:   # two steps forward for each step back
            learn.step(4)
            learn.rewind(2)
        learn.train()
    folder.with_suffix(".tmp").write_text(json.dumps(came_to(learn)))
    folder.with_suffix(".tmp").rename(folder.with_suffix(".end"))


def child(folder, case) -> int:
    "A process that lives; its id."
    if pid := os.fork(): return pid
    try: live(folder, case)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def last_life(folder):
    "At which step the last life began; None before the first."
    path = folder.with_suffix(".lives")
    return path.read_text().split()[-1:] if path.is_file() else None


def run(folder: Path, case, draw, pace: float) -> dict:  # pace: seconds that the undisturbed run took
    "Train in lives that end by a signal."
    kills, patience, begun = 0, 1.0, None
    while True:
        pid, limit = child(folder, case), time.monotonic() + draw.choice([draw.uniform(0, 0.1), draw.uniform(0.05, 0.35)]) * pace * patience
        while time.monotonic() < limit and not (ended := os.waitpid(pid, os.WNOHANG))[0]: time.sleep(0.0005)
        if not ended[0]:
            os.kill(pid, signal.SIGKILL)
            ended, kills = os.waitpid(pid, 0), kills + 1
            begun, before = last_life(folder), begun
            patience = 1.0 if begun != before else patience * 1.05   # the machine may be slower now than it was for the undisturbed run
        if os.waitstatus_to_exitcode(ended[1]) == 0: break
        if os.waitstatus_to_exitcode(ended[1]) == 1: sys.exit("a life has failed")
    lives = [int(o) for o in folder.with_suffix(".lives").read_text().split()]
    return {"kills": kills, "lives": lives, "end": json.loads(folder.with_suffix(".end").read_text())}


def main(folder, case, seed, kills):
    torch.set_num_threads(1)
    folder, draw, killed, begun_at = Path(folder), random.Random(int(seed)), 0, set()
    places = 8 if int(kills) > 100 else 3   # lives are to go on from more places than these
    folder.mkdir(parents=True, exist_ok=True)
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)])          # what the first optimizer imports, once for all lives
    import accelerate, safetensors.torch   # noqa: F401
    begun = time.monotonic()
    os.waitpid(child(folder / "like", case), 0)
    pace, like = time.monotonic() - begun, json.loads((folder / "like.end").read_text())
    for number in range(1000):
        found = run(folder / f"run{number}", case, draw, pace)
        different = [k for k in like if like[k] != found["end"][k]]
        print(json.dumps({"kills": found["kills"], "lives": found["lives"], "different": different}), flush=True)
        if different: sys.exit(f"not the same: {different}")
        shutil.rmtree(folder / f"run{number}")
        killed, begun_at = killed + found["kills"], begun_at | set(found["lives"])
        if killed >= int(kills) and len(begun_at) > places: return


if __name__ == "__main__": main(*sys.argv[1:])

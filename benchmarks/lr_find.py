"""Compare the learning rate that lr_find() suggests with the best one of a grid, by training with both.

    python benchmarks/lr_find.py                    # all ten tasks
    python benchmarks/lr_find.py --tasks develop    # those with which the rule was made; or: final
    python benchmarks/lr_find.py --only digits      # one task
    python benchmarks/lr_find.py --quick            # two tasks, one seed
    python benchmarks/lr_find.py --cache FOLDER     # keep each training's result there, and go on from it

benchmarks/README.md describes how it is measured, lr_tasks.py the tasks.
"""
from __future__ import annotations

import argparse
import hashlib
import json
import math
import pathlib
import statistics
import warnings

import harness

# rates of the grid: 10 ** (k / 2), from the first k to the last; it is extended while its best rate is at an end
GRIDS = {"adamw": (-8, -2), "sgd": (-5, 1)}
OPTIMIZERS = {"adamw": {"optim": "adamw_torch"}, "sgd": {"optim": "sgd"}}
LABELS = {"adamw": "AdamW", "sgd": "SGD"}
WIDEST = (-12, 4)
RULES = ["suggestion", "valley"]
# targets: the median over seeds, and each seed
WITHIN, NEVER = 1.1, 1.5


def make_learner(task, optimizer: str, seed: int, **settings):
    "Return a learner for a task; all settings that are not about the task are the package's."
    import torch
    from trainer_nb import Learner, PrinterCallback
    train, evaluation = task.data()
    torch.manual_seed(seed)
    model = task.model()
    learn = Learner(model, train_dataset=train, eval_dataset=evaluation, loss_func=task.loss, max_steps=task.steps,
                   per_device_train_batch_size=task.batch, per_device_eval_batch_size=256, seed=seed, use_cpu=True,
                   disable_tqdm=True, logging_strategy="no", save_strategy="no", **OPTIMIZERS[optimizer], **settings)
    learn.remove_callback(PrinterCallback)
    return learn


def loss_at_end(learn) -> float:
    "Train to the end and return the evaluation loss; infinity if it is not finite."
    learn.train()
    loss = learn.evaluate()["eval_loss"]
    return loss if math.isfinite(loss) else math.inf


def train(task, optimizer: str, seed: int, rate: float) -> dict:
    "Return the evaluation loss after training with a rate."
    return {"loss": loss_at_end(make_learner(task, optimizer, seed, learning_rate=rate))}


def search(task, optimizer: str, seed: int) -> dict:
    "Return the rates that lr_find() gives for a run with the default rate, the steps that it takes, and its reason."
    found = make_learner(task, optimizer, seed).lr_find()
    rates = {"suggestion": found.suggestion, "valley": found.valley}
    return {"rates": rates, "steps": found.steps, "reason": found.reason}


class Results:
    "Call functions of a task by name and keep what they return, also in a folder if one is given."
    def __init__(self, folder: str | None, tasks: dict):
        self.folder = folder and pathlib.Path(folder)
        self.tasks = tasks
        self.known: dict[str, dict] = {}

    def get(self, function, name: str, *given) -> dict:
        "Return what a function returns for a task, an optimizer, a seed and more."
        key = hashlib.sha256(repr((function.__name__, name, *given)).encode()).hexdigest()[:16]
        if key in self.known: return self.known[key]
        path = self.folder and self.folder/f"{key}.json"
        if path and path.exists():
            self.known[key] = json.loads(path.read_text())
            return self.known[key]
        found = self.known[key] = {"call": [function.__name__, name, *given]} | function(self.tasks[name], *given)
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(found))
        return found


def grid(results: Results, name: str, optimizer: str, seeds: list[int], span=None) -> dict[int, list[float]]:
    """Return the losses by power of the rate: of the first seed for all rates, of all seeds for the best rate, its two
    neighbours, and as many more as it takes until the best one is not at an end."""
    def measure(k, some): return [results.get(train, name, optimizer, seed, 10 ** (k / 2))["loss"] for seed in some]
    first, last = span or GRIDS[optimizer]
    alone = extended({k: measure(k, seeds[:1]) for k in range(first, last + 1)}, lambda k: measure(k, seeds[:1]), span)
    best = best_of(alone)
    near = {k: measure(k, seeds) for k in (best - 1, best, best + 1) if k in alone}
    return dict(sorted((alone | extended(near, lambda k: measure(k, seeds), span)).items()))


def extended(losses: dict[int, list[float]], measure, span) -> dict[int, list[float]]:
    "Return the losses with those of further rates, until the best rate is not at an end."
    least, most = span or WIDEST
    while True:
        best = best_of(losses)
        if best == min(losses) > least: losses[best - 1] = measure(best - 1)
        elif best == max(losses) < most: losses[best + 1] = measure(best + 1)
        else: return losses


def best_of(losses: dict[int, list[float]]) -> int:
    "Return the power with the lowest median loss."
    return min(losses, key=lambda k: statistics.median(losses[k]))


def compare(results: Results, name: str, optimizer: str, seeds: list[int], span=None) -> dict:
    "Return the best rate of the grid, and for each rule its rates and the ratios of the losses, seed by seed."
    losses = grid(results, name, optimizer, seeds, span)
    # among the rates that all seeds have
    best = best_of({k: row for k, row in losses.items() if len(row) == len(seeds)})
    found = [results.get(search, name, optimizer, seed) for seed in seeds]
    rules = {}
    for rule in RULES:
        rates = {seed: row["rates"][rule] for seed, row in zip(seeds, found) if row["rates"][rule] is not None}
        ended = {seed: results.get(train, name, optimizer, seed, rate)["loss"] for seed, rate in rates.items()}
        ratios = [loss / losses[best][seeds.index(seed)] for seed, loss in ended.items()]
        rules[rule] = {"rates": list(rates.values()), "losses": list(ended.values()), "ratios": ratios}
    return {"grid": {f"{10 ** (k / 2):.3g}": statistics.median(row) for k, row in losses.items()}, "best": 10 ** (best / 2),
            "best_loss": statistics.median(losses[best]), "rules": rules,
            "steps": statistics.median(row["steps"] for row in found),
            "reasons": sorted({row["reason"] for row in found} - {""})}


# --- the summary and its tables --------------------------------------------------------------------------------------------

def number(value: float, digits: int = 2) -> str: return f"{float(f'{value:.{digits}g}'):g}"


def row_of(label: str, optimizer: str, figure: dict, seeds: int) -> list[str]:
    "Return the row of a task and an optimizer."
    cells = [label, LABELS[optimizer], number(figure["best"]), number(figure["best_loss"], 3)]
    for rule in RULES:
        found = figure["rules"][rule]
        if not found["rates"]:
            cells += ["none", ""]
            continue
        missing = f" ({len(found['rates'])} of {seeds} seeds)" if len(found["rates"]) < seeds else ""
        middle = statistics.median(found["ratios"])
        ratio = f"{middle:.2f} ({max(found['ratios']):.2f})"
        cells += [number(statistics.median(found["rates"])) + missing, f"**{ratio}**" if rule == "suggestion" else ratio]
    return [*cells, f"{figure['steps']:.0f}"]


def verdict(rows: dict, seeds: int) -> str:
    "Return in a sentence how many of the targets are met."
    cells = [figure["rules"]["suggestion"] for row in rows.values() for figure in row.values()]
    answered = [found for found in cells if found["rates"]]
    near = sum(statistics.median(found["ratios"]) <= WITHIN for found in answered)
    worst = max((ratio for found in answered for ratio in found["ratios"]), default=math.nan)
    far = sum(ratio > NEVER for found in answered for ratio in found["ratios"])
    runs = sum(len(found["rates"]) for found in cells)
    return (f"The median over the seeds is within 10 % of the best rate of the grid in {near} of {len(cells)} cases; of"
            f" {len(cells) * seeds} searches, {runs} gave a suggestion, {far} of these one whose loss is more than"
            f" {NEVER:g} times as large; the worst ratio is {worst:.2f}.")


def tables(found: dict) -> dict:
    "Return the tables of a stored result: one for each set of tasks."
    import lr_tasks
    seeds = found["options"]["seeds"]
    head = ["task", "optimizer", "best rate of the grid", "its loss", "suggestion", "ratio of losses", "`valley`",
            "ratio of losses", "steps of the search"]
    made = {}
    for name, rows in found["figures"].items():
        lines = [row_of(lr_tasks.SETS[name][task].words, optimizer, figure, seeds)
                 for task, row in rows.items() for optimizer, figure in row.items()]
        title = {"develop": "The tasks with which the rule was made:", "final": "The tasks that were not looked at until it was finished:"}
        made[name] = f"{title[name]}\n\n{harness.table(head, lines)}\n\n{verdict(rows, seeds)}"
    notes = (f"Medians over {seeds} seed{'s' * (seeds != 1)}, with the worst one's ratio in brackets."
             f" {harness.describe(found)}")
    return made | {"notes": notes}


# --- the command line --------------------------------------------------------------------------------------------------------

def parse(argv):
    "Return the options of the command line."
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tasks", nargs="+", choices=["develop", "final"], default=["develop", "final"], help="which set")
    p.add_argument("--only", nargs="+", help="just these tasks, by name")
    p.add_argument("--optimizers", nargs="+", choices=list(OPTIMIZERS), default=list(OPTIMIZERS))
    p.add_argument("--seeds", type=int, default=3)
    p.add_argument("--grid", type=int, nargs=2, metavar="K", help="only the rates 10 ** (K / 2) from the first to the last K")
    p.add_argument("--steps", type=int, help="train all tasks for so many steps")
    p.add_argument("--quick", action="store_true", help="two small tasks with one seed: a rough look")
    p.add_argument("--cache", metavar="FOLDER", help="keep the result of each training in this folder")
    p.add_argument("--json", metavar="FILE", help="write the summary to this file")
    p.add_argument("--threads", type=int, default=1, help="torch's threads")
    opts = p.parse_args(argv)
    if opts.quick: opts.seeds = 1
    return opts


def chosen_tasks(opts) -> dict:
    "Return the tasks to measure, by set and name."
    import lr_tasks
    quick = {"develop": "wine", "final": "breast cancer"}
    only = opts.only or ([quick[name] for name in opts.tasks] if opts.quick else None)
    def shortened(task): return task._replace(steps=opts.steps) if opts.steps else task
    sets = {name: {task: shortened(o) for task, o in lr_tasks.SETS[name].items() if not only or task in only}
            for name in opts.tasks}
    return {name: tasks for name, tasks in sets.items() if tasks}


def main(argv=None):
    "Measure what was asked for and print the tables."
    opts = parse(argv)
    harness.use_checkout()
    import torch
    torch.set_num_threads(opts.threads)
    warnings.simplefilter("ignore")
    sets = chosen_tasks(opts)
    results = Results(opts.cache, {name: task for tasks in sets.values() for name, task in tasks.items()})
    figures: dict = {}
    for name, tasks in sets.items():
        for task in tasks:
            for optimizer in opts.optimizers:
                harness.say(f"{task}, {LABELS[optimizer]}")
                row = compare(results, task, optimizer, list(range(opts.seeds)), opts.grid)
                figures.setdefault(name, {}).setdefault(task, {})[optimizer] = row
    found = harness.result("lr_find", opts, ["tasks", "optimizers", "seeds"], figures, {}, ["scikit-learn"])
    harness.print_result(found, tables(found))
    harness.write_json(opts.json, found)


if __name__ == "__main__": main()

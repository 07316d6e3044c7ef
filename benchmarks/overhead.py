"""Measure what it costs to let a tool hold the training loop: time per step, import, and time to the first step.

    python benchmarks/overhead.py              # everything: about a quarter of an hour, on one core
    python benchmarks/overhead.py --quick      # a rough look
    python benchmarks/overhead.py --profile    # where trainer_nb's own step spends its time

Five contenders train the same small networks on the same data: a loop written by hand, that loop with Accelerate,
transformers' Trainer, Lightning, and trainer_nb. The loop by hand takes part twice, and so does trainer_nb: once with a
callback. benchmarks/README.md describes how each figure is measured.
"""
from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import namedtuple

import harness

# --- the works: a model, a data set and a recipe, the same for all -----------------------------------------------------

Work = namedtuple("Work", "features width layers data collate")
WORKS = {
    "perceptron": Work(features=64, width=192, layers=3, data="samples", collate="default_collate"),
    "small": Work(features=16, width=32, layers=2, data="samples", collate="stack"),
    # trainer_nb selects the rows of such data with one call per tensor
    "tensors": Work(features=64, width=192, layers=3, data="TensorDataset", collate="default_collate"),
}
BATCH, CLASSES = 32, 10
STEPS_PER_EPOCH = 300               # also the length of a timed block: each block crosses one end of an epoch
LR, CLIP, DECAY, LOG_EVERY = 1e-3, 1.0, 0.01, 50
NOISE = 0.2                         # this part of the labels is drawn at random: a loss that stays worth comparing


def make_data(work: Work):
    """Return a map-style data set of `x` (floats) and `labels` (one class number, by a linear rule with some noise):
    dicts with these names, or the two tensors as a TensorDataset."""
    import torch
    from torch.utils.data import Dataset, TensorDataset

    class Samples(Dataset):
        def __init__(self, n):
            gen = torch.Generator().manual_seed(1)
            self.x = torch.randn(n, work.features, generator=gen)
            rule = (self.x @ torch.randn(work.features, CLASSES, generator=gen)).argmax(1)
            anything = torch.randint(CLASSES, (n,), generator=gen)
            self.labels = torch.where(torch.rand(n, generator=gen) < NOISE, anything, rule)
        def __len__(self): return len(self.x)
        def __getitem__(self, i): return {"x": self.x[i], "labels": self.labels[i]}

    samples = Samples(BATCH * STEPS_PER_EPOCH)
    return TensorDataset(samples.x, samples.labels) if work.data == "TensorDataset" else samples


def stack(samples: list) -> dict:
    "Stack the tensors of the samples: the least that a collator can do."
    import torch
    return {key: torch.stack([sample[key] for sample in samples]) for key in samples[0]}


def collator(work: Work):
    "Return the function that makes a batch of samples."
    from torch.utils.data import default_collate
    return stack if work.collate == "stack" else default_collate


def make_model(work: Work):
    "Return a perceptron that takes `x` and `labels` and returns its loss and logits, as the Trainer expects."
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            sizes = [work.features, *[work.width] * (work.layers - 1)]
            hidden = [layer for a, b in zip(sizes, sizes[1:]) for layer in (nn.Linear(a, b), nn.ReLU())]
            self.layers = nn.Sequential(*hidden, nn.Linear(sizes[-1], CLASSES))
        def forward(self, x=None, labels=None):
            logits = self.layers(x)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    torch.manual_seed(0)
    return Net()


def named(batch) -> dict:
    "Return a batch of a TensorDataset with the names of its parts; a dict as it is."
    return batch if isinstance(batch, dict) else dict(zip(("x", "labels"), batch))


def make_optimizer(model, steps: int):
    "Return fused AdamW with weight decay on the matrices only (two groups, as the Trainer makes them), and a linear schedule."
    import torch
    weights = [p for p in model.parameters() if p.ndim > 1]
    biases = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": weights, "weight_decay": DECAY}, {"params": biases, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, fused=True)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))


# --- the contenders: each trains for `steps` steps, calls `tick()` after each, and returns the mean loss of its last epoch ----

def last_epoch(losses: list) -> float:
    "Return the mean of the losses that were logged in the last epoch of the run."
    return statistics.mean(float(loss) for loss in losses[-STEPS_PER_EPOCH // LOG_EVERY:]) if losses else float("nan")


def hand_written(work, steps, tick, device):
    "Train with a loop as one writes it with torch alone."
    import torch
    from torch.utils.data import DataLoader
    model = make_model(work).to(device)
    optimizer, schedule = make_optimizer(model, steps)
    loader = DataLoader(make_data(work), batch_size=BATCH, shuffle=True, collate_fn=collator(work))
    rows, total, step = [], torch.zeros((), device=device), 0
    model.train()
    while step < steps:
        for batch in loader:
            batch = named(batch)
            if device != "cpu": batch = {key: value.to(device) for key, value in batch.items()}
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
    return last_epoch([row["loss"] for row in rows])


def with_accelerate(work, steps, tick, device):
    "Train with the same loop, prepared by Accelerate."
    import torch
    from accelerate import Accelerator
    from torch.utils.data import DataLoader
    accelerator = Accelerator(cpu=device == "cpu")
    model = make_model(work)
    optimizer, schedule = make_optimizer(model, steps)
    loader = DataLoader(make_data(work), batch_size=BATCH, shuffle=True, collate_fn=collator(work))
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    rows, total, step = [], torch.zeros((), device=accelerator.device), 0
    model.train()
    while step < steps:
        for batch in loader:
            loss = model(**named(batch))["loss"]
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
    return last_epoch([row["loss"] for row in rows])


def settings(steps, device):
    "Return what the Trainer and trainer_nb are told; everything else keeps its default."
    return dict(output_dir=tempfile.mkdtemp(), max_steps=steps, per_device_train_batch_size=BATCH, learning_rate=LR,
                weight_decay=DECAY, max_grad_norm=CLIP, lr_scheduler_type="linear", optim="adamw_torch_fused",
                logging_steps=LOG_EVERY, save_strategy="no", report_to="none", disable_tqdm=True,
                use_cpu=device == "cpu", dataloader_pin_memory=False)


def with_trainer(work, steps, tick, device):
    "Train with transformers' Trainer, with its printing taken out."
    from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
    if work.data == "TensorDataset": raise harness.Missing("the Trainer takes samples that are dicts")

    class Tick(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs): tick()

    trainer = Trainer(make_model(work), TrainingArguments(**settings(steps, device)), data_collator=collator(work),
                      train_dataset=make_data(work), callbacks=[Tick()])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return last_epoch([row["loss"] for row in trainer.state.log_history if "loss" in row])


def with_lightning(work, steps, tick, device):
    "Train with Lightning's Trainer: no checkpoints, no progress bar, a logger that keeps rows in a list."
    import lightning as L
    import torch
    from lightning.pytorch.loggers.logger import DummyLogger
    from torch.utils.data import DataLoader

    class Rows(DummyLogger):
        def __init__(self):
            super().__init__()
            self.rows = []
        def log_metrics(self, metrics, step=None): self.rows.append({"step": step, **metrics})

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.total = make_model(work), torch.zeros((), device=device)
        def configure_optimizers(self):
            optimizer, schedule = make_optimizer(self.net, steps)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
        def training_step(self, batch, _):
            loss = self.net(**named(batch))["loss"]
            self.total += loss.detach()
            # Logged only when it is due: the cheapest way.
            if (self.global_step + 1) % LOG_EVERY == 0:
                self.log("loss", self.total / LOG_EVERY)
                self.total = torch.zeros((), device=device)
            return loss
        def on_train_batch_end(self, *_): tick()

    logger = Rows()
    trainer = L.Trainer(accelerator="cpu" if device == "cpu" else "gpu", devices=1, max_steps=steps, max_epochs=-1,
                        logger=logger, log_every_n_steps=LOG_EVERY, gradient_clip_val=CLIP, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tempfile.mkdtemp())
    trainer.fit(Module(), DataLoader(make_data(work), batch_size=BATCH, shuffle=True, collate_fn=collator(work)))
    return last_epoch([row["loss"] for row in logger.rows if "loss" in row])


def make_learner(work, steps, device, callbacks):
    "Return the Learner, with its printing taken out as well."
    from trainer_nb import Learner, ProgressCallback
    learn = Learner(make_model(work), data_collator=collator(work), train_dataset=make_data(work), callbacks=callbacks,
                    **settings(steps, device))
    learn.remove_callback(ProgressCallback)
    return learn


def with_trainer_nb(work, steps, tick, device):
    "Train with trainer_nb's Learner."
    learn = make_learner(work, steps, device, [])
    harness.run_in_blocks(learn, steps, tick)
    return last_epoch([row["loss"] for row in learn.state.log_history if "loss" in row])


def with_callback(work, steps, tick, device):
    "Train with the same Learner; look at each step with a callback, for which the random generators are seeded once more."
    from trainer_nb import TrainerCallback

    class Tick(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs): tick()

    learn = make_learner(work, steps, device, [Tick()])
    learn.train()
    return last_epoch([row["loss"] for row in learn.state.log_history if "loss" in row])


def holder_of_attributes():
    "Return a callback with a hundred small attributes, in which each verb looks for changes."
    from trainer_nb import TrainerCallback

    class Holds(TrainerCallback):
        def __init__(self):
            for i in range(100): setattr(self, f"a{i}", (i, str(i), [i, i + 1, i + 2])[i % 3])

    return Holds()


def with_verbs(advance, make_callbacks=lambda: []):
    "Return a function that trains with a verb for each step, as the cells of a notebook do; `advance` yields after each."
    def train_by_verbs(work, steps, tick, device):
        learn = make_learner(work, steps, device, make_callbacks())
        for _ in advance(learn, steps): tick()
        return last_epoch([row["loss"] for row in learn.state.log_history if "loss" in row])
    return train_by_verbs


def by_single_steps(learn, steps):
    for _ in range(steps): yield learn.step()


def by_set_and_step(learn, steps):
    yield learn.step()
    for _ in range(steps - 1):
        # the rate that the step has anyway
        learn.set(lr=learn.get_learning_rates()[0])
        yield learn.step()


Contender = namedtuple("Contender", "label train statement package")
CONTENDERS = {
    "hand": Contender("hand-written loop", hand_written, "import torch", "torch"),
    # The same against itself: how far from 1 a ratio comes by chance.
    "again": Contender("hand-written loop, in another process", hand_written, "import torch", "torch"),
    "accelerate": Contender("the same loop with Accelerate", with_accelerate, "import accelerate", "accelerate"),
    "transformers": Contender("transformers' `Trainer`", with_trainer,
                              "import transformers; from transformers import Trainer", "transformers"),
    "lightning": Contender("Lightning", with_lightning, "import lightning", "lightning"),
    "trainer_nb": Contender("trainer_nb", with_trainer_nb, "import trainer_nb", "trainer_nb"),
    "callback": Contender("trainer_nb, with a callback at each step", with_callback, "import trainer_nb", "trainer_nb"),
    "step": Contender("trainer_nb, `step(1)` for each step", with_verbs(by_single_steps), "import trainer_nb", "trainer_nb"),
    "held": Contender("trainer_nb, `step(1)` for each step, with a callback that has a hundred attributes",
                      with_verbs(by_single_steps, lambda: [holder_of_attributes()]), "import trainer_nb", "trainer_nb"),
    "loop": Contender("trainer_nb, `for rec in learn.steps()`", with_verbs(lambda learn, steps: learn.steps()),
                      "import trainer_nb", "trainer_nb"),
    "set": Contender("trainer_nb, `set(lr=...)` and `step(1)` for each step", with_verbs(by_set_and_step),
                     "import trainer_nb", "trainer_nb"),
}
# They import the same as another contender.
REPEATED = ("again", "callback", "step", "held", "loop", "set")
LABELS = {name: contender.label for name, contender in CONTENDERS.items()}


# --- in a contender's process ---------------------------------------------------------------------------------------------

def train(name):
    "Return a contender's function, with the work given by its name."
    return lambda work, *rest: CONTENDERS[name].train(WORKS[work], *rest)


KINDS = {
    "steps": lambda spec, exchange: harness.train_by_turns(train(spec["name"]), spec, exchange),
    "first": lambda spec, exchange: harness.until_first_step(train(spec["name"]), spec, exchange),
    "import": lambda spec, exchange: harness.import_once(CONTENDERS[spec["name"]].statement, exchange),
}


# --- the summary and its tables -------------------------------------------------------------------------------------------

def summarize_steps(found: dict) -> dict:
    "Return the figures of each work: µs per step, and the ratios to the hand-written loop."
    figures = {}
    for work, rows in found.items():
        base = rows.get("hand")
        if base is None: continue
        figures[work] = {name: {"us": harness.median_with_interval([1e6 * wall for wall in row["wall"]]),
                                "ratio": harness.quotients(row["wall"], base["wall"]),
                                "cpu_ratio": harness.quotients(row["cpu"], base["cpu"]),
                                "loss": row["loss"]} for name, row in rows.items()}
        for name in harness.other_losses(rows): figures[work][name]["other_work"] = True
    return figures


def summarize_starts(found: dict) -> dict:
    "Return the seconds of fresh processes, the ratios to the hand-written loop, and the peak of memory where it was read."
    def values(name, key): return [row[key] for row in found[name]]
    figures = {}
    for name, rows in found.items():
        figures[name] = {"s": harness.median_with_interval(values(name, "wall"))}
        if "hand" in found:
            figures[name]["ratio"] = harness.quotients(values(name, "wall"), values("hand", "wall"))
            figures[name]["cpu_ratio"] = harness.quotients(values(name, "cpu"), values("hand", "cpu"))
        if "peak" in rows[0]: figures[name]["peak"] = statistics.median(row["peak"] for row in rows)
    return figures


def steps_table(figures: dict) -> str:
    "Return the table of a work."
    head = ["", "step, µs", "of hand-written", "in processor time", "loss"]
    rows = []
    for name in (n for n in CONTENDERS if n in figures):
        row = figures[name]
        mine = name == "trainer_nb"
        ratios = [harness.with_interval(row[key], bold=mine and key == "ratio") for key in ("ratio", "cpu_ratio")]
        rows.append([LABELS[name], harness.with_interval(row["us"], 0), *(ratios if name != "hand" else ["1", "1"]),
                     f"{row['loss']:.3f}" + " (NOT THE SAME WORK)" * row.get("other_work", False)])
    return harness.table(head, rows)


def starts_table(figures: dict, kind: str) -> str:
    "Return the table of imports or of first steps."
    found, source = figures[kind], figures.get(f"{kind}_source", {})
    head = ["", "import, s" if kind == "import" else "start to first step, s", "of hand-written", "in processor time",
            "without byte code, s"] + ["peak of memory, MiB"] * (kind == "import")
    rows = []
    for name in (n for n in CONTENDERS if n in found):
        row = found[name]
        compiled = source.get(name)
        ratios = [harness.with_interval(row.get(key), bold=name == "trainer_nb" and key == "ratio")
                  for key in ("ratio", "cpu_ratio")]
        rows.append([LABELS[name], harness.with_interval(row["s"]), *(ratios if name != "hand" else ["1", "1"]),
                     f"{compiled['s']['median']:.2f}" if compiled else ""])
        if kind == "import": rows[-1].append(f"{row['peak']:.0f}")
    return harness.table(head, rows)


def readme_table(found: dict) -> str:
    "Return the sentences and the table of the README: the first work, the import and the start, medians alone."
    figures = found["figures"]
    steps, imports, first = next(iter(figures["steps"].values())), figures["import"], figures["first"]
    loop = [f"{steps['hand']['us']['median']:,.0f} µs a step"]
    if "hand" in imports: loop.append(f"{imports['hand']['s']['median']:.2f} s for `import torch`")
    if "hand" in first: loop.append(f"{first['hand']['s']['median']:.2f} s from the start to the end of the first step")
    about = f"Lower is better; a plain PyTorch loop is 1. The plain loop took {', '.join(loop[:-1])} and {loop[-1]}." if len(loop) > 1 else ""
    names = ["trainer_nb", *(n for n in CONTENDERS if n not in ("trainer_nb", "hand", *REPEATED))]
    rows = []
    for name in names:
        ratios = [kind.get(name, {}).get("ratio") for kind in (steps, imports, first)]
        cells = [f"{ratio['median']:.2f}" if ratio else "" for ratio in ratios]
        if any(cells): rows.append([LABELS[name], *cells])
    head = ["", "tiny step", "import (torch alone = 1)", "start to first step"]
    return "\n\n".join(o for o in [about, harness.table(head, rows), f"Medians. {harness.describe(found)}"] if o)


def tables(found: dict) -> dict:
    "Return the tables of a stored result by name."
    figures = found["figures"]
    notes = "\n".join([f"{harness.INTERVALS} {harness.describe(found)}", *harness.missing_lines(found, LABELS)])
    made = {}
    for work, rows in figures.get("steps", {}).items():
        about = WORKS[work]
        data = "a `TensorDataset`" if about.data == "TensorDataset" else "samples that are dicts"
        title = (f"A perceptron of {about.layers} layers ({about.width} wide, {about.features} features), {data}, batches of "
                 f"{BATCH} by `{about.collate}`:")
        made[f"steps-{work}"] = f"{title}\n\n{steps_table(rows)}"
    for kind in ("import", "first"):
        if figures.get(kind): made[kind] = starts_table(figures, kind)
    if figures.get("steps") and figures.get("import") and figures.get("first"): made["readme"] = readme_table(found)
    return made | {"notes": notes}


# --- the command line ----------------------------------------------------------------------------------------------------

def profile(name, opts):
    "Run one contender under cProfile and print where its time goes."
    import cProfile
    import pstats
    import torch
    torch.set_num_threads(opts.threads)
    steps, state = opts.steps * 3, {"left": opts.steps}
    profiler = cProfile.Profile()
    def tick():
        state["left"] -= 1
        # After a first block: no set-up, no first-time costs.
        if not state["left"]: profiler.enable()
    try: CONTENDERS[name].train(WORKS[opts.works[0]], steps, harness.EachStep(tick), opts.device)
    finally: profiler.disable()
    for order in ("tottime", "cumulative"): pstats.Stats(profiler).sort_stats(order).print_stats(opts.top)


def parse(argv):
    "Return the options of the command line."
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    harness.add_options(p, CONTENDERS)
    harness.add_rounds(p, fresh=16, rounds=1, blocks=4, steps=STEPS_PER_EPOCH)
    p.add_argument("--parts", nargs="+", choices=["steps", "imports", "first"], default=["steps", "imports", "first"])
    p.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS))
    p.add_argument("--imports", type=int, default=11, help="fresh interpreters per import")
    p.add_argument("--starts", type=int, default=9, help="fresh processes per first step")
    p.add_argument("--profile", nargs="?", const="trainer_nb", choices=CONTENDERS, help="profile one contender and stop")
    p.add_argument("--top", type=int, default=40, help="lines of the profile")
    opts = p.parse_args(argv)
    if opts.quick:
        opts.fresh, opts.rounds, opts.blocks, opts.imports, opts.starts = 1, min(6, opts.rounds * opts.fresh), 1, 2, 2
    opts.one_core = opts.threads == 1
    return opts


def measure(opts) -> tuple[dict, dict, dict]:
    "Return the figures, every single measurement, and why a contender is missing."
    names = harness.in_turn(CONTENDERS, opts.only)
    left_out, raw, figures = {}, {}, {}
    if "steps" in opts.parts:
        raw["steps"] = harness.measure_by_turns(__file__, names, opts.works, opts, left_out)
        figures["steps"] = summarize_steps(raw["steps"])
    names = [n for n in names if n not in left_out and n not in REPEATED]
    works = opts.works[:1]
    with harness.byte_code_folder(opts):
        for part, kind, times in (("imports", "import", opts.imports), ("first", "first", opts.starts)):
            if part not in opts.parts: continue
            raw[kind] = harness.measure_starts(__file__, kind, names, works, opts, times, left_out)
        # Once without: each contender's own package is compiled again, as in a fresh checkout; what it needs is not.
        for part, kind in (("imports", "import"), ("first", "first")):
            if part not in opts.parts: continue
            own = [n for n in names if n not in left_out and n != "hand"]
            raw[f"{kind}_source"] = harness.measure_starts(
                __file__, kind, own, works, opts, 1, left_out, warm=False,
                env=lambda name: harness.without_byte_code(CONTENDERS[name].package, opts))
    for kind in ("import", "first", "import_source", "first_source"):
        if kind in raw: figures[kind] = summarize_starts(raw[kind])
    return figures, raw, left_out


def main(argv=None):
    "Measure what was asked for and print the tables."
    opts = parse(argv)
    if opts.worker: return harness.serve(opts.worker, KINDS)
    if opts.profile: return profile(opts.profile, opts)
    figures, raw, left_out = measure(opts)
    keys = ["fresh", "rounds", "blocks", "steps", "imports", "starts"]
    found = harness.result("overhead", opts, keys, figures, left_out)
    harness.print_result(found, tables(found))
    harness.write_json(opts.json, found)
    harness.write_json(opts.raw, raw)


if __name__ == "__main__": main()

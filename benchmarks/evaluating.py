"""Measure what evaluating and predicting cost, and that streaming metrics keep the memory flat.

    python benchmarks/evaluating.py                 # some ten minutes, on one core
    python benchmarks/evaluating.py --quick         # a rough look
    python benchmarks/evaluating.py --parts memory  # or: calls

A loop written by hand, transformers' Trainer and trainer_nb evaluate the same small network on the same data.
benchmarks/README.md describes how each figure is measured.
"""
from __future__ import annotations

import argparse
import pathlib
import statistics
import tempfile

import harness

BATCH, FEATURES, WIDTH, CLASSES = 64, 64, 64, 10
# In the measurement of memory the outputs are large: 4 kB for each sample.
MANY_CLASSES = 1_000
SAMPLES = 10_000
WORKS = ["evaluate", "predict"]


def make_data(n: int, classes: int):
    "Return a map-style data set of n samples that takes the same memory for any n: it repeats a thousand of them."
    import torch
    from torch.utils.data import Dataset

    class Samples(Dataset):
        def __init__(self):
            gen = torch.Generator().manual_seed(1)
            self.x = torch.randn(1_000, FEATURES, generator=gen)
            self.labels = torch.randint(classes, (1_000,), generator=gen)
        def __len__(self): return n
        def __getitem__(self, i): return {"x": self.x[i % 1_000], "labels": self.labels[i % 1_000]}

    return Samples()


def make_model(classes: int):
    "Return a perceptron that takes `x` and `labels` and returns its loss and logits, as the Trainer expects."
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, classes))
        def forward(self, x=None, labels=None):
            logits = self.layers(x)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    torch.manual_seed(0)
    return Net()


def accuracy(found) -> dict:
    "Return the accuracy of all predictions, as compute_metrics."
    return {"accuracy": (found.predictions.argmax(-1) == found.label_ids).mean()}


class BatchAccuracy:
    "Count right predictions batch by batch, as compute_metrics of a Trainer with batch_eval_metrics."
    def __init__(self): self.right = self.n = 0

    def __call__(self, found, compute_result: bool):
        self.right += (found.predictions.argmax(-1) == found.label_ids).sum().item()
        self.n += len(found.label_ids)
        if not compute_result: return {}
        share = {"accuracy": self.right / self.n}
        self.right = self.n = 0
        return share


# --- the contenders: each returns functions that evaluate and predict a data set; both return the mean loss --------------

def by_hand(classes: int, device: str, streaming: bool) -> dict:
    "Evaluate with a loop as one writes it with torch alone."
    import torch
    from torch.utils.data import DataLoader, default_collate
    model = make_model(classes).to(device)

    def evaluate(data):
        loader = DataLoader(data, batch_size=BATCH, collate_fn=default_collate)
        model.eval()
        total, right, outputs, labels = torch.zeros((), device=device), torch.zeros((), device=device), [], []
        with torch.no_grad():
            for batch in loader:
                if device != "cpu": batch = {key: value.to(device) for key, value in batch.items()}
                out = model(**batch)
                total += out["loss"] * len(batch["labels"])
                if streaming:
                    right += (out["logits"].argmax(-1) == batch["labels"]).sum()
                else:
                    outputs.append(out["logits"])
                    labels.append(batch["labels"])
        if not streaming:
            outputs, labels = torch.cat(outputs).cpu().numpy(), torch.cat(labels).cpu().numpy()
            right = (outputs.argmax(-1) == labels).sum()
        assert 0 <= float(right) / len(data) <= 1
        return total.item() / len(data)

    return {"evaluate": evaluate, "predict": evaluate}


def settings(device: str) -> dict:
    "Return what the Trainer and trainer_nb are told."
    return dict(output_dir=tempfile.mkdtemp(), per_device_eval_batch_size=BATCH, report_to="none", disable_tqdm=True,
                use_cpu=device == "cpu", dataloader_pin_memory=False, save_strategy="no", logging_strategy="no")


def with_trainer(classes: int, device: str, streaming: bool) -> dict:
    "Evaluate with transformers' Trainer, with its printing taken out."
    from torch.utils.data import default_collate
    from transformers import PrinterCallback, Trainer, TrainingArguments
    trainer = Trainer(make_model(classes), TrainingArguments(**settings(device), batch_eval_metrics=streaming),
                      data_collator=default_collate, compute_metrics=BatchAccuracy() if streaming else accuracy)
    trainer.remove_callback(PrinterCallback)
    return {"evaluate": lambda data: trainer.evaluate(data)["eval_loss"],
            "predict": lambda data: trainer.predict(data).metrics["test_loss"]}


def with_trainer_nb(classes: int, device: str, streaming: bool) -> dict:
    "Evaluate with trainer_nb's Learner, with its printing taken out as well."
    from torch.utils.data import default_collate
    from trainer_nb import Learner, ProgressCallback
    given = {"compute_metrics": accuracy}
    if streaming: given = {"metrics": {"accuracy": lambda out, labels: (out.argmax(-1) == labels).float().mean()}}
    learn = Learner(make_model(classes), data_collator=default_collate, train_dataset=make_data(BATCH, classes),
                    **given, **settings(device))
    learn.remove_callback(ProgressCallback)
    return {"evaluate": lambda data: learn.evaluate(data)["eval_loss"],
            "predict": lambda data: learn.predict(data).metrics["test_loss"]}


CONTENDERS = {"hand": by_hand, "transformers": with_trainer, "trainer_nb": with_trainer_nb}
LABELS = {"hand": "hand-written loop", "transformers": "transformers' `Trainer`", "trainer_nb": "trainer_nb"}


# --- in a contender's process ----------------------------------------------------------------------------------------------

def calls(spec: dict, exchange):
    "Call evaluate() or predict() again and again."
    def train(work, steps, tick, device):
        call = CONTENDERS[spec["name"]](CLASSES, device, streaming=False)[work]
        data = make_data(spec["samples"], CLASSES)
        losses = []
        for _ in range(steps):
            losses.append(call(data))
            tick()
        return statistics.mean(losses)
    harness.train_by_turns(train, spec, exchange)


def memory(spec: dict, exchange):
    "Answer with the bytes by which the peak of this process rises above what it has before, while it evaluates."
    import gc
    import torch
    torch.set_num_threads(spec["threads"])
    samples, kind = spec["works"]
    evaluate = CONTENDERS[spec["name"]](MANY_CLASSES, spec["device"], kind == "streaming")["evaluate"]
    # The first evaluation imports what it needs.
    evaluate(make_data(10 * BATCH, MANY_CLASSES))
    gc.collect()
    # Sets the peak to the present value.
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = harness.status_bytes("VmRSS")
    evaluate(make_data(samples, MANY_CLASSES))
    exchange.answer({"growth": harness.status_bytes("VmHWM") - before})


KINDS = {"steps": calls, "memory": memory}


# --- the summary and its tables ----------------------------------------------------------------------------------------------

def summarize_calls(found: dict) -> dict:
    "Return seconds for a call and the ratio to the hand-written loop."
    figures = {}
    for work, rows in found.items():
        if "hand" not in rows: continue
        base = rows["hand"]
        figures[work] = {name: {"s": harness.median_with_interval(row["wall"]),
                                "ratio": harness.quotients(row["wall"], base["wall"]),
                                "cpu_ratio": harness.quotients(row["cpu"], base["cpu"]), "loss": row["loss"]}
                         for name, row in rows.items()}
        for name in harness.other_losses(rows): figures[work][name]["other_work"] = True
    return figures


def measure_memory(names, opts, left_out) -> dict:
    "Return the growth of the peak in bytes by contender, kind of metrics and number of samples."
    found = {}
    for name in names:
        for kind in ("streaming", "kept"):
            for samples in (opts.samples, 10 * opts.samples):
                rows = harness.measure_starts(__file__, "memory", [name], [samples, kind], opts, opts.times, left_out,
                                              warm=False)
                if name not in rows: continue
                growth = [row["growth"] for row in rows[name]]
                found.setdefault(name, {}).setdefault(kind, {})[str(samples)] = harness.median_with_interval(growth)
    return found


def tables(found: dict) -> dict:
    "Return the tables of a stored result by name."
    figures, made = found["figures"], {}
    samples = found["options"]["samples"]
    if figures.get("calls"):
        rows = []
        for name in (n for n in CONTENDERS if any(n in of_work for of_work in figures["calls"].values())):
            row = [LABELS[name]]
            for of_work in figures["calls"].values():
                figure = of_work.get(name, {})
                wrong = " (NOT THE SAME WORK)" * figure.get("other_work", False)
                row += [harness.with_interval(figure.get("s"), 1, 1e3) + wrong,
                        "1" if name == "hand" else harness.with_interval(figure.get("ratio"), bold=name == "trainer_nb")]
            rows.append(row)
        head = [""]
        for work in figures["calls"]: head += [f"`{work}`, {samples:,} samples, ms", "of hand-written"]
        made["calls"] = harness.table(head, rows)
    if figures.get("memory"):
        rows = []
        sizes = [str(samples), str(10 * samples)]
        for name in (n for n in CONTENDERS if n in figures["memory"]):
            row = [LABELS[name]]
            for kind in ("streaming", "kept"):
                row += [f"{figures['memory'][name][kind][size]['median'] / 1e6:,.1f}" for size in sizes]
            rows.append(row)
        head = ["peak of memory beyond the one before, MB",
                *(f"{how}, {int(size):,} samples" for how in ("streaming metrics", "predictions kept") for size in sizes)]
        made["memory"] = harness.table(head, rows)
    notes = [f"{harness.INTERVALS} {harness.describe(found)}", *harness.missing_lines(found, LABELS)]
    return made | {"notes": "\n".join(notes)}


# --- the command line --------------------------------------------------------------------------------------------------------

def parse(argv):
    "Return the options of the command line."
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    harness.add_options(p, CONTENDERS)
    harness.add_rounds(p, fresh=16, rounds=1, blocks=3, steps=1, warmup=2)
    p.add_argument("--parts", nargs="+", choices=["calls", "memory"], default=["calls", "memory"])
    p.add_argument("--samples", type=int, default=SAMPLES, help="of an evaluation; ten times as many for the memory")
    p.add_argument("--times", type=int, default=3, help="fresh processes for each measurement of memory")
    opts = p.parse_args(argv)
    if opts.quick: opts.fresh, opts.rounds, opts.blocks, opts.times = 1, min(6, opts.rounds * opts.fresh), 1, 1
    opts.one_core = opts.threads == 1
    return opts


def main(argv=None):
    "Measure what was asked for and print the tables."
    opts = parse(argv)
    if opts.worker: return harness.serve(opts.worker, KINDS)
    names, left_out, figures, raw = harness.in_turn(CONTENDERS, opts.only), {}, {}, {}
    if "calls" in opts.parts:
        raw = harness.measure_by_turns(__file__, names, WORKS, opts, left_out, samples=opts.samples)
        figures["calls"] = summarize_calls(raw)
    if "memory" in opts.parts: figures["memory"] = measure_memory(names, opts, left_out)
    keys = ["fresh", "rounds", "blocks", "steps", "warmup", "samples", "times"]
    found = harness.result("evaluating", opts, keys, figures, left_out)
    harness.print_result(found, tables(found))
    harness.write_json(opts.json, found)
    harness.write_json(opts.raw, raw)


if __name__ == "__main__": main()

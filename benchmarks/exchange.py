"""List the messages that the processes of a run exchange, in a step and at a log, and the bytes that each GPU sends.

    python benchmarks/exchange.py                # the tables of nbs/guides/communication.ipynb
    python benchmarks/exchange.py --parameters 70e9 --layers 80 --sharded

Nothing is measured here; tests/launch/test_exchange.py counts the messages of runs on 2 and 8 processes.
"""
from __future__ import annotations

import argparse
import math
from typing import NamedTuple

# bytes of the buckets of DistributedDataParallel: of the first one, and of all others
FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20
SIZES = (8, 64, 256, 1024)


class Run(NamedTuple):
    "Describe a run: P, T, B, L, a and n of the formulas."
    parameters: float            # P, trainable
    tensors: int                 # T, trainable
    buffers: int = 0             # B, bytes of those that change in the forward pass
    layers: int = 0              # L, wrapped separately; without the root
    accumulation: int = 1        # a, micro-batches of a step
    counts_labels: bool = False  # the loss is a mean over the labels of all processes
    sharded: bool = False        # FSDP; False: DDP
    width: int = 4               # bytes of a gradient, and of a weight that is gathered


class Message(NamedTuple):
    when: str        # "step" or "log"
    what: str
    operation: str   # "all-reduce", "all-gather", "reduce-scatter" or "broadcast"
    count: float     # of messages
    nbytes: float    # of all of them together, as a whole
    formula: str     # of these bytes


def num_buckets(nbytes: float) -> int:
    "Return the number of buckets of gradients, at least."
    return 1 if nbytes <= FIRST_BUCKET else 1 + math.ceil((nbytes - FIRST_BUCKET) / BUCKET)


def messages(run: Run) -> list[Message]:
    "Return everything that is exchanged in a step without a log, and at a log in addition."
    weights = run.parameters * run.width
    a, groups = run.accumulation, run.layers + 1
    extra = 4 * (3 + run.tensors)
    found = []
    if run.counts_labels:
        found.append(Message("step", "labels", "all-reduce", 1, 8, "8"))
    if run.sharded:
        found += [
            # the root stays gathered until the backward pass
            Message("step", "weights", "all-gather", a * (2 * groups - 1), 2 * a * weights, "2aPw"),
            Message("step", "gradients", "reduce-scatter", groups, weights, "Pw"),
            Message("step", "loss, norm and unused parameters", "all-reduce", 1, 4 * (2 + run.tensors), "4(2 + T)"),
        ]
    else:
        found.append(Message("step", "gradients, loss and unused parameters", "all-reduce", num_buckets(weights + extra), weights + extra, "Pw + 4(3 + T)"))
    if run.buffers:
        found.append(Message("step", "buffers", "broadcast", 1, run.buffers, "B"))
    return [*found, Message("log", "number of operations (FLOPs)", "all-reduce", 1, 8, "8")]


def sent(message: Message, n: int) -> float:
    "Return the bytes that each GPU sends, with the ring algorithms of NCCL."
    return message.nbytes * (n - 1) / n * (2 if message.operation == "all-reduce" else 1)


def as_text(nbytes: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size: return f"{nbytes / size:.4g} {unit}"
    return f"{nbytes:.3g} B"


def table(run: Run) -> str:
    "Return the messages as a table in Markdown, with the bytes that each GPU sends for several numbers of GPUs."
    head = ["", "message", "operation", "messages", "bytes", *(f"{n} GPUs" for n in SIZES)]
    rows = [[m.when, m.what, m.operation, f"{m.count:g}", m.formula, *(as_text(sent(m, n)) for n in SIZES)] for m in messages(run)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


# a language model of a billion parameters in bf16 with gradients in fp32, and a ResNet-50
EXAMPLES = {
    "a language model of 10⁹ parameters, DDP": Run(1e9, 300, counts_labels=True),
    "the same, sharded (FSDP, 24 layers, 2 micro-batches)": Run(1e9, 300, layers=24, accumulation=2, counts_labels=True, sharded=True),
    "a ResNet-50, DDP": Run(25.6e6, 161, buffers=213_000),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, help="number of trainable parameters; without it, the examples")
    parser.add_argument("--tensors", type=int, default=300)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--buffers", type=int, default=0)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--sharded", action="store_true")
    parser.add_argument("--counts-labels", action="store_true")
    args = vars(parser.parse_args())
    examples = EXAMPLES if args["parameters"] is None else {"": Run(**args)}
    for name, run in examples.items():
        print(f"{name}\n\n{table(run)}\n")


if __name__ == "__main__":
    main()

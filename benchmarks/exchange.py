"""List the messages that the processes of a run exchange, in a step and at a log, and the bytes that each GPU sends.

    python benchmarks/exchange.py                # the tables of benchmarks/README.md
    python benchmarks/exchange.py --parameters 70e9 --layers 80 --sharded --weight-width 2 --shards 8
    python benchmarks/exchange.py --measure      # on Linux: the bytes that processes of this machine really send

The tables are computed. --measure trains a small model on the CPU in 2 and 4 processes, reads from the operating system how
many bytes each process has sent, and prints them beside the formulas; tests/launch/test_exchange.py does both.
"""
from __future__ import annotations

import argparse
import math
import os
import socket
import stat
import struct
import time
from typing import NamedTuple

# bytes of the buckets of DistributedDataParallel: of the first one, and of all others
FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20
SIZES = (8, 1024)


class Run(NamedTuple):
    "Describe a run: P, T, B, L, a, w, v and s of the formulas."
    parameters: float            # P, trainable
    tensors: int                 # T, trainable
    buffers: int = 0             # B, bytes of those that change in the forward pass
    layers: int = 0              # L, wrapped separately; without the root
    accumulation: int = 1        # a, micro-batches of a step
    counts_labels: bool = False  # the loss is a mean over the labels of all processes
    sharded: bool = False        # FSDP; False: DDP
    width: int = 4               # w, bytes of a gradient
    weight_width: int = 4        # v, bytes of a weight that is gathered: 2 with bf16=True
    shards: int | None = None    # s, processes that hold one copy of the model together; None: all


class Message(NamedTuple):
    when: str        # "step" or "log"
    what: str
    operation: str   # "all-reduce", "all-gather", "reduce-scatter" or "broadcast"
    count: float     # of messages
    nbytes: float    # of all of them together, as a whole
    formula: str     # of these bytes
    among: str = "all"   # the processes that exchange it: "all", those of one "copy" of the model, or those of one "shard"


def num_buckets(nbytes: float) -> int:
    "Return the number of buckets of gradients, at least."
    return 1 if nbytes <= FIRST_BUCKET else 1 + math.ceil((nbytes - FIRST_BUCKET) / BUCKET)


def messages(run: Run) -> list[Message]:
    "Return everything that is exchanged in a step without a log, and at a log in addition."
    gradients, weights = run.parameters * run.width, run.parameters * run.weight_width
    a, groups = run.accumulation, run.layers + 1
    extra = 4 * (3 + run.tensors)
    found = []
    if run.counts_labels:
        found.append(Message("step", "labels", "all-reduce", 1, 8, "8"))
    if run.sharded:
        among = "all" if run.shards is None else "copy"
        found += [
            # the root stays gathered until the backward pass
            Message("step", "weights", "all-gather", a * (2 * groups - 1), 2 * a * weights, "2aPv", among),
            Message("step", "gradients", "reduce-scatter", groups, gradients, "Pw", among),
        ]
        if run.shards is None:
            found.append(Message("step", "loss, norm and unused parameters", "all-reduce", 1, 4 * (2 + run.tensors), "4(2 + T)"))
        else:
            found += [
                Message("step", "gradients of a shard", "all-reduce", groups, gradients / run.shards, "Pw/s", "shard"),
                Message("step", "norm", "all-reduce", 1, 4, "4", "copy"),
                Message("step", "loss and unused parameters", "all-reduce", 1, 4 * (1 + run.tensors), "4(1 + T)"),
            ]
    else:
        found.append(Message("step", "gradients, loss and unused parameters", "all-reduce", num_buckets(gradients + extra), gradients + extra, "Pw + 4(3 + T)"))
    if run.buffers:
        found.append(Message("step", "buffers", "broadcast", 1, run.buffers, "B"))
    return [*found, Message("log", "numbers of operations (FLOPs) and of terms", "all-reduce", 1, 16, "16")]


def sent(message: Message, n: int, shards: int | None = None, gloo: bool = False) -> float:
    "Return the bytes that each of n processes sends, with ring algorithms. gloo has no reduce-scatter: torch reduces all there."
    size = {"all": n, "copy": min(shards or n, n), "shard": max(n // (shards or n), 1)}[message.among]
    twice = message.operation == "all-reduce" or gloo and message.operation == "reduce-scatter"
    return message.nbytes * (size - 1) / size * (2 if twice else 1)


def as_text(nbytes: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size: return f"{nbytes / size:.4g} {unit}"
    return f"{nbytes:.3g} B"


def table(run: Run) -> str:
    "Return the messages as a table in Markdown, with the bytes that each GPU sends for several numbers of GPUs."
    head = ["", "message", "operation", "messages", "bytes", *(f"{n:,} GPUs" for n in SIZES)]
    rows = [[m.when, m.what, m.operation, f"{m.count:g}", m.formula, *(as_text(sent(m, n, run.shards)) for n in SIZES)] for m in messages(run)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


EXAMPLES = {
    "A language model with 10⁹ parameters, DDP": Run(1e9, 300, counts_labels=True),
    "A language model with 8 · 10⁹ parameters in 32 layers, FSDP, `bf16=True`": Run(8e9, 291, layers=32, counts_labels=True, sharded=True, weight_width=2),
    "The same with `fsdp=\"hybrid_shard\"` on nodes with 8 GPUs": Run(8e9, 291, layers=32, counts_labels=True, sharded=True, weight_width=2, shards=8),
    "A ResNet-50, DDP": Run(25.6e6, 161, buffers=213_000),
}


# ---- measured

STEPS = 10
# name: settings of the learner, fields of Run, number of processes
MEASURED = {
    "DDP": ({}, {}, 2),
    "DDP, 4 processes": ({}, {}, 4),
    "DDP, 4 micro-batches": ({"gradient_accumulation_steps": 4}, {}, 2),
    "DDP, one of two layers frozen": ({"freeze": True}, {}, 2),
    "FSDP": ({"fsdp": True}, {"sharded": True, "layers": 2}, 2),
    "FSDP, `bf16=True`": ({"fsdp": True, "bf16": True}, {"sharded": True, "layers": 2, "weight_width": 2}, 2),
    "FSDP, 4 processes": ({"fsdp": True}, {"sharded": True, "layers": 2}, 4),
    "FSDP, 4 processes, two copies": ({"fsdp": True, "fsdp_config": {"dp_shard_size": 2}}, {"sharded": True, "layers": 2, "shards": 2}, 4),
}
WIDTH = 256
# bytes_sent in Linux's struct tcp_info
OFFSET = 200


def bytes_sent() -> int:
    "Return the bytes that this process has sent over its connections, as Linux counts them."
    total = 0
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            if not stat.S_ISSOCK(os.fstat(fd).st_mode): continue
            with socket.socket(fileno=os.dup(fd)) as connection:
                if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM: continue
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, OFFSET + 8)
        except OSError:
            # closed meanwhile, or not connected
            continue
        if len(info) == OFFSET + 8: total += struct.unpack_from("Q", info, OFFSET)[0]
    return total


def sent_in_steps(learn) -> float:
    "Return the bytes that this process sends in a step; called in each process."
    import torch
    def settled() -> int:
        torch.distributed.barrier()
        # the last bytes of a message may be on their way
        time.sleep(0.3)
        return bytes_sent()
    learn.step(2)
    before = settled()
    learn.step(STEPS)
    return (settled() - before) / STEPS


def small_model(name: str):
    import torch
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 64))
    if MEASURED[name][0].get("freeze"): model[0].requires_grad_(False)
    return model


def computed(name: str) -> float:
    "Return the bytes that a process sends in a step by the formulas, with gloo."
    settings, more, n = MEASURED[name]
    trained = [p for p in small_model(name).parameters() if p.requires_grad]
    run = Run(sum(p.numel() for p in trained), len(trained), accumulation=settings.get("gradient_accumulation_steps", 1), **more)
    return sum(sent(m, n, run.shards, gloo=True) for m in messages(run) if m.when == "step")


def measure(name: str) -> float:
    "Return the bytes that a process sends in a step as the system counts them, the mean of all processes."
    import torch
    from trainer_nb import Learner
    settings, _, n = MEASURED[name]
    settings = {key: value for key, value in settings.items() if key != "freeze"}
    if "fsdp" in settings: settings["fsdp_config"] = settings.get("fsdp_config", {}) | {"transformer_layer_cls_to_wrap": ["Linear"]}
    data = [{"input": torch.randn(64), "labels": torch.randn(64)} for _ in range(64)]
    # snapshots for rewind are exchanged now and then, and would be counted
    learn = Learner(small_model(name), train_dataset=data, loss_func=torch.nn.functional.mse_loss, use_cpu=True, disable_tqdm=True, output_dir=None, save_strategy="no",
                    per_device_train_batch_size=4, max_steps=100, logging_steps=50, rewind_every=0, report_to="none", **settings)
    with learn.launch(n): found = learn.run_on_all(sent_in_steps)
    return sum(found) / n


def measured_table() -> str:
    rows = [["run", "processes", "computed", "measured"], ["---"] * 4]
    for name, (_, _, n) in MEASURED.items():
        rows.append([name, str(n), as_text(computed(name)), as_text(measure(name))])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, help="number of trainable parameters; without it, the examples")
    parser.add_argument("--tensors", type=int, default=300)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--buffers", type=int, default=0)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--sharded", action="store_true")
    parser.add_argument("--weight-width", type=int, default=4)
    parser.add_argument("--shards", type=int)
    parser.add_argument("--counts-labels", action="store_true")
    parser.add_argument("--measure", action="store_true")
    args = vars(parser.parse_args())
    if args.pop("measure"):
        print(measured_table())
        return
    examples = EXAMPLES if args["parameters"] is None else {"": Run(**args)}
    for name, run in examples.items():
        print(f"{name}\n\n{table(run)}\n")


if __name__ == "__main__":
    main()

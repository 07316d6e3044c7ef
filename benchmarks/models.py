"""Measure what it costs to let a tool hold the training loop of a real model: BERT and GPT-2 on tokenized data sets.

    python benchmarks/models.py                                # all works: some hours on two cores
    python benchmarks/models.py --works "bert, 0 workers, fp32"   # one of them
    python benchmarks/models.py --quick                        # a rough look
    python benchmarks/models.py --device cuda                  # on a GPU

The models are made from transformers' configurations with random weights; nothing is downloaded. benchmarks/README.md
describes how each figure is measured.
"""
from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
from collections import namedtuple

import harness

# --- the works: a model, a data set and a recipe, the same for all -----------------------------------------------------

Model = namedtuple("Model", "label batch layers hidden length")
MODELS = {
    "bert": Model("BERT", batch=16, layers=4, hidden=256, length=128),
    "gpt2": Model("GPT-2", batch=8, layers=6, hidden=256, length=128),
}
Work = namedtuple("Work", "model workers precision")
WORKS = {f"{model}, {workers} workers, {precision}": Work(model, workers, precision)
         for model in MODELS for workers in (0, 2) for precision in ("fp32", "bf16")}
SAMPLES, VOCABULARY, CLASSES, SHORTEST = 4_000, 8_192, 2, 16
LR, CLIP, DECAY, LOG_EVERY = 5e-5, 1.0, 0.01, 4


def make_tokenizer(kind: str, length: int):
    "Return a tokenizer of words w0, w1, ... that was never trained: collators need one to pad."
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1} | {f"w{i}": i for i in range(2, VOCABULARY)}, "[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", model_max_length=length,
                                   model_input_names=["input_ids", "attention_mask"])


def make_data(kind: str):
    "Return a `datasets.Dataset` of token ids of several lengths; BERT's has a label that its first token determines."
    import numpy as np
    from datasets import Dataset
    length = MODELS[kind].length
    random = np.random.default_rng(0)
    ids = [random.integers(2, VOCABULARY, n) for n in random.integers(SHORTEST, length + 1, SAMPLES)]
    rows = {"input_ids": ids, "attention_mask": [np.ones_like(row) for row in ids]}
    if kind == "bert": rows["labels"] = [int(row[0] % CLASSES) for row in ids]
    return Dataset.from_dict(rows)


def make_collator(kind: str):
    "Return the collator that pads a batch, always to the same length, so that batches in another order cost the same."
    from transformers import DataCollatorForLanguageModeling, DataCollatorWithPadding
    length = MODELS[kind].length
    tokenizer = make_tokenizer(kind, length)
    if kind == "bert": return DataCollatorWithPadding(tokenizer, pad_to_multiple_of=length)
    return DataCollatorForLanguageModeling(tokenizer, mlm=False, pad_to_multiple_of=length)


def make_model(kind: str):
    "Return the model with random weights, the same for all."
    import torch
    from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel
    about = MODELS[kind]
    torch.manual_seed(0)
    if kind == "bert":
        return BertForSequenceClassification(BertConfig(
            vocab_size=VOCABULARY, hidden_size=about.hidden, num_hidden_layers=about.layers, num_attention_heads=4,
            intermediate_size=4 * about.hidden, max_position_embeddings=about.length, num_labels=CLASSES))
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=about.hidden, n_layer=about.layers, n_head=4,
                                      n_positions=about.length, bos_token_id=0, eos_token_id=0, pad_token_id=0,
                                      use_cache=False))


def make_optimizer(model, steps: int):
    "Return fused AdamW with weight decay on the matrices only, and a linear schedule."
    import torch
    weights = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": weights, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, fused=True)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))


def make_loader(work: Work):
    "Return a shuffled loader."
    from torch.utils.data import DataLoader
    return DataLoader(make_data(work.model), batch_size=MODELS[work.model].batch, shuffle=True,
                      collate_fn=make_collator(work.model), num_workers=work.workers)


# --- the contenders: each trains for `steps` steps, calls `tick()` after each, and returns the mean of its last losses ----

def last_losses(losses: list) -> float:
    "Return the mean of the last two losses that were logged."
    return statistics.mean(float(loss) for loss in losses[-2:]) if losses else float("nan")


def hand_written(work, steps, tick, device):
    "Train with a loop as one writes it with torch alone."
    import torch
    model = make_model(work.model).to(device)
    optimizer, schedule = make_optimizer(model, steps)
    precision = torch.autocast(device, torch.bfloat16) if work.precision == "bf16" else contextlib.nullcontext()
    loader = make_loader(work)
    losses, total, step = [], torch.zeros((), device=device), 0
    model.train()
    while step < steps:
        for batch in loader:
            batch = {key: value.to(device) for key, value in batch.items()}
            with precision: loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            total += loss.detach()
            step += 1
            if step % LOG_EVERY == 0:
                losses.append(total.item() / LOG_EVERY)
                total.zero_()
            tick()
            if step == steps: break
    return last_losses(losses)


def with_accelerate(work, steps, tick, device):
    "Train with the same loop, prepared by Accelerate."
    import torch
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    # Accelerate keeps the precision of a process's first run.
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=device == "cpu", mixed_precision="bf16" if work.precision == "bf16" else "no")
    model = make_model(work.model)
    optimizer, schedule = make_optimizer(model, steps)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, make_loader(work), schedule)
    losses, total, step = [], torch.zeros((), device=accelerator.device), 0
    model.train()
    while step < steps:
        for batch in loader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            total += loss.detach()
            step += 1
            if step % LOG_EVERY == 0:
                losses.append(total.item() / LOG_EVERY)
                total.zero_()
            tick()
            if step == steps: break
    return last_losses(losses)


def settings(work, steps, device):
    "Return what the Trainer and trainer_nb are told; everything else keeps its default."
    return dict(output_dir=tempfile.mkdtemp(), max_steps=steps, learning_rate=LR, weight_decay=DECAY,
                per_device_train_batch_size=MODELS[work.model].batch, max_grad_norm=CLIP, lr_scheduler_type="linear",
                optim="adamw_torch_fused", logging_steps=LOG_EVERY, save_strategy="no", report_to="none",
                disable_tqdm=True, use_cpu=device == "cpu", dataloader_pin_memory=False,
                dataloader_num_workers=work.workers, bf16=work.precision == "bf16")


def with_trainer(work, steps, tick, device):
    "Train with transformers' Trainer, with its printing taken out."
    from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

    class Tick(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs): tick()

    trainer = Trainer(make_model(work.model), TrainingArguments(**settings(work, steps, device)), callbacks=[Tick()],
                      data_collator=make_collator(work.model), train_dataset=make_data(work.model))
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return last_losses([row["loss"] for row in trainer.state.log_history if "loss" in row])


def with_lightning(work, steps, tick, device):
    "Train with Lightning's Trainer: no checkpoints, no progress bar, a logger that keeps rows in a list."
    import lightning as L
    import torch
    from lightning.pytorch.loggers.logger import DummyLogger

    class Rows(DummyLogger):
        def __init__(self):
            super().__init__()
            self.rows = []
        def log_metrics(self, metrics, step=None): self.rows.append({"step": step, **metrics})

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.total = make_model(work.model), torch.zeros((), device=device)
        def configure_optimizers(self):
            optimizer, schedule = make_optimizer(self.net, steps)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
        # Lightning keeps the mode that it finds.
        def on_train_start(self): self.net.train()
        def configure_gradient_clipping(self, optimizer, gradient_clip_val, gradient_clip_algorithm):
            if work.precision == "fp32": self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
            # With mixed precision Lightning refuses to clip for a fused optimizer.
            else: torch.nn.utils.clip_grad_norm_(self.net.parameters(), gradient_clip_val)
        def training_step(self, batch, _):
            loss = self.net(**batch).loss
            self.total += loss.detach()
            if (self.global_step + 1) % LOG_EVERY == 0:
                self.log("loss", self.total / LOG_EVERY)
                self.total = torch.zeros((), device=device)
            return loss
        def on_train_batch_end(self, *_): tick()

    logger = Rows()
    trainer = L.Trainer(accelerator="cpu" if device == "cpu" else "gpu", devices=1, max_steps=steps, max_epochs=-1,
                        precision="bf16-mixed" if work.precision == "bf16" else "32-true", logger=logger,
                        log_every_n_steps=LOG_EVERY, gradient_clip_val=CLIP, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tempfile.mkdtemp())
    trainer.fit(Module(), make_loader(work))
    return last_losses([row["loss"] for row in logger.rows if "loss" in row])


def with_trainer_nb(work, steps, tick, device):
    "Train with trainer_nb's Learner, with its printing taken out as well."
    from trainer_nb import Learner, ProgressCallback
    learn = Learner(make_model(work.model), data_collator=make_collator(work.model), train_dataset=make_data(work.model),
                    **settings(work, steps, device))
    learn.remove_callback(ProgressCallback)
    harness.run_in_blocks(learn, steps, tick)
    return last_losses([row["loss"] for row in learn.state.log_history if "loss" in row])


CONTENDERS = {"hand": hand_written, "accelerate": with_accelerate, "transformers": with_trainer,
              "lightning": with_lightning, "trainer_nb": with_trainer_nb}
LABELS = {"hand": "hand-written loop", "accelerate": "the same loop with Accelerate",
          "transformers": "transformers' `Trainer`", "lightning": "Lightning", "trainer_nb": "trainer_nb"}


# --- the summary and its tables -------------------------------------------------------------------------------------------

def summarize(found: dict) -> dict:
    "Return the figures of each work: samples per second, and the rate as a share of the hand-written loop's."
    figures = {}
    for work, rows in found.items():
        if "hand" not in rows: continue
        batch = MODELS[WORKS[work].model].batch
        base = rows["hand"]
        figures[work] = {name: {"rate": harness.median_with_interval([batch / wall for wall in row["wall"]]),
                                "ratio": harness.quotients(base["wall"], row["wall"]), "loss": row["loss"]}
                         for name, row in rows.items()}
        for name in harness.other_losses(rows): figures[work][name]["other_work"] = True
    return figures


def tables(found: dict) -> dict:
    "Return the tables of a stored result by name."
    figures, made = found["figures"], {}
    for kind, about in MODELS.items():
        rows = []
        for work in (w for w in figures if WORKS[w].model == kind):
            for name in (n for n in CONTENDERS if n in figures[work]):
                row = figures[work][name]
                ratio = "1" if name == "hand" else harness.with_interval(row["ratio"], 3, bold=name == "trainer_nb")
                rows.append([LABELS[name], str(WORKS[work].workers), WORKS[work].precision,
                             harness.with_interval(row["rate"], 1), ratio + " (NOT THE SAME WORK)" * ("other_work" in row)])
        if not rows: continue
        title = (f"{about.label}, {about.layers} layers, hidden size {about.hidden}, length {about.length}, "
                 f"batches of {about.batch}:")
        head = ["", "data workers", "precision", "samples per second", "of hand-written"]
        made[kind] = f"{title}\n\n{harness.table(head, rows)}"
    notes = "\n".join([f"{harness.INTERVALS} {harness.describe(found)}", *harness.missing_lines(found, LABELS)])
    return made | {"notes": notes}


# --- the command line ----------------------------------------------------------------------------------------------------

KINDS = {"steps": lambda spec, exchange: harness.train_by_turns(
    lambda work, *rest: CONTENDERS[spec["name"]](WORKS[work], *rest), spec, exchange)}


def parse(argv):
    "Return the options of the command line."
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    harness.add_options(p, CONTENDERS)
    harness.add_rounds(p, fresh=16, rounds=1, blocks=1, steps=8, warmup=3)
    p.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS))
    opts = p.parse_args(argv)
    if opts.quick: opts.fresh, opts.rounds, opts.blocks = 1, min(6, opts.rounds * opts.fresh), 1
    return opts


def main(argv=None):
    "Measure what was asked for and print the tables."
    opts = parse(argv)
    if opts.worker: return harness.serve(opts.worker, KINDS)
    names, left_out = harness.in_turn(CONTENDERS, opts.only), {}
    raw = harness.measure_by_turns(__file__, names, opts.works, opts, left_out)
    found = harness.result("models", opts, ["fresh", "rounds", "blocks", "steps", "warmup"], summarize(raw), left_out)
    harness.print_result(found, tables(found))
    harness.write_json(opts.json, found)
    harness.write_json(opts.raw, raw)


if __name__ == "__main__": main()

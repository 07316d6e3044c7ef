"""What gpu.py measures: models with random weights, random data, and the loops that train them."""
from __future__ import annotations

import tempfile
from collections import namedtuple

WORKERS, CLIP, LR, LOG_EVERY, FAR = 4, 1.0, 1e-4, 10, 100_000
Size = namedtuple("Size", "layers hidden heads words length batch pixels resnet")
SIZES = {"gpt2": Size(layers=12, hidden=768, heads=12, words=50_257, length=1_024, batch=16, pixels=224, resnet="resnet50"),
         "tiny": Size(layers=2, hidden=32, heads=2, words=128, length=16, batch=4, pixels=32, resnet="resnet18")}


# --- the works: a model and random data ----------------------------------------------------------------------------------

class Rows:
    "Make a sample of random tokens, or a picture, from its number: an epoch that never ends takes no memory."
    def __init__(self, kind: str, size: Size): self.kind, self.size = kind, size

    def __len__(self): return self.size.batch * FAR

    def __getitem__(self, i):
        import torch
        source = torch.Generator().manual_seed(i)
        if self.kind == "resnet":
            return {"x": torch.rand(3, self.size.pixels, self.size.pixels, generator=source), "labels": torch.tensor(i % 1000)}
        tokens = torch.randint(self.size.words, (self.size.length,), generator=source)
        return {"input_ids": tokens, "labels": tokens}


def make_model(kind: str, size: Size, device: str):
    "Return the model with random weights, the same for all."
    import torch
    torch.manual_seed(0)
    with torch.device(device):
        if kind == "resnet": return make_resnet(size)
        from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
        if kind == "gpt2":
            return GPT2LMHeadModel(GPT2Config(vocab_size=size.words, n_embd=size.hidden, n_layer=size.layers, n_head=size.heads,
                                              n_positions=size.length, bos_token_id=0, eos_token_id=0, use_cache=False))
        from peft import LoraConfig, get_peft_model
        hidden = 2048 if size.layers == 12 else size.hidden   # about a billion parameters
        return get_peft_model(LlamaForCausalLM(LlamaConfig(
            vocab_size=32_000 if size.layers == 12 else size.words, hidden_size=hidden, intermediate_size=11 * hidden // 4,
            num_hidden_layers=20 if size.layers == 12 else 2, num_attention_heads=hidden // 16 if hidden < 64 else hidden // 64,
            max_position_embeddings=size.length, use_cache=False)), LoraConfig(r=16, target_modules=["q_proj", "v_proj"]))


def make_resnet(size: Size):
    "Return a network of torchvision that returns its loss, channels last."
    import torch
    import torchvision

    class Classifier(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = getattr(torchvision.models, size.resnet)().to(memory_format=torch.channels_last)

        def forward(self, x, labels):
            return {"loss": torch.nn.functional.cross_entropy(self.net(x.to(memory_format=torch.channels_last)), labels)}
    return Classifier()


def settings(opts, **more) -> dict:
    "Return what the Trainer and trainer_nb are given; everything else keeps its default."
    return dict(output_dir=tempfile.mkdtemp(dir=opts.folder), max_steps=FAR, learning_rate=LR, max_grad_norm=CLIP,
                per_device_train_batch_size=opts.size.batch, optim="adamw_torch_fused", logging_steps=LOG_EVERY,
                save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=opts.device == "cpu", bf16=True,
                dataloader_num_workers=WORKERS) | more


def compiling(opts) -> dict: return dict(torch_compile=True, torch_compile_backend=opts.backend)


# --- the contenders: each trains until `clock()`, which it calls after each step, returns true; and returns its last loss ------

def by_hand(kind, compiled, opts, clock):
    "Train with a loop as one writes it with torch alone."
    import torch
    model = make_model(kind, opts.size, opts.device)
    forward = torch.compile(model, backend=opts.backend) if compiled else model
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=LR, weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / FAR)
    loader = torch.utils.data.DataLoader(Rows(kind, opts.size), opts.size.batch, num_workers=WORKERS, drop_last=True,
                                         pin_memory=opts.device == "cuda", sampler=range(opts.size.batch * FAR))
    model.train()
    total, logged = torch.zeros((), device=opts.device), float("nan")
    for step, batch in enumerate(loader, 1):
        batch = {key: value.to(opts.device, non_blocking=True) for key, value in batch.items()}
        with torch.autocast(opts.device, torch.bfloat16):
            out = forward(**batch)
        loss = out["loss"]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, CLIP)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        total += loss.detach()
        del out, loss
        if step % LOG_EVERY == 0:
            logged = total.item() / LOG_EVERY
            total.zero_()
        if clock(): return logged


def with_trainer(kind, compiled, opts, clock, **more):
    "Train with transformers' Trainer, with its printing taken out."
    import accelerate.state
    from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
    # Accelerate keeps the precision and the compiler of a process's first run.
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)

    class Tick(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs): control.should_training_stop = bool(clock())

    given = settings(opts, **more, **(compiling(opts) if compiled else {}))
    trainer = Trainer(make_model(kind, opts.size, opts.device), TrainingArguments(**given), callbacks=[Tick()],
                      train_dataset=Rows(kind, opts.size))
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return last_loss(trainer)


def last_loss(trainer) -> float:
    "Return the loss that was logged last."
    return [float("nan"), *(row["loss"] for row in trainer.state.log_history if "loss" in row)][-1]


def make_learner(opts, kind="gpt2", **more):
    "Return a learner that does not print."
    from trainer_nb import Learner, ProgressCallback
    learn = Learner(make_model(kind, opts.size, opts.device), train_dataset=Rows(kind, opts.size), **settings(opts, **more))
    learn.remove_callback(ProgressCallback)
    return learn


def with_trainer_nb(kind, compiled, opts, clock):
    "Train with trainer_nb's Learner, snapshots for `rewind` included, with its printing taken out as well."
    learn = make_learner(opts, kind, **(compiling(opts) if compiled else {}))
    learn.run(until=lambda record: clock())
    return last_loss(learn)


CONTENDERS = {"hand": by_hand, "trainer_nb": with_trainer_nb, "transformers": with_trainer}
LABELS = {"hand": "hand-written loop", "trainer_nb": "trainer_nb", "transformers": "transformers' `Trainer`"}

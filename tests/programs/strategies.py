# Configurations of DeepSpeed and FSDP, by dict, by file and by environment, as guides to them show them; only the first import line is changed.
from transformers import Trainer, TrainingArguments
import json, os, sys
import torch

out = sys.argv[1]
deepspeed = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto",
             "gradient_accumulation_steps": "auto", "bf16": {"enabled": "auto"}}
with open(os.path.join(out, "ds_config.json"), "w") as f: json.dump(deepspeed, f)
fsdp_config = {"version": 2, "transformer_layer_cls_to_wrap": ["BertLayer"], "reshard_after_forward": True}


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
    def forward(self, x, labels):
        return {"loss": (self.linear(x) - labels).square().mean()}


data = [{"x": torch.tensor([i / 8]), "labels": torch.tensor([i / 4])} for i in range(16)]
found = {}
for name, settings in {
    "deepspeed by dict": {"deepspeed": deepspeed},
    "deepspeed by file": {"deepspeed": os.path.join(out, "ds_config.json")},
    "fsdp by name": {"fsdp": "full_shard auto_wrap", "fsdp_config": fsdp_config},
    "fsdp by flag": {"fsdp": True, "fsdp_config": fsdp_config},
    "neither": {},
}.items():
    try:
        args = TrainingArguments(output_dir=out, max_steps=2, save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True, **settings)
        trainer = Trainer(model=Line(), args=args, train_dataset=data)
        found[name] = trainer.train().global_step
        found[name + ", enabled"] = (bool(trainer.is_deepspeed_enabled), bool(trainer.is_fsdp_enabled))
    except (ValueError, ImportError, RuntimeError) as error: found[name] = f"{type(error).__name__}: {error}"

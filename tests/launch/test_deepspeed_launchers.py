"DeepSpeed with the launchers: the same program with transformers' Trainer and with ours."
import json
import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("deepspeed")

PROGRAM = '''
import json, os, sys, warnings
warnings.simplefilter("ignore")
who, stage, out, resume = sys.argv[1], int(sys.argv[2]), sys.argv[3], (sys.argv[4:] or [None])[0]
os.environ.setdefault("DS_ACCELERATOR", "cpu")
import torch
from transformers import BertConfig, BertForSequenceClassification, set_seed
if who == "theirs":
    import deepspeed, deepspeed.ops
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    from accelerate import PartialState
    from accelerate.utils import DistributedType
    from transformers import Trainer, TrainingArguments
    # on a CPU, Accelerate does not count the processes of DeepSpeed
    PartialState(cpu=True)
    PartialState._shared_state["distributed_type"] = DistributedType.DEEPSPEED
    os.environ.pop("ACCELERATE_USE_CPU", None)
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    deepspeed.init_distributed("gloo", verbose=False)
    more = dict(accelerator_config={"use_configured_state": True})
else:
    from trainer_nb import Trainer, TrainingArguments
    more = dict(use_cpu=True)
config = {"zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 20, "stage3_gather_16bit_weights_on_model_save": True, "reduce_bucket_size": "auto"},
          "gradient_clipping": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "train_batch_size": "auto"}
if stage: more["deepspeed"] = config
args = TrainingArguments(output_dir=out, per_device_train_batch_size=2, gradient_accumulation_steps=2, num_train_epochs=2, learning_rate=1e-3, warmup_steps=2,
                         weight_decay=0.1, max_grad_norm=0.5, logging_steps=1, save_strategy="steps", save_steps=4, report_to=[], disable_tqdm=True, seed=3, **more)
set_seed(1)
shape = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=50)
model = BertForSequenceClassification._from_config(BertConfig(**shape, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, classifier_dropout=0.0))
g = torch.Generator().manual_seed(0)
data = [{"input_ids": torch.randint(0, 50, (6,), generator=g), "labels": torch.tensor(i % 2)} for i in range(24)]
trainer = Trainer(model=model, args=args, train_dataset=data)
trainer.train(resume_from_checkpoint=resume)
predictions = trainer.predict(data[:7]).predictions
if os.environ["RANK"] == "0":
    rows = [[r["step"], r["loss"], r["grad_norm"], r["learning_rate"]] for r in trainer.state.log_history if "loss" in r]
    print("LOGS", json.dumps([rows, float(predictions.sum())]))
'''


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    "Run the program in two processes of a launcher; return its logs and the sum of its predictions."
    folder = tmp_path_factory.mktemp("deepspeed")
    (folder / "program.py").write_text(PROGRAM)
    def run(who, stage, out, *resume, launcher=("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")):
        words = [sys.executable, *launcher, "program.py", who, str(stage), str(out), *map(str, resume)]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=280, env=os.environ | {"PATH": os.path.dirname(sys.executable) + ":" + os.environ["PATH"]})
        found = re.search("LOGS (.*)", done.stdout)
        assert found, done.stdout + done.stderr
        return json.loads(found[1])
    return run


@pytest.mark.parametrize("stage", [2, 3])
def test_as_the_trainer(program, stage, tmp_path):
    "The same losses, norms and learning rates; a checkpoint is continued to the same numbers."
    def equal(one, other):
        "The processes divide the evaluation's samples in another way, which may change the last bit of a product."
        return one[0] == other[0] and one[1] == pytest.approx(other[1], abs=1e-7)
    theirs = program("theirs", stage, tmp_path / "theirs")
    assert equal(program("ours", stage, tmp_path / "ours"), theirs)
    assert equal(program("ours", stage, tmp_path / "here", tmp_path / "ours" / "checkpoint-4"), theirs)


def test_launchers(program, tmp_path):
    "The variables of accelerate launch, and the launcher of DeepSpeed."
    wanted = program("ours", 2, tmp_path / "torchrun")
    accelerate = ("-m", "accelerate.commands.launch", "--use_deepspeed", "--zero_stage", "2", "--num_processes", "2", "--gradient_clipping", "0.5", "--gradient_accumulation_steps", "2")
    assert program("ours", 0, tmp_path / "accelerate", launcher=(*accelerate, "--main_process_port", "29871")) == wanted
    deepspeed = ("-m", "deepspeed.launcher.runner", "--num_accelerators", "2", "--no_local_rank", "--master_port", "29873")
    assert program("ours", 2, tmp_path / "deepspeed", launcher=deepspeed) == wanted

"Scripts written for transformers' Trainer, in the hands of each launcher: the same weights from both libraries."
import json, os, subprocess, sys
import pytest

from conftest import ROOT
from launched import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# As one finds them: a model and its data at the top, one function, and the call at the end.
SCRIPT = """
import json, os, sys
import torch
from torch.utils.data import Dataset

library, how, out = sys.argv[1:4]
if library == "transformers": from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed
else: from trainer_nb import Trainer, TrainerCallback, TrainingArguments, set_seed


class Words(Dataset):
    def __init__(self, n=48): self.rows = torch.randint(0, 30, (n, 6), generator=torch.Generator().manual_seed(0))
    def __len__(self): return len(self.rows)
    def __getitem__(self, i): return {"input_ids": self.rows[i], "labels": int(self.rows[i].sum() % 2)}


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = torch.nn.Embedding(30, 8), torch.nn.Linear(8, 2)
    def forward(self, input_ids, labels=None):
        logits = self.out(torch.nn.functional.dropout(self.embed(input_ids).mean(1), 0.0, self.training))
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class Counts(TrainerCallback):
    steps = 0
    def on_step_end(self, args, state, control, **kwargs):
        self.steps += 1
        if self.steps == 3 and os.environ.get("RANK", "-") == os.environ.get("FAILS"): raise OSError("the cause")


def train():
    set_seed(1)
    counts = Counts()
    args = TrainingArguments(output_dir=out, per_device_train_batch_size=4, num_train_epochs=2, learning_rate=1e-2, use_cpu=True, logging_steps=2,
                             eval_strategy="epoch", save_strategy="epoch", report_to="none", disable_tqdm=True, seed=3)
    found_early = {"connected": torch.distributed.is_initialized(), "device": args.device.type}
    trainer = Trainer(Small(), args, train_dataset=Words(), eval_dataset=Words(16), callbacks=[counts],
                      compute_metrics=lambda p: {"right": float((p.predictions.argmax(-1) == p.label_ids).mean())})
    loader = trainer.get_train_dataloader()
    found_early |= {"batches": len(loader), "read": [len(batch["labels"]) for batch in loader]}
    trainer.train()
    trainer.save_model(os.path.join(out, "final"))
    metrics = trainer.evaluate()
    found = trainer.predict(Words(8))
    if trainer.is_world_process_zero():
        logs = [{k: v for k, v in o.items() if not k.endswith(("_runtime", "_per_second"))} for o in trainer.state.log_history]
        told = {"logs": logs, "steps": counts.steps, "eval": metrics["eval_loss"], "right": found.metrics["test_right"], "world": args.world_size, "early": found_early, "files": sorted(os.listdir(out)),
                "weights": [p.flatten().tolist() for p in trainer.model.parameters()]}
        with open(os.path.join(out, "told.json"), "w") as f: json.dump(told, f)


if __name__ == "__main__":
    if how == "notebook":
        from accelerate import notebook_launcher
        notebook_launcher(train, num_processes=2, use_port=sys.argv[4])
    else: train()
"""


def told(folder, library, how, fails=None):
    "What a run of the script leaves; what it prints if a rank fails."
    folder = folder/library
    folder.mkdir()
    (folder/"script.py").write_text(SCRIPT)
    port = str(free_port())
    script = ["script.py", library, how, str(folder/"out")]
    one = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node"]
    commands = {
        "alone": [[sys.executable, *script]],
        "notebook": [[sys.executable, *script, port]],
        "torchrun": [[*one, "2", "--master_port", port, *script]],
        "two torchruns": [[*one, "1", "--nnodes", "2", "--node_rank", str(rank), "--master_addr", "127.0.0.1", "--master_port", port, *script] for rank in (0, 1)],
        "accelerate": [[sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--main_process_port", port, *script]],
        "two accelerates": [[sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "2", "--machine_rank", str(rank), "--main_process_ip", "127.0.0.1",
                             "--main_process_port", port, *script] for rank in (0, 1)],
    }[how]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "1"} | ({} if fails is None else {"FAILS": fails})
    started = [subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env) for command in commands]
    said = "".join(o.communicate(timeout=300)[0] for o in started)
    if fails is not None: return said
    assert (folder/"out"/"told.json").exists(), said[-4000:]
    return json.loads((folder/"out"/"told.json").read_text())


def rounded(logs): return [{k: round(v, 6) if isinstance(v, float) else v for k, v in o.items()} for o in logs]


@pytest.mark.parametrize("how", ["alone", "notebook", "torchrun", "two torchruns", "accelerate", "two accelerates"])
def test_both_libraries_end_in_the_same_weights(tmp_path, how):
    "The mean of an evaluation's losses is rounded once less here."
    # transformers imports bitsandbytes where it is installed, which notebook_launcher takes for a use of a GPU
    ours, theirs = told(tmp_path, "trainer_nb", how), told(tmp_path, "transformers", "torchrun" if how == "notebook" else how)
    assert ours["world"] == theirs["world"] == (1 if how == "alone" else 2)
    assert ours["weights"] == theirs["weights"]
    # what a script sees before it trains
    assert ours["early"] == theirs["early"] and ours["early"]["batches"] == (12 if how == "alone" else 6)
    for name in ("steps", "right"): assert ours[name] == theirs[name], name
    assert ours["eval"] == pytest.approx(theirs["eval"], rel=1e-6) and rounded(ours["logs"]) == rounded(theirs["logs"])
    assert set(theirs["files"]) <= set(ours["files"])


@pytest.mark.parametrize("number", range(int(os.environ.get("CAUSES", 2))))
@pytest.mark.parametrize("how", ["notebook", "torchrun"])
def test_the_error_that_is_shown_is_the_cause(tmp_path, how, number):
    "The other process fails, too, within the same second, because its connection is closed."
    said = told(tmp_path, "trainer_nb", how, fails=str(1 - number % 2))
    assert "OSError: the cause" in said and "by peer" not in said, said[-4000:]

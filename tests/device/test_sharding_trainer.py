"""The same script under transformers' Trainer and here, with FSDP on two processes: the losses, the norms, the files, and each resumes the other's checkpoint.

Accelerate uses FSDP for several GPUs only; one flag of its state makes it use FSDP2 on a CPU too, so both sides are the real ones."""
import json, os, shutil, subprocess, sys

import pytest, torch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.xdist_group("launch")]

SCRIPT = """
import json, os, sys, warnings
warnings.filterwarnings("ignore")
which, out, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
import torch
from transformers import GPT2Config, GPT2LMHeadModel
if which == "theirs": from transformers import Trainer, TrainingArguments
else: from trainer_nb import Trainer, TrainingArguments
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=1))
ids = torch.randint(0, 32, (24, 8), generator=torch.Generator().manual_seed(1))
resume = settings.pop("resume", None)
args = TrainingArguments(output_dir=out, use_cpu=True, disable_tqdm=True, report_to="none", per_device_train_batch_size=3, max_steps=6, learning_rate=0.02, optim="adamw_torch", logging_steps=1,
                         **{"save_steps": 3} | settings)
if which == "theirs":
    from accelerate import PartialState
    from accelerate.utils import DistributedType
    args.device
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
trainer = Trainer(model=model, args=args, train_dataset=[{"input_ids": i, "labels": i} for i in ids])
trainer.train(resume_from_checkpoint=resume)
if which == "theirs": assert any(type(p).__name__ == "DTensor" for p in trainer.model.parameters())
if int(os.environ["RANK"]) == 0: print("RESULT", json.dumps([[h["step"], h["loss"], h["grad_norm"]] for h in trainer.state.log_history if "loss" in h]))
"""


def run(folder, which, out, environment=(), **settings):
    (folder / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "script.py", which, str(out), json.dumps(settings)], cwd=folder, capture_output=True, text=True,
                          env=os.environ | dict(environment) | {"ACCELERATE_USE_CPU": "true", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)})
    found = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert found, done.stdout + done.stderr
    return torch.tensor(json.loads(found[0].removeprefix("RESULT")), dtype=torch.float64)


def equal(ours, theirs):
    "Losses to the last bit that is logged; the norm is summed in another order."
    assert torch.equal(ours[:, :2], theirs[:, :2])
    torch.testing.assert_close(ours[:, 2], theirs[:, 2], rtol=1e-6, atol=0)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("theirs")
    return run(folder, "theirs", folder / "out", fsdp=True), folder / "out"


def test_the_same_run_and_each_others_checkpoints(theirs, tmp_path):
    rows, out = theirs
    ours = run(tmp_path, "ours", tmp_path / "ours", fsdp=True, save_format="trainer")
    equal(ours, rows)
    there, here = ({p.name for p in (folder / "checkpoint-3").iterdir()} for folder in (out, tmp_path / "ours"))
    assert there - here == {"training_args.bin", "rng_state_0.pth", "rng_state_1.pth"} and here - there == {"manifest.json", "rest.json", "rng_state.pth", "training_args.json"}
    for name in ("optimizer.bin", "pytorch_model_fsdp.bin"):
        mine, other = (torch.load(folder / "checkpoint-3" / name, weights_only=True) for folder in (tmp_path / "ours", out))
        flat, same = (dict(f["state"]) if name == "optimizer.bin" else f for f in (mine, other))
        assert set(flat) == set(same)
    shutil.copytree(out, tmp_path / "copy")
    equal(run(tmp_path, "ours", tmp_path / "copy", fsdp=True, resume=str(tmp_path / "copy" / "checkpoint-3")), rows)
    equal(run(tmp_path, "theirs", tmp_path / "ours", fsdp=True, resume=str(tmp_path / "ours" / "checkpoint-3")), rows)


def test_data_types_as_accelerate_has_them(tmp_path):
    "Accelerate reduces in bfloat16 too; here that is a policy."
    theirs = run(tmp_path, "theirs", tmp_path / "theirs", fsdp=True, bf16=True, save_steps=9)
    same = run(tmp_path, "ours", tmp_path / "same", fsdp=True, bf16=True, fsdp_config={"mixed_precision_policy": "bf16"}, save_steps=9)
    default = run(tmp_path, "ours", tmp_path / "default", fsdp=True, bf16=True, save_steps=9)
    for rows in (same, default): torch.testing.assert_close(rows, theirs, rtol=0.02, atol=0.01)


def test_the_environment_of_accelerate_launch_shards_the_model(tmp_path, theirs):
    "The script says nothing about FSDP: the same run under both, of which the Trainer's has files of shards."
    environment = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP", "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT", "FSDP_RESHARD_AFTER_FORWARD": "true"}
    there, here = (run(tmp_path, which, tmp_path / which, environment) for which in ("theirs", "ours"))
    equal(here, there)
    equal(here, theirs[0])
    assert len(list((tmp_path / "ours" / "checkpoint-3" / "shards").iterdir())) == 2

"""DeepSpeed: ZeRO 1, 2 and 3 train as DDP does, and every verb works as without them."""
import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("deepspeed")

import sharded
from trainer_nb import TrainingArguments

@pytest.fixture(scope="module", autouse=True)
def no_process_group():
    "A run in one process makes a process group of its own; later tests fork this process."
    yield
    if torch.distributed.is_initialized(): torch.distributed.destroy_process_group()


AUTO = {"gradient_clipping": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "train_batch_size": "auto"}
ACCUMULATED = dict(gradient_accumulation_steps=2, num_train_epochs=2)


def config(stage, **more):
    "A configuration whose weights are divided, however small they are."
    return AUTO | {"zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 20} | more.pop("zero", {})} | more


def model(drop=0.1):
    "Tied weights, a buffer that changes, rows that do not divide evenly; DeepSpeed takes no parameter without dimensions."
    torch.manual_seed(0)
    net = sharded.Net(drop)
    net.scale = torch.nn.Parameter(torch.ones(1))
    return net


def make(stage=None, net=None, **settings):
    settings = {"fsdp": None} | ({} if stage is None else {"deepspeed": config(stage)}) | ACCUMULATED | settings
    return sharded.make(model=net or model(), **settings)


def losses(learn): return [float(r.loss) for r in learn.history if not r.abandoned]
def norms(learn): return [float(r.grad_norm) for r in learn.history if not r.abandoned]
def weights(learn): return torch.cat([p.detach().reshape(-1) for p in learn.model.parameters()])


def close(one, other): assert one == pytest.approx(other, rel=1e-5, abs=1e-6)


@pytest.fixture(scope="module")
def like():
    "An undisturbed run of two processes with DDP."
    learn = make()
    learn.launch(2, train=True)
    return learn


@pytest.mark.parametrize("stage", [pytest.param(1, marks=pytest.mark.slow), 2, 3])
def test_stages_train_as_ddp(like, stage, tmp_path):
    """Losses, norms, evaluations and weights are DDP's, over accumulation, a short last group, a snapshot and a rewind; the
    saved model and the checkpoint are whole, and the run goes on without DeepSpeed."""
    learn = make(stage, output_dir=str(tmp_path / "out"), save_strategy="no")
    learn.launch(2)
    learn.step(2)
    learn.snapshot("here")
    learn.run(steps=2)
    before = losses(learn)
    learn.restore("here")
    learn.step(2)
    assert losses(learn) == before
    learn.rewind(2)
    learn.step(1)
    folder = learn.save_checkpoint()
    learn.save_model(tmp_path / "model")
    learn.train()
    close(losses(learn), losses(like))
    close(norms(learn), norms(like))
    close(learn.evaluate()["eval_loss"], like.evaluate()["eval_loss"])
    learn.close()
    assert torch.allclose(weights(learn), weights(like), atol=1e-5)
    # a checkpoint has the form of any other: DDP and one process read it, and it has no pickle
    assert {p.suffix for p in folder.iterdir()} <= {".json", ".safetensors", ".jsonl"}
    other = make()
    with pytest.warns(UserWarning): other.load_checkpoint(folder)
    assert other.optimizer.state_dict()["state"].keys() == like.optimizer.state_dict()["state"].keys()
    from safetensors.torch import load_file
    saved = load_file(next((tmp_path / "model").glob("*.safetensors")))
    assert torch.equal(saved["inward.weight"], other.model.inward.weight)


ALONE = '''
import sys, warnings
sys.path[:0] = [{here!r}, {tests!r}]
import pytest, torch
import sharded
from test_deepspeed import close, config, losses, make, model
from trainer_nb import TrainerCallback
from trainer_nb.core.errors import InvalidOperation

plain = make()
plain.train()
wanted = losses(plain)

# stage 3 has nothing to divide: the model stays whole
learn = make(3)
learn.train()
close(losses(learn), wanted)
assert learn.model.inward.weight.numel() and type(learn.deepspeed).__name__ == "DeepSpeedEngine" and learn.is_deepspeed_enabled
wanted = losses(learn)
learn.rewind(3)
learn.train()
assert losses(learn) == wanted

# a step that fails in mid-accumulation, and one that fails before the update
left = iter([])
class Fails(sharded.Net):
    def forward(self, x):
        if next(left, None) == 0: raise ArithmeticError("bad batch")
        return super().forward(x)

class Stops(TrainerCallback):
    done = False
    def on_pre_optimizer_step(self, args, state, control, **more):
        if state.global_step == 3 and not self.done:
            self.done = True
            raise OSError("the disk is full")

net = model()
net.__class__ = Fails
learn = make(2, net=net, callbacks=[Stops()])
learn.step(2)
left = iter([1, 0])
with pytest.raises(ArithmeticError): learn.step()
assert learn.state.global_step == 2
with pytest.raises(OSError): learn.train()
learn.train()
assert losses(learn) == wanted

# the user's optimizer; changed settings
net = model()
learn = make(2, net=net, optimizers=(torch.optim.SGD(net.parameters(), lr=0.1), None))
learn.step(1)
learn.set(learning_rate=0.02)
assert learn.step(1)[0].learning_rate < 0.02 and type(learn.optimizer).__name__ == "SGD"

# what cannot work names what to type
for verb in (learn.inspect, learn.watch):
    with pytest.raises(InvalidOperation, match="safe_get_full_grad"): verb()
for verb in (learn.branch, learn.batch_size_find):
    with pytest.raises(InvalidOperation, match="save_checkpoint"): verb()
with learn.debug_step() as debug:
    debug.forward()
    debug.backward()
    with pytest.raises(InvalidOperation, match="on_pre_optimizer_step"): debug.grads()
learn.model.inward.bias.requires_grad_(False)
with pytest.raises(InvalidOperation, match="trainable when the run began"): learn.step()

# the optimizer and the schedule of the configuration; bf16
adam = {{"type": "AdamW", "params": {{"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto", "torch_adam": True}}}}
warmup = {{"type": "WarmupDecayLR", "params": {{"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto", "total_num_steps": "auto"}}}}
learn = make(deepspeed=config(2, optimizer=adam, scheduler=warmup))
learn.step(2)
learn.snapshot("here")
learn.train()
before = losses(learn), [r.learning_rate for r in learn.history]
learn.restore("here")
learn.train()
assert (losses(learn), [r.learning_rate for r in learn.history if not r.abandoned]) == before
with pytest.raises(ValueError, match="'optimizer'"): make(net=(net := model()), deepspeed=config(2, optimizer=adam), optimizers=(torch.optim.SGD(net.parameters(), lr=0.1), None)).step()
for stage in (1, 2):
    learn = make(deepspeed=config(stage, bf16={{"enabled": "auto"}}), bf16=True)
    learn.train()
    before = losses(learn)
    assert learn.model.inward.weight.dtype is torch.bfloat16 and before == pytest.approx(losses(plain), abs=0.02)
    learn.rewind(4)
    learn.train()
    assert losses(learn) == before

# a parameter without dimensions, and values that contradict the arguments
with pytest.raises(ValueError, match="'scale' has no dimensions"): make(2, net=sharded.Net()).step()
with pytest.raises(ValueError, match="gradient_clipping=3"): make(deepspeed=config(2) | {{"gradient_clipping": 3}}).step()
print("all of it")
'''


def here(script): return script.format(here=os.path.dirname(__file__), tests=os.path.dirname(os.path.dirname(__file__)))


def test_one_process(tmp_path):
    "Training, failed steps, rewinding, optimizers and schedules of either side, precision and errors, in a process of its own."
    (tmp_path / "script.py").write_text(here(ALONE))
    done = subprocess.run([sys.executable, "-W", "ignore", "script.py"], cwd=tmp_path, capture_output=True, text=True)
    assert "all of it" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("settings, words", [
    (dict(deepspeed={"zero_optimization": {"stage": 2}}, fsdp=True), "fsdp and deepspeed"),
    (dict(deepspeed={"fp16": {"enabled": True}}), "zero_optimization"), (dict(deepspeed={"zero_optimization": {"stage": 0}}), "stage"),
    (dict(deepspeed="nowhere.json"), "nowhere.json"), (dict(deepspeed="[]"), "should be a dict"),
    (dict(deepspeed={"zero_optimization": {"stage": 2}}, rollback="full"), "rollback"),
    (dict(deepspeed={"zero_optimization": {"stage": 2}}, auto_find_batch_size=True), "auto_find_batch_size"),
    (dict(deepspeed={"zero_optimization": {"stage": 2}, "elasticity": {"enabled": True}}), "elasticity"),
    (dict(deepspeed={"zero_optimization": {"stage": 2}, "optimizer": {"type": "AdamW"}}, learning_rate=[1e-4, 1e-3], layer_groups=["a", "b"]), "layer groups")])
def test_what_is_not_honoured_is_refused_by_name(settings, words):
    with pytest.raises(ValueError, match=words): TrainingArguments(**settings)


def test_a_file_and_json_are_taken(tmp_path):
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    assert TrainingArguments(deepspeed=str(tmp_path / "ds.json")).deepspeed == str(tmp_path / "ds.json")
    assert TrainingArguments(deepspeed='{"zero_optimization": {"stage": 2}}').deepspeed == {"zero_optimization": {"stage": 2}}

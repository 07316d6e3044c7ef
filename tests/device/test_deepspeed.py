"""DeepSpeed: ZeRO 1, 2 and 3 train as DDP does, and every verb works as without them."""
import contextlib, json, multiprocessing, os, runpy, subprocess, sys, threading, warnings

import pytest, torch

pytest.importorskip("deepspeed")

import sharded
from trainer_nb import TrainingArguments
from trainer_nb.args.strategy_args import make_plugin
from trainer_nb.device.deepspeed import leave_own_group


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


def routed(chosen, **settings):
    torch.manual_seed(0)
    return sharded.Routed(chosen, **settings)


# the experts of a call by number, and 3 for a parameter that no layer of its own has
DIFFERENT = {
    "from the beginning": lambda call, rank: [0, 1 + rank],
    "one rank alone": lambda call, rank: [0, 2] if call == 4 and rank == 1 else [0, 1, 2],
    "no layer of its own": lambda call, rank: [0, 1, 2] if call == 4 and rank == 1 else [0, 1, 2, 3],
}


# half a minute each
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("case", DIFFERENT)
def test_ranks_with_different_parameters_are_an_error(stage, case):
    "Before the engine mixes up gradients or weights; it names the parameter, or the layer, and what to type."
    learn = make(stage, net=routed(DIFFERENT[case]), eval_strategy="no")
    try:
        with pytest.raises(ValueError, match=r"(?s)'experts\.(each\.[12]|bias).*rank [01].*deepspeed=None"): learn.launch(2, train=True)
        assert learn.state.global_step == (0 if case == "from the beginning" else 1)
    finally: learn.close()


ALIKE = {
    "in some steps": lambda call, rank: [0, 1, 2] if call % 5 else [2],
    "in other numbers of calls": lambda call, rank: [0] * (1 + rank) + [1, 2],
}


@pytest.mark.parametrize("stage, case", [(1, "in some steps"), (2, "in some steps"), (3, "in some steps"), (2, "in other numbers of calls")])
def test_ranks_that_deviate_alike_train_as_ddp(stage, case):
    "With accumulation, a frozen layer, a checkpointed one and evaluations in between."
    found = []
    for which in (None, stage):
        net = routed(ALIKE[case], checkpointed=True)
        net.inward.requires_grad_(False)
        learn = make(which, net=net, weight_decay=0.0, optim="sgd")
        learn.launch(2, train=True)
        learn.close()
        found.append(losses(learn))
    close(*found)


ALONE = '''
import sys, warnings
sys.path[:0] = [{here!r}, {tests!r}]
import pytest, torch
import sharded
from test_deepspeed import close, config, losses, make, model, norms
from trainer_nb import TrainerCallback
from trainer_nb.core.errors import InvalidOperation

plain = make()
plain.train()
wanted = losses(plain)

# keys that are left out are taken from the arguments
learn = make(deepspeed={{"zero_optimization": {{"stage": 2}}}})
learn.train()
close(losses(learn), wanted)
close(norms(learn), norms(plain))

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
            type(self).done = True   # one of its own would go back with the step
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

# a parameter without dimensions, sparse gradients, an embedding that changes itself, an optimizer that DeepSpeed would make anew, and values that contradict the arguments
with pytest.raises(ValueError, match="Adagrad.*optim='adamw_torch'"): make(2, optim="adagrad").step()
class Averaging(torch.optim.SGD):
    def train(self): pass
    def eval(self): pass
with pytest.raises(ValueError, match="Averaging has other weights for evaluation.*optim='adamw_torch'"): make(2, net=(net := model()), optimizers=(Averaging(net.parameters(), lr=0.1), None)).step()
with pytest.raises(ValueError, match="'scale' has no dimensions"): make(2, net=sharded.Net()).step()
with pytest.raises(ValueError, match="'0' has sparse=True"): make(2, net=torch.nn.Sequential(torch.nn.Embedding(4, 8, sparse=True)), optim="sgd").step()
with pytest.raises(ValueError, match="'0' has max_norm"): make(2, net=torch.nn.Sequential(torch.nn.Embedding(4, 8, max_norm=1.0))).step()
with pytest.raises(ValueError, match="gradient_clipping=3"): make(deepspeed=config(2) | {{"gradient_clipping": 3}}).step()
print("all of it")
'''


CONTINUED = '''
import sys, warnings
sys.path[:0] = [{here!r}, {tests!r}]
import pytest, torch
import sharded
from test_deepspeed import close, config, losses, make, model

class Partial(sharded.Net):
    "Does not use one of its parameters, which gets no gradient."
    unused = ""
    def forward(self, x):
        x = self.inward(x)
        for b in self.blocks: x = b(x)
        x = self.out(x) + 0.1 * self.twin(x.tanh())
        if self.unused != "scale": x = x * self.scale
        return x if self.unused == "shift" else x + self.shift

def partial(unused):
    net = model()
    net.__class__, net.unused = Partial, unused
    return net

# states of parameters that never had a gradient: the first of a flat tensor, and a later one
for unused in ("scale", "shift"):
    plain = make(net=partial(unused), output_dir={folder!r} + "/" + unused, save_strategy="no")
    plain.step(2)
    held = {{n for n, p in plain.model.named_parameters() if p in plain.optimizer.state}}
    assert unused not in held and "inward.weight" in held
    folder = plain.save_checkpoint()
    plain.train()
    learn = make(2, net=partial(unused), output_dir={folder!r} + "/" + unused)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learn.load_checkpoint(folder)
    learn.train()
    close(losses(learn), losses(plain))

# groups that the engine does not have: one without parameters, and one of frozen ones; the user's optimizer and schedule
def grouped(stage, has_schedule, **settings):
    net = model()
    net.out.bias.requires_grad_(False)
    rest = [p for n, p in net.named_parameters() if n not in ("out.bias", "inward.bias")]
    optimizer = torch.optim.SGD([{{"params": [], "lr": 50.0}}, {{"params": [net.out.bias], "lr": 70.0}}, {{"params": [net.inward.bias], "lr": 0.02}}, {{"params": rest, "lr": 0.1}}], lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)) if has_schedule else None
    return make(stage, net=net, optimizers=(optimizer, schedule), **settings)

for has_schedule in (False, True):
    where = {folder!r} + "/grouped" + str(has_schedule)
    plain = grouped(None, has_schedule, output_dir=where, save_strategy="no")
    plain.step(2)
    folder = plain.save_checkpoint()
    plain.train()
    learn = grouped(2, has_schedule, output_dir=where)
    learn.train()
    close(losses(learn), losses(plain))
    learn = grouped(2, has_schedule, output_dir=where)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learn.load_checkpoint(folder)
    assert learn.optimizer.param_groups[0]["lr"] < 0.02 and len(learn.lr_scheduler.base_lrs) == 2
    learn.train()
    close(losses(learn), losses(plain))
    # and back
    folder = learn.save_checkpoint()
    other = grouped(None, has_schedule, output_dir=where)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other.load_checkpoint(folder)
    assert torch.allclose(other.model.inward.weight, learn.model.inward.weight)

# in half precision, where the engine has fp32 weights beside the model's: these continue, in both directions
half = dict(bf16=True, output_dir={folder!r} + "/half", save_strategy="no")
zero = dict(deepspeed=config(2, bf16={{"enabled": "auto"}}))
def loaded(folder, **settings):
    learn = make(**half | settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learn.load_checkpoint(folder)
    return learn
plain = make(**half)
plain.step(2)
folder = plain.save_checkpoint()
saved = {{n: p.detach().clone() for n, p in plain.model.named_parameters()}}
learn = loaded(folder, **zero)
assert learn.model.inward.weight.dtype is torch.bfloat16
flat = torch.cat([t.reshape(-1) for n, t in sorted(learn.run_state.device.strategy.flat_tensors().items()) if n.endswith("/master")])
weights = torch.cat([p.reshape(-1) for p in saved.values()])
assert torch.equal(flat[flat != 0].sort().values, weights[weights != 0].sort().values)
learn.step(2)
folder = learn.save_checkpoint()
flat = torch.cat([t.reshape(-1) for n, t in sorted(learn.run_state.device.strategy.flat_tensors().items()) if n.endswith("/master")])
other = loaded(folder)
weights = torch.cat([p.detach().reshape(-1) for p in other.model.parameters()])
assert other.model.inward.weight.dtype is torch.float32 and torch.equal(flat[flat != 0].sort().values, weights[weights != 0].sort().values)
assert all("master" not in state for state in other.optimizer.state.values())
for each in (plain, learn, other): each.train()
for each in (learn, other): assert losses(each) == pytest.approx(losses(plain), abs=0.02)
with pytest.raises(ValueError, match="in torch.float32, and this one is in torch.bfloat16"): make(net=model().bfloat16(), **half).load_checkpoint(plain.save_checkpoint())
print("all of it")
'''


def run_alone(script, folder):
    "Run a script in a process of its own, a fork of this one, which has imported DeepSpeed; return what it prints."
    (folder / "script.py").write_text(script.format(here=os.path.dirname(__file__), tests=os.path.dirname(os.path.dirname(__file__)), folder=str(folder)))
    def program():
        os.chdir(folder)
        with open("printed", "w") as printed, contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            warnings.simplefilter("ignore")
            torch.set_num_threads(1)
            runpy.run_path("script.py", run_name="__main__")
    leave_own_group()   # of an earlier test, of which a fork would be a member
    process = multiprocessing.get_context("fork").Process(target=program)
    for act in (process.start, process.join):   # a fork of a thread that has computed would hang in its first parallel operation
        (thread := threading.Thread(target=act)).start()
        thread.join()
    return (folder / "printed").read_text()


def test_one_process(tmp_path):
    "Training, failed steps, rewinding, optimizers and schedules of either side, precision and errors, in a process of its own."
    assert (said := run_alone(ALONE, tmp_path)).endswith("all of it\n"), said


def test_a_run_without_deepspeed_is_continued(tmp_path):
    "Parameters without a state, groups that the engine does not have, and half precision: the losses without DeepSpeed."
    assert (said := run_alone(CONTINUED, tmp_path)).endswith("all of it\n"), said


EXPORTED = '''
import torch
from torch.utils.data import TensorDataset
from trainer_nb import Learner
torch.manual_seed(0)
x = torch.randn(40, 8)
data = TensorDataset(x, (x[:, :3].sum(1) > 0).long())
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 2))
zero = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto", "gradient_clipping": "auto"}
learn = Learner(net, train_dataset=data, loss_func=torch.nn.functional.cross_entropy, per_device_train_batch_size=4, max_steps=8, deepspeed=zero, use_cpu=True, disable_tqdm=True, output_dir="out", save_strategy="no")
learn.step(3)
learn.set(lr=1e-3)
learn.step(2)
learn.rewind(1)
learn.train()
print(learn.export_script("train.py"))
'''


def test_a_run_in_one_process_is_written_as_a_script(tmp_path):
    "It ends in the same bytes, and there is no doubt about it."
    def run(name): return subprocess.run([sys.executable, "-W", "ignore", name], cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}).stdout
    (tmp_path / "script.py").write_text(EXPORTED)
    said = run("script.py")
    assert "No cause was found why its weights would differ" in said, said
    assert "The weights are those of the run, byte for byte" in run("train.py")


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


@pytest.mark.parametrize("written, message", [({}, None), ({"gradient_accumulation_steps": 2, "train_batch_size": 6}, None), ({"gradient_accumulation_steps": 4}, "gradient_accumulation_steps=4")])
@pytest.mark.parametrize("launched", [False, True])
def test_keys_that_are_left_out_are_taken_from_the_arguments(written, message, launched, tmp_path, monkeypatch):
    "Of `deepspeed=`, and of the configuration file of `accelerate launch`; a value that contradicts an argument is an error."
    given = {"zero_optimization": {"stage": 2}} | written
    if launched:
        (tmp_path / "ds.json").write_text(json.dumps(given))
        monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
        monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(tmp_path / "ds.json"))
    args = TrainingArguments(deepspeed=None if launched else given, use_cpu=True, per_device_train_batch_size=3, gradient_accumulation_steps=2, max_grad_norm=0.25)
    made = make_plugin(args, "no").hf_ds_config
    assert ("".join(made.mismatches) and message in made.mismatches[0]) if message else not made.mismatches
    expected = {"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2, "train_batch_size": 6, "gradient_clipping": 0.25} | written
    assert {key: made.config[key] for key in expected} == expected


def test_a_file_and_json_are_taken(tmp_path):
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    assert TrainingArguments(deepspeed=str(tmp_path / "ds.json")).deepspeed == str(tmp_path / "ds.json")
    assert TrainingArguments(deepspeed='{"zero_optimization": {"stage": 2}}').deepspeed == {"zero_optimization": {"stage": 2}}


def test_a_run_goes_to_several_processes_and_back():
    "After steps in the notebook's own process, whose engine leaves nothing on the parameters, and no process group, which would exclude forks."
    found = []
    for stage in (2, None):
        learn = make(stage, net=(net := model()))
        before = [set(vars(p)) for p in net.parameters()]
        learn.step(1)
        learn.snapshot("before")
        learn.launch(2)
        assert [set(vars(p)) for p in net.parameters()] == before and learn.run_state.parts.remote_run.processes.pool.method == "fork"
        learn.step(2)
        learn.restore("before")
        learn.step(2)
        learn.close()
        learn.train()
        found.append(losses(learn))
    close(*found)

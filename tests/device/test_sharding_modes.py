"The modes of a sharded model, each with the same numbers as without it and the same exactness: host offload, data types, recomputed layers, compilation, hybrid sharding, experts, generation, adapters."
import math, os, signal, subprocess, sys, tempfile, threading, time

import pytest, torch
from safetensors.torch import load_file

from sharded import Block, Net, counted, make, same, same_run
from trainer_nb import Learner, TrainerCallback
from trainer_nb.core.errors import Paused

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("launch"), pytest.mark.filterwarnings("ignore:.*Converting a tensor")]

OFFLOAD, RECOMPUTE = {"cpu_offload": True}, {"activation_checkpointing": True, "activation_checkpointing_offload": True}
POLICY = {"mixed_precision_policy": {"param_dtype": "bf16", "reduce_dtype": "fp32"}}
MODES = {
    "offload": dict(fsdp_config=OFFLOAD), "recompute": dict(fsdp_config=RECOMPUTE), "policy": dict(fsdp_config=POLICY),
    "everything": dict(fsdp="shard_grad_op offload", fsdp_config=RECOMPUTE, bf16=True), "compile": dict(torch_compile=True, torch_compile_backend="aot_eager"),
    "checkpointing": dict(gradient_checkpointing=True), "compile and recompute": dict(torch_compile=True, torch_compile_backend="aot_eager", fsdp_config=RECOMPUTE),
}
SLOW = ("everything", "compile", "checkpointing", "compile and recompute")
EVERY = [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in MODES]
EXACT = ("offload", "recompute", "compile", "checkpointing", "compile and recompute")   # float32 throughout: no number may change


class Bomb(TrainerCallback):
    "Fails once in all processes, after the first micro-batch of the fourth step."
    not_state = ("flag",)
    def __init__(self): self.flag = tempfile.mktemp()
    def on_substep_end(self, args, state, control, **kwargs):
        mine = f"{self.flag}.{os.environ['RANK']}"
        if state.global_step != 3 or os.path.exists(mine): return
        open(mine, "w").close()
        raise KeyError("bomb")


def accumulating(callbacks=None, **settings): return make(callbacks=callbacks, gradient_accumulation_steps=2, eval_strategy="no", **settings)


@pytest.fixture(scope="module")
def plain():
    "The same run without a mode."
    learn = accumulating()
    with learn.launch(2):
        learn.step(6)
        learn.set(learning_rate=5e-3)
        learn.train()
    return learn


@pytest.mark.parametrize("mode", EVERY)
def test_every_mode_is_exact(plain, mode):
    "Snapshots, rewinding, a failed step and an interrupt in the middle of an accumulation, a new rate and a second launch leave no trace."
    undisturbed, learn = (accumulating(callbacks, **MODES[mode]) for callbacks in (None, [Bomb()]))
    with undisturbed.launch(2):
        undisturbed.step(6)
        undisturbed.set(learning_rate=5e-3)
        undisturbed.train()
    with learn.launch(2):
        learn.step(2)
        learn.snapshot("two")
        with pytest.raises(KeyError): learn.step(3)
        assert learn.state.global_step == 3
        learn.step(2)
        assert learn.rewind(2).different == []
        learn.step(1)
        learn.restore("two")
    assert learn.evaluate()["eval_loss"] > 0
    with learn.launch(2):
        timer = threading.Timer(0.05, signal.raise_signal, [signal.SIGINT])
        timer.start()
        try: learn.step(4)
        except (Paused, KeyboardInterrupt): pass
        timer.join()
        if learn.state.global_step < 6: learn.step(6 - learn.state.global_step)
        learn.set(learning_rate=5e-3)
        assert learn.evaluate()["eval_loss"] > 0
        learn.train()
    same(undisturbed, learn)
    if mode in EXACT: same(plain, learn)
    else: torch.testing.assert_close(torch.tensor(counted(plain)), torch.tensor(counted(learn)), rtol=0.05, atol=0.02)


@pytest.mark.parametrize("mode", ["offload", pytest.param("everything", marks=pytest.mark.slow)])
def test_a_checkpoint_of_a_mode_goes_on_without_it(tmp_path, mode):
    "Also with the mode: byte for byte."
    learn = make(output_dir=str(tmp_path), save_strategy="steps", save_steps=5, **MODES[mode])
    learn.launch(2, train=True)
    again, whole = make(output_dir=str(tmp_path), save_strategy="no", **MODES[mode]), make(output_dir=str(tmp_path), save_strategy="no", fsdp=None, per_device_train_batch_size=8, bf16="bf16" in MODES[mode])
    with again.launch(2): again.load_checkpoint(tmp_path/"checkpoint-5"); again.train()
    same_run(learn, again)
    with pytest.warns(UserWarning): assert whole.load_checkpoint(tmp_path/"checkpoint-5").step == 5


def test_where_the_numbers_are():
    "The data types of gathered weights, of reductions and of shards; the layers that are computed again."
    def look(learn):
        found, hooks = {}, []
        for name, m in learn.model.named_modules():
            if name in ("inward", "blocks.0.inner"): hooks.append(m.register_forward_hook(lambda m, given, out, name=name: found.setdefault(name, []).append(str(m.weight.dtype))))
        reduced = {str(g._reduce_dtype) for g in learn.run_state.device.strategy._groups()}
        learn.step(1)
        for h in hooks: h.remove()
        return found, reduced, {str(p.dtype) for p in learn.model.parameters()}
    for settings, gathered, reduced, calls in (({}, "torch.float32", "None", 1), (dict(bf16=True), "torch.bfloat16", "torch.float32", 1), (dict(fsdp_config={"mixed_precision_policy": "bf16"}), "torch.bfloat16", "None", 1),
                                               (dict(bf16=True, fsdp_config=RECOMPUTE), "torch.bfloat16", "torch.float32", 2)):
        learn = make(eval_strategy="no", **settings)
        with learn.launch(2):
            learn.step(1)
            [[found, said, shards]] = {repr(r): r for r in learn.run_on_all(look)}.values()
        assert found == {"inward": [gathered], "blocks.0.inner": [gathered] * calls} and said == {reduced} and shards == {"torch.float32"}


def put_scaler(learn):
    "Of torch, for the CPU: mixed precision in float16 needs a GPU."
    learn.run_state.device.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)


def overflow(learn):
    if os.environ["RANK"] == "1": hook = learn.model.blocks[0].inner.register_full_backward_hook(lambda m, given, out: hook.remove() or tuple(g * float("inf") for g in given))


def scale(learn): return learn.run_state.device.scaler.get_scale()


@pytest.mark.parametrize("optim", ["adamw_torch", pytest.param("adamw_torch_fused", marks=pytest.mark.slow)])
def test_the_scaler_of_fp16(optim):
    "A power of two leaves no trace in the numbers; an overflow in one process skips the update in all; the scale goes back with a snapshot."
    plain, learn = make(eval_strategy="no", optim=optim), make(eval_strategy="no", optim=optim)
    plain.launch(2, train=True)
    with learn.launch(2):
        learn.evaluate()
        learn.run_on_all(put_scaler)
        learn.step(4)
        learn.snapshot("four")
        assert learn.run_on_all(scale) == [2048.0, 2048.0]
        before = learn.snapshot().tensors["weights/inward.weight"]
        learn.run_on_all(overflow)
        [record] = learn.step()
        assert not math.isfinite(record.grad_norm) and learn.run_on_all(scale) == [1024.0, 1024.0] and torch.equal(before, learn.snapshot().tensors["weights/inward.weight"])
        assert math.isfinite(learn.step()[0].grad_norm)
        learn.restore("four")
        assert learn.run_on_all(scale) == [2048.0, 2048.0]
        learn.train()
    same(plain, learn)


def test_no_layer_to_compute_again():
    learn = make(fsdp_config={"auto_wrap_policy": "NO_WRAP", "activation_checkpointing": True})
    with pytest.raises(ValueError, match="name them in transformer_layer_cls_to_wrap"), learn.launch(2): learn.step()


# ---- hybrid

def test_hybrid_sharding(tmp_path):
    "Two copies of the model, each in two shards: the numbers of four shards, exact by itself; snapshots and checkpoints are whole, and a process that dies loses nothing that another one has not."
    four = dict(per_device_train_batch_size=2)
    full, hybrid, other, ddp = make(**four), *(make(**four, fsdp="hybrid_shard", fsdp_config={"dp_shard_size": 2}, output_dir=str(tmp_path / str(i)), save_strategy="steps", save_steps=5) for i in range(2)), make(**four, fsdp=None)
    full.launch(4, train=True)
    ddp.launch(4, train=True)
    hybrid.launch(4, train=True)
    with other.launch(4):
        other.step(2)
        shapes = other.run_on_all(lambda learn: (str(learn.model.inward.weight.placements), tuple(learn.model.inward.weight._local_tensor.shape)))
        assert shapes == [("(Replicate(), Shard(dim=0))", (n, 8)) for n in (8, 7, 8, 7)]
        here = other.snapshot("two")
        assert here.tensors["weights/inward.weight"].shape == (15, 8)
        other.step(3)
        assert other.rewind(2).different == []
        other.restore("two")
        other.step(2)
        os.kill(other.processes[3]["pid"], signal.SIGKILL)
        with pytest.raises(RuntimeError, match="killed by SIGKILL"): other.step()
        other.train()
    same(hybrid, other)
    for one in (full, ddp):
        torch.testing.assert_close(torch.tensor(counted(one)), torch.tensor(counted(hybrid)), rtol=1e-4, atol=1e-5)
    again = make(**four, fsdp="hybrid_shard", fsdp_config={"dp_shard_size": 2}, output_dir=str(tmp_path / "0"), save_strategy="no")
    with again.launch(4): again.load_checkpoint(tmp_path / "0" / "checkpoint-5"); again.train()
    same_run(hybrid, again)
    with pytest.raises(ValueError, match="give a divisor of 4"), make(**four, fsdp_config={"dp_shard_size": 3}).launch(4) as learn: learn.step()


# ---- parameters without a gradient in some processes

class Experts(torch.nn.Module):
    "A row goes to one of three experts; the third never gets one, and the others get none in many micro-batches."
    def __init__(self, n):
        super().__init__()
        self.experts, self.norm = torch.nn.ModuleList([Block(n) for _ in range(3)]), torch.nn.LayerNorm(n)
        for e in self.experts: e.drop.p = 0.0
    def forward(self, x):
        out, which = x.clone(), (x[:, 0] > 0).long()
        for i, expert in enumerate(self.experts):
            mine = which == i
            if mine.any(): out[mine] = expert(x[mine])
        return self.norm(out)


class Mixture(torch.nn.Module):
    _no_split_modules = ["Experts"]
    def __init__(self):
        super().__init__()
        self.layers, self.out, self.never = torch.nn.Sequential(Experts(8), Experts(8)), torch.nn.Linear(8, 2), torch.nn.Linear(2, 2)
    def forward(self, x): return self.out(self.layers(x))


@pytest.mark.parametrize("settings", [{}, pytest.param(dict(fsdp=None), marks=pytest.mark.slow), pytest.param(dict(gradient_accumulation_steps=3), marks=pytest.mark.slow)])
def test_an_expert_without_tokens_in_one_process(settings):
    "The numbers of one process; a parameter that no process uses has no gradient and no state, so weight decay leaves it as it is."
    def learner(**more):
        torch.manual_seed(0)
        return make(model=Mixture(), eval_strategy="no", **more)
    alone, many = learner(**settings | dict(fsdp=None, per_device_train_batch_size=2)), learner(**settings | dict(per_device_train_batch_size=1))
    before = {n: p.detach().clone() for n, p in alone.model.named_parameters() if "experts.2" in n or "never" in n}
    alone.train()
    many.launch(2, train=True)
    torch.testing.assert_close(torch.tensor(counted(alone)), torch.tensor(counted(many)), rtol=1e-4, atol=1e-5)
    for (name, a), b in zip(alone.model.named_parameters(), many.model.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-6, msg=name)
        if name in before: assert torch.equal(before[name], b) and b not in many.optimizer.state


class Dropping(Net):
    "Skips blocks at random (LayerDrop), or the first one in each third pass."
    def __init__(self, at_random): super().__init__(0.0); self.at_random = at_random
    def forward(self, x):
        x = self.inward(x)
        for i, b in enumerate(self.blocks):
            if self.training and (torch.rand(()) < 0.5 if self.at_random else i == 0 and self.calls.item() % 3 == 1): continue
            x = b(x)
        if self.training: self.calls += 1
        return (self.out(x) + 0.1 * self.twin(x.tanh())) * self.scale + self.shift


@pytest.mark.parametrize("settings", [{}, pytest.param(dict(gradient_accumulation_steps=2, fsdp_config={"activation_checkpointing": True}), marks=pytest.mark.slow),
                                      pytest.param(dict(gradient_checkpointing=True), marks=pytest.mark.slow)])
def test_a_layer_that_some_processes_skip(settings):
    "Each process draws for itself: an error within seconds that says what to type, instead of waiting forever or using another layer's weights. DDP trains it."
    torch.manual_seed(0)
    begun = time.monotonic()
    learn = make(model=Dropping(True), eval_strategy="no", **settings)
    with pytest.raises(ValueError, match=r"all processes have to run the same wrapped layers\. Switch off .*layerdrop=0\.0"), learn.launch(2): learn.train()
    assert time.monotonic() - begun < 60
    ddp = make(model=Dropping(True), eval_strategy="no", **settings | dict(fsdp=None, fsdp_config=None))
    ddp.launch(2, train=True)
    assert ddp.state.global_step == ddp.state.max_steps
    around = make(model=Dropping(True), eval_strategy="no", fsdp_config={"auto_wrap_policy": "NO_WRAP"})   # what the error says: the module around them
    around.launch(2, train=True)
    assert around.state.global_step == around.state.max_steps


def test_a_layer_that_all_processes_skip_in_the_same_passes():
    alone, many = make(model=Dropping(False), fsdp=None, eval_strategy="no", per_device_train_batch_size=8), make(model=Dropping(False), eval_strategy="no")
    alone.train()
    many.launch(2, train=True)
    torch.testing.assert_close(torch.tensor(counted(alone)), torch.tensor(counted(many)), rtol=1e-4, atol=1e-5)


# ---- evaluation

def t5(**settings):
    from transformers import T5Config, T5ForConditionalGeneration
    torch.manual_seed(0)
    model = T5ForConditionalGeneration(T5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2, dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1))
    ids = torch.randint(2, 32, (11, 6), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": i, "labels": i} for i in ids]
    return Learner(model, train_dataset=data, eval_dataset=data, use_cpu=True, disable_tqdm=True, max_steps=3, learning_rate=0.01, optim="sgd", predict_with_generate=True, generation_max_length=7, per_device_eval_batch_size=2,
                   eval_strategy="steps", eval_steps=1, compute_metrics=summed, **settings)


def summed(p): return {"sum": float(p.predictions.sum()), "n": p.predictions.shape[0]}


def test_generation():
    "Batches of different numbers per process, and texts of different lengths, keep the processes together."
    alone, many = t5(per_device_train_batch_size=4), t5(per_device_train_batch_size=2, fsdp=True)
    alone.train()
    with many.launch(2):
        many.train()
        assert many.predict(many.eval_dataset).metrics["test_sum"] == alone.predict(alone.eval_dataset).metrics["test_sum"]
        texts = many.run_on_all(lambda learn: learn.model.generate(torch.tensor([[3, 4, 5 + int(os.environ["RANK"])]]), max_length=5 + int(os.environ["RANK"])).tolist())
        assert [len(text[0]) for text in texts] == [5, 6]
    for a, b in zip(alone.history.evaluations(), many.history.evaluations()):
        assert (a["eval_sum"], a["eval_n"]) == (b["eval_sum"], b["eval_n"]) and a["eval_loss"] == pytest.approx(b["eval_loss"], rel=1e-4)


# ---- adapters

def adapted(**settings):
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=1))
    model = get_peft_model(model, LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
    ids = torch.randint(0, 32, (16, 8), generator=torch.Generator().manual_seed(1))
    return Learner(model, train_dataset=[{"input_ids": i, "labels": i} for i in ids], use_cpu=True, disable_tqdm=True, max_steps=4, learning_rate=0.1, optim="sgd", **settings)


@pytest.mark.parametrize("config", [{}, OFFLOAD | RECOMPUTE])
def test_adapters(tmp_path, config):
    "The numbers of one process; adapters are written whole, loaded by PEFT, and a checkpoint of them goes on."
    from peft import PeftModel
    alone, many = adapted(per_device_train_batch_size=8), adapted(per_device_train_batch_size=4, fsdp=True, fsdp_config=config, output_dir=str(tmp_path/"out"), save_strategy="steps", save_steps=2)
    alone.train()
    with many.launch(2):
        many.step(1)
        here = many.snapshot("here")
        many.step(2)
        many.restore(here)
        many.train()
        many.save_model(tmp_path/"adapter")
    for a, b in zip(alone.model.parameters(), many.model.parameters()): torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    base = adapted().model.unload()
    there = PeftModel.from_pretrained(base, tmp_path/"adapter").state_dict()
    assert len(load_file(tmp_path/"adapter"/"adapter_model.safetensors")) == 4
    for k, t in many.model.state_dict().items(): assert torch.equal(t, there[k]), k
    again = adapted(per_device_train_batch_size=4, fsdp=True, fsdp_config=config, output_dir=str(tmp_path/"out"), save_strategy="no")
    with again.launch(2): again.load_checkpoint(tmp_path/"out"/"checkpoint-2"); again.train()
    same_run(many, again)


# ---- loading

SCRIPT = """
import os, sys
sys.path[:0] = [{tests!r}]
from sharded import *
import torch.distributed as dist
learn = make(eval_strategy="no", fsdp_config={{"cpu_ram_efficient_loading": True}})
assert os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "true"
if os.environ["RANK"] == "1":
    for p in learn.model.parameters(): p.data.fill_(float("nan"))
learn.train()
if dist.get_rank() == 0: print("losses", [float(r.loss) for r in learn.history])
dist.destroy_process_group()
"""


def test_only_rank_0_has_read_the_weights(tmp_path):
    "The others have memory of any content, as transformers' from_pretrained leaves it."
    (tmp_path / "script.py").write_text(SCRIPT.format(tests=os.path.dirname(os.path.dirname(__file__))))
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "script.py"], cwd=tmp_path, capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)})
    like = make(eval_strategy="no")
    like.launch(2, train=True)
    assert f"losses {[float(r.loss) for r in like.history]}" in done.stdout, done.stdout + done.stderr

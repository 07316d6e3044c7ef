"A model in shards (FSDP2) on two processes of a CPU: the same numbers as whole, the same exactness, and whole again wherever it leaves the processes."
import os, signal, subprocess, sys, tempfile, warnings

import pytest, torch
from safetensors.torch import load_file

from launched import Fails
from sharded import Block, Net, counted, make, rows, same
from trainer_nb import Learner, TrainerCallback, TrainingArguments
from trainer_nb.state import resume
from trainer_nb.core.errors import InvalidOperation
from trainer_nb.args import strategy_args
from trainer_nb.args.strategy_args import ShardingConfig, resolve_sharding
from trainer_nb.device.sharding import to_local
from trainer_nb.device.collectives import SINGLE_PROCESS, World

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("launch"), pytest.mark.filterwarnings("ignore:.*Converting a tensor")]


def close(one, other):
    "The same within rounding: weights, optimizer state, what was logged, what was measured."
    for (name, a), b in zip(one.model.state_dict().items(), other.model.state_dict().values()): torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-6, msg=name)
    for a, b in zip(one.optimizer.state.values(), other.optimizer.state.values()): torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-6)
    torch.testing.assert_close(torch.tensor(counted(one)), torch.tensor(counted(other)), rtol=1e-4, atol=1e-5)
    for a, b in zip(one.history.evaluations(), other.history.evaluations()): assert a["eval_loss"] == pytest.approx(b["eval_loss"], rel=1e-5)


@pytest.fixture(scope="module")
def like():
    "An undisturbed run."
    learn = make()
    learn.launch(2, train=True)
    return learn


# ---- settings

def test_settings_say_the_same_in_many_words():
    same_thing = [resolve_sharding(*asked) for asked in ((True,), ("full_shard",), ("full_shard auto_wrap", {}), (["full_shard"], {"fsdp_version": 2}), ("true", {"cpu_offload": "false", "xla": False}))]
    assert set(same_thing) == {ShardingConfig()} and resolve_sharding("shard_grad_op") == resolve_sharding(True, {"reshard_after_forward": "false"}) == ShardingConfig(reshard=False)
    assert resolve_sharding("") is resolve_sharding(None) is resolve_sharding(False, {"min_num_params": 0, "xla": False}) is None   # as the Trainer writes that it is off


def test_the_trainers_settings_mean_what_they_mean_there():
    "What is honoured here is what the Trainer makes of the same words."
    from transformers import TrainingArguments as Theirs
    for fsdp, config in ((True, None), ("full_shard auto_wrap", {"transformer_layer_cls_to_wrap": "Block"}), (["shard_grad_op"], {}), ("full_shard", {"fsdp_version": 2}),
                         (True, {"reshard_after_forward": "false", "auto_wrap_policy": "NO_WRAP"}), (True, {"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 7})):
        ours, theirs = resolve_sharding(fsdp, config), Theirs("x", fsdp=fsdp, fsdp_config=None if config is None else dict(config), use_cpu=True).fsdp_plugin_args
        names = None if ours.classes is None else ",".join(ours.classes)
        assert (ours.policy, ours.reshard, ours.min_params, names) == (theirs["auto_wrap_policy"], theirs["reshard_after_forward"], theirs.get("min_num_params", 0),
                                                                      theirs.get("transformer_cls_names_to_wrap"))


@pytest.mark.parametrize("settings, words", [
    (dict(fsdp="no_shard"), "is DDP; leave fsdp out"), (dict(fsdp="full_shard sideways"), "'sideways' is unsupported"), (dict(fsdp_config={"version": 3}), "versions 1 and 2"),
    (dict(fsdp_config={"cpu_offload": 1}), "'cpu_offload': 1} should be True or False"), (dict(fsdp_config={"activation_checkpointing": True}, gradient_checkpointing=True), "compute the layers again"),
    (dict(fsdp_config={"activation_checkpointing_offload": True}), "activation_checkpointing=True in fsdp_config"),
    (dict(fsdp_config={"state_dict_type": "LOCAL_STATE_DICT"}), "'FULL_STATE_DICT' or 'SHARDED_STATE_DICT'"),
    (dict(fsdp_config={"state_dict_type": "SHARDED_STATE_DICT"}, save_only_model=True), "save_only_model=True writes full weights"),
    (dict(fsdp_config={"mixed_precision_policy": "int8"}), "with 'fp16', 'bf16', 'fp32'"), (dict(fsdp_config={"mixed_precision_policy": {"buffer_dtype": "bf16"}}), "'buffer_dtype': 'bfloat16'"),
    (dict(fsdp_config={"dp_shard_size": True}), "a number of processes"), (dict(fsdp_config={"ignored_modules": "head"}), "ignored_modules"),
    (dict(fsdp_config={"sharding_strategy": "NO_SHARD"}), "leave fsdp out"), (dict(fsdp_config={"xla": True}), "XLA"), (dict(fsdp_config={"mesh": 2}), "no key 'mesh'"),
    (dict(fsdp="full_shard", fsdp_config={"reshard_after_forward": False}), "contradict"),
    (dict(fsdp_config="nowhere.json"), "nowhere.json"), (dict(fsdp=None, fsdp_config={"auto_wrap_policy": "NO_WRAP"}), "without fsdp=True"),
    (dict(optim="adafactor"), "adafactor"), (dict(ddp_find_unused_parameters=True), "ddp_find_unused_parameters"),
    (dict(bf16_full_eval=True), "whose shards have one precision"), (dict(fsdp=None, deepspeed={"zero_optimization": {"stage": 3}}, fp16_full_eval=True), "whose parts have one precision")])
def test_what_is_not_honoured_is_refused_by_name(settings, words):
    with pytest.raises(ValueError, match=words): TrainingArguments(**{"fsdp": True} | settings)


def test_one_process_is_told_what_to_type(monkeypatch):
    "Whatever trains is refused before anything has happened; looking is not."
    learn = make()
    for verb in (learn.step, learn.train, learn.debug_step, learn.inspect, learn.lr_find, learn.batch_size_find, lambda: learn.launch(1)):
        with pytest.raises(ValueError, match=r"learn\.launch\(num_processes=2\)"): verb()
    assert not learn.history.rows.whole() and learn.state.global_step == 0 and learn.evaluate()["eval_loss"] > 0
    learn.args.fsdp = None
    assert learn.step(1)[0].step == 1
    for name, value, words in (("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR", "compile"),
                                ("ACCELERATE_USE_PARALLELISM_CONFIG", "true", "parallelism_config"), ("ACCELERATE_MIXED_PRECISION", "bf16", "bf16=True")):
        with monkeypatch.context() as m:
            m.setenv(name, value)
            with pytest.raises(ValueError, match=words): make(fsdp=None).step()


def test_a_session_does_not_read_the_configuration_again(monkeypatch):
    "It is read when the settings are checked and when the device is made."
    learn = make(fsdp=None)
    learn.step(1)
    def read(config): raise AssertionError("read again")
    monkeypatch.setattr(strategy_args, "read_fsdp_config", read)
    assert learn.step(1)[0].step == 2
    with pytest.raises(AssertionError, match="read again"): resolve_sharding(True)


def test_a_model_that_cannot_be_divided():
    class Limited(Net):
        def __init__(self): super().__init__(); self.table = torch.nn.Embedding(4, 8, max_norm=1.0)
    class Sparse(Net):
        def __init__(self): super().__init__(); self.table = torch.nn.Embedding(4, 8, sparse=True)
    used = make()
    used.optimizers = torch.optim.SGD(used.model.parameters(), lr=0.1, momentum=0.9), None
    used.model(torch.ones(1, 8)).sum().backward()
    used.optimizers[0].step()
    for learn, words in ((make(model=Limited()), "'table' has max_norm"), (make(model=Limited(), fsdp=None), r"each process would change.*\(DDP\)"), (make(model=Sparse()), "'table' has sparse=True"), (make(fsdp_config={"transformer_layer_cls_to_wrap": "Bert"}), "'Bert'"), (used, "has a state already")):
        with pytest.raises(ValueError, match=words), learn.launch(2): learn.step()
        assert learn.run_state.parts.remote_run is None and learn.model.out.weight.shape == (2, 15)


UNDIVIDED = """
import torch
from trainer_nb import Learner
data = [{"input": torch.ones(8), "labels": torch.ones(2)}] * 16
for config in (None, {"min_num_params": 10**6}, {"auto_wrap_policy": "NO_WRAP"}, {"transformer_layer_cls_to_wrap": "Linear"}):
    learn = Learner(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)), train_dataset=data, loss_func=torch.nn.functional.mse_loss,
                    use_cpu=True, disable_tqdm=True, max_steps=2, output_dir=None, fsdp=True, fsdp_config=config)
    with learn.launch(2): pass
"""


def test_a_model_that_is_gathered_as_a_whole_is_reported(tmp_path):
    "Sharding saves little if no layer is wrapped: a warning of the main process, unless the settings request it. (In a program: pytest keeps warnings.)"
    (tmp_path/"undivided.py").write_text(UNDIVIDED)
    done = subprocess.run([sys.executable, "undivided.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    said = [line for line in (done.stdout + done.stderr).splitlines() if "no layer of the model is sharded separately" in line]
    assert len(said) == 2 and "'transformer_layer_cls_to_wrap': [...]" in said[0] and "a smaller min_num_params" in said[1]


# ---- the same numbers

@pytest.mark.parametrize("settings", [{}, dict(gradient_accumulation_steps=2, optim="sgd", optim_args="momentum=0.9", fsdp_config={"reshard_after_forward": False})])
def test_as_one_process_and_as_ddp(settings):
    "Weights, optimizer state, losses, the norm of all gradients, and evaluations."
    whole = settings | {"fsdp": None, "fsdp_config": None}
    alone, ddp, many = make(0, **whole, per_device_train_batch_size=8), make(0, **whole), make(0, **settings)
    alone.train()
    ddp.launch(2, train=True)
    with many.launch(2):
        def look(learn):
            of = {n: (type(p).__name__, tuple(p.shape), tuple(getattr(p, "_local_tensor", p).shape)) for n, p in learn.model.named_parameters()}
            return of["inward.weight"], of["scale"], sum(type(m).__name__.startswith("FSDP") for m in learn.model.modules())
        many.step(1)
        assert many.run_on_all(look) == [(("DTensor", (15, 8), (n, 8)), ("Parameter", (), ()), 3) for n in (8, 7)]   # really in shards: two blocks and the root
        many.train()
    close(alone, many)
    close(ddp, many)
    assert type(many.model) is Net and type(many.model.out.weight) is torch.nn.Parameter


def test_between_micro_batches_nothing_is_exchanged():
    "Of three micro-batches, gradients of the last one only are added up over the processes."
    learn = make(gradient_accumulation_steps=3, eval_strategy="no", max_grad_norm=0.0)
    def count(learn):
        from torch.distributed.fsdp import _fully_shard
        kinds, real = [], _fully_shard._fsdp_param_group.foreach_reduce
        def counting(*args, **kwargs): kinds.append(1); return real(*args, **kwargs)
        _fully_shard._fsdp_param_group.foreach_reduce = counting
        try: learn.step(1)
        finally: _fully_shard._fsdp_param_group.foreach_reduce = real
        return len(kinds)
    with learn.launch(2): assert learn.run_on_all(count) == [3, 3]   # once for each group of parameters


def test_of_transformers_with_tied_weights(tmp_path):
    "Layers are found by `_no_split_modules`; what is written can be read by from_pretrained."
    from transformers import GPT2Config, GPT2LMHeadModel
    def lm(**settings):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
        ids = torch.randint(0, 32, (16, 8), generator=torch.Generator().manual_seed(1))
        data = [{"input_ids": i, "labels": i} for i in ids]
        return Learner(model, train_dataset=data, use_cpu=True, disable_tqdm=True, max_steps=3, learning_rate=0.1, optim="sgd", **settings)
    alone, many = lm(per_device_train_batch_size=8), lm(per_device_train_batch_size=4, fsdp="full_shard auto_wrap")
    alone.train()
    with many.launch(2):
        many.train()
        many.save_model(tmp_path/"m")
    close(alone, many)
    there = GPT2LMHeadModel.from_pretrained(tmp_path/"m")
    for a, b in zip(many.model.state_dict().values(), there.state_dict().values()): assert torch.equal(a, b)
    assert there.config.architectures == ["GPT2LMHeadModel"]


# ---- the same exactness

@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_any_split_over_verbs_and_launches(like, start):
    learn = make()
    with learn.launch(2):
        learn.step(3)
        assert learn.run(epochs=1)[-1].step == 6 and learn.rewind(3).different == []
        here = learn.snapshot("here")
        assert not here.shapes and here.tensors["weights/inward.weight"].shape == (15, 8)   # whole, as it comes to the notebook
        learn.step(2)
        learn.restore("here")
        assert learn.state.global_step == 3
    assert learn.evaluate()["eval_loss"] > 0 and [type(o).__name__ for o in (learn.model, learn.optimizer)] == ["Net", "AdamW"]
    with learn.launch(2, start=start): learn.train()
    same(like, learn)


@pytest.mark.parametrize("save_format", ["safetensors", pytest.param("trainer", marks=pytest.mark.slow)])
def test_checkpoints_are_whole(like, tmp_path, save_format):
    "Another learner goes on from them, in shards or not; the model alone is written whole."
    learn = make(output_dir=str(tmp_path), save_strategy="steps", save_steps=5, save_format=save_format)
    with learn.launch(2):
        learn.step(7)
        learn.save_model(tmp_path/"model")
    written, here = load_file(tmp_path/"model"/"model.safetensors"), learn.model.state_dict()
    assert all(torch.equal(t, here[k]) for k, t in written.items()) and set(here) - set(written) in ({"twin.weight"}, {"out.weight"})   # tied: once
    whole = make(output_dir=str(tmp_path), save_strategy="no", fsdp=None, per_device_train_batch_size=8)
    with pytest.warns(UserWarning): assert whole.load_checkpoint(tmp_path/"checkpoint-5").step == 5
    again = make(output_dir=str(tmp_path), save_strategy="no")
    with again.launch(2): again.train(resume_from_checkpoint=True)
    same(like, again)


def test_the_best_model_comes_back(tmp_path):
    learn = make(output_dir=str(tmp_path), save_strategy="epoch", load_best_model_at_end=True, save_only_model=True, metric_for_best_model="loss", greater_is_better=True)   # the first epoch's
    with learn.launch(2):
        learn.train()
        assert learn.evaluate()["eval_loss"] == learn.state.best_metric and learn.state.best_global_step < 18


@pytest.mark.parametrize("settings", [{}, pytest.param(dict(save_only_model=True), marks=pytest.mark.slow), pytest.param(dict(save_format="trainer"), marks=pytest.mark.slow)])
def test_the_best_model_is_read_by_the_first_and_given_to_all(tmp_path, monkeypatch, settings):
    "The others may be on a machine with another disk; all have the best weights, or none."
    found, other_disk = resume.read_best_weights, FileNotFoundError("there is no such folder on this machine")
    def first_only(learner, folder):
        if os.environ["RANK"] != "0" or learner.args.metric_for_best_model == "nothing": raise other_disk
        return found(learner, folder)
    monkeypatch.setattr(resume, "read_best_weights", first_only)
    learn = make(output_dir=str(tmp_path), save_strategy="epoch", load_best_model_at_end=True, metric_for_best_model="loss", greater_is_better=True, **settings)   # the first epoch's
    with learn.launch(2, start="fork"), warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.train()
        assert learn.evaluate()["eval_loss"] == learn.state.best_metric and learn.state.best_global_step < 18
        learn.run_on_all(lambda learn: vars(learn.args).update(metric_for_best_model="nothing"))   # nobody can read it any more
        last = learn.run_on_all(lambda learn: [p.tolist() for p in map(to_local, learn.model.parameters())])
        learn.run_on_all(load_best_quietly)
        assert learn.run_on_all(lambda learn: [p.tolist() for p in map(to_local, learn.model.parameters())]) == last


def load_best_quietly(learn):
    with pytest.warns(UserWarning, match="could not be loaded .*on this machine"): resume.load_best_weights(learn)


def test_each_machine_has_a_leader():
    "Machines may have different numbers of processes."
    def leaders(*local_ranks):
        world = World(0, len(local_ranks), local_ranks[0])
        world.all_gather_object = lambda value: list(local_ranks)
        return world.machine_leaders
    assert [leaders(*local) for local in ((0,), (0, 1), (0, 1, 0), (0, 0, 1, 2), (0, 1, 0, 1))] == [[0], [0], [0, 2], [0, 1], [0, 2]]
    assert SINGLE_PROCESS.machine_leaders == [0]


def test_tools_leave_no_trace(like):
    "They see whole weights, and what DDP would see; what needs the model in one process is refused."
    learn, plain = make(), make(fsdp=None)
    with learn.launch(2), plain.launch(2):
        for l in (learn, plain): l.step(2); l.watch(2, ("output", "weight", "gradient", "update"))
        found, there = learn.inspect(), plain.inspect()
        assert [o.weight.norm for o in found.layers] == pytest.approx([o.weight.norm for o in there.layers], rel=1e-4)
        assert [o.grad.norm for o in found.layers] == pytest.approx([o.grad.norm for o in there.layers], rel=1e-3, abs=1e-5)
        assert [o.update for o in found.layers] == pytest.approx([o.update for o in there.layers], rel=1e-2, abs=1e-4, nan_ok=True)
        assert learn.predict(rows(5, 2)).predictions == pytest.approx(plain.predict(rows(5, 2)).predictions, abs=1e-4)
        assert learn.predict(rows(1, 2)).predictions.shape == (1, 2)   # fewer batches than processes
        learn.lr_find(num_steps=10)
        learn.top_losses(2), learn.summary()
        for verb in (learn.branch, learn.debug_step, learn.batch_size_find):
            with pytest.raises(InvalidOperation): verb()
        for l in (learn, plain): l.step(3)
        for column in learn.watched.names():
            torch.testing.assert_close(torch.tensor(learn.watched.values(column)[2]), torch.tensor(plain.watched.values(column)[2]), rtol=2e-3, atol=1e-4, equal_nan=True, msg=column)
        learn.unwatch()
        learn.run_on_all(lambda learn: learn.model.eval()(torch.ones(2, 8)).sum().item())   # leaves the root together
        learn.train()
    same(like, learn)


def test_frozen_and_an_optimizer_of_ones_own():
    "Freezing and unfreezing in a run; parameters that an optimizer was given before they were divided."
    def run(**settings):
        learn = make(0, eval_strategy="no", **settings)
        learn.optimizers = torch.optim.AdamW([{"params": list(learn.model.parameters()), "lr": 5e-3}], foreach=True), None
        with learn.launch(2):
            learn.step(2)
            learn.freeze(["inward", "blocks"])
            learn.step(2)
            learn.unfreeze()
            learn.step(3)
        return learn
    close(run(fsdp=None), run())


def test_bf16():
    "Master weights stay in float32; the numbers are those of DDP as far as bfloat16 goes, and exact among themselves."
    one, other, ddp = (make(bf16=True, num_train_epochs=1, **more) for more in ({}, {}, dict(fsdp=None)))
    for learn in (one, ddp): learn.launch(2, train=True)
    with other.launch(2):
        other.step(4)
        assert other.rewind(2).different == []
        other.train()
    same(one, other)
    assert {p.dtype for p in one.model.parameters()} == {torch.float32}
    torch.testing.assert_close(torch.tensor(counted(one)), torch.tensor(counted(ddp)), rtol=0.05, atol=0.02)


# ---- errors

class Bomb(TrainerCallback):
    "Fails once, in some of the processes."
    not_state = ("event", "ranks", "step", "flag")
    def __init__(self, event, ranks, step=3):
        self.event, self.ranks, self.step, self.flag = event, ranks, step, tempfile.mktemp()
    def look(self, event, state):
        import torch.distributed as dist
        if event != self.event or state.global_step != self.step or dist.get_rank() not in self.ranks: return
        mine = f"{self.flag}.{dist.get_rank()}"
        if os.path.exists(mine): return
        open(mine, "w").close()
        raise KeyError("bomb")
    def on_step_begin(self, args, state, control, **kwargs): self.look("begin", state)
    def on_substep_end(self, args, state, control, **kwargs): self.look("substep", state)
    def on_pre_optimizer_step(self, args, state, control, **kwargs): self.look("pre", state)
    def on_optimizer_step(self, args, state, control, **kwargs): self.look("post", state)


class Failing(Block):
    "Fails once, in the middle of the pass: the layers before it have been through it."
    not_state = ("ranks", "flag", "calls")
    ranks, flag = (), ""
    def forward(self, x):
        import torch.distributed as dist
        if self.training and dist.is_initialized() and dist.get_rank() in self.ranks:
            self.calls, mine = getattr(self, "calls", 0) + 1, f"{self.flag}.{dist.get_rank()}"
            if self.calls == 8 and not os.path.exists(mine):
                open(mine, "w").close()
                raise KeyError("in the middle")
        return super().forward(x)


def failing(ranks):
    learn = make(gradient_accumulation_steps=2)
    block = learn.model.blocks[1]
    block.__class__, block.ranks, block.flag = Failing, ranks, tempfile.mktemp()
    return learn


@pytest.fixture(scope="module")
def accumulated():
    learn = make(gradient_accumulation_steps=2)
    learn.launch(2, train=True)
    return learn


def test_a_step_that_fails_in_all_processes_is_taken_back(accumulated):
    "In the middle of the second micro-batch, and before the update; the processes stay the same."
    for learn in (failing((0, 1)), make(gradient_accumulation_steps=2, callbacks=[Bomb("pre", (0, 1))])):
        with learn.launch(2):
            pids = [row["pid"] for row in learn.processes]
            with pytest.raises(KeyError): learn.train()
            assert learn.state.global_step == 3 and pids == [row["pid"] for row in learn.processes]
            learn.train()
        same(accumulated, learn)


@pytest.mark.parametrize("where", ["in the middle", pytest.param("begin", marks=pytest.mark.slow), pytest.param("substep", marks=pytest.mark.slow),
                                   pytest.param("pre", marks=pytest.mark.slow), pytest.param("post", marks=pytest.mark.slow)])
def test_an_error_in_one_process(accumulated, where):
    "The others are stuck; the run goes on in new processes, from where it stood or, if one was quicker, from a snapshot that all have."
    learn = failing((1,)) if where == "in the middle" else make(gradient_accumulation_steps=2, callbacks=[Bomb(where, (1,), 4)])
    with learn.launch(2):
        with pytest.raises(KeyError): learn.train()
        assert learn.state.global_step >= 3
        learn.train()
    same(accumulated, learn)


class Tower(torch.nn.Module):
    "Has no weights besides those of its layers, so nothing is gathered before the first of them."
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))
    def forward(self, x):
        for block in self.blocks: x = torch.tanh(block(x))
        return x[:, :2]


def test_an_error_in_the_first_step_of_one_process(tmp_path):
    "The other one has begun to compare layers, which is no collective: the processes do not go on with comparisons that do not belong together."
    path = tmp_path/"fails"
    path.touch()
    learn = Learner(Tower(), train_dataset=Fails(path, "1"), loss_func=torch.nn.functional.cross_entropy, use_cpu=True, per_device_train_batch_size=4, disable_tqdm=True, ddp_timeout=20,
                    fsdp="full_shard", fsdp_config={"transformer_layer_cls_to_wrap": ["Linear"]})
    with learn.launch(2):
        with pytest.raises(OSError, match="no such picture"): learn.step()
        path.unlink()
        assert learn.step(2)[-1].step == 2


def test_the_parts_of_all_processes_make_the_run_whole(monkeypatch):
    "After an error in one process the run stands where it stood, without an older snapshot."
    from trainer_nb.launch import recovery
    def nowhere(*args): raise AssertionError("An older snapshot was looked for.")
    monkeypatch.setattr(recovery, "find_last_known_state", nowhere)
    learn = failing((1,))
    with learn.launch(2):
        with pytest.raises(KeyError): learn.train()
        assert learn.state.global_step == 3


def test_a_process_that_dies_takes_its_part_with_it(like):
    "The run goes on from what was whole: here a snapshot that the notebook has."
    learn = make()
    with learn.launch(2):
        learn.step(3)
        learn.snapshot("three")
        learn.step(2)
        os.kill(learn.processes[1]["pid"], signal.SIGKILL)
        with pytest.raises(RuntimeError, match=r"killed by SIGKILL.* after step 5; the run continues from its last known state, after step 3 \(2 steps are lost\)"):
            learn.step()
        assert learn.state.global_step == 3
        learn.train()
    same(like, learn)


class HalfWay(torch.optim.AdamW):
    "Fails once in the middle of an update."
    left, not_state = 4, ("left",)
    def step(self, *args):
        self.left -= 1
        if self.left: return super().step(*args)
        with torch.no_grad(): self.param_groups[0]["params"][0].add_(1.0)
        raise KeyError("half-way")


@pytest.mark.parametrize("rollback", ["light", pytest.param("full", marks=pytest.mark.slow)])
def test_an_optimizer_that_fails_half_way(like, rollback):
    learn = make(rollback=rollback)
    learn.optimizer_cls_and_kwargs = HalfWay, {"lr": 1e-2, "fused": True}
    with learn.launch(2):
        with pytest.raises(KeyError): learn.train()
        if rollback == "light": assert "half-way" in learn.run_state.current.corrupted and learn.rewind(0).different == []
        learn.train()
    assert counted(like) == counted(learn)


# ---- scripts

SCRIPT = """
import sys
sys.path[:0] = [{here!r}, {tests!r}]
from test_sharding import *
import torch.distributed as dist
learn = make(output_dir={out!r}, save_strategy="no")
learn.step(3)
taken = learn.snapshot("here")
assert taken.shapes and learn.evaluate()["eval_loss"] > 0
learn.step(2); learn.restore("here")
for verb in (learn.branch, learn.batch_size_find, lambda: learn.export_script({out!r} + "/script.py")):
    try: verb()
    except InvalidOperation as error: assert "part of the run" in str(error)
    else: raise AssertionError(verb)
with learn.debug_step() as step:
    step.forward(); step.backward()
    assert abs(step.grads().norm - 0.5) < 1e-4   # of whole gradients, and clipped
    step.update()
learn.save_checkpoint({out!r} + "/here")
learn.train()
if dist.get_rank() == 0: print("losses", [float(r.loss) for r in learn.history if not r.abandoned])
learn.reset(); learn.free(); learn.step(1)
dist.destroy_process_group()
"""

def test_a_script_of_torchrun(like, tmp_path):
    "The same verbs where a launcher has started the processes."
    (tmp_path/"script.py").write_text(SCRIPT.format(here=os.path.dirname(__file__), tests=os.path.dirname(os.path.dirname(__file__)), out=str(tmp_path/"out")))
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "script.py"], cwd=tmp_path, capture_output=True, text=True)
    assert f"losses {[float(r.loss) for r in like.history]}" in done.stdout, done.stdout + done.stderr
    learn = make()
    with pytest.warns(UserWarning): learn.load_checkpoint(tmp_path/"out"/"here")
    assert learn.state.global_step == 4

"""Settings that save memory or time, or look for faults: the numbers they leave as they are, and the model they leave as it was.

Where transformers' Trainer has the feature, it is trained beside ours. Models with dropout are compared with ourselves:
inside a step the two draw from different random streams."""
import copy, json, math, sys, types, warnings

import numpy as np
import pytest, torch
from torch import nn

import toys
from toys import Augmented, Bomb, Boom, Hard, finish, hard_learner, outcome
from trainer_nb import Learner, TrainerCallback
from trainer_nb.device.model_patches import PatchSet
from trainer_nb.engine.counters import num_non_embedding_parameters
from trainer_nb.device.model_patches import NotFinite

pytestmark = pytest.mark.usefixtures("one_thread")
seen = []
HOW = dict(use_cpu=True, disable_tqdm=True, learning_rate=1e-2, per_device_train_batch_size=4, max_steps=4, logging_steps=2, save_strategy="no")


def rows(n=32, long=6, seed=0):
    rng = np.random.default_rng(seed)
    return [{"input_ids": torch.tensor(a), "labels": torch.tensor(a)} for a in rng.integers(1, 40, size=(n, long))]


def gpt2(dropout=0.1, **more):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=40, n_positions=16, n_embd=16, n_layer=3, n_head=2, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
        bos_token_id=0, eos_token_id=0, **more))


def theirs(model, data, folder, base=None, **settings):
    "transformers' Trainer, trained; and what it logged."
    transformers = pytest.importorskip("transformers")
    parts = {k: settings.pop(k) for k in ("eval_dataset", "data_collator") if k in settings}
    args = transformers.TrainingArguments(**{**HOW, "output_dir": str(folder), "report_to": "none", "dataloader_pin_memory": False, **settings})
    trainer = (base or transformers.Trainer)(model, args, train_dataset=data, **parts)
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer, trainer.train()


def bare(model):
    "What of a model's modules would show that something is left on them."
    held = [(n, sorted(k for k in vars(m) if k not in ("training",)), {k: len(v) for k, v in vars(m).items() if "hooks" in k and hasattr(v, "__len__")},
             getattr(m, "gradient_checkpointing", None)) for n, m in model.named_modules()]
    return held, getattr(model, "_compiled_call_impl", None)


def unequal(one, other):
    "The settings differ, of course, and the state has some of them; save_pretrained() completes the configuration of a model."
    return [n for n in toys.unequal(one, other, ignore=("args", "state")) if not n.endswith("config")]
def weights(learn): return {n: t.clone() for n, t in learn.model.state_dict().items()}
def same(a, b): return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)
def close(a, b): return all(torch.allclose(a[n], b[n], rtol=1e-6, atol=1e-7) for n in b)


# --- activations computed twice ------------------------------------------------------------------------------------------

class Encoder(nn.Module):
    "Blocks with dropout, BatchNorm, and a buffer that is used and then replaced."
    def __init__(self, n=3):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.layers = nn.ModuleList(Layer() for _ in range(n))
        self.last = nn.Linear(8, 3)

    def forward(self, x, labels=None):
        h = self.first(x)
        for layer in self.layers: h = layer(h)
        return {"loss": nn.functional.cross_entropy(self.last(h), labels), "logits": self.last(h)}


class Layer(nn.Module):
    not_state = ("calls",)
    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.drop, self.calls = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), 0
        self.register_buffer("center", torch.zeros(8))

    def forward(self, h):
        self.calls += 1
        new = self.drop(torch.relu(self.norm(self.inner(h) * (1 + self.center))))
        if self.training: self.center = 0.5 * self.center + 0.5 * h.detach().mean(0)
        return h + new


def encoder(): torch.manual_seed(0); return Encoder()


def encoded(**settings):
    how = dict(per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=4, learning_rate=1e-2, logging_steps=2, use_cpu=True, disable_tqdm=True)
    return Learner(encoder(), train_dataset=Augmented(30), eval_dataset=Augmented(6), **how | settings)


def test_blocks_of_a_plain_module_are_computed_twice_and_nothing_else_changes():
    plain, twice, second = encoded(), encoded(activation_checkpointing=True), encoded(gradient_checkpointing=True, activation_checkpointing_kwargs={"every_n_layers": 2})
    before = bare(twice.model)
    found = [finish(o) for o in (plain, twice, second)]
    assert unequal(found[0], found[1]) == unequal(found[0], found[2]) == []
    assert [o.calls for o in plain.model.layers] == [8] * 3 and [o.calls for o in twice.model.layers] == [16] * 3
    assert [o.calls for o in second.model.layers] == [16, 8, 16]
    twice.evaluate()
    assert [o.calls for o in twice.model.layers] == [17] * 3 and bare(twice.model) == before


def test_a_failed_step_a_rewind_a_branch_and_a_resume_with_layers_computed_twice(tmp_path):
    bomb = Bomb("on_pre_optimizer_step", 3)
    class Late(TrainerCallback):
        def on_pre_optimizer_step(self, *args, **kwargs): bomb("on_pre_optimizer_step")
    plain = finish(encoded())
    learn = encoded(activation_checkpointing=True, callbacks=[Late()], output_dir=str(tmp_path), save_steps=2, save_strategy="steps")
    learn.step(2)
    before = learn.snapshot()
    learn.save_checkpoint(str(tmp_path / "kept"))
    with pytest.raises(Boom): learn.step()
    learn.step()
    learn.rewind(2)
    branch = learn.branch(activation_checkpointing=False)
    assert branch.args.activation_checkpointing is False and branch.args.gradient_checkpointing is False
    assert unequal(plain, finish(learn)) == [] and unequal(plain, finish(branch)) == []
    learn.restore(before)
    assert unequal(plain, finish(learn)) == []
    other = encoded(output_dir=str(tmp_path))   # without: how it is computed is the process's own
    other.load_checkpoint(str(tmp_path / "kept"))
    assert not other.args.activation_checkpointing
    assert unequal(plain, finish(other)) == []


def test_models_of_transformers_compute_their_layers_twice(tmp_path):
    plain = Learner(gpt2(), train_dataset=rows(), **HOW)
    plain.train()
    for kwargs in (None, {"use_reentrant": True, "every_n_layers": 2}):
        model = gpt2()
        before = bare(model)
        learn = Learner(model, train_dataset=rows(), activation_checkpointing=True, activation_checkpointing_kwargs=kwargs, **HOW)
        learn.step()
        inside = []
        class Look(TrainerCallback):
            def on_step_begin(self, *args, **k): inside.append([b.gradient_checkpointing for b in model.transformer.h])
        learn.add_callback(Look)
        learn.step()
        assert inside == [[True, False, True] if kwargs and "every_n_layers" in kwargs else [True] * 3]
        assert bare(model) == before and model.config.use_cache is False
        learn.train()
        assert same(weights(learn), weights(plain)), kwargs
        learn.free()
        assert bare(model) == before
    model = gpt2(dropout=0.0)
    trainer, _ = theirs(copy.deepcopy(model), rows(), tmp_path, activation_checkpointing=True)
    learn = Learner(model, train_dataset=rows(), activation_checkpointing=True, **HOW)
    learn.train()
    assert close(weights(learn), trainer.model.state_dict())


def test_frozen_embeddings_learn_behind_reentrant_layers():
    def model():
        m = gpt2(tie_word_embeddings=False)
        m.transformer.wte.requires_grad_(False)
        m.transformer.wpe.requires_grad_(False)
        return m
    plain, twice = (Learner(model(), train_dataset=rows(), **HOW | more) for more in ({}, dict(activation_checkpointing=True, activation_checkpointing_kwargs={"use_reentrant": True})))
    for o in (plain, twice): o.train()
    assert same(weights(plain), weights(twice)) and not torch.equal(twice.model.transformer.h[0].attn.c_attn.weight, model().transformer.h[0].attn.c_attn.weight)


class Older(Encoder):
    "A model of another library, with the older method."
    given = None
    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs=None): self.given = gradient_checkpointing_kwargs


def test_models_with_the_older_method_and_models_without_layers():
    learn = Learner(Older(), train_dataset=Augmented(), activation_checkpointing=True, **HOW)
    seen = []
    class Look(TrainerCallback):
        def on_step_begin(self, *args, **k): seen.append(learn.model.given)
    learn.add_callback(Look)
    learn.step()
    assert seen[0]["use_reentrant"] is False and learn.model.given is None
    for model, kwargs, said in ((Older(), {"every_n_layers": 2}, "takes no every_n_layers"), (Hard(), {}, "has no method activation_checkpointing_enable"),
                                (encoder(), {"use_reentrant": True}, "leave it out"), (encoder(), {"offload": True}, "leave it out"),
                                (encoder(), {"every_n_layers": 0}, "from 1 on")):
        before = bare(model)
        learn = Learner(model, train_dataset=Augmented(), activation_checkpointing=True, activation_checkpointing_kwargs=kwargs, **HOW)
        with pytest.raises(ValueError, match=said): learn.step()
        assert bare(model) == before
    learn = encoded()
    learn.step(2)
    learn.set(activation_checkpointing=True)
    learn.train()
    assert unequal(finish(encoded()), outcome(learn)) == [] and learn.model.layers[0].calls == 12
    mistaken = hard_learner()
    mistaken.step()
    with pytest.raises(ValueError, match="has no method"): mistaken.set(activation_checkpointing=True)
    assert not mistaken.args.activation_checkpointing and mistaken.step()


def test_two_learners_on_one_model_do_not_share_what_is_on_it():
    model = encoder()
    one = Learner(model, train_dataset=Augmented(30), activation_checkpointing=True, **HOW)
    one.step()
    other = Learner(model, train_dataset=Augmented(30), **HOW)
    counts = []
    for learn in (other, one, other):
        before = model.layers[0].calls
        learn.step()
        counts.append(model.layers[0].calls - before)
    assert counts == [1, 2, 1] and PatchSet.active == []


# --- the cache of keys and values ------------------------------------------------------------------------------------------

def test_the_cache_is_off_in_training_and_the_configuration_says_so(tmp_path):
    "As at the Trainer; generation reads its own configuration."
    model, seen = gpt2(), []
    forward = type(model.transformer).forward
    class Spied(type(model.transformer)):
        def forward(self, *args, use_cache=None, **kwargs):
            seen.append(use_cache)
            return forward(self, *args, use_cache=use_cache, **kwargs)
    model.transformer.__class__ = Spied
    learn = Learner(model, train_dataset=rows(), eval_dataset=rows(4), output_dir=str(tmp_path), **HOW)
    learn.step()
    learn.evaluate()
    learn.save_checkpoint(str(tmp_path / "there"))
    assert set(seen) == {None} and model.config.use_cache is False   # as its configuration says
    assert json.loads((tmp_path / "there" / "config.json").read_text())["use_cache"] is False
    assert model.generation_config.use_cache is True
    kept = Learner(model, train_dataset=rows(), use_cache=True, **HOW)
    kept.step()
    assert set(seen) == {None} and model.config.use_cache is True
    with pytest.warns(UserWarning, match="keep no cache"):
        Learner(gpt2(), train_dataset=rows(), use_cache=True, activation_checkpointing=True, **HOW).step()


# --- compiled --------------------------------------------------------------------------------------------------------------

def linear(**settings):
    torch.manual_seed(0)
    how = HOW | dict(max_steps=3, optim="sgd", save_strategy="no", logging_strategy="no") | settings
    return Learner(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.2)), train_dataset=[(torch.ones(4) * i / 16, i % 3) for i in range(16)], loss_func=nn.functional.cross_entropy, **how)


def test_a_compiled_model_keeps_its_names_and_its_numbers(monkeypatch):
    learn, plain, bomb = linear(torch_compile_backend="eager"), linear(), Bomb("on_pre_optimizer_step", 2)
    class Late(TrainerCallback):
        def on_pre_optimizer_step(self, *args, **kwargs): bomb("on_pre_optimizer_step")
    learn.add_callback(Late())
    learn.step()
    assert torch._dynamo.utils.counters["stats"]["calls_captured"] > 0
    with pytest.raises(Boom): learn.step()
    assert unequal(finish(plain), finish(learn)) == []
    assert learn.model._compiled_call_impl is None and list(learn.model.state_dict()) == list(plain.model.state_dict())
    monkeypatch.setattr("shutil.which", lambda name: None)
    for settings, said in ((dict(torch_compile_backend="inductr"), "Did you mean 'inductor'"), (dict(torch_compile=True, debug="underflow_overflow"), "leave torch_compile out"),
                           (dict(torch_compile=True), "install one .apt-get install g")):
        with pytest.raises(ValueError, match=said): linear(**settings).step()
    compiled = torch.compile(Parts(), backend="eager")
    compiled.register_forward_hook(lambda *given: None)
    with pytest.raises(ValueError, match="hooks"): wrapped(lambda: compiled)


class Reads(Learner):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss, out = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        seen.append(out["logits"].dtype)
        return (loss, out) if return_outputs else loss


@pytest.mark.parametrize("compiled", [{}, dict(torch_compile_backend="aot_eager")], ids=["eager", "compiled"])
def test_outputs_that_nobody_reads_are_not_converted(monkeypatch, compiled):
    "With losses and weights as they were; an override that reads them, a loss function, a hook and a prediction get fp32."
    from accelerate.utils import operations
    seen.clear()
    converted, convert = [], operations.convert_to_fp32
    monkeypatch.setattr(operations, "convert_to_fp32", lambda out: converted.append(1) or convert(out))
    def loss_func(out, labels): return seen.append(out.dtype) or out.square().mean()
    def make(kind=Learner, **more): return kind(gpt2(0.0), train_dataset=rows(), bf16=True, **HOW, **compiled, **more)
    plain, reads, given = make(), make(Reads), make(loss_func=loss_func)
    plain.step(3)
    assert not converted and plain.predict(rows()).predictions.dtype == np.float32 and converted
    for learn in (reads, given): learn.step(3)
    assert [r.loss for r in plain.history] == [r.loss for r in reads.history] and same(weights(plain), weights(reads))
    plain.model.register_forward_hook(lambda module, inputs, out: seen.append(out["logits"].dtype))
    plain.step()
    assert seen == [torch.float32] * 7


def test_a_compiled_model_is_evaluated_saved_rewound_and_resumed(tmp_path):
    plain = encoded(eval_steps=2, eval_strategy="steps")
    expected = finish(plain)
    learn = encoded(eval_steps=2, eval_strategy="steps", torch_compile_backend="eager", output_dir=str(tmp_path), save_steps=2, save_strategy="steps")
    before = torch._dynamo.utils.counters["stats"]["calls_captured"] if "torch._dynamo" in sys.modules else 0
    learn.step(3)
    assert torch._dynamo.utils.counters["stats"]["calls_captured"] > before
    learn.rewind(1)
    finish(learn)
    assert same(weights(learn), weights(plain)) and unequal(expected, outcome(learn)) == []
    assert learn.model._compiled_call_impl is None and list(learn.model.state_dict()) == list(plain.model.state_dict())
    learn.save_model(tmp_path / "model")
    from safetensors.torch import load_file
    assert load_file(tmp_path / "model" / "model.safetensors").keys() == plain.model.state_dict().keys()
    again = encoded(eval_steps=2, eval_strategy="steps", torch_compile_backend="eager", output_dir=str(tmp_path))
    again.load_checkpoint(str(tmp_path / "checkpoint-2"))
    assert unequal(expected, finish(again)) == []
    assert math.isclose(learn.evaluate()["eval_loss"], plain.evaluate()["eval_loss"])


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Sequential(nn.Linear(4, 8), nn.ReLU()), nn.Linear(8, 3)
    def forward(self, x): return self.b(self.a(x))


def with_layer(model, whole=False):
    model.a = torch.compile(model.a, backend="eager")
    return torch.compile(model, backend="eager") if whole else model


WRAPPED = {
    "model": lambda: torch.compile(Parts(), backend="eager"), "layer": lambda: with_layer(Parts()), "both": lambda: with_layer(Parts(), whole=True),
    "dynamic": lambda: torch.compile(Parts(), backend="eager", dynamic=True),
}


def wrapped(make, **settings):
    torch.manual_seed(0)
    given = {"model_init": make} if settings.pop("init", False) else {"model": make()}
    how = HOW | dict(max_steps=4, learning_rate=1e-2, save_strategy="no", logging_strategy="no") | settings
    return Learner(**given, train_dataset=[(torch.ones(4) * i / 16, i % 3) for i in range(16)], loss_func=nn.functional.cross_entropy, **how)


@pytest.mark.parametrize("which, init", [*((which, False) for which in WRAPPED), ("both", True)])
def test_a_model_in_a_wrapper_of_torch_compile(which, init, tmp_path):
    "It is compiled, and has the names and the numbers of the model inside: in files, in both directions, in branches and for freeze."
    from safetensors.torch import load_file
    plain, learn = wrapped(Parts, init=init), wrapped(WRAPPED[which], init=init)
    assert list(learn.model.state_dict()) == list(plain.model.state_dict())
    torch._dynamo.reset()
    before = torch._dynamo.utils.counters["stats"]["calls_captured"]
    learn.step(2), plain.step(2)
    assert torch._dynamo.utils.counters["stats"]["calls_captured"] > before
    learn.save_model(tmp_path / "model")
    assert load_file(tmp_path / "model" / "model.safetensors").keys() == plain.model.state_dict().keys()
    one, other = (run.save_checkpoint(tmp_path / name) for run, name in ((learn, "one"), (plain, "other")))
    branch = learn.branch()
    from_plain, from_compiled = wrapped(WRAPPED[which], init=init), wrapped(Parts, init=init)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_plain.load_checkpoint(other), from_compiled.load_checkpoint(one)
    for run in (plain, learn, branch, from_plain, from_compiled):
        run.train()
        assert same(weights(run), weights(plain))
    before = torch._dynamo.utils.counters["stats"]["calls_captured"]
    torch._dynamo.reset()
    learn.branch().evaluate(learn.train_dataset)
    assert torch._dynamo.utils.counters["stats"]["calls_captured"] > before
    frozen = wrapped(WRAPPED[which], init=init)
    frozen.freeze("a")
    frozen.step()
    assert all(not p.requires_grad for p in frozen.model.a.parameters()) and frozen.model.b.weight.requires_grad


def test_inductor(tmp_path):
    plain, fast = encoded(), encoded(torch_compile=True, output_dir=str(tmp_path), save_steps=2, save_strategy="steps")
    twice = encoded(torch_compile=True)
    for model in (plain.model, fast.model, twice.model):
        for m in model.modules():
            if isinstance(m, nn.Dropout): m.p = 0.0   # compiled code draws other numbers
    for o in (plain, fast, twice): o.train()
    # the gradient of a bias before a BatchNorm is rounding alone, of which Adam makes a whole step
    free = ("inner.bias", "norm.running_mean")
    one, other = ({n: w for n, w in weights(o).items() if not n.endswith(free)} for o in (plain, fast))
    assert len(one) > 10 and all(torch.allclose(w, other[n], rtol=1e-3, atol=1e-4) for n, w in one.items())
    np.testing.assert_allclose(plain.history.column("loss"), fast.history.column("loss"), rtol=1e-5)
    assert same(weights(fast), weights(twice))
    dropped, again = encoded(torch_compile=True, output_dir=str(tmp_path / "d"), save_steps=2, save_strategy="steps"), encoded(torch_compile=True)
    dropped.train()
    again.load_checkpoint(str(tmp_path / "d" / "checkpoint-2"))
    again.train()
    assert same(weights(dropped), weights(again))


# --- smaller micro-batches --------------------------------------------------------------------------------------------------

class Tight(Hard):
    "A model for which micro-batches of more than `most` samples are too many, from call number `since` on."
    most, since, count = 2, 3, 0
    not_state = ("most", "since", "count")
    def forward(self, x, labels=None):
        self.count += 1
        if self.training and len(x) > self.most and self.count > self.since: raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().forward(x, labels)


def tight(**settings):
    torch.manual_seed(0)
    return hard_learner(model=Tight(), **settings)


@pytest.mark.filterwarnings("ignore:Memory ran out")
def test_the_run_goes_on_in_smaller_micro_batches_with_the_same_samples(tmp_path):
    by_hand = hard_learner(save_strategy="no")
    by_hand.step()
    by_hand.set(per_device_train_batch_size=2, gradient_accumulation_steps=6)
    expected = finish(by_hand)
    learn = tight(auto_find_batch_size=True, output_dir=str(tmp_path), save_steps=2, save_strategy="steps")
    with pytest.warns(UserWarning, match=r"Memory ran out in step 2 with micro-batches of 4; the run continues with 6 of 2 for each step, the same 12 samples"): learn.step(2)
    assert (learn.args.per_device_train_batch_size, learn.args.gradient_accumulation_steps, learn.state.max_steps) == (2, 6, 6)
    assert unequal(expected, finish(learn)) == []
    assert learn.history.column("samples").tolist() == by_hand.history.column("samples").tolist()
    assert "per_device_train_batch_size" in repr(learn.journal)
    again = tight(auto_find_batch_size=True, output_dir=str(tmp_path))
    again.load_checkpoint(str(tmp_path / "checkpoint-2"))
    assert again.args.per_device_train_batch_size == 2 and unequal(expected, finish(again)) == []
    learn.model.count = 0   # the memory is that of the machine: as free as at the beginning
    learn.rewind(5)
    assert unequal(expected, finish(learn)) == []


@pytest.mark.filterwarnings("ignore:Memory ran out")
def test_what_smaller_micro_batches_cannot_help():
    learn = tight(auto_find_batch_size=True)
    learn.model.most = 0
    with pytest.raises(torch.OutOfMemoryError) as e: learn.step(2)
    assert "has no smaller one; activation_checkpointing=True" in e.value.__notes__[0]
    assert (learn.state.global_step, learn.args.per_device_train_batch_size, learn.args.gradient_accumulation_steps) == (1, 1, 12)
    learn.model.most = 4
    learn.set(per_device_train_batch_size=4, gradient_accumulation_steps=3)
    learn.step()
    with pytest.raises(torch.OutOfMemoryError): tight().step(2)
    loader = torch.utils.data.DataLoader(Augmented(), batch_size=4, collate_fn=hard_learner().data_collator)
    ready = tight(auto_find_batch_size=True, train_dataset=loader, per_device_train_batch_size=8)
    with pytest.raises(torch.OutOfMemoryError) as e, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ready.step(3)
    assert "train_dataset is a DataLoader" in e.value.__notes__[0] and ready.state.global_step == 1
    with pytest.raises(ValueError, match="is for a run in one process"): tight(auto_find_batch_size=True).launch(2)
    branched = tight(auto_find_batch_size=True).branch()
    branched.model.most, branched.model.since = 2, 0
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        branched.step()
    assert "the run continues with 6 of 2" in str(said[0].message)


# --- noise on the embeddings ------------------------------------------------------------------------------------------------

def test_noise_on_the_embeddings_is_that_of_transformers_and_comes_again(tmp_path):
    neftune = pytest.importorskip("transformers.integrations.neftune")
    from trainer_nb.device.model_patches import neftune_hook
    layer, output = nn.Embedding(4, 8), torch.randn(2, 5, 8)
    layer.neftune_noise_alpha = 5.0
    torch.manual_seed(3)
    expected = neftune.neftune_post_forward_hook(layer, None, output)
    torch.manual_seed(3)
    assert torch.allclose(neftune_hook(types.SimpleNamespace(neftune_noise_alpha=5.0))(layer, None, output), expected, rtol=1e-6)

    def made(**more): return Learner(gpt2(), train_dataset=rows(), eval_dataset=rows(6), neftune_noise_alpha=5.0, **HOW | more)
    learn, plain = made(output_dir=str(tmp_path), save_strategy="steps", save_steps=2), Learner(gpt2(), train_dataset=rows(), eval_dataset=rows(6), **HOW)
    before = bare(learn.model)
    assert learn.evaluate()["eval_loss"] == plain.evaluate()["eval_loss"]
    expected = finish(learn)
    plain.train()
    assert not same(weights(learn), weights(plain)) and bare(learn.model) == before and list(learn.model.state_dict()) == list(plain.model.state_dict())
    again = made()
    again.load_checkpoint(str(tmp_path / "checkpoint-2"))
    assert unequal(expected, finish(again)) == []
    again.rewind(2)
    assert unequal(expected, finish(again)) == []
    quiet = Learner(gpt2(), train_dataset=rows(), **HOW)
    quiet.step(2)
    quiet.set(neftune_noise_alpha=5.0)
    quiet.train()
    changed = made()
    changed.step(2)
    noise = changed.snapshot()
    changed.set(neftune_noise_alpha=0.0)
    assert not same(weights(quiet), weights(learn)) and not same(weights(quiet), weights(plain))
    resumed, quietly = Learner(gpt2(), train_dataset=rows(), eval_dataset=rows(6), **HOW), changed.snapshot()
    resumed.restore(noise)   # the noise belongs to the run: it comes with a snapshot, and goes
    resumed.step()
    assert len(resumed.run_state.device.patches.patches) == 1
    resumed.restore(quietly)
    resumed.step()
    assert len(resumed.run_state.device.patches.patches) == 0
    resumed.restore(noise)
    resumed.train()
    assert same(weights(resumed), weights(learn))
    with pytest.raises(ValueError, match="get_input_embeddings"): hard_learner(neftune_noise_alpha=1.0).step()


# --- losses that are not finite ----------------------------------------------------------------------------------------------

class Holes(nn.Linear):
    "The loss of some samples is nan; the gradient is not."
    def __init__(self): super().__init__(2, 1)
    def forward(self, x, hole, labels=None):
        loss = (super().forward(x) - 1).pow(2).mean()
        return {"loss": loss + torch.where(hole.any(), math.nan, 0.0), "logits": x}


def holed(*holes): return [{"x": torch.tensor([i / 8, 1.0]), "hole": torch.tensor(i in holes), "labels": 0} for i in range(16)]


def test_a_logged_mean_leaves_out_what_is_not_finite_as_the_trainer_does(tmp_path):
    torch.manual_seed(0)
    model = Holes()
    for filtered in (True, False):
        how = HOW | dict(per_device_train_batch_size=2, per_device_eval_batch_size=2, max_steps=8, logging_steps=3, train_sampling_strategy="sequential", logging_nan_inf_filter=filtered, max_grad_norm=0.0,
                         optim="sgd")
        trainer, out = theirs(copy.deepcopy(model), holed(0, 5, 13), tmp_path, eval_dataset=holed(4), **how)
        learn = Learner(copy.deepcopy(model), train_dataset=holed(0, 5, 13), eval_dataset=holed(4), **how)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            ours = learn.train()
        assert len([w for w in said if "not finite and left out" in str(w.message)]) == (2 if filtered else 0)   # at a log, and for the last two steps at the end
        losses = [[r["loss"] for r in o.state.log_history if "loss" in r] for o in (trainer, learn)]
        np.testing.assert_allclose(*(losses if filtered else [o[:1] for o in losses]), rtol=1e-6)   # once nan, its sum stays nan; ours does not
        np.testing.assert_allclose(ours.training_loss, out.training_loss, rtol=1e-6)
        np.testing.assert_allclose(learn.evaluate()["eval_loss"], trainer.evaluate()["eval_loss"], rtol=1e-6)
        assert np.isfinite(losses[1]).tolist() == [filtered, True] and np.isnan(learn.history.column("loss")).sum() == 3


# --- operations -----------------------------------------------------------------------------------------------------------------

def padded(batch):
    ids = nn.utils.rnn.pad_sequence([b["input_ids"] for b in batch], batch_first=True)
    return {"input_ids": ids, "labels": ids}


def test_operations_are_counted_as_the_trainer_counts_them(tmp_path):
    data = [{"input_ids": torch.arange(1, 3 + i % 7)} for i in range(32)]
    how = HOW | dict(max_steps=5, gradient_accumulation_steps=2, data_collator=padded)
    model = gpt2(dropout=0.0)
    trainer, out = theirs(copy.deepcopy(model), data, tmp_path / "theirs", **how)
    learn = Learner(copy.deepcopy(model), train_dataset=data, output_dir=str(tmp_path), **how | dict(save_strategy="steps", save_steps=3))
    ours = learn.train()
    assert ours.metrics["total_flos"] == out.metrics["total_flos"] == learn.state.total_flos == learn.state.log_history[-1]["total_flos"] > 0
    again = Learner(copy.deepcopy(model), train_dataset=data, **how)
    again.load_checkpoint(str(tmp_path / "checkpoint-3"))
    again.step()
    again.rewind(1)
    pending = again.snapshot()
    again.train()
    assert again.state.total_flos == ours.metrics["total_flos"]
    again.restore(pending)
    again.train()
    assert again.state.total_flos == ours.metrics["total_flos"]
    assert num_non_embedding_parameters(learn.model) == learn.model.num_parameters(exclude_embeddings=True)
    class Own(Learner):
        def floating_point_ops(self, inputs): return 10
    own = Own(encoder(), train_dataset=Augmented(30), **HOW)
    assert own.train().metrics["total_flos"] == 40
    bomb = Bomb("on_pre_optimizer_step", 2)
    class Late(TrainerCallback):
        def on_pre_optimizer_step(self, *args, **kwargs): bomb("on_pre_optimizer_step")
    failing = Own(encoder(), train_dataset=Augmented(30), callbacks=[Late()], **HOW)
    failing.step()
    with pytest.raises(Boom): failing.step()
    assert failing.train().metrics["total_flos"] == 40   # what was taken back is no part of the run


# --- unused memory of a device, other code ---------------------------------------------------------------------------------------

def test_unused_memory_goes_back_every_so_many_steps(monkeypatch):
    steps = []
    monkeypatch.setattr("trainer_nb.engine.overrides.empty_device_cache", lambda device: steps.append(learn.state.global_step))
    learn = encoded(torch_empty_cache_steps=2)
    learn.train()
    assert steps == [0, 0, 2, 2]   # for each micro-batch, as with the Trainer
    assert unequal(finish(encoded()), outcome(learn)) == [] and len(steps) == 4


def test_what_needs_a_gpu_is_refused_on_a_cpu():
    for settings, said in ((dict(tf32=True), "Ampere"), (dict(use_liger_kernel=True), "needs a GPU")):
        with pytest.raises(ValueError, match=said): encoded(**settings).step()
    assert encoded(tf32=False).step() and torch.backends.fp32_precision == "none"


def test_ligers_kernels_are_put_on_and_taken_off(monkeypatch):
    from trainer_nb.device.model_patches import liger_patch
    model, args, cuda = gpt2(), types.SimpleNamespace(use_liger_kernel=True, liger_kernel_config={"rope": False}), torch.device("cuda")
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    with pytest.raises(ImportError, match="pip install liger-kernel"): liger_patch(model, args, cuda)
    given = []
    def apply(model, **config):
        given.append(config)
        model.forward = types.MethodType(lambda self, *args, **kwargs: "fused", model)
    fake = types.SimpleNamespace(_apply_liger_kernel_to_instance=apply)
    monkeypatch.setitem(sys.modules, "liger_kernel", types.SimpleNamespace(transformers=fake))
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", fake)
    fitting = liger_patch(model, args, cuda)
    fitting.apply()
    assert model(None) == "fused" and given == [{"rope": False}]
    fitting.remove()
    assert "forward" not in vars(model)
    with pytest.raises(ValueError, match="models of transformers"): liger_patch(Hard(), args, cuda)


# --- numbers that are not finite ---------------------------------------------------------------------------------------------------

def test_the_first_number_that_is_not_finite_stops_the_run_and_is_named():
    torch.manual_seed(0)
    class Bad(Augmented):
        not_state = ("bad",)
        def __getitem__(self, i): return super().__getitem__(i) | ({"x": torch.full((4,), math.inf)} if i == self.bad else {})
    data = Bad(30)
    data.bad = None
    learn = Learner(encoder(), train_dataset=data, debug="underflow_overflow", gradient_accumulation_steps=2, **HOW | dict(train_sampling_strategy="sequential"))
    before = bare(learn.model)
    learn.step()
    data.bad = 13   # micro-batch 4, in step 2
    snapshot = learn.snapshot()
    with pytest.raises(NotFinite, match=r"^The input\[0\] of 'first' \(Linear\) is not finite, in step 2, micro-batch 2 of 2; the step is taken back\."): learn.step()
    assert unequal((snapshot, *outcome(learn)[1:]), outcome(learn)) == [] and bare(learn.model) == before
    data.bad = None
    learn.run_state.current.window = None
    plain = Learner(encoder(), train_dataset=Augmented(30), gradient_accumulation_steps=2, **HOW | dict(train_sampling_strategy="sequential"))
    assert unequal(finish(plain), finish(learn)) == []
    with torch.no_grad(): learn.model.layers[2].inner.weight[0, 0] = math.nan
    with pytest.raises(NotFinite, match="'weight', a weight of 'layers.2.inner'.*in an evaluation after step 4"): learn.evaluate(Augmented(4))
    for value, said in (("tpu_metrics_debug", "TPUs, which are unsupported"), ("overflow", "Did you mean"), (["underflow_overflow", "x"], "'x' is not one of")):
        with pytest.raises(ValueError, match=said): Learner(encoder(), debug=value)


# --- several processes ---------------------------------------------------------------------------------------------------------------

def test_several_processes_have_the_same_on_their_models():
    def launched(**more):
        learn = Learner(gpt2(), train_dataset=rows(), **HOW | dict(per_device_train_batch_size=2), **more)
        before = bare(learn.model)
        learn.launch(2)
        learn.train()
        learn.close()
        assert bare(learn.model) == before
        return learn
    alone = Learner(gpt2(), train_dataset=rows(), **HOW)
    alone.train()
    plain = launched()
    for learn in (plain, launched(activation_checkpointing=True), launched(neftune_noise_alpha=5.0)):
        assert same(weights(learn), weights(plain)) == (not learn.args.neftune_noise_alpha)
        assert learn.state.total_flos == alone.state.total_flos > 0


# --- with a GPU ------------------------------------------------------------------------------------------------------------------------

def on_gpu(test): return pytest.mark.gpu(pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")(test))


@on_gpu
def test_on_a_gpu():
    def made(**more): return encoded(**dict(use_cpu=False, full_determinism=True, save_strategy="no") | more)
    plain = made()
    expected = finish(plain)
    for more in (dict(activation_checkpointing=True), dict(torch_empty_cache_steps=1), dict(torch_compile_backend="eager"), dict(debug="underflow_overflow")):
        assert unequal(expected, finish(made(**more))) == [], more
    for value, inside in ((True, "tf32"), (False, "ieee")):
        seen = []
        class Look(TrainerCallback):
            def on_step_begin(self, *args, **k): seen.append(torch.backends.fp32_precision)
        learn = made(tf32=value, callbacks=[Look()])
        learn.train()
        assert set(seen) == {inside} and torch.backends.fp32_precision == "none"


@on_gpu
@pytest.mark.filterwarnings("ignore:Memory ran out")
def test_memory_of_a_gpu_runs_out():
    class Wide(Encoder):
        def forward(self, x, labels=None):
            if self.training: torch.empty(int(len(x) * torch.cuda.get_device_properties(0).total_memory * 0.3), dtype=torch.uint8, device=x.device)
            return super().forward(x, labels)
    torch.manual_seed(0)
    learn = Learner(Wide(), train_dataset=Augmented(32), auto_find_batch_size=True, **HOW | dict(use_cpu=False, per_device_train_batch_size=8))
    learn.train()
    assert (learn.args.per_device_train_batch_size, learn.args.gradient_accumulation_steps) == (2, 4)


@on_gpu
def test_ligers_kernels_on_a_gpu():
    pytest.importorskip("liger_kernel")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=40, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2))
    before, losses = bare(model), []
    for on in (False, True):
        learn = Learner(copy.deepcopy(model), train_dataset=rows(), use_liger_kernel=on, **HOW | dict(use_cpu=False))
        losses.append(learn.train().training_loss)
        assert [o[0] for o in bare(learn.model)[0]] == [o[0] for o in before[0]]
    np.testing.assert_allclose(*losses, rtol=1e-3)


class Half(torch.optim.SGD):
    "Runs out of memory in the middle of its update number 3."
    updates = 0
    def step(self, closure=None):
        self.updates += 1
        if self.updates == 3:
            with torch.no_grad(): self.param_groups[0]["params"][0].add_(100.0)
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return super().step(closure)


def test_memory_that_runs_out_in_the_update_or_behind_it_is_no_matter_of_the_micro_batch():
    learn = hard_learner(auto_find_batch_size=True, optimizer_cls_and_kwargs=(Half, {"lr": 0.01}))
    with pytest.raises(torch.OutOfMemoryError): learn.train()
    assert learn.run_state.current.corrupted and (learn.state.global_step, learn.args.per_device_train_batch_size) == (2, 4)
    class Hungry(TrainerCallback):
        def on_optimizer_step(self, args, state, control, **kwargs):
            if state.global_step == 1: raise torch.OutOfMemoryError("CUDA out of memory.")
    learn = hard_learner(auto_find_batch_size=True, callbacks=[Hungry()])
    learn.step()
    with pytest.raises(torch.OutOfMemoryError): learn.step()
    assert (learn.state.global_step, learn.args.per_device_train_batch_size, len(learn.history)) == (2, 4, 2)

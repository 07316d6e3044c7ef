"""The state of every optimizer survives a checkpoint in both layouts, and goes to transformers' Trainer and back.

In each case the run that was stopped at a checkpoint ends in the same bytes as the run that was not.
"""
import importlib.util
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from trainer_nb import Learner, differences
from trainer_nb.args.fields import OPTIMIZER_NAMES, TARGETED_OPTIMIZERS

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]

STEPS, AT = 6, 3
# Libraries of optimizers that come with the development installation; the others are taken where they are installed.
LIBRARY = {"schedule_free": "schedulefree", "stable_adamw": "optimi", "grokadamw": "grokadamw", "galore": "galore_torch",
           "apollo": "apollo_torch", "adamw_anyprecision": "torchdistx", "adamw_torch_4bit": "torchao",
           "adamw_torch_8bit": "torchao"}
OF_BITSANDBYTES = ("8bit", "32bit", "bnb", "paged", "lion", "ademamix")
BESIDE = {
    "sgd": [dict(learning_rate=0.1), dict(learning_rate=0.1, optim_args="momentum=0.9,nesterov=True")],
    "rmsprop": [{}, dict(optim_args="momentum=0.5,alpha=0.9,centered=True")],
    "adagrad": [dict(optim_args="lr_decay=0.01")],
    "adafactor": [{}, dict(optim_args="beta1=0.9"), dict(optim_args="scale_parameter=True")],
    "adamw_torch": [{}, dict(optim_args="amsgrad=True")],
    "stable_adamw": [{}, dict(optim_args="kahan_sum=True")],
    "schedule_free_adamw": [dict(warmup_steps=2)],
    "schedule_free_radam": [dict(learning_rate=0.3, adam_beta2=0.9)],
}


def library_of(name):
    found = next((module for start, module in LIBRARY.items() if name.startswith(start)), "torch")
    return "bitsandbytes" if found == "torch" and any(part in name for part in OF_BITSANDBYTES) else found


HERE = [name for name in OPTIMIZER_NAMES if importlib.util.find_spec(library_of(name))]
# torch compiles the kernels of those with 4 bits for half a minute
CASES = [pytest.param(name, given, id="-".join([name, *map(str, given.values())]), marks=[pytest.mark.slow] * (name == "adamw_torch_4bit")) for name in HERE for given in BESIDE.get(name, [{}])]


class Net(nn.Module):
    "Weights of one and two dimensions, and one of none."
    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 3)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x=None, labels=None):
        logits = self.scale * self.outer(torch.tanh(self.norm(self.inner(x))))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def net():
    torch.manual_seed(0)
    return Net()


def rows(n=40):
    rng = np.random.default_rng(0)
    return [{"x": torch.tensor(rng.normal(size=8), dtype=torch.float32), "labels": int(rng.integers(3))} for _ in range(n)]


def settings_for(name, given):
    targets = dict(optim_target_modules=["inner", "outer"]) if name in TARGETED_OPTIMIZERS else {}
    return dict(optim=name, learning_rate=1e-2, per_device_train_batch_size=8, max_steps=STEPS, use_cpu=True, disable_tqdm=True,
                report_to="none", save_strategy="no", lr_scheduler_type="cosine", data_seed=1, logging_steps=1,
                weight_decay=0.01) | targets | given


def ours(name, given, **more): return Learner(net(), train_dataset=rows(), **settings_for(name, given) | more)


def theirs(name, given, folder, resume=None, **more):
    "transformers' Trainer, trained to its end."
    transformers = pytest.importorskip("transformers")
    args = transformers.TrainingArguments(output_dir=str(folder), **settings_for(name, given) | more)
    trainer = transformers.Trainer(net(), args, train_dataset=rows())
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(resume_from_checkpoint=resume and str(resume))
    return trainer


def same(one, other):
    "Whether two models have the same bytes."
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def close(one, other):
    a, b = one.state_dict(), other.state_dict()
    return all(torch.allclose(a[k], b[k], rtol=1e-5, atol=1e-7) for k in a)


@pytest.mark.parametrize("layout", ["safetensors", "trainer"])
@pytest.mark.parametrize("name, given", CASES)
def test_a_checkpoint_keeps_all_of_an_optimizer(name, given, layout, tmp_path):
    "Stopped and resumed, a run has the optimizer's state of the run that went on, entry for entry, and its end."
    learn = ours(name, given, output_dir=str(tmp_path/"a"), save_format=layout)
    learn.step(AT)
    folder = learn.save_checkpoint()
    again = ours(name, given, output_dir=str(tmp_path/"b"), save_format=layout)
    again.load_checkpoint(folder)
    assert [d for d in differences(again.snapshot(), learn.snapshot()) if d != "args"] == []
    for p, q in zip((p for g in again.optimizer.param_groups for p in g["params"]), (p for g in learn.optimizer.param_groups for p in g["params"])):
        there, here = learn.optimizer.state[q], again.optimizer.state[p]
        assert {k: type(v) for k, v in there.items()} == {k: type(v) for k, v in here.items()}
    learn.train()
    again.train()
    assert [d for d in differences(again.snapshot(), learn.snapshot()) if d != "args"] == []
    assert not same(learn.model, net())


# The Trainer has no Muon, ignores optim_args of AdamW and Adafactor, and does not restore GrokAdamW from its own files.
OF_BOTH = [case for case in CASES if case.values[0] not in ("muon", "grokadamw")
           and not (case.values[0] in ("adamw_torch", "adafactor") and case.values[1])]


# of each kind of optimizer, one
LIKE_OTHERS = ("paged_", "adamw_8bit", "rmsprop_bnb", "lion_8bit", "ademamix_8bit", "adamw_torch_8bit", "schedule_free_radam")


def slow_like_others(case): return pytest.param(*case.values, id=case.id, marks=[*case.marks] + [pytest.mark.slow] * case.values[0].startswith(LIKE_OTHERS))


@pytest.mark.parametrize("name, given", map(slow_like_others, OF_BOTH))
def test_the_trainer_goes_on_from_here(name, given, tmp_path):
    "A checkpoint that is written here is resumed by the Trainer, which ends where it ends without stopping."
    learn = ours(name, given, output_dir=str(tmp_path/"a"), save_format="trainer")
    learn.step(AT)
    folder = learn.save_checkpoint()
    learn.train()
    whole = theirs(name, given, tmp_path/"whole")
    other = theirs(name, given, tmp_path/"b", resume=folder)
    assert other.state.global_step == STEPS
    assert close(learn.model, whole.model)
    assert close(other.model, learn.model)


@pytest.mark.parametrize("name, given", OF_BOTH)
def test_what_the_trainer_began_goes_on_here(name, given, tmp_path):
    whole = theirs(name, given, tmp_path/"a", save_strategy="steps", save_steps=AT)
    learn = ours(name, given, output_dir=str(tmp_path/"b"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert learn.load_checkpoint(tmp_path/"a"/f"checkpoint-{AT}").said == []
    learn.train()
    assert learn.state.global_step == STEPS
    assert close(learn.model, whole.model)


@pytest.mark.skipif("grokadamw" not in HERE, reason="grokadamw is not installed")
def test_an_optimizer_that_the_trainer_does_not_restore_is_named(tmp_path):
    learn = ours("grokadamw", {}, output_dir=str(tmp_path/"a"), save_format="trainer")
    learn.step(AT)
    learn.save_checkpoint()
    theirs("grokadamw", {}, tmp_path/"b", save_strategy="steps", save_steps=AT)
    learn = ours("grokadamw", {})
    with pytest.raises(ValueError, match="has the state of GrokAdamW in its groups"): learn.load_checkpoint(tmp_path/"b"/f"checkpoint-{AT}")


def test_an_adafactor_with_its_own_rate_is_not_taken_for_ours(tmp_path):
    "transformers' Adafactor with relative_step has other arithmetic, and the same state."
    transformers = pytest.importorskip("transformers")
    from transformers.optimization import Adafactor, AdafactorSchedule
    model = net()
    optimizer = Adafactor(model.parameters(), scale_parameter=True, relative_step=True, warmup_init=True, lr=None)
    args = transformers.TrainingArguments(output_dir=str(tmp_path), **settings_for("adafactor", {}) | dict(save_strategy="steps", save_steps=AT))
    trainer = transformers.Trainer(model, args, train_dataset=rows(), optimizers=(optimizer, AdafactorSchedule(optimizer)))
    trainer.train()
    learn = ours("adafactor", dict(weight_decay=0.0))
    with pytest.raises(ValueError, match="optimizer.pt"): learn.load_checkpoint(tmp_path/f"checkpoint-{AT}")


# --- an optimizer with entries of every kind ------------------------------------------------------------------------------

class Everything(torch.optim.Optimizer):
    "Each entry decides over the update, so that a run ends elsewhere if one of them is lost or has another type."
    def __init__(self, params, lr=0.01):
        nested = {"pair": (1, 2.5), "none": None, "deep": {"list": [1, True, "x", None]}}
        super().__init__(params, dict(lr=lr, weight_decay=0.0, none=None, flag=True, pair=(0.5, 3), words=["a", None], nested=nested,
                                      scale=torch.tensor(0.5), count=7))

    def _first(self, p):
        return {"step": 0, "flag": True, "none": None, "word": "begin", "share": 0.25, "inf": float("inf"), "whole": torch.tensor(3),
                "yes": torch.tensor(True), "zero": torch.zeros(()), "wide": torch.zeros((), dtype=torch.float64),
                "half": torch.zeros_like(p, dtype=torch.bfloat16), "empty": torch.zeros(0), "list": [torch.zeros_like(p), None, 3],
                "pair": (1, torch.ones(2)), "nested": {"mean": torch.zeros_like(p), "none": None, "deep": {"n": 1, "f": False}}}

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            assert group["none"] is None and group["flag"] is True and group["pair"] == (0.5, 3) and group["words"] == ["a", None]
            assert group["nested"] == {"pair": (1, 2.5), "none": None, "deep": {"list": [1, True, "x", None]}} and group["count"] == 7
            for p in group["params"]:
                if p.grad is None: continue
                s = self.state[p]
                if "none" not in s: s.update(self._first(p))
                assert s["none"] is None and s["list"][1] is None and s["nested"]["none"] is None and s["inf"] == float("inf")
                assert s["pair"][0] == 1 and s["list"][2] == 3 and s["nested"]["deep"]["f"] is False and s["empty"].shape == (0,)
                s["step"] += 1
                s["flag"] = not s["flag"]
                s["word"] += "."
                s["share"] *= 0.9
                s["whole"] += 1
                s["yes"].logical_not_()
                s["zero"] += 0.1
                s["wide"] += 1e-12
                s["half"] += p.grad
                s["list"][0] += p.grad
                s["pair"][1].mul_(1.1)
                s["nested"]["mean"] += p.grad.abs()
                s["nested"]["deep"]["n"] += 1
                factor = s["share"] + s["zero"] + float(s["flag"]) + len(s["word"]) / 100 + s["whole"] / 10 + s["yes"].float() + s["nested"]["deep"]["n"] / 7
                update = s["half"].float() + s["list"][0] + 0.1 * s["nested"]["mean"] + s["pair"][1].sum() + s["wide"].float()
                p.sub_(group["lr"] * group["scale"] * factor / s["step"] * update * 0.01)


OWN = dict(optimizer_cls_and_kwargs=(Everything, {}))


def kinds(value):
    "Types of everything in a value."
    if isinstance(value, dict): return {k: kinds(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)): return type(value), [kinds(v) for v in value]
    return (value.dtype, value.shape) if isinstance(value, torch.Tensor) else type(value)


@pytest.mark.parametrize("layout", ["safetensors", "trainer"])
@pytest.mark.parametrize("acts", ["plain", "frozen", "other_groups"])
def test_entries_of_every_kind(layout, acts, tmp_path):
    def begun(folder):
        learn = ours("adamw_torch", {}, output_dir=str(folder), save_format=layout, **OWN)
        learn.step(2)
        if acts == "frozen": learn.freeze("inner")
        if acts == "other_groups": learn.set(weight_decay=0.2)
        learn.step(AT - 2)
        return learn
    learn = begun(tmp_path/"a")
    folder = learn.save_checkpoint()
    again = ours("adamw_torch", {}, output_dir=str(tmp_path/"b"), save_format=layout, **OWN)
    again.load_checkpoint(folder)
    assert [d for d in differences(again.snapshot(), learn.snapshot()) if d != "args"] == []
    pairs = list(zip(again.optimizer.param_groups, learn.optimizer.param_groups, strict=True))
    for one, other in pairs:
        assert kinds({k: v for k, v in one.items() if k != "params"}) == kinds({k: v for k, v in other.items() if k != "params"})
        for p, q in zip(one["params"], other["params"], strict=True):
            assert kinds(again.optimizer.state[p]) == kinds(learn.optimizer.state[q])
    learn.train()
    again.train()
    assert same(again.model, learn.model) and not same(learn.model, net())


def test_entries_of_every_kind_go_to_the_trainer_and_back(tmp_path):
    transformers = pytest.importorskip("transformers")
    def trained(folder, resume=None, **more):
        args = transformers.TrainingArguments(output_dir=str(folder), **settings_for("adamw_torch", {}) | more)
        trainer = transformers.Trainer(net(), args, train_dataset=rows(), **OWN)
        trainer.train(resume_from_checkpoint=resume and str(resume))
        return trainer
    whole = trained(tmp_path/"theirs", save_strategy="steps", save_steps=AT)
    learn = ours("adamw_torch", {}, output_dir=str(tmp_path/"ours"), save_format="trainer", **OWN)
    learn.step(AT)
    folder = learn.save_checkpoint()
    # torch gives what it loads the type of the parameter, in the Trainer's own files as well.
    like = trained(tmp_path/"b", resume=tmp_path/"theirs"/f"checkpoint-{AT}")
    assert close(trained(tmp_path/"a", resume=folder).model, like.model)
    again = ours("adamw_torch", {}, **OWN)
    again.load_checkpoint(tmp_path/"theirs"/f"checkpoint-{AT}")
    again.train()
    assert close(again.model, whole.model)


class Odd(torch.optim.SGD):
    "A state under keys that are no plain names."
    key = 0
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]: self.state[p][self.key] = torch.ones(1)


@pytest.mark.parametrize("key", [0, ("a", 1), "a/b"])
def test_keys_that_would_not_come_back_are_refused(key):
    learn = ours("sgd", {}, optimizer_cls_and_kwargs=(type("Odd", (Odd,), {"key": key}), {"lr": 0.1}))
    with pytest.raises(TypeError, match="under the key"): learn.step()

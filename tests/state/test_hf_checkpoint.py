"""Checkpoints in the layout of transformers' Trainer, both ways, with the real one: the same weights, byte for byte.

The models have no dropout: inside a step the two draw from different random streams (see test_same_numbers).
"""
import copy, dataclasses, json, pickle, random, shutil, sys, warnings
from functools import partial

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")
import tensor_kinds
from references import Rows, bert, for_classes, for_language, gpt2, net, one_thread, points, sentences  # noqa: F401 (a fixture)
from toys import Augmented, accuracy, finish, hard_learner, unequal
from trainer_nb import Learner, TrainerCallback, differences, get_last_checkpoint
from trainer_nb.state.checkpoint_dirs import MANIFEST_NAME
from trainer_nb.core.history import read_history
from trainer_nb.optim import optimizers
from trainer_nb.state.async_save import SaveFailed
from trainer_nb.state.checkpoint_dirs import list_checkpoints
from trainer_nb.state.hf_checkpoint import read_trainer_checkpoint
from trainer_nb.state.hf_optimizer import cpu_state_names

SHARED = dict(use_cpu=True, disable_tqdm=True, dataloader_pin_memory=False, data_seed=42, learning_rate=1e-2, logging_steps=1,
              per_device_train_batch_size=8, num_train_epochs=3, save_steps=1)


def theirs(folder, model, data, resume=None, **given):
    "transformers' Trainer, trained to its end."
    parts = {k: given.pop(k) for k in ("data_collator", "eval_dataset", "optimizers", "callbacks") if k in given}
    trainer = transformers.Trainer(copy.deepcopy(model), transformers.TrainingArguments(output_dir=str(folder), report_to="none", **SHARED | given),
                                   train_dataset=data, **parts)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(resume_from_checkpoint=resume and str(resume))
    return trainer


def ours(folder, model, data, **given):
    "A learner, not trained yet."
    return Learner(copy.deepcopy(model), train_dataset=data, output_dir=str(folder), **SHARED | given)


def resumed(learn, folder, said=()):
    "The learner, gone on from a folder to the end; `said` is what it has to say of it."
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if said else "error")
        out = learn.load_checkpoint(folder)
    assert len(out.said) == len(said) and all(part in sentence for part, sentence in zip(said, out.said)), out.said
    learn.train()
    return learn


def same(a, b):
    "Whether two models have the same weights and buffers, byte for byte."
    x, y = a.model.state_dict(), b.model.state_dict()
    return x.keys() == y.keys() and all(torch.equal(x[k], y[k]) for k in x)


def moved(one, model): return not same(one, type("Before", (), {"model": model}))


def logged_alike(one, other, start=-1):
    "Whether the same was logged after a step, but for the clocks, and for the mean of all steps, which a resumed run has of its own share."
    clock = ("runtime", "per_second", "total_flos", "train_loss")
    x, y = ([{k: v for k, v in row.items() if not k.endswith(clock)} for row in o.state.log_history if row["step"] > start] for o in (one, other))
    return len(x) == len(y) and all(a == pytest.approx(b, rel=1e-4, abs=1e-9) for a, b in zip(x, y))


# --- from the Trainer ---------------------------------------------------------------------------------------------------
# 50 points in batches of 8 are 7 micro-batches, the last of 2 points; in threes, the last window has one of them.

SETTINGS = {
    "plain": dict(optim="adamw_torch"),
    "fused_cosine": dict(optim="adamw_torch_fused", lr_scheduler_type="cosine", warmup_steps=3, weight_decay=0.1, gradient_accumulation_steps=3),
    "momentum": dict(optim="sgd", optim_args="momentum=0.9,nesterov=True", weight_decay=0.01, lr_scheduler_type="linear", warmup_steps=0.2),
    "sgd": dict(optim="sgd", learning_rate=0.1, lr_scheduler_type="constant", gradient_accumulation_steps=3, dataloader_drop_last=True),
    "polynomial": dict(lr_scheduler_type="polynomial", lr_scheduler_kwargs={"power": 2.0}, max_steps=11, train_sampling_strategy="sequential"),
    "constant_with_warmup": dict(lr_scheduler_type="constant_with_warmup", warmup_steps=5, num_train_epochs=1.5, seed=7),
}


MARKED = [pytest.param(name, marks=[pytest.mark.slow] * (name not in ("plain", "momentum", "polynomial"))) for name in SETTINGS]


@pytest.mark.trainer
@pytest.mark.parametrize("name", MARKED)
def test_what_the_trainer_began_is_finished_here(tmp_path, name):
    "From each step of the Trainer's run, within an epoch, at its end, and after the last."
    given = SETTINGS[name]
    like = theirs(tmp_path / "theirs", net(), points(50), **given)
    assert moved(like, net()), "the reference did not train: this test would compare nothing"
    for step in range(1, like.state.max_steps + 1):
        learn = resumed(ours(tmp_path / "ours", net(), points(50), save_strategy="no", **given), tmp_path / "theirs" / f"checkpoint-{step}")
        assert same(learn, like) and learn.state.global_step == like.state.max_steps, step
        assert learn.state.epoch == like.state.epoch and logged_alike(learn, like), step
        assert len(learn.history) == like.state.max_steps - step and learn.run_state.finished


TEXTS = {"gpt2": (gpt2, dict(data_collator=for_language)), "bert": (bert, dict(data_collator=for_classes))}
OF_TEXT = dict(per_device_train_batch_size=4, gradient_accumulation_steps=3, num_train_epochs=2, weight_decay=0.1, save_strategy="steps")


@pytest.mark.parametrize("name", [pytest.param("gpt2", marks=pytest.mark.slow), "bert"])
def test_a_model_of_transformers_both_ways(tmp_path, name):
    "GPT-2 has tied weights, and only one of them is in the file."
    model, given = TEXTS[name][0](), TEXTS[name][1] | OF_TEXT
    like = theirs(tmp_path / "theirs", model, sentences(30), **given)
    learn = ours(tmp_path / "ours", model, sentences(30), save_format="trainer", **given)
    learn.train()
    assert same(learn, like) and moved(like, model)
    for step in (2, 3, 5):
        assert same(resumed(ours(tmp_path / "a", model, sentences(30), **given), tmp_path / "theirs" / f"checkpoint-{step}"), like), step
        assert same(theirs(tmp_path / "b", model, sentences(30), tmp_path / "ours" / f"checkpoint-{step}", **given | dict(save_strategy="no")), like), step


def test_weights_in_the_older_file_and_in_pieces(tmp_path):
    "pytorch_model.bin, and the files of a large model with their index."
    model, given = gpt2(), TEXTS["gpt2"][1] | OF_TEXT | dict(max_steps=4)
    like = theirs(tmp_path / "theirs", model, sentences(30), **given)
    folder = tmp_path / "theirs" / "checkpoint-2"
    whole = transformers.GPT2LMHeadModel.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    whole.save_pretrained(folder, max_shard_size="5KB")
    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 1
    assert same(resumed(ours(tmp_path / "a", model, sentences(30), **given), folder), like)
    for path in folder.glob("model*safetensors*"): path.unlink()
    torch.save(whole.state_dict(), folder / "pytorch_model.bin")
    assert same(resumed(ours(tmp_path / "b", model, sentences(30), **given), folder), like)


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, rows): self.rows = rows
    def __iter__(self): return iter(self.rows)


def test_a_position_in_a_stream_is_in_no_file_of_the_trainers(tmp_path):
    theirs(tmp_path / "theirs", net(), Stream(points(100).rows), max_steps=9)
    refused(ours(tmp_path / "ours", net(), Stream(points(100).rows), save_strategy="no", max_steps=9), tmp_path / "theirs" / "checkpoint-8", "no position in a stream")


EVALUATED = dict(eval_dataset=points(20, seed=1), eval_strategy="epoch")


@pytest.mark.parametrize("strategy", ["steps", "epoch"])
def test_the_end_of_an_epoch(tmp_path, strategy):
    "Saved by steps before an epoch ends, its evaluation is still due; saved by epochs it is not done twice."
    given = EVALUATED | dict(save_strategy=strategy, save_steps=7)
    like = theirs(tmp_path / "theirs", net(), points(50), **given)
    evaluated = [(row["step"], row["eval_loss"]) for row in like.state.log_history if "eval_loss" in row]
    for step in (7, 14, 21):
        learn = resumed(ours(tmp_path / "ours", net(), points(50), **given), tmp_path / "theirs" / f"checkpoint-{step}")
        assert [(row["step"], pytest.approx(row["eval_loss"], rel=1e-6)) for row in learn.state.log_history if "eval_loss" in row] == evaluated
        assert same(learn, like) and learn.state.log_history[-1]["step"] == 21


def test_a_run_that_stops_within_an_epoch_is_over(tmp_path):
    "The Trainer itself would take a step too many there."
    given = dict(max_steps=10)
    like = theirs(tmp_path / "theirs", net(), points(50), **given)
    for strategy in ("steps", "epoch"):
        learn = resumed(ours(tmp_path / "ours", net(), points(50), save_strategy=strategy, **given), tmp_path / "theirs" / "checkpoint-10")
        assert same(learn, like) and learn.state.global_step == 10 and learn.run_state.finished
    learn.set(max_steps=12)
    learn.train()
    assert learn.state.global_step == 12 and learn.history.column("step").tolist() == [11, 12]


def test_an_optimizer_and_a_schedule_of_the_users(tmp_path):
    "One group for all parameters, which is not the Trainer's rule, and a schedule of torch's; both ways."
    def made(model):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        return model, (optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5))
    def trainer(folder, resume=None):
        model, pair = made(net())
        args = transformers.TrainingArguments(output_dir=str(folder), report_to="none", **SHARED)
        one = transformers.Trainer(model, args, train_dataset=points(50), optimizers=pair)
        one.train(resume_from_checkpoint=resume and str(resume))
        return one
    def learner(folder):
        model, pair = made(net())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")   # learning_rate has no effect
            learn = Learner(model, train_dataset=points(50), optimizers=pair, output_dir=str(folder), save_format="trainer", **SHARED)
            learn.snapshot("first")
        return learn
    like = trainer(tmp_path / "theirs")
    learn = learner(tmp_path / "ours")
    learn.train()
    assert same(learn, like)
    assert same(resumed(learner(tmp_path / "a"), tmp_path / "theirs" / "checkpoint-9"), like)
    assert same(trainer(tmp_path / "b", tmp_path / "ours" / "checkpoint-9"), like)


class Counts(TrainerCallback, transformers.trainer_callback.ExportableState):
    "Has a state in the Trainer's form."
    def __init__(self, by=1): self.by, self.steps = by, 0
    def state(self): return {"args": {"by": self.by}, "attributes": {"steps": self.steps}}
    def on_step_end(self, args, state, control, **kwargs): self.steps += self.by


class TheirCounts(transformers.TrainerCallback, transformers.trainer_callback.ExportableState):
    __init__, state, on_step_end = Counts.__init__, Counts.state, Counts.on_step_end


TheirCounts.__name__ = "Counts"


def test_callbacks_with_a_state_both_ways(tmp_path):
    "Two of one class, and one that stops early."
    early = transformers.EarlyStoppingCallback
    given = dict(eval_dataset=points(20, seed=1), eval_strategy="steps", eval_steps=1, metric_for_best_model="loss", load_best_model_at_end=True,
                 save_strategy="steps", learning_rate=0.3)
    like = theirs(tmp_path / "theirs", net(), points(50), callbacks=[TheirCounts(), TheirCounts(2), early(4)], **given)
    end = like.state.global_step
    assert end < 21, "nothing was stopped early: this test would compare nothing"
    at = end - 2
    learn = ours(tmp_path / "ours", net(), points(50), callbacks=[Counts(), Counts(2), early(4)], save_format="trainer", **given)
    learn.train()
    assert learn.state.global_step == end and same(learn, like)
    learn = resumed(ours(tmp_path / "a", net(), points(50), callbacks=[Counts(), Counts(2), early(4)], **given), tmp_path / "theirs" / f"checkpoint-{at}")
    assert learn.state.global_step == end and [c.steps for c in learn.run_state.callbacks.callbacks if isinstance(c, Counts)] == [end, 2 * end]
    assert learn.state.best_global_step == like.state.best_global_step and same(learn, like)
    again = theirs(tmp_path / "b", net(), points(50), tmp_path / "ours" / f"checkpoint-{at}", restore_callback_states_from_checkpoint=True,
                   callbacks=[TheirCounts(), TheirCounts(2), early(4)], **given)
    assert again.state.global_step == end and [c.steps for c in again.callback_handler.callbacks if isinstance(c, TheirCounts)] == [end, 2 * end]


# --- to the Trainer -----------------------------------------------------------------------------------------------------

@pytest.mark.trainer
@pytest.mark.parametrize("name", MARKED)
def test_what_began_here_is_finished_by_the_trainer(tmp_path, name):
    given = SETTINGS[name]
    like = theirs(tmp_path / "like", net(), points(50), save_strategy="no", **given)
    learn = ours(tmp_path / "ours", net(), points(50), save_format="trainer", **given)
    learn.train()
    assert same(learn, like) and moved(like, net())
    end = like.state.max_steps
    for step in (end // 2, end - 1):
        folder = tmp_path / "ours" / f"checkpoint-{step}"
        other = theirs(tmp_path / "theirs", net(), points(50), folder, save_strategy="no", **given)
        assert same(other, like) and other.state.global_step == end and other.state.epoch == like.state.epoch, step
        assert logged_alike(other, like), step
    assert transformers.trainer_utils.get_last_checkpoint(tmp_path / "ours") == get_last_checkpoint(tmp_path / "ours") == str(tmp_path / "ours" / f"checkpoint-{end}")


@pytest.mark.trainer
def test_the_same_files_with_the_same_content(tmp_path):
    "Name by name, and number by number, what the Trainer writes at the same step; without its pickled settings."
    given = SETTINGS["fused_cosine"]
    theirs(tmp_path / "theirs", net(), points(50), **given)
    ours(tmp_path / "ours", net(), points(50), save_format="trainer", **given).train()
    a, b = (tmp_path / name / "checkpoint-5" for name in ("theirs", "ours"))
    assert {p.name for p in b.iterdir()} - {"rest.json", "rest.safetensors", MANIFEST_NAME, "training_args.json"} == {p.name for p in a.iterdir()} - {"training_args.bin"}
    x, y = (torch.load(f / "optimizer.pt", weights_only=True) for f in (a, b))
    assert x["state"].keys() == y["state"].keys() and all(torch.equal(x["state"][i][k], y["state"][i][k]) for i in x["state"] for k in x["state"][i])
    assert x["param_groups"] == y["param_groups"]
    assert torch.load(a / "scheduler.pt", weights_only=True) == torch.load(b / "scheduler.pt", weights_only=True)
    x, y = (json.loads((f / "trainer_state.json").read_text()) for f in (a, b))
    assert x.keys() == y.keys() and set(x) <= {f.name for f in dataclasses.fields(transformers.TrainerState)}
    for key in set(x) - {"log_history", "stateful_callbacks", "total_flos"}: assert x[key] == y[key], key
    assert [sorted(row) for row in x["log_history"]] == [sorted(row) for row in y["log_history"]]
    assert x["stateful_callbacks"].keys() == y["stateful_callbacks"].keys() == {"TrainerControl"}
    with transformers.trainer_pt_utils.safe_globals():
        x, y = (torch.load(f / "rng_state.pth", weights_only=True) for f in (a, b))
    assert x.keys() == y.keys() and len(x["python"][1]) == len(y["python"][1]) and x["cpu"].shape == y["cpu"].shape
    random.Random().setstate(y["python"]); np.random.RandomState().set_state(y["numpy"]); torch.Generator().set_state(y["cpu"])


def test_back_and_forth(tmp_path):
    "A run that changes hands twice, in one folder, where the Trainer also writes over what was written here."
    given = SETTINGS["fused_cosine"]
    like = theirs(tmp_path / "like", net(), points(50), save_strategy="no", **given)
    learn = ours(tmp_path / "run", net(), points(50), save_format="trainer", **given)
    learn.step(6)
    learn.run_state.parts.saver.wait()
    other = theirs(tmp_path / "run", net(), points(50), tmp_path / "run" / "checkpoint-4", **given)
    assert same(other, like)
    found = {f.step: f for f in list_checkpoints(tmp_path / "run")}
    assert sorted(found) == [*range(1, 10)] and all(not f.problem for f in found.values())
    assert found[4].manifest and not found[5].manifest, "the Trainer's are told by what it left in them"
    assert same(resumed(ours(tmp_path / "run", net(), points(50), save_strategy="no", **given), tmp_path / "run" / "checkpoint-5"), like)
    assert same(resumed(ours(tmp_path / "run", net(), points(50), save_strategy="no", **given), True), like)


# --- from here to here --------------------------------------------------------------------------------------------------

LONG = dict(num_train_epochs=4, logging_steps=4, save_format="trainer", save_strategy="steps", save_steps=1)   # 12 steps
SCORED = dict(eval_dataset=Augmented(9), compute_metrics=accuracy, eval_strategy="steps", eval_steps=5)


@pytest.mark.parametrize("given", [{}, dict(optim="sgd", optim_args="momentum=0.9", lr_scheduler_type="one_cycle", weight_decay=0.1),
                                   dict(optim="adafactor", lr_scheduler_type="polynomial"), dict(bf16=True, **SCORED)],
                         ids=["plain", "one_cycle", "adafactor", "bf16"])
def test_every_split_of_a_run_in_two(tmp_path, given):
    "With dropout, noise, and buffers that no state_dict holds: what this package needs besides is in files of its own."
    like = hard_learner(output_dir=str(tmp_path / "whole"), **LONG | given)
    want = finish(like)
    for step in range(1, 13):
        folder = tmp_path / f"from {step}"
        (folder / "runs").mkdir(parents=True)
        shutil.copytree(tmp_path / "whole" / f"checkpoint-{step}", folder / f"checkpoint-{step}")
        shutil.copy(like.history.path, folder / "runs")
        learn = hard_learner(output_dir=str(folder), **LONG | given | dict(save_steps=100))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")   # that save_steps is another
            assert [sentence.split()[0] for sentence in learn.load_checkpoint().said] == ["save_steps"]
        assert learn.state.global_step == step
        assert unequal(finish(learn), want, ignore=("args", "state")) == [], step


def test_what_was_done_by_hand_goes_along(tmp_path):
    "Rates, frozen layers, other groups: the names of the parameters are kept, so other groups than a new learner's are found again."
    def acted(folder):
        learn = hard_learner(output_dir=str(folder), **LONG | dict(save_strategy="no"))
        learn.step(2); learn.freeze("inner"); learn.set(lr=3e-3); learn.step(2); learn.unfreeze("inner"); learn.set(weight_decay=0.1)
        return learn
    want = finish(acted(tmp_path / "like"))
    learn = acted(tmp_path / "a")
    learn.save_checkpoint()
    other = hard_learner(output_dir=str(tmp_path / "a"), **LONG | dict(save_strategy="no"))
    assert other.load_checkpoint().said == [] and differences(other.snapshot(), learn.snapshot()) == []
    assert unequal(finish(other), want, ignore=("args",)) == []


def test_layer_groups_with_rates_of_their_own(tmp_path):
    "Groups that the Trainer does not make are written as they are."
    given = LONG | dict(layer_groups=["inner", "outer"], learning_rate=[1e-3, 5e-3, 1e-2], weight_decay=0.1)
    like = hard_learner(output_dir=str(tmp_path), **given)
    want = finish(like)
    assert len(torch.load(tmp_path / "checkpoint-5" / "optimizer.pt", weights_only=True)["param_groups"]) == len(like.optimizer.param_groups) > 2
    learn = hard_learner(output_dir=str(tmp_path), **given | dict(save_steps=100))
    with pytest.warns(UserWarning, match=r"save_steps +\d+ +100"): learn.load_checkpoint(tmp_path / "checkpoint-5")
    assert [n for n in unequal(finish(learn), want, ignore=("args", "state")) if isinstance(n, str)] == []


def test_the_scaler(tmp_path):
    from scalers import scale, scaled
    like = scaled(output_dir=str(tmp_path / "a"), **LONG | dict(save_strategy="no"))
    like.step(5)
    like.save_checkpoint()
    assert torch.load(tmp_path / "a" / "checkpoint-5" / "scaler.pt", weights_only=True) == like.run_state.device.scaler.state_dict()
    torch.amp.GradScaler("cpu").load_state_dict(torch.load(tmp_path / "a" / "checkpoint-5" / "scaler.pt", weights_only=True))
    want = finish(like)
    learn = scaled(output_dir=str(tmp_path / "b"), scale=4.0, **LONG | dict(save_strategy="no"))
    learn.load_checkpoint(tmp_path / "a" / "checkpoint-5")
    assert scale(learn) == 2.0 ** 11 and unequal(finish(learn), want, ignore=("args",)) == []
    for name in ("rest.json", MANIFEST_NAME): (tmp_path / "a" / "checkpoint-5" / name).unlink()
    theirs = scaled(output_dir=str(tmp_path / "b"), scale=4.0, **LONG | dict(save_strategy="no"))
    assert theirs.load_checkpoint(tmp_path / "a" / "checkpoint-5").said == [] and scale(theirs) == 2.0 ** 11


def test_weights_only(tmp_path):
    given = dict(save_only_model=True, save_strategy="no")
    learn = ours(tmp_path / "ours", net(), points(50), save_format="trainer", **given)
    learn.step(3)
    folder = learn.save_checkpoint()
    assert {p.name for p in folder.iterdir()} == {"model.safetensors", "training_args.json", "trainer_state.json", "history.jsonl", MANIFEST_NAME} - ({"history.jsonl"} if learn.history.log else set())
    with pytest.raises(ValueError, match="written with save_only_model=True"): ours(tmp_path / "a", net(), points(50)).load_checkpoint(folder)
    theirs(tmp_path / "theirs", net(), points(50), save_only_model=True, max_steps=3)
    with pytest.raises(ValueError, match="has no optimizer.pt, so no state to continue from"):
        ours(tmp_path / "a", net(), points(50)).load_checkpoint(tmp_path / "theirs" / "checkpoint-3")


def test_what_the_files_cannot_hold_is_refused(tmp_path, monkeypatch):
    "A state of tensors of another kind would have to be pickled."
    monkeypatch.setattr(optimizers, "TENSOR_SUBCLASS_MODULES", (tensor_kinds.__name__,))
    learn = tensor_kinds.coarse(output_dir=str(tmp_path), save_strategy="no", save_format="trainer")
    learn.step(2)
    with pytest.raises(SaveFailed, match="CoarseMomentum keeps tensors of a kind of its own.*save_format='safetensors' keeps them"): learn.save_checkpoint()
    assert list_checkpoints(tmp_path) == []
    learn.set(save_format="safetensors")
    assert learn.save_checkpoint().is_dir()


# --- nothing is run -----------------------------------------------------------------------------------------------------

class Harm:
    "What a pickle can do."
    ran = []
    def __reduce__(self): return exec, (f"import {__name__}; {__name__}.Harm.ran.append(1)",)


@pytest.fixture
def written(tmp_path):
    "A checkpoint of the Trainer's at step 5, in the middle of an epoch."
    theirs(tmp_path / "theirs", net(), points(50), max_steps=6)
    return tmp_path / "theirs" / "checkpoint-5"


def refused(learn, folder, match):
    "It is refused in one sentence that matches, and the learner is as it was."
    before, rows = learn.snapshot(), len(learn.history)
    with pytest.raises(ValueError, match=match) as caught: learn.load_checkpoint(folder)
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)
    assert differences(learn.snapshot(), before) == [] and len(learn.history) == rows
    learn.step()   # it goes on


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "scaler.pt", "pytorch_model.bin"])
@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_a_program_in_a_file_is_not_run(written, tmp_path, name, how, monkeypatch):
    monkeypatch.setitem(sys.modules, "test_hf_checkpoint", sys.modules[__name__])
    if name == "pytorch_model.bin": (written / "model.safetensors").unlink()
    if how == "torch": torch.save({"state": {}, "param_groups": [Harm()]}, written / name)
    else: (written / name).write_bytes(pickle.dumps({"last_epoch": Harm()}, protocol=2))
    learn = ours(tmp_path / "a", net(), points(50), max_steps=6)
    learn.step(2)
    refused(learn, written, f"{name} holds more than tensors and plain values, and was not run")
    assert Harm.ran == []
    pickle.loads(pickle.dumps(Harm()))
    assert Harm.ran.pop(), "the harm would have done nothing"


def test_files_that_are_not_needed_are_not_opened(written, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "test_hf_checkpoint", sys.modules[__name__])
    for name in ("training_args.bin", "rng_state.pth"):
        assert (written / name).is_file()
        torch.save(Harm(), written / name)
    learn = ours(tmp_path / "a", net(), points(50), max_steps=6)
    assert learn.load_checkpoint(written).step == 5 and Harm.ran == []


# --- other versions -----------------------------------------------------------------------------------------------------

def by_hand(folder, steps, total, epoch):
    "A loop of torch's own, and a folder as the Trainer of 4.57 wrote it."
    model, rows = net(), points(50).rows
    decays = [p for n, p in model.named_parameters() if n in ("inner.weight", "outer.weight")]
    others = [p for n, p in model.named_parameters() if n not in ("inner.weight", "outer.weight")]
    optimizer = torch.optim.AdamW([{"params": decays, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(lambda step, n: max(0.0, (n - step) / n), n=total))
    for step in range(steps):
        batch = rows[step % 7 * 8:][:8]
        loss = model(torch.stack([r["x"] for r in batch]), torch.tensor([r["labels"] for r in batch]))["loss"]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step(); schedule.step(); optimizer.zero_grad()
    folder.mkdir()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    torch.save(schedule.state_dict() | {"verbose": False}, folder / "scheduler.pt")
    torch.save({"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.get_rng_state()}, folder / "rng_state.pth")
    (folder / "training_args.bin").write_bytes(b"a pickle")
    control = {"should_epoch_stop": False, "should_evaluate": False, "should_log": False, "should_save": True, "should_training_stop": False}
    state = dict(best_global_step=None, best_metric=None, best_model_checkpoint=None, epoch=epoch, eval_steps=500, global_step=steps, is_hyper_param_search=False,
                 is_local_process_zero=True, is_world_process_zero=True, log_history=[{"epoch": 0.1, "loss": 1.5, "step": 1}], logging_steps=1, max_steps=total,
                 num_input_tokens_seen=0, num_train_epochs=2, save_steps=1, total_flos=0.0, train_batch_size=8, trial_name=None, trial_params=None,
                 stateful_callbacks={"TrainerControl": {"args": control, "attributes": {}}}, a_field_of_another_version=3)
    (folder / "trainer_state.json").write_text(json.dumps(state, indent=2, sort_keys=True) + "\n")
    return model


@pytest.mark.parametrize("missing", [(), ("stateful_callbacks", "best_global_step", "num_input_tokens_seen", "trial_params")])
def test_a_folder_of_4_57(tmp_path, missing):
    by_hand(tmp_path / "checkpoint-5", 5, 14, 5 / 7)
    like = by_hand(tmp_path / "whole", 14, 14, 2.0)
    path = tmp_path / "checkpoint-5" / "trainer_state.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k not in missing}))
    learn = ours(tmp_path / "a", net(), points(50), num_train_epochs=2, weight_decay=0.1, optim="adamw_torch", train_sampling_strategy="sequential")
    assert same(resumed(learn, tmp_path / "checkpoint-5"), type("Whole", (), {"model": like}))
    assert learn.state.log_history[0] == {"epoch": 0.1, "loss": 1.5, "step": 1} and learn.state.global_step == 14


# --- what is refused, and what is said ----------------------------------------------------------------------------------

def rewrite(folder, name, change):
    "Change what is in a file of torch's."
    value = torch.load(folder / name, weights_only=True)
    change(value)
    torch.save(value, folder / name)


def cut(name, to=-40): return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:to])
def gone(name): return lambda folder: (folder / name).unlink()


def set_state(**given):
    def change(folder):
        path = folder / "trainer_state.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | given))
    return change


def shorter(value): value["param_groups"][1]["params"].pop()
def stranger(value): value["state"][77] = value["state"][0]
def reshaped(value): value["state"][0]["exp_avg"] = torch.zeros(3, 3)


REFUSED = {
    "no optimizer": (gone("optimizer.pt"), {}, "has no optimizer.pt, so no state to continue from"),
    "no schedule": (gone("scheduler.pt"), {}, "has no scheduler.pt"),
    "no weights": (gone("model.safetensors"), {}, "holds no weights"),
    "weights cut short": (cut("model.safetensors"), {}, "cannot be read .*cut short"),
    "optimizer cut short": (cut("optimizer.pt", 300), {}, "optimizer.pt cannot be read .*, it may have been cut short"),
    "state cut short": (cut("trainer_state.json"), {}, "trainer_state.json is truncated"),
    "no step": (set_state(global_step=None), {}, "trainer_state.json is truncated, or was not written by"),
    "not an optimizer": (lambda folder: torch.save({"weights": torch.ones(2)}, folder / "optimizer.pt"), {}, "optimizer.pt does not hold the state of an optimizer"),
    "not even a dict": (lambda folder: torch.save(torch.ones(2), folder / "optimizer.pt"), {}, "optimizer.pt does not hold the state of an optimizer"),
    "other groups": (lambda folder: rewrite(folder, "optimizer.pt", shorter), {}, r"groups of \[2, 3\] parameters, and this learner's optimizer has \[2, 4\]"),
    "a number of no group": (lambda folder: rewrite(folder, "optimizer.pt", stranger), {}, "keeps something for parameters that are in none of its groups"),
    "other shapes": (lambda folder: rewrite(folder, "optimizer.pt", reshaped), {}, r"exp_avg of 'inner.weight' has the shape \(3, 3\), and 'inner.weight' has \(16, 6\)"),
    "another optimizer": (None, dict(optim="sgd", optim_args="momentum=0.9"), "it keeps exp_avg, exp_avg_sq, step for 'inner.weight', and SGD keeps momentum_buffer"),
    "one that keeps nothing": (None, dict(optim="sgd"), "and SGD keeps nothing; give the Learner the optim="),
    "another schedule": (None, dict(lr_scheduler_type="one_cycle"), "scheduler.pt is that of another kind of schedule: it has no 'total_steps'"),
    "another batch size": (None, dict(per_device_train_batch_size=4), r"was at epoch 0.714286, and with the data and settings here 5 steps are epoch 0.384615.*\(8 then, 4 now\)"),
    "another accumulation": (None, dict(gradient_accumulation_steps=2), "was at epoch 0.714286, and with the data and settings here 5 steps are epoch 1.28571"),
    "fewer steps": (None, dict(max_steps=4), "has done 5 steps, and by the settings here it has 4 in all"),
    "frozen layers": ("freeze", {}, r"groups of \[2, 4\] parameters, and this learner's optimizer has \[1, 3\]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(written, tmp_path, name):
    harm, given, match = REFUSED[name]
    learn = ours(tmp_path / "a", net(), points(50), **dict(max_steps=6, save_strategy="no") | given)
    if harm == "freeze":
        for p in learn.model.inner.parameters(): p.requires_grad_(False)
    elif harm: harm(written)
    refused(learn, written, match)


def test_another_model_and_other_data_are_refused(written, tmp_path):
    class Wide(type(net())):
        def __init__(self): super().__init__(); self.outer = torch.nn.Linear(16, 4)
    refused(ours(tmp_path / "a", Wide(), points(50), max_steps=6), written, r"'outer.(weight|bias)' has the shape \(3,.*\) there and \(4,.*\) here")
    class More(type(net())):
        def __init__(self): super().__init__(); self.more = torch.nn.Linear(1, 1)
    refused(ours(tmp_path / "a", More(), points(50), max_steps=6), written, "'more.weight' is not in both")
    refused(ours(tmp_path / "a", net(), points(60), max_steps=6), written, "after 5 steps the Trainer was at epoch 0.714286")


def test_decay_in_the_file_and_none_here(tmp_path):
    theirs(tmp_path / "theirs", net(), points(50), max_steps=3, weight_decay=0.1)
    folder = tmp_path / "theirs" / "checkpoint-2"
    learn = resumed(ours(tmp_path / "a", net(), points(50), max_steps=3), folder, ["weight_decay of the optimizer's groups is 0.1 in optimizer.pt and 0.0"])
    assert [g["weight_decay"] for g in learn.optimizer.param_groups] == [0.1, 0.0]
    class OneGroup(Learner):
        def create_optimizer(self, model=None):
            if self.optimizer is None: self.optimizer = torch.optim.AdamW(self.model.parameters(), weight_decay=0.0)
            return self.optimizer
    one = OneGroup(net(), train_dataset=points(50), output_dir=str(tmp_path / "a"), **SHARED | dict(max_steps=3))
    refused(one, folder, r"in one group here \(weight_decay 0.1, 0.0\)")


def test_what_is_not_as_it_was_is_said(written, tmp_path):
    "Another length, another rate, another schedule: it goes on, as the Trainer would, with the file's numbers and the learner's functions."
    def learner(**given): return ours(tmp_path / "a", net(), points(50), **dict(max_steps=6, save_strategy="no") | given)
    resumed(learner(max_steps=9), written, ["max_steps is 6 in trainer_state.json and 9 by the settings here", "num_train_epochs is 1", "learning rate at step 5"])
    learn = resumed(learner(learning_rate=0.05, weight_decay=0.1), written, ["initial_lr of the optimizer's groups is 0.01", "weight_decay of the optimizer's groups is 0.0"])
    assert learn.optimizer.param_groups[0]["initial_lr"] == 0.01
    resumed(learner(lr_scheduler_type="constant"), written, ["the Trainer's learning rate at step 5 is 0.00166667, and the schedule here has 0.01 there"])
    learn = resumed(learner(optim="adamw_torch"), written)
    assert not learn.optimizer.param_groups[0].get("fused"), "how the update is computed is the learner's business"


def test_the_precision_and_the_place_of_what_an_optimizer_keeps(written, tmp_path):
    "As torch has it when it loads a state: the parameter's precision; the step count stays on the CPU unless the update is fused."
    learn = ours(tmp_path / "a", net().double(), points(50), max_steps=6)
    learn.snapshot("made")   # prepared
    back = read_trainer_checkpoint(learn, written)
    kept = {n: t.dtype for n, t in back.tensors.items() if n.startswith("optimizer/")}
    assert {t for n, t in kept.items() if "exp_avg" in n} == {torch.float64} and {t for n, t in kept.items() if n.endswith("/step")} == {torch.float32}
    assert back.values["optimizer"]["on_cpu"] == []
    state, gpu = {"a": {"step": torch.ones(()), "exp_avg": torch.ones(2)}, "b": {"step": torch.ones(())}, "c": {}}, torch.device("cuda")
    groups = [{"fused": True, "params": ["a"]}, {"fused": None, "params": ["b", "c"]}]
    assert cpu_state_names(gpu, groups, state) == ["b/step"] and cpu_state_names(torch.device("cpu"), groups, state) == []


def test_the_history_begins_anew(written, tmp_path):
    "Also in a learner that has trained already; and what it writes afterwards can be resumed from with all of its log."
    learn = ours(tmp_path / "a", net(), points(50), max_steps=6, save_strategy="no")
    learn.step(2)
    first = learn.history.run_id
    with warnings.catch_warnings():
        warnings.simplefilter("error")   # nothing is lost that was there
        learn.load_checkpoint(written)
    assert learn.history.run_id != first and len(learn.history) == 0 and [row["step"] for row in learn.state.log_history] == [1, 2, 3, 4, 5]
    learn.train()
    folder = learn.save_checkpoint(tmp_path / "b" / "checkpoint-6")
    other = ours(tmp_path / "b", net(), points(50), max_steps=6, save_strategy="no")
    other.load_checkpoint(folder)
    assert other.state.log_history == learn.state.log_history and len(other.history) == 1
    assert read_history(tmp_path / "a").run_id == learn.history.run_id

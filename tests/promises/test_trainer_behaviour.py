"""What the Trainer does without being asked, done here too: both sides run, and what they leave behind is compared."""
import copy
import dataclasses
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")

from trainer_nb import InvalidOperation, Learner, TrainingArguments
from trainer_nb.engine.snapshot import differences
from references import Net, accuracy, bert, for_classes, for_language, gpt2, llama, make, net, one_thread, points, relative, sentences, vector   # noqa: F401


# --- train() on a finished run -----------------------------------------------------------------------------------------

def logged(one, *names):
    "The rows of the log, as far as they do not tell the time."
    return [{k: v for k, v in row.items() if k in names} for row in one.state.log_history]

SHORT = dict(max_steps=6, per_device_train_batch_size=8, logging_steps=2, data_seed=42)

def same_training(theirs, ours):
    "The weights, the optimizer's state, and the logs."
    assert relative(vector(ours.model), vector(theirs.model)) < 1e-6
    names = "loss", "grad_norm", "learning_rate", "step", "epoch"
    mine, other = logged(ours, *names), logged(theirs, *names)
    assert [row.keys() for row in mine] == [row.keys() for row in other]
    for a, b in zip(mine, other): assert a == pytest.approx(b, rel=1e-4)
    optimizer = getattr(theirs.optimizer, "optimizer", theirs.optimizer)
    assert len(ours.optimizer.param_groups) == len(optimizer.param_groups)
    for a, b in zip(ours.optimizer.param_groups, optimizer.param_groups):
        assert a["lr"] == pytest.approx(b["lr"])
        for p, q in zip(a["params"], b["params"]):
            assert sorted(ours.optimizer.state[p]) == sorted(optimizer.state[q])
            for name, value in optimizer.state[q].items():
                if isinstance(value, torch.Tensor): torch.testing.assert_close(ours.optimizer.state[p][name], value, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("given", [{}, {"optim": "sgd", "optim_args": "momentum=0.9"}, {"lr_scheduler_type": "cosine", "warmup_steps": 2},
                                   {"lr_scheduler_type": "constant"}])
def test_a_second_train_keeps_weights_and_optimizer(make, capsys, given):
    theirs, ours = (made(net(), points(60), **SHORT | given) for made in (make.theirs, make.ours))
    theirs.train(), ours.train()
    first, state = ours.optimizer, ours.history.run_id
    capsys.readouterr()
    a, b = theirs.train(), ours.train()
    assert a.global_step == b.global_step == 6 and b.training_loss == pytest.approx(a.training_loss, rel=1e-4)
    assert ours.optimizer is first and ours.history.parent == state
    lines = [line for line in capsys.readouterr().out.splitlines() if "new run" in line]
    assert len(lines) == 1 and "same weights" in lines[0] and "same optimizer" in lines[0]
    same_training(theirs, ours)


def test_a_second_train_with_parts_of_the_user(make):
    "An optimizer of the user's goes on; so does a schedule of theirs, which is not begun anew."
    for scheduled in (False, True):
        def parts(model):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            return optimizer, torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 20) if scheduled else None
        model = net()
        theirs = make.theirs(model, points(60), **SHORT)
        theirs.optimizer, theirs.lr_scheduler = parts(theirs.model)
        ours_model = copy.deepcopy(model)
        given = {k: v for k, v in SHORT.items()}
        ours = Learner(ours_model, train_dataset=points(60), optimizers=parts(ours_model), **make.settings(given) | {"learning_rate": 5e-5})
        for one in (theirs, ours): one.train(), one.train()
        same_training(theirs, ours)


def test_a_second_train_with_model_init_is_a_new_model_and_a_new_optimizer(make, capsys):
    def started(): return Net()
    theirs = transformers.Trainer(None, transformers.TrainingArguments(**make.settings(SHORT)), train_dataset=points(60), model_init=started)
    theirs.remove_callback(transformers.PrinterCallback)
    ours = Learner(model_init=started, train_dataset=points(60), **make.settings(SHORT))
    theirs.train(), ours.train()
    model, optimizer = ours.model, ours.optimizer
    once = vector(model)
    capsys.readouterr()
    theirs.train(), ours.train()
    assert ours.model is not model and ours.optimizer is not optimizer and torch.equal(vector(ours.model), once)
    lines = [line for line in capsys.readouterr().out.splitlines() if "new run" in line]
    assert len(lines) == 1 and "model_init" in lines[0]
    same_training(theirs, ours)
    ours.reset()
    ours.train()
    assert torch.equal(vector(ours.model), once)


def test_a_loop_over_seeds(make):
    "Each seed has its own weights and its own order, as in the Trainer, and none knows of the others."
    given = {k: v for k, v in SHORT.items() if k != "data_seed"}
    theirs = transformers.Trainer(None, transformers.TrainingArguments(**make.settings(given)), train_dataset=points(60), model_init=Net)
    theirs.remove_callback(transformers.PrinterCallback)
    ours = Learner(model_init=Net, train_dataset=points(60), **make.settings(given))
    assert ours.model is not None
    seen = []
    for seed in (1, 2, 1):
        theirs.args.seed = ours.args.seed = seed
        theirs.train(), ours.train()
        same_training(theirs, ours)
        seen.append(vector(ours.model))
    assert torch.equal(seen[0], seen[2]) and not torch.equal(seen[0], seen[1])
    alone = Learner(model_init=Net, train_dataset=points(60), **make.settings(given | {"seed": 2}))
    alone.train()
    assert torch.equal(vector(alone.model), seen[1])


def test_the_arguments_of_the_script_count_for_the_next_run(make):
    "The Trainer has the very object; here a learner has a copy, and takes over what was changed when a run begins."
    given = {k: v for k, v in SHORT.items() if k != "data_seed"}
    args = TrainingArguments(**make.settings(given))
    ours = Learner(None, args, model_init=Net, train_dataset=points(60))
    seen = []
    for seed in (1, 2):
        args.seed = seed
        ours.train()
        seen.append(vector(ours.model))
        assert ours.args.seed == seed
    for seed, weights in zip((1, 2), seen):
        alone = Learner(model_init=Net, train_dataset=points(60), **make.settings(given | {"seed": seed}))
        alone.train()
        assert torch.equal(vector(alone.model), weights)


def test_what_follows_a_finished_run_is_said(make):
    ours = make.ours(net(), points(60), **SHORT)
    ours.train()
    for verb in (ours.step, ours.run):
        with pytest.raises(InvalidOperation, match=r"max_steps=.*extends.*train\(\) begins a new run"): verb()
    ours.set(max_steps=9)
    before = ours.optimizer
    assert ours.train().global_step == 9 and ours.optimizer is before and ours.history.parent is None
    ours.train()
    assert ours.history.parent is not None and ours.state.global_step == 9


def test_a_run_after_another_is_exact(make):
    "It pauses, rewinds, resumes and branches byte for byte, with the state that the first run left in the optimizer."
    def second():
        one = make.ours(net(), points(60), **SHORT)
        one.train()
        one._begin_again()
        return one
    straight = second()
    straight.train()
    end = straight.snapshot()
    other = second()
    other.step(3)
    middle = other.snapshot()
    fork = other.branch()
    other.rewind(2)
    other.step(2)
    assert differences(middle, other.snapshot()) == []
    folder = other.save_checkpoint()
    fork.train(), other.train()
    assert differences(end, other.snapshot()) == [] and torch.equal(vector(fork.model), vector(straight.model))
    third = make.ours(net(), points(60), **SHORT)
    third.load_checkpoint(folder)
    third.train()
    assert torch.equal(vector(third.model), vector(straight.model))


# --- special tokens ----------------------------------------------------------------------------------------------------

def tokenizer(**special):
    from tokenizers import Tokenizer, models, pre_tokenizers
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(36)} | {"<s>": 36, "</s>": 37, "<pad>": 38, "<unk>": 39}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", **special)

ALL = dict(bos_token="<s>", eos_token="</s>", pad_token="<pad>")
LANGUAGE = dict(max_steps=2, per_device_train_batch_size=4, logging_steps=1, data_collator=for_language)

def configs(folder):
    "The bytes of the configurations in a folder."
    return {name: (folder / name).read_bytes() for name in ("config.json", "generation_config.json") if (folder / name).is_file()}

def ends(model, value):
    model.generation_config.eos_token_id = value
    return model

class Processor(transformers.ProcessorMixin):
    "Nothing but a tokenizer."
    def __init__(self, tokenizer): self.tokenizer = tokenizer
    def save_pretrained(self, folder, **kwargs): pass


TOKENS = {
    "all": (lambda: gpt2(), lambda: tokenizer(**ALL)), "several ends": (lambda: ends(llama(), [5, 6]), lambda: tokenizer(**ALL)),
    "some": (lambda: gpt2(), lambda: tokenizer(pad_token="<pad>")), "none": (lambda: gpt2(), lambda: None),
    "a processor": (lambda: gpt2(), lambda: Processor(tokenizer(**ALL))), "no generation": (lambda: bert(), lambda: tokenizer(**ALL)),
}

@pytest.mark.parametrize("case", TOKENS)
def test_special_tokens_are_the_tokenizers(make, tmp_path, case):
    model, reader = (f() for f in TOKENS[case])
    given = LANGUAGE | dict(processing_class=reader) | ({"data_collator": for_classes} if case == "no generation" else {})
    theirs, ours = (made(copy.deepcopy(model), sentences(20), **given) for made in (make.theirs, make.ours))
    assert ours.model.config.pad_token_id == model.config.pad_token_id   # not before the run begins
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        theirs.train(), ours.train()
    theirs.save_model(tmp_path / "theirs"), ours.save_model(tmp_path / "ours")
    assert configs(tmp_path / "ours") == configs(tmp_path / "theirs") and len(configs(tmp_path / "ours")) >= 1
    assert ours.state.log_history[0]["loss"] == pytest.approx(theirs.state.log_history[0]["loss"], rel=1e-5)
    said = [str(w.message) for w in said if "special tokens" in str(w.message)]
    noted = [event for event in ours.history.events if event["kind"] == "special_tokens"]
    assert len(said) == len(noted) == (case != "none")
    if case == "several ends":
        assert ours.model.generation_config.eos_token_id == [37, 5, 6] and "eos_token_id=37" in said[0]
        assert noted[0]["data"] == {"eos_token_id": 37, "bos_token_id": 36, "pad_token_id": 38} and "pad_token_id=38" in repr(ours.journal)
    ours.train()
    assert configs(tmp_path / "ours") == configs(tmp_path / "theirs")


def test_a_run_with_special_tokens_is_exact(make, tmp_path):
    "A classifier that finds the last token of a text by the padding token: rewinding, branching and resuming agree."
    def classifier():
        torch.manual_seed(0)
        return transformers.GPT2ForSequenceClassification(transformers.GPT2Config(
            vocab_size=40, n_positions=16, n_embd=16, n_layer=1, n_head=2, num_labels=3, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    def learner(): return make.ours(classifier(), sentences(20), processing_class=tokenizer(**ALL), data_collator=for_classes, **SHORT)
    whole, ours = learner(), learner()
    first = ours.snapshot()
    ours.step(2)
    ours.restore(first)
    ours.step(3)
    folder, fork, fresh = ours.save_checkpoint(), ours.branch(), learner()
    fresh.load_checkpoint(folder)
    for one in (whole, ours, fork, fresh):
        one.train()
        assert torch.equal(vector(one.model), vector(whole.model)) and one.model.config.pad_token_id == 38
    theirs = make.theirs(classifier(), sentences(20), processing_class=tokenizer(**ALL), data_collator=for_classes, **SHORT)
    theirs.train()
    assert relative(vector(whole.model), vector(theirs.model)) < 1e-6


# --- without an output_dir ---------------------------------------------------------------------------------------------

def files(folder): return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}

NOWHERE = dict(use_cpu=True, disable_tqdm=True, max_steps=4, per_device_train_batch_size=8)

class Asks(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs): control.should_save = state.global_step == 2


@pytest.mark.parametrize("given, folders", [
    ({}, []), (dict(save_strategy="no"), []), (dict(save_steps=3), [3, 4]), (dict(save_strategy="epoch"), [4]),
    (dict(save_strategy="no", callbacks=[Asks]), [2]), (dict(save_strategy="steps"), [4]),
    (dict(save_strategy="best", eval_strategy="steps", eval_steps=4, metric_for_best_model="loss"), [4])])
def test_what_is_asked_for_is_saved_without_an_output_dir(tmp_path, monkeypatch, capsys, given, folders):
    monkeypatch.chdir(tmp_path)
    learn = Learner(net(), train_dataset=points(64), eval_dataset=points(8), **NOWHERE | given)
    learn.train()
    out = capsys.readouterr().out
    assert sorted({f.split("/")[1] for f in files(tmp_path)}) == [f"checkpoint-{n}" for n in folders]
    assert out.count(str(tmp_path / "trainer_output")) == bool(folders)
    learn.save_model(), learn.save_state(), learn.save_metrics("train", {"train_loss": 1.0})
    assert {"trainer_output/model.safetensors", "trainer_output/trainer_state.json", "trainer_output/train_results.json"} <= files(tmp_path)
    assert (out + capsys.readouterr().out).count(str(tmp_path / "trainer_output")) == 1
    assert not any("run-" in f for f in files(tmp_path) if "checkpoint" not in f), "no log is written"
    if 3 not in folders: return
    again = Learner(net(), train_dataset=points(64), **NOWHERE | given)
    again.load_checkpoint(tmp_path / "trainer_output" / "checkpoint-3")
    again.train()
    assert torch.equal(vector(again.model), vector(learn.model))
    assert Learner(net(), train_dataset=points(64), **NOWHERE | given | dict(max_steps=5)).train(resume_from_checkpoint=True).global_step == 5


def test_the_trainer_saves_in_the_same_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    theirs = transformers.Trainer(net(), transformers.TrainingArguments(report_to="none", save_steps=3, **NOWHERE), train_dataset=points(64))
    theirs.train(), theirs.save_model(), theirs.save_state()
    assert {"trainer_output/model.safetensors", "trainer_output/trainer_state.json", "trainer_output/checkpoint-3/model.safetensors"} <= files(tmp_path)


# --- arguments as the Trainer resolves them ----------------------------------------------------------------------------

RESOLVED = [
    dict(report_to="none"), dict(report_to=["none"]), dict(report_to=[]), dict(report_to="tensorboard"), dict(report_to=["tensorboard"]),
    dict(report_to="all"), dict(report_to=["all"]), dict(torch_compile_backend="eager"), dict(torch_compile_mode="default"), dict(torch_compile=True),
    dict(eval_strategy="steps"), dict(eval_strategy="steps", eval_steps=0), dict(eval_strategy="epoch"), dict(lr_scheduler_type="reduce_lr_on_plateau", eval_strategy="epoch"),
    dict(include_num_input_tokens_seen=True), dict(logging_steps=5.0), dict(lr_scheduler_kwargs='{"num_cycles": 2}')]
NAMES = ("report_to", "torch_compile", "torch_compile_backend", "torch_compile_mode", "do_eval", "eval_steps", "metric_for_best_model", "greater_is_better",
         "include_num_input_tokens_seen", "logging_steps", "lr_scheduler_kwargs", "train_batch_size", "eval_batch_size", "optim", "save_strategy")

@pytest.mark.parametrize("given", RESOLVED, ids=str)
def test_arguments_are_resolved_as_by_the_trainer(tmp_path, given):
    a, b = (kind(output_dir=str(tmp_path), use_cpu=True, **given) for kind in (transformers.TrainingArguments, TrainingArguments))
    def values(args): return {name: sorted(v) if isinstance(v := getattr(args, name), list) else v for name in NAMES}
    assert values(b) == values(a)
    again = TrainingArguments.from_dict(b.to_dict())
    assert values(again) == values(b) and TrainingArguments(**b.changed()) == b == copy.deepcopy(b)


# --- memory that runs out ----------------------------------------------------------------------------------------------

OOM = ["CUDA out of memory. Tried to allocate 2.00 GiB.", "MPS backend out of memory (MPS allocated: 1 GB)", "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear",
       "[enforce fail at alloc_cpu.cpp:75] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."]

@pytest.mark.parametrize("text", OOM)
def test_errors_of_memory_make_the_batch_smaller(make, text):
    "Errors that are no torch.OutOfMemoryError: those that accelerate's should_reduce_batch_size recognizes."
    from accelerate.utils.memory import should_reduce_batch_size
    assert should_reduce_batch_size(RuntimeError(text))
    class Large(Net):
        def forward(self, x=None, labels=None):
            if self.training and len(x) > 4: raise RuntimeError(text)
            return super().forward(x, labels)
    torch.manual_seed(0)
    model = Large()
    given = SHORT | dict(auto_find_batch_size=True)
    ours = make.ours(model, points(60), **given)
    with pytest.warns(UserWarning, match="Memory ran out in step 1"): ours.train()
    assert ours.args.per_device_train_batch_size == 4
    if text == OOM[0]:
        theirs = make.theirs(model, points(60), **given)
        theirs.train()
        assert theirs._train_batch_size == 4
    other = make.ours(model, points(60), **SHORT)
    with pytest.raises(RuntimeError): other.train()


# --- evaluations with workers ------------------------------------------------------------------------------------------

class Pid(torch.utils.data.Dataset):
    "Rows with the process that made them."
    def __len__(self): return 8
    def __getitem__(self, i):
        import os
        return {"x": torch.full((6,), float(i)), "labels": i % 3, "pid": os.getpid()}

def pids(rows): return {"x": torch.stack([r["x"] for r in rows]), "labels": torch.tensor([r["labels"] for r in rows]), "pid": torch.tensor([r["pid"] for r in rows])}

class Sees(Net):
    seen = []
    def forward(self, x=None, labels=None, pid=None):
        self.seen.append({int(p) for p in pid})
        return super().forward(x, labels)


@pytest.mark.parametrize("named", [False, True])
def test_the_workers_of_evaluations_stay(make, named):
    settings = SHORT | dict(dataloader_num_workers=1, dataloader_persistent_workers=True, per_device_eval_batch_size=8, data_collator=pids, remove_unused_columns=False)
    def seen(one, verb):
        Sees.seen.clear()
        metrics = verb(one)
        return Sees.seen[-1], metrics
    data = {"a": Pid(), "b": Pid()} if named else Pid()
    for made in (make.theirs, make.ours):
        one = made(Sees(), points(60), eval_dataset=data, **settings)
        first, again = (seen(one, lambda one: one.evaluate()) for _ in range(2))
        assert first[0] == again[0], "the second evaluation has the workers of the first"
    # the Trainer takes the first loader for it
    assert seen(one, lambda one: one.evaluate(Pid()))[0] != first[0], "another data set has its own"
    before = seen(one, lambda one: one.evaluate())[0]
    assert before == first[0]
    one.set(per_device_eval_batch_size=4)
    assert seen(one, lambda one: one.evaluate())[0] != before, "with another batch size there is another loader"


# --- several processes -------------------------------------------------------------------------------------------------

EVERY_RANK = """
import sys
import torch, transformers
from references import net, points
from trainer_nb import Learner
given = dict(output_dir=sys.argv[1], use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False, per_device_eval_batch_size=4)
theirs = transformers.Trainer(net(), transformers.TrainingArguments(**given)).predict(points(21))
ours = Learner(net(), **given).predict(points(21))
torch.testing.assert_close(torch.tensor(ours.predictions), torch.tensor(theirs.predictions))
assert (ours.label_ids == theirs.label_ids).all() and ours.predictions.shape == (21, 3)
print("alike")
"""

def test_every_rank_has_the_predictions(tmp_path):
    "In a script that a launcher runs, which goes on with them in each process."
    script = tmp_path / "script.py"
    script.write_text(EVERY_RANK)
    tests = Path(__file__).parents[1]
    env = os.environ | {"PYTHONPATH": f"{tests}:{tests.parent}", "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(script), str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.count("alike") == 2, done.stderr[-3000:]


# --- files of arguments ------------------------------------------------------------------------------------------------

THEIRS = [dict(), dict(learning_rate=3e-4, eval_strategy="epoch", report_to="tensorboard", debug="underflow_overflow", lr_scheduler_type="cosine", optim="sgd", optim_args="momentum=0.9"),
          dict(load_best_model_at_end=True, eval_strategy="steps", eval_steps=5, save_steps=10, metric_for_best_model="accuracy", gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": True}),
          dict(seed=3, data_seed=4, warmup_steps=0.1, include_num_input_tokens_seen=True, label_names=["a"], accelerator_config={"even_batches": True})]

@pytest.mark.parametrize("given", THEIRS, ids=lambda given: ",".join(given) or "defaults")
@pytest.mark.parametrize("kind", ["TrainingArguments", "Seq2SeqTrainingArguments"])
def test_the_trainers_arguments_are_read(tmp_path, given, kind):
    theirs = getattr(transformers, kind)(output_dir=str(tmp_path / "out"), use_cpu=True, **given)
    torch.save(theirs, tmp_path / "training_args.bin")
    ours = TrainingArguments.from_file(tmp_path)
    for name in ("output_dir", "seed", "data_seed", "learning_rate", "warmup_steps", "eval_strategy", "save_steps", "metric_for_best_model", "lr_scheduler_type", "optim",
                 "optim_args", "label_names", "report_to", "activation_checkpointing_kwargs", "include_num_input_tokens_seen", "max_grad_norm", "load_best_model_at_end"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert bool(ours.activation_checkpointing) == bool(theirs.activation_checkpointing)
    assert bool(ours.debug) == bool(theirs.debug)


class Own(transformers.TrainingArguments): pass

class Harm:
    ran = []
    def __reduce__(self): return exec, (f"import {__name__}; {__name__}.Harm.ran.append(1)",)

class Asset(transformers.TrainingArguments):
    def __reduce__(self): return os.system, ("echo harm",)


@pytest.mark.parametrize("made, text", [
    (lambda folder: Harm(), "names .*exec.* was not run"), (lambda folder: Own(output_dir=str(folder), use_cpu=True), "names .*Own, and was not run; the settings of a subclass"),
    (lambda folder: Asset(output_dir=str(folder), use_cpu=True), "was not run"), (lambda folder: {"a": 1}, "holds dict, and no training arguments")])
def test_a_file_with_other_names_is_not_run(tmp_path, made, text, monkeypatch):
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    torch.save(made(tmp_path), tmp_path / "training_args.bin")
    with pytest.raises(ValueError, match=text) as caught: TrainingArguments.from_file(tmp_path)
    assert Harm.ran == [] and "\n" not in str(caught.value)


def test_other_files_are_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="neither training_args.json nor training_args.bin"): TrainingArguments.from_file(tmp_path)
    (tmp_path / "training_args.bin").write_bytes(b"cut")
    with pytest.raises(ValueError, match="was not run|cannot be read"): TrainingArguments.from_file(tmp_path)
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(ValueError, match="cannot be read as JSON"): TrainingArguments.from_file(tmp_path / "a.json")


@pytest.mark.parametrize("layout", ["safetensors", "trainer"])
def test_arguments_are_beside_every_model(make, tmp_path, layout):
    "Where the Trainer has training_args.bin, there is training_args.json."
    theirs, ours = (made(net(), points(60), **SHORT | dict(save_strategy="steps", save_steps=3, output_dir=str(tmp_path / made.__name__)) | more)
                    for made, more in ((make.theirs, {}), (make.ours, dict(save_format=layout, hub_token="secret"))))
    for one, name, file in ((theirs, "theirs", "training_args.bin"), (ours, "ours", "training_args.json")):
        one.train(), one.save_model()
        folders = {str(p.parent.relative_to(tmp_path / name)) for p in (tmp_path / name).rglob(file)}
        assert folders == {".", "checkpoint-3", "checkpoint-6"}
    again = TrainingArguments.from_file(tmp_path / "ours" / "checkpoint-3")
    assert again.hub_token is None and "secret" not in (tmp_path / "ours" / "training_args.json").read_text()
    assert {k for k, v in again.to_dict().items() if v != ours.args.to_dict()[k]} <= {"hub_token"}
    fresh = make.ours(net(), points(60), **SHORT | dict(save_format=layout))
    fresh.load_checkpoint(tmp_path / "ours" / "checkpoint-3")
    fresh.train()
    assert torch.equal(vector(fresh.model), vector(ours.model))


def test_settings_of_the_trainers_checkpoint_are_compared(make, tmp_path):
    theirs = make.theirs(net(), points(60), **SHORT | dict(save_strategy="steps", save_steps=3))
    theirs.train()
    said = make.ours(net(), points(60), **SHORT | dict(max_grad_norm=0.5)).load_checkpoint(tmp_path / "checkpoint-3").said
    assert len(said) == 1 and "max_grad_norm is 1.0 in training_args.bin and 0.5 here" in said[0]
    assert make.ours(net(), points(60), **SHORT).load_checkpoint(tmp_path / "checkpoint-3").said == []


# --- what is returned, logged and written ------------------------------------------------------------------------------

def own_loss(pred): return {"b": 1.0, "loss": 5.0, "eval_a": 2.0, "test_c": 3.0}

TABLE = {
    "plain": {}, "metrics": dict(eval_strategy="steps", eval_steps=3, compute_metrics=accuracy), "a loss": dict(eval_strategy="steps", eval_steps=3, compute_metrics=own_loss),
    "two sets": dict(eval_strategy="steps", eval_steps=3, eval_dataset={"a": points(8), "b": points(9)}), "at the start": dict(eval_on_start=True, eval_strategy="steps", eval_steps=4),
    "epochs": dict(max_steps=-1, num_train_epochs=2, eval_strategy="epoch", logging_strategy="epoch", save_strategy="epoch", save_total_limit=1),
    "the best": dict(eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2, load_best_model_at_end=True, save_total_limit=1),
    "a tail": dict(max_steps=5, eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2), "plateau": dict(lr_scheduler_type="reduce_lr_on_plateau", eval_strategy="steps", eval_steps=2),
}

@pytest.mark.parametrize("case", TABLE)
def test_what_is_returned_logged_and_written(make, tmp_path, case):
    "The same names in the same order, the same steps, the same folders."
    results = []
    for made in (make.theirs, make.ours):
        folder = tmp_path / made.__name__
        one = made(net(), points(60), **dict(eval_dataset=points(20)) | SHORT | dict(output_dir=str(folder)) | TABLE[case])
        trained, evaluated, predicted = one.train(), one.evaluate(), one.predict(points(9))
        one.save_model(), one.save_state()
        rows = [{k: v for k, v in row.items() if not k.endswith(("runtime", "per_second", "total_flos"))} for row in one.state.log_history]
        results.append((
            [list(part) for part in (trained.metrics, evaluated, predicted.metrics, *one.state.log_history)],
            rows, sorted({str(p.parent.relative_to(folder)) for p in folder.rglob("model.safetensors")}),
            {k: v for k, v in vars(one.state).items() if v is not None and k in ("epoch", "global_step", "max_steps", "logging_steps", "eval_steps", "save_steps", "num_train_epochs", "train_batch_size", "best_metric")}))
    (names, rows, folders, state), (our_names, our_rows, our_folders, our_state) = results
    assert our_names == names and our_folders == folders
    for mine, other in zip(our_rows, rows, strict=True): assert mine == pytest.approx(other, rel=1e-4)
    assert our_state == pytest.approx(state, rel=1e-5)


def test_arguments_of_an_earlier_release_keep_their_checkpointing():
    "Before the new name there was only the older one."
    from trainer_nb.args.validation import from_trainer_values
    known = {f.name for f in dataclasses.fields(TrainingArguments)}
    old = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}, "learning_rate": 1e-3}
    assert from_trainer_values(old, known) == {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"use_reentrant": False}, "learning_rate": 1e-3}
    assert "activation_checkpointing_kwargs" not in from_trainer_values(old | {"gradient_checkpointing": False}, known)
    both = old | {"activation_checkpointing": False, "activation_checkpointing_kwargs": None}
    assert not from_trainer_values(both, known)["activation_checkpointing"]

"A run in files: every split of it is exact, what is damaged is refused by name, and what is not the same is said."
import json, math, os, pickle, re, shutil, threading, warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, load_model, save_file

from toys import Augmented, Hard, accuracy, finish, hard_learner, hard_model, outcome, unequal
from trainer_nb import Learner, TrainerCallback, differences, get_last_checkpoint, merge
from trainer_nb.state.checkpoint import read_checkpoint
from trainer_nb.core.errors import InvalidOperation
from trainer_nb.state.checkpoint_dirs import MANIFEST_NAME
from trainer_nb.core.history import read_history
from trainer_nb.state.async_save import SaveFailed
from checkpoints import Gate, LONG, SCORES, quiet_learner, resumed, scored, steps   # noqa: F401

EVALUATED = dict(eval_dataset=Augmented(9), compute_metrics=accuracy, eval_strategy="steps", eval_steps=5)


def events(learn, kinds=("evaluate", "log", "set", "checkpoint")):
    "What counts of a history's events, without clocks and folders."
    def plain(data): return {k: v for k, v in data.items() if not k.endswith(("runtime", "per_second")) and k != "folder"}
    return [(e["kind"], e["step"], plain(e["data"])) for e in learn.history.events if e["kind"] in kinds and not e["abandoned"]]


# --- the mean of several -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("average,tied", [(None, False), ("ema", False), ("ema", True)])
def test_the_mean_of_several_runs(average, tied, tmp_path):
    "Of checkpoints, snapshots, models and files, in any mixture: the mean of what is evaluated, under all names of tied weights."
    learn = quiet_learner(tmp_path, average=average, **({} if average is None else {"average_args": {"decay": 0.5}}))
    if tied: learn.model.same, learn.model.weight = next(learn.model.children()), next(learn.model.parameters())
    sources, wanted = [], []
    for i, take in enumerate((learn.save_checkpoint, learn.snapshot, lambda: learn.save_model(tmp_path / "model"))):
        learn.step(3)
        sources.append(take())
        wanted.append(load_file(learn.save_model(tmp_path / f"as saved {i}") / "model.safetensors"))
    found = merge(sources, weights=[1, 2, 1])
    for name, t in wanted[0].items():
        if t.is_floating_point(): torch.testing.assert_close(found[name], (t + 2 * wanted[1][name] + wanted[2][name]) / 4)
        else: assert torch.equal(found[name], wanted[2][name])
    assert found.keys() == learn.model.state_dict().keys()
    learn.model.load_state_dict(found)
    assert all(torch.equal(t, found[k]) for k, t in merge([learn.model, dict(learn.model.state_dict())]).items())
    for weights in ([math.nan, 1, 1], [1, -1, 0], [1, 1], ["1", 1, 1]):
        with pytest.raises(ValueError, match="one number for each, with a sum"): merge(sources, weights=weights)


def test_the_mean_of_folders_of_transformers(tmp_path):
    "Under all names of tied weights, of which the files have one."
    transformers = pytest.importorskip("transformers")
    models = [transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)) for _ in range(2)]
    for i, model in enumerate(models): model.save_pretrained(tmp_path / str(i))
    found = merge([tmp_path / "0", models[1]])
    assert all(torch.equal(found[k], t) for k, t in merge(models).items()) and found.keys() == models[0].state_dict().keys()
    models[0].load_state_dict(merge([tmp_path / "0", tmp_path / "1"]))
    models[0].save_pretrained(tmp_path / "mean")
    assert torch.equal(transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "mean").lm_head.weight, found["lm_head.weight"])
    other = models[1].state_dict() | {"more": torch.ones(1)}
    models[1].save_pretrained(tmp_path / "1", state_dict=other)
    with pytest.raises(ValueError, match="is not in both"): merge([tmp_path / "0", tmp_path / "1"])


# --- exact ------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("given", [pytest.param({}, marks=pytest.mark.slow), pytest.param(dict(rollback="full", optim="sgd", optim_args="momentum=0.9", lr_scheduler_type="one_cycle"), marks=pytest.mark.slow),
                                   pytest.param(dict(optim="adafactor", lr_scheduler_type="polynomial"), marks=pytest.mark.slow),
                                   pytest.param(dict(bf16=True, **EVALUATED), marks=pytest.mark.slow)])
def test_every_split_of_a_run_in_two(tmp_path, given):
    "A checkpoint at each of 30 steps, also in the middle of an epoch and of what a step makes due; each goes on to the same end."
    like = quiet_learner(tmp_path / "whole", save_strategy="steps", save_steps=1, **given)
    want = finish(like)
    assert steps(tmp_path / "whole") == [*range(1, 31)]
    for step in range(1, 31):
        folder = tmp_path / f"from {step}"
        (folder / "runs").mkdir(parents=True)
        shutil.copytree(tmp_path / "whole" / f"checkpoint-{step}", folder / f"checkpoint-{step}")
        shutil.copy(like.history.path, folder / "runs")
        learn = resumed(folder, save_strategy="steps", save_steps=1, **given)
        assert learn.state.global_step == step
        assert unequal(finish(learn), want, ignore=("args", "state")) == [], step
        assert learn.state.best_metric == like.state.best_metric and events(learn) == events(like)


def test_before_the_first_step_and_after_the_last(tmp_path):
    want = finish(quiet_learner(tmp_path / "like", **EVALUATED))
    learn = quiet_learner(tmp_path / "a", **EVALUATED)
    learn.save_checkpoint()
    assert steps(tmp_path / "a") == [0]
    learn = resumed(tmp_path / "a", **EVALUATED)
    assert unequal(finish(learn), want, ignore=("args",)) == []
    learn.save_checkpoint()
    again = resumed(tmp_path / "a", **EVALUATED)
    assert again.run_state.finished and unequal(outcome(again), want, ignore=("args",)) == []
    assert again.train(resume_from_checkpoint=True).global_step == 30 and len(again.history.frame()) == 30   # it is over: nothing is trained


class Patient(TrainerCallback):
    "Counts, in everything that a state may consist of."
    def __init__(self): self.counts = {"steps": 0, 7: (np.float64(0.0), float("inf")), "mean": torch.zeros(2), "seen": set()}
    def state_dict(self): return self.counts
    def load_state_dict(self, state): self.counts = state
    def on_step_end(self, args, state, control, **kwargs):
        self.counts["steps"] += 1
        self.counts["mean"] += 0.5
        self.counts["seen"].add(state.global_step)


def test_callbacks_with_a_state(tmp_path):
    learn = quiet_learner(tmp_path, callbacks=[Patient()])
    learn.step(7)
    learn.save_checkpoint()
    other = resumed(tmp_path, callbacks=[Patient()])
    found, was = (next(c for c in o.run_state.callbacks.callbacks if isinstance(c, Patient)).counts for o in (other, learn))
    assert found["steps"] == 7 and found["seen"] == set(range(1, 8)) and torch.equal(found["mean"], torch.full((2,), 3.5)) and found[7] == was[7]
    assert type(found[7][0]) is np.float64

    class Holds(TrainerCallback):
        def state_dict(self): return {"model": torch.nn.Linear(1, 1)}
    learn = quiet_learner(tmp_path / "b", callbacks=[Holds()])
    learn.step(1)
    with pytest.raises(SaveFailed, match="is a Linear, which cannot be written without pickling"): learn.save_checkpoint()
    assert not (tmp_path / "b" / "checkpoint-1").exists() and learn.step(1)


# --- what is in the folder ---------------------------------------------------------------------------------------------

def test_weights_for_others(tmp_path):
    learn = quiet_learner(tmp_path)
    learn.step(4)
    folder = learn.save_checkpoint()
    assert folder == tmp_path / "checkpoint-4"
    other = Hard()
    load_model(other, folder / "model.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(learn.model.state_dict().values(), other.state_dict().values()))
    said = json.loads((folder / MANIFEST_NAME).read_text())
    assert said["step"] == 4 and said["run"] == learn.history.run_id and set(said["files"]) == {p.name for p in folder.iterdir()} - {MANIFEST_NAME}
    state = json.loads((folder / "trainer_state.json").read_text())
    assert state["global_step"] == 4 and state["log_history"][0]["step"] == 4
    where = json.loads((folder / "run.json").read_text())["tensors"]
    assert where["weights/inner.weight"] == ["model.safetensors", "inner.weight"] and where["buffers/calls"][0] == "rest.safetensors"
    assert {n for n in load_file(folder / "rest.safetensors") if not n.startswith("user/")} == {"buffers/calls", "buffers/last"}   # nothing is written twice


def test_large_weights_are_written_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr("trainer_nb.state.model_files.MAX_SHARD_SIZE", "1MB")
    learn = quiet_learner(tmp_path)
    learn.step(4)
    folder = learn.save_checkpoint()
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1 and not (folder / "model.safetensors").exists()
    assert differences(resumed(tmp_path).snapshot(), learn.snapshot()) == []


def test_odd_weights(tmp_path):
    "Tied, strided, empty, complex, of every precision; and a loss function with weights of its own."
    class Odd(torch.nn.Module):
        not_state = ("extra",)
        def __init__(self):
            super().__init__()
            self.a = self.b = torch.nn.Linear(4, 4)
            self.wide = torch.nn.Parameter(torch.randn(3, 3, dtype=torch.complex128), requires_grad=False)
            self.register_buffer("brain", torch.randn(2).bfloat16()); self.register_buffer("eight", torch.randn(2).to(torch.float8_e4m3fn))
            self.register_buffer("none", torch.zeros(0, 3)); self.register_buffer("flag", torch.tensor(True)); self.register_buffer("last", torch.randn(4, 4).t())
            self.register_buffer("image", torch.randn(1, 2, 3, 3).to(memory_format=torch.channels_last), persistent=False)
        def forward(self, x): return self.b(self.a(x))
        def get_extra_state(self): return {"names": ("a", "b"), "t": torch.arange(3)}
        def set_extra_state(self, state): self.extra = state
    class Loss(torch.nn.Module):
        def __init__(self): super().__init__(); self.center = torch.nn.Parameter(torch.zeros(4)); self.register_buffer("n", torch.zeros(1))
        def forward(self, out, y): self.n += 1; return (out - self.center).square().mean()
    def made():
        torch.manual_seed(0)
        return Learner(Odd(), train_dataset=torch.utils.data.TensorDataset(torch.randn(40, 4)), loss_func=Loss(), output_dir=str(tmp_path),
                       disable_tqdm=True, save_strategy="no", learning_rate=0.1, max_steps=9)
    learn = made()
    learn.step(3)
    learn.save_checkpoint()
    other = made()
    other.load_checkpoint()
    assert differences(other.snapshot(), learn.snapshot()) == [] and other.model.a is other.model.b and other.model.extra["names"] == ("a", "b")
    assert unequal(finish(other), finish(learn)) == []


def test_a_model_that_writes_itself(tmp_path):
    "A save_pretrained that takes no weights writes what the model holds now, not what it holds when the disk has time."
    class Own(Hard):
        def save_pretrained(self, folder): save_file({"mine." + k: v.contiguous() for k, v in self.state_dict().items()}, Path(folder) / "own.safetensors")
    def made():
        torch.manual_seed(0)
        return quiet_learner(tmp_path, model=Own())
    learn = made()
    learn.step(3)
    now = learn.model.inner.weight.detach().clone()
    folder = learn.save_checkpoint()
    learn.step(3)
    assert torch.equal(load_file(folder / "own.safetensors")["mine.inner.weight"], now)
    other = made()
    other.load_checkpoint()
    assert torch.equal(other.model.inner.weight, now)


def test_a_checkpoint_elsewhere_stands_on_its_own(tmp_path, monkeypatch):
    "Outside of the run's folder it takes the history along, so it can be carried to another machine."
    learn = quiet_learner(tmp_path / "run")
    learn.step(7); learn.rewind(2); learn.step(1)
    folder = learn.save_checkpoint(tmp_path / "carried" / "away")
    alone = quiet_learner(tmp_path / "alone")
    shutil.copytree(learn.save_checkpoint(), tmp_path / "alone" / "checkpoint-6")
    with pytest.warns(UserWarning, match="history of the run up to step 6"): alone.load_checkpoint()   # its log was not taken along
    assert len(alone.history) == 0
    shutil.rmtree(tmp_path / "run" / "runs")
    other = resumed(tmp_path / "there", folder)
    assert differences(other.snapshot(), learn.snapshot()) == ["args"]   # the folder
    assert other.history.frame().drop(columns=["seconds", "samples_per_second"]).equals(learn.history.frame().drop(columns=["seconds", "samples_per_second"]))
    other.step(1)
    other.history.flush()
    assert read_history(tmp_path / "there").run_id == learn.history.run_id and read_history(tmp_path / "there").frame().step.tolist() == [1, 2, 3, 4, 5, 6, 7]
    monkeypatch.chdir(tmp_path)
    assert hard_learner().save_checkpoint() == tmp_path / "trainer_output" / "checkpoint-0"
    hard_learner(**LONG, save_strategy="no").save_checkpoint(tmp_path / "none")   # and without an output_dir
    assert resumed(tmp_path / "x", tmp_path / "none").state.global_step == 0


# --- what is damaged ---------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def written(tmp_path_factory):
    "A checkpoint to damage copies of, and the run it is of."
    learn = quiet_learner(tmp_path_factory.mktemp("written"))
    learn.step(4)
    return learn.save_checkpoint(), learn


FILES = ["model.safetensors", "optimizer.safetensors", "rest.safetensors", "run.json", "trainer_state.json", MANIFEST_NAME]

@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", ["missing", "truncated", "empty", "altered", "longer", "foreign"])
def test_damaged_files_are_refused_by_name(tmp_path, written, name, harm):
    folder, learn = shutil.copytree(written[0], tmp_path / "checkpoint-4"), quiet_learner(tmp_path)
    learn.step(2)
    before, path = learn.snapshot(), folder / name
    data = path.read_bytes()
    if harm == "missing": path.unlink()
    else: path.write_bytes({"truncated": data[:-7], "empty": b"", "altered": data[:len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1:],
                            "longer": data + b"\0", "foreign": json.dumps({"files": {}}).encode() if name == MANIFEST_NAME else b"of something else"}[harm])
    with pytest.raises(ValueError, match=re.escape(name)): learn.load_checkpoint(folder)
    assert differences(learn.snapshot(), before) == []   # nothing is half loaded
    learn.step(1)
    if harm != "altered" or name == MANIFEST_NAME:            # that is seen without reading every byte
        with pytest.warns(UserWarning, match="passed over"): assert get_last_checkpoint(tmp_path) is None


def test_the_newest_whole_one_is_taken(tmp_path, written):
    learn = quiet_learner(tmp_path, save_strategy="steps", save_steps=5)
    learn.step(17)
    learn.run_state.parts.saver.wait()
    (tmp_path / "checkpoint-15" / "run.json").unlink()
    (tmp_path / "checkpoint-20.tmp-abc").mkdir()
    (tmp_path / "checkpoint-25").mkdir()                 # nothing is in it
    (tmp_path / "checkpoint-x").mkdir(); (tmp_path / "checkpoint-30").write_text("a file")
    other = quiet_learner(tmp_path)
    with pytest.warns(UserWarning) as said: other.load_checkpoint(True)
    assert other.state.global_step == 10
    passed_over = " ".join(str(w.message) for w in said)
    assert all(name in passed_over for name in ("checkpoint-15/run.json is missing", "checkpoint-20.tmp-abc", "checkpoint-25 has no manifest.json"))


class Crafted:
    "Runs code when it is unpickled."
    def __init__(self, path): self.path = path
    def __reduce__(self): return (Path.touch, (self.path,))


def test_a_crafted_file_runs_nothing(tmp_path, written):
    "Pickles in every file that could be one, with a manifest that vouches for them."
    from trainer_nb.state.checkpoint_dirs import write_manifest
    ran = tmp_path / "ran"
    pickle.loads(pickle.dumps(Crafted(ran))); assert ran.exists(); ran.unlink()
    for name in [*FILES[:-1], "optimizer.pt", "training_args.bin", "rng_state.pth", "scheduler.pt", "pytorch_model.bin"]:
        folder = shutil.copytree(written[0], tmp_path / name / "checkpoint-4")
        torch.save(Crafted(ran), folder / name)
        says = json.loads((folder / MANIFEST_NAME).read_text())
        (folder / MANIFEST_NAME).unlink()
        write_manifest(folder, {k: v for k, v in says.items() if k not in ("files", "seal")})
        learn = quiet_learner(tmp_path)
        try: learn.load_checkpoint(folder)
        except Exception as error: assert not isinstance(error, AssertionError)
        assert not ran.exists(), name


def test_newer_and_other_folders(tmp_path, written, monkeypatch):
    from trainer_nb.state.checkpoint_dirs import write_manifest
    folder = shutil.copytree(written[0], tmp_path / "checkpoint-4")
    says = json.loads((folder / MANIFEST_NAME).read_text())
    learn = quiet_learner(tmp_path)
    for schema, version in ((1, "an earlier"), (99, "a later")):
        (folder / MANIFEST_NAME).unlink()
        write_manifest(folder, {k: v for k, v in (says | {"schema": schema}).items() if k not in ("files", "seal")})
        with pytest.raises(ValueError, match=f"{version} version"): learn.load_checkpoint(folder)
    (tmp_path / "pictures").mkdir()
    with pytest.raises(ValueError, match="Can.t find a valid checkpoint"): learn.load_checkpoint(tmp_path / "pictures")
    with pytest.raises(ValueError, match="no such folder"): learn.load_checkpoint(tmp_path / "nowhere")
    # not the trainer_output of another test
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="output_dir"): hard_learner().load_checkpoint()
    with pytest.raises(ValueError, match="No valid checkpoint found in output directory"): quiet_learner(tmp_path / "empty").train(resume_from_checkpoint=True)


# --- what is not the same ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("given, why", [
    (dict(model=torch.nn.Linear(4, 3), loss_func=torch.nn.functional.cross_entropy), "another model"), (dict(optim="sgd"), "optim was"), (dict(bf16=True), "bf16 was"),
    (dict(seed=1), "seed was 42"), (dict(lr_scheduler_type="linear"), "lr_scheduler_type was 'cosine'"),
    (dict(layer_groups=["inner", "outer"]), "layer_groups"), (dict(adam_beta1=0.5), "adam_beta1 was 0.9"), (dict(train_sampling_strategy="sequential"), "train_sampling_strategy")])
def test_what_cannot_go_on_is_refused(tmp_path, written, given, why):
    learn = quiet_learner(tmp_path, **given)
    before = learn.snapshot()
    with pytest.raises(ValueError, match=f"checkpoint-4 cannot be resumed here: .*{why}"): learn.load_checkpoint(written[0])
    assert differences(learn.snapshot(), before) == []


@pytest.mark.parametrize("given, said, effect", [
    (dict(learning_rate=5e-3), "learning_rate  0.01    0.005", lambda l: l.run_state.lr_scheduler.base_lrs[0] == 5e-3),
    (dict(num_train_epochs=12), "num_train_epochs  10      12", lambda l: l.state.max_steps == 36),
    (dict(per_device_train_batch_size=2), "per_device_train_batch_size  4       2", lambda l: l.state.train_batch_size == 2),
    (dict(save_steps=7), "save_steps  500     7", lambda l: l.state.save_steps == 7),
    (dict(max_grad_norm=0.5), "max_grad_norm  1.0     0.5", lambda l: l.args.max_grad_norm == 0.5)])
def test_an_edited_setting_is_meant(tmp_path, written, given, said, effect):
    "It is changed from here on, as set would do it; the same run with set goes the same way."
    learn = quiet_learner(tmp_path, **given)
    with pytest.warns(UserWarning, match=re.escape(said)): learn.load_checkpoint(written[0])
    assert effect(learn) and learn.state.global_step == 4 and "set" in [o["act"] for o in learn.journal]
    like = quiet_learner(tmp_path / "like")
    like.step(4)
    like.set(**given)
    assert unequal(finish(learn), finish(like), ignore=("args",)) == []


def test_data_of_another_length_between_two_epochs(tmp_path):
    learn = quiet_learner(tmp_path)
    learn.run(epochs=1)
    learn.save_checkpoint()
    other = quiet_learner(tmp_path, train_dataset=Augmented(60))
    with pytest.warns(UserWarning, match="had 30 samples and has 60 now: the next epochs are over those"): other.load_checkpoint()
    assert other.state.max_steps == 3 + 9 * 5 and other.train().global_step == 48


def test_another_fingerprint_and_another_machine(tmp_path):
    def data(fill): return torch.utils.data.TensorDataset(torch.full((20, 4), fill), torch.zeros(20, dtype=torch.long))
    def made(fill):
        torch.manual_seed(0)
        return Learner(torch.nn.Linear(4, 2), train_dataset=data(fill), loss_func=torch.nn.functional.cross_entropy, output_dir=str(tmp_path), disable_tqdm=True)
    learn = made(1.0)
    learn.step(1)
    learn.save_checkpoint()
    with warnings.catch_warnings(): warnings.simplefilter("error"); made(1.0).load_checkpoint()
    with pytest.warns(UserWarning, match="another fingerprint"): made(2.0).load_checkpoint()
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        other = made(1.0)
        with pytest.warns(UserWarning, match=f"threads {threads} then, {threads + 1} now: .*last bits"): other.load_checkpoint()
    finally: torch.set_num_threads(threads)


# --- in the background -------------------------------------------------------------------------------------------------


def test_the_run_goes_on_while_the_disk_works(tmp_path):
    gate = Gate()
    learn = quiet_learner(tmp_path, processing_class=gate, save_strategy="steps", save_steps=5)
    like = quiet_learner(tmp_path / "like")
    like.step(5)
    learn.step(9)                                        # beyond the save at 5
    assert gate.entered.wait(20) and steps(tmp_path) == [] and len(list(tmp_path.glob("checkpoint-5.tmp-*"))) == 1
    gate.open.set()
    learn.wait()
    gate.open.clear(); gate.entered.clear()
    assert steps(tmp_path) == [5] and not [d for d in differences(read_checkpoint(tmp_path / "checkpoint-5"), like.snapshot()) if "/" in d]
    learn.step(1)                                        # at 10 the next one begins, and 15 has to wait for it
    waiting = threading.Timer(0.3, gate.open.set); waiting.start()
    learn.step(6)
    assert gate.open.is_set() and steps(tmp_path)[:2] == [5, 10]


def test_python_ends_when_it_is_written(tmp_path):
    import subprocess, sys, textwrap
    code = f"""
        import sys, time; sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from toys import hard_learner
        class Slow:
            def save_pretrained(self, folder): time.sleep(1)
        learn = hard_learner(output_dir={str(tmp_path)!r}, save_steps=2, processing_class=Slow())
        learn.step(2)
        print("done", flush=True)"""
    out = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=100)
    assert out.stdout.endswith("done\n") and out.returncode == 0 and steps(tmp_path) == [2], out.stderr


def test_a_callback_at_on_save_finds_the_folder(tmp_path):
    seen = []
    class Uploads(TrainerCallback):
        def on_save(self, args, state, control, **kwargs): seen.append((state.global_step, steps(tmp_path)))
    learn = quiet_learner(tmp_path, callbacks=[Uploads()], save_strategy="steps", save_steps=10)
    learn.train()
    learn.save_checkpoint(tmp_path / "by hand")
    assert seen == [(10, [10]), (20, [10, 20]), (30, [10, 20, 30]), (30, [10, 20, 30])]


def test_a_save_that_fails(tmp_path, monkeypatch):
    "It is told at the next step, once; the checkpoint before is kept; the run goes on, and ends as if nothing had happened."
    import trainer_nb.state.async_save
    want = finish(quiet_learner(tmp_path / "like"))
    learn = quiet_learner(tmp_path / "a", save_strategy="steps", save_steps=4)
    learn.step(5)
    learn.run_state.parts.saver.wait()
    def full(package, folder): (folder / "half").write_text("of it"); raise OSError(28, "No space left on device")
    with monkeypatch.context() as m:
        m.setattr(trainer_nb.state.async_save, "write_checkpoint", full)
        learn.step(3)
        learn.run_state.parts.saver.wait()
        with pytest.raises(SaveFailed, match=r"checkpoint-8 could not be written to .*No space left.*checkpoint-4 is the newest complete checkpoint.*save_total_limit=2"): learn.step(5)
        assert learn.state.global_step == 8 and steps(tmp_path / "a") == [4] and not list((tmp_path / "a").glob("*.tmp-*"))
        learn.step(4)                                    # it goes on, and the next one fails as well
        learn.run_state.parts.saver.wait()
        with pytest.raises(SaveFailed, match="checkpoint-12"): learn.evaluate(Augmented(5))
        learn.set(save_strategy="no")
        with pytest.raises(SaveFailed, match="checkpoint-12"): learn.save_checkpoint()
    learn.set(save_strategy="steps")
    assert unequal(finish(learn), want, ignore=("args", "state")) == [] and steps(tmp_path / "a") == [4, 16, 20, 24, 28, 30]


def test_no_permission(tmp_path):
    (tmp_path / "out").write_text("a file stands where the folder should be")
    with pytest.warns(UserWarning, match="log of this run"):
        learn = quiet_learner(tmp_path / "out")
        learn.step(3)
    with pytest.raises(SaveFailed, match="checkpoint-3 could not be written"): learn.save_checkpoint()
    learn.step(1)
    assert learn.save_checkpoint(tmp_path / "elsewhere") == tmp_path / "elsewhere"


def test_memory_is_used_again(tmp_path):
    learn = quiet_learner(tmp_path)
    learn.step(2)
    learn.save_checkpoint()
    first = {n: t.data_ptr() for n, t in learn.run_state.parts.saver.spare.items()}
    learn.step(2)
    learn.save_checkpoint()
    assert {n: t.data_ptr() for n, t in learn.run_state.parts.saver.spare.items()} == first and len(first) > 10
    assert differences(read_checkpoint(tmp_path / "checkpoint-4"), learn.snapshot()) == []
    learn.free()
    assert not learn.run_state.parts.saver.spare


def test_saving_from_a_callback_is_done_at_the_boundary(tmp_path):
    class Saves(TrainerCallback):
        def on_step_end(self, args, state, control, learner, **kwargs):
            if state.global_step in (3, 6): assert learner.save_checkpoint() is None
    learn = quiet_learner(tmp_path, callbacks=[Saves()])
    want = finish(learn)
    assert steps(tmp_path) == [3, 6]
    for step in (3, 6):
        other = quiet_learner(tmp_path, callbacks=[Saves()])
        other.load_checkpoint(tmp_path / f"checkpoint-{step}")
        assert unequal(finish(other), want, ignore=("state",)) == []


# --- which are kept, and the best ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["given", "set"])
@pytest.mark.parametrize("other", [{}, dict(per_device_train_batch_size=3)])
def test_a_run_that_evaluates_goes_on_without_evaluation_data(tmp_path, how, other):
    "It evaluates no more, and the table of differences says so."
    given = dict(output_dir=str(tmp_path))
    learn = hard_learner(**given, eval_dataset=Augmented(), eval_strategy="epoch" if how == "given" else "no")
    learn.set(eval_strategy="epoch")
    learn.step(4)
    folder = learn.save_checkpoint()
    learn.free()
    alone = hard_learner(**given | other)
    with pytest.warns(UserWarning, match=r"eval_strategy +'epoch' +'no'"): report = alone.load_checkpoint(folder)
    assert "eval_strategy is 'no' from here on, and was 'epoch' at the checkpoint" in report.said
    alone.train()
    assert not any("eval_loss" in line for line in alone.state.log_history if line["step"] > 4)


def test_the_former_value_is_that_of_the_checkpoint(tmp_path):
    "learn.set() has changed it since the run began; a Learner that is given the present value changes nothing."
    learn = quiet_learner(tmp_path, learning_rate=5e-5)
    learn.step(2)
    learn.set(learning_rate=3e-3)
    learn.step(2)
    learn.save_checkpoint()
    other = quiet_learner(tmp_path, learning_rate=0.5)
    with pytest.warns(UserWarning, match=r"learning_rate +0.003 +0.5"): report = other.load_checkpoint(tmp_path / "checkpoint-4")
    assert report.said == ["learning_rate is 0.5 from here on, and was 0.003 at the checkpoint"]
    assert other.journal[-1]["what"].endswith("was 0.003 at the checkpoint")
    other.free()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = quiet_learner(tmp_path, learning_rate=3e-3).load_checkpoint(tmp_path / "checkpoint-4")
    assert not report.said


def test_the_weights_alone_are_no_checkpoint(tmp_path):
    "What save_model has written is not called corrupt, and the words of the error read it."
    learn = quiet_learner(tmp_path)
    learn.step(2)
    learn.save_model(tmp_path / "m1")
    for load in (learn.load_checkpoint, lambda folder: learn.train(resume_from_checkpoint=folder)):
        with pytest.raises(ValueError, match="weights of a model.*not a run") as raised: load(tmp_path / "m1")
        assert type(raised.value) is ValueError and "from_pretrained" not in str(raised.value)
    want = {k: v.clone() for k, v in learn.model.state_dict().items()}
    learn.step(2)
    exec(str(raised.value).split("with: ")[1].rstrip("."), {"learn": learn})
    assert all(torch.equal(v, want[k]) for k, v in learn.model.state_dict().items())


@pytest.mark.parametrize("limit, kept", [(None, [4, 8, 12, 16, 20, 24, 28, 30]), (1, [30]), (3, [24, 28, 30])])
def test_save_total_limit(tmp_path, limit, kept):
    quiet_learner(tmp_path, save_strategy="steps", save_steps=4, save_total_limit=limit).train()
    assert steps(tmp_path) == kept and not list(tmp_path.glob("*.tmp-*"))


@pytest.mark.parametrize("limit, kept", [(1, [25, 30]), (2, [24, 25, 30]), (None, [8, 16, 24, 25, 30])])
def test_the_best_one_is_saved_kept_and_loaded(tmp_path, limit, kept):
    "Evaluated at 5, 10, ..., saved at 8, 16, ...: the best is at 25, which no strategy would have saved; those at 5 and 10 go."
    like = quiet_learner(tmp_path / "like")
    like.step(25)
    best = {n: p.clone() for n, p in like.model.state_dict().items()}
    learn = scored(tmp_path / "a", save_strategy="steps", save_steps=8, save_total_limit=limit, load_best_model_at_end=True)
    learn.train()
    assert steps(tmp_path / "a") == kept and learn.state.best_metric == 0.9 and learn.state.best_global_step == 25
    assert learn.state.best_model_checkpoint == str(tmp_path / "a" / "checkpoint-25")
    assert all(torch.equal(best[n], t) for n, t in learn.model.state_dict().items())
    assert learn.journal[-1]["act"] == "load_best" and learn.state.global_step == 30


def test_a_resumed_run_replaces_its_best_one_too(tmp_path):
    given = dict(save_strategy="steps", save_steps=8, load_best_model_at_end=True)
    first = scored(tmp_path, **given)
    first.step(6), first.run_state.parts.saver.wait(), first.history.close_log()
    learn = scored(tmp_path, values=[0.9] * 9, **given)
    learn.load_checkpoint(), learn.step(5), learn.run_state.parts.saver.wait()
    assert steps(tmp_path) == [8, 10]


@pytest.mark.parametrize("case", ["a link", "a branch"])
def test_a_best_one_that_none_has_replaced_is_kept(tmp_path, case):
    given = dict(save_strategy="steps", save_steps=8, load_best_model_at_end=True)
    if case == "a link":
        (tmp_path / "a").mkdir(), (tmp_path / "link").symlink_to(tmp_path / "a")
        first = scored(tmp_path / "link", save_total_limit=1, **given | dict(save_steps=5))
        first.step(11), first.run_state.parts.saver.wait(), first.history.close_log()
        learn = scored(tmp_path / "a", values=[0.3] * 9, save_total_limit=1, **given | dict(save_steps=5))
        learn.load_checkpoint(), learn.step(11), learn.run_state.parts.saver.wait()
        assert steps(tmp_path / "a") == [10, 20]
        return
    learn = scored(tmp_path, **given)
    learn.step(6)
    other = learn.branch(output_dir=str(tmp_path / "b"))
    learn.step(5), learn.run_state.parts.saver.wait()
    assert steps(tmp_path) == [5, 8, 10]
    assert Path(other.state.best_model_checkpoint).is_dir()


def test_saving_the_best_only(tmp_path):
    scored(tmp_path, save_strategy="best").train()
    assert steps(tmp_path) == [5, 10, 25]
    learn = scored(tmp_path / "eval on start", values=[0.99, *SCORES], save_strategy="best", eval_on_start=True, load_best_model_at_end=True)
    learn.train()
    assert steps(tmp_path / "eval on start") == [5, 10, 25] and learn.state.best_metric == 0.9   # as at the Trainer: weights that nothing was learned by are not ranked


def test_a_best_one_that_is_gone(tmp_path):
    learn = scored(tmp_path, save_strategy="no", load_best_model_at_end=True)
    learn.step(28)
    learn.run_state.parts.saver.wait()
    shutil.rmtree(tmp_path / "checkpoint-25")
    with pytest.warns(UserWarning, match=r"best model could not be loaded .*checkpoint-25.*learn.rewind\(to=25\) and learn.save_checkpoint"): learn.train()
    assert learn.state.global_step == 30


def test_weights_only(tmp_path):
    learn = scored(tmp_path, save_strategy="epoch", save_only_model=True, load_best_model_at_end=True, save_total_limit=2)
    learn.train()
    folder = tmp_path / "checkpoint-25"
    kept = {"model.safetensors", "trainer_state.json", "training_args.json", MANIFEST_NAME}
    assert {p.name for p in folder.iterdir()} == kept and learn.state.best_global_step == 25
    assert json.loads((folder / "trainer_state.json").read_text())["global_step"] == 25   # at the Trainer, too, the log lies beside the weights
    model = hard_model()
    model.load_state_dict(load_file(folder / "model.safetensors"))
    assert torch.equal(model.inner.weight, learn.model.inner.weight)
    with pytest.raises(ValueError, match="save_only_model=True"): quiet_learner(tmp_path).load_checkpoint(folder)
    with pytest.raises(ValueError, match="No valid checkpoint"): quiet_learner(tmp_path).load_checkpoint()


# --- lineage -------------------------------------------------------------------------------------------------------------

def test_a_future_that_was_left_is_retired(tmp_path):
    learn = quiet_learner(tmp_path, save_strategy="steps", save_steps=4, rewind_every=1)
    learn.step(17)
    learn.rewind(7)
    assert steps(tmp_path) == [4, 8] and sorted(p.name for p in tmp_path.glob("retired-*")) == ["retired-checkpoint-12", "retired-checkpoint-16"]
    assert get_last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-8")
    learn.snapshot("ten"); learn.step(3); learn.run_state.parts.saver.wait()
    assert steps(tmp_path) == [4, 8, 12]
    learn.restore("ten")
    assert steps(tmp_path) == [4, 8] and "retired-checkpoint-12-2" in os.listdir(tmp_path)
    learn.load_checkpoint(tmp_path / "checkpoint-4")
    assert steps(tmp_path) == [4] and learn.history.frame().step.tolist() == [1, 2, 3, 4]
    want = finish(quiet_learner(tmp_path / "like", save_strategy="steps", save_steps=4))
    assert unequal(finish(learn), want, ignore=("args", "state")) == []


def test_a_retired_one_can_be_gone_back_to(tmp_path):
    learn = quiet_learner(tmp_path, save_strategy="steps", save_steps=4, rewind_every=1)
    learn.step(12); learn.rewind(7); learn.set(lr=1e-3); learn.step(1)
    learn.load_checkpoint(tmp_path / "retired-checkpoint-12")
    assert learn.state.global_step == 12 and learn.history.frame().step.tolist() == [*range(1, 13)] and events(learn, ("set",)) == []
    assert unequal(finish(learn), finish(quiet_learner(tmp_path / "like", save_strategy="steps", save_steps=4)), ignore=("args", "state")) == []


def test_a_crash_before_the_future_was_retired(tmp_path, monkeypatch):
    "The log knows that somebody went back."
    learn = quiet_learner(tmp_path, save_strategy="steps", save_steps=4, rewind_every=1)
    learn.step(12)
    monkeypatch.setattr("trainer_nb.state.async_save.invalidate_abandoned", lambda *args: [])
    learn.rewind(7)
    learn.step(1)
    assert steps(tmp_path) == [4, 8, 12] and get_last_checkpoint(tmp_path).endswith("checkpoint-4")


def test_another_run_in_the_same_folder(tmp_path):
    "Its checkpoints stay, under another name where the name is needed; the newest run is resumed."
    one = quiet_learner(tmp_path, save_strategy="steps", save_steps=10)
    one.train()
    two = quiet_learner(tmp_path, save_strategy="steps", save_steps=10, save_total_limit=1)
    with pytest.warns(UserWarning, match="checkpoint-10 was there before this run, and is retired-checkpoint-10"):
        two.step(15); two.run_state.parts.saver.wait()
    assert steps(tmp_path) == [10, 20, 30] and not (tmp_path / "retired-checkpoint-10").exists()   # save_total_limit counts it
    found = resumed(tmp_path, save_strategy="steps", save_steps=10, save_total_limit=1)
    assert found.state.global_step == 10 and found.history.run_id == two.history.run_id
    two.reset(); two.step(10); two.run_state.parts.saver.wait()
    assert resumed(tmp_path, save_strategy="steps", save_steps=10, save_total_limit=1).history.run_id == two.history.run_id


def test_a_branch_has_a_shelf_of_its_own(tmp_path):
    learn = quiet_learner(tmp_path, save_strategy="steps", save_steps=4)
    learn.step(6)
    other = learn.branch(learning_rate=1e-3)
    other.step(3); learn.step(3)
    for o in (learn, other): o.run_state.parts.saver.wait()
    shelf = tmp_path / "branches" / other.history.run_id
    assert steps(tmp_path) == [4, 8] and steps(shelf) == [8]
    again = quiet_learner(shelf)
    again.load_checkpoint()
    assert again.history.run_id == other.history.run_id and again.history.frame().step.tolist() == [*range(1, 9)]
    assert unequal(finish(again), finish(other), ignore=("args", "state")) == []


def test_train_with_resume_goes_on_with_a_run_under_way(tmp_path):
    "What is in memory is further than what is on the disk."
    learn = quiet_learner(tmp_path, save_strategy="steps", save_steps=4)
    learn.step(6)
    learn.train(resume_from_checkpoint=True)
    assert learn.history.column("step").tolist() == [*range(1, 31)]


def test_resuming_a_torn_run(tmp_path):
    learn = quiet_learner(tmp_path, rewind_every=0)
    learn.step(4)
    learn.save_checkpoint()
    real, learn.optimizer.step = learn.optimizer.step, lambda *a, **k: (_ for _ in ()).throw(RuntimeError("half-way"))
    with pytest.raises(RuntimeError): learn.step(1)
    learn.optimizer.step = real
    with pytest.raises(InvalidOperation): learn.step(1)
    with pytest.raises(ValueError): learn.load_checkpoint(tmp_path / "nowhere")
    assert learn.run_state.current.corrupted
    learn.load_checkpoint()
    assert unequal(finish(learn), finish(quiet_learner(tmp_path / "like")), ignore=("args", "state")) == []


def test_a_run_that_another_process_has_open(tmp_path):
    "Two kernels on one run: the second is told, and nothing is written twice. When the first ends, also by a signal, the run is free."
    import signal, subprocess, sys, textwrap
    code = f"""
        import sys, time; sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from checkpoints import quiet_learner
        learn = quiet_learner({str(tmp_path)!r}, dataloader_num_workers=2)
        learn.step(2); learn.save_checkpoint()
        print("here", flush=True)
        time.sleep(60)"""
    other = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "here\n"
        learn = quiet_learner(tmp_path, dataloader_num_workers=2)
        with pytest.raises(ValueError, match="another process has open; end it there"): learn.load_checkpoint()
        other.send_signal(signal.SIGKILL)
        other.wait()
        learn.load_checkpoint()
        assert learn.step(1).step == [3]
    finally: other.kill()


def test_a_script_that_hands_on_its_own_flags_resumes(tmp_path):
    "trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint), as the Trainer's example scripts do it; nothing of the numbers hangs on these."
    hard_learner(output_dir=str(tmp_path), save_strategy="steps", save_steps=2).step(2)
    again = hard_learner(output_dir=str(tmp_path), save_strategy="steps", save_steps=2, resume_from_checkpoint=str(tmp_path / "checkpoint-2"), do_train=True, do_eval=True, ddp_timeout=60)
    again.train(resume_from_checkpoint=again.args.resume_from_checkpoint)
    plain = hard_learner(output_dir=str(tmp_path / "plain"), save_strategy="steps", save_steps=2)
    assert unequal(finish(plain), outcome(again), ignore=("args", "state")) == []


@pytest.mark.parametrize("name, said", [("pytorch_model_fsdp_0", "accelerate merge-weights"), ("global_step2", "zero_to_fp32.py")])
def test_pickled_files_are_not_read(tmp_path, name, said):
    "Of FSDP's shards and of DeepSpeed's engine; the error names the command that makes a file of the weights."
    (tmp_path / "checkpoint-2" / name).mkdir(parents=True)
    (tmp_path / "checkpoint-2" / "trainer_state.json").write_text('{"global_step": 2}')
    learn = hard_learner()
    with pytest.raises(ValueError, match=f"pickled files .* are not read; .*{said}"): learn.load_checkpoint(tmp_path / "checkpoint-2")
    assert learn.state.global_step == 0

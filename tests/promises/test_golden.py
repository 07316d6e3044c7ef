"""Files of earlier versions are read, and code written for earlier versions runs.

tests/golden holds checkpoints in both layouts with the logs of their runs, an exported script, and the public interface,
as an earlier version wrote them (tests/golden/write.py). This module imports only `trainer_nb` and the script that
wrote them.
"""
import ast
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import trainer_nb
from trainer_nb import follow

GOLDEN = Path(__file__).resolve().parents[1]/"golden"

# Names that a later version has given up for others. The old one still works, as a deprecated alias.
RENAMED_NAMES = {"trainer_nb.Refused": "trainer_nb.InvalidOperation", "trainer_nb.Learner.each": "trainer_nb.Learner.run_on_all"}
# Parts of the displays that had public names by oversight; no page described them.
INTERNAL = {"trainer_nb.ProgressCallback.predicted_alone", "trainer_nb.ReportCallback.fail"}
# Fields of TrainingArguments.
RENAMED_FIELDS = {"ring_every": "rewind_every", "ring_memory": "rewind_memory", "transaction": "rollback"}
RENAMED_PARAMETERS = {"trainer_nb.Learner.launch": {"hear": "output"}, "trainer_nb.TrainingArguments": RENAMED_FIELDS}
# Other names of the same classes.
SAME_CLASSES = {"trainer_nb.Trainer": "trainer_nb.Learner", "trainer_nb.Seq2SeqTrainer": "trainer_nb.Learner",
                "trainer_nb.Seq2SeqTrainingArguments": "trainer_nb.TrainingArguments"}

pytestmark = pytest.mark.usefixtures("one_thread")


def load_writer():
    "The script that wrote the files, as a module."
    spec = importlib.util.spec_from_file_location("golden_write", GOLDEN/"write.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


write = load_writer()
each_case = pytest.mark.parametrize("case", write.CASES)


def expected_of(case): return json.loads((GOLDEN/case/"expected.json").read_text())


def processor_of_amd():
    "Whether the processor is AMD's, as that of the machine that wrote the files: MKL has other kernels for Intel's."
    try: return "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    except OSError: return False


def same_machine(expected): return expected["machine"] == write.machine() and processor_of_amd()


def numbers(values): return torch.tensor([float.fromhex(v) for v in values], dtype=torch.float64)


def check_close(found, expected, rtol=1e-3, atol=1e-4):
    "Numbers of another kind of CPU, or another version of torch, differ in their last bits, and the difference grows."
    torch.testing.assert_close(numbers(found), numbers(expected), rtol=rtol, atol=atol, equal_nan=True)


def check_weights(found, expected, exact):
    if exact: assert found["digest"] == expected["digest"]
    # where a gradient is all but zero, its rounding decides in which direction Adam moves a weight
    for name, sums in expected["sums"].items(): check_close(found["sums"][name], sums, rtol=0.05, atol=0.02)


def resumed(case, folder):
    "A learner that goes on from a copy of a checkpoint, in place of the run that wrote it."
    shutil.copytree(GOLDEN/case, folder/case)
    learn = write.make(case, folder/case)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learn.load_checkpoint(folder/case/f"checkpoint-{write.AT}")
    return learn


# --- checkpoints and logs -------------------------------------------------------------------------------------------------

@each_case
def test_a_checkpoint_goes_on_as_its_run_did(case, tmp_path):
    "Losses, rates, norms, what was logged, callbacks' states and final weights are those of the run that was not stopped."
    expected = expected_of(case)
    exact = same_machine(expected)
    learn = resumed(case, tmp_path)
    assert learn.state.global_step == expected["at"]
    found = write.future(learn)
    rows = len(expected["rows"]["step"])
    for name, values in expected["rows"].items():
        # Rows of the steps before the checkpoint come from the log beside it.
        if exact: assert found["rows"][name][-rows:] == values, name
        else: check_close(found["rows"][name][-rows:], values)
    assert [sorted(row) for row in found["logs"]] == [sorted(row) for row in expected["logs"]]
    assert [row["step"] for row in found["logs"]] == [row["step"] for row in expected["logs"]]
    if exact: assert found["logs"] == expected["logs"]
    assert found["counter"] == expected["counter"]
    if exact: assert found["best"] == expected["best"]
    check_weights(found["weights"], expected["weights"], exact)


@each_case
def test_old_names_in_files_cause_no_warning(case, tmp_path):
    "The files have settings under older names, which cannot be changed there."
    shutil.copytree(GOLDEN/case, tmp_path/case)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        learn = write.make(case, tmp_path/case)
        learn.load_checkpoint(tmp_path/case/f"checkpoint-{write.AT}")
        learn.step()
    assert [str(w.message) for w in caught if "older" in str(w.message) or any(name in str(w.message) for name in RENAMED_FIELDS)] == []


@each_case
def test_older_names_in_files_follow_the_present_ones(case, tmp_path):
    "An older name reads the present setting, also after a checkpoint that has the older name has been loaded."
    learn = resumed(case, tmp_path)
    assert not vars(learn.args).keys() & RENAMED_FIELDS.keys()
    learn.args.rewind_every, learn.args.rewind_memory, learn.args.rollback = 7, 0.25, "full"
    assert (learn.args.ring_every, learn.args.ring_memory, learn.args.transaction) == (7, 0.25, "copy")


@each_case
def test_a_log_is_read(case, tmp_path):
    "The view of a run that trains elsewhere, and the curves, know its steps."
    shutil.copytree(GOLDEN/case, tmp_path/case)
    assert str(write.AT) in repr(follow(tmp_path/case))
    other = write.make(case, tmp_path/"other")
    assert other.plot("loss", also=[tmp_path/case]) is not None


@each_case
def test_reading_changes_no_checkpoint(case, tmp_path):
    "A checkpoint that was read is the same, byte for byte."
    def digests(folder): return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}
    folder = f"checkpoint-{write.AT}"
    learn = resumed(case, tmp_path)
    learn.step()
    learn.free()
    assert digests(tmp_path/case/folder) == digests(GOLDEN/case/folder)


# --- the script -----------------------------------------------------------------------------------------------------------

def test_an_exported_script_runs(tmp_path):
    "In a process of its own, and ends in the weights of its run."
    from safetensors.torch import load_file
    shutil.copytree(GOLDEN/"script", tmp_path/"script")
    # The package that is tested here, wherever it is installed.
    paths = os.pathsep.join(filter(None, [str(Path(trainer_nb.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]))
    env = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, tmp_path/"script"/"train.py", "--output_dir", tmp_path/"out"], cwd=tmp_path, env=env,
                          capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    expected = json.loads((GOLDEN/"script"/"expected.json").read_text())
    weights = torch.nn.ModuleDict()
    weights.state_dict = lambda: load_file(tmp_path/"out"/"model.safetensors")
    check_weights(write.weights_of(weights), expected["weights"], same_machine(expected))


# --- the interface --------------------------------------------------------------------------------------------------------

def parse(signature):
    "A signature's parameters: {name: (kind, default)}, in order."
    args = ast.parse(f"def f{signature}: pass").body[0].args
    positional = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(positional) - len(args.defaults)) + [ast.unparse(d) for d in args.defaults]
    found = {a.arg: ("positional", d) for a, d in zip(positional, defaults)}
    if args.vararg: found["*"] = ("many", None)
    found |= {a.arg: ("keyword", None if d is None else ast.unparse(d)) for a, d in zip(args.kwonlyargs, args.kw_defaults)}
    if args.kwarg: found["**"] = ("many", None)
    return found


def present_name(path):
    "A dotted name with its class called as it is today."
    for other, name in SAME_CLASSES.items():
        if path == other or path.startswith(f"{other}."): return name + path.removeprefix(other)
    return path


def lost_parameters(name, then, now):
    "What calls that were right then are not right now."
    # The first parameter of functions that get the learner was called moves; it is given by position.
    if then is not None and name.startswith("trainer_nb.generate."): then = then.replace("(moves", "(learner")
    if then is None or now is None: return [] if then is None else [f"{name} cannot be called any more"]
    old, new = parse(then), parse(now)
    renamed = RENAMED_PARAMETERS.get(present_name(name), {})
    lost = [f"{name} has no {p!r} any more" for p in old if p not in new and renamed.get(p) not in new]
    for p, (kind, default) in old.items():
        if p not in new: continue
        if kind == "positional" and new[p][0] != "positional": lost.append(f"{name}: {p!r} cannot be given by position any more")
        if kind == "keyword" and new[p][0] == "many": lost.append(f"{name}: {p!r} is none of its own any more")
        if default != new[p][1] and "..." not in (default, new[p][1]): lost.append(f"{name}: {p}={default} is now {new[p][1]}")
    # Those that were positional stay in their places; new ones come behind them and have a default.
    places = [p for p, (kind, _) in old.items() if kind == "positional"]
    if [p for p, (kind, _) in new.items() if kind == "positional"][:len(places)] != places and not renamed:
        lost.append(f"{name}: its positional parameters are others")
    needed = [p for p, (kind, default) in new.items() if p not in old and kind != "many" and default is None]
    return lost + [f"{name} cannot be called without {p!r}" for p in needed]


def find(path):
    "What a dotted name is now; None if it is not there."
    for cut in range(path.count("."), -1, -1):
        module, *names = ".".join(path.split(".")[:cut + 1]), *path.split(".")[cut + 1:]
        try: found = importlib.import_module(module)
        except ImportError: continue
        try:
            for name in names: found = getattr(found, name)
        except AttributeError: return None
        return found


def check_name(path, then):
    "What a name of an earlier version has lost."
    now = find(path)
    if now is None: return [f"{path} is not there any more"]
    if path in RENAMED_NAMES: return [] if find(RENAMED_NAMES[path]) is not None else [f"{RENAMED_NAMES[path]} is not there"]
    said = write.describe(now)
    lost = [] if said["kind"] == then["kind"] else [f"{path} is a {said['kind']} and was a {then['kind']}"]
    if then["kind"] == "module" or lost: return lost
    lost += lost_parameters(path, then["signature"], said["signature"])
    for name, signature in then.get("members", {}).items():
        if present_name(f"{path}.{name}") in {*RENAMED_NAMES, *INTERNAL} or name in RENAMED_FIELDS: continue
        if name not in said["members"] and not hasattr(now, name): lost.append(f"{path}.{name} is not there any more")
        elif signature is not None: lost += lost_parameters(f"{path}.{name}", signature, said["members"].get(name))
    return lost


INTERFACE = json.loads((GOLDEN/"interface.json").read_text())


@pytest.mark.parametrize("module", [m for m in INTERFACE if m.startswith("trainer_nb")])
def test_no_name_is_lost(module):
    "Every public name is there with every parameter, method and default; there may be more."
    lost = [o for name, then in INTERFACE[module].items() for o in check_name(f"{module}.{name}", then)]
    assert lost == []


def test_no_setting_is_lost():
    "Every field of TrainingArguments is there, with its default."
    then, now = INTERFACE["fields of TrainingArguments"], write.interface()["fields of TrainingArguments"]
    missing = [name for name in then if name not in now and RENAMED_FIELDS.get(name) not in now]
    assert missing == []
    assert {name: (then[name], now[name]) for name in then if name in now and then[name] != now[name]} == {}


def test_the_comparison_sees_what_is_lost():
    "The check above can fail."
    assert lost_parameters("f", "(self, n=1, *, name=None, **more)", "(self, n=1, *, name=None, other=2, **more)") == []
    assert lost_parameters("f", "(self, n=1)", "(self, n=1, extra=None)") == []
    for now in ("(self)", "(self, m=1)", "(self, n=2)", "(self, *, n=1)", "(self, first, n=1)", "(self, n=1, *, needed)", "(self, extra=None, n=1)"):
        assert lost_parameters("f", "(self, n=1)", now), now
    assert check_name("trainer_nb.Learner.no_such_name", {"kind": "function", "signature": "()"})


def test_earlier_names_of_settings_and_verbs_work(tmp_path):
    "Each with a warning that names the present one."
    from toys import hard_learner
    with pytest.warns(UserWarning) as caught:
        learn = hard_learner(ring_every=3, ring_memory=0.5, transaction="copy")
    said = " ".join(str(w.message) for w in caught)
    assert all(new in said for new in ("rewind_every=3", "rewind_memory=0.5", "rollback='full'"))
    assert (learn.args.rewind_every, learn.args.rewind_memory, learn.args.rollback) == (3, 0.5, "full")
    assert (learn.args.ring_every, learn.args.ring_memory, learn.args.transaction) == (3, 0.5, "copy")
    with pytest.warns(UserWarning, match="run_on_all"): assert learn.each(lambda learn: learn.state.global_step) == [0]
    with pytest.warns(UserWarning, match="output="), pytest.raises(ValueError, match="output='al'"): learn.launch(2, hear="al")

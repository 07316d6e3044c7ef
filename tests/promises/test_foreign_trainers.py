"Trainers of TRL and sentence-transformers as learners: the numbers of the unpatched ones, and exact under each verb."
import json, os, subprocess, sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent.parent/"foreign_trainers.py"


def run(side, *names, theirs=None):
    # the Trainer's checkpoints lack the weights of a loss
    folders = json.dumps({name: r["folder"] for name, r in (theirs or {}).items() if name != "a loss with weights"})
    done = subprocess.run([sys.executable, str(PROGRAM), side, *names], capture_output=True, text=True, timeout=600, env=os.environ | {"THEIRS": folders})
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.partition("RESULTS")[2].splitlines()[0])


def check(theirs, ours, name):
    if name == "GRPO":
        assert [row.keys() for row in ours["log"]] == [row.keys() for row in theirs["log"]]
    else:
        assert ours["weights"] == theirs["weights"] and ours["files"] == theirs["files"]
        # the Trainer's loss of an evaluation is the mean of copies of one number, which may round it
        assert ours["log"] == [{k: pytest.approx(v, rel=1e-6) if k == "eval_loss" else v for k, v in row.items()} for row in theirs["log"]]
        if "evaluated" in ours: assert ours["evaluated"] == pytest.approx(theirs["evaluated"], rel=1e-6)
        if "taken over" in ours:
            assert ours["taken over"]["weights"] == ours["weights"]
    for way in ("back", "resumed"):
        assert ours[way]["weights"] == ours["weights"] and ours[way]["log"] == ours["log"], way


def test_fine_tuning_of_trl():
    check(run("plain", "LoRA")["LoRA"], run("patched", "LoRA")["LoRA"], "LoRA")


@pytest.fixture(scope="module")
def sides():
    pytest.importorskip("sentence_transformers")
    theirs = run("plain")
    return theirs, run("patched", theirs=theirs)


# of a model into which TRL has put a function
@pytest.mark.parametrize("verb", ["branch", "memory_plan"])
def test_what_a_trainer_of_trl_cannot_do(verb):
    code = ("import sys; sys.argv = ['', 'patched']; import tempfile, foreign_trainers as f; t = f.sft(tempfile.mkdtemp())\n"
            f"try: t.{verb}()\nexcept Exception as e: print('RAISED', type(e).__name__, e)\nprint(len(t.step(2)))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, cwd=PROGRAM.parent)
    assert f"RAISED InvalidOperation {verb}() " in done.stdout and done.stdout.split()[-1] == "2", done.stderr[-2000:]


@pytest.mark.timeout(900)
def test_two_processes():
    "Of Accelerate's launcher and, for learners, also of `launch`: forked ones, and fresh ones, which import TRL anew."
    names = ["two", "text", "accumulation", "LoRA", "DPO", "reward"]
    theirs, ours = run("plain", *names), run("patched", *names)
    for name in names[1:]:
        assert ours[name]["launched"] == {k: ours[name][k] for k in ("weights", "log", "files")}
        check(theirs[name], ours[name] | dict.fromkeys(("back", "resumed"), ours[name]), name)


NAMES = ["text", "prompt and completion", "conversations", "accumulation", "LoRA", "a stream", "ORPO", "DPO", "reward", "GRPO", "sentences", "sentences of several data sets",
         "a loss with weights", "a loss of all layers"]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", NAMES)
def test_every_trainer(sides, name): check(*(side[name] for side in sides), name)

"""Long programs that introductions to the Trainer show, run after changing the import line to trainer_nb, beside the same program with transformers."""
import runpy, sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

PROGRAMS = Path(__file__).parents[1] / "programs"
pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]


def run(name, folder, ours, monkeypatch):
    "A program's variables at its end; with trainer_nb its first import line is another."
    text = (PROGRAMS / f"{name}.py").read_text()
    line = next(o for o in text.splitlines() if o.startswith("from transformers import"))
    changed = text.replace(line, line.replace("from transformers", "from trainer_nb"), 1)
    assert sum(a != b for a, b in zip(text.splitlines(), changed.splitlines())) == 1
    folder.mkdir()
    program = folder / f"{name}.py"
    program.write_text(changed if ours else text)
    monkeypatch.setattr(sys, "argv", [str(program), str(folder)])
    from accelerate.state import AcceleratorState
    AcceleratorState._reset_state(reset_partial_state=True)
    return runpy.run_path(str(program), run_name="__main__")


@pytest.fixture
def found(tmp_path, monkeypatch):
    def both(name): return [run(name, tmp_path / who, who == "ours", monkeypatch)["found"] for who in ("theirs", "ours")]
    both.ours = lambda name: run(name, tmp_path / "ours", True, monkeypatch)["found"]
    return both


def test_classification(found):
    "Tokenizer, collator, metrics, a callback that stops, accumulation, the best model, saved and loaded again."
    ours = found.ours("classify")
    assert ours["accuracy"] == ours["test"] == ours["best"] == max(ours["stopped"]) >= 0.95 and ours["label"] == "good"
    assert ours["predicted"] == (20, 2) and len(ours["labels"]) == 20 and len(ours["checkpoints"]) <= 2
    assert ours["steps"] == 5 * (len(ours["stopped"]) - 1)   # 40 samples in steps of 8; the last evaluation is the program's own


def test_strategies(found):
    "DeepSpeed trains, and FSDP either works or says what it needs; nothing trains as if it had not been asked."
    ours = found.ours("strategies")
    assert ours["neither"] == 2 and ours["neither, enabled"] == (False, False)
    for name, said in ours.items():
        if name in ("deepspeed by dict", "deepspeed by file"): assert said == 2 and ours[f"{name}, enabled"] == (True, False), said
        if name.startswith("fsdp") and not name.endswith("enabled"): assert ("Error" in str(said) and "fsdp" in said.lower()) or ours[f"{name}, enabled"][1], said


def test_subclass(found):
    "Own optimizer, schedule, loss and step: the same logs and weights as with transformers."
    theirs, ours = found("subclass")
    assert ours["steps"] == theirs["steps"] == 7 and ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
    assert (ours["weights"] - theirs["weights"]).norm() < 1e-6 * theirs["weights"].norm()
    for mine, wanted in zip(ours["logged"], theirs["logged"], strict=True): assert mine == pytest.approx(wanted, rel=1e-4)

"What counts as a difference between the stored outputs of a notebook and its present ones, and what does not."
import re, subprocess, sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from stored_outputs import differences, normalised


ROOT = Path(__file__).resolve().parents[2]


def printed(text): return [{"output_type": "stream", "name": "stdout", "text": text}]
def shown(**data): return [{"output_type": "execute_result", "data": {kind.replace("_", "/", 1): text for kind, text in data.items()}}]
def report(stored, now): return differences({"cells": [{"cell_type": "code", "id": "a1", "source": "learn.step()", "outputs": stored}]}, {"a1": now})


@pytest.mark.parametrize("stored, now", [
    ("loss 0.693 after 1,200 steps in 2.1 s", "loss 1.2e-3 after 7 steps in 340 ms"),
    ("as of 12:01:45, run 376a311a2edf", "as of 9:05:03, run 90befa120c44"),
    ("saved in /tmp/tmpab12/out", "saved in /var/folders/x1/y/out"),
    ("  12 |████████▏ | 90 %", "   3 |██ | 9 %"),
    ("step  loss\n   1  0.5\n 200   —", "step   loss\n   1    nan\n2000  1e-3"),
    ("rank own work remark\n   0 3 ms\n   1 5 ms", "rank own work remark\n   0 3 ms\n   1 5 ms  the slowest"),
    ("2%|x\r100%|x\ndone", "done"),
    ("[2026-11-23 12:00:00,1] [WARNING] [real_accelerator.py:213:get] no GPU\ndone", "done"),
])
def test_numbers_times_and_ids_do_not_count(stored, now):
    assert report(printed(stored.replace("2%|x\r100%|x\n", "")), printed(now)) == ""


@pytest.mark.parametrize("stored, now", [
    ("the run is paused", "the run is finished"), ("loss 0.5", "accuracy 0.5"), ("one line", "one line\nanother line"), ("something", ""),
])
def test_words_count(stored, now):
    assert report(printed(stored), printed(now)) and report(shown(text_plain=stored), shown(text_plain=now))


def test_columns_of_tables_and_kinds_of_outputs_count():
    table = "<table><thead><tr><th>step</th><th>{}</th></tr></thead><tbody><tr><td>1</td><td>0.5</td></tr></tbody></table>"
    assert report(shown(text_html=table.format("loss")), shown(text_html=table.format("loss").replace("0.5", "0.7"))) == ""
    found = report(shown(text_html=table.format("loss")), shown(text_html=table.format("accuracy")))
    assert "-columns: loss" in found and "+columns: accuracy" in found
    assert report(shown(text_plain="1"), shown(text_plain="1", image_png="x"))
    assert report([], printed("3")) and report(printed("3"), [])
    # two pictures of another size are the same picture
    assert report(shown(text_html="<svg width=3><g/></svg>"), shown(text_html="<svg width=4></svg>")) == ""


def test_stderr_counts_where_it_is_kept():
    def stderr(text): return [{"output_type": "stream", "name": "stderr", "text": text}]
    def report(stored, now, tags): return differences({"cells": [{"cell_type": "code", "id": "a1", "source": "", "metadata": {"tags": tags}, "outputs": stored}]}, {"a1": now})
    assert report(stderr("one"), stderr("another"), ["keep-stderr"]) and not report(stderr("failed after step 3"), stderr("failed after step 5"), ["keep-stderr"])
    assert not report([], stderr("another"), [])


def test_the_line_of_code_below_a_warning_of_several_lines_does_not_count():
    def stderr(text): return [{"output_type": "stream", "name": "stderr", "text": text}]
    cell = {"cell_type": "code", "id": "a1", "source": "x = 1\nlearn.load(folder)", "metadata": {"tags": ["keep-stderr"]},
            "outputs": stderr("UserWarning: a setting differs:\nname  now\n")}
    assert not differences({"cells": [cell]}, {"a1": stderr("/tmp/ipykernel_1/2.py:2: UserWarning: a setting differs:\nname  now\n  learn.load(folder)\n")})
    assert differences({"cells": [cell]}, {"a1": stderr("/tmp/ipykernel_1/2.py:2: UserWarning: a setting differs:\nname  then\n  learn.load(folder)\n")})


PAGE = {"a warning": ("import warnings; warnings.warn('an old name')", (), 1), "a kept one": ("import warnings; warnings.warn('an old name')", ("keep-stderr",), 0),
        "a kept one of two lines": ("import warnings\nwarnings.warn('an old name\\nof a setting')", ("keep-stderr",), 0),
        "a shown error": ("raise ValueError('as shown')", ("raises-exception",), 0), "no warning": ("import sys; print('just a line', file=sys.stderr)", (), 0)}


@pytest.mark.parametrize("source, tags, status", PAGE.values(), ids=PAGE)
def test_a_page_whose_readers_would_see_a_warning_is_not_stored(source, tags, status, tmp_path):
    "The cell and the warning are named; a tag keeps what belongs to the page."
    page = tmp_path/"page.ipynb"
    cell = new_code_cell(source)
    cell.metadata["tags"] = list(tags)
    nbformat.write(new_notebook(cells=[new_code_cell("1 + 1"), cell]), page)
    before = page.read_text()
    done = subprocess.run([sys.executable, ROOT/"scripts"/"store_outputs.py", page], capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stderr
    if status: assert "code cell 2" in done.stderr and "UserWarning: an old name" in done.stderr and page.read_text() == before
    else:
        first, second = (o.outputs for o in nbformat.read(page, 4).cells)
        assert len(first) == 1 and len(second) == len(tags)
        assert not tags or re.search("UserWarning: an old name|as shown", second[0].get("text", "") or second[0].get("evalue", "")) and "ipykernel_" not in str(second)
        assert "warnings.warn" not in str(second)


def test_an_error_has_its_message():
    def failed(text): return [{"output_type": "error", "ename": "ValueError", "evalue": text}]
    assert report(failed("step 3 is over"), failed("step 5 is over")) == "" and report(failed("step 3 is over"), failed("no step"))


def test_bars_and_line_breaks_do_not_count():
    from trainer_nb.live.screens import ProgressView, view_html
    bar = shown(text_html=view_html(ProgressView(step=3, total=9, status="done", over=True)), text_plain="step 3/9  done")
    assert report(bar + shown(text_plain="3"), shown(text_plain="3")) == ""
    rows = ProgressView(step=3, total=9, evaluations=[{"step": 3, "eval_loss": 0.5}], evaluates=True)
    assert report(shown(text_html=view_html(rows), text_plain="step 3/9"), []) == ""
    assert report(shown(text_plain="{'a': 1,\n 'b': 2}"), shown(text_plain="{'a': 1, 'b': 2.5e-3}")) == ""


def test_the_report_names_the_cell():
    found = report(printed("a\nb\nc"), printed("a\nB\nc"))
    assert found.splitlines() == ["code cell 1 (a1): learn.step()", "   a", "  -b", "  +B", "   c"]
    assert "more lines" in report(printed("\n".join(f"line {'x' * i}" for i in range(60))), printed("nothing"))


def test_numbers_within_names_stay():
    "bf16 and fp32 are words; a number beside a word is not."
    assert normalised("bf16 on fc1 in layer 3") == "bf16 on fc1 in layer 0"


def test_the_numbers_of_a_run_decide_the_sentence_on_it():
    found = {normalised(o) for o in ("Overfitting: eval_loss was lowest at step 500 (0.0251) and has been higher since (0.0626 at step 900).",
                                     "eval_loss was lowest at step 500 (0.0251) and has been higher since (0.0626 at step 900).",
                                     "The mean loss is well above the lowest: 2.28 over the last 56 steps, 0.0437 around step 234.",
                                     "No clear trend: mean loss 0.012 over the last 50 steps, 0.013 over the 50 before.",
                                     "The loss has fallen: mean 0.012 over the last 50 steps, 0.5 over the 50 before.")}
    assert len(found) == 1
    assert normalised("The loss is one number, not a tensor.") not in found

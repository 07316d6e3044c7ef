"The table of the Trainer's features is whole, its counts are true, and each of its lines names a test that there is."
import ast, dataclasses, inspect, json, re
from collections import Counter

import pytest

from conftest import ROOT, SLOW
from trainer_nb.args.fields import CHOICES
from trainer_nb.args.validation import UNSUPPORTED

transformers = pytest.importorskip("transformers")
PAGE = "\n".join("".join(c["source"]) for c in json.loads((ROOT/"nbs"/"trainer.ipynb").read_text(encoding="utf-8"))["cells"])
ROWS = [[c.strip() for c in re.split(r"(?<!\\)\|", line.strip("|"))] for line in PAGE.splitlines() if line.startswith("| ")]
ROWS = [row for row in ROWS if row[0] != "of the Trainer"]
STATUSES = ("same", "extended", "different", "unsupported")
NAMES = {name for row in ROWS for name in re.findall(r"[A-Za-z_]\w*", " ".join(re.findall(r"`([^`]*)`", row[0])))}


def test_each_line_has_its_test():
    files = list((ROOT/"tests").rglob("test_*.py"))
    tests = {p.name: {n.name for n in ast.parse(p.read_text(encoding="utf-8")).body if isinstance(n, ast.FunctionDef)} for p in files}
    assert len(tests) == len(files), "two test files have the same name"
    assert len(ROWS) > 150
    for row in ROWS:
        assert len(row) == 4 and row[1] in STATUSES, row
        named = re.findall(r"\[`([^`]+)`\]\(([^)]+)\)", row[3])
        assert named and row[3] == ", ".join(f"[`{name}`]({path})" for name, path in named), f"no test: {row}"
        for name, path in named:
            file, _, test = name.partition("::")
            assert file in tests and (not test or test in tests[file]), f"{name} is no test: {row[0]}"
            assert path == "../" + next(p for p in files if p.name == file).relative_to(ROOT).as_posix(), row
    slow = {f"{path.rpartition('/')[2]}::{test}" for path, names in SLOW["slow"].items() for test in names}
    # a test that is renamed would be run again
    for name in slow | {name.rpartition("/")[2] for name in SLOW["cases"]}: assert name.split("::")[1] in tests[name.split("::")[0]], name


def test_the_counts_are_those_of_the_rows():
    counts = Counter(row[1] for row in ROWS)
    said = re.search(r"Of (\d+) features, (\d+) are the same, (\d+) extended, (\d+) different on purpose, and (\d+) unsupported", PAGE)
    assert list(map(int, said.groups())) == [len(ROWS), *(counts[status] for status in STATUSES)]


def test_what_is_unsupported_has_a_reason():
    for row in ROWS:
        if row[1] == "unsupported": assert len(row[2]) > 30, row
    features = [row[0] for row in ROWS]
    assert len(features) == len(set(features)), [f for f, n in Counter(features).items() if n > 1]


def test_every_argument_is_there_and_refused_ones_say_so():
    for f in dataclasses.fields(transformers.Seq2SeqTrainingArguments):
        row = next((r for r in ROWS if r[0] == f"`{f.name}`"), None)
        assert row is not None, f.name
        # an older name, which the constructor translates
        assert (row[1] == "unsupported") == (f.name in UNSUPPORTED and f.name != "sortish_sampler"), row


def test_every_other_name_of_the_trainers_is_there():
    "Methods, parameters of the constructor, optimizers, schedules, callbacks."
    from transformers.training_args import OptimizerNames
    from transformers.trainer_utils import SchedulerType
    methods = {n for cls in (transformers.Trainer, transformers.Seq2SeqTrainer) for n, f in vars(cls).items() if not n.startswith("_") and callable(f)}
    parameters = set(inspect.signature(transformers.Trainer.__init__).parameters) - {"self"}
    callbacks = {"DefaultFlowCallback", "ProgressCallback", "PrinterCallback", "EarlyStoppingCallback"}
    wanted = methods | parameters | {o.value for o in OptimizerNames} | {o.value for o in SchedulerType} | callbacks
    assert wanted - NAMES == set()
    assert set(CHOICES["optim"]) | set(CHOICES["lr_scheduler_type"]) <= NAMES

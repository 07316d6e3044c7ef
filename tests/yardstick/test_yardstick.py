"The yardstick: the same programs with an earlier version and with this one end in the same bytes (a subset; `make yardstick` runs all)."
import subprocess, sys

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT/"tests"/"yardstick"))
import compare
import programs
import recording


def there(): return subprocess.run(["git", "cat-file", "-e", compare.BASE], cwd=ROOT, capture_output=True).returncode == 0


@pytest.mark.skipif(not there(), reason="the earlier version is not in this clone")
def test_the_quick_programs_end_in_the_same_bytes(): assert compare.differences(only=programs.QUICK) == []


def test_the_comparison_can_fail():
    "A value of another byte, type or sign, one that is missing, and a program that fails with both."
    import numpy as np
    import torch
    values = [0.0, -0.0, 1, 1.0, True, None, "1", torch.zeros(2), torch.zeros(1, 2), torch.zeros(2).half(), -torch.zeros(2), np.zeros(2), np.float32(1)]
    texts = [recording.text_of(v) for v in values]
    assert len(set(texts)) == len(texts) - 1, "1 and '1' are one text, in JSON as well"
    one = recording.flat("", {"a": [1, {"b": 2.0}], "runtime": 3}, {})
    assert one == {".a.0": "1", ".a.1.b": (2.0).hex()}
    assert compare.compared("p", one, one) == [] and len(compare.compared("p", one, {".a.0": "1"})) == 1
    assert compare.compared("p", {"FAILED": "x"}, {"FAILED": "x"})
    assert set(programs.QUICK) <= set(programs.PROGRAMS) and len(compare.table(ROOT)) > 300

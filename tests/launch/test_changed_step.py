"A training step that is overridden in the middle of a run on several processes: its losses are recorded."
import json, os, subprocess, sys

import pytest

from conftest import ROOT

pytestmark = [pytest.mark.timeout(200), pytest.mark.xdist_group("launch")]


@pytest.fixture(scope="module")
def found():
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", ROOT/"tests"/"programs"/"changed_step.py"],
                          capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}, timeout=180)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("RESULT ")).removeprefix("RESULT "))


@pytest.mark.parametrize("case", ["assigned", "defined", "removed", "in a callback"])
def test_losses_are_those_of_the_steps(case, found):
    "An assignment in a cell or a callback, a class that is changed: the loss is that of its own step, not of the one before."
    assert len(set(found["never"]["losses"])) == 6
    assert found[case]["losses"] == found["never"]["losses"] and found[case]["weights"] == found["never"]["weights"]
    assert found[case]["tokens"] == found["never"]["tokens"] == 6 * 2 * 4 * 4


def test_the_loss_is_the_one_that_the_step_returns(found):
    "An override of `backward_move` trains with another loss than it records."
    assert found["backward"]["losses"][:3] == found["never"]["losses"][:3] and found["backward"]["losses"][3] != found["never"]["losses"][3]
    assert found["backward"]["losses"][2] < 1.5 * found["never"]["losses"][2]

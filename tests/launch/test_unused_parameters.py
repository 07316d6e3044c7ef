"Processes that use different parameters in a step: no one waits forever, and the run is that of one process."
import json, os, signal, subprocess, sys, tempfile

import pytest, torch

from conftest import ROOT

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("launch")]
PROGRAM = ROOT / "tests" / "programs" / "unused.py"


CASES = ["routed", "late", "one rank", "accumulate", "each", "evaluate", "object", "gathers", "twice", "parts", "ddp", "unwrapped", "inner", "penalty", "by hand", "double", "drop", "empty"]
SPARSE = ["sparse routed", "sparse late", "sparse one rank", "sparse accumulate", "sparse each", "sparse unwrapped", "sparse ddp", "sparse bags", "sparse one rank in the loss", "sparse accumulate in the loss",
          "sparse sharded in the loss"]
SPARSE_QUICK = {"sparse one rank", "sparse accumulate in the loss", "sparse ddp"}


def outcome(*cases, seconds):
    "What the program prints, by case and number of processes; they are killed where they have not ended by then."
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen([sys.executable, PROGRAM, *cases], stdout=printed, stderr=subprocess.STDOUT, env=env, start_new_session=True)
        try: process.wait(timeout=seconds)
        except subprocess.TimeoutExpired: os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        printed.seek(0)
        said = printed.read()
    found = [json.loads(o.removeprefix("RESULT ")) for o in said.splitlines() if o.startswith("RESULT ")]
    return process.returncode, {(o["case"], o["processes"]): o for o in found}, said


@pytest.fixture(scope="module")
def outcomes(): return outcome(*CASES, seconds=180)

@pytest.mark.parametrize("case", ["routed", "late", "one rank", "accumulate", "each", "evaluate", "object", "gathers", "twice", "parts", "ddp", "unwrapped", "inner", "penalty", "by hand", "double"])
def test_the_run_is_that_of_one_process(outcomes, case):
    """With the settings as they are, whatever the ranks use: in the first step, in a later one, in the last micro-batch or an earlier one.

    A parameter that no rank uses has no gradient, so that weight decay leaves it alone as in one process."""
    compare(outcomes, case)


@pytest.mark.parametrize("case", [case if case in SPARSE_QUICK else pytest.param(case, marks=pytest.mark.slow) for case in SPARSE])
def test_sparse_gradients_are_those_of_one_process(case):
    """Of embeddings of the model and of the loss; a process without one of them sends a gradient of no rows.

    Each in a program of its own: a process that is aborted would end the cases after it."""
    compare(outcome(case, seconds=60), case)


def compare(outcomes, case):
    _, found, said = outcomes
    assert (case, 2) in found, said
    one, two = (found[case, processes] for processes in (1, 2))
    assert two["same"] and two["steps"] == one["steps"]
    for a, b in zip(one["losses"], two["losses"], strict=True): assert a == pytest.approx(b, rel=1e-4, abs=1e-5)
    for name, weight in one["weights"].items():
        torch.testing.assert_close(torch.tensor(weight), torch.tensor(two["weights"][name]), rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("case", ["drop", "empty"])
def test_ranks_that_differ_train_and_stay_the_same(outcomes, case):
    "Layers dropped by each rank's own random draws; a rank that leaves a batch out altogether."
    _, found, said = outcomes
    assert (case, 2) in found, said
    assert found[case, 2]["same"] and found[case, 2]["steps"] == 12


def test_an_error_names_parameter_and_rank_where_none_may_be_unused():
    code, found, said = outcome("strict", seconds=60)
    assert code > 0 and ("strict", 2) not in found
    assert "'experts." in said and "on rank" in said and "leave ddp_find_unused_parameters out" in said


@pytest.mark.parametrize("case", ["sparse tied", "sparse static"])
def test_an_error_says_which_sparse_gradients_cannot_be_averaged(case):
    code, found, said = outcome(case, seconds=60)
    assert code > 0 and (case, 2) not in found
    assert "sparse=False" in said and "ValueError: DDP " in said

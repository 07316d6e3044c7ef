"Processes that use different parameters in a step: no one waits forever, and the run is that of one process."
import json, os, signal, subprocess, sys, tempfile

import pytest, torch

from torch.utils.data import TensorDataset

from conftest import ROOT
from trainer_nb import Learner

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("launch")]
PROGRAM = ROOT / "tests" / "programs" / "unused.py"


CASES = ["routed", "late", "one rank", "accumulate", "each", "evaluate", "object", "gathers", "twice", "parts", "ddp", "unwrapped", "inner", "penalty", "by hand", "double", "drop", "empty"]
IN_THE_LOSS = ["one rank in the loss", "accumulate in the loss", "sharded in the loss"]


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
def outcomes(): return outcome(*CASES, *IN_THE_LOSS, seconds=180)

@pytest.mark.parametrize("case", ["routed", "late", "one rank", "accumulate", "each", "evaluate", "object", "gathers", "twice", "parts", "ddp", "unwrapped", "inner", "penalty", "by hand", "double", *IN_THE_LOSS])
def test_the_run_is_that_of_one_process(outcomes, case):
    """With the settings as they are, whatever the ranks use: in the first step, in a later one, in the last micro-batch or an earlier one.

    A parameter that no rank uses has no gradient, so that weight decay leaves it alone as in one process."""
    compare(outcomes, case)


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


class SkipsOnRank1(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    def forward(self, x): return self.first(x) if os.environ.get("RANK") == "1" else self.second(self.first(x))


def test_an_error_names_parameter_and_rank_where_none_may_be_unused():
    data = TensorDataset(torch.ones(8, 2), torch.zeros(8, dtype=torch.long))
    learn = Learner(SkipsOnRank1(), train_dataset=data, loss_func=torch.nn.functional.cross_entropy, use_cpu=True, disable_tqdm=True, ddp_find_unused_parameters=False)
    with learn.launch(2):
        with pytest.raises(ValueError, match="'second.* got no gradient in this step on rank 1.* leave ddp_find_unused_parameters out"): learn.step()


def test_sparse_gradients_are_refused():
    table = torch.nn.Embedding(2, 2, sparse=True)
    for parts in (dict(model=table), dict(model=torch.nn.Linear(2, 2), loss_func=torch.nn.ModuleList([table]))):
        learn = Learner(train_dataset=TensorDataset(torch.zeros(8, 2)), use_cpu=True, disable_tqdm=True, optim="sgd", **parts)
        with pytest.raises(ValueError, match="has sparse=True, and a run on several processes averages dense gradients only; leave sparse out"): learn.launch(2)
        assert learn.processes is None

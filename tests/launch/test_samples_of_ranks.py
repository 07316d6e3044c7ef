"The generator of a sampler, and set_epoch of a data set, on several processes."
import json, os, subprocess, sys

import pytest

from conftest import ROOT

pytestmark = [pytest.mark.timeout(200), pytest.mark.xdist_group("launch")]


@pytest.fixture(scope="module")
def found():
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", ROOT/"tests"/"programs"/"own_generators.py"],
                          capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}, timeout=180)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("RESULT ")).removeprefix("RESULT "))


@pytest.mark.parametrize("case", ["unseeded", "dispatched", "3", "4"])
def test_each_sample_once_in_each_epoch(case, found):
    "Also with a generator without a seed, which is another one in each process."
    steps = found[case]
    assert len(steps) == 8
    for epoch in range(2): assert sorted(sum(steps[4 * epoch:4 * epoch + 4], [])) == [100 * epoch + i for i in range(16)]


def test_the_order_is_that_of_the_seed(found):
    assert found["3"] == found["3 dispatched"] and found["3"] != found["4"]

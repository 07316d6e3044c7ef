"The generator of a sampler, and set_epoch of a data set, on several processes."
import pytest

from conftest import result_of_two_ranks

pytestmark = [pytest.mark.timeout(200), pytest.mark.xdist_group("launch")]


@pytest.fixture(scope="module")
def found(): return result_of_two_ranks("own_generators.py")


@pytest.mark.parametrize("case", ["unseeded", "dispatched", "3", "4"])
def test_each_sample_once_in_each_epoch(case, found):
    "Also with a generator without a seed, which is another one in each process."
    steps = found[case]
    assert len(steps) == 8
    for epoch in range(2): assert sorted(sum(steps[4 * epoch:4 * epoch + 4], [])) == [100 * epoch + i for i in range(16)]


def test_the_order_is_that_of_the_seed(found):
    assert found["3"] == found["3 dispatched"] and found["3"] != found["4"]

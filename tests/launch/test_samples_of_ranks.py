"The generator of a sampler, set_epoch of a data set, and a training step that is overridden in the middle of a run, on several processes."
import pytest

from ranks import result_of_two_ranks

pytestmark = [pytest.mark.timeout(200), pytest.mark.xdist_group("launch")]


@pytest.fixture(scope="module")
def found(): return result_of_two_ranks("own_generators.py")


@pytest.mark.parametrize("case", ["unseeded", "3", "4"])
def test_each_sample_once_in_each_epoch(case, found):
    "Also with a generator without a seed, which is another one in each process."
    steps = found[case]
    assert len(steps) == 8
    for epoch in range(2): assert sorted(sum(steps[4 * epoch:4 * epoch + 4], [])) == [100 * epoch + i for i in range(16)]


def test_the_order_is_that_of_the_seed(found):
    assert found["3"] != found["4"]


@pytest.fixture(scope="module")
def changed(): return result_of_two_ranks("changed_step.py")


@pytest.mark.parametrize("case", ["assigned", "defined", "removed", "in a callback"])
def test_losses_are_those_of_the_steps(case, changed):
    "An assignment in a cell or a callback, a class that is changed: the loss is that of its own step, not of the one before."
    assert len(set(changed["never"]["losses"])) == 6
    assert changed[case]["losses"] == changed["never"]["losses"] and changed[case]["weights"] == changed["never"]["weights"]
    assert changed[case]["tokens"] == changed["never"]["tokens"] == 6 * 2 * 4 * 4


def test_the_loss_is_the_one_that_the_step_returns(changed):
    "An override of `backward_move` trains with another loss than it records."
    assert changed["backward"]["losses"][:3] == changed["never"]["losses"][:3] and changed["backward"]["losses"][3] != changed["never"]["losses"][3]
    assert changed["backward"]["losses"][2] < 1.5 * changed["never"]["losses"][2]

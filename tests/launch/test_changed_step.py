"A training step that is overridden in the middle of a run on several processes: its losses are recorded."
import pytest

from conftest import result_of_two_ranks

pytestmark = [pytest.mark.timeout(200), pytest.mark.xdist_group("launch")]


@pytest.fixture(scope="module")
def found(): return result_of_two_ranks("changed_step.py")


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

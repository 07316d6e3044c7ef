"""Everything that determines a run's future, against every verb that goes back in time.

Each item is a learner whose next steps depend on one kind of state. Each verb leaves the run and comes back; the steps that follow
have to give the bytes of a run that was never left. `look` reads the state itself, and no code of the package is used to compare.
"""
import warnings

import pytest

from going_back import AFTER, BEFORE, ITEMS, VERBS, look, straight
from trainer_nb import differences


@pytest.mark.parametrize("verb", VERBS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", list(ITEMS))
def test_a_run_goes_on_as_if_it_had_not_been_left(name, verb, tmp_path):
    make = ITEMS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)   # nothing of this is lost, so nothing is reported
        warnings.filterwarnings("ignore", message="There are 2 callbacks of the class")
        learn = verb(make(), make, tmp_path)
        learn.step(AFTER)
    assert look(learn) == straight(name)


def test_containers_that_went_back_twice():
    "They hold the same in the same order, an OrderedDict too, whose order is apart from its entries."
    learn = ITEMS["containers"]()
    learn.step(BEFORE)
    then = [repr(getattr(learn, name)) for name in ("window", "by_kind", "names", "ordered", "counts")]
    for _ in range(2):
        here = learn.snapshot()
        learn.step(1)
        learn.restore(here)
        assert [repr(getattr(learn, name)) for name in ("window", "by_kind", "names", "ordered", "counts")] == then
        assert not differences(here, learn.snapshot())

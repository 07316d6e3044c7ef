"""Everything that determines a run's future, against every verb that goes back in time.

Each item is a learner whose next steps depend on one kind of state. Each verb leaves the run and comes back; the steps that follow
have to give the bytes of a run that was never left. `look` reads the state itself, and no code of the package is used to compare.
"""
import warnings

import pytest
import torch
from torch import nn

from going_back import AFTER, BEFORE, ITEMS, SETTINGS, VERBS, Data, Net, look, straight
from trainer_nb import InvalidOperation, differences


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


OWN_STEPS = ["named_optimizers_in_a_step_of_its_own", "lbfgs_in_a_step_of_its_own"]

@pytest.mark.parametrize("name", OWN_STEPS)
def test_a_step_of_its_own(name):
    "One that fails after an update leaves nothing behind, and outside of one there is nothing to update."
    learn = ITEMS[name]()
    learn.step(BEFORE)
    before = learn.snapshot()
    def fails(*args, **kwargs):
        type(learn).update(learn, *args, **kwargs)
        raise RuntimeError("in the middle")
    learn.update = fails
    with pytest.raises(RuntimeError, match="in the middle"): learn.step()
    assert [name for name in differences(before, learn.snapshot()) if name != "epoch_open"] == []
    del learn.update
    for call in (learn.update, learn.debug_step):
        with pytest.raises(InvalidOperation, match="optimize()"): call()
    assert {learn.optimizer.state[p].get("averages", BEFORE) for p in learn.model.parameters()} == {BEFORE}   # once a step
    assert "no step can be taken" not in str(learn.check())
    learn.step(AFTER)
    assert look(learn) == straight(name)


def test_a_step_of_its_own_that_a_cell_assigns():
    learn = ITEMS["plain_run"]()
    learn.step(BEFORE)
    before = learn.snapshot()
    def optimize(model, batches):
        learn.backward(learn.compute_loss(model, batches[0]))
        learn.update()
        raise RuntimeError("in the middle")
    learn.optimize = optimize
    with pytest.raises(RuntimeError, match="in the middle"): learn.step()
    assert differences(before, learn.snapshot()) == []
    del learn.optimize
    learn.step(AFTER)
    assert look(learn) == straight("plain_run")


@pytest.mark.xdist_group("launch")
@pytest.mark.parametrize("name", OWN_STEPS)
def test_a_step_of_its_own_on_two_processes(name):
    "The numbers of one process with the whole batch; rewound, the same bytes."
    class Linear(Net):
        def __init__(self):
            super().__init__()
            self.norm = self.drop = nn.Identity()
    def make(size):
        made = ITEMS[name]()
        given = {key: getattr(made, key) for key in ("optimizer_cls_and_kwargs", "loss_func")}
        torch.manual_seed(0)
        return type(made)(Linear(), train_dataset=Data(), **SETTINGS | given | dict(learning_rate=5e-5, per_device_train_batch_size=size, max_grad_norm=0.0))
    alone, many = make(4), make(2)
    alone.step(4)
    with many.launch(2):
        many.step(4)
        there = many.snapshot()
        many.rewind(2)
        many.step(2)
        assert differences(there, many.snapshot()) == []
    for p, q in zip(alone.model.parameters(), many.model.parameters()): torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-3)   # LBFGS divides by small differences

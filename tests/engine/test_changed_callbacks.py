"""Callbacks that are changed in the handler's list, as code for the Trainer does, and a second callback of a class."""
import warnings

import pytest
import torch
from torch import nn

from trainer_nb import InvalidOperation, Learner, TrainerCallback


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)
    def forward(self, x, labels=None): return {"loss": self.layer(x).square().mean()}


class Rows(torch.utils.data.Dataset):
    def __len__(self): return 16
    def __getitem__(self, i): return {"x": torch.full((2,), float(i)), "labels": 0}


class Counts(TrainerCallback):
    def __init__(self, name="a"): self.name, self.steps = name, []
    def on_step_end(self, args, state, control, **kwargs): self.steps.append(state.global_step)


class Others(Counts):
    "Another class with the same event."


def make(*callbacks, **given):
    torch.manual_seed(0)
    return Learner(Net(), train_dataset=Rows(), callbacks=list(callbacks), per_device_train_batch_size=2, max_steps=8, use_cpu=True,
                   disable_tqdm=True, report_to="none", save_strategy="no", **given)


def said(function):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    return [str(w.message) for w in caught if "callbacks" in str(w.message)]


def own(learn): return [c for c in learn.callback_handler.callbacks if isinstance(c, Counts)]


CHANGES = {
    "append": lambda learn, new: learn.callback_handler.callbacks.append(new),
    "insert": lambda learn, new: learn.callback_handler.callbacks.insert(0, new),
    "extend": lambda learn, new: learn.callback_handler.callbacks.extend([new]),
    "slice": lambda learn, new: learn.callback_handler.callbacks.__setitem__(slice(len(learn.callback_handler.callbacks), None), [new]),
    "assignment": lambda learn, new: setattr(learn.callback_handler, "callbacks", [*learn.callback_handler.callbacks, new]),
    "in place of another": lambda learn, new: learn.callback_handler.callbacks.__setitem__(learn.callback_handler.callbacks.index(own(learn)[0]), new),
}

@pytest.mark.parametrize("change", CHANGES)
def test_a_callback_in_the_list_is_called_from_the_next_step_on(change):
    old, new = Counts(), Others()
    learn = make(old)
    learn.step(2)
    CHANGES[change](learn, new)
    learn.step(2)
    assert new.steps == [3, 4] and old.steps == ([1, 2] if change == "in place of another" else [1, 2, 3, 4])


REMOVALS = {
    "remove": lambda learn, old: learn.callback_handler.callbacks.remove(old),
    "del": lambda learn, old: learn.callback_handler.callbacks.__delitem__(learn.callback_handler.callbacks.index(old)),
    "assignment": lambda learn, old: setattr(learn.callback_handler, "callbacks", [c for c in learn.callback_handler.callbacks if c is not old]),
    "clear": lambda learn, old: learn.callback_handler.callbacks.clear(),
    "a list that was taken before": lambda learn, old: learn.held.remove(old),
}

@pytest.mark.parametrize("change", REMOVALS)
def test_a_callback_that_was_removed_from_the_list_is_not_called(change):
    old, other = Counts(), Others()
    learn = make(old, other)
    learn.held = learn.callback_handler.callbacks
    learn.step(2)
    learn.pop_callback(other)
    REMOVALS[change](learn, old)
    learn.step(2)
    assert (old.steps, other.steps) == ([1, 2], [1, 2])


def test_a_callback_that_changes_the_list_within_a_step():
    new = Others()
    class Adds(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 1: learn.callback_handler.callbacks.append(new)
    learn = make(Adds())
    learn.step(4)
    assert new.steps == [2, 3, 4]


def test_a_method_that_is_defined_later():
    "On the object, or on its class, by a cell."
    class Later(TrainerCallback):
        "Has no event yet."
    found = []
    learn = make(Later())
    learn.step(2)
    Later.on_step_end = lambda self, args, state, control, **kwargs: found.append(state.global_step)
    learn.step(1)
    callback = next(c for c in learn.callback_handler.callbacks if isinstance(c, Later))
    callback.on_step_begin = lambda args, state, control, **kwargs: found.append("begin")
    learn.step(1)
    assert found == [3, "begin", 4]


def test_a_second_callback_of_a_class_is_called_and_reported():
    "As in the Trainer: in the constructor, and by add_callback."
    first, second = Counts(), Counts("b")
    learn = make(first)
    message, = said(lambda: learn.add_callback(second))
    assert message == ("There are 2 callbacks of the class Counts, and each of them is called. learn.pop_callback(Counts) removes the first"
                       " one.")
    learn.step(2)
    assert first.steps == second.steps == [1, 2]
    assert said(lambda: learn.add_callback(Others)) == []
    assert len(said(lambda: make(Counts(), Counts("b")))) == 1 and said(lambda: make(Counts(), Others())) == []
    assert said(lambda: learn.branch()) == [] and [c.name for c in own(learn.branch())] == ["a", "b", "a"]


def test_a_list_that_is_changed_while_the_run_is_in_other_processes():
    "An error, which says what to type; the list is as before."
    learn = make(Counts())
    with learn.launch(1):
        learn.step(1)
        learn.callback_handler.callbacks.append(Others())
        with pytest.raises(InvalidOperation, match="learn.add_callback"): learn.step(1)
        learn.add_callback(Others())
        learn.step(1)
        learn.pop_callback(Others)
        learn.step(1)
    assert [c.steps for c in own(learn)] == [[1, 2, 3]]


def acts(learn): return [(e["kind"], e["data"]["callback"], e["step"]) for e in learn.history.events if e["kind"].endswith("callback")]


def test_changes_of_the_list_and_of_the_handler_are_in_the_journal():
    "Each once, and no callback of this package."
    old, new = Counts(), Others()
    learn = make(old)
    learn.step(2)
    learn.callback_handler.callbacks.append(new)
    learn.step(1)
    learn.callback_handler.remove_callback(old)
    learn.step(1)
    learn.add_callback(Counts)
    learn.pop_callback(Others)
    learn.step(1)
    learn.callback_handler.add_callback(Others)
    learn.add_callback(Counts)
    assert acts(learn) == [("add_callback", "Others", 2), ("remove_callback", "Counts", 3), ("add_callback", "Counts", 4), ("remove_callback", "Others", 4),
                           ("add_callback", "Others", 5), ("add_callback", "Counts", 5)]
    assert acts(make(Counts())) == []

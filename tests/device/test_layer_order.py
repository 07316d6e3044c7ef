"Processes that call different layers of a sharded model: an error within seconds, where torch would mix the weights of two layers, or wait."
import time

import pytest, torch

from trainer_nb import Learner, TrainerCallback
from trainer_nb.device.layer_order import BACKWARD, LayerOrder, describe_difference

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("launch")]


class Memory(dict):
    "A store that several threads of one process share."
    def set(self, key, value): self[key] = value
    def get(self, key): return self[key]
    def check(self, keys): return all(key in self for key in keys)


def orders(*calls, step=1):
    "The records of processes that have called these layers, and have not moved for a while."
    store, found = Memory(), []
    for rank, called in enumerate(calls):
        order = LayerOrder({n: torch.nn.Identity() for n in "abc"}, rank, len(calls), store)
        order._number = 0   # as in processes of their own
        for i in range(step): order.begin(first=True)
        order._called += called
        found.append(order)
    return found


def problems(found):
    try: return [order.find_problem() for _ in range(2) for order in found][-len(found):]
    finally:
        for order in found: order.release()


@pytest.mark.parametrize("calls, words", [
    (([0, 1], [0, 2]), ["rank 1 calls 'c' where rank 0 calls 'b'"]),
    (([0, 1, 2], [0, BACKWARD]), ["rank 1 begins the backward pass where rank 0 calls 'b'"]),
    (([0, 1, 2], [0, 1, 2], [0, 1, 1]), ["rank 2 calls 'b' where rank 0 calls 'c'"])])
def test_calls_that_contradict_each_other_are_named(calls, words):
    *_, last = problems(orders(*calls, step=3))
    assert words[0] in last and "in step 3" in last and "leave fsdp out" in last


@pytest.mark.parametrize("calls", [([0, 1, 2], [0, 1]), ([0, 1, 2], []), ([0, 1, BACKWARD], [0, 1, BACKWARD])])
def test_a_process_that_is_slower_is_no_error(calls): assert problems(orders(*calls)) == [""] * 2


def test_a_process_that_moves_writes_nothing():
    one, other = orders([0], [1])
    assert one.find_problem() == other.find_problem() == "" and not one._store   # the first look
    for order in (one, other): order._called.append(2)
    assert one.find_problem() == other.find_problem() == "" and not one._store
    problems([one, other])


def test_hooks_count_calls_within_steps_only():
    layers = {n: torch.nn.Identity() for n in "ab"}
    order = LayerOrder(layers, 0, 1, Memory())
    def call(): return [layer(torch.zeros(())) for layer in layers.values()]
    call()
    order.begin(first=True)
    call()
    order.backward()
    order.end()
    call()
    assert order._called == [0, 1, BACKWARD]
    order.release()
    order.begin(first=True)
    call()
    assert order._called == [] and describe_difference(1, (0, []), (1, []), "ab") == ""


class Branches(torch.nn.Module):
    "From its fourth call on, rank 1 calls another layer of the same size."
    _no_split_modules = ["Linear"]
    def __init__(self):
        super().__init__()
        self.inward, self.left, self.right, self.out = (torch.nn.Linear(4, 4) for _ in range(4))
        self.calls = 0

    def forward(self, x, labels):
        import os
        self.calls += 1
        hidden = self.inward(x)
        chosen = self.right if self.calls >= 4 and os.environ.get("RANK") == "1" else self.left
        return {"loss": torch.nn.functional.cross_entropy(self.out(hidden + chosen(hidden)), labels)}


class Slow(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs): time.sleep(0.2)


def test_layers_of_the_same_size_are_not_mixed_up(monkeypatch):
    "The messages fit, so nothing else would notice."
    monkeypatch.setattr(LayerOrder, "interval", 0.5)
    data = [{"x": torch.randn(4), "labels": torch.tensor(i % 3)} for i in range(64)]
    learn = Learner(Branches(), train_dataset=data, use_cpu=True, disable_tqdm=True, per_device_train_batch_size=4, max_steps=60, fsdp=True, callbacks=[Slow()])
    with learn.launch(2, start="fork"):
        learn.step(3)
        with pytest.raises(RuntimeError, match="rank [01] calls '(left|right)' where rank [01] calls '(left|right)'"): learn.run(steps=40)

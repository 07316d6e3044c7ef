"A data set that keeps a generator or a counter of its own goes back with the step that fails."
import pytest
import torch
from torch import nn
from torch.utils.data import Subset

from trainer_nb import Learner, differences
from toys import Boom

pytestmark = pytest.mark.usefixtures("one_thread")


class Counted(torch.utils.data.Dataset):
    "Examples with noise from a generator of the data set, and a counter."
    def __init__(self): self.count, self.generator = 0, torch.Generator().manual_seed(3)
    def __len__(self): return 12

    def __getitem__(self, i):
        self.count += 1
        x = torch.randn(4, generator=self.generator) + 0.01 * self.count
        if FAILS.pop(self.count, None): raise Boom(f"sample {self.count}")
        return {"x": x, "labels": torch.tensor(i % 3)}


class Plain(torch.utils.data.Dataset):
    "Examples, a constant, and a list of the fetches, which is no state."
    def __init__(self): self.n, self.fetched = 12, []
    def __len__(self): return self.n

    def __getitem__(self, i):
        self.fetched.append(i)
        return {"x": torch.full((4,), float(i)), "labels": torch.tensor(i % 3)}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x, labels=None):
        if FAILS.pop("forward", None): raise Boom("forward")
        logits = self.head(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


FAILS = {}   # outside of the run: no failed step takes it back


def learner(data=None, **given):
    torch.manual_seed(0)
    FAILS.clear()
    settings = dict(learning_rate=0.1, per_device_train_batch_size=2, gradient_accumulation_steps=2, num_train_epochs=2, disable_tqdm=True)
    return Learner(Net(), train_dataset=Counted() if data is None else data, **settings | given)


@pytest.mark.parametrize("where", [6, 8, "forward"])
@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: Subset(d, range(12))])
def test_a_step_that_fails_leaves_the_data_set_as_it_was(where, wrap):
    "A snapshot taken after the failure is the one taken before, and the run ends as an undisturbed one."
    like, learn = learner(wrap(Counted())), learner(wrap(Counted()))
    like.train()
    learn.step()
    before = learn.snapshot()
    FAILS[where] = True
    with pytest.raises(Boom): learn.step()
    assert not differences(before, learn.snapshot("after"))
    branch = learn.branch()
    learn.train()
    assert not differences(like.snapshot(), learn.snapshot())
    branch.train()
    assert not differences(like.snapshot(), branch.snapshot())
    learn.restore("after")
    learn.train()
    assert not differences(like.snapshot(), learn.snapshot())


def test_an_update_that_is_taken_back():
    "So does an optimizer that fails, where the step is taken back."
    learn = learner(rollback="full")
    learn.step()
    before, update = learn.snapshot(), learn.optimizer.step
    def fails(*args): raise Boom("update")
    learn.optimizer.step = fails
    with pytest.raises(Boom): learn.step()
    learn.optimizer.step = update
    assert not differences(before, learn.snapshot())


def test_data_without_state_is_fetched_once():
    "The micro-batches of a step that has failed stay."
    data = Plain()
    learn = learner(data)
    FAILS["forward"] = True
    with pytest.raises(Boom): learn.step()
    learn.step()
    assert len(data.fetched) == 4


def test_a_map_style_data_set_with_a_state_dict():
    "Its numbers and generators are state as those of others are."
    class Own(Counted):
        def state_dict(self): return {"count": self.count}
        def load_state_dict(self, state): self.count = state["count"]
    learn = learner(Own())
    learn.step()
    learn.snapshot("a")
    learn.step()
    learn.restore("a")
    assert learn.train_dataset.count == 4


def test_a_loader_that_is_read_anew_is_reported():
    "A loader that can only be read from the start of the epoch advances the generator again."
    class Loads(Learner):
        def get_train_dataloader(self):
            return Again(self.train_dataset)
    class Again:
        def __init__(self, dataset): self.dataset = dataset
        def __len__(self): return 6
        def __iter__(self):
            for i in range(6): yield torch.utils.data.default_collate([self.dataset[2 * i], self.dataset[2 * i + 1]])
    torch.manual_seed(0)
    learn = Loads(Net(), train_dataset=Counted(), learning_rate=0.1, num_train_epochs=2, disable_tqdm=True)
    learn.step(2)
    learn.snapshot("a")
    learn.step()
    with pytest.warns(UserWarning, match="train_dataset.generator is advanced as the loader is read"): learn.restore("a")

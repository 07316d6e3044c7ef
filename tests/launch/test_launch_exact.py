"""n processes with micro-batches of b train as one with n · b: to the last digits of double precision, over a hundred steps.

In single precision sums in another order differ in the sixth digit, and a wrong weight of a short batch could hide behind that. In double precision
nothing can: what is left after a hundred steps is a millionth of a millionth."""
import pytest, torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from trainer_nb import Learner

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("launch")]


class Tokens(torch.nn.Module):
    "Says the next token."
    def __init__(self):
        super().__init__()
        self.embed, self.inner, self.out = torch.nn.Embedding(20, 8), torch.nn.Linear(8, 16), torch.nn.Linear(16, 20)
    def forward(self, ids, labels=None): return {"logits": self.out(torch.tanh(self.inner(self.embed(ids))))}


def texts(n, seed):
    "Sequences of very different lengths: a batch of one process may have ten times the tokens of another's."
    made = torch.Generator().manual_seed(seed)
    rows = [torch.randint(20, (int(torch.randint(1, 40, (), generator=made)) if i % 3 else 1,), generator=made) for i in range(n)]
    return [{"ids": ids, "labels": torch.where(torch.rand(len(ids), generator=made) < 0.2, -100, (ids + 3) % 20)} for ids in rows]


def padded(rows): return {"ids": pad_sequence([r["ids"] for r in rows], batch_first=True), "labels": pad_sequence([r["labels"] for r in rows], batch_first=True, padding_value=-100)}


def per_token(outputs, labels, num_items_in_batch=None):
    "The mean over the tokens of the whole window, of all processes; in an evaluation, of the batch."
    tokens = num_items_in_batch if num_items_in_batch is not None else (labels != -100).sum()
    return cross_entropy(outputs["logits"].flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum") / tokens


def per_sample(logits, labels):
    "A loss that nobody divides by tokens: the mean over samples."
    each = cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100, reduction="none").sum(1)
    return each.mean() / 10


def right(p): return {"right": float((p.predictions.argmax(-1) == p.label_ids)[p.label_ids != -100].mean())}


def learner(size, loss, steps):
    torch.manual_seed(0)
    return Learner(Tokens().double(), train_dataset=texts(53, 0), eval_dataset=texts(23, 1), data_collator=padded, compute_metrics=right, **loss,
                   per_device_train_batch_size=size, per_device_eval_batch_size=3, gradient_accumulation_steps=3, max_steps=steps, learning_rate=1e-2, max_grad_norm=1.0,
                   use_cpu=True, disable_tqdm=True)


def measured(learn): return {k: v for k, v in learn.evaluate().items() if not k.endswith(("_runtime", "_per_second"))}


def compare(n, size, loss, steps):
    one, many = learner(n * size, loss, steps), learner(size, loss, steps)
    one.train()
    with many.launch(n):
        many.train()
        there = measured(many)
    assert there == measured(many)   # the very numbers, by whatever number of processes
    assert (one.history.column("samples") == many.history.column("samples")).all()
    for name in ("loss", "grad_norm"):
        torch.testing.assert_close(torch.tensor(one.history.column(name)), torch.tensor(many.history.column(name)), rtol=1e-6, atol=1e-7)
    for (name, a), b in zip(one.model.state_dict().items(), many.model.state_dict().values()): torch.testing.assert_close(a, b, rtol=0, atol=1e-9, msg=name)
    assert (one.model.out.weight - learner(size, loss, steps).model.out.weight).abs().mean() > 0.02   # and it has trained


def test_two_processes_are_one_with_the_batch_of_both():
    "With accumulation, and tokens that are divided very unevenly."
    compare(2, 2, {"compute_loss_func": per_token}, 100)


def test_a_loss_by_samples():
    compare(2, 2, {"loss_func": per_sample}, 20)


@pytest.mark.parametrize("loss", [{"compute_loss_func": per_token}, {"loss_func": per_sample}])
def test_four_processes(loss): compare(4, 1, loss, 100)

"""The loss of a step with several micro-batches: their mean, or a sum over labels that is divided by the number of labels of the step.

A loss that is trusted to divide by this number and does not makes the gradients as many times too large as there are micro-batches.
Clipping and Adam hide the size, so a warning has to tell."""
import warnings

import pytest
import torch
from torch import nn

from trainer_nb import Learner
from trainer_nb.engine import step

X = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > X[:, 1]).long()
cross_entropy = nn.functional.cross_entropy


class Rows(torch.utils.data.Dataset):
    def __len__(self): return 32
    def __getitem__(self, i): return {"x": X[i], "labels": Y[i]}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
    def forward(self, x, labels=None):
        logits = self.layer(x)
        return {"logits": logits} if labels is None else {"loss": cross_entropy(logits, labels), "logits": logits}


class Passes(Net):
    "Takes keyword arguments for another purpose."
    def forward(self, x, labels=None, **kwargs): return super().forward(x, labels)


class Divides(Net):
    "Divides by the number, in one of the usual ways."
    def number(self, items): return items
    def forward(self, x, labels=None, num_items_in_batch=None, **kwargs):
        out = super().forward(x, labels)
        if num_items_in_batch is not None:
            out["loss"] = cross_entropy(out["logits"], labels, reduction="sum") / self.number(num_items_in_batch)
        return out


class DividesByInt(Divides):
    def number(self, items): return int(items)


class DividesOnDevice(Divides):
    def number(self, items): return items.to(torch.float32).clamp(min=1) if torch.is_tensor(items) else items


class Declares(Passes):
    accepts_loss_kwargs = False


class Weighted(Learner):
    "An override that copies the signature of the Trainer."
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = cross_entropy(outputs["logits"], labels)
        return (loss, outputs) if return_outputs else loss


def mean(outputs, labels, num_items_in_batch=None): return cross_entropy(outputs["logits"], labels)
def divided(outputs, labels, num_items_in_batch=None):
    return cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch


def losses(model=Net, cls=Learner, steps=2, before=lambda learn: None, **given):
    "The losses and the norms of some steps, and the warnings."
    torch.manual_seed(0)
    settings = dict(per_device_train_batch_size=2, gradient_accumulation_steps=4, learning_rate=0.1, use_cpu=True, disable_tqdm=True) | given
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        learn = cls(model(), train_dataset=Rows(), **settings)
        before(learn)
        learn.step(steps)
    return [(r.loss, r.grad_norm) for r in learn.history], [str(w.message) for w in caught if "num_items_in_batch" in str(w.message)]


PLAIN = losses()[0]
WELL = {
    "the model": dict(model=Divides), "with an int": dict(model=DividesByInt), "after a conversion": dict(model=DividesOnDevice),
    "a function": dict(compute_loss_func=divided), "declared": dict(model=Declares),
    "assigned": dict(model=Passes, before=lambda learn: setattr(learn, "loss_is_scaled_for_ga", False)),
    "loss_func": dict(model=lambda: Logits(), loss_func=cross_entropy),
}


class Logits(Passes):
    "Returns logits, and takes keyword arguments."
    def forward(self, x, **kwargs): return self.layer(x)


@pytest.mark.parametrize("how", WELL)
def test_a_step_has_the_mean_loss(how):
    found, texts = losses(**WELL[how])
    assert texts == []
    assert [v for pair in found for v in pair] == pytest.approx([v for pair in PLAIN for v in pair], rel=1e-5)


BADLY = {
    "Passes.forward takes **kwargs, and does not": dict(model=Passes), "compute_loss does not": dict(model=Passes, cls=Weighted),
    "compute_loss_func does not": dict(compute_loss_func=mean),
}


@pytest.mark.parametrize("text", BADLY)
def test_a_number_of_labels_that_nothing_uses_is_told_once(text):
    "The numbers are the Trainer's; the sentence has the way to the mean."
    found, texts = losses(**BADLY[text])
    assert found[0][0] == pytest.approx(4 * PLAIN[0][0]) and len(texts) == 1
    assert texts[0].startswith(f"{text} use num_items_in_batch, so the losses of the 4 micro-batches")
    def repaired(learn): exec(texts[0].split("; ")[1].split(" makes")[0], {"learn": learn})
    found, texts = losses(**BADLY[text], before=repaired)
    assert texts == [] and found[0][0] == pytest.approx(PLAIN[0][0])


def test_it_is_told_when_accumulation_begins():
    def begin(learn): learn.step(2), learn.set(gradient_accumulation_steps=4)
    one, texts = losses(Passes, gradient_accumulation_steps=1)
    assert texts == []
    _, texts = losses(Passes, gradient_accumulation_steps=1, before=begin)
    assert len(texts) == 1


def test_the_number_that_is_watched_computes_the_same(monkeypatch):
    "In the first step it records its use; without it the same bits come out."
    watched = {how: losses(**WELL[how])[0] for how in ("the model", "with an int", "after a conversion", "a function")}
    monkeypatch.setattr(step, "watch_if_trusted", lambda learner, items: items)
    for how, found in watched.items():
        assert losses(**WELL[how])[0] == found


class Passing(Learner):
    "An override that calls the method of the base class."
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


class Counting(Learner):
    "An override that divides by the number of labels of the step."
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = cross_entropy(outputs["logits"], labels, reduction="sum") / (num_items_in_batch or len(labels))
        return (loss, outputs) if return_outputs else loss


# of two processes: how many times the loss of one process, and the beginning of the warning
LAUNCHED = {
    "the model divides": (dict(model=Divides), 1, None), "an int": (dict(model=DividesByInt), 1, None),
    "a function divides": (dict(compute_loss_func=divided), 1, None), "an override divides": (dict(model=Passes, cls=Counting), 1, None),
    "an override does not": (dict(model=Passes, cls=Weighted), 1, None), "loss_func": (dict(model=lambda: Logits(), loss_func=cross_entropy), 1, None),
    "the model does not": (dict(model=Passes), 2, "Passes.forward takes **kwargs, and does not use"),
    "an override calls it": (dict(model=Passes, cls=Passing), 2, "compute_loss does not use"),
    "a function does not": (dict(compute_loss_func=mean), 2, "compute_loss_func does not use"),
    "without the average": (dict(model=Passes, average_tokens_across_devices=False), 1, None),
}


@pytest.mark.parametrize("fsdp", [False, pytest.param(True, marks=pytest.mark.skipif(torch.__version__ < "2.13", reason="fsdp needs torch 2.13"))])
@pytest.mark.xdist_group("launch")
def test_the_loss_of_two_processes(fsdp, capfd):
    "The numbers are those of one process with the same batch, or the Trainer's with a warning, in what a process prints, that has the way to the mean."
    for how, (given, times, text) in LAUNCHED.items():
        given = dict(given)
        def run(size=2, **more):
            torch.manual_seed(0)
            settings = dict(per_device_train_batch_size=size, learning_rate=0.1, use_cpu=True, disable_tqdm=True, max_grad_norm=0) | more
            return given["cls"](given["model"](), train_dataset=Rows(), **settings, **{k: v for k, v in given.items() if k not in ("cls", "model")})
        given = {"cls": Learner, "model": Net} | given
        one = run(4)
        one.step(2)
        for repaired in (False, True)[:1 + (times > 1)]:
            two = run(**({"fsdp": True} if fsdp else {}))
            if repaired: two.loss_is_scaled_for_ga = False
            capfd.readouterr()
            with warnings.catch_warnings():
                # pytest would record them in the forks
                warnings.simplefilter("always")
                warnings.showwarning = lambda message, *rest: print("UserWarning:", message)
                with two.launch(2): two.step(1); two.step(1)
            printed = "".join(capfd.readouterr())
            texts = [line.split("UserWarning: ")[1] for line in printed.splitlines() if "UserWarning: " in line and "num_items_in_batch" in line]
            expected = 1 if repaired else times
            assert two.history[0].loss == pytest.approx(expected * one.history[0].loss, rel=1e-5), how
            assert two.history[0].grad_norm == pytest.approx(expected * one.history[0].grad_norm, rel=1e-4), how
            if expected == 1: assert texts == [] and two.history[1].loss == pytest.approx(one.history[1].loss, rel=1e-4), how
            else:
                assert len(texts) == 1 and texts[0].startswith(text), (how, texts)
                assert "multiplied by the number of processes, 2" in texts[0] and "loss_is_scaled_for_ga = False" in texts[0]


@pytest.mark.trainer
def test_a_classifier_of_transformers():
    "Its forward takes **kwargs, and its loss is a mean; the losses are the Trainer's."
    transformers = pytest.importorskip("transformers")
    class Words(torch.utils.data.Dataset):
        def __len__(self): return 32
        def __getitem__(self, i): return {"input_ids": torch.arange(i, i + 5), "labels": i % 3}
    def bert():
        torch.manual_seed(0)
        return transformers.BertForSequenceClassification(transformers.BertConfig(
            vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=3,
            hidden_dropout_prob=0, attention_probs_dropout_prob=0))
    settings = dict(per_device_train_batch_size=2, gradient_accumulation_steps=4, max_steps=2, logging_steps=1, use_cpu=True, disable_tqdm=True,
                    report_to=[], save_strategy="no", seed=1, data_seed=1)
    theirs = transformers.Trainer(bert(), transformers.TrainingArguments(**settings), train_dataset=Words())
    theirs.train()
    with pytest.warns(UserWarning, match="BertForSequenceClassification.forward takes .* does not use num_items_in_batch"):
        ours = Learner(bert(), train_dataset=Words(), **settings)
        ours.train()
    def logged(one): return [row["loss"] for row in one.state.log_history if "loss" in row]
    assert logged(ours) == pytest.approx(logged(theirs), rel=1e-5) and logged(ours)[0] > 4

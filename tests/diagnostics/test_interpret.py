"Looking at a model: the numbers are the learner's own, and the run does not notice."
import gc, random, weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from trainer_nb import Learner
from trainer_nb.diagnostics.interpret import Confusion, confusion
from trainer_nb.diagnostics.interpret import BatchPreview, decode_texts, show_batch
from trainer_nb.diagnostics.results import top_losses
from trainer_nb.engine.snapshot import capture_snapshot, differences


class Net(torch.nn.Module):
    "Dropout, running statistics, a buffer that every forward pass changes, and a part that is frozen in evaluation mode."
    not_state = ("asked",)
    def __init__(self, classes=5):
        super().__init__()
        self.frozen = torch.nn.BatchNorm1d(6).eval()
        self.body = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, classes))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.asked = 0
    def forward(self, x, labels=None):
        self.calls += 1
        self.asked += 1
        logits = self.body(self.frozen(x))
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Noisy(torch.utils.data.Dataset):
    "Augments at random, from each of the generators."
    def __init__(self, n): self.x, self.n = torch.randn(n, 6, generator=torch.Generator().manual_seed(n)), n
    def __len__(self): return self.n
    def __getitem__(self, i): return {"x": self.x[i] + 0.1 * torch.randn(6) + random.random() + np.random.rand(), "label": i % 5}


def make(train=None, evaluation=None, **settings):
    torch.manual_seed(0)
    model = settings.pop("model", None)
    return Learner(Net() if model is None else model, train_dataset=Noisy(50) if train is None else train, eval_dataset=Noisy(23) if evaluation is None else evaluation,
                   **dict(per_device_train_batch_size=8, num_train_epochs=2, learning_rate=0.01, use_cpu=True, disable_tqdm=True) | settings)


def fixed(n=23, classes=5, seed=1):
    "Examples that are the same each time."
    g = torch.Generator().manual_seed(seed)
    return [{"x": torch.randn(6, generator=g), "label": int(torch.randint(classes, (), generator=g))} for _ in range(n)]


def generators(): return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), np.random.get_state()[2:], random.getstate()


def alone(learn):
    "The slow way, with every example by itself."
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer_nb.diagnostics.results.formula_losses", lambda *given: None)
        top_losses(learn, 4)


LOOKS = {"show_batch": lambda m: show_batch(m), "show_batch of a set": lambda m: show_batch(m, 3, m.eval_dataset), "top_losses": lambda m: top_losses(m, 4),
         "top_losses alone": alone, "confusion": lambda m: confusion(m)}


# ---- without a trace

@pytest.mark.parametrize("workers", [0, 2])
def test_training_is_the_same_with_and_without(workers):
    how = dict(dataloader_num_workers=workers, gradient_accumulation_steps=2)
    plain, looked = make(**how), make(**how)
    plain.train()
    show_batch(looked)   # before anything was prepared
    for n in (1, 2, 99):
        if looked.state.global_step + n <= 8: looked.step(n)
        for look in LOOKS.values(): look(looked)
    looked.train()
    assert differences(plain.snapshot(), looked.snapshot()) == []
    assert list(plain.history.column("loss")) == list(looked.history.column("loss"))


@pytest.mark.parametrize("name", LOOKS)
def test_nothing_of_the_run_is_touched(name):
    learn = make()
    learn.step(2)
    learn.model.body[2].train(False)   # a mixture of modes
    run, modes = learn.run_state, [m.training for m in learn.model.modules()]
    before, drawn = capture_snapshot(run), generators()
    opened, place, rows = run.loader._iterator, run.loader._place, len(run.history)
    LOOKS[name](learn)
    assert differences(before, capture_snapshot(run)) == []
    assert [m.training for m in learn.model.modules()] == modes
    assert generators() == drawn
    assert run.loader._iterator is opened and run.loader._place == place and len(run.history) == rows
    assert all(p.grad is None for p in learn.model.parameters())


@pytest.mark.parametrize("look", [lambda m: top_losses(m), lambda m: confusion(m)], ids=["top_losses", "confusion"])
def test_an_error_leaves_no_trace_even_while_its_traceback_is_kept(look):
    learn = make(evaluation=fixed())
    learn.step(1)
    before, drawn, forward = capture_snapshot(learn.run_state), generators(), learn.model.forward
    modes = [m.training for m in learn.model.modules()]
    def fails(x, labels=None):
        learn.model.body(x)
        if len(x) < 8: raise RuntimeError("the last batch is bad")
        return forward(x, labels)
    learn.model.forward = fails
    with pytest.raises(RuntimeError, match="the last batch") as kept: look(learn)
    assert kept.value.__traceback__ is not None and [m.training for m in learn.model.modules()] == modes
    assert generators() == drawn
    del learn.model.forward
    assert differences(before, capture_snapshot(learn.run_state)) == []


def test_results_do_not_hold_the_learner():
    learn = make(evaluation=fixed())
    learn.step(1)
    results = [show_batch(learn), top_losses(learn, 3), confusion(learn)]
    model = weakref.ref(learn.model)
    learn = weakref.ref(learn)
    gc.collect()
    assert learn() is None and model() is None
    assert all(o._repr_html_() and repr(o) for o in results)


# ---- show_batch

class Keeps(Learner):
    def compute_loss(self, model, inputs, *args, **kwargs):
        if not hasattr(self, "first_inputs"): self.first_inputs = {k: v.clone() for k, v in inputs.items()}
        return super().compute_loss(model, inputs, *args, **kwargs)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_batch_is_the_one_that_the_model_is_fed_first(workers):
    learn = Keeps(Net(), train_dataset=Noisy(50), per_device_train_batch_size=8, dataloader_num_workers=workers, max_steps=9, use_cpu=True)
    early = show_batch(learn).batch
    learn.step(5)
    late = show_batch(learn).batch
    for batch in (early, late):
        assert all(torch.equal(batch[k], v) for k, v in learn.first_inputs.items()) and batch.keys() == learn.first_inputs.keys()


def test_workers_of_the_run_stay():
    learn = make(dataloader_num_workers=2, dataloader_persistent_workers=True)
    learn.step(1)
    workers = learn.run_state.loader.source._workers.running._workers
    show_batch(learn)
    assert learn.run_state.loader.source._workers.running._workers is workers and all(w.is_alive() for w in workers)
    assert learn.get_train_dataloader().num_workers == 2


def images(n=30, classes=None): return [{"x": torch.rand(1, 8, 8), "label": i % 3} for i in range(n)]


def test_images_with_names():
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"x": datasets.Array2D((8, 8), "float32"), "label": datasets.ClassLabel(names=["cat", "<b>", "owl"])})
    data = datasets.Dataset.from_dict({"x": [np.random.rand(8, 8).astype("float32") for _ in range(12)], "label": [1] * 12}, features=features).with_format("torch")
    shown = show_batch(make(train=data, model=Flat()), 4)
    html = shown._repr_html_()
    assert html.count("<img") == 4 and html.count("&lt;b&gt;") == 4 and "<b>" not in html
    assert "x  (8, 8, 8)  float32" in repr(shown)


class Flat(torch.nn.Module):
    def __init__(self): super().__init__(); self.body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
    def forward(self, x, labels=None):
        logits = self.body(x)
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Tokenizer:
    def pad(self, features, **kwargs): return {k: torch.tensor([f[k] for f in features]) for k in features[0]}
    def decode(self, ids, skip_special_tokens=False): return " ".join(f"<{i}>" for i in ids)


class Reads(torch.nn.Module):
    def __init__(self): super().__init__(); self.body = torch.nn.Embedding(9, 2)
    def forward(self, input_ids, labels):
        logits = self.body(input_ids).mean(1)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def test_tokens_are_shown_as_text():
    data = [{"input_ids": [i % 9, 1, 2], "label": i % 2} for i in range(12)]
    learn = make(train=data, evaluation=data, model=Reads(), processing_class=Tokenizer())
    assert "&lt;1&gt; &lt;2&gt;" in show_batch(learn, 2)._repr_html_()
    found = top_losses(learn, 2)
    assert found[0].text.endswith("<1> <2>") and "text" in found.frame() and "&lt;1&gt;" in found._repr_html_()


@pytest.mark.parametrize("batch", [torch.zeros(4, 3), (torch.zeros(4, 3), torch.zeros(4)), {"a": torch.zeros(4), "b": {"c": torch.zeros(4, 2)}, "d": ["x"]}, [torch.zeros(4, 3, 5, 5), torch.zeros(4, 1)],
                                   {"labels": torch.zeros(4, 5, 5)}, torch.tensor(1.0), {}])
def test_any_batch_shows_itself(batch):
    labels = batch["labels"] if isinstance(batch, dict) and "labels" in batch else None
    shown = BatchPreview(batch, labels)
    assert isinstance(repr(shown), str) and isinstance(shown._repr_html_(), str)


def test_tuples_and_a_loss_function():
    data = TensorDataset(torch.rand(20, 3, 8, 8), torch.randint(4, (20,)))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 4))
    learn = make(train=data, evaluation=data, model=model, loss_func=F.cross_entropy)
    assert show_batch(learn)._repr_html_().count("<img") == 8   # a batch has no more
    with torch.no_grad(): losses = F.cross_entropy(model(data.tensors[0]), data.tensors[1], reduction="none")
    assert top_losses(learn, 3).indexes == losses.argsort(descending=True)[:3].tolist()
    assert top_losses(learn)._repr_html_().count("<img") == 9 and confusion(learn).counts.sum() == 20


def test_a_loader_as_the_data_set():
    loader = DataLoader(fixed(40), batch_size=5, collate_fn=lambda fs: {"x": torch.stack([f["x"] for f in fs]), "labels": torch.tensor([f["label"] for f in fs])}, num_workers=2)
    assert len(show_batch(make(train=loader)).batch["labels"]) == 5 and loader.num_workers == 2


# ---- top_losses

def by_hand(learn, data):
    "The loss of each example, alone."
    learn.model.eval()
    losses = [learn.compute_loss(learn.model, {"x": o["x"][None], "labels": torch.tensor([o["label"]])}).item() for o in data]
    learn.model.train()
    learn.model.frozen.eval()
    return losses


@pytest.mark.parametrize("how", ["model's own", "smoothed", "weighted", "function"])
def test_losses_are_the_learners_own(how):
    data = fixed()
    def weighted(outputs, labels, num_items_in_batch=None): return (F.cross_entropy(outputs["logits"], labels, reduction="none") * (1 + 9 * (labels == 2))).mean()
    def plain(logits, labels): return F.cross_entropy(logits, labels)
    settings = {"model's own": {}, "smoothed": dict(label_smoothing_factor=0.2), "weighted": dict(compute_loss_func=weighted), "function": dict(loss_func=plain)}[how]
    learn = make(evaluation=data, **settings)
    learn.step(3)
    asked = learn.model.asked
    found = top_losses(learn, 7)
    asked = learn.model.asked - asked
    losses = np.array(by_hand(learn, data))
    np.testing.assert_allclose(found.losses, np.sort(losses)[::-1][:7], rtol=1e-5)
    assert found.indexes == np.argsort(-losses, kind="stable")[:7].tolist()
    if how in ("model's own", "function"): assert asked == 3   # batches
    for o in found:
        with torch.no_grad():
            learn.model.eval()
            logits = learn.model(data[o.index]["x"][None])["logits"][0]
        assert (o.target, o.predicted) == (data[o.index]["label"], int(logits.argmax()))
        assert o.probability == pytest.approx(logits.softmax(-1).max().item(), rel=1e-5)
        assert torch.equal(o.inputs["x"][0], data[o.index]["x"])


def test_a_formula_that_is_right_only_at_first_is_found_out():
    data = fixed(23)
    def late(outputs, labels, num_items_in_batch=None):   # the worst examples count twice
        losses = F.cross_entropy(outputs["logits"], labels, reduction="none")
        return torch.where(losses > 1.9, 2 * losses, losses).mean()
    learn = make(evaluation=data, compute_loss_func=late)
    losses = by_hand(learn, data)
    first = sorted(range(23), key=lambda i: losses[i])
    data[:] = [data[i] for i in first]    # the batches at the beginning are harmless
    assert max(losses) > 3.8 > 1.9 > sorted(losses)[3]
    assert top_losses(learn, 3).losses == pytest.approx(sorted(losses, reverse=True)[:3], rel=1e-5)


def test_what_is_not_a_number_comes_first():
    data = fixed(12)
    data[7]["x"] = torch.full((6,), float("nan"))
    found = top_losses(make(evaluation=data), 3)
    assert found.indexes[0] == 7 and np.isnan(found.losses[0]) and not np.isnan(found.losses[1])


def test_masked_examples_are_left_out():
    data = fixed(12)
    data[3]["label"] = -100
    assert 3 not in top_losses(make(evaluation=data), 12).indexes


class Line(torch.nn.Module):
    def __init__(self, out=1): super().__init__(); self.body = torch.nn.Linear(6, out)
    def forward(self, x, labels):
        y = self.body(x)
        return {"loss": F.mse_loss(y if labels.ndim > 1 else y[:, 0], labels), "logits": y}


@pytest.mark.parametrize("out", [1, 3])
def test_regression(out):
    g = torch.Generator().manual_seed(0)
    data = [{"x": torch.randn(6, generator=g), "label": torch.randn(out, generator=g) if out > 1 else torch.randn((), generator=g)} for _ in range(15)]
    learn = make(model=Line(out), train=data, evaluation=data)
    with torch.no_grad(): losses = (learn.model.body(torch.stack([o["x"] for o in data])) - torch.stack([o["label"] for o in data]).reshape(15, out)).square().mean(1)
    found = top_losses(learn, 4)
    assert found.losses == pytest.approx(losses.sort(descending=True)[0][:4].tolist(), rel=1e-5) and found[0].probability is None
    assert isinstance(found[0].target, float) == (out == 1) and found._repr_html_()
    with pytest.raises(ValueError, match="confusion is for classification"): confusion(learn)


class Stream(IterableDataset):
    def __init__(self, data): self.data = data
    def __iter__(self): return iter(self.data)


def test_streams_and_several_sets():
    data = fixed(11)
    learn = make(evaluation={"stream": Stream(data), "list": data})
    a, b = top_losses(learn, 4, "stream"), top_losses(learn, 4, "list")
    assert a.indexes == b.indexes == top_losses(learn, 4, data).indexes and a.losses == b.losses
    assert (confusion(learn, "stream").counts == confusion(learn, "list").counts).all()
    for look, name in ((top_losses, "top_losses"), (confusion, "confusion")):
        with pytest.raises(ValueError, match=rf"several evaluation sets; name one of them, for example {name}\(dataset='stream'\)"): look(learn)


def test_what_is_missing_is_said():
    for look, word in ((top_losses, "needs labels"), (confusion, "is for classification")):
        with pytest.raises(ValueError, match="eval_dataset="): look(Learner(Net(), train_dataset=fixed(), use_cpu=True))
        with pytest.raises(ValueError, match=word): look(make(evaluation=[{"x": o["x"]} for o in fixed()]))
    with pytest.raises(ValueError, match="compares samples"): top_losses(Learner(Net(), loss_func=lambda out, y: (out - out.mean(0)).abs().sum(), eval_dataset=fixed(), use_cpu=True))
    with pytest.raises(ValueError, match="train_dataset="): show_batch(Learner(Net(), use_cpu=True))


def test_a_model_that_fails_on_one_example_is_explained():
    class Contrasts(Net):
        def forward(self, x, labels=None):
            if len(x) == 1: raise RuntimeError("nothing to contrast with")
            return super().forward(x)
    with pytest.raises(RuntimeError, match="nothing to contrast with") as error: top_losses(make(model=Contrasts(), evaluation=fixed(), label_smoothing_factor=0.1))
    assert "batches of one" in error.value.__notes__[0]


# ---- confusion

def test_counts_are_right():
    metrics = pytest.importorskip("sklearn.metrics")
    data = fixed(200)
    learn = make(evaluation=data)
    learn.step(3)
    found, out = confusion(learn), learn.predict(data)
    guessed = out.predictions.argmax(-1)
    np.testing.assert_array_equal(found.counts, metrics.confusion_matrix(out.label_ids, guessed, labels=range(5)))
    assert found.accuracy == pytest.approx((guessed == out.label_ids).mean())
    pairs = found.most_confused()
    assert [p[2] for p in pairs] == sorted((p[2] for p in pairs), reverse=True) and sum(p[2] for p in pairs) == 200 - found.counts.trace()
    assert found.most_confused(min_count=10) == [p for p in pairs if p[2] >= 10] and all(type(p[2]) is int for p in pairs)


def test_confusion_shows_itself():
    few = Confusion([[5, 1], [2, 0]], ["cat", "<b>"])
    assert few.accuracy == 5 / 8 and "accuracy 0.625: 5 of 8 right" in repr(few)
    assert few.most_confused() == [("<b>", "cat", 2), ("cat", "<b>", 1)]
    assert "&lt;b&gt;" in few._repr_html_() and "<b>" not in few._repr_html_() and "actual" in few._repr_html_()
    many = Confusion(np.eye(100, dtype=int) * 3 + np.eye(100, k=1, dtype=int))
    assert many._repr_html_().count("<tr>") == 21 and "100 classes" in many._repr_html_() and len(repr(many).splitlines()) == 13
    assert Confusion(np.zeros((2, 2), int)).accuracy == 0 and Confusion([[1, 0], [0, 1]], ["only one"]).names == ["only one", "1"]


class Tags(torch.nn.Module):
    def __init__(self): super().__init__(); self.body = torch.nn.Embedding(9, 4)
    def forward(self, input_ids, labels):
        logits = self.body(input_ids)
        return {"loss": F.cross_entropy(logits.reshape(-1, 4), labels.reshape(-1)), "logits": logits}


def test_a_label_for_each_token():
    data = [{"input_ids": [1, 2, 3], "labels": [0, 1, -100]} for _ in range(10)]
    learn = make(model=Tags(), train=data, evaluation=data)
    assert confusion(learn).counts.sum() == 20
    assert len(top_losses(learn, 3)) == 3


def test_labels_out_of_range_are_named():
    class Careless(Net):
        def forward(self, x, labels): return {"loss": self.body(x).mean(), "logits": self.body(x)}
    with pytest.raises(ValueError, match="from 0 to 7, but the model has 5 outputs"): confusion(make(model=Careless(), evaluation=[{"x": torch.zeros(6), "label": i} for i in range(10)]))


def test_names_of_classes():
    class Vision(torch.utils.data.Dataset):
        classes, features = ["cat", "dog", "owl", "fox", "elk"], torch.zeros(3)
        def __len__(self): return 9
        def __getitem__(self, i): return fixed(9)[i]
    assert confusion(make(evaluation=Vision())).names == Vision.classes
    assert confusion(make(evaluation=Subset(Vision(), range(4)))).names == Vision.classes
    assert set(o.target for o in top_losses(make(evaluation=Vision()))) <= set(Vision.classes)
    assert confusion(make(evaluation=fixed())).names == list("01234")
    learn = make(evaluation=fixed())
    learn.model.config = type("Config", (), {"id2label": dict(enumerate("abcde"))})()
    assert confusion(learn).names == list("abcde")
    learn.model.config.id2label = {i: f"LABEL_{i}" for i in range(5)}
    assert confusion(learn).names == list("01234")


def test_texts_are_shown_without_their_padding():
    batch = {"input_ids": torch.tensor([[1, 2, 0, 0], [0, 0, 3, 4]]), "attention_mask": torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1]])}
    assert decode_texts(batch, Tokenizer(), 2) == ["<1> <2>", "<3> <4>"]
    assert decode_texts({"input_ids": batch["input_ids"]}, Tokenizer(), 1) == ["<1> <2> <0> <0>"]

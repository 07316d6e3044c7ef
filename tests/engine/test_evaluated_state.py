"""State that modules, losses, hooks and collators keep in attributes: an evaluation leaves it as it was, and keeps what it is
meant to leave."""
import types

import pytest
import torch
from torch import nn

from trainer_nb import Learner, TrainerCallback

pytestmark = pytest.mark.usefixtures("one_thread")


def data(n=64):
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(0))
    return [(a, (a[0] > a[1]).long()) for a in x]


class Carried(nn.Module):
    "A recurrent model that carries its hidden state along."
    def __init__(self):
        super().__init__()
        self.cell, self.out, self.hidden = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 2), None
    def forward(self, x):
        y, h = self.cell(x[:, None], None if self.hidden is None else self.hidden[:, :1].expand(-1, len(x), -1).contiguous())
        self.hidden = h.detach()
        return self.out(y[:, -1])


class Created(Carried):
    "The same, with a state that the first forward pass creates."
    def __init__(self):
        super().__init__()
        del self.hidden
    def forward(self, x):
        if not hasattr(self, "hidden"): self.hidden = None
        return super().forward(x)


class Noisy(nn.Module):
    "A model with a generator of its own."
    def __init__(self):
        super().__init__()
        self.out, self.rng = nn.Linear(4, 2), torch.Generator().manual_seed(1)
    def forward(self, x): return self.out(x + 0.1 * torch.randn(x.shape, generator=self.rng))


class Counting(nn.Module):
    "A model with a counter and a list."
    def __init__(self):
        super().__init__()
        self.out, self.calls, self.means = nn.Linear(4, 2), 0, []
    def forward(self, x):
        self.calls += 1
        self.means.append(float(x.mean()))
        return self.out(x) * (1 + 0.01 * self.calls + sum(self.means[-3:]))


class Inside(nn.Module):
    "A model that contains another one."
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
    def forward(self, x): return self.inner(x)


class Loss:
    "A loss with a counter and a running mean."
    def __init__(self): self.calls, self.mean = 0, torch.zeros(())
    def __call__(self, predictions, labels):
        self.calls += 1
        loss = nn.functional.cross_entropy(predictions, labels)
        self.mean = 0.9 * self.mean + 0.1 * loss.detach()
        return loss * (1 + 0.01 * self.calls) * (1 + self.mean)
    def method(self, predictions, labels): return self(predictions, labels)


class LossModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
    def forward(self, predictions, labels):
        self.calls += 1
        return nn.functional.cross_entropy(predictions, labels) * (1 + 0.01 * self.calls)


class Hook:
    "A forward hook with a counter and a generator."
    def __init__(self): self.calls, self.rng, self.seen = 0, torch.Generator().manual_seed(1), []
    def __call__(self, module, given, output):
        self.calls += 1
        self.seen.append(len(output))
        return output + 0.01 * self.calls + 0.1 * torch.randn(output.shape, generator=self.rng)
    def method(self, module, given): return (given[0] + 0.01 * self.calls + torch.randn(given[0].shape, generator=self.rng),)


class Collator:
    def __init__(self): self.calls = 0
    def __call__(self, samples):
        self.calls += 1
        return torch.stack([x for x, _ in samples]) * (1 + 0.01 * self.calls), torch.stack([y for _, y in samples])


def plain(): return nn.Linear(4, 2)

def hooked(kind):
    def make():
        model, hook = Inside(plain()), Hook()
        if kind == "hook": model.inner.register_forward_hook(hook)
        else: model.register_forward_pre_hook(hook.method)
        return model
    return make


class Drawing(Learner):
    "A generator in an override of compute_loss."
    def __init__(self, *a, **k):
        super().__init__(*a, **k)
        self.rng = torch.Generator().manual_seed(1)
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss, out = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        loss = loss * (1 + torch.rand((), generator=self.rng))
        return (loss, out) if return_outputs else loss


STATES = {
    "carried": (Carried, {}), "created": (Created, {}), "generator": (Noisy, {}), "counter": (Counting, {}),
    "inside": (lambda: Inside(Carried()), {}), "loss": (plain, {"loss_func": Loss}), "method": (plain, {"loss_func": lambda: Loss().method}),
    "loss module": (plain, {"loss_func": LossModule}), "hook": (hooked("hook"), {}), "pre-hook": (hooked("pre"), {}),
    "collator": (plain, {"data_collator": Collator}), "override": (plain, {"cls": lambda: Drawing})}


def learner(state, **given):
    torch.manual_seed(0)
    make, parts = STATES[state]
    parts = {k: f() for k, f in parts.items()}
    cls = parts.pop("cls", Learner)
    return cls(make(), **dict(dict(
        train_dataset=data(), eval_dataset=data(16), loss_func=nn.functional.cross_entropy, use_cpu=True, disable_tqdm=True,
        per_device_train_batch_size=8, per_device_eval_batch_size=8, num_train_epochs=2, learning_rate=0.05, report_to="none") | parts | given))


def weights(learn): return b"".join(p.detach().numpy().tobytes() for p in learn.model.parameters())


VERBS = {
    "evaluate": lambda learn: learn.evaluate(), "another set": lambda learn: learn.evaluate(data(24)),
    "predict": lambda learn: learn.predict(data(16)), "predict_one": lambda learn: learn.predict_one(data(1)[0]),
    "top_losses": lambda learn: learn.top_losses(2), "show_results": lambda learn: learn.show_results(2),
    "confusion": lambda learn: learn.confusion(), "summary": lambda learn: learn.summary(),
    "show_batch": lambda learn: learn.show_batch(), "inspect": lambda learn: learn.inspect()}


@pytest.mark.parametrize("steps", [0, 5])
@pytest.mark.parametrize("state", STATES)
def test_verbs_that_run_the_model_leave_its_attributes_as_they_were(state, steps):
    learn = learner(state)
    learn.train()
    expected = weights(learn)
    for name, verb in VERBS.items():
        learn = learner(state)
        if steps: learn.step(steps)
        verb(learn)
        learn.train()
        assert weights(learn) == expected, name


@pytest.mark.parametrize("state", STATES)
def test_a_run_with_evaluations_trains_as_one_without(state):
    runs = [learner(state, **given) for given in ({}, dict(eval_strategy="steps", eval_steps=3), dict(eval_strategy="epoch", eval_on_start=True))]
    for learn in runs: learn.train()
    assert len({weights(learn) for learn in runs}) == 1


class Failing(Carried):
    error = None
    def forward(self, x):
        out = super().forward(x)
        if not self.training and self.error is not None: raise self.error
        return out


@pytest.mark.parametrize("error", [ValueError("stop"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_an_evaluation_that_fails_leaves_the_attributes_as_they_were(error, monkeypatch):
    straight = learner("carried")
    straight.train()
    torch.manual_seed(0)
    monkeypatch.setitem(STATES, "failing", (Failing, {}))
    learn = learner("failing")
    learn.step(5)
    for verb in (learn.evaluate, lambda: learn.predict(data(16)), lambda: learn.predict_one(data(1)[0])):
        Failing.error = error
        with pytest.raises(BaseException): verb()
    Failing.error = None
    learn.train()
    assert weights(learn) == weights(straight)


# --- what an evaluation leaves -----------------------------------------------------------------------------------------

class Keeping(Learner):
    "Overrides that keep results in attributes."
    def evaluate(self, *args, **kwargs):
        self.calls = getattr(self, "calls", 0) + 1
        return super().evaluate(*args, **kwargs)
    def evaluation_loop(self, *args, **kwargs):
        self.last = super().evaluation_loop(*args, **kwargs)
        return self.last
    def prediction_step(self, *args, **kwargs):
        self.outputs = super().prediction_step(*args, **kwargs)
        return self.outputs
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss, out = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        if not model.training: self.parts = [*getattr(self, "parts", []), float(loss)]
        return (loss, out) if return_outputs else loss


class Metric:
    "A metric that counts its calls in all evaluations."
    def __init__(self): self.calls = 0
    def __call__(self, predictions, labels):
        self.calls += 1
        return 1.0


class Stored(TrainerCallback):
    def __init__(self): self.losses, self.last = [], None
    def on_evaluate(self, args, state, control, metrics, **kwargs):
        self.losses.append(metrics["eval_loss"])
        self.last = metrics["eval_loss"]


def test_overrides_metrics_and_callbacks_keep_what_an_evaluation_has_stored():
    metric, stored, computed = Metric(), Stored(), types.SimpleNamespace(calls=0)
    def compute(found):
        computed.calls += 1
        return {"n": len(found.label_ids)}
    learn = Keeping(plain(), train_dataset=data(), eval_dataset=data(16), loss_func=nn.functional.cross_entropy, use_cpu=True,
                    disable_tqdm=True, per_device_eval_batch_size=8, metrics={"one": metric}, compute_metrics=compute, callbacks=[stored])
    learn.step(1)
    learn.evaluate()
    assert learn.calls == 1 and learn.last.num_samples == 16 and learn.outputs[1].shape == (8, 2) and len(learn.parts) == 2
    assert metric.calls > 0 and computed.calls == 1 and stored.losses == [stored.last]
    learn.evaluate()
    assert learn.calls == 2 and len(learn.parts) == 4 and computed.calls == 2 and len(stored.losses) == 2


class ModuleMetric(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
    def forward(self, predictions, labels):
        self.calls += 1
        return 1.0


def test_a_metric_that_the_model_holds_keeps_its_state():
    model = Inside(plain())
    model.metric = ModuleMetric()
    learn = Learner(model, train_dataset=data(), eval_dataset=data(16), loss_func=nn.functional.cross_entropy, use_cpu=True, disable_tqdm=True,
                    metrics={"one": model.metric})
    learn.evaluate()
    assert model.metric.calls > 0


class Recording(nn.Module):
    "A model that keeps its last activations."
    not_state = ("last",)
    def __init__(self):
        super().__init__()
        self.out, self.sizes, self.last = nn.Linear(4, 2), [], None
    def forward(self, x):
        self.sizes.append(len(x))
        self.last = self.out(x)
        return self.last


def test_what_the_model_has_recorded_can_be_read():
    "By metrics and afterwards; it goes back when the run goes on, except the attributes that the class declares as no state."
    seen = []
    model = Recording()
    def compute(found):
        seen.append(list(model.sizes))
        return {"n": sum(model.sizes)}
    learn = Learner(model, train_dataset=data(), eval_dataset=data(16), loss_func=nn.functional.cross_entropy, use_cpu=True, disable_tqdm=True,
                    per_device_eval_batch_size=8, compute_metrics=compute)
    assert learn.evaluate()["eval_n"] == 16
    assert seen == [[8, 8]] and model.sizes == [8, 8] and model.last.shape == (8, 2)
    learn.predict(data(3))
    assert model.sizes == [3]
    learn.snapshot()
    assert model.sizes == [] and model.last.shape == (3, 2)


def test_a_hook_keeps_the_values_that_it_has_collected():
    model, hook = plain(), Hook()
    model.register_forward_hook(hook)
    learn = Learner(model, train_dataset=data(), loss_func=nn.functional.cross_entropy, use_cpu=True, disable_tqdm=True, per_device_eval_batch_size=8)
    learn.predict(data(16))
    assert hook.seen == [8, 8] and hook.calls == 2
    learn.step()
    assert hook.seen == [8, 8, 8] and hook.calls == 1


# --- between an evaluation and the next step ---------------------------------------------------------------------------

def test_an_attribute_that_is_assigned_after_an_evaluation_stays():
    learn = learner("counter")
    learn.step(2)
    learn.evaluate()
    learn.model.calls, means = 100, learn.model.means[:2]
    learn.evaluate()
    assert learn.model.calls == 102
    learn.step()
    assert learn.model.calls == 101 and learn.model.means[:2] == means and len(learn.model.means) == 3
    assert [row["what"] for row in learn.journal] == ["changed: model.calls"]


class Counts(Learner):
    "Counts in the model, and reads the counts after the evaluation."
    def prediction_step(self, model, inputs, prediction_loss_only, **kwargs):
        loss, logits, labels = super().prediction_step(model, inputs, False, **kwargs)
        model.right += int((logits.argmax(-1) == labels).sum())
        return loss, logits, labels
    def evaluate(self, *args, **kwargs):
        self.model.right = 0
        return super().evaluate(*args, **kwargs) | {"eval_right": self.model.right}


class Reads(TrainerCallback):
    def __init__(self): self.read = []
    def on_evaluate(self, args, state, control, model, **kwargs): self.read.append(model.right)


def test_an_override_and_a_callback_read_what_an_evaluation_has_counted():
    for settings in ({}, dict(eval_strategy="steps", eval_steps=3)):
        model, reads = plain(), Reads()
        model.right = 0
        learn = Counts(model, train_dataset=data(), eval_dataset=data(16), loss_func=nn.functional.cross_entropy, use_cpu=True, disable_tqdm=True,
                       per_device_eval_batch_size=8, callbacks=[reads], **settings)
        if settings: learn.step(6)
        else: assert learn.evaluate()["eval_right"] == model.right > 0
        assert len(reads.read) == (2 if settings else 1) and all(reads.read)


class Opened(nn.Module):
    "Opens a file at the first forward pass."
    def __init__(self):
        super().__init__()
        self.out, self.file = nn.Linear(4, 2), None
    def forward(self, x):
        if self.file is None: self.file = open(__file__)
        return self.out(x)


def test_what_an_evaluation_opens_stays_open():
    model = Opened()
    learn = Learner(model, train_dataset=data(), eval_dataset=data(16), loss_func=nn.functional.cross_entropy, use_cpu=True, disable_tqdm=True)
    learn.evaluate()
    file = model.file
    learn.step(2)
    assert model.file is file and not file.closed
    file.close()


def test_free_restores_and_holds_no_copies():
    learn = learner("counter")
    learn.step(2)
    learn.evaluate()
    assert learn.run_state.evaluation.evaluated is not None
    learn.free()
    assert learn.run_state.evaluation.evaluated is None and learn.model.calls == 2


@pytest.mark.parametrize("goes_on", ["branch", "restore", "rewind", "reset", "load_checkpoint", "train"])
def test_each_way_to_go_on_restores_first(goes_on, tmp_path):
    def made(): return learner("carried", output_dir=str(tmp_path), save_strategy="no")
    def run(evaluates):
        learn = made()
        learn.step(3)
        learn.snapshot("a")
        folder = learn.save_checkpoint(tmp_path/f"{evaluates}")
        learn.step(2)
        if goes_on == "train": learn.train()
        if evaluates: learn.evaluate()
        if goes_on == "branch": learn = learn.branch()
        if goes_on == "restore": learn.restore("a")
        if goes_on == "rewind": learn.rewind(1)
        if goes_on == "reset": learn.reset()
        if goes_on == "load_checkpoint": learn.load_checkpoint(folder)
        learn.train()
        return weights(learn)
    assert run(True) == run(False)

"The learner's verbs, as a user meets them."
import inspect, os, subprocess, sys
import numpy as np
from pathlib import Path
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from trainer_nb import Learner, InvalidOperation, TrainerCallback, TrainingArguments, differences, set_seed
from trainer_nb.core import history

torch.set_num_threads(1)


class Net(nn.Module):
    "Three groups of layers, BatchNorm and dropout; returns a dict."
    def __init__(self, classes=3):
        super().__init__()
        self.stem = nn.Linear(4, 8)
        self.body = nn.Sequential(nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 8))
        self.head = nn.Linear(8, classes)

    def forward(self, x, labels=None):
        logits = self.head(self.body(self.stem(x)))
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


def rows(n=50, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [{"x": torch.randn(4, generator=g), "labels": i % 3} for i in range(n)]


def accuracy(pred): return {"accuracy": (pred.predictions.argmax(-1) == pred.label_ids).mean()}


def make(model=None, **settings):
    set_seed(0)
    settings = {"train_dataset": rows(), "eval_dataset": rows(21, 1), "compute_metrics": accuracy, "learning_rate": 1e-2,
                "num_train_epochs": 2, "disable_tqdm": True, "use_cpu": True, **settings}
    return Learner(model if model is not None or "model_init" in settings else Net(), **settings)


# --- building -----------------------------------------------------------------------------------------------------------

def test_the_constructor_is_the_trainers():
    transformers = pytest.importorskip("transformers")
    theirs = list(inspect.signature(transformers.Trainer.__init__).parameters)
    ours = list(inspect.signature(Learner.__init__).parameters)
    assert ours[:len(theirs)] == theirs and ours[len(theirs):] == ["loss_func", "metrics", "settings"]
    assert inspect.signature(Learner.__init__).parameters["loss_func"].kind is inspect.Parameter.KEYWORD_ONLY


def test_building_prepares_nothing(tmp_path):
    script = f"""
import os, sys, torch
from trainer_nb import Learner
calls = []
def model_init(): calls.append(1); return torch.nn.Linear(2, 1)
learn = Learner(model_init=model_init, train_dataset=[(torch.zeros(2), torch.zeros(1))], loss_func=torch.nn.functional.mse_loss, output_dir={str(tmp_path / 'out')!r})
assert not calls and "accelerate" not in sys.modules and not torch.cuda.is_initialized() and not os.path.exists({str(tmp_path / 'out')!r})
assert learn.optimizer is None and learn.run_state.device is None
learn.step()
assert calls == [1] and "accelerate" in sys.modules and os.path.exists({str(tmp_path / 'out' / 'runs')!r})
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_keywords_go_over_a_copy_of_the_arguments():
    args = TrainingArguments(learning_rate=1e-3, max_steps=7)
    learn = make(args=args, learning_rate=1e-4)
    assert (learn.args.learning_rate, args.learning_rate) == (1e-4, 1e-3)


# --- what comes back ------------------------------------------------------------------------------------------------------

def test_train_returns_the_trainers_output():
    learn = make(eval_strategy="epoch")
    steps, loss, metrics = learn.train()
    assert steps == learn.state.global_step == 14 and metrics["epoch"] == 2.0
    assert loss == pytest.approx(np.mean(learn.history.column("loss")), rel=1e-12)
    assert [e["step"] for e in learn.state.log_history if "eval_accuracy" in e] == [7, 14]
    assert learn.state.log_history[-1]["train_loss"] == loss


def test_run_knows_when_to_stop():
    learn = make(num_train_epochs=6)
    assert len(learn.run(steps=3)) == 3
    assert learn.run(epochs=1)[-1].epoch == 1.0 and len(learn.history) == 7
    assert learn.run(epochs=2)[-1].step == 21
    assert len(learn.run(until=lambda rec: rec.step % 5 == 0)) == 4
    assert len(learn.run(steps=2, until=lambda rec: False)) == 2
    with pytest.raises(TypeError, match="until is a function"): learn.run(until=0.1)
    with pytest.raises(ValueError, match="epochs"): learn.run(epochs=0)
    learn.run(epochs=0.5)
    learn.train()
    for verb in (learn.step, learn.run, learn.steps, learn.debug_step):
        with pytest.raises(InvalidOperation, match="max_steps"): verb()


def test_a_finished_run_is_prolonged_or_followed():
    learn = make()
    learn.train()
    learn.set(num_train_epochs=3)
    assert learn.state.max_steps == 21 and learn.train().global_step == 21
    weights, first_id = [p.clone() for p in learn.model.parameters()], learn.history.run_id
    assert learn.train().global_step == 21 and learn.history.parent == first_id and len(learn.history) == 21
    assert not all(torch.equal(p, q) for p, q in zip(weights, learn.model.parameters()))


def test_pause_returns_normally():
    class Pauses(TrainerCallback):
        not_state = ("heard",)
        def __init__(self): self.heard = []
        def on_step_end(self, args, state, control, learner, **kwargs):
            if state.global_step == 4: learner.pause()
        def on_pause(self, args, state, control, **kwargs): self.heard.append("pause")
        def on_resume(self, args, state, control, **kwargs): self.heard.append("resume")
    pauses = Pauses()
    learn = make(callbacks=[pauses])
    assert learn.train().global_step == 4 and pauses.heard == ["pause"]
    assert learn.train().global_step == 14 and pauses.heard == ["pause", "resume"]


# --- evaluating -----------------------------------------------------------------------------------------------------------

def test_evaluate_and_predict():
    learn = make()
    learn.step()
    metrics = learn.evaluate()
    assert {"eval_loss", "eval_accuracy", "eval_runtime", "eval_samples_per_second", "epoch"} <= set(metrics)
    out = learn.predict(rows(13, 2))
    assert out.predictions.shape == (13, 3) and out.label_ids.tolist() == [i % 3 for i in range(13)] and "test_accuracy" in out.metrics
    no_labels = learn.predict([{"x": r["x"]} for r in rows(5)])
    assert no_labels.predictions.shape == (5, 3) and no_labels.label_ids is None and "test_loss" not in no_labels.metrics
    both = learn.evaluate({"a": rows(8, 3), "b": rows(9, 4)})
    assert {"eval_a_loss", "eval_b_accuracy"} <= set(both)
    assert learn.evaluate(rows(8, 3))["eval_loss"] == both["eval_a_loss"]


def test_loss_func_on_tuples_dicts_and_tensors():
    class Plain(nn.Module):
        def __init__(self): super().__init__(); self.layer = nn.Linear(4, 3)
        def forward(self, x): return self.layer(x)
    pairs = [(r["x"], r["labels"]) for r in rows()]
    a = make(model_init=Plain, train_dataset=pairs, eval_dataset=pairs, loss_func=F.cross_entropy)
    b = make(model_init=Plain, train_dataset=rows(), eval_dataset=rows(), loss_func=F.cross_entropy)
    assert a.train().training_loss == b.train().training_loss and a.evaluate()["eval_loss"] == b.evaluate()["eval_loss"]
    auto = make(nn.Linear(4, 4), train_dataset=[r["x"] for r in rows()], eval_dataset=[r["x"] for r in rows()], loss_func=F.mse_loss, compute_metrics=None)
    before = auto.evaluate()["eval_loss"]
    auto.train()
    assert auto.evaluate()["eval_loss"] < before


# --- changing -------------------------------------------------------------------------------------------------------------

def test_a_learner_cannot_be_copied():
    import copy, pickle
    learn = make()
    learn.step()
    for act in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"cannot be copied or pickled.*learn.snapshot\(\)"): act(learn)


def test_freeze_refuses_to_freeze_nothing():
    learn = Learner(torch.nn.Sequential(torch.nn.Linear(4, 3)), use_cpu=True)
    with pytest.raises(ValueError, match="there is only one, '0'.*layer_groups="): learn.freeze()
    assert all(p.requires_grad for p in learn.model.parameters())


def test_layer_groups_have_their_own_rates_and_freeze():
    learn = make(layer_groups=["body", "head"], learning_rate=[1e-4, 1e-3, 1e-2], lr_scheduler_type="constant")
    learn.step()
    assert {g["lr"] for g in learn.optimizer.param_groups} == {1e-4, 1e-3, 1e-2}
    learn.set(lr=1e-3)
    assert [g["lr"] for g in learn.optimizer.param_groups] == pytest.approx([1e-3, 1e-2, 1e-1])
    learn.freeze()
    stem, head = learn.model.stem.weight.clone(), learn.model.head.weight.clone()
    learn.step(2)
    assert torch.equal(stem, learn.model.stem.weight) and not torch.equal(head, learn.model.head.weight)
    learn.unfreeze("rest")
    learn.step()
    assert not torch.equal(stem, learn.model.stem.weight)
    with pytest.raises(ValueError, match="Did you mean 'head'"): learn.freeze("heads")


def test_weight_decay_set_later_spares_biases():
    learn = make(learning_rate=1e-1, lr_scheduler_type="constant")
    learn.step()
    learn.set(weight_decay=0.5)
    decaying = {id(p) for g in learn.optimizer.param_groups if g["weight_decay"] for p in g["params"]}
    assert {n for n, p in learn.model.named_parameters() if id(p) in decaying} == {"stem.weight", "body.0.weight", "body.3.weight", "head.weight"}
    learn.train()


def test_set_says_what_it_did():
    learn = make()
    learn.step()
    changes = learn.set(lr=1e-3, logging_steps=2)
    assert "lr" in repr(changes) and "<table" in changes._repr_html_() and learn.state.logging_steps == 2
    assert "max_grad_norm" in repr(learn.set())
    assert learn.history.events[-1]["kind"] == "set"
    for wrong, word in (({"seed": 1}, "cannot be changed"), ({"lerning_rate": 1}, "Did you mean"), ({"lr": 1e-3, "learning_rate": 1e-3}, "lr and learning_rate are different settings"),
                        ({"weight_decay": -1.0}, "weight_decay"), ({"weight_decay": 0.1, "max_steps": 30, "lr": "x"}, "lr")):
        with pytest.raises((ValueError, TypeError), match=word): learn.set(**wrong)
    assert learn.args.weight_decay == 0.0 and learn.state.max_steps == 14 and len(learn.optimizer.param_groups) == 2
    plain = make()
    plain.step()
    plain.set(lr=1e-3)
    assert learn.train().training_loss == plain.train().training_loss


def test_summary():
    learn = make()
    shown = learn.summary()
    assert [r["layer"] for r in shown] == ["stem", "body.0", "body.3", "head"] and shown[0]["output"] == (8, 8)
    assert "parameters" in repr(shown) and "<table" in shown._repr_html_() and learn.state.global_step == 0
    parts = type("Parts", (Learner,), {"compute_loss": lambda self, model, inputs, **_: model["a"](inputs["x"]).mean()})
    assert parts(nn.ModuleDict({"a": nn.Linear(8, 1)}), train_dataset=rows(), use_cpu=True).summary().title == "9 parameters, 9 of them trainable"


def test_snapshots_by_name():
    learn = make()
    learn.step(3)
    a = learn.snapshot("a")
    learn.step(4)
    b = learn.snapshot()
    learn.restore("a")
    assert differences(a, learn.snapshot()) == [] and learn.state.global_step == 3
    learn.step(4)
    assert differences(b, learn.snapshot()) == []
    assert learn.history.column("step").tolist() == [1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7] and learn.history.column("abandoned").tolist() == [0] * 3 + [1] * 4 + [0] * 4
    with pytest.raises(KeyError, match="Did you mean 'a'|there are: 'a'"): learn.restore("b")


# --- keeping --------------------------------------------------------------------------------------------------------------

def test_the_log_on_disk_is_the_history(tmp_path):
    learn = make(output_dir=str(tmp_path), run_name="mine")
    learn.step(3)
    learn.log({"mine": 1.5})
    learn.train()
    learn.history.flush()
    read = history.read_history(tmp_path)
    assert read.run_id == learn.history.run_id and read.name == "mine"
    assert all(np.array_equal(read.column(c), learn.history.column(c)) for c in ("step", "loss", "learning_rate", "grad_norm"))
    assert any(e["kind"] == "log" and e["data"].get("mine") == 1.5 for e in read.events)


def test_nothing_is_written_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make().train()
    assert os.listdir(tmp_path) == []


def test_save_model(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    from safetensors.torch import load_file
    learn = make()
    learn.step()
    learn.save_model(tmp_path / "plain")
    assert torch.equal(load_file(tmp_path / "plain" / "model.safetensors")["head.weight"], learn.model.head.weight)
    config = transformers.BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, num_labels=3)
    model = transformers.BertForSequenceClassification(config)
    data = [{"input_ids": [1, 2, 3], "labels": i % 3} for i in range(16)]
    bert = make(model, train_dataset=data, eval_dataset=data)
    bert.train()
    bert.save_model(tmp_path / "bert")
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "bert")
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), again.parameters()))
    monkeypatch.chdir(tmp_path)
    assert learn.save_model() == Path("trainer_output") and (tmp_path / "trainer_output" / "model.safetensors").is_file()


def test_free_lets_go_and_can_begin_again():
    learn = make()
    learn.train()
    learn.free()
    assert learn.optimizer is None and learn.lr_scheduler is None and all(p.grad is None for p in learn.model.parameters())
    assert learn.train().global_step == 14


def test_callbacks_come_and_go():
    class Counts(TrainerCallback):
        def __init__(self): self.n = 0
        def on_step_end(self, args, state, control, **kwargs):
            self.n += 1
            assert {"model", "processing_class", "optimizer", "lr_scheduler", "train_dataloader", "eval_dataloader", "learner"} <= set(kwargs)
    learn, counts = make(), Counts()
    learn.step()
    learn.add_callback(counts)
    learn.step(2)
    assert learn.pop_callback(Counts) is counts
    learn.step()
    assert counts.n == 2


def test_importing_is_quick_and_light():
    script = "import sys, trainer_nb; print([m for m in ('accelerate', 'datasets', 'pandas', 'plotly', 'ipywidgets', 'IPython', 'transformers', 'torch._dynamo', 'nbdev', 'fastcore') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip() == "[]"


# --- parts that are replaced, or are not what they should be --------------------------------------------------------------

def test_another_model_before_the_first_step_is_the_one_that_trains():
    learn, other = make(), Net()
    learn.evaluate()
    learn.model = other
    before = other.head.weight.clone()
    assert learn.step().grad_norm[0] > 0 and not torch.equal(before, other.head.weight) and learn.model is other
    for name, thing in (("model", Net()), ("optimizer", torch.optim.SGD(other.parameters(), lr=1.0)), ("lr_scheduler", None)):
        with pytest.raises(InvalidOperation, match=f"{name} of a run that has begun"): setattr(learn, name, thing)


def test_another_data_set_counts_from_the_next_step():
    learn = make(num_train_epochs=1)
    learn.step()
    learn.train_dataset = rows(200, 5)
    assert learn.train().global_step == 25


def test_an_optimizer_for_another_model_is_refused():
    learn = make(optimizers=(torch.optim.SGD(Net().parameters(), lr=0.1), None))
    with pytest.raises(ValueError, match="none of this model's parameters"): learn.step()
    lbfgs = make(Net())
    lbfgs.optimizers = (torch.optim.LBFGS(lbfgs.model.parameters()), None)
    with pytest.raises(ValueError, match="LBFGS"): lbfgs.step()
    model = Net()
    with pytest.warns(UserWarning, match="learning_rate has no effect"): make(model, optimizers=(torch.optim.SGD(model.parameters(), lr=0.1), None)).step()


def test_a_snapshot_of_an_earlier_run_has_its_own_history():
    learn = make()
    learn.step(3)
    a, first = learn.snapshot(), learn.history.run_id
    learn.train(), learn.train()
    learn.restore(a)
    assert len(learn.history) == 0 and learn.history.parent == first and learn.step()[0].step == 4


def test_reset_after_two_runs_and_after_free():
    learn = make()
    first = [p.clone() for p in learn.model.parameters()]
    learn.train(), learn.train()
    old = learn.history
    learn.reset()
    assert all(torch.equal(p, q) for p, q in zip(first, learn.model.parameters()))
    assert len(old.frame()) == 14 and learn.history.events[0]["kind"] == "reset"
    learn.set(max_grad_norm=0.5)
    learn.reset()
    assert learn.args.max_grad_norm == 0.5
    learn.train()
    learn.free()
    with pytest.raises(InvalidOperation, match=r"free\(\) has released them"): learn.reset()


def test_embeddings_that_renormalise_are_put_back():
    class Words(nn.Module):
        def __init__(self): super().__init__(); self.emb, self.fail = nn.Embedding(10, 4, max_norm=0.5), False
        def forward(self, ids, labels=None):
            out = self.emb(ids)
            if self.fail: raise RuntimeError("late")
            return {"loss": out.pow(2).mean(), "logits": out}
    data = [{"ids": torch.tensor([i % 10]), "labels": 0} for i in range(20)]
    learn = make(Words(), train_dataset=data, eval_dataset=data, compute_metrics=None)
    before, learn.model.fail = learn.model.emb.weight.clone(), True
    with pytest.raises(RuntimeError, match="late"): learn.step()
    learn.model.fail = False
    learn.evaluate()
    assert torch.equal(before, learn.model.emb.weight)


def test_wrapped_models_say_what_they_take():
    compiled = make(torch.compile(Net(), backend="eager"))
    assert compiled.label_names == ["labels"] and not compiled.model_accepts_loss_kwargs and compiled.step()[0].step == 1


def test_logged_tensors_hold_no_graph():
    class Logs(Learner):
        def compute_loss(self, model, inputs, **kwargs):
            loss = super().compute_loss(model, inputs, **kwargs)
            self.log({"mine": loss})
            return loss
    learn = Logs(Net(), train_dataset=rows(), use_cpu=True, disable_tqdm=True)
    learn.step()
    assert isinstance(learn.state.log_history[0]["mine"], float)


def test_an_unwritable_folder_is_said_once(tmp_path, recwarn):
    (tmp_path / "file").write_text("")
    learn = make(output_dir=str(tmp_path / "file"))
    learn.step(), learn.step()
    assert sum("file" in str(w.message) for w in recwarn) == 1


def test_full_determinism_asks_torch_for_it():
    script = ("import torch; from trainer_nb import Learner; "
              "learn = Learner(torch.nn.Linear(2, 1), train_dataset=[(torch.zeros(2), torch.zeros(1))], loss_func=torch.nn.functional.mse_loss, full_determinism=True, use_cpu=True); "
              "assert not torch.are_deterministic_algorithms_enabled(); learn.step(); assert torch.are_deterministic_algorithms_enabled()")
    subprocess.run([sys.executable, "-c", script], check=True)


def test_what_was_due_at_the_end_is_done_by_any_verb():
    "A callback that fails at the end of training: the run is finished, and the rest of that end is still to be told."
    class Fails(TrainerCallback):
        order = -50
        def on_train_end(self, args, state, control, **kwargs): raise ValueError("the disk is full")
    class Hears(TrainerCallback):
        told = 0
        def on_train_end(self, args, state, control, **kwargs): self.told += 1
    fails, hears = Fails(), Hears()
    x = torch.randn(8, 2)
    learn = Learner(torch.nn.Linear(2, 1), train_dataset=torch.utils.data.TensorDataset(x, x[:, :1]), loss_func=torch.nn.functional.mse_loss, use_cpu=True,
                    num_train_epochs=1, callbacks=[fails, hears], disable_tqdm=True)
    with pytest.raises(ValueError, match="disk is full"): learn.train()
    assert learn.run_state.finished and learn.run_state.due
    assert learn.run(steps=1) == [] and hears.told == 1
    with pytest.raises(InvalidOperation, match="nothing to do"): learn.run(steps=1)

"Mistakes of people who come from the Trainer, fastai or plain torch: one sentence with the cause and what to type, and the run can go on."
import functools
import inspect
import re
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

import trainer_nb
from toys import hard_learner
from trainer_nb import DataCollatorWithPadding, EarlyStoppingCallback, Learner, TrainerCallback, TrainingArguments, compare, set_seed
from trainer_nb.core.errors import find_hints
from trainer_nb.tune.lr_finder import LRFindResult


pytestmark = pytest.mark.usefixtures("one_thread")


class Net(nn.Module):
    def __init__(self): super().__init__(); self.layer = nn.Linear(4, 3)
    def forward(self, x, labels=None):
        logits = self.layer(x)
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


FOUND = LRFindResult([1e-4, 1e-3, 1e-2], [1.0, 0.9, 0.8], 3, False)
X, Y = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3
ROWS = [{"x": x, "labels": int(y)} for x, y in zip(X, Y)]


def learner(model=None, data=ROWS, cls=Learner, **given):
    return cls(Net() if model is None else model, train_dataset=data, **{"use_cpu": True, "disable_tqdm": True} | given)


def plain(model=None, data=None, **given):
    "A model that returns its output alone, and pairs."
    return learner(model or nn.Linear(4, 3), TensorDataset(X, Y) if data is None else data, **{"loss_func": F.cross_entropy} | given)


def is_one_sentence(text): return len(text) < 330 and text[-1] in ".?" and "\n" not in text and "  " not in text


def refused(mistake, kind, words):
    with pytest.raises(kind, match=words) as raised: mistake()
    text = str(raised.value.args[0])
    assert is_one_sentence(text), text
    return text


# --- names and types of arguments ---------------------------------------------------------------------------------------

MADE = {
    "folder": (lambda: Learner(Net(), "out"), TypeError, "the path 'out'.*output_dir='out'"),
    "path": (lambda: Learner(Net(), Path("out")), TypeError, "the path 'out'.*output_dir='out'"),
    "data": (lambda: Learner(Net(), ROWS), TypeError, "args is of type list.*train_dataset="),
    "optimizer": (lambda: Learner(Net(), torch.optim.SGD(Net().parameters(), lr=1)), TypeError, r"optimizers=\(optimizer, None\)"),
    "order": (lambda: Learner(ROWS, Net()), TypeError, r"the model is the first argument"),
    "val_dataset": (lambda: learner(val_dataset=ROWS), TypeError, "called `eval_dataset`"),
    "train_datset": (lambda: Learner(Net(), train_datset=ROWS), TypeError, "Did you mean 'train_dataset'"),
    "device": (lambda: learner(device="cuda"), TypeError, "use_cpu=True"),
    "precision": (lambda: learner(precision=16), TypeError, "bf16=True"),
    "n_epochs": (lambda: learner(n_epochs=3), TypeError, "called `num_train_epochs`"),
}


@pytest.mark.parametrize("what", MADE)
def test_refused_when_made(what): refused(*MADE[what])


CALLS = {
    "train(epochs)": (lambda learn: learn.train(epochs=5), TypeError, r"train\(\) has no argument 'epochs'.*learn.run\(epochs=5\).*learn.set\(num_train_epochs=5\)"),
    "train(n)": (lambda learn: learn.train(5), ValueError, r"not from 5. learn.run\(epochs=5\).*learn.set\(num_train_epochs=5\)"),
    "train(max_steps)": (lambda learn: learn.train(max_steps=5), TypeError, r"learn.run\(steps=5\)"),
    "train(lr)": (lambda learn: learn.train(lr=0.1), TypeError, r"learn.set\(lr=0.1\)"),
    "step(steps)": (lambda learn: learn.step(steps=5), TypeError, r"step\(\) has no argument 'steps'; it is called 'n'"),
    "step twice": (lambda learn: learn.step(1, 2), TypeError, r"at most 1 argument \(n\), and 2 were given"),
    "run(n)": (lambda learn: learn.run(n=5), TypeError, "it is called 'steps'"),
    "run(epoch)": (lambda learn: learn.run(epoch=5), TypeError, "it is called 'epochs'"),
    "start(wait)": (lambda learn: learn.start(wait=True), TypeError, "no argument 'wait'; it takes steps, epochs, until"),
    "steps(5)": (lambda learn: learn.steps(5), TypeError, r"learn.run\(steps=5\)"),
    "debug_step(5)": (lambda learn: learn.debug_step(5), TypeError, "takes no arguments, and was given 5"),
    "set(1)": (lambda learn: learn.set(1e-3), TypeError, r"by name, such as learn.set\(lr="),
    "set(bs)": (lambda learn: learn.set(bs=3), TypeError, "it is called 'per_device_train_batch_size'"),
    "restore()": (lambda learn: learn.restore(), TypeError, r"restore\(\) needs 'snapshot'"),
    "rewind(steps)": (lambda learn: learn.rewind(steps=1), TypeError, "it is called 'n'"),
    "freeze(eval)": (lambda learn: learn.freeze(eval=True), TypeError, "Did you mean 'eval_mode'"),
    "evaluate(dataset)": (lambda learn: learn.evaluate(dataset=ROWS), TypeError, "it is called 'eval_dataset'"),
    "evaluate(keys)": (lambda learn: learn.evaluate(ROWS, "logits"), TypeError, "ignore_keys='logits', of type str; it should be a list or None"),
    "predict()": (lambda learn: learn.predict(), TypeError, "needs 'test_dataset'"),
    "predict(X, Y)": (lambda learn: learn.predict(X, Y), TypeError, "ignore_keys=tensor.*of type Tensor"),
    "lr_find(mode)": (lambda learn: learn.lr_find("linear"), TypeError, "start='linear', of type str; it should be a number. Did you mean mode='linear'"),
    "lr_find(start_lr)": (lambda learn: learn.lr_find(start_lr=1e-5), TypeError, "it is called 'start'"),
    "lr_find(num_it)": (lambda learn: learn.lr_find(num_it=50), TypeError, "it is called 'num_steps'"),
    "lr_find(show_plot)": (lambda learn: learn.lr_find(show_plot=True), TypeError, "the result draws itself"),
    "lr_find(end)": (lambda learn: learn.lr_find(end="10"), TypeError, "end='10', of type str; it should be a number"),
    "lr_find(suggest)": (lambda learn: learn.lr_find(suggest=3), TypeError, "suggest=3, of type int"),
    "lr_find(stop_factor)": (lambda learn: learn.lr_find(stop_factor="4"), TypeError, "stop_factor='4', of type str; it should be a number or None"),
    "watch(what)": (lambda learn: learn.watch("output"), TypeError, "Did you mean what='output'"),
    "watch(layers)": (lambda learn: learn.watch(layers=3), TypeError, "layers=3, of type int"),
    "top_losses(data)": (lambda learn: learn.top_losses(ROWS), TypeError, r"k=\[.*Did you mean dataset=\.\.\."),
    "top_losses(n)": (lambda learn: learn.top_losses(n=3), TypeError, "it is called 'k'"),
    "show_batch('3')": (lambda learn: learn.show_batch("3"), TypeError, "n='3', of type str; it should be a whole number"),
    "most_confused": (lambda learn: learn.most_confused("a"), TypeError, "min_count='a'"),
    "plot(smoothing)": (lambda learn: learn.plot(smoothing=0.5), TypeError, "Did you mean 'smooth'"),
    "plot(smooth)": (lambda learn: learn.plot(smooth="a"), TypeError, "smooth='a', of type str"),
    "search(n_trials)": (lambda learn: learn.hyperparameter_search(n_trials="3"), TypeError, "n_trials='3', of type str"),
    "search(hp_space)": (lambda learn: learn.hyperparameter_search({"learning_rate": 1}), TypeError, "hp_space=.*it should be a function"),
    "snapshot(5)": (lambda learn: learn.snapshot(5), TypeError, "name=5, of type int; it should be text or None"),
    "save_model(5)": (lambda learn: learn.save_model(5), TypeError, "output_dir=5, of type int; it should be text or a path or None"),
    "save_checkpoint(5)": (lambda learn: learn.save_checkpoint(5), TypeError, "output_dir=5"),
    "export_script(None)": (lambda learn: learn.export_script(None), TypeError, "path=None"),
    "log(5)": (lambda learn: learn.log(5), TypeError, r"log\(\) takes a dict of names and numbers"),
    "log_metrics": (lambda learn: learn.log_metrics({"a": 1}), TypeError, "needs 'metrics'; it takes split, metrics"),
    "compare(learn, 5)": (lambda learn: compare(learn, 5), TypeError, r"is a learner, a history, or the path of a log, not 5"),
    "compare(class)": (lambda learn: compare(learn, Learner), TypeError, r"not <class '.*Learner'>"),
    "compare(None)": (lambda learn: compare(None, learn), TypeError, r"not None"),
    "fit": (lambda learn: learn.fit("5"), TypeError, r"epochs='5', of type str; it should be a whole number"),
    "fit_one_cycle": (lambda learn: learn.fit_one_cycle(5, pct=0.1), TypeError, "'pct', which the schedule 'one_cycle' does not take"),
    "fit_one_cycle(slice)": (lambda learn: learn.fit_one_cycle(1, slice(1e-3, 1e-2)), TypeError, "of type slice; it should be a number or a list"),
    "fit_one_cycle(found)": (lambda learn: learn.fit_one_cycle(1, FOUND), TypeError, "of type LRFindResult; it should be a number"),
    "fit(rates)": (lambda learn: learn.fit(1, ["a"]), TypeError, "a number or a list or None"),
    "fine_tune": (lambda learn: learn.fine_tune(5), AttributeError, r"learn.freeze\(\).*learn.unfreeze\(\)"),
    "test": (lambda learn: learn.test(), AttributeError, r"learn.evaluate\(dataset\)"),
    "get_preds": (lambda learn: learn.get_preds(), AttributeError, r"learn.predict\(dataset\)"),
    "recorder": (lambda learn: learn.recorder, AttributeError, r"learn.plot\(\)"),
    "evalute": (lambda learn: learn.evalute(), AttributeError, "Did you mean 'evaluate'"),
    "learning_rate": (lambda learn: learn.learning_rate, AttributeError, "learn.args.learning_rate is its value"),
    "args.lr": (lambda learn: learn.args.lr, AttributeError, "Did you mean 'learning_rate'"),
}


@pytest.mark.parametrize("what", CALLS)
def test_a_wrong_call(what):
    "It changes nothing, and the right one works afterwards."
    learn = learner()
    mistake, kind, words = CALLS[what]
    refused(lambda: mistake(learn), kind, words)
    assert learn.state.global_step == 0 and learn.step()[0].step == 1


def test_every_hint_can_be_shown():
    "Each table has names that do not exist, and its sentences take the value that was given."
    learn = learner()
    for verb in (name for name in dir(Learner) if name[0] != "_" and callable(getattr(Learner, name))):
        for name in find_hints(f"{verb}()"):
            if name == "()" or name in inspect.signature(getattr(learn, verb)).parameters: continue
            text = refused(lambda: getattr(learn, verb)(**{name: 5}), TypeError, re.escape(f"{verb}() has no argument {name!r}"))
            assert "{" not in text
    for name in find_hints("attributes"):
        assert not hasattr(learn, name), name
        assert "{" not in refused(lambda: getattr(learn, name), AttributeError, name)


def test_an_error_inside_a_call_is_left_alone():
    "TypeErrors of user code, and AttributeErrors of a property, have their own messages."
    def fails(record): return len(5)
    with pytest.raises(TypeError, match="object of type 'int' has no len"): learner().run(until=fails)
    def init(): raise AttributeError("no such part")
    with pytest.raises(AttributeError, match="no such part"): Learner(model_init=init, train_dataset=ROWS, use_cpu=True).model
    class Careless(Learner):
        def __init__(self, model): self.mine = 1
    with pytest.raises(AttributeError, match=r"Careless.__init__ has to call super\(\).__init__"): Careless(Net()).train()


# --- what is given to a learner -----------------------------------------------------------------------------------------

class NoLength(Dataset):
    def __getitem__(self, i): return ROWS[i]


class NoItems(Dataset):
    def __len__(self): return 5


class Empty(nn.Module):
    def forward(self, x, labels=None): return {"loss": x.sum(), "logits": x}


SGD = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1)

PARTS = {
    "a class of model": (lambda: learner(Net), TypeError, r"the class Net; give an instance of it: Net\(...\)"),
    "model_init=model": (lambda: Learner(model_init=Net()), TypeError, "model_init is a model.*model=Net"),
    "model_init=5": (lambda: Learner(model_init=5), TypeError, "model_init is a function, not 5"),
    "collator's class": (lambda: learner(data_collator=__import__("trainer_nb").DefaultDataCollator), TypeError, "the class DefaultDataCollator; give.*an instance"),
    "data as collator": (lambda: Learner(Net(), None, ROWS), TypeError, r"data_collator is a function, not \[.*\.\.\.; .*train_dataset="),
    "collator's arguments": (lambda: learner(data_collator=lambda: 0), TypeError, r"called as data_collator\(samples\)"),
    "loss_func's arguments": (lambda: plain(loss_func=lambda o: o), TypeError, r"called as loss_func\(output, labels\), and <lambda>\(o\) cannot be"),
    "compute_loss_func's": (lambda: learner(compute_loss_func=lambda o, l: o), TypeError, "num_items_in_batch.*as loss_func="),
    "compute_metrics's": (lambda: learner(compute_metrics=lambda p, l: {}), TypeError, r"called as compute_metrics\(prediction\)"),
    "preprocess's": (lambda: learner(preprocess_logits_for_metrics=lambda l: l), TypeError, r"\(logits, labels\)"),
    "optimizer's class": (lambda: learner(optimizers=(torch.optim.SGD, None)), TypeError, r"optimizer_cls_and_kwargs=\(SGD, "),
    "optimizer's name": (lambda: learner(optimizers=("adamw", None)), TypeError, "optim='adamw' is the argument for a name"),
    "optimizers swapped": (lambda: learner(optimizers=(torch.optim.lr_scheduler.ConstantLR(SGD), SGD)), TypeError, r"the pair is \(optimizer, lr_scheduler\)"),
    "schedule's name": (lambda: learner(optimizers=(None, "cosine")), TypeError, "lr_scheduler_type='cosine'"),
    "cls alone": (lambda: learner(optimizer_cls_and_kwargs=torch.optim.Adam), TypeError, "a pair of a class and its keywords"),
    "no length": (lambda: learner(data=NoLength()), TypeError, "train_dataset is a NoLength, whose class has no __len__"),
    "no length, evaluated": (lambda: learner(eval_dataset=NoLength()), TypeError, "eval_dataset is a NoLength, whose class has no __len__"),
    "no items": (lambda: learner(data=NoItems()), TypeError, "no __getitem__"),
    "class of data": (lambda: learner(data=NoItems), TypeError, "the class NoItems; give an instance"),
    "one of several": (lambda: learner(eval_dataset={"a": ROWS, "b": 5}), TypeError, "eval_dataset is 5"),
    "evaluations": (lambda: learner(eval_strategy="steps"), ValueError, "nothing to evaluate on.*eval_dataset="),
    "best": (lambda: learner(load_best_model_at_end=True, output_dir="out", eval_strategy="epoch", save_strategy="epoch"), ValueError, "nothing to evaluate on"),
    "fp16": (lambda: learner(fp16=True), ValueError, "fp16=True needs a GPU"),
    "seed": (lambda: learner(seed=2**70), ValueError, r"below 2\*\*63"),
    "seed -1": (lambda: learner(seed=-1), ValueError, "seed=-1 should be 0 or more"),
    "seed 1.5": (lambda: learner(seed=1.5), ValueError, "seed=1.5 is of type float"),
    "data_seed": (lambda: learner(data_seed=2**64), ValueError, r"below 2\*\*63"),
    "set_seed": (lambda: set_seed(2**70), ValueError, r"below 2\*\*63"),
    "set_seed 1.5": (lambda: set_seed(1.5), TypeError, r"set_seed\(42\), not 1.5"),
    "optim": (lambda: learner(optim="adam"), ValueError, "Did you mean 'adamw_torch'"),
    "optim's class": (lambda: learner(optim=torch.optim.Adam), ValueError, r"should be OptimizerNames \| str. A class goes into optimizer_cls_and_kwargs=\(Adam"),
    "bf16": (lambda: learner(bf16="yes"), ValueError, "True or False, without quotes"),
    "label_names": (lambda: learner(label_names="labels"), ValueError, r"Write a list: \['labels'\]"),
}


@pytest.mark.parametrize("what", PARTS)
def test_parts_are_checked_when_given(what): refused(*PARTS[what])


def test_a_loader_of_ones_own_may_have_any_data():
    class Own(Learner):
        def get_train_dataloader(self): return DataLoader(self.train_dataset["rows"], 4)
        def get_eval_dataloader(self, eval_dataset=None): return DataLoader(ROWS, 4)
    learn = learner(data={"rows": ROWS}, cls=Own, eval_dataset=5, eval_strategy="epoch", num_train_epochs=1)
    assert learn.train().global_step == 5 and "eval_loss" in learn.state.log_history[-2]


def test_an_evaluation_asked_for_later():
    learn = learner(per_device_train_batch_size=10)
    refused(lambda: learn.set(eval_strategy="epoch"), ValueError, "nothing to evaluate on")
    assert learn.args.eval_strategy == "no"
    learn.eval_dataset = ROWS
    learn.set(eval_strategy="epoch")
    learn.train()
    assert sum("eval_loss" in row for row in learn.state.log_history) == 3


ASSIGNED = {"learning_rate": ("1e-3", "Write the number without quotes"), "max_steps": (2.5, "of type float; it should be int"), "per_device_train_batch_size": (0, "at least 1"),
            "seed": (-1, "0 or more"), "eval_strategy": ("step", "Did you mean 'steps'"), "optim": ("lomo", "changes weights during the backward pass"), "weight_decay": (None, "of type NoneType")}


@pytest.mark.parametrize("name", ASSIGNED)
def test_attributes_of_the_arguments(name):
    "They are checked when they are assigned, and keep their values."
    value, words = ASSIGNED[name]
    learn = learner()
    for args in (learn.args, TrainingArguments()):
        before = getattr(args, name)
        with pytest.raises(ValueError, match=words): setattr(args, name, value)
        assert getattr(args, name) == before
    assert learn.step()[0].step == 1


def test_attributes_of_the_arguments_that_are_right():
    args = TrainingArguments()
    from trainer_nb.args.fields import SchedulerType
    for name, value in dict(learning_rate=[1e-3], lr_scheduler_type=SchedulerType.COSINE, output_dir=Path("out"), include_num_input_tokens_seen=True, report_to=[], max_steps=5).items():
        setattr(args, name, value)
    assert args.lr_scheduler_type == "cosine"


# --- the first batch ----------------------------------------------------------------------------------------------------

class Two(nn.Module):
    def __init__(self): super().__init__(); self.layer = nn.Linear(4, 3)
    def forward(self, x, y, labels=None): return F.cross_entropy(self.layer(x + y), labels)


class Labelless(nn.Module):
    def __init__(self): super().__init__(); self.layer = nn.Linear(4, 3)
    def forward(self, x): return self.layer(x)


class Words(nn.Module):
    def __init__(self): super().__init__(); self.words, self.out = nn.Embedding(10, 4), nn.Linear(4, 3)
    def forward(self, ids, labels=None): return {"loss": F.cross_entropy(self.out(self.words(ids).mean(1)), labels)}


class Tokens(nn.Module):
    def __init__(self): super().__init__(); self.words = nn.Embedding(10, 4)
    def forward(self, ids, mask=None): return self.words(ids.view(ids.size(0), -1)).sum()


class Own(Learner):
    def compute_loss(self, model, inputs, return_outputs=False): return model(**inputs)["loss"]


def rows(**columns): return [{**row, **columns} for row in ROWS]
def doubles(): return [{**row, "x": row["x"].double()} for row in ROWS]
def nothing(samples): return None


class Optional(Net):
    def forward(self, x=None, labels=None): return super().forward(x, labels)


class Pads:
    "A tokenizer that pads as those of transformers."
    def pad(self, features, **options): return {"input_ids": features[0].keys()["input_ids"]}



DOUBLE = r"The column 'x' is float64, and the layer 'layer' \(Linear\) takes float32; convert it in the data set: x.float\(\)"

def returns(*given, **terms):
    "A loss that is returned in an unusual form: in front of others, or in a dict with them."
    def loss(output, labels): return (F.cross_entropy(output, labels), *given) if given else {"loss": F.cross_entropy(output, labels)} | terms
    return loss

class Whole(Learner):
    "Returns a dict from a step of its own."
    def optimize(self, model, batches):
        loss = self.compute_loss(model, batches[0])
        self.backward(loss)
        self.update()
        return {"loss": loss}

TRAINED = {
    "terms in a tuple": (lambda: plain(loss_func=returns({"rec": 1.0})), TypeError, r"is a tuple.*\{'loss': loss, 'rec': rec\}"),
    "a term of the log's name": (lambda: plain(loss_func=returns(epoch=1.0)), ValueError, "an entry 'epoch' beside the loss; rename it"),
    "a term of an evaluation's name": (lambda: plain(loss_func=returns(eval_loss=1.0)), ValueError, "an entry 'eval_loss' beside the loss; rename it"),
    "a term whose name is no text": (lambda: plain(loss_func=lambda o, l: {"loss": F.cross_entropy(o, l), 1: 1.0}), ValueError, "an entry 1 beside the loss; rename it"),
    "a dict from optimize": (lambda: plain(cls=Whole), TypeError, r"optimize returned a dict.*self.log\(\{'name': value\}\)"),
    "no loss, pairs": (lambda: plain(loss_func=None), TypeError, "Linear's forward takes input, and a sample has 2 parts.*give the Learner loss_func="),
    "no loss, rows": (lambda: learner(Labelless()), TypeError, "Labelless's forward takes x, .* returns no loss, so give the Learner loss_func="),
    "a column missing": (lambda: learner(Two()), TypeError, "Two's forward needs 'y', and the batch has x, labels; rename"),
    "three parts": (lambda: plain(data=[(x, x, 1) for x in X]), TypeError, "a sample has 2 parts besides the label"),
    "no parameters": (lambda: learner(Empty()), ValueError, r"Empty has no parameters.*self.layer = nn.Linear"),
    "text labels": (lambda: learner(data=rows(labels="cat")), ValueError, r"labels are text \('cat'\).*names.index\(label\)"),
    "text label": (lambda: learner(data=[{"x": x, "label": "cat"} for x in X]), ValueError, r"labels are text \('cat'\)"),
    "text labels, pairs": (lambda: plain(data=[(x, "cat") for x in X]), ValueError, r"labels are text \('cat'\)"),
    "text labels, loss_func": (lambda: learner(Labelless(), data=rows(labels="cat"), loss_func=F.cross_entropy), ValueError, r"labels are text \('cat'\)"),
    "no labels": (lambda: learner(Labelless(), data=[{"x": x} for x in X], loss_func=F.cross_entropy), ValueError, "no labels for loss_func: its columns are x. Their column has to be called labels"),
    "text": (lambda: learner(data=rows(x="hello")), TypeError, "needs 'x'.*the column 'x' is text.*tokenizer"),
    "text that reaches no model": (lambda: learner(Optional(), data=[{"text": "a", "labels": 0}] * 9), TypeError, "The column 'text' is text.*tokenizer"),
    "text with a tokenizer": (lambda: learner(data=[{"text": "a", "labels": 0}] * 9, processing_class=Pads(), remove_unused_columns=False), ValueError, "has text, labels, but no 'input_ids'"),
    "pairs with a tokenizer": (lambda: plain(data=[("a", 0)] * 9, processing_class=Pads()), ValueError, r"A sample is a tuple.*tokenizer\(text"),
    "positions": (lambda: plain(data=TensorDataset(X[:, None].repeat(1, 5, 1), Y[:, None].repeat(1, 5))), ValueError, r"output.flatten\(0, -2\) and labels.flatten\(\)"),
    "text of another name": (lambda: learner(data=[{"text": "a", "labels": 0}] * 9), TypeError, "the column 'text' is text.*tokenizer"),
    "text rows": (lambda: learner(data=["a", "b"] * 9), TypeError, "tokenizer"),
    "as many text rows as forward has arguments": (lambda: learner(Tokens(), data=["a", "b"] * 9, per_device_train_batch_size=2), TypeError, "Item 0 of the samples is text.*tokenizer"),
    "None": (lambda: learner(data=rows(x=None)), TypeError, "needs 'x', and the batch has labels"),
    "double": (lambda: learner(data=doubles()), ValueError, DOUBLE),
    "double, NumPy": (lambda: learner(data=[{**row, "x": row["x"].numpy()} for row in doubles()]), ValueError, DOUBLE),
    "double, own loss": (lambda: learner(data=doubles(), cls=Own), ValueError, DOUBLE),
    "double, pairs": (lambda: plain(data=TensorDataset(X.double(), Y)), ValueError, "Item 0 of the samples is float64, and Linear takes float32"),
    "integers": (lambda: plain(data=TensorDataset(X.long(), Y)), ValueError, "Item 0 of the samples is int64"),
    "half a model": (lambda: plain(nn.Linear(4, 3).half()), ValueError, r"is float32.*takes float16"),
    "float words": (lambda: learner(Words(), data=[{"ids": torch.zeros(4), "labels": 0}] * 9), ValueError, r"column 'ids' is float32, and the layer 'words' \(Embedding\) takes whole numbers.*x.long\(\)"),
    "unknown words": (lambda: learner(Words(), data=[{"ids": torch.tensor([1, 50]), "labels": 0}] * 9), ValueError, "from 1 to 50, and it has 10 rows"),
    "features": (lambda: learner(data=rows(x=torch.zeros(7))), ValueError, r"the layer 'layer' \(Linear\) has the shape \(8, 7\), and the layer is Linear\(in_features=4"),
    "not flat": (lambda: plain(data=TensorDataset(X.reshape(20, 2, 2), Y)), ValueError, r"the shape \(8, 2, 2\), and the layer is Linear"),
    "inner features": (lambda: plain(nn.Sequential(nn.Linear(4, 8), nn.Linear(9, 3))), ValueError, r"the layer '1' \(Linear\).*\(8, 8\).*in_features=9"),
    "channels": (lambda: plain(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 3)), data=TensorDataset(torch.zeros(20, 1, 4, 4), Y)), ValueError, r"\(8, 1, 4, 4\), and the layer is Conv2d\(3, 4"),
    "one sample": (lambda: plain(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), per_device_train_batch_size=1), ValueError, r"\(BatchNorm1d\) has the shape \(1, 4\)"),
    "single tensors": (lambda: plain(data=X), ValueError, r"gives single tensors.*TensorDataset\(X, Y\)"),
    "single tensors, a model with labels": (lambda: learner(data=X), ValueError, r"gives single tensors without labels.*TensorDataset\(X, Y\).*loss_func="),
    "labels in a column": (lambda: plain(data=TensorDataset(X, Y[:, None])), ValueError, r"shape \(8, 3\).*class numbers.*of the shape \(8,\)"),
    "float labels": (lambda: plain(data=TensorDataset(X, Y.float())), ValueError, r"labels.long\(\)"),
    "float labels, own model": (lambda: learner(data=rows(labels=1.0)), ValueError, r"labels.long\(\)"),
    "32 bits": (lambda: plain(data=TensorDataset(X, Y.int())), ValueError, r"\(int32\).*labels.long\(\)"),
    "one hot": (lambda: plain(data=TensorDataset(X, F.one_hot(Y, 3))), ValueError, r"labels.reshape\(output.shape\).to\(output.dtype\)"),
    "BCE": (lambda: plain(nn.Linear(4, 1), data=TensorDataset(X, (Y > 0).float()), loss_func=F.binary_cross_entropy_with_logits), ValueError, r"labels.reshape\(output.shape\)"),
    "MSE": (lambda: plain(nn.Linear(4, 2), data=TensorDataset(X, X[:, :3]), loss_func=F.mse_loss), ValueError, r"\(8, 2\) \(float32\) and the labels \(8, 3\)"),
    "MSE, labels of one dimension": (lambda: plain(nn.Linear(4, 1), data=TensorDataset(X, X[:, 0]), loss_func=F.mse_loss), ValueError,
                                     r"shape \(8, 1\) and the labels \(8,\), so mse_loss .*\.squeeze\(-1\), or give labels.unsqueeze\(-1\)"),
    "L1, labels in a column": (lambda: plain(nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), data=TensorDataset(X, X[:, :1]), loss_func=nn.L1Loss()),
                               ValueError, r"shape \(8,\) and the labels \(8, 1\), so L1Loss .*give labels.squeeze\(-1\)"),
    "Huber with options": (lambda: plain(nn.Linear(4, 1), data=TensorDataset(X, X[:, 0]), loss_func=functools.partial(F.huber_loss, delta=2.0)),
                           ValueError, r"so huber_loss .*labels.unsqueeze\(-1\)"),
    "the other order": (lambda: plain(loss_func=lambda o, l: F.cross_entropy(l, o)), ValueError, "which this loss cannot compare"),
    "no output": (lambda: plain(type("Quiet", (nn.Linear,), {"forward": lambda self, x: None})(4, 3)), TypeError, "The model returned None"),
    "collator's None": (lambda: learner(data_collator=nothing), TypeError, "data_collator returned None.*a dict of tensors"),
    "collator's list": (lambda: learner(data_collator=lambda samples: samples), TypeError, "returned a list of 8 samples"),
    "no tensor": (lambda: plain(data=[(object(), 1)] * 9), TypeError, "Item 0 of the samples is <object.*data_collator="),
    "columns that differ": (lambda: learner(data=[*ROWS[:3], {"labels": 0}], train_sampling_strategy="sequential"), ValueError, "1 of the 4 samples of a batch have no 'x'"),
}


@pytest.mark.parametrize("what", TRAINED)
def test_explained_at_the_first_batch(what):
    "The same words again, nothing half done, and the original error as the cause where torch raised one."
    make, kind, words = TRAINED[what]
    learn = make()
    for verb in (learn.step, learn.train):
        refused(verb, kind, words)
        assert learn.run_state.verb.phase == "idle" and not learn.run_state.current.corrupted and learn.state.global_step == 0


def failing(error):
    def loss(output, labels): raise error
    return loss


OTHER_ERRORS = {   # of a loss, which are not about the shapes of output and labels
    "a message": RuntimeError("the teacher does not answer"), "a device": RuntimeError("Expected all tensors to be on the same device, target is on cuda:0"),
    "another tensor's size": RuntimeError("The size of tensor a (5) must match the size of tensor b (8) at non-singleton dimension 0"),
    "arithmetic": ZeroDivisionError("division by zero"), "a key": KeyError("teacher"), "a check": AssertionError("temperature"),
}


@pytest.mark.parametrize("labels", ["a column", "none", "text"])
@pytest.mark.parametrize("what", OTHER_ERRORS)
def test_another_error_of_a_loss_stays_as_it_is(what, labels):
    data = {"a column": TensorDataset(X, X[:, 0]), "none": [{"input": x} for x in X], "text": [(x, "cat") for x in X]}[labels]
    learn = plain(nn.Linear(4, 1), data=data, loss_func=failing(OTHER_ERRORS[what]))
    for verb in (learn.step, learn.inspect):
        with pytest.raises(type(OTHER_ERRORS[what])) as raised: verb()
        assert raised.value is OTHER_ERRORS[what]


def test_explained_in_an_evaluation():
    for learn in (learner(eval_dataset=doubles()), learner(eval_dataset=[{"x": row["x"]} for row in doubles()])):
        refused(learn.evaluate, ValueError, "The column 'x' is float64")
        assert learn.step()[0].step == 1


def test_the_run_goes_on_with_the_data_put_right():
    learn = learner(data=doubles())
    refused(learn.step, ValueError, "float64")
    learn.train_dataset = ROWS
    assert learn.train().global_step == 9


def test_errors_of_the_user_stay():
    "What the batch does not explain is raised as it is: from a model, from a loss function, and when memory runs out."
    class Fails(Net):
        def forward(self, x, labels=None): raise self.error
    for error in (RuntimeError("mine"), TypeError("forward() of my own"), ValueError("a type of mine"), torch.OutOfMemoryError("dtype")):
        model = Fails()
        model.error = error
        with pytest.raises(type(error)) as raised: learner(model).step()
        assert raised.value is error
        def loss(output, labels): raise error
        with pytest.raises(type(error)) as raised: plain(loss_func=loss).step()
        assert raised.value is error


# --- parts that are assigned, callbacks, and the rest ---------------------------------------------------------------------

ASSIGNED_PARTS = {
    "model": (Net, TypeError, r"the class Net; give an instance"),
    "optimizer": (torch.optim.SGD, TypeError, "optimizer_cls_and_kwargs="),
    "lr_scheduler": ("cosine", TypeError, "lr_scheduler_type='cosine'"),
    "loss_func": (nn.CrossEntropyLoss, TypeError, r"the class CrossEntropyLoss; give a function, or an instance"),
    "compute_metrics": (5, TypeError, "compute_metrics is a function, not 5"),
    "data_collator": (None, TypeError, "default_data_collator"),
    "metrics": ([1], TypeError, "metrics is a dict"),
    "args": (3, TypeError, "args is of type int; pass a TrainingArguments"),
    "state": (None, TypeError, "state is a TrainerState, not None"),
    "processes": (2, AttributeError, r"learn.launch\(n\)"),
    "callbacks": ([], AttributeError, r"learn.add_callback\(...\)"),
    "train_dataset": (5, TypeError, "train_dataset is 5, which is no data set"),
}


@pytest.mark.parametrize("name", ASSIGNED_PARTS)
def test_a_wrong_part_is_not_taken(name):
    learn = learner()
    value, kind, words = ASSIGNED_PARTS[name]
    refused(lambda: setattr(learn, name, value), kind, words)
    assert learn.step()[0].step == 1


class Few(TrainerCallback):
    def on_step_end(self, args, state): pass


class Needs(TrainerCallback):
    def __init__(self, n): self.n = n


class Misspelt(TrainerCallback):
    def on_step_ended(self, args, state, control, **kwargs): pass


def test_callbacks():
    for add in (lambda callback: learner(callbacks=[callback]), learner().add_callback):
        refused(lambda: add(Few), TypeError, r"Few.on_step_end has to take \(self, args, state, control, \*\*kwargs\)")
        refused(lambda: add(Needs), TypeError, r"the class Needs, which needs arguments; give an instance of it: Needs\(...\)")
        with pytest.warns(UserWarning, match="Misspelt.on_step_ended is never called.*Did you mean 'on_step_end'"): add(Misspelt)
    refused(lambda: EarlyStoppingCallback(patience=3), TypeError, r"EarlyStoppingCallback\(\) has no argument 'patience'; it is called 'early_stopping_patience'")
    refused(lambda: EarlyStoppingCallback("3"), TypeError, "early_stopping_patience='3', of type str")
    assert EarlyStoppingCallback(3).early_stopping_patience == 3


UNCALLED = {   # name of a method of a subclass: what the warning names
    "compute_losss": "compute_loss", "training_setp": "training_step", "get_train_data_loader": "get_train_dataloader", "create_optimiser": "create_optimizer",
    "prediction_steps": "prediction_step", "validation_step": "prediction_step", "configure_optimizers": "create_optimizer", "on_epoch_end": "TrainerCallback",
    "val_dataloader": "get_eval_dataloader",
}
HELPERS = {   # methods of a subclass, without a warning
    "used by another": {"compute_losses": lambda self: 0, "compute_loss": lambda self, model, inputs, **kw: self.compute_losses()},
    "its own": {"teacher_loss": lambda self: 0, "_log": lambda self: 0, "logs": lambda self: 0, "save": lambda self: 0, "setup": lambda self: 0},
    "a callback, too": {"on_step_end": lambda self, args, state, control, **kw: None, "__bases__": (Learner, TrainerCallback)},
}


@pytest.mark.parametrize("name", UNCALLED)
def test_a_method_that_nothing_calls_is_named_once(name):
    kind = type("Mine", (Learner,), {name: lambda self, *args: None})
    with pytest.warns(UserWarning, match=rf"Mine.{name} is never called.*{UNCALLED[name]}"): plain(nn.Linear(4, 3), cls=kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain(nn.Linear(4, 3), cls=kind)


@pytest.mark.parametrize("what", HELPERS)
@pytest.mark.filterwarnings("error")
def test_a_helper_of_a_subclass_is_not_named(what):
    methods = dict(HELPERS[what])
    plain(nn.Linear(4, 3), cls=type("Mine", methods.pop("__bases__", (Learner,)), methods))


FIRST_LOSSES = {   # factor of the loss: a word of the warning; None: there is none
    "nan": (float("nan"), "is nan"), "inf": (float("inf"), "is inf"), "1e7": (1e7, "standard deviation"), "1": (1.0, None), "0": (0.0, None), "1e3": (1e3, None),
}


@pytest.mark.parametrize("verb", ["step", "train", "rewound"])
@pytest.mark.parametrize("which", FIRST_LOSSES)
def test_a_first_loss_that_is_no_number_or_very_large_is_named_once(which, verb):
    factor, word = FIRST_LOSSES[which]
    learn = plain(nn.Linear(4, 3), loss_func=lambda output, labels: factor * F.cross_entropy(output, labels), num_train_epochs=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        learn.train() if verb == "train" else learn.step(2)
        if verb == "rewound":
            learn.reset()
            learn.step()
    named = [str(w.message) for w in caught if "first step" in str(w.message)]
    assert len(named) == (word is not None) and all(word in text for text in named)


def test_a_finished_run_counts_the_losses_that_no_log_has():
    "The mean loss of a run is over the finite ones."
    learn = plain(nn.Linear(4, 3), loss_func=lambda output, labels: F.cross_entropy(output, labels) * (1.0 if learn.state.global_step < 1 else float("nan")),
                  num_train_epochs=1)
    with pytest.warns(UserWarning, match="2 of the 3 losses"): learn.train()


OTHERS = {
    "set(lr=None)": (lambda learn: learn.set(lr=None), ValueError, "lr=None should be above 0"),
    "set(lr=text)": (lambda learn: learn.set(lr="1e-3"), ValueError, "lr='1e-3' is text; give a number: lr=1e-3."),
    "predict(sample)": (lambda learn: learn.predict((X[0], Y[0])), TypeError, r"a tuple of 2 tensors or arrays: for one sample, learn.predict_one\(sample\).*TensorDataset\(X, Y\)"),
    "predict_one(data)": (lambda learn: learn.predict_one(TensorDataset(X, Y)), TypeError, r"one sample, not a TensorDataset; learn.predict\(data\)"),
    "opt_func=": (lambda learn: learner(opt_func=torch.optim.SGD), TypeError, r"`opt_func`: give a name.*optimizer_cls_and_kwargs=\(torch.optim.SGD"),
    "scheduler=": (lambda learn: learner(scheduler=None), TypeError, r"`scheduler`: give a name, such as lr_scheduler_type='cosine'"),
    "load_learner": (lambda learn: trainer_nb.load_learner, AttributeError, r"has no attribute 'load_learner'.*learn.load_checkpoint\(folder\)"),
    "set(model=)": (lambda learn: learn.branch(model=3), TypeError, "`model` is an argument of Learner, and not a setting"),
    "freeze(module)": (lambda learn: learn.freeze(nn.Sequential(nn.Linear(99, 99), nn.Linear(99, 99))), ValueError, "There is no layer group Sequential"),
    "restore(folder)": (lambda learn: learn.restore("out/checkpoint-5"), KeyError, r"learn.load_checkpoint\(folder\)"),
    "restore(5)": (lambda learn: learn.restore(5), KeyError, r"restore\(\) takes a snapshot, or the name of one \(none\), and not 5"),
    "until": (lambda learn: learn.run(until=lambda: True), TypeError, r"until is called as until\(record\)"),
    "run_on_all": (lambda learn: learn.run_on_all(lambda: 1), TypeError, r"f in run_on_all\(f\) is called as f\(learn\), with the learner of each process, and <lambda>\(\)"),
    "search": (lambda learn: learn.hyperparameter_search(direction="min"), ValueError, "direction='min' is not one of"),
    "trials": (lambda learn: learn.hyperparameter_search(n_trials=0), ValueError, "n_trials=0: give a number"),
    "save_model(file)": (lambda learn: learn.save_model(__file__), ValueError, "is a file; save_model"),
    "follow": (lambda learn: __import__("trainer_nb").follow(5), TypeError, "path=5, of type int; it should be text or a path"),
    "compare": (lambda learn: compare(), TypeError, r"takes a folder of runs"),
    "labels": (lambda learn: Learner(Net(), train_dataset=X, labels=Y), TypeError, r"train_dataset=TensorDataset\(X, Y\)"),
    "a list of columns": (lambda learn: learner(data=[X, Y]), TypeError, r"a list of 2 tensors.*TensorDataset\(X, Y\)"),
    "keywords": (lambda learn: learner(optimizer_cls_and_kwargs=(torch.optim.Adam, {"learning_rate": 1})).step(), TypeError, r"Adam\(\) has no argument 'learning_rate'; it is called 'lr'"),
    "meta": (lambda learn: plain(nn.Linear(4, 3, device="meta")).step(), ValueError, "Linear is on the meta device"),
    "a tuple, MSE": (lambda learn: plain(type("Pair", (nn.Linear,), {"forward": lambda self, x: (nn.Linear.forward(self, x), 1)})(4, 4), TensorDataset(X, X), loss_func=F.mse_loss).step(), TypeError, r"returned a tuple of 2 parts"),
    "a tuple": (lambda learn: plain(type("Pair", (nn.Linear,), {"forward": lambda self, x: (nn.Linear.forward(self, x), 1)})(4, 3)).step(), TypeError, r"returned a tuple of 2 parts.*output\[0\]"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_other_mistakes(what):
    learn = learner(eval_dataset=ROWS)
    mistake, kind, words = OTHERS[what]
    refused(lambda: mistake(learn), kind, words)
    assert learn.step()[0].step == 1


def test_lists_of_tensors_are_samples():
    "A list of tensors of one shape, for an autoencoder, and one of samples of any length, are no columns."
    auto = learner(nn.Linear(4, 4), data=[*X], loss_func=F.mse_loss)
    assert auto.train().global_step == 9
    assert learner(nn.Linear(4, 4), data=[*X[:2]], loss_func=F.mse_loss).train().global_step == 3


# --- reading the results -------------------------------------------------------------------------------------------------

def metric(p): return {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())}


READ = {
    "history.loss": (lambda learn: learn.history.loss, AttributeError, r"A history has no attribute 'loss': history\['loss'\] is that of each step, and history\[-1\].loss that of the last"),
    "history.losses": (lambda learn: learn.history.losses, AttributeError, r"history\['loss'\]"),
    "history.history": (lambda learn: learn.history.history["loss"], AttributeError, r"history\['loss'\] is a column"),
    "history.eval_loss": (lambda learn: learn.history.eval_loss, AttributeError, r"history\['eval_loss'\] is that metric by step, and history.evaluations\(\)"),
    "history.evalutions": (lambda learn: learn.history.evalutions(), AttributeError, "Did you mean 'evaluations'"),
    "history['los']": (lambda learn: learn.history["los"], KeyError, "There is no column 'los'; there are step, epoch, loss.*Did you mean 'loss'"),
    "history.best('no')": (lambda learn: learn.history.best("eval_rare"), KeyError, "No row has a number as 'eval_rare'"),
    "history.best('f1')": (lambda learn: learn.history.best("f1"), KeyError, "Did you mean 'eval_f1'"),
    "history['acc']": (lambda learn: learn.history["acc"], KeyError, "Did you mean 'eval_accuracy'"),
    "merge(learner)": (lambda learn: trainer_nb.merge([learn, learn]), TypeError, r"of type Learner; it takes.*learn.snapshot\(\)"),
    "merge(model)": (lambda learn: trainer_nb.merge(learn.model), TypeError, r"a list of sources, merge\(\[a, b\]"),
    "history.best('los')": (lambda learn: learn.history.best("los"), KeyError, "There is no column 'los'"),
    "best": (lambda learn: learn.best, AttributeError, r"learn.history.best\('eval_loss'\)"), "epochs": (lambda learn: learn.epochs, AttributeError, "learn.run"),
    "remove": (lambda learn: learn.remove, AttributeError, "no attribute 'remove'.$"), "rset": (lambda learn: learn.rset, AttributeError, "Did you mean 'reset'"),
    "history[1.0]": (lambda learn: learn.history[1.0], TypeError, r"indexed by the number of a row, history\[-1\].*not by 1.0"),
    "record.lss": (lambda learn: learn.history[-1].lss, AttributeError, "A record has no attribute 'lss'. Did you mean 'loss'"),
    "record.lr": (lambda learn: learn.history[-1].lr, AttributeError, "it is called learning_rate"),
    "record.eval_loss": (lambda learn: learn.history[-1].eval_loss, AttributeError, r"record.metrics\['eval_loss'\]"),
    "record['los']": (lambda learn: learn.history[-1]["los"], KeyError, "A record has no value 'los'; it has step, epoch, loss"),
    "records.lss": (lambda learn: learn.history[:].lss, AttributeError, "Did you mean 'loss'"),
    "records.eval_loss": (lambda learn: learn.history[:].eval_loss, AttributeError, r"records.frame\(\)\['eval_loss'\]"),
    "records['loss']": (lambda learn: learn.history[:]["loss"], TypeError, r"a list of rows; table.frame\(\)\['loss'\] is a column"),
    "evaluations.eval_loss": (lambda learn: learn.history.evaluations().eval_loss, AttributeError, r"evaluations.frame\(\)\['eval_loss'\]"),
    "state.step": (lambda learn: learn.state.step, AttributeError, "state.global_step is the number of completed steps"),
    "state.loss": (lambda learn: learn.state.loss, AttributeError, r"learn.history\[-1\].loss"),
    "state.max_step": (lambda learn: learn.state.max_step, AttributeError, "Did you mean 'max_steps'"),
    "learn(x)": (lambda learn: learn(X), TypeError, r"cannot be called: learn.model\(x\).*learn.predict\(dataset\)"),
    "for x in learn": (lambda learn: [x for x in learn], TypeError, r"for record in learn.steps\(\)"),
    "learn[0]": (lambda learn: learn[0], TypeError, r"learn.history\[-1\] is the record of the last step"),
    "show_batch(0)": (lambda learn: learn.show_batch(0), ValueError, r"show_batch\(0\) shows nothing.*from 1 on"),
    "show_batch(-1)": (lambda learn: learn.show_batch(-1), ValueError, r"show_batch\(-1\) shows nothing"),
    "history.frame('loss')": (lambda learn: learn.history.frame("loss"), TypeError, "all='loss', of type str; it should be True or False"),
    "history.evaluations(name)": (lambda learn: learn.history.evaluations("eval_loss"), TypeError, "all='eval_loss', of type str"),
    "snapshots": (lambda learn: learn.snapshots["begining"], KeyError, "There is no snapshot 'begining'; there are: 'beginning'. Did you mean 'beginning'"),
    "pause(5)": (lambda learn: learn.pause(5), TypeError, r"pause\(\) takes no arguments, and was given 5"),
    "batch_size_find(start)": (lambda learn: learn.batch_size_find(start="a"), TypeError, "start='a', of type str; it should be a whole number or None"),
    "predict().labels": (lambda learn: learn.predict(ROWS).labels, AttributeError, r"The result of predict\(\) has no attribute 'labels': they are called label_ids"),
    "predict().preds": (lambda learn: learn.predict(ROWS).preds, AttributeError, "they are called predictions"),
    "predict().metric": (lambda learn: learn.predict(ROWS).metric, AttributeError, "Did you mean 'metrics'"),
    "start().join()": (lambda learn: learn.start(steps=1).join(), AttributeError, r"A background run has no attribute 'join': handle.wait\(\)"),
    "start().rewind()": (lambda learn: learn.start(steps=1).rewind(3), AttributeError, r"has no attribute 'rewind': learn.rewind\(n\).*handle.pause\(\)"),
}
WHOLE = {
    "train().loss": (lambda learn: learn.train().loss, AttributeError, "training_loss is the mean over all steps"),
    "debug_step().backwards": (lambda learn: learn.debug_step().backwards(), AttributeError, "A debug step has no attribute 'backwards'. Did you mean 'backward'"),
    "p.labels": (lambda learn: learn.evaluate(), AttributeError, "The argument of compute_metrics has no attribute 'labels': they are called label_ids"),
}


@pytest.mark.parametrize("what", READ)
def test_reading_what_does_not_exist(what):
    learn = learner(eval_dataset=ROWS, compute_metrics=lambda p: {"f1": 0.5, "accuracy": 0.5, "rare": float("nan")})
    learn.step()
    learn.evaluate()
    learn.log({"the last step": learn.history[-1]})
    learn.snapshot("beginning")
    mistake, kind, words = READ[what]
    refused(lambda: mistake(learn), kind, words)
    if learn.run_state.parts.background_run is not None: learn.run_state.parts.background_run.wait()
    assert learn.step()[0].step == learn.state.global_step == len(learn.history)


@pytest.mark.parametrize("what", WHOLE)
def test_results_of_verbs(what):
    learn = learner(eval_dataset=ROWS, compute_metrics=(lambda p: {"a": p.labels}) if what == "p.labels" else None)
    mistake, kind, words = WHOLE[what]
    refused(lambda: mistake(learn), kind, words)


def test_columns_by_name():
    learn = learner(eval_dataset=ROWS)
    learn.step(2)
    learn.evaluate()
    for name in ("loss", "step", "samples_per_second", "eval_loss"):
        assert learn.history[name].tobytes() == learn.history.column(name).tobytes()
    assert learn.history["loss"].tolist() == learn.history[:].loss


def test_what_is_missing_is_missing_for_python_too():
    "hasattr, copies and pickles work as for any object."
    import copy, pickle
    from collections.abc import Iterable
    learn = learner()
    learn.step()
    for thing in (learn.history, learn.history[0], learn.history[:], learn.history.evaluations(), learn.state):
        assert not hasattr(thing, "nothing_like_it") and not hasattr(thing, "_repr_svg_") and getattr(thing, "__array__", 5) == 5
    assert copy.deepcopy(learn.state) == pickle.loads(pickle.dumps(learn.state)) == learn.state
    assert copy.copy(learn.history[0]).loss == learn.history[0].loss and not isinstance(learn, Iterable) and bool(learn)


# --- tokenizers, data sets and user functions ------------------------------------------------------------------------------

class Pads:
    def pad(self, features, return_tensors="pt", **options): return {"x": torch.tensor([f["x"] for f in features])}


def test_collators_take_a_tokenizer():
    name, kind = "DataCollatorWithPadding", DataCollatorWithPadding
    refused(lambda: kind(), TypeError, rf"{name}\(\) needs 'tokenizer'; it takes tokenizer, ")
    refused(lambda: kind("bert"), TypeError, rf"{name} takes a tokenizer, not 'bert'; load it: AutoTokenizer.from_pretrained\('bert'\)")
    refused(lambda: kind(Net()), TypeError, rf"{name} takes a tokenizer, not Net.*pad\(features\)")
    refused(lambda: kind(Pads), TypeError, rf"{name} takes a tokenizer, not <class")
    refused(lambda: kind(tokeniser=Pads()), TypeError, "no argument 'tokeniser'. Did you mean 'tokenizer'")
    refused(lambda: kind(Pads(), pad_to_multiple_of="8"), TypeError, "pad_to_multiple_of='8', of type str; it should be a whole number or None")


def test_a_tokenizer_that_pads_is_enough():
    assert DataCollatorWithPadding(Pads())([{"x": 1}])["x"].tolist() == [1]
    refused(lambda: DataCollatorWithPadding(None), TypeError, "takes a tokenizer, not None")
    refused(lambda: DataCollatorWithPadding(object()), TypeError, "takes a tokenizer, not <object")


class Long(Dataset):
    "Counts more samples than it has."
    def __init__(self, rows): self.rows = rows
    def __len__(self): return 30
    def __getitem__(self, i): return self.rows[i]


class Careless(Long):
    def __getitem__(self, i): return {"x": ROWS[0]["x"], "labels": ROWS[0]["label"]}


def test_a_length_that_is_too_large():
    rows = dict(enumerate(ROWS))
    order = {"train_sampling_strategy": "sequential"}
    for data, kind, raised in ((Long(ROWS), IndexError, r"IndexError\('list index out of range'\)"), (Long(rows), KeyError, r"KeyError\(20\)")):
        words = rf"Long raised {raised} for sample 20, and its __len__ is 30. Check that it is not larger than the number of items"
        learn = learner(data=data, eval_dataset=data, **order)
        refused(learn.train, kind, words)
        assert learn.state.global_step == 2
        refused(learn.evaluate, kind, words)
        learn.train_dataset = ROWS
        assert learn.train().global_step >= 3
    subset = torch.utils.data.Subset(ROWS, range(25))
    refused(learner(data=subset, **order).train, IndexError, r"Subset raised IndexError\(.*for one of the samples \[.*its __len__ is 25")
    with pytest.raises(IndexError, match="Long raised IndexError.*for sample 20, and its __len__ is 30"):
        learner(data=Long(ROWS), dataloader_num_workers=1, **order).train()


def test_a_key_that_the_users_code_lacks_is_left_alone():
    with pytest.raises(KeyError) as raised: learner(data=Careless(ROWS)).step()
    assert raised.value.args == ("label",)


FUNCTIONS = {
    "compute_metrics": (dict(compute_metrics=lambda p: {"a": (p.predictions == p.label_ids[:7]).mean()}), ValueError,
                        "(in compute_metrics, which was given predictions (20, 3) and labels (20,); argmax(-1) of the predictions is the class of each)"),
    "another error": (dict(compute_metrics=lambda p: {"a": 1 / 0}), ZeroDivisionError, "(in compute_metrics, which was given predictions (20, 3) and labels (20,))"),
    "by batch": (dict(compute_metrics=lambda p, compute_result: 1 / 0, batch_eval_metrics=True), ZeroDivisionError, "(in compute_metrics, which was given predictions (8, 3) and labels (8,))"),
    "preprocess": (dict(compute_metrics=metric, preprocess_logits_for_metrics=lambda logits, labels: logits.nothing), AttributeError,
                   "(in preprocess_logits_for_metrics, which was given predictions (8, 3) and labels (8,))"),
    "metrics": (dict(metrics={"a": lambda predicted, labels: predicted == labels}), RuntimeError,
                "(in metrics['a'], which was given predictions (8, 3) and labels (8,); argmax(-1) of the predictions is the class of each)"),
}


@pytest.mark.parametrize("what", FUNCTIONS)
def test_an_error_in_a_users_function_has_its_name_and_shapes(what):
    "It is the error itself, with a note below it."
    given, kind, note = FUNCTIONS[what]
    learn = learner(eval_dataset=ROWS, **given)
    with pytest.raises(kind) as raised: learn.evaluate()
    assert note in raised.value.__notes__, raised.value.__notes__
    assert learn.step()[0].step == 1


RESULTS = {
    "nothing": (dict(compute_metrics=lambda p: None), "compute_metrics returned NoneType; it must return a dict"),
    "a number": (dict(compute_metrics=lambda p: 0.5), "compute_metrics returned float; it must return a dict"),
    "no logits": (dict(compute_metrics=metric, preprocess_logits_for_metrics=lambda logits, labels: None), r"preprocess_logits_for_metrics returned None.*logits.argmax\(-1\)"),
    "text": (dict(metrics={"a": lambda p, l: "x"}), r"metrics\['a'\] returned 'x', of type str; a function returns a number"),
    "a pair of texts": (dict(metrics={"a": lambda p, l: ("x", "y")}), r"metrics\['a'\] returned \('x', 'y'\), of type tuple"),
    "None": (dict(metrics={"a": lambda p, l: None}), r"metrics\['a'\] returned None"),
}


@pytest.mark.parametrize("what", RESULTS)
def test_results_of_metrics(what):
    given, words = RESULTS[what]
    refused(learner(eval_dataset=ROWS, **given).evaluate, TypeError, words)


@pytest.mark.parametrize("value", ["x", [1, 2], None])
def test_the_best_model_is_chosen_by_a_number(value):
    learn = learner(eval_dataset=ROWS, compute_metrics=lambda p: {"a": value}, metric_for_best_model="a", eval_strategy="epoch", per_device_train_batch_size=10)
    refused(learn.train, TypeError, r"metric_for_best_model is 'a', and its value is .*; let compute_metrics return a number for it")


def test_a_name_in_place_of_a_tokenizer():
    for given in ({"processing_class": "bert"}, {"tokenizer": "bert"}):
        refused(lambda: learner(**given), TypeError, r"processing_class is a tokenizer or a processor, not 'bert'; load it.*AutoTokenizer.from_pretrained\(name\)")


def test_names_of_layers_and_labels_that_match_nothing():
    refused(learner(layer_groups=["layre"]).step, ValueError, "layer_groups has 'layre'.*Did you mean 'layer'")
    with pytest.warns(UserWarning, match=r"label_names=\['label'\] names 'label', and the batch has only x, labels, so this evaluation has no loss. Did you mean 'labels'"):
        assert "eval_loss" not in learner(eval_dataset=ROWS, label_names=["label"]).evaluate()


SEARCHES = {
    "sampler": (dict(sampler="tpe"), TypeError, r"sampler='tpe' should be an object of Optuna, such as optuna.samplers.TPESampler\(\)"),
    "pruner": (dict(pruner="median"), TypeError, r"optuna.pruners.MedianPruner\(\)"),
    "space": (dict(hp_space=lambda: {}), TypeError, r"hp_space is called as hp_space\(trial\)"),
    "objective": (dict(compute_objective=lambda: 1), TypeError, r"called as compute_objective\(metrics\)"),
    "no space": (dict(hp_space=lambda trial: None), TypeError, "hp_space returned None"),
    "no objective": (dict(hp_space=lambda trial: {}, compute_objective=lambda m: None), TypeError, r"compute_objective returned None; it has to return a number, such as metrics\['eval_loss'\]"),
    "objectives": (dict(hp_space=lambda trial: {}, compute_objective=lambda m: ["a"], direction=["minimize"]), TypeError, "a list of numbers, one for each direction"),
    "no time": (dict(timeout=0), RuntimeError, "No trial was completed"),
}


@pytest.mark.parametrize("what", SEARCHES)
def test_searches(what):
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    given, kind, words = SEARCHES[what]
    learn = learner(eval_dataset=ROWS)
    refused(lambda: learn.hyperparameter_search(**{"n_trials": 1} | given), kind, words)
    assert learn.step()[0].step == 1


def test_an_objective_that_asks_for_another_metric():
    pytest.importorskip("optuna")
    learn = learner(eval_dataset=ROWS)
    with pytest.raises(KeyError) as raised: learn.hyperparameter_search(lambda trial: {}, lambda metrics: metrics["eval_accuracy"], n_trials=1)
    assert "which was given eval_loss, " in raised.value.__notes__[0]


# --- mistakes with the data's form ----------------------------------------------------------------------------------------

class Columns(nn.Module):
    def __init__(self): super().__init__(); self.layer = nn.Linear(4, 3)
    def forward(self, x): return self.layer(x)


class WithoutForward(nn.Module):
    "A module of Lightning, with another base class."
    def __init__(self): super().__init__(); self.layer = nn.Linear(4, 3)
    def training_step(self, batch, batch_idx): return F.cross_entropy(self.layer(batch[0]), batch[1])


class StepOfBatch(Learner):
    def training_step(self, batch, batch_idx): return F.cross_entropy(self.model(batch[0]), batch[1])


class StepOfBatchAlone(Learner):
    def training_step(self, batch): return F.cross_entropy(self.model(batch[0]), batch[1])


PAIRS = [(x, int(y)) for x, y in zip(X, Y)]
RENAMED = [{"features": x, "label": int(y)} for x, y in zip(X, Y)]
PATHS = [(f"pictures/{i}.png", i % 3) for i in range(20)]
LAST = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(72, 3))

FORMS = {
    "loss by name": (lambda: plain(loss_func="cross_entropy"), TypeError, "not 'cross_entropy'; give torch.nn.functional.cross_entropy"),
    "metrics by name": (lambda: plain(compute_metrics="accuracy"), TypeError, r"not 'accuracy'; .*compute_metrics\(prediction\)"),
    "columns left out": (lambda: plain(Columns(), RENAMED).step(), TypeError, "forward needs 'x'"),
    "collator with a list": (lambda: plain(Columns(), ROWS, data_collator=lambda s: {"x": torch.stack([r["x"] for r in s]), "labels": [r["labels"] for r in s]}).step(), TypeError, r"labels"),
    "paths": (lambda: plain(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), PATHS).step(), TypeError, r"'pictures/\d+.png'"),
    "channels last": (lambda: plain(LAST, [(torch.rand(8, 8, 3), i % 3) for i in range(20)]).step(), ValueError, r"shape \(8, 8, 8, 3\)"),
    "several samples": (lambda: plain(data=PAIRS).predict_one(PAIRS[:3]), TypeError, r"predict_one\(\) takes one sample, not a list; learn.predict\("),
    "several rows": (lambda: learner().predict_one(ROWS[:3]), TypeError, r"predict_one\(\) takes one sample, not a list; learn.predict\("),
    "no forward": (lambda: plain(WithoutForward()).step(), TypeError, "WithoutForward has no forward.*training_step.*compute_loss"),
    "a parameter in two optimizers": (lambda: plain(optimizers=dict.fromkeys("ab", lambda model: torch.optim.SGD([model.weight], lr=1))).step(), ValueError, "'a' and 'b' have the same"),
    "batch and index": (lambda: plain(cls=StepOfBatch), TypeError, r"training_step\(model, inputs, num_items_in_batch=None\)"),
    "batch alone": (lambda: plain(cls=StepOfBatchAlone), TypeError, r"training_step\(model, inputs, num_items_in_batch=None\)"),
}


@pytest.mark.parametrize("what", FORMS)
def test_form_of_data(what): refused(*FORMS[what])


def test_a_folder_is_not_a_data_set(tmp_path):
    refused(lambda: plain(data=str(tmp_path)), TypeError, r"is the folder .*torchvision.datasets.ImageFolder\(")
    refused(lambda: plain(data=tmp_path), TypeError, r"is the folder .*torchvision.datasets.ImageFolder\(")


def test_a_table_becomes_a_data_set_as_the_error_says():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(X.double().numpy(), columns=list("abcd")).assign(y=Y.numpy())
    text = refused(lambda: plain(data=table), TypeError, "table of pandas; .*TensorDataset")
    code = re.search(r"TensorDataset\(.*\)", text).group().replace("'label'", "'y'")
    data = eval(code, {"torch": torch, "TensorDataset": TensorDataset, "table": table})
    assert plain(data=data).step()[0].loss > 0


def test_a_list_of_numbers_is_one_sample():
    "Not several."
    assert plain(data=PAIRS).predict_one([0.0, 1.0, 2.0, 3.0]).probability > 0


def test_data_where_a_number_of_epochs_is_expected():
    "A user of scikit-learn gives the data to fit()."
    learn, x, y = hard_learner(), torch.zeros(8, 4), torch.zeros(8)
    with pytest.raises(TypeError, match=r"fit\(\) was given 'epochs' twice: tensor.* by its position, and 2 by its name"): learn.fit(x, y, epochs=2)
    with pytest.raises(TypeError, match=r"epochs is a whole number, not tensor.*Learner\(model, train_dataset=...\)") as error: learn.fit(x, y)
    assert len(str(error.value)) < 200


def test_a_single_row_is_no_data_set():
    learn = Learner(torch.nn.Linear(6, 2), loss_func=torch.nn.functional.cross_entropy, use_cpu=True)
    with pytest.raises(TypeError, match=r"one row of numbers: .*learn.predict_one\(sample\)"): learn.predict(torch.zeros(6))
    with pytest.raises(TypeError, match=r"a number: .*learn.predict_one\(sample\)"): learn.predict(torch.tensor(1.0))

"Mistakes of people who come from the Trainer, fastai or plain torch: one sentence with the cause and what to type, and the run can go on."
import inspect
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from trainer_nb import Learner, TrainingArguments, compare, set_seed


pytestmark = pytest.mark.usefixtures("one_thread")


class Net(nn.Module):
    def __init__(self): super().__init__(); self.layer = nn.Linear(4, 3)
    def forward(self, x, labels=None):
        logits = self.layer(x)
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


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
    "train(n)": (lambda learn: learn.train(5), TypeError, r"no number of epochs: learn.run\(epochs=5\)"),
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
    "evaluate(keys)": (lambda learn: learn.evaluate(ROWS, "logits"), TypeError, "ignore_keys='logits', of type str; it should be a list of text or None"),
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
    "compare(learn, 5)": (lambda learn: compare(learn, 5), TypeError, r"takes two learners.*not 5"),
    "compare(class)": (lambda learn: compare(learn, Learner), TypeError, r"not the class Learner"),
    "compare(None)": (lambda learn: compare(None, learn), TypeError, r"not None"),
    "fit": (lambda learn: learn.fit(5), AttributeError, r"no attribute 'fit': learn.train\(\)"),
    "fit_one_cycle": (lambda learn: learn.fit_one_cycle(5), AttributeError, "lr_scheduler_type='one_cycle'"),
    "fine_tune": (lambda learn: learn.fine_tune(5), AttributeError, r"learn.freeze\(\).*learn.unfreeze\(\)"),
    "validate": (lambda learn: learn.validate(), AttributeError, r"learn.evaluate\(\)"),
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
    for verb, hints in Learner.argument_hints.items():
        for name in hints:
            if not name or name in inspect.signature(getattr(learn, verb)).parameters: continue
            text = refused(lambda: getattr(learn, verb)(**{name: 5}), TypeError, re.escape(f"{verb}() has no argument {name!r}"))
            assert "{" not in text
    from trainer_nb.trainer_compat import ATTRIBUTE_HINTS
    for name in ATTRIBUTE_HINTS:
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

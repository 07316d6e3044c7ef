"Mistakes are refused in a sentence that names the thing and says what to type instead, and the run can go on where it began."
import copy

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

from trainer_nb import Learner, InvalidOperation, TrainerCallback, TrainingArguments, differences
from trainer_nb.core.callbacks import EVENTS
from toys import Augmented, Bomb, Boom, finish, hard_learner, outcome, told, unequal


pytestmark = pytest.mark.usefixtures("one_thread")


class Net(nn.Module):
    "What it returns can be spoilt."
    def __init__(self, classes=3, returns="loss"): super().__init__(); self.layer, self.returns = nn.Linear(4, classes), returns
    def forward(self, x, labels=None):
        logits = self.layer(x)
        loss = nn.functional.cross_entropy(logits, labels, reduction="none" if self.returns == "vector" else "mean")
        if self.returns == "number": loss = loss.item()
        return {"no loss": {"logits": logits}, "tensor": logits, "nothing": None, "cut": {"loss": logits.detach().sum()},
                "rounded": {"loss": logits.argmax(-1).sum()}}.get(self.returns, {"loss": loss, "logits": logits})


def frozen():
    model = Net()
    for p in model.parameters(): p.requires_grad_(False)
    return model


ROWS = [{"x": torch.randn(4, generator=torch.Generator().manual_seed(i)), "labels": i % 3} for i in range(20)]


class Endless(IterableDataset):
    def __iter__(self): yield from ROWS


class Once(IterableDataset):
    def __init__(self): self.rows = iter(ROWS)
    def __iter__(self): return self.rows


def learner(model=None, train_dataset=ROWS, cls=Learner, **given):
    return cls(Net() if model is None else model, train_dataset=train_dataset, **{"use_cpu": True, "disable_tqdm": True} | given)


def ragged(kind): return [{"x": kind([0.0] * (4 + i % 2)), "labels": 0} for i in range(20)]


def labelled(first): return [{**row, "labels": row["labels"] + first} for row in ROWS]


class NoLoader(Learner):
    def get_train_dataloader(self): return None


class NoOptimizer(Learner):
    def create_optimizer(self, model=None): return None


class NoSchedule(Learner):
    def create_scheduler(self, num_training_steps, optimizer=None): return None


def is_one_sentence(text): return len(text) < 330 and text[-1] in ".?" and "\n" not in text


# --- before the first step ---------------------------------------------------------------------------------------------

MADE = {  # what is typed: the kind of error, and words that its message has to have
    "no model": (lambda: Learner(train_dataset=ROWS), ValueError, "no model.*model_init="),
    "model twice": (lambda: learner(model_init=Net), ValueError, "Both model and model_init"),
    "model's name": (lambda: learner("bert-base"), TypeError, "model is str, not a torch.nn.Module.*model_init="),
    "loss twice": (lambda: learner(loss_func=len, compute_loss_func=len), ValueError, "Both loss_func and compute_loss_func"),
    "optimizers": (lambda: learner(optimizers=3), TypeError, r"optimizers must be a pair \(optimizer, lr_scheduler\)"),
    "callback": (lambda: learner(callbacks=[3]), TypeError, "3 is not a callback.*TrainerCallback.*on_step_end"),
    "callback function": (lambda: learner(callbacks=[lambda *a: 0]), TypeError, "not a callback"),
    "callback alone": (lambda: learner(callbacks=told()), TypeError, r"callbacks is a list.*callbacks=\[\.\.\.\]"),
    "collator": (lambda: learner(data_collator=3), TypeError, "data_collator is a function, not 3"),
    "metrics": (lambda: learner(compute_metrics={}), TypeError, "compute_metrics is a function"),
    "unknown argument": (lambda: learner(learning_rat=1), TypeError, "no argument `learning_rat`.*'learning_rate'"),
    "unknown in arguments": (lambda: TrainingArguments(wamup_steps=1), TypeError, "'warmup_steps'"),
    "optimizer's name": (lambda: learner(optim="adamw_torc"), ValueError, "optim='adamw_torc' is not one of.*'adamw_torch'"),
    "schedule's name": (lambda: learner(lr_scheduler_type="cosin"), ValueError, "Did you mean 'cosine'"),
    "two precisions": (lambda: learner(fp16=True, bf16=True), ValueError, "fp16 and bf16 exclude each other"),
    "no steps, no epochs": (lambda: learner(num_train_epochs=0), ValueError, "nothing would be trained"),
    "negative epochs": (lambda: learner(num_train_epochs=-1), ValueError, "num_train_epochs=-1.*nothing would be trained"),
    "negative steps": (lambda: learner(max_steps=-5, num_train_epochs=0), ValueError, "max_steps=-5"),
    "empty batches": (lambda: learner(per_device_train_batch_size=0), ValueError, "per_device_train_batch_size=0 should be at least 1"),
    "no accumulation": (lambda: learner(gradient_accumulation_steps=0), ValueError, "at least 1"),
    "negative rate": (lambda: learner(learning_rate=-1.0), ValueError, "learning_rate=-1.0 should be 0 or more"),
    "rate in quotes": (lambda: learner(learning_rate="1e-4"), ValueError, "without quotes"),
    "logging never": (lambda: learner(logging_steps=0), ValueError, "logging_strategy='no'"),
    "smoothing of a loss function": (lambda: learner(loss_func=nn.functional.cross_entropy, label_smoothing_factor=0.1), ValueError, "CrossEntropyLoss"),
    "a generator": (lambda: learner(train_dataset=(row for row in ROWS), max_steps=30), TypeError, "a generator, which can be read only once.*from_generator"),
}


@pytest.mark.parametrize("what", MADE)
def test_refused_when_made(what):
    make, kind, words = MADE[what]
    with pytest.raises(kind, match=words) as raised: make()
    assert is_one_sentence(raised.value.args[0])


TRAINED = {
    "no data": (lambda: learner(train_dataset=None), ValueError, "nothing to train on.*train_dataset="),
    "empty data": (lambda: learner(train_dataset=[]), ValueError, "train_dataset is empty"),
    "no length": (lambda: learner(train_dataset=Endless()), ValueError, "no length.*max_steps="),
    "fewer than a batch": (lambda: learner(dataloader_drop_last=True, per_device_train_batch_size=64), ValueError, "no batches.*dataloader_drop_last"),
    "other columns": (lambda: learner(train_dataset=[{"image": 1.0, "target": 0}] * 9), ValueError, r"\(image, target\).*Net's forward.*rename.*remove_unused_columns=False"),
    "no loader": (lambda: learner(cls=NoLoader), TypeError, "get_train_dataloader returned NoneType"),
    "no optimizer": (lambda: learner(cls=NoOptimizer), TypeError, "create_optimizer made no optimizer.*self.optimizer"),
    "no schedule": (lambda: learner(cls=NoSchedule), TypeError, "create_scheduler made no schedule.*self.lr_scheduler"),
    "no module": (lambda: Learner(model_init=lambda: "bert", train_dataset=ROWS, use_cpu=True), TypeError, "model_init returned str, not a torch.nn.Module"),
    "all frozen": (lambda: learner(frozen()), ValueError, r"Every parameter.*frozen.*learn.unfreeze\(\)"),
    "all frozen, with an optimizer": (lambda: learner(net := frozen(), optimizers=(torch.optim.SGD(net.parameters(), lr=0.1), None)), ValueError,
                                      r"Every parameter.*frozen.*learn.unfreeze\(\)"),
    "labels too high": (lambda: learner(Net(2)), ValueError, "labels of this batch go from 0 to 2.*number the classes from 0"),
    "labels too low": (lambda: learner(train_dataset=labelled(-5)), ValueError, "go from -5 to -3"),
    "labels too high for a function": (lambda: learner(nn.Linear(4, 2), [(r["x"], r["labels"]) for r in ROWS], loss_func=nn.functional.cross_entropy), ValueError,
                                       r"go from 0 to 2, but the model has 2 outputs \(0 to 1\)"),
    "ragged tensors": (lambda: learner(train_dataset=ragged(torch.tensor)), ValueError, r"different lengths in 'x' \(\(4,\), \(5,\)\).*data_collator=.*pad_sequence"),
    "ragged lists": (lambda: learner(train_dataset=ragged(list)), ValueError, r"different lengths in 'x' \(4, 5\).*data_collator=.*pad_sequence"),
    "ragged pairs": (lambda: learner(nn.Linear(4, 3), [(r["x"], r["labels"]) for r in ragged(torch.tensor)], loss_func=nn.functional.cross_entropy), ValueError, "different lengths in 'item 0'"),
    "no loss": (lambda: learner(Net(returns="no loss")), ValueError, "returned no loss from x, labels, only logits.*loss_func="),
    "a tensor for a loss": (lambda: learner(Net(returns="tensor")), ValueError, r"a tensor of shape \(8, 3\).*loss_func="),
    "nothing for a loss": (lambda: learner(Net(returns="nothing")), ValueError, "returned no loss, but a NoneType"),
    "loss of each sample": (lambda: learner(Net(returns="vector")), ValueError, r"loss has shape \(8,\).*loss.mean\(\)"),
    "loss cut off": (lambda: learner(Net(returns="cut")), ValueError, "does not depend on any trainable parameter.*detach"),
    "loss of integers": (lambda: learner(Net(returns="rounded")), ValueError, "does not depend on any trainable parameter.*argmax"),
    "loss as a number": (lambda: learner(Net(returns="number")), TypeError, "The loss is a float, not a tensor"),
    "a stream that was read": (lambda: learner(train_dataset=Once(), max_steps=30), ValueError, "gave no batches in this epoch.*only once"),
    "a scripted model": (lambda: learner(torch.jit.script(nn.Linear(4, 3)), loss_func=nn.functional.cross_entropy), TypeError, "scripted.*the module that was scripted"),
    "metric's name": (lambda: learner(eval_dataset=ROWS, eval_strategy="epoch", metric_for_best_model="acc"), KeyError, r"'acc', but the evaluation gave eval_loss.*learn.set\(metric_for_best_model"),
}


@pytest.mark.parametrize("verb", [lambda learn: learn.train(), lambda learn: [learn.step() for _ in range(30)], lambda learn: list(learn.steps())], ids=["train", "step", "steps"])
@pytest.mark.parametrize("what", TRAINED)
def test_refused_when_trained(what, verb):
    "The same words when it is tried again, and nothing half done: no gradient, no phase, weights of a whole step."
    make, kind, words = TRAINED[what]
    learn = make()
    for _ in range(2):
        with pytest.raises(kind, match=words) as raised: verb(learn)
        assert is_one_sentence(raised.value.args[0]) and learn.run_state.verb.phase == "idle" and not learn.run_state.current.corrupted
        if learn.run_state.model is not None: assert all(p.grad is None for p in learn.model.parameters())


def test_put_right_in_place():
    "What was missing can be given, or changed, and the same learner goes on."
    learn = learner(train_dataset=None)
    with pytest.raises(ValueError): learn.train()
    learn.train_dataset = ROWS
    learn.train()
    learn = learner(Net(returns="cut"))
    with pytest.raises(ValueError): learn.train()
    learn.model.returns = "loss"
    learn.train()
    learn = learner(eval_dataset=ROWS, eval_strategy="epoch", metric_for_best_model="acc", greater_is_better=False)
    with pytest.raises(KeyError): learn.train()
    learn.set(metric_for_best_model="loss")
    learn.train()
    assert learn.state.best_global_step in (3, 6, 9) and len(learn.history.evaluations()) == 3


def test_a_bad_batch_in_the_middle():
    "A batch that cannot be trained on does not harm those before it; with the data put right, the run ends as if it had been right."
    def make(rows):
        torch.manual_seed(0)
        return learner(Net(), rows, per_device_train_batch_size=2)
    bad = [*ROWS[:7], {"x": torch.zeros(5), "labels": 0}, *ROWS[8:]]
    learn = make(bad)
    for _ in range(2):
        with pytest.raises(ValueError, match="different lengths"): learn.train()
    assert 0 < learn.state.global_step < 10
    bad[7] = ROWS[7]
    assert unequal(finish(learn), finish(make(ROWS))) == []


# --- numbers of steps --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("n, kind, words", [(0, ValueError, "from 1 on, not 0"), (-1, ValueError, "from 1 on, not -1"), ("3", TypeError, "whole number of steps, not '3'"),
                                            (2.5, TypeError, "not 2.5"), (True, TypeError, "not True"), (None, TypeError, "not None")], ids=str)
def test_step_of(n, kind, words):
    learn = hard_learner()
    before = learn.snapshot()
    with pytest.raises(kind, match=words): learn.step(n)
    if n is not None:
        with pytest.raises(kind, match=words): learn.run(steps=n)
    assert differences(before, learn.snapshot()) == [] and len(learn.step(1)) == 1


@pytest.mark.parametrize("given, words", [({"epochs": 0}, "above 0"), ({"epochs": -1}, "above 0"), ({"epochs": "3"}, "above 0, not '3'"), ({"epochs": True}, "above 0"),
                                          ({"until": 3}, "until is a function")], ids=str)
def test_run_of(given, words):
    learn = hard_learner()
    with pytest.raises((ValueError, TypeError), match=words): learn.run(**given)
    assert learn.state.global_step == 0


def test_after_the_end():
    "A finished run says what extends it; train() begins a new one from the present weights."
    learn = hard_learner()
    learn.train()
    for verb in (learn.step, lambda: learn.run(steps=2), lambda: next(learn.steps()), learn.start):
        with pytest.raises(InvalidOperation, match=r"finished after step 6.*learn.fit\(epochs, lr\) trains on.*learn.set\(max_steps"): verb()
    with pytest.raises(InvalidOperation, match=r"finished after step 6.*learn.set\(max_steps.*learn.plan\(epochs, lr\)"): learn.debug_step()
    trained = {n: p.clone() for n, p in learn.model.named_parameters()}
    before = learn.history.run_id
    assert learn.train().global_step == 6 and learn.history.parent == before and len(learn.history) == 6
    assert not all(torch.equal(p, trained[n]) for n, p in learn.model.named_parameters())


def test_train_twice_equals_two_learners():
    "The second run is that of a new learner on the trained model with its optimizer's state, as at the Trainer."
    learn = hard_learner()
    learn.train()
    model = type(learn.model)()
    model.load_state_dict(learn.model.state_dict())
    model.calls, model.last = learn.model.calls.clone(), learn.model.last.clone()   # not in a state_dict
    other = hard_learner(model=model)
    optimizer = other.create_optimizer()
    optimizer.load_state_dict(copy.deepcopy(learn.optimizer.state_dict()))
    other.optimizer = optimizer
    assert unequal(finish(other), finish(learn)) == []


def test_set():
    learn = hard_learner()
    learn.step(2)
    before = learn.snapshot()
    for change, kind, words in ((dict(learning_rat=1), TypeError, "no setting 'learning_rat'.*'learning_rate'"), (dict(seed=1), ValueError, "seed cannot be changed.*new Learner"),
                                (dict(lr=-1.0), ValueError, "above 0"), (dict(lr=0.1, learning_rate=0.1), ValueError, "lr and learning_rate"), (dict(max_steps=1), ValueError, "lies behind.*learn.restore"),
                                (dict(per_device_train_batch_size=0), ValueError, "at least 1"), (dict(lr=0.1, max_steps=1), ValueError, "lies behind"),
                                (dict(weight_decay=0.1, gradient_accumulation_steps="2"), ValueError, "gradient_accumulation_steps='2'")):
        with pytest.raises(kind, match=words): learn.set(**change)
        assert differences(before, learn.snapshot()) == [], change
    learn.train()


def test_restore():
    learn = hard_learner()
    with pytest.raises(KeyError, match="no snapshot 'befor'; there are: none"): learn.restore("befor")
    learn.snapshot("before")
    with pytest.raises(KeyError, match="Did you mean 'before'"): learn.restore("befor")
    other = learner()
    before = other.snapshot()
    with pytest.raises(ValueError, match="snapshot is of another model"): other.restore(learn.snapshots["before"])
    assert differences(before, other.snapshot()) == []


def test_looking():
    "Verbs that look say what they miss."
    learn = learner()
    for verb, words in ((learn.evaluate, r"eval_dataset=.*evaluate\(dataset\)"), (learn.top_losses, "top_losses.*eval_dataset="), (lambda: learn.predict(None), r"predict\(dataset\)"),
                        (lambda: learn.evaluate([]), "empty")):
        with pytest.raises(ValueError, match=words): verb()
    learn.train()


# --- verbs in the wrong place ------------------------------------------------------------------------------------------

TRAINING = {"step": lambda learn: learn.step(), "run": lambda learn: learn.run(steps=1), "train": lambda learn: learn.train(), "steps": lambda learn: next(learn.steps()),
            "debug_step": lambda learn: learn.debug_step(), "free": lambda learn: learn.free(), "snapshot": lambda learn: learn.snapshot()}
INSIDE = ("on_step_begin", "on_substep_end", "on_pre_optimizer_step", "on_optimizer_step")   # of a step
TOLD = [event for event in EVENTS if event not in ("on_init_end", "on_save", "on_push_begin", "on_finding")]
EVALUATED = dict(eval_dataset=Augmented(10), eval_strategy="steps", eval_steps=2)


class Tries(TrainerCallback):
    "Does something at an event, once, at a step of its choice (None: whenever it is)."
    not_state = ("answers", "at")   # a run that goes back would ask again
    def __init__(self, event, act, at=None):
        self.answers, self.act, self.at = [], act, at
        setattr(self, event, self.attempt)
    def attempt(self, args, state, control, learner=None, **kwargs):
        if self.answers or self.at not in (None, state.global_step): return
        self.answers.append("called")
        try: self.answers.append(self.act(learner))
        except Exception as error: self.answers.append(error)


def bring_about(event, learn):
    "Let an event happen that does not come by itself."
    if event == "on_exception":
        learn.step(2)
        learn.model.hook = Bomb("forward", 1)
        with pytest.raises(Boom): learn.step()
    if event in ("on_pause", "on_resume"):
        learn.add_callback(Tries("on_step_end", lambda learn: learn.pause(), at=2))
        learn.train()
    if event == "on_predict": learn.step(2); learn.predict(Augmented(10))


@pytest.fixture(scope="module")
def evaluated(): return finish(hard_learner(**EVALUATED))


@pytest.mark.parametrize("event", TOLD)
def test_training_within_training(evaluated, event):
    "A verb that trains, called by a callback at any event, is refused, and the run does not notice."
    for name, verb in TRAINING.items():
        tries = Tries(event, verb)
        learn = hard_learner(callbacks=[tries], **EVALUATED)
        bring_about(event, learn)
        learn.train()
        assert isinstance(tries.answers[1], InvalidOperation) and f"{name}() was called" in str(tries.answers[1]), (name, tries.answers)
        assert ("inside a step" if event in INSIDE else "is running") in str(tries.answers[1])
        assert unequal(outcome(learn), evaluated) == [], name


@pytest.mark.parametrize("event", ["on_prediction_step", "on_evaluate", "on_predict", "on_log"])
def test_training_within_looking(event):
    "So it is within an evaluation, or a prediction, by hand."
    for name, verb in TRAINING.items():
        tries = Tries(event, verb)
        learn = hard_learner()
        learn.step()
        learn.add_callback(tries)
        learn.predict(Augmented(10)) if event == "on_predict" else learn.evaluate(Augmented(10))
        assert isinstance(tries.answers[1], InvalidOperation), (name, tries.answers)
        learn.train()
        assert unequal(outcome(learn)[:2] + ([],), finish(hard_learner())[:2] + ([],)) == []


def test_asked_while_looking():
    "What a callback asks for, or logs, within an evaluation by hand: it waits for the end of it, no longer."
    rates = []
    def ask(learn):
        learn.log({"asked": 1.0})
        learn.set(weight_decay=0.5)
        rates.append(learn.args.weight_decay)
        with pytest.raises(InvalidOperation): learn.step()
    learn = hard_learner()
    learn.step()
    learn.add_callback(Tries("on_prediction_step", ask))
    metrics = learn.evaluate(Augmented(10))
    assert rates == [0.0] and learn.args.weight_decay == 0.5 and metrics["eval_asked"] == 1.0
    learn.train()


def test_training_within_moves():
    "And from a model's forward, a loss function, a data set, an open debug step."
    learn = hard_learner()
    answers = []
    def tries(name):
        if name != "forward" or len(answers) > 6: return
        try: list(TRAINING.values())[len(answers)](learn)
        except InvalidOperation as error: answers.append(str(error))
    learn.model.hook = tries
    learn.train()
    assert len(answers) == 7 and all("from inside a step" in answer for answer in answers)
    learn = hard_learner()
    with learn.debug_step() as step:
        step.forward()
        for verb in [v for n, v in TRAINING.items() if n != "debug_step"] + [lambda l: l.set(lr=0.1), lambda l: l.restore("a"), lambda l: l.evaluate(Augmented(10)), lambda l: l.reset()]:
            with pytest.raises(InvalidOperation, match="debug step is open.*update.*abort"): verb(learn)
        for wrong in (step.forward, step.update):
            with pytest.raises(InvalidOperation, match=r"backward\(\) is \(micro-batch 1 of 3\)"): wrong()
    assert unequal(finish(learn), finish(hard_learner())) == []


ASKED = {"set": lambda learn: learn.set(weight_decay=0.5), "restore": lambda learn: learn.restore("start"), "freeze": lambda learn: learn.freeze("inner"), "reset": lambda learn: learn.reset()}


@pytest.mark.parametrize("event", [event for event in TOLD if event not in ("on_train_begin", "on_epoch_begin", "on_epoch_end", "on_train_end")])
def test_asked_by_a_callback(event):
    "What changes the run is refused inside a step, and put off to the boundary after it."
    for name, ask in ASKED.items():
        tries, heard = Tries(event, ask, at=2), told()
        learn = hard_learner(callbacks=[tries, heard], **EVALUATED)
        learn.snapshot("start")
        bring_about(event, learn)
        while not learn.run_state.finished: learn.train()
        steps = sum(e == "on_step_end" for e, _ in heard.heard)
        if event in INSIDE:
            assert isinstance(tries.answers[1], InvalidOperation) and f"{name}() was called from inside a step" in str(tries.answers[1])
            assert steps == 6 and learn.args.weight_decay == 0 and learn.model.inner.weight.requires_grad
            continue
        assert tries.answers[1] is None, (name, tries.answers)
        assert steps == (8 if name in ("restore", "reset") else 6) and learn.state.global_step == 6
        assert learn.args.weight_decay == (0.5 if name == "set" else 0) and learn.model.inner.weight.requires_grad == (name != "freeze")
        assert not learn.run_state.verb.deferred_changes


@pytest.mark.parametrize("event, rate", [("on_train_begin", 1), ("on_epoch_begin", 1), ("on_step_end", 2), ("on_epoch_end", 4), ("on_log", 3)])
def test_set_counts_from_the_next_step(event, rate):
    "A setting asked for at an event is in force at the very next step, also where that is the first of an epoch."
    at = {"on_train_begin": 0, "on_epoch_begin": 0, "on_step_end": 1, "on_epoch_end": 3, "on_log": 2}[event]
    tries = Tries(event, lambda learn: learn.set(learning_rate=0.5), at=at)
    learn = hard_learner(lr_scheduler_type="constant", warmup_steps=0, callbacks=[tries])
    learn.train()
    assert learn.history.column("learning_rate").tolist() == [0.01] * (rate - 1) + [0.5] * (7 - rate)


def test_ask_after_a_failed_event():
    "If the event that asks comes only when the run goes on, what it asks for still comes before the next step."
    fails, asks = Tries("on_step_end", lambda learn: None, at=2), Tries("on_step_end", lambda learn: learn.set(learning_rate=0.5), at=2)
    def attempt(args, state, control, **kwargs):
        if state.global_step == 2 and not fails.answers: fails.answers.append("raised"); raise Boom
    fails.on_step_end = attempt
    learn = hard_learner(lr_scheduler_type="constant", warmup_steps=0, callbacks=[fails, asks])
    with pytest.raises(Boom): learn.train()
    assert not asks.answers
    learn.train()
    assert learn.history.column("learning_rate").tolist() == [0.01] * 2 + [0.5] * 4


def test_on_init_end():
    "Nothing can be trained while the learner is being made."
    tries = Tries("on_init_end", lambda learn: learn.step())
    learn = hard_learner(callbacks=[tries])
    assert isinstance(tries.answers[1], InvalidOperation)
    learn.train()


# --- what is data, but no data set; what is meant by another name ---------------------------------------------------------

@pytest.mark.parametrize("data, match", [
    ((torch.zeros(5, 4), torch.zeros(5)), "TensorDataset"), ({"x": [1, 2]}, "from_dict"), ("imdb", "no data set"), (5, "no data set"),
])
def test_no_data_sets(data, match):
    given = dict(loss_func=torch.nn.functional.cross_entropy, use_cpu=True, max_steps=2)
    with pytest.raises(TypeError, match=match): Learner(torch.nn.Linear(4, 3), train_dataset=data, **given)
    learn = Learner(torch.nn.Linear(4, 3), **given)
    with pytest.raises(TypeError, match=match): learn.train_dataset = data
    assert learn.train_dataset is None


def test_more_mistakes():
    linear, pairs = torch.nn.Linear(4, 3), [(torch.zeros(4), 0)] * 8
    with pytest.raises(TypeError, match=r"class CrossEntropyLoss.*CrossEntropyLoss\("): Learner(linear, train_dataset=pairs, loss_func=torch.nn.CrossEntropyLoss)
    with pytest.raises(ValueError, match="num_train_epochs=inf"): Learner(linear, num_train_epochs=float("inf"))
    learn = Learner(linear, train_dataset=pairs, eval_dataset={"a": pairs}, loss_func=torch.nn.functional.cross_entropy, use_cpu=True, max_steps=9)
    with pytest.raises(ValueError, match="there are: 'a'"): learn.evaluate("b")
    with torch.no_grad():
        with pytest.raises(ValueError, match="Gradients are switched off"): learn.step()
    lazy = Learner(torch.nn.LazyLinear(3), train_dataset=pairs, loss_func=torch.nn.functional.cross_entropy, use_cpu=True, max_steps=2)
    with pytest.raises(ValueError, match="Run one batch through the model"): lazy.step()
    assert len(learn.step(__import__("numpy").int64(2))) == 2


def test_a_callback_that_returns_something_else():
    class Says(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs): return True
    learn = Learner(torch.nn.Linear(4, 3), train_dataset=[(torch.zeros(4), 0)] * 8, loss_func=torch.nn.functional.cross_entropy, use_cpu=True, max_steps=3, callbacks=[Says])
    with pytest.raises(TypeError, match="returned True; return the `control`"): learn.step()
    learn.remove_callback(Says)
    assert learn.train().global_step == 3


def test_quantized_models_without_adapters_are_refused():
    model = Net()
    model.is_quantized = True
    with pytest.raises(InvalidOperation, match="attach adapters"): Learner(model, train_dataset=ROWS, use_cpu=True)
    for placed in ({"": 0}, {"a": 0, "b": "cpu"}):   # in tests/device/test_spread_models.py more of these
        model = Net()
        model.hf_device_map, model.is_quantized = placed, False
        Learner(model, train_dataset=ROWS, use_cpu=True)


def test_settings_that_have_no_effect_are_told():
    "Beside an optimizer, a schedule or an optimizer's class of the user's own; and a smoothing that a loss function would not see."
    given = dict(train_dataset=ROWS, use_cpu=True, disable_tqdm=True)
    with pytest.warns(UserWarning) as said:
        Learner(Net(), optimizer_cls_and_kwargs=(torch.optim.AdamW, {"weight_decay": 0.1}), learning_rate=0.3, adam_beta1=0.5, **given).step()
    assert any("learning_rate, adam_beta1 has no effect" in str(w.message) for w in said) and any("weight_decay=0.1 among the keywords" in str(w.message) for w in said)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning) as said:
        Learner(model, optimizers=(optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer)), adam_beta1=0.5, warmup_steps=3, **given).step()
    assert any("adam_beta1 has no effect: the optimizer" in str(w.message) for w in said) and any("warmup_steps has no effect: the schedule" in str(w.message) for w in said)
    learn = Learner(nn.Linear(4, 3), loss_func=nn.functional.cross_entropy, train_dataset=[(r["x"], torch.tensor(r["labels"])) for r in ROWS], use_cpu=True, disable_tqdm=True)
    learn.step()
    with pytest.raises(ValueError, match="label_smoothing_factor works on the model's own loss"): learn.set(label_smoothing_factor=0.3)
    assert learn.args.label_smoothing_factor == 0 and learn.step()
    with pytest.raises(ValueError, match="several for each sample"):
        class Plain(nn.Linear):
            def forward(self, x, labels=None): return {"logits": super().forward(x)}
        Learner(Plain(4, 3), label_smoothing_factor=0.1, train_dataset=[{"x": r["x"], "labels": torch.ones(3)} for r in ROWS], use_cpu=True, disable_tqdm=True).step()


def test_a_dict_of_data_sets_is_not_one():
    datasets = pytest.importorskip("datasets")
    data = datasets.DatasetDict(train=datasets.Dataset.from_list([{"x": [0.0] * 4, "labels": 1}]), test=datasets.Dataset.from_list([]))
    with pytest.raises(TypeError, match=r"dict of data sets \(train, test\); give one of them, such as data\['train'\]"): Learner(Net(), train_dataset=data, use_cpu=True).step()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_batch_without_samples(reduction):
    "Its mean is NaN, and so would be all weights; its sum is no error."
    def drops(rows): return {"x": torch.stack([r["x"] for r in rows])[len(rows):], "labels": torch.tensor([r["labels"] for r in rows])[len(rows):]}
    learn = learner(nn.Linear(4, 3), data_collator=drops, cls=Plain, max_steps=2, remove_unused_columns=False)
    learn.reduction = reduction
    if reduction == "sum":
        assert learn.step(1)[0].loss == 0
        return
    with pytest.raises(ValueError, match="step 1 has no samples"): learn.step(1)
    assert learn.state.global_step == 0


class Plain(Learner):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return nn.functional.cross_entropy(model(inputs["x"]), inputs["labels"], reduction=self.reduction)

"Optimizers and schedules that overrides make, or that are assigned: with which settings, for how many steps, and after what."
import pytest
import torch

from toys import finish, hard_learner, hard_model, unequal
from trainer_nb import Learner


def rates(learn): return [float(record.learning_rate) for record in learn.history]


class OwnSchedule(Learner):
    def create_scheduler(self, num_training_steps, optimizer=None):
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, lambda step: max(0.0, 1 - step / num_training_steps))
        return self.lr_scheduler


class RecursiveSchedule(Learner):
    "Each rate is computed from the one before."
    def create_scheduler(self, num_training_steps, optimizer=None):
        self.lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer or self.optimizer, 1, gamma=0.5)
        return self.lr_scheduler


class OwnOptimizer(Learner):
    def create_optimizer(self, model=None):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=2 * self.args.learning_rate)
        return self.optimizer


class OwnBoth(Learner):
    def create_optimizer_and_scheduler(self, num_training_steps):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.args.learning_rate)
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: max(0.0, 1 - step / num_training_steps))


OWN = [OwnSchedule, RecursiveSchedule, OwnBoth]


@pytest.mark.parametrize("cls", OWN)
def test_a_new_run_has_a_new_schedule(cls, capfd):
    "As in the Trainer, which calls create_scheduler in each train()."
    learn = hard_learner(cls=cls)
    learn.train()
    first = rates(learn)
    learn.train()
    assert rates(learn) == first and all(first)
    assert f"{'the optimizer of create_optimizer_and_scheduler()' if cls is OwnBoth else ''}, a new schedule" in capfd.readouterr().out


@pytest.mark.parametrize("cls", OWN)
def test_a_new_run_of_another_length_has_a_schedule_of_that_length(cls):
    learn, want = hard_learner(cls=cls), hard_learner(cls=cls, num_train_epochs=3)
    learn.train()
    learn.args.num_train_epochs = 3
    learn.train()
    want.train()
    assert rates(learn) == rates(want)


@pytest.mark.parametrize("late", [{"learning_rate": 0.5}, {"max_steps": 20}, {"weight_decay": 0.1, "num_train_epochs": 5}, {"per_device_train_batch_size": 2}],
                         ids=lambda late: "-".join(late))
@pytest.mark.parametrize("cls", [OwnSchedule, OwnOptimizer, OwnBoth])
@pytest.mark.parametrize("how", ["set", "args"])
def test_settings_before_the_first_step_reach_overrides_where_a_verb_has_called_them(how, cls, late):
    learn, want = hard_learner(cls=cls), hard_learner(cls=cls, **late)
    learn.lr_find(num_steps=10)
    if how == "set": learn.set(**late)
    else:
        for name, value in late.items(): setattr(learn.args, name, value)
    assert unequal(finish(learn), finish(want)) == []


def test_a_rate_and_a_length_are_set_together():
    learn, want = hard_learner(cls=OwnSchedule), hard_learner(cls=OwnSchedule, max_steps=20, learning_rate=0.5)
    learn.lr_find(num_steps=10)
    learn.set(lr=0.5, max_steps=20)
    assert rates((learn.train(), learn)[1]) == rates((want.train(), want)[1])


def test_settings_that_are_refused_leave_the_parts_of_an_override():
    learn, want = hard_learner(cls=OwnBoth), hard_learner(cls=OwnBoth)
    learn.lr_find(num_steps=10)
    optimizer, schedule = learn.optimizer, learn.lr_scheduler
    with pytest.raises(ValueError): learn.set(max_steps=20, lr=-1.0)
    assert learn.optimizer is optimizer and learn.lr_scheduler is schedule
    assert unequal(finish(learn), finish(want)) == []


def test_a_schedule_of_an_override_is_not_said_to_be_stretched():
    learn = hard_learner(cls=OwnSchedule)
    learn.step(2)
    with pytest.warns(UserWarning, match="made for 6 steps keeps its course in a run of 20"): table = learn.set(max_steps=20)
    assert "keeps its course" in repr(table) and "stretched" not in repr(table)
    assert "stretched" in repr(hard_learner().set(max_steps=20))


def test_a_schedule_that_reads_the_length_follows_it(recwarn):
    class Follows(Learner):
        def create_scheduler(self, num_training_steps, optimizer=None):
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, lambda step: max(0.0, 1 - step / self.state.max_steps))
            return self.lr_scheduler
    learn = hard_learner(cls=Follows)
    learn.step(2)
    learn.set(max_steps=20)
    learn.train()
    assert all(rates(learn))


def test_an_ended_schedule_of_the_user_is_reported():
    model = hard_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / 6))
    learn = hard_learner(model=model, optimizers=(optimizer, schedule))
    learn.train()
    with pytest.warns(UserWarning, match="The schedule in optimizers= is at its end"): learn.train()


def test_groups_added_before_a_change_of_the_length_have_a_schedule():
    learn = hard_learner()
    learn.step(2)
    extra = torch.nn.Parameter(torch.zeros(3))
    learn.optimizer.add_param_group({"params": [extra], "lr": 0.1})
    learn.set(max_steps=20)
    learn.step()
    first, *_, last = (group["lr"] for group in learn.optimizer.param_groups)
    assert last == pytest.approx(10 * first) and len(learn.lr_scheduler.base_lrs) == len(learn.optimizer.param_groups)


# ---- optimizers that are assigned ----

def sgd(model): return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def given():
    model = hard_model()
    return hard_learner(model=model, optimizers=(sgd(model), None))


@pytest.mark.parametrize("before", [lambda learn: None, lambda learn: learn.lr_find(num_steps=10), lambda learn: learn.snapshot()], ids=["new", "lr_find", "snapshot"])
def test_reset_keeps_an_optimizer_that_was_assigned(before):
    learn, want = hard_learner(), given()
    before(learn)
    learn.optimizer = optimizer = sgd(learn.model)
    first = finish(want)
    assert unequal(finish(learn), first) == []
    learn.reset()
    assert unequal(finish(learn), first) == [] and learn.optimizer is optimizer


def test_reset_keeps_a_schedule_that_was_assigned():
    learn = hard_learner()
    learn.create_optimizer()
    learn.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(learn.optimizer, lambda step: 1 / (step + 1))
    learn.step(3)
    first, last = rates(learn), [p.detach().clone() for p in learn.model.parameters()]
    learn.reset()
    learn.step(3)
    assert rates(learn) == first and all(map(torch.equal, last, learn.model.parameters()))


def test_an_optimizer_that_was_assigned_is_named_where_it_cannot_be_copied():
    learn = hard_learner()
    learn.optimizer = sgd(learn.model)
    learn.step(2)
    with pytest.raises(Exception, match="cannot copy an optimizer or a schedule that was given"): learn.branch()


def test_what_an_override_assigns_is_made_anew():
    "It is not one that the user gave."
    learn = hard_learner(cls=OwnOptimizer)
    learn.step(2)
    optimizer = learn.optimizer
    assert learn.optimizers == (None, None)
    learn.reset()
    assert learn.optimizer is not optimizer and isinstance(learn.optimizer, torch.optim.SGD)


def test_parts_cannot_be_deleted():
    learn = hard_learner()
    for name in ("data_collator", "args", "model", "optimizer", "compute_loss_func"):
        with pytest.raises(AttributeError): delattr(learn, name)
    learn.label_smoother = None
    del learn.label_smoother


# ---- what the parts are made from ----

def half_model():
    model = hard_model()
    with torch.no_grad():
        for p in model.parameters(): p.mul_(0.5)
    return model


def sources(model):
    "Attributes of the learner, the constructor's arguments that say the same."
    return {"optimizers": ((sgd(model), None), {"model": model}), "optimizer_cls_and_kwargs": ((torch.optim.SGD, {"lr": 0.1}), {"model": model}),
            "model_init": (half_model, {"model": None})}


PREPARES = {"new": lambda learn: None, "lr_find": lambda learn: learn.lr_find(num_steps=10), "inspect": lambda learn: learn.inspect(), "reset": lambda learn: (learn.step(2), learn.reset())}


@pytest.mark.parametrize("before", PREPARES)
@pytest.mark.parametrize("name", ["optimizers", "optimizer_cls_and_kwargs", "model_init"])
def test_a_source_that_is_assigned_before_the_first_step_counts(name, before):
    "As one that was given, also where a verb has made the parts; model_init replaces the model, as train() of the Trainer does."
    learn = hard_learner(model=None, model_init=hard_model) if name == "model_init" and before != "new" else hard_learner()
    PREPARES[before](learn)
    setattr(learn, name, sources(learn.model)[name][0])
    value, others = sources(hard_model())[name]
    assert unequal(finish(learn), finish(hard_learner(**{name: value}, **others))) == []


@pytest.mark.parametrize("name", ["optimizers", "optimizer_cls_and_kwargs"])
def test_a_source_cannot_be_assigned_in_a_run(name):
    learn, want = hard_learner(), hard_learner()
    learn.step(2)
    with pytest.raises(Exception, match=f"The {name} of a run that has begun cannot be replaced"): setattr(learn, name, sources(learn.model)[name][0])
    setattr(learn, name, getattr(learn, name))
    assert unequal(finish(learn), finish(want)) == []


@pytest.mark.parametrize("name, value, error", [("optimizers", None, "must be a pair"), ("optimizers", ("adam", None), "optim='adam' is the argument"),
                                                ("optimizer_cls_and_kwargs", torch.optim.SGD, "a pair of a class and its keywords"), ("model_init", 3, "model_init is a function")])
def test_a_source_that_is_assigned_is_checked(name, value, error):
    learn, want = hard_learner(), hard_learner()
    with pytest.raises(TypeError, match=error): setattr(learn, name, value)
    assert unequal(finish(learn), finish(want)) == []


def smooth(outputs, labels, num_items_in_batch=None): return outputs["loss"]
def squared(output, labels): return output.pow(2).mean()


@pytest.mark.parametrize("settings, name, value, error", [
    ({"loss_func": squared}, "compute_loss_func", smooth, "Both loss_func and compute_loss_func"), ({"compute_loss_func": smooth}, "loss_func", squared, "Both loss_func and compute_loss_func"),
    ({"label_smoothing_factor": 0.1}, "loss_func", squared, "label_smoothing_factor works on the model's own loss"), ({}, "compute_loss_func", squared, "num_items_in_batch"),
    ({}, "processing_class", "bert-base", "processing_class is a tokenizer or a processor")])
def test_a_part_that_is_assigned_is_checked_as_the_constructors(settings, name, value, error):
    learn = hard_learner(**settings)
    with pytest.raises((TypeError, ValueError), match=error): setattr(learn, name, value)
    with pytest.raises((TypeError, ValueError), match=error): hard_learner(**settings | {name: value})
    assert getattr(learn, name) is settings.get(name)


@pytest.mark.parametrize("before", [lambda learn: learn.lr_find(num_steps=10), lambda learn: learn.step(2)], ids=["lr_find", "steps"])
@pytest.mark.parametrize("late", [{"weight_decay": 0.1}, {"learning_rate": 0.02}, {"max_steps": 9}], ids=lambda late: "-".join(late))
def test_a_layer_that_is_replaced_before_set_is_trained(late, before):
    "As one that is replaced after it: set() does not take the new parameters for known ones."
    def run(first):
        learn = hard_learner()
        before(learn)
        def replace():
            torch.manual_seed(1)
            learn.model.outer = torch.nn.Linear(learn.model.outer.in_features, learn.model.outer.out_features)
        def change(): learn.set(**late)
        for act in (replace, change) if first else (change, replace): act()
        learn.step(2)
        trained = [p.detach().clone() for p in learn.model.parameters()]
        learn.reset()
        learn.step(2)
        return [*trained, *learn.model.parameters()]
    assert all(map(torch.equal, run(True), run(False)))

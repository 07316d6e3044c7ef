"Assigning to a setting, or to a name that is almost one, is an error that says what to type; everything else is allowed."
import functools, types

import pytest
import torch

from toys import Augmented, collate, finish, hard_learner, hard_model, outcome, unequal
from trainer_nb import Learner, TrainerCallback
from trainer_nb.core.errors import one_edit
from trainer_nb.engine.settings import SETTABLE

MISTAKES = {"lr": r"lr is a setting, and learn.set\(lr=...\) changes it", "learning_rate": r"learn.set\(learning_rate=...\)", "max_steps": r"learn.set\(max_steps=...\)",
            "seed": r"fixed when the learner is made, by Learner\(..., seed=...\)", "lerning_rate": r"Did you mean learn.set\(learning_rate=...\)\?",
            "max_step": r"learn.set\(max_steps=...\)", "lr_": r"learn.set\(lr=...\)", "LR": r"learn.set\(lr=...\)", "weigth_decay": r"learn.set\(weight_decay=...\)",
            "stpe": r"learn.step\(...\)", "evalute": r"learn.evaluate\(...\)", "compute_los": r"learn.compute_loss\(...\)",
            "step": r"step is a method.*call it: learn.step\(...\)", "train": r"learn.train\(...\)", "batch_size": r"learn.set\(per_device_train_batch_size=...\)",
            "epochs": r"learn.set\(num_train_epochs=...\)", "remove_unused_columns": r"Learner\(..., remove_unused_columns=...\)"}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name):
    learn = hard_learner()
    with pytest.raises(AttributeError, match=MISTAKES[name]): setattr(learn, name, 1)
    assert name not in vars(learn)


# an attribute of the Trainer, which sets the setting
@pytest.mark.parametrize("name", sorted(SETTABLE.keys() - {"neftune_noise_alpha"}))
def test_every_setting(name):
    learn = hard_learner()
    with pytest.raises(AttributeError, match=rf"learn\.set\({name}=|is a method"): setattr(learn, name, 1)


@pytest.mark.parametrize("value", [None, False, []])
def test_callbacks_are_added_one_by_one(value):
    learn = hard_learner()
    with pytest.raises(AttributeError, match=r"learn.add_callback\(\.\.\.\) adds"): learn.callbacks = value


def test_what_is_allowed():
    learn = hard_learner()
    learn.teacher, learn.alpha, learn.model2, learn.losses, learn.history_of_mine, learn._lr = "a model", 0.5, 2, [], {}, 1
    learn.loss_is_scaled_for_ga, learn.hp_name, learn.compute_metrics, learn.data_collator = True, None, None, learn.data_collator
    learn.train_dataset, learn.eval_dataset = Augmented(), Augmented(6)
    learn.model = learn.model
    calls = []
    learn.floating_point_ops = lambda inputs: calls.append(1) or 0
    learn.step()
    assert calls and learn.alpha == 0.5
    learn.alpha = 1
    with pytest.raises(AttributeError, match="cannot be assigned"): learn.history = []


class Own(Learner):
    "Its own names, some of which are settings', in every kind of method."
    steps_per_epoch = 3
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.lr = 0.5

    def training_step(self, *args):
        self.max_step = 7
        def nested(): self.epochs = 9
        nested()
        return super().training_step(*args)

    @functools.wraps(Learner.evaluate)
    def evaluate(self, *args, **kwargs):
        self.logg = 1
        return super().evaluate(*args, **kwargs)

    @property
    def seed_of_mine(self):
        self.sed = 1
        return self.sed


def test_a_subclass_may_use_any_name():
    learn = hard_learner(Own, eval_dataset=Augmented(6))
    learn.step()
    learn.evaluate()
    assert (learn.lr, learn.max_step, learn.epochs, learn.logg, learn.seed_of_mine) == (0.5, 7, 9, 1, 1)
    learn.lr, learn.max_step, learn.steps_per_epoch = 0.25, 1, 2   # from a cell: it has them
    for name in ("learning_rate", "lerning_rate", "stpe"):         # names that it does not have
        with pytest.raises(AttributeError, match="would change nothing"): setattr(learn, name, 1)


def test_a_subclass_that_sets_names_that_are_computed():
    class Computed(Learner):
        def __init__(self, *args, mine=(), **kwargs):
            super().__init__(*args, **kwargs)
            for name in mine: setattr(self, name, 1)
    learn = hard_learner(Computed, mine=("lr", "stpe"))
    assert learn.lr == learn.stpe == 1


def test_what_is_added_later():
    def training_step(self, *args):
        self.lrr = 1
        return Learner.training_step(self, *args)
    learn = hard_learner()
    with pytest.raises(AttributeError): learn.lrr = 2
    learn.training_step = types.MethodType(training_step, learn)
    learn.step()
    assert learn.lrr == 1
    class Later(Learner): pass
    later = hard_learner(Later)
    with pytest.raises(AttributeError): later.lrr = 2
    Later.training_step = training_step
    later.step()
    assert later.lrr == 1


def test_names_of_a_mix_in():
    class Mixed:
        def remember(self): self.lr = 3
    class Both(Mixed, Learner): pass
    learn = hard_learner(Both)
    learn.remember()
    assert learn.lr == 3


def test_branches_and_closures_keep_what_was_assigned():
    def named(function):
        def inner(self, *args):
            return function(self, *args)
        return inner
    class Wrapped(Learner):
        @named
        def training_step(self, *args):
            self.lrs = 1
            return Learner.training_step(self, *args)
    learn = hard_learner(Wrapped)
    learn.teacher = torch.zeros(2)
    branch = learn.branch()
    branch.step()
    learn.teacher += 1
    assert branch.lrs == 1 and branch.teacher.tolist() == [0, 0]   # a copy of its own


@pytest.mark.parametrize("a, b, near", [("lr", "lrr", True), ("lr", "rl", True), ("step", "stop", True), ("step", "step", False), ("stpe", "step", True), ("abcd", "badc", False),
                                        ("learning_rate", "leaning_rte", False), ("", "a", True), ("seed", "seeds", True), ("seed", "sedes", False)])
def test_one_edit(a, b, near): assert one_edit(a, b) == one_edit(b, a) == near


# --- fields of learn.args ------------------------------------------------------------------------------------------------

def test_args_assigned_in_the_middle_of_a_run_count_as_set_does():
    "Each is a call of `set`, and the journal has them."
    assigned, want = hard_learner(num_train_epochs=3), hard_learner(num_train_epochs=3)
    for learn in (assigned, want): learn.step(2)
    assigned.args.weight_decay, assigned.args.num_train_epochs, assigned.args.learning_rate = 0.5, 2, 0.003
    for name, value in {"weight_decay": 0.5, "num_train_epochs": 2, "learning_rate": 0.003}.items(): want.set(**{name: value})
    assert unequal(finish(assigned), finish(want)) == []
    journals = [[(e["step"], e["act"], e["what"]) for e in learn.history.journal()] for learn in (assigned, want)]
    assert journals[0] == journals[1] == [(2, "set", "weight_decay=0.5"), (2, "set", "num_train_epochs=2"), (2, "set", "learning_rate=3e-3")]


def test_args_assigned_before_a_run_is_resumed_count(tmp_path):
    "As those do that the constructor was given, with the same sentence."
    given = dict(output_dir=str(tmp_path), save_strategy="steps", save_steps=2)
    hard_learner(num_train_epochs=3, **given).step(2)
    learn = hard_learner(num_train_epochs=3, **given)
    learn.args.num_train_epochs = 2
    with pytest.warns(UserWarning, match=r"(?s)a setting differs.*num_train_epochs +3\.?0? +2"): learn.load_checkpoint()
    want = hard_learner(num_train_epochs=2, **given)
    with pytest.warns(UserWarning, match="a setting differs"): want.load_checkpoint()
    assert unequal(finish(learn), finish(want)) == []


def test_args_that_cannot_change_in_a_run_say_so():
    "Where they are assigned; the present value may be assigned again, and the next run takes any."
    learn = hard_learner()
    learn.step(2)
    with pytest.raises(ValueError, match="seed cannot be changed in a run that is under way; make a new Learner with it"): learn.args.seed = 5
    learn.args.seed = learn.args.seed
    with pytest.raises(ValueError, match="max_steps=1 lies behind"): learn.args.max_steps = 1
    with pytest.raises(ValueError, match="cannot be changed in a run"): learn.args.set_optimizer(weight_decay=0.5, beta1=0.5)
    assert (learn.args.seed, learn.args.weight_decay, learn.args.adam_beta1) == (42, 0, 0.9) and learn.args.max_steps != 1
    learn.args.set_lr_scheduler(learn.args.lr_scheduler_type, num_epochs=3, max_steps=learn.args.max_steps, warmup_steps=learn.args.warmup_steps)
    assert [e["what"] for e in learn.history.journal()] == ["num_train_epochs=3"] and learn.step()
    learn.reset()
    learn.args.seed = 5
    assert learn.step() and learn.args.seed == 5


def test_fields_that_only_fit_together_are_assigned_one_after_the_other(tmp_path):
    learn = hard_learner(eval_dataset=Augmented(6))
    learn.args.load_best_model_at_end = True
    learn.args.eval_strategy = learn.args.save_strategy = "epoch"
    learn.args.output_dir = str(tmp_path)
    learn.step()
    learn = hard_learner(eval_dataset=Augmented(6))
    learn.args.load_best_model_at_end = True
    with pytest.raises(ValueError, match="load_best_model_at_end"): learn.step()
    assert not learn.args.load_best_model_at_end and learn.step()


CALLBACK_CHANGES = [{"weight_decay": 0.5}, {"learning_rate": 0.003}, {"num_train_epochs": 3}, {"per_device_train_batch_size": 3},
                    {"gradient_accumulation_steps": 1, "max_grad_norm": 0.1}, {"logging_steps": 2, "label_smoothing_factor": 0.1}]


@pytest.mark.parametrize("event", ["on_step_end", "on_substep_end", "on_log", "on_epoch_begin"])
@pytest.mark.parametrize("changes", CALLBACK_CHANGES, ids=lambda changes: "-".join(changes))
def test_args_that_a_callback_assigns_count_from_the_next_step(changes, event):
    "The numbers do not depend on how the run is divided into verbs, and are those of `set` in the callback."
    def make(assign):
        class Changes(TrainerCallback):
            def __init__(self): self.is_done = False
        def change(self, args, state, control, **kwargs):
            if state.global_step < 2 or self.is_done: return
            self.is_done = True
            if not assign: return learn.set(**changes)
            for name, value in changes.items(): setattr(args, name, value)
        setattr(Changes, event, change)
        learn = hard_learner(callbacks=[Changes()])
        return learn
    divided = make(True)
    while not divided.run_state.finished: divided.step()
    whole = make(True)
    assert unequal(finish(whole), outcome(divided)) == []
    learn = make(False)
    if event != "on_substep_end": assert unequal(finish(learn), outcome(whole)) == []
    acts = [(e["step"], e["act"], e.get("by")) for e in whole.history.journal()]
    assert acts and {act[1:] for act in acts} == {("set", "callback")}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("event", ["on_step_end", "on_epoch_begin"])
def test_a_collator_that_a_callback_assigns_counts_from_the_next_step(event, workers):
    def halves(samples): return {k: v * 0.5 if v.is_floating_point() else v for k, v in collate(samples).items()}
    def make():
        class Changes(TrainerCallback): pass
        def change(self, args, state, control, **kwargs):
            if state.global_step >= 2: learn.data_collator = halves
        setattr(Changes, event, change)
        learn = hard_learner(callbacks=[Changes()], dataloader_num_workers=workers)
        return learn
    divided = make()
    while not divided.run_state.finished: divided.step()
    whole, plain = make(), hard_learner()
    assert unequal(finish(whole), outcome(divided)) == [] and unequal(outcome(whole), finish(plain))
    assert [(e["act"], e["by"]) for e in whole.history.journal()] == [("data_collator", "callback")]


def test_args_that_an_override_assigns_count_from_the_next_step():
    class Own(Learner):
        def training_step(self, *args):
            if self.state.global_step == 1: self.args.weight_decay = 0.5
            return super().training_step(*args)
    divided, whole = hard_learner(cls=Own), hard_learner(cls=Own)
    while not divided.run_state.finished: divided.step()
    assert unequal(finish(whole), outcome(divided)) == [] and whole.optimizer.param_groups[0]["weight_decay"] == 0.5


def test_args_that_a_callback_assigns_at_the_end_are_for_the_next_run():
    "They do not extend the run that has ended."
    class Assigns(TrainerCallback):
        def on_train_end(self, args, state, control, **kwargs): args.num_train_epochs += 1
    learn = hard_learner(callbacks=[Assigns()])
    learn.train()
    assert learn.state.global_step == 6
    learn.train()
    assert learn.state.global_step == 9 and learn.args.num_train_epochs == 4


def test_args_that_a_callback_cannot_assign_stop_the_run_between_two_steps():
    "The former value counts, and the run can go on."
    class Assigns(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 2: args.max_steps = 1
    learn, want = hard_learner(callbacks=[Assigns()]), hard_learner()
    with pytest.raises(ValueError, match="max_steps=1 lies behind"): learn.train()
    assert learn.state.global_step == 2 and learn.args.max_steps == want.args.max_steps
    assert unequal(finish(learn), finish(want)) == []


def test_args_that_a_cell_assigns_while_the_run_trains_in_the_background_count_as_set_does():
    "From a later step on; the journal has them as the user's."
    learn = hard_learner(num_train_epochs=50)
    background = learn.start()
    learn.args.weight_decay = 0.5
    background.wait()
    assert [(e["act"], e["what"], e.get("by", "")) for e in learn.history.journal()] == [("set", "weight_decay=0.5", "")]
    assert learn.optimizer.param_groups[0]["weight_decay"] == 0.5


def test_args_of_a_branch_count_too():
    learn = hard_learner()
    learn.step(2)
    branch = learn.branch()
    branch.step()
    branch.args.weight_decay = 0.5
    branch.step()
    assert branch.optimizer.param_groups[0]["weight_decay"] == 0.5 and learn.optimizer.param_groups[0]["weight_decay"] == learn.args.weight_decay == 0


def test_values_without_an_order_are_compared_by_their_content():
    "Equal tensors are no change; others are."
    learn = hard_learner()
    vars(learn.args)["lr_scheduler_kwargs"] = {"rates": torch.tensor([1.0, 2.0])}
    learn.args.lr_scheduler_kwargs = {"rates": torch.tensor([1.0, 2.0])}
    assert not learn.run_state.given.assigned
    learn.args.lr_scheduler_kwargs = {"rates": torch.tensor([1.0, 3.0])}
    assert [*learn.run_state.given.assigned] == ["lr_scheduler_kwargs"]


# what prepares a run before its first step
PREPARES = {"evaluate": lambda learn: learn.evaluate(), "lr_find": lambda learn: learn.lr_find(num_steps=10), "snapshot": lambda learn: learn.snapshot(),
            "rewind": lambda learn: (learn.step(2), learn.rewind(2)), "reset": lambda learn: (learn.step(3), learn.reset()), "accelerator": lambda learn: learn.accelerator}
LATE = [{"bf16": True}, {"optim": "sgd"}, {"adam_beta1": 0.5, "lr_scheduler_type": "constant"}, {"warmup_steps": 3, "seed": 5}, {"layer_groups": ["inner", "norm"]},
        {"train_sampling_strategy": "sequential"}, {"dataloader_drop_last": True, "data_seed": 7}, {"accelerator_config": {"even_batches": False}}]


@pytest.mark.parametrize("late", LATE, ids=lambda late: "-".join(late))
@pytest.mark.parametrize("prepared", PREPARES)
def test_args_assigned_before_the_first_step_count_where_a_verb_has_prepared_the_run(prepared, late):
    "What was made with the former values is made anew: the run is that of a learner that was given the new ones."
    assigned, want = hard_learner(eval_dataset=Augmented(6)), hard_learner(eval_dataset=Augmented(6), **late)
    PREPARES[prepared](assigned)
    # the row of an evaluation with the former values
    assigned.state.log_history.clear()
    for name, value in late.items(): setattr(assigned.args, name, value)
    assert unequal(finish(assigned), finish(want)) == []
    assert assigned.accelerator.mixed_precision == want.accelerator.mixed_precision and type(assigned.optimizer) is type(want.optimizer)
    assert [len(g["params"]) for g in assigned.optimizer.param_groups] == [len(g["params"]) for g in want.optimizer.param_groups]


@pytest.mark.parametrize("late", [{"bf16": True}, {"lr_scheduler_type": "constant"}], ids=lambda late: "-".join(late))
def test_the_users_optimizer_stays_where_args_are_assigned(late):
    def make(**given):
        model = hard_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.03)
        return hard_learner(model=model, optimizers=(optimizer, None), warmup_steps=2, **given), optimizer
    (assigned, mine), (want, _) = make(), make(**late)
    assigned.lr_find(num_steps=10)
    for name, value in late.items(): setattr(assigned.args, name, value)
    assert unequal(finish(assigned), finish(want)) == [] and assigned.optimizer is mine


def test_parts_are_kept_where_no_setting_is_another_one():
    "Also where the run begins anew."
    learn = hard_learner(bf16=True, accelerator_config={"split_batches": False})
    learn.lr_find(num_steps=10)
    optimizer, device = learn.optimizer, learn.accelerator
    learn.args.bf16, learn.args.logging_steps = True, 3
    learn.step()
    assert learn.optimizer is optimizer and learn.accelerator is device
    learn.reset()
    learn.step()
    assert learn.accelerator is device


def test_set_names_the_way_before_the_first_step():
    learn = hard_learner()
    with pytest.raises(ValueError, match="set.. does not change optim; before the first step, learn.args.optim = ... does"): learn.set(optim="sgd")
    learn.step()
    with pytest.raises(ValueError, match="optim cannot be changed in a run that is under way; make a new Learner"): learn.set(optim="sgd")


# --- parts that are made, and methods that make them ------------------------------------------------------------------------

def own_optimizer(**given):
    model = hard_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    return hard_learner(model=model, optimizers=(optimizer, None), **given), optimizer


def test_create_optimizer_returns_the_users_optimizer():
    "It was not adopted before the first step, so that another one was made."
    learn, mine = own_optimizer()
    assert learn.optimizer is mine and learn.create_optimizer() is mine
    learn.create_optimizer_and_scheduler(6)
    learn.step(2)
    assert learn.optimizer is mine and type(learn.lr_scheduler).__name__ == "LambdaLR"


@pytest.mark.parametrize("create", [lambda learn: learn.create_optimizer(), lambda learn: learn.create_optimizer_and_scheduler(learn.args.max_steps)])
def test_settings_count_after_the_optimizer_was_created_by_hand(create):
    learn, want = hard_learner(max_steps=6), hard_learner(max_steps=6, optim="sgd", lr_scheduler_type="constant")
    create(learn)
    learn.args.optim, learn.args.lr_scheduler_type = "sgd", "constant"
    assert unequal(finish(learn), finish(want)) == []


@pytest.mark.parametrize("prepared", ["lr_find", "snapshot", "reset", "accelerator"])
def test_methods_assigned_before_the_first_step_make_the_parts_anew(prepared):
    def assign(learn):
        def create_optimizer(model=None):
            learn.optimizer = torch.optim.SGD(learn.model.parameters(), lr=0.01)
            return learn.optimizer
        learn.create_optimizer = create_optimizer
        learn._get_train_sampler = lambda dataset=None: torch.utils.data.SequentialSampler(learn.train_dataset)
    assigned, want = hard_learner(), hard_learner()
    PREPARES[prepared](assigned)
    for learn in (assigned, want): assign(learn)
    assert unequal(finish(assigned), finish(want)) == [] and type(assigned.optimizer) is torch.optim.SGD


def test_methods_that_make_parts_have_no_effect_in_the_middle_of_a_run_and_say_so():
    learn = hard_learner()
    learn.step()
    with pytest.warns(UserWarning, match=r"learn.create_optimizer was assigned in the middle of a run, which keeps its optimizer.*learn.reset\(\)"):
        learn.create_optimizer = lambda model=None: None
    with pytest.warns(UserWarning, match="get_train_dataloader was assigned in the middle of a run, which keeps its data loader"):
        learn.get_train_dataloader = lambda: None


def test_a_rate_assigned_before_an_optimizer_of_ones_own_leaves_it_alone():
    "As where the learner is given both."
    learn, mine = own_optimizer(lr_scheduler_type="constant")
    learn.snapshot()
    learn.args.learning_rate = 0.3
    learn.step()
    assert mine.param_groups[0]["lr"] == 0.03


def test_a_list_of_rates_is_assigned_with_its_groups():
    learn, want = hard_learner(), hard_learner(layer_groups=["inner", "norm"], learning_rate=[0.01, 0.02, 0.03])
    learn.snapshot()
    learn.args.layer_groups, learn.args.learning_rate = ["inner", "norm"], [0.01, 0.02, 0.03]
    assert unequal(finish(learn), finish(want)) == []


def test_edited_groups_of_an_optimizer_that_is_made_anew_are_named():
    learn = hard_learner()
    learn.snapshot()
    learn.optimizer.param_groups[0]["betas"] = (0.1, 0.2)
    learn.args.adam_epsilon = 1e-3
    with pytest.warns(UserWarning, match="made anew before the first step; changes of its groups"): learn.step()

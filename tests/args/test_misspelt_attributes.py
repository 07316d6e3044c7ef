"Assigning to a name that is almost a setting is an error that says what to type; an attribute of the user's own is allowed."
import copy, pickle
from dataclasses import dataclass, field, fields

import pytest

from toys import hard_learner
from trainer_nb import TrainingArguments
from trainer_nb.args.validation import REMOVED, RENAMED, REPLACED

MISTAKES = {"learning_rte": "learning_rate", "LEARNING_RATE": "learning_rate", "max_step": "max_steps", "weigth_decay": "weight_decay", "eval_step": "eval_steps",
            "gradient_acumulation_step": "gradient_accumulation_steps", "lr": "learning_rate", "epochs": "num_train_epochs", "batch_size": "per_device_train_batch_size"}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name):
    args = TrainingArguments()
    with pytest.raises(AttributeError, match=rf"^args\.{name} = \.\.\. would change nothing: TrainingArguments has no '{name}'\. Did you mean args\.{MISTAKES[name]} = \.\.\.\?"):
        setattr(args, name, 1)
    assert name not in vars(args)


def test_the_arguments_of_a_learner():
    learn = hard_learner()
    with pytest.raises(AttributeError, match=r"args\.learning_rate = \.\.\."): learn.args.learning_rte = 1
    learn.args.logging_steps = 7
    assert learn.args.logging_steps == 7


@pytest.mark.parametrize("name", ["max_seq_length", "deepspeed_plugin", "hf_deepspeed_config", "distributed_state", "mixed_precision", "model_name_or_path", "generation_min_length", "optimizer",
                                  "test_steps", "num_epochs", "lr_scheduler", "dataset_text_field", "loss", "_learning_rte", *REMOVED])
def test_other_names_are_allowed(name):
    args = TrainingArguments()
    setattr(args, name, 3)
    assert vars(args).get(name, getattr(args, name)) == 3


@pytest.mark.parametrize("name", sorted({*RENAMED, *REPLACED} - {f.name for f in fields(TrainingArguments)}))
def test_an_older_name_is_not_stored_beside_the_present_one(name):
    args = TrainingArguments()
    present = RENAMED.get(name) or next(iter(REPLACED[name](True)))
    with pytest.raises(AttributeError, match=rf"args\.{name} = \.\.\. would change nothing: .*Did you mean args\.{present} = "):
        setattr(args, name, 3)
    assert name not in vars(args)


def test_a_name_that_the_object_has_already():
    args = TrainingArguments()
    vars(args).update(learning_rte=1)
    args.learning_rte = 2
    for other in (copy.copy(args), copy.deepcopy(args), pickle.loads(pickle.dumps(args))):
        assert other.learning_rte == 2
        other.learning_rte = 3
    assert args.learning_rte == 2


@dataclass
class Own(TrainingArguments):
    learning_rat: float = 1.0
    seeds: list = field(default_factory=list)
    weight_decays = (0.1, 0.2)

    def __post_init__(self):
        super().__post_init__()
        self.lr = self.learning_rat

    @property
    def max_step(self): return self.__dict__.get("of_mine", 1)
    @max_step.setter
    def max_step(self, value): self.of_mine = value


class Written(TrainingArguments):
    def __init__(self, *args, bs=4, **kwargs):
        super().__init__(*args, **kwargs)
        self.bs = bs


class Computed(TrainingArguments):
    def remember(self, **values):
        for name, value in values.items(): setattr(self, name, value)


def test_a_subclass_may_use_any_name():
    args = Own(learning_rat=2.0)
    args.learning_rat, args.seeds, args.weight_decays, args.lr, args.max_step = 3.0, [1], (), 4.0, 5
    assert (args.learning_rat, args.seeds, args.weight_decays, args.lr, args.max_step) == (3.0, [1], (), 4.0, 5)
    with pytest.raises(AttributeError, match=r"Own has no 'learning_rte'\. Did you mean args\.learning_rate = \.\.\.\?"): args.learning_rte = 1
    with pytest.raises(AttributeError, match=r"args\.learning_rat = \.\.\."): args.learning_rats = 1   # a field of the subclass
    assert Written(bs=2).bs == 2
    computed = Computed()
    computed.remember(learning_rte=1)
    assert computed.learning_rte == 1

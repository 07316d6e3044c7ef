"""Override points get the arguments that an override takes: the signatures of today's Trainer, older ones, and shorter ones.

Each override passes on what it gets, so that the run ends in the same bytes as one without it.
"""
import pytest
import torch
from torch import nn

from trainer_nb import Learner, differences

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x=None, labels=None):
        logits = self.outer(torch.tanh(self.inner(x)))
        if labels is None: return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def rows(n=24):
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(0))
    return [{"x": a, "labels": int(a.sum() > 0)} for a in x]


CALLED = []


def note(name): CALLED.append(name)


class SchedulerAlone(Learner):
    def create_scheduler(self, num_training_steps):
        note("scheduler")
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: max(0.0, 1 - step / num_training_steps))
        return self.lr_scheduler


class SchedulerOther(Learner):
    def create_scheduler(self, n_steps, opt):
        note("scheduler")
        return super().create_scheduler(n_steps, opt)


class SchedulerByName(Learner):
    def create_scheduler(self, *, num_training_steps, optimizer=None):
        note("scheduler")
        return super().create_scheduler(num_training_steps, optimizer)


class SchedulerAny(Learner):
    def create_scheduler(self, *args, **kwargs):
        note("scheduler")
        return super().create_scheduler(*args, **kwargs)


class OptimizerAlone(Learner):
    def create_optimizer(self):
        note("optimizer")
        return super().create_optimizer()


class OptimizerOfModel(Learner):
    def create_optimizer(self, model):
        note("optimizer")
        assert isinstance(model, Net)
        return super().create_optimizer(model)


class BothAtOnce(Learner):
    def create_optimizer_and_scheduler(self, n):
        note("both")
        super().create_optimizer_and_scheduler(n)


class OptimizerClass(Learner):
    @staticmethod
    def get_optimizer_cls_and_kwargs(args):
        note("class")
        return Learner.get_optimizer_cls_and_kwargs(args)


class OldStep(Learner):
    def training_step(self, model, inputs):
        note("step")
        return super().training_step(model, inputs)


class NewStep(Learner):
    def training_step(self, model, inputs, n):
        note("step")
        return super().training_step(model, inputs, n)


class OldLoss(Learner):
    def compute_loss(self, model, inputs, return_outputs=False):
        note("loss")
        return super().compute_loss(model, inputs, return_outputs)


class OldLog(Learner):
    def log(self, logs):
        note("log")
        super().log(logs)


class NewLog(Learner):
    def log(self, logs, start_time=None):
        note("log")
        if "loss" in logs: assert isinstance(start_time, float)
        super().log(logs, start_time)


class OldSave(Learner):
    def _save_checkpoint(self, model, trial, metrics=None):
        note("save")
        super()._save_checkpoint(model, trial, metrics=metrics)


class OldEvaluate(Learner):
    def evaluate(self):
        note("evaluate")
        return super().evaluate()


class OldPrediction(Learner):
    def prediction_step(self, model, inputs, prediction_loss_only):
        note("prediction")
        return super().prediction_step(model, inputs, prediction_loss_only)


class NewPrediction(Learner):
    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        note("prediction")
        return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys=ignore_keys)


class OldEvalLoader(Learner):
    def get_eval_dataloader(self):
        note("loader")
        return super().get_eval_dataloader()


class OldSampler(Learner):
    def _get_train_sampler(self):
        note("sampler")
        return super()._get_train_sampler()


class OldSamples(Learner):
    def get_batch_samples(self, epoch_iterator, num_batches):
        note("samples")
        return super().get_batch_samples(epoch_iterator, num_batches)


class NewSamples(Learner):
    def get_batch_samples(self, epoch_iterator, num_batches, device):
        note("samples")
        return super().get_batch_samples(epoch_iterator, num_batches, device)


class OldItems(Learner):
    def _get_num_items_in_batch(self, batch_samples):
        note("items")
        return super()._get_num_items_in_batch(batch_samples)


class NewItems(Learner):
    def _get_num_items_in_batch(self, batch_samples, device):
        note("items")
        return super()._get_num_items_in_batch(batch_samples, device)


class OldModelInit(Learner):
    def call_model_init(self):
        note("init")
        return super().call_model_init()


OVERRIDES = [c for c in list(globals().values()) if isinstance(c, type) and issubclass(c, Learner) and c is not Learner]


def learner(cls, folder, **given):
    torch.manual_seed(0)
    parts = dict(model=Net())
    if cls is OldModelInit: parts = dict(model_init=lambda: (torch.manual_seed(0), Net())[1])
    settings = dict(learning_rate=1e-2, per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=6, logging_steps=2, eval_strategy="steps",
                    eval_steps=3, save_strategy="steps", save_steps=3, use_cpu=True, disable_tqdm=True, output_dir=str(folder))
    return cls(**parts, train_dataset=rows(), eval_dataset=rows(8), **settings | given)


@pytest.mark.parametrize("cls", OVERRIDES, ids=lambda c: c.__name__)
def test_an_override_gets_what_it_takes(cls, tmp_path):
    whole = learner(Learner, tmp_path/"whole", model_init=None) if cls is not OldModelInit else learner(Learner, tmp_path/"whole")
    whole.train()
    CALLED.clear()
    learn = learner(cls, tmp_path/"own")
    learn.train()
    assert CALLED, "the override was not called"
    ignored = ("args", "state", "lr_scheduler")   # folders, and LambdaLR over another function
    assert [d for d in differences(learn.snapshot(), whole.snapshot()) if d not in ignored] == []
    metrics = learn.evaluate()
    assert metrics["eval_loss"] == whole.evaluate()["eval_loss"]
    CALLED.clear()


def test_a_loader_that_takes_no_data_set_is_named(tmp_path):
    learn = learner(OldEvalLoader, tmp_path)
    with pytest.raises(TypeError, match=r"get_eval_dataloader takes no data set; give it the parameter eval_dataset=None"): learn.evaluate(rows(4))


def test_the_trainer_takes_the_same_overrides():
    "Today's signatures are the Trainer's own, so that a class moves between the two."
    transformers = pytest.importorskip("transformers")
    import inspect
    for name in ("create_scheduler", "create_optimizer", "create_optimizer_and_scheduler", "training_step", "compute_loss", "log", "prediction_step",
                 "get_eval_dataloader", "get_test_dataloader", "get_train_dataloader", "get_batch_samples", "_get_num_items_in_batch", "_get_train_sampler",
                 "call_model_init", "_save_checkpoint", "evaluation_loop", "set_initial_training_values", "_prepare_inputs", "floating_point_ops",
                 "num_examples", "get_optimizer_cls_and_kwargs", "get_decay_parameter_names", "save_model", "_save", "evaluate", "predict",
                 "compute_loss_context_manager", "_load_best_model", "store_flos"):
        theirs, mine = (list(inspect.signature(getattr(c, name)).parameters) for c in (transformers.Trainer, Learner))
        assert mine[:len(theirs)] == theirs or set(theirs) <= set(mine), (name, theirs, mine)

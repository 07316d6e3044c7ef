"""Hyperparameter search with Optuna: trials from the first weights, pruning, several objectives, and a learner that is as before."""
import gc, weakref

import pytest
import torch
from torch import nn

optuna = pytest.importorskip("optuna")
from toys import accuracy, hard_learner, outcome, unequal
from trainer_nb import Learner, Paused, InvalidOperation, TrainerCallback
from trainer_nb.tune.search import BestRun, default_compute_objective

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")]
optuna.logging.set_verbosity(optuna.logging.ERROR)


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.inner, self.drop, self.outer = nn.Linear(4, width), nn.Dropout(0.2), nn.Linear(width, 2)

    def forward(self, x, labels):
        logits = self.outer(self.drop(torch.tanh(self.inner(x))))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def rows(n=16):
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(0))
    return [{"x": a, "labels": (a.sum() > 0).long()} for a in x]


def net():
    torch.manual_seed(0)
    return Net()


def learner(**given):
    parts = dict(train_dataset=rows(), eval_dataset=rows(), max_steps=4, learning_rate=1e-2, use_cpu=True, disable_tqdm=True) | given
    return Learner(parts.pop("model", None) or (None if "model_init" in parts else net()), **parts)


RATES = {"learning_rate": [1e-3, 3e-2, 1e-1]}
def rates(trial): return {"learning_rate": trial.suggest_categorical("learning_rate", RATES["learning_rate"])}
def grid(): return optuna.samplers.GridSampler(RATES, seed=0)


def test_a_trial_is_what_a_new_learner_would_do_and_nothing_is_left():
    "The objective of each trial is that of a learner made with these settings; the run that searches goes on as if it had not."
    plain = hard_learner(eval_dataset=[{"x": torch.randn(4, generator=torch.Generator().manual_seed(i)), "labels": i % 3} for i in range(8)])
    searching = hard_learner(eval_dataset=plain.eval_dataset)
    plain.step(3), searching.step(3)
    best = searching.hyperparameter_search(rates, n_trials=3, sampler=grid())
    assert type(best) is BestRun and best.hyperparameters["learning_rate"] in RATES["learning_rate"]
    for trial in best.run_summary.trials:
        fresh = hard_learner(eval_dataset=plain.eval_dataset, **trial.params)
        fresh.train()
        assert trial.value == fresh.evaluate()["eval_loss"]
    assert best.objective == min(t.value for t in best.run_summary.trials)
    plain.train(), searching.train()
    assert unequal(outcome(plain), outcome(searching)) == []


def test_models_are_made_by_model_init_with_the_trial_and_freed():
    made = []
    def init(trial=None):
        model = Net(trial.suggest_int("width", 2, 8) if trial is not None else 5)
        made.append((model.outer.in_features, weakref.ref(model)))
        return model
    class Seen(TrainerCallback):
        params = []
        def on_train_begin(self, args, state, control, **kwargs): self.params.append(state.trial_params)
    learn = learner(model_init=init, callbacks=[Seen()])
    assert learn.model.outer.in_features == 5
    def space(trial): return rates(trial) | {"width": trial.suggest_int("width", 2, 8)}   # no setting, and not refused: the model has it
    best = learn.hyperparameter_search(space, n_trials=3, sampler=optuna.samplers.RandomSampler(seed=0))
    gc.collect()
    assert [width for width, _ in made[1:]] == [t.params["width"] for t in best.run_summary.trials]
    assert [ref() is None for _, ref in made] == [False, True, True, True]
    assert Seen.params == [t.params for t in best.run_summary.trials]
    assert learn.model.outer.in_features == 5
    best = learn.hyperparameter_search(rates, n_trials=2, sampler=optuna.samplers.RandomSampler(seed=0))   # only the model asks for the width
    assert Seen.params[3:] == [t.params for t in best.run_summary.trials] and all("width" in p for p in Seen.params)
    with pytest.raises(ValueError, match="takes 2 arguments"): learner(model_init=lambda a, b: net()).model


class Tight(Net):
    "A net for which a training batch of more than 4 samples is too many."
    def forward(self, x, labels):
        if self.training and len(x) > 4: raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().forward(x, labels)


@pytest.mark.filterwarnings("ignore:Memory ran out")
def test_a_trial_that_runs_out_of_memory_goes_on_in_smaller_micro_batches():
    sizes = []
    class Sizes(TrainerCallback):
        def on_train_end(self, args, state, control, **kwargs): sizes.append((args.per_device_train_batch_size, args.gradient_accumulation_steps))
    learn = learner(model=Tight(), auto_find_batch_size=True, per_device_train_batch_size=8, callbacks=[Sizes()])
    best = learn.hyperparameter_search(rates, n_trials=2, sampler=grid())
    assert sizes == [(4, 2), (4, 2)] and [t.state.name for t in best.run_summary.trials] == ["COMPLETE", "COMPLETE"]


def test_pruning_at_evaluations():
    seen = []
    class Pruner(optuna.pruners.BasePruner):
        def prune(self, study, trial):
            seen.append((trial.number, trial.last_step))
            return trial.number == 1
    class Ended(TrainerCallback):
        def on_evaluate(self, args, state, control, **kwargs): assert state.is_hyper_param_search and state.trial_params
    best = learner(eval_strategy="steps", eval_steps=2, callbacks=[Ended()]).hyperparameter_search(rates, n_trials=3, sampler=grid(), pruner=Pruner())
    assert seen == [(0, 2), (0, 4), (1, 2), (2, 2), (2, 4)]
    assert [t.state.name for t in best.run_summary.trials] == ["COMPLETE", "PRUNED", "COMPLETE"] and best.run_id in "02"


def test_several_objectives_and_metrics():
    learn = learner(compute_metrics=accuracy)
    one = learn.hyperparameter_search(rates, n_trials=2, direction="maximize", sampler=grid())
    assert 0 <= one.objective <= 1   # the sum of the metrics is the accuracy alone
    found = learn.hyperparameter_search(rates, lambda m: [m["eval_loss"], m["eval_accuracy"]], n_trials=3, direction=["minimize", "maximize"], sampler=grid())
    assert all(type(run) is BestRun and len(run.objective) == 2 for run in found) and found
    assert default_compute_objective({"eval_loss": 2.0, "eval_runtime": 1.0, "eval_steps_per_second": 3.0, "epoch": 1.0}) == 2.0


def test_folders_names_and_types(tmp_path):
    learn = learner(output_dir=str(tmp_path), save_strategy="steps", save_steps=2, num_train_epochs=1, max_steps=-1, per_device_train_batch_size=4)
    def space(trial): return {"num_train_epochs": trial.suggest_float("num_train_epochs", 1.0, 1.0), "gradient_accumulation_steps": trial.suggest_float("acc", 2.0, 2.0)}
    learn.hyperparameter_search(space, n_trials=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run-0", "run-1"]
    assert (tmp_path / "run-1/checkpoint-2").is_dir()   # 4 micro-batches in windows of 2
    learn.hyperparameter_search(rates, n_trials=1, hp_name=lambda trial: f"try-{trial.number}")
    assert (tmp_path / "try-0").is_dir() and learn.args.output_dir == str(tmp_path)


def test_what_is_refused():
    learn = learner()
    for given, error, words in (({"backend": "ray"}, ValueError, "backend='ray'"), ({"backend": "wandb"}, ValueError, "backend='wandb'"), ({"n_jobs": 2}, ValueError, "n_jobs"),
                                ({"hp_space": lambda t: {"lr_rate": 1.0}}, ValueError, "'lr_rate', which is no training argument"),
                                ({"hp_space": lambda t: [1]}, TypeError, "return a dict"), ({"hp_space": lambda t: {"learning_rate": -1.0}}, ValueError, "learning_rate")):
        with pytest.raises(error, match=words): learn.hyperparameter_search(**{"n_trials": 1} | given)
    with pytest.raises(ValueError, match=r"needs evaluation data: give the Learner an eval_dataset="): learner(eval_dataset=None).hyperparameter_search(rates)
    model = net()
    with pytest.raises(InvalidOperation, match="optimizer_cls_and_kwargs"):
        learner(model=model, optimizers=(torch.optim.SGD(model.parameters(), lr=0.1), None)).hyperparameter_search(rates, n_trials=1)
    freed = learner()
    freed.step()
    freed.free()
    with pytest.raises(InvalidOperation, match="free"): freed.hyperparameter_search(rates, n_trials=1)


def test_an_interrupt_ends_the_search_and_leaves_the_run():
    import signal
    class Press(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.is_hyper_param_search and state.global_step == 2: signal.raise_signal(signal.SIGINT)
    learn = learner(callbacks=[Press()])
    learn.step(1)
    weights = [p.clone() for p in learn.model.parameters()]
    with pytest.raises(Paused, match="stopped in trial 0"): learn.hyperparameter_search(rates, n_trials=3)
    assert learn.state.global_step == 1 and all(torch.equal(a, b) for a, b in zip(weights, learn.model.parameters()))
    learn.train()
    assert learn.state.global_step == 4


def test_of_several_evaluation_sets_the_objective_sees_all():
    seen = []
    def objective(metrics): seen.append(metrics); return metrics["eval_near_loss"] + metrics["eval_far_loss"]
    learn = learner(eval_dataset={"near": rows(), "far": rows(8)}, eval_strategy="steps", eval_steps=2)
    best = learn.hyperparameter_search(rates, objective, n_trials=1, sampler=grid())
    assert len(seen) == 2 and best.objective == seen[-1]["eval_near_loss"] + seen[-1]["eval_far_loss"]
    assert [*best.run_summary.trials[0].intermediate_values] == [2, 4]


def test_numbers_are_cut_only_where_the_setting_is_a_count():
    from types import SimpleNamespace
    from trainer_nb.tune.search import trial_args
    learn = learner(num_train_epochs=3, weight_decay=0, max_grad_norm=1, max_steps=-1)
    trial = SimpleNamespace(number=0)
    given = {"warmup_steps": 0.1, "weight_decay": 0.05, "num_train_epochs": 1.5, "max_grad_norm": 0.5, "per_device_train_batch_size": 8.0, "bf16": 0, "seed": 3.7}
    args = trial_args(learn, trial, given)
    assert [getattr(args, name) for name in given] == [0.1, 0.05, 1.5, 0.5, 8, False, 3] and type(args.per_device_train_batch_size) is int

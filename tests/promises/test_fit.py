"fit() and fit_one_cycle(): more epochs with a schedule of their own, exact however the run is divided, stored and moved."

import pytest
import torch
from torch import nn

from toys import Augmented, hard_learner
from trainer_nb import InvalidOperation, Learner, Paused, TrainerCallback, differences
from trainer_nb.optim.schedules import SCHEDULES

NEEDED = {"cosine_with_min_lr": dict(min_lr_rate=0.1), "cosine_warmup_with_min_lr": dict(min_lr_rate=0.1),
          "warmup_stable_decay": dict(num_decay_steps=2), "reduce_lr_on_plateau": dict(patience=0, threshold=1.0), "greedy": dict(patience=0, min_lr=1e-6)}
NAMES = [*SCHEDULES, "one_cycle", "reduce_lr_on_plateau", "greedy"]
WATCHED = dict(eval_dataset=Augmented(8), eval_strategy="steps", eval_steps=1)


def make(**settings): return hard_learner(**settings)


def same(a, b):
    found = differences(a.snapshot(), b.snapshot())
    assert not found, found
    assert losses(a) == losses(b)


def losses(learn): return [r.loss for r in learn.history if not r.abandoned]
def rates(learn): return [r.learning_rate for r in learn.history if not r.abandoned]


class Press(TrainerCallback):
    "Interrupts after some steps, as the stop button does."
    not_state = ("at",)
    def __init__(self, *at): self.at = at
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step in self.at:
            import os, signal
            os.kill(os.getpid(), signal.SIGINT)


# --- the same training as with settings -----------------------------------------------------------------------------------

@pytest.mark.parametrize("name", NAMES)
def test_before_the_first_step_it_is_the_run_of_these_settings(name):
    watched = WATCHED if name in ("reduce_lr_on_plateau", "greedy") else {}
    options = NEEDED.get(name, {})
    want = make(num_train_epochs=2, learning_rate=3e-3, lr_scheduler_type=name, lr_scheduler_kwargs=options or None, **watched)
    want.train()
    learn = make(num_train_epochs=7, learning_rate=0.5, lr_scheduler_type="linear", **watched)
    learn.fit(2, 3e-3, name, **options)
    assert losses(learn) == losses(want) and rates(learn) == rates(want)
    assert all(torch.equal(a, b) for a, b in zip(learn.model.parameters(), want.model.parameters()))


def test_one_cycle_has_its_momentum_and_gives_it_back():
    want = make(num_train_epochs=1, learning_rate=3e-3, lr_scheduler_type="one_cycle", lr_scheduler_kwargs={"pct_start": 0.5})
    want.train()
    learn = make()
    learn.fit_one_cycle(1, 3e-3, pct_start=0.5)
    assert losses(learn) == losses(want) and learn.optimizer.param_groups[0]["betas"][0] == want.optimizer.param_groups[0]["betas"][0] != 0.9
    learn.fit(1)
    assert learn.optimizer.param_groups[0]["betas"][0] == learn.args.adam_beta1
    assert not {"max_lr", "min_lr", "max_momentum", "base_momentum"} & set(learn.optimizer.param_groups[0])


@pytest.mark.parametrize("kind", ["betas", "momentum", "set later"])
def test_one_cycle_gives_each_group_its_own_momentum_back(kind, tmp_path):
    "Also after a second cycle, and after a checkpoint within it."
    def build():
        model = hard_learner().model
        first, *others = model.parameters()
        if kind == "betas": optimizer = torch.optim.AdamW([{"params": [first], "betas": (0.8, 0.99)}, {"params": others}], lr=1e-3)
        else: optimizer = torch.optim.SGD([{"params": [first], "momentum": 0.5 if kind == "momentum" else 0.9}, {"params": others}], lr=1e-3, momentum=0.9)
        if kind == "set later": optimizer.param_groups[0]["momentum"] = 0.5
        return make(model=model, optimizers=(optimizer, None), output_dir=str(tmp_path))
    def momentum(learn): return [g["betas"][0] if kind == "betas" else g["momentum"] for g in learn.optimizer.param_groups]
    learn = build()
    own = [0.8, 0.9] if kind == "betas" else [0.5, 0.9]
    for _ in range(2): learn.fit_one_cycle(1)
    assert momentum(learn) != own
    learn.plan(1, schedule="one_cycle")
    learn.step(2)
    path = learn.save_checkpoint()
    new = build()
    new.load_checkpoint(path)
    for each in (learn, new):
        each.plan(1)
        assert momentum(each) == own
        each.step(2)
    same(learn, new)


def test_a_constant_rate_again_and_again_is_one_run():
    "The optimizer's state, the order of the epochs and their numbers go on."
    want = make(num_train_epochs=4, lr_scheduler_type="constant")
    want.train()
    learn = make()
    for _ in range(4): learn.fit(1)
    assert losses(learn) == losses(want) and learn.state.epoch == 4 and learn.args.num_train_epochs == 4


def test_what_it_returns_and_records():
    learn = make()
    records = learn.fit(1, lr=3e-3)
    assert [r.step for r in records] == [1, 2, 3] and {r.learning_rate for r in records} == {3e-3}
    learn.fit_one_cycle(2, pct_start=0.25)
    assert [(o["step"], o["act"]) for o in learn.journal] == [(0, "schedule"), (3, "schedule")]
    assert learn.journal[0]["what"] == "1 more epoch, schedule=constant, lr=0.003"
    assert learn.journal[1]["what"] == "2 more epochs, schedule=one_cycle, pct_start=0.25"
    learn.plan(1)
    learn.step()
    assert len(learn.fit(2)) == 8 and learn.state.global_step == 18
    whats = [o["what"] for o in learn.journal][2:]
    assert whats == ["1 more epoch, schedule=constant", "finishes the epoch under way, then 2 more epochs, schedule=constant"]


@pytest.mark.parametrize("done, end", [(0, 2), (1, 3), (3, 3), (4, 4), (6, 4)])
def test_from_any_position(done, end):
    "The epoch that has begun is completed, and `epochs` whole ones follow."
    learn = make(num_train_epochs=2)
    if done: learn.step(done)
    learn.fit(2, 1e-3)
    assert learn.state.epoch == end and learn.state.global_step == 3 * end and learn.run_state.finished
    assert set(rates(learn)[done:]) == {1e-3}


def test_after_a_run_that_ended_within_an_epoch_or_by_a_number_of_steps():
    learn = make(max_steps=4)
    learn.train()
    learn.fit(1)
    assert learn.state.global_step == 9 and learn.args.max_steps == -1
    learn = make(num_train_epochs=3)
    learn.step(2)
    learn.stop()
    learn.fit(1)
    assert learn.state.epoch == 2 and learn.run_state.finished


def test_groups_keep_their_ratios():
    learn = make(layer_groups=["inner", "outer"], learning_rate=[1e-3, 1e-2, 1e-4])
    learn.plan(1)
    base = [g["initial_lr"] for g in learn.optimizer.param_groups]
    learn.fit(1, 2e-3)
    now = [g["initial_lr"] for g in learn.optimizer.param_groups]
    assert now == pytest.approx([b * 2e-3 / base[0] for b in base])
    learn.fit(1, [1e-3, 2e-3, 3e-3])
    assert {g["initial_lr"] for g in learn.optimizer.param_groups} == {1e-3, 2e-3, 3e-3}


# --- exactness ------------------------------------------------------------------------------------------------------------

def whole(**settings):
    learn = make(**settings)
    learn.fit(2, 3e-3, "cosine")
    learn.fit_one_cycle(2, 5e-3)
    return learn


@pytest.mark.parametrize("at", [(2,), (3,), (8,), (1, 6, 12)])
def test_interrupted_and_continued(at):
    learn = make(callbacks=[Press(*at)])
    for part in (lambda: learn.fit(2, 3e-3, "cosine"), lambda: learn.fit_one_cycle(2, 5e-3)):
        try: part()
        except Paused:
            while not learn.run_state.finished:
                try: learn.train()
                except Paused: pass
    same(learn, whole(callbacks=[Press()]))


def test_step_by_step():
    learn = make()
    learn.plan(2, 3e-3, "cosine")
    learn.step(2)
    learn.run(epochs=1)
    learn.train()
    learn.plan(2, 5e-3, "one_cycle")
    for _ in learn.steps(): pass
    same(learn, whole())


@pytest.mark.parametrize("back", [1, 4, 7, 11])
def test_rewinding_repeats_it_and_undoes_it(back):
    "Also to before a fit, where the schedule is of another class."
    want = whole(rewind_every=1)
    learn = whole(rewind_every=1)
    learn.rewind(back)
    if back < 6: learn.train()
    else:
        assert learn.args.num_train_epochs == 2 and learn.run_state.schedule_plan["schedule"] == "cosine"
        learn.train()
        learn.fit_one_cycle(2, 5e-3)
    same(learn, want)


def test_a_snapshot_from_before_restores_schedule_length_and_rate():
    learn = make(num_train_epochs=2)
    learn.step(2)
    learn.snapshot("before")
    rest = [r.learning_rate for r in learn.step(4)]
    learn.restore("before")
    learn.fit_one_cycle(3, 0.5)
    learn.restore("before")
    assert learn.run_state.schedule_plan is None and learn.args.num_train_epochs == 2 and learn.args.learning_rate == 1e-2
    assert [r.learning_rate for r in learn.run()] == rest
    same(learn, finished(make(num_train_epochs=2)))


def finished(learn):
    learn.train()
    return learn


@pytest.mark.parametrize("step", [4, 8])
def test_a_branch_continues_it(step):
    learn = make()
    learn.fit(2, 3e-3, "cosine")
    learn.plan(2, 5e-3, "one_cycle")
    learn.step(step - 6 if step > 6 else 1)
    other = learn.branch()
    other.train()
    learn.train()
    assert losses(other) == losses(learn) and rates(other) == rates(learn)


@pytest.mark.parametrize("layout", ["safetensors", "trainer"])
@pytest.mark.parametrize("step", [2, 6, 8])
def test_a_checkpoint_in_the_middle_continues_it_in_a_new_learner(step, layout, tmp_path):
    want = whole()
    learn = make(output_dir=str(tmp_path), save_format=layout)
    if step <= 6:
        learn.plan(2, 3e-3, "cosine")
        learn.step(step)
    else:
        learn.fit(2, 3e-3, "cosine")
        learn.plan(2, 5e-3, "one_cycle")
        learn.step(step - 6)
    folder = learn.save_checkpoint()
    learn.free()
    new = make(output_dir=str(tmp_path), save_format=layout)
    new.load_checkpoint(folder)
    if step < 6: new.train()
    if step <= 6: new.fit_one_cycle(2, 5e-3)
    else: new.train()
    assert losses(new)[-4:] == losses(want)[-4:] and rates(new)[-4:] == rates(want)[-4:]
    assert all(torch.equal(a, b) for a, b in zip(new.model.state_dict().values(), want.model.state_dict().values()))


def test_reset_goes_back_to_the_schedule_of_the_settings():
    learn = whole()
    learn.reset()
    learn.set(num_train_epochs=2)
    learn.train()
    want = make(num_train_epochs=2, learning_rate=5e-3)
    want.train()
    assert losses(learn) == losses(want)


def test_the_length_can_change_within_a_plan():
    "Its schedule is stretched, not that of the settings."
    learn = make()
    learn.fit(1)
    learn.plan(2, 1e-2, "linear")
    learn.step(2)
    learn.set(num_train_epochs=5)
    # four epochs are 12 steps of the plan, without the warm-up of the settings: 2 steps
    assert [r.learning_rate for r in learn.step(2)] == pytest.approx([1e-2, 1e-2 * 9 / 10])
    learn.set(gradient_accumulation_steps=1)
    learn.train()
    assert learn.history[-1].learning_rate < 1e-3 and learn.state.epoch == 5


@pytest.mark.xdist_group("launch")
def test_on_two_processes():
    want = Learner(Two(), **TWO)
    with want.launch(2): want.train()
    learn = Learner(Two(), **(TWO | dict(num_train_epochs=9, lr_scheduler_type="linear", learning_rate=0.3)))
    with learn.launch(2):
        learn.fit(1, 1e-2, "cosine")
        learn.rewind(1)
        learn.train()
        assert learn.state.global_step == 4
        learn.plan(1, 1e-2)
        learn.step(2)
    learn.train()
    assert losses(learn)[:4] == losses(want) and rates(learn)[4:] == [1e-2] * 6
    assert [o["act"] for o in learn.journal if o["act"] == "schedule"] == ["schedule"] * 2


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(4, 2)
    def forward(self, x, labels): return {"loss": nn.functional.cross_entropy(self.body(x), labels)}


TWO = dict(train_dataset=[{"x": torch.randn(4, generator=torch.Generator().manual_seed(i)), "labels": i % 2} for i in range(32)],
           num_train_epochs=1, per_device_train_batch_size=4, learning_rate=1e-2, lr_scheduler_type="cosine", use_cpu=True, disable_tqdm=True,
           rewind_every=1)


# --- mistakes -------------------------------------------------------------------------------------------------------------

class OwnSchedule(Learner):
    def create_scheduler(self, num_training_steps, optimizer=None):
        self.lr_scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        return self.lr_scheduler


def of_user():
    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Learner(model, optimizers=(optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3)), **{k: v for k, v in TWO.items() if "l" != k[0]})


MISTAKES = {
    "no epochs": (make, lambda learn: learn.fit(), TypeError, "needs 'epochs'"),
    "half an epoch": (make, lambda learn: learn.fit(0.5), ValueError, r"whole number from 1 on.*learn.run\(epochs=0.5\)"),
    "none": (make, lambda learn: learn.fit(0), ValueError, "from 1 on"),
    "text": (make, lambda learn: learn.fit("2"), TypeError, "should be a whole number"),
    "schedule": (make, lambda learn: learn.fit(1, schedule="cosin"), ValueError, "Did you mean 'cosine'"),
    "option": (make, lambda learn: learn.fit(1, schedule="cosine", cycles=2), TypeError, "which the schedule 'cosine' does not take"),
    "rate": (make, lambda learn: learn.fit(1, -1.0), ValueError, "learning_rate=-1.0 should be 0 or more"),
    "no rate": (make, lambda learn: learn.fit(1, 0.0), ValueError, "should be above 0"),
    "slice": (make, lambda learn: learn.fit(1, slice(1e-5, 1e-3)), TypeError, "of type slice; it should be a number or a list"),
    "fastai's names": (make, lambda learn: learn.fit(n_epoch=1), TypeError, "it is called 'epochs' here"),
    "lr_max": (make, lambda learn: learn.fit(1, lr_max=1e-3), TypeError, "it is called 'lr' here"),
    "batch size": (make, lambda learn: learn.fit(epochs=1, batch_size=3), TypeError, "per_device_train_batch_size=3"),
    "fastai's callbacks": (make, lambda learn: learn.fit(1, cbs=[]), TypeError, "learn.add_callback"),
    "div": (make, lambda learn: learn.fit_one_cycle(1, div=25), TypeError, "div_factor"),
    "percent": (make, lambda learn: learn.fit_one_cycle(1, pct_start=30), ValueError, "pct_start=30 is the fraction of the steps .* from 0 to 1"),
    "negative fraction": (make, lambda learn: learn.fit_one_cycle(1, pct_start=-1), ValueError, "from 0 to 1"),
    "negative divisor": (make, lambda learn: learn.fit_one_cycle(1, div_factor=-5), ValueError, "div_factor=-5 should be above 0"),
    "divisor of 0": (make, lambda learn: learn.fit_one_cycle(1, div_factor=0), ValueError, "div_factor=0 should be above 0"),
    "negative last divisor": (make, lambda learn: learn.fit_one_cycle(1, final_div_factor=-5), ValueError, "final_div_factor=-5 should be above 0"),
    "plateau": (make, lambda learn: learn.fit(1, schedule="reduce_lr_on_plateau"), ValueError, "requires evaluations"),
    "its own schedule": (lambda: OwnSchedule(Two(), **TWO), lambda learn: learn.fit(1), InvalidOperation, "StepLR"),
    "a given schedule": (of_user, lambda learn: learn.fit(1), InvalidOperation, r"StepLR; learn.set\(num_train_epochs"),
    "a stream": (lambda: make(train_dataset=iter_data(), max_steps=4), lambda learn: learn.fit(1), ValueError, r"has no length.*learn.set\(max_steps"),
}


def iter_data():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self): return (Augmented(30)[i] for i in range(30))
    return Stream()


@pytest.mark.parametrize("what", MISTAKES)
@pytest.mark.parametrize("begun", [False, True])
def test_a_mistake_changes_nothing(what, begun):
    build, mistake, kind, words = MISTAKES[what]
    learn, like = build(), build()
    for each in (learn, like):
        if begun: each.step(2)
    with pytest.raises(kind, match=words): mistake(learn)
    for each in (learn, like): each.step(2)
    same(learn, like)
    assert len(learn.journal) == 0


def test_inside_a_step_and_from_callbacks():
    class Asks(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 2: self.learn.plan(2, 1e-3)
            if state.global_step == 4:
                with pytest.raises(InvalidOperation, match="while the learner is running"): self.learn.fit(1)
    asks = Asks()
    asks.not_state = ("learn",)
    learn = make(callbacks=[asks])
    asks.learn = learn
    learn.train()
    assert learn.state.epoch == 3 and rates(learn)[2:] == [1e-3] * 7


def test_it_says_once_which_schedule_it_takes(capsys):
    learn = make(lr_scheduler_type="cosine")
    learn.fit(1)
    learn.fit(1)
    assert capsys.readouterr().out.count("the schedule 'constant', not that of lr_scheduler_type='cosine'") == 1
    learn.train()
    assert f"num_train_epochs={learn.args.num_train_epochs:g} and learning_rate={learn.args.learning_rate} as fit() has set" in capsys.readouterr().out
    learn = make(lr_scheduler_type="linear")
    learn.fit(1, schedule="linear")
    assert "schedule" not in capsys.readouterr().out

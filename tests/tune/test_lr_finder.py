"The learning rate finder: no trace, the rates that are tried, the suggestions, and the same curves as fastai's."
import json, math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from record_lr_find import CASES, digits, perceptron
from scalers import overflow, scaled
from toys import Augmented, Bomb, Boom, accuracy, finish, hard_learner, told, unequal
from trainer_nb import Learner, Paused, InvalidOperation, differences
from trainer_nb.display.charts import SVG_MIME
from trainer_nb.tune.lr_finder import LRFindResult
from trainer_nb.tune.lr_trials import train_with_rates
from trainer_nb.diagnostics.isolated import isolated_training
from trainer_nb.tune.lr_finder import RULES, readable_part, assess_curve

RECORDED = json.loads(Path(__file__).parents[1].joinpath("lr_find_recorded.json").read_text())
LOSS = nn.functional.cross_entropy
QUICK = dict(num_steps=12, start=1e-4, end=1)


pytestmark = pytest.mark.usefixtures("one_thread")


# --- no trace ----------------------------------------------------------------------------------------------------------

class Stream(IterableDataset):
    "The examples one by one, shared out among workers."
    def __init__(self): self.data = Augmented()
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        for i in range(info.id if info else 0, len(self.data), info.num_workers if info else 1): yield self.data[i]


def layered(): return dict(layer_groups=["inner", "norm", "outer"], learning_rate=[1e-3, 3e-3, 5e-3, 1e-2], weight_decay=0.1)


SETUPS = {"plain": {}, "clipped": dict(max_grad_norm=0.05), "sgd": dict(optim="sgd", optim_args="momentum=0.9"), "groups": layered(),
          "stream": dict(train_dataset=Stream(), max_steps=8), "workers": dict(dataloader_num_workers=2),
          "workers of a stream": dict(train_dataset=Stream(), max_steps=8, dataloader_num_workers=2),
          "one cycle": dict(lr_scheduler_type="one_cycle", warmup_steps=0), "copies": dict(rollback="full"), "bf16": dict(bf16=True),
          "plateau": dict(lr_scheduler_type="constant", eval_dataset=Augmented(10), compute_metrics=accuracy, eval_strategy="epoch")}
undisturbed = {}


def outcome_of(name):
    "How a run ends that nobody has searched in; each is made once."
    if name not in undisturbed: undisturbed[name] = finish(hard_learner(**SETUPS[name]))
    return undisturbed[name]


# before the first step, near the end of an epoch, in the next one; processes that read a stream take long to start
@pytest.mark.parametrize("name, at", [pytest.param(name, at, marks=pytest.mark.slow if name == "workers of a stream" and at != 2 else ())
                                      for name in SETUPS for at in (0, 2, 4)])
def test_leaves_no_trace(name, at):
    "Not a byte differs after a search, and the rest of the run is that of one without."
    learn = hard_learner(**SETUPS[name])
    if at: learn.step(at)
    before, groups = learn.snapshot(), learn.optimizer.param_groups
    found = learn.lr_find(**QUICK)
    assert len(found.rates) == len(found.losses) > 3 and not differences(before, learn.snapshot())
    assert learn.optimizer.param_groups is groups and all(p.grad is None for p in learn.model.parameters())
    assert not unequal(finish(learn), outcome_of(name))


@pytest.mark.parametrize("at", [0, 4])
@pytest.mark.parametrize("place", ["forward", "backward", "getitem", "collate"])
@pytest.mark.parametrize("kind", [Boom, KeyboardInterrupt])
def test_leaves_no_trace_when_it_fails(place, kind, at):
    "An error, or a press of the button, half-way."
    bomb = Bomb(kind=kind)
    learn = hard_learner(hook=bomb)
    if at: learn.step(at)
    before = learn.snapshot()
    bomb.name, bomb.times = place, (bomb.counts.get(place, 0) + 15,)
    wanted, said = (Paused, "The run is unchanged") if kind is KeyboardInterrupt else (Boom, place)
    with pytest.raises(wanted, match=said): learn.lr_find(**QUICK)
    assert not differences(before, learn.snapshot())
    assert not unequal(finish(learn), outcome_of("plain"))


@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused"])
def test_leaves_the_scale_alone(optim):
    "With a gradient scaler, whose scale grows and shrinks in the search."
    def made(): return scaled(optim=optim, interval=2)
    learn = made()
    learn.step(3)
    before = learn.snapshot()
    overflow(learn.model)
    assert len(learn.lr_find(**QUICK).losses) > 3
    assert not differences(before, learn.snapshot()) and not unequal(finish(learn), finish(made()))


def test_leaves_nothing_in_the_history():
    "No rows, no events, no logs; callbacks hear nothing."
    listener = told()
    learn = hard_learner(callbacks=[listener])
    learn.step(2)
    rows, events, logs, heard = len(learn.history), len(learn.history.events), list(learn.state.log_history), list(listener.heard)
    learn.lr_find(**QUICK)
    assert (len(learn.history), len(learn.history.events), learn.state.log_history, listener.heard) == (rows, events, logs, heard)


def test_is_refused_within_a_step():
    learn = hard_learner()
    step = learn.debug_step()
    with pytest.raises(InvalidOperation, match="debug step is open"): learn.lr_find()
    step.abort()
    learn.lr_find(**QUICK)


def test_on_a_finished_run():
    "A schedule that cannot go on does not matter, and the run stays finished."
    learn = hard_learner(lr_scheduler_type="one_cycle", warmup_steps=0)
    learn.train()
    before = learn.snapshot()
    assert len(learn.lr_find(**QUICK).losses) > 3
    assert not differences(before, learn.snapshot()) and learn.run_state.finished


def test_plateau_schedule():
    "A schedule of the user's that waits for metrics stands still as well."
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    learn = Learner(model, train_dataset=digits(), loss_func=LOSS, optimizers=(optimizer, schedule), use_cpu=True, max_steps=20, disable_tqdm=True)
    learn.step(3)
    before = learn.snapshot()
    found = learn.lr_find(num_steps=20)
    assert not differences(before, learn.snapshot()) and learn.lr_scheduler is schedule and found.setting == ("learning_rate", 1.0)


# --- the rates that are tried ------------------------------------------------------------------------------------------

class Spy(torch.optim.SGD):
    "Writes down the rates of its groups at each update."
    seen = []   # of the class: the search puts back what the optimizer itself keeps
    def step(self, closure=None):
        self.seen.append([(float(g["lr"]), g["momentum"], g["weight_decay"]) for g in self.param_groups])
        return super().step(closure)


@pytest.mark.parametrize("kind", ["cosine", "linear", "one_cycle", None])
@pytest.mark.parametrize("mode", ["exp", "linear"])
def test_the_optimizer_sees_the_rates(kind, mode):
    "Whatever the schedule: the rates of the first group, the others in their ratio; momentum and decay as they are."
    model = perceptron()
    groups = [dict(params=model[0].parameters(), lr=0.02, weight_decay=0.1), dict(params=model[2].parameters(), lr=0.1)]
    optimizer = Spy(groups, momentum=0.5)
    learn = Learner(model, train_dataset=digits(), loss_func=LOSS, optimizers=(optimizer, None), use_cpu=True, max_steps=40, disable_tqdm=True,
                    lr_scheduler_type=kind or "constant", warmup_steps=5)
    learn.step(10)
    now = [(g["momentum"], g["weight_decay"]) for g in optimizer.param_groups]
    Spy.seen.clear()
    found = learn.lr_find(1e-6, 1e-2, 30, mode, stop_factor=None, trial_steps=0)
    wanted = np.geomspace(1e-6, 1e-2, 30) if mode == "exp" else np.linspace(1e-6, 1e-2, 30)
    assert np.allclose(found.rates, wanted, rtol=1e-12)
    assert np.allclose([[r for r, *_ in step] for step in Spy.seen], np.stack([wanted, 5 * wanted], 1), rtol=1e-9)
    assert all([(m, w) for _, m, w in step] == now for step in Spy.seen)
    assert found.ratios == [1.0, 5.0] and "5 times as much" in repr(LRFindResult(*falling(), 100, False, ratios=found.ratios))


def test_a_rate_that_is_a_tensor_stays_one():
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(1e-3))
    learn = Learner(model, train_dataset=digits(), loss_func=LOSS, optimizers=(optimizer, None), use_cpu=True, max_steps=10, disable_tqdm=True)
    learn.step(2)
    before = learn.snapshot()
    learn.lr_find(num_steps=20)
    assert isinstance(optimizer.param_groups[0]["lr"], torch.Tensor) and not differences(before, learn.snapshot())
    learn.train()


def test_a_rate_of_zero_is_refused():
    model = perceptron()
    optimizer = torch.optim.SGD([dict(params=model[0].parameters(), lr=0.0), dict(params=model[2].parameters())], lr=0.1)
    learn = Learner(model, train_dataset=digits(), loss_func=LOSS, optimizers=(optimizer, None), use_cpu=True, max_steps=10, disable_tqdm=True)
    with pytest.raises(ValueError, match="learn.freeze"): learn.lr_find()


def test_steps_are_those_of_the_run():
    "With the run's own rate, the losses are those that the next steps have: accumulation, dropout, augmentation, clipping, and the next epochs."
    learn = hard_learner(num_train_epochs=4, lr_scheduler_type="constant", warmup_steps=0)
    learn.step(2)
    with isolated_training(learn, "lr_find()") as run: losses, _ = train_with_rates(learn, run, [1e-2] * 9, None, lambda: None)
    assert losses == [record.loss for record in learn.step(9)]


def test_goes_on_with_the_next_epoch():
    "Data sets of one batch, and streams: as many steps as are asked for."
    small = TensorDataset(*digits()[:20])
    found = Learner(perceptron(), train_dataset=small, loss_func=LOSS, use_cpu=True, disable_tqdm=True, per_device_train_batch_size=32).lr_find(num_steps=30, end=1e-2)
    assert len(found.losses) == 30
    learn = hard_learner(**SETUPS["stream"])   # 3 steps in an epoch
    assert len(learn.lr_find(1e-6, 1e-5, 20).losses) == 20


def test_an_empty_stream_says_so():
    class Empty(IterableDataset):
        def __iter__(self): return iter(())
    with pytest.raises(ValueError, match="no batches"): hard_learner(train_dataset=Empty(), max_steps=5).lr_find()


def test_stops_when_the_loss_diverges():
    "At the factor, at a loss that is not finite, or not at all."
    short, longer = searched("momentum").lr_find(), searched("momentum").lr_find(stop_factor=None)
    assert short.stopped and len(short.losses) < 100 and short.smoothed[-1] > 4 * short.smoothed.min() > short.smoothed[-2]
    assert len(longer.losses) > len(short.losses) and np.array_equal(longer.losses[:len(short.losses)], short.losses) and not longer.stopped
    endless = searched("momentum", bomb=Bomb("loss", 30)).lr_find(stop_factor=None)
    assert endless.stopped and len(endless.losses) == 30 and math.isnan(endless.losses[-1]) and np.isfinite(endless.losses[:-1]).all()


@pytest.mark.parametrize("wrong, said", [(dict(start=0), "0 < start < end; got start=0, end=10"), (dict(start=1, end=0.1), "0 < start < end; got start=1, end=0.1"),
                                         (dict(num_steps=3), "num_steps must be an integer of at least 10, got 3"), (dict(num_steps=20.5), "integer of at least 10, got 20.5"),
                                         (dict(mode="log"), "mode must be one of 'exp', 'linear'; got 'log'"), (dict(stop_factor=0.5), "above 1"), (dict(suggest="best"), "valley, slide, minimum, steep"),
                                         (dict(trial_steps=-1), "trial_steps must be an integer")])
def test_what_makes_no_search_is_refused(wrong, said):
    with pytest.raises(ValueError, match=said): hard_learner().lr_find(**wrong)


# --- what is said ------------------------------------------------------------------------------------------------------

def falling(n=100):
    "Rates and a curve that falls where one expects it."
    share = np.linspace(0, 1, n)
    return 1e-7 * 1e8 ** share, 2 - np.clip(share - 0.4, 0, 0.3) * 5 + np.exp(60 * (share - 0.9)) + 0.02 * np.random.default_rng(1).standard_normal(n)


def test_which_setting_takes_the_rate():
    "The base before the first step, in a warm-up, and where the schedule is at its height; the present rate where it has gone down."
    learn = hard_learner(num_train_epochs=10, warmup_steps=5, lr_scheduler_type="cosine")
    settings = [learn.lr_find(**QUICK).setting]
    for n in (2, 3, 10): learn.step(n); settings.append(learn.lr_find(**QUICK).setting)
    assert [s for s, _ in settings] == ["learning_rate", "learning_rate", "learning_rate", "lr"]
    assert settings[0][1] == 0 and settings[1][1] == pytest.approx(0.4) and settings[2][1] == 1 and 0 < settings[3][1] < 1
    for setting in settings:
        found = LRFindResult(*falling(), 100, False, setting=setting)
        assert "found.apply('valley')" in repr(found)
        found.attach(learn).apply("valley")   # it can be typed
    assert learn.optimizer.param_groups[0]["lr"] == pytest.approx(found.valley)


def test_shows_itself():
    found = LRFindResult(*falling(), 100, False)
    assert [*found.suggestions] == ["valley", "slide", "minimum", "steep"] and found.valley == found.suggestions["valley"] > 1e-4
    assert list(found.frame().columns) == ["rate", "loss", "smoothed"] and len(found.frame()) == 100
    bundle = found.bundle()
    assert all(name in bundle[SVG_MIME] for name in RULES) and "smoothed" in repr(found)
    assert LRFindResult(*falling(), 100, False, mode="linear").panels()[0].xlog is False
    one = LRFindResult(*falling(), 100, False, rules={"mine": lambda rates, losses: 0.01})
    assert one.suggestions == {"mine": 0.01} and one.valley is None and "found.apply('mine')" in repr(one)


SHARE = np.linspace(0, 1, 100)
NOISE = 0.02 * np.random.default_rng(3).standard_normal(100)

@pytest.mark.parametrize("curve, stopped, answer, said", [
    (falling()[1], False, True, ""),
    (2 + NOISE, False, False, "did not fall by more"),
    (np.full(100, 2.0), False, False, "did not fall by more"),
    (2 + NOISE + np.clip(SHARE - 0.5, 0, 1), False, False, "did not fall by more"),
    (2 + NOISE[:60] + np.exp(np.arange(60) - 50), True, False, "did not fall by more"),
    (np.array([2, 9, 1e3, np.inf]), True, False, "diverged at once"),
    (np.full(100, np.nan), True, False, "very first loss"),
    (-5 + falling()[1], False, True, "")])   # a likelihood's losses may be negative
def test_verdicts(curve, stopped, answer, said):
    "Curves of all kinds, and what is said of them; without an answer no rule gives one."
    found = LRFindResult(1e-7 * 1e8 ** SHARE[:len(curve)], curve, 100, stopped)
    assert (found.answer, said in found.verdict, bool(found.verdict)) == (answer, True, bool(said)), found.verdict
    assert all((rate is not None) == answer for rate in found.suggestions.values())
    repr(found), found.bundle(), found.frame()


SEEDS = range(24)


def of_digits(seed, shuffled=False, **settings):
    "A search on handwritten digits, with a network and batches from a seed."
    images, labels = digits()[:]
    if shuffled: labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    how = {k: settings.pop(k) for k in ("start", "end", "num_steps") if k in settings}
    return Learner(model, train_dataset=TensorDataset(images, labels), loss_func=LOSS, use_cpu=True, max_steps=100, seed=seed, per_device_train_batch_size=32,
                   max_grad_norm=0, lr_scheduler_type="constant", disable_tqdm=True, **settings).lr_find(**how, trial_steps=0)


@pytest.mark.parametrize("case, given, sound", [("digits", {}, 24), ("labels shuffled", dict(shuffled=True), 0), ("rates far too small", dict(start=1e-10, end=1e-6), 0),
                                                ("labels shuffled, sgd", dict(shuffled=True, optim="sgd"), 0), ("slow, three times the steps", dict(optim="sgd", num_steps=300), 24)])
def test_a_network_that_does_not_learn_is_told_from_one_that_does(case, given, sound):
    "Of 24 seeds, how many searches have suggestions without a doubt; of the others, hardly any has suggestions at all."
    found = [of_digits(seed, **given) for seed in SEEDS]
    assert sum(o.answer and not o.verdict for o in found) == sound
    assert sum(o.answer for o in found) in ((24,) if sound else (0, 1))
    assert all((o.verdict == "") == (o.note == "") for o in found)


def test_chance_is_rarely_taken_for_a_fall():
    "A thousand curves of noise alone: suggestions for about one in a hundred, and hardly ever without a doubt."
    curves = [assess_curve(1e-7 * 1e8 ** SHARE, 2 + 0.3 * np.random.default_rng(seed).standard_normal(100), 100, False) for seed in range(1000)]
    assert sum(o.answer for o in curves) <= 15 and sum(not o.words for o in curves) <= 3


# --- suggestions -------------------------------------------------------------------------------------------------------

RATES = 10.0 ** np.linspace(-5, 0, 51)   # ten to a decade

@pytest.mark.parametrize("name, curve, answer", [
    ("valley", np.interp(np.arange(51), [0, 20, 40, 50], [2, 2, 1, 4]), 40 - 21 + 7 + 3),     # 21 points fall, the last on the plateau included
    ("valley", np.arange(51.0)[::-1], 51 - 1 - 51 + 17 + 8),
    ("valley", np.r_[5, np.arange(50.0)], 0),                                                  # two points
    ("valley", np.arange(51.0), None),
    ("slide", np.interp(np.arange(51), [0, 20, 40, 50], [2, 2, 1, 4]), 25),
    ("slide", np.zeros(51), 35),                                                               # it does not move
    ("slide", np.arange(51.0) ** 2, 0),                                                        # it never rests
    ("steep", np.interp(np.arange(51), [0, 30, 32, 50], [2, 2, 1, 0.5]), 30),
    ("steep", np.arange(51.0), None),
    ("minimum", np.abs(np.arange(51.0) - 33), 23)])
def test_rules_on_known_curves(name, curve, answer):
    assert RULES[name](RATES, curve) == (None if answer is None else pytest.approx(RATES[answer]))


@pytest.mark.parametrize("case", CASES)
def test_rules_answer_as_fastai_does(case):
    "On the curves that fastai has recorded, the very rates that its own functions gave (in single precision)."
    curve = RECORDED["fastai"]["cases"][case]
    part = readable_part(curve["smoothed"], 100)
    for name, rule in RULES.items():
        assert rule(np.array(curve["rates"])[part], np.array(curve["smoothed"])[part]) == pytest.approx(curve["suggestions"][name], rel=1e-6), name


def searched(case, bomb=None):
    "A learner on the work that was recorded; with a bomb, the loss is nan when it goes off."
    def loss(logits, labels):
        try: bomb and bomb("loss")
        except Boom: return logits.sum() * math.nan
        return nn.functional.cross_entropy(logits, labels)
    model, settings = perceptron(), CASES[case]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=settings["momentum"])
    return Learner(model, train_dataset=DataLoader(digits(), batch_size=32), loss_func=loss, optimizers=(optimizer, None), use_cpu=True,
                   max_steps=100, max_grad_norm=0, lr_scheduler_type="constant", disable_tqdm=True)


@pytest.mark.parametrize("case", CASES)
def test_finds_what_fastai_finds(case):
    "The same curve, which ends at the same step, and the same four suggestions. fastai stops one step short of `end`."
    theirs, end = RECORDED["fastai"]["cases"][case], CASES[case]["end"]
    found = searched(case).lr_find(1e-7, 1e-7 * (end / 1e-7) ** 0.99, 100)
    assert len(found.rates) == len(theirs["rates"]) and np.allclose(found.rates, theirs["rates"], rtol=1e-9)
    assert np.allclose(found.smoothed, theirs["smoothed"], rtol=1e-4)
    assert found.suggestions == pytest.approx(theirs["suggestions"], rel=1e-5)

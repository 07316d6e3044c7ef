"The sentence on a run: losses of real trainings, recorded by record_loss_curves.py, and what is said at each step of them."
import json, math, re
from pathlib import Path

import numpy as np
import pytest

from trainer_nb.core.history import History
from trainer_nb.display.tables import format_value
from trainer_nb.live import health
from trainer_nb.live.blocks import event_marks
from trainer_nb.live.health import assess_health

CURVES = json.loads(Path(__file__).parents[1].joinpath("loss_curves.json").read_text("utf-8"))
CALM = ("converging", "decaying", "restarting", "overfitting_by_epoch", "plateau", "noisy", "adam_too_fast", "fine_tuning", "negative", "tiny")


def replayed(losses, evaluations=(), every=5, begin=0):
    "The health at each few steps of a run, by step."
    history, by_step, said = History(), dict(evaluations), {}
    for step, loss in enumerate(losses, 1):
        history.append(step, step / 100, 1e-3, 8, 0.1 * step, float(loss), 1.0)
        if step in by_step: history.note("evaluate", step, eval_loss=float(by_step[step]))
        if step > begin and step % every == 0: said[step] = assess_health(history)
    return said


def of(name): return replayed(CURVES[name]["losses"], CURVES[name]["evaluations"])
def warned(said): return [step for step, o in said.items() if o.tone in ("warn", "bad")]


@pytest.mark.parametrize("name, looks", [("converging", 60), ("decaying", 60), ("negative", 62), ("characters", 60), ("plateau", 0)])
def test_the_trend_of_a_loss_that_falls_is_seen(name, looks):
    "Also where it falls by less than its scatter in a tenth of the run; and none on a plateau."
    losses = CURVES[name]["losses"]
    tones = [o.tone for o in replayed(losses, every=len(losses) // 60, begin=19).values()]
    assert abs(tones.count("good") - looks) <= 3


@pytest.mark.parametrize("name", CALM)
def test_no_warning_in_a_run_that_is_well(name):
    "Converging, scheduled, noisy with a batch size of 1, small already, negative, near 0, and one that does not learn: none of them loses what it had."
    said = of(name)
    assert not warned(said), said[warned(said)[0]]


def test_a_run_that_diverges():
    "Its accuracy is 97 % until step 400, whatever the loss does; from step 500 on it is lost."
    steps = warned(of("diverging"))
    assert 480 < steps[0] <= 500 and steps == list(range(steps[0], 701, 5))
    # by orders of magnitude, so that its own scatter is larger than the rise
    said = replayed([0.3 + 0.1 * math.sin(step) for step in range(92)] + [10.0 ** (2 * step) for step in range(18)])
    assert [step for step in warned(said)] == [105, 110]


@pytest.mark.parametrize("name, best, warns", [("overfitting", 250, 900), ("confident", 500, 1100), ("characters", 400, 1000)])
def test_overfitting(name, best, warns):
    "After the minimum, and from then on."
    said = of(name)
    steps = warned(said)
    assert steps[0] == warns and len(steps) == len([o for o in said if o >= warns])
    assert all(said[o].sentence.startswith(f"Overfitting: eval_loss was lowest at step {best} (") for o in steps)


def test_a_spike_that_the_run_overcomes():
    "A warning while most of the last steps are bad, and none afterwards."
    steps = warned(of("spike"))
    assert steps and steps[0] > 402 and steps[-1] < 500


def test_a_rate_that_is_too_large_from_the_beginning():
    said = of("too_fast")
    assert len(warned(said)) > 0.8 * len(said) and "well above the first loss: " in said[300].sentence and "2.30 at step 1." in said[300].sentence
    said = of("fine_tuning_too_fast")
    assert set(warned(said)) >= set(range(225, 501, 5)) and not [o for o in warned(said) if o < 100]


def test_a_loss_that_rises_and_falls():
    "That of a GAN's generator: once rises are known of it, only a larger one is reported."
    steps = warned(of("gan"))
    assert not [o for o in steps if 140 < o < 2600] and len(steps) < 0.12 * 600


@pytest.mark.parametrize("scale, offset", [(100.0, 0.0), (1e-6, 0.0), (1.0, -50.0)])
@pytest.mark.parametrize("name", ["diverging", "converging", "spike"])
def test_the_size_of_a_loss_does_not_matter(name, scale, offset):
    "Without evaluations, whose minimum counts with its size."
    losses = np.array(CURVES[name]["losses"])
    assert warned(replayed(losses, every=20)) == warned(replayed(scale * losses + offset, every=20))


def test_a_figure_is_the_mean_that_it_is_called():
    losses = CURVES["plateau"]["losses"][:200] + CURVES["converging"]["losses"][:400]
    seen = set()
    for step, o in replayed(losses, every=1, begin=30).items():
        words, now, length, before = re.fullmatch(r"(No clear trend: mean loss|The loss has (?:risen|fallen): mean) (\S+) over the last (\d+) steps, (\S+) over the \3 before\.", o.sentence).groups()
        n = int(length)
        assert (now, before) == (format_value(float(np.mean(losses[step - n:step]))), format_value(float(np.mean(losses[step - 2 * n:step - n]))))
        seen.add((o.tone, words))
    assert ("good", "The loss has fallen: mean") in seen and ("plain", "No clear trend: mean loss") in seen
    assert {tone for tone, words in seen if "risen" in words} <= {"plain"}
    losses = CURVES["diverging"]["losses"]
    now, length, lowest, place = re.fullmatch(r"The mean loss is well above the lowest: (\S+) over the last (\d+) steps, (\S+) around step (\d+)\.", of("diverging")[700].sentence).groups()
    n, start = int(length), int(place) - 1 - int(length) // 2
    assert (now, lowest) == (format_value(float(np.mean(losses[-n:]))), format_value(float(np.mean(losses[start:start + n]))))


def test_differences_that_the_figures_do_not_show_are_none():
    "A loss of 3.21 that has fallen from 3.21."
    losses = 3.214 - 1e-5 * np.arange(300)
    said = replayed(losses)[300]
    assert said.tone == "plain" and said.sentence.startswith("No clear trend: mean loss 3.21 over")
    assert replayed([0.0] * 60)[60].sentence == "No clear trend: mean loss 0 over the last 15 steps, 0 over the 15 before."
    fallen = replayed([*np.linspace(2.3, 0.002, 100), *[0.001, 0.003] * 100])[300]
    assert fallen.sentence == "The loss has fallen from 1.44 at first, with no clear trend now: mean 2.01e-3 over the last 75 steps, 1.99e-3 over the 75 before."


def test_the_first_steps():
    assert assess_health(History()).sentence == "No step has been done yet."
    said = replayed([1.0, 0.5] * 10, every=1)
    assert said[1].sentence == "A trend needs 20 steps; so far there is 1." and said[19].sentence == "A trend needs 20 steps; so far there are 19."
    assert "10 before" in said[20].sentence


def test_a_loss_that_is_not_finite():
    "Since the first step after the last finite loss, however long ago that was, with a mark in the charts; a single one that is over is not reported."
    history = History()
    for step in range(1, 51): history.append(step, step / 100, 1e-3, 8, 0.1 * step, math.nan if step in (9, *range(31, 51)) else 1.0, 1.0)
    assert [(mark["kind"], mark["word"], mark["step"], mark["action"][1:]) for mark in event_marks(history)] == [("nan", "loss nan", 31, ["rewind", {"to": 30}])]
    said = replayed([1.0] * 30 + [math.nan] * 20)
    assert said[50].tone == "bad" and said[50].sentence.startswith("The loss has been nan since step 31. learn.rewind(20) goes back to the step before")
    assert "nan since step 1. learn.rewind(" in replayed([math.nan] * 5)[5].sentence
    assert replayed([1.0] * 30 + [math.nan] + [1.0] * 29)[60].tone == "plain"
    long = replayed([1.0] * 1234 + [math.inf] * 12_000, every=13_234)[13_234]
    assert "has been inf since step 1235. learn.rewind(12000)" in long.sentence


def test_what_was_discarded_does_not_count():
    history = History()
    for i in range(200): history.append(i + 1, i, 1e-3, 8, 0.1 * i, 2.0 - i / 150, 1.0)
    place = history.place()
    for i in range(200, 300): history.append(i + 1, i, 1e-3, 8, 0.1 * i, 30.0, 1.0)
    for step, loss in ((220, 1.0), (240, 4.0), (260, 5.0), (280, 6.0)): history.note("evaluate", step, eval_loss=loss)
    assert assess_health(history).tone == "warn"
    history.abandon(place)
    assert assess_health(history).tone == "good"


def test_a_long_run(monkeypatch):
    "A run that has diverged in the night is still lost in the morning, though few of its rows are read."
    rng = np.random.default_rng(0)
    losses = np.append(5 * np.arange(1, 20_001) ** -0.2 + 0.05 * rng.standard_normal(20_000), 3.5 + 0.05 * rng.standard_normal(30_000))
    last = replayed(losses, every=50_000)[50_000]
    assert last.tone == "warn" and re.search(r"well above the lowest: 3\.50 over the last 200 steps, 0\.\d+ around step 1\d{4}\.", last.sentence)
    sizes = []
    monkeypatch.setattr(health, "rise_sentence", lambda steps, losses: sizes.append(len(losses)))
    replayed(losses, every=50_000)
    assert sizes[0] <= 4000


@pytest.mark.parametrize("values, rises", [
    ([1.0, 1.5, 2.0], True),                             # three epochs of fine-tuning
    ([0.5, 0.51, 0.505, 0.515, 0.51], False),            # nothing to speak of
    ([2.3, 0.06, 0.08, 0.07, 0.1, 0.09], False),         # a tenth of the fall, although it is more than the minimum
    ([0.9, 0.5, 0.45, 0.5, 0.56, 0.6, 0.65], True),
    ([1.2, 0.8, 1.1, 0.82, 1.15, 0.9, 1.0, 0.95], False),   # as large a rise was followed by a fall
    ([1.0, 0.5], False), ([], False), ([1.0, 1.0, 1.0, 1.0], False),
])
def test_evaluations(values, rises):
    assert (health.find_evaluation_rise(np.array(values)) is not None) == rises


def test_noise_of_evaluations_is_no_overfitting():
    "Of a hundred runs on a plateau with 3 % of noise, one in twenty has a warning at one of its 40 evaluations; where the loss has fallen before, none."
    rng = np.random.default_rng(0)
    def ever(first):
        runs = 0
        for _ in range(100):
            values = np.array([first, *(1 + 0.03 * rng.standard_normal(40))])
            runs += any(health.find_evaluation_rise(values[:n]) is not None for n in range(1, 41))
        return runs
    assert ever(1.0) <= 5 and ever(3.0) == 0

"The fuzzer's cases for every change: fixed seeds, and cases that failed once. `fuzzer.py` beside it runs more of them."
import pytest

from fuzzer import FEATURES, PLAIN, Case, case_of, described, reduce, run_case, simpler

pytestmark = pytest.mark.usefixtures("one_thread")

SEEDS = range(0, 160)
AT_ONCE = 8   # seeds of one test

REGRESSIONS = [   # a case that failed once stays here
    Case(PLAIN, ["learn.step(upto(2))", "learn = other_process(learn)"]),
    Case(PLAIN | {"callbacks": ["stops"]}, ["train(learn)", "learn = other_process(learn)"]),
    # a log that is pending in a snapshot took its numbers from a discarded step
    Case(PLAIN | {"callbacks": ["wishes"]}, ["learn.step()", "arm('on_step_end', 1)", "learn.step()", "learn.snapshot('a')", "learn.step(2)",
                                             "learn.restore('a')"]),
    # the history of a run that was saved right after it had been resumed was lost
    Case(PLAIN | {"saves": True}, ["learn.step(3)", "learn = other_process(learn)", "learn = other_process(learn)"]),
    # callbacks with a state_dict were not put back when a step failed
    Case(PLAIN | {"callbacks": ["early_counter"]}, ["learn.step(2)", "given_up(learn)", "arm('forward', 1)", "learn.step()"]),
    # tools that fetch training data moved the data set's own generator
    Case(PLAIN | {"data": "counted"}, ["learn.summary()", "learn.step()", "learn.show_batch()", "learn.inspect()"]),
    # a data set with a generator of its own had moved on when the fetch or the step failed
    Case(PLAIN | {"data": "counted"}, ["arm('collate', 1)", "learn.step()"]),
    Case(PLAIN | {"data": "counted"}, ["arm('forward', 1)", "learn.step()", "learn = other_process(learn)"]),
]


def check(case):
    "Run a case; a failure shows the lines that replay it."
    __tracebackhide__ = True
    result = run_case(case)
    if result.state == "failed": pytest.fail(described(case, result), pytrace=False)


@pytest.mark.parametrize("first", [pytest.param(first, marks=pytest.mark.slow if first >= len(SEEDS) // 3 else ()) for first in SEEDS[::AT_ONCE]])
def test_seeds(first):
    "A disturbed run ends as the undisturbed one, byte for byte."
    for seed in range(first, first + AT_ONCE): check(case_of(seed))


@pytest.mark.parametrize("number", range(len(REGRESSIONS)))
def test_regressions(number):
    "Cases that failed once."
    check(REGRESSIONS[number])


def test_a_difference_is_found_and_reduced(monkeypatch):
    "The comparison can fail: a line that changes a weight is what remains of a case."
    harm = "learn.model.body[0].bias.data.add_(1)"
    case = Case(PLAIN | {"samples": 11, "callbacks": ["counter"]}, ["learn.step()", "learn.summary()", harm, "learn.inspect()"])
    found = run_case(case)
    assert found.state == "failed" and "weight body.0.bias" in found.message
    shortest = reduce(case, FEATURES)
    assert shortest.lines == [harm] and shortest.config == PLAIN
    assert harm in described(shortest, found)


def test_cases_are_functions_of_their_seeds():
    "The same seed gives the same case; four neighbours share a configuration and differ in their lines."
    cases = [case_of(seed) for seed in range(8)]
    assert cases == [case_of(seed) for seed in range(8)]
    assert cases[0].config == cases[3].config != cases[4].config and cases[0].lines != cases[1].lines
    assert all(set(config) == set(PLAIN) for config in simpler(cases[0].config))

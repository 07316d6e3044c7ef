"Two runs from one place: what is equal, what is changed, what is copied; and the journal of what was done."
import re

import pytest
import torch
from torch import nn

from toys import Augmented, accuracy, finish, hard_learner, outcome, unequal
from trainer_nb import Learner, compare, differences
from trainer_nb.core.errors import InvalidOperation
from trainer_nb.state.branch import Comparison

LONG = dict(num_train_epochs=10, logging_steps=4)   # 30 steps


@pytest.mark.parametrize("step, workers", [(0, 0), (1, 0), (3, 0), (8, 0), (30, 0), *(pytest.param(step, 2, marks=pytest.mark.slow) for step in (0, 1, 3, 8, 30))])
def test_a_branch_with_nothing_changed_is_the_same_run(step, workers):
    "Byte for byte, in turns, with everything that makes a run hard to repeat; and neither disturbs the other."
    settings = LONG | dict(dataloader_num_workers=workers, eval_dataset=Augmented(9), compute_metrics=accuracy, eval_strategy="steps", eval_steps=5)
    want = finish(hard_learner(**settings))
    learn = hard_learner(**settings)
    if step: learn.step(step)
    other = learn.branch()
    assert differences(learn.snapshot(), other.snapshot()) == []
    while not (learn.run_state.finished and other.run_state.finished):
        for one in (learn, other):
            if not one.run_state.finished: one.step(min(2, one.state.max_steps - one.state.global_step))
    assert unequal(outcome(learn), want) == [] and unequal(outcome(other), want) == []
    assert other.history.parent == learn.history.run_id and compare(learn, other).parted is None


@pytest.mark.parametrize("changes", [dict(lr=0.001), dict(weight_decay=0.3), dict(per_device_train_batch_size=2), dict(bf16=True),
                                     dict(max_steps=12, learning_rate=0.02), dict(label_smoothing_factor=0.0, max_grad_norm=0.1)])
def test_twice_the_same_changes(changes):
    "Two branches with the same changes are equal, differ from where they came from, and leave that as it was."
    want = finish(hard_learner(**LONG))
    learn = hard_learner(**LONG)
    learn.step(7)
    one, other = learn.branch(**changes), learn.branch(**changes)
    assert unequal(finish(one), finish(other)) == []
    assert unequal(finish(learn), want) == []
    parted = compare(learn, one)
    assert parted.parted in (8, 9) and set(parted.settings) >= {o for o in changes if o not in ("lr",)} - {"label_smoothing_factor"}
    assert "The losses diverge at step" in repr(parted) and "<table" in parted._repr_html_() and parted.frame().shape[1] == 4


def test_a_table_of_two_losses_shows_where_they_diverge():
    "Some rows around that step, and the last ones. The columns are the runs."
    def shown(parted, n, names=("a", "b")):
        table = Comparison({"step": s, "one": 1.0, "other": 1.0 + (s >= parted), "difference": float(s >= parted)} for s in range(1, n + 1))
        table.parted, table.names = parted if parted <= n else None, names
        lines = repr(table).splitlines()[1:]
        assert len(re.findall("<tr>", table._repr_html_())) == len(lines)
        return lines[0].split(), [line.split()[0] for line in lines[1:]]
    assert shown(100, 600) == (["step", "a", "b", "difference"], ["…", "97", "98", "99", "100", "101", "102", "103", "…", "598", "599", "600"])
    assert shown(5, 20)[1] == ["…", "2", "3", "4", "5", "6", "7", "8", "…", "18", "19", "20"]
    assert shown(2, 600)[1] == ["1", "2", "3", "4", "5", "…", "598", "599", "600"]
    assert shown(600, 600)[1] == ["…", "597", "598", "599", "600"]
    # no difference, and few steps
    assert shown(700, 600)[1] == [*"12345", "…", "596", "597", "598", "599", "600"] and shown(9, 12)[1] == [str(o) for o in range(1, 13)]
    # names that are not two
    for names in (Comparison.names, ("a", "a"), ("step", "b")): assert repr(shown(5, 20, names)[0]) == repr("step loss loss of the other difference".split())


def test_what_set_does_is_what_a_branch_does():
    learn = hard_learner(**LONG)
    learn.step(5)
    other = learn.branch(lr=0.002)
    learn.set(lr=0.002)
    assert unequal(finish(learn), finish(other)) == []


def test_a_change_that_cannot_be_made():
    "Refused, and there is no branch; nothing has happened to the run."
    learn = hard_learner(**LONG)
    learn.step(3)
    before, events = learn.snapshot(), len(learn.history.events)
    for changes, error in ((dict(learning_rat=1), TypeError), (dict(lr=-1.0), ValueError), (dict(max_steps=2), ValueError), (dict(optim="sgd"), ValueError)):
        with pytest.raises(error): learn.branch(**changes)
    assert differences(before, learn.snapshot()) == [] and len(learn.history.events) == events


def test_an_optimizer_that_was_given():
    model = nn.Linear(4, 3)
    learn = Learner(model, train_dataset=[(torch.randn(4), 0)] * 8, loss_func=nn.functional.cross_entropy, use_cpu=True, disable_tqdm=True,
                    optimizers=(torch.optim.SGD(model.parameters(), lr=0.1), None))
    learn.step()
    with pytest.raises(InvalidOperation, match="cannot copy an optimizer.*optimizer_cls_and_kwargs"): learn.branch()


def test_a_branch_of_a_branch_rewinds_and_resets():
    "It has the past of where it came from; what was taken back there is not in it."
    learn = hard_learner(rewind_every=2, **LONG)
    learn.step(9); learn.rewind(3)
    other = learn.branch(lr=0.005)
    assert other.history.column("step").tolist() == [1, 2, 3, 4, 5, 6]
    other.step(4)
    third = other.branch()
    third.step(2), other.step(2)
    assert differences(third.snapshot(), other.snapshot()) == []
    other.rewind(3)
    assert other.state.global_step == 9
    other.reset()
    first = hard_learner(**LONG)
    assert all(map(torch.equal, other.model.parameters(), first.model.parameters()))


def test_the_journal():
    "Every act, in order, with what it was; an act that was taken back is marked."
    learn = hard_learner(rewind_every=4, **LONG)
    learn.step(2); learn.set(lr=0.02); learn.step(4)
    with torch.no_grad(): learn.model.outer.bias.zero_()
    learn.step(); learn.freeze("inner"); learn.rewind(2); learn.branch(max_grad_norm=0.5); learn.evaluate(Augmented(6)); learn.step()
    acts = [(o["step"], o["act"], o["what"], o["abandoned"]) for o in learn.journal]
    assert acts[:-1] == [(2, "set", "lr=0.02", False), (6, "by hand", "changed: weights", True), (7, "freeze", "inner", True), (5, "rewind", "2 steps back", False)]
    assert acts[-1][:2] == (5, "branch") and acts[-1][2].endswith("max_grad_norm=0.5")
    assert "discarded" in repr(learn.journal) and "<table" in learn.journal._repr_html_()
    assert not hard_learner().journal


def test_the_journal_names_the_snapshot_that_was_restored():
    learn = hard_learner(**LONG)
    learn.step(2)
    learn.snapshot("before")
    other = learn.snapshot()
    learn.step(2); learn.restore("before"); learn.step(); learn.restore(other)
    assert [(o["step"], o["act"], o["what"]) for o in learn.journal] == [(2, "restore", "before"), (2, "restore", "a snapshot")]
    # an earlier version has not written a name
    learn.history.note("restore", 2)
    assert learn.journal[-1]["what"] == "a snapshot"


def test_what_a_branch_takes_over_cannot_be_another():
    "What the optimizer, the schedule or the learner was made from is refused; coefficients of Adam are in the groups of the branch."
    learn = hard_learner(**LONG)
    learn.step(3)
    for name, value in dict(lr_scheduler_type="polynomial", warmup_steps=3, lr_scheduler_kwargs={"num_cycles": 2}, optim_args="a=1", optim="sgd", report_to="tensorboard",
                            enable_jit_checkpoint=True, eval_on_start=True).items():
        with pytest.raises(ValueError, match=f"{name}.*cannot be changed by branch.*make a new"): learn.branch(**{name: value})
    with pytest.raises(ValueError, match="adam_beta1=0.5 cannot be changed by branch.*param_groups: g..betas.."): learn.branch(adam_beta1=0.5)
    same = learn.branch(lr_scheduler_type=learn.args.lr_scheduler_type)
    for g in same.optimizer.param_groups: g["betas"] = 0.5, 0.999
    plain = learn.branch()
    for one in (same, plain): one.step(2)
    assert compare(plain, same).parted == 5 and learn.optimizer.param_groups[0]["betas"] == (0.9, 0.999)


def test_a_comparison_as_curves():
    "Both losses under the setting that differs, and the size of the difference from the step on at which there is one."
    learn = hard_learner(**LONG)
    learn.step(5)
    other = learn.branch(lr=0.3)
    for one in (learn, other): one.step(4)
    result = compare(learn, other)
    loss, apart = result.plot().panels()
    assert [line.name for line in loss.named()] == list(result.names) and "0.3" in result.names[1]
    assert [mark.x for mark in loss.things if hasattr(mark, "word")] == [result.parted]
    # the other leaves the one at their last common step
    assert [line.x[0] for line in loss.named()] == [1, result.parted - 1] and loss.named()[1].y[0] == result[result.parted - 2]["one"]
    line = apart.named()[0]
    assert [step for step, y in zip(line.x, line.y) if y == y] == [row["step"] for row in result if row["difference"]]
    # a part of the table is still one of the same two runs
    part = result[-3:]
    assert part.title() == result.title() and part.names == result.names and len(part) == 3 and f"diverge at step {result.parted}" in repr(part)
    assert [line.name for line in part.plot().panels()[0].named()] == list(result.names)
    same = compare(learn, learn.branch())
    assert len(same.plot().panels()) == 1 and same.names == ("one", "the other")
    assert "The losses are equal" in repr(same.plot())
    assert "The losses are equal at all common steps" in repr(same)


def test_a_comparison_of_runs_with_names():
    "Each has its name, if both have one, and the colour that it has in the other charts."
    learn = hard_learner(run_name="digits", **LONG)
    learn.step(3)
    one, other = learn.branch(run_name="clipped", max_grad_norm=0.01), learn.branch(run_name="plain")
    for o in (learn, one, other): o.step(3)
    def colors(chart): return {line.name: line.color for line in chart.panels()[0].named()}
    every = colors(learn.plot("loss", also=[one, other], smooth=0))
    assert list(every) == ["digits", "clipped", "plain"] and len(set(every.values())) == 3
    for a, b in [(one, other), (other, one), (learn, one), (one, learn)]:
        result = compare(a, b)
        assert result.names == (a.args.run_name, b.args.run_name)
        assert colors(result.plot()) == {name: every[name] for name in result.names}
    assert "max_grad_norm 0.01" in compare(one, other).title()
    # without a name, or with the same one
    unnamed, same = learn.branch(max_grad_norm=0.02), learn.branch(run_name="clipped", max_grad_norm=0.03)
    assert compare(one, unnamed).names == ("max_grad_norm 0.01", "max_grad_norm 0.02")
    assert compare(one, same).names == ("max_grad_norm 0.01", "max_grad_norm 0.03")


def test_the_differing_settings_are_settings():
    "What the arguments keep for themselves is not among them, whichever of the two runs has it."
    learn = hard_learner(**LONG)
    learn.step(2)
    other = learn.branch(max_grad_norm=0.5)
    for one in (learn, other): one.step(2)
    for one, another, values in ((learn, other, (1.0, 0.5)), (other, learn, (0.5, 1.0))):
        assert compare(one, another).settings == {"max_grad_norm": values}
    learn.set(max_grad_norm=0.5)
    assert compare(learn, other).settings == compare(other, learn).settings == {}


def test_runs_without_a_common_step():
    learn = hard_learner()
    learn.step()
    for result in (compare(learn, hard_learner()), compare(hard_learner(), learn)):
        assert not result and repr(result).startswith("The runs have no step in common") and result.plot() is not None

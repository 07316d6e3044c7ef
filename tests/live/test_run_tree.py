"The picture of runs, what they discarded, and their branches."
import gc
import xml.etree.ElementTree as ET

import pytest
import torch

from trainer_nb import Learner, run_tree
from trainer_nb.core.history import History, read_history
from trainer_nb.display.panels import LineSeries, Marker
from trainer_nb.live.curves import as_history, plot_histories, run_labels
from trainer_nb.live.run_tree import history_lanes, row_owners
from trainer_nb.live.blocks import event_marks
from trainer_nb.live.static_view import view_panels

def take(history, first, last, scale=1.0):
    "Steps whose losses tell which attempt took them."
    for step in range(first, last + 1): history.append(step, step / 10, 0.1, 8, 0.1 * len(history), loss=scale / step)


def go_back(history, place, step, kind="rewind", **data):
    history.abandon(place)
    history.note(kind, step, **({"steps": 1} if kind == "rewind" else data))


def ends(lanes): return [(lane.label, lane.start, lane.end, lane.parent) for lane in lanes]


def test_stretches_leave_the_run():
    "To 9, back to 5, to 7, back to 6, to 8, back to 5, on: each at its first step."
    history = History("a")
    take(history, 1, 5)
    five = history.place()
    take(history, 6, 9, 2.0)
    go_back(history, five, 5)
    take(history, 6, 6, 3.0)
    six = history.place()
    take(history, 7, 7, 4.0)
    go_back(history, six, 6)
    take(history, 7, 8, 5.0)
    go_back(history, five, 5)
    take(history, 6, 6, 6.0)
    assert row_owners(history).tolist() == [-1] * 5 + [0] * 4 + [2] + [1] + [2] * 2 + [-1]
    assert ends(history_lanes(history, "a")) == [("a", 0, 6, None), ("discarded", 5, 9, history.run_id), ("discarded", 6, 7, history.run_id), ("discarded", 5, 8, history.run_id)]


def test_a_snapshot_brings_a_stretch_back():
    "What was discarded counts again; what was done since is the stretch."
    history = History("a")
    take(history, 1, 3)
    three = history.place()
    take(history, 4, 6, 2.0)
    six = history.place()
    go_back(history, three, 3)
    take(history, 4, 5, 3.0)
    go_back(history, six, 6, "restore")
    take(history, 7, 7)
    assert row_owners(history).tolist() == [-1] * 6 + [1] * 2 + [-1]
    assert ends(history_lanes(history, "a")) == [("a", 0, 7, None), ("discarded", 3, 5, history.run_id)]


def test_replayed_steps_are_no_stretch():
    history = History("a")
    start = history.place()
    take(history, 1, 6)
    history.abandon(start)
    take(history, 1, 4)
    history.note("rewind", 4, steps=2)
    assert ends(history_lanes(history, "a")) == [("a", 0, 4, None), ("discarded", 3, 6, history.run_id)]
    take(history, 5, 6)
    assert ends(history_lanes(history, "a")) == [("a", 0, 6, None)]
    assert [line.name for line in plot_histories([history], ["loss"], smooth=0).panels()[0].named()] == ["loss"]


def test_the_plot_of_a_rewind_begins_where_the_lines_separate():
    history = History("a")
    start = history.place()
    take(history, 1, 6)
    history.abandon(start)
    take(history, 1, 4)
    take(history, 5, 6, 9.0)
    left = next(line for line in plot_histories([history], ["loss"], smooth=0).panels()[0].named() if line.name == "discarded")
    assert [x for x, y in zip(left.x, left.y) if y == y] == [4, 5, 6]


def make(folder, **changes):
    torch.manual_seed(0)
    data = [(torch.randn(4), torch.randn(1)) for _ in range(64)]
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
    return Learner(net, train_dataset=data, eval_dataset=data[:8], loss_func=torch.nn.functional.mse_loss, max_steps=40, use_cpu=True,
                   output_dir=folder, save_strategy="no", disable_tqdm=True, rewind_every=1, run_name="main", **changes)


@pytest.fixture
def run(tmp_path):
    "To 20 with a mistake at 12, back to 10, two branches, on to 15; one branch of a branch."
    learn = make(tmp_path)
    learn.run(steps=12)
    learn.set(lr=1.0)
    learn.run(steps=8)
    learn.rewind(10)
    slow, clipped = learn.branch(learning_rate=1e-5), learn.branch(max_grad_norm=0.1, run_name="clipped")
    for one in (learn, slow, clipped): one.run(steps=5)
    inner = clipped.branch(weight_decay=0.1)
    inner.run(steps=3)
    clipped.evaluate()
    yield learn, slow, clipped, inner
    for one in (learn, slow, clipped, inner): one.history.close_log()


EXPECTED = [("main", 0, 15), ("discarded", 12, 20), ("branch learning_rate=1e-5", 10, 15), ("clipped", 10, 15), ("branch weight_decay=0.1", 15, 18)]


def test_a_family(run):
    "From any of its members the tree is the same, and changes stand where they were made."
    for one in run:
        tree = run_tree(one)
        assert [(lane.label, lane.start, lane.end) for lane in tree.lanes] == EXPECTED
    by_label = {lane.label: lane for lane in tree.lanes}
    assert by_label["discarded"].acts == [(12, "set lr=1")] and by_label["main"].acts == []
    assert by_label["branch weight_decay=0.1"].parent == run[2].history.run_id
    assert by_label["clipped"].result.startswith("eval_loss ") and by_label["main"].result.startswith("loss ")
    assert "set lr=1 after step 12" in repr(tree) and "      branch weight_decay=0.1  from step 15 to 18" in repr(tree)
    words = [o.text for o in ET.fromstring(tree.svg()).iter("{http://www.w3.org/2000/svg}text")]
    assert {"main", "discarded", "clipped", "set lr=1"} <= set(words)


def test_the_tree_of_logs(run):
    "Learners that are gone left logs; the tree of these is the same."
    paths = [one.history.path for one in run]
    for one in run: one.history.flush()
    copies = [read_history(path) for path in paths]
    lanes = run_tree(*copies).lanes
    assert [(lane.label, lane.start, lane.end, lane.acts) for lane in lanes] == [(o.label, o.start, o.end, o.acts) for o in run_tree(run[0]).lanes]


def test_mistakes_and_runs_without_steps():
    with pytest.raises(TypeError, match="at least one run"): run_tree()
    with pytest.raises(TypeError, match="A run to draw is a learner"): run_tree(3)
    empty = History("<new>")
    tree = run_tree(empty)
    assert repr(tree) == "<new>  to step 0" and "<new>" in ET.fromstring(tree.svg()).itertext() and 'alt="&lt;new&gt; to step 0"' in tree.bundle()["text/html"] and ET.fromstring(tree.svg()).tag.endswith("svg")
    del tree, empty
    gc.collect()


def named(lines): return {line.name: line for line in lines if line.name}


def test_a_branch_is_drawn_from_where_it_leaves_the_run(run):
    "In a plot and in the picture of a view: the steps before are the parent's, and what the parent discarded stays dashed."
    learn, slow, clipped, inner = run
    for smooth in (0, 0.9):
        lines = named(learn.plot("loss", also=[slow, inner], smooth=smooth).panels()[0].of(LineSeries))
        assert lines["main"].x.min() == 1 and lines["branch learning_rate=1e-5"].x.min() == 10
        assert lines["branch weight_decay=0.1"].x.min() == 1            # the run that it leaves is not in the chart
        known = [x for x, y in zip(lines["discarded"].x, lines["discarded"].y) if y == y]
        assert (min(known), max(known)) == (13, 20)      # the loss of step 13 is still the same
    lines = named(learn.plot("loss", also=[clipped, inner]).panels()[0].of(LineSeries))
    assert lines["branch weight_decay=0.1"].x.min() == 15 and list(lines["clipped, eval_loss"].x) == [15]
    assert clipped.plot("loss").panels()[0].of(LineSeries)[0].x.min() == 1      # alone it is whole
    view = learn.dashboard(also=clipped)
    view.send_all()
    for panel in view_panels(view.view_model):
        if panel.title not in ("Loss", "Learning rate"): continue
        lines = named(panel.of(LineSeries))
        assert lines["clipped"].x.min() == 10 and lines["main"].x.min() == 1 and "discarded" in lines


def test_the_names_of_marks(run):
    "A branch by its name, numbers with few digits."
    learn, slow, clipped, _ = run
    learn.set(learning_rate=0.0031622776601683794)
    texts = [row["what"] for row in learn.journal]
    assert texts[-3:] == [f"run {slow.history.run_id}, learning_rate=1e-5", "clipped, max_grad_norm=0.1", "learning_rate=3.162e-3"]
    assert "set learning_rate=3.16e-3" in [mark.word for mark in learn.plot("loss").panels()[0].of(Marker)]


def test_the_mark_of_a_stop_is_a_sentence(run):
    "In plots, in the view and in the tree; the journal has a column for each half."
    learn, _, clipped, _ = run
    clipped.step(1)
    clipped.stop()
    assert clipped.plot("loss").panels()[0].of(Marker)[-1].word.endswith("stop: the run ended here")
    assert event_marks(clipped.history)[-1]["word"] == "stop: the run ended here"
    assert clipped.journal[-1]["act"] == "stop" and clipped.journal[-1]["what"] == "the run ended here"


def test_a_handle_stands_for_its_learner():
    "Wherever a run is drawn."
    def made():
        x = torch.randn(32, 4)
        return Learner(torch.nn.Linear(4, 1), train_dataset=torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), loss_func=torch.nn.functional.mse_loss, use_cpu=True, disable_tqdm=True, max_steps=4)
    learn, other = made(), made()
    handle = other.start()
    handle.wait()
    learn.step(2)
    assert as_history(handle) is other.history and run_labels([learn, handle], [learn.history, other.history]) == run_labels([learn, other], [learn.history, other.history])
    assert [curve.history for curve in learn.dashboard(also=handle).view_model.curves] in ([], [learn.history, other.history])
    assert len(run_tree(learn, handle).lanes) == 2

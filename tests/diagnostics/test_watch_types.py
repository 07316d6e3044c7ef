"Layers that are watched are shown with their type."
from trainer_nb.core.history import read_history
from trainer_nb.diagnostics.watch import WatchReport
from trainer_nb.display.panels import Heatmap
from toys import hard_learner


def test_rows_have_the_type_of_their_layer(tmp_path):
    learn = hard_learner(max_steps=6, output_dir=str(tmp_path), save_strategy="no")
    learn.watch()
    learn.step(4)
    names = [row for panel in learn.watched.panels() for heat in panel.of(Heatmap) for row in heat.rows]
    assert {"inner (Linear)", "norm (BatchNorm1d)"} <= set(names)
    learn.history.flush()
    assert WatchReport(read_history(learn.history.path)).types == learn.watched.types


def test_a_log_without_types_is_shown_without_them():
    learn = hard_learner(max_steps=6)
    learn.watch()
    learn.step(2)
    for header in learn.history.readings.tables: header.pop("types", None)
    names = [row for panel in WatchReport(learn.history).panels() for heat in panel.of(Heatmap) for row in heat.rows]
    assert "inner" in names

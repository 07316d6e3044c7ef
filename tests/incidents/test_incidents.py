"Incidents that people reported are found and named, and nothing is found in their twins and in other healthy programs."
import pytest
from healthy import HEALTHY
from run_incidents import examples, run_healthy, run_incident
from tiny import INCIDENTS

# What is not named yet: the README of this folder says what would be seen.
MISSED = {"samples_repeated", "workers_draw_alike", "padding_on_the_wrong_side", "labels_shuffled_apart", "rate_far_too_low", "decay_on_norms",
          "accumulation_not_divided", "zero_grad_missing", "evaluation_in_train_mode", "same_samples_on_all_ranks", "resume_starts_anew", "head_not_saved"}
# Healthy programs in which something is found.
FALSE = {"evaluation_leaked", "distilled", "examples/text_classification.py"}


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda o: o.name)
def test_an_incident_is_named(incident, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    row, new, twin = run_incident(incident)
    assert (row["cause"] == "named") == (incident.name not in MISSED), new
    assert bool(twin) == (incident.name in FALSE), twin


@pytest.mark.parametrize("name", [*HEALTHY, *examples()])
def test_nothing_is_found_in_a_healthy_program(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = run_healthy(HEALTHY.get(name) or examples()[name], name in HEALTHY)
    assert bool(found) == (name in FALSE), found

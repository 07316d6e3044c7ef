"Incidents that people reported are named, but for those listed here; nothing is found in their twins and healthy ones."
import pytest
from healthy import HEALTHY
from run_incidents import examples, run_healthy, run_incident
from tiny import INCIDENTS

# What is not named yet: the README of this folder says what would be seen.
MISSED = {"bytes_begin_anew", "shuffled_on_each_process", "tokens_of_another_vocabulary"}


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda o: o.name)
def test_an_incident_is_named(incident, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    row, new, twin = run_incident(incident)
    assert (row["cause"] == "named") == (incident.name not in MISSED), new
    assert not twin


@pytest.mark.parametrize("name", [*HEALTHY, *examples()])
def test_nothing_is_found_in_a_healthy_program(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = run_healthy(HEALTHY.get(name) or examples()[name], name in HEALTHY)
    assert not found

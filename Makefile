# Every target makes the virtual environment when it is missing or older than pyproject.toml or constraints.txt.
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Chromium for tests of the dashboard, Prometheus for metrics, crun and runc for containers, busybox for their
# images, skopeo and a registry to pull from, an ACME server, clients.
DEBIAN_PACKAGES := pebble chromium chromium-driver prometheus crun runc iproute2 busybox-static skopeo docker-registry binutils curl mosquitto mosquitto-clients faketime debootstrap debian-archive-keyring $(if $(shell command -v kubectl),,kubernetes-client)

# moto, which stands for AWS in tests, needs boto3. boto3 asks for a python-dateutil below 3, kubernetes for one from 3 on; both work
# with it, so these come without what they ask for.
AWS_PACKAGES := boto3 botocore jmespath s3transfer moto responses xmltodict Werkzeug Flask flask-cors blinker itsdangerous Jinja2 MarkupSafe

# Tests start hundreds of processes: without bytecode each of them compiles its modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup system-packages lock resolve run demo demo-adopt demo-nodes test test-pythons test-all check format config bench simulate-faults soak fuzz fuzz-http2 faults release audit verify-release docs upgrade clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

# What runs needs less than what tests: `make run` installs the first, every check and test the second.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11, 2))' \
	  || { echo "serving needs Python 3.11.2 or newer; found $$($(PYTHON) --version). Try: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "serving needs Python's venv; $$($(PYTHON) --version) has none. On Debian: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Python compiles the modules that it imports; compiling those of all packages here takes four times as long.
$(VENV)/.runtime: pyproject.toml constraints.txt serving/__init__.py | $(VENV)/bin/python
	$(INSTALL) --no-compile --editable .
	@touch $@

$(VENV)/.ready: pyproject.toml constraints.txt serving/__init__.py | $(VENV)/bin/python
	$(INSTALL) --editable '.[dev]'
	$(INSTALL) --no-deps $(AWS_PACKAGES)
	@touch $@ $(VENV)/.runtime

# No test of `make test` needs what builds the site.
$(VENV)/.docs: $(VENV)/.ready
	$(INSTALL) --editable '.[docs]'
	@touch $@

setup: $(VENV)/.ready  ## Make the virtual environment with everything that tests need

system-packages:  ## Install the Debian packages that tests use; without them `make test` names what it skips
	@missing=$$(for name in $(DEBIAN_PACKAGES); do dpkg -s $$name >/dev/null 2>&1 || echo $$name; done); \
	if [ -z "$$missing" ]; then exit 0; fi; \
	as_root=$$([ $$(id -u) = 0 ] || echo sudo); \
	$$as_root apt-get update -q && \
	DEBIAN_FRONTEND=noninteractive $$as_root apt-get install --quiet --yes --no-install-recommends $$missing

# Each version of Python that is supported, the oldest first: that is the one which the pinned versions are chosen for.
PYTHON_VERSIONS := 3.11.2 3.12 3.13 3.14
UV := $(VENV)-lock/bin/uv
COMPILE = $(UV) pip compile --quiet --no-header --no-annotate --python-version
# What images install, with the hashes of its files.
LOCK = $(UV) pip compile --quiet --universal --generate-hashes --no-header --no-annotate --constraint constraints.txt

$(UV):
	$(PYTHON) -m venv --clear $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install --quiet --disable-pip-version-check uv

lock: pyproject.toml $(UV)  ## Renew constraints.txt and release/locks: the newest versions that pyproject.toml allows on the oldest Python
	{ grep '^#' constraints.txt; { \
	  $(COMPILE) $(firstword $(PYTHON_VERSIONS)) --extra dev --extra docs pyproject.toml; \
	  printf '%s\n' $(AWS_PACKAGES) | $(COMPILE) $(firstword $(PYTHON_VERSIONS)) --no-deps -; \
	} | LC_ALL=C sort --ignore-case --unique; } > $(VENV)-lock/constraints.txt
	mv $(VENV)-lock/constraints.txt constraints.txt
	for name in queue-proxy placement daemons; do $(LOCK) --group $$name --output-file release/locks/$$name.txt; done
	$(LOCK) pyproject.toml --output-file release/locks/serving.txt

resolve: $(UV)  ## Resolve constraints.txt for each supported version of Python, without installing anything
	@for version in $(PYTHON_VERSIONS); do \
	  $(COMPILE) $$version --constraint constraints.txt --extra dev --extra docs pyproject.toml >/dev/null && \
	  printf '%s\n' $(AWS_PACKAGES) | $(COMPILE) $$version --constraint constraints.txt --no-deps - >/dev/null || \
	  { echo "make resolve: constraints.txt cannot be installed on Python $$version: the lines above say why" >&2; exit 1; }; \
	  echo "Python $$version: constraints.txt resolves"; \
	done

# Without --strict, a package that the source of advisories does not know is skipped, and so is every one where it is not reached.
audit:  ## Look for advisories of all pinned packages; fails where no source of advisories is reached. SOURCE=osv asks another
	$(PYTHON) -m venv --clear $(VENV)-audit
	$(VENV)-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	@for pinned in release/locks/*.txt constraints.txt; do \
	  echo "$$pinned"; \
	  $(VENV)-audit/bin/pip-audit --strict --disable-pip --no-deps --progress-spinner off --timeout 30 \
	    --vulnerability-service $(or $(SOURCE),pypi) --requirement $$pinned || \
	  { echo "make audit: $$pinned has an advisory, or could not be audited: the lines above say which" >&2; exit 1; }; \
	done
	rm -rf $(VENV)-audit

run: $(VENV)/.runtime  ## The whole system on this machine, with a sample service; Ctrl-C ends it
	$(BIN)/serving up --sample

demo: $(VENV)/.runtime  ## Zero, one, many, zero with real requests, and a rollout; about a minute
	$(BIN)/python bench/demo.py

demo-adopt: $(VENV)/.runtime  ## A plain Deployment with an Ingress, to zero and back by requests; half a minute
	$(BIN)/python bench/demo_adopt.py

demo-nodes: $(VENV)/.runtime  ## Requests, pods, nodes and back, on virtual nodes of this machine; about a minute
	$(BIN)/python bench/demo_nodes.py

# Three quarters of the time of a test of processes is waiting: eight workers keep two cores busy, and steal tests from each other at the
# end. Unit tests compute all the time. `make check` has run tests/tidy. Coverage more than doubles the time of what computes: it
# is measured of the packages that decide, by their own unit tests.
PYTEST := timeout --foreground --kill-after 30 1800 $(BIN)/python -m pytest -m 'not slow'
COVERED := $(addprefix tests/unit/,core nodes/placement autoscaler queueproxy activator controller nodes/nodegroup)
test: $(VENV)/.ready  ## Every test but the slow ones and those of `make check`
	$(PYTEST) -n 2 $(COVERED) --cov --cov-report=term
	$(PYTEST) -n 8 --dist worksteal tests $(addprefix --ignore=,tests/tidy $(COVERED))

PYTHONS ?=
test-pythons: $(VENV)/.ready  ## The unit, property and conformance suites and a wake on every Python that this machine can get; PYTHONS=NAME... some
	$(BIN)/python -m tests.pythons $(PYTHONS)

test-all: $(VENV)/.docs  ## Every test, and more examples of each property
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -n 2 -W error::pytest.PytestUnraisableExceptionWarning --cov --cov-report=term

check: $(VENV)/.ready  ## Format, lint, types, import floors, house rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/tidy

format: $(VENV)/.ready  ## Let ruff format and mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

config: $(VENV)/.ready  ## Write from the code: config/config-*.yaml, config/admission/annotations.yaml, docs/settings.md, docs/metrics.md, tables in docs/kubernetes-reference.md
	$(BIN)/serving config defaults --write config
	$(BIN)/serving config defaults --page > docs/settings.md
	$(BIN)/serving config defaults --policies > config/admission/annotations.yaml
	$(BIN)/serving config metrics > docs/metrics.md
	$(BIN)/python -m tests.unit.config.differences
	$(BIN)/python -m tests.unit.config.monitoring

bench: $(VENV)/.ready  ## Benchmarks, each as a ratio measured in one run
	$(BIN)/python bench/data_path.py
	$(BIN)/python bench/streams.py

SEEDS ?= 1000
simulate-faults: $(VENV)/.ready  ## The control plane under random faults on virtual time, SEEDS=1000 runs; about 25 minutes
	PYTHONHASHSEED=0 $(BIN)/python -m tests.simulation.run --seeds $(SEEDS)

faults: $(VENV)/.ready  ## The fault contract of docs/faults.md under load; about twelve minutes
	$(BIN)/python bench/faults.py

soak: $(VENV)/.ready  ## Ten minutes of mixed traffic, then 2,000 services that come and go; memory flat, nothing left over
	$(BIN)/python bench/soak.py
	$(BIN)/python bench/soak_control.py

FUZZ_SECONDS ?= 600
fuzz: $(VENV)/.ready  ## Changed requests, frames, bodies, manifests, images, journals for FUZZ_SECONDS=600; ENGINE=atheris is led by coverage
ifeq ($(ENGINE),atheris)
	$(INSTALL) --editable '.[fuzz]'
	$(BIN)/python -m tests.fuzz.guided --seconds $(FUZZ_SECONDS)
else
	$(BIN)/python -m tests.fuzz.run --seconds $(FUZZ_SECONDS)
endif

fuzz-http2: $(VENV)/.ready  ## Ten million frames, legal and not, through the HTTP/2 side; about 20 minutes
	$(BIN)/python -m tests.fuzz.http2

release: $(VENV)/.ready  ## Build dist/ from the last commit: wheel, sdist, images, manifests, sums; KEY=FILE signs (docs/release.md)
	$(BIN)/python -m release.build dist $(if $(KEY),--key $(KEY))

verify-release: $(VENV)/.ready  ## Check dist/: sums, provenance, digests of images; PUBLIC_KEY=FILE checks the signature
	$(BIN)/python -m release.verify dist $(if $(PUBLIC_KEY),--key $(PUBLIC_KEY))

docs: $(VENV)/.docs  ## Build the documentation site into build/site; a dead link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir build/site

# The last release; until there is one, the last commit of the day before formats had versions.
FROM ?= $(or $(shell git describe --tags --abbrev=0 --match 'v*' 2>/dev/null),0e8ae83a)
upgrade: $(VENV)/.ready  ## A running system takes this commit, FROM=COMMIT again, and this one, under load; about three minutes
	$(BIN)/python bench/upgrade.py --from $(FROM)

clean:  ## Remove what was built here
	rm -rf $(VENV) $(VENV)-lock dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

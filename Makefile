# A Python 3.11, git and make are all that is needed: every target sets up its own .venv first, once.

PYTHON ?= $(shell for python in python3.11 python3; do $$python -c '' 2>/dev/null && { echo $$python; break; }; done)
CONSTRAINTS := constraints/py311.txt
VENV := .venv
RUN := $(VENV)/bin/python -m
STAMP := $(VENV)/.installed
PEERS := .venvs/peers
PEERS_CONSTRAINTS := constraints/peers-py311.txt
PEERS_STAMP := $(PEERS)/.installed
# Extra arguments of a command: make bench ARGS='--workload gil --workers 2'
ARGS ?=

.PHONY: help venv bench consumers docs wheel transport peers test test-long lint types format constraints peers-constraints clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

venv: $(STAMP) ## create .venv with everything pinned (again only when pyproject.toml or the constraints changed)

bench: $(STAMP) ## measure how long a training loop waits for its batches (ARGS='--workload gil …')
	$(RUN) benchmarks.wait_time $(ARGS)

transport: $(STAMP) ## measure what carrying a batch costs, beside what memory allows (ARGS='--size 48MB --backend all')
	$(RUN) benchmarks.transport $(ARGS)

# The environment of its own has the same versions of what both have, and the other libraries besides.
peers: $(PEERS_STAMP) ## measure mpfeed beside PyTorch, Grain, SPDL, Ray Data … (ARGS='--workload 48MB …')
	$(PEERS)/bin/python -m benchmarks.peers $(ARGS)

test: lint types ## ruff, mypy and the tests, all but the long ones
	$(RUN) pytest tests $(ARGS)

# A long test may take longer than the watchdog of pyproject.toml allows.
test-long: $(STAMP) ## the tests that take long: many kills, soak runs, clusters
	$(RUN) pytest -m long -o faulthandler_timeout=7200 tests $(ARGS)

docs: $(STAMP) ## build the documentation into site/; a warning is an error
	$(RUN) mkdocs build --strict $(ARGS)

wheel: $(STAMP) ## build wheel and source distribution into dist/, and check them
	rm -rf dist
	$(RUN) build --no-isolation
	$(RUN) twine check --strict dist/*

# TensorFlow, PyTorch and JAX in one environment: for these tests only.
consumers: $(STAMP) ## the tests with PyTorch and JAX, in an environment of their own
	$(VENV)/bin/python -m venv .venvs/consumers
	.venvs/consumers/bin/python -m pip install --quiet --constraint constraints/consumers-py311.txt \
	  --editable '.[tf]' --group consumers
	.venvs/consumers/bin/python -m pytest tests/test_consumers.py -m '' $(ARGS)

lint: $(STAMP) ## ruff check and ruff format --check
	$(RUN) ruff check .
	$(RUN) ruff format --check .

types: $(STAMP) ## mypy, strict
	$(RUN) mypy

format: $(STAMP) ## let ruff format and fix what it can
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

# pip comes first: the one that Python brings may be too old for dependency groups and build constraints.
# An environment that an interrupted run left without pip is made anew.
$(STAMP): pyproject.toml $(CONSTRAINTS)
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  found=$$("$(PYTHON)" --version 2>/dev/null) || found='no Python'; \
	  echo "mpfeed needs Python 3.11 or newer; found $$found." >&2; \
	  echo "Install it, or name it: make $(or $(MAKECMDGOALS),venv) PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(RUN) pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear $(VENV)
	$(RUN) pip install --quiet --upgrade --constraint $(CONSTRAINTS) pip setuptools
	$(RUN) pip install --constraint $(CONSTRAINTS) --build-constraint $(CONSTRAINTS) --editable '.[all]' --group dev
	@touch $@

$(PEERS_STAMP): $(STAMP) $(PEERS_CONSTRAINTS)
	$(VENV)/bin/python -m venv --clear $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --upgrade --constraint $(CONSTRAINTS) pip setuptools
	$(PEERS)/bin/python -m pip install --constraint $(PEERS_CONSTRAINTS) --build-constraint $(CONSTRAINTS) \
	  --editable '.[all]' --group peers
	@touch $@

constraints: ## resolve the dependencies anew with Python 3.11 and write the constraints file
	"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "this file is for Python 3.11")'
	"$(PYTHON)" -m venv --clear .venvs/resolve
	.venvs/resolve/bin/python -m pip install --quiet --upgrade pip setuptools
	.venvs/resolve/bin/python -m pip install --quiet --editable '.[all]' --group dev
	.venvs/resolve/bin/python -m pip check
	{ echo '# Python 3.11, Linux x86_64: mpfeed[all] and the group dev. Written by `make constraints`.'; \
	  .venvs/resolve/bin/python -m pip freeze --all --exclude-editable; } > $(CONSTRAINTS).new
	mv $(CONSTRAINTS).new $(CONSTRAINTS)
	rm -rf .venvs/resolve

peers-constraints: $(STAMP) ## the same for the other libraries, with the versions of the constraints file where it has them
	$(VENV)/bin/python -m venv --clear .venvs/resolve
	.venvs/resolve/bin/python -m pip install --quiet --upgrade --constraint $(CONSTRAINTS) pip setuptools
	.venvs/resolve/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[all]' --group peers
	.venvs/resolve/bin/python -m pip check
	{ echo '# Python 3.11, Linux x86_64: mpfeed[all] and the group peers. Written by `make peers-constraints`.'; \
	  .venvs/resolve/bin/python -m pip freeze --all --exclude-editable | sed 's/+cpu$$//'; } > $(PEERS_CONSTRAINTS).new
	mv $(PEERS_CONSTRAINTS).new $(PEERS_CONSTRAINTS)
	rm -rf .venvs/resolve

clean: ## delete caches and build products, and keep .venv
	rm -rf build dist site htmlcov .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage .coverage.* .venvs
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

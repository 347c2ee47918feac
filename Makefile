# Each target makes what it needs first: a virtual environment in .venv and, for tests, the servers' programs.
# Stamps make a repeated run start at once; an edited pyproject.toml installs again.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
RUN := $(VENV)/bin/python
export PIP_DISABLE_PIP_VERSION_CHECK := 1
RUNTIME := $(VENV)/.runtime
DEVELOPMENT := $(VENV)/.development
# Extra arguments for pytest: make test ARGS="-k lanes -x"
ARGS ?=
# Test processes, each with databases and a Redis of its own, and one RocketMQ for all: more than cores, since most tests
# wait, for leases, a broker's timers, or a process to start. One by one, the tests of units and models took 185 s, 65 s
# of them CPU time, those of the strategies (off MariaDB) 218 s and 94 s, on two cores with other work on them; the crash
# points among these 116 s and 30 s.
WORKERS ?= 4
# What can go on at once, while ``services`` fetches the servers.
LINT := style types product-types imports

.PHONY: help demo test lint $(LINT) format bench model crash examples conformance services clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(RUNTIME) ## Show the whole story on SQLite and the embedded broker; needs Python >= 3.11 only
	@$(VENV)/bin/outbox demo

test: $(DEVELOPMENT) ## Lint, then every test on real servers, with coverage
	@$(MAKE) --no-print-directory --jobs=5 $(LINT) services
	@$(RUN) -m $(if $(ARGS),pytest $(ARGS),tests.services.sharing $(RUN) -m tests.suite -n $(WORKERS) --dist worksteal --cov --cov-report=term:skip-covered)

lint: $(DEVELOPMENT) ## Style, types and import contracts
	@$(MAKE) --no-print-directory --jobs=4 $(LINT)

style: $(DEVELOPMENT)
	@$(VENV)/bin/ruff check
	@$(VENV)/bin/ruff format --check

types: $(DEVELOPMENT)
	@$(VENV)/bin/mypy

product-types: $(DEVELOPMENT)
	@$(VENV)/bin/basedpyright --pythonpath $(RUN)

imports: $(DEVELOPMENT)
	@$(VENV)/bin/lint-imports

format: $(DEVELOPMENT) ## Put the code into the house format
	@$(VENV)/bin/ruff check --fix
	@$(VENV)/bin/ruff format

bench: services ## Run one benchmark: make bench NAME=relay
	@[[ -n "$(NAME)" ]] || { echo "say which one: make bench NAME=$$(cd benchmarks && ls *.py | grep -v '^_' | sed 's/\.py$$//' | paste -sd '|')" >&2; exit 2; }
	@$(RUN) -m benchmarks.$(NAME) $(ARGS)

model: $(DEVELOPMENT) ## Explore the protocol with wider bounds than the tests do
	@$(RUN) -m tests.model $(ARGS)

crash: services ## 200 random faults over 50,000 rows, both databases: make crash ARGS="--seed 7"
	@$(RUN) -m tests.crash $(ARGS)

examples: services ## The examples in full: 2,000 orders and 20,000 events, embedded and on real servers
	@$(RUN) -m tests.acceptance.examples

conformance: services ## What make test leaves out for its length: each contract on each RocketMQ release, a full disk, a crash under lanes
	@OUTBOX_TEST_LONG=1 $(RUN) -m pytest $(if $(ARGS),$(ARGS),tests/contracts/test_versions.py tests/integration/test_remoting_faults.py tests/integration/test_relay_failures.py tests/integration/consumer/test_orderly.py)

services: $(DEVELOPMENT)
	@.ci/services.sh
	@$(RUN) -m tests.services.fetch

clean: ## Remove what make made
	@rm -rf $(VENV) .outbox .services .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage* dist build

$(RUNTIME): pyproject.toml .ci/python.sh
	@.ci/python.sh $(VENV)
	@$(RUN) -m pip install --quiet --editable .
	@touch $@

$(DEVELOPMENT): $(RUNTIME)
	@$(RUN) -m pip install --quiet --group test --group lint
	@touch $@

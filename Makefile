# Every target sets the machine up first, through the stamp: `make test` works in a fresh clone.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PROCS  ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup test lint bench clean

help: ## list the targets
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(STAMP) ## make .venv and install the locked packages

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fedrepro needs Python 3.11 or newer; say which: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar=on -q -r requirements.lock
	$(BIN)/python -m pip install --disable-pip-version-check -q --no-deps -e .
	@touch $@

test: setup lint ## run the whole test suite (no download needed)
	$(BIN)/python -m pytest -n $(PROCS) $(ARGS)

lint: setup ## check style with ruff
	$(BIN)/ruff check fedrepro tests
	$(BIN)/ruff format --check fedrepro tests

bench: setup ## measure speed as ratios to a bare PyTorch loop (Fashion-MNIST is fetched once)
	$(BIN)/fedrepro bench $(ARGS)

clean: ## remove the environment and caches of this folder
	rm -rf $(VENV) .pytest_cache .ruff_cache

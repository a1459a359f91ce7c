# Every target depends on the venv stamp, so `make test` works in a fresh clone.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PROCS  ?= 2
SCALE  ?= $(or $(FEDREPRO_SCALE),reduced)
MINUTES ?= 5
SLOW    := cli cluster data docs engine evidence exercises explore folding judge_simulated kernel lab page \
  papers_own_numbers people portable readme references reproduce store storm trial tune verify  # whole programs, kills,
  # notebooks, thousands of draws
PAPERS := $(notdir $(patsubst %/,%,$(wildcard reproduce/*/)))

# $(call reproduce,PAPER); SCALE, SEEDS, WORKERS, TABLE, FRESH=1, ENGINE=ray and ADDRESS come from the command line
reproduce = $(BIN)/fedrepro reproduce $(1) --scale $(SCALE) $(if $(SEEDS),--seeds $(SEEDS)) \
  $(if $(WORKERS),--workers $(WORKERS)) $(if $(TABLE),--table $(TABLE)) $(if $(FRESH),--fresh) \
  $(if $(ENGINE),--engine $(ENGINE)) $(if $(ADDRESS),--address $(ADDRESS))

.DEFAULT_GOAL := help
.PHONY: help setup test test-fast evidence evidence-status storm test-notebooks test-browser lab lab-smoke index lint report \
  docs bench reproduce people \
  $(PAPERS:%=reproduce-%) clean

help: ## list the targets
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18
	@for paper in $(PAPERS); do echo "reproduce-$$paper	its tables, figures and verdicts in results/local (SCALE=reduced SEEDS= WORKERS= TABLE= FRESH=1 ENGINE=ray)"; done \
	  | expand -t 18

setup: $(STAMP) ## make .venv and install the locked packages

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fedrepro needs Python 3.11 or newer; name one: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@echo "setting up $(VENV) from requirements.lock: a minute or two, several hundred MB ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --disable-pip-version-check -q -r requirements.lock
	@$(BIN)/python -m pip install --disable-pip-version-check -q --no-deps -e .
	@touch $@

reproduce: $(PAPERS:%=reproduce-%) ## every paper, one after the other

# ENGINE=ray installs the extra first
$(VENV)/.ray: $(STAMP)
	@$(BIN)/python -m pip install --disable-pip-version-check -q -e '.[ray]'
	@touch $@

$(PAPERS:%=reproduce-%): reproduce-%: setup $(if $(filter ray,$(ENGINE)),$(VENV)/.ray)
	$(call reproduce,$*)

test: setup lint ## run the whole test suite (no download needed)
	$(BIN)/python -m pytest -n $(PROCS) $(ARGS)
	@$(MAKE) --no-print-directory test-notebooks

test-fast: setup ## run only the fast tests: methods, models, splits, specs, statistics (under a minute)
	$(BIN)/python -m pytest -n $(PROCS) $(SLOW:%=--ignore=tests/test_%.py) $(ARGS)

evidence: setup ## train the evidence list (BUDGET=150m), then write results/<scale>/ for committing
	nice -n 19 $(BIN)/fedrepro evidence $(if $(BUDGET),--budget $(BUDGET)) $(if $(WORKERS),--workers $(WORKERS))

evidence-status: setup ## show how much of the evidence list is done, and the hours left
	$(BIN)/fedrepro evidence --status

storm: setup ## kill trainings at random moments and damage files for MINUTES=5; results must not change, nothing may be left behind
	$(BIN)/python tests/storm.py $(MINUTES)

# Method notebooks are executed by tests/test_exercises.py, as they are and then with the solutions
test-notebooks: setup ## execute every lesson and table notebook at smoke scale
	@rm -rf .cache/smoke
	FEDREPRO_SCALE=smoke FEDREPRO_WORKERS=1 FEDREPRO_STORE=$(CURDIR)/.cache/smoke/runs \
	  JUPYTER_DEFAULT_PROVISIONER_NAME=fedrepro-forked $(BIN)/python -m pytest -n $(PROCS) --nbmake --nbmake-timeout=300 --ignore-glob='*/method.ipynb' notebooks

people: setup ## try three users' set-ups: a fresh clone, the wheel in another folder, a notebook beside the clone (some minutes)
	FEDREPRO_PEOPLE=all $(BIN)/python -m pytest -rs tests/test_people.py $(ARGS)

test-browser: setup ## drive every lesson in a real browser; screenshots in .cache/browser (needs chromium)
	$(BIN)/python -m pytest -rs tests/browser $(ARGS)

# APP=1 installs the extra first
$(VENV)/.app: $(STAMP)
	@$(BIN)/python -m pip install --disable-pip-version-check -q -e '.[app]'
	@touch $@

lab: setup $(if $(APP),$(VENV)/.app) ## open the notebooks in JupyterLab (CLASS=name RESET=1: a student's own copy; APP=1: no code)
	$(BIN)/python -m fedrepro.lessons.lab $(if $(CLASS),--class $(CLASS)) $(if $(RESET),--reset) $(if $(APP),--app) $(ARGS)

lab-smoke: setup ## check that JupyterLab starts and answers
	$(BIN)/python -m fedrepro.lessons.lab --smoke

index: setup ## write notebooks/index.ipynb, the map of all notebooks (ARGS=--thumbnails draws its pictures)
	$(BIN)/python -m fedrepro.lessons.index $(ARGS)

lint: setup ## check style with ruff and types with basedpyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check fedrepro tests
	$(BIN)/basedpyright

report: setup ## build index.html, an overview, and a page per paper (FOLDER=results/local: for your own runs)
	$(BIN)/fedrepro report $(FOLDER)

docs: setup ## build the API reference, docs/api/index.html
	$(BIN)/python docs/api.py

bench: setup ## measure speed as ratios to a bare PyTorch loop (Fashion-MNIST is fetched once)
	$(BIN)/fedrepro bench $(ARGS)

clean: ## remove the environment and caches of this folder
	rm -rf $(VENV) .pytest_cache .ruff_cache

# Two commands do everything on a machine that has Python and make:
#
#   make run  PROMPT="..."     installs into .venv, obtains the default model, answers the prompt
#   make test                  installs the dev extra too, runs all tests and judges every plugin (docs/conformance.md)
#
# Overrides: PYTHON=python3.12  VENV=.venv312  MODEL=name-or-path  WORKERS=4  PYTEST_ARGS="-k name"
#            TORCH_INDEX_URL=<index>   where torch itself comes from (README, "Installing torch")

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
MODEL ?= smollm2-135m
PROMPT ?= Explain in two sentences why the sky is blue.
WORKERS ?= 2
PYTEST_ARGS ?=
TORCH_INDEX_URL ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
TYPED := paged_core conformance/paged_conformance $(wildcard plugins/*/paged_*)

# Through the environment, so that quotes in a prompt need no second quoting.
export PROMPT

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install install-dev run test lint format format-check typecheck clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | sed -n '1,7p'
	@echo "Other targets: install install-dev lint format format-check typecheck clean"

# One stamp a stage, so that a warm run installs nothing.

$(VENV)/.stamp-venv:
	$(PYTHON) -c 'import sys; sys.exit("paged-core needs Python 3.11 or newer; set PYTHON=") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	@touch $@

# torch comes first and alone: an index that serves a CPU or a CUDA build holds no other packages, or old ones.
$(VENV)/.stamp-torch: constraints.txt | $(VENV)/.stamp-venv
ifeq ($(strip $(TORCH_INDEX_URL)),)
	$(PIP) install --quiet -c constraints.txt torch
else
	$(PIP) install --quiet --index-url $(TORCH_INDEX_URL) "$$(grep '^torch==' constraints.txt)"
endif
	@touch $@

$(VENV)/.stamp-run: pyproject.toml constraints.txt $(VENV)/.stamp-torch
	$(PIP) install --quiet -c constraints.txt -e .
	@touch $@

$(VENV)/.stamp-dev: pyproject.toml constraints.txt $(VENV)/.stamp-torch
	$(PIP) install --quiet -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.stamp-run

install: $(VENV)/.stamp-run
install-dev: $(VENV)/.stamp-dev

# `pull` is idempotent and has its own cache, so it needs no stamp.
run: $(VENV)/.stamp-run
	@$(BIN)/paged-core pull $(MODEL)
	@$(BIN)/paged-core run --model $(MODEL) "$$PROMPT"

# Each worker gets one thread: two workers with two threads each fight over two cores. The conformance suite is among
# the test paths; --paged-quick shortens it, and load_gguf is judged by a file in its own format. Files with slow tests come
# first (tests/conftest.py), which the option of xdist's keeps.
test: $(VENV)/.stamp-dev
	@$(BIN)/paged-core pull smollm2-135m || \
	  echo "make test: smollm2-135m could not be obtained (reason above); tests marked 'model' will be SKIPPED" >&2
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder --paged-quick \
	  --paged-loader-sample=plugins/load_gguf/tests/sample.gguf $(PYTEST_ARGS)

lint: $(VENV)/.stamp-dev
	$(BIN)/ruff check .

format: $(VENV)/.stamp-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

format-check: $(VENV)/.stamp-dev
	$(BIN)/ruff format --check .

typecheck: $(VENV)/.stamp-dev
	$(BIN)/mypy $(TYPED)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find paged_core plugins conformance tests -name __pycache__ -prune -exec rm -rf {} +

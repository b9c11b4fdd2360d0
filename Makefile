# Every target sets itself up: Python with venv and pip, and make, are all that a machine needs.
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2

BIN := $(VENV)/bin
EXAMPLES := digits decoder replay wave embedding
SOURCES := src tests benchmarks examples conftest.py

.DEFAULT_GOAL := help
.PHONY: help demo test deep check bench examples clean

help: ## show this list
	@echo "mutarray: mutable arrays for JAX that keep their sharding"
	@echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "PYTHON=$(PYTHON) makes the environment in VENV=$(VENV)."

demo: $(VENV)/.has-demo ## the bug report's scenario, then training on sharded weights
	$(BIN)/mutarray demo

test: $(VENV)/.has-test ## the whole test suite
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

deep: $(VENV)/.has-test ## the suite with far more random examples
	MUTARRAY_DEEP=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

check: $(VENV)/.has-dev ## lint, format, types, import order, doctests and documentation blocks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	@PYTHONPATH=src $(BIN)/pyright --pythonpath $(BIN)/python --verifytypes mutarray \
	  --ignoreexternal >$(VENV)/types.txt || { cat $(VENV)/types.txt; exit 1; }
	$(BIN)/python -m pytest -q tests/test_imports.py tests/test_docs.py
	$(BIN)/python -m pytest -q --doctest-modules src/mutarray

examples: $(VENV)/.has-examples ## all examples, one after the other; make example-wave runs one
	@for name in $(EXAMPLES); do $(BIN)/python -m examples.$$name || exit 1; done

example-%: $(VENV)/.has-examples
	@[ -n "$(filter $*,$(EXAMPLES))" ] || { echo "There is no example $*. There are: $(EXAMPLES)" >&2; exit 2; }
	$(BIN)/python -m examples.$*

bench: $(VENV)/.has-bench ## the benchmarks
	$(BIN)/python -m benchmarks

clean: ## remove the environment and what the tools left behind
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .benchmarks

# One stamp an extra: `make demo` does not wait for the tools that only `make check` needs.
$(VENV)/.has-%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$*]'
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mutarray needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Say which one to use: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

.PRECIOUS: $(VENV)/.has-%

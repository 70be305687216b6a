PYTHON ?= python3
BIN := .venv/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt
# What an editable installation is made from; all else is read where it lies.
INSTALLED_FROM := pyproject.toml constraints.txt hatch_build.py $(wildcard src/elmokit/ops/native/csrc/*.[ch])

.PHONY: demo test check clean

# Real vectors of real sentences from the bundled English model.
demo: .venv/installed
	PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/demo.sh

test: .venv/installed-dev
	$(BIN)/python -m pytest

check: .venv/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python tools/make_results.py --check

clean:
	rm -rf .venv build dist .hypothesis .import_linter_cache .pytest_cache .ruff_cache

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: $(INSTALLED_FROM) | .venv/bin/python
	$(PIP_INSTALL) --editable .
	touch $@

.venv/installed-dev: $(INSTALLED_FROM) | .venv/bin/python
	$(PIP_INSTALL) --editable '.[dev]'
	touch $@ .venv/installed

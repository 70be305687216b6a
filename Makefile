PYTHON ?= python3
BIN := .venv/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt
# What an editable installation is made from; all else is read where it lies.
INSTALLED_FROM := pyproject.toml constraints.txt hatch_build.py $(wildcard src/elmokit/ops/native/csrc/*.[ch])

PYTEST := $(BIN)/python -m pytest --numprocesses=auto --dist=worksteal
# The packages that compute with a network, and so all that a backend can change; the others read, write and split text.
COMPUTING := $(addprefix tests/,golden ops nn embed lm train tasks compat)

.PHONY: demo test test-portable test-reference check clean

# Real vectors of real sentences from the bundled English model.
demo: .venv/installed
	PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/demo.sh

test: .venv/installed-dev
	$(PYTEST)

# As where there was no C compiler: a copy of the package without its library.
test-portable: .venv/installed-dev
	rm -rf build/portable
	mkdir -p build/portable
	cp -R src/elmokit build/portable/
	rm -f build/portable/elmokit/ops/native/_native.so
	PYTHONPATH=build/portable $(BIN)/python -c "from elmokit.ops.dispatch import available_backends as a; assert 'native' not in a()"
	PYTHONPATH=$(CURDIR)/build/portable $(PYTEST) -m "not slow" $(COMPUTING)

# On the specification of every operation.
test-reference: .venv/installed-dev
	ELMOKIT_BACKEND=reference $(PYTEST) -m "not slow" $(COMPUTING)

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

PYTHON ?= python3
BIN := .venv/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt
# What an editable installation is made from; all else is read where it lies.
INSTALLED_FROM := pyproject.toml constraints.txt hatch_build.py $(wildcard src/elmokit/ops/native/csrc/*.[ch])

PYTEST := $(BIN)/python -m pytest --numprocesses=auto --dist=worksteal
# The tests whose results another backend can change: of the operations and modules, and of one user of each kind,
# without the files that say that theirs are the same on any.
OF_BACKENDS := -m "not slow and not native and not any_backend" \
	$(addprefix tests/,golden ops nn embed/test_embedder.py train/test_trainer.py)

.PHONY: demo dist docs test test-integrations test-portable test-reference test-kernels test-sanitized check clean

# Real vectors of real sentences from the bundled English model.
demo: .venv/installed
	PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/demo.sh

test: .venv/installed-dev
	$(PYTEST) -m "not integrations" --ignore=tests/integrations

# With the libraries that elmokit.integrations is for, and what its tests need; and the tutorials about them.
test-integrations: .venv/installed-integrations
	$(PYTEST) tests/integrations
	$(PYTEST) -m integrations tests/repository

# As where there was no C compiler: on a copy of the package without its library.
test-portable: .venv/installed-dev
	rm -rf build/portable
	mkdir -p build/portable
	cp -R src/elmokit build/portable/
	find build/portable -name '*.so' -delete
	PYTHONPATH="$(CURDIR)/build/portable" $(PYTEST) $(OF_BACKENDS)

# On the specification of every operation.
test-reference: .venv/installed-dev
	ELMOKIT_BACKEND=reference $(PYTEST) $(OF_BACKENDS)

# The compiled kernels as programs: with sanitizers, and those for ARM in emulation.
test-kernels: .venv/installed-dev
	$(BIN)/python tools/test_kernels.py

# The tests of the operations, gradients included, on kernels that report memory errors. Takes minutes; needs GCC.
test-sanitized: .venv/installed-dev
	$(BIN)/python tools/sanitized.py

# The source distribution, and a wheel for this platform, in dist/; tests/repository/test_distribution.py tests them.
dist: .venv/installed-dev
	rm -rf dist
	$(BIN)/python -m hatchling build --target sdist --target wheel

# The documentation as a site, in build/site; a link or a name that leads nowhere is an error.
docs: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

check: .venv/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python tools/make_results.py --check

clean:
	rm -rf .venv build dist .hypothesis .import_linter_cache .pytest_cache .ruff_cache

.venv/bin/python:
	$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; } # a part of one would pass for the whole

.venv/installed: $(INSTALLED_FROM) | .venv/bin/python
	$(PIP_INSTALL) --editable .
	touch $@

.venv/installed-dev: $(INSTALLED_FROM) | .venv/bin/python
	$(PIP_INSTALL) --editable '.[dev]'
	touch $@ .venv/installed

.venv/installed-docs: .venv/installed-dev
	$(PIP_INSTALL) mkdocs-material 'mkdocstrings[python]'
	touch $@

EXTRAS_OF_INTEGRATIONS := dev,onnx,parquet,sentence-transformers,sklearn,spacy
TESTED_WITH := sentence-transformers[train] onnxruntime openai ray[data]

.venv/installed-integrations: $(INSTALLED_FROM) | .venv/bin/python
	$(PIP_INSTALL) --editable '.[$(EXTRAS_OF_INTEGRATIONS)]' $(TESTED_WITH)
	touch $@ .venv/installed-dev .venv/installed

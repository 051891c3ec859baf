# Two commands matter: `make demo` and `make test`. Both need nothing but python3 (3.11 or newer) and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check bench docs fuzz lab system-deps install clean lock

install: $(STAMP)

$(STAMP): pyproject.toml setup.py requirements.lock $(shell find src -name '*.pxd' -o -name '*.py' | grep -v egg-info)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "worldswitch needs Python 3.11 or newer; this is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m compileall -q src
	touch $(STAMP)

demo: install
	@$(BIN)/python demo.py

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vermin -t=3.9- --no-tips --violations --quiet $$($(BIN)/python tools/kit_modules.py)

# The second run takes the hot modules from their .py files, as on a machine without a C compiler.
test: check
	$(BIN)/python -m pytest -n auto
	WSW_UNCOMPILED=1 $(BIN)/python -m pytest -n auto tests/trace tests/record tests/kvm tests/x86

bench: install
	$(BIN)/python benchmarks/bench.py

# The documentation, in site/: open site/index.html, or for a search that works: python3 -m http.server -d site
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Without atheris (it has no wheel for every Python) the targets run under a mutation loop of our own, which says so.
fuzz: install
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-fuzz.lock
	$(BIN)/python fuzz/run.py

# What the tests of the lab need, in the user's cache: some 300 MB of packages, and five minutes of compiling.
lab: install
	$(BIN)/wsw lab fetch 6.1 6.12 --emulators --fast-bochs --tool trace-cmd

# What the tests compare with; what is not there is skipped by name.
system-deps:
	sh tools/system-deps

# Needs uv; writes exact versions for every supported Python.
lock:
	$(BIN)/uv pip compile --universal --python-version 3.11 --extra dev --extra docs --extra fleet --extra tui --quiet --no-header pyproject.toml -o requirements.lock

clean:
	rm -rf $(VENV) build demo site .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find src -name '*.so' -delete

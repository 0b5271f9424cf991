# Everything runs in $(VENV), which the first target that needs it creates with the tested versions of constraints.txt.
#
#   make demo                  the main job on a simulated scene; results in demo/
#   make test                  the whole suite, against the installed wheel
#   make test PYTEST="-k stream -x"     PROCESSES=0 runs it in one process
#   make check                 style, import contracts, types (what the pre-commit hooks run)
#   make editable              for development: the package follows the checkout until the next `make test`
#
# The wheel is built and installed again whenever a source changed, so that a file missing from it fails a test.

PYTHON ?= python3
VENV ?= .venv
PYTEST ?=
PROCESSES ?= 2
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
WHEEL_DIR := $(VENV)/wheel

# Folders too: their time changes when a file is added or deleted.
PACKAGES := pipeline train catalogs workflows
SOURCES := pyproject.toml README.md LICENSE $(shell find $(PACKAGES) -name __pycache__ -prune -o -print)

.PHONY: demo test lint format imports types check venv wheel editable clean

demo: $(VENV)/.installed
	$(BIN)/bandstream demo --out demo
	@echo "next: . $(VENV)/bin/activate, then the steps in README.md"

# One BLAS thread: the suite's arrays are small, and its worker processes would fight over the cores.
test: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(PROCESSES) --dist worksteal $(PYTEST)

check: lint imports types

lint: $(VENV)/.dependencies
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(VENV)/.dependencies
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# import-linter finds modules as Python does, and the folders bear other names in the checkout than when installed:
# links give them their installed names without installing anything.
imports: $(VENV)/.dependencies
	@mkdir -p $(VENV)/links/bandstream
	@for name in pipeline train; do ln -sfn "$(CURDIR)/$$name" "$(VENV)/links/bandstream/$$name"; done
	PYTHONPATH=$(VENV)/links $(BIN)/lint-imports --no-cache --no-logo

types: $(VENV)/.dependencies
	$(BIN)/basedpyright --pythonpath $(BIN)/python

venv: $(VENV)/.dependencies

wheel: $(WHEEL_DIR)/.built

# Strict: one link per file, so a new file needs another `make editable`.
editable: $(VENV)/.dependencies
	$(PIP) install --quiet --no-deps --no-build-isolation --config-settings editable_mode=strict --editable .
	@rm -f $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist bandstream.egg-info .pytest_cache .ruff_cache .hypothesis

$(VENV)/.created: constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade pip
	$(PIP) install --quiet --constraint constraints.txt setuptools
	@touch $@

# setuptools puts modules deleted since into a wheel when it finds them in build/; build/__editable__* stays.
$(WHEEL_DIR)/.built: $(SOURCES) | $(VENV)/.created
	rm -rf build/lib build/bdist.* $(WHEEL_DIR)
	$(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir $(WHEEL_DIR) .
	@touch $@

# The wheel here only says what is needed; that a source changed is no reason to build it for a look at the style.
$(VENV)/.dependencies: pyproject.toml constraints.txt $(VENV)/.created
	@$(MAKE) --no-print-directory wheel
	@echo "installing what is needed into $(VENV): some minutes the first time (torch alone is large)"
	$(PIP) install --quiet --constraint constraints.txt "$$(echo $(WHEEL_DIR)/bandstream-*.whl)[train,test,dev]"
	@touch $@

$(VENV)/.installed: $(VENV)/.dependencies $(WHEEL_DIR)/.built
	$(PIP) install --quiet --no-deps --force-reinstall $(WHEEL_DIR)/bandstream-*.whl
	@touch $@

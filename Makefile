# One command per chore; the same that CI runs. Every target makes what it needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
JOBS   ?= auto

.DEFAULT_GOAL := help
.PHONY: help demo test lint format types check bench wheel clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

# The virtual environment, made again whenever the project's dependencies change.
$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "titanic needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Try: make PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || \
	  { if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	      apt-get update && apt-get install -y python3-venv && $(PYTHON) -m venv --clear $(VENV); \
	    else echo "no venv module: install it first (Debian: apt-get install python3-venv)"; exit 1; fi; }
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(VENV)/.installed ## Real requests surviving absent workers and killed processes, in under a minute
	$(BIN)/titanic demo

test: $(VENV)/.installed ## Every test, in parallel
	$(BIN)/pytest -n $(JOBS) --dist worksteal tests

lint: $(VENV)/.installed ## Formatting and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(VENV)/.installed ## Put the source into its format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: $(VENV)/.installed ## mypy --strict on the packages
	$(BIN)/mypy

check: lint types test ## All that CI runs

bench: $(VENV)/.installed ## A first look at speed on this machine
	$(BIN)/titanic bench

wheel: $(VENV)/.installed ## Build the wheel and the source distribution into dist/
	$(BIN)/python -m build --no-isolation

clean: ## Remove everything that make made
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Two commands do everything: `make demo` and `make test`. Both set up what they need and may be repeated.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test lint docs bench clean distclean

demo: $(VENV)/.installed
	$(BIN)/fedjax-ht compare --config=demo

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks.zoo

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed, $$($(PYTHON) --version) found; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@ $(VENV)/.installed

# Neither results nor the environment.
clean:
	rm -rf build dist site .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean
	@if [ -d checkpoints/runs ]; then \
	  printf 'Delete %s and all runs below checkpoints/runs (%s)? [y/N] ' $(VENV) "$$(du -sh checkpoints/runs | cut -f1)"; \
	  read answer && [ "$$answer" = y ] || { echo "nothing deleted"; exit 1; }; \
	fi
	rm -rf $(VENV) checkpoints/runs

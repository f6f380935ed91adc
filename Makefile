# Two commands do everything: `make demo` and `make test`. Both set up what they need and may be repeated.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# An environment that holds no package. pip comes last into a new one: where venv fails, as on Debian
# without its package python3-venv, it leaves a python that would satisfy make for ever.
PACKAGES = $(VENV)/lib/*/site-packages/*.dist-info
HALF_MADE = test -f $(VENV)/pyvenv.cfg && ! ls -d $(PACKAGES) >/dev/null 2>&1

.PHONY: demo test lint types docs bench clean distclean

demo: $(VENV)/.installed
	$(BIN)/fedjax-ht compare --config=demo

# A fast test takes seconds. One that hangs ends its process after five minutes, with all stacks.
test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest --timeout=300 --timeout-method=thread

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Pyright's checks of the package, by [tool.pyright] of pyproject.toml.
types: $(VENV)/.installed-dev
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks.zoo

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed, $$($(PYTHON) --version) found; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	@if $(HALF_MADE); then rm -rf $(VENV); fi
	@$(PYTHON) -m venv $(VENV) || { if $(HALF_MADE); then rm -rf $(VENV); fi; exit 2; }

$(VENV)/.installed: pyproject.toml | $(BIN)/pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[run]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml | $(BIN)/pip
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

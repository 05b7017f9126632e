# Every target sets up .venv first if it has to; nothing but python3 and make is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup browser run test check bench torture pictures format clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("drimed needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	# The tests compare with obp; what it pins is older than what we use, so it comes without.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps obp==0.4.1
	touch $@

run: setup
	$(BIN)/drimed reproduce

# The pages are tested in a real browser: Debian's, installed where that is possible.
browser:
	command -v chromium > /dev/null || { test "$$(id -u)" = 0 && command -v apt-get > /dev/null && \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium > /dev/null; } || \
	  echo "no chromium here: tests in a browser are skipped"

test: setup browser
	$(BIN)/python -m pytest -n auto

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python -m benchmarks

torture: setup
	$(BIN)/python -m tests.trial.torture

# Pictures of the pages in README and docs.
pictures: setup browser
	$(BIN)/python -m docs.pictures

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) out .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

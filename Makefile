# Every target sets up .venv first if it has to; nothing but python3 and make is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup programs run test check lint types imports docs packages bench torture pictures format clean

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

# The pages are tested in a real browser and the service behind a real proxy: Debian's, installed where that is
# possible. Tests that need what is not there are skipped.
programs:
	for program in chromium nginx; do \
	  PATH="$$PATH:/usr/sbin" command -v $$program > /dev/null || { test "$$(id -u)" = 0 && \
	    command -v apt-get > /dev/null && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
	    $$(test $$program = nginx && echo nginx-light || echo $$program) > /dev/null; } || \
	    echo "no $$program here: tests that need it are skipped"; \
	done

# Each process takes half of what another has left, so that tests that share something stay together. Hundreds of
# them start commands: without bytecode, which some machines forbid, each would compile all of drimed again. All cores
# are taken: threads of BLAS beside them would only wait for each other.
test: setup programs
	PYTHONDONTWRITEBYTECODE= OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

# With -j these run side by side; types take longest and begin.
check: types docs lint imports

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

# The documentation as a site that needs no network: out/site/index.html. A warning is an error.
docs: setup
	$(BIN)/sphinx-build -W --keep-going -q -d out/doctrees docs out/site

# Wheel and sdist, installed with each extra into a clean environment, and used there.
packages: setup
	$(BIN)/python tools/packages.py

bench: setup
	$(BIN)/python -m benchmarks

torture: setup
	$(BIN)/python -m tests.trial.torture

# Pictures of the pages in README and docs, and the drawings.
pictures: setup programs
	$(BIN)/python -m docs.pictures
	$(BIN)/python -m docs.draw

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) out .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

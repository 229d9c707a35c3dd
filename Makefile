# Everything a developer types. `make` sets up .venv; each other target sets it up first when it is missing or out of date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CODE := common coordinator workers ops src/celeriac/__init__.py src/celeriac/cli.py
N ?= 10

.PHONY: all demo fan-out test check bench crowd kill chaos screenshot format lock clean
all: $(READY)

$(READY): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=…" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV) …" >&2
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(READY)
	@$(BIN)/python -P -m celeriac.ops.demo ops/examples/fix-a-bug

fan-out: $(READY)
	@$(BIN)/python -P -m celeriac.ops.demo ops/examples/fan-out --at-once 8

test: $(READY)
	$(BIN)/pytest -q -n auto --maxprocesses 4 --dist worksteal

check: $(READY)
	$(BIN)/ruff check $(CODE) tests
	$(BIN)/ruff format --check $(CODE) tests
	$(BIN)/mypy --strict -p celeriac
	$(BIN)/mypy --namespace-packages --explicit-package-bases tests  # several conftest.py
	$(BIN)/lint-imports
	$(BIN)/vulture
	$(BIN)/deptry .
	$(BIN)/python ops/checks/sizes.py

bench: $(READY)
	$(BIN)/python -P -m celeriac.ops.bench.run

crowd: $(READY)
	$(BIN)/python -P -m celeriac.ops.bench.crowd

kill: $(READY)
	$(BIN)/python ops/chaos/kill.py --rounds $(N)

screenshot: $(READY)
	CELERIAC_PICTURE=docs/flower.png $(BIN)/pytest -q tests/integration/test_flower_page.py

chaos: $(READY)
	$(BIN)/python -P -m celeriac.ops.chaos.chaos

format: $(READY)
	$(BIN)/ruff check --fix-only $(CODE) tests
	$(BIN)/ruff format $(CODE) tests

lock:
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --all-extras pyproject.toml -o requirements.lock

clean:
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

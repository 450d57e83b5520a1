# The commands of this repository. On a fresh machine `make test` and `make demo` need nothing before them.

PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.stamp
CRASH_ROUNDS ?= 500
SEED ?= 1
OUTAGE_S ?= 600
MINUTES ?= 60
SPARK_RECORDS ?= 1000000
# Folders that are there; a first checkout of a part need not hold them all.
CHECKED := $(wildcard src tests bench sim examples)

.DEFAULT_GOAL := help
.PHONY: help venv servers test check format demo bench bench-spark crash sim sim-soak outage soak-spark soak clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 16

venv: $(STAMP) ## Create or refresh .venv, with exactly the versions of constraints.txt

$(STAMP): pyproject.toml constraints.txt scripts/make-venv
	@echo "making $(VENV) with $(PYTHON)"
	@scripts/make-venv $(VENV) $(PYTHON)
	@touch $@

servers: ## Install the database servers that are missing (needs root), or say which
	@scripts/install-servers

# The tests come last and print the last line, which names what was missing and what did not run.
test: $(STAMP) servers ## Everything: environment, servers, checks, tests
	@$(MAKE) --no-print-directory check
	@scripts/run-tests $(VENV)/bin/python $(PYTEST_ARGS)

check: $(STAMP) ## Lint, format, types, layers
	@$(VENV)/bin/ruff check --quiet .
	@$(VENV)/bin/ruff format --quiet --check . || { echo "run: make format" >&2; exit 1; }
	@$(VENV)/bin/mypy --no-error-summary $(CHECKED)
	@$(VENV)/bin/lint-imports --no-cache >$(VENV)/imports.txt || { cat $(VENV)/imports.txt; exit 1; }

format: $(STAMP) ## Put the code in the one format, and fix what lint can fix
	@$(VENV)/bin/ruff check --fix --quiet . || true
	@$(VENV)/bin/ruff format .

demo: $(STAMP) ## A first small story on an embedded hub
	@$(VENV)/bin/shoal demo

bench: $(STAMP) servers ## The table of docs/performance.md, measured now
	@$(VENV)/bin/python -m bench $(BENCH_ARGS)

bench-spark: $(STAMP) ## Spark's side: ratios to its own readers and to the least that Python costs in it
	@$(VENV)/bin/python -m bench.spark $(BENCH_ARGS)

crash: $(STAMP) servers ## A longer crash run: make crash CRASH_ROUNDS=500
	@$(VENV)/bin/python -m pytest tests/crash --crash-rounds=$(CRASH_ROUNDS) --timeout=0 $(PYTEST_ARGS)

sim: $(STAMP) ## Replay one simulated history: make sim SEED=1234; of whole workers: WORKERS=1
	@$(VENV)/bin/python -m sim --seed $(SEED) --trace $(if $(WORKERS),--workers)

sim-soak: $(STAMP) ## New simulated histories for so long: make sim-soak MINUTES=60
	@$(VENV)/bin/python -m sim --soak-minutes $(MINUTES)

outage: $(STAMP) servers ## Workers whose database is away for OUTAGE_S seconds, ten minutes unless told otherwise
	@SHOAL_OUTAGE_S=$(OUTAGE_S) $(VENV)/bin/python -m pytest tests/scenario/test_worker_outage.py -s $(PYTEST_ARGS)

soak-spark: $(STAMP) servers ## The stories of Spark with SPARK_RECORDS records, a million unless told otherwise
	@SHOAL_SPARK_RECORDS=$(SPARK_RECORDS) $(VENV)/bin/python -m pytest tests/spark/test_story.py \
		tests/spark/test_story_members.py -s $(PYTEST_ARGS)

soak: $(STAMP) servers ## The long runs: simulated histories for MINUTES, CRASH_ROUNDS crashes, a long outage, Spark
	@$(MAKE) --no-print-directory sim-soak
	@$(MAKE) --no-print-directory crash
	@$(MAKE) --no-print-directory outage
	@$(MAKE) --no-print-directory soak-spark

clean: ## Remove what these commands made
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +

# The commands of this repository. On a fresh machine `make test` and `make demo` need nothing before them.

PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.stamp
CRASH_ROUNDS ?= 500
SEED ?= 1
OUTAGE_S ?= 600
MINUTES ?= 60
SPARK_RECORDS ?= 1000000
PAYMENTS ?= 100000
KILLS ?= 100
PRODUCED ?= 500000
EXAMPLES ?= 1000
SLS_ROUNDS ?= 20
# Folders that are there; a first checkout of a part need not hold them all.
CHECKED := $(wildcard src tests bench sim examples)

.DEFAULT_GOAL := help
.PHONY: help venv servers test check format demo bench bench-spark crash sim sim-soak outage soak-spark soak-outbox soak-producers soak-sls soak fuzz clean

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

demo: $(STAMP) ## The story so far, in half a minute, on an embedded hub and a server
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

soak-outbox: $(STAMP) servers ## PAYMENTS transactions of an application, a third rolled back, KILLS kills of it and its relays
	@SHOAL_OUTBOX_PAYMENTS=$(PAYMENTS) SHOAL_OUTBOX_KILLS=$(KILLS) $(VENV)/bin/python -m pytest \
		tests/crash/test_outbox.py -s --timeout=0 $(PYTEST_ARGS)

soak-producers: $(STAMP) servers ## PRODUCED records of producers that are killed and superseded, through hubs that are killed, under reshards
	@SHOAL_PRODUCED=$(PRODUCED) SHOAL_DISTURBANCES=60 SHOAL_HUB_KILLS=20 SHOAL_RESHARDS=10 $(VENV)/bin/python -m pytest \
		tests/crash/test_producers.py -s --timeout=0 $(PYTEST_ARGS)

soak-sls: $(STAMP) servers ## Aliyun's workers join, stop and are killed, SLS_ROUNDS times
	@SHOAL_SLS_ROUNDS=$(SLS_ROUNDS) $(VENV)/bin/python -m pytest tests/sls/test_crews.py tests/sls/test_upstream.py -s $(PYTEST_ARGS)

fuzz: $(STAMP) ## What strangers may send a server, EXAMPLES of each kind: make fuzz EXAMPLES=10000
	@SHOAL_FUZZ=$(EXAMPLES) $(VENV)/bin/python -m pytest tests/fuzz --timeout=0 $(PYTEST_ARGS)

soak: $(STAMP) servers ## The long runs: simulated histories for MINUTES, CRASH_ROUNDS crashes, a long outage, Spark, producers, SLS, fuzz
	@$(MAKE) --no-print-directory sim-soak
	@$(MAKE) --no-print-directory crash
	@$(MAKE) --no-print-directory outage
	@$(MAKE) --no-print-directory soak-spark
	@$(MAKE) --no-print-directory soak-outbox
	@$(MAKE) --no-print-directory soak-producers
	@$(MAKE) --no-print-directory soak-sls
	@$(MAKE) --no-print-directory fuzz

clean: ## Remove what these commands made
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +

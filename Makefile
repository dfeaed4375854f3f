# Every command of the project. `make` alone lists them.

.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

PYTHON_HERE := .venv/bin/python
RUN_TESTS := $(PYTHON_HERE) -m tools.run_tests

# Where a shell forbids bytecode, every process would compile the project again.
unexport PYTHONDONTWRITEBYTECODE

ARGS ?=
SEEDS ?= 2000
SEED ?=
JOBS ?= 1
ROUNDS ?=
MINUTES ?= 10
VERSIONS ?= 14 15 16 17 18
VERSION ?= 4.1 4.3
PARTS ?=
LIST ?=
QUICK ?=
ONLY ?=

.PHONY: help setup demo test check nightly lint types format fresh bench simulate test-crash \
	test-cluster test-s3 test-postgres test-spark soak mutate lock reference clean

help: ## this list
	@echo "Headrace: every committed change of a database, on Spark, to whoever needs it."
	@echo
	@while IFS= read -r line; do \
		case $$line in \
		[a-z]*:*'## '*) printf '  make %-12s %s\n' "$${line%%:*}" "$${line#*## }" ;; \
		esac; \
	done <Makefile
	@echo
	@echo "The first run installs what is needed into .venv; it says so before."

setup: ## .venv with everything in it; every target runs it, silent when nothing is to do
	@tools/setup

demo: setup ## a shop, its changes, Spark, a live table (ARGS="--for 20s --plain")
	@.venv/bin/headrace demo $(ARGS)

test: setup ## the tests for every change, 10 minutes; FAST=1: in 1 minute (ARGS=tests/changelog)
	@$(RUN_TESTS) $(if $(FAST),fast,test) $(ARGS)

check: setup ## what CI runs: ruff, mypy, and more tests than make test; 20 minutes
	@$(PYTHON_HERE) -m tools.check

nightly: setup ## what is too long for every commit, by parts, with a ledger (PARTS="cluster s3", LIST=1)
	@$(PYTHON_HERE) -m tools.nightly $(if $(LIST),--list) $(PARTS)

lint: setup
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .

types: setup
	@.venv/bin/mypy

format: setup ## let ruff lay out and mend what it can
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix .

fresh: setup ## clone HEAD, then demo and tests there, as on a new machine
	@$(PYTHON_HERE) tools/fresh.py

bench: setup ## measure against floors (QUICK=1, ONLY=spine)
	@$(PYTHON_HERE) -m bench $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY))

simulate: setup ## run the spine on a simulated disk and clock (SEEDS=2000, JOBS=1)
	@$(PYTHON_HERE) -m tests.simulation --seeds $(SEEDS) --jobs $(JOBS)

test-crash: setup ## kill real processes at named points (MINUTES=10, ROUNDS=, SEED=)
	@$(PYTHON_HERE) -m tests.crash --minutes $(MINUTES) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SEED),--seed $(SEED))

test-cluster: setup ## a Spark master, two workers, pipelines on them, and what can be lost
	@$(RUN_TESTS) nightly --marked cluster --jobs 1 $(or $(ARGS),tests/cluster)

test-s3: setup ## a log on a real server of S3, which is built at the first run
	@$(PYTHON_HERE) -m tests.s3.server
	@$(RUN_TESTS) nightly --marked s3 --jobs 1 $(or $(ARGS),tests/s3)

test-postgres: setup ## the tests of PostgreSQL on every major (VERSIONS="14 18")
	@$(PYTHON_HERE) -m tools.test_postgres --versions "$(VERSIONS)" $(if $(ARGS),-- $(ARGS))

test-spark: setup ## the tests that need Spark on another release of it (VERSION=4.3, ARGS=tests/pipeline)
	@$(PYTHON_HERE) -m tools.test_spark --versions "$(VERSION)" $(if $(ARGS),-- $(ARGS))

soak: setup ## a steady load for MINUTES, and whether anything grows (MINUTES=15)
	@$(PYTHON_HERE) -m tests.soak --minutes $(MINUTES)

mutate: setup ## break our own code on purpose; each break must turn a test red (JOBS=2)
	@$(PYTHON_HERE) -m tests.mutate --jobs $(JOBS)

reference: setup ## write the pages in docs/reference that are made from the code
	@$(PYTHON_HERE) -m tools.reference

lock: setup ## choose the versions in requirements.lock anew
	@.venv/bin/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url \
		--python-version 3.11 --extra dev pyproject.toml \
		--custom-compile-command "make lock" -o requirements.lock

clean: ## remove .venv and the tools' caches; your data stays
	rm -rf .venv .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

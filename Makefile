# Every command of the project. `make` alone lists them.

.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

PYTHON_HERE := .venv/bin/python
PYTEST := $(PYTHON_HERE) -m pytest
FAST_ONES := -m "not spark and not server and not crash and not cluster and not s3"

ARGS ?=
SEEDS ?= 2000
SEED ?=
JOBS ?= 1
ROUNDS ?=
MINUTES ?= 10
VERSIONS ?= 14 15 16 17 18
VERSION ?= 4.1 4.3
QUICK ?=
ONLY ?=

.PHONY: help setup demo test check lint types format fresh bench simulate test-crash \
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

test: setup ## all tests but the long runs; FAST=1: those without a JVM or a server (ARGS=tests/changelog)
ifneq ($(FAST),)
	@$(PYTEST) $(FAST_ONES) $(ARGS)
	@echo "Not run, because of FAST=1: tests that start Spark or PostgreSQL, kill processes or take long, and the second round in another time zone."
else
	@$(PYTEST) $(ARGS)
	@echo "Once more, those without a JVM or a server, in a time zone 12:45 or 13:45 from Greenwich:"
	@TZ=Pacific/Chatham $(PYTEST) -q $(FAST_ONES) $(ARGS)
endif
	@echo "Not run, because they take long: make test-cluster, make test-s3, make test-crash, make simulate SEEDS=50000, make soak, make mutate, make bench, make fresh."

check: setup lint types test ## ruff, mypy, tests; CI runs it and test-cluster

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
	@$(PYTEST) -m cluster $(or $(ARGS),tests/cluster)

test-s3: setup ## a log on a real server of S3, which is built at the first run
	@$(PYTHON_HERE) -m tests.s3.server
	@$(PYTEST) -m s3 $(or $(ARGS),tests/s3)

test-postgres: setup ## the tests of PostgreSQL on every major (VERSIONS="14 18")
	@$(PYTHON_HERE) -m tools.test_postgres --versions "$(VERSIONS)" $(if $(ARGS),-- $(ARGS))

test-spark: setup ## the tests that need Spark on another release of it (VERSION=4.3, ARGS=tests/pipeline)
	@$(PYTHON_HERE) -m tools.test_spark --versions "$(VERSION)" $(if $(ARGS),-- $(ARGS))

soak: setup ## a steady load for MINUTES, and whether anything grows (MINUTES=15)
	@$(PYTHON_HERE) -m tests.soak --minutes $(MINUTES)

mutate: setup ## break our own code on purpose; each break must turn a test red
	@$(PYTHON_HERE) -m tests.mutate

reference: setup ## write the pages in docs/reference that are made from the code
	@$(PYTHON_HERE) -m tools.reference

lock: setup ## choose the versions in requirements.lock anew
	@.venv/bin/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url \
		--python-version 3.11 --extra dev pyproject.toml \
		--custom-compile-command "make lock" -o requirements.lock

clean: ## remove .venv and the tools' caches; your data stays
	rm -rf .venv .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# All commands of the project. `make` lists them.

.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

PYTHON_HERE := .venv/bin/python
RUN_TESTS := $(PYTHON_HERE) -m tools.run_tests

# If a shell turns bytecode off, every process would compile the project again.
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
	test-cluster test-s3 test-postgres test-spark soak mutate lock reference proto wheel clean

help: ## show this list
	@echo "Headrace streams every committed change from your database, through Spark, to your tables and services."
	@echo
	@while IFS= read -r line; do \
		case $$line in \
		[a-z]*:*'## '*) printf '  make %-12s %s\n' "$${line%%:*}" "$${line#*## }" ;; \
		esac; \
	done <Makefile
	@echo
	@echo "The first run installs everything into .venv, and says so first."

setup: ## install everything into .venv; all other targets do this first
	@tools/setup

demo: setup ## watch changes of a shop stream into a live table (ARGS="--for 20s --plain")
	@.venv/bin/headrace demo $(ARGS)

test: setup ## run the tests, about 10 minutes; FAST=1: the quick ones (ARGS=tests/changelog)
	@$(RUN_TESTS) $(if $(FAST),fast,test) $(ARGS)

check: setup ## run what CI runs: ruff, mypy, and more tests than make test; about 20 minutes
	@$(PYTHON_HERE) -m tools.check

nightly: setup ## run the long tests in parts, and record the results (PARTS="cluster s3", LIST=1)
	@$(PYTHON_HERE) -m tools.nightly $(if $(LIST),--list) $(PARTS)

lint: setup
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .

types: setup
	@.venv/bin/mypy

format: setup ## format the code with ruff, and fix what it can
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix .

fresh: setup ## clone HEAD, and run the demo and the tests there, as on a new machine
	@$(PYTHON_HERE) tools/fresh.py

bench: setup ## run the benchmarks (QUICK=1, ONLY=spine)
	@$(PYTHON_HERE) -m bench $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY))

simulate: setup ## run recorder, log and pipelines on a simulated disk and clock (SEEDS=2000, JOBS=1)
	@$(PYTHON_HERE) -m tests.simulation --seeds $(SEEDS) --jobs $(JOBS)

test-crash: setup ## kill real processes, and check that nothing is lost (MINUTES=10, ROUNDS=, SEED=)
	@$(PYTHON_HERE) -m tests.crash --minutes $(MINUTES) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SEED),--seed $(SEED))

test-cluster: setup ## test on a Spark cluster with two workers, and kill parts of it
	@$(RUN_TESTS) nightly --marked cluster --jobs 1 $(or $(ARGS),tests/cluster)

test-s3: setup ## test a log on S3, with a real server that the first run builds
	@$(PYTHON_HERE) -m tests.s3.server
	@$(RUN_TESTS) nightly --marked s3 --jobs 1 $(or $(ARGS),tests/s3)

test-postgres: setup ## run the PostgreSQL tests on every major version (VERSIONS="14 18")
	@$(PYTHON_HERE) -m tools.test_postgres --versions "$(VERSIONS)" $(if $(ARGS),-- $(ARGS))

test-spark: setup ## run the Spark tests on another release of Spark (VERSION=4.3, ARGS=tests/pipeline)
	@$(PYTHON_HERE) -m tools.test_spark --versions "$(VERSION)" $(if $(ARGS),-- $(ARGS))

soak: setup ## run a steady load, and check that nothing grows (MINUTES=15)
	@$(PYTHON_HERE) -m tests.soak --minutes $(MINUTES)

mutate: setup ## break the code on purpose; each break must make a test fail (JOBS=2)
	@$(PYTHON_HERE) -m tests.mutate --jobs $(JOBS)

reference: setup ## write the generated pages of docs
	@$(PYTHON_HERE) -m tools.reference

proto: setup ## generate src/headrace/v1 from proto/
	@$(PYTHON_HERE) -m tools.proto

wheel: setup ## build headrace-core and headrace as wheels, in dist/
	@$(PYTHON_HERE) -m tools.wheel

lock: setup ## update the versions in requirements.lock
	@.venv/bin/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url \
		--python-version 3.11 --all-extras pyproject.toml \
		--custom-compile-command "make lock" -o requirements.lock

clean: ## remove .venv and caches; your data stays
	rm -rf .venv .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

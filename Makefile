# `make` alone lists what there is. Every target makes the environment first if it is missing.
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint docs clean distclean

# One OpenMP thread per process: several stages share the cores, and a thread pool each would fight over them.
export OMP_NUM_THREADS := 1

BIN := .venv/bin
QUESTION ?= What is the capital of France?
OUT ?= reply.wav
TESTS ?=
# All tests at once: as many folders at a time as there are cores. A part of them: one after the other.
WORKERS = $(if $(TESTS),,-n auto --dist loadscope)

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## make the environment (.venv); does nothing if it is ready
	@scripts/bootstrap

demo: setup  ## answer a question in text and speech: QUESTION="..." OUT=reply.wav
	@$(BIN)/antiphon chat "$(QUESTION)" --out "$(OUT)"

test: setup  ## the tests, without the slow ones: TESTS=tests/core for a part
	@$(BIN)/python -m pytest -m "not slow" $(WORKERS) $(TESTS)

test-slow: setup  ## the slow tests
	@$(BIN)/python -m pytest -m slow $(TESTS)

lint: setup  ## ruff, mypy --strict, import layering
	@$(BIN)/ruff check --no-cache .
	@$(BIN)/ruff format --no-cache --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

docs: setup  ## write the generated parts of docs/ again
	@$(BIN)/python -m antiphon.upstream.docs docs/upstream-symbols.md
	@$(BIN)/python -m antiphon.pipeline.docs docs/deployment.md
	@$(BIN)/python -m antiphon.observe.docs docs/metrics.md
	@$(BIN)/python -m antiphon.testing.fault_docs docs/faults.md
	@$(BIN)/python tests/support/field_case_page.py docs/field-cases.md

clean:  ## remove caches and build output
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache reply.wav

distclean: clean  ## remove the environment too
	@rm -rf .venv

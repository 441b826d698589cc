# Everything below sets itself up; `make demo` and `make test` need Python 3.11 and nothing else.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SEEDS  ?= 2000
FUZZ_SECONDS ?= 20
KUBERNETES ?=
E2E ?= tests/e2e tests/lab
PYTEST := $(BIN)/pytest

.DEFAULT_GOAL := help
.PHONY: help demo test check fmt slow peers interop kubernetes kubernetes-test e2e bench bench-growth sim fuzz ci clean

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "make: Python 3.11 or newer is needed, '$(PYTHON)' is not: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "setting up $(VENV) (once)"
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "make: cannot create $(VENV); on Debian: apt-get install python3-venv"; exit 1; }
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev,interop]'
	@$(BIN)/python -m compileall -q src
	@touch $@

demo: $(VENV)/.ready ## a webhook call through the tunnel, step by step; in a real cluster after make kubernetes
	@if [ "$$(id -u)" = 0 ] && $(BIN)/python -c 'from bootbridge.lab.components import find; find()' 2>/dev/null; then \
		echo 'With a real Kubernetes, in the lab. The tunnel alone: bootbridge demo'; $(BIN)/bootbridge lab demo; \
	else \
		echo 'The tunnel alone. With a real Kubernetes: make kubernetes, then as root make demo'; $(BIN)/bootbridge demo; \
	fi

test: check ## lint, types and the fast tests
	$(PYTEST) -m 'not interop and not slow and not kubernetes and not e2e'

check: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fmt: $(VENV)/.ready ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

slow: $(VENV)/.ready ## the longer tests with real processes
	$(PYTEST) -m 'slow and not interop and not kubernetes and not e2e'

peers: ## build the Go originals, h2spec and the load generator into build/peers
	@$(PYTHON) peers/build

interop: $(VENV)/.ready ## our programs with the Go originals, both ways round
	@$(PYTHON) peers/build || { rc=$$?; [ $$rc = 3 ] && [ "$$CI" != true ] && \
		echo 'NOT RUN: interop (Go is not installed)' && exit 0; exit $$rc; }
	$(PYTEST) -m interop

kubernetes: ## build one release of Kubernetes into build/kubernetes: make kubernetes KUBERNETES=kubectl
	@peers/kubernetes/packages
	@peers/kubernetes/build $(KUBERNETES)

kubernetes-test: $(VENV)/.ready ## our programs with a real kube-apiserver (after make kubernetes)
	$(PYTEST) -m 'kubernetes and not e2e'

e2e: $(VENV)/.ready ## a whole bootstrap on this machine, end to end (as root, after make kubernetes and make peers)
	$(PYTEST) -m e2e $(E2E)

bench: $(VENV)/.ready peers ## our pair, the Go pair and the mixed pairs, side by side
	@$(BIN)/python -m compileall -q src
	$(BIN)/python bench/run.py

bench-growth: $(VENV)/.ready peers ## 10 ... 1,000 agents and 10 ... 10,000 tunnels
	$(BIN)/python bench/growth.py

sim: $(VENV)/.ready ## the simulation: make sim SEEDS=100000
	$(BIN)/python -m tests.sim.run --seeds $(SEEDS) --jobs $$(nproc)

fuzz: $(VENV)/.ready ## atheris on every parser: make fuzz FUZZ_SECONDS=600
	@$(BIN)/python -c 'import atheris' 2>/dev/null || \
		$(BIN)/pip install --quiet --disable-pip-version-check -e '.[fuzz]'
	$(BIN)/python -m tests.fuzz.run $(FUZZ_SECONDS)

ci: ## what CI runs
	bash .ci/run

clean: ## remove what was built here
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis

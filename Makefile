# Everything below sets itself up; `make demo` and `make test` need Python 3.11 and nothing else.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SEEDS  ?= 2000
FUZZ_SECONDS ?= 20
KUBERNETES ?=
E2E ?=
PYTEST := $(BIN)/pytest
COMPILED := build/compiled

.DEFAULT_GOAL := help
.PHONY: help demo test check fmt slow peers interop kubernetes kubernetes-test e2e bench bench-growth bench-tickets wheel compiled compiled-test sim fuzz ci clean

help: ## show this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

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

slow: $(VENV)/.ready ## the longer tests with real processes; they mostly wait, so four at a time
	$(PYTEST) -n 4 -m 'slow and not interop and not kubernetes and not e2e'

peers: ## build the Go originals, h2spec and the load generator into build/peers
	@$(PYTHON) peers/build

interop: $(VENV)/.ready ## our programs with the Go originals, both ways round
	@$(PYTHON) peers/build || { rc=$$?; [ $$rc = 3 ] && [ "$$CI" != true ] && \
		echo 'NOT RUN: interop (see above)' && exit 0; exit $$rc; }
	$(PYTEST) -m interop

kubernetes: ## build one release of Kubernetes into build/kubernetes: make kubernetes KUBERNETES=kubectl
	@peers/kubernetes/build --check
	@peers/kubernetes/packages
	@peers/kubernetes/build $(KUBERNETES)

kubernetes-test: $(VENV)/.ready ## our programs with a real kube-apiserver (after make kubernetes)
	$(PYTEST) -m 'kubernetes and not e2e'

# The originals that it measures against come with it. Without Go, tests say what they miss.
e2e: $(VENV)/.ready ## whole bootstraps on this machine, end to end (as root, after make kubernetes)
	@[ "$$(id -u)" != 0 ] || $(PYTHON) peers/build proxy-server proxy-agent || [ $$? = 3 ]
	$(if $(E2E),$(PYTEST) -m e2e $(E2E),$(BIN)/python -m tests.e2e.run)

wheel: $(COMPILED)/.wheel ## a wheel for this machine in build/wheel, compiled by mypyc (needs a C compiler and Python's headers)
	@ls build/wheel/*.whl

$(COMPILED)/.wheel: $(VENV)/.ready setup.py $(shell find src -name '*.py')
	@echo 'compiling, in about a minute'
	@rm -rf build/wheel build/lib.* build/bdist.* build/temp.*
	@BOOTBRIDGE_COMPILE=1 $(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -w build/wheel .
	@mkdir -p $(COMPILED) && touch $@

$(COMPILED)/.ready: $(COMPILED)/.wheel
	@test -x $(COMPILED)/bin/pip || $(PYTHON) -m venv $(COMPILED)
	@$(COMPILED)/bin/pip install --quiet --disable-pip-version-check --force-reinstall --no-deps build/wheel/*.whl
	@$(COMPILED)/bin/pip install --quiet --disable-pip-version-check "$$(ls build/wheel/*.whl)[dev,interop]"
	@touch $@

compiled: $(COMPILED)/.ready ## the same, installed in build/compiled

compiled-test: $(COMPILED)/.ready peers ## the tests of what is compiled, of an image with it, and the interop tests, on the compiled code
	$(COMPILED)/bin/pytest tests/wire tests/tunnel tests/runtime tests/image/test_tunnel_image.py -m 'not interop and not kubernetes'
	$(COMPILED)/bin/pytest -m interop

bench: $(COMPILED)/.ready peers ## our pair, the Go pair and the mixed pairs, side by side
	$(BIN)/python bench/run.py

bench-growth: $(COMPILED)/.ready peers ## 10 ... 1,000 agents and 10 ... 10,000 tunnels
	$(BIN)/python bench/growth.py

bench-tickets: $(VENV)/.ready ## attested tickets a second, with a real kube-apiserver (after make kubernetes)
	@$(BIN)/python -m compileall -q src
	$(BIN)/python bench/tickets.py

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

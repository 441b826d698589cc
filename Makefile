# `make help` lists the targets. `make demo` and `make test` need only Python 3.11; they create .venv themselves.
PYTHON ?= python3
# The supported releases of Python: docs/support.md.
PYTHONS := 3.11 3.12 3.13 3.14
VENV   := .venv
BIN    := $(VENV)/bin
SEEDS  ?= 2000
FUZZ_SECONDS ?= 20
KUBERNETES ?=
E2E ?=
RUNS ?=
PYTEST := $(BIN)/pytest
# Test processes that run at a time. loadgroup: tests with the same xdist_group mark run in one process.
JOBS   ?= $(shell nproc)
PARALLEL := -n $(JOBS) --dist loadgroup
COMPILED := build/compiled
TOOLS  := build/tools
DOCS   := build/docs
CLOUDS := build/clouds
UPGRADE ?=
# The interpreters that make release builds compiled wheels for; empty: each supported one of PATH and pyenv.
INTERPRETERS ?=
# The releases of Debian that make release tests on.
DEBIAN ?= 12 13
# Tests that need programs of others have targets of their own.
WITHOUT_OTHERS := not interop and not kubernetes and not e2e and not clouds and not browser and not helm

.DEFAULT_GOAL := help
.PHONY: help demo test check fmt slow browser peers interop helm-test kubernetes kubernetes-test e2e cloud-cli-test bench bench-growth bench-storm bench-attacks bench-tickets man wheel release release-cut release-check test-debian12 test-debian13 test-debian14 compiled compiled-test pictures docs sim fuzz lock audit ci clean

help: ## list the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

# Exactly the versions and files in the lock; nothing is built from source, so that no build dependency is fetched.
LOCKED := install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r
OWN    := install --quiet --disable-pip-version-check --no-deps --no-build-isolation

$(VENV)/.ready: pyproject.toml requirements/dev.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "make: $(PYTHON): Python 3.11 or newer required (run make PYTHON=/path/to/python3.11)"; exit 1; }
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "make: $(VENV): cannot create virtual environment (on Debian: apt-get install python3-venv)"; exit 1; }
	@$(BIN)/pip $(LOCKED) requirements/dev.lock
	@$(BIN)/pip $(OWN) -e .
	@$(BIN)/python -m compileall -q src
	@touch $@

demo: $(VENV)/.ready ## call a webhook through the tunnel; as root after `make kubernetes`, in a real cluster
	@if [ "$$(id -u)" = 0 ] && $(BIN)/python -c 'from bootbridge.lab.components import find; find()' 2>/dev/null; then \
		echo 'Running the demo with Kubernetes, in the lab. Without Kubernetes: bootbridge demo'; $(BIN)/bootbridge lab demo; \
	else \
		echo 'Running the demo without Kubernetes. With Kubernetes: make kubernetes, then make demo as root'; $(BIN)/bootbridge demo; \
	fi

test: check ## run `make check`, then the fast tests on all cores
	$(PYTEST) $(PARALLEL) -m 'not slow and $(WITHOUT_OTHERS)'

check: $(VENV)/.ready ## lint, format, types and import rules; changes nothing
	@echo 'check: lint (ruff check)' && $(BIN)/ruff check --quiet .
	@echo 'check: format (ruff format)' && $(BIN)/ruff format --check --quiet .
	@for version in $(PYTHONS); do echo "check: types, Python $$version (mypy)"; \
		$(BIN)/mypy --no-error-summary --python-version $$version || exit 1; done
	@echo 'check: import rules and module size (tests/test_tidy.py)' && $(PYTEST) tests/test_tidy.py

fmt: $(VENV)/.ready ## format the code and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

slow: $(VENV)/.ready ## run the slow tests; they mostly wait, so four at a time
	$(PYTEST) -n 4 --dist loadgroup -m 'slow and $(WITHOUT_OTHERS)'

browser: $(VENV)/.ready ## test the status page in a headless Chromium (Debian package chromium)
	@peers/packages chromium=chromium || { rc=$$?; [ $$rc = 3 ] && [ "$$CI" != true ] && \
		echo 'NOT RUN: browser (see above)' && exit 0; exit $$rc; }
	$(PYTEST) -m browser tests/browser

peers: ## build the Go programs to test against (Konnectivity, h2spec, helm, load generator) into build/peers
	@$(PYTHON) peers/build

interop: $(VENV)/.ready ## test our programs with Konnectivity's Go programs, in both directions
	@$(PYTHON) peers/build || { rc=$$?; [ $$rc = 3 ] && [ "$$CI" != true ] && \
		echo 'NOT RUN: interop (see above)' && exit 0; exit $$rc; }
	$(PYTEST) -m interop

helm-test: $(VENV)/.ready ## test the chart with a real helm
	@$(PYTHON) peers/build helm || { rc=$$?; [ $$rc = 3 ] && [ "$$CI" != true ] && \
		echo 'NOT RUN: helm (see above)' && exit 0; exit $$rc; }
	$(PYTEST) $(PARALLEL) -m 'helm and not kubernetes and not e2e'

kubernetes: ## build Kubernetes into build/kubernetes; only one program: make kubernetes KUBERNETES=kubectl
	@peers/kubernetes/build --check
	@peers/kubernetes/packages
	@peers/kubernetes/build $(KUBERNETES)

kubernetes-test: $(VENV)/.ready ## test with a real kube-apiserver (after make kubernetes)
	$(PYTEST) -m 'kubernetes and not e2e'

# It also tests Konnectivity's Go programs, so it builds them. Without Go, the tests report NOT RUN.
e2e: $(VENV)/.ready ## run whole bootstraps in labs (as root, after make kubernetes); one file: make e2e E2E=tests/e2e/...
	@[ "$$(id -u)" != 0 ] || $(PYTHON) peers/build proxy-server proxy-agent || [ $$? = 3 ]
	$(if $(E2E),$(PYTEST) -m e2e $(E2E),$(BIN)/python -m tests.e2e.run)

# Not byte-compiled: only a small part of the CLIs is ever imported.
$(CLOUDS)/.ready: requirements/clouds.lock requirements/azure-cli.lock
	@echo "installing the CLIs of AWS, Azure and OpenStack into $(CLOUDS)"
	@$(PYTHON) -m venv $(CLOUDS)
	@$(CLOUDS)/bin/pip $(LOCKED) requirements/clouds.lock --no-compile
	@$(CLOUDS)/bin/pip $(LOCKED) requirements/azure-cli.lock --no-compile --no-deps
	@touch $@

cloud-cli-test: $(VENV)/.ready $(CLOUDS)/.ready ## parse the firewall commands with the real CLIs of AWS, Azure and OpenStack
	$(PYTEST) -m clouds

man: $(VENV)/.ready ## write the man pages of all commands into build/man
	@$(BIN)/bootbridge man --output build/man

wheel: $(COMPILED)/.wheel ## build wheels of the work tree into build/wheel: compiled (needs a C compiler and Python's headers), and plain
	@ls build/wheel/*.whl

$(COMPILED)/.wheel: $(VENV)/.ready setup.py requirements/build.lock requirements/release.lock $(shell find src build_backend -name '*.py')
	@$(BIN)/python -m release wheels
	@mkdir -p $(COMPILED) && touch $@

# Strict, as CI is. Without the tests on Debian, which need root: make release DEBIAN=
release: $(VENV)/.ready $(DEBIAN:%=release-debian%) ## test on fresh Debians, build all files of a release from HEAD into build/release, start its images
	@$(BIN)/python -m release build $(INTERPRETERS:%=--python %)
	CI=true BOOTBRIDGE_RELEASE=$(CURDIR)/build/release $(PYTEST) tests/image/test_containerd.py

release-debian%:
	@CI=true $(MAKE) --no-print-directory test-debian$*

release-cut: $(VENV)/.ready ## name the changelog's section Unreleased after the version to release (docs/release.md)
	@$(BIN)/python -m release cut

release-check: $(VENV)/.ready ## build the release twice, in two clones, and compare the bytes
	@$(BIN)/python -m release check $(INTERPRETERS:%=--python %)

# 12 and 13: the stable releases; 14: the coming one. Their Pythons: 3.11, 3.13, 3.14.
test-debian12 test-debian13 test-debian14: test-debian%: ## as a newcomer: demo, tests and pip install on a fresh Debian with Python and make only (as root)
	@{ peers/packages debootstrap=debootstrap unshare=util-linux git=git && $(PYTHON) -m tests.debian $*; } || { rc=$$?; \
		[ $$rc = 3 ] && [ "$$CI" != true ] && echo 'NOT RUN: $@ (see above)' && exit 0; exit $$rc; }

$(COMPILED)/.ready: $(COMPILED)/.wheel requirements/dev.lock
	@test -x $(COMPILED)/bin/pip || $(PYTHON) -m venv $(COMPILED)
	@$(COMPILED)/bin/pip $(LOCKED) requirements/dev.lock
	@$(COMPILED)/bin/pip $(OWN) --force-reinstall --no-index --find-links build/wheel bootbridge
	@touch $@

compiled: $(COMPILED)/.ready ## install the compiled wheel into build/compiled

compiled-test: $(COMPILED)/.ready peers ## run the tests of the compiled packages, of an image, and the interop tests on the compiled code
	$(COMPILED)/bin/pytest $(PARALLEL) tests/wire tests/tunnel tests/runtime tests/image/test_tunnel_image.py -m 'not interop and not kubernetes'
	$(COMPILED)/bin/pytest -m interop

bench: $(COMPILED)/.ready peers ## benchmark our pair, the Go pair, the mixed pairs and a pair of HAProxy processes
	@peers/packages haproxy=haproxy
	$(BIN)/python bench/run.py

bench-growth: $(COMPILED)/.ready peers ## benchmark 10 to 1,000 agents and 10 to 10,000 tunnels
	$(BIN)/python bench/growth.py

bench-storm: $(COMPILED)/.ready peers ## benchmark a restarted server with 200 to 3,000 agents, ours and the Go server
	$(BIN)/python bench/storm.py

bench-attacks: $(COMPILED)/.ready peers ## benchmark a caller beside floods of the agent and health ports, ours and the Go server
	$(BIN)/python bench/attacks.py

bench-tickets: $(VENV)/.ready ## benchmark join tickets per second, with a real kube-apiserver (after make kubernetes)
	@$(BIN)/python -m compileall -q src
	$(BIN)/python bench/tickets.py

pictures: $(VENV)/.ready ## make docs/pictures from real runs (as root, after make kubernetes); some: make pictures RUNS=demo
	@peers/packages chromium=chromium nft=nftables tmux=tmux || [ $$? = 3 ]
	$(BIN)/python -m tests.tools.pictures $(RUNS)

$(DOCS)/tools/.ready: requirements/docs.lock
	@echo "installing Sphinx into $(DOCS)/tools"
	@$(PYTHON) -m venv $(DOCS)/tools
	@$(DOCS)/tools/bin/pip $(LOCKED) requirements/docs.lock
	@touch $@

docs: $(VENV)/.ready $(DOCS)/tools/.ready ## check the links, run the blocks that are marked as runnable, build the site into build/docs/html
	@echo 'docs: links and runnable blocks (tests/docs)' && $(PYTEST) $(PARALLEL) tests/docs
	@$(BIN)/python -m tests.tools.docs stage $(DOCS)/source
	@echo 'docs: site (Sphinx)' && rm -rf $(DOCS)/html && $(DOCS)/tools/bin/sphinx-build --quiet --fail-on-warning \
		--doctree-dir $(DOCS)/doctrees $(DOCS)/source $(DOCS)/html
	@$(BIN)/python -m tests.tools.docs check $(DOCS)/html

sim: $(VENV)/.ready ## run the simulation: make sim SEEDS=100000
	$(BIN)/python -m tests.sim.run --seeds $(SEEDS) --jobs $$(nproc)

fuzz: $(VENV)/.ready ## fuzz every parser with atheris: make fuzz FUZZ_SECONDS=600
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/pip $(LOCKED) requirements/fuzz.lock
	$(BIN)/python -m tests.fuzz.run $(FUZZ_SECONDS)

$(TOOLS)/.ready: requirements/tools.lock
	@$(PYTHON) -m venv $(TOOLS)
	@$(TOOLS)/bin/pip $(LOCKED) requirements/tools.lock
	@touch $@

lock: $(TOOLS)/.ready ## renew requirements/*.lock from pyproject.toml; newer versions: make lock UPGRADE=--upgrade
	@requirements/lock $(TOOLS)/bin/uv $(UPGRADE)

audit: $(TOOLS)/.ready ## search the locked versions for known vulnerabilities (needs the advisory database)
	@requirements/audit $(TOOLS)/bin/pip-audit || { rc=$$?; [ $$rc = 3 ] && \
		echo 'NOT RUN: audit (advisory database not reachable, see above)' && exit 0; exit $$rc; }

ci: ## run everything that CI runs
	bash .ci/run

clean: ## remove .venv, build/ and caches
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis

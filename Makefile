# GNU make 3.81, which macOS ships, and a plain /bin/sh are enough for everything here.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
DEV_STAMP := $(VENV)/.setup-dev-done

# Interpreters to try, in this order; `make setup PYTHON=python3.12` names one.
PYTHON ?= python3 python3.14 python3.13 python3.12 python3.11
# Extras that `make install` adds: `make install EXTRAS=remote`.
EXTRAS ?=
# More arguments for demo, test and bench: `make test ARGS="-k restart"`.
ARGS ?=
# Processes that run the tests, one more than cores: most tests wait for a clock, a disk or a server
# at times. `make test WORKERS=0 ARGS=--pdb` runs them in one that can be asked.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

# Tests start hundreds of processes, and each would compile every source again.
unexport PYTHONDONTWRITEBYTECODE

# What lies below a session: bytes, keys, pages, codecs, commits, settings, the control protocol.
FAST := $(addprefix tests/,arrays codec commit control identity kv pages settings storage)

# Tests of one file share servers and models, so that they stay together. In the order of their
# names: sorted by how many tests they have, those with few long ones would be alone at the end.
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 --dist loadfile \
	--no-loadscope-reorder
# Most modules of the packages are never imported: each is compiled when it is, which halves the
# CPU time of a set-up.
PIP_INSTALL := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile

.PHONY: help setup setup-dev demo install uninstall test test-fast test-nightly fuzz fuzz-http chaos check bench bench-peers test-peers dist lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## Make .venv and install what running needs from requirements.lock (once)

setup-dev: $(DEV_STAMP) ## Add the tools of tests and checks from requirements-dev.lock (once)

# A stamp is made last, so a set-up that failed or was interrupted is tried again.
$(STAMP): requirements.lock pyproject.toml
	@rm -f $@
	@if sh scripts/find_python.sh $(BIN)/python >/dev/null 2>&1 && \
			$(BIN)/python -m pip --version >/dev/null 2>&1; then \
		exit 0; \
	fi; \
	python=$$(sh scripts/find_python.sh $(PYTHON)) || exit 1; \
	echo "Making $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv --clear $(VENV)
	@echo "Installing requirements.lock into $(VENV): a minute on first use"
	@$(PIP_INSTALL) --only-binary :all: --require-hashes -r requirements.lock
	@$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

$(DEV_STAMP): requirements-dev.lock $(STAMP)
	@rm -f $@
	@echo "Installing requirements-dev.lock into $(VENV): a minute on first use"
	@$(PIP_INSTALL) --only-binary :all: --require-hashes -r requirements-dev.lock
	@touch $@

demo: setup ## Show restores from memory, from SSD and after a restart on a small model (a minute)
	$(BIN)/omlx-cache demo $(ARGS)

install: ## Put omlx-cache on the PATH, by uv or pipx if there is one; EXTRAS=remote adds that extra
	@EXTRAS="$(EXTRAS)" PYTHON="$(PYTHON)" sh scripts/install.sh install

uninstall: ## Remove it from the PATH (FORCE=1: while servers run), and list what it kept with the command that deletes it
	@FORCE="$(FORCE)" sh scripts/install.sh uninstall

test: setup-dev ## Run the tests (about 10 minutes on two cores)
	$(PYTEST) $(ARGS)

test-fast: setup-dev ## Run the tests of what lies below a session (a minute)
	$(PYTEST) $(FAST) $(ARGS)

test-nightly: setup-dev ## Run the tests, all families of models and more examples
	$(PYTEST) -m "" --hypothesis-profile nightly $(ARGS)

fuzz: setup-dev ## Try hostile bytes on everything that reads bytes, for some minutes
	PYTHONPATH=tests $(BIN)/python -m qa.fuzz --count 50000 $(ARGS)

fuzz-http: setup-dev ## Throw bad requests at a real server, for some minutes
	PYTHONPATH=tests $(BIN)/python -m qa.fuzz.http --count 50000 $(ARGS)

chaos: setup-dev ## Try the store under real faults for minutes; `make chaos ARGS="--minutes 60"`
	PYTHONPATH=tests $(BIN)/python -m qa.chaos $(if $(ARGS),$(ARGS),--minutes 3)

check: setup-dev ## Lint, check formatting, check types, the import graph, sizes, words and dependencies (a minute)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/import_graph.py
	$(BIN)/python scripts/size.py
	$(BIN)/python scripts/words.py
	$(BIN)/python scripts/dependencies.py

bench: setup ## Print benchmark ratios, each measured against its bound in one run
	$(BIN)/omlx-cache bench $(ARGS)

bench-peers: setup-dev ## Set the cache beside mlx-lm's and mlx-vlm's: first token and memory (minutes)
	@bash tests/peers/bench.sh $(ARGS)

test-peers: setup-dev ## Check once inside each other project's server; all checks with ARGS=--all
	@bash tests/peers/run.sh $(ARGS)

dist: setup-dev ## Build wheel and sdist, and try the wheel in an empty environment (minutes)
	$(BIN)/python scripts/dist.py

# What running needs has the versions that the tests have.
LOCK = uv pip compile pyproject.toml --universal --python-version 3.11 --fork-strategy fewest \
	--generate-hashes --no-emit-index-url --no-emit-find-links \
	--custom-compile-command "make lock" --quiet

lock: ## Resolve requirements-dev.lock and requirements.lock anew (needs uv)
	$(LOCK) --group dev --extra remote --extra zstd --upgrade --output-file requirements-dev.lock
	$(LOCK) --group build --constraint requirements-dev.lock --output-file requirements.lock

clean: ## Remove everything the other targets made, .venv too
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

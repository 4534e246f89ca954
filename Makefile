# Two commands set everything up: `make quickstart` and `make test`. PYTHON names another interpreter (>= 3.11).
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: atlas quickstart test test-versions test-slow test-screen test-cluster truth lint site env installed wheelhouse offline clean

quickstart: $(VENV)/.installed
	$(BIN)/autotune run studies/quickstart.toml

# As many workers as cores: more threads of one's linear algebra would wait for the other's.
test test-versions test-slow test-screen test-cluster: export OPENBLAS_NUM_THREADS = 1

test: $(VENV)/.tested
	$(BIN)/python -m pytest -n 2 -m "not slow and not gpu and not cluster"

# For another Python and the JAX that it gets: the rooms that touch the interpreter, JAX, its libraries or processes. What is
# left out (`search`, `stats`, `study`, most of `cli`) is arithmetic on numbers and records with seeds of its own, the same
# commands with hostile input, or rules of this repository's texts; the studies that the others run go through all of it.
VERSIONS = tests/child tests/cli/test_app.py tests/cli/test_init.py tests/cli/test_run.py tests/cluster tests/compiler \
    tests/machine tests/model tests/results tests/rundir tests/settings tests/study/test_foretell.py tests/survey \
    tests/workers tests/workloads

test-versions: $(VENV)/.tested
	$(BIN)/python -m pytest -n 2 $(VERSIONS) -m "not slow and not gpu and not cluster"

# The rest: whole studies on real workers, kills, power cuts and failing disks (root on Debian installs FUSE for them),
# compilations for described GPUs (those skip where no plugin is).
test-slow: $(VENV)/.tested
	sh .ci/disk_packages.sh
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "slow and not gpu and not cluster" --timeout 900

# Wheels that compile for GPUs on a machine without one (about 2.9 GB), and the tests that need them. LESS=1, for another
# version: without those of the screener's own logic on real programs, which compile the most.
test-screen: $(VENV)/.screen
	$(BIN)/python -m pytest -n 2 -m aot $(if $(LESS),-k "not canary_families and not soundness and not side_by_side") --timeout 900

# Real daemons on loopback: SLURM with three virtual nodes, PostgreSQL. Root on Debian installs what is missing.
test-cluster: $(VENV)/.tested
	sh .ci/cluster_packages.sh
	$(BIN)/python -m pytest tests/cluster -m cluster --timeout 400

truth: $(VENV)/.installed
	$(BIN)/python -m benchmarks.truth

lint: $(VENV)/.linted
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/draw_architecture.py --check
	$(BIN)/python docs/write_study_file.py --check

# The pages, with the reference of commands and Python; warnings are errors.
site: $(VENV)/.sited
	$(BIN)/python -m mkdocs build --strict

# The atlas for one release of jaxlib (docs/atlas.md): `make atlas JAX=0.11.2 VENV=.venv-0.11.2 PYTHON=python3.12 ARGS="--gpus 8"`.
JAX ?=
ARGS ?=
atlas: $(VENV)/.screen
	$(if $(JAX),$(BIN)/python -m pip install --quiet --disable-pip-version-check "jax[cuda12-local]==$(JAX)")
	$(BIN)/autotune atlas build --into autotune/data/atlas $(ARGS)

env: $(VENV)/.installed

# All that tests and checks need, without running any; `.tested` alone for an environment that only runs tests.
installed: $(VENV)/.linted $(VENV)/.sited

# For a machine without a network (docs/offline.md). `make wheelhouse PLATFORM=manylinux_2_28_x86_64 PYTHON=3.12` gathers what
# autotune needs beside that machine's jax, flax and optax; HAS=FILE names what else is there. There, `make offline` installs it.
PLATFORM ?= manylinux_2_28_x86_64
WHEELHOUSE ?= build/wheelhouse
HAS ?=
INTO ?=

wheelhouse: build/pip/.made
	build/pip/bin/python .ci/wheelhouse.py --platform $(PLATFORM) --python $(PYTHON:python%=%) --into $(WHEELHOUSE) \
	    $(if $(HAS),--has $(HAS))

build/pip/.made:
	PYTHON=python3 sh .ci/make_env.sh build/pip
	touch $@

offline:
	$(PYTHON) .ci/offline.py $(WHEELHOUSE) $(if $(INTO),--target $(INTO))

# Debian splits venv off python3: the script says so, or installs it where it may.
$(VENV)/.installed: pyproject.toml
	PYTHON=$(PYTHON) sh .ci/make_env.sh $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.tested: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group test
	touch $@

$(VENV)/.screen: $(VENV)/.tested
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[screen]"
	touch $@

$(VENV)/.linted: $(VENV)/.tested
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group lint
	touch $@

$(VENV)/.sited: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group docs
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info

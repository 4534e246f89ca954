# Two commands set everything up: `make quickstart` and `make test`. PYTHON names another interpreter (>= 3.11).
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: quickstart first-winner test test-gate test-smoke test-slow test-versions test-screen test-cluster test-all costs truth lint site env installed wheelhouse offline clean

# A first study; then its winner as a file (and as arguments), the program under it, and the check that this machine is
# still the same. Where nothing is faster than the default, the study has said so, and nothing is left to do.
FIRST = runs/quickstart
quickstart: $(VENV)/.installed
	$(BIN)/autotune run studies/quickstart.toml
	@if grep -q '"outcome":"winner"' $(FIRST)/records.jsonl; then $(MAKE) --no-print-directory first-winner; fi

first-winner:
	$(BIN)/autotune export $(FIRST) --format env -o $(FIRST)/winner.env
	$(BIN)/autotune export $(FIRST) --format arguments -o $(FIRST)/winner.args
	$(BIN)/autotune exec $(FIRST) -- $(BIN)/python -m workloads llama --size small --set layers=2 \
	    --set scan={scan} --set remat={remat}
	$(BIN)/autotune verify $(FIRST)/winner.env

# Tests in sets (CONTRIBUTING.md). As many workers as cores: more threads of one's linear algebra would wait for the other's.
TESTS = $(BIN)/python -m pytest -n 2 --dist worksteal
test test-gate test-smoke test-slow test-versions test-screen test-cluster: export OPENBLAS_NUM_THREADS = 1

test: $(VENV)/.tested
	$(TESTS) -m "not (gate or slow or cluster or aot or gpu)"

# What is too dear for that, each mechanism once: whole studies on real workers, kills, a power cut, a failing disk.
test-gate: $(VENV)/.tested
	sh .ci/disk_packages.sh
	$(TESTS) -m "gate and not (cluster or aot or gpu)"

# What later runs of a set are compared with (harness/yardstick.py): its costs now, on a quiet machine. `make costs SET=gate`.
SET ?= test
costs:
	PYTEST_ADDOPTS="--store-costs=tests/costs/$(SET).json" $(MAKE) $(if $(filter test,$(SET)),test,test-$(SET))

# For another Python and the JAX that it gets: the probe, the catalogue against the parser, one study, compiled programs.
SMOKE = tests/settings/test_probe.py tests/settings/test_builds.py tests/settings/test_check.py tests/cli/test_run.py \
    tests/compiler/test_flags_applied.py
test-smoke: $(VENV)/.tested
	$(TESTS) $(SMOKE) -m "not (slow or cluster or aot or gpu)"

# Real daemons on loopback: SLURM with three virtual nodes, PostgreSQL, Dask. Root on Debian installs what is missing.
test-cluster: $(VENV)/.tested
	sh .ci/cluster_packages.sh
	$(BIN)/python -m pytest tests/cluster -m "cluster$(if $(SAMPLE), and gate)" --timeout 400

# Wheels that compile for GPUs on a machine without one (about 2.9 GB), and the tests that need them.
test-screen: $(VENV)/.screen
	$(TESTS) -m "aot$(if $(SAMPLE), and gate)" --timeout 900

test-slow: $(VENV)/.tested
	sh .ci/disk_packages.sh
	$(TESTS) -m "slow and not (cluster or aot or gpu)" --timeout 900

# The rooms that touch the interpreter, JAX, its libraries or processes; what is left out is arithmetic with seeds of its own.
VERSIONS = tests/child tests/cli/test_app.py tests/cli/test_run.py tests/cluster tests/compiler \
    tests/machine tests/model tests/results tests/rundir tests/settings tests/study/test_preview.py \
    tests/workers tests/workloads
test-versions: $(VENV)/.tested
	$(TESTS) $(VERSIONS) -m "not (slow or cluster or aot or gpu)"

# Everything, at most an hour: before an issue is called resolved. Goes on with the sets that it did not reach.
test-all:
	python3 .ci/test_all.py $(SETS)

truth: $(VENV)/.installed
	$(BIN)/python -m benchmarks.truth

lint: $(VENV)/.linted
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/draw_architecture.py --check
	$(BIN)/python docs/write_study_file.py --check
	$(BIN)/python docs/write_figures.py --check
	$(BIN)/python -m harness.weight

# The pages, with the reference of commands and Python; warnings are errors.
site: $(VENV)/.sited
	$(BIN)/python -m mkdocs build --strict

env: $(VENV)/.installed

# All that tests and checks need, without running any; `.tested` alone for an environment that only runs tests.
installed: $(VENV)/.linted $(VENV)/.sited

# For a machine without a network (docs/install.md). `make wheelhouse PLATFORM=manylinux_2_28_x86_64 PYTHON=3.12` gathers what
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

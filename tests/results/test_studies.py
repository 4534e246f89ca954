"""The study files of the repository: what they name is there, and their workloads can be built."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.model.spec import load_study
from autotune.settings.catalog import find_recipe, load_catalog
from harness.simulated_machine import FILE
from tests.console import autotune
from tests.runs import is_whole

STUDIES = sorted((Path(__file__).parents[2] / "studies").glob("*.toml"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda p: p.stem)
def test_every_study_of_the_repository_is_legal_and_what_it_names_exists(path: Path) -> None:
    spec = load_study(path)
    assert spec.name == path.stem
    assert path.read_text().startswith("# For "), "each study says whom it is for"
    assert set(spec.search.groups) <= {s.group for s in load_catalog().values()}
    for name in spec.search.recipes:
        find_recipe(name)


@pytest.mark.parametrize("path", STUDIES, ids=lambda p: p.stem)
def test_every_study_of_the_repository_is_planned_and_runs_on_a_simulated_machine(path: Path, tmp_path: Path) -> None:
    here, bin_of_jax = tmp_path / "studies", str(Path(sys.executable).parent)
    shutil.copytree(path.parent, here, ignore=shutil.ignore_patterns("recorded", "*.ipynb"))
    (here / FILE).touch()
    with (here / path.name).open("a") as file:
        file.write("\n[screen]\nenabled = false\n")  # where wheels that compile for GPUs are installed
    planned = autotune("space", path.name, "--json", cwd=here, PATH=bin_of_jax)
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["size"] > 1
    done = autotune("run", path.name, "--trials", "2", cwd=here, PATH=bin_of_jax)
    assert done.returncode == 0, done.stderr
    is_whole(here / "runs" / path.stem, 2)


def test_the_study_of_nccl_changes_nothing_else() -> None:
    spec = load_study(STUDIES[0].parent / "nccl-only.toml")
    assert all(name.startswith("NCCL_") for name in spec.search.settings)
    assert {*spec.search.groups, *spec.search.recipes, *spec.search.options} == set()


BUILD_EACH = """
import json, sys, jax
jax.config.update("jax_num_cpu_devices", 64)
from workloads.loading import load
for study, entry, options, devices in json.loads(sys.argv[1]):
    print(study, flush=True)
    load(entry, options, jax.devices()[:devices])
"""


@pytest.mark.gate
def test_the_workload_of_every_study_can_be_built() -> None:
    asked = [(spec.name, spec.workload, spec.device.count or 1) for spec in map(load_study, STUDIES)]
    entries = [(name, w.entry, dict(w.options), count) for name, w, count in asked if w.entry is not None]
    done = subprocess.run(
        [sys.executable, "-c", BUILD_EACH, json.dumps(entries)],
        check=False,
        timeout=170,
        text=True,
        capture_output=True,
        env={"JAX_PLATFORMS": "cpu", "PATH": "", "PYTHONPATH": str(STUDIES[0].parents[1])},
    )
    assert done.returncode == 0, f"{done.stdout.split()[-1:]}: {done.stderr}"

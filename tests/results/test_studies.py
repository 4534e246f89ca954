"""The study files of the repository: what they name is there, and their workloads can be built."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.model.spec import load_study
from autotune.settings.catalog import find_recipe, load_catalog

STUDIES = sorted((Path(__file__).parents[2] / "studies").glob("*.toml"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda p: p.stem)
def test_every_study_of_the_repository_is_legal_and_what_it_names_exists(path: Path) -> None:
    spec = load_study(path)
    assert spec.name == path.stem
    assert path.read_text().startswith("# For "), "each study says whom it is for"
    assert set(spec.search.groups) <= {s.group for s in load_catalog().values()}
    for name in spec.search.recipes:
        find_recipe(name)


def test_the_study_of_nccl_changes_nothing_else() -> None:
    spec = load_study(STUDIES[0].parent / "nccl-only.toml")
    assert all(name.startswith("NCCL_") for name in spec.search.settings)
    assert {*spec.search.groups, *spec.search.recipes, *spec.search.options} == set()


@pytest.mark.slow
@pytest.mark.parametrize("path", STUDIES, ids=lambda p: p.stem)
def test_workload_of_a_study_can_be_built(path: Path) -> None:
    spec = load_study(path)
    if spec.workload.entry is None:
        pytest.skip("runs a program of its own")
    code = (
        "import jax\n"
        f"jax.config.update('jax_num_cpu_devices', {spec.device.count or 1})\n"
        "from workloads.loading import load\n"
        f"load({spec.workload.entry!r}, {spec.workload.options!r})\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=170, env={"JAX_PLATFORMS": "cpu", "PATH": ""})

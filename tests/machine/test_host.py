"""What this machine is: processors that other work may have, versions, and what is recorded."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from autotune.child.packages import installed_versions
from autotune.machine import host
from autotune.machine.host import describe_machine, measured_versions, spare_processors, would_run_on
from tests.tables import toml_beside

SpareOf = Callable[[int, Iterable[int], Path], set[int]]


def machine(root: Path, *, cores: int, threads: int = 1) -> Path:
    """What the kernel of such a machine shows; the second thread of core N is processor N + cores."""
    for cpu in range(cores * threads):
        folder = root / f"cpu{cpu}/topology"
        folder.mkdir(parents=True)
        siblings = ",".join(str(cpu % cores + cores * t) for t in range(threads))
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    return root


@pytest.fixture
def spare_of(monkeypatch: pytest.MonkeyPatch) -> SpareOf:
    """Finds the spare processors for some GPUs among usable ones, as the kernel's folder shows them."""

    def spare(gpus: int, usable: Iterable[int], folder: Path) -> set[int]:
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(usable))
        monkeypatch.setattr(host, "PROCESSORS", folder)
        return spare_processors(gpus)

    return spare


@pytest.mark.parametrize(("cores", "gpus", "spare"), toml_beside(__file__)["spare_cores"])
def test_half_of_the_cores_are_left_and_one_for_each_device(
    spare_of: SpareOf, tmp_path: Path, cores: int, gpus: int, spare: int
) -> None:
    found = spare_of(gpus, range(cores), machine(tmp_path, cores=cores))
    assert found == set(range(cores - spare, cores))


def test_only_whole_cores_that_may_be_used_are_given(spare_of: SpareOf, tmp_path: Path) -> None:
    """A container, or a SLURM job, has some of the processors, and of some cores one thread."""
    root = machine(tmp_path, cores=16, threads=2)
    assert spare_of(1, range(32), root) == {*range(8, 16), *range(24, 32)}
    assert spare_of(1, [3, 5, 7, 9, 11, 19], root) == {9, 11}
    assert spare_of(1, [3], root) == set()
    assert spare_of(1, range(6), tmp_path / "silent") == {3, 4, 5}


def test_of_the_environment_only_what_is_allow_listed_is_recorded_and_no_person(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "caller_environment", lambda: toml_beside(__file__)["recorded"])
    facts = describe_machine()
    assert facts["variables"] == {"NCCL_SOCKET_IFNAME": "eth0", "XLA_FLAGS": "--xla_gpu_a=1"}
    assert "secret" not in json.dumps(facts)
    assert {"jax", "jaxlib", "optuna"} <= set(facts["versions"])
    assert facts["cpus_usable"] >= 1
    assert not {"user", "home", "environment"} & set(facts)
    assert installed_versions(["no-such-distribution"]) == {}
    assert "jaxlib" in measured_versions()


@pytest.mark.aot
def test_real_libraries_of_the_wheels_tell_their_versions() -> None:
    """Those that JAX's plugin would load here, with no GPU: what they say is what was installed."""
    wheels = {"cublas": "nvidia-cublas-cu12", "cudnn": "nvidia-cudnn-cu12"}
    installed = installed_versions(wheels.values())
    if len(installed) < len(wheels) or not installed_versions(["jax-cuda12-plugin"]):
        pytest.skip("the wheels of CUDA 12 must be installed")
    told = would_run_on(dict(os.environ)).versions
    for name, wheel in wheels.items():
        assert installed[wheel].startswith(f"{told[name]}.")

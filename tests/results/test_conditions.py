"""Conditions of a proof: told by the process that ran the steps, compared with what a process here would find."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.machine.host import RanOn, would_run_on
from autotune.model.measurement import GpuState
from autotune.model.records import AaRecord
from autotune.model.spec import parse_study
from autotune.results import conditions
from autotune.results.conditions import Conditions, conditions_of, differences, this_machine
from autotune.rundir.store import Store
from harness.fake_cuda import make_cuda
from harness.fake_nvml import FakeNvml, missing
from tests.runs import there
from tests.tables import toml_beside

CASES = toml_beside(__file__)

needs_nvml = pytest.mark.skipif(bool(missing()), reason=missing())

MEASURED = {"jaxlib": "0.11.1", "driver": "580.65.06", "cublas": "12.9.1", "cudnn": "9.10.2", "nccl": "2.27.3"}
STATE = GpuState(**CASES["gpu_state"])


@pytest.fixture
def aa_run() -> AaRecord:
    """An A/A run whose reference ran on one H200."""
    found = there(Store.open(Path(__file__).parents[1] / "rundir" / "small").last(AaRecord))
    told = {"versions": MEASURED, "gpus": (STATE,), "device_kind": "NVIDIA H200"}
    return found.model_copy(update={"reference": found.reference.model_copy(update=told)})


def proven(aa_run: AaRecord, *, facts: dict[str, Any] | None = None, **device: Any) -> Conditions:
    study = {"name": "g", "workload": {"entry": "llama"}, "device": {"platform": "cuda", **device}}
    return conditions_of(parse_study(study), aa_run.reference, facts or {"versions": {}})


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A node of eight GPUs; what its processes would tell may be changed."""
    told: dict[str, Any] = {"versions": dict(MEASURED), "gpus": [STATE] * 8}
    facts = {"versions": {"jaxlib": "0.11.1"}, "cpu": "a CPU", "cpus_usable": 3, "driver": "580.65.06"}

    def ask(environment: object, count: int | None) -> RanOn:
        return RanOn(versions=told["versions"], gpus=tuple(told["gpus"][:count]))

    monkeypatch.setattr(conditions, "describe_machine", lambda: facts)
    monkeypatch.setattr(conditions, "would_run_on", ask)
    monkeypatch.setattr(conditions, "visible_gpus", lambda environment: [])
    return told


def found(mine: Conditions) -> dict[str, tuple[str, str]]:
    return {d.field: (d.proven, d.here) for d in differences(mine, this_machine(mine))}


def test_one_gpu_of_a_node_of_eight_holds_where_it_was_proven(aa_run: AaRecord, here: dict[str, Any]) -> None:
    mine = proven(aa_run, count=1)
    assert (mine.device_count, mine.devices_asked) == (1, 1)
    assert found(mine) == {}
    assert found(proven(aa_run)) == {"device_count": ("1", "8")}, "a study that takes all there are has others here"
    here["gpus"].clear()
    assert found(mine)["device_count"] == ("1", "0")


def test_a_second_gpu_of_another_kind_is_no_matter_of_a_study_on_one(aa_run: AaRecord, here: dict[str, Any]) -> None:
    here["gpus"][1] = STATE.model_copy(update={"name": "NVIDIA T1000", "vbios": "90.17"})
    assert found(proven(aa_run, count=1)) == {}
    assert found(proven(aa_run, count=1).model_copy(update={"devices_asked": 2, "device_count": 2})) == {
        "device_kind": ("NVIDIA H200", "NVIDIA H200 and NVIDIA T1000"),
        "vbios": ("96.00", "90.17 and 96.00"),
    }


@pytest.mark.parametrize(("name", "value", "words"), CASES["changed_libraries"])
def test_a_changed_library_is_named(
    aa_run: AaRecord, here: dict[str, Any], name: str, value: str, words: list[str]
) -> None:
    here["versions"] = {n: v for n, v in (MEASURED | {name: value}).items() if v}
    assert found(proven(aa_run, count=1)) == {name: tuple(words)}


@pytest.mark.parametrize(("change", "field", "words"), CASES["changed_gpus"])
def test_changed_firmware_and_settings_of_a_gpu_are_named(
    aa_run: AaRecord, here: dict[str, Any], change: dict[str, Any], field: str, words: str
) -> None:
    here["gpus"][0] = STATE.model_copy(update={n: None if v == "" else v for n, v in change.items()})
    assert {n: there for n, (_, there) in found(proven(aa_run, count=1)).items()} == {field: words}


def test_the_measured_process_is_believed_before_the_driver(aa_run: AaRecord) -> None:
    """What the driver's own Python has is that of another machine."""
    facts = {"versions": {"jaxlib": "0.9.0", "jax-cuda12-plugin": "0.9.0"}, "driver": "470.1"}
    mine = proven(aa_run, facts=facts, count=1)
    assert (mine.jaxlib, mine.driver) == ("0.11.1", "580.65.06")


@needs_nvml
def test_a_process_of_its_own_is_asked_and_loads_as_jax_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(tmp_path / "nvml", gpus=3)
    make_cuda(nvml.folder, cudnn="9.28.0")
    plugin = tmp_path / "site" / "jax_cuda12_plugin-0.10.2.dist-info"
    plugin.mkdir(parents=True)
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: jax-cuda12-plugin\nVersion: 0.10.2\n")
    wheel = tmp_path / "site" / "nvidia" / "cudnn"
    make_cuda(wheel / "lib", cudnn="9.30.1")  # JAX looks into NVIDIA's wheels first
    for folder in (wheel, wheel.parent):
        (folder / "__init__.py").touch()
    paths = os.pathsep.join([str(tmp_path / "site"), *sys.path])
    told = would_run_on({**os.environ, **nvml.environment, "PYTHONPATH": paths}, 2)
    assert told.versions == {"driver": "580.65.06", "cublas": "12.9.1", "cudnn": "9.30.1", "nccl": "2.27.3"}
    assert [g.index for g in told.gpus] == [0, 1]
    assert would_run_on({"LD_LIBRARY_PATH": "/nowhere", "PYTHONHOME": "/nowhere"}) == RanOn(versions={}, gpus=())

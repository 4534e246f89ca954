"""Every kind of worker keeps what its process said of libraries and GPUs, with libraries in the places of NVIDIA's."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.fake_cuda import make_cuda
from harness.fake_nvml import FakeNvml, missing, uuid_of
from tests.workers.conftest import Start, command, study

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture
def three_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Three GPUs, in the environment of every worker."""
    nvml = FakeNvml(tmp_path / "nvml", gpus=3)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(make_cuda(nvml.folder, cublas="12.8.4")))
    return nvml


@pytest.mark.skipif(bool(find_spec("nvidia")), reason="the CUDA wheels bring a cuBLAS of their own, and JAX loads that")
@pytest.mark.parametrize("kind", ["entry", pytest.param("hook", marks=pytest.mark.slow)])
def test_the_measured_process_tells_what_it_ran_on(start: Start, three_gpus: FakeNvml, kind: str) -> None:
    workload = {"entry": "pretender:build"} if kind == "entry" else command(program="pretender.py", hook=True)
    report = start(study(workload, device={"count": 1})).report
    assert report.gpus is not None
    assert [g.uuid for g in report.gpus] == [uuid_of(0)]
    assert report.gpus[0].power_limit_w == 700.0
    assert (report.versions["cublas"], report.versions["driver"]) == ("12.8.4", "580.65.06")
    assert "cudnn" not in report.versions, "nobody loaded it"
    assert "jax" in report.versions


@pytest.mark.gate
def test_what_all_processes_of_a_trial_ran_on_is_kept(start: Start, three_gpus: FakeNvml) -> None:
    device = {"count": 2, "process_count": 2}
    report = start(study({"entry": "pretender:build"}, device=device)).report
    assert report.gpus is not None
    assert [g.uuid for g in report.gpus] == [uuid_of(0), uuid_of(1)]


def test_a_process_on_the_cpu_says_nothing_of_gpus_beside_it(start: Start, three_gpus: FakeNvml) -> None:
    report = start(study({"entry": "faulty:build"}, device={"count": 1})).report
    assert report.gpus is None
    assert not {"driver", "cublas"} & set(report.versions)

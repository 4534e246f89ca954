"""Telemetry with a library in NVML's place that nvidia-ml-py itself loads; see `harness.fake_nvml`."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from autotune.child.gpus import load_nvml
from autotune.machine import telemetry
from autotune.machine.telemetry import ArmWatch, GpuSample, GpuWatch, Telemetry, open_watch, put_together
from harness.fake_nvml import ENERGY, HW_THERMAL, POWER_BRAKE, SW_POWER_CAP, FakeNvml, missing, uuid_of
from tests.runs import there
from tests.tables import toml_beside

pynvml = load_nvml()
pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture
def two(tmp_path: Path) -> Iterator[FakeNvml]:
    """Two GPUs, loaded in this process."""
    with (fake := FakeNvml(tmp_path / "nvml", gpus=2)).loaded():
        yield fake


@pytest.fixture(autouse=True)
def looks_are_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "SAMPLE_EVERY_S", 0.001)


@pytest.fixture
def child() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.communicate(b"\n")


def nothing(arm: str) -> None: ...


def run_blocks(
    watch: GpuWatch, during: Callable[[str], None] = nothing, *, before: Callable[[str], None] = nothing, looks: int = 0
) -> Telemetry:
    """One block of each arm with exactly so many samples, at its end."""

    @contextlib.contextmanager
    def sampled(sample: Callable[[], None], *more: float, **options: float) -> Iterator[None]:
        yield
        for _ in range(looks):
            sample()

    for arm in ("reference", "candidate"):
        before(arm)
        with mock.patch.object(telemetry, "sampling", sampled), watch.block(arm):
            during(arm)
    return watch.take()


def test_a_block_is_looked_at_while_it_runs(two: FakeNvml) -> None:
    name, drawn = "nvmlDeviceGetPowerUsage", {"reference": 120_000, "candidate": 653_000}
    two.forget(1, name)
    found = run_blocks(GpuWatch(pynvml, None), before=lambda arm: two.set(0, name, drawn[arm]), looks=3)
    assert found.during is not None
    assert found.during.candidate.looks >= 3
    assert (found.during.candidate.clock_mhz, found.during.candidate.temperature_c) == (1980, 41)
    assert found.during.candidate.power_w is None, "the sum over two GPUs of which one does not tell"
    assert found.warnings == ()


def test_the_thread_that_looks_has_the_lowest_priority_and_the_driver_keeps_its_own(two: FakeNvml) -> None:
    seen: list[int] = []

    def note() -> None:
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        done.set()

    before, done = os.getpriority(os.PRIO_PROCESS, 0), threading.Event()
    with telemetry.sampling(note):
        assert done.wait(30)
    assert seen[0] == telemetry.LOWEST_PRIORITY
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_a_block_that_fails_ends_the_thread_and_counts_for_nothing(two: FakeNvml) -> None:
    watch, before = GpuWatch(pynvml, None), threading.active_count()
    with pytest.raises(RuntimeError, match="died"), watch.block("candidate"):
        raise RuntimeError("the worker died")
    assert threading.active_count() == before
    assert watch.take() == Telemetry(None, ())


def test_a_driver_that_never_answers_does_not_stop_the_study(two: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "PATIENCE_S", 0.05)
    release, asked = threading.Event(), threading.Event()

    def hang() -> list[GpuSample]:
        asked.set()
        release.wait(30)
        return []

    watch = GpuWatch(pynvml, None)
    watch._samples = hang  # type: ignore[method-assign]
    with watch.block("candidate"):
        assert asked.wait(30)
    release.set()
    (warning,) = watch.take().warnings
    assert "not watched" in warning
    with watch.block("candidate"):  # and nothing asks again
        pass
    assert watch.take() == Telemetry(None, ())


@pytest.mark.parametrize(
    ("visible", "indices"),
    [(None, [0, 1]), ("1", [1]), (uuid_of(1)[:9], [1]), ("", []), ("MIG-7e57", []), ("GPU-", [])],
)
def test_only_visible_gpus_of_the_study_are_looked_at(two: FakeNvml, visible: str | None, indices: list[int]) -> None:
    assert [sample.index for sample in GpuWatch(pynvml, visible)._samples()] == indices
    assert [sample.index for sample in GpuWatch(pynvml, visible, 1)._samples()] == indices[:1]


def test_the_gpus_that_a_process_names_are_looked_at_and_metered(tmp_path: Path) -> None:
    """CUDA's first GPU is not always NVML's."""
    fake = FakeNvml(tmp_path / "three", gpus=3)
    fake.set(2, ENERGY, 9_000_000)
    with fake.loaded():
        watch = GpuWatch(pynvml, None, 1)
        assert watch.energy_j() == 5000.0
        for stranger in ([], ["GPU-elsewhere"], [uuid_of(1), "GPU-elsewhere"], [uuid_of(1), uuid_of(2)]):
            watch.follow(stranger)
            assert watch.energy_j() == 5000.0
        watch.follow([uuid_of(2)])
        assert [sample.index for sample in watch._samples()] == [2]
        assert watch.energy_j() == 9000.0


def test_another_process_on_the_gpu_is_told(two: FakeNvml, child: int) -> None:
    two.set(0, "processes", f"{child},{os.getppid()}")
    watch = GpuWatch(pynvml, "0")
    watch.look()
    assert watch.take().warnings == ("GPU 0 was shared with 1 other process",)
    two.set(0, "processes", "1,2")  # numbers of another namespace are no strangers
    watch.look()
    assert watch.take().warnings == ()


def arm(seconds: float = 10.0, **held: float) -> ArmWatch:
    """An arm of one block in which GPU 0 was held back for some seconds, and by nothing else."""
    names = {"sw_power_cap": 74, "sw_thermal": 269, "hw_thermal": 270, "power_brake": 271}
    watch = ArmWatch()
    after = {name: round(held.get(name, 0.0) * 1e9) for name in names}
    watch.add([], {0: dict.fromkeys(names, 0)}, {0: after}, seconds=seconds)
    return watch


@pytest.mark.parametrize(("field", "words"), [(HW_THERMAL, "heat (hardware)"), (POWER_BRAKE, "a power brake")])
def test_what_holds_one_arm_back_between_two_looks_is_counted_and_named(
    two: FakeNvml, field: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter((0.0, 10.0, 20.0, 30.0))
    monkeypatch.setattr(telemetry, "time", SimpleNamespace(monotonic=lambda: next(clock)))

    found = run_blocks(GpuWatch(pynvml, None), lambda arm: two.set(1, field, 4_000_000_000))
    alone, also = found.warnings
    assert all(f" by {words}" in warning for warning in found.warnings)
    assert alone.startswith("the reference")
    assert re.findall(r"[\d.]+ %", alone) == ["40.0 %", "0.0 %"]
    assert re.match(r"a GPU .* 4\.0 of 20\.0 s", also)


@pytest.mark.parametrize(("reference", "candidate", "named"), toml_beside(__file__)["held_back"])
def test_one_arm_alone_is_told_from_both(reference: dict[str, float], candidate: dict[str, float], named: str) -> None:
    found = put_together({"reference": arm(**reference), "candidate": arm(**candidate)}, {}, ())
    assert [w[: len(named)] for w in found.warnings if " alone " in w] == ([named] if named else [])


def test_a_library_without_functions_tells_what_it_can(tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path / "old", without=["nvmlDeviceGetFieldValues", "nvmlDeviceGetUtilizationRates"])
    with fake.loaded():
        watch = GpuWatch(pynvml, None)
        found = run_blocks(watch, looks=2)
    assert there(found.during).candidate.held_back == {}
    assert not found.warnings


def test_a_counter_that_began_anew_is_not_known(two: FakeNvml) -> None:
    two.set(0, SW_POWER_CAP, 7_000_000_000)
    counts = {"reference": 7_000_000_000, "candidate": 5}  # the driver was loaded again
    found = run_blocks(GpuWatch(pynvml, "0"), lambda arm: two.set(0, SW_POWER_CAP, counts[arm]))
    assert found.during is not None
    assert "sw_power_cap" not in found.during.candidate.held_back
    assert "hw_thermal" in found.during.reference.held_back
    assert found.warnings == ()


def test_a_lost_gpu_has_no_counters_and_the_other_is_still_told_of(two: FakeNvml) -> None:
    found = run_blocks(GpuWatch(pynvml, None), lambda arm: two.lose(1) if arm == "candidate" else None, looks=1)
    assert (there(found.during).candidate.held_back, found.warnings) == ({}, ())
    assert there(found.during).candidate.clock_mhz == 1980
    assert list(GpuWatch(pynvml, None)._devices) == [0]


def test_no_driver_and_no_library_are_no_trouble(tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path / "nvml")
    fake.fail(None, "nvmlDeviceGetCount", 9)
    with fake.loaded():
        watches = [GpuWatch(pynvml, None), GpuWatch(None, None)]
    for watch in [*watches, open_watch({})]:
        assert run_blocks(watch) == Telemetry(None, ())
        watch.look()

"""Telemetry with a stand-in for NVML that answers as the real one does, refusals included."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.machine.telemetry import FILE, GpuWatch, open_watch, warnings_of


class NvmlError(Exception):
    pass


class Nvml:
    """Two GPUs; the second does not tell its power, as some boards do."""

    NVMLError = NvmlError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(
        self, *, driver: bool = True, reasons: int = 0, clocks: tuple[int, ...] = (1980,), pids: tuple[int, ...] = ()
    ) -> None:
        self._driver, self._reasons, self._clocks, self._pids = driver, reasons, list(clocks), pids

    def nvmlInit(self) -> None:
        if not self._driver:
            raise NvmlError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}abc"

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "a GPU"

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        return self._clocks.pop(0) if kind == self.NVML_CLOCK_SM and len(self._clocks) > 1 else self._clocks[0]

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        if handle == 1:
            raise NvmlError("Not Supported")
        return 653_000

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:
        return 700_000

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return 61

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(used=17)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return self._reasons

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [SimpleNamespace(pid=p) for p in self._pids]


@pytest.fixture
def child() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.communicate(b"\n")


def test_samples_are_kept_beside_the_measurement(tmp_path: Path) -> None:
    watch = GpuWatch(Nvml(), None)
    watch.look(tmp_path)
    first, second = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    assert (first["power_w"], first["temperature_c"], first["used_bytes"]) == (653.0, 61, 17)
    assert second["power_w"] is None
    assert watch.warnings() == ()


@pytest.mark.parametrize(("visible", "indices"), [(None, [0, 1]), ("1", [1]), ("GPU-0abc", [0]), ("", [])])
def test_only_visible_gpus_are_looked_at(tmp_path: Path, visible: str | None, indices: list[int]) -> None:
    GpuWatch(Nvml(), visible).look(tmp_path)
    lines = (tmp_path / FILE).read_text().splitlines() if indices else []
    assert [json.loads(line)["index"] for line in lines] == indices


def test_looks_are_not_more_often_than_once_a_second(tmp_path: Path) -> None:
    watch = GpuWatch(Nvml(), "0")
    for _ in range(5):
        watch.look(tmp_path)
    assert len((tmp_path / FILE).read_text().splitlines()) == 1


def test_throttling_is_told_in_words_once(tmp_path: Path) -> None:
    watch = GpuWatch(Nvml(reasons=0x04 | 0x40 | 0x01), "0")
    watch.look(tmp_path)
    assert watch.warnings() == (
        "GPU 0 was held back by its power limit in 1 of 1 looks",
        "GPU 0 was held back by heat (hardware) in 1 of 1 looks",
    )
    assert watch.warnings() == ()


def test_a_changing_clock_is_told(tmp_path: Path) -> None:
    watch = GpuWatch(Nvml(clocks=(1980, 1410)), "0")
    watch.look(tmp_path)
    watch._next_s = 0.0
    watch.look(tmp_path)
    assert watch.warnings() == ("GPU 0 changed its clock between 1410 and 1980 MHz meanwhile",)


def test_another_process_on_the_gpu_is_told(tmp_path: Path, child: int) -> None:
    watch = GpuWatch(Nvml(pids=(child, os.getppid())), "0")
    watch.look(tmp_path)
    assert watch.warnings() == ("GPU 0 was shared with 1 other process",)


def test_process_numbers_of_another_namespace_are_not_taken_for_strangers(tmp_path: Path) -> None:
    watch = GpuWatch(Nvml(pids=(1, 2)), "0")
    watch.look(tmp_path)
    assert watch.warnings() == ()


def test_no_driver_and_no_library_are_no_trouble(tmp_path: Path) -> None:
    for watch in (GpuWatch(Nvml(driver=False), None), GpuWatch(None, None), open_watch({})):
        watch.look(tmp_path)
        assert watch.warnings() == ()
    assert warnings_of([]) == ()

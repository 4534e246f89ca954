"""Fake GPUs: a library in NVML's place, which nvidia-ml-py itself loads, scripted.

What is asked goes the whole way of a real question: nvidia-ml-py, ctypes, a shared library compiled
from ``fake_nvml.c``. The answers lie in a text file that every process reads anew, so a test, a
simulated worker and the driver see the same GPUs: counters rise by themselves at the rates that
were set. Figures here are assumed ones.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import shutil
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

LIBRARY = "libnvidia-ml.so.1"
STATE = "gpus.txt"
SOURCE = Path(__file__).with_name("fake_nvml.c")

# Codes of nvml.h.
NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST, FUNCTION_NOT_FOUND = 3, 4, 15, 13
SM, MEMORY = 1, 2
"""Kinds of clock."""

ENERGY = "nvmlDeviceGetTotalEnergyConsumption"
REASONS = "nvmlDeviceGetCurrentClocksEventReasons"
POWER = "nvmlDeviceGetPowerUsage"
CLOCK = f"nvmlDeviceGetClockInfo.{SM}"
TEMPERATURE = "nvmlDeviceGetTemperature.0"
SW_POWER_CAP, SW_THERMAL, HW_THERMAL, POWER_BRAKE = (
    "field.74",
    "field.269",
    "field.270",
    "field.271",
)
"""Counters of nanoseconds for which something held the clocks back."""

COUNTER_EVERY_S = 0.1
"""How often the energy counter moves, in seconds."""

MACHINE = {"nvmlSystemGetDriverVersion": "580.65.06", "nvmlSystemGetCudaDriverVersion_v2": 13000}

H200: dict[str, int | str] = {
    "nvmlDeviceGetName": "NVIDIA H200",
    "nvmlDeviceGetVbiosVersion": "96.00.BC.00.01",
    "nvmlDeviceGetGspFirmwareVersion": "580.65.06",
    POWER: 120_000,
    "nvmlDeviceGetEnforcedPowerLimit": 700_000,
    "nvmlDeviceGetPowerManagementLimit": 700_000,
    "nvmlDeviceGetPersistenceMode": 1,
    "nvmlDeviceGetMemoryBusWidth": 6144,
    "nvmlDeviceGetNumGpuCores": 16896,
    CLOCK: 1980,
    f"nvmlDeviceGetClockInfo.{MEMORY}": 3201,
    f"nvmlDeviceGetMaxClockInfo.{SM}": 1980,
    f"nvmlDeviceGetMaxClockInfo.{MEMORY}": 3201,
    f"nvmlDeviceGetApplicationsClock.{SM}": 1980,
    f"nvmlDeviceGetApplicationsClock.{MEMORY}": 3201,
    TEMPERATURE: 41,
    REASONS: 0,
    ENERGY: 5_000_000,
    "nvmlDeviceGetMigMode.0": 0,
    "nvmlDeviceGetMigMode.1": 0,
    "nvmlDeviceGetEccMode.0": 1,
    "nvmlDeviceGetEccMode.1": 1,
    "nvmlDeviceGetCudaComputeCapability.0": 9,
    "nvmlDeviceGetCudaComputeCapability.1": 0,
    "nvmlDeviceGetUtilizationRates.0": 0,
    "nvmlDeviceGetUtilizationRates.1": 0,
    "memory.total": 150_754_820_096,
    "memory.reserved": 662_700_032,
    "memory.free": 150_000_000_000,
    "memory.used": 92_119_040,
    "processes": "",
    SW_POWER_CAP: 0,
    SW_THERMAL: 0,
    HW_THERMAL: 0,
    POWER_BRAKE: 0,
}
"""What a GPU answers that nobody has said more of."""


def missing() -> str:
    """What this machine lacks to compile the library, and to load it; empty if nothing."""
    if importlib.util.find_spec("pynvml") is None:
        return "nvidia-ml-py must be installed"
    return "" if shutil.which("cc") else "a C compiler (cc) must be installed"


class FakeNvml:
    """Fake GPUs of kind H200 in a folder, which keeps their state when opened again.

    Args:
        folder: Where the library and its answers lie; made if it is missing.
        gpus: How many there are.
        without: Functions that this driver's library does not have, by the names of their symbols.
    """

    def __init__(self, folder: Path, *, gpus: int = 1, without: Collection[str] = ()) -> None:
        self.folder = folder
        self._state = folder / STATE
        if not (folder / LIBRARY).exists():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / LIBRARY).write_bytes(_compiled(tuple(sorted(without))))
        if not self._state.exists():
            machine = {"nvmlDeviceGetCount": gpus, **MACHINE}
            lines = {("-", key): f"{value} 0 0 0" for key, value in machine.items()}
            for gpu in range(gpus):
                own: dict[str, int | str] = {**H200, "nvmlDeviceGetUUID": uuid_of(gpu)}
                lines |= {(str(gpu), key): f"{_word(value)} 0 0 0" for key, value in own.items()}
            self._write(lines)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to find this library."""
        return {"LD_LIBRARY_PATH": str(self.folder)}

    def set(
        self,
        gpu: int | None,
        key: str,
        value: int | str,
        *,
        rate: float = 0.0,
        every_s: float = 0.0,
    ) -> None:
        """Sets one answer.

        Args:
            gpu: Index; None for the machine.
            key: Name of NVML's function, numbers that it is asked with after dots; see
                ``fake_nvml.c``.
            value: From now on.
            rate: By how much it rises in a second.
            every_s: Seconds between two jumps of a rising counter; 0 if it rises smoothly.
        """
        self.change({(gpu, key): (value, rate)}, every_s=every_s)

    def change(
        self,
        answers: dict[tuple[int | None, str], tuple[int | str, float]],
        *,
        every_s: float = 0.0,
    ) -> None:
        """Sets several answers at once, each to a value and its rate, for all readers."""
        now = time.monotonic()
        new = {
            (_owner(g), k): f"{_word(v)} {rate!r} {every_s!r} {now!r}"
            for (g, k), (v, rate) in answers.items()
        }
        self._write(self._read() | new)

    def draw(self, gpu: int, watts: float) -> None:
        """Lets a GPU draw some power from now on: its figure and its energy counter say so."""
        energy = (self.count(gpu, ENERGY), 1000 * watts)
        self.change(
            {(gpu, ENERGY): energy, (gpu, POWER): (round(1000 * watts), 0.0)},
            every_s=COUNTER_EVERY_S,
        )

    def count(self, gpu: int, key: str) -> int:
        """What a counter has come to now, jumps left out."""
        value, rate, _, since = self._read()[_owner(gpu), key].split()
        return int(value) + round(float(rate) * (time.monotonic() - float(since)))

    def fail(self, gpu: int | None, key: str, code: int) -> None:
        """Lets one question end in an error of NVML from now on; ``*`` is every question."""
        self.set(gpu, key, f"!{code}")

    def forget(self, gpu: int, *keys: str) -> None:
        """Takes answers away: the GPU does not support the questions."""
        self._write(
            {k: v for k, v in self._read().items() if k not in {(_owner(gpu), key) for key in keys}}
        )

    def lose(self, gpu: int) -> None:
        """The GPU falls off the bus."""
        self.fail(gpu, "*", GPU_IS_LOST)

    @contextlib.contextmanager
    def loaded(self) -> Iterator[None]:
        """Lets nvidia-ml-py load this library in this process, and forgets it afterwards."""
        pynvml: Any = importlib.import_module("pynvml")
        real = pynvml.CDLL

        def load(name: str, *args: object, **more: object) -> object:
            return real(str(self.folder / LIBRARY) if name == LIBRARY else name, *args, **more)

        unloaded: dict[str, Any] = {
            "nvmlLib": None,
            "_nvmlLib_refcount": 0,
            "_nvmlGetFunctionPointer_cache": {},
            "CDLL": load,
        }
        with mock.patch.multiple(pynvml, **unloaded):
            yield

    def _read(self) -> dict[tuple[str, str], str]:
        lines = (
            line.split(maxsplit=2) for line in self._state.read_text(encoding="ascii").splitlines()
        )
        return {(owner, key): rest for owner, key, rest in lines}

    def _write(self, lines: dict[tuple[str, str], str]) -> None:
        new = self._state.with_suffix(".new")
        new.write_text(
            "".join(f"{o} {k} {rest}\n" for (o, k), rest in lines.items()), encoding="ascii"
        )
        new.replace(self._state)


def uuid_of(gpu: int) -> str:
    """The UUID of a GPU of this library."""
    return f"GPU-{gpu:x}abcdef0-0000-4000-8000-00000000000{gpu:x}"


@functools.cache
def _compiled(without: tuple[str, ...]) -> bytes:
    """The library; a function under another name is one that is not there.

    It has no soname: once loaded, the dynamic linker would give it to whoever asks for NVML in this
    process.
    """
    absent = [f"-D{name}=absent_{name}" for name in without]
    with tempfile.TemporaryDirectory(prefix="autotune-nvml-") as folder:
        library = Path(folder) / LIBRARY
        command = [
            "cc",
            "-shared",
            "-fPIC",
            "-O1",
            *absent,
            "-o",
            str(library),
            str(SOURCE),
            "-ldl",
        ]
        subprocess.run(command, check=True, capture_output=True)
        return library.read_bytes()


def _owner(gpu: int | None) -> str:
    return "-" if gpu is None else str(gpu)


def _word(value: int | str) -> str:
    """A value without spaces, which are between the parts of a line; the library puts them back."""
    return str(value).replace(" ", "_") or "_"

"""The CUDA and cuDNN that a program is compiled against: those of the installed plugin, not one fixed version."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.machine import CUDA_PLUGINS, installed_versions

_GENERATIONS = {"jax-cuda13-plugin": ("13.0.0", "-cu13"), "jax-cuda12-plugin": ("12.8.0", "-cu12")}
"""Plugin to the CUDA that it is built for, and how NVIDIA's own wheels of that generation end."""

_NEWEST_DRIVER = "13.0.0"  # of a GPU that is not here: it can run whatever is compiled
_DNN = "9.10.0"  # of XLA's own descriptions


@dataclass(frozen=True, kw_only=True)
class Toolkit:
    """Versions as XLA's description of a GPU has them, ``major.minor.patch``.

    Attributes:
        runtime: CUDA runtime: of the installed wheel, else what the plugin is built for.
        toolkit: What the plugin is built for.
        dnn: cuDNN.
        driver: The newest CUDA that the driver can run.
        asked: Which of these were found; the others are assumed.
    """

    runtime: str
    toolkit: str
    dnn: str
    driver: str = _NEWEST_DRIVER
    asked: tuple[str, ...] = ()

    @property
    def fields(self) -> dict[str, str]:
        """Fields of ``GpuDeviceInfoProto``."""
        return {
            "driver_version": self.driver,
            "runtime_version": self.runtime,
            "compile_time_toolkit_version": self.toolkit,
        }

    @property
    def dnn_fields(self) -> dict[str, int]:
        """Fields of ``DnnVersionInfoProto``."""
        major, minor, patch = (int(n) for n in self.dnn.split("."))
        return {"major": major, "minor": minor, **({"patch": patch} if patch else {})}


def toolkit_of(versions: Mapping[str, str]) -> Toolkit:
    """The toolkit that belongs to some installed distributions; of several plugins the one that JAX takes.

    Args:
        versions: Of distributions by name, those that `toolkit_names` names among them.
    """
    plugin = next((p for p in CUDA_PLUGINS if p in versions), CUDA_PLUGINS[-1])
    built_for, suffix = _GENERATIONS[plugin]
    wheel = versions.get(f"nvidia-cuda-runtime{suffix}") or _same_major(versions, built_for)
    runtime = _numbers(wheel, 2)  # the runtime itself tells no more than two
    dnn = _numbers(versions.get(f"nvidia-cudnn{suffix}"), 3)
    found = {"plugin": plugin in versions, "runtime": runtime, "dnn": dnn}
    return Toolkit(
        runtime=runtime or built_for,
        toolkit=built_for,
        dnn=dnn or _DNN,
        asked=tuple(name for name, version in found.items() if version),
    )


def toolkit_names() -> tuple[str, ...]:
    """The distributions that decide: plugins, and NVIDIA's wheels of runtime and cuDNN."""
    suffixes = ("", *(suffix for _, suffix in _GENERATIONS.values()))
    wheels = (f"{wheel}{suffix}" for wheel in ("nvidia-cuda-runtime", "nvidia-cudnn") for suffix in suffixes)
    return (*CUDA_PLUGINS, *wheels)


def installed_toolkit() -> Toolkit:
    """The toolkit of what is installed here."""
    return toolkit_of(installed_versions(toolkit_names()))


def _same_major(versions: Mapping[str, str], built_for: str) -> str | None:
    """The runtime's wheel of CUDA 13 and later has no suffix in its name."""
    found = versions.get("nvidia-cuda-runtime", "")
    return found if found.split(".")[0] == built_for.split(".")[0] else None


def _numbers(version: str | None, count: int) -> str | None:
    """The first numbers of a version, filled up to three with zeros; None without a version."""
    numbers = re.findall(r"\d+", version or "")[:count]
    return ".".join([*numbers, "0", "0"][:3]) if numbers else None

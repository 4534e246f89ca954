"""NVIDIA GPUs that a process may use, with libraries, firmware and clocks.

The process that ran the steps reports them; ``python -m autotune.child.gpus '{"count": 1}'`` prints
the same as JSON without starting anything on a GPU. Standard library only; ``nvidia-ml-py`` where
it is installed.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from autotune.child.channel import Message
from autotune.child.packages import CUDA_PLUGINS, folder_of, installed_versions

VISIBLE = "CUDA_VISIBLE_DEVICES"


def load_nvml() -> Any:
    """The module ``pynvml`` of the distribution nvidia-ml-py; None if not installed."""
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


def visible_devices(nvml: Any, visible: str | None) -> dict[int, Any]:
    """NVML's handles of the GPUs in CUDA_VISIBLE_DEVICES (None: unset) by index, in its order,
    without lost ones.

    Parts of a GPU under MIG are not watched.
    """
    if nvml is None:
        return {}
    handles: dict[int, Any] = {}
    uuids: dict[int, str] = {}
    ask(nvml, "nvmlInit")
    for index in range(ask(nvml, "nvmlDeviceGetCount") or 0):
        handle = ask(nvml, "nvmlDeviceGetHandleByIndex", index)
        uuid = ask(nvml, "nvmlDeviceGetUUID", handle) if handle is not None else None
        if uuid is not None:
            handles[index] = handle
            uuids[index] = uuid
    return {index: handles[index] for index in named_devices(uuids, visible)}


def named_devices(uuids: Mapping[int, str], visible: str | None) -> list[int]:
    """Indices of the GPUs in CUDA_VISIBLE_DEVICES, in its order; all if it is unset (None).

    An entry is an index, or the start of one UUID. As in CUDA the first unknown entry ends the
    list.
    """
    if visible is None:
        return list(uuids)
    indices: list[int] = []
    for entry in visible.split(","):
        name = entry.strip()
        if name.isdigit():
            fitting = [index for index in uuids if index == int(name)]
        else:
            fitting = [index for index, uuid in uuids.items() if name and uuid.startswith(name)]
        if len(fitting) != 1:
            break
        indices += fitting
    return indices


def ask(nvml: Any, name: str, *arguments: Any) -> Any:
    """Calls a function of NVML; None if GPU, driver or nvidia-ml-py does not support it."""
    with contextlib.suppress(nvml.NVMLError, AttributeError):
        answer = getattr(nvml, name)(*arguments)
        # Some versions of nvidia-ml-py return text as bytes.
        return answer.decode(errors="replace") if isinstance(answer, bytes) else answer
    return None


MAPS = Path("/proc/self/maps")
DRIVER = Path("/proc/driver/nvidia/version")
CLASSES = Path("/sys/class")

_PROPERTY = (0, 1, 2)  # library_types.h: MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL
_LIBRARY = re.compile(r"/(?:.*/)?lib(cublas|cudnn|nccl)\.so[.\d]*$", re.M)
_WHEELS = {
    "jax-cuda13-plugin": ("cu13/libcublas.so.13", "cudnn/libcudnn.so.9", "nccl/libnccl.so.2"),
    "jax-cuda12-plugin": ("cublas/libcublas.so.12", "cudnn/libcudnn.so.9", "nccl/libnccl.so.2"),
}
"""Plugin to its libraries: package below ``nvidia`` where it looks first, and file name for the
linker.
"""


def ran_on(devices: Iterable[int] | None = None) -> Message:
    """``versions`` of NVIDIA's driver and loaded libraries, states of the ``gpus`` in use, the
    host's networks.
    """
    nvml = load_nvml()
    visible = visible_devices(nvml, os.environ.get(VISIBLE))
    indices = list(visible)
    chosen = indices if devices is None else [indices[i] for i in devices if i < len(indices)]
    driver = ask(nvml, "nvmlSystemGetDriverVersion") if visible else _driver_of_kernel()
    versions = {"driver": driver} if driver else {}
    return {
        "versions": {**versions, **loaded_versions()},
        "gpus": [_state(nvml, index, visible[index]) for index in chosen],
        "infiniband_ports": infiniband_ports(os.environ),
        "cloud_networks": cloud_networks(),
    }


def infiniband_ports(environment: Mapping[str, str]) -> int:
    """Active ports of InfiniBand and RoCE on this host that NCCL's own transport takes
    (net_ib/init.cc of NCCL).
    """
    is_off = (
        environment.get("NCCL_NET", "IB").upper() != "IB"
        or environment.get("NCCL_IB_DISABLE", "0") != "0"
    )
    if is_off:
        return 0
    return sum(
        kernel_text(port / "state") == "4: ACTIVE"
        and kernel_text(port / "link_layer") in ("InfiniBand", "Ethernet")
        for port in CLASSES.glob("infiniband/*/ports/*")
    )


def cloud_networks() -> list[str]:
    """Networks of clouds on this host, by the vendors of its cards (for gVNIC as net_socket.cc of
    NCCL).
    """
    cards = {"efa": ("infiniband", "0x1d0f"), "gvnic": ("net", "0x1ae0")}
    return [
        name
        for name, (kind, vendor) in cards.items()
        if any(kernel_text(file) == vendor for file in CLASSES.glob(f"{kind}/*/device/vendor"))
    ]


def kernel_text(path: Path) -> str:
    """The content of a file of the kernel; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def is_on_gpus() -> bool:
    """Returns whether this process must run on GPUs, by JAX_PLATFORMS, which every measured process
    has.
    """
    return os.environ.get("JAX_PLATFORMS", "").split(",")[0] not in ("", "cpu")


def loaded_versions() -> dict[str, str]:
    """Versions that NVIDIA's loaded libraries report."""
    versions = {}
    for name, path in _loaded().items():
        if (version := _version(name, path)) is not None:
            versions[name] = version
    return versions


def _loaded() -> dict[str, str]:
    """Paths of NVIDIA's libraries mapped into this process, by name (see proc(5))."""
    paths: dict[str, str] = {}
    for match in _LIBRARY.finditer(kernel_text(MAPS)):
        paths.setdefault(match[1], match[0])
    return paths


def _version(name: str, path: str) -> str | None:
    """The version that a library reports, or None."""

    def number(function: str, *arguments: Any) -> int:
        value = ctypes.c_int()
        if getattr(library, function)(*arguments, ctypes.byref(value)) != 0:
            raise OSError(f"{function} failed")
        return value.value

    try:
        library = ctypes.CDLL(path)
        if name == "nccl":
            return _nccl_version(number("ncclGetVersion"))
        return ".".join(str(number(f"{name}GetProperty", ctypes.c_int(part))) for part in _PROPERTY)
    except (OSError, AttributeError):
        return None


def _nccl_version(number: int) -> str:
    """Decodes NCCL's number: 22703 for 2.27.3 (nccl.h since 2.9)."""
    return f"{number // 10_000}.{number % 10_000 // 100}.{number % 100}"


def _state(nvml: Any, index: int, handle: Any) -> Message:
    """Firmware, limits and modes of one GPU; unsupported values are None."""

    def of(name: str, *more: Any) -> Any:
        return ask(nvml, f"nvmlDeviceGet{name}", handle, *more)

    def flag(name: str) -> bool | None:
        """Returns a mode; of a pair, the present one, not that after a restart."""
        value = of(name)
        if value is None:
            return None
        return bool(value[0] if isinstance(value, (list, tuple)) else value)

    limit = of("PowerManagementLimit")
    return {
        "name": of("Name"),
        "uuid": of("UUID"),
        "vbios": of("VbiosVersion"),
        "gsp": of("GspFirmwareVersion"),
        "index": index,
        "max_clock_mhz": of("MaxClockInfo", nvml.NVML_CLOCK_SM),
        "max_memory_clock_mhz": of("MaxClockInfo", nvml.NVML_CLOCK_MEM),
        "application_clock_mhz": of("ApplicationsClock", nvml.NVML_CLOCK_SM),
        "application_memory_clock_mhz": of("ApplicationsClock", nvml.NVML_CLOCK_MEM),
        "power_limit_w": limit / 1e3 if limit is not None else None,
        "persistence": flag("PersistenceMode"),
        "mig": flag("MigMode"),
        "ecc": flag("EccMode"),
    }


def _driver_of_kernel() -> str | None:
    """The driver's version from its kernel module, without nvidia-ml-py."""
    found = re.search(r"Kernel Module(?: for \S+)?\s+(\d[\d.]+)", kernel_text(DRIVER))
    return found.group(1) if found else None


def load_as_jax_does() -> None:
    """Loads the libraries of JAX's CUDA plugin: from NVIDIA's wheels, else by the linker."""
    plugin = next(iter(installed_versions(CUDA_PLUGINS)), None)
    for package, library in (name.split("/") for name in (_WHEELS[plugin] if plugin else ())):
        wheel = folder_of(f"nvidia.{package}")
        for path in [library] if wheel is None else [f"{wheel}/lib/{library}", library]:
            with contextlib.suppress(OSError):
                ctypes.CDLL(path)
                break


def main() -> None:
    """Prints the answer to the question of the command line."""
    count = json.loads(sys.argv[1])["count"]
    load_as_jax_does()
    print(json.dumps(ran_on(range(count) if count is not None else None)))


if __name__ == "__main__":
    main()

"""NVIDIA GPUs that a process may use, with libraries, firmware and clocks.

``python -m autotune.child.gpus '{"count": 1}'`` prints what a measured process reports, and starts
nothing on a GPU. Standard library only; ``nvidia-ml-py`` where it is installed.
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
from autotune.child.packages import CUDA_PLUGINS, Versions, folder_of, installed_versions

VISIBLE = "CUDA_VISIBLE_DEVICES"


def load_nvml() -> Any:
    """Returns the module ``pynvml`` of the distribution nvidia-ml-py; None if not installed."""
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


def visible_devices(nvml: Any, visible: str | None) -> dict[int, Any]:
    """Returns NVML's handles by index of CUDA_VISIBLE_DEVICES, without lost GPUs and MIG parts."""
    if nvml is None:
        return {}
    handles = {}
    uuids = {}
    ask(nvml, "nvmlInit")
    for index in range(ask(nvml, "nvmlDeviceGetCount") or 0):
        handle = ask(nvml, "nvmlDeviceGetHandleByIndex", index)
        if handle is not None and (uuid := ask(nvml, "nvmlDeviceGetUUID", handle)) is not None:
            handles[index] = handle
            uuids[index] = uuid
    return {index: handles[index] for index in named_devices(uuids, visible)}


def named_devices(uuids: Mapping[int, str], visible: str | None) -> list[int]:
    """Returns the indices of the GPUs in CUDA_VISIBLE_DEVICES, in its order; all if it is None.

    An entry is an index, or the start of one UUID; as in CUDA the first unknown one ends the list.
    """
    if visible is None:
        return list(uuids)
    indices = []
    for entry in visible.split(","):
        name = entry.strip()
        if name.isdigit():
            matches = [int(name)] if int(name) in uuids else []
        else:
            matches = [index for index, uuid in uuids.items() if name and uuid.startswith(name)]
        if len(matches) != 1:
            break
        indices.extend(matches)
    return indices


def ask(nvml: Any, name: str, *arguments: Any) -> Any:
    """Calls a function of NVML; None if GPU, driver or nvidia-ml-py does not support it."""
    with contextlib.suppress(nvml.NVMLError, AttributeError):
        answer = getattr(nvml, name)(*arguments)
        if isinstance(answer, bytes):  # text in some versions of nvidia-ml-py
            return answer.decode(errors="replace")
        return answer
    return None


MAPS = Path("/proc/self/maps")
DRIVER = Path("/proc/driver/nvidia/version")
CLASSES = Path("/sys/class")

_PROPERTY = (0, 1, 2)  # library_types.h: MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL
_LIBRARY = re.compile(r"/(?:.*/)?lib(cublas|cudnn|nccl)\.so[.\d]*$", re.M)
# Package below `nvidia` where a plugin looks first, and name for the linker.
_CUBLAS = {
    "jax-cuda13-plugin": "cu13/libcublas.so.13",
    "jax-cuda12-plugin": "cublas/libcublas.so.12",
}


def machine_report(devices: Iterable[int]) -> Message:
    """Returns `ran_on` in a measured process; nothing if JAX_PLATFORMS puts it on the CPU."""
    if os.environ.get("JAX_PLATFORMS", "").split(",")[0] in ("", "cpu"):
        return {}
    return ran_on(devices)


def ran_on(devices: Iterable[int] | None = None) -> Message:
    """Returns versions of driver and loaded libraries, networks, and states of visible GPUs."""
    nvml = load_nvml()
    visible = visible_devices(nvml, os.environ.get(VISIBLE))
    states = [_state(nvml, index, handle) for index, handle in visible.items()]
    if devices is not None:
        states = [states[place] for place in devices if place < len(states)]
    driver = ask(nvml, "nvmlSystemGetDriverVersion") if visible else _driver_of_kernel()
    versions = {"driver": driver} if driver else {}
    return {
        "versions": versions | loaded_versions(),
        "gpus": states,
        "infiniband_ports": infiniband_ports(os.environ),
        "cloud_networks": cloud_networks(),
    }


def infiniband_ports(environment: Mapping[str, str]) -> int:
    """Counts active InfiniBand and RoCE ports that NCCL takes itself (its net_ib/init.cc)."""
    is_disabled = environment.get("NCCL_IB_DISABLE", "0") != "0"
    if is_disabled or environment.get("NCCL_NET", "IB").upper() != "IB":
        return 0
    return sum(
        kernel_text(port / "state") == "4: ACTIVE"
        and kernel_text(port / "link_layer") in ("InfiniBand", "Ethernet")
        for port in CLASSES.glob("infiniband/*/ports/*")
    )


def cloud_networks() -> list[str]:
    """Returns clouds' networks of this host, by the vendors of its cards (NCCL's net_socket.cc)."""
    cards = {"efa": ("infiniband", "0x1d0f"), "gvnic": ("net", "0x1ae0")}
    return [
        name
        for name, (kind, vendor) in cards.items()
        if vendor in map(kernel_text, CLASSES.glob(f"{kind}/*/device/vendor"))
    ]


def kernel_text(path: Path) -> str:
    """Returns the content of a file of the kernel; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def loaded_versions() -> Versions:
    """Returns the versions that NVIDIA's libraries in this process report (see proc(5))."""
    paths: dict[str, str] = {}
    for match in _LIBRARY.finditer(kernel_text(MAPS)):
        paths.setdefault(match[1], match[0])
    versions = {}
    for name, path in paths.items():
        with contextlib.suppress(OSError, AttributeError):
            versions[name] = _version(name, path)
    return versions


def _version(name: str, path: str) -> str:
    library = ctypes.CDLL(path)

    def number(function: str, *arguments: Any) -> int:
        value = ctypes.c_int()
        if getattr(library, function)(*arguments, ctypes.byref(value)) != 0:
            raise OSError(f"{function} failed")
        return value.value

    if name == "nccl":
        code = number("ncclGetVersion")  # 22703 for 2.27.3 (nccl.h since 2.9)
        return f"{code // 10_000}.{code % 10_000 // 100}.{code % 100}"
    return ".".join(str(number(f"{name}GetProperty", ctypes.c_int(kind))) for kind in _PROPERTY)


def _state(nvml: Any, index: int, handle: Any) -> Message:
    """Returns firmware, limits and modes of one GPU; unsupported values are None."""

    def of(name: str, *arguments: Any) -> Any:
        return ask(nvml, f"nvmlDeviceGet{name}", handle, *arguments)

    def flag(name: str) -> bool | None:
        """Returns a mode; of a pair, the present one, not that after a restart."""
        value = of(name)
        if isinstance(value, (list, tuple)):
            value = value[0]
        return None if value is None else bool(value)

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
    """Returns the driver's version from its kernel module, without nvidia-ml-py."""
    match = re.search(r"Kernel Module(?: for \S+)?\s+(\d[\d.]+)", kernel_text(DRIVER))
    return match[1] if match else None


def load_as_jax_does() -> None:
    """Loads the libraries of JAX's CUDA plugin: from NVIDIA's wheels, else by the linker."""
    plugins = list(installed_versions(CUDA_PLUGINS))
    if not plugins:
        return
    for name in (_CUBLAS[plugins[0]], "cudnn/libcudnn.so.9", "nccl/libnccl.so.2"):
        package, library = name.split("/")
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

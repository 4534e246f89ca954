"""Parses device lists, restricts a process to devices, and reserves them against other studies on
this machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from autotune.child.gpus import VISIBLE
from autotune.model.errors import LaunchError, StudyFileError

_DEVICE = re.compile(r"^[A-Za-z0-9][A-Za-z0-9/_-]*\Z")


def parse_devices(text: str) -> tuple[str, ...]:
    """Parses device ids such as ``0,1`` or ``4-7``, or NVIDIA's UUIDs; StudyFileError if malformed
    or named twice.
    """
    devices: list[str] = []
    for item in (p.strip() for p in text.split(",")):
        ids = _DEVICE.findall(item)
        span = re.fullmatch(r"(\d+)-(\d+)", item)
        if span:
            ids = [str(i) for i in range(int(span[1]), int(span[2]) + 1)]
        if not ids:
            raise StudyFileError(f"devices must be given like 0,1 or 4-7 but got {text!r}")
        devices += ids
    if len(set(devices)) != len(devices):
        raise StudyFileError(f"each device must be named once but got {text!r}")
    return tuple(devices)


def restrict_devices(platform_name: str, devices: Sequence[str]) -> None:
    """Restricts this process and its children to some GPUs or cores; LaunchError if this machine
    lacks the cores.
    """
    if platform_name == "cuda":
        os.environ[VISIBLE] = ",".join(devices)
        return
    try:
        os.sched_setaffinity(0, {int(d) for d in devices})
    except (ValueError, OSError) as error:
        usable = ",".join(str(c) for c in sorted(os.sched_getaffinity(0)))
        raise LaunchError(
            f"devices of a CPU must be cores that this process may use ({usable}) but got "
            f"{','.join(devices)}"
        ) from error


@contextlib.contextmanager
def reserve_devices(kind: str, devices: Sequence[str]) -> Iterator[None]:
    """Reserves devices of this machine against other studies of this user; `kind` is ``cuda`` or
    ``cpu``.

    Each is an abstract socket: the kernel gives its name to one process, and frees it however that
    process ends.

    Raises:
        LaunchError: If another study has one of them.
    """
    place = Path(
        tempfile.gettempdir()
    ).stat()  # a study with a temporary folder of its own, as in tests, stands apart
    with contextlib.ExitStack() as stack:
        for device in sorted(devices):
            name = f"autotune-{os.getuid()}-{place.st_dev}-{place.st_ino}-{kind}-{device}"
            try:
                stack.enter_context(socket.socket(socket.AF_UNIX)).bind(f"\0{name}")
            except OSError as error:
                owners = (
                    c.pid for c in psutil.net_connections("unix") if str(c.laddr) == f"@{name}"
                )
                raise LaunchError(
                    f"a device must be used by one study at a time but {kind} device {device} is "
                    "in use by another "
                    f"(process {next(owners, None) or 'unknown'}); name other devices with "
                    "--devices, or wait"
                ) from error
        yield

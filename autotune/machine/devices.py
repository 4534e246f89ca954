"""Parses device lists, restricts a process to devices, reserves them against other studies."""

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
    """Parses ids such as ``0,1``, ``4-7`` or UUIDs; StudyFileError if malformed or named twice."""
    devices: list[str] = []
    for entry in text.split(","):
        item = entry.strip()
        ids = _DEVICE.findall(item)
        span = re.fullmatch(r"(\d+)-(\d+)", item)
        if span:
            ids = list(map(str, range(int(span[1]), int(span[2]) + 1)))
        if not ids:
            raise StudyFileError(f"devices must be given like 0,1 or 4-7 but got {text!r}")
        devices += ids
    if len(set(devices)) != len(devices):
        raise StudyFileError(f"each device must be named once but got {text!r}")
    return tuple(devices)


def restrict_devices(platform_name: str, devices: Sequence[str]) -> None:
    """Restricts this process and its children to some GPUs or cores; LaunchError without them."""
    if platform_name == "cuda":
        os.environ[VISIBLE] = ",".join(devices)
        return
    try:
        os.sched_setaffinity(0, {int(d) for d in devices})
    except (ValueError, OSError) as error:
        usable = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        raise LaunchError(
            f"devices of a CPU must be cores that this process may use ({usable}) but got "
            f"{','.join(devices)}"
        ) from error


@contextlib.contextmanager
def reserve_devices(kind: str, devices: Sequence[str]) -> Iterator[None]:
    """Reserves devices (`kind`: ``cuda`` or ``cpu``) against other studies of this user.

    Each is an abstract socket: the kernel gives its name to one process, and frees it however that
    process ends. A study with a temporary folder of its own, as in tests, stands apart. LaunchError
    if another study has one of them.
    """
    folder = Path(tempfile.gettempdir()).stat()
    place = f"{os.getuid()}-{folder.st_dev}-{folder.st_ino}"
    with contextlib.ExitStack() as stack:
        for device in sorted(devices):
            name = f"autotune-{place}-{kind}-{device}"
            try:
                stack.enter_context(socket.socket(socket.AF_UNIX)).bind(f"\0{name}")
            except OSError as error:
                sockets = psutil.net_connections("unix")
                owner = next((s.pid for s in sockets if str(s.laddr) == f"@{name}"), None)
                raise LaunchError(
                    f"a device must be used by one study at a time but {kind} device {device} is "
                    f"in use by another (process {owner or 'unknown'}); name other devices with "
                    "--devices, or wait"
                ) from error
        yield

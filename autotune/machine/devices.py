"""Parses device lists, restricts a process to devices, and reserves them against other studies on this machine."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from autotune.child.gpus import VISIBLE
from autotune.model.errors import LaunchError, StudyFileError

_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9/_-]*")


def parse_devices(text: str) -> tuple[str, ...]:
    """Parses a list of device ids such as ``0,1`` or ``4-7``; ids of NVIDIA's UUID form stay as they are.

    Raises:
        StudyFileError: If the list is malformed or names a device twice.
    """
    found: list[str] = []
    for part in (p.strip() for p in text.split(",")):
        span = re.fullmatch(r"(\d+)-(\d+)", part)
        if span and int(span[1]) <= int(span[2]):
            found += [str(i) for i in range(int(span[1]), int(span[2]) + 1)]
        elif _DEVICE.fullmatch(part) and not span:
            found.append(part)
        else:
            raise StudyFileError(f"devices must be given like 0,1 or 4-7 but got {text!r}")
    if len(set(found)) != len(found):
        raise StudyFileError(f"each device must be named once but got {text!r}")
    return tuple(found)


def restrict_devices(platform_name: str, devices: Sequence[str]) -> None:
    """Restricts this process and its children to some GPUs (by CUDA_VISIBLE_DEVICES) or cores of the CPU.

    Raises:
        LaunchError: If this machine does not have those cores.
    """
    if platform_name == "cuda":
        os.environ[VISIBLE] = ",".join(devices)
        return
    try:
        os.sched_setaffinity(0, {int(d) for d in devices})
    except (ValueError, OSError) as error:
        usable = ",".join(str(c) for c in sorted(os.sched_getaffinity(0)))
        raise LaunchError(
            f"devices of a CPU must be cores that this process may use ({usable}) but got {','.join(devices)}"
        ) from error


@contextlib.contextmanager
def reserve_devices(kind: str, devices: Sequence[str]) -> Iterator[None]:
    """Reserves devices of this machine against every other study of this user; `kind` is ``cuda`` or ``cpu``.

    Raises:
        LaunchError: If another study has one of them, or the folder of locks is not safe.
    """
    if not devices:
        yield
        return
    folder = _lock_folder()
    with contextlib.ExitStack() as stack:
        for device in sorted(devices):
            name = f"{kind}-{device.replace('/', '_')}"
            try:
                lock = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                raise _cannot_reserve(f"{name}: {error.strerror}") from error
            stack.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                holder = os.pread(lock, 100, 0).decode(errors="replace").strip() or "unknown"
                raise LaunchError(
                    f"a device must be used by one study at a time but {kind} device {device} is in use by another "
                    f"(process {holder}); name other devices with --devices, or wait"
                ) from None
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield


def _lock_path() -> Path:
    return Path(tempfile.gettempdir()) / f"autotune-slots-{os.getuid()}"


def _lock_folder() -> Path:
    """Makes the folder of locks if it is missing.

    Everybody may write the temporary folder, so a link, another user's folder or one open to others is refused: whoever
    made it could hold or free this user's devices.
    """
    path = _lock_path()
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise _cannot_reserve(str(error.strerror)) from error
    if not stat.S_ISDIR(found.st_mode):
        raise _cannot_reserve("it is a link")
    if found.st_uid != os.getuid():
        raise _cannot_reserve(f"it belongs to user {found.st_uid}")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise _cannot_reserve(f"others may use it (mode {stat.S_IMODE(found.st_mode):04o})")
    return path


def _cannot_reserve(why: str) -> LaunchError:
    return LaunchError(
        f"{_lock_path()} must be a folder of this user alone, to reserve devices against other studies, but {why}; "
        "remove it if it is yours, or name another temporary folder with TMPDIR"
    )

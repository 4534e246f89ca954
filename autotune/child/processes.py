"""Finds processes of a program that have loaded XLA, through /proc (proc(5))."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from autotune.child.channel import Message
from autotune.child.gpus import kernel_text
from autotune.child.guard import descendants
from autotune.child.packages import near_home, versions_in

_JAXLIB = re.compile(r"(/\S[^\n]*?)/jaxlib/[^\n]*\.so")
_FLAGS = re.compile(r"^flags:\s*(\d+)", re.M)
_PROC = Path("/proc")

Names = Iterable[str] | re.Pattern[str]  # of variables, or a pattern for set ones


def xla_processes(root: int, names: Names = ()) -> list[Message]:
    """Describes every process of a tree that has loaded jaxlib.

    ``values`` are those of the variables `names` at its start, None for unset ones, or the reason
    is ``unreadable``; ``opens_gpu`` is None if unknown.
    """
    processes = []
    for pid in (root, *descendants(root)):
        library = _JAXLIB.search(kernel_text(_entry(pid, "maps")))
        if library is not None:
            folder = library[1]
            processes.append(
                {
                    "pid": pid,
                    "python": _python_of(pid, folder),
                    "packages": near_home(folder),
                    "versions": versions_in(f"{_PROC}/{pid}/root{folder}"),
                    "opens_gpu": _opens_gpu(pid),
                    **_environment(pid, names),
                }
            )
    return processes


def _entry(pid: int, name: str) -> Path:
    """Returns the path of what the kernel says of a process."""
    return _PROC / str(pid) / name


def _python_of(pid: int, folder: str) -> str | None:
    """Returns the running interpreter, by its path beside the packages if it is there."""
    with contextlib.suppress(OSError):
        file = _entry(pid, "exe").readlink()
        python = Path(os.path.normpath(f"{folder}/../../../bin/python"))
        return str(python if python.exists() and python.samefile(file) else file)
    return None


def _open_files(pid: int) -> dict[Path, str]:
    """Returns a process's open files by descriptor in /proc; OSError if they cannot be read."""
    files = {}
    for link in _entry(pid, "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            files[link] = str(link.readlink())
    return files


def _opens_gpu(pid: int) -> bool | None:
    """Returns whether a process has an NVIDIA GPU's device file open, as all with CUDA have."""
    with contextlib.suppress(OSError):
        files = _open_files(pid).values()
        return any(file.startswith(("/dev/nvidia", "/dev/dxg")) for file in files)
    return None


def names_of(root: int) -> set[str]:
    """Returns the names of all processes below one, each cut to 15 characters by the kernel."""
    return {kernel_text(_entry(pid, "comm")) for pid in descendants(root)}


def open_for_writing(root: int) -> set[str]:
    """Returns the files that processes below one have open to write them; no devices, no pipes."""
    files = set[str]()
    for pid in descendants(root):
        with contextlib.suppress(OSError):
            files.update(file for link, file in _open_files(pid).items() if _is_written(link, file))
    return files


def _is_written(link: Path, file: str) -> bool:
    if file.startswith(("/dev/", "/proc/", "/sys/")) or not Path(file).is_file():
        return False
    flags = _FLAGS.search(kernel_text(link.parent.parent / "fdinfo" / link.name))
    return flags is not None and bool(int(flags[1], 8) & os.O_ACCMODE)


def _environment(pid: int, names: Names) -> Message:
    try:
        text = _entry(pid, "environ").read_bytes().decode("utf-8", errors="surrogateescape")
    except OSError as error:
        return {"unreadable": error.strerror or str(error)}
    variables = dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)
    if "PATH" not in variables:  # setproctitle(3) writes over it
        return {"unreadable": "it has overwritten the environment that it was started with"}
    if isinstance(names, re.Pattern):
        names = filter(names.fullmatch, variables)
    return {"values": {name: variables.get(name) for name in names}}

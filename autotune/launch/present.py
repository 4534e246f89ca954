"""The environment that is really in force in running processes: a program may change its own after it was started.

Standard library only; used by `autotune.launch.reader`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from pathlib import Path
from typing import Any


def environments(root: int, names: list[str]) -> list[dict[str, Any]]:
    """The present environment of every process of a tree that has loaded XLA, as far as it can be read.

    ``/proc/PID/environ`` shows how a process was started. What it changed itself (``os.environ[...] = ...``) lies
    in its memory, behind the symbol ``environ`` of the C library, which a parent may read.

    Args:
        root: Process number of the program.
        names: Variables that matter.

    Returns:
        One table for each such process: ``pid``, ``values`` (None for a variable that is not set), or
        ``unreadable`` with the reason.
    """
    found = []
    for pid in _tree(root):
        try:
            maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if not re.search(r"/jaxlib/|libjax_common|xla_extension|xla_cuda", maps):
            continue
        try:
            present = _present_environment(pid, maps)
        except (OSError, ValueError) as error:
            found.append({"pid": pid, "unreadable": str(error)})
        else:
            found.append({"pid": pid, "values": {n: present.get(n) for n in names}})
    return found


def _tree(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(folder.name))
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def _present_environment(pid: int, maps: str) -> dict[str, str]:
    """Reads the environment out of another process that uses the same C library.

    Raises:
        OSError: If the kernel does not let us.
        ValueError: If the process has another C library, or its memory makes no sense.
    """
    library, offset = _environ_symbol()
    there = _base_of(library, maps)
    if there is None:
        raise ValueError("it uses another C library than this interpreter")
    width = ctypes.sizeof(ctypes.c_void_p)
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:

        def word(address: int) -> int:
            return int.from_bytes(os.pread(memory.fileno(), width, address), sys.byteorder)

        array = word(there + offset)
        values: dict[str, str] = {}
        for i in range(10_000):
            address = word(array + i * width)
            if address == 0:
                return values
            name, equals, value = _string(memory.fileno(), address).partition("=")
            if equals:
                values[name] = value
    raise ValueError("its environment has no end")


def _string(memory: int, address: int) -> str:
    """A zero-ended string of at most 1 MB, read page by page, for the next page may not be there."""
    data = b""
    while len(data) < 1 << 20:
        piece = os.pread(memory, 4096 - address % 4096, address)
        if b"\0" in piece:
            return (data + piece[: piece.index(b"\0")]).decode("utf-8", errors="surrogateescape")
        data += piece
        address += len(piece)
        if not piece:
            break
    raise ValueError("a string in its environment has no end")


def _environ_symbol() -> tuple[str, int]:
    """The C library's file, and how far from its beginning in memory the symbol ``environ`` lies."""
    address = ctypes.addressof(ctypes.c_void_p.in_dll(ctypes.CDLL(None), "environ"))
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    for line in maps.splitlines():
        found = re.search(r"(/\S*/(?:libc[.-]|ld-musl)\S*)$", line)
        if found:
            base = _base_of(found.group(1), maps)
            assert base is not None
            return found.group(1), address - base
    raise ValueError("this interpreter's C library was not found")


def _base_of(library: str, maps: str) -> int | None:
    """The lowest address at which a file is mapped."""
    starts = [int(line.partition("-")[0], 16) for line in maps.splitlines() if line.endswith(" " + library)]
    return min(starts, default=None)

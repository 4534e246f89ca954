"""The environment that is really in force in running processes: a program may change its own after it was started.

Standard library only; used by `autotune.child.read_output`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import struct
import sys
from pathlib import Path
from typing import Any

from autotune.child.guard import descendants
from autotune.child.process_packages import packages_in_memory

ET_EXEC, SHT_DYNSYM = 2, 11


def environments(root: int, names: list[str]) -> list[dict[str, Any]]:
    """The present environment of every process of a tree that has loaded XLA, as far as it can be read.

    ``/proc/PID/environ`` shows how a process was started. What it changed itself (``os.environ[...] = ...``) lies
    in its memory, behind the symbol ``environ`` of the C library, which a parent may read.

    Args:
        root: Process number of the program.
        names: Variables that matter.

    Returns:
        One table for each such process: ``pid``, ``values`` (None for a variable that is not set) and ``opens_gpu``
        (None if that is not to be seen), or ``unreadable`` with the reason; ``packages`` and ``versions`` as
        `packages_in_memory` tells them.
    """
    found = []
    for pid in (root, *descendants(root)):
        try:
            maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if not re.search(r"/jaxlib/|libjax_common|xla_extension|xla_cuda", maps):
            continue
        try:
            now = _present_environment(pid, maps)
        except (OSError, ValueError) as error:
            found.append({"pid": pid, "unreadable": str(error), **packages_in_memory(maps)})
        else:
            values = {n: now.get(n) for n in names}
            found.append({"pid": pid, "values": values, "opens_gpu": _opens_gpu(pid), **packages_in_memory(maps)})
    return found


def _opens_gpu(pid: int) -> bool | None:
    """Whether a process has a device file of an NVIDIA GPU open, as every process that uses CUDA has."""
    files = []
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                files.append(str(link.readlink()))
    except OSError:
        return None
    return any(f.startswith(("/dev/nvidia", "/dev/dxg")) for f in files)


def _present_environment(pid: int, maps: str) -> dict[str, str]:
    """Reads the environment out of another process.

    Raises:
        OSError: If the kernel does not let us.
        ValueError: If its C library is not found, or its memory makes no sense.
    """
    width = ctypes.sizeof(ctypes.c_void_p)
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:

        def word(address: int) -> int:
            return int.from_bytes(os.pread(memory.fileno(), width, address), sys.byteorder)

        array = word(_environ_address(pid, maps))
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


def _environ_address(pid: int, maps: str) -> int:
    """Where the variable ``environ`` lies in a process.

    A program that is not position-independent, such as Debian's Python, has a copy of its own (a "copy relocation",
    see the System V ABI), and everybody uses that; else it is the C library's.

    Raises:
        ValueError: If neither has one.
    """
    files = [(Path(f"/proc/{pid}/exe"), str(Path(f"/proc/{pid}/exe").readlink()))]
    library = re.search(r"(/\S*/(?:libc[.-]|ld-musl)\S*)$", maps, re.MULTILINE)
    if library:
        files.append((Path(f"/proc/{pid}/root{library[1]}"), library[1]))
    for file, name in files:
        found = elf_symbol(file.read_bytes(), b"environ")
        if found is not None:
            value, is_absolute = found
            base = 0 if is_absolute else _base_of(name, maps)
            if base is not None:
                return base + value
    raise ValueError("neither it nor its C library holds the variable `environ`")


def elf_symbol(data: bytes, wanted: bytes) -> tuple[int, bool] | None:
    """A symbol that a 64-bit little-endian ELF file defines for others: its value, and whether that is absolute.

    See elf(5): of the dynamic symbol table. None if the file defines no such symbol.
    """
    if data[:6] != b"\x7fELF\x02\x01":
        return None
    (kind,) = struct.unpack_from("<H", data, 16)
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * size) for i in range(count)]
    for section in sections:
        if section[1] != SHT_DYNSYM:
            continue
        names = sections[section[6]]
        for offset in range(section[4], section[4] + section[5], 24):
            name, _, _, where, value, _ = struct.unpack_from("<IBBHQQ", data, offset)
            start = names[4] + name
            if where and data[start : start + len(wanted) + 1] == wanted + b"\0":
                return value, kind == ET_EXEC
    return None


def _base_of(library: str, maps: str) -> int | None:
    """The lowest address at which a file is mapped."""
    starts = [int(line.partition("-")[0], 16) for line in maps.splitlines() if line.endswith(" " + library)]
    return min(starts, default=None)

"""The compiled programs of a user's process, without a word of it: XLA leaves them in a folder as it compiles.

``--xla_dump_to`` makes XLA write each module that it compiles: its HLO after all optimizations, its buffers, and on the
CPU the object files that run. So it is known whether two sets make one program, what that needs of memory, and how long
compiling took. (The other way, JAX's persistent compilation cache, misses what a program keeps out of it, and its keys
change with every flag; it stays off in trials.)

Nothing of it is believed unless all of it must be true: one process compiled, it has the flags that it was given, every
module is there as a whole, and nobody but XLA wrote to the folder: each file was closed after writing once, and none
was removed, renamed or touched afterwards (inotify(7)). Otherwise the program is not known, and the reason is.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import re
import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.child import strip_hlo
from autotune.machine import COMPILES, Scratch
from autotune.model import FlagSet, SettingError

DUMP_FLAG = "xla_dump_to"
BEFORE, AFTER = ".before_optimizations.txt", ".cpu_after_optimizations.txt"
BUFFERS, MEMORY = ".cpu_after_optimizations-buffer-assignment.txt", ".cpu_after_optimizations-memory-usage-report.txt"
OPTIONS = ".debug_options"

SHOWN_BY_DUMP = frozenset(
    {
        "xla_cpu_copy_insertion_use_region_analysis",
        "xla_cpu_enable_concurrency_optimized_scheduler",
        "xla_cpu_enable_platform_dependent_math",
        "xla_cpu_experimental_enable_tiling_propagation",
        "xla_cpu_max_isa",
        "xla_cpu_prefer_vector_width",
        "xla_cpu_scheduler_type",
        "xla_cpu_use_fusion_emitters",
        "xla_cpu_use_new_xtile_lowering",
    }
)
"""Flags of which all that they do lies in the files of a dump: `benchmarks/command_programs.py` holds each of their
values against the executable that XLA serializes. Any other flag counts as part of the program's name, for what it
does may lie in thunks, which XLA does not write."""

_IN_ATTRIB, _IN_CLOSE_WRITE, _IN_OPEN, _IN_MOVED, _IN_DELETE = 0x4, 0x8, 0x20, 0xC0, 0x200
_IN_Q_OVERFLOW, _IN_ISDIR = 0x4000, 0x40000000
_TOTAL = re.compile(r"^Total bytes: (\d+)", re.MULTILINE)


class NotKnown(Exception):
    """Why the programs of a process are not known, as a clause."""


@dataclass(frozen=True, slots=True)
class Programs:
    """What a process has compiled.

    Attributes:
        fingerprint: Equal for equal programs in every process of one machine and build.
        peak_bytes: What the largest module needs of memory, arguments and results included.
        compile_s: Seconds that XLA took for all of them.
    """

    fingerprint: str
    peak_bytes: int
    compile_s: float


class ProgramWatch:
    """A folder for the programs of one process tree, from its start to its end.

    Raises:
        OSError: If there is no room for a folder, or the kernel watches none.
    """

    def __init__(self) -> None:
        self._scratch = Scratch(COMPILES)
        self._given = FlagSet()
        self._written: Counter[str] = Counter()
        self._foreign = ""
        self._read = self._is_closed = False
        try:
            self._events = _Events(self._scratch.path)
        except OSError:
            self._scratch.close()
            raise

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment of the process, with the flag that makes XLA leave its programs.

        Raises:
            NotKnown: If it says already where XLA shall dump, or the flag cannot name the folder.
        """
        flags, folder = environment.get("XLA_FLAGS", ""), str(self._scratch.path)
        self._given = FlagSet.parse(flags)
        if "xla_dump" in flags:
            raise NotKnown("the study's own settings have XLA dump elsewhere")
        if re.search(r"[\s'\"\\]", folder):
            raise NotKnown(f"XLA_FLAGS cannot name the folder {folder!r}")
        return {**environment, "XLA_FLAGS": f"{flags} --{DUMP_FLAG}={folder}".strip()}

    def without_own(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The variables of the process less that flag, if it is there as it was given."""
        flags = values.get("XLA_FLAGS")
        own = f"--{DUMP_FLAG}={self._scratch.path}"
        if not isinstance(flags, str) or flags.count(own) != 1:
            return dict(values)
        return {**values, "XLA_FLAGS": flags.replace(own, "").strip()}

    def told(self, processes: Iterable[Mapping[str, Any]]) -> Programs:
        """The programs so far.

        Args:
            processes: Those that have loaded XLA, each with ``pid`` and ``values``.

        Raises:
            NotKnown: If anything speaks against the dump.
        """
        found = list(processes)
        if len(found) != 1:
            raise NotKnown(f"{len(found) or 'none'} of its processes have loaded XLA, not one")
        self._refuse_other_flags(found[0])
        if _has_open(int(found[0]["pid"]), str(self._scratch.path)):
            raise NotKnown("it holds files of the dump open")
        self._take_events()
        programs = self._programs()
        self._take_events()  # of files that were closed after they were read
        self._read = True
        return programs

    def has_more(self) -> bool:
        """Whether something was compiled, or written, since the programs were read: they are not all then."""
        return self._read and self._take_events()

    def close(self) -> None:
        """Removes the folder; safe to call twice."""
        if not self._is_closed:
            self._is_closed = True
            self._events.close()
            self._scratch.close()

    def _refuse_other_flags(self, process: Mapping[str, Any]) -> None:
        flags = (process.get("values") or {}).get("XLA_FLAGS") or ""
        try:
            dumps = {n: v for n, v in FlagSet.parse(flags).items() if n.startswith("xla_dump")}
        except SettingError:
            dumps = {}
        if dumps != {DUMP_FLAG: str(self._scratch.path)}:
            raise NotKnown("it changes XLA_FLAGS, or they cannot be read")

    def _take_events(self) -> bool:
        """Notes what was written since the last look; whether that is anything.

        Raises:
            NotKnown: If anybody but XLA wrote.
        """
        is_news = False
        for mask, name in self._events.read():
            if mask & _IN_Q_OVERFLOW:
                self._foreign = "so many files were written that not all of it was seen"
            elif mask & (_IN_MOVED | _IN_DELETE | _IN_ATTRIB):
                self._foreign = f"{name} was moved, removed or changed in the dump"
            elif mask & _IN_CLOSE_WRITE and not mask & _IN_ISDIR:
                is_news = True
                self._written[name] += 1
                if self._written[name] > 1 and not name.endswith(OPTIONS):  # which XLA writes again, and nobody reads
                    self._foreign = f"{name} was written to more than once"
        if self._foreign:
            raise NotKnown(f"{self._foreign}, so XLA is not the only one who wrote there")
        return is_news

    def _programs(self) -> Programs:
        folder = self._scratch.path
        names = {p.name for p in folder.iterdir() if p.is_file() and not p.is_symlink()}
        if sorted(names) != sorted(self._written):
            raise NotKnown("a module is being written, or a file of the dump is not XLA's")
        modules = {n.removesuffix(AFTER) for n in names if n.endswith(AFTER)}
        if not modules:
            raise NotKnown("it has compiled nothing, or has XLA dump elsewhere")
        if modules != {n.removesuffix(BEFORE) for n in names if n.endswith(BEFORE)}:
            raise NotKnown("a module is being compiled, or none of the CPU's")
        parts, peak, compile_s = list[str](), 0, 0.0
        for module in modules:
            files = [n for n in names if n.startswith(f"{module}.")]
            names.difference_update(files)
            if not {module + BUFFERS, module + MEMORY} <= set(files):
                raise NotKnown(f"{module} is not whole in the dump")
            status = [(folder / n).stat() for n in files]
            if any(s.st_nlink != 1 or s.st_ctime_ns != s.st_mtime_ns for s in status):
                raise NotKnown(f"a file of {module} was touched after it was written")
            parts.append(_digest(folder, module, files))
            if (total := _TOTAL.search(_text(folder / (module + MEMORY)))) is None:
                raise NotKnown(f"what {module} needs of memory cannot be read")
            peak = max(peak, int(total[1]))
            compile_s += max(s.st_mtime for s in status) - min(s.st_mtime for s in status)
        if names:
            raise NotKnown(f"{min(names)} is no file of XLA's")
        counted = [f"{n}={v}" for n, v in sorted(self._given.items()) if n not in SHOWN_BY_DUMP]
        whole = hashlib.sha256("\n".join([*sorted(parts), *counted]).encode())
        return Programs("c" + whole.hexdigest()[:15], peak, compile_s)


def _digest(folder: Path, module: str, files: Iterable[str]) -> str:
    """A digest of what a module is and runs, without the number that it has in its process."""
    number, _, name = module.partition(".")
    found = [f"{name}\0{strip_hlo(_text(folder / (module + AFTER)))}\0{_text(folder / (module + BUFFERS))}"]
    for file in sorted(f for f in files if f.endswith(".o")):
        code = hashlib.sha256((folder / file).read_bytes()).hexdigest()
        found.append(f"{file.removeprefix(number)} {code}")
    return hashlib.sha256("\0".join(found).encode()).hexdigest()


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="surrogateescape").encode("utf-8", "replace").decode()


def _has_open(pid: int, folder: str) -> bool:
    """Whether a process has a file of a folder open or in its memory: it could write to it unseen."""
    links: list[str] = []
    try:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                links.append(str(descriptor.readlink()))
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True  # it has ended, or is not ours to look at
    return folder in maps or any(link.startswith(f"{folder}/") for link in links)


class _Events:
    """What happens to the files of one folder (inotify(7)).

    Raises:
        OSError: If the kernel does not tell.
    """

    def __init__(self, folder: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        # Equal events in a row are one to the kernel: with those of opening between them, every writing is seen.
        mask = _IN_OPEN | _IN_CLOSE_WRITE | _IN_MOVED | _IN_DELETE | _IN_ATTRIB
        try:
            self._checked(self._libc.inotify_add_watch(self._descriptor, os.fsencode(folder), mask))
        except OSError:
            os.close(self._descriptor)
            raise

    @staticmethod
    def _checked(result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result

    def read(self) -> list[tuple[int, str]]:
        """Mask and file name of each event since the last call."""
        found: list[tuple[int, str]] = []
        while True:
            try:
                data = os.read(self._descriptor, 1 << 16)
            except OSError as error:
                if error.errno == errno.EAGAIN:
                    return found
                raise
            at = 0
            while at < len(data):
                _, mask, _, length = struct.unpack_from("iIII", data, at)
                name = data[at + 16 : at + 16 + length].rstrip(b"\0").decode(errors="replace")
                found.append((mask, name))
                at += 16 + length

    def close(self) -> None:
        """Ends the watch."""
        os.close(self._descriptor)

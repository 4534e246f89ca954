"""Compiled programs of a user's process on the CPU, read from a dump of XLA.

``--xla_dump_to`` makes XLA write each compiled module: its HLO after all optimizations, its
buffers, its object files, and the options in force. The programs are known only if one process
compiled, every module is complete, and nothing is compiled later. What the first process of a set
compiled is kept beside JAX's cache, for what a later one loads is in no dump.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from autotune.child.channel import Message
from autotune.child.fingerprint import CACHE_FOLDER, CACHE_SWITCH, KEPT, strip_hlo
from autotune.machine.environment import Environment
from autotune.machine.files import COMPILES, Scratch, replace_file
from autotune.model.flags import FlagSet, parse_text_proto
from autotune.workers.settings_check import DUMP_FLAG, IN_FORCE, check_debug_options

BEFORE, AFTER = ".before_optimizations.txt", ".cpu_after_optimizations.txt"
BUFFERS, MEMORY = (
    ".cpu_after_optimizations-buffer-assignment.txt",
    ".cpu_after_optimizations-memory-usage-report.txt",
)
OPTIONS = ".debug_options"

SHOWN_BY_DUMP = frozenset(IN_FORCE["shown_by_dump"])
"""Flags whose whole effect is visible in a dump. Other flags are part of the fingerprint, since
they may act in thunks, which XLA does not dump.
"""

_TOTAL = re.compile(r"^Total bytes: (\d+)", re.MULTILINE)


class NotKnown(Exception):
    """The programs of a process are not known; the message is the reason as a clause."""


def dump_flag(folder: Path) -> str:
    """Returns the flag that makes XLA dump into a folder; empty if XLA_FLAGS cannot name it."""
    return "" if re.search(r"[\s'\"\\]", str(folder)) else f"--{DUMP_FLAG}={folder}"


def dumped_options(folder: Path) -> dict[str, str]:
    """Returns the flags, beside XLA's defaults, under which the programs of a dump were
    compiled.
    """
    files = [parse_text_proto(_text(file)) for file in sorted(folder.glob(f"*{OPTIONS}"))]
    return {name: values[-1] for options in files for name, values in options.items()}


def partitions_in(folder: Path) -> int:
    """Returns the number of devices of the largest program of a dump."""
    heads = (_text(file).partition("\n")[0] for file in folder.glob("*.before_optimizations.txt"))
    counts = (re.search(r"num_partitions=(\d+)", head) for head in heads)
    return max((int(count[1]) for count in counts if count is not None), default=1)


class ProgramWatch:
    """Dump folder of one process tree.

    Attributes:
        environment: With the flag that makes XLA dump its programs.
        problem: Why there is no such flag, as a clause; empty if there is.

    Raises:
        OSError: If the folder cannot be made.
    """

    def __init__(self, environment: Environment, platform: str = "cpu") -> None:
        self._scratch = Scratch(COMPILES)
        self._read: dict[str, tuple[int, int]] | None = None
        self._record: Path | None = None
        if environment.get(CACHE_SWITCH) == "true":
            self._record = Path(environment[CACHE_FOLDER], f"{KEPT}programs")
        flags = environment.get("XLA_FLAGS", "")
        dump = dump_flag(self._scratch.path)
        self._given = FlagSet.parse(flags)
        self.environment = dict(environment)
        self.problem = ""
        if platform != "cpu":
            self.problem = "on GPUs a dump does not show all that runs"
        elif "xla_dump" in flags:
            self.problem = "the study's own settings have XLA dump elsewhere"
        elif not dump:
            self.problem = f"XLA_FLAGS cannot name the folder {str(self._scratch.path)!r}"
        else:
            self.environment["XLA_FLAGS"] = f"{flags} {dump}".strip()

    def lost(self, settings: FlagSet) -> tuple[str, ...]:
        """Returns a clause for each XLA flag that is not in force according to the dumped
        options.
        """
        if self.problem:
            return ()
        options = [parse_text_proto(_text(file)) for file in self._scratch.path.glob(f"*{OPTIONS}")]
        if settings.of_kind("xla") and not options and not self._earlier():
            return (
                "XLA_FLAGS: XLA compiled nothing under these flags (or takes all from a "
                "compilation cache, or is in a "
                f"container that does not mount {self._scratch.path.parent})",
            )
        return tuple(
            dict.fromkeys(
                clause for found in options for clause in check_debug_options(settings, found)
            )
        )

    def read_programs(self, process_count: int) -> Message:
        """Returns the fields of a `WorkerReport` that the programs compiled so far tell.

        They are ``fingerprint``, ``peak_bytes`` of the largest module and ``compile_s``.

        Raises:
            NotKnown: If the dump is not complete.
        """
        try:
            return self._programs(process_count)
        except NotKnown as error:
            self._keep({"problem": str(error)})
            raise

    def _programs(self, process_count: int) -> Message:
        earlier = self._earlier()
        if problem := self.problem or earlier.get("problem"):
            raise NotKnown(problem)
        if process_count != 1:
            raise NotKnown(f"{process_count or 'none'} of its processes have loaded XLA, not one")
        before = self._listing()
        modules: dict[str, int] = earlier.get("modules", {})
        compiled, took_s = self._modules_of(before, may_be_none=bool(modules))
        if self._listing() != before:
            raise NotKnown("a module is being written")
        modules = modules or compiled
        if not compiled.keys() <= modules.keys():
            raise NotKnown("its processes compile different programs")
        self._read = before
        self._keep({"modules": modules})
        # Equal modules count once, for JAX loads the second.
        whole = hashlib.sha256("\n".join([*sorted(modules), *_counted(self._given)]).encode())
        return {
            "fingerprint": "c" + whole.hexdigest()[:15],
            "peak_bytes": max(modules.values()),
            "compile_s": took_s,
        }

    def has_compiled_more(self) -> bool:
        """Returns whether something was compiled since `read_programs`."""
        has_more = self._read is not None and self._listing() != self._read
        if has_more:
            self._keep({"problem": "it compiles more after its warm-up"})
        return has_more

    def _earlier(self) -> Message:
        """Returns what an earlier process of the set kept; empty if there was none."""
        if self._record is not None:
            with contextlib.suppress(OSError, ValueError):
                return dict(json.loads(self._record.read_text(encoding="utf-8")))
        return {}

    def _keep(self, record: Mapping[str, Any]) -> None:
        """Keeps what is known for later processes; where that fails they find no programs either
        (`Caches`).
        """
        if self._record is not None:
            with contextlib.suppress(OSError):
                replace_file(self._record, json.dumps(record))

    def close(self) -> None:
        """Removes the folder; safe to call twice."""
        self._scratch.close()

    def _listing(self) -> dict[str, tuple[int, int]]:
        """Returns size and modification time (ns) of the files in the dump."""
        listing = {}
        for path in self._scratch.path.iterdir():
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                listing[path.name] = (status.st_size, status.st_mtime_ns)
        return listing

    def _modules_of(
        self, listing: Mapping[str, tuple[int, int]], *, may_be_none: bool
    ) -> tuple[dict[str, int], float]:
        """Returns the largest memory of each compiled module by its digest, and the seconds of
        all.
        """
        names = {n.removesuffix(AFTER) for n in listing if n.endswith(AFTER)}
        if not names and not may_be_none:
            raise NotKnown("it has compiled nothing, or has XLA dump elsewhere")
        if names != {n.removesuffix(BEFORE) for n in listing if n.endswith(BEFORE)}:
            raise NotKnown("a module is being compiled, or none of the CPU's")
        folder = self._scratch.path
        modules: dict[str, int] = {}
        took_s = 0.0
        for module in sorted(names):
            files = [n for n in listing if n.startswith(f"{module}.")]
            if not {module + BUFFERS, module + MEMORY, module + OPTIONS} <= set(files):
                raise NotKnown(f"{module} is not whole in the dump")
            if (total := _TOTAL.search(_text(folder / (module + MEMORY)))) is None:
                raise NotKnown(f"what {module} needs of memory cannot be read")
            modules[_digest(folder, module, files)] = int(total[1])
            written = [listing[n][1] for n in files]
            took_s += (max(written) - min(written)) / 1e9
        return modules, took_s


def _counted(options: Mapping[str, object]) -> list[str]:
    """Returns the options that are part of a fingerprint."""
    return [f"{n}={v}" for n, v in sorted(options.items()) if n not in SHOWN_BY_DUMP]


def _digest(folder: Path, module: str, files: Collection[str]) -> str:
    """Digests the files of a module, without its number in the process; NotKnown if it changes the
    dump flags.
    """
    options = parse_text_proto(_text(folder / (module + OPTIONS)))
    if options.pop(DUMP_FLAG, None) != [str(folder)] or any(
        name.startswith("xla_dump") for name in options
    ):
        raise NotKnown("it changes where and what XLA dumps")
    number, _, name = module.partition(".")
    after = strip_hlo(_text(folder / (module + AFTER)))
    buffers = _text(folder / (module + BUFFERS))
    found = [f"{name}\0{after}\0{buffers}"]
    found += _counted(options)
    for file in sorted(f for f in files if f.endswith(".o")):
        code = hashlib.sha256((folder / file).read_bytes()).hexdigest()
        found.append(f"{file.removeprefix(number)} {code}")
    return hashlib.sha256("\0".join(found).encode()).hexdigest()


def _text(path: Path) -> str:
    return (
        path.read_text(encoding="utf-8", errors="surrogateescape")
        .encode("utf-8", "replace")
        .decode()
    )

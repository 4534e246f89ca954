"""Compiled programs of a user's process on the CPU, read from a dump of XLA.

``--xla_dump_to`` makes XLA write each compiled module: HLO after all optimizations, buffers, object
files, options in force. The programs are known only if one process compiled, every module is
complete, and nothing is compiled later. What the first process of a set compiled is kept beside
JAX's cache, for what a later one loads is in no dump.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import re
import stat
from collections.abc import Collection, Mapping
from pathlib import Path

from autotune.child.channel import Message
from autotune.child.fingerprint import CACHE_FOLDER, CACHE_SWITCH, KEPT, strip_hlo
from autotune.machine.environment import Environment
from autotune.machine.files import COMPILES, Scratch, replace_file
from autotune.model.flags import FlagSet, parse_text_proto
from autotune.workers.settings_check import DUMP_FLAG, IN_FORCE, check_debug_options

BEFORE = ".before_optimizations.txt"
AFTER = ".cpu_after_optimizations.txt"
BUFFERS = ".cpu_after_optimizations-buffer-assignment.txt"
MEMORY = ".cpu_after_optimizations-memory-usage-report.txt"
OPTIONS = ".debug_options"

# Flags whose whole effect is visible in a dump; others may act in thunks, which are in no dump.
SHOWN_BY_DUMP = frozenset(IN_FORCE["shown_by_dump"])
Listing = dict[str, tuple[int, int]]  # size and modification time (ns) by file
_TOTAL = re.compile(r"^Total bytes: (\d+)", re.MULTILINE)
_PARTITIONS = re.compile(r"num_partitions=(\d+)")


class NotKnown(Exception):
    """The programs of a process are not known; the message is the reason as a clause."""


def dump_flag(folder: Path) -> str:
    """Returns the flag that makes XLA dump into a folder; empty if XLA_FLAGS cannot name it."""
    return "" if re.search(r"[\s'\"\\]", str(folder)) else f"--{DUMP_FLAG}={folder}"


def dumped_options(folder: Path) -> dict[str, str]:
    """Returns the flags, beside XLA's defaults, under which a dump's programs were compiled."""
    return {name: values[-1] for options in _options_in(folder) for name, values in options.items()}


def partitions_in(folder: Path) -> int:
    """Returns the number of devices of the largest program of a dump."""
    heads = (_text(file).partition("\n")[0] for file in folder.glob(f"*{BEFORE}"))
    return max((int(n) for head in heads for n in _PARTITIONS.findall(head)), default=1)


class ProgramWatch:
    """Dump folder of one process tree.

    `environment` has the flag that makes XLA dump, unless a `problem` (a clause) prevents it.
    """

    def __init__(self, environment: Environment, platform: str = "cpu") -> None:
        self._scratch = Scratch(COMPILES)
        self._read: Listing | None = None
        self._record: Path | None = None
        if environment.get(CACHE_SWITCH) == "true":
            self._record = Path(environment[CACHE_FOLDER], f"{KEPT}programs")
        flags = environment.get("XLA_FLAGS", "")
        dump = dump_flag(self._scratch.path)
        self._flags = FlagSet.parse(flags)
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
        """Returns a clause for each XLA flag that the dumped options contradict."""
        if self.problem:
            return ()
        dumped = _options_in(self._scratch.path)
        if settings.of_kind("xla") and not dumped and not self._earlier():
            return (
                "XLA_FLAGS: XLA compiled nothing under these flags (or takes all from a "
                "compilation cache, or is in a container that does not mount "
                f"{self._scratch.path.parent})",
            )
        clauses = [check_debug_options(settings, options) for options in dumped]
        return tuple(dict.fromkeys(itertools.chain.from_iterable(clauses)))

    def read_programs(self, process_count: int) -> Message:
        """Returns fields of a `WorkerReport` by the programs so far; NotKnown if incomplete."""
        try:
            earlier = self._earlier()
            problem = self.problem or earlier.get("problem")
            if not problem and process_count != 1:
                problem = f"{process_count or 'none'} of its processes have loaded XLA, not one"
            if problem:
                raise NotKnown(problem)
            listing = self._listing()
            compiled, took_s = self._modules_of(listing)
            if self._listing() != listing:
                raise NotKnown("a module is being written")
            modules: dict[str, int] = earlier.get("modules", compiled)
            if not modules:
                raise NotKnown("it has compiled nothing, or has XLA dump elsewhere")
            if not compiled.keys() <= modules.keys():
                raise NotKnown("its processes compile different programs")
        except NotKnown as error:
            self._keep({"problem": str(error)})
            raise
        self._read = listing
        self._keep({"modules": modules})
        # Equal modules count once, for JAX loads the second.
        digest = _sha256("\n".join([*sorted(modules), *_counted(self._flags)]).encode())
        return {
            "fingerprint": f"c{digest[:15]}",
            "peak_bytes": max(modules.values()),
            "compile_s": took_s,
        }

    def has_compiled_more(self) -> bool:
        """Returns whether something was compiled since `read_programs`."""
        if self._read is None or self._listing() == self._read:
            return False
        self._keep({"problem": "it compiles more after its warm-up"})
        return True

    def _earlier(self) -> Message:
        """Returns what an earlier process of the set kept; empty if there was none."""
        if self._record is not None:
            with contextlib.suppress(OSError, ValueError):
                return dict(json.loads(self._record.read_text(encoding="utf-8")))
        return {}

    def _keep(self, record: Message) -> None:
        """Keeps a record for later processes; where that fails they have no programs either."""
        if self._record is not None:
            with contextlib.suppress(OSError):
                replace_file(self._record, json.dumps(record))

    def close(self) -> None:
        """Removes the folder; safe to call twice."""
        self._scratch.close()

    def _listing(self) -> Listing:
        files = [(path.name, path.lstat()) for path in self._scratch.path.iterdir()]
        return {
            name: (status.st_size, status.st_mtime_ns)
            for name, status in files
            if stat.S_ISREG(status.st_mode)
        }

    def _modules_of(self, listing: Listing) -> tuple[dict[str, int], float]:
        """Returns the largest memory of each module by its digest, and the seconds of all."""
        names = {n.removesuffix(AFTER) for n in listing if n.endswith(AFTER)}
        if names != {n.removesuffix(BEFORE) for n in listing if n.endswith(BEFORE)}:
            raise NotKnown("a module is being compiled, or none of the CPU's")
        folder = self._scratch.path
        modules = {}
        took_s = 0.0
        for module in sorted(names):
            files = [n for n in listing if n.startswith(f"{module}.")]
            if not {module + BUFFERS, module + MEMORY, module + OPTIONS} <= set(files):
                raise NotKnown(f"{module} is not whole in the dump")
            total = _TOTAL.search(_text(folder / (module + MEMORY)))
            if total is None:
                raise NotKnown(f"what {module} needs of memory cannot be read")
            modules[_digest(folder, module, files)] = int(total[1])
            times = [listing[n][1] for n in files]
            took_s += (max(times) - min(times)) / 1e9
        return modules, took_s


def _options_in(folder: Path) -> list[dict[str, list[str]]]:
    return [parse_text_proto(_text(file)) for file in sorted(folder.glob(f"*{OPTIONS}"))]


def _counted(options: Mapping[str, object]) -> list[str]:
    """Returns the options that are part of a fingerprint."""
    return [f"{n}={v}" for n, v in sorted(options.items()) if n not in SHOWN_BY_DUMP]


def _digest(folder: Path, module: str, files: Collection[str]) -> str:
    """Digests a module without its number; NotKnown if it changes the dump flags."""
    options = parse_text_proto(_text(folder / (module + OPTIONS)))
    is_here = options.pop(DUMP_FLAG, None) == [str(folder)]
    if not is_here or any(name.startswith("xla_dump") for name in options):
        raise NotKnown("it changes where and what XLA dumps")
    number, _, name = module.partition(".")
    after = strip_hlo(_text(folder / (module + AFTER)))
    lines = [name, after, _text(folder / (module + BUFFERS)), *_counted(options)]
    for file in sorted(f for f in files if f.endswith(".o")):
        lines.append(f"{file.removeprefix(number)} {_sha256((folder / file).read_bytes())}")
    return _sha256("\0".join(lines).encode())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _text(path: Path) -> str:
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    return text.encode("utf-8", "replace").decode()

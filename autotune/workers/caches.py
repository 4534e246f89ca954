"""Compilations that later processes of a study load: programs by JAX's cache, kernels by XLA's.

JAX's key leaves out variables of NCCL, CUDA and memory, and kernels that XLA chose by timing them.
So each set has its own folder, shared only by sets that differ in what NCCL reads at run time, and
a mark in the key (`MARK`, which only TPUs read) for a program that names another folder itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import threading
from pathlib import Path

from autotune.child.fingerprint import CACHE_FOLDER, KEPT, KERNELS_FLAG
from autotune.machine.environment import Environment
from autotune.machine.files import CACHES, Scratch, remove_tree
from autotune.model.flags import FlagSet
from autotune.workers.settings_check import IN_FORCE

LEAST_FREE_BYTES = 2 << 30  # of the temporary folder; nothing is kept below
MOST_SETS = 6  # sets whose programs are kept, those last started
MARK = "LIBTPU_INIT_ARGS"

_STEERS_CACHE = re.compile(IN_FORCE["steers_cache"])
_CHOOSES_KERNELS = re.compile(IN_FORCE["chooses_kernels"])
_KEEPS_KERNELS = re.compile("|".join(IN_FORCE["keeps_kernels"]))
_KEEPS_PROGRAM = re.compile(IN_FORCE["keeps_program"])


class Caches:
    """Folders of one lane, removed with its process: a later session begins without."""

    def __init__(self) -> None:
        self._scratch: Scratch | None = None
        self._lock = threading.Lock()  # two workers may start at once
        self._keeps_programs = False
        self._keeps_kernels = False

    def begin(self, *, programs: bool, kernels: bool, anew: bool) -> None:
        """Sets what later processes keep and load; `anew` forgets all that was kept."""
        if anew:
            self.close()
        self._keeps_programs = programs
        self._keeps_kernels = kernels

    def added_to(self, environment: Environment, settings: FlagSet) -> Environment:
        """Returns a worker's environment with the caches of its set, if they can be written."""
        variables = dict(environment)
        with self._lock, contextlib.suppress(OSError):
            if self._keeps_kernels and not any(map(_CHOOSES_KERNELS.search, settings)):
                # Shared by sets that differ only in settings without effect on kernels: XLA's key
                # is the fusion and the device, and no flag is in it.
                kernels = self._root() / f"kernels-{_without(_KEEPS_KERNELS, settings).digest}"
                kernels.mkdir(exist_ok=True)  # XLA wants it to be there
                flags = settings.of_kind("xla").merge({KERNELS_FLAG: str(kernels)})
                variables |= flags.to_environment()
            if self._keeps_programs and not any(map(_STEERS_CACHE.fullmatch, settings)):
                folder = str(_programs_of(_without(_KEEPS_PROGRAM, settings), self._root()))
                mark = f"{environment.get(MARK, '')} --autotune-set={folder}".strip()
                variables |= {**IN_FORCE["cache"], CACHE_FOLDER: folder, MARK: mark}
        return variables

    def close(self) -> None:
        """Removes the folders; safe to call twice."""
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None

    def _root(self) -> Path:
        """Returns the folder of all; OSError if it cannot be made, or the disk is nearly full."""
        self._scratch = self._scratch or Scratch(CACHES)
        if shutil.disk_usage(self._scratch.path).free < LEAST_FREE_BYTES:
            raise OSError("the disk is nearly full")
        return self._scratch.path


def _without(names: re.Pattern[str], settings: FlagSet) -> FlagSet:
    return settings.without(*filter(names.fullmatch, settings))


def _programs_of(settings: FlagSet, root: Path) -> Path:
    """Returns a set's folder of programs, new unless a process became ready; drops old ones."""
    prefix = f"programs-{settings.digest}-"
    ready = next(root.glob(f"{prefix}*/{KEPT}*"), None)
    folder = ready.parent if ready else Path(tempfile.mkdtemp(prefix=prefix, dir=root))
    os.utime(folder)
    by_age = sorted(root.glob("programs-*"), key=lambda path: path.stat().st_mtime_ns)
    for unused in by_age[:-MOST_SETS]:
        remove_tree(unused)
    return folder

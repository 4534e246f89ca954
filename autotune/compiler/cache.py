"""Keeps what compilations gave, one JSON file for each, so that no program is compiled twice."""

from __future__ import annotations

import contextlib
from pathlib import Path

from pydantic import ValidationError

from autotune.compiler.program import SCHEMA_VERSION, CompileResult
from autotune.machine import replace_file
from autotune.model import FailureKind, FlagSet

# Failures that say something about the set; what the machine did to a worker may be otherwise next time.
_LASTING = frozenset({FailureKind.UNKNOWN_FLAG, FailureKind.COMPILE_ERROR, FailureKind.CRASH})


class Cache:
    """Results of one job (workload, versions, target, topology), by flag set.

    Args:
        root: Folder of all jobs; None keeps nothing.
        job: The job's digest.
    """

    def __init__(self, root: Path | None, job: str) -> None:
        self._root = root
        self._folder = self._folder_of(job)
        self._others: list[Path] = []

    def load(self, settings: FlagSet) -> CompileResult | None:
        """The result of a set if it is kept; a file that was torn or is of another schema counts as none."""
        for folder in (self._folder, *self._others):
            if folder is None:
                continue
            try:
                found = CompileResult.model_validate_json((folder / f"{settings.digest}.json").read_bytes())
            except (OSError, ValidationError):
                continue
            if found.settings == settings:
                return found.model_copy(update={"from_cache": True})
        return None

    def read_also(self, job: str) -> None:
        """Takes results of another job too, which is known to give the same programs."""
        if (folder := self._folder_of(job)) is not None and folder not in (self._folder, *self._others):
            self._others.append(folder)

    def store(self, result: CompileResult) -> None:
        """Keeps a result, unless it is a failure of the machine; a full or read-only disk keeps nothing."""
        path = self._path(result.settings)
        if path is None or (result.failure is not None and result.failure.kind not in _LASTING):
            return
        with contextlib.suppress(OSError):
            replace_file(path, result.model_dump_json())

    def drop(self, settings: FlagSet) -> None:
        """Keeps the result of a set no longer."""
        if (path := self._path(settings)) is not None:
            with contextlib.suppress(OSError):
                path.unlink()

    def _folder_of(self, job: str) -> Path | None:
        return self._root / f"v{SCHEMA_VERSION}-{job}" if self._root else None

    def _path(self, settings: FlagSet) -> Path | None:
        return self._folder / f"{settings.digest}.json" if self._folder else None

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
        self._folder = root / f"v{SCHEMA_VERSION}-{job}" if root else None

    def load(self, settings: FlagSet) -> CompileResult | None:
        """The result of a set if it is kept; a file that was torn or is of another schema counts as none."""
        path = self._path(settings)
        if path is None:
            return None
        try:
            found = CompileResult.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            return None
        return found.model_copy(update={"from_cache": True}) if found.settings == settings else None

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

    def _path(self, settings: FlagSet) -> Path | None:
        return self._folder / f"{settings.digest}.json" if self._folder else None

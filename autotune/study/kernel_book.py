"""What XLA's autotuner chose in each process of a lane, held against the first process of the same set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from autotune.model import (
    DUMP_FILE,
    DUMP_HERE,
    KERNELS,
    FlagSet,
    StudySpec,
    WorkerReport,
    kernels_of,
    read_choices,
)

MOST_BYTES = 64_000_000
"""Of the results of one process; more is not read."""


class KernelBook:
    """Has each process leave what its autotuner chose beside its log, and reads it there.

    Args:
        spec: The study.
        incident: Told that results cannot be read.
    """

    def __init__(self, spec: StudySpec, incident: Callable[[str], None]) -> None:
        device = spec.device
        # Ranks would write over each other, other machines' files are not here, and a program of the user's may have
        # its own use for the variable.
        is_ours = spec.workload.entry is not None and device.rank_count == 1
        self._is_on = device.platform == "cuda" and is_ours
        self._incident = incident
        self._first: dict[FlagSet, dict[str, str]] = {}

    def told_to_dump(self, merged: FlagSet) -> FlagSet:
        """A process's settings with what makes it leave its results, unless they say themselves what becomes of them.

        The program is the same with it, and the text of XLA_FLAGS is the same in every process.
        """
        if not self._is_on or KERNELS in merged or any(name in merged for name in DUMP_HERE):
            return merged
        return merged.merge(DUMP_HERE)

    def forget(self, folder: Path) -> None:
        """Takes away what an earlier process has left in a folder: nobody shall be said to have chosen that."""
        if self._is_on:
            (folder / DUMP_FILE).unlink(missing_ok=True)

    def told_by(self, report: WorkerReport, settings: FlagSet, folder: Path) -> WorkerReport:
        """A process's report with what it chose; as it is where it left nothing, as where nothing was autotuned."""
        file = folder / DUMP_FILE
        if not self._is_on or not file.is_file() or file.is_symlink():
            return report
        try:
            if (size := file.stat().st_size) > MOST_BYTES:
                raise ValueError(f"it must have at most {MOST_BYTES:,} bytes but has {size:,}")
            choices = read_choices(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            self._incident(f"what the autotuner chose is not known: {file.parent.name}/{file.name}: {error}"[:300])
            return report
        first = self._first.setdefault(settings, choices)
        return report.model_copy(update={"kernels": kernels_of(choices, first)})

"""Which kernels XLA's autotuner chose in each process of a lane."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from autotune.model import DUMP_FILE, WorkerReport, kernels_of, read_choices

MOST_BYTES = 64_000_000
"""Of the results of one process; more is not read."""


class KernelBook:
    """Reads what processes have left beside their logs.

    Args:
        incident: Told that results cannot be read.
    """

    def __init__(self, incident: Callable[[str], None]) -> None:
        self._incident = incident

    def forget(self, folder: Path) -> None:
        """Takes away what an earlier process has left in a folder: nobody shall be said to have chosen that."""
        (folder / DUMP_FILE).unlink(missing_ok=True)

    def told_by(self, report: WorkerReport, folder: Path) -> WorkerReport:
        """A process's report with what it chose; as it is where it left nothing, as where nothing was autotuned.

        Args:
            report: Of the process.
            folder: Where its log is.
        """
        file = folder / DUMP_FILE
        if not file.is_file() or file.is_symlink():
            return report
        try:
            if (size := file.stat().st_size) > MOST_BYTES:
                raise ValueError(f"it must have at most {MOST_BYTES:,} bytes but has {size:,}")
            choices = read_choices(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            self._incident(f"what the autotuner chose is not known: {file.parent.name}/{file.name}: {error}"[:300])
            return report
        return report.model_copy(update={"kernels": kernels_of(choices)})

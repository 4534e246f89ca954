"""What a launcher and a worker promise the rest of the driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from autotune.model import Failure, FlagSet, MemoryUse, TimeLimits, WorkerReport


class WorkerFailed(Exception):
    """A worker gave no number. Not an error of the study: `evaluate` turns it into a record.

    Attributes:
        failure: What happened, classified.
        infrastructure: The machine failed, not the settings; worth one more try.
    """

    def __init__(self, failure: Failure, *, infrastructure: bool = False) -> None:
        super().__init__(f"{failure.kind}: {failure.message}")
        self.failure = failure
        self.infrastructure = infrastructure


class Worker(Protocol):
    """One running program under one flag set. Not thread-safe; idle whenever no call is in progress."""

    report: WorkerReport
    last_loss: float | None
    """Of the last step of the last block; None before the first one, and where no loss is known."""
    last_norm: float | None
    """Global gradient norm of the same step; None where it is not known."""
    loss_lag: int
    """Steps by which the one that they are of lies before the end of the block."""
    fresh_batches: bool
    """Whether every step gets a batch of its own from now on, if the worker makes them: costs time beside the step."""
    watches_memory: bool
    """Whether memory in use is told with every block from now on: costs milliseconds beside the block."""
    last_memory: MemoryUse | None
    """At the end of the last block; None where it was not asked for, or the program does not tell."""

    def run_block(self, steps: int) -> tuple[float, ...]:
        """Runs that many steps now and gives each one's duration in seconds.

        Raises:
            WorkerFailed: If the worker died, hung, or computed a loss that is not finite.
        """

    def profile(self, steps: int) -> bytes:
        """Runs that many steps under a profiler and gives what each instruction took, as XLA reads it: text.

        Returns:
            Empty where the profiler saw none.

        Raises:
            WorkerFailed: If the worker died or hung, or cannot profile.
        """

    def close(self) -> None:
        """Ends the worker and every process below it; safe to call twice, never raises."""


Progress = Callable[[str], None]
"""Called with the phase that a starting worker has reached: ``import``, ``build``, ``compile``, ``warm-up``."""


class Launcher(Protocol):
    """Starts workers."""

    limits: TimeLimits
    """What workers that are started from now on may take."""

    def start(self, settings: FlagSet, folder: Path, *, progress: Progress) -> Worker:
        """Starts a worker under `settings` (baseline merged in) and waits until it is compiled and warm.

        Args:
            settings: Everything that steers the worker.
            folder: Where its log goes.
            progress: Told of each phase.

        Raises:
            WorkerFailed: If it never became ready.
        """

    def close(self) -> None:
        """Ends every worker that is still alive."""

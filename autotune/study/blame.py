"""When a set crashes or hangs: looks on a lane for its smallest part that still does.

The search is delta debugging (see `autotune.model.flags`) with a bounded number of starts.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from autotune.model import BlameRecord, FailureKind, FlagSet, shrink
from autotune.study.context import MeasurementContext
from autotune.study.tasks import BlameTask
from autotune.workers import WorkerFailed

MOST_STARTS = 12
MOST_HANGS = 4
"""A start that hangs costs its whole time limit, so few of them are tried."""


def most_starts(kind: FailureKind) -> int:
    """Starts after which the search for a cause ends in any case."""
    return MOST_HANGS if kind is FailureKind.HANG else MOST_STARTS


def minimise_failure(context: MeasurementContext, task: BlameTask, folder: Path, *, alone: bool) -> BlameRecord:
    """Finds the smallest part of a failing set that fails in the same way.

    Args:
        context: Where; a living reference is left alone.
        task: The set, how it failed, and what is known of its parts.
        folder: Where logs go.
        alone: Whether nothing runs beside a process here: it need not share a GPU's memory then.
    """
    kind = task.failure_kind
    most = most_starts(kind)
    starts = 0
    known: dict[FlagSet, bool] = {FlagSet(): False, task.settings: True}
    for part, is_failing in task.known:
        known.setdefault(part, is_failing)

    def fails(part: FlagSet) -> bool | None:
        """Whether a part fails alike; None if the starts are used up."""
        nonlocal starts
        if part not in known:
            if starts == most:
                return None
            starts += 1
            context.progress.phase(f"looking for the cause of the {kind}: start {starts} of at most {most}")
            own = context.folder_in(folder, f"{starts:02d}")
            known[part] = _fails(context, part, own, kind, alone=alone)
        return known[part]

    smallest, is_minimal = shrink(task.settings, fails)
    return BlameRecord(
        trial=task.trial,
        failure_kind=kind,
        settings=task.settings,
        smallest=smallest,
        is_minimal=is_minimal,
        starts=starts,
    )


def _fails(context: MeasurementContext, part: FlagSet, folder: Path, kind: FailureKind, *, alone: bool) -> bool:
    """Whether a part fails in the same way, at its start or in its first blocks."""

    def look(alone: bool) -> None:
        with contextlib.closing(context.start(part, folder, alone=alone)) as worker:
            for _ in range(3):
                worker.run_block(context.steps_for(worker))

    try:
        context.where_it_fits(look, alone=alone or context.share.is_known_alone(part))
    except WorkerFailed as error:
        return error.failure.kind is kind
    return False

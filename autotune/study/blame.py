"""When a set crashes or hangs: looks on a lane for its smallest part that still does.

The search is delta debugging (see `autotune.model.flags`) with a bounded number of starts.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from autotune.model import BlameRecord, FailureKind, FlagSet, shrink
from autotune.study.bench import Bench
from autotune.study.units import BlameUnit
from autotune.workers import WorkerFailed

MOST_STARTS = 12
MOST_HANGS = 4
"""A start that hangs costs its whole time limit, so few of them are tried."""


def most_starts(kind: FailureKind) -> int:
    """Starts after which the search for a cause ends in any case."""
    return MOST_HANGS if kind is FailureKind.HANG else MOST_STARTS


def minimise_failure(bench: Bench, unit: BlameUnit, folder: Path, *, alone: bool) -> BlameRecord:
    """Finds the smallest part of a failing set that fails in the same way.

    Args:
        bench: Where; a living reference is left alone.
        unit: The set, how it failed, and what is known of its parts.
        folder: Where logs go.
        alone: Whether nothing runs beside a process here: it need not share a GPU's memory then.
    """
    kind = unit.failure_kind
    most = most_starts(kind)
    starts = 0
    known: dict[FlagSet, bool] = {FlagSet(): False, unit.settings: True}
    for part, is_failing in unit.known:
        known.setdefault(part, is_failing)

    def fails(part: FlagSet) -> bool | None:
        """Whether a part fails alike; None if the starts are used up."""
        nonlocal starts
        if part not in known:
            if starts == most:
                return None
            starts += 1
            bench.desk.phase(f"looking for the cause of the {kind}: start {starts} of at most {most}")
            own = bench.folders.folder(*Path(bench.folders.relative(folder)).parts, f"{starts:02d}")
            known[part] = _fails(bench, part, own, kind, alone=alone)
        return known[part]

    smallest, is_minimal = shrink(unit.settings, fails)
    return BlameRecord(
        trial=unit.trial,
        failure_kind=kind,
        settings=unit.settings,
        smallest=smallest,
        is_minimal=is_minimal,
        starts=starts,
    )


def _fails(bench: Bench, part: FlagSet, folder: Path, kind: FailureKind, *, alone: bool) -> bool:
    """Whether a part fails in the same way, at its start or in its first blocks."""

    def look(alone: bool) -> None:
        with contextlib.closing(bench.start(part, folder, alone=alone)) as worker:
            for _ in range(3):
                worker.run_block(bench.steps_for(worker))

    try:
        bench.where_it_fits(look, alone=alone or bench.share.is_known_alone(part))
    except WorkerFailed as error:
        return error.failure.kind is kind
    return False

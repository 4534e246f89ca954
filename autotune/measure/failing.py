"""The minimal failing set of a set that crashes or hangs, by delta debugging; no trial contains it
again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from autotune.measure.context import MeasurementContext
from autotune.measure.tasks import FailingSetTask
from autotune.model.flags import FlagSet
from autotune.model.measurement import Failure, FailureKind
from autotune.model.records import FailingSetRecord, TrialResult, TrialStatus
from autotune.settings.shrink import shrink
from autotune.workers.base import WorkerFailed

SEARCHED = frozenset({FailureKind.CRASH, FailureKind.HANG, FailureKind.COMPILE_ERROR})
"""Failures whose minimal set is looked for; out of memory depends on the workload, a wrong loss on
the data.
"""

MOST_STARTS, MOST_LONG_STARTS = 12, 4
"""Starts that search for a minimal set; of hangs, each of which takes its whole time limit, few."""


def most_again(failure: Failure) -> int:
    """Returns how often a set is started again before it is blamed: more often where chance ends
    processes so, too.
    """
    if failure.kind not in SEARCHED:
        return 0
    return 2 if failure.kind is FailureKind.HANG or failure.signal is not None else 1


def needs_search(trial: TrialResult, known: Sequence[FailingSetRecord]) -> bool:
    """Returns whether a trial crashed or hung by a set without a known minimal failing set."""
    failure = trial.failure
    if trial.status is not TrialStatus.FAILED or failure is None or failure.kind not in SEARCHED:
        return False
    is_done = any(b.trial == trial.number for b in known)
    return not is_done and not contains_failing(trial.settings, [b.smallest for b in known])


def failing_task(
    trial: TrialResult, kind: FailureKind, results: Sequence[TrialResult]
) -> FailingSetTask:
    """Makes the search for a trial's minimal failing set; what other trials tell is not started
    again.
    """
    known = []
    for result in results:
        if result.status is TrialStatus.MEASURED:
            known.append((result.settings, False))
        elif result.failure is not None and result.failure.kind is kind:
            known.append((result.settings, True))
    return FailingSetTask(
        trial=trial.number, settings=trial.settings, failure_kind=kind, known=tuple(known)
    )


def contains_failing(settings: FlagSet, failing: Sequence[FlagSet]) -> bool:
    """Returns whether a set contains a combination that is known to fail."""
    return any(all(settings.get(n) == v for n, v in part.items()) for part in failing)


def most_starts(kind: FailureKind) -> int:
    """Returns the starts after which a search ends in any case."""
    return MOST_LONG_STARTS if kind is FailureKind.HANG else MOST_STARTS


def minimise_failure(
    context: MeasurementContext, task: FailingSetTask, folder: Path, *, isolated: bool
) -> FailingSetRecord:
    """Finds the smallest part of a failing set that fails in the same way; `isolated`: with nothing
    beside it.
    """
    kind = task.failure_kind
    starts = 0
    most = most_starts(kind)
    known = {**dict(task.known), FlagSet(): False, task.settings: True}

    def fails(part: FlagSet) -> bool | None:
        """Returns whether a part fails alike; None if the starts are used up."""
        nonlocal starts
        if part not in known:
            if starts == most:
                return None
            starts += 1
            context.progress.phase(
                f"minimal failing set ({kind}): start {starts} of at most {most}"
            )
            own = context.folder_in(folder, f"{starts:02d}")
            known[part] = _fails(context, part, own, kind, isolated=isolated)
        return known[part]

    smallest, is_minimal = shrink(task.settings, fails)
    return FailingSetRecord(
        trial=task.trial,
        failure_kind=kind,
        settings=task.settings,
        smallest=smallest,
        is_minimal=is_minimal,
        starts=starts,
    )


def _fails(
    context: MeasurementContext, part: FlagSet, folder: Path, kind: FailureKind, *, isolated: bool
) -> bool:
    """Returns whether a part fails in the same way, at its start or in its first blocks."""

    def look(isolated: bool) -> None:
        with contextlib.closing(context.start(part, folder, isolated=isolated)) as worker:
            for _ in range(3):
                worker.run_block(context.steps_for(worker))

    try:
        context.where_it_fits(look, isolated=isolated or context.share.is_known_isolated(part))
    except WorkerFailed as error:
        return error.failure.kind is kind
    return False

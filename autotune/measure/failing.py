"""The minimal failing set of a set that crashes or hangs; no trial contains it again."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.measure.context import MeasurementContext
from autotune.measure.tasks import FailingSetTask
from autotune.model.flags import FlagSet
from autotune.model.measurement import Failure, FailureKind
from autotune.model.records import FailingSetRecord, TrialResult, TrialStatus
from autotune.settings.shrink import shrink
from autotune.workers.base import Worker, WorkerFailed

# Failures whose minimal set is looked for; others depend on the workload or its data.
SEARCHED = frozenset({FailureKind.CRASH, FailureKind.HANG, FailureKind.COMPILE_ERROR})
# Starts that search for a minimal set, and likewise of hangs, which take the whole limit.
MOST_STARTS = 12
MOST_LONG_STARTS = 4


def most_again(failure: Failure) -> int:
    """How often a set is started again before it is blamed: more often where it may be chance."""
    if failure.kind not in SEARCHED:
        return 0
    return 2 if failure.kind is FailureKind.HANG or failure.signal is not None else 1


def needs_search(trial: TrialResult, known: Sequence[FailingSetRecord]) -> bool:
    """Whether a trial crashed or hung by a set without a known minimal failing set."""
    failure = trial.failure
    if trial.status is not TrialStatus.FAILED or failure is None or failure.kind not in SEARCHED:
        return False
    is_searched = any(record.trial == trial.number for record in known)
    return not is_searched and not contains_failing(trial.settings, [r.smallest for r in known])


def failing_task(
    trial: TrialResult, kind: FailureKind, results: Sequence[TrialResult]
) -> FailingSetTask:
    """Makes the search for a trial's minimal failing set, with what other trials tell."""
    failures = []
    for result in results:
        if result.status is TrialStatus.MEASURED:
            failures.append((result.settings, False))
        elif result.failure is not None and result.failure.kind is kind:
            failures.append((result.settings, True))
    return FailingSetTask(
        trial=trial.number, settings=trial.settings, failure_kind=kind, known=tuple(failures)
    )


def contains_failing(settings: FlagSet, failing: Sequence[FlagSet]) -> bool:
    """Whether a set contains a combination that is known to fail."""
    return any(smallest.items() <= settings.items() for smallest in failing)


def most_starts(kind: FailureKind) -> int:
    """Starts after which a search ends in any case."""
    return MOST_LONG_STARTS if kind is FailureKind.HANG else MOST_STARTS


def minimise_failure(
    context: MeasurementContext, task: FailingSetTask, *, isolated: bool
) -> FailingSetRecord:
    """Finds the smallest part of a failing set that fails in the same way."""
    kind = task.failure_kind
    starts = 0
    limit = most_starts(kind)
    failures = {**dict(task.known), FlagSet(): False, task.settings: True}

    def run_blocks(worker: Worker) -> None:
        for _ in range(3):
            worker.run_block(context.steps_for(worker))

    def fails(part: FlagSet) -> bool | None:
        """Returns whether a part fails alike; None if the starts are used up."""
        nonlocal starts
        if part not in failures:
            if starts == limit:
                return None
            starts += 1
            context.progress.phase(
                f"minimal failing set ({kind}): start {starts} of at most {limit}"
            )
            folder = context.folder(f"{starts:02d}")
            is_alone = isolated or context.share.is_known_isolated(part)
            failures[part] = False
            try:
                context.where_it_fits(part, folder, run_blocks, isolated=is_alone)
            except WorkerFailed as error:
                failures[part] = error.failure.kind is kind
        return failures[part]

    smallest, is_minimal = shrink(task.settings, fails)
    return FailingSetRecord(
        trial=task.trial,
        failure_kind=kind,
        settings=task.settings,
        smallest=smallest,
        is_minimal=is_minimal,
        starts=starts,
    )

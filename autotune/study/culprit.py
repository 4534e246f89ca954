"""Sets that crash or hang: whose cause is to be looked for, and what was found: no trial walks into it again."""

from __future__ import annotations

from collections.abc import Container, Sequence

from autotune.model import BlameRecord, FailureKind, FlagSet, TrialResult, TrialStatus
from autotune.study.tasks import BlameTask

BLAMED = frozenset({FailureKind.CRASH, FailureKind.HANG, FailureKind.COMPILE_ERROR})
"""Failures whose cause is looked for; out of memory depends on the workload, a wrong loss on the data."""


def next_case(
    results: Sequence[TrialResult], known: Sequence[BlameRecord], looked_for: Container[int] = ()
) -> TrialResult | None:
    """A trial that crashed or hung and whose cause nobody has looked for yet, or looks for now; or None."""
    done = {b.trial for b in known}
    for result in results:
        failure = result.failure
        is_crash = result.status is TrialStatus.FAILED and failure is not None and failure.kind in BLAMED
        if (
            is_crash
            and result.number not in done
            and result.number not in looked_for
            and not walks_into(result.settings, [b.smallest for b in known])
        ):
            return result
    return None


def blame_unit(trial: TrialResult, results: Sequence[TrialResult]) -> BlameTask:
    """The search for a trial's culprit; what other trials tell is not started again."""
    assert trial.failure is not None
    kind = trial.failure.kind
    known = []
    for result in results:
        if result.status is TrialStatus.MEASURED:
            known.append((result.settings, False))
        elif result.failure is not None and result.failure.kind is kind:
            known.append((result.settings, True))
    return BlameTask(trial=trial.number, settings=trial.settings, failure_kind=kind, known=tuple(known))


def _holds(settings: FlagSet, part: FlagSet) -> bool:
    """Whether a set holds all of a part."""
    return all(settings.get(n) == v for n, v in part.items())


def walks_into(settings: FlagSet, bad: Sequence[FlagSet]) -> bool:
    """Whether a set holds a combination that is known to fail."""
    return any(_holds(settings, part) for part in bad)

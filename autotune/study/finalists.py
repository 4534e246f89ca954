"""Which trials are worth a proof, and which proven sets make a front."""

from __future__ import annotations

from collections.abc import Container, Sequence

from autotune.model import FinalistResult, FlagSet, Measured, TrialResult, choose_members, front_points, proven_front
from autotune.study.run import StudyRun


def choose_finalists(run: StudyRun, without: Container[FlagSet] = ()) -> list[TrialResult]:
    """The trials that are worth a proof: the best few, or members of the front of a study by several objectives.

    Args:
        run: The study.
        without: Sets that have had theirs.
    """
    spec, results = run.spec, [r for r in run.store.of(TrialResult) if r.settings not in without]
    count, sesoi = spec.confirm.finalists, spec.measure.smallest_effect
    if len(spec.search.objectives) == 1 or run.reference is None:
        return worth_proving(results, count=count, sesoi=sesoi)
    return choose_members(front_points(results, spec.search.objectives, run.reference, tolerance=sesoi), count=count)


def worth_proving(results: Sequence[TrialResult], *, count: int, sesoi: float) -> list[TrialResult]:
    """The best few of the measured trials whose intervals leave room for an effect, best first.

    Those that are promising, and where these are fewer than can be proven others, too: a trial is one pair of processes
    and where processes differ by as much as a gain it calls one set in eight that gains 2 % not promising.
    """
    hopeful = [
        (r.outcome.comparison.estimate, r)
        for r in results
        if isinstance(r.outcome, Measured) and r.outcome.comparison.estimate.low < 1.0 - sesoi
    ]
    return [r for _, r in sorted(hopeful, key=lambda found: found[0].ratio)[:count]]


def proven_members(run: StudyRun) -> list[FinalistResult]:
    """Those finalists of a study by several objectives that are proven to belong to the front, fastest first."""
    return proven_front(run.finalists, run.spec.search.objectives, sesoi=run.spec.measure.smallest_effect)

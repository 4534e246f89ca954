"""Which trials are worth a proof."""

from __future__ import annotations

from collections.abc import Container, Sequence

from autotune.model import (
    EffectsRecord,
    FlagSet,
    TrialResult,
    TrialStatus,
)
from autotune.study.run import StudyRun


def choose_finalists(run: StudyRun, without: Container[FlagSet] = ()) -> list[TrialResult]:
    """The trials that are worth a proof: the best few.

    They differ in what is believed to act, and the set that promises most is the first of them.

    Args:
        run: The study.
        without: Sets that have had theirs.
    """
    spec, results = run.spec, [r for r in run.store.of(TrialResult) if r.settings not in without]
    count, min_effect = spec.confirm.finalists, spec.measure.min_effect
    return worth_proving(results, count=count, min_effect=min_effect, taught=run.store.last(EffectsRecord))


def worth_proving(
    results: Sequence[TrialResult], *, count: int, min_effect: float, taught: EffectsRecord | None = None
) -> list[TrialResult]:
    """The best few of the measured trials whose intervals leave room for an effect, best first.

    Those that are promising, and where these are fewer than can be proven others, too: a trial is one pair of processes
    and where processes differ by as much as a gain it calls one set in eight that gains 2 % not promising.

    Args:
        results: The trials.
        count: How many, at most.
        min_effect: Smallest effect of interest, as a share.
        taught: What they taught: of trials that differ only in what is believed to be of no use one is taken, and first
            of all the one of the set that promises most, which has nothing of that. One that holds nothing else is
            taken if it was faster all the same.
    """
    hopeful = [
        (r.comparison.estimate, r)
        for r in results
        if r.status is TrialStatus.MEASURED and r.comparison and r.comparison.estimate.low < 1.0 - min_effect
    ]
    ranked = [r for _, r in sorted(hopeful, key=lambda found: found[0].ratio)]
    if taught is None:
        return ranked[:count]
    ranked.sort(key=lambda r: r.settings != taught.best.settings)  # the others stay in their order
    different: dict[FlagSet, TrialResult] = {}
    for result in ranked:
        useful = taught.useful(result.settings, least=min_effect)
        if useful or (result.comparison is not None and result.comparison.estimate.ratio < 1.0 - min_effect):
            different.setdefault(useful, result)
    return list(different.values())[:count]

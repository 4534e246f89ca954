"""What results so far say of a set that is to be tried: it may be known, and it has a best to beat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from autotune.model import REFERENCE_NUMBER, FlagSet, Measured, TrialResult, TrialStatus, Twin
from autotune.stats import REFERENCE, Estimate


def find_twin(
    key: str, reference_key: str | None, known: Sequence[TrialResult], key_of: Callable[[TrialResult], str | None]
) -> Twin | None:
    """The reference or the trial that stands for a program, if one does.

    Args:
        key: Names the program.
        reference_key: Names the reference's.
        known: Results so far.
        key_of: Gives a result's name of that kind.
    """
    if key == reference_key:
        return Twin(status=TrialStatus.SAME_PROGRAM, same_as=REFERENCE_NUMBER)
    for earlier in known:
        if key_of(earlier) == key and earlier.status in (TrialStatus.MEASURED, TrialStatus.PREDICTED):
            return _twin_of(earlier, TrialStatus.SAME_PROGRAM)
    return None


def same_set(settings: FlagSet, known: Sequence[TrialResult]) -> Twin | None:
    """The trial that had this very set, if one did."""
    for earlier in known:
        if earlier.settings == settings and earlier.status is not TrialStatus.SAME_SET:
            return _twin_of(earlier, TrialStatus.SAME_SET)
    return None


def complete(result: TrialResult, known: Sequence[TrialResult]) -> TrialResult:
    """A result with the figures of the trial that stands for it, which a lane does not know."""
    if not isinstance(result.outcome, Twin) or result.outcome.same_as == REFERENCE_NUMBER:
        return result
    earlier = next(r for r in known if r.number == result.outcome.same_as)
    return result.model_copy(update={"outcome": _twin_of(earlier, result.outcome.status)})


def _twin_of(earlier: TrialResult, status: Literal[TrialStatus.SAME_SET, TrialStatus.SAME_PROGRAM]) -> Twin:
    figures = {n: getattr(earlier, n) for n in ("comparison", "prediction", "failure")}
    return Twin(status=status, same_as=earlier.number, **figures)


def incumbent(results: Sequence[TrialResult]) -> Estimate:
    """The best estimate so far, the reference's own while nothing is better."""
    found = [r.outcome.comparison.estimate for r in results if isinstance(r.outcome, Measured)]
    best = min(found, key=lambda e: e.ratio, default=None)
    return best if best is not None and best.ratio < 1 else REFERENCE

"""What results so far say of a set that is to be tried: it may be known, and it has a best to beat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autotune.model import REFERENCE_NUMBER, FlagSet, TrialOutcome, TrialResult, TrialStatus
from autotune.rundir import Store
from autotune.stats import REFERENCE, Estimate


class Known:
    """The results so far, kept up as they come: to ask them costs as much after thousands of trials as after ten.

    Args:
        store: The run directory, locked.

    Attributes:
        results: All of them, in order.
        incumbent: See `incumbent`.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.results: list[TrialResult] = []
        self.incumbent = REFERENCE
        self._by_number: dict[int, TrialResult] = {}
        self._by_set: dict[FlagSet, TrialResult] = {}
        self._by_key: dict[str, TrialResult] = {}
        self._lowest = 1

    def refresh(self) -> Sequence[TrialResult]:
        """Takes in what was recorded since the last look, and gives that."""
        news = self._store.since(TrialResult, len(self.results))
        for result in news:
            self.results.append(result)
            self._by_number.setdefault(result.number, result)
            if result.status is not TrialStatus.SAME_SET:
                self._by_set.setdefault(result.settings, result)
            if result.compiled_key is not None and result.status is TrialStatus.MEASURED:
                self._by_key.setdefault(result.compiled_key, result)
        self.incumbent = min(self.incumbent, incumbent(news), key=lambda e: e.ratio)
        return news

    def free_number(self, taken: Iterable[int]) -> int:
        """The lowest number that no trial has."""
        while self._lowest in self._by_number:
            self._lowest += 1
        number, taken = self._lowest, set(taken)
        while number in taken or number in self._by_number:
            number += 1
        return number

    def same_set(self, settings: FlagSet) -> TrialOutcome | None:
        """The trial that had this very set, if one did."""
        earlier = self._by_set.get(settings)
        return _duplicate_of(earlier, TrialStatus.SAME_SET) if earlier is not None else None

    def same_program(self, key: str, reference_key: str | None) -> TrialOutcome | None:
        """The reference or the trial that stands for a program, if one does.

        Args:
            key: Names the program as the screen compiled it.
            reference_key: Names the reference's.
        """
        if key == reference_key:
            return TrialOutcome(status=TrialStatus.SAME_PROGRAM, same_as=REFERENCE_NUMBER)
        earlier = self._by_key.get(key)
        return _duplicate_of(earlier, TrialStatus.SAME_PROGRAM) if earlier is not None else None

    def complete(self, result: TrialResult) -> TrialResult:
        """A result with the figures of the trial that stands for it, which a lane does not know."""
        if result.same_as is None or result.same_as == REFERENCE_NUMBER:
            return result
        return result.model_copy(update=dict(_duplicate_of(self._by_number[result.same_as], result.status)))


def _duplicate_of(earlier: TrialResult, status: TrialStatus) -> TrialOutcome:
    return TrialOutcome(status=status, same_as=earlier.number, comparison=earlier.comparison, failure=earlier.failure)


def incumbent(results: Iterable[TrialResult]) -> Estimate:
    """The best estimate so far, the reference's own while nothing is better."""
    found = [r.comparison.estimate for r in results if r.status is TrialStatus.MEASURED and r.comparison is not None]
    best = min(found, key=lambda e: e.ratio, default=None)
    return best if best is not None and best.ratio < 1 else REFERENCE

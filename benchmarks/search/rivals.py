"""Searches without a model: one factor at a time, and iterated racing."""

from __future__ import annotations

import math

import numpy as np

from benchmarks.search.problems import Codes, Problem
from benchmarks.search.strategies import Remembers


class OneFactor(Remembers):
    """One factor at a time from the best set known: each value of each setting in turn.

    Args:
        problem: What is searched.
        seed: Of the order of settings.
        has_recipes: Whether recipes are tried first; the best of them is where it starts.
    """

    def __init__(self, problem: Problem, seed: int, *, has_recipes: bool) -> None:
        super().__init__(problem, seed)
        self._first = list(problem.recipes) if has_recipes else []
        self._rng = np.random.default_rng([seed, 3])
        self._left: list[tuple[int, int]] = []
        self._best, self._value = problem.defaults, 0.0

    def ask(self) -> Codes | None:
        """See `Strategy`."""
        if self._first:
            return self._first.pop(0)
        for _ in range(2 * sum(self.problem.sizes)):
            if not self._left:
                order = self._rng.permutation(len(self.problem.sizes))
                self._left = [(int(i), v) for i in order for v in range(self.problem.sizes[i])]
            i, value = self._left.pop(0)
            codes = self._best.copy()
            codes[i] = value
            codes = np.asarray(self.problem.settle(codes[None])[0])
            if (
                not any((codes == t).all() for t, _ in self.told)
                and (codes != self.problem.defaults).any()
            ):
                return codes
        return None

    def tell(self, codes: Codes, value: float | None, sd: float) -> None:
        """See `Strategy`."""
        super().tell(codes, value, sd)
        if value is not None and value < self._value:
            self._best, self._value = codes, value

    def chosen(self) -> Codes:
        """See `Strategy`."""
        return self._best


CONTENDERS = 6
"""Sets that a race begins with."""

LOOKS = 3
"""Most measurements of one set in a race."""

CLEARLY = 1.645
"""Standard errors by which a set must be slower than the best to leave a race."""


class Racing(Remembers):
    """Iterated racing as in irace: sets around the elite race until clearly slower ones drop out.

    López-Ibáñez et al., "The irace package: iterated racing for automatic algorithm configuration",
    2016: new sets are drawn around the elite's values, the closer the later the race. Here an
    instance is one more measurement.

    Args:
        problem: What is searched.
        seed: Of its draws.
        has_recipes: Whether recipes are in the first race.
        trials: Of the whole search, by which draws narrow.
    """

    def __init__(self, problem: Problem, seed: int, *, has_recipes: bool, trials: int = 60) -> None:
        super().__init__(problem, seed)
        self._rng = np.random.default_rng([seed, 4])
        self._trials = trials
        self._elite = problem.defaults
        self._looks: dict[bytes, list[tuple[float, float]]] = {
            problem.defaults.tobytes(): [(0.0, 1e-6)]
        }
        self._sets: dict[bytes, Codes] = {problem.defaults.tobytes(): problem.defaults}
        self._racing: list[bytes] = []
        self._queue: list[Codes] = list(problem.recipes) if has_recipes else []

    def ask(self) -> Codes | None:
        """See `Strategy`."""
        if not self._queue:
            self._next_round()
        return self._queue.pop(0)

    def tell(self, codes: Codes, value: float | None, sd: float) -> None:
        """See `Strategy`."""
        super().tell(codes, value, sd)
        key = codes.tobytes()
        self._sets[key] = codes
        if key not in self._racing:
            self._racing.append(key)
        self._looks.setdefault(key, []).append((math.inf if value is None else value, sd))

    def _mean(self, key: bytes) -> tuple[float, float]:
        """Mean of a set's measurements and its standard error."""
        looks = self._looks[key]
        return sum(v for v, _ in looks) / len(looks), math.sqrt(sum(s * s for _, s in looks)) / len(
            looks
        )

    def _next_round(self) -> None:
        """Looks again at the sets left in the race, or starts a new race if it is decided."""
        ranked = sorted({*self._racing, self._elite.tobytes()}, key=lambda k: self._mean(k)[0])
        best, sd = self._mean(ranked[0])
        left = [
            k
            for k in ranked
            if math.isfinite(m := self._mean(k)[0])
            and m - best <= CLEARLY * math.hypot(sd, self._mean(k)[1])
        ]
        again = [
            k for k in left if len(self._looks[k]) < LOOKS and k != self.problem.defaults.tobytes()
        ]
        self._elite = self._sets[ranked[0]]
        if len(left) > 1 and again:
            self._queue = [self._sets[k] for k in again]
            self._racing = left
            return
        self._racing = []
        narrow = max(0.05, 0.3 * (1 - len(self.told) / self._trials))
        for _ in range(CONTENDERS):
            others = self.problem.random(self._rng, 1)[0]
            changed = self._rng.random(len(others)) < narrow
            codes = np.where(changed, others, self._elite)
            self._queue.append(self.problem.settle(codes[None])[0])

    def chosen(self) -> Codes:
        """See `Strategy`."""
        finite = [
            k for k in self._looks if self._mean(k)[0] < 0 or k == self.problem.defaults.tobytes()
        ]
        return self._sets[min(finite, key=lambda k: self._mean(k)[0])]

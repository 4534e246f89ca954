"""How far predictions are from step times that others published: what stands beside every prediction.

The figures lie in ``autotune/data/published.json``, written by ``python -m benchmarks.published``: one ratio of
predicted to published step time for each published run of a dense model in bfloat16 (`docs/predictions.md`).
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

FACTOR = 1.2
"""Predictions within this factor of what was published are counted in words."""

NORMAL_95 = 1.96


@dataclass(frozen=True, slots=True)
class PublishedError:
    """Predicted over published step times.

    Attributes:
        ratios: Published run to predicted over published step time.
    """

    ratios: Mapping[str, float]

    @property
    def within(self) -> int:
        """Runs that were predicted within `FACTOR`."""
        return sum(1 / FACTOR <= r <= FACTOR for r in self.ratios.values())

    @property
    def spread(self) -> float:
        """How far the log of a ratio is from the mean of all others, root mean square: each run held out in turn."""
        logs = [math.log(r) for r in self.ratios.values()]
        total = sum(logs)
        return math.sqrt(statistics.fmean((x - (total - x) / (len(logs) - 1)) ** 2 for x in logs))

    def interval(self, step_s: float) -> tuple[float, float]:
        """Where 95 % of the published runs would lie around a prediction, if their errors are log-normal."""
        mean = statistics.fmean(math.log(r) for r in self.ratios.values())
        half = NORMAL_95 * self.spread
        return step_s * math.exp(-mean - half), step_s * math.exp(-mean + half)

    def __str__(self) -> str:
        return f"within x{FACTOR:g} in {self.within} of {len(self.ratios)} published runs"


@functools.cache
def published_error() -> PublishedError:
    """The error on the published runs that come with the package."""
    resource = importlib.resources.files("autotune") / "data" / "published.json"
    return PublishedError(json.loads(resource.read_text(encoding="utf-8"))["ratios"])

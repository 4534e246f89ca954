"""How far predictions are from step times that others published: what stands beside every prediction.

The figures lie in ``autotune/data/published.json``, written by ``python -m benchmarks.published``: one ratio of
predicted to published step time for each published run of a dense model in bfloat16, and the published and the
predicted change for each flag whose effect was published (`docs/predictions.md`).
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FACTOR = 1.2
"""Predictions within this factor of what was published are counted in words."""

NORMAL_95 = 1.96

NO_CHANGE = 1.0
"""A published change below this many percent is none: runs of one program an hour apart differ by as much."""

NO_CHANGE_MET = 2.0
"""Where none was published, a predicted change within this many percent is right."""

UNSEEN = 0.1
"""A predicted change within this many percent has no sign."""


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


def sign_of(published: float, predicted: float) -> str:
    """Whether a change was predicted with its sign: ``right``, ``wrong``, or ``unseen`` where none was predicted.

    Args:
        published: Change of the step time, in percent.
        predicted: Likewise.
    """
    if abs(published) < NO_CHANGE:
        return "right" if abs(predicted) <= NO_CHANGE_MET else "wrong"
    if abs(predicted) < UNSEEN:
        return "unseen"
    return "right" if (published > 0) == (predicted > 0) else "wrong"


@dataclass(frozen=True, slots=True)
class PublishedChanges:
    """Published changes of the step time by flags, and what is predicted for them.

    Attributes:
        changes: Published pair to its published and its predicted change, in percent.
    """

    changes: Mapping[str, tuple[float, float]]

    def count(self, sign: str) -> int:
        """Pairs whose sign was predicted ``right``, ``wrong`` or not (``unseen``)."""
        return sum(sign_of(*change) == sign for change in self.changes.values())

    def __str__(self) -> str:
        if not self.changes:
            return ""
        return (
            f"of {len(self.changes)} changes by flags that others published, the sign was predicted right for "
            f"{self.count('right')}, wrong for {self.count('wrong')}"
        )


@functools.cache
def published_error() -> PublishedError:
    """The error on the published runs that come with the package."""
    return PublishedError(_data()["ratios"])


@functools.cache
def published_changes() -> PublishedChanges:
    """The published changes that come with the package; none where its data have none."""
    return PublishedChanges({name: (told, found) for name, (told, found) in _data().get("changes", {}).items()})


def _data() -> dict[str, Any]:
    resource = importlib.resources.files("autotune") / "data" / "published.json"
    found: dict[str, Any] = json.loads(resource.read_text(encoding="utf-8"))
    return found

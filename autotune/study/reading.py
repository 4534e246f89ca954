"""Steps of some lines of a program's output: when each came, and how long it took."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.child import StepReader, plain
from autotune.model import WARMUP_STEPS

_BAR = re.compile(r"([^\w\s]|\s)\1{7,}")
"""A bar as long as a terminal, or what is left of it: a person who is shown a line wants what is beside it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Steps of some lines: when each came, how long it took, and a line that told one, cleaned of colours and bars."""

    at_s: tuple[float, ...]
    took_s: tuple[float, ...]
    example: str

    @property
    def typical_s(self) -> float:
        """A typical step, seconds: the median, unless lines came at once; never 0."""
        took_s = self.took_s[WARMUP_STEPS:]
        typical_s = statistics.median(took_s)
        return typical_s if typical_s > 1e-6 else max(1e-6, statistics.fmean(took_s))

    @property
    def line_s(self) -> float:
        """From line to line, seconds: never less than a step, for lines that come at once tell nothing."""
        came = self.at_s[WARMUP_STEPS - 1 :]
        return max(self.typical_s, (came[-1] - came[0]) / (len(came) - 1))


def read_steps(lines: Sequence[tuple[float, str]], rules: Mapping[str, Any]) -> Reading:
    """The steps that some rules find in lines.

    Args:
        lines: Each with the second at which it came.
        rules: As `StepReader` takes them.

    Raises:
        ValueError: If a rule cannot work.
    """
    reader, at_s, took_s, example = StepReader(rules), list[float](), list[float](), ""
    for came_s, line in lines:
        step = reader.read(line, came_s)
        if step is not None and step.step_s is not None:
            at_s.append(came_s)
            took_s.append(step.step_s)
            example = _BAR.sub(r"\1\1\1…", plain(line))
    return Reading(tuple(at_s), tuple(took_s), example)

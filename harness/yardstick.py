"""Whether a set of tests became too dear, judged by what it cost when its costs were last stored.

Seconds are compared in stored ones: what a test takes now, divided by the machine's factor. That is
the median, over all tests that are in both, of now over stored, so a slower machine or a neighbour
changes no decision. A change that slows every test alike looks like a slower machine; the counts,
which no machine changes, have hard limits.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

COUNTS = {
    "processes": "starts of processes",
    "compilations": "JAX compilations",
    "studies": "simulated studies",
}

SMALL_S = 0.05
"""Of tests below it, only the sum is stored."""

CLEAR_S = 0.1
"""Stored seconds of a test from which on the clock's steps and other chance are small beside
them.
"""

FEWEST = 20
"""Tests that a median needs."""

TOLERANCE = 1.5
"""Of the limit of one test: it scatters more than a set, and the first in a worker pays for imports
and caches. That is up to five times the cost of a test, so a stored test is over its limit only if
it was so too when it was stored.
"""

COUNT_MARGIN = 1.1
"""Real studies take a pair of processes more or fewer: 395 to 413 starts were seen of one set."""

NAMED = 10


@dataclass(frozen=True)
class Cost:
    """Cost of a test: its own seconds, those of shared fixtures, and counts by name."""

    own_s: float
    shared_s: float = 0.0
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Stored:
    """Cost of a set: seconds of each test, of small tests and shared fixtures, limits of counts."""

    tests: Mapping[str, float]
    small_s: float = 0.0
    shared_s: float = 0.0
    count_limits: Mapping[str, int] = field(default_factory=dict)

    @property
    def total_s(self) -> float:
        """Seconds of the whole set."""
        return sum(self.tests.values()) + self.small_s + self.shared_s


@dataclass(frozen=True)
class Limits:
    """Stored seconds that a set and each of its tests may take; None: any."""

    set_s: float | None = None
    test_s: float | None = None


def total_s(costs: Mapping[str, Cost]) -> float:
    """Seconds of all tests now."""
    return sum(cost.own_s + cost.shared_s for cost in costs.values())


def total_counts(costs: Mapping[str, Cost]) -> dict[str, int]:
    """Each count over all tests."""
    return {name: sum(cost.counts.get(name, 0) for cost in costs.values()) for name in COUNTS}


def to_store(costs: Mapping[str, Cost]) -> Stored:
    """What of the costs is stored."""
    return Stored(
        tests={name: round(c.own_s, 2) for name, c in sorted(costs.items()) if c.own_s >= SMALL_S},
        small_s=round(sum(c.own_s for c in costs.values() if c.own_s < SMALL_S), 2),
        shared_s=round(sum(c.shared_s for c in costs.values()), 2),
        count_limits={
            name: math.ceil(round(count * COUNT_MARGIN, 3))
            for name, count in total_counts(costs).items()
        },
    )


def write(stored: Stored, file: Path) -> None:
    """Writes stored costs, a test a line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(asdict(stored), indent=0) + "\n", encoding="utf-8")


def read(file: Path) -> Stored | None:
    """Stored costs; None where there are none."""
    return Stored(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None


def machine_factor(stored: Stored, costs: Mapping[str, Cost]) -> float | None:
    """How much slower this machine is than that of the stored costs; None if few tests match."""
    both = [
        (costs[name].own_s, before)
        for name, before in stored.tests.items()
        if name in costs and before >= CLEAR_S
    ]
    return statistics.median(now / before for now, before in both) if len(both) >= FEWEST else None


def failures(stored: Stored, costs: Mapping[str, Cost], limits: Limits) -> list[str]:
    """What is over its limit, a text each, with the names of the tests that make it so."""
    failed = [
        _over_count(name, limit, costs)
        for name, limit in stored.count_limits.items()
        if total_counts(costs)[name] > limit
    ]
    if limits.set_s is None and limits.test_s is None:
        return failed
    factor = machine_factor(stored, costs)
    if factor is None:
        fewer = (
            f"Fewer than {FEWEST} of these tests have stored costs of {CLEAR_S} s, so this "
            "machine's speed is unknown"
        )
        return [*failed, f"{fewer}; store the costs of the set anew (make costs)."]
    own = {name: cost.own_s / factor for name, cost in costs.items()}
    total = total_s(costs) / factor
    if limits.set_s is not None and total > limits.set_s:
        failed.append(_over_total(total, limits.set_s, own, stored))
    if limits.test_s is not None:
        least = {name: min(s, stored.tests.get(name, s)) for name, s in own.items()}
        dear = {name: s for name, s in least.items() if s > limits.test_s * TOLERANCE}
        if dear:
            what = (
                f"Over {limits.test_s:g} stored seconds a test (and half as much again for scatter)"
            )
            failed.append(
                "\n".join(
                    [f"{what}: {len(dear)}; make them cheaper or mark them `gate`:", *_most(dear)]
                )
            )
    return failed


def _over_count(name: str, limit: int, costs: Mapping[str, Cost]) -> str:
    each = {test: cost.counts.get(name, 0) for test, cost in costs.items()}
    what = f"{sum(each.values())} {COUNTS[name]} are over this set's limit of {limit}"
    return "\n".join([f"{what}; those with most:", *_most(each, "{:8d}")])


def _over_total(total: float, limit: float, own: Mapping[str, float], stored: Stored) -> str:
    grown = {test: s - stored.tests[test] for test, s in own.items() if test in stored.tests}
    new = {test: s for test, s in own.items() if test not in stored.tests and s >= SMALL_S}
    what = (
        f"{total:.0f} stored seconds are over this set's limit of {limit:.0f}: make tests "
        "cheaper, or move some to a"
    )
    lines = [
        f"{what} later set (marker `gate` or `slow`; CONTRIBUTING.md). Seconds that grew since "
        "they were stored:"
    ]
    lines += _most({test: s for test, s in grown.items() if s > 0}, "{:+8.2f}")
    if new:
        lines += [
            f"New, or below {SMALL_S} s then ({sum(new.values()):.1f} s in all):",
            *_most(new, "{:+8.2f}"),
        ]
    return "\n".join(lines)


def _most(values: Mapping[str, float], form: str = "{:8.2f}") -> list[str]:
    largest = sorted(values.items(), key=lambda item: -item[1])[:NAMED]
    return [f"{form.format(value)}  {name}" for name, value in largest if value > 0]

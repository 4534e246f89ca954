"""Lanes on different machines: refuses unlike ones, and finds slow ones.

A trial compares a candidate with the reference of its own lane, so a slow machine is only reported.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from autotune.model.errors import LaunchError
from autotune.model.records import FloorResult, TrialResult

SLOW = 0.03
"""Excess of a lane's reference step time over the median lane's from which it is reported."""

MUST_AGREE = ("jax", "jaxlib")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEffect:
    """Speed of the reference on one lane.

    Attributes:
        ratio: Median step time of the reference over the median of all lanes.
        low: Lower decile of the ratios of its measurements.
        high: Upper decile of the ratios of its measurements.
        step_s: Median step time of the reference, seconds.
    """

    lane: str
    host: str
    ratio: float
    low: float
    high: float
    step_s: float

    @property
    def is_slow(self) -> bool:
        """Whether 90 % of the measurements are slower than the median lane, and their median by more than `SLOW`."""
        return self.ratio > 1 + SLOW and self.low > 1


def node_effects(floors: Iterable[FloorResult], trials: Iterable[TrialResult]) -> list[NodeEffect]:
    """Computes the effect of each lane's machine on its reference, slowest first; empty for one lane."""
    steps: dict[str, list[float]] = {}
    hosts: dict[str, str] = {}
    for floor in floors:
        if floor.by is not None:
            steps.setdefault(floor.by, []).append(floor.comparison.reference_step_s)
            hosts[floor.by] = str(floor.provenance.get("host", ""))
    for trial in trials:
        if trial.by in steps and trial.comparison is not None and trial.same_as is None:
            steps[trial.by].append(trial.comparison.reference_step_s)
    if len(steps) < 2:
        return []
    middle = statistics.median(statistics.median(s) for s in steps.values())
    found = []
    for lane, seen in steps.items():
        step_s = statistics.median(seen)
        low = np.quantile(seen, 0.1, method="lower") / middle
        high = np.quantile(seen, 0.9, method="higher") / middle
        found.append(
            NodeEffect(
                lane=lane, host=hosts[lane], ratio=step_s / middle, low=float(low), high=float(high), step_s=step_s
            )
        )
    return sorted(found, key=lambda n: -n.ratio)


def refuse_strangers(own: FloorResult, others: Iterable[FloorResult]) -> None:
    """Refuses a lane whose device or versions differ from those of the lanes before it.

    Raises:
        LaunchError: If they differ.
    """
    for other in others:
        a, b = other.reference, own.reference
        facts = {
            "kind of device": (a.device_kind, b.device_kind),
            "number of devices": (a.device_count, b.device_count),
        }
        facts |= {f"version of {n}": (a.versions.get(n), b.versions.get(n)) for n in MUST_AGREE}
        differing = "; ".join(f"{what}: {x} there, {y} here" for what, (x, y) in facts.items() if x != y)
        if differing:
            raise LaunchError(
                f"the lanes of one study must be alike but this one differs from {other.by or 'the one before'} "
                f"({differing}); make a study of its own for this kind, with another --run-dir"
            )


def refuse_upgraded(known: FloorResult, versions: Mapping[str, str]) -> None:
    """Refuses to resume a study after an upgrade: old and new measurements are not comparable.

    Raises:
        LaunchError: If the version of JAX, jaxlib or a CUDA plugin has changed since the noise floor was measured.
    """
    before = known.provenance.get("versions", {})
    changed = [
        f"{name} was {before[name]} and is {versions.get(name, 'not there')} now"
        for name in before
        if (name in MUST_AGREE or name.startswith("jax-cuda")) and before[name] != versions.get(name)
    ]
    if changed:
        raise LaunchError(
            f"a study must go on with the versions with which it began but {'; '.join(changed)}; begin a new one with "
            "another --run-dir, and see what changed with autotune compare OLD NEW --by jaxlib"
        )

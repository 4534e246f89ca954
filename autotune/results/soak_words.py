"""How a soak reads: what the winner did alone for a while, beside the default."""

from __future__ import annotations

from autotune.model import SoakArm, SoakRecord, describe_stalls, format_growth
from autotune.rundir import Store
from autotune.stats import memory_growth

SOAK_SLOWER = 1.1
"""A soak whose last quarter is slower than its first by more than this factor is noted."""


def describe_soak(record: SoakRecord) -> str:
    """A soak in words."""
    if record.failure is not None:
        after = f"after {record.step_count} steps" if record.step_count else "at its start"
        return f"failed {after}: {record.failure.kind.replace('_', ' ')}: {record.failure.message}"
    slower = ""
    if record.drift is not None and record.drift > SOAK_SLOWER:
        slower = f", but its last quarter took {record.drift:.2f} times as long a step as its first"
    seen = "".join(f"; {words}" for words in _seen(record))
    loss = f"; {record.loss.words}" if record.loss is not None else ""
    return f"{record.step_count} steps in {record.steps_s:.0f} s without a fault{slower}{seen}{loss}"


def _seen(record: SoakRecord) -> list[str]:
    """What both arms showed, as far as it was watched."""
    arms = record.arms
    if arms is None:
        return []
    mine, base = arms.looks[-1].candidate, arms.looks[-1].reference
    found = [describe_stalls(mine.stalls) + (f" (reference: {describe_stalls(base.stalls)})" if base else "")]
    if base is None:
        found.append("the reference failed beside it, so total times are not compared")
    if len(arms.looks) == 2:
        found.append("run twice, for something spoke against the first run and not against the second")
    if len(arms.looks) == 3:
        found.append("run three times, for something spoke against the first two and not against the third")
    growths = [
        f"{what} grows by {format_growth(growth, _growth(base, kind) or 0.0)}"
        for kind, what in (("host", "memory"), ("device", "device memory"))
        if (growth := _growth(mine, kind)) is not None
    ]
    return [*found, *(growths or ["memory not watched"])]


def _growth(arm: SoakArm | None, kind: str) -> float | None:
    return memory_growth(getattr(arm, kind)) if arm is not None else None


def soak_lines(store: Store) -> list[str]:
    """What became of the winner's long runs."""
    return [f"soak of {s.settings}: {describe_soak(s)}" for s in store.of(SoakRecord)]

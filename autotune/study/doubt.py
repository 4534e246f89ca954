"""What a screen calls dead is a prior where the GPU itself is at hand: it is measured once, all together.

A described GPU is not the one that runs: its driver, its cuDNN and its autotuner's choices are not known, and a worker
on a GPU cannot settle it by naming its program, for XLA:GPU serializes executables in a form that says nothing (see
`autotune.child.fingerprint`). So the settings that the screen leaves out are tried like any other set: all at their
first values, and all at their last. If the interval of neither is clear of the reference's time, and neither fails,
they stay out, for whatever they might do is below what this study resolves. If one is, the screen was wrong here: they
return to the space, and no two sets share a measurement because the screen calls them equal. What this cannot see are
two settings whose effects cancel, and values between the first and the last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autotune.compiler import Effect, ScreenReport, narrowed
from autotune.model import FlagSet, TrialResult
from autotune.settings import SearchSpace
from autotune.stats import Verdict, judge

DEAD_TOGETHER = "dead together"
"""The origin of trials of all dead settings at once."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """What is tried because the screen may be wrong on the GPU that runs.

    Attributes:
        sets: Of all dead settings, one or two.
        whole: The space with them, if one of the sets differs from the reference.
    """

    sets: tuple[FlagSet, ...]
    whole: SearchSpace


def doubt_of(space: SearchSpace, report: ScreenReport) -> Doubt | None:
    """The doubt in what a screen left out of a space; None if it left out nothing."""
    names = {p.name for p in space.parameters}
    dead = {s.name: [v.value for v in s.values] for s in report.of_effect(Effect.DEAD) if s.name in names and s.values}
    if not dead:
        return None
    sets = (FlagSet({n: values[i] for n, values in dead.items()}) for i in (0, -1))
    return Doubt(tuple(dict.fromkeys(sets)), narrowed(space, report, keeps_dead=True))


def contradicts(results: Iterable[TrialResult], *, min_effect: float) -> bool:
    """Whether a trial of dead settings did what no set of dead settings can do."""

    def is_off(r: TrialResult) -> bool:
        found = judge(r.comparison.estimate, min_effect=min_effect) if r.comparison is not None else None
        return r.failure is not None or found in (Verdict.FASTER, Verdict.SLOWER)

    return any(is_off(r) for r in results if r.origin == DEAD_TOGETHER)

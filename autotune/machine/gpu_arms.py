"""What was seen of GPUs over the blocks of one measurement, arm by arm, put together and in words."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from autotune.machine.gpu_counters import EVENTS, events, held_back_s
from autotune.model import HELD_BACK, ArmOfGpus, GpusDuring, held_in_one_arm

CLOCK_SPREAD = 0.05
"""Share by which the clock may differ within one measurement before it is a warning."""

LEAST_LOOKS = 5
"""Looks at each GPU within each arm's blocks, without which nothing is said of what no counter tells."""

TOO_FAST = 1.2
"""Seconds counted in a second from which on a counter does not count nanoseconds of this GPU."""

ARMS = ("reference", "candidate")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One look at one GPU; None for what it does not tell.

    Attributes:
        arm: Whose block ran; None between blocks.
        busy_percent: Share of the last moments in which anything ran on it.
        held_back_by: Why it runs below the clock it could have, see `autotune.model.HELD_BACK`.
        other_processes: Processes on it that are not this driver's; None where their numbers cannot be compared, and
            within blocks, like the other figures of its memory and limits.
    """

    index: int
    arm: str | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    busy_percent: int | None = None
    held_back_by: tuple[str, ...] | None = None
    power_limit_w: float | None = None
    used_bytes: int | None = None
    other_processes: int | None = None


@dataclass(frozen=True, slots=True)
class Looked:
    """What was seen over one measurement.

    Attributes:
        arms: Figures of each arm that was looked at.
        warnings: What makes the measurement doubtful, in words.
    """

    arms: Mapping[str, ArmOfGpus] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def during(self) -> GpusDuring | None:
        """Figures of both arms; None where one was not looked at."""
        return GpusDuring(**self.arms) if len(self.arms) == len(ARMS) else None


@dataclass(slots=True)
class ArmWatch:
    """What was seen of the blocks of one arm.

    Attributes:
        blocks: How many there were.
        counted_in: In how many of them each GPU told each time of being held back.
        counted_s: Their sum, in seconds.
    """

    seconds: float = 0.0
    blocks: int = 0
    samples: list[GpuSample] = field(default_factory=list)
    counted_in: dict[tuple[int, str], int] = field(default_factory=dict)
    counted_s: dict[tuple[int, str], float] = field(default_factory=dict)
    events: dict[tuple[int, str], int] = field(default_factory=dict)
    indices: set[int] = field(default_factory=set)

    def add(
        self,
        samples: Sequence[GpuSample],
        before: Mapping[int, Mapping[str, int]],
        after: Mapping[int, Mapping[str, int]],
        *,
        seconds: float,
    ) -> None:
        """Adds a block: the looks within it, and the counters of each GPU before and after it."""
        self.seconds += seconds
        self.blocks += 1
        self.samples += samples
        self.indices |= before.keys() | after.keys()
        for index in before.keys() & after.keys():
            for name, held in held_back_s(before[index], after[index]).items():
                self.counted_in[index, name] = self.counted_in.get((index, name), 0) + 1
                self.counted_s[index, name] = self.counted_s.get((index, name), 0.0) + held
            for name, count in events(before[index], after[index]).items():
                self.events[index, name] = self.events.get((index, name), 0) + count

    def held_s(self, index: int, reason: str) -> float | None:
        """Seconds for which a GPU was held back in these blocks: counted, else by the share of looks; None: unknown."""
        counted = self.counted_s.get((index, reason), 0.0)
        if self.blocks and self.counted_in.get((index, reason)) == self.blocks and counted <= TOO_FAST * self.seconds:
            return min(counted, self.seconds)
        seen = [s.held_back_by for s in self.samples if s.index == index and s.held_back_by is not None]
        if len(seen) < LEAST_LOOKS:
            return None
        return self.seconds * sum(reason in s for s in seen) / len(seen)

    def figures(self, reasons: Sequence[str]) -> ArmOfGpus:
        """Over all GPUs, with those reasons that both arms know."""
        by_gpu = [[s for s in self.samples if s.index == i] for i in sorted(self.indices)]
        clocks = [c for c in (_mean(g, lambda s: s.sm_clock_mhz) for g in by_gpu) if c is not None]
        powers = [p for p in (_mean(g, lambda s: s.power_w) for g in by_gpu) if p is not None]
        return ArmOfGpus(
            seconds=round(self.seconds, 3),
            looks=min((len(g) for g in by_gpu), default=0),
            held_back={r: round(max(self.held_s(i, r) or 0.0 for i in self.indices), 3) for r in reasons},
            clock_mhz=round(min(clocks)) if clocks else None,
            power_w=round(sum(powers), 1) if powers and len(powers) == len(by_gpu) else None,
            temperature_c=max((s.temperature_c for s in self.samples if s.temperature_c is not None), default=None),
        )


def put_together(arms: Mapping[str, ArmWatch], others: Mapping[int, int], trouble: Sequence[str]) -> Looked:
    """What both arms' blocks come to.

    Args:
        arms: By their names.
        others: Of each GPU, the most processes of other people that were seen on it.
        trouble: What else happened, in words.
    """
    seen = {a: arms[a] for a in ARMS if a in arms and arms[a].indices}
    watches = list(seen.values())
    indices = {i for w in watches for i in w.indices}
    reasons = [r for r in HELD_BACK if all(w.held_s(i, r) is not None for w in watches for i in indices)]
    found = Looked({a: w.figures(reasons) for a, w in seen.items()})
    warnings = [*trouble, *(held_in_one_arm([found.during]) if found.during is not None else [])]
    for index in sorted(indices | set(others)):
        warnings += _warnings_of(index, watches, others.get(index, 0))
    return Looked(found.arms, tuple(warnings))


def _warnings_of(index: int, watches: Sequence[ArmWatch], others: int) -> list[str]:
    """What was doubtful of one GPU, a sentence for each reason."""
    found = []
    seconds = sum(w.seconds for w in watches)
    for reason, words in HELD_BACK.items():
        held = [s for w in watches if (s := w.held_s(index, reason)) is not None]
        looks = [s.held_back_by for w in watches for s in w.samples if s.index == index and s.held_back_by is not None]
        if len(held) == len(watches) and sum(held) >= 0.01 * seconds > 0:
            found.append(f"GPU {index} was held back by {words} for {sum(held):.1f} of {seconds:.1f} s")
        elif len(held) < len(watches) and (count := sum(reason in s for s in looks)):
            found.append(f"GPU {index} was held back by {words} in {count} of {len(looks)} looks")
    clocks = [s.sm_clock_mhz for w in watches for s in w.samples if s.index == index and s.sm_clock_mhz]
    if clocks and max(clocks) - min(clocks) > CLOCK_SPREAD * max(clocks):
        found.append(f"GPU {index} changed its clock between {min(clocks)} and {max(clocks)} MHz meanwhile")
    for name, words in EVENTS.items():
        if count := sum(w.events.get((index, name), 0) for w in watches):
            found.append(f"GPU {index} counted {count} {words}")
    if others:
        found.append(f"GPU {index} was shared with {others} other process{'es' if others > 1 else ''}")
    return found


def _mean(samples: Sequence[GpuSample], figure: Callable[[GpuSample], float | None]) -> float | None:
    known = [v for s in samples if (v := figure(s)) is not None]
    return statistics.fmean(known) if known else None

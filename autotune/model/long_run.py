"""What the two arms of a soak did: the part of its record from which it is judged, now and by whoever audits it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from autotune.model.measurement import Record, WorkPerStep
from autotune.model.numbers import Amount, AtLeastOne, Count, Elapsed, LogRatio, StepTime
from autotune.stats import Stalls

MemorySamples = tuple[tuple[Count, Count], ...]
"""Steps that were done so far and bytes in use then."""


class MemoryUse(Record):
    """Memory in use at the end of a block.

    Attributes:
        host_bytes: Of all processes of a trial and those that they started, what is theirs: no mapped files.
        device_bytes: Of all their devices; None where the platform or the program does not tell.
    """

    host_bytes: Count | None = None
    device_bytes: Count | None = None


class SoakArm(Record):
    """One arm alone for a while.

    Attributes:
        steps_s: Seconds of all steps.
        segment_s: Mean step of each of a few equal parts of the run, in order, in seconds.
        host: Memory of its first process and what that started; empty where nobody tells.
        device: Likewise of its devices.
    """

    step_count: AtLeastOne
    steps_s: Elapsed
    stalls: Stalls
    segment_s: Annotated[tuple[StepTime, ...], Field(min_length=1, max_length=100)]
    host: Annotated[MemorySamples, Field(max_length=1000)] = ()
    device: Annotated[MemorySamples, Field(max_length=1000)] = ()


class SoakLook(Record):
    """Both arms, one after the other.

    Attributes:
        candidate: The set.
        reference: As many steps of the reference; None if it failed, then memory alone is judged.
    """

    candidate: SoakArm
    reference: SoakArm | None = None


class SoakArms(Record):
    """Both arms of a soak.

    Attributes:
        looks: One; two or three if something spoke against the set: then only what all show counts.
        typical: log of the typical step, candidate over reference, per unit of work, from the proof; None without one.
        process_sd: Standard deviation of that from one pair of processes to the next.
        work: What a step of each arm does, where it differs.
    """

    looks: Annotated[tuple[SoakLook, ...], Field(min_length=1, max_length=3)]
    typical: LogRatio | None = None
    process_sd: Amount = 0.0
    work: WorkPerStep | None = None

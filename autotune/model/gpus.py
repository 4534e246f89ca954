"""GPUs in records: what they are, what they did while blocks ran, and when that speaks against a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import Field

from autotune.model.base import Record
from autotune.model.numbers import Amount, Count, Elapsed
from autotune.model.units import format_share

HELD_BACK: Mapping[str, str] = {
    "sw_power_cap": "its power limit",
    "hw_slowdown": "a hardware slowdown",
    "sw_thermal": "heat (software)",
    "hw_thermal": "heat (hardware)",
    "power_brake": "a power brake from outside",
}
"""What lowers the clocks of a GPU below those that it could have, in words."""

LEAST_SHARE = 0.05
"""Share of one arm's time from which on it counts as held back: what is less can't have made the difference."""

OTHER_SHARE = 0.2
"""Share of that share which the other arm may have, if one alone is to be called held back."""

LEAST_S = 0.5
"""Seconds in all below which nothing is made of it."""


class GpuState(Record):
    """One GPU, as the process that ran steps on it found it; None for what it does not tell.

    Attributes:
        name: As its driver calls it; of a part that MIG made, the part's.
        index: As nvidia-smi counts.
        vbios: Version of the firmware on the board.
        gsp: Version of the firmware that the driver gives its system processor.
        max_clock_mhz: Highest clock of the multiprocessors.
        max_memory_clock_mhz: Likewise of the memory.
        application_clock_mhz: Clock that it was set to keep where it can.
        application_memory_clock_mhz: Likewise of the memory.
        power_limit_w: Set by whoever runs the machine.
        persistence: Whether its driver stays loaded when nobody uses it.
        mig: Whether it is divided.
        ecc: Whether its memory corrects errors.
    """

    name: str | None = None
    uuid: str | None = None
    index: Count | None = None
    vbios: str | None = None
    gsp: str | None = None
    max_clock_mhz: Count | None = None
    max_memory_clock_mhz: Count | None = None
    application_clock_mhz: Count | None = None
    application_memory_clock_mhz: Count | None = None
    power_limit_w: Amount | None = None
    persistence: bool | None = None
    mig: bool | None = None
    ecc: bool | None = None


class ArmOfGpus(Record):
    """What the GPUs did while the blocks of one arm ran.

    Attributes:
        seconds: Of its blocks together.
        looks: Samples of each GPU within them.
        held_back: Seconds for which the GPU that was worst off was held back, by what (`HELD_BACK`); what the GPUs do
            not tell is missing in both arms.
        clock_mhz: Mean clock of the slowest GPU's multiprocessors; None where no look fell into a block.
        power_w: Mean power of all GPUs together.
        temperature_c: Highest of any GPU.
    """

    seconds: Elapsed
    looks: Count = 0
    held_back: dict[str, Elapsed] = Field(default_factory=dict)
    clock_mhz: Amount | None = None
    power_w: Amount | None = None
    temperature_c: Count | None = None


class GpusDuring(Record):
    """What the GPUs did while the blocks of both arms ran."""

    reference: ArmOfGpus
    candidate: ArmOfGpus


def held_in_one_arm(during: Sequence[GpusDuring]) -> list[str]:
    """What held back one arm alone, over some measurements together, a sentence each; empty if nothing did.

    Whichever arm it was, the two did not run on the same machine: a gain over a reference that was held back is none,
    and of a candidate that was nobody knows what it does where it is not, or longer.
    """
    known = set(HELD_BACK).intersection(*(d.reference.held_back.keys() & d.candidate.held_back.keys() for d in during))
    found = []
    for reason in [r for r in HELD_BACK if r in known]:
        held = {arm: sum(getattr(d, arm).held_back[reason] for d in during) for arm in ("reference", "candidate")}
        whole = {arm: sum(getattr(d, arm).seconds for d in during) for arm in held}
        shares = {arm: held[arm] / whole[arm] if whole[arm] else 0.0 for arm in held}
        one = max(shares, key=lambda arm: shares[arm])
        other = min(shares.values())
        if held[one] >= LEAST_S and shares[one] >= LEAST_SHARE and other <= OTHER_SHARE * shares[one]:
            found.append(
                f"the {one} alone was held back by {HELD_BACK[reason]}: "
                f"{format_share(shares[one])} of its time, the other arm {format_share(other)}"
            )
    return found

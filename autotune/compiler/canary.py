"""The canary of a screen: a set that must change the program, so that a screen to which all is dead is not believed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.compiler.program import CompiledProgram, changes
from autotune.model import FlagSet, LaunchError, Record, Settings

if TYPE_CHECKING:
    from autotune.compiler.verdicts import Screener

GPU_CANARIES = (
    FlagSet({"xla_gpu_enable_command_buffer": ""}),  # costs no more than the reference, but not every step has graphs
    FlagSet({"xla_disable_hlo_passes": "fusion,priority-fusion,multi_output_fusion"}),
)
CPU_CANARIES = (
    FlagSet({"xla_cpu_max_isa": "SSE4_2"}),  # other machine code, on every x86 processor since 2011
    FlagSet({"xla_disable_hlo_passes": "fusion"}),
)
"""Tried in turn. Both of each change the scanned toy step of the tests on jaxlib 0.10.2 and 0.12.0.1."""


class Canary(Record):
    """A set that was compiled to see that flags act.

    Attributes:
        settings: The set, without the baseline.
        changes: What differs from the reference's program.
    """

    settings: Settings
    changes: tuple[str, ...]


def find_canary(screener: Screener, reference: CompiledProgram) -> Canary:
    """The first canary that changes the reference's program.

    Raises:
        LaunchError: If none does. Then nothing that was compiled here is believed or kept.
    """
    said: list[str] = []
    canaries = GPU_CANARIES if screener.job.target is not None else CPU_CANARIES
    for settings in canaries:
        if screener.baseline.merge(settings) == screener.baseline:
            said.append(f"[{settings}] is in the baseline")
            continue
        result = screener.result(settings)
        if result.program is None:
            said.append(f"[{settings}] does not compile" + (f": {result.failure.message}" if result.failure else ""))
        elif result.program.fingerprint == reference.fingerprint:
            said.append(f"[{settings}] gives the reference's program")
        else:
            return Canary(settings=settings, changes=tuple(changes(reference, result.program))[:3])
    screener.forget((FlagSet(), *canaries))
    raise LaunchError(
        "a screen must be able to see that a setting changes the program but no canary does: "
        f"{'; '.join(said)}; flags do not seem to reach the compiler, so nothing is called dead"
    )

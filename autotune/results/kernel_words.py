"""How it reads that XLA's autotuner chose other kernels in some processes than in others of the same set."""

from __future__ import annotations

import math
from collections.abc import Iterable

from autotune.model import ConfirmRun, FloorResult, KernelSpread, format_change, kernel_spread


def describe_kernels(spread: KernelSpread) -> str:
    """What equal processes chose, in words."""
    if not spread.others:
        return f"all {spread.processes} processes chose the same kernels"
    apart = f" (they are {format_change(math.exp(spread.apart))})" if spread.apart is not None else ""
    return f"processes chose other kernels: {spread.others} of {spread.processes}{apart}"


def kernel_lines(floors: Iterable[FloorResult], runs: Iterable[ConfirmRun]) -> list[str]:
    """One sentence for each set whose processes did not all choose the same; the default's are those of all proofs."""
    lines = [f"of the default, {describe_kernels(f.kernels)}" for f in floors if f.kernels and f.kernels.others]
    proofs = [r for r in runs if not r.is_alone]
    bases = [r for r in proofs if r.against is None]
    told = kernel_spread([r.reference_kernels for r in bases], [_less(r.log_ratio) for r in bases])
    if told is not None and told.others:
        lines.append(f"of the default in proofs, {describe_kernels(told)}")
    for settings in dict.fromkeys(r.settings for r in proofs):
        mine = [r for r in proofs if r.settings == settings]
        told = kernel_spread([r.candidate_kernels for r in mine], [r.log_ratio for r in mine])
        if told is not None and told.others:
            lines.append(f"of trial {mine[0].trial} ({settings}), {describe_kernels(told)}")
    return lines


def _less(log_ratio: float | None) -> float | None:
    return None if log_ratio is None else -log_ratio

"""What speaks against a set that is faster by its typical step: total time, stalls, leaks, in figures and in words."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from autotune.model.blocks import log_ratio
from autotune.model.gpus import held_in_one_arm
from autotune.model.long_run import SoakArms, SoakLook
from autotune.model.measurement import Failure, FailureKind, Pair, WorkPerStep
from autotune.model.records import ConfirmRun
from autotune.model.units import format_change, format_seconds
from autotune.stats import (
    Estimate,
    Stalls,
    TotalTime,
    add_stalls,
    apart_total,
    compare_totals,
    estimate_pairs,
    find_leak,
    growing_step,
    slower_run,
    slower_total,
    stalled_total,
)

PHASE = "soak"

LEAST_SEGMENTS = 4
"""Of each run, for its time to be judged."""


def total_of(pairs: Sequence[Pair], work: WorkPerStep | None = None) -> TotalTime:
    """Total times of both arms over the raw pairs of one pair of processes, nothing trimmed; per unit of work."""
    return compare_totals(
        list(itertools.chain.from_iterable(p.reference_s for p in pairs)),
        list(itertools.chain.from_iterable(p.candidate_s for p in pairs)),
        work_ratio=work.ratio if work is not None else 1.0,
    )


def figures_of(pairs: Sequence[Pair], work: WorkPerStep | None = None) -> dict[str, Any]:
    """The figures of a `ConfirmRun`, from its raw pairs."""
    return {
        "pair_count": len(pairs),
        "log_ratio": math.log(estimate_pairs([log_ratio(p, work) for p in pairs]).ratio),
        "reference_step_s": statistics.median(t for p in pairs for t in p.reference_s),
        "candidate_step_s": statistics.median(t for p in pairs for t in p.candidate_s),
        "total": total_of(pairs, work),
    }


def veto_of(runs: Sequence[ConfirmRun], typical: Estimate | None) -> str | None:
    """Why a set is no winner although its typical step may be faster; None if nothing speaks against it.

    One arm alone was held back by its GPUs, or the set is slower in total.

    Args:
        runs: All pairs of processes of one proof of the set; those of older versions do not tell totals.
        typical: The proof's estimate of the typical step.
    """
    if typical is not None and (held := held_in_one_arm([r.during for r in runs if r.during is not None])):
        return "; ".join(held)
    totals, log_ratios = _told(runs)
    if typical is None or len(totals) < 2 or (found := slower_total(totals, log_ratios, typical)) is None:
        return None
    mine, base = (add_stalls([getattr(t, arm) for t in totals]) for arm in ("candidate", "reference"))
    return f"{_stalls_beside(mine, base)}: {_in_total(found.ratio, math.log(typical.ratio))}"


def training_total(runs: Sequence[ConfirmRun], typical: Estimate) -> Estimate | None:
    """The ratio of total times, where the typical step is not what training gets; None where it is."""
    totals, log_ratios = _told(runs)
    return apart_total(totals, log_ratios, typical) if len(totals) >= 2 else None


def _told(runs: Sequence[ConfirmRun]) -> tuple[list[TotalTime], list[float]]:
    """Total times, and the log ratios of the typical steps beside them, of pairs of processes that tell both."""
    told = [(r.total, r.log_ratio) for r in runs if r.total is not None and r.log_ratio is not None]
    return [total for total, _ in told], [log_ratio for _, log_ratio in told]


def judge_soak(arms: SoakArms) -> Failure | None:
    """What a soak says against a set: a leak, stalls or slow steps that take its gain back; None if nothing.

    A machine has its moods, so what one look shows must show in the others, too.
    """
    found = [_judge_look(arms, arms.looks[: count + 1]) for count in range(len(arms.looks))]
    return found[-1] if None not in found else None


def _judge_look(arms: SoakArms, looks: Sequence[SoakLook]) -> Failure | None:
    """What the last look shows against the set, the gravest first."""
    found = next(itertools.chain(_leaks(looks[-1]), _slow(arms, looks)), None)
    return Failure(kind=found[0], message=found[1], phase=PHASE) if found is not None else None


def _leaks(look: SoakLook) -> Iterator[tuple[FailureKind, str]]:
    mine, base = look.candidate, look.reference
    for what, samples, beside in (
        ("memory", mine.host, base.host if base else ()),
        ("device memory", mine.device, base.device if base else ()),
    ):
        leak = find_leak(samples, beside, step_s=mine.stalls.typical_s)
        if leak is not None:
            yield FailureKind.LEAK, f"its {what} grows by {format_growth(leak.candidate, leak.reference)}"


def _slow(arms: SoakArms, looks: Sequence[SoakLook]) -> Iterator[tuple[FailureKind, str]]:
    candidates, references = [x.candidate for x in looks], [x.reference for x in looks if x.reference is not None]
    if len(references) < len(candidates) or any(len(a.segment_s) < LEAST_SEGMENTS for a in (*candidates, *references)):
        return
    typical, work_ratio = arms.typical, arms.work.ratio if arms.work is not None else 1.0
    stalls, beside = [a.stalls for a in candidates], [a.stalls for a in references]
    parts, parts_beside = [a.segment_s for a in candidates], [a.segment_s for a in references]
    ratio = stalled_total(stalls, beside, log_ratio=typical) if typical is not None else None
    ratio = ratio or slower_run(parts, parts_beside, work_ratio=work_ratio, process_sd=arms.process_sd)
    if ratio is not None:
        said = f"{_stalls_beside(add_stalls(stalls), add_stalls(beside))}: {_in_total(ratio, typical)}"
        yield FailureKind.SLOWER_IN_TOTAL, said
    growth = growing_step(parts[-1], parts_beside[-1], log_ratio=typical) if typical is not None else None
    if growth is not None:
        yield (
            FailureKind.SLOWS_DOWN,
            f"its steps grow {growth:.2f} times as long over {candidates[-1].step_count} steps, the reference's do "
            f"not, so it loses what a typical step gains ({format_change(math.exp(typical or 0.0))})",
        )


def _in_total(total: float, typical: float | None) -> str:
    though = "" if typical is None else f" though a typical step is {format_change(math.exp(typical))}"
    return f"{format_change(total)} in total{though}"


def _stalls_beside(mine: Stalls, base: Stalls) -> str:
    return f"{describe_stalls(mine)} (reference: {describe_stalls(base)})"


def describe_stalls(stalls: Stalls) -> str:
    """How many stalls of what size: ``one stall of 500 ms in 40 steps, 5 in all``."""
    if not stalls.count:
        return "no stall"
    size = stalls.typical_s + stalls.lost_s / stalls.count
    return f"one stall of {format_seconds(size)} in {round(stalls.steps / stalls.count)} steps, {stalls.count} in all"


def format_growth(mine: float, base: float) -> str:
    """Growth of memory: ``2.0 MB a step (reference 0.0)``."""
    unit, name = (1e6, "MB") if max(abs(mine), abs(base)) >= 5e4 else (1e3, "kB")
    return f"{mine / unit:z.1f} {name} a step (reference {base / unit:z.1f})"

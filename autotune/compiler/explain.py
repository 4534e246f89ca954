"""Explains a set against the reference: program differences, and how much communication is overlapped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from autotune.compiler.predict import MAIN, Event, Prediction, predict_step
from autotune.compiler.program import CompiledProgram, changes
from autotune.compiler.screen import Screener
from autotune.model.errors import LaunchError
from autotune.model.flags import FlagSet
from autotune.model.units import format_seconds, format_share

MOST_COLLECTIVES = 8
"""Collectives whose overlap is shown one by one, the most exposed first."""


class Side(NamedTuple):
    """One of the two programs; a CPU's has no prediction."""

    settings: str
    program: CompiledProgram
    prediction: Prediction | None


def explain_set(screener: Screener, settings: FlagSet) -> Side:
    """Compiles a set and predicts its step.

    Raises:
        LaunchError: If it does not compile.
    """
    result = screener.result(settings)
    if result.program is None:
        assert result.failure is not None
        words = "\n  ".join([result.failure.message, *result.failure.last_lines[:6]])
        raise LaunchError(f"the set must compile to be explained but did not: {words}")
    target, topology = screener.job.target, screener.job.topology
    prediction = predict_step(result.program, target, topology) if target is not None else None
    return Side(settings=str(screener.baseline.merge(settings)), program=result.program, prediction=prediction)


def explanation(reference: Side, candidate: Side, *, memory_limit_bytes: int | None) -> str:
    """Formats the differences between two programs, and the overlap of their communication."""
    lines = [f"set:     {candidate.settings}", f"against: {reference.settings}", ""]
    differences = list(changes(reference.program, candidate.program))
    if differences:
        lines += ["what differs:", *(f"  {c}" for c in differences)]
    else:
        lines.append("The two sets give one and the same program.")
    if candidate.program.memory is not None and memory_limit_bytes:
        share = format_share(candidate.program.memory.peak_bytes / memory_limit_bytes)
        lines.append(f"  the candidate's peak is {share} of what JAX takes of a GPU's memory")
    if reference.prediction and candidate.prediction:
        lines += ["", "overlap, predicted from the compiled programs, not measured (reference, candidate):"]
        lines += _overlap_lines(reference.prediction, candidate.prediction)
    return "\n".join(lines)


def _overlap_lines(reference: Prediction, candidate: Prediction) -> list[str]:
    """Communication of a step, and how much of single collectives is overlapped."""
    both = (reference, candidate)
    rows = [
        ("all communication of a step", *(format_seconds(p.communication_s) for p in both)),
        ("exposed: computing waits for it", *(format_seconds(p.exposed_s) for p in both)),
    ]
    sides = [_exposures(p.events) for p in both]
    names = sorted({n for s in sides for n in s}, key=lambda n: -max(s.get(n, (0.0, 0.0))[1] for s in sides))
    for name in names[:MOST_COLLECTIVES]:
        rows.append((f"one {name}", *(_format_exposure(s.get(name)) for s in sides)))
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    return [f"  {r[0]:<{first}}  {r[1]:>{others[0]}}  {r[2]:>{others[1]}}" for r in rows]


def _format_exposure(found: tuple[float, float] | None) -> str:
    if found is None:
        return "-"
    seconds, exposed = found
    hidden = format_share(1 - exposed / seconds) if seconds else "-"
    return f"{format_seconds(seconds)}, {hidden} hidden"


def _exposures(events: Sequence[Event]) -> dict[str, tuple[float, float]]:
    """Maps each collective to the seconds and the exposed seconds of its most exposed run."""
    waits = [(e.start_s, e.end_s) for e in events if e.kind == "wait"]
    found: dict[str, tuple[float, float]] = {}
    for event in events:
        if event.kind != "communication":
            continue
        seconds = event.end_s - event.start_s
        waited = sum(max(0.0, min(event.end_s, end) - max(event.start_s, begin)) for begin, end in waits)
        exposed = seconds if event.stream == MAIN else min(waited, seconds)
        found[event.name] = max(found.get(event.name, (seconds, 0.0)), (seconds, exposed), key=lambda f: f[1])
    return found

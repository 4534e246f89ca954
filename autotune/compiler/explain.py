"""One set against the reference as text: collectives, memory, schedule, and what overlaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.compiler.predict import MAIN, Event, Prediction, predict_step
from autotune.compiler.program import CompiledProgram, changes, collectives, figures
from autotune.compiler.screen import Screener
from autotune.model import FlagSet, LaunchError, format_bytes, format_seconds, format_share

PREDICTED = "Times of collectives are predicted from the compiled program, not measured."

MOST_COLLECTIVES = 8
"""Collectives whose overlap is shown one by one: those that computing waits for longest."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two programs, with its prediction; None for a CPU."""

    settings: str
    program: CompiledProgram
    prediction: Prediction | None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of (what, reference, candidate)."""

    title: str
    rows: tuple[tuple[str, str, str], ...]


def explain_set(screener: Screener, settings: FlagSet) -> Side:
    """One set as a side of an explanation.

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
    """What differs between two programs, and tables of both, as text for a terminal."""
    lines = [f"set:     {candidate.settings}", f"against: {reference.settings}", ""]
    differences = list(changes(reference.program, candidate.program))
    lines += (
        ["what differs:", *(f"  {c}" for c in differences)]
        if differences
        else ["The two sets give one and the same program."]
    )
    for table in _tables(reference, candidate, memory_limit_bytes):
        rows = [("", "reference", "candidate"), *table.rows]
        widths = [max(len(r[i]) for r in rows) for i in range(3)]
        lines += ["", table.title]
        for number, row in enumerate(rows):
            mark = "*" if number and row[1] != row[2] else " "
            cells = f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}"
            lines.append(f"  {mark} {cells}".rstrip())
    if candidate.prediction:
        lines += ["", PREDICTED]
    return "\n".join(lines)


def _tables(reference: Side, candidate: Side, memory_limit_bytes: int | None) -> list[Table]:
    found = [
        _collective_table(reference.program, candidate.program),
        _memory_table(reference.program, candidate.program, memory_limit_bytes),
        _schedule_table(reference.program, candidate.program),
    ]
    if reference.prediction and candidate.prediction:
        found.append(_overlap_table(reference.prediction, candidate.prediction))
    return [t for t in found if t.rows]


def _collective_table(reference: CompiledProgram, candidate: CompiledProgram) -> Table:
    before, after = collectives(reference), collectives(candidate)
    rows = []
    for kind, is_async in sorted({*before, *after}):
        what = f"{kind}, {'asynchronous' if is_async else 'synchronous'}"
        old, new = (t.get((kind, is_async), (0, 0, 0)) for t in (before, after))
        rows.append((what, _collective_cell(old), _collective_cell(new)))
    return Table("Collectives: in the program, runs and bytes a step", tuple(rows))


def _collective_cell(found: tuple[int, int, int]) -> str:
    count, runs, size = found
    return f"{count}, {runs} runs, {format_bytes(size)}" if count else "-"


def _memory_table(reference: CompiledProgram, candidate: CompiledProgram, limit: int | None) -> Table:
    before, after = reference.memory, candidate.memory
    if before is None or after is None:
        return Table("", ())
    rows = [
        ("arguments", before.argument_bytes, after.argument_bytes),
        ("results in the arguments' place", before.alias_bytes, after.alias_bytes),
        ("temporaries", before.temp_bytes, after.temp_bytes),
        ("peak", before.peak_bytes, after.peak_bytes),
    ]
    shown = [(what, format_bytes(old), format_bytes(new)) for what, old, new in rows]
    if limit:
        old, new = (format_share(m.peak_bytes / limit) for m in (before, after))
        shown.append((f"share of {format_bytes(limit)}", old, new))
    return Table("Memory of one GPU", tuple(shown))


def _schedule_table(reference: CompiledProgram, candidate: CompiledProgram) -> Table:
    before, after = figures(reference), figures(candidate)
    names = [n for n in [*before, *(n for n in after if n not in before)] if "bytes" not in n and "sync)" not in n]
    rows = tuple((n, str(before.get(n, 0)), str(after.get(n, 0))) for n in names if before.get(n) or after.get(n))
    return Table("Schedule", rows)


def _overlap_table(reference: Prediction, candidate: Prediction) -> Table:
    """Predicted communication of a step, and of single runs of collectives how much computing hides."""
    rows = [
        (what, format_seconds(getattr(reference, name)), format_seconds(getattr(candidate, name)))
        for what, name in (
            ("all communication of a step", "communication_s"),
            ("exposed: computing waits for it", "exposed_s"),
        )
    ]
    sides = [_exposures(p.events) for p in (reference, candidate)]
    names = sorted({n for s in sides for n in s}, key=lambda n: -max(s.get(n, (0.0, 0.0))[1] for s in sides))
    for name in names[:MOST_COLLECTIVES]:
        before, after = (_exposure_cell(s.get(name)) for s in sides)
        rows.append((f"one {name}", before, after))
    return Table("Overlap", tuple(rows))


def _exposure_cell(found: tuple[float, float] | None) -> str:
    if found is None:
        return "-"
    seconds, exposed = found
    hidden = format_share(1 - exposed / seconds) if seconds else "-"
    return f"{format_seconds(seconds)}, {hidden} hidden"


def _exposures(events: Sequence[Event]) -> dict[str, tuple[float, float]]:
    """Collective to the seconds of its most exposed run, and how many of them computing waits."""
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

"""One set against the reference: tables of both programs, what waits for what, as text and as a page."""

from __future__ import annotations

import importlib.resources
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.compiler import program as programs
from autotune.compiler.predict import MAIN, Event, Prediction
from autotune.compiler.program import CompiledProgram, changes
from autotune.model import format_bytes, format_seconds, format_share, visible

PREDICTED = "Step times are predicted from the compiled program, not measured."
_LANE_HEIGHT, _LABEL_WIDTH, _DRAWN_WIDTH = 26, 190, 2200
_LEAST_WIDTH = 0.15
_LOOP_SHARE = 0.08
"""Width of "n more iterations" on the page, as a share of what is drawn to scale."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two programs, with its prediction if the target's rates are known."""

    settings: str
    program: CompiledProgram
    prediction: Prediction | None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of (what, reference, candidate)."""

    title: str
    head: tuple[str, str, str]
    rows: tuple[tuple[str, str, str], ...]


def tables(reference: Side, candidate: Side, *, memory_limit_bytes: int | None) -> list[Table]:
    """Collectives, memory, schedule and predicted times of both programs."""
    found = [_collective_table(reference.program, candidate.program)]
    found.append(_memory_table(reference.program, candidate.program, memory_limit_bytes))
    found.append(_schedule_table(reference.program, candidate.program))
    if reference.prediction and candidate.prediction:
        found.append(_time_table(reference.prediction, candidate.prediction))
        found.append(_overlap_table(reference.prediction, candidate.prediction))
    return [t for t in found if t.rows]


def as_text(reference: Side, candidate: Side, *, memory_limit_bytes: int | None) -> str:
    """The whole explanation as text for a terminal."""
    lines = [f"set:     {candidate.settings}", f"against: {reference.settings}", ""]
    told = list(changes(reference.program, candidate.program))
    lines += ["what differs:", *(f"  {c}" for c in told)] if told else ["The two sets give one and the same program."]
    for table in tables(reference, candidate, memory_limit_bytes=memory_limit_bytes):
        rows = [table.head, *table.rows]
        widths = [max(len(r[i]) for r in rows) for i in range(3)]
        lines += ["", table.title]
        for row in rows:
            mark = "*" if row is not table.head and row[1] != row[2] else " "
            cells = f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}"
            lines.append(f"  {mark} {cells}".rstrip())
    if candidate.prediction:
        lines += ["", PREDICTED]
    return "\n".join(lines)


def as_page(reference: Side, candidate: Side, *, title: str, memory_limit_bytes: int | None) -> str:
    """The explanation as one HTML page without any outside part."""
    import jinja2

    template = importlib.resources.files("autotune") / "data" / "explain.html.j2"
    environment = jinja2.Environment(
        autoescape=True,
        finalize=lambda shown: visible(shown) if isinstance(shown, str) else shown,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    sides = [("Reference", reference), ("Candidate", candidate)]
    return environment.from_string(template.read_text(encoding="utf-8")).render(
        title=title,
        settings=candidate.settings,
        baseline=reference.settings,
        note=PREDICTED if candidate.prediction else "The target's rates are not known: no time is predicted.",
        changes=list(changes(reference.program, candidate.program)),
        tables=tables(reference, candidate, memory_limit_bytes=memory_limit_bytes),
        timelines=[_timeline(name, s.prediction) for name, s in sides if s.prediction],
    )


def _collective_table(reference: CompiledProgram, candidate: CompiledProgram) -> Table:
    before, after = programs.collectives(reference), programs.collectives(candidate)
    rows = []
    for kind, is_async in sorted({*before, *after}):
        what = f"{kind}, {'asynchronous' if is_async else 'synchronous'}"
        old, new = (t.get((kind, is_async), (0, 0, 0)) for t in (before, after))
        rows.append((what, _collective_cell(old), _collective_cell(new)))
    head = ("collectives: in the program, runs and bytes a step", "reference", "candidate")
    return Table("Collectives", head, tuple(rows))


def _collective_cell(found: tuple[int, int, int]) -> str:
    count, runs, size = found
    return f"{count}, {runs} runs, {format_bytes(size)}" if count else "-"


def _memory_table(reference: CompiledProgram, candidate: CompiledProgram, limit: int | None) -> Table:
    before, after = reference.memory, candidate.memory
    if before is None or after is None:
        return Table("Memory", ("", "", ""), ())
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
    return Table("Memory of one GPU", ("bytes", "reference", "candidate"), tuple(shown))


def _schedule_table(reference: CompiledProgram, candidate: CompiledProgram) -> Table:
    before, after = programs.figures(reference), programs.figures(candidate)
    names = [n for n in [*before, *(n for n in after if n not in before)] if "bytes" not in n and "sync)" not in n]
    rows = tuple((n, str(before.get(n, 0)), str(after.get(n, 0))) for n in names if before.get(n) or after.get(n))
    return Table("Schedule", ("count", "reference", "candidate"), rows)


def _time_table(reference: Prediction, candidate: Prediction) -> Table:
    rows = [
        (what, format_seconds(getattr(reference, name)), format_seconds(getattr(candidate, name)))
        for what, name in (
            ("step", "step_s"),
            ("kernels", "compute_s"),
            ("communication, hidden or not", "communication_s"),
            ("exposed communication", "exposed_s"),
            ("idle", "idle_s"),
        )
    ]
    if reference.mfu is not None and candidate.mfu is not None:
        rows.append(("MFU", format_share(reference.mfu), format_share(candidate.mfu)))
    return Table("Predicted times", ("of one step", "reference", "candidate"), tuple(rows))


def _overlap_table(reference: Prediction, candidate: Prediction) -> Table:
    """The collectives that computing waits for longest, of what was simulated one by one: how much is hidden."""
    sides = [_exposures(p.events) for p in (reference, candidate)]
    names = sorted({n for s in sides for n in s}, key=lambda n: -max(s.get(n, (0.0, 0.0))[1] for s in sides))[:8]
    rows = tuple((n, _exposure_cell(sides[0].get(n)), _exposure_cell(sides[1].get(n))) for n in names)
    return Table("Overlap", ("one run of a collective, and what of it computing hides", "reference", "candidate"), rows)


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


def _timeline(title: str, prediction: Prediction) -> dict[str, object]:
    """Boxes of a page's time line; what stands for many iterations is drawn short."""
    streams = sorted({e.stream for e in prediction.events}, key=lambda s: (s != MAIN, s))
    loops = [(e.start_s, e.end_s) for e in prediction.events if e.kind == "loop"]
    total = max((e.end_s for e in prediction.events), default=0.0)
    exact = total - sum(end - start for start, end in loops)
    short = _LOOP_SHARE * exact
    drawn = exact + short * len(loops)
    scale = _DRAWN_WIDTH / drawn if drawn else 0.0

    def place(at_s: float) -> float:
        cut = 0.0
        for start, end in loops:
            if at_s > start and end > start:
                cut += (min(at_s, end) - start) * (1 - short / (end - start))
        return _LABEL_WIDTH + (at_s - cut) * scale

    boxes = [
        {
            "kind": e.kind,
            "x": round(place(e.start_s), 2),
            "y": 4 + _LANE_HEIGHT * streams.index(e.stream),
            "width": round(max(place(e.end_s) - place(e.start_s), _LEAST_WIDTH), 2),
            "label": f"{e.name}: {format_seconds(e.end_s - e.start_s)}",
        }
        for e in prediction.events
    ]
    return {
        "title": title,
        "caption": f"predicted step {format_seconds(prediction.step_s)}, exposed communication "
        f"{format_seconds(prediction.exposed_s)}; loops after their first iterations are drawn short",
        "width": _LABEL_WIDTH + _DRAWN_WIDTH + 10,
        "height": _LANE_HEIGHT * max(1, len(streams)) + 8,
        "lanes": [{"name": s, "y": 4 + _LANE_HEIGHT * i} for i, s in enumerate(streams)],
        "boxes": boxes,
    }

"""Renders a study as one self-contained HTML page or as Markdown: the verdict first, then the evidence."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any

from autotune.model.errors import AutotuneError
from autotune.model.records import (
    REFERENCE_NUMBER,
    ConclusionRecord,
    FloorResult,
    LedgerRecord,
    Outcome,
    ScreenRecord,
    SessionRecord,
    TrialResult,
)
from autotune.model.units import format_bytes, format_count, format_joules, format_provable, format_seconds
from autotune.results import tables
from autotune.results.effects import effect_lines, effects_chart, estimate_table
from autotune.results.format import (
    cause_lines,
    floor_lines,
    format_estimate,
    format_progress,
    format_trial,
    provable_gain,
    soak_lines,
    spaced,
    time_words,
    warning_lines,
)  # fmt: skip
from autotune.results.pages import Chart, Mark, forest, render, traces
from autotune.results.recompute import doubts
from autotune.results.screen_words import describe_screen_record
from autotune.results.tables import TrialRow, effect_rows, finalists, trial_rows
from autotune.results.winner import format_evidence, winner_of, workload_name
from autotune.rundir.lock import is_held
from autotune.rundir.store import Store

LONGEST_TABLE = 300
"""Limit of rows in the table of trials; `autotune show` and `records.jsonl` have all."""

_TONES = {Outcome.WINNER: "winner", Outcome.NOTHING_RAN: "none", Outcome.INCONCLUSIVE: "none"}


def render_html(store: Store, *, reload_s: float | None = None) -> str:
    """Renders a study as one self-contained HTML page; the browser reloads it after `reload_s` seconds."""
    return render("report.html.j2", r=build(store), reload_s=reload_s)


def render_markdown(store: Store) -> str:
    """Renders a study as Markdown, without charts."""
    return render("report.md.j2", r=build(store))


def build(store: Store) -> dict[str, Any]:
    """Collects everything a page shows of a run directory; the templates only lay it out.

    Returns:
        state (finished, running, stopped or empty), verdict (one sentence), tone (winner, default or none: its colour),
        figures (name and value), tables (lists of rows: text by column heading), charts, and lines of text.

    Raises:
        RunDirectoryError: If records are damaged.
    """
    trials = trial_rows(store)
    state, verdict, tone = _verdict(store, trials)
    floor = store.last(FloorResult)
    ordered = sorted(trials, key=lambda r: r.rank)
    return {
        "name": store.spec.name,
        "description": store.spec.description,
        "state": state,
        "verdict": verdict,
        "tone": tone,
        "figures": _figures(store, trials, floor),
        "finalists": tables.finalist_table(finalists(store)),
        "soak": soak_lines(store),
        "floor": floor_lines(store),
        "screen": [line for record in store.of(ScreenRecord)[-1:] for line in describe_screen_record(record)],
        "forest": forest_chart(store, trials) if trials or floor else None,
        "steps": steps_chart(store),
        "effect_lines": effect_lines(store),
        "estimates": estimate_table(store),
        "estimates_chart": effects_chart(store),
        "effects": tables.effect_table(effect_rows(store)),
        "failures": _failures(trials),
        "causes": cause_lines(store),
        "trials": tables.trial_table(ordered[:LONGEST_TABLE]),
        "trials_left_out": max(0, len(ordered) - LONGEST_TABLE),
        "warnings": [*doubts(store), *warning_lines(store)],
        "provenance": _provenance(store, floor),
        "commands": _commands(store),
    }


# ---------------------------------------------------------------------- verdict and figures


def _verdict(store: Store, trials: Sequence[TrialRow]) -> tuple[str, str, str]:
    """Returns state, verdict and tone."""
    conclusion, running = store.last(ConclusionRecord), is_held(store.path)
    newest = max((r.at_s for r in trials), default=0.0)
    if conclusion is not None and newest <= conclusion.at_s and not running:
        return "finished", conclusion.sentence, _TONES.get(conclusion.outcome, "default")
    state = "running" if running else "stopped" if store.last(SessionRecord) else "empty"
    return state, format_progress(store, state), "none"


def _figures(store: Store, trials: Sequence[TrialRow], floor: FloorResult | None) -> list[tuple[str, str]]:
    conclusion = store.last(ConclusionRecord)
    rows = []
    if conclusion is not None and conclusion.estimate is not None:
        of = time_words(store, conclusion.settings)
        rows.append((f"{of} ratio", format_estimate(conclusion.estimate)))
    rows += [
        ("trials", str(len(trials))),
        ("failed", str(sum(r.failure is not None for r in trials))),
        ("duplicates skipped", str(sum(r.same_as is not None for r in trials))),
        ("time", format_seconds(max((r.at_s for r in store.records()), default=0.0))),
    ]
    if floor is not None:
        w, step_s, energy = floor.reference, floor.comparison.reference_step_s, floor.comparison.energy
        tokens, flops = w.tokens_per_step, w.flops_per_step
        rows.append(("default's step", format_seconds(step_s)))
        if (provable := provable_gain(store)) is not None:
            rows.append(("gains that are proven 9 times in 10", f"from {format_provable(provable)}"))
        rows += [("default's tokens/s", format_count(tokens / step_s))] if tokens else []
        if energy is not None:
            rows.append(("default's energy of a step", format_joules(energy.reference_step_j)))
        rows += [("default's model FLOP/s", format_count(flops / step_s))] if flops else []
    return rows


# ---------------------------------------------------------------------- charts


def forest_chart(store: Store, trials: Sequence[TrialRow], *, most: int | None = None) -> Chart:
    """Draws ratio and interval of the A/A run and of every trial that did not fail, or of the best `most`."""
    floor, rows = store.last(FloorResult), []
    if floor is not None:
        label, e = "the default against itself", floor.floor.estimate
        rows.append(Mark(label=label, detail="the A/A run", x=e.ratio, x_ends=(e.low, e.high), style="floor"))
    shown = [r for r in sorted(trials, key=lambda r: r.rank) if r.failure is None and not math.isnan(r.ratio)]
    for r in shown[:most]:
        short = r.settings.replace("xla_gpu_", "").replace("xla_cpu_", "").replace("xla_", "")
        detail = f"trial {r.trial}: {r.settings}: {format_trial(r.result, r.outlook)}"
        rows.append(Mark(label=f"{r.trial}  {short}", detail=detail, x=r.ratio, x_ends=(r.low, r.high), style=r.style))
    svg = forest(rows, band=store.spec.measure.min_effect, of=time_words(store))
    note = "Intervals hold over all looks at a trial. The shaded band is too small to matter."
    return Chart(title="All trials", svg=svg, note=note)


def steps_chart(store: Store, number: int = REFERENCE_NUMBER) -> Chart:
    """Draws the raw step times of a trial, or of the A/A run, in execution order; empty if there are none."""
    directories = {r.number: r.directory for r in store.of(TrialResult)}
    if (floor := store.last(FloorResult)) is not None:
        directories[REFERENCE_NUMBER] = floor.directory
    blocks: list[tuple[str, Sequence[float]]] = []
    directory = directories.get(number)
    for pair in store.pairs(directory) if directory else ():
        arms = [("reference", pair.reference_s), ("candidate", pair.candidate_s)]
        blocks += arms if pair.first == "reference" else arms[::-1]
    title = f"trial {number}" if number != REFERENCE_NUMBER else "the default against itself (A/A run)"
    note = f"{len(blocks) // 2} pairs of blocks; raw in {directory}/pairs.jsonl"
    return Chart(title=title, svg=traces(blocks), note=note)


# ---------------------------------------------------------------------- failures, provenance, commands


def _failures(trials: Sequence[TrialRow]) -> list[dict[str, Any]]:
    """Groups failures by kind, most frequent first; equal messages are merged."""
    found = []
    for kind, count in Counter(r.failure for r in trials if r.failure is not None).most_common():
        cases: dict[str, dict[str, Any]] = {}
        for r in trials:
            failure = r.result.failure
            if failure is None or failure.kind != kind:
                continue
            case = cases.setdefault(failure.message, {"trials": [], "message": failure.message})
            case["trials"].append(r.trial)
            case |= {"log": failure.log or "", "last_lines": failure.last_lines}
        found.append({"kind": spaced(kind), "count": count, "cases": list(cases.values())[:8]})
    return found


def _provenance(store: Store, floor: FloorResult | None) -> list[tuple[str, str]]:
    spec, conclusion = store.spec, store.last(ConclusionRecord)
    facts = conclusion.provenance if conclusion and conclusion.provenance else floor.provenance if floor else {}
    rows = [("run directory", str(store.path)), ("study", spec.name), ("identity", spec.identity)]
    rows.append(("workload", f"{workload_name(spec)} {spec.workload.shown.options or ''} (hash {spec.workload_hash})"))
    if floor is not None:
        w = floor.reference
        rows.append(("device", f"{w.device_count} x {w.device_kind} ({w.platform}), {w.process_count} process(es)"))
        if w.mesh:
            rows.append(("mesh", " x ".join(f"{k} {v}" for k, v in w.mesh.items())))
        rows.append(("program", w.fingerprint))
        rows.append(("loss tolerance", f"{floor.loss_tolerance:.1e} (relative)"))
        if floor.rounding is not None:
            rows.append(("loss in another rounding", f"off by {floor.rounding:.1e} (relative)"))
    rows += [(f"version of {n}", str(v)) for n, v in sorted(facts.get("versions", {}).items())]
    for name, value in facts.items():
        if name == "memory_bytes":
            rows.append(("memory", format_bytes(value)))
        elif name != "versions":
            rows.append((name.replace("_", " "), str(value)))
    if (ledger := store.last(LedgerRecord)) is not None:
        rows.append(("device hours", f"{ledger.device_s / 3600:.3f}, all sessions together"))
    for s in store.of(SessionRecord):
        rows.append(("session", f"{s.started} on {s.host}: {shlex.join(s.command) or 'by API'}"))
    return rows


def _commands(store: Store) -> list[str]:
    """Lists commands that show more, use the winner, and repeat the study."""
    run = shlex.quote(str(store.path))
    again = [
        f"{shlex.join(('autotune', *s.command[1:]))}   # made this, on {s.started[:10]}"
        for s in store.of(SessionRecord)
        if len(s.command) > 1
    ]
    conclusion = store.last(ConclusionRecord)
    shared = [f"autotune show {run}", *dict.fromkeys(again)]
    try:
        winner = winner_of(store)
    except AutotuneError:
        return [*shared, f"autotune run STUDY.toml --run-dir {run}   # continues where it stopped"]
    lines = [
        f"autotune export {run} --format env -o winner.env",
        "autotune verify winner.env",
        f"autotune exec {run} -- python train.py",
        f"autotune recheck {run}",
        *shared,
    ]
    if conclusion is not None and conclusion.trial is not None:
        lines.append(f"autotune repro {run} {conclusion.trial}")
    lines += [f"# {line}" for line in format_evidence(winner)]
    return [*lines, *(f"export {n}={shlex.quote(v)}" for n, v in winner.environment.items())]

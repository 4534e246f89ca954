"""A study as one self-contained HTML page, or as Markdown: the verdict first, then everything it rests on."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any

from autotune.model import (
    AutotuneError,
    ConclusionRecord,
    FloorResult,
    LedgerRecord,
    Outcome,
    ScreenRecord,
    SessionRecord,
    SpanRecord,
    artefacts_of,
    format_bytes,
    format_count,
    format_detectable,
    format_joules,
    format_seconds,
    format_share,
)
from autotune.results import analysis, drawings, tables, taught, words
from autotune.results.pages import render
from autotune.results.recompute import doubts
from autotune.results.rows import TrialRow, effect_rows, finalists, trial_rows
from autotune.results.screen_words import describe_screen_record
from autotune.results.soak_words import soak_lines
from autotune.results.winner import winner_of, workload_name
from autotune.rundir import Store, is_held

LONGEST_TABLE = 300
"""Rows of the table of trials; a longer study's rest is in `autotune show` and `records.jsonl`."""

_TONES = {
    Outcome.WINNER: "winner",
    Outcome.NOTHING_RAN: "none",
    Outcome.INCONCLUSIVE: "none",
}


def render_html(store: Store, *, reload_s: float | None = None) -> str:
    """A study as one HTML page that loads nothing; the browser reads it again after `reload_s` seconds."""
    return render("report.html.j2", r=build(store), reload_s=reload_s)


def render_markdown(store: Store) -> str:
    """A study as Markdown: the same, less the charts."""
    return render("report.md.j2", r=build(store))


def build(store: Store) -> dict[str, Any]:
    """All that a page shows of a run directory, in whatever state it is; the templates only lay it out.

    Returns:
        state (finished, running, stopped or empty), verdict (the one sentence), tone (winner, default or none: how that
        is coloured), figures (name and value of the few numbers on top), tables (lists of rows, each a text under the
        heading of its column), charts, and lines of words.

    Raises:
        RunDirectoryError: If its records are damaged.
    """
    trials = trial_rows(store)
    state, verdict, tone = _verdict(store, trials)
    floor = store.last(FloorResult)
    importance, interactions = analysis.importance_frame(store), analysis.interactions_frame(store)
    ordered = sorted(trials, key=lambda r: r.rank)
    resources = drawings.resource_charts(trials)
    return {
        "name": store.spec.name,
        "description": store.spec.description,
        "state": state,
        "verdict": verdict,
        "tone": tone,
        "figures": _figures(store, trials, floor),
        "finalists": tables.finalist_table(finalists(store)),
        "soak": soak_lines(store),
        "nodes": tables.node_table(store),
        "floor": words.floor_lines(store),
        "screen": [line for record in store.of(ScreenRecord)[-1:] for line in describe_screen_record(record)],
        "forest": drawings.forest_chart(store, trials) if trials or floor else None,
        "history": drawings.history_chart(trials),
        "traces": drawings.trace_charts(store, trials),
        "taught": taught.taught_lines(store),
        "beliefs": taught.belief_table(store),
        "beliefs_chart": taught.beliefs_chart(store),
        "effects": tables.effect_table(effect_rows(store)),
        "importance": drawings.importance_chart(importance),
        "interactions": tables.interaction_table(interactions),
        "resources": resources,
        "pareto": tables.pareto_table(trials) if resources else [],
        "failures": _failures(trials),
        "causes": words.cause_lines(store),
        "trials": tables.trial_table(ordered[:LONGEST_TABLE]),
        "has_energy": tables.has_energy(trials),
        "trials_left_out": max(0, len(ordered) - LONGEST_TABLE),
        "warnings": [*doubts(store), *words.warning_lines(store)],
        "provenance": _provenance(store, floor),
        "commands": _commands(store),
    }


# ---------------------------------------------------------------------- verdict and figures


def _verdict(store: Store, trials: Sequence[TrialRow]) -> tuple[str, str, str]:
    """State, the one sentence, and its tone."""
    conclusion, running = store.last(ConclusionRecord), is_held(store.path)
    newest = max((r.at_s for r in trials), default=0.0)
    if conclusion is not None and newest <= conclusion.at_s and not running:
        return "finished", conclusion.sentence, _TONES.get(conclusion.outcome, "default")
    state = "running" if running else "stopped" if store.last(SessionRecord) else "empty"
    return state, words.describe_standing(store, state), "none"


def _figures(store: Store, trials: Sequence[TrialRow], floor: FloorResult | None) -> list[tuple[str, str]]:
    conclusion, spans = store.last(ConclusionRecord), store.of(SpanRecord)
    rows = []
    if conclusion is not None and conclusion.estimate is not None:
        of = words.time_words(store, conclusion.settings)
        rows.append((f"{of} ratio", words.format_estimate(conclusion.estimate)))
    rows += [
        ("trials", str(len(trials))),
        ("failed", str(sum(r.failure is not None for r in trials))),
        ("not measured twice", str(sum(r.same_as is not None for r in trials))),
        ("time", format_seconds(max((r.at_s for r in store.records()), default=0.0))),
    ]
    if floor is not None:
        w, step_s, energy = floor.reference, floor.comparison.reference_step_s, floor.comparison.energy
        tokens, flops = w.tokens_per_step, w.flops_per_step
        rows.append(("default's step", format_seconds(step_s)))
        rows.append(("smallest effect found here", format_detectable(floor.floor.detectable)))
        rows += [("default's tokens/s", format_count(tokens / step_s))] if tokens else []
        if energy is not None:
            rows.append(("default's energy of a step", format_joules(energy.reference_step_j)))
        rows += [("default's model FLOP/s", format_count(flops / step_s))] if flops else []
    if wall_s := sum(s.wall_s for s in spans):
        rows.append(("driver's own share", format_share(1 - sum(s.waited_s for s in spans) / wall_s)))
    return rows


# ---------------------------------------------------------------------- what went wrong, where from


def _failures(trials: Sequence[TrialRow]) -> list[dict[str, Any]]:
    """Failures by kind, most frequent first; equal messages are shown once."""
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
        found.append({"kind": words.spaced(kind), "count": count, "cases": list(cases.values())[:8]})
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
    """What to type to see more, to use the winner, and to make the study again."""
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
        return [*shared, f"autotune run STUDY.toml --run-dir {run}   # goes on where it stopped"]
    lines = [
        f"autotune export {run} --format env -o winner.env",
        "autotune verify winner.env",
        f"autotune exec {run} -- python train.py",
        f"autotune recheck {run}",
        *shared,
    ]
    if conclusion is not None and conclusion.trial is not None:
        lines.append(f"autotune repro {run} {conclusion.trial}")
    lines += [f"# {line}" for line in words.evidence(winner)]
    if artefacts_of(winner.in_force):  # it has no environment without the files beside it
        return lines
    return [*lines, *(f"export {n}={shlex.quote(v)}" for n, v in winner.environment.items())]

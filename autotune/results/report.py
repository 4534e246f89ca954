"""Renders a study as one self-contained HTML page or as Markdown: the verdict first."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import Any

from autotune.model.errors import AutotuneError
from autotune.model.records import (
    REFERENCE_NUMBER,
    AaRecord,
    ConclusionRecord,
    Outcome,
    ScreenRecord,
    SessionRecord,
    TrialResult,
)
from autotune.model.spec import StudySpec
from autotune.model.units import format_bytes, format_count, format_seconds
from autotune.results import tables
from autotune.results.audit import doubts
from autotune.results.conditions import conditions_of
from autotune.results.effects import effect_lines, effects_chart, estimate_table
from autotune.results.format import (
    aa_lines,
    ablation_lines,
    cause_lines,
    format_progress,
    format_trial,
    run_state,
    shorten,
    soak_lines,
    spaced,
    time_words,
    warning_lines,
)  # fmt: skip
from autotune.results.pages import Chart, Mark, forest, render, traces
from autotune.results.screen_words import describe_screen_record
from autotune.results.tables import TrialRow, finalists, trial_rows
from autotune.results.winner import winner_of, workload_name
from autotune.rundir.store import Store

LONGEST_TABLE = 300
"""Limit of rows in the table of trials; `autotune show` and `records.jsonl` have all."""

_TONES = {Outcome.WINNER: "winner", Outcome.NOTHING_RAN: "none", Outcome.INCONCLUSIVE: "none"}


def render_html(store: Store) -> str:
    """Renders a study as one self-contained HTML page."""
    return render("report.html.j2", r=build(store))


def render_markdown(store: Store) -> str:
    """Renders a study as Markdown, without charts."""
    return render("report.md.j2", r=build(store))


def build(store: Store) -> dict[str, Any]:
    """Collects everything a page shows of a run directory; the templates only lay it out.

    Returns:
        state (finished, running, stopped or empty), verdict (one sentence), winner (its settings), tone (winner,
        default or none: its colour), tables (lists of rows: text by column heading), charts, and lines of text.
    """
    trials = trial_rows(store)
    state, conclusion = run_state(store)
    conclusion = conclusion if state == "finished" else None
    verdict, *evidence = _verdict(conclusion) if conclusion is not None else [format_progress(store, state)]
    aa_run = store.last(AaRecord)
    ordered = sorted(trials, key=lambda r: r.rank)
    return {
        "name": store.spec.name,
        "description": store.spec.description,
        "subject": subject(store),
        "state": state,
        "verdict": verdict,
        "winner": list(conclusion.settings.words) if conclusion and conclusion.settings else [],
        "tone": _TONES.get(conclusion.outcome, "default") if conclusion is not None else "none",
        "evidence": [*evidence, _effort(store, trials)],
        "finalists": tables.finalist_table(finalists(store)),
        "soak": soak_lines(store),
        "aa_run": [*aa_lines(store), *(_throughput(aa_run) if aa_run is not None else ())],
        "screen": [line for record in store.of(ScreenRecord)[-1:] for line in describe_screen_record(record)],
        "forest": forest_chart(store, trials) if trials or aa_run else None,
        "steps": steps_chart(store),
        "effect_lines": effect_lines(store),
        "estimates": estimate_table(store),
        "estimates_chart": effects_chart(store),
        "ablations": ablation_lines(store),
        "profile": tables.profile_table(store),
        "failures": _failures(trials),
        "causes": cause_lines(store),
        "trials": tables.trial_table(ordered[:LONGEST_TABLE]),
        "trials_left_out": max(0, len(ordered) - LONGEST_TABLE),
        "warnings": [*doubts(store), *warning_lines(store)],
        "provenance": _provenance(store, aa_run),
        "commands": _commands(store),
    }


# ---------------------------------------------------------------------- verdict


def subject(store: Store) -> dict[str, str]:
    """Returns what a run is about, as text: device, workload, jaxlib, and the date of its newest session."""
    aa_run = store.last(AaRecord)
    session = store.last(SessionRecord)
    device = str(store.spec.device.platform)
    jaxlib = ""
    if aa_run is not None:
        where = conditions_of(store.spec, aa_run, aa_run.provenance)
        device = f"{aa_run.reference.device_count} x {where.gpu}"
        jaxlib = where.jaxlib or ""
    date = session.started[:10] if session else "not started"
    return {"device": device, "workload": _workload(store.spec), "jaxlib": jaxlib, "date": date}


def _workload(spec: StudySpec) -> str:
    """Formats entry or command with the options, without secrets."""
    return " ".join([workload_name(spec), *(f"{k}={v}" for k, v in (spec.workload.shown.options or {}).items())])


def _verdict(conclusion: ConclusionRecord) -> list[str]:
    """Returns the verdict as one sentence, without the winner's settings, and then its evidence."""
    settings = conclusion.settings
    sentence = conclusion.sentence
    if not settings or not sentence.startswith(f"{settings} "):
        return sentence.split("; ")
    which = "This setting" if len(settings) == 1 else f"This set of {len(settings)} settings"
    verdict, _, evidence = sentence.removeprefix(str(settings)).partition(": ")
    return [which + verdict, *evidence.split("; ")]


def _effort(store: Store, trials: Sequence[TrialRow]) -> str:
    """Formats how much was tried in which time."""
    duplicates = sum(bool(r.same_as) for r in trials)
    counts = {"failed": sum(r.failure is not None for r in trials), "duplicates not counted": duplicates}
    more = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    time = format_seconds(max((r.at_s for r in store.records()), default=0.0))
    return f"{len(trials) - duplicates} trials{f' ({more})' if more else ''} in {time}"


def _throughput(aa_run: AaRecord) -> list[str]:
    """Formats tokens and model FLOPs of the reference per second, if they are known."""
    step_s = aa_run.comparison.reference_step_s
    w = aa_run.reference
    figures = {"tokens/s": w.tokens_per_step, "model FLOP/s": w.flops_per_step}
    rates = [f"{format_count(count / step_s)} {name}" for name, count in figures.items() if count]
    return [f"the default reaches {' and '.join(rates)}"] if rates else []


# ---------------------------------------------------------------------- charts


def forest_chart(store: Store, trials: Sequence[TrialRow], *, most: int | None = None) -> Chart:
    """Draws ratio and interval of the A/A run and of every trial that did not fail, or of the best `most`."""
    aa_run = store.last(AaRecord)
    rows = []
    if aa_run is not None:
        label = "the default against itself"
        e = aa_run.noise.estimate
        rows.append(Mark(label=label, detail="the A/A run", x=e.ratio, x_ends=(e.low, e.high), style="aa_run"))
    drawn = [r for r in trials if r.failure is None and not math.isnan(r.ratio) and not r.same_as]
    shown = sorted(drawn, key=lambda r: r.rank)
    for r in shown[:most]:
        detail = f"trial {r.trial}: {r.settings}: {format_trial(r.result, r.finding)}"
        rows.append(
            Mark(
                label=f"{r.trial}  {shorten(r.result.settings)}",
                detail=detail,
                x=r.ratio,
                x_ends=(r.low, r.high),
                style=r.style,
            )
        )
    svg = forest(rows, band=store.spec.measure.min_effect, of=time_words(store))
    note = "Intervals hold over all looks at a trial. The shaded band is too small to matter."
    return Chart(title="All trials", svg=svg, note=note)


def steps_chart(store: Store, number: int = REFERENCE_NUMBER) -> Chart:
    """Draws the raw step times of a trial, or of the A/A run, in execution order; empty if there are none."""
    records = [r for r in store.of(TrialResult) if r.number == number]
    record = store.last(AaRecord) if number == REFERENCE_NUMBER else next(iter(records), None)
    directory = record.directory if record is not None else None
    blocks: list[tuple[str, Sequence[float]]] = []
    for pair in store.pairs(directory) if directory else ():
        arms = [("reference", pair.reference_s), ("candidate", pair.candidate_s)]
        blocks += arms if pair.first == "reference" else arms[::-1]
    title = f"trial {number}" if number != REFERENCE_NUMBER else "the default against itself (A/A run)"
    note = f"{len(blocks) // 2} pairs of blocks; raw in {directory}/pairs.jsonl"
    return Chart(title=title, svg=traces(blocks), note=note)


# ---------------------------------------------------------------------- failures, provenance, commands


def _failures(trials: Sequence[TrialRow]) -> list[dict[str, Any]]:
    """Groups failures by kind, most frequent first; equal messages are merged."""
    kinds: dict[str, dict[str, dict[str, Any]]] = {}
    for row in trials:
        failure = row.result.failure
        if failure is not None:
            cases = kinds.setdefault(spaced(failure.kind), {})
            case = cases.setdefault(failure.message, {"message": failure.message, "trials": []})
            case["trials"].append(row.trial)
            case |= {"log": failure.log, "last_lines": failure.last_lines}
    rows = []
    for kind, cases in kinds.items():
        count = sum(len(case["trials"]) for case in cases.values())
        rows.append({"kind": kind, "count": count, "cases": list(cases.values())[:8]})
    return sorted(rows, key=lambda row: -row["count"])


def _provenance(store: Store, aa_run: AaRecord | None) -> list[tuple[str, str]]:
    spec = store.spec
    conclusion = store.last(ConclusionRecord)
    facts: dict[str, Any] = {}
    rows: list[tuple[str, object]] = [
        ("run directory", store.path),
        ("study", spec.name),
        ("identity", spec.identity),
        ("workload", f"{_workload(spec)} (hash {spec.workload_hash})"),
    ]
    if aa_run is not None:
        w = aa_run.reference
        rows += [
            ("device", f"{w.device_count} x {w.device_kind} ({w.platform}), {w.process_count} process(es)"),
            ("mesh", " x ".join(f"{axis} {size}" for axis, size in w.mesh.items())),
            ("program", w.fingerprint),
            ("loss tolerance", f"{aa_run.loss_tolerance:.1e} (relative)"),
        ]
        facts = aa_run.provenance
    if conclusion is not None:
        facts = conclusion.provenance or facts
    rows += [(f"version of {name}", version) for name, version in sorted(facts.get("versions", {}).items())]
    others = {name: fact for name, fact in facts.items() if name not in ("versions", "memory_bytes")}
    rows += [(name.replace("_", " "), fact) for name, fact in others.items()]
    rows.append(("memory", format_bytes(facts["memory_bytes"]) if "memory_bytes" in facts else ""))
    for session in store.of(SessionRecord):
        rows.append(("session", f"{session.started} on {session.host}: {shlex.join(session.command) or 'by API'}"))
    return [(name, str(value)) for name, value in rows if value != ""]


def _commands(store: Store) -> list[str]:
    """Lists commands that use the winner, or the one that goes on without."""
    run = shlex.quote(str(store.path))
    session = store.last(SessionRecord)
    try:
        winner_of(store)
    except AutotuneError:
        command = session.command[1:] if session is not None else ()
        return [f"{shlex.join(('autotune', *command))}   # goes on"] if command else []
    return [
        f"autotune export {run} --format env -o winner.env",
        f"autotune exec {run} -- {store.spec.workload.command_line(store.spec.search.options)}",
    ]

"""A study as one self-contained HTML page, or as Markdown: the verdict first, then everything it rests on."""

from __future__ import annotations

import functools
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
import pandas as pd

from autotune.model import (
    PREDICTED,
    AblationResult,
    AutotuneError,
    ConclusionRecord,
    FinalistResult,
    FloorResult,
    IncidentRecord,
    Outcome,
    ScreenRecord,
    SessionRecord,
    SpanRecord,
    TrialResult,
    TrialStatus,
    format_bytes,
    format_count,
    format_interval,
    format_joules,
    format_ratio,
    format_seconds,
    format_share,
)
from autotune.results import analysis, charts
from autotune.results.report_front import front_charts, front_rows
from autotune.results.report_parts import (
    STYLES,
    Chart,
    cause_lines,
    effect_row,
    forest_rows,
    history,
    node_rows,
    pareto_row,
    rank,
    resource_charts,
    soak_lines,
    traces,
    trial_row,
)
from autotune.results.winner import evidence, winner_of, workload_name
from autotune.results.words import STAGE_WORDS, describe_finalist, describe_floor, describe_screen_record
from autotune.rundir import Store, is_held

LONGEST_TABLE = 300
"""Rows of the table of trials; a longer study's rest is in `autotune show` and `records.jsonl`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that a page shows, in words and rows; the templates only lay it out.

    Attributes:
        state: finished, running, stopped or empty.
        verdict: The one sentence.
        tone: winner, default or none: how the sentence is coloured.
        figures: Name and value of the few numbers on top.
        finalists: Rows of the table of finalists.
        objectives: Names of the study's objectives; `front` is shown where there are several.
        has_energy: Whether any trial's energy is known.
        failures: Kind, count, trials, one message and last lines of each kind.
    """

    name: str
    description: str
    state: str
    verdict: str
    tone: str
    figures: Sequence[tuple[str, str]]
    finalists: Sequence[dict[str, str]]
    objectives: Sequence[str]
    soak: Sequence[str]
    nodes: Sequence[dict[str, str]]
    front: Sequence[dict[str, Any]]
    front_charts: Sequence[Chart]
    floor: Sequence[str]
    screen: Sequence[str]
    forest: str
    history: str
    traces: Sequence[Chart]
    effects: Sequence[dict[str, str]]
    importance: str
    importance_method: str
    interactions: Sequence[tuple[str, str, str]]
    resources: Sequence[Chart]
    pareto: Sequence[dict[str, str]]
    failures: Sequence[dict[str, Any]]
    causes: Sequence[str]
    trials: Sequence[dict[str, str]]
    has_energy: bool
    trials_left_out: int
    warnings: Sequence[str]
    provenance: Sequence[tuple[str, str]]
    commands: Sequence[str]


def render_html(store: Store) -> str:
    """A study as one HTML page that loads nothing."""
    return templates().get_template("report.html.j2").render(r=build(store))


def render_markdown(store: Store) -> str:
    """A study as Markdown: the same, less the charts."""
    return templates().get_template("report.md.j2").render(r=build(store))


@functools.cache
def templates() -> jinja2.Environment:
    """The page templates; HTML is escaped, Markdown tables have the filter `cell`."""
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("autotune", "data/report"),
        autoescape=lambda name: name is not None and ".html" in name,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    env.filters["cell"] = lambda text: str(text).replace("|", "\\|").replace("\n", " ")
    return env


def build(store: Store) -> Report:
    """Gathers what a report shows of a run directory, in whatever state it is.

    Raises:
        RunDirectoryError: If its records are damaged.
    """
    results = store.of(TrialResult)
    is_predicted, sesoi = store.spec.is_predicted, store.spec.measure.smallest_effect
    state, verdict, tone = _verdict(store, results)
    floor = store.last(FloorResult)
    importance = analysis.importance_frame(store)
    interactions = analysis.interactions_frame(store)
    ordered = sorted(results, key=rank)
    resources = resource_charts(results)
    wanted = store.spec.search.objectives
    front = analysis.front_frame(store) if len(wanted) > 1 else pd.DataFrame()
    return Report(
        name=store.spec.name,
        description=store.spec.description,
        state=state,
        verdict=verdict,
        tone=tone,
        figures=_figures(store, results, floor),
        finalists=[_finalist_row(f) for f in analysis.finalists(store)],
        objectives=[o.words for o in wanted],
        soak=soak_lines(store),
        nodes=node_rows(store),
        front=front_rows(store, front),
        front_charts=front_charts(store, front, results),
        floor=describe_floor(floor) if floor else [],
        screen=[line for record in store.of(ScreenRecord)[-1:] for line in describe_screen_record(record)],
        # The charts are of measurements: a model's figures stand in the table, where each is marked.
        forest="" if is_predicted else charts.forest(forest_rows(store, ordered), band=sesoi),
        history="" if is_predicted else history(results),
        traces=traces(store, results),
        effects=[effect_row(row) for row in analysis.effects_frame(store).to_dict("records")],
        importance=charts.bars(
            [(r["setting"], r["importance"]) for r in importance.head(20).to_dict("records")],
            value_format=format_share,
        ),
        importance_method=importance["method"].iloc[0] if len(importance) else "",
        interactions=[
            (r["first"], r["second"], format_share(r["interaction"]))
            for r in interactions.head(8).to_dict("records")
            if r["interaction"] >= 0.01
        ],
        resources=resources,
        pareto=[pareto_row(r) for r in analysis.pareto_frame(store).to_dict("records")] if resources else [],
        failures=_failures(results),
        causes=cause_lines(store),
        trials=[trial_row(r) for r in ordered[:LONGEST_TABLE]],
        has_energy=any(r.comparison is not None and r.comparison.energy is not None for r in results),
        trials_left_out=max(0, len(ordered) - LONGEST_TABLE),
        warnings=_warnings(store, results, floor),
        provenance=_provenance(store, floor),
        commands=_commands(store),
    )


# ---------------------------------------------------------------------- verdict and figures


def _verdict(store: Store, results: Sequence[TrialResult]) -> tuple[str, str, str]:
    """State, the one sentence, and its tone."""
    conclusion = store.last(ConclusionRecord)
    newest = max((r.at_s for r in results), default=0.0)
    running = is_held(store.path)
    if conclusion is not None and newest <= conclusion.at_s and not running:
        tone = {
            Outcome.PREDICTED: "none",
            Outcome.WINNER: "winner",
            Outcome.FRONT: "winner",
            Outcome.NOTHING_RAN: "none",
        }.get(conclusion.outcome, "default")
        return "finished", conclusion.sentence, tone
    session = store.last(SessionRecord)
    asked = session.asked_trials if session else store.spec.search.trials
    state = "running" if running else "stopped" if session else "empty"
    if not results:
        what = "no trial has ended yet" if session else "it was never started"
        return state, f"nothing is known yet: {what}", "none"
    if store.spec.is_predicted:
        return state, f"{state} after {len(results)} of {asked} trials: {PREDICTED}", "none"
    found = [r.comparison.estimate for r in results if r.status is TrialStatus.MEASURED and r.comparison is not None]
    best = min(found, key=lambda e: e.ratio, default=None)
    sofar = "nothing beats the default so far"
    if best is not None and best.ratio < 1:
        figures = f"{format_ratio(best.ratio)} {format_interval(best.low, best.high)}"
        sofar = f"the best so far has ratio {figures}, not yet proven"
    return state, f"{state} after {len(results)} of {asked} trials: {sofar}", "none"


def _figures(store: Store, results: Sequence[TrialResult], floor: FloorResult | None) -> list[tuple[str, str]]:
    conclusion = store.last(ConclusionRecord)
    rows = [
        ("trials", str(len(results))),
        ("failed", str(sum(r.failure is not None for r in results))),
        ("not measured twice", str(sum(r.same_as is not None for r in results))),
        ("time", format_seconds(max((r.at_s for r in store.records()), default=0.0))),
    ]
    if (step := next((r.prediction for r in store.of(ScreenRecord) if r.prediction), None)) is not None:
        rows.append((f"default's step, {PREDICTED}", format_seconds(step.step_s)))
        rows.append(("predicted for", f"{step.topology} {step.target}"))
    if conclusion is not None and conclusion.estimate is not None:
        e = conclusion.estimate
        rows.insert(0, ("step time ratio", f"{format_ratio(e.ratio)} {format_interval(e.low, e.high)}"))
    if floor is not None:
        rows.append(("default's step", format_seconds(floor.comparison.reference_step_s)))
        rows.append(("smallest effect found here", f"about {format_share(floor.floor.detectable)}"))
        if floor.reference.tokens_per_step:
            rate = floor.reference.tokens_per_step / floor.comparison.reference_step_s
            rows.append(("default's tokens/s", format_count(rate)))
        rows += _energy_figures(floor)
        if floor.reference.flops_per_step:
            rate = floor.reference.flops_per_step / floor.comparison.reference_step_s
            rows.append(("default's model FLOP/s", format_count(rate)))
    spans = store.of(SpanRecord)
    if wall_s := sum(s.wall_s for s in spans):
        rows.append(("driver's own share", format_share(1 - sum(s.waited_s for s in spans) / wall_s)))
    return rows


def _energy_figures(floor: FloorResult) -> list[tuple[str, str]]:
    energy, tokens = floor.comparison.energy, floor.reference.tokens_per_step
    if energy is None:
        return []
    rows = [("default's energy of a step", format_joules(energy.reference_step_j))]
    return [*rows, ("default's tokens/J", format_count(tokens / energy.reference_step_j))] if tokens else rows


def _finalist_row(f: FinalistResult) -> dict[str, str]:
    e, c = f.estimate, f.corrected
    return {
        "trial": str(f.trial),
        "stage": STAGE_WORDS.get(f.stage, f.stage),
        "settings": str(f.settings),
        "ratio": format_ratio(e.ratio) if e else "-",
        "interval": format_interval(e.low, e.high) if e else "",
        "corrected": format_interval(c.low, c.high) if c else "",
        "processes": str(f.process_count),
        "verdict": str(f.verdict) if f.failure is None else describe_finalist(f),
        "style": STYLES[f.verdict] if f.failure is None else "failed",
    }


# ---------------------------------------------------------------------- what went wrong, where from


def _failures(results: Sequence[TrialResult]) -> list[dict[str, Any]]:
    """Failures by kind, most frequent first; equal messages are shown once."""
    failed = [r for r in results if r.failure is not None]
    found = []
    for kind, count in Counter(str(r.failure.kind) for r in failed if r.failure).most_common():
        cases: dict[str, dict[str, Any]] = {}
        for r in failed:
            if r.failure is None or r.failure.kind != kind:
                continue
            fresh = {"trials": [], "settings": str(r.settings), "message": r.failure.message}
            case = cases.setdefault(r.failure.message, fresh)
            case["trials"].append(r.number)
            case["log"] = r.failure.log or ""
            case["last_lines"] = list(r.failure.last_lines)
        found.append({"kind": kind.replace("_", " "), "count": count, "cases": list(cases.values())[:8]})
    return found


def _warnings(store: Store, results: Sequence[TrialResult], floor: FloorResult | None) -> list[str]:
    """What a reader should know before believing a figure: each once."""
    found = [r.what for r in store.of(IncidentRecord)]
    if store.spec.is_predicted:
        found.insert(0, f"{PREDICTED}: every figure is what a model makes of compiled programs; nothing ran")
    if floor is not None:
        found += [*floor.reference.warnings, *floor.comparison.warnings]
        if floor.comparison.mode != "turns":
            found.append(
                "one process at a time: intervals are over sandwiches of fresh runs, fewer than pairs of blocks"
            )
        if not floor.floor.is_honest:
            found.append("two equal processes differ here by more than their interval says: believe proofs only")
        load, cpus = floor.provenance.get("load_1min"), floor.provenance.get("cpus_usable")
        if load and cpus and load > cpus:
            found.append(f"the machine was busy when the study began: load {load} on {cpus} CPUs")
    if store.spec.replay is not None:
        found.append("this study was replayed from a formula: it says nothing about any machine")
    for r in results:
        said = [*(r.worker.warnings if r.worker else ()), *(r.comparison.warnings if r.comparison else ())]
        found += [f"trial {r.number}: {w}" for w in said]
    for a in store.of(AblationResult):
        found += [f"without {a.left_out}: {w}" for w in (a.comparison.warnings if a.comparison else ())]
    return list(dict.fromkeys(found))


def _provenance(store: Store, floor: FloorResult | None) -> list[tuple[str, str]]:
    spec, conclusion = store.spec, store.last(ConclusionRecord)
    facts = conclusion.provenance if conclusion and conclusion.provenance else floor.provenance if floor else {}
    rows = [("run directory", str(store.path)), ("study", spec.name), ("identity", spec.identity)]
    rows.append(("workload", f"{workload_name(spec)} {spec.workload.options or ''} (hash {spec.workload_hash})"))
    if floor is not None:
        w = floor.reference
        rows.append(("device", f"{w.device_count} x {w.device_kind} ({w.platform}), {w.process_count} process(es)"))
        if w.mesh:
            rows.append(("mesh", " x ".join(f"{k} {v}" for k, v in w.mesh.items())))
        rows.append(("program", w.fingerprint))
        rows.append(("loss tolerance", f"{floor.loss_tolerance:.1e} (relative)"))
    rows += [(f"version of {n}", str(v)) for n, v in sorted(facts.get("versions", {}).items())]
    for name, value in facts.items():
        if name == "memory_bytes":
            rows.append(("memory", format_bytes(value)))
        elif name != "versions":
            rows.append((name.replace("_", " "), str(value)))
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
    chosen = conclusion.front or () if conclusion is not None else ()
    shared = [f"autotune show {run}", *dict.fromkeys(again)]
    shared = [*(f"autotune export {run} --trial {n} -o trial-{n}.env" for n in chosen), *shared]
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
    lines += [f"# {line}" for line in evidence(winner)]
    return [*lines, *(f"export {n}={shlex.quote(v)}" for n, v in winner.environment.items())]

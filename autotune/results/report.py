"""Renders a study as one self-contained HTML page or as Markdown: the verdict first."""

from __future__ import annotations

import math
import shlex
from collections import defaultdict
from typing import Any

from autotune.model.errors import AutotuneError
from autotune.model.flags import FlagSet
from autotune.model.numbers import Facts
from autotune.model.records import (
    REFERENCE_NUMBER,
    AaRecord,
    AblationResult,
    ConclusionRecord,
    FailingSetRecord,
    SessionRecord,
    SoakRecord,
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
    finalists,
    format_ablation,
    format_failing_set,
    format_progress,
    format_soak,
    format_trial,
    run_state,
    shorten,
    spaced,
    time_words,
    warning_lines,
)
from autotune.results.pages import Block, Chart, Mark, forest, render, traces
from autotune.results.screen_words import screen_lines
from autotune.results.winner import verdict_at_scale, winner_of, workload_name
from autotune.rundir.store import Store

LONGEST_TABLE = 300  # trials; `autotune show` and `records.jsonl` have all


def render_html(store: Store) -> str:
    """Renders a study as one self-contained HTML page."""
    return render("report.html.j2", r=build(store))


def render_markdown(store: Store) -> str:
    """Renders a study as Markdown, without charts."""
    return render("report.md.j2", r=build(store))


def build(store: Store) -> dict[str, Any]:
    """Collects everything a page shows of a run directory; the templates only lay it out."""
    state, conclusion = run_state(store)
    verdict = format_progress(store, state)
    evidence: list[str] = []
    winner = FlagSet()
    outcome = ""
    if conclusion and state == "finished":
        verdict, *evidence = _verdict(conclusion)
        winner = conclusion.settings or winner
        outcome = str(conclusion.outcome)
    trials = tables.ranked_rows(store)
    at_scale = filter(None, [verdict_at_scale(store)])
    sets = store.of(FailingSetRecord)
    return {
        "name": store.spec.name,
        "description": store.spec.description,
        "subject": _subject(store),
        "state": state,
        "verdict": verdict,
        "winner": list(winner.words),
        "outcome": outcome,
        "evidence": [*evidence, *at_scale, _effort(store)],
        "finalists": tables.finalist_table(finalists(store)),
        "soak": [f"soak of {soak.settings}: {format_soak(soak)}" for soak in store.of(SoakRecord)],
        "aa_run": [*aa_lines(store), *_throughput(store)],
        "screen": screen_lines(store),
        "forest": forest_chart(store),
        "steps": steps_chart(store),
        "effect_lines": effect_lines(store),
        "estimates": estimate_table(store),
        "estimates_chart": effects_chart(store),
        "ablations": list(map(format_ablation, store.of(AblationResult))),
        "profile": tables.profile_table(store),
        "failures": _failures(store),
        "causes": [f"{format_failing_set(s)} ({s.starts} starts to find it)" for s in sets],
        "trials": tables.trial_table(trials[:LONGEST_TABLE]),
        "trials_left_out": max(0, len(trials) - LONGEST_TABLE),
        "warnings": [*doubts(store), *warning_lines(store)],
        "provenance": _provenance(store),
        "commands": _commands(store),
    }


def _subject(store: Store) -> tables.Row:
    """Returns device, workload, jaxlib and date of the last session of a run as text."""
    device = str(store.spec.device.platform)
    jaxlib = ""
    for aa_run in store.of(AaRecord)[-1:]:
        conditions = conditions_of(store.spec, aa_run.reference, aa_run.provenance)
        device = f"{aa_run.reference.device_count} x {conditions.gpu}"
        jaxlib = conditions.jaxlib or ""
    session = store.last(SessionRecord)
    date = session.started[:10] if session else "not started"
    workload = _workload(store.spec)
    return {"device": device, "workload": workload, "jaxlib": jaxlib, "date": date}


def _workload(spec: StudySpec) -> str:
    """Formats entry or command with the options, without secrets."""
    options = [f"{name}={value}" for name, value in spec.workload.shown.options.items()]
    return " ".join([workload_name(spec), *options])


def _verdict(conclusion: ConclusionRecord) -> list[str]:
    """Returns the verdict as one sentence, without the winner's settings, and then its evidence."""
    settings = conclusion.settings
    sentence = conclusion.sentence
    if not settings or not sentence.startswith(f"{settings} "):
        return sentence.split("; ")
    subject = "This setting"
    if len(settings) > 1:
        subject = f"This set of {len(settings)} settings"
    verdict, _, evidence = sentence.removeprefix(str(settings)).partition(": ")
    return [subject + verdict, *evidence.split("; ")]


def _effort(store: Store) -> str:
    trials = store.of(TrialResult)
    failed = sum(r.failure is not None for r in trials)
    duplicates = sum(bool(r.same_as) for r in trials)
    counts = {"failed": failed, "duplicates not counted": duplicates}
    remark = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    tried = f"{len(trials) - duplicates} trials"
    if remark:
        tried += f" ({remark})"
    return f"{tried} in {format_seconds(store.recorded_s)}"


def _throughput(store: Store) -> list[str]:
    """Formats tokens and model FLOPs of the reference per second, if they are known."""
    rates = []
    for aa_run in store.of(AaRecord)[-1:]:
        report = aa_run.reference
        work = {"tokens/s": report.tokens_per_step, "model FLOP/s": report.flops_per_step}
        step_s = aa_run.comparison.reference_step_s
        rates = [
            f"{format_count(amount / step_s)} {unit}" for unit, amount in work.items() if amount
        ]
    return [f"the default reaches {' and '.join(rates)}"] if rates else []


def forest_chart(store: Store, *, most: int | None = None) -> Chart:
    """Draws ratios with intervals of the A/A run and of the best `most` trials that ran."""
    marks = []
    for aa_run in store.of(AaRecord)[-1:]:
        e = aa_run.noise.estimate
        label = "the default against itself"
        marks.append(Mark(e.ratio, "the A/A run", "aa_run", (e.low, e.high), label))
    ranked = tables.ranked_rows(store)
    ran = [r for r in ranked if r.failure is None and not (r.same_as or math.isnan(r.ratio))]
    for r in ran[:most]:
        label = f"{r.trial}  {shorten(r.result.settings)}"
        detail = f"trial {r.trial}: {r.settings}: {format_trial(r.result, r.finding)}"
        marks.append(Mark(r.ratio, detail, r.style, (r.low, r.high), label))
    svg = forest(marks, band=store.spec.measure.min_effect, of=time_words(store))
    note = "Intervals hold over all looks at a trial. The shaded band is too small to matter."
    return Chart(title="All trials", svg=svg, note=note)


def steps_chart(store: Store, number: int = REFERENCE_NUMBER) -> Chart:
    """Draws the raw step times of a trial, or of the A/A run, in execution order."""
    directories = {result.number: result.directory for result in store.of(TrialResult)}
    for aa_run in store.of(AaRecord):
        directories[REFERENCE_NUMBER] = aa_run.directory
    directory = directories.get(number)
    blocks: list[Block] = []
    for pair in store.pairs(directory):
        arms = [("reference", pair.reference_s), ("candidate", pair.candidate_s)]
        blocks += arms if pair.first == "reference" else arms[::-1]
    title = f"trial {number}"
    if number == REFERENCE_NUMBER:
        title = "the default against itself (A/A run)"
    note = f"{len(blocks) // 2} pairs of blocks; raw in {directory}/pairs.jsonl"
    return Chart(title, traces(blocks), note)


Cases = dict[str, list[TrialResult]]  # failed trials by message


def _failures(store: Store) -> dict[str, Cases]:
    """Returns the failed trials by kind (the most frequent first) and message."""
    failures = defaultdict[str, Cases](lambda: defaultdict(list))
    for result in store.of(TrialResult):
        if result.failure:
            failures[spaced(result.failure.kind)][result.failure.message].append(result)
    return dict(sorted(failures.items(), key=lambda of_kind: -sum(map(len, of_kind[1].values()))))


def _provenance(store: Store) -> list[tuple[str, str]]:
    spec = store.spec
    facts: Facts = {}
    rows: dict[str, object] = {
        "run directory": store.path,
        "study": spec.name,
        "identity": spec.identity,
        "workload": f"{_workload(spec)} (hash {spec.workload_hash})",
    }
    for aa_run in store.of(AaRecord)[-1:]:
        report = aa_run.reference
        devices = f"{report.device_count} x {report.device_kind} ({report.platform})"
        rows |= {
            "device": f"{devices}, {report.process_count} process(es)",
            "mesh": " x ".join(f"{axis} {size}" for axis, size in report.mesh.items()),
            "program": report.fingerprint,
            "spread of losses": f"{max(aa_run.loss_spread.losses, default=0.0):.1e} (relative)",
        }
        facts = aa_run.provenance
    for conclusion in store.of(ConclusionRecord)[-1:]:
        facts = conclusion.provenance or facts
    for name, version in sorted(facts.get("versions", {}).items()):
        rows[f"version of {name}"] = version
    for name, fact in facts.items():
        if name not in ("versions", "memory_bytes"):
            rows[spaced(name)] = fact
    if "memory_bytes" in facts:
        rows["memory"] = format_bytes(facts["memory_bytes"])
    lines = [(name, str(value)) for name, value in rows.items() if value != ""]
    for session in store.of(SessionRecord):
        command = shlex.join(session.command) or "by API"
        lines.append(("session", f"{session.started} on {session.host}: {command}"))
    return lines


def _commands(store: Store) -> list[str]:
    """Lists commands that use the winner, or the one that goes on without."""
    run = shlex.quote(str(store.path))
    session = store.last(SessionRecord)
    try:
        winner_of(store)
    except AutotuneError:
        command = session.command[1:] if session else ()
        return [f"{shlex.join(('autotune', *command))}   # goes on"] if command else []
    return [
        f"autotune export {run} --format env -o winner.env",
        f"autotune exec {run} -- {store.spec.workload.command_line(store.spec.search.options)}",
    ]

"""How results read: the one place where records become words, for the live view, tables, reports and notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from autotune.compiler import Effect, PredictionCheck, ScreenReport, SettingReport
from autotune.model import (
    PREDICTED,
    TURNS,
    ConclusionRecord,
    FailureKind,
    FinalistResult,
    FlagSet,
    FloorResult,
    Outcome,
    PredictedStep,
    ScreenRecord,
    SoakRecord,
    TrialResult,
    TrialStatus,
    format_bytes,
    format_change,
    format_interval,
    format_joules,
    format_ratio,
    format_seconds,
    format_share,
)
from autotune.rundir import Store
from autotune.stats import Estimate

STAGE_WORDS = {
    "confirm": "fresh processes",
    "final": "final proof",
    "full": "final proof, whole set",
    "recheck": "recheck",
}
"""Stages of `FinalistResult`, as shown to users."""


def shorten(settings: FlagSet, *, limit: int = 100) -> str:
    """Settings on one line, common prefixes left out, cut to what fits."""
    text = " ".join(f"{n.removeprefix('xla_')}={v}" for n, v in settings.items()) or "(default)"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def describe_begin(store: Store) -> list[str]:
    """What was found before the first trial: the noise floor, or what a model says of the reference; the screen."""
    floor, lines = store.last(FloorResult), []
    if floor is not None:
        lines += describe_floor(floor)
    elif not store.spec.is_predicted:
        lines.append("the noise floor is not measured yet")
    for record in store.of(ScreenRecord):
        if (step := record.prediction) is not None:
            place = f"{step.topology} {step.target}"
            lines.append(f"{PREDICTED}: every figure is a model's, for {place}; reference {describe_prediction(step)}")
        lines += describe_screen_record(record)
    return list(dict.fromkeys(lines))


def describe_floor(result: FloorResult) -> list[str]:
    """The noise floor in words."""
    floor = result.floor
    lines = [
        f"reference: {format_seconds(result.comparison.reference_step_s)} a step, compiled in "
        f"{format_seconds(result.reference.compile_s)}, peak memory {format_bytes(result.reference.peak_bytes)}",
        f"noise floor: two equal processes differ by ratio {format_estimate(floor.estimate)}; "
        f"speed-ups from about {format_share(floor.detectable)} can be found in one trial",
    ]
    if result.comparison.mode != TURNS:
        lines.append(
            "one process at a time, in sandwiches of fresh runs (reference, candidate, reference): "
            f"{result.comparison.estimate.pair_count} here, and each counts once in an interval"
        )
    if (energy := result.comparison.energy) is not None:
        tokens = result.reference.tokens_per_step
        lines.append(
            f"energy: {format_joules(energy.reference_step_j)} a step"
            + (f", {tokens / energy.reference_step_j:.3g} tokens/J" if tokens else "")
            + f", of whole devices ({energy.source})"
        )
    if not floor.is_honest:
        lines.append(
            "two equal processes differ here by more than their own interval says: a trial alone can't be believed on "
            "this machine now; the proof in fresh processes can"
        )
    return lines


def describe_trial(result: TrialResult) -> str:
    """A trial's result in words."""
    if result.failure is not None:
        return f"{_words(result.failure.kind)} in phase {result.failure.phase}: {result.failure.message}"[:300]
    if result.is_the_default:
        return "the same program as the default: changes nothing here"
    suffix = ""
    if result.same_as is not None:
        what = "set" if result.status is TrialStatus.SAME_SET else "program"
        suffix = f" (the same {what} as trial {result.same_as}, not measured again)"
    if result.prediction is not None:
        return f"{describe_prediction(result.prediction)}{suffix.replace(', not measured again', '')}"
    if result.comparison is None:
        return f"{str(result.status).replace('_', ' ')}: no number{suffix}"
    found = result.comparison
    return f"{format_estimate(found.estimate)} {found.verdict}, {found.stopped}{suffix}"


def describe_prediction(step: PredictedStep) -> str:
    """What a model says of a program, marked as such."""
    return (
        f"{format_ratio(step.ratio)}, {format_seconds(step.step_s)} a step of which {format_seconds(step.exposed_s)} "
        f"exposed communication: {PREDICTED}"
    )


def describe_energy(result: TrialResult) -> str:
    """A trial's energy in words; empty where it is not known."""
    energy = result.comparison.energy if result.comparison is not None else None
    if energy is None:
        return ""
    rate = f", {result.tokens_per_j:.3g} tokens/J" if result.tokens_per_j else ""
    return (
        f"energy: {format_joules(energy.candidate_step_j)} a step{rate}; ratio {format_estimate(energy.estimate)} "
        f"(whole devices, {energy.source})"
    )


def describe_finalist(result: FinalistResult) -> str:
    """A finalist's verdict in words."""
    if result.failure is not None:
        return f"{_words(result.failure.kind)} in a fresh process: {result.failure.message}"[:300]
    if result.estimate is None or result.corrected is None:
        return "no number"
    others = "".join(f"; {o.words} {format_estimate(e)}" for o, e in (result.others or {}).items())
    return (
        f"{format_estimate(result.estimate)} over {result.process_count} fresh pairs of processes "
        f"(corrected {format_interval(result.corrected.low, result.corrected.high)}): {result.verdict}{others}"
    )


def _words(kind: FailureKind) -> str:
    return str(kind).replace("_", " ")


def format_estimate(estimate: Estimate) -> str:
    """A ratio with its interval: ``0.950 [0.940, 0.960]``."""
    return f"{format_ratio(estimate.ratio)} {format_interval(estimate.low, estimate.high)}"


def conclusion_style(conclusion: ConclusionRecord) -> str:
    """How the one sentence is coloured."""
    return "bold green" if conclusion.outcome is Outcome.WINNER else "bold"


SOAK_SLOWER = 1.1
"""A soak whose last quarter is slower than its first by more than this factor is noted."""


def describe_soak(record: SoakRecord) -> str:
    """A soak in words."""
    if record.failure is not None:
        after = f"after {record.step_count} steps" if record.step_count else "at its start"
        return f"failed {after}: {str(record.failure.kind).replace('_', ' ')}: {record.failure.message}"
    slower = ""
    if record.drift is not None and record.drift > SOAK_SLOWER:
        slower = f", but its last quarter took {record.drift:.2f} times as long a step as its first"
    return f"{record.step_count} steps in {record.steps_s:.0f} s without a fault{slower}"


def describe_screen(report: ScreenReport) -> list[str]:
    """A report in a few lines."""
    place = f"{report.target} {report.topology}" if report.limit_bytes is not None else "this CPU"
    counts = ", ".join(f"{len(report.of_effect(effect))} {words}" for effect, words in _EFFECTS.items())
    lines = [f"screen for {place}: {counts}"]
    if dead := report.of_effect(Effect.DEAD):
        lines.append(f"dead here, left out of the search: {', '.join(s.name for s in dead)}")
    lines += [f"{s.name} is the same program as {s.same_as}" for s in report.sets if s.same_as and not s.to_measure]
    lines += [f"{s.name} does not fit: peak {format_bytes(s.peak_bytes)}" for s in report.sets if s.fits is False]
    peak, limit = report.reference.peak_bytes, report.limit_bytes
    if peak is not None and limit:
        lines.append(f"the reference takes {format_bytes(peak)}, {format_share(peak / limit)} of {format_bytes(limit)}")
    if report.skipped:
        lines.append(f"not screened, for the time was up: {', '.join(report.skipped)}")
    return lines


_EFFECTS = {
    Effect.LIVE: "settings change the program",
    Effect.DEAD: "do not",
    Effect.MEASURE: "only a measurement can judge",
    Effect.FAILS: "do not compile",
}


def describe_screen_record(record: ScreenRecord) -> list[str]:
    """A screen's record in a few lines."""
    if record.report is None:
        return [f"not screened: {record.reason}"] if record.reason else []
    return describe_screen(ScreenReport.model_validate(record.report))


def held_lines(held: PredictionCheck) -> Iterator[str]:
    """What the predictions were calibrated by, and how far they may be trusted."""
    c, a = held.calibration, held.agreement
    yield (
        f"calibrated by {c.source}: kernels x {c.compute_scale:.3g}, exposed communication x {c.exposed_scale:.3g}, "
        f"gaps x {c.idle_scale:.3g}"
        + (f"; median error of programs left out {format_share(a.error)}" if a.error is not None else "")
    )
    if a.spearman is None or a.low is None or a.high is None or a.kendall is None:
        yield f"no rank correlation can be given: {a.count} programs that differ are too few"
    else:
        yield (
            f"rank correlation of predicted with measured over {a.count} programs: Spearman {a.spearman:.2f} "
            f"[{a.low:.2f}, {a.high:.2f}], Kendall {a.kendall:.2f}"
        )


def predicted_lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A table of predicted steps."""
    first = rows[0].get("step_s")
    for row in rows:
        name = " ".join(f"{n}={v}" for n, v in row["settings"].items()) or "reference"
        if "failure" in row:
            yield f"{name}: does not compile: {row['failure']}"
            continue
        against = f", {format_change(row['step_s'] / first)}" if first and row is not rows[0] else ""
        mfu = f", MFU {format_share(row['mfu'])}" if row["mfu"] is not None else ""
        yield (
            f"{name}: predicted step {format_seconds(row['step_s'])}{against} (kernels "
            f"{format_seconds(row['compute_s'])}, exposed communication {format_seconds(row['exposed_s'])}, "
            f"idle {format_seconds(row['idle_s'])}{mfu})"
        )
    yield PREDICTED


def screen_lines(report: ScreenReport) -> list[str]:
    """The report in words."""
    versions = ", ".join(f"{n} {v}" for n, v in report.versions.items())
    lines = [f"{report.target}, {report.topology} (nodes x GPUs), {versions}"]
    peak, limit = report.reference.peak_bytes, report.limit_bytes
    if peak is not None:
        share = f", {format_share(peak / limit)} of {format_bytes(limit)}" if limit else ""
        verdict = "" if report.reference.fits is not False else ": DOES NOT FIT"
        lines.append(f"reference: peak {format_bytes(peak)} on each GPU{share}{verdict}")
    titles = {
        Effect.LIVE: "live: these change the program",
        Effect.DEAD: "dead here: no value changes the program, alone or among the live ones",
        Effect.MEASURE: "to be measured: read at run time or by the autotuner on the device",
        Effect.FAILS: "do not compile",
    }
    for effect, title in titles.items():
        members = report.of_effect(effect)
        if members:
            lines += ["", f"{title} ({len(members)})"]
            lines += [line for member in members for line in _setting_lines(member)]
    if report.sets:
        lines += ["", f"sets ({len(report.sets)})", *_set_lines(report)]
    lines += [
        "",
        f"{report.compiled_count} compiled in {format_seconds(report.duration_s)}, "
        f"{report.cached_count} taken from the cache",
    ]
    return lines


def _setting_lines(setting: SettingReport) -> list[str]:

    if setting.effect in (Effect.DEAD, Effect.MEASURE):
        return [f"  {setting.name}" + (f" ({setting.stage})" if setting.effect is Effect.MEASURE else "")]
    lines = [f"  {setting.name}" + (" (only together with others)" if setting.together else "")]
    for value in setting.values:
        if value.message:
            lines.append(f"    {value.value}: {value.message}")
        elif not value.is_live:
            lines.append(f"    {value.value}: same program")
        else:
            fit = " DOES NOT FIT;" if value.fits is False else ""
            lines.append(f"    {value.value}:{fit} {'; '.join(value.changes[:6])}")
    return lines


def _set_lines(report: ScreenReport) -> list[str]:
    lines = []
    for found in report.sets:
        if found.message:
            said = f"does not compile: {found.message}"
        elif found.same_as is not None:
            said = f"same program as {found.same_as}"
        else:
            said = "; ".join(found.changes[:6]) or "same program as reference"
        if found.fits is False:
            said = f"DOES NOT FIT; {said}"
        rest = f" (to be measured: {', '.join(found.to_measure)})" if found.to_measure else ""
        lines.append(f"  {found.name}: {said}{rest}")
    return lines

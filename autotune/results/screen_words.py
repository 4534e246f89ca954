"""Formats screens and predictions, the results of compiling without measuring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from autotune.compiler.screen import CompiledReport, Effect, ScreenReport, SettingReport
from autotune.model.records import ScreenRecord
from autotune.model.units import format_bytes, format_seconds, format_share

MOST_NAMED = 4
"""Limit of settings that are named of one interaction."""

MOST_CHANGES = 6
"""Limit of differences between two programs that are shown of each value or set."""

_EFFECTS = {
    Effect.ACTIVE: "active",
    Effect.NO_OP: "no-ops",
    Effect.ALONE: "without an effect alone",
    Effect.MEASURE: "to be measured",
    Effect.FAILS: "do not compile",
}


def describe_screen(report: ScreenReport) -> list[str]:
    """Summarises a screen in a few lines."""
    place = f"{report.target} {report.topology}" if report.limit_bytes is not None else "this CPU"
    found = {words: len(report.of_effect(effect)) for effect, words in _EFFECTS.items()}
    counts = ", ".join(f"{count} {words}" for words, count in found.items() if count)
    canary = f"; flags are applied: the canary [{report.canary}] changes the program"
    lines = [f"screen for {place}: {counts}{canary}"]
    if no_ops := report.of_effect(Effect.NO_OP):
        lines.append(f"no-ops here, left out of the search: {', '.join(s.name for s in no_ops)}")
    if alone := report.of_effect(Effect.ALONE):
        names = ", ".join(s.name for s in alone)
        lines.append(f"searched last, unless compiling them in groups shows what they do: {names}")
    lines += [f"{s.name} acts {how}" for s in report.settings if (how := format_interaction(s))]
    lines += [f"{s.name} is the same program as {s.same_as}" for s in report.sets if s.same_as and not s.to_measure]
    lines += [f"{s.name} does not fit: peak {format_bytes(s.peak_bytes)}" for s in report.sets if s.fits is False]
    peak, limit = report.reference.peak_bytes, report.limit_bytes
    if peak is not None and limit:
        verdict = ": DOES NOT FIT" if report.reference.fits is False else ""
        share = format_share(peak / limit)
        lines.append(f"the reference takes {format_bytes(peak)}, {share} of {format_bytes(limit)}{verdict}")
    if report.skipped:
        lines.append(f"not screened, for the time was up: {', '.join(report.skipped)}")
    return lines


def format_interaction(setting: SettingReport) -> str:
    """Formats the settings with which one acts that changes nothing alone; empty if it acts alone."""
    others = setting.interacts_with
    named = ", ".join(others) if len(others) <= MOST_NAMED else "some of the others"
    with_others = f"only together with {named}" if others else ""
    return ", ".join(filter(None, (with_others, setting.under and f"only {setting.under}")))


def describe_screen_record(record: ScreenRecord) -> list[str]:
    """Summarises a screen's record in a few lines."""
    if record.report is None:
        return [f"not screened: {record.reason}"] if record.reason else []
    return describe_screen(ScreenReport.model_validate(record.report))


def screen_lines(report: ScreenReport) -> list[str]:
    """Formats a screen with all values of each setting."""
    lines = describe_screen(report)
    for effect in (Effect.ACTIVE, Effect.MEASURE, Effect.FAILS):
        if members := report.of_effect(effect):
            lines += ["", f"{_EFFECTS[effect]} ({len(members)})"]
            lines += [line for member in members for line in _setting_lines(member)]
    if report.sets:
        lines += ["", f"sets ({len(report.sets)})", *_set_lines(report)]
    compiled = f"{report.compiled_count} compiled in {format_seconds(report.duration_s)}"
    versions = ", ".join(f"{n} {v}" for n, v in report.versions.items())
    return [*lines, "", f"{compiled}, {report.cached_count} taken from the cache, by {versions}"]


def _setting_lines(setting: SettingReport) -> list[str]:
    note = setting.stage if setting.effect is Effect.MEASURE else format_interaction(setting)
    values = [f"    {value.value}: {_format_program(value, 'same program')}" for value in setting.values]
    return [f"  {setting.name}" + (f" ({note})" if note else ""), *values]


def _set_lines(report: ScreenReport) -> list[str]:
    lines = []
    for found in report.sets:
        same = f"same program as {found.same_as or 'reference'}"
        shown = found.model_copy(update={"changes": ()}) if found.same_as else found
        rest = f" (to be measured: {', '.join(found.to_measure)})" if found.to_measure else ""
        lines.append(f"  {found.name}: {_format_program(shown, same)}{rest}")
    return lines


def _format_program(found: CompiledReport, same: str) -> str:
    if found.message:
        return f"does not compile: {found.message}"
    fit = "DOES NOT FIT; " if found.fits is False else ""
    return fit + ("; ".join(found.changes[:MOST_CHANGES]) or same)


def predicted_lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Formats predicted steps, rows of `autotune.compiler.predict.predict_set`."""
    for row in rows:
        name = " ".join(f"{n}={v}" for n, v in row["settings"].items()) or "reference"
        if "failure" in row:
            yield f"{name}: does not compile: {row['failure']}"
            continue
        mfu = f", MFU {format_share(row['mfu'])}" if row["mfu"] is not None else ""
        if (interval := row["interval_s"]) is not None:
            ends = " and ".join(map(format_seconds, interval))
            measured = f"a well-tuned program like MaxText takes between {ends} (95 %)"
        else:
            measured = f"no interval: {row['no_interval']} was not compared with published step times"
        yield (
            f"{name}: predicted step {format_seconds(row['step_s'])} (kernels "
            f"{format_seconds(row['compute_s'])}, exposed communication {format_seconds(row['exposed_s'])}, "
            f"idle {format_seconds(row['idle_s'])}{mfu}); {measured}"
        )
        yield from (f"  {change}" for change in row["changes"])
        if loops := row["unknown_loops"]:
            yield f"  no figure to go by: how often {', '.join(loops)} runs is not known, and each was counted once"
    if published := next((row["published"] for row in rows if "published" in row), None):
        yield f"the model is {published}"
    yield "PREDICTED, NOT MEASURED"

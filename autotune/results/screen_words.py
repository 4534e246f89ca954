"""How the results of compiling alone read: screens, predictions, and how far those may be trusted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from autotune.compiler import (
    Effect,
    ScreenReport,
    SettingReport,
)  # fmt: skip
from autotune.model import ScreenRecord, format_bytes, format_seconds, format_share

MOST_NAMED = 4
"""Up to so many settings of an interaction are named; of more, most do not matter."""


def describe_screen(report: ScreenReport) -> list[str]:
    """A report in a few lines."""
    place = f"{report.target} {report.topology}" if report.limit_bytes is not None else "this CPU"
    counts = ", ".join(f"{len(report.of_effect(effect))} {words}" for effect, words in _EFFECTS.items())
    lines = [f"screen for {place}: {counts}{_canary(report)}"]
    if no_ops := report.of_effect(Effect.NO_OP):
        lines.append(f"no-ops here, left out of the search: {', '.join(s.name for s in no_ops)}")
    lines += [f"{s.name} acts {how}" for s in report.settings if (how := format_interaction(s))]
    lines += [f"{s.name} is the same program as {s.same_as}" for s in report.sets if s.same_as and not s.to_measure]
    lines += [f"{s.name} does not fit: peak {format_bytes(s.peak_bytes)}" for s in report.sets if s.fits is False]
    peak, limit = report.reference.peak_bytes, report.limit_bytes
    if peak is not None and limit:
        lines.append(f"the reference takes {format_bytes(peak)}, {format_share(peak / limit)} of {format_bytes(limit)}")
    if report.skipped:
        lines.append(f"not screened, for the time was up: {', '.join(report.skipped)}")
    return lines


def _canary(report: ScreenReport) -> str:
    return f"; flags are applied: the canary [{report.canary.settings}] changes the program" if report.canary else ""


_EFFECTS = {
    Effect.ACTIVE: "settings change the program",
    Effect.NO_OP: "do not",
    Effect.MEASURE: "only a measurement can judge",
    Effect.FAILS: "do not compile",
}


def format_interaction(setting: SettingReport) -> str:
    """Among which settings one acts that changes nothing alone, as a clause; empty if it acts alone."""
    others = setting.interacts_with
    named = ", ".join(others) if len(others) <= MOST_NAMED else "some of the others"
    with_others = f"only together with {named}" if others else ""
    return ", ".join(filter(None, (with_others, setting.under and f"only {setting.under}")))


def describe_screen_record(record: ScreenRecord) -> list[str]:
    """A screen's record in a few lines."""
    if record.report is None:
        return [f"not screened: {record.reason}"] if record.reason else []
    return describe_screen(ScreenReport.model_validate(record.report))


def predicted_lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A table of predicted steps."""
    for row in rows:
        name = " ".join(f"{n}={v}" for n, v in row["settings"].items()) or "reference"
        if "failure" in row:
            yield f"{name}: does not compile: {row['failure']}"
            continue
        loops = row["unknown_loops"]
        mfu = f", MFU {format_share(row['mfu'])}" if row["mfu"] is not None else ""
        yield (
            f"{name}: predicted step {format_seconds(row['step_s'])} (kernels "
            f"{format_seconds(row['compute_s'])}, exposed communication {format_seconds(row['exposed_s'])}, "
            f"idle {format_seconds(row['idle_s'])}{mfu}){_interval(row)}"
        )
        if loops:
            yield f"  no figure to go by: how often {', '.join(loops)} runs is not known, and each was counted once"
    if published := next((row["published"] for row in rows if "published" in row), None):
        yield f"the model is {published}"
    yield "PREDICTED, NOT MEASURED"


def _interval(row: dict[str, Any]) -> str:
    """Where a measured step would be, by what others published."""
    low_s, high_s = row["interval_s"]
    return f", measured 95 % between {format_seconds(low_s)} and {format_seconds(high_s)}"


def screen_lines(report: ScreenReport) -> list[str]:
    """The report in words."""
    versions = ", ".join(f"{n} {v}" for n, v in report.versions.items())
    lines = [f"{report.target}, {report.topology} (nodes x GPUs), {versions}{_canary(report)}"]
    peak, limit = report.reference.peak_bytes, report.limit_bytes
    if peak is not None:
        share = f", {format_share(peak / limit)} of {format_bytes(limit)}" if limit else ""
        verdict = "" if report.reference.fits is not False else ": DOES NOT FIT"
        lines.append(f"reference: peak {format_bytes(peak)} on each GPU{share}{verdict}")
    titles = {
        Effect.ACTIVE: "active: these change the program",
        Effect.NO_OP: "no-ops here: no value changes the program, alone or with others",
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

    if setting.effect in (Effect.NO_OP, Effect.MEASURE):
        return [f"  {setting.name}" + (f" ({setting.stage})" if setting.effect is Effect.MEASURE else "")]
    interaction = format_interaction(setting)
    lines = [f"  {setting.name}" + (f" ({interaction})" if interaction else "")]
    for value in setting.values:
        if value.message:
            lines.append(f"    {value.value}: {value.message}")
        elif not value.is_active:
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

"""Formats screens, the results of compiling without measuring."""

from __future__ import annotations

from autotune.compiler.screen import ScreenReport
from autotune.model.records import ScreenRecord
from autotune.model.texts import text_lines
from autotune.rundir.store import Store


def describe_screen(report: ScreenReport, *, has_values: bool = False) -> list[str]:
    """Summarises a screen in a few lines, or formats it with all values of each setting."""
    return text_lines("screened.txt.j2", report=report, has_values=has_values)


def screen_lines(store: Store) -> list[str]:
    """Summarises the newest screen of a run in a few lines; empty without one."""
    record = store.last(ScreenRecord)
    if record and record.report is not None:
        return describe_screen(ScreenReport.model_validate(record.report))
    return [f"not screened: {record.reason}"] if record and record.reason else []

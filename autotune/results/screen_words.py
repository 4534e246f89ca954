"""Formats screens and predictions, the results of compiling without measuring; the words are templates in `data`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autotune.compiler.screen import ScreenReport
from autotune.model.records import ScreenRecord
from autotune.model.texts import text_lines
from autotune.model.units import format_bytes, format_seconds, format_share


def describe_screen(report: ScreenReport) -> list[str]:
    """Summarises a screen in a few lines."""
    return _lines("screened.txt.j2", report=report, has_values=False)


def describe_screen_record(record: ScreenRecord) -> list[str]:
    """Summarises a screen's record in a few lines."""
    if record.report is None:
        return [f"not screened: {record.reason}"] if record.reason else []
    return describe_screen(ScreenReport.model_validate(record.report))


def screen_lines(report: ScreenReport) -> list[str]:
    """Formats a screen with all values of each setting."""
    return _lines("screened.txt.j2", report=report, has_values=True)


def predicted_lines(rows: Sequence[dict[str, Any]], agreement: str) -> list[str]:
    """Formats predictions.

    Args:
        rows: Of `autotune.compiler.predict.predict_set`.
        agreement: How predictions agree with published step times, as a clause.
    """
    return _lines("predict.txt.j2", rows=rows, agreement=agreement)


def _lines(template: str, **values: Any) -> list[str]:
    filters = {"bytes": format_bytes, "seconds": format_seconds, "share": format_share}
    return text_lines(template, filters, **values)

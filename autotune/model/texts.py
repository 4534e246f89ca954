"""Renders texts of several lines from templates of this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autotune.model import units
from autotune.model.files import packaged_template
from autotune.model.redaction import visible_line

UNITS = {
    "about": units.format_about,
    "bytes": units.format_bytes,
    "change": units.format_change,
    "joules": units.format_joules,
    "provable": units.format_provable,
    "seconds": units.format_seconds,
    "share": units.format_share,
}

Note = Callable[[str], None]  # takes a text that the user should see


def text_lines(name: str, **values: Any) -> list[str]:
    """Renders a template of the folder `data` as lines; no value ends a line."""
    template = packaged_template(name, UNITS, finalize=lambda value: visible_line(str(value)))
    return template.render(values).splitlines()

"""Renders texts of several lines from templates of this package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.model.files import packaged_template
from autotune.model.redaction import visible_line


def text_lines(name: str, filters: Mapping[str, Any], **values: Any) -> list[str]:
    """Renders a template of the folder `data` as lines; a value stays on its line, with control characters spelled out.

    Args:
        filters: The same in each call: a template is loaded once.
        values: Names that the template may use.
    """
    template = packaged_template(name, filters, finalize=lambda value: visible_line(str(value)))
    return template.render(values).splitlines()

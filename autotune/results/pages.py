"""What pages are made of: their templates, and the cells of their tables."""

from __future__ import annotations

import functools
from typing import Any

import jinja2


class Styled(str):
    """The text of a table's cell with a class of the style sheet, which Markdown leaves out."""

    style: str

    def __new__(cls, text: str, style: str) -> Styled:
        """A text with its class."""
        made = super().__new__(cls, text)
        made.style = style
        return made


def render(name: str, **shown: Any) -> str:
    """A template of `data/report` filled in."""
    return _templates().get_template(name).render(shown)


@functools.cache
def _templates() -> jinja2.Environment:
    """HTML is escaped; Markdown tables have the filter `cell`."""
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("autotune", "data/report"),
        autoescape=lambda name: name is not None and ".html" in name,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    env.filters["cell"] = lambda text: str(text).replace("|", "\\|").replace("\n", " ")
    return env

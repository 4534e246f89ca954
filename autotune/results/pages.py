"""What pages are made of: their templates, and the cells of their tables."""

from __future__ import annotations

import functools
import re
from typing import Any

import jinja2
from markupsafe import Markup

from autotune.model import visible, visible_line


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
    return _templates(name.removesuffix(".j2").endswith(".md")).get_template(name).render(shown)


@functools.cache
def _templates(is_markdown: bool) -> jinja2.Environment:
    """Whatever is filled in is text, and escaped as such; blocks of code, which need no escapes, have a filter."""
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("autotune", "data/report"),
        autoescape=lambda name: name is not None and (".html" in name or ".md" in name),
        finalize=_as_markdown if is_markdown else _as_text,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    env.filters["code"] = lambda lines: Markup("\n".join(map(visible_line, lines)))
    return env


def _as_text(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _as_markdown(value: Any) -> Any:
    """Text that Markdown shows as it is, on one line."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    line = visible(" ".join(value.split("\n")))
    line = _MARKDOWN.sub(r"\\\g<0>", line)
    return Markup(_HTML.sub(lambda found: "&lt;" if found[0] == "<" else "&amp;", line))


_MARKDOWN = re.compile(r"[\\`*|]|^#|~~|](?=[(\[:])|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
"""What Markdown would act on: code, emphasis, cells, headings, links. An underscore inside a name is one already."""

_HTML = re.compile(r"<|&(?=#?\w+;)")
"""What begins a tag or an entity: Markdown may hold HTML."""

"""Parts of pages: templates, table cells, and self-contained SVG charts coloured by CSS.

A chart has no fixed width: positions on its x axis are percents, all else is in pixels. So text keeps its size on a
phone.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

import jinja2
from markupsafe import Markup

from autotune.model.redaction import visible, visible_line
from autotune.model.units import format_ratio, format_seconds

WIDTH = 760
"""Width of a chart on its own, in pixels."""

LEFT, RIGHT = 4.0, 96.0
"""Ends of the x axis, in percents of the width."""

TOP, BOTTOM = 14, 36
"""Room above and below the axes, in pixels."""

MOST_LABELS = 60
"""Limit of rows with a label each."""


# ---------------------------------------------------------------------- templates


class Cell(str):
    """Text of a table cell with a CSS class, and a link to another page by its relative path; Markdown has neither."""

    style: str
    href: str

    def __new__(cls, text: str, style: str = "", *, path: str = "") -> Cell:
        """Creates a text with its class and link."""
        made = super().__new__(cls, text)
        made.style, made.href = style, quote(path)  # a colon, too: no path is taken for a scheme
        return made


def render(name: str, **shown: Any) -> str:
    """Renders a template of `data/report`."""
    return _templates(name.removesuffix(".j2").endswith(".md")).get_template(name).render(shown)


@functools.cache
def _templates(is_markdown: bool) -> jinja2.Environment:
    """Returns an environment that escapes every value; code blocks use the filter `code` instead."""
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
    """Escapes text for Markdown, on one line."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    line = visible(" ".join(value.split("\n")))
    line = _MARKDOWN.sub(r"\\\g<0>", line)
    return Markup(_HTML.sub(lambda found: "&lt;" if found[0] == "<" else "&amp;", line))


_MARKDOWN = re.compile(r"[\\`*|]|^#|~~|](?=[(\[:])|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
"""Syntax of Markdown: code, emphasis, cells, headings, links; an underscore inside a name needs no escape."""

_HTML = re.compile(r"<|&(?=#?\w+;)")
"""Start of a tag or an entity: Markdown may hold HTML."""


# ---------------------------------------------------------------------- charts


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One figure of a chart."""

    x: float
    x_ends: tuple[float, float] = (math.nan, math.nan)
    """Interval of `x`: may be 0, infinite, or NaN (none)."""
    label: str = ""
    detail: str
    """Tooltip."""
    style: str
    """CSS class: good, same, open, promising, unpromising, failed, aa_run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart with title and note; notebooks display it."""

    title: str
    svg: str
    note: str = ""

    @property
    def picture(self) -> str:
        """The chart as a standalone SVG document with its colours."""
        svg = self.svg or _svg((), 1, self.title)
        scope = "svg.autotune"  # the style must not reach the rest of a notebook's page
        style = render("chart.css.j2", root=scope, svg=scope)
        head = f'<svg xmlns="http://www.w3.org/2000/svg" class="autotune" {svg.removeprefix("<svg ")}'
        start, _, body = head.partition(">")
        return f"{start}><style>{style}</style>{body}"

    def save(self, path: str | Path) -> None:
        """Writes the picture to an SVG file."""
        Path(path).write_text(self.picture, encoding="utf-8")

    def _repr_html_(self) -> str:
        return self.picture if self.svg else "<p>nothing to draw yet</p>"


class _Scale:
    """Maps numbers to positions, on a linear or logarithmic scale."""

    def __init__(self, low: float, high: float, start: float, end: float, *, log: bool = False) -> None:
        if not low < high:
            pad = abs(low) * 0.01 or 0.5
            low, high = low - pad, high + pad
        self.low, self.high, self.log = low, high, log
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        a, b, v = (math.log(x) if self.log else x for x in (self.low, self.high, value))
        return self._start + (v - a) / (b - a) * (self._end - self._start)

    def ticks(self, count: int = 6) -> list[float]:
        """Returns round numbers inside the range."""
        raw = (self.high - self.low) / count
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [round(i * step, 12) for i in range(first, last + 1)]


def forest(
    rows: Sequence[Mark], *, band: float, of: str = "step time", description: str = "intervals of all trials"
) -> str:
    """Draws ratios with intervals on a logarithmic axis; more than `MOST_LABELS` rows are thin and have no labels.

    Args:
        band: Half width of the shaded band around 1.
        of: Quantity of the ratios.
        description: For screen readers.
    """
    if not rows:
        return ""
    labelled = len(rows) <= MOST_LABELS
    row_px = 36.0 if labelled else max(1.6, 1500.0 / len(rows))
    height = TOP + row_px * len(rows) + BOTTOM
    spread = [x for r in rows for x in (r.x, *r.x_ends) if 0.0 < x < math.inf]
    low, high = _trimmed([*spread, 1 - 2 * band, 1 + 2 * band])
    x = _Scale(low, high, LEFT, RIGHT, log=True)
    end = height - BOTTOM
    parts = [_rect(x(1 - band), TOP, x(1 + band) - x(1 - band), end - TOP, "band")]
    parts += [_vertical(x, t, end, format_ratio(t)) for t in x.ticks()]
    parts.append(_line(x(1), TOP, x(1), end, "unit"))
    for i, row in enumerate(rows):
        y = TOP + row_px * (i + (0.72 if labelled else 0.5))
        body = _text(0, y - 11, row.label[:150], "label", anchor="start") if labelled else ""
        body += _interval(x, row.x_ends, row.style, at_y=y)
        body += _mark(x(row.x), y, row.style, 4.5 if labelled else max(1.2, row_px / 2.5))
        parts.append(f"<g><title>{escape(visible(row.detail))}</title>{body}</g>")
    parts.append(_text(50, height - 4, f"{of} over the default's (left is less)", "axis"))
    return _svg(parts, height, description)


def traces(blocks: Sequence[tuple[str, Sequence[float]]]) -> str:
    """Draws raw step times in execution order, coloured by arm.

    Args:
        blocks: Arm (``reference`` or ``candidate``) and step times of each block, seconds.
    """
    times = [t for _, block in blocks for t in block]
    if not times:
        return ""
    height = 220
    end = height - BOTTOM
    x = _Scale(0, len(times), LEFT, RIGHT)
    y = _Scale(*_trimmed(times), end, TOP)
    parts = [_vertical(x, t, end, f"{t:g}") for t in x.ticks()]
    for t in y.ticks(5):
        parts.append(_line(0, y(t), 100, y(t), "grid"))
        parts.append(_text(0, y(t) - 3, format_seconds(t), "tick", anchor="start"))
    parts.append(_text(50, height - 4, "step, in the order of running", "axis"))
    paths: dict[str, list[str]] = {"reference": [], "candidate": []}
    at = 0
    for arm, block in blocks:
        paths[arm] += [f"M{at + i + 0.5} {y(t):.1f}h0" for i, t in enumerate(block)]
        at += len(block)
    width = 5.0 if len(times) < 400 else 2.5
    dots = [f'<path class="dots {arm}" stroke-width="{width}" d="{"".join(d)}"/>' for arm, d in paths.items()]
    parts.append(
        f'<svg x="{LEFT}%" width="{RIGHT - LEFT}%" height="{height}" viewBox="0 0 {len(times)} {height}" '
        f'preserveAspectRatio="none">{"".join(dots)}</svg>'  # stretched to the axis
    )
    return _svg(parts, height, "step times of reference and candidate, interleaved")


def _trimmed(values: Sequence[float]) -> tuple[float, float]:
    """Returns the range to show: all values except extreme outliers."""
    ordered = sorted(v for v in values if math.isfinite(v))
    low, high = ordered[0], ordered[-1]
    inner_low, inner_high = ordered[len(ordered) // 50], ordered[-1 - len(ordered) // 50]
    room = 2.0 * (inner_high - inner_low) or high - low
    low, high = max(low, inner_low - room), min(high, inner_high + room)
    pad = 0.04 * (high - low)
    return (low - pad if low > pad else low), high + pad


def _svg(parts: Iterable[str], height: float, description: str) -> str:
    label = quoteattr(visible(description))
    size = f'width="{WIDTH}" height="{height:.0f}"'
    return f'<svg {size} role="img" aria-label={label}>{"".join(parts)}</svg>'


def _vertical(x: _Scale, at: float, bottom: float, text: str) -> str:
    return _line(x(at), TOP, x(at), bottom, "grid") + _text(x(at), bottom + 15, text, "tick")


def _mark(x: float, y: float, style: str, radius: float) -> str:
    """Draws a mark whose shape depends on the style, so that colour is not needed."""
    if style == "unpromising":
        size = f'width="{2 * radius:.1f}" height="{2 * radius:.1f}" transform="translate({-radius:.1f})"'
        return f'<rect class="mark {style}" x="{x:.2f}%" y="{y - radius:.1f}" {size}/>'
    return f'<circle class="mark {style}" cx="{x:.2f}%" cy="{y:.1f}" r="{radius:.1f}"/>'


def _interval(scale: _Scale, ends: tuple[float, float], style: str, *, at_y: float) -> str:
    """Draws the bar of an interval, cut at the axis; empty without an interval."""
    if math.isnan(ends[0]):
        return ""
    low, high = (scale(max(end, scale.low)) for end in ends)
    return _line(low, at_y, high, at_y, f"bar {style}")


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line class="{style}" x1="{x1:.2f}%" y1="{y1:.1f}" x2="{x2:.2f}%" y2="{y2:.1f}"/>'


def _rect(x: float, y: float, width: float, height: float, style: str) -> str:
    return f'<rect class="{style}" x="{x:.2f}%" y="{y:.1f}" width="{width:.2f}%" height="{height:.1f}"/>'


def _text(x: float, y: float, text: str, style: str, *, anchor: str = "middle") -> str:
    return f'<text class="{style}" x="{x:.2f}%" y="{y:.1f}" text-anchor="{anchor}">{escape(visible(text))}</text>'

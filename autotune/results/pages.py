"""Parts of pages: templates, table cells, and self-contained SVG charts coloured by CSS."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from markupsafe import Markup

from autotune.model.files import packaged_templates
from autotune.model.redaction import visible, visible_line
from autotune.model.units import format_seconds

if TYPE_CHECKING:
    import jinja2

Range = tuple[float, float]  # lower and upper end

X_ENDS = (4.0, 96.0)  # ends of the x axis, in percents of the width
TRACE_TOP = 14  # upper end of the axis of raw step times, in pixels
TRACE_END = 184
TRACE_HEIGHT = 220

SMALLEST = 1e-9  # of a logarithmic scale: an interval may begin at 0
MOST_LABELS = 60  # rows with a label each


class Cell(str):
    """Text of a table cell with a CSS class, which Markdown lacks."""

    style: str

    def __new__(cls, text: str, style: str) -> Cell:
        """Creates a text with its class."""
        cell = super().__new__(cls, text)
        cell.style = style
        return cell


def render(name: str, **shown: Any) -> str:
    """Renders a template of `data/report`."""
    return _templates(name.endswith(".md.j2")).get_template(f"report/{name}").render(shown)


@functools.cache
def _templates(is_markdown: bool) -> jinja2.Environment:
    """Returns an environment that escapes every value, but code blocks by the filter `code`."""
    escape = _as_markdown if is_markdown else visible

    def finalize(value: Any) -> Any:
        if isinstance(value, Markup) or not isinstance(value, str):
            return value
        return escape(value)

    return packaged_templates(
        {"code": lambda lines: Markup("\n".join(map(visible_line, lines)))},
        autoescape=True,
        finalize=finalize,
        lstrip_blocks=True,
        keep_trailing_newline=False,
    )


def _as_markdown(text: str) -> Markup:
    """Escapes text for Markdown, on one line."""
    line = _MARKDOWN.sub(r"\\\g<0>", visible(text.replace("\n", " ")))
    return Markup(_HTML.sub(lambda match: "&lt;" if match[0] == "<" else "&amp;", line))


# Code, emphasis, cells, headings, links; no underscore inside a name.
_MARKDOWN = re.compile(r"[\\`*|]|^#|~~|](?=[(\[:])|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")

_HTML = re.compile(r"<|&(?=#?\w+;)")  # a tag or an entity: Markdown may hold HTML


class Mark(NamedTuple):
    """One figure of a chart."""

    x: float
    detail: str  # tooltip
    style: str  # CSS class, such as good or aa_run
    x_ends: Range  # 0, infinite, or NaN (none)
    label: str

    @property
    def has_interval(self) -> bool:
        """Whether `x` has an interval."""
        return not math.isnan(self.x_ends[0])


class Chart(NamedTuple):
    """One chart with title and note; notebooks display it."""

    title: str
    svg: str
    note: str = ""

    @property
    def picture(self) -> str:
        """The chart as a standalone SVG document with its colours."""
        svg = self.svg or '<svg role="img"></svg>'
        scope = "svg.autotune"  # the style must not reach the rest of a notebook's page
        style = render("chart.css.j2", root=scope, svg=scope)
        start, _, body = svg.removeprefix("<svg ").partition(">")
        head = f'<svg xmlns="http://www.w3.org/2000/svg" class="autotune" {start}>'
        return f"{head}<style>{style}</style>{body}"

    def save(self, path: str | Path) -> None:
        """Writes the picture to an SVG file."""
        Path(path).write_text(self.picture, encoding="utf-8")

    def _repr_html_(self) -> str:
        return self.picture if self.svg else "<p>nothing to draw yet</p>"


class _Scale:
    """Maps numbers to positions between two ends, on a linear or logarithmic scale."""

    def __init__(self, low: float, high: float, ends: Range, *, log: bool = False) -> None:
        pad = 0.0 if low < high else abs(low) * 0.01 or 0.5
        self.log = log
        self.low = self._of(low - pad)
        self.high = self._of(high + pad)
        self.ends = ends

    def _of(self, value: float) -> float:
        return math.log(max(value, SMALLEST)) if self.log else value

    def __call__(self, value: float) -> float:
        return float(np.interp(self._of(value), (self.low, self.high), self.ends))

    def ticks(self) -> list[float]:
        """Returns three to eight numbers at equal distances, with 0 if in range (log scale: 1)."""
        step = float(f"{(self.high - self.low) / 5:.0e}")
        places = range(math.ceil(self.low / step), math.floor(self.high / step) + 1)
        return [math.exp(n * step) if self.log else n * step for n in places]


def forest(
    rows: Sequence[Mark],
    *,
    band: float,
    of: str = "step time",
    description: str = "intervals of all trials",
) -> str:
    """Draws ratios of a quantity, and shades a band of half width `band` around 1."""
    if not rows:
        return ""
    labelled = len(rows) <= MOST_LABELS
    row_px = 36.0 if labelled else max(1.6, 1500.0 / len(rows))
    spread = [x for r in rows for x in (r.x, *r.x_ends) if 0.0 < x < math.inf]
    return render(
        "forest.svg.j2",
        rows=rows,
        x=_Scale(*_trimmed([*spread, 1 - 2 * band, 1 + 2 * band]), X_ENDS, log=True),
        band=band,
        labelled=labelled,
        row_px=row_px,
        radius=4.5 if labelled else max(1.2, row_px / 2.5),
        of=of,
        description=description,
    )


Block = tuple[str, Sequence[float]]  # arm, and seconds of its steps


def traces(blocks: Sequence[Block]) -> str:
    """Draws raw step times in execution order, coloured by arm."""
    times = [t for _, block in blocks for t in block]
    if not times:
        return ""
    x = _Scale(0, len(times), X_ENDS)
    y = _Scale(*_trimmed(times), (TRACE_END, TRACE_TOP))
    paths = {"reference": "", "candidate": ""}
    at = 0.5
    for arm, block in blocks:
        paths[arm] += "".join(f"M{at + i} {y(t):.1f}h0" for i, t in enumerate(block))
        at += len(block)
    return render(
        "traces.svg.j2",
        x=x,
        levels=[(y(t), format_seconds(t)) for t in y.ticks()],
        paths=paths,
        count=len(times),
        height=TRACE_HEIGHT,
        end=TRACE_END,
    )


def _trimmed(values: Sequence[float]) -> Range:
    """Returns the range to show: all values except extreme outliers."""
    finite = sorted(filter(math.isfinite, values))
    edge = len(finite) // 50
    inner_low = finite[edge]
    inner_high = finite[-1 - edge]
    room = 2.0 * (inner_high - inner_low) or math.inf
    low = max(finite[0], inner_low - room)
    high = min(finite[-1], inner_high + room)
    pad = 0.04 * (high - low)
    return (low - pad if low > pad else low), high + pad

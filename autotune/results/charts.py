"""Plain SVG charts for pages and notebooks: no script, no network; colours come from a style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from autotune.model import format_ratio, visible
from autotune.results.pages import render

WIDTH, NARROW = 760, 340
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 12, 36

Format = Callable[[float], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One figure of a chart, or two against each other.

    Attributes:
        x: On the horizontal axis.
        y: Upwards, where the chart has such an axis; what has none failed and stands along the upper edge.
        x_ends: The interval of `x`: may be 0, infinite, or NaN (none).
        label: Shown beside it.
        detail: Shown when pointed at.
        style: Class of the style sheet: good, same, open, promising, unpromising, failed, floor.
    """

    x: float
    y: float = math.nan
    x_ends: tuple[float, float] = (math.nan, math.nan)
    label: str = ""
    detail: str
    style: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart with its title and what it says in words; a notebook shows it as the report's page does."""

    title: str
    svg: str
    note: str = ""
    narrow: str = ""
    """The same for a phone, where it has another layout."""

    @property
    def picture(self) -> str:
        """The chart with its colours in it: an SVG document that stands alone."""
        svg = self.svg or f'<svg viewBox="0 0 {WIDTH} 1"></svg>'
        scope = "svg.autotune"  # nothing else on a notebook's page takes these colours
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
    """Maps numbers to pixels; `log` keeps equal factors equally far apart."""

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

    def ticks(self, count: int = 6, *, whole: bool = False) -> list[float]:
        """Round numbers inside the range; `whole` ones for what is counted."""
        raw = (self.high - self.low) / count
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
        if whole:
            step = max(1.0, math.ceil(step))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [round(i * step, 12) for i in range(first, last + 1)]


def forest(
    rows: Sequence[Mark],
    *,
    band: float,
    of: str = "step time",
    description: str = "intervals of all trials",
    is_narrow: bool = False,
) -> str:
    """Ratios with intervals on a logarithmic axis; the band in which a difference does not count is shaded.

    Args:
        rows: Top to bottom; many rows are drawn thinner and lose their labels.
        band: Half width of the band around 1.
        of: What the ratios are of.
        description: Of the chart, for who does not see it.
        is_narrow: For a phone: each label stands above its interval instead of beside it.
    """
    if not rows:
        return ""
    labelled, width = len(rows) <= 80, NARROW if is_narrow else WIDTH
    row_px = (34.0 if is_narrow else 19.0) if labelled else max(1.6, 1500.0 / len(rows))
    left = RIGHT if is_narrow else 300.0 if labelled else LEFT
    height = TOP + row_px * len(rows) + BOTTOM
    spread = [x for r in rows for x in (r.x, *r.x_ends) if 0.0 < x < math.inf]
    low, high = _trimmed([*spread, 1 - 2 * band, 1 + 2 * band])
    x = _Scale(low, high, left, width - RIGHT, log=True)
    end = height - BOTTOM
    parts = [_rect(x(1 - band), TOP, x(1 + band) - x(1 - band), end - TOP, "band")]
    parts += [_vertical(x, t, TOP, end, format_ratio(t)) for t in x.ticks(3 if is_narrow else 6)]
    parts.append(_line(x(1), TOP, x(1), end, "unit"))
    for i, row in enumerate(rows):
        y = TOP + row_px * (i + 0.5)
        body = ""
        if labelled and is_narrow:
            body += _text(left, y - 4, _cut(row.label, 52), "label", anchor="start")
            y += 8
        elif labelled:
            body += _text(left - 8, y + 4, _cut(row.label, 46), "label", anchor="end")
        body += _arm(x, row.x_ends, row.style, at_y=y)
        body += _mark(x(row.x), y, row.style, 4.5 if labelled else max(1.2, row_px / 2.5))
        parts.append(f"<g>{_title(row.detail)}{body}</g>")
    parts.append(_text((left + width - RIGHT) / 2, height - 4, f"{of} over the default's (left is less)", "axis"))
    return _svg(parts, height, description, width)


def panels(
    labels: Sequence[str],
    columns: Sequence[tuple[str, Sequence[Mark | str]]],
    *,
    band: float,
    description: str,
    is_narrow: bool = False,
) -> str:
    """Forests beside each other: ratios with intervals in the same rows and on the same logarithmic axis.

    Args:
        labels: Of the rows, top to bottom.
        columns: Each with its name and one mark for each row, or why there is none, in a word or two.
        band: Half width of the band around 1 in which a difference does not count.
        description: Of the chart, for who does not see it.
        is_narrow: For a phone: the columns stand below each other in each row, the name of each beside its interval.
    """
    if not labels or not columns:
        return ""
    marks = [m for _, rows in columns for m in rows if isinstance(m, Mark)]
    spread = [v for m in marks for v in (m.x, *m.x_ends) if 0.0 < v < math.inf]
    low, high = _trimmed([*spread, 1 - 2 * band, 1 + 2 * band])
    left, gap, line_px = (110.0 if is_narrow else 250.0), 14.0, 17.0
    across = NARROW - RIGHT - left if is_narrow else max(150.0, (WIDTH - RIGHT - left) / len(columns) - gap)
    width = NARROW if is_narrow else math.ceil(left + len(columns) * (across + gap))
    top, row_px = (TOP, 16.0 + line_px * len(columns)) if is_narrow else (TOP + 14.0, 22.0)
    end, parts = top + row_px * len(labels), list[str]()
    for j, (name, rows) in enumerate(columns):
        start = left if is_narrow else left + j * (across + gap)
        x = _Scale(low, high, start, start + across, log=True)
        if j == 0 or not is_narrow:
            parts.append(_rect(x(1 - band), top, x(1 + band) - x(1 - band), end - top, "band"))
            parts += [_vertical(x, t, top, end, format_ratio(t)) for t in x.ticks(3)]
            parts.append(_line(x(1), top, x(1), end, "unit"))
        if not is_narrow:
            parts.append(_text(start + across / 2, TOP + 4, _cut(name, int(across / 7)), "label"))
        for i, mark in enumerate(rows):
            y = top + row_px * i + (22.0 + line_px * j if is_narrow else row_px / 2)
            beside = _text(left - 8, y + 4, _cut(name, 15), "axis", anchor="end") if is_narrow else ""
            if isinstance(mark, str):
                has_room = x(1) + 70 < start + across  # on the side of the line that has it
                word = _text(x(1) + (6 if has_room else -6), y + 4, mark, "axis", anchor="start" if has_room else "end")
                parts.append(f"<g>{_title(f'{name}: {labels[i]}: {mark}')}{beside}{word}</g>")
            else:
                arm = _arm(x, mark.x_ends, mark.style, at_y=y) + _mark(x(mark.x), y, mark.style, 4.5)
                parts.append(f"<g>{_title(mark.detail)}{beside}{arm}</g>")
    for i, label in enumerate(labels):
        at = (2.0, top + row_px * i + 10) if is_narrow else (left - 8, top + row_px * (i + 0.5) + 4)
        parts.append(_text(*at, _cut(label, 52 if is_narrow else 38), "label", anchor="start" if is_narrow else "end"))
    parts.append(_text((left + width) / 2, end + BOTTOM - 4, "time over the default's (left is less)", "axis"))
    return _svg(parts, end + BOTTOM, description, width)


def scatter(points: Sequence[Mark], *, x_title: str, x_format: Format, best: Sequence[tuple[float, float]] = ()) -> str:
    """Ratios of step time (upwards is more) against something else.

    Args:
        points: What lies on top comes last.
        x_title: What `x` is.
        x_format: Shows an `x`. `format_ratio`: `x` is a ratio, too, so that the lower left is better in both;
            `format_whole`: it counts.
        best: Corners of a line of steps: where the best so far changed, and to what.
    """
    if not points:
        return ""
    height, is_ratio, around = 260.0, x_format is format_ratio, (0.995, 1.005)
    ys = [p.y for p in points if 0.0 < p.y < math.inf]
    xs = [p.x for p in points if p.x < math.inf]
    low, high = (0.5, max(xs) + 0.5) if x_format is format_whole else _trimmed([*xs, *(around if is_ratio else ())])
    x = _Scale(low, high, LEFT, WIDTH - RIGHT, log=is_ratio)
    failed_px = 16 if any(math.isnan(p.y) for p in points) else 0
    y = _Scale(*_trimmed([*ys, *around]), height - BOTTOM, TOP + failed_px, log=True)
    parts = [*_axes(x, y, height, x_title, format_ratio, x_format), _line(LEFT, y(1), WIDTH - RIGHT, y(1), "unit")]
    if is_ratio:
        parts.append(_line(x(1), TOP, x(1), height - BOTTOM, "unit"))
    if best:
        corners = "".join(f"H{x(at):.1f}V{y(ratio):.1f}" for at, ratio in best[1:])
        start = f"M{x(best[0][0]):.1f} {y(best[0][1]):.1f}"
        parts.append(f'<path class="best" d="{start}{corners}H{WIDTH - RIGHT}"/>')
    parts += [_cross(p, x, y) for p in points]
    return _svg(parts, height, f"ratio of step time against {x_title}")


def _cross(p: Mark, x: _Scale, y: _Scale) -> str:
    """A mark where two figures meet."""
    return f"<g>{_title(p.detail)}{_mark(x(p.x), TOP + 6 if math.isnan(p.y) else y(p.y), p.style, 3.6)}</g>"


def traces(blocks: Sequence[tuple[str, Sequence[float]]], *, y_format: Format) -> str:
    """Raw step times in the order in which they ran, the arm of each block by colour.

    Args:
        blocks: Arm (``reference`` or ``candidate``) and step times of each block, seconds.
        y_format: Shows a step time.
    """
    times = [t for _, block in blocks for t in block]
    if not times:
        return ""
    height = 220.0
    x = _Scale(0, len(times), LEFT, WIDTH - RIGHT)
    y = _Scale(*_trimmed(times), height - BOTTOM, TOP)
    paths: dict[str, list[str]] = {"reference": [], "candidate": []}
    at = 0
    for arm, block in blocks:
        paths[arm] += [f"M{x(at + i + 0.5):.1f} {y(t):.1f}h0" for i, t in enumerate(block)]
        at += len(block)
    width = 5.0 if len(times) < 400 else 2.5
    parts = _axes(x, y, height, "step, in the order of running", y_format, format_whole)
    parts += [f'<path class="dots {arm}" stroke-width="{width}" d="{"".join(d)}"/>' for arm, d in paths.items()]
    return _svg(parts, height, "step times of reference and candidate in turns")


def bars(rows: Sequence[tuple[str, float]], *, value_format: Format) -> str:
    """Horizontal bars from zero."""
    if not rows:
        return ""
    row_px, left = 21.0, 300.0
    height = TOP + row_px * len(rows) + 6
    x = _Scale(0.0, max(v for _, v in rows) or 1.0, left, WIDTH - 70)
    parts = []
    for i, (name, value) in enumerate(rows):
        y = TOP + row_px * i
        parts.append(f"<g>{_title(name)}{_text(left - 8, y + 13, _cut(name, 46), 'label', anchor='end')}")
        parts.append(_rect(left, y + 3, max(1.0, x(value) - left), row_px - 7, "column"))
        parts.append(_text(x(value) + 6, y + 13, value_format(value), "label", anchor="start") + "</g>")
    return _svg(parts, height, "importance of settings")


# ---------------------------------------------------------------------- parts


def _trimmed(values: Sequence[float]) -> tuple[float, float]:
    """The range to show: all values, unless a few lie so far off that the rest would be a line."""
    ordered = sorted(v for v in values if math.isfinite(v))
    low, high = ordered[0], ordered[-1]
    inner_low, inner_high = ordered[len(ordered) // 50], ordered[-1 - len(ordered) // 50]
    room = 2.0 * (inner_high - inner_low) or high - low
    low, high = max(low, inner_low - room), min(high, inner_high + room)
    pad = 0.04 * (high - low)
    return (low - pad if low > pad else low), high + pad


def _svg(parts: Iterable[str], height: float, description: str, width: int = WIDTH) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height:.0f}" role="img" aria-label={quoteattr(visible(description))}>'
        + "".join(parts)
        + "</svg>"
    )


def _axes(x: _Scale, y: _Scale, height: float, x_title: str, y_format: Format, x_format: Format) -> list[str]:
    parts = [_vertical(x, t, TOP, height - BOTTOM, x_format(t)) for t in x.ticks(whole=x_format is format_whole)]
    for t in y.ticks(5):
        parts.append(_line(LEFT, y(t), WIDTH - RIGHT, y(t), "grid"))
        parts.append(_text(LEFT - 6, y(t) + 4, y_format(t), "tick", anchor="end"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, height - 4, x_title, "axis"))
    return parts


def format_whole(value: float) -> str:
    """A number of things that are counted."""
    return f"{value:.0f}"


def _vertical(x: _Scale, at: float, top: float, bottom: float, text: str) -> str:
    return _line(x(at), top, x(at), bottom, "grid") + _text(x(at), bottom + 15, text, "tick")


def _mark(x: float, y: float, style: str, radius: float) -> str:
    """A shape for each style: it is told without colour too."""
    r = radius
    if style == "unpromising":
        return _rect(x - r, y - r, 2 * r, 2 * r, f"mark {style}")
    if style == "failed":
        cross = f"M{x - r:.1f} {y - r:.1f}l{2 * r} {2 * r}m0 {-2 * r}l{-2 * r} {2 * r}"
        return f'<path class="mark {style}" d="{cross}"/>'
    return f'<circle class="mark {style}" cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}"/>'


def _arm(scale: _Scale, ends: tuple[float, float], style: str, *, at_y: float) -> str:
    """The bar of an interval, which may reach beyond what is shown; nothing where there is none."""
    if math.isnan(ends[0]):
        return ""
    low, high = (scale(max(end, scale.low)) for end in ends)
    return _line(low, at_y, high, at_y, f"bar {style}")


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<path class="{style}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def _rect(x: float, y: float, width: float, height: float, style: str) -> str:
    return f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def _text(x: float, y: float, text: str, style: str, *, anchor: str = "middle") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(visible(text))}</text>'


def _title(text: str) -> str:
    return f"<title>{escape(visible(text))}</title>"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"

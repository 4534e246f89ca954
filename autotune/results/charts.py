"""Plain SVG charts for the report: no script, no network; colours come from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from autotune.model import format_ratio

WIDTH = 760
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 12, 36

Format = Callable[[float], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """One row of a forest plot.

    Attributes:
        label: Shown at its left.
        detail: Shown when pointed at.
        style: Class of the style sheet: faster, slower, same, unresolved, floor.
        low: Lower end; may be 0 or NaN (no interval).
        high: Upper end; may be infinite or NaN.
    """

    label: str
    detail: str
    ratio: float
    low: float
    high: float
    style: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One mark of a scatter."""

    x: float
    y: float
    detail: str
    style: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cross:
    """One set in a plane of two ratios, each with its interval; NaN where there is none."""

    x: tuple[float, float, float]
    y: tuple[float, float, float]
    label: str
    detail: str
    style: str


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


def forest(rows: Sequence[Interval], *, band: float) -> str:
    """Ratios with intervals on a logarithmic axis; the band in which a difference does not count is shaded.

    Args:
        rows: Top to bottom; many rows are drawn thinner and lose their labels.
        band: Half width of the band around 1.
    """
    if not rows:
        return ""
    labelled = len(rows) <= 80
    row_px = 19.0 if labelled else max(1.6, 1500.0 / len(rows))
    left, height = (300.0 if labelled else LEFT), TOP + row_px * len(rows) + BOTTOM
    spread = [x for r in rows for x in (r.ratio, r.low, r.high) if 0.0 < x < math.inf]
    low, high = _trimmed([*spread, 1 - 2 * band, 1 + 2 * band])
    x = _Scale(low, high, left, WIDTH - RIGHT, log=True)
    end = height - BOTTOM
    parts = [_rect(x(1 - band), TOP, x(1 + band) - x(1 - band), end - TOP, "band")]
    parts += [_vertical(x, t, TOP, end, format_ratio(t)) for t in x.ticks()]
    parts.append(_line(x(1), TOP, x(1), end, "unit"))
    for i, row in enumerate(rows):
        y = TOP + row_px * (i + 0.5)
        body = ""
        if labelled:
            body += _text(left - 8, y + 4, _cut(row.label, 46), "label", anchor="end")
        if not math.isnan(row.low):
            body += _line(x(max(row.low, low)), y, x(min(row.high, high)), y, f"bar {row.style}")
        if not math.isnan(row.ratio):
            body += _mark(x(row.ratio), y, row.style, 4.5 if labelled else max(1.2, row_px / 2.5))
        parts.append(f"<g>{_title(row.detail)}{body}</g>")
    parts.append(_text((left + WIDTH - RIGHT) / 2, height - 4, "step time over the default's (left is faster)", "axis"))
    return _svg(parts, height, "intervals of all trials")


def history(points: Sequence[Point], best: Sequence[tuple[float, float]], failed: Sequence[Point]) -> str:
    """Ratio of each trial in order, with the best so far as a line and failures along the upper edge."""
    if not points and not failed:
        return ""
    height = 260.0
    low, high = _trimmed([*(p.y for p in points), 0.995, 1.005])
    last = max(p.x for p in [*points, *failed])
    x = _Scale(0.5, last + 0.5, LEFT, WIDTH - RIGHT)
    y = _Scale(low, high, height - BOTTOM, TOP + 16, log=True)
    parts = _axes(x, y, height, "trial", format_ratio, _count)
    parts.append(_line(LEFT, y(1), WIDTH - RIGHT, y(1), "unit"))
    steps = "".join(f"{'H' if i else 'M'}{x(a):.1f}{' ' if not i else 'V'}{y(b):.1f}" for i, (a, b) in enumerate(best))
    if best:
        parts.append(f'<path class="best" d="{steps}H{WIDTH - RIGHT}"/>')
    parts += [_dot(x(p.x), y(p.y), p) for p in points]
    parts += [_dot(x(p.x), TOP + 6, p) for p in failed]
    return _svg(parts, height, "ratio of each trial in the order of the search")


def scatter(points: Sequence[Point], *, x_title: str, x_format: Format) -> str:
    """Ratio (upwards is slower) against another quantity."""
    if not points:
        return ""
    height = 240.0
    x = _Scale(*_trimmed([p.x for p in points]), LEFT, WIDTH - RIGHT)
    y = _Scale(*_trimmed([*(p.y for p in points), 0.995, 1.005]), height - BOTTOM, TOP, log=True)
    parts = _axes(x, y, height, x_title, format_ratio, x_format)
    parts.append(_line(LEFT, y(1), WIDTH - RIGHT, y(1), "unit"))
    parts += [_dot(x(p.x), y(p.y), p) for p in points]
    return _svg(parts, height, f"ratio against {x_title}")


def plane(crosses: Sequence[Cross], others: Sequence[Point], *, x_title: str) -> str:
    """Step time over another objective, both as ratios over the default's; the lower left is better in both.

    Args:
        crosses: The front, each a ratio with the ends of its interval.
        others: All other trials.
        x_title: Name of the other objective.
    """
    if not crosses:
        return ""
    height = 300.0
    xs, ys = ([v for c in crosses for v in getattr(c, name) if 0.0 < v < math.inf] for name in ("x", "y"))
    x = _Scale(*_trimmed([*xs, *(p.x for p in others), 0.995, 1.005]), LEFT, WIDTH - RIGHT, log=True)
    y = _Scale(*_trimmed([*ys, *(p.y for p in others), 0.995, 1.005]), height - BOTTOM, TOP, log=True)
    parts = _axes(x, y, height, f"{x_title} over the default's", format_ratio, format_ratio)
    parts += [_line(LEFT, y(1), WIDTH - RIGHT, y(1), "unit"), _line(x(1), TOP, x(1), height - BOTTOM, "unit")]
    parts += [_dot(x(p.x), y(p.y), p) for p in others]
    for c in crosses:
        bars = ""
        if not math.isnan(c.x[1]):
            bars += _line(x(c.x[1]), y(c.y[0]), x(min(c.x[2], x.high)), y(c.y[0]), f"bar {c.style}")
        if not math.isnan(c.y[1]):
            bars += _line(x(c.x[0]), y(c.y[1]), x(c.x[0]), y(min(c.y[2], y.high)), f"bar {c.style}")
        label = _text(x(c.x[0]) + 8, y(c.y[0]) - 7, c.label, "label", anchor="start")
        parts.append(f"<g>{_title(c.detail)}{bars}{_mark(x(c.x[0]), y(c.y[0]), c.style, 4.5)}{label}</g>")
    return _svg(parts, height, f"front of step time and {x_title}")


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
    parts = _axes(x, y, height, "step, in the order of running", y_format, _count)
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


def _svg(parts: Iterable[str], height: float, description: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label={quoteattr(description)}>'
        + "".join(parts)
        + "</svg>"
    )


def _axes(x: _Scale, y: _Scale, height: float, x_title: str, y_format: Format, x_format: Format) -> list[str]:
    parts = [_vertical(x, t, TOP, height - BOTTOM, x_format(t)) for t in x.ticks(whole=x_format is _count)]
    for t in y.ticks(5):
        parts.append(_line(LEFT, y(t), WIDTH - RIGHT, y(t), "grid"))
        parts.append(_text(LEFT - 6, y(t) + 4, y_format(t), "tick", anchor="end"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, height - 4, x_title, "axis"))
    return parts


def _count(value: float) -> str:
    return f"{value:.0f}"


def _vertical(x: _Scale, at: float, top: float, bottom: float, text: str) -> str:
    return _line(x(at), top, x(at), bottom, "grid") + _text(x(at), bottom + 15, text, "tick")


def _dot(x: float, y: float, point: Point) -> str:
    return f"<g>{_title(point.detail)}{_mark(x, y, point.style, 3.6)}</g>"


def _mark(x: float, y: float, style: str, radius: float) -> str:
    """A verdict's own shape: it is told without colour too."""
    r = radius
    if style == "slower":
        return _rect(x - r, y - r, 2 * r, 2 * r, f"mark {style}")
    if style == "failed":
        cross = f"M{x - r:.1f} {y - r:.1f}l{2 * r} {2 * r}m0 {-2 * r}l{-2 * r} {2 * r}"
        return f'<path class="mark {style}" d="{cross}"/>'
    return f'<circle class="mark {style}" cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}"/>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<path class="{style}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def _rect(x: float, y: float, width: float, height: float, style: str) -> str:
    return f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def _text(x: float, y: float, text: str, style: str, *, anchor: str = "middle") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"

"""The only formatter and parser of numbers with units; seconds and bytes everywhere inside."""

from __future__ import annotations

import math
import re

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|min|h|d)?")
_BYTES = re.compile(r"(\d+(?:\.\d+)?)([KMGT]i?)?B?")
_BYTES_PER = {None: 1} | {f"{p}{i}": (1024 if i else 1000) ** n for n, p in enumerate("KMGT", 1) for i in ("", "i")}
_SECONDS_PER = {"ms": 1e-3, "s": 1.0, None: 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(text: str | float) -> float:
    """Seconds in ``"30m"``, ``"1h30m"``, ``"90s"``, ``"250ms"`` or a plain number of seconds.

    Raises:
        ValueError: If the text is not a positive duration of that form.
    """
    if isinstance(text, (int, float)):
        total = float(text)
    else:
        compact = text.replace(" ", "")
        parts = list(_DURATION.finditer(compact))
        if not parts or "".join(p.group(0) for p in parts) != compact:
            raise ValueError(f"a duration must look like 90s, 30m or 1h30m but got {text!r}")
        total = sum(float(p.group(1)) * _SECONDS_PER[p.group(2)] for p in parts)
    if not (total > 0 and math.isfinite(total)):
        raise ValueError(f"a duration must be positive but got {text!r}")
    return total


def parse_bytes(text: str | float) -> int:
    """Bytes in ``"72GiB"`` (binary), ``"80GB"`` (decimal), ``"512 MiB"`` or a plain number of bytes.

    Raises:
        ValueError: If the text is not a positive size of that form.
    """
    parts = _BYTES.fullmatch(str(text).replace(" ", ""))
    if isinstance(text, bool) or parts is None:
        raise ValueError(f"a size must look like 72GiB, 80GB or 512MiB but got {text!r}")
    total = round(float(parts[1]) * _BYTES_PER[parts[2]])
    if not 0 < total <= 1 << 60:
        raise ValueError(f"a size must be above 0 and of this world but got {text!r}")
    return total


def format_seconds(seconds: float | None) -> str:
    """A duration with three significant digits: ``12.3 ms``, ``1.50 s``, ``4 min 10 s``."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if seconds < 0:
        return "-" + format_seconds(-seconds)
    if seconds >= 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
    if seconds >= 60:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= scale or unit == "µs":
            return f"{seconds / scale:.3g} {unit}"
    raise AssertionError("unreachable")


def format_joules(joules: float | None) -> str:
    """An energy with three significant digits: ``12.5 J``, ``3.10 kJ``."""
    if joules is None or not math.isfinite(joules):
        return "-"
    for scale, unit in ((1e6, "MJ"), (1e3, "kJ"), (1.0, "J"), (1e-3, "mJ")):
        if abs(joules) >= scale or unit == "mJ":
            return f"{joules / scale:.3g} {unit}"
    raise AssertionError("unreachable")


def format_bytes(count: float | None) -> str:
    """A size in binary units with three significant digits: ``436 MiB``."""
    if count is None or not math.isfinite(count):
        return "-"
    for scale, unit in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(count) >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} B"


def format_ratio(ratio: float | None) -> str:
    """A step-time ratio, candidate over reference, to three decimals: ``0.968``."""
    return "-" if ratio is None or not math.isfinite(ratio) else f"{ratio:.3f}"


def format_interval(low: float | None, high: float | None) -> str:
    """An interval of ratios: ``[0.951, 0.984]``; ``-`` for one that holds all of them, as before a first look."""
    if low == 0.0 and high is not None and not math.isfinite(high):
        return "-"
    return f"[{format_ratio(low)}, {format_ratio(high)}]"


def format_change(ratio: float | None) -> str:
    """A step-time ratio in words: ``3.2 % faster``, ``0.4 % slower``."""
    if ratio is None or not math.isfinite(ratio):
        return "-"
    change = (1.0 - ratio) * 100.0
    return f"{abs(change):.1f} % {'faster' if change >= 0 else 'slower'}"


def format_change_of(change: float) -> str:
    """A relative difference with its sign: ``+0.31 %``, ``-1.2e-06``."""
    return f"{change:+.2%}".replace("%", " %") if abs(change) >= 1e-4 else f"{change:+.1e}"


def format_share(share: float | None) -> str:
    """A share between 0 and 1 as percent: ``37.2 %``."""
    return "-" if share is None or not math.isfinite(share) else f"{share * 100:.1f} %"


LARGEST_TOLD = 0.5
"""A speed-up beyond which it is only told that nothing smaller is found: a bound of 100 % bounds nothing."""


def format_detectable(share: float | None) -> str:
    """The smallest speed-up that a trial shows: ``about 1.2 %``, or that none below a half is found."""
    if share is None or not math.isfinite(share):
        return "-"
    if share >= LARGEST_TOLD:
        return f"more than {format_share(LARGEST_TOLD)}, for equal runs differ too much here"
    return f"about {format_share(share)}"


def format_count(count: float | None) -> str:
    """A large count with three significant digits: ``6.74 G``, ``12.5 k``."""
    if count is None or not math.isfinite(count):
        return "-"
    for scale, unit in ((1e15, " P"), (1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(count) >= scale:
            return f"{count / scale:.3g}{unit}"
    return f"{count:.3g}"

"""Parses and formats numbers with units; inside, everything is in seconds, bytes and joules."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TypeGuard

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|min|m|h|d)")
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)")
_BYTES = re.compile(r"(\d+(?:\.\d+)?)([KMGT]i?)?B?")
_BYTES_PER = {None: 1} | {
    f"{p}{i}": (1024 if i else 1000) ** n for n, p in enumerate("KMGT", 1) for i in ("", "i")
}
_SECONDS_PER = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(text: str | float) -> float:
    """Reads seconds above 0: ``"1h30m"``, ``"250ms"``, SLURM's ``"1-08:00:00"`` or a number."""
    if isinstance(text, (int, float)):
        total = float(text)
    else:
        compact = text.replace(" ", "")
        if clock := _CLOCK.fullmatch(compact):
            compact = "{}d{}h{}m{}s".format(*clock.groups("0"))
        if _DURATION.sub("", compact):
            raise ValueError(
                f"a duration must have its unit, such as 90s, 30m or 1h30m, but got {text!r}"
            )
        total = sum(
            float(number) * _SECONDS_PER[unit] for number, unit in _DURATION.findall(compact)
        )
    if not (total > 0 and math.isfinite(total)):
        raise ValueError(f"a duration must be positive but got {text!r}")
    return total


def parse_bytes(text: str | float) -> int:
    """Reads bytes above 0: ``"72GiB"`` (binary), ``"80GB"`` (decimal), or a plain number."""
    match = _BYTES.fullmatch(str(text).replace(" ", ""))
    if match is None:
        raise ValueError(f"a size must look like 72GiB, 80GB or 512MiB but got {text!r}")
    total = round(float(match[1]) * _BYTES_PER[match[2]])
    if not 0 < total <= 1 << 60:
        raise ValueError(f"a size must be above 0 and of this world but got {text!r}")
    return total


def _is_known(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def format_seconds(seconds: float | None) -> str:
    """A duration with three significant digits: ``12.3 ms``, ``1.50 s``, ``4 min 10 s``."""
    if not _is_known(seconds):
        return "-"
    if seconds < 0:
        return "-" + format_seconds(-seconds)
    minutes = int(seconds) // 60
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    if minutes:
        return f"{minutes} min {int(seconds) % 60} s"
    return _scaled(seconds, {" s": 1.0, " ms": 1e-3, " µs": 1e-6})


def format_about(seconds: float) -> str:
    """An estimate of time: whole minutes from one minute on, ``12 min``."""
    if seconds >= 60:
        seconds = 60 * round(seconds / 60)
    return format_seconds(seconds).removesuffix(" 0 s")


def format_joules(joules: float | None) -> str:
    """An energy with three significant digits: ``12.5 J``, ``3.10 kJ``."""
    return _scaled(joules, {" MJ": 1e6, " kJ": 1e3, " J": 1.0, " mJ": 1e-3})


def format_bytes(count: float | None) -> str:
    """A size in binary units with three significant digits: ``436 MiB``."""
    if count is not None and abs(count) < 1 << 10:
        return f"{count:.0f} B"
    return _scaled(count, {" TiB": 1 << 40, " GiB": 1 << 30, " MiB": 1 << 20, " KiB": 1 << 10})


def format_count(count: float | None) -> str:
    """A large count with three significant digits: ``6.74 G``, ``12.5 k``."""
    return _scaled(count, {" P": 1e15, " T": 1e12, " G": 1e9, " M": 1e6, " k": 1e3, "": 1.0})


def _scaled(value: float | None, scales: Mapping[str, float]) -> str:
    """A value in the largest unit that does not exceed it, else in the smallest; ``-`` for none."""
    if not _is_known(value):
        return "-"
    for unit, scale in scales.items():
        text = f"{float(f'{value / scale:.3g}'):g}{unit}"  # 1000 MiB, not 1e+03 MiB
        if abs(value) >= scale:
            break
    return text


def format_ratio(ratio: float | None) -> str:
    """A step-time ratio, candidate over reference, to three decimals: ``0.968``."""
    return f"{ratio:.3f}" if _is_known(ratio) else "-"


def format_interval(low: float | None, high: float | None) -> str:
    """An interval of ratios: ``[0.951, 0.984]``; ``-`` for one that excludes none."""
    if low == 0.0 and high == math.inf:
        return "-"
    return f"[{format_ratio(low)}, {format_ratio(high)}]"


def format_change(ratio: float | None) -> str:
    """A step-time ratio in words: ``3.2 % faster``, ``0.4 % slower``."""
    if not _is_known(ratio):
        return "-"
    return f"{_percent_of_change(ratio)} {'faster' if ratio <= 1.0 else 'slower'}"


def _percent_of_change(ratio: float) -> str:
    return f"{abs(1.0 - ratio) * 100.0:.1f} %"


LARGE_GAIN = 0.1  # share from which a gain is also given as a factor


def format_gain(ratio: float, reference_s: float | None = None, *, of: str = "step time") -> str:
    """A ratio in words: ``step time 5.8 % less``, ``22 times as fast (95.5 % less)``."""
    change = f"{_percent_of_change(ratio)} {'less' if ratio <= 1.0 else 'more'}"
    if ratio > 1.0 - LARGE_GAIN:
        return f"{of} {change}"
    digits = 1 if ratio > 0.1 else 0
    times = f"{1.0 / ratio:.{digits}f} times as fast"
    if reference_s is None:
        return f"{times} ({change})"
    before = format_seconds(reference_s)
    after = format_seconds(ratio * reference_s)
    if before.split()[1:] == after.split()[1:]:
        before = before.split()[0]
    return f"{times}: {before} -> {after} a step ({change})"


def format_change_of(change: float) -> str:
    """A relative difference with its sign: ``+0.31 %``, ``-1.2e-06``."""
    if abs(change) >= 1e-4:
        return f"{change:+.2%}".replace("%", " %")
    return f"{change:+.1e}"


def format_share(share: float | None) -> str:
    """A share between 0 and 1 as percent: ``37.2 %``."""
    return f"{share * 100:.1f} %" if _is_known(share) else "-"


LARGEST_TOLD = 0.5  # as the smallest provable gain: 100 % would say nothing


def format_provable(share: float | None) -> str:
    """The smallest gain that is proven 9 times in 10: ``1.2 %``, ``more than 50.0 %``."""
    prefix = "more than " if share == LARGEST_TOLD else ""
    return prefix + format_share(share)

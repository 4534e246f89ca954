"""Numbers and units as training programs print them: 1,234.5 and 12.3k, ms and s/it, tok/s; terminals' colours.

Standard library only.
"""

from __future__ import annotations

import re

_TIMES = {
    "s": 1.0, "sec": 1.0, "second": 1.0, "ms": 1e-3, "msec": 1e-3, "millisecond": 1e-3, "us": 1e-6, "usec": 1e-6,
    "µs": 1e-6, "μs": 1e-6, "microsecond": 1e-6, "ns": 1e-9, "min": 60.0, "minute": 60.0,
}  # fmt: skip
_WHOLES = {
    "it": "steps", "iter": "steps", "iteration": "steps", "step": "steps", "batch": "steps", "update": "steps",
    "tok": "tokens", "token": "tokens",
}  # fmt: skip
_SECONDS = ("s", "sec", "second")
_SIZES = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}

_NUMBER = re.compile(
    r"([-+]?(?:\d[\d,_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf(?:inity)?))\s*(.*)", re.I | re.S
)
_THOUSANDS = re.compile(r"(?<![\w.,])\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,]*\d)")
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_=>])|[\x07\x08]")


def plain(line: str) -> str:
    """A line without colours, movements of the cursor and other sequences of a terminal."""
    return _ANSI.sub("", line)


def number(text: str | None) -> float | None:
    """The number that a text is, or None: with separators of thousands or a k, M, G, B behind it, too."""
    if text is None:
        return None
    value, rest = split(text)
    return value if value is None or not rest else value * _SIZES[rest.lower()] if rest.lower() in _SIZES else None


def split(text: str) -> tuple[float | None, str]:
    """The number that a text begins with (None if none) and what follows it: of ``12.5 ms`` 12.5 and ``ms``."""
    found = _NUMBER.fullmatch(text.strip().rstrip(",.;"))
    if found is None:
        return None, text
    try:
        return float(found[1].replace(",", "")), found[2].strip()
    except ValueError:
        return None, text


def search(pattern: re.Pattern[str], line: str) -> re.Match[str] | None:
    """Where a pattern matches a line, as it is or else without the separators of thousands."""
    found = pattern.search(line)
    if found is None and "," in line:
        found = pattern.search(_THOUSANDS.sub(lambda number: number[0].replace(",", ""), line))
    return found


def whole(found: re.Match[str], group: str) -> str | None:
    """What a group of a match holds, with what its pattern cut off: of 1,234.5 digits and dots are only 1, or 234.5.

    Commas that the pattern itself has beside the group are no separators.
    """
    text = found[group]
    if text is None:
        return None
    start, end = found.span(group)
    for around in _THOUSANDS.finditer(found.string):
        if around.start() <= start and end <= around.end():
            before, _, after = found.re.pattern.partition(f"(?P<{group}>")
            left = start > around.start() and before.endswith(",")
            right = end < around.end() and _behind_group(after).startswith((",", "\\,"))
            return text if left or right else around[0]
    return text


def _behind_group(pattern: str) -> str:
    """What follows the group in whose inside a pattern begins."""
    depth, i = 1, 0
    while i < len(pattern) and depth:
        if pattern[i] == "\\":
            i += 1
        elif pattern[i] in "()":
            depth += 1 if pattern[i] == "(" else -1
        i += 1
    return pattern[i:]


def factor(unit: str) -> tuple[str, float]:
    """What a unit counts (``time``, ``steps`` or ``tokens`` each second), and in how many seconds or of which size.

    Raises:
        ValueError: If it is no unit of a step's duration.
    """
    above, _, below = re.sub(r"\s+", "", unit.lower()).replace("per", "/").partition("/")
    time = _TIMES.get(above) or _TIMES.get(above.removesuffix("s"))
    if time is not None and (not below or _counts(below) == "steps"):
        return "time", time
    if below in _SECONDS:
        for prefix, size in {"": 1.0, **_SIZES}.items():
            if above.startswith(prefix) and (counted := _counts(above[len(prefix) :])):
                return counted, size
    raise ValueError(
        f"{unit!r:.40} is no unit of a step's duration; s, ms, us, s/it, ms/step, it/s, steps/s, tok/s and the like are"
    )


def _counts(word: str) -> str | None:
    """What a word such as ``its``, ``step`` or ``tokens`` counts, or None."""
    return _WHOLES.get(word) or _WHOLES.get(
        word.removesuffix("s").removesuffix("e") if word == "batches" else word[:-1]
    )


def is_unit(text: str) -> bool:
    """Whether a text is a unit that `factor` knows."""
    try:
        factor(text)
    except ValueError:
        return False
    return True

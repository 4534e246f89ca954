"""From lines that a trainer prints to step times and losses: rules, presets, and cutting a stream into lines.

Standard library only: the program that reads another's output (`autotune.child.read_output`) starts in milliseconds.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.child.read_presets import PRESETS
from autotune.child.read_units import factor, number, plain, search, split, whole

LONGEST_LINE = 4_000
"""Characters of a line that are looked at; a longer line is cut, not an error."""

DURATIONS = ("step_s", "step_ms", "step_us", "steps_per_s", "tokens_per_s", "value")
"""Groups of a pattern that hold how long a step takes: one of them at most; ``value`` goes with ``unit``."""

GROUPS = (*DURATIONS, "unit", "step", "loss")
"""Names that a group of a pattern may have."""

_NAMED = {
    "step_s": ("time", 1.0),
    "step_ms": ("time", 1e-3),
    "step_us": ("time", 1e-6),
    "steps_per_s": ("steps", 1.0),
    "tokens_per_s": ("tokens", 1.0),
}


@dataclass(frozen=True, slots=True)
class Step:
    """One reading: how long a step took, and the loss if the line had one; `step_s` None if only the loss was read."""

    step_s: float | None
    loss: float | None


class StepReader:
    """From lines to steps.

    Args:
        rules: ``preset``, ``pattern`` or ``json_key`` with ``unit``; ``loss``; ``tokens_per_step``
            (see `autotune.model.sections.ReadSpec`).

    Raises:
        ValueError: If a rule cannot work; the message says which and why.
    """

    def __init__(self, rules: Mapping[str, Any]) -> None:
        preset = PRESETS[rules["preset"]] if rules.get("preset") else {}
        self._tokens = rules.get("tokens_per_step")
        self._key = rules.get("json_key")
        self._unit = rules.get("unit", "step_s")
        self._loss_key = rules.get("loss") if self._key else None
        self._pattern: re.Pattern[str] | None = None
        self._loss: re.Pattern[str] | None = None
        self._raw = False
        if self._key is None:
            self._take_patterns(rules.get("pattern") or preset["pattern"], rules.get("loss") or preset.get("loss"))
        self._last: tuple[float, int] | None = None

    def _take_patterns(self, pattern: str, loss: str | None) -> None:
        self._pattern = _compiled("pattern", pattern)
        self._loss = _compiled("loss", loss) if loss else None
        if self._loss is not None and "loss" not in self._loss.groupindex:
            raise ValueError(f"`loss` must have a group (?P<loss>...) but got {loss!r}")
        if unknown := [name for name in self._pattern.groupindex if name not in GROUPS]:
            raise ValueError(
                f"groups of a `pattern` must be named {', '.join(GROUPS)} but got {', '.join(unknown)}; "
                "a group that is not read is written (?:...)"
            )
        units = [u for u in DURATIONS if u in self._pattern.groupindex]
        if len(units) > 1:
            raise ValueError(
                f"`pattern` must have at most one of the groups {', '.join(DURATIONS)} but got {', '.join(units)}"
            )
        if ("unit" in self._pattern.groupindex) != (units == ["value"]):
            raise ValueError("the groups `value` and `unit` of a `pattern` must come together, as 12.5 and ms do")
        self._unit = units[0] if units else "step"
        self._raw = any(escape in pattern for escape in ("\x1b", "\\x1b", "\\033"))

    @property
    def needs_tokens(self) -> bool:
        """Whether a rate of tokens is read, which says nothing without the tokens of a step."""
        return bool(self._unit == "tokens_per_s")

    @property
    def uses_clock(self) -> bool:
        """Whether the time between lines counts, for none of them says how long a step took."""
        return bool(self._unit == "step")

    def read(self, line: str, now_s: float) -> Step | None:
        """What one line says, or None.

        Args:
            line: Without its end; colours and other sequences of a terminal are passed over.
            now_s: When it came, on any clock.
        """
        if not self._raw and ("\x1b" in line or "\b" in line):
            line = plain(line)
        if self._pattern is None:
            return self._read_json(line, now_s)
        found = search(self._pattern, line)
        lost = _number(search(self._loss, line), "loss") if self._loss is not None else _number(found, "loss")
        if not found:
            return Step(None, lost) if lost is not None else None
        if not self.uses_clock:
            return Step(self._duration(found), lost)
        step = _number(found, "step")
        return self._between(None if step is None else int(step), now_s, lost)

    def _duration(self, found: re.Match[str]) -> float | None:
        """Seconds of a step in a line that says it: with the unit of its group, or one that stands there."""
        value, unit = split(whole(found, self._unit) or "")
        if self._unit == "value":
            unit = unit + (found["unit"] or "")
        elif number(unit and "1" + unit) is not None:
            value, unit = number(whole(found, self._unit)), ""
        try:
            return self._seconds(value, *(factor(unit) if unit else _NAMED[self._unit]))
        except ValueError:
            return None

    def _between(self, step: int | None, now_s: float, lost: float | None) -> Step | None:
        """A step by the clock: the time since the line before, shared by the steps between."""
        earlier, self._last = self._last, (now_s, step if step is not None else (self._last or (0, 0))[1] + 1)
        if earlier is None or self._last[1] == earlier[1]:
            self._last = earlier or self._last  # a counter drawn again
            return Step(None, lost) if lost is not None else None
        count = self._last[1] - earlier[1]
        return Step((now_s - earlier[0]) / count if count > 0 else None, lost)

    def _read_json(self, line: str, now_s: float) -> Step | None:
        if not line.lstrip().startswith("{"):
            return None
        try:
            data = json.loads(line)
        except ValueError:
            return None
        value, loss = _dig(data, self._key), _dig(data, self._loss_key)
        if value is None and loss is None:
            return None
        if not self.uses_clock:
            return Step(self._seconds(value, *_NAMED[self._unit]), loss)
        if value is None or not math.isfinite(value):
            return Step(None, loss)
        return self._between(int(value), now_s, loss)

    def _seconds(self, value: float | None, counted: str, size: float) -> float | None:
        """A reading in seconds a step; None for what can not be a duration."""
        if value is None or not (math.isfinite(value) and value > 0):
            return None
        if counted == "time":
            return value * size
        if counted == "steps":
            return 1 / (value * size)
        return self._tokens / (value * size) if self._tokens else None


def _compiled(name: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"`{name}` must be a regular expression but got {pattern!r}: {error}") from error


def _number(found: re.Match[str] | None, group: str) -> float | None:
    return number(whole(found, group)) if found is not None and group in found.re.groupindex else None


def _dig(data: Any, key: str | None) -> float | None:
    """The number under a key with dots, or None."""
    if key is None:
        return None
    for part in [key] if isinstance(data, dict) and key in data else key.split("."):
        if not isinstance(data, dict):
            return None
        data = data.get(part)
    return float(data) if isinstance(data, int | float) and not isinstance(data, bool) else None


class Lines:
    """Cuts a stream of bytes into lines; a carriage return ends one too, as progress bars use it."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[str]:
        """The lines that are whole now, each cut to `LONGEST_LINE`."""
        *whole, rest = re.split(rb"[\r\n]", self._rest + data)
        self._rest = rest[:LONGEST_LINE]
        for line in whole:
            if line:
                yield line[:LONGEST_LINE].decode("utf-8", errors="replace")


class Tail:
    """Follows a file that the program appends to, from the size it had before; starts anew if it is cut or replaced."""

    def __init__(self, path: Path, *, whole: bool = False) -> None:
        self.path = path
        self.starts = 0  # how often it was read from its beginning
        self._seen = None if whole else self._identity()

    def read(self) -> bytes:
        """What was appended since the last call."""
        now = self._identity()
        if now is None:
            self._seen = None  # one that takes its place is another file, even if it gets the same number
            return b""
        start = self._seen[1] if self._seen and self._seen[0] == now[0] and self._seen[1] <= now[1] else 0
        try:
            with self.path.open("rb") as stream:
                stream.seek(start)
                data = stream.read(1 << 22)
        except OSError:
            return b""
        self._seen = (now[0], start + len(data))
        self.starts += start == 0 and bool(data)
        return data

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size

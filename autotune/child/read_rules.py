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

LONGEST_LINE = 4_000
"""Characters of a line that are looked at; a longer line is cut, not an error."""

_UNITS = ("step_s", "step_ms", "steps_per_s", "tokens_per_s")

PRESETS: Mapping[str, Mapping[str, str]] = {
    # MaxText, metric_logger.py: "completed step: 5, seconds: 1.234, TFLOP/s/device: ..., loss: 10.8"
    "maxtext": {
        "pattern": r"completed step: (?P<step>\d+), seconds: (?P<step_s>[-+.\deE]+)",
        "loss": r"\bloss: (?P<loss>[-+.\deEnaif]+)",
    },
    # clu.metric_writers (T5X, Flax examples): "[100] loss=2.5, steps_per_sec=3.1"
    "clu": {
        "pattern": r"\[(?P<step>\d+)\].*\bsteps_per_sec(?:ond)?=(?P<steps_per_s>[-+.\deE]+)",
        "loss": r"\b(?:train_)?loss=(?P<loss>[-+.\deEnaif]+)",
    },
    # tqdm shows a smoothed rate: only its counter is used, with the time at which the line came
    "tqdm": {"pattern": r"\b(?P<step>\d+)/(?:\d+|\?) \[", "loss": r"\bloss[=:]\s*(?P<loss>[-+.\deEnaif]+)"},
}
"""Lines of known trainers. Where one prints no duration, the time between its lines counts."""


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
        if self._key is None:
            self._pattern = _compiled("pattern", rules.get("pattern") or preset["pattern"])
            loss = rules.get("loss") or preset.get("loss")
            self._loss = _compiled("loss", loss) if loss else None
            if self._loss is not None and "loss" not in self._loss.groupindex:
                raise ValueError(f"`loss` must have a group (?P<loss>...) but got {loss!r}")
            units = [u for u in _UNITS if u in self._pattern.groupindex]
            if len(units) > 1:
                raise ValueError(
                    f"`pattern` must have at most one of the groups {', '.join(_UNITS)} but got {', '.join(units)}"
                )
            self._unit = units[0] if units else "clock"
        if self._unit == "tokens_per_s" and not self._tokens:
            raise ValueError("`tokens_per_step` must be given to read tokens_per_s")
        self._last: tuple[float, int] | None = None

    def read(self, line: str, now_s: float) -> Step | None:
        """What one line says, or None.

        Args:
            line: Without its end.
            now_s: When it came, on any clock.
        """
        if self._pattern is None:
            return self._read_json(line)
        loss = self._loss.search(line) if self._loss is not None else None
        lost = _number(loss.group("loss")) if loss else None
        found = self._pattern.search(line)
        if not found:
            return Step(None, lost) if lost is not None else None
        if self._unit != "clock":
            return Step(self._seconds(_number(found.group(self._unit))), lost)
        step = int(found.group("step")) if found.groupdict().get("step") else None
        earlier, self._last = self._last, (now_s, step if step is not None else (self._last or (0, 0))[1] + 1)
        if earlier is None or self._last[1] == earlier[1]:
            self._last = earlier or self._last  # a counter drawn again
            return Step(None, lost) if lost is not None else None
        count = self._last[1] - earlier[1]
        return Step((now_s - earlier[0]) / count if count > 0 else None, lost)

    def _read_json(self, line: str) -> Step | None:
        if not line.lstrip().startswith("{"):
            return None
        try:
            data = json.loads(line)
        except ValueError:
            return None
        value, loss = _dig(data, self._key), _dig(data, self._loss_key)
        if value is None and loss is None:
            return None
        return Step(self._seconds(value), loss)

    def _seconds(self, value: float | None) -> float | None:
        """A reading in seconds a step; None for what can not be a duration."""
        if value is None or not (math.isfinite(value) and value > 0):
            return None
        if self._unit == "step_ms":
            return value / 1e3
        if self._unit == "steps_per_s":
            return 1 / value
        return self._tokens / value if self._unit == "tokens_per_s" and self._tokens else value


def _compiled(name: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"`{name}` must be a regular expression but got {pattern!r}: {error}") from error


def _number(text: str | None) -> float | None:
    try:
        return float(text.rstrip(",.;")) if text is not None else None
    except ValueError:
        return None


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

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._identity()

    def read(self) -> bytes:
        """What was appended since the last call."""
        now = self._identity()
        if now is None:
            self._seen = None  # one that takes its place is another file, even if it gets the same number
            return b""
        start = self._seen[1] if self._seen and self._seen[0] == now[0] and self._seen[1] <= now[1] else 0
        try:
            with self._path.open("rb") as stream:
                stream.seek(start)
                data = stream.read(1 << 22)
        except OSError:
            return b""
        self._seen = (now[0], start + len(data))
        return data

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size

"""Reads step times and losses from the lines that trainers print. Standard library only."""

from __future__ import annotations

import contextlib
import json
import math
import re
import signal
import threading
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.child.output import LONGEST_LINE


def read_table(name: str) -> dict[str, Any]:
    """Reads a table of facts of this package."""
    return tomllib.loads((Path(__file__).parents[1] / "data" / name).read_text(encoding="utf-8"))


PRESETS: Mapping[str, Mapping[str, str]] = read_table("trainers.toml")
"""Patterns of known trainers. Without a printed duration, the time between lines counts."""

MATCH_LIMIT_S = 2.0
"""Limit of CPU time for matching one piece of output, against endless backtracking."""

_UNITS = read_table("lines.toml")["units"]
SECONDS: Mapping[str, float] = _UNITS["seconds"]
"""Units of time in seconds."""

_WHOLES: Mapping[str, str] = _UNITS["counted"]
_SECONDS = ("s", "sec", "second")
_SIZES = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}

_NUMBER = re.compile(
    r"([-+]?(?:\d[\d,_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf(?:inity)?))\s*(.*)", re.I | re.S
)
_THOUSANDS = re.compile(r"(?<![\w.,])\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,]*\d)")
_DECIMAL = re.compile(r"(?<![\w.,(\[])[-+]?(?:0,\d{3}|\d+,(?!\d{3}(?!\d))\d{2}|\d+,\d(?=\s?m?s\b))\d*(?!\d*[,.]\d)")
_COMMA = re.compile(r",(?! )")
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_=>])|[\x07\x08]")


def plain(line: str) -> str:
    """Removes terminal sequences (colours, cursor movements) from a line."""
    return _ANSI.sub("", line)


def number(text: str | None) -> float | None:
    """Parses a number, also with thousands separators or a suffix k, M, G, B; None if it is none."""
    if text is None:
        return None
    value, rest = split(text)
    return value if value is None or not rest else value * _SIZES[rest.lower()] if rest.lower() in _SIZES else None


def split(text: str) -> tuple[float | None, str]:
    """Splits ``12.5 ms`` into 12.5 and ``ms``; None and the text without a number."""
    found = _NUMBER.fullmatch(text.strip().rstrip(",.;"))
    if found is None:
        return None, text
    try:
        return float(found[1].replace(",", "")), found[2].strip()
    except ValueError:
        return None, text


def undivided(line: str, *, decimal: bool | None = None) -> str:
    """Returns a line without separators of thousands; with points for commas that are decimal or, for None, look so."""
    if "," not in line:
        return line
    if has_decimal_commas(line) if decimal is None else decimal:
        return re.sub(r"(?<=\d),(?=\d)", ".", line)
    return _THOUSANDS.sub(lambda found: found[0].replace(",", ""), line)


def has_decimal_commas(line: str) -> bool:
    """Whether a comma in a line can only be a decimal one, as in 0,523."""
    return "," in line and _DECIMAL.search(line) is not None and re.search(r"\d\.\d", line) is None


def search(pattern: re.Pattern[str], line: str, *, decimal: bool | None = None) -> re.Match[str] | None:
    """Searches a line as `undivided` returns it, unless the pattern has commas that may stand between digits."""
    has_commas = _COMMA.search(pattern.pattern) is not None
    return pattern.search(line if has_commas else undivided(line, decimal=decimal))


def factor(unit: str) -> tuple[str, float] | None:
    """What a unit counts (``time``, ``steps`` or ``tokens`` a second), and its size in seconds, steps or tokens.

    None for any other text than s, ms, s/it, ms/step, it/s, tok/s and the like.
    """
    above, _, below = re.sub(r"\s+", "", unit.lower()).replace("per", "/").partition("/")
    time = SECONDS.get(above)
    if time is not None and (not below or _WHOLES.get(below) == "steps"):
        return "time", time
    if below in _SECONDS:
        for prefix, size in {"": 1.0, **_SIZES}.items():
            if above.startswith(prefix) and (counted := _WHOLES.get(above[len(prefix) :])):
                return counted, size
    return None


_NAMED = {
    "step_s": ("time", 1.0),
    "step_ms": ("time", 1e-3),
    "step_us": ("time", 1e-6),
    "steps_per_s": ("steps", 1.0),
    "tokens_per_s": ("tokens", 1.0),
}

DURATIONS = (*_NAMED, "value")
"""Groups of a pattern for a step's duration, at most one of them; ``value`` goes with ``unit``."""

GROUPS = (*DURATIONS, "unit", "steps", "step", "loss")
"""Legal names of groups in a pattern; ``steps`` is the number, or range, of steps that a duration is the time of."""

AT_ONCE = 0.25
"""Share of a printed duration within which lines with one counter are of one step."""

_COUNTERS = tuple(
    re.compile(
        rf"(?<!s/)(?<!sec/)\b(?:global[_ ]?)?(?:{words})s?(?:[_ ]?(?:num|number|idx|id))?\b"
        r"[^\w\n]{0,4}(\d[\d,_]*)(?!\d|\.\d*[1-9])",
        re.I,
    )
    for words in ("num_update", "step|iter|iteration|update", "batch")
)


@dataclass(frozen=True, slots=True)
class Step:
    """Duration and loss from one line; at least one of them, except for an invalid duration."""

    step_s: float | None
    loss: float | None
    number: int | None = field(default=None, compare=False, repr=False)
    """The number of the step that the line names; None if it names none."""


class StepReader:
    """Reads steps from lines by rules (see `autotune.model.sections.ReadSpec`); ValueError if one cannot work.

    Attributes:
        needs_tokens: Whether a rate of tokens is read, which needs the tokens of a step.
        uses_clock: Whether the time between lines counts.
    """

    def __init__(self, rules: Mapping[str, Any]) -> None:
        preset = PRESETS[rules["preset"]] if rules.get("preset") else {}
        self._tokens = rules.get("tokens_per_step")
        self._key = rules.get("json_key")
        self._unit = rules.get("unit", "step_s")
        self._loss_key = rules.get("loss") if self._key else None
        self._pattern: re.Pattern[str] | None = None
        self._loss: re.Pattern[str] | None = None
        self._skip = _compiled("skip", rules["skip"]) if rules.get("skip") else None
        if self._key is None:
            self._take_patterns(rules.get("pattern") or preset["pattern"], rules.get("loss") or preset.get("loss"))
        self.needs_tokens: bool = self._unit == "tokens_per_s"
        self.uses_clock: bool = self._unit == "step"
        self._last: tuple[float, int] | None = None
        self._decimal: bool | None = None
        self._window_end = -1

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

    def read(self, line: str, now_s: float) -> Step | None:
        """Reads a line of some time on any clock; None if it holds neither duration nor loss."""
        line = plain(line)
        if self._skip is not None and self._skip.search(line):
            return None
        said = self._said(line)
        loss = number(said.get("loss"))
        if self._unit not in said:
            return Step(None, loss) if loss is not None else None
        number_of_step = _whole(said.get("step"))
        if number_of_step is None:
            number_of_step = step_of(line)
        if self.uses_clock:
            return self._between(number_of_step, now_s, loss)
        took_s = self._duration(said)
        if self._is_another_rank(number_of_step, now_s, took_s):
            return None
        return Step(took_s, loss, number_of_step)

    def _said(self, line: str) -> dict[str, str | None]:
        """What a line says, by the names of groups; without a duration or counter if it is no step's."""
        if self._pattern is None:
            numbers = numbers_of(line)
            keys = {self._unit: self._key, "loss": self._loss_key}
            return {group: repr(numbers[key]) for group, key in keys.items() if key in numbers}
        line = line[:LONGEST_LINE]
        self._decimal = self._decimal or has_decimal_commas(line) or None
        match = search(self._pattern, line, decimal=self._decimal)
        texts = {"step": None, **match.groupdict()} if match is not None else {}
        if self._loss is not None:
            match = search(self._loss, line, decimal=self._decimal)
            texts["loss"] = match["loss"] if match is not None else None
        return texts

    def _duration(self, said: Mapping[str, str | None]) -> float | None:
        """Seconds of a step from a printed duration, in its own unit or that of its group."""
        value, unit = split(said[self._unit] or "")
        if self._unit == "value":
            unit = unit + (said["unit"] or "")
        elif number(unit and "1" + unit) is not None:
            value = number(said[self._unit])
            unit = ""
        known = factor(unit) if unit else _NAMED[self._unit]
        took_s = self._seconds(value, *known) if known is not None else None
        steps = said.get("steps")
        return took_s / self._count(steps) if took_s and steps else took_s

    def _count(self, steps: str) -> int:
        """Number of steps that ``10`` or ``40-49`` says; 40-50 is as many where the line before ended with 40."""
        first, *last = map(int, re.findall(r"\d+", steps))
        if not last:
            return max(1, first)
        earlier = self._window_end
        self._window_end = last[0]
        return max(1, last[0] - first + (first != earlier))

    def _is_another_rank(self, step: int | None, now_s: float, took_s: float | None) -> bool:
        """Whether a line has the counter of the line that came at the same time."""
        if step is None or took_s is None:
            return False
        earlier = self._last
        self._last = (now_s, step)
        return earlier is not None and earlier[1] == step and not now_s - earlier[0] >= took_s * AT_ONCE

    def _between(self, step: int | None, now_s: float, loss: float | None) -> Step | None:
        """A step by the clock: the time since the previous line over the number of steps."""
        earlier_s, earlier_step = self._last or (now_s, 0)
        is_first = self._last is None
        counted = step if step is not None else earlier_step + 1
        if counted == earlier_step and not is_first:
            return Step(None, loss) if loss is not None else None
        self._last = (now_s, counted)
        if is_first:
            return Step(None, loss) if loss is not None else None
        count = counted - earlier_step
        return Step((now_s - earlier_s) / count if count > 0 else None, loss, step)

    def _seconds(self, value: float | None, counted: str, size: float) -> float | None:
        """Converts a reading to seconds a step; None if it cannot be a duration."""
        if value is None or not (math.isfinite(value) and value > 0):
            return None
        if counted == "time":
            return value * size
        if counted == "steps":
            return 1 / (value * size)
        return self._tokens / (value * size) if self._tokens else None


class TooSlow(Exception):
    """Matching took longer than `MATCH_LIMIT_S`."""


@contextlib.contextmanager
def match_limit() -> Iterator[None]:
    """Raises TooSlow inside after `MATCH_LIMIT_S`; only the main thread has that limit, for it gets signals."""

    def interrupt(*_: object) -> None:
        raise TooSlow

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGVTALRM, interrupt)
    signal.setitimer(signal.ITIMER_VIRTUAL, MATCH_LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _compiled(name: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"`{name}` must be a regular expression but got {pattern!r}: {error}") from error


def step_of(line: str) -> int | None:
    """Reads the number of the step that a line names; None if it names none."""
    found = next(filter(None, (counter.search(line) for counter in _COUNTERS)), None)
    return _whole(found[1]) if found is not None else None


def _whole(text: str | None) -> int | None:
    """Parses the number of a step; None if it is none."""
    value = number(text)
    return int(value) if value is not None and math.isfinite(value) else None


def numbers_of(line: str) -> dict[str, float]:
    """Returns the numbers of a JSON line by their dotted keys; none if it is not JSON."""
    if not line.lstrip().startswith("{"):
        return {}
    try:
        return dict(_flat(json.loads(line)))
    except (ValueError, RecursionError):
        return {}


def _flat(data: Any, before: str = "") -> Iterator[tuple[str, float]]:
    """Numbers in nested tables, by their dotted keys."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _flat(value, f"{before}.{key}" if before else str(key))
    elif before and isinstance(data, int | float) and not isinstance(data, bool):
        yield before, data

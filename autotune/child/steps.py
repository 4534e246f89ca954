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


Rules = Mapping[str, Any]
"""Content of ``[workload.read]``: `preset`, or `pattern`, or `json_key` and `unit`, and `loss`."""

PRESETS: Mapping[str, Mapping[str, str]] = read_table("trainers.toml")
"""Patterns of known trainers. Without a printed duration, the time between lines counts."""

MATCH_LIMIT_S = 2.0
"""Limit of CPU time for matching one piece of output, against endless backtracking."""

_UNITS = read_table("lines.toml")["units"]
SECONDS: Mapping[str, float] = _UNITS["seconds"]
"""Units of time in seconds."""

_COUNTED: Mapping[str, str] = _UNITS["counted"]
_SIZES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}

_NUMBER = re.compile(
    r"([-+]?(?:\d[\d,_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf(?:inity)?))\s*(.*)",
    re.I | re.S,
)
_THOUSANDS = re.compile(r"(?<![\w.,])\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,]*\d)")
_DECIMAL = re.compile(
    r"(?<![\w.,(\[])[-+]?(?:0,\d{3}|\d+,(?!\d{3}(?!\d))\d{2}|\d+,\d(?=\s?m?s\b))\d*(?!\d*[,.]\d)"
)
_COMMA = re.compile(r",(?! )")
_ANSI = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_=>])|[\x07\x08]"
)


def plain(line: str) -> str:
    """Removes terminal sequences (colours, cursor movements) from a line."""
    return _ANSI.sub("", line)


def number(text: str | None) -> float | None:
    """Parses a number, also with thousands separators or a suffix k, M, G, B; None if it is
    none.
    """
    value, unit = split(text or "")
    return None if unit else value


def split(text: str) -> tuple[float | None, str]:
    """Splits ``12.5 ms`` into 12.5 and ``ms``, ``12k`` into 12000 and nothing; None and the text
    without a number.
    """
    match = _NUMBER.fullmatch(text.strip().rstrip(",.;"))
    if match is None:
        return None, text
    value = float(re.sub("[,_]", "", match[1]))
    unit = match[2].strip()
    size = _SIZES.get(unit.lower())
    return (value, unit) if size is None else (value * size, "")


def undivided(line: str, *, is_decimal: bool) -> str:
    """Returns a line without separators of thousands or, if commas are decimal, with points in
    their place.
    """
    if is_decimal:
        return re.sub(r"(?<=\d),(?=\d)", ".", line)
    return _THOUSANDS.sub(lambda match: match[0].replace(",", ""), line)


def has_decimal_commas(line: str) -> bool:
    """Returns whether a comma in a line can only be a decimal one, as in 0,523."""
    return _DECIMAL.search(line) is not None and re.search(r"\d\.\d", line) is None


def factor(unit: str) -> tuple[str, float] | None:
    """What a unit counts (``time``, ``steps`` or ``tokens`` a second), and its size in seconds,
    steps or tokens.

    None for any other text than s, ms, s/it, ms/step, it/s, tok/s and the like.
    """
    above, _, below = re.sub(r"\s+", "", unit.lower()).replace("per", "/").partition("/")
    if above in SECONDS and (not below or _COUNTED.get(below) == "steps"):
        return "time", SECONDS[above]
    word = above if above in _COUNTED else above[1:]
    size = _SIZES.get(above.removesuffix(word))
    if SECONDS.get(below) == 1.0 and word in _COUNTED and size is not None:
        return _COUNTED[word], size
    return None


_UNIT_OF = {
    "step_s": "s",
    "step_ms": "ms",
    "step_us": "us",
    "steps_per_s": "it/s",
    "tokens_per_s": "tok/s",
}

DURATIONS = (*_UNIT_OF, "value")
"""Groups of a pattern for a step's duration, at most one of them; ``value`` goes with ``unit``."""

GROUPS = (*DURATIONS, "unit", "steps", "step", "loss")
"""Legal names of groups in a pattern; ``steps`` is the number, or range, of steps that a duration
is the time of.
"""

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
    """Reads steps from lines by rules (see `autotune.model.sections.ReadSpec`); ValueError if one
    cannot work.

    Attributes:
        needs_tokens: Whether a rate of tokens is read, which needs the tokens of a step.
        uses_clock: Whether the time between lines counts.
    """

    def __init__(self, rules: Rules) -> None:
        rules = {**PRESETS.get(rules.get("preset", ""), {}), **rules}
        self._key = rules.get("json_key")
        self._loss_key = rules.get("loss")
        self._work: dict[str, int | None] = {"steps": 1, "tokens": rules.get("tokens_per_step")}
        names = ("pattern", "loss", "skip") if self._key is None else ("skip",)
        self._patterns = {name: _compiled(name, rules[name]) for name in names if rules.get(name)}
        self._unit: str = rules.get("unit", "step_s")
        if self._key is None:
            self._unit = _unit_of(self._patterns["pattern"])
            if "loss" in self._patterns and "loss" not in self._patterns["loss"].groupindex:
                raise ValueError(
                    f"`loss` must have a group (?P<loss>...) but got {rules['loss']!r}"
                )
        self.needs_tokens = self._unit == "tokens_per_s"
        self.uses_clock = self._unit == "step"
        self._last: tuple[float, int] | None = None
        self._is_decimal = False
        self._window_end = -1

    def read(self, line: str, now_s: float) -> Step | None:
        """Reads a line of some time on any clock; None if it holds neither duration nor loss."""
        line = plain(line)
        if "skip" in self._patterns and self._patterns["skip"].search(line):
            return None
        texts = self._texts(line)
        loss = number(texts.get("loss"))
        loss_alone = Step(None, loss) if loss is not None else None
        if self._unit not in texts:
            return loss_alone
        count = _whole(texts.get("step"))
        if count is None:
            count = step_of(line)
        if self.uses_clock:
            passed_s = self._since_last(count, now_s)
            return Step(passed_s, loss, count) if passed_s is not None else loss_alone
        took_s = self._duration(texts)
        if self._is_another_rank(count, now_s, took_s):
            return None
        return Step(took_s, loss, count)

    def _texts(self, line: str) -> dict[str, str | None]:
        """Returns what a line says, by the names of groups; without a duration or counter if it is
        no step's.
        """
        if self._key is not None:
            numbers = numbers_of(line)
            keys = {self._unit: self._key, "loss": self._loss_key}
            return {group: repr(numbers[key]) for group, key in keys.items() if key in numbers}
        line = line[:LONGEST_LINE]
        self._is_decimal = self._is_decimal or has_decimal_commas(line)
        match = self._search("pattern", line)
        texts = {"step": None, **match.groupdict()} if match is not None else {}
        if "loss" in self._patterns:
            match = self._search("loss", line)
            texts["loss"] = match["loss"] if match is not None else None
        return texts

    def _search(self, name: str, line: str) -> re.Match[str] | None:
        """Searches a line as `undivided` returns it, unless the pattern has commas that may stand
        between digits.
        """
        pattern = self._patterns[name]
        has_commas = _COMMA.search(pattern.pattern) is not None
        return pattern.search(line if has_commas else undivided(line, is_decimal=self._is_decimal))

    def _duration(self, texts: Mapping[str, str | None]) -> float | None:
        """Returns the seconds of a step from a printed duration, in its own unit or that of its
        group; None if none.
        """
        value, unit = split(texts[self._unit] or "")
        unit += texts.get("unit") or ""
        kind = factor(unit or _UNIT_OF.get(self._unit, ""))
        if kind is None or value is None or not (math.isfinite(value) and value > 0):
            return None
        counted, size = kind
        took_s = value * size
        if counted != "time":
            work = self._work[counted]
            if work is None:
                return None
            took_s = work / took_s
        steps = texts.get("steps")
        return took_s / self._count(steps) if steps else took_s

    def _count(self, steps: str) -> int:
        """Number of steps that ``10`` or ``40-49`` says; 40-50 is as many where the line before
        ended with 40.
        """
        first, *last = map(int, re.findall(r"\d+", steps))
        if not last:
            return max(1, first)
        earlier = self._window_end
        self._window_end = last[0]
        return max(1, last[0] - first + (first != earlier))

    def _is_another_rank(self, step: int | None, now_s: float, took_s: float | None) -> bool:
        """Returns whether a line has the counter of the line that came at the same time."""
        if step is None or took_s is None:
            return False
        earlier = self._last
        self._last = (now_s, step)
        return (
            earlier is not None
            and earlier[1] == step
            and not now_s - earlier[0] >= took_s * AT_ONCE
        )

    def _since_last(self, step: int | None, now_s: float) -> float | None:
        """Returns the seconds of a step by the clock: those since the previous line over the number
        of steps.
        """
        earlier = self._last
        if earlier is None:
            self._last = (now_s, step or 0)
            return None
        earlier_s, earlier_step = earlier
        counted = earlier_step + 1 if step is None else step
        if counted != earlier_step:
            self._last = (now_s, counted)
        count = counted - earlier_step
        return (now_s - earlier_s) / count if count > 0 else None


class TooSlow(Exception):
    """Matching took longer than `MATCH_LIMIT_S`."""


@contextlib.contextmanager
def match_limit() -> Iterator[None]:
    """Raises TooSlow inside after `MATCH_LIMIT_S`; only the main thread has that limit, for it gets
    signals.
    """

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
        raise ValueError(
            f"`{name}` must be a regular expression but got {pattern!r}: {error}"
        ) from error


def _unit_of(pattern: re.Pattern[str]) -> str:
    """Returns the group of a pattern for a duration, ``step`` where the clock counts; ValueError
    for illegal groups.
    """
    groups = pattern.groupindex
    if unknown := [name for name in groups if name not in GROUPS]:
        raise ValueError(
            f"groups of a `pattern` must be named {', '.join(GROUPS)} but got "
            f"{', '.join(unknown)}; "
            "a group that is not read is written (?:...)"
        )
    units = [name for name in DURATIONS if name in groups]
    if len(units) > 1:
        raise ValueError(
            f"`pattern` must have at most one of the groups {', '.join(DURATIONS)} but got "
            f"{', '.join(units)}"
        )
    if ("unit" in groups) != ("value" in groups):
        raise ValueError(
            "the groups `value` and `unit` of a `pattern` must come together, as 12.5 and ms do"
        )
    return units[0] if units else "step"


def step_of(line: str) -> int | None:
    """Reads the number of the step that a line names; None if it names none."""
    for counter in _COUNTERS:
        match = counter.search(line)
        if match is not None:
            return _whole(match[1])
    return None


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

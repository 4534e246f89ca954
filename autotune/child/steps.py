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
from pathlib import Path
from typing import Any, NamedTuple

from autotune.child.output import LONGEST_LINE


def read_table(name: str) -> dict[str, Any]:
    """Reads a table of facts of this package."""
    path = Path(__file__).parents[1] / "data" / name
    return tomllib.loads(path.read_text(encoding="utf-8"))


Rules = Mapping[str, Any]  # content of `[workload.read]`
PRESETS: Mapping[str, Mapping[str, str]] = read_table("trainers.toml")
MATCH_LIMIT_S = 2.0  # of CPU time for one piece of output, against endless backtracking
LINES = read_table("lines.toml")  # units, words, expressions by which numbers are known
SECONDS: Mapping[str, float] = LINES["units"]["seconds"]
_COUNTED: Mapping[str, str] = LINES["units"]["counted"]
_SIZES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}

_NUMBER = re.compile(
    r"([-+]?(?:\d[\d,_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf(?:inity)?))\s*(.*)",
    re.I | re.S,
)
_THOUSANDS = re.compile(
    r"(?<![\w.,])\d{1,3}(?:(?:,\d{3})+|(?:['\u2019_\u00a0\u202f]\d{3})+)(?:\.\d+)?(?![\d,]*\d|_)"
    r"|\b(?!(?i:(?:\w*_)?(?:step|it|iter|iteration|update|batch|epoch|rank|node|gpu|layer)s?\b))[^\W\d]+"
    r"[ =:]{1,3}\d{1,3}(?: \d{3})+(?:\.\d+)?(?=\s?[mu\u00b5\u03bc]s\b)"
)
_DECIMAL = re.compile(
    r"(?<![\w.,(\[])[-+]?(?:\d{1,3}\.(?=\d{3},))?(?:0,\d{3}|(?<=\d\x20)\d{3},\d{3}(?=\s?[mu]s\b)|\d+,(?!\d{3}(?!\d))\d{2}|\d+,\d(?=\s?m?s\b))\d*(?!\d*[,.]\d)"
)
_COMMA = re.compile(r",(?! )")
_ANSI = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_=>])|[\x07\x08]"
)


def plain(line: str) -> str:
    """Removes terminal sequences (colours, cursor movements) from a line."""
    return _ANSI.sub("", line)


def number(text: str | None) -> float | None:
    """Parses a number, also with thousands separators or a suffix k, M, G, B; None otherwise."""
    value, unit = split(text or "")
    return None if unit else value


def split(text: str) -> tuple[float | None, str]:
    """Splits ``12.5 ms`` into 12.5 and ``ms``, ``12k`` into 12000 and nothing, others into None."""
    match = _NUMBER.fullmatch(text.strip().rstrip(",.;"))
    if match is None:
        return None, text
    value = float(re.sub("[,_]", "", match[1]))
    unit = match[2].strip()
    if unit.lower() in _SIZES:
        return value * _SIZES[unit.lower()], ""
    return value, unit


def undivided(line: str, *, is_decimal: bool) -> str:
    """Returns a line without separators of thousands; decimal commas become points."""
    if is_decimal:
        line = re.sub(r"(?<=\d),(?=\d)", ".", re.sub(r"\.(?=\d{3},\d)", "", line))
    return _THOUSANDS.sub(lambda match: re.sub(r"(?<=\d)[^\d.](?=\d)", "", match[0]), line)


def has_decimal_commas(line: str) -> bool:
    """Returns whether a comma in a line can only be a decimal one, as in 0,523."""
    return _DECIMAL.search(line) is not None and re.search(r"\d\.(?!\d{3},)\d", line) is None


def factor(unit: str) -> tuple[str, float] | None:
    """Returns what a unit counts (``time``, or ``steps`` or ``tokens`` a second), and its size."""
    above, _, below = re.sub(r"\s+", "", unit.lower()).replace("per", "/").partition("/")
    if above in SECONDS and _COUNTED.get(below or "step") == "steps":
        return "time", SECONDS[above]
    word = above if above in _COUNTED else above[1:]
    size = above.removesuffix(word)
    if SECONDS.get(below) == 1.0 and word in _COUNTED and size in _SIZES:
        return _COUNTED[word], _SIZES[size]
    return None


UNIT_OF = {
    "step_s": "s",
    "step_ms": "ms",
    "step_us": "us",
    "steps_per_s": "it/s",
    "tokens_per_s": "tok/s",
}

DURATIONS = (*UNIT_OF, "value")  # at most one in a pattern; `value` goes with `unit`
GROUPS = (*DURATIONS, "unit", "steps", "step", "loss")  # `steps`: those of a duration
AT_ONCE = 0.25  # of a printed duration: lines with one counter are of one step

_COUNTERS = tuple(
    re.compile(
        rf"(?<!s/)(?<!sec/)\b(?:global[_ ]?)?(?:{names})s?(?:[_ ]?(?:num|number|idx|id))?\b"
        r"[^\w\n]{0,4}(\d[\d,_]*)(?!\d|\.\d*[1-9])",
        re.I,
    )
    for names in ("num_update", "step|iter|iteration|update", "batch")
)


class Step(NamedTuple):
    """Duration and loss from one line, and the number of the step if the line names it."""

    step_s: float | None
    loss: float | None
    number: int | None = None


Texts = dict[str, str | None]  # what a line says, by group of a pattern


class StepReader:
    """Reads steps from lines by rules (`autotune.model.sections.ReadSpec`), ValueError if bad."""

    def __init__(self, rules: Rules) -> None:
        rules = {**PRESETS.get(rules.get("preset", ""), {}), **rules}
        self._rules = rules
        self._is_json = "json_key" in rules
        names = ("skip",) if self._is_json else ("pattern", "loss", "skip")
        self._patterns = {name: _compiled(name, rules[name]) for name in names if rules.get(name)}
        self._unit: str = rules.get("unit", "step_s")
        if not self._is_json:
            self._unit = _unit_of(self._patterns["pattern"])
            if "loss" in self._patterns and "loss" not in self._patterns["loss"].groupindex:
                raise ValueError(
                    f"`loss` must have a group (?P<loss>...) but got {rules['loss']!r}"
                )
        self.needs_tokens = self._unit == "tokens_per_s"
        self.uses_clock = self._unit == "step"  # the time between lines counts
        self._last_s = -math.inf
        self._last_step: int | None = None
        self._is_decimal = False
        self._window_end = -1

    def read(self, line: str, now_s: float) -> Step | None:
        """Reads a line of some time on any clock; None if it holds neither duration nor loss."""
        line = plain(line)
        skip = self._patterns.get("skip")
        if skip and skip.search(line):
            return None
        texts = self._texts(line)
        loss = number(texts.get("loss"))
        if self._unit in texts:
            step = _whole(texts.get("step"))
            if step is None:
                step = step_of(line)
            if not self.uses_clock:
                took_s = self._duration(texts)
                is_another = self._is_another_rank(step, now_s, took_s)
                return None if is_another else Step(took_s, loss, step)
            passed_s = self._since_last(step, now_s)
            if passed_s is not None:
                return Step(passed_s, loss, step)
        return None if loss is None else Step(None, loss)

    def _texts(self, line: str) -> Texts:
        """Returns what a line says by group; without a duration or counter if it is no step's."""
        if self._is_json:
            numbers = numbers_of(line)
            keys = (self._unit, self._rules["json_key"]), ("loss", self._rules.get("loss"))
            return {name: repr(numbers[key]) for name, key in keys if key in numbers}
        texts: Texts = {}
        line = line[:LONGEST_LINE]
        self._is_decimal = self._is_decimal or has_decimal_commas(line)
        match = self._search("pattern", line)
        if match is not None:
            texts = {"step": None, **match.groupdict()}
        if "loss" in self._patterns:
            match = self._search("loss", line)
            texts["loss"] = match and match["loss"]
        return texts

    def _search(self, name: str, line: str) -> re.Match[str] | None:
        """Searches a line without separators, unless the pattern has commas as between digits."""
        pattern = self._patterns[name]
        if not _COMMA.search(pattern.pattern):
            line = undivided(line, is_decimal=self._is_decimal)
        return pattern.search(line)

    def _duration(self, texts: Texts) -> float | None:
        """Returns the seconds of a step from a printed duration; None if it is none."""
        value, unit = split(texts[self._unit] or "")
        unit += texts.get("unit") or ""
        kind = factor(unit or UNIT_OF.get(self._unit, ""))
        if kind is None or value is None or not 0 < value < math.inf:
            return None
        counted, size = kind
        took_s = value * size
        if counted != "time":
            amount = 1 if counted == "steps" else self._rules.get("tokens_per_step")
            if amount is None:
                return None
            took_s = amount / took_s
        steps = texts.get("steps")
        return took_s / self._count(steps) if steps else took_s

    def _count(self, steps: str) -> int:
        """Counts the steps of ``10`` or ``40-49``; 40-50 is alike if 40 ended the line before."""
        begin, *ends = map(int, re.findall(r"\d+", steps))
        if not ends:
            return max(1, begin)
        is_new = begin != self._window_end
        self._window_end = ends[0]
        return max(1, ends[0] - begin + is_new)

    def _is_another_rank(self, step: int | None, now_s: float, took_s: float | None) -> bool:
        """Returns whether a line has the counter of the line that came at the same time."""
        if step is None or took_s is None:
            return False
        is_late = now_s - self._last_s >= took_s * AT_ONCE
        is_another = step == self._last_step and not is_late
        self._last_s = now_s
        self._last_step = step
        return is_another

    def _since_last(self, step: int | None, now_s: float) -> float | None:
        """Returns the seconds of a step by the clock: from line to line, over the steps between."""
        last_step = self._last_step
        if last_step is None:
            self._last_s = now_s
            self._last_step = step or 0
            return None
        count = 1 if step is None else step - last_step
        passed_s = now_s - self._last_s
        if count != 0:
            self._last_s = now_s
            self._last_step = last_step + count
        return passed_s / count if count > 0 else None


class TooSlow(Exception):
    """Matching took longer than `MATCH_LIMIT_S`."""


@contextlib.contextmanager
def match_limit() -> Iterator[None]:
    """Raises TooSlow inside after `MATCH_LIMIT_S`, in the main thread alone, which gets signals."""

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
    """Returns the group for a duration, ``step`` if the clock counts; ValueError for bad groups."""
    groups = pattern.groupindex
    unknown = [name for name in groups if name not in GROUPS]
    if unknown:
        raise ValueError(
            f"groups of a `pattern` must be named {', '.join(GROUPS)} but got "
            f"{', '.join(unknown)}; a group that is not read is written (?:...)"
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
            yield from _flat(value, f"{before}{key}.")
    elif type(data) in (int, float):
        yield before[:-1], data

"""Finds rules for reading the steps of an unknown program: presets, JSON keys, words with units, the clock.

For lines that none of them fits, `propose` takes the counter of lines of one shape, which differ in numbers only. A
printed duration of unknown meaning is not read. Standard library only.
"""

from __future__ import annotations

import collections
import itertools
import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune.child.output import LONGEST_LINE
from autotune.child.steps import PRESETS, StepReader, factor, plain

FEWEST_STEPS = 3
"""Least number of readings for a rule to fit."""

AGREES = (0.5, 2.0)
"""Range of printed durations over the time between their lines in which both agree."""

AT_ONCE = 0.02
"""Lines closer than this share of the mean distance came at once."""

_NUMBER = r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_UNIT = r"(?:\u00b5s|\u03bcs|[mun]?s|[mun]?secs?|seconds?|milliseconds?|microseconds?)"
_STEP = r"(?i:\b(?:global[_ ]?)?(?:step|iteration|iter|update|batch)(?:[_ ]?(?:num|number|idx|id))?)"
_COUNTER = rf"(?:{_STEP}[\"']?\s*[=:#]?\s*\[?|\[)(?P<step>\d[\d,]*)"
_LOSS = (
    r"(?i:\b(?:train(?:ing)?[_/ ])?loss)[\"']?\s*[=:]?\s*"
    r"(?P<loss>[-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|(?i:nan|inf)))"
)
_ANY_LOSS = _LOSS.replace("?P<loss>", "?:")

_WORDS = (
    # time=12.5ms, step_time: 0.021 s, dt 21.7 ms, took 0.5s, 12 ms/step, 1.5s/it
    r"(?i:\b(?:(?:step|iter(?:ation)?|batch|train)[_ -]?(?:time|duration|s(?:econds)?)|dt|"
    r"time(?:[_ /]?(?:per[_ ])?step)?|took|duration|elapsed))[\"']?\s*(?:in|of|is)?\s*[=:]?\s*\(?"
    r"(?P<value>NUMBER)\s*(?P<unit>UNIT)(?![A-Za-z])(?!/s)",
    r"(?<![\w.,])(?P<value>NUMBER)\s*(?P<unit>UNIT\s?(?:/|per)\s?(?:it|iter|iteration|step|batch|update))\b",
    r"(?<![\w.,])(?P<value>NUMBER)\s*(?P<unit>(?:it|iter|iteration|step|batch|update)(?:s|es)?\s?(?:/|per)\s?s(?:ec(?:ond)?)?)\b",
    r"(?<![\w.,])(?P<value>NUMBER)\s*(?P<unit>[kKMG]?\s?tok(?:en)?s?\s?(?:/|per)\s?s(?:ec(?:ond)?)?)\b(?!/)",
)
_OF_STEP = r"(?:step|iter(?:ation)?|batch)"
_PER = r"[_ ]?(?:/|per)[_ ]?"
_NAMES = {
    # the unit is in the name: step_time_ms=21.7, step_time=0.0217, steps_per_sec=46, it/s: 46
    **{
        f"step_{unit}": rf"(?:{_OF_STEP}[_ ]?(?:time|duration)|dt|duration)[_ ]?\(?{unit}\)?|"
        rf"{unit}{_PER}(?:step|it(?:er)?)"
        for unit in ("ms", "us")
    },
    "step_s": rf"{_OF_STEP}[_ ]?(?:time|duration)(?:[_ ]?\(?s(?:ec(?:onds)?)?\)?)?|{_OF_STEP}_s(?:ec(?:onds)?)?|"
    rf"time{_PER}step|s(?:ec(?:ond)?s?)?{_PER}(?:step|it(?:er)?)|dt",
    "steps_per_s": rf"(?:train_)?(?:steps?|its?|iter(?:ation)?s?|batch(?:es)?){_PER}s(?:ec(?:ond)?)?",
    "tokens_per_s": rf"(?:train_)?tok(?:en)?s?{_PER}s(?:ec(?:ond)?)?(?!/)",
}
_KEYS = {
    **_NAMES,
    "step_s": rf"{_NAMES['step_s']}|duration(?:_s)?",
    "step": r"_?(?:global_?)?(?:step|iteration|iter|update)",
}
"""Names of keys in JSON lines."""


@dataclass(frozen=True, slots=True)
class Recognised:
    """Rules that read steps from lines.

    Attributes:
        rules: Content of ``[workload.read]``: `preset`, or `pattern`, or `json_key` and `unit`, and `loss`.
        steps: Number of lines with a step's duration.
        step_s: Median duration; None by the clock without times of lines, or without `tokens_per_step`.
        example: A line that is read as a step.
        agrees: Median printed duration over the time between lines, small for a loop that does not wait for the device;
            None if unknown.
        needs_tokens: Whether a rate of tokens is read, which needs `tokens_per_step`.
        in_bursts: Whether most lines came at once, as from a buffer, so that the time between lines is meaningless.
    """

    rules: Mapping[str, Any]
    steps: int
    step_s: float | None
    example: str
    by_clock: bool
    agrees: float | None
    needs_tokens: bool
    in_bursts: bool

    @property
    def doubtful(self) -> bool:
        """Whether printed durations differ from the time between lines, or the clock of a reading is meaningless."""
        if self.by_clock:
            return self.in_bursts
        return self.agrees is not None and not AGREES[0] <= self.agrees <= AGREES[1]


def recognise(
    lines: Sequence[str], *, at: Sequence[float] | None = None, tokens_per_step: int | None = None
) -> list[Recognised]:
    """Finds the rules that fit lines of output, best first.

    Printed durations come before the clock between lines, unless they differ much from it; for as many steps, a preset
    comes before a JSON key before a pattern.

    Args:
        at: Time of each line, seconds on any clock.
        tokens_per_step: Needed for durations from tokens per second.
    """
    cut = [plain(line[:LONGEST_LINE]) for line in lines]
    found = [fit for rules in _candidates(cut) if (fit := _fit_of(rules, cut, at, tokens_per_step))]
    most = max((fit.steps for fit in found), default=0)
    best: list[Recognised] = []
    for recognised in sorted(found, key=lambda fit: _rank(fit, most)):  # stable: the first of equal candidates
        if all(recognised.example != b.example or recognised.by_clock != b.by_clock for b in best):
            best.append(recognised)
    return best


def _candidates(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    for name in PRESETS:
        yield {"preset": name}
    yield from _json_rules(lines)
    loss = {"loss": _LOSS} if any(re.search(_LOSS, line) for line in lines) else {}
    for words in _WORDS:
        yield {"pattern": words.replace("NUMBER", _NUMBER).replace("UNIT", _UNIT), **loss}
    for unit, name in _NAMES.items():
        yield {
            "pattern": rf"(?i:(?<![A-Za-z])(?:{name}))[\"']?\s*[=:]\s*"
            rf"(?P<{unit}>{_NUMBER})(?!\s*[A-Za-z\u00b5\u03bc/%\d])",
            **loss,
        }
    yield {"pattern": rf"{_STEP}[\"']?\s*[=:#]?\s*\[?(?P<step>\d[\d,]*)", **loss}
    if loss:
        yield {
            "pattern": rf"(?:^|[\s\[(])(?P<step>\d[\d,]*)\s*(?:/\s*\d[\d,]*)?\s*[\]):|,]?\s.*{_ANY_LOSS}",
            **loss,
        }
        yield {"pattern": _ANY_LOSS, **loss}


def _json_rules(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    keys = collections.Counter(key for line in lines for key in _numbers_of(line))
    losses = sorted((k for k in keys if re.fullmatch(r"(?i)(.*[./_])?(?:train_?)?loss", k)), key=lambda k: (len(k), k))
    for unit, name in _KEYS.items():
        for key in sorted(keys, key=lambda k: (-keys[k], len(k), k)):
            if re.fullmatch(rf"(?i)(?:.*[./])?(?:{name})", key):
                yield {"json_key": key, "unit": unit, **({"loss": losses[0]} if losses else {})}


def _numbers_of(line: str) -> dict[str, float]:
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


def _fit_of(
    rules: Mapping[str, Any], lines: Sequence[str], at: Sequence[float] | None, tokens: int | None
) -> Recognised | None:
    """Reads lines by rules; None if too few steps."""
    reader = StepReader({**rules, "tokens_per_step": tokens or 1})
    reads_tokens = reader.needs_tokens or _unit_seen(rules, lines) == "tokens"
    blind = reads_tokens and tokens is None
    times, examples = [], []
    came: list[tuple[float, int | None]] = []
    for i, line in enumerate(lines):
        now = at[i] if at is not None else float(i)
        step = reader.read(line, now)
        if step is not None and step.step_s is not None:
            times.append(step.step_s)
            examples.append(line)
            counter = re.search(_COUNTER, line)
            came.append((now, int(counter["step"].replace(",", "")) if counter else None))
    if len(times) < FEWEST_STEPS:
        return None
    clock, typical = reader.uses_clock, statistics.median(times)
    passed, bursts = _passed(came) if at is not None else (None, False)
    agrees = typical / passed if passed and not (clock or blind or bursts) else None
    if agrees is not None and agrees < AGREES[0] and came[0][1] is None:
        agrees = None  # perhaps not every step has a line: there is no counter
    return Recognised(
        {**rules, **({"tokens_per_step": tokens} if reads_tokens and tokens else {})}, len(times),
        None if blind or (clock and at is None) else typical, examples[len(examples) // 2], clock, agrees, reads_tokens,
        bursts,
    )  # fmt: skip


def _rank(fit: Recognised, most: int) -> tuple[Any, ...]:
    """Sort key of readings. A progress bar may print a rate twice a step, so its counter comes first."""
    known = fit.rules.get("preset", "absl") != "absl"
    blind = fit.needs_tokens and fit.step_s is None
    vague = fit.by_clock and not known
    return fit.doubtful, blind, not (known and 4 * fit.steps >= most), vague, -((fit.steps + fit.by_clock) // 4)


def _passed(came: Sequence[tuple[float, int | None]]) -> tuple[float | None, bool]:
    """Median seconds of a step from times and counters of lines, and whether most lines came at once."""
    each = []
    for (then, first), (now, second) in itertools.pairwise(came):
        count = 1 if first is None or second is None else second - first
        if count > 0:
            each.append((now - then) / count)
    mean = statistics.fmean(each) if each else 0.0
    if mean <= 0:
        return None, len(each) >= FEWEST_STEPS
    return statistics.median(each), sum(x < AT_ONCE * mean for x in each) > len(each) / 2


def _unit_seen(rules: Mapping[str, Any], lines: Sequence[str]) -> str | None:
    """What the group ``unit`` of a pattern counts in the first matching line."""
    if "(?P<unit>" not in rules.get("pattern", ""):
        return None
    pattern = re.compile(rules["pattern"])
    found = next((m for line in lines if (m := pattern.search(line))), None)
    known = factor(found["unit"]) if found is not None else None
    return known[0] if known is not None else None


# ---------------------------------------------------------------------- lines that no rule fits

FEWEST_LINES = 5
"""Least number of lines of one shape for a proposal."""

BAR = re.compile(r"[^\w\s]{4,}(?:\s*[^\w\s])*|[^\w\s](?:[^\w\s]|\s){6,}[^\w\s]")
"""A progress bar."""

_FIGURE = re.compile(r"(?<![\d.])(?:(?<!\w)[-+])?(?:\d+(?:,\d{3})*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_BEFORE_LOSS = re.compile(r"(?i)(?:^|[\W_])(?:\w*loss|nll|xent|cost|ce|l)[\"']?\s*[=:]?\s*$")
_JSON = "JSON with"
_ANY_FIGURE = r"[-+\d.,eE]+"


@dataclass(frozen=True, slots=True)
class _Column:
    """The numbers at one place of the lines: text before and behind in the last line, and the values of all lines."""

    before: str
    behind: str
    values: tuple[float, ...]

    @property
    def counts(self) -> bool:
        """Whether they count something: whole, growing, no share of a hundred and no part of a date or time."""
        if self.behind.startswith("%") or {self.before, self.behind} & {":", "-", "."}:
            return False
        grows = all(b > a for a, b in itertools.pairwise(self.values))
        return grows and all(v.is_integer() for v in self.values)

    @property
    def rank(self) -> tuple[bool, float]:
        """Sort key of counters: the text before it says step, then the slowest."""
        return re.search(_STEP, self.before) is None, self.values[1] - self.values[0]


def shape_of(line: str) -> str:
    """Returns what lines of one kind have in common: the text without numbers, progress bars and runs of blanks."""
    if keys := _numbers_of(line):
        return " ".join([_JSON, *sorted(keys)])
    return " ".join(_FIGURE.sub("#", BAR.sub("…", plain(line[:LONGEST_LINE]))).split())


def draws_bar(line: str) -> bool:
    """Whether a line holds a progress bar."""
    return BAR.search(plain(line)) is not None


def propose(lines: Sequence[str], *, at: Sequence[float] | None = None) -> Recognised | None:
    """Finds rules for the commonest shape of lines; None if there are none that read its lines.

    Args:
        at: Time of each line, seconds on any clock.
    """
    shapes = [shape_of(line) for line in lines]
    common = max(set(shapes), key=shapes.count, default="")
    chosen = [i for i, shape in enumerate(shapes) if shape == common]
    if len(chosen) < FEWEST_LINES:
        return None
    alike = [plain(lines[i][:LONGEST_LINE]) for i in chosen]
    times = [at[i] for i in chosen] if at is not None else None
    make = _json_counters if common.startswith(_JSON) else _text_counters
    fits = [fit for rules in make(alike) if (fit := _fit_of(rules, alike, times, None)) is not None]
    return next((replace(fit, example=alike[-1]) for fit in fits if 2 * fit.steps >= len(alike)), None)


def _text_counters(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields patterns for lines of text: with a counter, and without one."""
    columns = _columns(lines)
    counter = min((c for c in columns if c.counts), key=lambda c: c.rank, default=None)
    loss = next((c for c in columns if c is not counter and _BEFORE_LOSS.search(c.before)), None)
    if counter is not None:
        yield {"pattern": _pattern(columns, {counter: "step", loss: "loss"})}
    if len(text := _FIGURE.split(lines[-1])[0].strip()) > 1 and not draws_bar(lines[-1]):
        yield {"pattern": "^" + _literal(text)}


def _columns(lines: Sequence[str]) -> list[_Column]:
    """Returns the numbers of lines of one shape, from left to right."""
    rows = [[float(n.replace(",", "")) for n in _FIGURE.findall(line)] for line in lines]
    pieces = _FIGURE.split(lines[-1])
    values = zip(*(row for row in rows if len(row) == len(pieces) - 1), strict=True)
    return [_Column(pieces[i], pieces[i + 1], column) for i, column in enumerate(values)]


def _pattern(columns: Sequence[_Column], names: Mapping[_Column | None, str]) -> str:
    """Returns the pattern that reads some columns under the names of their groups."""
    wanted = [i for i, column in enumerate(columns) if column in names]
    first = columns[wanted[0]]
    head = first.before.lstrip()
    if draws_bar(head):  # its end
        head = re.sub(r"^.*(?=\S)", "", head)
    parts = [_literal(head) or "^"]
    numbers = {"step": r"(?P<step>\d+)", "loss": r"(?P<loss>[-+\w.,]+)"}
    for column in columns[wanted[0] : wanted[-1] + 1]:
        parts += ["" if column is first else _literal(column.before), numbers.get(names.get(column, ""), _ANY_FIGURE)]
    return "".join(parts)


def _literal(text: str) -> str:
    """Returns the pattern of a text, with any number of blanks where it has some, and with any progress bar."""
    return ".*".join(" +".join(map(re.escape, re.split(r"\s+", part))) for part in BAR.split(text))


def _json_counters(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields keys of JSON lines that count."""
    rows = [_numbers_of(line) for line in lines]
    columns = {key: _Column(key, "", tuple(float(row[key]) for row in rows)) for key in rows[-1]}
    loss = next(({"loss": key} for key in columns if _BEFORE_LOSS.search(key)), {})
    yield from ({"json_key": key, "unit": "step", **loss} for key, column in columns.items() if column.counts)

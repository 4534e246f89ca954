"""Finds rules for reading the steps of an unknown program: presets, JSON keys, words with units, the clock.

Standard library only.
"""

from __future__ import annotations

import itertools
import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
STEP = r"(?i:\b(?:global[_ ]?)?(?:step|iteration|iter|update|batch)(?:[_ ]?(?:num|number|idx|id))?)"
_COUNTER = rf"(?:{STEP}[\"']?\s*[=:#]?\s*\[?|\[)(?P<step>\d[\d,]*)"
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
_NAMES = (
    # the unit is in the name: step_time_ms=21.7, step_time=0.0217, steps_per_sec=46, it/s: 46
    (
        "step_ms",
        r"(?:step|iter(?:ation)?|batch)[_ ]?(?:time|duration)[_ ]?(?:\(?ms\)?)|ms[_ ]?(?:/|per)[_ ]?(?:step|it(?:er)?)",
    ),
    (
        "step_us",
        r"(?:step|iter(?:ation)?|batch)[_ ]?(?:time|duration)[_ ]?(?:\(?us\)?)|us[_ ]?(?:/|per)[_ ]?(?:step|it(?:er)?)",
    ),
    (
        "step_s",
        r"(?:step|iter(?:ation)?|batch)[_ ]?(?:time|duration)(?:[_ ]?(?:\(?s(?:ec(?:onds)?)?\)?))?|"
        r"time[_ ]?(?:/|per)[_ ]?step|s(?:ec(?:ond)?s?)?[_ ]?(?:/|per)[_ ]?(?:step|it(?:er)?)|dt",
    ),
    ("steps_per_s", r"(?:steps?|its?|iter(?:ation)?s?|batch(?:es)?)[_ ]?(?:/|per)[_ ]?s(?:ec(?:ond)?)?"),
    ("tokens_per_s", r"tok(?:en)?s?[_ ]?(?:/|per)[_ ]?s(?:ec(?:ond)?)?(?!/)"),
)
_JSON_NAMES = {
    "step_ms": r"(?:(?:step|iter(?:ation)?|batch)_?(?:time|duration)|dt|duration)_?ms|ms_per_(?:step|it(?:er)?)",
    "step_us": r"(?:(?:step|iter(?:ation)?|batch)_?(?:time|duration)|dt|duration)_?us|us_per_(?:step|it(?:er)?)",
    "step_s": r"(?:step|iter(?:ation)?|batch)_?(?:time|duration|s|sec|seconds)(?:_?s(?:ec(?:onds)?)?)?|time_per_step|"
    r"s(?:ec(?:ond)?s?)?_per_(?:step|it(?:er)?)|dt|duration(?:_s)?",
    "steps_per_s": r"(?:train_)?(?:steps?|its?|iter(?:ation)?s?|batch(?:es)?)(?:_per_|/)s(?:ec(?:ond)?)?",
    "tokens_per_s": r"(?:train_)?tok(?:en)?s?(?:_per_|/)s(?:ec(?:ond)?)?",
    "step": r"_?(?:global_?)?(?:step|iteration|iter|update)",
}


@dataclass(frozen=True, slots=True)
class Recognised:
    """Rules that read steps from lines.

    Attributes:
        rules: Content of ``[workload.read]``: `preset`, or `pattern`, or `json_key` and `unit`, and `loss`.
        steps: Number of lines with a step's duration.
        step_s: Median duration; None by the clock without times of lines, or without `tokens_per_step`.
        example: A line that is read as a step.
        agrees: Median printed duration over the time between lines, or None if unknown. It is small for a loop that
            does not wait for the device.
        needs_tokens: Whether a rate of tokens is read, which needs `tokens_per_step`.
        in_bursts: Whether most lines came at once, as from Python's buffer for a pipe (PYTHONUNBUFFERED=1 helps), so
            that the time between lines is meaningless.
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

    Raises:
        ValueError: If `at` does not have one time for each line.
    """
    if at is not None and len(at) != len(lines):
        raise ValueError(f"`at` must have one time for each of {len(lines)} lines but got {len(at)}")
    cut = [plain(line[:LONGEST_LINE]) for line in lines]
    found = [fit for rules in _candidates(cut) if (fit := fit_of(rules, cut, at, tokens_per_step))]
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
    for unit, name in _NAMES:
        yield {
            "pattern": rf"(?i:(?<![A-Za-z])(?:{name}))[\"']?\s*[=:]\s*"
            rf"(?P<{unit}>{_NUMBER})(?!\s*[A-Za-z\u00b5\u03bc/%\d])",
            **loss,
        }
    yield {"pattern": rf"{STEP}[\"']?\s*[=:#]?\s*\[?(?P<step>\d[\d,]*)", **loss}
    if loss:
        yield {
            "pattern": rf"(?:^|[\s\[(])(?P<step>\d[\d,]*)\s*(?:/\s*\d[\d,]*)?\s*[\]):|,]?\s.*{_ANY_LOSS}",
            **loss,
        }
        yield {"pattern": _ANY_LOSS, **loss}


def _json_rules(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    keys: dict[str, int] = {}
    for line in lines:
        if line.lstrip().startswith("{"):
            try:
                data = json.loads(line)
            except ValueError:
                continue
            for key, _ in flat(data):
                keys[key] = keys.get(key, 0) + 1
    losses = sorted((k for k in keys if re.fullmatch(r"(?i)(.*[./_])?(?:train_?)?loss", k)), key=lambda k: (len(k), k))
    for unit, name in _JSON_NAMES.items():
        for key in sorted(keys, key=lambda k: (-keys[k], len(k), k)):
            if re.fullmatch(rf"(?i)(?:.*[./])?(?:{name})", key):
                yield {"json_key": key, "unit": unit, **({"loss": losses[0]} if losses else {})}


def flat(data: Any, before: str = "") -> Iterator[tuple[str, float]]:
    """Numbers in nested tables, by their dotted keys."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from flat(value, f"{before}.{key}" if before else str(key))
    elif before and isinstance(data, int | float) and not isinstance(data, bool):
        yield before, data


def fit_of(
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

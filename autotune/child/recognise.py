"""Finds rules for reading the steps of an unknown program: presets, JSON keys, numbers by their
names, the clock.

The numbers of a line are ranked by the names and units beside them: how likely each is a step's
duration, or the loss. Standard library only.
"""

from __future__ import annotations

import collections
import itertools
import re
import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune.child.output import LONGEST_LINE, Output
from autotune.child.steps import (
    PRESETS,
    SECONDS,
    Rules,
    StepReader,
    has_decimal_commas,
    numbers_of,
    plain,
    read_table,
    step_of,
    undivided,
)

FEWEST_STEPS, FEWEST_LINES = 3, 5
"""Least number of readings for a rule to fit, and of lines that are of one shape."""

AGREES, ALIKE = (0.5, 2.0), (0.85, 1.15)
"""Printed durations over the time between their lines: where a loop waits for its device, and where
both agree.
"""

MEAN = 4
"""Rank of the mean of several steps, read where nothing else is printed."""

AT_ONCE = 0.02
"""Lines closer than this share of the mean distance came at once."""

LONGEST_NAME = 120
"""Characters before a number among which its name is looked for."""

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_UNIT = r"(?:\u00b5s|\u03bcs|[mun]?s|[mun]?secs?|seconds?|milliseconds?|microseconds?)"
_WHOLE = r"(?:it|iter|iteration|step|batch|update)"
_TIME_OF_STEP = rf"{_UNIT}\s?(?:/|per)\s?{_WHOLE}\b"
_STEPS_PER_S = rf"{_WHOLE}(?:s|es)?\s?(?:/|per)\s?s(?:ec(?:ond)?)?\b"
_TOKENS_PER_S = r"[kKMG]?\s?tok(?:en)?s?\s?(?:/|per)\s?s(?:ec(?:ond)?)?\b(?!/)"
_STEP = (
    r"(?<!s/)(?<!sec/)(?i:\b(?:global[_ ]?)?(?:step|iteration|iter|update|batch)(?:[_ "
    r"]?(?:num|number|idx|id))?)"
)
_BY_COUNTER = rf"{_STEP}[\"']?\s*[=:#]?\s*\[?\s*(?P<step>\d+)(?!\d|\.\d*[1-9])"
_LOSS_NUMBER = rf"(?P<loss>{_NUMBER}|[-+]?(?i:nan|inf(?:inity)?))"

_MANY_STEPS = rf"(?i:(?:\w+ )?{_WHOLE}e?s)\b"
_RANGE = rf"(?i:\b{_WHOLE}(?:e?s)?)\W{{0,3}}(?P<steps>\d+\s?(?:-|\u2013|to|\.\.+)\s?\d+)(?![\w.])"
_NO_TOTAL = r"/(?!\s?\d)"
"""What may not come behind a unit: ``0.5s/12s`` is a time, and its total, ``0.5 s/step`` of another
unit.
"""

_DURATION = rf"(?P<value>{_NUMBER})\s*(?P<unit>{_UNIT}(?![A-Za-z]|{_NO_TOTAL}))"
_WINDOWS = (
    rf"(?<![\w./])(?P<steps>\d+) {_MANY_STEPS}(?: in| took|:|=)?\s*{_DURATION}",
    rf"(?<![\w.]){_DURATION}\s*(?:[(/]|for|over|in)\s*(?:the )?(?:last )?(?P<steps>\d+) "
    rf"{_MANY_STEPS}",
)
"""Durations of several steps: ``100 train steps in 50.2 s`` and ``5.1s for 10 steps``."""

_MENTION = re.compile(
    rf"(?<![\w.,+-])(?<!\d:)(?<!\d[mhd] )(?<!\d [mhd] )"
    rf"(?P<number>{_NUMBER}|[-+]?(?i:nan|inf(?:inity)?))(?!\.?\d|:\d|-\d\d-\d)"
    rf"(?:\s?(?P<unit>(?:{_TIME_OF_STEP}|{_STEPS_PER_S}|{_TOKENS_PER_S})(?!\s?[=:]|\s+\d+(?![\d/]))|{_UNIT}(?!\w|{_NO_TOTAL})))?"
    r"(?!\s?%|\s?(?:mins?|minutes?|hrs?|hours?|days?)\b|\s?[mhd]\s?\d[\d.]*\s?[ms]\b|(?:\w|/(?!\d))*[A-Za-z_])"
)
_BETWEEN = re.compile(r"(?:[\s\"'=:(\[]|\b(?:in|of|is)\b|\b(?:Array|tensor)\()*$")
_APART = re.compile(r"[^\w ./()-]|\s-+\s|\s{2,}|\t")

_KNOWN = read_table("lines.toml")
_GROUPS = {1.0: "step_s", 1e-3: "step_ms", 1e-6: "step_us"}
_UNITS = {unit: _GROUPS[size] for unit, size in SECONDS.items() if size in _GROUPS}
_WORDS = {kind: frozenset(words) for kind, words in _KNOWN["words"].items()}
_LOSSES: list[str] = _KNOWN["words"]["losses"]
_STEPS = _WORDS["many"] | _WORDS["one"]
_OF_TIME = _WORDS["times"].union(_WORDS["totals"], _UNITS)
_BEHIND_STEPS = _OF_TIME | _WORDS["behind_steps"]
_ANY_LOSS = _WORDS["totals"] | _WORDS["behind_losses"]
_OF_NAMES = _OF_TIME.union(_STEPS, _ANY_LOSS, _LOSSES, _WORDS["means"], _WORDS["newest"])
_OTHERS, _PARTS = (
    re.compile("|".join(_KNOWN["expressions"][name])) for name in ("others", "parts")
)

_PER = r"[_ ]?(?:/|per)[_ ]?"
_RATES = {
    "steps_per_s": rf"(?:steps?|its?|iter(?:ation)?s?|batch(?:es)?|updates?){_PER}s(?:ec(?:ond)?)?"
    r"|(?:^|[^a-z])ups",
    "tokens_per_s": rf"(?:^|.*[^a-z])(?:train_)?tok(?:en)?s?{_PER}s(?:ec(?:ond)?)?(?!/)",
}
_OTHER_RATE = rf"{_PER}s(?:ec(?:ond)?)?(?![a-z])"
_COUNTER_KEY = r"(?i)(?:.*[./])?_?(?:global_?)?(?:step|iteration|iter|update)"

_EVALUATES = (
    r"(?i:(?<![a-z])(?:eval|evaluat\w*|valid\w*|val|test(?:ing)?|dev|held[-_ "
    r"]?out|hold[-_ ]?out)(?![a-z]))"
)
_METRIC = r"[_/ .-]?(?i:loss|acc|ppl|perplexity|bpb|mse|f1|auc|score|error|nll|metric)"
_EVALUATION = rf"{_EVALUATES}(?!{_METRIC})"
_TRAINS = r"\W*(?:\d[\d:.,TZ/+-]*\W+)*(?i:train(?:ing)?)\b"
_RANK = re.compile(
    r"(?i:(?<![\w/.])(?:rank|process|proc|worker|host|device|replica|gpu|node|pid)[ "
    r"_]?(?:id|index)?[\"']?\s*[=:#]?\s*)"
    r"(?:[a-z]+:)?\d+(?:/\d+)?(?!\.?\d)|^\s*\[?\d+\]?\s*:|^\[\d+,\d+\]<"
)

_PART_OF = re.compile(r"\d+\s?(?:/|of)\s?\d+|(?i:micro|accum)[\w ]*\W{0,3}\d+")
_FIRST_WORD = re.compile(r"^\W*([A-Za-z_]+)")
_VALUE = re.compile(r"[=:][A-Za-z]\S*\s")


@dataclass(frozen=True, slots=True)
class _Mention:
    """A number in a line with the name before it and the unit behind it."""

    label: str
    """The words before it."""
    between: str
    """What stands between both, such as ``=``."""
    unit: str
    value: float

    @property
    def words(self) -> list[str]:
        """The words of its name, in small letters."""
        return re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", self.label).lower())

    @property
    def name(self) -> str:
        """The last words before it that belong to the name of a number."""
        words = list(itertools.takewhile(_says_something, reversed(self.label.split())))
        return " ".join(reversed(words))

    @property
    def rank(self) -> int | None:
        """How far from a step's duration: 0 of a step, 1 a time or total, 2 without a name, or
        more; None if none.
        """
        words = set(self.words)
        if any(map(_OTHERS.fullmatch, words)):
            return None
        if "/" in self.unit.replace("per", "/"):
            return MEAN if words & _WORDS["means"] else 0
        rate = self.rate
        if rate is None and (words & _WORDS["many"] or re.search(_OTHER_RATE, self.label.lower())):
            return None
        if words & _WORDS["means"]:
            return MEAN if words & _STEPS else None
        is_time = bool(words & _OF_TIME)
        if rate or (self.names_step and (self.unit or is_time)):
            return 0
        if is_time or (self.unit and words & _WORDS["newest"]):
            return 1
        return 2 if self.unit and not words and self.between not in ("(", "[", "/") else None

    @property
    def names_step(self) -> bool:
        """Whether its name is that of a step, as `step_time` is, and `update_actor` is not."""
        for word in reversed(self.words):
            if word in _STEPS or word not in _BEHIND_STEPS:
                return word in _STEPS
        return False

    @property
    def rate(self) -> str | None:
        """The group of a pattern for the rate that its name says; None if it says none."""
        label = self.label.lower()
        return next(
            (group for group, name in _RATES.items() if re.search(rf"{name}$", label)), None
        )

    @property
    def group(self) -> str:
        """The group of a pattern for the duration or rate that its name says."""
        return self.rate or next(
            (_UNITS[word] for word in reversed(self.words) if word in _UNITS), "step_s"
        )

    @property
    def loss_rank(self) -> int | None:
        """How likely it is the loss of training, 0 the likeliest; None if it is none."""
        words = [word for word in self.words if word not in _ANY_LOSS]
        if not words or self.unit or words[-1] not in _LOSSES or any(map(_OTHERS.fullmatch, words)):
            return None
        if words[-1] == "l" and not {"=", ":"} & set(self.between):
            return None
        return (
            len(words)
            + len(self.words)
            + 20 * _LOSSES.index(words[-1])
            + 200 * any(map(_PARTS.fullmatch, words))
        )

    @property
    def shape(self) -> tuple[str, tuple[str, ...], str]:
        """What the same number of other lines has in common with it."""
        kind = "s" if re.fullmatch(_UNIT, self.unit) else re.sub(r"\s", "", self.unit)
        return self.label, tuple(self.between.split()), kind

    def pattern(self, number: str, names: Collection[str] = ()) -> str:
        """Returns the pattern that reads it; those of the names that end with its name are kept
        out.
        """
        marks = [*map(re.escape, self.between.split()), number]
        if not self.label:
            return r"\s*".join(marks) if self.between.strip() else rf"(?<![\w.]){number}"
        words = " +".join(map(re.escape, self.label.split()))
        heads = [
            name.removesuffix(self.label) for name in sorted(names) if name.endswith(self.label)
        ]
        guard = "".join(rf"(?<!{re.escape(head)})" for head in heads if head)
        return rf"{guard}(?<![A-Za-z_]){words}\s*" + r"\s*".join(marks)


@dataclass(frozen=True, slots=True)
class Recognised:
    """Rules that read steps from lines."""

    rules: Rules
    steps: int
    """Number of lines with a step's duration."""
    step_s: float | None
    """Median duration; None by the clock of a saved log."""
    example: str
    """A line that is read as a step."""
    by_clock: bool
    agrees: float | None
    """Median printed duration over the time between lines, small for a loop that does not wait for
    the device; None if unknown.
    """
    in_bursts: bool
    """Whether most lines came at once, as from a buffer, so that the time between lines is
    meaningless.
    """
    name_rank: int
    """How far the name of a printed duration is from that of a step (see `_Mention.rank`)."""
    left_out: Output
    """Lines that name steps like those with a printed duration, of which none is read."""

    @property
    def reads_rate(self) -> bool:
        """Whether it reads a printed ``11.5it/s`` or ``1.2s/it``."""
        return any(unit in self.rules.get("pattern", "") for unit in (_STEPS_PER_S, _TIME_OF_STEP))

    @property
    def doubtful(self) -> bool:
        """Whether printed durations differ from the time between lines, or the clock of a reading
        is meaningless.
        """
        return self.in_bursts if self.by_clock else not self.is_within(AGREES)

    def is_within(self, limits: tuple[float, float]) -> bool:
        """Returns whether printed durations over the time between lines are within limits, as far
        as both are known.
        """
        return self.agrees is None or limits[0] <= self.agrees <= limits[1]


def recognise(lines: Output, *, at: Sequence[float] | None = None) -> list[Recognised]:
    """Finds the rules that fit lines of output, best first.

    Printed durations come before the clock between lines, unless they differ much from it, and the
    name that says step before other names. For as many steps, a preset comes before a JSON key
    before a pattern. Rates of tokens are left out, because nobody says how many tokens a step has.

    Args:
        at: Time of each line, seconds on any clock; a saved log has none.
    """
    cut = ["" if _is_binary(line) else normal(line) for line in lines]
    trained = ["" if re.search(_EVALUATION, line) else line for line in cut]
    found = _fits(trained, at, skip="" if trained == cut else _EVALUATION) or _fits(
        cut, at, skip=""
    )
    if at is not None:  # a bar that is drawn again at each step repeats counter and rate
        known = [
            PRESETS[fit.rules["preset"]]["pattern"]
            for fit in found
            if fit.by_clock and "preset" in fit.rules
        ]
        found = [
            f
            for f in found
            if not (f.reads_rate and any(re.search(pattern, f.example) for pattern in known))
        ]
    most = max((fit.steps for fit in found), default=0)
    return sorted(found, key=lambda fit: _rank(fit, most, is_live=at is not None))


def _fits(lines: Output, at: Sequence[float] | None, *, skip: str) -> list[Recognised]:
    """Returns all rules that fit lines; `skip` is the expression of lines that are left out
    already.
    """
    fits = []
    for rank, rules in _candidates(lines):
        narrowed = _narrowed(rules, lines, skip)
        fit = _fit_of(narrowed, lines, at, rank) if narrowed else None
        if fit is not None:
            fits.append(fit)
    return fits


def _is_binary(line: str) -> bool:
    """Returns whether a line is no text: more than a tenth of it are bytes that no text has."""
    return 10 * len(_NO_TEXT.findall(line)) > len(line)


_NO_TEXT = re.compile(r"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f-\x9f\ufffd]")


def normal(line: str) -> str:
    """Returns a line as patterns are searched in it: plain, cut, without separators of thousands;
    JSON stays.
    """
    if line.lstrip().startswith("{"):
        return line
    text = plain(line)[:LONGEST_LINE]
    return undivided(text, is_decimal=has_decimal_commas(text))


def _candidates(lines: Output) -> Iterator[tuple[int, Rules]]:
    """Yields rules with the rank of the name that they read, -1 for programs that are known."""
    shapes = _shapes_of(lines)
    names = {mention.label for mention in shapes}
    lost = _loss_of(shapes)
    loss = {"loss": lost.pattern(_LOSS_NUMBER, names)} if lost is not None else {}
    for name, preset in PRESETS.items():
        own = {} if _read_by(preset["loss"], lines) else loss
        yield -(name != "absl"), {"preset": name, **own}
    yield from _json_rules(lines)
    for mention in () if _are_parts(lines) else shapes:
        if (rank := mention.rank) is not None:
            pattern = mention.pattern(_group_of(mention), names)
            if 0 < rank < MEAN and len(_read_by(_RANGE, lines)) >= FEWEST_STEPS:
                pattern = f"^(?=.*?{_RANGE}).*?(?:{pattern})"
            yield rank, {"pattern": pattern, **loss}
    patterns = [*_WINDOWS, _BY_COUNTER]
    lost_lines = (
        _read_by(loss["loss"], lines) if lost is not None and lost.words[-1] == _LOSSES[0] else []
    )
    if 2 * len(_read_by(_BY_COUNTER, lines)) < len(lost_lines):  # they do not name their step
        any_loss = loss["loss"].replace("?P<loss>", "?:")
        counted = rf"(?:^|[\s\[(])(?P<step>\d+)\s*(?:/\s*\d+)?\s*[^\w.]?\s?[^\w.]?\s.*{any_loss}"
        patterns += [counted, any_loss]
    for pattern in patterns:
        yield 0, {"pattern": pattern, **loss}


def _loss_of(mentions: Sequence[_Mention]) -> _Mention | None:
    """Returns the likeliest loss of training, the first of equal ones."""
    return min(
        (m for m in mentions if m.loss_rank is not None),
        key=lambda m: m.loss_rank or 0,
        default=None,
    )


def _shapes_of(lines: Output) -> list[_Mention]:
    """Returns one of each number that at least `FEWEST_STEPS` lines have."""
    mentions = _unchanging([list(mentions_of(line)) for line in lines])
    counts = collections.Counter(mention.shape for mention in mentions)
    found = {
        mention.shape: mention for mention in mentions if counts[mention.shape] >= FEWEST_STEPS
    }
    return [found[shape] for shape, _ in counts.most_common() if shape in found]


def _unchanging(rows: Sequence[Sequence[_Mention]]) -> list[_Mention]:
    """Returns mentions by their names alone, without words in front that change from line to line,
    as those of a phase.

    A name that several numbers of a line have keeps the words in front of it.
    """
    counts = [collections.Counter(mention.name for mention in row) for row in rows]
    ambiguous = {name for count in counts for name in count if not name or count[name] > 1}
    mentions = [mention for row in rows for mention in row]
    return [m if m.name in ambiguous else replace(m, label=m.name) for m in mentions]


def _says_something(word: str) -> bool:
    """Returns whether a word is one of the name of a number, as those in step time are."""
    parts = re.findall(r"[a-z]+", word.lower())
    return any(
        part in _OF_NAMES or _OTHERS.fullmatch(part) or _PARTS.fullmatch(part) for part in parts
    )


def _are_parts(lines: Output) -> bool:
    """Returns whether most lines are of parts of steps, as ``micro 2/4``, that have the counter of
    the line before.
    """
    counted = [(counter, line) for line in lines if (counter := step_of(line)) is not None]
    pairs = [(a, b) for (one, a), (two, b) in itertools.pairwise(counted) if one == two]
    parts = sum(
        _PART_OF.findall(a) != _PART_OF.findall(b) and not _RANK.search(a) for a, b in pairs
    )
    return 2 * parts + 1 >= len(counted) > 1


def _group_of(mention: _Mention) -> str:
    """Returns the expression of a printed duration or rate, with its group."""
    if not mention.unit:
        return rf"(?P<{mention.group}>{_NUMBER})(?![\w/%:])"
    kinds = (_TIME_OF_STEP, _STEPS_PER_S, _TOKENS_PER_S)
    rate = next((kind for kind in kinds if re.fullmatch(kind, mention.unit)), None)
    return _DURATION if rate is None else rf"(?P<value>{_NUMBER})\s*(?P<unit>{rate})"


def mentions_of(line: str) -> Iterator[_Mention]:
    """Yields the numbers of a line of text with their names and units, from left to right."""
    if line.lstrip().startswith("{") and numbers_of(line):
        return
    end = 0
    for found in _MENTION.finditer(line):
        before = line[max(end, found.start() - LONGEST_NAME) : found.start()]
        end = found.end()
        between = _BETWEEN.search(before)
        head = before[: between.start()] if between is not None else before
        label = _APART.split(_VALUE.sub("  ", head))[-1]
        label = re.sub(
            r"^.*\d\S*\s+(?:(?:min|minute|hour|hr|day)s?\s+)?|^[^A-Za-z_]+|^.*\((?![^()]*\))",
            "",
            label,
        )
        marks = before[len(head) :].strip() or ("" if label else before.strip()[-1:])
        yield _Mention(label.strip(), marks, found["unit"] or "", float(found["number"]))


def _narrowed(rules: Rules, lines: Output, skip: str) -> Rules:
    """Returns rules that skip lines that are not of training; none if they read too few."""
    if "json_key" not in rules:
        read = _read_by(rules.get("pattern") or PRESETS[rules["preset"]]["pattern"], lines)
        if len(read) < FEWEST_STEPS:
            return {}
        trained = _read_by(f"^{_TRAINS}", read)
        if FEWEST_STEPS <= len(trained) < len(read):
            others = f"^(?!{_TRAINS})"
            skip = f"{skip}|{others}" if skip else others
    return {**rules, "skip": skip} if skip else rules


def _read_by(pattern: str, lines: Output) -> list[str]:
    compiled = re.compile(pattern)
    return [line for line in lines if compiled.search(line)]


def _json_rules(lines: Output) -> Iterator[tuple[int, Rules]]:
    """Yields rules for keys of JSON lines."""
    keys = collections.Counter(key for line in lines for key in numbers_of(line))
    mentions = [
        _Mention(key, "=", "", 0.0)
        for key in sorted(keys, key=lambda key: (-keys[key], len(key), key))
    ]
    loss = _loss_of(mentions)
    kinds = [
        (mention.rank, mention.label, mention.group)
        for mention in mentions
        if mention.rank is not None
    ]
    kinds += [(0, key, "step") for key in keys if re.fullmatch(_COUNTER_KEY, key)]
    for rank, key, unit in kinds:
        yield (
            rank,
            {"json_key": key, "unit": unit, **({"loss": loss.label} if loss is not None else {})},
        )


def _fit_of(
    rules: Rules, lines: Output, at: Sequence[float] | None, rank: int
) -> Recognised | None:
    """Reads lines by rules; None if too few steps, or totals in place of durations."""
    reader = StepReader(rules)
    times: list[float] = []
    came: list[tuple[float, int | None]] = []
    readable: list[str] = []
    for line, now_s in zip(lines, at or [0.0] * len(lines), strict=True):
        step = reader.read(line, now_s)
        if step is not None and step.step_s is not None:
            times.append(step.step_s)
            came.append((now_s, step_of(line)))
            readable.append(line)
    clock = reader.uses_clock
    if len(times) < FEWEST_STEPS or (
        not (clock or "dt" in rules.get("pattern", "")) and only_grow(times)
    ):
        return None
    if all(a >= b for a, b in itertools.pairwise(times[1:])) and len(set(times[1:])) > FEWEST_LINES:
        rank = MEAN  # it only falls, as a mean with the compilation in it
    typical = statistics.median(times)
    passed, bursts = _passed(came) if at is not None else (None, False)
    agrees = typical / passed if passed and not (clock or bursts) else None
    if agrees is not None and agrees < AGREES[0] and came[0][1] is None:
        agrees = None  # perhaps not every step has a line: there is no counter
    return Recognised(
        rules=rules,
        steps=len(times),
        step_s=None if clock and at is None else typical,
        example=readable[len(readable) // 2],
        by_clock=clock,
        agrees=agrees,
        in_bursts=bursts,
        name_rank=rank,
        left_out=() if clock else _left_out(lines, readable),
    )


def _left_out(lines: Output, read: Collection[str]) -> list[str]:
    """Returns the lines that begin as those that were read, but name steps of which none was."""
    steps = {step_of(line) for line in read}
    starts = {tuple(_FIRST_WORD.findall(line)) for line in read}
    others = [line for line in lines if tuple(_FIRST_WORD.findall(line)) in starts]
    return [line for line in others if None not in steps and step_of(line) not in {None, *steps}]


def only_grow(values: Sequence[float]) -> bool:
    """Returns whether values grow as a total does, and not as the jitter of durations."""
    if any(not b >= a for a, b in itertools.pairwise(values)):  # NaN, too
        return False
    doubled = len(values) >= 4 and values[-1] >= 2 * values[0] and values[-1] > 0
    return doubled or (len(values) >= 6 and len(set(values)) == len(values))


def _rank(fit: Recognised, most: int, *, is_live: bool) -> tuple[Any, ...]:
    """Sort key of readings. A progress bar may print a rate twice a step, so its counter comes
    first.
    """
    is_few = 4 * fit.steps < most
    vague = 0
    if fit.by_clock and fit.name_rank >= 0:
        vague = 1 if fit.step_s is not None else 3
    elif fit.name_rank >= MEAN:
        vague = 2
    return (
        fit.doubtful and is_live,
        vague,
        is_few,
        fit.name_rank,
        -((fit.steps + fit.by_clock) // 4),
    )


def _passed(came: Sequence[tuple[float, int | None]]) -> tuple[float | None, bool]:
    """Median seconds of a step from times and counters of lines, and whether most lines came at
    once.
    """
    each = []
    for (then, first), (now, second) in itertools.pairwise(came):
        count = 1 if first is None or second is None else second - first
        if count > 0:
            each.append((now - then) / count)
    if not each:
        return None, False
    mean = statistics.fmean(each)
    return statistics.median(each), sum(x <= AT_ONCE * mean for x in each) > len(each) / 2


# ---------------------------------------------------------------------- shapes of lines

BAR = re.compile(r"[^\w\s]{4,}(?:\s*[^\w\s])*|[^\w\s](?:[^\w\s]|\s){6,}[^\w\s]")
"""A progress bar."""

_FIGURE = re.compile(r"(?<![\d.])(?:(?<!\w)[-+])?(?:\d+(?:,\d{3})*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def shape_of(line: str) -> str:
    """Returns what lines of one kind have in common: the text without numbers, progress bars and
    runs of blanks.
    """
    return " ".join(_FIGURE.sub("#", BAR.sub("…", plain(line[:LONGEST_LINE]))).split())

"""Finds rules for reading the steps of an unknown program: presets, JSON keys, names, the clock.

The numbers of a line are ranked by the names and units beside them: how likely each is a step's
duration, or the loss. Standard library only.
"""

from __future__ import annotations

import collections
import itertools
import re
import statistics
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from autotune.child.output import LONGEST_LINE, Output
from autotune.child.steps import (
    LINES,
    PRESETS,
    SECONDS,
    UNIT_OF,
    Rules,
    StepReader,
    has_decimal_commas,
    numbers_of,
    plain,
    step_of,
    undivided,
)

Times = Sequence[float] | None  # of lines, on any clock; None for a saved log
Candidates = Iterator[tuple[int, Rules]]  # with the rank of the name that they read
FEWEST_STEPS = 3  # least number of readings for a rule to fit
FEWEST_LINES = 5  # least number of lines that are of one shape
AGREES = (0.5, 2.0)  # printed over passed time where a loop waits for its device
ALIKE = (0.85, 1.15)  # likewise where both agree
PASS = -2  # rank of the passes forward and backward
MEAN = 4  # rank of the mean of several steps, read where nothing else is printed
AT_ONCE = 0.02  # lines closer than this share of the mean distance came at once
LONGEST_NAME = 120  # characters before a number among which its name is looked for
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_PER = r"\s?(?:/|per)\s?"
_UNIT = r"(?:\u00b5s|\u03bcs|[mun]?s|[mun]?secs?|seconds?|milliseconds?|microseconds?)"
_WHOLE = r"(?:it|iter|iteration|step|batch|update)"
_TIME_OF_STEP = rf"{_UNIT}{_PER}{_WHOLE}\b"
_STEPS_PER_S = rf"{_WHOLE}(?:s|es)?{_PER}s(?:ec(?:ond)?)?\b"
_TOKENS_PER_S = r"[kKMG]?\s?tok(?:en)?s?\s?(?:/|per)\s?s(?:ec(?:ond)?)?\b(?!/)"
_STEP = (
    r"(?<!s/)(?<!sec/)(?i:\b(?:global[_ ]?)?(?:step|iteration|iter|update|batch)(?:[_ "
    r"]?(?:num|number|idx|id))?)"
)
_BY_COUNTER = rf"{_STEP}[\"']?\s*[=:#]?\s*\[?\s*(?P<step>\d+)(?!\d|\.\d*[1-9])"
_LOSS_NUMBER = rf"(?P<loss>{_NUMBER}|[-+]?(?i:nan|inf(?:inity)?))"

_MANY_STEPS = rf"(?i:(?:\w+ )?{_WHOLE}e?s)\b"
_RANGE = rf"(?i:\b{_WHOLE}(?:e?s)?)\W{{0,3}}(?P<steps>\d+\s?(?:-|\u2013|to|\.\.+)\s?\d+)(?![\w.])"
_NO_TOTAL = r"/(?!\s?\d)"  # not behind a unit: 0.5s/12s is a time and its total, 0.5 s/step is not

_DURATION = rf"(?P<value>{_NUMBER})\s*(?P<unit>{_UNIT}(?![A-Za-z]|{_NO_TOTAL}))"
# Durations of several steps: 100 train steps in 50.2 s, and 5.1s for 10 steps.
_NO_MEAN = rf"^(?!.*(?i:mean|average|avg)\b[^,;|]{{0,40}}\d {_MANY_STEPS}).*?"
_WINDOWS = (
    rf"{_NO_MEAN}(?<![\w./])(?P<steps>\d+) {_MANY_STEPS}(?: in| took|:|=)?\s*{_DURATION}",
    rf"{_NO_MEAN}(?<![\w.]){_DURATION}\s*(?:[(/]|for|over|in)\s*(?:the )?(?:last )?(?P<steps>\d+) "
    rf"{_MANY_STEPS}",
)

_MENTION = re.compile(
    rf"(?<![\w.,+-])(?<!\d:)(?<!\d[mhd] )(?<!\d [mhd] )"
    rf"(?P<number>{_NUMBER}|[-+]?(?i:nan|inf(?:inity)?))(?!\.?\d|:\d|-\d\d-\d)"
    rf"(?:\s?(?P<unit>(?:{_TIME_OF_STEP}|{_STEPS_PER_S}|{_TOKENS_PER_S})(?!\s?[=:]|\s+\d+(?![\d/]|\s?[A-Za-z]+/s))|{_UNIT}(?!\w|{_NO_TOTAL})))?"
    rf"(?!\s?{_WHOLE}e?s\b|\s[A-Za-z]+/s(?:ec)?\b(?!\W{{0,3}}\d))"
    r"(?!\s?%|\s?(?:mins?|minutes?|hrs?|hours?|days?)\b|\s?[mhd]\s?\d[\d.]*\s?[ms]\b|(?:\w|/(?!\d))*[A-Za-z_])"
)
_BETWEEN = re.compile(r"(?:[\s\"'=:(\[]|\b(?:in|of|is)\b|\b(?:Array|tensor)\()*$")
_APART = re.compile(r"[^\w ./()-]|\s-+\s|\s{2,}|\t")

_UNITS = {
    unit: group
    for group, usual in UNIT_OF.items()
    for unit, size in SECONDS.items()
    if SECONDS.get(usual) == size
}
_WORDS = {kind: frozenset(words) for kind, words in LINES["words"].items()}
_LOSSES: list[str] = LINES["words"]["losses"]
_STEPS = _WORDS["many"] | _WORDS["one"]
_OF_TIME = _WORDS["times"].union(_WORDS["totals"], _UNITS)
_BEHIND_STEPS = _OF_TIME | _WORDS["behind_steps"]
_ANY_LOSS = _WORDS["totals"] | _WORDS["behind_losses"]
_OF_NAMES = frozenset().union(_UNITS, *_WORDS.values())
_OTHERS = re.compile("|".join(LINES["expressions"]["others"]))
_PARTS = re.compile("|".join(LINES["expressions"]["parts"]))

_RATE = (
    r"(?i)(?:steps?|its?|iter(?:ation)?s?|batch(?:es)?|updates?)[_ ]?(?:/|per)[_ ]?s|(?<![a-z])ups$"
)
_OTHER_RATE = r"(?i)[_ ]?(?:/|per)[_ ]?s(?:ec(?:ond)?)?(?![a-z])"
_COUNTER_KEY = r"(?i)(?:.*[./])?_?(?:global_?)?(?:step|iteration|iter|update)"

_EVALUATES = (
    r"(?i:(?<![a-z])(?:eval|evaluat\w*|valid\w*|val|test(?:ing)?|dev|held[-_ "
    r"]?out|hold[-_ ]?out)(?![a-z]))"
)
_METRIC = r"[_/ .-]?(?i:loss|acc|ppl|perplexity|bpb|mse|f1|auc|score|error|nll|metric)"
_EVALUATION = rf"{_EVALUATES}(?!{_METRIC})"
_ASIDE = (
    r"^(?!\s*\{|.*(?i:loss)).*(?i:(?<![a-z])(?:check-?point|ckpt|sav(?:ed|ing)|profil|dump))"
    r"(?!\w*\s?[=:]?\s?\d)|:\s*[\"'](?i:check-?point|ckpt|sav(?:ed?|ing)|profil)"
)
_TRAINS = r"^\W*(?:\d[\d:.,TZ/+-]*\W+)*(?i:train(?:ing)?)\b"
_RANK = re.compile(
    r"(?i:(?<![\w/.])(?:rank|process|proc|worker|host|device|replica|gpu|node|pid)[ "
    r"_]?(?:id|index)?[\"']?\s*[=:#]?\s*)"
    r"(?:[a-z]+:)?\d+(?:/\d+)?(?!\.?\d)|^\s*\[?\d+\]?\s*:|^\[\d+,\d+\]<"
)

_OF_PART = r"(?i:\bmicro[-_ ]?(?:step|batch)?\b\W{0,3}\d|\baccum\w*\W{0,3}\d+\s?(?:/|of)\b)"
_PART_OF = re.compile(r"\d+\s?(?:/|of)\s?\d+|(?i:micro|accum)[\w ]*\W{0,3}\d+")
_FIRST_WORD = re.compile(r"^\W*([A-Za-z_]+)")
_VALUE = re.compile(r"[=:][A-Za-z]\S*\s")
_BEFORE_NAME = re.compile(
    r"^.*\d(?!(?<=\b[a-z]\d)[a-z]\b)\S*\s+(?:(?:min|minute|hour|hr|day)s?\s+)?|^[^A-Za-z_]+|^.*\((?![^()]*\))"
)


class _Mention(NamedTuple):
    """A number in a line: the words before it, marks such as ``=`` between both, its unit."""

    label: str
    between: str
    unit: str

    @property
    def words(self) -> list[str]:
        """The words of its name, in small letters."""
        return re.findall(
            r"[hd]2[hd]|[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", self.label).lower()
        )

    @property
    def name(self) -> str:
        """The last words before it that belong to the name of a number."""
        name = list(itertools.takewhile(_belongs_to_name, reversed(self.label.split())))
        return " ".join(reversed(name))

    @property
    def rank(self) -> int | None:
        """How likely a step's duration: 0, then 1 a time, 2 no name, `MEAN`; `PASS`; None."""
        group = self.group
        name = set(self.words)
        is_mean = name & _WORDS["means"]
        is_time = name & _OF_TIME
        if (self.unit or group != "step_s") and set() < name - _OF_TIME <= _WORDS["passes"]:
            return PASS
        if any(map(_OTHERS.fullmatch, name)) or "loss" in name:
            return None
        if re.search("/|per", self.unit):
            return MEAN if is_mean else 0
        is_rate = group == "steps_per_s"
        if not is_rate and (name & _WORDS["no_times"] or re.search(_OTHER_RATE, self.label)):
            return None
        if is_mean:
            return MEAN if name & _STEPS else None
        if is_rate or (self.names_step and (self.unit or is_time)):
            return 0
        if is_time or (self.unit and name & _WORDS["newest"]):
            return 1
        if self.unit and not name and self.between not in ("(", "[", "/"):
            return 2
        return None

    @property
    def names_step(self) -> bool:
        """Whether its name is that of a step, as `step_time` is, and `update_actor` is not."""
        backwards = itertools.dropwhile(_BEHIND_STEPS.__contains__, reversed(self.words))
        return next(backwards, "") in _STEPS

    @property
    def group(self) -> str:
        """The group of a pattern for the duration or rate that its name says."""
        if re.search(_RATE, self.label):
            return "steps_per_s"
        units = ["step_s", *(_UNITS[word] for word in self.words if word in _UNITS)]
        return units[-1]

    @property
    def loss_rank(self) -> int | None:
        """How likely it is the loss of training, 0 the likeliest; None if it is none."""
        name = [word for word in self.words if word not in _ANY_LOSS]
        if not name or self.unit or name[-1] not in _LOSSES or any(map(_OTHERS.fullmatch, name)):
            return None
        if name[-1] == "l" and not {"=", ":"} & set(self.between):
            return None
        rank = len(name) + len(self.words) + 20 * _LOSSES.index(name[-1])
        return rank + 200 * any(map(_PARTS.fullmatch, name))

    @property
    def shape(self) -> tuple[str, tuple[str, ...], str]:
        """What the same number of other lines has in common with it."""
        kind = "s" if re.fullmatch(_UNIT, self.unit) else re.sub(r"\s", "", self.unit)
        return self.label, tuple(self.between.split()), kind

    def pattern(self, number: str, names: Collection[str]) -> str:
        """Returns the pattern that reads it, but none of the names that end with its name."""
        pattern = r"\s*".join([*map(re.escape, self.between.split()), number])
        if not self.label:
            return pattern if self.between else rf"(?<![\w.]){pattern}"
        label = " +".join(map(re.escape, self.label.split()))
        guard = ""
        for name in sorted(names):
            if name.endswith(self.label) and name != self.label:
                guard += rf"(?<!{re.escape(name.removesuffix(self.label))})"
        return rf"{guard}(?<![A-Za-z_]){label}\s*{pattern}"


class Recognised(NamedTuple):
    """Rules that read steps from lines, and how well they do."""

    rules: Rules
    steps: int
    step_s: float | None  # None by the clock of a saved log
    example: str
    by_clock: bool
    agrees: float | None  # median printed duration over the time between lines
    in_bursts: bool  # most lines came at once: the time between lines is meaningless
    name_rank: int  # see `_Mention.rank`
    left_out: Output  # lines that name steps like those that are read, of which none is

    @property
    def doubtful(self) -> bool:
        """Whether durations differ from the time between lines, or that time is meaningless."""
        return self.in_bursts if self.by_clock else not self.is_within(AGREES)

    def is_within(self, limits: tuple[float, float]) -> bool:
        """Returns whether `agrees` is within limits, or not known."""
        return self.agrees is None or limits[0] <= self.agrees <= limits[1]


def recognise(lines: Output, *, at: Times = None) -> list[Recognised]:
    """Finds the rules that fit lines of output, best first.

    Printed durations come before the clock between lines, unless they differ much from it; the name
    of a step before other names; a preset before a JSON key before a pattern. Rates of tokens are
    left out, because nobody says how many tokens a step has.
    """
    normalised = [normal(line) for line in lines]
    skips = [name for name in (_EVALUATION, _OF_PART, _ASIDE) if _read_by(name, normalised)]
    fits = _fits(normalised, at, skips) or _fits(normalised, at, [])
    presets = [fit.rules["preset"] for fit in fits if fit.by_clock and "preset" in fit.rules]
    for name in presets:  # a bar drawn at each step repeats counter and rate
        bar = PRESETS[name]["pattern"]
        fits = [
            fit
            for fit in fits
            if _PER not in fit.rules.get("pattern", "") or not re.search(bar, fit.example)
        ]
    step_count = max((fit.steps for fit in fits), default=0)
    return sorted(fits, key=lambda fit: _rank(fit, step_count))


def best_fit(lines: Output, at: Times = None) -> Recognised | None:
    """Returns the best rules that fit lines of output; None if none do."""
    return next(iter(recognise(lines, at=at)), None)


def _fits(lines: Output, at: Times, skips: list[str]) -> list[Recognised]:
    """Returns all rules that fit lines; `skips` are expressions of lines that are left out."""
    fits = []
    passes_s = 0.0
    lines = ["" if any(re.search(name, line) for name in skips) else line for line in lines]
    for rank, rules in _candidates(lines):
        narrowed = _narrowed(rules, lines, skips)
        fit = _fit_of(narrowed, lines, at, rank) if narrowed else None
        if fit is not None and rank == PASS:
            passes_s += 0.95 * (fit.step_s or 0.0)  # they are rounded
        elif fit is not None:
            fits.append(fit)
    return [fit for fit in fits if fit.step_s is None or fit.step_s >= passes_s]


_NO_TEXT = re.compile(r"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f-\x9f\ufffd]")


def normal(line: str) -> str:
    """Returns a line as patterns are searched in it: plain, cut, undivided; binary ones empty."""
    if 10 * len(_NO_TEXT.findall(line)) > len(line):
        return ""
    if line.lstrip().startswith("{"):
        return line
    text = plain(line)[:LONGEST_LINE]
    return undivided(text, is_decimal=has_decimal_commas(text))


def _candidates(lines: Output) -> Candidates:
    """Yields rules that may fit; the rank is -1 for programs that are known."""
    shapes = _shapes_of(lines)
    names = {mention.label for mention in shapes}
    lost = _loss_of(shapes)
    loss = {} if lost is None else {"loss": lost.pattern(_LOSS_NUMBER, names)}
    for name, preset in PRESETS.items():
        rank = 0 if name == "absl" else -1
        yield rank, {"preset": name, **({} if _read_by(preset["loss"], lines) else loss)}
    yield from _json_rules(lines)
    for mention in () if _are_parts(lines) else shapes:
        if mention.rank is not None:
            pattern = mention.pattern(_group_of(mention), names)
            if 0 < mention.rank < MEAN and len(_read_by(_RANGE, lines)) >= FEWEST_STEPS:
                pattern = f"^(?=.*?{_RANGE}).*?(?:{pattern})"
            yield mention.rank, {"pattern": pattern, **loss}
    patterns = [*_WINDOWS, _BY_COUNTER]
    if (
        lost is not None
        and lost.words[-1] == _LOSSES[0]
        and 2 * len(_read_by(_BY_COUNTER, lines)) < len(_read_by(loss["loss"], lines))
    ):  # these lines do not name their step
        any_loss = loss["loss"].replace("?P<loss>", "?:")
        counter = r"(?:^|[\s\[(])(?P<step>\d+)\s*(?:/\s*\d+)?\s*[^\w.]?\s?[^\w.]?\s.*"
        patterns += [counter + any_loss, any_loss]
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
    newest = {mention.shape: mention for mention in mentions}
    counts = collections.Counter(mention.shape for mention in mentions)
    return [newest[shape] for shape, count in counts.most_common() if count >= FEWEST_STEPS]


def _unchanging(rows: Sequence[Sequence[_Mention]]) -> list[_Mention]:
    """Returns mentions by their names alone; one that is twice in a line keeps the words before."""
    ambiguous = {""}
    for row in rows:
        counts = collections.Counter(mention.name for mention in row)
        ambiguous |= {name for name, count in counts.items() if count > 1}
    return [m if m.name in ambiguous else m._replace(label=m.name) for row in rows for m in row]


def _belongs_to_name(word: str) -> bool:
    """Returns whether a word is one of the name of a number, as those in step time are."""
    return any(
        text in _OF_NAMES or _OTHERS.fullmatch(text) or _PARTS.fullmatch(text)
        for text in re.findall(r"[hd]2[hd]|[a-z]+", word.lower())
    )


def _are_parts(lines: Output) -> bool:
    """Returns whether most lines are of parts of steps: counters repeat, as with ``micro 2/4``."""
    counted = [line for line in lines if step_of(line) is not None]
    part_count = sum(
        _PART_OF.findall(a) != _PART_OF.findall(b)
        for a, b in itertools.pairwise(counted)
        if (step_of(a) == step_of(b) or re.search(_OF_PART, a)) and not _RANK.search(a)
    )
    return 2 * part_count + 1 >= len(counted) > 1


def _group_of(mention: _Mention) -> str:
    """Returns the expression of a printed duration or rate, with its group."""
    if not mention.unit:
        return rf"(?P<{mention.group}>{_NUMBER})(?![\w/%:])"
    for rate in (_TIME_OF_STEP, _STEPS_PER_S):
        if re.fullmatch(rate, mention.unit):
            return rf"(?P<value>{_NUMBER})\s*(?P<unit>{rate})"
    return _DURATION


def mentions_of(line: str) -> Iterator[_Mention]:
    """Yields the numbers of a line of text with their names and units, from left to right."""
    if numbers_of(line):
        return
    end = 0
    for match in _MENTION.finditer(line):
        before = line[max(end, match.start() - LONGEST_NAME) : match.start()]
        end = match.end()
        head = _BETWEEN.sub("", before)
        label = _BEFORE_NAME.sub("", _APART.split(_VALUE.sub("  ", head))[-1])
        marks = before[len(head) :].strip()
        if not (marks or label):
            marks = before.strip()[-1:]
        yield _Mention(label.strip(), marks, match["unit"] or "")


def _narrowed(rules: Rules, lines: Output, skips: list[str]) -> Rules:
    """Returns rules that skip lines that are not of training; none if they read too few."""
    if "json_key" not in rules:
        read = _read_by(rules.get("pattern") or PRESETS[rules["preset"]]["pattern"], lines)
        if len(read) < FEWEST_STEPS:
            return {}
        for mark in (_TRAINS, rules.get("loss", "")):
            marked = _read_by(mark, read)
            if FEWEST_STEPS <= len(marked) < len(read) <= 4 * len(marked):
                skips = [*skips, f"^(?!.*(?:{mark}))"]  # another logger's
    return {**rules, "skip": "|".join(skips)} if skips else rules


def _read_by(pattern: str, lines: Output) -> Output:
    return [line for line in lines if re.search(pattern, line)]


def _json_rules(lines: Output) -> Candidates:
    """Yields rules for keys of JSON lines."""
    keys = collections.Counter(key for line in lines for key in numbers_of(line))
    ordered = sorted(keys, key=lambda key: (-keys[key], len(key), key))
    mentions = [_Mention(key, "=", "") for key in ordered]
    lost = _loss_of(mentions)
    loss = {} if lost is None else {"loss": lost.label}
    for mention in mentions:
        if mention.rank is not None:
            yield mention.rank, {"json_key": mention.label, "unit": mention.group, **loss}
    for key in keys:
        if re.fullmatch(_COUNTER_KEY, key):
            yield 0, {"json_key": key, "unit": "step", **loss}


def _fit_of(rules: Rules, lines: Output, at: Times, rank: int) -> Recognised | None:
    """Reads lines by rules; None if too few steps, or totals in place of durations."""
    reader = StepReader(rules)
    times = []
    came = []
    readable = []
    for line, now_s in zip(lines, at or itertools.repeat(0.0), strict=False):
        step = reader.read(line, now_s)
        if step is not None and step.step_s is not None:
            times.append(step.step_s)
            came.append((now_s, step.number))
            readable.append(line)
    clock = reader.uses_clock
    may_grow = clock or "dt" in rules.get("pattern", "")
    if len(times) < FEWEST_STEPS or (not may_grow and _only_grow(times)):
        return None
    later = times[1:]
    if later == sorted(later, reverse=True) and len(set(later)) > FEWEST_LINES:
        rank = MEAN  # it only falls, as a mean with the compilation in it
    typical_s = statistics.median(times)
    step_s = None if clock and at is None else typical_s
    agrees = None
    passed_s, in_bursts, steps_apart = _passed(came)
    if at is None:
        in_bursts = False
        if rank > 0 and steps_apart > 1 and "<steps>" not in rules.get("pattern", ""):
            rank = MEAN  # perhaps that of all steps since the line before
    elif passed_s and not (clock or in_bursts):
        agrees = typical_s / passed_s
        if agrees < AGREES[0] and came[0][1] is None:
            agrees = None  # perhaps not every step has a line: there is no counter
    return Recognised(
        rules=rules,
        steps=len(times),
        step_s=step_s,
        example=readable[-1],
        by_clock=clock,
        agrees=agrees,
        in_bursts=in_bursts,
        name_rank=rank,
        left_out=[] if clock else _left_out(lines, readable),
    )


def _left_out(lines: Output, read: Output) -> Output:
    """Returns the lines that begin as those that were read, but name steps of which none was."""
    steps = set(map(step_of, read))
    if None in steps:
        return []
    starts = {str(_FIRST_WORD.findall(line)) for line in read}
    return [
        line
        for line in lines
        if str(_FIRST_WORD.findall(line)) in starts and step_of(line) not in {None, *steps}
    ]


def _only_grow(times: list[float]) -> bool:
    """Returns whether times grow as a total does, and not as the jitter of durations."""
    if times != sorted(times):
        return False
    is_doubled = len(times) >= 4 and times[-1] >= 2 * times[0]
    return is_doubled or len(set(times)) == len(times) >= 6


def _rank(fit: Recognised, step_count: int) -> tuple[Any, ...]:
    """Returns a sort key, where a bar's counter is before its rate and a whole before its parts."""
    is_few = 4 * fit.steps < step_count
    vague = 0
    if fit.by_clock and fit.name_rank >= 0:
        vague = 3 if fit.step_s is None else 1
    elif fit.name_rank >= MEAN:
        vague = 2
    quarters = (fit.steps + fit.by_clock) // 4
    longest_s = 0.0 if fit.name_rank else fit.step_s or 0.0
    return fit.doubtful, vague, is_few, fit.name_rank, -quarters, -longest_s


def _passed(came: Sequence[tuple[float, int | None]]) -> tuple[float, bool, int]:
    """Returns the seconds of a step, whether most lines came at once, the least steps between."""
    gaps_s = []
    counts = []
    for (before_s, before), (after_s, after) in itertools.pairwise(came):
        count = 1 if before is None or after is None else after - before
        if count > 0:
            gaps_s.append((after_s - before_s) / count)
            counts.append(count)
    if not gaps_s:
        return 0.0, False, 1
    limit_s = AT_ONCE * statistics.fmean(gaps_s)
    short_count = sum(gap_s <= limit_s for gap_s in gaps_s)
    return statistics.median(gaps_s), 2 * short_count > len(gaps_s), min(counts)


BAR = re.compile(r"[^\w\s]{4,}(?:\s*[^\w\s])*|[^\w\s](?:[^\w\s]|\s){6,}[^\w\s]")
_FIGURE = re.compile(r"(?<![\d.])(?:(?<!\w)[-+])?(?:\d+(?:,\d{3})*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def shape_of(line: str) -> str:
    """Returns what lines of one kind have in common: no numbers, progress bars, runs of blanks."""
    return " ".join(_FIGURE.sub("#", BAR.sub("…", plain(line[:LONGEST_LINE]))).split())

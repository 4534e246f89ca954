"""Settings that change nothing alone: which of them do in company.

A row is one assignment of settings. Its context is what is left without the settings that look dead; a row with the
program of its context speaks for all of its company at once, so few rows speak for many. Where the program differs,
delta debugging finds the culprits, which are dead no longer. It ends when rows that were equal hold

* every value of a dead setting with every value of every other setting, dead or live, and
* every two settings, one of them dead, while any third one is left alone: it might switch them off,

and when every dead setting was tried with all that its conditions ask for. So a difference that hinges on two
values, or on two settings (of one other value each) and the absence of a third, or on a chain of conditions, is
found for certain. In small spaces every two values are tried alone, too, so that a pair is found whatever switches it
off. What hinges on more is found by chance: `benchmarks.soundness` measures how often.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from autotune.model import FlagSet, shrink

Program = Callable[[FlagSet], str | None]
"""Names the program of a set; None if it does not compile. Raises `TimeUp` when nothing more may be compiled."""

CANDIDATES = 8
"""Random rows of which the one is taken that says most."""

FULL_ROWS = 2
"""Rows in which some company is tried among much else; after those it is tried alone, for others may have hidden it."""


PAIRS_ALONE = 64
"""Up to so many pairs of values, one of them dead, each is tried alone in the end."""


HALVES = 4
"""Rows of half of the dead settings, where not every company is asked for."""


class TimeUp(Exception):
    """Nothing more may be compiled."""


@dataclass(slots=True)
class Company:
    """What was found.

    Attributes:
        awake: Settings that do act, each with all those among which it was seen to: of culprits none can be left
            out, of a context that was not tried. Empty for what acts alone.
        unsettled: Settings that nothing can be said of, because the time was up.
        rows: Rows that were looked at.
    """

    awake: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unsettled: tuple[str, ...] = ()
    rows: int = 0


def look_in_company(
    program: Program,
    dead: Mapping[str, Sequence[str]],
    live: Mapping[str, Sequence[str]],
    *,
    failing: Sequence[FlagSet] = (),
    chains: Mapping[str, Sequence[FlagSet]] | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
    seed: int = 0,
    pairs_alone: int = PAIRS_ALONE,
    is_thorough: bool = True,
) -> Company:
    """Looks for company in which settings that change nothing alone change the program.

    Args:
        program: Compiles.
        dead: Settings that change nothing alone, with all values of theirs that compile.
        live: The other settings with theirs.
        failing: Single settings that do not compile alone; a dead one that mends one is not dead.
        chains: Setting to the sets under which its conditions are true.
        progress: Told how many rows are done, of how many that are planned so far.
        seed: Equal seeds give equal rows.
        pairs_alone: See `PAIRS_ALONE`.
        is_thorough: Whether rows must hold all that the module promises; else each value of a dead setting with all
            other dead ones, conditions, and `HALVES` rows of half of them.
    """
    search = _Search(program, dead, live, seed, pairs_alone, is_thorough)
    try:
        search.work(failing, chains or {}, progress)
    except TimeUp:
        search.found.unsettled = tuple(search.dead)
    return search.found


class _Search:
    def __init__(
        self,
        program: Program,
        dead: Mapping[str, Sequence[str]],
        live: Mapping[str, Sequence[str]],
        seed: int,
        pairs_alone: int,
        is_thorough: bool,
    ) -> None:
        self._is_thorough = is_thorough
        self.dead = {n: list(v) for n, v in dead.items() if v}
        self.found = Company()
        self._program = program
        self._domains = {n: list(v) for n, v in sorted([*self.dead.items(), *live.items()]) if v}
        self._random = random.Random(seed)
        self._pairs_alone = pairs_alone
        self._halves = HALVES
        self._queue: list[FlagSet] = []
        self._equal: list[FlagSet] = []
        self._asked: dict[tuple[str, ...], int] = {}

    def work(
        self,
        failing: Sequence[FlagSet],
        chains: Mapping[str, Sequence[FlagSet]],
        progress: Callable[[int, int], None],
    ) -> None:
        """Looks until all company is covered.

        Raises:
            TimeUp: If nothing more may be compiled.
        """
        for name, values in self.dead.items():
            self._queue += [chain.merge({name: v}) for chain in chains.get(name, ()) for v in values]
        if not self._is_thorough:
            self._queue = list(_joined(self._queue))
        for alone in failing:
            for i in range(max(map(len, self.dead.values()), default=0)):
                self._queue.append(FlagSet({n: v[i % len(v)] for n, v in self.dead.items()}).merge(alone))
        while self.dead and (self._queue or self._plan() or self._plan_pairs()):
            self.found.rows += 1
            self._look(self._queue.pop(0))
            progress(self.found.rows, self.found.rows + len(self._queue))

    # ------------------------------------------------------------------ one row

    def _look(self, row: FlagSet) -> None:
        """Takes a row apart until what is left of the dead in it changes nothing."""
        while part := FlagSet({n: v for n, v in row.items() if n in self.dead}):
            context = row.without(*part)
            base = self._program(context)
            if base is None and len(context) > 1:
                half = len(context) // 2
                for names in (list(context)[:half], list(context)[half:]):
                    self._look(row.without(*names))
                return
            if self._program(row) == base:
                if base is not None:
                    self._equal.append(row)
                return
            culprits = self._culprits(part, context)
            self._awaken(culprits, context)
            if self._program(context.merge(culprits)) is None:
                row = row.without(*culprits)
                if not context:  # any set that holds them fails
                    self._queue = [r.without(*culprits) if r.merge(culprits) == r else r for r in self._queue]

    def _culprits(self, part: FlagSet, context: FlagSet) -> FlagSet:
        """A part of some dead settings that changes the program of a context, of which none can be left out.

        Where all of them fail, one that fails: it may be that the compiler took all the time that it may take, and each
        further set that holds it costs that again.
        """
        base = self._program(context)
        if base is not None and self._program(context.merge(part)) is None:
            return shrink(part, lambda some: self._program(context.merge(some)) is None)[0]
        return shrink(part, lambda some: self._program(context.merge(some)) != base)[0]

    def _awaken(self, culprits: FlagSet, context: FlagSet) -> None:
        """Counts settings among the live ones; rows that were equal with them as dead must be looked at again."""
        for name in culprits:
            del self.dead[name]
            self.found.awake[name] = tuple(n for n in (*culprits, *context) if n != name)
        self._queue += [row for row in self._equal if any(n in row for n in culprits)]
        self._equal = [row for row in self._equal if not any(n in row for n in culprits)]

    # ------------------------------------------------------------------ which rows

    def _plan(self) -> bool:
        """Queues rows that hold all company not seen yet; whether there is any."""
        missing: dict[tuple[str, ...], None] = dict.fromkeys(self._wanted())
        for row in self._equal:
            for company in self._company(row):
                missing.pop(company, None)
        for company in [c for c in missing if self._asked.get(c, 0) > FULL_ROWS]:
            del missing[company]  # it was tried alone: it does not compile, whatever the dead one is
        while missing:
            seed = next(iter(missing))
            rows = [self._row(seed) for _ in range(CANDIDATES if self._asked.get(seed, 0) < FULL_ROWS else 1)]
            held = [[c for c in self._company(row) if c in missing] for row in rows]
            best = max(range(len(rows)), key=lambda i: len(held[i]))
            self._queue.append(rows[best])
            self._asked[seed] = self._asked.get(seed, 0) + 1
            for company in (seed, *held[best]):
                missing.pop(company, None)
        return bool(self._queue)

    def _plan_pairs(self) -> bool:
        """Queues every pair of values alone, once, if they are few; whether there is any.

        Where not all is asked for it queues rows of half of the dead instead: others may have hidden what one does.
        """
        if not self._is_thorough:
            left, self._halves = self._halves, 0
            row = {n: self._random.choice(v) for n, v in self.dead.items()}
            self._queue += [FlagSet({n: v for n, v in row.items() if self._random.random() < 0.5}) for _ in range(left)]
            return bool(self._queue)
        values = [(n, v) for n, of in self._domains.items() for v in of]
        found = [
            FlagSet(pair)
            for pair in itertools.combinations(values, 2)
            if pair[0][0] != pair[1][0] and any(n in self.dead for n, _ in pair)
        ]
        if len(found) <= self._pairs_alone:
            self._queue += [row for row in found if row not in self._equal]
        self._pairs_alone = 0
        return bool(self._queue)

    def _wanted(self) -> Iterator[tuple[str, ...]]:
        """All company that rows must hold: that of dead ones alone first, for its rows have the cheapest context."""
        live = [n for n in self._domains if n not in self.dead]
        for name, values in self.dead.items():
            yield from ((name, v) for v in values)
        if not self._is_thorough:
            return
        together = [tuple(sorted(p)) for p in itertools.combinations(self.dead, 2)]
        mixed = [tuple(sorted(p)) for p in itertools.product(self.dead, live)]
        for pairs, thirds in ((together, list(self.dead)), (mixed, list(self._domains))):
            for one, other in pairs:
                for v, w in itertools.product(self._domains[one], self._domains[other]):
                    yield one, v, other, w
            for one, other in pairs:
                yield from ((one, other, third) for third in thirds if third not in (one, other))

    def _company(self, row: FlagSet) -> Iterable[tuple[str, ...]]:
        """The company that a row holds; see `_wanted`."""
        out = [n for n in self._domains if n not in row]
        yield from row.items()
        if not self._is_thorough:
            return
        for (one, v), (other, w) in itertools.combinations(row.items(), 2):
            if one in self.dead or other in self.dead:
                yield one, v, other, w
                yield from ((one, other, third) for third in out)

    def _row(self, company: tuple[str, ...]) -> FlagSet:
        """A random row that holds some company: with as many dead ones as may be, and live ones if one is asked for."""
        draw = self._random
        asked, out = _parts(company)
        fixed = {n: v if v is not None else draw.choice(self._domains[n]) for n, v in asked.items()}
        if self._asked.get(company, 0) >= FULL_ROWS:
            return FlagSet(fixed)
        share_dead = 2 / 3 if out else 1.0
        share_live = 0.0 if all(n in self.dead for n in asked) else draw.choice((1 / 3, 1 / 2, 1.0))
        for name, values in self._domains.items():
            share = share_dead if name in self.dead else share_live
            if name not in fixed and name != out and draw.random() < share:
                fixed[name] = draw.choice(values)
        return FlagSet(fixed)


def _joined(rows: Iterable[FlagSet]) -> Iterator[FlagSet]:
    """Few rows that hold all of some: each is taken into the first with which it agrees on every setting."""
    joined: list[dict[str, str]] = []
    for row in rows:
        fitting = next((j for j in joined if all(j.get(n, v) == v for n, v in row.items())), None)
        if fitting is None:
            joined.append(dict(row))
        else:
            fitting |= row
    yield from map(FlagSet, joined)


def _parts(company: tuple[str, ...]) -> tuple[dict[str, str | None], str | None]:
    """The settings of some company, with their values where those count, and the one that must be left alone."""
    if len(company) == 3:
        return {company[0]: None, company[1]: None}, company[2]
    return dict(zip(company[::2], company[1::2], strict=True)), None

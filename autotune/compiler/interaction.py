"""Interaction test: finds settings without an effect alone that change the program in combination.

A row is one assignment of settings. Its context is the row without apparent no-ops. If the row has
the program of its context, all combinations in it are covered at once (group testing). Where the
program differs, delta debugging finds a minimal set that changes it, whose settings are active. The
test ends when equal rows hold

* every value of a no-op with every value of every other setting, and
* every two settings, one of them a no-op, without any third one, which might switch them off,

and when every no-op was tried with its conditions fulfilled. In small spaces every two values are
also tried alone. Larger combinations are found by chance (`benchmarks.soundness`: how often).

A screen repeats the test under each kernel choice, because without a device XLA takes Triton's
matrix products where a device's autotuner times them against cuBLAS. cuDNN's cannot be forced.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from autotune.model.errors import StoppedError
from autotune.model.flags import FlagSet
from autotune.settings.shrink import shrink

Sets = Sequence[FlagSet]
# Fingerprints of sets' programs, None for failures; `StoppedError` when the time is up.
Programs = Callable[[Sets], list[str | None]]
Domains = Mapping[str, Sequence[str]]
Chains = Mapping[str, Sets]  # setting to the sets under which its conditions are true

# One or two items (setting, value); or two names of settings of any value, and an absent one.
Combination = tuple[Any, ...]

ROWS_AHEAD = 2
RANDOM_ROWS = 8  # of which the one with most combinations is compiled
FULL_ROWS = 2  # for a combination before it is tried alone, because others may hide it
PAIRS_ALONE = 64  # most pairs of values, one of them a no-op's, to try alone at last

TRITON = "with Triton GEMMs"
CUBLAS = "with cuBLAS GEMMs"

# Flags that force each kernel choice; the first is the compiler's own.
CHOICES = {TRITON: FlagSet(), CUBLAS: FlagSet({"xla_gpu_enable_triton_gemm": False})}


def kernel_choices(baseline: FlagSet, *, is_gpu: bool) -> dict[str, FlagSet]:
    """Returns the kernel choices that programs may meet: one on a CPU, or where one is forced."""
    if not is_gpu:
        return {"": FlagSet()}
    if baseline.merge(CHOICES[CUBLAS]) == baseline:
        return {CUBLAS: FlagSet()}
    return CHOICES


class InteractionSearch:
    """Finds combinations in which `no_ops`, which do nothing alone, change the program.

    `found_active` maps each that does to those among which it acts: the others of a minimal set,
    and the context, which was not minimized. `no_ops` keeps the others, of which nothing is known
    unless the time sufficed (`is_settled`).
    """

    def __init__(
        self,
        programs: Programs,
        no_ops: Domains,
        active: Domains,
        *,
        seed: int = 0,
        pairs_alone: int = PAIRS_ALONE,
    ) -> None:
        self.no_ops = {n: list(v) for n, v in no_ops.items() if v}
        self.found_active: dict[str, tuple[str, ...]] = {}
        self.is_settled = True
        self._programs = programs
        self._domains = dict(sorted([*self.no_ops.items(), *active.items()]))
        self._random = random.Random(seed)
        self._pairs_alone = pairs_alone
        self._queue: list[FlagSet] = []
        self._equal: list[FlagSet] = []
        self._attempts = Counter[Combination]()

    def run(self, chains: Chains) -> Iterator[int]:
        """Compiles rows until all combinations are covered; yields their number.

        Nothing is settled if the time is up before, or the default does not compile.
        """
        if not self.no_ops:
            return
        try:
            if self._program(FlagSet()) is None:
                raise StoppedError("the default does not compile")
            # Rows in which its conditions are true.
            for name, values in self.no_ops.items():
                self._queue += [c.merge({name: v}) for c in chains.get(name, ()) for v in values]
            self._queue += self._mending()
            row_count = 0
            while self.no_ops and (self._queue or self._plan() or self._plan_pairs()):
                ahead = self._queue[:ROWS_AHEAD]
                self._programs([s for row in ahead for s in (row.without(*self.no_ops), row)])
                self._try(self._queue.pop(0))
                row_count += 1
                yield row_count
        except StoppedError:
            self.is_settled = False

    def _program(self, settings: FlagSet) -> str | None:
        return self._programs([settings])[0]

    def _mending(self) -> list[FlagSet]:
        """Returns rows of values that fail alone, which leave the domains: one may repair them."""
        longest = max(map(len, self.no_ops.values()))
        rows = [FlagSet({n: v[i % len(v)] for n, v in self.no_ops.items()}) for i in range(longest)]
        mending = []
        for name in [n for n in self._domains if n not in self.no_ops]:
            values = self._domains[name]
            failing = [v for v in values if self._program(FlagSet({name: v})) is None]
            mending += [row.merge({name: v}) for v in failing for row in rows]
            self._domains[name] = [v for v in values if v not in failing]
            if not self._domains[name]:
                del self._domains[name]
        return mending

    def _try(self, row: FlagSet) -> None:
        """Splits a row until the remaining no-ops in it change nothing."""
        while inert := FlagSet({n: v for n, v in row.items() if n in self.no_ops}):
            context = row.without(*inert)
            base = self._program(context)
            if base is None and len(context) > 1:
                names = list(context)
                half = len(names) // 2
                self._try(row.without(*names[:half]))
                self._try(row.without(*names[half:]))
                return
            if self._program(row) == base:
                if base is not None:
                    self._equal.append(row)
                return
            minimal = self._minimal(inert, context)
            self._activate(minimal, context)
            if self._program(context.merge(minimal)) is None:
                row = row.without(*minimal)
                if not context:  # any set that holds them fails
                    self._queue = [
                        r.without(*minimal) if r.merge(minimal) == r else r for r in self._queue
                    ]

    def _minimal(self, part: FlagSet, context: FlagSet) -> FlagSet:
        """Returns a minimal part of no-ops that changes a context's program, or fails as all do."""
        base, changed = self._programs([context, context.merge(part)])

        def changes(some: FlagSet) -> bool:
            program = self._program(context.merge(some))
            return program is None if changed is None else program != base

        return shrink(part, changes)[0]

    def _activate(self, minimal: FlagSet, context: FlagSet) -> None:
        """Marks settings as active, and queues the equal rows that hold them again."""
        for name in minimal:
            del self.no_ops[name]
            self.found_active[name] = tuple(n for n in (*minimal, *context) if n != name)
        self._queue += [row for row in self._equal if minimal.keys() & set(row)]
        self._equal = [row for row in self._equal if minimal.keys().isdisjoint(row)]

    def _plan(self) -> bool:
        """Queues rows that hold all uncovered combinations; whether there are any."""
        missing = dict.fromkeys(self._wanted())
        # What was tried alone as well does not compile, with or without the no-op.
        settled = [c for c, rows in self._attempts.items() if rows > FULL_ROWS]
        for combination in itertools.chain(settled, *map(self._combinations, self._equal)):
            missing.pop(combination, None)
        while missing:
            seed = next(iter(missing))
            row_count = RANDOM_ROWS if self._attempts[seed] < FULL_ROWS else 1
            rows = [self._row(seed) for _ in range(row_count)]
            best = max(rows, key=lambda row: sum(c in missing for c in self._combinations(row)))
            self._queue.append(best)
            self._attempts[seed] += 1
            for combination in (seed, *self._combinations(best)):
                missing.pop(combination, None)
        return bool(self._queue)

    def _plan_pairs(self) -> bool:
        """Queues every pair of values alone, once, if they are few; whether there are any."""
        pairs = [FlagSet(items) for items in self._wanted() if len(items) == 2]
        if len(pairs) <= self._pairs_alone:
            self._queue += [row for row in pairs if row not in self._equal]
        self._pairs_alone = 0
        return bool(self._queue)

    def _wanted(self) -> Iterator[Combination]:
        """Yields all combinations to cover; those of no-ops, whose context is cheapest, first."""
        active = [n for n in self._domains if n not in self.no_ops]
        for name in self.no_ops:
            yield from zip(self._items(name))
        for name_pairs, thirds in (
            (itertools.combinations(self.no_ops, 2), self.no_ops),
            (itertools.product(self.no_ops, active), self._domains),
        ):
            pairs = [sorted(pair) for pair in name_pairs]
            for pair in pairs:
                yield from itertools.product(*map(self._items, pair))
            for pair in pairs:
                yield from ((*pair, third) for third in thirds if third not in pair)

    def _items(self, name: str) -> list[tuple[str, str]]:
        return [(name, value) for value in self._domains[name]]

    def _combinations(self, row: FlagSet) -> Iterator[Combination]:
        """Yields the combinations of `_wanted` that a row holds."""
        absent = [n for n in self._domains if n not in row]
        yield from zip(row.items())
        for items in itertools.combinations(row.items(), 2):
            a, b = dict(items)
            if a in self.no_ops or b in self.no_ops:
                yield items
                yield from ((a, b, third) for third in absent)

    def _row(self, combination: Combination) -> FlagSet:
        """Draws a row with a combination, many no-ops, and active settings if it has one."""
        draw = self._random
        absent = ""
        if len(combination) == 3:
            *names, absent = combination
            row = {name: draw.choice(self._domains[name]) for name in names}
        else:
            row = dict(combination)
        if self._attempts[combination] >= FULL_ROWS:
            return FlagSet(row)
        share_no_ops = 2 / 3 if absent else 1.0
        share_active = 0.0
        if not row.keys() <= self.no_ops.keys():
            share_active = draw.choice((1 / 3, 1 / 2, 1.0))
        for name, values in self._domains.items():
            share = share_no_ops if name in self.no_ops else share_active
            if name not in row and name != absent and draw.random() < share:
                row[name] = draw.choice(values)
        return FlagSet(row)

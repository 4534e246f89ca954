"""A space of settings whose every set has a known time: what a search is held against.

Sets are rows of codes, one for each parameter of the space, each the place of a value in
`Parameter.choices`; a parameter that another one switches off has the code of its default. Times
are logs of ratios to the default's.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.model.flags import FlagSet
from autotune.settings.space import Parameter, SearchSpace

Codes = NDArray[np.int64]
Floats = NDArray[np.float64]
Cause = tuple[tuple[int, int], ...]
"""Parameters and their codes that make a set fail together."""

MOST_COMBINATIONS = 5_000_000
"""Most combinations of settings that hang together whose effects are enumerated."""

LEAST_PEAK = 0.01
"""Least memory of a set, as a share of what there is."""

WIDTHS_SPREAD = 0.5
"""Standard deviation of the log of trials' standard errors: some trials are told more surely than
others.
"""


@dataclass(frozen=True, slots=True)
class Joint:
    """What two parameters do together, beyond what each does alone.

    Attributes:
        one: Index of the first parameter.
        other: Index of the second.
        table: Log ratio at each combination of their codes.
    """

    one: int
    other: int
    table: Floats


@dataclass(frozen=True, slots=True)
class Together:
    """What some parameters do jointly, such as batch and mesh; 0 at their defaults.

    Attributes:
        factors: Indices of the parameters.
        times: Log ratio at each combination of their codes.
        memory: Likewise, in units of the room that the default leaves.
    """

    factors: tuple[int, ...]
    times: Floats
    memory: Floats


@dataclass(frozen=True)
class Problem:
    """A space with effects that are known, so that its best set is too.

    Attributes:
        name: Family and seed.
        space: What is searched.
        mains: Log ratio at each value of each parameter.
        joints: What pairs do.
        hazards: What makes a set fail; a cause never holds a default.
        recipes: Published sets, as it were: tried first where a run has them.
        good: Parameters that have a value which pays.
        memory: Memory of each value of each parameter, in units of the room that the default
            leaves; may be empty.
        together: What more than two parameters do jointly.
        default_peak: Memory of the default, as a share of what there is.
        noise: Mean standard error of its trials; None for that of the run.
    """

    name: str
    space: SearchSpace
    mains: tuple[Floats, ...]
    joints: tuple[Joint, ...] = ()
    hazards: tuple[Cause, ...] = ()
    recipes: tuple[Codes, ...] = ()
    good: tuple[int, ...] = ()
    memory: tuple[Floats, ...] = ()
    together: Together | None = None
    default_peak: float = 0.5
    noise: float | None = None

    @functools.cached_property
    def values(self) -> list[list[str]]:
        """Values of each parameter."""
        return [list(p.choices) for p in self.space.parameters]

    @functools.cached_property
    def sizes(self) -> list[int]:
        """How many values each parameter has."""
        return [len(v) for v in self.values]

    @functools.cached_property
    def defaults(self) -> Codes:
        """The set that changes nothing."""
        pairs = zip(self.values, self.space.parameters, strict=True)
        return np.array([v.index(p.default_choice) for v, p in pairs], dtype=np.int64)

    @functools.cached_property
    def needs(self) -> list[dict[int, NDArray[np.bool_]]]:
        """Of each parameter: others, and under which of their codes it acts."""
        at = {p.name: i for i, p in enumerate(self.space.parameters)}
        return [
            {
                at[n]: np.array([v in wanted for v in self.values[at[n]]])
                for n, wanted in (p.condition or {}).items()
            }
            for p in self.space.parameters
        ]

    def settle(self, codes: Codes) -> Codes:
        """Sets as they act, shape (sets, parameters): what is switched off has its default."""
        settled = codes.copy()
        for i, needs in enumerate(self.needs):
            for other, fits in needs.items():
                settled[~fits[settled[:, other]], i] = self.defaults[i]
        return settled

    def effects(self, codes: Codes) -> Floats:
        """Log ratios of settled sets, shape (sets,), failures aside."""
        total = np.zeros(len(codes))
        for i in self._not_zero:
            total += self.mains[i][codes[:, i]]
        for joint in self.joints:
            total += joint.table[codes[:, joint.one], codes[:, joint.other]]
        if self.together is not None:
            total += self.together.times[tuple(codes[:, self.together.factors].T)]
        return total

    @functools.cached_property
    def _not_zero(self) -> list[int]:
        return [i for i, table in enumerate(self.mains) if table.any()]

    def fails(self, codes: Codes) -> NDArray[np.bool_]:
        """Which settled sets fail, shape (sets,)."""
        return self.hits_a_hazard(codes) | (self.room_taken(codes) > 1.0)

    def hits_a_hazard(self, codes: Codes) -> NDArray[np.bool_]:
        """Which settled sets hold what fails, memory aside, shape (sets,)."""
        failed = np.zeros(len(codes), dtype=bool)
        for cause in self.hazards:
            failed |= np.all([codes[:, i] == code for i, code in cause], axis=0)
        return failed

    def room_taken(self, codes: Codes) -> Floats:
        """Memory of settled sets, in units of the room that the default leaves, shape (sets,)."""
        total = np.zeros(len(codes))
        for i, table in enumerate(self.memory):
            total += table[codes[:, i]]
        if self.together is not None:
            total += self.together.memory[tuple(codes[:, self.together.factors].T)]
        return total

    @property
    def has_memory(self) -> bool:
        """Whether sets differ in memory."""
        return bool(self.memory) or self.together is not None

    def peaks(self, codes: Codes) -> Floats:
        """Memory of settled sets, as a share of what there is, shape (sets,); above 1 they fail."""
        return np.maximum(
            self.default_peak + (1 - self.default_peak) * self.room_taken(codes), LEAST_PEAK
        )

    def gains(self, codes: Codes) -> Floats:
        """Worth of sets, at most 0: whoever tried a failing or slower set keeps the default."""
        settled = self.settle(codes)
        return np.where(self.fails(settled), 0.0, np.minimum(self.effects(settled), 0.0))

    def measure(
        self, codes: Codes, trial: int, *, noise: float, seed: int
    ) -> tuple[float | None, float]:
        """A measured log ratio and its standard error; None for a set that fails.

        Args:
            codes: The set, settled, shape (parameters,).
            trial: Its number: the noise of a trial is the same whoever searches.
            noise: Mean standard error.
            seed: Of the noise.
        """
        rng = np.random.default_rng([seed, trial, 1])
        sd = noise * float(np.exp(WIDTHS_SPREAD * rng.standard_normal() - WIDTHS_SPREAD**2 / 2))
        error = sd * float(rng.standard_normal())
        if self.fails(codes[None])[0]:
            return None, sd
        return float(self.effects(codes[None])[0]) + error, sd

    def random(self, rng: np.random.Generator, count: int) -> Codes:
        """Uniform random sets, settled, shape (count, parameters)."""
        return self.settle(np.stack([rng.integers(0, size, count) for size in self.sizes], axis=1))

    def as_set(self, codes: Codes) -> FlagSet:
        """A set by its names and values."""
        chosen: dict[str, str] = {
            p.name: v[c] for p, v, c in zip(self.space.parameters, self.values, codes, strict=True)
        }

        def choose(parameter: Parameter) -> str:
            return chosen[parameter.name]

        return self.space.suggest(choose)

    def as_codes(self, settings: FlagSet) -> Codes:
        """A set by its codes.

        Raises:
            ValueError: If it is not of the space.
        """
        located = self.space.locate(settings)
        if located is None:
            raise ValueError(f"a set must be of the space but got {settings}")
        codes = self.defaults.copy()
        for i, parameter in enumerate(self.space.parameters):
            if parameter.name in located:
                codes[i] = self.values[i].index(located[parameter.name])
        return codes

    @functools.cached_property
    def acting(self) -> list[int]:
        """Parameters that act, let another one act, or switch such a one."""
        found = {i for i, table in enumerate(self.mains) if table.any()}
        found |= {i for joint in self.joints for i in (joint.one, joint.other)}
        found |= {i for i, table in enumerate(self.memory) if table.any()}
        found |= set(self.together.factors if self.together is not None else ())
        waiting = list(found)
        while waiting:
            fresh = set(self.needs[waiting.pop()]) - found
            found |= fresh
            waiting += fresh
        return sorted(found)

    def only(self, kept: Sequence[int]) -> Problem:
        """The space of some parameters alone, the others at their defaults, without what fails."""
        at = {i: place for place, i in enumerate(kept)}
        joints = tuple(
            Joint(at[j.one], at[j.other], j.table)
            for j in self.joints
            if j.one in at and j.other in at
        )
        return Problem(
            self.name,
            SearchSpace(tuple(self.space.parameters[i] for i in kept)),
            tuple(self.mains[i] for i in kept),
            joints,
            together=self._together_in(at),
            recipes=tuple(r[list(kept)] for r in self.recipes),
            good=tuple(at[i] for i in self.good if i in at),
        )

    def _together_in(self, at: Mapping[int, int]) -> Together | None:
        """`together` by new indices; all its parameters act, so none is missing."""
        if self.together is None:
            return None
        return dataclasses.replace(
            self.together, factors=tuple(at[i] for i in self.together.factors)
        )

    # ------------------------------------------------------------------ the best set

    @property
    def optimum(self) -> float:
        """Log ratio of the best set that runs."""
        return self._best[0]

    @property
    def best(self) -> Codes:
        """The best set that runs, all that does nothing at its default."""
        return self._best[1]

    @functools.cached_property
    def _best(self) -> tuple[float, Codes]:
        """Joins parts one by one; keeps the sets that none beats in time and memory."""
        front = [(0.0, 0.0, self.defaults)]
        for part in self._parts():
            options = self._best_of(part)
            joined = []
            for value, memory, codes in front:
                for more, needed, own in options:
                    whole = codes.copy()
                    whole[part] = own
                    joined.append((value + more, memory + needed, whole))
            front = _undominated(joined)
        value, _, codes = next(f for f in front if f[1] <= 1.0)
        return value, codes

    def _parts(self) -> Iterator[list[int]]:
        """Parameters that matter, in parts that do not touch each other: times add up over parts.

        A hazard joins those of it that matter; one that holds another is avoided by that one's
        default, which costs nothing.
        """
        matters = set(self.acting)
        part_of = {i: {i} for i in matters}
        links = [(joint.one, joint.other) for joint in self.joints]
        links += [(i, other) for i in matters for other in self.needs[i]]
        links += itertools.pairwise(self.together.factors if self.together is not None else ())
        for cause in self.hazards:
            inside = [i for i, _ in cause]
            if matters.issuperset(inside):
                links += list(itertools.pairwise(inside))
        for i, j in links:
            if part_of[i] is not part_of[j]:
                part_of[i] |= part_of[j]
                for k in part_of[j]:
                    part_of[k] = part_of[i]
        for part in {id(p): p for p in part_of.values()}.values():
            yield sorted(part)

    @property
    def combinations(self) -> int:
        """Combinations of the most settings that hang together."""
        return max((math.prod(self.sizes[i] for i in part) for part in self._parts()), default=1)

    def _best_of(self, part: Sequence[int]) -> list[Option]:
        """The best values of a part with less and less memory, all else at its default."""
        sizes = [self.sizes[i] for i in part]
        if math.prod(sizes) > MOST_COMBINATIONS:
            raise ValueError(
                f"{self.name}: too many settings hang together: {math.prod(sizes)} combinations"
            )
        rows = np.tile(self.defaults, (math.prod(sizes), 1))
        rows[:, part] = np.indices(sizes).reshape(len(part), -1).T
        rows = self.settle(rows)
        values = np.where(self.hits_a_hazard(rows), np.inf, self.effects(rows))
        memory = self.room_taken(rows)
        order = np.lexsort((memory, values))
        least = np.concatenate([[np.inf], np.minimum.accumulate(memory[order])[:-1]])
        kept = order[(memory[order] < least) & np.isfinite(values[order])]
        return [(float(values[at]), float(memory[at]), rows[at, part]) for at in kept]


Option = tuple[float, float, Codes]
"""Value, memory and codes."""


def _undominated(options: Sequence[Option]) -> list[Option]:
    """Those that none beats in value and memory, best value first."""
    found: list[Option] = []
    for option in sorted(options, key=lambda o: o[:2]):
        if not found or option[1] < found[-1][1]:
            found.append(option)
    return found

"""Compilers of known programs, and random ones, for screens to be held against every point."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from autotune.compiler.interaction import PAIRS_ALONE, InteractionSearch
from autotune.model.flags import FlagSet

Domains = Mapping[str, Sequence[str]]


def points(domains: Domains) -> Iterator[FlagSet]:
    """Every point of a space, the default first."""
    for values in itertools.product(*([None, *of] for of in domains.values())):
        yield FlagSet({n: v for n, v in zip(domains, values, strict=True) if v is not None})


def lost_programs(
    domains: Domains, no_ops: set[str], program: Callable[[FlagSet], str | None]
) -> set[str]:
    """Programs lost without the no_ops settings; what does not compile counts as none."""
    kept = {program(p) for p in points({n: v for n, v in domains.items() if n not in no_ops})}
    return {
        found for p in points(domains) if (found := program(p)) is not None and found not in kept
    }


@dataclass(frozen=True)
class Effect:
    """Part of a program, there if some settings have some values and no others are set."""

    needs: Mapping[str, str]
    unless: frozenset[str] = frozenset()

    def shows(self, settings: Mapping[str, str]) -> bool:
        """Whether a set has it."""
        return all(settings.get(n) == v for n, v in self.needs.items()) and not any(
            n in settings for n in self.unless
        )


@dataclass
class KnownCompiler:
    """A compiler whose program names its set's effects; one of its conflicts does not compile."""

    domains: Domains
    effects: Sequence[Effect]
    conflicts: Sequence[Effect] = ()
    compiled: dict[FlagSet, str | None] = field(default_factory=dict)

    def program(self, settings: FlagSet) -> str | None:
        """The program of a set; each distinct one is counted in `compiled`."""
        if settings not in self.compiled:
            shown = str([i for i, e in enumerate(self.effects) if e.shows(settings)])
            self.compiled[settings] = (
                None if any(c.shows(settings) for c in self.conflicts) else shown
            )
        return self.compiled[settings]

    def programs(self, sets: Sequence[FlagSet]) -> list[str | None]:
        """The programs of sets."""
        return [self.program(settings) for settings in sets]

    def screened(
        self,
        seed: int = 0,
        chains: Mapping[str, Sequence[FlagSet]] | None = None,
        pairs_alone: int = PAIRS_ALONE,
    ) -> tuple[set[str], InteractionSearch]:
        """Settings called no-ops, alone and then with others; see `InteractionSearch`."""
        plain = self.program(FlagSet())
        alone = {
            n: {v: self.program(FlagSet({n: v})) for v in values}
            for n, values in self.domains.items()
        }
        no_ops = {n: v for n, v in self.domains.items() if set(alone[n].values()) == {plain}}
        active = {n: v for n, v in self.domains.items() if n not in no_ops}
        search = InteractionSearch(
            self.programs, no_ops, active, seed=seed, pairs_alone=pairs_alone
        )
        list(search.run(chains or {}))
        return (set(search.no_ops) if search.is_settled else set()), search

    def lost(self, no_ops: set[str]) -> set[str]:
        """Programs of the whole space that the space without the no_ops ones lacks."""
        return lost_programs(self.domains, no_ops, self.program)


def random_compiler(
    draw: random.Random, *, needs: int, unless: int = 0, conflicts: int = 0, most_values: int = 3
) -> KnownCompiler:
    """Four to seven settings, and one to three effects.

    Args:
        draw: Seeded.
        needs: Settings that an effect needs, at most.
        unless: Settings of which each switches an effect off, exactly.
        conflicts: Pairs that do not compile together, at most.
        most_values: Values of a setting beside its default, at most.
    """
    names = [f"xla_{i}" for i in range(draw.randint(4, 7))]
    domains = {
        n: [str(v) for v in range(draw.choice((1, 1, draw.randint(1, most_values))))] for n in names
    }

    def effect(count: int, masks: int) -> Effect:
        chosen = draw.sample(names, min(len(names), count + masks))
        return Effect(
            {n: draw.choice(domains[n]) for n in chosen[:count]}, frozenset(chosen[count:])
        )

    effects = [effect(draw.randint(1, needs), unless) for _ in range(draw.randint(1, 3))]
    return KnownCompiler(
        domains, effects, [effect(2, 0) for _ in range(draw.randint(0, conflicts))]
    )

"""Which settings act in company, against spaces small enough to try every point of."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence

import pytest

from autotune.compiler.company import Company, TimeUp, look_in_company
from autotune.model.flags import FlagSet


@dataclasses.dataclass(frozen=True)
class Effect:
    """Something that a program shows where some settings have some values and none of others is set."""

    needs: Mapping[str, str]
    unless: frozenset[str] = frozenset()

    def shows(self, settings: Mapping[str, str]) -> bool:
        return all(settings.get(n) == v for n, v in self.needs.items()) and not any(n in settings for n in self.unless)


@dataclasses.dataclass
class Machine:
    """A compiler whose programs are known beforehand: each shows the effects of its set."""

    domains: Mapping[str, Sequence[str]]
    effects: Sequence[Effect]
    conflicts: Sequence[Effect] = ()
    compiled: dict[FlagSet, str | None] = dataclasses.field(default_factory=dict)

    def program(self, settings: FlagSet) -> str | None:
        if settings not in self.compiled:
            shown = str([i for i, e in enumerate(self.effects) if e.shows(settings)])
            self.compiled[settings] = None if any(c.shows(settings) for c in self.conflicts) else shown
        return self.compiled[settings]

    def points(self, names: Sequence[str]) -> Iterator[FlagSet]:
        for values in itertools.product(*([None, *self.domains[n]] for n in names)):
            yield FlagSet({n: v for n, v in zip(names, values, strict=True) if v is not None})

    def screened(
        self, seed: int = 0, chains: Mapping[str, Sequence[FlagSet]] | None = None
    ) -> tuple[set[str], Company]:
        """The settings that are called dead, as a screen calls them: alone, then in company."""
        plain = self.program(FlagSet())
        alone = {n: {v: self.program(FlagSet({n: v})) for v in values} for n, values in self.domains.items()}
        dead = {n: [v for v in of if of[v] is not None] for n, of in alone.items() if set(of.values()) <= {plain, None}}
        dead = {n: v for n, v in dead.items() if v}
        live = {n: [v for v in of if of[v] is not None] for n, of in alone.items() if n not in dead}
        failing = [FlagSet({n: v}) for n, of in alone.items() for v in of if of[v] is None]
        found = look_in_company(self.program, dead, live, failing=failing, chains=chains, seed=seed)
        return set(dead) - set(found.awake) - set(found.unsettled), found

    def lost(self, dead: set[str]) -> set[str | None]:
        """Programs of the whole space that the space without the dead ones lacks."""
        kept = {self.program(p) for p in self.points([n for n in self.domains if n not in dead])}
        return {self.program(p) for p in self.points(list(self.domains))} - kept - {None}


def names(count: int) -> list[str]:
    return [f"xla_{i}" for i in range(count)]


def random_machine(draw: random.Random, *, needs: int, unless: int, conflicts: int = 0) -> Machine:
    """Six to eight settings with one to three values, and effects of up to so many settings each."""
    domains = {n: [str(v) for v in range(draw.choice((1, 1, 1, 2, 3)))] for n in names(draw.randint(4, 7))}

    def effect(most_needs: int, most_unless: int, least_needs: int = 1) -> Effect:
        chosen = draw.sample(list(domains), min(len(domains), draw.randint(least_needs, most_needs) + most_unless))
        count = len(chosen) - most_unless
        masks = draw.randint(0, most_unless)
        return Effect({n: draw.choice(domains[n]) for n in chosen[:count]}, frozenset(chosen[count : count + masks]))

    effects = [effect(needs, unless) for _ in range(draw.randint(1, 3))]
    return Machine(domains, effects, [effect(2, 0, 2) for _ in range(draw.randint(0, conflicts))])


FEW, MANY = range(120), range(120, 4000)


@pytest.mark.parametrize("seeds", [FEW, pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
@pytest.mark.parametrize("conflicts", [0, 2], ids=["", "that fail"])
def test_no_program_is_lost_whatever_pairs_do(seeds: range, conflicts: int) -> None:
    for seed in seeds:
        machine = random_machine(random.Random(seed), needs=2, unless=0, conflicts=conflicts)
        dead, _ = machine.screened(seed)
        assert not machine.lost(dead), (seed, machine.effects, machine.conflicts)


@pytest.mark.parametrize("seeds", [FEW, pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_no_program_is_lost_where_a_third_setting_switches_a_pair_off(seeds: range) -> None:
    for seed in seeds:
        draw = random.Random(seed)
        domains = {n: ["1"] for n in names(draw.randint(4, 9))}
        effects = []
        for _ in range(draw.randint(1, 3)):
            a, b, mask = draw.sample(list(domains), 3)
            effects.append(Effect({a: "1"} | ({b: "1"} if draw.random() < 0.8 else {}), frozenset({mask})))
        machine = Machine(domains, effects)
        dead, _ = machine.screened(seed)
        assert not machine.lost(dead), (seed, effects)


def test_two_that_act_only_together_name_each_other_among_many_that_are_dead() -> None:
    domains = {n: ["1", "2"] for n in names(24)}
    machine = Machine(domains, [Effect({"xla_3": "2", "xla_19": "1"})])
    dead, found = machine.screened()
    assert found.awake == {"xla_3": ("xla_19",), "xla_19": ("xla_3",)}
    assert dead == set(domains) - {"xla_3", "xla_19"}


def test_setting_behind_a_chain_of_conditions_of_any_length_is_found_with_its_chain() -> None:
    domains = {n: ["1"] for n in names(12)}
    chain = {f"xla_{i}": "1" for i in range(5)}
    masks = frozenset(f"xla_{i}" for i in range(6, 12))  # nothing else may be set
    machine = Machine(domains, [Effect({**chain, "xla_5": "1"}, masks)])
    without, _ = machine.screened()
    with_chain, found = machine.screened(chains={"xla_5": [FlagSet(chain)]})
    assert "xla_5" in without
    assert with_chain <= set(masks)
    assert set(found.awake["xla_5"]) == set(chain)
    assert {"xla_5", *chain} <= set(found.awake)


def test_setting_that_mends_one_that_fails_alone_is_not_dead() -> None:
    machine = Machine(
        {n: ["1"] for n in names(6)}, [Effect({"xla_0": "1"})], [Effect({"xla_0": "1"}, frozenset({"xla_4"}))]
    )
    dead, found = machine.screened()
    assert set(found.awake) == {"xla_4"}
    assert not machine.lost(dead)


def test_setting_that_only_undoes_a_live_one_is_not_dead() -> None:
    machine = Machine(
        {n: ["1"] for n in names(5)}, [Effect({"xla_0": "1"}, frozenset({"xla_2"})), Effect({"xla_1": "1"})]
    )
    dead, found = machine.screened()
    assert found.awake == {"xla_2": ("xla_0",)} or found.awake == {"xla_2": ("xla_0", "xla_1")}
    assert dead == {"xla_3", "xla_4"}


@dataclasses.dataclass
class Clock:
    """Ends the time after so many compilations."""

    machine: Machine
    allowed: int
    is_up: bool = False

    def program(self, settings: FlagSet) -> str | None:
        self.is_up = settings not in self.machine.compiled and len(self.machine.compiled) == self.allowed
        if self.is_up:
            raise TimeUp
        return self.machine.program(settings)


def test_when_the_time_is_up_nothing_unsettled_is_called_dead() -> None:
    for allowed in range(40):
        machine = Machine({n: ["1"] for n in names(8)}, [Effect({"xla_0": "1", "xla_1": "1"}), Effect({"xla_2": "1"})])
        clock = Clock(machine, allowed)
        dead = {n: ["1"] for n in names(8) if n != "xla_2"}
        found = look_in_company(clock.program, dead, {"xla_2": ["1"]})
        called_dead = set(dead) - set(found.awake) - set(found.unsettled)
        assert not {"xla_0", "xla_1"} & called_dead, allowed
        assert bool(found.unsettled) == clock.is_up, allowed


def test_equal_seeds_compile_the_same_sets_and_progress_ends_at_what_was_planned() -> None:
    domains = {n: ["1", "2"] for n in names(10)}
    runs = []
    for _ in range(2):
        machine = Machine(domains, [Effect({"xla_0": "1"}), Effect({"xla_1": "1", "xla_2": "2"})])
        machine.screened(seed=3)
        runs.append(list(machine.compiled))
    assert runs[0] == runs[1]
    seen: list[tuple[int, int]] = []
    dead = {n: domains[n] for n in names(10)[3:]}
    look_in_company(machine.program, dead, {}, progress=lambda done, of: seen.append((done, of)))
    assert [done for done, _ in seen] == list(range(1, len(seen) + 1))
    assert seen[-1] == (len(seen), len(seen))


@pytest.mark.parametrize(("dead", "live", "most"), [(30, 0, 60), (30, 10, 200)])
def test_what_many_settings_cost(dead: int, live: int, most: int) -> None:
    domains = {n: ["1"] for n in names(dead + live)}
    machine = Machine(domains, [Effect({n: "1"}) for n in names(live)])
    found, _ = machine.screened()
    assert len(found) == dead
    assert len(machine.compiled) - 1 - len(domains) <= most, len(machine.compiled) - 1 - len(domains)

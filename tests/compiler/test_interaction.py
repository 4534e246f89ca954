"""Which settings act only with others, against spaces small enough to try every point of."""

from __future__ import annotations

import random

import pytest

from autotune.compiler.interaction import InteractionSearch
from autotune.model.flags import FlagSet
from harness.known_programs import Effect, KnownCompiler, random_compiler


def names(count: int) -> list[str]:
    return [f"xla_{i}" for i in range(count)]


SEVERAL = pytest.mark.parametrize(
    "seeds", [range(120), pytest.param(range(120, 4000), marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)


@SEVERAL
@pytest.mark.parametrize("conflicts", [0, 2], ids=["", "that fail"])
def test_no_program_is_lost_whatever_pairs_do(seeds: range, conflicts: int) -> None:
    for seed in seeds:
        machine = random_compiler(random.Random(seed), needs=2, conflicts=conflicts)
        no_ops, _ = machine.screened(seed, pairs_alone=0)
        assert not machine.lost(no_ops), (seed, machine.effects, machine.conflicts)


@SEVERAL
def test_no_program_is_lost_where_a_third_setting_switches_a_pair_off(seeds: range) -> None:
    for seed in seeds:
        draw = random.Random(seed)
        domains = {n: ["1"] for n in names(draw.randint(4, 9))}
        effects = []
        for _ in range(draw.randint(1, 3)):
            a, b, mask = draw.sample(list(domains), 3)
            effects.append(Effect({a: "1"} | ({b: "1"} if draw.random() < 0.8 else {}), frozenset({mask})))
        machine = KnownCompiler(domains, effects)
        no_ops, _ = machine.screened(seed, pairs_alone=0)
        assert not machine.lost(no_ops), (seed, effects)


def test_two_that_act_only_together_are_found_whatever_is_dead_or_switches_them_off() -> None:
    masks = frozenset(names(10)[2:])
    machine = KnownCompiler({n: ["1"] for n in names(10)}, [Effect({"xla_0": "1", "xla_1": "1"}, masks)])
    _, found = machine.screened()
    assert {"xla_0", "xla_1"} <= set(found.found_active)
    domains = {n: ["1", "2"] for n in names(24)}
    machine = KnownCompiler(domains, [Effect({"xla_3": "2", "xla_19": "1"})])
    no_ops, found = machine.screened()
    assert found.found_active == {"xla_3": ("xla_19",), "xla_19": ("xla_3",)}
    assert no_ops == set(domains) - {"xla_3", "xla_19"}


def test_setting_behind_a_chain_of_conditions_of_any_length_is_found_with_its_chain() -> None:
    domains = {n: ["1"] for n in names(12)}
    chain = {f"xla_{i}": "1" for i in range(5)}
    masks = frozenset(f"xla_{i}" for i in range(6, 12))  # nothing else may be set
    machine = KnownCompiler(domains, [Effect({**chain, "xla_5": "1"}, masks)])
    without, _ = machine.screened()
    with_chain, found = machine.screened(chains={"xla_5": [FlagSet(chain)]})
    assert "xla_5" in without
    assert with_chain <= set(masks)
    assert set(found.found_active["xla_5"]) == set(chain)
    assert {"xla_5", *chain} <= set(found.found_active)


def test_setting_that_mends_or_undoes_another_is_not_dead() -> None:
    machine = KnownCompiler(
        {n: ["1"] for n in names(6)}, [Effect({"xla_0": "1"})], [Effect({"xla_0": "1"}, frozenset({"xla_4"}))]
    )
    no_ops, found = machine.screened()
    assert set(found.found_active) == {"xla_4"}
    assert not machine.lost(no_ops)
    machine = KnownCompiler(
        {n: ["1"] for n in names(5)}, [Effect({"xla_0": "1"}, frozenset({"xla_2"})), Effect({"xla_1": "1"})]
    )
    no_ops, found = machine.screened()
    assert found.found_active == {"xla_2": ("xla_0",)} or found.found_active == {"xla_2": ("xla_0", "xla_1")}
    assert no_ops == {"xla_3", "xla_4"}


def test_equal_seeds_compile_the_same_sets_and_progress_only_counts_what_is_done() -> None:
    domains = {n: ["1", "2"] for n in names(10)}
    runs = []
    for _ in range(2):
        machine = KnownCompiler(domains, [Effect({"xla_0": "1"}), Effect({"xla_1": "1", "xla_2": "2"})])
        machine.screened(seed=3)
        runs.append(list(machine.compiled))
    assert runs[0] == runs[1]
    no_ops = {n: domains[n] for n in names(10)[3:]}
    seen = list(InteractionSearch(machine.programs, no_ops, {}).run({}))
    assert seen == list(range(1, len(seen) + 1))

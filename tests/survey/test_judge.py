"""The judge of a cell, against a compiler whose rules are known: every verdict is held to compiling each value."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from autotune.compiler.company import TimeUp
from autotune.compiler.program import CompileResult
from autotune.model.errors import LaunchError
from autotune.model.flags import FlagSet
from autotune.model.measurement import Failure, FailureKind
from autotune.settings.atlas import AtlasRow, AtlasVerdict
from autotune.settings.catalog import load_catalog
from autotune.settings.parameters import Parameter, SearchSpace
from autotune.survey.judge import Judge
from tests.compiler.rules import BUFFER, COMBINE, DECOMPOSE, GRAPHS, OVERLAP, P2P, SLOP, LosingCount, Rules, screen

CELL = {"jaxlib": "1.0", "workload": "w", "target": "h100-sxm", "gpus": 8}


def parameter(name: str, *values: str, condition: Mapping[str, tuple[str, ...]] | None = None) -> Parameter:
    return Parameter(name=name, choices=("(default)", *values), condition=condition)


SPACE = SearchSpace(
    (
        parameter(COMBINE, "11", "13"),
        parameter(BUFFER, "true"),
        parameter(SLOP, "17", "70"),
        parameter(OVERLAP, "2", condition={BUFFER: ("true",)}),
        parameter(P2P, "true"),
        parameter(DECOMPOSE, "1024"),
        parameter(GRAPHS, "FUSION,CUSTOM_CALL"),
        parameter("jax_optimization_level", "O1"),
    )
)


def judged(rules: Rules, acting: set[str], **more: Any) -> dict[tuple[str, str], AtlasRow]:
    judge = Judge(screen(rules), SPACE, acts=acting.__contains__, **more)
    return {(r.name, r.value): r for r in judge.settings(CELL)}


ALL = {p.name for p in SPACE.parameters}


@pytest.mark.parametrize("acting", [set(), ALL, {COMBINE}, {SLOP, P2P}], ids=["none", "all", "one", "wrong"])
def test_verdicts_do_not_hang_on_the_guess(acting: set[str]) -> None:
    found = judged(Rules(), acting)
    assert {k: r.verdict for k, r in found.items()} == {
        (COMBINE, "11"): AtlasVerdict.CHANGES,
        (COMBINE, "13"): AtlasVerdict.FAILS,
        (BUFFER, "true"): AtlasVerdict.CHANGES,
        (SLOP, "17"): AtlasVerdict.SAME,
        (SLOP, "70"): AtlasVerdict.SAME,
        (OVERLAP, "2"): AtlasVerdict.CHANGES,  # only with BUFFER, as its condition says
        (P2P, "true"): AtlasVerdict.CHANGES,  # only with DECOMPOSE
        (DECOMPOSE, "1024"): AtlasVerdict.CHANGES,
        (GRAPHS, "FUSION,CUSTOM_CALL"): AtlasVerdict.CHANGES,  # only with cuBLAS
        ("jax_optimization_level", "O1"): AtlasVerdict.SAME,
    }
    assert BUFFER in found[OVERLAP, "2"].needs
    assert DECOMPOSE in found[P2P, "true"].needs
    assert "with cuBLAS GEMMs" in found[GRAPHS, "FUSION,CUSTOM_CALL"].needs
    assert found[COMBINE, "11"].needs == ()
    assert found[SLOP, "17"].tried == "together"
    assert "thirteen is not allowed" in found[COMBINE, "13"].message
    assert found[COMBINE, "11"].changes


class Drawn(Rules):
    """Programs by effects that are drawn: each of one value, or of two that act only together."""

    def __init__(self, values: Mapping[str, Sequence[str]], draw: random.Random, most: int) -> None:
        super().__init__()
        self.effects = []
        for _ in range(draw.randint(0, 4)):
            names = draw.sample(sorted(values), draw.randint(1, most))
            self.effects.append({n: draw.choice(list(values[n])) for n in names})

    def name(self, settings: Mapping[str, str]) -> str:
        acting = [str(e) for e in self.effects if all(settings.get(n) == v for n, v in e.items())]
        return "; ".join(acting) or "plain"


NAMES = sorted(n for n, s in load_catalog().items() if s.stage == "program" and s.platform == "cuda")[:12]


@pytest.mark.parametrize("is_thorough", [False, True])
def test_no_value_that_acts_is_called_the_same(is_thorough: bool) -> None:
    for seed in range(8 if is_thorough else 30):
        draw = random.Random(seed)
        values = {n: ["1", "2", "3"][: draw.randint(1, 3)] for n in NAMES}
        rules = Drawn(values, draw, most=2 if is_thorough else 1)
        space = SearchSpace(tuple(parameter(n, *v) for n, v in values.items()))
        guessed = set(draw.sample(NAMES, draw.randint(0, len(NAMES))))
        judge = Judge(screen(rules), space, acts=guessed.__contains__, is_thorough=is_thorough)
        found = {(r.name, r.value): r.verdict for r in judge.settings(CELL)}
        changing = {n for (n, _), v in found.items() if v is AtlasVerdict.CHANGES}
        assert changing == {n for e in rules.effects for n in e}, (seed, rules.effects)
        for effect in rules.effects:
            if len(effect) == 1:
                assert found[next(iter(effect.items()))] is AtlasVerdict.CHANGES, (seed, effect)


class Endless(Rules):
    """Every set that holds one value takes the compiler for ever; some others change the program."""

    def __init__(self, endless: FlagSet, acting: Sequence[str] = ()) -> None:
        super().__init__()
        self.endless = endless
        self.acting = acting

    def name(self, settings: Mapping[str, str]) -> str:
        return str([settings.get(n) for n in self.acting])

    def _result(self, settings: FlagSet) -> CompileResult:
        if settings.merge(self.endless) != settings:
            return super()._result(settings)
        failure = Failure(kind=FailureKind.COMPILE_ERROR, message="did not finish", phase="compile", signal="SIGXCPU")
        return CompileResult(settings=settings, failure=failure)


@pytest.mark.parametrize("value", ["1", "2", "3"])
@pytest.mark.parametrize("name", [NAMES[0], NAMES[5], NAMES[-1]])
def test_what_makes_every_set_fail_is_found_before_it_is_in_many(name: str, value: str) -> None:
    """On 0.12.0.1 one setting took each of some forty sets to the limit of 88 s of processor time."""
    endless = FlagSet({name: value})
    acting = [n for n in NAMES[1::2] if n != name]
    rules = Endless(endless, acting)
    judge = Judge(screen(rules), SearchSpace(tuple(parameter(n, "1", "2", "3") for n in NAMES)), acts=lambda n: False)
    found = {(r.name, r.value): r for r in judge.settings(CELL)}
    assert {k for k, r in found.items() if r.verdict is AtlasVerdict.FAILS} == {(name, value)}
    assert {n for (n, _), r in found.items() if r.verdict is AtlasVerdict.CHANGES} == set(acting)
    assert found[name, value].message == "compile_error: did not finish"
    lost = [s for s in rules.compiled if s.merge(endless) == s]
    assert len(lost) <= 2 * math.ceil(math.log2(len(NAMES)))


def test_two_that_fail_in_each_other_s_company_are_judged_alone() -> None:
    one, other = NAMES[2], NAMES[9]
    rules = Endless(FlagSet({one: "1", other: "1"}))
    judge = Judge(screen(rules), SearchSpace(tuple(parameter(n, "1") for n in NAMES)), acts=lambda n: False)
    found = {r.name: r for r in judge.settings(CELL)}
    assert {r.verdict for n, r in found.items() if n not in (one, other)} == {AtlasVerdict.SAME}
    assert AtlasVerdict.FAILS not in {r.verdict for r in found.values()}  # each alone compiles


def test_judging_together_costs_a_fraction_of_compiling_each() -> None:
    values = {n: ["1", "2", "3"] for n in NAMES}
    rules = Drawn(values, random.Random(0), most=1)
    rules.effects = [{NAMES[3]: "2"}]
    space = SearchSpace(tuple(parameter(n, *v) for n, v in values.items()))
    judge = Judge(screen(rules), space, acts={NAMES[3]}.__contains__)
    judge.settings(CELL)
    assert judge.cell(CELL).compiled == len(set(rules.compiled)) < len(NAMES) * 3


def test_a_set_is_the_programs_of_what_acts_in_it() -> None:
    judge = Judge(screen(Rules()), SPACE, acts=ALL.__contains__)
    rows = judge.settings(CELL)
    dead = {SLOP}
    settings = {SLOP: "17", COMBINE: "11", "NCCL_PROTO": "LL"}
    published = FlagSet(settings)
    row = judge.recipe("published", published, published, dead, CELL)
    alone = next(r for r in rows if (r.name, r.value) == (COMBINE, "11"))
    assert (row.verdict, row.program) == (AtlasVerdict.CHANGES, alone.program)
    assert "NCCL_PROTO" in row.message
    silent = judge.recipe("silent", FlagSet({SLOP: "17"}), FlagSet({SLOP: "17"}), dead, CELL)
    assert silent.verdict is AtlasVerdict.SAME


def test_where_one_value_acts_alone_the_others_are_what_they_are_alone() -> None:
    values = {n: ["1", "2"] for n in NAMES}
    rules = Drawn(values, random.Random(0), most=1)
    rules.effects = [{NAMES[0]: "2"}, {NAMES[0]: "2", NAMES[1]: "1"}]
    space = SearchSpace(tuple(parameter(n, *v) for n, v in values.items()))
    rows = Judge(screen(rules), space, acts=lambda name: False).settings(CELL)
    found = {(r.name, r.value): r for r in rows}
    assert found[NAMES[0], "2"].verdict is AtlasVerdict.CHANGES
    assert (found[NAMES[0], "1"].verdict, found[NAMES[0], "1"].needs) == (AtlasVerdict.SAME, ())


def test_a_program_whose_loop_nobody_counted_is_not_predicted() -> None:
    combining = SearchSpace((dataclasses.replace(parameter(COMBINE, "9", "11"), group="combining"),))
    rows = Judge(screen(LosingCount()), combining, acts=lambda name: True).settings(CELL)
    assert {r.verdict for r in rows} == {AtlasVerdict.CHANGES}
    assert {r.value: r.predicted_change is not None for r in rows} == {"9": True, "11": False}


def test_kernels_beside_kernels_are_not_predicted() -> None:
    both = SearchSpace((parameter(COMBINE, "11"), parameter("xla_gpu_async_dot", "true")))

    class Beside(Rules):
        def name(self, settings: Mapping[str, str]) -> str:
            return " ".join(sorted(f"{n}={v}" for n, v in settings.items() if n in (COMBINE, "xla_gpu_async_dot")))

    space = SearchSpace(tuple(dataclasses.replace(p, group="scheduling") for p in both.parameters))
    rows = Judge(screen(Beside()), space, acts=lambda name: True).settings(CELL)
    assert {r.name: r.predicted_change is not None for r in rows} == {COMBINE: True, "xla_gpu_async_dot": False}


def test_what_is_not_compiled_in_time_is_no_verdict() -> None:
    rules = Rules()
    with pytest.raises(TimeUp):
        judged(rules, ALL, is_over=lambda: len(rules.compiled) > 3)
    with pytest.raises(TimeUp):
        judged(rules, set(), is_over=lambda: len(rules.compiled) > 3)


def test_nothing_is_judged_where_flags_do_not_act() -> None:
    class Deaf(Rules):
        def canaries(self, settings: FlagSet) -> list[str]:
            return []

        def name(self, settings: Mapping[str, str]) -> str:
            return "plain"

    with pytest.raises(LaunchError, match="canary"):
        judged(Deaf(), set())

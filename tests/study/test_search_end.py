"""When the search ends before its trials are used up: no other set is expected to gain what a proof can show."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from autotune.model.flags import FlagSet
from autotune.model.records import SearchEnd, TrialResult
from autotune.model.spec import parse_study
from autotune.settings.space import Parameter, SearchSpace
from autotune.study.proposer import Proposer
from harness.simulated import measured_as
from tests.runs import Run, replay_study, there

NAMES = tuple(f"xla_{i:02d}" for i in range(12))
SPACE = SearchSpace(tuple(Parameter(name=n, choices=("0", "1"), default="0") for n in NAMES))
QUIET = 0.002

Sets = Iterable[Iterable[str]]


def at_random(count: int, names: tuple[str, ...] = NAMES) -> list[tuple[str, ...]]:
    """Sets that change each setting with even odds."""
    draw = random.Random(1)
    return [tuple(n for n in names if draw.random() < 0.5) for _ in range(count)]


def after(sets: Sets, gain: Callable[[set[str]], float], *, sd: float = QUIET, **more: Any) -> Proposer:
    """A proposer that was told of sets, measured with an error."""
    search, draw = {"trials": 100, "sampler": more.pop("sampler", "additive")}, random.Random(2)
    study = parse_study({"name": "a", "workload": {"entry": "llama"}, "search": search})
    proposer = Proposer(study, SPACE, first=(), **more)
    for number, names in enumerate(sets, start=1):
        settings = FlagSet(dict.fromkeys(names, "1"))
        outcome = measured_as(-gain(set(names)) + draw.gauss(0, sd), sd)
        params = there(SPACE.locate(settings))
        proposer.tell(TrialResult(number=number, settings=settings, origin="a", params=params, **dict(outcome)))
    return proposer


def nothing(names: set[str]) -> float:
    return 0.0


def of_one(names: set[str]) -> float:
    return 0.04 * (NAMES[3] in names)


def of_a_pair(names: set[str]) -> float:
    return 0.04 * ({NAMES[3], NAMES[7]} <= names)


WITH_A_PAIR = [*at_random(15), (NAMES[3], NAMES[7])]


@pytest.mark.parametrize(
    ("sets", "gain", "best"),
    [
        (at_random(16), nothing, ()),
        (at_random(16), of_one, (NAMES[3],)),
        (WITH_A_PAIR, of_a_pair, (NAMES[3], NAMES[7])),
    ],
)
def test_what_is_settled_ends_the_search_with_the_best_expected_set(sets: Sets, gain: Any, best: Any) -> None:
    proposer = after(sets, gain)
    last = proposer.ask(17)
    assert proposer.why_none
    assert last is None or last.settings == FlagSet(dict.fromkeys(best, "1"))


@pytest.mark.parametrize(
    ("sets", "more"),
    [
        (at_random(11), {}),  # fewer than settings
        (at_random(16), {"sd": 0.05}),  # on a noisy machine anything may gain
        (at_random(16, NAMES[:-3]), {}),  # three were never changed: a late gain
        ([(n,) for n in (*NAMES, *NAMES)], {}),  # no two were changed together
        (at_random(16), {"sampler": "random"}),  # which expects nothing
    ],
)
def test_what_may_still_gain_is_tried(sets: Sets, more: dict[str, Any]) -> None:
    sets = list(sets)
    proposer = after(sets, nothing, **more)
    assert there(proposer.ask(len(sets) + 1)).settings not in [FlagSet(dict.fromkeys(s, "1")) for s in sets]


def test_a_gain_that_no_proof_can_show_is_not_searched_for() -> None:
    noisy = {"sd": 0.01}
    assert after(at_random(16), nothing, **noisy).ask(17) is not None
    assert after(at_random(16), nothing, provable=0.2, **noisy).ask(17) is None


def test_a_study_without_a_gain_ends_its_search_and_does_not_take_it_up_again(run_replay: Run) -> None:
    spec = replay_study(noise={"white_sd": 0.001})
    for _ in range(2):
        _, store, diary = run_replay(spec, trials=60, space=SPACE)
        (end,) = store.of(SearchEnd)
        assert end.is_exhausted
        assert end.trials == len(store.of(TrialResult)) < 60
    assert diary.started == []


@pytest.mark.parametrize(("gain", "best"), [(of_one, {NAMES[3]}), (of_a_pair, {NAMES[3], NAMES[7]})])
def test_what_gains_among_many_that_do_nothing_is_tried_before_the_search_ends(gain: Any, best: set[str]) -> None:
    tried: list[Iterable[str]] = []
    while (config := after(tried, gain).ask(len(tried) + 1)) is not None and len(tried) < 40:
        tried.append(tuple(config.settings))
    assert len(tried) < 40
    assert any(best <= set(names) for names in tried)

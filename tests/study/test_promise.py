"""What a study says that it can prove, against what its rule then proves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from autotune.model.records import (
    FloorResult,
    Need,
    Promise,
)
from autotune.results.promise_words import describe_promise
from autotune.results.report import render_markdown
from autotune.results.words import describe_begin
from autotune.stats import (
    smallest_gain,
    study_power,
)
from autotune.stats.estimates import SequentialPlan
from autotune.stats.noise_floor import (
    NoiseFloor,
    read_noise_floor,
)
from autotune.study.promise import (
    HIGHEST,
    _is_out_of_reach,
    promise_of,
)
from tests.runs import (
    Run,
    replay_study,
)

MOST = 20
WITHIN_SD, PAIRS = 0.004, 8


def floor_of(rng: np.random.Generator, process_sd: float) -> NoiseFloor:
    centres = process_sd * (rng.standard_normal((4, 1)) - rng.standard_normal())
    blocks = list(centres + WITHIN_SD * rng.standard_normal((4, PAIRS)))
    return read_noise_floor(blocks, plan=SequentialPlan(cap=40), start_s=20.0, pair_s=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("pair_sd", [0.007, 0.018])
def test_the_announced_power_is_held_on_average(pair_sd: float) -> None:
    """Floors see the spread through five processes only, so each announces another gain; nine in ten are then found.

    All is of one scale, the effect beyond the smallest one of interest over the spread of pairs, so the chance at each
    announced gain is read from one curve of the shipped rule.
    """
    process_sd = math.sqrt((pair_sd**2 - WITHIN_SD**2 / PAIRS) / 2)
    edge = math.log1p(-0.005)
    distances = np.asarray([0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0])
    curve = [study_power(1 - math.exp(edge - d * pair_sd), pair_sd, most=MOST).found for d in distances]
    unit = smallest_gain(0.01, most=MOST)
    assert unit is not None
    reach = (edge - math.log1p(-unit)) / 0.01  # beyond the edge, in standard deviations of a pair
    rng, found = np.random.default_rng(23), []
    for _ in range(400):
        floor = floor_of(rng, process_sd)
        announced_sd = math.hypot(math.sqrt(2) * floor.cautious_process_sd(), WITHIN_SD / math.sqrt(PAIRS))
        found.append(np.interp(reach * announced_sd / pair_sd, distances, curve, left=0.0))
    assert np.mean(found) >= 0.90
    plain = [np.interp(reach * f.process_sd / process_sd, distances, curve, left=0.0)
             for f in (floor_of(rng, process_sd) for _ in range(200))]  # fmt: skip
    assert np.mean(plain) < 0.85  # what would be announced without caution


def told(**floor: Any) -> Promise | None:
    study: dict[str, Any] = {"confirm": {"processes": floor.pop("processes", MOST)}}
    spec = replay_study(study=study)
    figures = {
        "process_sd": 0.004,
        "within_sd": 0.004,
        "degrees": 4,
        "spread": 0.0,
        "start_s": 20.0,
        "pair_s": 1.0,
        **floor,
    }
    made = read_noise_floor([[0.0] * 8, [0.001] * 8], plan=SequentialPlan(cap=40))
    noise = NoiseFloor(estimate=made.estimate, detectable=0.0, **figures)
    result = FloorResult.model_construct(floor=noise, comparison=_Turns())  # type: ignore[call-arg, arg-type]
    return promise_of(spec, result)


class _Turns:
    mode = "interleaved"
    reference_step_s = 1 / 6  # three steps in each block


@pytest.mark.slow
def test_a_promise_follows_from_the_floor() -> None:
    found = told()
    assert found is not None
    assert found.pairs == 4  # 0.4 % / (sqrt(2) 0.4 %) * sqrt(30 / 1) = 3.9
    assert found.pair_s == pytest.approx(1.5 * 20 + 4)
    assert found.pair_sd > math.hypot(math.sqrt(2) * 0.004, 0.004 / 2)  # cautiously
    assert found.smallest == smallest_gain(found.pair_sd, most=MOST)
    assert found.proof_s is not None
    assert [n.gain for n in found.needs] == [0.01, 0.02, 0.03]
    pairs = [n.pairs or 1000 for n in found.needs]
    assert pairs == sorted(pairs, reverse=True)
    for need in found.needs:
        if need.pairs is not None:
            assert study_power(need.gain, found.pair_sd, most=need.pairs).found >= 0.9
            assert (need.proof_s or 0) > 10 * found.pair_s


@pytest.mark.slow
def test_what_is_out_of_reach_is_never_found() -> None:
    """The short cut may leave nothing out that the rule would find."""
    reach = 0.0
    for _ in range(80):  # the smallest spread that is out of reach of 2 %
        reach += 1e-3
        if _is_out_of_reach(0.02, reach, min_effect=0.005):
            break
    assert 0.02 < reach < 0.08
    assert study_power(0.02, reach, most=HIGHEST).found < 0.9
    assert not _is_out_of_reach(0.02, 0.9 * reach, min_effect=0.005)
    assert _is_out_of_reach(0.004, 1e-6, min_effect=0.005)  # below the smallest effect of interest


def test_without_times_or_with_too_few_processes_nothing_is_promised() -> None:
    assert told(start_s=0.0) is None
    assert told(processes=3) is None


def promise(**more: Any) -> Promise:
    needs = (
        Need(gain=0.01, pairs=44, proof_s=1215.0),
        Need(gain=0.02, pairs=14, proof_s=430.0),
        Need(gain=0.03, pairs=8, proof_s=50.0),
    )
    given = {"smallest": 0.016, "proof_s": 545.0, "needs": needs, **more}
    return Promise(pair_sd=0.01, pairs=6, pair_s=20.0, most=20, highest=60, **given)


def test_the_sentence() -> None:
    assert describe_promise(promise()) == (
        "with up to 20 pairs of processes in each proof, a gain of 1.6 % is proven 9 times in 10 (up to 9 min of "
        "proofs); 1 % would need up to 44 pairs (20 min), 2 % 14 (7 min), 3 % 8 (50 s)"
    )


def test_a_hopeless_machine_is_called_so() -> None:
    none = tuple(Need(gain=g) for g in (0.01, 0.02, 0.03))
    said = describe_promise(promise(smallest=0.12, needs=none))
    assert said.startswith("gains below 12.0 % cannot be proven here: with up to 20 pairs")
    assert said.endswith("; 1 % would need more than 60 pairs, 2 % more than 60 pairs, 3 % more than 60 pairs")
    said = describe_promise(promise(smallest=None, proof_s=None, needs=none))
    assert said.startswith("no gain below 50 % can be proven here with up to 20 pairs")


@pytest.mark.slow
def test_what_is_shown_is_the_first_floor_s_promise(run_replay: Run) -> None:
    """Each lane has a floor of its own, and the study one promise."""
    noise = {"white_sd": 0.01, "process_sd": 0.004}
    spec = replay_study(start_s=20.0, step_s=0.1, noise=noise, study={"confirm": {"processes": 8, "finalists": 1}})
    _, store, _ = run_replay(spec, trials=1)
    floor = store.of(FloorResult)[0]
    made = floor.promise
    assert made is not None
    assert made == promise_of(spec, floor)
    assert made.most == 8
    assert floor.floor.start_s == 20.0
    assert floor.floor.pair_s == pytest.approx(2 * 3 * 0.1, rel=0.05)
    store.append(floor.model_copy(update={"by": "w1", "directory": "floor/w1", "promise": None}))
    assert describe_begin(store)[-1] == describe_promise(made)  # what `show` prints
    assert describe_promise(made) in render_markdown(store)

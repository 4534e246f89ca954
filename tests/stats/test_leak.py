"""Leaks against simulated memory: what is allocated once, comes and goes, or grows in both arms is none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from autotune.stats.long_run import Samples, find_leak
from tests.runs import there

MB = 1_000_000
BASE = 800 * MB
STEP_S = 0.05

Memory = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def samples(memory: Memory, rng: np.random.Generator, *, steps: int = 600, count: int = 24) -> Samples:
    """Memory after every so many steps, with the scatter that a living heap has."""
    at = np.linspace(steps / count, steps, count).round()
    values = BASE + memory(at, rng) + 0.3 * MB * rng.standard_normal(count)
    return [(int(n), int(max(v, 0))) for n, v in zip(at, values, strict=True)]


def still(at: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.zeros(len(at))


HONEST: dict[str, Memory] = {
    "still": still,
    "warm-up": lambda at, rng: 900 * MB * (1 - np.exp(-at / rng.uniform(5, 60))),
    "warm-up in a quarter": lambda at, rng: 2 * MB * np.minimum(at, at[-1] * rng.uniform(0.05, 0.4)),
    "enlarged once": lambda at, rng: rng.uniform(20, 500) * MB * (at > rng.uniform(0, at[-1])),
    "enlarged twice": lambda at, rng: sum(rng.uniform(20, 300) * MB * (at > rng.uniform(0, at[-1])) for _ in range(2)),
    "sawtooth": lambda at, rng: 0.5 * MB * ((at + rng.uniform(0, 150)) % rng.uniform(30, 150)),
    "walk": lambda at, rng: np.cumsum(rng.uniform(0.1, 8) * MB * rng.standard_normal(len(at))),
    "big batches": lambda at, rng: rng.uniform(0, 400 * MB, len(at)),
}


@pytest.mark.parametrize("cases", [100, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", HONEST)
def test_honest_memory_is_no_leak(kind: str, cases: int) -> None:
    rng = np.random.default_rng(5)
    seen = 0
    for _ in range(cases):
        base = samples(HONEST[kind], rng)
        looks = (find_leak(samples(HONEST[kind], rng), base, step_s=STEP_S) for _ in range(2))
        seen += all(found is not None for found in looks)  # a second process must show it, too
    assert seen <= 0.01 * cases


@pytest.mark.parametrize("per_step", [0.1 * MB, 50 * MB])
@pytest.mark.parametrize("under", ["still", "warm-up", "enlarged", "wobbling"])
def test_a_leak_is_found_under_what_is_less_than_a_third_of_it(per_step: float, under: str) -> None:
    rng = np.random.default_rng(6)
    size = per_step * 300 / 3  # the second half of 600 steps
    beside: dict[str, Memory] = {
        "still": still,
        "warm-up": HONEST["warm-up"],
        "enlarged": lambda at, rng: rng.uniform(0, size) * (at > rng.uniform(0, at[-1])),
        "wobbling": lambda at, rng: rng.uniform(0, size / 2, len(at)),
    }
    found = []
    for _ in range(100):
        leaking = samples(lambda at, r: beside[under](at, r) + per_step * at, rng)
        found.append(find_leak(leaking, samples(beside[under], rng), step_s=STEP_S))
    assert sum(f is not None for f in found) >= 0.99 * len(found)
    told = np.median([f[0] for f in found if f is not None])
    assert told == pytest.approx(per_step, rel=0.2)


def test_a_leak_is_what_the_reference_has_not_and_a_day_of_steps_shows() -> None:
    rng = np.random.default_rng(7)

    def leaking(at: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return 2 * MB * at

    assert find_leak(samples(leaking, rng), samples(leaking, rng), step_s=STEP_S) is None
    more = there(find_leak(samples(lambda at, r: 2 * leaking(at, r), rng), samples(leaking, rng), step_s=STEP_S))
    assert more == pytest.approx((4 * MB, 2 * MB), rel=0.05)
    rng = np.random.default_rng(8)
    slow = samples(lambda at, r: 0.1 * MB * at, rng)
    assert find_leak(slow, samples(still, rng), step_s=0.05) is not None  # 170 GB a day
    assert find_leak(slow, samples(still, rng), step_s=30.0) is None  # 0.3 GB a day
    steep = [(n, n * 100 * MB) for n in range(1, 10)]
    assert find_leak([], [], step_s=STEP_S) is None
    assert find_leak(steep, [], step_s=STEP_S) is None
    longer = [(n, n * 100 * MB) for n in range(1, 25)]
    assert find_leak(longer, [], step_s=STEP_S) == (100 * MB, 0.0)

"""Losses at equal work: who trains is let through, who pretends to is caught where the data can tell."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from autotune.stats.loss_check import (
    MOST_TOLERANCE,
    Comparability,
    compare_curves,
    compare_first_steps,
    compare_long_runs,
    rounding_of,
)

Trace = tuple[list[float], list[float]]
ROWS, FEATURES, STEPS = 8192, 24, 6


def train(
    batch: int,
    *,
    steps: int = STEPS,
    rate: float = 0.05,
    rows: Callable[[int], Sequence[int]] | None = None,
    noise: float = 0.0,
    seed: int = 0,
) -> Trace:
    """A linear regression by gradient descent, rows in order: loss and gradient norm before each update."""
    rng = np.random.default_rng(seed)
    x, truth = rng.standard_normal((ROWS, FEATURES)), rng.standard_normal(FEATURES)
    y = x @ truth + 0.3 * rng.standard_normal(ROWS)
    weights, losses, norms = np.zeros(FEATURES), [], []
    for step in range(steps):
        mine = rows(step) if rows is not None else range(step * batch, (step + 1) * batch)
        a, b = x[list(mine)], y[list(mine)]
        error = a @ weights - b
        gradient = 2 * a.T @ error / len(b)
        losses.append(float(np.mean(error**2)) * (1 + noise * rng.standard_normal()))
        norms.append(float(np.linalg.norm(gradient)))
        weights -= rate * gradient
    return losses, norms


def check(reference: Trace, candidate: Trace, work: tuple[int, int]) -> Comparability:
    return compare_first_steps(
        reference[0], candidate[0], (reference[1], candidate[1]), work=work, least_tolerance=rounding_of("float32")
    )


REFERENCE = train(256)


@pytest.mark.parametrize("batch", [64, 128, 384, 512, 768])
def test_another_batch_that_trains_as_it_should_agrees(batch: int) -> None:
    found = check(REFERENCE, train(batch), (256, batch))
    assert found.is_ok, found
    assert found.points >= 1


def test_a_loss_that_stays_or_begins_elsewhere_is_caught_and_none_tells_nothing() -> None:
    still = [REFERENCE[0][0]] * STEPS, REFERENCE[1]
    found = check(REFERENCE, still, (256, 512))
    assert found.is_ok is False
    assert "not change" in found.reason
    halved = [x / 2 for x in train(512)[0]], train(512)[1]
    assert check(REFERENCE, halved, (256, 512)).is_ok is False
    for reference, candidate in (([], REFERENCE[0]), (REFERENCE[0], []), ([math.nan], REFERENCE[0])):
        assert check((reference, []), (candidate, []), (256, 512)).is_ok is None


def test_a_batch_that_trains_its_first_rows_twice_is_caught() -> None:
    def twice(step: int) -> list[int]:
        return [*range(step * 512, step * 512 + 256)] * 2

    found = check(REFERENCE, train(512, rows=twice), (256, 512))
    assert found.is_ok is False
    assert "same rows" in found.reason


def test_where_every_batch_has_one_loss_at_the_start_equal_ones_are_no_fault() -> None:
    """With a head of zeros the first loss is log(vocabulary) whatever the rows; gradients differ."""
    reference = [10.8, *REFERENCE[0][1:]], REFERENCE[1]
    candidate = [10.8, *train(512)[0][1:]], train(512)[1]
    assert "same rows" not in check(reference, candidate, (256, 512)).reason
    assert "same rows" not in check((reference[0], []), (candidate[0], []), (256, 512)).reason


def test_honest_batches_of_any_data_are_never_accused_and_a_reversed_step_always_is() -> None:
    accused = [s for s in range(60) if not check(train(256, seed=s), train(512, seed=s), (256, 512)).is_ok]
    passed = [s for s in range(60) if check(train(256, seed=s), train(512, rate=-0.05, seed=s), (256, 512)).is_ok]
    assert (accused, passed) == ([], [])


@pytest.mark.parametrize("rate", [-0.05, 0.3])
def test_a_wrong_learning_step_is_caught(rate: float) -> None:
    found = check(REFERENCE, train(512, rate=rate), (256, 512))
    assert found.is_ok is False
    assert "lie between" in found.reason


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_wrong(bad: float) -> None:
    losses, norms = train(512)
    assert check(REFERENCE, ([*losses[:-1], bad], norms), (256, 512)).is_ok is False
    assert check(REFERENCE, (losses, [bad, *norms[1:]]), (256, 512)).is_ok is False


def long_run(batch: int, *, steps: int, rate: float = 0.05, scale: float = 1.0) -> list[tuple[float, float]]:
    """A curve towards 2.0 with the scatter of its batches."""
    rng = np.random.default_rng(batch)
    at = [(n + 1) * batch for n in range(steps)]
    return [(work, scale * (2.0 + math.exp(-rate * work / 1000)) * (1 + 0.003 * rng.standard_normal())) for work in at]


def test_equal_curves_agree_over_the_work_that_both_did() -> None:
    found = compare_long_runs(long_run(256, steps=200), long_run(512, steps=100), tolerance=0.02, is_same_work=False)
    assert found.is_ok
    assert abs(found.difference) < 0.01
    assert 0.02 < found.tolerance < 0.03
    assert found.points >= 50
    # The candidate goes on for longer, to a far lower loss: that says nothing of the reference.
    reference, candidate = long_run(256, steps=50, rate=0.2), long_run(256, steps=500, rate=0.2)
    assert compare_long_runs(reference, candidate, tolerance=0.02, is_same_work=True).is_ok


def test_a_loss_that_stays_above_is_wrong_and_one_below_only_for_equal_work() -> None:
    reference = long_run(256, steps=100)
    above, below = (long_run(256, steps=100, scale=s) for s in (1.05, 0.95))
    for is_same_work in (True, False):
        assert compare_long_runs(reference, above, tolerance=0.02, is_same_work=is_same_work).is_ok is False
    assert compare_long_runs(reference, below, tolerance=0.02, is_same_work=True).is_ok is False
    assert compare_long_runs(reference, below, tolerance=0.02, is_same_work=False).is_ok
    assert compare_long_runs(reference, above, tolerance=0.06, is_same_work=True).is_ok


def test_a_program_that_does_not_learn_is_caught_by_the_long_run_if_not_before() -> None:
    """Few first steps of noisy batches may not tell; what never learns stays above the reference."""
    honest, idle = train(256, steps=30), train(512, steps=15, rate=0.0)
    runs = [[((n + 1) * b, x) for n, x in enumerate(t[0])] for b, t in ((256, honest), (512, idle))]
    assert compare_long_runs(*runs, tolerance=0.02, is_same_work=False).is_ok is False


def test_a_constant_and_what_is_not_finite_are_no_training() -> None:
    reference = long_run(256, steps=100)
    constant = [(work, reference[-1][1]) for work, _ in reference]
    found = compare_long_runs(reference, constant, tolerance=0.05, is_same_work=False)
    assert found.is_ok is False
    assert "not change" in found.reason
    run = long_run(256, steps=50)
    assert compare_long_runs(run, [*run[:-1], (run[-1][0], math.nan)], tolerance=9.0, is_same_work=True).is_ok is False


@pytest.mark.parametrize(
    ("reference", "candidate", "words"),
    [
        ([], [(1.0, 1.0)], "no loss"),
        (long_run(256, steps=5), long_run(256, steps=5), "only 3 losses"),
        ([(n, 0.0) for n in range(20)], [(n, 0.0) for n in range(20)], "0 throughout"),
        ([(n, 1.0 + 9 * (n % 2)) for n in range(8)], [(n, 9.0 * (n % 2)) for n in range(8)], "scatter too much"),
    ],
)
def test_what_cannot_be_compared_is_inconclusive(
    reference: list[tuple[float, float]], candidate: list[tuple[float, float]], words: str
) -> None:
    found = compare_long_runs(reference, candidate, tolerance=0.02, is_same_work=True)
    assert found.is_ok is None
    assert words in found.reason


def curve(*, off: float = 0.0, since: int = 0, noise: float = 0.0, seed: int = 1) -> list[tuple[int, float]]:
    """A loss that has collapsed after 1000 of 3000 steps, `off` by a share from some step on, told at every 125th."""
    rng = np.random.default_rng(seed)
    return [
        (n, (0.1 + 6 * math.exp(-n / 150)) * (1 + off * (n >= since)) * (1 + noise * rng.standard_normal()))
        for n in range(125, 3001, 125)
    ]


@pytest.mark.parametrize(
    ("off", "since"),
    [(0.02, 1000), (0.01, 1000), (0.03, 2000), (-0.02, 1000), (0.02, 0), (0.8, 2700), (-0.8, 2700)],
)
@pytest.mark.parametrize("least_scale", [0.0, 0.05])
def test_a_curve_that_is_off_from_some_step_on_is_wrong(off: float, since: int, least_scale: float) -> None:
    found = compare_curves(curve(), curve(off=off, since=since, noise=0.001), least_scale=least_scale)
    assert found.is_ok is False
    assert ("above" if off > 0 else "below") in found.reason


@pytest.mark.parametrize("noise", [0.0, 1e-4, 0.01, 0.1])
def test_steps_that_rounding_moves_up_and_down_are_not(noise: float) -> None:
    wrong = [compare_curves(curve(), curve(noise=noise, seed=s), least_scale=0.0).is_ok is not True for s in range(300)]
    assert sum(wrong) <= 3
    norms = [  # told 24 times, each a third off or more
        compare_curves(curve(), curve(noise=0.4, seed=s), least_scale=0.0, tolerance=MOST_TOLERANCE) for s in range(300)
    ]
    assert sum(found.is_ok is not True for found in norms) <= 3
    assert compare_curves(curve()[:2], curve(), least_scale=0.0).is_ok is None
    assert compare_curves(curve(), [(n, math.nan) for n, _ in curve()], least_scale=0.0).is_ok is False

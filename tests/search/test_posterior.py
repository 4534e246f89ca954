"""The chain over which effects there are, held against every model there is."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import pytest

from autotune.search.posterior import SHARES, SIZES, Chain, State

Problem = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def planted(seed: int, blocks: int = 7, rank: int = 1) -> Problem:
    """Products of features whose columns are alike, so that models compete; two of the blocks act."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((16, blocks * rank)) + 0.8 * rng.standard_normal((16, 1))
    y = x[:, 0] * 1.0 - x[:, 2 * rank] * 0.7 + rng.standard_normal(16)
    starts = np.arange(blocks + 1) * rank
    return x, y, starts, np.full(blocks, np.log(0.25))


def log_weight(problem: Problem, model: Mapping[int, int]) -> float:
    """Log of a model's posterior chance, up to a constant: blocks that are in, each with the index of its size."""
    x, y, starts, log_odds = problem
    gram, moment = x.T @ x, x.T @ y
    columns = np.concatenate([np.arange(starts[b], starts[b + 1]) for b in model] or [np.zeros(0)]).astype(int)
    prior = np.concatenate([[SIZES[k] ** -2.0] * (starts[b + 1] - starts[b]) for b, k in model.items()] or [[]])
    precision = np.diag(prior) + gram[np.ix_(columns, columns)]
    fit = moment[columns] @ np.linalg.solve(precision, moment[columns]) if model else 0.0
    size = np.linalg.slogdet(precision)[1] - np.log(prior).sum()
    return float(0.5 * fit - 0.5 * size + sum(log_odds[b] + np.log(SHARES[k]) for b, k in model.items()))


def exactly(problem: Problem) -> np.ndarray:
    """Chance of each block, by summing over all models."""
    count = len(problem[3])
    chances, total = np.zeros(count), 0.0
    for sizes in itertools.product([None, 0, 1], repeat=count):
        weight = np.exp(log_weight(problem, {b: k for b, k in enumerate(sizes) if k is not None}))
        chances += weight * np.array([k is not None for k in sizes])
        total += weight
    return np.asarray(chances / total)


def chances(states: list[State], weights: np.ndarray) -> np.ndarray:
    return np.asarray(np.stack([s.chance for s in states], axis=1) @ weights)


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("seed", range(2))
def test_chances_are_those_of_summing_over_all_models(seed: int, rank: int) -> None:
    problem = planted(seed, rank=rank)
    chain = Chain(*problem)
    found = np.mean([chances(*chain.run(np.random.default_rng(k), {0: 0}, 40)) for k in range(20)], axis=0)
    assert np.abs(found - exactly(problem)).max() < 0.06


def test_conditional_chances_are_those_of_the_models_with_and_without() -> None:
    problem = planted(9, rank=2)
    chain = Chain(*problem)
    for inside in ({}, {0: 0}, {0: 1, 4: 0}, {6: 0, 1: 1, 3: 1}):
        state = chain.look(inside)
        for block in range(7):
            without = {b: k for b, k in inside.items() if b != block}
            held = [{**without, block: k} for k in (0, 1)]
            odds = sum(np.exp(log_weight(problem, h) - log_weight(problem, without)) for h in held)
            assert np.isclose(state.chance[block], odds / (1 + odds))


def test_coefficients_are_those_of_ridge_regression() -> None:
    problem = planted(3)
    x, y, _, _ = problem
    gram, moment = x.T @ x, x.T @ y
    state = Chain(*problem).look({2: 0, 5: 1})
    columns = [2, 5]
    precision = np.diag([SIZES[0] ** -2, SIZES[1] ** -2]) + gram[np.ix_(columns, columns)]
    assert np.allclose(state.mean, np.linalg.solve(precision, moment[columns]))
    assert np.allclose(state.cov, np.linalg.inv(precision))


def test_one_large_effect_is_not_told_as_two_that_share_it() -> None:
    x = np.random.default_rng(0).integers(0, 2, (12, 2)).astype(float)
    x[:, 1] = x[:, 0]  # always changed together but once
    x[3, 1] = 1 - x[3, 1]
    y = 3.5 * x[:, 0]
    chain = Chain(5 * x, 5 * y, np.arange(3), np.log([0.1, 0.1]))
    found = chances(*chain.run(np.random.default_rng(1), {}, 20))
    assert found[0] > 0.99
    assert found[1] < 0.2


def test_nothing_measured_leaves_what_was_thought_before() -> None:
    chain = Chain(np.zeros((0, 4)), np.zeros(0), np.arange(5), np.log(np.array([0.1, 0.5, 1.0, 2.0])))
    assert np.allclose(chances(*chain.run(np.random.default_rng(0), {}, 20)), [1 / 11, 1 / 3, 1 / 2, 2 / 3])


def test_what_is_known_to_many_digits_is_told_from_what_is_left_of_it() -> None:
    """Values known to a thousandth of an effect: what one block leaves of another is a difference of large numbers."""
    x, y, starts, log_odds = planted(0, blocks=5, rank=3)
    x[:, 3:6] = x[:, :3] + 1e-4 * x[:, 3:6]  # told by nearly the same sets
    state = Chain(1e4 * x, 1e4 * y, starts, log_odds).look({1: 0})
    own = (1e4 * x).astype(np.longdouble)
    inside, precision = own[:, 3:6], np.longdouble(1.0) * np.eye(3)
    left = own - inside @ _solved(inside.T @ inside + precision, inside.T @ own)
    for block in (0, 2, 3, 4):
        mine = slice(starts[block], starts[block + 1])
        exact = (own[:, mine].T @ left[:, mine]).astype(float)
        assert np.allclose(state.precision[block], exact, rtol=1e-6, atol=1e-4)
    assert np.linalg.eigvalsh(state.precision_if).min() >= 0.99 * SIZES[-1] ** -2.0


def _solved(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Gauss's elimination, in as many digits as the numbers have."""
    rows = np.concatenate([matrix, right], axis=1)
    for i in range(len(rows)):
        rows[i] /= rows[i, i]
        for j in range(len(rows)):
            if j != i:
                rows[j] = rows[j] - rows[j, i] * rows[i]
    return rows[:, len(rows) :]

"""The chain over which effects there are, held against every model there is."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from autotune.search.posterior import Chain, State


def planted(seed: int, blocks: int = 7, rank: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Products of features whose columns are alike, so that models compete; two of the blocks act."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((16, blocks * rank)) + 0.8 * rng.standard_normal((16, 1))
    y = x[:, 0] * 1.0 - x[:, 2 * rank] * 0.7 + rng.standard_normal(16)
    starts = np.arange(blocks + 1) * rank
    return x.T @ x, x.T @ y, starts, np.full(blocks, np.log(0.25))


def exactly(gram: np.ndarray, moment: np.ndarray, starts: np.ndarray, log_odds: np.ndarray) -> np.ndarray:
    """Chance of each block, by summing over all models."""
    count, chances, total = len(log_odds), np.zeros(len(log_odds)), 0.0
    for model in itertools.product([False, True], repeat=count):
        columns = np.concatenate(
            [np.arange(starts[b], starts[b + 1]) for b in range(count) if model[b]] or [[]]
        ).astype(int)
        precision = np.eye(len(columns)) + gram[np.ix_(columns, columns)]
        fit = moment[columns] @ np.linalg.solve(precision, moment[columns]) if len(columns) else 0.0
        weight = np.exp(0.5 * fit - 0.5 * np.linalg.slogdet(precision)[1] + log_odds[np.array(model)].sum())
        chances += weight * np.array(model)
        total += weight
    return np.asarray(chances / total)


def chances(states: list[State], weights: np.ndarray) -> np.ndarray:
    return np.asarray(np.stack([s.chance for s in states], axis=1) @ weights)


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_chances_are_those_of_summing_over_all_models(seed: int, rank: int) -> None:
    problem = planted(seed, rank=rank)
    chain = Chain(*problem)
    found = np.mean([chances(*chain.run(np.random.default_rng(k), [[], [0]])) for k in range(20)], axis=0)
    assert np.abs(found - exactly(*problem)).max() < 0.06


def test_conditional_odds_are_those_of_two_models() -> None:
    gram, moment, starts, log_odds = planted(9, rank=2)
    chain = Chain(gram, moment, starts, log_odds)

    def weight(model: list[int]) -> float:
        columns = np.concatenate([np.arange(starts[b], starts[b + 1]) for b in model] or [[]]).astype(int)
        precision = np.eye(len(columns)) + gram[np.ix_(columns, columns)]
        fit = moment[columns] @ np.linalg.solve(precision, moment[columns]) if model else 0.0
        return float(0.5 * fit - 0.5 * np.linalg.slogdet(precision)[1] + log_odds[model].sum())

    for inside in ([], [0], [0, 4], [6, 1, 3]):
        state = chain.look(inside)
        for block in range(7):
            without, held = [b for b in inside if b != block], [*(b for b in inside if b != block), block]
            odds = weight(held) - weight(without)
            assert np.isclose(state.chance[block], 1 / (1 + np.exp(-odds)))


def test_coefficients_are_those_of_ridge_regression() -> None:
    gram, moment, starts, log_odds = planted(3)
    state = Chain(gram, moment, starts, log_odds).look([2, 5])
    columns = [2, 5]
    precision = np.eye(2) + gram[np.ix_(columns, columns)]
    assert np.allclose(state.mean, np.linalg.solve(precision, moment[columns]))
    assert np.allclose(state.cov, np.linalg.inv(precision))


def test_nothing_measured_leaves_what_was_thought_before() -> None:
    chain = Chain(np.zeros((4, 4)), np.zeros(4), np.arange(5), np.log(np.array([0.1, 0.5, 1.0, 2.0])))
    assert np.allclose(chances(*chain.run(np.random.default_rng(0), [[]])), [1 / 11, 1 / 3, 1 / 2, 2 / 3])

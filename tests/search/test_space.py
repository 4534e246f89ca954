"""What a set is to the model: zero for the default, near values alike, pairs only where both are changed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.search.space import MAIN_RANK, PAIR_RANK, Design, Factor


def covariance(design: Design, *rows: list[int]) -> np.ndarray:
    """Of the effects of some sets, were every coefficient standard normal."""
    features = design.features(np.array(rows))
    return np.asarray(features @ features.T)


def test_the_default_has_no_effect_and_neither_has_what_is_not_set() -> None:
    design = Design([Factor(size=3, default=1, group="g"), Factor(size=2, default=None, group="g")])
    assert design.neutral.tolist() == [1, 2]
    assert not design.features(np.array([[1, 2], [3, 2]])).any()
    assert design.features(np.array([[0, 2]])).any()
    assert design.features(np.array([[1, 0]])).any()


@pytest.mark.parametrize("size", [2, 3, 6])
def test_values_without_order_have_effects_of_size_one_with_a_part_in_common(size: int) -> None:
    found = covariance(Design([Factor(size=size)]), *([v] for v in range(1, size)))
    assert np.allclose(np.diag(found), 1.0)
    assert np.allclose(found[~np.eye(size - 1, dtype=bool)], 0.3)


def test_ordered_values_are_the_more_alike_the_nearer_they_are() -> None:
    factor = Factor(size=8, default=0, scale=tuple(map(float, range(8))))
    found = covariance(Design([factor]), *([v] for v in range(1, 8)))
    spread = np.sqrt(np.diag(found))
    alike = found / spread[:, None] / spread[None, :]
    assert (np.diff(alike[0]) < 0).all()  # the first against those ever farther off
    assert spread[0] < spread[-1]  # next to the default little can have changed
    assert np.isclose((spread**2).mean(), 1.0)
    factor = Factor(size=4, default=0, scale=(math.nan, 1.0, 2.0, 3.0))
    found = covariance(Design([factor]), [1], [2], [3])
    assert np.allclose(np.diag(found), 1.0, atol=0.02)
    factor = Factor(size=64, default=None, scale=tuple(map(float, range(64))))
    design = Design([factor])
    assert design.blocks[0].table.shape == (65, MAIN_RANK)
    found = covariance(design, [0], [1], [63])
    assert found[0, 1] > 0.8 * found[0, 0] > found[0, 2] + 0.3


def test_pairs_are_of_one_group_and_act_only_where_both_are_changed() -> None:
    factors = [Factor(size=4, group=g) for n, g in (("a", "x"), ("b", "x"), ("c", "y"), ("d", ""), ("e", ""))]
    design = Design(factors)
    assert design.pairs == [(0, 1)]
    block = design.blocks[-1]
    assert block.table.shape[1] <= PAIR_RANK
    rows = np.array([[0, 0, 0, 0, 0], [1, 0, 2, 1, 1], [0, 3, 0, 0, 0], [1, 3, 0, 0, 0]])
    assert design.features(rows)[:, design.starts[-2] :].any(axis=1).tolist() == [False, False, False, True]
    assert Design([Factor(size=2) for n in "abc"]).pairs == [(0, 1), (0, 2), (1, 2)]


def test_what_another_setting_switches_off_is_left_alone() -> None:
    on = Factor(size=2)
    of_on = Factor(size=3, needs={0: frozenset([1])})
    of_that = Factor(size=2, needs={1: frozenset([2])})
    design = Design([on, of_on, of_that])
    assert design.settle(np.array([0, 2, 1])).tolist() == [0, 0, 0]
    assert design.settle(np.array([1, 1, 1])).tolist() == [1, 1, 0]
    assert design.settle(np.array([1, 2, 1])).tolist() == [1, 2, 1]

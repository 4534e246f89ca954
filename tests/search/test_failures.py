"""Who is blamed for failures, held against every culprit there could be."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from autotune.search.failures import PAIR, SINGLE, FailureModel
from autotune.search.space import Design, Factor

DESIGN = Design([Factor(size=3, group="g" if n in "ab" else "") for n in "abcd"])


def chance_to_run(failures: FailureModel, row: np.ndarray) -> float:
    return float(np.exp(failures.log_survivals(row[None])[0]))


def exactly(ran: np.ndarray, failed: np.ndarray) -> dict[tuple[tuple[int, int], ...], float]:
    """Chance of each value and pair to be a culprit, by summing over all sets of up to three culprits."""
    singles = [((i, v),) for i in range(4) for v in (1, 2)]
    pairs = [((i, v), (j, w)) for i, j in itertools.combinations(range(4), 2) for v in (1, 2) for w in (1, 2)]
    causes, total = [*singles, *pairs], 0.0
    found = dict.fromkeys(causes, 0.0)
    for count in range(4):
        for chosen in itertools.combinations(causes, count):
            fails = [any(all(row[i] == v for i, v in c) for c in chosen) for row in [*ran, *failed]]
            if any(fails[: len(ran)]) or not all(fails[len(ran) :]):
                continue
            weight = float(np.prod([(SINGLE if len(c) == 1 else PAIR) for c in chosen]))
            total += weight
            for cause in chosen:
                found[cause] += weight
    return {c: w / total for c, w in found.items()}


@pytest.mark.parametrize("seed", range(6))
def test_blame_is_that_of_summing_over_all_culprits(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.search.failures.WEIGHT", 1e9)  # the share of failing values is known
    rng = np.random.default_rng(seed)
    culprits = [[(int(rng.integers(4)), int(rng.integers(1, 3)))] for _ in range(int(rng.integers(1, 3)))]
    if seed % 3 == 0:
        culprits = [[(0, 1), (1, 2)]]
    rows = rng.integers(0, 3, (14, 4))
    is_bad = np.array([any(all(r[i] == v for i, v in c) for c in culprits) for r in rows])
    failures, truth = FailureModel(DESIGN, rows[~is_bad], rows[is_bad], []), exactly(rows[~is_bad], rows[is_bad])
    for cause, chance in truth.items():
        if len(cause) == 1:
            found = failures.single[cause[0][0]][cause[0][1]]
        else:
            (i, one), (j, other) = cause
            found = failures.pairs[i, j][one, other] if (i, j) in failures.pairs else 0.0
        assert abs(found - chance) < 0.2


def test_what_ran_is_cleared_and_who_is_left_is_blamed() -> None:
    ran = np.array([[1, 0, 0, 0], [0, 0, 2, 0]])
    failures = FailureModel(DESIGN, ran, np.array([[1, 0, 2, 1]]), [])
    assert failures.single[0][1] == failures.single[2][2] == 0.0
    assert failures.single[3][1] > 0.99
    assert chance_to_run(failures, np.array([0, 0, 0, 1])) < 0.01
    assert chance_to_run(failures, np.array([1, 0, 2, 0])) > 0.99
    ran = np.array([[1, 0, 0, 0], [0, 1, 0, 0]])
    failures = FailureModel(DESIGN, ran, np.array([[1, 1, 0, 0]]), [])
    assert failures.pairs[0, 1][1, 1] > 0.99
    assert list(failures.pairs) == [(0, 1)]
    ran = np.array([[1, 0, 1, 0], [1, 0, 0, 1]])
    failures = FailureModel(DESIGN, ran, np.array([[1, 0, 1, 1]]), [])
    assert list(failures.pairs) == [(2, 3)]
    assert failures.pairs[2, 3][1, 1] > 0.99
    failures = FailureModel(DESIGN, np.zeros((0, 4), dtype=int), np.array([[1, 1, 0, 1]]), [((0, 1), (1, 1))])
    assert failures.single[3][1] == SINGLE
    assert chance_to_run(failures, np.array([1, 1, 0, 0])) < 0.01
    assert chance_to_run(failures, np.array([1, 0, 0, 0])) > 0.9
    row = np.array([[1, 1, 1, 1]])
    failures = FailureModel(DESIGN, row, row, [])  # it ran once, and failed once
    assert chance_to_run(failures, row[0]) > 0.99


def test_two_of_different_groups_that_fail_together_are_found_though_all_else_is_cleared_late() -> None:
    """As on jaxlib 0.10.2: dynamic slice fusions do not compile with `triton_gemm_any` off; each runs by itself."""
    rng = np.random.default_rng(0)
    design = Design([Factor(size=3, group=f"g{i // 5}") for i in range(40)])
    rows = rng.integers(0, 3, (40, 40))
    is_bad = (rows[:, 3] == 1) & (rows[:, 22] == 2)
    assert 2 <= is_bad.sum() <= 8
    failures = FailureModel(design, rows[~is_bad], rows[is_bad], [])
    probe = design.neutral.copy()
    probe[[3, 22]] = 1, 2
    assert chance_to_run(failures, probe) < 0.2
    assert (3, 22) in failures.pairs
    for i, value in ((3, 1), (22, 2)):
        alone = design.neutral.copy()
        alone[i] = value
        assert chance_to_run(failures, alone) > 0.99


def test_what_was_narrowed_to_several_still_teaches_who_the_culprit_is() -> None:
    """A study's own search for a cause ends after a dozen starts, with more than the cause: that is no alibi for it."""
    narrowed = [((0, 1), (1, 1), (2, 2)), ((0, 2), (2, 2), (3, 1))]
    failed = np.array([[1, 1, 2, 0], [2, 0, 2, 1]])
    failures = FailureModel(DESIGN, np.array([[1, 1, 0, 1], [2, 2, 1, 0], [0, 0, 0, 1]]), failed, narrowed)
    assert failures.single[2][2] > 0.9
    # Neither is what is known to one part, or two, explained by more.
    known = FailureModel(DESIGN, np.zeros((0, 4), dtype=int), failed, [*narrowed, ((2, 2),)])
    assert known.single[0][1] == SINGLE
    assert chance_to_run(known, np.array([0, 0, 2, 0])) < 0.01


@pytest.mark.parametrize("failing", [0.0, 0.1])
def test_the_share_of_failing_values_is_learned(failing: float) -> None:
    rng = np.random.default_rng(0)
    design = Design([Factor(size=6) for _ in range(60)])
    bad = rng.random((60, 6)) < failing
    bad[:, 0] = False
    rows = np.array([np.where(rng.random(60) < 0.1, rng.integers(0, 6, 60), 0) for _ in range(60)])
    is_bad = bad[np.arange(60), rows].any(axis=1)
    share = FailureModel(design, rows[~is_bad], rows[is_bad], []).share
    assert 0.06 < share < 0.15 if failing else share < 0.01

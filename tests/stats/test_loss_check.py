from __future__ import annotations

import math

import pytest

from autotune.stats.loss_check import TraceCheck, compare_traces, largest_drift

LOSSES = [7.0, 6.5, 6.1, 5.9, 5.8]
NORMS = [3.0, 2.5, 2.0, 1.5, 1.1]


def check(
    losses: list[float] = LOSSES, norms: list[float] = NORMS, *, aa: float = 0.0, dtype: str = "float32"
) -> TraceCheck:
    return compare_traces(LOSSES, losses, NORMS, norms, aa_tolerance=aa, dtype=dtype)


def test_equal_traces_are_right() -> None:
    assert check() == TraceCheck(is_ok=True, largest_difference=0.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("step", [0, 4])
def test_a_number_that_is_not_finite_is_wrong_whatever_the_tolerance(bad: float, step: int) -> None:
    found = check([bad if i == step else v for i, v in enumerate(LOSSES)], aa=1e9)
    assert (found.is_ok, found.step, found.quantity) == (False, step, "loss")


def test_first_step_past_the_tolerance_is_named() -> None:
    norms = [3.0, 2.5, 2.2, 9.9, 9.9]
    found = check(norms=norms)
    assert (found.is_ok, found.step, found.quantity) == (False, 2, "gradient norm")
    assert (found.expected, found.got) == (2.0, 2.2)
    assert found.largest_difference == pytest.approx(0.1)


def test_half_precision_rounds_where_single_precision_is_wrong() -> None:
    rounded = [v * (1 + 0.003) for v in LOSSES]
    assert not check(rounded).is_ok
    assert check(rounded, dtype="bfloat16").is_ok


def test_what_the_reference_does_to_itself_is_allowed() -> None:
    wandering = [v * (1 + 0.001 * i) for i, v in enumerate(LOSSES)]
    assert not check(wandering).is_ok
    assert check(wandering, aa=largest_drift(LOSSES, wandering)).is_ok


def test_rounding_may_grow_with_the_steps() -> None:
    late = [*LOSSES[:4], LOSSES[4] * (1 + 3e-6)]
    early = [LOSSES[0] * (1 + 3e-6), *LOSSES[1:]]
    assert check(late).is_ok
    assert not check(early).is_ok


def test_a_trace_that_ends_early_is_wrong() -> None:
    found = check(LOSSES[:3])
    assert (found.is_ok, found.step, found.got) == (False, 3, None)


def test_a_reference_that_is_not_finite_and_an_unknown_dtype_are_errors() -> None:
    with pytest.raises(ValueError, match="mend the workload"):
        compare_traces([math.nan], [1.0], [1.0], [1.0], aa_tolerance=0.0, dtype="float32")
    with pytest.raises(ValueError, match="float64, float32, tensorfloat32"):
        check(dtype="int8")


def test_largest_drift_is_relative_and_infinite_for_nan() -> None:
    assert largest_drift([2.0, 4.0], [2.1, 4.0]) == pytest.approx(0.05)
    assert largest_drift([2.0, math.nan], [2.0, 4.0]) == math.inf

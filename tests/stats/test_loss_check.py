from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from autotune.stats.loss_check import (
    GRAD_NORM,
    MOST_TOLERANCE,
    LossSpread,
    Mismatch,
    StepLoss,
    Trace,
    compare_traces,
    first_steps,
    spread_between,
)
from tests.runs import there
from tests.tables import toml_beside

CASES = toml_beside(__file__)

LOSSES = [7.0, 6.5, 6.1, 5.9, 5.8]
NORMS = [3.0, 2.5, 2.0, 1.5, 1.1]
NOTHING = LossSpread()


def check(
    losses: list[float] = LOSSES, norms: list[float] = NORMS, *, spread: LossSpread = NOTHING, dtype: str = "float32"
) -> Mismatch | None:
    return compare_traces(first_steps(LOSSES, NORMS), first_steps(losses, norms), spread=spread, dtype=dtype)


def test_the_first_step_past_the_tolerance_is_named_or_the_first_that_is_missing() -> None:
    assert check() is None
    norms = [3.0, 2.5, 2.2, 9.9, 9.9]
    found = there(check(norms=norms))
    assert (found.step, found.quantity) == (2, "gradient norm")
    assert (found.expected, found.actual) == (2.0, 2.2)
    found = there(check(LOSSES[:3]))
    assert (found.step, found.actual) == (3, None)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("step", [0, 4])
def test_a_number_that_is_not_finite_is_wrong_whatever_the_tolerance(bad: float, step: int) -> None:
    wide = LossSpread(steps=(0,), losses=(1e9,), norms=(1e9,))
    found = there(check([bad if i == step else v for i, v in enumerate(LOSSES)], spread=wide))
    assert (found.step, found.quantity) == (step, "loss")


def test_half_precision_rounds_where_single_precision_is_wrong() -> None:
    rounded = [v * (1 + 0.003) for v in LOSSES]
    assert check(rounded) is not None
    assert check(rounded, dtype="bfloat16") is None


def test_what_the_reference_does_to_itself_and_growing_rounding_are_allowed() -> None:
    wandering = [v * (1 + 0.001 * i) for i, v in enumerate(LOSSES)]
    assert check(wandering) is not None
    assert check(wandering, spread=spread_between(first_steps(LOSSES, NORMS), first_steps(wandering, NORMS))) is None
    late = [*LOSSES[:4], LOSSES[4] * (1 + 3e-6)]
    early = [LOSSES[0] * (1 + 3e-6), *LOSSES[1:]]
    assert check(late) is None
    assert check(early) is not None
    assert check(late, spread=LossSpread(steps=(0,), losses=(1e-9,), norms=(0.0,), is_rounded=True)) is not None


def test_what_is_left_of_a_loss_may_differ_as_more_of_it_would() -> None:
    """As was seen of a tiny model without optimizations and with them; a loss that is not small may not."""
    for first, is_ok in ((5.5, True), (0.4, False)):
        reference = {0: StepLoss(first), 387: StepLoss(0.350)}
        candidate = {0: StepLoss(first), 387: StepLoss(0.465)}
        assert (compare_traces(reference, candidate, spread=NOTHING, dtype="float32") is None) is is_ok
        rounded = LossSpread(steps=(0, 387), losses=(0.0, 1e-3), norms=(0.0, 0.0), is_rounded=True)
        assert compare_traces(reference, candidate, spread=rounded, dtype="float32") is not None


def test_the_tolerance_grows_as_was_seen_up_to_twice_a_step() -> None:
    spread = LossSpread(steps=(0, 18, 20), losses=(0.0, 1e-4, 0.05), norms=(0.0, 0.0, 0.0), is_rounded=True)
    assert spread.tolerance(9, dtype="float32") == pytest.approx(4e-4)
    assert spread.tolerance(10, dtype="float32") == pytest.approx(0.2)
    assert spread.tolerance(0, dtype="float32") == 32 * 2.0**-24
    assert spread.tolerance(9, dtype="float32", quantity=GRAD_NORM) == 4 * 32 * 2.0**-24
    # Seen in float32: 4e-7 at step 20 and 9e-3 at 230. A norm that is 10 % off at step 12 is no rounding of TF32.
    assert NOTHING.tolerance(20, dtype="float32") > 4 * 4e-7
    assert NOTHING.tolerance(230, dtype="float32") > 4 * 9e-3
    assert NOTHING.tolerance(12, dtype="tensorfloat32", quantity=GRAD_NORM) < 0.1
    told = [NOTHING.tolerance(step, dtype="float32") for step in range(1000)]
    assert told == sorted(told)
    assert told[-1] == MOST_TOLERANCE


def test_references_apart_without_end_and_an_unknown_dtype_are_errors() -> None:
    with pytest.raises(ValueError, match="float64, float32, tensorfloat32"):
        check(dtype="int8")
    with pytest.raises(ValueError, match="be finite"):
        spread_between({0: StepLoss(1.0), 3: StepLoss(2.0)}, {0: StepLoss(1.0), 3: StepLoss(math.nan)})


@pytest.mark.parametrize("edited", CASES["impossible_spreads"])
def test_a_spread_that_no_references_show_is_refused(edited: dict[str, list[float]]) -> None:
    figures = {name: tuple(values) for name, values in edited.items()}
    with pytest.raises(ValueError, match="of losses"):
        LossSpread(**{"steps": (0, 5), "losses": (0.1, 0.2), "norms": (0.1, 0.2), **figures})  # type: ignore[arg-type]


def test_spreads_of_two_references_are_joined_by_the_larger_and_equal_ones_say_nothing() -> None:
    same = {i: StepLoss(5.0 - i, 1.0) for i in range(4)}
    assert not spread_between(same, same, is_rounded=True).is_rounded
    other = {**same, 3: StepLoss(2.0 * (1 + 1e-7), 1.0)}
    assert spread_between(same, other, is_rounded=True).is_rounded
    one = LossSpread(steps=(0, 4), losses=(1e-7, 1e-3), norms=(0.0, 0.0))
    two = LossSpread(steps=(4, 8), losses=(1e-4, 1e-2), norms=(0.1, 0.2), is_rounded=True)
    both = LossSpread(steps=(0, 4, 8), losses=(1e-7, 1e-3, 1e-2), norms=(0.0, 0.1, 0.2), is_rounded=True)
    assert one.joined(two) == two.joined(one) == both


@pytest.mark.parametrize("is_rounded", [True, False])
@pytest.mark.parametrize("dtype", ["bfloat16", "float64", "float8_e4m3fn"])
def test_past_the_last_step_told_the_tolerance_never_falls_and_stays_finite(dtype: str, is_rounded: bool) -> None:
    spread = LossSpread(steps=(0, 40, 80), losses=(0.0, 1e-4, 1e-3), norms=(0.0, 0.01, 0.4), is_rounded=is_rounded)
    for quantity, most in (("loss", MOST_TOLERANCE), (GRAD_NORM, 1.6)):
        allowed = [spread.tolerance(step, dtype=dtype, quantity=quantity) for step in (*range(200), 10**4, 10**9)]
        assert allowed == sorted(allowed)
        assert allowed[-1] == pytest.approx(most)


def training(seed: int, *, steps: int = 120, growth: float, first: float) -> Callable[[int], Trace]:
    """Processes of one training: their losses differ by `first` at first, and as a power `growth` of the step later."""
    common = random.Random(seed)
    losses = [1.0 + 4.0 / (1 + 0.1 * i) + 0.2 * common.random() for i in range(steps)]

    def process(rounding: int) -> Trace:
        own = random.Random(f"{seed}/{rounding}")
        told = {}
        for i, loss in enumerate(losses):
            size = first * (1 + i) ** growth if rounding else 0.0
            told[i] = StepLoss(loss * (1 + size * own.gauss(0, 1)), loss * (1 + 5 * size * own.gauss(0, 1)))
        return told

    return process


KINDS = {"bfloat16": (1.1, 1e-4), "float32": (0.6, 3e-8)}
"""Growth and first difference seen on XLA:CPU."""


@pytest.mark.parametrize("dtype", KINDS)
def test_honest_sets_in_another_rounding_are_never_called_wrong(dtype: str) -> None:
    growth, first = KINDS[dtype]
    for seed in range(25):
        process = training(seed, growth=growth, first=first)
        spread = spread_between(process(0), process(1), is_rounded=True)
        for other in range(2, 8):
            found = compare_traces(process(0), process(other), spread=spread, dtype=dtype)
            assert found is None, found


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("share", [0.01, -0.01, 0.03, 0.1, -0.5, 0.5, 9.0])
def test_a_liar_is_found_as_soon_as_what_it_adds_is_more_than_the_tolerance(dtype: str, share: float) -> None:
    growth, first = KINDS[dtype]
    for since in (0, 1, 2, 3, 5, 8, 12, 20, 40, 80, 119):
        process = training(since, growth=growth, first=first)
        honest = process(2)
        spread = spread_between(process(0), process(1), is_rounded=True)
        lies = {i: StepLoss(v.loss * (1 + share * (i >= since)), v.grad_norm) for i, v in honest.items()}
        found = compare_traces(process(0), lies, spread=spread, dtype=dtype)
        allowed = spread.tolerance(since, dtype=dtype)
        if abs(share) > 1.5 * allowed:
            assert found is not None
            assert found.step == since
            assert found.quantity == "loss"
        if dtype == "float32" or since <= 5 or abs(share) >= 0.5:  # what is promised, whatever the tolerance is
            assert found is not None


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "tensorfloat32"])
def test_half_as_much_again_is_found_even_where_no_reference_in_another_rounding_ran(dtype: str) -> None:
    honest = training(3, growth=1.1, first=1e-5)(0)
    for since in (0, 12, 60, 119):
        wrong = {i: StepLoss(v.loss * (1.5 if i >= since else 1.0), v.grad_norm) for i, v in honest.items()}
        found = there(compare_traces(honest, wrong, spread=NOTHING, dtype=dtype))
        assert found.step == since

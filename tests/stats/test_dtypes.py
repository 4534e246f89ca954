"""Every format that JAX has, by every name that programs give it, has a tolerance; integers have none, and say why."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from autotune.stats.loss_check import FORMATS, LossSpread, StepLoss, compare_traces, formats_of, rounding_of, spacing_of
from tests.tables import toml_beside

CASES = toml_beside(__file__)

ALL = sorted(n for n in dir(ml_dtypes) if n.startswith(("float", "bfloat")))


@pytest.mark.parametrize("name", ALL)
def test_every_format_of_jax_has_a_tolerance_and_its_own_spacing(name: str) -> None:
    assert 2.0**-8 <= rounding_of(name) <= 2.0**-4
    assert spacing_of(name) == float(ml_dtypes.finfo(name).eps)


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_formats_of_numpy_are_as_numpy_says(name: str) -> None:
    assert spacing_of(name) == float(np.finfo(name).eps)


@pytest.mark.parametrize(("name", "same"), CASES["names_of_formats"])
def test_names_of_other_programs_are_understood(name: str, same: str) -> None:
    assert rounding_of(name) == FORMATS[same].rounding


@pytest.mark.parametrize("name", ["int8", "uint4", "s8", "bool", "int32/int8"])
def test_integers_are_refused_and_say_why(name: str) -> None:
    with pytest.raises(ValueError, match="no rounding"):
        rounding_of(name)


@pytest.mark.parametrize("name", ["", "quantized", "float7", "object", "None"])
def test_what_nobody_knows_is_refused_and_says_so(name: str) -> None:
    with pytest.raises(ValueError, match="floating-point"):
        spacing_of(name)


def test_float32_is_told_apart() -> None:
    names = ("float32", "fp32", "single", "bf16_bf16_f32", "tf32", "complex64")
    assert [n for n in names if {f.name for f in formats_of(n)} == {"float32"}] == [
        "float32",
        "fp32",
        "single",
        "complex64",
    ]


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_neighbours_of_a_narrow_loss_are_no_wrong_loss_and_a_wrong_one_is(name: str) -> None:
    spacing = spacing_of(name)
    reference = {0: StepLoss(1.0)}

    def is_ok(loss: float) -> bool:
        spread, told = LossSpread(is_rounded=True), {0: StepLoss(loss)}
        return compare_traces(reference, told, spread=spread, dtype="float32", spacing={"loss": spacing}) is None

    assert is_ok(1.0 + spacing)
    assert not is_ok(1.0 + 3 * spacing)

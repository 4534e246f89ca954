"""However a program says its number format, its name comes out."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from autotune.child.devices import dtype_name


@pytest.mark.parametrize(
    ("said", "name"),
    [
        (jnp.bfloat16, "bfloat16"),
        (np.float32, "float32"),
        (np.zeros(1, jnp.bfloat16).dtype, "bfloat16"),
        ("nanoo_fp8", "nanoo_fp8"),
        (None, None),
        ("", None),
    ],
)
def test_a_format_has_its_name(said: Any, name: str | None) -> None:
    assert dtype_name(said) == name

"""A process that is to run on a GPU, and JAX that has none: it says so, whatever JAX does. Names of number formats."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from autotune.child.devices import NoDeviceError, dtype_name, find_devices


def jax_that(found: Any, *, log: Exception | None = None) -> Any:
    """A JAX that finds some devices or raises, after its plugin has logged an error as JAX logs it."""

    def devices() -> list[Any]:
        if log is not None:
            try:
                raise log
            except Exception:
                logging.getLogger("jax._src.xla_bridge").exception("Jax plugin configuration error: Exception when")
        if isinstance(found, Exception):
            raise found
        return [SimpleNamespace(platform=found)]

    return SimpleNamespace(devices=devices)


@pytest.mark.parametrize(
    ("jax", "said"),
    [
        (jax_that(AssertionError()), "AssertionError"),
        (jax_that("cpu"), "it would run on the CPU"),
        (jax_that("cpu", log=RuntimeError("Unable to load cuFFT. Is it installed?")), "Unable to load cuFFT"),
        (jax_that(RuntimeError("Unable to initialize backend 'cuda': x\ny")), "Unable to initialize backend 'cuda': x"),
    ],
)
def test_a_process_without_a_gpu_says_so_in_the_words_of_jax(jax: Any, said: str) -> None:
    with pytest.raises(NoDeviceError, match="no GPU") as error:
        find_devices(jax, "cuda")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_other_failures_and_other_platforms_are_left_alone() -> None:
    assert len(find_devices(jax_that("gpu"), "cuda")) == len(find_devices(jax_that("cpu"), "cpu")) == 1
    with pytest.raises(AssertionError):
        find_devices(jax_that(AssertionError()), "cpu")


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

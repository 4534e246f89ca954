"""Delayed scales of float8: what they remember, that they are no weights, and that training goes as in bfloat16."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.workloads.conftest import SOON, train, uniform
from workloads.float8 import HISTORY, Scaling, matmul_current, matmul_delayed, new_scaling
from workloads.loading import load

EQUATION = "btd,dnh->btnh"
SMALL = {"size": "tiny", "dtype": "float8", "float8_scales": "delayed"}


def operands(factor: float = 1.0) -> tuple[jax.Array, jax.Array, jax.Array]:
    x = factor * (uniform(jnp.uint32(1), (7, 11, 13)) - 0.5)
    kernel = 3 * uniform(jnp.uint32(2), (13, 5, 3)) - 1.5
    up = 1e-3 * (uniform(jnp.uint32(3), (7, 11, 5, 3)) - 0.5)
    return x.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16), up.astype(jnp.bfloat16)


def delayed(scaling: jax.Array, factor: float = 1.0) -> Any:
    """The product, the gradients of both operands, and what is remembered for the next step."""
    x, kernel, up = operands(factor)
    return _product_and_gradients(x, kernel, scaling, up)


@partial(jax.jit, compiler_options=SOON)
def _product_and_gradients(x: Any, kernel: Any, scaling: Any, up: Any) -> Any:
    out, back = jax.vjp(lambda *a: matmul_delayed(EQUATION, *a), x, kernel, scaling)
    return (out, *back(up))


def test_after_one_step_on_the_same_arrays_delayed_scales_are_the_current_ones() -> None:
    x, kernel, up = operands()

    @partial(jax.jit, compiler_options=SOON)
    def current(x: Any, kernel: Any, up: Any) -> Any:
        out, back = jax.vjp(lambda *a: matmul_current(EQUATION, *a), x, kernel)
        return (out, *back(up))

    scaling = delayed(new_scaling()[...])[3]
    for right, found in zip(current(x, kernel, up), delayed(scaling), strict=False):
        right, found = right.astype(jnp.float32), found.astype(jnp.float32)
        # the last bit of a scale may differ, and so the last bit of a few narrowed numbers
        assert jnp.linalg.norm(found - right) / jnp.linalg.norm(right) < 0.01


def test_what_is_remembered_is_the_largest_values() -> None:
    """The newest is first; flax has those before it at the end."""
    scaling = delayed(delayed(new_scaling()[...], 4.0)[3], 1.0)[3]
    largest = [float(jnp.max(jnp.abs(a.astype(jnp.float32)))) for a in operands()]
    assert scaling.shape == (3, 1 + HISTORY)
    np.testing.assert_allclose(scaling[:, 1], largest, rtol=1e-3)
    np.testing.assert_allclose(scaling[0, -1], 4 * largest[0], rtol=1e-2)
    assert not scaling[:, 2:-1].any()
    # the scale is of the largest that is remembered, not of the newest
    tops = (4 * largest[0] / 448, largest[1] / 448, largest[2] / 57344)
    np.testing.assert_allclose(scaling[:, 0], tops, rtol=1e-2)


def test_what_outgrows_its_scale_is_clipped_and_never_infinite() -> None:
    scaling = delayed(new_scaling()[...], 1.0)[3]
    out, _, _, following = delayed(scaling, 1000.0)
    assert jnp.isfinite(out.astype(jnp.float32)).all()
    assert float(following[0, 0]) == pytest.approx(1000 * float(scaling[0, 0]), rel=1e-2)


def test_an_infinite_gradient_leaves_the_scale_alone() -> None:
    x, kernel, up = operands()
    scaling = delayed(new_scaling()[...])[3]
    found = _product_and_gradients(x, kernel, scaling, up.at[0, 0, 0, 0].set(jnp.inf))[3]
    assert found[2, 0] == scaling[2, 0]


def is_scaling(leaf: Any) -> bool:
    return isinstance(leaf, Scaling)


@pytest.mark.slow
def test_training_goes_as_in_bfloat16_on_every_axis_of_a_mesh() -> None:
    mesh = {"data": 2, "fsdp": 2, "tensor": 2}
    near, _ = train(load("llama", {"size": "tiny", "dtype": "bfloat16", "mesh": mesh}), 6)
    found, state = train(load("llama", {**SMALL, "mesh": mesh}), 6)
    np.testing.assert_allclose(found, near, rtol=0.03)
    assert found[-1] < 0.85 * found[0]
    kept = [s for s in jax.tree.leaves(state["params"], is_leaf=is_scaling) if is_scaling(s)]
    assert len(kept) == 7  # of each matmul, all layers as one
    for scaling in kept:
        assert (scaling[..., 1] > 0).all()  # six steps, of every layer
        assert (scaling[..., -5:] > 0).all()
        assert not scaling[..., 2:-5].any()
        assert (scaling[..., 0] != 1.0).all()
    moments = jax.tree.leaves(state["optimizer"], is_leaf=is_scaling)
    assert not any(m[...].any() for m in moments if is_scaling(m))  # not trained


def test_scales_are_no_weights() -> None:
    """Neither counted nor cast."""
    current, scaled = (load("gpt", {**SMALL, "mesh": {"data": 1}, "float8_scales": s}) for s in ("current", "delayed"))
    assert scaled.param_count == current.param_count
    assert scaled.layer_bytes == current.layer_bytes
    low: Any = load("gpt", {**SMALL, "mesh": {"data": 1}, "weight_dtype": "bfloat16"})
    kinds = {
        is_scaling(v): v.get_value().dtype
        for v in jax.tree.leaves(low.abstract_state["params"], is_leaf=lambda v: isinstance(v, nnx.Variable))
    }
    assert kinds == {True: jnp.float32, False: jnp.bfloat16}

"""The parts that models are made of: weights with logical axes, matmuls in any dtype, norms, attention.

Array axes: B batch, T sequence, D model, F ffw, N heads, K kv heads, H head, V vocab, E experts, L layers.
Weights are kept in float32 and cast where they are used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from workloads import noise
from workloads.base import WorkloadError
from workloads.float8 import Scaling, matmul_current, matmul_delayed, new_scaling
from workloads.mesh import Layout
from workloads.noise import Stream

PROJECTIONS = ("query", "key", "value")


def _saves(*names: str, attention: bool = False) -> Callable[..., Any]:
    """Saves named values of a layer, and what cuDNN's attention leaves for its backward pass, if asked."""
    named = jax.checkpoint_policies.save_only_these_names(*names)

    def policy(primitive: Any, *values: Any, **parameters: Any) -> Any:
        is_attention = attention and primitive.name.startswith("dot_product_attention_fwd")
        return is_attention or named(primitive, *values, **parameters)

    return policy


def _clamped_swish(gate: jax.Array) -> jax.Array:
    gate = jnp.minimum(gate, 7.0)
    return gate * jax.nn.sigmoid(1.702 * gate)


# What a feed-forward with a gate makes of its gate and of what is gated, before they are multiplied.
GATES: dict[str, tuple[Callable[[jax.Array], jax.Array], Callable[[jax.Array], jax.Array]]] = {
    "swiglu": (jax.nn.silu, lambda up: up),
    "geglu": (jax.nn.gelu, lambda up: up),
    # https://github.com/openai/gpt-oss, gpt_oss/torch/model.py, swiglu
    "clamped_swiglu": (_clamped_swish, lambda up: jnp.clip(up, -7.0, 7.0) + 1.0),
}

REMAT_POLICIES: dict[str, Callable[..., Any] | None] = {
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": None,
    # As MaxText names and defines them (src/maxtext/layers/decoders.py); `context` there is what attention gives.
    "minimal": _saves(*PROJECTIONS, "out", "gate", "up", "down"),
    "minimal_with_context": _saves(*PROJECTIONS, "context", "out", "gate", "up", "down", attention=True),
    "save_dot_with_context_except_mlp": _saves(*PROJECTIONS, "context", "out", attention=True),
    "save_dot_except_mlpwi": _saves(*PROJECTIONS, "out", "down"),
    "save_dot_except_mlp": _saves(*PROJECTIONS, "out"),
    "save_qkv_proj": _saves(*PROJECTIONS),
}


def weight(stream: Stream, shape: tuple[int, ...], axes: tuple[str | None, ...], fan_in: int) -> nnx.Param[jax.Array]:
    """A float32 weight, uniform with variance 1 / fan_in; ``axes`` are its logical axes."""
    return nnx.Param((noise.uniform(stream(), shape) - 0.5) * (12 / fan_in) ** 0.5, axes=axes)


def filled(shape: tuple[int, ...], axes: tuple[str | None, ...], value: float) -> nnx.Param[jax.Array]:
    """A float32 weight that starts at one value: norms and biases."""
    return nnx.Param(jnp.full(shape, value, jnp.float32), axes=axes)


def compute_dtype(dtype: str) -> jnp.dtype:
    """The dtype of activations for the option ``dtype``; float8 is for the operands of matmuls only."""
    return jnp.dtype("float32" if dtype == "float32" else "bfloat16")


def matmul(equation: str, x: jax.Array, kernel: jax.Array, dtype: str, scaling: Scaling | None = None) -> jax.Array:
    """``einsum`` of activations and a float32 weight, in the compute dtype or in float8, by scales of before if any."""
    x, kernel = x.astype(compute_dtype(dtype)), kernel.astype(compute_dtype(dtype))
    if scaling is not None:
        return matmul_delayed(equation, x, kernel, scaling[...])
    return matmul_current(equation, x, kernel) if dtype == "float8" else jnp.einsum(equation, x, kernel)


def scaling_of(config: Any) -> Scaling | None:
    """What one matmul of a model keeps of its operands; None where they are scaled by what they are."""
    return new_scaling() if config.float8_scales == "delayed" else None


def check_dtype(dtype: str, layout: Layout) -> None:
    """Raises a WorkloadError where float8 is asked of GPUs older than Ada; CPUs emulate it."""
    capability = cuda_capability(layout)
    if dtype == "float8" and capability is not None and capability < 8.9:
        raise WorkloadError(
            "`dtype` = float8 needs a GPU of compute capability 8.9 or higher but "
            f"{layout.mesh.devices.flat[0].device_kind} has {capability}; use bfloat16"
        )


def cuda_capability(layout: Layout) -> float | None:
    """The compute capability of the mesh's GPUs, such as 9.0; None for what is no NVIDIA GPU."""
    found = str(getattr(layout.mesh.devices.flat[0], "compute_capability", ""))
    return float(found) if re.fullmatch(r"\d+\.\d+", found) else None  # AMD's is a word, such as gfx942


class Norm(nnx.Module):
    """RMSNorm, or LayerNorm with bias, over the last axis; computed in float32."""

    def __init__(self, size: int, *, kind: str = "rms", eps: float = 1e-5) -> None:
        self.eps = eps
        self.scale = filled((size,), (None,), 1.0)
        self.bias = filled((size,), (None,), 0.0) if kind == "layer" else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalises [..., D]."""
        y = x.astype(jnp.float32)
        if self.bias is not None:
            y = y - y.mean(-1, keepdims=True)
        y = y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + self.eps) * self.scale[...]
        return (y if self.bias is None else y + self.bias[...]).astype(x.dtype)


class FeedForward(nnx.Module):
    """A unit with a gate (SwiGLU and the like), or GELU with two matrices."""

    def __init__(self, config: Any, layout: Layout, stream: Stream) -> None:
        c = config
        self.config, self.layout = config, layout
        is_gated = c.activation in GATES
        self.gate = weight(stream, (c.d_model, c.ffw), ("embed", "ffw"), c.d_model) if is_gated else None
        self.up = weight(stream, (c.d_model, c.ffw), ("embed", "ffw"), c.d_model)
        self.down = weight(stream, (c.ffw, c.d_model), ("ffw", "embed"), c.ffw)
        self.gate_scaling = scaling_of(c) if is_gated else None
        self.up_scaling, self.down_scaling = scaling_of(c), scaling_of(c)
        self.gate_bias = filled((c.ffw,), ("ffw",), 0.0) if is_gated and c.bias else None
        if c.bias:
            self.up_bias = filled((c.ffw,), ("ffw",), 0.0)
            self.down_bias = filled((c.d_model,), (None,), 0.0)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [B, T, D] to [B, T, D]."""
        c = self.config
        y = checkpoint_name(matmul("btd,df->btf", x, self.up[...], c.dtype, self.up_scaling), "up")
        if c.bias:
            y = y + self.up_bias[...].astype(y.dtype)
        gate = None
        if self.gate is not None:
            gate = checkpoint_name(matmul("btd,df->btf", x, self.gate[...], c.dtype, self.gate_scaling), "gate")
            gate = gate if self.gate_bias is None else gate + self.gate_bias[...].astype(gate.dtype)
        if gate is None:
            y = jax.nn.gelu(y)
        else:
            on_gate, on_up = GATES[c.activation]
            y = on_gate(gate) * on_up(y)
        y = self.layout.constrain(y, "batch", "sequence", "ffw")
        y = checkpoint_name(matmul("btf,fd->btd", y, self.down[...], c.dtype, self.down_scaling), "down")
        return y + self.down_bias[...].astype(y.dtype) if c.bias else y


def layer_seeds(tokens: jax.Array, layers: int) -> jax.Array:
    """A seed for each layer and row of [B, T] tokens, u32[layers, B]: of the row alone, so that no mesh changes it."""
    rows = noise.scramble(jnp.sum(noise.scramble(tokens.astype(jnp.uint32)), axis=1, dtype=jnp.uint32))
    return noise.scramble(rows[None, :] + jnp.arange(layers, dtype=jnp.uint32)[:, None])


def dropout(x: jax.Array, seeds: jax.Array, rate: float) -> jax.Array:
    """[B, T, D] with a share of its elements zero and the others scaled up to the same mean; seeds are u32[B]."""
    draws = jax.vmap(lambda seed: noise.uniform(seed, x.shape[1:]))(seeds)
    return jnp.where(draws < rate, 0.0, x / (1.0 - rate)).astype(x.dtype)


def soft_cap(x: jax.Array, cap: float) -> jax.Array:
    """Float32 between plus and minus ``cap``; as it is where that is 0.

    References:
        Gemma 2, https://arxiv.org/abs/2408.00118, section 2
    """
    return cap * jnp.tanh(x.astype(jnp.float32) / cap) if cap else x


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Mean negative log likelihood of targets [B, T] under logits [B, T, V], in nats.

    The target's logit is picked by comparison, not by a gather, so that a split vocabulary stays split.
    """
    logits = logits.astype(jnp.float32)
    symbols = jax.lax.broadcasted_iota(targets.dtype, logits.shape, 2)
    picked = jnp.sum(jnp.where(symbols == targets[..., None], logits, 0.0), axis=-1)
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)


def remat(function: Callable[..., Any], kind: str) -> Callable[..., Any]:
    """The function, with activations recomputed in the backward pass: none, or all but what a policy saves."""
    if kind == "none":
        return function
    return jax.checkpoint(function, policy=REMAT_POLICIES[kind], prevent_cse=False)


def param_count(params: Any) -> int:
    """Weights in a tree of arrays or shapes; what is kept for float8 is none."""
    found = jax.tree.leaves(params, is_leaf=lambda leaf: isinstance(leaf, Scaling))
    return sum(math.prod(leaf.shape) for leaf in found if not isinstance(leaf, Scaling))

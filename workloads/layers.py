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
from workloads.ring import ring_attention

_PROJECTIONS = ("query", "key", "value")


def _saves(*names: str, attention: bool = False) -> Callable[..., Any]:
    """Saves named values of a layer, and what cuDNN's attention leaves for its backward pass, if asked."""
    named = jax.checkpoint_policies.save_only_these_names(*names)

    def policy(primitive: Any, *values: Any, **parameters: Any) -> Any:
        is_attention = attention and primitive.name.startswith("dot_product_attention_fwd")
        return is_attention or named(primitive, *values, **parameters)

    return policy


REMAT_POLICIES: dict[str, Callable[..., Any] | None] = {
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": None,
    # As MaxText names and defines them (src/maxtext/layers/decoders.py); `context` there is what attention gives.
    "minimal": _saves(*_PROJECTIONS, "out", "gate", "up", "down"),
    "minimal_with_context": _saves(*_PROJECTIONS, "context", "out", "gate", "up", "down", attention=True),
    "save_dot_with_context_except_mlp": _saves(*_PROJECTIONS, "context", "out", attention=True),
    "save_dot_except_mlpwi": _saves(*_PROJECTIONS, "out", "down"),
    "save_dot_except_mlp": _saves(*_PROJECTIONS, "out"),
    "save_qkv_proj": _saves(*_PROJECTIONS),
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

    def __init__(self, size: int, *, kind: str) -> None:
        self.scale = filled((size,), (None,), 1.0)
        self.bias = filled((size,), (None,), 0.0) if kind == "layer" else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalises [..., D]."""
        y = x.astype(jnp.float32)
        if self.bias is not None:
            y = y - y.mean(-1, keepdims=True)
        y = y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-5) * self.scale[...]
        return (y if self.bias is None else y + self.bias[...]).astype(x.dtype)


def rotary(seq: int, head_size: int, theta: float) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine of the rotary embedding, [T, 1, H/2] each.

    References:
        RoFormer, https://arxiv.org/abs/2104.09864
    """
    frequency = theta ** (-jnp.arange(0, head_size, 2) / head_size)
    angle = (jnp.arange(seq)[:, None] * frequency[None, :])[:, None, :]
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x: jax.Array, cos_sin: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Turns the halves of each head of [B, T, N, H] by the angles of `rotary`."""
    cos, sin = cos_sin
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = (first * cos[None] - second * sin[None], second * cos[None] + first * sin[None])
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


class Attention(nnx.Module):
    """Causal self-attention with grouped queries."""

    def __init__(self, config: Any, layout: Layout, stream: Stream) -> None:
        c = config
        self.config, self.layout = config, layout
        self.query = weight(stream, (c.d_model, c.heads, c.head_size), ("embed", "heads", None), c.d_model)
        self.key = weight(stream, (c.d_model, c.kv_heads, c.head_size), ("embed", "heads", None), c.d_model)
        self.value = weight(stream, (c.d_model, c.kv_heads, c.head_size), ("embed", "heads", None), c.d_model)
        self.out = weight(stream, (c.heads, c.head_size, c.d_model), ("heads", None, "embed"), c.heads * c.head_size)
        self.query_scaling, self.key_scaling, self.value_scaling = (scaling_of(c) for _ in _PROJECTIONS)
        self.out_scaling = scaling_of(c)
        if c.bias:
            self.query_bias = filled((c.heads, c.head_size), ("heads", None), 0.0)
            self.key_bias = filled((c.kv_heads, c.head_size), ("heads", None), 0.0)
            self.value_bias = filled((c.kv_heads, c.head_size), ("heads", None), 0.0)
            self.out_bias = filled((c.d_model,), (None,), 0.0)

    def __call__(self, x: jax.Array, cos_sin: tuple[jax.Array, jax.Array] | None) -> jax.Array:
        """Attends over [B, T, D]."""
        c, hold = self.config, self.layout.constrain
        scalings = (self.query_scaling, self.key_scaling, self.value_scaling)
        parts = zip(_PROJECTIONS, (self.query, self.key, self.value), scalings, strict=True)
        q, k, v = (checkpoint_name(matmul("btd,dnh->btnh", x, w[...], c.dtype, s), name) for name, w, s in parts)
        if c.bias:
            biases = (self.query_bias, self.key_bias, self.value_bias)
            q, k, v = (y + b[...].astype(y.dtype) for y, b in zip((q, k, v), biases, strict=True))
        if cos_sin is not None:
            q, k = rotate(q, cos_sin), rotate(k, cos_sin)
        q = hold(q, "batch", "sequence", "heads", None)
        if c.attention == "ring":
            y = ring_attention(q, k, v, self.layout)
        else:
            # every device needs all keys of its heads: gathered over context, as Llama 3 did (section 3.3.2)
            k, v = (hold(y, "batch", None, "heads", None) for y in (k, v))
            y = causal_attention(q, k, v, c.attention)
        y = checkpoint_name(hold(y, "batch", "sequence", "heads", None), "context")
        y = checkpoint_name(matmul("btnh,nhd->btd", y, self.out[...], c.dtype, self.out_scaling), "out")
        return y + self.out_bias[...].astype(y.dtype) if c.bias else y


def causal_attention(q: jax.Array, k: jax.Array, v: jax.Array, implementation: Any) -> jax.Array:
    """Causal attention of [B, T, N, H] to [B, T, K, H] by XLA or cuDNN, giving [B, T, N, H].

    Raises:
        WorkloadError: If cuDNN is asked for and JAX does not find it.
    """
    try:
        return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=implementation)
    except RuntimeError as e:
        if implementation != "cudnn":
            raise
        raise WorkloadError(
            f"`attention` = cudnn, the default on GPUs, must find cuDNN but JAX says: {e} Run: "
            "pip install nvidia-cudnn-cu12 (it is part of the extra `screen`), or set `attention` = xla"
        ) from e


class FeedForward(nnx.Module):
    """SwiGLU, or GELU with two matrices."""

    def __init__(self, config: Any, layout: Layout, stream: Stream) -> None:
        c = config
        self.config, self.layout = config, layout
        self.gate = (
            weight(stream, (c.d_model, c.ffw), ("embed", "ffw"), c.d_model) if c.activation == "swiglu" else None
        )
        self.up = weight(stream, (c.d_model, c.ffw), ("embed", "ffw"), c.d_model)
        self.down = weight(stream, (c.ffw, c.d_model), ("ffw", "embed"), c.ffw)
        self.gate_scaling = scaling_of(c) if c.activation == "swiglu" else None
        self.up_scaling, self.down_scaling = scaling_of(c), scaling_of(c)
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
        y = jax.nn.gelu(y) if gate is None else jax.nn.silu(gate) * y
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

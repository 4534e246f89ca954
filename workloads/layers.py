"""Parts of models: flax's layers with logical axes, in any dtype, and a feed-forward.

Array axes: B batch, T sequence, D model, F ffw, N heads, K kv heads, H head, V vocab, E experts, L
layers. Weights are kept in float32 and cast where they are used. Their logical axes are what
`workloads.mesh` has rules for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from workloads import noise
from workloads.base import WorkloadError
from workloads.float8 import DelayedDotGeneral, Scaling, current_dot_general, matmul_current
from workloads.mesh import PINNED, Layout
from workloads.noise import Stream, lecun_uniform

Axes = tuple[str | None, ...]
T = TypeVar("T", bound=Callable[..., Any])

PROJECTIONS = ("query", "key", "value")


def _saves(*names: str, attention: bool = False) -> Callable[..., Any]:
    """Saves named values of a layer, and if asked what cuDNN's backward pass needs."""
    named = jax.checkpoint_policies.save_only_these_names(*names)

    def policy(primitive: Any, *values: Any, **parameters: Any) -> Any:
        is_attention = attention and primitive.name.startswith("dot_product_attention_fwd")
        return is_attention or named(primitive, *values, **parameters)

    return policy


def _clamped_swish(gate: jax.Array) -> jax.Array:
    gate = jnp.minimum(gate, 7.0)
    return gate * jax.nn.sigmoid(1.702 * gate)


# What a feed-forward with a gate makes of its gate and of what is gated, before they are
# multiplied.
GATES: dict[str, tuple[Callable[[jax.Array], jax.Array], Callable[[jax.Array], jax.Array]]] = {
    "swiglu": (jax.nn.silu, lambda up: up),
    "geglu": (jax.nn.gelu, lambda up: up),
    # https://github.com/openai/gpt-oss, gpt_oss/torch/model.py, swiglu
    "clamped_swiglu": (_clamped_swish, lambda up: jnp.clip(up, -7.0, 7.0) + 1.0),
}

REMAT_POLICIES: dict[str, Callable[..., Any] | None] = {
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": None,
    # As MaxText names and defines them (src/maxtext/layers/decoders.py); `context` there is what
    # attention gives.
    "minimal": _saves(*PROJECTIONS, "out", "gate", "up", "down"),
    "minimal_with_context": _saves(
        *PROJECTIONS, "context", "out", "gate", "up", "down", attention=True
    ),
    "save_dot_with_context_except_mlp": _saves(*PROJECTIONS, "context", "out", attention=True),
    "save_dot_except_mlpwi": _saves(*PROJECTIONS, "out", "down"),
    "save_dot_except_mlp": _saves(*PROJECTIONS, "out"),
    "save_qkv_proj": _saves(*PROJECTIONS),
    "minimal_offloaded": jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", PINNED),
    "qkv_proj_offloaded": jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=(),
        names_which_can_be_offloaded=PROJECTIONS,
        offload_src="device",
        offload_dst=PINNED,
    ),
}


def partitioned(initializer: T, axes: Axes) -> T:
    """An initializer with logical axes, which the step's jitted ``init`` lays out."""
    return nnx.with_partitioning(initializer, axes, eager_sharding=False)


def weight(stream: Stream, shape: tuple[int, ...], axes: Axes) -> nnx.Param[jax.Array]:
    """A float32 weight that is multiplied with over its last axis but one."""
    return nnx.Param(partitioned(lecun_uniform, axes)(stream(), shape))


def filled(shape: tuple[int, ...], axes: Axes, value: float) -> nnx.Param[jax.Array]:
    """A float32 weight that starts at one value."""
    return nnx.Param(jnp.full(shape, value, jnp.float32), out_sharding=axes, eager_sharding=False)


def compute_dtype(dtype: str) -> jnp.dtype:
    """The dtype of activations for option ``dtype``; float8 is for operands of matmuls only."""
    return jnp.dtype("float32" if dtype == "float32" else "bfloat16")


def linear(
    config: Any,
    size_in: int | tuple[int, ...],
    size_out: int | tuple[int, ...],
    axes: Axes,
    stream: Stream,
    *,
    has_bias: bool = False,
    dtype: str | None = None,
) -> nnx.LinearGeneral:
    """A linear layer over the last axes of its input, in the config's ``dtype``, or another.

    Args:
        axes: Of the weights, those of the input first. Biases have those of the output, but are not
            split by ``embed``.
    """
    kind = dtype or config.dtype
    inputs = len(size_in) if isinstance(size_in, tuple) else 1
    bias_axes = tuple(None if axis == "embed" else axis for axis in axes[inputs:])
    return nnx.LinearGeneral(
        size_in,
        size_out,
        axis=tuple(range(-inputs, 0)),
        use_bias=has_bias,
        dtype=compute_dtype(kind),
        kernel_init=partitioned(lecun_uniform, axes),
        bias_init=partitioned(nnx.initializers.zeros, bias_axes),
        dot_general=_dot_general(kind, config.float8_scales),
        rngs=stream,  # type: ignore[arg-type]
    )


def _dot_general(dtype: str, float8_scales: str) -> Any:
    """What a linear layer multiplies with; None for `jax.lax.dot_general`."""
    if dtype != "float8":
        return None
    return DelayedDotGeneral() if float8_scales == "delayed" else current_dot_general


def embedding(dtype: str, count: int, size: int, axes: Axes, stream: Stream) -> nnx.Embed:
    """A table of vectors for ``count`` symbols."""
    start = partitioned(partial(lecun_uniform, in_axis=-1), axes)
    return nnx.Embed(count, size, dtype=compute_dtype(dtype), embedding_init=start, rngs=stream)  # type: ignore[arg-type]


def matmul(equation: str, x: jax.Array, kernel: jax.Array, dtype: str) -> jax.Array:
    """``einsum`` of activations and a float32 weight, in the compute dtype or in float8."""
    x, kernel = x.astype(compute_dtype(dtype)), kernel.astype(compute_dtype(dtype))
    return (
        matmul_current(equation, x, kernel)
        if dtype == "float8"
        else jnp.einsum(equation, x, kernel)
    )


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
    return (
        float(found) if re.fullmatch(r"\d+\.\d+", found) else None
    )  # AMD's is a word, such as gfx942


class Norm(nnx.Module):
    """RMSNorm, or LayerNorm with bias, over the last axis; computed in float32.

    `nnx.RMSNorm` becomes four more kernels in the backward pass of each layer of a Llama (XLA of
    jaxlib 0.11.2, H100).
    """

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
        into = partial(linear, c, c.d_model, c.ffw, ("embed", "ffw"), stream, has_bias=c.bias)
        self.gate = into() if c.activation in GATES else None
        self.up = into()
        self.down = linear(c, c.ffw, c.d_model, ("ffw", "embed"), stream, has_bias=c.bias)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [B, T, D] to [B, T, D]."""
        y = checkpoint_name(self.up(x), "up")
        if self.gate is None:
            y = jax.nn.gelu(y)
        else:
            on_gate, on_up = GATES[self.config.activation]
            y = on_gate(checkpoint_name(self.gate(x), "gate")) * on_up(y)
        y = self.layout.constrain(y, "batch", "sequence", "ffw")
        return checkpoint_name(self.down(y), "down")


def layer_seeds(tokens: jax.Array, layers: int) -> jax.Array:
    """Seeds by layer and row of [B, T] tokens, u32[layers, B]; no mesh changes them."""
    rows = noise.scramble(
        jnp.sum(noise.scramble(tokens.astype(jnp.uint32)), axis=1, dtype=jnp.uint32)
    )
    return noise.scramble(rows[None, :] + jnp.arange(layers, dtype=jnp.uint32)[:, None])


def dropout(x: jax.Array, seeds: jax.Array, rate: float) -> jax.Array:
    """[B, T, D] with a share of zeros and the others scaled up alike; seeds are u32[B]."""
    draws = jax.vmap(lambda seed: noise.uniform(seed, x.shape[1:]))(seeds)
    return jnp.where(draws < rate, 0.0, x / (1.0 - rate)).astype(x.dtype)


def soft_cap(x: jax.Array, cap: float) -> jax.Array:
    """Float32 between plus and minus ``cap``; as it is where that is 0.

    References:
        Gemma 2, https://arxiv.org/abs/2408.00118, section 2
    """
    return cap * jnp.tanh(x.astype(jnp.float32) / cap) if cap else x


def cross_entropy(logits: jax.Array, targets: jax.Array, *, left_out: int = 0) -> jax.Array:
    """Mean negative log likelihood of targets [B, T] under logits [B, T, V], in nats.

    The target's logit is picked by comparison, not by a gather, so that a split vocabulary stays
    split. Of so many last targets ``left_out`` it is 0.
    """
    logits = logits.astype(jnp.float32)
    symbols = jax.lax.broadcasted_iota(targets.dtype, logits.shape, 2)
    picked = jnp.sum(jnp.where(symbols == targets[..., None], logits, 0.0), axis=-1)
    found = jax.nn.logsumexp(logits, axis=-1) - picked
    if left_out:
        found = jnp.where(jnp.arange(found.shape[1]) < found.shape[1] - left_out, found, 0.0)
    return jnp.mean(found)


def remat(function: Callable[..., Any], kind: str) -> Callable[..., Any]:
    """Recomputes all activations in the backward pass but those that a policy saves."""
    if kind == "none":
        return function
    return jax.checkpoint(function, policy=REMAT_POLICIES[kind], prevent_cse=False)


def param_count(params: Any) -> int:
    """Weights in a tree of arrays or shapes; what is kept for float8 is none."""
    found = jax.tree.leaves(params, is_leaf=lambda leaf: isinstance(leaf, Scaling))
    return sum(math.prod(leaf.shape) for leaf in found if not isinstance(leaf, Scaling))

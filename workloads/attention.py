"""Causal self-attention with grouped queries, windows, sinks; keys and values may be latent."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from workloads.base import WorkloadError
from workloads.config import DecoderConfig
from workloads.layers import PROJECTIONS, Norm, filled, linear, soft_cap
from workloads.mesh import Layout
from workloads.noise import Stream
from workloads.ring import ring_attention
from workloads.rope import rotate

CosSin = tuple[jax.Array, jax.Array] | None
_QUERIES = 1024  # at once, where all logits of attention would be in memory
Heads = tuple[jax.Array, jax.Array, jax.Array]


class Attention(nnx.Module):
    """Causal self-attention with grouped queries."""

    def __init__(self, config: DecoderConfig, layout: Layout, stream: Stream) -> None:
        c = config
        self.config, self.layout = config, layout
        self._make_projections(stream)
        out = (c.heads, c.value_width)
        self.out = linear(c, out, c.d_model, ("heads", None, "embed"), stream, has_bias=c.bias)
        self.sinks = filled((c.heads,), ("heads",), 0.0) if c.sinks else None

    def _make_projections(self, stream: Stream) -> None:
        c, axes = self.config, ("embed", "heads", None)
        into = partial(
            linear, c, c.d_model, axes=axes, stream=stream, has_bias=c.bias or c.qkv_bias
        )
        self.query = into(size_out=(c.heads, c.head_size))
        self.key, self.value = (into(size_out=(c.kv_heads, c.head_size)) for _ in range(2))
        if c.qk_norm != "none":
            query, key = (1, 1) if c.qk_norm == "head" else (c.heads, c.kv_heads)
            self.query_norm = Norm(query * c.head_size, eps=c.norm_eps)
            self.key_norm = Norm(key * c.head_size, eps=c.norm_eps)

    def __call__(self, x: jax.Array, cos_sin: CosSin) -> jax.Array:
        """Attends over [B, T, D]."""
        hold = self.layout.constrain
        q, k, v = self.project(x, cos_sin)
        y = self.attend(hold(q, "batch", "sequence", "heads", None), k, v)
        y = checkpoint_name(hold(y, "batch", "sequence", "heads", None), "context")
        return checkpoint_name(self.out(y), "out")

    def project(self, x: jax.Array, cos_sin: CosSin) -> Heads:
        """Queries [B, T, N, H], keys and values [B, T, K, H] of [B, T, D], normalised, rotated."""
        q, k, v = (checkpoint_name(getattr(self, name)(x), name) for name in PROJECTIONS)
        if self.config.qk_norm != "none":
            q, k = self._normalised(q, self.query_norm), self._normalised(k, self.key_norm)
        if cos_sin is not None:
            q, k = rotate(q, cos_sin), rotate(k, cos_sin)
        return q, k, v

    def _normalised(self, heads: jax.Array, norm: Norm) -> jax.Array:
        if self.config.qk_norm == "head":
            return norm(heads)
        return norm(heads.reshape(*heads.shape[:2], -1)).reshape(heads.shape)

    def attend(self, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        """Attends [B, T, N, H] to [B, T, K, H] by the config's implementation; [B, T, N, H]."""
        c, hold = self.config, self.layout.constrain
        if c.attention == "ring":
            return ring_attention(q, k, v, self.layout, c.attention_scale)
        # every device needs all keys of its heads: gathered over context, as Llama 3 did (section
        # 3.3.2)
        k, v = (hold(y, "batch", None, "heads", None) for y in (k, v))
        if c.attention_cap or self.sinks is not None:
            # a sequence that is split is taken at once: each device has a part of it anyway
            at_once = c.seq if self.layout.size("sequence") > 1 else _QUERIES
            sinks = None if self.sinks is None else self.sinks[...]
            return capped_attention(q, k, v, config=c, sinks=sinks, at_once=at_once)
        lengths = (
            hold(jnp.full(len(q), c.seq, jnp.int32), "batch")
            if c.mask == "padding_causal"
            else None
        )
        return causal_attention(
            q, k, v, c.attention, scale=c.attention_scale, window=c.window, lengths=lengths
        )


class LatentAttention(Attention):
    """Attention with keys and values from one small latent per token, each head partly rotated.

    References:
        DeepSeek-V2, https://arxiv.org/abs/2405.04434, section 2.1
    """

    def _make_projections(self, stream: Stream) -> None:
        c = self.config
        rank = c.q_rank or c.d_model
        if c.q_rank:
            self.query_down = linear(c, c.d_model, rank, ("embed", None), stream)
            self.query_norm = Norm(rank, eps=c.norm_eps)
        self.query = linear(c, rank, (c.heads, c.head_size), ("embed", "heads", None), stream)
        self.latent = linear(c, c.d_model, c.kv_rank + c.rope_size, ("embed", None), stream)
        self.latent_norm = Norm(c.kv_rank, eps=c.norm_eps)
        width = c.head_size - c.rope_size + c.value_width
        self.key_value = linear(c, c.kv_rank, (c.heads, width), ("embed", "heads", None), stream)

    def project(self, x: jax.Array, cos_sin: CosSin) -> Heads:
        """Queries, keys [B, T, N, H] and values [B, T, N, V] of [B, T, D]; H is partly rotated."""
        c, hold = self.config, self.layout.constrain
        assert cos_sin is not None  # held by the config's check
        plain = c.head_size - c.rope_size
        down = self.query_norm(self.query_down(x)) if c.q_rank else x
        q = checkpoint_name(self.query(down), "query")
        latent = self.latent(x)
        latent, turned = latent[..., : c.kv_rank], rotate(latent[..., None, c.kv_rank :], cos_sin)
        key_value = hold(
            self.key_value(self.latent_norm(latent)), "batch", "sequence", "heads", None
        )
        shared = jnp.broadcast_to(turned, (*q.shape[:-1], c.rope_size))
        q = jnp.concatenate([q[..., :plain], rotate(q[..., plain:], cos_sin)], axis=-1)
        k = jnp.concatenate([key_value[..., :plain], shared], axis=-1)
        return q, checkpoint_name(k, "key"), checkpoint_name(key_value[..., plain:], "value")

    def attend(self, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        """As `Attention.attend`, with values zero-padded to the size of keys."""
        width = v.shape[-1]
        v = jnp.pad(v, ((0, 0), (0, 0), (0, 0), (0, k.shape[-1] - width)))
        return super().attend(q, k, v)[..., :width]


def causal_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    implementation: Any,
    *,
    scale: float | None = None,
    window: int = 0,
    lengths: jax.Array | None = None,
) -> jax.Array:
    """Causal attention of [B, T, N, H] to [B, T, K, H] by XLA or cuDNN, giving [B, T, N, H].

    Args:
        scale: Of logits; one over the square root of H if None.
        window: So many keys, that of the own token included, are attended to; all if 0.
        lengths: Of the sequences, i32[B]; all are full if None.

    Raises:
        WorkloadError: If cuDNN is asked for and JAX does not find it.
    """
    local = (window - 1, 0) if window else None
    try:
        return jax.nn.dot_product_attention(
            q,
            k,
            v,
            scale=scale,
            is_causal=True,
            local_window_size=local,
            implementation=implementation,
            query_seq_lengths=lengths,
            key_value_seq_lengths=lengths,
        )
    except RuntimeError as e:
        if implementation != "cudnn":
            raise
        raise WorkloadError(
            f"`attention` = cudnn, the default on GPUs, must find cuDNN but JAX says: {e} Run: "
            "pip install nvidia-cudnn-cu12 (it is part of the extra `screen`), or set "
            "`attention` = xla"
        ) from e


def capped_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    config: DecoderConfig,
    sinks: jax.Array | None,
    at_once: int,
) -> jax.Array:
    """As `causal_attention`, with soft caps and sinks [N], which JAX's own function lacks.

    It gives the sum that a sink is added to as well, but not the gradient of it by cuDNN (JAX
    0.10.2, 0.12.0.1). Of a longer sequence that many queries ``at_once`` are taken, with the keys
    that they can see, and their logits computed again in the backward pass.
    """
    length, before = q.shape[1], config.window - 1
    if length <= at_once or length % at_once:
        return _capped(q, k, v, 0, config, sinks)
    width = at_once + before
    has_fewer_keys = config.window > 0 and width < length
    if has_fewer_keys:
        k, v = (jnp.pad(y, ((0, 0), (before, 0), (0, 0), (0, 0))) for y in (k, v))

    def part(queries_and_start: tuple[jax.Array, jax.Array]) -> jax.Array:
        queries, start = queries_and_start
        if not has_fewer_keys:
            return _capped(queries, k, v, start, config, sinks)
        own_k, own_v = (jax.lax.dynamic_slice_in_dim(y, start, width, axis=1) for y in (k, v))
        return _capped(queries, own_k, own_v, before, config, sinks, padding=before - start)

    queries = jnp.moveaxis(q.reshape(q.shape[0], -1, at_once, *q.shape[2:]), 1, 0)
    y = jax.lax.map(
        jax.checkpoint(part, prevent_cse=False), (queries, jnp.arange(0, length, at_once))
    )
    return jnp.moveaxis(y, 0, 1).reshape(q.shape)


def _capped(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    start: Any,
    config: DecoderConfig,
    sinks: Any,
    padding: Any = 0,
) -> jax.Array:
    """`capped_attention` of queries from key ``start`` on; the first keys may be ``padding``."""
    rows, length, heads, size = q.shape
    groups = k.shape[2]
    scale = size**-0.5 if config.attention_scale is None else config.attention_scale
    grouped = (q * scale).reshape(rows, length, groups, heads // groups, size)
    logits = jnp.einsum("btkgh,bskh->bkgts", grouped, k, preferred_element_type=jnp.float32)
    key = jnp.arange(k.shape[1])[None, :]
    age = start + jnp.arange(length)[:, None] - key
    is_seen = (age >= 0) & (age < (config.window or k.shape[1])) & (key >= padding)
    logits = jnp.where(is_seen, soft_cap(logits, config.attention_cap), -jnp.inf)
    total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    shares = jnp.exp(logits - total)
    if sinks is not None:
        shares = shares * jax.nn.sigmoid(total - sinks.reshape(1, groups, -1, 1, 1))
    y = jnp.einsum("bkgts,bskh->btkgh", shares.astype(v.dtype), v)
    return y.reshape(rows, length, heads, size)

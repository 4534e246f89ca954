"""Attention over a split sequence: keys and values travel round the context axis."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from workloads.mesh import Layout

_MASKED = -1e30  # finite, so that a part with nothing to see gives no NaN


def ring_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, layout: Layout, scale: float | None = None
) -> jax.Array:
    """Causal attention of [B, T, N, H] to [B, T, K, H], split over the context axis.

    No device ever holds more than one part of the keys, nor logits of more than its part by one
    other; the softmax is summed up as they pass. Parts wholly in the future are computed and
    masked: the last device has none of them, and all wait for it.

    Args:
        scale: Of logits; one over the square root of H if None.

    References:
        Ring Attention, https://arxiv.org/abs/2310.01889
    """
    spec = layout.spec(("batch", "sequence", "heads", None))
    local = partial(_local, parts=layout.size("sequence"), scale=scale)
    # check_vma=False: under vmap (pipeline stages) the check of jax 0.10 refuses the rematerialised
    # body; it is not needed for right gradients, because every operand is split over every axis
    run = jax.shard_map(
        local, mesh=layout.mesh, in_specs=(spec,) * 3, out_specs=spec, check_vma=False
    )
    return run(q, k, v)


def _local(
    q: jax.Array, k: jax.Array, v: jax.Array, *, parts: int, scale: float | None
) -> jax.Array:
    """One device's part: [b, t, n, h] queries against every part of the keys in turn."""
    rows, length, heads, size = q.shape
    groups = k.shape[2]
    q = (q * (size**-0.5 if scale is None else scale)).reshape(
        rows, length, groups, heads // groups, size
    )
    here = jax.lax.axis_index("context")
    position = jnp.arange(length)
    ring = [(i, (i + 1) % parts) for i in range(parts)]

    @partial(jax.checkpoint, prevent_cse=False)
    def visit(
        k: jax.Array, v: jax.Array, turn: jax.Array | int
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Sums of values and weights and the largest logit against one turn's part."""
        owner = (here - turn) % parts
        logits = jnp.einsum("btkgh,bskh->bkgts", q, k, preferred_element_type=jnp.float32)
        is_past = (here * length + position)[:, None] >= (owner * length + position)[None, :]
        logits = jnp.where(is_past[None, None, None], logits, _MASKED)
        peak = logits.max(-1)
        share = jnp.exp(logits - peak[..., None])
        total = jnp.einsum(
            "bkgts,bskh->bkgth", share.astype(v.dtype), v, preferred_element_type=jnp.float32
        )
        return total, share.sum(-1), peak

    def turn_once(carry: Any, turn: jax.Array) -> tuple[Any, None]:
        k, v, total, weights, largest = carry
        k, v = (jax.lax.ppermute(y, "context", ring) for y in (k, v))
        more, more_weights, peak = visit(k, v, turn)
        new = jnp.maximum(largest, peak)
        old_share, new_share = jnp.exp(largest - new), jnp.exp(peak - new)
        total = total * old_share[..., None] + more * new_share[..., None]
        return (k, v, total, weights * old_share + more_weights * new_share, new), None

    # the own part comes first, so that every row has a key before a part that is masked altogether
    start = (k, v, *visit(k, v, 0))
    (_, _, total, weights, _), _ = jax.lax.scan(turn_once, start, jnp.arange(1, parts))
    y = total / weights[..., None]  # [b, k, g, t, h]
    return y.transpose(0, 3, 1, 2, 4).reshape(rows, length, heads, size).astype(v.dtype)

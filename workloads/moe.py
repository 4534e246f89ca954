"""Mixture of experts in place of the feed-forward: top-k routing, dropless or with a capacity."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from workloads.layers import compute_dtype, matmul, weight
from workloads.mesh import Layout
from workloads.noise import Stream


class Experts(nnx.Module):
    """A router and its SwiGLU experts.

    References:
        Mixtral, https://arxiv.org/abs/2401.04088
    """

    def __init__(self, config: Any, layout: Layout, stream: Stream) -> None:
        c = config
        self.config, self.layout = config, layout
        self.router = weight(stream, (c.d_model, c.experts), ("embed", None), c.d_model)
        into, out = ("expert", "expert_embed", "ffw"), ("expert", "ffw", "expert_embed")
        self.gate = weight(stream, (c.experts, c.d_model, c.ffw), into, c.d_model)
        self.up = weight(stream, (c.experts, c.d_model, c.ffw), into, c.d_model)
        self.down = weight(stream, (c.experts, c.ffw, c.d_model), out, c.ffw)

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps [B, T, D] to [B, T, D]; also gives the balance loss, f32[]."""
        c = self.config
        scores = matmul("btd,de->bte", x.astype(jnp.float32), self.router[...], "float32")
        chosen, experts = jax.lax.top_k(scores, c.top_k)  # [B, T, K]
        shares = jax.nn.softmax(chosen, axis=-1)
        run = self._dropless if c.routing == "dropless" else self._with_capacity
        return run(x, experts, shares).astype(x.dtype), balance_loss(scores, experts)

    def _with_capacity(self, x: jax.Array, experts: jax.Array, shares: jax.Array) -> jax.Array:
        """Each expert takes its first C tokens of every sequence; the rest pass by on the residual stream.

        References:
            GShard, https://arxiv.org/abs/2006.16668; slots by gather instead of by one-hot products
        """
        c, hold = self.config, self.layout.constrain
        rows, seq, _ = x.shape
        capacity = min(seq, math.ceil(seq * c.top_k * c.capacity_factor / c.experts))
        flat = experts.reshape(rows, seq * c.top_k)
        order = jnp.cumsum(jax.nn.one_hot(flat, c.experts, dtype=jnp.int32), axis=1)
        place = jnp.take_along_axis(order, flat[..., None], axis=2)[..., 0] - 1
        is_kept = place < capacity
        slot = jnp.where(is_kept, flat * capacity + place, c.experts * capacity)  # [B, T*K], the last: dropped
        token = jnp.broadcast_to(jnp.arange(seq * c.top_k) // c.top_k, flat.shape)

        def scatter(slots: jax.Array, tokens: jax.Array) -> jax.Array:
            return jnp.full((c.experts * capacity + 1,), seq, jnp.int32).at[slots].set(tokens)[:-1]

        padded = jnp.pad(x, ((0, 0), (0, 1), (0, 0)))  # row `seq` is what an empty slot reads
        taken = jax.vmap(lambda y, i: y[i])(padded, jax.vmap(scatter)(slot, token))
        taken = taken.reshape(rows, c.experts, capacity, -1)
        # tokens go to their experts and come back: an all-to-all over the expert axis each way
        taken = hold(taken, "batch_of_expert", "expert", None, None)
        y = jax.nn.silu(matmul("becd,edf->becf", taken, self.gate[...], c.dtype))
        y = hold(y * matmul("becd,edf->becf", taken, self.up[...], c.dtype), "batch_of_expert", "expert", None, "ffw")
        y = hold(matmul("becf,efd->becd", y, self.down[...], c.dtype), "batch_of_expert", "expert", None, None)
        y = hold(y, "batch", None, None, None).reshape(rows, c.experts * capacity, -1)
        y = jax.vmap(lambda out, i: out[i])(jnp.pad(y, ((0, 0), (0, 1), (0, 0))), slot)  # [B, T*K, D]
        y = y.reshape(rows, seq, c.top_k, -1) * shares[..., None].astype(y.dtype)
        return y.sum(2)

    def _dropless(self, x: jax.Array, experts: jax.Array, shares: jax.Array) -> jax.Array:
        """Every token reaches all its experts: sorted by expert, one grouped matmul.

        Over the expert axis each device gathers the tokens of its peers, runs those that chose one of its own
        experts, and the parts are summed back to where they came from (a reduce-scatter). Unless
        ``JAX_RAGGED_DOT_USE_GPU_PALLAS_TRITON_LOWERING`` is set, JAX (0.10.2) lowers a grouped matmul for CPU and GPU
        to a masked one over all of a device's experts, which costs that many times the FLOPs.
        """
        c, layout = self.config, self.layout
        weights = [w[...].astype(compute_dtype(c.dtype)) for w in (self.gate, self.up, self.down)]
        rows = layout.spec(("batch", "sequence", None))
        into = layout.spec(("expert", None, "ffw"))
        out = layout.spec(("expert", "ffw", None))
        return jax.shard_map(
            self._local_experts, mesh=layout.mesh, in_specs=(rows, rows, rows, into, into, out), out_specs=rows
        )(x, experts, shares, *weights)

    def _local_experts(
        self, x: jax.Array, experts: jax.Array, shares: jax.Array, gate: jax.Array, up: jax.Array, down: jax.Array
    ) -> jax.Array:
        """One device's part of `_dropless`."""
        c, shape = self.config, x.shape
        mine = len(gate)

        def gather(y: jax.Array) -> jax.Array:
            return jax.lax.all_gather(y, "expert", axis=0, tiled=True).reshape(-1, y.shape[-1])

        x, experts, shares = gather(x), gather(experts).reshape(-1), gather(shares).reshape(-1)
        local = experts - jax.lax.axis_index("expert") * mine
        local = jnp.where((local >= 0) & (local < mine), local, mine)  # the last group belongs to others
        order = jnp.argsort(local)
        sizes = jnp.bincount(local, length=mine + 1)[:mine].astype(jnp.int32)
        taken = x[order // c.top_k]
        y = jax.nn.silu(jax.lax.ragged_dot(taken, gate, sizes)) * jax.lax.ragged_dot(taken, up, sizes)
        y = jax.lax.ragged_dot(y, down, sizes)
        y = y * jnp.where(local[order] < mine, shares[order], 0.0)[:, None].astype(y.dtype)
        y = jnp.zeros_like(x).at[order // c.top_k].add(y)
        y = jax.lax.psum_scatter(y.reshape(-1, *shape[1:]), "expert", scatter_dimension=0, tiled=True)
        return jax.lax.psum(y, "tensor")


def balance_loss(scores: jax.Array, experts: jax.Array) -> jax.Array:
    """Mean over sequences of experts times the product of load and probability; 1 when balanced.

    Per sequence, so that it does not depend on how a batch is split.

    References:
        Switch Transformer, equation 4, https://arxiv.org/abs/2101.03961
    """
    count = scores.shape[-1]
    load = jax.nn.one_hot(experts, count).mean((1, 2))  # [B, E]
    probability = jax.nn.softmax(scores, axis=-1).mean(1)
    return jnp.mean(jnp.sum(load * probability, axis=-1)) * count

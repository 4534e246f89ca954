"""Mixture of experts in place of the feed-forward: top-k routing, dropless or with a capacity."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

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
        chosen, experts = self._choose(scores)
        shares = jax.nn.softmax(chosen, axis=-1)
        run = self._dropless if c.routing == "dropless" else self._with_capacity
        return run(x, experts, shares).astype(x.dtype), balance_loss(scores, experts)

    def _choose(self, scores: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The largest scores of each token and whose they are, [B, T, K] each.

        On each device for itself: a partitioner gathers the scores of all of them first.
        """
        rows = self.layout.spec(("batch", "sequence", None))

        def largest(mine: jax.Array) -> tuple[jax.Array, jax.Array]:
            values, experts = jax.lax.top_k(mine, self.config.top_k)
            return values, experts

        return jax.shard_map(largest, mesh=self.layout.mesh, in_specs=rows, out_specs=(rows, rows))(scores)

    def _with_capacity(self, x: jax.Array, experts: jax.Array, shares: jax.Array) -> jax.Array:
        """Each expert takes its first C tokens of every sequence; the rest pass by on the residual stream.

        References:
            GShard, https://arxiv.org/abs/2006.16668; slots by gather instead of by one-hot products
        """
        layout = self.layout
        weights = [w[...].astype(compute_dtype(self.config.dtype)) for w in (self.gate, self.up, self.down)]
        rows, whole = layout.spec(("batch", "sequence", None)), layout.spec(("batch", None, None))
        into, out = layout.spec(("expert", None, "ffw")), layout.spec(("expert", "ffw", None))
        return jax.shard_map(
            self._local_slots, mesh=layout.mesh, in_specs=(rows, whole, rows, into, into, out), out_specs=rows
        )(x, experts, shares, *weights)

    def _local_slots(
        self, x: jax.Array, experts: jax.Array, shares: jax.Array, gate: jax.Array, up: jax.Array, down: jax.Array
    ) -> jax.Array:
        """One device's part of `_with_capacity`: its own tokens into slots, the slots to their experts and back.

        Written for one device, because a partitioner that is left to itself gathers the tokens of all of them.
        """
        c, (rows, seq, _) = self.config, x.shape
        parts = jax.lax.axis_size("context")
        slot, slots = self._slots(experts, parts)  # of all tokens of these sequences
        mine = jax.lax.dynamic_slice_in_dim(slot, jax.lax.axis_index("context") * seq * c.top_k, seq * c.top_k, axis=1)

        source = jnp.full((rows, slots + 1), seq, jnp.int32)  # row `seq` is what an empty slot reads
        token = jnp.broadcast_to(jnp.arange(seq * c.top_k) // c.top_k, mine.shape)
        source = source.at[jnp.arange(rows)[:, None], mine].set(token)[:, :-1]
        taken = _rows(x, source).reshape(rows, c.experts, slots // c.experts, -1)
        if parts > 1:  # each device has filled the slots of its own tokens only
            taken = jax.lax.psum_scatter(taken, "context", scatter_dimension=2, tiled=True)
        taken = jax.lax.all_to_all(taken, "expert", split_axis=1, concat_axis=0, tiled=True)
        gated, y = (
            checkpoint_name(matmul("becd,edf->becf", taken, w, c.dtype), n) for n, w in (("gate", gate), ("up", up))
        )
        y = checkpoint_name(matmul("becf,efd->becd", jax.nn.silu(gated) * y, down, c.dtype), "down")
        y = jax.lax.all_to_all(y, "expert", split_axis=0, concat_axis=1, tiled=True)
        if parts > 1:
            y = jax.lax.all_gather(y, "context", axis=2, tiled=True)
        y = _rows(y.reshape(rows, slots, -1), mine)  # [B, T*K, D]
        y = y.reshape(rows, seq, c.top_k, -1) * shares[..., None].astype(y.dtype)
        return jax.lax.psum(y.sum(2), "tensor")

    def _slots(self, experts: jax.Array, parts: int) -> tuple[jax.Array, int]:
        """The slot of each token's choices, [B, T*K], and how many slots there are; that many stands for none.

        The slots of an expert are filled up to a multiple of `parts`.
        """
        c, (rows, seq, _) = self.config, experts.shape
        capacity = min(seq, math.ceil(seq * c.top_k * c.capacity_factor / c.experts))
        filled = math.ceil(capacity / parts) * parts
        flat = experts.reshape(rows, seq * c.top_k)
        order = jnp.cumsum(jax.nn.one_hot(flat, c.experts, dtype=jnp.int32), axis=1)
        place = jnp.take_along_axis(order, flat[..., None], axis=2)[..., 0] - 1
        return jnp.where(place < capacity, flat * filled + place, c.experts * filled), c.experts * filled

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


def _rows(x: jax.Array, index: jax.Array) -> jax.Array:
    """Rows [B, I, D] of [B, N, D] by their index [B, I]; zeros for index N."""
    return jnp.take_along_axis(jnp.pad(x, ((0, 0), (0, 1), (0, 0))), index[..., None], axis=1)


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

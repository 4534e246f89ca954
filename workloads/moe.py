"""Mixture of experts in place of the feed-forward: top-k routing, dropless or with a capacity."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from workloads.config import DecoderConfig
from workloads.layers import GATES, FeedForward, compute_dtype, filled, linear, matmul, weight
from workloads.mesh import Layout
from workloads.noise import Stream


class Experts(nnx.Module):
    """A router and its experts, and those that every token reaches.

    References: Mixtral, https://arxiv.org/abs/2401.04088; DeepSeek-V3,
        https://arxiv.org/abs/2412.19437, section 2.1.2
    """

    def __init__(self, config: DecoderConfig, layout: Layout, stream: Stream) -> None:
        c, size = config, config.expert_size
        self.config, self.layout = config, layout
        self.router = linear(
            c, c.d_model, c.experts, ("embed", None), stream, has_bias=c.bias, dtype="float32"
        )
        into, out = ("expert", "expert_embed", "ffw"), ("expert", "ffw", "expert_embed")
        self.gate = weight(stream, (c.experts, c.d_model, size), into)
        self.up = weight(stream, (c.experts, c.d_model, size), into)
        self.down = weight(stream, (c.experts, size, c.d_model), out)
        if c.bias:
            self.gate_bias = filled((c.experts, size), ("expert", "ffw"), 0.0)
            self.up_bias = filled((c.experts, size), ("expert", "ffw"), 0.0)
            self.down_bias = filled((c.experts, c.d_model), ("expert", None), 0.0)
        self.choice_bias = filled((c.experts,), (None,), 0.0) if c.choice_bias else None
        shared = replace(config, ffw=c.shared_experts * size)
        self.shared = FeedForward(shared, layout, stream) if c.shared_experts else None

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps [B, T, D] to [B, T, D]; also gives the balance loss, f32[]."""
        c = self.config
        scores = self.router(x)
        if c.router == "sigmoid":
            scores = jax.nn.log_sigmoid(scores)  # whose softmax is the sigmoids' share of their sum
        chosen, experts = self._choose(scores)
        shares = self._shares(scores, chosen)
        run = self._dropless if c.routing == "dropless" else self._with_capacity
        y = run(x, experts, shares).astype(x.dtype)
        return y if self.shared is None else y + self.shared(x), balance_loss(scores, experts)

    def _shares(self, scores: jax.Array, chosen: jax.Array) -> jax.Array:
        """The weights of each token's experts, [B, T, K]."""
        c = self.config
        if c.router_normalised:
            shares = jax.nn.softmax(chosen, axis=-1)
        elif c.router == "softmax":
            shares = jnp.exp(chosen - jax.nn.logsumexp(scores, axis=-1, keepdims=True))
        else:
            shares = jnp.exp(chosen)
        return shares if c.router_scale == 1 else shares * c.router_scale

    def _choose(self, scores: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The scores of each token's experts and whose they are, [B, T, K] each.

        On each device for itself: a partitioner gathers the scores of all of them first.
        """
        c, rows = self.config, self.layout.spec(("batch", "sequence", None))
        biases = [] if self.choice_bias is None else [self.choice_bias[...]]

        def largest(mine: jax.Array, *bias: jax.Array) -> tuple[jax.Array, jax.Array]:
            if not bias and c.router_groups == 1:
                values, experts = jax.lax.top_k(mine, c.top_k)
                return values, experts
            order = jnp.exp(mine) + sum(bias)
            if c.router_groups > 1:
                order = within_groups(order, c.router_groups, c.router_top_groups)
            experts = jax.lax.top_k(order, c.top_k)[1]
            return jnp.take_along_axis(mine, experts, axis=-1), experts

        whole = self.layout.spec((None,))
        specs = (rows, *[whole for _ in biases])
        return jax.shard_map(
            largest, mesh=self.layout.mesh, in_specs=specs, out_specs=(rows, rows)
        )(scores, *biases)

    def _with_capacity(self, x: jax.Array, experts: jax.Array, shares: jax.Array) -> jax.Array:
        """Each expert takes its first C tokens of every sequence; the rest skip the layer.

        References:
            GShard, https://arxiv.org/abs/2006.16668; slots by gather instead of by one-hot products
        """
        layout, (weights, specs) = self.layout, self._weights()
        rows, whole = layout.spec(("batch", "sequence", None)), layout.spec(("batch", None, None))
        return jax.shard_map(
            self._local_slots,
            mesh=layout.mesh,
            in_specs=(rows, whole, rows, *specs),
            out_specs=rows,
        )(x, experts, shares, *weights)

    def _weights(self) -> tuple[list[jax.Array], list[jax.sharding.PartitionSpec]]:
        """Gate, up and down of all experts, then any biases, with their splits in use."""
        kernels, into = [self.gate, self.up, self.down], ("expert", None, "ffw")
        axes: list[tuple[str | None, ...]] = [into, into, ("expert", "ffw", None)]
        if self.config.bias:
            kernels += [self.gate_bias, self.up_bias, self.down_bias]
            axes += [("expert", "ffw"), ("expert", "ffw"), ("expert", None)]
        dtype = compute_dtype(self.config.dtype)
        return [w[...].astype(dtype) for w in kernels], [self.layout.spec(axis) for axis in axes]

    def _local_slots(
        self, x: jax.Array, experts: jax.Array, shares: jax.Array, *weights: jax.Array
    ) -> jax.Array:
        """One device's part of `_with_capacity`: tokens to slots, slots to experts and back.

        Written for one device, because a partitioner that is left to itself gathers the tokens of
        all of them.
        """
        c, (rows, seq, _) = self.config, x.shape
        parts = jax.lax.axis_size("context")
        slot, slots = self._slots(experts, parts)  # of all tokens of these sequences
        mine = jax.lax.dynamic_slice_in_dim(
            slot, jax.lax.axis_index("context") * seq * c.top_k, seq * c.top_k, axis=1
        )

        source = jnp.full(
            (rows, slots + 1), seq, jnp.int32
        )  # row `seq` is what an empty slot reads
        token = jnp.broadcast_to(jnp.arange(seq * c.top_k) // c.top_k, mine.shape)
        source = source.at[jnp.arange(rows)[:, None], mine].set(token)[:, :-1]
        taken = _rows(x, source).reshape(rows, c.experts, slots // c.experts, -1)
        if parts > 1:  # each device has filled the slots of its own tokens only
            taken = jax.lax.psum_scatter(taken, "context", scatter_dimension=2, tiled=True)
        taken = jax.lax.all_to_all(taken, "expert", split_axis=1, concat_axis=0, tiled=True)
        (gate, up, down), add_bias = (
            weights[:3],
            _bias_adder(weights[3:], lambda bias: bias[:, None]),
        )
        gated, y = (
            checkpoint_name(matmul("becd,edf->becf", taken, w, c.dtype), n)
            for n, w in (("gate", gate), ("up", up))
        )
        on_gate, on_up = GATES[c.activation]
        y = on_gate(add_bias(gated, 0)) * on_up(add_bias(y, 1))
        y = add_bias(checkpoint_name(matmul("becf,efd->becd", y, down, c.dtype), "down"), 2)
        y = jax.lax.all_to_all(y, "expert", split_axis=0, concat_axis=1, tiled=True)
        if parts > 1:
            y = jax.lax.all_gather(y, "context", axis=2, tiled=True)
        y = _rows(y.reshape(rows, slots, -1), mine)  # [B, T*K, D]
        y = y.reshape(rows, seq, c.top_k, -1) * shares[..., None].astype(y.dtype)
        return jax.lax.psum(y.sum(2), "tensor")

    def _slots(self, experts: jax.Array, parts: int) -> tuple[jax.Array, int]:
        """The slot of each token's choices, [B, T*K], and the number of slots, which means none.

        The slots of an expert are filled up to a multiple of `parts`.
        """
        c, (rows, seq, _) = self.config, experts.shape
        capacity = min(seq, math.ceil(seq * c.top_k * c.capacity_factor / c.experts))
        filled_up = math.ceil(capacity / parts) * parts
        flat = experts.reshape(rows, seq * c.top_k)
        order = jnp.cumsum(jax.nn.one_hot(flat, c.experts, dtype=jnp.int32), axis=1)
        place = jnp.take_along_axis(order, flat[..., None], axis=2)[..., 0] - 1
        return jnp.where(
            place < capacity, flat * filled_up + place, c.experts * filled_up
        ), c.experts * filled_up

    def _dropless(self, x: jax.Array, experts: jax.Array, shares: jax.Array) -> jax.Array:
        """Every token reaches all its experts: sorted by expert, one grouped matmul.

        Over the expert axis each device gathers the tokens of its peers, runs those that chose one
        of its own experts, and the parts are summed back to where they came from (a
        reduce-scatter). Unless ``JAX_RAGGED_DOT_USE_GPU_PALLAS_TRITON_LOWERING`` is set, JAX
        (0.10.2) lowers a grouped matmul for CPU and GPU to a masked one over all of a device's
        experts, which costs that many times the FLOPs.
        """
        layout, (weights, specs) = self.layout, self._weights()
        rows = layout.spec(("batch", "sequence", None))
        return jax.shard_map(
            self._local_experts,
            mesh=layout.mesh,
            in_specs=(rows, rows, rows, *specs),
            out_specs=rows,
        )(x, experts, shares, *weights)

    def _local_experts(
        self, x: jax.Array, experts: jax.Array, shares: jax.Array, *weights: jax.Array
    ) -> jax.Array:
        """One device's part of `_dropless`."""
        c, shape, (gate, up, down) = self.config, x.shape, weights[:3]
        mine = len(gate)

        def gather(y: jax.Array) -> jax.Array:
            return jax.lax.all_gather(y, "expert", axis=0, tiled=True).reshape(-1, y.shape[-1])

        x, experts, shares = gather(x), gather(experts).reshape(-1), gather(shares).reshape(-1)
        local = experts - jax.lax.axis_index("expert") * mine
        local = jnp.where(
            (local >= 0) & (local < mine), local, mine
        )  # the last group belongs to others
        order = jnp.argsort(local)
        sizes = jnp.bincount(local, length=mine + 1)[:mine].astype(jnp.int32)
        taken = x[order // c.top_k]
        on_gate, on_up = GATES[c.activation]
        add_bias = _bias_adder(weights[3:], lambda bias: bias[jnp.minimum(local[order], mine - 1)])
        y = on_gate(add_bias(jax.lax.ragged_dot(taken, gate, sizes), 0))
        y = y * on_up(add_bias(jax.lax.ragged_dot(taken, up, sizes), 1))
        y = add_bias(jax.lax.ragged_dot(y, down, sizes), 2)
        y = y * jnp.where(local[order] < mine, shares[order], 0.0)[:, None].astype(y.dtype)
        y = jnp.zeros_like(x).at[order // c.top_k].add(y)
        y = jax.lax.psum_scatter(
            y.reshape(-1, *shape[1:]), "expert", scatter_dimension=0, tiled=True
        )
        return jax.lax.psum(y, "tensor")


def _bias_adder(
    biases: Sequence[jax.Array], rows: Callable[[jax.Array], jax.Array]
) -> Callable[[jax.Array, int], jax.Array]:
    """Adds the bias of gate (0), up (1) or down (2), if there are any, by what makes rows of one.

    What `down` gives is summed over the tensor axis: the first device of it has the bias.
    """
    if not biases:
        return lambda y, _: y
    is_first = (jax.lax.axis_index("tensor") == 0).astype(biases[2].dtype)
    whole = (*biases[:2], biases[2] * is_first)
    return lambda y, at: y + rows(whole[at])


def within_groups(scores: jax.Array, groups: int, top: int) -> jax.Array:
    """Scores [B, T, E], 0 outside of the ``top`` groups by their two largest scores."""
    parts = scores.reshape(*scores.shape[:-1], groups, -1)
    worth = jax.lax.top_k(parts, min(2, parts.shape[-1]))[0].sum(-1)
    best = jax.nn.one_hot(jax.lax.top_k(worth, top)[1], groups).sum(-2)
    return jnp.where(best[..., None] > 0, parts, 0.0).reshape(scores.shape)


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

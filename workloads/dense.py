"""The decoder: Llama and GPT shapes, dense or with experts, scanned, unrolled or pipelined."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from workloads import flops
from workloads.attention import Attention, LatentAttention
from workloads.config import DecoderConfig
from workloads.layers import (
    GATES,
    FeedForward,
    Norm,
    compute_dtype,
    cross_entropy,
    dropout,
    embedding,
    filled,
    layer_seeds,
    linear,
    remat,
    soft_cap,
)
from workloads.mesh import Layout
from workloads.moe import Experts
from workloads.noise import Stream
from workloads.pipeline import run_stages
from workloads.rope import Rope, rotary

Angles = dict[Rope | None, tuple[jax.Array, jax.Array] | None]


class Block(nnx.Module):
    """One layer: attention and feed-forward on the residual stream, with norms around them."""

    def __init__(self, config: DecoderConfig, layout: Layout, stream: Stream) -> None:
        self.config, self.layout = config, layout
        has_before, has_after = config.norm_place != "after", config.norm_place != "before"
        new_norm = partial(Norm, config.d_model, kind=config.norm, eps=config.norm_eps)
        self.attention_norm = new_norm() if has_before else None
        self.attention = (LatentAttention if config.kv_rank else Attention)(config, layout, stream)
        self.attention_post_norm = new_norm() if has_after else None
        self.ffw_norm = new_norm() if has_before else None
        self.ffw: Any = (Experts if config.experts else FeedForward)(config, layout, stream)
        self.ffw_post_norm = new_norm() if has_after else None

    def __call__(
        self, x: jax.Array, angles: Angles, seeds: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """Maps [B, T, D] and gives the layer's balance loss, f32[]; dropout seeds are u32[B]."""
        hold = self.layout.constrain
        if seeds is not None:
            x = hold(dropout(x, seeds, self.config.input_dropout), "batch", "residual", None)
        y = hold(_normalised(x, self.attention_norm), "batch", "sequence", None)
        y = self.attention(y, angles[self.config.rope])
        x = x + hold(_normalised(y, self.attention_post_norm), "batch", "residual", None)
        y = hold(_normalised(x, self.ffw_norm), "batch", "sequence", None)
        y, balance = self.ffw(y) if self.config.experts else (self.ffw(y), jnp.float32(0))
        return x + hold(_normalised(y, self.ffw_post_norm), "batch", "residual", None), balance


def _normalised(x: jax.Array, norm: Norm | None) -> jax.Array:
    return x if norm is None else norm(x)


class NextToken(nnx.Module):
    """A layer of multi-token prediction: a block on the last state and the known next token.

    References:
        DeepSeek-V3, https://arxiv.org/abs/2412.19437, section 2.2
    """

    def __init__(self, config: DecoderConfig, layout: Layout, stream: Stream) -> None:
        c = config
        self.found_norm, self.token_norm, self.norm = (
            Norm(c.d_model, kind=c.norm, eps=c.norm_eps) for _ in range(3)
        )
        self.projection = linear(c, 2 * c.d_model, c.d_model, ("embed", None), stream)
        self.block = Block(c, layout, stream)

    def __call__(
        self, x: jax.Array, tokens: jax.Array, angles: Angles
    ) -> tuple[jax.Array, jax.Array]:
        """As `Block`, of the residual stream and the embedded tokens, [B, T, D] each."""
        both = jnp.concatenate([self.found_norm(x), self.token_norm(tokens)], axis=-1)
        return self.block(self.projection(both), angles, None)


class Decoder(nnx.Module):
    """A causal language model."""

    def __init__(self, config: DecoderConfig, layout: Layout, stream: Stream) -> None:
        c = config
        self.config, self.layout = config, layout
        # a vocabulary that does not divide (GPT-2: 50257) is not split
        self._vocab = "vocab" if c.vocab % layout.size("vocab") == 0 else None
        self.embedding = embedding(c.dtype, c.vocab, c.d_model, (self._vocab, "embed"), stream)
        self.positions = (
            filled((c.max_seq, c.d_model), (None, "embed"), 0.0)
            if c.positions == "learned"
            else None
        )
        head = partial(linear, c, c.d_model, c.vocab, ("embed", self._vocab), stream)
        self.head = None if c.tied else head(dtype=compute_dtype(c.dtype).name)
        self.norm = Norm(c.d_model, kind=c.norm, eps=c.norm_eps)
        self.layers = self._make_layers(stream.split(c.layers))
        self.mtp = nnx.List(
            [NextToken(c.layer(c.layers), layout, stream) for _ in range(c.mtp_layers)]
        )

    def _make_layers(self, seeds: jax.Array) -> Any:
        """All layers, from seeds u32[layers]: a stack of blocks, stacks, or unrolled blocks."""
        c = self.config
        if not c.scan:
            return nnx.List(
                [Block(c.layer(at), self.layout, Stream(seed)) for at, seed in enumerate(seeds)]
            )

        def stack(config: DecoderConfig, seeds: jax.Array) -> Block:
            make = nnx.vmap(
                lambda seed: Block(config, self.layout, Stream(seed)),
                transform_metadata={nnx.PARTITION_NAME: "layers"},
            )
            return make(seeds)

        stacks = [stack(config, seeds[layers]) for run in c.runs() for config, layers in run]
        return stacks[0] if len(stacks) == 1 else nnx.List(stacks)

    def loss(self, inputs: jax.Array, targets: jax.Array) -> jax.Array:
        """Mean cross entropy over [B, T] tokens in nats, plus balance and further tokens; f32[]."""
        c = self.config
        x = self._embed(inputs)
        if self.positions is not None:
            x = x + self.positions[...][: c.seq].astype(x.dtype)[None]
        ropes = dict.fromkeys(c.layer(index).rope for index in range(c.layers + 1))
        angles: Angles = {rope: None if rope is None else rotary(c.seq, rope) for rope in ropes}
        seeds = layer_seeds(inputs, c.layers) if c.input_dropout else None
        x, balance = self._run_layers(
            self.layout.constrain(x, "batch", "residual", None), angles, seeds
        )
        loss = cross_entropy(self._logits(x, self.norm), targets) + c.balance_weight * balance
        return (
            loss + c.mtp_weight * self._further_loss(x, targets, angles) if c.mtp_layers else loss
        )

    def _embed(self, tokens: jax.Array) -> jax.Array:
        """[B, T] tokens as vectors [B, T, D]."""
        c, hold = self.config, self.layout.constrain
        # gathered over fsdp before the look-up, like every other weight before its use
        table = hold(
            self.embedding.embedding[...].astype(compute_dtype(c.dtype)), self._vocab, None
        )
        if c.embedding_lookup == "one_hot":
            picks = jax.nn.one_hot(tokens, c.vocab, dtype=table.dtype)
            x = jnp.einsum("btv,vd->btd", hold(picks, "batch", "sequence", self._vocab), table)
        else:
            x = table[tokens]
        return x * jnp.asarray(math.sqrt(c.d_model), x.dtype) if c.scaled_embedding else x

    def _logits(self, x: jax.Array, norm: Norm) -> jax.Array:
        """The logits [B, T, V] of what the layers have found, [B, T, D]."""
        hold = self.layout.constrain
        x = hold(norm(x), "batch", "sequence", None)
        logits = self.embedding.attend(x) if self.head is None else self.head(x)
        return soft_cap(hold(logits, "batch", "sequence", self._vocab), self.config.logit_cap)

    def _further_loss(self, x: jax.Array, targets: jax.Array, angles: Angles) -> jax.Array:
        """Mean loss of the layers of further tokens, f32[]; the k-th has none for the last k."""
        c, hold = self.config, self.layout.constrain
        step = remat(lambda layer, y, tokens: nnx.merge(*layer)(y, tokens, angles), c.remat)
        total = jnp.float32(0)
        for depth, layer in enumerate(self.mtp, start=1):
            tokens = hold(
                self._embed(jnp.roll(targets, 1 - depth, axis=1)), "batch", "residual", None
            )
            x, balance = step(nnx.split(layer), x, tokens)
            further = jnp.roll(targets, -depth, axis=1)
            total += (
                cross_entropy(self._logits(x, layer.norm), further, left_out=depth)
                + c.balance_weight * balance
            )
        return total / c.mtp_layers

    def _run_layers(
        self, x: jax.Array, angles: Angles, seeds: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """The residual stream after all layers, and the mean balance loss; seeds u32[layers, B]."""
        c = self.config
        if not c.scan:
            step = remat(lambda layer, y, own: nnx.merge(*layer)(y, angles, own), c.remat)
            balances = []
            for at, layer in enumerate(self.layers):
                x, balance = step(nnx.split(layer), x, None if seeds is None else seeds[at])
                balances.append(balance)
            return x, jnp.stack(balances).mean()
        stacks = [self.layers] if isinstance(self.layers, Block) else list(self.layers)
        sizes, means = [], []
        for run in c.runs():
            mine, stacks = stacks[: len(run)], stacks[len(run) :]
            own = [None if seeds is None else seeds[stack.layers] for stack in run]
            x, mean = self._scan(mine, own, x, angles)
            sizes.append(sum(len(range(c.layers)[stack.layers]) for stack in run))
            means.append(mean)
        return x, means[0] if len(means) == 1 else jnp.average(
            jnp.stack(means), weights=jnp.array(sizes)
        )

    def _scan(
        self, stacks: list[Block], seeds: list[jax.Array | None], x: jax.Array, angles: Angles
    ) -> tuple[jax.Array, jax.Array]:
        """As `_run_layers` for one run: stacks of its period, seeds u32[repeats, B].

        `jax.lax.scan` over weights, not `nnx.scan` over modules: a pipeline has this function of
        weights in each stage.
        """
        c = self.config
        graphdefs, params = zip(*(nnx.split(stack) for stack in stacks), strict=True)

        def make_step(graphdef: Any) -> Any:
            return remat(
                lambda y, layer: nnx.merge(graphdef, layer[0])(y, angles, layer[1]), c.remat
            )

        steps = [make_step(graphdef) for graphdef in graphdefs]

        def period(x: jax.Array, layers: Any) -> tuple[jax.Array, list[jax.Array]]:
            balances = []
            for step, layer in zip(steps, layers, strict=True):
                x, balance = step(x, layer)
                balances.append(balance)
            return x, balances

        def run_all(params: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            x, balances = jax.lax.scan(period, x, list(zip(params, seeds, strict=True)))
            return x, jnp.concatenate(balances).mean()

        if self.layout.size("stage") == 1:
            return run_all(params, x)
        return run_stages(run_all, params, x, microbatches=c.microbatches, layout=self.layout)


def flops_per_token(config: DecoderConfig) -> float:
    """Model FLOPs of one token, forward and backward."""
    more = config.mtp_layers
    layers = [config.layer(min(index, config.layers)) for index in range(config.layers + more)]
    weights = config.d_model * config.vocab * (1 + more) + 2 * config.d_model**2 * more
    weights += sum(_attention_weights(c) + _ffw_weights(c) for c in layers)
    return flops.matmul_flops_per_token(weights) + sum(
        flops.attention_flops_per_token(
            heads=c.heads,
            head_size=c.head_size,
            value_size=c.value_width,
            seq=c.seq,
            window=c.window,
        )
        for c in layers
    )


def _attention_weights(c: DecoderConfig) -> int:
    """Weights of the matrices that one token goes through in attention."""
    out = c.heads * c.value_width * c.d_model
    if not c.kv_rank:
        return c.d_model * c.head_size * (c.heads + 2 * c.kv_heads) + out
    queries = c.heads * c.head_size * (c.q_rank or c.d_model) + c.d_model * c.q_rank
    latent = c.d_model * (c.kv_rank + c.rope_size)
    return (
        queries + latent + c.kv_rank * c.heads * (c.head_size - c.rope_size + c.value_width) + out
    )


def _ffw_weights(c: DecoderConfig) -> int:
    """The same in the feed-forward, or in a router and the experts that it chooses."""
    matrices = 3 if c.activation in GATES else 2
    if not c.experts:
        return matrices * c.d_model * c.ffw
    return c.d_model * c.experts + matrices * c.d_model * c.expert_size * (
        c.top_k + c.shared_experts
    )

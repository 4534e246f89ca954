"""The decoder: Llama and GPT shapes, dense or with experts, scanned, unrolled or in pipeline stages."""

from __future__ import annotations

import math
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
    filled,
    layer_seeds,
    matmul,
    remat,
    soft_cap,
    weight,
)
from workloads.mesh import Layout
from workloads.moe import Experts
from workloads.noise import Stream
from workloads.pipeline import run_stages
from workloads.rope import Rope, rotary

Angles = dict[Rope | None, tuple[jax.Array, jax.Array] | None]


class Block(nnx.Module):
    """One layer: attention and feed-forward, each added to the residual stream, with norms before, after, or both."""

    def __init__(self, config: DecoderConfig, layout: Layout, stream: Stream) -> None:
        self.config, self.layout = config, layout
        has_before, has_after = config.norm_place != "after", config.norm_place != "before"
        self.attention_norm = self._norm() if has_before else None
        self.attention = (LatentAttention if config.kv_rank else Attention)(config, layout, stream)
        self.attention_post_norm = self._norm() if has_after else None
        self.ffw_norm = self._norm() if has_before else None
        self.ffw: Any = (Experts if config.experts else FeedForward)(config, layout, stream)
        self.ffw_post_norm = self._norm() if has_after else None

    def _norm(self) -> Norm:
        return Norm(self.config.d_model, kind=self.config.norm, eps=self.config.norm_eps)

    def __call__(self, x: jax.Array, angles: Angles, seeds: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        """Maps the residual stream [B, T, D]; also gives the layer's balance loss, f32[]. Seeds of dropout: u32[B]."""
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


class Decoder(nnx.Module):
    """A causal language model."""

    def __init__(self, config: DecoderConfig, layout: Layout, stream: Stream) -> None:
        c = config
        self.config, self.layout = config, layout
        # a vocabulary that does not divide (GPT-2: 50257) is not split
        self._vocab = "vocab" if c.vocab % layout.size("vocab") == 0 else None
        self.embedding = weight(stream, (c.vocab, c.d_model), (self._vocab, "embed"), c.d_model)
        self.positions = filled((c.max_seq, c.d_model), (None, "embed"), 0.0) if c.positions == "learned" else None
        self.head = None if c.tied else weight(stream, (c.d_model, c.vocab), ("embed", self._vocab), c.d_model)
        self.norm = Norm(c.d_model, kind=c.norm, eps=c.norm_eps)
        self.layers = self._make_layers(stream.split(c.layers))

    def _make_layers(self, seeds: jax.Array) -> Any:
        """All layers, from seeds u32[layers]: a stack of blocks, a list of stacks, or (not scanned) of blocks."""
        c = self.config
        if not c.scan:
            return nnx.List([Block(c.layer(at), self.layout, Stream(seed)) for at, seed in enumerate(seeds)])

        def stack(config: DecoderConfig, seeds: jax.Array) -> Block:
            return nnx.vmap(lambda seed: Block(config, self.layout, Stream(seed)))(seeds)

        stacks = [stack(config, seeds[layers]) for run in c.runs() for config, layers in run]
        return stacks[0] if len(stacks) == 1 else nnx.List(stacks)

    def loss(self, inputs: jax.Array, targets: jax.Array) -> jax.Array:
        """Mean cross entropy over [B, T] tokens in nats, plus the weighted balance loss of experts; f32[]."""
        c, hold = self.config, self.layout.constrain
        # gathered over fsdp before the look-up, like every other weight before its use
        table = hold(self.embedding[...].astype(compute_dtype(c.dtype)), self._vocab, None)
        if c.embedding_lookup == "one_hot":
            picks = jax.nn.one_hot(inputs, c.vocab, dtype=table.dtype)
            x = jnp.einsum("btv,vd->btd", hold(picks, "batch", "sequence", self._vocab), table)
        else:
            x = table[inputs]
        if c.scaled_embedding:
            x = x * jnp.asarray(math.sqrt(c.d_model), x.dtype)
        if self.positions is not None:
            x = x + self.positions[...][: c.seq].astype(x.dtype)[None]
        ropes = dict.fromkeys(stack.config.rope for run in c.runs() for stack in run)
        angles: Angles = {rope: None if rope is None else rotary(c.seq, rope) for rope in ropes}
        seeds = layer_seeds(inputs, c.layers) if c.input_dropout else None
        x, balance = self._run_layers(hold(x, "batch", "residual", None), angles, seeds)
        x = hold(self.norm(x), "batch", "sequence", None)
        head = self.embedding[...].T if self.head is None else self.head[...]
        logits = matmul("btd,dv->btv", x, head, "float32" if c.dtype == "float32" else "bfloat16")
        logits = hold(logits, "batch", "sequence", self._vocab)
        return cross_entropy(soft_cap(logits, c.logit_cap), targets) + c.balance_weight * balance

    def _run_layers(self, x: jax.Array, angles: Angles, seeds: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        """The residual stream after all layers, and their mean balance loss; ``seeds`` are u32[layers, B]."""
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
        return x, means[0] if len(means) == 1 else jnp.average(jnp.stack(means), weights=jnp.array(sizes))

    def _scan(
        self, stacks: list[Block], seeds: list[jax.Array | None], x: jax.Array, angles: Angles
    ) -> tuple[jax.Array, jax.Array]:
        """As `_run_layers`, for one run: the stack of each layer of its period, and their seeds, u32[repeats, B]."""
        c = self.config
        graphdefs, params = zip(*(nnx.split(stack) for stack in stacks), strict=True)

        def make_step(graphdef: Any) -> Any:
            return remat(lambda y, layer: nnx.merge(graphdef, layer[0])(y, angles, layer[1]), c.remat)

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
    layers = [config.layer(index) for index in range(config.layers)]
    weights = config.d_model * config.vocab + sum(_attention_weights(c) + _ffw_weights(c) for c in layers)
    return flops.matmul_flops_per_token(weights) + sum(
        flops.attention_flops_per_token(
            heads=c.heads, head_size=c.head_size, value_size=c.value_width, seq=c.seq, window=c.window
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
    return queries + latent + c.kv_rank * c.heads * (c.head_size - c.rope_size + c.value_width) + out


def _ffw_weights(c: DecoderConfig) -> int:
    """The same in the feed-forward, or in a router and the experts that it chooses."""
    matrices = 3 if c.activation in GATES else 2
    if not c.experts:
        return matrices * c.d_model * c.ffw
    return c.d_model * c.experts + matrices * c.d_model * c.expert_size * (c.top_k + c.shared_experts)

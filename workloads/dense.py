"""The decoder: Llama and GPT shapes, dense or with experts, scanned, unrolled or in pipeline stages."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from workloads import flops
from workloads.base import WorkloadError, choice
from workloads.layers import (
    REMAT_POLICIES,
    Attention,
    FeedForward,
    Norm,
    check_dtype,
    compute_dtype,
    cross_entropy,
    cuda_capability,
    dropout,
    filled,
    layer_seeds,
    matmul,
    remat,
    rotary,
    weight,
)
from workloads.mesh import Layout
from workloads.moe import Experts
from workloads.noise import Stream
from workloads.pipeline import run_stages


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The shape of a decoder and how it is computed.

    Attributes:
        positions: Rotary, or learned with a table of ``max_seq`` rows.
        tied: The output projection is the embedding.
        embedding_lookup: Tokens pick rows of the embedding, or one-hot rows are multiplied with it, as Praxis does.
        input_dropout: Share of the residual stream that is zeroed before each layer; which, a function of the tokens.
        experts: Number of experts per layer; 0 is a dense feed-forward.
        routing: Each token reaches all its ``top_k`` experts (dropless), or experts take at most
            ``capacity_factor`` times their fair share of each sequence (capacity).
        dtype: Of activations and matmuls; float8 is for devices that have it (emulated elsewhere).
        float8_scales: Of float8, by the largest value that an array has, or had in the steps before (delayed).
        attention: XLA's, cuDNN's fused one, or one whose keys travel round the context axis (ring); auto is cuDNN's on
            GPUs where it can and XLA's elsewhere, see `settled`.
        remat: What the backward pass computes again: nothing, all but products of matrices (cuDNN's attention is none),
            everything, or what a policy of MaxText's does not save.
        scan: One traced layer in a loop, or all of them unrolled.
        microbatches: How many parts of a batch follow each other through the pipeline's stages.
    """

    vocab: int
    layers: int
    d_model: int
    ffw: int
    heads: int
    kv_heads: int
    head_size: int
    seq: int
    norm: str = choice("rms", "layer")
    positions: str = choice("rope", "learned")
    activation: str = choice("swiglu", "gelu")
    tied: bool = False
    embedding_lookup: str = choice("gather", "one_hot")
    input_dropout: float = field(default=0.0, metadata={"minimum": 0.0})
    bias: bool = False
    rope_theta: float = 10_000.0
    max_seq: int = 1024
    experts: int = field(default=0, metadata={"minimum": 0})
    top_k: int = 2
    routing: str = choice("dropless", "capacity")
    capacity_factor: float = 1.25
    balance_weight: float = field(default=0.01, metadata={"minimum": 0.0})
    dtype: str = choice("bfloat16", "float32", "float8")
    float8_scales: str = choice("current", "delayed")
    remat: str = choice("none", *REMAT_POLICIES)
    attention: str = choice("auto", "xla", "cudnn", "ring")
    scan: bool = True
    microbatches: int = 4

    def settled(self, layout: Layout) -> DecoderConfig:
        """The config as it is computed on these devices: ``attention`` = auto becomes cudnn or xla.

        The sizes of heads are those that cuDNN takes on every GPU: 256 it takes from Hopper on (JAX 0.10.2, 0.12.0.1).
        """
        if self.attention != "auto":
            return self
        is_head = self.head_size <= 128 and self.head_size % 8 == 0
        is_fused = is_head and not any(self._cudnn_lacks(layout).values())
        return replace(self, attention="cudnn" if is_fused else "xla")

    def _cudnn_lacks(self, layout: Layout) -> dict[str, bool]:
        """What cuDNN's attention needs, and whether it is missing here."""
        capability = cuda_capability(layout)
        return {
            "`dtype` bfloat16 or float8": self.dtype == "float32",
            "mesh axis context = 1": layout.size("sequence") > 1,
            "NVIDIA GPUs of compute capability 8.0 or higher": capability is None or capability < 8.0,
        }

    def check(self, layout: Layout, rows: int) -> None:
        """Raises a WorkloadError where sizes do not fit; ``rows`` of the batch go through at once."""
        if self.heads % self.kv_heads:
            raise WorkloadError(f"`heads` must be a multiple of `kv_heads` but got {self.heads} and {self.kv_heads}")
        if self.positions == "rope" and self.head_size % 2:
            raise WorkloadError(f"`head_size` must be even for rotary positions but got {self.head_size}")
        if self.positions == "learned" and self.seq > self.max_seq:
            raise WorkloadError(f"`seq` must be at most `max_seq` = {self.max_seq} but got {self.seq}")
        layout.check("seq", self.seq, "residual")
        for name, axis in (("heads", "heads"), ("kv_heads", "heads"), ("ffw", "ffw"), ("d_model", "embed")):
            layout.check(name, getattr(self, name), axis)
        layout.check("layers", self.layers, "layers")
        if self.experts:
            layout.check("experts", self.experts, "expert")
        self._check_choices(layout)
        stages = layout.size("stage")
        if stages == 1:
            layout.check("batch", rows, "batch")
        elif rows % self.microbatches or (rows // self.microbatches) % layout.size("batch"):
            raise WorkloadError(
                f"`batch` / `accumulate` must be a multiple of {self.microbatches * layout.size('batch')} "
                f"(`microbatches` = {self.microbatches} x {layout.size('batch')} devices) but got {rows}"
            )

    def _check_choices(self, layout: Layout) -> None:
        """Raises a WorkloadError where an option does not go with another or with the mesh."""
        check_dtype(self.dtype, layout)
        axes, is_delayed = layout.mesh.shape, self.float8_scales == "delayed"
        wrong = {
            **{
                f"`attention` = cudnn needs {what}": self.attention == "cudnn" and is_missing
                for what, is_missing in self._cudnn_lacks(layout).items()
            },
            "`float8_scales` = delayed needs `dtype` float8": is_delayed and self.dtype != "float8",
            "`float8_scales` = delayed needs a workload without experts": is_delayed and self.experts > 0,
            "`float8_scales` = delayed needs mesh axis pipeline = 1": is_delayed and axes["pipeline"] > 1,
            "`input_dropout` must be below 1": self.input_dropout >= 1.0,
            "`input_dropout` needs mesh axis pipeline = 1": self.input_dropout > 0.0 and axes["pipeline"] > 1,
            "`scan` must be true with a pipeline axis": axes["pipeline"] > 1 and not self.scan,
            "mesh axis expert needs a workload with experts": axes["expert"] > 1 and not self.experts,
            "`experts` need `activation` swiglu and no `bias`": self.experts > 0
            and (self.bias or self.activation != "swiglu"),
            "`top_k` must be at most `experts`": 0 < self.experts < self.top_k,
        }
        for rule, is_broken in wrong.items():
            if is_broken:
                raise WorkloadError(f"{rule}; change one of the two")


class Block(nnx.Module):
    """One layer: attention and feed-forward, each after a norm, each added to the residual stream."""

    def __init__(self, config: DecoderConfig, layout: Layout, stream: Stream) -> None:
        self.config, self.layout = config, layout
        self.attention_norm = Norm(config.d_model, kind=config.norm)
        self.attention = Attention(config, layout, stream)
        self.ffw_norm = Norm(config.d_model, kind=config.norm)
        self.ffw: Any = (Experts if config.experts else FeedForward)(config, layout, stream)

    def __call__(
        self, x: jax.Array, cos_sin: tuple[jax.Array, jax.Array] | None, seeds: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """Maps the residual stream [B, T, D]; also gives the layer's balance loss, f32[]. Seeds of dropout: u32[B]."""
        hold = self.layout.constrain
        if seeds is not None:
            x = hold(dropout(x, seeds, self.config.input_dropout), "batch", "residual", None)
        y = self.attention(hold(self.attention_norm(x), "batch", "sequence", None), cos_sin)
        x = x + hold(y, "batch", "residual", None)
        y = hold(self.ffw_norm(x), "batch", "sequence", None)
        y, balance = self.ffw(y) if self.config.experts else (self.ffw(y), jnp.float32(0))
        return x + hold(y, "batch", "residual", None), balance


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
        self.norm = Norm(c.d_model, kind=c.norm)
        seeds = stream.split(c.layers)

        def layer(seed: jax.Array) -> Block:
            return Block(c, layout, Stream(seed))

        self.layers: Any = nnx.vmap(layer)(seeds) if c.scan else nnx.List([layer(seed) for seed in seeds])

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
        if self.positions is not None:
            x = x + self.positions[...][: c.seq].astype(x.dtype)[None]
        cos_sin = rotary(c.seq, c.head_size, c.rope_theta) if c.positions == "rope" else None
        seeds = layer_seeds(inputs, c.layers) if c.input_dropout else None
        x, balance = self._run_layers(hold(x, "batch", "residual", None), cos_sin, seeds)
        x = hold(self.norm(x), "batch", "sequence", None)
        head = self.embedding[...].T if self.head is None else self.head[...]
        logits = matmul("btd,dv->btv", x, head, "float32" if c.dtype == "float32" else "bfloat16")
        logits = hold(logits, "batch", "sequence", self._vocab)
        return cross_entropy(logits, targets) + c.balance_weight * balance

    def _run_layers(self, x: jax.Array, cos_sin: Any, seeds: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        """The residual stream after all layers, and their mean balance loss; ``seeds`` are u32[layers, B]."""
        c = self.config
        if not c.scan:
            run = remat(lambda layer, y, own: nnx.merge(*layer)(y, cos_sin, own), c.remat)
            balances = []
            for at, layer in enumerate(self.layers):
                x, balance = run(nnx.split(layer), x, None if seeds is None else seeds[at])
                balances.append(balance)
            return x, jnp.stack(balances).mean()
        graphdef, params = nnx.split(self.layers)
        body = remat(lambda y, layer: nnx.merge(graphdef, layer[0])(y, cos_sin, layer[1]), c.remat)

        def run_all(params: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            x, balances = jax.lax.scan(body, x, (params, seeds))
            return x, balances.mean()

        if self.layout.size("stage") == 1:
            return run_all(params, x)
        return run_stages(run_all, params, x, microbatches=c.microbatches, layout=self.layout)


def flops_per_token(config: DecoderConfig) -> float:
    """Model FLOPs of one token, forward and backward."""
    c = config
    attention = c.d_model * c.head_size * 2 * (c.heads + c.kv_heads)
    ffw = c.d_model * c.ffw * (3 if c.activation == "swiglu" else 2)
    router = c.d_model * c.experts
    weights = c.layers * (attention + ffw * (c.top_k if c.experts else 1) + router) + c.d_model * c.vocab
    return flops.matmul_flops_per_token(weights) + c.layers * flops.attention_flops_per_token(
        heads=c.heads, head_size=c.head_size, seq=c.seq
    )

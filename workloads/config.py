"""What a decoder is, layer by layer, and how it is computed."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from workloads.base import WorkloadError, choice
from workloads.layers import GATES, REMAT_POLICIES, check_dtype, cuda_capability
from workloads.mesh import Layout
from workloads.rope import Rope


def _optional() -> int:
    """A whole number that is 0 where a model has no such thing."""
    return field(default=0, metadata={"minimum": 0})


def _optional_share() -> float:
    """The same for a real number."""
    return field(default=0.0, metadata={"minimum": 0.0})


class Stack(NamedTuple):
    """Layers of one kind that are scanned as one: their config and their numbers in the model."""

    config: DecoderConfig
    layers: slice


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The shape of a decoder and how it is computed.

    Sizes that are 0 stand for what a model does not have, or for the size that is named there.

    Attributes:
        head_size: Of queries and keys; with latent attention, both parts of it.
        norm_place: Before attention and feed-forward, after them, or both.
        qk_norm: RMSNorm of queries and keys: of each head, or of all heads at once.
        positions: Rotary, or learned with a table of ``max_seq`` rows.
        activation: SwiGLU, a GELU-gated unit, gpt-oss's clamped SwiGLU; or GELU without a gate.
        tied: The output projection is the embedding.
        scaled_embedding: Embeddings are multiplied by the square root of ``d_model``.
        embedding_lookup: Tokens pick rows of the embedding, or one-hot rows are multiplied with it,
            as Praxis does.
        input_dropout: Share of the residual stream that is zeroed before each layer; which, a
            function of the tokens.
        bias: All matrices but embedding and output have one.
        qkv_bias: Queries, keys and values have one.
        query_size: Logits are divided by its square root; 0 is ``head_size``.
        attention_cap, logit_cap: Logits of attention, and of tokens, stay between plus and minus
            this (soft cap).
        mask: Causal alone, or with lengths of the sequences beside it, which are all full
            (MaxText's). On Blackwell Transformer Engine has no fused attention for the latter:
            JAX's cuDNN has.
        sinks: Each head has a logit that takes part in the softmax and carries no value.
        window: So many tokens, the own one included, are attended to; in all layers, or in
            ``local_layers`` of each ``local_layers + 1``, the last of which attends to all.
        local_rope_theta: Of layers with a window, whose positions are then not scaled; 0: as in the
            other layers.
        rope_scaling: How positions beyond ``rope_original`` are reached, by ``rope_factor``; see
            `Rope`.
        yarn_mscale: Weight of YaRN's factor of the logits.
        kv_rank: Of the latent that keys and values are made of (latent attention); ``q_rank`` that
            of queries.
        rope_size: The part of a head that is rotated, in latent attention: one for all heads of the
            keys.
        value_size: Of a head of values; 0 is ``head_size``.
        experts: Number of experts per layer; 0 is a dense feed-forward.
        dense_layers: So many first layers have a dense feed-forward.
        expert_ffw: Width of an expert; 0 is ``ffw``.
        shared_experts: Experts that every token reaches: one feed-forward of their total width.
        routing: Each token reaches all its ``top_k`` experts (dropless), or experts take at most
            ``capacity_factor`` times their fair share of each sequence (capacity).
        router: What is made of scores: a softmax, or each one's sigmoid.
        router_normalised: Shares of the chosen experts sum to 1, before they are multiplied by
            ``router_scale``.
        choice_bias: Scores are chosen by with a bias of each expert added. It stays 0: DeepSeek-V3
            moves it towards balance after each step.
        router_groups: Experts lie in so many groups, of which a token may choose in
            ``router_top_groups``.
        dtype: Of activations and matmuls; float8 is for devices that have it (emulated elsewhere).
        float8_scales: Of float8, by the largest value that an array has, or had in the steps before
            (delayed).
        attention: XLA's, cuDNN's fused one, or one whose keys travel round the context axis (ring);
            auto is cuDNN's on GPUs where it can and XLA's elsewhere, see `settled`.
        remat: What the backward pass computes again: nothing, all but products of matrices (cuDNN's
            attention is none), everything, or what a policy of MaxText's does not save.
        scan: One traced layer (or period of layers) in a loop, or all of them unrolled.
        microbatches: How many parts of a batch follow each other through the pipeline's stages.
        mtp_layers: So many layers after the last predict one token further each, with the model's
            embedding and head (MaxText's ``mtp_num_layers``); their mean loss counts ``mtp_weight``
            times.
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
    norm_eps: float = 1e-5
    norm_place: str = choice("before", "after", "both")
    qk_norm: str = choice("none", "head", "all")
    positions: str = choice("rope", "learned")
    activation: str = choice(*GATES, "gelu")
    tied: bool = False
    scaled_embedding: bool = False
    embedding_lookup: str = choice("gather", "one_hot")
    input_dropout: float = _optional_share()
    bias: bool = False
    qkv_bias: bool = False
    max_seq: int = 1024
    query_size: int = _optional()
    attention_cap: float = _optional_share()
    logit_cap: float = _optional_share()
    mask: str = choice("causal", "padding_causal")
    sinks: bool = False
    window: int = _optional()
    local_layers: int = _optional()
    rope_theta: float = 10_000.0
    local_rope_theta: float = _optional_share()
    rope_scaling: str = choice("none", "linear", "llama3", "yarn")
    rope_factor: float = 1.0
    rope_original: int = 8192
    yarn_fast: float = 32.0
    yarn_truncate: bool = True
    yarn_mscale: float = 1.0
    kv_rank: int = _optional()
    q_rank: int = _optional()
    rope_size: int = _optional()
    value_size: int = _optional()
    experts: int = _optional()
    dense_layers: int = _optional()
    expert_ffw: int = _optional()
    shared_experts: int = _optional()
    top_k: int = 2
    routing: str = choice("dropless", "capacity")
    router: str = choice("softmax", "sigmoid")
    router_normalised: bool = True
    router_scale: float = 1.0
    choice_bias: bool = False
    router_groups: int = 1
    router_top_groups: int = 1
    capacity_factor: float = 1.25
    balance_weight: float = field(default=0.01, metadata={"minimum": 0.0})
    dtype: str = choice("bfloat16", "float32", "float8")
    float8_scales: str = choice("current", "delayed")
    remat: str = choice("none", *REMAT_POLICIES)
    attention: str = choice("auto", "xla", "cudnn", "ring")
    scan: bool = True
    microbatches: int = 4
    mtp_layers: int = _optional()
    mtp_weight: float = field(default=0.1, metadata={"minimum": 0.0})

    @property
    def expert_size(self) -> int:
        """Width of an expert."""
        return self.expert_ffw or self.ffw

    @property
    def value_width(self) -> int:
        """Width of a head of values."""
        return self.value_size or self.head_size

    @property
    def rope(self) -> Rope | None:
        """How queries and keys of a layer are rotated; None where they are not."""
        if self.positions != "rope":
            return None
        return Rope(
            size=self.rope_size or self.head_size,
            theta=self.rope_theta,
            scaling=self.rope_scaling,
            factor=self.rope_factor,
            original=self.rope_original,
            fast=self.yarn_fast,
            truncate=self.yarn_truncate,
        )

    @property
    def attention_scale(self) -> float | None:
        """Factor on the logits of a layer's attention; None for one over the root of the head size.

        YaRN's factor is for queries and for keys; gpt-oss and OLMo apply it to sine and cosine,
        DeepSeek to the logits.
        """
        is_yarn = self.rope_scaling == "yarn" and self.rope_factor > 1
        longer = 0.1 * self.yarn_mscale * math.log(self.rope_factor) + 1 if is_yarn else 1.0
        if not self.query_size and longer == 1:
            return None
        return (self.query_size or self.head_size) ** -0.5 * longer**2

    def layer(self, index: int) -> DecoderConfig:
        """The config of one layer, without the window or experts that it does not have."""
        changed: dict[str, object] = {}
        if self.local_layers and index % (self.local_layers + 1) == self.local_layers:
            changed["window"] = 0
        elif self.window and self.local_rope_theta:
            changed.update(rope_theta=self.local_rope_theta, rope_scaling="none")
        if index < self.dense_layers:
            changed["experts"] = 0
        return replace(self, **changed) if changed else self  # type: ignore[arg-type]

    def runs(self) -> list[list[Stack]]:
        """The scanned runs of layers: dense ones, whole periods, and the rest of a period.

        Each run repeats its shortest period, and has a stack for each layer of that.
        """
        layers = [self.layer(index) for index in range(self.layers)]
        rest = (self.layers - self.dense_layers) % (self.local_layers + 1)
        cuts = [0, self.dense_layers, self.layers - rest, self.layers]
        return [
            _stacks(layers, start, end) for start, end in itertools.pairwise(cuts) if start < end
        ]

    def settled(self, layout: Layout) -> DecoderConfig:
        """The config as it is computed on these devices: ``attention`` = auto becomes cudnn or xla.

        Heads of up to 256 are taken by cuDNN from Hopper on, of up to 128 before it (JAX 0.10.2,
        0.12.0.1).
        """
        if self.attention != "auto":
            return self
        is_head = (
            self.head_size <= (256 if (cuda_capability(layout) or 0) >= 9 else 128)
            and self.head_size % 8 == 0
        )
        is_fused = is_head and not any(self._cudnn_lacks(layout).values())
        return replace(self, attention="cudnn" if is_fused else "xla")

    def _cudnn_lacks(self, layout: Layout) -> dict[str, bool]:
        """What cuDNN's attention needs, and whether it is missing here."""
        capability = cuda_capability(layout)
        return {
            "`dtype` bfloat16 or float8": self.dtype == "float32",
            "`attention_cap` = 0 and `sinks` = false": self.attention_cap > 0 or self.sinks,
            "mesh axis context = 1": layout.size("sequence") > 1,
            "NVIDIA GPUs of compute capability 8.0 or higher": capability is None
            or capability < 8.0,
        }

    def check(self, layout: Layout, rows: int) -> None:
        """Raises a WorkloadError where sizes do not fit ``rows`` of the batch at once."""
        if self.heads % self.kv_heads:
            raise WorkloadError(
                f"`heads` must be a multiple of `kv_heads` but got {self.heads} and {self.kv_heads}"
            )
        if self.rope is not None and self.rope.size % 2:
            name = "rope_size" if self.rope_size else "head_size"
            raise WorkloadError(
                f"`{name}` must be even for rotary positions but got {self.rope.size}"
            )
        if self.positions == "learned" and self.seq > self.max_seq:
            raise WorkloadError(
                f"`seq` must be at most `max_seq` = {self.max_seq} but got {self.seq}"
            )
        layout.check("seq", self.seq, "residual")
        for name, axis in (
            ("heads", "heads"),
            ("kv_heads", "heads"),
            ("ffw", "ffw"),
            ("d_model", "embed"),
        ):
            layout.check(name, getattr(self, name), axis)
        for name in ("kv_rank", "q_rank"):
            layout.check(name, getattr(self, name), "embed")
        layout.check("expert_ffw", self.expert_ffw, "ffw")
        layout.check("layers", self.layers, "layers")
        if self.experts:
            layout.check("experts", self.experts, "expert")
        self._check_choices(layout)
        self._check_parts()
        stages = layout.size("stage")
        if stages == 1:
            layout.check("batch", rows, "batch")
            return
        self._check_stages(stages)
        if rows % self.microbatches or (rows // self.microbatches) % layout.size("batch"):
            raise WorkloadError(
                "`batch` / `accumulate` must be a multiple of "
                f"{self.microbatches * layout.size('batch')} "
                f"(`microbatches` = {self.microbatches} x {layout.size('batch')} devices) but "
                f"got {rows}"
            )

    def _check_stages(self, stages: int) -> None:
        """Raises a WorkloadError unless all stages of a pipeline are alike."""
        runs = self.runs()
        if len(runs) > 1 or self.layers % (len(runs[0]) * stages):
            raise WorkloadError(
                f"mesh axis pipeline = {stages} needs layers that repeat {stages} times or a "
                "multiple of it but got "
                f"{self.layers} `layers` with `local_layers` = {self.local_layers} and "
                "`dense_layers` = "
                f"{self.dense_layers}; change `layers` or the mesh"
            )

    def _check_choices(self, layout: Layout) -> None:
        """Raises a WorkloadError where an option does not go with another or with the mesh."""
        check_dtype(self.dtype, layout)
        axes, is_delayed, is_ring = (
            layout.mesh.shape,
            self.float8_scales == "delayed",
            self.attention == "ring",
        )
        has_lengths = self.mask == "padding_causal"
        wrong = {
            **{
                f"`attention` = cudnn needs {what}": self.attention == "cudnn" and is_missing
                for what, is_missing in self._cudnn_lacks(layout).items()
            },
            "`attention` = ring needs `window` = 0": is_ring and self.window > 0,
            "`attention` = ring needs `attention_cap` = 0": is_ring and self.attention_cap > 0,
            "`attention` = ring needs `sinks` = false": is_ring and self.sinks,
            "`mask` = padding_causal needs `attention` cudnn or xla": has_lengths and is_ring,
            "`mask` = padding_causal needs `attention_cap` = 0": has_lengths
            and self.attention_cap > 0,
            "`mask` = padding_causal needs `sinks` = false": has_lengths and self.sinks,
            "`mask` = padding_causal needs mesh axis pipeline = 1": has_lengths
            and axes["pipeline"] > 1,
            "`float8_scales` = delayed needs `dtype` float8": is_delayed and self.dtype != "float8",
            "`float8_scales` = delayed needs a workload without experts": is_delayed
            and self.experts > 0,
            "`float8_scales` = delayed needs `kv_rank` = 0": is_delayed and self.kv_rank > 0,
            "`float8_scales` = delayed needs mesh axis pipeline = 1": is_delayed
            and axes["pipeline"] > 1,
            "`input_dropout` must be below 1": self.input_dropout >= 1.0,
            "`input_dropout` needs mesh axis pipeline = 1": self.input_dropout > 0.0
            and axes["pipeline"] > 1,
            "`mtp_layers` must be below `seq`": self.mtp_layers >= self.seq,
            "`scan` must be true with a pipeline axis": axes["pipeline"] > 1 and not self.scan,
            "mesh axis expert needs a workload with experts": axes["expert"] > 1
            and not self.experts,
        }
        _refuse(wrong)

    def _check_parts(self) -> None:
        """Raises a WorkloadError where a part of the model is asked for without its whole."""
        is_latent, has_experts = self.kv_rank > 0, self.experts > 0
        _refuse(
            {
                "`local_layers` need a `window`": self.local_layers > 0 and not self.window,
                "`local_rope_theta` needs a `window`": self.local_rope_theta > 0
                and not self.window,
                "`q_rank`, `rope_size` and `value_size` need a `kv_rank`": not is_latent
                and max(self.q_rank, self.rope_size, self.value_size) > 0,
                "`kv_rank` needs a `rope_size` below `head_size`": is_latent
                and not 0 < self.rope_size < self.head_size,
                "`kv_rank` needs `kv_heads` = `heads`": is_latent and self.kv_heads != self.heads,
                "`kv_rank` needs `positions` rope, no `qk_norm` and no bias": is_latent
                and (self.positions, self.qk_norm, self.bias, self.qkv_bias)
                != ("rope", "none", False, False),
                "`value_size` must be at most `head_size`": self.value_size > self.head_size,
                "`experts` need an `activation` with a gate": has_experts
                and self.activation not in GATES,
                "`top_k` must be at most `experts`": has_experts and self.top_k > self.experts,
                "`dense_layers` must be fewer than `layers`": self.dense_layers >= self.layers,
                "`dense_layers` and `shared_experts` need `experts`": not has_experts
                and self.dense_layers + self.shared_experts > 0,
                "`experts` must be a multiple of `router_groups`": self.experts % self.router_groups
                > 0,
                "`router_top_groups` must be at most `router_groups`": self.router_top_groups
                > self.router_groups,
                "`top_k` must be at most the experts of `router_top_groups` groups": has_experts
                and self.top_k > self.experts // self.router_groups * self.router_top_groups,
            }
        )


def _stacks(layers: list[DecoderConfig], start: int, end: int) -> list[Stack]:
    """The layers from start to end as repetitions of the shortest period."""
    part, count = layers[start:end], end - start
    size = next(
        n for n in range(1, count + 1) if count % n == 0 and part == part[:n] * (count // n)
    )
    return [Stack(part[at], slice(start + at, end, size)) for at in range(size)]


def _refuse(rules: dict[str, bool]) -> None:
    """Raises a WorkloadError with the first rule that is broken."""
    for rule, is_broken in rules.items():
        if is_broken:
            raise WorkloadError(f"{rule}; change one of the two")

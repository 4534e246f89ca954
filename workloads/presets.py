"""Named sizes: published shapes, and sizes for tests, a first study, and one filled GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import jax

from workloads import dense, recurrent
from workloads.base import Workload, WorkloadError, close_matches, parse_options
from workloads.mesh import make_layout
from workloads.step import TrainConfig, make_workload

Options = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Family:
    """Workloads of one kind: what builds them, and their sizes by name."""

    config: type[Any]
    model: type[Any]
    flops_per_token: Callable[[Any], float]
    sizes: Mapping[str, Options]


_GPT: Options = {"norm": "layer", "positions": "learned", "activation": "gelu", "tied": True, "bias": True}
_TINY: Options = {"seq": 16, "batch": 8, "dtype": "float32", "learning_rate": 1e-2, "vocab": 64}
_SMALL: Options = {"seq": 32, "batch": 8, "dtype": "float32", "learning_rate": 2e-3, "vocab": 512}


def _shape(layers: int, d_model: int, ffw: int, heads: int, kv_heads: int, **more: Any) -> Options:
    head = {"heads": heads, "kv_heads": kv_heads, "head_size": d_model // heads}
    return {"layers": layers, "d_model": d_model, "ffw": ffw, **head, **more}


def _large(vocab: int, seq: int, shape: Options, *, remat: str = "full", **more: Any) -> Options:
    """A size that is trained; what is recomputed is what a published configuration of it recomputes, else everything.

    References:
        MaxText, src/maxtext/configs/gpu/models: Llama of 70B and 405B recompute everything, Llama of 7B and 8B and
        Mixtral keep the products of matrices
    """
    return {**shape, "vocab": vocab, "seq": seq, "batch": 8, "remat": remat, **more}


_TINY_SHAPE = _shape(2, 32, 64, 4, 2)
_SMALL_SHAPE = _shape(4, 128, 344, 8, 4)
_LLAMA2_7B = _shape(32, 4096, 11_008, 32, 32)
_LLAMA3_8B = _shape(32, 4096, 14_336, 32, 8, rope_theta=5e5)

_LLAMA: Mapping[str, Options] = {
    "tiny": {**_TINY_SHAPE, **_TINY},
    "small": {**_SMALL_SHAPE, **_SMALL},
    # https://arxiv.org/abs/2307.09288; shapes also in the released configs
    "llama2-7b": _large(32_000, 4096, _LLAMA2_7B, remat="dots"),
    "llama2-70b": _large(32_000, 4096, _shape(80, 8192, 28_672, 64, 8)),
    # https://arxiv.org/abs/2407.21783, table 3
    "llama3-8b": _large(128_256, 8192, _LLAMA3_8B, remat="dots"),
    "llama3-70b": _large(128_256, 8192, _shape(80, 8192, 28_672, 64, 8, rope_theta=5e5)),
    "llama3-405b": _large(128_256, 8192, _shape(126, 16_384, 53_248, 128, 8, rope_theta=5e5)),
    # https://arxiv.org/abs/2401.02385, table 1; two of it fit on a GPU of 80 GB
    "tinyllama-1.1b": _large(32_000, 2048, _shape(22, 2048, 5632, 32, 4), remat="dots"),
    # one GPU, filled
    "80gb": _large(32_000, 2048, _shape(28, 3072, 8192, 24, 8)),
    "141gb": _large(32_000, 1024, _shape(30, 4096, 11_008, 32, 32)),
}
_GPT_SIZES: Mapping[str, Options] = {
    "tiny": {**_TINY_SHAPE, **_GPT, **_TINY, "kv_heads": 4},
    "small": {**_SMALL_SHAPE, **_GPT, **_SMALL, "kv_heads": 8},
    # GPT-2, "Language models are unsupervised multitask learners", table 2; the released weights
    # (https://github.com/openai/gpt-2) have 124 M and 1.56 G parameters
    "gpt2-124m": _large(50_257, 1024, _shape(12, 768, 3072, 12, 12), **_GPT),
    "gpt2-1.5b": _large(50_257, 1024, _shape(48, 1600, 6400, 25, 25), **_GPT),
}
_MOE: Mapping[str, Options] = {
    "tiny": {**_TINY_SHAPE, **_TINY, "experts": 4},
    "small": {**_SMALL_SHAPE, **_SMALL, "experts": 4, "ffw": 176},
    # https://arxiv.org/abs/2401.04088, table 1
    "mixtral-8x7b": _large(32_000, 4096, _LLAMA3_8B, remat="dots", rope_theta=1e6, experts=8, routing="capacity"),
    "80gb": _large(32_000, 2048, _shape(14, 2048, 4096, 16, 8), experts=8, routing="capacity"),
}
# A sequence that is split over all devices (mesh axis context).
_LONG: Options = {"attention": "ring", "mesh": {"context": -1}, "batch": 1}
_LONG_SIZES: Mapping[str, Options] = {
    "tiny": {**_TINY_SHAPE, **_TINY, **_LONG, "seq": 64},
    "small": {**_SMALL_SHAPE, **_SMALL, **_LONG, "seq": 256},
    # the last stage of Llama 3's pre-training, https://arxiv.org/abs/2407.21783, section 3.4.2
    "llama3-8b-128k": _large(128_256, 131_072, _LLAMA3_8B, **_LONG),
}


def _dreamer(size: int) -> Options:
    """A published size, by its width: https://arxiv.org/abs/2301.04104, table of sizes; 16 x 64 tokens."""
    shape = {"deter": 8 * size, "hidden": size, "classes": size // 16, "units": size}
    return {**shape, "vocab": 256, "seq": 64, "batch": 16, "learning_rate": 4e-5}


_RSSM: Mapping[str, Options] = {
    "tiny": {**_TINY, "deter": 64, "hidden": 16, "classes": 4, "units": 16, "stoch": 4, "horizon": 5, "seq": 8},
    "small": {**_SMALL, "deter": 256, "hidden": 32, "classes": 4, "units": 32, "stoch": 8, "seq": 16},
    "dreamerv3-12m": _dreamer(256),
    "dreamerv3-50m": _dreamer(512),
    "dreamerv3-200m": _dreamer(1024),
}


def _decoders(sizes: Mapping[str, Options]) -> Family:
    return Family(config=dense.DecoderConfig, model=dense.Decoder, flops_per_token=dense.flops_per_token, sizes=sizes)


FAMILIES: Mapping[str, Family] = {
    "llama": _decoders(_LLAMA),
    "gpt": _decoders(_GPT_SIZES),
    "moe": _decoders(_MOE),
    "long": _decoders(_LONG_SIZES),
    "rssm": Family(
        config=recurrent.RecurrentConfig,
        model=recurrent.WorldModel,
        flops_per_token=recurrent.flops_per_token,
        sizes=_RSSM,
    ),
}


def _full_name(family: str, size: str) -> str:
    """Published sizes have names of their own; the others are named after their family."""
    return size if "-" in size else f"{family}-{size}"


PRESETS: Mapping[str, tuple[str, str]] = {
    _full_name(name, size): (name, size) for name, family in FAMILIES.items() for size in family.sizes
}


def build(name: str, *, devices: Sequence[jax.Device] | None = None, **options: Any) -> Workload:
    """Builds a preset.

    Args:
        name: A preset (``llama-small``, ``llama2-7b``) or a family (``llama``) with the option ``size``.
        devices: Real or compile-only devices; `jax.devices()` when None.
        **options: Any field of `TrainConfig` and of the family's config, over those of the preset.

    Raises:
        WorkloadError: If the name or an option is unknown, of the wrong type, or does not fit the rest.
    """
    family_name, size = _resolve(name, options.pop("size", None))
    family = FAMILIES[family_name]
    known = {f.name for cls in (family.config, TrainConfig) for f in fields(cls)}
    for option in options:
        if option not in known:
            raise WorkloadError(
                f"option `{option}` is not known to workload `{family_name}`{close_matches(option, known)} "
                f"Known: size, {', '.join(sorted(known))}"
            )
    merged = {**family.sizes[size], **options}
    train, config = parse_options(TrainConfig, merged), parse_options(family.config, merged)
    layout = make_layout(train.mesh, devices)
    config = config.settled(layout)
    if train.batch % train.accumulate:
        raise WorkloadError(f"`batch` must be a multiple of `accumulate` but got {train.batch} and {train.accumulate}")
    if train.accumulate > 1 and getattr(config, "float8_scales", "current") == "delayed":
        raise WorkloadError(
            f"`float8_scales` = delayed needs `accumulate` = 1, for what it remembers is of a whole step, but got "
            f"{train.accumulate}; use current scales"
        )
    config.check(layout, train.batch // train.accumulate)
    return make_workload(
        _full_name(family_name, size),
        lambda stream: family.model(config, layout, stream),
        layout=layout,
        train=train,
        dtype=config.dtype,
        layers=getattr(config, "layers", 1),
        flops_per_token=family.flops_per_token(config),
        config={"family": family_name, **asdict(config)},
    )


def _resolve(name: str, size: Any) -> tuple[str, str]:
    """Family and size of a preset's or a family's name."""
    if name in FAMILIES:
        sizes = FAMILIES[name].sizes
        wanted = "small" if size is None else size
        if wanted not in sizes:
            raise WorkloadError(
                f"`size` of workload `{name}` must be one of {', '.join(sizes)} but got {wanted!r}"
                f"{close_matches(str(wanted), sizes)}"
            )
        return name, wanted
    if name not in PRESETS:
        raise WorkloadError(
            f"a workload must be a preset, a family or package.module:function but got `{name}`"
            f"{close_matches(name, [*PRESETS, *FAMILIES])} "
            f"Presets: {', '.join(PRESETS)}; families: {', '.join(FAMILIES)}"
        )
    if size is not None:
        raise WorkloadError(f"`size` goes with a family, not with the preset `{name}`; drop it or name the family")
    return PRESETS[name]

"""Named sizes: published shapes, and sizes for tests, a first study, and one filled GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import jax

from workloads import dense
from workloads.base import Workload, WorkloadError, close_matches, parse_options
from workloads.dense import Decoder, DecoderConfig
from workloads.mesh import make_layout
from workloads.step import TrainConfig, make_workload

Options = Mapping[str, Any]

_GPT: Options = {"norm": "layer", "positions": "learned", "activation": "gelu", "tied": True, "bias": True}
_TINY: Options = {"seq": 16, "batch": 8, "dtype": "float32", "learning_rate": 1e-2}
_SMALL: Options = {"seq": 64, "batch": 4, "dtype": "float32", "learning_rate": 2e-3}
_TINY_SHAPE: Options = {
    "vocab": 64,
    "layers": 2,
    "d_model": 32,
    "ffw": 64,
    "heads": 4,
    "kv_heads": 2,
    "head_size": 8,
}
_SMALL_SHAPE: Options = {
    "vocab": 512, "layers": 4, "d_model": 128, "ffw": 344, "heads": 8, "kv_heads": 4, "head_size": 16
}  # fmt: skip


def _shape(
    vocab: int, layers: int, d_model: int, ffw: int, heads: int, kv_heads: int, **more: Any
) -> Options:
    head = {"heads": heads, "kv_heads": kv_heads, "head_size": d_model // heads}
    return {"vocab": vocab, "layers": layers, "d_model": d_model, "ffw": ffw, **head, "remat": "full", **more}


# Family -> size -> options.
PRESETS: Mapping[str, Mapping[str, Options]] = {
    "llama": {
        "tiny": {**_TINY_SHAPE, **_TINY},
        "small": {**_SMALL_SHAPE, **_SMALL},
        # https://arxiv.org/abs/2307.09288
        "llama2-7b": _shape(32_000, 32, 4096, 11_008, 32, 32, seq=4096, batch=8),
        "llama2-70b": _shape(32_000, 80, 8192, 28_672, 64, 8, seq=4096, batch=8),
        # https://arxiv.org/abs/2407.21783, table 3
        "llama3-8b": _shape(128_256, 32, 4096, 14_336, 32, 8, seq=8192, batch=8, rope_theta=5e5),
        "llama3-70b": _shape(128_256, 80, 8192, 28_672, 64, 8, seq=8192, batch=8, rope_theta=5e5),
        "llama3-405b": _shape(128_256, 126, 16_384, 53_248, 128, 8, seq=8192, batch=8, rope_theta=5e5),
    },
    "gpt": {
        "tiny": {**_TINY_SHAPE, **_GPT, **_TINY, "kv_heads": 4},
        "small": {**_SMALL_SHAPE, **_GPT, **_SMALL, "kv_heads": 8},
        # GPT-2, https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf
        "gpt2-124m": _shape(50_257, 12, 768, 3072, 12, 12, seq=1024, batch=8, **_GPT),
        "gpt2-1.5b": _shape(50_257, 48, 1600, 6400, 25, 25, seq=1024, batch=8, **_GPT),
    },
}


def names() -> list[str]:
    """Every preset, as `build` takes it."""
    return [_full_name(family, size) for family, sizes in PRESETS.items() for size in sizes]


def build(name: str, *, devices: Sequence[jax.Device] | None = None, **options: Any) -> Workload:
    """Builds a preset.

    Args:
        name: A preset (``llama-small``, ``llama2-7b``) or a family (``llama``) with the option ``size``.
        devices: Real or compile-only devices; `jax.devices()` when None.
        **options: Any field of `TrainConfig` and of the family's config, over those of the preset.

    Raises:
        WorkloadError: If the name or an option is unknown, of the wrong type, or does not fit the rest.
    """
    family, size = _resolve(name, options.pop("size", None))
    known = {f.name for cls in (DecoderConfig, TrainConfig) for f in fields(cls)}
    for option in options:
        if option not in known:
            raise WorkloadError(
                f"option `{option}` is not known to workload `{family}`{close_matches(option, known)} "
                f"Known: size, {', '.join(sorted(known))}"
            )
    merged = {**PRESETS[family][size], **options}
    train = parse_options(TrainConfig, merged)
    config = parse_options(DecoderConfig, merged)
    layout = make_layout(train.mesh, devices)
    if train.batch % train.accumulate:
        raise WorkloadError(
            f"`batch` must be a multiple of `accumulate` but got {train.batch} and {train.accumulate}"
        )
    config.check(layout, train.batch // train.accumulate)
    return make_workload(
        _full_name(family, size),
        lambda stream: Decoder(config, layout, stream),
        layout=layout,
        train=train,
        dtype=config.dtype,
        layers=config.layers,
        flops_per_token=dense.flops_per_token(config),
        config={"family": family, **asdict(config)},
    )


def _full_name(family: str, size: str) -> str:
    return size if any(c.isdigit() for c in size) else f"{family}-{size}"


def _resolve(name: str, size: Any) -> tuple[str, str]:
    """Family and size of a preset's or a family's name."""
    by_name = {_full_name(f, s): (f, s) for f, sizes in PRESETS.items() for s in sizes}
    if name in PRESETS:
        sizes = PRESETS[name]
        wanted = "small" if size is None else size
        if wanted not in sizes:
            raise WorkloadError(
                f"`size` of workload `{name}` must be one of {', '.join(sizes)} but got {wanted!r}"
                f"{close_matches(str(wanted), sizes)}"
            )
        return name, wanted
    if name not in by_name:
        raise WorkloadError(
            f"a workload must be a preset, a family or package.module:function but got `{name}`"
            f"{close_matches(name, [*by_name, *PRESETS])} "
            f"Presets: {', '.join(by_name)}; families: {', '.join(PRESETS)}"
        )
    if size is not None:
        raise WorkloadError(
            f"`size` goes with a family, not with the preset `{name}`; drop it or name the family"
        )
    return by_name[name]

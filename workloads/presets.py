"""Workloads by the name of a family or of one of its sizes, see `workloads.models`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import jax

from workloads import dense, models, recurrent
from workloads.base import Workload, WorkloadError, close_matches, parse_options
from workloads.config import DecoderConfig
from workloads.mesh import make_layout
from workloads.step import TrainConfig, make_workload


@dataclass(frozen=True, kw_only=True)
class Family:
    """Workloads of one kind: what builds them, and their sizes by name."""

    config: type[Any]
    model: type[Any]
    flops_per_token: Callable[[Any], float]
    sizes: Mapping[str, models.Options]


def _decoders(sizes: Mapping[str, models.Options]) -> Family:
    return Family(
        config=DecoderConfig,
        model=dense.Decoder,
        flops_per_token=dense.flops_per_token,
        sizes=sizes,
    )


FAMILIES: Mapping[str, Family] = {
    "llama": _decoders(models.LLAMA),
    "gpt": _decoders(models.GPT),
    "moe": _decoders(models.MOE),
    "long": _decoders(models.LONG),
    "qwen": _decoders(models.QWEN),
    "qwen-moe": _decoders(models.QWEN_MOE),
    "gemma": _decoders(models.GEMMA),
    "olmo": _decoders(models.OLMO),
    "gpt-oss": _decoders(models.GPT_OSS),
    "deepseek": _decoders(models.DEEPSEEK),
    "rssm": Family(
        config=recurrent.RecurrentConfig,
        model=recurrent.WorldModel,
        flops_per_token=recurrent.flops_per_token,
        sizes=models.RSSM,
    ),
}


def _full_name(family: str, size: str) -> str:
    """Published sizes have names of their own; the others are named after their family."""
    return size if "-" in size else f"{family}-{size}"


PRESETS: Mapping[str, tuple[str, str]] = {
    _full_name(name, size): (name, size)
    for name, family in FAMILIES.items()
    for size in family.sizes
}


def build(name: str, *, devices: Sequence[jax.Device] | None = None, **options: Any) -> Workload:
    """Builds a preset.

    Args:
        name: A preset (``llama-small``, ``llama2-7b``) or a family (``llama``) with the option
            ``size``.
        devices: Real or compile-only devices; `jax.devices()` when None.
        **options: Any field of `TrainConfig` and of the family's config, over those of the preset.

    Raises:
        WorkloadError: If the name or an option is unknown, of the wrong type, or does not fit the
            rest.
    """
    family_name, size = _resolve(name, options.pop("size", None))
    family = FAMILIES[family_name]
    known = {f.name for cls in (family.config, TrainConfig) for f in fields(cls)}
    for option in options:
        if option not in known:
            raise WorkloadError(
                f"option `{option}` is not known to workload "
                f"`{family_name}`{close_matches(option, known)} "
                f"Known: size, {', '.join(sorted(known))}"
            )
    merged = {**family.sizes[size], **options}
    train, config = parse_options(TrainConfig, merged), parse_options(family.config, merged)
    layout = make_layout(train.mesh, devices)
    config = config.settled(layout)
    if train.batch % train.accumulate:
        raise WorkloadError(
            f"`batch` must be a multiple of `accumulate` but got {train.batch} and "
            f"{train.accumulate}"
        )
    if 0 < train.decay <= train.warmup:
        raise WorkloadError(
            f"`decay` must be 0 or above `warmup` = {train.warmup} but got {train.decay}"
        )
    if train.accumulate > 1 and getattr(config, "float8_scales", "current") == "delayed":
        raise WorkloadError(
            f"`float8_scales` = delayed needs `accumulate` = 1, for what it remembers is of a "
            "whole step, but got "
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
            f"Families: {', '.join(FAMILIES)}; `docs/models.md` names their presets"
        )
    if size is not None:
        raise WorkloadError(
            f"`size` goes with a family, not with the preset `{name}`; drop it or name the family"
        )
    return PRESETS[name]

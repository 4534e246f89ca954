"""Named sizes of each family: published models with sources, and sizes for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Options = Mapping[str, Any]

_TINY: Options = {"seq": 16, "batch": 8, "dtype": "float32", "learning_rate": 1e-2, "vocab": 64}
_SMALL: Options = {"seq": 32, "batch": 8, "dtype": "float32", "learning_rate": 2e-3, "vocab": 512}


def _shape(layers: int, d_model: int, ffw: int, heads: int, kv_heads: int, **more: Any) -> Options:
    head = {"heads": heads, "kv_heads": kv_heads, "head_size": d_model // heads}
    return {"layers": layers, "d_model": d_model, "ffw": ffw, **head, **more}


def _large(vocab: int, seq: int, shape: Options, *, remat: str = "full", **more: Any) -> Options:
    """A size for training; it recomputes what its published configuration does, else all.

    References: MaxText, src/maxtext/configs/gpu/models: Llama of 70B and 405B recompute everything,
        Llama of 7B and 8B and Mixtral keep the products of matrices
    """
    return {**shape, "vocab": vocab, "seq": seq, "batch": 8, "remat": remat, **more}


_TINY_SHAPE = _shape(2, 32, 64, 4, 2)
_SMALL_SHAPE = _shape(4, 128, 344, 8, 4)


def _kind(options: Options, sizes: Mapping[str, Options]) -> Mapping[str, Options]:
    """Sizes of a family with common options; ``tiny`` and ``small`` give changes to Llama's."""
    few = {"tiny": {**_TINY_SHAPE, **_TINY}, "small": {**_SMALL_SHAPE, **_SMALL}}
    return {name: {**few.get(name, {}), **options, **size} for name, size in sizes.items()}


_LLAMA2_7B = _shape(32, 4096, 11_008, 32, 32)
_LLAMA3_8B = _shape(32, 4096, 14_336, 32, 8, rope_theta=5e5)
_LLAMA3_70B = _shape(80, 8192, 28_672, 64, 8, rope_theta=5e5)
_LLAMA3_405B = _shape(126, 16_384, 53_248, 128, 8, rope_theta=5e5)
_LONGER: Options = {
    "rope_scaling": "llama3",
    "rope_factor": 8.0,
}  # Llama 3.1, for 131,072 positions
_LONGER_3_2: Options = {**_LONGER, "rope_factor": 32.0, "tied": True}

LLAMA: Mapping[str, Options] = {
    "tiny": {**_TINY_SHAPE, **_TINY},
    "small": {**_SMALL_SHAPE, **_SMALL},
    # https://arxiv.org/abs/2307.09288; shapes also in the released configs
    "llama2-7b": _large(32_000, 4096, _LLAMA2_7B, remat="dots"),
    "llama2-13b": _large(32_000, 4096, _shape(40, 5120, 13_824, 40, 40)),
    "llama2-70b": _large(32_000, 4096, _shape(80, 8192, 28_672, 64, 8)),
    # https://arxiv.org/abs/2407.21783, table 3
    "llama3-8b": _large(128_256, 8192, _LLAMA3_8B, remat="dots"),
    "llama3-70b": _large(128_256, 8192, _LLAMA3_70B),
    "llama3-405b": _large(128_256, 8192, _LLAMA3_405B),
    # https://github.com/meta-llama/llama-models, models/llama3_1 and llama3_2
    "llama3.1-8b": _large(128_256, 8192, _LLAMA3_8B, remat="dots", **_LONGER),
    "llama3.1-70b": _large(128_256, 8192, _LLAMA3_70B, **_LONGER),
    "llama3.1-405b": _large(128_256, 8192, _LLAMA3_405B, **_LONGER),
    "llama3.2-1b": _large(
        128_256, 8192, _shape(16, 2048, 8192, 32, 8, rope_theta=5e5), **_LONGER_3_2
    ),
    "llama3.2-3b": _large(
        128_256, 8192, _shape(28, 3072, 8192, 24, 8, rope_theta=5e5), **_LONGER_3_2
    ),
    # https://arxiv.org/abs/2401.02385, table 1; two of it fit on a GPU of 80 GB
    "tinyllama-1.1b": _large(32_000, 2048, _shape(22, 2048, 5632, 32, 4), remat="dots"),
    # https://huggingface.co/mistralai/Mistral-7B-v0.3, config.json; of v0.1
    # https://arxiv.org/abs/2310.06825
    "mistral-7b": _large(32_768, 8192, _LLAMA3_8B, rope_theta=1e6),
    # one GPU, filled
    "80gb": _large(32_000, 2048, _shape(28, 3072, 8192, 24, 8)),
    "141gb": _large(32_000, 1024, _shape(30, 4096, 11_008, 32, 32)),
}

_GPT: Options = {
    "norm": "layer",
    "positions": "learned",
    "activation": "gelu",
    "tied": True,
    "bias": True,
}
GPT: Mapping[str, Options] = {
    "tiny": {**_TINY_SHAPE, **_GPT, **_TINY, "kv_heads": 4},
    "small": {**_SMALL_SHAPE, **_GPT, **_SMALL, "kv_heads": 8},
    # GPT-2, "Language models are unsupervised multitask learners", table 2; the released weights
    # (https://github.com/openai/gpt-2) have 124 M and 1.56 G parameters
    "gpt2-124m": _large(50_257, 1024, _shape(12, 768, 3072, 12, 12), **_GPT),
    "gpt2-1.5b": _large(50_257, 1024, _shape(48, 1600, 6400, 25, 25), **_GPT),
    # https://arxiv.org/abs/2005.14165, table 2.1
    "gpt3-175b": _large(50_257, 2048, _shape(96, 12_288, 49_152, 96, 96), **_GPT, max_seq=2048),
}

_MIXTRAL: Options = {"rope_theta": 1e6, "experts": 8, "routing": "capacity"}
MOE: Mapping[str, Options] = {
    "tiny": {**_TINY_SHAPE, **_TINY, "experts": 4},
    "small": {**_SMALL_SHAPE, **_SMALL, "experts": 4, "ffw": 176},
    # https://arxiv.org/abs/2401.04088, table 1
    "mixtral-8x7b": _large(32_000, 4096, _LLAMA3_8B, remat="dots", **_MIXTRAL),
    # https://huggingface.co/mistralai/Mixtral-8x22B-v0.3, config.json
    "mixtral-8x22b": _large(32_768, 4096, _shape(56, 6144, 16_384, 48, 8), **_MIXTRAL),
    "80gb": _large(32_000, 2048, _shape(14, 2048, 4096, 16, 8), experts=8, routing="capacity"),
}

# A sequence that is split over all devices (mesh axis context).
_LONG: Options = {"attention": "ring", "mesh": {"context": -1}, "batch": 1}
LONG: Mapping[str, Options] = {
    "tiny": {**_TINY_SHAPE, **_TINY, **_LONG, "seq": 64},
    "small": {**_SMALL_SHAPE, **_SMALL, **_LONG, "seq": 256},
    # the last stage of Llama 3's pre-training, https://arxiv.org/abs/2407.21783, section 3.4.2
    "llama3-8b-128k": _large(128_256, 131_072, _LLAMA3_8B, **_LONG),
}


def _qwen(layers: int, d_model: int, ffw: int, heads: int, kv_heads: int, **more: Any) -> Options:
    """Qwen 2.5 and 3: heads of 128."""
    shape = _shape(layers, d_model, ffw, heads, kv_heads)
    return {**_large(151_936, 8192, shape), "head_size": 128, **more}


# https://arxiv.org/abs/2505.09388, tables 1 and 2, and config.json of each model of
# https://huggingface.co/Qwen
_QWEN3: Options = {"qk_norm": "head", "norm_eps": 1e-6, "rope_theta": 1e6}
QWEN: Mapping[str, Options] = {
    **_kind(
        _QWEN3,
        {
            "tiny": {"head_size": 12},
            "small": {"head_size": 24},
            "qwen3-0.6b": _qwen(28, 1024, 3072, 16, 8, tied=True),
            "qwen3-1.7b": _qwen(28, 2048, 6144, 16, 8, tied=True),
            "qwen3-4b": _qwen(36, 2560, 9728, 32, 8, tied=True),
            "qwen3-8b": _qwen(36, 4096, 12_288, 32, 8),
            "qwen3-14b": _qwen(40, 5120, 17_408, 40, 8),
            "qwen3-32b": _qwen(64, 5120, 25_600, 64, 8),
        },
    ),
    # https://arxiv.org/abs/2412.15115
    **_kind(
        {"qkv_bias": True, "norm_eps": 1e-6, "rope_theta": 1e6},
        {
            "qwen2.5-1.5b": _qwen(28, 1536, 8960, 12, 2, tied=True),
            "qwen2.5-7b": _qwen(28, 3584, 18_944, 28, 4, vocab=152_064),
            "qwen2.5-14b": _qwen(48, 5120, 13_824, 40, 8, vocab=152_064),
        },
    ),
}

_QWEN_128: Options = {"experts": 128, "top_k": 8, "balance_weight": 1e-3, "routing": "capacity"}
QWEN_MOE: Mapping[str, Options] = _kind(
    _QWEN3,
    {
        "tiny": {"head_size": 12, "experts": 8, "top_k": 3, "ffw": 24},
        "small": {"head_size": 24, "experts": 8, "top_k": 3, "ffw": 88},
        "qwen3-30b-a3b": _qwen(48, 2048, 768, 32, 4, **_QWEN_128),
        "qwen3-235b-a22b": _qwen(94, 4096, 1536, 64, 4, **_QWEN_128),
        # https://huggingface.co/Qwen/Qwen3-Coder-480B-A35B-Instruct, config.json
        "qwen3-480b-a35b": _qwen(
            62, 6144, 2560, 96, 8, **{**_QWEN_128, "experts": 160, "rope_theta": 1e7}
        ),
    },
)


def _gemma(
    vocab: int, layers: int, d_model: int, ffw: int, heads: int, kv_heads: int, **more: Any
) -> Options:
    """Gemma 1 to 3: most have heads of 256."""
    shape = _shape(layers, d_model, ffw, heads, kv_heads)
    return {**_large(vocab, 8192, shape), "head_size": 256, **more}


_GEMMA: Options = {"activation": "geglu", "tied": True, "scaled_embedding": True, "norm_eps": 1e-6}
_GEMMA2: Options = {
    **_GEMMA,
    "norm_place": "both",
    "attention_cap": 50.0,
    "logit_cap": 30.0,
    "window": 4096,
    "local_layers": 1,
}
_GEMMA3: Options = {
    **_GEMMA,
    "norm_place": "both",
    "qk_norm": "head",
    "rope_theta": 1e6,
    "window": 1024,
    "local_layers": 5,
    "local_rope_theta": 1e4,
}
_GEMMA3_LONG: Options = {"rope_scaling": "linear", "rope_factor": 8.0}
GEMMA: Mapping[str, Options] = {
    # https://arxiv.org/abs/2503.19786, table 1, and https://github.com/google-deepmind/gemma,
    # gemma/gm/nn/_gemma.py; the text part
    **_kind(
        _GEMMA3,
        {
            "tiny": {
                **_GEMMA3_LONG,
                "head_size": 12,
                "window": 5,
                "local_layers": 1,
                "layers": 5,
                "query_size": 8,
            },
            "small": {**_GEMMA3_LONG, "head_size": 24, "window": 9, "layers": 8, "query_size": 16},
            "gemma3-1b": _gemma(262_144, 26, 1152, 6912, 4, 1, window=512),
            "gemma3-4b": _gemma(262_208, 34, 2560, 10_240, 8, 4, **_GEMMA3_LONG),
            "gemma3-12b": _gemma(262_208, 48, 3840, 15_360, 16, 8, **_GEMMA3_LONG),
            "gemma3-27b": _gemma(
                262_208, 62, 5376, 21_504, 32, 16, head_size=128, query_size=168, **_GEMMA3_LONG
            ),
        },
    ),
    # https://arxiv.org/abs/2408.00118, table 1
    **_kind(
        _GEMMA2,
        {
            "gemma2-2b": _gemma(256_000, 26, 2304, 9216, 8, 4),
            "gemma2-9b": _gemma(256_000, 42, 3584, 14_336, 16, 8),
            "gemma2-27b": _gemma(256_000, 46, 4608, 36_864, 32, 16, head_size=128, query_size=144),
        },
    ),
    # https://arxiv.org/abs/2403.08295, table 1
    **_kind(
        _GEMMA,
        {
            "gemma-2b": _gemma(256_000, 18, 2048, 16_384, 8, 1),
            "gemma-7b": _gemma(256_000, 28, 3072, 24_576, 16, 16),
        },
    ),
}

# https://arxiv.org/abs/2501.00656 and https://huggingface.co/allenai, config.json of each model.
# YaRN is for the layers without a window, as in OLMo 3's training:
# https://github.com/allenai/OLMo-core, olmo_core/nn/transformer/config.py
_OLMO: Options = {"norm_place": "after", "qk_norm": "all", "norm_eps": 1e-6, "rope_theta": 5e5}
_OLMO3: Options = {
    "window": 4096,
    "local_layers": 3,
    "local_rope_theta": 5e5,
    "rope_scaling": "yarn",
    "rope_factor": 8.0,
}
OLMO: Mapping[str, Options] = _kind(
    _OLMO,
    {
        "tiny": {**_OLMO3, "window": 5, "local_layers": 1, "rope_original": 8, "layers": 4},
        "small": {**_OLMO3, "window": 9, "rope_original": 16},
        "olmo2-1b": _large(100_352, 4096, _shape(16, 2048, 8192, 16, 16)),
        "olmo2-7b": _large(100_352, 4096, _shape(32, 4096, 11_008, 32, 32)),
        "olmo2-13b": _large(100_352, 4096, _shape(40, 5120, 13_824, 40, 40)),
        "olmo2-32b": _large(100_352, 4096, _shape(64, 5120, 27_648, 40, 8)),
        "olmo3-7b": _large(100_278, 8192, _shape(32, 4096, 11_008, 32, 32), **_OLMO3),
        "olmo3-32b": _large(100_278, 8192, _shape(64, 5120, 27_648, 40, 8), **_OLMO3),
    },
)


def _gpt_oss(layers: int, experts: int) -> Options:
    return _large(
        201_088,
        8192,
        _shape(layers, 2880, 2880, 64, 8),
        head_size=64,
        experts=experts,
        routing="capacity",
    )


# https://arxiv.org/abs/2508.10925 and https://github.com/openai/gpt-oss, gpt_oss/torch/model.py
GPT_OSS: Mapping[str, Options] = _kind(
    {
        "activation": "clamped_swiglu",
        "bias": True,
        "sinks": True,
        "window": 128,
        "local_layers": 1,
        "top_k": 4,
        "rope_theta": 1.5e5,
        "rope_scaling": "yarn",
        "rope_factor": 32.0,
        "rope_original": 4096,
        "yarn_truncate": False,
    },
    {
        "tiny": {
            "head_size": 12,
            "window": 5,
            "experts": 8,
            "top_k": 3,
            "ffw": 24,
            "rope_original": 8,
        },
        "small": {"head_size": 24, "window": 9, "experts": 8, "ffw": 88, "rope_original": 16},
        "gpt-oss-20b": _gpt_oss(24, 32),
        "gpt-oss-120b": _gpt_oss(36, 128),
    },
)


def _deepseek(
    vocab: int,
    layers: int,
    d_model: int,
    ffw: int,
    heads: int,
    expert_ffw: int,
    experts: int,
    **more: Any,
) -> Options:
    """Heads of 128 with 64 more for positions, values of 128, a latent of 512."""
    latent = {"head_size": 192, "rope_size": 64, "value_size": 128, "kv_rank": 512}
    shape = _shape(
        layers, d_model, ffw, heads, heads, expert_ffw=expert_ffw, experts=experts, **more
    )
    return _large(vocab, 4096, {**shape, **latent}, routing="capacity")


_DEEPSEEK: Options = {
    "norm_eps": 1e-6,
    "rope_scaling": "yarn",
    "rope_factor": 40.0,
    "rope_original": 4096,
    "balance_weight": 1e-4,
    "dense_layers": 1,
    "shared_experts": 1,
}
_DEEPSEEK3: Options = {
    "router": "sigmoid",
    "choice_bias": True,
    "router_groups": 8,
    "router_top_groups": 4,
    "router_scale": 2.5,
    "top_k": 8,
    "q_rank": 1536,
}
_DEEPSEEK2: Options = {
    "shared_experts": 2,
    "top_k": 6,
    "router_normalised": False,
    "yarn_mscale": 0.707,
}
_KIMI: Options = {
    **_DEEPSEEK3,
    "router_groups": 1,
    "router_top_groups": 1,
    "router_scale": 2.827,
    "rope_theta": 5e4,
    "rope_factor": 32.0,
    "yarn_fast": 1.0,
}
_DEEPSEEK_FEW: Options = {
    **_DEEPSEEK3,
    "router_groups": 4,
    "router_top_groups": 2,
    "experts": 8,
    "shared_experts": 2,
    "top_k": 3,
    "dense_layers": 1,
}
DEEPSEEK: Mapping[str, Options] = _kind(
    _DEEPSEEK,
    {
        "tiny": {
            **_DEEPSEEK_FEW,
            "kv_heads": 4,
            "head_size": 12,
            "rope_size": 4,
            "value_size": 8,
            "kv_rank": 16,
            "q_rank": 24,
            "expert_ffw": 24,
            "rope_original": 8,
            "layers": 3,
        },
        "small": {
            **_DEEPSEEK_FEW,
            "kv_heads": 8,
            "head_size": 24,
            "rope_size": 8,
            "value_size": 16,
            "kv_rank": 32,
            "q_rank": 64,
            "expert_ffw": 88,
            "rope_original": 16,
        },
        # https://arxiv.org/abs/2405.04434; Lite:
        # https://huggingface.co/deepseek-ai/DeepSeek-V2-Lite, config.json. The groups that the
        # larger one routes within, by their best expert, are left out, as in MaxText.
        "deepseek2-16b": _deepseek(102_400, 27, 2048, 10_944, 16, 1408, 64, **_DEEPSEEK2),
        "deepseek2-236b": _deepseek(
            *(102_400, 60, 5120, 12_288, 128, 1536, 160),
            **_DEEPSEEK2,
            router_scale=16.0,
            q_rank=1536,
        ),
        # https://arxiv.org/abs/2412.19437, section 4.2, without the layer that predicts two tokens
        "deepseek3-671b": _deepseek(
            129_280, 61, 7168, 18_432, 128, 2048, 256, dense_layers=3, **_DEEPSEEK3
        ),
        # https://arxiv.org/abs/2507.20534, table 2; https://huggingface.co/moonshotai/Kimi-K2-Base,
        # config.json
        "kimi-k2-1t": _deepseek(163_840, 61, 7168, 18_432, 64, 2048, 384, **_KIMI),
    },
)


def _dreamer(size: int) -> Options:
    """A published size, by its width (arxiv.org/abs/2301.04104, table of sizes); 16 x 64 tokens."""
    shape = {"deter": 8 * size, "hidden": size, "classes": size // 16, "units": size}
    return {**shape, "vocab": 256, "seq": 64, "batch": 16, "learning_rate": 4e-5}


RSSM: Mapping[str, Options] = {
    "tiny": {
        **_TINY,
        "deter": 64,
        "hidden": 16,
        "classes": 4,
        "units": 16,
        "stoch": 4,
        "horizon": 5,
        "seq": 8,
    },
    "small": {
        **_SMALL,
        "deter": 256,
        "hidden": 32,
        "classes": 4,
        "units": 32,
        "stoch": 8,
        "seq": 16,
    },
    "dreamerv3-12m": _dreamer(256),
    "dreamerv3-50m": _dreamer(512),
    "dreamerv3-200m": _dreamer(1024),
}

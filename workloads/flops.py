"""Model FLOPs, and the peak FLOP/s of devices: what MFU is made of."""

from __future__ import annotations

# Dense (not sparse) tensor-core peaks in FLOP/s by dtype; float32 is TF32, which JAX uses by
# default. Keys are parts of `jax.Device.device_kind`, longer ones first.
_H100 = {"bfloat16": 989.4e12, "float32": 494.7e12, "float8": 1978.9e12}
PEAK_FLOPS_PER_S: dict[str, dict[str, float]] = {
    # https://resources.nvidia.com/en-us-blackwell-architecture (HGX B200 and GB200, dense)
    "B200": {"bfloat16": 2250e12, "float32": 1125e12, "float8": 4500e12},
    "GB200": {"bfloat16": 2500e12, "float32": 1250e12, "float8": 5000e12},
    # https://resources.nvidia.com/en-us-tensor-core (H100 PCIe, NVL; SXM: H100 white paper table 2)
    "H100 PCIe": {"bfloat16": 756e12, "float32": 378e12, "float8": 1513e12},
    "H100 NVL": {"bfloat16": 835e12, "float32": 417.5e12, "float8": 1671e12},
    "H100": _H100,
    # https://www.nvidia.com/en-us/data-center/h200 (same compute as H100 SXM)
    "H200 NVL": {"bfloat16": 835.5e12, "float32": 418e12, "float8": 1670.5e12},
    "H200": _H100,
    "GH200": _H100,
    # https://www.nvidia.com/en-us/data-center/a100 (no float8)
    "A100": {"bfloat16": 312e12, "float32": 156e12},
    # https://www.nvidia.com/en-us/data-center/l40s and /l4 (half of the figure with sparsity)
    "L40S": {"bfloat16": 366.5e12, "float32": 183e12, "float8": 733e12},
    "L4": {"bfloat16": 121e12, "float32": 60e12, "float8": 242.5e12},
}


def peak_flops_per_s(device_kind: str, dtype: str) -> float | None:
    """The peak of one device for a compute dtype, or None where no source is known (every CPU)."""
    for kind in sorted(PEAK_FLOPS_PER_S, key=len, reverse=True):
        if kind.lower() in device_kind.lower():
            return PEAK_FLOPS_PER_S[kind].get(dtype)
    return None


def matmul_flops_per_token(weights: int) -> float:
    """Forward and backward FLOPs of a token through some weights: 2 + 4 per weight.

    References:
        Kaplan et al. 2020, section 2.1, https://arxiv.org/abs/2001.08361
    """
    return 6.0 * weights


def attention_flops_per_token(
    *, heads: int, head_size: int, value_size: int, seq: int, window: int
) -> float:
    """Forward and backward FLOPs of a token in both products of a layer's causal attention.

    12 heads x head size x sequence, of which a causal mask needs half; with a window (0: none)
    less.

    References:
        PaLM, appendix B, https://arxiv.org/abs/2204.02311; the half: FlashAttention-2, section 4.1,
        https://arxiv.org/abs/2307.08691
    """
    reach = min(window or seq, seq)
    attended = reach - reach**2 / (2 * seq)  # on average; the first tokens have less before them
    return 6.0 * heads * (head_size + value_size) * attended

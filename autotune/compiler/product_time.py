"""How long a matrix product takes once the device's autotuner has chosen its kernel: waves of tiles over the cores.

Without a device XLA takes some Triton tiling and estimates that one; on a device the autotuner times tilings and
cuBLAS, and the fastest runs. So does this model: each tiling is timed, the fastest counts.

Source: XLA's own measured table of products, ``kDefaultMatmulPTable`` in the installed plugin
(xla/service/gpu/model/matmul_interpolator_data.h). The figures below were fitted to its bf16 products of 256 to 4096 on
a side (1, 2 and 4 at once) on H100 and B200; of those above 10 GFLOP they give the time within 3.5 and 3.7 % (root mean
square of the log ratio). Its float8 figures are not used: on H100 they exceed the peak.
"""

from __future__ import annotations

import math

_TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 1.0), (64, 128, 0.5), (128, 64, 0.5), (64, 64, 0.25))
"""Rows and columns of what one core computes at a time, and its share of the rate that large tiles reach."""

WAVE_S = 1.35e-6
"""Fills and drains the pipeline of a core, once for each tile that it computes."""


def product_time(product: tuple[int, int, int, int], flops_per_s: float, core_count: int) -> float:
    """Seconds of a matrix product on an idle GPU, without the launch.

    Args:
        product: Batch, rows, columns, depth.
        flops_per_s: What the matrix units of the whole GPU reach inside a large tile.
        core_count: Streaming multiprocessors.
    """
    batch, rows, columns, depth = product
    of_core = flops_per_s / core_count
    return min(
        math.ceil(batch * math.ceil(rows / high) * math.ceil(columns / wide) / core_count)
        * (2.0 * high * wide * depth / (of_core * share) + WAVE_S)
        for high, wide, share in _TILES
    )

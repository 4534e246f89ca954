"""What a device's autotuner may choose that a compilation without a device does not.

Without a device XLA takes Triton kernels for matrix products. On one, the autotuner times those against cuBLAS and
takes the faster for each product. Which kernels run decides what other settings act on: a command buffer of fusions
and custom calls holds other kernels. So two sets have one program only if they have under each choice. Two can be
forced on jaxlib 0.10.2 and 0.12.0.1. A third, cuDNN's fusions, cannot: without a device's cuDNN they end with "Failed
to get configs". Levels and fallbacks of the autotuner (``xla_gpu_cudnn_gemm_fusion_level``,
``xla_gpu_cublas_fallback``) change nothing without a device; the catalogue says that they decide the autotuner, and
such settings are always measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from autotune.compiler.company import Company, Program, TimeUp, look_in_company
from autotune.model import FlagSet

TRITON, CUBLAS = "with Triton GEMMs", "with cuBLAS GEMMs"

CHOICES: Mapping[str, FlagSet] = {TRITON: FlagSet(), CUBLAS: FlagSet({"xla_gpu_enable_triton_gemm": False})}
"""What forces each choice. The first is what a compilation takes of itself."""


def kernel_choices(baseline: FlagSet, *, is_gpu: bool) -> dict[str, FlagSet]:
    """The choices that a study's programs may meet: one on a CPU, and where the baseline leaves only one.

    A set that forbids Triton itself has one program under both; one that allows it in words is still subject to the
    autotuner, so what forces a choice goes on top of any set.
    """
    if not is_gpu:
        return {"": FlagSet()}
    if baseline.merge(CHOICES[CUBLAS]) == baseline:
        return {CUBLAS: FlagSet()}
    return dict(CHOICES)


def look_under(
    choices: Mapping[str, FlagSet],
    program: Program,
    dead: Mapping[str, Sequence[str]],
    live: Mapping[str, Sequence[str]],
    chains: Mapping[str, Sequence[FlagSet]],
    progress: Callable[[int, int], None],
) -> dict[str, Company]:
    """The search for company under each kernel choice in turn; each looks at what the one before left dead.

    Args:
        choices: See `kernel_choices`.
        program: Compiles; raises `TimeUp`.
        dead: Settings that change nothing alone, with all values of theirs that compile.
        live: The other settings with theirs.
        chains: Setting to the sets under which its conditions are true.
        progress: Told how many rows are done, of how many that are planned so far.
    """
    found: dict[str, Company] = {}
    dead, live, done = dict(dead), dict(live), 0
    for words, forced in choices.items():
        if not dead:
            break

        def told(row: int, of: int, before: int = done) -> None:
            progress(before + row, before + of)

        def compiled(settings: FlagSet, forced: FlagSet = forced) -> str | None:
            return program(settings.merge(forced))

        company = found[words] = _look(compiled, dead, live, chains, told)
        done += company.rows
        live |= {n: dead[n] for n in company.awake}
        dead = {n: v for n, v in dead.items() if n not in company.awake and n not in company.unsettled}
    return found


def _look(
    program: Program,
    dead: Mapping[str, Sequence[str]],
    live: Mapping[str, Sequence[str]],
    chains: Mapping[str, Sequence[FlagSet]],
    progress: Callable[[int, int], None],
) -> Company:
    """The search under one choice; where the reference does not compile under it, nothing is settled."""
    try:
        if program(FlagSet()) is None:
            return Company(unsettled=tuple(dead))
        works = {n: {v: program(FlagSet({n: v})) is not None for v in values} for n, values in live.items()}
    except TimeUp:
        return Company(unsettled=tuple(dead))
    working = {n: [v for v, does in values.items() if does] for n, values in works.items()}
    failing = [FlagSet({n: v}) for n, values in works.items() for v, does in values.items() if not does]
    return look_in_company(program, dead, working, failing=failing, chains=chains, progress=progress)

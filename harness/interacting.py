"""Small spaces of interacting settings on tiny steps: screened, and every point compiled."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.compiler.compile_worker import CompileJob
from autotune.compiler.compiler import Compiler
from autotune.compiler.screen import Effect, Screener
from autotune.compiler.targets import load_target, parse_topology
from autotune.model.flags import FlagSet
from harness.known_programs import Domains, lost_programs, points


@dataclass(frozen=True)
class Space:
    """Settings that interact on one step.

    Attributes:
        step: In `harness.tiny_steps`.
        devices: GPUs of one machine.
        domains: Setting to values beside its default.
        baseline: Of every set.
    """

    step: str
    devices: int
    domains: Domains
    baseline: dict[str, str] = field(default_factory=dict)


GRAPHS = {
    "xla_gpu_enable_command_buffer": ["FUSION,CUSTOM_CALL"],
    "xla_gpu_graph_min_graph_size": ["1"],
}
LOOPS = {"xla_gpu_enable_while_loop_double_buffering": ["true"]}
SPACES = {
    "pipeline": Space(
        "pipeline",
        4,
        {
            "xla_gpu_enable_pipelined_p2p": ["true"],
            "xla_gpu_collective_permute_decomposer_threshold": ["0"],
            "xla_gpu_enable_latency_hiding_scheduler": ["false"],
            "xla_gpu_collective_permute_combine_threshold_bytes": ["0"],
            **LOOPS,
        },
    ),
    "tensor parallel": Space(
        "tensor",
        4,
        {
            "xla_gpu_threshold_for_windowed_einsum_mib": ["0"],
            "xla_gpu_multi_streamed_windowed_einsum": ["false"],
            "xla_gpu_experimental_enable_alltoall_windowed_einsum": ["true"],
            "xla_gpu_all_reduce_combine_threshold_bytes": ["0"],
            **LOOPS,
        },
    ),
    "fsdp": Space(
        "fsdp",
        4,
        {
            "xla_gpu_all_gather_combine_threshold_bytes": ["0"],
            "xla_gpu_enable_pipelined_all_gather": ["true"],
            "xla_gpu_experimental_parallel_collective_overlap_limit": ["2"],
            "xla_gpu_enable_latency_hiding_scheduler": ["false"],
            **LOOPS,
        },
    ),
    "one GPU": Space(
        "one_gpu",
        1,
        {
            "xla_gpu_memory_limit_slop_factor": ["17"],
            "xla_gpu_dot_merger_threshold_mb": ["0"],
            **GRAPHS,
            **LOOPS,
        },
    ),
    "cuBLAS GEMMs": Space(
        "one_gpu",
        1,
        {
            "xla_gpu_gemm_rewrite_size_threshold": ["1000000000"],
            "xla_gpu_dot_merger_threshold_mb": ["0"],
            "xla_gpu_triton_gemm_any": ["false"],
            **GRAPHS,
            **LOOPS,
        },
        {"xla_gpu_enable_triton_gemm": "false"},
    ),
}


def brute_force(space: Space) -> dict[str, Any]:
    """Screens a space, compiles all of it, and compares."""
    job = CompileJob(
        entry=f"harness.tiny_steps:{space.step}",
        options={},
        target=load_target("h100-sxm"),
        topology=parse_topology(f"1x{space.devices}"),
        paths=(str(Path(__file__).parents[1]),),
    )
    with contextlib.closing(Compiler(job)) as compiler:
        screen = Screener(compiler, baseline=FlagSet(space.baseline))
        started = time.monotonic()
        report = screen.run(space.domains)
        screened_s = time.monotonic() - started
        no_ops = {s.name for s in report.of_effect(Effect.NO_OP)}

        def program(settings: FlagSet) -> str | None:
            found = [
                screen.result(settings.merge(forced)).program for forced in screen.choices.values()
            ]
            return (
                None if None in found else "-".join(p.fingerprint for p in found if p is not None)
            )

        programs = {p: program(p) for p in points(space.domains)}
        lost = lost_programs(space.domains, no_ops, programs.__getitem__)
        by_own = {p: r.fingerprint for p in programs if (r := screen.result(p).program)}
    return {
        "settings": {n: list(v) for n, v in space.domains.items()},
        "baseline": space.baseline,
        "choices": list(filter(None, screen.choices)),
        "points": len(programs),
        "points_that_fail": sum(p is None for p in programs.values()),
        "distinct_programs": len({p for p in programs.values() if p is not None}),
        "distinct_with_the_compilers_own_choice": len(set(by_own.values())),
        "no_ops": sorted(no_ops),
        "active_only_with": {s.name: s.interacts_with for s in report.settings if s.interacts_with},
        "active_only_under": {s.name: s.under for s in report.settings if s.under},
        "fails": [s.name for s in report.of_effect(Effect.FAILS)],
        "points_lost": [dict(p) for p, found in programs.items() if found in lost],
        "points_changed_by_no_ops": [
            dict(p) for p, found in programs.items() if found != programs[p.without(*no_ops)]
        ],
        "compilations_of_the_screen": report.compiled_count,
        "compilations_of_brute_force": len(programs) * len(screen.choices),
        "screen_s": round(screened_s, 1),
    }

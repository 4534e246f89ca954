"""Does a screen ever lose a program? Small spaces of settings that interact, every point of which is compiled.

Two parts, run as ``python -m benchmarks.soundness [spaces | orders] [--space NAME ...]``:

* *spaces*: pipeline, tensor parallel, fsdp, one GPU, and one GPU whose products are cuBLAS's: steps of a few kernels
  (`benchmarks.soundness_steps`) for four described H100s. Each space is screened as in a study, then all of its points
  are compiled under every kernel choice. A point is lost if the space without the dead settings has no point of that
  program; there must be none, and the exit status says so.
* *orders*: random compilers whose effects hinge on a known number of settings: how often does the search for company
  lose a program? Up to the order that it guarantees, never.

Writes ``benchmarks/results/soundness_JAXLIB.json``, and ``benchmarks/results/soundness_orders.json``.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.compiler.compiler import CompileJob, Compiler
from autotune.compiler.plugin import compiler_versions
from autotune.compiler.targets import load_target, parse_topology
from autotune.compiler.verdicts import Effect, Screener
from autotune.model.flags import FlagSet
from autotune.settings.catalog import load_catalog
from harness.known_programs import Domains, lost_programs, points, random_compiler

HERE = Path(__file__).parent
RESULTS = HERE / "results"
COMPILERS = 1000
"""Random compilers of each order."""


@dataclass(frozen=True)
class Space:
    """Settings that interact on one step.

    Attributes:
        step: In `benchmarks.soundness_steps`.
        devices: GPUs of one machine.
        domains: Setting to values beside its default.
        baseline: Of every set.
    """

    step: str
    devices: int
    domains: Domains
    baseline: dict[str, str] = field(default_factory=dict)


GRAPHS = {"xla_gpu_enable_command_buffer": ["FUSION,CUSTOM_CALL"], "xla_gpu_graph_min_graph_size": ["1"]}
LOOPS = {"xla_gpu_enable_while_loop_double_buffering": ["true"]}
SPACES = {
    "pipeline": Space("pipeline", 4, {
        "xla_gpu_enable_pipelined_p2p": ["true"],
        "xla_gpu_collective_permute_decomposer_threshold": ["0"],
        "xla_gpu_enable_latency_hiding_scheduler": ["false"],
        "xla_gpu_collective_permute_combine_threshold_bytes": ["0"],
        **LOOPS,
    }),
    "tensor parallel": Space("tensor", 4, {
        "xla_gpu_threshold_for_windowed_einsum_mib": ["0"],
        "xla_gpu_multi_streamed_windowed_einsum": ["false"],
        "xla_gpu_experimental_enable_alltoall_windowed_einsum": ["true"],
        "xla_gpu_all_reduce_combine_threshold_bytes": ["0"],
        **LOOPS,
    }),
    "fsdp": Space("fsdp", 4, {
        "xla_gpu_all_gather_combine_threshold_bytes": ["0"],
        "xla_gpu_enable_pipelined_all_gather": ["true"],
        "xla_gpu_experimental_parallel_collective_overlap_limit": ["2"],
        "xla_gpu_enable_latency_hiding_scheduler": ["false"],
        **LOOPS,
    }),
    "one GPU": Space("one_gpu", 1, {
        "xla_gpu_memory_limit_slop_factor": ["17"], "xla_gpu_dot_merger_threshold_mb": ["0"], **GRAPHS, **LOOPS,
    }),
    "cuBLAS GEMMs": Space("one_gpu", 1, {
        "xla_gpu_gemm_rewrite_size_threshold": ["1000000000"], "xla_gpu_dot_merger_threshold_mb": ["0"],
        "xla_gpu_triton_gemm_any": ["false"], **GRAPHS, **LOOPS,
    }, {"xla_gpu_enable_triton_gemm": "false"}),
}  # fmt: skip


def brute_force(space: Space, kernel_cache: Path) -> dict[str, Any]:
    """Screens a space, compiles all of it, and compares."""
    job = CompileJob(
        entry=f"benchmarks.soundness_steps:{space.step}",
        options={},
        target=load_target("h100-sxm"),
        topology=parse_topology(f"1x{space.devices}"),
        paths=(str(HERE.parent),),
    )
    # Kernels are compiled once, whichever set has them: it changes no program, and halves the time.
    baseline = FlagSet({**space.baseline, "xla_gpu_kernel_cache_file": str(kernel_cache)})
    with Compiler(job) as compiler:
        screen = Screener(compiler, baseline=baseline, catalog=load_catalog())
        started = time.monotonic()
        report = screen.run(space.domains, {})
        screened_s = time.monotonic() - started
        dead = {s.name for s in report.of_effect(Effect.DEAD)}

        def program(settings: FlagSet) -> str | None:
            found = [screen.result(settings.merge(forced)).program for forced in screen.choices.values()]
            return None if None in found else "-".join(p.fingerprint for p in found if p is not None)

        programs = {p: program(p) for p in points(space.domains)}
        lost = lost_programs(space.domains, dead, programs.__getitem__)
        by_own = {p: r.fingerprint for p in programs if (r := screen.result(p).program)}
    return {
        "settings": {n: list(v) for n, v in space.domains.items()},
        "baseline": space.baseline,
        "choices": list(report.choices),
        "points": len(programs),
        "points_that_fail": sum(p is None for p in programs.values()),
        "distinct_programs": len({p for p in programs.values() if p is not None}),
        "distinct_with_the_compilers_own_choice": len(set(by_own.values())),
        "dead": sorted(dead),
        "live_only_in_company": {s.name: s.company for s in report.settings if s.together},
        "live_only_under": {s.name: s.under for s in report.settings if s.under},
        "fails": [s.name for s in report.of_effect(Effect.FAILS)],
        "points_lost": [dict(p) for p, found in programs.items() if found in lost],
        "points_changed_by_dead": [dict(p) for p, found in programs.items() if found != programs[p.without(*dead)]],
        "compilations_of_the_screen": report.compiled_count,
        "compilations_of_brute_force": len(programs) * len(screen.choices),
        "screen_s": round(screened_s, 1),
    }


def orders() -> dict[str, Any]:
    """Of how many random compilers a program is lost, by how much an effect hinges on.

    Compilers whose every point can be tried are small. In a study of many settings pairs are not tried alone, so
    `as_in_large_spaces` leaves that out.
    """
    found: dict[str, dict[str, Any]] = {}
    for needs, unless in ((1, 0), (2, 0), (1, 1), (2, 1), (1, 2), (2, 2), (3, 0), (3, 1), (4, 0)):
        words = f"up to {needs} values, none of {unless} others set" if unless else f"up to {needs} values"
        found[words] = {"guaranteed": needs <= 2 and unless <= 1}
        for name, how in (("small_spaces", {}), ("as_in_large_spaces", {"pairs_alone": 0})):
            lost = compiled = size = 0
            for seed in range(COMPILERS):
                most = 1 if unless else 3
                compiler = random_compiler(random.Random(seed), needs=needs, unless=unless, most_values=most)
                dead, _ = compiler.screened(seed, **how)
                compiled += len(compiler.compiled)
                size += sum(1 for _ in points(compiler.domains))
                lost += bool(compiler.lost(dead))
            found[words][name] = {
                "compilers": COMPILERS, "with_a_lost_program": lost,
                "mean_compilations": round(compiled / COMPILERS, 1), "mean_points": round(size / COMPILERS, 1),
            }  # fmt: skip
        print(words, found[words], flush=True)
    return found


def spaces(names: list[str]) -> bool:
    """Compiles the spaces, keeps others as they stand in the file; whether no point was lost."""
    versions = compiler_versions()
    path = RESULTS / f"soundness_{versions['jaxlib']}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            found[name] = {"versions": versions, **brute_force(SPACES[name], Path(folder) / "kernels")}
            path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            print(name, json.dumps({k: v for k, v in found[name].items() if k != "versions"}), flush=True)
    return not any(found[name]["points_lost"] for name in names)


def main() -> None:
    """Runs the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["spaces", "orders"])
    parser.add_argument("--space", action="append", choices=list(SPACES))
    args = parser.parse_args()
    is_sound = True
    if "orders" in args.parts:
        result = orders()
        (RESULTS / "soundness_orders.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        certain = [r[name] for r in result.values() if r["guaranteed"] for name in r if name != "guaranteed"]
        is_sound = not any(r["with_a_lost_program"] for r in certain)
    if "spaces" in args.parts:
        is_sound = spaces(args.space or list(SPACES)) and is_sound
    sys.exit(0 if is_sound else "a program was lost")


if __name__ == "__main__":
    main()

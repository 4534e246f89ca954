"""What screening saves in a small space, and whether it ever drops a setting that matters: checked against all points.

Every point of the space is compiled. Then only what the screen would have kept is looked at: settings that it
calls dead left out, equal programs measured once. A point whose program differs from that of the same point
without its dead settings would have been lost; there must be none. Run as ``python -m benchmarks.screen_saves``;
writes ``benchmarks/results/screen_saves_JAXLIB.json``.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from autotune.catalog import load_catalog
from autotune.flags import FlagSet
from autotune.screen.classify import Effect, Screen
from autotune.screen.compiler import CompileJob, Compiler
from autotune.screen.targets import Target, load_target, parse_topology

RESULTS = Path(__file__).parent / "results"
CPU_SPACE = {
    "xla_cpu_prefer_vector_width": ["128"],
    "xla_cpu_enable_fast_math": ["true"],
    "xla_cpu_use_xnnpack": ["false"],
    "xla_cpu_parallel_codegen_split_count": ["1"],
    "xla_cpu_strict_dot_conv_math": ["true"],
}
GPU_SPACE = {
    "xla_gpu_enable_while_loop_double_buffering": ["true"],
    "xla_gpu_graph_min_graph_size": ["1"],
    "xla_gpu_memory_limit_slop_factor": ["80"],
    "xla_gpu_enable_while_loop_reduce_scatter_code_motion": ["true"],
    "xla_gpu_experimental_parallel_collective_overlap_limit": ["2"],
}


def study(
    name: str, space: dict[str, list[str]], target: Target | None, entry: str, options: dict[str, Any]
) -> dict[str, Any]:
    """Screens a space, compiles all of it, and compares."""
    topology = parse_topology("1x8" if target else "1x1")
    job = CompileJob(entry=entry, options=options, target=target, topology=topology)
    with Compiler(job) as compiler:
        screen = Screen(compiler, baseline=FlagSet(), catalog=load_catalog())
        report = screen.run(space, {})
        dead = [s.name for s in report.of_effect(Effect.DEAD)]
        choices = [[None, *values] for values in space.values()]
        programs: dict[FlagSet, str] = {}
        for point in itertools.product(*choices):
            settings = FlagSet({n: v for n, v in zip(space, point, strict=True) if v is not None})
            program = screen.result(settings).program
            programs[settings] = program.fingerprint if program else "fails"
    kept = {s.without(*dead) for s in programs}
    lost = [dict(s) for s, p in programs.items() if programs[s.without(*dead)] != p]
    return {
        "space": name,
        "versions": report.versions,
        "settings": len(space),
        "dead": dead,
        "points": len(programs),
        "screen_compilations": report.compiled_count,
        "points_without_dead_settings": len(kept),
        "distinct_programs": len(set(programs.values())),
        "measurements_saved": len(programs) - len(set(programs.values())),
        "points_lost": lost,
    }


def main() -> None:
    """Runs both spaces and writes what came out."""
    found = [
        study("cpu", CPU_SPACE, None, "workloads.example:build", {}),
        study("8 H100", GPU_SPACE, load_target("h100-sxm"), "llama-tiny", {"mesh": {"fsdp": 8}}),
    ]
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"screen_saves_{found[0]['versions']['jaxlib']}.json"
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()

"""Compiles every published recipe for a described cluster, unattended: seconds for each set, and which are one program.

Run as ``python -m benchmarks.screen_recipes llama2-7b --topology 1x8 --fsdp 8``. Writes
``benchmarks/results/screen_NAME_TOPOLOGY_JAXLIB.json``; nothing is taken from a cache.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from autotune.compiler import program as programs
from autotune.compiler.compile_worker import CompileJob
from autotune.compiler.compiler import Compiler
from autotune.compiler.predict import predict_step
from autotune.compiler.program import CompileResult
from autotune.compiler.targets import load_target, parse_topology
from autotune.model.flags import FlagSet
from autotune.settings.catalog import load_recipes
from autotune.settings.check import for_build
from autotune.settings.known import KnownSettings
from autotune.settings.probe import probe_build

RESULTS = Path(__file__).parent / "results"
MORE = {
    "JAX's O1": {"jax_optimization_level": "O1"},
    "double buffering": {"xla_gpu_enable_while_loop_double_buffering": "true"},
    "combine at 8 GiB": {
        "xla_gpu_all_gather_combine_threshold_bytes": str(8 << 30),
        "xla_gpu_reduce_scatter_combine_threshold_bytes": str(8 << 30),
        "xla_gpu_all_reduce_combine_threshold_bytes": str(8 << 30),
    },
    "no command buffers": {"xla_gpu_enable_command_buffer": ""},
}


def main() -> None:
    """Compiles and writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("entry")
    parser.add_argument("--topology", default="1x8")
    parser.add_argument("--target", default="h100-sxm")
    parser.add_argument("--fsdp", type=int, default=8)
    parser.add_argument("--batch-per-device", type=int, default=2)
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--first", type=int, help="only so many sets")
    args = parser.parse_args()
    topology = parse_topology(args.topology)
    mesh = {"data": topology.device_count // args.fsdp, "fsdp": args.fsdp}
    options = {"mesh": mesh, "batch": args.batch_per_device * topology.device_count, "seq": args.seq}
    job = CompileJob(entry=args.entry, options=options, target=load_target(args.target), topology=topology)
    known = KnownSettings(probe_build(sys.executable, platform="cuda"))
    named = {"reference": FlagSet()}
    named |= {name: for_build(FlagSet(s), known) for name, s in MORE.items()}
    named |= {name: for_build(r.settings, known) for name, r in load_recipes().items()}
    named = dict(list(named.items())[: args.first])
    started = time.perf_counter()
    results: dict[FlagSet, CompileResult] = {}
    with Compiler(job) as compiler:
        for result in compiler.compile(list(named.values())):
            results[result.settings] = result
            print(f"{time.perf_counter() - started:7.1f} s  {_line(result)}", flush=True)
    write(args, options, named, results, time.perf_counter() - started, known.build.jaxlib)


def _line(result: CompileResult) -> str:
    done = result.program.fingerprint if result.program else str(result.failure and result.failure.message)[:60]
    return f"{result.duration_s:6.1f} s ({result.cpu_s:6.1f} s of CPU)  {done}  {str(result.settings)[:80]}"


def write(
    args: argparse.Namespace,
    options: dict[str, Any],
    named: dict[str, FlagSet],
    results: dict[FlagSet, CompileResult],
    wall_s: float,
    jaxlib: str,
) -> None:
    """The figures of all sets, and the groups that are one program."""
    compiled = [r for r in results.values() if r.program]
    groups: dict[str, list[str]] = {}
    for name, settings in named.items():
        found = results[settings].program
        groups.setdefault(found.fingerprint if found else "failed", []).append(name)
    data = {
        "workload": args.entry, "options": options, "target": args.target, "topology": args.topology, "jaxlib": jaxlib,
        "cpu_count": os.cpu_count(), "named_sets": len(named), "distinct_sets": len(results),
        "distinct_programs": len({r.program.fingerprint for r in compiled if r.program}),
        "wall_s": round(wall_s, 1),
        "median_set_s": round(statistics.median(r.duration_s for r in compiled), 2),
        "median_set_cpu_s": round(statistics.median(r.cpu_s for r in compiled), 2),
        "longest_set_s": round(max(r.duration_s for r in compiled), 2),
        "programs": list(groups.values()),
        "sets": {name: _figures(results[s], args) for name, s in named.items()},
    }  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"screen_{args.entry}_{args.topology}_{jaxlib}.json"
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print({k: v for k, v in data.items() if k not in ("sets", "programs")})


def _figures(result: CompileResult, args: argparse.Namespace) -> dict[str, Any]:
    shared = {
        "settings": dict(result.settings),
        "duration_s": round(result.duration_s, 2),
        "cpu_s": round(result.cpu_s, 2),
    }
    if result.failure is not None:
        return {**shared, "failure": result.failure.kind, "message": result.failure.message}
    assert result.program is not None
    predicted = predict_step(result.program, load_target(args.target), parse_topology(args.topology))
    return {
        **shared,
        "fingerprint": result.program.fingerprint,
        "predicted_step_s": round(predicted.step_s, 5),
        "predicted_exposed_s": round(predicted.exposed_s, 5),
        **programs.figures(result.program),
    }


if __name__ == "__main__":
    main()

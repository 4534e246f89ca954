"""What screening saves, and whether it ever drops a setting that matters.

Three parts, run as ``python -m benchmarks.screen_saves [all points | measured | replayed]``:

* *all points*: every point of two small spaces is compiled. A point whose program differs from that of the same point
  without the settings that the screen calls dead would have been lost; there must be none.
* *measured*: every point of the small CPU space runs in a real worker, in turns with the reference: does the worker's
  own program differ where the screen says it does, and only there, and what do programs that it calls equal measure?
* *replayed*: the same study of a GPU space with and without the screen. The programs are really compiled for eight
  H100s; what stands in for the GPUs is a machine whose step takes what the model predicts, with noise. As on a real
  GPU, a worker there cannot tell that two programs are equal.

Writes ``benchmarks/results/screen_saves_JAXLIB.json``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from autotune.cli.live import LineView
from autotune.compiler.compiler import Compiler
from autotune.compiler.job import CompileJob
from autotune.compiler.plugin import compiler_versions
from autotune.compiler.reports import Effect
from autotune.compiler.targets import Target, load_target, parse_topology
from autotune.compiler.verdicts import Screener
from autotune.machine import caller_environment, environment
from autotune.machine.environment import default_cache_dir
from autotune.model import Stopwatch
from autotune.model.flags import FlagSet
from autotune.model.records import TrialResult
from autotune.model.spec import StudySpec, parse_study
from autotune.settings.catalog import load_catalog
from autotune.settings.parameters import Parameter, SearchSpace
from autotune.study import Compared, StudyRun, fixed, probe, run_study
from autotune.workers.local import LocalLauncher
from benchmarks.compiled_machine import CompiledMachine
from harness.simulated import GivenSetup, given_run, runner_of

RESULTS = Path(__file__).parent / "results"
CPU_SPACE = {
    "xla_cpu_prefer_vector_width": ["128"],
    "xla_cpu_enable_fast_math": ["true"],
    "xla_cpu_max_isa": ["SSE4_2"],
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
RUNTIME = {"NCCL_PROTO": ["LL128"]}
"""Searched beside `GPU_SPACE` in the replayed study: what is read at run time must stay in the space."""

CPU_WORKLOAD: tuple[str, dict[str, Any]] = ("workloads.example:build", {"width": 256, "rows": 512})
GPU_WORKLOAD: tuple[str, dict[str, Any]] = ("llama-tiny", {"mesh": {"fsdp": 8}})
PAIRS = 12


def points(space: Mapping[str, Sequence[str]]) -> list[FlagSet]:
    """Every point of a space, the default first."""
    choices = [[None, *values] for values in space.values()]
    return [
        FlagSet({n: v for n, v in zip(space, point, strict=True) if v is not None})
        for point in itertools.product(*choices)
    ]


def job(target: Target | None) -> CompileJob:
    """What is compiled: the small CPU workload, or the sharded one for eight GPUs."""
    entry, options = GPU_WORKLOAD if target else CPU_WORKLOAD
    topology = parse_topology("1x8" if target else "1x1")
    return CompileJob(entry=entry, options=options, target=target, topology=topology)


def all_points(screen: Screener, space: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Screens a space, compiles all of it, and compares."""
    report = screen.run(space, {})
    dead = [s.name for s in report.of_effect(Effect.DEAD)]
    programs: dict[FlagSet, str] = {}
    for settings in points(space):
        program = screen.result(settings).program
        programs[settings] = program.fingerprint if program else "fails"
    kept = {s.without(*dead) for s in programs}
    lost = [dict(s) for s, p in programs.items() if programs[s.without(*dead)] != p]
    return {
        "target": report.target,
        "settings": len(space),
        "dead": dead,
        "points": len(programs),
        "screen_compilations": report.compiled_count + report.cached_count,
        "points_without_dead_settings": len(kept),
        "distinct_programs": len(set(programs.values())),
        "measurements_saved": len(programs) - len(set(programs.values())),
        "points_lost": lost,
    }


# ---------------------------------------------------------------------- measured on the CPU


def measured(screen: Screener, space: Mapping[str, Sequence[str]], folder: Path) -> dict[str, Any]:
    """Every point in a real worker beside the reference; the screen's word against the worker's program and times."""
    entry, options = CPU_WORKLOAD
    spec = parse_study({"name": "measured", "workload": {"entry": entry, "options": options}})
    watch = Stopwatch()
    launcher = LocalLauncher(spec, study_dir=str(folder), base=caller_environment())
    setup = GivenSetup(given_space=SearchSpace(()), given_launcher=launcher, read_at_run_time=lambda s: s)
    session = given_run(
        spec, folder / "measured", setup, LineView(Console(), watch, min_effect=spec.measure.min_effect)
    )
    probe(session)
    dead = {s.name for s in screen.run(space, {}).of_effect(Effect.DEAD)}
    rows = []
    try:
        for number, settings in enumerate(points(space)):
            rows.append(_point(session, screen, settings, number, dead))
            print(f"{session.store.watch.session_s:6.0f} s  {rows[-1]}", flush=True)
    finally:
        session.close()
    by_screen = {row["screen_key"] for row in rows}
    agree = [
        (a["screen_key"] == b["screen_key"]) == (a["fingerprint"] == b["fingerprint"])
        for a, b in itertools.combinations(rows, 2)
    ]
    equal = [r for r in rows[1:] if r["screen_key"] == rows[0]["screen_key"]]
    return {
        "points": rows,
        "distinct_programs_of_the_screen": len(by_screen),
        "distinct_programs_of_the_workers": len({r["fingerprint"] for r in rows}),
        "pairs_of_points": len(agree),
        "pairs_on_which_screen_and_workers_agree": sum(agree),
        "points_lost": [r["settings"] for r in rows if r["lost"]],
        "called_the_default's_program": len(equal),
        "of_those_interval_holds_1": sum(r["low"] <= 1 <= r["high"] for r in equal),
    }


def _point(session: StudyRun, screen: Screener, settings: FlagSet, number: int, dead: set[str]) -> dict[str, Any]:
    """One point: its real program, its ratio, and what the screen says."""
    folder = session.store.folder("trials", f"{number:04d}")
    rule = fixed(PAIRS, min_effect=0.005)
    measured: Compared[None] = runner_of(session).comparer.compare(settings, folder, name=f"point-{number}", rule=rule)
    assert measured.comparison is not None
    found = measured.comparison.estimate
    # Lost: the search would never have come to this program, for the setting that makes it was called dead.
    kept = screen.program_key(settings.without(*dead))
    return {
        "settings": dict(settings),
        "screen_key": screen.program_key(settings),
        "fingerprint": measured.candidate.fingerprint,
        "lost": screen.program_key(settings) != kept,
        "ratio": round(found.ratio, 4),
        "low": round(found.low, 4),
        "high": round(found.high, 4),
    }


# ---------------------------------------------------------------------- replayed for eight GPUs


def replayed(screen: Screener, target: Target, folder: Path, *, trials: int) -> dict[str, Any]:
    """One study of a GPU space twice: with the screen and without."""
    found = {}
    for name in ("without", "with"):
        spec = parse_study(
            {
                "name": f"saves-{name}",
                "workload": {"entry": GPU_WORKLOAD[0], "options": GPU_WORKLOAD[1]},
                "device": {"platform": "cuda", "count": 8},
                "screen": {"enabled": name == "with", "target": target.name, "topology": "8"},
                "replay": {"noise": "quiet"},
            }
        )
        found[name] = _study(spec, screen, target, folder / name, trials=trials)
    return {**found, "trials": trials, "launches_saved": found["without"]["launched"] - found["with"]["launched"]}


def _study(spec: StudySpec, screen: Screener, target: Target, folder: Path, *, trials: int) -> dict[str, Any]:
    space = SearchSpace(
        tuple(
            Parameter(name=n, choices=("(default)", *values), default=None)
            for n, values in {**GPU_SPACE, **RUNTIME}.items()
        )
    )
    launcher = CompiledMachine(spec, screen, target)
    spec = spec.model_copy(update={"search": spec.search.model_copy(update={"trials": trials})})
    setup = GivenSetup(given_space=space, given_launcher=launcher)
    view = LineView(Console(quiet=True), Stopwatch(), min_effect=spec.measure.min_effect)
    session = given_run(spec, folder, setup, view)
    started = time.monotonic()
    conclusion = run_study(session)
    results = session.store.of(TrialResult)
    return {
        "trials": len(results),
        "launched": launcher.started,
        "trials_measured": sum(r.status == "measured" for r in results),
        "same_program": sum(r.status == "same_program" for r in results),
        "runtime_setting_tried": any("NCCL_PROTO" in r.settings for r in results),
        "outcome": str(conclusion.outcome),
        "winner": dict(conclusion.settings) if conclusion.settings else None,
        "ratio": conclusion.estimate.ratio if conclusion.estimate else None,
        "wall_s": round(time.monotonic() - started, 1),
    }


def main() -> None:
    """Runs the parts that are asked for, and keeps the others as they stand in the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["all points", "measured", "replayed"])
    parser.add_argument("--trials", type=int, default=24, help="of the replayed study")
    args = parser.parse_args()
    versions = compiler_versions()
    path = RESULTS / f"screen_saves_{versions['jaxlib']}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    target, catalog = load_target("h100-sxm"), load_catalog()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # the study's own screen takes programs from there, and from nowhere else
        cache = default_cache_dir(environment.caller_environment()) / "screen"
        with Compiler(job(None), cache_dir=cache) as cpu, Compiler(job(target), cache_dir=cache) as gpu:

            def screen(compiler: Compiler) -> Screener:
                return Screener(compiler, baseline=FlagSet(), catalog=catalog)

            parts: dict[str, Callable[[], dict[str, Any]]] = {
                "all points": lambda: {
                    "cpu": all_points(screen(cpu), CPU_SPACE),
                    "8 H100": all_points(screen(gpu), GPU_SPACE),
                },
                "measured": lambda: measured(screen(cpu), CPU_SPACE, Path(folder)),
                "replayed": lambda: replayed(screen(gpu), target, Path(folder), trials=args.trials),
            }
            for name in args.parts:
                found[name] = {"versions": versions, "load_1min": os.getloadavg()[0], **parts[name]()}
                path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
                print(json.dumps({k: v for k, v in found[name].items() if k != "points"}, indent=1), flush=True)


if __name__ == "__main__":
    main()

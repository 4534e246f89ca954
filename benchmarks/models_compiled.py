"""A model of each family compiled for eight H100s without a GPU: memory, collectives, time.

Run as ``python -m benchmarks.models_compiled [MODEL ...]``; it needs the extra ``screen``. Writes
``benchmarks/results/models_8xh100.json`` after each model, and goes on there; models with options
of the host's memory are in ``offload_8xh100.json``. Nothing in it is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from pathlib import Path
from typing import Any

from autotune.compiler.compile_worker import CompileJob
from autotune.compiler.compiler import Compiler
from autotune.compiler.predict import predict_step
from autotune.compiler.program import figures
from autotune.compiler.screen import DEFAULT_MEMORY_FRACTION, Screener, find_canary
from autotune.compiler.targets import compiler_versions, load_target, parse_topology
from autotune.model.errors import LaunchError
from autotune.model.flags import FlagSet

RESULTS = Path(__file__).parent / "results"
_SHARDED: dict[str, Any] = {"mesh": {"fsdp": 8}}
_LOW: dict[str, Any] = {"weight_dtype": "bfloat16"}
# Sequences of 4096, so that all compare; the published layers unless it says otherwise.
MODELS: dict[str, dict[str, Any]] = {
    "llama3.1-8b": _SHARDED,
    "qwen3-8b": _SHARDED,
    "gemma3-4b": _SHARDED,
    "gemma2-9b": _SHARDED,
    "olmo3-7b": _SHARDED,
    "mixtral-8x7b": {"mesh": {"expert": 8}, **_LOW},
    "qwen3-30b-a3b": {"mesh": {"expert": 8}, **_LOW},
    "gpt-oss-20b": {"mesh": {"expert": 8}, **_LOW},
    "deepseek2-16b": {"mesh": {"expert": 8}, **_LOW},
    "deepseek3-671b": {"mesh": {"expert": 8}, **_LOW, "layers": 4},
    "gpt2-1.5b": {**_SHARDED, "seq": 1024},
    "llama3-8b-128k": {"mesh": {"context": 8}, "seq": 65_536},
    "dreamerv3-200m": {"mesh": {"data": 8}, "seq": 64},
}
OFFLOADED: dict[str, dict[str, Any]] = {
    "llama3.1-8b": _SHARDED,
    "llama3.1-8b optimizer": {**_SHARDED, "offload": "optimizer"},
    "llama3.1-8b activations": {**_SHARDED, "remat": "minimal_offloaded"},
}


def main() -> None:
    """Compiles what is not yet in the results, and writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help=f"only these of {', '.join(MODELS)}"
    )
    args = parser.parse_args()
    write("models_8xh100.json", MODELS, args.models)
    if not args.models:
        write("offload_8xh100.json", OFFLOADED, [])


def write(file: str, models: dict[str, dict[str, Any]], wanted: list[str]) -> None:
    """Compiles some models, or all that a file of results lacks for these versions."""
    path, versions = RESULTS / file, compiler_versions()
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name in wanted or models:
        if found.get(name, {}).get("versions") == versions and not wanted:
            continue
        options = {"seq": 4096, **models[name]}
        found[name] = {
            "options": options,
            "versions": versions,
            **compiled(name.split()[0], options),
        }
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(name, json.dumps(found[name]), flush=True)


def compiled(entry: str, options: dict[str, Any]) -> dict[str, Any]:
    """What the compiler says of one model's step."""
    started = time.perf_counter()
    job = CompileJob(
        entry=entry, options=options, target=load_target("h100-sxm"), topology=parse_topology("1x8")
    )
    with contextlib.closing(Compiler(job)) as compiler:
        screener = Screener(compiler, baseline=FlagSet())
        result = screener.result(FlagSet())
        if result.program is None:
            return {"failure": result.failure.message if result.failure else ""}
        try:
            canary = dict(find_canary(screener))
        except LaunchError as e:
            return {"failure": str(e)}
    assert job.target is not None
    program, prediction = result.program, predict_step(result.program, job.target, job.topology)
    assert program.memory is not None
    peak = program.memory.peak_bytes
    return {
        "peak_gib": round(peak / 2**30, 1),
        "fits": peak <= job.target.memory_bytes * DEFAULT_MEMORY_FRACTION,
        "attention": "cudnn" if any("fmha" in name for name in program.custom_calls) else "xla",
        "collectives": _collectives(program),
        "predicted_step_s": round(prediction.step_s, 4),
        "predicted_exposed_s": round(prediction.exposed_s, 4),
        "predicted_mfu": None if prediction.mfu is None else round(prediction.mfu, 3),
        "unknown_loops": list(prediction.unknown_loops),
        "canary": canary,
        "wall_s": round(time.perf_counter() - started, 1),
    }


def _collectives(program: Any) -> dict[str, dict[str, float]]:
    """By kind: how many run in a step, and their GB."""
    counts = figures(program)
    runs = {
        name.removesuffix(" runs a step"): count
        for name, count in counts.items()
        if name.endswith(" runs a step")
    }
    return {
        kind: {"runs": count, "gb": round(counts[f"{kind} bytes a step"] / 1e9, 3)}
        for kind, count in runs.items()
    }


if __name__ == "__main__":
    main()

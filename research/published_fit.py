"""Which training configurations fit the GPUs they were published for, with fused attention and without.

Run as ``python -m research.published_fit``; it needs the extra ``screen`` and no GPU. Compiles each configuration
of ``published_fit.toml`` and each GPU study in ``studies/`` with ``attention`` = xla and with what presets choose
themselves, and compares the step's peak memory with JAX's default share of the GPU, and with the share of each of two
processes that take turns. Writes ``research/results/published_fit_JAXLIB.json`` after each one, and goes on there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

from autotune.compiler.program import Memory
from autotune.compiler.screen import DEFAULT_MEMORY_FRACTION
from autotune.compiler.targets import load_target, parse_topology

HERE = Path(__file__).parent
IN_TURNS_FRACTION = 0.45  # what each of two processes on one GPU takes, see README
CHOICES = ("xla", "auto")
PARTS = ("argument", "output", "alias", "temp", "generated_code")


def main() -> None:
    """Compiles what is not yet in the results, and writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these configurations")
    parser.add_argument("--attention", choices=CHOICES, help="only this one")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(compile_one(json.loads(args.one))))
        return
    path = HERE / f"results/published_fit_{version('jaxlib')}.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known = configurations()
    for name in args.names or known:
        config = known[name]
        for attention in [args.attention] if args.attention else CHOICES:
            if attention in found.get(name, {}).get("compiled", {}):
                continue
            row = found.setdefault(name, {**config, "compiled": {}})
            row["compiled"][attention] = in_a_process(config, attention)
            path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            print(name, attention, row["compiled"][attention], flush=True)
    (HERE / "results/published_fit.md").write_text(page(found, version("jaxlib")), encoding="utf-8")
    print(summary(found))


def configurations() -> dict[str, dict[str, Any]]:
    """The published configurations, and the studies that run on GPUs."""
    found = tomllib.loads((HERE / "published_fit.toml").read_text(encoding="utf-8"))
    for file in sorted((HERE.parent / "studies").glob("*.toml")):
        study = tomllib.loads(file.read_text(encoding="utf-8"))
        if study["device"]["platform"] != "cuda" or "entry" not in study["workload"]:
            continue
        nodes = study["device"].get("node_count", 1)
        found[f"study_{file.stem}"] = {
            "source": f"studies/{file.name}",
            "entry": study["workload"]["entry"],
            "options": study["workload"].get("options", {}),
            "target": "h100-sxm",
            "topology": f"{nodes}x{study['device']['count'] // nodes}",
        }
    return found


def in_a_process(config: dict[str, Any], attention: str) -> dict[str, Any]:
    """What one configuration needs; a compiler that aborts takes only its process with it."""
    has_attention = not config["entry"].startswith("dreamer")
    options = {**config["options"], **({"attention": attention} if has_attention else {})}
    command = [sys.executable, "-m", "research.published_fit", "--one", json.dumps({**config, "options": options})]
    env = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
    started = time.perf_counter()
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failure": (done.stderr.strip().splitlines() or ["died without a word"])[-1][:400]}
    return {**json.loads(done.stdout.splitlines()[-1]), "wall_s": round(time.perf_counter() - started, 1)}


def compile_one(config: dict[str, Any]) -> dict[str, Any]:
    """Compiles the step of one configuration and says what memory it needs, in bytes of one GPU."""
    from jax.experimental import topologies

    from workloads.base import jit_step
    from workloads.loading import load

    target, topology = load_target(config["target"]), parse_topology(config["topology"])
    described = topologies.get_topology_desc(
        platform="cuda", target_config=target.config_text, topology=topology.for_xla(target.network)
    )
    workload = load(config["entry"], config["options"], list(described.devices))
    compiled = jit_step(workload).lower(workload.abstract_state, workload.abstract_batch).compile()
    analysis = compiled.memory_analysis()
    memory = Memory(**{f"{part}_bytes": int(getattr(analysis, f"{part}_size_in_bytes")) for part in PARTS})
    return {
        "attention": workload.config.get("attention"),
        "remat": workload.config.get("remat"),
        "peak_bytes": memory.peak_bytes,
        "peak_gib": round(memory.peak_bytes / 2**30, 1),
        "fits": memory.peak_bytes <= target.memory_bytes * DEFAULT_MEMORY_FRACTION,
        "fits_in_turns": memory.peak_bytes <= target.memory_bytes * IN_TURNS_FRACTION,
    }


def page(found: dict[str, Any], jaxlib: str) -> str:
    """The results as a page."""
    lines = [
        "# Which published configurations fit, with fused attention and without",
        "",
        f"Compiled without a GPU under jaxlib {jaxlib} by `python -m research.published_fit`: peak GiB of",
        f"a GPU in one step, against {DEFAULT_MEMORY_FRACTION:.0%} of its memory, JAX's default share. *Turns*: fits",
        f"in {IN_TURNS_FRACTION:.0%} too, so that two processes take turns. cuDNN's workspace, which only a GPU tells,",
        "is not in these figures. Sources: `research/published_fit.toml`.",
        "",
        "| configuration | GPU | nodes x GPUs | options | attention = xla | attention = auto |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in found.items():
        memory = [_memory(row, attention) for attention in CHOICES]
        lines.append("| " + " | ".join([name, row["target"], row["topology"], _options(row), *memory]) + " |")
    return "\n".join([*lines, "", *(f"* {line}" for line in summary(found).splitlines()), ""])


def _options(row: dict[str, Any]) -> str:
    found: dict[str, Any] = next((r for r in row["compiled"].values() if "remat" in r), {})
    mesh = " x ".join(f"{axis} {size}" for axis, size in row["options"].get("mesh", {}).items())
    parts = (mesh, f"batch {row['options'].get('batch', 'of the preset')}", f"remat {found.get('remat')}")
    return ", ".join(filter(None, parts))


def _memory(row: dict[str, Any], attention: str) -> str:
    found = row["compiled"].get(attention)
    if found is None:
        return "not compiled"
    if "failure" in found:
        return f"failed: {found['failure'][:60]}"
    word = "fits, turns" if found["fits_in_turns"] else "fits" if found["fits"] else "**does not fit**"
    return f"{found['peak_gib']} ({found['attention']}): {word}"


def summary(found: dict[str, Any]) -> str:
    """How many fit, in a line for each choice of attention."""
    lines = []
    for attention in CHOICES:
        rows = {n: r["compiled"][attention] for n, r in found.items() if attention in r["compiled"]}
        fitting = [n for n, row in rows.items() if row.get("fits")]
        others = ", ".join(n for n in rows if n not in fitting) or "none"
        lines.append(f"attention = {attention}: {len(fitting)} of {len(rows)} fit; do not: {others}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

"""The same study by two searches, on programs that are really compiled: starts and minutes to the same winner.

    python -m benchmarks.search.replayed [--seeds 0..5] [--trials 40] [--into benchmarks/results/search/replayed.jsonl]

A whole study (noise floor, search, finalists, proof, minimisation) of a small sharded Llama on eight H100s, over the
catalogue's own space for it, with the published sets tried first, once by this project's search and once by what it
had before. No GPU is there: each set is compiled, and its step takes what the model predicts of that program, with
the noise of a quiet machine (`benchmarks/screen_saves.py`). So the truth of every set is known, and what is told is
when each study had tried a set as fast as the faster one's winner. Minutes are of the study's own plan for such a
step: starts of `START_S`, and the blocks of a GPU's turns. Rows are added one a study; it goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from autotune.cli.live import LineView
from autotune.compiler.compiler import Compiler
from autotune.compiler.job import CompileJob
from autotune.compiler.targets import Target, load_target, parse_topology
from autotune.compiler.verdicts import Screener
from autotune.machine import caller_environment
from autotune.machine.environment import default_cache_dir
from autotune.model import FlagSet, Stopwatch, parse_study
from autotune.model.records import TrialResult
from autotune.settings import for_build, load_catalog, load_recipes
from autotune.study import run_study
from benchmarks.compiled_machine import CompiledMachine
from benchmarks.search.catalogue import _space, known_settings
from benchmarks.search.runs import made_with, write_row
from harness.simulated import GivenSetup, given_run

PATH = Path(__file__).parents[1] / "results" / "search" / "replayed.jsonl"
ENTRY, OPTIONS, PROGRAM = "llama-tiny", {"mesh": {"fsdp": 8}}, 1
GROUPS = ("async", "combining", "command_buffer", "fusion", "gemm", "loops", "nccl", "pipelining", "scheduling")
SEARCHES = {"now": "additive", "before": "tpe"}

START_S = 45.0
"""Seconds that a start takes on such a machine, imports and compilation included."""

NEAR = 0.002
"""By how much a set may be slower than the best that both studies found, and count as the same winner."""


def study(search: str, seed: int, trials: int, screen: Screener, target: Target, folder: Path) -> dict[str, Any]:
    """One study, with the truth of each of its sets."""
    spec = parse_study(
        {
            "name": f"replayed-{search}-{seed}",
            "seed": seed,
            "workload": {"entry": ENTRY, "options": OPTIONS},
            "device": {"platform": "cuda", "count": 8},
            "search": {"sampler": SEARCHES[search], "trials": trials},
            "replay": {"noise": "quiet"},
        }
    )
    launcher = CompiledMachine(spec, screen, target)
    known, space = known_settings(), _space(PROGRAM, GROUPS)
    names = {p.name for p in space.parameters}
    first: dict[FlagSet, str] = {}
    for name, recipe in load_recipes().items():
        fitting = FlagSet({n: v for n, v in for_build(recipe.settings, known).items() if n in names})
        if fitting and space.locate(fitting) is not None:
            first.setdefault(fitting, f"recipe {name}")
    setup = GivenSetup(given_space=space, given_launcher=launcher, first=[(w, s) for s, w in first.items()])
    view = LineView(Console(quiet=True), Stopwatch(), min_effect=spec.measure.min_effect)
    session = given_run(spec, folder, setup, view)
    conclusion = run_study(session)
    results = session.store.of(TrialResult)
    default = launcher.step_s(FlagSet())
    assert default is not None
    tried, pairs = [], []
    for result in results:
        step_s = launcher.step_s(result.settings)
        tried.append(None if step_s is None else round(math.log(step_s / default), 5))
        comparison = result.comparison
        pairs.append(comparison.pair_count if comparison is not None else 0)
    costs = spec.turns.costs(step_s=default, start_s=START_S)
    winner = conclusion.settings if conclusion.settings else None
    true = launcher.step_s(winner) if winner else default
    return {
        "search": search,
        "seed": seed,
        "settings": len(space.parameters),
        "recipes": len(first),
        "step_s": round(default, 5),
        "tried": tried,
        "trial_s": [round(costs.trial_s(n), 1) for n in pairs],
        "starts": launcher.started,
        "outcome": str(conclusion.outcome),
        "winner": dict(winner) if winner else None,
        "winner_true": round(math.log((true or default) / default), 5),
        "winner_told": round(math.log(conclusion.estimate.ratio), 5) if winner and conclusion.estimate else None,
    }


def compared(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each seed that both searched: trials and minutes until each had tried a set as good as the better winner.

    None where a study never tried one.
    """
    found = []
    by = {(r["search"], r["seed"]): r for r in rows}
    for seed in sorted({s for _, s in by}):
        if not all((name, seed) in by for name in SEARCHES):
            continue
        goal = min(by[name, seed]["winner_true"] for name in SEARCHES) + NEAR
        told: dict[str, Any] = {"seed": seed, "goal": round(goal, 5)}
        for name in SEARCHES:
            row = by[name, seed]
            at = next((i for i, v in enumerate(row["tried"]) if v is not None and v <= goal), None)
            minutes = None if at is None else round(sum(row["trial_s"][: at + 1]) / 60, 1)
            told[name] = {"trials": None if at is None else at + 1, "minutes": minutes}
        found.append(told)
    return found


def main() -> None:
    """Runs what is missing, then prints the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0..5")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--into", type=Path, default=PATH)
    arguments = parser.parse_args()
    first, _, end = arguments.seeds.partition("..")
    lines = arguments.into.read_text(encoding="utf-8").splitlines() if arguments.into.exists() else []
    rows = [json.loads(line) for line in lines]
    done = {(r["search"], r["seed"], r["trials"]) for r in rows}
    target = load_target("h100-sxm")
    job = CompileJob(entry=ENTRY, options=OPTIONS, target=target, topology=parse_topology("1x8"))
    cache = default_cache_dir(caller_environment()) / "screen"
    with Compiler(job, cache_dir=cache) as compiler, tempfile.TemporaryDirectory() as folder:
        screen = Screener(compiler, baseline=FlagSet(), catalog=load_catalog())
        for seed in range(int(first), int(end)):
            for search in SEARCHES:
                if (search, seed, arguments.trials) in done:
                    continue
                own = Path(folder) / f"{search}-{seed}"
                row = {"trials": arguments.trials, **study(search, seed, arguments.trials, screen, target, own)}
                rows.append({**row, "made": made_with()})
                write_row(arguments.into, rows[-1])
                print(
                    f"seed {seed}, {search}: {row['outcome']}, {100 * math.expm1(row['winner_true']):+.2f} %",
                    flush=True,
                )
    for told in compared(rows):
        print(told)


if __name__ == "__main__":
    main()

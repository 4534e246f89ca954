"""Runs searches on families of spaces, and keeps one row a run."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.search.conditioned import CONDITIONED, draw_conditioned
from benchmarks.search.drawn import DRAWN, draw
from benchmarks.search.families import make
from benchmarks.search.options import OPTIONS, draw_options
from benchmarks.search.problems import Problem
from benchmarks.search.registry import RIVALS
from benchmarks.search.scoring import random_search, score
from benchmarks.search.strategies import Product, Strategy

Row = dict[str, Any]

LOOKS = (20, 40, 60)
"""Trials after which the best set is looked at."""

HERE = Path(__file__).parent
KEY = ("family", "seed", "noise", "recipes", "strategy", "trials", "most")
"""What names a run."""


@functools.cache
def made_with() -> dict[str, str]:
    """The commit, with a plus where files differ from it, and what else figures depend on."""
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    packages = {name: importlib.metadata.version(name) for name in ("optuna", "jaxlib")}
    return {"commit": told.stdout.strip() or "unknown", **packages}


@functools.lru_cache(maxsize=4)
def problem_of(family: str, seed: int) -> Problem:
    """A space, made once for all who search it."""
    if family in CONDITIONED:
        return draw_conditioned(family, seed)
    own = {DRAWN: draw, OPTIONS: draw_options}
    return own[family](seed) if family in own else make(family, seed)


def run_one(problem: Problem, strategy: Strategy, *, trials: int, noise: float, seed: int) -> Row:
    """One search of one space: its score, its sets' shares of the possible gain, its seconds.

    Seconds are of this process's processor time, so that a busy machine does not count.
    """
    best, chosen, failed, seconds = [], {}, 0, []
    value, is_over = 0.0, False
    for trial in range(trials):
        codes = None
        if not is_over:
            began = time.process_time()
            codes = strategy.ask()
            seconds.append(time.process_time() - began)
            is_over = codes is None  # as a study does
        if codes is not None:
            value = min(value, float(problem.gains(codes[None])[0]))
            measured, sd = problem.measure(codes, trial, noise=noise, seed=seed)
            failed += measured is None
            strategy.tell(codes, measured, sd)
        best.append(value)
        if trial + 1 in LOOKS or trial + 1 == trials:
            chosen[trial + 1] = _share(float(problem.gains(strategy.chosen()[None])[0]), problem)
    curve = np.array(best)
    baseline = random_search(problem, trials)
    return {
        "score": round(score(curve, baseline, problem.optimum), 4),
        "found": {n: _share(best[n - 1], problem) for n in chosen},
        "chosen": chosen,
        "curve": [
            [n + 1, _share(v, problem)] for n, v in enumerate(best) if n == 0 or v != best[n - 1]
        ],
        "regret": round(float(np.mean(curve)) - problem.optimum, 5),
        "last": round(best[-1] - problem.optimum, 5),
        "failed": failed,
        "asked": len(seconds) - is_over,
        "hunts": strategy.hunts if isinstance(strategy, Product) else 0,
        "seconds": round(float(np.mean(seconds)), 4),
        "longest": round(max(seconds), 3),
    }


def _share(value: float, problem: Problem) -> float:
    """Share of what there is to gain; 1 where there is nothing."""
    return round(value / problem.optimum, 4) if problem.optimum else 1.0


def read_rows(path: Path) -> list[Row]:
    """Rows of a file, the last of each name; a line that a kill cut off is left out."""
    found: dict[tuple[Any, ...], Row] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        found[name_of(row)] = row
    return list(found.values())


def name_of(row: Row) -> tuple[Any, ...]:
    """What names a run."""
    return tuple(row.get(key) for key in KEY)


def write_row(path: Path, row: Row) -> None:
    """Adds a row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(row, separators=(",", ":")) + "\n")


def run_families(
    path: Path,
    *,
    families: Sequence[str],
    seeds: Iterable[int],
    noises: Sequence[float],
    recipes: Sequence[bool],
    strategies: Sequence[str],
    trials: int,
    again: bool,
    until: float | None = None,
) -> None:
    """Runs what is not there yet, seed by seed, so that all have as many whenever it is stopped.

    Args:
        path: Where the rows are.
        families: Which spaces.
        seeds: Of each.
        noises: Mean standard errors of trials.
        recipes: Without and with sets that are tried first.
        strategies: Who searches.
        trials: How long.
        again: Whether what is there is run again.
        until: Time, as `time.time` has it, after which no run is begun.
    """
    done = set() if again else {name_of(row) for row in read_rows(path)}
    todo = [
        row
        for row in _all_runs(families, seeds, noises, recipes, strategies, trials)
        if name_of(row) not in done
    ]
    began = time.monotonic()
    for at, row in enumerate(todo):
        if until is not None and time.time() > until:
            return
        problem = problem_of(row["family"], row["seed"])
        strategy = RIVALS[row["strategy"]].make(problem, row["seed"], row["recipes"])
        result = run_one(
            problem, strategy, trials=trials, noise=problem.noise or row["noise"], seed=row["seed"]
        )
        write_row(path, {**row, **result, "made": made_with()})
        spent = time.monotonic() - began
        left = spent / (at + 1) * (len(todo) - at - 1)
        print(
            f"{at + 1}/{len(todo)} {row['family']} {row['seed']} {row['strategy']}: "
            f"{result['score']:.2f}, "
            f"{left / 60:.0f} min left",
            file=sys.stderr,
            flush=True,
        )


def _all_runs(
    families: Sequence[str],
    seeds: Iterable[int],
    noises: Sequence[float],
    recipes: Sequence[bool],
    strategies: Sequence[str],
    trials: int,
) -> Iterator[Row]:
    for seed in seeds:
        for family in families:
            for noise in (None,) if family in (DRAWN, OPTIONS) else noises:
                for has_recipes in recipes:
                    for strategy in strategies:
                        yield dict(
                            zip(
                                KEY,
                                (family, seed, noise, has_recipes, strategy, trials),
                                strict=False,
                            )
                        )

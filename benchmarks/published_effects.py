"""Published effects as ideas for the search of eight GPUs, with all or half of the signs right.

Run as ``python -m benchmarks.published_effects [--seeds N] [--workers
N]``. The space is that of `studies/eight-gpus-fsdp.toml` on a described node of H100s. On the first
machine each published idea does what is expected of it, give or take; on the second, half of the
ideas do the opposite. A few other settings act on both. Each search is run with the published ideas
as its first trials and as its prior, and without either. Writes
``benchmarks/results/published_effects.json``.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import statistics
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from autotune.model.flags import MEMORY_FRACTIONS, FlagSet
from autotune.model.records import TrialResult
from autotune.model.spec import StudySpec, load_study
from autotune.settings.known import KnownSettings
from autotune.settings.probe import probe_build
from autotune.settings.space import Parameter, SearchSpace
from autotune.study.preflight import space_here
from autotune.study.proposer import Proposer
from harness.simulated import measured_as

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "studies/eight-gpus-fsdp.toml"
RESULTS = Path(__file__).parent / "results/published_effects.json"
TARGET = "h100-sxm"

TRIALS = 24
NOISE = 0.01
"""Standard error of a trial, as a log ratio."""

NEAR = 0.01
"""How far above the best set's log ratio a set counts as the best one."""

SCATTER = 0.5
"""How far the truth lies from what is expected, in standard deviations of the latter; 0.02 at
most.
"""

OTHERS, OTHERS_SIZE = 5, 0.02
"""How many settings act of which nothing was published, and the standard deviation of their
effects.
"""

NEVER_ALONE = (*MEMORY_FRACTIONS, "XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB")
"""Settings that only make room for others."""

MACHINES = {"published effects hold": 0.0, "half of them have the other sign": 0.5}
"""Simulated machines: the share of ideas whose effect is the opposite."""

ARMS = ("with published effects", "without")

Truth = Mapping[str, Mapping[str, float]]
"""Setting to the log ratio of each value."""


@functools.cache
def study_space() -> tuple[StudySpec, SearchSpace]:
    """Returns the study, and its space on the described node."""
    spec = load_study(STUDY)
    spec = spec.model_copy(update={"screen": spec.screen.model_copy(update={"target": TARGET})})
    build = dataclasses.replace(probe_build(sys.executable), platform="cuda")
    return spec, space_here(spec, KnownSettings(build, TARGET), None)


def truth_of(space: SearchSpace, seed: int, inverted: float) -> Truth:
    """Draws what each value of each setting does on a machine."""
    rng = np.random.default_rng([seed, 53])
    effects: dict[str, dict[str, float]] = {p.name: {} for p in space.parameters}
    for expected in space.expected:
        sd = min(0.02, SCATTER * expected.sd)
        sign = -1.0 if rng.random() < inverted else 1.0
        whole = sign * expected.log_ratio + sd * rng.standard_normal()
        acting = [name for name in expected.settings if name not in NEVER_ALONE]
        for name in acting:
            effects[name].setdefault(expected.settings[name], whole / len(acting))
    unpublished = [p for p in space.parameters if not effects[p.name] and p.name not in NEVER_ALONE]
    for at in rng.choice(len(unpublished), OTHERS, replace=False):
        parameter = unpublished[at]
        values = [v for v in parameter.choices if not parameter.is_absent(v)]
        effects[parameter.name] = {v: float(OTHERS_SIZE * rng.standard_normal()) for v in values}
    return effects


def log_ratio(truth: Truth, settings: FlagSet) -> float:
    """Returns what a set does."""
    return sum(truth[name].get(value, 0.0) for name, value in settings.items())


def best_set(space: SearchSpace, truth: Truth) -> FlagSet:
    """Finds the best set from the default and each idea, one setting at a time."""
    starts = [FlagSet(), *(e.settings for e in study_space()[1].expected)]
    return min(
        (_descend(space, truth, dict(start)) for start in starts), key=lambda s: log_ratio(truth, s)
    )


def _descend(space: SearchSpace, truth: Truth, chosen: dict[str, str]) -> FlagSet:

    def ask(parameter: Parameter) -> str:
        return chosen.get(parameter.name, parameter.usual)

    best = space.suggest(ask)
    for _ in range(3):
        for parameter in space.parameters:
            for value in truth[parameter.name]:
                before = chosen.get(parameter.name)
                chosen[parameter.name] = value
                changed = space.suggest(ask)
                if log_ratio(truth, changed) < log_ratio(truth, best):
                    best = changed
                elif before is None:
                    del chosen[parameter.name]
                else:
                    chosen[parameter.name] = before
    return best


def search(machine: str, arm: str, seed: int) -> dict[str, Any]:
    """Runs one search; returns the trials to the best set, and how good the best was on the way."""
    spec, space = study_space()
    truth = truth_of(space, seed, MACHINES[machine])
    optimum = log_ratio(truth, best_set(space, truth))
    spec = spec.model_copy(update={"seed": seed})
    if arm != ARMS[0]:
        space = dataclasses.replace(space, first=(), expected=())
    proposer = Proposer(spec, space, first=space.first)
    rng = np.random.default_rng([seed, 7])
    reached: list[float] = []
    for number in range(1, TRIALS + 1):
        config = proposer.ask(number)
        if config is None:
            break
        value = log_ratio(truth, config.settings)
        seen = value + NOISE * float(rng.standard_normal())
        proposer.tell(TrialResult(**dict(config), **dict(measured_as(seen, NOISE))))
        reached.append(min(value, *reached[-1:], 0.0))
    near = [n for n, value in enumerate(reached, 1) if value <= optimum + NEAR]
    share = {
        str(n): round(reached[min(n, len(reached)) - 1] / optimum, 3) for n in (4, 8, 16, TRIALS)
    }
    return {
        "machine": machine,
        "arm": arm,
        "seed": seed,
        "optimum": round(math.exp(optimum), 4),
        "trials_to_best": near[0] if near else None,
        "share_of_gain": share,
    }


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians by machine and arm; a search without the best set counts as `TRIALS` + 1."""
    found = []
    for machine in MACHINES:
        for arm in ARMS:
            mine = [row for row in rows if (row["machine"], row["arm"]) == (machine, arm)]
            trials = [row["trials_to_best"] or TRIALS + 1 for row in mine]
            shares = {
                n: statistics.mean(row["share_of_gain"][n] for row in mine)
                for n in mine[0]["share_of_gain"]
            }
            found.append(
                {
                    "machine": machine,
                    "arm": arm,
                    "searches": len(mine),
                    "median_trials": statistics.median(trials),
                    "reached": sum(t <= TRIALS for t in trials),
                    "share_of_gain": {n: round(share, 3) for n, share in shares.items()},
                }
            )
    return found


def main() -> None:
    """Runs all searches, and writes and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--workers", type=int, default=1)
    asked = parser.parse_args()
    study_space()
    jobs = [
        (machine, arm, seed) for seed in range(asked.seeds) for machine in MACHINES for arm in ARMS
    ]
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(asked.workers) as pool:
        for row in pool.map(search, *zip(*jobs, strict=True)):
            rows.append(row)
            if len(rows) % (len(MACHINES) * len(ARMS)) == 0:
                _write(rows)
    for line in summary(rows):
        print(json.dumps(line))


def _write(rows: list[dict[str, Any]]) -> None:
    """Writes what has been searched so far."""
    found = {
        "trials": TRIALS,
        "noise": NOISE,
        "near": NEAR,
        "summary": summary(rows),
        "searches": rows,
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""How soon a study has a result: sets an hour and minutes to the optimum, to the proof and to the end, in virtual time.

`python -m benchmarks.time_to_result` prints the table and writes `benchmarks/results/time_to_result.json`; `--quick`
runs two seeds and writes nothing. Studies run by the shipped stages on machines of which only the time is virtual
(`harness/virtual_time.py`). Each has 20 switches: 3 gain, 5 cost, 12 do nothing; which ones, the seed says.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from autotune.model.flags import FlagSet
from autotune.model.records import AaRecord, ConclusionRecord, FinalistResult, Outcome, TrialResult, TrialStatus
from autotune.settings.space import Parameter, SearchSpace
from harness.noise import NoiseModel
from harness.process_pool import process_pool
from harness.simulated_machine import SimulatedStudy, parse_simulated
from harness.virtual_time import Times, virtual_study

RESULTS = Path(__file__).parent / "results" / "time_to_result.json"

GAINS = (0.015, 0.03, 0.06)
COSTS = (0.01, 0.02, 0.04, 0.06, 0.1)
NOTHING = 12
SHORT_S = 900.0
"""The budget with which a study must come to something."""
NEAR = math.log(1.01)
"""What is so near to the optimum counts as it."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine: what its steps and starts take, and its noise."""

    step_s: float
    times: Times
    noise: NoiseModel
    device: Mapping[str, Any] = field(default_factory=lambda: {"platform": "cuda", "count": 1})


MACHINES = {
    "H100": Machine(
        step_s=0.258,
        times=Times(host_s=6.5, kernels_s=5.0, device_s=2.5, fast_share=0.015, fast_s=0.7, fast_sd_s=0.18),
        noise=NoiseModel(white_sd=0.0007, process_sd=0.002),
    ),
}


def effects_of(seed: int, *, gains: Sequence[float] = GAINS) -> dict[str, float]:
    """Switches with the factor of the step time of each, in the order in which they are searched."""
    factors = [*(1 - g for g in gains), *(1 + c for c in COSTS), *[1.0] * (NOTHING + len(GAINS) - len(gains))]
    order = np.random.default_rng(seed).permutation(len(factors))
    return {f"xla_switch_{at:02d}=true": factors[index] for at, index in enumerate(order)}


def log_ratio_of(settings: FlagSet, effects: Mapping[str, float]) -> float:
    """The true log ratio of a set's step time."""
    return sum(math.log(effects.get(f"{name}={value}", 1.0)) for name, value in settings.items())


def study_of(machine: Machine, effects: Mapping[str, float], seed: int, **search: Any) -> SimulatedStudy:
    """The study of a machine with the shipped defaults."""
    simulation = {"step_s": machine.step_s, "effects": dict(effects), "noise": asdict(machine.noise)}
    study = {"name": "virtual", "seed": seed, "workload": {"entry": "llama"}, "device": dict(machine.device)}
    return parse_simulated({**study, "search": search, "simulation": simulation})


def space_of(effects: Mapping[str, float]) -> SearchSpace:
    """All switches."""
    names = [entry.removesuffix("=true") for entry in effects]
    return SearchSpace(tuple(Parameter(name=n, choices=("false", "true"), default="false") for n in names))


@dataclass(frozen=True, kw_only=True)
class Came:
    """What came of one study, minutes from its begin.

    Attributes:
        sets: That were measured.
        sets_per_hour: While it searched.
        aa_run, found, searched, proven, end: When the A/A run ended, the optimum was first held as best, the search
            ended, the winner was proven (isolated runs included), and all was over; None where it never was.
        winner: Log of the true ratio of what is named; None if nothing is.
        is_proven: Whether a winner is proven.
        lost: What the winner lacks to the optimum, log.
    """

    sets: int
    sets_per_hour: float
    aa_run: float | None = None
    found: float | None = None
    searched: float | None = None
    proven: float | None = None
    end: float
    winner: float | None = None
    lost: float | None = None


def product(machine: Machine, seed: int, *, gains: Sequence[float] = GAINS, **search: Any) -> Came:
    """One study by the shipped stages."""
    effects = effects_of(seed, gains=gains)
    store = virtual_study(study_of(machine, effects, seed, **search), space_of(effects), machine.times)
    best = sum(math.log1p(-g) for g in gains)
    aa_s = store.of(AaRecord)[0].at_s
    found_s: float | None = None
    held = math.inf
    trials = store.of(TrialResult)
    measured = [t for t in trials if t.status is TrialStatus.MEASURED and t.comparison is not None]
    for trial in measured:
        assert trial.comparison is not None
        if trial.comparison.estimate.ratio < held:
            held = trial.comparison.estimate.ratio
            if found_s is None and gains and log_ratio_of(trial.settings, effects) <= best + NEAR:
                found_s = trial.at_s
    searched_s = trials[-1].at_s if trials else aa_s
    end = store.of(ConclusionRecord)[-1]
    is_winner = end.outcome is Outcome.WINNER and end.settings is not None
    winner = log_ratio_of(end.settings, effects) if is_winner and end.settings is not None else None
    proofs = [f.at_s for f in store.of(FinalistResult) if f.settings == end.settings]
    return Came(
        sets=len(measured),
        sets_per_hour=3600.0 * len(measured) / (searched_s - aa_s) if measured else 0.0,
        aa_run=aa_s / 60.0,
        found=found_s / 60.0 if found_s is not None else None,
        searched=searched_s / 60.0,
        proven=proofs[-1] / 60.0 if is_winner else None,
        end=end.at_s / 60.0,
        winner=winner,
        lost=winner - best if winner is not None else None,
    )


def one(job: tuple[str, str, int]) -> Came:
    """One study of a way on a machine, by a seed."""
    name, way, seed = job
    machine = MACHINES[name]
    if way == "budget of 15 min":
        return product(machine, seed, time_budget=SHORT_S)
    if way == "nothing gains":
        return product(machine, seed, gains=())
    return product(machine, seed)


WAYS = ("autotune", "budget of 15 min", "nothing gains")


def summary(name: str, way: str, all_came: Sequence[Came]) -> dict[str, Any]:
    """The row of a way on a machine; medians, over those that got there."""

    def middle(key: str) -> float | None:
        values = [getattr(c, key) for c in all_came if getattr(c, key) is not None]
        return round(statistics.median(values), 2) if values else None

    named = [c.winner for c in all_came if c.winner is not None]
    keys = ("sets", "sets_per_hour", "aa_run", "found", "searched", "proven", "end")
    return {
        "machine": name,
        "way": way,
        "studies": len(all_came),
        **{key: middle(key) for key in keys},
        "found_in": sum(c.found is not None for c in all_came),
        "winners": len(named),
        "optimal": sum(c.lost is not None and c.lost <= NEAR for c in all_came),
        "wrong": sum(w >= 0.0 for w in named),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a text table."""
    texts = [list(rows[0]), *[["-" if v is None else str(v) for v in row.values()] for row in rows]]
    widths = [max(len(line[at]) for line in texts) for at in range(len(texts[0]))]
    return "\n".join("  ".join(t.rjust(w) for t, w in zip(line, widths, strict=True)) for line in texts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two seeds, nothing is written")
    parser.add_argument("--machines", nargs="+", choices=MACHINES, default=list(MACHINES), metavar="MACHINE",
                        help=", ".join(MACHINES))  # fmt: skip
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), metavar="WAY", help=", ".join(WAYS))
    parser.add_argument("--seeds", type=int, default=20, help="studies of each way; three times as many without a gain")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    seeds, began = 2 if options.quick else options.seeds, time.monotonic()
    rows = []
    with process_pool() as pool:
        for name in options.machines:
            for way in options.ways:
                jobs = [(name, way, seed) for seed in range(seeds * 3 if way == "nothing gains" else seeds)]
                rows.append(summary(name, way, list(pool.map(one, jobs))))
    print(table(rows))
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    if not options.quick:
        options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

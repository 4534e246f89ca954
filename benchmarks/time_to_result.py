"""Time to a study's result, in virtual time: sets an hour, minutes to optimum, proof and end.

`python -m benchmarks.time_to_result` prints the table and writes
`benchmarks/results/time_to_result.json`; `--quick` runs two seeds and writes nothing. Studies run
by the shipped stages on machines of which only the time is virtual (`harness/virtual_time.py`).
Each has 20 switches: 3 gain, 5 cost, 12 do nothing; which ones, the seed says.
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
from autotune.model.records import (
    AaRecord,
    ConclusionRecord,
    FinalistResult,
    Outcome,
    TrialResult,
    TrialStatus,
)
from autotune.settings.space import Parameter, SearchSpace
from benchmarks.plain_ways import PLAIN_WAYS, Bench, Way
from harness.noise import NoiseModel
from harness.process_pool import process_pool
from harness.simulated_machine import SimulatedStudy, parse_simulated
from harness.virtual_time import Times, virtual_study

RESULTS = Path(__file__).parent / "results" / "time_to_result.json"

GAINS = (0.015, 0.03, 0.06)
COSTS = (0.01, 0.02, 0.04, 0.06, 0.1)
NOTHING = 12
SWITCHES = len(GAINS) + len(COSTS) + NOTHING
SHORT_S = 900.0
"""The budget with which a study must come to something."""
NEAR = math.log(1.01)
"""What is so near to the optimum counts as it."""


IMPORT_S = 2.0
"""What importing JAX, flax and optax takes, of the part of a start that needs no device."""


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
        times=Times(
            host_s=6.5,
            import_s=IMPORT_S,
            compile_s=5.0,
            device_s=2.5,
            fast_share=0.015,
            fast_s=0.7,
            fast_sd_s=0.18,
        ),
        noise=NoiseModel(white_sd=0.0007, process_sd=0.002),
    ),
    "noisy A100": Machine(
        step_s=0.35,
        times=Times(
            host_s=8.0,
            import_s=IMPORT_S,
            compile_s=6.0,
            device_s=4.0,
            fast_share=0.02,
            fast_s=1.2,
            fast_sd_s=0.4,
        ),
        noise=NoiseModel(
            white_sd=0.004, process_sd=0.004, wander_sd=0.004, outlier_share=0.01, outlier_cost=0.05
        ),
    ),
    "8 GPUs, start 90 s": Machine(
        step_s=0.8,
        times=Times(
            host_s=40.0,
            import_s=IMPORT_S,
            compile_s=20.0,
            device_s=30.0,
            fast_share=0.01,
            fast_s=0.7,
            fast_sd_s=0.2,
        ),
        noise=NoiseModel(
            white_sd=0.002, process_sd=0.002, wander_sd=0.002, outlier_share=0.01, outlier_cost=0.03
        ),
        device={"platform": "cuda", "count": 8},
    ),
    "2 CPU cores": Machine(
        step_s=0.01,
        times=Times(host_s=3.0, compile_s=1.5, device_s=0.5, together=1.5, cores=2),
        noise=NoiseModel(
            white_sd=0.05, process_sd=0.005, wander_sd=0.03, burst_share=0.1, burst_cost=0.2
        ),
        device={"platform": "cpu"},
    ),
}


def effects_of(seed: int, *, gains: Sequence[float] = GAINS) -> dict[str, float]:
    """Switches with their factors of the step time, in the order of the search."""
    factors = [
        *(1 - g for g in gains),
        *(1 + c for c in COSTS),
        *[1.0] * (SWITCHES - len(gains) - len(COSTS)),
    ]
    order = np.random.default_rng(seed).permutation(SWITCHES)
    return {f"xla_switch_{at:02d}=true": factors[index] for at, index in enumerate(order)}


def log_ratio_of(settings: FlagSet, effects: Mapping[str, float]) -> float:
    """The true log ratio of a set's step time."""
    return sum(math.log(effects.get(f"{name}={value}", 1.0)) for name, value in settings.items())


def study_of(
    machine: Machine, effects: Mapping[str, float], seed: int, **search: Any
) -> SimulatedStudy:
    """The study of a machine with the shipped defaults."""
    simulation = {
        "step_s": machine.step_s,
        "effects": dict(effects),
        "noise": asdict(machine.noise),
    }
    study = {
        "name": "virtual",
        "seed": seed,
        "workload": {"entry": "llama"},
        "device": dict(machine.device),
    }
    return parse_simulated({**study, "search": search, "simulation": simulation})


def space_of(effects: Mapping[str, float]) -> SearchSpace:
    """All switches."""
    names = [entry.removesuffix("=true") for entry in effects]
    return SearchSpace(
        tuple(Parameter(name=n, choices=("false", "true"), default="false") for n in names)
    )


@dataclass(frozen=True, kw_only=True)
class Came:
    """What came of one study, minutes from its begin.

    Attributes:
        sets: That were measured in its search.
        sets_per_hour: While it searched, after the A/A run or the reference.
        answered_per_hour: Switches that each of them stands for, those that a screen left out
            included.
        aa_run, found, searched, proven, end: When the A/A run ended, the optimum was first held as
            best, the search ended, the winner was proven (isolated runs included), and all was
            over; None where it never was.
        winner: Log of the true ratio of what is named; None if nothing is.
        lost: What that lacks to the optimum, log.
    """

    sets: int
    sets_per_hour: float
    answered_per_hour: float
    aa_run: float | None = None
    found: float | None = None
    searched: float
    proven: float | None = None
    end: float
    winner: float | None = None
    lost: float | None = None


def product(machine: Machine, effects: Mapping[str, float], seed: int, **search: Any) -> Came:
    """One study by the shipped stages."""
    store = virtual_study(
        study_of(machine, effects, seed, **search), space_of(effects), machine.times
    )
    aa_s = store.of(AaRecord)[0].at_s
    measured = [t for t in store.of(TrialResult) if t.status is TrialStatus.MEASURED]
    held: list[tuple[FlagSet, float]] = []
    least = 1.0
    for trial in measured:
        if trial.comparison is not None and trial.comparison.estimate.ratio < least:
            least = trial.comparison.estimate.ratio
            held.append((trial.settings, trial.at_s))
    end = store.of(ConclusionRecord)[-1]
    winner = end.settings if end.outcome is Outcome.WINNER else None
    proofs = [f.at_s for f in store.of(FinalistResult) if f.settings == end.settings]
    return came_of(
        effects,
        sets=len(measured),
        begun_s=aa_s,
        held=held,
        searched_s=measured[-1].at_s if measured else aa_s,
        winner=winner,
        end_s=end.at_s,
        aa_run=aa_s / 60.0,
        proven=proofs[-1] / 60.0 if winner is not None else None,
    )


def plain(way: Way, machine: Machine, effects: Mapping[str, float], seed: int) -> Came:
    """One study by hand."""
    bench = Bench(study_of(machine, effects, seed), machine.times)
    names = [entry.removesuffix("=true") for entry in effects]
    winner = way(bench, names, seed)
    return came_of(
        effects,
        sets=bench.sets,
        begun_s=machine.times.start_s,
        held=bench.best,
        searched_s=bench.searched_s,
        winner=winner,
        end_s=bench.clock(),
    )


def came_of(
    effects: Mapping[str, float],
    *,
    sets: int,
    begun_s: float,
    held: Sequence[tuple[FlagSet, float]],
    searched_s: float,
    winner: FlagSet | None,
    end_s: float,
    **minutes: float | None,
) -> Came:
    """A study's result against the truth; `held` are its best sets, each with its time."""
    optimum = sum(math.log(factor) for factor in effects.values() if factor < 1.0)
    found = [
        at_s
        for settings, at_s in held
        if optimum and log_ratio_of(settings, effects) <= optimum + NEAR
    ]
    named = log_ratio_of(winner, effects) if winner is not None else None
    rate = 3600.0 * sets / (searched_s - begun_s) if sets else 0.0
    return Came(
        sets=sets,
        sets_per_hour=rate,
        answered_per_hour=rate * SWITCHES / len(effects),
        found=found[0] / 60.0 if found else None,
        searched=searched_s / 60.0,
        end=end_s / 60.0,
        winner=named,
        lost=named - optimum if named is not None else None,
        **minutes,
    )


def one(job: tuple[str, str, int, bool]) -> Came:
    """One study of a way on a machine, by a seed, with or without switches that gain."""
    name, way, seed, gains = job
    machine, effects = MACHINES[name], effects_of(seed, gains=GAINS if gains else ())
    if way in PLAIN_WAYS:
        return plain(PLAIN_WAYS[way], machine, effects, seed)
    if way == SCREENED:
        effects = {entry: factor for entry, factor in effects.items() if factor != 1.0}
    budget = {"time_budget": SHORT_S} if way == SHORT else {}
    return product(machine, effects, seed, **budget)


SCREENED, SHORT = "autotune, screened", "autotune, 15 min"
WAYS = ("autotune", SCREENED, SHORT, *PLAIN_WAYS)


def summary(
    name: str, way: str, with_gains: Sequence[Came], without: Sequence[Came]
) -> dict[str, Any]:
    """The row of a way on a machine; medians, over those studies that got there."""

    def middle(key: str) -> float | None:
        values = [getattr(c, key) for c in with_gains if getattr(c, key) is not None]
        return round(statistics.median(values), 1) if values else None

    named = [c.winner for c in with_gains if c.winner is not None]
    keys = (
        "sets",
        "sets_per_hour",
        "answered_per_hour",
        "aa_run",
        "found",
        "searched",
        "proven",
        "end",
    )
    return {
        "machine": name,
        "way": way,
        "studies": len(with_gains),
        **{key: middle(key) for key in keys},
        "found_in": sum(c.found is not None for c in with_gains),
        "winners": len(named),
        "optimal": sum(c.lost is not None and c.lost <= NEAR for c in with_gains),
        "wrong": sum(w >= 0.0 for w in named),
        "null_studies": len(without),
        "null_winners": sum(c.winner is not None for c in without),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a text table."""
    texts = [list(rows[0]), *[["-" if v is None else str(v) for v in row.values()] for row in rows]]
    widths = [max(len(line[at]) for line in texts) for at in range(len(texts[0]))]
    return "\n".join(
        "  ".join(t.rjust(w) for t, w in zip(line, widths, strict=True)) for line in texts
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two seeds, nothing is written")
    parser.add_argument(
        "--machines",
        nargs="+",
        choices=MACHINES,
        default=list(MACHINES),
        metavar="MACHINE",
        help=", ".join(MACHINES),
    )
    parser.add_argument(
        "--ways", nargs="+", choices=WAYS, default=list(WAYS), metavar="WAY", help=", ".join(WAYS)
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=20,
        help="studies of each way; three times as many without a gain",
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    seeds, began = 2 if options.quick else options.seeds, time.monotonic()
    rows = []
    with process_pool() as pool:
        for name in options.machines:
            for way in options.ways:
                jobs = [(name, way, seed, True) for seed in range(seeds)]
                nulls = [
                    (name, way, seed, False)
                    for seed in range(3 * seeds if way not in (SCREENED, SHORT) else 0)
                ]
                came = list(pool.map(one, jobs + nulls))
                rows.append(summary(name, way, came[:seeds], came[seeds:]))
                if not options.quick:
                    keep(options.out, rows[-1])
    print(table(rows))
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


def keep(file: Path, row: Mapping[str, Any]) -> None:
    """Puts a row in the place of an older one of the same way and machine."""
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    places = [(name, way) for name in MACHINES for way in WAYS]
    rows = {(r["machine"], r["way"]): r for r in [*known, row]}
    lines = [json.dumps(rows[place]) for place in places if place in rows]
    file.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

"""The default, a study's winner and every published recipe that is a program of its own, at steady state.

    python -m benchmarks.gpu.table --out DIR [--of dense|moe] [--minutes 9.5] [--target h200] [--dry-run | --simulate]

Round-robin: each round starts every set once, in an order drawn anew, in a fresh process alone on the GPU; it runs
until it is warm, then a block of seconds. A drift of the machine is a round's, what a process draws at its start is in
the intervals. More minutes go on with more rounds. The sets come from `prepare`; without it they are compiled here.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from pathlib import Path

from autotune.model import FlagSet
from benchmarks.gpu.hour import Row
from benchmarks.gpu.prepare import distinct, is_own_program, prepared, where
from benchmarks.gpu.processes import Part, part, run_alone
from benchmarks.gpu.search import best_of, run_of, which

WARM_S, STEADY_S = 4.0, 6.0
FIRST_COST_S = 60.0
MOST_ROUNDS = 50


def main() -> int:
    """Runs rounds until the minutes are over."""
    with part("table", __doc__ or "", 9.5, which, where) as found:
        hour = found.hour
        arms = sets_of(found)
        if arms is None:
            return 1
        hour.do("arms", 0, lambda: {"arms": {name: dict(settings) for name, settings in arms.items()}})
        rounds = 2 if found.args.dry_run else MOST_ROUNDS
        for number in range(rounds):
            if not one_round(found, arms, number):
                break
        return 0 if hour.find("round 0 default") else 1


def sets_of(found: Part) -> Mapping[str, FlagSet] | None:
    """What is compared, by name, the default first; as an earlier session found it."""
    if (known := found.hour.find("arms")) is not None:
        return {name: FlagSet(settings) for name, settings in known["arms"].items()}
    arms = {"default": FlagSet()}
    if (best := best_of(run_of(found.out, found.args.of))) is not None:
        arms[best[0]] = best[1]
    elif (best := best_of(run_of(found.out, "dense"))) is not None:
        arms[f"{best[0]} (of the dense study)"] = best[1]
    if found.args.dry_run:
        return {**arms, "no fast mathematics": FlagSet({"xla_cpu_enable_fast_math": "false"})}
    rows = prepared(found.out, found.args.of).get("sets")
    rows = rows or found.hour.do("sets", 120, lambda: {"sets": distinct(found, found.args.target)})
    if rows is None:
        return None
    published = {row["name"]: FlagSet(row["settings"]) for row in rows["sets"] if is_own_program(row)}
    return arms | {name: settings for name, settings in published.items() if settings not in set(arms.values())}


def one_round(found: Part, arms: Mapping[str, FlagSet], number: int) -> bool:
    """Every set once; whether there was time for all of them."""
    names = list(arms)
    random.Random(f"{found.args.of}/{number}").shuffle(names)
    scale = 0.02 if found.args.dry_run else 1.0
    for name in names:
        if number and "failure" in (found.hour.find(f"round 0 {name}") or {}):
            continue  # it does not run here: once is enough
        kind = f"arm {name}"
        cost_s = found.hour.cost_of(kind, found.hour.cost_of("arm default", 10.0 if scale < 1 else FIRST_COST_S))
        folder = found.hour.folder / f"round-{number}" / f"set-{list(arms).index(name)}"

        def work(settings: FlagSet = arms[name], folder: Path = folder) -> Row:
            spec = found.spec(found.args.of)
            return run_alone(found.machine, spec, settings, folder, warm_s=WARM_S * scale, steady_s=STEADY_S * scale)

        if found.hour.do(f"round {number} {name}", cost_s, work, kind=kind) is None:
            return False
    return True


if __name__ == "__main__":
    sys.exit(main())

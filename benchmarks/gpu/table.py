"""The default, a winner and every recipe that is another program, at steady state.

    python -m benchmarks.gpu.table --out DIR [--of dense|moe] [--minutes 9.5] [--target h200]
        [--dry-run]

Round-robin: each round starts every set once, in an order drawn anew, and the default twice. Each
process is fresh and alone on the GPU; it runs until it is warm, then a block of seconds. A drift of
the machine is a round's; what a process draws at its start is in the intervals. More minutes go on
with more rounds. The sets come from `prepare`; without it they are compiled here.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from pathlib import Path

from autotune.model.flags import FlagSet
from autotune.settings.catalog import load_recipes
from benchmarks.gpu.hour import Row
from benchmarks.gpu.prepare import distinct, is_own_program, prepared, where
from benchmarks.gpu.processes import Part, part, run_alone
from benchmarks.gpu.search import best_of, run_of, which

WARM_S, STEADY_S = 4.0, 6.0
FIRST_COST_S = 60.0
MOST_ROUNDS = 50
AGAIN = "default (again)"
"""Name of the default's second process of a round: two equal sets tell what processes differ by."""


def main() -> int:
    """Runs rounds until the minutes are over."""
    with part("table", __doc__ or "", 9.5, which, where) as found:
        hour = found.hour
        arms = sets_of(found)
        if arms is None:
            return 1
        hour.do(
            "arms", 0, lambda: {"arms": {name: dict(settings) for name, settings in arms.items()}}
        )
        rounds = 1 if found.args.dry_run else MOST_ROUNDS
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
    published = {
        row["name"]: FlagSet(row["settings"]) for row in rows["sets"] if is_own_program(row)
    }
    return arms | {
        name: settings for name, settings in published.items() if settings not in set(arms.values())
    }


def one_round(found: Part, arms: Mapping[str, FlagSet], number: int) -> bool:
    """Every set once, the default twice; whether there was time for all of them."""
    others = [*list(arms)[1:], AGAIN]
    random.Random(f"{found.args.of}/{number}").shuffle(others)
    if (
        number == 0
    ):  # what matters most comes first once: a searched set, and what equal processes differ by
        searched = [name for name in list(arms)[1:2] if not is_published(name)]
        others = [*searched, AGAIN, *(name for name in others if name not in (*searched, AGAIN))]
    for name in ["default", *others]:
        if number and "failure" in (found.hour.find(f"round 0 {name}") or {}):
            continue  # it does not run here: once is enough
        settings = arms.get(name, FlagSet())
        folder = found.hour.folder / f"round-{number}" / name.replace(" ", "-").replace(",", "")
        if not one_process(found, f"round {number} {name}", settings, folder):
            return False
    return True


def is_published(name: str) -> bool:
    """Whether a set is a recipe: not what a study of ours found."""
    return name in load_recipes()


def one_process(found: Part, unit: str, settings: FlagSet, folder: Path) -> bool:
    """One fresh process alone; whether there was time for it."""
    scale = 0.02 if found.args.dry_run else 1.0

    def work() -> Row:
        warm_s, steady_s = WARM_S * scale, STEADY_S * scale
        spec = found.spec(found.args.of, warm_s + steady_s + 1.0)
        return run_alone(found.machine, spec, settings, folder, warm_s=warm_s, steady_s=steady_s)

    cost_s = found.hour.cost_of("process", 10.0 if found.args.dry_run else FIRST_COST_S)
    return found.hour.do(unit, cost_s, work, kind="process") is not None


if __name__ == "__main__":
    sys.exit(main())

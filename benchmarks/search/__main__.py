"""`python -m benchmarks.search families | tables | check | report`: holds the search to its rivals.

`families` runs searches on made-up spaces, `tables` on recorded ones; both add a row a run to files
under `--out`, go on where they were stopped, and give equal rows for equal seeds. `report` writes
the tables beside that folder; `check` holds the benchmark itself to what is said of it and prints
the figures as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from benchmarks.search.check import check
from benchmarks.search.conditioned import CONDITIONED
from benchmarks.search.drawn import DRAWN
from benchmarks.search.families import FAMILIES
from benchmarks.search.options import OPTIONS
from benchmarks.search.registry import RIVALS, is_there
from benchmarks.search.report import write_report
from benchmarks.search.runs import run_families
from benchmarks.search.tables import CONTESTANTS, TABLES, run_tables

OUT = Path(__file__).parents[1] / "results" / "search"
DATA = Path(__file__).parents[3] / "shared" / "data" / "replay"


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True)
    families = parts.add_parser("families", help="made-up spaces")
    known = [*FAMILIES, *CONDITIONED, DRAWN, OPTIONS]
    families.add_argument("--families", nargs="+", choices=known, default=list(FAMILIES))
    families.add_argument(
        "--noise", nargs="+", type=float, default=[0.01], help="mean standard error of a trial"
    )
    families.add_argument("--recipes", nargs="+", choices=["with", "without"], default=["with"])
    families.add_argument("--strategies", nargs="+", choices=RIVALS, default=list(RIVALS))
    families.add_argument("--trials", type=int, default=60)
    tables = parts.add_parser("tables", help="recorded spaces")
    tables.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    tables.add_argument("--strategies", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    tables.add_argument(
        "--most", type=int, help="most evaluations of a search, where the cutoff is later"
    )
    tables.add_argument(
        "--data", type=Path, default=DATA, help="folder of the tables in the T4 format"
    )
    for part in (families, tables):
        part.add_argument(
            "--seeds",
            type=_seeds,
            default=range(20),
            metavar="FIRST..END",
            help="the last is left out",
        )
        part.add_argument("--again", action="store_true", help="run what is there already too")
        part.add_argument(
            "--until", type=_moment, help="begin no run after this time, HH:MM in UTC"
        )
    for part in (families, tables, parts.add_parser("report", help="writes the tables")):
        part.add_argument("--out", type=Path, default=OUT)
    parts.add_parser("check", help="holds the benchmark to what it says of itself")
    options = parser.parse_args(arguments)
    if options.part == "check":
        print(json.dumps(check(), indent=1))
    elif options.part == "report":
        print(write_report(options.out))
    elif options.part == "tables":
        return run_tables(
            options.out / "tables.jsonl",
            options.data,
            tables=options.tables,
            seeds=options.seeds,
            strategies=options.strategies,
            most=options.most,
            again=options.again,
            until=options.until,
        )
    else:
        for name in options.strategies:
            if not is_there(name):
                print(
                    f"{name} is left out: {RIVALS[name].package} is not installed here",
                    file=sys.stderr,
                )
        run_families(
            options.out / "families.jsonl",
            families=options.families,
            seeds=options.seeds,
            noises=options.noise,
            recipes=[r == "with" for r in options.recipes],
            strategies=[s for s in options.strategies if is_there(s)],
            trials=options.trials,
            again=options.again,
            until=options.until,
        )
    return 0


def _seeds(text: str) -> range:
    first, _, end = text.partition("..")
    return range(int(first), int(end))


def _moment(text: str) -> float:
    """A time of today as `time.time` has it."""
    hour, minute = map(int, text.split(":"))
    now = datetime.fromtimestamp(time.time()).astimezone()
    return now.replace(hour=hour, minute=minute, second=0).timestamp()


if __name__ == "__main__":
    sys.exit(main())

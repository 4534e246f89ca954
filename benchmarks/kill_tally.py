"""Kills drivers, workers, their children and the database at random moments and counts what is left.

    python -m benchmarks.kill_tally [--kills 40] [--worker-kills 50] [--child-kills 6] [--real-kills 4] [--out FILE]

Each study is started by the real command, something of it is killed with SIGKILL after a random time and started
again, and at last it is left to finish. Then every trial must be there exactly once, in the run directory and in the
Optuna storage that mirrors it, every raw sample must be whole, and no process may live on.

* driver: the only driver of a replayed study, and of one with real worker processes;
* worker: one of four that share a replayed study and, if PostgreSQL is installed, a database;
* database: all its processes, meanwhile;
* child: a process that measures, reference or candidate, of a real study.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

from autotune.machine import describe_machine
from harness.kills import REAL, REPLAYED, run, run_children, run_workers
from harness.sandbox import Postgres


def main() -> None:
    """Entry point; prints the tally and writes it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40, help="of the only driver of a replayed study")
    parser.add_argument("--worker-kills", type=int, default=50, help="of one of four workers, or of the database")
    parser.add_argument("--child-kills", type=int, default=6, help="of a measuring process of a real study")
    parser.add_argument("--real-kills", type=int, default=4, help="of the only driver of a real study")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    seed = arguments.seed
    result: dict[str, Any] = {"provenance": describe_machine()}
    # Slow enough that the study is on its way at every kill.
    result["driver"] = run(REPLAYED, trials=60, kills=arguments.kills, longest_s=1.5, seed=seed, delay_s=0.05)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        database = stack.enter_context(Postgres(Path(folder))) if Postgres.programs() else None
        result["workers"] = run_workers(
            trials=40, kills=arguments.worker_kills, longest_s=1.5, seed=seed, database=database
        )
    result["child"] = run_children(trials=6, kills=arguments.child_kills, longest_s=8.0, seed=seed)
    result["real_driver"] = run(REAL, trials=5, kills=arguments.real_kills, longest_s=12.0, seed=seed)
    print(json.dumps(result, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Does `make quickstart` prove its winner? Whole runs on this machine, with and without a second load of one core.

    python -m benchmarks.quickstart [--runs 20] [--out FILE]

Every second run has a process beside it that loads one core without a pause. The right winner undoes the level of
optimisation that the study's reference has; any other winner is a wrong one. Beside each run stand the load of the
machine when it began and the seconds that it took. Exit status 1 if a run names a wrong winner.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from autotune.machine.host import describe_machine
from autotune.model.records import ConclusionRecord, FloorResult
from autotune.rundir.store import Store

STUDY = Path(__file__).parents[1] / "studies" / "quickstart.toml"
COSTLY = "xla_backend_optimization_level"
LONGEST_S = 600


@contextlib.contextmanager
def second_load() -> Iterator[None]:
    """A process that loads one core."""
    process = multiprocessing.get_context("spawn").Process(target=_burn, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _burn() -> None:
    parent = os.getppid()
    while os.getppid() == parent:  # a benchmark that is killed leaves nothing behind
        sum(range(100_000))


def one_run(folder: str) -> dict[str, Any]:
    """Runs the study once by the command line, and says how it ended."""
    load, began = os.getloadavg()[0], time.monotonic()
    path = Path(folder) / "run"
    command = [sys.executable, "-m", "autotune", "run", str(STUDY), "--run-dir", str(path)]
    with (Path(folder) / "log").open("w", encoding="utf-8") as log:
        subprocess.run(command, check=False, timeout=LONGEST_S, stdout=log, stderr=log)
    store = Store.open(path)
    ended, floor = store.last(ConclusionRecord), store.last(FloorResult)
    settings = ended.settings if ended is not None else None
    return {
        "outcome": str(ended.outcome) if ended is not None else "stopped",
        "winner": dict(settings) if settings else None,
        "is_right": settings is not None and settings.get(COSTLY, "0") != "0",
        "ratio": round(ended.estimate.ratio, 3) if ended is not None and ended.estimate else None,
        "sentence": ended.sentence if ended is not None else "",
        "provable": floor.provable if floor is not None else None,
        "load_before": round(load, 2),
        "took_s": round(time.monotonic() - began, 1),
    }


def main() -> int:
    """Runs the study so many times; the results are complete after each run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "quickstart.json")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the study that runs ends with this
    runs: list[dict[str, Any]] = []
    for number in range(given.runs):
        is_busy = number % 2 == 1
        with tempfile.TemporaryDirectory() as folder, second_load() if is_busy else contextlib.nullcontext():
            runs.append({"second_load": is_busy, **one_run(folder)})
        machine = {"cpu": describe_machine().get("cpu"), "cpus": os.cpu_count(), "jaxlib": version("jaxlib")}
        given.out.write_text(json.dumps({"machine": machine, "runs": runs}, indent=1) + "\n", encoding="utf-8")
        print(runs[-1], flush=True)
    wrong = [run for run in runs if run["winner"] and not run["is_right"]]
    print(f"of {len(runs)} runs {sum(run['is_right'] for run in runs)} name the right winner, {len(wrong)} a wrong one")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

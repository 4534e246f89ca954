"""Whether `make quickstart` proves its winner on this machine, also beside a busy core.

    python -m benchmarks.quickstart [--runs 20] [--out FILE]

Every second run has a process beside it that loads one core without a pause. A winner is measured
again by `autotune recheck`, in fresh pairs of processes: it is right if that confirms it, and wrong
if that says that it is not faster. Beside each run stand the load of the machine when it began and
the seconds that it took. Exit status 1 if a run names a wrong winner.
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
from autotune.model.records import AaRecord, ConclusionRecord
from autotune.rundir.store import Store

STUDY = Path(__file__).parents[1] / "studies" / "quickstart.toml"
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


def call(folder: str, *words: str) -> int:
    """Runs a command of autotune; its exit status."""
    command = [sys.executable, "-m", "autotune", *words]
    with (Path(folder) / "log").open("a", encoding="utf-8") as log:
        return subprocess.run(
            command, check=False, timeout=LONGEST_S, stdout=log, stderr=log
        ).returncode


def one_run(folder: str) -> dict[str, Any]:
    """Runs the study once by the command line, proves its winner again, and says how both ended."""
    load, began = os.getloadavg()[0], time.monotonic()
    path = Path(folder) / "run"
    call(folder, "run", str(STUDY), "--run-dir", str(path))
    took_s = time.monotonic() - began
    store = Store.open(path)
    ended, aa_run = store.last(ConclusionRecord), store.last(AaRecord)
    settings = ended.settings if ended is not None else None
    again = Path(folder) / "again"
    status = call(folder, "recheck", str(path), "--run-dir", str(again)) if settings else None
    confirmed = Store.open(again).last(ConclusionRecord) if settings else None
    return {
        "outcome": str(ended.outcome) if ended is not None else "stopped",
        "winner": dict(settings) if settings else None,
        "is_right": status == 0,
        "recheck_status": status,
        "ratio": _ratio(ended),
        "ratio_of_recheck": _ratio(confirmed),
        "sentence": ended.sentence if ended is not None else "",
        "recheck_sentence": confirmed.sentence if confirmed is not None else "",
        "provable": aa_run.provable if aa_run is not None else None,
        "load_before": round(load, 2),
        "took_s": round(took_s, 1),
    }


def _ratio(ended: ConclusionRecord | None) -> float | None:
    return round(ended.estimate.ratio, 3) if ended is not None and ended.estimate else None


def main() -> int:
    """Runs the study so many times; the results are complete after each run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "quickstart.json"
    )
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the study that runs ends with this
    runs: list[dict[str, Any]] = []
    for number in range(given.runs):
        is_busy = number % 2 == 1
        with (
            tempfile.TemporaryDirectory() as folder,
            second_load() if is_busy else contextlib.nullcontext(),
        ):
            runs.append({"second_load": is_busy, **one_run(folder)})
        machine = {
            "cpu": describe_machine().get("cpu"),
            "cpus": os.cpu_count(),
            "jaxlib": version("jaxlib"),
        }
        given.out.write_text(
            json.dumps({"machine": machine, "runs": runs}, indent=1) + "\n", encoding="utf-8"
        )
        print(runs[-1], flush=True)
    wrong = [run for run in runs if run["recheck_status"] == 1]
    print(
        f"of {len(runs)} runs {sum(run['is_right'] for run in runs)} name the right winner, "
        f"{len(wrong)} a wrong one"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

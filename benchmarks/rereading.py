"""The driver's own processor time for a replayed study of 1,000 trials, against another commit's, in turns in one run.

`python -m benchmarks.rereading --against FOLDER` (a checkout of that commit: `git worktree add FOLDER 2b61fbc`) runs
the same study with both and writes `benchmarks/results/rereading.json`. A replayed study measures nothing: what is
left is proposing, deciding, drawing from the formula, and writing and reading records.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).parent / "results"
SAMPLERS = ("tpe", "random")

DRIVER = """
import atexit, pathlib, runpy, sys, time
file = pathlib.Path(sys.argv.pop(1))
atexit.register(lambda: file.write_text(str(time.process_time())))
runpy.run_module("autotune", run_name="__main__")
"""
"""Runs the command and writes down the processor seconds of this process alone, its children's left out."""

STUDY = """
name = "rereading"
[workload]
entry = "llama"
options = {{ size = "small" }}
[device]
platform = "cpu"
[search]
trials = {trials}
sampler = "{sampler}"
groups = ["cpu"]
[measure]
pairs_cap = 16
[confirm]
finalists = 2
processes = 4
soak = 0
[replay.effects]
"xla_cpu_prefer_vector_width=512" = 0.97
"""


def driver_cpu_s(checkout: Path, sampler: str, *, trials: int) -> float:
    """Processor seconds of one driver process, from its start to its end.

    Raises:
        RuntimeError: If the study did not try all that was asked for.
    """
    with tempfile.TemporaryDirectory() as folder:
        study, run, spent = Path(folder) / "study.toml", Path(folder) / "run", Path(folder) / "spent"
        study.write_text(STUDY.format(trials=trials, sampler=sampler))
        environment = {**os.environ, "PYTHONPATH": str(checkout), "XDG_DATA_HOME": folder, "XDG_CACHE_HOME": folder}
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, str(spent), "run", str(study), "--run-dir", str(run)],
            cwd=checkout, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        records = (run / "records.jsonl").read_text() if (run / "records.jsonl").exists() else ""
        tried = sum(json.loads(line)["kind"] == "trial" for line in records.splitlines())
        if tried != trials:
            raise RuntimeError(
                f"{checkout} must try {trials} sets but tried {tried}: {done.stdout[-500:]}{done.stderr[-2000:]}"
            )
        return float(spent.read_text())


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--against", type=Path, required=True, help="checkout of the commit to compare with")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3, help="times each, in turns")
    parser.add_argument("--out", type=Path, default=RESULTS / "rereading.json")
    options = parser.parse_args(arguments)
    found = {}
    for sampler in SAMPLERS:
        before: list[float] = []
        now: list[float] = []
        for _ in range(options.rounds):
            before.append(driver_cpu_s(options.against.resolve(), sampler, trials=options.trials))
            now.append(driver_cpu_s(HERE, sampler, trials=options.trials))
            print(f"{sampler}: {before[-1]:.1f} s before, {now[-1]:.1f} s now", flush=True)
        found[sampler] = {"ratio": round(median(now) / median(before), 4), "before_s": before, "now_s": now}
    commit = subprocess.run(
        ["git", "-C", str(options.against), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    options.out.write_text(
        json.dumps({"against": commit, "trials": options.trials, "samplers": found}, indent=1) + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

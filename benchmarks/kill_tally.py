"""Kills the driver with SIGKILL at random moments and counts what is left: trials, samples, processes.

    python benchmarks/kill_tally.py [--kills 20] [--real-kills 3] [--out FILE]

Each study is started by the real command, killed after a random time, started again, and at last left to finish. Then
every trial must be there exactly once, every raw sample must be whole, and no process may live on.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from autotune.measure import log_ratio
from autotune.records import ConclusionRecord, ConfirmRun, TrialResult, TrialStatus
from autotune.store import Store

ROOT = Path(__file__).parents[1]
MARK = "KILL_TALLY_RUN"

REPLAYED = """
name = "killed"
[workload]
entry = "llama"
[search]
trials = {trials}
use_environment = false
[search.settings]
xla_cpu_prefer_vector_width = [128, 256, 512]
xla_backend_optimization_level = [0, 1, 2, 3]
xla_cpu_multi_thread_eigen = [true, false]
[measure]
pairs_cap = 12
[confirm]
processes = 3
finalists = 2
pairs = 6
[replay]
delay_s = 0.005
noise = "drift"
effects = {{ "xla_backend_optimization_level=1" = 0.9, "xla_cpu_prefer_vector_width=512" = 0.95 }}
failures = {{ "xla_backend_optimization_level=0" = "crash" }}
"""

REAL = """
name = "killed-real"
[workload]
entry = "llama"
options = {{ size = "tiny" }}
[search]
trials = {trials}
use_environment = false
[search.settings]
xla_cpu_prefer_vector_width = [128, 256, 512]
xla_backend_optimization_level = [1, 2, 3]
[measure]
pairs_cap = 12
block_s = 0.02
[confirm]
processes = 3
finalists = 1
pairs = 6
"""


def survivors(mark: str) -> list[int]:
    """Living processes that were started, at whatever depth, by a run of this mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def run(study: str, *, trials: int, kills: int, longest_s: float, seed: int) -> dict[str, Any]:
    """Kills one study so often, lets it finish, and gives the tally."""
    rng = random.Random(seed)
    mark = f"{os.getpid()}-{rng.random()}"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "study.toml"
        file.write_text(study.format(trials=trials), encoding="utf-8")
        run_dir = Path(folder) / "run"
        command = [sys.executable, "-m", "autotune", "run", str(file), "--run-dir", str(run_dir)]
        env = {**os.environ, MARK: mark, "PYTHONPATH": str(ROOT)}
        killed, orphans, seen = 0, 0, []
        while killed < kills:
            with (Path(folder) / "log").open("wb") as log:
                process = subprocess.Popen(command, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            # Most kills come when the study is on its way again, some while the driver is still starting.
            if rng.random() < 0.8:
                _wait_for_growth(run_dir, process, lines=rng.randint(1, 5))
            time.sleep(rng.uniform(0.0, longest_s))
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                killed += 1
            elif process.returncode != 0:
                raise RuntimeError((Path(folder) / "log").read_text())
            process.wait()
            orphans += _left_after(mark)
            seen.append(_count(run_dir))
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=600)
        if done.returncode != 0:
            raise RuntimeError(done.stdout + done.stderr)
        return {
            "kills": killed,
            "orphans": orphans + _left_after(mark),
            "trials_after_each_kill": seen,
            **tally_of(run_dir),
        }


def _wait_for_growth(run_dir: Path, process: subprocess.Popen[bytes], *, lines: int, patience_s: float = 90.0) -> None:
    """Waits until the driver has written so many more records, or has ended."""
    file = run_dir / "records.jsonl"
    before = file.read_bytes().count(b"\n") if file.exists() else 0
    end = time.monotonic() + patience_s
    while process.poll() is None and time.monotonic() < end:
        if file.exists() and file.read_bytes().count(b"\n") >= before + lines:
            return
        time.sleep(0.01)


def _left_after(mark: str, patience_s: float = 10.0) -> int:
    """How many processes are still there some seconds after the driver died."""
    end = time.monotonic() + patience_s
    while (alive := survivors(mark)) and time.monotonic() < end:
        time.sleep(0.05)
    return len(alive)


def _count(run_dir: Path) -> int:
    return len(Store.open(run_dir).of(TrialResult)) if (run_dir / "study.json").exists() else 0


def tally_of(run_dir: Path) -> dict[str, Any]:
    """What a finished run directory holds, and whether it agrees with itself."""
    store = Store.open(run_dir)
    results = store.of(TrialResult)
    wrong_samples = 0
    for result in results:
        pairs = list(store.pairs(result.directory)) if result.directory else []
        expected = result.comparison.pair_count if result.status is TrialStatus.MEASURED and result.comparison else 0
        if result.status is TrialStatus.MEASURED and (
            len(pairs) != expected or [p.index for p in pairs] != list(range(expected))
        ):
            wrong_samples += 1
        for pair in pairs:
            log_ratio(pair)
    confirmations = [(r.stage, r.settings, r.repeat) for r in store.of(ConfirmRun)]
    numbers = [r.number for r in results]
    return {
        "trials": len(results),
        "lost": len(set(range(1, len(results) + 1)) - set(numbers)),
        "doubled": len(numbers) - len(set(numbers)) + len(confirmations) - len(set(confirmations)),
        "sets_measured_twice": len(results) - len({r.settings for r in results}),
        "trials_with_wrong_samples": wrong_samples,
        "conclusions": len(store.of(ConclusionRecord)),
    }


def main() -> None:
    """Entry point; prints the tally and writes it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--real-kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    tally = {
        "replayed": run(REPLAYED, trials=23, kills=arguments.kills, longest_s=0.6, seed=arguments.seed),
        "real": run(REAL, trials=5, kills=arguments.real_kills, longest_s=12.0, seed=arguments.seed),
    }
    print(json.dumps(tally, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(tally, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Two jaxlibs compared for real, and one with itself as the control: raw figures of every pair of processes.

    python -m research.builds OLD_PYTHON NEW_PYTHON [--pairs 40] [--out FILE] [-- ARGUMENTS...]

The program is `research/small_step.py` unless arguments follow. Exit status 1 if the control finds a difference.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.machine.host import describe_machine
from autotune.model.records import AaRecord, ConclusionRecord, ConfirmRun, FinalistResult, TrialResult
from autotune.rundir.store import Store

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "research" / "small_step.py"
READ = ("--step-pattern", r"loss (?P<loss>\S+), step_time_ms=(?P<step_ms>[\d.]+)", "--loss", r"loss (?P<loss>[\d.]+)")
LONGEST_S = 3600


def compared(old: str, new: str, words: Sequence[str], *, pairs: int, folder: Path) -> dict[str, Any]:
    """Runs `autotune ab` in a folder, and says what it found and on what that rests."""
    load, began = os.getloadavg()[0], time.monotonic()
    shutil.copy(PROGRAM, folder)
    command = [sys.executable, "-m", "autotune", "ab", "--pairs", str(pairs), "--platform", "cpu"]
    with (folder / "log").open("w", encoding="utf-8") as log:
        done = subprocess.run(
            [*command, *READ, "--name", "builds", "--b-env", "CONTROL=1", "--a-python", old, "--b-python", new, "--", *words], cwd=folder, check=False, timeout=LONGEST_S,
            stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    if not (folder / "runs").exists():
        raise SystemExit((folder / "log").read_text(encoding="utf-8"))
    store = Store.open(folder / "runs" / "builds")
    processes = {"new": store.of(AaRecord)[0].reference, "old": store.of(TrialResult)[0].worker}
    proof, pairs_run = store.of(FinalistResult)[-1], store.of(ConfirmRun)
    return {
        "exit_status": done.returncode,
        "sentence": store.of(ConclusionRecord)[-1].sentence.replace(f" of {new}", ""),
        "verdict": proof.verdict,
        "going_back": proof.model_dump(mode="json")["corrected"],
        "versions": {which: worker.versions for which, worker in processes.items() if worker is not None},
        "losses": {which: worker.losses for which, worker in processes.items() if worker is not None},
        "log_ratios": [run.log_ratio for run in pairs_run],
        "step_s": [(run.reference_step_s, run.candidate_step_s) for run in pairs_run],
        "load_before": round(load, 2),
        "took_s": round(time.monotonic() - began, 1),
    }


def main() -> int:
    """Runs the comparison and the control; the results are complete after each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "builds.json")
    parser.add_argument("words", nargs="*", default=[PROGRAM.name])
    given = parser.parse_args()
    machine = {"cpu": describe_machine().get("cpu"), "cpus": os.cpu_count()}
    flags = os.environ.get("XLA_FLAGS", "")
    results: dict[str, Any] = {"machine": machine, "program": list(given.words), "xla_flags": flags}
    for name, old in (("upgrade", given.old), ("control", given.new)):
        with tempfile.TemporaryDirectory() as folder:
            results[name] = compared(old, given.new, given.words, pairs=given.pairs, folder=Path(folder))
        given.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: {results[name]['sentence']}", flush=True)
    control = results["control"]["going_back"]
    return 0 if control["low"] <= 1.0 <= control["high"] else 1


if __name__ == "__main__":
    sys.exit(main())

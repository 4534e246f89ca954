"""A gain of 8 % planted in a program that only prints its steps: is it proven and exported within ten minutes?

    python -m research.planted_command [--runs 3] [--out FILE]

The program does a fixed amount of work a step, 8 % less of it where the environment says so. The study is the one that
`autotune tune` writes for it without a budget, with that variable and one that nobody reads in place of flags. Exit
status 1 unless every run exports the planted variable.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from autotune.model.records import ConclusionRecord
from autotune.results.export import read_winner
from autotune.rundir.store import Store

PLANTED, UNREAD = "JAX_PLANTED_GAIN", "JAX_PLANTED_LABEL"
PROGRAM = f"""
import os, time
UNITS = 4000 - (320 if os.environ.get("{PLANTED}") == "1" else 0)
for step in range(100_000):
    began = time.perf_counter()
    for unit in range(UNITS):
        sum(range(60))
    print(f"step {{step}} time {{1e3 * (time.perf_counter() - began):.3f}} ms loss 2.5", flush=True)
"""
SPACE = f'settings = {{ {PLANTED} = ["0", "1"], {UNREAD} = ["a", "b"] }}'


def one_run(folder: Path) -> dict[str, Any]:
    """Runs the drafted study once, and exports its winner."""
    (folder / "train.py").write_text(PROGRAM)
    load, began = os.getloadavg()[0], time.monotonic()
    _autotune(folder, "tune", "--dry-run", "--platform", "cpu", "--", sys.executable, "train.py")
    study = folder / "train.toml"
    text = study.read_text(encoding="utf-8")
    assert 'groups = ["cpu"]' in text
    study.write_text(text.replace('groups = ["cpu"]', SPACE), encoding="utf-8")
    _autotune(folder, "run", "train.toml")
    exported = _autotune(folder, "export", "runs/train", "-o", "winner.env")
    store = Store.open(folder / "runs/train")
    ended = store.last(ConclusionRecord)
    winner = read_winner(folder / "winner.env").settings if exported == 0 else {}
    return {
        "budget_s": store.spec.search.time_budget,
        "took_s": round(time.monotonic() - began, 1),
        "exported": dict(winner),
        "ratio": round(ended.estimate.ratio, 4) if ended is not None and ended.estimate else None,
        "sentence": ended.sentence if ended is not None else "",
        "load_before": round(load, 2),
    }


def _autotune(folder: Path, *words: str) -> int:
    with (folder / "log").open("a", encoding="utf-8") as log:
        command = [sys.executable, "-m", "autotune", *words]
        return subprocess.run(command, cwd=folder, check=False, stdout=log, stderr=log, timeout=1800).returncode


def main() -> int:
    """Runs it so many times; the results are complete after each run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "planted_command.json")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the study that runs ends with this
    runs: list[dict[str, Any]] = []
    for _ in range(given.runs):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(one_run(Path(folder)))
        given.out.write_text(json.dumps({"runs": runs}, indent=1) + "\n", encoding="utf-8")
        print(runs[-1], flush=True)
    return 0 if all(run["exported"].get(PLANTED) == "1" for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())

"""From a real study to a recheck, by the real commands: a winner is proven, exported, kept, and found to hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# At level 0 LLVM does not optimise XLA:CPU's kernels: a step takes several times as long, on any machine, however busy.
SLOW_BASELINE = """
name = "slow-baseline"

[workload]
entry = "harness.slow_unoptimised:build"

[baseline]
xla_backend_optimization_level = 0

[search]
trials = 1
use_environment = false
settings = { xla_backend_optimization_level = [0, 2] }

[measure]
pairs_cap = 12
block_s = 0.02
floor_processes = 2

[confirm]
finalists = 1
processes = 3
pairs = 6
alone = 0
soak = "2s"
soak_steps = 20
"""


def autotune(folder: Path, *arguments: str, code: int = 0) -> str:
    """What a command prints, run as a user runs it."""
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *arguments],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=800,
        check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_real_winner_goes_all_the_way(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(SLOW_BASELINE)
    run = "runs/slow-baseline"
    conclusion = json.loads(autotune(tmp_path, "run", "study.toml", "--json"))
    assert conclusion["outcome"] == "winner"
    assert conclusion["settings"] == {"xla_backend_optimization_level": "2"}
    assert conclusion["estimate"]["high"] < 0.9

    autotune(tmp_path, "export", run, "--format", "env", "--require-loss", "-o", "winner.env")
    assert "holds    slow-baseline" in autotune(tmp_path, "verify", "winner.env", "--study", "study.toml")
    # The exported file sets, in a process of its own, just what was measured.
    flags = autotune(tmp_path, "exec", "winner.env", "--", "sh", "-c", 'printf %s "$XLA_FLAGS"')
    assert flags == "--xla_backend_optimization_level=2"
    steps = autotune(
        tmp_path, "exec", "winner.env", "--",
        sys.executable, "-m", "workloads", "llama", "--size", "tiny", "--steps", "3",
    )  # fmt: skip
    assert "loss" in steps

    kept = autotune(tmp_path, "library", "add", run).strip()
    assert kept.startswith("library/")
    best = json.loads(
        autotune(tmp_path, "best", "--workload", "harness.slow_unoptimised:build", "--count", "1", "--json")
    )
    assert (best["tested"], best["file"]) == (True, kept)

    again = json.loads(autotune(tmp_path, "recheck", run, "--json"))
    assert again["outcome"] == "winner"
    assert "xla_backend_optimization_level=2 still holds" in again["sentence"]
    # The recheck is a proof of its own: exported and kept in the older one's place.
    assert autotune(tmp_path, "library", "add", again["run"]).strip() == kept
    assert "proven for just this" in autotune(tmp_path, "best")
    autotune(tmp_path, "report", again["run"])

    # Nor is a set that the machine would not have proven let through: the flag's other value is no winner here.
    text = (tmp_path / "winner.env").read_text()
    (tmp_path / "edited.env").write_text(text.replace("level=2", "level=1"))
    assert "differs  file" in autotune(tmp_path, "verify", "edited.env", code=1)

"""What `autotune run` says before it starts, and when it has ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.model.errors import AutotuneError
from autotune.model.records import ConclusionRecord, TrialResult
from autotune.results.export import read_winner
from autotune.rundir.store import Store

QUICKSTART = Path(__file__).parents[2] / "studies" / "quickstart.toml"


def test_a_winner_that_is_not_there_is_told_without_an_errno(tmp_path: Path) -> None:
    with pytest.raises(AutotuneError, match=r"there is nothing of that name; `autotune status` lists") as told:
        read_winner(tmp_path / "nosuch.env")
    assert "Errno" not in str(told.value)


@pytest.mark.gate
@pytest.mark.timeout(400)
def test_the_first_study_runs_by_a_real_start_on_real_workers(tmp_path: Path) -> None:
    """What `make quickstart` starts, on a smaller step, with less of everything and no limit of time."""
    study = QUICKSTART.read_text(encoding="utf-8")
    smaller = {
        'size = "small"': 'size = "tiny", layers = 1', "trials = 6": "trials = 1",
        "pairs_cap = 30": "pairs_cap = 10\nblock_s = 0.1",
        '"library for every matrix product"': '"without optimisation, which proves nothing"',
        'xla_cpu_experimental_ynn_fusion_type = "dot"': "xla_backend_optimization_level = 0",
        'time_budget = "4m50s"\n': "", "finalists = 2": "finalists = 1", "processes = 6": "processes = 3",
    }  # fmt: skip
    for before, after in smaller.items():
        assert before in study
        study = study.replace(before, after)
    (tmp_path / "quickstart.toml").write_text(study)
    command = [sys.executable, "-m", "autotune", "run", "quickstart.toml"]
    env = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "data")}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=380)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "everything lies in runs/quickstart" in done.stdout
    ended = Store.open(tmp_path / "runs/quickstart").last(ConclusionRecord)
    assert ended is not None
    assert ended.outcome != "winner"
    assert ended.sentence in " ".join(done.stdout.split())
    assert Store.open(tmp_path / "runs/quickstart").of(TrialResult)

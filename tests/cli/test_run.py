"""What `autotune run` says before it starts, and when it has ended."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from autotune.model.flags import FlagSet
from autotune.model.records import ConclusionRecord, Outcome
from autotune.results.export import read_winner
from autotune.rundir.store import Store
from autotune.study import recheck
from tests.console import autotune, autotune_process
from tests.runs import there

QUICKSTART = Path(__file__).parents[2] / "studies" / "quickstart.toml"


@pytest.mark.gate
@pytest.mark.timeout(400)
def test_the_first_study_proves_its_winner_and_ends_with_its_use(tmp_path: Path) -> None:
    """What `make quickstart` does, with one trial and no limit of time."""
    study = QUICKSTART.read_text(encoding="utf-8")
    for before, after in {"trials = 3": "trials = 1", 'time_budget = "4m"\n': ""}.items():
        assert before in study
        study = study.replace(before, after)
    (tmp_path / "quickstart.toml").write_text(study)
    workload = ["workloads.example:build", "--set", "width=4", "--set", "rows=32768", "--steps", "3"]
    for words in (
        ["run", "quickstart.toml"],
        ["export", "runs/quickstart", "--format", "env", "-o", "runs/quickstart/winner.env"],
        ["exec", "runs/quickstart", "--", sys.executable, "-m", "workloads", *workload],
        ["verify", "runs/quickstart/winner.env"],
    ):
        done = autotune_process(*words, cwd=tmp_path, XDG_DATA_HOME=str(tmp_path / "data"), XLA_FLAGS="")
        assert done.returncode == 0, (words, done.stdout + done.stderr)
    ended = there(Store.open(tmp_path / "runs/quickstart").last(ConclusionRecord))
    assert ended.outcome is Outcome.WINNER
    assert ended.settings == FlagSet({"xla_backend_optimization_level": 3})
    flags = read_winner(tmp_path / "runs/quickstart/winner.env").settings
    assert flags["xla_backend_optimization_level"] == "3"
    assert flags["xla_cpu_multi_thread_eigen"] == "false", "the rest of the baseline goes with it"


def test_a_stopped_recheck_says_how_to_go_on(finished: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recheck, "recheck_winner", Mock(side_effect=KeyboardInterrupt))
    done = autotune("recheck", finished.path, cwd=tmp_path)
    assert done.returncode == 130
    assert "run the same command again to go on" in done.stderr

"""What `autotune run` says before it starts, and when it has ended."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

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
    """What `make quickstart` does, with two trials and no limit of time."""
    study = QUICKSTART.read_text(encoding="utf-8")
    for before, after in {"trials = 3": "trials = 2", 'time_budget = "3m"\n': ""}.items():
        assert before in study
        study = study.replace(before, after)
    (tmp_path / "quickstart.toml").write_text(study)
    workload = ["llama", "--size", "small", "--set", "layers=2", "--set", "scan={scan}", "--set", "remat={remat}"]

    def run(*words: str) -> None:
        done = autotune_process(*words, cwd=tmp_path, XDG_DATA_HOME=str(tmp_path / "data"), XLA_FLAGS="")
        assert done.returncode == 0, (words, done.stdout + done.stderr)

    run("run", "quickstart.toml")
    ended = there(Store.open(tmp_path / "runs/quickstart").last(ConclusionRecord))
    if ended.outcome is not Outcome.WINNER:  # on some machines nothing gains enough
        assert ended.settings is None
        return
    run("export", "runs/quickstart", "--format", "env", "-o", "winner.env")
    run("export", "runs/quickstart", "--format", "arguments", "-o", "winner.args")
    run("exec", "runs/quickstart", "--", sys.executable, "-m", "workloads", *workload, "--steps", "3")
    run("verify", "winner.env")
    winner = read_winner(tmp_path / "winner.env")
    assert winner.settings == ended.settings
    assert there(ended.estimate).high < 1.0
    values = {n.removeprefix("option."): json.loads(v) for n, v in winner.settings.items() if n.startswith("option.")}
    arguments = (tmp_path / "winner.args").read_text(encoding="utf-8").splitlines()
    assert [line for line in arguments if line.startswith("--")] == [f"--{n}={v}".lower() for n, v in values.items()]


def test_a_stopped_recheck_says_how_to_go_on(finished: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recheck, "recheck_winner", Mock(side_effect=KeyboardInterrupt))
    done = autotune("recheck", finished.path, cwd=tmp_path)
    assert done.returncode == 130
    assert "same command" in done.stderr

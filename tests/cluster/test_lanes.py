"""Lanes on the nodes of a real SLURM allocation: slow, frozen, killed at the worst moment; and their driver killed."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from autotune.model.records import AaRecord, TrialResult
from autotune.rundir.store import Store
from harness.sandbox import wait_for
from tests.cluster.conftest import ROOT, Allocate, autotune, marked
from tests.cluster.jobs import driving, logs, trials_of, wait_for_trials, write
from tests.runs import is_whole, there
from tests.tables import toml_beside

pytestmark = pytest.mark.cluster

SLOW_NODE = toml_beside(__file__, "programs.toml")["slow_node"]


def lane_on(node: str, folder: Path) -> psutil.Process:
    """The program of a study's lane on a node; its guard has the same words in its command, and more."""
    (found,) = [
        p
        for p in marked(str(folder))
        if p.cmdline()[-2:] == ["-m", "autotune.measure.lane"]
        and "-I" not in p.cmdline()
        and p.environ().get("SLURMD_NODENAME") == node
    ]
    return found


def test_one_node_of_three_is_slow_which_is_told_and_changes_no_verdict(allocate: Allocate, tmp_path: Path) -> None:
    write(tmp_path, trials=17)
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(SLOW_NODE)
    env = {**allocate(3), "PYTHONPATH": f"{tmp_path / 'site'}:{ROOT}"}
    with driving(tmp_path, env) as driver:
        assert driver.wait(timeout=170) == 0, logs(tmp_path)
    assert "has 3 nodes" in logs(tmp_path)
    is_whole(tmp_path / "run", trials=17)
    results = [r for r in Store.open(tmp_path / "run").of(TrialResult) if r.comparison is not None]
    assert {r.by for r in results} == {"127.0.0.1", "127.0.0.2", "127.0.0.3"}
    for result in results:
        is_faster = result.settings.get("xla_backend_optimization_level") == "1"
        assert there(result.comparison).estimate.ratio == pytest.approx(0.9 if is_faster else 1.0, abs=0.02), result
    shown = autotune("status", "run", "--json", cwd=tmp_path, env=env)
    lanes = {x["lane"]: x for x in json.loads(shown.stdout)[0]["lanes"]}
    assert {name: x["is_slow"] for name, x in lanes.items()} == {
        "127.0.0.1": False,
        "127.0.0.2": True,
        "127.0.0.3": False,
    }
    assert "a slow machine" in autotune("status", "run", cwd=tmp_path, env=env).stdout


@pytest.mark.gate
def test_a_driver_that_is_killed_takes_all_lanes_along_and_the_next_goes_on(allocate: Allocate, tmp_path: Path) -> None:
    write(tmp_path, trials=14, delay_s=0.04)
    env = allocate(3)
    with driving(tmp_path, env) as driver:
        wait_for_trials(tmp_path, 4, driver=driver)
        below = [lane_on(f"127.0.0.{i}", tmp_path) for i in (1, 2, 3)]
        driver.kill()
        wait_for(lambda: not marked(str(tmp_path)), "nothing of the study runs on any node", limit_s=20)
        assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in below)
    before = trials_of(tmp_path / "run")
    assert 4 <= before < 14
    with driving(tmp_path, env) as driver:
        assert driver.wait(timeout=170) == 0, logs(tmp_path)
    is_whole(tmp_path / "run", trials=14)
    aa_runs = Store.open(tmp_path / "run").of(AaRecord)
    assert sorted(str(f.by) for f in aa_runs) == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]  # none is measured again

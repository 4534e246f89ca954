"""A study of several lanes stored in a real PostgreSQL: it is restarted in mid-study, then the driver is killed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from autotune.model.records import TrialResult
from autotune.rundir.optuna_study import NUMBER_KEY
from autotune.rundir.store import Store
from harness.sandbox import Postgres, wait_for
from tests.cluster.conftest import marked
from tests.cluster.jobs import driving, logs, trials_of, wait_for_trials, write
from tests.runs import is_whole

pytestmark = pytest.mark.cluster


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    if Postgres.programs() is None:
        pytest.skip("PostgreSQL is not installed here; `make test-cluster` as root installs it")
    # Not below pytest's own folders: the server may run as another user, who cannot enter those.
    with tempfile.TemporaryDirectory(prefix="postgres-") as root, Postgres(Path(root)) as server:
        yield server


@pytest.mark.gate
def test_lanes_lose_the_database_then_their_driver_and_every_count_is_exact(postgres: Postgres, tmp_path: Path) -> None:
    write(tmp_path, trials=17, delay_s=0.03)
    run = tmp_path / "run"
    env = {"PATH": "/usr/bin:/bin", "AUTOTUNE_STORAGE": postgres.url}
    with driving(tmp_path, env, "--devices", "0,1,2") as driver:
        wait_for_trials(tmp_path, 4, driver=driver)
        postgres.stop()
        before = trials_of(run)
        wait_for_trials(tmp_path, before + 2, driver=driver)  # nobody waits for the database
        postgres.start()
        wait_for_trials(tmp_path, before + 4, driver=driver)
        driver.kill()
        wait_for(lambda: not marked(str(tmp_path)), "no lane is left")
    assert trials_of(run) < 17
    with driving(tmp_path, env, "--devices", "0,1,2") as driver:
        assert driver.wait(timeout=170) == 0, logs(tmp_path)
    assert not marked(str(tmp_path))
    is_whole(run, trials=17)
    assert {r.by for r in Store.open(run).of(TrialResult)} == {"device-0", "device-1", "device-2"}
    found = trials_in(postgres.url)
    assert {t.state for t in found} <= {TrialState.COMPLETE, TrialState.FAIL}  # FAIL: lost with the driver
    told = [t.user_attrs[NUMBER_KEY] for t in found if t.state is TrialState.COMPLETE]
    assert sorted(told) == list(range(1, 18))


def trials_in(url: str) -> list[FrozenTrial]:
    """The trials that the database has."""
    storage = optuna.storages.RDBStorage(url)
    try:
        (summary,) = optuna.get_all_study_summaries(storage=storage)
        study = optuna.load_study(study_name=summary.study_name, storage=storage)
        return study.get_trials(deepcopy=False)
    finally:
        storage.remove_session()
        storage.engine.dispose()

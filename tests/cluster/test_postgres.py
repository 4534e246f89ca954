"""Four workers share a study that a real PostgreSQL mirrors: it is restarted in mid-study, and one worker is killed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest

from autotune.rundir.mirror import NUMBER_KEY
from harness.sandbox import Postgres, wait_for
from tests.cluster.conftest import ROOT, marked
from tests.cluster.test_submit import is_whole, trials_of, write

pytestmark = pytest.mark.cluster


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    if Postgres.programs() is None:
        pytest.skip("PostgreSQL is not installed here; `make test-cluster` as root installs it")
    # Not below pytest's own folders: the server may run as another user, who cannot enter those.
    with tempfile.TemporaryDirectory(prefix="postgres-") as root, Postgres(Path(root)) as server:
        yield server


def start(folder: Path, name: str, url: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "autotune", "worker", "study.toml", "--run-dir", "run", "--name", name]
    with (folder / f"{name}.log").open("wb") as log:
        env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "AUTOTUNE_STORAGE": url, "MARK": str(folder)}
        return subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log)


def test_four_workers_lose_the_database_and_one_of_them_and_every_count_is_exact(
    postgres: Postgres, tmp_path: Path
) -> None:
    write(tmp_path, trials=17, delay_s=0.03)
    run = tmp_path / "run"
    workers = [start(tmp_path, f"w{i}", postgres.url) for i in range(4)]  # all at once, on an empty database
    try:
        wait_for(lambda: trials_of(run) >= 4, "four trials are done", limit_s=120)
        postgres.stop()
        before = trials_of(run)
        wait_for(lambda: trials_of(run) > before, "a trial is done without the database", limit_s=120)
        workers[3].kill()
        postgres.start()
        assert [w.wait(timeout=200) for w in workers[:3]] == [0, 0, 0], (tmp_path / "w0.log").read_text()
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert not marked(str(tmp_path))
    is_whole(run, trials=17)
    assert sorted(numbers(postgres.url)) == list(range(1, 18))


def numbers(url: str) -> list[int]:
    """Numbers of the trials that the database has."""
    storage = optuna.storages.RDBStorage(url)
    try:
        (summary,) = optuna.get_all_study_summaries(storage=storage)
        study = optuna.load_study(study_name=summary.study_name, storage=storage)
        return [t.user_attrs[NUMBER_KEY] for t in study.get_trials(deepcopy=False)]
    finally:
        storage.remove_session()
        storage.engine.dispose()

"""A whole study on a pool: the real lane program on real workers, which come and go."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("distributed", reason="Dask is not installed")

from autotune.cluster import open_pool
from autotune.cluster.certificates import make_certificates
from autotune.cluster.dask_engine import DaskEngine
from autotune.cluster.engine import JOINED, Message, Told
from autotune.model.records import FloorResult, IncidentRecord, Outcome
from autotune.model.trial import TrialResult
from autotune.study.engines import study_message
from autotune.study.run import StudyRun
from autotune.study.stages import run_study
from harness.simulated import GivenSetup, given_run
from harness.tally import tally_of
from tests.cluster.pools import LOOPBACK, Workers
from tests.runs import SPACE, Diary, asking, replay_study

pytestmark = pytest.mark.cluster

TRIALS = 16


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    started = Workers(tmp_path)
    yield started
    started.end()


class Watched:
    """An engine that does something when so many units have been answered, and then waits for a lane.

    Its study is over in seconds, and a busy machine takes longer to start a worker.
    """

    def __init__(self, engine: DaskEngine, at: int, act: Callable[[], object], awaited: str) -> None:
        self._engine, self._left, self._act, self._awaited = engine, at, act, awaited
        self.words = engine.words

    def begin(self, lane: str, message: Message) -> None:
        self._engine.begin(lane, message)

    def news(self, wait_s: float) -> list[Told]:
        told = self._engine.news(wait_s)
        for one in told:
            self._left -= one.message["type"] == "result"
            if self._left == 0:
                self._left = -1
                self._act()
                told += self._until_joined()
        return told

    def _until_joined(self) -> list[Told]:
        told, until = list[Told](), time.monotonic() + 120
        while not any(one.message["type"] == JOINED and self._awaited in one.lane for one in told):
            assert time.monotonic() < until, f"{self._awaited} has not joined"
            told += self._engine.news(1.0)
        return told

    def give_up(self, lane: str, why: str, *, for_good: bool = False) -> None:
        self._engine.give_up(lane, why, for_good=for_good)

    def close(self, *, is_over: bool = False) -> None:
        self._engine.close(is_over=is_over)


def test_a_study_on_a_pool_loses_nothing_when_a_worker_is_killed_and_another_joins(
    tmp_path: Path, workers: Workers
) -> None:
    tls = make_certificates(tmp_path / "run.tls")
    study = asking(replay_study(effects={"xla_a=1": 0.9}, noise={"white_sd": 0.002}), TRIALS)
    stays = []

    def make_engine(run: StudyRun) -> Watched:
        first = study_message(run.spec, study_dir=str(tmp_path), run=None, devices=[])
        engine = open_pool(first, tls=tls, listen=LOOPBACK)
        victim = workers.join(engine.address, tls, name="victim")
        stays.append(workers.join(engine.address, tls, name="stays"))

        def act() -> None:
            victim.kill()
            stays.append(workers.join(engine.address, tls, name="comes-later"))

        return Watched(engine, 6, act, awaited="comes-later")

    run = given_run(study, tmp_path / "run", GivenSetup(given_space=SPACE), Diary())
    run.make_engine = make_engine
    assert run_study(run).outcome is Outcome.WINNER
    tally = tally_of(run.store.path)
    assert (tally["trials"], tally["conclusions"]) == (TRIALS, 1)
    assert tally["lost"] == tally["doubled"] == tally["sets_measured_twice"] == tally["trials_with_wrong_samples"] == 0
    assert {f.by for f in run.store.of(FloorResult)} >= {"stays"}
    assert {r.by for r in run.store.of(TrialResult)} <= {"victim", "stays", "comes-later"}
    assert len({r.by for r in run.store.of(TrialResult)}) >= 2
    assert [i for i in run.store.of(IncidentRecord) if i.by not in ("victim", None)] == []
    assert [worker.wait(30) for worker in stays] == [0, 0]  # the study is over, and they know

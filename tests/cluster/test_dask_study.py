"""A whole study on a Dask cluster: the real lane program on real workers, which come and go."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from autotune.cluster.dask_engine import DaskEngine
from autotune.cluster.engine import JOINED, LEFT, Engine, LaneMessage, Message
from autotune.model.records import AaRecord, IncidentRecord, Outcome, TrialResult
from autotune.study.driver import run_study
from autotune.study.engines import study_message
from autotune.study.run import StudyRun
from harness.simulated import GivenSetup, given_run
from harness.simulated_machine import FILE
from tests.cluster.dask_cluster import Cluster
from tests.runs import SPACE, Diary, asking, is_whole, replay_study

pytest.importorskip("distributed", reason="Dask is not installed")


pytestmark = pytest.mark.cluster

TRIALS = 16


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    started = Cluster(tmp_path)
    yield started
    started.end()


class Watched(Engine):
    """An engine that does something when so many units have been answered, and has others wait for who joins then.

    Units take milliseconds: a worker that starts on a busy machine would come when all is done. So what the others say
    is held back until it has answered one.
    """

    def __init__(self, engine: DaskEngine, at: int, act: Callable[[], object], newcomer: str) -> None:
        self._engine, self._left, self._act, self._newcomer = engine, at, act, newcomer
        self._held: list[LaneMessage] = []
        self._until = 0.0
        self.words = engine.words

    def begin(self, lane: str, message: Message) -> None:
        self._engine.begin(lane, message)

    def news(self, wait_s: float) -> list[LaneMessage]:
        told = self._engine.news(wait_s)
        if self._until:
            return self._without_others(told)
        for one in told:
            self._left -= one.message["type"] == "result"
            if self._left == 0:
                self._left = -1
                self._act()
                self._until = time.monotonic() + 120
        return told

    def _without_others(self, told: list[LaneMessage]) -> list[LaneMessage]:
        assert time.monotonic() < self._until, f"{self._newcomer} has answered nothing"
        passed = [one for one in told if self._newcomer in one.lane or one.message["type"] in (JOINED, LEFT)]
        self._held += [one for one in told if one not in passed]
        if not any(self._newcomer in one.lane and one.message["type"] == "result" for one in passed):
            return passed
        self._until = 0.0
        return [*passed, *self._held]

    def give_up(self, lane: str, why: str, *, for_good: bool = False) -> None:
        self._engine.give_up(lane, why, for_good=for_good)

    def close(self) -> None:
        self._engine.close()


@pytest.mark.gate
def test_a_study_on_two_workers_loses_nothing_if_one_is_killed_and_one_joins(tmp_path: Path, cluster: Cluster) -> None:
    study = asking(replay_study(study={"search": {"sampler": "random"}}), TRIALS)  # which makes all of them
    (tmp_path / FILE).write_text('effects = { "xla_a=1" = 0.9 }\nnoise = { white_sd = 0.002 }\n')  # for the lanes
    victim = cluster.join("victim")
    stays = [cluster.join("stays")]

    def make_engine(run: StudyRun) -> Watched:
        first = study_message(run.spec, study_dir=str(tmp_path), run=None)
        engine = DaskEngine(first, str(cluster.file))

        def act() -> None:
            victim.kill()
            stays.append(cluster.join("comes-later"))

        return Watched(engine, 6, act, newcomer="comes-later")

    run = given_run(study, tmp_path / "run", GivenSetup(given_space=SPACE), Diary())
    run.make_engine = make_engine
    assert run_study(run).outcome is Outcome.WINNER
    is_whole(run.store.path, TRIALS)
    assert {f.by for f in run.store.of(AaRecord)} >= {"stays"}
    assert {r.by for r in run.store.of(TrialResult)} <= {"victim", "stays", "comes-later"}
    assert len({r.by for r in run.store.of(TrialResult)}) >= 2
    assert [i for i in run.store.of(IncidentRecord) if i.by not in ("victim", None)] == []
    assert [worker.poll() for worker in stays] == [None, None]  # they are the user's: another study may follow
    assert [p for worker in stays for p in psutil.Process(worker.pid).children(recursive=True)] == []

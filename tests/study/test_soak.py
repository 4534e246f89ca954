"""A winner must run for a while before it is one."""

from __future__ import annotations

from pathlib import Path

from autotune.model.flags import FlagSet
from autotune.model.measurement import Failure, FailureKind
from autotune.model.records import Outcome, SoakRecord
from autotune.workers.base import Progress, WorkerFailed
from autotune.workers.replay import ReplayLauncher, ReplayWorker
from tests.runs import Run, replay_study

FAST = {"xla_a=1": 0.9}


class LateFaults(ReplayLauncher):
    """Workers under xla_a=1 hang after so many steps of one process."""

    after = 400

    def start(self, settings: FlagSet, folder: Path, *, progress: Progress) -> ReplayWorker:
        worker = super().start(settings, folder, progress=progress)
        if settings.get("xla_a") != "1":
            return worker
        run, done = worker.run_block, 0

        def run_block(steps: int) -> tuple[float, ...]:
            nonlocal done
            done += steps
            if done > self.after:
                raise WorkerFailed(Failure(kind=FailureKind.HANG, message="no answer within 120 s", phase="step"))
            return run(steps)

        worker.run_block = run_block  # type: ignore[method-assign]
        return worker


def test_a_winner_is_soaked_and_its_conclusion_says_how_long(run_replay: Run) -> None:
    spec = replay_study(effects=FAST, study={"confirm": {"soak": "20s", "soak_steps": 900}})
    conclusion, store, diary = run_replay(spec, trials=12)
    (record,) = store.of(SoakRecord)
    assert conclusion.outcome is Outcome.WINNER
    assert conclusion.settings == record.settings == FlagSet({"xla_a": "1"})
    assert record.step_count >= 900  # 900 steps of 27 ms are more than 20 s
    assert conclusion.soaked_s == record.steps_s >= 20
    assert diary.stages[-1] == "soak"


def test_a_soak_is_not_repeated_unless_a_longer_one_is_asked_for(run_replay: Run) -> None:
    run_replay(replay_study(effects=FAST, study={"confirm": {"soak": "6s"}}), trials=12)
    _, store, _ = run_replay(replay_study(effects=FAST, study={"confirm": {"soak": "5s"}}), trials=12)
    assert len(store.of(SoakRecord)) == 1
    _, store, _ = run_replay(replay_study(effects=FAST, study={"confirm": {"soak": "30s"}}), trials=12)
    assert len(store.of(SoakRecord)) == 2


def test_a_set_that_hangs_late_is_no_winner_and_the_sentence_says_why(run_replay: Run) -> None:
    spec = replay_study(effects=FAST)
    launcher = LateFaults(spec.replay, seed=0, platform="cpu")  # type: ignore[arg-type]
    conclusion, store, _ = run_replay(spec, trials=12, launcher=launcher)
    assert conclusion.outcome is Outcome.NOTHING_BEATS_THE_DEFAULT
    assert conclusion.settings is None
    assert "xla_a=1 was faster but failed after" in conclusion.sentence
    assert "hang: no answer within 120 s" in conclusion.sentence
    for record in store.of(SoakRecord):  # of the minimal set, and of the whole one that came second
        assert record.failure is not None
        assert record.step_count <= 400


def test_without_a_soak_the_conclusion_says_so_by_its_absence(run_replay: Run) -> None:
    conclusion, store, _ = run_replay(replay_study(effects=FAST, study={"confirm": {"soak": 0}}), trials=12)
    assert conclusion.outcome is Outcome.WINNER
    assert conclusion.soaked_s is None
    assert store.of(SoakRecord) == []

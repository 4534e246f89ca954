"""One process at a time: figures by hand, whole studies on a formula, and a device that holds only one process."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from autotune.measure.compare import aba_estimate
from autotune.model.flags import FlagSet
from autotune.model.measurement import Arm, FailureKind, Pair
from autotune.model.records import (
    AaRecord,
    AblationResult,
    ConfirmRun,
    FinalistResult,
    IncidentRecord,
    Outcome,
    TrialResult,
    TrialStatus,
)
from autotune.stats.estimates import Verdict
from harness.simulated_machine import SimulatedWorker
from tests.runs import Noting, Run, failed, replay_study, there

ISOLATED = {"measure": {"mode": "aba"}}
EFFECTS = {"xla_a=1": 0.9, "xla_d=2": 0.95}


def pairs_of(*runs: tuple[float, float, float]) -> list[Pair]:
    found: list[Pair] = []
    for before, candidate, after in runs:
        for first, reference in ((Arm.REFERENCE, before), (Arm.CANDIDATE, after)):
            found.append(
                Pair(index=len(found), first=first, reference_s=(reference,) * 3, candidate_s=(candidate,) * 3, at_s=0)
            )
    return found


def test_a_steady_drift_cancels() -> None:
    found = aba_estimate(pairs_of((1.00, 1.01 * 0.9, 1.0201), (1.0201, 1.0201 * 1.01 * 0.9, 1.0201**2)))
    assert found.ratio == pytest.approx(0.9)
    assert found.pair_count == 2
    # log drift 0.0199 in both: variance 0.75 * 0.0199**2, one degree of freedom (12.7062)
    half = 12.7062 * math.sqrt(0.75 / 2) * math.log(1.0201)
    assert math.log(found.high / found.ratio) == pytest.approx(half, rel=1e-4)


@pytest.mark.gate
def test_a_study_in_aba_runs_finds_the_best_set(run_replay: Run) -> None:
    spec = replay_study(effects=EFFECTS, study=ISOLATED, noise={"white_sd": 0.003})
    conclusion, store, _ = run_replay(spec, trials=18)
    assert conclusion.settings == FlagSet({"xla_a": 1, "xla_d": 2})
    measured = [r.comparison for r in store.of(TrialResult) if r.comparison and r.status is TrialStatus.MEASURED]
    assert {c.mode for c in measured} == {"aba"}
    assert {(c.estimate.pair_count, c.pair_count) for c in measured} == {(3, 6)}
    assert {c.mode for c in [r.comparison for r in store.of(AblationResult)] if c} == {"aba"}
    assert {r.pair_count for r in store.of(ConfirmRun)} == {1}
    aa_run = there(store.last(AaRecord))
    assert aa_run.comparison.mode == "aba"


def test_raw_runs_are_kept_and_make_the_estimate(run_replay: Run) -> None:
    _, store, _ = run_replay(replay_study(effects=EFFECTS, study=ISOLATED), trials=3)
    for result in store.of(TrialResult):
        assert result.directory is not None
        pairs = list(store.pairs(result.directory))
        assert len(pairs) == 6
        assert pairs[0].candidate_s == pairs[1].candidate_s
        assert len(pairs[0].candidate_s) >= 20
        assert aba_estimate(pairs) == there(result.comparison).estimate


@pytest.mark.parametrize("own", ["XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_CLIENT_MEM_FRACTION"])
def test_two_processes_on_a_gpu_share_its_memory_unless_the_study_says_how(run_replay: Run, own: str) -> None:
    cuda = {"device": {"platform": "cuda"}}
    spec = replay_study(study=cuda)
    launcher = Noting(spec)
    _, store, _ = run_replay(spec, trials=1, launcher=launcher)
    assert all(s["XLA_CLIENT_MEM_FRACTION"] == "0.45" for s, _ in launcher.started[:3])
    assert "XLA_CLIENT_MEM_FRACTION" not in store.of(TrialResult)[0].settings
    other = replay_study(study={**cuda, "baseline": {own: "0.3"}})
    launcher = Noting(other)
    run_replay(other, trials=1, launcher=launcher, folder="other")
    assert all(s.get("XLA_CLIENT_MEM_FRACTION") in (None, "0.3") for s, _ in launcher.started)


def test_a_reference_that_dies_in_an_aba_run_is_not_the_candidates_fault(run_replay: Run) -> None:
    spec = replay_study(study=ISOLATED)

    def die(settings: FlagSet, folder: Path) -> None:
        if len(launcher.started) == 13 and folder.name == "reference":
            raise failed(FailureKind.CRASH, log=str(folder / "w"))

    launcher = Noting(spec, before=die)
    _, store, _ = run_replay(spec, trials=2, launcher=launcher)
    assert [r.failure for r in store.of(TrialResult)] == [None, None]
    assert len(store.of(IncidentRecord)) == 1


def test_a_wrong_finalist_does_not_win_alone(run_replay: Run) -> None:
    spec = replay_study(effects={"xla_a=1": 0.8}, study=ISOLATED)

    def later(worker: SimulatedWorker, settings: FlagSet, folder: Path) -> None:
        if "xla_a" in settings and launcher.sets.count(settings) > 3:
            worker.report = worker.report.model_copy(update={"losses": tuple(2 * x for x in worker.report.losses)})

    launcher = Noting(spec, after=later)
    first = (("fickle", FlagSet({"xla_a": 1})),)
    conclusion, store, _ = run_replay(spec, trials=2, launcher=launcher, first=first)
    assert conclusion.outcome is Outcome.INCONCLUSIVE  # what was not proven leaves gains open
    assert FailureKind.WRONG_LOSS in {f.failure.kind for f in store.of(FinalistResult) if f.failure}
    assert Verdict.FASTER not in {f.verdict for f in store.of(FinalistResult)}

"""One process at a time: figures by hand, whole studies on a formula, and a device that holds only one process.

A trial's program: a duplicate of a known one is not measured, and no name outlives its program.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.measure.compare import aba_estimate, fixed, sequential
from autotune.model.block_sizes import LONGEST_BLOCK_STEPS
from autotune.model.flags import FlagSet
from autotune.model.measurement import Arm, FailureKind, Pair, log_ratio
from autotune.model.records import (
    REFERENCE_NUMBER,
    AaRecord,
    AblationResult,
    ConfirmRun,
    FinalistResult,
    IncidentRecord,
    Outcome,
    TrialResult,
    TrialStatus,
)
from autotune.model.sections import MeasureSpec
from autotune.stats.estimates import SequentialPlan, Verdict, estimate_pairs
from autotune.workers.base import Worker
from harness.simulated_machine import SimulatedWorker
from tests.runs import Noting, Run, failed, interleaved_pairs, replay_study, there, worker_report

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
        pairs = list(store.pairs(there(result.directory)))
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


class Clockwork(Worker):
    """A worker whose every step takes the same time; remembers when it ran."""

    def __init__(self, step_s: float, diary: list[str], name: str) -> None:
        self.report = worker_report(warmup_step_times_s=(step_s,))
        self._step_s, self._diary, self._name = step_s, diary, name

    def run_block(self, steps: int) -> tuple[float, ...]:
        self._diary.append(self._name)
        return (self._step_s,) * steps

    def close(self) -> None:
        return


def interleaved(
    ratio: float, stop: Callable[[list[float]], str | None], seed: int = 0
) -> tuple[list[Pair], str, list[str]]:
    diary: list[str] = []
    pairs, why = interleaved_pairs(Clockwork(0.1, diary, "r"), Clockwork(0.1 * ratio, diary, "c"), stop, seed=seed)
    return pairs, why, diary


@pytest.mark.parametrize(
    ("step_s", "steps"), [(0.001, 50), (0.0167, 3), (0.013, 4), (10.0, 3), (0.0, LONGEST_BLOCK_STEPS)]
)
def test_a_block_is_long_against_the_timer(step_s: float, steps: int) -> None:
    assert MeasureSpec().block_sizes_on("cpu").steps(step_s) == steps


def test_every_pair_has_one_block_of_each_in_an_order_that_the_seed_gives() -> None:
    pairs, _, diary = interleaved(1.0, fixed(23).stop)
    assert len(pairs) == 23
    told = "".join("rc" if p.first is Arm.REFERENCE else "cr" for p in pairs)
    assert told == "".join(diary)
    assert {p.first for p in pairs} == {Arm.REFERENCE, Arm.CANDIDATE}
    one, two, other = (interleaved(1.0, fixed(31).stop, seed)[2] for seed in (5, 5, 6))
    assert one == two
    assert one != other
    pair = Pair(index=0, first=Arm.REFERENCE, reference_s=(1.0, 3.0), candidate_s=(0.5, 0.5), at_s=0)
    assert log_ratio(pair) == pytest.approx(math.log(0.25))


def test_a_clear_effect_and_what_cannot_beat_the_incumbent_stop_early() -> None:
    plan = SequentialPlan(cap=40)
    pairs, why, _ = interleaved(0.9, sequential(plan, min_effect=0.005, incumbent=None).stop)
    assert len(pairs) == plan.looks[0]
    assert why == "its interval is narrow enough"
    plan = SequentialPlan(cap=40)
    noisy = [math.log(0.98) + 0.05 * (-1) ** i + 0.001 * i for i in range(plan.looks[0])]
    best = estimate_pairs([math.log(0.8)] * 12)
    isolated = sequential(plan, min_effect=0.005, incumbent=None).stop(noisy)
    against = sequential(plan, min_effect=0.005, incumbent=best).stop(noisy)
    assert isolated is None
    assert "best so far" in there(against)


ONE, TWO = FlagSet({"xla_a": "1"}), FlagSet({"xla_d": "2"})


@pytest.mark.parametrize(
    ("one", "two", "same_as", "is_known"),
    [
        ("default", "new", [REFERENCE_NUMBER, None], [True, True]),
        ("new", "new", [None, 1], [True, True]),
        ("new", "other", [None, None], [True, True]),
        ("at random", "at random", [None, None], [False, False]),  # or it compiles more as it runs
    ],
)
def test_a_known_program_is_not_measured_again_and_no_name_outlives_its_program(
    run_replay: Run, one: str, two: str, same_as: list[int | None], is_known: list[bool]
) -> None:
    spec, programs = replay_study(study=ISOLATED), {FlagSet(): "default", ONE: one, TWO: two}

    def compile_it(worker: SimulatedWorker, settings: FlagSet, folder: Path) -> None:
        program = programs.get(settings, "default")
        number = str(len(launcher.started)) if program == "at random" else ""
        worker.report = worker.report.model_copy(update={"fingerprint": program + number})

    launcher = Noting(spec, after=compile_it)
    _, store, _ = run_replay(spec, trials=2, first=(("one", ONE), ("two", TWO)), launcher=launcher)
    results = store.of(TrialResult)
    assert [r.same_as for r in results] == same_as
    assert [r.program_key is not None for r in results] == is_known
    started = [folder for _, folder in launcher.started]
    starts = [started.count(store.path / there(r.directory)) for r in results]
    assert starts == [1 if same is not None else 3 for same in same_as]

"""Arms whose steps do different work: what is compared is time per token, and nobody gains by saying a false number."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.machine.environment import caller_environment
from autotune.measure.context import refuse_untold_work
from autotune.measure.runner import TaskRunner
from autotune.measure.tasks import AaTask, AnyTask, Assignment, SoakTask, TrialTask
from autotune.model.errors import LaunchError, StudyFileError
from autotune.model.flags import FlagSet
from autotune.model.measurement import FailureKind, LossBasis, WorkPerStep, log_ratio
from autotune.model.options import option_sets
from autotune.model.records import (
    AaRecord,
    AblationResult,
    ConfirmRun,
    FinalistResult,
    Outcome,
    SoakRecord,
    TrialConfig,
    TrialResult,
)
from autotune.model.spec import StudySpec, parse_study
from autotune.rundir.store import Folders, Store
from autotune.settings.space import Parameter, SearchSpace
from autotune.stats.estimates import Verdict, estimate_pairs, judge
from autotune.workers.local import LocalLauncher
from harness.simulated_machine import SimulatedWorker, parse_simulated
from tests.runs import Noting, Run, Told, there, worker_report
from tests.tables import toml_beside

BIG, SMALL = FlagSet({"option.batch": "16"}), FlagSet({"option.batch": "4"})
SPACE = SearchSpace((Parameter(name="option.batch", choices=("4", "8", "16"), default="8"),))
TOKENS = {"option.batch=16": 2.0, "option.batch=4": 0.5}


def study(effects: dict[str, float], *, tokens: dict[str, float] | None = None, **more: Any) -> StudySpec:
    """Batch 8 is the reference; `effects` are on the time of a step."""
    workload = {"entry": "llama", "options": {"batch": 8}, **more.pop("workload", {})}
    replay = {"effects": effects, "token_effects": TOKENS if tokens is None else tokens}
    search = {"options": {"batch": [8, 4, 16]}}
    data: dict[str, Any] = {"name": "per-token", "workload": workload, "simulation": replay, "search": search, **more}
    return parse_simulated(data)


def trial_of(store: Store, settings: FlagSet) -> TrialResult:
    return next(t for t in store.of(TrialResult) if t.settings == settings)


def sets(*settings: FlagSet) -> tuple[tuple[str, FlagSet], ...]:
    return tuple((f"set {n}", s) for n, s in enumerate(settings))


@pytest.mark.parametrize("mode", ["interleaved", "aba"])
def test_a_longer_step_with_more_tokens_wins_and_a_shorter_one_with_fewer_does_not(run_replay: Run, mode: str) -> None:
    """A step of 16 takes 1.6 times as long and does twice as much; one of 4 takes 0.6 times as long, half as much."""
    measure = {"mode": mode, "run_steps": 40}
    spec = study({"option.batch=16": 1.6, "option.batch=4": 0.6}, measure=measure, confirm={"soak": 0})
    conclusion, store, _ = run_replay(spec, trials=2, first=sets(SMALL, BIG), space=SPACE)
    big, small = (there(trial_of(store, settings).comparison) for settings in (BIG, SMALL))
    assert [big.work, small.work] == [WorkPerStep(reference=4096, candidate=count) for count in (8192, 2048)]
    assert (judge(big.estimate), judge(small.estimate)) == (Verdict.FASTER, Verdict.SLOWER)
    assert big.estimate.ratio == pytest.approx(0.8, rel=0.02)
    assert big.candidate_step_s / big.reference_step_s == pytest.approx(1.6, rel=0.02)  # steps stay steps
    assert small.estimate.ratio == pytest.approx(1.2, rel=0.02)
    assert conclusion.outcome is Outcome.WINNER
    assert conclusion.settings == BIG
    assert there(conclusion.estimate).ratio == pytest.approx(0.8, rel=0.02)
    assert re.search(r"token ratio 0\.(79|80)", conclusion.sentence)
    assert {f.work for f in store.of(FinalistResult)} == {big.work}
    assert all(r.work == big.work for r in store.of(ConfirmRun))


def test_a_batch_that_pays_is_kept_although_the_step_is_shorter_without_it(run_replay: Run) -> None:
    both = BIG.merge({"xla_a": "1"})
    spec = study({"option.batch=16": 1.6, "xla_a=1": 0.9})
    conclusion, store, _ = run_replay(spec, trials=1, first=sets(both), space=SPACE)
    batch = next(a for a in store.of(AblationResult) if a.left_out == "option.batch")
    assert batch.kept
    assert there(batch.comparison).work == WorkPerStep(reference=8192, candidate=4096)
    assert conclusion.settings == both


def lying(spec: StudySpec, liar: FlagSet, tokens: int | None) -> Noting:
    """Workers of one set say that their steps do something else."""

    def lie(worker: SimulatedWorker, settings: FlagSet, folder: Path) -> None:
        if settings == liar:
            worker.report = worker.report.model_copy(update={"tokens_per_step": tokens})

    return Noting(spec, after=lie)


@pytest.mark.parametrize("mode", ["interleaved", "aba"])
def test_a_flag_that_claims_more_tokens_is_no_winner(run_replay: Run, mode: str) -> None:
    flag = FlagSet({"xla_a": "1"})
    spec = study({}, measure={"mode": mode})
    ended, store, _ = run_replay(spec, trials=1, first=sets(flag), space=SPACE, launcher=lying(spec, flag, 3 * 4096))
    failure = there(trial_of(store, flag).failure)
    assert (failure.kind, failure.phase) == (FailureKind.WORKLOAD_ERROR, "check")
    assert "how fast" in failure.message
    assert ended.outcome is Outcome.NOTHING_RAN


def test_an_arm_that_tells_nothing_beside_one_that_does_is_told_what_to_name(run_replay: Run) -> None:
    spec = study({"option.batch=16": 0.5})
    conclusion, store, _ = run_replay(spec, trials=1, first=sets(BIG), space=SPACE, launcher=lying(spec, BIG, None))
    failure = there(trial_of(store, BIG).failure)
    assert "says 4096, " in failure.message
    assert 'workload.tokens_per_step = "batch * seq"' in failure.message
    assert conclusion.outcome is Outcome.NOTHING_RAN


def test_what_the_study_says_of_a_step_counts_and_a_program_that_says_otherwise_fails(run_replay: Run) -> None:
    declared = {"tokens_per_step": "batch * 512"}
    spec = study({"option.batch=16": 1.6}, workload=declared)
    silent = lying(spec, BIG, None)
    conclusion, store, _ = run_replay(spec, trials=1, first=sets(BIG), space=SPACE, launcher=silent)
    assert conclusion.settings == BIG
    assert store.of(AaRecord)[0].reference.tokens_per_step == 8 * 512
    spec = study({"option.batch=16": 1.6}, tokens={"option.batch=16": 5.0}, workload=declared)
    _, store, _ = run_replay(spec, trials=1, first=sets(BIG), space=SPACE, folder="liar")
    failure = there(trial_of(store, BIG).failure)
    assert re.search("8192 for batch=16 .* 20480", failure.message)


def test_an_entry_that_does_not_tell_its_tokens_cannot_have_its_options_searched() -> None:
    data: dict[str, Any] = {"name": "untold", "workload": {"entry": "llama"}, "search": {"options": {"batch": [8, 16]}}}
    report = worker_report()
    with pytest.raises(LaunchError, match=r"half a .*tokens_per_step"):
        refuse_untold_work(parse_simulated(data), report)
    refuse_untold_work(parse_simulated(data), report.model_copy(update={"tokens_per_step": 4096}))
    refuse_untold_work(parse_study({**data, "search": {}}), report)


def command(**workload: Any) -> StudySpec:
    base = {"command": ["python", "train.py", "{batch}", "{seq}"], "hook": True, "options": {"batch": 8, "seq": 128}}
    return parse_study({"name": "command", "workload": {**base, **workload}, "search": {"options": {"batch": [8, 16]}}})


def test_a_command_must_say_what_a_step_does_when_the_study_is_loaded() -> None:
    with pytest.raises(StudyFileError, match="be given"):
        command()
    spec = command(tokens_per_step="batch * seq")
    assert (spec.work_under(FlagSet()), spec.work_under(BIG)) == (1024, 2048)
    assert command(tokens_per_step=4096).work_under(BIG) == 4096


REAL = parse_study(toml_beside(__file__, "options.toml"))


class Lane:
    """A runner of real processes in a folder."""

    def __init__(self, folder: Path) -> None:
        launcher = LocalLauncher(REAL, study_dir=str(folder), base=caller_environment())
        self.sink = Told()
        self.runner = TaskRunner(REAL, Folders(folder), launcher, self.sink)
        self.told: dict[str, Any] = {}

    def do(self, task: AnyTask, name: str) -> Any:
        return self.runner.do(Assignment(task=task, folder=(name,), name=name, **self.told))

    def trial(self, **options: Any) -> TrialResult:
        config = TrialConfig(number=1, settings=FlagSet(option_sets(options)), origin="test")
        found = self.do(TrialTask(config=config), "-".join(options))
        assert isinstance(found, TrialResult)
        return found

    def soak(self, basis: LossBasis, **options: Any) -> SoakRecord:
        settings = FlagSet(option_sets(options))
        task = SoakTask(settings=settings, least_s=0.1, least_steps=120, basis=basis)
        found = self.do(task, f"soak-{'-'.join(options)}")
        assert isinstance(found, SoakRecord)
        return found


@pytest.fixture
def lane(tmp_path: Path) -> Iterator[Lane]:
    opened = Lane(tmp_path)
    yield opened
    opened.runner.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_real_options_do_to_work_and_first_losses(lane: Lane) -> None:
    aa_run = lane.do(AaTask(), "aa_run")
    assert isinstance(aa_run, AaRecord)
    assert aa_run.loss_spread.is_rounded
    assert aa_run.loss_spread.seen(9) < 1e-3
    lane.told = {"aa_run": aa_run}
    for found in (lane.trial(accumulate=2), lane.trial(remat="full")):
        assert found.failure is None, found.failure
        assert found.loss is not None
        assert (found.loss.basis, found.loss.is_ok) == (LossBasis.ROUNDING, True)
    wrong = lane.trial(learning_rate=3e-3)
    assert there(wrong.failure).kind is FailureKind.WRONG_LOSS
    half = lane.trial(dtype="bfloat16")
    assert half.failure is None, half.failure
    assert there(half.loss).basis is LossBasis.DTYPE
    lane.sink.pairs.clear()
    big = lane.trial(batch=8)
    assert big.failure is None, big.failure
    assert big.loss is not None
    assert (big.loss.basis, big.loss.is_ok) == (LossBasis.WORK, True)
    assert big.comparison is not None
    assert big.comparison.work_ratio == 2.0
    raw = estimate_pairs([log_ratio(p) for p in lane.sink.pairs]).ratio
    assert big.comparison.estimate.ratio == pytest.approx(raw / 2)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_a_soak_says_of_real_options(lane: Lane) -> None:
    for soak in (lane.soak(LossBasis.DTYPE, dtype="bfloat16"), lane.soak(LossBasis.WORK, batch=8)):
        assert soak.failure is None, soak.failure
        assert there(soak.loss).is_ok, soak.loss
    wrong = lane.soak(LossBasis.DTYPE, learning_rate=3e-3)
    assert there(wrong.failure).kind is FailureKind.WRONG_LOSS

"""What arms tell of the same step: through blocks, runs alone and the soak; who lies there, late or never, is found."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.measure.loss_gate import ROUNDINGS, LossTrace, refuse_not_finite, refuse_resumed, spread_of_aa_run
from autotune.model.errors import LaunchError
from autotune.model.flags import FlagSet
from autotune.model.measurement import LOSS_NOT_CHECKED, FailureKind, LossBasis, Pair, WorkerReport
from autotune.model.records import AaRecord, ConfirmRun, IncidentRecord, Outcome, SoakRecord, TrialResult
from autotune.model.spec import StudySpec
from autotune.results.winner import winner_of
from autotune.rundir.store import Store
from autotune.workers.base import WorkerFailed
from harness.simulated_machine import LOSSES, SimulatedWorker, parse_simulated
from tests.runs import Noting, Run, Times, failed, on_blocks, there, worker_report
from tests.tables import toml_beside

CASES = toml_beside(__file__)

FAST = FlagSet({"xla_a": "1"})
DATA = {"name": "traced", "workload": {"entry": "llama"}, "simulation": {"effects": {"xla_a=1": 0.8}}}
SPEC = parse_simulated(DATA)
FIRST = 10
"""Number of the first step of a block: five are checked, five warm up."""


TellsLoss = Callable[[int, float], float | None]


def telling(
    spec: StudySpec, told: TellsLoss, *, of: FlagSet = FAST, lag: int = 0, fails: FlagSet | None = None
) -> Noting:
    """Workers of one set tell another loss, from some step of a process on; those of another do not fit into memory."""

    def before(settings: FlagSet, folder: Path) -> None:
        if settings == fails:
            raise failed(FailureKind.OUT_OF_MEMORY, "too large", phase="compile")

    def after(worker: SimulatedWorker, settings: FlagSet, folder: Path) -> None:
        def tell(times: Times, done: int) -> None:
            worker.last_loss, worker.loss_lag = told(FIRST + done + len(times) - 1, LOSSES[-1]), lag

        if settings == of:
            on_blocks(worker, tell)

    return Noting(spec, before=before, after=after)


@pytest.fixture
def tried(run_replay: Run) -> Callable[..., tuple[Any, Store]]:
    def run(told: TellsLoss, *, of: FlagSet = FAST, lag: int = 0, fails: FlagSet | None = None, **more: Any) -> Any:
        spec = parse_simulated({**DATA, **more})
        launcher = telling(spec, told, of=of, lag=lag, fails=fails)
        conclusion, store, _ = run_replay(spec, trials=1, first=(("fast", FAST),), launcher=launcher)
        return conclusion, store

    return run


def wrong_since(step: int, share: float = 0.5) -> Callable[[int, float], float]:
    return lambda now, loss: loss * (1 + share * (now >= step))


@pytest.mark.parametrize("since", [12, 20, 30])
def test_a_loss_that_goes_wrong_in_a_block_ends_the_trial_there(tried: Any, since: int) -> None:
    conclusion, store = tried(wrong_since(since))
    (trial,) = store.of(TrialResult)
    assert trial.failure.kind is FailureKind.WRONG_LOSS
    last = there(list(store.pairs(trial.directory))[-1].loss)
    assert last.step >= since > last.step - 10
    assert f"loss at step {last.step} must be 5.5" in trial.failure.message
    assert (last.reference, last.candidate) == (5.5, 8.25)
    assert conclusion.outcome is Outcome.NOTHING_RAN


def test_one_that_goes_wrong_after_all_trials_and_proofs_is_found_by_the_soak(tried: Any) -> None:
    conclusion, store = tried(wrong_since(400))
    assert all(r.loss.is_ok for r in store.of(ConfirmRun))
    failure = store.of(SoakRecord)[0].failure
    assert (failure.kind, failure.phase) == (FailureKind.WRONG_LOSS, "soak")
    assert "its loss is above" in failure.message
    assert conclusion.outcome is Outcome.NOTHING_BEATS_THE_DEFAULT
    assert "xla_a=1 was faster but failed after" in conclusion.sentence


def test_an_honest_one_says_over_how_much_it_was_compared(tried: Any) -> None:
    conclusion, store = tried(wrong_since(0, share=0.0))
    assert conclusion.outcome is Outcome.WINNER
    assert LOSS_NOT_CHECKED not in conclusion.sentence
    for run in store.of(ConfirmRun):
        assert run.loss.steps == 5 + run.pair_count
        assert "after blocks up to step" in run.loss.words
    (soak,) = store.of(SoakRecord)
    assert soak.loss.basis is LossBasis.STEPS
    assert soak.loss.words.startswith(f"judged by loss over {soak.step_count} steps against the reference's")
    assert winner_of(store).loss == soak.loss


def test_runs_alone_are_of_blocks_as_short_as_those_in_turns(tried: Any) -> None:
    """One long block would have four batches, be learned by heart, and its loss would tell nothing."""
    ends: list[int] = [FIRST - 1]

    def told(now: int, loss: float) -> float:
        ends.extend([now] if now > ends[-1] else [FIRST - 1, now])  # a fresh process begins again
        return loss

    conclusion, store = tried(told, confirm={"soak": 0})
    assert conclusion.outcome is Outcome.WINNER
    isolated = [r for r in store.of(ConfirmRun) if r.is_isolated]
    assert isolated
    longest = [len(p.candidate_s) for r in isolated if r.directory for p in store.pairs(r.directory)]
    block = len(next(iter(store.pairs("trials/0001"))).candidate_s)
    assert min(longest) > block
    assert {b - a for a, b in itertools.pairwise(ends) if b > a} == {block}


SILENT = "its loss must be reported up to step 29, as by the reference"


@pytest.mark.parametrize(
    ("told", "lag", "words"),
    [
        (lambda now, loss: None, 3, SILENT),
        (lambda now, loss: loss, 3, SILENT),
        (wrong_since(12), 0, "loss at step 29 must be 5.5"),
    ],
    ids=["none", "an earlier step's", "wrong at its end"],
)
def test_one_at_a_time_the_end_of_a_run_is_compared(tried: Any, told: Any, lag: int, words: str) -> None:
    _, store = tried(told, lag=lag, measure={"mode": "aba"})
    (trial,) = store.of(TrialResult)
    assert trial.failure.kind is FailureKind.WRONG_LOSS
    assert words in trial.failure.message


@pytest.mark.parametrize("mode", ["interleaved", "aba"])
def test_another_rounding_runs_in_every_study_and_makes_the_tolerance(tried: Any, mode: str) -> None:
    _, store = tried(lambda now, loss: loss * 1.001, of=ROUNDINGS[0], measure={"mode": mode})
    (aa_run,) = store.of(AaRecord)
    assert aa_run.loss_spread.is_rounded
    assert aa_run.loss_spread.losses[-1] == pytest.approx(1e-3)
    assert aa_run.loss_spread.steps[-1] >= 29
    (trial,) = store.of(TrialResult)
    last = max(p.loss.step for p in store.pairs(trial.directory) if p.loss is not None)
    assert trial.loss.tolerance == aa_run.loss_spread.tolerance(last, dtype="float32")
    assert 4e-3 < trial.loss.tolerance < 16e-3
    assert "measured on the reference in another rounding" in trial.loss.words


@pytest.mark.parametrize("loss", [LOSSES[-1] * 1.001, math.nan], ids=["the milder one runs", "nor does the milder one"])
def test_where_the_reference_does_not_run_in_another_rounding_a_milder_one_is_tried(tried: Any, loss: float) -> None:
    _, store = tried(lambda now, told: loss, of=ROUNDINGS[1], fails=ROUNDINGS[0])
    (aa_run,), (trial,) = store.of(AaRecord), store.of(TrialResult)
    assert aa_run.loss_spread.is_rounded == math.isfinite(loss)
    assert ("no reference ran in another rounding" in trial.loss.words) != math.isfinite(loss)
    said = [i.what for i in store.of(IncidentRecord)]
    assert any("jax_disable_most_optimizations=true" in what and "too large" in what for what in said)
    assert any("is nan at step" in what for what in said) != math.isfinite(loss)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("quantity", ["losses", "grad_norms"])
def test_a_reference_that_is_no_number_is_an_error_of_the_study(bad: float, quantity: str) -> None:
    good = report()
    other = report(**{quantity: (5.0, 4.0, bad)})
    refuse_not_finite(good)
    what = "loss" if quantity == "losses" else "gradient norm"
    for reports in ([other], [good, other], [good, good, other]):
        with pytest.raises(LaunchError, match=f"must be finite at every step.*its {what} is {bad} at step 2; mend"):
            spread_of_aa_run(reports, [])


def test_what_blocks_of_all_second_processes_show_is_in_the_spread() -> None:
    pairs = [pair(10, 5.0, 5.0), pair(20, 5.0, 5.05), pair(10, 5.0, 5.005), pair(20, 5.0, 5.0)]
    spread = spread_of_aa_run([report(), report()], pairs)
    assert spread.steps == (0, 1, 2, 10, 20)
    assert spread.losses[-2:] == pytest.approx((0.001, 0.01))
    assert not spread.is_rounded


def test_a_candidate_meets_a_reference_that_lived_longer_at_its_own_step() -> None:
    old, young, worker = LossTrace(SPEC, report()), LossTrace(SPEC, report()), Told()
    for loss in (4.0, 3.0, 2.0):
        worker.last_loss = loss
        old.take(worker, 4)  # type: ignore[arg-type]
    worker.last_loss = 9.0
    young.take(worker, 4)  # type: ignore[arg-type]
    told = there(young.beside(old))
    assert (told.step, told.reference, told.candidate) == (13, 4.0, 9.0)
    odd = LossTrace(SPEC, report())
    odd.take(worker, 5)  # type: ignore[arg-type]
    assert odd.beside(old) is None
    with pytest.raises(WorkerFailed, match="reported up to step 21, as by the reference, but ends at step 13"):
        young.refuse_shorter(old)


class Told:
    """What a trace asks of a worker."""

    last_loss: float | None = None
    last_norm: float | None = None
    loss_lag = 0


def report(**more: Any) -> WorkerReport:
    return worker_report(**{"losses": (5.0, 4.0, 3.0), "grad_norms": (1.0, 1.0, 1.0), **more})


def pair(step: int, reference: float, candidate: float) -> Pair:
    data = {"index": 0, "first": "reference", "reference_s": [1.0], "candidate_s": [1.0], "at_s": 0.0}
    return Pair.model_validate({**data, "loss": {"step": step, "reference": reference, "candidate": candidate}})


@pytest.mark.parametrize(("one", "other", "refused"), CASES["far_apart"])
def test_equal_runs_that_are_far_apart_are_an_alarm_and_no_tolerance(
    one: list[float], other: list[float], refused: str
) -> None:
    reports = [report(losses=tuple(losses), grad_norms=()) for losses in (one, other)]
    if not refused:
        assert spread_of_aa_run(reports, []).seen(2) > 0
        return
    with pytest.raises(LaunchError, match=refused):
        spread_of_aa_run(reports, [])


@pytest.mark.parametrize(("first", "later", "is_refused"), CASES["resumed"])
def test_a_later_run_that_begins_at_another_step_is_refused(
    first: list[int], later: list[int], is_refused: bool
) -> None:
    reports = [report().model_copy(update={"step_numbers": tuple(numbers)}) for numbers in (first, later)]
    with pytest.raises(LaunchError) if is_refused else contextlib.nullcontext():
        refuse_resumed(*reports)

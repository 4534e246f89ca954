"""Does a set with other options train as the reference does? What can be compared is, and what cannot is said.

Studies of programs in unusual number formats come to their end; what cannot be compared is a failed trial.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.measure.loss_gate import (
    OTHER_ROUNDING,
    ROUNDINGS,
    LossGate,
    LossTrace,
    refuse_not_finite,
    refuse_resumed,
    spread_of_aa_run,
)
from autotune.model.errors import AutotuneError, LaunchError
from autotune.model.flags import FlagSet
from autotune.model.measurement import LOSS_NOT_CHECKED, FailureKind, LossBasis, Pair, WorkerReport
from autotune.model.records import AaRecord, ConfirmRun, IncidentRecord, Outcome, SoakRecord, TrialResult, TrialStatus
from autotune.model.spec import StudySpec
from autotune.results.audit import disagreements
from autotune.results.export import render_winner
from autotune.results.report import render_markdown
from autotune.results.verify import Verification
from autotune.results.winner import winner_of
from autotune.rundir.store import Store
from autotune.settings.space import Parameter, SearchSpace
from autotune.stats.loss_check import StepLoss
from autotune.study.recheck import verify_winner
from autotune.workers.base import WorkerFailed
from harness.simulated_machine import LOSSES, SimulatedWorker, parse_simulated
from tests.runs import Noting, Run, Times, failed, on_blocks, replay_study, there, worker_report
from tests.tables import toml_beside

FUSED = FlagSet({"option.attention": '"cudnn"'})
HALF = FlagSet({"option.dtype": '"bfloat16"'})
BIG = FlagSet({"option.batch": "16"})
SPACE = SearchSpace((Parameter(name="option.attention", choices=('"xla"', '"cudnn"'), default='"xla"'),))
OPTIONS = {"attention": ["xla", "cudnn"], "dtype": ["float32", "bfloat16"], "batch": [8, 16]}


def study(soak: str = "30s", **more: Any) -> StudySpec:
    """Each of the three options makes tokens faster by a fifth."""
    replay = {
        "effects": {'option.attention="cudnn"': 0.8, 'option.dtype="bfloat16"': 0.8, "option.batch=16": 1.6},
        "token_effects": {"option.batch=16": 2.0},
    }
    data: dict[str, Any] = {
        "name": "gated",
        "workload": {"entry": "llama"},
        "simulation": replay,
        "search": {"options": OPTIONS},
        "confirm": {"soak": soak, **more},
    }
    return parse_simulated(data)


@dataclass
class Behaviour:
    """What the workers of a set do: their report, the loss after so many steps; and which blocks had fresh batches."""

    update: dict[str, Any] = field(default_factory=dict)
    late: Callable[[int], float | None] | None = None
    fresh: list[bool] = field(default_factory=list)
    lag: int = 0
    fails: bool = False


def acting(spec: StudySpec, parts: dict[FlagSet, Behaviour], **every: Any) -> Noting:
    """Workers of some sets tell other losses than the formula's, or do not start; all report `every`."""

    def before(settings: FlagSet, folder: Path) -> None:
        if settings in parts and parts[settings].fails:
            raise failed(FailureKind.OUT_OF_MEMORY, "too large", phase="compile")

    def after(worker: SimulatedWorker, settings: FlagSet, folder: Path) -> None:
        part = parts.get(settings, Behaviour())
        worker.report = worker.report.model_copy(update={**every, **part.update})

        def tell(times: Times, done: int) -> None:
            worker.last_loss = part.late(done + len(times)) if part.late is not None else worker.last_loss
            worker.loss_lag = part.lag
            part.fresh.append(worker.fresh_batches)

        if settings in parts:
            on_blocks(worker, tell)

    return Noting(spec, before=before, after=after)


@pytest.fixture
def tried(run_replay: Run) -> Callable[..., tuple[Any, Store, TrialResult]]:
    def run(settings: FlagSet, *, soak: str = "30s", folder: str = "run", **parts: Behaviour) -> Any:
        spec, names = study(soak), {"reference": FlagSet(), "mine": settings, "rounding": OTHER_ROUNDING}
        launcher = acting(spec, {names[n]: part for n, part in parts.items()})
        first = (("set", settings),)
        conclusion, store, _ = run_replay(spec, trials=1, first=first, space=SPACE, launcher=launcher, folder=folder)
        return conclusion, store, store.of(TrialResult)[0]

    return run


def off_by(share: float, *, first: float = 0.0) -> dict[str, Any]:
    """Losses and norms that are off at every step but the first."""
    losses = (LOSSES[0] * (1 + first), *(x * (1 + share) for x in LOSSES[1:]))
    return {"losses": losses, "grad_norms": losses}


def test_options_that_change_rounding_only_are_compared_step_by_step(tried: Any) -> None:
    conclusion, store, trial = tried(FUSED, soak="0", mine=Behaviour(off_by(1e-6)))
    assert conclusion.settings == FUSED
    assert trial.loss.basis is LossBasis.ROUNDING
    assert trial.loss.is_ok
    assert trial.loss.difference == pytest.approx(1e-6, rel=0.01)
    assert "over 5 steps" in trial.loss.words
    assert all(r.loss.is_ok for r in store.of(ConfirmRun))
    exported = render_winner(winner_of(store), "env")
    assert ": options that " in exported


@pytest.mark.parametrize(("moved", "is_wrong"), [(1.0, False), (0.6, False), (0.0, True), (3.0, True), (None, True)])
def test_a_set_that_skips_the_optimizer_is_wrong_though_its_losses_are_those_of_the_reference(
    tried: Any, moved: float | None, is_wrong: bool
) -> None:
    conclusion, _, trial = tried(
        FUSED, soak="0", reference=Behaviour({"state_change": 1.0}), mine=Behaviour({"state_change": moved})
    )
    assert (trial.failure is not None) is is_wrong
    if trial.failure is not None:
        assert trial.failure.kind is FailureKind.WRONG_LOSS
        assert "state by 1" in trial.failure.message
        assert conclusion.settings is None


def test_distances_of_states_with_other_arrays_are_not_compared(tried: Any) -> None:
    """Unrolled layers are arrays of their own: those that are looked at move by another distance."""
    reference = Behaviour({"state_change": 1.0, "state_arrays": 30})
    mine = Behaviour({"state_change": 0.3, "state_arrays": 90})
    conclusion, _, trial = tried(FUSED, soak="0", reference=reference, mine=mine)
    assert trial.failure is None
    assert conclusion.settings == FUSED


def test_the_tolerance_is_what_the_reference_shows_in_another_rounding(tried: Any) -> None:
    other, mine = Behaviour(off_by(1e-4)), Behaviour(off_by(3e-4))
    conclusion, store, trial = tried(FUSED, rounding=other, mine=mine)
    assert store.of(AaRecord)[0].loss_spread.seen(9) == pytest.approx(1e-4, rel=0.01)
    assert conclusion.settings == FUSED
    assert "another rounding" in trial.loss.words
    _, _, refused = tried(FUSED, mine=mine, folder="unmeasured")
    assert refused.failure.kind is FailureKind.WRONG_LOSS


@pytest.mark.parametrize("share", [0.01, -0.02])
def test_a_wrong_learning_step_shows_from_the_second_step_on(tried: Any, share: float) -> None:
    conclusion, _, trial = tried(FUSED, rounding=Behaviour(off_by(1e-6)), mine=Behaviour(off_by(share)))
    assert trial.failure.kind is FailureKind.WRONG_LOSS
    assert "at step 1" in trial.failure.message
    assert conclusion.outcome is Outcome.NOTHING_RAN


def test_a_program_without_losses_is_inconclusive_and_not_exported(tried: Any) -> None:
    silent = {"losses": (), "grad_norms": ()}
    conclusion, store, trial = tried(FUSED, reference=Behaviour(silent), mine=Behaviour(silent))
    assert trial.loss.is_ok is None
    assert conclusion.settings == FUSED
    with pytest.raises(AutotuneError, match=r"to train .*inconclusive"):
        winner_of(store)


def half(**more: Any) -> dict[str, Any]:
    return {"dtype": "bfloat16", **off_by(0.004, first=0.002), **more}


def scattered(level: float, *, seed: int = 7) -> Callable[[int], float]:
    """A loss that falls to a level, with the scatter of its batches."""
    return lambda step: level * (1 + 1 / (1 + step / 50)) * (1 + 0.002 * ((step * seed * 7919) % 11 - 5) / 5)


def test_another_dtype_is_judged_by_the_loss_of_the_soak_and_everybody_is_told(tried: Any, tmp_path: Path) -> None:
    mine, reference = Behaviour(half(), scattered(3.01)), Behaviour(late=scattered(3.0, seed=5))
    conclusion, store, trial = tried(HALF, mine=mine, reference=reference)
    assert trial.loss.basis is LossBasis.DTYPE
    assert not trial.loss.is_final
    (soak,) = store.of(SoakRecord)
    assert soak.loss.is_ok
    assert soak.loss.difference == pytest.approx(0.01 / 3, abs=0.002)
    words = f"dtype changes: judged by loss over {soak.step_count} steps"
    for text in (conclusion.sentence, render_markdown(store), render_winner(winner_of(store), "shell")):
        assert words in text
        assert "difference +0." in text
    assert disagreements(store, conclusion) == []


WRONG = {
    "worse over the soak": (HALF, Behaviour(half(), scattered(3.3)), r"dtype.*difference \+(9\.[5-9]|10\.[0-5])\d* %"),
    "a constant": (HALF, Behaviour(half(), lambda step: 3.0), "dtype changes"),
    "too good": (HALF, Behaviour(half(), lambda step: 1.0 + step / 1e6), "dtype changes"),
    "first steps far off": (HALF, Behaviour({"dtype": "bfloat16", **off_by(0.5, first=0.5)}), "dtype changes"),
    "behind over the soak": (BIG, Behaviour(late=scattered(3.3)), "the work of a step changes"),
    "the same rows": (BIG, Behaviour({"losses": LOSSES, "grad_norms": LOSSES}), "it trains the same rows"),
    "standing still": (
        BIG,
        Behaviour({"losses": (6.51,) * 5, "grad_norms": (6.6, 6.4, 6.5, 6.7, 6.6)}),
        "not change from step to step",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_another_dtype_or_batch_that_trains_otherwise_is_no_winner(tried: Any, name: str) -> None:
    settings, mine, words = WRONG[name]
    conclusion, store, trial = tried(settings, mine=mine, reference=Behaviour(late=scattered(3.0)))
    assert conclusion.settings is None
    (failure,) = filter(None, [trial.failure, *(soak.failure for soak in store.of(SoakRecord))])
    assert failure.kind is FailureKind.WRONG_LOSS
    assert re.search(words, failure.message)
    assert (failure.phase == "soak") == (mine.late is not None)
    assert (conclusion.outcome is Outcome.NOTHING_RAN) == (trial.failure is not None)
    assert ("but failed" in conclusion.sentence) == (failure.phase == "soak")


def test_without_a_soak_it_is_exported_only_by_force_and_never_holds(tried: Any, tmp_path: Path) -> None:
    _, store, _ = tried(HALF, soak="0", mine=Behaviour(half()))
    with pytest.raises(AutotuneError, match="never soaked"):
        render_winner(winner_of(store), "env")
    text = render_winner(winner_of(store, even_unjudged=True), "env")
    assert "NOT PROVEN: " in text
    file = tmp_path / "forced.env"
    file.write_text(text)
    verified = verify_winner(winner_of(store, even_unjudged=True), file, Verification())
    assert verified.status == "differs"
    assert "loss" in [d.field for d in verified.differences]


def test_another_batch_is_compared_at_equal_work_and_both_soak_with_fresh_batches(tried: Any) -> None:
    mine, reference = Behaviour(late=lambda step: scattered(3.0)(2 * step)), Behaviour(late=scattered(3.0, seed=5))
    conclusion, store, trial = tried(BIG, mine=mine, reference=reference)
    assert trial.loss.basis is LossBasis.WORK
    assert "3 points" in trial.loss.words
    assert conclusion.settings == BIG
    soak = store.of(SoakRecord)[0]
    assert soak.loss.is_ok
    assert "changes: judged" in soak.loss.words
    assert (mine.fresh + reference.fresh).count(True) >= 10
    assert not mine.fresh[0]  # what is timed uses batches that were made before
    assert (store.path / soak.directory / "reference" / "worker.log").exists()


def test_flags_alone_are_judged_as_ever(tried: Any) -> None:
    flag = FlagSet({"xla_a": "1"})
    _, _, trial = tried(flag)
    assert (trial.loss.basis, trial.loss.is_ok) == (LossBasis.STEPS, True)
    assert "over 5 steps and " in trial.loss.words
    _, _, wrong = tried(flag, mine=Behaviour(off_by(1e-3)), folder="wrong")
    assert wrong.failure.kind is FailureKind.WRONG_LOSS


FAST = FlagSet({"xla_a": "1"})
FIRST = (("fast", FAST), ("other", FlagSet({"xla_b": 1})))


@pytest.mark.parametrize(
    "dtype",
    [
        "float8_e4m3fn/float8_e5m2",
        "nanoo_fp8",
        *(pytest.param(d, marks=pytest.mark.gate) for d in ("float4_e2m1fn", "bf16", "int8/bfloat16")),
    ],
)
def test_a_study_in_a_narrow_format_comes_to_its_end(run_replay: Run, dtype: str) -> None:
    spec = replay_study(effects={"xla_a=1": 0.9})
    launcher = acting(spec, {}, dtype=dtype, loss_dtype="bfloat16", norm_dtype="float8_e5m2")
    conclusion, store, _ = run_replay(spec, trials=2, launcher=launcher, first=FIRST)
    assert {r.status for r in store.of(TrialResult)} == {TrialStatus.MEASURED}
    assert conclusion.settings == FlagSet({"xla_a": "1"})


def test_a_wrong_loss_in_a_narrow_format_is_still_wrong(run_replay: Run) -> None:
    spec = replay_study(effects={"xla_a=1": 0.9}, failures={"xla_a=1": "wrong_loss"})  # half as much again
    launcher = acting(spec, {}, dtype="float8_e5m2", loss_dtype="bfloat16")
    _, store, _ = run_replay(spec, trials=2, launcher=launcher, first=FIRST)
    wrong = [r for r in store.of(TrialResult) if r.settings.get("xla_a") == "1"]
    assert wrong
    assert {r.failure.kind for r in wrong if r.failure} == {FailureKind.WRONG_LOSS}


def test_a_set_whose_format_has_no_rounding_is_a_failed_trial(run_replay: Run) -> None:
    spec = replay_study(effects={"xla_b=1": 0.9})
    launcher = acting(spec, {FAST: Behaviour({"loss_dtype": "int32"})})
    _, store, _ = run_replay(spec, trials=2, first=FIRST, launcher=launcher)
    (wrong,) = [r for r in store.of(TrialResult) if r.failure is not None]
    assert wrong.settings == FAST
    assert "no rounding" in there(wrong.failure).message


def test_a_reference_whose_format_nobody_knows_ends_the_study_with_advice(run_replay: Run) -> None:
    spec = replay_study()
    with pytest.raises(LaunchError, match=r"arithmetic .*'quantized'"):
        run_replay(spec, launcher=acting(spec, {}, dtype="quantized"))


CASES = toml_beside(__file__)
DATA = {"name": "traced", "workload": {"entry": "llama"}, "simulation": {"effects": {"xla_a=1": 0.8}}}
SPEC = parse_simulated(DATA)
FIRST_STEP = 10
"""Number of the first step of a block: five are checked, five warm up."""


Tells = Callable[[int, float], float | None]
"""The loss that is told instead of one, at some step."""


@pytest.fixture
def traced(run_replay: Run) -> Callable[..., tuple[Any, Store]]:
    """Runs a study of one set; processes of one (`of`) tell another loss, from some step on, those of another fail."""

    def run(told: Tells, *, of: FlagSet = FAST, lag: int = 0, fails: FlagSet = BIG, **more: Any) -> Any:
        spec = parse_simulated({**DATA, **more})
        tells = Behaviour(late=lambda steps: told(FIRST_STEP + steps - 1, LOSSES[-1]), lag=lag)
        launcher = acting(spec, {of: tells, fails: Behaviour(fails=True)})
        return run_replay(spec, trials=1, first=FIRST[:1], launcher=launcher)[:2]

    return run


def wrong_since(step: int, share: float = 0.5) -> Callable[[int, float], float]:
    return lambda now, loss: loss * (1 + share * (now >= step))


@pytest.mark.parametrize("since", [12, 20, 30])
def test_a_loss_that_goes_wrong_in_a_block_ends_the_trial_there(traced: Any, since: int) -> None:
    conclusion, store = traced(wrong_since(since))
    (trial,) = store.of(TrialResult)
    assert trial.failure.kind is FailureKind.WRONG_LOSS
    last = there(list(store.pairs(trial.directory))[-1].loss)
    assert last.step >= since > last.step - 10
    assert f"step {last.step} must be 5.5" in trial.failure.message
    assert (last.reference, last.candidate) == (5.5, 8.25)
    assert conclusion.outcome is Outcome.NOTHING_RAN


@pytest.mark.parametrize("soak", ["60s", "11s"])
def test_one_that_goes_wrong_after_all_trials_and_proofs_is_found_by_the_soak(traced: Any, soak: str) -> None:
    """Its gradients are wrong from step 400 on, of 2,500 of the soak or of 460."""
    conclusion, store = traced(lambda step, loss: loss * 1.01 ** max(0, step - 400), confirm={"soak": soak})
    assert all(r.loss.is_ok for r in store.of(ConfirmRun))
    failure = store.of(SoakRecord)[0].failure
    assert (failure.kind, failure.phase) == (FailureKind.WRONG_LOSS, "soak")
    assert "is above" in failure.message
    assert conclusion.outcome is Outcome.NOTHING_BEATS_THE_DEFAULT
    assert "xla_a=1 was faster" in conclusion.sentence


def test_an_honest_one_says_over_how_much_it_was_compared(traced: Any) -> None:
    conclusion, store = traced(wrong_since(0, share=0.0))
    assert conclusion.outcome is Outcome.WINNER
    assert LOSS_NOT_CHECKED not in conclusion.sentence
    for run in store.of(ConfirmRun):
        assert run.loss.steps == 5 + run.pair_count
        assert "after blocks" in run.loss.words
    (soak,) = store.of(SoakRecord)
    assert soak.loss.basis is LossBasis.STEPS
    assert f"over {soak.step_count} steps" in soak.loss.words
    assert winner_of(store).loss == soak.loss


def test_runs_alone_are_of_blocks_as_short_as_those_in_turns(traced: Any) -> None:
    """One long block would have four batches, be learned by heart, and its loss would tell nothing."""
    ends: list[int] = [FIRST_STEP - 1]

    def told(now: int, loss: float) -> float:
        ends.extend([now] if now > ends[-1] else [FIRST_STEP - 1, now])  # a fresh process begins again
        return loss

    conclusion, store = traced(told, confirm={"soak": 0})
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
def test_one_at_a_time_the_end_of_a_run_is_compared(traced: Any, told: Any, lag: int, words: str) -> None:
    _, store = traced(told, lag=lag, measure={"mode": "aba"})
    (trial,) = store.of(TrialResult)
    assert trial.failure.kind is FailureKind.WRONG_LOSS
    assert words in trial.failure.message


@pytest.mark.parametrize("mode", ["interleaved", "aba"])
def test_another_rounding_runs_in_every_study_and_makes_the_tolerance(traced: Any, mode: str) -> None:
    _, store = traced(lambda now, loss: loss * 1.001, of=ROUNDINGS[0], measure={"mode": mode})
    (aa_run,) = store.of(AaRecord)
    assert aa_run.loss_spread.is_rounded
    assert aa_run.loss_spread.losses[-1] == pytest.approx(1e-3)
    assert aa_run.loss_spread.steps[-1] >= 29
    (trial,) = store.of(TrialResult)
    last = max(p.loss.step for p in store.pairs(trial.directory) if p.loss is not None)
    assert trial.loss.tolerance == aa_run.loss_spread.tolerance(last, dtype="float32")
    assert 4e-3 < trial.loss.tolerance < 16e-3
    assert "another rounding" in trial.loss.words


@pytest.mark.parametrize("loss", [LOSSES[-1] * 1.001, math.nan], ids=["the milder one runs", "nor does the milder one"])
def test_where_the_reference_does_not_run_in_another_rounding_a_milder_one_is_tried(traced: Any, loss: float) -> None:
    _, store = traced(lambda now, told: loss, of=ROUNDINGS[1], fails=ROUNDINGS[0])
    (aa_run,), (trial,) = store.of(AaRecord), store.of(TrialResult)
    assert aa_run.loss_spread.is_rounded == math.isfinite(loss)
    assert ("no reference" in trial.loss.words) != math.isfinite(loss)
    said = [i.what for i in store.of(IncidentRecord)]
    assert any("jax_disable_most_optimizations=true" in what and "too large" in what for what in said)
    assert any("nan at" in what for what in said) != math.isfinite(loss)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("quantity", ["losses", "grad_norms"])
def test_a_reference_that_is_no_number_is_an_error_of_the_study(bad: float, quantity: str) -> None:
    good = report()
    other = report(**{quantity: (5.0, 4.0, bad)})
    refuse_not_finite(good)
    what = "loss" if quantity == "losses" else "gradient norm"
    for reports in ([other], [good, other], [good, good, other]):
        with pytest.raises(LaunchError, match=f"be finite .* {what} is {bad} at step 2;"):
            spread_of_aa_run(reports, [])


def test_what_blocks_of_all_second_processes_show_is_in_the_spread() -> None:
    pairs = [pair(10, 5.0, 5.0), pair(20, 5.0, 5.05), pair(10, 5.0, 5.005), pair(20, 5.0, 5.0)]
    spread = spread_of_aa_run([report(), report()], pairs)
    assert spread.steps == (0, 1, 2, 10, 20)
    assert spread.losses[-2:] == pytest.approx((0.001, 0.01))
    assert not spread.is_rounded


def test_a_candidate_meets_a_reference_that_lived_longer_at_its_own_step() -> None:
    worker: Any = Told()
    old = LossTrace(SPEC, worker)
    young = LossTrace(SPEC, worker)
    for loss in (4.0, 3.0, 2.0):
        worker.last_loss = loss
        old.take(4)
    worker.last_loss = 9.0
    young.take(4)
    told = there(young.beside(old))
    assert (told.step, told.reference, told.candidate) == (13, 4.0, 9.0)
    odd = LossTrace(SPEC, worker)
    odd.take(5)
    assert odd.beside(old) is None
    with pytest.raises(WorkerFailed, match=r"step 21, .* step 13"):
        young.refuse_shorter(old)


class Told:
    """What a trace asks of a worker."""

    def __init__(self) -> None:
        self.report = report()

    last_loss: float | None = None
    last_norm: float | None = None
    loss_lag = dropped_steps = 0
    passed_losses: tuple[tuple[int, float], ...] = ()


def report(**more: Any) -> WorkerReport:
    return worker_report(**{"losses": (5.0, 4.0, 3.0), "grad_norms": (1.0, 1.0, 1.0), **more})


def pair(step: int, reference: float, candidate: float) -> Pair:
    data = {"index": 0, "first": "reference", "reference_s": [1.0], "candidate_s": [1.0], "at_s": 0.0}
    return Pair.model_validate({**data, "loss": {"step": step, "reference": reference, "candidate": candidate}})


@pytest.mark.parametrize(("one", "other", "refused"), CASES["far_apart"])
def test_equal_runs_far_apart_are_an_alarm_and_no_tolerance(one: list[float], other: list[float], refused: str) -> None:
    reports = [report(losses=tuple(losses), grad_norms=()) for losses in (one, other)]
    if not refused:
        assert spread_of_aa_run(reports, []).seen(2) > 0
        return
    with pytest.raises(LaunchError, match=refused):
        spread_of_aa_run(reports, [])


UNSEEDED = [(4.16, 4.12, 3.89, 3.67), (4.18, 4.04, 4.10, 3.81)]
"""Losses of two equal runs whose batches are drawn without a seed."""


def of_unseeded() -> LossGate:
    spread = spread_of_aa_run([report(losses=losses, grad_norms=()) for losses in UNSEEDED], [])
    return LossGate(study(), spread)


@pytest.mark.parametrize(("losses", "is_wrong"), CASES["unseeded"])
def test_first_steps_on_other_data_are_compared_roughly_and_never_the_last_word(
    losses: list[float], is_wrong: bool
) -> None:
    reports = [report(losses=tuple(told), grad_norms=()) for told in (UNSEEDED[0], losses)]
    with pytest.raises(WorkerFailed) if is_wrong else contextlib.nullcontext():
        check = of_unseeded().check(FlagSet({"xla_a": "1"}), (reports[0], reports[1]))
        assert (check.basis, check.is_ok, check.is_final) == (LossBasis.ORDER, True, False)


@pytest.mark.parametrize(("share", "is_wrong"), [(0.0, False), (0.08, True), (-0.08, True)])
def test_a_long_run_on_other_data_is_judged_by_its_mean(share: float, is_wrong: bool) -> None:
    curves = [[(n, scattered(2.0, seed=seed)(n)) for n in range(400)] for seed in (1, 2)]
    reference, candidate = (
        [(n, StepLoss(loss * by)) for n, loss in curve] for curve, by in zip(curves, (1.0, 1.0 + share), strict=True)
    )
    with pytest.raises(WorkerFailed) if is_wrong else contextlib.nullcontext():
        check = of_unseeded().check_soak(LossBasis.ORDER, (report(), report()), (reference, candidate), steps=400)
        assert check.is_ok


@pytest.mark.parametrize(("share", "is_wrong"), [(1.0, False), (1.5, True), (0.6, True)])
def test_a_gradient_norm_that_goes_wrong_in_a_long_run_is(share: float, is_wrong: bool) -> None:
    """Norms of single steps are far apart when rounding has grown; their mean is not."""
    rng = np.random.default_rng(1)
    reference = [(n, StepLoss(2.0, 1.5)) for n in range(100, 500, 10)]
    candidate = [(n, StepLoss(2.0, 1.5 * share * math.exp(0.2 * rng.standard_normal()))) for n, _ in reference]
    with pytest.raises(WorkerFailed, match="gradient norm is") if is_wrong else contextlib.nullcontext():
        reports = (report(), report())
        assert of_unseeded().check_soak(LossBasis.STEPS, reports, (reference, candidate), steps=400).is_ok


@pytest.mark.parametrize(("first", "later", "is_refused"), CASES["resumed"])
def test_a_run_that_begins_at_another_step_is_refused(first: list[int], later: list[int], is_refused: bool) -> None:
    reports = [report().model_copy(update={"step_numbers": tuple(numbers)}) for numbers in (first, later)]
    with pytest.raises(LaunchError) if is_refused else contextlib.nullcontext():
        refuse_resumed(*reports)

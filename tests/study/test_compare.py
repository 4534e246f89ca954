"""One comparison: runs one at a time, interleaved blocks, and the A/A run with what it lets a study prove."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.compare import aa_pairs, fixed, noise_of_aba_runs, pair_duration_s, sequential
from autotune.measure.durations import power_analysis
from autotune.measure.loss_gate import LossTrace
from autotune.measure.runner import pays
from autotune.model.block_sizes import CPU_SIZES, LONGEST_BLOCK_STEPS
from autotune.model.flags import FlagSet
from autotune.model.measurement import Arm, Comparison, Failure, FailureKind, Pair, log_ratio
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
from autotune.model.spec import StudySpec
from autotune.rundir.store import Store
from autotune.stats.aa_noise import AaNoise, proof_size, read_aa_noise, spread_of
from autotune.stats.estimates import Estimate, SequentialPlan, Verdict, estimate_aba, estimate_pairs, widen
from autotune.stats.proof import smallest_gain
from autotune.workers.base import Worker, WorkerFailed
from autotune.workers.local import first_step
from harness.proofs import study_power
from harness.simulated_machine import SimulatedLauncher, SimulatedWorker
from tests.runs import Noting, Run, Times, failed, interleaved_pairs, on_blocks, replay_study, there, worker_report

ISOLATED = {"measure": {"mode": "aba"}}
EFFECTS = {"xla_a=1": 0.9, "xla_d=2": 0.95}


def pairs_of(*runs: tuple[float, float, float]) -> list[Pair]:
    found: list[Pair] = []
    for before, candidate, after in runs:
        for first, reference in ((Arm.REFERENCE, before), (Arm.CANDIDATE, after)):
            times: Any = {"reference_s": (reference,) * 3, "candidate_s": (candidate,) * 3}
            found.append(Pair(index=len(found), first=first, at_s=0, **times))
    return found


def test_a_steady_drift_cancels() -> None:
    pairs = pairs_of((1.00, 1.01 * 0.9, 1.0201), (1.0201, 1.0201 * 1.01 * 0.9, 1.0201**2))
    found = estimate_aba([log_ratio(pair) for pair in pairs])
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
        assert estimate_aba([log_ratio(pair) for pair in pairs]) == there(result.comparison).estimate


@pytest.mark.parametrize("own", ["", "XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_CLIENT_MEM_FRACTION"])
def test_two_processes_on_a_gpu_share_its_memory_unless_the_study_says_how(run_replay: Run, own: str) -> None:
    spec = replay_study(study={"device": {"platform": "cuda"}, "baseline": {own: "0.3"} if own else {}})
    launcher = Noting(spec)
    _, store, _ = run_replay(spec, trials=1, launcher=launcher)
    shares = {s.get("XLA_CLIENT_MEM_FRACTION") for s, _ in launcher.started[:3]}
    assert shares == {"": {"0.45"}, "XLA_CLIENT_MEM_FRACTION": {"0.3"}}.get(own, {None})
    assert "XLA_CLIENT_MEM_FRACTION" not in store.of(TrialResult)[0].settings


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
    """A worker whose every step takes the same time; tells a diary when it runs."""

    def __init__(self, diary: list[str], name: str) -> None:
        self.report, self._diary, self._name = worker_report(), diary, name

    def run_block(self, steps: int) -> tuple[float, ...]:
        self._diary.append(self._name)
        return (0.1,) * steps

    def close(self) -> None:
        return


def interleaved(count: int, seed: int = 0) -> tuple[list[Pair], list[str]]:
    """Pairs of blocks of two equal workers, and who ran in which order."""
    diary: list[str] = []
    pairs, _ = interleaved_pairs(Clockwork(diary, "r"), Clockwork(diary, "c"), fixed(count).stop, seed=seed)
    return pairs, diary


def test_the_reference_has_done_its_blocks_where_the_candidate_died_in_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    diary: list[str] = []
    candidate = Clockwork(diary, "c")
    failure = Failure(kind=FailureKind.CRASH, message="gone", phase="step")

    def run_block(steps: int) -> tuple[float, ...]:
        if diary.count("c") == 2 and diary[-1] == "r":
            raise WorkerFailed(failure)
        return Clockwork.run_block(candidate, steps)

    monkeypatch.setattr(candidate, "run_block", run_block)
    traces: list[LossTrace] = []
    with pytest.raises(WorkerFailed):
        interleaved_pairs(Clockwork(diary, "r"), candidate, fixed(99).stop, steps=3, traces=traces)
    assert traces[0].done - first_step(replay_study()) == 3 * diary.count("r")
    assert traces[1].done - first_step(replay_study()) == 3 * diary.count("c")


@pytest.mark.parametrize(("step_s", "steps"), [(0.001, 50), (0.0167, 3), (0.013, 4), (10, 3), (0, LONGEST_BLOCK_STEPS)])
def test_a_block_is_long_against_the_timer(step_s: float, steps: int) -> None:
    assert CPU_SIZES.steps(step_s) == steps


def test_every_pair_has_one_block_of_each_in_an_order_that_the_seed_gives() -> None:
    pairs, diary = interleaved(23)
    assert len(pairs) == 23
    told = "".join("rc" if p.first is Arm.REFERENCE else "cr" for p in pairs)
    assert told == "".join(diary)
    assert {p.first for p in pairs} == {Arm.REFERENCE, Arm.CANDIDATE}
    one, two, other = (interleaved(31, seed)[1] for seed in (5, 5, 6))
    assert one == two
    assert one != other
    pair = Pair(index=0, first=Arm.REFERENCE, reference_s=(1.0, 3.0), candidate_s=(0.5, 0.5), at_s=0)
    assert log_ratio(pair) == pytest.approx(math.log(0.25))


def test_a_clear_effect_and_what_cannot_beat_the_incumbent_stop_early() -> None:
    plan = SequentialPlan(cap=40)
    clear = sequential(plan, min_effect=0.005, incumbent=None).stop
    told = [clear([math.log(0.9)] * count) for count in range(1, plan.looks[0] + 1)]
    assert told == [*[None] * (len(told) - 1), "its interval is narrow enough"]
    noisy = [math.log(0.98) + 0.05 * (-1) ** i + 0.001 * i for i in range(plan.looks[0])]
    best = estimate_pairs([math.log(0.8)] * 12)
    isolated = sequential(plan, min_effect=0.005, incumbent=None).stop(noisy)
    against = sequential(plan, min_effect=0.005, incumbent=best).stop(noisy)
    assert isolated is None
    assert "so far" in there(against)


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


def test_a_program_that_compiles_more_beside_the_reference_has_no_name(run_replay: Run) -> None:
    spec = replay_study()

    def compile_more(worker: SimulatedWorker, settings: FlagSet, folder: Path) -> None:
        def compiles(times: Times, done: int) -> None:
            worker.report = worker.report.model_copy(update={"fingerprint": f"after {done}"})

        if settings:
            on_blocks(worker, compiles)

    _, store, _ = run_replay(spec, trials=1, first=(("one", ONE),), launcher=Noting(spec, after=compile_more))
    (result,) = store.of(TrialResult)
    assert result.status is TrialStatus.MEASURED
    assert result.program_key is None


NOISE = {"white_sd": 0.004, "process_sd": 0.004}


def references(launcher: Noting) -> list[Path]:
    """Folders of the processes of the reference that were started."""
    return [folder for settings, folder in launcher.started if not settings]


def failing(spec: StudySpec, at: int, error: BaseException) -> Noting:
    """The reference's process of this number does not start."""

    def before(settings: FlagSet, folder: Path) -> None:
        if not settings and len(references(launcher)) == at:
            raise error

    launcher = Noting(spec, before=before)
    return launcher


def test_one_living_reference_and_several_others(run_replay: Run) -> None:
    spec = replay_study(noise=NOISE, study={"seed": 1})
    launcher = Noting(spec)
    _, store, _ = run_replay(spec, trials=0, launcher=launcher)
    aa_run = store.of(AaRecord)[0]
    assert [f.name for f in references(launcher)] == ["reference", "aa_run", "second-2", "second-3", "second-4"]
    assert aa_run.comparison.pair_count == 32
    assert [p.index for p in store.pairs("aa_run")] == list(range(32))
    raw = [log_ratio(p) for p in store.pairs("aa_run")]
    groups = [raw[i : i + 8] for i in range(0, 32, 8)]
    again = read_aa_noise(groups, pair_s=aa_run.noise.pair_s)
    assert again == aa_run.noise  # all of it follows from the raw pairs
    assert aa_run.noise.degrees == 4
    centres = [np.mean(g) for g in groups]
    assert np.std(centres) > 3 * 0.004 * math.sqrt(2 / 3 / 8)  # they are processes of their own


@pytest.mark.parametrize(
    ("start_s", "step_s", "pairs"),
    [(0.0, 0.1, 4), (0.0, 0.01, 8), (18.0, 0.05, 10), (90.0, 0.1, 20), (30.0, 0.8, 2)],
)
def test_pairs_of_the_aa_run_go_with_the_cost_of_starting(start_s: float, step_s: float, pairs: int) -> None:
    spec = replay_study(start_s=start_s, step_s=step_s)
    launcher = SimulatedLauncher(spec)
    assert aa_pairs(launcher._report([], [], ()), 6) == pairs


def test_a_pair_lasts_until_the_next_one_begins_with_the_batches_that_are_made_between() -> None:
    pair = Pair(index=0, first=Arm.REFERENCE, at_s=0.0, reference_s=(0.1, 0.1), candidate_s=(0.1, 0.1))
    later = [pair.model_copy(update={"index": n, "at_s": 0.9 * n}) for n in range(4)]
    assert pair_duration_s(later[:1]) == pytest.approx(0.4)
    assert pair_duration_s(later) == pytest.approx(0.9)
    assert pair_duration_s([pair, pair]) == pytest.approx(0.4)  # never less than its steps


def test_a_stop_in_the_middle_of_the_aa_run_begins_it_anew(run_replay: Run, tmp_path: Path) -> None:
    spec = replay_study(noise=NOISE, study={"seed": 1})
    with pytest.raises(KeyboardInterrupt):
        run_replay(spec, trials=1, launcher=failing(spec, 4, KeyboardInterrupt()))
    half = (tmp_path / "run" / "aa_run" / "pairs.jsonl").read_text().splitlines()
    assert len(half) == 16  # two processes were done
    _, store, _ = run_replay(spec, trials=1)
    _, untouched, _ = run_replay(spec, trials=1, folder="other")
    assert [p.index for p in store.pairs("aa_run")] == list(range(32))
    whole, anew = (s.of(AaRecord)[0].noise for s in (untouched, store))
    assert (anew.degrees, anew.estimate.pair_count) == (whole.degrees, whole.estimate.pair_count) == (4, 32)
    run_replay(spec, trials=2)
    assert len(store.of(AaRecord)) == 1  # once it is there, it stays


def test_a_second_process_that_dies_does_not_end_the_study(run_replay: Run) -> None:
    spec = replay_study(noise=NOISE, study={"seed": 1})
    _, store, _ = run_replay(spec, trials=0, launcher=failing(spec, 3, failed(FailureKind.CRASH, log="w")))
    assert len(store.of(IncidentRecord)) == 1
    assert [p.index for p in store.pairs("aa_run")] == list(range(32))
    assert store.of(AaRecord)[0].comparison.pair_count == 32


def test_the_losses_of_all_processes_make_the_tolerance(run_replay: Run) -> None:
    spec = replay_study(noise=NOISE, study={"seed": 1})

    def drift(worker: SimulatedWorker, settings: FlagSet, folder: Path) -> None:
        if len(references(launcher)) == 4:  # neither the first nor the last
            losses = tuple(1.001 * x for x in worker.report.losses)
            worker.report = worker.report.model_copy(update={"losses": losses})

    launcher = Noting(spec, after=drift)
    _, store, _ = run_replay(spec, trials=0, launcher=launcher)
    assert store.of(AaRecord)[0].loss_spread.seen(0) == pytest.approx(0.001, rel=0.01)


def test_trials_and_ablations_have_the_spread_in_their_intervals(run_replay: Run) -> None:
    spec = replay_study(effects={"xla_a=1": 0.9, "xla_b=1": 0.95}, noise=NOISE)
    first = (("both", FlagSet({"xla_a": 1, "xla_b": 1})),)
    _, store, _ = run_replay(spec, trials=8, first=first)
    spread = store.of(AaRecord)[0].noise.spread
    assert spread > 0.004
    measured = [r for r in store.of(TrialResult) if r.status is TrialStatus.MEASURED]
    measured += [r for r in store.of(AblationResult) if r.comparison is not None]  # type: ignore[misc]
    assert len(measured) > 4
    for result in measured:
        ratios = [log_ratio(p) for p in store.pairs(there(result.directory))]
        assert there(result.comparison).estimate == widen(SequentialPlan(cap=40).estimate(ratios), spread)


def counted(store: Store) -> set[int]:
    return {r.pair_count for r in store.of(ConfirmRun) if r.failure is None and not r.is_isolated}


def test_a_proof_s_pairs_follow_from_the_aa_run(run_replay: Run) -> None:
    first = (("fast", FlagSet({"xla_a": 1})),)
    _, store, _ = run_replay(replay_study(effects=EFFECTS, noise=NOISE), trials=1, first=first)
    assert counted(store) == {20}  # a formula does not say what starting costs
    told = {"start_s": 4.0, "step_s": 0.1}
    auto = replay_study(effects=EFFECTS, noise=NOISE, **told, study={"confirm": {"processes": 4, "finalists": 1}})
    _, store, _ = run_replay(auto, trials=1, first=first, folder="auto")
    assert counted(store) == {proof_size(store.of(AaRecord)[0].noise)}
    assert 4 <= counted(store).pop() < 20


@given(ratio=st.floats(0.9, 1.1), below=st.floats(0, 0.1), above=st.floats(0, 0.1), spread=st.floats(0, 0.1))
def test_a_wider_interval_drops_no_setting_that_was_kept(
    ratio: float, below: float, above: float, spread: float
) -> None:
    """It may keep one that equal processes would have shown to be useless."""
    found = Estimate(ratio=ratio, low=ratio * math.exp(-below), high=ratio * math.exp(above), level=0.95, pair_count=40)
    figures: dict[str, Any] = {"reference_step_s": 1.0, "candidate_step_s": 1.0, "pair_count": 40, "stopped": ""}
    plain, wide = (
        pays(Comparison(estimate=e, mode="interleaved", **figures), 0.005)[0] for e in (found, widen(found, spread))
    )
    assert wide >= plain


def test_aba_runs_tell_the_spread_of_fresh_runs() -> None:
    noise = noise_of_aba_runs(pairs_of((1, 1.01, 1), (1, 0.99, 1), (1.01, 1.0, 0.99)), start_s=30.0)
    log = math.log
    middles = [log(1.01), log(0.99), -(log(1.01) + log(0.99)) / 2]
    total = sum(m**2 / 1.5 for m in middles) + (log(1.01) - log(0.99)) ** 2 / 2
    assert noise.process_sd == pytest.approx(math.sqrt(total / 6))
    assert (noise.within_sd, noise.degrees, noise.start_s) == (0.0, 6, 30.0)
    assert noise.spread == spread_of(noise.process_sd**2, 6)
    assert noise.pair_s == pytest.approx(6.0, rel=0.02)


def test_the_spread_of_fresh_runs_is_right_on_average() -> None:
    rng = np.random.default_rng(29)
    found = []
    for _ in range(400):
        runs = np.exp(0.01 * rng.standard_normal((3, 3))).tolist()
        found.append((noise_of_aba_runs(pairs_of(*map(tuple, runs)), start_s=0.0).process_sd or 0) ** 2)
    assert np.mean(found) == pytest.approx(1e-4, abs=4 * 1e-4 * math.sqrt(2 / 6 / 400))


MOST = 20
WITHIN_SD, PAIRS = 0.004, 8


def aa_noise_of(rng: np.random.Generator, process_sd: float) -> AaNoise:
    centres = process_sd * (rng.standard_normal((4, 1)) - rng.standard_normal())
    blocks = list(centres + WITHIN_SD * rng.standard_normal((4, PAIRS)))
    return read_aa_noise(blocks, start_s=20.0, pair_s=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("pair_sd", [0.007, 0.018])
def test_the_announced_power_is_held_on_average(pair_sd: float) -> None:
    """A/A runs see the spread through five processes only, so each announces another gain; nine in ten are then found.

    All is of one scale, the effect beyond the smallest one of interest over the spread of pairs, so the chance at each
    announced gain is read from one curve of the shipped rule.
    """
    process_sd = math.sqrt((pair_sd**2 - WITHIN_SD**2 / PAIRS) / 2)
    edge = math.log1p(-0.005)
    distances = np.asarray([0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0])
    curve = [study_power(1 - math.exp(edge - d * pair_sd), pair_sd, most=MOST) for d in distances]
    unit = there(smallest_gain(0.01, most=MOST))
    reach = (edge - math.log1p(-unit)) / 0.01  # beyond the edge, in standard deviations of a pair
    rng, found = np.random.default_rng(23), []
    for _ in range(400):
        noise = aa_noise_of(rng, process_sd)
        announced_sd = math.hypot(math.sqrt(2) * noise.cautious_process_sd(), WITHIN_SD / math.sqrt(PAIRS))
        found.append(np.interp(reach * announced_sd / pair_sd, distances, curve, left=0.0))
    assert np.mean(found) >= 0.90
    plain = [
        np.interp(reach * f.process_sd / process_sd, distances, curve, left=0.0)
        for f in (aa_noise_of(rng, process_sd) for _ in range(200))
    ]
    assert np.mean(plain) < 0.85  # what would be announced without caution


def test_without_times_or_with_too_few_processes_there_is_none(finished: Store) -> None:
    aa_run = finished.of(AaRecord)[0]
    timed = aa_run.model_copy(update={"noise": replace(aa_run.noise, start_s=20.0, pair_s=1.0)})
    many, few = (replay_study(study={"confirm": {"processes": most}}) for most in (MOST, 3))
    assert power_analysis(many, timed) is not None
    assert power_analysis(many, aa_run) is None  # a formula does not say what starting costs
    assert power_analysis(few, timed) is None

"""The A/A run in several fresh processes: what is measured, kept, handed to trials and proofs, and gone on with."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.compare import aa_pairs, noise_of_aba_runs
from autotune.measure.runner import pays
from autotune.model.flags import FlagSet
from autotune.model.measurement import Comparison, FailureKind, log_ratio
from autotune.model.records import AaRecord, AblationResult, ConfirmRun, IncidentRecord, TrialResult, TrialStatus
from autotune.model.spec import StudySpec
from autotune.rundir.store import Store
from autotune.stats.aa_noise import proof_size, read_aa_noise, spread_of
from autotune.stats.estimates import Estimate, SequentialPlan, widen
from harness.simulated_machine import SimulatedLauncher, SimulatedWorker
from tests.runs import Noting, Run, failed, replay_study, there
from tests.study.test_isolated import pairs_of

NOISE = {"white_sd": 0.004, "process_sd": 0.004}
EFFECTS = {"xla_a=1": 0.9}


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


def raw(store: Store) -> list[float]:
    return [log_ratio(p) for p in store.pairs("aa_run")]


def test_one_living_reference_and_several_others(run_replay: Run) -> None:
    spec = replay_study(noise=NOISE, study={"seed": 1})
    launcher = Noting(spec)
    _, store, _ = run_replay(spec, trials=0, launcher=launcher)
    aa_run = store.of(AaRecord)[0]
    assert [f.name for f in references(launcher)] == ["reference", "aa_run", "second-2", "second-3", "second-4"]
    assert aa_run.comparison.pair_count == 32
    assert [p.index for p in store.pairs("aa_run")] == list(range(32))
    groups = [raw(store)[i : i + 8] for i in range(0, 32, 8)]
    again = read_aa_noise(groups, pair_s=aa_run.noise.pair_s)
    assert again == aa_run.noise  # all of it follows from the raw pairs
    assert aa_run.noise.degrees == 4
    centres = [np.mean(g) for g in groups]
    assert np.std(centres) > 3 * 0.004 * math.sqrt(2 / 3 / 8)  # they are processes of their own


@pytest.mark.parametrize(("start_s", "step_s", "pairs"), [(0.0, 0.1, 8), (18.0, 0.05, 10), (90.0, 0.1, 20)])
def test_pairs_of_the_aa_run_go_with_the_cost_of_starting(start_s: float, step_s: float, pairs: int) -> None:
    spec = replay_study(start_s=start_s, step_s=step_s)
    launcher = SimulatedLauncher(spec)
    assert aa_pairs(launcher._report([], [], ()), 6) == pairs


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
    assert store.of(AaRecord)[0].loss_tolerance == pytest.approx(0.001, rel=0.01)


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
    estimate = Estimate(
        ratio=ratio, low=ratio * math.exp(-below), high=ratio * math.exp(above), level=0.95, pair_count=40
    )
    figures: dict[str, Any] = {"reference_step_s": 1.0, "candidate_step_s": 1.0, "pair_count": 40, "stopped": ""}
    plain, wide = (
        pays(Comparison(estimate=e, mode="interleaved", **figures), 0.005)[0]
        for e in (estimate, widen(estimate, spread))
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
        found.append((noise_of_aba_runs(pairs_of(*map(tuple, runs))).process_sd or 0) ** 2)
    assert np.mean(found) == pytest.approx(1e-4, abs=4 * 1e-4 * math.sqrt(2 / 6 / 400))

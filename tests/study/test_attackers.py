"""Sets that look faster for as long as a proof looks, and must not be named; honest gains beside them still are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from autotune.model.flags import FlagSet
from autotune.model.measurement import FailureKind
from autotune.model.records import AaRecord, ConclusionRecord, ConfirmRun, FinalistResult, Outcome, SoakRecord
from autotune.results.winner import disagreements
from autotune.rundir.store import Store
from autotune.settings.space import SearchSpace
from tests.runs import Noting, Run, replay_study, there

NOTHING = SearchSpace(())
FIRST = (("planted", FlagSet({"xla_a": "1"})),)
QUIET = {"white_sd": 0.01, "process_sd": 0.003}
"""Steps of 20 ms on a machine whose processes differ by 0.3 %; a soak of 60 s has 3000 of them."""


def seldom(cases: Sequence[Any]) -> list[Any]:
    """All but the first are for the long set."""
    first, *others = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [pytest.param(*first), *(pytest.param(*case, marks=pytest.mark.slow) for case in others)]


def run(run_replay: Run, gain: float, *, seed: int = 0, **how: Any) -> tuple[ConclusionRecord, Store]:
    noise, confirm = {**QUIET, **how.pop("noise", {})}, {"soak": "60s", **how.pop("confirm", {})}
    spec = replay_study(
        effects={"xla_a=1": 1 - gain}, noise=noise, step_s=0.02, study={"seed": seed, "confirm": confirm}, **how
    )
    conclusion, store, _ = run_replay(spec, trials=1, first=FIRST, space=NOTHING, folder=f"run-{seed}")
    return conclusion, store


@pytest.mark.parametrize("gain", [0.02, 0.05, pytest.param(0.08, marks=pytest.mark.slow)])
def test_an_honest_gain_is_named(run_replay: Run, gain: float) -> None:
    conclusion, store = run(run_replay, gain)
    assert conclusion.outcome is Outcome.WINNER, conclusion.sentence
    assert len(store.of(SoakRecord)) == 1
    assert disagreements(store, conclusion) == []


LATE = [  # 8 % faster for 300 steps, then 10 % slower; and others
    (gain, {"late_cost": cost, "late_steps": steps})
    for gain, cost, steps in (
        (0.08, 0.18, 300), (0.05, 0.05, 900), (0.08, 0.10, 300), (0.08, 0.40, 1400), (0.15, 0.16, 600)
    )
]  # fmt: skip


@pytest.mark.parametrize(("gain", "noise"), seldom(LATE))
def test_a_set_that_becomes_slower_in_its_soak_is_not(run_replay: Run, gain: float, noise: dict[str, float]) -> None:
    conclusion, store = run(run_replay, gain, noise=noise)
    assert conclusion.outcome is not Outcome.WINNER
    (record,) = store.of(SoakRecord)
    assert there(record.failure).kind is FailureKind.SLOWER_IN_TOTAL


STALLS = [  # 4.5 s every 45 s: 10 % of all time; and others
    {"candidate_stall_share": 1 / every, "stall_steps": steps}
    for every, steps in ((2250, 225.0), (1000, 100.0), (500, 40.0), (100, 8.0), (1500, 200.0))
]


@pytest.mark.parametrize("noise", seldom(STALLS))
def test_stalls_that_take_the_gain_back_are_seen_in_the_totals(run_replay: Run, noise: dict[str, float]) -> None:
    conclusion, _ = run(run_replay, 0.055, noise=noise, seed=1)
    assert conclusion.outcome is not Outcome.WINNER


@pytest.mark.parametrize("steps", seldom([200, 60, 500]))
def test_a_reference_that_is_slow_in_its_first_steps_makes_no_winner(run_replay: Run, steps: int) -> None:
    conclusion, store = run(run_replay, 0.0, noise={"early_cost": 0.05, "early_steps": steps})
    assert conclusion.outcome is not Outcome.WINNER
    noise = store.of(AaRecord)[0].noise
    if steps < 90:  # the A/A run is as long as that, so those steps are not measured; later ones the soak tells
        assert abs(noise.settle_steps - steps) <= 15
        assert not store.of(SoakRecord)


def test_where_isolated_runs_are_long_the_two_figures_of_a_slow_beginning_contradict(run_replay: Run) -> None:
    noise = {"early_cost": 0.05, "early_steps": 200}
    conclusion, _ = run(run_replay, 0.0, noise=noise, start_s=20.0, confirm={"soak": 0})
    assert conclusion.outcome is not Outcome.WINNER


CLOCKS = [(0.0, 0.9), (0.0, 0.92), (0.02, 0.95), (0.0, 0.97), (0.0, 0.6)]


@pytest.mark.parametrize(("gain", "told"), seldom(CLOCKS))
def test_a_program_whose_clock_runs_slow_is_found_by_ours(run_replay: Run, gain: float, told: float) -> None:
    conclusion, store = run(run_replay, gain, told_effects={"xla_a=1": told}, confirm={"soak": 0})
    assert conclusion.outcome is not Outcome.WINNER
    assert "by the clock of autotune its steps take" in conclusion.sentence
    assert [f.verdict for f in store.of(FinalistResult) if f.veto is not None]


def test_our_clock_finds_nothing_where_steps_are_told_as_they_are(run_replay: Run) -> None:
    _, store = run(run_replay, 0.3, confirm={"soak": 0})
    shares = [r.untold for r in store.of(ConfirmRun)]
    assert shares
    assert all(share is not None and abs(share) < 0.01 for share in shares)


BIASED = [{"idle_cost": 0.01}, {"idle_cost": 0.02, "process_sd": 0.009}, {"memory_cost": 0.015}, {"idle_cost": 0.02}]


@pytest.mark.parametrize("noise", seldom(BIASED))
def test_isolated_runs_that_cannot_tell_are_no_consent(run_replay: Run, noise: dict[str, float]) -> None:
    for seed in range(1, 5):  # 1 of 40 is named by chance, at seed 0; paired blocks alone named 13 to 17 of 20
        conclusion, store = run(run_replay, 0.0, noise=noise, confirm={"soak": 0}, seed=seed)
        isolated = [f for f in store.of(FinalistResult) if f.stage == "isolated"]
        assert conclusion.outcome is not Outcome.WINNER, conclusion.sentence
        assert not any(f.is_passed for f in isolated)


@pytest.mark.slow
@pytest.mark.parametrize("gain", [0.02, 0.03, 0.05, 0.08])
@pytest.mark.parametrize("process_sd", [0.001, 0.002, 0.004, 0.006, 0.009])
def test_honest_gains_are_still_named_on_twenty_machines(run_replay: Run, gain: float, process_sd: float) -> None:
    conclusion, _ = run(run_replay, gain, noise={"process_sd": process_sd, "white_sd": 0.02}, seed=int(1e4 * gain))
    assert conclusion.outcome is Outcome.WINNER, conclusion.sentence


def test_a_coin_decides_who_starts_first_on_a_cpu_too(run_replay: Run) -> None:
    spec = replay_study(effects={"xla_a=1": 0.9}, noise=QUIET, study={"confirm": {"soak": 0, "isolated": 0}})
    launcher = Noting(spec)
    run_replay(spec, trials=1, first=FIRST, space=NOTHING, launcher=launcher)
    of_proof = [folder.name == "reference" for _, folder in launcher.started if "confirm" in folder.parts]
    assert len(of_proof) == 24
    assert set(of_proof[::2]) == {True, False}

"""Budgets hold: a study ends within its time whatever its steps and starts take, and proves what it found.

The clock is simulated (`harness.timed`); the rule is held against studies over a grid of machines.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.measure.context import MeasurementContext
from autotune.measure.durations import RECENT
from autotune.model.block_sizes import CPU_SIZES
from autotune.model.errors import LaunchError
from autotune.model.measurement import FailureKind
from autotune.model.records import (
    AaRecord,
    ConclusionRecord,
    ConfirmRun,
    FinalistResult,
    Outcome,
    SoakRecord,
    TrialResult,
    TrialStatus,
)
from autotune.model.spec import StudySpec
from autotune.model.stop import Stopped
from autotune.stats.estimates import TrialFinding
from autotune.study.budget import TimeLeft, format_timetable
from autotune.study.driver import run_study
from autotune.study.plan import longer_trial_s
from harness.simulated import GivenSetup
from harness.simulated_machine import simulation_of
from harness.timed import SimulatedClock, TimedStudy
from tests.runs import EFFECTS, SPACE, Diary, replay_study, there

MINUTE = 60.0


def study(step_s: float, start_s: float, budget_s: float | None, *, trials: int = 30, **more: Any) -> StudySpec:
    noise = {"white_sd": 0.002, "process_sd": 0.001}
    told = {"step_s": step_s, "start_s": start_s, "effects": EFFECTS, "noise": noise, **more.pop("replay", {})}
    search = {"trials": trials, "time_budget": budget_s, **more.pop("search", {})}
    return replay_study(**told, study={"seed": 2, "device": {"platform": "cuda", "count": 1}, "search": search, **more})


class Ended:
    """A study that has come to its end, or to that of its budget."""

    def __init__(self, spec: StudySpec, *, stops: tuple[float, ...] = (), start_factor: float = 1.0) -> None:
        self.spec = spec
        self.timed = TimedStudy(GivenSetup(given_space=SPACE), start_factor=start_factor)
        self.diary = Diary()
        self.conclusion: ConclusionRecord | None = None
        self.time: TimeLeft | None = None
        for stop_s in stops:
            self.timed.clock.stop_at_s = stop_s
            self.go_on(spec)
        self.timed.clock.stop_at_s = None
        self.go_on(spec)

    def go_on(self, spec: StudySpec) -> None:
        """One more session; what an error ends is not concluded."""
        run = self.timed.session(spec, self.diary)
        try:
            self.conclusion = run_study(run)
        except (Stopped, LaunchError) as error:
            self.diary.note(f"ended by {error!r}")
            return
        self.time = run.time

    def of(self, kind: Any) -> Any:
        return there(self.timed.store).of(kind)

    @property
    def found(self) -> bool:
        """Whether some trial looked promising."""
        least = self.spec.measure.min_effect
        found = [r.finding_at(min_effect=least, provable=None) for r in self.of(TrialResult)]
        return TrialFinding.PROMISING in found

    def said(self, text: str) -> bool:
        return any(text in note for note in self.diary.notes)


def keeps_its_time(ended: Ended, budget_s: float) -> None:
    """The claim: within a tenth of the budget, and no study that could prove a gain fails to."""
    name = str(simulation_of(ended.spec))
    assert ended.timed.clock.now_s <= 1.1 * budget_s, name
    if ended.conclusion is None:  # refused as soon as the reference had started
        assert ended.said("the time budget must hold"), name
        return
    if not there(ended.time).is_enough:
        assert ended.said("too small"), name
    elif ended.found:
        assert ended.conclusion.outcome is Outcome.WINNER, (name, ended.diary.notes)
        assert len(ended.of(SoakRecord)) == 1


STEPS, STARTS, BUDGETS = (
    (0.02, 0.1, 0.25, 0.5, 0.85),
    (5.0, 20.0, 45.0, 90.0),
    (10 * MINUTE, 30 * MINUTE, 60 * MINUTE, 120 * MINUTE),
)
GRID = list(itertools.product(STEPS, STARTS, ("interleaved", "aba"), BUDGETS))
AT_ONCE = [(0.02, 0.0, "auto", 30 * MINUTE), (0.5, 0.0, "auto", 30 * MINUTE)]


@pytest.mark.parametrize(("step_s", "start_s", "mode", "budget_s"), [*AT_ONCE, *GRID[::29]])
def test_a_study_keeps_to_its_budget_and_proves_what_it_found(
    step_s: float, start_s: float, mode: str, budget_s: float
) -> None:
    spec = study(step_s, start_s, budget_s, measure={"mode": mode}, search={"sampler": "random"})
    keeps_its_time(Ended(spec), budget_s)


@pytest.mark.slow
@pytest.mark.parametrize("trials", [4, 60])
@pytest.mark.parametrize("mode", ["interleaved", "aba"])
@pytest.mark.parametrize("start_factor", [1.0, 1.5])
def test_the_whole_grid(mode: str, trials: int, start_factor: float) -> None:
    """Candidates may take half as long again to start as the reference, for they choose kernels.

    The search is at random: how good it is does not matter here, and 320 studies of a model's proposals take long.
    """
    half = slice(int(trials == 4), None, 2)  # each count of trials has its own
    for step_s, start_s, budget_s in list(itertools.product(STEPS, STARTS, BUDGETS))[half]:
        spec = study(step_s, start_s, budget_s, trials=trials, measure={"mode": mode}, search={"sampler": "random"})
        ended = Ended(spec, start_factor=start_factor)
        if start_factor == 1.0:
            keeps_its_time(ended, budget_s)
        else:
            assert ended.timed.clock.now_s <= 1.1 * budget_s, str(simulation_of(spec))


@pytest.mark.parametrize(
    "stops",
    [
        (200.0,),
        pytest.param((500.0, 900.0), marks=pytest.mark.slow),
        pytest.param((2000.0,), marks=pytest.mark.slow),
        pytest.param((2500.0, 2700.0, 2900.0), marks=pytest.mark.gate),
    ],
)
def test_a_study_that_is_stopped_and_goes_on_keeps_to_the_same_budget(stops: tuple[float, ...]) -> None:
    budget_s = 60 * MINUTE
    ended = Ended(study(0.1, 20.0, budget_s), stops=stops)
    keeps_its_time(ended, budget_s)
    assert there(ended.conclusion).outcome is Outcome.WINNER


def test_a_budget_that_is_used_up_ends_the_search_also_in_the_next_session() -> None:
    ended = Ended(study(0.1, 0.0, 90 * MINUTE, trials=500, search={"sampler": "random"}))
    done = len(ended.of(TrialResult))
    assert 0 < done < 60
    assert ended.said(f"ends after {done} of 500")
    ended.go_on(ended.spec)
    assert len(ended.of(TrialResult)) == done


def test_a_budget_that_is_too_small_for_a_proof_names_the_best_set_and_a_larger_one_proves_it() -> None:
    small = study(0.25, 45.0, 30 * MINUTE)
    ended = Ended(small)
    first = next(i for i, note in enumerate(ended.diary.notes) if "too small for a proof here" in note)
    assert "search ends" not in "".join(ended.diary.notes[:first])
    concluded = there(ended.conclusion)
    assert ended.of(TrialResult), "a budget never ends with nothing"
    assert not ended.of(ConfirmRun)
    assert "unproven: xla_" in concluded.sentence
    needed_s = there(concluded.needed_s)
    assert needed_s > 30 * MINUTE
    ended.go_on(study(0.25, 45.0, ended.timed.clock.now_s + needed_s, trials=len(ended.of(TrialResult))))
    assert there(ended.conclusion).outcome is Outcome.WINNER
    assert len(ended.of(AaRecord)) == 1


@pytest.mark.parametrize("mode", ["interleaved", "aba"])
def test_a_budget_that_the_aa_noise_uses_up_is_refused_when_the_reference_has_started(mode: str) -> None:
    ended = Ended(study(0.25, 90.0, 5 * MINUTE, measure={"mode": mode}))
    assert ended.conclusion is None
    assert ended.said("at least")
    assert ended.timed.clock.now_s == 90.0  # one start, and no more


@pytest.mark.parametrize("mode", ["interleaved", "aba"])
@pytest.mark.parametrize(("start_factor", "budget_s"), [(1.0, 8 * MINUTE), (3.0, 3 * MINUTE)])
def test_minutes_are_minutes_even_if_later_starts_are_dearer(mode: str, start_factor: float, budget_s: float) -> None:
    for start_s in (2.0, 6.0):
        spec = study(0.1, start_s, budget_s, measure={"mode": mode}, search={"sampler": "random"})
        ended = Ended(spec, start_factor=start_factor)
        assert ended.timed.clock.now_s <= 1.05 * budget_s, ended.diary.notes
        assert ended.conclusion is not None or ended.said("at least")


def test_an_aa_run_that_takes_longer_than_planned_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine under load 20 the A/A run of a budget of 4 minutes took 6, for warm-up steps were quick."""
    monkeypatch.setattr("autotune.measure.compare.aa_pairs", lambda *_: 40)
    monkeypatch.setattr("autotune.measure.compare.refuse_short_budget", lambda *_, **__: None)
    clock = SimulatedClock()
    monkeypatch.setattr("harness.timed.SimulatedClock", lambda: clock)
    monkeypatch.setattr(MeasurementContext, "now_s", property(lambda _: clock.now_s))
    pairs_of = {}
    for budget_s in (10 * MINUTE, 1000 * MINUTE):
        clock.__init__()  # type: ignore[misc]  # a study of its own
        ended = Ended(study(0.85, 5.0, budget_s, trials=1, measure={"mode": "interleaved"}))
        (aa_run,) = ended.of(AaRecord)
        pairs_of[budget_s] = aa_run.comparison.pair_count
        assert aa_run.at_s < 0.3 * budget_s
    assert pairs_of[10 * MINUTE] < 40 < pairs_of[1000 * MINUTE] == 160


def test_a_trial_is_expected_to_take_what_the_last_ones_took() -> None:
    def took(duration_s: float, status: str = "measured") -> Any:
        return SimpleNamespace(duration_s=duration_s, status=TrialStatus(status))

    assert longer_trial_s(20.0, []) == 20.0
    assert longer_trial_s(20.0, [took(50.0), took(40.0), took(3.0, "same_program")]) == 40.0
    assert longer_trial_s(20.0, [took(5.0)]) == 20.0
    assert longer_trial_s(20.0, [took(5.0)] + [took(60.0)] * RECENT) == 60.0, "as the machine is now"


def test_hanging_sets_do_not_use_up_the_time_of_the_proof() -> None:
    """Their search for a cause costs whole time limits, so it is left out where proofs need the time."""
    hang = {"xla_b=2": FailureKind.HANG, "xla_c=1": FailureKind.CRASH}
    ended = Ended(study(0.25, 20.0, 60 * MINUTE, replay={"failures": hang}))
    keeps_its_time(ended, 60 * MINUTE)


def test_the_split_is_told_before_the_search() -> None:
    ended = Ended(study(0.25, 20.0, 60 * MINUTE))
    time = there(ended.time)
    assert format_timetable(time) in ended.diary.notes[:2]
    assert 0 < time.reserved_s < time.budget_s - time.used_s
    assert len(ended.of(TrialResult)) <= time.trials


def test_without_a_budget_nothing_is_split() -> None:
    ended = Ended(study(0.25, 20.0, None, trials=12))
    assert not there(ended.time).has_budget
    assert not ended.said("budget")
    assert len(ended.of(FinalistResult)) > 1


def test_the_search_as_it_was_spends_the_time_of_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule that would break: who keeps nothing back ends late or proves nothing."""
    monkeypatch.setattr(TimeLeft, "still_kept_s", 0.0)
    monkeypatch.setattr(TimeLeft, "least_s", 0.0)
    ended = Ended(study(0.25, 20.0, 30 * MINUTE, trials=60, search={"sampler": "random"}))
    assert ended.found
    assert there(ended.conclusion).outcome is not Outcome.WINNER


@pytest.mark.gate
def test_what_a_proof_of_nothing_leaves_goes_back_to_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a noisy machine without any effect trials look promising, and do not hold: the search goes on."""
    noisy = {"effects": {}, "noise": {"white_sd": 0.02, "process_sd": 0.006}}
    monkeypatch.setattr("autotune.model.spec.GPU_SIZES", CPU_SIZES)
    spec = study(0.05, 40.0, 60 * MINUTE, trials=200, replay=noisy, search={"sampler": "random"})
    ended = Ended(spec)
    assert ended.timed.clock.now_s <= 64 * MINUTE
    stages = ended.diary.stages
    if "confirm" in stages:
        assert "search" in stages[stages.index("confirm") :]
    before = ended.conclusion
    ended.go_on(spec)
    assert there(ended.conclusion).sentence == there(before).sentence


def test_where_what_follows_cannot_fit_any_more_the_time_is_the_finalist_s() -> None:
    """Candidates that take half as long again to start: the first pair tells that a whole proof will not fit."""
    ended = Ended(study(0.02, 45.0, 42 * MINUTE, trials=4, measure={"mode": "interleaved"}), start_factor=1.5)
    finalist, isolated = ended.of(FinalistResult)
    assert finalist.is_passed
    assert isolated.stage == "isolated"
    assert not isolated.is_passed, "isolated runs that there was no time for are no consent"
    assert "no time" in there(ended.conclusion).sentence
    ended.go_on(study(0.02, 45.0, 120 * MINUTE, trials=4, measure={"mode": "interleaved"}))
    assert there(ended.conclusion).outcome is Outcome.WINNER


def test_what_there_was_no_time_to_prove_leaves_a_study_inconclusive() -> None:
    """Processes differ as much as effects, every setting costs time, and the budget holds no proof of what is left."""
    replay = {"noise": {"white_sd": 0.002, "process_sd": 0.015}, "effects": dict.fromkeys(EFFECTS, 1.02)}
    ended = Ended(study(0.02, 20.0, 34 * MINUTE, measure={"mode": "interleaved"}, replay=replay))
    assert ended.of(FinalistResult)
    assert there(ended.conclusion).outcome is Outcome.INCONCLUSIVE
    assert "ruled out (xla_" in there(ended.conclusion).sentence


@pytest.mark.parametrize(("mode", "seed"), [("interleaved", 2), ("aba", 3)])
def test_a_study_without_a_winner_ends_when_no_trial_and_proof_fit_any_more(mode: str, seed: int) -> None:
    """No trial may gain, so there is no proof to keep time for; or the proof of the first of two is soon settled."""
    replay = {"effects": dict.fromkeys(EFFECTS, 1.1)}
    spec = study(0.1, 5.0, 14 * MINUTE, trials=500, replay=replay, measure={"mode": mode}, search={"sampler": "random"})
    spec = spec.model_copy(update={"seed": seed})
    ended = Ended(spec)
    time, before = there(ended.time), there(ended.conclusion)
    assert before.outcome is Outcome.NOTHING_BEATS_THE_DEFAULT
    assert 14 * MINUTE - ended.timed.clock.now_s < time.least_s + 1.5 * time.takes.trial_s
    ended.go_on(spec)
    assert there(ended.conclusion).sentence == before.sentence


def test_time_kept_for_a_proof_that_exists_is_free_for_more_trials() -> None:
    spec = study(0.1, 20.0, 40 * MINUTE, trials=4, search={"sampler": "random"})
    ended = Ended(spec)
    assert there(ended.conclusion).outcome is Outcome.WINNER
    used_s = ended.timed.clock.now_s
    budget_s = used_s + there(ended.time).reserved_s
    ended.go_on(study(0.1, 20.0, budget_s, trials=6, search={"sampler": "random"}))
    assert len(ended.of(TrialResult)) == 6
    assert there(ended.conclusion).outcome is Outcome.WINNER
    assert ended.timed.clock.now_s <= 1.1 * budget_s

"""Several workloads: who wins on one and loses on another is no winner, on simulated machines."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.model.errors import AutotuneError, LaunchError
from autotune.model.flags import FlagSet
from autotune.model.proofs import is_faster_together, next_bound
from autotune.model.records import AaRecord, ConclusionRecord, ConfirmRun, FinalistResult, Outcome, TrialResult
from autotune.results.export import ExportFormat, parse_winner, render_winner
from autotune.results.report import render_markdown
from autotune.results.winner import doubts, winner_of
from autotune.rundir.fsck import check_run
from autotune.rundir.store import Store
from autotune.settings.space import SearchSpace
from autotune.stats.estimates import Estimate
from autotune.study.recheck import recheck_study, recheck_winner
from autotune.study.run import StudyRun
from autotune.study.stages import run_study
from autotune.workers.base import Launcher
from harness.simulated import GivenSetup, given_run
from harness.simulated_machine import SimulatedLauncher, Simulation
from harness.timed import SharedClock, SimulatedClock, TimedLauncher
from tests.runs import SPACE, Diary, replay_study, rewrite, there


@dataclass(frozen=True, kw_only=True)
class Workloads(GivenSetup):
    """A machine on which the workload with `batch` 16 takes other step times."""

    large: Simulation
    clock: SimulatedClock | None = None

    def launcher(self, store: Store) -> Launcher:
        machine = self.large if store.spec.workload.options["batch"] == 16 else None
        if self.clock is not None:
            return TimedLauncher(store.spec, self.clock, simulation=machine)
        return SimulatedLauncher(store.spec, machine)


def session(path: Path, small: Any, large: Any, **more: Any) -> StudyRun:
    """A study over two workloads, given what settings do to the step time of each."""
    start_s = more.pop("start_s", 0.0)
    noise, failures = more.pop("noise", "quiet"), more.pop("failures", {})
    machine = Simulation(effects=large, noise=noise, failures=failures, start_s=start_s)
    study = {
        "workload": {"entry": "llama", "options": {"batch": 4}},
        "also": [{"name": "large", "options": {"batch": 16}}],
        "search": {"trials": len(small), **more.pop("search", {})},
        "seed": more.pop("seed", 0),
    }
    first = tuple((name, FlagSet({name.partition("=")[0]: 1})) for name in small)
    space, clock = more.pop("space", SearchSpace(())), more.pop("clock", None)
    study["confirm"] = {"soak": 0.5, **more}
    setup = Workloads(given_space=space, first=first, large=machine, clock=clock)
    return given_run(replay_study(effects=small, noise="quiet", start_s=start_s, study=study), path, setup, Diary())


def conclude(path: Path, small: Any, large: Any, **more: Any) -> tuple[ConclusionRecord, Store]:
    run = session(path, small, large, **more)
    return run_study(run), run.store


def test_a_set_that_is_faster_on_both_wins_and_each_ratio_is_named(tmp_path: Path) -> None:
    found, store = conclude(tmp_path / "run", {"xla_a=1": 0.96}, {"xla_a=1": 0.94})
    large = there(found.further)["large"]
    assert large.low <= 0.94 <= large.high
    assert doubts(store) == []
    mean = math.sqrt(there(found.estimate).ratio * large.ratio)
    winner = winner_of(store)
    exports = [render_winner(winner, form) for form in ExportFormat]
    for text in (found.sentence, render_markdown(store), *exports):
        assert f"on the further workload large: ratio {large.ratio:.3f}" in text
        assert f"geometric mean over the 2 workloads: ratio {mean:.3f}" in text
    assert {parse_winner(text, source="file") == winner for text in exports} == {True}
    with pytest.raises(AutotuneError, match="export its study"):
        winner_of(Store.open(store.path / "also" / "large"))  # it may be no faster there


@pytest.mark.parametrize(("large", "is_winner"), [(1.05, False), (1.008, False), (1.0, True)])
def test_whatever_it_gains_on_one_a_set_that_is_slower_on_another_is_never_exported(
    tmp_path: Path, large: float, is_winner: bool
) -> None:
    found, _ = conclude(tmp_path / "run", {"xla_a=1": 0.9}, {"xla_a=1": large})
    assert found.outcome is (Outcome.WINNER if is_winner else Outcome.NOTHING_BEATS_THE_DEFAULT), found.sentence
    assert "on the further workload large" in found.sentence
    assert is_winner or not found.settings  # and so no export


def test_what_is_not_settled_is_no_consent_and_more_pairs_settle_it(tmp_path: Path) -> None:
    noise = {"white_sd": 0.004, "process_sd": 0.006}
    for processes, outcome in ((6, Outcome.INCONCLUSIVE), (100, Outcome.WINNER)):
        sizes = {"processes": processes, "isolated": processes}
        found, store = conclude(tmp_path / "run", {"xla_a=1": 0.9}, {"xla_a=1": 1.0}, noise=noise, seed=1, **sizes)
        assert found.outcome is outcome, found.sentence
        assert doubts(store) == []


def test_where_the_best_set_loses_the_next_is_proven_and_a_second_session_measures_nothing(tmp_path: Path) -> None:
    found, counts = list[ConclusionRecord](), list[list[int]]()
    for _ in range(2):
        effects = {"xla_a=1": 0.90, "xla_b=1": 0.96}, {"xla_a=1": 1.05, "xla_b=1": 0.97}
        conclusion, store = conclude(tmp_path / "run", *effects)
        found.append(conclusion)
        stores = [store, Store.open(store.path / "also" / "large")]
        counts.append([len(s.of(kind)) for s in stores for kind in (AaRecord, ConfirmRun)])
        assert doubts(store) == []
    assert found[0].settings == FlagSet({"xla_b": 1}), found[0].sentence
    assert (found[0].sentence, counts[0]) == (found[1].sentence, counts[1])


FAILS = {"failures": {"xla_a=1": "out_of_memory"}}


@pytest.mark.parametrize(("large", "more"), [(1.05, {}), (1.05, {"finalists": 1}), (0.9, {"finalists": 1, **FAILS})])
def test_a_finalist_that_loses_a_trial_elsewhere_is_not_proven_and_a_killed_study_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: float, more: dict[str, Any]
) -> None:
    study = tmp_path / "run", {"xla_a=1": 0.90, "xla_b=1": 0.96}, {"xla_a=1": large, "xla_b=1": 0.97}
    start = SimulatedLauncher.start

    def die(self: Any, settings: FlagSet, folder: Path, **rest: Any) -> Any:
        if folder.match("also/large/trials/0002"):
            raise KeyboardInterrupt
        return start(self, settings, folder, **rest)

    monkeypatch.setattr(SimulatedLauncher, "start", die)
    with pytest.raises(KeyboardInterrupt):
        conclude(*study, **more)
    monkeypatch.undo()
    found, store = conclude(*study, **more)
    assert found.settings == FlagSet({"xla_b": 1}), found.sentence
    assert "xla_a=1 looked faster but in a trial on the further workload large: " in found.sentence
    both = [store, Store.open(store.path / "also" / "large")]
    assert [t.settings for t in both[1].of(TrialResult)] == [FlagSet({"xla_a": 1}), FlagSet({"xla_b": 1})]
    assert {r.settings for s in both for r in s.of(ConfirmRun)} == {FlagSet({"xla_b": 1})}
    assert (doubts(store), check_run(store.path).problems) == ([], ())


def test_a_search_leaves_time_for_a_trial_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, search = SharedClock(monkeypatch), {"trials": 100, "time_budget": "40m", "sampler": "random"}
    more = {"clock": clock, "space": SPACE, "search": search, "start_s": 20.0}
    _, store = conclude(tmp_path / "run", {"xla_a=1": 0.9, "xla_b=1": 0.95}, {"xla_a=1": 1.05}, **more)
    assert clock.now_s <= 1.1 * 40 * 60
    assert len(Store.open(store.path / "also" / "large").of(TrialResult)) == 1


@pytest.mark.parametrize(("gain", "passed"), [(0.92, {"xla_b"}), (0.9935, {"xla_a", "xla_b"})])
def test_a_set_that_gains_less_on_the_first_and_more_on_all_wins(tmp_path: Path, gain: float, passed: set[str]) -> None:
    found, store = conclude(tmp_path / "run", {"xla_a=1": 0.9, "xla_b=1": gain}, {"xla_a=1": 0.99, "xla_b=1": 0.85})
    assert found.settings == FlagSet({"xla_b": 1}), found.sentence
    proven = [s.of(FinalistResult) for s in (store, Store.open(store.path / "also" / "large"))]
    assert [{n for f in s for n in f.settings if f.is_passed} for s in proven] == [passed, {"xla_b"}]


@pytest.mark.parametrize(
    ("large", "holds", "said"),
    [
        (0.94, True, "still holds: "),
        (1.05, False, "does not hold any more: "),
        (1.005, False, "is not proven any more: "),
    ],
)
def test_a_recheck_measures_every_workload(tmp_path: Path, large: float, holds: bool, said: str) -> None:
    _, store = conclude(tmp_path / "run", {"xla_a=1": 0.96}, {"xla_a=1": 0.94})
    assert recheck_study(store.path, None)[0].also == store.spec.also
    run = session(tmp_path / "again", {"xla_a=1": 0.96}, {"xla_a=1": large}, soak=0)
    found = recheck_winner(run, winner_of(store))
    assert (found.outcome is Outcome.WINNER, "on the further workload large" in found.sentence) == (holds, True)
    assert f"xla_a=1 {said}" in found.sentence
    assert not holds or winner_of(run.store).further == found.further


def test_a_check_of_a_run_looks_at_further_workloads(tmp_path: Path) -> None:
    _, store = conclude(tmp_path / "run", {"xla_a=1": 0.96}, {"xla_a=1": 0.96})
    file = store.path / "also/large/records.jsonl"
    file.write_bytes(b"rubbish\n" + file.read_bytes())
    assert [(p.file, p.line) for p in check_run(store.path).problems] == [("also/large/records.jsonl", 1)]
    shutil.rmtree(file.parent)
    (problem,) = check_run(store.path).problems
    assert "names a proof in also/large, which is not there" in problem.what


def test_a_workload_that_does_not_run_is_told_before_any_trial(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="on the further workload large: the reference"):
        conclude(tmp_path / "run", {"xla_a=1": 0.9}, {}, failures={"": "out_of_memory"})
    assert Store.open(tmp_path / "run").of(TrialResult) == []


FORGED: dict[str, tuple[str, Any]] = {
    "another figure": ("", lambda records: records[-2]["further"]["large"].update(ratio=0.5)),
    "no figure": ("", lambda records: records[-2].update(further=None)),
    "no proof": ("also/large", lambda records: [r for r in records if r["kind"] != "conclusion"]),
}


@pytest.mark.parametrize(("folder", "change"), FORGED.values(), ids=FORGED)
def test_a_winner_must_follow_from_the_records_of_every_workload(tmp_path: Path, folder: str, change: Any) -> None:
    _, store = conclude(tmp_path / "run", {"xla_a=1": 0.96}, {"xla_a=1": 0.96})
    rewrite(store.path / folder, change)
    with pytest.raises(AutotuneError, match="must follow from the records"):
        winner_of(Store.open(store.path))


def at_most(high: float) -> Estimate:
    return Estimate(ratio=0.99 * high, low=0.98 * high, high=high, level=0.97, pair_count=12)


@given(st.lists(st.floats(0.0, 0.3), min_size=1, max_size=4), st.floats(0.001, 0.1), st.floats(0.5, 0.999))
def test_whoever_keeps_each_bound_keeps_the_rule(gains: list[float], min_effect: float, first: float) -> None:
    proven = [at_most(first * (1.0 - min_effect))]
    for gain in gains:
        bound = next_bound(proven, count=1 + len(gains), min_effect=min_effect)
        assert bound <= 1.0 + min_effect
        proven.append(at_most((1.0 - gain) * bound - 1e-9))
    assert is_faster_together(proven, min_effect=min_effect)
    assert not is_faster_together([*proven, at_most(1.0 + min_effect)], min_effect=min_effect)
    assert not is_faster_together([at_most(1.0)] * len(proven), min_effect=min_effect)

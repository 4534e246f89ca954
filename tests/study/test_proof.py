"""Proofs that go on until they are settled: how they end, how they go on, and what they never do."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from autotune.model.flags import FlagSet
from autotune.model.measurement import FailureKind
from autotune.model.records import (
    AaRecord,
    ConclusionRecord,
    ConfirmRun,
    FinalistResult,
    Outcome,
    ProofRecord,
    SoakRecord,
    TrialResult,
)
from autotune.results.audit import disagreements
from autotune.rundir.store import RECORDS, Store
from autotune.settings.space import SearchSpace
from autotune.stats.estimates import TrialFinding, Verdict
from autotune.stats.proof import ERROR
from autotune.study.budget import TimeLeft
from tests.runs import EFFECTS, Noting, Run, failed, replay_study, rewrite, there
from tests.tables import toml_beside

NOTHING = SearchSpace(())
FAST = FlagSet({"xla_a": "1"})
FIRST = (("planted", FAST),)
NOISY: dict[str, Any] = {"noise": {"white_sd": 0.01, "process_sd": 0.012}}


def study(effect: float, *, processes: int = 20, noise: Any = "quiet", **confirm: Any) -> Any:
    sections = {"confirm": {"processes": processes, "soak": 0, **confirm}}
    return replay_study(effects={"xla_a=1": effect}, noise=noise, study=sections)


def stages(store: Store) -> Counter[str]:
    return Counter(run.stage for run in store.of(ConfirmRun))


def test_a_clear_gain_ends_each_proof_at_its_first_looks(run_replay: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    allows = TimeLeft.allows_pair

    def ask(self: TimeLeft, stage: str, *, is_needed: bool) -> bool:
        asked.append(stage)
        return allows(self, stage, is_needed=is_needed)

    monkeypatch.setattr(TimeLeft, "allows_pair", ask)
    conclusion, store, diary = run_replay(study(0.9), trials=1, first=FIRST, space=NOTHING)
    assert conclusion.outcome is Outcome.WINNER
    assert stages(store) == Counter(confirm=6, isolated=4)
    assert diary.stages.count("confirm") == 2
    assert disagreements(store, conclusion) == []
    assert asked == ["confirm"] * 6 + ["isolated"] * 4  # each pair is held against the time left, the first, too


def test_once_a_set_is_proven_no_worse_one_is_measured_on(run_replay: Run) -> None:
    first = (("best", FlagSet({"xla_a": 1})), ("good", FlagSet({"xla_b": 1})), ("none", FlagSet({"xla_c": 1})))
    spec = replay_study(effects={"xla_a=1": 0.9, "xla_b=1": 0.95, "xla_c=1": 0.99}, noise="quiet")
    conclusion, store, _ = run_replay(spec, trials=3, first=first, space=NOTHING)
    counts = {str(f.settings): f.process_count for f in store.of(FinalistResult) if f.stage == "confirm"}
    assert conclusion.settings == FlagSet({"xla_a": 1})
    assert counts["xla_a=1"] == 6
    assert max(counts.values()) == 6
    assert disagreements(store, conclusion) == []


SETS = (("best", FlagSet({"xla_a": 1})), ("good", FlagSet({"xla_b": 1})))


@pytest.mark.parametrize("stage", ["soak", "isolated"])
def test_where_the_best_set_is_refused_after_its_proof_the_next_one_is_proven(run_replay: Run, stage: str) -> None:
    def fail(settings: FlagSet, folder: Path) -> None:
        if stage in folder.as_posix() and "xla_a" in settings:
            raise failed(FailureKind.CRASH, "it fell")

    spec = replay_study(effects={"xla_a=1": 0.8, "xla_b=1": 0.9}, noise="quiet")
    launcher = Noting(spec, before=fail)
    conclusion, store, _ = run_replay(spec, trials=2, first=SETS, space=NOTHING, launcher=launcher)
    assert (conclusion.outcome, conclusion.settings) == (Outcome.WINNER, SETS[1][1])
    assert disagreements(store, conclusion) == []


@pytest.mark.parametrize(("ratio", "winner"), [(0.8, 0), (0.95, 1)])
def test_a_set_that_a_continued_study_finds_is_proven_if_it_looks_better(
    run_replay: Run, ratio: float, winner: int
) -> None:
    spec = replay_study(effects={"xla_a=1": ratio, "xla_b=1": 0.9}, noise="quiet")
    for trials in (1, 2):
        conclusion, store, _ = run_replay(spec, trials=trials, first=SETS[::-1], space=NOTHING)
    assert conclusion.settings == SETS[winner][1]
    assert len({r.settings for r in store.of(ConfirmRun)}) == 2 - winner
    assert disagreements(store, conclusion) == []


def test_the_plan_of_a_proof_stands_before_its_first_pair(run_replay: Run) -> None:
    sets = ({"xla_a": 1}, {"xla_a": 1, "xla_d": 2}, {"xla_d": 2})
    first = tuple((f"set {i}", FlagSet(s)) for i, s in enumerate(sets))
    _, store, _ = run_replay(replay_study(effects=EFFECTS, noise="quiet"), trials=3, first=first)
    plans: set[tuple[str, FlagSet]] = set()
    for record in store.records():
        if isinstance(record, ProofRecord):
            plans.add((record.stage, record.settings))
        if isinstance(record, ConfirmRun):
            assert (record.stage, record.settings) in plans
    confirm = [p for p in store.of(ProofRecord) if p.stage == "confirm"]
    assert len(confirm) == 1, "the best set held, so that no other is proven"
    assert sum(p.error for p in confirm) < ERROR


def test_proofs_that_fail_one_after_the_other_share_the_error(run_replay: Run) -> None:
    first = tuple((f"set {name}", FlagSet({name: 1})) for name in ("xla_a", "xla_b", "xla_c"))
    spec = replay_study(effects={"xla_a=1": 0.999, "xla_b=1": 0.999, "xla_c=1": 0.999}, noise=NOISY["noise"])
    _, store, _ = run_replay(spec, trials=3, first=first, space=NOTHING)
    plans = [p for p in store.of(ProofRecord) if p.stage == "confirm"]
    assert len(plans) > 1
    assert len({p.error for p in plans}) == 1
    assert sum(p.error for p in plans) < ERROR


def test_a_set_that_does_nothing_ends_before_the_cap_or_is_not_proven_at_all(run_replay: Run) -> None:
    _, store, _ = run_replay(study(0.9999), trials=1, first=FIRST, space=NOTHING)
    for found in store.of(FinalistResult):
        assert found.process_count < 20
        assert not found.is_passed
        assert found.reason
    _, store, _ = run_replay(study(1.0), trials=1, first=FIRST, space=NOTHING)
    assert not store.of(ConfirmRun)


def test_a_larger_cap_goes_on_by_the_first_plan(run_replay: Run) -> None:
    first, store, _ = run_replay(study(0.965, processes=4, noise=NOISY["noise"]), trials=1, first=FIRST, space=NOTHING)
    assert first.outcome is Outcome.INCONCLUSIVE
    plans, ran = store.of(ProofRecord), stages(store)
    assert {p.base for p in plans} == {4}
    assert "`confirm.processes` (now 4)" in first.sentence
    more, store, _ = run_replay(study(0.965, processes=60, noise=NOISY["noise"]), trials=1, first=FIRST, space=NOTHING)
    assert store.of(ProofRecord)[: len(plans)] == plans
    assert sum(stages(store).values()) > sum(ran.values())
    for stage in ("confirm", "isolated"):
        repeats = [r.repeat for r in store.of(ConfirmRun) if r.stage == stage]
        assert repeats == list(range(len(repeats)))  # the pairs of before count, and none was run again
    assert more.outcome is Outcome.WINNER
    assert disagreements(store, more) == []


def test_a_smaller_cap_ends_where_it_stands(run_replay: Run) -> None:
    noise = NOISY["noise"]
    run_replay(study(0.99, processes=12, noise=noise), trials=1, first=FIRST, space=NOTHING)
    _, store, _ = run_replay(study(0.99, processes=6, noise=noise), trials=1, first=FIRST, space=NOTHING)
    assert [p.base for p in store.of(ProofRecord)] == [12]


def test_whoever_was_stopped_anywhere_ends_with_the_same_proof(run_replay: Run, tmp_path: Path) -> None:
    spec = study(0.97, noise=NOISY["noise"])
    whole, _, _ = run_replay(spec, trials=1, first=FIRST, space=NOTHING)
    lines = (tmp_path / "run" / RECORDS).read_text().splitlines(keepends=True)
    kinds = [json.loads(line)["kind"] for line in lines]
    stops = [n + 1 for n, kind in enumerate(kinds) if kind in ("proof", "confirm_run", "finalist")]
    for stop in stops[:: max(1, len(stops) // 5)]:
        file = tmp_path / f"cut-{stop}"
        file.mkdir()
        (file / "study.json").write_text((tmp_path / "run" / "study.json").read_text())
        (file / RECORDS).write_text("".join(lines[:stop]))
        again, store, _ = run_replay(spec, trials=1, first=FIRST, space=NOTHING, folder=file.name)
        counts = [(r.stage, r.repeat) for r in store.of(ConfirmRun)]
        assert len(counts) == len(set(counts))
        assert again.outcome is whole.outcome


def forge(store: Store, change: Any) -> list[str]:
    again = rewrite(store.path, change)
    return disagreements(again, there(again.last(ConclusionRecord)))


def test_a_plan_that_was_edited_or_made_afterwards_is_told(run_replay: Run) -> None:
    def spend_more(lines: list[dict[str, Any]]) -> None:
        for line in lines:
            if line["kind"] == "proof":
                line["error"] = 0.09

    def plan_late(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        plans = [line for line in lines if line["kind"] == "proof"]
        rest = [line for line in lines if line["kind"] != "proof"]
        at = max(n for n, line in enumerate(rest) if line["kind"] == "confirm_run") + 1
        return rest[:at] + plans + rest[at:]

    def forget_what_speaks_against(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [line for line in lines if line.get("stage") != "isolated"]

    for number, (change, words) in enumerate(
        ((spend_more, "may err in"), (plan_late, "had been seen"), (forget_what_speaks_against, "are not recorded"))
    ):
        _, store, _ = run_replay(study(0.9), trials=1, first=FIRST, space=NOTHING, folder=f"run{number}")
        found = forge(store, change)
        assert any(words in line for line in found), found


@pytest.mark.parametrize("machine", ["coupled", "block memory"])
def test_what_only_turns_show_is_no_gain(run_replay: Run, machine: str) -> None:
    spec = study(1.0, noise=machine).model_copy(update={"seed": 1})
    conclusion, store, _ = run_replay(spec, trials=1, first=FIRST, space=NOTHING)
    found = {f.stage: f for f in store.of(FinalistResult)}
    assert found["confirm"].verdict is Verdict.FASTER  # interleaved it is, however often
    assert not found["isolated"].is_passed
    assert conclusion.outcome is not Outcome.WINNER
    assert "isolated, " in conclusion.sentence
    assert 'measure.mode = "aba"' in conclusion.sentence


def test_a_winner_that_stalls_is_reported_with_what_training_gets(run_replay: Run) -> None:
    """A typical step is 30 % faster, one in 40 takes five times as long: 23 % in total."""
    spec = study(0.7, noise="stalls", isolated=0)
    conclusion, store, diary = run_replay(spec, trials=1, first=FIRST, space=NOTHING)
    assert conclusion.outcome is Outcome.WINNER, conclusion.sentence
    assert conclusion.estimate is not None
    assert (diary.stages.count("confirm"), {*stages(store)}) == (1, {"confirm"})  # isolated runs were left out
    assert conclusion.estimate.low < 0.7 < 0.74 < conclusion.estimate.ratio < 0.82 < conclusion.estimate.high
    assert disagreements(store, conclusion) == []


@pytest.mark.gate
def test_a_set_that_one_pair_of_processes_makes_look_slow_is_proven_all_the_same(run_replay: Run) -> None:
    """With processes that differ by 1.8 % one trial in eight says that a set which gains 2 % loses."""
    unlucky = 0
    for seed in range(30):
        spec = study(0.98, noise=NOISY["noise"], processes=4).model_copy(update={"seed": seed})
        _, store, _ = run_replay(spec, trials=1, first=FIRST, space=NOTHING, folder=f"run-{seed}")
        (trial,) = store.of(TrialResult)
        unlucky += trial.finding_at(min_effect=0.005, provable=None) is TrialFinding.OPEN
        assert stages(store).get("confirm", 0) >= 4, trial.status
        if unlucky == 2:
            return
    raise AssertionError("no seed makes the set look slow")


def test_a_set_that_fails_in_any_run_alone_is_no_winner(run_replay: Run) -> None:
    def fail_in_the_third(settings: FlagSet, folder: Path) -> None:
        if "/isolated-" in folder.as_posix() and folder.name.endswith("-02") and "xla_a" in settings:
            raise failed(FailureKind.CRASH, "it fell")

    spec = study(0.9)
    launcher = Noting(spec, before=fail_in_the_third)
    conclusion, store, _ = run_replay(spec, trials=1, first=FIRST, space=NOTHING, launcher=launcher)
    assert conclusion.outcome is not Outcome.WINNER
    assert "it fell" in conclusion.sentence
    assert [f.failure is not None for f in store.of(FinalistResult) if f.stage == "isolated"] == [True]


def test_who_asks_again_until_a_study_names_a_winner_is_told_how_often(run_replay: Run, tmp_path: Path) -> None:
    for number in range(1, 4):
        spec = study(0.9).model_copy(update={"seed": number})
        conclusion, _, _ = run_replay(spec, trials=1, first=FIRST, space=NOTHING, folder=f"run-{number}")
        assert (f"is run {number} of" in conclusion.sentence) == (number > 1)
    other, _, _ = run_replay(study(0.8), trials=1, first=FIRST, space=NOTHING, folder="other", budget_s=1e9)
    assert "is run 4" in other.sentence  # the machine is not part of what a study asks
    (tmp_path / "run-1" / "study.json").write_text("{")
    again, _, _ = run_replay(study(0.9), trials=1, first=FIRST, space=NOTHING, folder="last")
    assert "is run 4 " in again.sentence


QUIET = {"white_sd": 0.01, "process_sd": 0.003}
"""Steps of 20 ms on a machine whose processes differ by 0.3 %; a soak of 60 s has 3000 of them."""


def attacked(run_replay: Run, gain: float, *, seed: int = 0, **how: Any) -> tuple[ConclusionRecord, Store]:
    noise, confirm = {**QUIET, **how.pop("noise", {})}, {"soak": "60s", **how.pop("confirm", {})}
    sections = {"seed": seed, "confirm": confirm}
    spec = replay_study(effects={"xla_a=1": 1 - gain}, noise=noise, step_s=0.02, study=sections, **how)
    conclusion, store, _ = run_replay(spec, trials=1, first=FIRST, space=NOTHING, folder=f"run-{seed}")
    return conclusion, store


@pytest.mark.parametrize("gain", [0.02, 0.05, pytest.param(0.08, marks=pytest.mark.slow)])
def test_an_honest_gain_is_named(run_replay: Run, gain: float) -> None:
    conclusion, store = attacked(run_replay, gain)
    assert conclusion.outcome is Outcome.WINNER, conclusion.sentence
    assert len(store.of(SoakRecord)) == 1
    assert disagreements(store, conclusion) == []


ATTACKS = [
    pytest.param(case, id=f"{kind}: {name}", marks=[pytest.mark.slow] if number else [])
    for kind, cases in toml_beside(__file__, "attackers.toml").items()
    for number, (name, case) in enumerate(cases.items())
]


@pytest.mark.parametrize("case", ATTACKS)
def test_a_set_that_only_looks_faster_is_not_named(run_replay: Run, case: dict[str, Any]) -> None:
    machine = {key: case[key] for key in ("noise", "start_s", "told_effects", "confirm") if key in case}
    for seed in case.get("seeds", [0]):
        conclusion, store = attacked(run_replay, case["gain"], seed=seed, **machine)
        assert conclusion.outcome is not Outcome.WINNER, conclusion.sentence
        assert case.get("says", "") in conclusion.sentence
        finalists, settled = store.of(FinalistResult), store.of(AaRecord)[0].noise.settle_steps
        assert any(f.veto is not None for f in finalists) or not case.get("vetoed")
        assert not any(f.is_passed for f in finalists if f.stage == case.get("refused"))
        assert abs(settled - case.get("settles", settled)) <= 15
        assert not any(r.failure is None and r.unsettled is None for r in store.of(SoakRecord))
        soaks = [r.failure.kind for r in store.of(SoakRecord) if r.failure is not None]
        assert soaks == case.get("soak", soaks)


def test_our_clock_finds_nothing_where_steps_are_told_as_they_are(run_replay: Run) -> None:
    _, store = attacked(run_replay, 0.3, confirm={"soak": 0})
    shares = [r.untold for r in store.of(ConfirmRun)]
    assert shares
    assert all(share is not None and abs(share) < 0.01 for share in shares)


@pytest.mark.slow
@pytest.mark.parametrize("gain", [0.02, 0.03, 0.05, 0.08])
@pytest.mark.parametrize("process_sd", [0.001, 0.002, 0.004, 0.006, 0.009])
def test_honest_gains_are_still_named_on_twenty_machines(run_replay: Run, gain: float, process_sd: float) -> None:
    conclusion, _ = attacked(run_replay, gain, noise={"process_sd": process_sd, "white_sd": 0.02}, seed=int(1e4 * gain))
    assert conclusion.outcome is Outcome.WINNER, conclusion.sentence


def test_a_coin_decides_who_starts_first_on_a_cpu_too(run_replay: Run) -> None:
    spec = replay_study(effects={"xla_a=1": 0.9}, noise=QUIET, study={"confirm": {"soak": 0, "isolated": 0}})
    launcher = Noting(spec)
    run_replay(spec, trials=1, first=FIRST, space=NOTHING, launcher=launcher)
    of_proof = [folder.name == "reference" for _, folder in launcher.started if "confirm" in folder.parts]
    assert len(of_proof) == 12
    assert set(of_proof[::2]) == {True, False}

"""The stage `pgle` from the profile to the exported file, rehearsed with a recorded profile."""

from __future__ import annotations

import random
import statistics
from pathlib import Path
from typing import Any

import pytest

from autotune.measure.runner import NO_GRAPHS
from autotune.model.artefacts import MOST_PACKED, Artefact, digest_of
from autotune.model.flags import PROFILE, FlagSet
from autotune.model.measurement import Failure, FailureKind
from autotune.model.records import AblationResult, ConclusionRecord, ConfirmRun, Outcome, ProfileRecord
from autotune.model.spec import StudySpec
from autotune.results.recompute import disagreements
from autotune.results.winner import winner_of
from autotune.rundir.fsck import check_run
from autotune.rundir.store import Store
from autotune.study import confirm
from autotune.workers.base import Progress, WorkerFailed
from harness.simulated_machine import SimulatedLauncher, SimulatedWorker
from tests.runs import Diary, Run, replay_study

TEXT = 'costs { name: "all-gather-start" cost_us: 2000 }\n'
REFERENCE = f"artefact:{digest_of(TEXT.encode())}"
BARE = FlagSet({"xla_a": "1"})
PROFILED = BARE.merge({PROFILE: REFERENCE})


def study(**replay: Any) -> StudySpec:
    """A study on GPUs that a formula stands for, with a recorded profile of its winner."""
    quick = {"soak": "2s", "finalists": 1, "processes": 4}
    more = {"device": {"platform": "cuda"}, "confirm": quick, **replay.pop("study", {})}
    return replay_study(**{"effects": {"xla_a=1": 0.9}, "profile": TEXT, **replay}, study=more)


def quick(run_replay: Run, spec: StudySpec, **how: Any) -> tuple[ConclusionRecord, Store, Diary]:
    """The study with one trial, of the set that wins."""
    return run_replay(spec, trials=1, first=(("set fast", BARE),), **how)


def test_a_profile_that_pays_is_part_of_the_winner(run_replay: Run) -> None:
    conclusion, store, diary = quick(run_replay, study(profile_effect=0.93))
    (record,) = store.of(ProfileRecord)
    assert record.settings == BARE
    assert record.profile == Artefact.of(PROFILE, TEXT.encode())
    (found,) = [a for a in store.of(AblationResult) if a.left_out == PROFILE]
    assert found.kept
    assert conclusion.outcome is Outcome.WINNER
    assert conclusion.settings == PROFILED
    assert conclusion.estimate is not None
    assert conclusion.estimate.ratio == pytest.approx(0.9 * 0.93, rel=0.01)  # against the default, as every winner
    assert disagreements(store, conclusion) == []
    assert (store.path / "artefacts" / f"{digest_of(TEXT.encode())}.pbtxt").read_text() == TEXT
    assert diary.stages.index("pgle") < diary.stages.index("confirm")
    assert not check_run(store.path).problems
    last = [r.candidate_step_s for r in store.of(ConfirmRun) if r.stage == "confirm" and r.settings == PROFILED]
    assert winner_of(store).step_s == statistics.median(x for x in last if x is not None)


def test_a_profile_that_does_not_pay_is_left_out_and_the_winner_stands(run_replay: Run) -> None:
    conclusion, store, _ = quick(run_replay, study(profile_effect=1.05))
    assert len(store.of(ProfileRecord)) == 1
    (found,) = [a for a in store.of(AblationResult) if a.left_out == PROFILE]
    assert not found.kept
    assert conclusion.settings == BARE


def test_a_profile_that_changes_nothing_is_told_by_the_program(run_replay: Run) -> None:
    conclusion, store, _ = quick(run_replay, study(profile_effect=None))
    (found,) = [a for a in store.of(AblationResult) if a.left_out == PROFILE]
    assert found.reason == "the program is the same without it"
    assert found.comparison is None
    assert conclusion.settings == BARE


class FailingWithProfile(SimulatedLauncher):
    """A machine on which a program with a profile hangs in its soak, or cannot be profiled at all."""

    where = "soak"

    def start(self, settings: FlagSet, folder: Path, *, progress: Progress) -> SimulatedWorker:
        worker = super().start(settings, folder, progress=progress)
        hang = WorkerFailed(Failure(kind=FailureKind.HANG, message="no answer within 120 s", phase="step"))

        def fail(steps: int) -> Any:
            raise hang

        if PROFILE in settings and self.where in folder.parts:
            worker.run_block = fail  # type: ignore[method-assign]
        if self.where == "profile":
            worker.profile = fail  # type: ignore[method-assign]
        if self.where == "nothing":
            worker.profile = lambda steps: b""  # type: ignore[method-assign]
        if self.where == "too large":
            worker.profile = lambda steps: random.Random(1).randbytes(MOST_PACKED)  # type: ignore[method-assign]
        return worker


def launcher_of(spec: StudySpec, where: str) -> SimulatedLauncher:
    launcher = FailingWithProfile(spec)
    launcher.where = where
    return launcher


@pytest.mark.gate
def test_if_the_set_with_its_profile_fails_its_soak_the_set_without_gets_its_chance(run_replay: Run) -> None:
    spec = study(profile_effect=0.93)
    conclusion, store, _ = quick(run_replay, spec, launcher=launcher_of(spec, "soak"))
    assert conclusion.settings == BARE
    assert disagreements(store, conclusion) == []


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("profile", "no answer within"),
        pytest.param("nothing", "the profiler saw no instruction run", marks=pytest.mark.gate),
        pytest.param("too large", "the profile cannot be kept: it must have at most", marks=pytest.mark.gate),
    ],
)
def test_that_it_cannot_be_profiled_is_a_note_and_no_failure(run_replay: Run, where: str, said: str) -> None:
    spec = study(profile_effect=0.93)
    conclusion, store, diary = quick(run_replay, spec, launcher=launcher_of(spec, where))
    assert conclusion.settings == BARE
    (record,) = store.of(ProfileRecord)
    assert record.profile is None
    assert any(note.startswith(f"no profile: {said}") for note in diary.notes)


def test_it_goes_on_where_it_stopped(run_replay: Run) -> None:
    spec = study(profile_effect=0.93)
    first, store, _ = quick(run_replay, spec)
    count = len(store.records())
    again, store, _ = quick(run_replay, spec)
    assert again.settings == first.settings == PROFILED
    assert len(store.of(ProfileRecord)) == 1
    assert [r for r in store.records()[count:] if isinstance(r, ConfirmRun | AblationResult | ConclusionRecord)] == []


def test_kernels_under_a_profiler_run_outside_of_graphs(run_replay: Run) -> None:
    seen: list[tuple[FlagSet, Path]] = []

    class Watched(SimulatedLauncher):
        def start(self, settings: FlagSet, folder: Path, *, progress: Progress) -> SimulatedWorker:
            seen.append((settings, folder))
            return super().start(settings, folder, progress=progress)

    spec = study(profile_effect=0.93)
    quick(run_replay, spec, launcher=Watched(spec))
    (profiled,) = [s for s, folder in seen if folder.parts[-2] == "pgle"]
    assert profiled == BARE.merge(NO_GRAPHS)
    with_profile = {s[PROFILE] for s, _ in seen if PROFILE in s}
    assert {Path(p).read_text() for p in with_profile} == {TEXT}  # a path that leads to it, never the reference


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"device": {"platform": "cpu"}}, "XLA:CPU has no latency hiding scheduler"),
        ({"baseline": {PROFILE: "/own/profile.pbtxt"}}, "the study names a profile itself"),
        ({"confirm": {"pgle": False}}, None),
    ],
)
def test_where_nothing_is_profiled_one_note_says_why(run_replay: Run, more: dict[str, Any], said: str | None) -> None:
    conclusion, store, diary = quick(run_replay, study(profile_effect=0.93, study=more))
    assert conclusion.outcome is Outcome.WINNER
    assert store.of(ProfileRecord) == []
    notes = [note for note in diary.notes if note.startswith("no profile")]
    assert len(notes) == (said is not None)
    assert said is None or said in notes[0]


@pytest.mark.gate
def test_what_a_screen_says_of_a_set_whose_profile_it_lacks_is_not_believed(
    run_replay: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confirm, "is_same_program", lambda run, one, other: True)  # XLA passes over a missing file
    conclusion, _, _ = quick(run_replay, study(profile_effect=0.93))
    assert conclusion.settings == PROFILED

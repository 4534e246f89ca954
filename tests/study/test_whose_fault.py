"""Which arm ended decides whose fault it is; what is tried again is bounded, recorded, and the study goes on.

What crashes or hangs is narrowed down to its smallest part, which no later trial holds.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autotune.measure.context import REFERENCE_RESTARTS
from autotune.measure.failing import MOST_STARTS, contains_failing
from autotune.measure.runner import MOST_LOST_IN_A_ROW
from autotune.model.errors import LaunchError, StoppedError
from autotune.model.flags import FlagSet
from autotune.model.measurement import FailureKind
from autotune.model.records import (
    ConclusionRecord,
    ConfirmRun,
    FailingSetRecord,
    IncidentRecord,
    SoakRecord,
    TrialResult,
)
from autotune.model.spec import StudySpec
from autotune.settings.shrink import shrink
from autotune.study.proposer import Proposer
from harness.simulated_machine import SimulatedWorker
from tests.runs import SPACE, Noting, Run, Times, failed, on_blocks, replay_study

ANY = "any setting or none"


class Mortal(Noting):
    """Workers that end in a block, as by SIGTERM: those with one setting or any, or references beside such a one."""

    def __init__(self, spec: StudySpec, *, dies: str | None, beside: bool, times: int = 10**9) -> None:
        super().__init__(spec, after=self._doom)
        self._dies, self._beside, self._times = dies, beside, times
        self._now: FlagSet = FlagSet()
        self.deaths = 0

    def _doom(self, worker: SimulatedWorker, settings: FlagSet, folder: Path) -> None:
        self._now = settings or self._now

        def die(times: Times, done: int) -> None:
            is_meant = bool(self._now) if self._dies is None else self._dies in (ANY, *self._now)
            if is_meant and (not settings) is self._beside and self.deaths < self._times:
                self.deaths += 1
                raise failed(FailureKind.LAUNCH, "ended from outside by SIGTERM in phase step", is_outer=True)

        on_blocks(worker, die)


def killed(spec: StudySpec, by: str, *, times: int) -> tuple[Noting, list[str]]:
    """References that a signal ends while they start; and what has ended so."""
    kind, ended = FailureKind.LAUNCH if by == "SIGTERM" else FailureKind.CRASH, list[str]()

    def before(settings: FlagSet, folder: Path) -> None:
        if len(ended) < times and not settings:
            ended.append(by)
            raise failed(kind, f"killed by {by}", phase="compile", signal=by, is_outer=kind is FailureKind.LAUNCH)

    return Noting(spec, before=before), ended


@pytest.mark.parametrize("by", ["SIGKILL", "SIGTERM"])
def test_a_reference_that_is_killed_while_it_starts_is_started_again(run_replay: Run, by: str) -> None:
    spec = replay_study()
    _, store, _ = run_replay(spec, trials=2, launcher=killed(spec, by, times=2)[0])
    assert len(store.of(TrialResult)) == 2
    assert sum("tried again" in i.what for i in store.of(IncidentRecord)) == 2


@pytest.mark.parametrize(("by", "goes_on"), [("SIGKILL", False), ("SIGTERM", True), ("SIGSEGV", False)])
def test_one_that_is_killed_every_time_ends_the_study(run_replay: Run, by: str, goes_on: bool) -> None:
    """Memory may be too small for it: a batch system that started it again for ever would not help."""
    spec = replay_study()
    launcher, ended = killed(spec, by, times=10**9)
    with pytest.raises(LaunchError) as error:
        run_replay(spec, trials=2, launcher=launcher)
    assert isinstance(error.value, StoppedError) is goes_on
    assert len(ended) == (1 if by == "SIGSEGV" else 3)


def test_a_candidate_that_ends_by_sigterm_is_no_fault_of_the_reference(run_replay: Run) -> None:
    spec = replay_study(effects={"xla_b=1": 0.9})
    launcher = Mortal(spec, dies="xla_a", beside=False)
    sets = ({"xla_a": 1}, {"xla_a": 2, "xla_b": 1}, {"xla_b": 1})
    first = tuple((f"set {i}", FlagSet(s)) for i, s in enumerate(sets))
    conclusion, store, _ = run_replay(spec, trials=4, launcher=launcher, first=first)
    assert conclusion.settings == FlagSet({"xla_b": "1"})
    results = store.of(TrialResult)
    assert len(results) == 4
    assert {"xla_a" in r.settings for r in results if r.failure is not None} == {True}
    assert all(r.failure is not None for r in results if "xla_a" in r.settings)
    assert not [i for i in store.of(IncidentRecord) if "reference lost" in i.what]


def test_a_candidate_that_was_ended_once_is_measured_after_all(run_replay: Run) -> None:
    spec = replay_study()
    first = (("ended", FlagSet({"xla_a": 1})), ("and another", FlagSet({"xla_a": 2})))
    launcher = Mortal(spec, dies="xla_a", beside=False, times=2)
    _, store, _ = run_replay(spec, trials=2, launcher=launcher, first=first)
    assert [r.failure for r in store.of(TrialResult)] == [None] * 2
    assert sum("once more" in i.what for i in store.of(IncidentRecord)) == 2


def test_a_set_that_ends_the_reference_beside_it_fails_and_the_study_goes_on(run_replay: Run) -> None:
    spec = replay_study(effects={"xla_b=1": 0.9})
    spec = spec.model_copy(update={"seed": 3})
    launcher = Mortal(spec, dies="xla_d", beside=True, times=2 * (REFERENCE_RESTARTS + 1))
    _, store, _ = run_replay(spec, trials=14, launcher=launcher)
    failed = [r for r in store.of(TrialResult) if r.failure is not None]
    assert len(failed) == 2
    assert all("reference beside" in r.failure.message for r in failed if r.failure)
    assert launcher.deaths == 2 * (REFERENCE_RESTARTS + 1)
    assert len(store.of(ConclusionRecord)) == 1


@pytest.mark.parametrize(("dies", "times"), [(ANY, 1), (None, MOST_LOST_IN_A_ROW)], ids=["in the A/A run", "later"])
def test_a_reference_that_dies_beside_every_set_ends_the_study(run_replay: Run, dies: str | None, times: int) -> None:
    spec = replay_study()
    launcher = Mortal(spec, dies=dies, beside=True)
    with pytest.raises(LaunchError, match=r"alive .*same command"):
        run_replay(spec, trials=30, launcher=launcher)
    assert launcher.deaths == times * (REFERENCE_RESTARTS + 1)


NAMES = tuple(f"xla_{n}" for n in "abcdefg")


@given(
    causes=st.lists(st.frozensets(st.sampled_from(NAMES), min_size=1), min_size=1, max_size=2),
    most=st.integers(0, 2 ** len(NAMES)),
)
@example(causes=[frozenset({"xla_b", "xla_c", "xla_f"})], most=2 ** len(NAMES))
def test_the_cause_is_found_whatever_its_size(causes: list[frozenset[str]], most: int) -> None:
    """Held against every smaller part; when the starts are used up, the part found so far still fails."""
    asked: list[FlagSet] = []

    def fails(part: FlagSet) -> bool | None:
        asked.append(part)
        return any(cause <= set(part) for cause in causes) if len(asked) <= most else None

    found, is_minimal = shrink(FlagSet(dict.fromkeys(NAMES, "1")), fails)
    assert any(cause <= set(found) for cause in causes)
    assert is_minimal == (len(asked) <= most)
    assert not is_minimal or set(found) in causes
    assert len(asked) < 2 ** len(NAMES) / 2


def test_a_set_contains_a_failing_part_only_if_it_holds_all_of_it() -> None:
    bad = [FlagSet({"xla_a": "1", "xla_b": "2"})]
    assert contains_failing(FlagSet({"xla_a": "1", "xla_b": "2", "xla_c": "1"}), bad)
    assert not contains_failing(FlagSet({"xla_a": "1", "xla_b": "1"}), bad)


def test_a_pair_that_crashes_is_found_in_a_study_and_never_proposed_again(run_replay: Run) -> None:
    spec = replay_study(failures={"xla_a=1 xla_b=2": "crash"})
    first = (("named", FlagSet({"xla_a": "1", "xla_b": "2", "xla_c": "1", "xla_d": "1"})),)
    _, store, _ = run_replay(spec, trials=12, first=first)
    (record,) = store.of(FailingSetRecord)
    assert record.smallest == FlagSet({"xla_a": "1", "xla_b": "2"})
    assert record.is_minimal
    assert 0 < record.starts <= MOST_STARTS
    crashed = [r for r in store.of(TrialResult) if r.failure is not None]
    assert [r.origin for r in crashed] == ["named"]


def test_the_cause_is_looked_for_once_also_after_a_restart(run_replay: Run) -> None:
    spec = replay_study(failures={"xla_a=1": "hang"})
    first = (("named", FlagSet({"xla_a": "1", "xla_c": "1"})),)
    run_replay(spec, trials=2, first=first)
    _, store, _ = run_replay(spec, trials=5, first=first)
    assert len(store.of(FailingSetRecord)) == 1


def dying(spec: StudySpec, kind: str, *, times: int, by: str | None = None) -> Noting:
    """Workers with `xla_a` that fail at their first starts."""
    left = [times]

    def before(settings: FlagSet, folder: Path) -> None:
        if "xla_a" in settings and left[0]:
            left[0] -= 1
            raise failed(FailureKind(kind), "it died", signal=by)

    return Noting(spec, before=before)


NAMED = (("named", FlagSet({"xla_a": "1", "xla_c": "1"})),)


@pytest.mark.parametrize(
    ("kind", "by", "times"),
    [
        ("crash", None, 1),
        ("crash", "SIGSEGV", 1),
        ("crash", "SIGSEGV", 2),
        ("crash", "SIGKILL", 2),
        ("hang", None, 2),
        ("compile_error", None, 1),
    ],
)
def test_what_does_not_fail_again_is_measured_and_called_flaky(
    run_replay: Run, kind: str, by: str | None, times: int
) -> None:
    spec = replay_study()
    _, store, _ = run_replay(spec, trials=1, first=NAMED, launcher=dying(spec, kind, times=times, by=by))
    (result,) = store.of(TrialResult)
    assert result.comparison is not None
    assert any("flaky" in warning for warning in result.comparison.warnings)
    assert store.of(FailingSetRecord) == []


@pytest.mark.parametrize(
    ("kind", "by", "starts"),
    [
        ("crash", None, 2),
        ("crash", "SIGSEGV", 3),
        ("crash", "SIGKILL", 3),
        ("hang", None, 3),
        ("compile_error", None, 2),
        ("out_of_memory", None, 1),
    ],
)
def test_a_set_is_started_again_before_it_is_blamed(run_replay: Run, kind: str, by: str | None, starts: int) -> None:
    spec = replay_study()
    launcher = dying(spec, kind, times=10**9, by=by)
    _, store, _ = run_replay(spec, trials=1, first=NAMED, launcher=launcher)
    (result,) = store.of(TrialResult)
    assert result.failure is not None
    assert launcher.sets.count(NAMED[0][1]) == starts


def test_what_ended_from_outside_each_time_is_neither_searched_nor_told_to_the_models(run_replay: Run) -> None:
    spec = replay_study(effects={"xla_b=1": 0.9})
    launcher = Mortal(spec, dies="xla_a", beside=False)
    _, store, _ = run_replay(spec, trials=3, first=NAMED, launcher=launcher)
    (first, *_) = store.of(TrialResult)
    assert first.failure is not None
    assert first.failure.is_from_outside
    assert store.of(FailingSetRecord) == []
    proposer = Proposer(spec, SPACE, first=())
    before = proposer._estimates().record()
    proposer.tell(first)
    assert proposer._estimates().record() == before
    assert first.settings in proposer._seen


def test_out_of_memory_is_nobody_s_crash(run_replay: Run) -> None:
    spec = replay_study(failures={"xla_a=1": "out_of_memory", "xla_a=2": "wrong_loss"})
    _, store, _ = run_replay(spec, trials=12)
    assert store.of(FailingSetRecord) == []


@pytest.mark.parametrize("stage", ["trials", "confirm", "soak"])
def test_the_log_of_a_failure_is_named_relative_to_the_run_in_every_stage(run_replay: Run, stage: str) -> None:
    def before(settings: FlagSet, folder: Path) -> None:
        if settings and stage in folder.parts:
            raise failed(FailureKind.WORKLOAD_ERROR, phase="start", log=str(folder / "worker.log"))

    spec = replay_study(effects={"xla_a=1": 0.9})
    first = (("fast", FlagSet({"xla_a": 1})),)
    _, store, _ = run_replay(spec, trials=1, launcher=Noting(spec, before=before), first=first)
    records: list[TrialResult | ConfirmRun | SoakRecord]
    records = [*store.of(TrialResult), *store.of(ConfirmRun), *store.of(SoakRecord)]
    logs = [record.failure.log for record in records if record.failure is not None]
    assert logs
    assert {str(log).partition("/")[0] for log in logs} == {stage}

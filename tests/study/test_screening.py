"""The screen inside a study: what it takes out, what it never launches, what it shares; and what ends without it.

On a GPU that runs, what the screen calls no-ops is measured once, and returns to the space if it is not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from autotune.compiler.screen import Effect, Screener, ScreenReport
from autotune.compiler.targets import load_target
from autotune.model.errors import LaunchError
from autotune.model.flags import FlagSet
from autotune.model.measurement import FailureKind
from autotune.model.records import AblationResult, ConclusionRecord, ScreenRecord, TrialResult, TrialStatus
from autotune.model.spec import StudySpec, parse_study
from autotune.rundir.store import Store
from autotune.search.additive import EXPECTED, MOST_LIKELY
from autotune.settings.space import Parameter, SearchSpace
from autotune.study import screen as stage
from autotune.study.driver import run_study
from autotune.study.screen import LARGEST_PRIOR, NO_OPS_TOGETHER, StudyScreener, contradicts, is_wanted, priors_of
from harness.simulated import GivenSetup, given_run
from tests.compiler.rules import BUFFER, COMBINE, DECOMPOSE, OVERLAP, P2P, SLOP, TRITON, Deaf, Rules, screen, space
from tests.runs import Diary, Noting, asking, replay_study, there
from tests.tables import toml_beside

CASES = toml_beside(__file__)

SPACE = space()
EFFECTS = {f"{COMBINE}=11": 0.93, f"{BUFFER}=true": 0.5}
INERT = [f"{SLOP}=17", f"{SLOP}=19"]


def study(platform: str = "cuda", **more: Any) -> StudySpec:
    screen = {"enabled": True, "target": "h100-sxm" if platform == "cuda" else None}
    machine = more.pop("simulation", {"effects": EFFECTS, "inert": INERT, "noise": {"white_sd": 1e-4}})
    data = {"device": {"platform": platform, "count": 8}, "screen": screen, "confirm": {"processes": 3}, **more}
    return replay_study(**machine, study=data)


Run = Callable[..., tuple[ConclusionRecord, Store, Diary, Noting]]


@pytest.fixture
def screened(monkeypatch: pytest.MonkeyPatch) -> Callable[[StudySpec, Any], None]:
    """Lets the screen of a simulated study, which has none, compile by rules, and groups before the search."""
    monkeypatch.setattr("autotune.study.screen.spare_processors", lambda *_: 0)

    def screened(spec: StudySpec, rules: Any) -> None:
        monkeypatch.setattr(stage, "open_screener", lambda *_, **__: contextlib.nullcontext((spec, screen(rules))))
        monkeypatch.setattr(stage, "is_wanted", lambda spec: (True, ""))

    return screened


@pytest.fixture
def run(tmp_path: Path, screened: Any) -> Run:
    """Runs a simulated study whose screen compiles by rules."""

    def go(
        spec: StudySpec, rules: Any, *, trials: int = 6, space: SearchSpace = SPACE, **setup: Any
    ) -> tuple[ConclusionRecord, Store, Diary, Noting]:
        screened(spec, rules)
        diary, launcher = Diary(), Noting(spec)
        given = GivenSetup(given_space=space, given_launcher=launcher, **setup)
        study = given_run(asking(spec, trials), tmp_path / "run", given, diary)
        return run_study(study), study.store, diary, launcher

    return go


def test_no_ops_are_never_proposed_and_the_winner_is_found(run: Run) -> None:
    machine = {"effects": {f"{COMBINE}=11": 0.93}, "inert": INERT, "noise": {"white_sd": 1e-4}}
    conclusion, store, diary, launcher = run(study(simulation=machine), Rules())
    assert conclusion.settings == FlagSet({COMBINE: 11})
    assert {s for s in launcher.sets if SLOP in s} == {FlagSet({SLOP: "17"})}  # once, to recheck no-ops
    assert diary.stages[:3] == ["A/A run", "screen", "search"]
    record = there(store.last(ScreenRecord))
    assert record.report is not None
    assert record.target == "h100-sxm"
    assert any(SLOP in note and "no-ops here" in note for note in diary.notes)


def test_set_that_does_not_fit_is_a_failed_trial_that_was_never_launched(run: Run) -> None:
    first = (("set both", FlagSet({BUFFER: "true"})),)
    _, store, _, launcher = run(study(), Rules(), trials=3, first=first)
    failure = there(store.of(TrialResult)[0].failure)
    assert (failure.kind, failure.phase) == (FailureKind.OUT_OF_MEMORY, "screen")
    assert "70 GiB" in failure.message
    assert not any(BUFFER in s for s in launcher.sets)


def test_memory_is_not_believed_where_the_reference_runs_though_it_should_not_fit(run: Run) -> None:
    _, store, diary, launcher = run(study(), Rules(peak_gib=75), trials=2, first=(("a", FlagSet({BUFFER: "true"})),))
    assert store.of(TrialResult)[0].status is TrialStatus.MEASURED
    assert FlagSet({BUFFER: "true"}) in launcher.sets
    assert any("is ignored" in note for note in diary.notes)


def test_equal_programs_share_one_measurement_unless_something_is_read_at_run_time(run: Run) -> None:
    first = (
        ("measured", FlagSet({COMBINE: "11"})),
        ("duplicate", FlagSet({COMBINE: "11", SLOP: "17"})),
        ("default's", FlagSet({SLOP: "19"})),
        ("read later", FlagSet({COMBINE: "11", "NCCL_PROTO": "LL"})),
        ("of the autotuner", FlagSet({COMBINE: "11", "xla_gpu_autotune_level": "0"})),
    )
    _, store, _, launcher = run(study(), Rules(), trials=5, first=first)
    results = store.of(TrialResult)
    assert [r.status for r in results] == [
        TrialStatus.MEASURED,
        TrialStatus.SAME_PROGRAM,
        TrialStatus.SAME_PROGRAM,
        TrialStatus.MEASURED,
        TrialStatus.MEASURED,
    ]
    assert (results[1].same_as, results[2].same_as) == (1, 0)
    assert results[1].comparison == results[0].comparison
    assert results[2].comparison is None
    assert not any(SLOP in s for s in launcher.sets)


def test_a_resumed_study_is_not_screened_again_and_still_shares(run: Run) -> None:
    run(study(), Rules(), trials=1, first=(("measured", FlagSet({COMBINE: "11"})),))
    rules = Rules()
    later = (("duplicate", FlagSet({COMBINE: "11", SLOP: "17"})),)
    _, store, diary, _ = run(study(), rules, trials=2, first=later)
    assert len(store.of(ScreenRecord)) == 2  # alone, then in groups
    assert "screen" not in diary.stages
    asked = {s.without(TRITON) for s in rules.compiled}
    assert asked <= {FlagSet(), FlagSet({COMBINE: "11", SLOP: "17"}), FlagSet({COMBINE: "11"})}
    assert store.of(TrialResult)[1].same_as == 1


def test_a_study_that_goes_on_is_screened_again_where_the_gpu_is_described_otherwise(run: Run) -> None:
    run(study(), Rules(), trials=1)
    rules = Rules()
    with mock.patch("autotune.compiler.targets.installed_versions", return_value={"jax-cuda13-plugin": "1"}):
        rules.job.target = load_target("h100-sxm")
    _, store, _, _ = run(study(), rules, trials=2)
    digests = [there(r.report)["target_digest"] for r in store.of(ScreenRecord)]
    assert digests[0] == digests[1] != digests[2] == digests[3]


class Failing(Rules):
    """A compiler that cannot even do the reference, or breaks at sets with one setting."""

    def __init__(self, error: Exception, at: str = "") -> None:
        super().__init__()
        self.error, self.at = error, at

    def compile(self, sets: Any) -> Iterator[Any]:
        if not self.at or any(self.at in s for s in sets):
            raise self.error
        return super().compile(sets)


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (Deaf(), "no canary does"),  # all are no-ops to it
        (Failing(LaunchError("the plugin is of another version")), "the plugin is of another version"),
        pytest.param(Failing(KeyError("thunk")), "KeyError: 'thunk'", marks=pytest.mark.gate),
    ],
)
def test_a_screen_that_cannot_be_believed_is_a_note_and_the_winner_is_found(run: Run, rules: Rules, said: str) -> None:
    conclusion, store, diary, _ = run(study(), rules)
    assert there(conclusion.settings)[BUFFER] == "true"
    (record,) = store.of(ScreenRecord)
    assert record.report is None
    assert said in record.reason
    assert any("without a screen" in note for note in diary.notes)
    assert not any("no-ops here" in note for note in diary.notes)


@pytest.mark.gate
def test_a_compiler_that_breaks_in_mid_study_costs_a_note(run: Run) -> None:
    later = "xla_gpu_autotune_level"
    first = (("breaks it", FlagSet({later: "0"})), ("next", FlagSet({SLOP: "17"})))
    rules = Failing(RuntimeError("broken pipe"), at=later)
    _, store, diary, launcher = run(study(), rules, trials=3, first=first)
    assert store.of(TrialResult)[0].status is TrialStatus.FAILED or len(launcher.started) > 2
    assert any("broken pipe" in note for note in diary.notes)


def test_what_the_time_does_not_suffice_for_stays_in_the_space(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StudyScreener, "_limit_s", lambda self: 1e-9)
    spec = study(screen={"enabled": True, "target": "h100-sxm"})
    _, store, diary, _ = run(spec, Rules(), trials=1)
    record = there(store.last(ScreenRecord))
    assert set(there(record.report)["skipped"]) >= {COMBINE, BUFFER, SLOP, OVERLAP}
    assert not any("no-ops here" in note for note in diary.notes)
    assert any("6 of 6 settings" in note for note in diary.notes)


@pytest.mark.gate
def test_screen_of_a_cpu_study_uses_the_cpu_executable(run: Run) -> None:
    conclusion, store, _, launcher = run(study("cpu"), Rules(target=None))
    record = there(store.last(ScreenRecord))
    assert record.target == "cpu"
    assert not any(SLOP in s for s in launcher.sets)
    assert there(conclusion.settings)[BUFFER] == "true"  # memory is nobody's concern there


def test_leaving_out_a_setting_that_changes_no_program_is_not_measured(tmp_path: Path, screened: Any) -> None:
    spec = study()
    screened(spec, Rules())
    launcher = Noting(spec)
    setup = GivenSetup(given_space=space(), given_launcher=launcher, read_at_run_time=lambda s: s)
    setup = dataclasses.replace(setup, first=(("both", FlagSet({COMBINE: "11", SLOP: "17"})),))
    made = given_run(asking(spec, 1), tmp_path / "run", setup, Diary())
    conclusion = run_study(made)
    ablations = made.store.of(AblationResult)
    assert conclusion.settings == FlagSet({COMBINE: "11"})
    assert [a.left_out for a in ablations if a.comparison is None] == [SLOP]


TOGETHER = SearchSpace(
    tuple(
        Parameter(name=n, choices=c, default=c[0])
        for n, c in {COMBINE: ("7", "11"), P2P: ("false", "true"), DECOMPOSE: ("9", "0"), SLOP: ("95", "17")}.items()
    )
)
PAIR = FlagSet({P2P: "true", DECOMPOSE: "0"})


class Beside:
    """Holds back the verdicts of groups that are compiled beside the search, until told or waited for."""

    def __init__(self, patch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.released = threading.Event()
        together, settled = Screener.together, StudyScreener.settled

        def held_back(*given: Any, is_over: Callable[[], bool], **more: Any) -> ScreenReport:
            while not self.released.wait(0.01) and not is_over():
                continue
            if error is not None:
                raise error
            return together(*given, is_over=is_over, **more)

        def noticed(opened: StudyScreener, *, wait: bool = False) -> bool:
            is_due = self.released.is_set() or wait
            if wait:
                self.released.set()
            return settled(opened, wait=is_due)

        patch.setattr("autotune.study.screen.spare_processors", lambda *_: 1)
        patch.setattr(Screener, "together", held_back)
        patch.setattr(StudyScreener, "settled", noticed)


def tried_by(run: Run, trials: int, **more: Any) -> tuple[Sequence[TrialResult], Store, Diary]:
    effects = {f"{COMBINE}=11": 0.97, f"{P2P}=true {DECOMPOSE}=0": 0.9}
    spec = study(simulation={"effects": effects, "inert": INERT, "noise": {"white_sd": 1e-4}})
    _, store, diary, _ = run(spec, Rules(), trials=trials, space=TOGETHER, **more)
    return store.of(TrialResult), store, diary


def test_the_search_begins_with_what_acts_alone_and_what_acts_together_joins_as_it_is_found(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Beside(monkeypatch)  # waited for when there is nothing else to try
    results, store, _ = tried_by(run, 8)
    assert [r.settings for r in results[:2]] == [FlagSet({COMBINE: "11"}), FlagSet({SLOP: "17"})]
    assert results[1].origin == NO_OPS_TOGETHER
    assert any(PAIR.merge(r.settings) == r.settings for r in results)
    assert sum(SLOP in r.settings for r in results) == 1
    alone, settled = (ScreenReport.model_validate(r.report) for r in store.of(ScreenRecord))
    assert {s.name for s in alone.of_effect(Effect.ALONE)} == {P2P, DECOMPOSE, SLOP}
    assert [s.name for s in settled.of_effect(Effect.NO_OP)] == [SLOP]


def test_a_study_that_ended_before_its_groups_goes_on_with_them(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = Beside(monkeypatch)
    results, store, _ = tried_by(run, 1)
    assert [r.settings for r in results] == [FlagSet({COMBINE: "11"})]
    assert len(store.of(ScreenRecord)) == 1
    beside.released.set()
    results, store, diary = tried_by(run, 6)
    assert len(store.of(ScreenRecord)) == 2
    assert "screen" not in diary.stages
    assert any(PAIR.merge(r.settings) == r.settings for r in results)


def test_what_no_group_could_settle_is_searched(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Beside(monkeypatch, RuntimeError("the compiler is gone"))
    results, store, diary = tried_by(run, 8)
    assert any("is gone" in note for note in diary.notes)
    assert any(SLOP in r.settings and r.origin != NO_OPS_TOGETHER for r in results)
    assert set(there(there(store.last(ScreenRecord)).report)["skipped"]) == {P2P, DECOMPOSE, SLOP}


@pytest.mark.parametrize(("more", "versions", "on", "said"), CASES["screened"])
def test_studies_are_screened_where_they_ask_for_it(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], versions: dict[str, str], on: bool, said: str
) -> None:
    monkeypatch.setattr(stage, "compiler_versions", lambda: versions)
    is_on, why_not = is_wanted(parse_study({"name": "a", "workload": {"entry": "llama"}, **more}))
    assert is_on is on
    assert said in why_not
    assert bool(said) == bool(why_not)


MERGER = "xla_gpu_dot_merger_threshold_mb"
NO_OPS = FlagSet({SLOP: "17", MERGER: "0"})
DOMAINS = {COMBINE: ("7", "11"), SLOP: ("95", "17", "19"), MERGER: ("64", "0")}
Rechecked = Callable[..., tuple[Sequence[TrialResult], Diary]]


@pytest.fixture
def rechecked(run: Run) -> Rechecked:
    """Runs a simulated study on a GPU on which the screen's no-ops may do what `simulation` says."""

    def go(trials: int, platform: str = "cuda", **simulation: Any) -> tuple[Sequence[TrialResult], Diary]:
        spec = study(platform, simulation={"noise": {"white_sd": 1e-4}, **simulation})
        rules = Rules(target="h100-sxm" if platform == "cuda" else None)
        searched = SearchSpace(tuple(Parameter(name=n, choices=c, default=c[0]) for n, c in DOMAINS.items()))
        _, store, diary, _ = run(spec, rules, trials=trials, space=searched)
        return store.of(TrialResult), diary

    return go


def test_no_ops_that_do_nothing_here_are_tried_together_and_never_again(rechecked: Rechecked) -> None:
    results, diary = rechecked(6)
    assert [(r.settings, r.origin, r.status) for r in results[:2]] == [
        (NO_OPS, NO_OPS_TOGETHER, TrialStatus.MEASURED),
        (NO_OPS.merge({SLOP: "19"}), NO_OPS_TOGETHER, TrialStatus.MEASURED),
    ]
    assert not any(SLOP in r.settings or MERGER in r.settings for r in results[2:])
    assert not any("after all" in note for note in diary.notes)


@pytest.mark.parametrize(
    "simulation",
    [{"effects": {f"{MERGER}=0": 0.9}}, {"effects": {f"{MERGER}=0": 1.1}}, {"failures": {f"{SLOP}=17": "crash"}}],
)
def test_no_op_that_acts_or_fails_here_returns_to_the_space(rechecked: Rechecked, simulation: dict[str, Any]) -> None:
    results, diary = rechecked(8, **simulation)
    assert contradicts(results, min_effect=0.005)
    assert sum("2 settings are" in note for note in diary.notes) == 1
    later = [r for r in results if r.origin != NO_OPS_TOGETHER]
    assert any(SLOP in r.settings for r in later)
    assert any(MERGER in r.settings for r in later)
    # The screen's word for what is equal does not count any more: nothing is a duplicate of a program.
    assert not any(r.status is TrialStatus.SAME_PROGRAM for r in later)


def test_study_that_goes_on_proposes_what_it_would_have_proposed(rechecked: Rechecked, tmp_path: Path) -> None:
    effects = {f"{MERGER}=0": 0.9}
    rechecked(3, effects=effects)
    resumed, _ = rechecked(6, effects=effects)
    (tmp_path / "run").rename(tmp_path / "stopped")
    at_once, _ = rechecked(6, effects=effects)
    assert [(r.settings, r.origin) for r in at_once] == [(r.settings, r.origin) for r in resumed]


def test_where_the_screen_compiled_for_what_runs_there_is_no_doubt(rechecked: Rechecked) -> None:
    results, _ = rechecked(4, platform="cpu")
    assert not any(r.origin == NO_OPS_TOGETHER for r in results)


def reported(settings: list[dict[str, Any]]) -> ScreenReport:
    target: dict[str, Any] = {"target": "h100-sxm", "topology": "1x8", "versions": {}, "limit_bytes": None}
    counts = {"compiled_count": 1, "canary": {}}
    return ScreenReport.model_validate({**target, **counts, "reference": {}, "settings": settings})


def searched(*names: str) -> SearchSpace:
    return SearchSpace(tuple(Parameter(name=n, choices=("0", "1", "2"), default="0") for n in names))


NAMES = tuple(f"xla_unknown_{i}" for i in range(20))


def test_what_nothing_is_known_of_shares_the_expected_number() -> None:
    found = priors_of(searched(*NAMES), None)
    assert sum(found.values()) == pytest.approx(EXPECTED)
    assert max(priors_of(searched(*NAMES[:3]), None).values()) == pytest.approx(MOST_LIKELY)


def test_what_changes_the_program_is_thought_likelier_than_what_does_not() -> None:
    settings = [{"name": name, **told} for name, told in zip(NAMES, CASES["screened_settings"], strict=False)]
    found = priors_of(searched(*NAMES), reported(settings))
    active, together, fails, no_op, measure = (found[n] for n in NAMES[:5])
    assert active > together == measure > fails == no_op > 0
    assert max(found.values()) <= LARGEST_PRIOR

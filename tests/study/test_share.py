"""Memory: who runs out of a shared GPU's is measured alone, and what needs more than the study's limit fails."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from autotune.compiler.screen import ValueReport
from autotune.measure.compare import Interleaved, Isolated
from autotune.measure.context import ReferenceFailed
from autotune.measure.memory import (
    LIMIT_PHASE,
    MemoryShare,
    compiled_failure,
    limit_bytes,
    over_limit,
    refuse_over_limit,
)
from autotune.model.errors import LaunchError
from autotune.model.flags import FlagSet
from autotune.model.measurement import DeviceMemory, FailureKind
from autotune.model.records import (
    AaRecord,
    AblationResult,
    ConclusionRecord,
    ConfirmRun,
    FailingSetRecord,
    IncidentRecord,
    TrialResult,
)
from autotune.model.spec import StudySpec
from autotune.rundir.optuna_study import JOURNAL
from autotune.rundir.store import Store
from autotune.search.sampler import MEMORY_KEY
from autotune.settings.space import Parameter, SearchSpace
from autotune.study.proposer import Proposer, known_memory
from autotune.workers.base import WorkerFailed
from harness.gpu_memory import GpuMemory, OnSharedGpu
from tests.runs import Diary, Run, failed, replay_study, there, worker_report
from tests.tables import toml_beside

CASES = toml_beside(__file__)

EFFECTS = {"xla_a=1": 0.9, "xla_d=2": 0.95}
FIRST = (
    ("best and more", FlagSet({"xla_a": 1, "xla_c": 1, "xla_d": 2})),
    ("best", FlagSet({"xla_a": 1, "xla_d": 2})),
    ("needs little", FlagSet({"xla_d": 2})),
    ("needs much", FlagSet({"xla_a": 2})),
)
SHARE, SHARES = "XLA_CLIENT_MEM_FRACTION", ("0.5", "0.75", "0.95")


def study(**more: Any) -> StudySpec:
    """A study on one GPU of 80 GB, nearly without noise."""
    replay = {"effects": EFFECTS, "noise": {"white_sd": 0.003}, **more.pop("replay", {})}
    return replay_study(**replay, study={"device": {"platform": "cuda"}, **more})


def gib(value: float, **more: float) -> Any:
    """The need of a set: a figure for all, and others for those with a setting."""
    return lambda settings: max([value, *(v for n, v in more.items() if n in settings)])


def modes(store: Any) -> set[str]:
    return {r.comparison.mode for r in store.of(TrialResult) if r.comparison}


@pytest.fixture
def shared(run_replay: Run) -> Callable[..., tuple[ConclusionRecord, Store, Diary, OnSharedGpu]]:
    """Runs a study of which each process takes the memory that it needs."""

    def run(spec: StudySpec | None = None, *, trials: int = 4, first: Any = FIRST, **needs: Any) -> Any:
        launcher = OnSharedGpu(spec or study(), **needs)
        return *run_replay(spec or study(), trials=trials, launcher=launcher, first=first), launcher

    return run


def test_a_reference_that_does_not_fit_into_its_share_runs_alone(shared: Any) -> None:
    conclusion, store, _, launcher = shared(need=gib(53.9))  # 57.9e9 bytes of 80e9
    aa_run = there(store.last(AaRecord))
    assert aa_run.comparison.mode == "aba"
    assert aa_run.loss_spread.steps  # the rounding of the reference ran alone, too
    assert modes(store) == {"aba"}
    assert conclusion.settings == FlagSet({"xla_a": "1", "xla_d": "2"})
    assert launcher.failed == [FlagSet({SHARE: "0.45"})]  # once; then the study knows
    assert [i.what for i in store.of(IncidentRecord) if "do not fit into the device's memory" in i.what]


def test_one_set_that_needs_more_than_its_share_is_tried_beside_another_only_once(shared: Any) -> None:
    conclusion, store, _, launcher = shared(need=gib(20.0, xla_a=50.0))
    assert conclusion.settings == FlagSet({"xla_a": "1", "xla_d": "2"})
    found = {("xla_a" in r.settings, r.comparison.mode) for r in store.of(TrialResult) if r.comparison}
    assert found == {(True, "aba"), (False, "interleaved")}
    refused = [s.without(SHARE) for s in launcher.failed]
    assert len(refused) == len(set(refused))
    proof = [r for r in store.of(ConfirmRun) if r.settings == conclusion.settings]
    assert proof
    assert all(r.is_isolated and r.failure is None for r in proof)
    others = [r for r in store.of(ConfirmRun) if "xla_a" not in r.settings and r.stage == "confirm"]
    assert not any(r.is_isolated for r in others)
    assert {r.comparison.mode for r in store.of(AblationResult) if r.comparison} == {"aba"}
    assert [r.failure for r in store.of(TrialResult)] == [None] * 4


def test_memory_that_runs_out_at_a_later_step_is_no_fault_of_the_set(shared: Any) -> None:
    conclusion, store, _, _ = shared(need=gib(20.0), grown=gib(20.0, xla_a=50.0))
    assert conclusion.settings == FlagSet({"xla_a": "1", "xla_d": "2"})
    first = next(r for r in store.of(TrialResult) if r.settings.get("xla_a") and r.comparison)
    pairs = list(store.pairs(there(first.directory)))  # those of the interleaved blocks before are not among them
    assert [p.index for p in pairs] == list(range(there(first.comparison).pair_count))


def test_rounding_that_needs_more_than_the_share_runs_alone(shared: Any) -> None:
    def need(settings: FlagSet) -> float:
        return 50.0 if "xla_a" not in settings and settings else 20.0  # what changes rounding, and nothing else

    _, store, _, _ = shared(trials=1, need=need)
    aa_run = there(store.last(AaRecord))
    assert aa_run.comparison.mode == "interleaved"
    assert not [i for i in store.of(IncidentRecord) if "rounding" in i.what]


def test_a_cause_is_looked_for_alone_where_parts_of_the_set_need_the_whole_gpu(shared: Any) -> None:
    first = (("crashes", FlagSet({"xla_a": "2", "xla_b": "1", "xla_d": "1"})),)
    crashing = study(replay={"failures": {"xla_b=1": "crash"}})
    _, store, _, _ = shared(crashing, trials=2, first=first, need=gib(53.9))
    failing = store.of(FailingSetRecord)[0]
    assert (failing.smallest, failing.is_minimal) == (FlagSet({"xla_b": "1"}), True)


def test_what_does_not_fit_in_turns_or_alone_ends_the_study_with_advice(shared: Any) -> None:
    with pytest.raises(LaunchError, match=r"measure\.mode"):
        shared(study(measure={"mode": "interleaved"}), need=gib(53.9))
    with pytest.raises(LaunchError, match=r"out_of_memory: .*RESOURCE_EXHAUSTED"):
        shared(need=gib(70.0))


@pytest.mark.parametrize(("environment", "fits"), CASES["own_shares"])
def test_a_program_that_sets_its_share_itself_is_left_to_it(
    shared: Any, environment: Mapping[str, str], fits: bool
) -> None:
    _, store, _, launcher = shared(trials=1, first=(), need=gib(20.0), environment=environment)
    assert modes(store) == {"interleaved" if fits else "aba"}
    told = [i.what for i in store.of(IncidentRecord) if "share of the GPU's memory itself" in i.what]
    is_named = any("FRACTION" in name for name in environment)
    assert len(told) == is_named
    assert sum(SHARE in s for s in launcher.started) == 1 or not is_named


def test_a_share_that_the_study_names_is_not_taken_from_the_program(shared: Any) -> None:
    """What the user asks for must arrive: only our own share gives way."""
    with pytest.raises(LaunchError, match="not_applied"):
        shared(study(baseline={SHARE: "0.4"}), need=gib(20.0), environment={SHARE: "0.9"})


def test_the_fake_gpu_hands_out_memory_as_xla_does(tmp_path: Path) -> None:
    gpu = GpuMemory()
    assert gpu.take("first", {}) == 60 * 10**9
    assert gpu.take("second", {SHARE: "0.45"}) < 20 * 10**9  # nine tenths, again and again, until it fits
    assert gpu.free >= 0
    with pytest.raises(MemoryError, match="RESOURCE_EXHAUSTED"):
        gpu.use("second", 30 * 10**9, 36 * 10**9)
    with pytest.raises(ValueError, match="the latter"):
        gpu.take("third", {SHARE: "0.4", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.4"})


HUNGRY, MODEST = FlagSet({"xla_a": "1"}), FlagSet({"xla_b": "1"})


def limited(limit: str) -> StudySpec:
    return study(limits={"memory": limit})


def test_the_fullest_device_counts() -> None:
    devices = (DeviceMemory(peak_bytes=1 << 30), DeviceMemory(peak_bytes=3 << 30))
    report = worker_report(platform="cuda", device_count=2, peak_bytes=1 << 30, device_memory=devices)
    refuse_over_limit(limited("3GiB"), report)
    with pytest.raises(WorkerFailed, match="needs 3 GiB"):
        refuse_over_limit(limited("2GiB"), report)


def first_run(mode: str, *limits: int | None, peak: int = 10 << 30) -> AaRecord:
    """The A/A run of a reference with some devices."""
    memory = tuple(DeviceMemory(peak_bytes=peak, limit_bytes=limit) for limit in limits)
    reference = worker_report(platform="cuda", device_memory=memory, peak_bytes=peak)
    found: Any = SimpleNamespace(comparison=SimpleNamespace(mode=mode), reference=reference)
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize("case", CASES["bound"], ids=lambda case: case["what"])
def test_a_set_may_need_what_one_process_gets_alone_or_the_study_allows(case: dict[str, Any]) -> None:
    spec = study(**case.get("study", {}))
    limits = [gib and gib << 30 for gib in case["devices_gib"]]
    found = limit_bytes(spec, first_run(case["mode"], *limits), FlagSet(case.get("settings", {})))
    assert found == (round(case["gib"] * (1 << 30)) if "gib" in case else None)


def test_compiled_peaks_are_known_before_the_first_trial() -> None:
    values = [{"value": "1", "peak_bytes": 3 << 30}, {"value": "2"}]
    screened = SimpleNamespace(
        reference=SimpleNamespace(peak_bytes=2 << 30),
        settings=[SimpleNamespace(name="xla_a", values=[ValueReport.model_validate(v) for v in values])],
    )
    report: Any = screened
    none = SearchSpace(())
    known = there(known_memory(limited("40GiB"), none, first_run("aba", None), report))
    assert known.default_bytes == 10 << 30
    assert known.limit == pytest.approx(4)
    assert known.peaks == [(FlagSet({"xla_a": "1"}), 1.5)]
    assert known_memory(study(), none, first_run("aba", None), report) is None  # no bound is known


def test_a_searched_share_of_the_gpu_is_the_limit_of_its_sets() -> None:
    space = SearchSpace((Parameter(name=SHARE, choices=SHARES), Parameter(name="option.batch", choices=("1", "4"))))
    found = there(known_memory(spec := study(), space, first_run("aba", 16 << 30), None))
    assert [peak for _, peak in found.peaks] == pytest.approx([0.75 / 0.5, 1, 0.75 / 0.95])
    known = found._replace(peaks=[*found.peaks, (FlagSet({"option.batch": "4"}), 1.9)])  # of 1.6
    fitted = Proposer(spec, space, first=(), memory=known)._additive(0).fit([])
    sets = [fitted.coded.codes({SHARE: share, "option.batch": "4"}) for share in SHARES]
    fits = fitted.memory.log_chances(fitted.coded.table([there(codes) for codes in sets])) > math.log(0.5)
    assert list(fits) == [False, False, True]


def test_the_search_of_a_study_is_told_the_peaks_of_its_trials(run_replay: Run) -> None:
    """Over the reference's; of a set above the limit, the limit."""
    machine = {"memory_effects": {"xla_a=1": 3.0, "xla_b=1": 1.5}}
    spec = replay_study(**machine, study={"limits": {"memory": "2GiB"}})
    first = (("too much", FlagSet({"xla_a": 1})), ("some", FlagSet({"xla_b": 1})))
    _, store, _ = run_replay(spec, trials=2, first=first)
    opened = JournalStorage(JournalFileBackend(str(store.path / JOURNAL)))
    (summary,) = optuna.get_all_study_summaries(opened)
    trials = optuna.load_study(study_name=summary.study_name, storage=opened).trials
    told = {t.user_attrs["origin"]: t.user_attrs[MEMORY_KEY] for t in trials if MEMORY_KEY in t.user_attrs}
    peak = there(store.of(AaRecord)[0].reference.peak_bytes)
    assert told == pytest.approx({"too much": (2 << 30) / peak, "some": 1.5})


def test_random_sets_that_are_not_expected_to_fit_are_passed_over(run_replay: Run) -> None:
    machine = {"memory_effects": {"xla_a=1": 3.0, "xla_a=2": 3.0}}
    study = {"limits": {"memory": "2GiB"}, "search": {"sampler": "random"}}
    first = tuple(("given", FlagSet({"xla_a": a, "xla_b": b})) for a in (1, 2) for b in (0, 1))
    _, store, _ = run_replay(replay_study(**machine, study=study), trials=14, first=first)
    tried = [r.settings.get("xla_a", "0") for r in store.of(TrialResult)]
    assert tried[:4] == ["1", "1", "2", "2"]
    assert tried[4:] == ["0"] * 10


class OnlySpec:
    """A context in which nothing runs."""

    def __init__(self, spec: StudySpec) -> None:
        self.spec = spec
        self.share = MemoryShare(spec)
        self.incidents: list[str] = []
        self.progress = SimpleNamespace(incident=self.incidents.append)

    def release_reference(self) -> None:
        pass


@pytest.mark.parametrize(
    ("is_reference", "sets", "remembered"),
    [
        (False, (FlagSet(), HUNGRY), HUNGRY),
        (True, (HUNGRY, MODEST), HUNGRY),  # the whole set of an ablation
        (True, (FlagSet(), MODEST), None),  # of the study's reference an incident tells
    ],
)
def test_what_does_not_fit_beside_another_is_tried_alone_and_what_is_over_the_limit_is_not(
    is_reference: bool, sets: tuple[FlagSet, FlagSet], remembered: FlagSet | None
) -> None:
    spec = study(limits={"memory": "1GiB"})
    context = OnlySpec(spec)
    comparer = Interleaved(context)  # type: ignore[arg-type]
    assert comparer.instead(WorkerFailed(there(over_limit(spec, 2 << 30, "measured"))), sets) is None
    error = failed(FailureKind.OUT_OF_MEMORY, "RESOURCE_EXHAUSTED", phase="warm-up")
    assert isinstance(comparer.instead(ReferenceFailed(error) if is_reference else error, sets), Isolated)
    for tried in (HUNGRY, MODEST):
        assert isinstance(comparer.for_sets(FlagSet(), tried), Isolated) == (tried == remembered)
    assert len(context.incidents) == (remembered is None)


def test_a_compiled_program_that_needs_too_much_is_never_launched() -> None:
    memory = SimpleNamespace(peak_bytes=3 << 30)
    screen = SimpleNamespace(
        result=lambda settings: SimpleNamespace(program=SimpleNamespace(memory=memory)),
        limit_bytes=lambda settings: None,
        baseline=FlagSet(),
    )
    assert compiled_failure(limited("3GiB"), screen, HUNGRY) is None  # type: ignore[arg-type]
    failure = there(compiled_failure(limited("2GiB"), screen, HUNGRY))  # type: ignore[arg-type]
    assert (failure.kind, failure.phase) == (FailureKind.OUT_OF_MEMORY, LIMIT_PHASE)
    assert "3 GiB (by" in failure.message
    unknown = SimpleNamespace(result=lambda settings: SimpleNamespace(program=None))
    assert compiled_failure(limited("2GiB"), unknown, HUNGRY) is None  # type: ignore[arg-type]

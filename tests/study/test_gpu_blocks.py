"""Studies on a simulated GPU: what settles it is kept and not counted, and its processes start one after the other.

Studies on GPUs that are held back while one arm runs: who gains by that is no winner, and the records say why.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.child.gpus import load_nvml
from autotune.machine import telemetry
from autotune.machine.telemetry import GpuWatch
from autotune.measure.context import MeasurementContext, ReferenceFailed
from autotune.measure.runner import TaskRunner
from autotune.measure.tasks import Assignment
from autotune.model.block_sizes import CPU_SIZES
from autotune.model.flags import FlagSet
from autotune.model.measurement import Arm, ArmOfGpus, FailureKind, GpusDuring, held_in_one_arm
from autotune.model.proofs import veto_of
from autotune.model.records import AaRecord, ConclusionRecord, ConfirmRun, FinalistResult, Outcome, TrialResult
from autotune.model.spec import StudySpec
from autotune.results.audit import disagreements, doubts
from autotune.results.format import warning_lines
from autotune.results.winner import winner_of
from autotune.rundir.store import Folders, Store
from autotune.study.driver import run_study
from autotune.workers.base import Progress, WorkerFailed
from harness.fake_nvml import HW_THERMAL, POWER_BRAKE, SW_POWER_CAP, FakeNvml, missing
from harness.simulated import GivenSetup, given_run
from harness.simulated_machine import SimulatedLauncher, SimulatedWorker
from tests.runs import SPACE, Diary, Noting, Run, Times, Told, asking, failed, on_blocks, replay_study, there
from tests.tables import toml_beside

GPU: dict[str, Any] = {"device": {"platform": "cuda", "count": 1}}
QUICK = {"finalists": 1, "minimise": False, "soak": 0}
POWER = {"white_sd": 0.003, "process_sd": 0.001, "clock_s": 1.0, "power_cost": 0.1, "candidate_power_cost": 0.03}


def gpu_study(
    *, measure: dict[str, Any] | None = None, confirm: dict[str, Any] | None = None, **replay: Any
) -> StudySpec:
    more = {**GPU, "measure": measure or {}, "confirm": {**QUICK, **(confirm or {})}}
    return replay_study(study=more, **{"step_s": 0.2, "start_s": 45.0, **replay})


def pairs_of(store: Store, directory: str | None) -> list[Any]:
    return list(store.pairs(there(directory)))


def test_steps_that_settle_the_device_are_kept_raw_and_not_counted(run_replay: Run) -> None:
    spec = gpu_study(noise=POWER, effects={"xla_a=1": 0.9})
    conclusion, store, _ = run_replay(spec, trials=4)
    assert conclusion.outcome is Outcome.WINNER
    aa_run = store.of(AaRecord)[0]
    for pair in pairs_of(store, aa_run.directory):
        for arm in Arm:
            settling, counted = spec.block_sizes.split(pair.ran_s(arm))
            assert len(settling) >= 10
            assert counted == (pair.reference_s if arm is Arm.REFERENCE else pair.candidate_s)
    assert aa_run.noise.pair_s == pytest.approx(2 * spec.block_sizes.steps(0.2) * 0.2, rel=0.2)  # all was waited for
    isolated = [r for r in store.of(ConfirmRun) if r.is_isolated]
    (pair,) = pairs_of(store, isolated[0].directory)
    assert sum(pair.reference_settling_s) == pytest.approx(10.0, rel=0.1)
    assert sum(pair.reference_s) >= 9.0
    assert disagreements(store, conclusion) == []


def test_who_counts_other_steps_than_the_study_says_is_found_by_the_audit(run_replay: Run) -> None:
    spec = gpu_study(noise=POWER, effects={"xla_a=1": 0.9})
    conclusion, store, _ = run_replay(spec, trials=4)
    run = next(r for r in store.of(ConfirmRun) if r.stage == "confirm")
    file = store.path / there(run.directory) / "pairs.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:  # one more step of each block is left out
        for arm in Arm:
            row[f"{arm}_settling_s"].append(row[f"{arm}_s"].pop(0))
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert any("other steps" in line for line in disagreements(Store.open(store.path), conclusion))


def test_a_set_that_is_fast_only_while_its_power_is_shared_out_is_no_winner(
    run_replay: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 % faster by its program, 1 % slower by what it draws: in short blocks the second is hidden."""
    spec = gpu_study(noise=POWER, effects={"xla_a=1": 0.98}, step_s=0.05)
    conclusion, _, _ = run_replay(spec, trials=6)
    assert conclusion.outcome is Outcome.NOTHING_BEATS_THE_DEFAULT
    monkeypatch.setattr("autotune.model.spec.GPU_SIZES", CPU_SIZES._replace(in_order=True))
    short = gpu_study(noise=POWER, effects={"xla_a=1": 0.98}, step_s=0.05, confirm={"isolated": 0})
    fooled, _, _ = run_replay(short, trials=6, folder="short")
    assert fooled.outcome is Outcome.WINNER  # which is why


class Watched(SimulatedLauncher):
    """Notes who starts while another one does, and in which order; some fail."""

    def __init__(self, spec: StudySpec, *, fails: tuple[str, ...] = ()) -> None:
        super().__init__(spec)
        self._fails = fails
        self._lock = threading.Lock()
        self._meet = threading.Barrier(2, timeout=20.0) if spec.device.platform == "cpu" else None
        self.starting = 0
        self.most = 0
        self.order: list[str] = []
        self.closed: list[str] = []

    def start(self, settings: FlagSet, folder: Path, *, progress: Progress) -> SimulatedWorker:
        who = "reference" if folder.name == "reference" else "candidate"
        with self._lock:
            self.starting += 1
            self.most = max(self.most, self.starting)
            self.order.append(who)
        if self._meet is not None:
            self._meet.wait()  # for the other one, which must be starting, too
        else:
            time.sleep(0.02)  # long enough for the other one to begin, were it to
        with self._lock:
            self.starting -= 1
        if who in self._fails:
            raise failed(FailureKind.CRASH, f"{who} died", phase="compile", log=str(folder))
        worker = super().start(settings, folder, progress=progress)
        worker.close = lambda: self.closed.append(who)  # type: ignore[method-assign]
        return worker


def start(tmp_path: Path, platform: str, name: str = "n", fails: tuple[str, ...] = ()) -> Watched:
    spec = replay_study(study={"device": {"platform": platform}})
    launcher, folders = Watched(spec, fails=fails), Folders(tmp_path)
    context = MeasurementContext(spec, folders, launcher, Told())
    context.assignment = Assignment(folder=("confirm", name), name=name)
    try:
        context.start_both(FlagSet(), FlagSet({"xla_a": "1"}))
    except WorkerFailed as error:
        launcher.order.append(f"{type(error).__name__} {error.failure.message}")
    return launcher


def test_on_a_gpu_processes_start_one_after_the_other_and_a_coin_says_which_first(tmp_path: Path) -> None:
    assert start(tmp_path, "cuda").most == 1
    assert start(tmp_path, "cpu").most == 2
    orders = [start(tmp_path, "cuda", f"confirm-{i}").order[0] for i in range(12)]
    assert set(orders) == {"reference", "candidate"}
    assert orders == [start(tmp_path, "cuda", f"confirm-{i}").order[0] for i in range(12)]


def test_whoever_fails_the_other_is_ended_and_the_reference_is_blamed_first(tmp_path: Path) -> None:
    names = [f"confirm-{i}" for i in range(8)]
    for name in names:
        only = start(tmp_path, "cuda", name, fails=("candidate",))
        assert only.order[-1] == "WorkerFailed candidate died"
        assert only.closed == ["reference"]
        both = start(tmp_path, "cuda", name, fails=("candidate", "reference"))
        assert both.order[-1] == f"{ReferenceFailed.__name__} reference died"  # a sick machine is not the set's fault
        base = start(tmp_path, "cuda", name, fails=("reference",))
        assert base.order[-1] == f"{ReferenceFailed.__name__} reference died"
        assert base.closed == ["candidate"]


RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"

needs_nvml = pytest.mark.skipif(bool(missing()), reason=missing())
ShareOf = Callable[[Mapping[str, str]], dict[str, float]]
COUNTERS = {"hw_thermal": HW_THERMAL, "sw_power_cap": SW_POWER_CAP, "power_brake": POWER_BRAKE}


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeNvml]:
    with (nvml := FakeNvml(tmp_path / "nvml")).loaded():
        yield nvml


def heated_run(
    path: Path,
    fake: FakeNvml,
    monkeypatch: pytest.MonkeyPatch,
    share_of: ShareOf,
    mode: str,
    first: tuple[tuple[str, FlagSet], ...] = (("fast", FlagSet({"xla_a": 1})),),
) -> Store:
    """A finished study of one set that takes a tenth off the step.

    A GPU is held back for a share of the time of its blocks, which depends on what they run under.
    """
    spec = replay_study(noise={"white_sd": 1e-4}, effects={"xla_a=1": 0.9}, study={"measure": {"mode": mode}})
    now_s = 0.0

    def heat(worker: SimulatedWorker, settings: FlagSet, folder: Path) -> None:
        def block(times: Times, done: int) -> None:
            nonlocal now_s
            now_s += sum(times)
            if settings.get("xla_b") == "1" and done >= 2 * len(times):
                raise failed(FailureKind.CRASH, "it died")
            for name, share in share_of(settings).items():
                rise = round(share * sum(times) * 1e9)
                fake.set(0, COUNTERS[name], fake.count(0, COUNTERS[name]) + rise)

        on_blocks(worker, block)

    monkeypatch.setattr(telemetry, "time", SimpleNamespace(monotonic=lambda: now_s))

    def watched(runner: TaskRunner) -> None:
        runner.context.gpus = GpuWatch(load_nvml(), None)

    launcher = Noting(spec, after=heat)
    setup = GivenSetup(given_space=SPACE, first=first, given_launcher=launcher, read_at_run_time=lambda s: s)
    run = given_run(asking(spec, len(first)), path, setup, Diary(), equip=watched)
    run_study(run)
    return run.store


@needs_nvml
@pytest.mark.parametrize(("reason", "who", "words", "mode"), toml_beside(__file__)["held_alone"])
def test_what_holds_one_arm_back_alone_is_named_and_vetoes_the_set(
    tmp_path: Path, fake: FakeNvml, monkeypatch: pytest.MonkeyPatch, reason: str, who: str, words: str, mode: str
) -> None:
    def share_of(settings: Mapping[str, str]) -> dict[str, float]:
        return {reason: 0.3 if (settings.get("xla_a") == "1") == (who == "candidate") else 0.0}

    store = heated_run(tmp_path / "run", fake, monkeypatch, share_of, mode)
    conclusion = there(store.last(ConclusionRecord))
    assert conclusion.outcome is Outcome.INCONCLUSIVE
    assert words in conclusion.sentence
    finalists = [f for f in store.of(FinalistResult) if f.settings.get("xla_a") == "1"]
    assert finalists
    assert all(f.veto is not None and words in f.veto for f in finalists)
    runs = [r for r in store.of(ConfirmRun) if r.settings.get("xla_a") == "1"]
    assert runs
    assert all(any("held back" in w for w in r.warnings or ()) for r in runs)
    assert any(w.startswith("proof of ") for w in warning_lines(store))
    assert doubts(store) == []


@needs_nvml
@pytest.mark.parametrize("of_candidate", [0.7, 0.0])
def test_a_set_at_the_power_limit_or_below_it_proves_what_it_proves(
    tmp_path: Path, fake: FakeNvml, monkeypatch: pytest.MonkeyPatch, of_candidate: float
) -> None:
    def share_of(settings: Mapping[str, str]) -> dict[str, float]:
        return {"sw_power_cap": of_candidate if settings.get("xla_a") == "1" else 0.7}

    store = heated_run(tmp_path / "run", fake, monkeypatch, share_of, "interleaved")
    assert there(store.last(ConclusionRecord)).outcome is Outcome.WINNER
    aa_run = there(store.last(AaRecord))
    seen = there(aa_run.comparison.during).candidate
    assert seen.held_back["sw_power_cap"] == pytest.approx(0.7 * seen.seconds, rel=0.01)
    assert any("power limit" in w for w in aa_run.comparison.warnings)
    assert doubts(store) == []


@needs_nvml
def test_what_was_seen_of_a_set_that_failed_is_not_told_of_the_next_one(
    tmp_path: Path, fake: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    def share_of(settings: Mapping[str, str]) -> dict[str, float]:
        return {"hw_thermal": 0.5 if settings.get("xla_b") == "1" else 0.0}

    dies = ("one that dies", FlagSet({"xla_b": 1}))
    others = (("next", FlagSet({"xla_a": 1})), ("last", FlagSet({"xla_d": 1})))
    store = heated_run(tmp_path / "run", fake, monkeypatch, share_of, "interleaved", first=(dies, *others))
    results = store.of(TrialResult)
    failed = [r.number for r in results if r.failure is not None and r.failure.message == "it died"]
    measured = [r for r in results if r.comparison is not None and r.status == "measured"]
    assert failed
    assert any(r.number > min(failed) for r in measured)
    assert [r.comparison.warnings for r in measured if r.comparison is not None] == [()] * len(measured)


def test_a_proof_on_an_h100_is_not_vetoed_because_the_slow_set_was_at_its_power_limit() -> None:
    store = Store.open(RESULTS / "gpu" / "planted")
    (finalist,), runs = store.of(FinalistResult), store.of(ConfirmRun)
    assert sum(there(r.during).reference.held_back["sw_power_cap"] for r in runs) > 3.0
    assert there(finalist.estimate).ratio < 0.05
    assert veto_of(runs, there(finalist.estimate)) is None


def test_the_winner_of_an_h100_follows_from_its_records() -> None:
    assert winner_of(Store.open(RESULTS / "gpu" / "found")).settings == FlagSet({"xla_gpu_autotune_level": "4"})


@pytest.mark.parametrize("case", toml_beside(__file__)["held_back"], ids=lambda case: str(case["why"]))
def test_one_arm_is_held_back_over_all_its_processes(case: dict[str, Any]) -> None:
    processes = []
    for held in case["arms"]:
        reference, candidate = (ArmOfGpus(seconds=case.get("seconds", 10.0), held_back=arm) for arm in held)
        processes.append(GpusDuring(reference=reference, candidate=candidate))
    assert bool(held_in_one_arm(processes)) is case["is_held"]

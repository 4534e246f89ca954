"""Studies on GPUs that are held back while one arm runs: who gains by that is no winner, and the records say why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.child.gpus import load_nvml
from autotune.machine import telemetry
from autotune.machine.telemetry import GpuWatch
from autotune.measure.runner import TaskRunner
from autotune.model.flags import FlagSet
from autotune.model.measurement import ArmOfGpus, FailureKind, GpusDuring, held_in_one_arm
from autotune.model.records import AaRecord, ConclusionRecord, ConfirmRun, FinalistResult, Outcome, TrialResult
from autotune.results.format import warning_lines
from autotune.results.winner import doubts
from autotune.rundir.store import Store
from autotune.study.stages import run_study
from harness.fake_nvml import HW_THERMAL, SW_POWER_CAP, FakeNvml, missing
from harness.simulated import GivenSetup, given_run
from harness.simulated_machine import SimulatedWorker
from tests.runs import SPACE, Diary, Noting, Times, asking, failed, on_blocks, replay_study, there

needs_nvml = pytest.mark.skipif(bool(missing()), reason=missing())
ShareOf = Callable[[Mapping[str, str]], dict[str, float]]
COUNTERS = {"hw_thermal": HW_THERMAL, "sw_power_cap": SW_POWER_CAP}


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
@pytest.mark.parametrize(
    ("reason", "who", "words", "mode"),
    [
        ("hw_thermal", "reference", "the reference alone was held back by heat (hardware): 30.0 %", "interleaved"),
        ("sw_power_cap", "candidate", "the candidate alone was held back by its power limit: 30.0 %", "aba"),
    ],
)
def test_what_holds_one_arm_back_alone_is_named_and_vetoes_the_set(
    tmp_path: Path, fake: FakeNvml, monkeypatch: pytest.MonkeyPatch, reason: str, who: str, words: str, mode: str
) -> None:
    def share_of(settings: Mapping[str, str]) -> dict[str, float]:
        return {reason: 0.3 if (settings.get("xla_a") == "1") == (who == "candidate") else 0.0}

    store = heated_run(tmp_path / "run", fake, monkeypatch, share_of, mode)
    conclusion = there(store.last(ConclusionRecord))
    assert conclusion.outcome is Outcome.NOTHING_BEATS_THE_DEFAULT
    assert words in conclusion.sentence
    finalists = [f for f in store.of(FinalistResult) if f.settings.get("xla_a") == "1"]
    assert finalists
    assert all(f.veto is not None and words in f.veto for f in finalists)
    runs = [r for r in store.of(ConfirmRun) if r.settings.get("xla_a") == "1"]
    assert runs
    assert all(any("GPU 0 was held back by" in w for w in r.warnings or ()) for r in runs)
    assert any(w.startswith("proof of trial ") for w in warning_lines(store))
    assert doubts(store) == []


@needs_nvml
def test_gpus_that_are_held_back_in_both_arms_alike_prove_what_they_prove(
    tmp_path: Path, fake: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = heated_run(tmp_path / "run", fake, monkeypatch, lambda _: {"sw_power_cap": 0.7}, "interleaved")
    conclusion, aa_run = store.last(ConclusionRecord), store.last(AaRecord)
    assert there(conclusion).outcome is Outcome.WINNER
    assert aa_run is not None
    assert aa_run.comparison.during is not None
    assert aa_run.comparison.during.candidate.held_back["sw_power_cap"] == pytest.approx(
        0.7 * aa_run.comparison.during.candidate.seconds, rel=0.01
    )
    assert any("held back by its power limit" in w for w in aa_run.comparison.warnings)
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


def during(reference: dict[str, float], candidate: dict[str, float], seconds: float = 10.0) -> GpusDuring:
    arms = (ArmOfGpus(seconds=seconds, held_back=held) for held in (reference, candidate))
    return GpusDuring(reference=next(arms), candidate=next(arms))


HOT, COOL = during({"hw_thermal": 3.0}, {"hw_thermal": 0.0}), during({"hw_thermal": 0.0}, {"hw_thermal": 0.0})


@pytest.mark.parametrize(
    ("processes", "is_held"),
    [
        ([HOT], True),
        ([HOT, COOL], True),
        ([HOT, *[COOL] * 9], False),  # one hot minute among many
        ([HOT, during({}, {})], False),  # what one process did not tell is not made of the others
        ([], False),
        ([during({"hw_thermal": 0.04}, {"hw_thermal": 0.0}, seconds=0.1)], False),
    ],
)
def test_one_arm_is_held_back_over_all_its_processes(processes: list[GpusDuring], is_held: bool) -> None:
    assert bool(held_in_one_arm(processes)) is is_held

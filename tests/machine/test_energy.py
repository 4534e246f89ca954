"""Energy from counters that behave as NVML's do: they refuse, stand still, begin anew, and count whole GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.child.gpus import load_nvml
from autotune.machine.telemetry import NO_METER, EnergyMeter, GpuWatch, open_meter
from autotune.measure.runner import TaskRunner
from autotune.model.flags import FlagSet
from autotune.model.measurement import Arm, Pair
from autotune.model.records import AaRecord, ConfirmRun, TrialResult
from autotune.model.spec import StudySpec, parse_study
from autotune.rundir.store import Store
from autotune.study.driver import run_study
from harness.fake_nvml import ENERGY, NOT_SUPPORTED, FakeNvml, missing
from harness.simulated import GivenSetup, given_run
from harness.simulated_machine import SimulatedWorker
from tests.runs import SPACE, Diary, Noting, Times, asking, on_blocks, replay_study, there
from tests.tables import toml_beside

pynvml = load_nvml()
compiles = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture
def nvml(tmp_path: Path) -> Iterator[FakeNvml]:
    """Two GPUs in nvidia-ml-py's eyes."""
    with (fake := FakeNvml(tmp_path / "nvml", gpus=2)).loaded():
        yield fake


def draw(fake: FakeNvml) -> Callable[[], str]:
    """Work of one second in which the first GPU draws 100 W and the second 200 W."""

    def work() -> str:
        for gpu in range(2):
            fake.set(gpu, ENERGY, fake.count(gpu, ENERGY) + 100_000 * (gpu + 1))
        return "done"

    return work


def gpu_study(**device: Any) -> StudySpec:
    return parse_study({"name": "g", "workload": {"entry": "llama"}, "device": {"platform": "cuda", **device}})


@compiles
@pytest.mark.parametrize(
    ("visible", "count", "joules"), [(None, None, 300.0), ("1", None, 200.0), ("1,0", 1, 200.0), (None, 1, 100.0)]
)
def test_only_gpus_in_use_are_counted(nvml: FakeNvml, visible: str | None, count: int | None, joules: float) -> None:
    meter = open_meter(gpu_study(count=count), GpuWatch(pynvml, visible, count))
    assert meter.measure(draw(nvml)) == ("done", joules)


@compiles
def test_a_gpu_that_does_not_count_means_no_figure_not_a_part_of_one(nvml: FakeNvml, tmp_path: Path) -> None:
    nvml.fail(1, ENERGY, NOT_SUPPORTED)
    assert open_meter(gpu_study(), GpuWatch(pynvml, None)) is NO_METER
    assert open_meter(gpu_study(), GpuWatch(pynvml, "0")) is not NO_METER
    with FakeNvml(tmp_path / "old", without=[ENERGY]).loaded():
        assert open_meter(gpu_study(), GpuWatch(pynvml, None)) is NO_METER
    assert open_meter(gpu_study(), GpuWatch(None, None)) is NO_METER
    assert open_meter(gpu_study(node_count=2), GpuWatch(pynvml, "0")) is NO_METER
    assert NO_METER.measure(lambda: 7) == (7, None)


@compiles
@pytest.mark.parametrize("end", ["lost", "began anew"])
def test_a_counter_that_fails_in_mid_study_leaves_a_gap(nvml: FakeNvml, end: str) -> None:
    meter = open_meter(gpu_study(), GpuWatch(pynvml, None))

    def work() -> str:
        if end == "lost":
            nvml.lose(0)
        else:
            nvml.set(0, ENERGY, 17)
        return "done"

    assert meter.measure(work) == ("done", None)


def test_energy_is_per_step_and_blocks_too_short_for_the_counter_have_none() -> None:
    use = there(METER.use_of([pair(i, reference_j=40.0, candidate_j=10.0 + 0.01 * i) for i in range(10)]))
    assert use.reference_step_j == 10.0
    assert use.candidate_step_j == pytest.approx(5.02, abs=0.01)
    meter = EnergyMeter(read_j=METER.read_j)
    assert meter.use_of([pair(i, reference_j=0.0 if i % 2 else 40.0, candidate_j=40.0) for i in range(6)]) is None
    assert meter.use_of([pair(i, reference_j=40.0, candidate_j=40.0) for i in range(6)]) is None
    assert meter.use_of([pair(i, reference_j=800.0, candidate_j=400.0, steps=16) for i in range(6)]) is not None


def pair(index: int, *, reference_j: float | None, candidate_j: float | None, steps: int = 4) -> Pair:
    return Pair(
        index=index,
        first=Arm.REFERENCE,
        reference_s=(0.25,) * steps,
        candidate_s=(0.25,) * (steps // 2),
        at_s=0.0,
        reference_j=reference_j,
        candidate_j=candidate_j,
    )


METER = EnergyMeter(read_j=lambda: 0.0, shortest_s=0.2)


@pytest.mark.parametrize("joules", toml_beside(__file__)["joules_that_make_no_figure"])
def test_no_figure_is_made_of_blocks_that_were_not_counted(joules: list[list[float]]) -> None:
    counted = [[None if j < 0 else j for j in of_pair] for of_pair in joules]
    assert METER.use_of([pair(i, reference_j=one, candidate_j=two) for i, (one, two) in enumerate(counted)]) is None


def metered_run(path: Path, *, mode: str, **replay: Any) -> Store:
    """A finished simulated study whose workers draw power: twice as much under xla_a=1, else half under xla_b=1."""
    spec = replay_study(noise={"white_sd": 1e-4}, study={"measure": {"mode": mode}}, **replay)
    joules = 0.0

    def after(worker: SimulatedWorker, settings: FlagSet, folder: Path) -> None:
        power_w = 200.0 if settings.get("xla_a") == "1" else 50.0 if settings.get("xla_b") == "1" else 100.0

        def draw(times: Times, done: int) -> None:
            nonlocal joules
            joules += power_w * sum(times)

        on_blocks(worker, draw)

    def metered(runner: TaskRunner) -> None:
        runner.context.meter = EnergyMeter(read_j=lambda: joules, shortest_s=0.0)

    setup = GivenSetup(given_space=SPACE, given_launcher=Noting(spec, after=after), read_at_run_time=lambda s: s)
    run = given_run(asking(spec, 14), path, setup, Diary(), equip=metered)
    run_study(run)
    return run.store


@pytest.mark.parametrize("mode", ["interleaved", "aba"])
def test_every_measurement_of_a_study_keeps_its_joules(tmp_path: Path, mode: str) -> None:
    store = metered_run(tmp_path, mode=mode)
    aa_run = there(store.last(AaRecord))
    assert there(aa_run.comparison.energy).candidate_step_j == pytest.approx(3.0, rel=0.01)
    measured = [r for r in store.of(TrialResult) if r.comparison is not None]
    assert measured
    for result in measured:
        wanted = 0.5 if result.settings.get("xla_b") == "1" else 1.0
        wanted = 2.0 if result.settings.get("xla_a") == "1" else wanted
        assert there(there(result.comparison).energy).candidate_step_j == pytest.approx(3.0 * wanted, rel=0.01)
        assert all(p.reference_j and p.candidate_j for p in store.pairs(result.directory or ""))
    assert all(r.energy is not None for r in store.of(ConfirmRun))


def test_where_nothing_counts_records_and_pairs_say_nothing_of_energy(finished: Store) -> None:
    lines = [line for file in finished.path.rglob("*.jsonl") for line in file.read_text().splitlines()]
    assert lines
    assert not any("energy" in line or "_j" in line for line in lines)

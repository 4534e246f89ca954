"""Studies on a simulated GPU: what settles it is kept and not counted, and its processes start one after the other."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from autotune.measure.context import MeasurementContext, ReferenceFailed
from autotune.model.block_sizes import CPU_SIZES
from autotune.model.flags import FlagSet
from autotune.model.measurement import Arm, FailureKind
from autotune.model.records import AaRecord, ConfirmRun, Outcome
from autotune.model.spec import StudySpec
from autotune.results.winner import disagreements
from autotune.rundir.store import Folders, Store
from autotune.workers.base import Progress, WorkerFailed
from harness.simulated_machine import SimulatedLauncher, SimulatedWorker
from tests.runs import Run, Told, failed, replay_study, there

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
    assert aa_run.noise.pair_s == pytest.approx(
        2 * spec.block_sizes.steps(0.2) * 0.2, rel=0.2
    )  # all of it was waited for
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
    assert any("it leaves out other steps" in line for line in disagreements(Store.open(store.path), conclusion))


def test_a_set_that_is_fast_only_while_its_power_is_shared_out_is_no_winner(
    run_replay: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 % faster by its program, 1 % slower by what it draws: in short blocks the second is hidden."""
    spec = gpu_study(noise=POWER, effects={"xla_a=1": 0.98}, step_s=0.05)
    conclusion, _, _ = run_replay(spec, trials=6)
    assert conclusion.outcome is Outcome.NOTHING_BEATS_THE_DEFAULT
    monkeypatch.setattr("autotune.model.sections.GPU_SIZES", {**CPU_SIZES, "in_order": True})
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
    try:
        context.start_both(FlagSet(), FlagSet({"xla_a": "1"}), folders.folder("confirm", name), name=name)
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

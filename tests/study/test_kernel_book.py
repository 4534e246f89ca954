"""Each process leaves what its autotuner chose, and what differs between equal processes is in the records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.model.flags import FlagSet
from autotune.model.kernels import DUMP_FILE, DUMP_HERE, DUMP_VARIABLE
from autotune.model.names import DUMPED_KERNELS, KERNELS
from autotune.model.records import ConfirmRun, FloorResult, IncidentRecord, Outcome
from autotune.model.spec import StudySpec, parse_study
from autotune.model.trial import TrialResult
from autotune.results.words import floor_lines, warning_lines
from autotune.rundir.folders import Folders
from autotune.study.bench import Bench
from autotune.workers.base import Progress
from autotune.workers.local import LocalLauncher
from autotune.workers.replay import ReplayLauncher, ReplayWorker
from autotune.workers.settings_check import check_environment
from tests.runs import Run, replay_study
from tests.study.test_gpu_turns import Silent

RESULTS = (
    'results {{ device: "d" hlo: "gemm one" result {{ run_time {{ nanos: {time} }} gemm {{ algorithm: {one} }} }} }}'
)
QUICK = {"confirm": {"finalists": 1, "minimise": False, "soak": 0, "alone": 0}, "measure": {"floor_processes": 3}}


class Choosing(ReplayLauncher):
    """Every third process of a set runs another kernel, which takes longer; each leaves what it chose.

    Attributes:
        flags: The text of XLA_FLAGS of every start.
    """

    def __init__(self, spec: StudySpec, *, slower: float = 1.02, text: str = RESULTS) -> None:
        assert spec.replay is not None
        super().__init__(spec.replay, seed=spec.seed, platform=spec.device.platform)
        self._slower, self._text = slower, text
        self.started: dict[str, int] = {}
        self.flags: list[FlagSet] = []

    def start(self, settings: FlagSet, folder: Path, *, progress: Progress) -> ReplayWorker:
        self.flags.append(settings)
        own = str(settings.without(DUMPED_KERNELS))
        number = self.started[own] = self.started.get(own, 0) + 1
        worker = super().start(settings, folder, progress=progress)
        is_other = number % 3 == 0
        if (path := settings.get(DUMPED_KERNELS)) is not None:
            file = Path(path.replace(DUMP_VARIABLE, str(folder)))
            assert not file.exists()  # of the process before
            file.write_text(self._text.format(time=number, one=5 if is_other else 4))
        if is_other:
            worker._process._log_step += 0.02
        return worker


def study(**more: Any) -> StudySpec:
    return replay_study(
        effects={"xla_a=1": 0.9}, noise={"white_sd": 0.003, "process_sd": 0.0005},
        study={"device": {"platform": "cuda", "count": 1}, **QUICK, **more},
    )  # fmt: skip


def test_processes_that_chose_other_kernels_are_counted_named_and_timed(run_replay: Run) -> None:
    spec = study()
    launcher = Choosing(spec)
    conclusion, store, _ = run_replay(spec, trials=3, launcher=launcher)
    assert conclusion.outcome is Outcome.WINNER
    spread = store.of(FloorResult)[0].kernels
    assert spread is not None
    assert (spread.processes, spread.others, spread.kernels) == (4, 1, 1)
    assert spread.apart == pytest.approx(0.02, abs=0.004)  # the spread that it makes
    assert spread.which[0].chose == "gemm {algorithm: 5}"
    assert spread.which[0].instead_of == "gemm {algorithm: 4}"
    assert any("processes chose other kernels: 1 of 4 (1 kernel; they are 2" in line for line in floor_lines(store))
    for run in store.of(ConfirmRun):
        for kernels in (run.reference_kernels, run.candidate_kernels):
            assert kernels is not None
            assert kernels.count == 1
    assert {r.candidate_kernels.digest for r in store.of(ConfirmRun) if r.candidate_kernels} == {
        r.reference_kernels.digest for r in store.of(ConfirmRun) if r.reference_kernels
    }
    said = [line for line in warning_lines(store) if "processes chose other kernels" in line]
    assert any(line.startswith("of the default in proofs") for line in said)
    assert any(line.startswith(f"of trial {conclusion.trial} (") for line in said)
    assert all(r.worker is None or r.worker.kernels is not None for r in store.of(TrialResult))


def test_the_flags_that_make_them_tell_are_one_text_in_every_process(run_replay: Run) -> None:
    spec = study()
    launcher = Choosing(spec)
    run_replay(spec, trials=2, launcher=launcher)
    assert {f[DUMPED_KERNELS] for f in launcher.flags} == set(DUMP_HERE.values())


def test_who_brings_results_of_his_own_is_left_alone(run_replay: Run) -> None:
    for own in ({KERNELS: "/x/results.textproto"}, {DUMPED_KERNELS: "/x/mine.textproto"}):
        spec = study(baseline=own)
        launcher = Replay(spec)
        _, store, _ = run_replay(spec, trials=1, launcher=launcher, folder="-".join(own))
        assert {f.get(n) for f in launcher.flags for n in own} == set(own.values())
        assert all(set(DUMP_HERE.values()).isdisjoint(f.values()) for f in launcher.flags)
        assert store.of(FloorResult)[0].kernels is None


class Replay(ReplayLauncher):
    """Notes what it is asked for."""

    def __init__(self, spec: StudySpec) -> None:
        assert spec.replay is not None
        super().__init__(spec.replay, seed=spec.seed, platform=spec.device.platform)
        self.flags: list[FlagSet] = []

    def start(self, settings: FlagSet, folder: Path, *, progress: Progress) -> ReplayWorker:
        self.flags.append(settings)
        return super().start(settings, folder, progress=progress)


@pytest.mark.parametrize(
    "device", [{"platform": "cpu"}, {"platform": "cuda", "count": 2, "process_count": 2}], ids=["cpu", "ranks"]
)
def test_where_it_tells_nothing_nobody_is_asked(run_replay: Run, device: dict[str, Any]) -> None:
    spec = study(device=device)
    launcher = Replay(spec)
    run_replay(spec, trials=1, launcher=launcher)
    assert all(DUMPED_KERNELS not in f for f in launcher.flags)


def test_what_a_dead_process_left_is_not_said_of_the_next_one(tmp_path: Path) -> None:
    spec, folders = study(), Folders(tmp_path)
    leaves, folder = Choosing(spec), folders.folder("trials", "0001")
    assert Bench(spec, folders, leaves, Silent()).start(FlagSet(), folder).report.kernels is not None
    assert (folder / DUMP_FILE).exists()
    assert Bench(spec, folders, Replay(spec), Silent()).start(FlagSet(), folder).report.kernels is None


def test_results_that_cannot_be_read_are_an_incident_and_nothing_else(run_replay: Run) -> None:
    spec = study()
    _, store, _ = run_replay(spec, trials=2, launcher=Choosing(spec, text="torn {{"))
    assert all(r.comparison is not None for r in store.of(TrialResult))
    assert store.of(FloorResult)[0].kernels is None
    assert any("what the autotuner chose is not known" in r.what for r in store.of(IncidentRecord))


def test_a_real_worker_is_told_where_its_own_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, str]] = []
    monkeypatch.setattr(
        "autotune.workers.local.GuardedProcess", lambda command, env, log, limit: told.append(dict(env))
    )
    spec = parse_study({"name": "s", "workload": {"entry": "llama"}, "device": {"platform": "cuda", "count": 1}})
    launcher = LocalLauncher(spec, study_dir=str(tmp_path), base={})
    for name in ("one", "two"):
        launcher._processes(FlagSet(DUMP_HERE), tmp_path / name)
    launcher._processes(FlagSet({"xla_a": "1"}), tmp_path / "three")
    assert [env.get(DUMP_VARIABLE) for env in told] == [str(tmp_path / "one"), str(tmp_path / "two"), None]
    assert told[0]["XLA_FLAGS"] == told[1]["XLA_FLAGS"] == f"--{DUMPED_KERNELS}={DUMP_VARIABLE}/{DUMP_FILE}"


def test_a_program_that_writes_xla_flags_anew_is_not_blamed_for_losing_what_is_ours() -> None:
    ours = FlagSet(DUMP_HERE)
    kept = f"--{DUMPED_KERNELS}={DUMP_HERE[DUMPED_KERNELS]}"
    for flags in (None, kept):
        found = check_environment(ours, {"XLA_FLAGS": flags})
        assert not found.lost
        assert not found.notes
    assert check_environment(FlagSet({DUMPED_KERNELS: "/mine.textproto"}), {"XLA_FLAGS": None}).lost
    assert check_environment(ours.merge({"xla_a": "1"}), {"XLA_FLAGS": None}).lost == (
        "xla_a=1: the program took it away",
    )

"""Each fault of docs/faults.md, injected for real into a study that runs as a user runs it, and named right.

The table in docs/faults.md names the tests of the other faults.
"""

from __future__ import annotations

import itertools
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import psutil
import pytest

from autotune.model.flags import FlagSet
from autotune.model.measurement import FailureKind
from autotune.model.records import AnyRecord, ConclusionRecord, TrialResult, TrialStatus
from autotune.model.spec import parse_study
from autotune.results.live import LineView
from autotune.rundir.store import Store
from autotune.workers.base import WorkerFailed
from autotune.workers.command import CommandLauncher
from autotune.workers.local import LocalLauncher
from harness.simulated_machine import write_study
from tests.console import autotune, autotune_process
from tests.runs import TYPED
from tests.tables import toml_beside

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"

FAULTS = toml_beside(__file__)["faults"]
STUDY = (PROGRAMS / "faults.toml").read_text(encoding="utf-8")

SIMULATED = TYPED.replace("trials = 5", "trials = 9").replace("[1, 2, 3]", "[0, 1, 2, 3]")


RUN = ("run", "study.toml", "--run-dir")


def survivors(folder: Path) -> list[int]:
    """Processes that a study in a folder left behind."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("NCCL_MARK") == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def study_of(folder: Path, faults: Collection[str]) -> Path:
    """A finished study with one trial for each fault."""
    shutil.copy(PROGRAMS / "faults.py", folder)
    sets = "".join(f'[[search.first]]\nname = "{f}"\nsettings = {{ NCCL_FAULT = "{f}" }}\n' for f in faults)
    (folder / "study.toml").write_text(STUDY.replace("trials = 1", f"trials = {len(faults)}") + sets)
    done = autotune_process(*RUN, "run", cwd=folder, timeout_s=700, NCCL_MARK=str(folder))
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    return folder


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All faults."""
    return study_of(tmp_path_factory.mktemp("faults"), FAULTS)


def assert_named(study: Path, fault: str) -> None:
    """The fault is recorded as the table has it."""
    kind, signal, phase, words = FAULTS[fault]
    store = Store.open(study / "run")
    result = next(r for r in store.of(TrialResult) if r.settings.get("NCCL_FAULT") == fault)
    if not kind:
        assert (result.status, result.failure) == (TrialStatus.MEASURED, None)
    else:
        assert result.failure is not None
        assert (result.failure.kind, result.failure.signal or "", result.failure.phase) == (kind, signal, phase)
        assert words in result.failure.message
    assert store.last(ConclusionRecord) is not None


@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_trial_is_named_and_the_study_goes_on(study: Path, fault: str) -> None:
    assert_named(study, fault)


@pytest.mark.gate
def test_a_crash_and_an_escaped_child_end_no_study_and_leave_nothing(tmp_path: Path) -> None:
    faults = ("segmentation fault", "grandchild")
    study_of(tmp_path, faults)
    for fault in faults:
        assert_named(tmp_path, fault)
    assert survivors(tmp_path) == []


@pytest.mark.slow
def test_nothing_of_a_study_full_of_faults_is_left_alive(study: Path) -> None:
    assert survivors(study) == []


def test_an_unknown_flag_that_gets_past_all_checks_is_named(tmp_path: Path) -> None:
    spec = parse_study({"name": "s", "workload": {"entry": "faults:build"}})
    launcher = LocalLauncher(spec, study_dir=str(PROGRAMS), base=os.environ)
    with pytest.raises(WorkerFailed, match="xla_no_such_flag") as error:
        launcher.start(FlagSet({"xla_no_such_flag": "1"}), tmp_path, progress=lambda phase: None)
    assert (error.value.failure.kind, error.value.infrastructure) == (FailureKind.UNKNOWN_FLAG, False)


def test_memory_that_the_system_refuses_is_named(tmp_path: Path) -> None:
    code = "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)); x = bytearray(1 << 31)"
    spec = parse_study({"name": "s", "workload": {"command": [sys.executable, "-c", code], "read": {"preset": "clu"}}})
    launcher = CommandLauncher(spec, study_dir=str(tmp_path), base=os.environ)
    with pytest.raises(WorkerFailed) as error:
        launcher.start(FlagSet(), tmp_path, progress=lambda phase: None)
    assert error.value.failure.kind is FailureKind.OUT_OF_MEMORY


# ---------------------------------------------------------------------- faults of the machine


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)]
    made = subprocess.run(mount, capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip("only root may make a small disk")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_ends_the_study_with_advice_and_room_lets_it_go_on(small_disk: Path, tmp_path: Path) -> None:
    write_study(tmp_path / "study.toml", SIMULATED)
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 330_000)
    done = autotune(*RUN, "disk/run", cwd=tmp_path)
    assert done.returncode == 2
    assert "some space" in done.stderr
    kept = len(Store.open(small_disk / "run").records())
    filler.unlink()
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    assert autotune(*RUN, "disk/run", cwd=tmp_path).returncode == 0
    store = Store.open(small_disk / "run")
    assert len(store.of(TrialResult)) == 9
    assert len(store.records()) > kept


@pytest.fixture
def frozen() -> Iterator[Callable[[Path, bool], None]]:
    """Makes a file read-only even for root, or writable again: `frozen(path, True)`."""
    kept: list[Path] = []

    def change(path: Path, on: bool) -> None:
        if os.getuid() != 0:
            path.chmod(0o444 if on else 0o644)
            return
        done = subprocess.run(["chattr", "+i" if on else "-i", str(path)], capture_output=True, check=False)
        if done.returncode != 0:
            pytest.skip("this file system has no files that are read-only for root")
        (kept.append if on else kept.remove)(path)

    yield change
    for path in kept:
        subprocess.run(["chattr", "-i", str(path)], check=True)


def test_a_run_directory_that_turns_read_only_in_mid_study(
    tmp_path: Path, frozen: Callable[[Path, bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_study(tmp_path / "study.toml", SIMULATED)
    records = tmp_path / "run/records.jsonl"
    end = LineView.result

    def freeze(view: LineView, record: AnyRecord) -> None:
        if isinstance(record, TrialResult) and record.number == 2:
            frozen(records, True)
        end(view, record)

    with monkeypatch.context() as patch:
        patch.setattr(LineView, "result", freeze)
        stopped = autotune(*RUN, "run", cwd=tmp_path)
    kept = records.read_text()
    assert kept.count('"kind":"trial"') == 2
    for done in (stopped, autotune(*RUN, "run", cwd=tmp_path)):
        assert (done.returncode, "be writable" in done.stderr) == (2, True), done.stderr
    frozen(records, False)
    assert autotune(*RUN, "run", cwd=tmp_path).returncode == 0
    assert records.read_text().startswith(kept)
    assert len(Store.open(tmp_path / "run").of(TrialResult)) == 9


def test_a_file_that_may_not_grow_is_told_as_such(tmp_path: Path) -> None:
    write_study(tmp_path / "study.toml", SIMULATED)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (17 * 512, hard))
    try:
        done = autotune(*RUN, "run", cwd=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert done.returncode == 2
    assert "be writable" in done.stderr
    assert autotune(*RUN, "run", cwd=tmp_path).returncode == 0
    assert len(Store.open(tmp_path / "run").of(TrialResult)) == 9


def test_a_clock_that_jumps_changes_no_duration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_study(tmp_path / "study.toml", SIMULATED)
    real, jumps = time.time, itertools.cycle([0, 86400, -86400, 1e9])
    began = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: real() + next(jumps))
        assert autotune(*RUN, "run", "--time-budget", "10m", cwd=tmp_path).returncode == 0
    store = Store.open(tmp_path / "run")
    times = [r.at_s for r in store.records()]
    assert len(store.of(TrialResult)) == 9
    assert times == sorted(times)
    assert times[-1] < time.monotonic() - began
    assert all(0 < (r.duration_s or 0) < 60 for r in store.of(TrialResult) if r.status is TrialStatus.MEASURED)

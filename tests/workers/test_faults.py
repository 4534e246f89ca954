"""Each fault of docs/faults.md, injected for real into a study that runs as a user runs it, and named right.

What other tests hold already is only pointed to, by the table in docs/faults.md; that each of its pointers leads
somewhere is checked here.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.model.flags import FlagSet
from autotune.model.measurement import FailureKind
from autotune.model.records import ConclusionRecord
from autotune.model.spec import parse_study
from autotune.model.trial import TrialResult, TrialStatus
from autotune.rundir.store import Store
from autotune.workers.base import WorkerFailed
from autotune.workers.command import CommandLauncher
from autotune.workers.local import LocalLauncher

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"

FAULTS: dict[str, tuple[FailureKind | None, str | None, str, str]] = {
    "compile error": (FailureKind.COMPILE_ERROR, None, "compile", "no_such_target"),
    "segmentation fault": (FailureKind.CRASH, "SIGSEGV", "step", "died of SIGSEGV"),
    "kill": (FailureKind.CRASH, "SIGKILL", "step", "the kernel did for want of memory"),
    "device memory": (FailureKind.OUT_OF_MEMORY, None, "compile", "RESOURCE_EXHAUSTED"),
    "hang in compile": (FailureKind.HANG, None, "compile", "no answer within"),
    "hang in step": (FailureKind.HANG, None, "step", "no answer within"),
    "nan": (FailureKind.WRONG_LOSS, None, "check", "nan"),
    "diverging": (FailureKind.WRONG_LOSS, None, "check", "must be"),
    "hang at exit": (None, None, "", ""),
    "grandchild": (None, None, "", ""),
}
"""Fault of a trial: how it is recorded (None: as a good measurement), its signal, its phase, words of its message."""

STUDY = """
name = "faults"
[workload]
entry = "faults:build"
[search]
trials = {trials}
use_environment = false
[measure]
pairs_cap = 6
floor_processes = 2
check_steps = 3
warmup_steps = 3
block_s = 0.01
start_limit_s = 40
block_limit_s = 8
[confirm]
processes = 3
finalists = 1
pairs = 4
soak = 0
"""

REPLAYED = """
name = "replayed"
[workload]
entry = "llama"
[search]
trials = 9
use_environment = false
[search.settings]
xla_cpu_prefer_vector_width = [128, 256, 512]
xla_backend_optimization_level = [0, 1, 2, 3]
[measure]
pairs_cap = 12
floor_processes = 2
[confirm]
processes = 3
finalists = 1
pairs = 6
[replay]
delay_s = 0.01
noise = "quiet"
effects = { "xla_backend_optimization_level=1" = 0.9 }
"""


def start(*arguments: str, cwd: Path, under: Sequence[str] = (), **more: Any) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), **more.pop("env", {})}
    command = [*under, sys.executable, "-m", "autotune", *arguments]
    return subprocess.Popen(
        command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more
    )


def run(*arguments: str, cwd: Path, **more: Any) -> tuple[int, str]:
    """Exit status and error output of the command."""
    process = start(*arguments, cwd=cwd, **more)
    _, errors = process.communicate(timeout=600)
    assert "Traceback" not in errors, errors
    return process.returncode, errors


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


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study with one trial for each fault."""
    folder = tmp_path_factory.mktemp("faults")
    shutil.copy(PROGRAMS / "faults.py", folder)
    sets = "".join(f'[[search.first]]\nname = "{f}"\nsettings = {{ NCCL_FAULT = "{f}" }}\n' for f in FAULTS)
    (folder / "study.toml").write_text(STUDY.format(trials=len(FAULTS)) + sets)
    status, errors = run("run", "study.toml", "--run-dir", "run", cwd=folder, env={"NCCL_MARK": str(folder)})
    assert status == 0, errors
    return folder


@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_trial_is_named_and_the_study_goes_on(study: Path, fault: str) -> None:
    kind, signal, phase, words = FAULTS[fault]
    store = Store.open(study / "run")
    result = next(r for r in store.of(TrialResult) if r.settings.get("NCCL_FAULT") == fault)
    if kind is None:
        assert (result.status, result.failure) == (TrialStatus.MEASURED, None)
    else:
        assert result.failure is not None
        assert (result.failure.kind, result.failure.signal, result.failure.phase) == (kind, signal, phase)
        assert words in result.failure.message
    assert store.last(ConclusionRecord) is not None


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
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if made.returncode != 0:
        pytest.skip("only root may make a small disk")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_ends_the_study_with_advice_and_room_lets_it_go_on(small_disk: Path, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(REPLAYED)
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 330_000)
    status, errors = run("run", "study.toml", "--run-dir", "disk/run", cwd=tmp_path)
    assert status == 2
    assert "free some space and run the same command again" in errors
    kept = len(Store.open(small_disk / "run").records())
    filler.unlink()
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    assert run("run", "study.toml", "--run-dir", "disk/run", cwd=tmp_path)[0] == 0
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
    tmp_path: Path, frozen: Callable[[Path, bool], None]
) -> None:
    (tmp_path / "study.toml").write_text(REPLAYED.replace("delay_s = 0.01", "delay_s = 0.03"))
    process = start("run", "study.toml", "--run-dir", "run", cwd=tmp_path)
    records = tmp_path / "run/records.jsonl"
    try:
        deadline = time.monotonic() + 60
        while not (records.exists() and '"kind":"trial"' in records.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        frozen(records, True)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 2, errors
    assert "must be writable" in errors
    assert "Traceback" not in errors
    assert len([json.loads(line) for line in records.read_text().splitlines()]) >= 3
    status, errors = run("run", "study.toml", "--run-dir", "run", cwd=tmp_path)
    assert (status, "must be writable" in errors) == (2, True)
    frozen(records, False)
    assert run("run", "study.toml", "--run-dir", "run", cwd=tmp_path)[0] == 0
    assert len(Store.open(tmp_path / "run").of(TrialResult)) == 9


def test_a_file_that_may_not_grow_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(REPLAYED)
    # A shell sets the limit, not `preexec_fn`: another test of this process may have begun JAX's threads.
    limit = ("sh", "-c", 'ulimit -f 17 && exec "$@"', "limited")  # of 512 bytes each
    status, errors = run("run", "study.toml", "--run-dir", "run", cwd=tmp_path, under=limit)
    assert status == 2
    assert "must be writable" in errors
    assert run("run", "study.toml", "--run-dir", "run", cwd=tmp_path)[0] == 0
    assert len(Store.open(tmp_path / "run").of(TrialResult)) == 9


def test_a_clock_that_jumps_changes_no_duration(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(REPLAYED)
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(
        "import itertools, time\n"
        "_real, _jumps = time.time, itertools.cycle([0, 86400, -86400, 1e9])\n"
        "time.time = lambda: _real() + next(_jumps)\n"
    )
    began = time.monotonic()
    env = {"PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{ROOT}"}
    assert run("run", "study.toml", "--run-dir", "run", "--time-budget", "10m", cwd=tmp_path, env=env)[0] == 0
    store = Store.open(tmp_path / "run")
    times = [r.at_s for r in store.records()]
    assert len(store.of(TrialResult)) == 9
    assert times == sorted(times)
    assert times[-1] < time.monotonic() - began
    assert all(0 < (r.duration_s or 0) < 60 for r in store.of(TrialResult) if r.status is TrialStatus.MEASURED)


# ---------------------------------------------------------------------- the table itself


def test_every_pointer_of_the_table_leads_to_a_test() -> None:
    text = (ROOT / "docs/faults.md").read_text(encoding="utf-8")
    pointers = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(pointers) >= 17
    for file, name in pointers:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}, f"{file}::{name}"

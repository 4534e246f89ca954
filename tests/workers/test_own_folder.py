"""Programs that keep checkpoints, take locks and bind ports: the user's folder stays byte for byte what it was."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.child.own_folder import COPY, OVERLAY
from autotune.measure.runner import TaskRunner
from autotune.measure.tasks import Assignment
from autotune.model.errors import LaunchError
from autotune.model.flags import FlagSet
from autotune.model.measurement import ABA
from autotune.model.records import AaRecord
from autotune.model.spec import StudySpec
from autotune.rundir.store import Folders
from autotune.workers import own_folder
from autotune.workers.command import CommandLauncher
from autotune.workers.local import LocalWorker
from autotune.workers.own_folder import SHARED, OwnFolder
from tests.runs import Told
from tests.tables import toml_beside
from tests.workers.conftest import study

PROGRAMS = toml_beside(__file__, "own_folder.toml")
LOOP, KINDS = PROGRAMS["loop"], PROGRAMS["kinds"]
READ = {"pattern": r"(?P<step_ms>[\d.]+) ms", "loss": r"loss = (?P<loss>\S+)"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's folder with checkpoints, a log and a link."""
    folder = tmp_path / "project, mine: v1"
    (folder / "ckpt").mkdir(parents=True)
    for step in (70, 80, 90):
        (folder / "ckpt" / str(step)).write_text("mine")
    (folder / "metrics.csv").write_text("step\n")
    (folder / "latest").symlink_to("ckpt/90")
    return folder


def content(folder: Path) -> dict[str, Any]:
    """Everything in a folder: bytes, targets of links, modes and times."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        data = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path)] = (data, status.st_mode, status.st_mtime_ns, status.st_ino)
    return found


def program(project: Path, text: str) -> StudySpec:
    """A study of a program with this text in a folder."""
    (project / "train.py").write_text(text)
    return study({"command": [sys.executable, "train.py"], "read": READ})


Begin = Callable[[StudySpec, Path], LocalWorker]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Starts a worker of a study in a folder; all are ended with the test."""
    launchers = []

    def start(spec: StudySpec, project: Path) -> LocalWorker:
        launcher = CommandLauncher(spec, study_dir=str(project), base=os.environ)
        launchers.append(launcher)
        logs = tmp_path / f"run-{len(launchers)}"
        logs.mkdir()
        return launcher.start(FlagSet(), logs, progress=lambda phase: None)

    yield start
    for launcher in launchers:
        launcher.close()


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder, empty."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_at_once_leave_the_folder_as_is(kind: str, project: Path, begin: Begin, scratch: Path) -> None:
    spec = program(project, KINDS[kind] + LOOP)
    before = content(project)
    workers = [begin(spec, project), begin(spec, project)]  # both alive: a lock of one would end the other
    begins = {w.report.step_numbers[0] for w in workers}
    assert begins == ({90} if "ckpt" in KINDS[kind] else {0})
    for worker in workers:
        worker.run_block(5)
        worker.close()
    assert content(project) == before
    assert list(scratch.iterdir()) == []


def test_without_an_overlay_a_small_folder_is_copied_and_a_large_one_is_shared_and_said_so(
    project: Path, begin: Begin, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_folder, "overlay_problem", lambda folder: "not allowed")
    own_folder.kind_for.cache_clear()
    spec = program(project, KINDS["keeps the last three"] + LOOP)
    os.mkfifo(project / "pipe")
    before = content(project / "ckpt")
    worker = begin(spec, project)
    worker.run_block(5)
    worker.close()
    assert worker.report.step_numbers[0] == 90
    assert any("a copy" in w for w in worker.report.warnings)
    assert content(project / "ckpt") == before
    own_folder.kind_for.cache_clear()
    monkeypatch.setattr(own_folder, "COPY_FILES", 2)
    assert OwnFolder(str(project), "own").kind == SHARED
    shared = begin(spec, project)
    shared.close()
    assert any("all processes" in w for w in shared.report.warnings)
    assert content(project / "ckpt") != before
    own_folder.kind_for.cache_clear()


def test_what_is_kept_is_kept_and_the_user_may_share_the_folder(project: Path, scratch: Path) -> None:
    kept = project / "runs" / "1"
    kept.mkdir(parents=True)
    own = OwnFolder(str(project), "own")
    assert own.kind in (OVERLAY, COPY)
    command = own.command(["sh", "-c", f"echo a > '{kept}/a'; echo b > b; ls ckpt"], [kept])
    assert subprocess.run(command, check=False).returncode == 0
    own.close()
    assert (kept / "a").exists()
    assert not (project / "b").exists()
    assert OwnFolder(str(project), "shared").command(["a"], [kept]) == ["a"]


def test_a_program_that_keeps_its_checkpoints_in_the_folder_of_its_trial_begins_anew_each_time(
    project: Path, tmp_path: Path
) -> None:
    text = KINDS["resumes"].replace("import os, time", "import os, sys, time\nos.chdir(sys.argv[1])")
    (project / "train.py").write_text(text + LOOP)
    spec = study({"command": [sys.executable, "train.py", "{folder}"], "read": READ})
    launcher = CommandLauncher(spec, study_dir=str(project), base=os.environ)
    for _ in range(2):
        worker = launcher.start(FlagSet(), tmp_path, progress=lambda phase: None)
        assert worker.report.step_numbers[0] == 0
        worker.close()
    assert len(list((tmp_path / "files" / "ckpt").iterdir())) > 5


# ---------------------------------------------------------------------- what a study says of it


def aa_run(spec: StudySpec, project: Path, run: Path) -> tuple[AaRecord, Told]:
    """The A/A run of a program's study."""
    sink = Told()
    launcher = CommandLauncher(spec, study_dir=str(project), base=os.environ)
    runner = TaskRunner(spec, Folders(run), launcher, sink)
    try:
        found = runner.do(Assignment(folder=("aa_run",), name="aa_run"))
    finally:
        runner.close()
    assert isinstance(found, AaRecord)
    return found, sink


def test_a_program_that_resumes_in_a_shared_folder_is_refused(project: Path, tmp_path: Path) -> None:
    spec = program(project, KINDS["resumes"] + LOOP)
    shared = spec.model_copy(update={"workload": spec.workload.model_copy(update={"folder": "shared"})})
    with pytest.raises(LaunchError, match=r"at 90 .* earlier run"):
        aa_run(shared, project, tmp_path / "run")


@pytest.mark.gate
def test_two_processes_that_want_one_port_run_one_at_a_time(project: Path, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (project / "train.py").write_text(PROGRAMS["binds"])
    command = [sys.executable, "train.py", str(port)]
    spec = study({"command": command, "hook": True}, measure={"pairs_cap": 6, "run_steps": 10})
    before = content(project)
    found, sink = aa_run(spec, project, tmp_path / "run")
    assert found.comparison.mode == ABA
    assert any("same port" in said for said in sink.incidents)
    assert content(project) == before
    by_turns = study({"command": command, "hook": True}, measure={"pairs_cap": 6, "mode": "interleaved"})
    with pytest.raises(LaunchError, match="same port"):
        aa_run(by_turns, project, tmp_path / "again")

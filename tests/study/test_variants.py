"""Variants of a program: revisions are checked out whole and removed again, and run their own code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.model.errors import StudyFileError
from autotune.model.flags import FlagSet
from autotune.programs import variants
from autotune.programs.variants import Variant, at_revision, changed_files, variant_of

IDENTITY = ("-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "protocol.file.allow=always")
TRAIN = Variant(command=(sys.executable, "train.py"))


def test_flags_are_settings_and_never_variables_that_would_hide_those_of_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(variants, "caller_environment", lambda: {"XLA_FLAGS": "--xla_of_call=1"})
    found = variant_of(["train.py"], ["XLA_FLAGS=--xla_of_b=2", "NCCL_PROTO=LL", "MODE=x"], None)
    assert found.settings == FlagSet({"xla_of_call": "1", "xla_of_b": "2", "NCCL_PROTO": "LL"})
    assert found.variables == {"MODE": "x"}


def test_a_file_of_variables_without_an_end_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for file in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(StudyFileError, match="must be a text file that sets variables"):
            variant_of(["train.py"], (), file)


def git(*words: str) -> None:
    subprocess.run(["git", *IDENTITY, *words], check=True, capture_output=True)


def commit(**files: str) -> None:
    for name, text in files.items():
        file = Path(name.replace("__", "/"))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.with_suffix(".py").write_text(text, encoding="utf-8")
    git("add", "-A")
    git("commit", "-m", "next")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    git("init", "-b", "main")
    commit(train="from model import speed\nprint(speed)\n", src__model="speed = 1\n")
    commit(src__model="speed = 2\n")
    return tmp_path


def printed(variant: Variant, **more: str) -> str:
    environment = {**os.environ, **more}
    done = subprocess.run(["/bin/sh", "-c", variant.body], capture_output=True, text=True, check=True, env=environment)
    return done.stdout.strip()


def worktrees() -> int:
    listed = subprocess.run(["git", "worktree", "list"], capture_output=True, text=True, check=True)
    return len(listed.stdout.splitlines())


def test_a_revision_runs_its_own_package_and_is_removed(repository: Path) -> None:
    place = Path("runs") / "train-ab-a"
    with at_revision(TRAIN, "HEAD~1", place) as before, at_revision(TRAIN, "main", place.with_name("b")) as now:
        # As where the package is installed from the caller's folder.
        installed = str(repository / "src")
        assert (printed(before, PYTHONPATH=installed), printed(now, PYTHONPATH=installed)) == ("1", "2")
        assert worktrees() == 3
        assert before.name.startswith("HEAD~1 (")
    assert worktrees() == 1
    assert not list((repository / "runs").iterdir())


def test_a_worktree_of_a_killed_session_is_made_anew(repository: Path) -> None:
    session = at_revision(TRAIN, "HEAD", Path("runs") / "a")
    killed = session.__enter__()
    (tree,) = Path("runs").iterdir()
    (tree / "train.py").write_text("print('left behind')")
    with at_revision(TRAIN, "HEAD", Path("runs") / "a") as again:
        assert again == killed
        assert printed(again) == "2"


def test_a_command_runs_in_the_same_folder_of_each_revision(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(jobs__train="from model import speed\nprint(speed)\n")
    monkeypatch.chdir(repository / "jobs")
    with at_revision(TRAIN, "HEAD", Path("runs") / "a") as now:
        assert printed(now) == "2"
    with pytest.raises(StudyFileError, match="no jobs"), at_revision(TRAIN, "HEAD~1", Path("runs") / "a"):
        pass
    assert worktrees() == 1


def test_changed_files_are_told(repository: Path) -> None:
    assert changed_files() == []
    (repository / "train.py").write_text("print(3)\n")
    (repository / "notes.txt").write_text("not tracked\n")
    assert changed_files() == ["train.py"]


def _submodule(repository: Path) -> None:
    git("clone", ".", "../other")
    git("submodule", "add", "../other", "vendor")


@pytest.mark.parametrize(
    ("change", "revision", "words"),
    [
        (_submodule, "HEAD", "has submodules"),
        (None, "no-such", r"git repository.* says of 'no-such"),
        (None, "--help", r"git repository.* says of '--help"),
    ],
    ids=["submodule", "unknown", "an-option"],
)
def test_a_revision_that_is_not_whole_is_refused(change: object, revision: str, words: str, repository: Path) -> None:
    if callable(change):
        change(repository)
        commit()
    with pytest.raises(StudyFileError, match=words), at_revision(TRAIN, revision, Path("runs") / "a"):
        pass
    assert worktrees() == 1


def test_without_a_repository_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(StudyFileError, match="git repository"), at_revision(TRAIN, "HEAD", Path("runs") / "a"):
        pass

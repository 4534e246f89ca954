"""Folders of killed processes are swept, and no others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from autotune.machine.files import COMPILES, LANE, Scratch, remove_tree, sweep
from tests.runs import there
from tests.tables import toml_beside

PREFIX = LANE
HOLDS = toml_beside(__file__, "programs.toml")["holds_a_folder"]


def age(*paths: Path) -> None:
    """Makes folders as old as those that nobody is about to lock."""
    old = time.time() - 3600
    for path in paths:
        os.utime(path, (old, old))


def test_a_killed_owners_folder_is_swept_and_a_living_ones_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        path = Path(there(owner.stdout).readline().strip())
        age(path)
        own = Scratch(PREFIX)
        age(own.path)
        sweep(tmp_path, PREFIX)
        assert own.path.is_dir()
        assert (path / "deep/lane.log").read_text() == "x"
        owner.send_signal(signal.SIGKILL)
        owner.wait(30)
        other = Scratch(COMPILES)  # sweeps what is of its own kind only
        assert path.is_dir()
        sweep(tmp_path, PREFIX)
        assert not path.exists()
        assert own.path.is_dir()
        own.close()
        other.close()
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_known_to_be_dead_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "kept").touch()
    (tmp_path / f"{PREFIX}link").symlink_to(precious)  # whoever may write here could lead the sweep elsewhere
    (tmp_path / f"{PREFIX}file").touch()
    os.mkfifo(tmp_path / f"{PREFIX}pipe")
    living, (dead, young) = Scratch(PREFIX), (tmp_path / f"{PREFIX}{name}" for name in ("dead", "young"))
    dead.mkdir()
    young.mkdir()
    (dead / "link").symlink_to(precious)
    age(precious, living.path, dead, tmp_path / f"{PREFIX}file", tmp_path / f"{PREFIX}pipe")
    before = sorted(tmp_path.rglob("*"))
    with monkeypatch.context() as patch:  # everything is another user's
        patch.setattr(os, "getuid", lambda: os.geteuid() + 1)
        sweep(tmp_path, PREFIX)
    assert sorted(tmp_path.rglob("*")) == before
    sweep(tmp_path, PREFIX)
    assert sorted(tmp_path.rglob("*")) == [p for p in before if dead not in (p, p.parent)]


def test_removing_leaves_the_modes_of_what_is_beside_a_folder_or_behind_a_link(tmp_path: Path) -> None:
    shared, kept = tmp_path / "tmp", tmp_path / "kept"
    kept.mkdir()
    shared.mkdir()
    shared.chmod(0o1777)
    kept.chmod(0o755)
    remove_tree(shared / "gone")
    (shared / "link").symlink_to(kept)
    remove_tree(shared / "link")
    assert not (shared / "link").is_symlink()
    assert (shared.stat().st_mode & 0o7777, kept.stat().st_mode & 0o7777) == (0o1777, 0o755)
    (shared / "closed" / "deep").mkdir(parents=True)
    (shared / "closed").chmod(0)
    remove_tree(shared / "closed")
    assert not (shared / "closed").exists()

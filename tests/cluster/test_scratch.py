"""Folders of killed processes are swept, and no others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from autotune.cluster.scratch import OWNER, Scratch, sweep_scratch

PREFIX = "autotune-lane-"
HOLDS = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from autotune.cluster.scratch import Scratch
made = Scratch("autotune-lane-")
(made.path / "deep").mkdir()
(made.path / "deep/lane.log").write_text("x")
print(made.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_killed_owners_folder_is_swept_and_a_living_ones_stays(folder: Path) -> None:
    command = [sys.executable, "-c", HOLDS, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        path = Path(owner.stdout.readline().strip())
        own = Scratch(PREFIX)
        sweep_scratch(PREFIX)
        assert (path / "deep/lane.log").read_text() == "x"
        assert own.path.is_dir()
        owner.send_signal(signal.SIGKILL)
        owner.wait(30)
        sweep_scratch(PREFIX)
        assert not path.exists()
        assert own.path.is_dir()
        own.remove()
    assert list(folder.iterdir()) == []


def test_what_is_not_known_to_be_dead_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    precious = folder / "precious"
    precious.mkdir()
    (precious / OWNER).touch()
    (folder / f"{PREFIX}link").symlink_to(precious)  # whoever may write here could lead the sweep elsewhere
    (folder / f"{PREFIX}file").touch()
    for name, make in {"bare": None, "link-inside": "link", "pipe-inside": "pipe", "folder-inside": "folder"}.items():
        path = folder / f"{PREFIX}{name}"
        path.mkdir()
        if make == "link":
            (path / OWNER).symlink_to(precious / OWNER)
        elif make == "pipe":
            os.mkfifo(path / OWNER)
        elif make == "folder":
            (path / OWNER).mkdir()
    begun = folder / f"{PREFIX}begun"  # its owner has made it, and has no lock yet
    begun.mkdir()
    (begun / f".{OWNER}").touch()
    before = sorted(folder.rglob("*"))
    sweep_scratch(PREFIX)
    assert sorted(folder.rglob("*")) == before

    dead = folder / f"{PREFIX}dead"
    dead.mkdir()
    (dead / OWNER).touch()
    with monkeypatch.context() as patch:  # everything is another user's
        patch.setattr(os, "getuid", lambda: os.geteuid() + 1)
        sweep_scratch(PREFIX)
    assert dead.is_dir()
    sweep_scratch(PREFIX)
    assert not dead.exists()
    assert (precious / OWNER).exists()


def test_it_is_emptied_but_for_its_lock_and_follows_no_link(folder: Path) -> None:
    outside = folder / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    own = Scratch(PREFIX)
    (own.path / "lane.log").touch()
    (own.path / "sub").mkdir()
    (own.path / "link").symlink_to(outside)
    own.clear()
    assert [p.name for p in own.path.iterdir()] == [OWNER]
    assert (outside / "kept").exists()
    own.remove()
    own.remove()
    assert not own.path.exists()

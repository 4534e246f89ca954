"""One driver writes, whatever the file system can do."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from autotune.model.errors import RunDirectoryError
from autotune.rundir import lock
from autotune.rundir.lock import Lock, Mount, is_held, mount_of, read_holder
from tests.runs import there
from tests.tables import toml_beside

MOUNTS = toml_beside(__file__, "mounts.toml")


@pytest.mark.parametrize("path", MOUNTS["paths"])
def test_what_a_path_lies_on(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [SimpleNamespace(mountpoint=m, fstype=f, opts=o) for m, f, o in MOUNTS["mounts"]]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: parts)
    mount = mount_of(Path(path))
    assert [mount.point, mount.kind, mount.locks_everywhere] == MOUNTS["paths"][path]


def test_what_this_machine_says_can_be_read(tmp_path: Path) -> None:
    assert tmp_path.is_relative_to(mount_of(tmp_path).point)
    assert mount_of(tmp_path).kind != "unknown"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_refused_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(descriptor: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(RunDirectoryError, match=r"with locks .* --run-dir"):
        Lock(tmp_path)
    assert not is_held(tmp_path)


@pytest.fixture
def node_local(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that keeps locks to one machine."""
    monkeypatch.setattr(lock, "mount_of", lambda path: Mount("/scratch", "lustre", frozenset({"localflock"})))


def left_by(tmp_path: Path, host: str, boot: str) -> None:
    (tmp_path / "lock").write_text(f"4711 {host} {boot}\n")


@pytest.mark.usefixtures("node_local")
def test_a_driver_on_another_machine_counts_until_a_person_says_that_it_is_dead(tmp_path: Path) -> None:
    left_by(tmp_path, "othernode", "another-boot")
    with pytest.raises(RunDirectoryError, match=r"process 4711 on othernode .* delete .*/lock"):
        Lock(tmp_path)
    assert is_held(tmp_path)
    assert read_holder(tmp_path) is not None
    (tmp_path / "lock").unlink()
    assert not is_held(tmp_path)
    Lock(tmp_path).close()


@pytest.mark.usefixtures("node_local")
def test_a_driver_that_died_here_or_before_a_reboot_is_dead(tmp_path: Path) -> None:
    left_by(tmp_path, socket.gethostname(), "an-earlier-boot")
    Lock(tmp_path).close()
    left_by(tmp_path, "another-container", Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    Lock(tmp_path).close()


def test_where_locks_are_seen_everywhere_a_name_that_is_left_means_nothing(tmp_path: Path) -> None:
    left_by(tmp_path, "othernode", "another-boot")
    assert not is_held(tmp_path)
    Lock(tmp_path).close()


@pytest.mark.parametrize("left", [b"", b"\0" * 40, b"4711\n", b"\xff\xfe rubbish \n more", b"1 2 3 4 5"])
def test_whatever_a_lock_file_holds_it_can_be_taken(tmp_path: Path, left: bytes) -> None:
    (tmp_path / "lock").write_bytes(left)
    Lock(tmp_path).close()
    assert (tmp_path / "lock").read_bytes() == b""  # ended in order


def test_the_lock_of_a_killed_driver_is_free_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    program = "import sys, pathlib, autotune.rundir.lock as l; x = l.Lock(pathlib.Path(sys.argv[1])); print(flush=True)"
    command = [sys.executable, "-c", f"{program}; sys.stdin.read()", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        there(other.stdout).readline()
        assert is_held(tmp_path)
        with pytest.raises(RunDirectoryError, match=f"process {other.pid} on {socket.gethostname()}"):
            Lock(tmp_path)
        other.kill()
    assert read_holder(tmp_path) is not None
    assert not is_held(tmp_path)
    Lock(tmp_path).close()


@pytest.mark.usefixtures("node_local")
def test_of_two_machines_that_start_at_once_one_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync

    def overtaken(descriptor: int) -> None:
        fsync(descriptor)
        left_by(tmp_path, "othernode", "another-boot")

    monkeypatch.setattr(os, "fsync", overtaken)
    with pytest.raises(RunDirectoryError, match="just now"):
        Lock(tmp_path)

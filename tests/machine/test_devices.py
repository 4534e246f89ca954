"""Reservations of devices: by one study at a time, in a folder that no other user can prepare."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from autotune.machine.devices import reserve_devices
from autotune.model.errors import LaunchError


@pytest.fixture
def slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"autotune-slots-{os.getuid()}"


def test_a_device_is_of_one_study_at_a_time(slots: Path) -> None:
    with reserve_devices("cuda", ["0", "1"]):
        assert slots.stat().st_mode & 0o777 == 0o700
        with pytest.raises(LaunchError, match=rf"cuda device 1 is in use by another \(process {os.getpid()}\)"):
            reserve_devices("cuda", ["1"]).__enter__()
        with reserve_devices("cuda", ["2"]), reserve_devices("cpu", ["0"]):
            pass
    with reserve_devices("cuda", ["0", "1"]):
        pass


def test_no_device_needs_no_folder(slots: Path) -> None:
    with reserve_devices("cuda", []):
        assert not slots.exists()


def refused(words: str) -> None:
    with pytest.raises(LaunchError, match=rf"of this user alone.*{words}.*TMPDIR"):
        reserve_devices("cuda", ["0"]).__enter__()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o711])
def test_a_folder_that_others_may_use_is_refused(slots: Path, mode: int) -> None:
    slots.mkdir()
    slots.chmod(mode)
    refused(f"others may use it .mode {mode:04o}")
    assert list(slots.iterdir()) == []


def test_a_link_is_refused_wherever_it_leads(slots: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o700)
    slots.symlink_to(tmp_path / "mine")
    refused("it is a link")
    assert list((tmp_path / "mine").iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_another_user_s_folder_is_refused(slots: Path) -> None:
    slots.mkdir(mode=0o700)
    os.chown(slots, 12345, 12345)
    refused("it belongs to user 12345")


def test_a_file_or_a_link_in_its_place_is_refused(slots: Path, tmp_path: Path) -> None:
    slots.write_text("")
    refused("File exists")
    slots.unlink()
    slots.mkdir(mode=0o700)
    (tmp_path / "precious").write_text("data")
    (slots / "cuda-0").symlink_to(tmp_path / "precious")
    refused("cuda-0")
    assert (tmp_path / "precious").read_text() == "data"

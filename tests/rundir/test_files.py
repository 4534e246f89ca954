"""What is told is on disk, in an order in which nothing rests on what is not; and no link leads out of a run."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from autotune.machine.files import make_folder, replace_file
from autotune.model.errors import RunDirectoryError
from autotune.rundir.files import append_synced, folder_within
from autotune.rundir.store import Store
from tests.runs import record, replay_study
from tests.tables import toml_beside

SPEC = replay_study(effects={"xla_a=1": 0.9}, noise={"white_sd": 1e-6})


class Diary:
    """Which paths were written and synced, in order, relative to a folder."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[tuple[str, str]] = []
        self._root = root
        fsync, write = os.fsync, os.write

        def noted_sync(descriptor: int) -> None:
            fsync(descriptor)
            self._note("sync", descriptor)

        def noted_write(descriptor: int, data: bytes) -> int:
            self._note("write", descriptor)
            return write(descriptor, data)

        monkeypatch.setattr(os, "fsync", noted_sync)
        monkeypatch.setattr(os, "write", noted_write)

    def _note(self, what: str, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_relative_to(self._root):
            self.done.append((what, path.relative_to(self._root).as_posix()))


def test_a_record_is_written_after_the_samples_it_rests_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    diary = Diary(tmp_path, monkeypatch)
    record(tmp_path / "new/run", SPEC, trials=5)
    done = diary.done
    first = done.index(("write", "new/run/records.jsonl"))
    for folder in (".", "new", "new/run"):  # the run directory itself has a name that can be lost
        assert ("sync", folder) in done[:first]
    pairs = {path for what, path in done if what == "write" and path.endswith("pairs.jsonl")}
    assert len(pairs) > 5
    for path in pairs:
        last_sample = max(i for i, entry in enumerate(done) if entry == ("write", path))
        recorded = done.index(("write", "new/run/records.jsonl"), last_sample)
        between = done[last_sample:recorded]
        folder = path.rpartition("/")[0]
        assert {("sync", path), ("sync", folder), ("sync", folder.rpartition("/")[0])} <= set(between), path
    for i, entry in enumerate(done):
        if entry == ("write", "new/run/records.jsonl"):
            assert done[i + 1] == ("sync", "new/run/records.jsonl")


def test_a_replaced_file_and_its_name_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    diary = Diary(tmp_path, monkeypatch)
    replace_file(tmp_path / "a/b/file", "text")
    assert [path for what, path in diary.done if what == "sync"][:2] == [".", "a"]
    assert diary.done[-1] == ("sync", "a/b")
    assert diary.done[-2][1].startswith("a/b/.file.")


def test_a_folder_that_its_file_system_cannot_sync_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)
    make_folder(tmp_path / "a/b")
    assert (tmp_path / "a/b").is_dir()


def fail(*_: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_where_even_cutting_back_fails_the_next_line_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "lines"
    append_synced(file, "one\n")
    write = os.write
    with monkeypatch.context() as broken:
        broken.setattr(os, "write", lambda fd, data: write(fd, data[:2]))
        broken.setattr(os, "ftruncate", fail)
        with pytest.raises(RunDirectoryError):
            append_synced(file, "lost\n")
    assert file.read_text() == "one\nlo"
    append_synced(file, "two\n")
    assert file.read_text() == "one\ntwo\n"


def test_a_sync_that_fails_takes_the_line_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "lines"
    append_synced(file, "one\n")
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fail)
        with pytest.raises(RunDirectoryError, match=r"Input/output error; .*same"):
            append_synced(file, "two\n")
    assert file.read_text() == "one\n"


@pytest.mark.parametrize("size", [1, 65535, 65536, 65537, 200_000])
def test_a_long_torn_line_is_cut_to_the_last_newline(tmp_path: Path, size: int) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"one\n" + b"x" * size)
    append_synced(file, "")
    assert file.read_bytes() == b"one\n"
    file.write_bytes(b"x" * size)
    append_synced(file, "")
    assert file.read_bytes() == b""


@pytest.fixture(scope="module")
def five_trials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("five") / "run", SPEC, trials=5).path


@pytest.mark.parametrize("place", toml_beside(__file__)["places_of_links"])
def test_no_link_inside_a_run_is_followed(tmp_path: Path, five_trials: Path, place: str) -> None:
    run_dir = Path(shutil.copytree(five_trials, tmp_path / "run"))
    precious = tmp_path / "precious"
    link = run_dir / place
    if link.is_dir():
        link.rename(precious)
    elif link.exists():
        precious.write_bytes(link.read_bytes())
        link.unlink()
    else:
        precious.write_text("mine\n")
        link.parent.mkdir(exist_ok=True)
    link.symlink_to(precious)
    before = precious.read_bytes() if precious.is_file() else sorted(precious.rglob("*"))
    with pytest.raises(RunDirectoryError, match="symbolic link") as error:
        record(run_dir, SPEC, trials=9)
    assert str(precious) in str(error.value)
    assert before == (precious.read_bytes() if precious.is_file() else sorted(precious.rglob("*")))


def test_a_link_to_nowhere_makes_no_file_there(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "records.jsonl").symlink_to(tmp_path / "made")
    with pytest.raises(RunDirectoryError, match="symbolic link"):
        record(run_dir, SPEC, trials=3)
    for name in ("file", "folder"):
        (tmp_path / name).symlink_to(tmp_path / "made")
    with pytest.raises(RunDirectoryError, match="symbolic link"):
        append_synced(tmp_path / "file", "x\n")
    with pytest.raises(RunDirectoryError, match="symbolic link"):
        folder_within(tmp_path, "folder")
    assert not (tmp_path / "made").exists()


def test_a_run_directory_may_itself_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    record(tmp_path / "run", SPEC, trials=3)
    assert (tmp_path / "elsewhere/records.jsonl").is_file()
    assert Store.open(tmp_path / "run").records()

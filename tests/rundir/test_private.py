"""A run directory is its owner's alone unless the owner asked for another mode, and its files follow it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.model.measurement import Pair
from autotune.model.records import IncidentRecord
from autotune.model.spec import parse_study
from autotune.rundir.files import write_atomically
from autotune.rundir.store import Store


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """The mask that hides least."""
    before = os.umask(0)
    yield
    os.umask(before)


def fill(path: Path) -> None:
    spec = parse_study({"name": "s", "workload": {"entry": "llama"}})
    store = Store.create_or_resume(path, spec, study_dir=path.parent)
    store.append(IncidentRecord(what="x"))
    folder = store.folder("trials", "0001", "reference")
    store.write_beside(folder, "request.json", lambda: "{}")
    store.pair_writer(folder)(Pair(index=0, first="reference", reference_s=(1.0,), candidate_s=(1.0,), at_s=0.0))
    store.close()


def modes(path: Path) -> set[tuple[bool, int]]:
    return {(p.is_dir(), stat.S_IMODE(p.stat().st_mode)) for p in (path, *path.rglob("*"))}


def test_a_new_run_directory_is_its_owner_s_alone_and_stays_shared_once_it_is(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "x"
    fill(run)
    assert modes(run) == {(True, 0o700), (False, 0o600)}
    assert stat.S_IMODE(run.parent.stat().st_mode) == 0o777  # `runs` is as the mask says
    run = tmp_path / "x"
    fill(run)
    for path in (run, *run.rglob("*")):  # chmod -R g+rX
        path.chmod(0o750 if path.is_dir() else 0o640)
    fill(run)
    assert modes(run) == {(True, 0o750), (False, 0o640)}


@pytest.mark.parametrize(("asked", "files"), [(0o750, 0o640), (0o755, 0o644), (0o770, 0o660), (0o700, 0o600)])
def test_one_that_is_there_keeps_its_mode_and_gives_it_on(tmp_path: Path, asked: int, files: int) -> None:
    run = tmp_path / "x"
    run.mkdir()
    run.chmod(asked)
    fill(run)
    assert modes(run) == {(True, asked), (False, files)}


def test_an_exported_file_is_as_the_mask_says(tmp_path: Path) -> None:
    os.umask(0o022)
    write_atomically(tmp_path / "new" / "winner.env", "x")
    tmp_path.chmod(0o755)
    write_atomically(tmp_path / "winner.env", "x")
    assert stat.S_IMODE((tmp_path / "winner.env").stat().st_mode) == 0o644

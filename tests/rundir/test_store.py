"""A run directory is its owner's alone unless the owner asked for another mode, and its files follow it."""

from __future__ import annotations

import os
import resource
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.model.clock import Stopwatch
from autotune.model.errors import RunDirectoryError
from autotune.model.measurement import Pair
from autotune.model.records import RECORD, SCHEMA_VERSION, IncidentRecord, TrialResult
from autotune.model.spec import StudySpec, parse_study
from autotune.rundir.files import append_synced, write_atomically
from autotune.rundir.lock import is_held
from autotune.rundir.store import PAIRS, RECORDS, Store
from tests.runs import record, replay_study


def study(**more: object) -> StudySpec:
    return parse_study({"name": "s", "workload": {"entry": "llama"}, **more})


def test_no_part_of_a_record_takes_a_field_that_it_does_not_know() -> None:
    parts = {name: part for name, part in RECORD.json_schema()["$defs"].items() if "properties" in part}
    assert {"Estimate", "Stalls", "TotalTime", "LossSpread", "AaNoise"} <= parts.keys()
    assert [name for name, part in parts.items() if part["additionalProperties"] is not False] == []


def test_second_driver_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    store = Store.create_or_resume(tmp_path, study(), study_dir=tmp_path)
    assert is_held(tmp_path)
    with pytest.raises(RunDirectoryError, match=rf"process {os.getpid()}"):
        Store.create_or_resume(tmp_path, study(), study_dir=tmp_path)
    store.close()
    assert not is_held(tmp_path)
    Store.create_or_resume(tmp_path, study(), study_dir=tmp_path).close()


def test_run_directory_of_another_study_is_refused_with_the_section_that_differs(tmp_path: Path) -> None:
    store = Store.create_or_resume(tmp_path, study(), study_dir=tmp_path)
    (store.folder("trials", "0001") / "pairs.jsonl").write_text("{}\n")
    store.close()
    other = study(measure={"pairs_cap": 11})
    with pytest.raises(RunDirectoryError, match="different: measure"):
        Store.create_or_resume(tmp_path, other, study_dir=tmp_path)


def test_an_aa_run_that_was_refused_never_blocks_the_edited_study(tmp_path: Path) -> None:
    """Its pairs are kept, in a folder of their own."""
    store = Store.create_or_resume(tmp_path, study(), study_dir=tmp_path)
    pairs = store.folder("aa_run") / PAIRS
    pairs.write_text("{}\n")
    store.close()
    Store.create_or_resume(tmp_path, study(measure={"pairs_cap": 11}), study_dir=tmp_path).close()
    assert not pairs.exists()
    assert [path.read_text() for path in tmp_path.glob(f"*/aa_run/{PAIRS}")] == ["{}\n"]


def test_budgets_and_names_may_change_on_resume(tmp_path: Path) -> None:
    Store.create_or_resume(tmp_path, study(search={"trials": 3}), study_dir=tmp_path).close()
    more = study(search={"trials": 9, "time_budget": "2h"}, description="longer")
    assert Store.create_or_resume(tmp_path, more, study_dir=tmp_path).spec.search.trials == 9


def test_a_folder_that_holds_something_else_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(RunDirectoryError, match=r"thesis\.tex"):
        Store.create_or_resume(tmp_path, study(), study_dir=tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_another_schema_is_refused(tmp_path: Path) -> None:
    Store.create_or_resume(tmp_path, study(), study_dir=tmp_path).close()
    file = tmp_path / "study.json"
    file.write_text(file.read_text().replace(f'"schema_version": {SCHEMA_VERSION}', '"schema_version": 99'))
    with pytest.raises(RunDirectoryError, match="is of 99"):
        Store.open(tmp_path)


@pytest.mark.parametrize("name", ["..", "a/b", "", "/etc", ".hidden"])
def test_folders_cannot_leave_the_run_directory(tmp_path: Path, name: str) -> None:
    store = Store.create_or_resume(tmp_path, study(), study_dir=tmp_path)
    with pytest.raises(RunDirectoryError, match="plain name"):
        store.folder("trials", name)


def test_full_disk_is_told_and_what_is_written_stays_whole(tmp_path: Path) -> None:
    # A limit on file size gives the same short write as a full disk, without filling one.
    store = Store.create_or_resume(tmp_path, study(), study_dir=tmp_path)
    store.append(IncidentRecord(what="before"))
    size = (tmp_path / RECORDS).stat().st_size
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, old[1]))
    try:
        with pytest.raises(RunDirectoryError, match="same command"):
            store.append(IncidentRecord(what="x" * 500))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    assert (tmp_path / RECORDS).stat().st_size == size
    store.append(IncidentRecord(what="after"))
    assert [r.what for r in store.of(IncidentRecord)] == ["before", "after"]


def test_full_device_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="some space"):
        append_synced(Path("/dev/full"), "x\n")


def test_atomic_write_leaves_no_half_file(tmp_path: Path) -> None:
    target = tmp_path / "f"
    write_atomically(target, "one")
    write_atomically(target, "two")
    assert target.read_text() == "two"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_elapsed_time_counts_across_sessions(tmp_path: Path) -> None:
    store = Store.create_or_resume(tmp_path, study(), study_dir=tmp_path)
    store.watch.earlier_s = 100.0
    store.append(IncidentRecord(what="late"))
    store.close()
    assert Store.create_or_resume(tmp_path, study(), study_dir=tmp_path).watch.total_s >= 100.0


@pytest.mark.parametrize("before_s", [0.0, 100.0])
def test_the_clock_of_a_command_never_goes_back(before_s: float) -> None:
    now = 6.0
    watch = Stopwatch(clock=lambda: now)
    now = 12.0  # asking the build
    shown = watch.total_s
    watch.earlier_s = before_s
    assert watch.total_s == before_s + shown


def test_stopwatch_counts_neither_a_pause_nor_time_without_a_lane() -> None:
    now = 0.0
    watch = Stopwatch(clock=lambda: now)
    watch.earlier_s = 5.0
    now = 2.0
    assert watch.total_s == 7.0
    now = 2.0 + 3600  # suspended: nobody looked for an hour
    assert watch.total_s == 7.0
    now += 3
    watch.hold(True)
    now += 20
    watch.hold(False)
    now += 1
    assert (watch.session_s, watch.total_s) == (6.0, 11.0)


class Counting:
    """Stands for the parser of records, and counts."""

    def __init__(self, parser: Any) -> None:
        self._parser = parser
        self.count = 0

    def validate_json(self, line: bytes) -> Any:
        self.count += 1
        return self._parser.validate_json(line)


def test_each_record_is_parsed_once_and_what_we_wrote_never(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = Counting(RECORD)
    monkeypatch.setattr("autotune.rundir.store.RECORD", parser)
    spec = replay_study(effects={"xla_a=1": 0.9}, noise={"white_sd": 1e-6})
    first = record(tmp_path / "run", spec, trials=5)
    lines = len(first.records())
    assert lines > 20
    assert parser.count == 0  # a closed run goes on from its index
    record(tmp_path / "run", spec, trials=9)
    assert parser.count == lines
    reader = Store.open(tmp_path / "run")
    for _ in range(3):
        assert len(reader.of(TrialResult)) == 9
    assert parser.count == lines + len(reader.records())


@pytest.fixture
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
    store.write_beside(folder, "request.json", "{}")
    store.pair_writer(folder)(Pair(index=0, first="reference", reference_s=(1.0,), candidate_s=(1.0,), at_s=0.0))
    store.close()


def modes(path: Path) -> set[tuple[bool, int]]:
    return {(p.is_dir(), stat.S_IMODE(p.stat().st_mode)) for p in (path, *path.rglob("*"))}


@pytest.mark.usefixtures("open_umask")
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


@pytest.mark.usefixtures("open_umask")
@pytest.mark.parametrize(("asked", "files"), [(0o750, 0o640), (0o755, 0o644), (0o770, 0o660), (0o700, 0o600)])
def test_one_that_is_there_keeps_its_mode_and_gives_it_on(tmp_path: Path, asked: int, files: int) -> None:
    run = tmp_path / "x"
    run.mkdir()
    run.chmod(asked)
    fill(run)
    assert modes(run) == {(True, asked), (False, files)}


@pytest.mark.usefixtures("open_umask")
def test_an_exported_file_is_as_the_mask_says(tmp_path: Path) -> None:
    os.umask(0o022)
    write_atomically(tmp_path / "new" / "winner.env", "x")
    tmp_path.chmod(0o755)
    write_atomically(tmp_path / "winner.env", "x")
    assert stat.S_IMODE((tmp_path / "winner.env").stat().st_mode) == 0o644


def test_values_of_secret_variables_are_struck_from_records_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SERVICE_TOKEN", 'plain"SECRET77\\')
    monkeypatch.setenv("APP_SECRET", "incident")
    store = Store.create_or_resume(tmp_path / "run", study(), study_dir=tmp_path)
    store.append(IncidentRecord(what='login failed with plain"SECRET77\\ at 0.5'))
    store.write_beside(store.folder("aa_run"), "request.txt", 'as plain"SECRET77\\')
    store.close()
    assert [r.what for r in store.of(IncidentRecord)] == ["login failed with *** at 0.5"]
    assert [r.what for r in Store.open(tmp_path / "run").of(IncidentRecord)] == ["login failed with *** at 0.5"]
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and "SECRET77" in p.read_text()]

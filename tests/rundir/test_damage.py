"""Damage of every kind at every place of a run directory: it is named with what to do, and the study goes on."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.model.errors import AutotuneError, RunDirectoryError
from autotune.model.records import CONFIRM, ConclusionRecord, ConfirmRun, FinalistResult, TrialResult
from autotune.rundir.damage import damages
from autotune.rundir.store import Store
from autotune.study.driver import run_study
from harness.simulated import GivenSetup, given_run
from harness.tally import tally_of
from tests.runs import SPACE, Diary, asking, record, replay_study, there

SPEC = replay_study(effects={"xla_a=1": 0.9}, noise={"white_sd": 1e-6}, failures={"xla_b=2": "crash"})
TRIALS = 7


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "run"
    record(folder, SPEC, trials=TRIALS)
    assert damages(Store.open(folder)) == []
    return folder


@pytest.fixture
def run_dir(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def goes_on(run_dir: Path, *, conclusions: int = 1) -> None:
    """The study ends with exact counts."""
    record(run_dir, SPEC, trials=TRIALS)
    tally = tally_of(run_dir)
    assert (tally["trials"], tally["lost"], tally["doubled"], tally["conclusions"]) == (TRIALS, 0, 0, conclusions)


def lines_of(run_dir: Path) -> list[bytes]:
    return (run_dir / "records.jsonl").read_bytes().splitlines(keepends=True)


def line_of_trial(run_dir: Path, number: int) -> int:
    found = [json.loads(line) for line in lines_of(run_dir)]
    return next(i for i, r in enumerate(found) if r["kind"] == "trial" and r["number"] == number)


def change_line(run_dir: Path, index: int, change: Callable[[bytes], bytes]) -> None:
    lines = lines_of(run_dir)
    lines[index] = change(lines[index])
    (run_dir / "records.jsonl").write_bytes(b"".join(lines))


def delete_line(file: Path, number: int) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[: number - 1], *lines[number:]]))


def lines_to_delete(run_dir: Path) -> list[tuple[Path, int]]:
    """Files and lines that the user is told to delete."""
    try:
        said = damages(Store.open(run_dir))
    except RunDirectoryError as error:
        said = [str(error)]
    named = (re.match(r"(?:records\.jsonl line \d+: )?(\S+) line (\d+)\b.*delete this line", line) for line in said)
    return [(run_dir / name[1], int(name[2])) for name in named if name]


def mend(run_dir: Path, copy: Path = Path()) -> list[str]:
    """Does by hand what is said of each damage, with a copy of the run at hand; returns what is said then."""
    for _ in range(20):  # what is deleted may be named by what is left
        try:
            store = Store.open(run_dir)
        except RunDirectoryError as error:
            if "delete it" in str(error):
                (run_dir / "study.json").unlink()
            return [str(error)]
        if not (found := lines_to_delete(run_dir)):
            said = damages(store)
            if any("restore it from a copy" in line for line in said) and not store.records():
                shutil.copyfile(copy / "records.jsonl", run_dir / "records.jsonl")
            return said
        for file, number in sorted(set(found), reverse=True):
            delete_line(file, number)
    raise AssertionError(found)


@pytest.mark.parametrize("tail", [b'{"kind":"trial","numb', b"\0" * 700, b"{"])
def test_a_torn_end_is_harmless_and_cut_by_the_next_session(run_dir: Path, tail: bytes) -> None:
    count = len(lines_of(run_dir))
    with (run_dir / "records.jsonl").open("ab") as stream:
        stream.write(tail)
    assert damages(Store.open(run_dir)) == []
    assert len(Store.open(run_dir).records()) == count
    goes_on(run_dir)
    assert damages(Store.open(run_dir)) == []


WINNERS = 0
DAMAGES: dict[str, tuple[int, Callable[[bytes], bytes], str]] = {
    "a line torn into the next": (3, lambda line: b'{"kind":"incident","wh' + line, "delete this line"),
    "zeros before a line": (3, lambda line: b"\0" * 300 + line, "delete this line"),
    "a trial that is lost": (5, lambda line: line[:-10] + b"\n", "delete this line"),
    "the winner's trial": (WINNERS, lambda line: b"rubbish\n", "must be a record of schema"),
    "a trial twice": (2, lambda line: line + line, r"is a second record of trial 2"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_records_are_named_and_the_study_goes_on_without_them(run_dir: Path, damage: str) -> None:
    number, change, said = DAMAGES[damage]
    number = number or there(there(Store.open(run_dir).last(ConclusionRecord)).trial)
    change_line(run_dir, line_of_trial(run_dir, number), change)
    shown = CliRunner().invoke(app, ["show", str(run_dir)])
    assert re.search(rf"records\.jsonl line \d+\b.*{said}", f"{shown.stdout}{shown.exception}".replace("\n", " "))
    if is_lost := damage != "a trial twice":
        with pytest.raises(RunDirectoryError, match=r"line \d+ .*delete"):
            record(run_dir, SPEC, trials=TRIALS)
    assert [line for line in mend(run_dir) if "of measurements" not in line] == []
    assert len(Store.open(run_dir).of(TrialResult)) == TRIALS - is_lost
    left = len(Store.open(run_dir).of(ConclusionRecord))
    goes_on(run_dir, conclusions=left + is_lost)  # a conclusion whose records are lost is drawn again


def test_a_record_that_names_a_lost_trial_is_named(run_dir: Path) -> None:
    number = there(there(Store.open(run_dir).last(ConclusionRecord)).trial)
    delete_line(run_dir / "records.jsonl", 1 + line_of_trial(run_dir, number))
    assert any(f"names trial {number}, " in line for line in damages(Store.open(run_dir)))


@pytest.mark.parametrize("content", [b"", b"{", b"\0" * 4096, b"[]", b'{"schema_version": 3}'])
def test_a_lost_study_file_is_written_anew_by_its_own_study_only(run_dir: Path, content: bytes) -> None:
    (run_dir / "study.json").write_bytes(content)
    with pytest.raises(RunDirectoryError, match=r"study\.json must"):
        Store.open(run_dir)
    shown = CliRunner().invoke(app, ["status", str(run_dir)])
    assert isinstance(shown.exception, AutotuneError)
    mend(run_dir)
    other = replay_study(noise={"white_sd": 1e-6}, study={"seed": 1})
    with pytest.raises(RunDirectoryError, match="this one"):
        record(run_dir, other, trials=TRIALS)
    goes_on(run_dir)
    assert damages(Store.open(run_dir)) == []


def test_records_that_do_not_say_whose_they_are_are_not_taken(run_dir: Path) -> None:
    (run_dir / "study.json").unlink()
    lines = [line for line in lines_of(run_dir) if json.loads(line)["kind"] != "session"]
    (run_dir / "records.jsonl").write_bytes(b"".join(lines))
    with pytest.raises(RunDirectoryError, match="this one"):
        record(run_dir, SPEC, trials=TRIALS)


def test_a_start_that_was_cut_short_at_any_place_goes_on(tmp_path: Path) -> None:
    for i, had in enumerate((("lock",), ("lock", ".study.json.ab.tmp"), ("study.json",), ("records.jsonl", "trials/"))):
        run_dir = tmp_path / str(i)
        run_dir.mkdir()
        for name in had:
            (run_dir / name).mkdir() if name.endswith("/") else (run_dir / name).touch()
        goes_on(run_dir)


def contents(run_dir: Path) -> Counter[bytes]:
    """What lies in the files of raw pairs, whatever their names."""
    return Counter(p.read_bytes() for p in run_dir.rglob("pairs*.jsonl"))


@pytest.mark.parametrize("left", [None, b"", b"\0" * 300, b'{"kind":"session"'])
def test_a_run_without_records_is_never_begun_anew_over_its_measurements(run_dir: Path, left: bytes | None) -> None:
    before, file = contents(run_dir), run_dir / "records.jsonl"
    file.unlink()
    if left is not None:
        file.write_bytes(left)
    with pytest.raises(RunDirectoryError, match=r"the records .* restore it"):
        record(run_dir, SPEC, trials=TRIALS)
    (run_dir / "study.json").unlink()
    with pytest.raises(RunDirectoryError, match="--run-dir"):
        record(run_dir, SPEC, trials=TRIALS)
    assert contents(run_dir) == before


def test_measurements_whose_records_are_lost_are_told_and_kept(run_dir: Path) -> None:
    before = contents(run_dir)
    (run_dir / "records.jsonl").write_bytes(b"".join(lines_of(run_dir)[: line_of_trial(run_dir, 2)]))
    assert any("restore it" in line for line in damages(Store.open(run_dir)))
    goes_on(run_dir)
    assert not before - contents(run_dir)


def test_a_killed_driver_s_measurement_is_harmless(run_dir: Path) -> None:
    folder = run_dir / "trials" / "0099"
    folder.mkdir()
    (folder / "pairs.jsonl").touch()
    assert damages(Store.open(run_dir)) == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["study.json", "records.jsonl", "lock", "trials/0001/pairs.jsonl", "trials", "."])
def test_a_pipe_in_place_of_a_file_is_an_error_and_no_wait(run_dir: Path, name: str) -> None:
    path = run_dir / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    for command in ("status", "show", "report", "export"):
        error = CliRunner().invoke(app, [command, str(run_dir)]).exception
        assert isinstance(error, SystemExit | AutotuneError | None), (command, repr(error))
    with contextlib.suppress(RunDirectoryError):
        record(run_dir, SPEC, trials=TRIALS)


def test_raw_samples_that_are_lost_are_named(run_dir: Path) -> None:
    measured = [t for t in Store.open(run_dir).of(TrialResult) if t.directory and t.comparison and not t.same_as]
    torn, gone, empty = measured[0], measured[1], measured[2]
    file = run_dir / f"{torn.directory}/pairs.jsonl"
    file.write_bytes(file.read_bytes()[:-5])
    shutil.rmtree(run_dir / f"{gone.directory}")
    (run_dir / f"{empty.directory}/pairs.jsonl").write_bytes(b"")
    said = "\n".join(damages(Store.open(run_dir)))
    count = torn.comparison.pair_count if torn.comparison else 0
    assert re.search(rf" {count} pairs, .*{torn.directory} holds {count - 1};", said)
    assert all(f"but {trial.directory} holds 0;" in said for trial in (gone, empty))
    assert lines_to_delete(run_dir) == []  # the raw data is lost, whatever is done
    assert len(list(Store.open(run_dir).pairs(torn.directory or ""))) == count - 1
    record(run_dir, SPEC, trials=TRIALS + 1)


def test_a_damaged_pair_is_an_error_with_advice(run_dir: Path) -> None:
    trial = next(t for t in Store.open(run_dir).of(TrialResult) if t.directory and t.comparison and not t.same_as)
    file = run_dir / f"{trial.directory}/pairs.jsonl"
    whole = file.read_bytes()
    file.write_bytes(b"\0" * 50 + b"\n" + whole)
    shown = CliRunner().invoke(app, ["show", str(run_dir), str(trial.number)])
    assert isinstance(shown.exception, RunDirectoryError)
    assert lines_to_delete(run_dir) == [(file, 1)]
    assert mend(run_dir) == []
    assert file.read_bytes() == whole


def test_a_link_is_never_written_through(run_dir: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (run_dir / "trials/0001/worker.log").unlink()
    (run_dir / "trials/0001/worker.log").symlink_to(precious)
    goes_on(run_dir)
    assert precious.read_text() == "mine"


def test_a_record_that_names_a_folder_outside_is_not_followed(run_dir: Path) -> None:
    trial = next(t for t in Store.open(run_dir).of(TrialResult) if t.directory and t.comparison)
    index = line_of_trial(run_dir, trial.number)
    name = json.loads(lines_of(run_dir)[index])["directory"].encode()
    change_line(run_dir, index, lambda line: line.replace(name, b"../../etc"))
    (problem,) = damages(Store.open(run_dir))[:1]
    assert "../../etc holds 0" in problem


def without_their_runs(run_dir: Path) -> int:
    """Figures of a set that are there while some of the runs, or the proof, that they rest on are torn away."""
    try:
        store = Store.open(run_dir)
    except RunDirectoryError:
        return 0
    runs = Counter((r.stage, r.settings) for r in store.of(ConfirmRun))
    found = store.of(FinalistResult)
    proven = {f.settings for f in found if f.stage == CONFIRM}
    return sum(runs[f.stage, f.settings] < f.process_count or f.settings not in proven for f in found)


@pytest.mark.parametrize(("seed", "count"), [(8, 6), pytest.param(7, 60, marks=pytest.mark.slow)])
def test_whatever_is_torn_nothing_dies_with_a_traceback_and_the_study_goes_on(
    made: Path, tmp_path: Path, seed: int, count: int
) -> None:
    files = sorted(p.relative_to(made) for p in made.rglob("*") if p.is_file())
    rng = random.Random(seed)
    for i in range(count):
        run_dir = Path(shutil.copytree(made, tmp_path / f"{i}"))
        file = run_dir / rng.choice(["study.json", "records.jsonl", *map(str, rng.choices(files, k=3))])
        data = file.read_bytes()
        a, b = sorted(rng.choices(range(len(data) + 1), k=2))
        harms = [b"", data[:a], data[:a] + b"\0" * (b - a), data[:a] + data[b:], data[:a] + b"\0" * 99]
        file.write_bytes(rng.choice(harms))
        for name in ("status", "show", "report"):
            error = CliRunner().invoke(app, [name, str(run_dir)]).exception
            assert isinstance(error, SystemExit | AutotuneError | None), (file, repr(error))
        mend(run_dir, made)
        orphans = without_their_runs(run_dir)
        run = given_run(asking(SPEC, TRIALS), run_dir, GivenSetup(given_space=SPACE), Diary())
        run_study(run)
        tally = tally_of(run_dir)
        assert (tally["trials"], tally["lost"]) == (TRIALS, 0), file
        assert tally["doubled"] <= orphans, file  # whose runs are made again is told again
        shutil.rmtree(run_dir)

"""A run directory that somebody crafted: whatever stands in it is shown or refused, never a traceback, never run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from autotune.cli.app import app
from autotune.model.errors import AutotuneError, RunDirectoryError
from autotune.results.api import load
from autotune.rundir.store import Store
from tests.tables import toml_beside

SMALL = Path(__file__).parents[1] / "rundir" / "small"
RECORDS = [json.loads(line) for line in (SMALL / "records.jsonl").read_text().splitlines()]
PAIRS = [p.relative_to(SMALL) for p in sorted(SMALL.rglob("pairs.jsonl"))]

HUGE = "9" * 10**6
"""An integer of a million digits; written into the JSON text itself, for Python refuses to print one."""

NUMBERS: list[Any] = [
    1e308,
    -1e308,
    1e-308,
    5e-324,
    -1,
    0,
    10**30,
    2**63,
    "NaN",
    "Infinity",
    "-Infinity",
    float("nan"),
    HUGE,
]
OTHERS: list[Any] = [None, [], {}, "", "x", True, [[]], [1, 2, 3], {"a": "b"}]


def paths(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a record, of lists only the first two."""
    if path:
        yield path
    items = data.items() if isinstance(data, dict) else enumerate(data[:2]) if isinstance(data, list) else ()
    for key, value in items:
        yield from paths(value, (*path, key))


def put(data: Any, path: tuple[Any, ...], value: Any) -> str:
    """The JSON of a record with something else in one place."""
    copy = json.loads(json.dumps(data))
    place = copy
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return json.dumps(copy).replace(f'"{HUGE}"', HUGE)


PLACES = [(n, path) for n, record in enumerate(RECORDS) for path in paths(record)]


def cli(*arguments: object) -> Result:
    """A command in this process; an error for the user is an answer, any other a failure of the test."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, AutotuneError | SystemExit):
        raise result.exception
    return result


def refused(read: Callable[[], object]) -> str:
    """What is said of a file that is refused; empty if it is read."""
    try:
        read()
    except RunDirectoryError as error:
        return str(error)
    return ""


def read_all(run: Path, folder: Path) -> None:
    """Every reader of a run directory once."""
    if refusal := refused(lambda: Store.open(run).records()):
        assert "records.jsonl line" in refusal
        assert len(refusal) < 1500
        assert str(cli("report", run, "--md").exception) == refusal
        return
    for command in (
        ("status", run),
        ("show", run),
        ("show", run, 1),
        ("show", run, "--json"),
        ("report", run, "--md"),
        ("report", run, "--html", folder / "report.html"),
        ("compare", run, SMALL),
        ("export", run, "--format", "json"),
        ("verify", run),
        ("library", "add", run, "--library", folder / "lib"),
    ):
        cli(*command)
    try:
        study = load(run)
        for frame in ("trials", "settings", "steps", "winner"):
            getattr(study, frame)
        for made in (study.estimated_effects, study._repr_html_):
            made()
        for chart in (study.plot.forest, study.plot.steps):
            chart()
    except AutotuneError:
        pass


def crafted_record(run: Path, number: int, path: tuple[Any, ...], value: Any) -> None:
    """Writes the records with another value in one place of one of them."""
    lines = (run / "records.jsonl").read_text().splitlines()
    lines[number] = put(json.loads(lines[number]), path, value)
    (run / "records.jsonl").write_text("\n".join(lines) + "\n")


def last_of(kind: str) -> int:
    return max(n for n, r in enumerate(RECORDS) if r["kind"] == kind and r.get("status") != "failed")


HURT: list[tuple[int, tuple[Any, ...]]] = [
    (last_of("confirm_run"), ("log_ratio",)),
    (last_of("confirm_run"), ("candidate_step_s",)),
    (last_of("trial"), ("comparison", "estimate", "ratio")),
    (last_of("trial"), ("number",)),
    (last_of("conclusion"), ("estimate", "low")),
    (last_of("aa_run"), ("comparison", "reference_step_s")),
    (last_of("aa_run"), ("provenance", "load_1min")),
    (last_of("finalist"), ("most",)),
    (last_of("soak"), ("step_count",)),
    (last_of("session"), ("started",)),
    (last_of("aa_run"), ("reference", "process_count")),
    (last_of("aa_run"), ("noise", "process_sd")),
]
"""Numbers that are computed with, drawn or compared."""


@pytest.mark.parametrize("count", [12, pytest.param(300, marks=pytest.mark.slow)])
def test_no_value_in_a_field_of_a_record_breaks_a_reader(tmp_path_factory: pytest.TempPathFactory, count: int) -> None:
    @settings(max_examples=count, deadline=None, derandomize=True)
    @given(
        place=st.sampled_from(HURT) | st.sampled_from(PLACES),
        value=st.sampled_from([*NUMBERS, *OTHERS]) | st.floats() | st.integers(),
    )
    def holds(place: tuple[int, tuple[Any, ...]], value: Any) -> None:
        folder = tmp_path_factory.mktemp("crafted")
        run = shutil.copytree(SMALL, folder / "run")
        crafted_record(run, *place, value)
        read_all(run, folder)

    holds()


def test_crafted_raw_pairs_are_refused_with_file_and_line(tmp_path: Path) -> None:
    run, file = shutil.copytree(SMALL, tmp_path / "run"), next(p for p in reversed(PAIRS) if "/confirm-" in str(p))
    lines = (run / file).read_text().splitlines()
    for field in ("reference_s", "candidate_s", "index", "at_s"):
        for value in (*NUMBERS, [], [0.0], ["x"], [-1.0]):
            crafted = [lines[0], put(json.loads(lines[1]), (field,), value), *lines[2:]]
            (run / file).write_text("\n".join(crafted) + "\n")
            said = refused(lambda: list(Store.open(run).pairs(str(file.parent))))
            assert f"{file} line 2 must " in said or (not said and field in ("index", "at_s"))
        (run / file).write_text("\n".join([lines[0], put(json.loads(lines[1]), (field,), []), *lines[2:]]) + "\n")
        assert f"{file} line 2 must" in str(cli("verify", run).exception)


@pytest.mark.parametrize(
    "text",
    [
        *("", "\n", "{", "[]", "null", "[" * 10**5, '{"kind": "trial"}', '{"kind": 3}', "\x00", HUGE),
        '{"at_s": 1e999}',
        put(RECORDS[last_of("finalist")], ("most",), 1001),  # a proof is recomputed look by look
    ],
)
def test_lines_that_are_no_records_are_refused_with_their_number(tmp_path: Path, text: str) -> None:
    run = shutil.copytree(SMALL, tmp_path / "run")
    with (run / "records.jsonl").open("a") as stream:
        stream.write(f"{text}\n")
    with pytest.raises(RunDirectoryError, match=rf"records\.jsonl line {len(RECORDS) + 1} must"):
        Store.open(run).records()


@pytest.mark.parametrize("text", ["", "[]", "null", "[" * 10**5, HUGE, '{"schema_version": 3}', "\udcff"])
def test_a_study_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    run = shutil.copytree(SMALL, tmp_path / "run")
    (run / "study.json").write_bytes(text.encode(errors="surrogateescape"))
    for command in (("status", run), ("report", run, "--md"), ("exec", run, "--", "true")):
        assert isinstance(cli(*command).exception, RunDirectoryError)


# ---------------------------------------------------------------------- exec runs what was proven, or nothing


def crafted(folder: Path, kind: str, path: tuple[Any, ...], value: Any) -> Path:
    """A copy of the run with another value in the last record of a kind."""
    run = shutil.copytree(SMALL, folder / "run")
    crafted_record(run, last_of(kind), path, value)
    return run


def test_exec_starts_what_was_proven(started: list[Any]) -> None:
    cli("exec", SMALL, "--force", "--", "true")
    assert [environment["XLA_FLAGS"] for _, environment in started] == ["--xla_cpu_prefer_vector_width=512"]


@pytest.mark.parametrize(("path", "value"), toml_beside(__file__)["crafted_conclusions"])
def test_a_crafted_conclusion_is_used_by_nobody(
    tmp_path: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch, path: list[str], value: Any
) -> None:
    run = crafted(tmp_path, "conclusion", tuple(path), value)
    monkeypatch.chdir(tmp_path)
    for command in (
        ("exec", run, "--force", "--", "true"),
        ("verify", run),
        ("library", "add", run, "--library", "lib"),
        ("export", run, "--format", "shell", "-o", "out"),
    ):
        assert isinstance(cli(*command).exception, AutotuneError)
    assert started == []
    assert not [p for p in ("out", "lib") if (tmp_path / p).exists()]


def test_a_file_that_its_run_does_not_give_is_used_by_nobody(
    tmp_path: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(SMALL, "runs/old")
    cli("library", "add", "runs/old", "--library", "lib")
    file = next(Path("lib").rglob("*.json"))
    winner = json.loads(file.read_text())["winner"]
    file.write_text(file.read_text().replace(str(winner["estimate"]["ratio"]), "0.5"))
    for command in (
        ("exec", file, "--force", "--", "true"),
        ("library", "add", file, "--library", "other"),
        ("verify", file),
        ("best", "--library", "lib"),
    ):
        result = cli(*command)
        assert result.exit_code != 0
        assert "ratio=0.5" in f"{result.exception}{result.output}"
    assert started == []
    assert not Path("other").exists()

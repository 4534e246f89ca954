"""Who edits a run or a file after the fact: each attack on what `exec`, `export`, `verify` and `library` rest on."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.model.errors import AutotuneError, RunDirectoryError, SettingError
from autotune.model.records import ConclusionRecord
from autotune.results.audit import disagreements
from autotune.results.conditions import differences
from autotune.results.export import FORMATS, parse_winner, read_winner, render_winner
from autotune.results.report import render_markdown
from autotune.results.verify import Verification, check_records
from autotune.results.winner import winner_of
from autotune.rundir.store import Store
from tests.runs import make_winner, rewrite
from tests.tables import toml_beside

SMALL = Path(__file__).parents[1] / "rundir" / "small"
Change = Callable[[dict[str, Any]], Any]
CASES = toml_beside(__file__)
TWICE = {"ratio": 0.5, "low": 0.49, "high": 0.51}


def edited(source: Path, target: Path, kind: str, change: Change, **which: Any) -> Path:
    """A copy of a run in which one record, the last that fits, was changed by hand."""

    def edit(records: list[dict[str, Any]]) -> None:
        change([r for r in records if r["kind"] == kind and all(r.get(k) == v for k, v in which.items())][-1])

    rewrite(Path(shutil.copytree(source, target)), edit)
    return target


@pytest.mark.parametrize("kind", ["conclusion", "finalist", "confirm_run", "soak", "trial", "failing_set"])
def test_a_record_cannot_hold_what_changes_the_program(tmp_path: Path, kind: str) -> None:
    name = "LD_PRELOAD"
    run = edited(SMALL, tmp_path / "run", kind, lambda r: r["settings"].update({name: "/tmp/evil"}))
    words = rf"records\.jsonl line \d+ must be a record .*settings`: a study may .*{name} changes which program runs"
    with pytest.raises(RunDirectoryError, match=words):
        winner_of(Store.open(run))


def test_nor_can_the_study_of_a_run(tmp_path: Path) -> None:
    run = shutil.copytree(SMALL, tmp_path / "run")
    data = json.loads((run / "study.json").read_text())
    data["study"]["baseline"] = {"LD_PRELOAD": "/tmp/evil.so"}
    (run / "study.json").write_text(json.dumps(data))
    with pytest.raises(RunDirectoryError, match="LD_PRELOAD changes"):
        Store.open(run)


VALUES = ["a\\nexport B=c", "\\u001b[2J", "\\u0000"]


@pytest.mark.parametrize(
    ("form", "old", "new", "words"),
    [
        *((form, "NCCL_X", "BASH_ENV", r"`settings`: .*BASH_ENV changes") for form in FORMATS),
        *(("json", '"proven"', f'"{value}"', "printable text") for value in VALUES),
    ],
)
def test_no_exported_file_can_nor_a_value_that_ends_a_line(form: str, old: str, new: str, words: str) -> None:
    text = render_winner(make_winner({"NCCL_X": "proven"}), form).replace(old, new)
    with pytest.raises(AutotuneError, match=words):
        parse_winner(text, source="file")


@pytest.mark.parametrize(("name", "words"), CASES["dangerous_settings"])
def test_what_reaches_files_or_is_dangerous_is_refused(finished: Store, tmp_path: Path, name: str, words: str) -> None:
    text = render_winner(make_winner({"xla_gpu_x": "1"}), "json").replace("xla_gpu_x", name)
    with pytest.raises(AutotuneError, match=words):
        parse_winner(text, source="file")
    run = shutil.copytree(finished.path, tmp_path / "run")
    data = json.loads((run / "study.json").read_text())
    data["study"]["baseline"][name] = "1"
    (run / "study.json").write_text(json.dumps(data))
    records, spec = run / "records.jsonl", Store.open(run).spec
    assert spec.baseline[name] == "1"  # legal in one's own study
    with pytest.raises(AutotuneError, match="another study"):
        winner_of(Store.open(run))
    records.write_text(records.read_text().replace(finished.spec.identity, spec.identity))
    with pytest.raises(SettingError, match=words):
        winner_of(Store.open(run))


@pytest.mark.parametrize("study", ["x\nrm -rf /", "x #", "$(x)"])
def test_a_study_s_name_cannot_end_a_line_of_a_job_script(study: str) -> None:
    data = json.loads(render_winner(make_winner({"NCCL_X": "1"}), "json"))
    data["winner"]["study"] = study
    with pytest.raises(AutotuneError, match="`study`"):
        parse_winner(json.dumps(data), source="file")


def test_a_run_gives_what_it_concludes(finished: Store) -> None:
    assert disagreements(finished, finished.of(ConclusionRecord)[-1]) == []
    winner = winner_of(finished)
    for form in FORMATS:
        assert parse_winner(render_winner(winner_of(finished), form), source="x") == winner


def merge(record: dict[str, Any], change: dict[str, Any]) -> None:
    """Puts a change of `cases.toml` into a record."""
    for key, value in change.items():
        if value == "(gone)":
            del record[key]
        elif isinstance(value, dict) and key in record:
            merge(record[key], value)
        else:
            record[key] = value


@pytest.mark.parametrize(("kind", "stage", "change", "words"), CASES["forged_records"])
def test_a_figure_edited_after_the_fact_is_refused(
    tmp_path: Path, kind: str, stage: str, change: dict[str, Any], words: str
) -> None:
    which = {"stage": stage} if stage else {}
    run = edited(SMALL, tmp_path / "run", kind, lambda r: merge(r, change), **which)
    for use in (lambda: winner_of(Store.open(run)), lambda: read_winner(run)):
        with pytest.raises(AutotuneError, match=rf"from the records(.|\n)*{words}"):
            use()


def test_so_are_raw_pairs_that_were_edited_or_taken_away(tmp_path: Path) -> None:
    run = shutil.copytree(SMALL, tmp_path / "run")
    file = next(run.glob("confirm/confirm-c35704c3cbec-01")) / "pairs.jsonl"
    pairs = [json.loads(line) for line in file.read_text().splitlines()]
    for pair in pairs:
        pair["candidate_s"] = [s / 2 for s in pair["candidate_s"]]
    file.write_text("".join(json.dumps(p) + "\n" for p in pairs))
    with pytest.raises(AutotuneError, match=r"log ratio -0\.79"):
        read_winner(run)
    file.unlink()
    with pytest.raises(AutotuneError, match="no raw"):
        read_winner(run)


def test_an_exported_file_is_compared_with_its_run_where_that_is_here(finished: Store, tmp_path: Path) -> None:
    run = shutil.copytree(finished.path, tmp_path / "runs" / "mine")
    file = tmp_path / "winner.env"
    file.write_text(render_winner(winner_of(Store.open(run)), "env"))
    assert check_records(read_winner(file), file) == Verification()
    away = tmp_path / "away" / "winner.env"
    away.parent.mkdir()
    file.rename(away)
    found = check_records(read_winner(away), away)
    assert found.status == "unchecked"
    assert found.unchecked == (
        "unchecked, so nothing here shows that it was proven: its run 'mine' is not here; name it with --run RUN"
    )
    assert check_records(read_winner(away), away, run=run) == Verification()


@pytest.mark.parametrize(("change", "field"), CASES["forged_files"])
def test_a_file_that_says_something_else_than_its_run_differs(
    finished: Store, tmp_path: Path, change: dict[str, Any], field: str
) -> None:
    shutil.copytree(finished.path, tmp_path / "runs" / "mine")
    winner = winner_of(Store.open(tmp_path / "runs" / "mine"))
    data = json.loads(winner.model_dump_json())
    merge(data, change)
    forged = type(winner).model_validate(data)
    file = tmp_path / "winner.json"
    file.write_text(render_winner(forged, "json"))  # consistent in itself
    assert [d.field for d in check_records(read_winner(file), file).differences] == [field]


def test_a_file_whose_run_was_edited_differs(finished: Store, tmp_path: Path) -> None:
    file = tmp_path / "winner.json"
    (tmp_path / "runs").mkdir()
    file.write_text(render_winner(winner_of(finished), "json"))
    edited(finished.path, tmp_path / "runs" / finished.path.name, "finalist", lambda r: r.update(verdict="slower"))
    assert {d.field for d in check_records(read_winner(file), file).differences} == {"records"}


def test_another_run_of_that_name_is_not_its_run(finished: Store, tmp_path: Path) -> None:
    file = tmp_path / "winner.json"
    file.write_text(render_winner(winner_of(finished), "json"))
    shutil.copytree(SMALL, tmp_path / finished.path.name)
    assert "another proof" in (check_records(read_winner(file), file).unchecked or "")


@pytest.mark.parametrize("name", ["../run", "/etc", "a/b", ".."])
def test_a_file_cannot_name_a_run_elsewhere(finished: Store, tmp_path: Path, name: str) -> None:
    data = json.loads(winner_of(finished).model_dump_json())
    data["run"] = name
    winner = type(winner_of(finished)).model_validate(data)
    assert "not here" in (check_records(winner, tmp_path / "below" / "winner.json").unchecked or "")


def test_what_is_shown_of_an_edited_run_says_so(tmp_path: Path) -> None:
    run = edited(SMALL, tmp_path / "run", "conclusion", lambda r: r["estimate"].update(TWICE))
    shown = render_markdown(Store.open(run))
    assert re.search(r"BELIEVE .* xla_cpu_prefer_vector_width=512: .* estimate 0\.9", shown)
    assert "NOT BELIEVE" not in render_markdown(Store.open(SMALL))


BEFORE = [json.loads(line) for line in (SMALL / "records.jsonl").read_text().splitlines()]
CONCLUDED = next(i for i, r in enumerate(BEFORE) if r["kind"] == "conclusion")


LOST = [(kind, "from 24 records") for kind in sorted({r["kind"] for r in BEFORE[:CONCLUDED]})]


@pytest.mark.parametrize(("kind", "words"), [*LOST, ("session", "recorded before"), ("aa_run", "recorded before")])
def test_a_winner_of_which_records_are_lost_is_refused_even_if_those_left_are_counted_anew(
    tmp_path: Path, kind: str, words: str
) -> None:
    def lose(records: list[dict[str, Any]]) -> None:
        records[:] = [r for r in records if r["kind"] != kind]
        for number, record in enumerate(records):
            if record["kind"] == "conclusion" and words == "recorded before":
                record["record_count"] = number

    run = Path(shutil.copytree(SMALL, tmp_path / "run"))
    rewrite(run, lose)
    with pytest.raises(AutotuneError, match=words):
        winner_of(Store.open(run))


def test_a_record_more_and_a_conclusion_without_its_count_are_refused(tmp_path: Path) -> None:
    more = Path(shutil.copytree(SMALL, tmp_path / "more"))
    rewrite(more, lambda records: records.insert(3, {"at_s": 1.0, "kind": "incident", "what": "x"}))
    none = edited(SMALL, tmp_path / "none", "conclusion", lambda r: r.pop("record_count"))
    for run in (more, none):
        with pytest.raises(AutotuneError, match="drawn from"):
            winner_of(Store.open(run))


def test_what_is_not_recorded_differs_from_what_is_known_here() -> None:
    here = make_winner({"NCCL_X": "1"}).conditions.model_copy(update={"device_kind": "cpu", "jaxlib": "0.1"})
    assert differences(here, here) == []
    for field in ("device_kind", "jaxlib"):
        (found,) = differences(here.model_copy(update={field: None}), here)
        assert found.field == field

"""Files that programs write their metrics into: each kind byte by byte, appended to, replaced, new ones in a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.child.output import Follow, find, lines_of
from tests.tables import toml_beside

ROWS = b'{"step": 1, "time": 0.5}\n' * 5


@pytest.mark.parametrize(("name", "text", "count", "last"), toml_beside(__file__, "lines.toml")["records"])
@pytest.mark.parametrize("size", [3, 1000])
def test_how_records_come_does_not_matter(name: str, text: str, count: int, last: dict[str, object], size: int) -> None:
    records, data = lines_of(name), text.encode()
    found = [told for i in range(0, len(data), size) for told in records.feed(data[i : i + size])]
    assert len(found) == count
    assert json.loads(found[-1]) == last


def test_rows_that_are_appended_to_a_table_are_read_under_its_header(tmp_path: Path) -> None:
    file = tmp_path / "m.csv"
    file.write_text("step,time\n1,0.5\n")
    follow = Follow(file)
    with file.open("a") as stream:
        stream.write("2,0.25\n")
    assert [json.loads(line) for line in follow.read()] == [{"step": 2.0, "time": 0.25}]
    file.unlink()
    list(follow.read())
    file.write_text("time,step\n0.75,3\n")
    assert [json.loads(line) for line in follow.read()] == [{"time": 0.75, "step": 3.0}]


@pytest.mark.parametrize("path", [lambda p: p, lambda p: p / "*" / "metrics*"])
def test_of_a_folder_the_file_that_is_new_is_read(tmp_path: Path, path: Callable[[Path], Path]) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "metrics.1.jsonl").write_bytes(ROWS)
    follow = Follow(path(tmp_path))
    assert list(follow.read()) == []
    (tmp_path / "new").mkdir()
    new = tmp_path / "new" / "metrics.2.jsonl"
    new.write_bytes(ROWS[: len(ROWS) // 5])
    assert len(list(follow.read())) == 1
    new.write_bytes(ROWS)
    assert len(list(follow.read())) == 4
    assert find(path(tmp_path)) == new

"""Files that programs write their metrics into: new ones in a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.child.output import Follow

ROWS = b'{"step": 1, "time": 0.5}\n' * 5


@pytest.mark.parametrize("path", [lambda p: p / "**" / "*.jsonl", lambda p: p / "*" / "metrics*"])
def test_of_a_pattern_the_file_that_is_new_is_read(tmp_path: Path, path: Callable[[Path], Path]) -> None:
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

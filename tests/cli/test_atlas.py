"""The commands that tell what the atlas says, on a table whose answers are known."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from autotune import settings
from autotune.cli.app import app
from autotune.cli.atlas import _Lines
from autotune.model import SettingError
from autotune.settings import load_recipes
from tests.atlas_tables import small, write

COMBINE = "xla_gpu_all_gather_combine_threshold_bytes"


def run(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code in (0, 1), done.output
    return done.output


def test_where_a_setting_is_active(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "load_atlas", small)  # as if this table came with the package
    lines = run("atlas", "show", COMBINE).splitlines()
    assert [line.split("\t")[:4] for line in lines] == [
        ["jaxlib", "value", "verdict", "in"],
        ["0.12.0.1", "1073741824", "same", "2 of 2 cells"],
        ["0.10.2", "1073741824", "changes", "2 of 3 cells: dense-fsdp@8xh100-sxm, dense-fsdp@64xh100-sxm"],
        ["0.10.2", "1073741824", "same", "1 of 3 cells: moe@8xh200"],
    ]
    assert "changes" in run("atlas", "show", next(iter(load_recipes())))


def test_the_page_is_written_of_any_table(tmp_path: Path) -> None:
    write(small(), tmp_path / "table")
    run("atlas", "html", str(tmp_path / "site"), "--table", str(tmp_path / "table"))
    assert COMBINE in (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    (tmp_path / "table" / "0.10.2.jsonl").write_text('{"atlas": 99}\n', encoding="utf-8")
    with pytest.raises(SettingError, match="the first line of a table of the atlas must be"):
        run("atlas", "html", str(tmp_path / "site"), "--table", str(tmp_path / "table"))


def test_taking_a_set_apart_is_told_of_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It takes a quarter of an hour at times, and finishes no set that was planned."""
    now = 0.0
    monkeypatch.setattr("autotune.cli.atlas.time.monotonic", lambda: now)
    lines = _Lines()
    lines.cell(1, 2, "moe on 8 b200")
    capsys.readouterr()
    for _ in range(60):
        now += 10.0
        lines.at_work("compile " + " ".join(f"xla_setting_{i}=true" for i in range(40)))
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 10
    assert all(line.endswith(" ...") and len(line) < 130 for line in told)
    now += 25.0
    lines.compiled(30, 100)
    now += 30.0
    lines.at_work("compile xla_a=true")
    assert "30 of 100 sets" in capsys.readouterr().err.splitlines()[-1]

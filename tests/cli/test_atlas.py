"""The commands that tell what the atlas says, on a table whose answers are known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autotune import settings
from autotune.cli.app import app
from autotune.model import SettingError
from autotune.settings import load_recipes
from tests.atlas_tables import small, write

COMBINE = "xla_gpu_all_gather_combine_threshold_bytes"


def run(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code in (0, 1), done.output
    return done.output


@pytest.fixture
def packaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this table came with the package."""
    monkeypatch.setattr(settings, "load_atlas", small)


@pytest.mark.usefixtures("packaged")
def test_where_a_setting_is_alive() -> None:
    lines = run("atlas", "show", COMBINE, "--for", "moe@h200").splitlines()
    assert lines == [
        "jaxlib\tvalue\tverdict\tin\twhat",
        "0.12.0.1\t1073741824\tsame\t1 of 1 cells\tcompiled together with others that change nothing",
        "0.10.2\t1073741824\tsame\t1 of 1 cells\tcompiled alone",
    ]
    recipe = next(iter(load_recipes()))
    assert "changes" in run("atlas", "show", recipe)
    assert "# 0.12.0.1: one program with" in run("recipes", "show", recipe)


@pytest.mark.usefixtures("packaged")
def test_flags_show_and_check_tell_it_too() -> None:
    shown = run("flags", "show", COMBINE, "--plugin", "cpu")
    assert "atlas            0.12.0.1: same, in no cell another program" in shown
    told = json.loads(run("flags", "check", f"--{COMBINE}=1073741824", "--plugin", "cpu", "--for", "moe", "--json"))
    assert [(t["name"], t["verdict"], t["cells"]) for t in told["atlas"]] == [(COMBINE, "same", 1)]
    assert "the atlas, by jaxlib" in run("flags", "check", f"--{COMBINE}=1", "--plugin", "cpu", "--for", "moe")
    with pytest.raises(SettingError, match="must have a cell like 'mo'"):
        run("flags", "check", f"--{COMBINE}=1", "--plugin", "cpu", "--for", "mo")


def test_the_page_is_written_of_any_table(tmp_path: Path) -> None:
    write(small(), tmp_path / "table")
    run("atlas", "html", str(tmp_path / "site"), "--table", str(tmp_path / "table"))
    assert COMBINE in (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    (tmp_path / "table" / "0.10.2.jsonl").write_text('{"atlas": 99}\n', encoding="utf-8")
    with pytest.raises(SettingError, match="the first line of a table of the atlas must be"):
        run("atlas", "html", str(tmp_path / "site"), "--table", str(tmp_path / "table"))

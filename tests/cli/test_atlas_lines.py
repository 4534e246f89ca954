"""What `autotune atlas build` tells while it compiles."""

from __future__ import annotations

import pytest

from autotune.cli.atlas_build import _Lines


def test_taking_a_set_apart_is_told_of_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It takes a quarter of an hour at times, and finishes no set that was planned."""
    now = 0.0
    monkeypatch.setattr("autotune.cli.atlas_build.time.monotonic", lambda: now)
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

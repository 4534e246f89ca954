"""Options that are part of a winner arrive unchanged in what programs read options from, whatever their values hold."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from autotune.model.options import option_sets
from autotune.results.export import ExportFormat, parse_winner, render_winner
from autotune.results.winner import Winner
from tests.runs import make_winner

OPTIONS = {
    "batch": 16,
    "rate": 2.5e-4,
    "fused": True,
    "attention": "$(touch canary)`touch canary`; 'x' \"y\" \\ #",
    "mesh": {"fsdp": 8, "tensor": 2},
    "layers": [1, "two"],
}


@pytest.fixture
def winner() -> Winner:
    return make_winner({"xla_gpu_a": "1", **option_sets(OPTIONS)})


@pytest.mark.parametrize("form", list(ExportFormat))
def test_every_format_says_the_options_and_is_read_again(form: ExportFormat, winner: Winner) -> None:
    text = render_winner(winner, form)
    assert parse_winner(text, source="x").options == OPTIONS
    assert "batch=16" in text
    assert "option." not in "\n".join(line for line in text.splitlines() if not line.startswith(("#", " ", "{", "}")))


def test_json_holds_them_as_data(winner: Winner) -> None:
    assert json.loads(render_winner(winner, ExportFormat.JSON))["options"] == OPTIONS


def test_a_flag_file_of_absl_holds_one_argument_a_line(winner: Winner) -> None:
    lines = [n for n in render_winner(winner, ExportFormat.ARGUMENTS).split("\n") if n and not n.startswith("#")]
    got = dict(line.removeprefix("--").split("=", 1) for line in lines)
    assert {n: v if n == "attention" else json.loads(v) for n, v in got.items()} == OPTIONS


def test_options_arrive_in_maxtext_and_nothing_runs(winner: Winner, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(render_winner(winner, ExportFormat.MAXTEXT), encoding="utf-8")
    (tmp_path / "bin").mkdir()
    show = "#!/bin/sh\nprintf '%s\\0' \"$@\"\n"
    (tmp_path / "bin" / "python3").write_text(show)
    (tmp_path / "bin" / "python3").chmod(0o755)
    done = subprocess.run(
        ["bash", "file", "c"], cwd=tmp_path, env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    got = done.stdout.split("\0")
    assert {"batch=16", "mesh.fsdp=8", "mesh.tensor=2", f"attention={OPTIONS['attention']}"} <= set(got)
    assert not list(tmp_path.rglob("canary"))


def test_without_options_their_file_holds_evidence_alone() -> None:
    text = render_winner(make_winner({"xla_gpu_a": "1"}), ExportFormat.ARGUMENTS)
    assert all(line.startswith("#") for line in text.splitlines())

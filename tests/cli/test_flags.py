"""Commands on settings, as a user types them; `cases.toml` has calls with their status and parts of what they print."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from autotune.settings.catalog import load_catalog
from tests.console import autotune
from tests.tables import toml_beside

CASES = toml_beside(__file__)
Call = Callable[..., CompletedProcess[str]]


@pytest.fixture
def call(probed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Calls a command; one probe serves all tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(probed))
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    (tmp_path / "train.sh").write_text("export PJRT_NPROC=2\nexport XLA_FLAGS='--xla_gpu_made_up=1'\n")
    (tmp_path / "study.toml").write_text(Path(__file__).with_name("cpu_study.toml").read_text())
    return lambda *arguments: autotune(*arguments, cwd=tmp_path)


@pytest.mark.parametrize(("arguments", "status", "parts"), CASES["settings"], ids=str)
def test_a_call_about_settings_is_answered(call: Call, arguments: list[str], status: int, parts: list[str]) -> None:
    done = call(*arguments)
    assert done.returncode == status, done.stderr
    assert [part for part in parts if part not in done.stdout + done.stderr] == []


def test_flags_are_listed_a_line_each_with_their_group(call: Call) -> None:
    rows = [line.split("\t") for line in call("flags", "list").stdout.splitlines()[1:-1]]
    assert [row[0] for row in rows] == list(load_catalog())
    names = {row[0] for row in rows if "combining" in row[1].split(", ")}
    assert names > {f"xla_gpu_{n}_combine_threshold_bytes" for n in ("all_gather", "all_reduce", "reduce_scatter")}


def test_the_environment_is_checked(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_graph_level=0")
    monkeypatch.setenv("JAX_ENABLE_PGLE", "maybe")
    checked = json.loads(call("flags", "check", "--env", "--json").stdout)["settings"]
    assert {"xla_gpu_graph_level", "jax_enable_pgle"} <= {s["name"] for s in checked}


def test_the_block_of_a_script_is_printed_for_this_build(call: Call, tmp_path: Path) -> None:
    old = "export XLA_FLAGS='--xla_gpu_graph_level=0'\n"
    (script := tmp_path / "old.sh").write_text(old)
    shown = call("flags", "migrate", "--file", "old.sh")
    assert shown.stdout == "XLA_FLAGS=--xla_gpu_enable_command_buffer=\n"
    assert "taken as xla_gpu_enable_command_buffer=" in shown.stderr
    assert script.read_text() == old

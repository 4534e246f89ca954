from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.model.errors import SettingError
from autotune.settings.catalog import load_catalog

Call = Callable[..., Any]


@pytest.fixture
def call(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Calls a command; one probe serves all tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp()))
    monkeypatch.delenv("XLA_FLAGS", raising=False)

    def invoke(*arguments: str) -> Any:
        result = CliRunner().invoke(app, arguments)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


def test_flags_are_listed_a_line_each_with_their_group(call: Call) -> None:
    rows = [line.split("\t") for line in call("flags", "list").stdout.splitlines()[1:-1]]
    assert [row[0] for row in rows] == list(load_catalog())
    names = {row[0] for row in rows if "combining" in row[1].split(", ")}
    assert names > {f"xla_gpu_{n}_combine_threshold_bytes" for n in ("all_gather", "all_reduce", "reduce_scatter")}


def test_one_flag_is_shown_with_build_catalogue_and_recipes(call: Call) -> None:
    text = call("flags", "show", "--xla_gpu_enable_command_buffer").stdout
    for part in ("through XLA_FLAGS and compiler options", "+X and -X", "docs/GPU_performance.md", "axlearn_a4_high"):
        assert part in text
    data = json.loads(call("flags", "show", "NCCL_PROTO", "--json").stdout)
    assert (data["group"], data["in_build"]) == ("nccl", None)
    assert "axlearn_a3_high" in data["recipes"]


def test_the_exit_status_says_whether_all_would_start(call: Call) -> None:
    good = call("flags", "check", "--xla_gpu_autotune_level=3")
    bad = call("flags", "check", "--xla_gpu_autotune_level=3 --xla_gpu_graph_level=0", "--plugin", "cpu")
    assert (good.exit_code, bad.exit_code) == (0, 1)
    assert "1 settings, all would start" in good.stdout
    assert "renamed -> xla_gpu_enable_command_buffer" in bad.stdout


def test_the_environment_and_a_script_are_checked(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_graph_level=0")
    monkeypatch.setenv("JAX_ENABLE_PGLE", "maybe")
    checked = json.loads(call("flags", "check", "--env", "--json").stdout)["settings"]
    assert {"xla_gpu_graph_level", "jax_enable_pgle"} <= {s["name"] for s in checked}
    script = tmp_path / "train.sh"
    script.write_text("export PJRT_NPROC=2\nexport XLA_FLAGS='--xla_gpu_made_up=1'\n")
    result = call("flags", "check", "--file", str(script))
    assert result.exit_code == 1
    assert [line.split("\t")[0] for line in result.stdout.splitlines()[1:3]] == ["PJRT_NPROC=2", "xla_gpu_made_up=1"]


@pytest.mark.parametrize("arguments", [(), ("--env", "--recipe", "dreamerv3"), ("--file", "no-such-file.sh")])
def test_what_is_checked_must_be_clear(call: Call, arguments: tuple[str, ...]) -> None:
    with pytest.raises(SettingError, match=r"give one of|readable"):
        call("flags", "check", *arguments)


def test_the_block_of_a_script_is_printed_for_this_build(call: Call, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    old = "export XLA_FLAGS='--xla_gpu_graph_level=0'\n"
    script.write_text(old)
    shown = call("flags", "migrate", "--file", str(script))
    assert shown.stdout == "XLA_FLAGS=--xla_gpu_enable_command_buffer=\n"
    assert "xla_gpu_graph_level is taken as xla_gpu_enable_command_buffer=" in shown.stderr
    assert script.read_text() == old
    data = json.loads(call("flags", "migrate", "--json", "--", "--xla_gpu_cudnn_gemm_fusion=true").stdout)
    assert data["settings"] == {"xla_gpu_cudnn_gemm_fusion_level": "1"}
    with pytest.raises(SettingError, match="either flags or --file"):
        call("flags", "migrate")


def test_the_space_of_a_study_is_printed(call: Call) -> None:
    study = Path(__file__).with_name("cpu_study.toml")
    text = call("space", str(study)).stdout
    assert "xla_cpu_scheduler_type\t'CPU_SCHEDULER_TYPE_DEFAULT', " in text
    assert " points on jaxlib " in text
    assert "xla_cpu_enable_concurrency_optimized_scheduler: accepted, but does nothing" in text
    data = json.loads(call("space", str(study), "--json").stdout)
    assert data["size"] > 1000
    assert {p["name"] for p in data["parameters"]} >= {"xla_cpu_max_isa"}


def test_the_doctor_sees_this_machine(call: Call) -> None:
    text = call("doctor").stdout
    assert "versions" in text
    assert f"Python         {sys.version_info.major}.{sys.version_info.minor}" in text
    data = json.loads(call("doctor", "--json").stdout)
    assert data["versions"]["jaxlib"] != "not installed"
    assert data["cpus"] >= 1


def test_another_interpreter_is_asked(call: Call, tmp_path: Path) -> None:
    from autotune.model.errors import LaunchError

    with pytest.raises(LaunchError, match="working Python"):
        call("flags", "check", "--python", str(tmp_path / "python"), "--", "--xla_gpu_autotune_level=3")

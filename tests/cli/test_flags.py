from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from autotune.settings.catalog import load_catalog
from tests.console import autotune


@pytest.fixture(autouse=True)
def one_probe(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """One probe of the build serves all tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp()))
    monkeypatch.delenv("XLA_FLAGS", raising=False)


def test_flags_are_listed_a_line_each_with_their_group() -> None:
    rows = [line.split("\t") for line in autotune("flags", "list").stdout.splitlines()[1:-1]]
    assert [row[0] for row in rows] == list(load_catalog())
    names = {row[0] for row in rows if "combining" in row[1].split(", ")}
    assert names > {f"xla_gpu_{n}_combine_threshold_bytes" for n in ("all_gather", "all_reduce", "reduce_scatter")}


def test_one_flag_is_shown_with_build_catalogue_and_recipes() -> None:
    text = autotune("flags", "show", "--xla_gpu_enable_command_buffer").stdout
    for part in ("through XLA_FLAGS and compiler options", "+X and -X", "docs/GPU_performance.md", "axlearn_a4_high"):
        assert part in text
    data = json.loads(autotune("flags", "show", "NCCL_PROTO", "--json").stdout)
    assert (data["group"], data["in_build"]) == ("nccl", None)
    assert "axlearn_a3_high" in data["recipes"]


def test_the_exit_status_says_whether_all_would_start() -> None:
    good = autotune("flags", "check", "--xla_gpu_autotune_level=3")
    bad = autotune("flags", "check", "--xla_gpu_autotune_level=3 --xla_gpu_graph_level=0", "--plugin", "cpu")
    assert (good.returncode, bad.returncode) == (0, 1)
    assert "1 settings, all would start" in good.stdout
    assert "renamed -> xla_gpu_enable_command_buffer" in bad.stdout


def test_the_environment_and_a_script_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_graph_level=0")
    monkeypatch.setenv("JAX_ENABLE_PGLE", "maybe")
    checked = json.loads(autotune("flags", "check", "--env", "--json").stdout)["settings"]
    assert {"xla_gpu_graph_level", "jax_enable_pgle"} <= {s["name"] for s in checked}
    script = tmp_path / "train.sh"
    script.write_text("export PJRT_NPROC=2\nexport XLA_FLAGS='--xla_gpu_made_up=1'\n")
    result = autotune("flags", "check", "--file", str(script))
    assert result.returncode == 1
    assert [line.split("\t")[0] for line in result.stdout.splitlines()[1:3]] == ["PJRT_NPROC=2", "xla_gpu_made_up=1"]


@pytest.mark.parametrize("arguments", [(), ("--env", "--recipe", "dreamerv3"), ("--file", "no-such-file.sh")])
def test_what_is_checked_must_be_clear(arguments: tuple[str, ...]) -> None:
    done = autotune("flags", "check", *arguments)
    assert done.returncode == 2
    assert re.search("give one of|readable", done.stderr)


def test_the_block_of_a_script_is_printed_for_this_build(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    old = "export XLA_FLAGS='--xla_gpu_graph_level=0'\n"
    script.write_text(old)
    shown = autotune("flags", "migrate", "--file", str(script))
    assert shown.stdout == "XLA_FLAGS=--xla_gpu_enable_command_buffer=\n"
    assert "xla_gpu_graph_level is taken as xla_gpu_enable_command_buffer=" in shown.stderr
    assert script.read_text() == old
    data = json.loads(autotune("flags", "migrate", "--json", "--", "--xla_gpu_cudnn_gemm_fusion=true").stdout)
    assert data["settings"] == {"xla_gpu_cudnn_gemm_fusion_level": "1"}
    assert "either flags or --file" in autotune("flags", "migrate").stderr


def test_the_space_of_a_study_is_printed() -> None:
    study = Path(__file__).with_name("cpu_study.toml")
    text = autotune("space", str(study)).stdout
    assert "xla_cpu_scheduler_type\t'CPU_SCHEDULER_TYPE_DEFAULT', " in text
    assert " points on jaxlib " in text
    assert "xla_cpu_enable_concurrency_optimized_scheduler: accepted, but does nothing" in text
    data = json.loads(autotune("space", str(study), "--json").stdout)
    assert data["size"] > 1000
    assert {p["name"] for p in data["parameters"]} >= {"xla_cpu_max_isa"}


def test_the_doctor_sees_this_machine() -> None:
    text = autotune("doctor").stdout
    assert "versions" in text
    assert f"Python         {sys.version_info.major}.{sys.version_info.minor}" in text
    data = json.loads(autotune("doctor", "--json").stdout)
    assert data["versions"]["jaxlib"] != "not installed"
    assert data["cpus"] >= 1


def test_another_interpreter_is_asked(tmp_path: Path) -> None:
    done = autotune("flags", "check", "--python", tmp_path / "python", "--", "--xla_gpu_autotune_level=3")
    assert (done.returncode, "working Python" in done.stderr) == (2, True)

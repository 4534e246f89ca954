from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from autotune.machine.gpus import Runner
from autotune.settings.check import SettingVerdict, find_steering
from autotune.settings.doctor import diagnose, find_places, format_diagnosis, gpu_findings
from autotune.settings.known import KnownSettings

CASES = tomllib.loads(Path(__file__).with_name("doctor.toml").read_text(encoding="utf-8"))
H100S = """0, GPU-a, NVIDIA H100 80GB HBM3, 81559, 13, 550.54.15, 9.0, 0
1, GPU-b, NVIDIA H100 80GB HBM3, 81559, 40000, 550.54.15, 9.0, 97
"""


def machine_with(gpus: str, installed: str = "{}") -> Runner:
    """A machine whose programs print what is given; its nvidia-smi knows the GPUs."""

    def run(command: Sequence[str]) -> str:
        if command[0] == "nvidia-smi":
            return "" if not gpus else "GPU0 GPU1\n" if command[1] == "topo" else gpus
        return json.dumps({"python": "3.11.7", "versions": json.loads(installed), "folders": {}})

    return run


def lay_out(files: list[str], root: Path) -> None:
    for name in files:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).touch()


@pytest.mark.parametrize("case", CASES["places"], ids=str)
def test_schedulers_and_containers_are_seen(case: dict[str, Any], tmp_path: Path) -> None:
    lay_out(case["files"], tmp_path)
    assert list(find_places(case["environment"], tmp_path)) == case["places"]


def test_variables_that_steer_are_judged_and_others_are_not_shown(known: KnownSettings) -> None:
    environment = {
        "XLA_FLAGS": "--xla_gpu_graph_level=0 --xla_gpu_autotune_level=4",
        "JAX_ENABLE_PGLE": "true",
        "NCCL_LL_BUFFSIZE": "-2",
        "NCCL_TYPO": "1",
        "HOME": "/home/me",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }
    found = find_steering(environment, known)
    assert [(c.name, c.verdict) for c in found] == [
        ("xla_gpu_graph_level", SettingVerdict.RENAMED),
        ("xla_gpu_autotune_level", SettingVerdict.ALREADY_DEFAULT),
        ("jax_enable_pgle", SettingVerdict.EFFECTIVE),
        ("NCCL_LL_BUFFSIZE", SettingVerdict.NO_EFFECT),
        ("NCCL_TYPO", SettingVerdict.UNKNOWN),
    ]


def test_each_missing_thing_comes_with_the_command_that_mends_it(known: KnownSettings, tmp_path: Path) -> None:
    installed = '{"jaxlib": "0.10.2", "jax": "0.10.2", "jax-cuda12-plugin": "0.10.1", "flax": "1", "optax": "1"}'
    found = diagnose(
        "python",
        {"XLA_FLAGS": "--xla_gpu_made_up=1", "JAX_COMPILATION_CACHE_DIR": "/c"},
        known=known,
        run=machine_with(H100S, installed),
        root=tmp_path,
    )
    commands = {f.problem: f.command for f in found.findings}
    plugin = "the CUDA plugin is 0.10.1 (jax-cuda12-plugin), jaxlib is 0.10.2"
    assert commands[plugin] == "python -m pip install jax-cuda12-plugin==0.10.2"
    assert commands["nvidia-ml-py is not installed"] == "python -m pip install nvidia-ml-py"
    assert commands["GPU 1 is in use: 97 % busy, 39.1 GiB taken"] == "nvidia-smi"
    assert "autotune flags check --env" in commands.values()
    assert "unset JAX_COMPILATION_CACHE_DIR" in commands.values()
    assert found.versions["driver"] == "550.54.15"
    text = "\n".join(format_diagnosis(found))
    assert "GPU 0: NVIDIA H100 80GB HBM3, 79.6 GiB, compute capability 9.0" in text
    assert "xla_gpu_made_up=1: unknown" in text


def test_without_gpus_and_plugin_screening_is_what_is_missing(known: KnownSettings, tmp_path: Path) -> None:
    found = diagnose("python", {}, known=known, run=machine_with("", '{"jaxlib": "0.10.2"}'), root=tmp_path)
    (screening,) = (f for f in found.findings if "plugin" in f.problem)
    assert screening.feature == "compiling for GPUs on this machine (screening)"
    assert screening.command == (
        "python -m pip install jax-cuda12-plugin==0.10.2 jax-cuda12-pjrt==0.10.2 nvidia-cuda-nvcc-cu12"
    )
    assert "  no GPU" in list(format_diagnosis(found))


@pytest.mark.parametrize("case", CASES["no_gpu"], ids=str)
def test_who_asks_for_a_gpu_is_told_why_there_is_none(case: dict[str, Any], tmp_path: Path) -> None:
    lay_out(case["files"], tmp_path)
    installed = '{"jaxlib": "0.11.1"}'
    found = gpu_findings(sys.executable, case["environment"], run=machine_with("", installed), root=tmp_path)
    assert case["problem"] in found[0].problem
    assert case["command"] in found[0].command
    assert (found[1].problem, "jax[cuda13]==0.11.1" in found[1].command) == ("the CUDA plugin is not installed", True)
    with_gpus = machine_with(H100S, '{"jaxlib": "0.11.1", "jax-cuda13-plugin": "0.11.1"}')
    assert gpu_findings(sys.executable, {}, run=with_gpus, root=tmp_path) == []


@pytest.mark.parametrize("case", CASES["breaking"], ids=str)
def test_variables_that_break_programs_on_gpus_are_found(case: dict[str, Any], tmp_path: Path) -> None:
    found = diagnose(sys.executable, case["environment"], known=None, run=machine_with(H100S), root=tmp_path)
    commands, command = [f.command for f in found.findings], case.get("command")
    assert command is None or command in commands
    assert command is not None or not any("JAX_PLATFORMS" in c or "MEM_FRACTION" in c for c in commands)

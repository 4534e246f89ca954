from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from autotune.machine.gpus import Runner
from autotune.settings.check import check_variables
from autotune.settings.doctor import diagnose, find_places, format_diagnosis, gpu_findings, nccl_file_findings
from autotune.settings.known import KnownSettings
from tests.machine.test_gpus import H100S
from tests.tables import toml_beside

CASES = toml_beside(__file__, "doctor.toml")


def machine_with(gpus: str, installed: str) -> Runner:
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
    assert [place.kind for place in find_places(case["environment"], tmp_path)] == case["places"]


def test_variables_that_steer_are_judged_and_others_are_not_shown(known: KnownSettings) -> None:
    found = check_variables(CASES["variables"].items(), known)
    assert [[c.name, c.verdict] for c in found] == CASES["verdicts"]


@pytest.mark.parametrize("case", CASES["findings"], ids=str)
def test_each_missing_thing_comes_with_the_command_that_mends_it(
    case: dict[str, Any], known: KnownSettings, tmp_path: Path
) -> None:
    run = machine_with(H100S if case["has_gpus"] else "", json.dumps(case["installed"]))
    found = diagnose("python", case["environment"], known=known, run=run, root=tmp_path)
    commands = {f.problem: f.command for f in found.findings}
    assert case["commands"].items() <= commands.items()
    text = format_diagnosis(found)
    assert [line for line in case.get("lines", ()) if line not in text] == []


def test_variables_that_files_of_nccl_set_are_told(tmp_path: Path) -> None:
    home, own = tmp_path / "home", tmp_path / "own.conf"
    lay_out(["home/.nccl.conf", "etc/nccl.conf", "own.conf"], tmp_path)
    (home / ".nccl.conf").write_text("# NCCL_BUFFSIZE=1\nNCCL_PROTO=LL\nNCCL_ALGO=Ring\nno variable\n")
    (tmp_path / "etc/nccl.conf").write_text("NCCL_DEBUG=WARN\n")

    def told(**environment: str) -> list[str]:
        return [f.problem.partition(" in every")[0] for f in nccl_file_findings(environment, tmp_path)]

    site = f"{tmp_path}/etc/nccl.conf sets NCCL_DEBUG"
    assert told(HOME=str(home)) == [f"{home}/.nccl.conf sets NCCL_ALGO, NCCL_PROTO", site]
    assert told(HOME=str(home), NCCL_PROTO="Simple") == [f"{home}/.nccl.conf sets NCCL_ALGO", site]  # it wins
    assert told(HOME=str(home), NCCL_CONF_FILE=str(own), NCCL_DEBUG="INFO") == []


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

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from autotune.machine import gpus as gpus_here
from autotune.machine.host import packages_of
from autotune.settings import doctor
from autotune.settings.check import check_variables
from autotune.settings.doctor import diagnose, find_places, format_diagnosis, gpu_findings, nccl_file_findings
from autotune.settings.known import KnownSettings
from tests.machine.test_gpus import H100S
from tests.tables import toml_beside

CASES = toml_beside(__file__, "doctor.toml")


def be_on_machine(monkeypatch: pytest.MonkeyPatch, root: Path, gpus: str, installed: str) -> None:
    """Lets programs print what is given, with a nvidia-smi that knows the GPUs, and files lie below a folder."""

    def run(command: Sequence[str]) -> str:
        if command[0] == "nvidia-smi":
            return "" if not gpus else "GPU0 GPU1\n" if command[1] == "topo" else gpus
        return json.dumps({"python": "3.11.7", "versions": json.loads(installed), "folders": {}, "libraries": {}})

    monkeypatch.setattr(doctor, "ROOT", root)
    monkeypatch.setattr(gpus_here, "run_program", run)
    monkeypatch.setattr(doctor, "packages_of", partial(packages_of, run=run))


def lay_out(files: list[str], root: Path) -> None:
    for name in files:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).touch()


@pytest.mark.parametrize("case", CASES["places"], ids=str)
def test_schedulers_and_containers_are_seen(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(case["files"], tmp_path)
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    assert [place.kind for place in find_places(case["environment"])] == case["places"]


def test_variables_that_steer_are_judged_and_others_are_not_shown(known: KnownSettings) -> None:
    found = check_variables(CASES["variables"].items(), known)
    assert [[c.name, c.verdict] for c in found] == CASES["verdicts"]


@pytest.mark.parametrize("case", CASES["findings"], ids=str)
def test_each_missing_thing_comes_with_the_command_that_mends_it(
    case: dict[str, Any], known: KnownSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_on_machine(monkeypatch, tmp_path, H100S if case["has_gpus"] else "", json.dumps(case["installed"]))
    found = diagnose("python", case["environment"], known=known)
    commands = {f.problem: f.command for f in found.findings}
    assert case["commands"].items() <= commands.items()
    text = format_diagnosis(found)
    assert [line for line in case.get("lines", ()) if line not in text] == []


def test_variables_that_files_of_nccl_set_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    home, own = tmp_path / "home", tmp_path / "own.conf"
    lay_out(["home/.nccl.conf", "etc/nccl.conf", "own.conf"], tmp_path)
    (home / ".nccl.conf").write_text("# NCCL_BUFFSIZE=1\nNCCL_PROTO=LL\nNCCL_ALGO=Ring\nno variable\n")
    (tmp_path / "etc/nccl.conf").write_text("NCCL_DEBUG=WARN\n")

    def told(**environment: str) -> list[str]:
        return [f.problem.partition(" in every")[0] for f in nccl_file_findings(environment)]

    site = f"{tmp_path}/etc/nccl.conf sets NCCL_DEBUG"
    assert told(HOME=str(home)) == [f"{home}/.nccl.conf sets NCCL_ALGO, NCCL_PROTO", site]
    assert told(HOME=str(home), NCCL_PROTO="Simple") == [f"{home}/.nccl.conf sets NCCL_ALGO", site]  # it wins
    assert told(HOME=str(home), NCCL_CONF_FILE=str(own), NCCL_DEBUG="INFO") == []


@pytest.mark.parametrize("case", CASES["no_gpu"], ids=str)
def test_who_asks_for_a_gpu_is_told_why_there_is_none(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(case["files"], tmp_path)
    be_on_machine(monkeypatch, tmp_path, "", '{"jaxlib": "0.11.1"}')
    found = gpu_findings(sys.executable, case["environment"])
    assert case["problem"] in found[0].problem
    assert case["command"] in found[0].command
    assert ("CUDA plugin" in found[1].problem, "jax[cuda13]==0.11.1" in found[1].command) == (True, True)
    be_on_machine(monkeypatch, tmp_path, H100S, '{"jaxlib": "0.11.1", "jax-cuda13-plugin": "0.11.1"}')
    assert gpu_findings(sys.executable, {}) == []

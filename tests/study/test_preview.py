"""What `autotune space` shows before a run is what the run searches."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.cli.printing import plain
from autotune.model.clock import Stopwatch
from autotune.model.errors import AutotuneError
from autotune.model.spec import StudySpec, load_study, parse_study
from autotune.settings.space import SearchSpace
from autotune.study import trials
from autotune.study.driver import new_run, run_study
from autotune.study.preflight import known_settings, preview_space, space_here
from harness.simulated_machine import write_study
from tests.runs import Diary, worker_report
from tests.tables import toml_beside

COMBINE = "xla_gpu_all_gather_combine_threshold_bytes"
QUICK = Path(__file__).with_name("quick.toml").read_text(encoding="utf-8")

Searched = Callable[..., SearchSpace]


class Enough(AutotuneError):
    """The space of a run was seen: what would follow is of no interest here."""


@pytest.fixture
def searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Searched:
    """Runs a study file until it begins to search; gives its space."""

    def run(study: Path) -> SearchSpace:
        spaces: list[SearchSpace] = []

        def noting(spec: StudySpec, space: SearchSpace, **_: Any) -> None:
            spaces.append(space)
            raise Enough

        monkeypatch.setattr(trials, "Proposer", noting)
        run = new_run(
            load_study(study), tmp_path / "runs/quick", study_dir=study.parent, view=Diary(), watch=Stopwatch()
        )
        with pytest.raises(Enough):
            run_study(run)
        return spaces[0]

    return run


def shown(study: Path, *options: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["space", str(study), *options, "--json"])
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def same(told: dict[str, Any], space: SearchSpace) -> bool:
    return all(told[key] == value for key, value in json.loads(json.dumps(plain(space))).items())


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "study.toml"
        return write_study(path, text)

    monkeypatch.chdir(tmp_path)  # where no earlier run lies
    return write


@pytest.mark.gate
def test_the_space_of_a_cpu_study_is_the_one_its_run_searches(study: Callable[[str], Path], searched: Searched) -> None:
    path = study(QUICK)
    before = shown(path)
    space = searched(path)
    assert same(before, space)
    assert len(space.parameters) > 5
    assert "xla_gpu_autotune_level" in before["notes"]


def told(tmp_path: Path, **changes: Any) -> SearchSpace:
    data = {**toml_beside(__file__)["previewed"], **changes}
    return preview_space(parse_study(data), study_dir=tmp_path)[0]


def choices(space: SearchSpace) -> tuple[str, ...]:
    return next(p for p in space.parameters if p.name == COMBINE).choices or ()


def test_what_only_a_reference_knows_is_said_to_come(tmp_path: Path) -> None:
    for workload in ({"entry": "llama"}, {"command": [sys.executable, "train.py"], "hook": True}):
        found = told(tmp_path, workload=workload)
        assert choices(found)[1] == str(2**20)
        assert "has reported" in found.notes[COMBINE]


@pytest.mark.parametrize(("kind", "ports", "lacked"), toml_beside(__file__)["machines"])
def test_the_machines_that_ran_the_reference_decide_what_can_act(kind: str, ports: int, lacked: list[str]) -> None:
    data = {"name": "here", "workload": {"entry": "llama"}, "search": {"groups": ["nccl"]}}
    spec = parse_study({**data, "device": {"platform": "cuda", "count": 16, "node_count": 2}})
    ran = worker_report(device_kind=kind, device_count=16, infiniband_ports=ports if ports >= 0 else None)
    space = space_here(spec, known_settings(spec, sys.executable), ran)
    connections = next(p for p in space.parameters if p.name == "CUDA_DEVICE_MAX_CONNECTIONS")
    found = {*space.left_out, *(() if "1" in connections.choices else ("CUDA_DEVICE_MAX_CONNECTIONS=1",))}
    asked = {"NCCL_IB_QPS_PER_CONNECTION", "NCCL_NVLS_NCHANNELS", "CUDA_DEVICE_MAX_CONNECTIONS=1"}
    assert asked & found == set(lacked)


@pytest.mark.parametrize(("networks", "lacked"), [(None, ""), ((), "NO"), (("gvnic",), "O"), (("efa",), "N")])
def test_what_acts_on_a_network_of_a_cloud_is_said_not_to_act_elsewhere(
    networks: tuple[str, ...] | None, lacked: str
) -> None:
    settings = {"NCCL_FASTRAK_NUM_FLOWS": [1, 2], "OFI_NCCL_PROTOCOL": ["RDMA", "SENDRECV"]}
    data = {"name": "here", "workload": {"entry": "llama"}, "search": {"settings": settings}}
    spec = parse_study({**data, "device": {"platform": "cuda", "count": 16, "node_count": 2}})
    ran = worker_report(device_kind="NVIDIA H100 80GB HBM3", device_count=16, cloud_networks=networks)
    notes = space_here(spec, known_settings(spec, sys.executable), ran).notes
    assert {name[0] for name, note in notes.items() if "have none" in note} == set(lacked)

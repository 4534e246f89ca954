"""Which lanes a study gets; what is mistyped is told before anything starts."""

from __future__ import annotations

import pytest

from autotune.model.errors import StudyFileError
from autotune.model.spec import parse_study
from autotune.study import engines
from autotune.study.engines import HIGHEST_STEP, choose_engine, parse_groups
from tests.runs import replay_study


def test_each_part_between_commas_is_a_lane() -> None:
    assert parse_groups("0-3,4-7") == (("0", "1", "2", "3"), ("4", "5", "6", "7"))
    assert parse_groups("0+2,1+3") == (("0", "2"), ("1", "3"))
    assert parse_groups("0,1") == (("0",), ("1",))
    assert parse_groups(None) == ()


@pytest.mark.parametrize("text", ["", "0,,1", "x,,", "0,", "+", "0-3,2-5", "0,0", "3-1", "a b"])
def test_what_is_no_group_of_devices_is_refused(text: str) -> None:
    with pytest.raises(StudyFileError, match="must be"):
        parse_groups(text)


def test_a_dask_cluster_excludes_other_lanes_and_trials_over_several_nodes() -> None:
    with pytest.raises(StudyFileError, match="--scheduler and --devices; leave one out"):
        choose_engine(replay_study(), (("0",), ("1",)), scheduler="tcp://127.0.0.1:1")
    spec = parse_study({"name": "s", "workload": {"entry": "llama"}, "device": {"node_count": 2}})
    with pytest.raises(StudyFileError, match="several nodes are SLURM's"):
        choose_engine(spec, (), scheduler="tcp://127.0.0.1:1")


@pytest.mark.parametrize(
    "address", ["nonsense", "tcp://host", "tcp://host:port", "tcp://:8786", "", "nowhere/scheduler.json"]
)
def test_what_is_no_address_of_a_scheduler_is_refused_before_anything_is_made(address: str) -> None:
    with pytest.raises(StudyFileError, match="--scheduler must be an address like tcp://HOST:8786"):
        choose_engine(replay_study(), (), scheduler=address)


@pytest.mark.parametrize(
    ("step", "nodes"), [(None, ("n1", "n2")), ("0", ()), ("17", ()), (str(HIGHEST_STEP), ("n1", "n2"))]
)
def test_nodes_of_a_job_are_lanes_but_not_within_one_of_its_steps(
    step: str | None, nodes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", **({"SLURM_STEP_ID": step} if step else {})}
    monkeypatch.setattr(engines, "caller_environment", lambda: env)
    monkeypatch.setattr(engines, "has_slurm", lambda: True)
    monkeypatch.setattr(engines, "slurm_hosts", lambda listed, own: ("n1", "n2") if listed == "n[1-2]" else ())
    assert engines._nodes_of_job() == nodes

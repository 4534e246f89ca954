"""Lanes on different machines: a slow one is named, another kind is refused."""

from __future__ import annotations

import pytest

from autotune.model.errors import LaunchError
from autotune.model.records import FloorResult
from autotune.rundir.nodes import node_effects, refuse_strangers
from autotune.rundir.store import Store


@pytest.fixture
def floor(finished: Store) -> FloorResult:
    """The noise floor of a short simulated study."""
    return finished.of(FloorResult)[0]


def at(floor: FloorResult, lane: str, step_s: float, **report: object) -> FloorResult:
    """The same floor as another lane's, with another step time."""
    comparison = floor.comparison.model_copy(update={"reference_step_s": step_s})
    reference = floor.reference.model_copy(update=report)
    return floor.model_copy(update={"by": lane, "comparison": comparison, "reference": reference})


def test_a_slow_node_is_named_and_its_effect_estimated(floor: FloorResult) -> None:
    nodes = node_effects([at(floor, "a", 0.100), at(floor, "b", 0.110), at(floor, "c", 0.101)], [])
    assert [(n.lane, n.is_slow) for n in nodes] == [("b", True), ("c", False), ("a", False)]
    assert nodes[0].ratio == pytest.approx(0.110 / 0.101)
    assert node_effects([floor], []) == []


def test_lanes_on_other_devices_or_versions_are_refused(floor: FloorResult) -> None:
    first = at(floor, "a", 0.1, device_kind="H100", versions={"jaxlib": "0.10.2"})
    refuse_strangers(at(floor, "b", 0.2, device_kind="H100", versions={"jaxlib": "0.10.2"}), [first])
    with pytest.raises(LaunchError, match=r"kind of device: H100 there, A100 here.*--run-dir"):
        refuse_strangers(at(floor, "b", 0.2, device_kind="A100", versions={"jaxlib": "0.10.2"}), [first])
    with pytest.raises(LaunchError, match=r"version of jaxlib: 0.10.2 there, 0.12.0 here"):
        refuse_strangers(at(floor, "b", 0.2, device_kind="H100", versions={"jaxlib": "0.12.0"}), [first])

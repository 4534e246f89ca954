"""What is proposed under declared conditions, and what becomes of given sets of which a part fails."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.model.flags import FlagSet
from autotune.model.measurement import Failure, FailureKind
from autotune.model.records import TrialConfig, TrialResult, TrialStatus
from autotune.model.spec import parse_study
from autotune.settings.space import Parameter, SearchSpace
from autotune.study.proposer import Proposer
from harness.simulated import measured_as
from tests.runs import there

STUDY = parse_study({"name": "a", "workload": {"entry": "llama"}, "search": {"trials": 100}})
FAILED = {"status": TrialStatus.FAILED, "failure": Failure(kind=FailureKind.CRASH, message="", phase="run")}


def told(proposer: Proposer, config: TrialConfig, outcome: dict[str, Any]) -> None:
    proposer.tell(TrialResult(**{**config.model_dump(exclude={"kind"}), **outcome}))


@pytest.mark.parametrize(
    ("parent", "value"),
    [
        pytest.param({"choices": ("a", "b", "c"), "default": "a"}, "c", id="a word"),
        pytest.param({"choices": ("0", "1", "2", "3", "4"), "is_range": True, "default": "0"}, "3", id="a number"),
        pytest.param({"choices": ("1", "2", "4", "8", "16", "32"), "default": "1"}, "16", id="a power of two"),
    ],
)
def test_a_value_under_a_condition_is_found_though_its_condition_costs(parent: dict[str, Any], value: str) -> None:
    """The condition makes a step 1 % slower, the value behind it 6 % faster."""
    space = SearchSpace(
        (
            Parameter(name="xla_parent", group="g", **parent),
            *(Parameter(name=f"xla_{i}", choices=("0", "1"), default="0", group="g") for i in range(6)),
            Parameter(name="xla_child", choices=("0", "1"), default="0", group="g", condition={"xla_parent": (value,)}),
        )
    )
    proposer, best = Proposer(STUDY, space, first=()), 0.0
    for number in range(1, 25):
        config = there(proposer.ask(number))
        change = 0.01 * ("xla_parent" in config.settings) - 0.06 * ("xla_child" in config.settings)
        best = min(best, change)
        told(proposer, config, dict(measured_as(change, 0.003)))
        if best < -0.04:
            return
    pytest.fail("the value was never measured")


A, B, C = ({f"xla_{n}": "1"} for n in "abc")


@pytest.mark.parametrize(
    ("failing", "proposed"),
    [
        pytest.param([A], [B | C], id="one setting fails"),
        pytest.param([A | B], [A | C, B | C], id="two fail together"),
        pytest.param([A, B], [C], id="two fail, each by itself"),
        pytest.param([A, B, C], [], id="nothing is left"),
        pytest.param([{"xla_a": "2"}], [], id="another value fails"),
    ],
)
def test_the_rest_of_a_given_set_is_tried_without_what_is_known_to_fail(failing: Any, proposed: Any) -> None:
    names = ("xla_a", "xla_b", "xla_c", "xla_d")
    space = SearchSpace(tuple(Parameter(name=n, choices=("0", "1"), default="0") for n in names))
    proposer = Proposer(STUDY, space, first=[("recipe", FlagSet(A | B | C))])
    told(proposer, there(proposer.ask(1)), FAILED)
    proposer.failing += map(FlagSet, failing)
    asked: list[FlagSet] = []
    while (config := there(proposer.ask(len(asked) + 2))).origin.startswith("recipe"):
        asked.append(config.settings)
        told(proposer, config, dict(measured_as(0.0, 0.003)))
    assert {str(s) for s in asked} == {str(FlagSet(p)) for p in proposed}
